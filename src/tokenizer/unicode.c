/* Classes of characters, and UTF-8. The tables are Unicode's. */
#include "tokenizer/unicode.h"

#include "tokenizer/unicode_tables.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

const wefti_code_range *wefti_range_of(const void *rows, size_t count, size_t bytes,
                                       uint32_t point) {
    const char *first = rows;
    size_t low = 0, high = count; /* the first range that does not end below the point */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (((const wefti_code_range *)(const void *)(first + middle * bytes))->last < point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == count) return NULL;
    const wefti_code_range *found = (const void *)(first + low * bytes);
    return found->first <= point ? found : NULL;
}

bool wefti_in_ranges(const wefti_code_range *ranges, size_t count, uint32_t point) {
    return wefti_range_of(ranges, count, sizeof *ranges, point);
}

bool wefti_unicode_letter(uint32_t point) {
    if (point < 128) return (point | 32) >= 'a' && (point | 32) <= 'z';
    return wefti_in_ranges(letters, COUNT(letters), point);
}

bool wefti_unicode_number(uint32_t point) {
    if (point < 128) return point >= '0' && point <= '9';
    return wefti_in_ranges(numbers, COUNT(numbers), point);
}

bool wefti_unicode_space(uint32_t point) {
    if (point < 128) return point == ' ' || (point >= 9 && point <= 13);
    return wefti_in_ranges(spaces, COUNT(spaces), point);
}
