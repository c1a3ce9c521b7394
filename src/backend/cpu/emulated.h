/* The kernels of AVX2, AVX-512 with and without its dot products of bf16, and AMX in plain C: the
 * same sources, compiled with WEFTI_EMULATED. A library of their own holds them (weft_emulated),
 * which only tests link. */
#ifndef WEFTI_CPU_EMULATED_H
#define WEFTI_CPU_EMULATED_H

#include "backend/cpu/tuning.h"

extern const wefti_cpu_tuning wefti_cpu_emulated;

#endif
