/* Random ops of random networks on the host, beside tiers: what a session computes is that of the
 * device (tiers_trial.h). WEFT_TEST_SEED sets the first seed. */
#include "tiers_trial.h"

#include "base/digest/digest.h"
#include "rewrite/rewrite.h"

/* ---- divided cells ---- */

/* By the op and its call, so that an op keeps its place when its cell is divided. */
static bool random_place(void *context, const weft_body *root, const weft_node *call,
                         const weft_node *op) {
    uint64_t digest = wefti_digest_text(*(uint64_t *)context, call->scope);
    (void)root;
    digest = wefti_digest_text(wefti_digest_text(digest, op->scope), op->op->name);
    return digest >> 17 & 1;
}

static int64_t count_ops(const weft_body *root) {
    int64_t ops = 0;
    for (int64_t k = 0; k < root->node_count; k++) ops += root->nodes[k].callee->node_count;
    return ops;
}

/* Each op runs once, in its place, behind the calls that make its operands. */
static void cells_are_divided_by_place(void **state) {
    (void)state;
    int64_t calls = 0, divided = 0;
    TEST_SEEDS(seed, 701, 60) {
        uint64_t rule = seed;
        bool *apart;
        weft_body *root;
        weft_graph *g = random_network(seed, 4, 4, WEFT_F32);
        ASSERT_OK(weft_graph_status(g));
        ASSERT_OK(wefti_graph_wrap(g));
        ASSERT_OK(wefti_body_clone(g, g->root, g->root->name, &root));
        ASSERT_OK(wefti_divide(g, root, random_place, &rule, &apart));
        assert_true(count_ops(root) == count_ops(g->root));
        for (int64_t k = 0; k < root->node_count; k++) {
            const weft_node *call = &root->nodes[k];
            for (int64_t i = 0; i < call->callee->node_count; i++)
                if (random_place(&rule, root, call, &call->callee->nodes[i]) != apart[k])
                    fail_msg("seed %llu: an op of '%s' is in the wrong place",
                             (unsigned long long)seed, call->scope);
            for (int i = 0; i < call->inputs; i++)
                if (call->in[i] >= 0 && root->values[call->in[i]].kind == WEFTI_VALUE_NODE)
                    assert_true(root->values[call->in[i]].node < k);
        }
        calls += g->root->node_count;
        divided += root->node_count;
        wefti_free(apart);
        wefti_body_destroy(root);
        weft_graph_destroy(g);
    }
    if (!test_one_seed()) assert_true(divided > 2 * calls);
}

/* ---- runs ---- */

static bool works_on_state(const weft_body *cell, const weft_node *n) {
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0 && cell->values[n->in[i]].kind == WEFTI_VALUE_STATE) return true;
    return false;
}

/* Places some ops of a network on the host, or only look-ups, and all updates or none. */
static void place_some(const trial *t, const weft_graph *g, bool look_ups, weft_plan *plan) {
    dice d = {t->seed, 1u << 29};
    const int64_t one_in = 1 + roll(&d, 4);
    for (int round = 0; round < 2; round++)
        for (int64_t k = 0; k < g->root->node_count; k++) {
            const weft_node *call = &g->root->nodes[k];
            for (int64_t j = 0; j < call->callee->node_count; j++) {
                const weft_node *n = &call->callee->nodes[j];
                const bool state = works_on_state(call->callee, n);
                char label[256];
                label_of(call->callee, n, call->scope, label, sizeof label);
                if (look_ups && strcmp(n->op->name, "embedding") != 0) continue;
                if (round ? !state : !look_ups && roll(&d, one_in)) continue;
                ASSERT_OK(weft_op_place(plan, label, round ? "device" : "host"));
            }
        }
    if (roll(&d, 2)) ASSERT_OK(weft_op_place(plan, "*:update", "host"));
}

/* Numbers are equal, or as near as another order of sums leaves them. */
static void compare_near(uint64_t seed, weft_session *a, weft_session *b) {
    for (int k = 0; k < weft_session_tensors(a, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, k, &info));
        if (info.role > WEFT_ROLE_STATE || info.desc.dtype != WEFT_F64) continue;
        double *x = malloc((size_t)info.bytes + 1), *y = malloc((size_t)info.bytes + 1);
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        for (size_t i = 0; i < (size_t)info.bytes / sizeof *x; i++)
            if (fabs(x[i] - y[i]) > 1e-6 * (1 + fabs(x[i])))
                fail_msg("seed %llu: '%s' differs", (unsigned long long)seed, info.name);
        free(x);
        free(y);
    }
}

static void run_places(uint64_t seed, totals *out, int *exact) {
    trial t = trial_of(seed, false, seed % 4 == 1 ? 1 : 2);
    weft_session *plain, *placed;
    weft_graph *g[2];
    const bool fits = t.stages == 1 && t.plan->copies == 1;
    const bool look_ups = seed % 2, same = look_ups && t.devices == 1;
    for (int k = 0; k < 2; k++) {
        g[k] = random_network(t.seed, t.cells, t.batch, t.dtype);
        ASSERT_OK(weft_graph_status(g[k]));
        ASSERT_OK(wefti_graph_wrap(g[k]));
    }
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    split_ops(&t, g[0]);
    if (fits && create(&t, g[0], seed % 4 == 0, &plain) >= 0) {
        place_some(&t, g[1], look_ups, t.plan);
        ASSERT_OK(create(&t, g[1], seed % 4 == 0, &placed));
        const int before = out->host_calls;
        check_programs(&t, placed, out);
        check_loops(seed, plain, placed);
        *exact += same && out->host_calls > before;
        for (int n = 0; n < STEPS; n++) {
            const double one = step_of(&t, plain, n), other = step_of(&t, placed, n);
            if (same ? one != other && !(isnan(one) && isnan(other))
                     : fabs(one - other) > 1e-6 * (1 + fabs(one)))
                fail_msg("seed %llu, step %d: losses %g and %g", (unsigned long long)seed, n, one,
                         other);
            same ? compare(seed, plain, placed) : compare_near(seed, plain, placed);
        }
        check_observed(placed);
        weft_session_destroy(plain);
        weft_session_destroy(placed);
    }
    for (int k = 0; k < 2; k++) weft_graph_destroy(g[k]);
    weft_plan_destroy(t.plan);
}

static void places_change_nothing(void **state) {
    (void)state;
    totals all = {0};
    int exact = 0;
    TEST_SEEDS(seed, 501, SANITIZED ? 16 : 48) run_places(seed, &all, &exact);
    print_message("%d copies; %d calls on the host; %d trials to the bit\n", all.copies,
                  all.host_calls, exact);
    if (!test_one_seed())
        assert_true(all.copies > 100 && all.host_calls > 100 && exact > (SANITIZED ? 1 : 5));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cells_are_divided_by_place),
                                       cmocka_unit_test(places_change_nothing)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
