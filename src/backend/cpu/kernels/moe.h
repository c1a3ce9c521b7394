/* Kernels of mixtures of experts: move rows to the experts' buffers and back. */
#ifndef WEFTI_CPU_KERNELS_MOE_H
#define WEFTI_CPU_KERNELS_MOE_H

#include "backend/cpu/types.h"

enum { WEFTI_MOE_CHOICES = 64 }; /* choices of a token, at most */

/* Tokens are x [groups, size, h]; buffers are y [experts, groups, capacity, h]. Choice c of token t
 * of group g has one row of y: (expert[g, t, c] - first_expert, g, slot[g, t, c] - first_slot). If
 * that is outside y, the choice has no row.
 *   dispatch: y = the sum of weight x over the choices of a row, in their order; 0 if none
 *   combine:  x = the sum of weight y over the choices of a token
 *   dot:      dots[g, t, c] = x[g, t] . y[row], 0 if the choice has no row */
typedef struct wefti_moe_args {
    wefti_src from;   /* dispatch: x; combine, dot: y */
    wefti_dst to;     /* dispatch: y; combine: x */
    wefti_src x;      /* dot: x */
    float *dots;      /* dot: [groups, size, choices] */
    wefti_src weight; /* [groups, size, choices]; absent: all weights are 1 */
    const int32_t *expert, *slot;
    int64_t groups, size, choices, h;
    int64_t experts, capacity, first_expert, first_slot;
    int32_t *workspace; /* dispatch: one entry for each row of y and for each choice */
} wefti_moe_args;

#endif
