/* Twenty steps over several devices equal twenty steps of one device. This covers every optimizer
 * with sharded states, alone and with tensor parallelism. It also covers gradients that are
 * averaged or summed over any number of devices. In f64, up to rounding. */
#include "session_models.h"

#include "plan_cases.h"
#include "sanitized.h"

enum { SEED = 6, BATCH = 8, STEPS = SANITIZED ? 4 : 20 };

/* The batch has one size for every split. `many`: over the plan's devices. */
static weft_session *open_session(const plan_case *c, weft_optimizer_kind kind, bool many,
                                  weft_graph **graph) {
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = NULL;
    if (many) ASSERT_OK(make_plan(c, &plan));
    o.optimizer = weft_optimizer_defaults(kind);
    if (kind == WEFT_SGD) o.optimizer.weight_decay = 0; /* which goes by the rate alone */
    o.plan = plan;
    o.seed = SEED;
    o.threads = 1;
    *graph = tiny_gpt2(WEFT_USE_TRAIN, BATCH, 0, WEFT_F64);
    weft_session *s = session_of(*graph, o);
    weft_plan_destroy(plan);
    return s;
}

static double largest_difference(weft_session *a, weft_session *b) {
    double most = 0;
    for (int t = 0; t < weft_session_tensors(a, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_OPTIMIZER) continue;
        if (info.desc.dtype != WEFT_F64) continue;
        double *x = malloc((size_t)info.bytes), *y = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        for (int64_t e = 0; e < weft_desc_elems(&info.desc); e++)
            most = fmax(most, fabs(x[e] - y[e]) / fmax(1, fabs(x[e])));
        free(x);
        free(y);
    }
    return most;
}

/* `share`: factor of the learning rate when sums replace means. */
static void equals_one_device(const char *what, const plan_case *c, weft_optimizer_kind kind,
                              double rate, double share) {
    weft_graph *graph[2];
    weft_session *one = open_session(c, kind, false, &graph[0]);
    weft_session *many = open_session(c, kind, true, &graph[1]);
    double first = 0, want = 0;
    for (int step = 0; step < STEPS; step++) {
        double is;
        feed_rows(one, 0, (uint64_t)step % 4, 0);
        feed_rows(many, 0, (uint64_t)step % 4, 0);
        ASSERT_OK(weft_session_step(one, rate, &want));
        ASSERT_OK(weft_session_step(many, rate * share, &is));
        if (!(fabs(is - want) <= 1e-11 * fmax(1, fabs(want))))
            fail_msg("%s, %s: loss %d is %.17g, not %.17g", what, c->name, step, is, want);
        if (step == 0) first = want;
    }
    double apart = largest_difference(one, many);
    if (!(apart <= 1e-11)) fail_msg("%s, %s: parameters are %g apart", what, c->name, apart);
    assert_true(want < first);
    weft_session_destroy(one);
    weft_session_destroy(many);
    weft_graph_destroy(graph[0]);
    weft_graph_destroy(graph[1]);
}

static void split_optimizers(void **state) {
    (void)state;
    static const plan_case alone[] = {{.name = "4 data", .devices = 4},
                                      {.name = "8 data", .devices = 8},
                                      {.name = "2 data 2 tensor",
                                       .devices = 4,
                                       .axis = {{"dp", 2}, {"tp", 2}},
                                       .splits = {TENSOR_PARALLEL}},
                                      {.name = "4 data 2 tensor",
                                       .devices = 8,
                                       .axis = {{"dp", 4}, {"tp", 2}},
                                       .splits = {TENSOR_PARALLEL}}};
    static const struct {
        const char *name;
        weft_optimizer_kind kind;
        double rate;
    } optimizers[] = {{"sgd", WEFT_SGD, 0.1},
                      {"momentum", WEFT_MOMENTUM, 0.02},
                      {"adam", WEFT_ADAM, 1e-3},
                      {"lamb", WEFT_LAMB, 1e-2}};
    for (size_t k = 0; k < sizeof optimizers / sizeof *optimizers; k++)
        for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
            plan_case c = alone[i];
            if (SANITIZED && (i + k) % 2) continue;
            c.level = 1 + (int)((i + k) % 3);
            equals_one_device(optimizers[k].name, &c, optimizers[k].kind, optimizers[k].rate, 1);
        }
}

/* Averaged gradients are gradients of the mean over all samples. Summed gradients add one mean for
 * each device. */
static void means_and_sums(void **state) {
    (void)state;
    for (int devices = 1; devices <= 8; devices *= 2)
        for (int sum = 0; sum < 2; sum++) {
            plan_case c = {.name = sum ? "sums" : "means", .devices = devices, .sum = sum};
            char what[32];
            (void)snprintf(what, sizeof what, "%d devices", devices);
            equals_one_device(what, &c, WEFT_SGD, 0.1, sum ? 1.0 / devices : 1);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_optimizers),
        cmocka_unit_test(means_and_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
