/* Candidates for tiers below device memory: see setup/movable.h. The device memory that each frees
 * is an estimate. The caller builds the programs again and counts. */
#include "setup/movable.h"

#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "cost/cost.h"
#include "graph/graph.h"

enum { GROUP_SHARES = 8, COPY_BLOCK = 32 << 20 };

static const wefti_space spaces[WEFTI_RESIDENCY_TIERS] = {WEFTI_SPACE_HOST, WEFTI_SPACE_DISK};
static const weft_tier tiers[WEFTI_RESIDENCY_TIERS] = {WEFT_TIER_HOST, WEFT_TIER_DISK};

static weft_status take(wefti_arena *arena, int64_t count, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(arena, (size_t)(count + 1) * bytes);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory for what may leave device memory");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

/* ---- groups ---- */

static bool is_number(const char *text, size_t bytes) {
    return bytes > 0 && strspn(text, "0123456789") == bytes;
}

/* The bytes of a name up to its first number, or up to its last dot. *out_family: without the
 * number. "h.3" is its own unit. */
static size_t unit_bytes(const char *name, size_t *out_family) {
    const char *last = strrchr(name, '.');
    for (const char *at = name, *dot; (dot = strchr(at, '.')); at = dot + 1)
        if (is_number(at, (size_t)(dot - at))) {
            *out_family = (size_t)(at - name);
            return (size_t)(dot + 1 - name);
        }
    *out_family = last ? (size_t)(last + 1 - name) : strlen(name);
    return last && is_number(last + 1, strlen(last + 1)) ? strlen(name) : *out_family;
}

/* The pattern of all names that begin like this one. */
static const char *pattern_of(wefti_arena *arena, const char *name, size_t bytes) {
    char *out = wefti_arena_alloc(arena, bytes + 2);
    if (!out) return NULL;
    memcpy(out, name, bytes);
    if (name[bytes]) out[bytes] = '*';
    return out;
}

/* What entries with this `what` match. */
static const wefti_movable_names *names_of(const wefti_movable *m, int what) {
    return what == WEFT_OFFLOAD_SAVED ? &m->cells : &m->parameters;
}

static const wefti_movable_name *find_name(const wefti_movable_names *names, const char *name) {
    const int64_t i = wefti_map_find_text(&names->map, name);
    return i < 0 ? NULL : &names->items[i];
}

static weft_status add_name(wefti_movable_names *names, wefti_movable_name name) {
    names->items[names->count] = name;
    return wefti_map_add_text(&names->map, name.name, names->count++, NULL);
}

static int64_t bytes_of(const weft_graph *graph, const wefti_movable *m, const char *unit) {
    const weft_body *root = graph->root;
    int64_t bytes = 0;
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        const wefti_movable_name *p =
            v->kind == WEFTI_VALUE_PARAM ? find_name(&m->parameters, v->name) : NULL;
        if (p && !strcmp(p->unit, unit)) bytes += weft_desc_bytes(&v->desc);
    }
    return bytes;
}

