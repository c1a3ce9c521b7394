/* Collectives in graphs: four ranks with their own parameters and inputs run the same graph. The
 * test compares the result of each op with its definition. It compares each gradient with finite
 * differences of the sum of all ranks' losses. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "weft/ops.h"
#include "weft/plan.h"
#include "weft/session.h"

#include "world_fixture.h"

enum { RANKS = 4, ROWS = 4, COLUMNS = 3, ELEMS = ROWS * COLUMNS, MOST = ELEMS * RANKS };

typedef enum op_kind {
    SUM,
    MAX,
    MIN,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE,
    PERMUTE,
    MESSAGE,
    NEIGHBORS,
    HALO,
    OPS
} op_kind;

typedef struct group_case {
    op_kind op;
    weft_ranks group;
} group_case;

/* The member from which each member receives. Of four members, one receives nothing, and one sends
 * nothing. */
static const int *from_whom(int n) {
    static const int of_two[] = {1, -1}, of_four[] = {2, -1, 1, 0};
    return n == 2 ? of_two : of_four;
}

/* Members send the upper and the lower half of x, but member 0 sends its lower half to nobody. If
 * two members send each other both halves, blocks arrive in the order in which they were sent. */
static const struct {
    int send[8], receive[8];
    int member[8], block[8]; /* the sender and the block that are received; -1: none */
} neighbors[] = {
    {{1, -1, 0, 0}, {1, 1, 0, -1}, {1, 1, 0, -1}, {0, 1, 0}},
    {{1, -1, 2, 0, 3, 1, 0, 2},
     {1, 3, 2, 0, 3, 1, -1, 2},
     {1, 3, 2, 0, 3, 1, -1, 2},
     {1, 0, 1, 0, 1, 0, 0, 0}},
};

static weft_value exchange_halves(weft_graph *g, weft_value x, weft_ranks group) {
    int n = group.count == 4;
    weft_value half[2] = {weft_slice(g, x, 0, 0, ROWS / 2), weft_slice(g, x, 0, ROWS / 2, ROWS)};
    weft_value got[2];
    weft_desc d = weft_value_desc(g, half[0]), shapes[2] = {d, d};
    weft_graph_neighbor_exchange(g, group, half, 2, neighbors[n].send, shapes, 2,
                                 neighbors[n].receive, got);
    return weft_concat(g, 2, got, 0);
}

/* Tiles below each other, or two by two; a rim of one row above, two below, one column left. */
enum { ABOVE = 1, BELOW = 2, LEFT = 1, GROWN_ROWS = ROWS + ABOVE + BELOW, GROWN = COLUMNS + LEFT };

static weft_value exchange_halos(weft_graph *g, weft_value x, weft_ranks group) {
    weft_halo send[RANKS], receive[RANKS];
    for (int m = 0; m < group.count; m++) {
        send[m] =
            weft_halo_on_grid(2, group.count / 2, m, (const int64_t[]){BELOW, ABOVE, 0, LEFT});
        receive[m] =
            weft_halo_on_grid(2, group.count / 2, m, (const int64_t[]){ABOVE, BELOW, LEFT, 0});
    }
    return weft_graph_halo_exchange(g, x, group, send, receive);
}

static weft_value apply(weft_graph *g, const group_case *c, weft_value x) {
    switch (c->op) {
    case SUM:
        return weft_graph_all_reduce(g, x, c->group, WEFT_REDUCE_SUM);
    case MAX:
        return weft_graph_all_reduce(g, x, c->group, WEFT_REDUCE_MAX);
    case MIN:
        return weft_graph_all_reduce(g, x, c->group, WEFT_REDUCE_MIN);
    case GATHER:
        return weft_graph_all_gather(g, x, c->group);
    case SCATTER:
        return weft_graph_reduce_scatter(g, x, c->group);
    case ALL_TO_ALL:
        return weft_graph_all_to_all(g, x, c->group, 0, 1);
    case BROADCAST:
        return weft_graph_broadcast(g, x, c->group, 1);
    case REDUCE:
        return weft_graph_reduce(g, x, c->group, 1);
    case PERMUTE:
        return weft_graph_permute(g, x, c->group, from_whom(c->group.count));
    case NEIGHBORS:
        return exchange_halves(g, x, c->group);
    case HALO:
        return exchange_halos(g, x, c->group);
    default:
        return weft_graph_send(g, x, c->group, 1, 0);
    }
}

