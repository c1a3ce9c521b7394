/* The directory of a run: names of steps, and how a step appears and disappears in one rename.
 *
 *   step-000000000100  a committed step
 *   .tmp-step-...      being written, or left by a killed run: removed at the next start
 *   .old-step-...      being replaced: put back at the next start unless the new step is in place
 *   .trash-step-...    being deleted: removed at the next start */
#ifndef WEFTI_CHECKPOINT_STEP_DIR_H
#define WEFTI_CHECKPOINT_STEP_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum wefti_step_dir_kind {
    WEFTI_STEP_COMMITTED,
    WEFTI_STEP_TEMPORARY,
    WEFTI_STEP_OLD,
    WEFTI_STEP_TRASH,
    WEFTI_STEP_KINDS
} wefti_step_dir_kind;

enum { WEFTI_STEP_NAME_BYTES = 64 };

/* "step-000000000100" or another kind's name, into a caller's buffer; returns it. */
char *wefti_step_name(wefti_step_dir_kind kind, int64_t step, char out[WEFTI_STEP_NAME_BYTES]);
bool wefti_step_parse(const char *name, wefti_step_dir_kind *out_kind, int64_t *out_step);
/* DIR/<name>; wefti_free. */
weft_status wefti_step_path(const char *dir, wefti_step_dir_kind kind, int64_t step,
                            char **out) WEFT_CHECKED;

/* Whether `path` is a step's own directory: it holds a manifest, or has a step's name.
 * WEFT_E_NOT_FOUND if `path` does not exist. */
weft_status wefti_step_is(const char *path, bool *out) WEFT_CHECKED;

/* Steps of one kind by name alone, ascending. A missing directory has none. wefti_free. */
weft_status wefti_step_list(const char *dir, wefti_step_dir_kind kind, int64_t **out_steps,
                            int64_t *out_count) WEFT_CHECKED;

/* Whether `path` is a step or a directory with steps. Otherwise it may be a foreign model directory
 * or a .safetensors file. WEFT_E_NOT_FOUND if it can be neither. */
weft_status wefti_step_holds(const char *path, bool *out) WEFT_CHECKED;

/* Moves the finished temporary step into place. Replaces a step of the same number. */
weft_status wefti_step_commit(const char *dir, int64_t step) WEFT_CHECKED;
/* Undoes a failed attempt to write this step: the committed step from before is in place again. */
weft_status wefti_step_abandon(const char *dir, int64_t step) WEFT_CHECKED;
/* The same after a failure, which stays the failure of this thread. What it cannot remove goes at
 * the next start. */
void wefti_step_undo(const char *dir, int64_t step);
weft_status wefti_step_remove(const char *dir, int64_t step) WEFT_CHECKED;
/* The step that the file `latest` names; -1: none. */
weft_status wefti_step_latest(const char *dir, int64_t *out) WEFT_CHECKED;
/* Removes the random number of wefti_checkpoint_prepare from a temporary step. */
weft_status wefti_checkpoint_remove_number(const char *temporary) WEFT_CHECKED;
/* Removes all leftovers of an interrupted run. */
weft_status wefti_step_clean(const char *dir) WEFT_CHECKED;

#endif
