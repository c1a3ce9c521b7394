/* Attention on AMX tiles: the parts that forward (amx_forward.c) and backward (amx_backward.c)
 * share. For files that define VL as 16.
 *
 * Operands are bf16. Products multiply bf16 and sum in f32; the softmax is in f32. Probabilities
 * and the gradients of scores are rounded to bf16 before products read them, as mixed precision
 * stores them. Dims are multiples of 32 up to 128, without mask, window and dropout. All other
 * shapes run on the AVX-512 kernels.
 *
 * All products use the matrix kernels (gemm/amx.c), on panels in tile order. A task packs the keys
 * and values of its head once. Values derived from scores stay in the first-level cache.
 *
 * Source: Dao, "FlashAttention-2", 2023, algorithms 1 and 2. */
#ifndef WEFTI_CPU_ATTENTION_AMX_PANELS_H
#define WEFTI_CPU_ATTENTION_AMX_PANELS_H

#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/tile/tile.h"

extern const wefti_gemm_panels WEFTI_FORM(wefti_gemm_panels_amx);
static const wefti_gemm_panels *const tiles = &WEFTI_FORM(wefti_gemm_panels_amx);

INLINE int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
INLINE int64_t round_up(int64_t n) {
    return (n + EDGE - 1) / EDGE * EDGE;
}

/* Rows of one head: x[row][c] at data + row * stride + c. */
typedef struct rows {
    const uint16_t *data;
    int64_t stride;
} rows;

INLINE rows rows_of(const void *data, wefti_attention_strides s, int64_t b, int64_t h,
                    int64_t row) {
    return (rows){(const uint16_t *)data + b * s.batch + h * s.head + row * s.seq, s.seq};
}

/* Panels of `count` rows, and of the transposed matrix (k = the rows). a: left operand, k =
 * dim. b: right operand, the rows are its columns. Panels follow each other at 32 * `depth`. */
INLINE void pack_rows_a(rows x, int64_t count, int64_t dim, uint16_t *out) {
    const wefti_gemm_operand o = {WEFT_BF16, x.stride, 1, {0, 0}};
    for (int64_t r = 0; r < count; r += EDGE)
        tiles->pack_a(&o, x.data + r * x.stride, smaller(EDGE, count - r), count - r, dim,
                      out + r * dim);
}
INLINE void pack_rows_b(rows x, int64_t count, int64_t dim, uint16_t *out) {
    const wefti_gemm_operand o = {WEFT_BF16, 1, x.stride, {0, 0}};
    for (int64_t r = 0; r < count; r += EDGE)
        tiles->pack_b(&o, x.data + r * x.stride, smaller(EDGE, count - r), dim, out + r * dim);
}
INLINE void pack_transposed_a(rows x, int64_t count, int64_t dim, int64_t depth, uint16_t *out) {
    const wefti_gemm_operand o = {WEFT_BF16, 1, x.stride, {0, 0}};
    for (int64_t c = 0; c < dim; c += EDGE)
        tiles->pack_a(&o, x.data + c, EDGE, EDGE, count, out + c * depth);
}
INLINE void pack_transposed_b(rows x, int64_t count, int64_t dim, int64_t depth, uint16_t *out) {
    const wefti_gemm_operand o = {WEFT_BF16, x.stride, 1, {0, 0}};
    for (int64_t c = 0; c < dim; c += EDGE)
        tiles->pack_b(&o, x.data + c, EDGE, count, out + c * depth);
}

/* The number of keys that query i sees; they are the first ones. */
INLINE int64_t seen_by(const wefti_attention_shape *s, int64_t i) {
    if (!s->causal) return s->k_len;
    int64_t seen = i + s->q_offset + 1;
    return seen < 0 ? 0 : smaller(seen, s->k_len);
}

static const float LOG2_E = 1.44269504f;

/* 2^x: a minimax polynomial of the part above the next lower integer. Relative error 3e-6, a
 * thousandth of bf16's. */
INLINE vfloat power_of_2(vfloat x) {
    const vfloat f = vfraction(x);
    vfloat p = vsplat(0.0135341680f);
    p = vfma(p, f, vsplat(0.0520114623f));
    p = vfma(p, f, vsplat(0.241442754f));
    p = vfma(p, f, vsplat(0.693003835f));
    p = vfma(p, f, vsplat(1.00000259f));
    return vscale(p, x);
}

#endif
