/* The emulated kernels of matrix products: see backend/cpu/emulated.h. */
#include "backend/cpu/emulated.h"

#include "backend/cpu/gemm/kernel_table.h"

extern const wefti_gemm_kernels wefti_gemm_kernels_avx2_emulated;
extern const wefti_gemm_kernels wefti_gemm_kernels_avx2_narrow_emulated;
extern const wefti_gemm_kernels wefti_gemm_kernels_avx512_emulated;
extern const wefti_gemm_kernels wefti_gemm_kernels_avx512_bf16_emulated;
extern const wefti_gemm_kernels wefti_gemm_kernels_amx_emulated;
extern const wefti_gemm_kernels wefti_gemm_kernels_amx_f32_emulated;

const wefti_gemm_forms wefti_gemm_forms_emulated = {
    .plain = &wefti_gemm_kernels_plain,
    .avx2 = &wefti_gemm_kernels_avx2_emulated,
    .avx2_narrow = &wefti_gemm_kernels_avx2_narrow_emulated,
    .avx512 = &wefti_gemm_kernels_avx512_emulated,
    .avx512_bf16 = &wefti_gemm_kernels_avx512_bf16_emulated,
    .amx = &wefti_gemm_kernels_amx_emulated,
    .amx_f32 = &wefti_gemm_kernels_amx_f32_emulated,
};
