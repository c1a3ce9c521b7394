/* Keys, proofs and tags of connections: AES-256-GMAC and HMAC-SHA256 of OpenSSL. */
#include "comm/connection/inside.h"

#include <string.h>

#ifdef WEFT_HAVE_OPENSSL
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/io.h"

/* 12 bytes: two numbers, the stream, two roles. */
static void write_sides(const wefti_conn_hello *hello, unsigned char *out) {
    wefti_put_number(out, (uint32_t)hello->from.number, 4);
    wefti_put_number(out + 4, (uint32_t)hello->to.number, 4);
    out[8] = hello->stream;
    out[9] = hello->from.role;
    out[10] = hello->to.role;
    out[11] = 0;
}

weft_status wefti_conn_prove(const unsigned char key[WEFTI_CONN_KEY], const char *what,
                             const wefti_conn_hello *hello, unsigned char out[WEFTI_CONN_PROOF]) {
    unsigned char text[16 + 2 * WEFTI_CONN_NONCE + 12] = {0};
    unsigned bytes = 0;
    memcpy(text, what, strlen(what)); /* at most 15 */
    memcpy(text + 16, hello->listener, WEFTI_CONN_NONCE);
    memcpy(text + 16 + WEFTI_CONN_NONCE, hello->connector, WEFTI_CONN_NONCE);
    write_sides(hello, text + 16 + 2 * WEFTI_CONN_NONCE);
    bool good = HMAC(EVP_sha256(), key, WEFTI_CONN_KEY, text, sizeof text, out, &bytes) != NULL;
    WEFT_REQUIRE(good && bytes == WEFTI_CONN_PROOF, WEFT_E_NOMEM, "OpenSSL cannot compute an HMAC");
    return WEFT_OK;
}

void wefti_conn_write_answer(const wefti_conn_hello *hello, unsigned char out[WEFTI_CONN_ANSWER]) {
    memcpy(out, hello->connector, WEFTI_CONN_NONCE);
    write_sides(hello, out + WEFTI_CONN_NONCE);
}

static void read_answer(const unsigned char answer[WEFTI_CONN_ANSWER], wefti_conn_hello *out) {
    const unsigned char *sides = answer + WEFTI_CONN_NONCE;
    memcpy(out->connector, answer, WEFTI_CONN_NONCE);
    out->from = (wefti_conn_side){(int32_t)wefti_get_number(sides, 4), sides[9]};
    out->to = (wefti_conn_side){(int32_t)wefti_get_number(sides + 4, 4), sides[10]};
    out->stream = sides[8]; /* the last byte is 0 if the proof is right */
}

bool wefti_conn_equal(const unsigned char *a, const unsigned char *b, size_t bytes) {
    return CRYPTO_memcmp(a, b, bytes) == 0;
}

weft_status wefti_conn_judge(const unsigned char key[WEFTI_CONN_KEY],
                             const unsigned char answer[WEFTI_CONN_ANSWER], wefti_conn_hello *hello,
                             wefti_conn_verdict *out) {
    unsigned char proof[WEFTI_CONN_PROOF];
    read_answer(answer, hello);
    WEFT_TRY(wefti_conn_prove(key, "connect", hello, proof));
    bool good = wefti_conn_equal(proof, answer + WEFTI_CONN_PROOF_AT, sizeof proof);
    *out = good ? WEFTI_CONN_KNOWN : WEFTI_CONN_STRANGER;
    return WEFT_OK;
}

weft_status wefti_conn_random(void *out, size_t bytes) {
    WEFT_REQUIRE(RAND_bytes(out, (int)bytes) == 1, WEFT_E_IO, "OpenSSL has no random numbers");
    return WEFT_OK;
}

weft_status wefti_conn_direction_open(wefti_conn_direction *s,
                                      const unsigned char key[WEFTI_CONN_PROOF]) {
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    *s = (wefti_conn_direction){.cipher = c};
    WEFT_REQUIRE(c && EVP_EncryptInit_ex(c, EVP_aes_256_gcm(), NULL, key, NULL) == 1, WEFT_E_NOMEM,
                 "OpenSSL cannot set up AES-256-GCM");
    return WEFT_OK;
}

void wefti_conn_direction_close(wefti_conn_direction *s) {
    EVP_CIPHER_CTX_free(s->cipher);
    *s = (wefti_conn_direction){0};
}

weft_status wefti_conn_sign(wefti_conn_direction *s, const unsigned char *header, const void *body,
                            size_t bytes, unsigned char out[WEFTI_CONN_TAG]) {
    EVP_CIPHER_CTX *c = s->cipher;
    unsigned char nonce[12] = {0};
    int length = 0;
    wefti_put_number(nonce + 4, s->number++, 8);
    bool good = EVP_EncryptInit_ex(c, NULL, NULL, NULL, nonce) == 1 &&
                EVP_EncryptUpdate(c, NULL, &length, header, WEFTI_CONN_HEADER) == 1 &&
                (bytes == 0 || EVP_EncryptUpdate(c, NULL, &length, body, (int)bytes) == 1) &&
                EVP_EncryptFinal_ex(c, out, &length) == 1 &&
                EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, WEFTI_CONN_TAG, out) == 1;
    WEFT_REQUIRE(good, WEFT_E_IO, "OpenSSL cannot sign a message");
    return WEFT_OK;
}

weft_status wefti_conn_keys_open(wefti_conn_keys *k, const unsigned char key[WEFTI_CONN_KEY],
                                 bool encrypts, int32_t connections) {
    memcpy(k->key, key, sizeof k->key);
    k->tls = NULL;
    return encrypts ? wefti_conn_tls_create(connections, &k->tls) : WEFT_OK;
}

void wefti_conn_keys_close(wefti_conn_keys *k) {
    wefti_conn_tls_destroy(k->tls);
    k->tls = NULL;
    explicit_bzero(k->key, sizeof k->key);
}
#endif
