/* Candidates that are in device memory only around their uses: what cells save for their backward
 * passes, and gradients. See setup/movable_walk.h. */
#include <string.h>

#include "base/number.h"
#include "setup/movable_walk.h"

/* What a group frees at the last steps: the same bytes since `first`. */
typedef struct free_run {
    int64_t bytes, now;
    int32_t first;
} free_run;

static weft_status end_run(wefti_movable_walk *w, int32_t c, free_run *run, int32_t now) {
    WEFT_TRY(wefti_movable_span(w->m, c, run->first, now - 1, run->bytes));
    wefti_keep_most(&w->sum.bytes[c], run->bytes);
    *run = (free_run){.bytes = run->now, .first = now};
    return WEFT_OK;
}

/* From step `now` on the groups free other bytes. */
static weft_status add_runs(wefti_movable_walk *w, int what, free_run *runs, int32_t now) {
    for (int32_t g = 0; g < w->m->groups; g++)
        if (runs[g].now != runs[g].bytes)
            WEFT_TRY(end_run(w, what * w->m->groups + g, &runs[g], now));
    return WEFT_OK;
}

static weft_status end_runs(wefti_movable_walk *w, int what, free_run *runs, int32_t now) {
    for (int32_t g = 0; g < w->m->groups; g++)
        WEFT_TRY(end_run(w, what * w->m->groups + g, &runs[g], now));
    return WEFT_OK;
}

/* ---- what cells save ---- */

/* A cell's saved block. */
typedef struct saved_block {
    int64_t bytes;   /* 0: it does not move */
    int32_t alive;   /* blocks of microbatches that are between their passes */
    int32_t by_loop; /* how many more an iteration of the loop leaves alive */
} saved_block;

typedef struct saved_walk {
    wefti_movable_walk *w;
    saved_block *blocks; /* [cells] */
    free_run *runs;      /* [groups] */
    int32_t *passes;     /* [passes]: the cell of each pass of the section, in order; -1: none */
} saved_walk;

/* The cell of a pass with a saved block; -1: it is none, or of no candidate. */
static int32_t cell_of(const wefti_movable_walk *w, const wefti_step *step) {
    if (!wefti_movable_is_pass(step) || step->routine->saved_arg < 0) return -1;
    const wefti_movable_name *cell = wefti_movable_name_of(&w->m->cells, step->name);
    return cell ? (int32_t)(cell - w->m->cells.items) : -1;
}

/* A forward pass adds a block, a backward pass removes one. */
static int32_t change_of(const wefti_step *step) {
    if (step->phase == WEFTI_FORWARD) return step->part == 0;
    return step->part + 1 < step->parts ? 0 : -1;
}

/* A block is in device memory during its passes, the pass behind the forward one, and the pass
 * before the backward one. `near`: cells of the last two passes and of the next one. */
static weft_status free_blocks(saved_walk *x, const int32_t near[3], int32_t now) {
    const wefti_movable_names *cells = &x->w->m->cells;
    for (int32_t g = 0; g < x->w->m->groups; g++) x->runs[g].now = 0;
    for (int32_t i = 0; i < cells->count; i++) {
        const bool is_near = near[0] == i || near[1] == i || near[2] == i;
        const int32_t away = x->blocks[i].alive - is_near;
        if (away > 0) x->runs[cells->items[i].group].now += away * x->blocks[i].bytes;
    }
    return add_runs(x->w, WEFT_OFFLOAD_SAVED, x->runs, now);
}

/* Blocks that all further iterations of a loop add or remove. */
static void add_iterations(saved_walk *x, const wefti_loop *loop, bool adds) {
    for (int32_t i = 0; loop && i < x->w->m->cells.count; i++)
        if (adds == (x->blocks[i].by_loop > 0))
            x->blocks[i].alive += x->blocks[i].by_loop * (loop->times - 1);
}

static void begin_loop(saved_walk *x, const wefti_step *steps, const wefti_loop *loop) {
    for (int32_t i = 0; i < x->w->m->cells.count; i++) x->blocks[i].by_loop = 0;
    for (int32_t k = loop->first; k < loop->first + loop->count; k++) {
        const int32_t i = cell_of(x->w, &steps[k]);
        if (i >= 0) x->blocks[i].by_loop += change_of(&steps[k]);
    }
    add_iterations(x, loop, true);
}

