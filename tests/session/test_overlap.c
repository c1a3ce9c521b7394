/* Reductions of gradients that overlap with backward passes change nothing but the time. Losses and
 * parameters have the same bits with and without overlap, for every level, schedule and number of
 * microbatches, with clipping and without. Except for rounding they equal the values of one device.
 * In a trace a reduction spans kernels. */
#include "session_models.h"

#include <unistd.h>

#include "base/io.h"
#include "base/json/json.h"
#include "weft/plan.h"

enum { CELLS = 4, WIDTH = 10, MICRO = 4, STEPS = 2, MOST = 4096 };

typedef struct overlap_case {
    const char *name;
    int devices, stages;
    weft_schedule schedule;
    int microbatches, chunks, copies;
} overlap_case;

static const overlap_case cases[] = {
    {"data", 2, 1, WEFT_PIPELINE_1F1B, 1, 1, 1},
    {"data, 3 devices", 3, 1, WEFT_PIPELINE_1F1B, 2, 1, 1},
    {"data, 4 microbatches", 2, 1, WEFT_PIPELINE_1F1B, 4, 1, 1},
    {"data, 2 copies", 2, 1, WEFT_PIPELINE_1F1B, 4, 1, 2}, /* microbatches count copies */
    {"data, 2 copies, a loop", 2, 1, WEFT_PIPELINE_1F1B, 16, 1, 2},
    {"1f1b", 4, 2, WEFT_PIPELINE_1F1B, 4, 1, 1},
    {"1f1b, 2 copies", 4, 2, WEFT_PIPELINE_1F1B, 8, 1, 2},
    {"1f1b, a loop", 4, 2, WEFT_PIPELINE_1F1B, 16, 1, 1},
    {"gpipe", 4, 2, WEFT_PIPELINE_GPIPE, 3, 1, 1},
    {"interleaved", 4, 2, WEFT_PIPELINE_INTERLEAVED, 4, 2, 1},
    {"interleaved, a loop", 4, 2, WEFT_PIPELINE_INTERLEAVED, 16, 2, 1},
    {"interleaved, a microbatch a stage", 4, 2, WEFT_PIPELINE_INTERLEAVED, 2, 2, 1},
    {"zero bubble", 4, 2, WEFT_PIPELINE_ZERO_BUBBLE, 4, 1, 1},
    {"zero bubble, 2 chunks", 4, 2, WEFT_PIPELINE_ZERO_BUBBLE, 4, 2, 1},
};
enum { CASES = sizeof cases / sizeof *cases };

/* A row of products. The first and the last cell share a weight. A bias has an odd size, so that no
 * device gets an equal piece of it. */
static weft_graph *row_of_cells(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_init init = {WEFT_INIT_NORMAL, 0.3};
    weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_F32, MICRO, WIDTH));
    weft_value target = weft_input(g, "target", WEFT_DESC(WEFT_F32, MICRO, WIDTH));
    weft_value shared = weft_param(g, "shared", WEFT_DESC(WEFT_F32, WIDTH, WIDTH), init);
    for (int c = 0; c < CELLS; c++) {
        weft_cell_begin(g, "cell%d", c);
        weft_value up = weft_param(g, "up", WEFT_DESC(WEFT_F32, WIDTH, 2 * WIDTH + 1), init);
        weft_value bias = weft_param(g, "bias", WEFT_DESC(WEFT_F32, 2 * WIDTH + 1), init);
        weft_value down = weft_param(g, "down", WEFT_DESC(WEFT_F32, 2 * WIDTH + 1, WIDTH), init);
        if (c % (CELLS - 1) == 0) x = weft_linear(g, x, shared, WEFT_NO_VALUE, false);
        x = weft_tanh(g, weft_linear(g, x, up, bias, false));
        x = weft_cell_end(g, weft_linear(g, x, down, WEFT_NO_VALUE, false));
    }
    weft_cell_begin(g, "head");
    weft_loss(g, weft_cell_end(g, weft_mse(g, x, target)));
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    return g;
}

/* Losses, and behind them all parameters. */
typedef struct outcome {
    float value[MOST];
    int count;
} outcome;

static weft_plan *plan_of(const overlap_case *c, int level, bool overlap, int64_t bucket) {
    weft_plan *p;
    ASSERT_OK(weft_plan_create(c->devices, &p));
    ASSERT_OK(weft_plan_fusion(p, "allreduce", WEFT_FUSION_SIZE, bucket, 0, NULL));
    ASSERT_OK(weft_plan_fusion(p, "reducescatter", WEFT_FUSION_SIZE, bucket, 0, NULL));
    ASSERT_OK(weft_plan_overlap(p, overlap));
    if (level) ASSERT_OK(weft_plan_optimizer(p, level, 0, 0));
    if (c->stages > 1)
        ASSERT_OK(
            weft_plan_pipeline(p, c->stages, c->microbatches / c->copies, c->schedule, c->chunks));
    else if (c->microbatches > 1)
        ASSERT_OK(weft_plan_accumulate(p, c->microbatches / c->copies));
    if (c->copies > 1) ASSERT_OK(weft_plan_copies(p, c->copies));
    return p;
}

static void read_params(weft_session *s, outcome *out) {
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM) continue;
        assert_true(out->count + weft_desc_elems(&info.desc) <= MOST);
        ASSERT_OK(weft_session_read(s, 0, info.name, out->value + out->count, (size_t)info.bytes));
        out->count += (int)weft_desc_elems(&info.desc);
    }
}

