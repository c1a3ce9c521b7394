/* Loops: a section with many equal microbatches is built for fewer of them, and one period of its
 * steps becomes a loop.
 *
 * The section is built for so few microbatches that two whole periods follow each other, A and B.
 * wefti_loop_fold proves that B repeats A: each step of B is the step of A, `period` microbatches
 * later. Then it removes B and lets A run as often as the step's microbatches need. The steps
 * behind B become those of the last microbatches. If the proof fails, the caller builds the section
 * whole.
 *
 * What the proof says about buffers, with `image` the map from the buffers of A to those of B:
 *
 * - A buffer that is its own image stays: parameters and their gradients, states, outputs.
 * - A buffer that A makes and uses is the same memory in each iteration.
 * - A buffer w that lived before A has an image x that A makes. So x is read in the next iteration
 *   as A reads w, and both share one place: a slot. A must have done with w before it makes x. The
 *   slot lives until then, and again from x on, and other buffers may use the memory in between.
 * - A part of a larger buffer, as inputs are, moves on by a constant number of bytes. */
#include <string.h>

#include "builder/build.h"
#include "schedule/schedule.h"

/* ---- how much is built ---- */

/* Whether a value goes to a later virtual stage than the next one. Its sends may take long, and use
 * many channels in turn. */
static bool edge_skips(const wefti_decisions *dec) {
    for (int32_t k = 0; k < dec->call_count; k++)
        for (int i = 0; i < dec->calls[k].node->inputs; i++) {
            int32_t v = dec->calls[k].node->in[i], maker = v < 0 ? -1 : wefti_call_maker(dec, v);
            if (maker < 0 || dec->calls[maker].stage == dec->calls[k].stage) continue;
            if (dec->calls[k].part != dec->calls[maker].part + 1) return true;
        }
    return false;
}

void wefti_decide_loop(wefti_decisions *dec) {
    const weft_plan *plan = dec->spec->plan;
    dec->micros = dec->all_microbatches ? dec->spec->microbatches : 1;
    if (dec->micros == 1 || dec->spec->unrolled) return;
    int32_t groups = dec->micros / dec->copies, period = 1;
    /* The first reductions of level 2 write, later ones add. One may be in flight from one
     * microbatch to the next. */
    const bool writes = dec->late && plan->overlap;
    if (dec->stages == 1) { /* first passes, A, B, last pass */
        dec->loop.from = 1 + writes;
        if (groups > dec->loop.from + 3) groups = dec->loop.from + 3;
    } else {
        const weft_schedule kind = plan->pipeline.schedule;
        int32_t chunks = plan->pipeline.chunks, channels = edge_skips(dec) ? dec->stages : 1;
        int32_t sends = channels * WEFTI_EDGE_UNDER_WAY; /* in flight: they keep sent buffers */
        dec->loop.from = sends + writes;
        period = wefti_schedule_period(kind, dec->stages, dec->stage, chunks, sends + channels);
        groups = wefti_schedule_shorter(kind, dec->stages, dec->stage, groups, chunks, period,
                                        dec->loop.from);
    }
    if (groups * dec->copies == dec->micros) return;
    dec->loop.period = period * dec->copies;
    dec->micros = groups * dec->copies;
}

typedef struct loop_fold {
    wefti_emitter *b;
    wefti_section section;
    wefti_draft_step *steps;
    int64_t begin, count;    /* period A; period B follows it */
    int32_t *image, *origin; /* per buffer: its image, and the reverse; -1: none */
    int32_t *slot;           /* per buffer that A makes: the buffer whose place it shares, -1 */
    int32_t *made;           /* per buffer: the buffer that A makes in its place, -1 */
    int64_t *first, *last;   /* per buffer: the first and the last step that uses it, -1: none */
} loop_fold;

/* ---- B repeats A ---- */

/* A part of a larger buffer, for one microbatch. */
static bool moves(const wefti_buffer *x) {
    return x->of >= 0 && x->stride > 0;
}

static bool pair(loop_fold *f, int32_t x, int32_t y) {
    if (x < 0 || y < 0) return x < 0 && y < 0;
    const wefti_buffer *a = &f->b->buffers[x], *b = &f->b->buffers[y];
    if (moves(a) || moves(b))
        return a->of == b->of && b->delta - a->delta == f->b->dec->loop.period * a->stride;
    if (f->image[x] >= 0) return f->image[x] == y;
    if (f->origin[y] >= 0 || a->life.bytes != b->life.bytes || a->space != b->space) return false;
    if (x != y && (a->persistent || b->persistent)) return false;
    f->image[x] = y;
    f->origin[y] = x;
    return true;
}

