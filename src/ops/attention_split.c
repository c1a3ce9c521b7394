/* Attention over split sequences.
 *
 * Self-attention by ring (Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", ICLR
 * 2024): every device keeps its queries; in step s it gets the keys and values of the device s
 * places further, attends to them, and merges the result with what it has by the log-sum-exps.
 * Memory is linear in the piece. In the backward pass the gradients of those keys and values go
 * back to where they belong, step by step. Causal steps in which no query sees a key do nothing and
 * move nothing. Device 0 then has one step and the last has all: to even this out the sequence must
 * be dealt out in stripes (Brandon et al., "Striped Attention", 2023), which is a matter of the
 * order of the tokens, not of this op.
 *
 * Sequences of different lengths are split one by one. Queries are independent of each other. Over
 * keys each device attends to its own, and the results are merged as above, all at once. */
#include "ops/attention.h"

typedef struct sequence {
    const weft_node *n;
    int queries, keys;  /* factors, equal in self-attention */
    int32_t parts;      /* of the ring */
    int mask, position; /* operand numbers */
    bool ring, skip;    /* skip: what causal queries do not see is known beforehand */
    int64_t offset;     /* in the whole */
    int step;           /* of the ring */
    wefti_ints begin;   /* of this device's scores in the whole, without what the keys add */
} sequence;

static sequence sequence_of(wefti_cut *c, const weft_node *n, int mask) {
    const wefti_split_rule *r = wefti_cut_rule(c);
    sequence s = {.n = n, .queries = r->in[0][1], .keys = r->in[1][1]};
    s.mask = mask;
    s.position = mask + 1;
    s.parts = wefti_cut_parts(c, s.queries);
    s.ring = s.queries == s.keys && s.parts > 1;
    s.skip = wefti_attr_int(n, "causal") != 0 && !wefti_in(n, s.position);
    s.offset = wefti_attention_offset(n);
    if (wefti_attr_ints(n, "begin")->count == 4) s.begin = *wefti_attr_ints(n, "begin");
    s.begin.count = 4;
    s.begin.v[0] += wefti_cut_in_begin(c, 0, 0);
    s.begin.v[1] += wefti_cut_in_begin(c, 0, 2);
    s.begin.v[2] += wefti_cut_in_begin(c, 0, 1);
    return s;
}

/* ---- who needs what in a step of the ring ---- */

static int32_t other(const sequence *s, int32_t part, int by) {
    return (int32_t)(((int64_t)part + by + s->parts) % s->parts);
}

static void rows_of(const wefti_cut *c, const sequence *s, int32_t part, int64_t *begin,
                    int64_t *end) {
    int64_t size;
    wefti_cut_range(c, s->keys, part, begin, &size);
    *end = *begin + size;
}

/* Queries of part i see some key of part j. */
static bool sees(const wefti_cut *c, const sequence *s, int32_t i, int32_t j) {
    int64_t q_begin, q_end, k_begin, k_end;
    rows_of(c, s, i, &q_begin, &q_end);
    rows_of(c, s, j, &k_begin, &k_end);
    return !s->skip || i == j || q_end - 1 + s->offset >= k_begin;
}

static void own_rows(const wefti_cut *c, int32_t part, void *context, int64_t *begin,
                     int64_t *end) {
    rows_of(c, context, part, begin, end);
}

/* The keys that part `part` attends to in this step; none where it sees none. */
static void attended_rows(const wefti_cut *c, int32_t part, void *context, int64_t *begin,
                          int64_t *end) {
    const sequence *s = context;
    int32_t from = other(s, part, s->step);
    rows_of(c, s, from, begin, end);
    if (!sees(c, s, part, from)) *end = *begin;
}

/* The keys of part `part` that another attends to in this step. */
static void returned_rows(const wefti_cut *c, int32_t part, void *context, int64_t *begin,
                          int64_t *end) {
    const sequence *s = context;
    rows_of(c, s, part, begin, end);
    if (!sees(c, s, other(s, part, -s->step), part)) *end = *begin;
}

