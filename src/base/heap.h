/* Binary heaps over arrays of the caller, for one type of entry and one order.
 *
 * WEFTI_HEAP(name, entry, context, before) defines three functions. `before` tells whether an entry
 * comes before another; its form is bool before(context, const entry *, const entry *).
 *
 * - name_push(heap, &count, item, c) adds an entry; the array has room for it.
 * - name_pop(heap, &count, c) removes and returns the first entry.
 * - name_sink(heap, count, at, item, c) replaces entry `at`, whose successors are in order.
 *
 * The first entry is heap[0]. `context` is a type. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* clang-format off */
#define WEFTI_HEAP(name, entry, context, before)                                                      \
    static inline void name##_sink(entry *heap, int64_t count, int64_t at, entry item, context c) {   \
        for (int64_t child; (child = 2 * at + 1) < count; at = child) {                               \
            if (child + 1 < count && before(c, &heap[child + 1], &heap[child])) child++;              \
            if (!before(c, &heap[child], &item)) break;                                               \
            heap[at] = heap[child];                                                                   \
        }                                                                                             \
        heap[at] = item;                                                                              \
    }                                                                                                 \
    static inline __attribute__((unused)) void name##_push(entry *heap, int64_t *count, entry item,   \
                                                           context c) {                               \
        int64_t at = (*count)++;                                                                      \
        for (; at && before(c, &item, &heap[(at - 1) / 2]); at = (at - 1) / 2)                        \
            heap[at] = heap[(at - 1) / 2];                                                            \
        heap[at] = item;                                                                              \
    }                                                                                                 \
    static inline __attribute__((unused)) entry name##_pop(entry *heap, int64_t *count, context c) {  \
        const entry first = heap[0], last = heap[--*count];                                           \
        if (*count) name##_sink(heap, *count, 0, last, c);                                            \
        return first;                                                                                 \
    }
/* clang-format on */
