/* Sets of characters: see tokenizer/charset.h. */
#include "tokenizer/charset.h"

#include <stdlib.h>
#include <string.h>

weft_status wefti_charset_add(wefti_arena *arena, wefti_charset *set, uint32_t first,
                              uint32_t last) {
    if (set->count == set->capacity) {
        int64_t capacity = set->capacity ? set->capacity * 2 : 4;
        wefti_code_range *ranges = wefti_arena_alloc(arena, (size_t)capacity * sizeof *ranges);
        WEFT_REQUIRE(ranges, WEFT_E_NOMEM, "no memory for a set of characters");
        if (set->count) memcpy(ranges, set->ranges, (size_t)set->count * sizeof *ranges);
        set->ranges = ranges;
        set->capacity = capacity;
    }
    set->ranges[set->count++] = (wefti_code_range){first, last};
    return WEFT_OK;
}

weft_status wefti_charset_add_all(wefti_arena *arena, wefti_charset *set,
                                  const wefti_charset *other) {
    for (int64_t i = 0; i < other->count; i++)
        WEFT_TRY(wefti_charset_add(arena, set, other->ranges[i].first, other->ranges[i].last));
    return WEFT_OK;
}

static int by_first(const void *a, const void *b) {
    uint32_t x = ((const wefti_code_range *)a)->first, y = ((const wefti_code_range *)b)->first;
    return (x > y) - (x < y);
}

void wefti_charset_sort(wefti_charset *set) {
    if (set->count < 2) return;
    qsort(set->ranges, (size_t)set->count, sizeof *set->ranges, by_first);
    int64_t used = 0;
    for (int64_t i = 1; i < set->count; i++) {
        wefti_code_range *last = &set->ranges[used], next = set->ranges[i];
        if (next.first > last->last + 1)
            set->ranges[++used] = next;
        else if (next.last > last->last)
            last->last = next.last;
    }
    set->count = used + 1;
}

weft_status wefti_charset_invert(wefti_arena *arena, wefti_charset *set) {
    wefti_charset out = {0};
    uint32_t from = 0;
    for (int64_t i = 0; i < set->count; i++) {
        if (set->ranges[i].first > from)
            WEFT_TRY(wefti_charset_add(arena, &out, from, set->ranges[i].first - 1));
        from = set->ranges[i].last + 1;
    }
    if (from <= WEFTI_CHARSET_LAST)
        WEFT_TRY(wefti_charset_add(arena, &out, from, WEFTI_CHARSET_LAST));
    *set = out;
    return WEFT_OK;
}

weft_status wefti_charset_intersect(wefti_arena *arena, wefti_charset *set,
                                    const wefti_charset *other) {
    wefti_charset out = {0};
    for (int64_t i = 0, k = 0; i < set->count && k < other->count;) {
        wefti_code_range a = set->ranges[i], b = other->ranges[k];
        uint32_t first = a.first > b.first ? a.first : b.first;
        uint32_t last = a.last < b.last ? a.last : b.last;
        if (first <= last) WEFT_TRY(wefti_charset_add(arena, &out, first, last));
        if (a.last < b.last)
            i++;
        else
            k++;
    }
    *set = out;
    return WEFT_OK;
}

bool wefti_charset_has(const wefti_charset *set, uint32_t point) {
    return set->count && wefti_in_ranges(set->ranges, (size_t)set->count, point);
}

bool wefti_charset_equal(const wefti_charset *a, const wefti_charset *b) {
    if (a->count != b->count) return false;
    for (int64_t i = 0; i < a->count; i++)
        if (a->ranges[i].first != b->ranges[i].first || a->ranges[i].last != b->ranges[i].last)
            return false;
    return true;
}
