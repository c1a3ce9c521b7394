/* File access with fault points. See base/io.h. Every system call that a disk can fail is a fault
 * point. */
#include "base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"

/* Raise the failure of a system call on `path`, from errno. */
static weft_status failed(const char *what, const char *path) {
    int error = errno;
    weft_status status = error == ENOENT ? WEFT_E_NOT_FOUND : WEFT_E_IO;
    const bool remote = error == ENOENT && strstr(path, "://");
    return WEFT_RAISE(status, "cannot %s %s: %s%s", what, path, strerror(error),
                      remote ? "; it is an address: download it, and give the file" : "");
}

/* O_NONBLOCK: opening a named pipe that has no writer must not block forever. */
weft_status wefti_file_open(const char *path, int *out_fd, struct stat *out_stat) {
    int fd = WEFTI_DISK(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0) return failed("open", path);
    if (WEFTI_DISK(fstat(fd, out_stat))) {
        weft_status status = failed("read the size of", path);
        close(fd);
        return status;
    }
    *out_fd = fd;
    return WEFT_OK;
}

/* read() until `bytes` or the end; -1 with errno on failure. */
static ssize_t read_fully(int fd, char *to, size_t bytes) {
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = WEFTI_DISK(read(fd, to + got, bytes - got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

/* The size of a file is only a hint: pipes and files under /proc report no size. */
static weft_status read_all(int fd, const char *path, int64_t hint, int64_t limit, char **out,
                            int64_t *out_bytes) {
    int64_t capacity = (hint > 0 && hint < limit ? hint : hint > 0 ? limit : 4096) + 1;
    if (capacity > limit + 1) capacity = limit + 1;
    char *data = wefti_alloc((size_t)capacity + 1);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for the %lld bytes of %s", (long long)capacity,
                 path);
    int64_t used = 0;
    for (;;) {
        ssize_t n = read_fully(fd, data + used, (size_t)(capacity - used));
        if (n < 0) {
            weft_status status = failed("read", path);
            wefti_free(data);
            return status;
        }
        used += n;
        if (used > limit) {
            wefti_free(data);
            WEFT_FAIL(WEFT_E_IO, "%s has more than the %lld bytes that such a file may have", path,
                      (long long)limit);
        }
        if (used < capacity) break; /* the end */
        capacity = capacity > limit / 2 ? limit + 1 : capacity * 2;
        char *bigger = wefti_realloc(data, (size_t)capacity + 1);
        if (!bigger) {
            wefti_free(data);
            WEFT_FAIL(WEFT_E_NOMEM, "no memory for the %lld bytes of %s", (long long)capacity,
                      path);
        }
        data = bigger;
    }
    data[used] = '\0';
    *out = data;
    *out_bytes = used;
    return WEFT_OK;
}

weft_status wefti_file_read(const char *path, int64_t limit, char **out, int64_t *out_bytes) {
    WEFT_REQUIRE(limit >= 0 && limit < INT64_MAX - 2, WEFT_E_ARG, "%lld is not a limit in bytes",
                 (long long)limit);
    int fd;
    struct stat info;
    WEFT_TRY(wefti_file_open(path, &fd, &info));
    weft_status status;
    if (S_ISREG(info.st_mode) && info.st_size > limit) {
        status = WEFT_RAISE(WEFT_E_IO, "%s has %lld bytes; such a file may have at most %lld", path,
                            (long long)info.st_size, (long long)limit);
    } else {
        (void)fcntl(fd, F_SETFL, 0); /* now that the pipe is open, reads may wait for its writer */
        status =
            read_all(fd, path, S_ISREG(info.st_mode) ? info.st_size : 0, limit, out, out_bytes);
    }
    close(fd);
    return status;
}

struct wefti_writer {
    int fd;
    char *path, *temporary;
};

static void writer_free(wefti_writer *w) {
    wefti_free(w->path);
    wefti_free(w->temporary);
    wefti_free(w);
}

/* The name contains the process id, so that two writers of one path do not share a file. It also
 * has a number, because ids can repeat (containers, leftovers of a crash). */
static weft_status open_temporary(wefti_writer *w) {
    enum { ATTEMPTS = 100 };
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        char *name = wefti_format("%s.%ld.%d.tmp", w->path, (long)getpid(), attempt);
        WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for the name of a file");
        int fd = WEFTI_DISK(open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (fd >= 0) {
            w->fd = fd;
            w->temporary = name;
            return WEFT_OK;
        }
        weft_status status = errno == EEXIST ? WEFT_OK : failed("create", w->path);
        wefti_free(name);
        if (status < 0) return status;
    }
    WEFT_FAIL(WEFT_E_IO, "cannot create a file beside %s: %d temporary names are taken", w->path,
              ATTEMPTS);
}

static bool is_link(const char *path) {
    struct stat info;
    return WEFTI_DISK_WATCH(lstat(path, &info)) == 0 && S_ISLNK(info.st_mode);
}

/* A regular file is written under a temporary name and then renamed. Renaming would replace a
 * device or a pipe, so these are written in place. A path that cannot be written fails here, before
 * the data is written. */
static weft_status open_either(wefti_writer *w) {
    struct stat info;
    bool replaces =
        WEFTI_DISK_WATCH(stat(w->path, &info)) || (S_ISREG(info.st_mode) && !is_link(w->path));
    if (replaces) return open_temporary(w);
    errno = EISDIR;
    if (!S_ISDIR(info.st_mode)) w->fd = WEFTI_DISK(open(w->path, O_WRONLY | O_CLOEXEC));
    return w->fd >= 0 ? WEFT_OK : failed("write", w->path);
}

/* If `path` is a symbolic link, the link stays and its target is replaced (for example when
 * /dev/stdout leads to a file). */
static char *place_of(const char *path) {
    char *target = is_link(path) ? realpath(path, NULL) : NULL;
    char *place = wefti_strdup(target ? target : path);
    free(target);
    return place;
}

weft_status wefti_writer_open(const char *path, wefti_writer **out) {
    wefti_writer *w;
    WEFT_NEW(w, wefti_writer);
    w->fd = -1;
    w->path = place_of(path);
    weft_status status = w->path ? open_either(w) : WEFT_RAISE(WEFT_E_NOMEM, "no memory");
    if (status < 0) {
        writer_free(w);
        return status;
    }
    *out = w;
    return WEFT_OK;
}

static const char *name_of(const wefti_writer *w) {
    return w->temporary ? w->temporary : w->path;
}

weft_status wefti_writer_write(wefti_writer *w, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes) {
        ssize_t n = WEFTI_DISK(write(w->fd, from, bytes));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed("write", name_of(w));
        from += n;
        bytes -= (size_t)n;
    }
    return WEFT_OK;
}

/* Returns the directory that holds `path`, as a fresh string; NULL without memory. */
static char *directory_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return wefti_strdup(".");
    if (slash == path) return wefti_strdup("/");
    return wefti_format("%.*s", (int)(slash - path), path);
}

