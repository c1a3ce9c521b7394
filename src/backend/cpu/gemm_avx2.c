/* Matrix kernels for AVX2 with FMA: 6 x 16 sums take 12 of 16 registers. */
#if defined(__x86_64__)
#define VL 8
#define TILE_ROWS 6
#define TILE_VECTORS 2
#define KERNELS wefti_gemm_kernels_avx2
#include "backend/cpu/gemm_kernels.h"
#endif
