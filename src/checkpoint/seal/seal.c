/* The header of an encrypted file and the places of its frames: see seal.h.
 *
 * Header, 64 bytes, numbers with the lowest byte first:
 *    0  "WEFTSEAL"
 *    8  version, 1        12  plain bytes of a frame     16  plain bytes of the file
 *   24  number of the key 32  salt */
#include <string.h>

#include "base/gcm/gcm.h"
#include "base/memory.h"
#include "base/secret/secret.h"
#include "checkpoint/seal/derive.h"

enum { SEAL_VERSION = 1, FRAME_LEAST = 64, FRAME_MOST = 1 << 20 };
enum { AT_VERSION = 8, AT_FRAME = 12, AT_BYTES = 16, AT_KEY = 24, AT_SALT = 32 };

static const char magic[8] = {'W', 'E', 'F', 'T', 'S', 'E', 'A', 'L'};

static void put(unsigned char *to, int bytes, uint64_t value) {
    for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | from[i];
    return value;
}

/* A file without bytes has one frame, so that its header is authenticated. */
static int64_t frames_of(int64_t bytes, int64_t frame_bytes) {
    return bytes ? (bytes - 1) / frame_bytes + 1 : 1;
}

int64_t wefti_seal_file_bytes(int64_t bytes, int64_t frame_bytes) {
    return WEFTI_SEAL_HEADER_BYTES + bytes + frames_of(bytes, frame_bytes) * WEFTI_SEAL_TAG_BYTES;
}

int64_t wefti_seal_frame_bytes(const wefti_seal *seal, int64_t frame) {
    const int64_t left = seal->bytes - frame * seal->frame_bytes;
    return left < seal->frame_bytes ? left : seal->frame_bytes;
}

int64_t wefti_seal_frame_at(const wefti_seal *seal, int64_t frame) {
    return WEFTI_SEAL_HEADER_BYTES + frame * (seal->frame_bytes + WEFTI_SEAL_TAG_BYTES);
}

bool wefti_seal_is(const void *data, int64_t bytes) {
    return bytes >= (int64_t)sizeof magic && !memcmp(data, magic, sizeof magic);
}

void wefti_seal_wipe(wefti_seal *seal) {
    explicit_bzero(seal, sizeof *seal);
}

void wefti_seal_mark_of(const wefti_seal *seal, wefti_seal_mark *out) {
    out->sealed = true;
    memcpy(out->salt, seal->header + AT_SALT, sizeof out->salt);
}

weft_status wefti_seal_mark_make(wefti_seal_mark *out) {
    out->sealed = true;
    return wefti_random_bytes(out->salt, sizeof out->salt);
}

weft_status wefti_seal_make(const wefti_key *key, const wefti_seal_mark *mark, const char *name,
                            int64_t bytes, int64_t frame_bytes, wefti_seal *out) {
    *out = (wefti_seal){
        .bytes = bytes, .frame_bytes = frame_bytes, .frames = frames_of(bytes, frame_bytes)};
    memcpy(out->header, magic, sizeof magic);
    put(out->header + AT_VERSION, 4, SEAL_VERSION);
    put(out->header + AT_FRAME, 4, (uint64_t)frame_bytes);
    put(out->header + AT_BYTES, 8, (uint64_t)bytes);
    put(out->header + AT_KEY, 8, key->number);
    memcpy(out->header + AT_SALT, mark->salt, sizeof mark->salt);
    return wefti_derive_file(key->bytes, mark->salt, name, out->key);
}

/* Sizes in a header may be anything. */
static weft_status check_sizes(const wefti_seal *s, uint64_t bytes, int64_t file_bytes,
                               const char *path) {
    WEFT_REQUIRE(s->frame_bytes >= FRAME_LEAST && s->frame_bytes <= FRAME_MOST, WEFT_E_CORRUPT,
                 "%s is damaged: its header says frames of %lld bytes", path,
                 (long long)s->frame_bytes);
    WEFT_REQUIRE(bytes <= (uint64_t)file_bytes &&
                     wefti_seal_file_bytes((int64_t)bytes, s->frame_bytes) == file_bytes,
                 WEFT_E_CORRUPT,
                 "%s has %lld bytes, but its header says %llu before encryption: it was cut or "
                 "damaged",
                 path, (long long)file_bytes, (unsigned long long)bytes);
    return WEFT_OK;
}

weft_status wefti_seal_parse(const unsigned char header[WEFTI_SEAL_HEADER_BYTES],
                             int64_t file_bytes, const char *path, wefti_seal *out) {
    const char *slash = strrchr(path, '/');
    const uint64_t version = get(header + AT_VERSION, 4), bytes = get(header + AT_BYTES, 8),
                   number = get(header + AT_KEY, 8);
    char others[WEFTI_KEYS_TEXT];
    wefti_key key;
    WEFT_REQUIRE(wefti_gcm_is_built(), WEFT_E_NO_IMPL,
                 "%s is encrypted, and this weft was built without OpenSSL", path);
    WEFT_REQUIRE(version == SEAL_VERSION, WEFT_E_NO_IMPL,
                 "%s is encrypted in format version %llu; this weft reads version %d", path,
                 (unsigned long long)version, SEAL_VERSION);
    *out = (wefti_seal){.frame_bytes = (int64_t)get(header + AT_FRAME, 4)};
    WEFT_TRY(check_sizes(out, bytes, file_bytes, path));
    out->bytes = (int64_t)bytes;
    out->frames = frames_of(out->bytes, out->frame_bytes);
    memcpy(out->header, header, WEFTI_SEAL_HEADER_BYTES);
    if (!wefti_key_find(number, &key, others)) {
        WEFT_REQUIRE(*others, WEFT_E_ARG,
                     "%s is encrypted with key %016llx: name the key's file, in a job by "
                     "checkpoint.key, for other commands by --key",
                     path, (unsigned long long)number);
        WEFT_FAIL(WEFT_E_ARG,
                  "%s is encrypted with key %016llx, and the key given is another one: "
                  "%s",
                  path, (unsigned long long)number, others);
    }
    weft_status status =
        wefti_derive_file(key.bytes, header + AT_SALT, slash ? slash + 1 : path, out->key);
    explicit_bzero(&key, sizeof key);
    return status;
}
