/* Rotary position embeddings (Su et al., "RoFormer", 2021, equation 34, with Llama's halves), and
 * writes into key-value caches.
 *
 *     rope(x [batch, seq, heads, dim], position?; theta, offset, factor, low, high, original,
 *          fast, slow, exact)
 *         rotates the pair (i, i + dim/2) of row s by (position + offset + s) theta^(-2i/dim);
 *         `factor` and the attributes after it: weft_rope_scaling
 *     rope_grad(dy, position?; the same)
 *         rotates back, which is the transpose of the rotation
 *     cache_write(cache [batch, length, heads, dim], x [batch, seq, heads, dim], position)
 *         writes x into the rows from `position` on, in place; for generation, not differentiable
 *
 * position is an i32 scalar, or i32 [batch]: one for each sample; 0 when absent. i32 [batch, 2]:
 * the row of the cache that a sample belongs to, and its position. Several samples may have one
 * row. `offset` is the begin of a piece of a split sequence (localize), so that rows are free. */
#include "ops/attention/attention.h"

/* Attributes in this order. */
enum { THETA, OFFSET, FACTOR, LOW, HIGH, ORIGINAL, FAST, SLOW, EXACT, ATTRS };
static const wefti_attr attrs[] = {WEFTI_F(theta, 10000.0), WEFTI_I(offset, 0),
                                   WEFTI_F(factor, 0.0),    WEFTI_F(low, 1.0),
                                   WEFTI_F(high, 4.0),      WEFTI_I(original, 0),
                                   WEFTI_F(fast, 0.0),      WEFTI_F(slow, 1.0),
                                   WEFTI_I(exact, 0),       {0}};

/* The position of sample b among operand i, which may be absent. */
static double position_of(const weft_node *n, const double *position, int i, int64_t b) {
    if (!position) return 0.0;
    const int rank = wefti_in(n, i)->rank;
    return position[rank == 2 ? 2 * b + 1 : rank ? b : 0];
}

/* ---- rope ---- */

static weft_status check_scaling(const weft_node *n) {
    double factor = wefti_attr_float(n, WEFTI_AT_factor), low = wefti_attr_float(n, WEFTI_AT_low),
           high = wefti_attr_float(n, WEFTI_AT_high);
    int64_t original = wefti_attr_int(n, WEFTI_AT_original);
    WEFT_REQUIRE(factor >= 0.0 && isfinite(factor) && original >= 0, WEFT_E_ARG,
                 "%s: the factor is %g and the original context %lld; they must not be negative",
                 n->op->name, wefti_printed(factor), (long long)original);
    double fast = wefti_attr_float(n, WEFTI_AT_fast), slow = wefti_attr_float(n, WEFTI_AT_slow),
           theta = wefti_attr_float(n, WEFTI_AT_theta);
    if (fast != 0.0 && factor != 0.0) {
        WEFT_REQUIRE(fast > 0.0 && isfinite(fast) && slow > 0.0 && isfinite(slow) && original > 0 &&
                         theta > 1.0,
                     WEFT_E_ARG,
                     "%s: from %g to %g turns in the original context %lld, theta is %g: turns and "
                     "context must be positive and theta above 1",
                     n->op->name, wefti_printed(fast), wefti_printed(slow), (long long)original,
                     wefti_printed(theta));
        return WEFT_OK;
    }
    WEFT_REQUIRE(factor == 0.0 || original == 0 || (low > 0.0 && high > low && isfinite(high)),
                 WEFT_E_ARG,
                 "%s: the factors of low and high frequencies are %g and %g; they must be positive "
                 "and the second larger",
                 n->op->name, wefti_printed(low), wefti_printed(high));
    return WEFT_OK;
}

static weft_status infer_rope(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    double theta = wefti_attr_float(n, WEFTI_AT_theta);
    WEFT_REQUIRE(theta > 0.0, WEFT_E_ARG, "%s: theta is %g; it must be positive", n->op->name,
                 theta);
    WEFT_REQUIRE(wefti_attr_int(n, WEFTI_AT_offset) >= 0, WEFT_E_ARG,
                 "%s: the offset is %lld; it must not be negative", n->op->name,
                 (long long)wefti_attr_int(n, WEFTI_AT_offset));
    WEFT_TRY(check_scaling(n));
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, 4, 4));
    WEFT_REQUIRE(x->shape[3] % 2 == 0, WEFT_E_SHAPE,
                 "%s: %s: the last dimension, %lld, must be even: it turns in pairs", n->op->name,
                 TEXT(x), (long long)x->shape[3]);
    WEFT_TRY(wefti_attention_check_position(n, 1, 0));
    *out = *x;
    return WEFT_OK;
}

