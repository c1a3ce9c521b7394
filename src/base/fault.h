/* Fault points: a test makes the n-th allocation or I/O call fail, once or from then on. They are
 * off by default and then cost one relaxed load each. They are process-wide, as memory and disk
 * are. Calls to the file system are also seen while they are under way. */
#ifndef WEFTI_BASE_FAULT_H
#define WEFTI_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum wefti_fault_kind {
    WEFTI_FAULT_ALLOC, /* wefti_alloc and friends return NULL */
    WEFTI_FAULT_IO,    /* base/io.h calls fail with the armed errno */
    WEFTI_FAULT_KINDS, /* the number of those above, which any code that reads files may meet */
    WEFTI_FAULT_SCHEDULER = WEFTI_FAULT_KINDS, /* a scheduler dies before it hears, or says,
                                                  something: no heartbeats */
    WEFTI_FAULT_ALL
} wefti_fault_kind;

/* Fails call number `nth` (0-based) from now on; if `forever`, also all later calls. nth < 0
 * disarms. `error_number` is the errno that I/O faults report (0: EIO; WEFTI_FAULT_KILLS: the call
 * ends the process by SIGKILL). Resets the counter. */
enum { WEFTI_FAULT_KILLS = -1 };
void wefti_fault_arm(wefti_fault_kind kind, int64_t nth, bool forever, int error_number);
int64_t wefti_fault_count(wefti_fault_kind kind); /* calls seen since the last arm */
bool wefti_fault_due(wefti_fault_kind kind);      /* counts one call; true: this one fails */
int wefti_fault_errno(wefti_fault_kind kind);
/* Counts one I/O call. Returns true if the call must fail, and sets errno as a failing disk
 * would. */
bool wefti_fault_io(void);

/* Places that a test makes slow. */
typedef enum wefti_slow_place {
    WEFTI_SLOW_DATA, /* the preparation of a batch */
    WEFTI_SLOW_DISK, /* a call to the file system */
    WEFTI_SLOW_PLACES
} wefti_slow_place;
/* From now on a thread that comes to the place sleeps for `ns`; 0: no longer. */
void wefti_fault_slow(wefti_slow_place place, int64_t ns);
void wefti_fault_pass(wefti_slow_place place);

/* Calls to the file system: each is a fault point, and other threads can see that it is under way.
 * A disk or a server that does not answer keeps the calling thread in the kernel, where it runs no
 * signal handler: only another thread can notice. */

/* The result of `call`, which is an int or an ssize_t. -1 with errno if the call is to fail. */
#define WEFTI_DISK(call) (wefti_disk_begin() ? WEFTI_DISK_END(call) : -1)
/* The same for a pointer; NULL if the call is to fail. */
#define WEFTI_DISK_POINTER(call) (wefti_disk_begin() ? wefti_disk_end_pointer(call) : NULL)
/* A call that is no fault point. */
#define WEFTI_DISK_WATCH(call) (wefti_disk_watch(), WEFTI_DISK_END(call))
#define WEFTI_DISK_END(call)                                                                       \
    _Generic((call), int : wefti_disk_end_int, long : wefti_disk_end_long)(call)

/* False, with errno: the call must fail. Calls do not nest. */
bool wefti_disk_begin(void);
void wefti_disk_watch(void);
/* These keep errno. */
int wefti_disk_end_int(int result);
long wefti_disk_end_long(long result);
void *wefti_disk_end_pointer(void *result);

/* When the oldest call that is under way has begun, by wefti_now_ns; 0: there is none. For any
 * thread, and for signal handlers. */
int64_t wefti_disk_since_ns(void);

#endif
