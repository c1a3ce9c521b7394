/* One run per directory: flock on DIR/.lock. The kernel releases it with the process, however the
 * process ends, so a lock is never stale. The process id inside serves the message only. See
 * checkpoint.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/step_dir.h"

struct wefti_checkpoint_lock {
    int fd;
    char *made; /* the directory, if it was made for this run; else NULL */
};

static weft_status held_by_another(int fd, const char *dir) {
    char text[32] = {0};
    ssize_t n = WEFTI_DISK_WATCH(pread(fd, text, sizeof text - 1, 0));
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    if (pid > 0)
        WEFT_FAIL(WEFT_E_ARG,
                  "another run (process %ld) writes checkpoints into %s: stop it, or give this run "
                  "another checkpoint.dir",
                  pid, dir);
    WEFT_FAIL(WEFT_E_ARG,
              "another run writes checkpoints into %s: stop it, or give this run another "
              "checkpoint.dir",
              dir);
}

static weft_status take(int fd, const char *dir) {
    if (WEFTI_DISK(flock(fd, LOCK_EX | LOCK_NB))) {
        if (errno == EWOULDBLOCK) return held_by_another(fd, dir);
        WEFT_FAIL(WEFT_E_IO, "cannot lock %s/.lock: %s", dir, strerror(errno));
    }
    char text[32];
    int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    bool written = WEFTI_DISK(ftruncate(fd, 0)) == 0 &&
                   WEFTI_DISK_WATCH(pwrite(fd, text, (size_t)length, 0)) == length;
    WEFT_REQUIRE(written, WEFT_E_IO, "cannot write %s/.lock: %s", dir, strerror(errno));
    return wefti_step_clean(dir);
}

static weft_status path_of(const char *dir, char **out) {
    *out = wefti_format("%s/.lock", dir);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the name of a file");
    return WEFT_OK;
}

/* A run inside a step's directory would not be found again: resuming looks at the step itself. */
static weft_status refuse_step(const char *dir) {
    bool step = false;
    if (wefti_is_dir(dir)) WEFT_TRY(wefti_step_is(dir, &step));
    WEFT_REQUIRE(!step, WEFT_E_ARG,
                 "%s is a checkpoint itself: name the directory that holds it to go on from the "
                 "newest one there, or begin a run of its own with model.from: %s",
                 dir, dir);
    return WEFT_OK;
}

static weft_status open_in(const char *dir, int *out_fd) {
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    char *path;
    weft_status status = WEFT_OK;
    WEFT_TRY(path_of(dir, &path));
    *out_fd = WEFTI_DISK(open(path, flags, 0666));
    if (*out_fd < 0) status = WEFT_RAISE(WEFT_E_IO, "cannot open %s: %s", path, strerror(errno));
    wefti_free(path);
    return status;
}

/* Whether DIR/.lock is still the file that was locked. */
static weft_status is_there(const wefti_checkpoint_lock *lock, const char *dir, bool *out) {
    struct stat locked, found;
    char *path;
    WEFT_TRY(path_of(dir, &path));
    *out = WEFTI_DISK_WATCH(fstat(lock->fd, &locked)) == 0 &&
           WEFTI_DISK_WATCH(stat(path, &found)) == 0 && locked.st_dev == found.st_dev &&
           locked.st_ino == found.st_ino;
    wefti_free(path);
    return WEFT_OK;
}

/* Locks the file that stands there: a run that ends may remove it before it is locked. */
static weft_status lock_there(wefti_checkpoint_lock *lock, const char *dir) {
    bool there = false;
    while (!there) {
        if (lock->fd >= 0) (void)WEFTI_DISK_WATCH(close(lock->fd));
        WEFT_TRY(wefti_dir_make(dir));
        WEFT_TRY(open_in(dir, &lock->fd));
        WEFT_TRY(take(lock->fd, dir));
        WEFT_TRY(is_there(lock, dir, &there));
    }
    return WEFT_OK;
}

weft_status wefti_checkpoint_lock_open(const char *dir, wefti_checkpoint_lock **out) {
    WEFT_TRY(refuse_step(dir));
    wefti_checkpoint_lock *lock;
    WEFT_NEW(lock, wefti_checkpoint_lock);
    lock->fd = -1;
    const bool made = !wefti_is_dir(dir);
    const weft_status status = lock_there(lock, dir);
    if (status < 0) {
        wefti_checkpoint_lock_close(lock);
        return status;
    }
    if (made) lock->made = wefti_strdup(dir); /* of the holder alone */
    *out = lock;
    return WEFT_OK;
}

weft_status wefti_checkpoint_lock_keep(const char *dir, wefti_checkpoint_lock **lock) {
    wefti_checkpoint_lock *again;
    bool there;
    WEFT_TRY(is_there(*lock, dir, &there));
    if (there) return WEFT_OK;
    WEFT_TRY(wefti_checkpoint_lock_open(dir, &again));
    wefti_checkpoint_lock_close(*lock);
    *lock = again;
    return WEFT_OK;
}

/* Leaves no directory that was made for this run if the run has put nothing into it. */
static void remove_empty(const wefti_checkpoint_lock *lock) {
    char *path;
    bool there = false;
    if (is_there(lock, lock->made, &there) < 0 || !there || path_of(lock->made, &path) < 0) return;
    (void)WEFTI_DISK_WATCH(unlink(path));
    (void)WEFTI_DISK_WATCH(rmdir(lock->made)); /* fails if there are steps */
    wefti_free(path);
}

void wefti_checkpoint_lock_close(wefti_checkpoint_lock *lock) {
    if (!lock) return;
    if (lock->fd >= 0 && lock->made) remove_empty(lock);
    if (lock->fd >= 0) (void)WEFTI_DISK_WATCH(close(lock->fd));
    wefti_free(lock->made);
    wefti_free(lock);
}
