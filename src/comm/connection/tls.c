/* TLS 1.3 around the frames of a connection, by OpenSSL. Both sides have proved the job's key
 * before; TLS goes on from a key of this connection (psk.h). OpenSSL never touches the socket: what
 * it wants to send is collected, so that many records make one call. */
#include "comm/connection/inside.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <string.h>

#include <openssl/err.h>

#include "base/memory.h"
#include "comm/psk/psk.h"

enum {
    BUFFER = 128 << 10,     /* received bytes, and encrypted ones, that wait; */
    LESS_BUFFER = 34 << 10, /* if there are many connections: two records */
    MANY = 32,              /* connections */
    RECORD = 16384,         /* bytes of data, at most */
    TLS_READS = 16,         /* from one socket before the others have their turn */
    RECORDS = 1 << 23       /* under one key; RFC 8446, 5.5: at most 24 million */
};

struct wefti_conn_tls_setup {
    SSL_CTX *context;
    BIO_METHOD *sockets;
    size_t buffer;
};

struct wefti_conn_tls {
    SSL *ssl;
    int fd, error; /* error: errno of the socket */
    bool ended;    /* by the other side */
    int reads;     /* that are left in this turn */
    unsigned char key[WEFTI_CONN_PROOF];
    int64_t records; /* since the last new key */
    unsigned char record[RECORD];
    size_t at, used;       /* of `out` */
    size_t in_at, in_used; /* of `in` */
    size_t room;           /* of each */
    unsigned char *in;     /* behind `out` */
    unsigned char out[];   /* [2 * room] */
};

/* --- what OpenSSL takes for a socket */

static int collect(BIO *bio, const char *data, int bytes) {
    wefti_conn_tls *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (t->at == t->used) t->at = t->used = 0;
    if ((size_t)bytes > t->room - t->used) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(t->out + t->used, data, (size_t)bytes);
    t->used += (size_t)bytes;
    return bytes;
}

