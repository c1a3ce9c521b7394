/* Images to matrices of windows and back: see kernels_data.h. A task is a channel, so that nothing
 * is written twice and sums over taps have one order. */
#include "backend/cpu/kernels/table.h"

typedef struct unfold_run {
    const wefti_unfold_args *a;
    int64_t taps, plane_x, plane_y, width; /* width: of the matrix */
} unfold_run;

static unfold_run run_of(const wefti_unfold_args *a) {
    unfold_run r = {.a = a, .taps = 1, .plane_x = 1, .plane_y = 1};
    for (int s = 0; s < 3; s++) {
        r.taps *= a->k[s];
        r.plane_x *= a->x[s];
        r.plane_y *= a->y[s];
    }
    r.width = a->images * r.plane_y;
    return r;
}

/* Where channel c of image 0 begins, and how far its elements are apart. */
INLINE int64_t channel_start(const unfold_run *r, int64_t c) {
    int64_t block = r->a->block;
    return c / block * block * r->plane_x + c % block;
}

/* The outputs o of a row whose input o * stride + shift lies in [0, size): [*begin, *end). */
INLINE void inside(int64_t shift, int64_t stride, int64_t size, int64_t outputs, int64_t *begin,
                   int64_t *end) {
    *begin = shift >= 0 ? 0 : min64((-shift + stride - 1) / stride, outputs);
    *end = size <= shift ? 0 : min64((size - shift + stride - 1) / stride, outputs);
    if (*end < *begin) *end = *begin;
}

/* Shifts of tap t: input position = output position * stride + shift. */
INLINE void shifts_of(const wefti_unfold_args *a, int64_t t, int64_t shift[3]) {
    for (int s = 2; s >= 0; s--) {
        shift[s] = t % a->k[s] * a->dilation[s] - a->padding[s];
        t /= a->k[s];
    }
}

/* One tap of one plane: row [plane_y] from x. */
static void unfold_plane(const unfold_run *r, wefti_in x, int64_t at, int64_t tap, float *row) {
    const wefti_unfold_args *a = r->a;
    int64_t shift[3], begin, end, step = a->block * a->stride[2];
    shifts_of(a, tap, shift);
    inside(shift[2], a->stride[2], a->x[2], a->y[2], &begin, &end);
    for (int64_t d = 0; d < a->y[0]; d++)
        for (int64_t h = 0; h < a->y[1]; h++, row += a->y[2]) {
            int64_t xd = d * a->stride[0] + shift[0], xh = h * a->stride[1] + shift[1];
            if (xd < 0 || xd >= a->x[0] || xh < 0 || xh >= a->x[1]) {
                memset(row, 0, (size_t)a->y[2] * sizeof *row);
                continue;
            }
            int64_t from = at + ((xd * a->x[1] + xh) * a->x[2] + shift[2]) * a->block;
            for (int64_t w = 0; w < begin; w++) row[w] = 0.0f;
            if (step == 1) FOR_VECTORS(w, n, end - begin) {
                    store_f32(row + begin + w, load(x, from + begin + w, n), n);
                }
            else
                for (int64_t w = begin; w < end; w++) row[w] = load1(x, from + w * step);
            for (int64_t w = end; w < a->y[2]; w++) row[w] = 0.0f;
        }
}

static void unfold_table(const unfold_run *r, wefti_in x, int64_t at, int64_t tap, float *row) {
    const int32_t *restrict table = r->a->table + tap * r->width;
    float *restrict to = row;
    if (x.dtype == WEFT_F32) {
        const float *restrict from = (const float *)x.data + at;
        for (int64_t q = 0; q < r->width; q++) to[q] = table[q] < 0 ? 0.0f : from[table[q]];
    } else {
        for (int64_t q = 0; q < r->width; q++)
            to[q] = table[q] < 0 ? 0.0f : load1(x, at + table[q]);
    }
}

static void unfold_channel(void *context, int64_t c, int thread) {
    (void)thread;
    const unfold_run *r = context;
    const wefti_unfold_args *a = r->a;
    int64_t at = channel_start(r, c);
    for (int64_t t = 0; t < r->taps; t++) {
        float *row = a->columns + (c * r->taps + t) * r->width;
        if (a->table)
            unfold_table(r, a->image, at, t, row);
        else
            for (int64_t n = 0; n < a->images; n++)
                unfold_plane(r, a->image, at + n * a->image_stride, t, row + n * r->plane_y);
    }
}

/* Adds one tap's row to the plane that it came from. */
static void fold_plane(const unfold_run *r, const float *row, int64_t tap, float *plane) {
    const wefti_unfold_args *a = r->a;
    int64_t shift[3], begin, end;
    shifts_of(a, tap, shift);
    inside(shift[2], a->stride[2], a->x[2], a->y[2], &begin, &end);
    for (int64_t d = 0; d < a->y[0]; d++)
        for (int64_t h = 0; h < a->y[1]; h++, row += a->y[2]) {
            int64_t xd = d * a->stride[0] + shift[0], xh = h * a->stride[1] + shift[1];
            if (xd < 0 || xd >= a->x[0] || xh < 0 || xh >= a->x[1]) continue;
            float *to = plane + (xd * a->x[1] + xh) * a->x[2] + shift[2];
            if (a->stride[2] == 1) FOR_VECTORS(w, n, end - begin) {
                    float *p = to + begin + w;
                    store_f32(p, load_f32(p, n) + load_f32(row + begin + w, n), n);
                }
            else
                for (int64_t w = begin; w < end; w++) to[w * a->stride[2]] += row[w];
        }
}

static void store_plane(const unfold_run *r, const float *plane, int64_t at) {
    const wefti_unfold_args *a = r->a;
    if (a->block == 1) FOR_VECTORS(i, n, r->plane_x) {
            store(a->result, at + i, load_f32(plane + i, n), n);
        }
    else
        for (int64_t i = 0; i < r->plane_x; i++) store1(a->result, at + i * a->block, plane[i]);
}

static void fold_channel(void *context, int64_t c, int thread) {
    const unfold_run *r = context;
    const wefti_unfold_args *a = r->a;
    float *plane = a->workspace + thread * r->plane_x, bias = a->bias ? a->bias[c] : 0.0f;
    for (int64_t n = 0; n < a->images; n++) {
        for (int64_t i = 0; i < r->plane_x; i++) plane[i] = bias;
        for (int64_t t = 0; t < r->taps; t++) {
            const float *row = a->columns + (c * r->taps + t) * r->width + n * r->plane_y;
            if (!a->table) {
                fold_plane(r, row, t, plane);
                continue;
            }
            const int32_t *table = a->table + t * r->width; /* of image 0: the same in all */
            for (int64_t q = 0; q < r->plane_y; q++)
                if (table[q] >= 0) plane[table[q] / a->block] += row[q];
        }
        store_plane(r, plane, channel_start(r, c) + n * a->image_stride);
    }
}

void KERNEL(unfold)(wefti_pool *pool, const wefti_unfold_args *a) {
    unfold_run r = run_of(a);
    wefti_pool_run(pool, a->channels, unfold_channel, &r);
}
void KERNEL(fold)(wefti_pool *pool, const wefti_unfold_args *a) {
    unfold_run r = run_of(a);
    wefti_pool_run(pool, a->channels, fold_channel, &r);
}
