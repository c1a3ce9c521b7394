/* The fence of the device `fenced`: memory of this process that is inaccessible (mprotect) except
 * while it is open. All devices of the process share one fence, because they share mappings: each
 * page counts how often it is open. Any thread may call these functions. */
#ifndef WEFTI_FENCE_H
#define WEFTI_FENCE_H

#include "device/device.h"

/* Fences mapped memory, which lies in `space`. Called again for the same memory, it counts, and as
 * many calls of the other end the fence. The memory is accessible then. */
weft_status wefti_fence_begin(void *memory, int64_t bytes, wefti_space space) WEFT_CHECKED;
void wefti_fence_end(void *memory);

/* Opens ranges of fenced memory of `space`, all pages that they touch. WEFT_E_BUG: a range is not
 * fenced, or lies in another space. */
weft_status wefti_fence_open(wefti_space space, const wefti_byte_range *ranges,
                             int count) WEFT_CHECKED;
/* The same for a copy, which reaches fenced memory of all spaces. */
weft_status wefti_fence_open_copy(const wefti_byte_range *ranges, int count) WEFT_CHECKED;
/* A range that is not open is a violation. */
void wefti_fence_close(const wefti_byte_range *ranges, int count);
/* Whether all of the bytes are fenced memory of `space`, open or not. */
bool wefti_fence_holds(const void *memory, int64_t bytes, wefti_space space);

/* Ends the process with a message on stderr and SIGSEGV, as an access through the fence does. */
_Noreturn void wefti_fence_violation(const char *what);

#endif
