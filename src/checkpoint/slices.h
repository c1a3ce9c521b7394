/* Slices of tensors that programs cut by hand: along which dimension each is cut, and what is said
 * of the outcome. Joining them: slices_merge.c. Cutting tensors into them: slices_split.c. */
#ifndef WEFTI_CHECKPOINT_SLICES_H
#define WEFTI_CHECKPOINT_SLICES_H

#include <stdbool.h>

#include "base/text.h"
#include "checkpoint/source.h"
#include "weft/checkpoint.h"

enum { WEFTI_CUT_NONE = -1, WEFTI_CUT_UNSAID = -2 };

/* For each tensor of `source` the dimension that it is cut along, or one of the above, into
 * `out` [count of the source]. WEFT_E_ARG for a cut that is not well formed or matches no tensor,
 * WEFT_E_SHAPE for a dimension that a tensor does not have, WEFT_E_NO_IMPL for a tensor whose
 * element type or rank weft cannot write. */
weft_status wefti_cuts_find(const wefti_source *source, const weft_checkpoint_cut *cuts, int count,
                            int *out) WEFT_CHECKED;

/* In the metadata of a slice, numbers: whose it is, and of how many that are a whole together. */
#define WEFTI_SLICE_RANK "rank"
#define WEFTI_SLICE_RANKS "ranks"
/* Whether it is one of these, which are not true of the whole. */
bool wefti_slices_own(const char *key);

/* A tensor as runs along a dimension: `outer` times `size` elements of it, of `inner` bytes each.
 */
typedef struct wefti_runs {
    int64_t outer, size, inner;
} wefti_runs;
wefti_runs wefti_runs_of(const weft_desc *desc, int dimension);

/* WEFT_E_ARG when there is something at `path` already. */
weft_status wefti_slices_check_new(const char *path) WEFT_CHECKED;

/* What became of one tensor: a line, or an element of a list. `verb`: "joined". */
void wefti_slices_tell(wefti_text *text, bool json, bool first, const wefti_safetensors_item *item,
                       const char *verb, int dimension);
/* The text, once it is whole; and, when all else went well, the caller's. */
weft_status wefti_slices_take(wefti_text *text, char **out) WEFT_CHECKED;
weft_status wefti_slices_give(weft_status status, char *text, char **out) WEFT_CHECKED;

#endif
