/* TLS by OpenSSL: see tls.h. */
#include "launch/wire/tls.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>

#include "base/memory.h"
#include "comm/psk/psk.h"

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

/* --- */

weft_status wefti_tls_create(bool scheduler, const wefti_secret *secret, wefti_tls **out) {
    static const wefti_nonces none;
    wefti_tls *tls;
    WEFT_NEW(tls, wefti_tls);
    tls->scheduler = scheduler;
    wefti_prove(secret, WEFTI_KEY_TLS, &none, tls->key);
    wefti_openssl_begin();
    weft_status status = wefti_psk_create(SSL_MODE_RELEASE_BUFFERS, &tls->context);
    if (status >= 0 && !(tls->sockets = wefti_psk_method(send_some, receive_some)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for TLS");
    if (status < 0) {
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
    weft_status status = wefti_psk_open(tls->context, tls->sockets, connection, tls->key,
                                        tls->scheduler, &connection->ssl);
    if (status < 0) {
        wefti_tls_end(connection);
        return status;
    }
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
    WEFT_REQUIRE(!SSL_is_init_finished(connection->ssl), WEFT_E_CORRUPT, "TLS: %s",
                 wefti_psk_reason());
    WEFT_FAIL(WEFT_E_ARG,
              connection->tls->scheduler
                  ? "a process that does not know the job's secret (TLS: %s)"
                  : "the scheduler knows another secret than this process (TLS: "
                    "%s)",
              wefti_psk_reason());
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
