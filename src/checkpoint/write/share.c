/* What several processes need to write one step: a directory that they can recognise, and sums that
 * the leader receives. See checkpoint.h. */
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/secret/secret.h"
#include "base/text.h"
#include "checkpoint/step_dir.h"
#include "checkpoint/write/job.h"

static weft_status number_path(const char *temporary, char **out) {
    *out = wefti_format("%s/.number", temporary);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the name of a file");
    return WEFT_OK;
}

static weft_status write_number(const char *temporary, uint64_t number) {
    char *path = NULL;
    WEFT_TRY(number_path(temporary, &path));
    weft_status status = wefti_file_write(path, &number, sizeof number);
    wefti_free(path);
    return status;
}

weft_status wefti_checkpoint_prepare(const char *dir, int64_t step, uint64_t *out_number) {
    char *temporary = NULL;
    WEFT_TRY(wefti_step_abandon(dir, step));
    WEFT_TRY(wefti_step_path(dir, WEFTI_STEP_TEMPORARY, step, &temporary));
    weft_status status = wefti_dir_make(temporary);
    if (status >= 0) status = wefti_random_bytes(out_number, sizeof *out_number);
    if (status >= 0) status = write_number(temporary, *out_number);
    if (status >= 0) status = wefti_dir_sync(temporary);
    wefti_free(temporary);
    if (status < 0) wefti_step_undo(dir, step);
    return status;
}

void wefti_checkpoint_unprepare(const char *dir, int64_t step) {
    wefti_step_undo(dir, step);
}

bool wefti_checkpoint_sees(const char *dir, int64_t step, uint64_t number) {
    char *temporary = NULL, *path = NULL, *text = NULL;
    int64_t bytes = 0;
    weft_status status = wefti_step_path(dir, WEFTI_STEP_TEMPORARY, step, &temporary);
    if (status >= 0) status = number_path(temporary, &path);
    if (status >= 0) status = wefti_file_read(path, sizeof number, &text, &bytes);
    bool same =
        status >= 0 && bytes == (int64_t)sizeof number && !memcmp(text, &number, sizeof number);
    if (status < 0) wefti_error_clear(); /* "no" is an answer */
    wefti_free(text);
    wefti_free(path);
    wefti_free(temporary);
    return same;
}

weft_status wefti_checkpoint_remove_number(const char *temporary) {
    char *path = NULL;
    WEFT_TRY(number_path(temporary, &path));
    weft_status status = wefti_remove_tree(path);
    wefti_free(path);
    return status;
}

/* ---- the parts of all processes ---- */

weft_status wefti_checkpoint_written(wefti_checkpoint_job *job) {
    pthread_mutex_lock(&job->mutex);
    weft_status status = job->done && job->status < 0 ? job->status
                         : job->written               ? WEFT_OK
                                                      : WEFT_PENDING;
    pthread_mutex_unlock(&job->mutex);
    return status < 0 ? wefti_adopt(status, job->message) : status;
}

void wefti_checkpoint_wait_written(wefti_checkpoint_job *job) {
    pthread_mutex_lock(&job->mutex);
    while (!job->written && !job->done) pthread_cond_wait(&job->progress, &job->mutex);
    pthread_mutex_unlock(&job->mutex);
}

void wefti_checkpoint_wait_done(wefti_checkpoint_job *job) {
    pthread_mutex_lock(&job->mutex);
    while (!job->done) pthread_cond_wait(&job->progress, &job->mutex);
    pthread_mutex_unlock(&job->mutex);
}

const uint32_t *wefti_checkpoint_sums(const wefti_checkpoint_job *job, int64_t *out_bytes) {
    *out_bytes = job->own_bytes;
    return job->sums;
}

void wefti_checkpoint_complete(wefti_checkpoint_job *job, const uint32_t *sums, int64_t bytes) {
    pthread_mutex_lock(&job->mutex);
    memcpy(job->sums, sums, (size_t)job->count * sizeof *sums);
    job->own_bytes = bytes;
    job->complete = true;
    pthread_cond_broadcast(&job->progress);
    pthread_mutex_unlock(&job->mutex);
}