/* Element k of what `rank` gets, x[r] being what rank r gives. */
static double expected(const group_case *c, int rank, double x[RANKS][ELEMS], int k) {
    int n = c->group.count, stride = c->group.stride, me = rank / stride % n;
    int first = rank / (n * stride) * n * stride + rank % stride, part = ELEMS / n;
    double sum = 0, high = -INFINITY, low = INFINITY;
    int at = c->op == SCATTER ? me * part + k : c->op == GATHER ? k % ELEMS : k;
    for (int m = 0; m < n && at < ELEMS; m++) {
        sum += x[first + m * stride][at];
        high = fmax(high, x[first + m * stride][at]);
        low = fmin(low, x[first + m * stride][at]);
    }
    int row, column, from, columns = n / 2, table = n == 4;
    switch (c->op) {
    case SUM:
    case SCATTER:
        return sum;
    case MAX:
        return high;
    case MIN:
        return low;
    case GATHER:
        return x[first + k / ELEMS * stride][k % ELEMS];
    case ALL_TO_ALL: /* [rows / n, n columns]: column block m is of member m */
        row = k / (COLUMNS * n), column = k % (COLUMNS * n), from = column / COLUMNS;
        return x[first + from * stride][(me * (ROWS / n) + row) * COLUMNS + column % COLUMNS];
    case BROADCAST:
        return x[first + stride][k];
    case REDUCE:
        return me == 1 ? sum : 0.0;
    case PERMUTE:
        from = from_whom(n)[me];
        return from < 0 ? 0.0 : x[first + from * stride][k];
    case NEIGHBORS:
        at = 2 * me + k / (ELEMS / 2);
        from = neighbors[table].member[at];
        return from < 0 ? 0.0
                        : x[first + from * stride]
                           [neighbors[table].block[at] * (ELEMS / 2) + k % (ELEMS / 2)];
    case HALO: /* in the plane of all tiles */
        row = me / columns * ROWS + k / GROWN - ABOVE;
        column = me % columns * COLUMNS + k % GROWN - LEFT;
        if (row < 0 || row >= 2 * ROWS || column < 0) return 0.0;
        from = row / ROWS * columns + column / COLUMNS;
        return x[first + from * stride][row % ROWS * COLUMNS + column % COLUMNS];
    default:
        return me == 0 ? x[first + stride][k] : 0.0;
    }
}

static int result_elems(const group_case *c) {
    return c->op == GATHER    ? ELEMS * c->group.count
           : c->op == SCATTER ? ELEMS / c->group.count
           : c->op == HALO    ? GROWN_ROWS * GROWN
                              : ELEMS;
}

/* loss = sum(c * op(w^2)) + sum(w^2) / 8, all in f64. */
static weft_status make_graph(const group_case *c, weft_graph **out) {
    weft_graph *g;
    weft_status status = weft_graph_create(&g);
    if (status < 0) return status;
    weft_desc shape = weft_desc_of(WEFT_F64, 2, (int64_t[]){ROWS, COLUMNS});
    weft_value w = weft_param(g, "w", shape, (weft_init){WEFT_INIT_NORMAL, 1});
    weft_value x = weft_mul(g, w, w), y = apply(g, c, x);
    weft_value factor = weft_input(g, "c", weft_value_desc(g, y));
    weft_value loss = weft_add(g, weft_sum(g, weft_mul(g, y, factor), 0, NULL, false),
                               weft_scale(g, weft_sum(g, x, 0, NULL, false), 0.125));
    weft_output(g, "y", y);
    weft_output(g, "mine", weft_reshape(g, loss, 1, (int64_t[]){1}));
    weft_loss(g, loss);
    *out = g;
    return weft_graph_status(g);
}

