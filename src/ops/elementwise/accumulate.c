/* accumulate: a sum that grows in its own memory.
 *
 *     sum [...], term [...]  ->  sum + term
 *
 * Passes that compute in chunks add this op for results that sum over chunks. The kernel that
 * computes a term may add the term itself (program/routine.c). The op is not differentiable,
 * because chunks are made after differentiation. */
#include "ops/common.h"

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 1));
    WEFT_REQUIRE(wefti_in(n, 0)->dtype == wefti_in(n, 1)->dtype, WEFT_E_SHAPE,
                 "accumulate: %s cannot be added to %s in place: dtypes must be equal",
                 TEXT(wefti_in(n, 1)), TEXT(wefti_in(n, 0)));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    int64_t count = weft_desc_elems(wefti_out(n, 0));
    for (int64_t i = 0; i < count; i++) out[0][i] = in[0][i] + in[1][i];
    return WEFT_OK;
}

static const wefti_op_case cases[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]"), CASE(NULL, "bf16[7]", "bf16[7]"),
    CASE(NULL, "f32[]", "f32[]"), CASE(NULL, "f32[0,3]", "f32[0,3]"), CASES_END};

const weft_op_def weft_op_accumulate = {
    WEFTI_OP_NAME(accumulate),
    .min_inputs = 2,
    .max_inputs = 2,
    .flags = WEFTI_OP_IN_PLACE | WEFTI_OP_ADDS,
    .infer = infer,
    .split = wefti_op_split_elementwise,
    .reference = reference,
    .cases = cases,
};
