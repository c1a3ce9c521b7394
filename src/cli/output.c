/* Files that a verb writes when its work is done. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* As the library does: writes a file beside the target, after following links, then renames it. */
static bool can_create_beside(const char *path) {
    static const char ending[] = ".XXXXXX";
    char *target = realpath(path, NULL);
    size_t bytes = strlen(target ? target : path);
    char *name = malloc(bytes + sizeof ending);
    if (name) memcpy(name, target ? target : path, bytes);
    free(target);
    if (!name) return false;
    memcpy(name + bytes, ending, sizeof ending);
    int file = mkstemp(name), error = errno;
    if (file >= 0) {
        (void)unlink(name);
        (void)close(file);
    }
    free(name);
    errno = error;
    return file >= 0;
}

/* A target that is not a regular file is written directly. */
static bool can_write_what_is(const char *path, mode_t kind) {
    if (S_ISREG(kind)) return can_create_beside(path);
    errno = EISDIR;
    return !S_ISDIR(kind) && access(path, W_OK) == 0;
}

bool cli_can_write(const char *path) {
    struct stat info;
    bool there = stat(path, &info) == 0;
    if (there ? can_write_what_is(path, info.st_mode) : can_create_beside(path)) return true;
    char message[600];
    (void)snprintf(message, sizeof message, "cannot write %.400s: %s", path, strerror(errno));
    (void)weft_error_raise(WEFT_E_IO, message);
    return false;
}
