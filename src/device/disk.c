/* Disk streams: the file, operations, and the engine of threads. See disk.h. */
#include "device/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/thread.h"
#include "device/disk_parts.h"

enum { DISK_DEPTH = 16 };

/* ---- requests ---- */

/* The next request of the operation at the head of the queue. Parts of blocks at either end are
 * requests of their own. */
static void cut(const wefti_disk_stream *d, wefti_disk_ticket *t, wefti_disk_request *r) {
    const wefti_disk_piece *piece = &t->pieces[t->piece];
    int64_t end = piece->offset + piece->bytes;
    r->ticket = t;
    r->at = piece->offset + t->requested;
    r->memory = piece->memory + t->requested;
    const wefti_disk_loan *loan = wefti_disk_loan_at(d, r->at, &end);
    r->file = loan ? d->lenders[loan->file] : d->own;
    r->shift = loan ? loan->shift : 0;
    const int64_t unit = loan ? r->file.alignment : d->unit;
    const int64_t at = r->at + r->shift, stop = end + r->shift;
    int64_t until = at + d->block < stop ? at + d->block : stop;
    if (at % unit) {
        const int64_t edge = wefti_round_up(at, unit);
        until = edge < stop ? edge : stop;
    } else if (stop - at >= unit) {
        until = wefti_round_down(until, unit);
    }
    r->from = wefti_round_down(at, unit);
    r->to = wefti_round_up(until, unit);
    r->needed = loan ? until : r->to;
    r->until = until - r->shift;
    t->requested = r->until - piece->offset;
    if (t->requested == piece->bytes) {
        t->piece++;
        t->requested = 0;
    }
    t->under_way++;
}

bool wefti_disk_request_take(wefti_disk_stream *d, wefti_disk_request *r, bool block) {
    (void)pthread_mutex_lock(&d->lock);
    while (block && !d->first && !d->closing) (void)pthread_cond_wait(&d->work, &d->lock);
    wefti_disk_ticket *t = d->first;
    if (t) {
        if (!r->number) r->number = ++d->numbers;
        cut(d, t, r);
        if (t->piece == t->count) d->first = t->queued;
        if (!d->first) d->last = NULL;
    }
    (void)pthread_mutex_unlock(&d->lock);
    return t != NULL;
}

bool wefti_disk_stream_closing(wefti_disk_stream *d) {
    (void)pthread_mutex_lock(&d->lock);
    const bool closing = d->closing && !d->first;
    (void)pthread_mutex_unlock(&d->lock);
    return closing;
}

static bool is_over(const wefti_disk_ticket *t) {
    return !t->under_way && t->piece == t->count;
}

static void end_request(wefti_disk_stream *d, wefti_disk_request *r, int error) {
    wefti_disk_ticket *t = r->ticket;
    (void)pthread_mutex_lock(&d->lock);
    if (error && !t->error) {
        t->error = error;
        t->error_offset = r->at;
    }
    t->under_way--;
    if (is_over(t)) (void)pthread_cond_broadcast(&d->done);
    (void)pthread_mutex_unlock(&d->lock);
}

static unsigned char *buffer_of(const wefti_disk_stream *d, const wefti_disk_request *r) {
    return wefti_disk_align(d->buffers) + (r->number - 1) * d->block;
}

/* The buffer of a write of whole blocks. */
static int fill_buffer(const wefti_disk_stream *d, const wefti_disk_request *r,
                       const unsigned char *memory) {
    if (d->cipher) return wefti_disk_encrypt(d->cipher, r, memory);
    memcpy(r->transfer, memory, (size_t)(r->to - r->from));
    return 0;
}

static void set_vector(wefti_disk_request *r) {
    r->vector = (struct iovec){r->transfer + r->done, (size_t)(r->to - r->from - r->done)};
}

/* Whether a request uses its buffer. Encrypted bytes never lie in memory of the caller that is
 * written. */
static bool is_buffered(const wefti_disk_stream *d, const wefti_disk_ticket *t, bool whole,
                        int64_t alignment, const unsigned char *memory) {
    return !whole || (t->writes && d->cipher) || (uintptr_t)memory % (uintptr_t)alignment;
}

bool wefti_disk_request_begin(wefti_disk_stream *d, wefti_disk_request *r) {
    unsigned char *memory = r->memory;
    const bool whole = r->from == r->at + r->shift && r->to == r->until + r->shift;
    r->done = 0;
    r->reads = !r->ticket->writes || !whole;
    r->transfer = memory;
    if (is_buffered(d, r->ticket, whole, r->file.alignment, memory)) {
        r->transfer = buffer_of(d, r);
        const int error = r->reads ? 0 : fill_buffer(d, r, memory);
        if (error) {
            end_request(d, r, error);
            return false;
        }
    }
    set_vector(r);
    return true;
}

