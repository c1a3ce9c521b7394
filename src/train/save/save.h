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
/* Collective: begins to write this step on all ranks. Fails on all alike if rank 0 cannot begin. */
weft_status wefti_training_begin_together(wefti_training *t) WEFT_CHECKED;
/* Collective, when all parts are written: rank 0 gets the sums and completes the step. */
weft_status wefti_training_sum_together(wefti_training *t) WEFT_CHECKED;

/* sliced.c: a checkpoint of which each rank writes its part into a directory of its own. */
bool wefti_training_is_sliced(const wefti_training *t);
/* Locks and cleans the directory of this rank. */
weft_status wefti_training_lock_slices(wefti_training *t) WEFT_CHECKED;
/* Collective: begins to write this step on all ranks. */
weft_status wefti_training_begin_sliced(wefti_training *t) WEFT_CHECKED;
/* Collective, when all parts are written: each rank gets the sums and completes its step. */
weft_status wefti_training_sum_sliced(wefti_training *t) WEFT_CHECKED;
/* Removes the steps that checkpoint.keep does not keep, after all ranks have the committed one. */
weft_status wefti_training_prune_slices(wefti_training *t) WEFT_CHECKED;
/* Removes this rank's part of the step that was written last: some rank has failed to write it. */
void wefti_training_remove_slices(wefti_training *t);

/* states.c: the checkpoint under way. A failure to write that all ranks have agreed on ends neither
 * the run nor earlier checkpoints: it goes to *out_unwritten, on all ranks alike. Other failures
 * are returned: the ranks are not in the same place any more. */
/* Collective: begins to write this step, after the end of the write under way. */
weft_status wefti_training_save(wefti_training *t, weft_status *out_unwritten) WEFT_CHECKED;
/* The same during a run: a failure to write becomes a note. */
weft_status wefti_training_save_meanwhile(wefti_training *t) WEFT_CHECKED;
/* Collective: waits for the write under way. */
weft_status wefti_training_finish_write(wefti_training *t, weft_status *out_unwritten) WEFT_CHECKED;
/* Once a step, on all ranks: goes on if no rank is busy. A failure to write becomes a note. */
weft_status wefti_training_poll(wefti_training *t) WEFT_CHECKED;
/* Whether this rank is busy with the write, and what all ranks have heard of each other about it.
 */
bool wefti_training_is_writing(const wefti_training *t);
void wefti_training_hear_writing(wefti_training *t, bool some_rank);
/* After a failure of the run. A write that needs ranks which may be gone is given up. */
weft_status wefti_training_end_write(wefti_training *t) WEFT_CHECKED;
/* The same before the world is mended: the step under way ends whole, or absent. True: it is the
 * run's last step, which is absent. */
bool wefti_training_cut_write(wefti_training *t);
/* Without other ranks: ends the thread that writes, and its step unless that is in place. */
void wefti_training_drop_write(wefti_training *t);

/* loop/ratings.c: checkpoint.best and train.stop_after. */
/* Whether the job asks for either. */
bool wefti_training_rates(const wefti_training *t);
/* Collective: the validation of this step has counted; rank 0's loss decides. */
weft_status wefti_training_rate(wefti_training *t, double loss) WEFT_CHECKED;
/* Whether this step is to be saved as the best one. */
bool wefti_training_is_best(const wefti_training *t);
/* The best step on the disk, this one included once it is saved; -1: none. */
int64_t wefti_training_best_step(const wefti_training *t);
void wefti_training_rated_step_is_written(wefti_training *t);
/* As notes of a checkpoint: fills at most WEFTI_RATING_NOTES pairs, with values in `texts`. */
enum { WEFTI_RATING_NOTES = 5 };
typedef struct wefti_rating_texts {
    char step[32], not_improved[32], lowest[32], best_step[32], best_loss[32];
} wefti_rating_texts;
int64_t wefti_training_note_ratings(const wefti_training *t, wefti_rating_texts *texts,
                                    wefti_checkpoint_pair *pairs);
weft_status wefti_training_read_ratings(const wefti_training *t, const wefti_checkpoint_meta *meta,
                                        wefti_training_ratings *out) WEFT_CHECKED;

/* key.c: reads the key of the job, after which files that it has encrypted can be read. Collective.
 * writes: the run will write checkpoints with it. */
weft_status wefti_training_take_key(wefti_training *t, bool writes) WEFT_CHECKED;
void wefti_training_wipe_key(wefti_training *t);

/* The note of a checkpoint that holds the fingerprint of the training data. */
#define WEFTI_TRAINING_DATA "data"

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
weft_status wefti_training_begin_write(wefti_training *t, wefti_checkpoint_duty duty) WEFT_CHECKED;
weft_status wefti_training_begin_alone(wefti_training *t) WEFT_CHECKED;
/* Waits until the model's states are captured, which the next forward pass changes. */
void wefti_training_wait_states(wefti_training *t);
/* The steps that checkpoint.keep keeps now. The next step shows whether a state is good, so one
 * more is kept until then. */
int64_t wefti_training_kept_steps(const wefti_training *t);
/* Begins to write slices, `count` tensors, with the time `now`. */
weft_status wefti_training_begin_slices(wefti_training *t, const wefti_checkpoint_slicing *slicing,
                                        const wefti_checkpoint_tensor *tensors, int64_t count,
                                        int64_t now) WEFT_CHECKED;
int64_t wefti_training_clock(void); /* seconds since 1970 */
/* A step is written: for the result, and for the caller of the run. */
void wefti_training_report_written(wefti_training *t);
const char *wefti_training_arithmetic(const wefti_training *t); /* on which the run's bits depend */
/* checkpoint.seconds: whether the state of this step is to be saved, by the clock of this rank. */
bool wefti_training_due(const wefti_training *t);

#endif
