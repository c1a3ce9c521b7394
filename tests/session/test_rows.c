/* Gradients of tables as rows. sgd and adagrad give the bits of dense gradients, on any number of
 * devices and at every optimizer level. adam changes the touched rows alone. The dense gradient is
 * not made, and tables that another op reads stay dense. Tables and states in host memory or on a
 * disk have the bits of those in device memory, and only rows move. WEFT_TEST_SEED sets the seed.
 */
#include "session_models.h"

#include <errno.h>

#include "base/fault.h"
#include "device/disk_cache.h"
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
static weft_graph *tables(const trial *t) {
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

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static weft_plan *plan_for(const trial *t) {
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

static weft_session *session_for(const trial *t, weft_rows rows, weft_graph **out_graph) {
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
static void feed_or_tell(weft_session *s, const trial *t, int step, bool ahead) {
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

static void feed_ids(weft_session *s, const trial *t, int step) {
    feed_or_tell(s, t, step, false);
}

/* Reads a tensor between two steps, and writes it with its elements in the other order. */
static void turn(weft_session *s, const trial *t, const char *name) {
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

static void train(weft_session *s, const trial *t) {
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

/* Whether all elements differ by rounding at most: 1e-4 in f32, 1e-11 in f64. */
static bool are_near(const void *x, const void *y, const weft_desc *desc) {
    const bool wide = desc->dtype == WEFT_F64;
    for (int64_t i = 0; i < weft_desc_elems(desc); i++) {
        const double a = wide ? ((const double *)x)[i] : (double)((const float *)x)[i],
                     b = wide ? ((const double *)y)[i] : (double)((const float *)y)[i];
        if (!(fabs(a - b) <= (wide ? 1e-11 : 1e-4) * (1 + fabs(a)))) return false;
    }
    return true;
}

/* rounded: elements may differ by rounding. */
static bool same_tensors(weft_session *a, weft_session *b, bool rounded) {
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
static wefti_rows_form form_of(const weft_session *s, const char *name) {
    const wefti_tensor *x = NULL;
    for (int r = 0; r < s->devices && !x; r++)
        x = wefti_program_tensor(s->views[0]->programs[r], name);
    assert_non_null(x);
    return x->rows;
}

/* How many updates of a device's program take rows. */
static int updates_of(const wefti_program *p) {
    int count = 0;
    for (int section = 0; section < WEFTI_SECTIONS; section++)
        for (int32_t k = 0; k < p->step_count[section]; k++) {
            const wefti_step *step = &p->steps[section][k];
            if (step->kind != WEFTI_STEP_CALL || step->phase != WEFTI_UPDATE) continue;
            for (int32_t i = 0; i < step->routine->code_count; i++) {
                const weft_node *n = step->routine->code[i].node;
                count += n && !strcmp(n->op->name, "rows_sum") && step->tensor >= 0;
            }
        }
    return count;
}

/* Of the first device of each stage. */
static int updates_by_rows(const weft_session *s, int stages) {
    int count = 0;
    for (int stage = 0; stage < stages; stage++)
        count += updates_of(s->views[0]->programs[stage * s->devices / stages]);
    return count;
}

static trial trial_of(uint64_t seed) {
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

static void rows_have_the_bits_of_dense_gradients(void **state) {
    (void)state;
    int staged = 0;
    TEST_SEEDS(seed, 1, CASES) {
        const trial t = trial_of(seed);
        weft_graph *g[2];
        weft_session *s[2];
        for (int k = 0; k < 2; k++) {
            s[k] = session_for(&t, k ? WEFT_ROWS_AUTO : WEFT_ROWS_NONE, &g[k]);
            train(s[k], &t);
        }
        const int stages = t.stages ? t.stages : 1;
        staged += stages > 1;
        assert_int_equal(updates_by_rows(s[0], stages), 0);
        assert_int_equal(updates_by_rows(s[1], stages), 2 + (t.micros * t.batch * t.seq < SMALL));
        assert_int_equal(form_of(s[0], "wide"), WEFTI_ROWS_UNASKED);
        assert_int_equal(form_of(s[1], "wide"), WEFTI_ROWS_TOUCHED);
        assert_int_equal(form_of(s[1], "tied"), WEFTI_ROWS_SHARED);
        assert_int_equal(form_of(s[1], "small") == WEFTI_ROWS_SMALL,
                         t.micros * t.batch * t.seq >= SMALL);
        /* Dense, levels 2 and 3 reduce each microbatch, and f64 adds the sum of each. */
        const bool rounded = t.micros > 1 && (t.level > 1 || t.dtype == WEFT_F64);
        if (!same_tensors(s[0], s[1], rounded))
            fail_msg("WEFT_TEST_SEED=%llu (%s, %s, %d devices, level %d, batch %d, %d "
                     "microbatches): tensors differ",
                     (unsigned long long)seed, t.kind == WEFT_SGD ? "sgd" : "adagrad",
                     weft_dtype_text(t.dtype), t.devices, t.level, (int)t.batch, t.micros);
        for (int k = 0; k < 2; k++) {
            weft_session_destroy(s[k]);
            weft_graph_destroy(g[k]);
        }
    }
    assert_true(test_one_seed() || staged > CASES / 8);
}

/* Tables stay whole, and say why. */
static void forms_have_their_reasons(void **state) {
    (void)state;
    trial t = {.kind = WEFT_SGD, .dtype = WEFT_F32, .devices = 2, .batch = 2, .seq = 3};
    weft_graph *g;
    t.stages = t.micros = 2;
    for (t.schedule = 0; t.schedule < WEFT_PIPELINE_SCHEDULES; t.schedule++) {
        weft_session *s = session_for(&t, WEFT_ROWS_AUTO, &g);
        assert_int_equal(form_of(s, "wide"), t.schedule == WEFT_PIPELINE_ZERO_BUBBLE
                                                 ? WEFTI_ROWS_STAGES
                                                 : WEFTI_ROWS_TOUCHED);
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
}

/* What the programs of a device copy to tiers and from them in a step, at most. */
static int64_t moved(const weft_session *s, int32_t rank, int *row_copies) {
    const wefti_program *p = s->views[0]->programs[rank];
    int64_t bytes[WEFTI_SPACES], sum = 0;
    wefti_program_moved(p, 1, bytes);
    for (int i = 0; i < WEFTI_SPACES; i++) sum += bytes[i];
    for (int32_t i = 0; i < p->move_count; i++) *row_copies += p->moves[i].rows > 0;
    return sum;
}

static void tiers_change_no_bits(void **state) {
    (void)state;
    int copies = 0;
    int64_t hits = 0;
    TEST_SEEDS(seed, 1, CASES) {
        dice d = {seed, 1u << 24};
        trial t = trial_of(seed);
        weft_graph *g[2];
        weft_session *s[2];
        t.kind = (weft_optimizer_kind)roll(&d, WEFT_LAMB);
        t.clip = roll(&d, 2) ? 0.01 : 0;
        t.turned = roll(&d, 2);
        const weft_tier parameters = (weft_tier)roll(&d, WEFT_TIERS),
                        states = (weft_tier)roll(&d, WEFT_TIERS);
        const int64_t cache = roll(&d, 4) ? 256 << roll(&d, 8) : 0;
        const double percent = cache && roll(&d, 3) == 0 ? 0.1 + (double)roll(&d, 60) : 0;
        for (int k = 0; k < 2; k++) {
            s[k] = session_for(&t, WEFT_ROWS_AUTO, &g[k]);
            train(s[k], &t);
            t.parameters = parameters;
            t.states = states;
            t.cache = cache;
            t.percent = percent;
            t.told = (int)(seed % 3);
        }
        assert_int_equal(form_of(s[1], "wide"), WEFTI_ROWS_TOUCHED);
        /* Four states at most, there and back, and a look-up; of two tables. */
        const int64_t most =
            2 * 9 * t.micros * t.batch * t.seq * DIM * (int64_t)weft_dtype_bytes(t.dtype);
        for (int32_t r = 0; r < t.devices && !t.level; r++)
            if (moved(s[1], r, &copies) > most)
                fail_msg("WEFT_TEST_SEED=%llu: more than rows move", (unsigned long long)seed);
        hits += weft_session_memory_of(s[1]).cache_hits;
        if (!same_tensors(s[0], s[1], false))
            fail_msg("WEFT_TEST_SEED=%llu (optimizer %d, %s, %d devices, level %d, parameters in "
                     "tier %d, states in %d, cache of %d bytes, %g %%): bits differ",
                     (unsigned long long)seed, t.kind, weft_dtype_text(t.dtype), t.devices, t.level,
                     parameters, states, (int)cache, percent);
        for (int k = 0; k < 2; k++) {
            weft_session_destroy(s[k]);
            weft_graph_destroy(g[k]);
        }
    }
    assert_true(test_one_seed() || (copies > CASES && hits > 20 * CASES));
}

/* With clipping and every optimizer that takes rows, N devices are one device up to rounding: at
 * most 7e-7 of a table's largest element was seen, with adam, which divides by small roots. */
static void devices_change_only_rounding(void **state) {
    (void)state;
    for (int kind = 0; kind < (int)WEFT_OPTIMIZERS; kind++)
        for (int devices = 2; devices <= 3; devices++) {
            trial t = {.seed = (uint64_t)kind,
                       .kind = (weft_optimizer_kind)kind,
                       .dtype = WEFT_F32,
                       .devices = devices,
                       .level = kind % 4,
                       .clip = devices == 2 ? 0.01 : 0,
                       .batch = 6,
                       .seq = 4};
            weft_graph *g[2];
            weft_session *s[2];
            for (int k = 0; k < 2; k++) {
                s[k] = session_for(&t, WEFT_ROWS_AUTO, &g[k]);
                train(s[k], &t);
                t.devices = 1;
            }
            const bool whole = kind == WEFT_LAMB || kind == WEFT_ADAFACTOR;
            assert_int_equal(updates_by_rows(s[0], 1), whole ? 0 : 2);
            const bool direction = kind == WEFT_LION || whole; /* of rounding errors, too */
            if (!direction && difference(s[1], s[0], WEFT_ROLE_PARAM) > 1e-5)
                fail_msg("optimizer %d, %d devices: %g apart", kind, devices,
                         difference(s[1], s[0], WEFT_ROLE_PARAM));
            for (int k = 0; k < 2; k++) {
                weft_session_destroy(s[k]);
                weft_graph_destroy(g[k]);
            }
        }
}

/* adam by hand, in double, for the rows that a step touches. */
static void adam_changes_touched_rows_alone(void **state) {
    (void)state;
    enum { PLACES = 5 };
    static const int32_t ids[STEPS][PLACES] = {
        {1, 7, 1, 2, 9}, {7, 7, 7, 11, 2}, {70, 1, 70, 7, 3}, {2, 2, 2, 2, 2}};
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value table = weft_param(g, "table", matrix(TABLE, DIM), (weft_init){WEFT_INIT_NORMAL, 1});
    weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES));
    weft_value x = weft_input(g, "x", matrix(PLACES, DIM));
    weft_loss(g,
              weft_sum(g, weft_mul(g, weft_embedding(g, table, in, WEFT_F32), x), 0, NULL, false));
    weft_session_options o = plain_options(WEFT_ADAM, 0);
    o.rows = WEFT_ROWS_AUTO;
    o.optimizer.weight_decay = 0;
    weft_session *s = session_of(g, o);
    static double p[TABLE][DIM], m[TABLE][DIM], v[TABLE][DIM];
    int64_t count;
    float *start = read_tensor(s, 0, "table", &count);
    for (int64_t i = 0; i < count; i++) p[i / DIM][i % DIM] = (double)start[i];
    for (int step = 0; step < STEPS; step++) {
        float values[PLACES * DIM];
        for (int i = 0; i < PLACES * DIM; i++)
            values[i] = wefti_philox_normal(5, (uint64_t)step, (uint64_t)i);
        ASSERT_OK(weft_session_feed(s, 0, "ids", ids[step], sizeof ids[step]));
        ASSERT_OK(weft_session_feed(s, 0, "x", values, sizeof values));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        for (int32_t row = 0; row < TABLE; row++)
            for (int d = 0; d < DIM; d++) {
                double gradient = 0;
                bool touched = false;
                for (int i = 0; i < PLACES; i++)
                    if (ids[step][i] == row) {
                        gradient += (double)values[i * DIM + d];
                        touched = true;
                    }
                if (!touched) continue;
                const weft_optimizer *a = &o.optimizer;
                m[row][d] = a->beta1 * m[row][d] + (1 - a->beta1) * gradient;
                v[row][d] = a->beta2 * v[row][d] + (1 - a->beta2) * gradient * gradient;
                p[row][d] -= 0.1 * m[row][d] / (1 - pow(a->beta1, step + 1)) /
                             (sqrt(v[row][d] / (1 - pow(a->beta2, step + 1))) + a->eps);
            }
    }
    float *end = read_tensor(s, 0, "table", &count);
    for (int64_t i = 0; i < count; i++) {
        const double want = p[i / DIM][i % DIM];
        if (!(fabs((double)end[i] - want) <= 1e-5 * fmax(1, fabs(want))))
            fail_msg("row %d: %.9g, not %.9g", (int)(i / DIM), (double)end[i], want);
        if (v[i / DIM][0] == 0) assert_true(end[i] == start[i]);
    }
    free(start);
    free(end);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A table of 2.8 MB: its dense gradient is most of the transient memory. */
static void the_dense_gradient_is_not_made(void **state) {
    (void)state;
    enum { LARGE = 100000, PLACES = 12 };
    int64_t transient[2];
    for (int k = 0; k < 2; k++) {
        weft_graph *g;
        ASSERT_OK(weft_graph_create(&g));
        weft_value table =
            weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_ZEROS, 0});
        weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES));
        weft_value y = weft_embedding(g, table, in, WEFT_F32);
        weft_loss(g, weft_mean(g, weft_tanh(g, y), 0, NULL, false));
        weft_session_options o = plain_options(WEFT_ADAGRAD, 0);
        o.rows = k ? WEFT_ROWS_AUTO : WEFT_ROWS_NONE;
        weft_session *s = session_of(g, o);
        const int32_t ids[PLACES] = {5, 99999, 70000, 5};
        ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        const weft_session_memory m = weft_session_memory_of(s);
        assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
        transient[k] = m.transient_bytes;
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
    assert_true(transient[0] >= LARGE * DIM * 4);
    assert_true(transient[1] < 16384); /* of the few rows, and of finding them */
}

/* The same table in a tier: device memory has room for the rows of a batch alone. */
static void device_memory_holds_rows_alone(void **state) {
    (void)state;
    enum { LARGE = 100000, PLACES = 12 };
    for (int tier = WEFT_TIER_HOST; tier <= WEFT_TIER_DISK; tier++) {
        weft_graph *g;
        weft_plan *plan;
        ASSERT_OK(weft_graph_create(&g));
        weft_value table =
            weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_ZEROS, 0});
        weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES));
        weft_value y = weft_embedding(g, table, in, WEFT_F32);
        weft_loss(g, weft_mean(g, weft_tanh(g, y), 0, NULL, false));
        ASSERT_OK(weft_plan_create(1, &plan));
        ASSERT_OK(weft_plan_offload(plan, "*", WEFT_OFFLOAD_PARAMETERS, (weft_tier)tier));
        ASSERT_OK(weft_plan_offload(plan, "*", WEFT_OFFLOAD_OPTIMIZER, (weft_tier)tier));
        weft_session_options o = plain_options(WEFT_ADAM, 0);
        o.rows = WEFT_ROWS_AUTO;
        o.plan = plan;
        o.disk = folder;
        weft_session *s = session_of(g, o);
        const int32_t ids[PLACES] = {5, 99999, 70000, 5};
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
            ASSERT_OK(weft_session_step(s, 0.1, NULL));
        }
        const weft_session_memory m = weft_session_memory_of(s);
        assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
        assert_true(m.predicted_peak_bytes < 16384);
        int copies = 0;
        assert_int_equal(moved(s, 0, &copies), (1 + 2 * 3) * PLACES * DIM * 4);
        assert_int_equal(copies, 1 + 2 * 3);
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* A table with its states on a disk, in a session with a cache of `bytes` for each entry; -p: p per
 * cent. */
static weft_status cached_session(int64_t bytes, weft_graph *g, weft_session **out) {
    weft_plan *plan;
    weft_session_options o = plain_options(WEFT_ADAM, 0);
    ASSERT_OK(weft_plan_create(1, &plan));
    for (int what = WEFT_OFFLOAD_OPTIMIZER; what <= WEFT_OFFLOAD_PARAMETERS; what++) {
        ASSERT_OK(weft_plan_offload(plan, "*", (weft_offload)what, WEFT_TIER_DISK));
        if (bytes < 0)
            ASSERT_OK(weft_plan_cache_percent(plan, "*", (weft_offload)what, -(double)bytes));
        else
            ASSERT_OK(weft_plan_cache(plan, "*", (weft_offload)what, bytes));
    }
    o.rows = WEFT_ROWS_AUTO;
    o.plan = plan;
    o.disk = folder;
    const weft_status status = weft_session_create(g, &o, out);
    weft_plan_destroy(plan);
    return status;
}

static void step_on(weft_session *s, int32_t first) {
    const int32_t ids[] = {first, first + 1, first, 7};
    ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
    ASSERT_OK(weft_session_step(s, 0.1, NULL));
}

/* A device that takes another one's arenas has the rows that were in its cache alone. */
static void move_away(weft_session *s) {
    const wefti_program *p = s->views[0]->programs[0];
    const wefti_disk_place place = {.directory = folder};
    wefti_rank_device *from = wefti_workers_device(s->workers, 0), *to;
    ASSERT_OK(wefti_rank_device_create(1, wefti_program_footprint(p), &place, NULL, &to));
    ASSERT_OK(wefti_rank_device_bind(to, p));
    const int64_t written = wefti_rank_device_row_counts(from).written;
    ASSERT_OK(wefti_rank_device_take(to, from));
    assert_true(wefti_rank_device_row_counts(from).written > written);
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *x = &p->tensors[i];
        const int64_t bytes = weft_desc_bytes(&x->desc);
        if (x->role != WEFTI_TENSOR_PARAM && x->role != WEFTI_TENSOR_OPTIMIZER) continue;
        const wefti_home old = wefti_rank_device_home(from, x->home, bytes),
                         new = wefti_rank_device_home(to, x->home, bytes);
        char *a = malloc((size_t)bytes), *b = malloc((size_t)bytes);
        ASSERT_OK(wefti_home_read(&old, 0, bytes, a));
        ASSERT_OK(wefti_home_read(&new, 0, bytes, b));
        assert_memory_equal(a, b, (size_t)bytes);
        free(a);
        free(b);
    }
    wefti_rank_device_destroy(to);
}

/* The cache is host memory that the session tells, never more than it was given, and never more
 * than all rows need. One without room for a row is refused. A disk that takes no rows any more is
 * told as such. */
static void caches_are_counted(void **state) {
    (void)state;
    enum { LARGE = 5000, SLOT = 3 * DIM * 4 };
    weft_graph *g;
    weft_session *s;
    ASSERT_OK(weft_graph_create(&g));
    weft_value table = weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_ZEROS, 0});
    weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, 4));
    weft_loss(g,
              weft_mean(g, weft_tanh(g, weft_embedding(g, table, in, WEFT_F32)), 0, NULL, false));
    assert_int_equal(cached_session(40, g, &s), WEFT_E_ARG);
    ASSERT_FACTS(weft_error_message(), "cache|table|room");
    for (int64_t bytes = 400; bytes < 4 << 20; bytes *= 7) {
        ASSERT_OK(cached_session(bytes, g, &s));
        const int64_t slots = wefti_program_tensor(s->views[0]->programs[0], "table")->cache_slots,
                      exact = wefti_disk_cache_bytes(slots, SLOT), given = 2 * bytes,
                      host = weft_session_memory_of(s).host_bytes;
        assert_in_range(host, exact, exact + 63);
        assert_true(host <= given);
        assert_true(slots == LARGE || wefti_disk_cache_bytes(slots + 1, SLOT) > given - 63);
        step_on(s, 1);
        assert_int_equal(
            wefti_rank_device_observed_peak(wefti_workers_device(s->workers, 0), WEFTI_SPACE_HOST),
            host);
        weft_session_destroy(s);
    }
    for (int percent = 1; percent < 100; percent += 12) { /* of either entry */
        const int64_t slots = percent < 50 ? LARGE * percent / 50 : LARGE;
        ASSERT_OK(cached_session(-percent, g, &s));
        assert_in_range(weft_session_memory_of(s).host_bytes, wefti_disk_cache_bytes(slots, SLOT),
                        wefti_disk_cache_bytes(slots, SLOT) + 63);
        weft_session_destroy(s);
    }
    ASSERT_OK(cached_session(400, g, &s));
    for (int32_t step = 0; step < 20; step++) step_on(s, 211 * step);
    const weft_session_memory m = weft_session_memory_of(s);
    assert_true(m.cache_hits > 20 && m.cache_misses > 20 && m.cache_written > 0);
    wefti_fault_arm(WEFTI_FAULT_IO, 0, true, ENOSPC);
    int64_t count;
    weft_tensor_info info;
    ASSERT_OK(weft_session_find(s, 0, "table", &info));
    float *values = malloc((size_t)info.bytes);
    assert_int_equal(weft_session_read(s, 0, "table", values, (size_t)info.bytes), WEFT_E_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    ASSERT_FACTS(weft_error_message(), "rows|cache|offset");
    free(values);
    values = read_tensor(s, 0, "table", &count);
    assert_true(values[7 * DIM] != 0); /* the row is not lost */
    free(values);
    step_on(s, 3);
    move_away(s);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A cache with room for all rows has the row of each look-up whose row an earlier step looked up.
 * Updates look nothing up. */
static void look_ups_are_counted(void **state) {
    (void)state;
    enum { LARGE = 900, PLACES = 60, UNLIKE = 150 };
    TEST_SEEDS(seed, 1, 6) {
        dice d = {seed, 0};
        weft_graph *g;
        weft_session *s;
        bool seen[LARGE] = {0};
        int64_t look_ups = 0, hit = 0;
        ASSERT_OK(weft_graph_create(&g));
        weft_value table =
            weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_ZEROS, 0});
        weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES / 4, 4));
        weft_loss(g, weft_mean(g, weft_embedding(g, table, in, WEFT_F32), 0, NULL, false));
        ASSERT_OK(cached_session(1 << 20, g, &s));
        for (int step = 0; step < 8; step++) {
            int32_t ids[PLACES];
            const int64_t unlike = 1 + roll(&d, UNLIKE);
            for (int i = 0; i < PLACES; i++) {
                ids[i] = (int32_t)(roll(&d, unlike) * (LARGE / UNLIKE));
                hit += seen[ids[i]];
            }
            for (int i = 0; i < PLACES; i++) seen[ids[i]] = true;
            look_ups += PLACES;
            ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
            ASSERT_OK(weft_session_step(s, 0.1, NULL));
            const weft_session_memory m = weft_session_memory_of(s);
            if (m.cache_look_ups != look_ups || m.cache_look_ups_hit != hit)
                fail_msg("WEFT_TEST_SEED=%llu: %lld of %lld look-ups hit, not %lld of %lld",
                         (unsigned long long)seed, (long long)m.cache_look_ups_hit,
                         (long long)m.cache_look_ups, (long long)hit, (long long)look_ups);
        }
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
}

