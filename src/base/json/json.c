/* JSON. See base/json.h. The parser is a recursive descent over the bytes. A depth limit bounds the
 * stack. */
#include "base/json/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_LIMIT = 64, NUMBER_BYTES = 1000 };

typedef struct parser {
    const char *begin, *at, *end;
    wefti_arena *arena;
    const wefti_json_limits *limits;
    int depth;
    int32_t first_line, line;
} parser;

static weft_status refuse(const parser *p, const char *what) {
    int64_t line = p->first_line, column = 1;
    for (const char *c = p->begin; c < p->at; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    return WEFT_RAISE(WEFT_E_CORRUPT, "not valid JSON at line %lld, column %lld: %s",
                      (long long)line, (long long)column, what);
}

static weft_status out_of_memory(const parser *p) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory to parse %lld bytes of JSON",
                      (long long)(p->end - p->begin));
}

static void skip_space(parser *p) {
    for (; p->at < p->end; p->at++) {
        if (*p->at != ' ' && *p->at != '\t' && *p->at != '\n' && *p->at != '\r') return;
        p->line += *p->at == '\n' && p->line < INT32_MAX;
    }
}

/* If the next byte after white space is `c`, passes it. */
static bool passed(parser *p, char c) {
    skip_space(p);
    if (p->at == p->end || *p->at != c) return false;
    p->at++;
    return true;
}

/* ---- texts ---- */

/* The length of the UTF-8 character at `from`; 0 if the bytes are not a valid character. */
static int utf8_length(const unsigned char *from, const unsigned char *end) {
    uint32_t point;
    int length = wefti_utf8_next(from, end - from, &point);
    return point == WEFTI_NO_CHARACTER ? 0 : length;
}

bool wefti_utf8_valid(const char *text) {
    const unsigned char *p = (const unsigned char *)text, *end = p + strlen(text);
    for (int length; p < end; p += length)
        if (!(length = utf8_length(p, end))) return false;
    return true;
}

/* Four hexadecimal digits; -1 if a digit is invalid. */
static int32_t hex4(parser *p) {
    if (p->end - p->at < 4) return -1;
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = *p->at++;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* The escape behind a backslash. */
static weft_status unescape(parser *p, char **to) {
    static const char from[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end) return refuse(p, "a text that does not end");
    char c = *p->at++;
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        *(*to)++ = plain[known - from];
        return WEFT_OK;
    }
    if (c != 'u') return refuse(p, "an unknown escape in a text");
    int32_t point = hex4(p);
    if (point >= 0xd800 && point < 0xdc00) { /* the first half of a surrogate pair */
        bool more = p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u';
        p->at += more ? 2 : 0;
        int32_t low = more ? hex4(p) : -1;
        point = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00)
                                              : -1;
    }
    if (point <= 0 || (point >= 0xd800 && point < 0xe000))
        return refuse(p, "an escape that stands for no character, or for NUL");
    *to += wefti_utf8_write(*to, (uint32_t)point);
    return WEFT_OK;
}

/* A string, behind its opening quote. The decoded text is never longer than its escapes, so it fits
 * in place. */
static weft_status parse_text(parser *p, const char **out) {
    const char *close = p->at;
    while (close < p->end && *close != '"') close += *close == '\\' && close + 1 < p->end ? 2 : 1;
    if (close >= p->end) return refuse(p, "a text that does not end");
    char *text = wefti_arena_alloc(p->arena, (size_t)(close - p->at) + 1), *to = text;
    if (!text) return out_of_memory(p);
    while (*p->at != '"') {
        unsigned char c = (unsigned char)*p->at;
        if (c == '\\') {
            p->at++;
            WEFT_TRY(unescape(p, &to));
            continue;
        }
        if (c < 0x20) return refuse(p, "a control character in a text");
        int length = utf8_length((const unsigned char *)p->at, (const unsigned char *)close);
        if (!length) return refuse(p, "a text that is not UTF-8");
        memcpy(to, p->at, (size_t)length);
        to += length;
        p->at += length;
    }
    p->at++;
    *out = text;
    return WEFT_OK;
}

/* ---- numbers ---- */

static bool pass_digits(parser *p) {
    const char *from = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
    return p->at > from;
}

/* The grammar of RFC 8259, section 6; strtod alone would accept more. */
static bool pass_number(parser *p, bool *out_whole) {
    if (p->at < p->end && *p->at == '-') p->at++;
    if (p->at < p->end && *p->at == '0')
        p->at++;
    else if (!pass_digits(p))
        return false;
    *out_whole = true;
    if (p->at < p->end && *p->at == '.') {
        *out_whole = false;
        p->at++;
        if (!pass_digits(p)) return false;
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        *out_whole = false;
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-')) p->at++;
        if (!pass_digits(p)) return false;
    }
    return true;
}

static bool to_integer(const char *from, const char *end, int64_t *out) {
    int64_t value = 0;
    bool negative = *from == '-';
    for (from += negative; from < end; from++) {
        int digit = *from - '0';
        if (wefti_mul_overflows(value, 10, &value) ||
            wefti_add_overflows(value, negative ? -digit : digit, &value))
            return false;
    }
    *out = value;
    return true;
}

