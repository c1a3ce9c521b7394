/* weft_session_check_replicas finds replicas that are no longer equal and names rank and parameter.
 * Case 1: one device alone is written. Case 2: the model averages its loss over the ranks but not
 * its gradients, so replicas drift apart. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "session/session.h"
#include "weft/ops.h"

#include "world_fixture.h"

enum { RANKS = 4, ROWS = 4, IN = 6, OUT = 4 };

typedef enum way { BY_PLAN, LOSS_AVERAGED, WEIGHTS_AVERAGED } way;

typedef struct replicas_case {
    way way;
    bool tensor; /* the plan splits the weight in two as well */
    int wrong;   /* the rank that changes its `parameter` before the check; -1: none */
    const char *parameter;
    int steps;
} replicas_case;

/* loss = mean((x w + b)^2) of what this rank is fed. */
static weft_status make_graph(const replicas_case *c, weft_graph **out) {
    weft_graph *g;
    TRY(weft_graph_create(&g));
    *out = g;
    int64_t columns = OUT;
    weft_ranks all = {RANKS, 1};
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){ROWS, IN}));
    weft_cell_begin(g, "dense");
    weft_value w = weft_param(g, "w", weft_desc_of(WEFT_F32, 2, (int64_t[]){IN, OUT}),
                              (weft_init){WEFT_INIT_NORMAL, 1});
    weft_value b =
        weft_param(g, "b", weft_desc_of(WEFT_F32, 1, &columns), (weft_init){WEFT_INIT_ZEROS, 0});
    if (c->way == WEIGHTS_AVERAGED) {
        w = weft_scale(g, weft_graph_all_reduce(g, w, all, WEFT_REDUCE_SUM), 1.0 / RANKS);
        b = weft_scale(g, weft_graph_all_reduce(g, b, all, WEFT_REDUCE_SUM), 1.0 / RANKS);
    }
    weft_value y = weft_cell_end(g, weft_linear(g, x, w, b, false));
    weft_value loss = weft_mean(g, weft_mul(g, y, y), 0, NULL, false);
    if (c->way == LOSS_AVERAGED)
        loss = weft_scale(g, weft_graph_all_reduce(g, loss, all, WEFT_REDUCE_SUM), 1.0 / RANKS);
    weft_loss(g, loss);
    return weft_graph_status(g);
}

static weft_status make_plan(const replicas_case *c, weft_plan **out) {
    weft_plan *p;
    TRY(weft_plan_create(RANKS, &p));
    *out = p;
    if (c->way != BY_PLAN) return weft_plan_mode(p, WEFT_PARALLEL_MANUAL);
    TRY(weft_plan_axis(p, "dp", c->tensor ? 2 : 4));
    if (!c->tensor) return WEFT_OK;
    TRY(weft_plan_axis(p, "tp", 2));
    TRY(weft_plan_mode(p, WEFT_PARALLEL_SEMI));
    return weft_plan_split_op(p, "dense:linear", "n0=tp");
}

static weft_status change(weft_session *s, const char *name) {
    weft_session_part part;
    TRY(weft_session_local(s, 0, name, &part));
    ((float *)part.data)[1] += 1e-6f;
    return WEFT_OK;
}

static weft_status run_session(weft_session *s, const replicas_case *c, int rank) {
    for (int step = 0; step < c->steps; step++) {
        weft_session_part part;
        TRY(weft_session_check_replicas(s));
        TRY(weft_session_local(s, 0, "x", &part));
        for (int64_t i = 0; i < part.bytes / 4; i++)
            ((float *)part.data)[i] = (float)sin((double)(i + rank * 100 + step));
        TRY(weft_session_step(s, 0.05, NULL));
    }
    if (rank == c->wrong) TRY(change(s, c->parameter));
    if (weft_session_check_replicas(s) >= 0) return WEFT_OK;
    /* A found difference leaves the session usable. */
    TRY(weft_session_step(s, 0.05, NULL));
    return weft_session_check_replicas(s);
}

