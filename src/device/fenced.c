/* The device `fenced`, for tests: the device `host` behind a fence. Its memory is inaccessible
 * (mprotect), with two exceptions: its own copies, and kernels and transfers between expose and
 * conceal. Any other access is a segmentation fault, as it would be an error on a device with its
 * own memory.
 *
 * The fence protects whole pages, in the mapping of one process. It misses accesses to other bytes
 * of an exposed page, and accesses by other threads while a page is exposed.
 *
 * Copies are late on purpose: a stream does the last copy when it gets more work, or when a caller
 * waits. Code that forgets to wait finds old bytes. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "device/memory.h"

/* Memory of the device. `opens` counts for each page how often the page is exposed. */
typedef struct area {
    struct area *next;
    unsigned char *memory;
    int64_t bytes; /* whole pages */
    uint32_t opens[];
} area;

typedef struct fenced {
    wefti_device base;
    pthread_mutex_t lock;
    area *areas;
    int64_t page;
} fenced;

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

/* ---- the fence ---- */

static area *area_of(const fenced *f, const void *memory, int64_t bytes) {
    for (area *a = f->areas; a; a = a->next) {
        int64_t at = (const unsigned char *)memory - a->memory;
        if ((const unsigned char *)memory >= a->memory && at + bytes <= a->bytes) return a;
    }
    return NULL;
}

static weft_status protect(const fenced *f, const area *a, int64_t first, int64_t end, bool open) {
    if (first == end) return WEFT_OK;
    int protection = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    WEFT_REQUIRE(
        !mprotect(a->memory + first * f->page, (size_t)((end - first) * f->page), protection),
        WEFT_E_NOMEM, "mprotect of device memory failed");
    return WEFT_OK;
}

/* Adds `step` (1 or -1) to the count of each page of a range. Where the
 * count leaves or reaches 0, changes the protection, one run of pages at a time. */
static weft_status count(const fenced *f, area *a, const wefti_byte_range *r, int step) {
    int64_t begin = (const unsigned char *)r->memory - a->memory;
    int64_t first = begin / f->page, end = (begin + r->bytes + f->page - 1) / f->page, from = first;
    weft_status status = WEFT_OK;
    for (int64_t p = first; p < end; p++) {
        bool changes = step > 0 ? a->opens[p] == 0 : a->opens[p] == 1;
        a->opens[p] += (uint32_t)step;
        if (changes) continue;
        if (status >= 0) status = protect(f, a, from, p, step > 0);
        from = p + 1;
    }
    return status < 0 ? status : protect(f, a, from, end, step > 0);
}

