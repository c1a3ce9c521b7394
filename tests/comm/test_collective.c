/* Collectives on buffers: wrong arguments are refused before any rank waits; an error names ranks
 * that make different calls, with the call's number; any number of started calls may end in any
 * order; failed allocations leave nothing behind. The conformance suite checks values. (weft-test:
 * threads) */
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "comm/collective/collective.h"

enum { MOST = 4 };

typedef struct ranks_test {
    weft_world *world[MOST];
    int size;
    void (*body)(struct ranks_test *t, int rank);
    char message[MOST][1024];
    weft_status status[MOST];
} ranks_test;

typedef struct rank_thread {
    ranks_test *t;
    int rank;
} rank_thread;

static void *run_rank(void *argument) {
    rank_thread *r = argument;
    r->t->body(r->t, r->rank);
    return NULL;
}

static void begin(ranks_test *t, int size) {
    wefti_comm *comm[MOST] = {NULL};
    *t = (ranks_test){.size = size};
    if (size > 1) assert_true(wefti_comm_threads(size, -1, comm) >= 0);
    for (int r = 0; r < size; r++)
        assert_true(wefti_world_create(comm[r], r, size, NULL, &t->world[r]) >= 0);
}
static void run(ranks_test *t, void (*body)(ranks_test *t, int rank)) {
    pthread_t thread[MOST];
    rank_thread argument[MOST];
    t->body = body;
    for (int r = 0; r < t->size; r++) {
        argument[r] = (rank_thread){t, r};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &argument[r]), 0);
    }
    for (int r = 0; r < t->size; r++) pthread_join(thread[r], NULL);
}
static void end(ranks_test *t) {
    for (int r = 0; r < t->size; r++) weft_world_leave(t->world[r]);
}

/* cmocka's assertions are for one thread: ranks keep their first failure instead. */
static bool good(ranks_test *t, int rank, weft_status status) {
    if (status >= 0) return true;
    if (t->status[rank] >= 0) {
        t->status[rank] = status;
        (void)snprintf(t->message[rank], sizeof t->message[rank], "%s", weft_error_message());
        weft_world_fail(t->world[rank], "another rank's test failed");
    }
    return false;
}
static void all_good(const ranks_test *t) {
    for (int r = 0; r < t->size; r++)
        if (t->status[r] < 0) fail_msg("rank %d: %s", r, t->message[r]);
}

#define REFUSED(expression, text)                                                                  \
    do {                                                                                           \
        assert_true((expression) < 0);                                                             \
        if (!strstr(weft_error_message(), text)) fail_msg("%s", weft_error_message());             \
    } while (0)

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

/* ---- halos ---- */

/* Tiles of 3 planes, 4 x 3, of a plane that continues at its end if it is a ring. A rim without a
 * neighbour is zero, or absent where it is cut. */
typedef struct halo_case {
    int rows, columns;
    bool ring, cut;
    int64_t send[4], receive[4];
} halo_case;
static const halo_case *halo_now;
enum { PLANES = 3, HEIGHT = 4, WIDTH = 3, GROWN_MOST = PLANES * 12 * 12 };

static int64_t in_plane(const halo_case *c, int plane, int row, int column) {
    int height = c->rows * HEIGHT, width = c->columns * WIDTH;
    bool inside = row >= 0 && row < height && column >= 0 && column < width;
    if (!inside && !c->ring) return 0;
    return 1 + ((int64_t)plane * height + (row + height) % height) * width +
           (column + width) % width;
}

static weft_halo halo_of(const halo_case *c, int rank, const int64_t sizes[4]) {
    static const int down[] = {-1, -1, 0, 1, 1, 1, 0, -1}, right[] = {0, 1, 1, 1, 0, -1, -1, -1};
    weft_halo halo = weft_halo_on_grid(c->rows, c->columns, rank, sizes);
    for (int way = 0; way < 8 && c->ring; way++)
        halo.ranks[way] = (rank / c->columns + down[way] + c->rows) % c->rows * c->columns +
                          (rank % c->columns + right[way] + c->columns) % c->columns;
    for (int side = 0; side < 4 && c->cut; side++) { /* top, bottom, left, right */
        static const int way[] = {0, 4, 6, 2};
        if (halo.ranks[way[side]] < 0) halo.sizes[side] = 0;
    }
    return halo;
}

