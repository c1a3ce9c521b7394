/* Matrix kernels for any processor, with vectors of four floats. The compiler maps them to SSE2,
 * NEON or scalars. 6 x 8 sums, two vectors of B and a broadcast fill 16 registers. */

#define VL 4
#define TILE_ROWS 6
#define TILE_VECTORS 2
#define PREFETCH_LINES 0
#define K_BLOCK 768
#define M_TILE 84
#define M_GROUP 0
#define N_GROUP 0
#define KERNELS wefti_gemm_kernels_plain
#include "backend/cpu/gemm/kernels.h"
