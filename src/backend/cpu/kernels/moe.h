/* Kernels of mixtures of experts: rows to the experts' buffers and back. */
#ifndef WEFTI_CPU_KERNELS_MOE_H
#define WEFTI_CPU_KERNELS_MOE_H

#include "backend/cpu/types.h"

enum { WEFTI_MOE_CHOICES = 64 }; /* of a token, at most */

/* Tokens x [groups, size, h] and buffers y [experts, groups, capacity, h]. Choice c of token t of
 * group g has the row (expert[g, t, c] - first_expert, g, slot[g, t, c] - first_slot) of y, none
 * when that is outside.
 *   dispatch: y = the sum of weight x over the choices of a row, in their order; 0 where none is
 *   combine:  x = the sum of weight y over the choices of a token
 *   dot:      dots[g, t, c] = x[g, t] . y[row], 0 where there is none */
typedef struct wefti_moe_args {
    wefti_src from;   /* dispatch: x; combine, dot: y */
    wefti_dst to;     /* dispatch: y; combine: x */
    wefti_src x;      /* dot: x */
    float *dots;      /* dot: [groups, size, choices] */
    wefti_src weight; /* [groups, size, choices]; optional, 1 */
    const int32_t *expert, *slot;
    int64_t groups, size, choices, h;
    int64_t experts, capacity, first_expert, first_slot;
    int32_t *workspace; /* dispatch: one for each row of y and one for each choice */
} wefti_moe_args;

#endif
