/* Checkpoints of a training run. */
#ifndef WEFTI_TRAIN_SAVE_SAVE_H
#define WEFTI_TRAIN_SAVE_SAVE_H

#include "train/training.h"

/* world.c: gathers a checkpoint's tensors from all ranks on rank 0. Rank 0 writes while it gathers,
 * with a bounded amount of memory. */
weft_status wefti_delivery_create(int64_t count, wefti_delivery **out) WEFT_CHECKED;
/* No write under way may use it. NULL is legal. */
void wefti_delivery_destroy(wefti_delivery *d);
/* Sets the options of a write. */
void wefti_delivery_options(wefti_delivery *d, wefti_checkpoint_options *options);
/* No more tensors come: a write that still waits for one gives its step up. NULL is legal. */
void wefti_delivery_end(wefti_delivery *d);
/* Collective: sends all saved tensors to rank 0's write under way. */
weft_status wefti_training_deliver(wefti_training *t) WEFT_CHECKED;

/* save.c: checkpoints during a run. */
/* Whether the session computes products of bf16 with bf16 arithmetic, for checkpoints. */
bool wefti_training_is_native(const wefti_training *t);
weft_status wefti_training_lock(wefti_training *t) WEFT_CHECKED;
weft_status
wefti_training_bind(wefti_training *t) WEFT_CHECKED; /* lists the tensors of checkpoints */
weft_status wefti_training_restore(wefti_training *t, wefti_checkpoint *from) WEFT_CHECKED;
/* Begins to write this step, after finishing a write under way. `last`: the state is known to be
 * good, so exactly checkpoint.keep steps remain; else one more. */
weft_status wefti_training_save(wefti_training *t, bool last) WEFT_CHECKED;
/* The same during a run: a failure to write becomes a note and the run goes on. */
weft_status wefti_training_save_meanwhile(wefti_training *t) WEFT_CHECKED;
void wefti_training_poll(wefti_training *t); /* reports a completed write */
/* Waits for the write under way. */
weft_status wefti_training_finish_write(wefti_training *t) WEFT_CHECKED;

#endif
