/* Parallelism by hand, in plans of mode manual. UNITS: two layers split their hidden units, the
 * first weight by columns and the second by rows, and the graph sums their results. SAMPLES: ranks
 * split the samples, and the graph sums the gradients. Twenty steps give the losses and the weights
 * of one device. They also do so when the slices that four ranks saved after ten steps are joined
 * and cut for two ranks, which continue. In a pipeline, the ranks at equal places of all stages act
 * as one rank. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "checkpoint/safetensors.h"
#include "weft/checkpoint.h"
#include "weft/collective.h"
#include "weft/ops.h"
#include "weft/plan.h"
#include "weft/session.h"

#include "world_fixture.h"

enum { RANKS = 4, ROWS = 8, IN = 6, HIDDEN = 12, OUT = 5, STEPS = 20, MOST = IN * HIDDEN };

typedef enum what { UNITS, SAMPLES } what; /* that are shared out */

typedef struct outcome {
    double loss[STEPS], norm[STEPS], w1[MOST], w2[HIDDEN * OUT], tied;
} outcome;

typedef struct member {
    what what;
    int ranks, rank; /* one rank: nothing is shared out */
    int stages;      /* of a pipeline; 0: none */
    int micro;       /* batches of a step; 0: one */
    weft_schedule schedule;
    outcome out;
    bool momentum;
    int from, to; /* steps; to 0: all */
    const char *load, *save;
    const char *load_dir, *save_dir; /* steps of a run, in place of files of slices */
    bool sliced;
    bool lost; /* not all of them have a file to load */
    int bad;   /* the step in which a number of rank `bad_rank`'s samples is NaN; 0: none */
    int bad_rank;
    bool root; /* each rank has a parameter of its own; its gradient is inf on rank 2 */
    double clip;
    bool tied;  /* both cells, and stages, read a parameter */
    bool wide;  /* groups are of ranks of several stages */
    bool apart; /* nothing is averaged: replicas go their own ways */
} member;

/* The number of ranks that split something among them: the ranks of one stage. */
static int sharers(const member *m) {
    return m->stages ? m->ranks / m->stages : m->ranks;
}

static int place_of(const member *m) {
    return m->rank % sharers(m);
}

static int units_of(const member *m) {
    return m->what == UNITS ? HIDDEN / sharers(m) : HIDDEN;
}

static int rows_of(const member *m) {
    return m->what == SAMPLES ? ROWS / sharers(m) : ROWS;
}

static weft_ranks group_of(const member *m) {
    return (weft_ranks){m->wide ? m->ranks : sharers(m), 1};
}

/* A weight that is equal on all ranks. Its gradient is the mean of the ranks' gradients. */
static weft_value averaged(weft_graph *g, const member *m, weft_value w) {
    if (m->what == UNITS || sharers(m) == 1 || m->apart) return w;
    return weft_scale(g, weft_graph_all_reduce(g, w, group_of(m), WEFT_REDUCE_SUM),
                      1.0 / sharers(m));
}

/* The loss of the whole is the sum over ranks. UNITS: the sum of shares of one loss. SAMPLES: the
 * sum of means over equally many samples; `averaged` divides their gradients. */
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
    weft_value w3 = WEFT_NO_VALUE, tied = WEFT_NO_VALUE;
    if (m->root) w3 = weft_param(g, "w3", weft_desc_of(WEFT_F64, 1, (int64_t[]){1}), zeros);
    if (m->tied) tied = weft_param(g, "tied", weft_desc_of(WEFT_F64, 2, (int64_t[]){1, 1}), zeros);
    weft_cell_begin(g, "first");
    w1 = averaged(g, m, w1);
    weft_value y = weft_linear(g, x, w1, WEFT_NO_VALUE, false);
    if (m->tied) y = weft_add(g, y, averaged(g, m, tied));
    y = weft_cell_end(g, weft_tanh(g, y));
    weft_cell_begin(g, "second");
    w2 = averaged(g, m, w2);
    if (m->tied) y = weft_add(g, y, averaged(g, m, tied));
    y = weft_linear(g, y, w2, WEFT_NO_VALUE, false);
    bool sum = m->what == UNITS && sharers(m) > 1;
    if (sum) y = weft_graph_all_reduce(g, y, group_of(m), WEFT_REDUCE_SUM);
    weft_value loss = weft_mse(g, y, t);
    if (m->root) loss = weft_add(g, loss, weft_sum(g, weft_sqrt(g, w3), 0, NULL, false));
    weft_loss(g, weft_cell_end(g, sum ? weft_scale(g, loss, 1.0 / sharers(m)) : loss));
    return weft_graph_status(g);
}

