/* Addresses: an arena and an offset in it, in one number, so that strides cost an addition.
 *
 * Programs are made of locations. Only a rank's device (exec/rank_device.c), which owns the memory,
 * turns one into a pointer. */
#ifndef WEFTI_LOCATION_H
#define WEFTI_LOCATION_H

#include <stdbool.h>
#include <stdint.h>

/* Where bytes lie: in device memory, which kernels and transfers reach, or in a tier below it. Only
 * copies of the device reach host memory. Only reads and writes of a file reach the disk. What
 * servers keep, ranks push and pull. */
typedef enum wefti_space {
    WEFTI_SPACE_DEVICE,
    WEFTI_SPACE_HOST,
    WEFTI_SPACE_DISK,
    WEFTI_SPACE_SERVER,
    WEFTI_SPACES
} wefti_space;

/* "device", "host", "disk", "server" */
const char *wefti_space_text(wefti_space space);

/* How long bytes keep their place. Persistent bytes keep it as long as the session lives. Transient
 * ones belong to one pass, and the next program uses the same memory. Each has an arena of its own
 * in each space, so that programs can be added at any time. */
typedef enum wefti_term { WEFTI_PERSISTENT, WEFTI_TRANSIENT, WEFTI_TERMS } wefti_term;

/* bits: the space, the term, then WEFTI_OFFSET_BITS of offset. A persistent address of device
 * memory has the bits of its offset. Negative: absent. */
typedef struct wefti_location {
    int64_t bits;
} wefti_location;

enum { WEFTI_OFFSET_BITS = 55 };

#define WEFTI_NOWHERE ((wefti_location){-1})

static inline wefti_location wefti_location_of(wefti_space space, wefti_term term, int64_t offset) {
    const int64_t arena = (int64_t)space * WEFTI_TERMS + (int64_t)term;
    return (wefti_location){arena << WEFTI_OFFSET_BITS | offset};
}
static inline bool wefti_location_exists(wefti_location at) {
    return at.bits >= 0;
}
static inline wefti_space wefti_location_space(wefti_location at) {
    return (wefti_space)((at.bits >> WEFTI_OFFSET_BITS) / WEFTI_TERMS);
}
static inline wefti_term wefti_location_term(wefti_location at) {
    return (wefti_term)((at.bits >> WEFTI_OFFSET_BITS) % WEFTI_TERMS);
}
static inline int64_t wefti_location_offset(wefti_location at) {
    return at.bits & (((int64_t)1 << WEFTI_OFFSET_BITS) - 1);
}
/* An absent address stays absent. */
static inline wefti_location wefti_location_plus(wefti_location at, int64_t bytes) {
    if (at.bits >= 0) at.bits += bytes;
    return at;
}
static inline bool wefti_location_equal(wefti_location a, wefti_location b) {
    return a.bits == b.bits;
}

/* The arenas of a device in bytes. */
typedef struct wefti_footprint {
    int64_t of[WEFTI_SPACES][WEFTI_TERMS];
} wefti_footprint;

/* Programs of one device share its arenas. */
static inline void wefti_footprint_join(wefti_footprint *all, wefti_footprint one) {
    for (int s = 0; s < WEFTI_SPACES; s++)
        for (int t = 0; t < WEFTI_TERMS; t++)
            if (one.of[s][t] > all->of[s][t]) all->of[s][t] = one.of[s][t];
}
/* All bytes of a space: its peak. */
static inline int64_t wefti_footprint_bytes(wefti_footprint f, wefti_space space) {
    return f.of[space][WEFTI_PERSISTENT] + f.of[space][WEFTI_TRANSIENT];
}

#endif
