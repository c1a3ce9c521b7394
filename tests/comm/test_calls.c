/* Ranks that make different calls are named, with the number of the call; failed allocations leave
 * nothing behind, and calls may be repeated after them. (weft-test: threads) */
#include "ranks.h"

/* ---- ranks that do not do the same ---- */

static void differ_in_kind(ranks_test *t, int rank) {
    float a[4] = {0}, b[4];
    for (int n = 0; n < 2; n++) (void)!weft_barrier(t->world[rank], NULL);
    keep(t, rank,
         rank == 1 ? weft_broadcast(t->world[rank], NULL, a, 4, WEFT_F32, 0)
                   : weft_all_reduce(t->world[rank], NULL, a, b, 4, WEFT_F32, WEFT_REDUCE_SUM));
}
static void differ_in_size(ranks_test *t, int rank) {
    float a[9] = {0}, b[9];
    keep(t, rank,
         weft_all_reduce(t->world[rank], NULL, a, b, rank == 1 ? 9 : 4, WEFT_F32, WEFT_REDUCE_SUM));
}
static void differ_in_reduction(ranks_test *t, int rank) {
    float a[9] = {0}, b[9];
    keep(t, rank,
         weft_all_reduce(t->world[rank], NULL, a, b, 4, WEFT_F32,
                         rank == 1 ? WEFT_REDUCE_MIN : WEFT_REDUCE_PROD));
}
static void differ_in_root(ranks_test *t, int rank) {
    float a[9] = {0};
    keep(t, rank, weft_broadcast(t->world[rank], NULL, a, 4, WEFT_F32, rank == 1 ? 2 : 0));
}
/* Nobody looks at what rank 1 posts, and it looks at nobody: the next call finds it. */
static void differ_in_who_is_root(ranks_test *t, int rank) {
    float a[9] = {0};
    int root = rank == 1 ? 1 : 0;
    weft_status status = weft_broadcast(t->world[rank], NULL, a, 4, WEFT_F32, root);
    if (status >= 0) status = weft_barrier(t->world[rank], NULL);
    keep(t, rank, status);
}
static void differ_in_order(ranks_test *t, int rank) { /* one leaves a barrier out */
    float a[9] = {0}, b[9];
    if (rank != 1) (void)!weft_barrier(t->world[rank], NULL);
    keep(t, rank, weft_all_reduce(t->world[rank], NULL, a, b, 1, WEFT_BOOL, WEFT_REDUCE_MIN));
}
static void differ_in_blocks(ranks_test *t, int rank) { /* rank 0 expects what rank 1 has not */
    float a[9] = {0}, b[9];
    int64_t one[3] = {1, 1, 1}, none[3] = {0, 1, 1}, two[3] = {1, 1, 1};
    keep(t, rank,
         weft_all_to_all_v(t->world[rank], NULL, a, rank == 1 ? none : one, b, two, WEFT_F32));
}
static void differ_in_halo(ranks_test *t, int rank) { /* rank 1 sends a row more up */
    float a[16] = {0}, b[64];
    int64_t one[4] = {1, 1, 0, 0}, two[4] = {2, 1, 0, 0};
    weft_halo send = weft_halo_on_grid(3, 1, rank, rank == 1 ? two : one);
    weft_halo receive = weft_halo_on_grid(3, 1, rank, one);
    keep(t, rank,
         weft_halo_exchange(t->world[rank], NULL, a, (int64_t[]){1, 4, 4}, &send, b, &receive,
                            WEFT_F32));
}
static void differ_in_message(ranks_test *t, int rank) {
    float a[9] = {0};
    if (rank == 0) keep(t, rank, weft_send(t->world[rank], NULL, a, 5, WEFT_F32, 1, 3));
    if (rank == 1) keep(t, rank, weft_recv(t->world[rank], NULL, a, 6, WEFT_F32, 0, 3));
    if (rank == 2) keep(t, rank, weft_barrier(t->world[rank], NULL));
}