static weft_status sync_directory_of(const char *path) {
    char *directory = directory_of(path);
    WEFT_REQUIRE(directory, WEFT_E_NOMEM, "no memory for the name of a directory");
    weft_status status = wefti_dir_sync(directory);
    wefti_free(directory);
    return status;
}

/* Do not retry a failed fsync: the kernel may have marked the pages clean. The whole attempt has
 * failed. */
static weft_status sync_and_close(wefti_writer *w) {
    bool sync = w->temporary;
    weft_status status = sync && WEFTI_DISK(fsync(w->fd)) ? failed("sync", name_of(w)) : WEFT_OK;
    bool closing_fails = wefti_fault_io(); /* the descriptor is closed either way */
    int closed = WEFTI_DISK_WATCH(close(w->fd));
    if (closing_fails) {
        errno = wefti_fault_errno(WEFTI_FAULT_IO);
        closed = -1;
    }
    w->fd = -1;
    if (status >= 0 && closed && errno != EINTR) status = failed("close", name_of(w));
    return status;
}

weft_status wefti_writer_commit(wefti_writer *w) {
    weft_status status = sync_and_close(w);
    if (w->temporary) {
        if (status >= 0 && WEFTI_DISK(rename(w->temporary, w->path)))
            status = failed("rename a finished file to", w->path);
        if (status < 0)
            (void)WEFTI_DISK_WATCH(unlink(w->temporary));
        else
            status = sync_directory_of(w->path);
    }
    writer_free(w);
    return status;
}

void wefti_writer_abort(wefti_writer *w) {
    if (!w) return;
    (void)WEFTI_DISK_WATCH(close(w->fd));
    if (w->temporary) (void)WEFTI_DISK_WATCH(unlink(w->temporary));
    writer_free(w);
}

weft_status wefti_file_write(const char *path, const void *data, size_t bytes) {
    wefti_writer *w;
    WEFT_TRY(wefti_writer_open(path, &w));
    weft_status status = wefti_writer_write(w, data, bytes);
    if (status < 0) {
        wefti_writer_abort(w);
        return status;
    }
    WEFT_TRY(wefti_writer_commit(w));
    return WEFT_OK;
}

/* A new name survives a power cut once its directory is synced. A directory that may be written but
 * not read cannot be synced. */
