/* Sessions over a world. Under every plan, as many processes as the plan has devices give the bits
 * of one process with that many devices. Every process knows the same results. */
#include "world_run.h"

/* ---- rows ---- */

/* The rows that a rank reads are those of the whole tensor. `way` 0: uneven shares, and some ranks
 * have none. 1: each rank reads all rows from some row on, so ranks read the same rows. */
static weft_status compare_rows(weft_session *s, int program, const weft_tensor_info *info,
                                int rank, int way) {
    int64_t n = weft_session_devices(s), height = info->desc.shape[0], row = info->bytes / height;
    int64_t first = way ? rank % height : height * rank * rank / (n * n);
    int64_t end = way ? height : height * (rank + 1) * (rank + 1) / (n * n);
    size_t bytes = (size_t)((end - first) * row);
    char *whole = malloc((size_t)info->bytes), *mine = calloc(1, bytes + 1);
    weft_status status = weft_session_read(s, program, info->name, whole, (size_t)info->bytes);
    if (status >= 0)
        status = weft_session_read_rows(s, program, info->name, first, bytes ? mine : NULL, bytes);
    if (status >= 0 && (memcmp(mine, whole + first * row, bytes) != 0 || mine[bytes]))
        status = WEFT_E_BUG;
    free(whole);
    free(mine);
    return status;
}

static weft_status read_rows(weft_session *s, int program, int rank) {
    for (int t = 0; t < weft_session_tensors(s, program); t++) {
        weft_tensor_info info;
        WEFT_TRY(weft_session_tensor(s, program, t, &info));
        if (info.desc.rank == 0) continue;
        for (int way = 0; way < 2; way++) WEFT_TRY(compare_rows(s, program, &info, rank, way));
    }
    return WEFT_OK;
}

/* Rows that do not fit the input are refused on all ranks, and the session stays usable. */
static weft_status feed_wrong_rows(weft_session *s, const run *r) {
    weft_tensor_info info = {.role = WEFT_ROLE_PARAM};
    char byte[1] = {0};
    for (int t = 0; info.role != WEFT_ROLE_INPUT; t++)
        WEFT_TRY(weft_session_tensor(s, 0, t, &info));
    if (weft_session_feed_rows(s, 0, info.name, byte, 0) != WEFT_E_SHAPE ||
        !has_facts(weft_error_message(), "0"))
        return WEFT_E_BUG;
    if (weft_session_feed_rows(s, 0, info.name, byte, r->rank == 1) >= 0 ||
        !has_facts(weft_error_message(), "1 bytes"))
        return WEFT_E_BUG;
    return WEFT_OK;
}

static weft_status check_rows(weft_session *s, const run *r, int step) {
    if (step == 0) return feed_wrong_rows(s, r);
    return step == STEPS ? read_rows(s, 0, r->rank) : WEFT_OK;
}

/* ---- tests ---- */

static void compare_runs(const plan_case *c, bool evaluate, bool late, feeding how) {
    run one = {.c = c, .evaluate = evaluate}, many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    ASSERT_OK(run_session(&one, NULL));
    for (int r = 0; r < c->devices; r++)
        many[r] = (run){.c = c,
                        .evaluate = evaluate,
                        .late = late,
                        .how = how,
                        .rank = r,
                        .at = how == FEED_ROWS ? check_rows : NULL};
    run_world(c->devices, run_rank, many, sizeof *many, ranks);
    assert_all_ok(ranks, c->devices, c->name);
    for (int r = 0; r < c->devices; r++) assert_same_run(&one, &many[r], r);
    for (int r = 0; r < c->devices; r++) free_run(&many[r]);
    free_run(&one);
}

static void processes_come_to_the_bits_of_one(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) compare_runs(&cases[i], i % 2 == 0, false, FEED_WHOLE);
}

/* In a world the second program comes after the first step, in one process before it. */
static void programs_come_between_steps(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) compare_runs(&cases[i], true, true, FEED_WHOLE);
}

static void parts_are_fed_where_they_are(void **state) {
    (void)state;
    compare_runs(&cases[0], false, false, FEED_LOCAL);
    compare_runs(&cases[8], true, true, FEED_LOCAL);
    compare_runs(&cases[9], false, false, FEED_LOCAL);
    compare_runs(&cases[10], false, false, FEED_LOCAL);
}

static void rows_are_brought_to_where_they_are_wanted(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i += 2) compare_runs(&cases[i], false, false, FEED_ROWS);
}

/* Parameters and states of one run, written whole into a session that is split differently. */
static void what_is_read_can_be_written(void **state) {
    (void)state;
    static const int after[] = {6, 8, 9};
    run one = {.c = &cases[4]}, start = {.c = &cases[0]};
    rank_of_world ranks[MOST_RANKS];
    run many[MOST_RANKS];
    ASSERT_OK(run_session(&start, NULL));
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        const plan_case *c = &cases[after[i]];
        one = (run){.c = c, .start = start.tensors};
        ASSERT_OK(run_session(&one, NULL));
        for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .start = start.tensors};
        run_world(c->devices, run_rank, many, sizeof *many, ranks);
        assert_all_ok(ranks, c->devices, c->name);
        for (int r = 0; r < c->devices; r++) assert_same_run(&one, &many[r], r);
        for (int r = 0; r < c->devices; r++) free_run(&many[r]);
        free_run(&one);
    }
    free_run(&start);
}