static weft_status grad_rope(wefti_grad *g, const weft_node *n) {
    weft_value in[] = {wefti_grad_of(g, n, 0),
                       wefti_in(n, 1) ? wefti_grad_in(g, n, 1) : WEFT_NO_VALUE};
    wefti_grad_add(
        g, n, 0, wefti_graph_add1(wefti_grad_graph(g), &weft_op_rope_grad, 2, in, ATTRS, n->attrs));
    return WEFT_OK;
}

/* All dimensions are free except the pairs. */
static weft_status split_rope(const weft_node *n, wefti_split_rule *r) {
    static const char *const names[] = {"batch", "seq", "heads", "dim"};
    const weft_desc *x = wefti_in(n, 0);
    for (int d = 0; d < 4; d++)
        r->in[0][d] = r->out[0][d] = wefti_op_factor(
            r, names[d], -1, x->shape[d], d < 3 ? WEFTI_FACTOR_FREE : WEFTI_FACTOR_WHOLE);
    wefti_attention_split_position(n, 1, 0, r);
    return WEFT_OK;
}

static weft_status localize_rope(const weft_node *n, const wefti_split_rule *rule,
                                 const int64_t *begins, const int64_t *sizes, wefti_attr *attrs) {
    (void)sizes;
    int seq = rule->in[0][1];
    if (seq >= 0) wefti_op_attr(n, attrs, WEFTI_AT_offset)->i += begins[seq];
    return WEFT_OK;
}

