/* Checkpoints of a training run. */
#ifndef WEFTI_TRAIN_SAVE_SAVE_H
#define WEFTI_TRAIN_SAVE_SAVE_H

#include "train/training.h"

/* save.c: checkpoints during a run. The saver of the run, as the run is now. */
wefti_saver *wefti_training_saver(wefti_training *t);
/* wefti_saver_save, and wefti_saver_save_meanwhile, of the present step. Collective. */
weft_status wefti_training_save(wefti_training *t, weft_status *out_unwritten) WEFT_CHECKED;
weft_status wefti_training_save_meanwhile(wefti_training *t) WEFT_CHECKED;
/* The locks of the directory, and of the directory of this rank: wefti_saver_lock_slices. */
weft_status wefti_training_lock(wefti_training *t) WEFT_CHECKED;
weft_status wefti_training_lock_slices(wefti_training *t) WEFT_CHECKED;
/* Lists the tensors of checkpoints. */
weft_status wefti_training_bind(wefti_training *t) WEFT_CHECKED;
bool wefti_training_is_sliced(const wefti_training *t);
/* Whether this step is written, or being written. */
bool wefti_training_is_saved(const wefti_training *t);
/* The steps that stay on the disk now. The next step shows whether a state is good, so one more is
 * kept until then. */
wefti_save_keep wefti_training_keeps(const wefti_training *t);
/* Whether the session computes products of bf16 with bf16 arithmetic, for checkpoints. */
bool wefti_training_is_native(const wefti_training *t);
const char *wefti_training_arithmetic(const wefti_training *t); /* on which the run's bits depend */
/* checkpoint.seconds: whether the state of this step is to be saved, by the clock of this rank. */
bool wefti_training_due(const wefti_training *t);

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

/* The note of a checkpoint that holds the fingerprint of the training data. */
#define WEFTI_TRAINING_DATA "data"

/* restore.c */
/* Collective in a world. `c`: rank 0's checkpoint; NULL on the others. WEFT_E_CORRUPT on all ranks
 * if tensors are damaged: the session then holds a mixture, and an older step can be restored. */
weft_status wefti_training_restore(wefti_training *t, wefti_checkpoint *c) WEFT_CHECKED;

#endif
