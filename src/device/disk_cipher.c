/* Encrypted disk streams: AES-256-GCM for each block of 4 KiB.
 *
 * The key is random and lies in memory only, so nobody can read the file after the process. The
 * nonce is the number of the write among all writes of blocks, so no pair of key and nonce occurs
 * twice. Nonces and tags are kept in memory, 24 bytes for each block. So the file has no other
 * layout than a plain one, transfers stay aligned, and a block that was changed, moved, or put back
 * to an older state is found. A block that was never written reads as zeros. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/gcm/gcm.h"
#include "base/memory.h"
#include "base/secret/secret.h"
#include "device/disk_parts.h"

/* The last write of a block. Operations on one block follow each other. */
typedef struct block_mark {
    uint64_t nonce; /* 0: it was not written */
    unsigned char tag[WEFTI_GCM_TAG_BYTES];
} block_mark;

struct wefti_disk_cipher {
    atomic_uint_fast64_t nonces; /* given to writes of blocks */
    block_mark *marks;
    wefti_gcm *of[WEFTI_DISK_DEPTH_MAX]; /* one for each request */
};

static weft_status create(const wefti_disk_stream *d, wefti_disk_cipher *c) {
    unsigned char key[WEFTI_GCM_KEY_BYTES];
    WEFT_NEW_ARRAY(c->marks, block_mark, d->bytes / WEFTI_DISK_ALIGNMENT);
    weft_status status = wefti_random_bytes(key, sizeof key);
    for (int32_t i = 0; i < d->depth && status >= 0; i++) status = wefti_gcm_open(key, &c->of[i]);
    explicit_bzero(key, sizeof key);
    return status;
}

weft_status wefti_disk_cipher_create(wefti_disk_stream *d) {
    WEFT_NEW(d->cipher, wefti_disk_cipher);
    return create(d, d->cipher);
}

void wefti_disk_cipher_destroy(wefti_disk_cipher *c) {
    if (!c) return;
    for (int i = 0; i < WEFTI_DISK_DEPTH_MAX; i++) wefti_gcm_close(c->of[i]);
    wefti_free(c->marks);
    wefti_free(c);
}

int wefti_disk_encrypt(wefti_disk_cipher *c, const wefti_disk_request *r,
                       const unsigned char *from) {
    const int64_t blocks = (r->to - r->from) / WEFTI_DISK_ALIGNMENT;
    uint64_t nonce = 1 + atomic_fetch_add(&c->nonces, (uint64_t)blocks);
    for (int64_t i = 0; i < blocks; i++, nonce++) {
        block_mark *mark = &c->marks[r->from / WEFTI_DISK_ALIGNMENT + i];
        const wefti_gcm_text text = {.nonce = nonce,
                                     .from = from + i * WEFTI_DISK_ALIGNMENT,
                                     .to = r->transfer + i * WEFTI_DISK_ALIGNMENT,
                                     .bytes = WEFTI_DISK_ALIGNMENT};
        mark->nonce = nonce;
        if (!wefti_gcm_encrypt(c->of[r->number - 1], &text, mark->tag)) return ENOTSUP;
    }
    return 0;
}

int wefti_disk_decrypt(wefti_disk_cipher *c, const wefti_disk_request *r) {
    for (int64_t at = r->from; at < r->to; at += WEFTI_DISK_ALIGNMENT) {
        const block_mark *mark = &c->marks[at / WEFTI_DISK_ALIGNMENT];
        unsigned char *data = r->transfer + (at - r->from);
        const wefti_gcm_text text = {
            .nonce = mark->nonce, .from = data, .to = data, .bytes = WEFTI_DISK_ALIGNMENT};
        if (!mark->nonce)
            memset(data, 0, WEFTI_DISK_ALIGNMENT);
        else if (!wefti_gcm_decrypt(c->of[r->number - 1], &text, mark->tag))
            return EBADMSG;
    }
    return 0;
}
