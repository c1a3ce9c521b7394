/* The folder of a run, with its secret. The launcher holds a lock on it for as long as it lives.
 * The reaper removes the folder if the launcher is killed. If both are killed at once, as by a kill
 * of a whole control group, the secret stays: the next launcher finds it without a lock and removes
 * it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/spawn/launch.h"

static const char folder_start[] = "weft-";

/* This user's, and closed to others. */
static int open_own(int parent, const char *name) {
    struct stat s;
    const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &s) == 0 && s.st_uid == geteuid() && (s.st_mode & 07777) == 0700) return fd;
    close(fd);
    return -1;
}

/* A folder without a secret may be one that a launcher is just making. */
static void remove_stale(int parent, const char *name) {
    struct stat s;
    const int fd = open_own(parent, name);
    if (fd < 0) return;
    if (fstatat(fd, "secret", &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode) &&
        flock(fd, LOCK_EX | LOCK_NB) == 0) {
        (void)unlinkat(fd, "secret", 0);
        (void)unlinkat(parent, name, AT_REMOVEDIR);
    }
    close(fd);
}

static void remove_all_stale(const char *temporary) {
    DIR *listing = opendir(temporary);
    const struct dirent *entry;
    enum { LENGTH = sizeof "weft-XXXXXX" - 1 };
    while (listing && (entry = readdir(listing)))
        if (strlen(entry->d_name) == LENGTH &&
            !strncmp(entry->d_name, folder_start, sizeof folder_start - 1))
            remove_stale(dirfd(listing), entry->d_name);
    if (listing) closedir(listing);
}

/* mkdtemp makes it so that only this user can look into it. A file system without locks keeps what
 * is stale. */
weft_status wefti_launch_make_folder(wefti_launch *l) {
    const char *temporary = l->set.temporary;
    char whole[PATH_MAX], *folder = wefti_format("%s/%sXXXXXX", temporary, folder_start);
    WEFT_REQUIRE(folder, WEFT_E_NOMEM, "no memory for a path");
    remove_all_stale(temporary);
    if (!mkdtemp(folder)) {
        const int error = errno;
        wefti_free(folder);
        WEFT_FAIL(WEFT_E_IO, "cannot make a folder in %s: %s", temporary, strerror(error));
    }
    l->folder = folder;
    l->folder_lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (l->folder_lock >= 0) (void)flock(l->folder_lock, LOCK_EX | LOCK_NB);
    if (!realpath(folder, whole)) return WEFT_OK; /* its reader reports it */
    char *copy = wefti_strdup(whole);             /* ranks must find it from any folder */
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a path");
    wefti_free(folder);
    l->folder = copy;
    return WEFT_OK;
}

void wefti_launch_remove_folder(wefti_launch *l) {
    if (l->own_secret && l->secret) (void)unlink(l->secret);
    if (l->folder) (void)rmdir(l->folder);
    if (l->folder && l->folder_lock >= 0) close(l->folder_lock);
}
