/* Matrix kernels for AVX2 with FMA. 4 x 24 sums take 12 of 16 registers. Three loads of B and four
 * broadcasts of A feed 12 fused operations. The kernel does not prefetch: if two threads share a
 * core, each more operation of its load units costs as much as a product. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 8
#define TILE_ROWS 4
#define TILE_VECTORS 3
#define PREFETCH_LINES 0
#define K_BLOCK 1024
#define M_TILE 60
#define M_GROUP 0
#define N_GROUP 0
#define KERNELS WEFTI_FORM(wefti_gemm_kernels_avx2)
#include "backend/cpu/gemm/kernels.h"
#endif
