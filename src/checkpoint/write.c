/* Writes a step while training goes on. See checkpoint.h.
 *
 * The thread first captures every tensor: it computes the checksum and copies the bytes into the
 * buffer of the file, which goes to the disk as it fills. Only the capture must precede the
 * tensor's next update. Waiting for the disk, the manifest and the rename come later, when no
 * caller waits. Blocks of 256 KiB stay in the core's cache between the two passes. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bulk.h"
#include "base/clock.h"
#include "base/digest/digest.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/step_dir.h"
#include "checkpoint/write_plan.h"
#include "layout/slab.h"
#include "layout/transfer.h"

enum { WRITE_BLOCK_BYTES = 256 * 1024, WRITE_MESSAGE_BYTES = 2048 };

struct wefti_checkpoint_job {
    char *dir, *temporary; /* DIR and DIR/.tmp-step-N */
    wefti_write_plan plan;
    wefti_bulk **shards;  /* while they are open */
    unsigned char *block; /* of BLOCK_BYTES, to join pieces in; NULL: not needed so far */
    int64_t keep;
    int nice;
    const void *(*take)(void *context, int64_t index); /* NULL: all tensors are in memory */
    void (*give_back)(void *context, int64_t index);
    void *context;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t progress;
    atomic_bool *captured; /* by the caller's number */
    atomic_bool released;  /* all captured, or given up: live tensors are not read any more */
    atomic_bool cancelled;
    bool done; /* under the mutex, like the following members */
    weft_status status;
    char message[WRITE_MESSAGE_BYTES];
    char *note;
    _Atomic int64_t waited_ns;
};

/* ---- the thread ---- */

static weft_status job_path(const wefti_checkpoint_job *job, const char *name, char **out) {
    *out = wefti_format("%s/%s", job->temporary, name);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the name of a file");
    return WEFT_OK;
}

/* Opens a shard and writes its header. */
static weft_status open_shard(wefti_checkpoint_job *job, int64_t s) {
    static const wefti_safetensors_pair framework = {"format", "pt"}; /* transformers insists */
    const wefti_write_plan *plan = &job->plan;
    wefti_manifest_file *file = &plan->manifest.files[s];
    int64_t begin = plan->shard_begin[s], end = plan->shard_begin[s + 1];
    char *header = NULL, *path = NULL;
    int64_t bytes = 0, total = 0;
    for (int64_t i = begin; i < end; i++) total += weft_desc_bytes(&plan->items[i].desc);
    WEFT_TRY(
        wefti_safetensors_header(plan->items + begin, end - begin, &framework, 1, &header, &bytes));
    weft_status status = job_path(job, file->name, &path);
    if (status >= 0) status = wefti_bulk_open(path, bytes + total, &job->shards[s]);
    if (status >= 0) status = wefti_bulk_write(job->shards[s], header, (size_t)bytes);
    if (status >= 0) {
        file->bytes = file->checked_bytes = bytes;
        file->crc32c = wefti_crc32c(0, header, (size_t)bytes);
    }
    wefti_free(path);
    wefti_free(header);
    return status;
}

static weft_status capture_bytes(wefti_checkpoint_job *job, wefti_manifest_tensor *tensor,
                                 const void *data, size_t bytes) {
    WEFT_REQUIRE(!atomic_load(&job->cancelled), WEFT_E_STOPPED, "the checkpoint was given up");
    tensor->crc32c = wefti_crc32c(tensor->crc32c, data, bytes);
    return wefti_bulk_write(job->shards[tensor->file], data, bytes);
}

/* Copies into `block`, which holds the slab, the part of the slab that a piece has. */
static weft_status copy_part(const weft_desc *whole, const wefti_checkpoint_piece *piece,
                             const wefti_region *part, const wefti_region *slab, void *block) {
    int64_t size = (int64_t)weft_dtype_bytes(whole->dtype), first, count;
    wefti_mapping m;
    wefti_region_span(part, &piece->box, whole->rank, &first, &count);
    WEFT_TRY(wefti_device_map(piece->device, (const char *)piece->data + first * size, count * size,
                              WEFTI_ACCESS_READ, &m));
    const void *begin = (const void *)((uintptr_t)m.data - (uintptr_t)(first * size));
    wefti_region_copy(part, &piece->box, begin, slab, block, whole->rank, (size_t)size);
    return wefti_device_unmap(&m, WEFT_OK);
}

