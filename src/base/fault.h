/* Fault points: a test makes the n-th allocation or I/O call fail, once or from then on. They are
 * off by default and then cost one relaxed load each. They are process-wide, as memory and disk
 * are. */
#ifndef WEFTI_BASE_FAULT_H
#define WEFTI_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum wefti_fault_kind {
    WEFTI_FAULT_ALLOC, /* wefti_alloc and friends return NULL */
    WEFTI_FAULT_IO,    /* base/io.h calls fail with the armed errno */
    WEFTI_FAULT_KINDS
} wefti_fault_kind;

/* Fails call number `nth` (0-based) from now on; if `forever`, also all later calls. nth < 0
 * disarms. `error_number` is the errno that I/O faults report (0: EIO). Resets the counter. */
void wefti_fault_arm(wefti_fault_kind kind, int64_t nth, bool forever, int error_number);
int64_t wefti_fault_count(wefti_fault_kind kind); /* calls seen since the last arm */
bool wefti_fault_due(wefti_fault_kind kind);      /* counts one call; true: this one fails */
int wefti_fault_errno(wefti_fault_kind kind);
/* Counts one I/O call. Returns true if the call must fail, and sets errno as a failing disk
 * would. */
bool wefti_fault_io(void);

#endif
