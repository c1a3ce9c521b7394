/* Attention over split sequences.
 *
 * Self-attention uses the ring (attention/ring.c). Sequences of different lengths are split
 * independently. Pieces of the queries are independent of each other. If the keys are split, each
 * device attends to its own keys. The results of all devices are then merged at once by their
 * log-sum-exps. */
#include <float.h>

#include "ops/attention/attention.h"

wefti_ints wefti_attention_begin(const wefti_lowering *c, const weft_node *n) {
    wefti_ints begin = {0};
    for (int i = 0; i < 2; i++) /* what queries see depends on where they and the keys lie */
        (void)wefti_lower_index(c, wefti_lower_rule(c)->in[i][1]);
    if (wefti_attr_ints(n, WEFTI_AT_begin)->count == 4) begin = *wefti_attr_ints(n, WEFTI_AT_begin);
    begin.count = 4;
    begin.v[0] += wefti_lower_in_begin(c, 0, 0);
    begin.v[1] += wefti_lower_in_begin(c, 0, 2);
    return begin;
}

/* Adds the node itself on this device's queries and keys. */
static void attend(wefti_lowering *c, const weft_node *n, const weft_value *in, weft_value *out) {
    wefti_ints begin = wefti_attention_begin(c, n);
    begin.v[2] += wefti_lower_in_begin(c, 0, 1);
    begin.v[3] += wefti_lower_in_begin(c, 1, 1);
    wefti_lower_same(c, in, 1, (wefti_attr[]){WEFTI_N(begin, begin)}, out);
}

static bool by_ring(const wefti_lowering *c, const wefti_split_rule *r) {
    return r->in[0][1] == r->in[1][1] && wefti_lower_parts(c, r->in[0][1]) > 1;
}

/* ---- merging ---- */

weft_value wefti_attention_beside(weft_graph *g, weft_value v) {
    return weft_transpose(g, v, 4, (int[]){1, 3, 2, 0});
}

weft_value wefti_attention_finite(weft_graph *g, weft_value v) {
    double lowest = weft_value_desc(g, v).dtype == WEFT_F64 ? -DBL_MAX : -(double)FLT_MAX;
    return weft_maximum(g, v, wefti_op_scalar(g, v, lowest));
}

wefti_attention_lse wefti_attention_apart(weft_graph *g, weft_value lse) {
    return (wefti_attention_lse){weft_slice(g, lse, 0, 0, 1), weft_slice(g, lse, 0, 1, 2)};
}

weft_value wefti_attention_weight(weft_graph *g, wefti_attention_lse lse, weft_value centre) {
    return weft_exp(g, weft_add(g, weft_sub(g, lse.rounded, centre), lse.rest));
}

/* The result does not depend on the rounding of `sum`, so a fused chain may keep more precision
 * than the stored format. */
wefti_attention_lse wefti_attention_sum(weft_graph *g, weft_value centre, weft_value sum) {
    weft_value ln = weft_log(g, sum), none = wefti_op_scalar(g, sum, 0.0);
    weft_value some = weft_compare(g, sum, none, WEFT_GT);
    weft_value size = weft_where(g, some, weft_maximum(g, centre, weft_neg(g, centre)), none);
    weft_value limit = wefti_op_scalar(g, sum, WEFTI_ATTENTION_LARGE);
    weft_value large = weft_compare(g, size, limit, WEFT_GE);
    return (wefti_attention_lse){weft_where(g, large, centre, weft_add(g, centre, ln)),
                                 weft_where(g, large, ln, none)};
}

weft_value wefti_attention_share(weft_graph *g, weft_value w, weft_value sum) {
    return weft_div(g, w, weft_maximum(g, sum, wefti_op_scalar(g, sum, 1e-30)));
}

weft_value wefti_attention_together(weft_graph *g, wefti_attention_lse lse) {
    return weft_concat(g, 2, (weft_value[]){lse.rounded, lse.rest}, 0);
}

/* ---- lowering ---- */

weft_status wefti_attention_lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    const wefti_split_rule *r = wefti_lower_rule(c);
    weft_value in[8], out[2];
    for (int i = 0; i < 8; i++) in[i] = wefti_lower_in(c, i);
    if (by_ring(c, r)) return wefti_attention_ring(c, n, in);
    attend(c, n, in, out);
    if (wefti_lower_parts(c, r->in[1][1]) == 1) {
        wefti_lower_out(c, 0, out[0]);
        wefti_lower_out(c, 1, out[1]);
        return WEFT_OK;
    }
    uint32_t keys = 1u << r->in[1][1];
    wefti_attention_lse lse = wefti_attention_apart(g, out[1]);
    weft_value centre =
        wefti_attention_finite(g, wefti_lower_all_reduce(c, lse.rounded, keys, WEFTI_REDUCE_MAX));
    weft_value w = wefti_attention_weight(g, lse, centre);
    weft_value sum = wefti_lower_all_reduce(c, w, keys, WEFTI_REDUCE_SUM);
    weft_value o = weft_mul(g, wefti_op_precise(g, out[0]),
                            wefti_attention_beside(g, wefti_attention_share(g, w, sum)));
    wefti_lower_out_partial(c, 0, weft_cast(g, o, wefti_out(n, 0)->dtype), keys);
    wefti_lower_out(c, 1, wefti_attention_together(g, wefti_attention_sum(g, centre, sum)));
    return WEFT_OK;
}

weft_status wefti_attention_lower_grad(wefti_lowering *c, const weft_node *n) {
    const wefti_split_rule *r = wefti_lower_rule(c);
    int q = r->in[0][1], k = r->in[1][1];
    weft_value in[8], out[3];
    for (int i = 0; i < 8; i++) in[i] = wefti_lower_in(c, i);
    if (by_ring(c, r)) return wefti_attention_ring_grad(c, n, in);
    attend(c, n, in, out);
    uint32_t queries = q < 0 ? 0 : 1u << q, keys = k < 0 ? 0 : 1u << k;
    wefti_lower_out_partial(c, 0, out[0], keys);
    wefti_lower_out_partial(c, 1, out[1], queries);
    wefti_lower_out_partial(c, 2, out[2], queries);
    return WEFT_OK;
}
