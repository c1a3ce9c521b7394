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
#include "checkpoint/run/run.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/step_dir.h"
#include "tensor/tensor.h"

struct wefti_checkpoint {
    const char *path;
    const wefti_manifest *manifest;
    wefti_step_files own;            /* of a whole step */
    wefti_sliced *sliced;            /* of a sliced step */
    wefti_checkpoint_entry *entries; /* ordered by role, then name */
    int64_t count;
    bool unread; /* the tensors' bytes are not checked here */
};

void wefti_checkpoint_close(wefti_checkpoint *c) {
    if (!c) return;
    wefti_step_files_close(&c->own);
    wefti_sliced_close(c->sliced);
    wefti_free(c->entries);
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

/* Where the bytes of a tensor are. */
static weft_status find_tensor(const wefti_checkpoint *c, int64_t index,
                               wefti_checkpoint_entry *out) {
    const wefti_manifest_tensor *t = &c->manifest->tensors[index];
    *out = (wefti_checkpoint_entry){.name = t->name,
                                    .layout = t->layout,
                                    .role = t->role,
                                    .desc = t->desc,
                                    .bytes = weft_desc_bytes(&t->desc),
                                    .crc32c = t->crc32c};
    if (c->sliced) {
        out->file = "slices";
        out->reader = wefti_sliced_reader(c->sliced, index);
        return WEFT_OK;
    }
    out->file = c->manifest->files[t->file].name;
    const wefti_safetensors_entry *found = wefti_safetensors_find(c->own.files[t->file], t->name);
    WEFT_REQUIRE(found && wefti_desc_equal(&found->desc, &t->desc), WEFT_E_CORRUPT,
                 "%s/%s does not hold the tensor %s as %s", c->path, out->file, t->name,
                 wefti_desc_text(&t->desc).text);
    out->reader = found->reader;
    out->at = found->at;
    return WEFT_OK;
}

static weft_status open_tensor(wefti_checkpoint *c, int64_t index) {
    wefti_checkpoint_entry *e = &c->entries[c->count];
    WEFT_TRY(find_tensor(c, index, e));
    uint32_t crc = e->crc32c;
    if (!c->unread) WEFT_TRY(wefti_reader_crc32c(e->reader, e->at, e->bytes, &crc));
    if (crc != e->crc32c && wefti_checkpoint_doubt(c))
        WEFT_TRY(wefti_reader_crc32c(e->reader, e->at, e->bytes, &crc));
    WEFT_REQUIRE(crc == e->crc32c, WEFT_E_CORRUPT,
                 "tensor %s in %s/%s has the checksum %08x; %08x was written", e->name, c->path,
                 e->file, crc, e->crc32c);
    c->count++;
    return WEFT_OK;
}

static weft_status open_tensors(wefti_checkpoint *c) {
    int64_t count = c->manifest->tensor_count, held = 0;
    WEFT_NEW_ARRAY(c->entries, wefti_checkpoint_entry, count);
    for (int64_t i = 0; i < count; i++) WEFT_TRY(open_tensor(c, i));
    qsort(c->entries, (size_t)count, sizeof *c->entries, compare_entries);
    for (int64_t i = 1; i < count; i++)
        WEFT_REQUIRE(compare_entries(&c->entries[i - 1], &c->entries[i]), WEFT_E_CORRUPT,
                     "%s: the manifest names the tensor %s twice", c->path, c->entries[i].name);
    if (c->sliced) return WEFT_OK;
    for (int64_t i = 0; i < c->manifest->file_count; i++)
        if (c->own.files[i]) held += wefti_safetensors_count(c->own.files[i]);
    WEFT_REQUIRE(held == count, WEFT_E_CORRUPT,
                 "%s: the files hold %lld tensors, the manifest names %lld", c->path,
                 (long long)held, (long long)count);
    return WEFT_OK;
}

static weft_status open_sliced(wefti_checkpoint *c, const char *dir, int64_t step) {
    WEFT_TRY(wefti_sliced_open(dir, step, &c->sliced));
    c->path = wefti_sliced_path(c->sliced);
    c->manifest = wefti_sliced_manifest(c->sliced);
    return WEFT_OK;
}

/* The folder rank_R/step-N of one rank stands for the sliced step N. */
static weft_status open_around(wefti_checkpoint *c) {
    const wefti_manifest *m = c->own.manifest;
    const int64_t step = m->meta.step;
    char *dir = wefti_format("%s/../..", c->own.path);
    int64_t *ranks = NULL, count = 0;
    WEFT_REQUIRE(dir, WEFT_E_NOMEM, "no memory for the name of a directory");
    weft_status status = wefti_rank_folders(dir, &ranks, &count);
    wefti_free(ranks);
    if (status >= 0 && count > 0)
        status = open_sliced(c, dir, step);
    else if (status >= 0 || status == WEFT_E_NOT_FOUND)
        status = WEFT_RAISE(WEFT_E_CORRUPT,
                            "%s holds slices of rank %d, but is not a folder rank_%d/step-N of a "
                            "run's directory",
                            c->own.path, (int)m->sliced.rank, (int)m->sliced.rank);
    wefti_free(dir);
    return status;
}

static weft_status open_folder(wefti_checkpoint *c, const char *path) {
    WEFT_TRY(wefti_step_files_manifest(&c->own, path));
    c->path = c->own.path;
    c->manifest = c->own.manifest;
    return c->manifest->sliced.ranks ? open_around(c) : wefti_step_files_open(&c->own, c->unread);
}

/* A step's folder at `path`; with `dir`, the sliced step `step` of that run. */
static weft_status open_at(const char *path, const char *dir, int64_t step, bool unread,
                           wefti_checkpoint **out) {
    wefti_checkpoint *c;
    WEFT_NEW(c, wefti_checkpoint);
    c->unread = unread;
    weft_status status = dir ? open_sliced(c, dir, step) : open_folder(c, path);
    if (status >= 0) status = open_tensors(c);
    if (status < 0) {
        wefti_failure failure;
        wefti_failure_keep(status, &failure);
        wefti_checkpoint_close(c);
        return wefti_failure_tell(&failure);
    }
    *out = c;
    return WEFT_OK;
}

static weft_status open_step(const char *path, bool unread, wefti_checkpoint **out) {
    return open_at(path, NULL, 0, unread, out);
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
    bool sliced = false;
    WEFT_TRY(wefti_run_step_path(dir, step, &path, &sliced));
    wefti_checkpoint *c = NULL;
    weft_status status = open_at(path, sliced ? dir : NULL, step, unread, &c);
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

/* The newest good step below `below`, with a line in `skipped` for each damaged or unfinished one.
 * Only these are skipped: after a read error or a lack of memory the newer step may still be good.
 * A directory with unfinished steps alone has no step. */
static weft_status open_newest(const char *dir, const int64_t *steps, int64_t count, int64_t below,
                               bool unread, wefti_checkpoint **out, wefti_text *skipped,
                               bool *damaged) {
    for (int64_t i = count - 1; i >= 0; i--) {
        if (steps[i] >= below) continue;
        weft_status status = open_numbered(dir, steps[i], unread, out);
        if (status != WEFT_E_CORRUPT && status != WEFT_E_NOT_FOUND) return status;
        *damaged |= status == WEFT_E_CORRUPT;
        wefti_text_add(skipped, "%sskipped step %lld: %s", skipped->used ? "\n" : "",
                       (long long)steps[i], weft_error_message());
        WEFT_REQUIRE(!skipped->failed, WEFT_E_NOMEM, "no memory for a note on damaged checkpoints");
    }
    WEFT_REQUIRE(!*damaged, WEFT_E_CORRUPT, "no good checkpoint in %s: %.1500s", dir,
                 skipped->data);
    WEFT_FAIL(WEFT_E_NOT_FOUND, "no checkpoint in %s", dir);
}

/* *damaged: whether a step was skipped for damage. */
static weft_status open_latest(const char *dir, int64_t below, bool unread, wefti_checkpoint **out,
                               char **out_note, bool *damaged) {
    int64_t *steps = NULL, count = 0;
    WEFT_TRY(wefti_run_steps(dir, &steps, &count));
    wefti_text skipped = {0};
    wefti_checkpoint *c = NULL;
    *damaged = false;
    weft_status status = open_newest(dir, steps, count, below, unread, &c, &skipped, damaged);
    wefti_free(steps);
    const bool tells = status >= 0 || status == WEFT_E_NOT_FOUND;
    if (!tells || !skipped.used || !out_note) {
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
    bool own = false, damaged;
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
    return step < 0 ? open_latest(path, INT64_MAX, false, out, out_note, &damaged)
                    : open_numbered(path, step, false, out);
}

weft_status wefti_checkpoint_open_unread(const char *dir, int64_t below, wefti_checkpoint **out,
                                         char **out_note) {
    bool own = false, damaged;
    if (out_note) *out_note = NULL;
    WEFT_TRY(wefti_step_is(dir, &own));
    WEFT_REQUIRE(!own, WEFT_E_ARG, "%s is a step, not the directory of a run", dir);
    return open_latest(dir, below, true, out, out_note, &damaged);
}

weft_status wefti_checkpoint_open_quick(const char *path, wefti_checkpoint **out) {
    bool own = false, damaged;
    WEFT_TRY(wefti_step_is(path, &own));
    if (own) return open_step(path, true, out);
    char *note = NULL;
    weft_status status = open_latest(path, INT64_MAX, true, out, &note, &damaged);
    if (status >= 0 && damaged) {
        status =
            WEFT_RAISE(WEFT_E_CORRUPT, "%s; if another step is meant, name its directory", note);
        wefti_checkpoint_close(*out);
        *out = NULL;
    }
    wefti_free(note);
    return status;
}

uint32_t wefti_checkpoint_identity(const wefti_checkpoint *c) {
    if (!c->sliced) return c->own.identity;
    /* the manifests of ranks differ, and a process may see other folders than another one */
    const uint64_t digest =
        wefti_digest_number(wefti_manifest_digest(c->manifest->tensors, c->manifest->tensor_count),
                            (uint64_t)c->manifest->meta.data_position);
    return (uint32_t)(digest ^ digest >> 32);
}

wefti_sliced *wefti_checkpoint_sliced(const wefti_checkpoint *c) {
    return c->sliced;
}

bool wefti_checkpoint_doubt(wefti_checkpoint *c) {
    return c->sliced && wefti_sliced_doubt(c->sliced);
}

weft_status wefti_checkpoint_list(const char *dir, int64_t **out_steps, int64_t *out_count) {
    int64_t *steps = NULL, count = 0, kept = 0;
    WEFT_TRY(wefti_run_steps(dir, &steps, &count));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0; i++) {
        wefti_step_files files = {0};
        status = wefti_run_manifest(dir, steps[i], &files);
        if (status >= 0) status = wefti_sliced_check_finished(dir, files.manifest);
        wefti_step_files_close(&files);
        if (status >= 0) steps[kept++] = steps[i];
        if (status == WEFT_E_CORRUPT || status == WEFT_E_NOT_FOUND) status = WEFT_OK;
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
