/* Starts one process: spawn.h. Between fork and exec it makes only calls that are safe in a
 * process whose other threads are gone: no allocation, no locks. */
#include "launch/spawn/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"

/* --- where a command is --- */

static bool is_program(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

/* The first program of that name in the folders of `path`; NULL: none, or no memory. */
static char *along_path(const char *word, const char *path) {
    for (const char *at = path ? path : "/usr/local/bin:/usr/bin:/bin"; at;) {
        const char *end = strchrnul(at, ':');
        char *whole = end == at ? wefti_format("./%s", word)
                                : wefti_format("%.*s/%s", (int)(end - at), at, word);
        if (whole && is_program(whole)) return whole;
        wefti_free(whole);
        at = *end ? end + 1 : NULL;
    }
    return NULL;
}

weft_status wefti_command_find(const char *word, const char *folders, const char *self,
                               char **out) {
    char *path = strchr(word, '/') ? wefti_strdup(word) : along_path(word, folders);
    if (!path && !strcmp(word, "weft") && self) path = wefti_strdup(self);
    WEFT_REQUIRE(path, WEFT_E_NOT_FOUND, "cannot run %s: PATH has no such program", word);
    int error = access(path, F_OK) ? errno : !is_program(path) ? EACCES : 0;
    if (error) {
        wefti_free(path);
        WEFT_FAIL(error == ENOENT ? WEFT_E_NOT_FOUND : WEFT_E_IO, "cannot run %s: %s", word,
                  error == EACCES ? "the file is not executable" : strerror(error));
    }
    *out = path;
    return WEFT_OK;
}

/* --- the child's side --- */

/* Everything but stdio is closed by exec, whoever opened it. */
static void close_others(void) {
#if defined(SYS_close_range)
    enum { ON_EXEC = 4 }; /* CLOSE_RANGE_CLOEXEC, linux/close_range.h */
    if (syscall(SYS_close_range, 3U, ~0U, ON_EXEC) == 0) return;
#endif
    for (int fd = 3; fd < 1024; fd++) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Programs expect default signals: exec keeps ignored and blocked ones. */
static void default_signals(void) {
    sigset_t none;
    for (int number = 1; number < NSIG; number++) (void)signal(number, SIG_DFL);
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Moves a descriptor above those of stdio. If the parent has closed one of those, a newly opened
 * file gets its number. */
static int lifted(int fd) {
    return fd > STDERR_FILENO ? fd : fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

static bool become(const wefti_spawn *what, pid_t parent) {
    int output = lifted(what->output), errors = lifted(what->errors);
    int nothing = lifted(open("/dev/null", O_RDONLY));
    if (output < 0 || errors < 0 || nothing < 0) return false;
    if (setpgid(0, 0) || prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent) return false;
    if (dup2(nothing, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
        dup2(errors, STDERR_FILENO) < 0)
        return false;
    if (what->cores && sched_setaffinity(0, sizeof *what->cores, what->cores)) return false;
    close_others();
    default_signals();
    (void)execve(what->path, what->words, what->environment);
    return false;
}

/* --- the parent's --- */

/* The number of the error that kept it from running; 0: it runs. */
static int wait_for_exec(int fd) {
    int error = 0;
    ssize_t got;
    do {
        got = read(fd, &error, sizeof error);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof error ? error : 0;
}

weft_status wefti_process_start(const wefti_spawn *what, pid_t *out) {
    int report[2];
    pid_t parent = getpid();
    WEFT_REQUIRE(pipe2(report, O_CLOEXEC) == 0, WEFT_E_IO, "cannot make a pipe: %s",
                 strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        int end = lifted(report[1]);
        if (!become(what, parent)) {
            int error = errno;
            ssize_t ignored = write(end, &error, sizeof error);
            (void)ignored;
        }
        _exit(127);
    }
    int error = child < 0 ? errno : 0;
    close(report[1]);
    if (!error) error = wait_for_exec(report[0]);
    close(report[0]);
    if (error && child > 0) (void)waitpid(child, NULL, 0);
    WEFT_REQUIRE(!error, WEFT_E_IO, "cannot run %s: %s", what->words[0], strerror(error));
    *out = child;
    return WEFT_OK;
}
