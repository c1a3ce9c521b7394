/* Convolution on the CPU: the problem as plain numbers, and the algorithms that solve it.
 *
 * There are two algorithms: oneDNN's direct kernels (onednn_conv.c), and a matrix product of the
 * weights with the unfolded image (conv_gemm.c). The product needs no library, and reads and writes
 * the weights as they are. It is faster for small planes with large weights, as in the last stages
 * of a residual network.
 *
 * Between kernels, activations are plain [batch, channels, space...]. Some kernels need channels in
 * blocks. They convert piece by piece, while the piece is in cache. Keeping activations in blocks
 * throughout was measured on ResNet-18 (32 images of 64 x 64). It would take 2.5 % off the time of
 * the convolutions, too little for a second layout of every value.
 *
 * Work is split into pieces of the batch, by the problem alone. So results do not depend on the
 * number of threads. */
#ifndef WEFTI_CPU_CONV_H
#define WEFTI_CPU_CONV_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/isa.h"
#include "base/pool.h"
#include "base/status.h"
#include "weft/types.h"

enum { WEFTI_CONV_SPATIAL = 3 };

typedef enum wefti_conv_kind {
    WEFTI_CONV_FORWARD,    /* x, w, bias -> y */
    WEFTI_CONV_GRAD_INPUT, /* y's gradient, w -> x's gradient */
    WEFTI_CONV_GRAD_WEIGHT /* x, y's gradient -> w's gradient */
} wefti_conv_kind;

/* x [batch, in, x...], w [out, in / groups, k...], y [batch, out, y...]: see ops/dense/conv.c.
 * Arrays have `spatial` entries and are filled up with 1 (0 for padding). The dtypes belong to the
 * operands or to their gradients. */
typedef struct wefti_conv {
    wefti_conv_kind kind;
    int spatial; /* 2 or 3 */
    int64_t batch, groups, in, out;
    int64_t x[WEFTI_CONV_SPATIAL], k[WEFTI_CONV_SPATIAL], y[WEFTI_CONV_SPATIAL];
    int64_t stride[WEFTI_CONV_SPATIAL], padding[WEFTI_CONV_SPATIAL], dilation[WEFTI_CONV_SPATIAL];
    weft_dtype x_dtype, w_dtype, y_dtype; /* F32 or BF16 */
    bool has_bias;                        /* f32 [out]; forward only */
    bool accumulate;                      /* weight gradient: add to the old value */
    bool native_bf16;                     /* multiply in bf16 if x, w and y are all bf16 */
    wefti_isa isa;                        /* of matrix products */
    bool sizes_only;                      /* the caller may only ask for bytes, and destroy */
} wefti_conv;

/* Elements of one plane of an image. */
static inline int64_t wefti_conv_plane(const int64_t size[WEFTI_CONV_SPATIAL]) {
    return size[0] * size[1] * size[2];
}

/* Whether a matrix product is faster than the direct kernels (measured): small planes under many
 * channels. The rule is the same on every machine, so that results are the same. */
static inline bool wefti_conv_prefers_gemm(const wefti_conv *p) {
    int64_t pixels = p->batch * wefti_conv_plane(p->y), taps = wefti_conv_plane(p->k);
    if (p->groups > 1) return false;
    if (p->batch < 4) return true; /* the matrix product itself splits a single image */
    return p->kind == WEFTI_CONV_GRAD_WEIGHT ? pixels <= 512 : taps > 1 && pixels <= 128;
}

/* The operands of a run, by role. `kind` says which of them is the result. */
typedef struct wefti_conv_args {
    void *x, *w, *y;
    const float *bias;
} wefti_conv_args;

/* Convolution as a matrix product over unfolded images. Source: Chellapilla, Puri and Simard, "High
 * Performance Convolutional Neural Networks for Document Processing", 2006, section 3.
 *
 * Several images are unfolded together, so that small planes also give wide matrices. */
typedef struct wefti_conv_gemm wefti_conv_gemm;

weft_status wefti_conv_gemm_create(const wefti_conv *conv, int threads,
                                   wefti_conv_gemm **out) WEFT_CHECKED;
void wefti_conv_gemm_destroy(wefti_conv_gemm *c);
int64_t wefti_conv_gemm_workspace_bytes(const wefti_conv_gemm *c);
int64_t wefti_conv_gemm_bytes(const wefti_conv_gemm *c); /* of its own memory; NULL: 0 */
void wefti_conv_gemm_run(const wefti_conv_gemm *c, const wefti_conv_args *args, void *workspace,
                         wefti_pool *pool);

/* Convolution by oneDNN's direct kernels. Each piece of the batch is one task. The task copies x
 * and y to the kernel's layout and back while they are in cache. The weights are copied once a
 * run. */
typedef struct wefti_onednn_conv wefti_onednn_conv;

/* WEFT_E_NO_IMPL: weft was built without oneDNN, or oneDNN has no fast kernel for this problem.
 * `dry`: the caller may only use workspace_bytes and destroy on the result; oneDNN compiles nothing
 * for it. */
weft_status wefti_onednn_conv_create(const wefti_conv *conv, int threads, bool dry,
                                     wefti_onednn_conv **out) WEFT_CHECKED;
void wefti_onednn_conv_destroy(wefti_onednn_conv *c);
int64_t wefti_onednn_conv_workspace_bytes(const wefti_onednn_conv *c);
/* Of its own memory, without the memory of oneDNN; NULL: 0. */
int64_t wefti_onednn_conv_bytes(const wefti_onednn_conv *c);
weft_status wefti_onednn_conv_run(const wefti_onednn_conv *c, const wefti_conv_args *args,
                                  void *workspace, wefti_pool *pool) WEFT_CHECKED;

#endif
