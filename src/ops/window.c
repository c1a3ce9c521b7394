/* Windows over a split dimension: see window.h. */
#include "ops/window.h"

wefti_window wefti_window_of(const wefti_lowering *c, int dim, int factor, int64_t x, int64_t y,
                             int64_t window, int64_t stride, int64_t padding) {
    return (wefti_window){.dim = dim,
                          .factor = factor,
                          .parts = wefti_lower_parts(c, factor),
                          .index = factor < 0 ? 0 : wefti_lower_index(c, factor),
                          .x = x,
                          .y = y,
                          .window = window,
                          .stride = stride,
                          .padding = padding};
}

static wefti_interval part(int64_t size, int32_t parts, int32_t index) {
    wefti_interval r;
    wefti_part(size, 1, parts, index, &r.begin, &r.end);
    r.end += r.begin;
    return r;
}

static wefti_interval clipped(wefti_interval r, int64_t size) {
    if (r.begin < 0) r.begin = 0;
    if (r.end > size) r.end = size;
    if (r.end <= r.begin) r = (wefti_interval){0, 0};
    return r;
}

int64_t wefti_interval_missing(wefti_interval have, wefti_interval want) {
    int64_t begin = have.begin > want.begin ? have.begin : want.begin,
            end = have.end < want.end ? have.end : want.end;
    return want.end - want.begin - (end > begin ? end - begin : 0);
}

