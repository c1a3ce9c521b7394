/* What the files of attention share. */
#ifndef WEFTI_OPS_ATTENTION_H
#define WEFTI_OPS_ATTENTION_H

#include "ops/common.h"

/* From here on an lse is two numbers: an f32 of this size has ln of a sum to 2^-16. */
#define WEFTI_ATTENTION_LARGE 256.0

/* A causal query i sees keys up to i + this, where no position is given. */
int64_t wefti_attention_offset(const weft_node *n);
/* Pairs of a query and a key that it sees, of queries i in [0, queries) and keys j <= i + offset in
 * [0, keys), of which a window that is not 0 leaves the last so many. */
int64_t wefti_attention_pairs(int64_t queries, int64_t keys, int64_t offset, int64_t window);

/* ---- attention_split.c: what one device computes of split sequences ---- */

weft_status wefti_attention_lower(wefti_lowering *c, const weft_node *n);
weft_status wefti_attention_lower_grad(wefti_lowering *c, const weft_node *n);
/* Where this device's scores begin in the whole, but for where its queries and keys begin in the
 * node's. */
wefti_ints wefti_attention_begin(const wefti_lowering *c, const weft_node *n);

/* What the node keeps as one: each [1, batch, heads, queries]. Pieces are merged by their weights
 * about a centre of all; wefti_attention_sum is the lse of all, from the sum of the weights. */
typedef struct wefti_attention_lse {
    weft_value rounded, rest;
} wefti_attention_lse;

wefti_attention_lse wefti_attention_apart(weft_graph *g, weft_value lse);
weft_value wefti_attention_together(weft_graph *g, wefti_attention_lse lse);
/* The largest rounded lse as a centre: the lowest number for -inf, whose difference from itself
 * would be none. */
weft_value wefti_attention_finite(weft_graph *g, weft_value v);
/* e^(lse - centre), 0 of what sees nothing */
weft_value wefti_attention_weight(weft_graph *g, wefti_attention_lse lse, weft_value centre);
wefti_attention_lse wefti_attention_sum(weft_graph *g, weft_value centre, weft_value sum);
/* w / sum, 0 / 0 = 0: a query that sees nothing. A sum that is not 0 is far above 1e-30. */
weft_value wefti_attention_share(weft_graph *g, weft_value w, weft_value sum);
/* v [1, batch, heads, queries] as [batch, queries, heads, 1], to go with o */
weft_value wefti_attention_beside(weft_graph *g, weft_value v);

/* ---- attention_ring.c: self-attention over a split sequence; in[8] ---- */

weft_status wefti_attention_ring(wefti_lowering *c, const weft_node *n, const weft_value *in);
weft_status wefti_attention_ring_grad(wefti_lowering *c, const weft_node *n, const weft_value *in);

#endif
