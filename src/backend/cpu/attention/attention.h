/* Attention with memory linear in the sequence length. Computes softmax(scale q k^T + mask) v by
 * blocks with a running maximum and a running sum. Source: Dao et al., "FlashAttention", 2022,
 * algorithms 1 and 4; Dao, "FlashAttention-2", 2023. Grouped heads: Ainslie et al., "GQA", 2023. */
#ifndef WEFTI_CPU_ATTENTION_H
#define WEFTI_CPU_ATTENTION_H

#include <math.h>

#include "backend/cpu/types.h"

/* Strides in elements of a tensor [batch, seq, heads, dim]; dim has stride 1. So q, k and v may be
 * slices of one fused projection. */
typedef struct wefti_attention_strides {
    int64_t batch, seq, head;
} wefti_attention_strides;

/* The parameters that forward and backward share. */
typedef struct wefti_attention_shape {
    int64_t batch, q_len, k_len, q_heads, kv_heads, dim; /* q_heads % kv_heads == 0; dim <= 256 */
    /* q, k, v, o and its gradient are all bf16: tiles, which need their own scratch, may be used */
    bool bf16;
    float scale;      /* usually 1 / sqrt(dim) */
    bool causal;      /* query i sees keys j <= i + q_offset */
    int64_t q_offset; /* position of query 0 among the keys: k_len - q_len aligns the ends */
    /* The samples have offsets of their own. `positions`, which only a run knows, are added to
     * q_offset: [batch], or [batch, 2] with the row of k and v in front. The forward pass only */
    bool by_sample, by_row;
    const int32_t *positions;
    int64_t window; /* causal: also requires j > i + q_offset - window; 0: no window */
    /* Optional mask. f32 and bf16 masks are added to the scaled scores. u8 and bool masks keep the
     * pairs with nonzero elements. Element [b, h, i, j] lies at b * mask_batch + h * mask_head + i
     * * mask_row + j. Strides may be 0. */
    wefti_src mask;
    int64_t mask_batch, mask_head, mask_row;
    /* Dropout on the probabilities: keeps a probability iff wefti_philox_uniform(seed, stream,
     * position) >= rate. position = first + ((b * heads_total + h) * q_total + i) * k_total + j.
     * Kept ones are scaled by 1 / (1 - rate). rate 0: no dropout, and the other fields are
     * unused. */
    float dropout;
    /* first: position offset of earlier samples, and of the start of this piece */
    uint64_t seed, stream, first;
    int64_t heads_total, q_total, k_total; /* of the whole */
} wefti_attention_shape;

/* Elements from an lse to its rounding error in the array `lse`. */
static inline int64_t wefti_attention_rest(const wefti_attention_shape *s) {
    return s->batch * s->q_heads * s->q_len;
}

typedef struct wefti_attention_args {
    wefti_attention_shape shape;
    wefti_src q, k, v;
    wefti_attention_strides q_strides, k_strides, v_strides;
    wefti_dst o; /* a query that sees no key gives a zero row and lse -inf */
    wefti_attention_strides o_strides;
    float *lse; /* [2, batch, q_heads, q_len], optional: the rounded lse, then its rounding error */
    void *workspace;
} wefti_attention_args;

/* The arguments for sample b alone. */
static inline wefti_attention_args wefti_attention_of_sample(const wefti_attention_args *a,
                                                             int64_t b) {
    wefti_attention_args own = *a;
    const wefti_attention_shape *s = &a->shape;
    if (!s->positions) return own;
    own.shape.q_offset += s->positions[s->by_row ? 2 * b + 1 : b];
    if (s->by_row) {
        const int64_t rows = s->positions[2 * b] - b;
        own.k.data = (const char *)a->k.data +
                     rows * a->k_strides.batch * (int64_t)weft_dtype_bytes(a->k.dtype);
        own.v.data = (const char *)a->v.data +
                     rows * a->v_strides.batch * (int64_t)weft_dtype_bytes(a->v.dtype);
    }
    return own;
}

/* Stores the lse of a row. `sum` is the sum of e^(score - centre) over the row. */
static inline void wefti_attention_store_lse(const wefti_attention_args *a, int64_t b, int64_t h,
                                             int64_t i, float centre, float sum) {
    const wefti_attention_shape *s = &a->shape;
    if (!a->lse) return;
    float *at = a->lse + (b * s->q_heads + h) * s->q_len + i;
    float ln = logf(sum), lse = centre + ln;
    at[0] = lse;
    at[wefti_attention_rest(s)] = isinf(lse) ? 0.0f : (centre - lse) + ln;
}

/* Scratch for `threads` threads (wefti_pool_threads). */
size_t wefti_attention_workspace_bytes(const wefti_attention_shape *shape, int threads);

typedef struct wefti_attention_backward_args {
    wefti_attention_shape shape;
    wefti_src q, k, v, o, d_o;
    wefti_attention_strides q_strides, k_strides, v_strides, o_strides, do_strides;
    const float *lse;     /* lse over these keys, or over these and the keys of other pieces */
    wefti_dst dq, dk, dv; /* must not overlap the inputs */
    wefti_attention_strides dq_strides, dk_strides, dv_strides;
    void *workspace;
} wefti_attention_backward_args;

