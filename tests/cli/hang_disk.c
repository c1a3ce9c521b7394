/* Preloaded (LD_PRELOAD): a slow disk, or one that does not answer. It changes calls of the
 * function HANG_CALL ("fsync", "pwrite", "pread", "write" or "open") for files whose path contains
 * HANG_PATH. Each takes HANG_MS milliseconds. Without HANG_MS the call number HANG_AT (from 1)
 * makes the file HANG_MARK and never returns. Its thread waits in the kernel and runs no signal
 * handler. Only the end of the process ends the wait, as with a file server that does not answer.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic int calls;

/* With CLONE_VFORK the parent waits for the child's end in a state that only a fatal signal ends.
 */
static void hang(void) {
    const char *mark = getenv("HANG_MARK");
    if (mark)
        (void)syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, mark, O_CREAT | O_WRONLY, 0666));
    if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) != 0) return;
    (void)syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    for (;;) (void)syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
}

static void call(const char *name, const char *path) {
    const char *wanted = getenv("HANG_CALL"), *in = getenv("HANG_PATH"), *at = getenv("HANG_AT");
    const char *ms = getenv("HANG_MS");
    if (!wanted || strcmp(wanted, name) != 0 || !in || !strstr(path, in)) return;
    if (ms) {
        const struct timespec time = {.tv_sec = atoi(ms) / 1000,
                                      .tv_nsec = atoi(ms) % 1000 * 1000000L};
        (void)nanosleep(&time, NULL);
    } else if (at && atomic_fetch_add(&calls, 1) + 1 == atoi(at)) {
        hang();
    }
}

static void call_on(const char *name, int fd) {
    char link[64], path[4096];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    path[bytes > 0 ? bytes : 0] = 0;
    call(name, path);
}

#define SHOWN __attribute__((visibility("default")))

SHOWN int fsync(int fd) {
    call_on("fsync", fd);
    return (int)syscall(SYS_fsync, fd);
}
SHOWN ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    call_on("pwrite", fd);
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}
SHOWN ssize_t pread(int fd, void *data, size_t bytes, off_t at) {
    call_on("pread", fd);
    return syscall(SYS_pread64, fd, data, bytes, at);
}
SHOWN ssize_t write(int fd, const void *data, size_t bytes) {
    call_on("write", fd);
    return syscall(SYS_write, fd, data, bytes);
}
SHOWN int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    call("open", path);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
