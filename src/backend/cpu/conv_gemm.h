/* Convolution as a matrix product over unfolded images. Source: Chellapilla, Puri and Simard,
 * "High Performance Convolutional Neural Networks for Document Processing", 2006, section 3.
 *
 * Several images are unfolded together, so that small planes still make wide matrices. Weights are
 * read and written in their own order. */
#ifndef WEFTI_CPU_CONV_GEMM_H
#define WEFTI_CPU_CONV_GEMM_H

#include "backend/cpu/conv.h"

typedef struct wefti_conv_gemm wefti_conv_gemm;

weft_status wefti_conv_gemm_create(const wefti_conv *conv, int threads,
                                   wefti_conv_gemm **out) WEFT_CHECKED;
void wefti_conv_gemm_destroy(wefti_conv_gemm *c);
int64_t wefti_conv_gemm_workspace_bytes(const wefti_conv_gemm *c);
void wefti_conv_gemm_run(const wefti_conv_gemm *c, const wefti_conv_args *args, void *workspace,
                         wefti_pool *pool);

#endif
