/* What a process can find out about the mpirun that started it, without MPI: an MPI that does not
 * find its launcher ends the process with messages of its own, and one that waits in MPI_Init for
 * missing processes does not name them. */
#include "launch/join/mpi_module.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "launch/socket.h"

static const char advice[] = "it has ended, or did not start this process; start with mpirun, or "
                             "set WEFT_SCHEDULER=HOST:PORT "
                             "for all processes, an address of rank 0's host";

/* --- is it there? */

static bool is_socket(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
}

/* Whether a process listens at an address of this host. */
static bool listens(const char *address) {
    enum { MILLISECONDS = 2000 };
    wefti_address to;
    int fd = -1;
    weft_status status = wefti_address_find(address, &to);
    if (status >= 0) status = wefti_connect(&to, "", &fd);
    if (status == WEFT_PENDING) {
        (void)poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, MILLISECONDS);
        status = wefti_connected(fd);
    }
    if (fd >= 0) close(fd);
    return status != WEFT_E_NOT_FOUND && status != WEFT_E_PEER;
}

weft_status wefti_mpirun_check(const wefti_launcher *l) {
    WEFT_REQUIRE(l->open_mpi || l->pmi_fd < 0 || is_socket(l->pmi_fd), WEFT_E_ARG,
                 "PMI_FD is %d, but this process has no connection of that number to mpirun: %s",
                 l->pmi_fd, advice);
    WEFT_REQUIRE(!l->open_mpi || !*l->pmix_server || listens(l->pmix_server), WEFT_E_ARG,
                 "mpirun should be at %s (PMIX_SERVER_URI2), but no process listens there: %s",
                 l->pmix_server, advice);
    return WEFT_OK;
}

/* --- which ranks of this host run? */

static pid_t parent_of(pid_t process) {
    char path[64], text[512];
    int parent = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *behind = strrchr(text, ')'); /* of the name, which may hold anything */
    return behind && sscanf(behind + 1, " %*c %d", &parent) == 1 ? (pid_t)parent : 0;
}

static int rank_of(pid_t process, const char *variable) {
    enum { MOST = 1 << 20 };
    char path[64], *text = wefti_alloc(MOST);
    int rank = -1;
    size_t length = strlen(variable), used = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/environ", (int)process);
    int fd = text ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    for (ssize_t got; fd >= 0 && used < MOST - 1; used += (size_t)got)
        if ((got = read(fd, text + used, MOST - 1 - used)) <= 0) break;
    if (fd >= 0) close(fd);
    if (text) text[used] = '\0';
    for (size_t at = 0; at < used; at += strlen(text + at) + 1)
        if (!strncmp(text + at, variable, length) && text[at + length] == '=')
            rank = atoi(text + at + length + 1);
    wefti_free(text);
    return rank;
}

/* The closest ancestor without a rank: mpirun, or its daemon on this host. */
static pid_t starter_of(pid_t process, const char *variable) {
    enum { GENERATIONS = 64 };
    for (int i = 0; i < GENERATIONS && process > 1; i++) {
        process = parent_of(process);
        if (process > 0 && rank_of(process, variable) < 0) return process;
    }
    return 0;
}

/* Marks the ranks that run on this host as children of `starter`. */
static void mark_running(pid_t starter, const char *variable, bool *running, int size) {
    DIR *directory = opendir("/proc");
    for (const struct dirent *e; directory && (e = readdir(directory));) {
        pid_t process = (pid_t)strtol(e->d_name, NULL, 10);
        int rank = process > 0 ? rank_of(process, variable) : -1;
        if (rank >= 0 && rank < size && !running[rank])
            running[rank] = starter_of(process, variable) == starter;
    }
    if (directory) closedir(directory);
}

char *wefti_mpirun_missing(const wefti_launcher *l) {
    enum { NAMED = 8 };
    const char *variable = l->open_mpi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK";
    const int size = l->place.size, local = l->place.local_size;
    pid_t starter = starter_of(getpid(), variable);
    bool *running = starter > 0 ? wefti_calloc((size_t)size, sizeof *running) : NULL;
    wefti_text text = {0};
    int count = 0, named = 0;
    if (!running) return NULL;
    mark_running(starter, variable, running, size);
    for (int r = 0; r < size; r++) count += running[r];
    for (int r = 0; r < size && local == size && count > 0; r++)
        if (!running[r] && ++named <= NAMED)
            wefti_text_add(&text, named == 1 ? "rank %d" : ", rank %d", r);
    if (named > NAMED) wefti_text_add(&text, " and %d more", named - NAMED);
    if (named > 0) wefti_text_add(&text, named == 1 ? " is not running" : " are not running");
    if (named == 0 && count > 0 && count < local)
        wefti_text_add(&text, "%d of the %d ranks of this host are not running", local - count,
                       local);
    wefti_free(running);
    return text.used > 0 ? wefti_text_take(&text) : NULL;
}