static bool same_step(const wefti_step *x, const wefti_step *y, int32_t period) {
    return x->kind == y->kind && x->phase == y->phase && !strcmp(x->name, y->name) &&
           x->routine == y->routine &&
           (x->kind == WEFTI_STEP_COPY ? x->bytes == y->bytes : x->move == y->move) &&
           x->rows == y->rows && x->pitch[0] == y->pitch[0] && x->pitch[1] == y->pitch[1] &&
           x->stream == y->stream && x->micro + period == y->micro && x->tensor == y->tensor &&
           x->from == y->from && x->to == y->to && x->part == y->part && x->parts == y->parts;
}

static bool repeats(loop_fold *f) {
    for (int64_t k = f->begin; k < f->begin + f->count; k++) {
        const wefti_draft_step *x = &f->steps[k], *y = &f->steps[k + f->count];
        if (!same_step(&x->step, &y->step, f->b->dec->loop.period) ||
            x->arg_count != y->arg_count || !pair(f, x->frame, y->frame))
            return false;
        for (int32_t a = 0; a < x->arg_count; a++)
            if (x->args[a].delta != y->args[a].delta ||
                !pair(f, x->args[a].buffer, y->args[a].buffer))
                return false;
    }
    return true;
}

/* ---- buffers fit the loop ---- */

static void use(loop_fold *f, int32_t buffer, int64_t step) {
    if (buffer < 0) return;
    if (moves(&f->b->buffers[buffer])) use(f, f->b->buffers[buffer].of, step);
    if (f->first[buffer] < 0) f->first[buffer] = step;
    f->last[buffer] = step;
}

static void find_uses(loop_fold *f) {
    for (int64_t v = 0; v < f->b->buffer_count; v++) f->first[v] = f->last[v] = -1;
    for (int64_t k = 0; k < f->b->step_count[f->section]; k++) {
        const wefti_draft_step *d = &f->steps[k];
        use(f, d->frame, k);
        for (int32_t a = 0; a < d->arg_count; a++) use(f, d->args[a].buffer, k);
    }
}

/* Buffers that are no part of the section's own traffic. */
static bool stays(const wefti_buffer *x) {
    return x->persistent || moves(x) || x->life.last == INT32_MAX;
}

static bool fits(loop_fold *f, int32_t x) {
    int64_t behind_a = f->begin + f->count, behind_b = behind_a + f->count;
    int32_t y = f->image[x];
    bool late = f->last[x] >= behind_b;
    if (y == x) return true;
    if (y < 0) return stays(&f->b->buffers[x]) || f->first[x] >= behind_a || !late;
    if (stays(&f->b->buffers[x]) || stays(&f->b->buffers[y])) return false;
    if (f->first[x] >= f->begin) return f->first[y] == f->first[x] + f->count && !late;
    f->slot[y] = x;
    f->made[x] = y;
    return f->first[y] >= f->begin && f->first[y] < behind_a && f->first[y] > f->last[x];
}

/* ---- the loop ---- */

/* The number of a step when B is gone. */
static int32_t time_of(const loop_fold *f, int64_t step) {
    return f->steps[0].at + (int32_t)(step < f->begin + f->count ? step : step - f->count);
}

/* The last step that reads what A's last iteration leaves in `x`; -1: none behind the loop. */
static int64_t last_behind(const loop_fold *f, int32_t x) {
    int32_t y = f->image[x];
    return y >= 0 && f->last[y] >= f->begin + 2 * f->count ? f->last[y] : -1;
}

static void set_life(const loop_fold *f, int32_t x) {
    wefti_buffer *buffer = &f->b->buffers[x];
    wefti_lifetime *life = &buffer->life;
    int64_t end = f->begin + f->count - 1, first = f->first[x], last = f->last[x];
    if (stays(buffer)) return;
    if (first < 0) { /* no step uses it yet */
        int32_t behind_b = f->steps[0].at + (int32_t)(f->begin + 2 * f->count);
        if (life->first >= behind_b) {
            life->first -= (int32_t)f->count;
            life->last -= (int32_t)f->count;
        }
        return;
    }
    if ((first > end && first <= end + f->count) || f->slot[x] >= 0) { /* B's, or in a slot */
        *life = (wefti_lifetime){.bytes = 0};
        return;
    }
    int32_t made = f->made[x], y = f->image[x];
    if (y == x) { /* lives through all iterations */
        if (first > f->begin) first = f->begin;
        if (last < end) last = end;
    } else if (y >= 0 && made < 0) {
        if (last > end) last = end; /* what B reads is a slot's */
        if (last_behind(f, x) > last) last = last_behind(f, x);
    }
    if (first >= f->begin || y == x) life->first = time_of(f, first);
    life->last = time_of(f, last);
    if (made < 0) return;
    int64_t until = last_behind(f, made);
    life->again = time_of(f, f->first[made]);
    life->until = time_of(f, until > end ? until : end);
}

static int32_t place_of(const loop_fold *f, int32_t x) {
    int64_t behind_a = f->begin + f->count;
    if (x < 0 || moves(&f->b->buffers[x])) return x;
    if (f->first[x] >= behind_a && f->first[x] < behind_a + f->count) x = f->origin[x];
    return f->slot[x] >= 0 ? f->slot[x] : x;
}