static double value_at(int64_t row, int64_t column, int kind) {
    return sin(1.0 + (double)row * 1.7 + (double)column * 0.9 + kind * 2.3);
}

/* The block of a matrix that begins at a row and a column. Does nothing if another stage has the
 * matrix. */
static weft_status fill(weft_session *s, const char *name, int64_t row, int64_t column, int kind) {
    weft_session_part part;
    TRY(weft_session_local(s, 0, name, &part));
    double *to = part.data;
    if (!to) return WEFT_OK;
    for (int64_t i = 0; i < part.size[0]; i++)
        for (int64_t j = 0; j < part.size[1]; j++) *to++ = value_at(row + i, column + j, kind);
    return WEFT_OK;
}

static weft_status feed(weft_session *s, const member *m, int step, int batch) {
    int64_t row = m->what == SAMPLES ? place_of(m) * rows_of(m) : 0;
    weft_session_part part;
    TRY(fill(s, "x", row + (batch * STEPS + step) * 10, 0, 2));
    TRY(fill(s, "t", row + (batch * STEPS + step) * 10, 0, 3));
    if (!m->bad || m->bad != step || m->rank != m->bad_rank) return WEFT_OK;
    TRY(weft_session_local(s, 0, "t", &part));
    if (part.data) ((double *)part.data)[1] = NAN;
    return WEFT_OK;
}

static weft_status one_step(weft_session *s, member *m, int step) {
    double sum = 0, loss;
    if (m->micro <= 1) {
        TRY(feed(s, m, step, 0));
        return weft_session_step(s, 0.1, &m->out.loss[step]);
    }
    for (int batch = 0; batch < m->micro; batch++) {
        TRY(feed(s, m, step, batch));
        TRY(weft_session_accumulate(s, &loss));
        sum += loss;
    }
    m->out.loss[step] = m->stages ? loss : sum / m->micro;
    return weft_session_update(s, 0.1, &m->out.norm[step]);
}

static weft_status read_weight(weft_session *s, const char *name, double *out) {
    weft_session_part part;
    TRY(weft_session_local(s, 0, name, &part));
    if (part.data) memcpy(out, part.data, (size_t)part.bytes);
    return WEFT_OK;
}

/* Hidden units are columns of w1 and rows of w2; samples leave both whole. */
static weft_status say_splits(weft_session *s, const member *m) {
    if (m->ranks == 1) return WEFT_OK;
    TRY(weft_session_split(s, "*", -1, 0, 0));
    if (m->what == SAMPLES) return WEFT_OK;
    TRY(weft_session_split(s, "w1", 1, 0, 0));
    return weft_session_split(s, "w2", 0, sharers(m), 1);
}

