/* Fuzzes IDX files, plain and in gzip. An accepted file must be readable to the last element. */
#include <stdint.h>

#include "base/memory.h"
#include "data/array.h"
#include "read_all.inc"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_array array;
    if (wefti_idx_parse("fuzz", data, (int64_t)size, &array) >= 0) read_all(&array);
    unsigned char *unpacked;
    int64_t bytes;
    if (wefti_idx_unpack("fuzz", data, (int64_t)size, &unpacked, &bytes) >= 0) {
        if (wefti_idx_parse("fuzz", unpacked, bytes, &array) >= 0) read_all(&array);
        wefti_free(unpacked);
    }
    return 0;
}
