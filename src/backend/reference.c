/* The reference backend: runs every op by the plain C kernel in the op's own file.
 *
 * Operands are converted to double, the op's reference kernel runs, and results are rounded once.
 * Elementwise ops of integers compute in integers. The backend is slow and simple: it is the oracle
 * of tests, and runs nodes that no fast kernel takes. */
#include "backend/backend.h"
#include "base/memory.h"
#include "base/number.h"

typedef struct reference_kernel {
    wefti_kernel base;
    const weft_node *node;
} reference_kernel;

static int64_t slot(const weft_desc *d) {
    return wefti_aligned(weft_desc_elems(d) * 8);
}

static weft_status run(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                       void *const *out, void *workspace) {
    const weft_node *n = ((const reference_kernel *)kernel)->node;
    const double *from[WEFTI_MAX_IN];
    double *to[WEFTI_MAX_OUT];
    unsigned char *next = workspace;
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *d = wefti_in(n, i);
        from[i] = NULL;
        if (!d) continue;
        wefti_convert(WEFT_F64, next, d->dtype, in[i], weft_desc_elems(d));
        from[i] = (const double *)(void *)next;
        next += slot(d);
    }
    for (int o = 0; o < n->outputs; o++) {
        to[o] = (double *)(void *)next;
        next += slot(wefti_out(n, o));
    }
    WEFT_TRY(n->op->reference ? n->op->reference(n, &run->random, from, to)
                              : wefti_elementwise_reference(n, &run->random, from, to));
    for (int o = 0; o < n->outputs; o++) {
        const weft_desc *d = wefti_out(n, o);
        wefti_convert(d->dtype, out[o], WEFT_F64, to[o], weft_desc_elems(d));
    }
    return WEFT_OK;
}

/* Runs on integers as they are stored, without conversion to double. */
static weft_status run_integer(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    (void)run;
    (void)workspace;
    wefti_elementwise_integer(((const reference_kernel *)kernel)->node, in, out[0]);
    return WEFT_OK;
}

static void destroy(wefti_kernel *kernel) {
    wefti_free(kernel);
}

static weft_status prepare(const wefti_backend *backend, const weft_node *node,
                           const wefti_prepare *options, wefti_kernel **out) {
    (void)backend;
    if (options->accumulate || (!node->op->reference && !node->op->element)) return WEFT_E_NO_IMPL;
    reference_kernel *k;
    WEFT_NEW(k, reference_kernel);
    k->base = (wefti_kernel){
        .run = run, .destroy = destroy, .label = "reference", .bytes = sizeof *k, .in_place = -1};
    k->node = node;
    *out = &k->base;
    if (wefti_elementwise_is_integer(node)) {
        k->base.run = run_integer;
        return WEFT_OK;
    }
    for (int i = 0; i < node->inputs; i++)
        if (wefti_in(node, i)) k->base.workspace_bytes += slot(wefti_in(node, i));
    for (int o = 0; o < node->outputs; o++) k->base.workspace_bytes += slot(wefti_out(node, o));
    return WEFT_OK;
}

const wefti_backend wefti_backend_reference = {"reference", prepare, NULL, NULL, NULL};
