/* Random fill: see kernels/data.h. Uniform and normal numbers have the bits of base/philox.h.
 * Normal numbers come from its function that makes many at a time. */
#include "backend/cpu/kernels/vector/table.h"

enum { RANDOM_TASK = 16384, RANDOM_BLOCK = 512, ALIGN = 64 };

static void random_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_random_fill_args *a = context;
    float block[RANDOM_BLOCK + ALIGN];
    int64_t end = min64(a->elements, (task + 1) * RANDOM_TASK);
    for (int64_t start = task * RANDOM_TASK; start < end; start += RANDOM_BLOCK) {
        int64_t count = min64(RANDOM_BLOCK, end - start);
        uint64_t position = a->base + (uint64_t)start;
        const float *numbers = block;
        float low = a->a, span = a->normal ? a->b : a->b - a->a;
        if (a->normal) {
            int64_t skip = (int64_t)(position % ALIGN); /* where the generator may start */
            wefti_philox_normals(a->seed, a->stream, position - (uint64_t)skip, skip + count, 1.0f,
                                 block);
            numbers = block + skip;
        } else {
            philox_uniform(a->seed, a->stream, position, count, block);
        }
        vf shift = vf_set1(low), scale = vf_set1(span);
        FOR_VECTORS(i, n, count) {
            vf scaled = load_f32(numbers + i, n) * scale; /* two roundings on every processor */
            store(a->y, start + i, scaled + shift, n);
        }
    }
}

void KERNEL(random_fill)(wefti_pool *pool, const wefti_random_fill_args *a) {
    wefti_random_fill_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->elements, RANDOM_TASK), random_task, &copy);
}
