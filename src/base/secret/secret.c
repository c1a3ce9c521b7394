/* Random bytes and private files: see secret.h. */
#include "base/secret/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

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

static bool is_own_group(gid_t group) {
    gid_t groups[1024];
    if (group == getegid()) return true;
    const int count = getgroups(sizeof groups / sizeof *groups, groups);
    for (int i = 0; i < count; i++)
        if (groups[i] == group) return true;
    return false;
}

/* Volumes of Kubernetes and others mount secrets so: root's, and nobody may write. */
static bool is_mounted(const struct stat *s) {
    const unsigned mode = (unsigned)s->st_mode & 07777;
    return s->st_uid == 0 && mode == 0440 && is_own_group(s->st_gid);
}

static weft_status check_file(int fd, const char *path, const char *noun) {
    struct stat s;
    WEFT_REQUIRE(fstat(fd, &s) == 0, WEFT_E_IO, "%s: %s", path, strerror(errno));
    WEFT_REQUIRE(S_ISREG(s.st_mode), WEFT_E_ARG, "%s: a %s is a plain file", path, noun);
    if (is_mounted(&s)) return WEFT_OK;
    WEFT_REQUIRE(s.st_uid == geteuid(), WEFT_E_ARG,
                 "%s: this %s belongs to user %ld and has mode %04o, but the process runs as user "
                 "%ld: use a file of that user, or one of root's with mode 0440 and a group of the "
                 "process",
                 path, noun, (long)s.st_uid, (unsigned)(s.st_mode & 07777), (long)geteuid());
    WEFT_REQUIRE((s.st_mode & 0177) == 0, WEFT_E_ARG,
                 "%s: this %s has mode %04o, so that others can use it; do chmod 600", path, noun,
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

const char *wefti_private_variable(const char *path) {
    return strncmp(path, "env:", 4) == 0 ? path + 4 : NULL;
}

static weft_status read_variable(const char *name, const char *noun, void *data, size_t room,
                                 size_t *out_bytes) {
    const char *value = getenv(name);
    WEFT_REQUIRE(value && *value, WEFT_E_NOT_FOUND,
                 "the environment variable %s, which is to hold a %s, is not set", name, noun);
    *out_bytes = strnlen(value, room);
    memcpy(data, value, *out_bytes);
    return WEFT_OK;
}

weft_status wefti_private_read(const char *path, const char *noun, void *data, size_t room,
                               size_t *out_bytes) {
    const char *variable = wefti_private_variable(path);
    if (variable) return read_variable(variable, noun, data, room, out_bytes);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    WEFT_REQUIRE(fd >= 0, errno == ENOENT ? WEFT_E_NOT_FOUND : WEFT_E_IO,
                 "%s: this %s cannot be read: %s", path, noun, strerror(errno));
    weft_status status = check_file(fd, path, noun);
    if (status >= 0) status = read_all(fd, path, data, room, out_bytes);
    close(fd);
    return status;
}

weft_status wefti_private_create(const char *path, const char *noun) {
    unsigned char bytes[32];
    char text[2 * sizeof bytes + 1];
    WEFT_TRY(wefti_random_bytes(bytes, sizeof bytes));
    for (size_t i = 0; i < sizeof bytes; i++) {
        text[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    text[2 * sizeof bytes] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    WEFT_REQUIRE(fd >= 0, WEFT_E_IO, "%s: no %s can be made here: %s", path, noun, strerror(errno));
    bool whole = write(fd, text, sizeof text) == (ssize_t)sizeof text && fsync(fd) == 0;
    int error = errno;
    explicit_bzero(bytes, sizeof bytes);
    explicit_bzero(text, sizeof text);
    if (close(fd) != 0) whole = false;
    if (!whole) unlink(path);
    WEFT_REQUIRE(whole, WEFT_E_IO, "%s: the %s cannot be written: %s", path, noun, strerror(error));
    return WEFT_OK;
}
