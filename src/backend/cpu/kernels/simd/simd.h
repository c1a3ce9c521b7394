/* A thin layer of vectors over the three instruction sets. Each build of a kernel source includes
 * it once, after WEFTI_BUILD_PLAIN, _AVX2 or _AVX512 was set (kernels.cmake).
 *
 * vf holds VL floats, vi the same number of 32-bit integers; vm is a mask. `_n` forms touch only
 * the first n elements (0 <= n <= VL) and load 0 into the rest. Sums across lanes follow a fixed
 * tree. */
#ifndef WEFTI_CPU_KERNELS_SIMD_H
#define WEFTI_CPU_KERNELS_SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if !defined(WEFTI_EMULATED) && (defined(WEFTI_BUILD_AVX512) || defined(WEFTI_BUILD_AVX2))
#include <immintrin.h>
#endif

#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/types.h"
#include "tensor/tensor.h"

#if defined(WEFTI_BUILD_AVX512) && defined(WEFTI_EMULATED)
#define KERNEL_ISA avx512_emulated
#elif defined(WEFTI_BUILD_AVX2) && defined(WEFTI_EMULATED)
#define KERNEL_ISA avx2_emulated
#elif defined(WEFTI_BUILD_AVX512)
#define KERNEL_ISA avx512
#elif defined(WEFTI_BUILD_AVX2)
#define KERNEL_ISA avx2
#elif defined(WEFTI_BUILD_PLAIN)
#define KERNEL_ISA plain
#else
#error "kernel sources are compiled through kernels.cmake"
#endif
#define KERNEL_PASTE_(a, b, c) a##b##_##c
#define KERNEL_PASTE(a, b, c) KERNEL_PASTE_(a, b, c)
#define KERNEL(name) KERNEL_PASTE(wefti_kernel_, name, KERNEL_ISA)

#define INLINE static inline __attribute__((always_inline, unused))

#if defined(WEFTI_EMULATED)
#include "backend/cpu/kernels/simd/simd_plain.h"
#elif defined(WEFTI_BUILD_AVX512)
#include "backend/cpu/kernels/simd/simd_avx512.h"
#elif defined(WEFTI_BUILD_AVX2)
#include "backend/cpu/kernels/simd/simd_avx2.h"
#else
#include "backend/cpu/kernels/simd/simd_plain.h"
#endif

INLINE vf vf_zero(void) {
    return vf_set1(0.0f);
}
INLINE vf vf_abs(vf a) {
    return vf_from_bits(vf_bits(a) & vi_set1(0x7fffffff));
}
INLINE vf vf_neg(vf a) {
    return vf_from_bits(vf_bits(a) ^ vi_set1((int32_t)0x80000000u));
}
/* max and min that return NaN when either operand is NaN. */
INLINE vf vf_max_nan(vf a, vf b) {
    return vf_select(vm_unordered(a, a), a, vf_max(a, b)); /* vf_max gives b when b is NaN */
}
INLINE vf vf_min_nan(vf a, vf b) {
    return vf_select(vm_unordered(a, a), a, vf_min(a, b));
}

/* bf16 <-> f32, round to nearest even; NaN stays a quiet NaN. */
INLINE vi vf_round_bits(vf a) {
    vi bits = vf_bits(a);
    vi rounded = bits + vi_set1(0x7fff) + (vi_shr(bits, 16) & vi_set1(1));
    return vi_select(vm_unordered(a, a), bits | vi_set1(0x400000), rounded);
}
INLINE vf vf_round_bf16(vf a) {
    return vf_from_bits(vf_round_bits(a) & vi_set1((int32_t)0xffff0000u));
}

INLINE vf load_bf16(const uint16_t *p) {
    return vf_from_bits(vi_shl(vi_widen_u16(p), 16));
}
INLINE vf load_bf16_n(const uint16_t *p, int64_t n) {
    return vf_from_bits(vi_shl(vi_widen_u16_n(p, n), 16));
}
INLINE void store_bf16(uint16_t *p, vf a) {
    vi_narrow_high(p, vf_round_bits(a));
}
INLINE void store_bf16_n(uint16_t *p, vf a, int64_t n) {
    vi_narrow_high_n(p, vf_round_bits(a), n);
}

