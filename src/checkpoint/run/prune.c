/* Removes steps beyond those to keep. See checkpoint.h. */
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/run/run.h"
#include "checkpoint/step_dir.h"

/* The index in `steps` of the newest step with correct checksums; -1: none. */
static weft_status find_newest_good(const char *dir, const int64_t *steps, int64_t count,
                                    int64_t *out) {
    for (int64_t i = count - 1; i >= 0; i--) {
        wefti_checkpoint *c = NULL;
        weft_status status = wefti_checkpoint_open(dir, steps[i], &c, NULL);
        if (status >= 0) wefti_checkpoint_close(c);
        if (status != WEFT_E_CORRUPT && status != WEFT_E_NOT_FOUND) {
            *out = i;
            return status;
        }
    }
    *out = -1;
    return WEFT_OK;
}

/* *out: when the step was written, by its manifest; -1: it does not say. */
static weft_status time_of(const char *dir, int64_t step, int64_t *out) {
    wefti_step_files files = {0};
    *out = -1;
    weft_status status = wefti_run_manifest(dir, step, &files);
    const char *text =
        status >= 0 ? wefti_checkpoint_value(&files.manifest->meta.notes, WEFTI_CHECKPOINT_TIME)
                    : NULL;
    if (text && *text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 18)
        *out = strtoll(text, NULL, 10);
    wefti_step_files_close(&files);
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

static weft_status remove_from(const char *dir, int64_t step) {
    char *path = NULL;
    WEFT_TRY(wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, &path));
    weft_status status = wefti_is_dir(path) ? wefti_step_remove(dir, step) : WEFT_OK;
    wefti_free(path);
    return status;
}

/* Removes a step of its own, and from the folders of the ranks. */
static weft_status remove_everywhere(const char *dir, int64_t step) {
    int64_t *ranks = NULL;
    int64_t count = 0;
    WEFT_TRY(wefti_rank_folders(dir, &ranks, &count));
    weft_status status = remove_from(dir, step);
    for (int64_t i = 0; i < count && status >= 0; i++) {
        char *folder = NULL;
        status = wefti_checkpoint_rank_dir(dir, (int32_t)ranks[i], &folder);
        if (status >= 0) status = remove_from(folder, step);
        wefti_free(folder);
    }
    wefti_free(ranks);
    return status;
}

weft_status wefti_checkpoint_prune_spaced(const char *dir, int64_t keep, int64_t spacing,
                                          int64_t best, int64_t good) {
    WEFT_REQUIRE(keep >= 1, WEFT_E_ARG, "checkpoint.keep is %lld; at least one must be kept",
                 (long long)keep);
    int64_t *steps = NULL, count = 0, newest_good = -1;
    WEFT_TRY(wefti_run_steps(dir, &steps, &count));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count; i++)
        if (steps[i] == good) newest_good = i;
    if (newest_good < 0 && count > keep) /* nothing to delete: nothing to verify */
        status = find_newest_good(dir, steps, count, &newest_good);
    int64_t last = -1;
    for (int64_t i = 0; i <= newest_good - keep && status >= 0; i++) {
        bool stays = false;
        status = is_spaced(dir, steps[i], spacing, &last, &stays);
        if (status >= 0 && !stays && steps[i] != best) status = remove_everywhere(dir, steps[i]);
    }
    wefti_free(steps);
    return status;
}

weft_status wefti_checkpoint_prune_below(const char *dir, int64_t keep, int64_t good) {
    return wefti_checkpoint_prune_spaced(dir, keep, 0, -1, good);
}

weft_status wefti_checkpoint_prune(const char *dir, int64_t keep) {
    return wefti_checkpoint_prune_below(dir, keep, WEFTI_CHECKPOINT_LATEST);
}

/* ---- sliced steps ---- */

static bool holds(const int64_t *steps, int64_t count, int64_t step) {
    for (int64_t i = 0; i < count; i++)
        if (steps[i] == step) return true;
    return false;
}

/* A folder of a rank that the run has no more. */
static weft_status prune_folder(const char *dir, int32_t rank, const int64_t *own,
                                int64_t own_count, int64_t good) {
    char *folder = NULL;
    int64_t *steps = NULL, count = 0;
    WEFT_TRY(wefti_checkpoint_rank_dir(dir, rank, &folder));
    weft_status status = WEFT_OK;
    if (wefti_is_dir(folder))
        status = wefti_step_list(folder, WEFTI_STEP_COMMITTED, &steps, &count);
    for (int64_t i = 0; i < count && status >= 0; i++)
        if (steps[i] == good || (steps[i] < good && !holds(own, own_count, steps[i])))
            status = wefti_step_remove(folder, steps[i]);
    wefti_free(steps);
    wefti_free(folder);
    return status;
}

weft_status wefti_checkpoint_prune_sliced(const char *dir, int32_t ranks, int64_t keep,
                                          int64_t best, int64_t good) {
    char *first = NULL;
    int64_t *folders = NULL, *own = NULL, *whole = NULL, own_count = 0, whole_count = 0,
            folder_count = 0;
    WEFT_TRY(wefti_checkpoint_rank_dir(dir, 0, &first));
    weft_status status = wefti_step_list(first, WEFTI_STEP_COMMITTED, &own, &own_count);
    wefti_free(first);
    if (status >= 0) status = wefti_step_list(dir, WEFTI_STEP_COMMITTED, &whole, &whole_count);
    if (status >= 0) status = wefti_rank_folders(dir, &folders, &folder_count);
    const int64_t left = keep > own_count ? keep - own_count : 0;
    for (int64_t i = 0; i < whole_count && status >= 0; i++)
        if (whole[i] == good || (whole[i] < good && whole[i] != best && i < whole_count - left))
            status = wefti_step_remove(dir, whole[i]);
    for (int64_t i = 0; i < folder_count && status >= 0; i++)
        if (folders[i] >= ranks)
            status = prune_folder(dir, (int32_t)folders[i], own, own_count, good);
    wefti_free(folders);
    wefti_free(whole);
    wefti_free(own);
    return status;
}
