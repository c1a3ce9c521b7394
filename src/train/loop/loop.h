/* The phases of a training run, in the order in which run.c calls them. */
#ifndef WEFTI_TRAIN_LOOP_LOOP_H
#define WEFTI_TRAIN_LOOP_LOOP_H

#include "setup/feed.h"
#include "train/save/save.h"
#include "train/training.h"

/* open.c: locks the run's directory and opens its newest good checkpoint (NULL: none); rank 0. */
weft_status wefti_training_open_directory(wefti_training *t, wefti_checkpoint **out) WEFT_CHECKED;
/* Opens data and session, and loads parameters from the checkpoint or from model.from. *from may
 * become an older checkpoint. */
weft_status wefti_training_load(wefti_training *t, wefti_checkpoint **from) WEFT_CHECKED;

/* The newest good checkpoint; *out NULL: none. Rank 0. */
weft_status wefti_training_find(wefti_training *t, wefti_checkpoint **out) WEFT_CHECKED;
/* Start values: of the checkpoint (resumes), or of model.from. *from may become an older one. */
weft_status wefti_training_load_parameters(wefti_training *t, wefti_checkpoint **from,
                                           bool resumes) WEFT_CHECKED;

/* loop.c: all steps that are left. */
weft_status wefti_training_loop(wefti_training *t) WEFT_CHECKED;
/* Tells metrics and events of the step that was made last, once. */
void wefti_training_report_step(wefti_training *t);

/* mend.c: a run goes on after a process of its world has died (docs/design/recovery.md). */
/* Once the session exists: this rank can be mended. Without recovery.enabled, or in a world that
 * ends with the first process that dies, it does nothing. Collective. */
weft_status wefti_training_arm(wefti_training *t) WEFT_CHECKED;
/* Whether the run may go on after `status`. */
bool wefti_training_can_mend(const wefti_training *t, weft_status status);
/* After such a failure: all ranks have a state from which the loop goes on. */
weft_status wefti_training_mend(wefti_training *t) WEFT_CHECKED;
/* In a process that takes the place of a rank (wefti_world_newcomer): in place of
 * wefti_training_open_directory and wefti_training_load. */
weft_status wefti_training_take_seat(wefti_training *t) WEFT_CHECKED;

/* resize.c: the world has another size. Collective: sets the run up anew, with the session of the
 * new size, and moves the state to it. from_memory false: the caller reads the state. *out_whole
 * false, on all ranks alike: the state is not in memory. Then wefti_training_end_resize. */
weft_status wefti_training_resize(wefti_training *t, int64_t target, int32_t teller,
                                  bool from_memory, wefti_halted *halted,
                                  bool *out_whole) WEFT_CHECKED;
/* The sizes, from `least` up to that of the job's first world, for which the job has a plan, as
 * wefti_elastic has them. wefti_free. */
weft_status wefti_training_find_sizes(const wefti_training *t, int32_t least, unsigned char **out,
                                      int32_t *out_most) WEFT_CHECKED;
/* Collective: the job for the present size of the world. */
weft_status wefti_training_read_job(wefti_training *t) WEFT_CHECKED;
/* Collective: all ranks hear what rank `teller` tells of the run. `has_own`: this rank keeps the
 * tokenizer and the step that it has. */
weft_status wefti_training_share_briefing(wefti_training *t, int32_t teller, bool has_own,
                                          wefti_briefing *out) WEFT_CHECKED;

/* run.c: tells the caller of the run what begins. */
void wefti_training_announce(const wefti_training *t);

/* trace.c: the trace of this process; at the end, one of each host. The end is collective. */
weft_status wefti_training_begin_trace(wefti_training *t) WEFT_CHECKED;
weft_status wefti_training_end_trace(wefti_training *t) WEFT_CHECKED;

/* seat.c: what a newcomer gets from rank `teller`, whose run goes on. Both collective. */
weft_status wefti_training_brief(wefti_training *t, int32_t teller) WEFT_CHECKED;
/* A newcomer sets up; the others wait for it. Fails on all ranks alike. */
weft_status wefti_training_be_briefed(wefti_training *t, int32_t teller) WEFT_CHECKED;

/* step.c: one step: all microbatches of a batch, and the update. */
weft_status wefti_training_step(wefti_training *t, const wefti_batch *b, double lr,
                                weft_train_step *out) WEFT_CHECKED;
/* validate.c: the loss (and accuracy) over the validation data. Does nothing without such data. */
weft_status wefti_training_validate(wefti_training *t) WEFT_CHECKED;
/* finish.c: after the last step, or when the run is stopped: validates and saves. */
weft_status wefti_training_finish(wefti_training *t) WEFT_CHECKED;
/* Fails if a piece of a parameter on this rank has a value that is not finite. */
weft_status wefti_training_check_parameters(wefti_training *t) WEFT_CHECKED;
/* Collective: whether the state is neither written nor being written. */
weft_status wefti_training_unsaved(wefti_training *t, bool *out) WEFT_CHECKED;
/* rescue.c: after a failure of a step, with checkpoint.on_error: saves the last complete step, if
 * all ranks share the failure and still hold that state. Returns `status`. */
weft_status wefti_training_rescue(wefti_training *t, weft_status status) WEFT_CHECKED;
/* After a failure: completes the write under way. Returns `status`, its message extended. */
weft_status wefti_training_failed(wefti_training *t, weft_status status) WEFT_CHECKED;

/* A failure to write metrics becomes a note: the run goes on, and fails at its end. */
void wefti_training_note_metrics(const wefti_training *t, weft_status status);

/* schedule.c: learning rate of update `step` (from 0). */
double wefti_learning_rate(const weft_job *job, int64_t step);

/* metrics.c: JSON lines and TensorBoard events. `units` (static text): what throughput counts. If a
 * file cannot be written, the call fails, later calls skip that file, and closing fails too. NULL
 * is legal: another rank writes the metrics. */
/* The last step, and the last validation, with a line in a file of JSON lines; -1: none is found.
 */
typedef struct wefti_metrics_last {
    int64_t step, validation;
} wefti_metrics_last;
wefti_metrics_last wefti_metrics_read_last(const char *path);
weft_status wefti_metrics_open(const char *json_lines, const char *tensorboard, const char *units,
                               wefti_metrics **out) WEFT_CHECKED;
weft_status wefti_metrics_step(wefti_metrics *m, const weft_train_step *step) WEFT_CHECKED;
weft_status wefti_metrics_validation(wefti_metrics *m, const weft_train_validation *v) WEFT_CHECKED;
weft_status wefti_metrics_close(wefti_metrics *m) WEFT_CHECKED;

#endif
