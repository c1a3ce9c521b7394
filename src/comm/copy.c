/* See comm/copy.h. Four neighbouring pages are walked abreast, two lines of each in turn, so that
 * streamed and other stores are under way at the same time. Where all is streamed, and less than
 * that is to be copied, a page is as short as that, so that one line follows the other. */
#include "comm/copy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/tuning.h"

enum { COPY_LINE = 64, PAIR = 2 * COPY_LINE, PAGE = 4096, PAGES = WEFTI_COPY_ALL };

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* `to` at the beginning of a line. */
#define STREAM(name, isa, vector, load, store, stream)                                             \
    __attribute__((target(isa))) static void name(unsigned char *to, const unsigned char *from,    \
                                                  size_t groups, size_t page, int streamed) {      \
        enum { LANES = PAIR / sizeof(vector) };                                                    \
        for (size_t g = 0; g < groups; g++, to += PAGES * page, from += PAGES * page)              \
            for (size_t i = 0; i < page; i += PAIR)                                                \
                for (int p = 0; p < PAGES; p++) {                                                  \
                    const vector *source = (const void *)(from + (size_t)p * page + i);            \
                    vector *target = (void *)(to + (size_t)p * page + i), lane[LANES];             \
                    for (int k = 0; k < LANES; k++) lane[k] = load((const void *)(source + k));    \
                    for (int k = 0; k < LANES; k++) {                                              \
                        if (p < streamed)                                                          \
                            stream((void *)(target + k), lane[k]);                                 \
                        else                                                                       \
                            store((void *)(target + k), lane[k]);                                  \
                    }                                                                              \
                }                                                                                  \
    }                                                                                              \
    __attribute__((target(isa))) static void name##_lines(void *to, const void *from,              \
                                                          size_t bytes) {                          \
        for (size_t i = 0; i < bytes; i += sizeof(vector))                                         \
            stream((void *)((char *)to + i), load((const void *)((const char *)from + i)));        \
    }
STREAM(stream_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_store_si128, _mm_stream_si128)
STREAM(stream_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_store_si256, _mm256_stream_si256)
STREAM(stream_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_store_si512,
       _mm512_stream_si512)

typedef void stream_pages(unsigned char *to, const unsigned char *from, size_t groups, size_t page,
                          int streamed);
static stream_pages *const forms[WEFTI_COPY_FORMS] = {NULL, stream_sse2, stream_avx2,
                                                      stream_avx512};

wefti_copy_lines *wefti_copy_streaming(wefti_copy_form form) {
    static wefti_copy_lines *const lines[WEFTI_COPY_FORMS] = {
        NULL, stream_sse2_lines, stream_avx2_lines, stream_avx512_lines};
    return lines[form];
}

wefti_copy_form wefti_copy_best(void) {
    if (wefti_tuned()->streaming == WEFTI_STREAMING_NEVER) return WEFTI_COPY_PLAIN;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") ? WEFTI_COPY_AVX512
           : __builtin_cpu_supports("avx2")  ? WEFTI_COPY_AVX2
                                             : WEFTI_COPY_SSE2;
}

void wefti_copy_part(wefti_copy_form form, void *to, const void *from, size_t bytes, int streamed) {
    unsigned char *target = to;
    const unsigned char *source = from;
    size_t before = (COPY_LINE - (uintptr_t)to % COPY_LINE) % COPY_LINE;
    size_t page = bytes >= before + PAGES * PAGE ? PAGE : PAIR, group = PAGES * page;
    if (forms[form] && (streamed == PAGES || (streamed > 0 && page == PAGE)) &&
        bytes >= before + group) {
        size_t groups = (bytes - before) / group;
        memcpy(target, source, before);
        forms[form](target + before, source + before, groups, page, streamed);
        target += before + groups * group;
        source += before + groups * group;
        bytes -= before + groups * group;
    }
    if (bytes > 0) memcpy(target, source, bytes);
}