/* The blocks are there. True: the request has ended. */
static bool use_blocks(wefti_disk_stream *d, wefti_disk_request *r) {
    unsigned char *memory = r->memory, *part = r->transfer + (r->at + r->shift - r->from);
    const size_t bytes = (size_t)(r->until - r->at);
    int error = r->reads && d->cipher ? wefti_disk_decrypt(d->cipher, r) : 0;
    if (!error && r->reads && r->ticket->writes) {
        memcpy(part, memory, bytes);
        r->reads = false;
        r->done = 0;
        set_vector(r);
        if (d->cipher) error = wefti_disk_encrypt(d->cipher, r, r->transfer);
        if (!error) return false;
    }
    if (!error && r->reads && part != memory) memcpy(memory, part, bytes);
    end_request(d, r, error);
    return true;
}

bool wefti_disk_request_advance(wefti_disk_stream *d, wefti_disk_request *r, int64_t result) {
    if (result > 0 && r->from + r->done + result >= r->needed) return use_blocks(d, r);
    const int64_t moved = result > 0 ? wefti_round_down(result, r->file.alignment) : result;
    if (moved == -EINTR) return false;
    if (moved <= 0) {
        end_request(d, r, moved ? (int)-moved : EIO);
        return true;
    }
    r->done += moved;
    set_vector(r);
    return false;
}

/* ---- the engine of threads ---- */

static int64_t transfer(const wefti_disk_request *r) {
    const int64_t offset = r->from + r->done;
    const long got = r->reads ? WEFTI_DISK(preadv(r->file.fd, &r->vector, 1, offset))
                              : WEFTI_DISK(pwritev(r->file.fd, &r->vector, 1, offset));
    return got < 0 ? -errno : got;
}

static void *work(void *context) {
    wefti_disk_stream *d = context;
    wefti_disk_request r = {0};
    while (wefti_disk_request_take(d, &r, true)) {
        if (!wefti_disk_request_begin(d, &r)) continue;
        while (!wefti_disk_request_advance(d, &r, transfer(&r))) continue;
    }
    return NULL;
}

/* Fewer threads than asked for are enough. */
static weft_status start_threads(wefti_disk_stream *d) {
    int error = 0;
    while (d->thread_count < d->depth && !error) {
        error = wefti_thread_start(&d->threads[d->thread_count], work, d);
        if (!error) d->thread_count++;
    }
    WEFT_REQUIRE(d->thread_count, WEFT_E_IO, "cannot start a thread for the disk: %s",
                 strerror(error));
    return WEFT_OK;
}

/* *out_error: why io_uring is not in use, or 0. */
static weft_status start_engine(wefti_disk_stream *d, wefti_disk_engine wanted, int *out_error) {
    *out_error = 0;
    if (wanted != WEFTI_DISK_THREADS) {
        *out_error = -wefti_disk_ring_create(d);
        if (!*out_error) return WEFT_OK;
        WEFT_REQUIRE(wanted == WEFTI_DISK_ANY, WEFT_E_IO, "cannot use io_uring: %s",
                     strerror(*out_error));
    }
    return start_threads(d);
}

/* ---- the file ---- */

static weft_status failed(const wefti_disk_stream *d, const char *what, int error) {
    const weft_status status = error == ENOENT ? WEFT_E_NOT_FOUND : WEFT_E_IO;
    return WEFT_RAISE(status, "cannot %s in %s: %s", what, d->directory, strerror(error));
}