static weft_status parse_number(parser *p, wefti_json *value) {
    const char *from = p->at;
    bool whole;
    if (!pass_number(p, &whole)) return refuse(p, "a value is expected");
    value->kind = WEFTI_JSON_INT;
    if (whole && to_integer(from, p->at, &value->as.integer)) return WEFT_OK;
    char digits[NUMBER_BYTES + 1];
    if (p->at - from > NUMBER_BYTES) return refuse(p, "a number of more than 1000 digits");
    memcpy(digits, from, (size_t)(p->at - from));
    digits[p->at - from] = '\0';
    value->kind = WEFTI_JSON_REAL;
    value->as.real = wefti_real_read(digits, NULL);
    if (!isfinite(value->as.real)) return refuse(p, "a number beyond the range of f64");
    return WEFT_OK;
}

/* ---- values ---- */

static weft_status parse_value(parser *p, wefti_json *value);

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static weft_status check_keys(parser *p, const wefti_json *object) {
    if (object->count < 2) return WEFT_OK;
    const char **keys = wefti_alloc((size_t)object->count * sizeof *keys);
    if (!keys) return out_of_memory(p);
    int32_t used = 0;
    WEFTI_JSON_EACH(member, object) keys[used++] = member->key;
    qsort(keys, (size_t)used, sizeof *keys, compare_keys);
    weft_status status = WEFT_OK;
    for (int32_t i = 1; i < used && status >= 0; i++)
        if (!strcmp(keys[i - 1], keys[i]))
            status =
                WEFT_RAISE(WEFT_E_CORRUPT, "not valid JSON: duplicate key \"%.200s\"", keys[i]);
    wefti_free(keys);
    return status;
}

/* Parses behind the opening bracket; `close` is the closing bracket. */
static weft_status parse_members(parser *p, wefti_json *parent, char close) {
    bool object = close == '}';
    int32_t limit = object ? p->limits->members : p->limits->array_items;
    const wefti_json **link = &parent->as.child;
    if (passed(p, close)) return WEFT_OK;
    do {
        if (parent->count == limit)
            WEFT_FAIL(WEFT_E_CORRUPT, "JSON %s of more than %d values at byte %lld",
                      object ? "object" : "list", limit, (long long)(p->at - p->begin));
        wefti_json *item = wefti_arena_alloc(p->arena, sizeof *item);
        if (!item) return out_of_memory(p);
        if (object && !passed(p, '"')) return refuse(p, "a key is expected");
        if (object) WEFT_TRY(parse_text(p, &item->key));
        if (object && !passed(p, ':')) return refuse(p, "a colon is expected");
        WEFT_TRY(parse_value(p, item));
        *link = item;
        link = &item->next;
        parent->count++;
    } while (passed(p, ','));
    if (!passed(p, close))
        return refuse(p, object ? "} or a comma is expected" : "] or a comma is expected");
    return object ? check_keys(p, parent) : WEFT_OK;
}

static weft_status parse_nested(parser *p, wefti_json *value, char close) {
    if (p->depth == p->limits->depth || p->depth == DEPTH_LIMIT)
        WEFT_FAIL(WEFT_E_CORRUPT, "JSON nested deeper than %d at byte %lld", p->depth,
                  (long long)(p->at - p->begin));
    p->at++;
    p->depth++;
    value->kind = close == '}' ? WEFTI_JSON_OBJECT : WEFTI_JSON_ARRAY;
    weft_status status = parse_members(p, value, close);
    p->depth--;
    return status;
}

static bool pass_word(parser *p, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length)) return false;
    p->at += length;
    return true;
}

static weft_status parse_value(parser *p, wefti_json *value) {
    skip_space(p);
    value->line = p->line;
    if (p->at == p->end) return refuse(p, "the text ends where a value is expected");
    switch (*p->at) {
    case '{':
        return parse_nested(p, value, '}');
    case '[':
        return parse_nested(p, value, ']');
    case '"':
        p->at++;
        value->kind = WEFTI_JSON_TEXT;
        return parse_text(p, &value->as.text);
    case 't':
    case 'f':
        value->kind = WEFTI_JSON_BOOL;
        value->as.boolean = *p->at == 't';
        if (!pass_word(p, value->as.boolean ? "true" : "false"))
            return refuse(p, "a value is expected");
        return WEFT_OK;
    case 'n':
        value->kind = WEFTI_JSON_NULL;
        return pass_word(p, "null") ? WEFT_OK : refuse(p, "a value is expected");
    default:
        return parse_number(p, value);
    }
}

weft_status wefti_json_parse_from(wefti_arena *arena, int32_t line, const char *text, int64_t bytes,
                                  const wefti_json_limits *limits, const wefti_json **out) {
    parser p = {.begin = text,
                .at = text,
                .end = text + bytes,
                .arena = arena,
                .limits = limits,
                .first_line = line,
                .line = line};
    wefti_json *root = wefti_arena_alloc(arena, sizeof *root);
    if (!root) return out_of_memory(&p);
    WEFT_TRY(parse_value(&p, root));
    skip_space(&p);
    if (p.at != p.end) return refuse(&p, "something stands behind the value");
    *out = root;
    return WEFT_OK;
}

