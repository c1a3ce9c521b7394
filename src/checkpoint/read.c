/* Opens and verifies steps. See checkpoint.h.
 *
 * A step is opened only if all of its bytes are intact. The manifest has a checksum of itself, and
 * checksums of each file's header (or text). The header has the positions of the tensors, and the
 * manifest a checksum of each tensor. */
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/step_dir.h"
#include "tensor/tensor.h"

/* A larger manifest would describe more than the million tensors that a file may have. */
#define MANIFEST_LIMIT ((int64_t)512 << 20)

struct wefti_checkpoint {
    char *path;
    wefti_manifest *manifest;
    wefti_reader **readers;          /* one per file of the manifest */
    wefti_safetensors **files;       /* NULL for a file without tensors */
    wefti_checkpoint_entry *entries; /* ordered by role, then name */
    int64_t count;
    uint32_t identity; /* checksum of the manifest */
    bool unread;       /* the tensors' bytes are not checked here */
};

void wefti_checkpoint_close(wefti_checkpoint *c) {
    if (!c) return;
    for (int64_t i = 0; c->manifest && i < c->manifest->file_count; i++) {
        if (c->files) wefti_safetensors_close(c->files[i]);
        if (c->readers) wefti_reader_close(c->readers[i]);
    }
    wefti_free(c->files);
    wefti_free(c->readers);
    wefti_free(c->entries);
    wefti_manifest_destroy(c->manifest);
    wefti_free(c->path);
    wefti_free(c);
}

const char *wefti_checkpoint_path(const wefti_checkpoint *c) {
    return c->path;
}
const wefti_checkpoint_meta *wefti_checkpoint_meta_of(const wefti_checkpoint *c) {
    return &c->manifest->meta;
}
int64_t wefti_checkpoint_count(const wefti_checkpoint *c) {
    return c->count;
}

const wefti_checkpoint_entry *wefti_checkpoint_at(const wefti_checkpoint *c, int64_t index) {
    return index >= 0 && index < c->count ? &c->entries[index] : NULL;
}

static int compare_entries(const void *a, const void *b) {
    const wefti_checkpoint_entry *x = a, *y = b;
    if (x->role != y->role) return x->role < y->role ? -1 : 1;
    return strcmp(x->name, y->name);
}

const wefti_checkpoint_entry *wefti_checkpoint_find(const wefti_checkpoint *c,
                                                    wefti_checkpoint_role role, const char *name) {
    wefti_checkpoint_entry key = {.role = role, .name = name};
    return bsearch(&key, c->entries, (size_t)c->count, sizeof key, compare_entries);
}

const char *wefti_checkpoint_value(const wefti_checkpoint_pairs *pairs, const char *key) {
    for (int64_t i = 0; i < pairs->count; i++)
        if (!strcmp(pairs->items[i].key, key)) return pairs->items[i].value;
    return NULL;
}

weft_status wefti_checkpoint_read(const wefti_checkpoint *c, wefti_checkpoint_role role,
                                  const char *name, const weft_desc *desc, void *dst) {
    const wefti_checkpoint_entry *entry = wefti_checkpoint_find(c, role, name);
    WEFT_REQUIRE(entry, WEFT_E_NOT_FOUND, "%s has no %s tensor %s", c->path,
                 wefti_checkpoint_role_text(role), name);
    WEFT_REQUIRE(wefti_desc_equal(&entry->desc, desc), WEFT_E_SHAPE,
                 "tensor %s is %s in %s; %s is needed", name, wefti_desc_text(&entry->desc).text,
                 c->path, wefti_desc_text(desc).text);
    WEFT_TRY(wefti_reader_at(entry->reader, entry->at, entry->bytes, dst));
    WEFT_REQUIRE(wefti_crc32c(0, dst, (size_t)entry->bytes) == entry->crc32c, WEFT_E_CORRUPT,
                 "tensor %s in %s/%s has changed since the checkpoint was opened", name, c->path,
                 entry->file);
    return WEFT_OK;
}

/* ---- one step ---- */

