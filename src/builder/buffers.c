/* Steps and buffers of a program that is being built. Arguments of steps are buffers, which get
 * offsets at the end. Persistent buffers are appended to the persistent arena, in the order of
 * their creation, unless one lies behind another. The other buffers share the transient arena by
 * lifetime. */
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "builder/build.h"
#include "device/disk.h"

weft_status wefti_buffer_add(wefti_emitter *b, int64_t bytes, const char *name, int32_t *out) {
    WEFT_TRY(WEFT_GROW(b->buffers, b->buffer_count, b->buffer_cap));
    b->buffers[b->buffer_count] =
        (wefti_buffer){.life = {.bytes = bytes, .first = b->now, .last = b->now},
                       .space = WEFTI_SPACE_DEVICE,
                       .of = -1,
                       .persistent = false,
                       .behind = -1,
                       .before = -1,
                       .param = -1,
                       .name = name};
    *out = (int32_t)b->buffer_count++;
    return WEFT_OK;
}

weft_status wefti_buffer_part(wefti_emitter *b, int32_t of, int32_t micro, int64_t stride,
                              int64_t bytes, int32_t *out) {
    WEFT_TRY(wefti_buffer_add(b, bytes, b->buffers[of].name, out));
    b->buffers[*out].of = of;
    b->buffers[*out].delta = micro * stride;
    b->buffers[*out].stride = stride;
    return WEFT_OK;
}

weft_status wefti_buffer_persistent(wefti_emitter *b, int64_t bytes, const char *name,
                                    int32_t *out) {
    WEFT_TRY(wefti_buffer_add(b, bytes, name, out));
    wefti_buffer *buffer = &b->buffers[*out];
    buffer->persistent = true;
    return WEFT_OK;
}

void wefti_buffer_use(wefti_emitter *b, int32_t buffer) {
    wefti_lifetime *life = buffer < 0 ? NULL : &b->buffers[buffer].life;
    if (life && life->first > b->now) life->first = b->now;
    if (life && life->last < b->now) life->last = b->now;
}

wefti_location wefti_buffer_location(const wefti_emitter *b, int32_t buffer) {
    if (buffer < 0) return WEFTI_NOWHERE;
    const wefti_buffer *x = &b->buffers[buffer], *whole = x;
    while (whole->of >= 0) whole = &b->buffers[whole->of];
    return wefti_location_of(whole->space, whole->persistent ? WEFTI_PERSISTENT : WEFTI_TRANSIENT,
                             x->life.offset);
}

/* ---- steps ---- */

weft_status wefti_build_begin(wefti_emitter *b, wefti_section s, wefti_step_kind kind,
                              wefti_phase phase, const char *name, int32_t args,
                              wefti_draft_step **out) {
    WEFT_TRY(WEFT_GROW(b->steps[s], b->step_count[s], b->step_cap[s]));
    wefti_draft_step *d = &b->steps[s][b->step_count[s]];
    memset(d, 0, sizeof *d);
    d->step.kind = kind;
    d->step.phase = phase;
    d->step.name = name;
    d->step.tensor = -1;
    d->step.micro = b->now_micro;
    d->frame = -1;
    d->step.space = b->space;
    d->at = b->now;
    d->arg_count = args;
    WEFT_TRY(wefti_new_array(b->scratch, args, sizeof *d->args, &d->args));
    for (int32_t a = 0; a < args; a++) d->args[a].buffer = -1;
    b->step_count[s]++;
    *out = d;
    return WEFT_OK;
}

void wefti_build_arg(wefti_emitter *b, wefti_draft_step *d, int32_t arg, int32_t buffer,
                     int64_t delta) {
    d->args[arg] = (wefti_buffer_ref){buffer, delta};
    wefti_buffer_use(b, buffer);
}

/* Sets the frame and the random stream of a routine's call, then advances the time. */
weft_status wefti_build_end(wefti_emitter *b, wefti_draft_step *d, int32_t routine) {
    const wefti_routine *r = b->p->routines[routine];
    d->step.routine = r;
    d->step.to = r->code_count;
    d->step.parts = 1;
    if (r->frame_bytes > 0) {
        WEFT_TRY(wefti_buffer_add(
            b, r->frame_bytes, wefti_build_name(b, "working memory of ", d->step.name), &d->frame));
        b->buffers[d->frame].space = d->step.space;
    }
    d->step.stream = wefti_stream_of(d->step.name);
    b->now++;
    return WEFT_OK;
}

