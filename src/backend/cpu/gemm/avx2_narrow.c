/* Matrix kernels for AVX2 with FMA, for a B with too few columns for tiles of 24: 6 x 16 sums. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 8
#define TILE_ROWS 6
#define TILE_VECTORS 2
#define PREFETCH_LINES 0
#define K_BLOCK 1024
#define M_TILE 60
#define M_GROUP 0
#define N_GROUP 0
#define KERNELS WEFTI_FORM(wefti_gemm_kernels_avx2_narrow)
#include "backend/cpu/gemm/kernels.h"
#endif
