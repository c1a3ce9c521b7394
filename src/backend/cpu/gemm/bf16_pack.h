/* Packs operands into panels of bf16: shared by amx.c, amx_f32.c and avx512_bf16.c. For files
 * compiled for AVX-512 with bf16, or with WEFTI_EMULATED.
 *
 * A panel has one or more `pieces`: bf16 numbers whose sum is the operand's element. With one
 * piece, it is the rounded element. With three pieces, the sum is the exact f32 element. The first
 * piece holds its leading 8 digits, rounded. The second holds the leading digits of the remainder.
 * The third holds the rest of the 24 digits. */
#ifndef WEFTI_BACKEND_CPU_GEMM_BF16_PACK_H
#define WEFTI_BACKEND_CPU_GEMM_BF16_PACK_H

#include "backend/cpu/gemm/kernel_table.h"
#include "backend/cpu/tile/tile.h"

enum { PIECES = 3 };

INLINE const void *at(weft_dtype dtype, const void *base, int64_t index) {
    return (const char *)base + index * (dtype == WEFT_F32 ? 4 : 2);
}
/* The leading 8 digits of x; ties round away from zero. The result is exact in bf16, and x minus
 * the result is exact in f32. */
INLINE vfloat leading(vfloat x) {
    return (vfloat)(((vuint)x + 0x8000) & 0xffff0000);
}

/* Loads up to 32 consecutive elements, in pieces; the other lanes are zero. */
INLINE void load_32(const weft_dtype dtype, const int pieces, const void *from, mask32 lanes,
                    vint out[PIECES]) {
    if (dtype == WEFT_BF16) {
        out[0] = vload_masked_bf16(lanes, from);
        return;
    }
    vfloat low = vload_masked((mask16)lanes, from);
    vfloat high = vload_masked((mask16)(lanes >> 16), (const float *)from + 16);
    UNROLL for (int i = 0; i < pieces - 1; i++) {
        const vfloat first = leading(low), second = leading(high);
        out[i] = vround_bf16(first, second);
        low -= first;
        high -= second;
    }
    out[pieces - 1] = vround_bf16(low, high);
}

/* Prefetches 32 elements of a later panel: the lines lie too far apart for the processor to find
 * the pattern. Prefetching beyond an operand is harmless. */
INLINE void prefetch_line(const weft_dtype dtype, const void *line) {
    __builtin_prefetch(line, 0, 2);
    if (dtype == WEFT_F32) __builtin_prefetch((const char *)line + 64, 0, 2);
}

/* A block of 32 by 32 in the order of tiles; each piece is two tiles. */
typedef vint block_tiles[PIECES][2][SIDE];

/* Loads 32 lines of up to 32 consecutive elements as pairs of lines. `lines` of them exist. */
INLINE void load_pairs(const weft_dtype dtype, const int pieces, const void *from, int64_t stride,
                       int64_t lines, int64_t lanes, block_tiles tiles) {
    const mask32 mask = first_32(lanes);
    for (int p = 0; p < SIDE; p++) {
        const mask32 here = 2 * p < lines ? mask : 0, next = 2 * p + 1 < lines ? mask : 0;
        vint even[PIECES], odd[PIECES];
        prefetch_line(dtype, at(dtype, from, 2 * p * stride + EDGE));
        prefetch_line(dtype, at(dtype, from, (2 * p + 1) * stride + EDGE));
        load_32(dtype, pieces, at(dtype, from, here ? 2 * p * stride : 0), here, even);
        load_32(dtype, pieces, at(dtype, from, next ? (2 * p + 1) * stride : 0), next, odd);
        UNROLL for (int i = 0; i < pieces; i++) {
            vint pairs[2];
            interleave(even[i], odd[i], pairs);
            tiles[i][0][p] = pairs[0];
            tiles[i][1][p] = pairs[1];
        }
    }
}

