/* Fuzzes token shards of llm.c. An accepted file must be readable to the last element. */
#include <stdint.h>

#include "data/array.h"
#include "read_all.inc"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_array array;
    if (wefti_shard_parse("fuzz", data, (int64_t)size, &array) >= 0) read_all(&array);
    return 0;
}
