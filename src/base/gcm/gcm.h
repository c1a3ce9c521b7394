/* AES-256-GCM (NIST SP 800-38D), by OpenSSL. */
#ifndef WEFTI_BASE_GCM_H
#define WEFTI_BASE_GCM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { WEFTI_GCM_KEY_BYTES = 32, WEFTI_GCM_TAG_BYTES = 16 };

bool wefti_gcm_is_built(void); /* whether OpenSSL is there */

/* For one thread at a time. WEFT_E_NO_IMPL without OpenSSL. */
typedef struct wefti_gcm wefti_gcm;
weft_status wefti_gcm_open(const unsigned char key[WEFTI_GCM_KEY_BYTES],
                           wefti_gcm **out) WEFT_CHECKED;
void wefti_gcm_close(wefti_gcm *gcm); /* wipes the key; NULL is legal */

/* Bytes from one place to another, which may be the same. Each text that is encrypted with a key
 * has a nonce of its own. The tag also covers `extra` bytes. */
typedef struct wefti_gcm_text {
    uint64_t nonce;
    const unsigned char *extra;
    int extra_bytes;
    const unsigned char *from;
    unsigned char *to;
    int bytes;
} wefti_gcm_text;
/* False: OpenSSL lacks the cipher, and `to` is zeroed. */
bool wefti_gcm_encrypt(wefti_gcm *gcm, const wefti_gcm_text *text,
                       unsigned char tag[WEFTI_GCM_TAG_BYTES]);
/* False: some bit of the bytes, of `extra`, of the nonce or of the tag is not what was encrypted.
 * Then `to` is zeroed. */
bool wefti_gcm_decrypt(wefti_gcm *gcm, const wefti_gcm_text *text,
                       const unsigned char tag[WEFTI_GCM_TAG_BYTES]);

#endif
