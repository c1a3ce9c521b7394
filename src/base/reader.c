/* Reads files in pieces. See base/reader.h. */
#include "base/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest/digest.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"

/* SMALL_BYTES: up to this size, a copy in memory is cheaper than an open descriptor. */
enum { OPEN_FILES_MOST = 1024, OPEN_FILES_UNKNOWN = 128, SMALL_BYTES = 64 << 10 };

static _Atomic int open_files;

struct wefti_reader {
    char *path;
    int64_t bytes;
    const unsigned char *data;       /* the bytes, if they lie in memory */
    unsigned char *own;              /* the reader's own copy of a small file */
    const wefti_reader_table *table; /* NULL: a file, or bytes in memory */
    void *context;
    int fd; /* -1: the file is opened for each read */
    struct stat opened;
};

int64_t wefti_reader_bytes(const wefti_reader *r) {
    return r->bytes;
}
const char *wefti_reader_path(const wefti_reader *r) {
    return r->path;
}

void wefti_reader_close(wefti_reader *r) {
    if (!r) return;
    if (r->fd >= 0) {
        (void)WEFTI_DISK_WATCH(close(r->fd));
        atomic_fetch_sub(&open_files, 1);
    }
    if (r->table && r->table->close) r->table->close(r->context);
    wefti_free(r->own);
    wefti_free(r->path);
    wefti_free(r);
}

/* ---- pieces ---- */

static weft_status cut(const wefti_reader *r, int fd, int64_t at) {
    struct stat info;
    int64_t now =
        WEFTI_DISK_WATCH(fstat(fd, &info)) == 0 && info.st_size < at ? (int64_t)info.st_size : at;
    WEFT_FAIL(WEFT_E_IO,
              "%s was cut while it was in use: it had %lld bytes and ends after %lld now", r->path,
              (long long)r->bytes, (long long)now);
}

static weft_status read_from(const wefti_reader *r, int fd, int64_t at, int64_t bytes, void *to) {
    for (int64_t got = 0; got < bytes;) {
        ssize_t n =
            WEFTI_DISK(pread(fd, (char *)to + got, (size_t)(bytes - got), (off_t)(at + got)));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            WEFT_FAIL(WEFT_E_IO, "cannot read %s at byte %lld: %s", r->path, (long long)(at + got),
                      strerror(errno));
        if (n == 0) return cut(r, fd, at + got);
        got += n;
    }
    return WEFT_OK;
}

/* Some file systems, mostly network ones, give a file a new inode number after it was unused for a
 * while. So equal size and modification time also count as the same file. */
static bool has_number_of(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}
static bool has_time_of(const struct stat *a, const struct stat *b) {
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}
static bool is_same(const struct stat *a, const struct stat *b) {
    return has_number_of(a, b) || has_time_of(a, b);
}

static weft_status read_closed(const wefti_reader *r, int64_t at, int64_t bytes, void *to) {
    int fd;
    struct stat info;
    weft_status status = wefti_file_open(r->path, &fd, &info);
    if (status < 0) return wefti_prefix(WEFT_E_IO, "while it was in use");
    if (is_same(&info, &r->opened))
        status = read_from(r, fd, at, bytes, to);
    else
        status =
            WEFT_RAISE(WEFT_E_IO, "%s was replaced by another file while it was in use", r->path);
    (void)WEFTI_DISK_WATCH(close(fd));
    return status;
}

weft_status wefti_reader_at(const wefti_reader *r, int64_t at, int64_t bytes, void *to) {
    WEFT_REQUIRE(at >= 0 && bytes >= 0 && bytes <= r->bytes - at, WEFT_E_ARG,
                 "%lld bytes at byte %lld of %s, which has %lld", (long long)bytes, (long long)at,
                 r->path ? r->path : "a file in memory", (long long)r->bytes);
    if (!bytes) return WEFT_OK;
    if (r->table) return r->table->read(r->context, at, bytes, to);
    if (r->data) {
        memcpy(to, r->data + at, (size_t)bytes);
        return WEFT_OK;
    }
    return r->fd >= 0 ? read_from(r, r->fd, at, bytes, to) : read_closed(r, at, bytes, to);
}

weft_status wefti_reader_take(const wefti_reader *r, int64_t at, int64_t bytes,
                              unsigned char **out) {
    unsigned char *data = wefti_alloc(bytes > 0 ? (size_t)bytes : 1);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for %lld bytes of %s", (long long)bytes,
                 r->path ? r->path : "a file in memory");
    weft_status status = wefti_reader_at(r, at, bytes, data);
    if (status < 0) {
        wefti_free(data);
        return status;
    }
    *out = data;
    return WEFT_OK;
}

weft_status wefti_reader_crc32c(const wefti_reader *r, int64_t at, int64_t bytes, uint32_t *out) {
    unsigned char piece[WEFTI_READER_PIECE];
    uint32_t crc = 0;
    for (int64_t left = bytes, n; left > 0; left -= n, at += n) {
        n = left < WEFTI_READER_PIECE ? left : WEFTI_READER_PIECE;
        WEFT_TRY(wefti_reader_at(r, at, n, piece));
        crc = wefti_crc32c(crc, piece, (size_t)n);
    }
    *out = crc;
    return WEFT_OK;
}

