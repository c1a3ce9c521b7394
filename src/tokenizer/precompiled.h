/* The normalizer Precompiled: sentencepiece's rules of characters, as a double-array trie. */
#ifndef WEFTI_TOKENIZER_PRECOMPILED_H
#define WEFTI_TOKENIZER_PRECOMPILED_H

#include <stdint.h>

#include "base/memory.h"
#include "base/text.h"

typedef struct wefti_precompiled wefti_precompiled;

/* Reads precompiled_charsmap, which is base64. The result lives in `arena`. WEFT_E_CORRUPT: it is
 * damaged. */
weft_status wefti_precompiled_read(wefti_arena *arena, const char *charsmap,
                                   const wefti_precompiled **out) WEFT_CHECKED;
/* Appends the normalised text. */
void wefti_precompiled_apply(const wefti_precompiled *rules, const unsigned char *text,
                             int64_t bytes, wefti_text *out);

#endif
