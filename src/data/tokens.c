/* A sequence of tokens in many files. See data/source.h. */
#include <string.h>

#include "base/text.h"
#include "data/files.h"
#include "data/jsonl.h"
#include "data/source.h"
#include "tokenizer/tokenizer.h"

enum {
    KEPT_BYTES = 1 << 20, /* smaller text files are read once: people edit them meanwhile */
    CHECKED_UP_TO_BYTES = 256 << 20, /* about a tenth of a second of reading from memory */
    CHECK_TOKENS = 4096,
};

static weft_status add_piece(wefti_token_source *s, const char *path, wefti_array array) {
    WEFT_TRY(WEFT_GROW(s->pieces, s->count, s->capacity));
    s->pieces[s->count++] = (wefti_token_piece){array, s->tokens, path};
    WEFT_REQUIRE(!wefti_add_overflows(s->tokens, array.elems, &s->tokens), WEFT_E_ARG,
                 "%s: more tokens than 64 bits count", path);
    return WEFT_OK;
}

static weft_status keep_file(wefti_token_source *s, wefti_array_file file) {
    WEFT_TRY(WEFT_GROW(s->files, s->file_count, s->file_capacity));
    s->files[s->file_count++] = file;
    return WEFT_OK;
}

static wefti_array array_of(const void *data, int64_t count, wefti_element element) {
    return (wefti_array){
        .element = element, .rank = 1, .shape = {count}, .elems = count, .data = data};
}

/* Texts on their way into a source. */
typedef struct text_sink {
    wefti_token_source *source;
    const wefti_text_options *options;
    wefti_encoder *encoder; /* NULL: bytes */
    int64_t vocab;
    int32_t end;    /* token behind each document; -1: none */
    int64_t joined; /* documents that another one follows without such a token */
    wefti_ids ids;
    wefti_text bytes; /* of the documents of one file, where tokens are bytes */
    wefti_jsonl lines;
    wefti_text *notes;
} text_sink;

/* Bytes may stand for any encoding; tokens of text would stand for no text at all. */
static weft_status check_encoding(const text_sink *sink, const char *path, const void *text,
                                  int64_t bytes) {
    if (sink->options->kind == WEFTI_TEXT_RAW) return WEFT_OK;
    const char *encoding = wefti_other_encoding(text, bytes);
    if (!encoding) return WEFT_OK;
    WEFT_REQUIRE(!sink->encoder, WEFT_E_NO_IMPL,
                 "%s is in %s, but the tokenizer reads UTF-8: convert it, as with iconv; "
                 "data.format: raw takes any file as it is",
                 path, encoding);
    wefti_text_add(sink->notes, "%s is in %s, not UTF-8: its bytes are the tokens\n", path,
                   encoding);
    return WEFT_OK;
}

/* Leaves out a byte order mark, and keeps a small file. */
static weft_status take_text(const text_sink *sink, const char *path, wefti_array_file *file) {
    const int64_t all = wefti_reader_bytes(file->reader);
    const bool raw = sink->options->kind == WEFTI_TEXT_RAW;
    unsigned char *first;
    WEFT_TRY(wefti_reader_take(file->reader, 0, all < KEPT_BYTES ? all : KEPT_BYTES, &first));
    const int64_t mark = raw ? 0 : wefti_utf8_mark(first, all);
    weft_status status =
        check_encoding(sink, path, first + mark, (all < KEPT_BYTES ? all : KEPT_BYTES) - mark);
    file->array = array_of(NULL, all - mark, WEFTI_ELEMENT_U8);
    file->array.offset = mark;
    if (status < 0 || all >= KEPT_BYTES) {
        file->array.reader = file->reader;
        wefti_free(first);
        return status;
    }
    wefti_reader_close(file->reader);
    file->reader = NULL;
    file->unpacked = first;
    file->array.data = first + mark;
    return WEFT_OK;
}

static weft_status add_bytes(const text_sink *sink, const char *path) {
    wefti_token_source *s = sink->source;
    wefti_array_file file = {0};
    WEFT_TRY(wefti_reader_open(path, &file.reader));
    weft_status status = take_text(sink, path, &file);
    if (status >= 0) status = keep_file(s, file);
    if (status < 0) {
        wefti_array_close(&file);
        return status;
    }
    return add_piece(s, path, file.array);
}

