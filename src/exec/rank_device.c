/* A rank's device: its arena and the start values of its tensors. */
#include "exec/rank_device.h"

#include <math.h>

#include "base/philox.h"
#include "graph/fill.h"

enum { RANK_DEVICE_HUGE_PAGE = 2 << 20 };

/* ---- the arena ---- */

/* If the communicator has shared memory and the device can use it, ranks of one host access each
 * other's arenas. */
static bool is_shared(const wefti_rank_device *d) {
    return d->comm && d->comm->engine->map && d->device->table->adopt;
}

static weft_status map_arena(wefti_rank_device *d) {
    void *p;
    if (d->mapped == 0) return WEFT_OK;
    if (is_shared(d))
        WEFT_TRY(d->comm->engine->map(d->comm, d->device, (size_t)d->mapped, &p));
    else
        WEFT_TRY(d->device->table->allocate(d->device, WEFTI_SPACE_DEVICE, d->mapped, &p));
    d->memory[WEFTI_SPACE_DEVICE] = p;
    return WEFT_OK;
}

static void unmap_arena(wefti_rank_device *d) {
    unsigned char *memory = d->memory[WEFTI_SPACE_DEVICE];
    if (!memory) return;
    if (is_shared(d))
        d->comm->engine->unmap(d->comm, d->device, memory, (size_t)d->mapped);
    else
        d->device->table->free(d->device, WEFTI_SPACE_DEVICE, memory, d->mapped);
}

/* ---- life ---- */

static weft_status start(wefti_rank_device *d, int threads) {
    const wefti_device_table *table;
    WEFT_TRY(wefti_pool_create(threads, &d->pool));
    WEFT_TRY(wefti_device_choose(&table));
    WEFT_TRY(wefti_device_open(table, &d->device));
    WEFT_TRY(wefti_stream_create(d->device, d->pool, &d->stream));
    WEFT_TRY(wefti_stream_create(d->device, d->pool, &d->transfers));
    WEFT_TRY(wefti_event_create(d->device, &d->computed));
    WEFT_TRY(wefti_event_create(d->device, &d->transferred));
    return map_arena(d);
}

