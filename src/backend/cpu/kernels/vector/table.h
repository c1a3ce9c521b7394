/* Prototypes of this build's kernels, from the one list, and what files of kernels share. */
#ifndef WEFTI_CPU_KERNELS_TABLE_H
#define WEFTI_CPU_KERNELS_TABLE_H

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/simd/simd.h"

#define X(name, args) void KERNEL(name)(wefti_pool * pool, const args *a);
#include "backend/cpu/kernels/kernels.def"
#undef X

/* Rows of large tables lie in no cache, and far from each other. So a row is asked for while those
 * before it are worked on, and many are under way at once. */
enum { ROWS_AHEAD = 16 };

#endif