typedef struct rank_run {
    const group_case *c;
    int rank;
    char wrong[200];
} rank_run;

static double weight(int rank, int i) { /* no two are equal in size: maxima are unique */
    double size = 0.3 + 0.07 * ((i * 5 + rank * 11) % 53);
    return i % 2 ? -size : size;
}
static double factor(int rank, int k) {
    return 0.5 + 0.25 * ((k * 3 + rank * 7) % 11) - 1.0;
}

static weft_status local(weft_session *s, const char *name, double **out, int64_t elems) {
    weft_session_part part;
    weft_status status = weft_session_local(s, 0, name, &part);
    if (status < 0) return status;
    if (part.bytes != elems * (int64_t)sizeof **out) return WEFT_E_BUG;
    *out = part.data;
    return WEFT_OK;
}

/* The sum of all ranks' losses with one parameter moved. */
static weft_status total(weft_session *s, const rank_run *r, weft_world *world, int rank, int i,
                         double by, double *out) {
    double *w, *mine;
    TRY(local(s, "w", &w, ELEMS));
    for (int k = 0; k < ELEMS; k++) w[k] = weight(r->rank, k);
    if (r->rank == rank) w[i] += by;
    TRY(weft_session_accumulate(s, NULL));
    TRY(local(s, "mine", &mine, 1));
    return weft_all_reduce(world, NULL, mine, out, 1, WEFT_F64, WEFT_REDUCE_SUM);
}

static weft_status check_values(weft_session *s, rank_run *r) {
    double x[RANKS][ELEMS], *y;
    int count = result_elems(r->c);
    TRY(local(s, "y", &y, count));
    for (int q = 0; q < RANKS; q++)
        for (int i = 0; i < ELEMS; i++) x[q][i] = weight(q, i) * weight(q, i);
    for (int k = 0; k < count; k++) {
        double want = expected(r->c, r->rank, x, k);
        if (fabs(y[k] - want) > 1e-12 * (1 + fabs(want)))
            (void)snprintf(r->wrong, sizeof r->wrong, "element %d is %.15g, not %.15g", k, y[k],
                           want);
    }
    return WEFT_OK;
}

static weft_status run_session(weft_session *s, rank_run *r, weft_world *world) {
    double values[MOST], gradient[ELEMS], *found, loss, more, less;
    int count = result_elems(r->c);
    for (int k = 0; k < count; k++) values[k] = factor(r->rank, k);
    TRY(weft_session_feed_local(s, 0, "c", values, (size_t)count * sizeof *values));
    TRY(total(s, r, world, -1, 0, 0, &loss));
    TRY(check_values(s, r));
    TRY(local(s, "grad:w", &found, ELEMS));
    memcpy(gradient, found, sizeof gradient);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < ELEMS; i += 1 + rank % 2) {
            double h = 1e-5;
            TRY(weft_session_update(s, 0, NULL));
            TRY(weft_session_feed_local(s, 0, "c", values, (size_t)count * sizeof *values));
            TRY(total(s, r, world, rank, i, h, &more));
            TRY(weft_session_update(s, 0, NULL));
            TRY(weft_session_feed_local(s, 0, "c", values, (size_t)count * sizeof *values));
            TRY(total(s, r, world, rank, i, -h, &less));
            double want = (more - less) / (2 * h);
            if (rank == r->rank && fabs(gradient[i] - want) > 1e-6 * (1 + fabs(want)))
                (void)snprintf(r->wrong, sizeof r->wrong, "gradient %d is %.10g, not %.10g", i,
                               gradient[i], want);
        }
    return WEFT_OK;
}

