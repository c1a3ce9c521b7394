/* Windows over a split dimension: convolution and pooling over split height and width.
 *
 * Output element o of a dimension reads `window` elements of x from o stride - padding on. Along a
 * split dimension, x and y each have their own parts. The windows of a device may reach beyond its
 * part of x. It gets these elements from its neighbors by a halo exchange, over as many parts as
 * needed. Source: Dryden et al., "Improving Strong-Scaling of CNN Training by Exploiting
 * Finer-Grained Parallelism", IPDPS 2019, section 3. Elements outside x are filled in explicitly,
 * so that the kernel runs without padding. */
#ifndef WEFTI_OPS_WINDOW_H
#define WEFTI_OPS_WINDOW_H

#include "ops/common.h"

typedef struct wefti_window {
    int dim, factor;
    int32_t parts, index;
    int64_t x, y, window, stride, padding; /* x, y: sizes of the whole tensors */
} wefti_window;

typedef struct wefti_interval {
    int64_t begin, end;
} wefti_interval;
/* The number of elements of `want` that are not in `have`. */
int64_t wefti_interval_missing(wefti_interval have, wefti_interval want);

/* Dimension `dim` of the whole, split by `factor`. If `factor` is -1 or does not split it, parts is
 * 1. */
wefti_window wefti_window_of(const wefti_lowering *c, int dim, int factor, int64_t x, int64_t y,
                             int64_t window, int64_t stride, int64_t padding);
static inline bool wefti_window_split(const wefti_window *w) {
    return w->parts > 1;
}
wefti_interval wefti_window_x_part(const wefti_window *w);
wefti_interval wefti_window_y_part(const wefti_window *w);
/* The elements of y with windows that reach this device's part of x. */
wefti_interval wefti_window_y_around(const wefti_window *w);
/* The elements that the windows of the range of y cover, also beyond the ends of x. Empty for an
 * empty range. */
wefti_interval wefti_window_extent(const wefti_window *w, wefti_interval y);

/* From pieces of x: all elements that the windows of this device's part of y cover, `fill` outside
 * x. */
weft_value wefti_window_fetch(wefti_lowering *c, const wefti_window *w, weft_value x, double fill);
/* From pieces of x: all elements that the windows that reach this device's part of x cover. */
weft_value wefti_window_fetch_around(wefti_lowering *c, const wefti_window *w, weft_value x,
                                     double fill);
/* From pieces of dy: the elements with windows that reach this device's part of x. */
weft_value wefti_window_fetch_y(wefti_lowering *c, const wefti_window *w, weft_value dy);
/* Selects one of the three fetches above. */
typedef enum wefti_window_fetched {
    WEFTI_WINDOW_X,
    WEFTI_WINDOW_AROUND,
    WEFTI_WINDOW_Y
} wefti_window_fetched;
/* The bytes that the device with the most receives when it fetches input i along `count` windows,
 * one after the other. They are added to bytes[] of each window's factor. */
void wefti_window_exchanged(const wefti_lowering *c, int i, wefti_window_fetched what, int count,
                            const wefti_window *w, int64_t *bytes);
/* Elements [want) of dimension dim of v, which holds [have). Other elements are `fill`. */
weft_value wefti_window_crop(weft_graph *g, weft_value v, int dim, wefti_interval have,
                             wefti_interval want, double fill);

#endif
