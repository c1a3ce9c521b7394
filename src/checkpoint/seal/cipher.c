/* The cipher and the derivation of keys, by OpenSSL: see seal.h and derive.h. */
#include <string.h>

#include "base/memory.h"
#include "checkpoint/seal/derive.h"

#ifdef WEFT_HAVE_OPENSSL

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

enum { NONCE_BYTES = 12, INFO_MOST = 512 };

bool wefti_seal_is_built(void) {
    return true;
}

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

/* ---- frames ---- */

struct wefti_seal_cipher {
    EVP_CIPHER_CTX *context;
    const wefti_seal *seal;
    bool keyed; /* the context has the key: only nonces follow */
};

weft_status wefti_seal_cipher_open(const wefti_seal *seal, wefti_seal_cipher **out) {
    wefti_seal_cipher *c;
    WEFT_NEW(c, wefti_seal_cipher);
    c->seal = seal;
    c->context = EVP_CIPHER_CTX_new();
    if (!c->context) {
        wefti_free(c);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a cipher");
    }
    *out = c;
    return WEFT_OK;
}

void wefti_seal_cipher_close(wefti_seal_cipher *cipher) {
    if (!cipher) return;
    EVP_CIPHER_CTX_free(cipher->context);
    wefti_free(cipher);
}

/* The nonce is the number of the frame. The header is authenticated with each frame. */
static bool begin(wefti_seal_cipher *c, int64_t frame, bool encrypt) {
    unsigned char nonce[NONCE_BYTES] = {0};
    int none;
    for (int i = 0; i < 8; i++)
        nonce[NONCE_BYTES - 1 - i] = (unsigned char)((uint64_t)frame >> 8 * i);
    if (!c->keyed)
        c->keyed = EVP_CipherInit_ex(c->context, EVP_aes_256_gcm(), NULL, c->seal->key, NULL,
                                     encrypt) == 1;
    return c->keyed && EVP_CipherInit_ex(c->context, NULL, NULL, NULL, nonce, encrypt) &&
           EVP_CipherUpdate(c->context, NULL, &none, c->seal->header, WEFTI_SEAL_HEADER_BYTES);
}

weft_status wefti_seal_close_frame(wefti_seal_cipher *cipher, int64_t frame, unsigned char *data) {
    const int bytes = (int)wefti_seal_frame_bytes(cipher->seal, frame);
    int used = 0, rest = 0;
    const bool good = begin(cipher, frame, true) &&
                      (!bytes || EVP_CipherUpdate(cipher->context, data, &used, data, bytes)) &&
                      EVP_CipherFinal_ex(cipher->context, data + bytes, &rest) &&
                      EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_GCM_GET_TAG,
                                          WEFTI_SEAL_TAG_BYTES, data + bytes);
    WEFT_REQUIRE(good && used == bytes && !rest, WEFT_E_IO, "OpenSSL has no AES-256-GCM");
    return WEFT_OK;
}

bool wefti_seal_open_frame(wefti_seal_cipher *cipher, int64_t frame, const unsigned char *data,
                           unsigned char *to) {
    const int bytes = (int)wefti_seal_frame_bytes(cipher->seal, frame);
    unsigned char tag[WEFTI_SEAL_TAG_BYTES], end[WEFTI_SEAL_TAG_BYTES];
    int used = 0, rest = 0;
    memcpy(tag, data + bytes, sizeof tag);
    const bool good = begin(cipher, frame, false) &&
                      (!bytes || EVP_CipherUpdate(cipher->context, to, &used, data, bytes)) &&
                      EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_GCM_SET_TAG, sizeof tag, tag) &&
                      EVP_CipherFinal_ex(cipher->context, end, &rest) && used == bytes;
    if (!good && bytes) memset(to, 0, (size_t)bytes);
    return good;
}

#else

bool wefti_seal_is_built(void) {
    return false;
}

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

weft_status wefti_seal_cipher_open(const wefti_seal *seal, wefti_seal_cipher **out) {
    (void)seal, (void)out;
    return refuse();
}

void wefti_seal_cipher_close(wefti_seal_cipher *cipher) {
    (void)cipher;
}

weft_status wefti_seal_close_frame(wefti_seal_cipher *cipher, int64_t frame, unsigned char *data) {
    (void)cipher, (void)frame, (void)data;
    return refuse();
}

bool wefti_seal_open_frame(wefti_seal_cipher *cipher, int64_t frame, const unsigned char *data,
                           unsigned char *to) {
    (void)cipher, (void)frame, (void)data, (void)to;
    return false;
}

#endif
