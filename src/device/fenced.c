/* The device `fenced`, for tests: the device `host` behind a fence (fence.h). Its memory is
 * inaccessible, with two exceptions: its own copies, and kernels and transfers between expose and
 * conceal. Any other access is a segmentation fault, as it would be an error on a device with its
 * own memory. The memory that it allocates in host space is fenced too. A kernel that takes memory
 * of one space for the other's fails. Communicators fence the memory of other processes' devices in
 * the same way.
 *
 * The fence protects whole pages. It misses accesses to other bytes of an exposed page, and
 * accesses by other threads while a page is exposed.
 *
 * Copies are late on purpose: a stream does the last copy when it gets more work, or when a caller
 * waits. Code that forgets to wait finds old bytes. */
#include <stdatomic.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "device/fence.h"
#include "device/memory.h"

typedef struct fenced_stream {
    wefti_stream base;
    pthread_mutex_t lock; /* another stream may await the last copy */
    bool late;            /* there is one: */
    void *to;
    const void *from;
    wefti_space to_space, from_space;
    int64_t bytes;
} fenced_stream;

typedef struct fenced_event {
    wefti_event base;
    _Atomic(fenced_stream *) stream; /* NULL: not recorded yet */
} fenced_event;

/* ---- memory ---- */

static weft_status allocate(wefti_device *d, wefti_space space, int64_t bytes, void **out) {
    (void)d;
    WEFT_TRY(wefti_memory_map(bytes, PROT_READ | PROT_WRITE, out));
    weft_status status = wefti_fence_begin(*out, bytes, space);
    if (status < 0) wefti_memory_unmap(*out, bytes);
    return status;
}

static void release_memory(wefti_device *d, wefti_space space, void *memory, int64_t bytes) {
    (void)d, (void)space;
    wefti_fence_end(memory);
    wefti_memory_unmap(memory, bytes);
}

static weft_status adopt(wefti_device *d, void *memory, int64_t bytes) {
    (void)d;
    return wefti_fence_begin(memory, bytes, WEFTI_SPACE_DEVICE);
}

static void release(wefti_device *d, void *memory, int64_t bytes) {
    (void)d;
    (void)bytes;
    wefti_fence_end(memory);
}

/* ---- work ---- */

/* Checks that device bytes are fenced device memory and that host bytes are not. */
static weft_status check_space(const void *memory, wefti_space space, int64_t bytes) {
    WEFT_REQUIRE(wefti_fence_holds(memory, bytes, WEFTI_SPACE_DEVICE) ==
                     (space == WEFTI_SPACE_DEVICE),
                 WEFT_E_BUG, "a copy of %lld bytes at %p takes them for memory of the %s",
                 (long long)bytes, memory, space == WEFTI_SPACE_DEVICE ? "device" : "host");
    return WEFT_OK;
}

/* Host bytes may be the program's own, which have no fence. */
static int list_fenced(const void *memory, wefti_space space, int64_t bytes,
                       wefti_byte_range *out) {
    if (!wefti_fence_holds(memory, bytes, space)) return 0;
    *out = (wefti_byte_range){memory, bytes};
    return 1;
}

static weft_status do_late(fenced_stream *s) {
    if (!s->late) return WEFT_OK;
    wefti_byte_range ranges[2];
    int n = list_fenced(s->to, s->to_space, s->bytes, ranges);
    n += list_fenced(s->from, s->from_space, s->bytes, ranges + n);
    s->late = false;
    WEFT_TRY(wefti_fence_open_copy(ranges, n));
    memmove(s->to, s->from, (size_t)s->bytes);
    wefti_fence_close(ranges, n);
    return WEFT_OK;
}

