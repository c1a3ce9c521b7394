/* The allocator functions and grow-only arenas. */
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

void *wefti_alloc(size_t bytes) {
    if (wefti_fault_due(WEFTI_FAULT_ALLOC) || bytes > PTRDIFF_MAX) return NULL;
    return malloc(bytes ? bytes : 1);
}

void *wefti_calloc(size_t count, size_t bytes) {
    size_t total;
    if (wefti_fault_due(WEFTI_FAULT_ALLOC)) return NULL;
    if (__builtin_mul_overflow(count, bytes, &total) || total > PTRDIFF_MAX) return NULL;
    return calloc(count ? count : 1, bytes ? bytes : 1);
}

void *wefti_realloc(void *old, size_t bytes) {
    if (wefti_fault_due(WEFTI_FAULT_ALLOC) || bytes > PTRDIFF_MAX) return NULL;
    return realloc(old, bytes ? bytes : 1);
}

void wefti_free(void *p) {
    free(p);
}

char *wefti_strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = wefti_alloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

static char *format_with(wefti_arena *arena, const char *format, va_list args) {
    char few[200]; /* most names and messages fit here and are formatted only once */
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(few, sizeof few, format, args);
    char *text = NULL;
    if (n >= 0) {
        size_t bytes = (size_t)n + 1;
        text = arena ? wefti_arena_alloc(arena, bytes) : wefti_alloc(bytes);
        if (text && bytes <= sizeof few)
            memcpy(text, few, bytes);
        else if (text)
            (void)vsnprintf(text, bytes, format, again);
    }
    va_end(again);
    return text;
}

char *wefti_format(const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = format_with(NULL, format, args);
    va_end(args);
    return text;
}

/* size of the first and the largest block; in between, sizes double */
enum { FIRST_BYTES = 1 << 10, BLOCK_BYTES = 1 << 16 };

typedef struct block {
    struct block *next;
    size_t used, capacity;
    _Alignas(16) unsigned char data[];
} block;

struct wefti_arena {
    block *head;
};

weft_status wefti_arena_create(wefti_arena **out) {
    wefti_arena *arena;
    WEFT_NEW(arena, wefti_arena);
    *out = arena;
    return WEFT_OK;
}

void wefti_arena_destroy(wefti_arena *arena) {
    if (!arena) return;
    for (block *b = arena->head; b;) {
        block *next = b->next;
        wefti_free(b);
        b = next;
    }
    wefti_free(arena);
}

void wefti_arena_clear(wefti_arena *arena) {
    if (!arena->head) return;
    for (block *b = arena->head->next; b;) {
        block *next = b->next;
        wefti_free(b);
        b = next;
    }
    arena->head->next = NULL;
    arena->head->used = 0;
}

int64_t wefti_arena_bytes(const wefti_arena *arena) {
    if (!arena) return 0;
    size_t bytes = sizeof *arena;
    for (const block *b = arena->head; b; b = b->next) bytes += sizeof *b + b->capacity;
    return (int64_t)bytes;
}

void *wefti_arena_alloc(wefti_arena *arena, size_t bytes) {
    /* larger sizes would overflow the sums below */
    if (bytes > PTRDIFF_MAX - sizeof(block) - 15) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    block *b = arena->head;
    if (!b || b->capacity - b->used < bytes) {
        size_t capacity = b ? 2 * b->capacity : FIRST_BYTES;
        if (capacity > BLOCK_BYTES) capacity = BLOCK_BYTES;
        if (bytes > capacity) capacity = bytes;
        b = wefti_alloc(sizeof *b + capacity);
        if (!b) return NULL;
        b->next = arena->head;
        b->used = 0;
        b->capacity = capacity;
        arena->head = b;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    memset(p, 0, bytes);
    return p;
}

char *wefti_arena_join(wefti_arena *arena, const char *a, const char *b) {
    const size_t first = strlen(a), bytes = strlen(b) + 1;
    char *text = wefti_arena_alloc(arena, first + bytes);
    if (text) {
        memcpy(text, a, first);
        memcpy(text + first, b, bytes);
    }
    return text;
}

char *wefti_arena_strdup(wefti_arena *arena, const char *text) {
    return wefti_arena_join(arena, "", text);
}

char *wefti_arena_format(wefti_arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = format_with(arena, format, args);
    va_end(args);
    return text;
}

weft_status wefti_grow(void **array, int64_t used, int64_t *capacity, size_t element) {
    if (used < *capacity) return WEFT_OK;
    int64_t wanted = *capacity ? *capacity * 2 : 16;
    void *bigger = wefti_realloc(*array, (size_t)wanted * element);
    WEFT_REQUIRE(bigger, WEFT_E_NOMEM, "no memory for %lld elements of %zu bytes",
                 (long long)wanted, element);
    *array = bigger;
    *capacity = wanted;
    return WEFT_OK;
}
