/* TLS by OpenSSL: see tls.h. */
#include "launch/wire/tls.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/memory.h"

struct wefti_tls {
    bool scheduler;
    SSL_CTX *context;
    BIO_METHOD *sockets;
    unsigned char key[WEFTI_DIGEST_BYTES];
};

struct wefti_tls_connection {
    const wefti_tls *tls;
    SSL *ssl;
    int fd, error; /* error: errno of the socket */
    bool ended;    /* by the other side */
};

/* One key, so that its name says nothing. */
static const unsigned char identity[] = "weft";

/* --- the job's secret as a session to go on with */

static SSL_SESSION *session_of(SSL *ssl) {
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const wefti_tls *tls = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    SSL_SESSION *session = SSL_SESSION_new();
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    if (session && cipher && SSL_SESSION_set1_master_key(session, tls->key, sizeof tls->key) &&
        SSL_SESSION_set_cipher(session, cipher) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

/* The member offers it. */
static int offer(SSL *ssl, const EVP_MD *hash, const unsigned char **id, size_t *id_bytes,
                 SSL_SESSION **out) {
    (void)hash; /* there is one cipher suite */
    *out = session_of(ssl);
    *id = identity;
    *id_bytes = sizeof identity;
    return *out != NULL;
}

/* The scheduler takes no other. */
static int find(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **out) {
    *out = NULL;
    if (id_bytes != sizeof identity || memcmp(id, identity, id_bytes) != 0) return 1;
    *out = session_of(ssl);
    return *out != NULL;
}

/* --- sockets: like OpenSSL's own, but without SIGPIPE, and errors are kept */

static int send_some(BIO *bio, const char *data, int bytes) {
    wefti_tls_connection *connection = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t n = send(connection->fd, data, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return (int)n;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        BIO_set_retry_write(bio);
    else
        connection->error = errno;
    return -1;
}

static int receive_some(BIO *bio, char *data, int bytes) {
    wefti_tls_connection *connection = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t n = recv(connection->fd, data, (size_t)bytes, MSG_DONTWAIT);
    if (n > 0) return (int)n;
    if (n == 0)
        connection->ended = true;
    else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        BIO_set_retry_read(bio);
    else
        connection->error = errno;
    return n == 0 ? 0 : -1;
}

static long control(BIO *bio, int command, long number, void *data) {
    (void)bio, (void)number, (void)data;
    return command == BIO_CTRL_FLUSH; /* nothing is held back */
}

/* --- */

static const char *reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "unknown error";
}

static bool set_up(wefti_tls *tls) {
    wefti_openssl_begin();
    SSL_CTX *c = tls->context =
        SSL_CTX_new(tls->scheduler ? TLS_server_method() : TLS_client_method());
    BIO_METHOD *m = tls->sockets = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "weft");
    if (!c || !m || !BIO_meth_set_write(m, send_some) || !BIO_meth_set_read(m, receive_some) ||
        !BIO_meth_set_ctrl(m, control) || !SSL_CTX_set_app_data(c, tls) ||
        !SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) ||
        !SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") || !SSL_CTX_set_num_tickets(c, 0))
        return false;
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    if (tls->scheduler) {
        SSL_CTX_set_psk_find_session_callback(c, find);
    } else {
        SSL_CTX_set_psk_use_session_callback(c, offer);
        SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL); /* no certificate is a good one */
    }
    return true;
}

weft_status wefti_tls_create(bool scheduler, const wefti_secret *secret, wefti_tls **out) {
    static const wefti_nonces none;
    wefti_tls *tls;
    WEFT_NEW(tls, wefti_tls);
    tls->scheduler = scheduler;
    wefti_prove(secret, WEFTI_KEY_TLS, &none, tls->key);
    ERR_clear_error();
    if (!set_up(tls)) {
        weft_status status = WEFT_RAISE(WEFT_E_IO, "OpenSSL cannot do TLS 1.3: %s", reason());
        wefti_tls_destroy(tls);
        return status;
    }
    *out = tls;
    return WEFT_OK;
}

void wefti_tls_destroy(wefti_tls *tls) {
    if (!tls) return;
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->sockets);
    explicit_bzero(tls->key, sizeof tls->key);
    wefti_free(tls);
}

