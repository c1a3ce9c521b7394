/* Prototypes of this build's kernels, from the one list. */
#ifndef WEFTI_CPU_KERNELS_TABLE_H
#define WEFTI_CPU_KERNELS_TABLE_H

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/simd/simd.h"

#define X(name, args) void KERNEL(name)(wefti_pool * pool, const args *a);
#include "backend/cpu/kernels/kernels.def"
#undef X

#endif
