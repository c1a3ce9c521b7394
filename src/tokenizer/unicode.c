/* Classes of characters, and UTF-8. The tables are Unicode's. */
#include "tokenizer/unicode.h"

#include "tokenizer/unicode_tables.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

const wefti_range *wefti_range_of(const void *rows, size_t count, size_t bytes, uint32_t point) {
    const char *first = rows;
    size_t low = 0, high = count; /* the first range that does not end below the point */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (((const wefti_range *)(const void *)(first + middle * bytes))->last < point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == count) return NULL;
    const wefti_range *found = (const void *)(first + low * bytes);
    return found->first <= point ? found : NULL;
}

bool wefti_in_ranges(const wefti_range *ranges, size_t count, uint32_t point) {
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

int wefti_utf8_next(const unsigned char *text, int64_t bytes, uint32_t *out) {
    unsigned char lead = text[0];
    *out = WEFTI_NO_CHARACTER;
    int length = lead < 0x80   ? 1
                 : lead < 0xC2 ? 0
                 : lead < 0xE0 ? 2
                 : lead < 0xF0 ? 3
                 : lead < 0xF5 ? 4
                               : 0;
    if (length == 1) {
        *out = lead;
        return 1;
    }
    if (!length || length > bytes) return 1;
    uint32_t point = lead & (0xFFu >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) return 1;
        point = point << 6 | (text[i] & 0x3Fu);
    }
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < smallest[length] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
        return 1;
    *out = point;
    return length;
}