/* Blocks are stored while the next pass runs, and read while the one before runs. */
static void copy_block(const saved_walk *x, wefti_section s, int32_t k, int32_t cell,
                       double ahead) {
    wefti_movable_walk *w = x->w;
    const wefti_step *step = &w->p->steps[s][k];
    const int64_t bytes = x->blocks[cell].bytes;
    const int32_t c = WEFT_OFFLOAD_SAVED * w->m->groups + w->m->cells.items[cell].group;
    const double runs = wefti_program_runs(w->p, s, w->costs->microbatches) *
                        (double)wefti_program_times(w->p, s, k);
    if (step->part) return;
    w->sum.moved[c] += (int64_t)(runs * (double)bytes);
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++) {
        const double left = wefti_movable_copy_seconds(w, t, step->phase == WEFTI_BACKWARD, bytes) -
                            (wefti_movable_hides(w, t) ? ahead : 0);
        if (left > 0) w->sum.seconds[t][c] += runs * left;
    }
}

static int32_t list_passes(saved_walk *x, wefti_section s) {
    int32_t count = 0;
    for (int32_t k = 0; k < x->w->p->step_count[s]; k++) {
        const wefti_step *step = &x->w->p->steps[s][k];
        const int32_t cell = cell_of(x->w, step);
        if (wefti_movable_is_pass(step)) x->passes[count++] = cell;
        if (cell >= 0 && step->routine->saved_bytes >= WEFTI_SAVED_LEAST)
            x->blocks[cell].bytes = step->routine->saved_bytes;
    }
    return count;
}

static weft_status add_section(saved_walk *x, wefti_section s, int32_t now) {
    const wefti_program *p = x->w->p;
    const int32_t passes = list_passes(x, s);
    int32_t pass = -1, loop = 0;
    double ahead = 0;
    for (int32_t k = 0; k < p->step_count[s]; k++) {
        const wefti_step *step = &p->steps[s][k];
        const wefti_loop *l = loop < p->loop_count[s] ? &p->loops[s][loop] : NULL;
        const int32_t cell = cell_of(x->w, step);
        if (l && l->first == k) begin_loop(x, p->steps[s], l);
        pass += wefti_movable_is_pass(step);
        const int32_t near[] = {pass > 0 ? x->passes[pass - 1] : -1,
                                pass < 0 ? -1 : x->passes[pass],
                                pass + 1 < passes ? x->passes[pass + 1] : -1};
        WEFT_TRY(free_blocks(x, near, now + k));
        if (cell >= 0) {
            x->blocks[cell].alive += change_of(step);
            copy_block(x, s, k, cell, ahead);
        }
        if (wefti_movable_is_pass(step)) ahead = wefti_movable_kernel_seconds(x->w, step);
        if (!l || k + 1 < l->first + l->count) continue;
        add_iterations(x, l, false);
        loop++;
    }
    return WEFT_OK;
}

/* Blocks that are smaller than WEFTI_SAVED_LEAST do not move. */
weft_status wefti_movable_saved(wefti_movable_walk *w, int32_t begin) {
    saved_walk x = {.w = w};
    WEFT_TRY(wefti_movable_take(w->m->arena, w->m->cells.count, sizeof *x.blocks, &x.blocks));
    WEFT_TRY(wefti_movable_take(w->m->arena, w->m->groups, sizeof *x.runs, &x.runs));
    WEFT_TRY(
        wefti_movable_take(w->m->arena, wefti_movable_steps(w->p), sizeof *x.passes, &x.passes));
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        WEFT_TRY(add_section(&x, (wefti_section)s, begin));
        begin += w->p->step_count[s];
    }
    return end_runs(w, WEFT_OFFLOAD_SAVED, x.runs, begin);
}

/* ---- gradients ---- */

typedef struct gradient_walk {
    wefti_movable_walk *w;
    int32_t *group;            /* [tensors]: of a parameter whose gradient may move; else -1 */
    double *kept;              /* [tensors]: bytes of the reduced gradient, which moves */
    bool *waits;               /* [tensors]: for its update, after a pass has added to it */
    int32_t *near;             /* [tensors]: the last pass beside which it is in device memory */
    free_run *runs;            /* [groups] */
    const wefti_step **passes; /* [pass_count] of the section, in order */
    int32_t pass_count, numbered;
    wefti_map calls;          /* by name: number in `reads` */
    const wefti_step **reads; /* the step of each call that reads most parameters */
} gradient_walk;

