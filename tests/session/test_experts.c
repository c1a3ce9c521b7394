/* Layers of experts over several devices. Plans split tokens, experts, buffers and hidden sizes,
 * with stages and accumulation, with and without a capacity bound. The losses and the updated
 * parameters equal the values of one device, in f64 up to rounding. The test also checks the
 * transfers. */
#include "partition/partition.h"
#include "program/program.h"
#include "session_models.h"
#include "weft/plan.h"

enum { SEED = 4, BATCH = 8, STEPS = 4 };

typedef struct split {
    const char *match, *axes;
} split;

typedef struct spread {
    const char *name;
    int devices;
    struct {
        const char *name;
        int size;
    } axis[2];
    split splits[8], gpt2_moe[8], mixtral[8]; /* of both families, and of ops that one has */
    int level, accumulate, stages;
    double clip;
} spread;

/* Every device has some of the experts, and the rows of all tokens that go there. */
#define EXPERTS_ON(axis)                                                                           \
    {"*moe.experts.*", "experts=" axis}, {"*moe:moe_dispatch", "experts=" axis}, {                 \
        "*moe:moe_combine", "experts=" axis                                                        \
    }

static const spread cases[] = {
    {.name = "2 data", .devices = 2},
    {.name = "4 data, all split", .devices = 4, .level = 3, .clip = 0.5},
    {.name = "3 data, uneven", .devices = 3},
    {.name = "4 experts on 4 devices",
     .devices = 4,
     .axis = {{"dp", 4}},
     .splits = {EXPERTS_ON("dp")}},
    {.name = "4 experts on 4 devices, rows travel", /* one all-to-all there, one back */
     .devices = 4,
     .axis = {{"dp", 4}},
     .splits = {{"*moe.experts.*", "experts=dp"}}},
    {.name = "4 experts on 3 devices, clipped",
     .devices = 3,
     .axis = {{"dp", 3}},
     .splits = {EXPERTS_ON("dp")},
     .clip = 0.5},
    {.name = "2 data 2 experts, accumulated",
     .devices = 4,
     .axis = {{"dp", 2}, {"ep", 2}},
     .splits = {EXPERTS_ON("ep")},
     .accumulate = 2},
    {.name = "sequences split", /* slots begin where the other part's end */
     .devices = 4,
     .axis = {{"dp", 2}, {"sp", 2}},
     .splits = {{"*:attention", "seq=sp"},
                {"*:*_norm", "m1=sp"},
                {"*moe:moe_slots", "s=sp"},
                {"*moe:moe_dispatch", "s=sp"},
                {"*moe:moe_combine", "s=sp"}},
     .mixtral = {{"*:rope", "seq=sp"}}},
    {.name = "buffers split by slots",
     .devices = 2,
     .axis = {{"dp", 2}},
     .splits = {{"*moe:moe_dispatch", "capacity=dp"}, {"*moe.experts.*", "rows=dp"}}},
    {.name = "hidden sizes split, states too",
     .devices = 4,
     .axis = {{"dp", 2}, {"tp", 2}},
     .gpt2_moe = {{"*moe.experts.c_fc", "n=tp"}, {"*moe.experts.c_proj", "k=tp"}},
     .mixtral = {{"*moe.experts.w1", "n=tp"},
                 {"*moe.experts.w3", "n=tp"},
                 {"*moe.experts.w2", "k=tp"}},
     .level = 1},
    {.name = "2 stages", .devices = 2, .stages = 2},
    {.name = "2 stages of 2 devices with experts",
     .devices = 4,
     .axis = {{"dp", 2}},
     .splits = {EXPERTS_ON("dp")},
     .stages = 2},
};
enum { CASES = sizeof cases / sizeof *cases };

static void add_splits(weft_plan *plan, const split *splits) {
    for (int i = 0; i < 8 && splits[i].match; i++)
        ASSERT_OK(weft_plan_split_op(plan, splits[i].match, splits[i].axes));
}

static weft_plan *plan_of(const spread *c, weft_family family) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(c->devices, &plan));
    for (int a = 0; a < 2 && c->axis[a].name; a++)
        ASSERT_OK(weft_plan_axis(plan, c->axis[a].name, c->axis[a].size));
    if (c->axis[0].name) ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_SEMI));
    add_splits(plan, c->splits);
    add_splits(plan, family == WEFT_FAMILY_MIXTRAL ? c->mixtral : c->gpt2_moe);
    if (c->level) ASSERT_OK(weft_plan_optimizer(plan, c->level, 0, 0));
    if (c->accumulate) ASSERT_OK(weft_plan_accumulate(plan, c->accumulate));
    if (c->stages) ASSERT_OK(weft_plan_pipeline(plan, c->stages, 2, WEFT_PIPELINE_1F1B, 1));
    return plan;
}

static weft_model_config config_of(weft_family family, double capacity_factor) {
    return (weft_model_config){.family = family,
                               .layers = 2,
                               .hidden = 16,
                               .heads = 4,
                               .ffn = 24,
                               .context = 8,
                               .vocab = 50,
                               .dropout = 0.1,
                               .experts = 4,
                               .experts_per_token = 2,
                               .capacity_factor = capacity_factor,
                               .aux_loss = 0.05};
}

typedef struct run {
    weft_graph *graph;
    weft_session *session;
    double losses[STEPS];
} run;

