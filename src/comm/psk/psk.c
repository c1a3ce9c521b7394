/* TLS 1.3 by a key that both sides know: see psk.h. */
#include "comm/psk/psk.h"

#ifdef WEFT_HAVE_OPENSSL

#include <stdint.h>
#include <string.h>

#include <openssl/err.h>

static const unsigned char identity[] = "weft"; /* there is one key, so its name says nothing */

/* The key as a session to go on with. */
static SSL_SESSION *session_of(SSL *ssl) {
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const unsigned char *key = SSL_get_app_data(ssl);
    SSL_SESSION *session = SSL_SESSION_new();
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    if (session && cipher && SSL_SESSION_set1_master_key(session, key, WEFTI_PSK_KEY) &&
        SSL_SESSION_set_cipher(session, cipher) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

/* The connector offers it. */
static int offer(SSL *ssl, const EVP_MD *hash, const unsigned char **id, size_t *id_bytes,
                 SSL_SESSION **out) {
    (void)hash; /* there is one cipher suite */
    *out = session_of(ssl);
    *id = identity;
    *id_bytes = sizeof identity;
    return *out != NULL;
}

/* The listener takes no other. */
static int find(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **out) {
    *out = NULL;
    if (id_bytes != sizeof identity || memcmp(id, identity, id_bytes) != 0) return 1;
    *out = session_of(ssl);
    return *out != NULL;
}

const char *wefti_psk_reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "unknown error";
}

weft_status wefti_psk_create(uint64_t modes, SSL_CTX **out) {
    ERR_clear_error();
    SSL_CTX *c = SSL_CTX_new(TLS_method());
    if (!c || !SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) ||
        !SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") || !SSL_CTX_set_num_tickets(c, 0)) {
        SSL_CTX_free(c);
        WEFT_FAIL(WEFT_E_IO, "OpenSSL cannot do TLS 1.3: %s", wefti_psk_reason());
    }
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(c, (long)modes | SSL_MODE_ENABLE_PARTIAL_WRITE |
                            SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_psk_find_session_callback(c, find);
    SSL_CTX_set_psk_use_session_callback(c, offer);
    *out = c;
    return WEFT_OK;
}

static long control(BIO *bio, int command, long number, void *data) {
    (void)bio, (void)number, (void)data;
    return command == BIO_CTRL_FLUSH; /* nothing is held back */
}

BIO_METHOD *wefti_psk_method(int (*write)(BIO *, const char *, int),
                             int (*read)(BIO *, char *, int)) {
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "weft");
    if (m && BIO_meth_set_write(m, write) && BIO_meth_set_read(m, read) &&
        BIO_meth_set_ctrl(m, control))
        return m;
    BIO_meth_free(m);
    return NULL;
}

weft_status wefti_psk_open(SSL_CTX *context, const BIO_METHOD *method, void *data,
                           const unsigned char key[WEFTI_PSK_KEY], bool listens, SSL **out) {
    SSL *ssl = SSL_new(context);
    BIO *bio = ssl ? BIO_new(method) : NULL;
    if (!bio || !SSL_set_app_data(ssl, (void *)(uintptr_t)key)) {
        BIO_free(bio);
        SSL_free(ssl);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a TLS connection");
    }
    BIO_set_data(bio, data);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    /* The connector wants the listener to prove itself, by the key: no certificate is a good one.
     */
    SSL_set_verify(ssl, listens ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (listens)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    *out = ssl;
    return WEFT_OK;
}

#endif
