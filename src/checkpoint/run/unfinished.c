/* Sliced steps of which a rank has no part, though nothing was lost. See run.h.
 *
 * The ranks put their folders of a step into place one after the other, and remove them so. A kill
 * in between leaves the step in some folders. `latest` in the folder of a rank then names another
 * step: it is written after each step, and removed with the step that it names. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"
#include "checkpoint/run/run.h"
#include "checkpoint/step_dir.h"

/* What a rank has of a step. */
typedef enum rank_part {
    UNSEEN,
    HERE,
    LOST,       /* its folder is gone, or had the step last */
    UNFINISHED, /* it has not put the step into place */
    REMOVED     /* it has put a later step into place */
} rank_part;

/* A directory that cannot be looked at is not one that is missing. */
static weft_status find_dir(const char *path, bool *out) {
    struct stat info;
    *out = WEFTI_DISK(stat(path, &info)) == 0;
    WEFT_REQUIRE(*out || errno == ENOENT || errno == ENOTDIR, WEFT_E_IO, "cannot look at %s: %s",
                 path, strerror(errno));
    *out = *out && S_ISDIR(info.st_mode);
    return WEFT_OK;
}

static weft_status find_part(const char *dir, int32_t rank, int64_t step, rank_part *out) {
    char *folder = NULL, *path = NULL;
    int64_t latest = step;
    bool has_step = false, has_folder = false;
    WEFT_TRY(wefti_checkpoint_rank_dir(dir, rank, &folder));
    weft_status status = wefti_step_path(folder, WEFTI_STEP_COMMITTED, step, &path);
    if (status >= 0) status = find_dir(path, &has_step);
    if (status >= 0) status = find_dir(folder, &has_folder);
    if (status >= 0 && has_folder && !has_step) status = wefti_step_latest(folder, &latest);
    *out = has_step ? HERE : latest == step ? LOST : latest > step ? REMOVED : UNFINISHED;
    wefti_free(path);
    wefti_free(folder);
    return status;
}

/* *out: the rank for which a region counts as never written, or as removed; -1: some rank has the
 * region, or has lost it. */
static weft_status find_of_slice(const char *dir, int64_t step, const wefti_manifest_slice *slice,
                                 rank_part *parts, int32_t *out) {
    *out = -1;
    for (int32_t k = 0; k < slice->rank_count; k++) {
        const int32_t rank = slice->ranks[k];
        if (parts[rank] == UNSEEN) WEFT_TRY(find_part(dir, rank, step, &parts[rank]));
        if (parts[rank] == HERE) {
            *out = -1;
            return WEFT_OK;
        }
        if (*out < 0 && parts[rank] > LOST) *out = rank;
    }
    return WEFT_OK;
}

weft_status wefti_sliced_check_finished(const char *dir, const wefti_manifest *m) {
    const int64_t step = m->meta.step;
    rank_part *parts;
    int32_t rank = -1;
    weft_status status = WEFT_OK;
    if (!m->sliced.ranks) return WEFT_OK;
    WEFT_NEW_ARRAY(parts, rank_part, m->sliced.ranks);
    for (int64_t i = 0; i < m->sliced.count && status >= 0 && rank < 0; i++)
        status = find_of_slice(dir, step, &m->sliced.slices[i], parts, &rank);
    const bool removed = status >= 0 && rank >= 0 && parts[rank] == REMOVED;
    wefti_free(parts);
    WEFT_TRY(status);
    WEFT_REQUIRE(rank < 0, WEFT_E_NOT_FOUND, "step %lld of %s is unfinished: rank %d has %s",
                 (long long)step, dir, (int)rank,
                 removed ? "removed its part already" : "not put its part into place");
    return WEFT_OK;
}

/* ---- cleaning ---- */

static weft_status clean_step(const char *dir, const char *folder, int64_t step) {
    wefti_step_files files = {0};
    char *path = NULL;
    WEFT_TRY(wefti_step_path(folder, WEFTI_STEP_COMMITTED, step, &path));
    weft_status status = wefti_step_files_manifest(&files, path);
    if (status >= 0 && files.manifest->meta.step == step)
        status = wefti_sliced_check_finished(dir, files.manifest);
    wefti_step_files_close(&files);
    wefti_free(path);
    if (status == WEFT_E_NOT_FOUND) return wefti_step_remove(folder, step);
    return status == WEFT_E_CORRUPT ? WEFT_OK : status;
}

weft_status wefti_checkpoint_clean_sliced(const char *dir, int32_t rank, int64_t restored) {
    char *folder = NULL;
    int64_t *steps = NULL, count = 0;
    WEFT_TRY(wefti_checkpoint_rank_dir(dir, rank, &folder));
    weft_status status = wefti_step_list(folder, WEFTI_STEP_COMMITTED, &steps, &count);
    for (int64_t i = 0; i < count && status >= 0; i++)
        if (steps[i] > restored) status = clean_step(dir, folder, steps[i]);
    wefti_free(steps);
    wefti_free(folder);
    return status;
}
