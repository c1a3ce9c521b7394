/* Measures rates of this machine: matrix multiplication and copying. See weft/info.h. */
#include "weft/info.h"

#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/pool.h"

/* Copies of 64 MiB exceed the outer caches of most machines. The first run also touches the memory
 * for the first time, so it never counts. */
enum { COPY_BYTES = 64 << 20, COPY_TASK = 1 << 20 };
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

weft_status weft_info_measure(int threads, weft_rates *out) {
    WEFT_REQUIRE(threads >= 0, WEFT_E_ARG, "cannot measure with %d threads", threads);
    weft_rates rates = {.threads = threads ? threads : wefti_cores()};
    wefti_pool *pool;
    WEFT_TRY(wefti_pool_create(rates.threads, &pool));
    weft_status status;
    WEFT_TRY_OR(done, status, measure_copy(pool, &rates.copy));
    WEFT_TRY_OR(done, status, wefti_cpu_product_rate(WEFT_F32, pool, &rates.matmul_f32));
    WEFT_TRY_OR(done, status, wefti_cpu_product_rate(WEFT_BF16, pool, &rates.matmul_bf16));
    *out = rates;
done:
    wefti_pool_destroy(pool);
    return status;
}
