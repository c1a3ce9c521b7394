/* top_k: see kernels/data.h. A heap holds the k best elements so far, the worst on top. Finally the
 * heap is sorted in place. */
#include "backend/cpu/kernels/vector/table.h"
#include "base/heap.h"

typedef struct entry {
    float value;
    int64_t index;
} entry;

/* Does a come after b in the result? NaN first, then greater values, then lower indices. */
static bool worse(entry a, entry b) {
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && a.value != b.value) return a.value < b.value;
    return a.index > b.index;
}

static bool above(const void *none, const entry *a, const entry *b) {
    (void)none;
    return worse(*a, *b);
}
WEFTI_HEAP(worst, entry, const void *, above)

static void top_k_task(void *context, int64_t row, int thread) {
    (void)thread;
    const wefti_top_k_args *a = context;
    entry *heap = (entry *)a->workspace + row * a->k;
    wefti_src x = in_at(a->x, row * a->dim);
    for (int64_t i = 0; i < a->k; i++) heap[i] = (entry){load1(x, i), i};
    for (int64_t i = a->k / 2 - 1; i >= 0; i--) worst_sink(heap, a->k, i, heap[i], NULL);
    for (int64_t i = a->k; i < a->dim;) {
        i = skip_lower(x, i, a->dim, heap[0].value); /* later equal elements are worse */
        for (int64_t end = min64(a->dim, i + SKIP); i < end; i++) {
            entry item = {load1(x, i), i};
            if (worse(heap[0], item)) worst_sink(heap, a->k, 0, item, NULL);
        }
    }
    for (int64_t n = a->k - 1; n > 0; n--) { /* the worst goes to the end */
        entry item = heap[n];
        heap[n] = heap[0];
        worst_sink(heap, n, 0, item, NULL);
    }
    for (int64_t i = 0; i < a->k; i++) {
        store1(a->values, row * a->k + i, heap[i].value);
        if (a->indices.dtype == WEFT_I64)
            ((int64_t *)a->indices.data)[row * a->k + i] = heap[i].index;
        else
            ((int32_t *)a->indices.data)[row * a->k + i] = (int32_t)heap[i].index;
    }
}

void KERNEL(top_k)(wefti_pool *pool, const wefti_top_k_args *a) {
    wefti_top_k_args copy = *a;
    wefti_pool_run(pool, a->rows, top_k_task, &copy);
}