static weft_status read_manifest(wefti_checkpoint *c) {
    char *path = wefti_format("%s/manifest.json", c->path), *text = NULL;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    int64_t bytes = 0;
    weft_status status = wefti_file_read(path, MANIFEST_LIMIT, &text, &bytes);
    if (status >= 0) {
        status = wefti_manifest_parse(text, bytes, &c->manifest);
        c->identity = wefti_crc32c(0, text, (size_t)bytes);
        wefti_free(text);
        if (status < 0) (void)wefti_prefix(status, "%s", path);
    } else if (status == WEFT_E_NOT_FOUND) {
        status =
            WEFT_RAISE(WEFT_E_CORRUPT, "%s has no manifest.json: it was never completed", c->path);
    }
    wefti_free(path);
    return status;
}

/* A file with tensors is checked up to the end of its header here, and its tensors one by one
 * later. Any other file is checked as a whole. */
static weft_status open_file(wefti_checkpoint *c, int64_t i, bool holds_tensors, const char *path) {
    const wefti_manifest_file *file = &c->manifest->files[i];
    weft_status status = wefti_reader_open(path, &c->readers[i]);
    if (status == WEFT_E_NOT_FOUND) WEFT_FAIL(WEFT_E_CORRUPT, "%s is missing", path);
    WEFT_TRY(status);
    const wefti_reader *reader = c->readers[i];
    int64_t bytes = wefti_reader_bytes(reader);
    uint32_t crc = 0;
    WEFT_REQUIRE(bytes == file->bytes, WEFT_E_CORRUPT, "%s has %lld bytes; %lld were written", path,
                 (long long)bytes, (long long)file->bytes);
    WEFT_TRY(wefti_reader_crc32c(reader, 0, file->checked_bytes, &crc));
    WEFT_REQUIRE(crc == file->crc32c, WEFT_E_CORRUPT,
                 "the first %lld bytes of %s do not have the checksum %08x",
                 (long long)file->checked_bytes, path, file->crc32c);
    WEFT_REQUIRE(holds_tensors || file->checked_bytes == file->bytes, WEFT_E_CORRUPT,
                 "%s holds bytes that no checksum covers", path);
    if (!holds_tensors) return WEFT_OK;
    /* all tensors will be read in file order: ask the kernel to read ahead */
    if (!c->unread) wefti_reader_ahead(reader);
    status = wefti_safetensors_read(reader, &c->files[i]);
    if (status < 0) return wefti_prefix(status, "%s", path);
    WEFT_REQUIRE(wefti_safetensors_header_bytes(c->files[i]) == file->checked_bytes, WEFT_E_CORRUPT,
                 "%s: the manifest and the file disagree about the length of its header", path);
    return WEFT_OK;
}

static weft_status open_files(wefti_checkpoint *c) {
    const wefti_manifest *m = c->manifest;
    WEFT_NEW_ARRAY(c->readers, wefti_reader *, m->file_count);
    WEFT_NEW_ARRAY(c->files, wefti_safetensors *, m->file_count);
    bool *holds = wefti_arena_alloc(m->arena, (size_t)m->file_count * sizeof *holds);
    WEFT_REQUIRE(holds, WEFT_E_NOMEM, "no memory for a list of files");
    for (int64_t k = 0; k < m->tensor_count; k++) holds[m->tensors[k].file] = true;
    for (int64_t i = 0; i < m->file_count; i++) {
        char *path = wefti_format("%s/%s", c->path, m->files[i].name);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
        weft_status status = open_file(c, i, holds[i], path);
        wefti_free(path);
        if (status < 0) return status;
    }
    return WEFT_OK;
}

