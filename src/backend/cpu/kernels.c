/* Choice of the kernel table, and the parts of kernels that need no vectors: see kernels.h. */
#include "backend/cpu/kernels.h"

extern const wefti_kernels wefti_kernels_plain;
#if defined(__x86_64__)
extern const wefti_kernels wefti_kernels_avx2, wefti_kernels_avx512, wefti_kernels_amx;
#endif

const wefti_kernels *wefti_kernels_of(wefti_isa isa) {
    if (!wefti_isa_has(isa)) return NULL;
    switch (isa) {
    case WEFTI_ISA_PLAIN:
        return &wefti_kernels_plain;
#if defined(__x86_64__)
    case WEFTI_ISA_AVX2:
        return &wefti_kernels_avx2;
    case WEFTI_ISA_AVX512:
        return &wefti_kernels_avx512;
    case WEFTI_ISA_AMX: /* attention on tiles, all else as AVX-512: attention_amx.c */
        return &wefti_kernels_amx;
#endif
    default:
        return NULL;
    }
}

const wefti_kernels *wefti_kernels_best(void) {
    const wefti_kernels *best = wefti_kernels_of(wefti_isa_best());
    return best ? best : &wefti_kernels_plain;
}