/* A block with its number is a cell of that path: "h.3" of "h.3.*". */
static weft_status add_cell(wefti_movable *m, const wefti_movable_name *p) {
    size_t family;
    const size_t unit = unit_bytes(p->name, &family);
    if (family == unit || p->name[unit - 1] != '.') return WEFT_OK;
    char *path = wefti_arena_strdup(m->arena, p->name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for what may leave device memory");
    path[unit - 1] = '\0';
    return find_name(&m->cells, path)
               ? WEFT_OK
               : add_name(&m->cells, (wefti_movable_name){path, path, p->group});
}

/* The parameters in the order of their units. */
static weft_status divide(const weft_graph *graph, wefti_movable *m, int64_t all) {
    int64_t used = 0;
    wefti_map units = {0};
    weft_status status = WEFT_OK;
    for (int32_t i = 0; i < m->parameters.count && status >= 0; i++) {
        wefti_movable_name *p = &m->parameters.items[i];
        const char *unit = p->unit;
        int64_t group = wefti_map_find_text(&units, unit);
        if (group < 0) {
            const int64_t bytes = bytes_of(graph, m, unit);
            if (!m->groups || used + bytes > all / GROUP_SHARES) m->groups++, used = 0;
            used += bytes;
            group = m->groups - 1;
            status = wefti_map_add_text(&units, unit, group, NULL);
        }
        p->group = (int32_t)group;
        if (status >= 0) status = add_cell(m, p);
    }
    wefti_map_free(&units);
    return status;
}

weft_status wefti_movable_find(const weft_graph *graph, const weft_plan *plan, wefti_arena *arena,
                               wefti_movable *out) {
    const weft_body *root = graph->root;
    int64_t all = 0;
    *out = (wefti_movable){.arena = arena, .plan = plan};
    WEFT_TRY(take(arena, root->in_count, sizeof *out->cells.items, &out->cells.items));
    WEFT_TRY(take(arena, root->in_count, sizeof *out->cells.items, &out->parameters.items));
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        size_t family;
        if (v->kind != WEFTI_VALUE_PARAM) continue;
        const char *unit = pattern_of(arena, v->name, unit_bytes(v->name, &family));
        WEFT_REQUIRE(unit, WEFT_E_NOMEM, "no memory for what may leave device memory");
        WEFT_TRY(add_name(&out->parameters, (wefti_movable_name){v->name, unit, 0}));
        all += weft_desc_bytes(&v->desc);
    }
    WEFT_TRY(divide(graph, out, all));
    const int64_t candidates = (int64_t)WEFT_OFFLOADS * out->groups;
    WEFT_TRY(take(arena, candidates, sizeof *out->candidates, &out->candidates));
    WEFT_TRY(take(arena, candidates, sizeof *out->span_cap, &out->span_cap));
    return take(arena, candidates, sizeof *out->spans, &out->spans);
}

void wefti_movable_free(wefti_movable *m) {
    for (int32_t i = 0; m->spans && i < WEFT_OFFLOADS * m->groups; i++) wefti_free(m->spans[i]);
    wefti_map_free(&m->parameters.map);
    wefti_map_free(&m->cells.map);
}

/* ---- what candidates free and cost, on each class of ranks ---- */

/* Of one class. */
typedef struct class_sums {
    int64_t *bytes, *moved;                 /* [candidates] */
    int64_t *used;                          /* [groups]: by the call that is walked */
    double *seconds[WEFTI_RESIDENCY_TIERS]; /* [candidates] */
    double *reads[WEFTI_RESIDENCY_TIERS];   /* [groups]: of the call that is walked */
} class_sums;

typedef struct movable_walk {
    wefti_movable *m;
    const wefti_movable_costs *costs;
    const wefti_program *p;
    int32_t time; /* of the next step; times of all classes follow each other */
    class_sums sum;
} movable_walk;

static weft_status add_span(wefti_movable *m, int32_t i, int32_t first, int32_t last,
                            int64_t bytes) {
    wefti_residency_candidate *c = &m->candidates[i];
    if (!bytes || first > last) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(m->spans[i], c->span_count, m->span_cap[i]));
    m->spans[i][c->span_count++] = (wefti_residency_span){first, last, bytes};
    c->spans = m->spans[i];
    return WEFT_OK;
}

/* In blocks, as updates copy. */
static double copy_seconds(const movable_walk *w, int tier, bool reads, int64_t bytes) {
    const double block = bytes < COPY_BLOCK ? (double)bytes : COPY_BLOCK;
    if (bytes <= 0) return 0;
    return wefti_tier_seconds(w->costs->machine, spaces[tier],
                              reads ? WEFTI_TIER_READ : WEFTI_TIER_WRITE, block, w->costs->ranks) *
           ((double)bytes / block);
}

static double both_ways(const movable_walk *w, int tier, int64_t bytes) {
    return copy_seconds(w, tier, true, bytes) + copy_seconds(w, tier, false, bytes);
}

