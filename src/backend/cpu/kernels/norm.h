/* Normalizations, softmax, cross-entropy. */
#ifndef WEFTI_CPU_KERNELS_NORM_H
#define WEFTI_CPU_KERNELS_NORM_H

#include "backend/cpu/types.h"

/* s = x + residual
 * layer: y = (s - mean) rstd gamma + beta (Ba et al. 2016)
 * rms:   y = s rstd gamma (Zhang & Sennrich 2019)
 * rstd = 1 / sqrt(var + eps); var is biased (rms: the mean square). */
typedef struct wefti_norm_args {
    wefti_src x;               /* [rows, dim] */
    wefti_src residual;        /* optional */
    wefti_dst sum;             /* s; optional; in place over x or residual */
    const float *gamma, *beta; /* [dim]; each optional */
    wefti_dst y;
    float *mean, *rstd; /* [rows]; mean unused by rms; both optional */
    int64_t rows, dim;
    float eps;
} wefti_norm_args;

typedef struct wefti_norm_backward_args {
    wefti_src dy, x;  /* x: the normalized input s */
    wefti_src dx_add; /* optional: another gradient of s (the residual path); it is added to dx */
    const float *gamma, *mean, *rstd; /* gamma optional; mean unused by rms */
    wefti_dst dx;                     /* in place over dy or dx_add; optional */
    float *dgamma, *dbeta;            /* each optional */
    bool accumulate;                  /* add to the old dgamma and dbeta */
    int64_t rows, dim;
    void *workspace;
} wefti_norm_backward_args;

size_t wefti_norm_backward_workspace_bytes(int64_t rows, int64_t dim);

typedef struct wefti_softmax_args {
    wefti_src x;
    wefti_dst y; /* in place */
    int64_t rows, dim;
} wefti_softmax_args;

typedef struct wefti_softmax_backward_args {
    wefti_src dy, y; /* y: the forward output */
    wefti_dst dx;    /* in place over dy */
    int64_t rows, dim;
} wefti_softmax_backward_args;

/* Ioffe & Szegedy 2015. x is [n, channels, spatial] or, channels_last, [n, spatial, channels]. */
typedef struct wefti_batch_norm_args {
    wefti_src x;
    wefti_dst y; /* in place */
    int64_t n, channels, spatial;
    bool channels_last;
    bool train;                /* false: normalize by running_mean, running_var */
    bool relu;                 /* y = max(y, 0), fused */
    const float *gamma, *beta; /* [channels]; each optional */
    float *mean, *rstd;        /* saved for backward; required in training, otherwise optional */
    float *running_mean,
        *running_var; /* training: optional; updated by momentum with the unbiased variance */
    float momentum, eps;
    void *workspace;
} wefti_batch_norm_args;

typedef struct wefti_batch_norm_backward_args {
    wefti_src dy, x;
    wefti_dst dx; /* in place over dy; optional */
    int64_t n, channels, spatial;
    bool channels_last;
    bool train; /* false: the statistics are constants */
    /* the forward was fused with relu: dy counts only where y > 0 (recomputed from x, gamma,
     * beta) */
    bool relu;
    const float *gamma, *beta, *mean, *rstd;
    float *dgamma, *dbeta; /* each optional */
    bool accumulate;
    void *workspace;
} wefti_batch_norm_backward_args;

size_t wefti_batch_norm_workspace_bytes(int64_t n, int64_t channels,
                                        int64_t spatial); /* both ways */

/* loss = lse - ((1 - smoothing) x[target] + smoothing mean(x)); 0 if target == ignore_index. Source
 * of the smoothing: Szegedy et al. 2016. A target outside [0, vocab) that is not ignored gives a
 * NaN loss and a zero gradient row. A piece of the classes holds the classes from `begin` on of
 * `whole` classes (0: all). */
typedef struct wefti_cross_entropy_args {
    wefti_src logits;  /* [rows, vocab] */
    wefti_src targets; /* [rows] i32 or i64 */
    int64_t rows, vocab, ignore_index, begin, whole;
    bool terms; /* the loss without lse: the part that a piece contributes */
    float smoothing;
    float *loss; /* [rows] */
    float *lse;  /* [rows] log-sum-exp of these logits; optional */
} wefti_cross_entropy_args;

/* dlogits = (softmax - target distribution) scale row_scale[row]; ignored rows are zero. */
typedef struct wefti_cross_entropy_backward_args {
    wefti_src logits, targets;
    const float *lse;
    wefti_dst dlogits; /* in place over logits */
    int64_t rows, vocab, ignore_index, begin, whole;
    float smoothing, scale;
    const float *row_scale; /* [rows]; optional */
} wefti_cross_entropy_backward_args;

/* Loss and gradient together, row by row while the row is in cache: for one block of a chunked
 * linear + cross-entropy. */
typedef struct wefti_cross_entropy_fused_args {
    wefti_dst logits; /* [rows, vocab] in: logits, out: dlogits */
    int64_t stride;   /* elements from row to row; 0: vocab */
    /* logits are f32 and dlogits bf16; each dlogits row begins where the logits of the row begin */
    bool narrow;
    wefti_src targets;
    int64_t rows, vocab, ignore_index;
    float smoothing, scale;
    const float *row_scale; /* optional */
    float *loss;            /* [rows], not scaled */
    float *lse;             /* optional */
} wefti_cross_entropy_fused_args;

#endif
