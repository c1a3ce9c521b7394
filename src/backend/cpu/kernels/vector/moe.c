/* moe_dispatch, moe_combine, moe_dot: see kernels/moe.h. */
#include "backend/cpu/kernels/vector/table.h"

enum { MOE_TASK = 8192 };

static int64_t rows_of_task(const wefti_moe_args *a) {
    return max64(1, MOE_TASK / max64(a->h, 1));
}

/* The row of y of choice i; -1 if the choice has no row here. */
static int64_t row_of(const wefti_moe_args *a, int64_t i) {
    int64_t e = (int64_t)a->expert[i] - a->first_expert, s = (int64_t)a->slot[i] - a->first_slot;
    if (a->slot[i] < 0 || e < 0 || e >= a->experts || s < 0 || s >= a->capacity) return -1;
    return (e * a->groups + i / (a->size * a->choices)) * a->capacity + s;
}
static int64_t rows_of_y(const wefti_moe_args *a) {
    return a->experts * a->groups * a->capacity;
}

/* The choices of each row of y form a list in order: head[row], then next[choice]. */
static void dispatch_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_moe_args *a = context;
    const int32_t *head = a->workspace, *next = head + rows_of_y(a);
    int64_t per = rows_of_task(a), end = min64(rows_of_y(a), (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) {
        wefti_dst y = out_at(a->to, row * a->h);
        FOR_VECTORS(d, n, a->h) {
            vf sum = vf_zero();
            for (int32_t i = head[row]; i >= 0; i = next[i]) {
                float weight = a->weight.data ? load1(a->weight, i) : 1.0f;
                vf x = load(a->from, i / a->choices * a->h + d, n);
                sum = vf_fma(vf_set1(weight), x, sum);
            }
            store(y, d, sum, n);
        }
    }
}

void KERNEL(moe_dispatch)(wefti_pool *pool, const wefti_moe_args *a) {
    wefti_moe_args copy = *a;
    int64_t rows = rows_of_y(a);
    int32_t *head = a->workspace, *next = head + rows;
    for (int64_t row = 0; row < rows; row++) head[row] = -1;
    for (int64_t i = a->groups * a->size * a->choices - 1; i >= 0; i--) {
        int64_t row = row_of(a, i);
        if (row < 0) continue;
        next[i] = head[row];
        head[row] = (int32_t)i;
    }
    wefti_pool_run(pool, blocks_of(rows, rows_of_task(a)), dispatch_task, &copy);
}

static void combine_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_moe_args *a = context;
    int64_t per = rows_of_task(a), end = min64(a->groups * a->size, (task + 1) * per);
    for (int64_t t = task * per; t < end; t++) {
        int64_t row[WEFTI_MOE_CHOICES];
        float weight[WEFTI_MOE_CHOICES];
        int64_t count = 0;
        for (int64_t i = t * a->choices; i < (t + 1) * a->choices; i++) {
            row[count] = row_of(a, i);
            weight[count] = a->weight.data ? load1(a->weight, i) : 1.0f;
            count += row[count] >= 0;
        }
        wefti_dst x = out_at(a->to, t * a->h);
        FOR_VECTORS(d, n, a->h) {
            vf sum = vf_zero();
            for (int64_t c = 0; c < count; c++)
                sum = vf_fma(vf_set1(weight[c]), load(a->from, row[c] * a->h + d, n), sum);
            store(x, d, sum, n);
        }
    }
}

void KERNEL(moe_combine)(wefti_pool *pool, const wefti_moe_args *a) {
    wefti_moe_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->groups * a->size, rows_of_task(a)), combine_task, &copy);
}

static void dot_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_moe_args *a = context;
    int64_t count = a->groups * a->size * a->choices, per = rows_of_task(a);
    int64_t end = min64(count, (task + 1) * per);
    for (int64_t i = task * per; i < end; i++) {
        int64_t row = row_of(a, i), token = i / a->choices;
        vf sum = vf_zero();
        if (row >= 0) {
            FOR_VECTORS(d, n, a->h) {
                sum =
                    vf_fma(load(a->from, row * a->h + d, n), load(a->x, token * a->h + d, n), sum);
            }
        }
        a->dots[i] = vf_sum(sum);
    }
}

void KERNEL(moe_dot)(wefti_pool *pool, const wefti_moe_args *a) {
    wefti_moe_args copy = *a;
    int64_t count = a->groups * a->size * a->choices;
    wefti_pool_run(pool, blocks_of(count, rows_of_task(a)), dot_task, &copy);
}