static weft_status set_strides(const loop_fold *f, wefti_draft_step *d) {
    for (int32_t a = 0; a < d->arg_count; a++) {
        int32_t x = d->args[a].buffer;
        if (x < 0 || !moves(&f->b->buffers[x])) continue;
        if (!d->strides)
            WEFT_TRY(wefti_new_array(f->b->scratch, d->arg_count, sizeof *d->strides, &d->strides));
        d->strides[a] = f->b->dec->loop.period * f->b->buffers[x].stride;
    }
    return WEFT_OK;
}

/* Moves a step behind the loop to the last microbatches. */
static void move_on(const loop_fold *f, wefti_draft_step *d, int64_t k) {
    const wefti_emitter *b = f->b;
    int32_t later = b->spec->microbatches - b->dec->micros;
    d->at -= (int32_t)f->count;
    if (k >= b->loop.tasks_end) return;
    d->step.micro += later;
    if (d->step.part > 0) return; /* the parts of a call share their arguments */
    for (int32_t a = 0; a < d->arg_count; a++) {
        int32_t x = d->args[a].buffer;
        if (x >= 0 && moves(&b->buffers[x])) d->args[a].delta += later * b->buffers[x].stride;
    }
}

static weft_status rewrite(loop_fold *f) {
    wefti_emitter *b = f->b;
    int64_t behind_a = f->begin + f->count, behind_b = behind_a + f->count;
    for (int64_t k = f->begin; k < b->step_count[f->section]; k++) {
        wefti_draft_step *d = &f->steps[k];
        if (k < behind_a) WEFT_TRY(set_strides(f, d));
        if (k >= behind_b) move_on(f, d, k);
        d->frame = place_of(f, d->frame);
        for (int32_t a = 0; a < d->arg_count; a++)
            d->args[a].buffer = place_of(f, d->args[a].buffer);
    }
    memmove(&f->steps[behind_a], &f->steps[behind_b],
            (size_t)(b->step_count[f->section] - behind_b) * sizeof *f->steps);
    b->step_count[f->section] -= f->count;
    b->now -= (int32_t)f->count;
    return WEFT_OK;
}

static weft_status add_loop(const loop_fold *f) {
    wefti_program *p = f->b->p;
    const wefti_build_loop *l = &f->b->loop;
    int32_t more = (f->b->spec->microbatches - f->b->dec->micros) / f->b->dec->loop.period;
    wefti_loop *loop = wefti_arena_alloc(p->arena, sizeof *loop);
    WEFT_REQUIRE(loop, WEFT_E_NOMEM, "no memory for the schedule");
    *loop = (wefti_loop){(int32_t)f->begin, (int32_t)f->count, more + 2, f->b->dec->loop.period};
    p->loops[f->section] = loop;
    p->loop_count[f->section] = 1;
    const wefti_loop_mark *m = l->mark;
    p->forward_flops += more * (m[1].forward_flops - m[0].forward_flops);
    p->backward_flops += more * (m[1].backward_flops - m[0].backward_flops);
    return WEFT_OK;
}

void wefti_loop_mark_at(wefti_emitter *b, wefti_section s, int number) {
    b->loop.mark[number] =
        (wefti_loop_mark){b->step_count[s], b->p->forward_flops, b->p->backward_flops};
    if (number + 1 > b->loop.marks) b->loop.marks = number + 1;
}

weft_status wefti_loop_fold(wefti_emitter *b, wefti_section s) {
    const wefti_loop_mark *m = b->loop.mark;
    loop_fold f = {.b = b, .section = s, .steps = b->steps[s], .begin = m[0].step};
    if (!b->dec->loop.period) return WEFT_OK;
    b->loop.refused = true;
    f.count = m[1].step - m[0].step;
    if (b->loop.marks < 3 || f.count == 0 || m[2].step - m[1].step != f.count) return WEFT_OK;
    WEFT_TRY(wefti_new_indices(b->scratch, b->buffer_count, &f.image));
    WEFT_TRY(wefti_new_indices(b->scratch, b->buffer_count, &f.origin));
    WEFT_TRY(wefti_new_indices(b->scratch, b->buffer_count, &f.slot));
    WEFT_TRY(wefti_new_indices(b->scratch, b->buffer_count, &f.made));
    WEFT_TRY(wefti_new_array(b->scratch, b->buffer_count, sizeof *f.first, &f.first));
    WEFT_TRY(wefti_new_array(b->scratch, b->buffer_count, sizeof *f.last, &f.last));
    find_uses(&f);
    if (!repeats(&f)) return WEFT_OK;
    for (int32_t x = 0; x < b->buffer_count; x++)
        if (!fits(&f, x)) return WEFT_OK;
    b->loop.refused = false;
    for (int32_t x = 0; x < b->buffer_count; x++) set_life(&f, x);
    WEFT_TRY(rewrite(&f));
    return add_loop(&f);
}
