/* Keys, proofs and tags of authenticated messages: AES-256-GMAC and HMAC-SHA256 of OpenSSL. */
#include "comm/transport/mac.h"

#include <string.h>

#ifdef WEFT_HAVE_OPENSSL
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/io.h"

weft_status wefti_mac_prove(const unsigned char key[WEFTI_MAC_KEY], const char *what,
                            const wefti_mac_hello *hello, unsigned char out[WEFTI_MAC_PROOF]) {
    unsigned char text[16 + 2 * WEFTI_MAC_NONCE + 12] = {0};
    unsigned bytes = 0;
    memcpy(text, what, strlen(what)); /* at most 15 */
    memcpy(text + 16, hello->listener, WEFTI_MAC_NONCE);
    memcpy(text + 16 + WEFTI_MAC_NONCE, hello->connector, WEFTI_MAC_NONCE);
    wefti_put_number(text + 16 + 2 * WEFTI_MAC_NONCE, (uint32_t)hello->rank, 4);
    wefti_put_number(text + 20 + 2 * WEFTI_MAC_NONCE, (uint32_t)hello->peer, 4);
    wefti_put_number(text + 24 + 2 * WEFTI_MAC_NONCE, (uint32_t)hello->stream, 4);
    bool good = HMAC(EVP_sha256(), key, WEFTI_MAC_KEY, text, sizeof text, out, &bytes) != NULL;
    WEFT_REQUIRE(good && bytes == WEFTI_MAC_PROOF, WEFT_E_NOMEM, "OpenSSL cannot compute an HMAC");
    return WEFT_OK;
}

void wefti_mac_write_answer(const wefti_mac_hello *hello, unsigned char out[WEFTI_MAC_ANSWER]) {
    memcpy(out, hello->connector, WEFTI_MAC_NONCE);
    wefti_put_number(out + WEFTI_MAC_NONCE, (uint32_t)hello->rank, 4);
    wefti_put_number(out + WEFTI_MAC_NONCE + 4, (uint32_t)hello->peer, 4);
    wefti_put_number(out + WEFTI_MAC_NONCE + 8, (uint32_t)hello->stream, 4);
}

void wefti_mac_read_answer(const unsigned char answer[WEFTI_MAC_ANSWER], wefti_mac_hello *out) {
    memcpy(out->connector, answer, WEFTI_MAC_NONCE);
    out->rank = (int32_t)wefti_get_number(answer + WEFTI_MAC_NONCE, 4);
    out->peer = (int32_t)wefti_get_number(answer + WEFTI_MAC_NONCE + 4, 4);
    out->stream = (int32_t)wefti_get_number(answer + WEFTI_MAC_NONCE + 8, 4);
}

bool wefti_mac_equal(const unsigned char *a, const unsigned char *b, size_t bytes) {
    return CRYPTO_memcmp(a, b, bytes) == 0;
}

weft_status wefti_mac_random(void *out, size_t bytes) {
    WEFT_REQUIRE(RAND_bytes(out, (int)bytes) == 1, WEFT_E_IO, "OpenSSL has no random numbers");
    return WEFT_OK;
}

weft_status wefti_mac_direction_open(wefti_mac_direction *s,
                                     const unsigned char key[WEFTI_MAC_PROOF]) {
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    *s = (wefti_mac_direction){.cipher = c};
    WEFT_REQUIRE(c && EVP_EncryptInit_ex(c, EVP_aes_256_gcm(), NULL, key, NULL) == 1, WEFT_E_NOMEM,
                 "OpenSSL cannot set up AES-256-GCM");
    return WEFT_OK;
}

void wefti_mac_direction_close(wefti_mac_direction *s) {
    EVP_CIPHER_CTX_free(s->cipher);
    *s = (wefti_mac_direction){0};
}

weft_status wefti_mac_sign(wefti_mac_direction *s, const unsigned char *header, const void *body,
                           size_t bytes, unsigned char out[WEFTI_MAC_TAG]) {
    EVP_CIPHER_CTX *c = s->cipher;
    unsigned char nonce[12] = {0};
    int length = 0;
    wefti_put_number(nonce + 4, s->number++, 8);
    bool good = EVP_EncryptInit_ex(c, NULL, NULL, NULL, nonce) == 1 &&
                EVP_EncryptUpdate(c, NULL, &length, header, WEFTI_MAC_HEADER) == 1 &&
                (bytes == 0 || EVP_EncryptUpdate(c, NULL, &length, body, (int)bytes) == 1) &&
                EVP_EncryptFinal_ex(c, out, &length) == 1 &&
                EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, WEFTI_MAC_TAG, out) == 1;
    WEFT_REQUIRE(good, WEFT_E_IO, "OpenSSL cannot sign a message");
    return WEFT_OK;
}
#endif