/* One step, always on the same batch. */
static weft_status step(weft_session *s, int microbatches, bool clipped, double *out) {
    double sum = 0, loss;
    int known = 0;
    for (int m = 0; m < microbatches; m++) {
        int64_t row = m * BATCH / microbatches;
        feed_rows(s, 0, 1, row);
        ASSERT_OK(weft_session_set_row(s, row));
        if (microbatches == 1 && !clipped) return weft_session_step(s, 1e-2, out);
        weft_status status = weft_session_accumulate(s, &loss);
        if (status < 0) return status;
        if (isnan(loss)) continue; /* a pipeline knows it at the last one */
        sum += loss;
        known++;
    }
    *out = sum / known;
    return weft_session_update(s, 1e-2, NULL);
}

static run run_of(const spread *c, const weft_model_config *config, bool with_plan) {
    run r;
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = with_plan ? plan_of(c, config->family) : NULL;
    o.seed = SEED;
    o.threads = 2;
    o.microbatches = c->accumulate || c->stages ? 2 : 1;
    o.clip = c->clip;
    o.plan = plan;
    ASSERT_OK(
        weft_model_build(config, WEFT_USE_TRAIN, BATCH / o.microbatches, 0, WEFT_F64, &r.graph));
    if (weft_session_create(r.graph, &o, &r.session) < 0)
        fail_msg("%s: %s", c->name, weft_error_message());
    weft_plan_destroy(plan);
    for (int k = 0; k < STEPS; k++)
        if (step(r.session, o.microbatches, c->clip > 0, &r.losses[k]) < 0)
            fail_msg("%s: %s", c->name, weft_error_message());
    return r;
}

static void compare_parameters(const char *name, weft_session *a, weft_session *b) {
    for (int t = 0; t < weft_session_tensors(a, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM) continue;
        int64_t count = weft_desc_elems(&info.desc);
        double *x = malloc((size_t)info.bytes), *y = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        for (int64_t i = 0; i < count; i++)
            if (!(fabs(x[i] - y[i]) <= 1e-7))
                fail_msg("%s: %s[%lld] is %.12g, not %.12g", name, info.name, (long long)i, y[i],
                         x[i]);
        free(x);
        free(y);
    }
}

static void assert_same(const spread *c, const weft_model_config *config) {
    run one = run_of(c, config, false), many = run_of(c, config, true);
    assert_int_equal(weft_session_devices(many.session), c->devices);
    for (int k = 0; k < STEPS; k++)
        if (!(fabs(one.losses[k] - many.losses[k]) <= 1e-9))
            fail_msg("%s, %s: loss %d is %.12g, not %.12g", weft_family_text(config->family),
                     c->name, k, many.losses[k], one.losses[k]);
    assert_true(one.losses[STEPS - 1] < one.losses[0]);
    compare_parameters(c->name, one.session, many.session);
    for (int i = 0; i < 2; i++) {
        weft_session_destroy(i ? one.session : many.session);
        weft_graph_destroy(i ? one.graph : many.graph);
    }
}

static void experts_without_bounds(void **state) {
    (void)state;
    weft_model_config config = config_of(WEFT_FAMILY_MIXTRAL, 0);
    for (int i = 0; i < CASES; i++) assert_same(&cases[i], &config);
}

/* Too few slots for all tokens: the choice of the dropped tokens covers the whole batch. */
static void experts_with_bounds(void **state) {
    (void)state;
    weft_model_config config = config_of(WEFT_FAMILY_GPT2_MOE, 0.8);
    for (int i = 0; i < CASES; i++) assert_same(&cases[i], &config);
}

/* ---- what travels ---- */

typedef struct travel {
    int count[WEFTI_TRANSFER_KINDS]; /* different transfers of floats */
    int64_t bytes[WEFTI_TRANSFER_KINDS];
} travel;

static travel travel_of(const spread *c, const weft_model_config *config) {
    run r = run_of(c, config, true);
    travel t = {{0}, {0}};
    const wefti_program *p = wefti_session_program(r.session, 0);
    for (int32_t i = 0; i < wefti_partition_transfers(p->partition); i++) {
        const wefti_transfer *x = wefti_partition_transfer(p->partition, i);
        if (!wefti_dtype_is_float(x->dtype)) continue;
        t.count[x->kind]++;
        t.bytes[x->kind] += wefti_transfer_bytes(x);
    }
    weft_session_destroy(r.session);
    weft_graph_destroy(r.graph);
    return t;
}

static const spread *case_of(const char *name) {
    for (int i = 0; i < CASES; i++)
        if (!strcmp(cases[i].name, name)) return &cases[i];
    fail_msg("no case is called %s", name);
    return NULL;
}

/* Sequences are independent: only gradients and statistics are summed. With experts on devices, the
 * rows of the buffers travel there and back, in both passes in the same way. Each device receives
 * from the others the rows in the buffers of its experts. */
static void only_rows_travel(void **state) {
    (void)state;
    weft_model_config config = config_of(WEFT_FAMILY_MIXTRAL, 1);
    travel data = travel_of(case_of("2 data"), &config);
    travel rows = travel_of(case_of("4 experts on 4 devices, rows travel"), &config);
    for (int k = 0; k < WEFTI_TRANSFER_KINDS; k++) {
        assert_int_equal(data.count[k] > 0, k == WEFTI_TRANSFER_ALL_REDUCE);
        if (k == WEFTI_TRANSFER_ALL_REDUCE) continue;
        assert_int_equal(rows.count[k], k == WEFTI_TRANSFER_ALL_TO_ALL ? 2 : 0);
    }
    int64_t capacity = config.context * config.experts_per_token / config.experts;
    int64_t buffers = BATCH * capacity * config.hidden * 8; /* of one expert, in f64 */
    assert_int_equal(rows.bytes[WEFTI_TRANSFER_ALL_TO_ALL], 2 * buffers * 3 / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_without_bounds),
        cmocka_unit_test(experts_with_bounds),
        cmocka_unit_test(only_rows_travel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