void wefti_copy_order(void) {
    _mm_sfence();
}

#else

wefti_copy_lines *wefti_copy_streaming(wefti_copy_form form) {
    (void)form;
    return NULL;
}
wefti_copy_form wefti_copy_best(void) {
    return WEFTI_COPY_PLAIN;
}
void wefti_copy_part(wefti_copy_form form, void *to, const void *from, size_t bytes, int streamed) {
    (void)form;
    (void)streamed;
    if (bytes > 0) memcpy(to, from, bytes);
}
void wefti_copy_order(void) {}

#endif

void wefti_copy(void *to, const void *from, size_t bytes, int streamed) {
    if (streamed > 0) {
        wefti_copy_part(wefti_copy_best(), to, from, bytes, streamed);
        wefti_copy_order();
    } else if (bytes > 0) {
        memcpy(to, from, bytes);
    }
}

/* Asked for once: cpuid leaves a virtual machine. */
int64_t wefti_copy_cache(void) {
    enum { USUAL = 1 << 20 };
    static _Atomic int64_t known;
    if (wefti_tuned()->l2_bytes > 0) return wefti_tuned()->l2_bytes;
    int64_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (bytes == 0) {
#if defined(_SC_LEVEL2_CACHE_SIZE)
        bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
        if (bytes <= 0) bytes = USUAL;
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}

/* --- Whether the last level is near
 * ------------------------------------------------------------------------------- */

enum {
    NEAR = 8 /* second-level caches' worth that a last level holds for a core, where it is near */
};

/* The second of two: the first finds what another way has left in the caches. */
static int64_t copy_ns(void *to, const void *from, size_t bytes, int streamed) {
    wefti_copy(to, from, bytes, streamed);
    int64_t start = wefti_now_ns();
    wefti_copy(to, from, bytes, streamed);
    return wefti_now_ns() - start;
}

/* Half of NEAR is copied as usual and half streamed, in turn. */
static bool measure_last_level(void) {
    enum {
        ROUNDS = 4,
        GAP = 4096 /* so that the one does not begin a power of two behind the other */
    };
    if (!wefti_copy_streaming(wefti_copy_best())) return true; /* there is nothing to gain */
    const size_t bytes = (size_t)wefti_copy_cache() * NEAR / 2, all = 2 * bytes + GAP;
    char *from = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED) return false;
    (void)madvise(from, all, MADV_HUGEPAGE);
    memset(from, 1, all); /* pages of its own, not the one of zeros */
    char *to = from + bytes + GAP;
    int64_t usual = INT64_MAX, streamed = INT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t ns = copy_ns(to, from, bytes, 0);
        if (ns < usual) usual = ns;
        ns = copy_ns(to, from, bytes, WEFTI_COPY_ALL / 2);
        if (ns < streamed) streamed = ns;
    }
    (void)munmap(from, all);
    return usual <= streamed;
}

static bool last_level_is_near;
static void find_last_level(void) {
    last_level_is_near = measure_last_level();
}
int64_t wefti_copy_kept(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    switch (wefti_tuned()->streaming) {
    case WEFTI_STREAMING_NEVER:
        return INT64_MAX;
    case WEFTI_STREAMING_BEYOND_L2:
        return wefti_copy_cache();
    case WEFTI_STREAMING_BEYOND_LAST_LEVEL:
        return wefti_copy_cache() * NEAR;
    case WEFTI_STREAMING_MEASURED:
        break;
    }
    (void)pthread_once(&once, find_last_level);
    return wefti_copy_cache() * (last_level_is_near ? NEAR : 1);
}

int wefti_copy_streamed(int64_t bytes) {
    int64_t times = bytes / wefti_copy_cache();
    if (times < 1 || bytes < wefti_copy_kept()) return 0;
    return times >= 24 ? WEFTI_COPY_ALL : times >= NEAR ? 3 : 2;
}
