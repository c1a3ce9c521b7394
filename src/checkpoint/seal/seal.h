/* Encrypted files: AES-256-GCM (NIST SP 800-38D), by OpenSSL. Format:
 * docs/reference/format-encrypted.md.
 *
 * A file is a header and frames. Each frame has a tag of its own, so that any region can be read
 * alone. The key of a file follows from the user's key, the random salt of its folder, and the
 * file's name (HKDF, RFC 5869); the nonce of a frame is its number. A folder gets a new salt each
 * time that it is written, and a file is written from begin to end, once. So no pair of key and
 * nonce occurs twice. A build without OpenSSL refuses keys and encrypted files. */
#ifndef WEFTI_CHECKPOINT_SEAL_H
#define WEFTI_CHECKPOINT_SEAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bulk.h"
#include "base/reader.h"
#include "base/status.h"

enum {
    WEFTI_KEY_BYTES = 32,
    WEFTI_SEAL_SALT_BYTES = 32,
    WEFTI_SEAL_TAG_BYTES = 16,
    WEFTI_SEAL_HEADER_BYTES = 64,
    WEFTI_SEAL_FRAME_BYTES = 64 << 10 /* of plain bytes */
};

/* ---- keys.c ---- */

typedef struct wefti_key {
    unsigned char bytes[WEFTI_KEY_BYTES];
    uint64_t number; /* follows from the bytes, and does not tell them: for messages and headers */
} wefti_key;

/* `where` is the path of a file that only its owner can read, or env:NAME, an environment variable.
 * Either holds 64 hexadecimal digits. WEFT_E_NO_IMPL without OpenSSL. */
weft_status wefti_key_read(const char *where, wefti_key *out) WEFT_CHECKED;
/* From now on this process reads files that were encrypted with this key, too. Any thread may call
 * it. */
weft_status wefti_key_keep(const wefti_key *key) WEFT_CHECKED;
/* Whether this process has kept any. */
bool wefti_key_is_kept(void);
/* The key with this number, of those that are kept. False: none, and *out_text says which are. */
enum { WEFTI_KEYS_TEXT = 160 };
bool wefti_key_find(uint64_t number, wefti_key *out, char out_text[WEFTI_KEYS_TEXT]);

/* ---- seal.c: one file ---- */

/* What the files of a folder have in common. */
typedef struct wefti_seal_mark {
    bool sealed;
    unsigned char salt[WEFTI_SEAL_SALT_BYTES];
} wefti_seal_mark;

/* A fresh one. */
weft_status wefti_seal_mark_make(wefti_seal_mark *out) WEFT_CHECKED;

typedef struct wefti_seal {
    unsigned char header[WEFTI_SEAL_HEADER_BYTES];
    unsigned char key[WEFTI_KEY_BYTES]; /* of the file */
    int64_t bytes, frame_bytes; /* plain ones: of the file, and of each frame but the last */
    int64_t frames;             /* at least 1 */
} wefti_seal;

/* Bytes of an encrypted file of so many plain bytes. */
int64_t wefti_seal_file_bytes(int64_t bytes, int64_t frame_bytes);
/* Of a new file. name: in its folder. */
weft_status wefti_seal_make(const wefti_key *key, const wefti_seal_mark *mark, const char *name,
                            int64_t bytes, int64_t frame_bytes, wefti_seal *out) WEFT_CHECKED;
/* Of a file of `file_bytes` bytes with this header. WEFT_E_ARG if its key is not kept;
 * WEFT_E_NO_IMPL for a later format; WEFT_E_CORRUPT. path: for messages. */
weft_status wefti_seal_parse(const unsigned char header[WEFTI_SEAL_HEADER_BYTES],
                             int64_t file_bytes, const char *path, wefti_seal *out) WEFT_CHECKED;
void wefti_seal_mark_of(const wefti_seal *seal, wefti_seal_mark *out);
/* Whether bytes are the begin of an encrypted file. */
bool wefti_seal_is(const void *data, int64_t bytes);
int64_t wefti_seal_frame_bytes(const wefti_seal *seal, int64_t frame); /* plain ones */
int64_t wefti_seal_frame_at(const wefti_seal *seal, int64_t frame);    /* in the file */
void wefti_seal_wipe(wefti_seal *seal);

/* A cipher for the frames of one file, to encrypt them or to decrypt them; one thread at a time. */
typedef struct wefti_seal_cipher wefti_seal_cipher;
weft_status wefti_seal_cipher_open(const wefti_seal *seal, wefti_seal_cipher **out) WEFT_CHECKED;
void wefti_seal_cipher_close(wefti_seal_cipher *cipher);
/* Encrypts a frame in place and puts its tag behind it. */
weft_status wefti_seal_close_frame(wefti_seal_cipher *cipher, int64_t frame,
                                   unsigned char *data) WEFT_CHECKED;
/* Decrypts a frame with its tag. Zeroes `to` and returns false if any bit of it, of the header, of
 * the frame's place or of the file's name is not what was written. */
bool wefti_seal_open_frame(wefti_seal_cipher *cipher, int64_t frame, const unsigned char *data,
                           unsigned char *to);

/* ---- sealed_read.c ---- */

/* Opens a file; if it is encrypted, the reader decrypts. folder: the mark of its folder, which the
 * file must have, too; NULL: any. WEFT_E_CORRUPT for a wrong mark, and for damage, here or later
 * when it is read. */
weft_status wefti_sealed_open(const char *path, const wefti_seal_mark *folder,
                              wefti_reader **out) WEFT_CHECKED;
/* The same for an open file. raw: belongs to the result, or, on failure, to the caller. */
weft_status wefti_sealed_of(wefti_reader *raw, const char *path, const wefti_seal_mark *folder,
                            wefti_reader **out) WEFT_CHECKED;
/* As wefti_file_read. out_mark: may be NULL. */
weft_status wefti_sealed_read(const char *path, int64_t limit, wefti_seal_mark *out_mark,
                              char **out, int64_t *out_bytes) WEFT_CHECKED;

/* ---- sealed_write.c ---- */

/* Encrypts what is written from begin to end. */
typedef struct wefti_sealer wefti_sealer;
/* Takes the seal over, also on failure. */
weft_status wefti_sealer_open(wefti_seal *seal, wefti_sealer **out) WEFT_CHECKED;
void wefti_sealer_close(wefti_sealer *sealer); /* NULL is legal */
/* Writes bytes of the plain file, from byte `at` on, which is where the last call ended. The frame
 * at the end is written with the file's last byte. */
weft_status wefti_sealer_write(wefti_sealer *sealer, wefti_bulk *file, int64_t at, const void *data,
                               size_t bytes) WEFT_CHECKED;
/* An encrypted file in memory; wefti_free. */
weft_status wefti_seal_text(wefti_seal *seal, const void *data, unsigned char **out,
                            int64_t *out_bytes) WEFT_CHECKED;

#endif
