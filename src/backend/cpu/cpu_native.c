/* bf16 products through oneDNN: see cpu_native.h. */
#include "backend/cpu/cpu_native.h"

static int64_t aligned(int64_t bytes) {
    return (bytes + 63) & ~(int64_t)63;
}

weft_status wefti_native_create(const wefti_gemm_spec *spec, bool packed, int threads,
                                wefti_native_product *out) {
    wefti_native_product p = {.kernels = wefti_kernels_best(), .packed = packed};
    wefti_gemm_spec s = *spec;
    if (s.a.dtype != WEFT_BF16 || s.batch[0] != 1 || s.batch[1] != 1) return WEFT_E_NO_IMPL;
    if (s.b.dtype == WEFT_F32) {
        bool dense = (s.b.column_stride == 1 && s.b.row_stride == s.n) ||
                     (s.b.row_stride == 1 && s.b.column_stride == s.k);
        if (!dense) return WEFT_E_NO_IMPL;
        p.round_b = true;
        s.b.dtype = WEFT_BF16;
    } else if (s.b.dtype != WEFT_BF16) {
        return WEFT_E_NO_IMPL;
    }
    s.b_packed = packed;
    p.b_elems = s.k * s.n;
    p.b_bytes = p.round_b ? aligned(p.b_elems * 2) : 0;
    weft_status status = wefti_onednn_matmul_create(&s, wefti_isa_best(), threads, &p.matmul);
    if (status < 0) return status;
    p.matmul_bytes = aligned(wefti_onednn_matmul_workspace_bytes(p.matmul));
    p.packed_bytes = packed ? aligned(wefti_onednn_matmul_packed_bytes(p.matmul)) : 0;
    *out = p;
    return WEFT_OK;
}

void wefti_native_destroy(wefti_native_product *p) {
    wefti_onednn_matmul_destroy(p->matmul);
}

int64_t wefti_native_workspace_bytes(const wefti_native_product *p) {
    return p->matmul_bytes + (p->packed ? 0 : p->b_bytes);
}

int64_t wefti_native_packed_bytes(const wefti_native_product *p) {
    return p->packed_bytes + p->b_bytes + p->matmul_bytes;
}

static void round_to_bf16(const wefti_native_product *p, const void *from, void *to,
                          wefti_pool *pool) {
    p->kernels->convert(
        pool,
        &(wefti_convert_args){.x = {from, WEFT_F32}, .y = {to, WEFT_BF16}, .elements = p->b_elems});
}

weft_status wefti_native_pack(const wefti_native_product *p, const void *b, void *packed,
                              wefti_pool *pool) {
    unsigned char *rounded = (unsigned char *)packed + p->packed_bytes;
    void *workspace = rounded + p->b_bytes;
    if (p->round_b) {
        round_to_bf16(p, b, rounded, pool);
        b = rounded;
    }
    return wefti_onednn_matmul_pack_b(p->matmul, b, packed, workspace, pool);
}

weft_status wefti_native_run(const wefti_native_product *p, const wefti_gemm_args *args,
                             void *workspace, wefti_pool *pool) {
    wefti_gemm_args a = *args;
    if (!p->packed && p->round_b) {
        void *rounded = (unsigned char *)workspace + p->matmul_bytes;
        round_to_bf16(p, a.b, rounded, pool);
        a.b = rounded;
    }
    return wefti_onednn_matmul_run(p->matmul, &a, workspace, pool);
}

/* ---- as a kernel ---- */

typedef struct native_kernel {
    wefti_kernel base;
    wefti_native_product product;
    int a, b, bias;
} native_kernel;

static weft_status run_native(const wefti_kernel *kernel, const wefti_run *run,
                              const void *const *in, void *const *out, void *workspace) {
    const native_kernel *k = (const native_kernel *)kernel;
    wefti_gemm_args args = {
        .a = in[k->a], .b = in[k->b], .c = out[0], .bias = k->bias < 0 ? NULL : in[k->bias]};
    return wefti_native_run(&k->product, &args, workspace, run->pool);
}

static weft_status pack_native(const wefti_kernel *kernel, const wefti_run *run, const void *source,
                               void *packed) {
    return wefti_native_pack(&((const native_kernel *)kernel)->product, source, packed, run->pool);
}

static void destroy_native(wefti_kernel *kernel) {
    wefti_native_destroy(&((native_kernel *)kernel)->product);
    wefti_free(kernel);
}

weft_status wefti_cpu_native_kernel(const weft_node *n, const wefti_gemm_spec *spec, int a, int b,
                                    int bias, const wefti_prepare *options, wefti_kernel **out) {
    wefti_native_product product;
    bool packed = options->pack_weights && spec->b.dtype == WEFT_F32 && wefti_in_is_param(n, b);
    weft_status status = wefti_native_create(spec, packed, options->threads, &product);
    if (status < 0) return status;
    wefti_kernel *base;
    status = wefti_cpu_kernel(sizeof(native_kernel), "bf16 matmul", run_native, &base);
    if (status < 0) {
        wefti_native_destroy(&product);
        return status;
    }
    native_kernel *k = (native_kernel *)base;
    k->product = product;
    k->a = a;
    k->b = b;
    k->bias = bias;
    base->destroy = destroy_native;
    base->workspace_bytes = wefti_native_workspace_bytes(&product);
    if (packed) {
        base->packed_input = b;
        base->packed_bytes = wefti_native_packed_bytes(&product);
        base->pack = pack_native;
        /* The packed form fits equal m, n, k and orientation only. */
        base->packed_format = ((uint64_t)spec->m * 0x9E3779B97F4A7C15u) ^
                              ((uint64_t)spec->n * 0xC2B2AE3D27D4EB4Fu) ^
                              ((uint64_t)spec->k * 0x165667B19E3779F9u) ^
                              (uint64_t)(spec->b.column_stride == 1 ? 1 : 2);
    }
    *out = base;
    return WEFT_OK;
}
