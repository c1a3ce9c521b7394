/* Max and average pooling: see kernels/data.h. A task is a plane.
 *
 * Backward gathers: each input row adds the windows that cover it, in order. So each result is
 * rounded only once. Gradients of maxima are scattered. bf16 planes that fit on the stack are
 * processed there in f32. */
#include "backend/cpu/kernels/vector/table.h"

enum { ROW_CHUNK = 512, SMALL_PLANE = 4096 };

/* One row of outputs of an f32 plane, VL outputs at a time. */
static void max_row(const wefti_pool2d_args *a, const float *x, int64_t oh, int64_t at) {
    const vi none = vi_set1(-1), stride = vi_set1((int32_t)a->stride_w);
    for (int64_t ow = 0; ow < a->out_width; ow += VL) {
        int64_t n = min64(VL, a->out_width - ow);
        vf best = vf_set1(-INFINITY);
        vi winner = none;
        for (int64_t kh = 0; kh < a->kernel_h; kh++) {
            int64_t h = oh * a->stride_h - a->pad_h + kh * a->dilation_h;
            if (h < 0 || h >= a->height) continue;
            for (int64_t kw = 0; kw < a->kernel_w; kw++) {
                int64_t first = ow * a->stride_w - a->pad_w + kw * a->dilation_w;
                vi w = vi_set1((int32_t)first) + vi_iota() * stride;
                vm inside = vm_and(vi_ge(w, vi_set1(0)), vi_ge(vi_set1((int32_t)a->width - 1), w));
                inside = vm_and(inside, vm_first(n));
                vf v = vf_gather(x + h * a->width, w, inside, best);
                /* Take a greater element, the first NaN, or the very first element. */
                vm take = vm_or(vm_lt(best, v), vi_eq(winner, none));
                take = vm_or(take, vm_and(vm_ne(v, v), vm_eq(best, best)));
                take = vm_and(take, inside);
                best = vf_select(take, v, best);
                winner = vi_select(take, w + vi_set1((int32_t)(h * a->width)), winner);
            }
        }
        store(a->y, at + ow, best, n);
        if (a->indices) {
            int32_t lanes[VL];
            vi_store(lanes, winner);
            for (int64_t k = 0; k < n; k++) a->indices[at + ow + k] = lanes[k];
        }
    }
}

static void max_plane(void *context, int64_t plane, int thread) {
    (void)thread;
    const wefti_pool2d_args *a = context;
    wefti_src x = in_at(a->x, plane * a->height * a->width);
    int64_t at = plane * a->out_height * a->out_width;
    int64_t elems = a->height * a->width;
    if (a->x.dtype == WEFT_F32 || elems <= SMALL_PLANE) {
        float local[SMALL_PLANE];
        const float *values = a->x.dtype == WEFT_F32 ? x.data : local;
        if (values == local) {
            FOR_VECTORS(i, n, elems) {
                store_f32(local + i, load(x, i, n), n);
            }
        }
        for (int64_t oh = 0; oh < a->out_height; oh++, at += a->out_width)
            max_row(a, values, oh, at);
        return;
    }
    for (int64_t oh = 0; oh < a->out_height; oh++)
        for (int64_t ow = 0; ow < a->out_width; ow++, at++) {
            float best = -INFINITY;
            int64_t winner = -1;
            for (int64_t kh = 0; kh < a->kernel_h && best == best; kh++) {
                int64_t h = oh * a->stride_h - a->pad_h + kh * a->dilation_h;
                if (h < 0 || h >= a->height) continue;
                for (int64_t kw = 0; kw < a->kernel_w; kw++) {
                    int64_t w = ow * a->stride_w - a->pad_w + kw * a->dilation_w;
                    if (w < 0 || w >= a->width) continue;
                    float v = load1(x, h * a->width + w);
                    if (v > best || v != v || winner < 0) {
                        best = v;
                        winner = h * a->width + w;
                        if (v != v) break;
                    }
                }
            }
            store1(a->y, at, best);
            if (a->indices) a->indices[at] = (int32_t)winner;
        }
}

/* The part of an averaging window that counts, and its size. */
INLINE int64_t window(int64_t o, int64_t stride, int64_t pad, int64_t kernel, int64_t size,
                      bool padded, int64_t *begin, int64_t *end) {
    int64_t start = o * stride - pad, stop = min64(start + kernel, size + pad);
    *begin = max64(start, 0);
    *end = min64(stop, size);
    return padded ? stop - start : *end - *begin;
}

static void avg_plane(void *context, int64_t plane, int thread) {
    (void)thread;
    const wefti_pool2d_args *a = context;
    wefti_src x = in_at(a->x, plane * a->height * a->width);
    int64_t at = plane * a->out_height * a->out_width;
    bool padded = a->count_include_pad;
    for (int64_t oh = 0; oh < a->out_height; oh++) {
        int64_t h0, h1;
        int64_t tall = window(oh, a->stride_h, a->pad_h, a->kernel_h, a->height, padded, &h0, &h1);
        for (int64_t ow = 0; ow < a->out_width; ow++, at++) {
            int64_t w0, w1;
            int64_t wide =
                window(ow, a->stride_w, a->pad_w, a->kernel_w, a->width, padded, &w0, &w1);
            float sum = 0.0f;
            for (int64_t h = h0; h < h1; h++)
                for (int64_t w = w0; w < w1; w++) sum += load1(x, h * a->width + w);
            store1(a->y, at, tall * wide > 0 ? sum / (float)(tall * wide) : 0.0f);
        }
    }
}

