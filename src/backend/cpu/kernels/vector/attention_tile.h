/* The parts that forward and backward attention share: tiles of BR queries by BC keys, packed as
 * f32, and the small matrix product that does all arithmetic.
 *
 * Scores are kept transposed, [key][query], so vectors run over queries. The maximum, sum and
 * exponential of the softmax are then plain vertical vector operations. Keys and values are read as
 * broadcasts from their rows as they lie. Only queries are transposed, once for each block. */
#ifndef WEFTI_CPU_KERNELS_ATTENTION_TILE_H
#define WEFTI_CPU_KERNELS_ATTENTION_TILE_H

#include "backend/cpu/kernels/vector/table.h"

#if defined(__clang__)
#define TILE_UNROLL _Pragma("unroll")
#else
#define TILE_UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    BR = ATTENTION_BR,
    BC = ATTENTION_BC,
    SUB = 16, /* keys treated alike in a tile that crosses the causal diagonal */
    MR = 4,   /* rows of a micro-tile */
    PAD = 8,  /* dims are padded to a multiple of PAD: whole micro-tiles and transposed blocks */
#if defined(WEFTI_BUILD_AVX512)
    NV = 4 /* vectors of a micro-tile */
#else
    NV = 3 /* 12 sums, three vectors and a broadcast fill 16 registers */
#endif
};

/* c[m][n] (+)= sum_k a(m, k) b[k][n] for MR rows and `nv` vectors; a(m, k) at a + m sm + k sk. */
INLINE void micro_product(int nv, int64_t depth, const float *a, int64_t sm, int64_t sk,
                          const float *b, int64_t ldb, float *c, int64_t ldc, bool add) {
    vf acc[MR][NV];
    TILE_UNROLL for (int m = 0; m < MR; m++) {
        TILE_UNROLL for (int v = 0; v < nv; v++) acc[m][v] =
            add ? vf_load(c + m * ldc + v * VL) : vf_zero();
    }
    for (int64_t k = 0; k < depth; k++) {
        vf row[NV];
        TILE_UNROLL for (int v = 0; v < nv; v++) row[v] = vf_load(b + v * VL);
        TILE_UNROLL for (int m = 0; m < MR; m++) {
            vf s = vf_set1(a[m * sm]);
            TILE_UNROLL for (int v = 0; v < nv; v++) acc[m][v] = vf_fma(s, row[v], acc[m][v]);
        }
        a += sk;
        b += ldb;
    }
    TILE_UNROLL for (int m = 0; m < MR; m++) {
        TILE_UNROLL for (int v = 0; v < nv; v++) vf_store(c + m * ldc + v * VL, acc[m][v]);
    }
}

/* The same for `rows` rows, a multiple of MR, and `vectors` vectors. */
static void tile_product(int64_t rows, int64_t vectors, int64_t depth, const float *a, int64_t sm,
                         int64_t sk, const float *b, int64_t ldb, float *c, int64_t ldc, bool add) {
    for (int64_t v = 0; v < vectors; v += NV)
        for (int64_t m = 0; m < rows; m += MR) {
            const float *am = a + m * sm, *bv = b + v * VL;
            float *cm = c + m * ldc + v * VL;
            switch (min64(NV, vectors - v)) {
            case 1:
                micro_product(1, depth, am, sm, sk, bv, ldb, cm, ldc, add);
                break;
            case 2:
                micro_product(2, depth, am, sm, sk, bv, ldb, cm, ldc, add);
                break;
            case 3:
                micro_product(3, depth, am, sm, sk, bv, ldb, cm, ldc, add);
                break;
#if defined(WEFTI_BUILD_AVX512)
            case 4:
                micro_product(4, depth, am, sm, sk, bv, ldb, cm, ldc, add);
                break;
#endif
            default:
                break;
            }
        }
}

/* The place of a tile: queries i0 .. i0 + nq - 1 and keys j0 .. j0 + nk - 1 of query head h in
 * batch b. */
typedef struct tile {
    int64_t b, h, i0, nq, j0, nk;
    int64_t vectors; /* of queries, padded */
    bool diagonal;   /* some of its pairs are causally masked */
    bool edge;       /* some of its pairs lie before the window */
} tile;

