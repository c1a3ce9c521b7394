/* Vectorised kernels: pure functions on raw memory, chosen at run time by instruction set.
 *
 * Every kernel has the form  kernel(pool, &args).  The sources in vector/ are compiled once for
 * each instruction set (kernels.cmake). Each build exports one table of function pointers.
 *
 * Contract of all kernels:
 * - Memory is row-major and dense unless strides are given. Sizes may be 0. Data needs only the
 * alignment of its elements.
 * - An operand of type wefti_src or wefti_dst is f32 or bf16 (other types where a comment says so).
 * Arithmetic is f32.
 * - A result does not depend on the number of threads. Only the problem decides tasks and reduction
 * blocks, and blocks are added in a fixed order. Results of two instruction sets may differ in the
 * last bits.
 * - Kernels do not allocate. A kernel that needs scratch reports the size
 * (wefti_..._workspace_bytes) and takes the scratch in `workspace`, aligned to 64 bytes. Two calls
 * on one pool never overlap (base/pool.h).
 * - If a comment says "in place", an output may be exactly the memory of an input of the same
 * element type. Any other overlap is forbidden. */
#ifndef WEFTI_CPU_KERNELS_H
#define WEFTI_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/data.h"
#include "backend/cpu/kernels/elementwise.h"
#include "backend/cpu/kernels/moe.h"
#include "backend/cpu/kernels/norm.h"
#include "backend/cpu/kernels/optimizer.h"
#include "backend/cpu/kernels/reduce.h"
#include "backend/cpu/types.h"
#include "base/pool.h"

typedef struct wefti_kernels {
#define X(name, args) void (*name)(wefti_pool * pool, const args *a);
#include "backend/cpu/kernels/kernels.def"
#undef X
    const char *isa; /* "plain", "avx2", "avx512", "amx" */
} wefti_kernels;

/* The table of one instruction set; NULL if this build or this processor lacks it. */
const wefti_kernels *wefti_kernels_of(wefti_isa isa);
/* AMX: attention rounds probabilities and their gradients to bf16 if its operands are bf16. */
/* The table of the best instruction set, or of the one that WEFT_ISA names (isa.h). Never NULL. */
const wefti_kernels *wefti_kernels_best(void);

#endif
