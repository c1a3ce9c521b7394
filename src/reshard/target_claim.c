/* The temporary directory of a destination belongs to one conversion at a time. See target.h.
 *
 * The conversion holds an flock on the directory until it ends, however it ends. A directory that
 * is not locked was left by a process that is gone. File systems without locks of directories do
 * without. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "reshard/target.h"

enum { CLAIM_ATTEMPTS = 100 };

/* Whether the path still leads to the directory that is open as `fd`. */
static bool is_there(int fd, const char *path) {
    struct stat locked, found;
    return WEFTI_DISK_WATCH(fstat(fd, &locked)) == 0 && WEFTI_DISK_WATCH(stat(path, &found)) == 0 &&
           locked.st_dev == found.st_dev && locked.st_ino == found.st_ino;
}

/* Opens and locks the directory, which is there or was removed just now: then *out is -1. */
static weft_status lock(const wefti_target *t, int *out) {
    const int fd = WEFTI_DISK(open(t->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    *out = -1;
    if (fd < 0 && errno == ENOENT) return WEFT_OK;
    WEFT_REQUIRE(fd >= 0, WEFT_E_IO, "cannot open the directory %s: %s", t->temporary,
                 strerror(errno));
    const bool busy = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (!busy && is_there(fd, t->temporary)) {
        *out = fd;
        return WEFT_OK;
    }
    (void)WEFTI_DISK_WATCH(close(fd));
    WEFT_REQUIRE(!busy, WEFT_E_ARG,
                 "another conversion is writing %s now: wait for it, or write to another place",
                 t->path);
    return WEFT_OK;
}

static weft_status is_empty(const char *path, bool *out) {
    char **names = NULL;
    int64_t count = 0;
    WEFT_TRY(wefti_dir_list(path, &names, &count));
    wefti_free(names);
    *out = !count;
    return WEFT_OK;
}

/* One attempt; t->claim is set when the directory is empty and ours. */
static weft_status claim_once(wefti_target *t) {
    bool empty = false;
    int fd;
    WEFT_TRY(wefti_dir_make(t->temporary));
    WEFT_TRY(lock(t, &fd));
    if (fd < 0) return WEFT_OK;
    weft_status status = is_empty(t->temporary, &empty);
    if (status >= 0 && empty) {
        t->claim = fd;
        return WEFT_OK;
    }
    if (status >= 0) status = wefti_remove_tree(t->temporary); /* of a run that was killed */
    (void)WEFTI_DISK_WATCH(close(fd));
    return status;
}

weft_status wefti_target_claim(wefti_target *t) {
    for (int i = 0; i < CLAIM_ATTEMPTS && t->claim < 0; i++) WEFT_TRY(claim_once(t));
    WEFT_REQUIRE(t->claim >= 0, WEFT_E_IO, "other processes remove %s again and again",
                 t->temporary);
    t->made = true;
    return WEFT_OK;
}