/* The number of keys that the last of the queries i0 .. i0 + nq - 1 sees. */
static int64_t visible_keys(const wefti_attention_shape *s, int64_t i0, int64_t nq) {
    if (!s->causal) return s->k_len;
    return max64(0, min64(s->k_len, i0 + nq + s->q_offset));
}
/* The first key of the first tile that has a key that query i0 sees. Tiles begin at the same keys
 * for all queries. */
static int64_t first_key(const wefti_attention_shape *s, int64_t i0) {
    if (!s->window) return 0;
    return max64(0, i0 + s->q_offset - s->window + 1) / BC * BC;
}
/* Places a tile of keys for its queries, up to `end`. */
static void place_keys(const wefti_attention_shape *s, tile *t, int64_t end) {
    t->nk = min64(BC, end - t->j0);
    t->diagonal = s->causal && t->j0 + t->nk - 1 > t->i0 + s->q_offset;
    t->edge = s->window && t->j0 <= t->i0 + t->nq - 1 + s->q_offset - s->window;
}
/* The first query (relative to i0) that sees key j0 + j. */
INLINE int64_t first_query(const wefti_attention_shape *s, const tile *t, int64_t j) {
    return max64(0, t->j0 + j - s->q_offset - t->i0);
}
/* Below this, vectors of queries skip the keys of step j .. j + step - 1. */
INLINE int64_t first_vector(const wefti_attention_shape *s, const tile *t, int64_t j) {
    return t->diagonal ? min64(first_query(s, t, j) / VL, t->vectors) : 0;
}
INLINE int64_t key_step(const tile *t) {
    return t->diagonal ? SUB : BC;
}
/* The number of keys to process for vector v: the end of its last step. */
INLINE int64_t key_end(const wefti_attention_shape *s, const tile *t, int64_t v) {
    if (!t->diagonal) return t->nk;
    /* last key that the last lane sees */
    int64_t last = t->i0 + (v + 1) * VL - 1 + s->q_offset - t->j0;
    return last < 0 ? 0 : min64(t->nk, (last / SUB + 1) * SUB);
}

/* Copies rows x dim elements into dense rows of `ld` floats, times scale, with zeros beyond dim. */
static void pack_rows(wefti_src x, int64_t at, int64_t stride, int64_t rows, int64_t dim,
                      float scale, float *out, int64_t ld) {
    vf factor = vf_set1(scale);
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = 0;
        for (; i + VL <= dim; i += VL)
            vf_store(out + r * ld + i, load(x, at + r * stride + i, VL) * factor);
        for (; i < ld; i++)
            out[r * ld + i] = i < dim ? load1(x, at + r * stride + i) * scale : 0.0f;
    }
}

/* Prefetches rows that the next tile packs. They lie too far apart for the processor's own
 * prefetching. */
INLINE void prefetch_rows(wefti_src x, int64_t at, int64_t stride, int64_t rows, int64_t dim) {
    int64_t size = x.dtype == WEFT_F32 ? 4 : 2;
    for (int64_t r = 0; r < rows; r++) {
        const char *row = (const char *)x.data + (at + r * stride) * size;
        for (int64_t byte = 0; byte < dim * size; byte += 64) __builtin_prefetch(row + byte, 0, 2);
    }
}

/* y[r][c] = x[c][r] scale[r], for rows of x with BR padded columns. `row_major` is scratch of BR
 * padded floats. */
static void unpack_transposed(const float *x, int64_t rows, int64_t dim, int64_t padded,
                              const float *scale, float *row_major, wefti_dst y, int64_t at,
                              int64_t stride) {
    transpose_f32(x, BR, padded, blocks_of(rows, 8) * 8, row_major, padded);
    for (int64_t r = 0; r < rows; r++) {
        vf factor = vf_set1(scale[r]);
        FOR_VECTORS(c, n, dim) {
            store(y, at + r * stride + c, load_f32(row_major + r * padded + c, n) * factor, n);
        }
    }
}