static weft_status run_steps(weft_session *s, member *m) {
    int64_t unit = m->what == UNITS ? place_of(m) * units_of(m) : 0;
    weft_session_part part;
    TRY(fill(s, "w1", 0, unit, 0));
    TRY(fill(s, "w2", unit, 0, 1));
    if (m->tied) TRY(fill(s, "tied", 0, 0, 4));
    if (m->root) {
        TRY(weft_session_local(s, 0, "w3", &part));
        ((double *)part.data)[0] = m->rank == 2 ? 0 : 1; /* the root of 0 has slope inf */
    }
    if (m->load) TRY(weft_session_load_local(s, m->load));
    if (m->load_dir || m->save_dir) TRY(say_splits(s, m));
    if (m->load_dir) TRY(weft_session_load(s, m->load_dir, -1, NULL));
    for (int step = m->from; step < (m->to ? m->to : STEPS); step++) {
        if (weft_session_step_number(s) != step) return WEFT_E_BUG;
        TRY(one_step(s, m, step));
    }
    TRY(read_weight(s, "w1", m->out.w1));
    TRY(read_weight(s, "w2", m->out.w2));
    if (m->tied) TRY(read_weight(s, "tied", &m->out.tied));
    const weft_session_save_options how =
        WEFT_STRUCT(weft_session_save_options, .keep = 1, .sliced = m->sliced);
    if (m->save_dir) TRY(weft_session_save(s, m->save_dir, &how));
    return m->save ? weft_session_save_local(s, m->save) : WEFT_OK;
}

/* As programs do when they continue a run: a rank that lacks a slice tells the other ranks. */
static weft_status load_all_or_none(weft_session *s, weft_world *world, const member *m) {
    int32_t loaded = weft_session_load_local(s, m->load) >= 0, all;
    TRY(weft_all_reduce(world, NULL, &loaded, &all, 1, WEFT_I32, WEFT_REDUCE_MIN));
    return !all && loaded == (m->rank == 0) ? WEFT_OK : WEFT_E_BUG;
}

static weft_status make_plan(const member *m, weft_plan **out) {
    TRY(weft_plan_create(m->ranks, out));
    if (m->ranks > 1) TRY(weft_plan_mode(*out, WEFT_PARALLEL_MANUAL));
    if (!m->stages) return WEFT_OK;
    TRY(weft_plan_stage(*out, "first", 0));
    TRY(weft_plan_stage(*out, "second", 1));
    return weft_plan_pipeline(*out, m->stages, m->micro, m->schedule, 1);
}

static weft_status run_member(void *context, weft_world *world) {
    member *m = context;
    weft_session_options o = weft_session_defaults();
    weft_graph *g = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    o.optimizer = (weft_optimizer){.kind = m->momentum ? WEFT_MOMENTUM : WEFT_SGD, .momentum = 0.9};
    o.threads = 1;
    o.world = world;
    o.clip = m->clip;
    o.microbatches = m->micro ? m->micro : 1;
    weft_status status = make_plan(m, &plan);
    o.plan = plan;
    if (status >= 0) status = make_graph(m, &g);
    if (status >= 0) status = weft_session_create(g, &o, &s);
    if (status >= 0) status = m->lost ? load_all_or_none(s, world, m) : run_steps(s, m);
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
    int units = units_of(m), first = m->what == UNITS ? place_of(m) * units : 0;
    bool both = !m->stages, last = m->rank >= sharers(m);
    assert_near("tied", m->rank, 0, m->out.tied, whole->tied);
    for (int i = 0; i < IN && (both || !last); i++)
        for (int j = 0; j < units; j++)
            assert_near("w1", m->rank, i * units + j, m->out.w1[i * units + j],
                        whole->w1[i * HIDDEN + first + j]);
    for (int i = 0; i < units * OUT && (both || last); i++)
        assert_near("w2", m->rank, i, m->out.w2[i], whole->w2[first * OUT + i]);
}

static void run_way(what way, double clip) {
    static member one, members[RANKS];
    rank_of_world ranks[RANKS];
    one = (member){.what = way, .ranks = 1, .clip = clip};
    ASSERT_OK(run_member(&one, NULL));
    for (int r = 0; r < RANKS; r++)
        members[r] = (member){.what = way, .ranks = RANKS, .rank = r, .clip = clip};
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
    run_way(UNITS, 0);
}

static void samples_shared_out(void **state) {
    (void)state;
    run_way(SAMPLES, 0);
}

/* Ranks of a world that do the same, each its part. */
static void run_alike(member like, rank_of_world *ranks) {
    static member members[RANKS];
    for (int r = 0; r < like.ranks; r++) {
        members[r] = like;
        members[r].rank = r;
    }
    run_world(like.ranks, run_member, members, sizeof *members, ranks);
}

