/* The parts that matrix kernels on AMX tiles share. For files that define VL as 16. */
#ifndef WEFTI_BACKEND_CPU_GEMM_AMX_H
#define WEFTI_BACKEND_CPU_GEMM_AMX_H

#include "backend/cpu/gemm/kernel_table.h"
#include "backend/cpu/tile/tile.h"

/* Zeroes all eight registers, including unused ones. At each switch to the thread the system filled
 * every register, even if with zeros. A filled register takes a physical register until it is
 * zeroed. */
INLINE void zero_registers(void) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_ZERO(4);
    TILE_ZERO(5);
    TILE_ZERO(6);
    TILE_ZERO(7);
}

/* Prefetches the next `lines` cache lines of the memory that is multiplied next. */
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
