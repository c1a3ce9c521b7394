/* Clearing up: processes by their mark, and the reaper, which does it when the launcher cannot.
 *
 * All of it works with system calls alone: the reaper is a fork of a process that may have threads,
 * so that it must not allocate. If the reaper itself is killed, the launcher starts another. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "launch/spawn/spawn.h"

enum { GROUPS_MAX = 1 << 16, REAPER_PATH_BYTES = 1024, MARK_BYTES = 128 };

struct wefti_reaper {
    pid_t process;
    int pipe; /* groups go in, as numbers; 0: all is cleared up */
    char mark[MARK_BYTES], folder[REAPER_PATH_BYTES], secret[REAPER_PATH_BYTES];
    pid_t groups[GROUPS_MAX]; /* launcher and reaper have a copy each */
    int group_count;
};

/* --- processes by their mark --- */

/* Whether one of the NUL-terminated texts behind `fd` is `mark`. A text may span two reads, so the
 * length of the match so far is kept. */
static bool holds(int fd, const char *mark) {
    char buffer[4096];
    size_t at = 0;    /* characters of the mark matched */
    bool fits = true; /* this text so far */
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            if (buffer[i] == '\0') {
                if (fits && mark[at] == '\0') return true;
                at = 0;
                fits = true;
            } else if (fits && mark[at] == buffer[i]) {
                at++;
            } else {
                fits = false;
            }
        }
    }
    return fits && at > 0 && mark[at] == '\0';
}

/* "/proc/<pid>/environ" without printf, which may take locks. */
static bool is_marked(const char *pid, const char *mark) {
    char path[64] = "/proc/";
    if (strlen(pid) > 20) return false;
    strcat(strcat(path, pid), "/environ");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool found = holds(fd, mark);
    close(fd);
    return found;
}

/* As the kernel writes them; getdents64(2). */
typedef struct reaper_entry {
    uint64_t inode;
    int64_t next;
    unsigned short bytes;
    unsigned char type;
    char name[];
} reaper_entry;

static pid_t number_of(const char *name) {
    pid_t pid = 0;
    for (; *name >= '0' && *name <= '9' && pid < 100000000; name++) pid = pid * 10 + (*name - '0');
    return *name ? 0 : pid;
}

int wefti_kill_marked(const char *mark) {
    char buffer[8192] __attribute__((aligned(8)));
    int found = 0, folder = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long got;
    if (folder < 0) return 0;
    while ((got = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < got;) {
            const reaper_entry *e = (const reaper_entry *)(const void *)(buffer + at);
            pid_t pid = number_of(e->name);
            at += e->bytes;
            if (pid <= 1 || pid == getpid() || !is_marked(e->name, mark)) continue;
            found++;
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, NULL, WNOHANG);
        }
    }
    close(folder);
    return found;
}

/* --- the reaper --- */

static void nap(long milliseconds) {
    struct timespec t = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

static void clear_up(wefti_reaper *k) {
    for (int i = 0; i < k->group_count; i++) (void)kill(-k->groups[i], SIGKILL);
    /* Twice without any: one that was being started while we looked is found the second time. */
    for (int round = 0, none = 0; round < 200 && none < 2; round++) {
        none = wefti_kill_marked(k->mark) ? 0 : none + 1;
        nap(10);
    }
    if (*k->secret) (void)unlink(k->secret);
    if (*k->folder) (void)rmdir(k->folder);
}

static void close_all_but(int fd) {
#if defined(SYS_close_range)
    if (syscall(SYS_close_range, fd + 1, ~0U, 0) == 0 &&
        (fd == 0 || syscall(SYS_close_range, 0U, fd - 1, 0) == 0))
        return;
#endif
    for (int other = 0; other < 1024; other++)
        if (other != fd) close(other);
}

static void note(wefti_reaper *k, pid_t group) {
    if (k->group_count < GROUPS_MAX) k->groups[k->group_count++] = group;
}

static void keep(wefti_reaper *k, int fd) {
    pid_t group;
    (void)setsid(); /* what a terminal sends to the launcher is not for us */
    for (int number = 1; number < NSIG; number++) (void)signal(number, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL);
    close_all_but(fd);
    for (;;) {
        ssize_t got = read(fd, &group, sizeof group); /* whole: writes of that size are atomic */
        if (got < 0 && errno == EINTR) continue;
        if (got != (ssize_t)sizeof group) break;
        if (group == 0) _exit(0);
        note(k, group);
    }
    clear_up(k);
    _exit(0);
}

/* 0, or the error. */
static int begin(wefti_reaper *k) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return errno;
    pid_t process = fork();
    int error = process < 0 ? errno : 0;
    if (process == 0) keep(k, ends[0]);
    close(ends[0]);
    if (error) {
        close(ends[1]);
        return error;
    }
    k->process = process;
    k->pipe = ends[1];
    return 0;
}

weft_status wefti_reaper_start(const char *mark, const char *folder, const char *secret,
                               wefti_reaper **out) {
    wefti_reaper *k;
    WEFT_REQUIRE(strlen(mark) < MARK_BYTES && strlen(folder) < REAPER_PATH_BYTES &&
                     strlen(secret) < REAPER_PATH_BYTES,
                 WEFT_E_ARG, "the path %s is too long", folder);
    WEFT_NEW(k, wefti_reaper);
    (void)snprintf(k->mark, sizeof k->mark, "%s", mark);
    (void)snprintf(k->folder, sizeof k->folder, "%s", folder);
    (void)snprintf(k->secret, sizeof k->secret, "%s", secret);
    int error = begin(k);
    if (error) {
        wefti_free(k);
        WEFT_FAIL(WEFT_E_IO, "cannot start a process: %s", strerror(error));
    }
    *out = k;
    return WEFT_OK;
}

/* Pipes have no MSG_NOSIGNAL, and a reaper that was killed must not end this process with SIGPIPE.
 */
static void tell(const wefti_reaper *k, pid_t group) {
    sigset_t pipe_signal, before;
    const struct timespec now = {0};
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    ssize_t written = write(k->pipe, &group, sizeof group);
    if (written < 0 && errno == EPIPE) (void)sigtimedwait(&pipe_signal, NULL, &now);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void wefti_reaper_add_group(wefti_reaper *reaper, pid_t group) {
    note(reaper, group);
    tell(reaper, group);
}

void wefti_reaper_check(wefti_reaper *reaper) {
    if (reaper->process > 0) {
        if (waitpid(reaper->process, NULL, WNOHANG) == 0) return;
        close(reaper->pipe);
        reaper->process = 0;
    }
    int error = begin(reaper); /* an error: tries again at the next check */
    (void)error;
}

void wefti_reaper_end(wefti_reaper *reaper) {
    if (!reaper) return;
    if (reaper->process > 0) {
        tell(reaper, 0);
        close(reaper->pipe);
    }
    while (reaper->process > 0 && waitpid(reaper->process, NULL, 0) < 0 && errno == EINTR) {
    }
    wefti_free(reaper);
}