static weft_status sync_new(const char *path) {
    char *parent = directory_of(path);
    WEFT_REQUIRE(parent, WEFT_E_NOMEM, "no memory for the name of a directory");
    weft_status status = WEFTI_DISK_WATCH(access(parent, R_OK)) ? WEFT_OK : wefti_dir_sync(parent);
    wefti_free(parent);
    return status;
}

weft_status wefti_dir_make(const char *path) {
    WEFT_REQUIRE(*path, WEFT_E_ARG, "the name of a directory is empty");
    char *name = wefti_strdup(path);
    WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for the name of a directory");
    weft_status status = WEFT_OK;
    for (char *at = name + 1; status >= 0; at++) {
        if (*at != '/' && *at != '\0') continue;
        char saved = *at;
        *at = '\0';
        if (WEFTI_DISK(mkdir(name, 0777))) {
            /* For an existing parent, mkdir may return EROFS or EACCES. That is fine if the
             * directory exists. */
            int error = errno;
            struct stat info;
            bool refused = error == EEXIST || error == EROFS || error == EACCES;
            bool there =
                refused && WEFTI_DISK_WATCH(stat(name, &info)) == 0 && S_ISDIR(info.st_mode);
            errno = error == EEXIST ? ENOTDIR : error; /* the path exists, but is not a directory */
            if (!there) status = failed("create the directory", name);
        } else {
            status = sync_new(name);
        }
        *at = saved;
        if (!saved) break;
    }
    wefti_free(name);
    return status;
}

/* EINVAL: the file system cannot sync directories; it orders renames itself. */
static int sync_directory(int fd) {
    return fsync(fd) && errno != EINVAL ? -1 : 0;
}

weft_status wefti_dir_sync(const char *path) {
    int fd = WEFTI_DISK(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) return failed("open the directory", path);
    weft_status status = WEFT_OK;
    if (WEFTI_DISK(sync_directory(fd))) status = failed("sync the directory", path);
    close(fd);
    return status;
}

weft_status wefti_rename_unsynced(const char *from, const char *to) {
    if (WEFTI_DISK(rename(from, to))) {
        int error = errno;
        WEFT_FAIL(error == ENOENT ? WEFT_E_NOT_FOUND : WEFT_E_IO, "cannot rename %s to %s: %s",
                  from, to, strerror(error));
    }
    return WEFT_OK;
}

weft_status wefti_rename(const char *from, const char *to) {
    WEFT_TRY(wefti_rename_unsynced(from, to));
    return sync_directory_of(to);
}

/* Remove the entry `name` of directory `at`; `path` is for messages. */
static weft_status remove_entry(int at, const char *name, const char *path);

static weft_status remove_children(DIR *directory, const char *path) {
    for (;;) {
        errno = 0;
        struct dirent *entry = WEFTI_DISK_POINTER(readdir(directory));
        if (!entry) return errno ? failed("list", path) : WEFT_OK;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        char *child = wefti_format("%s/%s", path, entry->d_name);
        WEFT_REQUIRE(child, WEFT_E_NOMEM, "no memory for the name of a file");
        weft_status status = remove_entry(dirfd(directory), entry->d_name, child);
        wefti_free(child);
        if (status < 0) return status;
    }
}

static weft_status remove_entry(int at, const char *name, const char *path) {
    struct stat info;
    if (WEFTI_DISK(fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW)))
        return errno == ENOENT ? WEFT_OK : failed("look at", path);
    if (!S_ISDIR(info.st_mode)) {
        if (WEFTI_DISK(unlinkat(at, name, 0)))
            return errno == ENOENT ? WEFT_OK : failed("remove", path);
        return WEFT_OK;
    }
    int fd = WEFTI_DISK(openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0) return failed("open the directory", path);
    DIR *directory = fdopendir(fd);
    if (!directory) {
        weft_status status = failed("open the directory", path);
        close(fd);
        return status;
    }
    weft_status status = remove_children(directory, path);
    closedir(directory);
    if (status < 0) return status;
    if (WEFTI_DISK(unlinkat(at, name, AT_REMOVEDIR))) return failed("remove the directory", path);
    return WEFT_OK;
}

weft_status wefti_remove_tree(const char *path) {
    WEFT_REQUIRE(*path, WEFT_E_ARG, "the name of what to remove is empty");
    return remove_entry(AT_FDCWD, path, path);
}

bool wefti_exists(const char *path) {
    struct stat info;
    return WEFTI_DISK(stat(path, &info)) == 0;
}

/* Of stat: no file has the name. */
static bool says_missing(int error) {
    return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG;
}

bool wefti_is_missing(const char *path) {
    return !wefti_exists(path) && says_missing(errno);
}

weft_status wefti_look_for(const char *path, bool *out) {
    *out = wefti_exists(path);
    return *out || says_missing(errno) ? WEFT_OK : failed("look for", path);
}

