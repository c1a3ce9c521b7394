/* The allocator of the library, and arenas. Every heap allocation of the library goes through these
 * functions, so that a test can make the n-th one fail (base/fault.h). */
#ifndef WEFTI_BASE_MEMORY_H
#define WEFTI_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Returns NULL on failure (or if a fault is due); the caller raises WEFT_E_NOMEM. Free with
 * wefti_free. */
void *wefti_alloc(size_t bytes);
void *wefti_calloc(size_t count, size_t bytes); /* zeroed; fails if count * bytes overflows */
void *wefti_realloc(void *old, size_t bytes);   /* on failure `old` stays valid */
void wefti_free(void *p);                       /* NULL is legal */
char *wefti_strdup(const char *text);
char *wefti_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define WEFT_NEW(out, type) WEFT_NEW_ARRAY(out, type, 1)
/* Allocate `count` zeroed elements into `out` or return WEFT_E_NOMEM. */
#define WEFT_NEW_ARRAY(out, type, count)                                                           \
    do {                                                                                           \
        (out) = (type *)wefti_calloc((size_t)(count), sizeof(type));                               \
        WEFT_REQUIRE((out) != NULL, WEFT_E_NOMEM, "no memory for %zu x %zu bytes",                 \
                     (size_t)(count), sizeof(type));                                               \
    } while (0)

/* Grow-only arena: many small allocations, freed together. */
typedef struct wefti_arena wefti_arena;
weft_status wefti_arena_create(wefti_arena **out) WEFT_CHECKED;
void wefti_arena_destroy(wefti_arena *arena);
void wefti_arena_clear(wefti_arena *arena); /* ends all allocations, and keeps the newest block */
void *wefti_arena_alloc(wefti_arena *arena,
                        size_t bytes); /* zeroed, 16-byte aligned; NULL on failure */
/* Bytes that the arena has requested from the allocator; NULL: 0. */
int64_t wefti_arena_bytes(const wefti_arena *arena);
char *wefti_arena_strdup(wefti_arena *arena, const char *text);
/* the concatenation of both strings */
char *wefti_arena_join(wefti_arena *arena, const char *a, const char *b);
char *wefti_arena_format(wefti_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Makes room for one more element in a doubling array: WEFT_GROW(array, used, capacity). */
weft_status wefti_grow(void **array, int64_t used, int64_t *capacity, size_t element) WEFT_CHECKED;
#define WEFT_GROW(array, used, capacity)                                                           \
    wefti_grow((void **)&(array), (used), &(capacity), sizeof *(array))

/* Bytes that an array with room for `capacity` elements has requested; NULL: 0. */
static inline int64_t wefti_array_bytes(const void *array, int64_t capacity, size_t element) {
    return array ? (capacity ? capacity : 1) * (int64_t)element : 0;
}

/* Checked arithmetic for sizes that come from files or users. Returns true on overflow. */
static inline int wefti_mul_overflows(int64_t a, int64_t b, int64_t *out) {
    return __builtin_mul_overflow(a, b, out);
}
static inline int wefti_add_overflows(int64_t a, int64_t b, int64_t *out) {
    return __builtin_add_overflow(a, b, out);
}
static inline int wefti_sub_overflows(int64_t a, int64_t b, int64_t *out) {
    return __builtin_sub_overflow(a, b, out);
}

#endif
