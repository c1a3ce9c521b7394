/* JSON lines, read line by line within limits. See data/jsonl.h. */
#include "data/jsonl.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/reader.h"

enum { JSONL_PIECE_BYTES = 1 << 20 };

/* A growing window on the file: bytes [used, filled) are not taken yet. */
typedef struct line_reader {
    const char *path;
    wefti_reader *reader;
    int64_t at, size;    /* bytes read so far; of the file */
    int64_t piece_bytes; /* of the first window */
    char *data;
    int64_t used, filled, capacity;
    int64_t line; /* number of the current line, from 1 */
} line_reader;

/* Names the file and the line in front of an error's message. */
static weft_status at_line(const line_reader *r, weft_status status) {
    return wefti_prefix(status, "%s, line %lld", r->path, (long long)r->line);
}

/* Moves what is left to the front, doubles the window if it is full, and reads the next piece. */
static weft_status refill(line_reader *r) {
    if (r->used > 0) memmove(r->data, r->data + r->used, (size_t)(r->filled - r->used));
    r->filled -= r->used;
    r->used = 0;
    if (r->filled == r->capacity) {
        if (r->filled > WEFTI_JSONL_LINE_BYTES)
            return at_line(r, WEFT_RAISE(WEFT_E_CORRUPT, "the line is longer than %d bytes",
                                         WEFTI_JSONL_LINE_BYTES));
        int64_t capacity = r->capacity ? r->capacity * 2 : r->piece_bytes;
        char *data = wefti_realloc(r->data, (size_t)capacity);
        WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for a line of %s", r->path);
        r->data = data;
        r->capacity = capacity;
    }
    int64_t bytes = r->capacity - r->filled, left = r->size - r->at;
    if (bytes > left) bytes = left;
    WEFT_TRY(wefti_reader_at(r->reader, r->at, bytes, r->data + r->filled));
    r->at += bytes;
    r->filled += bytes;
    return WEFT_OK;
}

/* The next line without its newline; *out NULL at the end. */
static weft_status next_line(line_reader *r, const char **out, int64_t *out_bytes) {
    int64_t seen = 0;
    *out = NULL;
    r->line++;
    for (;;) {
        const char *from = r->data ? r->data + r->used : NULL;
        int64_t there = r->filled - r->used;
        const char *end = there > seen ? memchr(from + seen, '\n', (size_t)(there - seen)) : NULL;
        if (end || r->at == r->size) {
            if (!end && there == 0) return WEFT_OK;
            *out = from;
            *out_bytes = end ? end - from : there;
            r->used += *out_bytes + (end ? 1 : 0);
            return WEFT_OK;
        }
        seen = there;
        WEFT_TRY(refill(r));
    }
}

static bool is_blank(const char *line, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

/* The keys of an object, for a message. */
static const char *keys_of(const wefti_json *object, char out[200]) {
    size_t used = 0;
    out[0] = '\0';
    WEFTI_JSON_EACH(member, object) {
        size_t length = strlen(member->key);
        if (length > 40 || used + length + 8 > 200) break;
        used += (size_t)snprintf(out + used, 200 - used, "%s%s", used ? ", " : "", member->key);
    }
    return out;
}

static weft_status take_line(const line_reader *r, wefti_arena *arena, const char *line,
                             int64_t bytes, wefti_document_fn take, void *context) {
    static const wefti_json_limits limits = {
        .depth = 32, .members = 1 << 16, .array_items = 1 << 20};
    const wefti_json *object;
    char keys[200];
    weft_status status = wefti_json_parse(arena, line, bytes, &limits, &object);
    if (status < 0) return at_line(r, status);
    if (object->kind != WEFTI_JSON_OBJECT)
        return at_line(r, WEFT_RAISE(WEFT_E_CORRUPT,
                                     "the line is not an object: weft reads {\"text\": \"...\"}"));
    const wefti_json *text = wefti_json_get(object, "text");
    if (!text)
        return at_line(r, WEFT_RAISE(WEFT_E_CORRUPT,
                                     "the object has no \"text\" (it has: %s); rename the member "
                                     "that holds the text",
                                     keys_of(object, keys)));
    if (text->kind != WEFTI_JSON_TEXT)
        return at_line(r, WEFT_RAISE(WEFT_E_CORRUPT, "\"text\" is not a string"));
    status = take(context, text->as.text, (int64_t)strlen(text->as.text));
    return status < 0 ? at_line(r, status) : WEFT_OK;
}

static weft_status read_lines(line_reader *r, wefti_document_fn take, void *context) {
    const char *line;
    int64_t bytes = 0;
    for (;;) {
        WEFT_TRY(next_line(r, &line, &bytes));
        if (!line) return WEFT_OK;
        if (r->line == 1 && bytes >= 3 && !memcmp(line, "\xEF\xBB\xBF", 3)) {
            line += 3; /* a byte order mark */
            bytes -= 3;
        }
        if (is_blank(line, bytes)) continue;
        wefti_arena *arena;
        WEFT_TRY(wefti_arena_create(&arena));
        weft_status status = take_line(r, arena, line, bytes, take, context);
        wefti_arena_destroy(arena);
        WEFT_TRY(status);
    }
}

weft_status wefti_jsonl_read_pieces(const char *path, int64_t piece_bytes, wefti_document_fn take,
                                    void *context) {
    line_reader r = {.path = path, .piece_bytes = piece_bytes};
    WEFT_TRY(wefti_reader_open(path, &r.reader));
    r.size = wefti_reader_bytes(r.reader);
    wefti_reader_ahead(r.reader);
    weft_status status = read_lines(&r, take, context);
    wefti_free(r.data);
    wefti_reader_close(r.reader);
    return status;
}

weft_status wefti_jsonl_read(const char *path, wefti_document_fn take, void *context) {
    return wefti_jsonl_read_pieces(path, JSONL_PIECE_BYTES, take, context);
}
