/* The verifier of plans (verify.h) accepts a plan, and finds each thing that is changed in it.
 * weft-test: no threads */
#include "search_models.h"

typedef struct fixture {
    weft_graph *graph;
    weft_plan *settings, *plan;
} fixture;

/* x[16,32] w[32,64] w[64,32] on 8 devices; the user configures the first product. */
static fixture open_fixture(void) {
    fixture f;
    weft_search_options o = weft_search_defaults();
    ASSERT_OK(weft_graph_create(&f.graph));
    weft_value x = weft_input(f.graph, "x", search_desc(WEFT_F32, 16, 32));
    for (int i = 0; i < 2; i++) {
        weft_cell_begin(f.graph, "l%d", i);
        weft_value w = weft_param(f.graph, "w", search_desc(WEFT_F32, i ? 64 : 32, i ? 32 : 64),
                                  search_normal);
        x = weft_cell_end(f.graph, weft_matmul(f.graph, x, w, false, false));
    }
    weft_output(f.graph, "y", x);
    f.settings = search_settings(8);
    ASSERT_OK(weft_plan_axis(f.settings, "a", 2));
    ASSERT_OK(weft_plan_axis(f.settings, "b", 4));
    ASSERT_OK(weft_plan_split_op(f.settings, "l0:matmul", "m=a n=b"));
    f.plan = search_plan(f.graph, f.settings, &o, NULL);
    return f;
}

static void close_fixture(fixture *f) {
    weft_plan_destroy(f->plan);
    weft_plan_destroy(f->settings);
    weft_graph_destroy(f->graph);
}

static int64_t found(const fixture *f, int64_t memory, const char *facts) {
    int64_t most;
    const verify_question q = {
        .graph = f->graph, .plan = f->plan, .settings = f->settings, .memory = memory};
    const char *why = verify_find(&q, &most);
    if (!*facts && *why) fail_msg("%s", why);
    if (*facts && !*why) fail_msg("nothing is found, not %s", facts);
    ASSERT_FACTS(why, facts);
    return most;
}

static wefti_strategy *strategy(fixture *f, const char *match) {
    for (int64_t i = 0; i < f->plan->strategy_count; i++)
        if (!strcmp(f->plan->strategies[i].match, match)) return &f->plan->strategies[i];
    fail_msg("the plan has no strategy for %s", match);
    return NULL;
}

static void test_memory(void **state) {
    (void)state;
    fixture f = open_fixture();
    const int64_t most = found(&f, 0, "");
    assert_true(most > 0);
    (void)found(&f, most, "");
    (void)found(&f, most - 1, "bytes");
    close_fixture(&f);
}

static void test_changes(void **state) {
    (void)state;
    static const char *const facts[] = {"l0:matmul|m|n", "l0:matmul|q", "l0:matmul|m=a n=b",
                                        "8|16",          "8|16",        "l0:matmul|m|16|32",
                                        "l1:matmul|z"};
    for (int change = 0; change < 7; change++) {
        fixture f = open_fixture();
        wefti_strategy *s = strategy(&f, "l0:matmul");
        switch (change) {
        case 0: /* one axis for two factors */
            s->splits[1].axis[0] = s->splits[0].axis[0];
            break;
        case 1:
            (void)strcpy(s->splits[0].what, "q");
            break;
        case 2: /* another strategy than the user's */
            s->splits[0].axis[0] = 1;
            s->splits[1].axis[0] = 0;
            break;
        case 3:
            f.plan->devices = 16;
            break;
        case 4:
            f.plan->mesh.axis[0].size = 4;
            break;
        case 5: /* more parts than elements */
            f.plan->mesh.axis[0].size = 32;
            f.plan->devices = 128;
            f.settings->devices = 128;
            break;
        default: /* a strategy of no op */
            ASSERT_OK(weft_plan_split_op(f.plan, "l1:matmul", "z=a"));
            break;
        }
        (void)found(&f, 0, facts[change]);
        close_fixture(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
