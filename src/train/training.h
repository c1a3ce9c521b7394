/* One training run's parts, shared by the files that make it up. */
#ifndef WEFTI_TRAIN_TRAINING_H
#define WEFTI_TRAIN_TRAINING_H

#include "checkpoint/checkpoint.h"
#include "session/agree.h"
#include "session/session.h"
#include "train/objective.h"
#include "weft/model.h"
#include "weft/train.h"

typedef struct wefti_metrics wefti_metrics;
typedef struct wefti_delivery wefti_delivery; /* save/world.c */

/* A tensor of the session as checkpoints know it. */
typedef struct wefti_saved_tensor {
    int tensor;     /* number in program 0 of the session */
    int64_t first;  /* element of it: a part of it may be a tensor of its own in files */
    char *name;     /* in files */
    weft_desc desc; /* in files */
    wefti_checkpoint_role role;
} wefti_saved_tensor;

/* What is trained. */
typedef struct wefti_training_model {
    weft_model_config config;
    const wefti_objective *objective;
    weft_graph *graph, *eval_graph;
    int eval_program; /* number in the session; 0: no validation */
    weft_bf16_compute bf16;
    int32_t mask_token; /* of masked language models */
} wefti_training_model;

/* How a step's samples are divided. */
typedef struct wefti_training_batch {
    int64_t micro;        /* samples of a microbatch */
    int64_t microbatches; /* of a step, interleaved ones included */
} wefti_training_batch;

typedef struct wefti_training_progress {
    int64_t step;     /* updates done */
    int64_t position; /* samples consumed */
} wefti_training_progress;

/* This process among several. */
typedef struct wefti_training_ranks {
    weft_world *world;          /* borrowed; NULL: one process */
    wefti_agreement *agreement; /* the world's; NULL: one process */
    bool follows;               /* another rank reports and writes */
    int stopping;               /* agreed: why (weft_train_result.stop), 0: not */
    int64_t observed_peak;      /* of all ranks, when last exchanged */
} wefti_training_ranks;

typedef struct wefti_training_saving {
    wefti_delivery *delivery; /* tensors on their way to the checkpoint being written */
    wefti_checkpoint_lock *lock;
    wefti_checkpoint_job *writing;
    int64_t writing_step, committed_step;
    wefti_saved_tensor *tensors;
    int64_t count, room, states; /* the first `states` are the model's states */
    int64_t *first, *last; /* [tensors of the session]: range in `tensors`, optimizer included */
    char *tokenizer;       /* text of its file, which each checkpoint holds; NULL: bytes */
} wefti_training_saving;

typedef struct wefti_training {
    const weft_job *job;
    const weft_train_events *events;
    weft_train_result *result;
    weft_data *data;
    weft_session *session;
    int64_t memory_bytes; /* limit of a device, 0: none */
    wefti_metrics *metrics;
    wefti_training_model model;
    wefti_training_batch batch;
    wefti_training_progress progress;
    wefti_training_ranks ranks;
    wefti_training_saving saving;
} wefti_training;

/* setup.c: configuration, data, graphs and session of a job, within its memory or the machine's. */
weft_status wefti_training_open(wefti_training *t) WEFT_CHECKED;
/* The same without a limit, and without data where the sizes do not need them: for reports. */
weft_status wefti_training_prepare(wefti_training *t) WEFT_CHECKED;
void wefti_training_close(wefti_training *t);
/* The model's configuration; opens data into t->data when sizes depend on it. */
weft_status wefti_training_configure(wefti_training *t) WEFT_CHECKED;
/* After that: the graph that is trained. A plan that was made for another model is refused. */
weft_status wefti_training_graph(wefti_training *t) WEFT_CHECKED;
weft_session_options wefti_training_options(const wefti_training *t);
void wefti_training_note(const wefti_training *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* together.c: what several processes settle with each other. All but the first are collective; with
 * one process they come to what it says itself. */
weft_status wefti_training_join(wefti_training *t, weft_world *world) WEFT_CHECKED;
/* Refuse jobs, and data once they are open, that differ in what each rank acts by; what a session
 * is told is compared there. */
weft_status wefti_training_same_job(wefti_training *t) WEFT_CHECKED;
weft_status wefti_training_same_data(wefti_training *t) WEFT_CHECKED;
/* Whether a stop was asked for on some rank. */
weft_status wefti_training_stops(wefti_training *t, bool *out) WEFT_CHECKED;
/* `bytes` of rank 0 at `data` to all; `status` is rank 0's, others pass WEFT_OK. */
weft_status wefti_training_broadcast(wefti_training *t, weft_status status, void *data,
                                     size_t bytes) WEFT_CHECKED;
/* The highest byte used on any device; of other processes, when last told. */
int64_t wefti_training_observed(const wefti_training *t);

#endif
