/* The table of files beside a model's weights, and copies of them. See side_files.h. Source of the
 * names: transformers 5, utils/__init__.py and tokenization_utils_base.py. */
#include "checkpoint/side_files.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/tensor_set.h"

enum { LIMIT = 256 << 20, COUNT_BYTES = 8 };

static const struct {
    const char *name;
    wefti_side_use use;
} table[] = {
    {"config.json", WEFTI_SIDE_CONFIG},
    {"generation_config.json", WEFTI_SIDE_MODEL},
    {"preprocessor_config.json", WEFTI_SIDE_MODEL},
    {"processor_config.json", WEFTI_SIDE_MODEL},
    {"tokenizer.json", WEFTI_SIDE_TOKENIZER},
    {"tokenizer_config.json", WEFTI_SIDE_TOKENIZER},
    {"special_tokens_map.json", WEFTI_SIDE_TOKENIZER},
    {"added_tokens.json", WEFTI_SIDE_TOKENIZER},
    {"chat_template.jinja", WEFTI_SIDE_TOKENIZER},
    {"chat_template.json", WEFTI_SIDE_TOKENIZER},
    {"vocab.json", WEFTI_SIDE_TOKENIZER},
    {"vocab.txt", WEFTI_SIDE_TOKENIZER},
    {"merges.txt", WEFTI_SIDE_TOKENIZER},
    {"tokenizer.model", WEFTI_SIDE_TOKENIZER},
    {"spiece.model", WEFTI_SIDE_TOKENIZER},
    {"sentencepiece.bpe.model", WEFTI_SIDE_TOKENIZER},
};
enum { FILES = sizeof table / sizeof *table };
_Static_assert((int)FILES <= (int)WEFTI_SIDE_FILES_MOST, "lists have room for the table");

void wefti_side_files_free(wefti_side_files *files) {
    wefti_free(files->data);
    *files = (wefti_side_files){0};
}

/* ---- blocks ---- */

typedef struct side_entry {
    const char *name, *text;
    int64_t bytes;
} side_entry;

/* The file at *at, which moves behind it. False: the block ends there, or is damaged. */
static bool next(const wefti_side_files *files, int64_t *at, side_entry *out) {
    const int64_t rest = files->bytes - *at;
    if (rest <= 0) return false; /* `data` is NULL without files */
    const char *name = files->data + *at, *end = memchr(name, 0, (size_t)rest);
    if (!end || rest - (end - name) < 1 + COUNT_BYTES + 1) return false;
    const char *text = end + 1 + COUNT_BYTES;
    const uint64_t bytes = wefti_get_number((const unsigned char *)end + 1, COUNT_BYTES);
    const int64_t room = files->bytes - (text - files->data);
    if (bytes >= (uint64_t)room || text[bytes]) return false;
    *out = (side_entry){name, text, (int64_t)bytes};
    *at = text - files->data + (int64_t)bytes + 1;
    return true;
}

static weft_status append(wefti_side_files *files, const char *name, const char *text,
                          int64_t bytes) {
    unsigned char number[COUNT_BYTES];
    const size_t head = strlen(name) + 1;
    const int64_t all = files->bytes + (int64_t)head + COUNT_BYTES + bytes + 1;
    char *data = wefti_alloc((size_t)all);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for %s", name);
    char *at = data + files->bytes;
    if (files->bytes) memcpy(data, files->data, (size_t)files->bytes);
    wefti_put_number(number, (uint64_t)bytes, COUNT_BYTES);
    memcpy(at, name, head);
    memcpy(at + head, number, COUNT_BYTES);
    memcpy(at + head + COUNT_BYTES, text, (size_t)bytes);
    data[all - 1] = 0;
    wefti_free(files->data);
    *files = (wefti_side_files){data, all, files->count + 1};
    return WEFT_OK;
}

weft_status wefti_side_files_take(wefti_side_files *files, char *data, int64_t bytes) {
    int64_t at = 0;
    side_entry e;
    wefti_side_files_free(files);
    files->data = data;
    files->bytes = bytes;
    while (next(files, &at, &e)) files->count++;
    WEFT_REQUIRE(
        at == bytes && files->count <= WEFTI_SIDE_FILES_MOST, WEFT_E_MISMATCH,
        "another rank has sent the files beside a model in another form than this build's");
    return WEFT_OK;
}

int64_t wefti_side_files_list(const wefti_side_files *files, wefti_checkpoint_text *out) {
    int64_t at = 0, count = 0;
    side_entry e;
    while (count < WEFTI_SIDE_FILES_MOST && next(files, &at, &e))
        out[count++] = (wefti_checkpoint_text){e.name, e.text, e.bytes};
    return count;
}

const char *wefti_side_files_find(const wefti_side_files *files, const char *name,
                                  int64_t *out_bytes) {
    int64_t at = 0;
    side_entry e;
    while (next(files, &at, &e))
        if (!strcmp(e.name, name)) {
            *out_bytes = e.bytes;
            return e.text;
        }
    *out_bytes = 0;
    return NULL;
}

/* ---- directories ---- */

/* Where a link leads in the end, the file must have the same name, or be of a Hugging Face cache.
 */
static weft_status check_link(const char *path, const char *name) {
    char target[PATH_MAX];
    if (!wefti_is_link(path) || wefti_link_of_cache(path)) return WEFT_OK;
    const char *found = realpath(path, target), *slash = found ? strrchr(found, '/') : NULL;
    WEFT_REQUIRE(slash && !strcmp(slash + 1, name), WEFT_E_CORRUPT,
                 "%s is a link to %s: a file beside a model may be a link to a file with the same "
                 "name only, so that no other file gets into a checkpoint; replace the link by the "
                 "file",
                 path, found ? found : "nothing");
    return WEFT_OK;
}

weft_status wefti_side_files_add_file(wefti_side_files *files, const char *path, const char *name) {
    char *text = NULL;
    int64_t bytes = 0;
    WEFT_TRY(wefti_sealed_read(path, LIMIT, NULL, &text, &bytes));
    weft_status status = append(files, name, text, bytes);
    wefti_free(text);
    return status;
}

static weft_status add_one(wefti_side_files *files, const char *path, const char *name) {
    bool there = false;
    WEFT_TRY(wefti_look_for(path, &there));
    if (!there || wefti_is_dir(path)) return WEFT_OK;
    WEFT_TRY(check_link(path, name));
    return wefti_side_files_add_file(files, path, name);
}

weft_status wefti_side_files_add(wefti_side_files *files, const char *dir, unsigned uses) {
    for (int i = 0; i < FILES; i++) {
        if (!(table[i].use & uses)) continue;
        char *path = wefti_format("%s/%s", dir, table[i].name);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
        weft_status status = add_one(files, path, table[i].name);
        wefti_free(path);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

weft_status wefti_side_files_write(const wefti_side_files *files, const char *dir) {
    wefti_checkpoint_text texts[WEFTI_SIDE_FILES_MOST];
    const int64_t count = wefti_side_files_list(files, texts);
    for (int64_t i = 0; i < count; i++) {
        char *path = wefti_format("%s/%s", dir, texts[i].name);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
        weft_status status = wefti_file_write(path, texts[i].text, (size_t)texts[i].bytes);
        wefti_free(path);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}
