/* One function for each instruction of the elementwise interpreter (kernels/elementwise.h): a loop
 * over one block. Blocks are padded to whole vectors. */
#ifndef WEFTI_CPU_KERNELS_ELEMENTWISE_OPS_H
#define WEFTI_CPU_KERNELS_ELEMENTWISE_OPS_H

#include "backend/cpu/kernels/simd/simd.h"
#include "backend/cpu/kernels/elementwise.h"

typedef struct ew_step {
    float *dst;
    const float *a, *b, *c;
    int64_t n; /* a multiple of VL */
    float imm, imm2;
    const float *uniform; /* dropout */
} ew_step;
typedef void ew_function(const ew_step *s);

#define EW(name, expression)                                                                       \
    static void ew_##name(const ew_step *s) {                                                      \
        const vf imm = vf_set1(s->imm), imm2 = vf_set1(s->imm2);                                   \
        (void)imm;                                                                                 \
        (void)imm2;                                                                                \
        for (int64_t i = 0; i < s->n; i += VL) {                                                   \
            EW_LOADS;                                                                              \
            vf_store(s->dst + i, expression);                                                      \
        }                                                                                          \
    }
#define ONE vf_set1(1.0f)

#define EW_LOADS (void)0
EW(constant, imm)
EW(dropout_mask, vf_select(vm_le(imm, vf_load(s->uniform + i)), imm2, vf_zero()))
#undef EW_LOADS

#define EW_LOADS vf a = vf_load(s->a + i)
EW(copy, a)
EW(scale, vf_fma(a, imm, imm2))
EW(neg, vf_neg(a))
EW(exp, vf_exp(a))
EW(log, vf_log(a))
EW(sqrt, vf_sqrt(a))
EW(rsqrt, ONE / vf_sqrt(a))
EW(reciprocal, ONE / a)
EW(tanh, vf_tanh(a))
EW(erf, vf_erf(a))
EW(sigmoid, vf_sigmoid(a))
EW(relu, vf_max(vf_zero(), a))
EW(gelu_tanh, vf_gelu_tanh(a))
EW(gelu_erf, vf_gelu_erf(a))
EW(silu, vf_silu(a))
EW(clip, vf_min(imm2, vf_max(imm, a)))
EW(abs, vf_abs(a))
EW(sign, vf_select(vm_lt(vf_zero(), a), ONE, vf_select(vm_lt(a, vf_zero()), vf_neg(ONE), a)))
EW(square, a *a)
EW(round_bf16, vf_round_bf16(a))
EW(dropout, vf_select(vm_le(imm, vf_load(s->uniform + i)), a *imm2, vf_zero()))
EW(square_inverse, ONE / (a * a))
EW(cube, a *a *a)
#undef EW_LOADS

#define EW_LOADS vf a = vf_load(s->a + i), b = vf_load(s->b + i)
EW(add, a + b)
EW(sub, a - b)
EW(mul, a *b)
EW(div, a / b)
EW(axpy, vf_fma(imm, b, a))
EW(relu_grad, vf_select(vm_le(b, vf_zero()), vf_zero(), a))
EW(gelu_tanh_grad, a *vf_gelu_tanh_slope(b))
EW(gelu_erf_grad, a *vf_gelu_erf_slope(b))
EW(silu_grad, a *vf_silu_slope(b))
EW(sigmoid_grad, a *b *(ONE - b))
EW(tanh_grad, a *vf_fnma(b, b, ONE))
EW(maximum, vf_max_nan(a, b))
EW(minimum, vf_min_nan(a, b))
EW(eq, vf_select(vm_eq(a, b), ONE, vf_zero()))
EW(ne, vf_select(vm_ne(a, b), ONE, vf_zero()))
EW(lt, vf_select(vm_lt(a, b), ONE, vf_zero()))
EW(le, vf_select(vm_le(a, b), ONE, vf_zero()))
EW(gt, vf_select(vm_lt(b, a), ONE, vf_zero()))
EW(ge, vf_select(vm_le(b, a), ONE, vf_zero()))
EW(clip_grad, vf_select(vm_and(vm_le(imm, b), vm_le(b, imm2)), a, vf_zero()))
#undef EW_LOADS

#define EW_LOADS vf a = vf_load(s->a + i), b = vf_load(s->b + i), c = vf_load(s->c + i)
EW(fma, vf_fma(a, b, c))
EW(where, vf_select(vm_ne(a, vf_zero()), b, c))
#undef EW_LOADS

static void ew_pow(const ew_step *s) {
    for (int64_t i = 0; i < s->n; i++) s->dst[i] = powf(s->a[i], s->b[i]);
}
static void ew_pow_scalar(const ew_step *s) {
    if (s->imm == 2.0f)
        ew_square(s);
    else if (s->imm == 3.0f)
        ew_cube(s);
    else if (s->imm == -1.0f)
        ew_reciprocal(s);
    else if (s->imm == -2.0f)
        ew_square_inverse(s);
    else /* also 0.5 and -0.5: C99's pow and sqrt differ at -0 and -infinity */
        for (int64_t i = 0; i < s->n; i++) s->dst[i] = powf(s->a[i], s->imm);
}

static ew_function *const ew_functions[WEFTI_EW_OP_COUNT] = {
#define ROW(NAME, name, operands) [WEFTI_EW_##NAME] = ew_##name,
    WEFTI_EW_OPS(ROW)
#undef ROW
};

#endif