/* A backward pass may read fewer parameters than it adds gradients for, so the forward pass of the
 * call counts too. */
static weft_status note_reads(gradient_walk *x, const wefti_step *step) {
    const int64_t i = wefti_map_find_text(&x->calls, step->name);
    if (i >= 0) {
        if (x->reads[i]->routine->inputs < step->routine->inputs) x->reads[i] = step;
        return WEFT_OK;
    }
    x->reads[x->numbered] = step;
    return wefti_map_add_text(&x->calls, step->name, x->numbered++, NULL);
}

/* Where devices share the states of a parameter, each has the gradient of its piece only. A state
 * that is much smaller is none of the parameter's shape. */
static void keep_piece(gradient_walk *x, const wefti_tensor *state) {
    if (state->role != WEFTI_TENSOR_OPTIMIZER || state->param < 0 ||
        !x->w->m->plan->optimizer.level)
        return;
    const wefti_tensor *t = &x->w->p->tensors[state->param];
    const double part = (double)weft_desc_elems(&state->desc) / (double)weft_desc_elems(&t->desc);
    const double all = (double)weft_desc_bytes(&t->desc);
    if (part < 1 && part * x->w->costs->ranks >= 1) x->kept[state->param] = part * all;
}

static weft_status begin_gradients(gradient_walk *x) {
    wefti_movable_walk *w = x->w;
    const int32_t steps = wefti_movable_steps(w->p), tensors = w->p->tensor_count;
    WEFT_TRY(wefti_movable_take(w->m->arena, tensors, sizeof *x->group, &x->group));
    WEFT_TRY(wefti_movable_take(w->m->arena, tensors, sizeof *x->kept, &x->kept));
    WEFT_TRY(wefti_movable_take(w->m->arena, tensors, sizeof *x->waits, &x->waits));
    WEFT_TRY(wefti_movable_take(w->m->arena, tensors, sizeof *x->near, &x->near));
    WEFT_TRY(wefti_movable_take(w->m->arena, w->m->groups, sizeof *x->runs, &x->runs));
    WEFT_TRY(wefti_movable_take(w->m->arena, steps, sizeof *x->passes, &x->passes));
    WEFT_TRY(wefti_movable_take(w->m->arena, steps, sizeof *x->reads, &x->reads));
    for (int32_t i = 0; i < tensors; i++) {
        const wefti_tensor *t = &w->p->tensors[i];
        const bool moves = t->role == WEFTI_TENSOR_PARAM && !t->frozen &&
                           weft_desc_bytes(&t->desc) >= WEFTI_SAVED_LEAST;
        x->group[i] = moves ? wefti_movable_group(w, t) : -1;
        x->kept[i] = (double)weft_desc_bytes(&t->desc);
    }
    for (int32_t i = 0; i < tensors; i++) keep_piece(x, &w->p->tensors[i]);
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < w->p->step_count[s]; k++)
            if (wefti_movable_is_pass(&w->p->steps[s][k]))
                WEFT_TRY(note_reads(x, &w->p->steps[s][k]));
    return WEFT_OK;
}

/* The call whose parameters get gradients in this pass; NULL: it is a forward pass, or none. */
static const wefti_step *adds_of(const gradient_walk *x, int32_t pass) {
    if (pass < 0 || pass >= x->pass_count || x->passes[pass]->phase != WEFTI_BACKWARD) return NULL;
    return x->reads[wefti_map_find_text(&x->calls, x->passes[pass]->name)];
}

/* A gradient is in device memory during the passes that add to it, and one pass around each. */
static void mark_near(gradient_walk *x, int32_t pass, int32_t mark) {
    for (int32_t q = pass - 1; q <= pass + 1; q++) {
        const wefti_step *call = adds_of(x, q);
        for (int32_t a = 0; call && a < call->routine->inputs; a++)
            if (call->params[a] >= 0) x->near[call->params[a]] = mark;
    }
}

