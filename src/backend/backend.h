/* Backends: who runs a node. A kernel is prepared once for its node's shapes and run many times.
 *
 * Backends are asked in order; WEFT_E_NO_IMPL from `prepare` is a cheap "not me" and never an error
 * by itself. The reference backend, last, takes every op. No kernel allocates when it runs:
 * workspaces are planned ahead. */
#ifndef WEFTI_BACKEND_H
#define WEFTI_BACKEND_H

#include "base/pool.h"
#include "graph/op.h"
#include "topo/machine.h"

/* What a kernel sees of a run. */
typedef struct wefti_run {
    wefti_pool *pool;
    wefti_random random;
} wefti_run;

typedef struct wefti_kernel wefti_kernel;
struct wefti_kernel {
    /* in[i] NULL when the node's input is absent. Outputs never overlap inputs unless the op is
     * IN_PLACE (then out[o] == in[o]) or the kernel said in_place[o] (then it may). */
    weft_status (*run)(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                       void *const *out, void *workspace);
    void (*destroy)(wefti_kernel *kernel); /* frees the kernel itself too */
    const char *label; /* "gemm avx512": for traces and tables; static storage */
    int64_t workspace_bytes;
    /* Output 0 may use the memory of input `in_place` (same bytes), when that input dies here; -1:
     * no. */
    int in_place;
};

/* Which arithmetic bf16 products use on this processor; chosen by measurement, kept in checkpoints.
 */
typedef enum wefti_bf16_compute {
    WEFTI_BF16_AUTO,   /* measure once */
    WEFTI_BF16_AS_F32, /* bf16 storage, f32 products */
    WEFTI_BF16_NATIVE  /* bf16 products with f32 accumulation: AMX or avx512_bf16 */
} wefti_bf16_compute;

typedef struct wefti_prepare {
    int threads;
    uint32_t accumulate; /* bit o: add output o to what is there; NO_IMPL when the kernel cannot */
    wefti_bf16_compute bf16; /* never AUTO here */
    /* Size the kernel only: `prepare` fills workspace_bytes, label and in_place as it always does,
     * but leaves out what only a run needs and costs time (tables, compiled code). Such a kernel
     * may only be destroyed. */
    bool dry;
} wefti_prepare;

/* What a node takes on a backend. All but `seconds` equals what the prepared kernel says. */
typedef struct wefti_estimate {
    int64_t workspace_bytes;
    int in_place;
    const char *label; /* static storage */
    double seconds;    /* of one run, by the machine model */
} wefti_estimate;

typedef struct wefti_backend wefti_backend;
struct wefti_backend {
    const char *name;
    weft_status (*prepare)(const wefti_backend *backend, const weft_node *node,
                           const wefti_prepare *options, wefti_kernel **out);
    /* Measured choice for this processor, or NULL when the backend has no bf16 of its own. */
    wefti_bf16_compute (*choose_bf16)(const wefti_backend *backend);
    /* Which form of its kernels runs here ("avx512"), with bf16 products as said: for checkpoints
     * and to compare processes. NULL: only one. */
    const char *(*variant)(const wefti_backend *backend, wefti_bf16_compute bf16);
    /* NATIVE is more than a wish here. NULL: it is not. */
    bool (*has_bf16)(const wefti_backend *backend);
};

/* The list in order of preference, ending with the reference backend.
 * WEFT_BACKEND=reference in the environment leaves only the last. */
const wefti_backend *const *wefti_builtin_backends(void); /* NULL-terminated */
/* The form of kernels that runs here, of the first of them that has several. */
const char *wefti_builtin_variant(wefti_bf16_compute bf16);
bool wefti_builtin_has_bf16(void); /* likewise */

/* Every op by its reference kernel: operands to double, one rounding on the way out. */
extern const wefti_backend wefti_backend_reference;

/* Estimates a node without making a kernel that can run. Returns the status that `prepare` returns
 * for the same node and options, WEFT_E_NO_IMPL included. Keeps nothing; several threads may call
 * it at once. */
weft_status wefti_backend_estimate(const wefti_backend *backend, const weft_node *node,
                                   const wefti_prepare *options, const wefti_machine *machine,
                                   wefti_estimate *out);

static inline void wefti_kernel_destroy(wefti_kernel *k) {
    if (k) k->destroy(k);
}

#endif
