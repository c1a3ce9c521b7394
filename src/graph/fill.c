/* Initial values by global position: see fill.h. */
#include "graph/fill.h"

#include "base/philox.h"

enum { GRAPH_FILL_BLOCK = 1024, FILL_ALIGN = 64 /* where wefti_philox_normals may start */ };

/* Stores `count` normal numbers from position `at` of the stream, times `scale`. */
static void store_normals(weft_dtype dtype, uint64_t seed, uint64_t stream, float scale,
                          uint64_t at, int64_t count, void *data, int64_t to) {
    float numbers[GRAPH_FILL_BLOCK + FILL_ALIGN];
    for (int64_t done = 0; done < count;) {
        int64_t skip = (int64_t)(at % FILL_ALIGN), left = count - done;
        int64_t part = left < GRAPH_FILL_BLOCK ? left : GRAPH_FILL_BLOCK;
        if (dtype == WEFT_F32 && skip == 0) { /* straight to their destination */
            wefti_philox_normals(seed, stream, at, left, scale, (float *)data + to + done);
            return;
        }
        if (dtype == WEFT_F32 && part > FILL_ALIGN - skip) part = FILL_ALIGN - skip;
        wefti_philox_normals(seed, stream, at - (uint64_t)skip, skip + part, scale, numbers);
        for (int64_t i = 0; i < part; i++)
            wefti_store(dtype, data, to + done + i, (double)numbers[skip + i]);
        done += part;
        at += (uint64_t)part;
    }
}

static void store_run(const weft_init *init, weft_dtype dtype, uint64_t seed, uint64_t stream,
                      uint64_t at, int64_t count, void *data, int64_t to) {
    switch (init->kind) {
    case WEFT_INIT_NORMAL:
        store_normals(dtype, seed, stream, (float)init->scale, at, count, data, to);
        return;
    case WEFT_INIT_UNIFORM:
        for (int64_t i = 0; i < count; i++) {
            double u = (double)wefti_philox_uniform(seed, stream, at + (uint64_t)i);
            wefti_store(dtype, data, to + i, init->scale * (2.0 * u - 1.0));
        }
        return;
    case WEFT_INIT_ZEROS:
    case WEFT_INIT_CONSTANT:
        for (int64_t i = 0; i < count; i++)
            wefti_store(dtype, data, to + i, init->kind == WEFT_INIT_CONSTANT ? init->scale : 0.0);
        return;
    }
}

/* Trailing dimensions that the region covers entirely form one contiguous run in the tensor and in
 * the region. */
void wefti_fill_region(const weft_init *init, uint64_t seed, uint64_t stream,
                       const weft_desc *whole, const wefti_region *region, int64_t first,
                       int64_t count, void *region_data) {
    int64_t strides[WEFT_MAX_RANK], run = 1;
    int outer = whole->rank; /* loop over dimensions [0, outer); the rest is one run */
    wefti_strides(whole, strides);
    while (outer > 0) {
        outer--;
        run *= region->size[outer];
        if (region->size[outer] != whole->shape[outer]) break;
    }
    if (run == 0) return;
    for (int64_t e = first; e < first + count;) {
        int64_t row = e / run, inside = e % run, at = inside, rest = row;
        for (int d = outer - 1; d >= 0; d--) {
            at += (region->begin[d] + rest % region->size[d]) * strides[d];
            rest /= region->size[d];
        }
        if (whole->rank) at += region->begin[outer] * strides[outer];
        int64_t part = run - inside < first + count - e ? run - inside : first + count - e;
        store_run(init, whole->dtype, seed, stream, (uint64_t)at, part, region_data, e);
        e += part;
    }
}
