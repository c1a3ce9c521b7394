/* Steps of weft as a source, and the state of a run that slices carry along. See source.h. */
#include <string.h>

#include "base/digest/digest.h"
#include "base/io.h"
#include "checkpoint/run/run.h"
#include "checkpoint/side_files.h"
#include "reshard/source.h"

wefti_checkpoint_role wefti_shards_role(const wefti_shards *s, const char *name) {
    int64_t role = wefti_map_find_text(&s->roles, name);
    return role < 0 ? WEFTI_CHECKPOINT_MODEL : (wefti_checkpoint_role)role;
}

weft_status wefti_shards_take_manifest(wefti_shards *s, const char *text, int64_t bytes) {
    WEFT_TRY(wefti_manifest_parse(text, bytes, &s->manifest));
    char *copy = wefti_arena_alloc(s->arena, (size_t)bytes + 1);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a manifest");
    memcpy(copy, text, (size_t)bytes);
    s->manifest_text = copy;
    s->manifest_bytes = bytes;
    for (int64_t k = 0; k < s->manifest->tensor_count; k++)
        WEFT_TRY(wefti_map_add_text(&s->roles, s->manifest->tensors[k].name,
                                    (int64_t)s->manifest->tensors[k].role, NULL));
    return WEFT_OK;
}

/* Whether a file of the manifest holds tensors. The index of a model in several files is made anew,
 * as its names may change. */
static bool is_text(const wefti_manifest *m, int64_t file) {
    for (int64_t k = 0; k < m->tensor_count; k++)
        if (m->tensors[k].file == file) return false;
    return strcmp(m->files[file].name, "model.safetensors.index.json") != 0 &&
           !wefti_safetensors_is_name(m->files[file].name);
}

static weft_status keep_text(wefti_shards *s, const char *name, const char *text, int64_t bytes) {
    wefti_checkpoint_text *to = &s->texts[s->text_count++];
    char *copy = wefti_arena_alloc(s->arena, (size_t)bytes + 1);
    to->name = wefti_arena_strdup(s->arena, name);
    WEFT_REQUIRE(to->name && copy, WEFT_E_NOMEM, "no memory for %s", name);
    memcpy(copy, text, (size_t)bytes);
    to->text = copy;
    to->bytes = bytes;
    return WEFT_OK;
}

/* A directory without a manifest. */
weft_status wefti_shards_take_side_files(wefti_shards *s) {
    wefti_checkpoint_text texts[WEFTI_SIDE_FILES_MOST];
    wefti_side_files files = {0};
    weft_status status = wefti_side_files_add(&files, s->path, WEFTI_SIDE_ALL);
    const int64_t count = status >= 0 ? wefti_side_files_list(&files, texts) : 0;
    s->texts = wefti_arena_alloc(s->arena, (size_t)(count + 1) * sizeof *s->texts);
    if (!s->texts) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the files of a model");
    for (int64_t i = 0; i < count && status >= 0; i++)
        status = keep_text(s, texts[i].name, texts[i].text, texts[i].bytes);
    wefti_side_files_free(&files);
    return status;
}

static weft_status take_text(wefti_shards *s, const char *dir, const wefti_manifest_file *file) {
    char *path = wefti_format("%s/%s", dir, file->name), *text = NULL;
    int64_t bytes = 0;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = wefti_sealed_read(path, file->bytes, NULL, &text, &bytes);
    if (status >= 0 && wefti_crc32c(0, text, (size_t)bytes) != file->crc32c)
        status =
            WEFT_RAISE(WEFT_E_CORRUPT, "%s does not have the checksum %08x", path, file->crc32c);
    if (status >= 0) status = keep_text(s, file->name, text, bytes);
    wefti_free(text);
    wefti_free(path);
    return status;
}