static weft_status free_gradients(gradient_walk *x, int32_t mark, int32_t now) {
    for (int32_t g = 0; g < x->w->m->groups; g++) x->runs[g].now = 0;
    for (int32_t i = 0; i < x->w->p->tensor_count; i++)
        if (x->group[i] >= 0 && x->waits[i] && x->near[i] != mark)
            x->runs[x->group[i]].now += weft_desc_bytes(&x->w->p->tensors[i].desc);
    return add_runs(x->w, WEFT_OFFLOAD_GRADIENTS, x->runs, now);
}

/* Copies of a gradient, `ahead` seconds of which hide. */
static void copy_gradient(const gradient_walk *x, int32_t i, double reads, double writes,
                          double ahead) {
    wefti_movable_walk *w = x->w;
    const int64_t bytes = (int64_t)x->kept[i];
    const int32_t c = WEFT_OFFLOAD_GRADIENTS * w->m->groups + x->group[i];
    w->sum.moved[c] += (int64_t)((reads + writes) * (double)bytes);
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++) {
        const double left = reads * wefti_movable_copy_seconds(w, t, true, bytes) +
                            writes * wefti_movable_copy_seconds(w, t, false, bytes) -
                            (wefti_movable_hides(w, t) ? ahead : 0);
        if (left > 0) w->sum.seconds[t][c] += left;
    }
}

/* A pass adds to what lies in the tier, and stores it again. The first one of a step has nothing to
 * add to. */
static void add_to_gradients(gradient_walk *x, int32_t pass, double runs, double ahead) {
    const wefti_step *call = adds_of(x, pass);
    if (!call || x->passes[pass]->part) return;
    for (int32_t a = 0; a < call->routine->inputs; a++) {
        const int32_t i = call->params[a];
        bool known = i < 0 || x->group[i] < 0;
        for (int32_t before = 0; before < a && !known; before++) known = call->params[before] == i;
        if (known) continue;
        copy_gradient(x, i, x->waits[i] ? runs : runs - 1, runs, runs * ahead);
        x->waits[i] = true;
    }
}

static weft_status add_gradient_section(gradient_walk *x, wefti_section s, int32_t *mark,
                                        int32_t now) {
    const wefti_program *p = x->w->p;
    double ahead = 0;
    int32_t pass = -1;
    x->pass_count = 0;
    for (int32_t k = 0; k < p->step_count[s]; k++)
        if (wefti_movable_is_pass(&p->steps[s][k])) x->passes[x->pass_count++] = &p->steps[s][k];
    for (int32_t k = 0; k < p->step_count[s]; k++) {
        const wefti_step *step = &p->steps[s][k];
        const int32_t i = step->phase == WEFTI_UPDATE ? step->tensor : -1;
        if (wefti_movable_is_pass(step)) {
            const double runs = wefti_program_runs(p, s, x->w->costs->microbatches) *
                                (double)wefti_program_times(p, s, k);
            mark_near(x, ++pass, ++*mark);
            add_to_gradients(x, pass, runs, ahead);
            ahead = wefti_movable_kernel_seconds(x->w, step);
        } else if (i >= 0 && x->group[i] >= 0 && x->waits[i]) {
            copy_gradient(x, i, 1, 0, wefti_movable_kernel_seconds(x->w, step));
            x->waits[i] = s == WEFTI_SECTION_NORM;
        } else {
            continue;
        }
        WEFT_TRY(free_gradients(x, pass < 0 ? -1 : *mark, now + k));
    }
    return WEFT_OK;
}

static weft_status walk_gradients(gradient_walk *x, int32_t begin) {
    int32_t mark = 0;
    WEFT_TRY(begin_gradients(x));
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        WEFT_TRY(add_gradient_section(x, (wefti_section)s, &mark, begin));
        begin += x->w->p->step_count[s];
    }
    return end_runs(x->w, WEFT_OFFLOAD_GRADIENTS, x->runs, begin);
}

/* Small gradients do not move. */
weft_status wefti_movable_gradients(wefti_movable_walk *w, int32_t begin) {
    gradient_walk x = {.w = w};
    if (!w->p->step_count[WEFTI_SECTION_UPDATE]) return WEFT_OK;
    const weft_status status = walk_gradients(&x, begin);
    wefti_map_free(&x.calls);
    return status;
}
