/* Matrix kernels for AVX-512 with dot products of bf16. VDPBF16PS adds the products of a pair of k
 * to each of 16 sums. If it runs at the rate of fused f32 operations, it does twice their work.
 *
 * The register tile equals the tile of avx512.c, 14 x 32 sums. It takes a pair of k where avx512.c
 * takes one number. Panels consist of 32 lines of k each, as for AMX tiles:
 *   A: [k / 32][row][k % 32]
 *   B: [k / 32][column / 16][k % 32 / 2][column % 16][k % 2]   (pairs of k side by side)
 * VDPBF16PS adds both products one after the other and rounds each sum to nearest even. Subnormal
 * operands and sums count as zero. Source: Intel 64 and IA-32 Architectures Software Developer's
 * Manual, volume 2, VDPBF16PS. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 16
#include "backend/cpu/gemm/bf16_pack.h"
#include "backend/cpu/gemm/kernel_table.h"

enum { AVX512_BF16_ROWS = 14, PAIRS = DEPTH / 2 };

INLINE vint pair_of(const uint16_t *row, int pair) {
    int32_t both;
    memcpy(&both, row + 2 * pair, sizeof both);
    return both - (vint){0};
}
INLINE vint columns_of(const uint16_t *b, int pair) {
    return vload_int(b + 2 * SIDE * pair);
}

INLINE void tile_of(const int rows, int64_t k, const uint16_t *restrict a,
                    const uint16_t *restrict b, float *restrict c, int64_t c_stride, bool add) {
    vfloat sums[AVX512_BF16_ROWS][2];
    UNROLL for (int i = 0; i < rows; i++) {
        sums[i][0] = sums[i][1] = (vfloat){0};
        __builtin_prefetch(c + i * c_stride, 1);
        __builtin_prefetch(c + i * c_stride + SIDE, 1);
    }
    for (int64_t p = 0; p < k; p += DEPTH) {
        _Pragma("GCC unroll 4") for (int pair = 0; pair < PAIRS; pair++) {
            const vint low = columns_of(b, pair), high = columns_of(b + TILE, pair);
            __builtin_prefetch(b + 2 * TILE + 2 * SIDE * pair);
            __builtin_prefetch(b + 3 * TILE + 2 * SIDE * pair);
            UNROLL for (int i = 0; i < rows; i++) {
                const vint left = pair_of(a + i * DEPTH, pair);
                sums[i][0] = vdot(sums[i][0], left, low);
                sums[i][1] = vdot(sums[i][1], left, high);
            }
        }
        a += AVX512_BF16_ROWS * DEPTH;
        b += 2 * TILE;
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < 2; v++) {
        float *out = c + i * c_stride + v * SIDE;
        if (add) sums[i][v] = vload(out) + sums[i][v];
        vstore(out, sums[i][v]);
    }
}

#define AVX512_BF16_TILE_CASE(count)                                                               \
    case count:                                                                                    \
        tile_of(count, k, a, b, c, c_stride, add);                                                 \
        break;
static void tile(int rows, int64_t k, const void *a, int64_t a_stride, const void *b, float *c,
                 int64_t c_stride, bool add, wefti_gemm_ahead *ahead) {
    (void)a_stride; /* panels only */
    (void)ahead;    /* the tile prefetches lines of its own panel */
    switch (rows) {
        EACH_ROW_COUNT(AVX512_BF16_TILE_CASE)
    default:
        break;
    }
}

/* --- Packing
 * ---------------------------------------------------------------------------------------------------
 */

INLINE void pack_a_as(const weft_dtype dtype, const wefti_gemm_operand *operand, const void *a,
                      int64_t rows, int64_t k, uint16_t *panel) {
    const int64_t row_stride = operand->row_stride, k_stride = operand->column_stride;
    for (int64_t p = 0; p < k; p += DEPTH, panel += AVX512_BF16_ROWS * DEPTH) {
        const void *from = at(dtype, a, p * k_stride);
        const int64_t lines = k - p < DEPTH ? k - p : DEPTH;
        block_tiles tiles;
        if (row_stride == 1 && k_stride != 1) {
            load_pairs(dtype, 1, from, k_stride, lines, rows, tiles);
            transpose_pairs(tiles[0][0]);
        } else if (k_stride == 1) {
            load_rows(dtype, 1, from, row_stride, rows, lines, 0, tiles);
        } else {
            float block[SIDE * DEPTH];
            gather_block(dtype, from, rows, row_stride, lines, k_stride, block);
            load_rows(WEFT_F32, 1, block, DEPTH, rows, lines, 0, tiles);
        }
        UNROLL for (int i = 0; i < AVX512_BF16_ROWS; i++)
            vstore_int(panel + i * DEPTH, tiles[0][0][i]);
    }
}
static void pack_a(const wefti_gemm_operand *operand, const void *a, int64_t rows,
                   int64_t readable_rows, int64_t k, void *panel) {
    (void)readable_rows; /* never reads beyond the given rows */
    if (operand->dtype == WEFT_F32)
        pack_a_as(WEFT_F32, operand, a, rows, k, panel);
    else
        pack_a_as(WEFT_BF16, operand, a, rows, k, panel);
}

