/* Keys: see seal.h. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/gcm/gcm.h"
#include "base/secret/secret.h"
#include "checkpoint/seal/derive.h"
#include "weft/checkpoint.h"

enum { KEYS_MOST = 64, DIGITS = 2 * WEFTI_KEY_BYTES };

/* Files of a process may have several keys: two jobs, or a model that another job has trained. */
static struct {
    pthread_mutex_t mutex;
    wefti_key keys[KEYS_MOST];
    int count;
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool parse(const char *text, size_t length, unsigned char out[WEFTI_KEY_BYTES]) {
    if (length != DIGITS) return false;
    for (size_t i = 0; i < WEFTI_KEY_BYTES; i++) {
        const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

/* The text of a key, without a newline at the end. */
static weft_status read_text(const char *where, char text[DIGITS + 2], size_t *out_length) {
    WEFT_TRY(wefti_private_read(where, "key", text, DIGITS + 2, out_length));
    if (*out_length > 0 && text[*out_length - 1] == '\n') --*out_length;
    return WEFT_OK;
}

weft_status wefti_key_read(const char *where, wefti_key *out) {
    char text[DIGITS + 2];
    size_t length = 0;
    wefti_key key = {{0}, 0};
    WEFT_REQUIRE(*where, WEFT_E_ARG, "a key is named by a file, or by env: and a variable's name");
    WEFT_REQUIRE(!parse(where, strlen(where), key.bytes), WEFT_E_ARG,
                 "a key itself stands where the name of its file belongs: put it into a file of "
                 "mode 0600, and take a new one, as texts of jobs are kept");
    WEFT_REQUIRE(wefti_gcm_is_built(), WEFT_E_NO_IMPL,
                 "%s: this weft was built without OpenSSL, so it neither encrypts nor decrypts",
                 where);
    weft_status status = read_text(where, text, &length);
    if (status >= 0 && !parse(text, length, key.bytes))
        status = WEFT_RAISE(WEFT_E_ARG,
                            "%s holds no key: a key is %d hexadecimal digits, as from openssl rand "
                            "-hex %d",
                            where, DIGITS, WEFTI_KEY_BYTES);
    if (status >= 0) status = wefti_derive_number(key.bytes, &key.number);
    if (status >= 0) *out = key;
    explicit_bzero(text, sizeof text);
    explicit_bzero(&key, sizeof key);
    return status;
}

weft_status wefti_key_keep(const wefti_key *key) {
    bool there = false;
    pthread_mutex_lock(&kept.mutex);
    for (int i = 0; i < kept.count; i++)
        there = there || !memcmp(kept.keys[i].bytes, key->bytes, sizeof key->bytes);
    const bool room = there || kept.count < KEYS_MOST;
    if (!there && room) kept.keys[kept.count++] = *key;
    pthread_mutex_unlock(&kept.mutex);
    WEFT_REQUIRE(room, WEFT_E_ARG, "this process has %d keys of checkpoints already", KEYS_MOST);
    return WEFT_OK;
}

bool wefti_key_is_kept(void) {
    pthread_mutex_lock(&kept.mutex);
    const bool any = kept.count > 0;
    pthread_mutex_unlock(&kept.mutex);
    return any;
}

bool wefti_key_find(uint64_t number, wefti_key *out, char out_text[WEFTI_KEYS_TEXT]) {
    enum { TOLD = 4 };
    bool found = false;
    size_t used = 0;
    out_text[0] = '\0';
    pthread_mutex_lock(&kept.mutex);
    for (int i = 0; i < kept.count && !found; i++) {
        found = kept.keys[i].number == number;
        if (found) *out = kept.keys[i];
        if (i < TOLD)
            used += (size_t)snprintf(out_text + used, WEFTI_KEYS_TEXT - used, "%s%016llx",
                                     i ? ", " : "", (unsigned long long)kept.keys[i].number);
    }
    pthread_mutex_unlock(&kept.mutex);
    return found;
}

weft_status weft_checkpoint_key(const char *where) {
    wefti_key key;
    WEFT_REQUIRE(where, WEFT_E_ARG, "the name of a key is missing");
    WEFT_TRY(wefti_key_read(where, &key));
    weft_status status = wefti_key_keep(&key);
    explicit_bzero(&key, sizeof key);
    return status;
}

weft_status weft_checkpoint_make_key(const char *path) {
    WEFT_REQUIRE(path, WEFT_E_ARG, "the name of a key is missing");
    return wefti_private_create(path, "key");
}