/* Block by block, each gathered from the pieces that have a part of it. */
static weft_status capture_pieces(wefti_checkpoint_job *job, wefti_manifest_tensor *tensor,
                                  const wefti_write_source *source) {
    const weft_desc *whole = &source->whole;
    size_t size = weft_dtype_bytes(whole->dtype);
    int64_t end = source->first + weft_desc_elems(&tensor->desc), count;
    if (!job->block) {
        job->block = wefti_alloc(WRITE_BLOCK_BYTES);
        WEFT_REQUIRE(job->block, WEFT_E_NOMEM, "no memory to join the pieces of %s", tensor->name);
    }
    for (int64_t at = source->first; at < end; at += count) {
        wefti_region slab, part;
        int64_t most = (int64_t)(WRITE_BLOCK_BYTES / size);
        count = wefti_slab(whole, at, end - at < most ? end - at : most, &slab);
        for (int64_t i = 0; i < source->piece_count; i++) {
            const wefti_checkpoint_piece *piece = &source->pieces[i];
            if (wefti_region_intersect(&slab, &piece->box, whole->rank, &part))
                WEFT_TRY(copy_part(whole, piece, &part, &slab, job->block));
        }
        WEFT_TRY(capture_bytes(job, tensor, job->block, (size_t)count * size));
    }
    return WEFT_OK;
}

static weft_status capture(wefti_checkpoint_job *job, int64_t k) {
    wefti_manifest_tensor *tensor = &job->plan.manifest.tensors[k];
    const wefti_write_source *source = &job->plan.sources[k];
    const unsigned char *data = source->data;
    int64_t bytes = weft_desc_bytes(&tensor->desc);
    bool later = source->later && bytes > 0;
    if (later) {
        data = job->take(job->context, job->plan.order[k]);
        WEFT_REQUIRE(data, WEFT_E_STOPPED, "the checkpoint was given up");
    }
    if (source->pieces) WEFT_TRY(capture_pieces(job, tensor, source));
    for (int64_t at = 0; at < bytes && data; at += WRITE_BLOCK_BYTES)
        WEFT_TRY(capture_bytes(
            job, tensor, data + at,
            (size_t)(bytes - at < WRITE_BLOCK_BYTES ? bytes - at : WRITE_BLOCK_BYTES)));
    if (later) job->give_back(job->context, job->plan.order[k]);
    job->plan.manifest.files[tensor->file].bytes += bytes;
    pthread_mutex_lock(&job->mutex);
    atomic_store(&job->captured[job->plan.order[k]], true);
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

static weft_status write_text(wefti_checkpoint_job *job, const char *name, const char *text,
                              int64_t bytes) {
    char *path = NULL;
    WEFT_TRY(job_path(job, name, &path));
    weft_status status = wefti_file_write(path, text, (size_t)bytes);
    wefti_free(path);
    return status;
}

static weft_status write_texts(wefti_checkpoint_job *job) {
    wefti_manifest *m = &job->plan.manifest;
    for (int64_t i = job->plan.shard_count; i < m->file_count; i++) {
        const char *text = job->plan.texts[i - job->plan.shard_count];
        wefti_manifest_file *file = &m->files[i];
        file->bytes = file->checked_bytes = (int64_t)strlen(text);
        file->crc32c = wefti_crc32c(0, text, (size_t)file->bytes);
        WEFT_TRY(write_text(job, file->name, text, file->bytes));
    }
    char *manifest = NULL;
    int64_t bytes = 0;
    WEFT_TRY(wefti_manifest_print(m, &manifest, &bytes));
    weft_status status = write_text(job, "manifest.json", manifest, bytes);
    wefti_free(manifest);
    return status;
}

static weft_status write_step(wefti_checkpoint_job *job) {
    int64_t step = job->plan.manifest.meta.step;
    WEFT_TRY(wefti_step_abandon(job->dir, step));
    WEFT_TRY(wefti_dir_make(job->temporary));
    for (int64_t s = 0; s < job->plan.shard_count; s++) WEFT_TRY(open_shard(job, s));
    for (int64_t k = 0; k < job->plan.manifest.tensor_count; k++) WEFT_TRY(capture(job, k));
    release(job);
    for (int64_t s = 0; s < job->plan.shard_count; s++) {
        wefti_bulk *shard = job->shards[s];
        job->shards[s] = NULL; /* removed whether the commit succeeds or not */
        WEFT_TRY(wefti_bulk_commit(shard));
    }
    WEFT_TRY(write_texts(job));
    WEFT_TRY(wefti_dir_sync(job->temporary));
    WEFT_REQUIRE(!atomic_load(&job->cancelled), WEFT_E_STOPPED, "the checkpoint was given up");
    return wefti_step_commit(job->dir, step);
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
    return wefti_checkpoint_prune_below(job->dir, job->keep, job->plan.manifest.meta.step);
}

static void lower_priority(int nice) {
#ifdef SYS_gettid
    id_t self = (id_t)syscall(SYS_gettid);
    if (nice > 0) (void)setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + nice);
#else
    (void)nice;
#endif
}

