/* Convolution by oneDNN's direct kernels: see conv.h. Each piece of the batch is one task: x and y
 * go to the layout that the kernel wants and back while they are in cache, weights once a run. */
#ifndef WEFTI_CPU_ONEDNN_CONV_H
#define WEFTI_CPU_ONEDNN_CONV_H

#include "backend/cpu/conv.h"

typedef struct wefti_onednn_conv wefti_onednn_conv;

/* WEFT_E_NO_IMPL: built without oneDNN, or it has no fast kernel for this. */
weft_status wefti_onednn_conv_create(const wefti_conv *conv, int threads,
                                     wefti_onednn_conv **out) WEFT_CHECKED;
void wefti_onednn_conv_destroy(wefti_onednn_conv *c);
int64_t wefti_onednn_conv_workspace_bytes(const wefti_onednn_conv *c);
weft_status wefti_onednn_conv_run(const wefti_onednn_conv *c, const wefti_conv_args *args,
                                  void *workspace, wefti_pool *pool) WEFT_CHECKED;

#endif
