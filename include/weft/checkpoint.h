/* Looking at checkpoints and at directories of safetensors, without a model or a run. */
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

/** Free a text of the two calls above; NULL is legal. */
WEFT_API void weft_checkpoint_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
