/* Estimates nodes by the same code that prepares their kernels, so an estimate cannot differ from
 * the kernel. */
#include "backend/backend.h"

weft_status wefti_backend_estimate(const wefti_backend *backend, const weft_node *node,
                                   const wefti_prepare *options, wefti_estimate *out) {
    wefti_prepare dry = *options;
    wefti_kernel *kernel;
    dry.dry = true;
    weft_status status = backend->prepare(backend, node, &dry, &kernel);
    if (status < 0) return status;
    *out = (wefti_estimate){.workspace_bytes = kernel->workspace_bytes,
                            .bytes = kernel->bytes,
                            .in_place = kernel->in_place,
                            .label = kernel->label};
    wefti_kernel_destroy(kernel);
    return WEFT_OK;
}