static weft_status open_tensor(wefti_checkpoint *c, const wefti_manifest_tensor *tensor) {
    const char *file = c->manifest->files[tensor->file].name;
    const wefti_safetensors_entry *found =
        wefti_safetensors_find(c->files[tensor->file], tensor->name);
    WEFT_REQUIRE(found && wefti_desc_equal(&found->desc, &tensor->desc), WEFT_E_CORRUPT,
                 "%s/%s does not hold the tensor %s as %s", c->path, file, tensor->name,
                 wefti_desc_text(&tensor->desc).text);
    uint32_t crc = tensor->crc32c;
    if (!c->unread) WEFT_TRY(wefti_reader_crc32c(found->reader, found->at, found->bytes, &crc));
    WEFT_REQUIRE(crc == tensor->crc32c, WEFT_E_CORRUPT,
                 "tensor %s in %s/%s has the checksum %08x; %08x was written", tensor->name,
                 c->path, file, crc, tensor->crc32c);
    c->entries[c->count++] = (wefti_checkpoint_entry){.name = tensor->name,
                                                      .layout = tensor->layout,
                                                      .file = file,
                                                      .role = tensor->role,
                                                      .desc = tensor->desc,
                                                      .reader = found->reader,
                                                      .at = found->at,
                                                      .bytes = found->bytes,
                                                      .crc32c = crc};
    return WEFT_OK;
}

static weft_status open_tensors(wefti_checkpoint *c) {
    int64_t count = c->manifest->tensor_count, held = 0;
    WEFT_NEW_ARRAY(c->entries, wefti_checkpoint_entry, count);
    for (int64_t i = 0; i < count; i++) WEFT_TRY(open_tensor(c, &c->manifest->tensors[i]));
    qsort(c->entries, (size_t)count, sizeof *c->entries, compare_entries);
    for (int64_t i = 1; i < count; i++)
        WEFT_REQUIRE(compare_entries(&c->entries[i - 1], &c->entries[i]), WEFT_E_CORRUPT,
                     "%s: the manifest names the tensor %s twice", c->path, c->entries[i].name);
    for (int64_t i = 0; i < c->manifest->file_count; i++)
        if (c->files[i]) held += wefti_safetensors_count(c->files[i]);
    WEFT_REQUIRE(held == count, WEFT_E_CORRUPT,
                 "%s: the files hold %lld tensors, the manifest names %lld", c->path,
                 (long long)held, (long long)count);
    return WEFT_OK;
}

static weft_status open_step(const char *path, bool unread, wefti_checkpoint **out) {
    wefti_checkpoint *c;
    WEFT_NEW(c, wefti_checkpoint);
    c->unread = unread;
    weft_status status = WEFT_OK;
    c->path = wefti_strdup(path);
    if (!c->path) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a directory");
    if (status >= 0) status = read_manifest(c);
    if (status >= 0) status = open_files(c);
    if (status >= 0) status = open_tensors(c);
    if (status < 0) {
        wefti_checkpoint_close(c);
        return status;
    }
    *out = c;
    return WEFT_OK;
}

weft_status wefti_checkpoint_verify(const char *step_path) {
    wefti_checkpoint *c = NULL;
    WEFT_TRY(open_step(step_path, false, &c));
    wefti_checkpoint_close(c);
    return WEFT_OK;
}

/* ---- a run's directory ---- */

/* The manifest's step must match the directory's name. A step that was copied over another one does
 * not. */
static weft_status open_numbered(const char *dir, int64_t step, bool unread,
                                 wefti_checkpoint **out) {
    char *path = NULL;
    WEFT_TRY(wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, &path));
    wefti_checkpoint *c = NULL;
    weft_status status = open_step(path, unread, &c);
    if (status >= 0 && c->manifest->meta.step != step) {
        status = WEFT_RAISE(WEFT_E_CORRUPT, "%s holds step %lld", path,
                            (long long)c->manifest->meta.step);
        wefti_checkpoint_close(c);
    }
    wefti_free(path);
    if (status < 0) return status;
    *out = c;
    return WEFT_OK;
}

/* The newest good step below `below`, with a line in `skipped` for each damaged one. Only damage is
 * skipped: after a read error or a lack of memory the newer step may still be good. */
