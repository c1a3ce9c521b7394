/* The kernels of AVX2, AVX-512 (with and without its bf16 dot products) and AMX in plain C. They
 * are the same sources, compiled with WEFTI_EMULATED. They form a separate library (weft_emulated),
 * which only tests link. */
#ifndef WEFTI_CPU_EMULATED_H
#define WEFTI_CPU_EMULATED_H

#include "backend/cpu/tuning.h"

extern const struct wefti_gemm_forms wefti_gemm_forms_emulated; /* those of matrix products */
extern const wefti_cpu_tuning wefti_cpu_emulated;

#endif
