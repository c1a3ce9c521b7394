/* Writes a step while training goes on. See checkpoint.h.
 *
 * The thread first captures every tensor (capture.c): it computes the checksum and copies the
 * bytes into the buffer of the file, which goes to the disk as it fills. Only the capture must
 * precede the tensor's next update. Waiting for the disk, the manifest and the rename come later,
 * when no caller waits.
 *
 * Of several processes the leader has created the files before the others begin. After its own part
 * it waits for the sums of all processes: no process can tell alone that the step is whole. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digest/digest.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "checkpoint/step_dir.h"
#include "checkpoint/write/job.h"

/* ---- the thread ---- */

static weft_status job_path(const wefti_checkpoint_job *job, const char *name, char **out) {
    *out = wefti_format("%s/%s", job->temporary, name);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the name of a file");
    return WEFT_OK;
}

static weft_status capture(wefti_checkpoint_job *job, int64_t k) {
    const int64_t slice = job->plan.sources[k].slice;
    const int64_t index =
        slice < 0 ? job->plan.order[k] : job->plan.manifest.sliced.slices[slice].tensor;
    WEFT_TRY(wefti_write_capture(job, k));
    if (slice >= 0 && --job->left[index] > 0) return WEFT_OK;
    pthread_mutex_lock(&job->mutex);
    atomic_store(&job->captured[index], true);
    pthread_cond_broadcast(&job->progress);
    pthread_mutex_unlock(&job->mutex);
    return WEFT_OK;
}

static void release(wefti_checkpoint_job *job) {
    if (job->take) job->give_back(job->context, -1);
    pthread_mutex_lock(&job->mutex);
    atomic_store(&job->released, true);
    pthread_cond_broadcast(&job->progress);
    pthread_mutex_unlock(&job->mutex);
}

static weft_status seal_text(const wefti_checkpoint_job *job, const char *name, const char *text,
                             int64_t bytes, unsigned char **out, int64_t *out_bytes) {
    wefti_seal seal;
    WEFT_TRY(wefti_seal_make(&job->key, &job->mark, name, bytes, WEFTI_SEAL_FRAME_BYTES, &seal));
    return wefti_seal_text(&seal, text, out, out_bytes);
}

static weft_status write_text(wefti_checkpoint_job *job, const char *name, const char *text,
                              int64_t bytes) {
    char *path = NULL;
    unsigned char *sealed = NULL;
    if (job->mark.sealed) WEFT_TRY(seal_text(job, name, text, bytes, &sealed, &bytes));
    weft_status status = job_path(job, name, &path);
    if (status >= 0)
        status = wefti_file_write(path, sealed ? (const void *)sealed : text, (size_t)bytes);
    wefti_free(sealed);
    wefti_free(path);
    return status;
}

static weft_status write_texts(wefti_checkpoint_job *job) {
    wefti_manifest *m = &job->plan.manifest;
    for (int64_t i = job->plan.shard_count; i < m->file_count; i++) {
        const wefti_checkpoint_text *t = &job->plan.texts[i - job->plan.shard_count];
        wefti_manifest_file *file = &m->files[i];
        file->bytes = file->checked_bytes = wefti_checkpoint_text_bytes(t);
        file->crc32c = wefti_crc32c(0, t->text, (size_t)file->bytes);
        WEFT_TRY(write_text(job, file->name, t->text, file->bytes));
    }
    char *manifest = NULL;
    int64_t bytes = 0;
    wefti_manifest printed = *m;
    if (job->plan.wholes) {
        printed.tensors = job->plan.wholes;
        printed.tensor_count = job->plan.whole_count;
    }
    WEFT_TRY(wefti_manifest_print(&printed, &manifest, &bytes));
    weft_status status = write_text(job, "manifest.json", manifest, bytes);
    wefti_free(manifest);
    return status;
}

/* Whether the step needs the sums of other processes. */
static bool waits(const wefti_checkpoint_job *job) {
    return job->duty == WEFTI_CHECKPOINT_LEADS || job->duty == WEFTI_CHECKPOINT_SLICES;
}

