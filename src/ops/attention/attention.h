/* Declarations that the files of attention share. */
#ifndef WEFTI_OPS_ATTENTION_H
#define WEFTI_OPS_ATTENTION_H

#include "ops/common.h"

/* If |lse| reaches this limit, it is stored as two numbers. Below it, an f32 lse holds ln of the
 * sum to within 2^-16. */
#define WEFTI_ATTENTION_LARGE 256.0

/* Without a given position, causal query i sees keys up to i plus this offset. */
int64_t wefti_attention_offset(const weft_node *n);
/* Operand i, a position that may be absent: i32 [], [batch] or [batch, 2], with the batch of
 * operand `of`. In the last form it is the row of a cache, and the position. */
weft_status wefti_attention_check_position(const weft_node *n, int i, int of) WEFT_CHECKED;
/* Such a position is split as the batch of operand `of`. */
void wefti_attention_split_position(const weft_node *n, int i, int of, wefti_split_rule *r);
/* The number of visible pairs of a query i in [0, queries) and a key j in [0, keys) with j <= i +
 * offset. If `window` is not 0, each query sees only the last `window` of these keys. */
int64_t wefti_attention_pairs(int64_t queries, int64_t keys, int64_t offset, int64_t window);

/* ---- attention/split.c: the part of one device when sequences are split ---- */

weft_status wefti_attention_lower(wefti_lowering *c, const weft_node *n);
weft_status wefti_attention_lower_grad(wefti_lowering *c, const weft_node *n);
/* The begin of this device's scores in the whole tensor, without the begin of its queries and keys
 * within the node. */
wefti_ints wefti_attention_begin(const wefti_lowering *c, const weft_node *n);

/* The two numbers of an lse; the node stores them as one tensor. Each is [1, batch, heads,
 * queries]. Pieces are merged by weights relative to a common centre. wefti_attention_sum gives the
 * lse of the merged pieces from the sum of the weights. */
typedef struct wefti_attention_lse {
    weft_value rounded, rest;
} wefti_attention_lse;

wefti_attention_lse wefti_attention_apart(weft_graph *g, weft_value lse);
weft_value wefti_attention_together(weft_graph *g, wefti_attention_lse lse);
/* Makes a rounded lse usable as a centre: replaces -inf by the lowest finite number, because -inf -
 * -inf would be NaN. */
weft_value wefti_attention_finite(weft_graph *g, weft_value v);
/* e^(lse - centre); 0 for a query that sees no key */
weft_value wefti_attention_weight(weft_graph *g, wefti_attention_lse lse, weft_value centre);
wefti_attention_lse wefti_attention_sum(weft_graph *g, weft_value centre, weft_value sum);
/* w / sum, with 0 / 0 = 0 for a query that sees no key. Any other sum is far above 1e-30. */
weft_value wefti_attention_share(weft_graph *g, weft_value w, weft_value sum);
/* v [1, batch, heads, queries] as [batch, queries, heads, 1], to multiply with o */
weft_value wefti_attention_beside(weft_graph *g, weft_value v);

/* ---- attention/ring.c: self-attention over a split sequence; `in` has 8 entries ---- */

weft_status wefti_attention_ring(wefti_lowering *c, const weft_node *n, const weft_value *in);
weft_status wefti_attention_ring_grad(wefti_lowering *c, const weft_node *n, const weft_value *in);

#endif
