/* What the tests of gradients as rows share: a graph with tables of several kinds, a session for a
 * trial, its steps, and the comparison of two sessions. WEFT_TEST_SEED sets the seed. */
#ifndef WEFT_TESTS_ROWS_TRIAL_H
#define WEFT_TESTS_ROWS_TRIAL_H

#include "session_models.h"

#include "session/parts.h"
#include "weft/plan.h"

enum { STEPS = 4, TABLE = 300, DIM = 7, SMALL = 20, CASES = SANITIZED ? 24 : 40 };

typedef struct trial {
    uint64_t seed;
    weft_optimizer_kind kind;
    weft_dtype dtype;
    int devices, level;
    int stages; /* of a pipeline; 0: one */
    weft_schedule schedule;
    int micros; /* microbatches of a step; 0: one */
    double clip;
    int64_t batch, seq;
    bool padded, turned;
    int told; /* how often a step is told of later ids; the last ones are wrong */
    weft_tier parameters, states; /* of the tables */
    int64_t cache;                /* bytes, of each entry for a disk; 0: none */
    double percent;               /* above 0: of the rows, in the entries of parameters */
} trial;

/* Two tables with more rows than places, one with fewer, and one that a product reads too. */
static inline weft_graph *tables(const trial *t) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    const weft_init init = {WEFT_INIT_NORMAL, 0.4};
    const weft_desc of_ids = WEFT_DESC(WEFT_I32, t->batch, t->seq);
    weft_value ids = weft_input(g, "ids", of_ids), other = weft_input(g, "other", of_ids);
    weft_value wide = weft_param(g, "wide", WEFT_DESC(t->dtype, TABLE, DIM), init),
               second = weft_param(g, "second", WEFT_DESC(t->dtype, TABLE + 1, DIM), init),
               small = weft_param(g, "small", WEFT_DESC(t->dtype, SMALL, DIM), init),
               tied = weft_param(g, "tied", WEFT_DESC(t->dtype, TABLE, DIM), init);
    weft_value x = weft_embedding_padded(g, wide, ids, t->padded ? 3 : -1, t->dtype);
    weft_cell_begin(g, "cell");
    x = weft_cell_end(g, weft_add(g, x, weft_tanh(g, weft_embedding(g, second, other, t->dtype))));
    weft_cell_begin(g, "next");
    x = weft_cell_end(g, weft_add(g, x, weft_embedding(g, small, other, t->dtype)));
    x = weft_add(g, x, weft_embedding(g, tied, ids, t->dtype));
    weft_value y = weft_linear(g, weft_tanh(g, x), tied, WEFT_NO_VALUE, true);
    weft_loss(g, weft_mean(g, weft_mul(g, y, y), 0, NULL, false));
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    return g;
}

static char folder[] = "/tmp/weft-rows-XXXXXX";

static inline int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static inline int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static inline weft_plan *plan_for(const trial *t) {
    weft_plan *plan;
    if (t->devices == 1 && !t->parameters && !t->states) return NULL;
    ASSERT_OK(weft_plan_create(t->devices, &plan));
    if (t->level) ASSERT_OK(weft_plan_optimizer(plan, t->level, 0, 0));
    if (t->stages > 1)
        ASSERT_OK(weft_plan_pipeline(plan, t->stages, t->micros, t->schedule,
                                     t->schedule == WEFT_PIPELINE_INTERLEAVED ? 2 : 1));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "second" : "wide";
        ASSERT_OK(weft_plan_offload(plan, name, WEFT_OFFLOAD_PARAMETERS, t->parameters));
        ASSERT_OK(weft_plan_offload(plan, name, WEFT_OFFLOAD_OPTIMIZER, t->states));
        if (t->parameters == WEFT_TIER_DISK)
            ASSERT_OK(t->percent > 0
                          ? weft_plan_cache_percent(plan, name, WEFT_OFFLOAD_PARAMETERS, t->percent)
                          : weft_plan_cache(plan, name, WEFT_OFFLOAD_PARAMETERS, t->cache));
        if (t->states == WEFT_TIER_DISK)
            ASSERT_OK(weft_plan_cache(plan, name, WEFT_OFFLOAD_OPTIMIZER, t->cache));
    }
    return plan;
}

static inline weft_session *session_for(const trial *t, weft_rows rows, weft_graph **out_graph) {
    weft_session_options o = plain_options(t->kind, t->clip);
    weft_plan *plan = plan_for(t);
    weft_session *s;
    o.rows = rows;
    o.microbatches = t->micros ? t->micros : 1;
    o.optimizer.weight_decay = 0;
    o.optimizer.initial_accumulator = 0.1;
    o.plan = plan;
    o.disk = folder;
    *out_graph = tables(t);
    if (weft_session_create(*out_graph, &o, &s) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_error_message());
    weft_plan_destroy(plan);
    return s;
}

/* Few ids of many, often the same; in table `small` those beyond it give NaN, so they stay below.
 * ahead: a later step has them. */
