/* Which vector instructions the kernels of this process use.
 *
 * Every kernel that has several forms (plain C, AVX2 with FMA, AVX-512, AMX tiles) takes the form
 * as an argument, so that tests can run all that the processor has.
 * WEFT_ISA=plain|avx2|avx512|avx512_bf16|amx in the environment lowers the choice; a form that the
 * processor lacks is never chosen. avx512_bf16 is avx512 with its dot products of bf16. AMX
 * multiplies bf16, and f32 as sums of bf16 numbers: all else runs as AVX-512 there. */
#ifndef WEFTI_BACKEND_CPU_ISA_H
#define WEFTI_BACKEND_CPU_ISA_H

#include <stdbool.h>

typedef enum wefti_isa {
    WEFTI_ISA_PLAIN,
    WEFTI_ISA_AVX2,   /* AVX2 and FMA */
    WEFTI_ISA_AVX512, /* AVX-512 F, BW, DQ, VL */
    WEFTI_ISA_AMX,    /* AMX tiles of bf16 and AVX-512 BF16 besides; the system allows tiles */
    WEFTI_ISAS
} wefti_isa;

const char *wefti_isa_text(wefti_isa isa); /* "avx512" */
bool wefti_isa_has(wefti_isa isa);         /* this processor and this build can run it */
wefti_isa wefti_isa_best(void); /* the best of this processor, or WEFT_ISA where that is lower */
/* The form multiplies bf16 as such: AMX, and AVX-512 where the processor has dot products of it. */
bool wefti_isa_has_bf16(wefti_isa isa);
bool wefti_isa_best_has_bf16(void); /* that of the best, where WEFT_ISA does not rule it out */
/* What the bits of a result depend on: the best, where products are `bf16` with the extension. */
const char *wefti_isa_arithmetic(bool bf16); /* "avx512_bf16" */
bool wefti_isa_has_avx512_bf16(void);
bool wefti_isa_has_amx_bf16(
    void); /* the processor; whether the system allows it says wefti_isa_has */

#endif
