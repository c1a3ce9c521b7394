/* Attention over split sequences.
 *
 * Self-attention goes by ring: attention_ring.c. Sequences of different lengths are split one by
 * one. Queries are independent of each other. Over keys each device attends to its own, and the
 * results are merged by their log-sum-exps, all at once. */
#include "ops/attention.h"

wefti_ints wefti_attention_begin(const wefti_cut *c, const weft_node *n) {
    wefti_ints begin = {0};
    if (wefti_attr_ints(n, "begin")->count == 4) begin = *wefti_attr_ints(n, "begin");
    begin.count = 4;
    begin.v[0] += wefti_cut_in_begin(c, 0, 0);
    begin.v[1] += wefti_cut_in_begin(c, 0, 2);
    return begin;
}

/* The node itself on this device's queries and keys. */
static void attend(wefti_cut *c, const weft_node *n, const weft_value *in, weft_value *out) {
    wefti_ints begin = wefti_attention_begin(c, n);
    begin.v[2] += wefti_cut_in_begin(c, 0, 1);
    begin.v[3] += wefti_cut_in_begin(c, 1, 1);
    wefti_cut_same(c, in, 1, (wefti_attr[]){WEFTI_N("begin", begin)}, out);
}

static bool by_ring(const wefti_cut *c, const wefti_split_rule *r) {
    return r->in[0][1] == r->in[1][1] && wefti_cut_parts(c, r->in[0][1]) > 1;
}

/* ---- merging ---- */

/* Below every score that counts, above -inf: exponents of differences stay numbers. */
static const double LOWEST = -1e30;

/* v [batch, heads, queries] as [batch, queries, heads, 1], to go with o */
weft_value wefti_attention_beside(weft_graph *g, weft_value v) {
    return wefti_op_column(g, weft_transpose(g, v, 3, (int[]){0, 2, 1}));
}

weft_value wefti_attention_above_lowest(weft_graph *g, weft_value v) {
    return weft_maximum(g, v, wefti_op_scalar(g, v, LOWEST));
}

/* w / sum, 0 / 0 = 0: a query that sees nothing. A sum that is not 0 is at least 1. */
weft_value wefti_attention_share(weft_graph *g, weft_value w, weft_value sum) {
    return weft_div(g, w, weft_maximum(g, sum, wefti_op_scalar(g, sum, 1e-30)));
}

/* ---- lowering ---- */

weft_status wefti_attention_lower(wefti_cut *c, const weft_node *n) {
    weft_graph *g = wefti_cut_graph(c);
    const wefti_split_rule *r = wefti_cut_rule(c);
    weft_value in[8], out[2];
    for (int i = 0; i < 8; i++) in[i] = wefti_cut_in(c, i);
    if (by_ring(c, r)) return wefti_attention_ring(c, n, in);
    attend(c, n, in, out);
    if (wefti_cut_parts(c, r->in[1][1]) == 1) {
        wefti_cut_out(c, 0, out[0]);
        wefti_cut_out(c, 1, out[1]);
        return WEFT_OK;
    }
    uint32_t keys = 1u << r->in[1][1];
    weft_value max =
        wefti_attention_above_lowest(g, wefti_cut_all_reduce(c, out[1], keys, WEFTI_REDUCE_MAX));
    weft_value w = weft_exp(g, weft_sub(g, out[1], max));
    weft_value sum = wefti_cut_all_reduce(c, w, keys, WEFTI_REDUCE_SUM);
    weft_value o = weft_mul(g, wefti_op_precise(g, out[0]),
                            wefti_attention_beside(g, wefti_attention_share(g, w, sum)));
    wefti_cut_out_partial(c, 0, weft_cast(g, o, wefti_out(n, 0)->dtype), keys);
    wefti_cut_out(c, 1, weft_add(g, max, weft_log(g, sum)));
    return WEFT_OK;
}

weft_status wefti_attention_lower_grad(wefti_cut *c, const weft_node *n) {
    const wefti_split_rule *r = wefti_cut_rule(c);
    int q = r->in[0][1], k = r->in[1][1];
    weft_value in[8], out[3];
    for (int i = 0; i < 8; i++) in[i] = wefti_cut_in(c, i);
    if (by_ring(c, r)) return wefti_attention_ring_grad(c, n, in);
    attend(c, n, in, out);
    uint32_t queries = q < 0 ? 0 : 1u << q, keys = k < 0 ? 0 : 1u << k;
    wefti_cut_out_partial(c, 0, out[0], keys);
    wefti_cut_out_partial(c, 1, out[1], queries);
    wefti_cut_out_partial(c, 2, out[2], queries);
    return WEFT_OK;
}
