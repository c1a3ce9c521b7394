/* The kernels of one isa. The including file defines these macros.
 * `VL`: floats of a vector.
 * `TILE_ROWS` and `TILE_VECTORS`: the register tile.
 * `PREFETCH_LINES`: lines of B's panel that are prefetched; 0: none.
 * `K_BLOCK` and `M_TILE`: the part that a task keeps in the second-level cache.
 * `M_GROUP` and `N_GROUP`: most rows and columns that a task packs for itself; 0: none.
 * `KERNELS`: the name of the table. */
#include "backend/cpu/gemm/kernel_table.h"
#include "backend/cpu/vector.h"

enum { TILE_COLUMNS = TILE_VECTORS * VL };

/* --- The register tile
 * ----------------------------------------------------------------------------------------- */

/* An outer product for each k: TILE_VECTORS loads of B, and one broadcast of A for TILE_VECTORS
 * fused operations. The number of rows is a constant in each copy, so that all sums stay in
 * registers. */
INLINE void tile_of(const int rows, int64_t k, const float *restrict a, const float *restrict b,
                    float *restrict c, int64_t c_stride, bool add) {
    vfloat sums[TILE_ROWS][TILE_VECTORS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < TILE_VECTORS; v++) sums[i][v] =
        (vfloat){0};
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < TILE_VECTORS; v++)
        __builtin_prefetch(c + i * c_stride + v * VL, 1);
    _Pragma("GCC unroll 4") for (int64_t p = 0; p < k; p++) {
        vfloat row[TILE_VECTORS];
        UNROLL for (int v = 0; v < TILE_VECTORS; v++) row[v] = vload(b + v * VL);
        if (PREFETCH_LINES > 0) UNROLL
        for (int v = 0; v < TILE_VECTORS; v++)
            __builtin_prefetch(b + PREFETCH_LINES * TILE_COLUMNS + v * VL);
        UNROLL for (int i = 0; i < rows; i++) {
            vfloat left = vsplat(a[i]);
            UNROLL for (int v = 0; v < TILE_VECTORS; v++) sums[i][v] =
                vfma(left, row[v], sums[i][v]);
        }
        a += TILE_ROWS;
        b += TILE_COLUMNS;
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < TILE_VECTORS; v++) {
        float *out = c + i * c_stride + v * VL;
        vstore(out, add ? vload(out) + sums[i][v] : sums[i][v]);
    }
}

#define TILE_CASE(count)                                                                           \
    case count:                                                                                    \
        if (count <= TILE_ROWS)                                                                    \
            tile_of(count <= TILE_ROWS ? count : 1, k, a, b, c, c_stride, add);                    \
        break;
static void tile(int rows, int64_t k, const void *a, int64_t a_stride, const void *b, float *c,
                 int64_t c_stride, bool add, wefti_gemm_ahead *ahead) {
    (void)a_stride; /* panels only */
    (void)ahead;    /* the tile prefetches lines of its own panel */
    switch (rows) {
        EACH_ROW_COUNT(TILE_CASE)
    default:
        break;
    }
}

/* --- Packing
 * ---------------------------------------------------------------------------------------------------
 */

INLINE const void *at(weft_dtype dtype, const void *base, int64_t index) {
    return (const char *)base + index * (dtype == WEFT_F32 ? 4 : 2);
}

/* panel[p][lane of the group at `first`] from VL rows, each contiguous along k. `lanes` of the rows
 * exist. `width` floats of each panel row belong to the group. */
INLINE void pack_group_transposed(weft_dtype dtype, const void *source, int64_t stride,
                                  int64_t lanes, int64_t k, float *panel, const int width,
                                  const int64_t panel_stride) {
    for (int64_t p = 0; p < k; p += VL) {
        int64_t count = k - p < VL ? k - p : VL;
        vfloat rows[VL];
        if (count == VL && lanes >= width) {
            UNROLL for (int i = 0; i < VL; i++) rows[i] =
                i < width ? load_row(dtype, at(dtype, source, i * stride), p) : (vfloat){0};
        } else {
            UNROLL for (int i = 0; i < VL; i++) rows[i] =
                i >= lanes    ? (vfloat){0}
                : count == VL ? load_row(dtype, at(dtype, source, i * stride), p)
                              : load_part(dtype, at(dtype, source, i * stride), p, count);
        }
        transpose(rows);
        float *out = panel + p * panel_stride;
        if (count == VL && (width == VL || (panel_stride == width && p + VL < k))) {
            /* Store whole vectors: the next line overwrites the part beyond `width`. */
            UNROLL for (int i = 0; i < VL; i++) vstore(out + i * panel_stride, rows[i]);
        } else {
            for (int64_t i = 0; i < count; i++, out += panel_stride)
                memcpy(out, &rows[i], (size_t)width * 4);
        }
    }
}