/* Gradients that are equal on all ranks have the norm that they have on one device. Nothing marks
 * other gradients as slices, so no rank updates by the norm of another rank. */
static void norms_are_those_of_all_ranks(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    run_way(SAMPLES, 0.25);
    run_alike((member){.what = UNITS, .ranks = RANKS, .clip = 0.25}, ranks);
    for (int r = 0; r < RANKS; r++)
        assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "rank 0|rank 1|clip");
    run_alike((member){.what = SAMPLES, .ranks = RANKS, .clip = 0.25, .root = true}, ranks);
    for (int r = 0; r < RANKS; r++) assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "rank 2");
}

/* If the loss of one rank is not finite, all ranks wait for it and name that rank. */
static void one_loss_is_no_number(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    run_alike((member){.what = SAMPLES, .ranks = RANKS, .bad = 3, .bad_rank = 2}, ranks);
    for (int r = 0; r < RANKS; r++)
        assert_rank_fails(&ranks[r], r, r == 2 ? WEFT_E_NUMERIC : WEFT_E_PEER, "rank 2");
}

/* ---- pipelines ---- */

enum { STAGES = 2, MICRO = 3, SCHEDULES = 3 };

static const weft_schedule schedules[SCHEDULES] = {WEFT_PIPELINE_GPIPE, WEFT_PIPELINE_1F1B,
                                                   WEFT_PIPELINE_ZERO_BUBBLE};

static member in_stages(member like, int ranks) {
    like.ranks = ranks;
    like.stages = STAGES;
    like.micro = MICRO;
    return like;
}

static void run_stages(what way, int ranks, double clip, weft_schedule schedule) {
    static member one, members[RANKS];
    rank_of_world of[RANKS];
    const member like = {
        .what = way, .clip = clip, .tied = way == SAMPLES, .schedule = schedule, .micro = MICRO};
    one = like;
    one.ranks = 1;
    ASSERT_OK(run_member(&one, NULL));
    for (int r = 0; r < ranks; r++) {
        members[r] = in_stages(like, ranks);
        members[r].rank = r;
    }
    run_world(ranks, run_member, members, sizeof *members, of);
    assert_all_ok(of, ranks, way == UNITS ? "hidden units in stages" : "samples in stages");
    const int share = ranks / STAGES;
    for (int step = 0; step < STEPS; step++) {
        double sum = 0;
        for (int r = 0; r < share; r++) sum += members[r].out.loss[step];
        assert_near("loss", 0, step, way == UNITS ? sum : sum / share, one.out.loss[step]);
        for (int r = 0; r < ranks; r++) /* each rank knows the loss of the rank at its place in
                                         * the last stage */
            assert_near("loss", r, step, members[r].out.loss[step],
                        members[r % share].out.loss[step]);
        for (int r = 0; r < ranks && clip > 0; r++)
            assert_near("norm", r, step, members[r].out.norm[step], one.out.norm[step]);
    }
    for (int r = 0; r < ranks; r++) assert_equal(&members[r], &one.out);
}

static void stages_share_out_units(void **state) {
    (void)state;
    for (size_t i = 0; i < SCHEDULES; i++) run_stages(UNITS, RANKS, 0, schedules[i]);
}

static void stages_share_out_samples(void **state) {
    (void)state;
    for (size_t i = 0; i < SCHEDULES; i++) run_stages(SAMPLES, RANKS, 0, schedules[i]);
}

/* The norm covers the gradients of all stages; each rank holds one part of them. */
static void norms_are_those_of_all_stages(void **state) {
    (void)state;
    run_stages(SAMPLES, STAGES, 0.25, WEFT_PIPELINE_1F1B); /* one device each */
    for (size_t i = 0; i < SCHEDULES; i++) run_stages(SAMPLES, RANKS, 0.25, schedules[i]);
}

/* Slices, and replicas that do not sum their gradients: no rank updates by the norm of another
 * rank. */