/* For file systems without O_TMPFILE: a file whose name is removed at once. */
static weft_status open_named(wefti_disk_stream *d) {
    enum { ATTEMPTS = 100 };
    int error = EEXIST;
    for (int i = 0; i < ATTEMPTS && error == EEXIST; i++) {
        char *path = wefti_format("%s/.weft-%ld.%d", d->directory, (long)getpid(), i);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for the name of a file");
        d->own.fd = WEFTI_DISK(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        error = d->own.fd < 0 ? errno : 0;
        if (!error && WEFTI_DISK(unlink(path))) {
            error = errno;
            (void)unlink(path);
        }
        wefti_free(path);
    }
    return error ? failed(d, "create a file", error) : WEFT_OK;
}

static weft_status open_file(wefti_disk_stream *d) {
    d->own.fd = WEFTI_DISK(open(d->directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (d->own.fd >= 0) return WEFT_OK;
    /* EISDIR: of kernels that do not know the flag */
    if (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL) return open_named(d);
    return failed(d, "create a file", errno);
}

static weft_status no_space(const wefti_disk_stream *d, int64_t bytes, int error) {
    struct statvfs space;
    if ((error == ENOSPC || error == EDQUOT) && !fstatvfs(d->own.fd, &space))
        WEFT_FAIL(WEFT_E_IO, "%s has room for %lld bytes, but %lld are needed", d->directory,
                  (long long)space.f_bavail * (long long)space.f_frsize, (long long)bytes);
    return failed(d, "reserve space", error);
}

static weft_status reserve(const wefti_disk_stream *d, int64_t begin, int64_t bytes) {
    int error;
    do error = WEFTI_DISK(fallocate(d->own.fd, 0, begin, bytes)) ? errno : 0;
    while (error == EINTR);
    if (error == EOPNOTSUPP) error = posix_fallocate(d->own.fd, begin, bytes); /* writes blocks */
    return error ? no_space(d, bytes, error) : WEFT_OK;
}

weft_status wefti_disk_stream_reserve(wefti_disk_stream *d) {
    for (int64_t at = 0, end; at < d->bytes; at = end) {
        end = d->bytes;
        (void)pthread_mutex_lock(&d->lock);
        const bool lent = wefti_disk_loan_at(d, at, &end);
        (void)pthread_mutex_unlock(&d->lock);
        if (!lent) WEFT_TRY(reserve(d, at, end - at));
    }
    return WEFT_OK;
}

/* Bytes that were not written yet read as zeros. */
static weft_status set_size(const wefti_disk_stream *d) {
    return WEFTI_DISK(ftruncate(d->own.fd, d->bytes)) ? failed(d, "make a file", errno) : WEFT_OK;
}

/* File systems may take the flag and refuse the transfer. */
weft_status wefti_disk_go_direct(wefti_disk_file *file, bool writes, int *out_error) {
    const int flags = fcntl(file->fd, F_GETFL);
    *out_error = 0;
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags | O_DIRECT)) return WEFT_OK;
    unsigned char *room = wefti_calloc(2, WEFTI_DISK_ALIGNMENT);
    WEFT_REQUIRE(room, WEFT_E_NOMEM, "no memory for a block of the disk");
    unsigned char *block = wefti_disk_align(room);
    const long got = writes ? WEFTI_DISK(pwrite(file->fd, block, WEFTI_DISK_ALIGNMENT, 0))
                            : WEFTI_DISK(pread(file->fd, block, WEFTI_DISK_ALIGNMENT, 0));
    const int error = got < 0 ? errno : 0;
    wefti_free(room);
    if (got == WEFTI_DISK_ALIGNMENT)
        file->alignment = WEFTI_DISK_ALIGNMENT;
    else if (error && error != EINVAL)
        *out_error = error;
    else if (fcntl(file->fd, F_SETFL, flags))
        *out_error = errno;
    return WEFT_OK;
}

static weft_status open_all(const wefti_disk_options *o, wefti_disk_stream *d) {
    int error;
    d->directory = wefti_strdup(o->directory);
    WEFT_REQUIRE(d->directory, WEFT_E_NOMEM, "no memory for a disk stream");
    WEFT_TRY(open_file(d));
    WEFT_TRY(o->late ? set_size(d) : reserve(d, 0, d->bytes));
    if (!o->cached) WEFT_TRY(wefti_disk_go_direct(&d->own, true, &error));
    if (!o->cached && error) return failed(d, "write a file", error);
    d->unit = o->encrypted ? WEFTI_DISK_ALIGNMENT : d->own.alignment;
    if (o->encrypted) WEFT_TRY(wefti_disk_cipher_create(d));
    WEFT_TRY(start_engine(d, o->engine, &error));
    const char *cache = d->own.alignment > 1 ? "O_DIRECT" : "page cache";
    const char *cipher = d->cipher ? ", AES-256-GCM" : "";
    d->text = d->ring ? wefti_format("io_uring, %s%s", cache, cipher)
              : error ? wefti_format("%d threads (io_uring: %s), %s%s", d->thread_count,
                                     strerror(error), cache, cipher)
                      : wefti_format("%d threads, %s%s", d->thread_count, cache, cipher);
    WEFT_REQUIRE(d->text, WEFT_E_NOMEM, "no memory for a disk stream");
    return WEFT_OK;
}

weft_status wefti_disk_stream_open(const wefti_disk_options *o, wefti_disk_stream **out) {
    wefti_disk_stream *d;
    const int64_t block = o->block ? o->block : WEFTI_DISK_BLOCK;
    WEFT_REQUIRE(o->bytes > 0 && o->bytes <= INT64_MAX / 2, WEFT_E_ARG,
                 "a file of %lld bytes on the disk; at least 1 is needed", (long long)o->bytes);
    WEFT_REQUIRE(block > 0 && block <= WEFTI_DISK_BLOCK_MAX && block % WEFTI_DISK_ALIGNMENT == 0,
                 WEFT_E_ARG, "blocks of %lld bytes on the disk; possible are multiples of %d to %d",
                 (long long)block, WEFTI_DISK_ALIGNMENT, WEFTI_DISK_BLOCK_MAX);
    WEFT_REQUIRE(o->depth >= 0 && o->depth <= WEFTI_DISK_DEPTH_MAX, WEFT_E_ARG,
                 "%d requests to the disk at once; possible are 1 to %d", o->depth,
                 WEFTI_DISK_DEPTH_MAX);
    WEFT_NEW(d, wefti_disk_stream);
    d->own.fd = -1;
    d->bytes = wefti_round_up(o->bytes, WEFTI_DISK_ALIGNMENT);
    d->block = block < d->bytes ? block : d->bytes;
    d->own.alignment = 1;
    d->depth = o->depth ? o->depth : DISK_DEPTH;
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_mutex_init(&d->bouncing, NULL);
    (void)pthread_cond_init(&d->work, NULL);
    (void)pthread_cond_init(&d->done, NULL);
    weft_status status = open_all(o, d);
    if (status < 0) {
        wefti_disk_stream_close(d);
        return status;
    }
    *out = d;
    return WEFT_OK;
}

static void free_ticket(wefti_disk_ticket *t) {
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    wefti_free(t);
}

void wefti_disk_stream_close(wefti_disk_stream *d) {
    if (!d) return;
    (void)pthread_mutex_lock(&d->lock);
    d->closing = true;
    (void)pthread_cond_broadcast(&d->work);
    (void)pthread_mutex_unlock(&d->lock);
    if (d->ring) wefti_disk_ring_destroy(d->ring);
    for (int32_t i = 0; i < d->thread_count; i++) (void)pthread_join(d->threads[i], NULL);
    while (d->tickets) free_ticket(d->tickets);
    wefti_free(d->buffers);
    wefti_free(d->bounce);
    wefti_free(d->records);
    wefti_disk_cipher_destroy(d->cipher);
    wefti_disk_loans_close(d);
    if (d->own.fd >= 0) (void)close(d->own.fd);
    (void)pthread_mutex_destroy(&d->lock);
    (void)pthread_mutex_destroy(&d->bouncing);
    (void)pthread_cond_destroy(&d->work);
    (void)pthread_cond_destroy(&d->done);
    wefti_free(d->text);
    wefti_free(d->directory);
    wefti_free(d);
}

weft_status wefti_disk_try(const char *directory) {
    const wefti_disk_options o = {.directory = directory, .bytes = 1, .depth = 1};
    wefti_disk_stream *d;
    WEFT_TRY(wefti_disk_stream_open(&o, &d));
    wefti_disk_stream_close(d);
    return WEFT_OK;
}

weft_status wefti_disk_free_bytes(const char *directory, int64_t *out) {
    struct statvfs space;
    WEFT_REQUIRE(!WEFTI_DISK(statvfs(directory, &space)), WEFT_E_IO,
                 "cannot read the free space of %s: %s", directory, strerror(errno));
    *out = (int64_t)(space.f_bavail * space.f_frsize);
    return WEFT_OK;
}

/* ---- operations ---- */

static bool shares_blocks(const wefti_disk_ticket *a, const wefti_disk_ticket *b) {
    return wefti_round_down(a->offset, WEFTI_DISK_ALIGNMENT) <
               wefti_round_up(b->offset + b->bytes, WEFTI_DISK_ALIGNMENT) &&
           wefti_round_down(b->offset, WEFTI_DISK_ALIGNMENT) <
               wefti_round_up(a->offset + a->bytes, WEFTI_DISK_ALIGNMENT);
}

static bool must_wait(const wefti_disk_stream *d, const wefti_disk_ticket *t) {
    for (const wefti_disk_ticket *other = d->tickets; other; other = other->next)
        if (!is_over(other) && (t->writes || other->writes) && shares_blocks(t, other)) return true;
    return false;
}

/* Makes the buffers before the first operation that needs any. If requests made their own, some
 * could fail while others of the same write change the file. */
static weft_status make_buffers(wefti_disk_stream *d, const wefti_disk_ticket *t) {
    const int64_t bytes = d->depth * d->block + WEFTI_DISK_ALIGNMENT;
    bool buffered = false;
    (void)pthread_mutex_lock(&d->lock);
    for (int64_t i = 0; i < t->count && !buffered; i++) {
        const wefti_disk_piece *x = &t->pieces[i];
        const bool whole = (x->offset | x->bytes) % d->unit == 0;
        buffered = d->loan_count || is_buffered(d, t, whole, d->own.alignment, x->memory);
    }
    if (!buffered) {
        (void)pthread_mutex_unlock(&d->lock);
        return WEFT_OK;
    }
    if (!d->buffers) d->buffers = wefti_alloc((size_t)bytes);
    const bool made = d->buffers;
    (void)pthread_mutex_unlock(&d->lock);
    WEFT_REQUIRE(made, WEFT_E_NOMEM, "no memory for %lld bytes of buffers to the disk in %s",
                 (long long)bytes, d->directory);
    return WEFT_OK;
}

/* Bytes that are written lie in no other file any more. */
static weft_status end_loans(wefti_disk_stream *d, const wefti_disk_ticket *t) {
    for (int64_t i = 0; i < t->count && t->writes; i++)
        WEFT_TRY(
            wefti_disk_end_loans(d, t->pieces[i].offset, t->pieces[i].offset + t->pieces[i].bytes));
    return WEFT_OK;
}

static weft_status put_in(wefti_disk_stream *d, wefti_disk_ticket *t) {
    (void)pthread_mutex_lock(&d->lock);
    while (t->count && must_wait(d, t)) (void)pthread_cond_wait(&d->done, &d->lock);
    const weft_status status = end_loans(d, t);
    if (status < 0) {
        (void)pthread_mutex_unlock(&d->lock);
        return status;
    }
    t->next = d->tickets;
    t->link = &d->tickets;
    if (t->next) t->next->link = &t->next;
    d->tickets = t;
    if (t->count) {
        *(d->last ? &d->last->queued : &d->first) = t;
        d->last = t;
        (void)pthread_cond_broadcast(&d->work);
    }
    (void)pthread_mutex_unlock(&d->lock);
    if (d->ring && t->count) wefti_disk_ring_wake(d->ring);
    return WEFT_OK;
}

/* Begins an operation like this one. Without `pieces` it has the one piece `like.one`. */
static weft_status begin(wefti_disk_stream *d, wefti_disk_ticket like, wefti_disk_ticket **out) {
    wefti_disk_ticket *t;
    WEFT_REQUIRE(like.offset >= 0 && like.bytes >= 0 && like.offset <= d->bytes &&
                     like.bytes <= d->bytes - like.offset,
                 WEFT_E_ARG, "%lld bytes at offset %lld of a file of %lld bytes in %s",
                 (long long)like.bytes, (long long)like.offset, (long long)d->bytes, d->directory);
    WEFT_NEW(t, wefti_disk_ticket);
    *t = like;
    if (!t->pieces) t->pieces = &t->one;
    weft_status status = make_buffers(d, t);
    if (status >= 0) status = put_in(d, t);
    if (status < 0)
        wefti_free(t);
    else
        *out = t;
    return status;
}

weft_status wefti_disk_stream_begin_all(wefti_disk_stream *d, bool writes,
                                        const wefti_disk_piece *pieces, int64_t count,
                                        wefti_disk_ticket **out) {
    const wefti_disk_piece *last = &pieces[count - 1];
    return begin(d,
                 (wefti_disk_ticket){.writes = writes,
                                     .offset = pieces->offset,
                                     .bytes = last->offset + last->bytes - pieces->offset,
                                     .pieces = pieces,
                                     .count = count},
                 out);
}

weft_status wefti_disk_stream_begin(wefti_disk_stream *d, bool writes, int64_t offset,
                                    int64_t bytes, void *memory, wefti_disk_ticket **out) {
    return begin(d,
                 (wefti_disk_ticket){.writes = writes,
                                     .offset = offset,
                                     .bytes = bytes,
                                     .one = {offset, bytes, memory},
                                     .count = bytes != 0},
                 out);
}

/* ---- guards ---- */

void wefti_disk_stream_guard(wefti_disk_stream *d, wefti_disk_guard *guard) {
    (void)pthread_mutex_lock(&d->lock);
    guard->next = d->guards;
    d->guards = guard;
    (void)pthread_mutex_unlock(&d->lock);
}

void wefti_disk_stream_unguard(wefti_disk_stream *d, const wefti_disk_guard *guard) {
    (void)pthread_mutex_lock(&d->lock);
    wefti_disk_guard **link = &d->guards;
    while (*link && *link != guard) link = &(*link)->next;
    if (*link) *link = guard->next;
    (void)pthread_mutex_unlock(&d->lock);
}

/* The next guard of a range behind `last` in the list; `last` NULL: the first. */
static wefti_disk_guard *next_guard(wefti_disk_stream *d, const wefti_disk_guard *last,
                                    int64_t begin, int64_t end) {
    (void)pthread_mutex_lock(&d->lock);
    wefti_disk_guard *w = last ? last->next : d->guards;
    while (w && (w->begin >= end || begin >= w->end)) w = w->next;
    (void)pthread_mutex_unlock(&d->lock);
    return w;
}

weft_status wefti_disk_stream_ask(wefti_disk_stream *d, bool writes, int64_t begin, int64_t end) {
    for (wefti_disk_guard *g = NULL; (g = next_guard(d, g, begin, end)) != NULL;)
        WEFT_TRY(g->before(g, writes));
    return WEFT_OK;
}

weft_status wefti_disk_stream_read(wefti_disk_stream *d, int64_t offset, int64_t bytes,
                                   void *memory, wefti_disk_ticket **out) {
    WEFT_TRY(wefti_disk_stream_ask(d, false, offset, offset + bytes));
    return wefti_disk_stream_begin_at(d, false, offset, bytes, memory, out);
}

weft_status wefti_disk_stream_write(wefti_disk_stream *d, int64_t offset, int64_t bytes,
                                    const void *memory, wefti_disk_ticket **out) {
    WEFT_TRY(wefti_disk_stream_ask(d, true, offset, offset + bytes));
    return wefti_disk_stream_begin_at(d, true, offset, bytes, (unsigned char *)memory, out);
}

/* Tells of a ticket's error: what, and where. */
static weft_status tell(const wefti_disk_stream *d, const wefti_disk_ticket *t) {
    WEFT_REQUIRE(t->error != ENOMEM, WEFT_E_NOMEM, "no memory to %s %lld bytes of the disk in %s",
                 t->writes ? "write" : "read", (long long)t->bytes, d->directory);
    WEFT_REQUIRE(t->error != EBADMSG, WEFT_E_CORRUPT,
                 "a block near offset %lld of the file in %s is not what was written: the disk or "
                 "another program has changed it",
                 (long long)t->error_offset, d->directory);
    WEFT_FAIL(WEFT_E_IO, "cannot %s at offset %lld of the file in %s: %s",
              t->writes ? "write" : "read", (long long)t->error_offset, d->directory,
              strerror(t->error));
}

weft_status wefti_disk_stream_wait(wefti_disk_stream *d, wefti_disk_ticket *ticket) {
    int64_t end = d->bytes;
    (void)pthread_mutex_lock(&d->lock);
    while (!is_over(ticket)) (void)pthread_cond_wait(&d->done, &d->lock);
    const wefti_disk_ticket t = *ticket;
    const wefti_disk_loan *found =
        t.error && !t.writes ? wefti_disk_loan_at(d, t.error_offset, &end) : NULL;
    const int64_t shift = found ? found->shift : 0;
    const char *lender = found ? d->lenders[found->file].path : NULL;
    free_ticket(ticket);
    (void)pthread_mutex_unlock(&d->lock);
    if (!t.error) return WEFT_OK;
    WEFT_REQUIRE(!lender, WEFT_E_IO, "cannot read %s at byte %lld: %s", lender,
                 (long long)(t.error_offset + shift), strerror(t.error));
    return tell(d, &t);
}

const char *wefti_disk_stream_text(const wefti_disk_stream *d) {
    return d->text;
}
wefti_disk_engine wefti_disk_stream_engine(const wefti_disk_stream *d) {
    return d->ring ? WEFTI_DISK_URING : WEFTI_DISK_THREADS;
}
bool wefti_disk_stream_direct(const wefti_disk_stream *d) {
    return d->own.alignment > 1;
}
