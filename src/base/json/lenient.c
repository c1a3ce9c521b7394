/* JSON of corpora, read without judging what is not used: see base/json.h. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"

/* The place in an object. Nothing recurses, so depth costs nothing. */
typedef struct scan {
    const char *at, *end;
} scan;

static void skip_space(scan *s) {
    while (s->at < s->end && memchr(" \t\r\n", *s->at, 4)) s->at++;
}

static bool passed(scan *s, char c) {
    skip_space(s);
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

/* Passes a text behind its opening quote, and its closing quote. False: it does not end. */
static bool skip_text(scan *s) {
    while (s->at < s->end) {
        const char *quote = memchr(s->at, '"', (size_t)(s->end - s->at));
        if (!quote) return false;
        const char *slash = quote;
        while (slash > s->at && slash[-1] == '\\') slash--;
        s->at = quote + 1;
        if ((quote - slash) % 2 == 0) return true;
    }
    return false;
}

/* Passes any value up to the comma or bracket behind it. */
static bool skip_value(scan *s) {
    int64_t depth = 0;
    const char *from = s->at;
    for (; s->at < s->end; s->at++) {
        const char c = *s->at;
        if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
        if (c == '"') {
            s->at++;
            if (!skip_text(s)) return false;
            s->at--;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return depth == 0 && s->at > from;
}

static weft_status refuse(const char *text, const scan *s, const char *what) {
    return WEFT_RAISE(WEFT_E_CORRUPT, "not valid JSON at column %lld: %s",
                      (long long)(s->at - text) + 1, what);
}

static bool is_key(const char *key, const char *from, int64_t bytes) {
    if (!memchr(from, '\\', (size_t)bytes))
        return (size_t)bytes == strlen(key) && !memcmp(from, key, (size_t)bytes);
    wefti_text decoded = {0}; /* written with escapes */
    const bool same = wefti_json_decode(from - 1, bytes + 2, &decoded) && !decoded.failed &&
                      (size_t)decoded.used == strlen(key) &&
                      !memcmp(decoded.data, key, (size_t)decoded.used);
    wefti_text_free(&decoded);
    return same;
}

static void name_key(wefti_json_member *out, const char *key, int64_t bytes) {
    const size_t used = strlen(out->keys);
    if (bytes > 40 || used + (size_t)bytes + 8 > sizeof out->keys) return;
    (void)snprintf(out->keys + used, sizeof out->keys - used, "%s%.*s", used ? ", " : "",
                   (int)bytes, key);
}

weft_status wefti_json_find(const char *text, int64_t bytes, const char *key,
                            wefti_json_member *out) {
    scan s = {text, text + bytes};
    *out = (wefti_json_member){.value = NULL};
    if (!passed(&s, '{')) return refuse(text, &s, "an object is expected");
    if (!passed(&s, '}')) {
        do {
            if (!passed(&s, '"')) return refuse(text, &s, "a key is expected");
            const char *name = s.at;
            if (!skip_text(&s)) return refuse(text, &s, "a text that does not end");
            const int64_t name_bytes = s.at - 1 - name;
            if (!passed(&s, ':')) return refuse(text, &s, "a colon is expected");
            skip_space(&s);
            const char *value = s.at;
            if (!skip_value(&s)) return refuse(text, &s, "a value that does not end");
            name_key(out, name, name_bytes);
            if (!is_key(key, name, name_bytes)) continue;
            out->value = value; /* the last of several, as most readers take it */
            out->bytes = s.at - value;
        } while (passed(&s, ','));
        if (!passed(&s, '}')) return refuse(text, &s, "} or a comma is expected");
    }
    skip_space(&s);
    return s.at == s.end ? WEFT_OK : refuse(text, &s, "something stands behind the object");
}

/* Four hexadecimal digits, which stand at `at`; -1: they do not. */
static int32_t hex4(const char *at, const char *end) {
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digit = at + i < end ? strchr("0123456789abcdef", at[i] | 32) : NULL;
        if (!digit || !*digit || (at[i] < '0')) return -1;
        value = value << 4 | (int32_t)(digit - "0123456789abcdef");
    }
    return value;
}

static void put(wefti_text *out, uint32_t point) {
    char utf8[4];
    const int bytes = wefti_utf8_write(utf8, point);
    wefti_text_add_bytes(out, utf8, bytes);
}

/* Behind "\u". Half a surrogate pair stands for no character. */
static bool decode_unicode(scan *s, wefti_text *out) {
    int32_t point = hex4(s->at, s->end);
    if (point < 0) return false;
    s->at += 4;
    if (point >= 0xd800 && point < 0xdc00 && s->end - s->at >= 6 && s->at[0] == '\\' &&
        s->at[1] == 'u') {
        const int32_t low = hex4(s->at + 2, s->end);
        if (low >= 0xdc00 && low < 0xe000) {
            s->at += 6;
            point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    put(out, point >= 0xd800 && point < 0xe000 ? 0xfffd : (uint32_t)point);
    return true;
}

bool wefti_json_decode(const char *value, int64_t bytes, wefti_text *out) {
    static const char from[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    scan s = {value, value + bytes};
    out->used = 0;
    while (s.end > s.at && memchr(" \t\r\n", s.end[-1], 4)) s.end--;
    if (s.end - s.at < 2 || *s.at != '"' || s.end[-1] != '"') return false;
    s.at++;
    s.end--;
    while (s.at < s.end) {
        const unsigned char c = (unsigned char)*s.at;
        if (c == '\\') {
            const char *known = s.at + 1 < s.end && s.at[1] ? strchr(from, s.at[1]) : NULL;
            const bool unicode = s.at + 1 < s.end && s.at[1] == 'u';
            s.at += 2;
            if (known)
                wefti_text_add_bytes(out, &plain[known - from], 1);
            else if (!unicode || !decode_unicode(&s, out))
                return false;
            continue;
        }
        if (c < 0x20) return false;
        const char *run = s.at;
        while (s.at < s.end && *s.at != '\\' && (unsigned char)*s.at >= 0x20 &&
               (unsigned char)*s.at < 0x80)
            s.at++;
        if (s.at == run) {
            uint32_t point;
            s.at += wefti_utf8_next((const unsigned char *)s.at, s.end - s.at, &point);
            if (point == WEFTI_NO_CHARACTER) return false;
        }
        wefti_text_add_bytes(out, run, s.at - run);
    }
    return true;
}