static void pack_strided(const wefti_gemm_operand *operand, const void *source, int64_t lanes,
                         int64_t lane_stride, int64_t k, int64_t k_stride, float *panel,
                         int width) {
    for (int64_t p = 0; p < k; p++)
        for (int64_t first = 0; first < width; first += VL) {
            int64_t count = lanes - first < VL ? lanes - first : VL;
            vfloat v = load_strided(operand->dtype,
                                    at(operand->dtype, source, p * k_stride + first * lane_stride),
                                    0, lane_stride, count > 0 ? count : 0);
            int64_t stored = width - first < VL ? width - first : VL;
            memcpy(panel + p * width + first, &v, (size_t)stored * 4);
        }
}

INLINE void pack_a_as(const weft_dtype dtype, const wefti_gemm_operand *operand, const void *a,
                      int64_t rows, int64_t readable_rows, int64_t k, float *panel) {
    if (operand->column_stride == 1) {
        for (int first = 0; first < TILE_ROWS; first += VL) {
            const int width = TILE_ROWS - first < VL ? TILE_ROWS - first : VL;
            int64_t lanes = rows - first;
            pack_group_transposed(dtype, at(dtype, a, first * operand->row_stride),
                                  operand->row_stride, lanes > 0 ? lanes : 0, k, panel + first,
                                  width, TILE_ROWS);
        }
    } else if (operand->row_stride == 1 &&
               readable_rows >= (TILE_ROWS + VL - 1) / VL * VL) { /* whole vectors may be read */
        for (int64_t p = 0; p < k; p++) {
            const void *line = at(dtype, a, p * operand->column_stride);
            UNROLL for (int first = 0; first < TILE_ROWS; first += VL) {
                vfloat v = load_row(dtype, line, first);
                memcpy(panel + p * TILE_ROWS + first, &v,
                       (size_t)(TILE_ROWS - first < VL ? TILE_ROWS - first : VL) * 4);
            }
        }
    } else {
        pack_strided(operand, a, rows, operand->row_stride, k, operand->column_stride, panel,
                     TILE_ROWS);
    }
}
static void pack_a(const wefti_gemm_operand *operand, const void *a, int64_t rows,
                   int64_t readable_rows, int64_t k, void *panel) {
    if (operand->dtype == WEFT_F32)
        pack_a_as(WEFT_F32, operand, a, rows, readable_rows, k, panel);
    else
        pack_a_as(WEFT_BF16, operand, a, rows, readable_rows, k, panel);
}

INLINE void pack_b_as(const weft_dtype dtype, const wefti_gemm_operand *operand, const void *b,
                      int64_t columns, int64_t k, float *panel) {
    if (operand->column_stride == 1 && columns == TILE_COLUMNS) {
        for (int64_t p = 0; p < k; p++) {
            const void *line = at(dtype, b, p * operand->row_stride);
            UNROLL for (int v = 0; v < TILE_VECTORS; v++)
                vstore(panel + p * TILE_COLUMNS + v * VL, load_row(dtype, line, v * VL));
        }
    } else if (operand->row_stride == 1) {
        for (int first = 0; first < TILE_COLUMNS; first += VL) {
            int64_t lanes = columns - first;
            pack_group_transposed(dtype, at(dtype, b, first * operand->column_stride),
                                  operand->column_stride, lanes > 0 ? lanes : 0, k, panel + first,
                                  VL, TILE_COLUMNS);
        }
    } else {
        pack_strided(operand, b, columns, operand->column_stride, k, operand->row_stride, panel,
                     TILE_COLUMNS);
    }
}
static void pack_b(const wefti_gemm_operand *operand, const void *b, int64_t columns, int64_t k,
                   void *panel) {
    if (operand->dtype == WEFT_F32)
        pack_b_as(WEFT_F32, operand, b, columns, k, panel);
    else
        pack_b_as(WEFT_BF16, operand, b, columns, k, panel);
}

/* --- Epilogue
 * --------------------------------------------------------------------------------------------------
 */

/* Finishes up to VL columns of one row. If `count` < VL or C has a column stride, it uses the slow
 * loads. */
