/* Products with operands in 8 bits, for predictions. No kernel of them exists. Their memory is that
 * of another backend's kernel and of the results of casts, which live as long as the product. */
#include "backend/backend.h"
#include "base/memory.h"

static void destroy(wefti_kernel *kernel) {
    wefti_free(kernel);
}

/* Copies begin at whole lines of 64 bytes, as everything in a workspace. */
static int64_t copy_bytes(const weft_desc *of) {
    return (weft_desc_elems(of) + 63) / 64 * 64;
}

static weft_status estimate(const weft_node *node, const wefti_prepare *options,
                            wefti_estimate *out) {
    for (const wefti_backend *const *b = options->behind; b && *b; b++) {
        const weft_status status = wefti_backend_estimate(*b, node, options, out);
        if (status != WEFT_E_NO_IMPL) return status;
    }
    return WEFT_E_NO_IMPL;
}

static weft_status prepare(const wefti_backend *backend, const weft_node *node,
                           const wefti_prepare *options, wefti_kernel **out) {
    wefti_estimate own;
    (void)backend;
    if (!wefti_node_is_f8(node)) return WEFT_E_NO_IMPL;
    WEFT_REQUIRE(options->dry, WEFT_E_ARG,
                 "products in f8 (train.products) are for predictions, such as weft plan and weft "
                 "simulate; to train, set train.products=auto");
    const weft_status status = estimate(node, options, &own);
    if (status < 0) return status;
    wefti_kernel *k;
    WEFT_NEW(k, wefti_kernel);
    *k = (wefti_kernel){.destroy = destroy,
                        .label = own.label,
                        .bytes = own.bytes,
                        .in_place = own.in_place,
                        .workspace_bytes = own.workspace_bytes + copy_bytes(wefti_in(node, 0)) +
                                           copy_bytes(wefti_in(node, 1))};
    *out = k;
    return WEFT_OK;
}

const wefti_backend wefti_backend_narrow = {"narrow", prepare, NULL, NULL, NULL};