weft_status wefti_tls_begin(wefti_tls *tls, int fd, wefti_tls_connection **out) {
    wefti_tls_connection *connection;
    WEFT_NEW(connection, wefti_tls_connection);
    connection->tls = tls;
    connection->fd = fd;
    connection->ssl = SSL_new(tls->context);
    BIO *bio = connection->ssl ? BIO_new(tls->sockets) : NULL;
    if (!bio) {
        wefti_tls_end(connection);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a TLS connection");
    }
    BIO_set_data(bio, connection);
    BIO_set_init(bio, 1);
    SSL_set_bio(connection->ssl, bio, bio);
    if (tls->scheduler)
        SSL_set_accept_state(connection->ssl);
    else
        SSL_set_connect_state(connection->ssl);
    *out = connection;
    return WEFT_OK;
}

void wefti_tls_end(wefti_tls_connection *connection) {
    if (!connection) return;
    SSL_free(connection->ssl); /* without a TLS close notice: frames say what is complete */
    wefti_free(connection);
}

/* What a call that did not succeed has come to. */
static weft_status outcome(const wefti_tls_connection *connection, int result) {
    int error = SSL_get_error(connection->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return WEFT_PENDING;
    WEFT_REQUIRE(!connection->ended && error != SSL_ERROR_ZERO_RETURN, WEFT_E_PEER,
                 "connection closed");
    WEFT_REQUIRE(connection->error == 0, WEFT_E_PEER, "%s", strerror(connection->error));
    WEFT_REQUIRE(!SSL_is_init_finished(connection->ssl), WEFT_E_CORRUPT, "TLS: %s", reason());
    WEFT_FAIL(WEFT_E_ARG,
              connection->tls->scheduler
                  ? "a process that does not know the job's secret (TLS: %s)"
                  : "the scheduler knows another secret than this process (TLS: "
                    "%s)",
              reason());
}

weft_status wefti_tls_shake(wefti_tls_connection *connection) {
    ERR_clear_error();
    int result = SSL_do_handshake(connection->ssl);
    if (result != 1) return outcome(connection, result);
    WEFT_REQUIRE(SSL_session_reused(connection->ssl), WEFT_E_ARG, "TLS without the job's secret");
    return WEFT_OK;
}

weft_status wefti_tls_read(wefti_tls_connection *connection, void *data, size_t room,
                           size_t *out_bytes) {
    ERR_clear_error();
    int result = SSL_read_ex(connection->ssl, data, room, out_bytes);
    return result == 1 ? WEFT_OK : outcome(connection, result);
}

weft_status wefti_tls_write(wefti_tls_connection *connection, const void *data, size_t bytes,
                            size_t *out_bytes) {
    ERR_clear_error();
    int result = SSL_write_ex(connection->ssl, data, bytes, out_bytes);
    return result == 1 ? WEFT_OK : outcome(connection, result);
}

#else

weft_status wefti_tls_create(bool scheduler, const wefti_secret *secret, wefti_tls **out) {
    (void)scheduler, (void)secret, (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL, "TLS is wanted (--tls, WEFT_TLS), but this weft was built without "
                              "OpenSSL");
}
void wefti_tls_destroy(wefti_tls *tls) {
    (void)tls;
}

/* Of a side that cannot be there. */
weft_status wefti_tls_begin(wefti_tls *tls, int fd, wefti_tls_connection **out) {
    (void)tls, (void)fd, (void)out;
    WEFT_FAIL(WEFT_E_BUG, "no TLS in this build");
}
void wefti_tls_end(wefti_tls_connection *connection) {
    (void)connection;
}
weft_status wefti_tls_shake(wefti_tls_connection *connection) {
    (void)connection;
    WEFT_FAIL(WEFT_E_BUG, "no TLS in this build");
}
weft_status wefti_tls_read(wefti_tls_connection *connection, void *data, size_t room,
                           size_t *out_bytes) {
    (void)data, (void)room, (void)out_bytes;
    return wefti_tls_shake(connection);
}
weft_status wefti_tls_write(wefti_tls_connection *connection, const void *data, size_t bytes,
                            size_t *out_bytes) {
    (void)data, (void)bytes, (void)out_bytes;
    return wefti_tls_shake(connection);
}

#endif
