/* Micro-batch interleaving: copies of a microbatch alternate within the calls that all of them run.
 * A call is divided after each of its transfers. While the transfer of one copy is in flight,
 * another copy computes.
 *
 * The calls are built one copy after the other. Their steps are then reordered by parts: part 0 of
 * each copy, part 1 of each, and so on. Steps built before a copy's call stay before its first
 * part; steps built after the call stay after its last part. The order of memory accesses is kept:
 * if a part would add to a buffer too early, the routine adds at its end instead. At most
 * WEFTI_COMM_DEPTH copies interleave, because each has a post of the same transfer in flight.
 * Source: MindSpore's MicroBatchInterleaved.
 *
 * All ranks must post in the same order. So the decisions depend only on data that all ranks have
 * in common, calls and their transfers, and never on this rank's kernels. */
#include <string.h>

#include "builder/build.h"

/* The range of parts that access a buffer in some way. */
typedef struct span {
    bool any;
    int32_t first, last;
} span;

/* The ranges of parts in which a copy accesses a buffer, and writes to it. */
typedef struct touch {
    span all, writes;
} touch;

/* The steps [begin, end) of one copy in the section; step `call` is its call. */
typedef struct copy {
    int64_t begin, call, end;
    const wefti_routine *routine;
    int32_t *part_end; /* [parts]: the instruction behind the part's last one */
    touch *touches;    /* [buffers], of the group */
} copy;

typedef struct group {
    wefti_emitter *b;
    wefti_section section;
    wefti_draft_step *steps;
    copy copy[WEFTI_COMM_DEPTH];
    int copies;
    int32_t parts;
    touch *touches;
    bool *seen; /* [buffers] */
    int32_t now;
    wefti_draft_step *order;
    bool ordered; /* the steps are in the order of parts */
} group;

/* ---- parts ---- */

/* Divides a routine after each transfer; the last part ends with the routine. */
static weft_status find_part_ends(const group *g, copy *t, int32_t *out_parts) {
    const wefti_routine *r = t->routine;
    *out_parts = 0;
    WEFT_TRY(wefti_new_array(g->b->scratch, r->code_count, sizeof(int32_t), &t->part_end));
    for (int32_t k = 0; k < r->code_count; k++)
        if (r->code[k].transfer >= 0) t->part_end[(*out_parts)++] = k + 1;
    t->part_end[(*out_parts)++] = r->code_count;
    return WEFT_OK;
}

static bool communicates(const wefti_step *x) {
    if (x->kind == WEFTI_STEP_POST || x->kind == WEFTI_STEP_WAIT) return true;
    for (int32_t k = 0; x->kind == WEFTI_STEP_CALL && k < x->routine->code_count; k++)
        if (x->routine->code[k].transfer >= 0) return true;
    return false;
}

/* Whether the copies must not interleave. A cell that changes a state in place reads the value that
 * the copy before has made. A WAIT ends the oldest post of its transfer, so no other call may use
 * the same transfers in between. */
static bool stay_whole(const group *g) {
    for (int i = 0; i < g->copies; i++)
        for (int32_t o = 0; o < g->copy[i].routine->outputs; o++)
            if (g->copy[i].routine->alias[o] >= 0) return true;
    for (int64_t k = g->copy[0].call + 1; k < g->copy[g->copies - 1].call; k++) {
        const wefti_step *x = &g->steps[k].step;
        bool of_copy = false;
        for (int i = 1; i < g->copies; i++) of_copy |= k == g->copy[i].call;
        if (x->kind == WEFTI_STEP_COPY) return true;
        if (!of_copy && x->kind == WEFTI_STEP_CALL && communicates(x)) return true;
    }
    return false;
}

/* ---- which part touches which buffer ---- */

static void widen(span *s, int32_t first, int32_t last) {
    if (!s->any || first < s->first) s->first = first;
    if (!s->any || last > s->last) s->last = last;
    s->any = true;
}

static void touch_buffer(touch *touches, int32_t buffer, int32_t first, int32_t last, bool write) {
    if (buffer < 0) return;
    widen(&touches[buffer].all, first, last);
    if (write) widen(&touches[buffer].writes, first, last);
}