/* Kernels of a step, behind which copies can hide. */
static double kernel_seconds(const movable_walk *w, const wefti_step *step) {
    double seconds = 0;
    if (step->kind != WEFTI_STEP_CALL) return 0;
    for (int32_t k = step->from; k < step->to; k++) {
        const wefti_instruction *x = &step->routine->code[k];
        if (x->node) seconds += wefti_node_model_seconds(w->costs->machine, x->node, &x->cost);
    }
    return seconds;
}

/* The group of a tensor that is a parameter, or a state of one; -1: of none. */
static int32_t group_of(const movable_walk *w, const wefti_tensor *t) {
    if (t->role == WEFTI_TENSOR_OPTIMIZER) t = &w->p->tensors[t->param];
    if (t->role != WEFTI_TENSOR_PARAM) return -1;
    const wefti_movable_name *p = find_name(&w->m->parameters, t->name);
    return p ? p->group : -1;
}

/* The group of a piece that a rank keeps for its ward, which may be of another stage. */
static int32_t group_of_copy(const movable_walk *w, const wefti_piece *x) {
    char name[256];
    if (x->tensor >= 0) return group_of(w, &w->p->tensors[x->tensor]);
    (void)snprintf(name, sizeof name, "%s", x->name);
    char *dot = x->role == WEFTI_TENSOR_OPTIMIZER ? strrchr(name, '.') : NULL;
    if (dot) *dot = '\0';
    const wefti_movable_name *p = find_name(&w->m->parameters, name);
    return p ? p->group : -1;
}

/* Copies for a buddy are updated as the tensors are. */
static void add_copies(movable_walk *w) {
    for (int32_t i = 0; i < w->p->copy_count; i++) {
        const wefti_piece *x = &w->p->copies[i];
        const int32_t group = group_of_copy(w, x);
        const int64_t bytes = weft_desc_bytes(&x->desc);
        if (group < 0 || bytes < WEFTI_SAVED_LEAST ||
            wefti_location_space(x->home) != WEFTI_SPACE_DEVICE)
            continue;
        const int32_t c = WEFT_OFFLOAD_COPIES * w->m->groups + group;
        w->sum.bytes[c] += bytes;
        w->sum.moved[c] += 2 * bytes;
        for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++)
            w->sum.seconds[k][c] += both_ways(w, k, bytes);
    }
}

/* What lies in device memory all the time, and is read and written by updates. */
static weft_status add_tensors(movable_walk *w, int32_t begin) {
    const int32_t groups = w->m->groups;
    for (int32_t i = 0; i < w->p->tensor_count; i++) {
        const wefti_tensor *t = &w->p->tensors[i];
        const int32_t group = group_of(w, t);
        if (group < 0) continue;
        if (wefti_location_space(t->home) != WEFTI_SPACE_DEVICE) {
            w->m->below[group] = w->m->below[group] || t->role == WEFTI_TENSOR_PARAM;
            continue;
        }
        const int what =
            t->role == WEFTI_TENSOR_OPTIMIZER ? WEFT_OFFLOAD_OPTIMIZER : WEFT_OFFLOAD_PARAMETERS;
        const int32_t c = what * groups + group;
        const int64_t bytes = weft_desc_bytes(&t->desc);
        if (t->rows == WEFTI_ROWS_TOUCHED) w->m->by_rows[group] = true;
        w->sum.bytes[c] += bytes;
        if (t->frozen) continue;
        w->sum.moved[c] += 2 * bytes;
        for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++)
            w->sum.seconds[k][c] += both_ways(w, k, bytes);
    }
    add_copies(w);
    for (int32_t c = 0; c < WEFT_OFFLOADS * groups; c++)
        WEFT_TRY(add_span(w->m, c, begin, w->time - 1, w->sum.bytes[c]));
    return WEFT_OK;
}

static void read_parameters(movable_walk *w, const wefti_step *step) {
    const int32_t groups = w->m->groups;
    memset(w->sum.used, 0, (size_t)groups * sizeof *w->sum.used);
    for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++)
        memset(w->sum.reads[k], 0, (size_t)groups * sizeof **w->sum.reads);
    for (int32_t a = 0; a < step->routine->inputs; a++) {
        bool known = step->params[a] < 0;
        for (int32_t before = 0; before < a && !known; before++)
            known = step->params[before] == step->params[a];
        const int32_t group = known ? -1 : group_of(w, &w->p->tensors[step->params[a]]);
        if (group < 0) continue;
        const int64_t bytes = weft_desc_bytes(&w->p->tensors[step->params[a]].desc);
        w->sum.used[group] += bytes;
        for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++)
            w->sum.reads[k][group] += copy_seconds(w, k, true, bytes);
    }
}

