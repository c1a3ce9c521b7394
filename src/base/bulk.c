/* Large files that bypass the page cache. See base/bulk.h. */
#include "base/bulk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"

/* BULK_ALIGNMENT: of the buffer, the length and the file offset. Every current disk accepts 4096.
 * BUFFER_BYTES: 1 MiB at a time keeps a fast disk busy and fits the core's own cache.
 * DIRECT_BYTES: fewer bytes go through the page cache, because each write with O_DIRECT waits for
 * the disk.
 * LAG_BYTES: other processes fill the gaps between short ranges at about the same time. When a
 * range lies so far behind, they have filled them, and the disk begins to write it. */
enum {
    BULK_ALIGNMENT = 4096,
    BUFFER_BYTES = 1 << 20,
    DIRECT_BYTES = 128 << 10,
    LAG_BYTES = 16 << 20
};

struct wefti_bulk {
    int fd;
    bool created, shared;
    bool able, direct; /* O_DIRECT works; it is switched on */
    char *path;
    void *storage;             /* the allocation that holds the aligned buffer; NULL: parked */
    unsigned char *buffer;     /* BUFFER_BYTES, for offset `base` and on */
    int64_t base;              /* a multiple of BULK_ALIGNMENT */
    size_t begin, end;         /* the waiting bytes in the buffer */
    int64_t written, expected; /* bytes written out so far; bytes of the finished file */
    int64_t started; /* the disk has begun to write what the page cache had before this offset */
};

