/* Fuzzes tokenizer.json. An accepted tokenizer must encode any text, with no error but a byte
 * missing from the vocabulary, and decode the result. The text to encode is the file itself. */
#include <stdint.h>
#include <stdlib.h>

#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    weft_tokenizer *t;
    if (wefti_tokenizer_parse("fuzz", (const char *)data, (int64_t)size, &t) < 0) return 0;
    int64_t room = -1, count, bytes;
    /* a first call without room returns the number of tokens */
    weft_status status =
        weft_tokenizer_encode(t, (const char *)data, (int64_t)size, NULL, 0, &room);
    if (room < 0 && status != WEFT_E_ARG) abort();
    int32_t *ids = malloc((size_t)(room < 0 ? 0 : room) * sizeof *ids + 4);
    if (!ids) abort();
    if (room >= 0)
        status = weft_tokenizer_encode(t, (const char *)data, (int64_t)size, ids, room, &count);
    if (status >= 0) {
        bytes = -1; /* a first call without room returns the length of the text */
        status = weft_tokenizer_decode(t, ids, count, NULL, 0, &bytes);
        if (bytes < 0 || (status >= 0) != (bytes == 0)) abort();
        char *text = malloc((size_t)bytes + 1);
        if (!text || weft_tokenizer_decode(t, ids, count, text, bytes, &bytes) < 0) abort();
        free(text);
    } else if (status != WEFT_E_ARG) {
        abort();
    }
    free(ids);
    weft_tokenizer_close(t);
    return 0;
}
