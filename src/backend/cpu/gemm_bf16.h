/* bf16 in the order of AMX tiles (gemm/amx.c says which), in which all kernels that multiply bf16
 * have their panels of B. For files compiled for AVX-512 with bf16, after VL 16 and vector.h.
 */
#ifndef WEFTI_BACKEND_CPU_GEMM_BF16_H
#define WEFTI_BACKEND_CPU_GEMM_BF16_H

#include <immintrin.h>

enum {
    SIDE = 16,           /* rows and columns of a tile of sums */
    DEPTH = 32,          /* lines of k of a tile */
    TILE = SIDE * DEPTH, /* elements of one: 1 KiB */
    EDGE = 2 * SIDE,     /* rows and columns of the register tile */
};

/* Two lines of k side by side: pairs[0] of columns 0 to 15, pairs[1] of the others. */
INLINE void interleave(__m512i even, __m512i odd, __m512i pairs[2]) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
    pairs[0] = _mm512_permutex2var_epi64(low, first, high);
    pairs[1] = _mm512_permutex2var_epi64(low, second, high);
}

#endif
