/* Chooses the kernel table, and holds the parts of kernels that need no vectors: see kernels.h. */
#include "backend/cpu/kernels/kernels.h"

#include "backend/cpu/tuning.h"

extern const wefti_kernels wefti_kernels_plain;
#if defined(__x86_64__)
extern const wefti_kernels wefti_kernels_avx2, wefti_kernels_avx512;

/* The AMX table equals the AVX-512 table, except for attention on tiles. */
#define X(name, args) void wefti_kernel_##name##_avx512(wefti_pool *pool, const args *a);
#include "backend/cpu/kernels/kernels.def"
#undef X
#define wefti_kernel_attention_avx512 wefti_attention_on_tiles
#define wefti_kernel_attention_backward_avx512 wefti_attention_backward_on_tiles
static const wefti_kernels kernels_amx = {
#define X(name, args) .name = wefti_kernel_##name##_avx512,
#include "backend/cpu/kernels/kernels.def"
#undef X
    .isa = "amx",
};
#undef wefti_kernel_attention_avx512
#undef wefti_kernel_attention_backward_avx512
#endif

const wefti_kernels *wefti_kernels_of(wefti_isa isa) {
    if (!wefti_isa_has(isa)) return NULL;
    const wefti_cpu_tuning *tuned = wefti_cpu_tuned();
    if (tuned && tuned->emulated) return tuned->kernels[isa];
    switch (isa) {
    case WEFTI_ISA_PLAIN:
        return &wefti_kernels_plain;
#if defined(__x86_64__)
    case WEFTI_ISA_AVX2:
        return &wefti_kernels_avx2;
    case WEFTI_ISA_AVX512:
        return &wefti_kernels_avx512;
    case WEFTI_ISA_AMX:
        return &kernels_amx;
#endif
    default:
        return NULL;
    }
}

const wefti_kernels *wefti_kernels_best(void) {
    const wefti_kernels *best = wefti_kernels_of(wefti_isa_best());
    return best ? best : &wefti_kernels_plain;
}