/* Whether copies run beside kernels. */
static bool hides(const movable_walk *w, int tier) {
    return !wefti_tier_rates_of(w->costs->machine, spaces[tier])->spends_cores;
}

/* A call reads its parameters from the tier while the call before it runs, `ahead` seconds. */
static weft_status add_call(movable_walk *w, const wefti_step *step, int32_t from, int32_t now,
                            double runs, double ahead) {
    const int32_t groups = w->m->groups;
    read_parameters(w, step);
    for (int32_t g = 0; g < groups; g++) {
        const int32_t c = WEFT_OFFLOAD_PARAMETERS * groups + g;
        WEFT_TRY(add_span(w->m, c, from, now, -w->sum.used[g]));
        if (step->part) continue;
        w->sum.moved[c] += (int64_t)(runs * (double)w->sum.used[g]);
        for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++) {
            const double left = w->sum.reads[k][g] - (hides(w, k) ? ahead : 0);
            if (left > 0) w->sum.seconds[k][c] += runs * left;
        }
    }
    return WEFT_OK;
}

/* `counts`: a step runs the program. */
static weft_status add_calls(movable_walk *w, int32_t begin, bool counts) {
    int32_t last = begin, now = begin;
    double ahead = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < w->p->step_count[s]; k++, now++) {
            const wefti_step *step = &w->p->steps[s][k];
            const bool pass = step->phase == WEFTI_FORWARD || step->phase == WEFTI_BACKWARD;
            if (step->kind != WEFTI_STEP_CALL || !pass) continue;
            const double runs =
                !counts ? 0
                        : wefti_program_runs(w->p, (wefti_section)s, w->costs->microbatches) *
                              (double)wefti_program_times(w->p, (wefti_section)s, k);
            WEFT_TRY(add_call(w, step, step->part ? last + 1 : last, now, runs, ahead));
            ahead = kernel_seconds(w, step);
            last = now;
        }
    return WEFT_OK;
}

/* ---- what moves between its uses ---- */

static int32_t steps_of(const wefti_program *p) {
    int32_t steps = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++) steps += p->step_count[s];
    return steps;
}

static bool is_pass(const wefti_step *step) {
    return step->kind == WEFTI_STEP_CALL &&
           (step->phase == WEFTI_FORWARD || step->phase == WEFTI_BACKWARD);
}

/* What a group frees at the last steps: the same bytes since `first`. */
typedef struct free_run {
    int64_t bytes, now;
    int32_t first;
} free_run;

static weft_status end_run(movable_walk *w, int32_t c, free_run *run, int32_t now) {
    WEFT_TRY(add_span(w->m, c, run->first, now - 1, run->bytes));
    wefti_keep_most(&w->sum.bytes[c], run->bytes);
    *run = (free_run){.bytes = run->now, .first = now};
    return WEFT_OK;
}

/* From step `now` on the groups free other bytes. */
static weft_status add_runs(movable_walk *w, int what, free_run *runs, int32_t now) {
    for (int32_t g = 0; g < w->m->groups; g++)
        if (runs[g].now != runs[g].bytes)
            WEFT_TRY(end_run(w, what * w->m->groups + g, &runs[g], now));
    return WEFT_OK;
}

static weft_status end_runs(movable_walk *w, int what, free_run *runs, int32_t now) {
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
    movable_walk *w;
    saved_block *blocks; /* [cells] */
    free_run *runs;      /* [groups] */
    int32_t *passes;     /* [passes]: the cell of each pass of the section, in order; -1: none */
} saved_walk;

