/* Parallelism by hand, in plans of mode manual: two layers whose hidden units are shared out, the
 * first weight by columns and the second by rows, the sum of their results in the graph; and
 * samples shared out, with the gradients' sum in the graph. Twenty steps give the losses and the
 * weights that one device has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "weft/ops.h"
#include "weft/plan.h"
#include "weft/session.h"

#define ASSERT_OK(expr)                                                                            \
    do {                                                                                           \
        weft_status status_ = (expr);                                                              \
        if (status_ < 0) fail_msg("%s: %s", #expr, weft_error_message());                          \
    } while (0)

#include "world_fixture.h"

enum { RANKS = 4, ROWS = 8, IN = 6, HIDDEN = 12, OUT = 5, STEPS = 20, MOST = IN * HIDDEN };

typedef enum what { UNITS, SAMPLES } what; /* that are shared out */

typedef struct outcome {
    double loss[STEPS], w1[MOST], w2[HIDDEN * OUT];
} outcome;

typedef struct member {
    what what;
    int ranks, rank; /* one rank: nothing is shared out */
    outcome out;
} member;

static int units_of(const member *m) {
    return m->what == UNITS ? HIDDEN / m->ranks : HIDDEN;
}

static int rows_of(const member *m) {
    return m->what == SAMPLES ? ROWS / m->ranks : ROWS;
}

/* A weight that all ranks have alike, whose gradient is the mean of theirs. */
static weft_value averaged(weft_graph *g, const member *m, weft_value w) {
    if (m->what == UNITS || m->ranks == 1) return w;
    return weft_scale(g, weft_graph_all_reduce(g, w, (weft_ranks){RANKS, 1}, WEFT_REDUCE_SUM),
                      1.0 / RANKS);
}

/* The loss of the whole is the sum over ranks: of shares of the one loss, or of means of as many
 * samples, whose gradients `averaged` divides. */
static weft_status make_graph(const member *m, weft_graph **out) {
    weft_graph *g;
    weft_init zeros = {WEFT_INIT_ZEROS, 0};
    int64_t units = units_of(m), rows = rows_of(m);
    TRY(weft_graph_create(&g));
    *out = g;
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F64, 2, (int64_t[]){rows, IN}));
    weft_value t = weft_input(g, "t", weft_desc_of(WEFT_F64, 2, (int64_t[]){rows, OUT}));
    weft_value w1 = weft_param(g, "w1", weft_desc_of(WEFT_F64, 2, (int64_t[]){IN, units}), zeros);
    weft_value w2 = weft_param(g, "w2", weft_desc_of(WEFT_F64, 2, (int64_t[]){units, OUT}), zeros);
    w1 = averaged(g, m, w1);
    w2 = averaged(g, m, w2);
    weft_value y = weft_tanh(g, weft_linear(g, x, w1, WEFT_NO_VALUE, false));
    y = weft_linear(g, y, w2, WEFT_NO_VALUE, false);
    bool sum = m->what == UNITS && m->ranks > 1;
    if (sum) y = weft_graph_all_reduce(g, y, (weft_ranks){RANKS, 1}, WEFT_REDUCE_SUM);
    weft_value loss = weft_mse(g, y, t);
    weft_loss(g, sum ? weft_scale(g, loss, 1.0 / RANKS) : loss);
    return weft_graph_status(g);
}

static double value_at(int64_t row, int64_t column, int kind) {
    return sin(1.0 + (double)row * 1.7 + (double)column * 0.9 + kind * 2.3);
}

/* The block of a matrix that begins at a row and a column. */
static weft_status fill(weft_session *s, const char *name, int64_t row, int64_t column, int kind) {
    weft_session_part part;
    TRY(weft_session_local(s, 0, name, &part));
    double *to = part.data;
    for (int64_t i = 0; i < part.size[0]; i++)
        for (int64_t j = 0; j < part.size[1]; j++) *to++ = value_at(row + i, column + j, kind);
    return WEFT_OK;
}

static weft_status run_steps(weft_session *s, member *m) {
    int64_t unit = m->what == UNITS ? m->rank * units_of(m) : 0;
    int64_t row = m->what == SAMPLES ? m->rank * rows_of(m) : 0;
    weft_session_part part;
    TRY(fill(s, "w1", 0, unit, 0));
    TRY(fill(s, "w2", unit, 0, 1));
    for (int step = 0; step < STEPS; step++) {
        TRY(fill(s, "x", row + step * 10, 0, 2));
        TRY(fill(s, "t", row + step * 10, 0, 3));
        TRY(weft_session_step(s, 0.1, &m->out.loss[step]));
    }
    TRY(weft_session_local(s, 0, "w1", &part));
    memcpy(m->out.w1, part.data, (size_t)part.bytes);
    TRY(weft_session_local(s, 0, "w2", &part));
    memcpy(m->out.w2, part.data, (size_t)part.bytes);
    return WEFT_OK;
}

static weft_status run_member(void *context, weft_world *world) {
    member *m = context;
    weft_session_options o = weft_session_defaults();
    weft_graph *g = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    o.optimizer = (weft_optimizer){.kind = WEFT_SGD};
    o.threads = 1;
    o.world = world;
    weft_status status = weft_plan_create(m->ranks, &plan);
    if (status >= 0 && m->ranks > 1) status = weft_plan_mode(plan, WEFT_PARALLEL_MANUAL);
    o.plan = plan;
    if (status >= 0) status = make_graph(m, &g);
    if (status >= 0) status = weft_session_create(g, &o, &s);
    if (status >= 0) status = run_steps(s, m);
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return status;
}

static void assert_near(const char *name, int rank, int64_t at, double is, double want) {
    if (!(fabs(is - want) <= 1e-11))
        fail_msg("rank %d: %s[%d] is %.17g, not %.17g", rank, name, (int)at, is, want);
}

static void assert_equal(const member *m, const outcome *whole) {
    int units = units_of(m), first = m->what == UNITS ? m->rank * units : 0;
    for (int i = 0; i < IN; i++)
        for (int j = 0; j < units; j++)
            assert_near("w1", m->rank, i * units + j, m->out.w1[i * units + j],
                        whole->w1[i * HIDDEN + first + j]);
    for (int i = 0; i < units * OUT; i++)
        assert_near("w2", m->rank, i, m->out.w2[i], whole->w2[first * OUT + i]);
}

static void run_way(what way) {
    static member one, members[RANKS];
    rank_of_world ranks[RANKS];
    one = (member){.what = way, .ranks = 1};
    ASSERT_OK(run_member(&one, NULL));
    for (int r = 0; r < RANKS; r++) members[r] = (member){.what = way, .ranks = RANKS, .rank = r};
    run_world(RANKS, run_member, members, sizeof *members, ranks);
    assert_all_ok(ranks, RANKS, way == UNITS ? "hidden units" : "samples");
    for (int step = 0; step < STEPS; step++) {
        double sum = 0;
        for (int r = 0; r < RANKS; r++) sum += members[r].out.loss[step];
        assert_near("loss", 0, step, way == UNITS ? sum : sum / RANKS, one.out.loss[step]);
    }
    for (int r = 0; r < RANKS; r++) assert_equal(&members[r], &one.out);
}

static void hidden_units_shared_out(void **state) {
    (void)state;
    run_way(UNITS);
}

static void samples_shared_out(void **state) {
    (void)state;
    run_way(SAMPLES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_units_shared_out),
        cmocka_unit_test(samples_shared_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