/* ---- places ---- */

/* Whether a buffer gets a place of its own in the transient arena of a space. */
static bool is_placed(const wefti_buffer *x, wefti_space space) {
    return !x->persistent && x->of < 0 && x->space == space;
}

/* The time at which most bytes of device memory are alive, and how many; `saved`: of saved blocks
 * only. */
static weft_status find_peak(const wefti_emitter *b, bool saved, int32_t *out_time,
                             int64_t *out_bytes) {
    int64_t *alive;
    WEFT_NEW_ARRAY(alive, int64_t, b->now + 2);
    for (int64_t i = 0; i < b->buffer_count; i++) {
        const wefti_buffer *x = &b->buffers[i];
        if (!is_placed(x, WEFTI_SPACE_DEVICE) || (saved && !x->saved)) continue;
        alive[x->life.first] += x->life.bytes;
        alive[x->life.last + 1] -= x->life.bytes;
        if (x->life.until <= 0) continue;
        alive[x->life.again] += x->life.bytes;
        alive[x->life.until + 1] -= x->life.bytes;
    }
    int64_t sum = 0;
    *out_bytes = -1;
    for (int32_t t = 0; t <= b->now; t++) {
        sum += alive[t];
        if (sum > *out_bytes) {
            *out_bytes = sum;
            *out_time = t;
        }
    }
    wefti_free(alive);
    return WEFT_OK;
}

/* Stores the step that runs at the time `worst`, or the last one before it. */
static void find_peak_step(wefti_emitter *b, int32_t worst) {
    int32_t latest = -1;
    b->p->peak_step = -1;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int64_t k = 0; k < b->step_count[s]; k++) {
            int32_t at = b->steps[s][k].at;
            if (at > worst || at <= latest) continue;
            latest = at;
            b->p->peak_section = (wefti_section)s;
            b->p->peak_step = (int32_t)k;
        }
}

static bool is_alive(const wefti_lifetime *x, int32_t at) {
    return (x->first <= at && at <= x->last) || (x->again <= at && at <= x->until);
}

/* Lists the largest buffers of device memory that are alive at the peak, in descending order. Of
 * equal buffers the earliest comes first. */
static weft_status find_largest(wefti_emitter *b) {
    enum { MOST = 32 };
    const wefti_buffer *largest[MOST];
    int32_t worst = 0, unused, count = 0;
    int64_t bytes;
    WEFT_TRY(find_peak(b, true, &unused, &b->p->saved_bytes));
    WEFT_TRY(find_peak(b, false, &worst, &bytes));
    find_peak_step(b, worst);
    for (int64_t i = 0; i < b->buffer_count; i++) {
        const wefti_buffer *x = &b->buffers[i];
        if (x->of >= 0 || x->space != WEFTI_SPACE_DEVICE ||
            (!x->persistent && !is_alive(&x->life, worst)))
            continue;
        if (count == MOST && largest[MOST - 1]->life.bytes >= x->life.bytes) continue;
        int32_t at = count < MOST ? count++ : MOST - 1;
        for (; at > 0 && largest[at - 1]->life.bytes < x->life.bytes; at--)
            largest[at] = largest[at - 1];
        largest[at] = x;
    }
    wefti_memory_item *items = wefti_arena_alloc(b->p->arena, (size_t)(count + 1) * sizeof *items);
    WEFT_REQUIRE(items, WEFT_E_NOMEM, "no memory for the memory table");
    for (int32_t i = 0; i < count; i++) {
        (void)snprintf(items[i].name, sizeof items[i].name, "%s", largest[i]->name);
        items[i].bytes = largest[i]->life.bytes;
    }
    b->p->largest = items;
    b->p->largest_count = count;
    return WEFT_OK;
}

/* A bucket's buffer lives as long as the gradients in it. */
static void widen_packed(wefti_emitter *b) {
    for (int64_t i = 0; i < b->buffer_count; i++) {
        if (b->buffers[i].of < 0 || b->buffers[i].stride) continue;
        const wefti_lifetime *part = &b->buffers[i].life;
        wefti_lifetime *whole = &b->buffers[b->buffers[i].of].life;
        if (part->first < whole->first) whole->first = part->first;
        if (part->last > whole->last) whole->last = part->last;
    }
}

