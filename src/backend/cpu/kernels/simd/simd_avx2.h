/* Vectors of 8 floats: AVX2 and FMA. See simd.h. */
#ifndef WEFTI_CPU_KERNELS_SIMD_AVX2_H
#define WEFTI_CPU_KERNELS_SIMD_AVX2_H

enum { VL = 8 };
typedef __m256 vf;
typedef uint32_t vi __attribute__((vector_size(32)));
typedef __m256 vm; /* all bits of a lane set or clear */

INLINE vi vf_bits(vf a) {
    return (vi)a;
}
INLINE vf vf_from_bits(vi a) {
    return (vf)a;
}
INLINE vf vf_set1(float a) {
    return _mm256_set1_ps(a);
}
INLINE vi vi_set1(int32_t a) {
    return (vi)_mm256_set1_epi32(a);
}
INLINE vi vi_iota(void) {
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
}
INLINE vi vi_shl(vi a, int n) {
    return (vi)_mm256_slli_epi32((__m256i)a, n);
}
INLINE vi vi_shr(vi a, int n) { /* logical */
    return (vi)_mm256_srli_epi32((__m256i)a, n);
}
INLINE vi vi_sar(vi a, int n) { /* arithmetic */
    return (vi)_mm256_srai_epi32((__m256i)a, n);
}
INLINE vf vf_from_int(vi a) {
    return _mm256_cvtepi32_ps((__m256i)a);
}
INLINE vi vf_to_int(vf a) { /* to nearest even; out of range gives INT32_MIN */
    return (vi)_mm256_cvtps_epi32(a);
}
INLINE __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), (__m256i)vi_iota());
}
INLINE vm vm_first(int64_t n) {
    return _mm256_castsi256_ps(first(n));
}
INLINE vf vf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
INLINE void vf_store(float *p, vf a) {
    _mm256_storeu_ps(p, a);
}
INLINE vf vf_load_n(const float *p, int64_t n) {
    return _mm256_maskload_ps(p, first(n));
}
INLINE void vf_store_n(float *p, vf a, int64_t n) {
    _mm256_maskstore_ps(p, first(n), a);
}
INLINE vi vi_load(const int32_t *p) {
    return (vi)_mm256_loadu_si256((const __m256i *)(const void *)p);
}
INLINE void vi_store(int32_t *p, vi a) {
    _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)a);
}
INLINE vi vi_widen_u16(const uint16_t *p) {
    return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE vi vi_widen_u16_n(const uint16_t *p, int64_t n) {
    uint16_t t[VL] = {0};
    for (int64_t i = 0; i < n && i < VL; i++) t[i] = p[i];
    return vi_widen_u16(t);
}
INLINE vi vi_widen_u8(const uint8_t *p) {
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
INLINE void vi_narrow_high(uint16_t *p, vi a) { /* the high halves */
    __m256i h = _mm256_srli_epi32((__m256i)a, 16);
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}
INLINE void vi_narrow_high_n(uint16_t *p, vi a, int64_t n) {
    uint16_t t[VL];
    vi_narrow_high(t, a);
    for (int64_t i = 0; i < n && i < VL; i++) p[i] = t[i];
}
INLINE vf vf_fma(vf a, vf b, vf c) { /* a b + c */
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vf vf_fnma(vf a, vf b, vf c) { /* c - a b */
    return _mm256_fnmadd_ps(a, b, c);
}
INLINE vf vf_max(vf a, vf b) { /* b if either is NaN */
    return _mm256_max_ps(a, b);
}
INLINE vf vf_min(vf a, vf b) { /* b if either is NaN */
    return _mm256_min_ps(a, b);
}
INLINE vf vf_sqrt(vf a) {
    return _mm256_sqrt_ps(a);
}
INLINE vf vf_round(vf a) { /* to nearest even */
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a 2^n for integral n in [-252, 254], in two factors, so that subnormal results are right. */
INLINE vf vf_scale2(vf a, vf n) {
    vi whole = vf_to_int(n), half = (vi)_mm256_srai_epi32((__m256i)whole, 1);
    vf p = vf_from_bits(vi_shl(half + vi_set1(127), 23));
    vf q = vf_from_bits(vi_shl(whole - half + vi_set1(127), 23));
    return a * p * q;
}
INLINE vm vm_lt(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
INLINE vm vm_le(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}
INLINE vm vm_eq(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
INLINE vm vm_ne(vf a, vf b) { /* true when unordered */
    return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ);
}
INLINE vm vm_unordered(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_UNORD_Q);
}
INLINE vm vi_eq(vi a, vi b) {
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32((__m256i)a, (__m256i)b));
}
INLINE vm vi_ge(vi a, vi b) { /* signed */
    __m256i less = _mm256_cmpgt_epi32((__m256i)b, (__m256i)a);
    return _mm256_castsi256_ps(_mm256_xor_si256(less, _mm256_set1_epi32(-1)));
}
/* p[index] where m, else `other`. Reads memory only where m. */
INLINE vf vf_gather(const float *p, vi index, vm m, vf other) {
    return _mm256_mask_i32gather_ps(other, p, (__m256i)index, m, 4);
}
INLINE vm vm_and(vm a, vm b) {
    return _mm256_and_ps(a, b);
}
INLINE vm vm_or(vm a, vm b) {
    return _mm256_or_ps(a, b);
}
INLINE bool vm_any(vm a) {
    return _mm256_movemask_ps(a) != 0;
}
INLINE vf vf_select(vm m, vf a, vf b) { /* m ? a : b */
    return _mm256_blendv_ps(b, a, m);
}
INLINE vi vi_select(vm m, vi a, vi b) {
    return (vi)_mm256_blendv_ps((vf)b, (vf)a, m);
}
INLINE float vf_sum(vf a) {
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
INLINE float vf_hmax(vf a) { /* NaN is not kept */
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

/* 32 x 32 -> 64 bit products with a constant, for Philox. */
INLINE void vi_mulhilo(vi a, uint32_t constant, vi *hi, vi *lo) {
    __m256i x = (__m256i)a, m = _mm256_set1_epi64x((int64_t)constant);
    __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    *hi = (vi)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *lo = (vi)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
/* out[4 lane + k] = word k of lane. */
INLINE void vi_store_interleaved4(int32_t *out, vi a, vi b, vi c, vi d) {
    __m256i ab0 = _mm256_unpacklo_epi32((__m256i)a, (__m256i)b);
    __m256i ab1 = _mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
    __m256i cd0 = _mm256_unpacklo_epi32((__m256i)c, (__m256i)d);
    __m256i cd1 = _mm256_unpackhi_epi32((__m256i)c, (__m256i)d);
    __m256i r0 = _mm256_unpacklo_epi64(ab0, cd0), r1 = _mm256_unpackhi_epi64(ab0, cd0);
    __m256i r2 = _mm256_unpacklo_epi64(ab1, cd1), r3 = _mm256_unpackhi_epi64(ab1, cd1);
    /* r[k] holds blocks k and k + 4. */
    __m256i *p = (__m256i *)(void *)out;
    _mm256_storeu_si256(p, _mm256_permute2x128_si256(r0, r1, 0x20));
    _mm256_storeu_si256(p + 1, _mm256_permute2x128_si256(r2, r3, 0x20));
    _mm256_storeu_si256(p + 2, _mm256_permute2x128_si256(r0, r1, 0x31));
    _mm256_storeu_si256(p + 3, _mm256_permute2x128_si256(r2, r3, 0x31));
}

#endif