void WEFTI_FORM(wefti_gemm_bf16_pack_b)(const wefti_gemm_operand *operand, const void *b,
                                        int64_t columns, int64_t k, void *panel) {
    if (operand->dtype == WEFT_F32)
        pack_as(WEFT_F32, 1, false, b, columns, operand->column_stride, k, operand->row_stride,
                panel);
    else
        pack_as(WEFT_BF16, 1, false, b, columns, operand->column_stride, k, operand->row_stride,
                panel);
}

/* --- Epilogue
 * --------------------------------------------------------------------------------------------------
 */

/* Lines of bf16 with or without a bias: `columns` of a register tile, which are all if `whole`. */
INLINE void store_lines(const bool whole, const wefti_gemm_sink *sink, int64_t i, int64_t j,
                        int64_t rows, int64_t columns, const float *sums, int64_t sums_stride,
                        const float *partial, int64_t partial_stride) {
    vfloat low_bias = {0}, high_bias = {0};
    if (sink->bias) {
        low_bias = vload_masked(first_16(columns), sink->bias + j);
        high_bias = vload_masked(first_16(columns - SIDE), sink->bias + j + SIDE);
    }
    uint16_t *line = (uint16_t *)(void *)sink->c + i * sink->spec->c.row_stride + j;
    for (int64_t r = 0; r < rows; r++, sums += sums_stride, line += sink->spec->c.row_stride) {
        vfloat low = vload(sums), high = vload(sums + SIDE);
        if (partial) {
            low = vload(partial) + low;
            high = vload(partial + SIDE) + high;
            partial += partial_stride;
        }
        const vint both = vround_bf16(low + low_bias, high + high_bias);
        if (whole)
            vstore_int(line, both);
        else
            memcpy(line, &both, (size_t)columns * sizeof *line);
    }
}

/* Contiguous lines of bf16 take this way: most products of a step. Subnormal results become zero
 * here. All other cases run as on AVX-512, where they stay subnormal. The choice never depends on
 * the columns, so that the bits of an element do not. */
void WEFTI_FORM(wefti_gemm_bf16_epilogue)(const wefti_gemm_sink *sink, int64_t i, int64_t j,
                                          int64_t rows, int64_t columns, const float *sums,
                                          int64_t sums_stride, const float *partial,
                                          int64_t partial_stride) {
    const wefti_gemm_spec *s = sink->spec;
    if (s->c.dtype != WEFT_BF16 || s->c.column_stride != 1 || s->alpha != 1.0 || s->accumulate)
        WEFTI_FORM(wefti_gemm_kernels_avx512)
            .epilogue(sink, i, j, rows, columns, sums, sums_stride, partial, partial_stride);
    else if (columns == EDGE)
        store_lines(true, sink, i, j, rows, EDGE, sums, sums_stride, partial, partial_stride);
    else
        store_lines(false, sink, i, j, rows, columns, sums, sums_stride, partial, partial_stride);
}

const wefti_gemm_kernels WEFTI_FORM(wefti_gemm_kernels_avx512_bf16) = {
    .rows = AVX512_BF16_ROWS,
    .columns = EDGE,
    .element_bytes = 2,
    .depth_unit = DEPTH,
    .k_block = 2048, /* panels have as many bytes as f32 panels */
    .m_tile = 84,
    .n_tile = 384,
    .m_group = 84,
    .n_group = 128,
    .tile = tile,
    .pack_a = pack_a,
    .pack_b = WEFTI_FORM(wefti_gemm_bf16_pack_b),
    .epilogue = WEFTI_FORM(wefti_gemm_bf16_epilogue),
};
#endif
