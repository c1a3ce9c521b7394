/* The bytes that a step of a program may touch, for tests that move them. */
#ifndef WEFT_TESTS_TOUCHES_H
#define WEFT_TESTS_TOUCHES_H

#include "support.h"

#include "program/program.h"

enum { MOST_RANGES = 256 };

typedef struct place {
    wefti_location at;
    int64_t bytes;
} place;

static inline bool overlaps(place a, place b) {
    return a.at.bits < b.at.bits + b.bytes && b.at.bits < a.at.bits + a.bytes;
}

static inline int64_t argument_bytes(const wefti_program *p, const wefti_step *step, int32_t a) {
    const wefti_routine *r = step->routine;
    if (step->strides && step->strides[a]) return (int64_t)1 << 40; /* all iterations */
    if (step->kind == WEFTI_STEP_LOSS) return (int64_t)sizeof(double);
    if (step->kind == WEFTI_STEP_COPY)
        return (wefti_copy_rows(step) - 1) * step->pitch[a] + step->bytes;
    if (wefti_step_copy(p, step)) return wefti_step_copy(p, step)->bytes;
    if (step->kind != WEFTI_STEP_CALL) {
        const wefti_transfer *t =
            wefti_partition_transfer(p->partition, wefti_step_transfer_of(p, step));
        return wefti_region_elems(a ? &t->want[t->me] : &t->have[t->me], t->rank) *
               (int64_t)weft_dtype_bytes(t->dtype);
    }
    if (a == r->saved_arg) return r->saved_bytes;
    return weft_desc_bytes(
        &r->body->values[a < r->inputs ? r->body->in[a] : r->body->out[a - r->inputs]].desc);
}

static inline int places_of(const wefti_program *p, const wefti_step *step, place *out) {
    const int32_t args = step->kind == WEFTI_STEP_CALL   ? step->routine->args
                         : step->kind == WEFTI_STEP_LOSS ? 1
                                                         : 2;
    int count = 0;
    assert_true(args < MOST_RANGES);
    for (int32_t a = 0; a < args; a++)
        if (wefti_location_exists(step->args[a]))
            out[count++] = (place){step->args[a], argument_bytes(p, step, a)};
    if (step->kind == WEFTI_STEP_CALL && step->routine->frame_bytes)
        out[count++] = (place){step->frame, step->routine->frame_bytes};
    return count;
}

static inline bool touches(const wefti_program *p, const wefti_step *step, place x) {
    place all[MOST_RANGES + 1];
    for (int i = places_of(p, step, all) - 1; i >= 0; i--)
        if (overlaps(all[i], x)) return true;
    return false;
}

#endif