static void ranks_that_differ_are_named(void **state) {
    (void)state;
    static const struct {
        void (*body)(ranks_test *, int);
        const char *text[3];
    } cases[] = {
        {differ_in_kind, {"call 3 of all 3 ranks", "all_reduce of", "broadcast of"}},
        {differ_in_size, {"call 1 of all 3 ranks", "4 elements", "9 elements"}},
        {differ_in_reduction, {"call 1 of all 3 ranks", "of min", "of prod"}},
        {differ_in_root, {"call 1 of all 3 ranks", "root member 0", "root member 2"}},
        {differ_in_who_is_root, {"call 2 of all 3 ranks", "barrier", "another transfer"}},
        {differ_in_order, {"of all 3 ranks", "barrier", "all_reduce of min"}},
        {differ_in_blocks, {"all_to_all_v, call 1", "ranks 0 and 1", "exchange"}},
        {differ_in_halo, {"halo_exchange, call 1", "ranks 0 and 1", "exchange"}},
        {differ_in_message, {"member", "tag 3", "ranks 0 and 1"}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int turn = 0; turn < 5; turn++) {
            ranks_test t;
            begin(&t, 3);
            run(&t, cases[k].body);
            int found = -1;
            for (int r = 0; r < 3; r++) {
                /* A rank whose part was done may have continued; all others fail. */
                if (t.status[r] == WEFT_E_MISMATCH) found = r;
                assert_true(t.status[r] == WEFT_OK || t.status[r] == WEFT_E_MISMATCH ||
                            t.status[r] == WEFT_E_PEER);
            }
            if (found < 0) fail_msg("case %zu: nobody noticed", k);
            for (int i = 0; i < 3; i++)
                if (!has_facts(t.message[found], cases[k].text[i]))
                    fail_msg("case %zu: '%s' is not in '%s'", k, cases[k].text[i],
                             t.message[found]);
            end(&t);
        }
}

/* What a rank says that is still in an earlier call: that one is not wrong. */
static _Atomic int failed_ranks;
static void differ_ahead(ranks_test *t, int rank) {
    float a[4] = {0}, b[4];
    weft_world *w = t->world[rank];
    while (rank == 2 && atomic_load(&failed_ranks) < 2) sched_yield();
    weft_status status = weft_broadcast(w, NULL, a, 4, WEFT_F32, 0);
    if (status >= 0 && rank == 0)
        status = weft_all_reduce(w, NULL, a, b, 4, WEFT_F32, WEFT_REDUCE_SUM);
    if (status >= 0 && rank == 1) status = weft_all_gather(w, NULL, a, b, 1, WEFT_F32);
    keep(t, rank, status);
    atomic_fetch_add(&failed_ranks, 1);
}

static void the_call_that_differs_is_numbered(void **state) {
    (void)state;
    ranks_test t;
    atomic_store(&failed_ranks, 0);
    begin(&t, 3);
    run(&t, differ_ahead);
    for (int r = 0; r < 3; r++) {
        const char *place = r == 2 ? "broadcast, call 1" : "call 2 of";
        if (t.status[r] >= 0 || !has_facts(t.message[r], place) ||
            !has_facts(t.message[r], "call 2"))
            fail_msg("rank %d: status %d, '%s'", r, (int)t.status[r], t.message[r]);
    }
    end(&t);
}

/* ---- memory ---- */

static void first_calls(ranks_test *t, int rank) {
    float a[4] = {0}, b[8];
    int64_t counts[2] = {1, 1};
    weft_request *request = NULL;
    weft_world *w = t->world[rank];
    weft_group *group = NULL;
    weft_status status = weft_all_reduce(w, NULL, a, b, 4, WEFT_F32, WEFT_REDUCE_SUM);
    if (status >= 0) status = weft_all_to_all_v(w, NULL, a, counts, b, counts, WEFT_F32);
    if (status >= 0) {
        weft_halo halo = weft_halo_on_grid(1, 2, rank, (int64_t[]){0, 0, 1, 1});
        status = weft_halo_exchange(w, NULL, a, (int64_t[]){1, 2, 2}, &halo, b, &halo, WEFT_F32);
    }
    if (status >= 0) status = weft_group_create(w, (int[]){0, 1}, 2, &group);
    if (status >= 0) status = weft_all_gather_start(w, group, a, b, 4, WEFT_F32, &request);
    if (status >= 0) status = weft_request_wait(request);
    weft_group_destroy(group);
    if (status < 0) weft_world_fail(w, weft_error_message());
    keep(t, rank, status);
}

static void failures_of_memory_leave_nothing_behind(void **state) {
    (void)state;
    bool failed = true;
    int64_t nth = 0;
    for (; failed && nth < 400; nth++) {
        ranks_test t;
        begin(&t, 2);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        run(&t, first_calls);
        failed = wefti_fault_count(WEFTI_FAULT_ALLOC) > nth;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        bool any = false;
        for (int r = 0; r < 2; r++) {
            any |= t.status[r] == WEFT_E_NOMEM;
            assert_true(t.status[r] == WEFT_OK || t.status[r] == WEFT_E_NOMEM ||
                        t.status[r] == WEFT_E_PEER);
        }
        if (failed && !any) fail_msg("allocation %d failed, and nobody says so", (int)nth);
        end(&t);
    }
    assert_true(nth > 10 && nth < 400);
}

/* Calls of one post: nothing is under way when they fail. */
enum { REDUCES, BROADCASTS, EXCHANGES, SENDS_A_BLOCK, SENDS_A_RIM, SENDS, SINGLE_CALLS };

static weft_status start_single(ranks_test *t, int rank, int kind, weft_request **out) {
    static float a[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}}, b[2][8];
    static const int other[1] = {1}, first[1] = {0};
    static const int64_t counts[2] = {2, 2}, size[1] = {3};
    weft_world *w = t->world[rank];
    float *from = a[rank], *to = b[rank];
    int sends = rank == 0, receives = rank == 1;
    weft_halo none = weft_halo_on_grid(1, 2, rank, (int64_t[]){0, 0, 0, 0});
    weft_halo sent = none, received = none;
    switch (kind) {
    case REDUCES:
        return weft_all_reduce_start(w, NULL, from, to, 4, WEFT_F32, WEFT_REDUCE_SUM, out);
    case BROADCASTS:
        return weft_broadcast_start(w, NULL, from, 4, WEFT_F32, 0, out);
    case EXCHANGES:
        return weft_all_to_all_v_start(w, NULL, from, counts, to, counts, WEFT_F32, out);
    case SENDS_A_BLOCK:
        return weft_neighbor_exchange_start(w, NULL, from, other, size, sends, to, first, size,
                                            receives, WEFT_F32, out);
    case SENDS_A_RIM:
        for (int i = 0; i < 8 && !sends; i++) sent.ranks[i] = -1;
        for (int i = 0; i < 8 && !receives; i++) received.ranks[i] = -1;
        sent.sizes[3] = sends;
        received.sizes[2] = receives;
        return weft_halo_exchange_start(w, NULL, from, (int64_t[]){1, 2, 2}, &sent, to, &received,
                                        WEFT_F32, out);
    default:
        return sends ? weft_send_start(w, NULL, from, 3, WEFT_F32, 1, 7, out)
                     : weft_recv_start(w, NULL, to, 3, WEFT_F32, 0, 7, out);
    }
}

