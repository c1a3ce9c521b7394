/* A rank's device: its arenas and the start values of its tensors. */
#include "exec/rank_device.h"

#include <math.h>

#include "base/philox.h"
#include "graph/fill.h"

enum { RANK_DEVICE_HUGE_PAGE = 2 << 20 };

/* ---- arenas ---- */

/* If the communicator has shared memory and the device can use it, ranks of one host access each
 * other's device memory. */
static bool is_shared(const wefti_rank_device *d, wefti_space space) {
    return space == WEFTI_SPACE_DEVICE && d->comm && d->comm->engine->map &&
           d->device->table->adopt;
}

/* Other files may lend bytes of tensors before space is reserved for the rest. */
static weft_status open_file(const wefti_rank_device *d, wefti_term term, int64_t bytes,
                             wefti_arena_block *out) {
    const wefti_disk_options options = {.directory = d->directory,
                                        .bytes = bytes,
                                        .encrypted = d->encrypted,
                                        .late = term == WEFTI_PERSISTENT};
    *out = (wefti_arena_block){.mapped = bytes};
    WEFT_REQUIRE(d->directory, WEFT_E_ARG,
                 "the plan keeps tensors on the disk, but no directory is given for their file");
    return wefti_disk_stream_open(&options, &out->file);
}

static weft_status map_block(wefti_rank_device *d, wefti_space space, wefti_term term,
                             int64_t bytes, wefti_arena_block *out) {
    void *p;
    if (space == WEFTI_SPACE_DISK) return open_file(d, term, bytes, out);
    *out = (wefti_arena_block){.mapped = bytes, .remote = &d->remote};
    if (space == WEFTI_SPACE_SERVER) return WEFT_OK;
    /* empty tensors have an address too */
    const int64_t mapped =
        ((bytes ? bytes : 1) + RANK_DEVICE_HUGE_PAGE - 1) & ~(int64_t)(RANK_DEVICE_HUGE_PAGE - 1);
    if (is_shared(d, space))
        WEFT_TRY(d->comm->engine->map(d->comm, d->device, (size_t)mapped, &p));
    else
        WEFT_TRY(d->device->table->allocate(d->device, space, mapped, &p));
    *out = (wefti_arena_block){.memory = p, .mapped = mapped};
    return WEFT_OK;
}

static void unmap_block(wefti_rank_device *d, wefti_space space, const wefti_arena_block *block) {
    if (block->remote) return;
    if (block->file)
        wefti_disk_stream_close(block->file);
    else if (is_shared(d, space))
        d->comm->engine->unmap(d->comm, d->device, block->memory, (size_t)block->mapped);
    else
        d->device->table->free(d->device, space, block->memory, block->mapped);
}

/* Removes the blocks from number `keep` on. */
static void unmap_from(wefti_rank_device *d, wefti_space space, wefti_term term, int64_t keep) {
    wefti_device_arena *arena = &d->arenas[space][term];
    while (arena->count > keep) unmap_block(d, space, &arena->blocks[--arena->count]);
}

/* Persistent bytes stay where they are: a block is appended. Transient ones get a new block. The
 * old one goes when the new one is there, so that a failure changes nothing. Only empty tensors in
 * device memory need an address. */
static weft_status grow(wefti_rank_device *d, wefti_space space, wefti_term term, int64_t bytes) {
    wefti_device_arena *arena = &d->arenas[space][term];
    wefti_arena_block block;
    if (bytes <= arena->bytes && (arena->count || space != WEFTI_SPACE_DEVICE)) return WEFT_OK;
    const int64_t begin = term == WEFTI_PERSISTENT ? arena->bytes : 0;
    WEFT_TRY(WEFT_GROW(arena->blocks, arena->count, arena->cap));
    WEFT_TRY(map_block(d, space, term, bytes - begin, &block));
    block.begin = begin;
    if (term == WEFTI_TRANSIENT) unmap_from(d, space, term, 0);
    arena->blocks[arena->count++] = block;
    arena->bytes = bytes;
    return WEFT_OK;
}

weft_status wefti_rank_device_reserve(wefti_rank_device *d, wefti_footprint need) {
    for (int s = 0; s < WEFTI_SPACES; s++)
        for (int t = WEFTI_TERMS - 1; t >= 0; t--)
            WEFT_TRY(grow(d, (wefti_space)s, (wefti_term)t, need.of[s][t]));
    return WEFT_OK;
}