static void cost_rope(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 3.0 * (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}

/* The fraction of the frequency of pair i that YaRN keeps (find_correction_range in its code). */
static double kept_by_yarn(const weft_node *n, int64_t i, int64_t dim) {
    double turns[2] = {wefti_attr_float(n, WEFTI_AT_fast), wefti_attr_float(n, WEFTI_AT_slow)},
           bound[2];
    double log_theta = log(wefti_attr_float(n, WEFTI_AT_theta));
    bool exact = wefti_attr_int(n, WEFTI_AT_exact) != 0;
    for (int b = 0; b < 2; b++) {
        double ratio = (double)wefti_attr_int(n, WEFTI_AT_original) /
                       (turns[b] * 2.0 * 3.14159265358979323846);
        bound[b] = (double)dim * log(ratio) / (2.0 * log_theta);
        if (!exact) bound[b] = b ? ceil(bound[b]) : floor(bound[b]);
    }
    bound[0] = fmax(bound[0], 0.0);
    bound[1] = fmin(bound[1], (double)(dim - 1));
    if (bound[0] == bound[1]) bound[1] += 0.001;
    return 1.0 - fmin(fmax(((double)i - bound[0]) / (bound[1] - bound[0]), 0.0), 1.0);
}

/* theta^(-2i/dim), scaled; before it is rounded. */
static double scaled_frequency(const weft_node *n, int64_t i, int64_t dim) {
    const float power =
        (float)pow(wefti_attr_float(n, WEFTI_AT_theta), (double)((float)(2 * i) / (float)dim));
    double frequency = (double)(1.0f / power);
    double factor = wefti_attr_float(n, WEFTI_AT_factor), low = wefti_attr_float(n, WEFTI_AT_low),
           high = wefti_attr_float(n, WEFTI_AT_high), turns;
    int64_t original = wefti_attr_int(n, WEFTI_AT_original);
    if (factor == 0.0) return frequency;
    if (original == 0) return frequency / factor;
    /* The number of turns within the original context length. */
    turns = (double)original * frequency / (2.0 * 3.14159265358979323846);
    double kept = fmin(fmax((turns - low) / (high - low), 0.0), 1.0);
    if (wefti_attr_float(n, WEFTI_AT_fast) > 0.0) kept = kept_by_yarn(n, i, dim);
    return kept * frequency + (1.0 - kept) * frequency / factor;
}

/* Frequencies and angles are f32, as in transformers, so that far positions turn alike. */
static double angle_of(const weft_node *n, double position, int64_t i, int64_t dim) {
    return (float)(position * (double)(float)scaled_frequency(n, i, dim));
}

/* direction 1 rotates, -1 rotates back */
static weft_status turn(const weft_node *n, const double *const *in, double *const *out,
                        double direction) {
    const weft_desc *x = wefti_in(n, 0);
    const double *first = wefti_op_optional(n, in, 1);
    int64_t seq = x->shape[1], heads = x->shape[2], dim = x->shape[3], half = dim / 2;
    double offset = (double)wefti_attr_int(n, WEFTI_AT_offset);
    for (int64_t row = 0; row < x->shape[0] * seq; row++)
        for (int64_t i = 0; i < half; i++) {
            double position = (double)(row % seq) + offset + position_of(n, first, 1, row / seq);
            double angle = direction * angle_of(n, position, i, dim);
            for (int64_t h = 0; h < heads; h++) {
                int64_t at = (row * heads + h) * dim + i;
                double a = in[0][at], b = in[0][at + half];
                out[0][at] = a * cos(angle) - b * sin(angle);
                out[0][at + half] = b * cos(angle) + a * sin(angle);
            }
        }
    return WEFT_OK;
}

static weft_status reference_rope(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    return turn(n, in, out, 1.0);
}

static weft_status reference_rope_grad(const weft_node *n, const wefti_random *random,
                                       const double *const *in, double *const *out) {
    (void)random;
    return turn(n, in, out, -1.0);
}

/* ---- cache_write ---- */

static weft_status infer_cache_write(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *cache = wefti_in(n, 0), *x = wefti_in(n, 1);
    WEFT_TRY(wefti_op_check_rank(n, 0, 4, 4));
    WEFT_TRY(wefti_op_check_rank(n, 1, 4, 4));
    const weft_desc *position = wefti_in(n, 2);
    bool by_row = position && position->rank == 2;
    bool fits = (by_row || x->shape[0] == cache->shape[0]) && x->shape[1] <= cache->shape[1] &&
                x->shape[2] == cache->shape[2] && x->shape[3] == cache->shape[3];
    WEFT_REQUIRE(
        fits && x->dtype == cache->dtype, WEFT_E_SHAPE,
        "cache_write: %s into a cache %s: dtype, batch, heads and head size must be equal, and "
        "the rows no more",
        TEXT(x), TEXT(cache));
    WEFT_TRY(wefti_attention_check_position(n, 2, 1));
    *out = *cache;
    return WEFT_OK;
}

static weft_status split_cache_write(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *cache = wefti_in(n, 0), *x = wefti_in(n, 1);
    const bool by_row = wefti_in(n, 2)->rank == 2;
    for (int d = 0; d < 4; d++) {
        const bool whole = d == 1 || (d == 0 && by_row);
        int8_t f = wefti_op_factor(r, "d", d, cache->shape[d],
                                   whole ? WEFTI_FACTOR_WHOLE : WEFTI_FACTOR_FREE);
        r->in[0][d] = r->out[0][d] = f;
        r->in[1][d] = d == 1  ? wefti_op_factor(r, "rows", -1, x->shape[1], WEFTI_FACTOR_WHOLE)
                      : whole ? wefti_op_factor(r, "samples", -1, x->shape[0], WEFTI_FACTOR_WHOLE)
                              : f;
    }
    wefti_attention_split_position(n, 2, 1, r);
    return WEFT_OK;
}

/* Reads and writes the rows and reads the position. The rest of the cache stays unchanged. */
static void cost_cache_write(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 0,
                        .bytes = 2.0 * (double)weft_desc_bytes(wefti_in(n, 1)) +
                                 (double)weft_desc_bytes(wefti_in(n, 2))};
}

static weft_status reference_cache_write(const weft_node *n, const wefti_random *random,
                                         const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *cache = wefti_in(n, 0), *x = wefti_in(n, 1);
    int64_t row = wefti_op_count(cache, 2, 4), count = weft_desc_elems(cache);
    int64_t length = cache->shape[1], seq = x->shape[1];
    for (int64_t i = 0; i < count; i++) out[0][i] = in[0][i];
    for (int64_t b = 0; b < x->shape[0]; b++) {
        int64_t position = (int64_t)position_of(n, in[2], 2, b);
        WEFT_REQUIRE(position >= 0 && position + seq <= length, WEFT_E_ARG,
                     "cache_write: rows [%lld, %lld) of a cache of %lld", (long long)position,
                     (long long)(position + seq), (long long)length);
        int64_t to = wefti_in(n, 2)->rank == 2 ? (int64_t)in[2][2 * b] : b;
        WEFT_REQUIRE(to >= 0 && to < cache->shape[0], WEFT_E_ARG,
                     "cache_write: sample %lld of a cache of %lld", (long long)to,
                     (long long)cache->shape[0]);
        for (int64_t i = 0; i < seq * row; i++)
            out[0][(to * length + position) * row + i] = in[1][b * seq * row + i];
    }
    return WEFT_OK;
}

