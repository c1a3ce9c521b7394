/* Fault points, and calls to the file system that are under way. */
#include "base/fault.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/clock.h"

typedef struct fault_state {
    _Atomic bool armed;
    _Atomic int64_t seen, nth;
    _Atomic bool forever;
    _Atomic int error_number;
} fault_state;

static fault_state state[WEFTI_FAULT_ALL];

void wefti_fault_arm(wefti_fault_kind kind, int64_t nth, bool forever, int error_number) {
    fault_state *s = &state[kind];
    atomic_store(&s->armed, false);
    atomic_store(&s->seen, 0);
    atomic_store(&s->nth, nth);
    atomic_store(&s->forever, forever);
    atomic_store(&s->error_number, error_number ? error_number : EIO);
    atomic_store(&s->armed, nth >= 0);
}

int64_t wefti_fault_count(wefti_fault_kind kind) {
    return atomic_load(&state[kind].seen);
}
int wefti_fault_errno(wefti_fault_kind kind) {
    return atomic_load(&state[kind].error_number);
}

bool wefti_fault_due(wefti_fault_kind kind) {
    fault_state *s = &state[kind];
    if (!atomic_load_explicit(&s->armed, memory_order_relaxed)) return false;
    int64_t call = atomic_fetch_add(&s->seen, 1);
    int64_t nth = atomic_load(&s->nth);
    return call == nth || (call > nth && atomic_load(&s->forever));
}

bool wefti_fault_io(void) {
    if (!wefti_fault_due(WEFTI_FAULT_IO)) return false;
    errno = wefti_fault_errno(WEFTI_FAULT_IO);
    if (errno == WEFTI_FAULT_KILLS) (void)raise(SIGKILL);
    return true;
}

static _Atomic int64_t pause_ns[WEFTI_SLOW_PLACES];

void wefti_fault_slow(wefti_slow_place where, int64_t ns) {
    atomic_store(&pause_ns[where], ns);
}

void wefti_fault_pass(wefti_slow_place where) {
    const int64_t ns = atomic_load_explicit(&pause_ns[where], memory_order_relaxed);
    if (ns <= 0) return;
    const struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    (void)nanosleep(&t, NULL);
}

/* Further threads that call at once are not seen: far fewer use a disk. */
enum { SEEN = 64 };
static _Atomic int64_t since[SEEN]; /* 0: free */
static _Thread_local int place = -1;

void wefti_disk_watch(void) {
    int64_t now = wefti_now_ns();
    for (int i = 0; i < SEEN; i++) {
        int64_t none = 0;
        if (!atomic_compare_exchange_strong(&since[i], &none, now)) continue;
        place = i;
        return;
    }
}

bool wefti_disk_begin(void) {
    if (wefti_fault_io()) return false;
    wefti_fault_pass(WEFTI_SLOW_DISK);
    wefti_disk_watch();
    return true;
}

static void end(void) {
    if (place >= 0) atomic_store(&since[place], 0);
    place = -1;
}

int wefti_disk_end_int(int result) {
    end();
    return result;
}
long wefti_disk_end_long(long result) {
    end();
    return result;
}
void *wefti_disk_end_pointer(void *result) {
    end();
    return result;
}

int64_t wefti_disk_since_ns(void) {
    int64_t oldest = 0;
    for (int i = 0; i < SEEN; i++) {
        int64_t at = atomic_load(&since[i]);
        if (at && (!oldest || at < oldest)) oldest = at;
    }
    return oldest;
}
