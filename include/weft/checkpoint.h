/* Looking at checkpoints and at directories of safetensors, and joining and cutting slices, without
 * a model or a run. */
#ifndef WEFT_CHECKPOINT_H
#define WEFT_CHECKPOINT_H

#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Describe what lies at `path`: the directory of a run (its steps, and the newest good one in
 * full), one step, a Hugging Face directory, or a .safetensors file.
 *
 * @param json      0: text for people; otherwise one JSON object
 * @param out_text  owned by the caller, free with weft_checkpoint_text_free; untouched on failure
 * @return WEFT_OK; WEFT_E_NOT_FOUND when nothing of the kind is there; WEFT_E_CORRUPT; WEFT_E_IO;
 * WEFT_E_NOMEM
 */
WEFT_API weft_status weft_checkpoint_describe(const char *path, int json,
                                              char **out_text) WEFT_CHECKED;

/**
 * Read every byte at `path` (as for weft_checkpoint_describe) and check it: steps against the
 * checksums of their manifests; other safetensors against the rules of the format, as they carry no
 * checksums.
 *
 * @param out_text  a line (or JSON array element) for each step or file with its result; set
 * whenever the verification could run, also when it returns WEFT_E_CORRUPT; free with
 * weft_checkpoint_text_free
 * @return WEFT_OK when all is well; WEFT_E_CORRUPT when anything is damaged; WEFT_E_NOT_FOUND;
 * WEFT_E_IO; WEFT_E_NOMEM
 */
WEFT_API weft_status weft_checkpoint_verify(const char *path, int json,
                                            char **out_text) WEFT_CHECKED;

/** For programs whose ranks hold slices of parameters: those whose name matches `match` (*: any
 * characters, dots too; ?: one; [a-z], [!a-z]: one of, none of) are cut along `dimension`, from 0;
 * -1: not at all, each rank has the whole. What is said of a parameter is said of its optimizer's
 * tensors too, which are those of its shape whose name has one word more, behind it ("w.m") or
 * before it ("moments.w"); one of another shape is to be named itself. Of several that match, the
 * last one counts. */
typedef struct weft_checkpoint_cut {
    const char *match;
    int dimension;
} weft_checkpoint_cut;

/**
 * Join the slices of all ranks, in the order of ranks, into one .safetensors file. A slice is what
 * weft_checkpoint_describe takes; of a run its newest step, with the optimizer's state. Slices may
 * be of any sizes along the dimension that they are cut along. A tensor of which nothing is said
 * must be the same in all slices, and is written once. Texts of the files' metadata that all slices
 * have alike are kept, but for `rank` and `ranks`: slices that say so whose they are must come in
 * that order, and of those that say of how many they are one, none may be missing.
 *
 * @param path      the file to write, whole or not at all; must not exist
 * @param out_text  what became of each tensor, as text for people, or (json) one JSON object; may
 * be NULL; free with weft_checkpoint_text_free; untouched on failure
 * @return WEFT_OK; WEFT_E_SHAPE when slices do not fit each other, and WEFT_E_MISMATCH when a
 * tensor differs that is not said to be cut, both naming tensor and slices; WEFT_E_ARG for cuts
 * that match nothing, no slices, slices that are missing or of different steps, a file that exists;
 * WEFT_E_NO_IMPL for element types and numbers of dimensions that weft has not; WEFT_E_NOT_FOUND;
 * WEFT_E_CORRUPT; WEFT_E_IO; WEFT_E_NOMEM
 */
WEFT_API weft_status weft_checkpoint_merge(const char *const *slices, int slice_count,
                                           const weft_checkpoint_cut *cuts, int cut_count,
                                           const char *path, int json,
                                           char **out_text) WEFT_CHECKED;

/**
 * Cut the tensors at `path` (as a slice of weft_checkpoint_merge) for `ranks` ranks: into
 * PREFIX-rank-00000-of-00004.safetensors and so on, all of them or none. Of n elements along the
 * dimension rank r gets those from floor(r n / ranks) to floor((r + 1) n / ranks). What is not said
 * to be cut goes to every rank whole. The files' metadata has the number of the `rank`, and that of
 * all `ranks`.
 *
 * @param out_text  as of weft_checkpoint_merge
 * @return WEFT_OK; WEFT_E_SHAPE for a tensor without such a dimension; otherwise as
 * weft_checkpoint_merge
 */
WEFT_API weft_status weft_checkpoint_split(const char *path, int ranks,
                                           const weft_checkpoint_cut *cuts, int cut_count,
                                           const char *prefix, int json,
                                           char **out_text) WEFT_CHECKED;

/** Free a text of the calls above; NULL is legal. */
WEFT_API void weft_checkpoint_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