/* ---- tables ---- */

static const wefti_op_case cases[] = {
    CASE(NULL, "f32[2,3,2,6]"),
    CASE("theta=100", "f32[1,5,3,4]", "i32[]<9"),
    CASE("offset=4", "f32[2,5,1,4]"),
    CASE(NULL, "bf16[2,1,1,2]"),
    CASE(NULL, "f32[0,3,2,4]"),
    CASE("theta=100 factor=4", "f32[1,5,1,6]"),
    CASE("factor=8 low=1 high=4 original=16", "f32[1,9,2,8]", "i32[]<9"),
    CASE("factor=4 fast=4 slow=1 original=32 theta=100", "f32[1,7,2,12]", "i32[]<9"),
    CASE("theta=100", "f32[3,4,2,6]", "i32[3]<9"),
    CASE("factor=8 fast=5 slow=0.5 original=64 theta=500 exact=1", "f32[2,5,1,16]"),
    CASES_END};
static const wefti_op_case cases_cache_write[] = {
    CASE(NULL, "f32[2,7,3,4]", "f32[2,2,3,4]", "i32[]<5"),
    CASE(NULL, "bf16[1,4,1,3]", "bf16[1,1,1,3]", "i32[]<4"),
    CASE(NULL, "f32[2,3,1,2]", "f32[2,3,1,2]", "i32[]<1"),
    CASE(NULL, "f32[3,7,2,4]", "f32[3,2,2,4]", "i32[3]<5"),
    CASE(NULL, "f32[5,6,2,4]", "f32[1,1,2,4]", "i32[1,2]<5"),
    CASES_END};

const weft_op_def weft_op_rope = {
    WEFTI_OP_NAME(rope),
    .min_inputs = 1,
    .max_inputs = 2,
    .flags = WEFTI_OP_LINEAR,
    .attrs = attrs,
    .infer = infer_rope,
    .grad = grad_rope,
    .split = split_rope,
    .localize = localize_rope,
    .cost = cost_rope,
    .reference = reference_rope,
    .cases = cases,
};

const weft_op_def weft_op_rope_grad = {
    WEFTI_OP_NAME(rope_grad), .min_inputs = 1,
    .max_inputs = 2,          .flags = WEFTI_OP_LINEAR | WEFTI_OP_GRADIENT,
    .attrs = attrs,           .infer = infer_rope,
    .split = split_rope,      .localize = localize_rope,
    .cost = cost_rope,        .reference = reference_rope_grad,
    .cases = cases,
};

const weft_op_def weft_op_cache_write = {
    WEFTI_OP_NAME(cache_write),
    .min_inputs = 3,
    .max_inputs = 3,
    .flags = WEFTI_OP_IN_PLACE,
    .infer = infer_cache_write,
    .split = split_cache_write,
    .cost = cost_cache_write,
    .reference = reference_cache_write,
    .cases = cases_cache_write,
};

weft_value weft_rope(weft_graph *g, weft_value x, double theta, weft_rope_scaling scaling,
                     weft_value position) {
    wefti_attr given[] = {WEFTI_F(theta, theta),
                          WEFTI_F(factor, scaling.factor),
                          WEFTI_F(low, scaling.low_freq_factor),
                          WEFTI_F(high, scaling.high_freq_factor),
                          WEFTI_I(original, scaling.original_context),
                          WEFTI_F(fast, scaling.beta_fast),
                          WEFTI_F(slow, scaling.beta_slow),
                          WEFTI_I(exact, scaling.exact)};
    int count = scaling.factor == 0 ? 1 : scaling.beta_fast == 0 ? 5 : 8;
    return wefti_graph_add1(g, &weft_op_rope, 2, (weft_value[]){x, position}, count, given);
}

weft_value weft_cache_write(weft_graph *g, weft_value cache, weft_value x, weft_value position) {
    return wefti_graph_add1(g, &weft_op_cache_write, 3, (weft_value[]){cache, x, position}, 0,
                            NULL);
}
