/* A step being written, for the files of this folder. */
#ifndef WEFTI_CHECKPOINT_WRITE_JOB_H
#define WEFTI_CHECKPOINT_WRITE_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/bulk.h"
#include "checkpoint/seal/seal.h"
#include "checkpoint/write_plan.h"

enum { WEFTI_WRITE_MESSAGE_BYTES = 2048 };

struct wefti_checkpoint_job {
    char *dir, *temporary; /* DIR and DIR/.tmp-step-N */
    wefti_checkpoint_duty duty;
    wefti_write_plan plan;
    wefti_bulk **shards;    /* while they are open */
    wefti_sealer **sealers; /* of encrypted shards, while they are open */
    wefti_key key;
    wefti_seal_mark mark;                   /* `sealed`: all files are encrypted with `key` */
    int64_t *header_bytes;                  /* of each shard */
    int64_t active[WEFTI_CHECKPOINT_ROLES]; /* the shard that has a buffer, -1 */
    unsigned char *block;                   /* joins pieces; NULL: not needed so far */
    uint32_t *sums;                         /* by the caller's number: of the own pieces */
    int64_t count;                          /* of the caller's numbers; sliced: whole tensors */
    int64_t *left;                          /* sliced: own slices of a tensor to be captured */
    int64_t own_bytes;                      /* of the own pieces; sliced: of those that count */
    int64_t keep, spacing, best;
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
    bool written;  /* under the mutex, like the following members: the own part is on the disk */
    bool complete; /* `sums` are those of all processes */
    bool done;
    weft_status status;
    char message[WEFTI_WRITE_MESSAGE_BYTES];
    char *note;
    _Atomic int64_t waited_ns;
};

/* capture.c: computes the headers of the shards; with `create` also makes the files. */
weft_status wefti_write_shards(wefti_checkpoint_job *job, bool create) WEFT_CHECKED;
/* Copies tensor k, or the own pieces of it, into its shard. */
weft_status wefti_write_capture(wefti_checkpoint_job *job, int64_t k) WEFT_CHECKED;
/* Syncs and closes all shards that are open. */
weft_status wefti_write_sync(wefti_checkpoint_job *job) WEFT_CHECKED;

#endif