static weft_status change(fenced *f, const wefti_byte_range *ranges, int n, int step) {
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < n && status >= 0; i++) {
        if (!ranges[i].memory || !ranges[i].bytes) continue;
        area *a = area_of(f, ranges[i].memory, ranges[i].bytes);
        status = a ? count(f, a, &ranges[i], step)
                   : WEFT_RAISE(WEFT_E_BUG, "%lld bytes at %p are not memory of the device",
                                (long long)ranges[i].bytes, ranges[i].memory);
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

static weft_status open_ranges(wefti_device *d, const wefti_byte_range *ranges, int n) {
    return change((fenced *)d, ranges, n, 1);
}

static void close_ranges(wefti_device *d, const wefti_byte_range *ranges, int n) {
    weft_status status = change((fenced *)d, ranges, n, -1);
    (void)status; /* ranges that were opened are memory of the device */
}

/* ---- memory ---- */

static weft_status add_area(fenced *f, void *memory, int64_t bytes) {
    int64_t pages = (bytes + f->page - 1) / f->page;
    area *a = wefti_calloc(1, sizeof *a + (size_t)pages * sizeof *a->opens);
    WEFT_REQUIRE(a, WEFT_E_NOMEM, "no memory for the fence around %lld bytes", (long long)bytes);
    a->memory = memory;
    a->bytes = pages * f->page;
    pthread_mutex_lock(&f->lock);
    a->next = f->areas;
    f->areas = a;
    pthread_mutex_unlock(&f->lock);
    return WEFT_OK;
}

static void drop_area(fenced *f, const void *memory) {
    pthread_mutex_lock(&f->lock);
    area **at = &f->areas;
    while (*at && (*at)->memory != memory) at = &(*at)->next;
    area *a = *at;
    if (a) *at = a->next;
    pthread_mutex_unlock(&f->lock);
    wefti_free(a);
}

static weft_status allocate(wefti_device *d, wefti_space space, int64_t bytes, void **out) {
    if (space == WEFTI_SPACE_HOST) return wefti_memory_map(bytes, PROT_READ | PROT_WRITE, out);
    WEFT_TRY(wefti_memory_map(bytes, PROT_NONE, out));
    weft_status status = add_area((fenced *)d, *out, bytes);
    if (status < 0) wefti_memory_unmap(*out, bytes);
    return status;
}

static void release_memory(wefti_device *d, wefti_space space, void *memory, int64_t bytes) {
    if (space == WEFTI_SPACE_DEVICE) drop_area((fenced *)d, memory);
    wefti_memory_unmap(memory, bytes);
}

static weft_status adopt(wefti_device *d, void *memory, int64_t bytes) {
    WEFT_TRY(add_area((fenced *)d, memory, bytes));
    if (!mprotect(memory, (size_t)bytes, PROT_NONE)) return WEFT_OK;
    drop_area((fenced *)d, memory);
    WEFT_FAIL(WEFT_E_NOMEM, "mprotect of device memory failed");
}

static void release(wefti_device *d, void *memory, int64_t bytes) {
    drop_area((fenced *)d, memory);
    (void)mprotect(memory, (size_t)bytes, PROT_READ | PROT_WRITE);
}

/* ---- work ---- */

/* Checks that device bytes lie behind the fence and that host bytes do not. */
static weft_status check_space(fenced *f, const void *memory, wefti_space space, int64_t bytes) {
    pthread_mutex_lock(&f->lock);
    bool fits = (area_of(f, memory, bytes) != NULL) == (space == WEFTI_SPACE_DEVICE);
    pthread_mutex_unlock(&f->lock);
    WEFT_REQUIRE(fits, WEFT_E_BUG, "a copy of %lld bytes at %p takes them for memory of the %s",
                 (long long)bytes, memory, space == WEFTI_SPACE_DEVICE ? "device" : "host");
    return WEFT_OK;
}

static weft_status do_late(fenced_stream *s) {
    if (!s->late) return WEFT_OK;
    wefti_byte_range ranges[2];
    int n = 0;
    if (s->to_space == WEFTI_SPACE_DEVICE) ranges[n++] = (wefti_byte_range){s->to, s->bytes};
    if (s->from_space == WEFTI_SPACE_DEVICE) ranges[n++] = (wefti_byte_range){s->from, s->bytes};
    s->late = false;
    WEFT_TRY(open_ranges(s->base.device, ranges, n));
    memmove(s->to, s->from, (size_t)s->bytes);
    close_ranges(s->base.device, ranges, n);
    return WEFT_OK;
}

static weft_status finish(wefti_stream *base) {
    fenced_stream *s = (fenced_stream *)base;
    pthread_mutex_lock(&s->lock);
    weft_status status = do_late(s);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static weft_status expose(wefti_stream *s, const wefti_byte_range *ranges, int n) {
    WEFT_TRY(finish(s));
    return open_ranges(s->device, ranges, n);
}

static void conceal(wefti_stream *s, const wefti_byte_range *ranges, int n) {
    close_ranges(s->device, ranges, n);
}

static weft_status copy(wefti_stream *base, void *to, wefti_space to_space, const void *from,
                        wefti_space from_space, int64_t bytes) {
    fenced_stream *s = (fenced_stream *)base;
    if (!bytes) return WEFT_OK;
    WEFT_TRY(check_space((fenced *)base->device, to, to_space, bytes));
    WEFT_TRY(check_space((fenced *)base->device, from, from_space, bytes));
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
    wefti_byte_range range = {to, bytes};
    int ranges = space == WEFTI_SPACE_DEVICE;
    WEFT_TRY(check_space((fenced *)s->device, to, space, bytes));
    WEFT_TRY(expose(s, &range, ranges));
    weft_status status = wefti_device_host.fill(s, to, space, byte, bytes);
    conceal(s, &range, ranges);
    return status;
}

static weft_status add(wefti_stream *s, weft_dtype dtype, void *to, const void *from,
                       int64_t elems) {
    int64_t bytes = elems * (int64_t)weft_dtype_bytes(dtype);
    wefti_byte_range ranges[] = {{to, bytes}, {from, bytes}};
    WEFT_TRY(expose(s, ranges, 2));
    weft_status status = wefti_device_host.add(s, dtype, to, from, elems);
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

/* ---- life ---- */

static weft_status open_fenced(wefti_device **out) {
    fenced *f;
    WEFT_NEW(f, fenced);
    pthread_mutex_init(&f->lock, NULL);
    f->page = (int64_t)sysconf(_SC_PAGESIZE);
    *out = &f->base;
    return WEFT_OK;
}

static void close_fenced(wefti_device *d) {
    pthread_mutex_destroy(&((fenced *)d)->lock);
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
};