INLINE void finish(const wefti_gemm_sink *sink, const weft_dtype dtype, int64_t row, int64_t column,
                   int64_t count, const bool whole, vfloat x) {
    const wefti_gemm_spec *spec = sink->spec;
    const int64_t stride = spec->c.column_stride, start = row * spec->c.row_stride;
    char *out = sink->c + start * (dtype == WEFT_F32 ? 4 : 2);
    x *= (float)spec->alpha;
    if (sink->bias)
        x += whole ? vload(sink->bias + column) : load_part(WEFT_F32, sink->bias, column, count);
    if (whole) {
        if (spec->accumulate) x += load_row(dtype, out, column);
        store_row(dtype, out, column, x);
    } else if (stride == 1) {
        if (spec->accumulate) x += load_part(dtype, out, column, count);
        store_part(dtype, out, column, count, x);
    } else {
        if (spec->accumulate) x += load_strided(dtype, out, column, stride, count);
        store_strided(dtype, out, column, stride, count, x);
    }
}

INLINE void epilogue_as(const weft_dtype dtype, const wefti_gemm_sink *sink, int64_t i, int64_t j,
                        int64_t rows, int64_t columns, const float *sums, int64_t sums_stride,
                        const float *partial, int64_t partial_stride) {
    const bool dense = sink->spec->c.column_stride == 1;
    for (int64_t r = 0; r < rows; r++, sums += sums_stride) {
        for (int64_t v = 0; v < columns; v += VL) {
            int64_t count = columns - v < VL ? columns - v : VL;
            bool whole = dense && count == VL;
            vfloat x = count == VL ? vload(sums + v) : load_part(WEFT_F32, sums, v, count);
            if (partial)
                x = (count == VL ? vload(partial + v) : load_part(WEFT_F32, partial, v, count)) + x;
            if (whole)
                finish(sink, dtype, i + r, j + v, VL, true, x);
            else
                finish(sink, dtype, i + r, j + v, count, false, x);
        }
        if (partial) partial += partial_stride;
    }
}
static void epilogue(const wefti_gemm_sink *sink, int64_t i, int64_t j, int64_t rows,
                     int64_t columns, const float *sums, int64_t sums_stride, const float *partial,
                     int64_t partial_stride) {
    if (sink->spec->c.dtype == WEFT_F32)
        epilogue_as(WEFT_F32, sink, i, j, rows, columns, sums, sums_stride, partial,
                    partial_stride);
    else
        epilogue_as(WEFT_BF16, sink, i, j, rows, columns, sums, sums_stride, partial,
                    partial_stride);
}

/* --- Few rows
 * --------------------------------------------------------------------------------------------------
 */

/* How many lines of `bytes` each are read ahead: a multiple of `step`, of some 16 KiB. Less is not
 * there when it is wanted, and more leaves the first-level cache again. Behind the end of a block
 * lies the next one, and behind the end of B nothing is lost. */
INLINE int64_t lines_ahead(int64_t bytes, int64_t step) {
    const int64_t ahead = (16 * 1024 + bytes * step / 2) / (bytes * step);
    return ahead > 0 ? ahead * step : step;
}

/* B is [k][columns]. Four rows of B at a time are added to the sums, which stay in the first-level
 * cache. */
INLINE void skinny_add(const int rows, int64_t columns, int64_t k, const float *a, int64_t a_stride,
                       const weft_dtype dtype, int64_t b_stride, const void *b, float *sums) {
    for (int r = 0; r < rows; r++)
        memset(sums + r * GEMM_SKINNY_COLUMNS, 0,
               (size_t)((columns + VL - 1) / VL * VL) * sizeof *sums);
    const int64_t ahead = lines_ahead(columns * (int64_t)weft_dtype_bytes(dtype), 4);
    for (int64_t p = 0; p < k; p += 4) {
        const int64_t depth = k - p < 4 ? k - p : 4;
        for (int64_t j = 0; j < columns; j += VL) {
            const int64_t count = columns - j < VL ? columns - j : VL;
            vfloat lines[4];
            UNROLL for (int d = 0; d < 4; d++) {
                const void *line = at(dtype, b, (p + d) * b_stride);
                __builtin_prefetch(at(dtype, b, (p + ahead + d) * b_stride + j));
                lines[d] = d >= depth    ? (vfloat){0}
                           : count == VL ? load_row(dtype, line, j)
                                         : load_part(dtype, line, j, count);
            }
            UNROLL for (int r = 0; r < rows; r++) {
                float *out = sums + r * GEMM_SKINNY_COLUMNS + j;
                vfloat sum = vload(out);
                UNROLL for (int d = 0; d < 4; d++) if (d < depth) sum =
                    vfma(vsplat(a[r * a_stride + p + d]), lines[d], sum);
                vstore(out, sum);
            }
        }
    }
}