/* More than 0: bytes came into `in`. As a BIO returns it. */
static int fill(wefti_conn_tls *t, BIO *bio) {
    ssize_t n = t->reads-- > 0 ? recv(t->fd, t->in, t->room, MSG_DONTWAIT) : -1;
    t->in_at = 0;
    t->in_used = n > 0 ? (size_t)n : 0;
    if (n > 0) return 1;
    if (n == 0)
        t->ended = true;
    else if (t->reads < 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        BIO_set_retry_read(bio);
    else
        t->error = errno;
    return n == 0 ? 0 : -1;
}

/* OpenSSL's own reading ahead would move all that it has read to the front of its buffer for each
 * record; so it reads one record, from a buffer here. */
static int receive_some(BIO *bio, char *data, int bytes) {
    wefti_conn_tls *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (t->in_at == t->in_used) {
        int came = fill(t, bio);
        if (came <= 0) return came;
    }
    size_t n = t->in_used - t->in_at < (size_t)bytes ? t->in_used - t->in_at : (size_t)bytes;
    memcpy(data, t->in + t->in_at, n);
    t->in_at += n;
    return (int)n;
}

/* --- */

weft_status wefti_conn_tls_create(int32_t connections, wefti_conn_tls_setup **out) {
    wefti_conn_tls_setup *setup;
    WEFT_NEW(setup, wefti_conn_tls_setup);
    setup->buffer = connections > MANY ? LESS_BUFFER : BUFFER;
    weft_status status = wefti_psk_create(0, &setup->context);
    if (status >= 0 && !(setup->sockets = wefti_psk_method(collect, receive_some)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for TLS");
    if (status < 0) {
        wefti_conn_tls_destroy(setup);
        return status;
    }
    *out = setup;
    return WEFT_OK;
}

void wefti_conn_tls_destroy(wefti_conn_tls_setup *setup) {
    if (!setup) return;
    SSL_CTX_free(setup->context);
    BIO_meth_free(setup->sockets);
    wefti_free(setup);
}

weft_status wefti_conn_tls_open(const wefti_conn_tls_setup *setup, int fd, bool listens,
                                const unsigned char key[WEFTI_CONN_PROOF], wefti_conn_tls **out) {
    wefti_conn_tls *t = wefti_calloc(1, sizeof *t + 2 * setup->buffer);
    WEFT_REQUIRE(t, WEFT_E_NOMEM, "no memory for a TLS connection");
    t->fd = fd;
    t->room = setup->buffer;
    t->in = t->out + t->room;
    memcpy(t->key, key, sizeof t->key);
    weft_status status =
        wefti_psk_open(setup->context, setup->sockets, t, t->key, listens, &t->ssl);
    if (status < 0) {
        wefti_conn_tls_close(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

void wefti_conn_tls_close(wefti_conn_tls *t) {
    if (!t) return;
    SSL_free(t->ssl); /* without a TLS close notice: frames say what is complete */
    explicit_bzero(t->key, sizeof t->key);
    wefti_free(t);
}

/* What a call that did not succeed has come to. */
static weft_status outcome(const wefti_conn_tls *t, int result) {
    int error = SSL_get_error(t->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return WEFT_PENDING;
    WEFT_REQUIRE(!t->ended && error != SSL_ERROR_ZERO_RETURN, WEFT_E_PEER, "connection closed");
    WEFT_REQUIRE(t->error == 0, WEFT_E_PEER, "%s", strerror(t->error));
    WEFT_FAIL(WEFT_E_CORRUPT, "TLS: %s", wefti_psk_reason());
}

weft_status wefti_conn_tls_shake(wefti_conn_tls *t) {
    wefti_conn_tls_begin_turn(t);
    ERR_clear_error();
    int result = SSL_do_handshake(t->ssl);
    weft_status status = result == 1 ? WEFT_OK : outcome(t, result);
    if (status >= 0) {
        weft_status sent = wefti_conn_tls_flush(t);
        if (sent != WEFT_OK) return sent;
    }
    WEFT_REQUIRE(status != WEFT_OK || SSL_session_reused(t->ssl), WEFT_E_CORRUPT,
                 "TLS without the key of the connection");
    return status;
}

void wefti_conn_tls_begin_turn(wefti_conn_tls *t) {
    t->reads = TLS_READS;
}

weft_status wefti_conn_tls_read(wefti_conn_tls *t, void *data, size_t room, size_t *out_bytes) {
    ERR_clear_error();
    int result = SSL_read_ex(t->ssl, data, room, out_bytes);
    return result == 1 ? WEFT_OK : outcome(t, result);
}

weft_status wefti_conn_tls_write(wefti_conn_tls *t, const void *head, size_t head_bytes,
                                 const void *body, size_t bytes, size_t *out_bytes) {
    const void *data = body;
    if (head_bytes > 0) {
        if (bytes > RECORD - head_bytes) bytes = RECORD - head_bytes;
        memcpy(t->record, head, head_bytes);
        if (bytes > 0) memcpy(t->record + head_bytes, body, bytes);
        data = t->record;
        bytes += head_bytes;
    }
    ERR_clear_error();
    int result = SSL_write_ex(t->ssl, data, bytes, out_bytes);
    if (result != 1) return outcome(t, result);
    if (++t->records < RECORDS) return WEFT_OK;
    t->records = 0;
    WEFT_REQUIRE(SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1, WEFT_E_IO,
                 "TLS: no new key: %s", wefti_psk_reason());
    return WEFT_OK;
}

weft_status wefti_conn_tls_flush(wefti_conn_tls *t) {
    while (t->at < t->used) {
        ssize_t n = send(t->fd, t->out + t->at, t->used - t->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return WEFT_PENDING;
        WEFT_REQUIRE(n >= 0, WEFT_E_PEER, "%s", strerror(errno));
        t->at += (size_t)n;
    }
    return WEFT_OK;
}

bool wefti_conn_tls_has_input(const wefti_conn_tls *t) {
    return t->in_at < t->in_used || SSL_pending(t->ssl) > 0;
}

bool wefti_conn_tls_has_output(const wefti_conn_tls *t) {
    return t && t->at < t->used;
}

#endif
