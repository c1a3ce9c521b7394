/* Prompts from a file of JSON lines. The file may come from any source. */
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "weft/generate.h"

enum { PROMPTS_MOST_BYTES = 1 << 30, PROMPTS_MOST_TOKENS = 1000000000 };

struct weft_prompts {
    wefti_arena *arena;
    weft_prompt *items;
    int64_t count, capacity;
};

static weft_status read_id(wefti_arena *arena, const wefti_json *id, weft_prompt *out) {
    if (!id) return WEFT_OK;
    WEFT_REQUIRE(id->kind == WEFTI_JSON_TEXT || id->kind == WEFTI_JSON_INT, WEFT_E_CORRUPT,
                 "\"id\" must be a text or a whole number from %lld to %lld", (long long)INT64_MIN,
                 (long long)INT64_MAX);
    out->id_is_number = id->kind == WEFTI_JSON_INT;
    out->id = out->id_is_number ? wefti_arena_format(arena, "%lld", (long long)id->as.integer)
                                : id->as.text;
    WEFT_REQUIRE(out->id, WEFT_E_NOMEM, "no memory for prompts");
    return WEFT_OK;
}

static weft_status read_number(const wefti_json *value, int64_t least, int64_t most, int64_t *out) {
    WEFT_REQUIRE(value->kind == WEFTI_JSON_INT && value->as.integer >= least &&
                     value->as.integer <= most,
                 WEFT_E_CORRUPT, "\"%s\" must be a whole number from %lld to %lld", value->key,
                 (long long)least, (long long)most);
    *out = value->as.integer;
    return WEFT_OK;
}

static weft_status read_object(wefti_arena *arena, const wefti_json *line, weft_prompt *out) {
    int64_t seed = 0;
    WEFT_REQUIRE(line->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT,
                 "a line must be an object, such as {\"prompt\": \"Once\"}");
    WEFT_TRY(wefti_json_text(line, "prompt", &out->text));
    out->bytes = (int64_t)strlen(out->text);
    WEFTI_JSON_EACH(item, line) {
        if (!strcmp(item->key, "prompt")) continue;
        if (!strcmp(item->key, "id")) {
            WEFT_TRY(read_id(arena, item, out));
        } else if (!strcmp(item->key, "tokens")) {
            WEFT_TRY(read_number(item, 1, PROMPTS_MOST_TOKENS, &out->tokens));
        } else if (!strcmp(item->key, "seed")) {
            WEFT_TRY(read_number(item, 0, INT64_MAX, &seed));
            out->has_seed = true;
        } else {
            WEFT_FAIL(WEFT_E_CORRUPT,
                      "unknown member \"%s\": a line has \"prompt\", \"id\", \"tokens\" and "
                      "\"seed\"",
                      item->key);
        }
    }
    out->seed = (uint64_t)seed;
    return WEFT_OK;
}

static weft_status add_line(weft_prompts *p, int32_t number, const char *text, int64_t bytes) {
    static const wefti_json_limits limits = {.depth = 2, .members = 16, .array_items = 1};
    const wefti_json *line;
    weft_prompt prompt = {.tokens = 0};
    WEFT_TRY(wefti_json_parse_from(p->arena, number, text, bytes, &limits, &line));
    WEFT_TRY(read_object(p->arena, line, &prompt));
    WEFT_TRY(WEFT_GROW(p->items, p->count, p->capacity));
    p->items[p->count++] = prompt;
    return WEFT_OK;
}

static bool is_blank(const char *text, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r", text[i]) || !text[i]) return false;
    return true;
}

static weft_status read_lines(weft_prompts *p, const char *path, const char *text, int64_t bytes) {
    int32_t number = 1;
    const char *encoding = wefti_other_encoding(text, bytes < 4096 ? bytes : 4096);
    WEFT_REQUIRE(!encoding || encoding[0] != 'U', WEFT_E_NO_IMPL,
                 "%s is in %s: weft reads UTF-8; convert it, as with iconv", path, encoding);
    for (int64_t at = wefti_utf8_mark(text, bytes); at < bytes; number++) {
        const char *end = memchr(text + at, '\n', (size_t)(bytes - at));
        const int64_t length = end ? end - (text + at) : bytes - at;
        if (!is_blank(text + at, length)) {
            weft_status status = add_line(p, number, text + at, length);
            if (status < 0) return wefti_prefix(status, "%s, line %d", path, (int)number);
        }
        at += length + 1;
    }
    WEFT_REQUIRE(p->count, WEFT_E_CORRUPT, "%s holds no prompt", path);
    return WEFT_OK;
}

weft_status weft_prompts_read(const char *path, weft_prompts **out) {
    weft_prompts *p;
    char *text = NULL;
    int64_t bytes;
    WEFT_REQUIRE(path && out, WEFT_E_ARG, "prompts need a file");
    WEFT_NEW(p, weft_prompts);
    weft_status status = wefti_arena_create(&p->arena);
    if (status >= 0) status = wefti_file_read(path, PROMPTS_MOST_BYTES, &text, &bytes);
    if (status >= 0) status = read_lines(p, path, text, bytes);
    wefti_free(text);
    if (status < 0) {
        weft_prompts_free(p);
        return status;
    }
    *out = p;
    return WEFT_OK;
}

const weft_prompt *weft_prompts_items(const weft_prompts *p, int64_t *out_count) {
    *out_count = p->count;
    return p->items;
}

void weft_prompts_free(weft_prompts *p) {
    if (!p) return;
    if (p->arena) wefti_arena_destroy(p->arena);
    wefti_free(p->items);
    wefti_free(p);
}
