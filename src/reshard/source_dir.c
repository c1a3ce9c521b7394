/* Model directories and directories of torch's distributed checkpoints as a source. See source.h.
 *
 * torch's HuggingFaceStorageWriter saves the shards of each rank in one file. The metadata of the
 * file give the offset of each shard in its tensor. A tensor ends where its last shard ends, so
 * that all files are needed to know its shape. Files without that metadata hold whole tensors. */
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "checkpoint/tensor_set.h"
#include "reshard/source.h"
#include "tensor/tensor.h"

/* One file with the offsets of its tensors. */
typedef struct dir_file {
    int32_t number;
    const wefti_json *offsets; /* NULL: whole tensors */
} dir_file;

/* The offset of a tensor in one file. */
static weft_status offset_of(const wefti_shards *s, const dir_file *f,
                             const wefti_safetensors_entry *e, wefti_region *out) {
    const char *path = s->files[f->number].path;
    *out = (wefti_region){0};
    for (int d = 0; d < e->desc.rank; d++) out->size[d] = e->desc.shape[d];
    if (!f->offsets) return WEFT_OK;
    const wefti_json *item = wefti_json_get(f->offsets, e->name), *list = NULL;
    WEFT_REQUIRE(item, WEFT_E_CORRUPT, "%s: %s does not name tensor %.200s", path,
                 WEFTI_DCP_REGIONS, e->name);
    weft_status status = wefti_json_array(item, "saved_offsets", &list);
    if (status < 0) return wefti_prefix(status, "%s: tensor %.200s", path, e->name);
    WEFT_REQUIRE(list->count == e->desc.rank, WEFT_E_CORRUPT,
                 "%s: tensor %.200s has %d dimensions, but %d offsets", path, e->name, e->desc.rank,
                 list->count);
    int d = 0;
    WEFTI_JSON_EACH(offset, list) {
        int64_t end;
        WEFT_REQUIRE(offset->kind == WEFTI_JSON_INT && offset->as.integer >= 0 &&
                         !wefti_add_overflows(offset->as.integer, e->desc.shape[d], &end),
                     WEFT_E_CORRUPT, "%s: an offset of tensor %.200s is not a size", path, e->name);
        out->begin[d++] = offset->as.integer;
    }
    return WEFT_OK;
}

/* Adds the tensor, or extends it so that this shard ends inside. */
static weft_status extend(wefti_shards *s, const wefti_safetensors_entry *e,
                          const wefti_region *region) {
    wefti_source_tensor *t;
    weft_desc whole = e->desc, before;
    for (int d = 0; d < whole.rank; d++) whole.shape[d] = region->begin[d] + region->size[d];
    const wefti_checkpoint_role role = wefti_shards_role(s, e->name);
    const int64_t number = wefti_shards_number(s, role, e->name);
    if (number < 0) return wefti_shards_add_tensor(s, role, e->name, &whole, &t);
    t = &s->tensors[number];
    before = t->desc;
    WEFT_REQUIRE(before.rank == whole.rank && before.dtype == whole.dtype, WEFT_E_MISMATCH,
                 "%s: tensor %.200s is %s in one file and %s in another one", s->path, e->name,
                 wefti_desc_text(&before).text, wefti_desc_text(&whole).text);
    for (int d = 0; d < whole.rank; d++)
        if (whole.shape[d] > t->desc.shape[d]) t->desc.shape[d] = whole.shape[d];
    return wefti_desc_check(&t->desc);
}

static weft_status add_shards(wefti_shards *s, const dir_file *f, bool pieces) {
    const wefti_source_file *file = &s->files[f->number];
    for (int64_t i = 0; i < wefti_safetensors_count(file->tensors); i++) {
        const wefti_safetensors_entry *e = wefti_safetensors_at(file->tensors, i);
        wefti_source_piece piece = {.reader = e->reader, .at = e->at, .file = f->number};
        WEFT_TRY(wefti_safetensors_check_known(file->path, e));
        WEFT_TRY(offset_of(s, f, e, &piece.region));
        if (!pieces) {
            WEFT_TRY(extend(s, e, &piece.region));
            continue;
        }
        const int64_t number = wefti_shards_number(s, wefti_shards_role(s, e->name), e->name);
        WEFT_TRY(wefti_shards_add_piece(&s->tensors[number], &piece));
    }
    return WEFT_OK;
}

static weft_status add_named(wefti_shards *s, const char *path, dir_file *out) {
    static const wefti_json_limits limits = {
        .depth = 4, .members = WEFTI_SAFETENSORS_TENSORS, .array_items = WEFTI_SAFETENSORS_RANK};
    WEFT_TRY(wefti_tensor_set_check_link(path));
    WEFT_TRY(wefti_shards_add_file(s, path, -1, false, &out->number));
    const char *text = wefti_shards_metadata(s->files[out->number].tensors, WEFTI_DCP_REGIONS);
    if (!text) return WEFT_OK;
    weft_status status =
        wefti_json_parse(s->arena, text, (int64_t)strlen(text), &limits, &out->offsets);
    return status < 0 ? wefti_prefix(status, "%s: %s", path, WEFTI_DCP_REGIONS) : WEFT_OK;
}

