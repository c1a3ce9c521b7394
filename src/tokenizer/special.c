/* The special tokens of a model: see tokenizer/special.h. */
#include "tokenizer/special.h"

#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "base/memory.h"

enum { SPECIAL_FILE_BYTES = 64 << 20 };

static void add(const weft_tokenizer *t, int64_t id, wefti_ends *out) {
    for (int i = 0; i < out->count; i++)
        if (out->ids[i] == id) return;
    if (id >= 0 && id < weft_tokenizer_vocab(t) && out->count < WEFTI_ENDS_MOST)
        out->ids[out->count++] = (int32_t)id;
}

/* "eos_token": the token, or an object with its "content". */
static weft_status by_text(const weft_tokenizer *t, const wefti_json_member *eos, wefti_ends *out) {
    wefti_json_member content = *eos;
    wefti_text token = {0};
    if (*eos->value == '{') WEFT_TRY(wefti_json_find(eos->value, eos->bytes, "content", &content));
    if (content.value && wefti_json_decode(content.value, content.bytes, &token) && token.used > 0)
        add(t, weft_tokenizer_find(t, token.data), out);
    const bool failed = token.failed;
    wefti_text_free(&token);
    WEFT_REQUIRE(!failed, WEFT_E_NOMEM, "no memory for a token");
    return WEFT_OK;
}

/* "eos_token_id": a number, or a list of them. */
static weft_status by_number(const weft_tokenizer *t, const wefti_json_member *eos,
                             wefti_ends *out) {
    static const wefti_json_limits limits = {.depth = 1, .members = 0, .array_items = 1024};
    const wefti_json *value;
    wefti_arena *arena;
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = wefti_json_parse(arena, eos->value, eos->bytes, &limits, &value);
    if (status >= 0 && value->kind == WEFTI_JSON_INT) add(t, value->as.integer, out);
    if (status >= 0 && value->kind == WEFTI_JSON_ARRAY) WEFTI_JSON_EACH(item, value)
    if (item->kind == WEFTI_JSON_INT) add(t, item->as.integer, out);
    wefti_arena_destroy(arena);
    return status;
}

static void by_names(const weft_tokenizer *t, wefti_ends *out) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>",  "<eos>",
                                        "<|im_end|>",    "<|eot_id|>",      "[EOS]", "[SEP]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        add(t, weft_tokenizer_find(t, names[i]), out);
}

weft_status wefti_ends_of(const weft_tokenizer *t, wefti_special_read read, void *context,
                          wefti_ends *out) {
    static const struct {
        const char *file, *key;
        weft_status (*take)(const weft_tokenizer *, const wefti_json_member *, wefti_ends *);
    } places[] = {{"tokenizer_config.json", "eos_token", by_text},
                  {"special_tokens_map.json", "eos_token", by_text},
                  {"generation_config.json", "eos_token_id", by_number},
                  {"config.json", "eos_token_id", by_number}};
    *out = (wefti_ends){.count = 0};
    for (size_t i = 0; read && i < sizeof places / sizeof *places && !out->count; i++) {
        wefti_json_member eos = {.value = NULL};
        char *text = NULL;
        int64_t bytes = 0;
        WEFT_TRY(read(context, places[i].file, &text, &bytes));
        if (!text) continue;
        weft_status status = wefti_json_find(text, bytes, places[i].key, &eos);
        if (status >= 0 && eos.value) status = places[i].take(t, &eos, out);
        wefti_free(text);
        if (status < 0) return wefti_prefix(status, "%s", places[i].file);
    }
    if (!out->count) by_names(t, out);
    return WEFT_OK;
}

/* A directory, with room for a name. */
static weft_status read_beside(void *context, const char *name, char **out, int64_t *out_bytes) {
    char *path = wefti_format("%s/%s", (const char *)context, name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    bool there = false;
    weft_status status = wefti_look_for(path, &there);
    if (there) status = wefti_file_read(path, SPECIAL_FILE_BYTES, out, out_bytes);
    wefti_free(path);
    return status;
}

weft_status wefti_ends_beside(const weft_tokenizer *t, const char *path, wefti_ends *out) {
    if (!path || !strcmp(path, "bytes")) return wefti_ends_of(t, NULL, NULL, out);
    const char *slash = wefti_is_dir(path) ? path + strlen(path) : strrchr(path, '/');
    char *dir = slash ? wefti_format("%.*s", (int)(slash - path), path) : wefti_strdup(".");
    WEFT_REQUIRE(dir, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_ends_of(t, read_beside, dir, out);
    wefti_free(dir);
    return status;
}