static weft_value fetch(wefti_cut *c, sequence *s, weft_value v) {
    if (s->step == 0) return v;
    return wefti_cut_exchange_as(c, WEFTI_TRANSFER_SHIFT, v, 1, s->keys, own_rows, attended_rows,
                                 s);
}

static weft_value give_back(wefti_cut *c, sequence *s, weft_value v) {
    if (s->step == 0) return v;
    return wefti_cut_exchange_as(c, WEFTI_TRANSFER_SHIFT, v, 1, s->keys, attended_rows,
                                 returned_rows, s);
}

/* The node itself on in[], whose keys begin at `keys_begin` of the whole. */
static void attend(wefti_cut *c, const sequence *s, weft_value *in, int64_t keys_begin,
                   weft_value *out) {
    weft_graph *g = wefti_cut_graph(c);
    wefti_ints begin = s->begin;
    begin.v[3] += keys_begin;
    weft_value mask = in[s->mask], local[8];
    for (int i = 0; i < s->n->inputs; i++) local[i] = in[i];
    if (s->ring && mask.id >= 0) {
        int64_t keys = weft_value_desc(g, in[1]).shape[1];
        local[s->mask] = weft_slice(g, mask, 3, keys_begin, keys_begin + keys);
    }
    wefti_cut_same(c, local, 1, (wefti_attr[]){WEFTI_N("begin", begin)}, out);
}

/* ---- merging ---- */

/* Below every score that counts, above -inf: exponents of differences stay numbers. */
static const double LOWEST = -1e30;

/* v [batch, heads, queries] as [batch, queries, heads, 1], to go with o */
static weft_value beside(weft_graph *g, weft_value v) {
    return wefti_op_column(g, weft_transpose(g, v, 3, (int[]){0, 2, 1}));
}

static weft_value above_lowest(weft_graph *g, weft_value v) {
    return weft_maximum(g, v, wefti_op_scalar(g, v, LOWEST));
}

/* w / sum, 0 / 0 = 0: a query that sees nothing. A sum that is not 0 is at least 1. */
static weft_value share(weft_graph *g, weft_value w, weft_value sum) {
    return weft_div(g, w, weft_maximum(g, sum, wefti_op_scalar(g, sum, 1e-30)));
}

typedef struct attended {
    weft_value o, lse;
} attended;

static attended merge(weft_graph *g, attended a, attended b) {
    weft_value max = above_lowest(g, weft_maximum(g, a.lse, b.lse));
    weft_value wa = weft_exp(g, weft_sub(g, a.lse, max));
    weft_value wb = weft_exp(g, weft_sub(g, b.lse, max)), sum = weft_add(g, wa, wb);
    weft_value oa = weft_mul(g, a.o, beside(g, share(g, wa, sum)));
    weft_value ob = weft_mul(g, b.o, beside(g, share(g, wb, sum)));
    return (attended){weft_add(g, oa, ob), weft_add(g, max, weft_log(g, sum))};
}

/* ---- forward ---- */

static weft_status lower_ring(wefti_cut *c, sequence *s, weft_value *in) {
    weft_graph *g = wefti_cut_graph(c);
    weft_value k = in[1], v = in[2], out[2];
    attended all = {WEFT_NO_VALUE, WEFT_NO_VALUE};
    int32_t me = wefti_cut_index(c, s->queries);
    for (s->step = 0; s->step < s->parts; s->step++) {
        int64_t begin, end;
        in[1] = fetch(c, s, k);
        in[2] = fetch(c, s, v);
        attended_rows(c, me, s, &begin, &end);
        if (begin == end) continue;
        attend(c, s, in, begin, out);
        attended step = {wefti_op_precise(g, out[0]), out[1]};
        all = s->step ? merge(g, all, step) : step;
    }
    wefti_cut_out(c, 0, weft_cast(g, all.o, wefti_out(s->n, 0)->dtype));
    wefti_cut_out(c, 1, all.lse);
    return WEFT_OK;
}

