/* Matrix products in doubles: for gradient checks and references, where accuracy matters more than
 * speed. A task owns a few rows of C. The sums of one row and a block of columns stay on the
 * stack. */
#include "backend/cpu/gemm/kernel_table.h"

enum { F64_ROWS = 4, COLUMNS = 128 };

typedef struct f64_run {
    const wefti_gemm_spec *spec;
    const wefti_gemm_args *args;
} f64_run;

static void finish(const f64_run *r, int64_t batch, int64_t i, int64_t j, double x) {
    const wefti_gemm_spec *spec = r->spec;
    const int64_t index = i * spec->c.row_stride + j * spec->c.column_stride;
    double *c = (double *)(uintptr_t)wefti_gemm_batch(spec, &spec->c, r->args->c, batch) + index;
    x *= spec->alpha;
    if (spec->has_bias) x += ((const double *)r->args->bias)[j];
    *c = spec->accumulate ? x + *c : x;
}

static void rows_task(void *context, int64_t task, int thread) {
    (void)thread;
    const f64_run *r = context;
    const wefti_gemm_spec *spec = r->spec;
    const int64_t groups = (spec->m + F64_ROWS - 1) / F64_ROWS, batch = task / groups;
    const double *a =
        (const double *)(const void *)wefti_gemm_batch(spec, &spec->a, r->args->a, batch);
    const double *b =
        (const double *)(const void *)wefti_gemm_batch(spec, &spec->b, r->args->b, batch);
    for (int64_t i = task % groups * F64_ROWS; i < spec->m && i < (task % groups + 1) * F64_ROWS;
         i++)
        for (int64_t j = 0; j < spec->n; j += COLUMNS) {
            const int64_t count = spec->n - j < COLUMNS ? spec->n - j : COLUMNS;
            double sums[COLUMNS] = {0};
            for (int64_t p = 0; p < spec->k; p++) {
                const double left = a[i * spec->a.row_stride + p * spec->a.column_stride];
                const double *right = b + p * spec->b.row_stride + j * spec->b.column_stride;
                for (int64_t c = 0; c < count; c++)
                    sums[c] += left * right[c * spec->b.column_stride];
            }
            for (int64_t c = 0; c < count; c++) finish(r, batch, i, j + c, sums[c]);
        }
}

void wefti_gemm_run_f64(const wefti_gemm *gemm, const wefti_gemm_args *args, wefti_pool *pool) {
    const wefti_gemm_spec *spec = &gemm->spec;
    f64_run r = {.spec = spec, .args = args};
    wefti_pool_run(pool, spec->batch[0] * spec->batch[1] * ((spec->m + F64_ROWS - 1) / F64_ROWS),
                   rows_task, &r);
}