typedef struct pool2d_backward_run {
    const wefti_pool2d_args *a;
    bool max;
} pool2d_backward_run;

/* The first o with o * stride + shift >= bound. */
INLINE int64_t first_output(int64_t bound, int64_t shift, int64_t stride) {
    int64_t distance = bound - shift;
    return distance <= 0 ? 0 : (distance + stride - 1) / stride;
}

/* Columns first .. first + width - 1 of input row h, from all windows that cover it. */
static void backward_row(const pool2d_backward_run *run, int64_t plane, int64_t h, int64_t first,
                         int64_t width, float *row) {
    const wefti_pool2d_args *a = run->a;
    int64_t dilation_h = run->max ? a->dilation_h : 1, dilation_w = run->max ? a->dilation_w : 1;
    for (int64_t kh = 0; kh < a->kernel_h; kh++) {
        int64_t top = h + a->pad_h - kh * dilation_h;
        if (top < 0 || top % a->stride_h || top / a->stride_h >= a->out_height) continue;
        int64_t oh = top / a->stride_h, h0, h1, w0, w1;
        int64_t base = (plane * a->out_height + oh) * a->out_width;
        int64_t tall = window(oh, a->stride_h, a->pad_h, a->kernel_h, a->height,
                              a->count_include_pad, &h0, &h1);
        for (int64_t kw = 0; kw < a->kernel_w; kw++) {
            int64_t shift = kw * dilation_w - a->pad_w;
            int64_t ow = first_output(first, shift, a->stride_w);
            for (; ow < a->out_width; ow++) {
                int64_t w = ow * a->stride_w + shift;
                if (w >= first + width) break;
                float d = load1(a->dy, base + ow);
                if (run->max) {
                    if (a->indices[base + ow] == h * a->width + w) row[w - first] += d;
                } else {
                    int64_t wide = window(ow, a->stride_w, a->pad_w, a->kernel_w, a->width,
                                          a->count_include_pad, &w0, &w1);
                    row[w - first] += d / (float)(tall * wide);
                }
            }
        }
    }
}

static void backward_plane(void *context, int64_t plane, int thread) {
    (void)thread;
    const pool2d_backward_run *run = context;
    const wefti_pool2d_args *a = run->a;
    int64_t elems = a->height * a->width, outputs = a->out_height * a->out_width;
    if (run->max && (a->dx.dtype == WEFT_F32 || elems <= SMALL_PLANE)) {
        /* The plane belongs to this task: add at the positions of the maxima. */
        float local[SMALL_PLANE];
        wefti_dst plane_dx = out_at(a->dx, plane * elems);
        float *dx = a->dx.dtype == WEFT_F32 ? plane_dx.data : local;
        memset(dx, 0, (size_t)elems * sizeof *dx);
        for (int64_t k = plane * outputs; k < (plane + 1) * outputs; k++)
            if (a->indices[k] >= 0) dx[a->indices[k]] += load1(a->dy, k);
        if (dx == local) {
            FOR_VECTORS(i, n, elems) {
                store(plane_dx, i, load_f32(local + i, n), n);
            }
        }
        return;
    }
    float row[ROW_CHUNK];
    for (int64_t h = 0; h < a->height; h++)
        for (int64_t first = 0; first < a->width; first += ROW_CHUNK) {
            int64_t width = min64(ROW_CHUNK, a->width - first);
            memset(row, 0, sizeof row);
            backward_row(run, plane, h, first, width, row);
            wefti_dst dx = out_at(a->dx, (plane * a->height + h) * a->width + first);
            FOR_VECTORS(i, n, width) {
                store(dx, i, load_f32(row + i, n), n);
            }
        }
}

void KERNEL(max_pool)(wefti_pool *pool, const wefti_pool2d_args *a) {
    wefti_pool2d_args copy = *a;
    wefti_pool_run(pool, a->planes, max_plane, &copy);
}
void KERNEL(avg_pool)(wefti_pool *pool, const wefti_pool2d_args *a) {
    wefti_pool2d_args copy = *a;
    wefti_pool_run(pool, a->planes, avg_plane, &copy);
}
void KERNEL(max_pool_backward)(wefti_pool *pool, const wefti_pool2d_args *a) {
    pool2d_backward_run run = {a, true};
    wefti_pool_run(pool, a->planes, backward_plane, &run);
}
void KERNEL(avg_pool_backward)(wefti_pool *pool, const wefti_pool2d_args *a) {
    pool2d_backward_run run = {a, false};
    wefti_pool_run(pool, a->planes, backward_plane, &run);
}
