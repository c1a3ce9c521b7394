/* Sessions over a world whose ranks differ or fail. Jobs that differ are refused by name. If a rank
 * fails, or makes wrong calls, no rank waits for it, and all ranks name it. */
#include "world_run.h"

#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/philox.h"
#include "session/agree.h"
#include "session/session.h"

/* ---- jobs that differ ---- */

static void other_jobs_are_refused(void **state) {
    (void)state;
    static const struct {
        int tamper;
        const char *says;
    } changes[] = {{TAMPER_MODEL, "rank 1|rank 0"},
                   {TAMPER_PLAN, "rank 1|rank 0"},
                   {TAMPER_SEED, "seed"},
                   {TAMPER_CLIP, "optimizer"}};
    run many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    const plan_case *c = &cases[2];
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .tamper = changes[i].tamper};
        run_world(c->devices, run_rank, many, sizeof *many, ranks);
        for (int r = 0; r < c->devices; r++)
            assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, changes[i].says);
    }
    for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .tamper = TAMPER_DEVICES};
    run_world(c->devices, run_rank, many, sizeof *many, ranks);
    for (int r = 0; r < c->devices; r++) assert_rank_fails(&ranks[r], r, WEFT_E_ARG, "3 devices|4");
    assert_non_null(strstr(ranks[0].message, "rank 1: "));
}

/* ---- numbers that are not finite ---- */

/* A parameter becomes infinite after one step. */
static weft_status poison(weft_session *s, const run *r, int step) {
    weft_tensor_info info;
    (void)r;
    if (step != 1) return WEFT_OK;
    WEFT_TRY(weft_session_find(s, 0, "h.1.mlp.c_fc.weight", &info));
    float *values = calloc(1, (size_t)info.bytes);
    values[7] = INFINITY;
    weft_status status = weft_session_write(s, 0, info.name, values, (size_t)info.bytes);
    free(values);
    return status;
}

/* The parameter that is infinite lies on one stage, or on all ranks. */
static void a_loss_that_is_not_finite_stops_all(void **state) {
    (void)state;
    static const int which[] = {0, 2, 6, 7, 9, 10};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        const plan_case *c = &cases[which[i]];
        run many[MOST_RANKS];
        rank_of_world ranks[MOST_RANKS];
        for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .at = poison};
        run_world(c->devices, run_rank, many, sizeof *many, ranks);
        for (int r = 0; r < c->devices; r++) {
            assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "finite");
            assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "cell 'h.1'");
            assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "rank ");
            assert_true(isfinite(many[r].losses[0]));
        }
    }
}

/* The rate may come from data that only one rank has. */
static weft_status step_with_no_rate(void *context, weft_world *world) {
    const run *r = context;
    weft_session_options o = weft_session_defaults();
    weft_model_config config = config_of(r->c, false);
    weft_graph *graph = NULL;
    weft_session *s = NULL;
    o.threads = 1;
    o.world = world;
    weft_status status =
        told(world, weft_model_build(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32, &graph));
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    if (status >= 0) status = feed(s, 0, 1, FEED_WHOLE, r->rank);
    if (status >= 0) status = weft_session_step(s, r->rank == 1 ? NAN : 0.1, NULL);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    return status;
}

static void a_rate_that_is_no_number_on_one_rank(void **state) {
    (void)state;
    run many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    for (int r = 0; r < 2; r++) many[r] = (run){.c = &cases[0], .rank = r};
    run_world(2, step_with_no_rate, many, sizeof *many, ranks);
    assert_rank_fails(&ranks[0], 0, WEFT_E_PEER, "rank 1|nan");
    assert_rank_fails(&ranks[1], 1, WEFT_E_ARG, "nan");
}

/* ---- wrong calls ---- */

static bool is_refused(const run *r, weft_status status, weft_status want, const char *why) {
    return status == want && has_facts(weft_error_message(), why) &&
           (r->rank == 1 || !strncmp(weft_error_message(), "rank 1: ", 8));
}

/* One rank alone makes wrong calls. If the others would wait for it in such a call, all ranks
 * refuse the call. The session stays usable. The first wrong call is the session's first call. */
