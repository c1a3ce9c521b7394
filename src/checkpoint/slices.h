/* Slices of tensors that programs split by hand: the dimension of each split, and reports. Joining
 * slices: slices_merge.c. Splitting tensors: slices_split.c. */
#ifndef WEFTI_CHECKPOINT_SLICES_H
#define WEFTI_CHECKPOINT_SLICES_H

#include <stdbool.h>

#include "base/text.h"
#include "checkpoint/source.h"
#include "weft/checkpoint.h"

enum { WEFTI_SLICE_NONE = -1, WEFTI_SLICE_UNSAID = -2 };

/* For each tensor of `source` the dimension along which it is split, or one of the values above,
 * into `out` [count of the source]. WEFT_E_ARG for a rule that is malformed or matches no tensor;
 * WEFT_E_SHAPE for a dimension that a tensor does not have; WEFT_E_NO_IMPL for a tensor whose
 * element type or rank weft cannot write. */
weft_status wefti_slices_dimensions(const wefti_source *source,
                                    const weft_checkpoint_slice_rule *rules, int count,
                                    int *out) WEFT_CHECKED;

/* Metadata of a slice, numbers: its rank, and the number of slices of the whole. */
#define WEFTI_SLICE_RANK "rank"
#define WEFTI_SLICE_RANKS "ranks"
/* Whether a key is one of these. They do not hold for the whole tensor. */
bool wefti_slices_own(const char *key);

/* A tensor as runs along a dimension: `outer` times `size` elements of `inner` bytes each. */
typedef struct wefti_runs {
    int64_t outer, size, inner;
} wefti_runs;
wefti_runs wefti_runs_of(const weft_desc *desc, int dimension);

/* WEFT_E_ARG if `path` exists already. */
weft_status wefti_slices_check_new(const char *path) WEFT_CHECKED;

/* The report on one tensor: a line, or an element of a list. `verb`: "joined". */
void wefti_slices_tell(wefti_text *text, bool json, bool first, const wefti_safetensors_item *item,
                       const char *verb, int dimension);
/* Completes the text. After success it goes to the caller. */
weft_status wefti_slices_take(wefti_text *text, char **out) WEFT_CHECKED;
weft_status wefti_slices_give(weft_status status, char *text, char **out) WEFT_CHECKED;

#endif