static weft_status run_rank(void *context, weft_world *world) {
    const replicas_case *c = context;
    weft_session_options o = weft_session_defaults();
    weft_graph *g = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    o.optimizer = (weft_optimizer){.kind = WEFT_MOMENTUM, .momentum = 0.9};
    o.threads = 1;
    o.world = world;
    weft_status status = make_plan(c, &plan);
    o.plan = plan;
    if (status >= 0) status = make_graph(c, &g);
    if (status >= 0) status = weft_session_create(g, &o, &s);
    if (status >= 0) status = run_session(s, c, weft_world_rank(world));
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return status;
}

static void run_case(replicas_case c, rank_of_world *ranks) {
    replicas_case all[RANKS] = {c, c, c, c};
    run_world(RANKS, run_rank, all, sizeof *all, ranks);
}

static void equal_ones_pass(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    run_case((replicas_case){BY_PLAN, false, -1, NULL, 3}, ranks);
    assert_all_ok(ranks, RANKS, "data parallel");
    run_case((replicas_case){BY_PLAN, true, -1, NULL, 3}, ranks);
    assert_all_ok(ranks, RANKS, "with split weights");
    run_case((replicas_case){WEIGHTS_AVERAGED, false, -1, NULL, 3}, ranks);
    assert_all_ok(ranks, RANKS, "by hand");
}

static void one_that_was_changed_is_named(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    for (int wrong = 0; wrong < RANKS; wrong++)
        for (int k = 0; k < 2; k++) {
            const char *parameter = k ? "dense.b" : "dense.w";
            char text[100];
            (void)snprintf(text, sizeof text, "'%s'|rank %d|rank %d|4 ranks", parameter, wrong,
                           wrong == 0 ? 1 : 0);
            run_case((replicas_case){BY_PLAN, false, wrong, parameter, 1}, ranks);
            for (int r = 0; r < RANKS; r++) assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, text);
        }
    /* Halves: ranks 1 and 3 hold the same one. */
    run_case((replicas_case){BY_PLAN, true, 1, "dense.w", 1}, ranks);
    for (int r = 0; r < RANKS; r++)
        assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "dense.w|rank 3|rank 1|2 ranks");
}

/* The loss is the same on all ranks, but each rank trains a model of its own. */
static void a_loss_that_is_averaged_does_not_reduce_gradients(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    run_case((replicas_case){LOSS_AVERAGED, false, -1, NULL, 1}, ranks);
    for (int r = 0; r < RANKS; r++)
        assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "replicas|parameter");
}

static void devices_of_one_process_are_compared_too(void **state) {
    (void)state;
    replicas_case c = {BY_PLAN, false, -1, NULL, 0};
    weft_session_options o = weft_session_defaults();
    wefti_session_piece pieces[RANKS];
    weft_tensor_info info;
    weft_graph *g;
    weft_plan *plan;
    weft_session *s;
    int32_t count;
    int index = 0;
    o.threads = 1;
    ASSERT_OK(make_plan(&c, &plan));
    ASSERT_OK(make_graph(&c, &g));
    o.plan = plan;
    ASSERT_OK(weft_session_create(g, &o, &s));
    ASSERT_OK(weft_session_check_replicas(s));
    do ASSERT_OK(weft_session_tensor(s, 0, index, &info));
    while (strcmp(info.name, "dense.b") != 0 && ++index);
    ASSERT_OK(wefti_session_pieces(s, 0, index, pieces, &count));
    const float three = 3;
    ASSERT_OK(
        wefti_home_write(&pieces[2].home, (OUT - 1) * (int64_t)sizeof three, sizeof three, &three));
    assert_int_equal(weft_session_check_replicas(s), WEFT_E_MISMATCH);
    if (!has_facts(weft_error_message(), "dense.b|rank 2|rank 0"))
        fail_msg("%s", weft_error_message());
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_ones_pass),
        cmocka_unit_test(one_that_was_changed_is_named),
        cmocka_unit_test(a_loss_that_is_averaged_does_not_reduce_gradients),
        cmocka_unit_test(devices_of_one_process_are_compared_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