/* The cell of a pass with a saved block; -1: it is none, or of no candidate. */
static int32_t cell_of(const movable_walk *w, const wefti_step *step) {
    if (!is_pass(step) || step->routine->saved_arg < 0) return -1;
    const wefti_movable_name *cell = find_name(&w->m->cells, step->name);
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
    movable_walk *w = x->w;
    const wefti_step *step = &w->p->steps[s][k];
    const int64_t bytes = x->blocks[cell].bytes;
    const int32_t c = WEFT_OFFLOAD_SAVED * w->m->groups + w->m->cells.items[cell].group;
    const double runs = wefti_program_runs(w->p, s, w->costs->microbatches) *
                        (double)wefti_program_times(w->p, s, k);
    if (step->part) return;
    w->sum.moved[c] += (int64_t)(runs * (double)bytes);
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++) {
        const double left =
            copy_seconds(w, t, step->phase == WEFTI_BACKWARD, bytes) - (hides(w, t) ? ahead : 0);
        if (left > 0) w->sum.seconds[t][c] += runs * left;
    }
}

static int32_t list_passes(saved_walk *x, wefti_section s) {
    int32_t count = 0;
    for (int32_t k = 0; k < x->w->p->step_count[s]; k++) {
        const wefti_step *step = &x->w->p->steps[s][k];
        const int32_t cell = cell_of(x->w, step);
        if (is_pass(step)) x->passes[count++] = cell;
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
        pass += is_pass(step);
        const int32_t near[] = {pass > 0 ? x->passes[pass - 1] : -1,
                                pass < 0 ? -1 : x->passes[pass],
                                pass + 1 < passes ? x->passes[pass + 1] : -1};
        WEFT_TRY(free_blocks(x, near, now + k));
        if (cell >= 0) {
            x->blocks[cell].alive += change_of(step);
            copy_block(x, s, k, cell, ahead);
        }
        if (is_pass(step)) ahead = kernel_seconds(x->w, step);
        if (!l || k + 1 < l->first + l->count) continue;
        add_iterations(x, l, false);
        loop++;
    }
    return WEFT_OK;
}

/* Blocks that are smaller than WEFTI_SAVED_LEAST do not move. */
static weft_status add_saved(movable_walk *w, int32_t begin) {
    saved_walk x = {.w = w};
    WEFT_TRY(take(w->m->arena, w->m->cells.count, sizeof *x.blocks, &x.blocks));
    WEFT_TRY(take(w->m->arena, w->m->groups, sizeof *x.runs, &x.runs));
    WEFT_TRY(take(w->m->arena, steps_of(w->p), sizeof *x.passes, &x.passes));
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        WEFT_TRY(add_section(&x, (wefti_section)s, begin));
        begin += w->p->step_count[s];
    }
    return end_runs(w, WEFT_OFFLOAD_SAVED, x.runs, begin);
}

/* ---- gradients ---- */

