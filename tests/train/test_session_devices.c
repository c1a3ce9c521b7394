/* Sessions over several devices: whatever the plan, the result is that of one device, memory is
 * what was predicted, tensors are whole to who reads and writes them, and a device that fails stops
 * the others. */
#include "session_models.h"
#include "weft/plan.h"

enum { SEED = 21, BATCH = 8 };

/* ---- plans ---- */

typedef struct split {
    const char *match, *axes;
} split;

typedef struct layout_case {
    const char *name;
    int devices;
    struct {
        const char *name;
        int size;
    } axis[3];
    split splits[6];
    int level; /* of optimizer parallelism */
    int accumulate;
    int stages, microbatches;
    double clip;
} layout_case;

/* Megatron's split of the tiny gpt2. */
#define TENSOR_PARALLEL                                                                            \
    {"h.*.attn.c_attn", "n1=tp"}, {"h.*.attn", "heads=tp"}, {"h.*.attn.c_proj", "k0=tp"},          \
        {"h.*.mlp.c_fc", "n0=tp"}, {                                                               \
        "h.*.mlp.c_proj", "k0=tp"                                                                  \
    }

static const layout_case cases[] = {
    {.name = "one device", .devices = 1},
    {.name = "2 data", .devices = 2},
    {.name = "4 data, clipped", .devices = 4, .clip = 0.5},
    {.name = "8 data", .devices = 8},
    {.name = "3 data, uneven", .devices = 3},
    {.name = "2 data, accumulated", .devices = 2, .accumulate = 2},
    {.name = "4 data, states split", .devices = 4, .level = 1},
    {.name = "4 data, gradients split", .devices = 4, .level = 2, .clip = 0.5},
    {.name = "4 data, all split", .devices = 4, .level = 3},
    {.name = "2 tensor", .devices = 2, .axis = {{"tp", 2}}, .splits = {TENSOR_PARALLEL}},
    {.name = "4 tensor", .devices = 4, .axis = {{"tp", 4}}, .splits = {TENSOR_PARALLEL}},
    {.name = "2 data 2 tensor, states split",
     .devices = 4,
     .axis = {{"dp", 2}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .level = 1,
     .clip = 0.5},
    {.name = "4 data 2 tensor",
     .devices = 8,
     .axis = {{"dp", 4}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL}},
};
enum { CASES = sizeof cases / sizeof *cases };

static weft_plan *plan_of(const layout_case *c) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(c->devices, &plan));
    for (int a = 0; a < 3 && c->axis[a].name; a++)
        ASSERT_OK(weft_plan_axis(plan, c->axis[a].name, c->axis[a].size));
    if (c->axis[0].name) ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_SEMI));
    for (int i = 0; i < 6 && c->splits[i].match; i++)
        ASSERT_OK(weft_op_split(plan, c->splits[i].match, c->splits[i].axes));
    if (c->level) ASSERT_OK(weft_plan_optimizer(plan, c->level, 0, 0));
    if (c->accumulate) ASSERT_OK(weft_plan_accumulate(plan, c->accumulate));
    return plan;
}

static int microbatches_of(const layout_case *c) {
    return c->accumulate ? c->accumulate : 1;
}

/* A session of the tiny gpt2 with dropout; `graph` is to be destroyed after it. */
static weft_session *session_for(const layout_case *c, bool with_plan, weft_graph **graph) {
    weft_session_options o = weft_session_defaults();
    int count = microbatches_of(c);
    o.seed = SEED;
    o.threads = 2;
    o.clip = c->clip;
    o.microbatches = count;
    weft_plan *plan = with_plan ? plan_of(c) : NULL;
    o.plan = plan;
    *graph = tiny_gpt2(WEFT_USE_TRAIN, BATCH / count, 0.2, WEFT_F32);
    weft_session *s;
    if (weft_session_create(*graph, &o, &s) < 0) fail_msg("%s: %s", c->name, weft_error_message());
    weft_plan_destroy(plan); /* the session has its own */
    return s;
}

static double train_step(weft_session *s, const layout_case *c, int k) {
    int count = microbatches_of(c);
    double sum = 0, loss;
    for (int m = 0; m < count; m++) {
        int64_t row = m * BATCH / count;
        feed_rows(s, 0, (uint64_t)k, row);
        weft_session_set_row(s, row);
        if (count == 1 && c->clip == 0) {
            if (weft_session_step(s, 1e-3, &loss) < 0)
                fail_msg("%s: %s", c->name, weft_error_message());
            return loss;
        }
        if (weft_session_accumulate(s, &loss) < 0)
            fail_msg("%s: %s", c->name, weft_error_message());
        sum += loss;
    }
    if (weft_session_update(s, 1e-3, NULL) < 0) fail_msg("%s: %s", c->name, weft_error_message());
    return sum / count;
}

static void any_plan_gives_the_result_of_one_device(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const layout_case *c = &cases[i];
        weft_graph *one_graph, *graph;
        weft_session *one = session_for(c, false, &one_graph), *s = session_for(c, true, &graph);
        assert_int_equal(weft_session_devices(s), c->devices);
        for (int k = 0; k < 3; k++) {
            double want = train_step(one, c, k), is = train_step(s, c, k);
            if (!(fabs(is - want) <= 1e-5 * fabs(want)))
                fail_msg("%s: loss %d is %.8g, not %.8g", c->name, k, is, want);
        }
        double apart = difference(one, s, WEFT_ROLE_PARAM);
        if (!(apart < 2e-3)) fail_msg("%s: parameters are %g apart", c->name, apart);
        for (int r = 0; r < c->devices; r++) {
            int64_t predicted, observed;
            ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
            if (predicted != observed)
                fail_msg("%s: device %d uses %lld bytes, not %lld", c->name, r, (long long)observed,
                         (long long)predicted);
        }
        weft_session_destroy(s);
        weft_session_destroy(one);
        weft_graph_destroy(graph);
        weft_graph_destroy(one_graph);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_gives_the_result_of_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