void wefti_rank_device_forget(wefti_rank_device *d, const wefti_program *program,
                              wefti_footprint others) {
    wefti_unbind(d, program);
    wefti_unbind_served(d, program);
    wefti_close_caches(d, others.of[WEFTI_SPACE_HOST][WEFTI_PERSISTENT]);
    for (int s = 0; s < WEFTI_SPACES; s++) {
        wefti_device_arena *arena = &d->arenas[s][WEFTI_PERSISTENT];
        const int64_t persistent = others.of[s][WEFTI_PERSISTENT];
        const int64_t least = s == WEFTI_SPACE_DEVICE; /* as grow maps for empty tensors */
        int64_t keep = arena->count;
        while (keep > least && arena->blocks[keep - 1].begin >= persistent) keep--;
        unmap_from(d, (wefti_space)s, WEFTI_PERSISTENT, keep);
        if (arena->bytes > persistent) arena->bytes = persistent;
        if (arena->observed > persistent) arena->observed = persistent;
    }
}

/* ---- life ---- */

static weft_status start(wefti_rank_device *d, int threads, wefti_footprint need,
                         const wefti_disk_place *disk) {
    if (disk && disk->directory) {
        d->encrypted = disk->encrypted;
        d->disk_limit = disk->limit;
        d->directory = wefti_strdup(disk->directory);
        WEFT_REQUIRE(d->directory, WEFT_E_NOMEM, "no memory for a device");
    }
    WEFT_TRY(wefti_pool_create(threads, &d->pool));
    d->kind = wefti_kind_of(d->rank);
    WEFT_TRY(wefti_device_open(d->kind->table, &d->device));
    WEFT_TRY(wefti_stream_create(d->device, d->pool, &d->stream));
    WEFT_TRY(wefti_stream_create(d->device, d->pool, &d->transfers));
    WEFT_TRY(wefti_stream_create(d->device, d->pool, &d->copies));
    WEFT_TRY(wefti_event_create(d->device, &d->copies_begin));
    WEFT_TRY(wefti_event_create(d->device, &d->copied));
    WEFT_TRY(wefti_event_create(d->device, &d->computed));
    WEFT_TRY(wefti_event_create(d->device, &d->transferred));
    return wefti_rank_device_reserve(d, need);
}