/* Elements i .. i + n - 1 of an f32 or bf16 operand; n is VL except at a row's end. */
INLINE vf load(wefti_src x, int64_t i, int64_t n) {
    if (x.dtype == WEFT_F32) {
        const float *p = (const float *)x.data + i;
        return n == VL ? vf_load(p) : vf_load_n(p, n);
    }
    const uint16_t *p = (const uint16_t *)x.data + i;
    return n == VL ? load_bf16(p) : load_bf16_n(p, n);
}
INLINE void store(wefti_dst y, int64_t i, vf a, int64_t n) {
    if (y.dtype == WEFT_F32) {
        float *p = (float *)y.data + i;
        if (n == VL)
            vf_store(p, a);
        else
            vf_store_n(p, a, n);
        return;
    }
    uint16_t *p = (uint16_t *)y.data + i;
    if (n == VL)
        store_bf16(p, a);
    else
        store_bf16_n(p, a, n);
}
INLINE vf load_f32(const float *p, int64_t n) {
    return n == VL ? vf_load(p) : vf_load_n(p, n);
}
INLINE void store_f32(float *p, vf a, int64_t n) {
    if (n == VL)
        vf_store(p, a);
    else
        vf_store_n(p, a, n);
}

/* Scalars of either type. */
INLINE float load1(wefti_src x, int64_t i) {
    return x.dtype == WEFT_F32 ? ((const float *)x.data)[i]
                               : wefti_bf16_to_f32(((const uint16_t *)x.data)[i]);
}
INLINE void store1(wefti_dst y, int64_t i, float a) {
    if (y.dtype == WEFT_F32)
        ((float *)y.data)[i] = a;
    else
        ((uint16_t *)y.data)[i] = wefti_f32_to_bf16(a);
}
INLINE int64_t load_id(wefti_src ids, int64_t i) {
    switch (ids.dtype) {
    case WEFT_I64:
        return ((const int64_t *)ids.data)[i];
    case WEFT_U16:
        return ((const uint16_t *)ids.data)[i];
    case WEFT_U8:
        return ((const uint8_t *)ids.data)[i];
    default:
        return ((const int32_t *)ids.data)[i];
    }
}
INLINE wefti_src in_at(wefti_src x, int64_t i) {
    return (wefti_src){(const char *)x.data + i * (x.dtype == WEFT_F32 ? 4 : 2), x.dtype};
}
INLINE wefti_dst out_at(wefti_dst y, int64_t i) {
    return (wefti_dst){(char *)y.data + i * (y.dtype == WEFT_F32 ? 4 : 2), y.dtype};
}
INLINE wefti_src as_in(wefti_dst y) {
    return (wefti_src){y.data, y.dtype};
}

/* for (i = 0, VL, 2 VL, ...), where n is the number of elements of the step */
#define FOR_VECTORS(i, n, count)                                                                   \
    for (int64_t i = 0, n; i < (count) && (n = (count)-i < VL ? (count)-i : VL, 1); i += VL)

/* Searches from element i on, in runs of 4 VL elements. Returns the begin of the first run that has
 * an element greater than `least`, or a NaN. Without such a run, returns the position where fewer
 * than 4 VL elements are left before `end`. */
enum { SKIP = 4 * VL };
INLINE int64_t skip_lower(wefti_src x, int64_t i, int64_t end, float least) {
    const vf limit = vf_set1(least);
    for (; i + SKIP <= end; i += SKIP) {
        const vf low = vf_max_nan(load(x, i, VL), load(x, i + VL, VL));
        const vf high = vf_max_nan(load(x, i + 2 * VL, VL), load(x, i + 3 * VL, VL));
        const vf greatest = vf_max_nan(low, high);
        if (vm_any(vm_or(vm_lt(limit, greatest), vm_unordered(greatest, greatest)))) break;
    }
    return i;
}

INLINE int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
INLINE int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#include "backend/cpu/kernels/simd/simd_math.h"
#include "backend/cpu/kernels/simd/simd_philox.h"
#include "backend/cpu/kernels/simd/simd_transpose.h"

#endif
