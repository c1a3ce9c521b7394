/* Devices: arena, endpoints and start values. */
#include "exec/rank_device.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/philox.h"
#include "graph/fill.h"

enum { HUGE_PAGE = 2 << 20 };

/* ---- the arena ---- */

/* Memory of this process alone, from a huge page on. */
static weft_status map_private(wefti_rank_device *d) {
    void *p = mmap(NULL, (size_t)d->mapped + HUGE_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    WEFT_REQUIRE(p != MAP_FAILED, WEFT_E_NOMEM, "cannot map an arena of %lld bytes",
                 (long long)d->bytes);
    /* Give back what lies before and behind. */
    uintptr_t base = ((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    if (base > (uintptr_t)p) munmap(p, base - (uintptr_t)p);
    uintptr_t tail = (uintptr_t)p + HUGE_PAGE - base;
    d->memory = (unsigned char *)base;
    if (tail) munmap(d->memory + d->mapped, tail);
    (void)madvise(d->memory, (size_t)d->mapped, MADV_HUGEPAGE);
    return WEFT_OK;
}

/* Where ranks are processes, the engine knows memory that those of its host reach as well. */
static bool is_shared(const wefti_rank_device *d) {
    return d->comm && d->comm->engine->map;
}

static weft_status map_arena(wefti_rank_device *d) {
    void *p;
    if (d->mapped == 0) return WEFT_OK;
    if (!is_shared(d)) return map_private(d);
    WEFT_TRY(d->comm->engine->map(d->comm, (size_t)d->mapped, &p));
    d->memory = p;
    return WEFT_OK;
}

static void unmap_arena(wefti_rank_device *d) {
    if (!d->memory) return;
    if (is_shared(d))
        d->comm->engine->unmap(d->comm, d->memory, (size_t)d->mapped);
    else
        munmap(d->memory, (size_t)d->mapped);
}

weft_status wefti_rank_device_create(int threads, int64_t bytes, wefti_comm *comm,
                                     wefti_rank_device **out) {
    wefti_rank_device *d;
    WEFT_NEW(d, wefti_rank_device);
    d->bytes = bytes;
    d->comm = comm;
    d->rank = comm ? comm->rank : 0;
    d->mapped = (bytes + HUGE_PAGE - 1) & ~(int64_t)(HUGE_PAGE - 1);
    weft_status status = wefti_pool_create(threads, &d->pool);
    if (status >= 0) status = map_arena(d);
    if (status < 0) {
        wefti_pool_destroy(d->pool);
        wefti_free(d);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = d;
    return WEFT_OK;
}

static void unbind(wefti_binding *b) {
    for (int32_t i = 0; i < b->count; i++) wefti_comm_unbind(b->endpoints[i]);
    wefti_free(b->endpoints);
    wefti_free(b->posted);
}

weft_status wefti_rank_device_bind(wefti_rank_device *d, const wefti_program *program) {
    wefti_binding b = {.program = program};
    b.count = program->partition ? wefti_partition_transfers(program->partition) : 0;
    if (b.count == 0) return WEFT_OK;
    WEFT_REQUIRE(d->comm, WEFT_E_BUG, "the program communicates, the device is alone");
    WEFT_TRY(WEFT_GROW(d->bindings, d->binding_count, d->binding_cap));
    WEFT_NEW_ARRAY(b.endpoints, wefti_endpoint *, b.count);
    b.posted = wefti_calloc((size_t)b.count, sizeof *b.posted);
    if (!b.posted) {
        wefti_free(b.endpoints);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory to bind %d transfers", (int)b.count);
    }
    for (int32_t i = 0; i < b.count; i++) {
        const wefti_transfer *t = wefti_partition_transfer(program->partition, i);
        weft_status status = d->comm->engine->bind(d->comm, t, &b.endpoints[i]);
        if (status < 0) {
            unbind(&b);
            return wefti_prefix(status, "%s of %s", wefti_transfer_kind_text(t->kind),
                                t->name ? t->name : "a value without a name");
        }
    }
    d->bindings[d->binding_count++] = b;
    return WEFT_OK;
}

void wefti_rank_device_destroy(wefti_rank_device *d) {
    if (!d) return;
    for (int64_t i = 0; i < d->binding_count; i++) unbind(&d->bindings[i]);
    wefti_free(d->bindings);
    unmap_arena(d);
    wefti_pool_destroy(d->pool);
    wefti_free(d->finding);
    wefti_free(d);
}

wefti_comm *wefti_rank_device_comm(wefti_rank_device *d) {
    return d->comm;
}
unsigned char *wefti_rank_device_memory(wefti_rank_device *d) {
    return d->memory;
}
int64_t wefti_rank_device_observed_peak(const wefti_rank_device *d) {
    return d->observed_peak;
}
void wefti_rank_device_trace(wefti_rank_device *d, wefti_trace *trace) {
    d->trace = trace;
}
int64_t wefti_rank_device_finding_order(const wefti_rank_device *d) {
    return d->finding ? d->finding_order : INT64_MAX;
}
double wefti_rank_device_loss(const wefti_rank_device *d) {
    return d->losses ? d->loss / d->losses : NAN;
}

void wefti_rank_device_observe(wefti_rank_device *d, const void *p, int64_t bytes) {
    int64_t end = (const unsigned char *)p - d->memory + bytes;
    if (end > d->observed_peak) d->observed_peak = end;
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

weft_status wefti_rank_device_init(wefti_rank_device *d, const wefti_program *p, uint64_t seed) {
    for (int32_t t = 0; t < p->tensor_count; t++) {
        const wefti_tensor *x = &p->tensors[t];
        if (x->role > WEFTI_TENSOR_OPTIMIZER) continue;
        unsigned char *to = d->memory + x->offset;
        if (x->init.kind == WEFT_INIT_ZEROS) { /* a fresh mapping is zero, and untouched */
            if (d->used) memset(to, 0, (size_t)weft_desc_bytes(&x->desc));
            continue;
        }
        filling f = {x, {{0}, {0}}, to, seed, wefti_stream_of(x->name), weft_desc_elems(&x->desc)};
        wefti_program_region(p, x, &f.box);
        wefti_pool_run(d->pool, (f.elems + FILL_BLOCK - 1) / FILL_BLOCK, fill_block, &f);
    }
    return wefti_rank_device_seed(d, p);
}

weft_status wefti_rank_device_seed(wefti_rank_device *d, const wefti_program *p) {
    if (p->scalars >= 0) memset(d->memory + p->scalars, 0, 32);
    if (p->one >= 0) wefti_store(p->loss_dtype, d->memory + p->one, 0, 1.0);
    return WEFT_OK;
}
