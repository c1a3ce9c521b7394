/* Self-attention over a split sequence, by ring (Liu, Zaharia, Abbeel, "Ring Attention with
 * Blockwise Transformers", ICLR 2024). Every device keeps its queries. In step s it receives the
 * keys and values of the device s places further. It attends to them and merges the result by the
 * log-sum-exps. Memory is linear in the piece. In the backward pass, the gradients of these keys
 * and values return to their device in the same step.
 *
 * Balance. Causal queries see only earlier keys. With n pieces in order, the first piece would have
 * one step of work and the last piece n steps. So the sequence is divided into 2 n runs. Device i
 * attends with the queries of runs i and 2 n - 1 - i, and keys arrive in the same pairs ("The Llama
 * 3 Herd of Models", 2024, section 3.3.2). Two such pairs make four blocks. In every step after the
 * first, each device sees two of these blocks fully and skips two. In the first step, each device
 * sees one block fully and two blocks by half. So the devices do equal work in every step. Run i is
 * the lower half of piece i. Run 2 n - 1 - i is the upper half of piece n - 1 - i, which is called
 * the mirror of piece i.
 *
 * Data movement. The layouts of the tensors do not change. The upper halves of the queries, and of
 * the operands with the same rows, are exchanged with the mirror before the ring. The upper halves
 * of the results are exchanged back after it. Keys and values are fetched run by run from the
 * device that holds them. This costs one exchange of half a piece for each tensor, and it is local
 * to this op.
 *
 * Alternatives. A layout of the sequence in this order would have pieces that are not regions.
 * Every op that depends on positions would have to know that order. Idle devices could also take
 * whole blocks from the last devices (Li et al., "DistFlashAttention", 2023, section 3.1). The
 * total work is then balanced too, but each such block moves queries, and partial results in full
 * precision.
 *
 * Exceptions. Halves have no use without a causal mask, with positions known only at run time, and
 * for pieces of one row. A device then has one run, its piece. A step is omitted if the window
 * hides all its keys from all queries. */
#include "ops/attention/attention.h"

enum { RUNS = 2 };

typedef struct sequence {
    const weft_node *n;
    int factor;       /* the factor of queries and keys */
    int32_t parts;    /* number of parts in the ring */
    int mask;         /* operand number of the mask; the position is the next operand */
    bool skip;        /* the keys hidden from causal queries are known before the run */
    int64_t offset;   /* causal offset in the whole sequence */
    int64_t window;   /* 0: none */
    wefti_ints begin; /* begin of the scores in the whole, without the begin of queries and keys */
    int runs;         /* runs of a part: 1 (its piece) or 2 (lower and upper half) */
    int step, run;    /* the current step of the ring and the current run of its keys */
} sequence;

/* ---- pieces and runs ---- */

typedef struct ring_rows {
    int64_t begin, end;
} ring_rows;

static ring_rows piece_of(const wefti_lowering *c, const sequence *s, int32_t part) {
    int64_t begin, size;
    wefti_lower_range(c, s->factor, part, &begin, &size);
    return (ring_rows){begin, begin + size};
}

/* Half `run` of a piece; the whole piece if there is one run. The cut is where 2 n equal runs of
 * the whole sequence would have it. No half is empty. */
static ring_rows half_of(const wefti_lowering *c, const sequence *s, int32_t part, int run) {
    ring_rows r = piece_of(c, s, part);
    int64_t middle = wefti_in(s->n, 0)->shape[1] * (2 * part + 1) / (2 * s->parts);
    if (s->runs == 1) return r;
    if (middle <= r.begin) middle = r.begin + 1;
    if (middle >= r.end) middle = r.end - 1;
    return run == 0 ? (ring_rows){r.begin, middle} : (ring_rows){middle, r.end};
}

/* The part that holds the upper run of part `part` in its piece. The relation is symmetric. */
static int32_t mirror(const sequence *s, int32_t part) {
    return s->parts - 1 - part;
}

