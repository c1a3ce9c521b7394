/* Blocks along a split dimension: see blocks.h. */
#include "ops/move/blocks.h"

wefti_block wefti_block_of(const wefti_lowering *c, int i, int o, int dim, int64_t shift) {
    const wefti_split_rule *r = wefti_lower_rule(c);
    const weft_node *n = wefti_lower_node(c);
    int factor = r->in[i][dim] >= 0 ? r->in[i][dim] : r->out[o][dim];
    return (wefti_block){.dim = dim,
                         .factor = factor,
                         .parts = wefti_lower_parts(c, factor),
                         .x = wefti_in(n, i)->shape[dim],
                         .y = wefti_out(n, o)->shape[dim],
                         .shift = shift,
                         .x_whole = r->in[i][dim] < 0,
                         .y_whole = r->out[o][dim] < 0};
}

static wefti_interval part(const wefti_block *b, bool whole, int64_t size, int32_t index) {
    wefti_interval r = {0, size};
    if (whole || b->parts == 1) return r;
    wefti_part(size, 1, b->parts, index, &r.begin, &r.end);
    r.end += r.begin;
    return r;
}

static wefti_interval extent(const wefti_block *b, int32_t index) {
    wefti_interval r = part(b, b->y_whole, b->y, index);
    return (wefti_interval){r.begin + b->shift, r.end + b->shift};
}

static wefti_interval taken(const wefti_block *b, int32_t index) {
    wefti_interval r = extent(b, index);
    if (r.begin < 0) r.begin = 0;
    if (r.end > b->x) r.end = b->x;
    return r.end > r.begin ? r : (wefti_interval){0, 0};
}

static int32_t here(const wefti_lowering *c, const wefti_block *b) {
    return b->factor < 0 ? 0 : wefti_lower_index(c, b->factor);
}

wefti_interval wefti_block_extent(const wefti_lowering *c, const wefti_block *b) {
    return extent(b, here(c, b));
}

wefti_interval wefti_block_taken(const wefti_lowering *c, const wefti_block *b) {
    return taken(b, here(c, b));
}

static void has(const wefti_lowering *c, int32_t p, void *context, int64_t *begin, int64_t *end) {
    const wefti_block *b = context;
    wefti_interval r = part(b, b->x_whole, b->x, p);
    (void)c;
    *begin = r.begin;
    *end = r.end;
}

static void wants(const wefti_lowering *c, int32_t p, void *context, int64_t *begin, int64_t *end) {
    wefti_interval r = taken(context, p);
    (void)c;
    *begin = r.begin;
    *end = r.end;
}

weft_value wefti_block_fetch(wefti_lowering *c, const wefti_block *b, weft_value x,
                             wefti_interval *out) {
    wefti_block copy = *b;
    bool all = true;
    for (int32_t p = 0; p < b->parts; p++) {
        wefti_interval have = part(b, b->x_whole, b->x, p), want = taken(b, p);
        all = all && (want.begin == want.end || (want.begin >= have.begin && want.end <= have.end));
    }
    *out = all ? part(b, b->x_whole, b->x, here(c, b)) : taken(b, here(c, b));
    if (all) return x;
    return wefti_lower_exchange(c, x, b->dim, b->factor, has, wants, &copy);
}

/* The number of elements along the dimension that part `index` must receive. */
static int64_t missing(const wefti_block *b, int32_t index) {
    return wefti_interval_missing(part(b, b->x_whole, b->x, index), taken(b, index));
}

int64_t wefti_block_bytes(const wefti_lowering *c, int count, const wefti_block *b, int i) {
    const weft_desc *x = wefti_in(wefti_lower_node(c), i);
    int64_t most = 0, across = (int64_t)weft_dtype_bytes(x->dtype);
    for (int32_t p = 0; p < b->parts; p++) {
        int64_t here = 0;
        for (int k = 0; k < count; k++) here += missing(&b[k], p);
        if (here > most) most = here;
    }
    for (int d = 0; d < x->rank; d++) {
        int32_t parts = wefti_lower_parts(c, wefti_lower_rule(c)->in[i][d]);
        if (d != b->dim) across *= (x->shape[d] + parts - 1) / parts;
    }
    return most * across;
}

void wefti_block_factor(const weft_node *n, int dim, wefti_split_rule *r) {
    int64_t least = INT64_MAX;
    for (int k = 0; k < n->inputs + n->outputs; k++) {
        const weft_desc *t = k < n->inputs ? wefti_in(n, k) : wefti_out(n, k - n->inputs);
        if (t->shape[dim] > 1 && t->shape[dim] < least) least = t->shape[dim];
    }
    if (least == INT64_MAX) return;
    int8_t f = wefti_op_factor(r, "d", dim, least, WEFTI_FACTOR_HALO);
    for (int k = 0; k < n->inputs + n->outputs; k++) {
        const weft_desc *t = k < n->inputs ? wefti_in(n, k) : wefti_out(n, k - n->inputs);
        int8_t *dims = k < n->inputs ? r->in[k] : r->out[k - n->inputs];
        if (t->shape[dim] > 1) dims[dim] = f;
    }
}
