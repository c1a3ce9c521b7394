/* Matrix products through oneDNN: bf16 in the processor's own arithmetic, and f32 as a second
 * implementation.
 *
 * Same contract as gemm.h for one product (no batches) of two bf16 or two f32 operands, epilogue
 * included. oneDNN's primitives run on one thread each, inside tasks of our pool, on slices of m
 * and n that only the shape decides; so the bits do not depend on the number of threads. B is first
 * brought into the format oneDNN prefers, at each run or, for weights, once per update. */
#ifndef WEFTI_BACKEND_CPU_ONEDNN_MATMUL_H
#define WEFTI_BACKEND_CPU_ONEDNN_MATMUL_H

#include "backend/cpu/gemm.h"

typedef struct wefti_onednn_matmul wefti_onednn_matmul;

/* Built in, and usable by this processor. */
bool wefti_onednn_matmul_available(void);

/* WEFT_E_NO_IMPL where this spec is not for oneDNN (dtypes, strides, batches, a size of 0, not
 * built in); the caller then uses gemm.h. `isa` is that of the epilogue. For up to `threads`
 * threads. */
weft_status wefti_onednn_matmul_create(const wefti_gemm_spec *spec, wefti_isa isa, int threads,
                                       wefti_onednn_matmul **out) WEFT_CHECKED;
void wefti_onednn_matmul_destroy(wefti_onednn_matmul *matmul);

int64_t wefti_onednn_matmul_workspace_bytes(const wefti_onednn_matmul *matmul);

/* The packed B of a spec with `b_packed`: 64-byte aligned. It fits products of equal m, n, k and
 * dtypes only. */
int64_t wefti_onednn_matmul_packed_bytes(const wefti_onednn_matmul *matmul);
weft_status wefti_onednn_matmul_pack_b(wefti_onednn_matmul *matmul, const void *b, void *packed,
                                       void *workspace, wefti_pool *pool) WEFT_CHECKED;

/* One run at a time for each matmul. workspace: 64-byte aligned. The pool has at most the threads
 * given above. */
weft_status wefti_onednn_matmul_run(wefti_onednn_matmul *matmul, const wefti_gemm_args *args,
                                    void *workspace, wefti_pool *pool) WEFT_CHECKED;

/* Which implementation multiplies bf16 matrices faster on this processor: our own kernels in f32,
 * our own on AMX tiles (what `isa` allows), or oneDNN. So the answer is never slower than f32.
 * Measures for a few milliseconds where the processor has bf16 instructions; results differ in
 * their last bits, so a resumed run should keep the choice of the run it continues. */
typedef enum wefti_bf16_matmul {
    WEFTI_BF16_OWN,
    WEFTI_BF16_OWN_AMX,
    WEFTI_BF16_ONEDNN
} wefti_bf16_matmul;
const char *wefti_bf16_matmul_text(wefti_bf16_matmul choice); /* "own", "own amx", "onednn" */
weft_status wefti_matmul_bf16_choice(wefti_isa isa, wefti_bf16_matmul *out) WEFT_CHECKED;

#endif
