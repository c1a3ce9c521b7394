/* Growing text, nearest words, readable sizes. See base/text.h. */
#include "base/text.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "weft/status.h"

/* Reserves room for `more` bytes and a NUL. */
static int reserve(wefti_text *t, int64_t more) {
    if (t->failed) return 0;
    int64_t wanted;
    if (wefti_add_overflows(t->used, more, &wanted) || wefti_add_overflows(wanted, 1, &wanted)) {
        t->failed = 1;
        return 0;
    }
    if (wanted <= t->capacity) return 1;
    int64_t capacity = wanted > INT64_MAX / 2 ? wanted : wanted * 2;
    if (capacity < 64) capacity = 64;
    char *bigger = wefti_realloc(t->data, (size_t)capacity);
    if (!bigger) {
        t->failed = 1;
        return 0;
    }
    t->data = bigger;
    t->capacity = capacity;
    return 1;
}

void wefti_text_add(wefti_text *t, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n < 0) t->failed = 1;
    if (reserve(t, n)) {
        (void)vsnprintf(t->data + t->used, (size_t)n + 1, format, again);
        t->used += n;
    }
    va_end(again);
    va_end(args);
}

void wefti_text_add_bytes(wefti_text *t, const char *bytes, int64_t count) {
    if (!reserve(t, count)) return;
    if (count) memcpy(t->data + t->used, bytes, (size_t)count);
    t->used += count;
    t->data[t->used] = '\0';
}

char *wefti_text_take(wefti_text *t) {
    char *text = NULL;
    if (reserve(t, 0)) { /* an empty text is "", not NULL */
        text = t->data;
        text[t->used] = '\0';
    } else {
        wefti_free(t->data);
    }
    *t = (wefti_text){0};
    return text;
}

void wefti_text_free(wefti_text *t) {
    wefti_free(t->data);
    *t = (wefti_text){0};
}

enum { WORD_BYTES = 128 }; /* a longer word is hardly a typing mistake */

/* The character as users compare names: ASCII only, in any locale. */
static char folded(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == '_' ? '-' : c;
}

bool wefti_same_word(const char *a, const char *b) {
    for (; *a && folded(*a) == folded(*b); a++) b++;
    return folded(*a) == folded(*b);
}

/* Edit distance that counts a swap of two neighbours once (optimal string alignment), and
 * compares characters as `folded` says. Source:
 * Wagner & Fischer, J. ACM 21 (1974), with Damerau's transposition. */
static int distance(const char *a, int a_length, const char *b, int b_length) {
    int rows[3][WORD_BYTES + 1];
    int *before = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= b_length; j++) above[j] = j;
    for (int i = 1; i <= a_length; i++) {
        row[0] = i;
        for (int j = 1; j <= b_length; j++) {
            int best = above[j - 1] + (folded(a[i - 1]) != folded(b[j - 1]));
            if (above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
                folded(a[i - 2]) == folded(b[j - 1]) && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
        int *spare = before;
        before = above;
        above = row;
        row = spare;
    }
    return above[b_length];
}

const char *weft_nearest(const char *word, const char *const *words) {
    size_t length = strlen(word);
    if (length > WORD_BYTES) return NULL;
    int limit = length / 3 > 2 ? (int)(length / 3) : length > 2 ? 2 : (int)length - 1;
    const char *best = NULL;
    for (; *words; words++) {
        size_t other = strlen(*words);
        if (other > WORD_BYTES) continue;
        int d = distance(word, (int)length, *words, (int)other);
        if (d <= limit) {
            best = *words;
            limit = d - 1; /* only a nearer word replaces it */
        }
    }
    return best;
}

char *wefti_bytes_text(int64_t bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (unit < 6 && (value >= 1023.95 || value <= -1023.95)) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

double wefti_real_read(const char *text, char **end) {
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (!plain) return strtod(text, end);
    double value = strtod_l(text, end, plain);
    freelocale(plain);
    return value;
}

/* Replaces the locale's decimal separator (a comma, or several bytes) by a point. */
static void put_point(char *text) {
    char *at = text + strspn(text, "+-0123456789");
    size_t length = strcspn(at, "+-0123456789abcdefghijklmnopqrstuvwxyz");
    if (!length) return;
    *at = '.';
    memmove(at + 1, at + length, strlen(at + length) + 1);
}

char *wefti_real_text(double value, int least, int most, char out[32]) {
    for (int digits = least; digits <= most; digits++) {
        (void)snprintf(out, 32, "%.*g", digits, value);
        put_point(out);
        if (wefti_real_read(out, NULL) == value) break;
    }
    return out;
}

double wefti_printed(double x) {
    return isnan(x) ? (double)NAN : x;
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

int wefti_utf8_write(char to[4], uint32_t point) {
    static const unsigned char lead[4] = {0, 0xc0, 0xe0, 0xf0};
    const int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    to[0] = (char)(lead[more] | point >> (6 * more));
    for (int i = 1; i <= more; i++) to[i] = (char)(0x80 | ((point >> (6 * (more - i))) & 0x3f));
    return more + 1;
}

int64_t wefti_utf8_mark(const void *text, int64_t bytes) {
    return bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;
}

/* Zeros at every second byte, or three of four, tell of wide characters without a mark. */
static const char *wide_encoding(const unsigned char *text, int64_t bytes) {
    int64_t zeros[4] = {0}, units = bytes / 4;
    for (int64_t i = 0; i < units * 4; i++) zeros[i % 4] += text[i] == 0;
    if (units < 4) return NULL;
    const int64_t many = units / 4, few = units / 16;
    const bool at[4] = {zeros[0] > many, zeros[1] > many, zeros[2] > many, zeros[3] > many};
    const bool none[4] = {zeros[0] <= few, zeros[1] <= few, zeros[2] <= few, zeros[3] <= few};
    if (none[0] && at[2] && at[3]) return "UTF-32 (little endian)";
    if (at[0] && at[1] && none[3]) return "UTF-32 (big endian)";
    if (none[0] && at[1] && none[2] && at[3]) return "UTF-16 (little endian)";
    if (at[0] && none[1] && at[2] && none[3]) return "UTF-16 (big endian)";
    return NULL;
}

const char *wefti_other_encoding(const void *data, int64_t bytes) {
    static const struct {
        const char *mark, *name;
        int64_t bytes;
    } marks[] = {{"\xff\xfe\0\0", "UTF-32 (little endian)", 4},
                 {"\0\0\xfe\xff", "UTF-32 (big endian)", 4},
                 {"\xff\xfe", "UTF-16 (little endian)", 2},
                 {"\xfe\xff", "UTF-16 (big endian)", 2}};
    const unsigned char *text = data, *end = text + bytes;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (bytes >= marks[i].bytes && !memcmp(text, marks[i].mark, (size_t)marks[i].bytes))
            return marks[i].name;
    const char *wide = wide_encoding(text, bytes < 4096 ? bytes : 4096);
    if (wide) return wide;
    int64_t characters = 0, wrong = 0; /* beyond ASCII */
    for (const unsigned char *p = text; p < end;) {
        uint32_t point;
        if (*p < 0x80) {
            p++;
            continue;
        }
        p += wefti_utf8_next(p, end - p, &point);
        if (point == WEFTI_NO_CHARACTER && end - p < 3) break; /* cut at the end */
        *(point == WEFTI_NO_CHARACTER ? &wrong : &characters) += 1;
    }
    return wrong > characters ? "Latin-1, Shift-JIS or another encoding" : NULL;
}

void weft_text_free(char *text) {
    wefti_free(text);
}