static void *thread_main(void *argument) {
    wefti_checkpoint_job *job = argument;
    lower_priority(job->nice);
    weft_status status = write_step(job);
    char message[WRITE_MESSAGE_BYTES] = "";
    char *note = NULL;
    if (status < 0) {
        (void)snprintf(message, sizeof message, "%s", weft_error_message());
        release(job);
        for (int64_t s = 0; s < job->plan.shard_count; s++) wefti_bulk_abort(job->shards[s]);
        if (wefti_step_abandon(job->dir, job->plan.manifest.meta.step) < 0)
            wefti_error_clear(); /* a leftover is removed at the next start */
    } else if (tidy(job) < 0) {
        note = wefti_format("step %lld is written, but: %s",
                            (long long)job->plan.manifest.meta.step, weft_error_message());
    }
    pthread_mutex_lock(&job->mutex);
    job->status = status;
    memcpy(job->message, message, sizeof message);
    job->note = note;
    job->done = true;
    pthread_mutex_unlock(&job->mutex);
    return NULL;
}

/* ---- the caller's side ---- */

static void job_destroy(wefti_checkpoint_job *job) {
    if (!job) return;
    pthread_mutex_destroy(&job->mutex);
    pthread_cond_destroy(&job->progress);
    wefti_write_plan_destroy(&job->plan);
    wefti_free(job->shards);
    wefti_free(job->captured);
    wefti_free(job->block);
    wefti_free(job->dir);
    wefti_free(job->temporary);
    wefti_free(job->note);
    wefti_free(job);
}

static weft_status job_prepare(wefti_checkpoint_job *job, const char *dir,
                               const wefti_checkpoint_meta *meta,
                               const wefti_checkpoint_tensor *tensors, int64_t count,
                               const wefti_checkpoint_options *options) {
    WEFT_TRY(wefti_write_plan_create(meta, tensors, count, options, &job->plan));
    job->keep = options ? options->keep : 0;
    job->nice = options ? options->nice : 0;
    if (options && options->take) {
        job->take = options->take;
        job->give_back = options->give_back;
        job->context = options->context;
    }
    WEFT_NEW_ARRAY(job->shards, wefti_bulk *, job->plan.shard_count);
    WEFT_NEW_ARRAY(job->captured, atomic_bool, count);
    job->dir = wefti_strdup(dir);
    WEFT_REQUIRE(job->dir, WEFT_E_NOMEM, "no memory for the name of a directory");
    return wefti_step_path(dir, WEFTI_STEP_TEMPORARY, meta->step, &job->temporary);
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
    if (error)
        status = WEFT_RAISE(WEFT_E_NOMEM, "cannot start the thread that writes checkpoints: %s",
                            strerror(error));
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
    if (!job || index < 0 || index >= job->plan.manifest.tensor_count) return;
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
    atomic_store(&job->cancelled, true);
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