/* Files of weft tell how many there are. Without one of them a tensor would end too early. */
static weft_status check_count(const wefti_shards *s) {
    for (int64_t i = 0; i < s->file_count; i++) {
        int64_t count = 0;
        if (!wefti_shards_metadata(s->files[i].tensors, WEFTI_DCP_REGIONS)) continue;
        const wefti_safetensors_pair *pairs =
            wefti_safetensors_metadata(s->files[i].tensors, &count);
        const int64_t stated = wefti_safetensors_number(pairs, count, "ranks");
        WEFT_REQUIRE(stated < 0 || stated <= s->file_count, WEFT_E_NOT_FOUND,
                     "%s has %lld of %lld files shard-00001-..., shard-00002-... and so on: %s "
                     "tells the number",
                     s->path, (long long)s->file_count, (long long)stated, s->files[i].path);
    }
    return WEFT_OK;
}

/* torch numbers the shards of ranks from 1. A rank without data writes none, so a gap alone is no
 * fault; a message about lost elements names it. */
static weft_status add_gaps(wefti_shards *s) {
    enum { GAPS_MAX = 1000 };
    const int64_t files = s->file_count;
    int before = 0, gaps = 0, number;
    int32_t ignored;
    for (int64_t i = 0; i < files; i++) { /* in the order of names */
        const char *name = strrchr(s->files[i].path, '/');
        if (!name || sscanf(name, "/shard-%5d-", &number) != 1) continue;
        while (++before < number && gaps++ < GAPS_MAX) {
            const char *path = wefti_arena_format(
                s->arena, "%s/shard-%05d-model-00001-of-00001.safetensors", s->path, before);
            WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
            WEFT_TRY(wefti_shards_add_file(s, path, -1, true, &ignored));
        }
        before = number;
    }
    return WEFT_OK;
}

/* ---- the files of a directory ---- */

typedef struct dir_list {
    wefti_text names; /* each with its NUL */
    int64_t count;
    bool model_only;           /* other files than model.safetensors do not count */
    char *index;               /* path of the index */
    wefti_tensor_index *pairs; /* what it names; NULL: the directory has none */
    int64_t pairs_count;
} dir_list;

static weft_status read_index(const wefti_shards *s, dir_list *d) {
    char *text = NULL, *model = wefti_format("%s/model.safetensors", s->path);
    int64_t bytes = 0;
    bool indexed = false;
    WEFT_REQUIRE(model, WEFT_E_NOMEM, "no memory for the name of a file");
    weft_status status = s->slice ? wefti_look_for(model, &d->model_only) : WEFT_OK;
    wefti_free(model);
    WEFT_TRY(status);
    d->index = wefti_format("%s/model.safetensors.index.json", s->path);
    WEFT_REQUIRE(d->index, WEFT_E_NOMEM, "no memory for the name of a file");
    WEFT_TRY(wefti_look_for(d->index, &indexed));
    if (d->model_only || !indexed) return WEFT_OK;
    WEFT_TRY(wefti_sealed_read(d->index, WEFTI_SAFETENSORS_HEADER_BYTES, NULL, &text, &bytes));
    status = wefti_tensor_index_parse(text, bytes, &d->pairs, &d->pairs_count);
    wefti_free(text);
    return status < 0 ? wefti_prefix(status, "%s", d->index) : WEFT_OK;
}

/* Of files name-00001-of-0000N.safetensors without an index each one has a successor, and the last
 * one the first. */
static weft_status check_numbers(const wefti_shards *s, const char *name) {
    enum { DIGITS = 5, TAIL = DIGITS + 4 + DIGITS + 12 }; /* 00001-of-0000N.safetensors */
    const size_t length = strlen(name);
    const char *tail = name + length - TAIL;
    int number, all, end = 0;
    if (length <= TAIL || tail[-1] != '-' ||
        sscanf(tail, "%5d-of-%5d.safetensors%n", &number, &all, &end) < 2 || end != TAIL ||
        number < 1 || number > all)
        return WEFT_OK;
    char *path = wefti_format("%s/%.*s%05d-of-%05d.safetensors", s->path, (int)(tail - name), name,
                              number < all ? number + 1 : 1, all);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    bool there = false;
    weft_status status = wefti_look_for(path, &there);
    if (status >= 0 && !there)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND, "%s is missing: %s/%s is one of %d files", path,
                            s->path, name, all);
    wefti_free(path);
    return status;
}