weft_status wefti_rank_device_create(int threads, wefti_footprint need,
                                     const wefti_disk_place *disk, wefti_comm *comm,
                                     wefti_rank_device **out) {
    wefti_rank_device *d;
    WEFT_NEW(d, wefti_rank_device);
    d->comm = comm;
    d->rank = comm ? comm->rank : 0;
    weft_status status = start(d, threads, need, disk);
    if (status < 0) {
        wefti_rank_device_destroy(d);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = d;
    return WEFT_OK;
}

void wefti_rank_device_destroy(wefti_rank_device *d) {
    if (!d) return;
    wefti_unbind(d, NULL);
    wefti_unbind_served(d, NULL);
    wefti_free(d->shards);
    wefti_free(d->bindings);
    wefti_row_queue_stop(d);
    wefti_close_caches(d, 0);
    wefti_free(d->caches);
    for (int space = 0; space < WEFTI_SPACES; space++)
        for (int term = 0; term < WEFTI_TERMS; term++) {
            unmap_from(d, (wefti_space)space, (wefti_term)term, 0);
            wefti_free(d->arenas[space][term].blocks);
        }
    wefti_event_destroy(d->transferred);
    wefti_event_destroy(d->computed);
    wefti_event_destroy(d->copied);
    wefti_event_destroy(d->copies_begin);
    wefti_stream_destroy(d->copies);
    wefti_stream_destroy(d->transfers);
    wefti_stream_destroy(d->stream);
    wefti_device_close(d->device);
    wefti_pool_destroy(d->pool);
    wefti_free(d->finding);
    wefti_free(d->files);
    wefti_free(d->rows);
    wefti_free(d->directory);
    wefti_free(d);
}

int64_t wefti_rank_device_lent(const wefti_rank_device *d) {
    const wefti_device_arena *arena = &d->arenas[WEFTI_SPACE_DISK][WEFTI_PERSISTENT];
    int64_t sum = 0;
    for (int64_t i = 0; i < arena->count; i++)
        sum += wefti_disk_stream_lent(arena->blocks[i].file, 0, arena->blocks[i].mapped);
    return sum;
}

static weft_status reserve_disk(const wefti_rank_device *d) {
    const wefti_device_arena *arena = &d->arenas[WEFTI_SPACE_DISK][WEFTI_PERSISTENT];
    const int64_t own = arena->bytes + d->arenas[WEFTI_SPACE_DISK][WEFTI_TRANSIENT].bytes -
                        wefti_rank_device_lent(d);
    WEFT_REQUIRE(!d->disk_limit || own <= d->disk_limit, WEFT_E_NOMEM,
                 "device %d needs %lld bytes on the disk, but the limit (memory.disk.size) is %lld",
                 (int)d->rank, (long long)own, (long long)d->disk_limit);
    for (int64_t i = 0; i < arena->count; i++)
        WEFT_TRY(wefti_disk_stream_reserve(arena->blocks[i].file));
    return WEFT_OK;
}

/* Copies the first `bytes` of an arena. */
static weft_status take(wefti_rank_device *to, wefti_rank_device *from, wefti_space space,
                        wefti_term term, int64_t bytes) {
    wefti_device_arena *target = &to->arenas[space][term];
    const wefti_device_arena *source = &from->arenas[space][term];
    const wefti_location all = wefti_location_of(space, term, 0);
    const wefti_home new = wefti_rank_device_home(to, all, bytes),
                     old = wefti_rank_device_home(from, all, bytes);
    WEFT_REQUIRE(target->bytes == source->bytes, WEFT_E_BUG, "arenas of %lld and %lld bytes",
                 (long long)source->bytes, (long long)target->bytes);
    target->observed = source->observed;
    for (int64_t at = 0, part; at < bytes; at += part) {
        wefti_mapping m;
        part = bytes - at < WEFTI_HOME_BLOCK ? bytes - at : WEFTI_HOME_BLOCK;
        WEFT_TRY(wefti_home_map(&old, at, part, WEFTI_ACCESS_READ, &m));
        WEFT_TRY(wefti_home_unmap(&m, wefti_home_write(&new, at, part, m.data)));
    }
    return WEFT_OK;
}

weft_status wefti_rank_device_take(wefti_rank_device *to, wefti_rank_device *from) {
    WEFT_TRY(reserve_disk(to));
    for (int s = 0; s < WEFTI_SPACE_SERVER; s++) { /* servers keep theirs */
        const wefti_device_arena *source = from->arenas[s];
        WEFT_TRY(take(to, from, (wefti_space)s, WEFTI_PERSISTENT, source[WEFTI_PERSISTENT].bytes));
        WEFT_TRY(take(to, from, (wefti_space)s, WEFTI_TRANSIENT, source[WEFTI_TRANSIENT].observed));
    }
    for (int64_t i = 0; i < to->cache_count; i++) wefti_disk_cache_forget(to->caches[i].cache);
    to->used = from->used;
    return WEFT_OK;
}

wefti_comm *wefti_rank_device_comm(wefti_rank_device *d) {
    return d->comm;
}
wefti_device *wefti_rank_device_device(wefti_rank_device *d) {
    return d->device;
}
int64_t wefti_rank_device_observed_peak(const wefti_rank_device *d, wefti_space space) {
    const wefti_device_arena *arenas = d->arenas[space];
    return arenas[WEFTI_PERSISTENT].observed + arenas[WEFTI_TRANSIENT].observed;
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
    return wefti_arena_at(&d->arenas[wefti_location_space(at)][wefti_location_term(at)],
                          wefti_location_offset(at));
}

wefti_home wefti_rank_device_home(const wefti_rank_device *d, wefti_location at, int64_t bytes) {
    const wefti_space space = wefti_location_space(at);
    if (!wefti_location_exists(at)) return (wefti_home){.bytes = bytes};
    return (wefti_home){d->device, space, &d->arenas[space][wefti_location_term(at)],
                        wefti_location_offset(at), bytes};
}

void wefti_rank_device_observe(wefti_rank_device *d, wefti_location at, int64_t bytes) {
    wefti_device_arena *arena = &d->arenas[wefti_location_space(at)][wefti_location_term(at)];
    const int64_t end = wefti_location_offset(at) + bytes;
    if (end > arena->observed) arena->observed = end;
}

/* ---- start values ---- */

/* A block of a tensor: elements [first, first + count) of its region. */
typedef struct filling {
    const wefti_tensor *tensor;
    wefti_region box;
    void *region; /* where element 0 would be */
    uint64_t seed, stream;
    int64_t first, count;
} filling;

enum { FILL_TASK = 8192 };

static void fill_some(void *context, int64_t task, int thread) {
    const filling *f = context;
    (void)thread;
    int64_t begin = task * FILL_TASK, left = f->count - begin;
    wefti_fill_region(&f->tensor->init, f->seed, f->stream, &f->tensor->whole, &f->box,
                      f->first + begin, left < FILL_TASK ? left : FILL_TASK, f->region);
}

/* Each block of the home is filled by all threads. */
static weft_status fill_tensor(wefti_rank_device *d, const wefti_program *p, const wefti_tensor *x,
                               uint64_t seed) {
    const int64_t size = (int64_t)weft_dtype_bytes(x->desc.dtype), most = WEFTI_HOME_BLOCK / size;
    const int64_t elems = weft_desc_elems(&x->desc);
    const wefti_home home = wefti_rank_device_home(d, x->home, elems * size);
    filling f = {.tensor = x, .seed = seed, .stream = wefti_stream_of(x->name)};
    wefti_program_region(p, x, &f.box);
    for (; f.first < elems; f.first += f.count) {
        wefti_mapping m;
        f.count = elems - f.first < most ? elems - f.first : most;
        WEFT_TRY(wefti_home_map(&home, f.first * size, f.count * size, WEFTI_ACCESS_WRITE, &m));
        f.region = (void *)((uintptr_t)m.data - (uintptr_t)(f.first * size));
        wefti_pool_run(d->pool, (f.count + FILL_TASK - 1) / FILL_TASK, fill_some, &f);
        WEFT_TRY(wefti_home_unmap(&m, WEFT_OK));
    }
    return WEFT_OK;
}

static weft_status write_zeros(const wefti_home *home) {
    static const unsigned char zeros[1 << 16];
    for (int64_t at = 0, part; at < home->bytes; at += part) {
        part = home->bytes - at < (int64_t)sizeof zeros ? home->bytes - at : (int64_t)sizeof zeros;
        WEFT_TRY(wefti_home_write(home, at, part, zeros));
    }
    return WEFT_OK;
}

static weft_status clear(wefti_rank_device *d, wefti_location at, int64_t bytes) {
    const wefti_home home = wefti_rank_device_home(d, at, bytes);
    if (home.space >= WEFTI_SPACE_DISK) return write_zeros(&home);
    return wefti_stream_fill(d->stream, wefti_rank_device_at(d, at), wefti_location_space(at), 0,
                             bytes);
}

/* The program's constants: the 1 that seeds the backward pass, and cleared scalars. */
static weft_status write_constants(wefti_rank_device *d, const wefti_program *p) {
    unsigned char one[sizeof(double)];
    if (wefti_location_exists(p->scalars)) WEFT_TRY(clear(d, p->scalars, sizeof(wefti_step_block)));
    if (wefti_location_exists(p->host_scalars))
        WEFT_TRY(clear(d, p->host_scalars, sizeof(wefti_step_block)));
    if (wefti_location_exists(p->one)) {
        wefti_store(p->loss_dtype, one, 0, 1.0);
        const int64_t bytes = (int64_t)weft_dtype_bytes(p->loss_dtype);
        const wefti_home home = wefti_rank_device_home(d, p->one, bytes);
        WEFT_TRY(wefti_home_write(&home, 0, bytes, one));
    }
    return wefti_stream_publish(d->stream);
}

/* Whether a tensor has values from the start on, and is none of the programs before. */
static bool begins_here(const wefti_tensor *x, const wefti_footprint *before) {
    return x->role <= WEFTI_TENSOR_OPTIMIZER &&
           wefti_location_offset(x->home) >=
               before->of[wefti_location_space(x->home)][WEFTI_PERSISTENT];
}

/* given: [tensors] */
static weft_status give_values(const wefti_rank_device *d, const wefti_program *p,
                               const wefti_footprint *before, const wefti_values *values,
                               bool *given) {
    for (int32_t t = 0; values && t < p->tensor_count; t++) {
        const wefti_tensor *x = &p->tensors[t];
        const wefti_home home = wefti_rank_device_home(d, x->home, weft_desc_bytes(&x->desc));
        wefti_region box;
        if (!begins_here(x, before)) continue;
        wefti_program_region(p, x, &box);
        WEFT_TRY(values->give(values->context, d->rank, x, &box, &home, &given[t]));
    }
    return WEFT_OK;
}

static weft_status fill_values(wefti_rank_device *d, const wefti_program *p,
                               const wefti_footprint *before, uint64_t seed, const bool *given) {
    for (int32_t t = 0; t < p->tensor_count; t++) {
        const wefti_tensor *x = &p->tensors[t];
        if (given[t] || !begins_here(x, before)) continue;
        if (x->init.kind != WEFT_INIT_ZEROS)
            WEFT_TRY(fill_tensor(d, p, x, seed));
        else if (d->used) /* new memory is already zero */
            WEFT_TRY(clear(d, x->home, weft_desc_bytes(&x->desc)));
    }
    return WEFT_OK;
}

weft_status wefti_rank_device_init(wefti_rank_device *d, const wefti_program *p,
                                   wefti_footprint before, uint64_t seed,
                                   const wefti_values *values) {
    const wefti_footprint all = wefti_program_footprint(p);
    bool *given;
    /* persistent memory counts whole, whether all of it is written or not */
    for (int s = 0; s < WEFTI_SPACES; s++)
        wefti_rank_device_observe(
            d, wefti_location_of((wefti_space)s, WEFTI_PERSISTENT, all.of[s][WEFTI_PERSISTENT]), 0);
    WEFT_NEW_ARRAY(given, bool, p->tensor_count + 1);
    weft_status status = give_values(d, p, &before, values, given);
    if (status >= 0) status = reserve_disk(d);
    if (status >= 0) status = fill_values(d, p, &before, seed, given);
    wefti_free(given);
    return status < 0 ? status : write_constants(d, p);
}
