/* Transposing 8 x 8 blocks of 32-bit words. */
#ifndef WEFTI_CPU_KERNELS_SIMD_TRANSPOSE_H
#define WEFTI_CPU_KERNELS_SIMD_TRANSPOSE_H

#include "backend/cpu/kernels/simd/simd.h"

/* y[j][i] = x[i][j]; xs and ys are the bytes from row to row. */
INLINE void transpose8(const char *x, int64_t xs, char *y, int64_t ys) {
#if !defined(WEFTI_EMULATED) && (defined(WEFTI_BUILD_AVX2) || defined(WEFTI_BUILD_AVX512))
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps((const float *)(const void *)(x + i * xs));
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++) _mm256_storeu_ps((float *)(void *)(y + i * ys), t[i]);
#else
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 8; i++) memcpy(y + j * ys + i * 4, x + i * xs + j * 4, 4);
#endif
}

/* y[c][r] = x[r][c] for rows x cols floats, both multiples of 8; strides in floats. */
static void __attribute__((unused))
transpose_f32(const float *x, int64_t xs, int64_t rows, int64_t cols, float *y, int64_t ys) {
    for (int64_t r = 0; r < rows; r += 8)
        for (int64_t c = 0; c < cols; c += 8)
            transpose8((const char *)(x + r * xs + c), xs * 4, (char *)(y + c * ys + r), ys * 4);
}

#endif