static void touch_refs(copy *t, const wefti_draft_step *call, const wefti_ref *ref, int count,
                       int32_t first, int32_t last, bool write) {
    for (int i = 0; i < count; i++)
        if (ref[i].arg >= 0)
            touch_buffer(t->touches, call->args[ref[i].arg].buffer, first, last, write);
}

/* Records the buffers of a call's instructions. A transfer ends when the next part begins. */
static void touch_call(copy *t, const wefti_draft_step *call, int32_t parts) {
    for (int32_t k = 0, part = 0; k < t->routine->code_count; k++) {
        const wefti_instruction *x = &t->routine->code[k];
        while (part + 1 < parts && k >= t->part_end[part]) part++;
        int32_t last = part + (x->transfer >= 0);
        touch_refs(t, call, x->in, x->node ? x->node->inputs : 1, part, last, false);
        touch_refs(t, call, x->out, x->node ? x->node->outputs : 1, part, last, true);
        touch_refs(t, call, &x->workspace, 1, part, last, true);
    }
}

static void find_touches(const group *g, copy *t) {
    touch_call(t, &g->steps[t->call], g->parts);
    for (int64_t k = t->begin; k < t->end; k++) {
        const wefti_draft_step *d = &g->steps[k];
        int32_t part = k < t->call ? 0 : g->parts - 1;
        for (int32_t a = 0; k != t->call && a < d->arg_count; a++)
            touch_buffer(t->touches, d->args[a].buffer, part, part,
                         d->step.kind != WEFTI_STEP_LOSS);
    }
}

/* Whether the order of parts keeps the order of memory accesses: if one of two copies writes to a
 * buffer, the earlier copy must finish with it first. The decision must be equal on all ranks. No
 * known routine breaks this rule after wefti_interleave_too_early has made its additions late. If
 * one did on one rank only, matching would refuse the programs. */
static bool memory_allows(const group *g) {
    for (int j = 1; j < g->copies; j++)
        for (int i = 0; i < j; i++)
            for (int64_t v = 0; v < g->b->buffer_count; v++) {
                const touch *x = &g->copy[i].touches[v], *y = &g->copy[j].touches[v];
                if (x->writes.any && y->all.any && x->writes.last > y->all.first) return false;
                if (x->all.any && y->writes.any && x->all.last > y->writes.first) return false;
            }
    return true;
}

/* ---- the order of parts ---- */

static wefti_draft_step part_of(const group *g, const copy *t, int32_t part) {
    wefti_draft_step d = g->steps[t->call];
    d.step.from = part ? t->part_end[part - 1] : 0;
    d.step.to = t->part_end[part];
    d.step.part = part;
    d.step.parts = g->parts;
    d.step.waits = part > 0;
    d.step.leaves = part + 1 < g->parts;
    return d;
}

static int64_t order_steps(const group *g) {
    wefti_draft_step *out = g->order;
    int64_t n = 0;
    for (int32_t part = 0; part < g->parts; part++)
        for (int i = 0; i < g->copies; i++) {
            const copy *t = &g->copy[i];
            for (int64_t k = t->begin; part == 0 && k < t->call; k++) out[n++] = g->steps[k];
            out[n++] = part_of(g, t, part);
            for (int64_t k = t->call + 1; part == g->parts - 1 && k < t->end; k++)
                out[n++] = g->steps[k];
        }
    return n;
}

/* Extends a buffer's life from the first to the last step that touches it. */
static void renew_lifetime(const group *g, int32_t buffer, int32_t at) {
    if (buffer < 0) return;
    wefti_lifetime *life = &g->b->buffers[buffer].life;
    if (!g->seen[buffer] && life->first >= g->now) life->first = at;
    if (life->last < INT32_MAX) life->last = at;
    g->seen[buffer] = true;
}

/* Numbers the steps from `begin` on anew, starting with time `now`. */
static void renew_times(group *g, int64_t begin, int32_t now) {
    wefti_emitter *b = g->b;
    g->now = b->now = now;
    memset(g->seen, 0, (size_t)b->buffer_count);
    for (int64_t k = begin; k < b->step_count[g->section]; k++, b->now++) {
        wefti_draft_step *d = &b->steps[g->section][k];
        d->at = b->now;
        for (int32_t a = 0; a < d->arg_count; a++) renew_lifetime(g, d->args[a].buffer, b->now);
        renew_lifetime(g, d->frame, b->now);
    }
}

