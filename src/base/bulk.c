/* Large files that bypass the page cache. See base/bulk.h. */
#include "base/bulk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"

/* BULK_ALIGNMENT: of the buffer, the length and the file offset. Every current disk accepts 4096.
 * BUFFER_BYTES: 1 MiB at a time keeps a fast disk busy and fits the core's own cache. */
enum { BULK_ALIGNMENT = 4096, BUFFER_BYTES = 1 << 20 };

struct wefti_bulk {
    int fd;
    bool direct;
    char *path;
    void *storage;         /* the allocation that holds the aligned buffer */
    unsigned char *buffer; /* BUFFER_BYTES */
    size_t used;
    int64_t written, expected; /* bytes already written out; bytes of the finished file */
};

static weft_status failed(const char *what, const char *path) {
    return WEFT_RAISE(WEFT_E_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static void release(wefti_bulk *file) {
    wefti_free(file->storage);
    wefti_free(file->path);
    wefti_free(file);
}

void wefti_bulk_abort(wefti_bulk *file) {
    if (!file) return;
    if (file->fd >= 0) {
        close(file->fd);
        (void)unlink(file->path);
    }
    release(file);
}

/* Some file systems (memory, some networks) do not support O_DIRECT. */
static weft_status create(wefti_bulk *file) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
#ifdef O_DIRECT
    file->fd = wefti_fault_io() ? -1 : open(file->path, flags | O_DIRECT, 0666);
    file->direct = file->fd >= 0;
    /* a file system may create the file before it refuses the flag */
    if (file->fd < 0 && errno == EINVAL) {
        (void)unlink(file->path);
        file->fd = wefti_fault_io() ? -1 : open(file->path, flags, 0666);
    }
#else
    file->fd = wefti_fault_io() ? -1 : open(file->path, flags, 0666);
#endif
    return file->fd < 0 ? failed("create", file->path) : WEFT_OK;
}

static weft_status reserve(wefti_bulk *file) {
    if (!file->expected) return WEFT_OK;
    if (!wefti_fault_io() && fallocate(file->fd, 0, 0, (off_t)file->expected) == 0) return WEFT_OK;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) return WEFT_OK; /* a help only */
    WEFT_FAIL(WEFT_E_IO, "cannot reserve %lld bytes for %s: %s", (long long)file->expected,
              file->path, strerror(errno));
}

static weft_status prepare(wefti_bulk *file, const char *path) {
    file->path = wefti_strdup(path);
    file->storage = wefti_alloc(BUFFER_BYTES + BULK_ALIGNMENT);
    WEFT_REQUIRE(file->path && file->storage, WEFT_E_NOMEM,
                 "no memory for a buffer to write %s from", path);
    uintptr_t at = (uintptr_t)file->storage;
    file->buffer =
        (unsigned char *)file->storage + (BULK_ALIGNMENT - at % BULK_ALIGNMENT) % BULK_ALIGNMENT;
    WEFT_TRY(create(file));
    return reserve(file);
}

weft_status wefti_bulk_open(const char *path, int64_t bytes, wefti_bulk **out) {
    wefti_bulk *file;
    WEFT_NEW(file, wefti_bulk);
    file->fd = -1;
    file->expected = bytes;
    weft_status status = prepare(file, path);
    if (status < 0) {
        wefti_bulk_abort(file);
        return status;
    }
    *out = file;
    return WEFT_OK;
}

/* Continue through the page cache. */
static void leave_direct(wefti_bulk *file) {
#ifdef O_DIRECT
    int flags = fcntl(file->fd, F_GETFL);
    if (file->direct && flags >= 0) (void)fcntl(file->fd, F_SETFL, flags & ~O_DIRECT);
#endif
    file->direct = false;
}

/* Write the buffer to the file. Only the last buffer may be partly filled; it cannot use
 * O_DIRECT. */
static weft_status flush(wefti_bulk *file) {
    size_t at = 0;
    if (file->used % BULK_ALIGNMENT) leave_direct(file);
    while (at < file->used) {
        ssize_t n = wefti_fault_io() ? -1 : write(file->fd, file->buffer + at, file->used - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL && file->direct) {
            leave_direct(file); /* open() accepted the flag, but writes with it fail */
            continue;
        }
        if (n < 0) return failed("write", file->path);
        at += (size_t)n;
        if (n % BULK_ALIGNMENT) leave_direct(file); /* a short write broke the alignment */
    }
    file->written += (int64_t)file->used;
    file->used = 0;
    return WEFT_OK;
}

weft_status wefti_bulk_write(wefti_bulk *file, const void *data, size_t bytes) {
    const unsigned char *from = data;
    int64_t room = file->expected - file->written - (int64_t)file->used;
    WEFT_REQUIRE(bytes <= (uint64_t)room, WEFT_E_BUG, "%s was to have %lld bytes", file->path,
                 (long long)file->expected);
    while (bytes) {
        size_t part = BUFFER_BYTES - file->used < bytes ? BUFFER_BYTES - file->used : bytes;
        memcpy(file->buffer + file->used, from, part);
        file->used += part;
        from += part;
        bytes -= part;
        if (file->used == BUFFER_BYTES) WEFT_TRY(flush(file));
    }
    return WEFT_OK;
}

weft_status wefti_bulk_commit(wefti_bulk *file) {
    weft_status status = flush(file);
    if (status >= 0 && file->written != file->expected)
        status = WEFT_RAISE(WEFT_E_BUG, "%s has %lld bytes, %lld were announced", file->path,
                            (long long)file->written, (long long)file->expected);
    if (status >= 0 && (wefti_fault_io() || fsync(file->fd))) status = failed("sync", file->path);
    if (status < 0) {
        wefti_bulk_abort(file);
        return status;
    }
    bool closing_fails = wefti_fault_io(); /* the descriptor is closed either way */
    int closed = close(file->fd);
    if (closing_fails) errno = wefti_fault_errno(WEFTI_FAULT_IO);
    if (closing_fails || (closed && errno != EINTR)) {
        status = failed("close", file->path);
        (void)unlink(file->path);
    }
    release(file);
    return status;
}