weft_status wefti_shards_take_texts(wefti_shards *s, const char *dir) {
    const wefti_manifest *m = s->manifest;
    s->texts = wefti_arena_alloc(s->arena, (size_t)(m->file_count + 1) * sizeof *s->texts);
    WEFT_REQUIRE(s->texts, WEFT_E_NOMEM, "no memory for the texts of a checkpoint");
    for (int64_t i = 0; i < m->file_count; i++)
        if (is_text(m, i)) WEFT_TRY(take_text(s, dir, &m->files[i]));
    return WEFT_OK;
}

/* The number of a file, which the step has opened. */
static weft_status number_of(wefti_shards *s, const char *path, int32_t rank, int32_t *out) {
    int64_t number = wefti_map_find_text(&s->paths, path);
    if (number < 0) {
        WEFT_TRY(wefti_shards_add_file(s, path, rank, true, out));
        number = *out;
        s->files[number].missing = false;
        WEFT_TRY(wefti_map_add_text(&s->paths, s->files[number].path, number, NULL));
    }
    *out = (int32_t)number;
    return WEFT_OK;
}

static weft_status file_of(wefti_shards *s, const wefti_checkpoint_entry *e, int32_t *out) {
    char *path = wefti_format("%s/%s", wefti_checkpoint_path(s->step), e->file);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = number_of(s, path, -1, out);
    wefti_free(path);
    return status;
}

static weft_status add_entry(wefti_shards *s, const wefti_checkpoint_entry *e) {
    wefti_source_tensor *t;
    wefti_source_piece piece = {.reader = e->reader, .at = e->at};
    for (int d = 0; d < e->desc.rank; d++) piece.region.size[d] = e->desc.shape[d];
    WEFT_TRY(file_of(s, e, &piece.file));
    WEFT_TRY(wefti_shards_add_tensor(s, e->role, e->name, &e->desc, &t));
    t->checked = true;
    t->crc32c = e->crc32c;
    return wefti_shards_add_piece(t, &piece);
}

/* A sliced step: what is there of each region. Opening it has made sure that all regions are. */
static weft_status add_slices(wefti_shards *s, const wefti_sliced *sliced) {
    const wefti_manifest *m = wefti_sliced_manifest(sliced);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const wefti_manifest_tensor *from = &m->tensors[i];
        wefti_source_tensor *t;
        int64_t count = 0;
        const wefti_sliced_piece *pieces = wefti_sliced_pieces(sliced, i, &count);
        WEFT_TRY(wefti_shards_add_tensor(s, from->role, from->name, &from->desc, &t));
        t->checked = true;
        t->crc32c = from->crc32c;
        for (int64_t k = 0; k < count; k++) {
            wefti_source_piece piece = {
                .region = pieces[k].region, .reader = pieces[k].reader, .at = pieces[k].at};
            if (!piece.reader) continue;
            WEFT_TRY(number_of(s, pieces[k].path, pieces[k].rank, &piece.file));
            WEFT_TRY(wefti_shards_add_piece(t, &piece));
        }
    }
    return WEFT_OK;
}

static weft_status take_step(wefti_shards *s) {
    const char *dir = wefti_checkpoint_path(s->step);
    char *path = wefti_format("%s/manifest.json", dir), *text = NULL;
    int64_t bytes = 0;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = wefti_sealed_read(path, (int64_t)512 << 20, NULL, &text, &bytes);
    wefti_free(path);
    if (status >= 0) status = wefti_shards_take_manifest(s, text, bytes);
    wefti_free(text);
    if (status >= 0) status = wefti_shards_take_texts(s, dir);
    return status;
}

weft_status wefti_shards_open_step(wefti_shards *s) {
    WEFT_TRY(wefti_checkpoint_open_quick(s->path, &s->step));
    WEFT_TRY(take_step(s));
    if (wefti_checkpoint_sliced(s->step)) return add_slices(s, wefti_checkpoint_sliced(s->step));
    for (int64_t i = 0; i < wefti_checkpoint_count(s->step); i++)
        WEFT_TRY(add_entry(s, wefti_checkpoint_at(s->step, i)));
    return WEFT_OK;
}
