/* exp, log, tanh, erf and sigmoid on vectors, and the activations made of them.
 *
 * Errors are in units in the last place of the exact result, over all normal inputs and results.
 * They are: exp 2, log 2, tanh 3, erf 3, sigmoid 4. The test tests/backend/test_kernels_math.c
 * measures them on every build. Special values follow C99 annex F.
 *
 * Polynomials are weighted minimax fits made for this file (Lawson's iteration). Source of the
 * reduction of exp and log: Cody & Waite, "Software Manual for the Elementary Functions", 1980,
 * chapters 5 and 6. */
#ifndef WEFTI_CPU_KERNELS_SIMD_MATH_H
#define WEFTI_CPU_KERNELS_SIMD_MATH_H

#include "backend/cpu/kernels/simd/simd.h"

/* r in [-ln2/2, ln2/2] and integral n with x = n ln2 + r. */
INLINE vf reduce_ln2(vf x, vf *n) {
    *n = vf_round(x * vf_set1(1.44269504f));
    /* the constant has 16 bits, so n times it is exact */
    vf r = vf_fnma(*n, vf_set1(0.693145751953125f), x);
    return vf_fnma(*n, vf_set1(1.42860677e-6f), r);
}
/* (e^r - 1 - r) / r^2; relative error of e^r 5e-11. */
INLINE vf expm1_tail(vf r) {
    vf p = vf_fma(r, vf_set1(1.991781755e-04f), vf_set1(1.394607476e-03f));
    p = vf_fma(p, r, vf_set1(8.333265781e-03f));
    p = vf_fma(p, r, vf_set1(4.166626930e-02f));
    p = vf_fma(p, r, vf_set1(1.666666716e-01f));
    return vf_fma(p, r, vf_set1(0.5f));
}
INLINE vf vf_exp(vf x) {
    vf n, c = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x)); /* NaN passes */
    vf r = reduce_ln2(c, &n);
    vf e = vf_fma(r * r, expm1_tail(r), r) + vf_set1(1.0f);
    return vf_scale2(e, n);
}
/* For x <= 0 or NaN, for softmax. Relative error 1e-7; values below 2^-125 become 0. */
INLINE vf vf_exp_negative(vf x) {
    vf n, c = vf_max(vf_set1(-87.0f), x); /* NaN passes */
    vf r = reduce_ln2(c, &n);
    vf p = vf_fma(r, vf_set1(1.395047642e-03f), vf_set1(8.368882351e-03f));
    p = vf_fma(p, r, vf_set1(4.166620597e-02f));
    p = vf_fma(p, r, vf_set1(1.666651815e-01f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
#if defined(WEFTI_BUILD_AVX512)
    p = vf_scale2(p, n);
#else
    p = vf_from_bits(vf_bits(p) + vi_shl(vf_to_int(n), 23));
#endif
    return vf_select(vm_lt(x, vf_set1(-86.5f)), vf_zero(), p);
}
/* e^x - 1. */
INLINE vf vf_expm1(vf x) {
    vf n, c = vf_min(vf_set1(89.0f), vf_max(vf_set1(-40.0f), x));
    vf r = reduce_ln2(c, &n);
    vf m = vf_fma(r * r, expm1_tail(r), r); /* e^r - 1 */
    vf s = vf_scale2(vf_set1(1.0f), n);
    return vf_fma(m, s, s - vf_set1(1.0f));
}
INLINE vf vf_log(vf x) {
    vm tiny = vm_lt(x, vf_set1(1.17549435e-38f));
    vf y = vf_select(tiny, x * vf_set1(8388608.0f), x);
    vi bits = vf_bits(y) - vi_set1(0x3f3504f3); /* sqrt(1/2) */
    vi exponent = vi_sar(bits, 23);
    vf m = vf_from_bits((bits & vi_set1(0x7fffff)) + vi_set1(0x3f3504f3));
    vf e = vf_from_int(exponent) - vf_select(tiny, vf_set1(23.0f), vf_zero());
    vf f = m - vf_set1(1.0f); /* in [sqrt(1/2) - 1, sqrt(2) - 1] */
    vf p = vf_fma(f, vf_set1(6.746601313e-02f), vf_set1(-1.167564094e-01f));
    p = vf_fma(p, f, vf_set1(1.188817471e-01f));
    p = vf_fma(p, f, vf_set1(-1.240559146e-01f));
    p = vf_fma(p, f, vf_set1(1.421955079e-01f));
    p = vf_fma(p, f, vf_set1(-1.666799635e-01f));
    p = vf_fma(p, f, vf_set1(2.000211924e-01f));
    p = vf_fma(p, f, vf_set1(-2.500000894e-01f));
    p = vf_fma(p, f, vf_set1(3.333331347e-01f));
    vf z = f * f;
    p = p * f * z;
    p = vf_fma(e, vf_set1(1.42860677e-6f), p);
    p = vf_fnma(z, vf_set1(0.5f), p) + f;
    p = vf_fma(e, vf_set1(0.693145751953125f), p);
    vf inf = vf_set1(INFINITY);
    p = vf_select(vm_eq(x, inf), inf, p);
    p = vf_select(vm_eq(x, vf_zero()), vf_set1(-INFINITY), p);
    vf nan = vf_set1(NAN);
    return vf_select(vm_le(vf_zero(), x), p, nan);
}
/* tanh |x| = (e^2|x| - 1) / (e^2|x| + 1). */
INLINE vf vf_tanh(vf x) {
    vi sign = vf_bits(x) & vi_set1((int32_t)0x80000000u);
    vf a = vf_min(vf_set1(10.0f), vf_abs(x)); /* tanh 10 rounds to 1; NaN passes through */
    vf e = vf_expm1(a + a);
    vf t = e / (e + vf_set1(2.0f));
    return vf_from_bits(vf_bits(t) | sign);
}
INLINE vf vf_sigmoid(vf x) {
    vf one = vf_set1(1.0f);
    return one / (one + vf_exp(vf_neg(x)));
}
/* |x| < 1: x p(x^2); beyond: 1 - e^q(x) with q fitted to ln erfc. */
INLINE vf vf_erf(vf x) {
    vi sign = vf_bits(x) & vi_set1((int32_t)0x80000000u);
    vf a = vf_min(vf_set1(4.0f), vf_abs(x)), z = a * a;
    vf p = vf_fma(z, vf_set1(7.853857096e-05f), vf_set1(-8.010192541e-04f));
    p = vf_fma(p, z, vf_set1(5.188327748e-03f));
    p = vf_fma(p, z, vf_set1(-2.685381100e-02f));
    p = vf_fma(p, z, vf_set1(1.128358543e-01f));
    p = vf_fma(p, z, vf_set1(-3.761262596e-01f));
    p = vf_fma(p, z, vf_set1(1.283791069e-01f)); /* 2 / sqrt(pi) - 1: the 1 is added exactly */
    p = vf_fma(p, a, a);
    vf q = vf_fma(a, vf_set1(-2.168677202e-05f), vf_set1(4.413353454e-04f));
    q = vf_fma(q, a, vf_set1(-4.204556346e-03f));
    q = vf_fma(q, a, vf_set1(2.520824037e-02f));
    q = vf_fma(q, a, vf_set1(-1.084185466e-01f));
    q = vf_fma(q, a, vf_set1(-6.332198977e-01f));
    q = vf_fma(q, a, vf_set1(-1.129578352e+00f));
    q = vf_fma(q, a, vf_set1(1.880359196e-04f));
    q = vf_set1(1.0f) - vf_exp(q);
    vf r = vf_select(vm_lt(a, vf_set1(1.0f)), p, q);
    return vf_from_bits(vf_bits(r) | sign);
}

/* x / (1 + e^(-2 sqrt(2/pi) (x + 0.044715 x^3))): x (1 + tanh) / 2 without the cancellation. */
INLINE vf gelu_tanh_gate(vf x) {
    vf u = x * vf_fma(x * x, vf_set1(0.0713548162726f), vf_set1(1.59576912161f));
    return vf_sigmoid(u);
}
INLINE vf vf_gelu_tanh(vf x) {
    return x * gelu_tanh_gate(x);
}
INLINE vf vf_gelu_tanh_slope(vf x) {
    vf s = gelu_tanh_gate(x);
    /* Beyond these limits s is 0 or 1. There x du could become infinite, and times 0 give NaN. NaN
     * passes through. */
    vf c = vf_min(vf_set1(100.0f), vf_max(vf_set1(-100.0f), x));
    vf du = vf_fma(c * c, vf_set1(0.2140644488178f), vf_set1(1.59576912161f));
    return vf_fma(c * du, s * (vf_set1(1.0f) - s), s);
}
INLINE vf vf_normal_cdf(vf x) {
    vf h = vf_set1(0.5f);
    return vf_fma(h, vf_erf(x * vf_set1(0.707106781187f)), h);
}
INLINE vf vf_gelu_erf(vf x) {
    return x * vf_normal_cdf(x);
}
INLINE vf vf_gelu_erf_slope(vf x) {
    vf density = vf_set1(0.398942280401f) * vf_exp(x * x * vf_set1(-0.5f));
    return vf_fma(x, density, vf_normal_cdf(x));
}
INLINE vf vf_silu(vf x) {
    return x * vf_sigmoid(x);
}
INLINE vf vf_silu_slope(vf x) {
    vf s = vf_sigmoid(x);
    return s * vf_fma(x, vf_set1(1.0f) - s, vf_set1(1.0f));
}

#endif
