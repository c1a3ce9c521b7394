/* The special tokens of a model: those that end a text. The one place that knows them, for data,
 * whose documents they divide, and for generation, which stops at them. */
#ifndef WEFTI_TOKENIZER_SPECIAL_H
#define WEFTI_TOKENIZER_SPECIAL_H

#include "base/status.h"
#include "weft/data.h"

enum { WEFTI_ENDS_MOST = 8 };

/* The first stands behind a document. */
typedef struct wefti_ends {
    int32_t ids[WEFTI_ENDS_MOST];
    int count;
} wefti_ends;

/* Reads one file of a model; NULL, or *out NULL: it is not there. The text is the caller's. */
typedef weft_status (*wefti_special_read)(void *context, const char *name, char **out,
                                          int64_t *out_bytes);
/* By eos_token of tokenizer_config.json and special_tokens_map.json, eos_token_id of
 * generation_config.json and config.json, and then by the names that tokenizers use. Tokens that
 * the tokenizer lacks do not count. */
weft_status wefti_ends_of(const weft_tokenizer *tokenizer, wefti_special_read read, void *context,
                          wefti_ends *out) WEFT_CHECKED;
/* The same by the files beside a tokenizer: `path` is its directory, or its file; NULL, "bytes" or
 * a path that is not there: by names. */
weft_status wefti_ends_beside(const weft_tokenizer *tokenizer, const char *path,
                              wefti_ends *out) WEFT_CHECKED;

#endif
