/* Vectorised kernels: pure functions on raw memory, chosen at run time by instruction set.
 *
 * Every kernel has the form  kernel(pool, &args).  The sources in vector/ are
 * compiled once per instruction set (kernels.cmake); each build exports one table of function
 * pointers.
 *
 * Contract of all kernels:
 * - Memory is row-major and dense unless strides are given. Sizes may be 0. No alignment beyond the
 * element's.
 * - An operand of type wefti_src / wefti_dst is f32 or bf16 (more where said); arithmetic is f32.
 * - A result does not depend on the number of threads: tasks and reduction blocks are cut by the
 * problem, and blocks are added in a fixed order. It may differ in the last bits between
 * instruction sets.
 * - Nothing is allocated; a kernel that needs scratch says how much (wefti_..._workspace_bytes) and
 * takes it in `workspace`, aligned to 64 bytes. Two calls on one pool never overlap (base/pool.h).
 * - Outputs may be the very same memory as an input of the same element type where the comment says
 *   "in place"; any other overlap is forbidden. */
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

/* The table of one instruction set; NULL when this build or this processor lacks it. */
const wefti_kernels *wefti_kernels_of(wefti_isa isa);
/* AMX: attention rounds probabilities and their gradients to bf16 where its operands are bf16. */
/* The table of the best one (or of the one named by WEFT_ISA: isa.h). Never NULL. */
const wefti_kernels *wefti_kernels_best(void);

#endif
