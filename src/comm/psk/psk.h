/* TLS 1.3 between two sides that know one key (RFC 8446, external PSK, with an ephemeral
 * Diffie-Hellman exchange), by OpenSSL: what the data plane and the control plane
 * share. There are no certificates and no tickets. */
#ifndef WEFTI_PSK_H
#define WEFTI_PSK_H

#ifdef WEFT_HAVE_OPENSSL

#include <stdbool.h>

#include <openssl/ssl.h>

#include "base/status.h"

enum { WEFTI_PSK_KEY = 32 };

/* Of connections with either end. `modes`: SSL_MODE_* besides those of writing in parts. */
weft_status wefti_psk_create(uint64_t modes, SSL_CTX **out) WEFT_CHECKED; /* SSL_CTX_free */

/* A connection by one BIO for both directions, which OpenSSL owns: `method`, with `data` for its
 * functions. `key` must live as long. */
weft_status wefti_psk_open(SSL_CTX *context, const BIO_METHOD *method, void *data,
                           const unsigned char key[WEFTI_PSK_KEY], bool listens,
                           SSL **out) WEFT_CHECKED;

/* Of a BIO whose functions send and receive all that they take. */
BIO_METHOD *wefti_psk_method(int (*write)(BIO *, const char *, int),
                             int (*read)(BIO *, char *, int)); /* NULL: no memory */

const char *wefti_psk_reason(void); /* of OpenSSL's last error */

#endif
#endif
