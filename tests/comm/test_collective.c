/* Collectives on buffers: wrong arguments are refused before any rank waits; any number of started
 * calls may end in any order; a group has its order. The conformance suite checks values.
 * (weft-test: threads) */
#include "ranks.h"

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    ranks_test t;
    begin(&t, 3);
    weft_world *w = t.world[1];
    float a[9] = {0}, b[9] = {0};
    weft_request *request;
    weft_group *group = NULL, *others = NULL;
    REFUSED(weft_barrier(NULL, NULL), "no world");
    REFUSED(weft_all_reduce(w, NULL, a, b, -1, WEFT_F32, WEFT_REDUCE_SUM), "-1 elements");
    REFUSED(weft_all_reduce(w, NULL, NULL, b, 3, WEFT_F32, WEFT_REDUCE_SUM),
            "all_reduce of all 3 ranks: no source, 3 elements");
    REFUSED(weft_all_reduce(w, NULL, a, NULL, 3, WEFT_F32, WEFT_REDUCE_SUM), "no destination");
    REFUSED(weft_all_reduce(w, NULL, a, b, 3, (weft_dtype)77, WEFT_REDUCE_SUM), "dtype 77");
    REFUSED(weft_all_reduce(w, NULL, a, b, 3, WEFT_F32, (weft_reduction)9), "reduction 9");
    REFUSED(weft_all_reduce(w, NULL, a, a + 1, 3, WEFT_F32, WEFT_REDUCE_SUM), "overlap");
    REFUSED(weft_all_gather(w, NULL, a, a, 3, WEFT_F32), "all_gather of all 3 ranks: source and");
    REFUSED(weft_all_gather(w, NULL, a + 8, a, 3, WEFT_F32), "overlap");
    REFUSED(weft_all_gather(w, NULL, a, b, INT64_MAX / 2, WEFT_F32), "too many");
    REFUSED(weft_broadcast(w, NULL, a, 3, WEFT_F32, 3), "the root is member 3; there are 0 to 2");
    REFUSED(weft_reduce(w, NULL, a, b, 3, WEFT_F32, WEFT_REDUCE_MAX, -1), "member -1");
    REFUSED(weft_send(w, NULL, a, 3, WEFT_F32, 1, 0), "the caller itself");
    REFUSED(weft_recv(w, NULL, a, 3, WEFT_F32, 5, 0), "the partner is member 5");
    REFUSED(weft_all_reduce_start(w, NULL, a, b, 3, WEFT_F32, WEFT_REDUCE_SUM, NULL), "no place");
    REFUSED(weft_request_wait(NULL), "no request");
    int64_t counts[3] = {1, 1, 1}, negative[3] = {1, 1, -4}, more[3] = {1, 2, 1};
    REFUSED(weft_all_to_all_v(w, NULL, a, counts, b, negative, WEFT_F32),
            "block 2 of the receives has -4");
    REFUSED(weft_all_to_all_v(w, NULL, a, counts, b, more, WEFT_F32), "sends itself 1 elements");
    REFUSED(weft_all_to_all_v(w, NULL, a, NULL, b, more, WEFT_F32), "counts of the sends");
    REFUSED(weft_neighbor_exchange(w, NULL, a, (int[]){4}, counts, 1, b, NULL, NULL, 0, WEFT_F32),
            "a neighbour is member 4");
    REFUSED(weft_neighbor_exchange(w, NULL, a, (int[]){1}, counts, 1, b, NULL, NULL, 0, WEFT_F32),
            "more blocks than it receives");
    REFUSED(weft_group_create(w, (int[]){0, 3}, 2, &group), "rank 3; there are 0 to 2");
    REFUSED(weft_group_create(w, (int[]){2, 1, 2}, 3, &group), "rank 2 twice");
    REFUSED(weft_group_create(w, NULL, 2, &group), "a group of 2 ranks");
    assert_true(weft_group_create(w, (int[]){0, 2}, 2, &others) >= 0);
    assert_int_equal(weft_group_rank(others), -1);
    assert_int_equal(weft_group_size(others), 2);
    assert_int_equal(weft_group_world_rank(others, 1), 2);
    assert_int_equal(weft_group_world_rank(others, 2), -1);
    REFUSED(weft_barrier(w, others), "rank 1 is not a member of group [0, 2]");
    REFUSED(weft_barrier(t.world[0], others), "another world");
    (void)request;
    /* Nothing of all that has broken anything. */
    weft_group_destroy(others);
    weft_group_destroy(NULL);
    end(&t);
}