/* Loads 16 rows of up to 32 consecutive elements: one half of tiles. `count` of them exist. */
INLINE void load_rows(const weft_dtype dtype, const int pieces, const void *from, int64_t stride,
                      int64_t count, int64_t lanes, const int half, block_tiles tiles) {
    const mask32 mask = first_32(lanes);
    for (int r = 0; r < SIDE; r++) {
        vint row[PIECES];
        load_32(dtype, pieces, at(dtype, from, r < count ? r * stride : 0), r < count ? mask : 0,
                row);
        UNROLL for (int i = 0; i < pieces; i++) tiles[i][half][r] = row[i];
    }
}

INLINE void prefetch_rows(const weft_dtype dtype, const void *from, int64_t stride, int64_t count) {
    for (int r = 0; r < count; r++) prefetch_line(dtype, at(dtype, from, (r + EDGE) * stride));
}

/* Pairs of bf16 are moved as floats. */
INLINE void transpose_pairs(vint rows[SIDE]) {
    vfloat lines[SIDE];
    UNROLL for (int i = 0; i < SIDE; i++) lines[i] = (vfloat)rows[i];
    transpose(lines);
    UNROLL for (int i = 0; i < SIDE; i++) rows[i] = (vint)lines[i];
}

INLINE void store_tile(const vint rows[SIDE], uint16_t *out) {
    UNROLL for (int i = 0; i < SIDE; i++) vstore_int(out + i * DEPTH, rows[i]);
}

/* Copies a block with any strides to dense rows. */
static void gather_block(weft_dtype dtype, const void *from, int64_t count, int64_t stride,
                         int64_t lanes, int64_t lane_stride, float *out) {
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < lanes; i++) {
            vfloat one =
                load_strided(dtype, at(dtype, from, r * stride + i * lane_stride), 0, 1, 1);
            out[r * DEPTH + i] = one[0];
        }
}

/* Both operands are [32 lanes of the tile's edge] by k. Tiles need pairs of k along rows (A) or
 * across lanes (B). If the operand is contiguous along k, A is copied and B is transposed. If it is
 * contiguous along the edge, the reverse holds. */
INLINE void pack_as(const weft_dtype dtype, const int pieces, const bool is_a, const void *source,
                    int64_t edge, int64_t edge_stride, int64_t k, int64_t k_stride, uint16_t *out) {
    for (int64_t p = 0; p < k; p += DEPTH) {
        const void *from = at(dtype, source, p * k_stride);
        const int64_t lines = k - p < DEPTH ? k - p : DEPTH;
        const bool in_pairs = edge_stride == 1 && k_stride != 1;
        block_tiles tiles;
        if (in_pairs) {
            load_pairs(dtype, pieces, from, k_stride, lines, edge, tiles);
        } else {
            float block[EDGE * DEPTH];
            if (k_stride != 1) gather_block(dtype, from, edge, edge_stride, lines, k_stride, block);
            for (int half = 0; half < 2; half++) {
                const int64_t first = half * SIDE, count = edge > first ? edge - first : 0;
                if (k_stride == 1)
                    prefetch_rows(dtype, at(dtype, from, count ? first * edge_stride : 0),
                                  edge_stride, count < SIDE ? count : SIDE);
                if (k_stride == 1)
                    load_rows(dtype, pieces, at(dtype, from, count ? first * edge_stride : 0),
                              edge_stride, count, lines, half, tiles);
                else
                    load_rows(WEFT_F32, pieces, block + first * DEPTH, DEPTH, count, lines, half,
                              tiles);
            }
        }
        for (int i = 0; i < pieces; i++)
            for (int half = 0; half < 2; half++, out += TILE) {
                if (in_pairs == is_a) transpose_pairs(tiles[i][half]);
                store_tile(tiles[i][half], out);
            }
    }
}

/* in avx512_bf16.c: functions that AMX also uses */
void WEFTI_FORM(wefti_gemm_bf16_pack_b)(const wefti_gemm_operand *operand, const void *b,
                                        int64_t columns, int64_t k, void *panel);
void WEFTI_FORM(wefti_gemm_bf16_epilogue)(const wefti_gemm_sink *sink, int64_t i, int64_t j,
                                          int64_t rows, int64_t columns, const float *sums,
                                          int64_t sums_stride, const float *partial,
                                          int64_t partial_stride);
extern const wefti_gemm_kernels WEFTI_FORM(wefti_gemm_kernels_avx512);

#endif