static weft_status put_in_order(group *g) {
    wefti_emitter *b = g->b;
    int64_t count = order_steps(g), begin = g->copy[0].begin;
    while (b->step_cap[g->section] < begin + count) {
        int64_t used = b->step_cap[g->section];
        WEFT_TRY(WEFT_GROW(b->steps[g->section], used, b->step_cap[g->section]));
    }
    memcpy(&b->steps[g->section][begin], g->order, (size_t)count * sizeof *g->order);
    b->step_count[g->section] = begin + count;
    g->steps = b->steps[g->section];
    g->ordered = true;
    renew_times(g, begin, b->copies_now);
    return WEFT_OK;
}

static weft_status interleave(group *g) {
    int32_t parts;
    for (int i = 0; i < g->copies; i++) {
        WEFT_TRY(find_part_ends(g, &g->copy[i], &parts));
        if (i == 0) g->parts = parts;
        if (parts == 1 || parts != g->parts) return WEFT_OK;
    }
    if (stay_whole(g)) return WEFT_OK;
    for (int i = 0; i < g->copies; i++) find_touches(g, &g->copy[i]);
    return memory_allows(g) ? put_in_order(g) : WEFT_OK;
}

/* ---- from call to call ---- */

/* Records all buffers that a step may touch. A call reads its routine's inputs; an update also
 * writes to them. */
static void touch_step(touch *touches, const wefti_draft_step *d) {
    int32_t inputs = d->step.kind == WEFTI_STEP_LOSS;
    if (d->step.routine && d->step.phase != WEFTI_UPDATE) inputs = d->step.routine->inputs;
    for (int32_t a = 0; a < d->arg_count; a++)
        touch_buffer(touches, d->args[a].buffer, 0, 0, a >= inputs);
}

/* Whether steps [middle, end) may move before [begin, middle). `call` is a copy's call or its first
 * part; the step at `begin` is the last part of a call. Gathers and reductions keep their places.
 * Copies between spaces may move: only some ranks have those of a piece that is empty on others. */
static bool may_swap(const group *g, int64_t begin, int64_t middle, int64_t call, int64_t end) {
    int64_t buffers = g->b->buffer_count;
    touch *x = g->touches, *y = g->touches + buffers;
    for (int64_t k = begin + 1; k < end; k++)
        if (communicates(&g->steps[k].step) && !wefti_step_copy(g->b->p, &g->steps[k].step) &&
            (k != call || g->steps[k].step.parts == 1))
            return false;
    memset(g->touches, 0, (size_t)(2 * buffers) * sizeof *x);
    for (int64_t k = begin; k < middle; k++) touch_step(x, &g->steps[k]);
    for (int64_t k = middle; k < end; k++) touch_step(y, &g->steps[k]);
    for (int64_t v = 0; v < buffers; v++)
        if ((x[v].writes.any && y[v].all.any) || (x[v].all.any && y[v].writes.any)) return false;
    return true;
}

/* Swaps the last part of the last copy with the first part of the next call's first copy. Otherwise
 * that last part would wait for its transfer while no copy computes. */
static void swap_with_last(group *g, int64_t end) {
    wefti_emitter *b = g->b;
    int64_t begin = b->last_part, middle = g->copy[0].begin, count = end - middle;
    if (!may_swap(g, begin, middle, g->copy[0].call, end)) return;
    memcpy(g->order, &g->steps[middle], (size_t)count * sizeof *g->order);
    memmove(&g->steps[begin + count], &g->steps[begin],
            (size_t)(middle - begin) * sizeof *g->order);
    memcpy(&g->steps[begin], g->order, (size_t)count * sizeof *g->order);
    renew_times(g, begin, b->last_part_now);
}