/* Stores token numbers in the arena, in 16 bits if the vocabulary fits. */
static weft_status add_ids(wefti_token_source *s, const char *path, const wefti_ids *ids,
                           int64_t vocab) {
    bool narrow = vocab <= 65536;
    wefti_element element = narrow ? WEFTI_ELEMENT_U16 : WEFTI_ELEMENT_I32;
    void *data = wefti_arena_alloc(s->arena, (size_t)ids->count * (narrow ? 2 : 4));
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for the %lld tokens of %s", (long long)ids->count,
                 path);
    for (int64_t i = 0; i < ids->count; i++) {
        if (narrow)
            ((uint16_t *)data)[i] = (uint16_t)ids->ids[i];
        else
            ((int32_t *)data)[i] = ids->ids[i];
    }
    return add_piece(s, path, array_of(data, ids->count, element));
}

/* wefti_document_fn: one document of several. */
static weft_status take_document(void *context, const char *text, int64_t bytes) {
    text_sink *sink = context;
    if (!sink->encoder) {
        wefti_text_add_bytes(&sink->bytes, text, bytes);
        wefti_text_add_bytes(&sink->bytes, "\n", 1);
        WEFT_REQUIRE(!sink->bytes.failed, WEFT_E_NOMEM, "no memory for a text");
        return WEFT_OK;
    }
    WEFT_TRY(wefti_encoder_add(sink->encoder, (const unsigned char *)text, bytes, &sink->ids));
    sink->joined += sink->end < 0;
    if (sink->end < 0) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(sink->ids.ids, sink->ids.count, sink->ids.capacity));
    sink->ids.ids[sink->ids.count++] = sink->end;
    return WEFT_OK;
}

/* A whole file as one document. */
static weft_status take_file(text_sink *sink, const char *path) {
    wefti_reader *reader;
    unsigned char *text;
    WEFT_TRY(wefti_reader_open(path, &reader));
    int64_t bytes = wefti_reader_bytes(reader);
    weft_status status = wefti_reader_take(reader, 0, bytes, &text);
    wefti_reader_close(reader);
    WEFT_TRY(status);
    const int64_t mark = sink->options->kind == WEFTI_TEXT_RAW ? 0 : wefti_utf8_mark(text, bytes);
    status = check_encoding(sink, path, text + mark, bytes - mark);
    if (status >= 0) status = take_document(sink, (const char *)text + mark, bytes - mark);
    wefti_free(text);
    if (status == WEFT_E_NO_IMPL) return status; /* which names the file */
    return status < 0 ? wefti_prefix(status, "%s", path) : WEFT_OK;
}

/* The bytes of a file's documents as tokens; they stay in memory. */
static weft_status add_gathered(wefti_token_source *s, const char *path, wefti_text *bytes) {
    wefti_array_file file = {0};
    int64_t count = bytes->used;
    file.unpacked = (unsigned char *)wefti_text_take(bytes);
    WEFT_REQUIRE(file.unpacked || count == 0, WEFT_E_NOMEM, "no memory for the texts of %s", path);
    file.array = array_of(file.unpacked, count, WEFTI_ELEMENT_U8);
    weft_status status = keep_file(s, file);
    if (status < 0) {
        wefti_array_close(&file);
        return status;
    }
    return add_piece(s, path, file.array);
}

static weft_status add_texts(text_sink *sink, const char *path, bool lines) {
    sink->ids.count = 0;
    if (!lines && !sink->encoder) return add_bytes(sink, path);
    if (lines)
        WEFT_TRY(wefti_jsonl_read(path, &sink->lines, take_document, sink));
    else
        WEFT_TRY(take_file(sink, path));
    if (!sink->encoder) return add_gathered(sink->source, path, &sink->bytes);
    return add_ids(sink->source, path, &sink->ids, sink->vocab);
}

/* One file: how it is read follows from `kind` and its name. */
static weft_status add_written(text_sink *sink, const char *path, wefti_text_kind kind) {
    bool lines = kind == WEFTI_TEXT_JSON_LINES;
    if (kind == WEFTI_TEXT_BY_NAME) {
        lines = wefti_jsonl_named(path);
        if (!lines) WEFT_TRY(wefti_text_check(path));
    }
    return add_texts(sink, path, lines);
}

