/* The folders of ranks in the directory of a run. See run.h. */
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "checkpoint/run/run.h"
#include "checkpoint/step_dir.h"
#include "topo/limits.h"

weft_status wefti_checkpoint_rank_dir(const char *dir, int32_t rank, char **out) {
    *out = wefti_format("%s/rank_%d", dir, (int)rank);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the name of a directory");
    return WEFT_OK;
}

/* "rank_7"; -1: no such name. A rank has one name, so that no folder counts twice. */
static int64_t rank_of(const char *name, const void *context) {
    (void)context;
    char *end;
    if (strncmp(name, "rank_", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    const long rank = strtol(name + 5, &end, 10);
    const bool canonical = name[5] != '0' || !name[6];
    return canonical && !*end && rank < WEFTI_RANKS_MAX ? rank : -1;
}

weft_status wefti_rank_folders(const char *dir, int64_t **out, int64_t *out_count) {
    return wefti_dir_numbers(dir, rank_of, NULL, out, out_count);
}

/* *out NULL: `dir` has no such step. */
static weft_status own_path(const char *dir, int64_t step, char **out) {
    WEFT_TRY(wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, out));
    if (wefti_is_dir(*out)) return WEFT_OK;
    wefti_free(*out);
    *out = NULL;
    return WEFT_OK;
}

weft_status wefti_run_step_path(const char *dir, int64_t step, char **out, bool *out_sliced) {
    int64_t *ranks = NULL;
    int64_t count = 0;
    *out_sliced = false;
    WEFT_TRY(own_path(dir, step, out));
    if (*out) return WEFT_OK;
    WEFT_TRY(wefti_rank_folders(dir, &ranks, &count));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < count && status >= 0 && !*out; i++) {
        char *folder = NULL;
        status = wefti_checkpoint_rank_dir(dir, (int32_t)ranks[i], &folder);
        if (status >= 0) status = own_path(folder, step, out);
        wefti_free(folder);
    }
    wefti_free(ranks);
    *out_sliced = *out != NULL;
    if (status >= 0 && !*out) status = wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, out);
    return status;
}

static weft_status append(int64_t **steps, int64_t *count, int64_t *room, const int64_t *more,
                          int64_t more_count) {
    for (int64_t i = 0; i < more_count; i++) {
        WEFT_TRY(WEFT_GROW(*steps, *count, *room));
        (*steps)[(*count)++] = more[i];
    }
    return WEFT_OK;
}

/* Appends the committed steps of a folder of a rank. */
static weft_status append_folder(const char *dir, int32_t rank, int64_t **steps, int64_t *count,
                                 int64_t *room) {
    char *folder = NULL;
    int64_t *more = NULL, more_count = 0;
    WEFT_TRY(wefti_checkpoint_rank_dir(dir, rank, &folder));
    weft_status status = wefti_step_list(folder, WEFTI_STEP_COMMITTED, &more, &more_count);
    if (status >= 0) status = append(steps, count, room, more, more_count);
    wefti_free(more);
    wefti_free(folder);
    return status;
}

weft_status wefti_run_steps(const char *dir, int64_t **out, int64_t *out_count) {
    int64_t *steps = NULL, count = 0, room, used = 0, rank_count = 0;
    int64_t *ranks = NULL;
    WEFT_TRY(wefti_step_list(dir, WEFTI_STEP_COMMITTED, &steps, &count));
    room = count;
    weft_status status = wefti_rank_folders(dir, &ranks, &rank_count);
    for (int64_t i = 0; i < rank_count && status >= 0; i++)
        status = append_folder(dir, (int32_t)ranks[i], &steps, &count, &room);
    wefti_free(ranks);
    if (status < 0) {
        wefti_free(steps);
        return status;
    }
    wefti_sort_numbers(steps, count);
    for (int64_t i = 0; i < count; i++)
        if (!used || steps[used - 1] != steps[i]) steps[used++] = steps[i];
    *out = steps;
    *out_count = used;
    return WEFT_OK;
}

weft_status wefti_run_manifest(const char *dir, int64_t step, wefti_step_files *out) {
    char *path = NULL;
    bool sliced = false;
    WEFT_TRY(wefti_run_step_path(dir, step, &path, &sliced));
    weft_status status = wefti_step_files_manifest(out, path);
    wefti_free(path);
    WEFT_TRY(status);
    WEFT_REQUIRE(out->manifest->meta.step == step, WEFT_E_CORRUPT, "%s holds step %lld", out->path,
                 (long long)out->manifest->meta.step);
    return WEFT_OK;
}

/* Whether the folder of a step has the slices of one rank. Damage is for those who read the step.
 */
static bool has_slices(const char *dir, int64_t step, bool *out_readable) {
    wefti_step_files files = {0};
    char *path = NULL;
    weft_status status = wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, &path);
    if (status >= 0) status = wefti_step_files_manifest(&files, path);
    wefti_free(path);
    *out_readable = status >= 0;
    if (status < 0) wefti_error_clear();
    const bool sliced = status >= 0 && files.manifest->sliced.ranks > 0;
    wefti_step_files_close(&files);
    return sliced;
}

weft_status wefti_run_refuse_part(const char *dir) {
    int64_t *steps = NULL, count = 0;
    bool sliced = false, readable = false;
    WEFT_TRY(wefti_step_list(dir, WEFTI_STEP_COMMITTED, &steps, &count));
    while (count > 0 && !readable) sliced = has_slices(dir, steps[--count], &readable);
    wefti_free(steps);
    WEFT_REQUIRE(!sliced, WEFT_E_ARG,
                 "%s holds the slices of one rank: name the run's directory, which has the folders "
                 "of all ranks",
                 dir);
    return WEFT_OK;
}