static weft_status place_transient(wefti_emitter *b, wefti_space space, int64_t *out) {
    wefti_lifetime *life;
    WEFT_NEW_ARRAY(life, wefti_lifetime, b->buffer_count + 1);
    int64_t count = 0, end = 0;
    for (int64_t i = 0; i < b->buffer_count; i++) {
        if (!is_placed(&b->buffers[i], space)) continue;
        life[count] = b->buffers[i].life;
        if (space == WEFTI_SPACE_DISK) /* no two buffers share a block */
            life[count].bytes = wefti_round_up(life[count].bytes, WEFTI_DISK_ALIGNMENT);
        count++;
    }
    weft_status status = wefti_place(life, count, out);
#ifdef WEFT_DEBUG_CHECKS
    if (status == WEFT_OK) status = wefti_place_check(life, count, *out);
#endif
    count = 0;
    for (int64_t i = 0; i < b->buffer_count && status == WEFT_OK; i++) {
        wefti_lifetime *x = &b->buffers[i].life;
        if (!is_placed(&b->buffers[i], space)) continue;
        x->offset = life[count++].offset;
        if (x->bytes && x->offset + x->bytes > end) end = x->offset + x->bytes;
    }
    *out = end;
    for (int64_t i = 0; i < b->buffer_count; i++) /* parts come after the whole */
        if (b->buffers[i].of >= 0)
            b->buffers[i].life.offset =
                b->buffers[b->buffers[i].of].life.offset + b->buffers[i].delta;
    wefti_free(life);
    return status;
}

/* The step that runs at each time, NULL: none. */
static weft_status list_steps(wefti_emitter *b, wefti_draft_step ***out) {
    WEFT_NEW_ARRAY(*out, wefti_draft_step *, b->now + 1);
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int64_t k = 0; k < b->step_count[s]; k++)
            if (b->steps[s][k].at <= b->now) (*out)[b->steps[s][k].at] = &b->steps[s][k];
    return WEFT_OK;
}

/* A time without a step counts for the step before it, or for the first one. */
static void give_usage(const wefti_emitter *b, wefti_draft_step *const *at, const int64_t *highest,
                       const int64_t *alive) {
    wefti_draft_step *d = NULL;
    for (int32_t t = 0; t <= b->now && !d; t++) d = at[t];
    for (int32_t t = 0; t <= b->now && d; t++) {
        if (at[t]) d = at[t];
        const int64_t used = b->p->persistent_bytes + highest[t];
        const int64_t all = b->p->persistent_bytes + alive[t];
        if (used > d->step.used_bytes) d->step.used_bytes = used;
        if (all > d->step.alive_bytes) d->step.alive_bytes = all;
    }
}

/* How much of device memory each step uses. */
static weft_status find_usage(wefti_emitter *b) {
    const size_t times = (size_t)b->now + 1;
    wefti_draft_step **at = NULL;
    wefti_lifetime *life;
    WEFT_NEW_ARRAY(life, wefti_lifetime, b->buffer_count + 1);
    int64_t count = 0, *usage = wefti_calloc(2 * times, sizeof *usage);
    for (int64_t i = 0; i < b->buffer_count; i++)
        if (is_placed(&b->buffers[i], WEFTI_SPACE_DEVICE)) life[count++] = b->buffers[i].life;
    weft_status status =
        usage ? list_steps(b, &at) : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the memory table");
    if (status >= 0) status = wefti_place_usage(life, count, (int32_t)times, usage, usage + times);
    if (status >= 0) give_usage(b, at, usage, usage + times);
    wefti_free(life);
    wefti_free(usage);
    wefti_free(at);
    return status;
}

static weft_status check_space(const wefti_emitter *b, const wefti_draft_step *d, int32_t buffer) {
    WEFT_REQUIRE(
        buffer < 0 || b->buffers[buffer].space == d->step.space, WEFT_E_BUG,
        "step '%s' works on '%s' in space %s, but it runs in space %s; copy it there before",
        d->step.name, b->buffers[buffer].name, wefti_space_text(b->buffers[buffer].space),
        wefti_space_text(d->step.space));
    return WEFT_OK;
}

/* All that a step works on lies in one space, unless it copies between spaces: device memory, or
 * host memory for a call of the host. */
