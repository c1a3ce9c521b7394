/* Files without names, mapped, and parts of them given out. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/host/host.h"

enum { MEMORY_PAGE = 4096, HUGE_PAGE = 2 << 20, MEMORY_CHUNK = 1 << 20 };

weft_status wefti_host_file(const char *what, int *out, uint64_t *inode) {
    int fd = memfd_create(what, MFD_CLOEXEC);
    WEFT_REQUIRE(fd >= 0, WEFT_E_NOMEM, "no memory that processes share: memfd_create: %s",
                 strerror(errno));
    struct stat s;
    if (fstat(fd, &s) != 0) {
        int why = errno;
        close(fd);
        WEFT_FAIL(WEFT_E_IO, "fstat of shared memory: %s", strerror(why));
    }
    *out = fd;
    *inode = (uint64_t)s.st_ino;
    return WEFT_OK;
}

weft_status wefti_host_open(int64_t process, int fd, uint64_t inode, int *out) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)process, fd);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    int why = errno;
    struct stat s;
    if (opened >= 0 && (fstat(opened, &s) != 0 || (uint64_t)s.st_ino != inode)) {
        close(opened);
        opened = -1;
        why = ESTALE;
    }
    WEFT_REQUIRE(opened >= 0, WEFT_E_IO,
                 "the memory of process %lld cannot be opened (%s: %s); processes of one host must "
                 "run as one user and see each other's process numbers",
                 (long long)process, path, strerror(why));
    *out = opened;
    return WEFT_OK;
}

/* Addresses that nobody else gets, at a huge page. */
static unsigned char *reserve(size_t bytes) {
    unsigned char *p = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0) munmap(p, before);
    if (before < HUGE_PAGE) munmap(p + before + bytes, HUGE_PAGE - before);
    return p + before;
}

weft_status wefti_host_reserve(size_t bytes, unsigned char **out) {
    *out = reserve(bytes);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no addresses for %zu bytes of shared memory", bytes);
    return WEFT_OK;
}

weft_status wefti_host_map(int fd, size_t bytes, unsigned char *at) {
    WEFT_REQUIRE(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
                      0) != MAP_FAILED,
                 WEFT_E_NOMEM, "%zu bytes of shared memory cannot be mapped: %s", bytes,
                 strerror(errno));
    return WEFT_OK;
}

void wefti_host_advise(unsigned char *at, size_t bytes) {
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    (void)madvise(at, bytes, MADV_DONTDUMP); /* mostly holes, which a core dump would fill */
}

size_t wefti_host_most(size_t wish, int32_t times) {
    for (size_t bytes = wish; bytes >= 4 * HUGE_PAGE; bytes /= 2) {
        size_t all = bytes * ((size_t)times + 1); /* one more for the control part */
        unsigned char *p = bytes > SIZE_MAX / 2 / ((size_t)times + 1) ? NULL : reserve(all);
        if (!p) continue;
        munmap(p, all);
        return bytes == wish
                   ? bytes
                   : bytes / 2; /* a limit is shared with the rest of the process: take half */
    }
    return 0;
}

/* --- a heap --- */

/* Within [at, end) of the heap. */
static weft_status take_between(wefti_host_heap *heap, size_t at, size_t end, size_t bytes,
                                void **out) {
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : MEMORY_PAGE;
    WEFT_REQUIRE(bytes <= end - at, WEFT_E_NOMEM,
                 "%zu bytes of shared memory are wanted, and there are %zu", bytes, end - at);
    bytes = (bytes + (bytes == 0) + MEMORY_PAGE - 1) / MEMORY_PAGE * MEMORY_PAGE;
    int64_t where = 0; /* the first gap that is large enough */
    for (; where < heap->ranges; where++) {
        const wefti_host_range *range = &heap->range[where];
        if (at <= range->begin && range->begin - at >= bytes) break;
        size_t next = (range->begin + range->bytes + align - 1) / align * align;
        if (at < next) at = next;
    }
    WEFT_REQUIRE(at <= end && end - at >= bytes, WEFT_E_NOMEM,
                 "no room for %zu bytes in the %zu of shared memory", bytes, end);
    WEFT_TRY(WEFT_GROW(heap->range, heap->ranges, heap->capacity));
    memmove(&heap->range[where + 1], &heap->range[where],
            (size_t)(heap->ranges++ - where) * sizeof *heap->range);
    heap->range[where] = (wefti_host_range){at, bytes};
    *out = heap->base + at;
    return WEFT_OK;
}

static weft_status take(wefti_host_heap *heap, size_t bytes, void **out) {
    return take_between(heap, 0, heap->halved ? heap->bytes / 2 : heap->bytes, bytes, out);
}

static weft_status take_upper(wefti_host_heap *heap, size_t bytes, void **out) {
    size_t half = heap->bytes / 2;
    const wefti_host_range *last = heap->ranges ? &heap->range[heap->ranges - 1] : NULL;
    WEFT_REQUIRE(heap->halved || !last || last->begin + last->bytes <= half, WEFT_E_NOMEM,
                 "the upper half of %zu bytes of shared memory is in use", heap->bytes);
    heap->halved = true;
    return take_between(heap, half, heap->bytes, bytes, out);
}

weft_status wefti_host_take_upper(wefti_host_heap *heap, size_t bytes, void **out) {
    pthread_mutex_lock(&heap->lock);
    weft_status status = take_upper(heap, bytes, out);
    pthread_mutex_unlock(&heap->lock);
    return status;
}

weft_status wefti_host_take(wefti_host_heap *heap, size_t bytes, void **out) {
    pthread_mutex_lock(&heap->lock);
    weft_status status = take(heap, bytes, out);
    pthread_mutex_unlock(&heap->lock);
    return status;
}

/* Releases the pages at once, in all mappings of them. New pages are zero. */
static void give(wefti_host_heap *heap, void *memory) {
    size_t begin = (size_t)((unsigned char *)memory - heap->base);
    for (int64_t i = 0; i < heap->ranges; i++) {
        if (heap->range[i].begin != begin) continue;
        if (madvise(memory, heap->range[i].bytes, MADV_REMOVE) != 0)
            memset(memory, 0, heap->range[i].bytes);
        memmove(&heap->range[i], &heap->range[i + 1],
                (size_t)(--heap->ranges - i) * sizeof *heap->range);
        return;
    }
}

void wefti_host_give(wefti_host_heap *heap, void *memory) {
    pthread_mutex_lock(&heap->lock);
    give(heap, memory);
    pthread_mutex_unlock(&heap->lock);
}

static weft_status keep(wefti_host_heap *heap, size_t bytes, void **out) {
    bytes = (bytes + 127) / 128 * 128;
    if (heap->chunk_left < bytes) {
        size_t chunk = bytes > MEMORY_CHUNK ? bytes : MEMORY_CHUNK;
        void *p;
        WEFT_TRY(take(heap, chunk, &p));
        heap->chunk = p;
        heap->chunk_left = chunk;
    }
    *out = heap->chunk;
    heap->chunk += bytes;
    heap->chunk_left -= bytes;
    return WEFT_OK;
}

weft_status wefti_host_keep(wefti_host_heap *heap, size_t bytes, void **out) {
    pthread_mutex_lock(&heap->lock);
    weft_status status = keep(heap, bytes, out);
    pthread_mutex_unlock(&heap->lock);
    return status;
}
