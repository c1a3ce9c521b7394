/* What matrix kernels and attention on AMX tiles share. For files compiled for AMX, after VL 16 and
 * vector.h. */
#ifndef WEFTI_BACKEND_CPU_GEMM_AMX_H
#define WEFTI_BACKEND_CPU_GEMM_AMX_H

#include "backend/cpu/gemm_bf16.h"

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
