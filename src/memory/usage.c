/* How much of a placed arena is in use at each time: see memory/place.h. */
#include "memory/place.h"

#include <stdlib.h>

#include "base/memory.h"

static int64_t end_of(const wefti_lifetime *x) {
    return x->offset + x->bytes;
}

static int by_end(const void *a, const void *b) {
    const int64_t x = end_of(*(const wefti_lifetime *const *)a),
                  y = end_of(*(const wefti_lifetime *const *)b);
    return (x < y) - (x > y);
}

static int32_t next_open(int32_t *next, int32_t at) {
    while (next[at] != at) at = next[at] = next[next[at]];
    return at;
}

/* Sets the times of [first, last] that have no value yet. */
static void cover(int32_t *next, int64_t *highest, int32_t first, int32_t last, int64_t end) {
    for (int32_t t = next_open(next, first); t <= last; t = next_open(next, t)) {
        highest[t] = end;
        next[t] = t + 1;
    }
}

/* The buffers with the highest ends come first, so each time is set once. */
static void find_highest(const wefti_lifetime **sorted, int64_t count, int32_t times, int32_t *next,
                         int64_t *out) {
    for (int32_t t = 0; t <= times; t++) next[t] = t;
    for (int32_t t = 0; t < times; t++) out[t] = 0;
    for (int64_t i = 0; i < count; i++) {
        const wefti_lifetime *x = sorted[i];
        if (x->bytes <= 0) continue;
        cover(next, out, x->first, x->last, end_of(x));
        if (x->until > 0) cover(next, out, x->again, x->until, end_of(x));
    }
}

static void add(int64_t *out, int32_t times, int32_t first, int32_t last, int64_t bytes) {
    out[first] += bytes;
    if (last + 1 < times) out[last + 1] -= bytes;
}

static void find_alive(const wefti_lifetime *buffers, int64_t count, int32_t times, int64_t *out) {
    for (int32_t t = 0; t < times; t++) out[t] = 0;
    for (int64_t i = 0; i < count; i++) {
        const wefti_lifetime *x = &buffers[i];
        add(out, times, x->first, x->last, x->bytes);
        if (x->until > 0) add(out, times, x->again, x->until, x->bytes);
    }
    for (int32_t t = 1; t < times; t++) out[t] += out[t - 1];
}

weft_status wefti_place_usage(const wefti_lifetime *buffers, int64_t count, int32_t times,
                              int64_t *out_highest, int64_t *out_alive) {
    const wefti_lifetime **sorted;
    int32_t *next;
    WEFT_NEW_ARRAY(sorted, const wefti_lifetime *, count + 1);
    next = wefti_calloc((size_t)times + 2, sizeof *next);
    if (!next) {
        wefti_free(sorted);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for the use of an arena");
    }
    for (int64_t i = 0; i < count; i++) sorted[i] = &buffers[i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_end);
    find_highest(sorted, count, times, next, out_highest);
    find_alive(buffers, count, times, out_alive);
    wefti_free(sorted);
    wefti_free(next);
    return WEFT_OK;
}