static weft_status failed(const char *what, const char *path) {
    return WEFT_RAISE(WEFT_E_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static void release(wefti_bulk *file) {
    wefti_free(file->storage);
    wefti_free(file->path);
    wefti_free(file);
}

static void close_file(wefti_bulk *file) {
    (void)WEFTI_DISK_WATCH(close(file->fd));
    if (file->created) (void)WEFTI_DISK_WATCH(unlink(file->path));
}

void wefti_bulk_abort(wefti_bulk *file) {
    if (!file) return;
    if (file->fd >= 0) close_file(file);
    release(file);
}

/* Some file systems (memory, some networks) do not support O_DIRECT. */
static weft_status open_file(wefti_bulk *file) {
    const int flags = O_WRONLY | O_CLOEXEC | (file->created ? O_CREAT | O_EXCL : 0);
#ifdef O_DIRECT
    file->fd = WEFTI_DISK(open(file->path, flags | O_DIRECT, 0666));
    file->able = file->direct = file->fd >= 0;
    /* a file system may create the file before it refuses the flag */
    if (file->fd < 0 && errno == EINVAL) {
        if (file->created) (void)WEFTI_DISK_WATCH(unlink(file->path));
        file->fd = WEFTI_DISK(open(file->path, flags, 0666));
    }
#else
    file->fd = WEFTI_DISK(open(file->path, flags, 0666));
#endif
    return file->fd < 0 ? failed(file->created ? "create" : "open", file->path) : WEFT_OK;
}

static weft_status reserve(wefti_bulk *file) {
    if (!file->expected) return WEFT_OK;
    if (WEFTI_DISK(fallocate(file->fd, 0, 0, (off_t)file->expected)) == 0) return WEFT_OK;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) { /* a help only */
        if (WEFTI_DISK(ftruncate(file->fd, (off_t)file->expected)))
            return failed("extend", file->path);
        return WEFT_OK;
    }
    WEFT_FAIL(WEFT_E_IO, "cannot reserve %lld bytes for %s: %s", (long long)file->expected,
              file->path, strerror(errno));
}

/* The file that another process has created must have the announced size. */
static weft_status check_size(const wefti_bulk *file) {
    struct stat s;
    if (WEFTI_DISK(fstat(file->fd, &s))) return failed("examine", file->path);
    WEFT_REQUIRE((int64_t)s.st_size == file->expected, WEFT_E_IO,
                 "%s has %lld bytes; %lld are needed", file->path, (long long)s.st_size,
                 (long long)file->expected);
    return WEFT_OK;
}

static weft_status make(const char *path, int64_t bytes, bool create, wefti_bulk **out) {
    wefti_bulk *file;
    WEFT_NEW(file, wefti_bulk);
    file->fd = -1;
    file->expected = bytes;
    file->created = create;
    file->shared = !create;
    file->path = wefti_strdup(path);
    weft_status status =
        file->path ? open_file(file) : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a file name");
    if (status >= 0) status = create ? reserve(file) : check_size(file);
    if (status < 0) {
        wefti_bulk_abort(file);
        return status;
    }
    *out = file;
    return WEFT_OK;
}

weft_status wefti_bulk_open(const char *path, int64_t bytes, wefti_bulk **out) {
    return make(path, bytes, true, out);
}

weft_status wefti_bulk_join(const char *path, int64_t bytes, wefti_bulk **out) {
    return make(path, bytes, false, out);
}

void wefti_bulk_share(wefti_bulk *file) {
    file->shared = true;
}

/* Switches O_DIRECT on or off. */
static void set_direct(wefti_bulk *file, bool direct) {
#ifdef O_DIRECT
    if (file->direct == direct) return;
    int flags = fcntl(file->fd, F_GETFL);
    if (flags >= 0) (void)fcntl(file->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
#endif
    file->direct = direct;
}

/* Writes bytes [from, to) of the buffer. */
static weft_status write_out(wefti_bulk *file, size_t from, size_t to, bool direct) {
    set_direct(file, direct);
    while (from < to) {
        ssize_t n = WEFTI_DISK(
            pwrite(file->fd, file->buffer + from, to - from, (off_t)(file->base + (int64_t)from)));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL && file->direct) { /* writes with O_DIRECT fail after all */
            file->able = false;
            set_direct(file, false);
            continue;
        }
        if (n < 0) return failed("write", file->path);
        from += (size_t)n;
        file->written += n;
        if (n % BULK_ALIGNMENT) set_direct(file, false); /* a short write broke the alignment */
    }
    return WEFT_OK;
}

/* Short ranges lie in the page cache. Asks the disk to begin with those that are LAG_BYTES behind,
 * so that the sync at the end has less to wait for. */
static weft_status start_writing(wefti_bulk *file, int64_t at) {
#ifdef SYNC_FILE_RANGE_WRITE
    int64_t bytes = at - LAG_BYTES - file->started;
    if (at < file->started) file->started = at;
    if (bytes < LAG_BYTES / 2) return WEFT_OK;
    if (WEFTI_DISK(
            sync_file_range(file->fd, (off_t)file->started, (off_t)bytes, SYNC_FILE_RANGE_WRITE)) &&
        errno != ENOSYS && errno != ESPIPE && errno != EINTR)
        return failed("write", file->path);
    file->started += bytes;
#else
    (void)file;
    (void)at;
#endif
    return WEFT_OK;
}

/* Empties the buffer. Its aligned part is written with O_DIRECT if it is long. */
static weft_status flush(wefti_bulk *file) {
    size_t begin = file->begin, end = file->end;
    size_t first = (begin + BULK_ALIGNMENT - 1) / BULK_ALIGNMENT * BULK_ALIGNMENT;
    size_t last = end / BULK_ALIGNMENT * BULK_ALIGNMENT;
    weft_status status = WEFT_OK;
    if (!file->able || last < first + DIRECT_BYTES) {
        status = write_out(file, begin, end, false);
        if (status >= 0) status = start_writing(file, file->base + (int64_t)end);
    } else {
        status = write_out(file, begin, first, false);
        if (status >= 0) status = write_out(file, first, last, true);
        if (status >= 0) status = write_out(file, last, end, false);
    }
    int64_t next = file->base + (int64_t)end;
    file->base = next - next % BULK_ALIGNMENT;
    file->begin = file->end = (size_t)(next % BULK_ALIGNMENT);
    return status;
}

weft_status wefti_bulk_seek(wefti_bulk *file, int64_t at) {
    if (at == file->base + (int64_t)file->end) return WEFT_OK;
    WEFT_TRY(flush(file));
    file->base = at - at % BULK_ALIGNMENT;
    file->begin = file->end = (size_t)(at % BULK_ALIGNMENT);
    return WEFT_OK;
}

static weft_status ready_buffer(wefti_bulk *file) {
    if (file->storage) return WEFT_OK;
    file->storage = wefti_alloc(BUFFER_BYTES + BULK_ALIGNMENT);
    WEFT_REQUIRE(file->storage, WEFT_E_NOMEM, "no memory for a buffer to write %s from",
                 file->path);
    uintptr_t at = (uintptr_t)file->storage;
    file->buffer =
        (unsigned char *)file->storage + (BULK_ALIGNMENT - at % BULK_ALIGNMENT) % BULK_ALIGNMENT;
    return WEFT_OK;
}

weft_status wefti_bulk_write(wefti_bulk *file, const void *data, size_t bytes) {
    const unsigned char *from = data;
    int64_t room = file->expected - file->base - (int64_t)file->end;
    WEFT_REQUIRE(room >= 0 && bytes <= (uint64_t)room, WEFT_E_BUG, "%s was to have %lld bytes",
                 file->path, (long long)file->expected);
    if (bytes) WEFT_TRY(ready_buffer(file));
    while (bytes) {
        size_t part = BUFFER_BYTES - file->end < bytes ? BUFFER_BYTES - file->end : bytes;
        memcpy(file->buffer + file->end, from, part);
        file->end += part;
        from += part;
        bytes -= part;
        if (file->end == BUFFER_BYTES) WEFT_TRY(flush(file));
    }
    return WEFT_OK;
}

weft_status wefti_bulk_park(wefti_bulk *file) {
    WEFT_TRY(flush(file));
    wefti_free(file->storage);
    file->storage = NULL;
    return WEFT_OK;
}

weft_status wefti_bulk_commit(wefti_bulk *file) {
    weft_status status = flush(file);
    if (status >= 0 && !file->shared && file->written != file->expected)
        status = WEFT_RAISE(WEFT_E_BUG, "%s has %lld bytes, %lld were announced", file->path,
                            (long long)file->written, (long long)file->expected);
    if (status >= 0 && WEFTI_DISK(fsync(file->fd))) status = failed("sync", file->path);
    if (status < 0) {
        wefti_bulk_abort(file);
        return status;
    }
    bool closing_fails = wefti_fault_io(); /* the descriptor is closed either way */
    int closed = WEFTI_DISK_WATCH(close(file->fd));
    if (closing_fails) errno = wefti_fault_errno(WEFTI_FAULT_IO);
    if (closing_fails || (closed && errno != EINTR)) {
        status = failed("close", file->path);
        if (file->created) (void)WEFTI_DISK_WATCH(unlink(file->path));
    }
    release(file);
    return status;
}
