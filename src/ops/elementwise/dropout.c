/* Dropout: y = x / (1 - rate) with probability 1 - rate, else 0 (Srivastava et al., JMLR 2014, in
 * the inverted form).
 *
 * Element i of the global tensor is kept iff philox_uniform(seed, stream, i) >= rate. So the mask
 * depends only on names and positions, and every split gives the same mask. The gradient is the
 * same op on dy with the stream of the forward op. No mask is stored. A piece states the shape of
 * the whole (`whole`) and its own start (`begin`). Without these attributes, x is the whole. */
#include "base/philox.h"
#include "ops/common.h"

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    double rate = wefti_attr_float(n, WEFTI_AT_rate);
    WEFT_REQUIRE(rate >= 0.0 && rate < 1.0, WEFT_E_ARG,
                 "dropout: the rate is %g; it must be in [0, 1)", rate);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_place(n, wefti_in(n, 0)));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_value dy = wefti_grad_of(g, n, 0);
    wefti_grad_add(
        g, n, 0,
        wefti_graph_add1(wefti_grad_graph(g), &weft_op_dropout, 1, &dy, 4,
                         (wefti_attr[]){WEFTI_F(rate, wefti_attr_float(n, WEFTI_AT_rate)),
                                        WEFTI_I(stream, n->stream),
                                        WEFTI_N(whole, *wefti_attr_ints(n, WEFTI_AT_whole)),
                                        WEFTI_N(begin, *wefti_attr_ints(n, WEFTI_AT_begin))}));
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *rule, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs) {
    (void)sizes;
    int64_t shift[WEFT_MAX_RANK] = {0};
    for (int d = 0; d < wefti_in(n, 0)->rank; d++)
        if (rule->in[0][d] >= 0) shift[d] = begins[rule->in[0][d]];
    wefti_op_localize_place(n, wefti_in(n, 0), shift, attrs);
    return WEFT_OK;
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    const weft_desc *x = wefti_in(n, 0);
    double rate = wefti_attr_float(n, WEFTI_AT_rate);
    uint64_t stream = wefti_random_stream(random, n);
    int64_t count = weft_desc_elems(x), strides[WEFT_MAX_RANK];
    int64_t first = wefti_random_place(random, n, x, strides);
    for (int64_t i = 0; i < count; i++) {
        uint64_t position = (uint64_t)(first + wefti_op_offset(x, i, strides));
        bool keep = wefti_philox_uniform(random->seed, stream, position) >= rate;
        out[0][i] = keep ? in[0][i] / (1.0 - rate) : 0.0;
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_F(rate, 0.5),
                                   WEFTI_I(stream, -1), /* -1: the stream of the node */
                                   ATTR_INTS(whole, 0, {0}),
                                   ATTR_INTS(begin, 0, {0}),
                                   {0}};

static const wefti_op_case cases[] = {CASE("rate=0.3", "f32[7,11]"),
                                      CASE("rate=0.5", "bf16[3,1,5]"),
                                      CASE("rate=0", "f32[4]"),
                                      CASE("rate=0.5", "f32[0,3]"),
                                      CASE("rate=0.5 whole=(4,7,3) begin=(1,2,0)", "f32[2,5,3]"),
                                      CASES_END};

const weft_op_def weft_op_dropout = {
    WEFTI_OP_NAME(dropout),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_RANDOM | WEFTI_OP_ELEMENTWISE | WEFTI_OP_CHEAP | WEFTI_OP_LINEAR,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = wefti_op_split_elementwise,
    .localize = localize,
    .reference = reference,
    .cases = cases,
};

weft_value weft_dropout(weft_graph *g, weft_value x, double rate) {
    if (rate == 0.0) return x;
    return wefti_graph_add1(g, &weft_op_dropout, 1, &x, 1, (wefti_attr[]){WEFTI_F(rate, rate)});
}
