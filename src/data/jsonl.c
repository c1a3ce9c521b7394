/* JSON lines, read line by line within limits. See data/jsonl.h. */
#include "data/jsonl.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/memory.h"
#include "base/reader.h"
#include "base/text.h"

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

/* The text of a line, decoded into `text`. */
static weft_status read_line(const char *line, int64_t bytes, const char *field, wefti_text *text) {
    wefti_json_member member;
    WEFT_TRY(wefti_json_find(line, bytes, field, &member));
    WEFT_REQUIRE(member.value, WEFT_E_CORRUPT,
                 "the object has no \"%s\" (it has: %s); data.field names the member that holds "
                 "the text",
                 field, member.keys);
    WEFT_REQUIRE(*member.value == '"', WEFT_E_CORRUPT, "\"%s\" is not a string", field);
    const bool good = wefti_json_decode(member.value, member.bytes, text);
    WEFT_REQUIRE(!text->failed, WEFT_E_NOMEM, "no memory for a text");
    WEFT_REQUIRE(good, WEFT_E_CORRUPT,
                 "\"%s\" is not valid JSON: it has a control character, an unknown escape, or "
                 "bytes that are not UTF-8",
                 field);
    return WEFT_OK;
}

/* Counts a line that cannot be read, if the job says so. */
static weft_status bad_line(const line_reader *r, wefti_jsonl *how, weft_status status) {
    status = at_line(r, status);
    if (status != WEFT_E_CORRUPT || !how->skip_bad) return status;
    if (!how->bad++)
        (void)snprintf(how->first_bad, sizeof how->first_bad, "%s", weft_error_message());
    wefti_error_clear();
    return WEFT_OK;
}

static weft_status read_lines(line_reader *r, wefti_jsonl *how, wefti_text *text,
                              wefti_document_fn take, void *context) {
    const char *line, *field = how->field ? how->field : "text";
    int64_t bytes = 0;
    for (;;) {
        WEFT_TRY(next_line(r, &line, &bytes));
        if (!line) return WEFT_OK;
        const int64_t mark = r->line == 1 ? wefti_utf8_mark(line, bytes) : 0;
        if (is_blank(line + mark, bytes - mark)) continue;
        how->lines++;
        weft_status status = read_line(line + mark, bytes - mark, field, text);
        if (status >= 0) {
            status = take(context, text->data ? text->data : "", text->used);
            if (status < 0) return at_line(r, status);
        } else {
            WEFT_TRY(bad_line(r, how, status));
        }
    }
}

/* By the first bytes: in another encoding no line is JSON. */
static weft_status check_encoding(const line_reader *r) {
    unsigned char first[4096];
    const int64_t bytes = r->size < (int64_t)sizeof first ? r->size : (int64_t)sizeof first;
    WEFT_TRY(wefti_reader_at(r->reader, 0, bytes, first));
    const char *encoding = wefti_other_encoding(first, bytes);
    WEFT_REQUIRE(!encoding || encoding[0] != 'U', WEFT_E_NO_IMPL,
                 "%s is in %s: weft reads UTF-8; convert it, as with iconv", r->path, encoding);
    return WEFT_OK;
}

weft_status wefti_jsonl_read_pieces(const char *path, int64_t piece_bytes, wefti_jsonl *how,
                                    wefti_document_fn take, void *context) {
    line_reader r = {.path = path, .piece_bytes = piece_bytes};
    wefti_text text = {0};
    WEFT_TRY(wefti_reader_open(path, &r.reader));
    r.size = wefti_reader_bytes(r.reader);
    wefti_reader_ahead(r.reader);
    weft_status status = check_encoding(&r);
    if (status >= 0) status = read_lines(&r, how, &text, take, context);
    wefti_text_free(&text);
    wefti_free(r.data);
    wefti_reader_close(r.reader);
    return status;
}

weft_status wefti_jsonl_read(const char *path, wefti_jsonl *how, wefti_document_fn take,
                             void *context) {
    return wefti_jsonl_read_pieces(path, JSONL_PIECE_BYTES, how, take, context);
}
