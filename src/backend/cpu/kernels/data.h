/* Kernels that look up, move, pool or generate data. */
#ifndef WEFTI_CPU_KERNELS_DATA_H
#define WEFTI_CPU_KERNELS_DATA_H

#include "backend/cpu/types.h"

/* y[r] = table[ids[r]] (+ second[second_ids[r]]). If second_ids is absent, the second index is
 * second_offset + r % second_period (learned positions). An id outside the table gives a row of
 * NaN. A piece of a table holds the rows from `begin` on of `whole` rows (0: all). An id of a row
 * that is not in the piece gives zeros. */
typedef struct wefti_embedding_args {
    wefti_src table;      /* [vocab, dim] */
    wefti_src ids;        /* [rows] i32, i64 or u16 */
    wefti_src second;     /* [second_vocab, dim]; optional */
    wefti_src second_ids; /* optional */
    int64_t second_period, second_offset, second_vocab;
    wefti_dst y; /* [rows, dim] */
    int64_t rows, dim, vocab, begin, whole;
} wefti_embedding_args;

/* dtable[ids[r] - begin] += dy[r], in row order. If ids is absent, id = offset + r % period. Ids
 * outside the table are skipped, and so is the id `padding` (-1: none). */
typedef struct wefti_embedding_backward_args {
    wefti_src dy, ids;
    int64_t period, offset;
    float *dtable;   /* [vocab, dim] */
    bool accumulate; /* false: dtable is zeroed first */
    int64_t rows, dim, vocab, begin, padding;
} wefti_embedding_backward_args;

/* A gradient as rows (rows/rows.h): y[r] = id, dy[r]. Ids outside the table, and `padding`, become
 * negative. */
typedef struct wefti_embedding_rows_args {
    wefti_src dy, ids;
    float *y; /* [rows, 2 + dim] */
    int64_t rows, dim, vocab, begin, padding;
} wefti_embedding_rows_args;

/* Each touched row once, in the order in which x first names it: ids[k] counts from `begin`; the
 * terms of sums[k] are added in order, those of each of `parts` parts first. Part p has the places
 * up to ends[p]. Unused places have the id -1 and zeros. */
typedef struct wefti_rows_sum_args {
    const float *x; /* [places, width] */
    int32_t *ids;   /* [places] */
    float *sums;    /* [places, columns] */
    const int32_t *ends;
    int64_t places, width, first, columns, vocab, begin; /* first: the first column of x */
    int32_t parts;
    void *workspace;
} wefti_rows_sum_args;
size_t wefti_rows_sum_workspace_bytes(int64_t places);

/* table[ids[k]] = x[k]; ids outside the table are dropped. */
typedef struct wefti_rows_write_args {
    float *table;
    const int32_t *ids;
    const float *x;
    int64_t count, dim, vocab;
} wefti_rows_write_args;

/* Rotary positions (Su et al. 2021). x is [batch, seq, heads, dim] with strides in elements; dim
 * has stride 1. The first `rotary` elements of dim are rotated, the rest are copied. cos, sin:
 * [positions, rotary / 2] from wefti_rope_row. Backward is the same kernel with inverse =
 * true. */
typedef struct wefti_rope_args {
    wefti_src x;
    wefti_dst y; /* in place */
    int64_t batch, seq, heads, dim, rotary;
    int64_t x_strides[3], y_strides[3]; /* batch, seq, heads */
    const float *cos, *sin;
    int64_t offset;   /* position of seq index 0 */
    bool interleaved; /* pairs (2i, 2i+1); else Llama's halves (i, i + rotary/2) */
    bool inverse;
} wefti_rope_args;

/* The scaled frequencies theta^(-2i/rotary), [rotary / 2]. */
void wefti_rope_frequencies(int64_t rotary, double theta, const weft_rope_scaling *scaling,
                            double *out);
/* Fills a row of cos and of sin, [half] each: of the angles position * frequency, in double. */
void wefti_rope_row(int64_t position, int64_t half, const double *frequencies, float *cos,
                    float *sin);

typedef struct wefti_one_hot_args {
    wefti_src ids; /* [rows] i32, i64, u16; an id outside begin + [0, classes) gives a zero row */
    wefti_dst y;   /* [rows, classes] */
    int64_t rows, classes, begin;
    float on, off;
} wefti_one_hot_args;

/* Gathers along an axis: x [outer, axis, inner], ids [outer or 1, count, inner or 1], y [outer,
 * count, inner]. x is a piece that begins at `begin` of the axis. Ids count along the whole
 * axis. */
