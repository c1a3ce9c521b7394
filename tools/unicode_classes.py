#!/usr/bin/env python3
"""Writes src/train/data_unicode.c: the ranges of letters, numbers and white space that the regular
expressions of byte-pair tokenizers ask for (\\p{L}, \\p{N}, \\s). Hugging Face tokenizers 0.23 uses
Unicode 16, so the tables are made with the package unicodedata2 16.0.0 where Python's own is older.

Usage: tools/unicode_classes.py > src/train/data_unicode.c
"""
try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# White_Space of PropList.txt; str.isspace() would add the separators U+001C to U+001F.
SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
          0x202F, 0x205F, 0x3000]


def ranges(points):
    out = []
    for point in points:
        if out and point == out[-1][1] + 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def table(name, points):
    rows = ["{0x%X, 0x%X}," % tuple(r) for r in ranges(points)]
    lines, line = [], "   "
    for row in rows:
        if len(line) + len(row) + 1 > 100:
            lines.append(line)
            line = "   "
        line += " " + row
    lines.append(line)
    return "static const range %s[] = {\n%s\n};\n" % (name, "\n".join(lines))


def category(first):
    return [p for p in range(0x110000) if unicodedata.category(chr(p))[0] == first]


print("""/* Unicode %s: which code points are letters, numbers and white space. Written by
 * tools/unicode_classes.py; do not edit. */
#include "train/data_unicode.h"

#include <stddef.h>

typedef struct range {
    uint32_t first, last;
} range;

/* clang-format off */
%s
%s
%s/* clang-format on */

static bool contains(const range *ranges, size_t count, uint32_t point) {
    size_t low = 0, high = count; /* the first range whose last is not below the point */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low].first <= point;
}

bool wefti_unicode_letter(uint32_t point) {
    if (point < 128) return (point | 32) >= 'a' && (point | 32) <= 'z';
    return contains(letters, sizeof letters / sizeof *letters, point);
}

bool wefti_unicode_number(uint32_t point) {
    if (point < 128) return point >= '0' && point <= '9';
    return contains(numbers, sizeof numbers / sizeof *numbers, point);
}

bool wefti_unicode_space(uint32_t point) {
    if (point < 128) return point == ' ' || (point >= 9 && point <= 13);
    return contains(spaces, sizeof spaces / sizeof *spaces, point);
}

int wefti_utf8_next(const unsigned char *text, int64_t bytes, uint32_t *out) {
    unsigned char lead = text[0];
    *out = WEFTI_NO_CHARACTER;
    int length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
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
    if (point < smallest[length] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return 1;
    *out = point;
    return length;
}
""" % (unicodedata.unidata_version, table("letters", category("L")), table("numbers", category("N")),
       table("spaces", SPACES)), end="")