static bool any_lines(const wefti_path_list *list, wefti_text_kind kind) {
    bool any = kind == WEFTI_TEXT_JSON_LINES;
    for (int64_t i = 0; i < list->count && kind == WEFTI_TEXT_BY_NAME; i++)
        any |= wefti_jsonl_named(list->paths[i]);
    return any;
}

/* What a user should know of the documents that a sink has taken. */
static void note_documents(const text_sink *sink) {
    const wefti_jsonl *l = &sink->lines;
    if (sink->joined > 1)
        wefti_text_add(sink->notes,
                       "the tokenizer has no token that ends a text: %lld documents follow each "
                       "other without one; name it as eos_token in a tokenizer_config.json beside "
                       "the tokenizer\n",
                       (long long)sink->joined);
    if (l->bad)
        wefti_text_add(sink->notes,
                       "data.bad_lines: skip left out %lld of %lld lines; the first: %s\n",
                       (long long)l->bad, (long long)l->lines, l->first_bad);
}

static weft_status add_all_written(wefti_token_source *s, const wefti_path_list *list,
                                   const wefti_text_options *o, wefti_text *notes) {
    const weft_tokenizer *tokenizer = o->tokenizer;
    text_sink sink = {.source = s, .end = -1};
    if (tokenizer && tokenizer->model != WEFTI_MODEL_BYTES) {
        WEFT_TRY(wefti_encoder_create(tokenizer, &sink.encoder));
        sink.vocab = weft_tokenizer_vocab(tokenizer);
        if (list->count > 1 || any_lines(list, o->kind)) sink.end = o->end;
    }
    sink.options = o;
    sink.notes = notes;
    sink.lines = (wefti_jsonl){.field = o->field, .skip_bad = o->skip_bad};
    weft_status status = WEFT_OK;
    for (int64_t i = 0; status >= 0 && i < list->count; i++)
        status = add_written(&sink, list->paths[i], o->kind);
    if (status >= 0) note_documents(&sink);
    wefti_text_free(&sink.bytes);
    wefti_free(sink.ids.ids);
    wefti_encoder_destroy(sink.encoder);
    return status;
}

static weft_status add_array(wefti_token_source *s, const char *path, wefti_array_format format) {
    wefti_array_file file;
    WEFT_TRY(wefti_array_open(path, format, &file));
    weft_status status = WEFT_OK;
    if (file.array.rank != 1 || !wefti_element_is_integer(file.array.element))
        status = WEFT_RAISE(
            WEFT_E_SHAPE, "%s: tokens are integers in one dimension; the array has %d dimensions%s",
            path, file.array.rank,
            wefti_element_is_integer(file.array.element) ? "" : " of fractions");
    if (status >= 0) status = keep_file(s, file);
    if (status < 0) {
        wefti_array_close(&file);
        return status;
    }
    return add_piece(s, path, file.array);
}

/* What the files of a source hold. */
typedef struct content {
    const wefti_text_options *text; /* NULL: arrays */
    wefti_text *notes;
    wefti_array_format format;
} content;

static weft_status open_list(wefti_token_source *s, const wefti_path_list *list,
                             const content *is) {
    if (is->text) return add_all_written(s, list, is->text, is->notes);
    for (int64_t i = 0; i < list->count; i++) WEFT_TRY(add_array(s, list->paths[i], is->format));
    return WEFT_OK;
}

static weft_status open_source(wefti_token_source *s, const char *path, const content *is) {
    WEFT_TRY(wefti_arena_create(&s->arena));
    wefti_path_list list = {0};
    weft_status status = wefti_paths_find(path, s->arena, &list);
    if (status >= 0) status = open_list(s, &list, is);
    wefti_free(list.paths);
    WEFT_TRY(status);
    return WEFT_OK;
}

weft_status wefti_tokens_open_text(wefti_token_source *s, const char *path,
                                   const wefti_text_options *options, wefti_text *notes) {
    return open_source(s, path, &(content){options, notes, WEFTI_ARRAY_SHARD});
}

weft_status wefti_tokens_open_arrays(wefti_token_source *s, const char *path,
                                     wefti_array_format format) {
    return open_source(s, path, &(content){NULL, NULL, format});
}

