/* Backends: they run nodes. A backend prepares a kernel once for its node's shapes and runs it many
 * times.
 *
 * Backends are asked in order. If a backend does not take a node, `prepare` returns WEFT_E_NO_IMPL;
 * this is cheap and not an error. Which backends there are follows from the kind of the device
 * (backend/kinds.h). No kernel allocates memory when it runs: workspaces are planned ahead. */
#ifndef WEFTI_BACKEND_H
#define WEFTI_BACKEND_H

#include "base/pool.h"
#include "device/device.h"
#include "graph/op.h"
#include "topo/machine.h"

/* The information that one run gives to a kernel. */
typedef struct wefti_run {
    wefti_pool *pool;
    wefti_random random;
    /* A kernel of a device submits its work here, and may return before the work is done. All work
     * of the stream before it is done first. A kernel that runs on the host ignores it: its
     * operands are ready. NULL: no device. */
    wefti_stream *stream;
} wefti_run;

typedef struct wefti_kernel wefti_kernel;
struct wefti_kernel {
    /* in[i] is NULL if the node's input is absent. Outputs never overlap inputs, with two
     * exceptions: the op is IN_PLACE (then out[o] == in[o]), or the kernel has set in_place[o]
     * (then they may be equal). */
    weft_status (*run)(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                       void *const *out, void *workspace);
    void (*destroy)(wefti_kernel *kernel); /* also frees the kernel itself */
    const char *label; /* "gemm avx512": for traces and tables. Static storage. */
    int64_t workspace_bytes;
    int64_t bytes; /* of memory that it holds from `prepare` to `destroy`; a dry kernel states the
                      bytes of the kernel that it stands for. Memory of other libraries is not
                      counted. */
    /* Output 0 may use the memory of input `in_place` (same bytes), if no later node reads that
     * input. -1: it may not. */
    int in_place;
};

typedef struct wefti_backend wefti_backend;

/* The arithmetic of bf16 products on this processor. It is chosen by measurement and kept in
 * checkpoints. */
typedef enum wefti_bf16_compute {
    WEFTI_BF16_AUTO,   /* measure once */
    WEFTI_BF16_AS_F32, /* bf16 storage, f32 products */
    WEFTI_BF16_NATIVE  /* bf16 products with f32 accumulation: AMX or avx512_bf16 */
} wefti_bf16_compute;

typedef struct wefti_prepare {
    int threads;
    uint32_t accumulate; /* bit o: add output o to the old value; NO_IMPL if the kernel cannot */
    wefti_bf16_compute bf16; /* never AUTO here */
    /* Only size the kernel. `prepare` sets workspace_bytes, label and in_place as usual. It leaves
     * out the slow parts that only a run needs (tables, compiled code). The caller may only destroy
     * such a kernel. */
    bool dry;
    /* Of a dry kernel: it has the sizes of a processor with AVX-512, on any processor. So a plan
     * does not depend on the processor that the search runs on. */
    bool anywhere;
    const wefti_backend *const *behind; /* the backends behind the asked one; ends with NULL */
} wefti_prepare;

/* For plans of machines that need not be this one. */
static inline wefti_prepare wefti_prepare_anywhere(void) {
    return (wefti_prepare){.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true, .anywhere = true};
}

/* What a node's kernel takes on a backend: as in the prepared kernel. Its seconds are the cost
 * model's (cost/cost.h). */
typedef struct wefti_estimate {
    int64_t workspace_bytes, bytes;
    int in_place;
    const char *label; /* static storage */
} wefti_estimate;

struct wefti_backend {
    const char *name;
    weft_status (*prepare)(const wefti_backend *backend, const weft_node *node,
                           const wefti_prepare *options, wefti_kernel **out);
    /* The measured choice for this processor. NULL: the backend has no bf16 arithmetic of its
     * own. */
    wefti_bf16_compute (*choose_bf16)(const wefti_backend *backend);
    /* The name of the kernel form that runs here ("avx512") with the given bf16 arithmetic. For
     * checkpoints and to compare processes. NULL: the backend has only one form. */
    const char *(*variant)(const wefti_backend *backend, wefti_bf16_compute bf16);
    /* Whether the backend really supports NATIVE on this machine. NULL: it does not. */
    bool (*has_bf16)(const wefti_backend *backend);
};

/* Runs every op by its reference kernel: operands are converted to double and results are rounded
 * once. */
extern const wefti_backend wefti_backend_reference;
/* Takes products with operands in 8 bits only (wefti_node_is_f8), and only in dry builds. The
 * backends behind it in the list estimate them. */
extern const wefti_backend wefti_backend_narrow;

/* Estimates a node without making a kernel that can run. Returns the status that `prepare` returns
 * for the same node and options, WEFT_E_NO_IMPL included. Keeps no state; several threads may call
 * it at once. */
weft_status wefti_backend_estimate(const wefti_backend *backend, const weft_node *node,
                                   const wefti_prepare *options, wefti_estimate *out);

static inline void wefti_kernel_destroy(wefti_kernel *k) {
    if (k) k->destroy(k);
}

#endif
