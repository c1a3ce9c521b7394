/* Matrix kernels for AVX-512. 14 x 32 sums take 28 of 32 registers. Two loads of B and 14
 * broadcasts of A feed 28 fused operations. So each of the two load units does at most one load a
 * cycle. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 16
#define TILE_ROWS 14
#define TILE_VECTORS 2
#define PREFETCH_LINES 8 /* about 110 cycles */
#define K_BLOCK 1024
#define M_TILE 84
#define M_GROUP 84
#define N_GROUP 128 /* 512 KiB of B in the second-level cache, and 56 KiB of A at a time */
#define KERNELS WEFTI_FORM(wefti_gemm_kernels_avx512)
#include "backend/cpu/gemm/kernels.h"
#endif
