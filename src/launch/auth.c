/* Secrets and proofs: see auth.h. */
#include "launch/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

weft_status wefti_secret_read(const char *path, wefti_secret *out) {
    unsigned char data[WEFTI_SECRET_MAX + 2];
    size_t used = 0;
    WEFT_TRY(wefti_private_read(path, "secret", data, sizeof data, &used));
    weft_status status = WEFT_OK;
    if (used > 0 && data[used - 1] == '\n') used--;
    if (used >= WEFTI_SECRET_MIN && used <= WEFTI_SECRET_MAX)
        wefti_sha256(data, used, out->key);
    else
        status = WEFT_RAISE(WEFT_E_ARG, "%s: a secret has %d to %d bytes, not %s%zu", path,
                            WEFTI_SECRET_MIN, WEFTI_SECRET_MAX,
                            used > WEFTI_SECRET_MAX ? "at least " : "", used);
    explicit_bzero(data, sizeof data);
    return status;
}

weft_status wefti_secret_create(const char *path) {
    return wefti_private_create(path, "secret");
}

/* Processes of one job may start together: all but one find that the file exists. It is made under
 * a name of its own and linked, so that nobody reads half of it. */
static weft_status find_own(const char *folder, const char *path, wefti_secret *out) {
    weft_status status = wefti_secret_read(path, out);
    if (status != WEFT_E_NOT_FOUND) return status;
    WEFT_REQUIRE(mkdir(folder, 0700) == 0 || errno == EEXIST, WEFT_E_IO, "%s: %s", folder,
                 strerror(errno));
    char *fresh = wefti_format("%s.%ld", path, (long)getpid());
    WEFT_REQUIRE(fresh, WEFT_E_NOMEM, "no memory for a path");
    status = wefti_secret_create(fresh);
    if (status >= 0) {
        if (link(fresh, path) != 0 && errno != EEXIST)
            status = WEFT_RAISE(WEFT_E_IO, "%s: %s", path, strerror(errno));
        unlink(fresh);
    }
    wefti_free(fresh);
    WEFT_TRY(status);
    WEFT_TRY(wefti_secret_read(path, out));
    return WEFT_OK;
}

weft_status wefti_secret_find(const char *named, const char *home, wefti_secret *out,
                              char **out_path) {
    bool given = *named != '\0';
    WEFT_REQUIRE(given || *home, WEFT_E_ARG,
                 "no secret for this job: neither WEFT_SECRET_FILE nor HOME is set");
    char *folder = wefti_format("%s/.weft", given ? "" : home);
    char *path = given ? wefti_strdup(named) : wefti_format("%s/.weft/secret", home);
    weft_status status = WEFT_OK;
    if (!folder || !path)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a path");
    else
        status = given ? wefti_secret_read(path, out) : find_own(folder, path, out);
    wefti_free(folder);
    if (status >= 0 && out_path)
        *out_path = path;
    else
        wefti_free(path);
    return status;
}

void wefti_prove(const wefti_secret *secret, wefti_proof what, const wefti_nonces *nonces,
                 unsigned char out[WEFTI_DIGEST_BYTES]) {
    static const char *const label[] = {"weft 1 member proof    ", "weft 1 scheduler proof ",
                                        "weft 1 member key      ", "weft 1 scheduler key   ",
                                        "weft 1 tls key         "};
    unsigned char data[24 + 2 * WEFTI_NONCE_BYTES];
    memcpy(data, label[what], 24);
    memcpy(data + 24, nonces->scheduler, WEFTI_NONCE_BYTES);
    memcpy(data + 24 + WEFTI_NONCE_BYTES, nonces->member, WEFTI_NONCE_BYTES);
    wefti_hmac(secret->key, sizeof secret->key, data, sizeof data, out);
}
