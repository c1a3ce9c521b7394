/* The fence: see fence.h. */
#include "device/fence.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "device/memory.h"

/* Fenced memory. `opens` counts for each page how often the page is open. It is mapped, as a fence
 * may be far larger than the part that is used. */
typedef struct area {
    struct area *next;
    unsigned char *memory;
    int64_t bytes; /* whole pages */
    wefti_space space;
    int32_t users;
    uint32_t *opens;
} area;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static area *areas;

static int64_t page_bytes(void) {
    return (int64_t)sysconf(_SC_PAGESIZE);
}

_Noreturn void wefti_fence_violation(const char *what) {
    (void)fprintf(stderr, "weft: the device 'fenced' found a violation: %s\n", what);
    (void)signal(SIGSEGV, SIG_DFL);
    (void)raise(SIGSEGV);
    _exit(128 + SIGSEGV);
}

static area *area_of(const void *memory, int64_t bytes) {
    for (area *a = areas; a; a = a->next) {
        int64_t at = (const unsigned char *)memory - a->memory;
        if ((const unsigned char *)memory >= a->memory && at + bytes <= a->bytes) return a;
    }
    return NULL;
}

bool wefti_fence_holds(const void *memory, int64_t bytes, wefti_space space) {
    pthread_mutex_lock(&lock);
    const area *a = area_of(memory, bytes);
    bool holds = a && a->space == space;
    pthread_mutex_unlock(&lock);
    return holds;
}

/* ---- opening ---- */

static weft_status protect(const area *a, int64_t first, int64_t end, bool open) {
    int64_t page = page_bytes();
    if (first == end) return WEFT_OK;
    int protection = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    WEFT_REQUIRE(!mprotect(a->memory + first * page, (size_t)((end - first) * page), protection),
                 WEFT_E_NOMEM, "mprotect of device memory failed");
    return WEFT_OK;
}

/* Adds `step` (1 or -1) to the count of each page of a range. Where the
 * count leaves or reaches 0, changes the protection, one run of pages at a time. */
static weft_status count(area *a, const wefti_byte_range *r, int step) {
    int64_t page = page_bytes(), begin = (const unsigned char *)r->memory - a->memory;
    int64_t first = begin / page, end = (begin + r->bytes + page - 1) / page, from = first;
    weft_status status = WEFT_OK;
    for (int64_t p = first; p < end; p++) {
        if (step < 0 && a->opens[p] == 0)
            wefti_fence_violation("device memory is closed more often than it was opened");
        bool changes = step > 0 ? a->opens[p] == 0 : a->opens[p] == 1;
        a->opens[p] += (uint32_t)step;
        if (changes) continue;
        if (status >= 0) status = protect(a, from, p, step > 0);
        from = p + 1;
    }
    return status < 0 ? status : protect(a, from, end, step > 0);
}

/* `first`, `last`: the spaces that the ranges may lie in. */
static weft_status change(const wefti_byte_range *ranges, int n, int step, wefti_space first,
                          wefti_space last) {
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n && status >= 0; i++) {
        if (!ranges[i].memory || !ranges[i].bytes) continue;
        area *a = area_of(ranges[i].memory, ranges[i].bytes);
        status =
            a && a->space >= first && a->space <= last
                ? count(a, &ranges[i], step)
                : WEFT_RAISE(WEFT_E_BUG, "%lld bytes at %p are not in space %s of the device%s",
                             (long long)ranges[i].bytes, ranges[i].memory, wefti_space_text(last),
                             a ? ", but in its other one" : "");
    }
    pthread_mutex_unlock(&lock);
    return status;
}

weft_status wefti_fence_open(wefti_space space, const wefti_byte_range *ranges, int n) {
    return change(ranges, n, 1, space, space);
}

weft_status wefti_fence_open_copy(const wefti_byte_range *ranges, int n) {
    return change(ranges, n, 1, WEFTI_SPACE_DEVICE, WEFTI_SPACE_HOST);
}

void wefti_fence_close(const wefti_byte_range *ranges, int n) {
    weft_status status = change(ranges, n, -1, WEFTI_SPACE_DEVICE, WEFTI_SPACE_HOST);
    (void)status; /* ranges that were opened are memory of the device */
}

/* ---- life ---- */

static void discard(area *a) {
    if (a->opens) wefti_memory_unmap(a->opens, a->bytes / page_bytes() * (int64_t)sizeof *a->opens);
    wefti_free(a);
}

static weft_status add(void *memory, int64_t bytes, wefti_space space) {
    int64_t page = page_bytes(), pages = (bytes + page - 1) / page;
    void *opens;
    area *a;
    WEFT_NEW(a, area);
    *a = (area){.next = areas, .memory = memory, .bytes = pages * page, .space = space, .users = 1};
    weft_status status =
        wefti_memory_map(pages * (int64_t)sizeof *a->opens, PROT_READ | PROT_WRITE, &opens);
    if (status >= 0) {
        a->opens = opens;
        status = protect(a, 0, pages, false);
    }
    if (status < 0) {
        discard(a);
        return status;
    }
    areas = a;
    return WEFT_OK;
}

weft_status wefti_fence_begin(void *memory, int64_t bytes, wefti_space space) {
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&lock);
    area *a = area_of(memory, bytes);
    if (a && a->memory == memory)
        a->users++;
    else if (a)
        status = WEFT_RAISE(WEFT_E_BUG, "%lld bytes at %p are within fenced memory",
                            (long long)bytes, memory);
    else
        status = add(memory, bytes, space);
    pthread_mutex_unlock(&lock);
    return status;
}

void wefti_fence_end(void *memory) {
    pthread_mutex_lock(&lock);
    area **at = &areas;
    while (*at && (*at)->memory != memory) at = &(*at)->next;
    area *a = *at;
    if (a && --a->users == 0) {
        *at = a->next;
        (void)protect(a, 0, a->bytes / page_bytes(), true);
        discard(a);
    }
    pthread_mutex_unlock(&lock);
}