/* The rows of run `run` of part `part`: its queries, and its keys in step 0. */
static ring_rows run_of(const wefti_lowering *c, const sequence *s, int32_t part, int run) {
    return half_of(c, s, run == 0 ? part : mirror(s, part), run);
}

static int64_t pairs_of(const sequence *s, ring_rows r) {
    return wefti_attention_pairs(r.end - r.begin, wefti_in(s->n, 1)->shape[1], r.begin + s->offset,
                                 s->window);
}

/* Two runs for each part, if this reduces the work of the busiest device; else one. */
static int runs_of(const wefti_lowering *c, sequence s) {
    int64_t most = 0, most_halved = 0;
    if (!s.skip) return 1;
    for (int32_t part = 0; part < s.parts; part++) {
        ring_rows r = piece_of(c, &s, part);
        int64_t halved = 0, whole = pairs_of(&s, r);
        if (r.end - r.begin < RUNS) return 1;
        s.runs = RUNS;
        for (int run = 0; run < RUNS; run++) halved += pairs_of(&s, run_of(c, &s, part, run));
        most = whole > most ? whole : most;
        most_halved = halved > most_halved ? halved : most_halved;
    }
    return most_halved < most ? RUNS : 1;
}

static sequence sequence_of(const wefti_lowering *c, const weft_node *n, int mask) {
    sequence s = {.n = n, .factor = wefti_lower_rule(c)->in[0][1], .mask = mask};
    s.parts = wefti_lower_parts(c, s.factor);
    s.skip = wefti_attr_int(n, WEFTI_AT_causal) != 0 && !wefti_in(n, mask + 1);
    s.offset = wefti_attention_offset(n);
    s.window = wefti_attr_int(n, WEFTI_AT_window);
    s.begin = wefti_attention_begin(c, n);
    s.runs = 1;
    s.runs = runs_of(c, s);
    return s;
}

/* ---- the rows that each part needs in a step of the ring ---- */

static int32_t other(const sequence *s, int32_t part, int by) {
    return (int32_t)(((int64_t)part + by + s->parts) % s->parts);
}

/* Whether some query of run a of part i sees some key of run b of part j. Every run attends first
 * to its own keys. */
static bool sees(const wefti_lowering *c, const sequence *s, int32_t i, int a, int32_t j, int b) {
    if (!s->skip || (i == j && a == b)) return true;
    ring_rows queries = run_of(c, s, i, a), keys = run_of(c, s, j, b);
    return queries.end - 1 + s->offset >= keys.begin &&
           (!s->window || queries.begin + s->offset - s->window < keys.end - 1);
}

static bool any_sees(const wefti_lowering *c, const sequence *s, int32_t i, int32_t j, int b) {
    bool any = false;
    for (int a = 0; a < s->runs; a++) any = any || sees(c, s, i, a, j, b);
    return any;
}

/* Whether some part attends to keys in this step and run. If not, the devices send nothing. */
static bool in_use(const wefti_lowering *c, const sequence *s) {
    for (int32_t part = 0; part < s->parts; part++)
        if (any_sees(c, s, part, other(s, part, s->step), s->run)) return true;
    return false;
}

static void give_rows(ring_rows r, bool some, int64_t *begin, int64_t *end) {
    *begin = r.begin;
    *end = some ? r.end : r.begin;
}

static void own_rows(const wefti_lowering *c, int32_t part, void *context, int64_t *begin,
                     int64_t *end) {
    give_rows(piece_of(c, context, part), true, begin, end);
}

static void upper_half(const wefti_lowering *c, int32_t part, void *context, int64_t *begin,
                       int64_t *end) {
    give_rows(half_of(c, context, part, 1), true, begin, end);
}

static void upper_run(const wefti_lowering *c, int32_t part, void *context, int64_t *begin,
                      int64_t *end) {
    give_rows(run_of(c, context, part, 1), true, begin, end);
}

/* The keys that part `part` attends to in this step and run. Empty if it sees none of them. */
static void attended_rows(const wefti_lowering *c, int32_t part, void *context, int64_t *begin,
                          int64_t *end) {
    const sequence *s = context;
    int32_t from = other(s, part, s->step);
    give_rows(run_of(c, s, from, s->run), any_sees(c, s, part, from, s->run), begin, end);
}