/* This process's part of the tensors, up to the sync. */
static weft_status write_own(wefti_checkpoint_job *job) {
    for (int64_t k = 0; k < job->plan.manifest.tensor_count; k++) WEFT_TRY(capture(job, k));
    release(job);
    WEFT_TRY(wefti_write_sync(job));
    pthread_mutex_lock(&job->mutex);
    job->written = true;
    if (job->duty == WEFTI_CHECKPOINT_ALONE) job->complete = true;
    pthread_cond_broadcast(&job->progress);
    while (waits(job) && !job->complete && !atomic_load(&job->cancelled))
        pthread_cond_wait(&job->progress, &job->mutex);
    pthread_mutex_unlock(&job->mutex);
    return WEFT_OK;
}

/* The checksums of the tensors, from the sums of all processes. */
static weft_status sum_tensors(wefti_checkpoint_job *job) {
    const wefti_write_plan *plan = &job->plan;
    int64_t bytes = 0;
    for (int64_t k = 0; k < job->count; k++) {
        wefti_manifest_tensor *t = plan->wholes ? &plan->wholes[k] : &plan->manifest.tensors[k];
        const uint32_t sum = job->sums[plan->wholes ? k : plan->order[k]];
        t->crc32c = wefti_crc32c_of_sums(sum, weft_desc_bytes(&t->desc));
        bytes += weft_desc_bytes(&t->desc);
    }
    WEFT_REQUIRE(job->own_bytes == bytes, WEFT_E_BUG,
                 "all ranks together have written %lld bytes of tensors; the step has %lld",
                 (long long)job->own_bytes, (long long)bytes);
    return WEFT_OK;
}

static weft_status create_step(wefti_checkpoint_job *job) {
    if (job->duty == WEFTI_CHECKPOINT_ALONE || job->duty == WEFTI_CHECKPOINT_SLICES) {
        WEFT_TRY(wefti_step_abandon(job->dir, job->plan.manifest.meta.step));
        WEFT_TRY(wefti_dir_make(job->temporary));
    }
    return wefti_write_shards(job, job->duty != WEFTI_CHECKPOINT_JOINS);
}

static weft_status write_step(wefti_checkpoint_job *job) {
    if (job->duty != WEFTI_CHECKPOINT_LEADS) WEFT_TRY(create_step(job));
    WEFT_TRY(write_own(job));
    if (job->duty == WEFTI_CHECKPOINT_JOINS) return WEFT_OK;
    WEFT_REQUIRE(!atomic_load(&job->cancelled), WEFT_E_STOPPED, "the checkpoint was given up");
    WEFT_TRY(sum_tensors(job));
    WEFT_TRY(write_texts(job));
    if (job->duty == WEFTI_CHECKPOINT_LEADS)
        WEFT_TRY(wefti_checkpoint_remove_number(job->temporary));
    WEFT_TRY(wefti_dir_sync(job->temporary));
    WEFT_REQUIRE(!atomic_load(&job->cancelled), WEFT_E_STOPPED, "the checkpoint was given up");
    return wefti_step_commit(job->dir, job->plan.manifest.meta.step);
}

/* The file `latest` is a hint for people and scripts. weft's readers look at the steps themselves.
 */
static weft_status tidy(wefti_checkpoint_job *job) {
    char name[WEFTI_STEP_NAME_BYTES];
    wefti_step_name(WEFTI_STEP_COMMITTED, job->plan.manifest.meta.step, name);
    char *path = wefti_format("%s/latest", job->dir), *line = wefti_format("%s\n", name);
    weft_status status = path && line ? wefti_file_write(path, line, strlen(line))
                                      : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a file name");
    wefti_free(path);
    wefti_free(line);
    if (status < 0) return status;
    if (!job->keep) return WEFT_OK;
    return wefti_checkpoint_prune_spaced(job->dir, job->keep, job->spacing, job->best,
                                         job->plan.manifest.meta.step);
}

static void lower_priority(int nice) {
#ifdef SYS_gettid
    id_t self = (id_t)syscall(SYS_gettid);
    if (nice > 0) (void)setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + nice);
#else
    (void)nice;
#endif
}

/* Closes the files. The step's directory is the leader's. A leftover is removed at the next start.
 */
static void give_up(wefti_checkpoint_job *job) {
    for (int64_t s = 0; s < job->plan.shard_count; s++) {
        wefti_bulk_abort(job->shards[s]);
        job->shards[s] = NULL;
    }
    if (job->duty != WEFTI_CHECKPOINT_JOINS)
        wefti_step_undo(job->dir, job->plan.manifest.meta.step);
}

