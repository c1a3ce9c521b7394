/* What the files of this folder share. */
#ifndef WEFTI_SESSION_SAVE_PARTS_H
#define WEFTI_SESSION_SAVE_PARTS_H

#include "session/save/save.h"

/* pieces.c: whether the session is of mode MANUAL, so that its own calls on whole tensors do not
 * help. */
bool wefti_saves_by_hand(const weft_session *s);

/* gather.c: gathers on rank 0 the tensors of ranks that do not see the checkpoint's directory. Rank
 * 0 writes while it gathers, with a bounded amount of memory. */
weft_status wefti_delivery_create(int64_t count, wefti_delivery **out) WEFT_CHECKED;
/* No write under way may use it. NULL is legal. */
void wefti_delivery_destroy(wefti_delivery *d);
/* Sets the options of a write. */
void wefti_delivery_options(wefti_delivery *d, wefti_checkpoint_options *options);
/* No more tensors come: a write that still waits for one gives its step up. NULL is legal. */
void wefti_delivery_end(wefti_delivery *d);
/* Collective: sends the tensors that rank 0 gathers to its write under way. */
weft_status wefti_saver_deliver(wefti_saver *v) WEFT_CHECKED;

/* together.c: one process, or all processes into files that rank 0 has created. */
weft_status wefti_saver_begin_alone(wefti_saver *v) WEFT_CHECKED;
/* Collective: begins to write this step on all ranks. Fails on all alike if rank 0 cannot begin. */
weft_status wefti_saver_begin_together(wefti_saver *v) WEFT_CHECKED;
/* Collective, when all parts are written: exchanges the sums, and completes the step. */
weft_status wefti_saver_sum(wefti_saver *v) WEFT_CHECKED;
/* Data of rank 0 for all ranks, and its failure. */
weft_status wefti_saver_broadcast(wefti_saver *v, weft_status status, void *data,
                                  size_t bytes) WEFT_CHECKED;
/* Waits until the model's states are captured, which the next forward pass changes. */
void wefti_saver_wait_states(const wefti_saver *v);

/* sliced.c: each rank writes its part into a directory of its own. */
weft_status wefti_saver_begin_sliced(wefti_saver *v) WEFT_CHECKED;
/* Removes this rank's part of the step that was written last: some rank has failed to write it. */
void wefti_saver_remove_slices(wefti_saver *v);

#endif
