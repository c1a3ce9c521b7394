/* What the files of comm/connection share. */
#ifndef WEFTI_CONNECTION_INSIDE_H
#define WEFTI_CONNECTION_INSIDE_H

#include "comm/connection/connection.h"

bool wefti_conn_equal(const unsigned char *a, const unsigned char *b, size_t bytes);
weft_status wefti_conn_random(void *out, size_t bytes) WEFT_CHECKED;
/* Of a new connection: takes `fd`. */
weft_status wefti_conn_challenge(wefti_conn *c, int fd) WEFT_CHECKED;
/* WEFT_PENDING: not all `wanted` bytes are there. */
weft_status wefti_conn_hear(wefti_conn *c, size_t wanted) WEFT_CHECKED;
void wefti_conn_poll_write(wefti_conn *c, bool wants);

/* --- tls.c: TLS 1.3 around the frames of a connection whose two sides have proved the key. Frames
 * then carry no tags: TLS numbers and authenticates its records. --- */

weft_status wefti_conn_tls_create(int32_t connections, wefti_conn_tls_setup **out) WEFT_CHECKED;
void wefti_conn_tls_destroy(wefti_conn_tls_setup *setup); /* after its connections; NULL is legal */
/* `fd` stays the caller's. `key`: of this connection. */
weft_status wefti_conn_tls_open(const wefti_conn_tls_setup *setup, int fd, bool listens,
                                const unsigned char key[WEFTI_CONN_PROOF],
                                wefti_conn_tls **out) WEFT_CHECKED;
void wefti_conn_tls_close(wefti_conn_tls *t); /* NULL is legal */
/* None of these waits. WEFT_PENDING: nothing can be done now. */
weft_status wefti_conn_tls_shake(wefti_conn_tls *t) WEFT_CHECKED;
void wefti_conn_tls_begin_turn(wefti_conn_tls *t);
weft_status wefti_conn_tls_read(wefti_conn_tls *t, void *data, size_t room,
                                size_t *out_bytes) WEFT_CHECKED;
/* Bytes were taken from the socket that no read has returned: no event tells of them. */
bool wefti_conn_tls_has_input(const wefti_conn_tls *t);
/* Encrypts into a buffer, which `flush` sends: the beginning of `head` (a frame's, or 0 bytes) and
 * of `body`. After WEFT_PENDING, the buffer is full, the next call has the same arguments. */
weft_status wefti_conn_tls_write(wefti_conn_tls *t, const void *head, size_t head_bytes,
                                 const void *body, size_t bytes, size_t *out_bytes) WEFT_CHECKED;
weft_status wefti_conn_tls_flush(wefti_conn_tls *t) WEFT_CHECKED;
bool wefti_conn_tls_has_output(const wefti_conn_tls *t); /* false for NULL */

#endif