void wefti_reader_ahead(const wefti_reader *r) {
    if (r->fd >= 0) (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
}

void wefti_reader_soon(const wefti_reader *r, int64_t at, int64_t bytes) {
    if (r->fd >= 0 && bytes > 0)
        (void)posix_fadvise(r->fd, (off_t)at, (off_t)bytes, POSIX_FADV_WILLNEED);
}

/* FAR_BYTES: the kernel copies so many bytes in the time of a call. */
enum { FAR_BYTES = 4096 };

static weft_status fetch_window(wefti_reader_window *w, int64_t at, int64_t bytes) {
    int64_t left = w->reader->bytes - at;
    int64_t n = left < WEFTI_READER_WINDOW && left >= bytes ? left : WEFTI_READER_WINDOW;
    w->begin = w->end = 0;
    WEFT_TRY(wefti_reader_at(w->reader, at, n, w->bytes));
    w->begin = at;
    w->end = at + n;
    return WEFT_OK;
}

weft_status wefti_reader_near(wefti_reader_window *w, int64_t at, int64_t bytes, void *to) {
    bool held = at >= w->begin && at + bytes <= w->end;
    bool near = at >= w->last && at - w->last < FAR_BYTES;
    w->last = at + bytes;
    if (!held && (!near || bytes > WEFTI_READER_WINDOW / 2))
        return wefti_reader_at(w->reader, at, bytes, to);
    if (!held) WEFT_TRY(fetch_window(w, at, bytes));
    memcpy(to, w->bytes + (at - w->begin), (size_t)bytes);
    return WEFT_OK;
}

/* ---- opening ---- */

weft_status wefti_reader_of(const void *data, int64_t bytes, wefti_reader **out) {
    wefti_reader *r;
    WEFT_NEW(r, wefti_reader);
    *r = (wefti_reader){.bytes = bytes, .data = data, .fd = -1};
    *out = r;
    return WEFT_OK;
}

weft_status wefti_reader_made(const wefti_reader_table *table, void *context, const char *path,
                              int64_t bytes, wefti_reader **out) {
    wefti_reader *r;
    char *name = wefti_strdup(path);
    WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for the name of a file");
    r = wefti_calloc(1, sizeof *r);
    if (!r) {
        wefti_free(name);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory to read %s", path);
    }
    *r = (wefti_reader){.path = name, .bytes = bytes, .table = table, .context = context, .fd = -1};
    *out = r;
    return WEFT_OK;
}

/* Readers keep at most half of the process's descriptors open. */
static bool may_stay_open(void) {
    struct rlimit limit;
    int most = OPEN_FILES_UNKNOWN;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        most = limit.rlim_cur / 2 < OPEN_FILES_MOST ? (int)(limit.rlim_cur / 2) : OPEN_FILES_MOST;
    if (atomic_fetch_add(&open_files, 1) < most) return true;
    atomic_fetch_sub(&open_files, 1);
    return false;
}

int wefti_reader_take_file(const wefti_reader *r) {
    struct stat info;
    if (r->data || r->table || !may_stay_open()) return -1;
    const int fd = WEFTI_DISK(open(r->path, O_RDONLY | O_CLOEXEC));
    if (fd >= 0 && !WEFTI_DISK(fstat(fd, &info)) && has_number_of(&info, &r->opened) &&
        has_time_of(&info, &r->opened))
        return fd;
    if (fd >= 0) (void)WEFTI_DISK_WATCH(close(fd));
    atomic_fetch_sub(&open_files, 1);
    return -1;
}

void wefti_reader_give_back(int fd) {
    (void)WEFTI_DISK_WATCH(close(fd));
    atomic_fetch_sub(&open_files, 1);
}

/* Makes the path absolute, so that it stays valid if the process changes its directory. Keeps the
 * path as given if realpath fails. */
static weft_status name_wholly(wefti_reader *r) {
    char *whole = realpath(r->path, NULL), *path = wefti_strdup(whole ? whole : r->path);
    free(whole);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
    wefti_free(r->path);
    r->path = path;
    return WEFT_OK;
}

/* Takes ownership of the descriptor. */
static weft_status keep(wefti_reader *r, int fd, const struct stat *info) {
    weft_status status = WEFT_OK;
    r->bytes = (int64_t)info->st_size;
    r->opened = *info;
    if (!S_ISREG(info->st_mode)) {
        status = WEFT_RAISE(WEFT_E_IO, "%s is %s, not a file", r->path,
                            S_ISDIR(info->st_mode) ? "a directory" : "a device, pipe or socket");
    } else if (r->bytes <= SMALL_BYTES) {
        r->own = wefti_alloc((size_t)r->bytes + 1);
        if (!r->own)
            status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the %lld bytes of %s",
                                (long long)r->bytes, r->path);
        else
            status = read_from(r, fd, 0, r->bytes, r->own);
        r->data = r->own;
    } else if (may_stay_open()) {
        r->fd = fd;
        return WEFT_OK;
    } else {
        status = name_wholly(r);
    }
    (void)WEFTI_DISK_WATCH(close(fd));
    return status;
}

weft_status wefti_reader_open(const char *path, wefti_reader **out) {
    int fd;
    struct stat info;
    wefti_reader *r;
    WEFT_NEW(r, wefti_reader);
    r->fd = -1;
    r->path = wefti_strdup(path);
    weft_status status = WEFT_OK;
    if (!r->path) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the name of a file");
    if (status >= 0) status = wefti_file_open(path, &fd, &info);
    if (status >= 0) status = keep(r, fd, &info);
    if (status < 0) {
        wefti_reader_close(r);
        return status;
    }
    *out = r;
    return WEFT_OK;
}
