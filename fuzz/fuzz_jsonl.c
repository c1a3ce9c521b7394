/* Fuzzes files of JSON lines. The first byte of the input sets how many bytes a read takes; the
 * documents, and the status, must be those of a file that is read at once. The check for files that
 * are no text reads the same file. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/json/json.h"
#include "base/memory.h"
#include "data/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct documents {
    int64_t count, bytes;
    uint64_t digest;
    bool refuses; /* the next document */
} documents;

static weft_status take(void *context, const char *text, int64_t bytes) {
    documents *all = context;
    if (bytes < 0) abort();
    all->count++;
    all->bytes += bytes;
    for (int64_t i = 0; i < bytes; i++)
        all->digest = (all->digest ^ (uint8_t)text[i]) * 0x100000001b3;
    all->digest = (all->digest ^ 0x100) * 0x100000001b3; /* the end of a document */
    return all->refuses ? WEFT_E_IO : WEFT_OK;
}

static weft_status read_file(const char *path, int64_t piece_bytes, documents *out) {
    wefti_jsonl how = {.field = NULL};
    return wefti_jsonl_read_pieces(path, piece_bytes, &how, take, out);
}

/* What the strict reader takes, the lenient one takes, with the same text. With bad lines left out
 * no line ends the reading. */
static void check_lenient(const char *path, const char *line, int64_t bytes) {
    static const wefti_json_limits limits = {
        .depth = 64, .members = 1 << 16, .array_items = 1 << 20};
    const wefti_json *object;
    wefti_json_member member;
    wefti_arena *arena;
    wefti_text text = {0};
    if (wefti_arena_create(&arena) < 0) abort();
    if (wefti_json_parse(arena, line, bytes, &limits, &object) >= 0 &&
        object->kind == WEFTI_JSON_OBJECT) {
        const wefti_json *strict = wefti_json_get(object, "text");
        if (wefti_json_find(line, bytes, "text", &member) < 0 || !member.value != !strict) abort();
        const bool is_text = strict && strict->kind == WEFTI_JSON_TEXT;
        if (strict && wefti_json_decode(member.value, member.bytes, &text) != is_text) abort();
        if (is_text && ((size_t)text.used != strlen(strict->as.text) ||
                        memcmp(strict->as.text, text.used ? text.data : "", (size_t)text.used)))
            abort();
    }
    wefti_text_free(&text);
    wefti_arena_destroy(arena);
    documents all = {0};
    wefti_jsonl how = {.skip_bad = true};
    const weft_status status = wefti_jsonl_read(path, &how, take, &all);
    if (status < 0 && status != WEFT_E_NO_IMPL) abort();
    if (status >= 0 && all.count + how.bad != how.lines) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int file = -1;
    static char path[64];
    if (size < 1) return 0;
    if (file < 0) {
        file = memfd_create("fuzz.jsonl", 0);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    const int64_t bytes = (int64_t)size - 1;
    if (file < 0 || ftruncate(file, 0) || pwrite(file, data + 1, size - 1, 0) != bytes) abort();
    documents whole = {0}, pieces = {0}, first = {.refuses = true};
    const weft_status expected = read_file(path, bytes + 1, &whole);
    if (read_file(path, 1 + data[0], &pieces) != expected) abort();
    if (pieces.count != whole.count || pieces.bytes != whole.bytes || pieces.digest != whole.digest)
        abort();
    if (whole.bytes > bytes) abort(); /* escapes are longer than what they stand for */
    /* A caller's failure ends the reading with its status. */
    if (whole.count && (read_file(path, 1 + data[0], &first) != WEFT_E_IO || first.count != 1))
        abort();
    check_lenient(path, (const char *)data + 1, bytes);
    if (wefti_text_check(path) < 0 && !*weft_error_message()) abort();
    return 0;
}
