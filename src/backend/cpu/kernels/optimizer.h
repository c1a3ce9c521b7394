/* Optimizer updates in one pass over parameter, gradient and state. Parameters and state are f32
 * (master weights). The gradient is f32 or bf16. It is first multiplied by grad_scale (clipping,
 * averaging over accumulation). `shadow` is optional: it receives the new parameter rounded to bf16
 * in the same pass. */
#ifndef WEFTI_CPU_KERNELS_OPTIMIZER_H
#define WEFTI_CPU_KERNELS_OPTIMIZER_H

#include "backend/cpu/types.h"

/* The rows of tables [..., width] that an update changes, each listed once. The gradient is
 * [count, width], in the order of the list. */
typedef struct wefti_listed_rows {
    const int32_t *number; /* NULL: all elements are updated */
    int64_t count, width;
} wefti_listed_rows;

/* PyTorch's SGD:
 *   g += decay p
 *   buf = first ? g : momentum buf + (1 - dampening) g
 *   g = nesterov ? g + momentum buf : buf
 *   p -= lr g */
typedef struct wefti_sgd_args {
    float *param;
    wefti_src grad;
    float *momentum_buffer; /* NULL: no momentum */
    uint16_t *shadow;
    int64_t elements;
    wefti_listed_rows listed;
    float grad_scale, lr, momentum, dampening, weight_decay;
    bool nesterov, first; /* first: the buffer is not read */
} wefti_sgd_args;

/* Adam (Kingma & Ba 2015) and, if `decoupled`, AdamW (Loshchilov & Hutter 2019), as PyTorch
 * computes them:
 *   decoupled: p -= lr decay p; else g += decay p
 *   m += (1-b1)(g-m)
 *   v = b2 v + (1-b2) g^2
 *   p -= lr / (1-b1^step) m / (sqrt(v) / sqrt(1-b2^step) + eps) */
typedef struct wefti_adam_args {
    float *param;
    wefti_src grad;
    float *m, *v;
    uint16_t *shadow;
    int64_t elements, step; /* step counts from 1 */
    wefti_listed_rows listed;
    float grad_scale, lr, beta1, beta2, eps, weight_decay;
    bool decoupled;
    bool *overflow; /* becomes true if an element of the new v is not finite; may be NULL */
} wefti_adam_args;

/* Chen et al. 2023: p -= lr decay p; p -= lr sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g. */
typedef struct wefti_lion_args {
    float *param;
    wefti_src grad;
    float *m;
    uint16_t *shadow;
    int64_t elements;
    wefti_listed_rows listed;
    float grad_scale, lr, beta1, beta2, weight_decay;
} wefti_lion_args;

/* PyTorch's Adagrad (Duchi et al. 2011) with lr_decay 0. The initial value is not part of `sum`:
 *   g += decay p
 *   sum += g^2
 *   p -= lr g / (sqrt(initial + sum) + eps) */
typedef struct wefti_adagrad_args {
    float *param;
    wefti_src grad;
    float *sum;
    uint16_t *shadow;
    int64_t elements;
    wefti_listed_rows listed;
    float grad_scale, lr, initial, eps, weight_decay;
    bool *overflow; /* becomes true if an element of the new sum is not finite; may be NULL */
} wefti_adagrad_args;

/* You et al. 2020, algorithm 2: u = m^/(sqrt(v^)+eps) + decay p; p -= lr |p|/|u| u. The ratio is 1
 * if either norm is 0. Two passes: the second recomputes u from the updated moments. */
typedef struct wefti_lamb_args {
    float *param;
    wefti_src grad;
    float *m, *v;
    uint16_t *shadow;
    int64_t elements, step;
    float grad_scale, lr, beta1, beta2, eps, weight_decay;
    bool norms_given; /* phase two of a split parameter: use norms[2] instead of computing them */
    bool norms_only;  /* phase one: update m and v, write |p|^2 and |u|^2 to norms, leave p */
    bool peek;        /* norms_only: do not change m and v either */
    double *norms;    /* [2]: |p|^2, |u|^2 */
    bool *overflow;   /* becomes true if an element of the new v is not finite; may be NULL */
    void *workspace;
} wefti_lamb_args;
size_t wefti_lamb_workspace_bytes(int64_t elements);

/* Shazeer & Stern 2018, algorithms 4 and 5. Matrices [rows, cols] keep the row and column means of
 * g^2 + eps1. Vectors (rows == 0) keep v [cols].
 *
 *   u = g / sqrt(v^)
 *   u /= max(1, rms(u) / clip)
 *   p -= lr' u, with lr' = lr max(eps2, rms(p)) if scale_parameter, else lr
 *
 * The caller gives beta2 of this step, 1 - step^-0.8. beta1 > 0 keeps m (of u). A piece of a
 * parameter needs more from the caller: the new row and col, and the mean over all rows. It also
 * needs the sums of squares of p and u over `count` elements. */
typedef struct wefti_adafactor_args {
    float *param;
    wefti_src grad;
    float *row, *col; /* [rows], [cols]; rows == 0: col is v [cols] and row is unused */
    float *m;         /* optional: beta1 > 0 */
    uint16_t *shadow;
    int64_t rows, cols;
    float grad_scale, lr, beta1, beta2, eps1, eps2, clip,
        weight_decay; /* decay decoupled: p -= lr' decay p */
    bool scale_parameter;
    const float *row_next, *col_next, *squares; /* squares NULL: the parameter is whole */
    double row_mean, count;
    bool *overflow; /* becomes true if an element of row, col or v is not finite; may be NULL */
    void *workspace;
} wefti_adafactor_args;
size_t wefti_adafactor_workspace_bytes(int64_t rows, int64_t cols);

#endif
