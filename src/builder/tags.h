/* Tags of a program's own transfers. Transfers of one group and one tag match in the order of their
 * posts. So transfers that are in flight at the same time between the same ranks need different
 * tags. Transfers inside of bodies have tag 0. */
#ifndef WEFTI_TAGS_H
#define WEFTI_TAGS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum wefti_tag_use {
    WEFTI_TAG_NORMS = 1, /* squares of gradients, over all devices */
    WEFTI_TAG_TIED,      /* gradients of a parameter that several stages read */
    WEFTI_TAG_GATHER,    /* number: the parameter's place among the operands of a call; behind the
                            last one, many in one message */
    WEFTI_TAG_BUCKET,    /* in flight beside calls; number 0: gradients, 1: gathered parameters, 2:
                            many of them in one message */
    WEFTI_TAG_BUDDY,     /* gradients on their way to buddies; number: wefti_buddy_number */
    WEFTI_TAG_COMMIT,    /* one number of each device: it has what it updates with */
    WEFTI_TAG_EDGE       /* between stages; number: wefti_edge_number */
} wefti_tag_use;

static inline uint64_t wefti_tag(wefti_tag_use use, uint64_t number) {
    return (uint64_t)use << 56 | number;
}

/* The number of a value's pipeline edge to a stage, or of its gradient's way back, on one of
 * several channels. */
static inline uint64_t wefti_edge_number(int32_t value, int32_t stage, int32_t channel, bool back) {
    return ((uint64_t)value << 36 | (uint64_t)stage << 24 | (uint64_t)channel) << 1 |
           (uint64_t)back;
}

/* The number of a message from the devices of a stage to their buddies. */
static inline uint64_t wefti_buddy_number(int32_t stage, int32_t message) {
    return (uint64_t)stage << 32 | (uint64_t)message;
}

#endif
