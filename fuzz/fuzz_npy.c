/* Fuzzes npy files. An accepted file must be readable to the last element. */
#include <stdint.h>

#include "data/array.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const wefti_array *array) {
    enum { PIECE = 256 };
    float scaled[PIECE];
    int32_t tokens[PIECE];
    for (int64_t at = 0; at < array->elems; at += PIECE) {
        int64_t count = array->elems - at < PIECE ? array->elems - at : PIECE;
        wefti_array_scaled(array, at, count, scaled);
        if (wefti_element_is_integer(array->element)) wefti_array_tokens(array, at, count, tokens);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_array array;
    if (wefti_npy_parse("fuzz", data, (int64_t)size, &array) >= 0) read_all(&array);
    return 0;
}
