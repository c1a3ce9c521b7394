/* The rate of a matrix product on this machine. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm/gemm.h"
#include "base/clock.h"
#include "base/memory.h"

/* Matrices of 4 MiB exceed the inner caches, and their product is short enough to run several
 * times. The first run also touches the memory, so it never counts. */
enum { RATE_SIDE = 1024 };
static const double enough_s = 0.15;

static void fill(weft_dtype dtype, void *data, int64_t count) {
    /* 1.0 in both types: nothing is subnormal and nothing overflows */
    for (int64_t i = 0; i < count; i++) {
        if (dtype == WEFT_F32)
            ((float *)data)[i] = 1.0f;
        else
            ((uint16_t *)data)[i] = 0x3f80;
    }
}

weft_status wefti_cpu_product_rate(weft_dtype dtype, wefti_pool *pool, double *flops_per_second) {
    const int64_t elements = (int64_t)RATE_SIDE * RATE_SIDE,
                  bytes = elements * (int64_t)weft_dtype_bytes(dtype);
    wefti_gemm_spec spec = wefti_gemm_spec_of(dtype, RATE_SIDE, RATE_SIDE, RATE_SIDE);
    wefti_gemm gemm;
    wefti_isa isa = wefti_isa_best();
    if (dtype == WEFT_BF16 && wefti_isa_best_has_bf16())
        WEFT_TRY(wefti_gemm_bf16_choice(isa, &spec.bf16)); /* as in training */
    WEFT_TRY(wefti_gemm_prepare(&spec, isa, &gemm));
    int64_t workspace = wefti_gemm_workspace_bytes(&gemm, wefti_pool_threads(pool));
    char *block = wefti_alloc((size_t)(3 * bytes + workspace) + 64);
    WEFT_REQUIRE(block, WEFT_E_NOMEM, "no memory for matrices of %lld bytes", (long long)bytes);
    char *at = block + (64 - (uintptr_t)block % 64) % 64;
    wefti_gemm_args args = {.a = at, .b = at + bytes, .c = at + 2 * bytes};
    fill(dtype, at, 3 * elements);
    double best = 0, spent = 0;
    for (int i = 0; i < 2 || spent < enough_s; i++) {
        double begin = wefti_now_s();
        wefti_gemm_run(&gemm, &args, at + 3 * bytes, pool);
        double seconds = wefti_now_s() - begin,
               rate = 2.0 * RATE_SIDE * RATE_SIDE * RATE_SIDE / seconds;
        spent += seconds;
        if (i > 0 && rate > best) best = rate;
    }
    wefti_free(block);
    *flops_per_second = best;
    return WEFT_OK;
}
