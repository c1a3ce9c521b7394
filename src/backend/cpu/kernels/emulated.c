/* The tables of the emulated vector kernels, and all emulated kernels together. See
 * backend/cpu/emulated.h. */
#include "backend/cpu/emulated.h"

#include "backend/cpu/kernels/kernels.h"

extern const wefti_kernels wefti_kernels_plain;
extern const wefti_kernels wefti_kernels_avx2_emulated, wefti_kernels_avx512_emulated;

#define X(name, args) void wefti_kernel_##name##_avx512_emulated(wefti_pool *pool, const args *a);
#include "backend/cpu/kernels/kernels.def"
#undef X
void wefti_attention_on_tiles_emulated(wefti_pool *pool, const wefti_attention_args *a);
void wefti_attention_backward_on_tiles_emulated(wefti_pool *pool,
                                                const wefti_attention_backward_args *a);
#define wefti_kernel_attention_avx512_emulated wefti_attention_on_tiles_emulated
#define wefti_kernel_attention_backward_avx512_emulated wefti_attention_backward_on_tiles_emulated
static const wefti_kernels kernels_amx = {
#define X(name, args) .name = wefti_kernel_##name##_avx512_emulated,
#include "backend/cpu/kernels/kernels.def"
#undef X
    .isa = "amx",
};

const wefti_cpu_tuning wefti_cpu_emulated = {
    .emulated = true,
    .has = {true, true, true, true},
    .has_avx512_bf16 = true,
    .gemm = &wefti_gemm_forms_emulated,
    .kernels = {&wefti_kernels_plain, &wefti_kernels_avx2_emulated, &wefti_kernels_avx512_emulated,
                &kernels_amx},
    .bf16 = WEFTI_BF16_FASTER,
};