static void a_world_of_one_copies(void **state) {
    (void)state;
    ranks_test t;
    begin(&t, 1);
    weft_world *w = t.world[0];
    float a[3] = {1, 2, 3}, b[3];
    weft_request *request;
    int64_t three = 3;
    int me = 0;
#define COPIES(call)                                                                               \
    do {                                                                                           \
        memset(b, 0, sizeof b);                                                                    \
        assert_true((call) >= 0);                                                                  \
        assert_memory_equal(a, b, sizeof a);                                                       \
    } while (0)
    COPIES(weft_all_reduce(w, NULL, a, b, 3, WEFT_F32, WEFT_REDUCE_PROD));
    COPIES(weft_all_gather(w, NULL, a, b, 3, WEFT_F32));
    COPIES(weft_reduce_scatter(w, NULL, a, b, 3, WEFT_F32, WEFT_REDUCE_MIN));
    COPIES(weft_all_to_all(w, NULL, a, b, 3, WEFT_F32));
    COPIES(weft_all_to_all_v(w, NULL, a, &three, b, &three, WEFT_F32));
    COPIES(weft_neighbor_exchange(w, NULL, a, &me, &three, 1, b, &me, &three, 1, WEFT_F32));
    COPIES(weft_reduce(w, NULL, a, b, 3, WEFT_F32, WEFT_REDUCE_SUM, 0));
    COPIES(weft_gather(w, NULL, a, b, 3, WEFT_F32, 0));
    COPIES(weft_scatter(w, NULL, a, b, 3, WEFT_F32, 0));
    COPIES(weft_broadcast(w, NULL, a, 3, WEFT_F32, 0) >= 0 ? (memcpy(b, a, sizeof a), 0) : -1);
    assert_true(weft_all_gather_start(w, NULL, a, b, 3, WEFT_F32, &request) >= 0);
    assert_int_equal(weft_request_test(request), WEFT_OK);
    assert_true(weft_barrier(w, NULL) >= 0);
    end(&t);
}

/* ---- many at a time ---- */

enum { STARTED = 40 };

static void start_many(ranks_test *t, int rank) {
    weft_world *w = t->world[rank];
    static int64_t source[MOST][STARTED][5], sum[MOST][STARTED][5];
    weft_request *request[STARTED] = {NULL};
    for (int n = 0; n < STARTED; n++) {
        for (int i = 0; i < 5; i++) source[rank][n][i] = n * 100 + i + rank;
        if (!good(t, rank,
                  weft_all_reduce_start(w, NULL, source[rank][n], sum[rank][n], 5, WEFT_I64,
                                        WEFT_REDUCE_SUM, &request[n])))
            return;
    }
    for (int k = 0; k < STARTED; k++) { /* in an order of this rank's own, some by tests */
        int n = (k * 7 + rank * 11) % STARTED;
        weft_status status = WEFT_PENDING;
        while (k % 3 == 0 && status == WEFT_PENDING) status = weft_request_test(request[n]);
        if (status == WEFT_PENDING) status = weft_request_wait(request[n]);
        if (!good(t, rank, status)) return;
        for (int i = 0; i < 5; i++)
            if (sum[rank][n][i] != t->size * (n * 100 + i) + t->size * (t->size - 1) / 2) {
                (void)snprintf(t->message[rank], sizeof t->message[rank], "request %d is wrong", n);
                t->status[rank] = WEFT_E_BUG;
            }
    }
}

static void any_number_of_equal_calls_is_under_way(void **state) {
    (void)state;
    for (int size = 1; size <= MOST; size++) {
        ranks_test t;
        begin(&t, size);
        run(&t, start_many);
        all_good(&t);
        end(&t);
    }
}

