/* Vectors of 16 floats: AVX-512 F, BW, DQ, VL. See simd.h. */
#ifndef WEFTI_CPU_KERNELS_SIMD_AVX512_H
#define WEFTI_CPU_KERNELS_SIMD_AVX512_H

enum { VL = 16 };
typedef __m512 vf;
typedef uint32_t vi __attribute__((vector_size(64)));
typedef __mmask16 vm;

INLINE vi vf_bits(vf a) {
    return (vi)a;
}
INLINE vf vf_from_bits(vi a) {
    return (vf)a;
}
INLINE vf vf_set1(float a) {
    return _mm512_set1_ps(a);
}
INLINE vi vi_set1(int32_t a) {
    return (vi)_mm512_set1_epi32(a);
}
INLINE vi vi_iota(void) {
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}
INLINE vi vi_shl(vi a, int n) {
    return (vi)_mm512_slli_epi32((__m512i)a, (unsigned)n);
}
INLINE vi vi_shr(vi a, int n) { /* logical */
    return (vi)_mm512_srli_epi32((__m512i)a, (unsigned)n);
}
INLINE vi vi_sar(vi a, int n) { /* arithmetic */
    return (vi)_mm512_srai_epi32((__m512i)a, (unsigned)n);
}
INLINE vf vf_from_int(vi a) {
    return _mm512_cvtepi32_ps((__m512i)a);
}
INLINE vi vf_to_int(vf a) { /* to nearest even; out of range gives INT32_MIN */
    return (vi)_mm512_cvtps_epi32(a);
}
INLINE __mmask16 first(int64_t n) {
    return (__mmask16)((1u << n) - 1u);
}
INLINE vm vm_first(int64_t n) {
    return first(n);
}
INLINE vf vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf a) {
    _mm512_storeu_ps(p, a);
}
INLINE vf vf_load_n(const float *p, int64_t n) {
    return _mm512_maskz_loadu_ps(first(n), p);
}
INLINE void vf_store_n(float *p, vf a, int64_t n) {
    _mm512_mask_storeu_ps(p, first(n), a);
}
INLINE vi vi_load(const int32_t *p) {
    return (vi)_mm512_loadu_si512(p);
}
INLINE void vi_store(int32_t *p, vi a) {
    _mm512_storeu_si512(p, (__m512i)a);
}
INLINE vi vi_widen_u16(const uint16_t *p) {
    return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE vi vi_widen_u16_n(const uint16_t *p, int64_t n) {
    return (vi)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p));
}
INLINE vi vi_widen_u8(const uint8_t *p) {
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE void vi_narrow_high(uint16_t *p, vi a) { /* the high halves */
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)a, 16)));
}
INLINE void vi_narrow_high_n(uint16_t *p, vi a, int64_t n) {
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)a, 16)));
}
INLINE vf vf_fma(vf a, vf b, vf c) { /* a b + c */
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf vf_fnma(vf a, vf b, vf c) { /* c - a b */
    return _mm512_fnmadd_ps(a, b, c);
}
INLINE vf vf_max(vf a, vf b) { /* b if either is NaN */
    return _mm512_max_ps(a, b);
}
INLINE vf vf_min(vf a, vf b) { /* b if either is NaN */
    return _mm512_min_ps(a, b);
}
INLINE vf vf_sqrt(vf a) {
    return _mm512_sqrt_ps(a);
}
INLINE vf vf_round(vf a) { /* to nearest even */
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a 2^n for integral n. Correct for subnormal results and for overflow. */
INLINE vf vf_scale2(vf a, vf n) {
    return _mm512_scalef_ps(a, n);
}
INLINE vm vm_lt(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
INLINE vm vm_le(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
INLINE vm vm_eq(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
INLINE vm vm_ne(vf a, vf b) { /* true when unordered */
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ);
}
INLINE vm vm_unordered(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}
INLINE vm vi_eq(vi a, vi b) {
    return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b);
}
INLINE vm vi_ge(vi a, vi b) { /* signed */
    return _mm512_cmpge_epi32_mask((__m512i)a, (__m512i)b);
}
/* p[index] where m, else `other`. Reads memory only where m. */
INLINE vf vf_gather(const float *p, vi index, vm m, vf other) {
    return _mm512_mask_i32gather_ps(other, m, (__m512i)index, p, 4);
}
INLINE vm vm_and(vm a, vm b) {
    return (vm)(a & b);
}
INLINE vm vm_or(vm a, vm b) {
    return (vm)(a | b);
}
INLINE bool vm_any(vm a) {
    return a != 0;
}
INLINE vf vf_select(vm m, vf a, vf b) { /* m ? a : b */
    return _mm512_mask_blend_ps(m, b, a);
}
INLINE vi vi_select(vm m, vi a, vi b) {
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
}
INLINE float vf_sum(vf a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
INLINE float vf_hmax(vf a) { /* any order; NaN is not kept */
    return _mm512_reduce_max_ps(a);
}

/* 32 x 32 -> 64 bit products with a constant, for Philox. */
INLINE void vi_mulhilo(vi a, uint32_t constant, vi *hi, vi *lo) {
    __m512i x = (__m512i)a, m = _mm512_set1_epi64((int64_t)constant);
    __m512i even = _mm512_mul_epu32(x, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
    *hi = (vi)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    *lo = (vi)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}
/* out[4 lane + k] = word k of lane. */
INLINE void vi_store_interleaved4(int32_t *out, vi a, vi b, vi c, vi d) {
    __m512i ab0 = _mm512_unpacklo_epi32((__m512i)a, (__m512i)b);
    __m512i ab1 = _mm512_unpackhi_epi32((__m512i)a, (__m512i)b);
    __m512i cd0 = _mm512_unpacklo_epi32((__m512i)c, (__m512i)d);
    __m512i cd1 = _mm512_unpackhi_epi32((__m512i)c, (__m512i)d);
    __m512i r[4] = {_mm512_unpacklo_epi64(ab0, cd0), _mm512_unpackhi_epi64(ab0, cd0),
                    _mm512_unpacklo_epi64(ab1, cd1), _mm512_unpackhi_epi64(ab1, cd1)};
    /* 128-bit lane q of r[k] holds block 4 q + k. */
    __m512i p = _mm512_shuffle_i32x4(r[0], r[1], 0x88), q = _mm512_shuffle_i32x4(r[2], r[3], 0x88);
    __m512i s = _mm512_shuffle_i32x4(r[0], r[1], 0xdd), t = _mm512_shuffle_i32x4(r[2], r[3], 0xdd);
    /* p: blocks 0 8 1 9; q: 2 10 3 11; s: 4 12 5 13; t: 6 14 7 15. */
    _mm512_storeu_si512(out, _mm512_shuffle_i32x4(p, q, 0x88));
    _mm512_storeu_si512(out + 16, _mm512_shuffle_i32x4(s, t, 0x88));
    _mm512_storeu_si512(out + 32, _mm512_shuffle_i32x4(p, q, 0xdd));
    _mm512_storeu_si512(out + 48, _mm512_shuffle_i32x4(s, t, 0xdd));
}

#endif
