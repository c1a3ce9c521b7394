/* Digests of data that must be equal, also in other processes. 64 bits: no protection against
 * deliberate collisions. */
#ifndef WEFTI_DIGEST_H
#define WEFTI_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t wefti_digest_number(uint64_t digest, uint64_t value) {
    digest = (digest ^ value) * 0x9E3779B97F4A7C15u;
    return digest ^ digest >> 29;
}

static inline uint64_t wefti_digest_bytes(uint64_t digest, const void *data, size_t bytes) {
    uint64_t word;
    digest = wefti_digest_number(digest, bytes);
    for (; bytes >= sizeof word; bytes -= sizeof word, data = (const char *)data + sizeof word) {
        memcpy(&word, data, sizeof word);
        digest = wefti_digest_number(digest, word);
    }
    word = 0;
    memcpy(&word, data, bytes);
    return wefti_digest_number(digest, word);
}

static inline uint64_t wefti_digest_text(uint64_t digest, const char *text) {
    return wefti_digest_bytes(digest, text ? text : "", text ? strlen(text) : 0);
}

static inline uint64_t wefti_digest_real(uint64_t digest, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return wefti_digest_number(digest, bits);
}

/* CRC32C (Castagnoli polynomial 0x1EDC6F41, reflected): the checksum of everything that a
 * checkpoint holds. Source of the parameters: RFC 3720, section 12.1 and appendix B.4. Processors
 * with SSE4.2 compute it at memory speed; the code checks for SSE4.2 at run time. */
/* Extends the checksum `crc` of earlier bytes by `data`. Start with 0. */
uint32_t wefti_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same without special instructions: the oracle of the tests. */
uint32_t wefti_crc32c_plain(uint32_t crc, const void *data, size_t bytes);

/* The checksum of a message of which several processes hold ranges. Each process adds its ranges,
 * in ascending order and each once, to a sum that begins zero-initialised. The XOR of the sums of
 * all processes gives the CRC32C of the message. */
typedef struct wefti_crc_sum {
    uint32_t sum;
    int64_t end;         /* of the last range */
    int64_t distance[2]; /* the last two distances, and their factors */
    uint32_t factor[2];
} wefti_crc_sum;
/* Adds the range of `bytes` bytes that begins at byte `at` of the message. */
void wefti_crc_sum_add(wefti_crc_sum *s, int64_t at, const void *data, size_t bytes);
/* Ends the sum. The message has `message_bytes` bytes. */
uint32_t wefti_crc_sum_of(wefti_crc_sum *s, int64_t message_bytes);
/* The checksum of the message, from the XOR of all sums. */
uint32_t wefti_crc32c_of_sums(uint32_t sums, int64_t message_bytes);

#endif