static weft_status run_rank(void *context, weft_world *world) {
    rank_run *r = context;
    weft_session_options o = weft_session_defaults();
    weft_graph *g = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    r->rank = weft_world_rank(world);
    o.optimizer = (weft_optimizer){.kind = WEFT_SGD};
    o.keep_gradients = true;
    o.threads = 1;
    o.world = world;
    weft_status status = weft_plan_create(RANKS, &plan);
    if (status >= 0) status = weft_plan_mode(plan, WEFT_PARALLEL_MANUAL);
    o.plan = plan;
    if (status >= 0) status = make_graph(r->c, &g);
    if (status >= 0) status = weft_session_create(g, &o, &s);
    if (status >= 0) status = run_session(s, r, world);
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return status;
}

static void values_and_gradients(void **state) {
    (void)state;
    static const weft_ranks groups[] = {{4, 1}, {2, 1}, {2, 2}};
    for (int op = 0; op < OPS; op++)
        for (int k = 0; k < 3; k++) {
            group_case c = {(op_kind)op, groups[k]};
            rank_run runs[RANKS] = {{.c = &c}, {.c = &c}, {.c = &c}, {.c = &c}};
            rank_of_world ranks[RANKS];
            char name[64];
            (void)snprintf(name, sizeof name, "op %d, groups of %d, %d apart", op, groups[k].count,
                           groups[k].stride);
            run_world(RANKS, run_rank, runs, sizeof *runs, ranks);
            assert_all_ok(ranks, RANKS, name);
            for (int r = 0; r < RANKS; r++)
                if (runs[r].wrong[0]) fail_msg("%s, rank %d: %s", name, r, runs[r].wrong);
        }
}

/* ---- refused calls ---- */

static weft_value product(weft_graph *g, weft_value x) {
    return weft_graph_all_reduce(g, x, (weft_ranks){4, 1}, WEFT_REDUCE_PROD);
}
static weft_value of_three(weft_graph *g, weft_value x) {
    return weft_graph_all_reduce(g, x, (weft_ranks){3, 1}, WEFT_REDUCE_SUM);
}

static weft_value taken_twice(weft_graph *g, weft_value x) {
    return weft_graph_permute(g, x, (weft_ranks){4, 1}, (int[]){1, 1, 0, 3});
}
static weft_value from_outside(weft_graph *g, weft_value x) {
    return weft_graph_permute(g, x, (weft_ranks){4, 1}, (int[]){4, -1, 0, 3});
}
static weft_value to_outside(weft_graph *g, weft_value x) {
    return weft_graph_send(g, x, (weft_ranks){2, 1}, 0, 2);
}
static weft_value exchange_of(weft_graph *g, weft_value x, int64_t elems, const int *send,
                              const int *receive) {
    weft_desc desc = weft_desc_of(WEFT_F32, 1, &elems);
    weft_value y;
    weft_graph_neighbor_exchange(g, (weft_ranks){4, 1}, &x, 1, send, &desc, 1, receive, &y);
    return y;
}
static weft_value not_sent(weft_graph *g, weft_value x) {
    return exchange_of(g, x, 4, (int[]){1, -1, -1, -1}, (int[]){-1, 0, 0, -1});
}
static weft_value not_received(weft_graph *g, weft_value x) {
    return exchange_of(g, x, 4, (int[]){1, 3, -1, -1}, (int[]){-1, 0, -1, -1});
}
static weft_value of_another_shape(weft_graph *g, weft_value x) {
    return exchange_of(g, x, 5, (int[]){1, -1, -1, -1}, (int[]){-1, 0, -1, -1});
}
static weft_value of_no_member(weft_graph *g, weft_value x) {
    return exchange_of(g, x, 4, (int[]){1, 4, -1, -1}, (int[]){-1, 0, -1, -1});
}
/* Of tiles of 2 x 2, two by two, with one thing wrong. */
static weft_value halo_of(weft_graph *g, weft_value x, int way, int rank, int64_t size) {
    weft_halo send[RANKS], receive[RANKS];
    for (int m = 0; m < RANKS; m++)
        send[m] = receive[m] = weft_halo_on_grid(2, 2, m, (const int64_t[]){1, 1, 1, 1});
    receive[1].ranks[way] = rank;
    for (int m = 0; m < RANKS; m++) receive[m].sizes[0] = size;
    x = weft_reshape(g, x, 2, (const int64_t[]){2, 2});
    return weft_graph_halo_exchange(g, x, (weft_ranks){4, 1}, send, receive);
}
static weft_value halo_from_elsewhere(weft_graph *g, weft_value x) {
    return halo_of(g, x, 6, 2, 1);
}
static weft_value halo_from_outside(weft_graph *g, weft_value x) {
    return halo_of(g, x, 2, 4, 1);
}
static weft_value halo_of_another_size(weft_graph *g, weft_value x) {
    return halo_of(g, x, 6, 0, 2);
}