/* More different calls than are kept bound, while some are under way. */
static void call_differently(ranks_test *t, int rank) {
    weft_world *w = t->world[rank];
    static float source[MOST][700], sum[MOST][700], early[MOST][3];
    weft_request *request = NULL;
    weft_group *group = NULL;
    for (int i = 0; i < 700; i++) source[rank][i] = (float)i;
    if (!good(t, rank, weft_group_create(w, (int[]){0, 1}, 2, &group))) return;
    if (!good(t, rank,
              weft_all_reduce_start(w, NULL, source[rank] + 1, early[rank], 3, WEFT_F32,
                                    WEFT_REDUCE_SUM, &request)))
        return;
    for (int round = 0; round < 2; round++)
        for (int n = 1; n < 600; n++) {
            if (!good(t, rank,
                      weft_all_reduce(w, n % 2 ? group : NULL, source[rank], sum[rank], n, WEFT_F32,
                                      WEFT_REDUCE_SUM)))
                return;
            if (sum[rank][n - 1] != (float)(2 * (n - 1))) t->status[rank] = WEFT_E_BUG;
        }
    if (w->collectives->kept > WEFTI_BOUND_KEPT) t->status[rank] = WEFT_E_BUG;
    if (!good(t, rank, weft_request_wait(request))) return;
    if (early[rank][2] != 6.0f) t->status[rank] = WEFT_E_BUG;
    int32_t kept = w->collectives->kept;
    weft_group_destroy(group);
    if (w->collectives->kept >= kept) t->status[rank] = WEFT_E_BUG;
}

static void bound_transfers_are_kept_up_to_a_bound(void **state) {
    (void)state;
    ranks_test t;
    begin(&t, 2);
    run(&t, call_differently);
    all_good(&t);
    end(&t);
}

/* ---- the order of a group ---- */

static void expect(ranks_test *t, int rank, bool right) {
    if (!right) t->status[rank] = WEFT_E_BUG;
}

/* Members count as the group was created: {2, 0} and {0, 2} are two groups of the same ranks, and
 * their calls do not meet. */
static void use_two_orders(ranks_test *t, int rank) {
    weft_world *w = t->world[rank];
    weft_group *down = NULL, *up = NULL;
    weft_request *first = NULL, *second = NULL;
    if (rank == 1) return;
    if (!good(t, rank, weft_group_create(w, (int[]){2, 0}, 2, &down)) ||
        !good(t, rank, weft_group_create(w, (int[]){0, 2}, 2, &up)))
        return;
    int me = rank == 2 ? 0 : 1;
    expect(t, rank, weft_group_rank(down) == me && weft_group_world_rank(down, 0) == 2);
    float mine[2] = {(float)(10 * rank), (float)(10 * rank + 1)}, of_down[4], of_up[4];
    for (int turn = 0; turn < 2; turn++) { /* rank 0 begins with the one, rank 2 with the other */
        bool is_down = (rank == 0) == (turn == 0);
        if (!good(t, rank,
                  weft_all_gather_start(w, is_down ? down : up, mine, is_down ? of_down : of_up, 2,
                                        WEFT_F32, turn ? &second : &first)))
            return;
    }
    if (!good(t, rank, weft_request_wait(first)) || !good(t, rank, weft_request_wait(second)))
        return;
    for (int i = 0; i < 4; i++) {
        expect(t, rank, of_down[i] == (float)(i < 2 ? 20 + i : i - 2));
        expect(t, rank, of_up[i] == (float)(i < 2 ? i : 18 + i));
    }
    float got = (float)rank;
    if (!good(t, rank, weft_broadcast(w, down, &got, 1, WEFT_F32, 0))) return;
    expect(t, rank, got == 2.0f);
    int64_t sent[2] = {me == 0 ? 1 : 2, me == 0 ? 2 : 1};
    int64_t taken[2] = {me == 0 ? 1 : 2, me == 0 ? 2 : 1};
    if (!good(t, rank,
              weft_all_to_all_v(w, down, (float[]){1, 2, 3}, sent, of_down, taken, WEFT_F32)))
        return;
    expect(t, rank, me == 0 ? of_down[1] == 1 && of_down[2] == 2 : of_down[0] == 2);
    if (!good(t, rank,
              me == 0 ? weft_send(w, down, mine, 1, WEFT_F32, 1, 7)
                      : weft_recv(w, down, &got, 1, WEFT_F32, 0, 7)))
        return;
    expect(t, rank, me == 0 || got == 20.0f);
    weft_group_destroy(down);
    weft_group_destroy(up);
}

static void a_group_has_the_order_that_it_was_created_with(void **state) {
    (void)state;
    ranks_test t;
    begin(&t, 3);
    run(&t, use_two_orders);
    all_good(&t);
    end(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(a_world_of_one_copies),
        cmocka_unit_test(any_number_of_equal_calls_is_under_way),
        cmocka_unit_test(bound_transfers_are_kept_up_to_a_bound),
        cmocka_unit_test(a_group_has_the_order_that_it_was_created_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