void wefti_tokens_close(wefti_token_source *s) {
    for (int64_t i = 0; i < s->file_count; i++) wefti_array_close(&s->files[i]);
    wefti_free(s->files);
    wefti_free(s->pieces);
    wefti_arena_destroy(s->arena);
    *s = (wefti_token_source){0};
}

/* The piece that holds token `at`: the last one that begins at or before it (so never an empty
 * one). */
static int64_t piece_of(const wefti_token_source *s, int64_t at) {
    int64_t low = 0, high = s->count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (s->pieces[middle].first <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static weft_status refuse_token(const wefti_token_piece *piece, int64_t at, int64_t vocab) {
    int bytes = wefti_element_bytes(piece->array.element);
    int64_t value, offset = piece->array.offset + wefti_array_place(&piece->array, at) * bytes;
    wefti_array_piece taken;
    WEFT_TRY(wefti_array_take(&piece->array, at, 1, &taken));
    wefti_array_integers(&taken.array, taken.first, 1, &value);
    WEFT_REQUIRE(vocab == 0 || value < 0, WEFT_E_ARG,
                 "%s: token %lld at byte %lld (number %lld) is not below the vocabulary of %lld: "
                 "the model needs a larger one",
                 piece->path, (long long)value, (long long)offset, (long long)at, (long long)vocab);
    WEFT_FAIL(WEFT_E_CORRUPT, "%s: %lld at byte %lld (number %lld) is not a token", piece->path,
              (long long)value, (long long)offset, (long long)at);
}

static weft_status read_piece(const wefti_token_piece *piece, int64_t first, int64_t count,
                              int64_t limit, int64_t vocab, int32_t *out) {
    wefti_array_piece taken;
    for (int64_t done = 0; done < count; done += taken.count) {
        WEFT_TRY(wefti_array_take(&piece->array, first + done, count - done, &taken));
        wefti_array_tokens(&taken.array, taken.first, taken.count, out + done);
    }
    for (int64_t i = 0; i < count; i++)
        if (out[i] < 0 || out[i] >= limit) return refuse_token(piece, first + i, vocab);
    return WEFT_OK;
}

weft_status wefti_tokens_read(const wefti_token_source *s, int64_t first, int64_t count,
                              int64_t vocab, int32_t *out) {
    WEFT_REQUIRE(first >= 0 && count >= 0 && count <= s->tokens - first, WEFT_E_ARG,
                 "tokens %lld to %lld of %lld", (long long)first, (long long)(first + count),
                 (long long)s->tokens);
    int64_t limit = vocab > 0 && vocab < INT32_MAX ? vocab : INT32_MAX;
    for (int64_t p = count ? piece_of(s, first) : 0; count > 0; p++) {
        const wefti_token_piece *piece = &s->pieces[p];
        int64_t from = first - piece->first, here = piece->array.elems - from;
        if (here > count) here = count;
        WEFT_TRY(read_piece(piece, from, here, limit, vocab, out));
        first += here;
        out += here;
        count -= here;
    }
    return WEFT_OK;
}

/* Can no element of this type be refused? */
static bool always_below(wefti_element element, int64_t vocab) {
    return (element == WEFTI_ELEMENT_U8 && (vocab == 0 || vocab >= 256)) ||
           (element == WEFTI_ELEMENT_U16 && (vocab == 0 || vocab >= 65536));
}

weft_status wefti_tokens_check(const wefti_token_source *s, int64_t vocab) {
    int32_t tokens[CHECK_TOKENS];
    for (int64_t p = 0, left = CHECKED_UP_TO_BYTES; p < s->count; p++) {
        const wefti_token_piece *piece = &s->pieces[p];
        if (always_below(piece->array.element, vocab)) continue;
        left -= piece->array.elems * wefti_element_bytes(piece->array.element);
        if (left < 0) return WEFT_OK; /* the rest is checked sample by sample, when read */
        for (int64_t at = 0; at < piece->array.elems; at += CHECK_TOKENS) {
            int64_t count =
                piece->array.elems - at < CHECK_TOKENS ? piece->array.elems - at : CHECK_TOKENS;
            WEFT_TRY(wefti_tokens_read(s, piece->first + at, count, vocab, tokens));
        }
    }
    return WEFT_OK;
}