static weft_status make_mistakes(weft_session *s, const run *r, int step) {
    static const char unknown[] = "nothing";
    if (step != 0) return WEFT_OK;
    const char *name = "h.1.mlp.c_fc.weight", *input = NULL;
    weft_tensor_info info = {.role = WEFT_ROLE_PARAM};
    for (int t = 0; info.role != WEFT_ROLE_INPUT; t++)
        WEFT_TRY(weft_session_tensor(s, 0, t, &info));
    input = info.name;
    char *data = calloc(1, (size_t)info.bytes);
    bool wrong = r->rank == 1, good = true;
    weft_status status =
        weft_session_feed(s, 0, wrong ? "nothing" : input, data, (size_t)info.bytes);
    good &= status == (wrong ? WEFT_E_NOT_FOUND : WEFT_OK);
    free(data);
    WEFT_TRY(weft_session_find(s, 0, name, &info));
    size_t bytes = (size_t)info.bytes;
    data = calloc(1, bytes);
    status = weft_session_read(s, 0, wrong ? "nothing" : name, data, bytes);
    good &= is_refused(r, status, WEFT_E_NOT_FOUND, unknown);
    status = weft_session_read(s, 0, name, data, wrong ? bytes - 4 : bytes);
    good &= is_refused(r, status, WEFT_E_SHAPE, "bytes, not ");
    status = weft_session_write(s, wrong ? 7 : 0, name, data, bytes);
    good &= is_refused(r, status, WEFT_E_ARG, "program 7");
    status = weft_session_write(s, 0, name, wrong ? NULL : data, bytes);
    good &= is_refused(r, status, WEFT_E_ARG, "are NULL");
    status = weft_session_feed_rows(s, 0, wrong ? "nothing" : input, data, 0);
    good &= is_refused(r, status, WEFT_E_NOT_FOUND, unknown);
    int64_t row = (int64_t)bytes / info.desc.shape[0];
    status = weft_session_read_rows(s, 0, wrong ? "nothing" : name, 0, data, (size_t)row);
    good &= is_refused(r, status, WEFT_E_NOT_FOUND, unknown);
    status = weft_session_read_rows(s, 0, name, wrong ? -1 : 0, data, (size_t)row);
    good &= is_refused(r, status, WEFT_E_SHAPE, "rows -1 to -1");
    status = weft_session_read_rows(s, 0, name, wrong, data, bytes);
    good &= is_refused(r, status, WEFT_E_SHAPE, "rows 1 to ");
    status = weft_session_read_rows(s, 0, name, 0, data, (size_t)(wrong ? row - 1 : row));
    good &= is_refused(r, status, WEFT_E_SHAPE, "whole number");
    status = weft_session_read_rows(s, 0, name, 0, wrong ? NULL : data, (size_t)row);
    good &= is_refused(r, status, WEFT_E_ARG, "are NULL");
    free(data);
    int program;
    weft_graph *graph = wefti_session_origin_of(s).graph;
    status = weft_session_add(s, wrong ? NULL : graph, &program);
    good &= is_refused(r, status, WEFT_E_ARG, "graph");
    status = weft_session_add(s, graph, wrong ? NULL : &program);
    good &= is_refused(r, status, WEFT_E_ARG, "graph");
    status = weft_session_load(s, wrong ? NULL : "/nowhere", -1, NULL);
    good &= is_refused(r, status, WEFT_E_ARG, "directory");
    const weft_session_save_options how =
        WEFT_STRUCT(weft_session_save_options, .sliced = wrong, .keep = 1);
    status = weft_session_save_start(s, wrong ? NULL : "/nowhere", &how);
    good &= is_refused(r, status, WEFT_E_ARG, "directory");
    status = weft_session_save(s, "/nowhere", &how);
    good &= status == WEFT_E_MISMATCH;
    return good ? WEFT_OK : WEFT_E_BUG;
}

static void wrong_calls_of_one_rank_keep_nobody_waiting(void **state) {
    (void)state;
    static const int which[] = {0, 8, 9};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        const plan_case *c = &cases[which[i]];
        run one = {.c = c}, many[MOST_RANKS];
        rank_of_world ranks[MOST_RANKS];
        ASSERT_OK(run_session(&one, NULL));
        for (int r = 0; r < c->devices; r++)
            many[r] = (run){.c = c, .at = make_mistakes, .rank = r};
        run_world(c->devices, run_rank, many, sizeof *many, ranks);
        assert_all_ok(ranks, c->devices, c->name);
        for (int r = 0; r < c->devices; r++) {
            assert_same_run(&one, &many[r], r);
            free_run(&many[r]);
        }
        free_run(&one);
    }
}

/* The last call of a rank may have needed no other one. */
static weft_status meet(weft_world *world) {
    wefti_agreement *a;
    WEFT_TRY(wefti_agreement_of(world, &a));
    return wefti_agree(a, WEFT_OK);
}

/* Calls out of order, by one rank alone: the others are in another call. They end with it, or with
 * the next one for which they need that rank. */
typedef enum disorder { BEGINS, FORWARDS, UPDATES, ACCUMULATES, DISORDERS } disorder;

typedef struct disordered {
    run run;
    disorder call;
} disordered;