typedef struct gradient_walk {
    movable_walk *w;
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
    movable_walk *w = x->w;
    const int32_t steps = steps_of(w->p), tensors = w->p->tensor_count;
    WEFT_TRY(take(w->m->arena, tensors, sizeof *x->group, &x->group));
    WEFT_TRY(take(w->m->arena, tensors, sizeof *x->kept, &x->kept));
    WEFT_TRY(take(w->m->arena, tensors, sizeof *x->waits, &x->waits));
    WEFT_TRY(take(w->m->arena, tensors, sizeof *x->near, &x->near));
    WEFT_TRY(take(w->m->arena, w->m->groups, sizeof *x->runs, &x->runs));
    WEFT_TRY(take(w->m->arena, steps, sizeof *x->passes, &x->passes));
    WEFT_TRY(take(w->m->arena, steps, sizeof *x->reads, &x->reads));
    for (int32_t i = 0; i < tensors; i++) {
        const wefti_tensor *t = &w->p->tensors[i];
        const bool moves = t->role == WEFTI_TENSOR_PARAM && !t->frozen &&
                           weft_desc_bytes(&t->desc) >= WEFTI_SAVED_LEAST;
        x->group[i] = moves ? group_of(w, t) : -1;
        x->kept[i] = (double)weft_desc_bytes(&t->desc);
    }
    for (int32_t i = 0; i < tensors; i++) keep_piece(x, &w->p->tensors[i]);
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < w->p->step_count[s]; k++)
            if (is_pass(&w->p->steps[s][k])) WEFT_TRY(note_reads(x, &w->p->steps[s][k]));
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
    movable_walk *w = x->w;
    const int64_t bytes = (int64_t)x->kept[i];
    const int32_t c = WEFT_OFFLOAD_GRADIENTS * w->m->groups + x->group[i];
    w->sum.moved[c] += (int64_t)((reads + writes) * (double)bytes);
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++) {
        const double left = reads * copy_seconds(w, t, true, bytes) +
                            writes * copy_seconds(w, t, false, bytes) - (hides(w, t) ? ahead : 0);
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
        if (is_pass(&p->steps[s][k])) x->passes[x->pass_count++] = &p->steps[s][k];
    for (int32_t k = 0; k < p->step_count[s]; k++) {
        const wefti_step *step = &p->steps[s][k];
        const int32_t i = step->phase == WEFTI_UPDATE ? step->tensor : -1;
        if (is_pass(step)) {
            const double runs = wefti_program_runs(p, s, x->w->costs->microbatches) *
                                (double)wefti_program_times(p, s, k);
            mark_near(x, ++pass, ++*mark);
            add_to_gradients(x, pass, runs, ahead);
            ahead = kernel_seconds(x->w, step);
        } else if (i >= 0 && x->group[i] >= 0 && x->waits[i]) {
            copy_gradient(x, i, 1, 0, kernel_seconds(x->w, step));
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
static weft_status add_gradients(movable_walk *w, int32_t begin) {
    gradient_walk x = {.w = w};
    if (!w->p->step_count[WEFTI_SECTION_UPDATE]) return WEFT_OK;
    const weft_status status = walk_gradients(&x, begin);
    wefti_map_free(&x.calls);
    return status;
}

/* `kernels`: seconds of other work while the states of an update are read and written. */
static void hide_update(movable_walk *w, const wefti_step *update, double kernels) {
    const int32_t g = update->tensor < 0 ? -1 : group_of(w, &w->p->tensors[update->tensor]);
    const int32_t c = WEFT_OFFLOAD_OPTIMIZER * w->m->groups + g;
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS && g >= 0; t++) {
        const double left = w->sum.seconds[t][c] - (hides(w, t) ? kernels : 0);
        w->sum.seconds[t][c] = left > 0 ? left : 0;
    }
}

/* States are read and written while other updates run, and passes that come between updates. */
static void hide_updates(movable_walk *w) {
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        double passes = 0; /* since the last update */
        for (int32_t k = 0; k < w->p->step_count[s] && s != WEFTI_SECTION_NORM; k++) {
            const wefti_step *step = &w->p->steps[s][k];
            const double kernels = kernel_seconds(w, step);
            if (is_pass(step)) passes += kernels;
            if (step->phase != WEFTI_UPDATE) continue;
            hide_update(w, step, kernels + passes);
            passes = 0;
        }
    }
}

static void note_needs(movable_walk *w, const wefti_rank_class *c, int32_t graphs) {
    int64_t own = 0;
    for (int32_t g = 0; w->costs->programs_count && g < graphs; g++)
        own += c->programs[g]->program_bytes;
    for (int32_t g = 0; g < graphs; g++)
        for (int s = 0; s < WEFTI_SECTIONS; s++)
            for (int32_t k = 0; k < c->programs[g]->step_count[s]; k++)
                w->m->need[w->time++] = c->programs[g]->steps[s][k].used_bytes + own;
}

/* A candidate has the most that it has on any class. */
static void keep_sums(movable_walk *w) {
    for (int32_t i = 0; i < WEFT_OFFLOADS * w->m->groups; i++) {
        wefti_residency_candidate *c = &w->m->candidates[i];
        wefti_keep_most(&c->bytes, w->sum.bytes[i]);
        wefti_keep_most(&c->moved, w->sum.moved[i]);
        for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++)
            if (w->sum.seconds[t][i] > c->to[t].seconds) c->to[t].seconds = w->sum.seconds[t][i];
    }
}

