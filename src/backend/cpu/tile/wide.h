/* Operations on 16 floats, 16 pairs of bf16 numbers or 32 bf16 numbers. Each is one AVX-512
 * instruction that the bf16 and AMX kernels need. With WEFTI_EMULATED the functions are plain C
 * that gives the same bits. So these kernels run on any processor.
 *
 * Source of the semantics: Intel 64 and IA-32 Architectures Software Developer's Manual, volume
 * 2. */
#ifndef WEFTI_CPU_TILE_WIDE_H
#define WEFTI_CPU_TILE_WIDE_H

#include <math.h>
#include <stdbool.h>

#include "backend/cpu/tile/emulated.h"
#include "backend/cpu/vector.h"

typedef uint16_t mask16; /* one bit for each lane */
typedef uint32_t mask32;

INLINE mask16 first_16(int64_t count) {
    return (mask16)(count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}
INLINE mask32 first_32(int64_t count) {
    return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : ((mask32)1 << count) - 1;
}

INLINE vint vload_int(const void *p) {
    vint v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vstore_int(void *p, vint v) {
    memcpy(p, &v, sizeof v);
}

#if defined(WEFTI_EMULATED)

INLINE vfloat vload_masked(mask16 mask, const float *p) {
    vfloat v = {0};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) v[i] = p[i];
    return v;
}
INLINE vint vload_masked_bf16(mask32 mask, const uint16_t *p) {
    uint16_t values[32] = {0};
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) values[i] = p[i];
    return vload_int(values);
}
INLINE vfloat vkeep(mask16 mask, vfloat v) {
    for (int i = 0; i < 16; i++)
        if (!(mask >> i & 1)) v[i] = 0.0f;
    return v;
}
INLINE vfloat vfms(vfloat a, vfloat b, vfloat c) {
    for (int i = 0; i < 16; i++) a[i] = fmaf(a[i], b[i], -c[i]);
    return a;
}
INLINE vfloat vmax(vfloat a, vfloat b) {
    for (int i = 0; i < 16; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
INLINE vfloat vmax_masked(mask16 mask, vfloat a, vfloat b) {
    for (int i = 0; i < 16; i++) a[i] = (mask >> i & 1) && a[i] > b[i] ? a[i] : b[i];
    return a;
}
INLINE bool vany_greater(vfloat a, vfloat b) {
    for (int i = 0; i < 16; i++)
        if (a[i] > b[i]) return true;
    return false;
}
INLINE float vsum(vfloat v) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) v[i] += v[i + width];
    return v[0];
}
INLINE float vtop(vfloat v) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) v[i] = v[i] > v[i + width] ? v[i] : v[i + width];
    return v[0];
}
INLINE vfloat vfraction(vfloat x) {
    for (int i = 0; i < 16; i++) x[i] = isinf(x[i]) ? 0.0f : x[i] - floorf(x[i]);
    return x;
}
INLINE vfloat vscale(vfloat a, vfloat power) {
    for (int i = 0; i < 16; i++) {
        const float whole = floorf(power[i]);
        a[i] = isnan(whole) ? whole
                            : ldexpf(a[i], (int)(whole > 1000.0f    ? 1000.0f
                                                 : whole < -1000.0f ? -1000.0f
                                                                    : whole));
    }
    return a;
}
INLINE uint16_t round_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
    if (!(bits & 0x7f800000)) return (uint16_t)(bits >> 16 & 0x8000); /* zero, subnormal */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
INLINE vint vround_bf16(vfloat low, vfloat high) {
    uint16_t values[32];
    for (int i = 0; i < 16; i++) {
        values[i] = round_bf16(low[i]);
        values[i + 16] = round_bf16(high[i]);
    }
    return vload_int(values);
}
INLINE void interleave(vint even, vint odd, vint pairs[2]) {
    uint16_t a[32], b[32], out[64];
    vstore_int(a, even);
    vstore_int(b, odd);
    for (int i = 0; i < 32; i++) {
        out[2 * i] = a[i];
        out[2 * i + 1] = b[i];
    }
    pairs[0] = vload_int(out);
    pairs[1] = vload_int(out + 32);
}
INLINE vfloat vdot(vfloat sums, vint left, vint right) {
    uint16_t a[32], b[32];
    float c[16];
    vstore_int(a, left);
    vstore_int(b, right);
    memcpy(c, &sums, sizeof c);
    wefti_emulated_vdpbf16ps(c, a, b);
    memcpy(&sums, c, sizeof c);
    return sums;
}

#else

#include <immintrin.h>

INLINE vfloat vload_masked(mask16 mask, const float *p) {
    return (vfloat)_mm512_maskz_loadu_ps(mask, p);
}
INLINE vint vload_masked_bf16(mask32 mask, const uint16_t *p) {
    return (vint)_mm512_maskz_loadu_epi16(mask, p);
}
/* Keeps the lanes of the mask; sets the others to zero. */
INLINE vfloat vkeep(mask16 mask, vfloat v) {
    return (vfloat)_mm512_maskz_mov_ps(mask, (__m512)v);
}
INLINE vfloat vfms(vfloat a, vfloat b, vfloat c) { /* a b - c, rounded once */
    return (vfloat)_mm512_fmsub_ps((__m512)a, (__m512)b, (__m512)c);
}
INLINE vfloat vmax(vfloat a, vfloat b) { /* b if either is NaN */
    return (vfloat)_mm512_max_ps((__m512)a, (__m512)b);
}
INLINE vfloat vmax_masked(mask16 mask, vfloat a, vfloat b) { /* b in lanes without a bit */
    return (vfloat)_mm512_mask_max_ps((__m512)b, mask, (__m512)a, (__m512)b);
}
INLINE bool vany_greater(vfloat a, vfloat b) {
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
}
INLINE float vsum(vfloat v) { /* adds lanes 8, 4, 2 and 1 apart, in this order */
    return _mm512_reduce_add_ps((__m512)v);
}
INLINE float vtop(vfloat v) {
    return _mm512_reduce_max_ps((__m512)v);
}
INLINE vfloat vfraction(vfloat x) { /* x minus the next lower integer */
    return (vfloat)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
INLINE vfloat vscale(vfloat a, vfloat power) { /* a 2^floor(power) */
    return (vfloat)_mm512_scalef_ps((__m512)a, (__m512)power);
}
/* Converts to 32 bf16 numbers, with `low` in the first 16. Rounds to nearest even; subnormal
 * numbers become zero. */
INLINE vint vround_bf16(vfloat low, vfloat high) {
    return (vint)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
/* Interleaves two rows of 32 numbers: each pair has one number from each row. pairs[0] has the
 * first 16 pairs, pairs[1] the others. */
INLINE void interleave(vint even, vint odd, vint pairs[2]) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i low = _mm512_unpacklo_epi16((__m512i)even, (__m512i)odd);
    const __m512i high = _mm512_unpackhi_epi16((__m512i)even, (__m512i)odd);
    pairs[0] = (vint)_mm512_permutex2var_epi64(low, first, high);
    pairs[1] = (vint)_mm512_permutex2var_epi64(low, second, high);
}
/* Adds the products of 16 pairs of bf16 numbers to 16 sums: VDPBF16PS. */
INLINE vfloat vdot(vfloat sums, vint left, vint right) {
    return (vfloat)_mm512_dpbf16_ps((__m512)sums, (__m512bh)left, (__m512bh)right);
}

#endif

#endif
