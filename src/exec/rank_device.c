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

static weft_status map_block(wefti_rank_device *d, wefti_space space, int64_t bytes,
                             wefti_arena_block *out) {
    void *p;
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
    if (is_shared(d, space))
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
    WEFT_TRY(map_block(d, space, bytes - begin, &block));
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

/* How many bytes lie in one block from `at` on. */
static int64_t block_left(const wefti_device_arena *arena, int64_t at) {
    int64_t end = arena->bytes;
    for (int64_t i = arena->count; i-- > 0 && arena->blocks[i].begin > at;)
        end = arena->blocks[i].begin;
    return end - at;
}

void wefti_rank_device_forget(wefti_rank_device *d, const wefti_program *program,
                              wefti_footprint others) {
    wefti_unbind(d, program);
    for (int s = 0; s < WEFTI_SPACES; s++) {
        wefti_device_arena *arena = &d->arenas[s][WEFTI_PERSISTENT];
        const int64_t persistent = others.of[s][WEFTI_PERSISTENT];
        int64_t keep = arena->count;
        while (keep > 1 && arena->blocks[keep - 1].begin >= persistent) keep--;
        unmap_from(d, (wefti_space)s, WEFTI_PERSISTENT, keep);
        if (arena->bytes > persistent) arena->bytes = persistent;
        if (arena->observed > persistent) arena->observed = persistent;
    }
}

/* ---- life ---- */

static weft_status start(wefti_rank_device *d, int threads, wefti_footprint need) {
    const wefti_device_table *table;
    WEFT_TRY(wefti_pool_create(threads, &d->pool));
    WEFT_TRY(wefti_device_choose(&table));
    WEFT_TRY(wefti_device_open(table, &d->device));
    WEFT_TRY(wefti_stream_create(d->device, d->pool, &d->stream));
    WEFT_TRY(wefti_stream_create(d->device, d->pool, &d->transfers));
    WEFT_TRY(wefti_event_create(d->device, &d->computed));
    WEFT_TRY(wefti_event_create(d->device, &d->transferred));
    return wefti_rank_device_reserve(d, need);
}

weft_status wefti_rank_device_create(int threads, wefti_footprint need, wefti_comm *comm,
                                     wefti_rank_device **out) {
    wefti_rank_device *d;
    WEFT_NEW(d, wefti_rank_device);
    d->comm = comm;
    d->rank = comm ? comm->rank : 0;
    weft_status status = start(d, threads, need);
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
    wefti_free(d->bindings);
    for (int space = 0; space < WEFTI_SPACES; space++)
        for (int term = 0; term < WEFTI_TERMS; term++) {
            unmap_from(d, (wefti_space)space, (wefti_term)term, 0);
            wefti_free(d->arenas[space][term].blocks);
        }
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

/* Copies the first `bytes` of an arena. */
static weft_status take(wefti_rank_device *to, wefti_rank_device *from, wefti_space space,
                        wefti_term term, int64_t bytes) {
    wefti_device_arena *target = &to->arenas[space][term];
    const wefti_device_arena *source = &from->arenas[space][term];
    WEFT_REQUIRE(target->bytes == source->bytes, WEFT_E_BUG, "arenas of %lld and %lld bytes",
                 (long long)source->bytes, (long long)target->bytes);
    target->observed = source->observed;
    for (int64_t at = 0, part; at < bytes; at += part) {
        const wefti_location begin = wefti_location_of(space, term, at);
        wefti_mapping old, new;
        part = bytes - at < TAKE_BYTES ? bytes - at : TAKE_BYTES;
        if (block_left(source, at) < part) part = block_left(source, at);
        if (block_left(target, at) < part) part = block_left(target, at);
        WEFT_TRY(wefti_rank_device_map(from, begin, part, WEFTI_ACCESS_READ, &old));
        weft_status status = wefti_rank_device_map(to, begin, part, WEFTI_ACCESS_WRITE, &new);
        if (status >= 0) memcpy(new.data, old.data, (size_t)part);
        if (status >= 0) status = wefti_device_unmap(&new, WEFT_OK);
        WEFT_TRY(wefti_device_unmap(&old, status));
    }
    return WEFT_OK;
}

weft_status wefti_rank_device_take(wefti_rank_device *to, wefti_rank_device *from) {
    for (int s = 0; s < WEFTI_SPACES; s++) {
        const wefti_device_arena *source = from->arenas[s];
        WEFT_TRY(take(to, from, (wefti_space)s, WEFTI_PERSISTENT, source[WEFTI_PERSISTENT].bytes));
        WEFT_TRY(take(to, from, (wefti_space)s, WEFTI_TRANSIENT, source[WEFTI_TRANSIENT].observed));
    }
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
    const wefti_device_arena *arena = &d->arenas[wefti_location_space(at)][wefti_location_term(at)];
    if (!arena->count) return NULL;
    const int64_t offset = wefti_location_offset(at);
    const wefti_arena_block *block = &arena->blocks[arena->count - 1];
    while (block->begin > offset) block--;
    return block->memory + (offset - block->begin);
}

wefti_device *wefti_rank_device_owner(const wefti_rank_device *d, wefti_location at) {
    return wefti_location_space(at) == WEFTI_SPACE_DEVICE ? d->device : NULL;
}

weft_status wefti_rank_device_map(const wefti_rank_device *d, wefti_location at, int64_t bytes,
                                  wefti_access access, wefti_mapping *out) {
    return wefti_device_map_in(d->device, wefti_location_space(at), wefti_rank_device_at(d, at),
                               bytes, access, out);
}

weft_status wefti_rank_device_write(const wefti_rank_device *d, wefti_location to, const void *from,
                                    int64_t bytes) {
    return wefti_device_copy(d->device, wefti_rank_device_at(d, to), wefti_location_space(to), from,
                             WEFTI_SPACE_HOST, bytes);
}

void wefti_rank_device_observe(wefti_rank_device *d, wefti_location at, int64_t bytes) {
    wefti_device_arena *arena = &d->arenas[wefti_location_space(at)][wefti_location_term(at)];
    const int64_t end = wefti_location_offset(at) + bytes;
    if (end > arena->observed) arena->observed = end;
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

weft_status wefti_rank_device_init(wefti_rank_device *d, const wefti_program *p,
                                   wefti_footprint before, uint64_t seed) {
    const wefti_footprint all = wefti_program_footprint(p);
    /* persistent memory counts whole, whether all of it is written or not */
    for (int s = 0; s < WEFTI_SPACES; s++)
        wefti_rank_device_observe(
            d, wefti_location_of((wefti_space)s, WEFTI_PERSISTENT, all.of[s][WEFTI_PERSISTENT]), 0);
    for (int32_t t = 0; t < p->tensor_count; t++) {
        const wefti_tensor *x = &p->tensors[t];
        const int64_t from = before.of[wefti_location_space(x->home)][WEFTI_PERSISTENT];
        if (x->role > WEFTI_TENSOR_OPTIMIZER || wefti_location_offset(x->home) < from) continue;
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