/* Additive mask values as out[key][query]. */
static void mask_tile(const wefti_attention_shape *s, const tile *t, float *out) {
    int64_t base = t->b * s->mask_batch + t->h * s->mask_head + t->j0;
    bool additive = s->mask.dtype == WEFT_F32 || s->mask.dtype == WEFT_BF16;
    for (int64_t i = 0; i < t->vectors * VL; i++) {
        int64_t at = base + (t->i0 + i) * s->mask_row;
        if (i >= t->nq || (s->mask_row == 0 && i > 0)) {
            for (int64_t j = 0; j < t->nk; j++) out[j * BR + i] = i >= t->nq ? 0.0f : out[j * BR];
        } else if (additive) {
            for (int64_t j = 0; j < t->nk; j++) out[j * BR + i] = load1(s->mask, at + j);
        } else {
            const uint8_t *keep = (const uint8_t *)s->mask.data + at;
            for (int64_t j = 0; j < t->nk; j++) out[j * BR + i] = keep[j] ? 0.0f : -INFINITY;
        }
    }
}

INLINE uint64_t dropout_position(const wefti_attention_shape *s, int64_t b, int64_t h, int64_t i,
                                 int64_t j) {
    return s->first + (uint64_t)(((b * s->heads_total + h) * s->q_total + i) * s->k_total + j);
}

/* out[key][query] = 1 / (1 - rate) where the pair is kept, else 0. */
static void dropout_tile(const wefti_attention_shape *s, const tile *t, float *out) {
    float row[BC], kept = 1.0f / (1.0f - s->dropout);
    for (int64_t i = 0; i < t->vectors * VL; i++) {
        if (i < t->nq)
            philox_uniform(s->seed, s->stream, dropout_position(s, t->b, t->h, t->i0 + i, t->j0),
                           t->nk, row);
        for (int64_t j = 0; j < t->nk; j++)
            out[j * BR + i] = i < t->nq && row[j] >= s->dropout ? kept : 0.0f;
    }
}

/* Sets the scores of keys behind a query to -infinity. */
static void hide_later(const wefti_attention_shape *s, const tile *t, float *scores) {
    for (int64_t v = 0; v < t->vectors; v++) {
        int64_t end = key_end(s, t, v);
        /* All lanes see the keys up to the last key that the vector's first query sees. */
        int64_t j = max64(0, t->i0 + v * VL + s->q_offset - t->j0 + 1);
        for (; j < end; j++) {
            float *at = scores + j * BR + v * VL;
            int64_t hidden = first_query(s, t, j) - v * VL; /* lanes that do not see the key */
            vf_store(at, vf_select(vm_first(max64(0, min64(hidden, VL))), vf_set1(-INFINITY),
                                   vf_load(at)));
        }
    }
}

/* Sets the scores of keys before a query's window to -infinity: key j for queries from first_query
 * + window on. */
static void hide_earlier(const wefti_attention_shape *s, const tile *t, float *scores) {
    for (int64_t v = 0; v < t->vectors; v++) {
        int64_t last = t->i0 + (v + 1) * VL - 1 + s->q_offset - s->window; /* for the last lane */
        int64_t end = min64(key_end(s, t, v), last - t->j0 + 1);
        for (int64_t j = 0; j < end; j++) {
            float *at = scores + j * BR + v * VL;
            int64_t seen = t->j0 + j - s->q_offset + s->window - t->i0 - v * VL; /* lanes */
            vf_store(at, vf_select(vm_first(max64(0, min64(seen, VL))), vf_load(at),
                                   vf_set1(-INFINITY)));
        }
    }
}

/* scores[j][i] = K q^T for the pairs of a tile. Then applies the masks: -infinity if a query does
 * not see a key. */
static void score_tile(const wefti_attention_shape *s, const tile *t, const float *keys, int64_t ld,
                       const float *queries, const float *mask, float *scores) {
    for (int64_t j = 0; j < t->nk; j += key_step(t)) {
        int64_t v = first_vector(s, t, j), rows = min64(key_step(t), t->nk - j);
        tile_product(blocks_of(rows, MR) * MR, t->vectors - v, s->dim, keys + j * ld, ld, 1,
                     queries + v * VL, BR, scores + j * BR + v * VL, BR, false);
    }
    if (mask)
        for (int64_t v = 0; v < t->vectors; v++) {
            int64_t end = key_end(s, t, v);
            for (int64_t j = 0; j < end; j++) {
                float *at = scores + j * BR + v * VL;
                vf_store(at, vf_load(at) + vf_load(mask + j * BR + v * VL));
            }
        }
    if (t->diagonal) hide_later(s, t, scores);
    if (t->edge) hide_earlier(s, t, scores);
}

#endif
