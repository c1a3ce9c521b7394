/* A bell: how a thread that found nothing to do sleeps until another one has done something, with
 * no lost wake-ups and, while nobody sleeps, nothing but a load for the one that did something.
 *
 * Owner:  heard = wefti_bell_sleeps(bell); look for work once more; then wefti_bell_sleep(bell,
 *         heard) or, if there was work, wefti_bell_wakes(bell).
 * Others: make the work visible by a sequentially consistent store; then wefti_bell_ring(bell).
 *
 * Either the ringer sees that the owner is about to sleep, or the owner's second look sees the
 * work: both are a store followed by a load of the other's store, all sequentially consistent
 * (Dekker's argument). Sleeping is futex(2); elsewhere than on Linux, giving up the time slice. */
#ifndef WEFTI_BELL_H
#define WEFTI_BELL_H

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef struct wefti_bell {
    _Atomic uint32_t rung, sleeps;
} wefti_bell;

static inline uint32_t wefti_bell_sleeps(wefti_bell *bell) {
    uint32_t heard = atomic_load(&bell->rung);
    atomic_store(&bell->sleeps, 1);
    return heard;
}
static inline void wefti_bell_wakes(wefti_bell *bell) {
    atomic_store_explicit(&bell->sleeps, 0, memory_order_relaxed);
}
/* May return early. */
static inline void wefti_bell_sleep(wefti_bell *bell, uint32_t heard) {
#if defined(__linux__)
    (void)syscall(SYS_futex, &bell->rung, FUTEX_WAIT_PRIVATE, heard, NULL, NULL, 0);
#else
    if (atomic_load(&bell->rung) == heard) sched_yield();
#endif
    wefti_bell_wakes(bell);
}
static inline void wefti_bell_ring(wefti_bell *bell) {
    if (!atomic_load(&bell->sleeps)) return;
    atomic_fetch_add(&bell->rung, 1);
#if defined(__linux__)
    (void)syscall(SYS_futex, &bell->rung, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
#endif
}
static inline void wefti_bell_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
