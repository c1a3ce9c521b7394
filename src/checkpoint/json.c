/* JSON with limits. See json.h. */
#include "checkpoint/json.h"

#include <string.h>

/* Only structure is followed here: brackets and commas outside strings. Whether it is JSON is the
 * parser's business, so a text that is not may pass, but no text gets past these limits. */
weft_status wefti_json_check(const char *text, int64_t bytes, const wefti_json_limits *limits) {
    enum { DEPTH = 64 };
    int64_t items[DEPTH] = {0};
    bool is_array[DEPTH] = {false};
    int depth = 0;
    int64_t objects = 0;
    WEFT_REQUIRE(limits->depth < DEPTH, WEFT_E_BUG, "a depth limit of %d", limits->depth);
    for (int64_t i = 0; i < bytes; i++) {
        switch (text[i]) {
        case '"':
            for (i++; i < bytes && text[i] != '"'; i++)
                if (text[i] == '\\') i++;
            break;
        case '{':
        case '[':
            WEFT_REQUIRE(depth < limits->depth, WEFT_E_CORRUPT,
                         "JSON nested deeper than %d at byte %lld", limits->depth, (long long)i);
            depth++;
            is_array[depth] = text[i] == '[';
            items[depth] = 1;
            if (text[i] == '{') objects++;
            WEFT_REQUIRE(objects <= limits->objects, WEFT_E_CORRUPT,
                         "JSON with more than %lld objects", (long long)limits->objects);
            break;
        case '}':
        case ']':
            if (depth > 0) depth--;
            break;
        case ',':
            items[depth]++;
            WEFT_REQUIRE(!is_array[depth] || items[depth] <= limits->array_items, WEFT_E_CORRUPT,
                         "JSON list of more than %lld values at byte %lld",
                         (long long)limits->array_items, (long long)i);
            break;
        default:
            break;
        }
    }
    return WEFT_OK;
}

void wefti_json_quote(wefti_text *out, const char *text) {
    wefti_text_add_bytes(out, "\"", 1);
    const char *from = text;
    for (const char *p = text;; p++) {
        unsigned char c = (unsigned char)*p;
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        wefti_text_add_bytes(out, from, p - from);
        if (!c) break;
        if (c == '"' || c == '\\')
            wefti_text_add(out, "\\%c", c);
        else if (c == '\n')
            wefti_text_add(out, "\\n");
        else
            wefti_text_add(out, "\\u%04x", c);
        from = p + 1;
    }
    wefti_text_add_bytes(out, "\"", 1);
}

bool wefti_utf8_valid(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    while (*p) {
        int more = *p < 0x80             ? 0
                   : (*p & 0xe0) == 0xc0 ? 1
                   : (*p & 0xf0) == 0xe0 ? 2
                   : (*p & 0xf8) == 0xf0 ? 3
                                         : -1;
        if (more < 0) return false;
        static const uint32_t first[4] = {0, 0x80, 0x800, 0x10000}, mask[4] = {0x7f, 0x1f, 0xf, 7};
        uint32_t point = *p++ & mask[more];
        for (int i = 0; i < more; i++, p++) {
            if ((*p & 0xc0) != 0x80) return false;
            point = point << 6 | (*p & 0x3f);
        }
        if (point < first[more] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
            return false;
    }
    return true;
}

bool wefti_file_name_valid(const char *name) {
    return *name && *name != '.' && !strchr(name, '/') && strlen(name) <= 255;
}

#ifdef WEFT_HAVE_JANSSON

/* A parser without memory must not pass for a damaged file, or a good checkpoint would be skipped.
 * jansson 2.14 reports a failed allocation with an empty text, or, when it was that of a string's
 * value, as if the string were no string: complaints about a token that begins with a quote, which
 * no error in a file leads to. */
static bool out_of_memory(const json_error_t *error) {
    static const char *const disguises[] = {"string or '}' expected near '\"",
                                            "invalid token near '\""};
    bool found = !error->text[0] || json_error_code(error) == json_error_out_of_memory;
    for (int i = 0; i < 2; i++)
        found = found || !strncmp(error->text, disguises[i], strlen(disguises[i]));
    return found;
}

weft_status wefti_json_load(const char *text, int64_t bytes, const wefti_json_limits *limits,
                            json_t **out) {
    WEFT_TRY(wefti_json_check(text, bytes, limits));
    json_error_t error;
    json_t *root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    WEFT_REQUIRE(root || !out_of_memory(&error), WEFT_E_NOMEM,
                 "no memory to parse %lld bytes of JSON", (long long)bytes);
    WEFT_REQUIRE(root, WEFT_E_CORRUPT, "not valid JSON at line %d, column %d: %s", error.line,
                 error.column, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        WEFT_FAIL(WEFT_E_CORRUPT, "the JSON is not an object");
    }
    *out = root;
    return WEFT_OK;
}

static weft_status member(const json_t *object, const char *key, json_type type, const char *kind,
                          const json_t **out) {
    const json_t *value = json_object_get(object, key);
    WEFT_REQUIRE(value, WEFT_E_CORRUPT, "\"%s\" is missing", key);
    WEFT_REQUIRE(json_typeof(value) == type, WEFT_E_CORRUPT, "\"%s\" is not %s", key, kind);
    *out = value;
    return WEFT_OK;
}

weft_status wefti_json_text(const json_t *object, const char *key, const char **out) {
    const json_t *value;
    WEFT_TRY(member(object, key, JSON_STRING, "a text", &value));
    *out = json_string_value(value);
    return WEFT_OK;
}

weft_status wefti_json_int(const json_t *object, const char *key, int64_t *out) {
    const json_t *value;
    WEFT_TRY(member(object, key, JSON_INTEGER, "a whole number", &value));
    *out = json_integer_value(value);
    return WEFT_OK;
}

weft_status wefti_json_hex(const json_t *object, const char *key, const char *prefix,
                           uint64_t *out) {
    const char *text;
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

weft_status wefti_json_array(const json_t *object, const char *key, const json_t **out) {
    return member(object, key, JSON_ARRAY, "a list", out);
}

weft_status wefti_json_object(const json_t *object, const char *key, const json_t **out) {
    return member(object, key, JSON_OBJECT, "an object", out);
}

#endif