static void *thread_main(void *argument) {
    wefti_checkpoint_job *job = argument;
    lower_priority(job->nice);
    weft_status status = write_step(job);
    char message[WEFTI_WRITE_MESSAGE_BYTES] = "";
    char *note = NULL;
    if (status < 0) {
        (void)snprintf(message, sizeof message, "%s", weft_error_message());
        release(job);
        give_up(job);
    } else if (job->duty != WEFTI_CHECKPOINT_JOINS && tidy(job) < 0) {
        note = wefti_format("step %lld is written, but: %s",
                            (long long)job->plan.manifest.meta.step, weft_error_message());
    }
    pthread_mutex_lock(&job->mutex);
    job->status = status;
    memcpy(job->message, message, sizeof message);
    job->note = note;
    job->done = true;
    pthread_cond_broadcast(&job->progress);
    pthread_mutex_unlock(&job->mutex);
    return NULL;
}

/* ---- the caller's side ---- */

static void job_destroy(wefti_checkpoint_job *job) {
    if (!job) return;
    pthread_mutex_destroy(&job->mutex);
    pthread_cond_destroy(&job->progress);
    for (int64_t s = 0; s < job->plan.shard_count && job->sealers; s++)
        wefti_sealer_close(job->sealers[s]);
    explicit_bzero(&job->key, sizeof job->key);
    wefti_write_plan_destroy(&job->plan);
    wefti_free(job->shards);
    wefti_free(job->sealers);
    wefti_free(job->header_bytes);
    wefti_free(job->sums);
    wefti_free(job->captured);
    wefti_free(job->left);
    wefti_free(job->block);
    wefti_free(job->dir);
    wefti_free(job->temporary);
    wefti_free(job->note);
    wefti_free(job);
}

/* A frame has one tag, so one process must write all of it. */
static weft_status prepare_key(wefti_checkpoint_job *job, const wefti_key *key) {
    WEFT_REQUIRE(job->duty == WEFTI_CHECKPOINT_ALONE || job->duty == WEFTI_CHECKPOINT_SLICES,
                 WEFT_E_ARG, "several processes cannot write one encrypted file");
    job->key = *key;
    return wefti_seal_mark_make(&job->mark);
}

static weft_status job_prepare(wefti_checkpoint_job *job, const char *dir,
                               const wefti_checkpoint_meta *meta,
                               const wefti_checkpoint_tensor *tensors, int64_t count,
                               const wefti_checkpoint_options *options) {
    WEFT_TRY(wefti_write_plan_create(meta, tensors, count, options, &job->plan));
    job->duty = options ? options->duty : WEFTI_CHECKPOINT_ALONE;
    job->keep = options ? options->keep : 0;
    job->spacing = options ? options->spacing : 0;
    job->best = options && options->best > 0 ? options->best : -1;
    job->nice = options ? options->nice : 0;
    if (options && options->take) {
        job->take = options->take;
        job->give_back = options->give_back;
        job->context = options->context;
    }
    if (options && options->key) WEFT_TRY(prepare_key(job, options->key));
    WEFT_NEW_ARRAY(job->shards, wefti_bulk *, job->plan.shard_count);
    WEFT_NEW_ARRAY(job->sealers, wefti_sealer *, job->plan.shard_count);
    WEFT_NEW_ARRAY(job->header_bytes, int64_t, job->plan.shard_count);
    job->count = job->plan.wholes ? job->plan.whole_count : count;
    WEFT_NEW_ARRAY(job->sums, uint32_t, job->count);
    WEFT_NEW_ARRAY(job->captured, atomic_bool, job->count);
    WEFT_NEW_ARRAY(job->left, int64_t, job->count);
    for (int64_t i = 0; i < job->plan.manifest.sliced.count; i++)
        job->left[job->plan.manifest.sliced.slices[i].tensor] +=
            job->plan.manifest.sliced.slices[i].file >= 0;
    for (int64_t i = 0; i < job->count && job->plan.wholes; i++)
        atomic_store(&job->captured[i], job->left[i] == 0);
    for (int role = 0; role < WEFTI_CHECKPOINT_ROLES; role++) job->active[role] = -1;
    job->dir = wefti_strdup(dir);
    WEFT_REQUIRE(job->dir, WEFT_E_NOMEM, "no memory for the name of a directory");
    WEFT_TRY(wefti_step_path(dir, WEFTI_STEP_TEMPORARY, meta->step, &job->temporary));
    if (job->duty != WEFTI_CHECKPOINT_LEADS) return WEFT_OK;
    weft_status status = create_step(job);
    if (status < 0) give_up(job);
    return status;
}

