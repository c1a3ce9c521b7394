/* Keys that follow from other keys: HKDF with SHA-256 (RFC 5869), by OpenSSL. */
#ifndef WEFTI_CHECKPOINT_SEAL_DERIVE_H
#define WEFTI_CHECKPOINT_SEAL_DERIVE_H

#include "checkpoint/seal/seal.h"

/* The number of a key. */
weft_status wefti_derive_number(const unsigned char key[WEFTI_KEY_BYTES],
                                uint64_t *out) WEFT_CHECKED;
/* The key of a file. */
weft_status wefti_derive_file(const unsigned char key[WEFTI_KEY_BYTES],
                              const unsigned char salt[WEFTI_SEAL_SALT_BYTES], const char *name,
                              unsigned char out[WEFTI_KEY_BYTES]) WEFT_CHECKED;

#endif
