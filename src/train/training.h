/* One training run's parts, shared by the files that make it up. */
#ifndef WEFTI_TRAIN_TRAINING_H
#define WEFTI_TRAIN_TRAINING_H

#include "checkpoint/checkpoint.h"
#include "session/agree.h"
#include "data/feed.h"
#include "session/session.h"
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

typedef struct wefti_training {
    const weft_job *job;
    const weft_train_events *events;
    weft_train_result *result;
    weft_model_config config;
    weft_data *data;
    weft_graph *graph, *eval_graph;
    weft_session *session;
    int eval_program;     /* 0: none */
    int64_t micro;        /* samples of a microbatch */
    int64_t microbatches; /* of a step, copies included */
    int64_t memory_bytes; /* limit, 0: none */
    int64_t step;         /* updates done */
    int64_t position;     /* samples consumed */
    weft_bf16_compute bf16;
    int32_t mask_token; /* bert */
    /* across processes */
    weft_world *world;          /* borrowed; NULL: one process */
    wefti_agreement *agreement; /* the world's; NULL: one process */
    bool follows;               /* another rank reports and writes */
    int stopping;               /* agreed: why (weft_train_result.stop), 0: not */
    int64_t observed_peak;      /* of all ranks, when last told */
    wefti_delivery *delivery;   /* tensors on their way to the checkpoint being written */
    /* checkpoints */
    wefti_checkpoint_lock *lock;
    wefti_checkpoint_job *writing;
    int64_t writing_step, committed_step;
    wefti_saved_tensor *saved;
    int64_t saved_count, saved_room, saved_states; /* the first ones are the model's states */
    int64_t *saved_first,
        *saved_last; /* per tensor: its range in `saved` (with its optimizer states) */
    char *tokenizer; /* its file's text, which each checkpoint holds; NULL: bytes */
    wefti_metrics *metrics;
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
/* plan_names.c: patterns of a plan that match nothing in the model, one a line, "" when there are
 * none; wefti_free. Wraps the graph. `fused`: of each of the plan's fusions, how many tensors it
 * has a say in at most on a device; NULL: not known, and nothing is said of fusion. */
weft_status wefti_plan_unmatched(const weft_plan *plan, weft_graph *graph, const int32_t fused[3],
                                 char **out) WEFT_CHECKED;
/* Of the names and shapes of a model's parameters: the same for every batch and precision. */
uint64_t wefti_model_hash(const weft_graph *graph); /* plan_complete.c */
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

/* save/world.c: the tensors of a checkpoint from all ranks to rank 0, which writes them while it
 * gathers more, through a bounded amount of memory. */
weft_status wefti_delivery_create(int64_t count, wefti_delivery **out) WEFT_CHECKED;
/* No write under way uses it. NULL is legal. */
void wefti_delivery_destroy(wefti_delivery *d);
/* Into the options of a write. */
void wefti_delivery_options(wefti_delivery *d, wefti_checkpoint_options *options);
/* Nothing more comes: a write that still waits for tensors gives its step up. NULL is legal. */
void wefti_delivery_end(wefti_delivery *d);
/* Collective: all saved tensors to rank 0's write under way. */
weft_status wefti_training_deliver(wefti_training *t) WEFT_CHECKED;

/* save.c: checkpoints in time. */
/* Whether the session has chosen bf16 arithmetic for products of bf16, as checkpoints say. */
bool wefti_training_is_native(const wefti_training *t);
weft_status wefti_training_lock(wefti_training *t) WEFT_CHECKED;
weft_status wefti_training_bind(wefti_training *t) WEFT_CHECKED; /* what checkpoints will hold */
weft_status wefti_training_restore(wefti_training *t, wefti_checkpoint *from) WEFT_CHECKED;
/* Begins to write this step; a write under way is finished first. `last`: the state is known to be
 * good, so that exactly checkpoint.keep steps remain; else one more. */
weft_status wefti_training_save(wefti_training *t, bool last) WEFT_CHECKED;
/* The same in the midst of a run, which a failure to write does not end. */
weft_status wefti_training_save_meanwhile(wefti_training *t) WEFT_CHECKED;
void wefti_training_poll(wefti_training *t); /* reports a write that has ended */
/* Waits for the write under way. */
weft_status wefti_training_finish_write(wefti_training *t) WEFT_CHECKED;

/* masking.c: targets of masked language models, in place. `targets` are overwritten. */
int32_t wefti_mask_token(const weft_data *data,
                         int64_t vocab); /* the tokenizer's, else the last one */
void wefti_mask_tokens(uint64_t seed, int64_t first_position, int64_t count, int32_t mask_token,
                       int64_t vocab, int32_t *tokens, int32_t *targets);

/* schedule.c: learning rate of update `step` (from 0). */
double wefti_learning_rate(const weft_job *job, int64_t step);

/* metrics.c: JSON lines and TensorBoard events; `units` (static text) is what goes by the second. A
 * file that cannot be written is given up: the call fails, later ones go on without it, and closing
 * fails too. NULL is legal: another rank writes them. */
weft_status wefti_metrics_open(const char *json_lines, const char *tensorboard, const char *units,
                               wefti_metrics **out) WEFT_CHECKED;
weft_status wefti_metrics_step(wefti_metrics *m, const weft_train_step *step) WEFT_CHECKED;
weft_status wefti_metrics_validation(wefti_metrics *m, const weft_train_validation *v) WEFT_CHECKED;
weft_status wefti_metrics_close(wefti_metrics *m) WEFT_CHECKED;

#endif
