/* The file without a name that this process has open in a folder. */
#ifndef WEFT_TESTS_UNNAMED_FILE_H
#define WEFT_TESTS_UNNAMED_FILE_H

#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A descriptor of its own, through the page cache. Fails without such a file. */
static inline int open_unnamed(const char *folder) {
    char path[300], target[512];
    int found = -1;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    for (const struct dirent *e; found < 0 && (e = readdir(d));) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        const ssize_t bytes = readlink(path, target, sizeof target - 1);
        if (bytes <= 0) continue;
        target[bytes] = '\0';
        if (!strncmp(target, folder, strlen(folder)) && strstr(target, "(deleted)"))
            found = open(path, O_RDWR | O_CLOEXEC);
    }
    (void)closedir(d);
    assert_true(found >= 0);
    return found;
}

#endif
