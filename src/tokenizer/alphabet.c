/* GPT-2's alphabet of bytes. Printable Latin-1 stands for itself; the other bytes, in order, are
 * U+0100 and on. */
#include "tokenizer/alphabet.h"

#include "base/text.h"

static bool is_itself(uint32_t point) {
    return (point >= 33 && point <= 126) || (point >= 161 && point <= 172) ||
           (point >= 174 && point <= 255);
}

uint32_t wefti_alphabet_character(unsigned char byte) {
    if (is_itself(byte)) return byte;
    uint32_t rest = byte <= 32 ? byte : byte <= 160 ? byte - 94u : 67; /* 67: byte 173 */
    return 0x100 + rest;
}

static int byte_of(uint32_t point) {
    if (is_itself(point)) return (int)point;
    if (point < 0x100 || point > 0x143) return -1;
    int rest = (int)point - 0x100; /* 0 to 32, 127 to 160, 173 */
    return rest < 33 ? rest : rest < 67 ? rest + 94 : 173;
}

bool wefti_alphabet_bytes(const unsigned char *text, int64_t bytes, unsigned char *to,
                          int64_t *out) {
    int64_t used = 0;
    for (int64_t at = 0; at < bytes;) {
        uint32_t point;
        at += wefti_utf8_next(text + at, bytes - at, &point);
        int byte = byte_of(point);
        if (byte < 0) return false;
        to[used++] = (unsigned char)byte;
    }
    *out = used;
    return true;
}