/* Each rank feeds its own rows to a session that has only a world and no plan. */
static weft_status run_without_plan(void *context, weft_world *world) {
    double *loss = context;
    weft_graph *graph = NULL;
    weft_session *s = NULL;
    weft_session_options o = weft_session_defaults();
    float mine[2] = {(float)weft_world_rank(world), 1};
    o.world = world;
    WEFT_TRY(weft_graph_create(&graph));
    weft_value x = weft_input(graph, "x", WEFT_DESC(WEFT_F32, weft_world_size(world), 2));
    x = weft_linear(
        graph, x,
        weft_param(graph, "weight", WEFT_DESC(WEFT_F32, 2, 1), (weft_init){WEFT_INIT_CONSTANT, 1}),
        WEFT_NO_VALUE, false);
    weft_loss(graph, weft_mean(graph, x, 0, NULL, false));
    weft_status status = weft_session_create(graph, &o, &s);
    if (status >= 0) status = weft_session_feed_rows(s, 0, "x", mine, sizeof mine);
    if (status >= 0) status = weft_session_step(s, 0, loss);
    if (status >= 0 && weft_session_devices(s) != weft_world_size(world)) *loss = -1;
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    return status;
}

static void without_a_plan_processes_share_the_batch(void **state) {
    (void)state;
    double loss[3];
    rank_of_world ranks[3];
    run_world(3, run_without_plan, loss, sizeof *loss, ranks);
    assert_all_ok(ranks, 3, "no plan");
    for (int r = 0; r < 3; r++) assert_float_equal(loss[r], 2, 1e-6); /* mean of 1, 2, 3 */
}

/* Tensor parallelism: ranks that hold the same rows feed and read rows of their own. The output is
 * split along its columns, or a sum of one term from each rank. */
typedef struct asked {
    const char *split;
    float mine[2]; /* the row that the rank has read */
} asked;

static weft_status read_own_row(void *context, weft_world *world) {
    asked *a = context;
    const int rank = weft_world_rank(world);
    weft_graph *graph = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    weft_session_options o = weft_session_defaults();
    float fed[6];
    int64_t first = -1, rows = -1;
    for (int k = 0; k < 6; k++) fed[k] = (float)(rank * 10 + k);
    o.world = world;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    WEFT_TRY(weft_graph_create(&graph));
    weft_value x = weft_input(graph, "x", WEFT_DESC(WEFT_F32, 4, 6));
    weft_cell_begin(graph, "c");
    weft_value w =
        weft_param(graph, "w", WEFT_DESC(WEFT_F32, 6, 2), (weft_init){WEFT_INIT_CONSTANT, 1});
    x = weft_cell_end(graph, weft_linear(graph, x, w, WEFT_NO_VALUE, false));
    weft_output(graph, "y", x);
    weft_status status = weft_plan_create(4, &plan);
    if (status >= 0) status = weft_plan_axis(plan, "dp", 2);
    if (status >= 0) status = weft_plan_axis(plan, "tp", 2);
    if (status >= 0) status = weft_plan_split_op(plan, "c:linear", a->split);
    o.plan = plan;
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    if (status >= 0) status = weft_session_rows(s, 0, "x", &first, &rows);
    if (status >= 0 && (first != rank || rows != 1)) status = WEFT_E_BUG;
    if (status >= 0) status = weft_session_feed_rows(s, 0, "x", fed, sizeof fed);
    if (status >= 0) status = weft_session_forward(s, 0, NULL);
    if (status >= 0) status = weft_session_read_rows(s, 0, "y", first, a->mine, sizeof a->mine);
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(graph);
    return status;
}

static void a_rank_reads_the_rows_that_it_fed(void **state) {
    (void)state;
    static const char *const splits[] = {"m0=dp n0=tp", "m0=dp k=tp", "m0=dp k=tp -> [dp, -]"};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        asked all[4];
        rank_of_world ranks[4];
        for (int r = 0; r < 4; r++) all[r] = (asked){splits[i], {-1, -1}};
        run_world(4, read_own_row, all, sizeof *all, ranks);
        assert_all_ok(ranks, 4, splits[i]);
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < 2; k++) assert_float_equal(all[r].mine[k], (float)(r * 60 + 15), 0);
    }
}

/* A world of one rank needs no communication. */
static void one_process_needs_no_other(void **state) {
    (void)state;
    static const plan_case alone = {.name = "alone", .devices = 1};
    weft_world *world;
    run r = {.c = &alone}, without = r;
    ASSERT_OK(wefti_world_create(NULL, 0, 1, NULL, &world));
    ASSERT_OK(run_session(&r, world));
    ASSERT_OK(run_session(&without, NULL));
    assert_same_run(&without, &r, 0);
    free_run(&r);
    free_run(&without);
    weft_world_leave(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_come_to_the_bits_of_one),
        cmocka_unit_test(programs_come_between_steps),
        cmocka_unit_test(parts_are_fed_where_they_are),
        cmocka_unit_test(rows_are_brought_to_where_they_are_wanted),
        cmocka_unit_test(what_is_read_can_be_written),
        cmocka_unit_test(without_a_plan_processes_share_the_batch),
        cmocka_unit_test(a_rank_reads_the_rows_that_it_fed),
        cmocka_unit_test(one_process_needs_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
