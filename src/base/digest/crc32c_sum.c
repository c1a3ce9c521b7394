/* CRC32C of a message of which several processes hold ranges. See digest.h.
 *
 * A checksum is linear over GF(2): the remainder of a message is the sum (XOR) of the remainders of
 * its ranges, each multiplied by x^(8 n) for the n bytes that follow the range. Starting from ones
 * instead of zeros adds ones multiplied by x^(8 bytes). Source of the arithmetic: M. Adler's
 * description of crc32_combine in zlib. */
#include "base/digest/digest.h"

/* Polynomials modulo P of degree below 32, reflected: the highest bit is the coefficient of 1. */
enum { ONE_SHIFT = 31, X8_SHIFT = 23 };
static const uint32_t polynomial = 0x82f63b78u;

static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a >> ONE_SHIFT) product ^= b;
        b = b & 1 ? b >> 1 ^ polynomial : b >> 1;
    }
    return product;
}

/* x^(8 bytes) */
static uint32_t power(uint64_t bytes) {
    uint32_t result = 1u << ONE_SHIFT, square = 1u << X8_SHIFT;
    for (; bytes; bytes >>= 1) {
        if (bytes & 1) result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

/* Multiplies the sum by x^(8 bytes). Ranges of one region lie at few different distances, so the
 * last two factors are kept. */
static void advance(wefti_crc_sum *s, int64_t bytes) {
    if (bytes == 0 || s->sum == 0) return;
    int which = bytes == s->distance[0] ? 0 : 1;
    if (bytes != s->distance[which]) {
        s->distance[1] = s->distance[0];
        s->factor[1] = s->factor[0];
        s->distance[0] = bytes;
        s->factor[0] = power((uint64_t)bytes);
        which = 0;
    }
    s->sum = multiply(s->sum, s->factor[which]);
}

void wefti_crc_sum_add(wefti_crc_sum *s, int64_t at, const void *data, size_t bytes) {
    advance(s, at + (int64_t)bytes - s->end);
    s->sum ^= ~wefti_crc32c(0xffffffffu, data, bytes); /* begins with zeros */
    s->end = at + (int64_t)bytes;
}

uint32_t wefti_crc_sum_of(wefti_crc_sum *s, int64_t message_bytes) {
    advance(s, message_bytes - s->end);
    s->end = message_bytes;
    return s->sum;
}

uint32_t wefti_crc32c_of_sums(uint32_t sums, int64_t message_bytes) {
    return ~(sums ^ multiply(power((uint64_t)message_bytes), 0xffffffffu));
}