static void unlike_norms_of_stages_are_told(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    for (int apart = 0; apart <= 1; apart++) {
        member like = {.what = apart ? SAMPLES : UNITS, .clip = 0.25, .apart = apart};
        run_alike(in_stages(like, RANKS), ranks);
        for (int r = 0; r < RANKS; r++)
            assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "rank 0|rank 1|clip");
    }
}

/* Ranks of other stages do not run the cell that communicates. */
static void groups_over_stages_are_refused(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    run_alike(in_stages((member){.what = SAMPLES, .wide = true}, RANKS), ranks);
    for (int r = 0; r < RANKS; r++) assert_rank_fails(&ranks[r], r, WEFT_E_ARG, "4 ranks");
}

/* A loss that is not finite is reported with its rank, which is in the last stage. */
static void one_loss_of_stages_is_no_number(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    run_alike(in_stages((member){.what = SAMPLES, .bad = 3, .bad_rank = 3}, RANKS), ranks);
    for (int r = 0; r < RANKS; r++)
        assert_rank_fails(&ranks[r], r, r == 3 ? WEFT_E_NUMERIC : WEFT_E_PEER,
                          r == 3 ? "rank 3|nan" : "rank 3");
}

/* ---- slices ---- */

enum { HALF = STEPS / 2 };
static char folder[200], names[RANKS][300];

static const char *in_folder(const char *name) {
    static char paths[16][300];
    static int next;
    char *path = paths[next++ % 16];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Ranks that share hidden units run from one step to another. The sum of their losses is the
 * loss. */
static void run_units(int count, int from, int to, const char *const *load, const char *const *save,
                      double *loss) {
    static member members[RANKS];
    rank_of_world ranks[RANKS];
    for (int r = 0; r < count; r++)
        members[r] = (member){.what = UNITS,
                              .ranks = count,
                              .rank = r,
                              .momentum = true,
                              .from = from,
                              .to = to,
                              .load = load ? load[r] : NULL,
                              .save = save ? save[r] : NULL};
    if (count == 1)
        ASSERT_OK(run_member(&members[0], NULL));
    else
        run_world(count, run_member, members, sizeof *members, ranks);
    if (count > 1) assert_all_ok(ranks, count, "slices");
    for (int step = from; step < to; step++) {
        loss[step] = 0;
        for (int r = 0; r < count; r++) loss[step] += members[r].out.loss[step];
    }
}

/* Two files have the same tensors, up to rounding. */
static void assert_near_files(const char *a, const char *b) {
    wefti_safetensors *is, *want;
    ASSERT_OK(wefti_safetensors_open(a, &is));
    ASSERT_OK(wefti_safetensors_open(b, &want));
    assert_int_equal(wefti_safetensors_count(is), 4); /* two weights, two momenta */
    assert_int_equal(wefti_safetensors_count(want), 4);
    for (int i = 0; i < 4; i++) {
        const wefti_safetensors_entry *x = wefti_safetensors_at(is, i);
        const wefti_safetensors_entry *y = wefti_safetensors_at(want, i);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->bytes, y->bytes);
        for (int64_t at = 0; at < x->bytes / 8; at++) {
            double p, q;
            ASSERT_OK(wefti_reader_at(x->reader, x->at + 8 * at, 8, &p));
            ASSERT_OK(wefti_reader_at(y->reader, y->at + 8 * at, 8, &q));
            assert_near(x->name, 0, at, p, q);
        }
    }
    wefti_safetensors_close(is);
    wefti_safetensors_close(want);
}

