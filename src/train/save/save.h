/* Checkpoints of a training run. */
#ifndef WEFTI_TRAIN_SAVE_SAVE_H
#define WEFTI_TRAIN_SAVE_SAVE_H

#include "train/training.h"

/* world.c: the tensors of a checkpoint from all ranks to rank 0, which writes them while it
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

#endif