static weft_status clear_sums(movable_walk *w) {
    const int64_t groups = w->m->groups, candidates = WEFT_OFFLOADS * groups;
    WEFT_TRY(take(w->m->arena, candidates, sizeof(int64_t), &w->sum.bytes));
    WEFT_TRY(take(w->m->arena, candidates, sizeof(int64_t), &w->sum.moved));
    WEFT_TRY(take(w->m->arena, groups, sizeof(int64_t), &w->sum.used));
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++) {
        WEFT_TRY(take(w->m->arena, candidates, sizeof(double), &w->sum.seconds[t]));
        WEFT_TRY(take(w->m->arena, groups, sizeof(double), &w->sum.reads[t]));
    }
    return WEFT_OK;
}

static weft_status add_class(movable_walk *w, const wefti_rank_class *c, int32_t graphs) {
    int32_t begin = w->time;
    w->p = c->programs[0];
    WEFT_TRY(clear_sums(w));
    note_needs(w, c, graphs);
    WEFT_TRY(add_tensors(w, begin));
    hide_updates(w);
    for (int32_t g = 0; g < graphs; g++) {
        w->p = c->programs[g];
        WEFT_TRY(add_calls(w, begin, g == 0));
        if (g == 0) WEFT_TRY(add_saved(w, begin));
        if (g == 0) WEFT_TRY(add_gradients(w, begin));
        begin += steps_of(w->p);
    }
    keep_sums(w);
    return WEFT_OK;
}

/* Whether an op on the host reads the parameter: it lies there, but no entry says so. */
static bool is_hosted(const wefti_movable *m, const wefti_movable_name *x) {
    return m->below[x->group] && !m->plan->optimizer.master &&
           wefti_plan_tier(m->plan, WEFT_OFFLOAD_PARAMETERS, x->name) == WEFT_TIER_DEVICE;
}

/* A group of which the plan moves a part already stays as it is. So does a table that is updated by
 * rows: in another tier it would be updated whole, which can have another result. */
static void allow(wefti_movable *m, const wefti_movable_costs *costs) {
    for (int32_t i = 0; i < WEFT_OFFLOADS * m->groups; i++) {
        m->candidates[i].kind = i / m->groups;
        for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++)
            m->candidates[i].to[t].allowed = costs->allowed[t] && m->candidates[i].bytes > 0;
    }
    for (int what = 0; what < WEFT_OFFLOADS; what++) {
        const wefti_movable_names *names = names_of(m, what);
        for (int32_t p = 0; p < names->count; p++) {
            const wefti_movable_name *x = &names->items[p];
            wefti_residency_candidate *c = &m->candidates[what * m->groups + x->group];
            const bool moves =
                wefti_plan_tier(m->plan, (weft_offload)what, x->name) != WEFT_TIER_DEVICE;
            const bool of_value = what == WEFT_OFFLOAD_PARAMETERS || what == WEFT_OFFLOAD_GRADIENTS;
            const bool on_host = of_value && wefti_plan_updates_on_host(m->plan, x->name);
            const bool by_rows = what != WEFT_OFFLOAD_SAVED && m->by_rows[x->group];
            for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++)
                if (moves || by_rows || (of_value && is_hosted(m, x)) ||
                    (on_host && tiers[t] != WEFT_TIER_HOST) ||
                    (what == WEFT_OFFLOAD_PARAMETERS && m->plan->optimizer.master))
                    c->to[t].allowed = false;
        }
    }
}

weft_status wefti_movable_problem(wefti_movable *m, const wefti_rank_classes *classes,
                                  const wefti_movable_costs *costs, wefti_residency_problem *out) {
    movable_walk w = {.m = m, .costs = costs};
    int32_t times = 0;
    for (int32_t c = 0; c < classes->count; c++)
        for (int32_t g = 0; g < classes->graphs; g++)
            times += steps_of(classes->classes[c].programs[g]);
    WEFT_TRY(take(m->arena, times, sizeof *m->need, &m->need));
    WEFT_TRY(take(m->arena, m->groups, sizeof *m->by_rows, &m->by_rows));
    WEFT_TRY(take(m->arena, m->groups, sizeof *m->below, &m->below));
    for (int32_t c = 0; c < classes->count; c++)
        WEFT_TRY(add_class(&w, &classes->classes[c], classes->graphs));
    allow(m, costs);
    *out = (wefti_residency_problem){.need = m->need,
                                     .times = times,
                                     .candidates = m->candidates,
                                     .count = WEFT_OFFLOADS * m->groups};
    return WEFT_OK;
}

