/* Operands of kernels: a pointer and its element type. */
#ifndef WEFTI_CPU_KERNELS_TYPES_H
#define WEFTI_CPU_KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "weft/types.h"

typedef struct wefti_in {
    const void *data; /* NULL: absent, where the operand is optional */
    weft_dtype dtype;
} wefti_in;

typedef struct wefti_out {
    void *data; /* NULL: not wanted, where the operand is optional */
    weft_dtype dtype;
} wefti_out;

static inline wefti_in wefti_in_f32(const float *p) {
    return (wefti_in){p, WEFT_F32};
}
static inline wefti_in wefti_in_bf16(const uint16_t *p) {
    return (wefti_in){p, WEFT_BF16};
}
static inline wefti_out wefti_out_f32(float *p) {
    return (wefti_out){p, WEFT_F32};
}
static inline wefti_out wefti_out_bf16(uint16_t *p) {
    return (wefti_out){p, WEFT_BF16};
}

#endif