weft_status wefti_rank_device_create(int threads, int64_t bytes, wefti_comm *comm,
                                     wefti_rank_device **out) {
    wefti_rank_device *d;
    WEFT_NEW(d, wefti_rank_device);
    d->bytes = bytes;
    d->comm = comm;
    d->rank = comm ? comm->rank : 0;
    d->mapped = (bytes + RANK_DEVICE_HUGE_PAGE - 1) & ~(int64_t)(RANK_DEVICE_HUGE_PAGE - 1);
    weft_status status = start(d, threads);
    if (status < 0) {
        wefti_rank_device_destroy(d);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = d;
    return WEFT_OK;
}

void wefti_rank_device_destroy(wefti_rank_device *d) {
    if (!d) return;
    wefti_unbind_all(d);
    unmap_arena(d);
    wefti_event_destroy(d->transferred);
    wefti_event_destroy(d->computed);
    wefti_stream_destroy(d->transfers);
    wefti_stream_destroy(d->stream);
    wefti_device_close(d->device);
    wefti_pool_destroy(d->pool);
    wefti_free(d->finding);
    wefti_free(d);
}

enum { TAKE_BYTES = 16 << 20 };

weft_status wefti_rank_device_take(wefti_rank_device *to, wefti_rank_device *from) {
    const int64_t bytes = from->observed_peak < from->bytes ? from->observed_peak : from->bytes;
    WEFT_REQUIRE(to->bytes == from->bytes, WEFT_E_BUG, "arenas of %lld and %lld bytes",
                 (long long)from->bytes, (long long)to->bytes);
    for (int64_t at = 0; at < bytes; at += TAKE_BYTES) {
        const int64_t part = bytes - at < TAKE_BYTES ? bytes - at : TAKE_BYTES;
        const wefti_location begin = wefti_location_of(WEFTI_SPACE_DEVICE, at);
        wefti_mapping source, target;
        WEFT_TRY(wefti_rank_device_map(from, begin, part, WEFTI_ACCESS_READ, &source));
        weft_status status = wefti_rank_device_map(to, begin, part, WEFTI_ACCESS_WRITE, &target);
        if (status >= 0) memcpy(target.data, source.data, (size_t)part);
        if (status >= 0) status = wefti_device_unmap(&target, WEFT_OK);
        WEFT_TRY(wefti_device_unmap(&source, status));
    }
    to->observed_peak = from->observed_peak;
    to->used = from->used;
    return WEFT_OK;
}

wefti_comm *wefti_rank_device_comm(wefti_rank_device *d) {
    return d->comm;
}
wefti_device *wefti_rank_device_device(wefti_rank_device *d) {
    return d->device;
}
int64_t wefti_rank_device_observed_peak(const wefti_rank_device *d) {
    return d->observed_peak;
}
int64_t wefti_rank_device_waited(const wefti_rank_device *d) {
    return d->waited_ns;
}
void wefti_rank_device_trace(wefti_rank_device *d, wefti_trace *trace) {
    d->trace = trace;
}
int64_t wefti_rank_device_finding_order(const wefti_rank_device *d) {
    return d->finding ? d->finding_order : INT64_MAX;
}
int64_t wefti_rank_device_ended(const wefti_rank_device *d) {
    return d->at.number;
}
double wefti_rank_device_loss(const wefti_rank_device *d) {
    return d->losses ? d->loss / d->losses : NAN;
}

/* ---- addresses ---- */

unsigned char *wefti_rank_device_at(const wefti_rank_device *d, wefti_location at) {
    if (!wefti_location_exists(at)) return NULL;
    return d->memory[wefti_location_space(at)] + wefti_location_offset(at);
}

wefti_device *wefti_rank_device_owner(const wefti_rank_device *d, wefti_location at) {
    return wefti_device_of_space(d->device, wefti_location_space(at));
}

weft_status wefti_rank_device_map(const wefti_rank_device *d, wefti_location at, int64_t bytes,
                                  wefti_access access, wefti_mapping *out) {
    return wefti_device_map(wefti_rank_device_owner(d, at), wefti_rank_device_at(d, at), bytes,
                            access, out);
}

weft_status wefti_rank_device_write(const wefti_rank_device *d, wefti_location to, const void *from,
                                    int64_t bytes) {
    return wefti_device_write(wefti_rank_device_owner(d, to), wefti_rank_device_at(d, to), from,
                              bytes);
}

void wefti_rank_device_observe(wefti_rank_device *d, wefti_location at, int64_t bytes) {
    const int64_t end = wefti_location_offset(at) + bytes;
    if (wefti_location_space(at) == WEFTI_SPACE_DEVICE && end > d->observed_peak)
        d->observed_peak = end;
}

/* ---- start values ---- */

typedef struct filling {
    const wefti_tensor *tensor;
    wefti_region box;
    unsigned char *to;
    uint64_t seed, stream;
    int64_t elems;
} filling;

enum { FILL_BLOCK = 8192 };

static void fill_block(void *context, int64_t task, int thread) {
    const filling *f = context;
    (void)thread;
    int64_t begin = task * FILL_BLOCK, left = f->elems - begin;
    wefti_fill_region(&f->tensor->init, f->seed, f->stream, &f->tensor->whole, &f->box, begin,
                      left < FILL_BLOCK ? left : FILL_BLOCK, f->to);
}

static weft_status fill_tensor(wefti_rank_device *d, const wefti_program *p, const wefti_tensor *x,
                               uint64_t seed) {
    wefti_mapping m;
    filling f = {.tensor = x,
                 .seed = seed,
                 .stream = wefti_stream_of(x->name),
                 .elems = weft_desc_elems(&x->desc)};
    WEFT_TRY(wefti_rank_device_map(d, x->home, weft_desc_bytes(&x->desc), WEFTI_ACCESS_WRITE, &m));
    f.to = m.data;
    wefti_program_region(p, x, &f.box);
    wefti_pool_run(d->pool, (f.elems + FILL_BLOCK - 1) / FILL_BLOCK, fill_block, &f);
    return wefti_device_unmap(&m, WEFT_OK);
}

static weft_status clear(wefti_rank_device *d, wefti_location at, int64_t bytes) {
    return wefti_stream_fill(d->stream, wefti_rank_device_at(d, at), wefti_location_space(at), 0,
                             bytes);
}

weft_status wefti_rank_device_init(wefti_rank_device *d, const wefti_program *p, uint64_t seed) {
    for (int32_t t = 0; t < p->tensor_count; t++) {
        const wefti_tensor *x = &p->tensors[t];
        if (x->role > WEFTI_TENSOR_OPTIMIZER) continue;
        if (x->init.kind != WEFT_INIT_ZEROS)
            WEFT_TRY(fill_tensor(d, p, x, seed));
        else if (d->used) /* new memory is already zero */
            WEFT_TRY(clear(d, x->home, weft_desc_bytes(&x->desc)));
    }
    return wefti_rank_device_seed(d, p);
}

weft_status wefti_rank_device_seed(wefti_rank_device *d, const wefti_program *p) {
    unsigned char one[sizeof(double)];
    if (wefti_location_exists(p->scalars)) WEFT_TRY(clear(d, p->scalars, sizeof(wefti_step_block)));
    if (wefti_location_exists(p->one)) {
        wefti_store(p->loss_dtype, one, 0, 1.0);
        WEFT_TRY(wefti_rank_device_write(d, p->one, one, (int64_t)weft_dtype_bytes(p->loss_dtype)));
    }
    return wefti_stream_publish(d->stream);
}
