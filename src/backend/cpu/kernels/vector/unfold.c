/* Images to matrices of windows and back: see kernels/data.h. A task is a channel. So no two tasks
 * write the same element, and sums over taps have one order. */
#include "backend/cpu/kernels/vector/table.h"

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
static void unfold_plane(const unfold_run *r, wefti_src x, int64_t at, int64_t tap, float *row) {
    const wefti_unfold_args *a = r->a;
    int64_t shift[3], begin, end, step = a->stride[2];
    shifts_of(a, tap, shift);
    inside(shift[2], a->stride[2], a->x[2], a->y[2], &begin, &end);
    for (int64_t d = 0; d < a->y[0]; d++)
        for (int64_t h = 0; h < a->y[1]; h++, row += a->y[2]) {
            int64_t xd = d * a->stride[0] + shift[0], xh = h * a->stride[1] + shift[1];
            if (xd < 0 || xd >= a->x[0] || xh < 0 || xh >= a->x[1]) {
                memset(row, 0, (size_t)a->y[2] * sizeof *row);
                continue;
            }
            int64_t from = at + (xd * a->x[1] + xh) * a->x[2] + shift[2];
            for (int64_t w = 0; w < begin; w++) row[w] = 0.0f;
            if (step == 1) {
                FOR_VECTORS(w, n, end - begin) {
                    store_f32(row + begin + w, load(x, from + begin + w, n), n);
                }
            } else {
                for (int64_t w = begin; w < end; w++) row[w] = load1(x, from + w * step);
            }
            for (int64_t w = end; w < a->y[2]; w++) row[w] = 0.0f;
        }
}

/* The element of x's plane under a tap at output (d, h, w); -1: outside. */
INLINE int64_t source(const wefti_unfold_args *a, const int64_t shift[3], int64_t d, int64_t h,
                      int64_t w) {
    int64_t xd = d * a->stride[0] + shift[0], xh = h * a->stride[1] + shift[1],
            xw = w * a->stride[2] + shift[2];
    if (xd < 0 || xd >= a->x[0] || xh < 0 || xh >= a->x[1] || xw < 0 || xw >= a->x[2]) return -1;
    return (xd * a->x[1] + xh) * a->x[2] + xw;
}

/* Images inner: stores the channel as [plane of x, images]. From there, rows are copied in long
 * runs. */
static void unfold_inner(const unfold_run *r, int64_t c, float *turned) {
    const wefti_unfold_args *a = r->a;
    int64_t images = a->images;
    for (int64_t n = 0; n < images; n++)
        for (int64_t i = 0; i < r->plane_x; i++)
            turned[i * images + n] = load1(a->image, n * a->image_stride + c * r->plane_x + i);
    for (int64_t t = 0; t < r->taps; t++) {
        float *to = a->columns + (c * r->taps + t) * r->width;
        int64_t shift[3];
        shifts_of(a, t, shift);
        for (int64_t d = 0; d < a->y[0]; d++)
            for (int64_t h = 0; h < a->y[1]; h++)
                for (int64_t w = 0; w < a->y[2]; w++, to += images) {
                    int64_t from = source(a, shift, d, h, w);
                    FOR_VECTORS(n, count, images) {
                        vf v = from < 0 ? vf_zero() : load_f32(turned + from * images + n, count);
                        store_f32(to + n, v, count);
                    }
                }
    }
}

static void unfold_channel(void *context, int64_t c, int thread) {
    const unfold_run *r = context;
    const wefti_unfold_args *a = r->a;
    if (a->images_inner) {
        unfold_inner(r, c, a->workspace + thread * r->plane_x * a->images);
        return;
    }
    for (int64_t t = 0; t < r->taps; t++)
        for (int64_t n = 0; n < a->images; n++)
            unfold_plane(r, a->image, n * a->image_stride + c * r->plane_x, t,
                         a->columns + (c * r->taps + t) * r->width + n * r->plane_y);
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
            if (a->stride[2] == 1) {
                FOR_VECTORS(w, n, end - begin) {
                    float *p = to + begin + w;
                    store_f32(p, load_f32(p, n) + load_f32(row + begin + w, n), n);
                }
            } else {
                for (int64_t w = begin; w < end; w++) to[w * a->stride[2]] += row[w];
            }
        }
}

static void store_plane(const unfold_run *r, const float *plane, int64_t at) {
    const wefti_unfold_args *a = r->a;
    FOR_VECTORS(i, n, r->plane_x) {
        store(a->result, at + i, load_f32(plane + i, n), n);
    }
}

static void fold_inner(const unfold_run *r, int64_t c, float *turned, float bias) {
    const wefti_unfold_args *a = r->a;
    int64_t images = a->images;
    for (int64_t i = 0; i < r->plane_x * images; i++) turned[i] = bias;
    for (int64_t t = 0; t < r->taps; t++) {
        const float *from = a->columns + (c * r->taps + t) * r->width;
        int64_t shift[3];
        shifts_of(a, t, shift);
        for (int64_t d = 0; d < a->y[0]; d++)
            for (int64_t h = 0; h < a->y[1]; h++)
                for (int64_t w = 0; w < a->y[2]; w++, from += images) {
                    int64_t to = source(a, shift, d, h, w);
                    if (to < 0) continue;
                    float *sums = turned + to * images;
                    FOR_VECTORS(n, count, images) {
                        vf v = load_f32(sums + n, count) + load_f32(from + n, count);
                        store_f32(sums + n, v, count);
                    }
                }
    }
    for (int64_t n = 0; n < images; n++)
        for (int64_t i = 0; i < r->plane_x; i++)
            store1(a->result, n * a->image_stride + c * r->plane_x + i, turned[i * images + n]);
}

static void fold_channel(void *context, int64_t c, int thread) {
    const unfold_run *r = context;
    const wefti_unfold_args *a = r->a;
    float bias = a->bias ? a->bias[c] : 0.0f;
    if (a->images_inner) {
        fold_inner(r, c, a->workspace + thread * r->plane_x * a->images, bias);
        return;
    }
    float *plane = a->workspace + thread * r->plane_x;
    for (int64_t n = 0; n < a->images; n++) {
        for (int64_t i = 0; i < r->plane_x; i++) plane[i] = bias;
        for (int64_t t = 0; t < r->taps; t++)
            fold_plane(r, a->columns + (c * r->taps + t) * r->width + n * r->plane_y, t, plane);
        store_plane(r, plane, n * a->image_stride + c * r->plane_x);
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
