/* Dropout: y = x / (1 - rate) with probability 1 - rate, else 0 (Srivastava et al., JMLR 2014, in
 * the inverted form).
 *
 * Element i of the global tensor is kept iff philox_uniform(seed, stream, i) >= rate: the mask is a
 * function of names and positions, hence the same for every split, and the gradient is the same op
 * on dy with the forward's stream. No mask is stored. */
#include "base/philox.h"
#include "ops/common.h"

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    double rate = wefti_attr_float(n, "rate");
    WEFT_REQUIRE(rate >= 0.0 && rate < 1.0, WEFT_E_ARG,
                 "dropout: the rate is %g; it must be in [0, 1)", rate);
    WEFT_TRY(wefti_op_check_float(n, 0));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_value dy = wefti_grad_of(g, n, 0);
    wefti_grad_add(g, n, 0,
                   wefti_graph_add1(wefti_grad_graph(g), &weft_op_dropout, 1, &dy, 2,
                                    (wefti_attr[]){WEFTI_F("rate", wefti_attr_float(n, "rate")),
                                                   WEFTI_I("stream", n->stream)}));
    return WEFT_OK;
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    const weft_desc *x = wefti_in(n, 0);
    double rate = wefti_attr_float(n, "rate");
    uint64_t stream = wefti_random_stream(random, n);
    int64_t count = weft_desc_elems(x);
    int64_t first = random->row_offset * wefti_op_count(x, 1, x->rank);
    for (int64_t i = 0; i < count; i++) {
        bool keep = wefti_philox_uniform(random->seed, stream, (uint64_t)(first + i)) >= rate;
        out[0][i] = keep ? in[0][i] / (1.0 - rate) : 0.0;
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_F("rate", 0.5),
                                   WEFTI_I("stream", -1), /* -1: the node's own */
                                   {0}};

static const wefti_op_case cases[] = {CASE("rate=0.3", "f32[7,11]"),
                                      CASE("rate=0.5", "bf16[3,1,5]"), CASE("rate=0", "f32[4]"),
                                      CASE("rate=0.5", "f32[0,3]"), CASES_END};

const weft_op_def weft_op_dropout = {
    .name = "dropout",
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_RANDOM | WEFTI_OP_ELEMENTWISE | WEFTI_OP_CHEAP,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = wefti_op_split_elementwise,
    .reference = reference,
    .cases = cases,
};

weft_value weft_dropout(weft_graph *g, weft_value x, double rate) {
    if (rate == 0.0) return x;
    return wefti_graph_add1(g, &weft_op_dropout, 1, &x, 1, (wefti_attr[]){WEFTI_F("rate", rate)});
}