/* The gradient of an added mask: the gradient of the scores, summed over the batches and heads that
 * share the mask. It is a separate pass, because few callers need it. */
typedef struct wefti_attention_mask_args {
    wefti_attention_backward_args backward; /* without its results */
    float *d_mask;                          /* [batches, heads, q_len, k_len] */
    int64_t batches, heads;                 /* each is 1 or equals the queries' count */
} wefti_attention_mask_args;

size_t wefti_attention_backward_workspace_bytes(const wefti_attention_shape *shape, int threads);

/* Block sizes that both the kernels and their scratch sizes depend on. They are functions of the
 * shape alone. */
enum {
    ATTENTION_BR = 128,   /* queries of a tile */
    ATTENTION_BC = 64,    /* keys of a tile */
    ATTENTION_DECODE = 3, /* up to this many queries are computed one by one */
    /* The rest is for AMX tiles. Side of a register tile; keys are rounded up to it */
    ATTENTION_EDGE = 32,
    /* keys that have scores in memory at once, forward */
    ATTENTION_SPAN = 128,
    ATTENTION_ROWS = 64,  /* queries of a block, backward */
    ATTENTION_KEYS = 512, /* keys of a block, backward, at most */
};

/* Whether the AMX kernels take the shape. */
static inline int attention_fits_tiles(const wefti_attention_shape *s) {
    return s->bf16 && s->dim % ATTENTION_EDGE == 0 && s->dim <= 128 &&
           s->q_len > ATTENTION_DECODE && s->k_len <= 4096 && !s->mask.data && s->dropout == 0.0f &&
           s->window == 0 && !s->by_sample;
}
static inline int64_t attention_tiles_block(int64_t keys) {
    return keys < ATTENTION_KEYS ? keys : ATTENTION_KEYS;
}
/* Bytes of the members of tiles_forward (amx_forward.c) and tiles_backward (amx_backward.c). */
static inline int64_t attention_tiles_forward_bytes(const wefti_attention_shape *s) {
    int64_t keys = blocks_of(s->k_len, ATTENTION_EDGE) * ATTENTION_EDGE, edge = ATTENTION_EDGE;
    return attention_fits_tiles(s)
               ? 4 * keys * s->dim + 6 * edge * s->dim + edge * (6 * ATTENTION_SPAN + 64)
               : 0;
}
static inline int64_t attention_tiles_backward_bytes(const wefti_attention_shape *s) {
    int64_t keys = blocks_of(s->k_len, ATTENTION_EDGE) * ATTENTION_EDGE, rows = ATTENTION_ROWS;
    return attention_fits_tiles(s)
               ? 14 * keys * s->dim + 12 * rows * s->dim + 2 * rows * attention_tiles_block(keys) +
                     12 * ATTENTION_EDGE * rows + 8 * rows
               : 0;
}

/* Scratch of one thread, a multiple of 64 bytes. It holds the larger of two sizes. The first is for
 * the members of forward_memory in attention.c, or for the queries, outputs and states of decoding.
 * The second is for tiles. */
static inline size_t attention_forward_bytes(const wefti_attention_shape *s) {
    int64_t padded = blocks_of(s->dim, 16) * 16;
    int64_t floats = 2 * padded * ATTENTION_BR + 2 * ATTENTION_BC * padded +
                     3 * ATTENTION_BC * ATTENTION_BR + 3 * ATTENTION_BR;
    if (s->q_len <= ATTENTION_DECODE && s->kv_heads > 0)
        floats = s->q_heads / s->kv_heads * s->q_len * (2 * s->dim + 2);
    size_t bytes = (size_t)blocks_of(floats, 16) * 64;
    size_t tiles = (size_t)attention_tiles_forward_bytes(s);
    return tiles > bytes ? tiles : bytes;
}
/* Bytes of the members of backward_memory in attention_backward.c. */
static inline size_t attention_backward_bytes(const wefti_attention_shape *s) {
    int64_t padded = blocks_of(s->dim, 16) * 16,
            rows = blocks_of(s->k_len, ATTENTION_BC) * ATTENTION_BC;
    int64_t floats = 4 * rows * padded + 5 * ATTENTION_BR * padded +
                     4 * ATTENTION_BC * ATTENTION_BR + 4 * ATTENTION_BR;
    size_t bytes = (size_t)floats * sizeof(float);
    size_t tiles = (size_t)attention_tiles_backward_bytes(s);
    return tiles > bytes ? tiles : bytes;
}

#if defined(__x86_64__)
/* Kernels of amx_forward.c and amx_backward.c. Shapes that do not fit tiles go to the AVX-512
 * kernels. */
void wefti_attention_on_tiles(wefti_pool *pool, const wefti_attention_args *a);
void wefti_attention_backward_on_tiles(wefti_pool *pool, const wefti_attention_backward_args *a);
#endif

#endif
