/* Matrix kernels for AMX: tiles of bf16 with f32 sums.
 *
 * A register tile is 32 x 32 sums in four tile registers. A step covers 32 lines of k. It loads two
 * tiles of A and two of B, and multiplies each A tile by each B tile. So it has as many loads as
 * products, the best ratio that eight tile registers allow. Panels lie as tiles do, one kilobyte
 * after the other:
 *   A: [k / 32][row / 16][row % 16][k % 32]
 *   B: [k / 32][column / 16][k % 32 / 2][column % 16][k % 2]   (pairs of k side by side)
 * A step adds the products of even k and those of odd k in two sums. It adds the sum of the two to
 * the f32 sum (tile/emulated.h). Source: Intel 64 and IA-32 Architectures Software Developer's
 * Manual, volume 1, chapter 18, and TDPBF16PS in volume 2. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 16
#include "backend/cpu/gemm/amx.h"
#include "backend/cpu/gemm/bf16_pack.h"

static void enter(void) {
    tiles_configure();
}
static void leave(void) {
    tiles_release();
}

/* Registers 0 to 3 hold sums, 4 and 5 hold A, 6 and 7 hold B. Registers 4 to 7 are zeroed after
 * their last read. If the core's other hardware thread is busy, the core has few physical registers
 * for the eight names, and zeroed registers take none. Without zeroing, loads and products wait for
 * each other on such a core. Then the four products take 114 ns instead of 60. `low`: only the
 * first 16 rows. `a_stride`: bytes from row to row; 0: a panel, with rows of 64 bytes. */
INLINE void multiply(const bool low, int64_t k, const char *a, int64_t a_stride, const uint16_t *b,
                     wefti_gemm_ahead *ahead) {
    const bool panel = a_stride == 0;
    const size_t stride = panel ? 64 : (size_t)a_stride;
    const char *second = a + SIDE * stride;
    const size_t step = panel ? 4 * TILE : 64;
    for (int64_t p = 0; p < k; p += DEPTH) {
        if (ahead) fetch_ahead(ahead, GEMM_AHEAD);
        TILE_LOAD(6, b, 64);
        TILE_LOAD(4, a, stride);
        TILE_DOT(0, 4, 6);
        TILE_LOAD(7, b + TILE, 64);
        TILE_DOT(1, 4, 7);
        TILE_ZERO(4);
        if (!low) {
            TILE_LOAD(5, second, stride);
            TILE_DOT(2, 5, 6);
            TILE_ZERO(6);
            TILE_DOT(3, 5, 7);
            TILE_ZERO(5);
        } else {
            TILE_ZERO(6);
        }
        TILE_ZERO(7);
        a += step;
        second += step;
        b += 2 * TILE;
    }
}

INLINE void load_sums(const bool low, const float *c, int64_t stride) {
    TILE_LOAD(0, c, (size_t)stride * 4);
    TILE_LOAD(1, c + SIDE, (size_t)stride * 4);
    if (low) return;
    TILE_LOAD(2, c + SIDE * stride, (size_t)stride * 4);
    TILE_LOAD(3, c + SIDE * stride + SIDE, (size_t)stride * 4);
}
INLINE void store_sums(const bool low, float *c, int64_t stride) {
    TILE_STORE(0, c, (size_t)stride * 4);
    TILE_STORE(1, c + SIDE, (size_t)stride * 4);
    if (low) return;
    TILE_STORE(2, c + SIDE * stride, (size_t)stride * 4);
    TILE_STORE(3, c + SIDE * stride + SIDE, (size_t)stride * 4);
}

/* A tile with fewer rows than tiles hold goes through local memory. It also begins with the sums so
 * far. So the bits of a row do not depend on its tile. */
static void tile_of_rows(int rows, int64_t k, const void *a, const void *b, float *c,
                         int64_t c_stride, bool add) {
    _Alignas(64) float sums[EDGE * EDGE];
    const bool low = rows <= SIDE;
    const size_t bytes = EDGE * sizeof *sums;
    zero_registers();
    if (add) {
        for (int r = 0; r < rows; r++) memcpy(sums + r * EDGE, c + r * c_stride, bytes);
        memset(sums + rows * EDGE, 0, (size_t)(EDGE - rows) * bytes);
        load_sums(low, sums, EDGE);
    }
    if (low)
        multiply(true, k, a, 0, b, NULL);
    else
        multiply(false, k, a, 0, b, NULL);
    store_sums(low, sums, EDGE);
    for (int r = 0; r < rows; r++) memcpy(c + r * c_stride, sums + r * EDGE, bytes);
}

static void tile(int rows, int64_t k, const void *a, int64_t a_stride, const void *b, float *c,
                 int64_t c_stride, bool add, wefti_gemm_ahead *ahead) {
    if (rows < EDGE) {
        tile_of_rows(rows, k, a, b, c, c_stride, add);
        return;
    }
    if (add)
        load_sums(false, c, c_stride);
    else
        zero_registers();
    if (ahead)
        multiply(false, k, a, a_stride, b, ahead);
    else
        multiply(false, k, a, a_stride, b, NULL);
    store_sums(false, c, c_stride);
}

/* --- Packing
 * ---------------------------------------------------------------------------------------------------
 */

static void pack_a(const wefti_gemm_operand *operand, const void *a, int64_t rows,
                   int64_t readable_rows, int64_t k, void *panel) {
    (void)readable_rows; /* never reads beyond the given rows */
    if (operand->dtype == WEFT_F32)
        pack_as(WEFT_F32, 1, true, a, rows, operand->row_stride, k, operand->column_stride, panel);
    else
        pack_as(WEFT_BF16, 1, true, a, rows, operand->row_stride, k, operand->column_stride, panel);
}

const wefti_gemm_kernels WEFTI_FORM(wefti_gemm_kernels_amx) = {
    .rows = EDGE,
    .columns = EDGE,
    .element_bytes = 2,
    .depth_unit = DEPTH,
    .reads_rows = true,
    .k_block = 1024, /* most products move their sums out of the tiles only once */
    .m_tile = 64,    /* for a task that packs nothing: 128 KiB of A */
    .n_tile = 512,
    .m_group = 256,
    .n_group = 512, /* 1 MiB of B in the second-level cache, and 64 KiB of A at a time */
    .tile = tile,
    .enter = enter,
    .leave = leave,
    .pack_a = pack_a,
    .pack_b = WEFTI_FORM(wefti_gemm_bf16_pack_b),
    .epilogue = WEFTI_FORM(wefti_gemm_bf16_epilogue),
};

const wefti_gemm_panels WEFTI_FORM(wefti_gemm_panels_amx) = {
    .enter = enter,
    .leave = leave,
    .pack_a = pack_a,
    .pack_b = WEFTI_FORM(wefti_gemm_bf16_pack_b),
    .tile = tile,
};
#endif
