/* Measured rates of this machine: matrix multiplication and copying. See weft/info.h. */
#include "weft/info.h"

#include <string.h>

#include "backend/cpu/gemm/gemm.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/pool.h"

/* Matrices of 4 MiB are past the inner caches and short enough to run several times; copies of 64
 * MiB are past the outer caches of most machines. The first run of each also touches the memory, so
 * one run never counts. */
enum { SIDE = 1024, COPY_BYTES = 64 << 20, COPY_TASK = 1 << 20 };
static const double enough_s = 0.15;

typedef struct copy_work {
    char *to;
    const char *from;
} copy_work;

static void copy_task(void *context, int64_t task, int thread) {
    (void)thread;
    const copy_work *work = context;
    memcpy(work->to + task * COPY_TASK, work->from + task * COPY_TASK, COPY_TASK);
}

static weft_status measure_copy(wefti_pool *pool, double *out) {
    char *block = wefti_calloc(2, COPY_BYTES);
    WEFT_REQUIRE(block, WEFT_E_NOMEM, "no memory for two blocks of %d MiB", COPY_BYTES >> 20);
    copy_work work = {.to = block, .from = block + COPY_BYTES};
    double best = 0, spent = 0;
    for (int i = 0; i < 2 || spent < enough_s; i++) {
        double begin = wefti_now_s();
        wefti_pool_run(pool, COPY_BYTES / COPY_TASK, copy_task, &work);
        double seconds = wefti_now_s() - begin, rate = COPY_BYTES / seconds;
        spent += seconds;
        if (i > 0 && rate > best) best = rate;
    }
    wefti_free(block);
    *out = best;
    return WEFT_OK;
}

static void fill(weft_dtype dtype, void *data, int64_t count) {
    /* 1.0 in both types: no subnormals, nothing that overflows */
    for (int64_t i = 0; i < count; i++) {
        if (dtype == WEFT_F32)
            ((float *)data)[i] = 1.0f;
        else
            ((uint16_t *)data)[i] = 0x3f80;
    }
}

static weft_status measure_matmul(weft_dtype dtype, wefti_pool *pool, double *out) {
    const int64_t elements = (int64_t)SIDE * SIDE,
                  bytes = elements * (int64_t)weft_dtype_bytes(dtype);
    wefti_gemm_spec spec = wefti_gemm_spec_of(dtype, SIDE, SIDE, SIDE);
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
        double seconds = wefti_now_s() - begin, rate = 2.0 * SIDE * SIDE * SIDE / seconds;
        spent += seconds;
        if (i > 0 && rate > best) best = rate;
    }
    wefti_free(block);
    *out = best;
    return WEFT_OK;
}

weft_status weft_info_measure(int threads, weft_rates *out) {
    WEFT_REQUIRE(threads >= 0, WEFT_E_ARG, "cannot measure with %d threads", threads);
    weft_rates rates = {.threads = threads ? threads : wefti_cores()};
    wefti_pool *pool;
    WEFT_TRY(wefti_pool_create(rates.threads, &pool));
    weft_status status;
    WEFT_TRY_OR(done, status, measure_copy(pool, &rates.copy));
    WEFT_TRY_OR(done, status, measure_matmul(WEFT_F32, pool, &rates.matmul_f32));
    WEFT_TRY_OR(done, status, measure_matmul(WEFT_BF16, pool, &rates.matmul_bf16));
    *out = rates;
done:
    wefti_pool_destroy(pool);
    return status;
}
