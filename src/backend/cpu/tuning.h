/* The facts that the choice of kernels depends on besides the problem: the processor and
 * measurements. A test can set other values. */
#ifndef WEFTI_CPU_TUNING_H
#define WEFTI_CPU_TUNING_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/isa.h"

/* Bytes of a core's second-level cache. The block sizes of products are made for it. */
enum { WEFTI_CPU_L2_BYTES = 2 << 20 };

typedef struct wefti_cpu_tuning {
    int64_t l2_bytes;
    enum { WEFTI_BF16_MEASURED, WEFTI_BF16_SLOWER, WEFTI_BF16_FASTER } bf16; /* than f32 */
    /* Use kernels of other processors, in plain C (emulated.h). The fields below apply to them. */
    bool emulated;
    bool has[WEFTI_ISAS]; /* forms that count as available */
    bool has_avx512_bf16; /* WEFTI_ISA_AVX512 multiplies bf16 */
    const struct wefti_gemm_forms *gemm;
    const struct wefti_kernels *kernels[WEFTI_ISAS];
} wefti_cpu_tuning;

/* Uses `tuning` from now on; the caller keeps its memory. NULL: the processor's own values again.
 * For tests, while no other thread uses the backend. */
void wefti_cpu_tune(const wefti_cpu_tuning *tuning);
/* NULL: the processor's own values are in use. */
const wefti_cpu_tuning *wefti_cpu_tuned(void);

#endif
