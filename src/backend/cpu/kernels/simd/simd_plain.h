/* Vectors in the compiler's own vector types. Normally they have 4 floats: SSE2 on x86-64, NEON on
 * arm64, scalars elsewhere. With WEFTI_EMULATED they have the 8 and 16 floats of AVX2 and AVX-512,
 * with fused operations. See simd.h. */
#ifndef WEFTI_CPU_KERNELS_SIMD_PLAIN_H
#define WEFTI_CPU_KERNELS_SIMD_PLAIN_H

#if defined(WEFTI_BUILD_AVX512)
#define LANES 16
#elif defined(WEFTI_BUILD_AVX2)
#define LANES 8
#else
#define LANES 4
#endif
enum { VL = LANES };
typedef float vf __attribute__((vector_size(LANES * 4)));
typedef uint32_t vi __attribute__((vector_size(LANES * 4)));
typedef int32_t vm __attribute__((vector_size(LANES * 4))); /* all bits of a lane set or clear */

INLINE vi vf_bits(vf a) {
    return (vi)a;
}
INLINE vf vf_from_bits(vi a) {
    return (vf)a;
}
INLINE vf vf_set1(float a) {
    return a - (vf){0};
}
INLINE vi vi_set1(int32_t a) {
    return (uint32_t)a - (vi){0};
}
INLINE vi vi_iota(void) {
#if LANES == 16
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES == 8
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (vi){0, 1, 2, 3};
#endif
}
INLINE vi vi_shl(vi a, int n) {
    return a << (uint32_t)n;
}
INLINE vi vi_shr(vi a, int n) { /* logical */
    return a >> (uint32_t)n;
}
INLINE vi vi_sar(vi a, int n) { /* arithmetic */
    return (vi)((vm)a >> n);
}
INLINE vf vf_from_int(vi a) {
    return __builtin_convertvector((vm)a, vf);
}
INLINE vi vf_to_int(vf a) { /* to nearest even; out of range gives INT32_MIN */
    vi r;
    for (int i = 0; i < VL; i++)
        r[i] = (uint32_t)(a[i] >= -2147483648.0f && a[i] < 2147483648.0f ? (int32_t)nearbyintf(a[i])
                                                                         : INT32_MIN);
    return r;
}
INLINE vm vm_first(int64_t n) {
    return vi_iota() < vi_set1((int32_t)n);
}
INLINE vf vf_load(const float *p) {
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE void vf_store(float *p, vf a) {
    memcpy(p, &a, sizeof a);
}
INLINE vf vf_load_n(const float *p, int64_t n) {
    vf a = {0};
    for (int i = 0; i < VL; i++)
        if (i < n) a[i] = p[i];
    return a;
}
INLINE void vf_store_n(float *p, vf a, int64_t n) {
    for (int i = 0; i < VL; i++)
        if (i < n) p[i] = a[i];
}
INLINE vi vi_load(const int32_t *p) {
    vi a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE void vi_store(int32_t *p, vi a) {
    memcpy(p, &a, sizeof a);
}
INLINE vi vi_widen_u16(const uint16_t *p) {
    vi a;
    for (int i = 0; i < VL; i++) a[i] = p[i];
    return a;
}
INLINE vi vi_widen_u16_n(const uint16_t *p, int64_t n) {
    vi a = {0};
    for (int i = 0; i < VL; i++)
        if (i < n) a[i] = p[i];
    return a;
}
INLINE vi vi_widen_u8(const uint8_t *p) {
    vi a;
    for (int i = 0; i < VL; i++) a[i] = p[i];
    return a;
}
INLINE void vi_narrow_high(uint16_t *p, vi a) { /* the high halves */
    for (int i = 0; i < VL; i++) p[i] = (uint16_t)(a[i] >> 16);
}
INLINE void vi_narrow_high_n(uint16_t *p, vi a, int64_t n) {
    for (int i = 0; i < VL; i++)
        if (i < n) p[i] = (uint16_t)(a[i] >> 16);
}
#if defined(WEFTI_EMULATED)
INLINE vf vf_fma(vf a, vf b, vf c) { /* a b + c, rounded once */
    for (int i = 0; i < VL; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}
INLINE vf vf_fnma(vf a, vf b, vf c) { /* c - a b */
    for (int i = 0; i < VL; i++) c[i] = fmaf(-a[i], b[i], c[i]);
    return c;
}
#else
INLINE vf vf_fma(vf a, vf b, vf c) { /* a b + c, rounded twice */
    return a * b + c;
}
INLINE vf vf_fnma(vf a, vf b, vf c) { /* c - a b */
    return c - a * b;
}
#endif
INLINE vm vm_lt(vf a, vf b) {
    return a < b;
}
INLINE vm vm_le(vf a, vf b) {
    return a <= b;
}
INLINE vm vm_eq(vf a, vf b) {
    return a == b;
}
INLINE vm vm_ne(vf a, vf b) { /* true when unordered */
    return a != b;
}
INLINE vm vm_unordered(vf a, vf b) {
    return (a != a) | (b != b);
}
INLINE vm vi_eq(vi a, vi b) {
    return a == b;
}
INLINE vm vi_ge(vi a, vi b) { /* signed */
    return (vm)a >= (vm)b;
}
/* p[index] where m, else `other`. Reads memory only where m. */
INLINE vf vf_gather(const float *p, vi index, vm m, vf other) {
    for (int i = 0; i < VL; i++)
        if (m[i]) other[i] = p[(int32_t)index[i]];
    return other;
}
INLINE vm vm_and(vm a, vm b) {
    return a & b;
}
INLINE vm vm_or(vm a, vm b) {
    return a | b;
}
INLINE bool vm_any(vm a) {
    int32_t any = 0;
    for (int i = 0; i < VL; i++) any |= a[i];
    return any != 0;
}
INLINE vi vi_select(vm m, vi a, vi b) {
    return ((vi)m & a) | (~(vi)m & b);
}
INLINE vf vf_select(vm m, vf a, vf b) { /* m ? a : b */
    return (vf)vi_select(m, (vi)a, (vi)b);
}
INLINE vf vf_max(vf a, vf b) { /* b if either is NaN */
    return vf_select(b < a, a, b);
}
INLINE vf vf_min(vf a, vf b) { /* b if either is NaN */
    return vf_select(a < b, a, b);
}
INLINE vf vf_sqrt(vf a) {
    for (int i = 0; i < VL; i++) a[i] = sqrtf(a[i]);
    return a;
}
INLINE vf vf_round(vf a) {           /* to nearest even, for |a| < 2^22 */
    vf magic = vf_set1(12582912.0f); /* 1.5 2^23 */
    return (a + magic) - magic;
}
/* a 2^n for integral n in [-252, 254], in two factors, so that subnormal results are right. */
INLINE vf vf_scale2(vf a, vf n) {
    vi whole = (vi) __builtin_convertvector(n, vm), half = (vi)((vm)whole >> 1);
    vf p = vf_from_bits(vi_shl(half + vi_set1(127), 23));
    vf q = vf_from_bits(vi_shl(whole - half + vi_set1(127), 23));
    return a * p * q;
}
INLINE float vf_sum(vf a) {
    for (int width = VL / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) a[i] += a[i + width];
    return a[0];
}
INLINE float vf_hmax(vf a) { /* NaN is not kept */
    for (int width = VL / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
    return a[0];
}

/* 32 x 32 -> 64 bit products with a constant, for Philox. */
INLINE void vi_mulhilo(vi a, uint32_t constant, vi *hi, vi *lo) {
    for (int i = 0; i < VL; i++) {
        uint64_t product = (uint64_t)constant * a[i];
        (*hi)[i] = (uint32_t)(product >> 32);
        (*lo)[i] = (uint32_t)product;
    }
}
/* out[4 lane + k] = word k of lane. */
INLINE void vi_store_interleaved4(int32_t *out, vi a, vi b, vi c, vi d) {
    for (int i = 0; i < VL; i++) {
        out[4 * i] = (int32_t)a[i];
        out[4 * i + 1] = (int32_t)b[i];
        out[4 * i + 2] = (int32_t)c[i];
        out[4 * i + 3] = (int32_t)d[i];
    }
}

#endif
