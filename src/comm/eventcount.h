/* An eventcount: a thread without work sleeps until another thread has produced some. No wake-up
 * is lost. While no thread sleeps, a producer pays one load.
 *
 * Waiter: epoch = wefti_eventcount_prepare(event, mode); look for work once more; then call
 * wefti_eventcount_wait(event, epoch, ..), or wefti_eventcount_cancel(event) if there was work.
 * Producer: wefti_eventcount_store publishes the work; then wefti_eventcount_notify(event, mode).
 *
 * Either the producer sees that the waiter is about to sleep, or the waiter's second look sees the
 * work. Both sides store and then load what the other side stores (Dekker's argument), which holds
 * if no processor moves the load before the store. Sequentially consistent stores ensure that. In
 * `light` mode producers use plain stores instead, and a waiter pays with membarrier(2), a barrier
 * on all cores that run threads of the process (or of all registered processes). Waiting is
 * futex(2); on other systems than Linux it yields the time slice.
 *
 * A waiter that also polls sources without wake-ups sleeps in short intervals and polls between
 * them. */
#ifndef WEFTI_EVENTCOUNT_H
#define WEFTI_EVENTCOUNT_H

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

typedef struct wefti_eventcount {
    _Atomic uint32_t epoch, waiting;
} wefti_eventcount;

/* Equal for all users of one eventcount. */
typedef struct wefti_eventcount_mode {
    bool light;  /* stores are */
    bool shared; /* between processes */
} wefti_eventcount_mode;

/* Whether this process may use light stores. */
static inline bool wefti_eventcount_can_be_light(bool shared) {
#if defined(__linux__)
    return syscall(SYS_membarrier,
                   shared ? MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED
                          : MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
                   0) == 0;
#else
    (void)shared;
    return false;
#endif
}
/* The loads of this thread from here on see all light stores after which another thread has loaded,
 * or that other thread's loads see the stores of this one. */
static inline void wefti_eventcount_barrier(wefti_eventcount_mode mode) {
#if defined(__linux__)
    if (mode.light)
        (void)syscall(
            SYS_membarrier,
            mode.shared ? MEMBARRIER_CMD_GLOBAL_EXPEDITED : MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0);
#else
    (void)mode;
#endif
}
/* Store what others wait for, or must see before what this thread loads next. */
static inline void wefti_eventcount_store(_Atomic uint64_t *word, uint64_t value,
                                          wefti_eventcount_mode mode) {
    if (mode.light) {
        atomic_store_explicit(word, value, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order too */
    } else {
        atomic_store(word, value);
    }
}

static inline uint32_t wefti_eventcount_prepare(wefti_eventcount *event,
                                                wefti_eventcount_mode mode) {
    uint32_t epoch = atomic_load(&event->epoch);
    atomic_store(&event->waiting, 1);
    wefti_eventcount_barrier(mode);
    return epoch;
}
static inline void wefti_eventcount_cancel(wefti_eventcount *event) {
    atomic_store_explicit(&event->waiting, 0, memory_order_relaxed);
}
/* Back-off before the next poll, in ns, after the caller has waited for `waited_ns`. 0: yield the
 * core and poll again. The back-off is a fixed part of the waiting time, so that late notice costs
 * little and polls leave the core to threads that compute. */
static inline long wefti_eventcount_backoff(int64_t waited_ns) {
    enum { AWAKE_NS = 2000000, PART = 16, MOST_NS = 200000 };
    int64_t ns = waited_ns / PART;
    return waited_ns < AWAKE_NS ? 0 : ns < MOST_NS ? (long)ns : MOST_NS;
}
/* May return early. most_ns: 0: until it rings; else not longer than that. */
static inline void wefti_eventcount_wait(wefti_eventcount *event, uint32_t epoch,
                                         wefti_eventcount_mode mode, long most_ns) {
#if defined(__linux__)
    struct timespec most = {0, most_ns};
    (void)syscall(SYS_futex, &event->epoch, mode.shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, epoch,
                  most_ns ? &most : NULL, NULL, 0);
#else
    (void)mode;
    (void)most_ns;
    if (atomic_load(&event->epoch) == epoch) sched_yield();
#endif
    wefti_eventcount_cancel(event);
}
static inline void wefti_eventcount_notify(wefti_eventcount *event, wefti_eventcount_mode mode) {
    if (!atomic_load(&event->waiting)) return;
    atomic_fetch_add(&event->epoch, 1);
#if defined(__linux__)
    (void)syscall(SYS_futex, &event->epoch, mode.shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX,
                  NULL, NULL, 0);
#else
    (void)mode;
#endif
}
static inline void wefti_spin_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
/* Between two looks at a line that another core writes. A processor that runs ahead has begun many
 * looks when the line changes, and has to throw all of them away. */
static inline void wefti_spin_fence(void) {
#if defined(__x86_64__)
    __asm__ volatile("lfence" ::: "memory");
#endif
}
/* Fetch a line that is about to be written. Compilers fetch for reading where they do not know that
 * the processor can do this; those that cannot ignore it. */
static inline void wefti_prefetch_for_write(const void *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" ::"m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

#endif
