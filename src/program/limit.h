/* Limits of a device's memory, and of the host's memory for it. */
#ifndef WEFTI_LIMIT_H
#define WEFTI_LIMIT_H

#include "program/program.h"

/* Bytes of one device; 0: no limit. */
typedef struct wefti_limits {
    int64_t memory; /* device.memory: device memory and programs */
    int64_t device; /* memory.device: device memory alone */
    int64_t host;   /* memory.host: tier host, programs, and what the caller holds */
    int64_t held;   /* by the caller, of `host`: batches */
} wefti_limits;

/* What a device needs. */
typedef struct wefti_needs {
    wefti_footprint arenas; /* of all its programs */
    int64_t programs;       /* that its programs take themselves */
} wefti_needs;

static inline int64_t wefti_needs_host(const wefti_needs *needs, const wefti_limits *limits) {
    return wefti_footprint_bytes(needs->arenas, WEFTI_SPACE_HOST) + needs->programs + limits->held;
}

/* WEFT_E_NOMEM if the device of `program` needs more than a limit. The message says which tier
 * lacks how many bytes, what the largest buffers are, and what would fit; with several devices it
 * names the rank. `trains`: the program has an optimizer. */
weft_status wefti_program_within(const wefti_program *program, const wefti_needs *needs,
                                 const wefti_limits *limits, bool trains,
                                 int32_t devices) WEFT_CHECKED;

#endif