INLINE float sum_lanes(vfloat v) {
    float lanes[VL];
    vstore(lanes, v);
    for (int width = VL / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

/* B is [columns][k]. Computes dot products of `width` columns of B with all rows of A at a time. */
INLINE void skinny_dot(const int rows, const int width, int64_t columns, int64_t k, const float *a,
                       int64_t a_stride, const weft_dtype dtype, int64_t b_stride, const void *b,
                       float *sums) {
    const int64_t ahead = lines_ahead(k * (int64_t)weft_dtype_bytes(dtype), width);
    for (int64_t j = 0; j < columns; j += width) {
        const void *lines[4];
        vfloat dots[GEMM_SKINNY_ROWS][4];
        /* columns beyond the last one repeat it and are not stored */
        for (int c = 0; c < width; c++)
            lines[c] = at(dtype, b, (j + c < columns ? j + c : columns - 1) * b_stride);
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < width; c++) dots[r][c] =
            (vfloat){0};
        const bool more = j + ahead + width <= columns; /* later columns are read ahead */
        int64_t p = 0;
        for (; p + VL <= k; p += VL) {
            UNROLL for (int c = 0; c < width; c++) {
                if (more) __builtin_prefetch(at(dtype, lines[c], ahead * b_stride + p));
                vfloat right = load_row(dtype, lines[c], p);
                UNROLL for (int r = 0; r < rows; r++) dots[r][c] =
                    vfma(vload(a + r * a_stride + p), right, dots[r][c]);
            }
        }
        if (p < k) UNROLL for (int c = 0; c < width; c++) {
                vfloat right = load_part(dtype, lines[c], p, k - p);
                UNROLL for (int r = 0; r < rows; r++) dots[r][c] =
                    vfma(load_part(WEFT_F32, a + r * a_stride, p, k - p), right, dots[r][c]);
            }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < width && j + c < columns; c++)
                sums[r * GEMM_SKINNY_COLUMNS + j + c] = sum_lanes(dots[r][c]);
    }
}

INLINE void skinny_of(const int rows, const weft_dtype dtype, int64_t columns, int64_t k,
                      const float *a, int64_t a_stride, const wefti_gemm_operand *operand,
                      const void *b, float *sums) {
    if (operand->column_stride == 1)
        skinny_add(rows, columns, k, a, a_stride, dtype, operand->row_stride, b, sums);
    else
        skinny_dot(rows, rows <= 4 ? 4 : 2, columns, k, a, a_stride, dtype, operand->column_stride,
                   b, sums);
}

#define SKINNY_CASE(count)                                                                         \
    case count:                                                                                    \
        if (count <= GEMM_SKINNY_ROWS && operand->dtype == WEFT_F32)                               \
            skinny_of(count <= GEMM_SKINNY_ROWS ? count : 1, WEFT_F32, columns, k, a, a_stride,    \
                      operand, b, sums);                                                           \
        else if (count <= GEMM_SKINNY_ROWS)                                                        \
            skinny_of(count <= GEMM_SKINNY_ROWS ? count : 1, WEFT_BF16, columns, k, a, a_stride,   \
                      operand, b, sums);                                                           \
        break;
static void skinny(int64_t rows, int64_t columns, int64_t k, const float *a, int64_t a_stride,
                   const wefti_gemm_operand *operand, const void *b, float *sums) {
    switch (rows) {
        EACH_ROW_COUNT(SKINNY_CASE)
    default:
        break;
    }
}

const wefti_gemm_kernels KERNELS = {
    .rows = TILE_ROWS,
    .columns = TILE_COLUMNS,
    .element_bytes = 4,
    .depth_unit = 16,
    .k_block = K_BLOCK, /* panels stream from the second-level cache, with few passes over C */
    .m_tile = M_TILE,   /* for a task: about 250 KiB of A in the second-level cache */
    .n_tile = 384,
    .m_group = M_GROUP,
    .n_group = N_GROUP,
    .tile = tile,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .epilogue = epilogue,
    .skinny = skinny,
};