/* A world of one rank goes on. */
static weft_status call_wrongly(weft_session *s, disorder call, const weft_world *world) {
    weft_status status = WEFT_OK;
    switch (call) {
    case BEGINS:
        status = weft_session_begin(s, NULL);
        break;
    case FORWARDS:
        status = weft_session_forward(s, 0, NULL);
        break;
    case UPDATES:
        status = weft_session_update(s, 0.1, NULL);
        break;
    case ACCUMULATES:
        status = weft_session_accumulate(s, NULL);
        break;
    case DISORDERS:
        break;
    }
    if (weft_world_size(world) > 1) return status;
    return status == WEFT_E_ARG ? WEFT_OK : WEFT_E_BUG;
}

static weft_status call_out_of_order(void *context, weft_world *world) {
    const disordered *d = context;
    const bool wrong = d->run.rank == weft_world_size(world) - 1;
    const weft_session_options o =
        WEFT_STRUCT(weft_session_options, .threads = 1, .world = world, .microbatches = 2);
    const weft_model_config config = config_of(d->run.c, false);
    weft_graph *graph = NULL;
    weft_session *s = NULL;
    weft_status status =
        told(world, weft_model_build(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32, &graph));
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    for (int m = 0; m < 2 && status >= 0; m++) {
        const bool now = wrong && m == 1 && d->call != ACCUMULATES;
        status = feed(s, 0, (uint64_t)m, FEED_WHOLE, d->run.rank);
        if (status >= 0 && now) status = call_wrongly(s, d->call, world);
        if (status >= 0) status = weft_session_accumulate(s, NULL);
    }
    if (status >= 0 && d->call == ACCUMULATES && wrong) status = call_wrongly(s, d->call, world);
    if (status >= 0) status = weft_session_update(s, 0.1, NULL);
    if (status >= 0) status = meet(world);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    return status;
}

static void calls_out_of_order_keep_nobody_waiting(void **state) {
    (void)state;
    for (disorder call = 0; call < DISORDERS; call++) {
        disordered two[2] = {{{.c = &cases[0], .rank = 0}, call},
                             {{.c = &cases[0], .rank = 1}, call}};
        rank_of_world ranks[2];
        run_world(2, call_out_of_order, two, sizeof *two, ranks);
        assert_int_equal(ranks[0].status, WEFT_E_PEER);
        assert_int_equal(ranks[1].status, WEFT_E_ARG);
        run_world(1, call_out_of_order, two, sizeof *two, ranks);
        assert_all_ok(ranks, 1, "alone");
    }
}

/* ---- a rank that fails alone ---- */

static weft_status fail_alone(void *context, weft_world *world) {
    run *r = context;
    weft_graph *graph = NULL;
    weft_session *s = NULL;
    weft_plan *plan = NULL;
    weft_session_options o = weft_session_defaults();
    weft_model_config config = config_of(r->c, false);
    o.world = world;
    o.threads = 1;
    o.memory_bytes = weft_world_rank(world) == 2 ? 1000 : 0;
    WEFT_TRY(make_plan(r->c, &plan));
    o.plan = plan;
    weft_status status = weft_model_build(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32, &graph);
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    weft_plan_destroy(plan);
    return status;
}

static void a_rank_without_memory_is_named(void **state) {
    (void)state;
    const plan_case *c = &cases[4];
    run many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c};
    run_world(c->devices, fail_alone, many, sizeof *many, ranks);
    for (int r = 0; r < c->devices; r++) {
        assert_rank_fails(&ranks[r], r, WEFT_E_NOMEM, "step");
        if (r != 2) assert_rank_fails(&ranks[r], r, WEFT_E_NOMEM, "rank 2: ");
    }
}

/* Leaves in the middle of a run, like a process that cannot read its data. */
static weft_status leave_early(void *context, weft_world *world) {
    run *r = context;
    if (weft_world_rank(world) != 1) return run_session(r, world);
    weft_world_fail(world, "the disk is on fire");
    return WEFT_OK;
}

static void a_rank_that_gives_up_is_named(void **state) {
    (void)state;
    const plan_case *c = &cases[4];
    run many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c};
    run_world(c->devices, leave_early, many, sizeof *many, ranks);
    for (int r = 0; r < c->devices; r++)
        if (r != 1) assert_rank_fails(&ranks[r], r, WEFT_E_PEER, "rank 1");
}

/* ---- a rank that lacks memory somewhere ---- */

typedef struct starving {
    run run;
    pthread_barrier_t *barrier;
    int64_t nth; /* allocation of all ranks together that fails; none if it is beyond the last */
} starving;

