/* bf16 in the order of AMX tiles (gemm_amx.c says which): what matrix kernels and attention on
 * tiles share. For files compiled for AMX, after VL 16 and gemm_vector.h. */
#ifndef WEFTI_BACKEND_CPU_GEMM_AMX_H
#define WEFTI_BACKEND_CPU_GEMM_AMX_H

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

/* All eight, also those that are not used: each was filled when the thread was last switched to,
 * though with zeros, and takes a physical register until it is zeroed. */
INLINE void zero_registers(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

/* The next lines of what is multiplied next. */
INLINE void fetch_ahead(wefti_gemm_ahead *ahead, const int lines) {
    if (ahead->runs == 0) return;
    UNROLL for (int line = 0; line < lines; line++) __builtin_prefetch(ahead->at + line * 64, 0, 2);
    ahead->at += lines * 64;
    if (ahead->at < ahead->start + ahead->bytes) return;
    ahead->start += ahead->stride;
    ahead->at = ahead->start;
    ahead->runs--;
}

#endif