static weft_status check_spaces(const wefti_emitter *b, const wefti_draft_step *d) {
    if (d->step.kind == WEFTI_STEP_COPY || wefti_step_copy(b->p, &d->step)) return WEFT_OK;
    for (int32_t a = 0; a < d->arg_count; a++) WEFT_TRY(check_space(b, d, d->args[a].buffer));
    return check_space(b, d, d->frame);
}

/* Places buffer i, and those behind it. */
static weft_status place_persistent(wefti_emitter *b, int64_t i, int64_t *const *end) {
    wefti_buffer *x = &b->buffers[i];
    if (x->space == WEFTI_SPACE_DISK) /* no two buffers share a block */
        *end[x->space] = wefti_round_up(*end[x->space], WEFTI_DISK_ALIGNMENT);
    x->life.offset = *end[x->space];
    WEFT_TRY(wefti_place_count(x->life.bytes, end[x->space]));
    return x->before < 0 ? WEFT_OK : place_persistent(b, x->before, end);
}

weft_status wefti_buffers_finish(wefti_emitter *b) {
    wefti_program *p = b->p;
    int64_t *persistent[WEFTI_SPACES] = {&p->persistent_bytes};
    for (int s = 0; s < WEFTI_SPACES; s++) {
        if (s != WEFTI_SPACE_DEVICE) persistent[s] = &p->tier_bytes[s][WEFTI_PERSISTENT];
        *persistent[s] = b->spec->before.of[s][WEFTI_PERSISTENT];
    }
    for (int64_t i = 0; i < b->buffer_count; i++) {
        const wefti_buffer *x = &b->buffers[i];
        if (x->persistent && !x->fixed && x->behind < 0)
            WEFT_TRY(place_persistent(b, i, persistent));
    }
    widen_packed(b);
    WEFT_TRY(place_transient(b, WEFTI_SPACE_DEVICE, &p->transient_bytes));
    for (int s = WEFTI_SPACE_DEVICE + 1; s < WEFTI_SPACES; s++)
        WEFT_TRY(place_transient(b, (wefti_space)s, &p->tier_bytes[s][WEFTI_TRANSIENT]));
    p->peak_bytes = p->persistent_bytes + p->transient_bytes;
    WEFT_TRY(find_largest(b));
    WEFT_TRY(find_usage(b));
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        p->step_count[s] = (int32_t)b->step_count[s];
        p->steps[s] =
            wefti_arena_alloc(p->arena, (size_t)(b->step_count[s] + 1) * sizeof(wefti_step));
        WEFT_REQUIRE(p->steps[s], WEFT_E_NOMEM, "no memory for the schedule");
        for (int64_t k = 0; k < b->step_count[s]; k++) {
            wefti_draft_step *d = &b->steps[s][k];
            WEFT_TRY(check_spaces(b, d));
            d->step.args =
                wefti_arena_alloc(p->arena, (size_t)(d->arg_count + 1) * sizeof(wefti_location));
            d->step.names =
                wefti_arena_alloc(p->arena, (size_t)(d->arg_count + 1) * sizeof(char *));
            d->step.params =
                wefti_arena_alloc(p->arena, (size_t)(d->arg_count + 1) * sizeof(int32_t));
            WEFT_REQUIRE(d->step.args && d->step.names && d->step.params, WEFT_E_NOMEM,
                         "no memory for the schedule");
            if (d->strides) {
                d->step.strides =
                    wefti_arena_alloc(p->arena, (size_t)d->arg_count * sizeof(int64_t));
                WEFT_REQUIRE(d->step.strides, WEFT_E_NOMEM, "no memory for the schedule");
                memcpy(d->step.strides, d->strides, (size_t)d->arg_count * sizeof(int64_t));
            }
            for (int32_t a = 0; a < d->arg_count; a++) {
                const wefti_buffer *buffer =
                    d->args[a].buffer < 0 ? NULL : &b->buffers[d->args[a].buffer];
                d->step.args[a] = wefti_location_plus(wefti_buffer_location(b, d->args[a].buffer),
                                                      d->args[a].delta);
                d->step.names[a] = buffer ? buffer->name : NULL;
                d->step.params[a] = buffer ? buffer->param : -1;
            }
            if (d->frame >= 0) d->step.frame = wefti_buffer_location(b, d->frame);
            p->steps[s][k] = d->step;
        }
    }
    return WEFT_OK;
}
