/* Devices: memory, copies and the order of work, behind one table.
 *
 * A device runs kernels and has memory of its own. The host may not touch device memory: it
 * reads, writes and maps ranges of homes (device/home.h). A device also has memory in host space,
 * which its copies reach, and kernels of the host that update parameters there. A stream does its
 * work in the order in which the host submitted it. A function that submits work may return before
 * the work is done. Kernels are not in this table: a backend (backend/backend.h) runs them in the
 * device's streams.
 *
 * A direct device, such as `host`, has memory that the host may touch at any time. Its calls return
 * only when their work is done. Mapping costs nothing: the mapping is the memory itself.
 *
 * WEFT_DEVICE in the environment names the kind of each rank's device: `host` (the default) or
 * `fenced`. A list, such as `host,fenced`, gives rank r its name number r, and begins again after
 * the last name. */
#ifndef WEFTI_DEVICE_H
#define WEFTI_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/pool.h"
#include "device/location.h"
#include "weft/types.h"

typedef struct wefti_byte_range {
    const void *memory;
    int64_t bytes;
} wefti_byte_range;

typedef struct wefti_device_table wefti_device_table;
typedef struct wefti_device wefti_device;
typedef struct wefti_stream wefti_stream;
typedef struct wefti_event wefti_event;

/* A kind of device. Functions marked "not direct" are never called for a direct device. Such a
 * device may leave them NULL. */
struct wefti_device_table {
    const char *name; /* the name in WEFT_DEVICE */
    bool direct;
    weft_status (*open)(wefti_device **out);
    void (*close)(wefti_device *device);
    /* Zeroed, page-aligned memory. `bytes` may be far more than the program ever touches. */
    weft_status (*allocate)(wefti_device *device, wefti_space space, int64_t bytes, void **out);
    void (*free)(wefti_device *device, wefti_space space, void *memory, int64_t bytes);
    /* Makes memory that a communicator has mapped device memory, until as many calls of `release`:
     * zeroed memory of this process, or that of other processes' devices. NULL: the device cannot
     * use such memory. */
    weft_status (*adopt)(wefti_device *device, void *memory, int64_t bytes);
    void (*release)(wefti_device *device, void *memory, int64_t bytes);
    /* `pool`: the threads that do the work, if the device's kernels run on the host. Borrowed. */
    weft_status (*stream_create)(wefti_device *device, wefti_pool *pool, wefti_stream **out);
    void (*stream_destroy)(wefti_stream *stream);
    /* Work of a stream. The ranges of a copy may overlap within one space. Bytes in host space may
     * be the process's own. The caller must not change the memory of a copy or an addition until
     * the work is done. */
    weft_status (*fill)(wefti_stream *stream, void *to, wefti_space space, int byte, int64_t bytes);
    weft_status (*copy)(wefti_stream *stream, void *to, wefti_space to_space, const void *from,
                        wefti_space from_space, int64_t bytes);
    /* to[i] += from[i] within a space, for elements of `dtype`. */
    weft_status (*add)(wefti_stream *stream, wefti_space space, weft_dtype dtype, void *to,
                       const void *from, int64_t elems);
    /* Not direct. The caller waits until all work of the stream is done. */
    weft_status (*finish)(wefti_stream *stream);
    /* Not direct. An event stands for the work that a stream has when the event is recorded.
     * `await` makes later work of another stream wait for the event. */
    weft_status (*event_create)(wefti_device *device, wefti_event **out);
    void (*event_destroy)(wefti_event *event);
    weft_status (*event_record)(wefti_stream *stream, wefti_event *event);
    weft_status (*await)(wefti_stream *stream, wefti_event *event);
    /* From expose to conceal, kernels and communicators that run on the host may touch these ranges
     * of the device's memory in one space: device or host. Expose first waits for the work of the
     * stream. Calls nest: a byte is concealed when all ranges that cover it are concealed. NULL:
     * such code may touch the memory at any time, or never touches it. */
    weft_status (*expose)(wefti_stream *stream, wefti_space space, const wefti_byte_range *ranges,
                          int count);
    void (*conceal)(wefti_stream *stream, const wefti_byte_range *ranges, int count);
    /* The same for memory of other processes' devices, which a communicator maps in this one. NULL:
     * the communicator may touch it at any time. */
    weft_status (*expose_peer)(const wefti_byte_range *ranges, int count);
    void (*conceal_peer)(const wefti_byte_range *ranges, int count);
    /* A communicator could not read another process's memory because it is not exposed there. Ends
     * the process. NULL: the transfer fails. */
    void (*violation)(const char *what);
};

