/* Matrix kernels for AMX in f32: each number is the sum of three bf16 numbers.
 *
 * Three bf16 numbers of 8 digits hold the 24 digits of an f32 number: x = x1 + x2 + x3. The second
 * is at most 2^-8 of x, the third at most 2^-16. Two such sums give nine products. The kernel adds
 * the six largest in f32; in each step of k the smaller ones come first. It leaves out x2 y3 + x3
 * y2 + x3 y3. This error is at most 2^-23 of a product, of either sign, and on average less than
 * the product's rounding to f32. Products are added to a sum in pairs, unlike in a chain of fused
 * operations.
 *
 * Measured errors are 0.4 to 1 times the errors of the AVX-512 kernels (tests/backend/test_gemm.c
 * prints both). Tiles multiply bf16 some 16 times as fast as vectors multiply f32.
 *
 * Source: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype for
 * Higher-Precision Computations", IEEE ARITH 2019.
 *
 * Numbers above 3.39e38 and infinite numbers give NaN. A number, piece or product smaller than
 * 2^-126 counts as zero.
 *
 * Panels lie as in amx.c. For each 32 lines of k, the tiles of the three pieces follow each other.
 * A register tile is 16 x 32 sums, multiplied twice for 32 x 32: fewer registers in use are faster,
 * see `multiply`. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 16
#include "backend/cpu/gemm/amx.h"
#include "backend/cpu/gemm/bf16_pack.h"

enum {
    STEP = PIECES * 2 * TILE, /* elements of a panel for 32 lines of k */
    F32_AHEAD = 4,            /* more lines at a time would delay the loads of the tiles */
};

/* Registers 0 and 1 hold sums of 16 x 32, 4 holds a piece of A, 6 and 7 hold a piece of B. The
 * order of pieces changes one of the two at a time, and begins with the small products. A register
 * is zeroed after its last read. If the core's other hardware thread is busy, the core has few
 * physical registers for the eight names, and zeroed registers take none. On such a core a product
 * takes 11 ns. It would take 22 ns if sums of 32 x 32 filled four registers without zeroing: loads
 * and products would wait for each other. */
INLINE void multiply(int64_t k, const uint16_t *a, const uint16_t *b, wefti_gemm_ahead *ahead) {
    zero_registers();
    for (int64_t p = 0; p < k; p += DEPTH, a += STEP, b += STEP) {
        if (ahead) fetch_ahead(ahead, F32_AHEAD);
        TILE_LOAD(4, a, 64); /* first of A by third of B */
        TILE_LOAD(6, b + 4 * TILE, 64);
        TILE_DOT(0, 4, 6);
        TILE_ZERO(6);
        TILE_LOAD(7, b + 5 * TILE, 64);
        TILE_DOT(1, 4, 7);
        TILE_ZERO(7);
        TILE_LOAD(6, b + 2 * TILE, 64); /* first by second */
        TILE_DOT(0, 4, 6);
        TILE_LOAD(7, b + 3 * TILE, 64);
        TILE_DOT(1, 4, 7);
        TILE_ZERO(4);
        TILE_LOAD(4, a + 2 * TILE, 64); /* second by second */
        TILE_DOT(0, 4, 6);
        TILE_ZERO(6);
        TILE_DOT(1, 4, 7);
        TILE_ZERO(7);
        TILE_LOAD(6, b, 64); /* second by first */
        TILE_DOT(0, 4, 6);
        TILE_LOAD(7, b + TILE, 64);
        TILE_DOT(1, 4, 7);
        TILE_ZERO(4);
        TILE_LOAD(4, a + 4 * TILE, 64); /* third by first */
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_ZERO(4);
        TILE_LOAD(4, a, 64); /* first by first */
        TILE_DOT(0, 4, 6);
        TILE_ZERO(6);
        TILE_DOT(1, 4, 7);
        TILE_ZERO(7);
        TILE_ZERO(4);
    }
}

INLINE void store_sums(float *c, int64_t stride) {
    TILE_STORE(0, c, (size_t)stride * 4);
    TILE_STORE(1, c + SIDE, (size_t)stride * 4);
}

static void add_rows(int rows, const float *sums, float *c, int64_t stride, bool add) {
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < EDGE; v += VL) {
            vfloat x = vload(sums + r * EDGE + v);
            float *out = c + r * stride + v;
            vstore(out, add ? vload(out) + x : x);
        }
}

/* A tile that adds to C, or has fewer rows than tiles hold, goes through local memory. */
static void tile(int rows, int64_t k, const void *a, int64_t a_stride, const void *b, float *c,
                 int64_t c_stride, bool add, wefti_gemm_ahead *ahead) {
    (void)a_stride; /* always a panel */
    _Alignas(64) float sums[EDGE * EDGE];
    const bool straight = rows == EDGE && !add;
    float *out = straight ? c : sums;
    const int64_t stride = straight ? c_stride : EDGE;
    if (ahead)
        multiply(k, a, b, ahead);
    else
        multiply(k, a, b, NULL);
    store_sums(out, stride);
    if (rows > SIDE) {
        multiply(k, (const uint16_t *)a + TILE, b, NULL);
        store_sums(out + SIDE * stride, stride);
    }
    if (!straight) add_rows(rows, sums, c, c_stride, add);
}

static void enter(void) {
    tiles_configure();
}
static void leave(void) {
    tiles_release();
}

static void pack_a(const wefti_gemm_operand *operand, const void *a, int64_t rows,
                   int64_t readable_rows, int64_t k, void *panel) {
    (void)readable_rows; /* never reads beyond the given rows */
    pack_as(WEFT_F32, PIECES, true, a, rows, operand->row_stride, k, operand->column_stride, panel);
}
static void pack_b(const wefti_gemm_operand *operand, const void *b, int64_t columns, int64_t k,
                   void *panel) {
    pack_as(WEFT_F32, PIECES, false, b, columns, operand->column_stride, k, operand->row_stride,
            panel);
}

static void epilogue(const wefti_gemm_sink *sink, int64_t i, int64_t j, int64_t rows,
                     int64_t columns, const float *sums, int64_t sums_stride, const float *partial,
                     int64_t partial_stride) {
    WEFTI_FORM(wefti_gemm_kernels_avx512)
        .epilogue(sink, i, j, rows, columns, sums, sums_stride, partial, partial_stride);
}

const wefti_gemm_kernels WEFTI_FORM(wefti_gemm_kernels_amx_f32) = {
    .rows = EDGE,
    .columns = EDGE,
    .element_bytes = 2 * PIECES,
    .depth_unit = DEPTH,
    .k_block = 1024,
    .m_tile = 64,
    .n_tile = 256,
    .m_group = 128,
    .n_group = 192,
    .tile = tile,
    .enter = enter,
    .leave = leave,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .epilogue = epilogue,
};
#endif
