/* The cipher and the derivation of keys, by OpenSSL: see seal.h and derive.h. */
#include <string.h>

#include "base/gcm/gcm.h"
#include "base/memory.h"
#include "checkpoint/seal/derive.h"

#ifdef WEFT_HAVE_OPENSSL

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

enum { INFO_MOST = 512 };

/* The first and only block of HKDF: 32 bytes. */
static weft_status derive(const unsigned char *key, const unsigned char *salt, const char *label,
                          const char *name, unsigned char out[WEFTI_KEY_BYTES]) {
    unsigned char middle[WEFTI_KEY_BYTES], info[INFO_MOST];
    const size_t first = strlen(label) + 1, second = strlen(name);
    WEFT_REQUIRE(first + second < sizeof info, WEFT_E_ARG, "the name %.100s... is too long", name);
    memcpy(info, label, first); /* with its NUL */
    memcpy(info + first, name, second);
    info[first + second] = 1;
    const bool good =
        HMAC(EVP_sha256(), salt, WEFTI_SEAL_SALT_BYTES, key, WEFTI_KEY_BYTES, middle, NULL) &&
        HMAC(EVP_sha256(), middle, sizeof middle, info, first + second + 1, out, NULL);
    OPENSSL_cleanse(middle, sizeof middle);
    WEFT_REQUIRE(good, WEFT_E_IO, "OpenSSL has no HMAC with SHA-256");
    return WEFT_OK;
}

weft_status wefti_derive_number(const unsigned char key[WEFTI_KEY_BYTES], uint64_t *out) {
    static const unsigned char none[WEFTI_SEAL_SALT_BYTES];
    unsigned char bytes[WEFTI_KEY_BYTES];
    WEFT_TRY(derive(key, none, "weft checkpoint key", "", bytes));
    *out = 0;
    for (int i = 0; i < 8; i++) *out = *out << 8 | bytes[i];
    return WEFT_OK;
}

weft_status wefti_derive_file(const unsigned char key[WEFTI_KEY_BYTES],
                              const unsigned char salt[WEFTI_SEAL_SALT_BYTES], const char *name,
                              unsigned char out[WEFTI_KEY_BYTES]) {
    return derive(key, salt, "weft checkpoint file", name, out);
}

#else

static weft_status refuse(void) {
    WEFT_FAIL(WEFT_E_NO_IMPL, "this weft was built without OpenSSL");
}

weft_status wefti_derive_number(const unsigned char key[WEFTI_KEY_BYTES], uint64_t *out) {
    (void)key, (void)out;
    return refuse();
}

weft_status wefti_derive_file(const unsigned char key[WEFTI_KEY_BYTES],
                              const unsigned char salt[WEFTI_SEAL_SALT_BYTES], const char *name,
                              unsigned char out[WEFTI_KEY_BYTES]) {
    (void)key, (void)salt, (void)name, (void)out;
    return refuse();
}

#endif

/* ---- frames ---- */

struct wefti_seal_cipher {
    wefti_gcm *gcm;
    const wefti_seal *seal;
};

weft_status wefti_seal_cipher_open(const wefti_seal *seal, wefti_seal_cipher **out) {
    wefti_seal_cipher *c;
    WEFT_NEW(c, wefti_seal_cipher);
    c->seal = seal;
    weft_status status = wefti_gcm_open(seal->key, &c->gcm);
    if (status < 0) {
        wefti_free(c);
        return status;
    }
    *out = c;
    return WEFT_OK;
}

void wefti_seal_cipher_close(wefti_seal_cipher *cipher) {
    if (!cipher) return;
    wefti_gcm_close(cipher->gcm);
    wefti_free(cipher);
}

/* The nonce is the number of the frame. The header is authenticated with each frame. */
static wefti_gcm_text text_of(const wefti_seal_cipher *c, int64_t frame, const unsigned char *from,
                              unsigned char *to) {
    return (wefti_gcm_text){.nonce = (uint64_t)frame,
                            .extra = c->seal->header,
                            .extra_bytes = WEFTI_SEAL_HEADER_BYTES,
                            .from = from,
                            .to = to,
                            .bytes = (int)wefti_seal_frame_bytes(c->seal, frame)};
}

weft_status wefti_seal_close_frame(wefti_seal_cipher *cipher, int64_t frame, unsigned char *data) {
    const wefti_gcm_text text = text_of(cipher, frame, data, data);
    WEFT_REQUIRE(wefti_gcm_encrypt(cipher->gcm, &text, data + text.bytes), WEFT_E_IO,
                 "OpenSSL has no AES-256-GCM");
    return WEFT_OK;
}

bool wefti_seal_open_frame(wefti_seal_cipher *cipher, int64_t frame, const unsigned char *data,
                           unsigned char *to) {
    const wefti_gcm_text text = text_of(cipher, frame, data, to);
    return wefti_gcm_decrypt(cipher->gcm, &text, data + text.bytes);
}
