/* The state of a rank on its way between two memories: one stream of bytes in blocks of one size,
 * with a head in front and a checksum behind. */
#ifndef WEFTI_SESSION_GIVE_H
#define WEFTI_SESSION_GIVE_H

#include "session/parts.h"

/* What goes. Both sides name it for the same rank, so both streams have the same tensors. */
typedef enum wefti_given {
    WEFTI_GIVEN_ALL,    /* each tensor that a device keeps, once: between replicas */
    WEFTI_GIVEN_OWNED,  /* the pieces that a device updates */
    WEFTI_GIVEN_COPIES, /* the same pieces as its holder has them */
    WEFTI_GIVEN_TENSOR  /* one tensor, as a device has it */
} wefti_given;

typedef struct wefti_state_stream {
    const weft_session *s;
    int32_t tensor;           /* GIVEN_TENSOR: its index in program 0 */
    wefti_endpoint *endpoint; /* NULL: within this process, by way of the block */
    char *block;
    int64_t room; /* of the block */
    bool gives;
    int64_t at; /* in the block */
    uint32_t crc;
} wefti_state_stream;

/* From rank `from`, which has it as `there`, to rank `to`, which takes it as `here`. Both ranks
 * call it. tensor: of GIVEN_TENSOR; else -1. */
typedef struct wefti_giving {
    int32_t from, to;
    wefti_given there, here;
    int32_t tensor;
} wefti_giving;
weft_status wefti_state_give(weft_session *s, const wefti_giving *g, int64_t target) WEFT_CHECKED;

#endif
