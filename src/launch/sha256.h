/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104): OpenSSL's where it is built in, else our own, so that a
 * build without libraries launches jobs too. Both are there to be compared. */
#ifndef WEFTI_AUTH_SHA256_H
#define WEFTI_AUTH_SHA256_H

#include <stdbool.h>
#include <stddef.h>

enum { WEFTI_DIGEST_BYTES = 32 };

void wefti_sha256(const void *data, size_t bytes, unsigned char out[WEFTI_DIGEST_BYTES]);
/* Keys of any length. */
void wefti_hmac_own(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    unsigned char out[WEFTI_DIGEST_BYTES]);
/* To be called before anything else of OpenSSL: programs may end, by `exit`, while a member's
 * thread still uses it, and so OpenSSL must not free itself then. In vain where the program has
 * used OpenSSL before. */
void wefti_openssl_begin(void);
/* The fast one. */
void wefti_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                unsigned char out[WEFTI_DIGEST_BYTES]);
/* Takes equally long wherever the first difference is. */
bool wefti_equal_secretly(const void *a, const void *b, size_t bytes);

#endif
