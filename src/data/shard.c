/* llm.c token shards: 256 little-endian 32-bit words (magic, version, count of tokens, zeros), then
 * the tokens. */
#include <string.h>

#include "data/array.h"

enum {
    SHARD_HEADER_BYTES = WEFTI_ARRAY_HEADER_BYTES,
    MAGIC_GPT2 = 20240520,   /* version 1: tokens of 16 bits */
    MAGIC_LLAMA3 = 20240801, /* version 7: tokens of 32 bits */
};

weft_status wefti_shard_parse(const char *path, const unsigned char *bytes, int64_t count,
                              wefti_array *out) {
    WEFT_TRY(wefti_array_refuse(path, WEFTI_ARRAY_SHARD, bytes, count));
    WEFT_REQUIRE(count >= SHARD_HEADER_BYTES, WEFT_E_CORRUPT,
                 "%s: %lld bytes are too few for the %d bytes of a token shard's header", path,
                 (long long)count, SHARD_HEADER_BYTES);
    int32_t words[3];
    memcpy(words, bytes, sizeof words);
    wefti_array array = {
        .rank = 1, .offset = SHARD_HEADER_BYTES, .data = bytes + SHARD_HEADER_BYTES};
    int version;
    switch (words[0]) {
    case MAGIC_GPT2:
        array.element = WEFTI_ELEMENT_U16;
        version = 1;
        break;
    case MAGIC_LLAMA3:
        array.element = WEFTI_ELEMENT_U32;
        version = 7;
        break;
    default:
        WEFT_FAIL(WEFT_E_CORRUPT,
                  "%s: not a token shard: it begins with the number %d, not %d or %d", path,
                  words[0], MAGIC_GPT2, MAGIC_LLAMA3);
    }
    WEFT_REQUIRE(words[1] == version, WEFT_E_NO_IMPL,
                 "%s: byte 4 gives version %d; shards that begin with %d have version %d", path,
                 words[1], words[0], version);
    int64_t bytes_each = wefti_element_bytes(array.element);
    int64_t there = (count - SHARD_HEADER_BYTES) / bytes_each;
    WEFT_REQUIRE(
        words[2] >= 0 && words[2] == there && (count - SHARD_HEADER_BYTES) % bytes_each == 0,
        WEFT_E_CORRUPT, "%s: byte 8 promises %d tokens of %lld bytes, but %lld bytes follow", path,
        words[2], (long long)bytes_each, (long long)(count - SHARD_HEADER_BYTES));
    array.elems = array.shape[0] = words[2];
    *out = array;
    return WEFT_OK;
}