/* The keys in the piece of part `part` that some part attends to in this step and run. */
static void returned_rows(const wefti_lowering *c, int32_t part, void *context, int64_t *begin,
                          int64_t *end) {
    const sequence *s = context;
    int32_t from = s->run == 0 ? part : mirror(s, part);
    give_rows(half_of(c, s, part, s->run), any_sees(c, s, other(s, from, -s->step), from, s->run),
              begin, end);
}

/* Whether each device already holds the keys of this step and run, so that no exchange is
 * needed. */
static bool at_home(const sequence *s) {
    return s->step == 0 && s->run == 0;
}

static wefti_transfer_kind kind_of(const sequence *s) {
    return s->step ? WEFTI_TRANSFER_SHIFT : WEFTI_TRANSFER_PERMUTE;
}

/* Sends v from the device that attended to the keys back to the device that holds them. */
static weft_value give_back(wefti_lowering *c, sequence *s, weft_value v) {
    if (at_home(s)) return v;
    return wefti_lower_exchange_as(c, kind_of(s), v, 1, s->factor, attended_rows, returned_rows, s);
}

static weft_value lower_half(wefti_lowering *c, const sequence *s, weft_value v, int dim) {
    ring_rows r = half_of(c, s, wefti_lower_index(c, s->factor), 0);
    return s->runs == 1 ? v : weft_slice(wefti_lower_graph(c), v, dim, 0, r.end - r.begin);
}

/* Adds the node itself on in[]. Its queries and keys begin at these positions in the whole
 * sequence. */
static void attend(wefti_lowering *c, const sequence *s, const weft_value *in,
                   int64_t queries_begin, int64_t keys_begin, weft_value *out) {
    weft_graph *g = wefti_lower_graph(c);
    wefti_ints begin = s->begin;
    begin.v[2] += queries_begin;
    begin.v[3] += keys_begin;
    weft_value mask = in[s->mask], local[8];
    for (int i = 0; i < s->n->inputs; i++) local[i] = in[i];
    if (mask.id >= 0) {
        int64_t keys = weft_value_desc(g, in[1]).shape[1];
        local[s->mask] = weft_slice(g, mask, 3, keys_begin, keys_begin + keys);
    }
    wefti_lower_same(c, local, 1, (wefti_attr[]){WEFTI_N(begin, begin)}, out);
}

typedef struct attended {
    weft_value o;
    wefti_attention_lse lse;
} attended;

static attended merge(weft_graph *g, attended a, attended b) {
    weft_value centre = wefti_attention_finite(g, weft_maximum(g, a.lse.rounded, b.lse.rounded));
    weft_value wa = wefti_attention_weight(g, a.lse, centre);
    weft_value wb = wefti_attention_weight(g, b.lse, centre), sum = weft_add(g, wa, wb);
    weft_value oa = weft_mul(g, a.o, wefti_attention_beside(g, wefti_attention_share(g, wa, sum)));
    weft_value ob = weft_mul(g, b.o, wefti_attention_beside(g, wefti_attention_share(g, wb, sum)));
    return (attended){weft_add(g, oa, ob), wefti_attention_sum(g, centre, sum)};
}

/* ---- operands and results of the ring ---- */

/* The dimension of queries in an operand or result; -1: none. */
static int queries_dim(const sequence *s, const int8_t *dims, int rank) {
    int found = -1;
    for (int d = 0; d < rank; d++)
        if (dims[d] == s->factor) found = d;
    return found;
}

/* Makes in[] for each run of queries, except keys and values. The exchanges come last, so that they
 * run together with the exchanges of the first keys, which follow. */