weft_status wefti_json_parse(wefti_arena *arena, const char *text, int64_t bytes,
                             const wefti_json_limits *limits, const wefti_json **out) {
    return wefti_json_parse_from(arena, 1, text, bytes, limits, out);
}

/* ---- members ---- */

const wefti_json *wefti_json_get(const wefti_json *object, const char *key) {
    if (!object || object->kind != WEFTI_JSON_OBJECT) return NULL;
    WEFTI_JSON_EACH(member, object) if (!strcmp(member->key, key)) return member;
    return NULL;
}

static weft_status get_kind(const wefti_json *object, const char *key, wefti_json_kind kind,
                            const char *name, const wefti_json **out) {
    const wefti_json *value = wefti_json_get(object, key);
    WEFT_REQUIRE(value, WEFT_E_CORRUPT, "\"%s\" is missing", key);
    WEFT_REQUIRE(value->kind == kind, WEFT_E_CORRUPT, "\"%s\" is not %s", key, name);
    *out = value;
    return WEFT_OK;
}

weft_status wefti_json_text(const wefti_json *object, const char *key, const char **out) {
    const wefti_json *value = NULL;
    WEFT_TRY(get_kind(object, key, WEFTI_JSON_TEXT, "a text", &value));
    *out = value->as.text;
    return WEFT_OK;
}

weft_status wefti_json_int(const wefti_json *object, const char *key, int64_t *out) {
    const wefti_json *value = NULL;
    WEFT_TRY(get_kind(object, key, WEFTI_JSON_INT, "a whole number", &value));
    *out = value->as.integer;
    return WEFT_OK;
}

weft_status wefti_json_array(const wefti_json *object, const char *key, const wefti_json **out) {
    return get_kind(object, key, WEFTI_JSON_ARRAY, "a list", out);
}

weft_status wefti_json_object(const wefti_json *object, const char *key, const wefti_json **out) {
    return get_kind(object, key, WEFTI_JSON_OBJECT, "an object", out);
}

weft_status wefti_json_sizes(const wefti_json *object, const char *key, int count, int64_t *out) {
    const wefti_json *list = NULL;
    WEFT_TRY(wefti_json_array(object, key, &list));
    WEFT_REQUIRE(list->count == count, WEFT_E_CORRUPT, "\"%s\" has %d elements for %d dimensions",
                 key, list->count, count);
    WEFTI_JSON_EACH(size, list) {
        WEFT_REQUIRE(size->kind == WEFTI_JSON_INT && size->as.integer >= 0, WEFT_E_CORRUPT,
                     "\"%s\" is not a list of sizes", key);
        *out++ = size->as.integer;
    }
    return WEFT_OK;
}

weft_status wefti_json_hex(const wefti_json *object, const char *key, const char *prefix,
                           uint64_t *out) {
    const char *text = NULL;
    WEFT_TRY(wefti_json_text(object, key, &text));
    size_t skip = strlen(prefix);
    bool good = !strncmp(text, prefix, skip);
    size_t digits = good ? strlen(text + skip) : 0;
    good = digits >= 1 && digits <= 16 && strspn(text + skip, "0123456789abcdef") == digits;
    WEFT_REQUIRE(good, WEFT_E_CORRUPT, "\"%s\" is \"%.40s\", not \"%s\" and hexadecimal digits",
                 key, text, prefix);
    uint64_t value = 0;
    for (const char *p = text + skip; *p; p++)
        value = value << 4 | (uint64_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
    *out = value;
    return WEFT_OK;
}

/* ---- writing ---- */

void wefti_json_quote(wefti_text *out, const char *text) {
    const char *from = text, *end = text + strlen(text), *p = text;
    wefti_text_add_bytes(out, "\"", 1);
    while (p < end) {
        unsigned char c = (unsigned char)*p;
        int length = utf8_length((const unsigned char *)p, (const unsigned char *)end);
        bool is_c1 = length == 2 && c == 0xc2 && (unsigned char)p[1] < 0xa0; /* U+0080 and on */
        if (length && c >= 0x20 && c != 0x7f && !is_c1 && c != '"' && c != '\\') {
            p += length;
            continue;
        }
        wefti_text_add_bytes(out, from, p - from);
        if (c == '"' || c == '\\')
            wefti_text_add(out, "\\%c", c);
        else if (c == '\n')
            wefti_text_add(out, "\\n");
        else
            wefti_text_add(out, "\\u%04x", is_c1 ? (unsigned char)p[1] : length ? c : 0xfffd);
        p += is_c1 ? 2 : 1;
        from = p;
    }
    wefti_text_add_bytes(out, from, end - from);
    wefti_text_add_bytes(out, "\"", 1);
}

void wefti_json_real(wefti_text *out, double value) {
    if (!isfinite(value)) {
        wefti_text_add(out, "null");
        return;
    }
    char text[32]; /* 17 digits always read back to the same number */
    wefti_text_add(out, "%s", wefti_real_text(value, 15, 17, text));
}