static void slices_go_on_with_other_ranks(void **state) {
    (void)state;
    static const weft_checkpoint_slice_rule cuts[] = {{"w1", 1}, {"w2", 0}};
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/weft-by-hand-XXXXXX", base ? base : P_tmpdir);
    assert_non_null(mkdtemp(folder));
    const char *own[RANKS], *halves[2], *ends[2], *serial[2];
    for (int r = 0; r < RANKS; r++) {
        (void)snprintf(names[r], sizeof names[r], "%s/own%d.safetensors", folder, r);
        own[r] = names[r];
    }
    const char *whole = in_folder("whole.safetensors"), *end = in_folder("end.safetensors");
    double one[STEPS], shared[STEPS];
    serial[0] = in_folder("serial-half.safetensors");
    serial[1] = in_folder("serial-end.safetensors");
    run_units(1, 0, HALF, NULL, &serial[0], one);
    run_units(1, HALF, STEPS, &serial[0], &serial[1], one);
    run_units(RANKS, 0, HALF, NULL, own, shared);
    ASSERT_OK(weft_checkpoint_merge(own, RANKS, cuts, 2, whole, 0, NULL));
    assert_near_files(whole, serial[0]);
    const char *swapped[] = {own[0], own[2], own[1], own[3]};
    assert_int_equal(weft_checkpoint_merge(swapped, RANKS, cuts, 2, end, 0, NULL), WEFT_E_ARG);
    ASSERT_OK(weft_checkpoint_split(whole, 2, cuts, 2, in_folder("half"), 0, NULL));
    halves[0] = in_folder("half-rank-00000-of-00002.safetensors");
    halves[1] = in_folder("half-rank-00001-of-00002.safetensors");
    ends[0] = in_folder("end0.safetensors");
    ends[1] = in_folder("end1.safetensors");
    run_units(2, HALF, STEPS, halves, ends, shared);
    ASSERT_OK(weft_checkpoint_merge(ends, 2, cuts, 2, end, 0, NULL));
    assert_near_files(end, serial[1]);
    for (int step = 0; step < STEPS; step++) assert_near("loss", 0, step, shared[step], one[step]);
    member lost = {.what = UNITS, .ranks = 1, .momentum = true, .load = own[0], .to = 1};
    assert_int_equal(run_member(&lost, NULL), WEFT_E_SHAPE);
    ASSERT_MESSAGE("w1|f64[6, 3]|f64[6, 12]");
    lost.momentum = false;
    lost.load = whole;
    assert_int_equal(run_member(&lost, NULL), WEFT_E_SHAPE);
    ASSERT_MESSAGE("session");
    member some[2] = {{.rank = 0, .load = halves[0]}, {.rank = 1, .load = in_folder("none")}};
    rank_of_world ranks[2];
    for (int r = 0; r < 2; r++) {
        some[r].ranks = 2;
        some[r].momentum = some[r].lost = true;
    }
    run_world(2, run_member, some, sizeof *some, ranks);
    assert_all_ok(ranks, 2, "one has no slice");
    ASSERT_OK(wefti_remove_tree(folder));
}

/* What four ranks split by hand and saved goes on on two, on one, and in two stages. */
static void steps_go_on_with_other_ranks(void **state) {
    (void)state;
    rank_of_world ranks[RANKS];
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/weft-by-hand-XXXXXX", base ? base : P_tmpdir);
    assert_non_null(mkdtemp(folder));
    for (int sliced = 0; sliced < 2; sliced++) {
        member whole = {.what = UNITS, .ranks = 1, .momentum = true};
        ASSERT_OK(run_member(&whole, NULL));
        const char *first = in_folder(sliced ? "first-sliced" : "first"),
                   *second = in_folder(sliced ? "second-sliced" : "second");
        member like = {.what = UNITS,
                       .ranks = RANKS,
                       .momentum = true,
                       .to = HALF,
                       .save_dir = first,
                       .sliced = sliced};
        run_alike(like, ranks);
        assert_all_ok(ranks, RANKS, "four ranks save");
        like = (member){.what = UNITS,
                        .ranks = 2,
                        .momentum = true,
                        .from = HALF,
                        .load_dir = first,
                        .save_dir = second,
                        .sliced = sliced};
        run_alike(like, ranks);
        assert_all_ok(ranks, 2, "two ranks go on");
        char *text = NULL;
        ASSERT_OK(weft_checkpoint_verify(second, 0, &text));
        weft_checkpoint_text_free(text);
        member end = {.what = UNITS, .ranks = 1, .momentum = true, .load_dir = second};
        end.from = end.to = STEPS;
        ASSERT_OK(run_member(&end, NULL));
        assert_equal(&end, &whole.out);
        like = (member){.what = UNITS,
                        .ranks = RANKS,
                        .stages = STAGES,
                        .micro = MICRO,
                        .schedule = WEFT_PIPELINE_1F1B,
                        .momentum = true,
                        .from = HALF,
                        .load_dir = first};
        run_alike(like, ranks);
        assert_all_ok(ranks, RANKS, "two stages of two ranks go on");
    }
    ASSERT_OK(wefti_remove_tree(folder));
}

