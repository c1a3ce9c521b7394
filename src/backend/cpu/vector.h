/* Vectors of VL floats, for kernels that are compiled once for each isa. The including file defines
 * VL.
 *
 * The code uses GNU vector extensions (gcc and clang) instead of intrinsics. So there is one source
 * for SSE2, NEON, AVX2 and AVX-512. Files are compiled with contraction, so that a * b + c is one
 * fused operation if the isa has it. */
#include <stdint.h>
#include <string.h>

#if defined(WEFTI_EMULATED)
#include <math.h>
#elif defined(__FMA__)
#include <immintrin.h>
#endif

#include "weft/types.h"

/* Kernels of AVX2, AVX-512 and AMX are also compiled in plain C, with WEFTI_EMULATED and separate
 * names. So tests run every path on every processor (emulated.h). */
#if defined(WEFTI_EMULATED)
#define WEFTI_FORM(name) name##_emulated
#else
#define WEFTI_FORM(name) name
#endif

#define INLINE static inline __attribute__((always_inline, unused))
#define UNROLL _Pragma("GCC unroll 16")
/* A copy of a kernel for each possible number of rows of a register tile of vectors. */
/* clang-format off */
#define EACH_ROW_COUNT(CASE)                                                                       \
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)                                        \
    CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
/* clang-format on */

typedef float vfloat __attribute__((vector_size(VL * 4)));
typedef int32_t vint __attribute__((vector_size(VL * 4)));
typedef uint32_t vuint __attribute__((vector_size(VL * 4)));
typedef uint16_t vhalf __attribute__((vector_size(VL * 2)));

INLINE vfloat vload(const float *p) {
    vfloat v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vstore(float *p, vfloat v) {
    memcpy(p, &v, sizeof v);
}
INLINE vfloat vsplat(float x) {
    return x - (vfloat){0};
}

/* a b + c, rounded once if the isa can. Compilers fuse the expression a * b + c in some copies of a
 * loop and not in others. Then bits would depend on the number of rows of a tile. */
INLINE vfloat vfma(vfloat a, vfloat b, vfloat c) {
#if defined(WEFTI_EMULATED)
    for (int i = 0; i < VL; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#elif VL == 16 && defined(__AVX512F__)
    return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VL == 8 && defined(__FMA__)
    return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* gcc widens halves of a vector one by one, and joins them. */
INLINE vfloat from_bf16(vhalf h) {
#if !defined(WEFTI_EMULATED) && VL == 16 && defined(__AVX512F__)
    return (vfloat)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif !defined(WEFTI_EMULATED) && VL == 8 && defined(__AVX2__)
    return (vfloat)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vfloat)(__builtin_convertvector(h, vuint) << 16);
#endif
}
/* Round to nearest even; a NaN stays a NaN. */
INLINE vhalf to_bf16(vfloat v) {
    vuint bits = (vuint)v;
    vuint rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vuint nan = (vuint)(v != v);
    return __builtin_convertvector((nan & (bits >> 16 | 0x40)) | (~nan & rounded), vhalf);
}

/* VL elements of an f32 or bf16 row. */
INLINE vfloat load_row(weft_dtype dtype, const void *row, int64_t index) {
    if (dtype == WEFT_F32) return vload((const float *)row + index);
    vhalf h;
    memcpy(&h, (const uint16_t *)row + index, sizeof h);
    return from_bf16(h);
}
INLINE void store_row(weft_dtype dtype, void *row, int64_t index, vfloat v) {
    if (dtype == WEFT_F32) {
        vstore((float *)row + index, v);
    } else {
        vhalf h = to_bf16(v);
        memcpy((uint16_t *)row + index, &h, sizeof h);
    }
}
/* The same for the first `count` < VL lanes; the others read as zero. */
INLINE vfloat load_part(weft_dtype dtype, const void *row, int64_t index, int64_t count) {
    if (dtype == WEFT_F32) {
        vfloat v = {0};
        memcpy(&v, (const float *)row + index, (size_t)count * 4);
        return v;
    }
    vhalf h = {0};
    memcpy(&h, (const uint16_t *)row + index, (size_t)count * 2);
    return from_bf16(h);
}
INLINE void store_part(weft_dtype dtype, void *row, int64_t index, int64_t count, vfloat v) {
    if (dtype == WEFT_F32) {
        memcpy((float *)row + index, &v, (size_t)count * 4);
    } else {
        vhalf h = to_bf16(v);
        memcpy((uint16_t *)row + index, &h, (size_t)count * 2);
    }
}
/* Any stride, lane by lane. */
INLINE vfloat load_strided(weft_dtype dtype, const void *row, int64_t index, int64_t stride,
                           int64_t count) {
    vfloat v = {0};
    for (int64_t lane = 0; lane < count; lane++)
        if (dtype == WEFT_F32) {
            v[lane] = ((const float *)row)[(index + lane) * stride];
        } else {
            uint32_t bits = (uint32_t)((const uint16_t *)row)[(index + lane) * stride] << 16;
            float f;
            memcpy(&f, &bits, sizeof f);
            v[lane] = f;
        }
    return v;
}
INLINE void store_strided(weft_dtype dtype, void *row, int64_t index, int64_t stride, int64_t count,
                          vfloat v) {
    vhalf h = to_bf16(v);
    for (int64_t lane = 0; lane < count; lane++)
        if (dtype == WEFT_F32)
            ((float *)row)[(index + lane) * stride] = v[lane];
        else
            ((uint16_t *)row)[(index + lane) * stride] = h[lane];
}

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vint){__VA_ARGS__})
#endif

