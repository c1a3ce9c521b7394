/* Authentication: a process may take part in a job if it knows the job's secret. See
 * docs/reference/format-wire.md.
 *
 * The secret lies in a file that only its owner can read. Both sides of a connection prove that
 * they know it before anything else is parsed. The proof contains fresh random numbers of both
 * sides, so that a recorded connection is worthless. The keys of the connection follow from the
 * same numbers. */
#ifndef WEFTI_AUTH_H
#define WEFTI_AUTH_H

#include "base/secret/secret.h"
#include "base/status.h"
#include "launch/sha256.h"

enum { WEFTI_NONCE_BYTES = 32, WEFTI_SECRET_MIN = 32, WEFTI_SECRET_MAX = 4096 };

typedef struct wefti_secret {
    unsigned char key[WEFTI_DIGEST_BYTES]; /* digest of what the file holds */
} wefti_secret;

/* From 32 to 4096 bytes, a newline at the end left out; refused when others could read or change
 * the file, or it is not this user's. */
weft_status wefti_secret_read(const char *path, wefti_secret *out) WEFT_CHECKED;
/* A new file of 64 random hexadecimal digits, mode 0600; WEFT_E_IO when there is one of that name.
 */
weft_status wefti_secret_create(const char *path) WEFT_CHECKED;
/* The file `named`; "": the user's own, .weft/secret in the folder `home`, which is made where it
 * is missing. `out_path` (may be NULL): to be freed. */
weft_status wefti_secret_find(const char *named, const char *home, wefti_secret *out,
                              char **out_path) WEFT_CHECKED;

typedef struct wefti_nonces {
    unsigned char scheduler[WEFTI_NONCE_BYTES], member[WEFTI_NONCE_BYTES];
} wefti_nonces;

typedef enum wefti_proof {
    WEFTI_PROOF_MEMBER,    /* the member's answer to the scheduler */
    WEFTI_PROOF_SCHEDULER, /* and the other way round */
    WEFTI_KEY_MEMBER,      /* signs what the member sends */
    WEFTI_KEY_SCHEDULER,
    WEFTI_KEY_TLS, /* encrypts, where TLS is wanted; its numbers are zeroes: TLS has its own */
} wefti_proof;
void wefti_prove(const wefti_secret *secret, wefti_proof what, const wefti_nonces *nonces,
                 unsigned char out[WEFTI_DIGEST_BYTES]);

#endif
