/* The cpu backend's table and the shared parts of its kernels. */
#include "backend/cpu/cpu.h"

#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/ops/ops.h"

#include <math.h>
#include <string.h>

static wefti_cpu_prepare *const prepares[WEFTI_OPS] = {
#define WEFTI_CPU_ROW(op, function) [WEFTI_OP_##op] = function,
    WEFTI_CPU_OPS(WEFTI_CPU_ROW)
#undef WEFTI_CPU_ROW
};

static void destroy(wefti_kernel *kernel) {
    wefti_free(kernel);
}

weft_status wefti_cpu_kernel(size_t bytes, const char *label,
                             weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                                const void *const *, void *const *, void *),
                             wefti_kernel **out) {
    wefti_kernel *k = wefti_calloc(1, bytes);
    WEFT_REQUIRE(k, WEFT_E_NOMEM, "no memory for a kernel");
    k->run = run;
    k->destroy = destroy;
    k->label = label;
    k->bytes = (int64_t)bytes;
    k->in_place = -1;
    *out = k;
    return WEFT_OK;
}

float wefti_cpu_rate(double rate) {
    float nearest = (float)rate;
    return (double)nearest < rate ? nextafterf(nearest, 1.0f) : nearest;
}

static weft_status prepare(const wefti_backend *backend, const weft_node *node,
                           const wefti_prepare *options, wefti_kernel **out) {
    (void)backend;
    wefti_cpu_prepare *own = prepares[node->op->id];
    if (!own && node->op->flags & WEFTI_OP_ELEMENTWISE) own = wefti_cpu_elementwise;
    if (!own) return WEFT_E_NO_IMPL;
    return own(node, options, out);
}

static wefti_bf16_compute choose_bf16(const wefti_backend *backend) {
    (void)backend;
    bool native;
    if (!wefti_isa_best_has_bf16() || wefti_gemm_bf16_choice(wefti_isa_best(), &native) < 0)
        return WEFTI_BF16_AS_F32;
    return native ? WEFTI_BF16_NATIVE : WEFTI_BF16_AS_F32;
}

static const char *variant(const wefti_backend *backend, wefti_bf16_compute bf16) {
    (void)backend;
    return wefti_isa_arithmetic(bf16 == WEFTI_BF16_NATIVE);
}

static bool has_bf16(const wefti_backend *backend) {
    (void)backend;
    return wefti_isa_best_has_bf16();
}

const wefti_backend wefti_backend_cpu = {"cpu", prepare, choose_bf16, variant, has_bf16};
