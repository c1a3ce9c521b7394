/* The device `host`: virtual devices that are threads of this process. Their memory is host memory,
 * so the device is direct. */
#include <sys/mman.h>

#include "base/memory.h"
#include "device/memory.h"
#include "tensor/tensor.h"

/* ---- memory ---- */

static size_t whole_pages(int64_t bytes) {
    return ((size_t)bytes + WEFTI_HUGE_PAGE - 1) & ~(size_t)(WEFTI_HUGE_PAGE - 1);
}

weft_status wefti_memory_map(int64_t bytes, int protection, void **out) {
    size_t mapped = whole_pages(bytes);
    void *p = mmap(NULL, mapped + WEFTI_HUGE_PAGE, protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    WEFT_REQUIRE(p != MAP_FAILED, WEFT_E_NOMEM, "cannot map device memory of %lld bytes",
                 (long long)bytes);
    /* Give back the pages before the first huge page and behind the last huge page. */
    uintptr_t base = ((uintptr_t)p + WEFTI_HUGE_PAGE - 1) & ~(uintptr_t)(WEFTI_HUGE_PAGE - 1);
    if (base > (uintptr_t)p) munmap(p, base - (uintptr_t)p);
    uintptr_t tail = (uintptr_t)p + WEFTI_HUGE_PAGE - base;
    if (tail) munmap((void *)(base + mapped), tail);
    *out = (void *)base;
    return WEFT_OK;
}

void wefti_memory_unmap(void *memory, int64_t bytes) {
    if (memory) munmap(memory, whole_pages(bytes));
}

static weft_status allocate(wefti_device *d, wefti_space space, int64_t bytes, void **out) {
    (void)d;
    (void)space; /* both are one */
    WEFT_TRY(wefti_memory_map(bytes, PROT_READ | PROT_WRITE, out));
    (void)madvise(*out, whole_pages(bytes), MADV_HUGEPAGE);
    return WEFT_OK;
}

static void release_memory(wefti_device *d, wefti_space space, void *memory, int64_t bytes) {
    (void)d;
    (void)space;
    wefti_memory_unmap(memory, bytes);
}

static weft_status adopt(wefti_device *d, void *memory, int64_t bytes) {
    (void)d;
    (void)memory;
    (void)bytes;
    return WEFT_OK;
}

static void release(wefti_device *d, void *memory, int64_t bytes) {
    (void)d;
    (void)memory;
    (void)bytes;
}

/* ---- work ---- */

static weft_status fill(wefti_stream *s, void *to, wefti_space space, int byte, int64_t bytes) {
    (void)s;
    (void)space;
    memset(to, byte, (size_t)bytes);
    return WEFT_OK;
}

static weft_status copy(wefti_stream *s, void *to, wefti_space to_space, const void *from,
                        wefti_space from_space, int64_t bytes) {
    (void)s;
    (void)to_space;
    (void)from_space;
    memmove(to, from, (size_t)bytes);
    return WEFT_OK;
}

typedef struct addition {
    weft_dtype dtype;
    void *to;
    const void *from;
    int64_t elems;
} addition;

enum { ADD_BLOCK = 16384 };

static void add_block(void *context, int64_t task, int thread) {
    const addition *a = context;
    (void)thread;
    int64_t begin = task * ADD_BLOCK,
            end = begin + ADD_BLOCK < a->elems ? begin + ADD_BLOCK : a->elems;
    if (a->dtype == WEFT_F32) {
        float *to = a->to;
        const float *from = a->from;
        for (int64_t i = begin; i < end; i++) to[i] += from[i];
    } else {
        for (int64_t i = begin; i < end; i++)
            wefti_store(a->dtype, a->to, i,
                        wefti_load(a->dtype, a->to, i) + wefti_load(a->dtype, a->from, i));
    }
}

static weft_status add(wefti_stream *s, wefti_space space, weft_dtype dtype, void *to,
                       const void *from, int64_t elems) {
    (void)space;
    addition a = {dtype, to, from, elems};
    wefti_pool_run(s->pool, (elems + ADD_BLOCK - 1) / ADD_BLOCK, add_block, &a);
    return WEFT_OK;
}

/* ---- life ---- */

static weft_status open_host(wefti_device **out) {
    WEFT_NEW(*out, wefti_device);
    return WEFT_OK;
}

static void close_host(wefti_device *d) {
    wefti_free(d);
}

static weft_status stream_create(wefti_device *d, wefti_pool *pool, wefti_stream **out) {
    wefti_stream *s;
    WEFT_NEW(s, wefti_stream);
    *s = (wefti_stream){d, pool};
    *out = s;
    return WEFT_OK;
}

static void stream_destroy(wefti_stream *s) {
    wefti_free(s);
}

const wefti_device_table wefti_device_host = {
    .name = "host",
    .direct = true,
    .open = open_host,
    .close = close_host,
    .allocate = allocate,
    .free = release_memory,
    .adopt = adopt,
    .release = release,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .fill = fill,
    .copy = copy,
    .add = add,
};
