/* Addresses: a space and an offset in it, in one number, so that strides cost an addition.
 *
 * Programs are made of locations. Only a rank's device (exec/rank_device.c), which owns the memory,
 * turns one into a pointer. */
#ifndef WEFTI_LOCATION_H
#define WEFTI_LOCATION_H

#include <stdbool.h>
#include <stdint.h>

/* Where bytes lie: in device memory, or in host memory that the device can copy. */
typedef enum wefti_space { WEFTI_SPACE_DEVICE, WEFTI_SPACE_HOST, WEFTI_SPACES } wefti_space;

/* bits: the space, then WEFTI_OFFSET_BITS of offset. An address of device memory has the bits of
 * its offset. Negative: absent. */
typedef struct wefti_location {
    int64_t bits;
} wefti_location;

enum { WEFTI_OFFSET_BITS = 56 };

#define WEFTI_NOWHERE ((wefti_location){-1})

static inline wefti_location wefti_location_of(wefti_space space, int64_t offset) {
    return (wefti_location){(int64_t)space << WEFTI_OFFSET_BITS | offset};
}
static inline bool wefti_location_exists(wefti_location at) {
    return at.bits >= 0;
}
static inline wefti_space wefti_location_space(wefti_location at) {
    return (wefti_space)(at.bits >> WEFTI_OFFSET_BITS);
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

#endif