/* The copies of all tables' rows begin before any call computes. */
static void look_ups_begin_with_the_pass(void **state) {
    (void)state;
    const trial t = {.kind = WEFT_ADAM,
                     .dtype = WEFT_F32,
                     .devices = 1,
                     .batch = 2,
                     .seq = 3,
                     .parameters = WEFT_TIER_DISK};
    weft_graph *g;
    weft_session *s = session_for(&t, WEFT_ROWS_AUTO, &g);
    const wefti_program *p = s->views[0]->programs[0];
    int posts = 0;
    for (int32_t i = 0; p->steps[0][i].phase != WEFTI_FORWARD; i++) {
        const wefti_program_move *copy = wefti_step_copy(p, &p->steps[0][i]);
        posts += p->steps[0][i].kind == WEFTI_STEP_POST && copy && copy->rows > 0;
    }
    assert_int_equal(posts, 2);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* Each call of the disk fails in turn: the step says so, and names the table. */
static void failed_copies_are_told(void **state) {
    (void)state;
    const trial t = {.kind = WEFT_ADAM,
                     .dtype = WEFT_F32,
                     .devices = 1,
                     .batch = 2,
                     .seq = 3,
                     .parameters = WEFT_TIER_DISK,
                     .states = WEFT_TIER_DISK,
                     .cache = 300};
    for (int64_t nth = 0; nth < 30; nth += 3) {
        weft_graph *g;
        weft_session *s = session_for(&t, WEFT_ROWS_AUTO, &g);
        feed_ids(s, &t, 0);
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        feed_ids(s, &t, 1);
        wefti_fault_arm(WEFTI_FAULT_IO, nth, true, EIO);
        const weft_status status = weft_session_step(s, 0.1, NULL);
        const bool failed = wefti_fault_count(WEFTI_FAULT_IO) > nth;
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        assert_int_equal(status, failed ? WEFT_E_IO : WEFT_OK);
        if (failed) ASSERT_FACTS(weft_error_message(), "offset");
        if (failed)
            assert_true(strstr(weft_error_message(), "wide") ||
                        strstr(weft_error_message(), "second"));
        assert_true(failed || nth > 3);
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
}

static void feed_ahead(weft_session *s, const int32_t *ids, size_t bytes, int64_t nth) {
    wefti_fault_arm(WEFTI_FAULT_IO, nth, true, EIO);
    ASSERT_OK(weft_session_feed_ahead(s, 0, "ids", ids, bytes));
    wefti_rank_device_end_ahead(wefti_workers_device(s->workers, 0), false);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
}

/* A step waits for none of the rows that the step before it has read ahead, and for all of those
 * whose reads failed. The bits are those of a session that is told nothing. */
static void steps_do_not_wait_for_rows_ahead(void **state) {
    (void)state;
    enum { LARGE = 5000, PLACES = 4, FAR = 100, COUNT = 9 };
    weft_graph *g;
    weft_session *s[2];
    ASSERT_OK(weft_graph_create(&g));
    weft_value table = weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_NORMAL, 1});
    weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES));
    weft_loss(g,
              weft_mean(g, weft_tanh(g, weft_embedding(g, table, in, WEFT_F32)), 0, NULL, false));
    int32_t ids[COUNT + 1][PLACES];
    for (int i = 0; i < (COUNT + 1) * PLACES; i++) ids[i / PLACES][i % PLACES] = i * FAR;
    for (int k = 0; k < 2; k++) ASSERT_OK(cached_session(400, g, &s[k]));
    assert_int_equal(weft_session_feed_ahead(s[0], 0, "ids", ids, 7), WEFT_E_SHAPE);
    assert_int_equal(weft_session_feed_ahead(s[0], 0, "table", ids, 7), WEFT_E_ARG);
    ASSERT_OK(weft_session_feed_ahead(s[0], 0, "ids", ids, sizeof *ids)); /* it has not started */
    for (int step = 0; step < COUNT; step++) {
        const bool failed = step % 3 == 1;
        const weft_session_memory before = weft_session_memory_of(s[0]);
        for (int k = 0; k < 2; k++) {
            ASSERT_OK(weft_session_feed(s[k], 0, "ids", ids[step], sizeof *ids));
            if (!k && step) feed_ahead(s[k], ids[step], sizeof *ids, failed ? 0 : INT64_MAX);
            ASSERT_OK(weft_session_step(s[k], 0.1, NULL));
        }
        const weft_session_memory after = weft_session_memory_of(s[0]);
        const bool ahead = step && !failed;
        assert_int_equal(after.cache_misses - before.cache_misses, ahead ? 0 : PLACES);
        assert_int_equal(after.cache_ahead - before.cache_ahead, ahead ? PLACES : 0);
    }
    assert_true(same_tensors(s[0], s[1], false));
    for (int k = 0; k < 2; k++) weft_session_destroy(s[k]);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_dense_gradients),
        cmocka_unit_test(forms_have_their_reasons),
        cmocka_unit_test(devices_change_only_rounding),
        cmocka_unit_test(adam_changes_touched_rows_alone),
        cmocka_unit_test(the_dense_gradient_is_not_made),
        cmocka_unit_test(tiers_change_no_bits),
        cmocka_unit_test(device_memory_holds_rows_alone),
        cmocka_unit_test(caches_are_counted),
        cmocka_unit_test(look_ups_are_counted),
        cmocka_unit_test(look_ups_begin_with_the_pass),
        cmocka_unit_test(failed_copies_are_told),
        cmocka_unit_test(steps_do_not_wait_for_rows_ahead),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