weft_status wefti_checkpoint_begin(const char *dir, const wefti_checkpoint_meta *meta,
                                   const wefti_checkpoint_tensor *tensors, int64_t count,
                                   const wefti_checkpoint_options *options,
                                   wefti_checkpoint_job **out) {
    wefti_checkpoint_job *job = NULL;
    WEFT_NEW(job, wefti_checkpoint_job);
    pthread_mutex_init(&job->mutex, NULL);
    pthread_cond_init(&job->progress, NULL);
    weft_status status = job_prepare(job, dir, meta, tensors, count, options);
    int error = status < 0 ? 0 : wefti_thread_start(&job->thread, thread_main, job);
    if (error) {
        status = WEFT_RAISE(WEFT_E_NOMEM, "cannot start the thread that writes checkpoints: %s",
                            strerror(error));
        if (job->duty == WEFTI_CHECKPOINT_LEADS) give_up(job);
    }
    if (status < 0) {
        job_destroy(job);
        return status;
    }
    *out = job;
    return WEFT_OK;
}

static void wait_for(wefti_checkpoint_job *job, const atomic_bool *flag) {
    if (atomic_load(flag) || atomic_load(&job->released)) return;
    int64_t start = wefti_now_ns();
    pthread_mutex_lock(&job->mutex);
    while (!atomic_load(flag) && !atomic_load(&job->released))
        pthread_cond_wait(&job->progress, &job->mutex);
    pthread_mutex_unlock(&job->mutex);
    atomic_fetch_add(&job->waited_ns, wefti_now_ns() - start);
}

void wefti_checkpoint_wait_tensor(wefti_checkpoint_job *job, int64_t index) {
    if (!job || index < 0 || index >= job->count) return;
    wait_for(job, &job->captured[index]);
}

void wefti_checkpoint_wait_all(wefti_checkpoint_job *job) {
    if (job) wait_for(job, &job->released);
}

int64_t wefti_checkpoint_waited_ns(const wefti_checkpoint_job *job) {
    return job ? atomic_load(&job->waited_ns) : 0;
}

weft_status wefti_checkpoint_poll(wefti_checkpoint_job *job) {
    if (!job) return WEFT_OK;
    pthread_mutex_lock(&job->mutex);
    weft_status status = job->done ? job->status : WEFT_PENDING;
    pthread_mutex_unlock(&job->mutex);
    return status < 0 ? wefti_adopt(status, job->message) : status;
}

weft_status wefti_checkpoint_finish(wefti_checkpoint_job *job, char **out_note) {
    if (out_note) *out_note = NULL;
    if (!job) return WEFT_OK;
    pthread_join(job->thread, NULL);
    weft_status status = job->status;
    if (status < 0) {
        (void)wefti_adopt(status, job->message);
        (void)wefti_note(status, __func__, __FILE__, __LINE__);
    } else if (out_note) {
        *out_note = job->note;
        job->note = NULL;
    }
    job_destroy(job);
    return status;
}

void wefti_checkpoint_cancel(wefti_checkpoint_job *job) {
    if (!job) return;
    pthread_mutex_lock(&job->mutex);
    atomic_store(&job->cancelled, true);
    pthread_cond_broadcast(&job->progress);
    pthread_mutex_unlock(&job->mutex);
    pthread_join(job->thread, NULL);
    job_destroy(job);
}

weft_status wefti_checkpoint_write(const char *dir, const wefti_checkpoint_meta *meta,
                                   const wefti_checkpoint_tensor *tensors, int64_t count,
                                   const wefti_checkpoint_options *options, char **out_note) {
    wefti_checkpoint_job *job = NULL;
    WEFT_TRY(wefti_checkpoint_begin(dir, meta, tensors, count, options, &job));
    return wefti_checkpoint_finish(job, out_note);
}
