/* Checkpoints of a training run. */
#ifndef WEFTI_TRAIN_SAVE_SAVE_H
#define WEFTI_TRAIN_SAVE_SAVE_H

#include "train/training.h"

/* world.c: gathers on rank 0 the tensors of ranks that do not see the checkpoint's directory. Rank
 * 0 writes while it gathers, with a bounded amount of memory. */
weft_status wefti_delivery_create(int64_t count, wefti_delivery **out) WEFT_CHECKED;
/* No write under way may use it. NULL is legal. */
void wefti_delivery_destroy(wefti_delivery *d);
/* Sets the options of a write. */
void wefti_delivery_options(wefti_delivery *d, wefti_checkpoint_options *options);
/* No more tensors come: a write that still waits for one gives its step up. NULL is legal. */
void wefti_delivery_end(wefti_delivery *d);
/* Collective: sends the tensors that rank 0 gathers to its write under way. */
weft_status wefti_training_deliver(wefti_training *t) WEFT_CHECKED;

/* together.c: a checkpoint that all ranks write. */
/* Collective: begins to write this step on all ranks, which have none under way. *out_unwritten:
 * why rank 0 could not begin. */
weft_status wefti_training_save_together(wefti_training *t, bool last,
                                         weft_status *out_unwritten) WEFT_CHECKED;
/* Collective, when no rank's part is pending: rank 0 completes the step. A part that has failed
 * ends this checkpoint with a note. */
weft_status wefti_training_complete(wefti_training *t) WEFT_CHECKED;
/* Whether this rank's part is pending. */
bool wefti_training_part_pending(const wefti_training *t);

/* sliced.c: a checkpoint of which each rank writes its part into a directory of its own. */
bool wefti_training_is_sliced(const wefti_training *t);
/* Locks and cleans the directory of this rank. */
weft_status wefti_training_lock_slices(wefti_training *t) WEFT_CHECKED;
/* Collective: begins to write this step on all ranks. */
weft_status wefti_training_save_sliced(wefti_training *t, bool last) WEFT_CHECKED;
/* Whether this rank is busy with its part. */
bool wefti_training_slices_pending(const wefti_training *t);
/* Collective, when no rank is busy: goes on to the commit, or ends the checkpoint. A part that has
 * failed ends it with a note. */
weft_status wefti_training_complete_slices(wefti_training *t) WEFT_CHECKED;
/* Collective: waits for all of it. */
weft_status wefti_training_finish_slices(wefti_training *t) WEFT_CHECKED;
/* Removes the steps that checkpoint.keep does not keep, after all ranks have the committed one. */
weft_status wefti_training_prune_slices(wefti_training *t, bool last) WEFT_CHECKED;

/* key.c: reads the key of the job, after which files that it has encrypted can be read. Collective.
 * writes: the run will write checkpoints with it. */
weft_status wefti_training_take_key(wefti_training *t, bool writes) WEFT_CHECKED;
void wefti_training_wipe_key(wefti_training *t);

/* restore.c */
/* Collective in a world. `c`: rank 0's checkpoint; NULL on the others. WEFT_E_CORRUPT on all ranks
 * if tensors are damaged: the session then holds a mixture, and an older step can be restored. */
weft_status wefti_training_restore(wefti_training *t, wefti_checkpoint *c) WEFT_CHECKED;

/* save.c: checkpoints during a run. */
/* Whether the session computes products of bf16 with bf16 arithmetic, for checkpoints. */
bool wefti_training_is_native(const wefti_training *t);
weft_status wefti_training_lock(wefti_training *t) WEFT_CHECKED;
weft_status
wefti_training_bind(wefti_training *t) WEFT_CHECKED; /* lists the tensors of checkpoints */
/* The saved tensors with the pieces that this process has; one block, wefti_free. */
weft_status wefti_training_saved(wefti_training *t, wefti_checkpoint_tensor **out) WEFT_CHECKED;
/* Begins to write the tensors as `duty` says; on rank 0 of a world to gather some, as saving.apart
 * says. */
weft_status wefti_training_begin_write(wefti_training *t, bool last,
                                       wefti_checkpoint_duty duty) WEFT_CHECKED;
/* Begins to write slices, `count` tensors, with the time `now`. */
weft_status wefti_training_begin_slices(wefti_training *t, const wefti_checkpoint_slicing *slicing,
                                        const wefti_checkpoint_tensor *tensors, int64_t count,
                                        int64_t now) WEFT_CHECKED;
int64_t wefti_training_clock(void); /* seconds since 1970 */
/* A step is written: for the result, and for the caller of the run. */
weft_status wefti_training_report_written(wefti_training *t) WEFT_CHECKED;
const char *wefti_training_arithmetic(const wefti_training *t); /* on which the run's bits depend */
/* A failure to write ends neither the run nor earlier checkpoints: it becomes a note. */
void wefti_training_note_unwritten(const wefti_training *t, weft_status status);
/* checkpoint.seconds: whether the state of this step is to be saved, by the clock of this rank. */
bool wefti_training_due(const wefti_training *t);
/* Begins to write this step, after finishing a write under way. `last`: the state is known to be
 * good, so exactly checkpoint.keep steps remain; else one more. */
weft_status wefti_training_save(wefti_training *t, bool last) WEFT_CHECKED;
/* The same without `last`. Fails if the ranks are not in the same place any more. *out_unwritten:
 * why rank 0 (or the only process) could not begin to write. */
weft_status wefti_training_try_save(wefti_training *t, weft_status *out_unwritten) WEFT_CHECKED;
/* Collective: waits for the parts of all ranks and completes the step. */
weft_status wefti_training_complete_parts(wefti_training *t) WEFT_CHECKED;
/* The same during a run: a failure to write becomes a note and the run goes on. */
weft_status wefti_training_save_meanwhile(wefti_training *t) WEFT_CHECKED;
/* Once a step, on all ranks: completes and reports a write. */
weft_status wefti_training_poll(wefti_training *t) WEFT_CHECKED;
/* Waits for the write under way. Collective if several ranks write. */
weft_status wefti_training_finish_write(wefti_training *t) WEFT_CHECKED;
/* After a failure of the run. A write that needs ranks which may be gone is given up. */
weft_status wefti_training_end_write(wefti_training *t) WEFT_CHECKED;

#endif