static weft_status open_newest(const char *dir, const int64_t *steps, int64_t count, int64_t below,
                               bool unread, wefti_checkpoint **out, wefti_text *skipped) {
    for (int64_t i = count - 1; i >= 0; i--) {
        if (steps[i] >= below) continue;
        weft_status status = open_numbered(dir, steps[i], unread, out);
        if (status != WEFT_E_CORRUPT) return status;
        wefti_text_add(skipped, "%sskipped step %lld: %s", skipped->used ? "\n" : "",
                       (long long)steps[i], weft_error_message());
        WEFT_REQUIRE(!skipped->failed, WEFT_E_NOMEM, "no memory for a note on damaged checkpoints");
    }
    WEFT_REQUIRE(skipped->used == 0, WEFT_E_CORRUPT, "no good checkpoint in %s: %.1500s", dir,
                 skipped->data);
    WEFT_FAIL(WEFT_E_NOT_FOUND, "no checkpoint in %s", dir);
}

static weft_status open_latest(const char *dir, int64_t below, bool unread, wefti_checkpoint **out,
                               char **out_note) {
    int64_t *steps = NULL, count = 0;
    WEFT_TRY(wefti_step_list(dir, WEFTI_STEP_COMMITTED, &steps, &count));
    wefti_text skipped = {0};
    wefti_checkpoint *c = NULL;
    weft_status status = open_newest(dir, steps, count, below, unread, &c, &skipped);
    wefti_free(steps);
    if (status < 0 || !skipped.used || !out_note) {
        wefti_text_free(&skipped);
    } else {
        char *note = wefti_text_take(&skipped);
        if (!note) {
            wefti_checkpoint_close(c);
            WEFT_FAIL(WEFT_E_NOMEM, "no memory for a note about damaged checkpoints");
        }
        *out_note = note;
    }
    if (status >= 0) *out = c;
    return status;
}

weft_status wefti_checkpoint_open(const char *path, int64_t step, wefti_checkpoint **out,
                                  char **out_note) {
    bool own = false;
    WEFT_REQUIRE(step >= WEFTI_CHECKPOINT_LATEST, WEFT_E_ARG, "step %lld does not exist",
                 (long long)step);
    if (out_note) *out_note = NULL;
    WEFT_TRY(wefti_step_is(path, &own));
    if (own) {
        wefti_checkpoint *c = NULL;
        WEFT_TRY(open_step(path, false, &c));
        if (step >= 0 && c->manifest->meta.step != step) {
            weft_status status = WEFT_RAISE(WEFT_E_NOT_FOUND, "%s is step %lld, not %lld", path,
                                            (long long)c->manifest->meta.step, (long long)step);
            wefti_checkpoint_close(c);
            return status;
        }
        *out = c;
        return WEFT_OK;
    }
    return step < 0 ? open_latest(path, INT64_MAX, false, out, out_note)
                    : open_numbered(path, step, false, out);
}

weft_status wefti_checkpoint_open_unread(const char *dir, int64_t below, wefti_checkpoint **out,
                                         char **out_note) {
    bool own = false;
    if (out_note) *out_note = NULL;
    WEFT_TRY(wefti_step_is(dir, &own));
    WEFT_REQUIRE(!own, WEFT_E_ARG, "%s is a step, not the directory of a run", dir);
    return open_latest(dir, below, true, out, out_note);
}

weft_status wefti_checkpoint_open_quick(const char *path, wefti_checkpoint **out) {
    bool own = false;
    WEFT_TRY(wefti_step_is(path, &own));
    if (own) return open_step(path, true, out);
    char *note = NULL;
    WEFT_TRY(open_latest(path, INT64_MAX, true, out, &note));
    if (!note) return WEFT_OK;
    weft_status status =
        WEFT_RAISE(WEFT_E_CORRUPT, "%s; if another step is meant, name its directory", note);
    wefti_free(note);
    wefti_checkpoint_close(*out);
    *out = NULL;
    return status;
}

uint32_t wefti_checkpoint_identity(const wefti_checkpoint *c) {
    return c->identity;
}