static weft_status refused_splits(void *context, weft_world *world) {
    const member *m = context;
    weft_session_options o = weft_session_defaults();
    weft_graph *g = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    o.threads = 1;
    o.world = world;
    TRY(make_plan(m, &plan));
    o.plan = plan;
    TRY(make_graph(m, &g));
    TRY(weft_session_create(g, &o, &s));
    const weft_session_save_options how = WEFT_STRUCT(weft_session_save_options, .sliced = true);
    bool good = weft_session_split(s, "nothing", 0, 0, 0) == WEFT_E_NOT_FOUND &&
                weft_session_split(s, "w1", WEFT_MAX_RANK, 0, 0) == WEFT_E_ARG &&
                weft_session_split(s, "w1", 0, -1, 0) == WEFT_E_ARG;
    /* w2 is not told of, then has no third dimension, then groups that do not divide four ranks,
     * and then two dimensions over the same ranks */
    good = good && weft_session_split(s, "w1", 1, 0, 0) >= 0 &&
           weft_session_save(s, folder, &how) == WEFT_E_ARG && strstr(weft_error_message(), "w2");
    good = good && weft_session_split(s, "w2", 2, 0, 0) >= 0 &&
           weft_session_save(s, folder, &how) == WEFT_E_SHAPE;
    good = good && weft_session_split(s, "w2", -1, 0, 0) >= 0 &&
           weft_session_split(s, "w2", 0, 3, 1) >= 0 &&
           weft_session_load(s, folder, -1, NULL) == WEFT_E_ARG;
    good = good && weft_session_split(s, "w2", 0, 2, 1) >= 0 &&
           weft_session_split(s, "w2", 1, 2, 1) >= 0 &&
           weft_session_save(s, folder, &how) == WEFT_E_ARG &&
           strstr(weft_error_message(), "strides");
    good = good && weft_session_split(s, "w2", -1, 0, 0) >= 0 &&
           weft_session_split(s, "w2", 0, 2, 1) >= 0 && weft_session_split(s, "w2", 1, 2, 2) >= 0 &&
           weft_session_save(s, folder, &how) >= 0;
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return good ? WEFT_OK : WEFT_E_BUG;
}

static void splits_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static member members[RANKS];
    rank_of_world ranks[RANKS];
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%s/weft-by-hand-XXXXXX", base ? base : P_tmpdir);
    assert_non_null(mkdtemp(folder));
    for (int r = 0; r < RANKS; r++) members[r] = (member){.what = UNITS, .ranks = RANKS, .rank = r};
    run_world(RANKS, refused_splits, members, sizeof *members, ranks);
    assert_all_ok(ranks, RANKS, "refusals");
    ASSERT_OK(wefti_remove_tree(folder));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_units_shared_out),
        cmocka_unit_test(samples_shared_out),
        cmocka_unit_test(norms_are_those_of_all_ranks),
        cmocka_unit_test(one_loss_is_no_number),
        cmocka_unit_test(stages_share_out_units),
        cmocka_unit_test(stages_share_out_samples),
        cmocka_unit_test(norms_are_those_of_all_stages),
        cmocka_unit_test(unlike_norms_of_stages_are_told),
        cmocka_unit_test(groups_over_stages_are_refused),
        cmocka_unit_test(one_loss_of_stages_is_no_number),
        cmocka_unit_test(slices_go_on_with_other_ranks),
        cmocka_unit_test(steps_go_on_with_other_ranks),
        cmocka_unit_test(splits_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
