/* Whether threads of this process sleep, as the kernel sees them: what a test waits for that needs
 * a sleeping thread. */
#ifndef THREADS_ASLEEP_H
#define THREADS_ASLEEP_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int this_thread(void) {
    return (int)syscall(SYS_gettid);
}

static inline bool is_thread_asleep(int thread) {
    char path[64], line[256] = "";
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *f = fopen(path, "r");
    if (!f) return true; /* it has ended */
    const bool read = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    const char *name_end = strrchr(line, ')');
    return read && name_end && strncmp(name_end, ") S", 3) == 0;
}

static inline bool are_others_asleep(void) {
    DIR *tasks = opendir("/proc/self/task");
    bool asleep = tasks != NULL;
    for (struct dirent *d; asleep && (d = readdir(tasks));) {
        const int thread = atoi(d->d_name);
        if (thread > 0 && thread != this_thread()) asleep = is_thread_asleep(thread);
    }
    if (tasks) closedir(tasks);
    return asleep;
}

#endif