static weft_status order_group(group *g) {
    wefti_emitter *b = g->b;
    int64_t buffers = b->buffer_count + 1, parts = 0;
    for (int i = 0; i < g->copies; i++) parts += g->copy[i].routine->code_count + 1;
    int64_t steps = g->copy[g->copies - 1].end - g->copy[0].begin;
    g->touches = wefti_calloc((size_t)(WEFTI_COMM_DEPTH * buffers), sizeof *g->touches);
    g->seen = wefti_calloc((size_t)buffers, sizeof *g->seen);
    g->order = wefti_calloc((size_t)(steps + parts), sizeof *g->order);
    WEFT_REQUIRE(g->touches && g->seen && g->order, WEFT_E_NOMEM, "no memory to build a program");
    for (int i = 0; i < g->copies; i++) g->copy[i].touches = g->touches + i * buffers;
    if (g->copies > 1) WEFT_TRY(interleave(g));
    int64_t first_end = g->ordered ? g->copy[0].call + 1 : g->copy[0].end;
    if (b->last_part >= 0) swap_with_last(g, first_end);
    b->last_part = -1;
    if (!g->ordered) return WEFT_OK;
    int64_t count = b->step_count[g->section], k = count - 1;
    while (g->steps[k].step.kind != WEFTI_STEP_CALL || g->steps[k].step.parts == 1) k--;
    b->last_part = k;
    b->last_part_now = b->now - (int32_t)(count - k);
    return WEFT_OK;
}

/* ---- while calls are built ---- */

static bool interleaves(const wefti_emitter *b) {
    return b->copies > 0 && b->part && b->spec->plan->overlap && b->spec->plan->copies > 1;
}

weft_status wefti_interleave_begin(wefti_emitter *b, wefti_section s) {
    if (b->copies == WEFTI_COMM_DEPTH) WEFT_TRY(wefti_interleave_end(b, s));
    if (b->copies == 0) b->copies_now = b->now;
    b->copy[b->copies++] = (wefti_copy_start){b->step_count[s], -1};
    return WEFT_OK;
}

void wefti_interleave_call(wefti_emitter *b, wefti_section s) {
    if (b->copies) b->copy[b->copies - 1].call = b->step_count[s] - 1;
}

/* The first or last part in which a routine touches an argument, -1: none. */
static int32_t part_of_touch(const wefti_routine *r, int32_t arg, bool last) {
    int32_t found = -1;
    for (int32_t k = 0, part = 0; k < r->code_count; k++) {
        const wefti_instruction *x = &r->code[k];
        bool touched = x->workspace.arg == arg;
        for (int i = 0; i < (x->node ? x->node->inputs : 1); i++) touched |= x->in[i].arg == arg;
        for (int o = 0; o < (x->node ? x->node->outputs : 1); o++) touched |= x->out[o].arg == arg;
        if (touched && !last) return part;
        if (touched) found = part + (x->transfer >= 0);
        part += x->transfer >= 0;
    }
    return found;
}

bool wefti_interleave_too_early(const wefti_emitter *b, wefti_section s, const wefti_routine *r,
                                int32_t first_arg, int64_t outs, const int32_t *target) {
    if (!interleaves(b)) return false;
    for (int i = 0; i + 1 < b->copies; i++) {
        if (b->copy[i].call < 0) continue;
        const wefti_draft_step *before = &b->steps[s][b->copy[i].call];
        for (int64_t o = 0; o < outs; o++)
            for (int32_t a = before->step.routine->inputs; a < before->arg_count; a++) {
                if (target[o] < 0 || before->args[a].buffer != target[o]) continue;
                int32_t first = part_of_touch(r, first_arg + (int32_t)o, false);
                if (first >= 0 && part_of_touch(before->step.routine, a, true) > first) return true;
            }
    }
    return false;
}

weft_status wefti_interleave_end(wefti_emitter *b, wefti_section s) {
    group g = {.b = b, .section = s, .steps = b->steps[s], .copies = b->copies};
    bool calls = interleaves(b);
    for (int i = 0; i < b->copies && calls; i++) {
        copy *t = &g.copy[i];
        t->begin = b->copy[i].begin;
        t->call = b->copy[i].call;
        t->end = i + 1 < b->copies ? b->copy[i + 1].begin : b->step_count[s];
        calls = t->call >= 0;
        if (calls) t->routine = b->steps[s][t->call].step.routine;
    }
    b->copies = 0;
    weft_status status = calls ? order_group(&g) : WEFT_OK;
    wefti_free(g.touches);
    wefti_free(g.seen);
    wefti_free(g.order);
    return status;
}