/* `plan` NULL: one device. */
static void run(weft_plan *plan, int microbatches, bool clip, const char *trace, outcome *out) {
    weft_graph *g = row_of_cells();
    weft_session_options o = weft_session_defaults();
    o.plan = plan;
    o.threads = 1;
    o.microbatches = microbatches;
    o.clip = clip ? 0.05 : 0;
    weft_session *s = session_of(g, o);
    weft_plan_destroy(plan);
    if (trace) ASSERT_OK(weft_session_trace(s, trace));
    out->count = 0;
    for (int n = 0; n < STEPS; n++) {
        double sum = 0, loss;
        if (microbatches == 1 && !clip) {
            feed_rows(s, 0, (uint64_t)n, 0);
            ASSERT_OK(weft_session_step(s, 0.01, &sum));
        }
        for (int m = 0; m < microbatches && !(microbatches == 1 && !clip); m++) {
            feed_rows(s, 0, (uint64_t)n, m * MICRO);
            ASSERT_OK(weft_session_accumulate(s, &loss));
            if (!isnan(loss)) sum += loss;
        }
        if (microbatches > 1 || clip) ASSERT_OK(weft_session_update(s, 0.01, NULL));
        out->value[out->count++] = (float)sum;
    }
    if (trace) ASSERT_OK(weft_session_trace(s, NULL));
    read_params(s, out);
    for (int r = 0; r < weft_session_devices(s); r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        assert_int_equal(predicted, observed);
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static void overlap_changes_no_bit(void **state) {
    (void)state;
    static outcome on, off, one;
    for (int i = 0; i < CASES; i++)
        for (int variant = 0; variant < 16; variant += SANITIZED ? 3 : 1) {
            const overlap_case *c = &cases[i];
            int level = variant % 4;
            bool clip = variant / 4 % 2;
            int64_t bucket = variant / 8 ? 2048 : 1 << 20;
            run(NULL, c->microbatches, clip, NULL, &one);
            run(plan_of(c, level, false, bucket), c->microbatches, clip, NULL, &off);
            run(plan_of(c, level, true, bucket), c->microbatches, clip, NULL, &on);
            assert_int_equal(on.count, one.count);
            for (int k = STEPS; k < on.count; k++) /* a pipeline has the loss on one stage */
                if (!(fabsf(on.value[k] - one.value[k]) < 2e-3f))
                    fail_msg("%s, variant %d: value %d is %g, not %g", c->name, variant, k,
                             (double)on.value[k], (double)one.value[k]);
            if (memcmp(on.value, off.value, (size_t)on.count * sizeof *on.value) != 0)
                fail_msg("%s, variant %d: overlap changes bits", c->name, variant);
        }
}

/* ---- traces ---- */

typedef struct event {
    double begin, end;
    int device, track;
} event;

static double real(const wefti_json *object, const char *key) {
    const wefti_json *v = wefti_json_get(object, key);
    assert_non_null(v);
    return v->kind == WEFTI_JSON_INT ? (double)v->as.integer : v->as.real;
}

/* How many transfers span a whole kernel of their device. */
static int count_spans(const char *path) {
    static const wefti_json_limits limits = {16, 100, 1 << 20};
    static event events[MOST];
    wefti_arena *arena;
    char *text;
    int64_t bytes;
    int count = 0, spans = 0;
    const wefti_json *root, *list;
    ASSERT_OK(wefti_arena_create(&arena));
    ASSERT_OK(wefti_file_read(path, 1 << 26, &text, &bytes));
    ASSERT_OK(wefti_json_parse(arena, text, bytes, &limits, &root));
    ASSERT_OK(wefti_json_array(root, "traceEvents", &list));
    WEFTI_JSON_EACH(x, list) {
        const char *phase;
        ASSERT_OK(wefti_json_text(x, "ph", &phase));
        if (strcmp(phase, "X") != 0) continue;
        assert_true(count < MOST);
        events[count++] = (event){real(x, "ts"), real(x, "ts") + real(x, "dur"),
                                  (int)real(x, "pid"), (int)real(x, "tid")};
    }
    for (int i = 0; i < count; i++) {
        bool spans_one = false;
        for (int k = 0; k < count && events[i].track >= WEFTI_TRACK_COMMUNICATION; k++)
            spans_one |= events[k].track == WEFTI_TRACK_KERNELS &&
                         events[k].device == events[i].device &&
                         events[i].begin <= events[k].begin && events[k].end <= events[i].end;
        spans += spans_one;
    }
    wefti_free(text);
    wefti_arena_destroy(arena);
    return spans;
}

static void a_transfer_spans_kernels(void **state) {
    (void)state;
    static outcome out;
    char path[200];
    const char *directory = getenv("TMPDIR");
    (void)snprintf(path, sizeof path, "%s/weft-test-overlap-XXXXXX",
                   directory ? directory : P_tmpdir);
    int file = mkstemp(path);
    assert_true(file >= 0);
    (void)close(file);
    for (int level = 0; level <= 2; level++)
        for (int overlap = 0; overlap < 2; overlap++) {
            run(plan_of(&cases[0], level, overlap, 2048), 1, true, path, &out);
            int spans = count_spans(path);
            if (overlap ? spans < 2 * STEPS * 2 : spans > 0)
                fail_msg("level %d, overlap %d: %d transfers span kernels", level, overlap, spans);
        }
    (void)unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_changes_no_bit),
        cmocka_unit_test(a_transfer_spans_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
