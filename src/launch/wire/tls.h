/* TLS 1.3 for connections of the control plane, where it is asked for (--tls, WEFT_TLS): what ranks
 * say to the scheduler cannot be read on the way. Keyed by the job's secret (RFC 8446, external
 * PSK, with an ephemeral Diffie-Hellman exchange), so that there are no certificates. The handshake
 * of wire.h follows inside, as without TLS. */
#ifndef WEFTI_WIRE_TLS_H
#define WEFTI_WIRE_TLS_H

#include "launch/auth.h"

typedef struct wefti_tls wefti_tls; /* one side, for all its connections */

/* WEFT_E_NO_IMPL in a build without OpenSSL. */
weft_status wefti_tls_create(bool scheduler, const wefti_secret *secret,
                             wefti_tls **out) WEFT_CHECKED;
void wefti_tls_destroy(wefti_tls *tls); /* after its connections; NULL is legal */

typedef struct wefti_tls_connection wefti_tls_connection; /* one connection */

/* `fd` stays the caller's. */
weft_status wefti_tls_begin(wefti_tls *tls, int fd, wefti_tls_connection **out) WEFT_CHECKED;
void wefti_tls_end(wefti_tls_connection *connection); /* NULL is legal */

/* None of these waits: WEFT_PENDING says that nothing can be done now. WEFT_E_PEER: the connection
 * is closed or broken; WEFT_E_ARG: the other side does not know the secret. */
weft_status wefti_tls_shake(wefti_tls_connection *connection) WEFT_CHECKED;
/* The most that one call of read brings; with as much room nothing is left behind that the socket
 * does not tell of. */
enum { WEFTI_TLS_RECORD = 16384 };
weft_status wefti_tls_read(wefti_tls_connection *connection, void *data, size_t room,
                           size_t *out_bytes) WEFT_CHECKED;
/* What was not written must be the beginning of the next call's data. */
weft_status wefti_tls_write(wefti_tls_connection *connection, const void *data, size_t bytes,
                            size_t *out_bytes) WEFT_CHECKED;

#endif
