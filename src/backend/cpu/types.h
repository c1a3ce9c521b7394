/* Operands of kernels, a pointer and its element type; and the number of blocks of a problem. */
#ifndef WEFTI_CPU_KERNELS_TYPES_H
#define WEFTI_CPU_KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "weft/types.h"

typedef struct wefti_src {
    const void *data; /* NULL: absent, where the operand is optional */
    weft_dtype dtype;
} wefti_src;

typedef struct wefti_dst {
    void *data; /* NULL: the caller does not want this output, if it is optional */
    weft_dtype dtype;
} wefti_dst;

static inline wefti_src wefti_src_f32(const float *p) {
    return (wefti_src){p, WEFT_F32};
}
static inline wefti_src wefti_src_bf16(const uint16_t *p) {
    return (wefti_src){p, WEFT_BF16};
}
static inline wefti_dst wefti_dst_f32(float *p) {
    return (wefti_dst){p, WEFT_F32};
}
static inline wefti_dst wefti_dst_bf16(uint16_t *p) {
    return (wefti_dst){p, WEFT_BF16};
}

static inline int64_t blocks_of(int64_t n, int64_t block) {
    return (n + block - 1) / block;
}

#endif