static void end_both(weft_request *request[2]) {
    for (int left = 2; left > 0;)
        for (int r = 0; r < 2; r++) {
            weft_status status = request[r] ? weft_request_test(request[r]) : WEFT_PENDING;
            if (status == WEFT_PENDING) continue;
            if (status < 0) fail_msg("rank %d: %s", r, weft_error_message());
            request[r] = NULL;
            left--;
        }
}

/* What ranks say of their calls when they leave. */
static void both_say_the_same(ranks_test *t) {
    wefti_call_records *said[2];
    for (int r = 0; r < 2; r++) {
        said[r] = wefti_collectives_records(t->world[r]);
        assert_non_null(said[r]);
        assert_int_equal(t->world[r]->collectives->everyone->calls, SINGLE_CALLS - 1);
    }
    assert_int_equal(said[0]->count, said[1]->count);
    for (int32_t i = 0, j; i < said[0]->count; i++) {
        const wefti_call_record *mine = &said[0]->of[i], *theirs;
        for (j = 0; j < said[1]->count && said[1]->of[j].ranks != mine->ranks;) j++;
        assert_true(j < said[1]->count);
        theirs = &said[1]->of[j];
        if (mine->calls != theirs->calls || mine->digest != theirs->digest)
            fail_msg("rank 0 in %s; rank 1 in %s", mine->text, theirs->text);
    }
    for (int r = 0; r < 2; r++) wefti_free(said[r]);
}

/* One that failed of memory and is made once more counts once. */
static void calls_may_be_repeated(void **state) {
    (void)state;
    int failures[2][SINGLE_CALLS] = {{0}};
    bool failed = true;
    int64_t nth = 0;
    for (; failed && nth < 100; nth++) {
        ranks_test t;
        begin(&t, 2);
        failed = false;
        for (int kind = 0; kind < SINGLE_CALLS; kind++) {
            weft_request *request[2];
            for (int r = 0; r < 2; r++) {
                wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
                weft_status status = start_single(&t, r, kind, &request[r]);
                bool due = wefti_fault_count(WEFTI_FAULT_ALLOC) > nth;
                wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
                failed |= due;
                failures[r][kind] += due;
                assert_int_equal(status, due ? WEFT_E_NOMEM : WEFT_OK);
                if (due) status = start_single(&t, r, kind, &request[r]);
                if (status < 0) fail_msg("call %d, rank %d: %s", kind, r, weft_error_message());
            }
            end_both(request);
        }
        both_say_the_same(&t);
        end(&t);
    }
    assert_true(nth < 100);
    for (int kind = 0; kind < SINGLE_CALLS; kind++)
        for (int r = 0; r < 2; r++) assert_true(failures[r][kind] > 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_differ_are_named),
        cmocka_unit_test(the_call_that_differs_is_numbered),
        cmocka_unit_test(failures_of_memory_leave_nothing_behind),
        cmocka_unit_test(calls_may_be_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