static void add_name(dir_list *d, const char *name) {
    wefti_text_add_bytes(&d->names, name, (int64_t)strlen(name) + 1);
    d->count++;
}

/* Each file of the index once, in the order in which its tensors name it. */
static weft_status choose_indexed(wefti_shards *s, dir_list *d) {
    wefti_map seen = {0};
    weft_status status = WEFT_OK;
    for (int64_t k = 0; k < d->pairs_count && status >= 0; k++) {
        const char *file = d->pairs[k].file;
        int64_t number = k;
        status = wefti_map_add_text(&seen, file, k, &number);
        if (status < 0 || number != k) continue;
        char *path = wefti_format("%s/%s", s->path, file);
        if (!path)
            status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a file");
        else if (wefti_is_missing(path))
            status = WEFT_RAISE(WEFT_E_CORRUPT, "%s is missing, where %s places tensor %.200s",
                                path, d->index, d->pairs[k].tensor);
        wefti_free(path);
        add_name(d, file);
    }
    wefti_map_free(&seen);
    return status;
}

/* Of a directory with an index only the files of the index count: torch leaves its shards beside
 * them. */
static weft_status choose_files(wefti_shards *s, dir_list *d, char *const *names, int64_t count) {
    if (d->pairs) WEFT_TRY(choose_indexed(s, d));
    for (int64_t i = 0; i < count && !d->pairs; i++) {
        if (!wefti_safetensors_is_name(names[i])) continue;
        if (d->model_only && strcmp(names[i], "model.safetensors") != 0) continue;
        WEFT_TRY(check_numbers(s, names[i]));
        add_name(d, names[i]);
    }
    WEFT_REQUIRE(!d->names.failed, WEFT_E_NOMEM, "no memory for a list");
    return d->count ? WEFT_OK : wefti_check_formats(s->path, names, count);
}

static weft_status list_files(wefti_shards *s, dir_list *d) {
    char **names = NULL;
    int64_t count = 0;
    WEFT_TRY(read_index(s, d));
    WEFT_TRY(wefti_dir_list(s->path, &names, &count));
    weft_status status = choose_files(s, d, names, count);
    wefti_free(names);
    return status;
}

/* Every tensor of the index is in the file that the index says. */
static weft_status check_index(const wefti_shards *s, const dir_list *d) {
    const size_t folder = strlen(s->path) + 1;
    for (int64_t k = 0; k < d->pairs_count; k++) {
        bool found = wefti_tensor_may_be_tied(d->pairs[k].tensor);
        for (int64_t i = 0; i < s->file_count && !found; i++)
            found = !strcmp(s->files[i].path + folder, d->pairs[k].file) &&
                    wefti_safetensors_find(s->files[i].tensors, d->pairs[k].tensor);
        WEFT_REQUIRE(found, WEFT_E_CORRUPT, "%s/%s has no tensor %.200s, where %s places it",
                     s->path, d->pairs[k].file, d->pairs[k].tensor, d->index);
    }
    return WEFT_OK;
}

static weft_status add_files(wefti_shards *s, const dir_list *d) {
    const char *name = d->names.data;
    dir_file *files = wefti_arena_alloc(s->arena, (size_t)(d->count + 1) * sizeof *files);
    WEFT_REQUIRE(files, WEFT_E_NOMEM, "no memory for a list of files");
    for (int64_t i = 0; i < d->count; i++, name += strlen(name) + 1) {
        const char *path = wefti_arena_format(s->arena, "%s/%s", s->path, name);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
        WEFT_TRY(add_named(s, path, &files[i]));
    }
    WEFT_TRY(check_index(s, d));
    WEFT_TRY(check_count(s));
    WEFT_TRY(add_gaps(s));
    for (int pieces = 0; pieces < 2; pieces++)
        for (int64_t i = 0; i < d->count; i++) WEFT_TRY(add_shards(s, &files[i], pieces != 0));
    return WEFT_OK;
}

static weft_status open_file(wefti_shards *s) {
    dir_file file = {0};
    WEFT_TRY(add_named(s, s->path, &file));
    if (s->slice) file.offsets = NULL;
    WEFT_TRY(add_shards(s, &file, false));
    return add_shards(s, &file, true);
}

weft_status wefti_shards_open_dir(wefti_shards *s) {
    if (wefti_safetensors_is_name(s->path)) return open_file(s);
    dir_list d = {0};
    weft_status status = list_files(s, &d);
    if (status >= 0 && !d.count)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "%s holds no checkpoint: neither steps, nor folders rank_0, nor "
                            ".safetensors files",
                            s->path);
    if (status >= 0) status = add_files(s, &d);
    if (status >= 0) status = wefti_shards_take_side_files(s);
    wefti_text_free(&d.names);
    wefti_free(d.pairs);
    wefti_free(d.index);
    return status;
}