weft_status wefti_attention_lower(wefti_cut *c, const weft_node *n) {
    weft_graph *g = wefti_cut_graph(c);
    sequence s = sequence_of(c, n, 3);
    weft_value in[8] = {{0}}, out[2];
    for (int i = 0; i < 5; i++) in[i] = wefti_cut_in(c, i);
    if (s.ring) return lower_ring(c, &s, in);
    attend(c, &s, in, wefti_cut_in_begin(c, 1, 1), out);
    if (wefti_cut_parts(c, s.keys) == 1) {
        wefti_cut_out(c, 0, out[0]);
        wefti_cut_out(c, 1, out[1]);
        return WEFT_OK;
    }
    uint32_t keys = 1u << s.keys;
    weft_value max = above_lowest(g, wefti_cut_all_reduce(c, out[1], keys, WEFTI_REDUCE_MAX));
    weft_value w = weft_exp(g, weft_sub(g, out[1], max));
    weft_value sum = wefti_cut_all_reduce(c, w, keys, WEFTI_REDUCE_SUM);
    weft_value o = weft_mul(g, wefti_op_precise(g, out[0]), beside(g, share(g, w, sum)));
    wefti_cut_out_partial(c, 0, weft_cast(g, o, wefti_out(n, 0)->dtype), keys);
    wefti_cut_out(c, 1, weft_add(g, max, weft_log(g, sum)));
    return WEFT_OK;
}

/* ---- backward ---- */

static weft_value add_to(weft_graph *g, weft_value sum, weft_value term) {
    term = wefti_op_precise(g, term);
    return sum.id < 0 ? term : weft_add(g, sum, term);
}

/* A device that attends to nothing in this step gives nothing back: no rows. */
static weft_value no_rows(weft_graph *g, weft_value k) {
    return weft_slice(g, k, 1, 0, 0);
}

static weft_status lower_ring_grad(wefti_cut *c, sequence *s, weft_value *in) {
    weft_graph *g = wefti_cut_graph(c);
    weft_value k = in[1], v = in[2], sums[3] = {WEFT_NO_VALUE, WEFT_NO_VALUE, WEFT_NO_VALUE};
    int32_t me = wefti_cut_index(c, s->queries);
    for (s->step = 0; s->step < s->parts; s->step++) {
        weft_value out[3] = {WEFT_NO_VALUE, no_rows(g, k), no_rows(g, v)};
        int64_t begin, end;
        in[1] = fetch(c, s, k);
        in[2] = fetch(c, s, v);
        attended_rows(c, me, s, &begin, &end);
        if (begin < end) {
            attend(c, s, in, begin, out);
            sums[0] = add_to(g, sums[0], out[0]);
        }
        returned_rows(c, me, s, &begin, &end);
        for (int o = 1; o < 3; o++) {
            weft_value mine = give_back(c, s, out[o]);
            if (begin < end) sums[o] = add_to(g, sums[o], mine);
        }
    }
    for (int o = 0; o < 3; o++)
        wefti_cut_out(c, o, weft_cast(g, sums[o], wefti_out(s->n, o)->dtype));
    return WEFT_OK;
}

weft_status wefti_attention_lower_grad(wefti_cut *c, const weft_node *n) {
    sequence s = sequence_of(c, n, 6);
    weft_value in[8], out[3];
    for (int i = 0; i < 8; i++) in[i] = wefti_cut_in(c, i);
    if (s.ring) return lower_ring_grad(c, &s, in);
    attend(c, &s, in, wefti_cut_in_begin(c, 1, 1), out);
    uint32_t queries = s.queries < 0 ? 0 : 1u << s.queries, keys = s.keys < 0 ? 0 : 1u << s.keys;
    wefti_cut_out_partial(c, 0, out[0], keys);
    wefti_cut_out_partial(c, 1, out[1], queries);
    wefti_cut_out_partial(c, 2, out[2], queries);
    return WEFT_OK;
}
