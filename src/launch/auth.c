/* Secrets and proofs: see auth.h. */
#include "launch/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

weft_status wefti_random_bytes(void *out, size_t bytes) {
    unsigned char *p = out;
    while (bytes > 0) {
        ssize_t n = getrandom(p, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        WEFT_REQUIRE(n > 0, WEFT_E_IO, "no random bytes from the system: %s", strerror(errno));
        p += n;
        bytes -= (size_t)n;
    }
    return WEFT_OK;
}

static weft_status check_file(int fd, const char *path) {
    struct stat s;
    WEFT_REQUIRE(fstat(fd, &s) == 0, WEFT_E_IO, "%s: %s", path, strerror(errno));
    WEFT_REQUIRE(S_ISREG(s.st_mode), WEFT_E_ARG, "%s: a secret is a plain file", path);
    WEFT_REQUIRE(s.st_uid == geteuid(), WEFT_E_ARG,
                 "%s: this secret belongs to user %ld, but the process runs as user %ld", path,
                 (long)s.st_uid, (long)geteuid());
    WEFT_REQUIRE((s.st_mode & 0177) == 0, WEFT_E_ARG,
                 "%s: this secret has mode %04o, so that others can use it; do chmod 600", path,
                 (unsigned)(s.st_mode & 07777));
    return WEFT_OK;
}

static weft_status read_all(int fd, const char *path, unsigned char *data, size_t room,
                            size_t *out) {
    size_t used = 0;
    while (used < room) {
        ssize_t n = read(fd, data + used, room - used);
        if (n < 0 && errno == EINTR) continue;
        WEFT_REQUIRE(n >= 0, WEFT_E_IO, "%s: %s", path, strerror(errno));
        if (n == 0) break;
        used += (size_t)n;
    }
    *out = used;
    return WEFT_OK;
}

weft_status wefti_secret_read(const char *path, wefti_secret *out) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    WEFT_REQUIRE(fd >= 0, errno == ENOENT ? WEFT_E_NOT_FOUND : WEFT_E_IO,
                 "%s: the job's secret cannot be read: %s", path, strerror(errno));
    unsigned char data[WEFTI_SECRET_MAX + 2];
    size_t used = 0;
    weft_status status = check_file(fd, path);
    if (status >= 0) status = read_all(fd, path, data, sizeof data, &used);
    close(fd);
    WEFT_TRY(status);
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
    unsigned char bytes[WEFTI_DIGEST_BYTES];
    char text[2 * sizeof bytes + 1];
    WEFT_TRY(wefti_random_bytes(bytes, sizeof bytes));
    for (size_t i = 0; i < sizeof bytes; i++) {
        text[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    text[2 * sizeof bytes] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    WEFT_REQUIRE(fd >= 0, WEFT_E_IO, "%s: no secret can be made here: %s", path, strerror(errno));
    bool whole = write(fd, text, sizeof text) == (ssize_t)sizeof text && fsync(fd) == 0;
    int error = errno;
    if (close(fd) != 0) whole = false;
    if (!whole) unlink(path);
    WEFT_REQUIRE(whole, WEFT_E_IO, "%s: the secret cannot be written: %s", path, strerror(error));
    return WEFT_OK;
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