static weft_status refuse(void *context, weft_world *world) {
    weft_value (*op)(weft_graph *, weft_value) = *(weft_value(**)(weft_graph *, weft_value))context;
    weft_session_options o = weft_session_defaults();
    weft_graph *g = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    o.threads = 1;
    o.world = world;
    weft_status status = weft_plan_create(RANKS, &plan);
    if (status >= 0) status = weft_plan_mode(plan, WEFT_PARALLEL_MANUAL);
    if (status >= 0) status = weft_graph_create(&g);
    if (status >= 0) {
        weft_value w = weft_param(g, "w", weft_desc_of(WEFT_F32, 1, (int64_t[]){4}),
                                  (weft_init){WEFT_INIT_NORMAL, 1});
        weft_loss(g, weft_sum(g, op(g, w), 0, NULL, false));
        o.plan = plan;
        status = weft_session_create(g, &o, &s);
    }
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return status;
}

static void refused(weft_value (*op)(weft_graph *, weft_value), const char *text) {
    weft_value (*ops[RANKS])(weft_graph *, weft_value) = {op, op, op, op};
    rank_of_world ranks[RANKS];
    run_world(RANKS, refuse, ops, sizeof *ops, ranks);
    int said = 0;
    for (int r = 0; r < RANKS; r++) {
        assert_true(ranks[r].status < 0);
        said += has_facts(ranks[r].message, text);
    }
    if (!said) fail_msg("nobody says \"%s\": %s", text, ranks[0].message);
}

static void impossible_ones_are_refused(void **state) {
    (void)state;
    refused(product, "prod");
    refused(taken_twice, "members 1|member 1");
    refused(from_outside, "member 0|member 4|0|3");
    refused(to_outside, "member 0|member 2|2");
    refused(not_sent, "member 2|member 0|block 0");
    refused(not_received, "member 1|member 3|block 0");
    refused(of_another_shape, "f32[5]|f32[4]");
    refused(of_no_member, "member 4|0|3");
    refused(halo_from_elsewhere, "member 0|member 1");
    refused(halo_from_outside, "member 4|0|3");
    refused(halo_of_another_size, "1|2 elements|2");
    refused(of_three, "3 ranks|1|4");
}

/* Without a world there is nobody to communicate with, and nothing is made up. */
static void one_process_alone_is_refused(void **state) {
    (void)state;
    weft_graph *g;
    weft_session *s = NULL;
    weft_session_options o = weft_session_defaults();
    ASSERT_OK(weft_graph_create(&g));
    weft_value w = weft_param(g, "w", weft_desc_of(WEFT_F32, 1, (int64_t[]){4}),
                              (weft_init){WEFT_INIT_NORMAL, 1});
    weft_loss(g, weft_sum(g, weft_graph_all_gather(g, w, (weft_ranks){2, 1}), 0, NULL, false));
    weft_status status = weft_session_create(g, &o, &s);
    if (status >= 0) status = weft_session_step(s, 0.1, NULL);
    assert_int_equal(status, WEFT_E_NO_IMPL);
    if (!has_facts(weft_error_message(), "groups of 2 ranks")) fail_msg("%s", weft_error_message());
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients),
        cmocka_unit_test(impossible_ones_are_refused),
        cmocka_unit_test(one_process_alone_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