static void cut_queries(wefti_lowering *c, sequence *s, const weft_value *in,
                        weft_value of[RUNS][8]) {
    const wefti_split_rule *r = wefti_lower_rule(c);
    int dim[8];
    for (int i = 0; i < 8; i++) {
        const weft_desc *d = i < s->n->inputs ? wefti_in(s->n, i) : NULL;
        dim[i] = d && i != 1 && i != 2 ? queries_dim(s, r->in[i], d->rank) : -1;
        of[0][i] = dim[i] < 0 ? in[i] : lower_half(c, s, in[i], dim[i]);
        of[1][i] = in[i];
    }
    for (int i = 0; i < 8 && s->runs == RUNS; i++)
        if (dim[i] >= 0)
            of[1][i] = wefti_lower_exchange_as(c, WEFTI_TRANSFER_PERMUTE, in[i], dim[i], s->factor,
                                               own_rows, upper_run, s);
}

/* Sends the results of the upper run of queries back to the device that holds these rows. */
static weft_value to_mirror(wefti_lowering *c, sequence *s, weft_value v, int dim) {
    if (s->runs == 1) return WEFT_NO_VALUE;
    return wefti_lower_exchange_as(c, WEFTI_TRANSFER_PERMUTE, v, dim, s->factor, upper_run,
                                   upper_half, s);
}

static weft_value joined(weft_graph *g, weft_value lower, weft_value upper, int dim) {
    if (upper.id < 0) return lower;
    return weft_concat(g, 2, (weft_value[]){lower, upper}, dim);
}

/* Fetches the keys and values of a step. In step 0 the lower half is already on this device. */
static void fetch_step(wefti_lowering *c, sequence *s, const weft_value *in,
                       weft_value keys[RUNS][2]) {
    for (s->run = 0; s->run < s->runs; s->run++)
        for (int o = 0; o < 2 && !at_home(s) && in_use(c, s); o++)
            keys[s->run][o] = wefti_lower_exchange_as(c, kind_of(s), in[1 + o], 1, s->factor,
                                                      own_rows, attended_rows, s);
    for (int o = 0; o < 2 && s->step == 0; o++) keys[0][o] = lower_half(c, s, in[1 + o], 1);
}

/* Lets run `a` of the queries attend to run s->run of the keys of this step. Returns false if it
 * sees no key. */
static bool attend_run(wefti_lowering *c, const sequence *s, weft_value in[RUNS][8],
                       weft_value keys[RUNS][2], int a, weft_value *out) {
    int32_t me = wefti_lower_index(c, s->factor), from = other(s, me, s->step);
    if (!sees(c, s, me, a, from, s->run)) return false;
    in[a][1] = keys[s->run][0];
    in[a][2] = keys[s->run][1];
    attend(c, s, in[a], run_of(c, s, me, a).begin, run_of(c, s, from, s->run).begin, out);
    return true;
}

/* ---- forward ---- */

weft_status wefti_attention_ring(wefti_lowering *c, const weft_node *n, const weft_value *in) {
    sequence of_n = sequence_of(c, n, 3), *s = &of_n;
    weft_graph *g = wefti_lower_graph(c);
    weft_value of[RUNS][8], keys[RUNS][2], o[RUNS], lse[RUNS], out[2];
    attended all[RUNS];
    for (int a = 0; a < RUNS; a++) all[a] = (attended){.o = WEFT_NO_VALUE};
    cut_queries(c, s, in, of);
    for (s->step = 0; s->step < s->parts; s->step++) {
        fetch_step(c, s, in, keys);
        for (s->run = 0; s->run < s->runs; s->run++)
            for (int a = 0; a < s->runs; a++) {
                if (!attend_run(c, s, of, keys, a, out)) continue;
                attended now = {wefti_op_precise(g, out[0]), wefti_attention_apart(g, out[1])};
                all[a] = all[a].o.id < 0 ? now : merge(g, all[a], now);
            }
    }
    for (int a = 0; a < s->runs; a++) {
        o[a] = weft_cast(g, all[a].o, wefti_out(s->n, 0)->dtype);
        lse[a] = wefti_attention_together(g, all[a].lse);
    }
    weft_value upper_o = to_mirror(c, s, o[s->runs - 1], 1);
    weft_value upper_lse = to_mirror(c, s, lse[s->runs - 1], 3);
    wefti_lower_out(c, 0, joined(g, o[0], upper_o, 1));
    wefti_lower_out(c, 1, joined(g, lse[0], upper_lse, 3));
    return WEFT_OK;
}