weft_status wefti_checkpoint_list(const char *dir, int64_t **out_steps, int64_t *out_count) {
    int64_t *steps = NULL, count = 0, kept = 0;
    WEFT_TRY(wefti_step_list(dir, WEFTI_STEP_COMMITTED, &steps, &count));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0; i++) {
        wefti_checkpoint c = {0};
        status = wefti_step_path(dir, WEFTI_STEP_COMMITTED, steps[i], &c.path);
        if (status >= 0) status = read_manifest(&c);
        bool valid = status >= 0 && c.manifest->meta.step == steps[i];
        wefti_manifest_destroy(c.manifest);
        wefti_free(c.path);
        if (valid) steps[kept++] = steps[i];
        if (status == WEFT_E_CORRUPT) status = WEFT_OK;
    }
    if (status < 0 || !kept) {
        wefti_free(steps);
        steps = NULL;
    }
    if (status < 0) return status;
    *out_steps = steps;
    *out_count = kept;
    return WEFT_OK;
}

/* The index in `steps` of the newest step with correct checksums; -1: none. */
static weft_status find_newest_good(const char *dir, const int64_t *steps, int64_t count,
                                    int64_t *out) {
    for (int64_t i = count - 1; i >= 0; i--) {
        wefti_checkpoint *c = NULL;
        weft_status status = open_numbered(dir, steps[i], false, &c);
        if (status >= 0) wefti_checkpoint_close(c);
        if (status != WEFT_E_CORRUPT) {
            *out = i;
            return status;
        }
    }
    *out = -1;
    return WEFT_OK;
}

/* *out: when the step was written, by its manifest; -1: it does not say. */
static weft_status time_of(const char *dir, int64_t step, int64_t *out) {
    wefti_checkpoint c = {0};
    *out = -1;
    weft_status status = wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, &c.path);
    if (status >= 0) status = read_manifest(&c);
    const char *text =
        status >= 0 ? wefti_checkpoint_value(&c.manifest->meta.notes, WEFTI_CHECKPOINT_TIME) : NULL;
    if (text && *text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 18)
        *out = strtoll(text, NULL, 10);
    wefti_manifest_destroy(c.manifest);
    wefti_free(c.path);
    return status == WEFT_E_CORRUPT ? WEFT_OK : status;
}

/* Whether a step beyond the newest stays. *last: the time of the last one that stays, -1: none.
 * After a clock was set back, steps seem to be older than those before them; they stay. */
static weft_status is_spaced(const char *dir, int64_t step, int64_t spacing, int64_t *last,
                             bool *out) {
    int64_t time = -1;
    if (spacing > 0) WEFT_TRY(time_of(dir, step, &time));
    *out = time >= 0 && (*last < 0 || time < *last || time - *last >= spacing);
    if (*out) *last = time;
    return WEFT_OK;
}

weft_status wefti_checkpoint_prune_spaced(const char *dir, int64_t keep, int64_t spacing,
                                          int64_t good) {
    WEFT_REQUIRE(keep >= 1, WEFT_E_ARG, "checkpoint.keep is %lld; at least one must be kept",
                 (long long)keep);
    int64_t *steps = NULL, count = 0, newest_good = -1;
    WEFT_TRY(wefti_step_list(dir, WEFTI_STEP_COMMITTED, &steps, &count));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count; i++)
        if (steps[i] == good) newest_good = i;
    if (newest_good < 0 && count > keep) /* nothing to delete: nothing to verify */
        status = find_newest_good(dir, steps, count, &newest_good);
    int64_t last = -1;
    for (int64_t i = 0; i < newest_good && i < count - keep && status >= 0; i++) {
        bool stays = false;
        status = is_spaced(dir, steps[i], spacing, &last, &stays);
        if (status >= 0 && !stays) status = wefti_step_remove(dir, steps[i]);
    }
    wefti_free(steps);
    return status;
}

weft_status wefti_checkpoint_prune_below(const char *dir, int64_t keep, int64_t good) {
    return wefti_checkpoint_prune_spaced(dir, keep, 0, good);
}

weft_status wefti_checkpoint_prune(const char *dir, int64_t keep) {
    return wefti_checkpoint_prune_below(dir, keep, WEFTI_CHECKPOINT_LATEST);
}
