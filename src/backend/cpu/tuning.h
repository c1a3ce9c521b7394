/* The facts that the choice of kernels depends on besides the problem: the processor's kernels, and
 * a measurement. A test can set other values. Cores and caches are in base/tuning.h. */
#ifndef WEFTI_CPU_TUNING_H
#define WEFTI_CPU_TUNING_H

#include <stdbool.h>

#include "backend/cpu/isa.h"

/* Products in bf16, compared with f32. */
typedef enum wefti_bf16_speed {
    WEFTI_BF16_MEASURED,
    WEFTI_BF16_SLOWER,
    WEFTI_BF16_FASTER
} wefti_bf16_speed;

typedef struct wefti_cpu_tuning {
    wefti_bf16_speed bf16;
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