weft_status wefti_check_new(const char *path) {
    struct stat info;
    const bool there = WEFTI_DISK(lstat(path, &info)) == 0;
    WEFT_REQUIRE(!there, WEFT_E_ARG, "%s exists; nothing is written over it", path);
    return says_missing(errno) ? WEFT_OK : failed("look for", path);
}

bool wefti_same_file(const char *a, const char *b) {
    struct stat first, second;
    return !WEFTI_DISK_WATCH(stat(a, &first)) && !WEFTI_DISK_WATCH(stat(b, &second)) &&
           first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

const char *wefti_hub_hint(const char *path) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    char owner[128];
    if (strstr(path, "://")) return "; it is an address: download it, and give its directory";
    size_t first = strspn(path, letters),
           second = path[first] ? strspn(path + first + 1, letters) : 0;
    const bool two = first && first < sizeof owner && path[0] != '.' && path[first] == '/' &&
                     second && !path[first + 1 + second];
    /* "gpt2" may be a directory that is not there as well. */
    if (first && !path[first] && !strchr(path, '.'))
        return "; of a model on the Hugging Face hub, give the directory of the download";
    if (!two) return "";
    memcpy(owner, path, first);
    owner[first] = '\0';
    if (wefti_exists(owner)) return ""; /* a name in a directory of this machine */
    return "; it looks like a name on the Hugging Face hub: download it, and give its directory";
}

bool wefti_is_dir(const char *path) {
    struct stat info;
    return WEFTI_DISK(stat(path, &info)) == 0 && S_ISDIR(info.st_mode);
}

bool wefti_is_link(const char *path) {
    return !wefti_fault_io() && is_link(path);
}

/* Names of one directory, NUL-separated, in the order of readdir. */
typedef struct name_block {
    char *bytes;
    int64_t used, capacity, count;
} name_block;

static weft_status collect_names(DIR *directory, const char *path, name_block *names) {
    for (;;) {
        errno = 0;
        struct dirent *entry = WEFTI_DISK_POINTER(readdir(directory));
        if (!entry) return errno ? failed("list", path) : WEFT_OK;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        int64_t length = (int64_t)strlen(entry->d_name) + 1;
        while (names->used + length > names->capacity)
            WEFT_TRY(WEFT_GROW(names->bytes, names->capacity, names->capacity));
        memcpy(names->bytes + names->used, entry->d_name, (size_t)length);
        names->used += length;
        names->count++;
    }
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

weft_status wefti_dir_list(const char *path, char ***out_names, int64_t *out_count) {
    DIR *directory = WEFTI_DISK_POINTER(opendir(path));
    if (!directory) return failed("list", path);
    name_block names = {0};
    weft_status status = collect_names(directory, path, &names);
    closedir(directory);
    char **list = NULL;
    if (status >= 0) {
        size_t pointers = (size_t)names.count * sizeof *list;
        list = wefti_alloc(pointers + (size_t)names.used);
        if (!list) {
            status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the %lld names in %s",
                                (long long)names.count, path);
        } else if (names.count) {
            char *text = (char *)list + pointers;
            memcpy(text, names.bytes, (size_t)names.used);
            for (int64_t i = 0; i < names.count; i++, text += strlen(text) + 1) list[i] = text;
            qsort(list, (size_t)names.count, sizeof *list, compare_names);
        }
    }
    wefti_free(names.bytes);
    if (status < 0) return status;
    *out_names = list;
    *out_count = names.count;
    return WEFT_OK;
}

static int compare_numbers(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

void wefti_sort_numbers(int64_t *numbers, int64_t count) {
    if (count) qsort(numbers, (size_t)count, sizeof *numbers, compare_numbers);
}

weft_status wefti_dir_numbers(const char *path, wefti_name_number *number_of, const void *context,
                              int64_t **out, int64_t *out_count) {
    char **names = NULL;
    int64_t count = 0, used = 0;
    *out = NULL;
    *out_count = 0;
    weft_status status = wefti_dir_list(path, &names, &count);
    if (status == WEFT_E_NOT_FOUND) {
        wefti_error_clear();
        return WEFT_OK;
    }
    WEFT_TRY(status);
    int64_t *numbers = wefti_calloc((size_t)count + 1, sizeof *numbers);
    for (int64_t i = 0; numbers && i < count; i++) {
        const int64_t number = number_of(names[i], context);
        if (number >= 0) numbers[used++] = number;
    }
    wefti_free(names);
    WEFT_REQUIRE(numbers, WEFT_E_NOMEM, "no memory for the %lld names in %s", (long long)count,
                 path);
    wefti_sort_numbers(numbers, used);
    *out = numbers;
    *out_count = used;
    return WEFT_OK;
}
