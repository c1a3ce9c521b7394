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

/* The bytes from an address to the end of the tensor that has it. */
static inline int64_t bytes_to_end(const wefti_program *p, wefti_location at) {
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *x = &p->tensors[i];
        const int64_t end = x->home.bits + weft_desc_bytes(&x->desc);
        if (x->home.bits <= at.bits && at.bits < end) return end - at.bits;
    }
    fail_msg("no tensor has the rows");
    return 0;
}

/* Of a copy between spaces. */
static inline int64_t copied_bytes(const wefti_program *p, const wefti_step *step, int32_t a) {
    const wefti_program_move *copy = wefti_step_copy(p, step);
    const int32_t memory = wefti_step_fetches(step) ? 1 : 0;
    if (!copy->rows) return copy->bytes;
    if (a == 2) return copy->rows * (int64_t)sizeof(int32_t);
    return a == memory ? copy->rows * copy->row_bytes : bytes_to_end(p, step->args[a]);
}

static inline int64_t argument_bytes(const wefti_program *p, const wefti_step *step, int32_t a) {
    const wefti_routine *r = step->routine;
    if (step->strides && step->strides[a]) return (int64_t)1 << 40; /* all iterations */
    if (step->kind == WEFTI_STEP_LOSS) return (int64_t)sizeof(double);
    if (step->kind == WEFTI_STEP_COPY)
        return (wefti_copy_rows(step) - 1) * step->pitch[a] + step->bytes;
    if (wefti_step_copy(p, step)) return copied_bytes(p, step, a);
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
                         : wefti_step_copy(p, step) && wefti_step_copy(p, step)->rows ? 3
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