/* rows[i][j] becomes rows[j][i], in log2(VL) rounds. Each round exchanges halves of pairs of rows
 * at one distance. */
#if VL == 4
#define INTERLEAVE_1_LOW 0, 4, 2, 6
#define INTERLEAVE_1_HIGH 1, 5, 3, 7
#define INTERLEAVE_2_LOW 0, 1, 4, 5
#define INTERLEAVE_2_HIGH 2, 3, 6, 7
#elif VL == 8
#define INTERLEAVE_1_LOW 0, 8, 2, 10, 4, 12, 6, 14
#define INTERLEAVE_1_HIGH 1, 9, 3, 11, 5, 13, 7, 15
#define INTERLEAVE_2_LOW 0, 1, 8, 9, 4, 5, 12, 13
#define INTERLEAVE_2_HIGH 2, 3, 10, 11, 6, 7, 14, 15
#define INTERLEAVE_4_LOW 0, 1, 2, 3, 8, 9, 10, 11
#define INTERLEAVE_4_HIGH 4, 5, 6, 7, 12, 13, 14, 15
#elif VL == 16
#define INTERLEAVE_1_LOW 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define INTERLEAVE_1_HIGH 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define INTERLEAVE_2_LOW 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define INTERLEAVE_2_HIGH 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define INTERLEAVE_4_LOW 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define INTERLEAVE_4_HIGH 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define INTERLEAVE_8_LOW 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define INTERLEAVE_8_HIGH 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#endif
#define TRANSPOSE_ROUND(distance, low_lanes, high_lanes)                                           \
    UNROLL for (int i = 0; i < VL; i++) if (!(i & (distance))) {                                   \
        vfloat low = SHUFFLE(rows[i], rows[i + (distance)], low_lanes);                            \
        rows[i + (distance)] = SHUFFLE(rows[i], rows[i + (distance)], high_lanes);                 \
        rows[i] = low;                                                                             \
    }
INLINE void transpose(vfloat rows[VL]) {
    TRANSPOSE_ROUND(1, INTERLEAVE_1_LOW, INTERLEAVE_1_HIGH)
    TRANSPOSE_ROUND(2, INTERLEAVE_2_LOW, INTERLEAVE_2_HIGH)
#if VL >= 8
    TRANSPOSE_ROUND(4, INTERLEAVE_4_LOW, INTERLEAVE_4_HIGH)
#endif
#if VL >= 16
    TRANSPOSE_ROUND(8, INTERLEAVE_8_LOW, INTERLEAVE_8_HIGH)
#endif
}