static inline void feed_or_tell(weft_session *s, const trial *t, int step, bool ahead) {
    int32_t ids[64];
    dice d = {t->seed ^ 77, (uint64_t)step << 20};
    for (int input = 0; input < 2; input++) {
        const size_t count = (size_t)(t->batch * t->seq);
        assert_true(count <= sizeof ids / sizeof *ids);
        for (size_t i = 0; i < count; i++)
            ids[i] = (int32_t)roll(&d, input ? SMALL : roll(&d, 2) ? TABLE : 6);
        const char *name = input ? "other" : "ids";
        ASSERT_OK(ahead ? weft_session_feed_ahead(s, 0, name, ids, count * sizeof *ids)
                        : weft_session_feed(s, 0, name, ids, count * sizeof *ids));
    }
}

static inline void feed_ids(weft_session *s, const trial *t, int step) {
    feed_or_tell(s, t, step, false);
}

/* Reads a tensor between two steps, and writes it with its elements in the other order. */
static inline void turn(weft_session *s, const trial *t, const char *name) {
    const size_t size = weft_dtype_bytes(t->dtype);
    weft_tensor_info info;
    ASSERT_OK(weft_session_find(s, 0, name, &info));
    const size_t bytes = (size_t)info.bytes;
    char *old = malloc(bytes), *new = malloc(bytes);
    ASSERT_OK(weft_session_read(s, 0, name, old, bytes));
    for (size_t at = 0; at < bytes; at += size) memcpy(new + bytes - size - at, old + at, size);
    ASSERT_OK(weft_session_write(s, 0, name, new, bytes));
    free(old);
    free(new);
}

static inline void train(weft_session *s, const trial *t) {
    for (int step = 0; step < STEPS; step++) {
        for (int m = 1; m < t->micros; m++) {
            feed_ids(s, t, step + m * STEPS);
            ASSERT_OK(weft_session_accumulate(s, NULL));
        }
        feed_ids(s, t, step);
        for (int told = 0; told < t->told; told++) feed_or_tell(s, t, step + 1 + told, true);
        if (t->turned && step == 2) turn(s, t, "wide");
        if (t->micros > 1) {
            ASSERT_OK(weft_session_accumulate(s, NULL));
            ASSERT_OK(weft_session_update(s, 0.1, NULL));
        } else {
            ASSERT_OK(weft_session_step(s, 0.1, NULL));
        }
        const weft_session_memory m = weft_session_memory_of(s);
        assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
    }
}

/* Whether all elements differ by rounding at most. Of 101 seeds, the largest differences over
 * 1 + |element| were 3e-8 in f32 and 1.3e-17 in f64. */
static inline bool are_near(const void *x, const void *y, const weft_desc *desc) {
    const bool wide = desc->dtype == WEFT_F64;
    for (int64_t i = 0; i < weft_desc_elems(desc); i++) {
        const double a = wide ? ((const double *)x)[i] : (double)((const float *)x)[i],
                     b = wide ? ((const double *)y)[i] : (double)((const float *)y)[i];
        if (!(fabs(a - b) <= (wide ? 1e-15 : 1e-6) * (1 + fabs(a)))) return false;
    }
    return true;
}

/* rounded: elements may differ by rounding. */
static inline bool same_tensors(weft_session *a, weft_session *b, bool rounded) {
    for (int k = 0; k < weft_session_tensors(a, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, k, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_OPTIMIZER) continue;
        char *x = malloc((size_t)info.bytes), *y = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        const bool same =
            !memcmp(x, y, (size_t)info.bytes) || (rounded && are_near(x, y, &info.desc));
        free(x);
        free(y);
        if (!same) return false;
    }
    return true;
}

/* The form of a table, on the first device that has it. */
static inline wefti_rows_form form_of(const weft_session *s, const char *name) {
    const wefti_tensor *x = NULL;
    for (int r = 0; r < s->devices && !x; r++)
        x = wefti_program_tensor(s->views[0]->programs[r], name);
    assert_non_null(x);
    return x->rows;
}

static inline trial trial_of(uint64_t seed) {
    dice d = {seed, 0};
    trial t = {.seed = seed, .kind = roll(&d, 2) ? WEFT_SGD : WEFT_ADAGRAD};
    t.dtype = roll(&d, 4) ? WEFT_F32 : WEFT_F64;
    t.devices = 1 + (int)roll(&d, 4);
    t.level = t.devices > 1 ? (int)roll(&d, 4) : 0;
    t.batch = t.devices + (int64_t)roll(&d, 4);
    t.seq = 3 + (int64_t)roll(&d, 6);
    t.padded = roll(&d, 2);
    t.micros = roll(&d, 2) ? 1 + (int)roll(&d, 9) : 1;
    if (t.micros > 1 && roll(&d, 2)) { /* with one device for each stage, or two */
        t.stages = 2;
        t.devices = 2 + 2 * (int)roll(&d, 2);
        t.micros += t.micros % 2; /* interleaved: rounds of a microbatch for each stage */
        t.schedule = (weft_schedule)roll(&d, WEFT_PIPELINE_ZERO_BUBBLE);
    }
    if (t.micros > 1) {
        t.batch = t.devices + t.batch % 2;
        t.seq = 3;
    }
    return t;
}

#endif
