/* bf16 products in the processor's own bf16 arithmetic through oneDNN: for processors with
 * avx512_bf16 and no AMX, for which gemm.h has kernels. Used where wefti_prepare.bf16 says NATIVE.
 * f32 weights become bf16 and packed once per update. */
#ifndef WEFTI_CPU_NATIVE_H
#define WEFTI_CPU_NATIVE_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/onednn_matmul.h"

/* One product C = A B (+ bias) where A is bf16 and B is bf16, or f32 that is rounded to bf16. The
 * parts of a kernel. */
typedef struct wefti_native_product {
    wefti_onednn_matmul *matmul;
    const wefti_kernels *kernels;
    bool round_b;             /* B is f32: rounded before it is packed */
    bool packed;              /* runs get the packed form */
    int64_t b_elems, b_bytes; /* of the rounded copy */
    int64_t packed_bytes, matmul_bytes;
} wefti_native_product;

/* WEFT_E_NO_IMPL where oneDNN does not take it. `spec` as for gemm.h, with the operands' dtypes as
 * they are; B must be dense when it is f32. */
weft_status wefti_native_create(const wefti_gemm_spec *spec, bool packed, int threads,
                                wefti_native_product *out) WEFT_CHECKED;
void wefti_native_destroy(wefti_native_product *p);
int64_t wefti_native_workspace_bytes(const wefti_native_product *p); /* of a run */
/* Workspace of a pack: rounded copy and oneDNN's own; lies behind the packed bytes in the packed
 * buffer. */
int64_t wefti_native_packed_bytes(const wefti_native_product *p);
weft_status wefti_native_pack(const wefti_native_product *p, const void *b, void *packed,
                              wefti_pool *pool) WEFT_CHECKED;
/* args->b: the packed form if `packed`, else B itself. */
weft_status wefti_native_run(const wefti_native_product *p, const wefti_gemm_args *args,
                             void *workspace, wefti_pool *pool) WEFT_CHECKED;

/* A kernel for a node whose operands a, b (and bias, -1: none) make this product. */
weft_status wefti_cpu_native_kernel(const weft_node *n, const wefti_gemm_spec *spec, int a, int b,
                                    int bias, const wefti_prepare *options,
                                    wefti_kernel **out) WEFT_CHECKED;

/* linear_cross_entropy in native arithmetic; WEFT_E_NO_IMPL where cpu_loss_head.c should run it. */
weft_status wefti_cpu_native_head(const weft_node *n, const wefti_prepare *options,
                                  wefti_kernel **out) WEFT_CHECKED;

#endif
