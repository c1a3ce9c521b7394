/* The directory of a run: names of steps, and how a step appears and disappears in one rename.
 *
 *   step-000000000100         a committed step
 *   .tmp-step-...             being written, or left by a run that was killed: removed at the next
 * start .old-step-...             a step that is being replaced by a new one of the same number:
 * put back at the next start unless the new one made it .trash-step-...           being deleted:
 * removed at the next start */
#ifndef WEFTI_CHECKPOINT_STEP_DIR_H
#define WEFTI_CHECKPOINT_STEP_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum wefti_step_kind {
    WEFTI_STEP_COMMITTED,
    WEFTI_STEP_TEMPORARY,
    WEFTI_STEP_OLD,
    WEFTI_STEP_TRASH,
    WEFTI_STEP_KINDS
} wefti_step_kind;

enum { WEFTI_STEP_NAME_BYTES = 64 };

/* "step-000000000100" and its kin into a caller's buffer; returns it. */
char *wefti_step_name(wefti_step_kind kind, int64_t step, char out[WEFTI_STEP_NAME_BYTES]);
bool wefti_step_parse(const char *name, wefti_step_kind *out_kind, int64_t *out_step);
/* DIR/<name>; wefti_free. */
weft_status wefti_step_path(const char *dir, wefti_step_kind kind, int64_t step,
                            char **out) WEFT_CHECKED;

/* Whether `path` is a step's own directory: it holds a manifest, or bears a step's name.
 * WEFT_E_NOT_FOUND when there is nothing at all. */
weft_status wefti_step_is(const char *path, bool *out) WEFT_CHECKED;

/* Steps of one kind by name alone, ascending; an absent directory has none. wefti_free. */
weft_status wefti_step_list(const char *dir, wefti_step_kind kind, int64_t **out_steps,
                            int64_t *out_count) WEFT_CHECKED;

/* Whether `path` is a step or a directory with steps; otherwise it may be a model by others, or a
 * .safetensors file. WEFT_E_NOT_FOUND for a path that can be none of these. */
weft_status wefti_step_holds(const char *path, bool *out) WEFT_CHECKED;

/* Move the finished temporary step into place, replacing a step of the same number. */
weft_status wefti_step_commit(const char *dir, int64_t step) WEFT_CHECKED;
/* Undo whatever an attempt to write this step has left: the committed step of before stands again.
 */
weft_status wefti_step_abandon(const char *dir, int64_t step) WEFT_CHECKED;
weft_status wefti_step_remove(const char *dir, int64_t step) WEFT_CHECKED;
/* Abandon and remove everything that an interrupted run has left. */
weft_status wefti_step_clean(const char *dir) WEFT_CHECKED;

#endif