static weft_status finish(wefti_stream *base) {
    fenced_stream *s = (fenced_stream *)base;
    pthread_mutex_lock(&s->lock);
    weft_status status = do_late(s);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status expose(wefti_stream *s, wefti_space space, const wefti_byte_range *ranges,
                          int n) {
    WEFT_TRY(finish(s));
    return wefti_fence_open(space, ranges, n);
}

static void conceal(wefti_stream *s, const wefti_byte_range *ranges, int n) {
    (void)s;
    wefti_fence_close(ranges, n);
}

static weft_status copy(wefti_stream *base, void *to, wefti_space to_space, const void *from,
                        wefti_space from_space, int64_t bytes) {
    fenced_stream *s = (fenced_stream *)base;
    if (!bytes) return WEFT_OK;
    WEFT_TRY(check_space(to, to_space, bytes));
    WEFT_TRY(check_space(from, from_space, bytes));
    pthread_mutex_lock(&s->lock);
    weft_status status = do_late(s);
    s->late = status >= 0;
    s->to = to;
    s->from = from;
    s->to_space = to_space;
    s->from_space = from_space;
    s->bytes = bytes;
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status fill(wefti_stream *s, void *to, wefti_space space, int byte, int64_t bytes) {
    wefti_byte_range range;
    int ranges = list_fenced(to, space, bytes, &range);
    WEFT_TRY(check_space(to, space, bytes));
    WEFT_TRY(finish(s));
    WEFT_TRY(wefti_fence_open_copy(&range, ranges));
    weft_status status = wefti_device_host.fill(s, to, space, byte, bytes);
    conceal(s, &range, ranges);
    return status;
}

static weft_status add(wefti_stream *s, wefti_space space, weft_dtype dtype, void *to,
                       const void *from, int64_t elems) {
    int64_t bytes = elems * (int64_t)weft_dtype_bytes(dtype);
    wefti_byte_range ranges[] = {{to, bytes}, {from, bytes}};
    WEFT_TRY(expose(s, space, ranges, 2));
    weft_status status = wefti_device_host.add(s, space, dtype, to, from, elems);
    conceal(s, ranges, 2);
    return status;
}

/* ---- events ---- */

static weft_status event_create(wefti_device *d, wefti_event **out) {
    fenced_event *e;
    WEFT_NEW(e, fenced_event);
    e->base.device = d;
    *out = &e->base;
    return WEFT_OK;
}

static void event_destroy(wefti_event *e) {
    wefti_free(e);
}

static weft_status event_record(wefti_stream *s, wefti_event *e) {
    atomic_store(&((fenced_event *)e)->stream, (fenced_stream *)s);
    return WEFT_OK;
}

static weft_status await(wefti_stream *s, wefti_event *event) {
    fenced_stream *recorded = atomic_load(&((fenced_event *)event)->stream);
    WEFT_TRY(finish(s));
    return recorded ? finish(&recorded->base) : WEFT_OK;
}

/* ---- memory of other processes' devices ---- */

static weft_status expose_peer(const wefti_byte_range *ranges, int n) {
    return wefti_fence_open(WEFTI_SPACE_DEVICE, ranges, n);
}

/* ---- life ---- */

static weft_status open_fenced(wefti_device **out) {
    WEFT_NEW(*out, wefti_device);
    return WEFT_OK;
}

static void close_fenced(wefti_device *d) {
    wefti_free(d);
}

static weft_status stream_create(wefti_device *d, wefti_pool *pool, wefti_stream **out) {
    fenced_stream *s;
    WEFT_NEW(s, fenced_stream);
    s->base = (wefti_stream){d, pool};
    pthread_mutex_init(&s->lock, NULL);
    *out = &s->base;
    return WEFT_OK;
}

static void stream_destroy(wefti_stream *base) {
    pthread_mutex_destroy(&((fenced_stream *)base)->lock);
    wefti_free(base);
}

const wefti_device_table wefti_device_fenced = {
    .name = "fenced",
    .open = open_fenced,
    .close = close_fenced,
    .allocate = allocate,
    .free = release_memory,
    .adopt = adopt,
    .release = release,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .fill = fill,
    .copy = copy,
    .add = add,
    .finish = finish,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .await = await,
    .expose = expose,
    .conceal = conceal,
    .expose_peer = expose_peer,
    .conceal_peer = wefti_fence_close,
    .violation = wefti_fence_violation,
};