/* ---- entries ---- */

/* How entries name what moves: the first one that moves nothing else is used. */
typedef enum entry_form {
    ENTRY_ALL,
    ENTRY_FAMILIES,
    ENTRY_UNITS,
    ENTRY_NAMES,
    ENTRY_FORMS
} entry_form;

static weft_tier tier_of(const wefti_movable *m, const int8_t *tier, int what,
                         const wefti_movable_name *x) {
    const int to = tier[what * m->groups + x->group];
    return to == WEFTI_RESIDENCY_STAYS ? wefti_plan_tier(m->plan, (weft_offload)what, x->name)
                                       : tiers[to];
}

/* Whether all whose names begin like this one have its tier. */
static bool family_moves(const wefti_movable *m, const int8_t *tier, int what,
                         const wefti_movable_name *x, size_t family) {
    const wefti_movable_names *names = names_of(m, what);
    bool same = true;
    for (int32_t i = 0; i < names->count && same; i++)
        same = strncmp(names->items[i].name, x->name, family) != 0 ||
               tier_of(m, tier, what, &names->items[i]) == tier_of(m, tier, what, x);
    return same;
}

static weft_status add_entry(const wefti_movable *m, const int8_t *tier, int what,
                             const wefti_movable_name *x, entry_form form, weft_plan *plan) {
    size_t family;
    const size_t unit = unit_bytes(x->name, &family);
    const char *match = form == ENTRY_ALL ? "*" : form == ENTRY_NAMES ? x->name : x->unit;
    if (form == ENTRY_FAMILIES && family < unit && family_moves(m, tier, what, x, family))
        match = pattern_of(m->arena, x->name, family);
    WEFT_REQUIRE(match, WEFT_E_NOMEM, "no memory for what may leave device memory");
    return weft_plan_offload(plan, match, (weft_offload)what, tier_of(m, tier, what, x));
}

static bool says_it(const wefti_movable *m, const int8_t *tier, int what, const weft_plan *plan) {
    const wefti_movable_names *names = names_of(m, what);
    for (int32_t p = 0; p < names->count; p++)
        if (wefti_plan_tier(plan, (weft_offload)what, names->items[p].name) !=
            tier_of(m, tier, what, &names->items[p]))
            return false;
    return true;
}

static weft_status add_entries(const wefti_movable *m, const int8_t *tier, int what,
                               weft_plan *plan) {
    const int64_t before = plan->offload.count;
    /* An entry replaces one of the plan that has the same pattern. */
    const wefti_movable_names *names = names_of(m, what);
    const bool others = what == WEFT_OFFLOAD_SAVED; /* cells that are no candidates */
    const bool rules = m->plan->offload.count || m->plan->place.count;
    const entry_form first = rules ? ENTRY_NAMES : others ? ENTRY_FAMILIES : ENTRY_ALL;
    for (int form = (int)first; form < ENTRY_FORMS; form++) {
        plan->offload.count = before;
        for (int32_t p = 0; p < names->count; p++)
            if (tier[what * m->groups + names->items[p].group] != WEFTI_RESIDENCY_STAYS)
                WEFT_TRY(add_entry(m, tier, what, &names->items[p], (entry_form)form, plan));
        if (says_it(m, tier, what, plan)) break;
    }
    return WEFT_OK;
}

weft_status wefti_movable_rules(const wefti_movable *m, const int8_t *tier, weft_plan *plan) {
    for (int what = 0; what < WEFT_OFFLOADS; what++) WEFT_TRY(add_entries(m, tier, what, plan));
    return WEFT_OK;
}
