/* Selects the vector instructions of this process's kernels.
 *
 * A kernel with several forms (plain C, AVX2 with FMA, AVX-512, AMX tiles) takes the form as an
 * argument. So tests can run all forms that the processor has.
 *
 * WEFT_ISA=plain|avx2|avx512|avx512_bf16|amx in the environment lowers the choice. A form that the
 * processor lacks is never chosen. avx512_bf16 is avx512 with its dot products of bf16. AMX
 * multiplies bf16, and f32 as sums of bf16 numbers. All other work on an AMX processor runs as
 * AVX-512. */
#ifndef WEFTI_BACKEND_CPU_ISA_H
#define WEFTI_BACKEND_CPU_ISA_H

#include <stdbool.h>

#include "base/status.h"

typedef enum wefti_isa {
    WEFTI_ISA_PLAIN,
    WEFTI_ISA_AVX2,   /* AVX2 and FMA */
    WEFTI_ISA_AVX512, /* AVX-512 F, BW, DQ, VL */
    WEFTI_ISA_AMX,    /* AMX tiles of bf16 and AVX-512 BF16; the system allows tiles */
    WEFTI_ISAS
} wefti_isa;

const char *wefti_isa_text(wefti_isa isa); /* "avx512" */
bool wefti_isa_has(wefti_isa isa);         /* this processor and this build can run it */
/* WEFT_E_ARG if WEFT_ISA names no form. Empty is as unset. */
weft_status wefti_isa_check(void) WEFT_CHECKED;
wefti_isa wefti_isa_best(void); /* the best of this processor, or WEFT_ISA if that is lower */
/* Whether the form multiplies bf16 directly: AMX, and AVX-512 if the processor has dot products of
 * bf16. */
bool wefti_isa_has_bf16(wefti_isa isa);
bool wefti_isa_best_has_bf16(void); /* the same for the best isa, unless WEFT_ISA rules bf16 out */
/* The arithmetic that the bits of a result depend on: the best isa, with its bf16 extension if
 * products are `bf16`. */
const char *wefti_isa_arithmetic(bool bf16); /* "avx512_bf16" */
bool wefti_isa_has_avx512_bf16(void);
bool wefti_isa_has_amx_bf16(void); /* asks the processor only; wefti_isa_has also asks the system */

#endif
