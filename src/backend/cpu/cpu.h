/* The interface of the CPU backend: its table, and facts about the processor that other parts
 * report. */
#ifndef WEFTI_CPU_H
#define WEFTI_CPU_H

#include "backend/backend.h"
#include "backend/cpu/isa.h"

extern const wefti_backend wefti_backend_cpu;

/* Measures the rate of a product of square matrices of this dtype, with the kernel that training
 * uses. The result is in floating-point operations a second. Takes some tenths of a second. */
weft_status wefti_cpu_product_rate(weft_dtype dtype, wefti_pool *pool,
                                   double *flops_per_second) WEFT_CHECKED;

/* Why the oneDNN library found at run time cannot be used: it may be a different build from the one
 * that weft was compiled against. NULL: weft uses it, or was built without it. Static storage. */
const char *wefti_onednn_unused(void);

#endif
