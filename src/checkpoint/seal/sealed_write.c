/* Writes encrypted files: see seal.h. */
#include <string.h>

#include "base/memory.h"
#include "checkpoint/seal/derive.h"

struct wefti_sealer {
    wefti_seal seal;
    wefti_seal_cipher *cipher;
    int64_t at;            /* plain bytes so far */
    unsigned char frame[]; /* the frame in hand, and its tag */
};

weft_status wefti_sealer_open(wefti_seal *seal, wefti_sealer **out) {
    wefti_sealer *s = wefti_calloc(1, sizeof *s + (size_t)seal->frame_bytes + WEFTI_SEAL_TAG_BYTES);
    weft_status status = s ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to encrypt a file");
    if (s) s->seal = *seal;
    if (s) status = wefti_seal_cipher_open(&s->seal, &s->cipher);
    wefti_seal_wipe(seal);
    if (status < 0) {
        wefti_sealer_close(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

void wefti_sealer_close(wefti_sealer *sealer) {
    if (!sealer) return;
    wefti_seal_cipher_close(sealer->cipher);
    wefti_seal_wipe(&sealer->seal);
    wefti_free(sealer);
}

static weft_status write_frame(wefti_sealer *s, wefti_bulk *file, int64_t frame) {
    const int64_t bytes = wefti_seal_frame_bytes(&s->seal, frame);
    WEFT_TRY(wefti_seal_close_frame(s->cipher, frame, s->frame));
    return wefti_bulk_write(file, s->frame, (size_t)bytes + WEFTI_SEAL_TAG_BYTES);
}

weft_status wefti_sealer_write(wefti_sealer *sealer, wefti_bulk *file, int64_t at, const void *data,
                               size_t bytes) {
    const unsigned char *from = data;
    wefti_sealer *s = sealer;
    WEFT_REQUIRE(at == s->at && (int64_t)bytes <= s->seal.bytes - at, WEFT_E_BUG,
                 "an encrypted file of %lld bytes is written at byte %lld after byte %lld",
                 (long long)s->seal.bytes, (long long)at, (long long)s->at);
    if (at == 0 && bytes) WEFT_TRY(wefti_bulk_write(file, s->seal.header, WEFTI_SEAL_HEADER_BYTES));
    while (bytes) {
        const int64_t frame = s->at / s->seal.frame_bytes, used = s->at % s->seal.frame_bytes,
                      whole = wefti_seal_frame_bytes(&s->seal, frame);
        const size_t left = (size_t)(whole - used), n = bytes < left ? bytes : left;
        memcpy(s->frame + used, from, n);
        s->at += (int64_t)n;
        from += n;
        bytes -= n;
        if (n == left) WEFT_TRY(write_frame(s, file, frame));
    }
    return WEFT_OK;
}

weft_status wefti_seal_text(wefti_seal *seal, const void *data, unsigned char **out,
                            int64_t *out_bytes) {
    const int64_t bytes = wefti_seal_file_bytes(seal->bytes, seal->frame_bytes);
    unsigned char *text = wefti_alloc((size_t)bytes);
    wefti_seal_cipher *cipher = NULL;
    weft_status status = text ? wefti_seal_cipher_open(seal, &cipher)
                              : WEFT_RAISE(WEFT_E_NOMEM, "no memory to encrypt a text");
    if (status >= 0) memcpy(text, seal->header, WEFTI_SEAL_HEADER_BYTES);
    for (int64_t i = 0; i < seal->frames && status >= 0; i++) {
        unsigned char *to = text + wefti_seal_frame_at(seal, i);
        const size_t n = (size_t)wefti_seal_frame_bytes(seal, i);
        if (n) memcpy(to, (const char *)data + i * seal->frame_bytes, n);
        status = wefti_seal_close_frame(cipher, i, to);
    }
    wefti_seal_cipher_close(cipher);
    wefti_seal_wipe(seal);
    if (status < 0) {
        wefti_free(text);
        return status;
    }
    *out = text;
    *out_bytes = bytes;
    return WEFT_OK;
}