static weft_status run_starving(void *context, weft_world *world) {
    starving *x = context;
    (void)pthread_barrier_wait(x->barrier);
    if (weft_world_rank(world) == 0) wefti_fault_arm(WEFTI_FAULT_ALLOC, x->nth, false, 0);
    (void)pthread_barrier_wait(x->barrier);
    WEFT_TRY(run_session(&x->run, world));
    return meet(world);
}

/* Saves whole tensors, then slices, and loads both. */
static char folder[64];
static weft_status save_and_load(weft_session *s, const run *r, int step) {
    const weft_session_save_options how =
        WEFT_STRUCT(weft_session_save_options, .sliced = step == 1);
    (void)r;
    if (step > 1) return WEFT_OK;
    WEFT_TRY(weft_session_save(s, folder, &how));
    return weft_session_load(s, folder, -1, NULL);
}

/* Returns how many allocations there were. */
static int64_t starve(const plan_case *c, bool saves, int64_t nth, bool *out_failed) {
    starving each[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    pthread_barrier_t barrier;
    int failed = 0, lacking = 0;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, (unsigned)c->devices), 0);
    for (int r = 0; r < c->devices; r++)
        each[r] = (starving){
            {.c = c, .evaluate = !saves, .at = saves ? save_and_load : NULL}, &barrier, nth};
    if (saves) ASSERT_OK(wefti_remove_tree(folder));
    run_world(c->devices, run_starving, each, sizeof *each, ranks);
    int64_t count = wefti_fault_count(WEFTI_FAULT_ALLOC);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    pthread_barrier_destroy(&barrier);
    for (int r = 0; r < c->devices; r++) {
        failed += ranks[r].status < 0;
        lacking += ranks[r].status == WEFT_E_NOMEM;
        free_run(&each[r].run);
    }
    if (failed > 0 && (failed < c->devices || lacking == 0))
        fail_msg("%s, allocation %lld: %d ranks failed, %d of them for lack of memory; rank 0: %s",
                 c->name, (long long)nth, failed, lacking, ranks[0].message);
    *out_failed = failed > 0;
    return count;
}

/* One rank fails alone, within a joint decision of all ranks or between two. The others do not wait
 * for it. */
static void memory_that_one_rank_lacks_ends_all(void **state) {
    (void)state;
    static const struct {
        int plan, tries;
        bool saves;
    } which[] = {{1, 120, false}, {9, 120, false}, {0, 16, true}};
    const uint64_t seed = test_new_seed();
    (void)snprintf(folder, sizeof folder, "%s/weft-world-failures-%d",
                   access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        const plan_case *c = &cases[which[i].plan];
        const int tries = which[i].tries;
        bool failed;
        int fails = 0;
        int64_t all = starve(c, which[i].saves, INT64_MAX, &failed);
        assert_false(failed);
        for (int k = 0; k < tries; k++) {
            /* More of the late allocations: building comes first and makes most of them. */
            const int64_t most = all * (tries - k) * (tries - k) / tries / tries,
                          least = all * (tries - k - 1) * (tries - k - 1) / tries / tries;
            const int64_t left = most - wefti_philox_u32(seed, i, (uint64_t)k) % (most - least + 1);
            (void)starve(c, which[i].saves, all - left, &failed);
            fails += failed;
        }
        assert_true(fails > tries / 2);
    }
    ASSERT_OK(wefti_remove_tree(folder));
}

/* A rank that has no memory for the records of all. */
static weft_status lack_records(void *context, weft_world *world) {
    int64_t own = weft_world_rank(world), all[MOST_RANKS];
    wefti_agreement *a;
    (void)context;
    WEFT_TRY(wefti_agreement_of(world, &a));
    return wefti_agree_records(a, &own, sizeof own, own == 1 ? NULL : all);
}

static void records_that_one_rank_lacks_end_all(void **state) {
    (void)state;
    run none[2] = {0};
    rank_of_world ranks[2];
    run_world(2, lack_records, none, sizeof *none, ranks);
    assert_int_equal(ranks[1].status, WEFT_E_NOMEM);
    assert_rank_fails(&ranks[0], 0, WEFT_E_PEER, "rank 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_jobs_are_refused),
        cmocka_unit_test(a_loss_that_is_not_finite_stops_all),
        cmocka_unit_test(a_rate_that_is_no_number_on_one_rank),
        cmocka_unit_test(wrong_calls_of_one_rank_keep_nobody_waiting),
        cmocka_unit_test(calls_out_of_order_keep_nobody_waiting),
        cmocka_unit_test(a_rank_without_memory_is_named),
        cmocka_unit_test(a_rank_that_gives_up_is_named),
        cmocka_unit_test(records_that_one_rank_lacks_end_all),
        cmocka_unit_test(memory_that_one_rank_lacks_ends_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