/* ---- backward ---- */

static weft_value add_to(weft_graph *g, weft_value sum, weft_value term) {
    term = wefti_op_precise(g, term);
    return sum.id < 0 ? term : weft_add(g, sum, term);
}

/* An empty gradient, for a device that attends to no key in this step. */
static weft_value no_rows(weft_graph *g, weft_value k) {
    return weft_slice(g, k, 1, 0, 0);
}

/* Gradients of one run of keys and values of this step, from all local queries. The gradients of
 * the queries are added to dq. */
static void grads_of_run(wefti_lowering *c, sequence *s, weft_value of[RUNS][8],
                         weft_value keys[RUNS][2], weft_value *dq, weft_value *out_keys) {
    weft_graph *g = wefti_lower_graph(c);
    weft_value out[3], sums[2] = {WEFT_NO_VALUE, WEFT_NO_VALUE};
    for (int a = 0; a < s->runs; a++) {
        if (!attend_run(c, s, of, keys, a, out)) continue;
        dq[a] = add_to(g, dq[a], out[0]);
        for (int o = 0; o < 2; o++) sums[o] = add_to(g, sums[o], out[1 + o]);
    }
    for (int o = 0; o < 2 && in_use(c, s); o++)
        out_keys[o] = sums[o].id < 0 ? no_rows(g, keys[s->run][o])
                                     : weft_cast(g, sums[o], wefti_out(s->n, 1 + o)->dtype);
}

/* Receives the gradients that other devices computed for the local keys and values. Adds them to
 * the sums of each half. */
static void take_back(wefti_lowering *c, sequence *s, weft_value back[RUNS][2],
                      weft_value sums[RUNS][2]) {
    int32_t me = wefti_lower_index(c, s->factor);
    for (s->run = 0; s->run < s->runs; s->run++)
        for (int o = 0; o < 2 && in_use(c, s); o++)
            back[s->run][o] = give_back(c, s, back[s->run][o]);
    for (s->run = 0; s->run < s->runs; s->run++) {
        int64_t begin, end;
        returned_rows(c, me, s, &begin, &end);
        for (int o = 0; o < 2 && begin < end; o++)
            sums[s->run][o] = add_to(wefti_lower_graph(c), sums[s->run][o], back[s->run][o]);
    }
}

weft_status wefti_attention_ring_grad(wefti_lowering *c, const weft_node *n, const weft_value *in) {
    sequence of_n = sequence_of(c, n, 6), *s = &of_n;
    weft_graph *g = wefti_lower_graph(c);
    weft_value of[RUNS][8], keys[RUNS][2], back[RUNS][2], dq[RUNS], sums[RUNS][2];
    for (int a = 0; a < RUNS; a++) dq[a] = sums[a][0] = sums[a][1] = WEFT_NO_VALUE;
    cut_queries(c, s, in, of);
    for (s->step = 0; s->step < s->parts; s->step++) {
        fetch_step(c, s, in, keys);
        for (s->run = 0; s->run < s->runs; s->run++) grads_of_run(c, s, of, keys, dq, back[s->run]);
        take_back(c, s, back, sums);
    }
    for (int a = 0; a < s->runs; a++) dq[a] = weft_cast(g, dq[a], wefti_out(s->n, 0)->dtype);
    wefti_lower_out(c, 0, joined(g, dq[0], to_mirror(c, s, dq[s->runs - 1], 1), 1));
    for (int o = 0; o < 2; o++) {
        weft_value upper = s->runs == 1 ? WEFT_NO_VALUE : sums[1][o];
        weft_value sum = joined(g, sums[0][o], upper, 1);
        wefti_lower_out(c, 1 + o, weft_cast(g, sum, wefti_out(s->n, 1 + o)->dtype));
    }
    return WEFT_OK;
}