/* Every device, stream and event begins with these. */
struct wefti_device {
    const wefti_device_table *table;
    /* Not direct. Lock, stream and event of the host's mappings, reads and writes. */
    pthread_mutex_t lock;
    wefti_stream *copies;
    wefti_event *published; /* marks the work that the host waits for */
};
struct wefti_stream {
    wefti_device *device;
    wefti_pool *pool;
};
struct wefti_event {
    wefti_device *device;
};

extern const wefti_device_table wefti_device_host, wefti_device_fenced;

/* The table that WEFT_DEVICE names for a rank; WEFT_E_ARG if it has a name of no device. Opens
 * nothing. */
weft_status wefti_device_choose(int32_t rank, const wefti_device_table **out) WEFT_CHECKED;
weft_status wefti_device_open(const wefti_device_table *table, wefti_device **out) WEFT_CHECKED;
/* Call it after all memory and streams of the device are released. NULL is legal. */
void wefti_device_close(wefti_device *device);

/* ---- streams ---- */

static inline weft_status wefti_stream_create(wefti_device *d, wefti_pool *pool,
                                              wefti_stream **out) {
    return d->table->stream_create(d, pool, out);
}
static inline void wefti_stream_destroy(wefti_stream *s) {
    if (s) s->device->table->stream_destroy(s);
}
/* The caller waits until all work of the stream is done. */
static inline weft_status wefti_stream_finish(wefti_stream *s) {
    return s->device->table->direct ? WEFT_OK : s->device->table->finish(s);
}
/* Mappings, reads and writes of the host wait for the work that the stream has now. Only one stream
 * of a device publishes. */
static inline weft_status wefti_stream_publish(wefti_stream *s) {
    return s->device->table->direct ? WEFT_OK
                                    : s->device->table->event_record(s, s->device->published);
}

/* Later work of `s` waits for the work that `before` has now. `event` serves this order alone. */
static inline weft_status wefti_stream_follow(wefti_stream *s, wefti_stream *before,
                                              wefti_event *event) {
    if (s->device->table->direct) return WEFT_OK;
    weft_status status = s->device->table->event_record(before, event);
    return status < 0 ? status : s->device->table->await(s, event);
}
/* NULL on a direct device, where work is done in order without events. */
static inline weft_status wefti_event_create(wefti_device *d, wefti_event **out) {
    *out = NULL;
    return d->table->direct ? WEFT_OK : d->table->event_create(d, out);
}
static inline void wefti_event_destroy(wefti_event *e) {
    if (e) e->device->table->event_destroy(e);
}

static inline weft_status wefti_stream_fill(wefti_stream *s, void *to, wefti_space space, int byte,
                                            int64_t bytes) {
    return s->device->table->fill(s, to, space, byte, bytes);
}
static inline weft_status wefti_stream_copy(wefti_stream *s, void *to, wefti_space to_space,
                                            const void *from, wefti_space from_space,
                                            int64_t bytes) {
    return s->device->table->copy(s, to, to_space, from, from_space, bytes);
}
static inline weft_status wefti_stream_add(wefti_stream *s, wefti_space space, weft_dtype dtype,
                                           void *to, const void *from, int64_t elems) {
    return s->device->table->add(s, space, dtype, to, from, elems);
}

/* ---- device memory and the host ---- */

/* Copies bytes, on a device that is not direct behind all published work. The copy is done when the
 * call returns. Any thread may call it. device NULL: both are memory of this process. */
weft_status wefti_device_copy(wefti_device *device, void *to, wefti_space to_space,
                              const void *from, wefti_space from_space, int64_t bytes) WEFT_CHECKED;

/* ---- host code that works on a device's memory ---- */

/* Whether the device needs calls of `expose` (see above). */
static inline bool wefti_stream_exposes(const wefti_stream *s) {
    return s->device->table->expose != NULL;
}
static inline weft_status wefti_stream_expose(wefti_stream *s, wefti_space space,
                                              const wefti_byte_range *ranges, int count) {
    return s->device->table->expose(s, space, ranges, count);
}
static inline void wefti_stream_conceal(wefti_stream *s, const wefti_byte_range *ranges,
                                        int count) {
    s->device->table->conceal(s, ranges, count);
}

#endif