typedef struct wefti_gather_args {
    wefti_src x;   /* any element type of 1, 2, 4 or 8 bytes */
    wefti_src ids; /* i32 or i64; an id out of range fills the element with zero bytes */
    wefti_dst y;
    int64_t outer, axis, count, inner, begin;
    bool ids_per_outer, ids_per_inner; /* false: ids has size 1 in that dimension */
} wefti_gather_args;

/* y[o, ids[o, k, i] - begin, i] += x[o, k, i], in the order of k. */
typedef struct wefti_scatter_add_args {
    wefti_src x;     /* [outer, count, inner] f32, bf16 */
    wefti_src ids;   /* as in gather; an id out of range is skipped */
    float *y;        /* [outer, axis, inner] */
    bool accumulate; /* false: y is zeroed first */
    int64_t outer, axis, count, inner, begin;
    bool ids_per_outer, ids_per_inner;
} wefti_scatter_add_args;

/* The k greatest elements of each row in falling order. Ties go to the lower index; NaN counts as
 * greatest. */
typedef struct wefti_top_k_args {
    wefti_src x;          /* [rows, dim] */
    int64_t rows, dim, k; /* 1 <= k <= dim */
    wefti_dst values;     /* [rows, k] */
    wefti_dst indices;    /* [rows, k] i32 or i64 */
    void *workspace;
} wefti_top_k_args;
size_t wefti_top_k_workspace_bytes(int64_t rows, int64_t dim, int64_t k);

/* y.shape[d] = x.shape[axes[d]]. Any element size of 1, 2, 4, 8 bytes. */
typedef struct wefti_permute_args {
    const void *x;
    void *y;
    int element; /* bytes */
    int rank;
    int64_t shape[WEFT_MAX_RANK]; /* of x */
    int axes[WEFT_MAX_RANK];
} wefti_permute_args;

/* Copies a box between two strided arrays: concat, slice, split, pad (after fill). Strides are in
 * elements; x strides may be 0 or negative. */
typedef struct wefti_copy_strided_args {
    const void *x;
    void *y;
    int element;
    int rank;
    int64_t shape[WEFT_MAX_RANK], x_strides[WEFT_MAX_RANK], y_strides[WEFT_MAX_RANK];
} wefti_copy_strided_args;

/* Dense cast between any two dtypes. With equal dtypes it copies. */
typedef struct wefti_convert_args {
    wefti_src x;
    wefti_dst y;
    int64_t elements;
} wefti_convert_args;

typedef struct wefti_fill_args {
    wefti_dst y; /* any dtype */
    int64_t elements;
    double value;
} wefti_fill_args;

/* Pooling over the last two dims: x [planes, height, width], y [planes, out_height, out_width]. */
typedef struct wefti_pool2d_args {
    wefti_src x; /* forward: x; max backward: x is unused */
    wefti_dst y;
    wefti_src dy; /* backward */
    wefti_dst dx; /* backward */
    /* max: [planes, out_height, out_width], h * width + w of the maximum. Forward writes it
     * (optional); backward reads it. */
    int32_t *indices;
    int64_t planes, height, width, out_height, out_width;
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    int64_t dilation_h, dilation_w; /* max only; 1 for avg */
    bool count_include_pad;         /* avg: divide by the window's size, including padding */
} wefti_pool2d_args;

/* Windows of images as columns of a matrix [channels * taps, images * plane of y], and back:
 *   unfold: columns[(c, tap), (n, o)] = image[n, c, o stride - padding + tap dilation], 0 outside
 *   fold:   result[n, c, i] = bias[c] + the sum of all columns that came from there
 * Arrays: depth, height, width. */
typedef struct wefti_unfold_args {
    wefti_src image;  /* unfold */
    wefti_dst result; /* fold */
    float *columns;   /* written by unfold, read by fold */
    int64_t images, channels;
    int64_t image_stride; /* elements from one image to the next */
    int64_t x[3], k[3], y[3], stride[3], padding[3], dilation[3];
    /* columns are [channels * taps, plane of y * images]: this gives long runs for narrow planes */
    bool images_inner;
    const float *bias; /* fold; optional */
    float *workspace;  /* [threads of the pool, plane of x * (images if images_inner)] */
} wefti_unfold_args;

/* y[i] = philox(seed, stream, base + i), with the bits of base/philox.h. Normal: mean + std * z.
 * Uniform: low + u (high - low). */
typedef struct wefti_random_fill_args {
    wefti_dst y; /* f32, bf16 */
    int64_t elements;
    uint64_t seed, stream, base;
    bool normal;
    float a, b; /* normal: mean, std; uniform: low, high */
} wefti_random_fill_args;

#endif