/* floor(a / b), b > 0 */
static int64_t floor_of(int64_t a, int64_t b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

static wefti_interval y_around(const wefti_window *w, wefti_interval x) {
    if (x.end <= x.begin) return (wefti_interval){0, 0};
    /* The windows that overlap the part:
     * o stride - padding + window > x.begin, and o stride - padding < x.end. */
    wefti_interval y = {floor_of(x.begin + w->padding - w->window, w->stride) + 1,
                        floor_of(x.end - 1 + w->padding, w->stride) + 1};
    return clipped(y, w->y);
}

wefti_interval wefti_window_x_part(const wefti_window *w) {
    return part(w->x, w->parts, w->index);
}

wefti_interval wefti_window_y_part(const wefti_window *w) {
    return part(w->y, w->parts, w->index);
}

wefti_interval wefti_window_y_around(const wefti_window *w) {
    return y_around(w, wefti_window_x_part(w));
}

wefti_interval wefti_window_extent(const wefti_window *w, wefti_interval y) {
    if (y.end <= y.begin) return (wefti_interval){0, 0};
    return (wefti_interval){y.begin * w->stride - w->padding,
                            (y.end - 1) * w->stride - w->padding + w->window};
}

/* ---- exchanges ---- */

static void give(wefti_interval r, int64_t *begin, int64_t *end) {
    *begin = r.begin;
    *end = r.end;
}

static void x_part(const wefti_lowering *c, int32_t p, void *context, int64_t *begin,
                   int64_t *end) {
    const wefti_window *w = context;
    (void)c;
    give(part(w->x, w->parts, p), begin, end);
}

static void y_part(const wefti_lowering *c, int32_t p, void *context, int64_t *begin,
                   int64_t *end) {
    const wefti_window *w = context;
    (void)c;
    give(part(w->y, w->parts, p), begin, end);
}

static void x_of_windows(const wefti_lowering *c, int32_t p, void *context, int64_t *begin,
                         int64_t *end) {
    const wefti_window *w = context;
    (void)c;
    give(clipped(wefti_window_extent(w, part(w->y, w->parts, p)), w->x), begin, end);
}

static void x_around(const wefti_lowering *c, int32_t p, void *context, int64_t *begin,
                     int64_t *end) {
    const wefti_window *w = context;
    (void)c;
    wefti_interval y = y_around(w, part(w->x, w->parts, p));
    give(clipped(wefti_window_extent(w, y), w->x), begin, end);
}

static void y_of_part(const wefti_lowering *c, int32_t p, void *context, int64_t *begin,
                      int64_t *end) {
    const wefti_window *w = context;
    (void)c;
    give(y_around(w, part(w->x, w->parts, p)), begin, end);
}

/* Returns the elements [out) of the window's dimension that `want` names for this device. If every
 * device already has all elements that it wants, nothing is sent, and [out) is its own part. */
static weft_value exchange(wefti_lowering *c, const wefti_window *w, weft_value v,
                           wefti_lower_ranges *have, wefti_lower_ranges *want,
                           wefti_interval *out) {
    wefti_window copy = *w;
    bool all = true;
    for (int32_t p = 0; p < w->parts; p++) {
        wefti_interval h, n;
        have(c, p, &copy, &h.begin, &h.end);
        want(c, p, &copy, &n.begin, &n.end);
        all = all && (n.begin == n.end || (n.begin >= h.begin && n.end <= h.end));
    }
    if (!all) v = wefti_lower_exchange(c, v, w->dim, w->factor, have, want, &copy);
    (all ? have : want)(c, w->index, &copy, &out->begin, &out->end);
    return v;
}

static weft_value fetch(wefti_lowering *c, const wefti_window *w, weft_value x,
                        wefti_lower_ranges *want, wefti_interval extent, double fill) {
    wefti_interval have;
    x = exchange(c, w, x, x_part, want, &have);
    return wefti_window_crop(wefti_lower_graph(c), x, w->dim, have, extent, fill);
}

weft_value wefti_window_fetch(wefti_lowering *c, const wefti_window *w, weft_value x, double fill) {
    return fetch(c, w, x, x_of_windows, wefti_window_extent(w, wefti_window_y_part(w)), fill);
}

weft_value wefti_window_fetch_around(wefti_lowering *c, const wefti_window *w, weft_value x,
                                     double fill) {
    return fetch(c, w, x, x_around, wefti_window_extent(w, wefti_window_y_around(w)), fill);
}

weft_value wefti_window_fetch_y(wefti_lowering *c, const wefti_window *w, weft_value dy) {
    wefti_interval have;
    dy = exchange(c, w, dy, y_part, y_of_part, &have);
    return wefti_window_crop(wefti_lower_graph(c), dy, w->dim, have, wefti_window_y_around(w), 0.0);
}

/* ---- bytes of the exchanges ---- */

/* Ranges of part p along the window's dimension: the range that it has, the range that it wants,
 * and the final range with the elements outside the tensor. */
static void fetched_by(const wefti_window *w, wefti_window_fetched what, int32_t p,
                       wefti_interval *have, wefti_interval *want, wefti_interval *in_the_end) {
    wefti_interval x = part(w->x, w->parts, p), y = part(w->y, w->parts, p),
                   around = y_around(w, x);
    if (what == WEFTI_WINDOW_Y) {
        *have = y;
        *want = *in_the_end = around;
        return;
    }
    *have = x;
    *in_the_end = wefti_window_extent(w, what == WEFTI_WINDOW_X ? y : around);
    *want = clipped(*in_the_end, w->x);
}

void wefti_window_exchanged(const wefti_lowering *c, int i, wefti_window_fetched what, int count,
                            const wefti_window *w, int64_t *bytes) {
    const weft_desc *x = wefti_in(wefti_lower_node(c), i);
    int64_t size[WEFT_MAX_RANK]; /* of the largest piece, for the fetched dimensions */
    for (int d = 0; d < x->rank; d++) {
        int32_t parts = wefti_lower_parts(c, wefti_lower_rule(c)->in[i][d]);
        size[d] = (x->shape[d] + parts - 1) / parts;
    }
    for (int k = 0; k < count; k++) {
        int64_t most = 0, longest = 0, across = (int64_t)weft_dtype_bytes(x->dtype);
        if (!wefti_window_split(&w[k])) continue;
        for (int32_t p = 0; p < w[k].parts; p++) {
            wefti_interval have, want, in_the_end;
            fetched_by(&w[k], what, p, &have, &want, &in_the_end);
            int64_t missing = wefti_interval_missing(have, want);
            if (missing > most) most = missing;
            if (in_the_end.end - in_the_end.begin > longest)
                longest = in_the_end.end - in_the_end.begin;
        }
        for (int d = 0; d < x->rank; d++)
            if (d != w[k].dim) across *= size[d];
        bytes[w[k].factor] += most * across;
        size[w[k].dim] = longest;
    }
}

weft_value wefti_window_crop(weft_graph *g, weft_value v, int dim, wefti_interval have,
                             wefti_interval want, double fill) {
    weft_desc d = weft_value_desc(g, v);
    if (d.rank < 0) return v; /* the graph has failed */
    int64_t begin = have.begin > want.begin ? have.begin : want.begin;
    int64_t end = have.end < want.end ? have.end : want.end;
    if (end <= begin) {
        d.shape[dim] = want.end - want.begin;
        return weft_constant(g, d, fill);
    }
    if (begin > have.begin || end < have.end)
        v = weft_slice(g, v, dim, begin - have.begin, end - have.begin);
    if (begin == want.begin && end == want.end) return v;
    int64_t before[WEFT_MAX_RANK] = {0}, after[WEFT_MAX_RANK] = {0};
    before[dim] = begin - want.begin;
    after[dim] = want.end - end;
    return weft_pad(g, v, before, after, fill);
}
