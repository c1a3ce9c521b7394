/* The engine io_uring of disk streams: one thread submits requests and takes their results. */
#include "device/disk_parts.h"

#include <errno.h>

#ifdef WEFT_HAVE_URING
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"
#include "base/thread.h"

struct wefti_disk_ring {
    wefti_disk_stream *stream;
    struct io_uring ring;
    int wake; /* an eventfd, which the ring polls beside the requests */
    bool polls;
    pthread_t thread;
    int32_t under_way, free_count;
    wefti_disk_request *free[WEFTI_DISK_DEPTH_MAX];
    wefti_disk_request requests[WEFTI_DISK_DEPTH_MAX];
};

/* Submits the transfer of a request. A fault point takes the place of the system's answer. */
static void submit(wefti_disk_ring *g, wefti_disk_request *r) {
    wefti_disk_stream *d = g->stream;
    while (wefti_fault_io())
        if (wefti_disk_request_advance(d, r, -errno)) {
            g->free[g->free_count++] = r;
            return;
        }
    wefti_fault_pass(WEFTI_SLOW_DISK);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&g->ring); /* there are depth + 1 */
    const uint64_t offset = (uint64_t)(r->from + r->done);
    if (r->reads)
        io_uring_prep_readv(sqe, r->file.fd, &r->vector, 1, offset);
    else
        io_uring_prep_writev(sqe, r->file.fd, &r->vector, 1, offset);
    io_uring_sqe_set_data(sqe, r);
    g->under_way++;
}

static void submit_new(wefti_disk_ring *g) {
    while (g->free_count) {
        wefti_disk_request *r = g->free[g->free_count - 1];
        if (!wefti_disk_request_take(g->stream, r, false)) return;
        if (!wefti_disk_request_begin(g->stream, r)) continue;
        g->free_count--;
        submit(g, r);
    }
}

static void poll_wake(wefti_disk_ring *g) {
    if (g->polls) return;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&g->ring);
    io_uring_prep_poll_add(sqe, g->wake, POLLIN);
    io_uring_sqe_set_data(sqe, NULL);
    g->polls = true;
}

static void take_results(wefti_disk_ring *g) {
    struct io_uring_cqe *cqe;
    uint64_t count;
    while (!io_uring_peek_cqe(&g->ring, &cqe)) {
        wefti_disk_request *r = io_uring_cqe_get_data(cqe);
        const int result = cqe->res;
        io_uring_cqe_seen(&g->ring, cqe);
        if (!r) {
            g->polls = false;
            (void)!read(g->wake, &count, sizeof count); /* does not block */
            continue;
        }
        g->under_way--;
        if (wefti_disk_request_advance(g->stream, r, result))
            g->free[g->free_count++] = r;
        else
            submit(g, r);
    }
}

static void *drive(void *context) {
    static const struct timespec rest = {.tv_nsec = 1000000};
    wefti_disk_ring *g = context;
    for (;;) {
        submit_new(g);
        if (!g->under_way && wefti_disk_stream_closing(g->stream)) return NULL;
        poll_wake(g);
        const int got = g->under_way ? WEFTI_DISK_WATCH(io_uring_submit_and_wait(&g->ring, 1))
                                     : io_uring_submit_and_wait(&g->ring, 1);
        if (got < 0 && got != -EINTR) (void)nanosleep(&rest, NULL); /* the kernel is out of room */
        take_results(g);
    }
}

void wefti_disk_ring_wake(wefti_disk_ring *g) {
    static const uint64_t one = 1;
    (void)!write(g->wake, &one, sizeof one);
}

static void destroy(wefti_disk_ring *g) {
    if (g->wake >= 0) (void)close(g->wake);
    wefti_free(g);
}

void wefti_disk_ring_destroy(wefti_disk_ring *g) {
    wefti_disk_ring_wake(g);
    (void)pthread_join(g->thread, NULL);
    io_uring_queue_exit(&g->ring);
    destroy(g);
}

int wefti_disk_ring_create(wefti_disk_stream *d) {
    wefti_disk_ring *g = wefti_calloc(1, sizeof *g);
    if (!g) return -ENOMEM;
    g->stream = d;
    for (int32_t i = 0; i < d->depth; i++) g->free[g->free_count++] = &g->requests[i];
    g->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error = g->wake < 0 ? -errno : io_uring_queue_init((unsigned)d->depth + 1, &g->ring, 0);
    if (error >= 0) {
        error = -wefti_thread_start(&g->thread, drive, g);
        if (error < 0) io_uring_queue_exit(&g->ring);
    }
    if (error < 0) {
        destroy(g);
        return error;
    }
    d->ring = g;
    return 0;
}

#else
int wefti_disk_ring_create(wefti_disk_stream *d) {
    (void)d;
    return -ENOSYS;
}
void wefti_disk_ring_destroy(wefti_disk_ring *ring) {
    (void)ring;
}
void wefti_disk_ring_wake(wefti_disk_ring *ring) {
    (void)ring;
}
#endif