static void exchange_halo(ranks_test *t, int rank) {
    const halo_case *c = halo_now;
    int64_t tile[PLANES][HEIGHT][WIDTH], grown[GROWN_MOST], *at = grown;
    weft_halo send = halo_of(c, rank, c->send), receive = halo_of(c, rank, c->receive);
    int top = rank / c->columns * HEIGHT, left = rank % c->columns * WIDTH;
    weft_request *request;
    for (int p = 0; p < PLANES; p++)
        for (int i = 0; i < HEIGHT; i++)
            for (int j = 0; j < WIDTH; j++) tile[p][i][j] = in_plane(c, p, top + i, left + j);
    for (int i = 0; i < GROWN_MOST; i++) grown[i] = -1;
    if (!good(t, rank,
              weft_halo_exchange_start(t->world[rank], NULL, tile,
                                       (int64_t[]){PLANES, HEIGHT, WIDTH}, &send, grown, &receive,
                                       WEFT_I64, &request)) ||
        !good(t, rank, weft_request_wait(request)))
        return;
    const int64_t *s = receive.sizes;
    for (int p = 0; p < PLANES; p++)
        for (int64_t i = -s[0]; i < HEIGHT + s[1]; i++)
            for (int64_t j = -s[2]; j < WIDTH + s[3]; j++) {
                int64_t want = in_plane(c, p, top + (int)i, left + (int)j), got = *at++;
                if (got == want || t->status[rank] < 0) continue;
                t->status[rank] = WEFT_E_BUG;
                (void)snprintf(t->message[rank], sizeof t->message[rank],
                               "%d x %d: [%d, %d, %d] is %lld, not %lld", c->rows, c->columns, p,
                               (int)i, (int)j, (long long)got, (long long)want);
            }
    if (*at != -1 && t->status[rank] >= 0) t->status[rank] = WEFT_E_BUG; /* beyond the end */
}

static void halos_are_those_of_the_plane(void **state) {
    (void)state;
    static const halo_case cases[] = {
        {2, 2, false, false, {1, 1, 1, 1}, {1, 1, 1, 1}},
        {2, 2, false, true, {2, 1, 0, 3}, {1, 2, 3, 0}},
        {2, 2, true, false, {2, 1, 3, 1}, {1, 2, 1, 3}},
        {1, 4, false, true, {0, 0, 1, 2}, {0, 0, 2, 1}},
        {3, 1, false, false, {4, 2, 1, 1}, {2, 4, 1, 1}},
        {1, 2, true, false, {1, 1, 1, 2}, {1, 1, 2, 1}}, /* both sides are the same neighbour */
        {1, 1, true, false, {1, 2, 1, 1}, {2, 1, 1, 1}}, /* or the tile itself */
        {1, 1, false, false, {0, 0, 0, 0}, {1, 1, 1, 1}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ranks_test t;
        halo_now = &cases[k];
        begin(&t, cases[k].rows * cases[k].columns);
        run(&t, exchange_halo);
        all_good(&t);
        end(&t);
    }
}

static void wrong_halos_are_refused(void **state) {
    (void)state;
    ranks_test t;
    begin(&t, 2);
    weft_world *w = t.world[0];
    float a[6] = {0}, b[60];
    int64_t one[4] = {1, 1, 1, 1}, shape[3] = {1, 2, 3}, wrong[3] = {1, -2, 3};
    weft_halo right = weft_halo_on_grid(2, 1, 0, one), large = right, outside = right;
    large.sizes[1] = 3;
    outside.ranks[2] = 2;
    REFUSED(weft_halo_exchange(w, NULL, a, NULL, &right, b, &right, WEFT_F32), "no shape is given");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &right, b, NULL, WEFT_F32), "no halo to receive");
    REFUSED(weft_halo_exchange(w, NULL, a, wrong, &right, b, &right, WEFT_F32),
            "dimension 1 of the tile has -2 elements");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &large, b, &right, WEFT_F32),
            "a tile of 2 x 3 does not have the 3 rows");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &outside, b, &right, WEFT_F32),
            "sent to the right, member 2; there are 0 to 1");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &right, a, &right, WEFT_F32), "overlap");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &right, b, &right, (weft_dtype)77), "dtype 77");
    REFUSED(weft_halo_exchange(w, NULL, NULL, shape, &right, b, &right, WEFT_F32), "no source");
    end(&t);
}

static void who_is_not_on_the_grid_has_no_neighbours(void **state) {
    (void)state;
    static const int grids[][3] = {{2, 2, 4}, {2, 2, 5}, {2, 2, -1}, {3, 0, 0}, {0, 3, 0}};
    for (size_t k = 0; k < sizeof grids / sizeof *grids; k++) {
        weft_halo halo =
            weft_halo_on_grid(grids[k][0], grids[k][1], grids[k][2], (int64_t[]){1, 2, 3, 4});
        for (int way = 0; way < 8; way++) assert_int_equal(halo.ranks[way], -1);
        assert_int_equal(halo.sizes[2], 3);
    }
}

/* ---- ranks that do not do the same ---- */

static void keep(ranks_test *t, int rank, weft_status status) {
    t->status[rank] = status;
    (void)snprintf(t->message[rank], sizeof t->message[rank], "%s", weft_error_message());
}

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
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(a_world_of_one_copies),
        cmocka_unit_test(any_number_of_equal_calls_is_under_way),
        cmocka_unit_test(bound_transfers_are_kept_up_to_a_bound),
        cmocka_unit_test(a_group_has_the_order_that_it_was_created_with),
        cmocka_unit_test(halos_are_those_of_the_plane),
        cmocka_unit_test(wrong_halos_are_refused),
        cmocka_unit_test(who_is_not_on_the_grid_has_no_neighbours),
        cmocka_unit_test(ranks_that_differ_are_named),
        cmocka_unit_test(the_call_that_differs_is_numbered),
        cmocka_unit_test(failures_of_memory_leave_nothing_behind),
        cmocka_unit_test(calls_may_be_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
