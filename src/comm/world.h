/* A world from inside. src/launch creates it once its processes have found each other; collectives
 * and sessions use it. */
#ifndef WEFTI_WORLD_H
#define WEFTI_WORLD_H

#include "comm/comm.h"
#include "weft/world.h"

typedef struct wefti_collectives
    wefti_collectives; /* comm/collective/collective.c: its bound transfers */
/* Agreement between the world's ranks: session/agree.h, a higher floor, defines it. */
typedef struct wefti_agreement wefti_agreement;

/* The calls that one member has made in all groups of the same ranks, for the comparison at the
 * end. Calls that only some members make (messages, neighbours) are counted for each pair of ranks
 * instead. For exchanges, a record covers the blocks from one rank to another, as sent or as
 * received. For messages, it counts them on either side, with their groups and tags. Each sent
 * message must have been received; a receive that was begun may remain open. */
enum { WEFTI_CALL_RECORDS = 256, WEFTI_CALL_TEXT = 160 };
enum { WEFTI_NO_SIDE, WEFTI_SENT, WEFTI_RECEIVED };
typedef struct wefti_call_record {
    uint64_t ranks;             /* hash of these */
    int32_t other;              /* blocks, messages: the rank that has the other side; else -1 */
    int32_t side;               /* messages: which one this is; else WEFTI_NO_SIDE */
    uint64_t calls, digest;     /* how many, and of all of them */
    char text[WEFTI_CALL_TEXT]; /* "all 3 ranks: 5 calls, the last a broadcast, root member 1 (...)"
                                 */
} wefti_call_record;
typedef struct wefti_call_records {
    int32_t count;
    wefti_call_record of[WEFTI_CALL_RECORDS]; /* of more, those made first; of blocks and messages,
                                                 between the nearest ranks */
} wefti_call_records;

struct weft_world {
    wefti_comm *comm; /* NULL: a world of one */
    int32_t rank, size, hosts;
    int32_t *host; /* [size] */
    char communicator[32];
    wefti_collectives *collectives; /* NULL until the first one */
    wefti_agreement *agreement;     /* NULL until the first one */
    void (*end_agreement)(wefti_agreement *agreement);
    /* The control plane, used when the world is left or fails. Any of these may be NULL. */
    void *control;
    /* Waits for the others, then ends, and tells what the job has failed of. */
    weft_status (*leave)(void *control, const wefti_call_records *records);
    void (*fail)(void *control, int failed, const char *message); /* tells the others */
};

/* `host` [size] is copied; comm is taken over, also on failure. */
weft_status wefti_world_create(wefti_comm *comm, int32_t rank, int32_t size, const int32_t *host,
                               weft_world **out) WEFT_CHECKED;
/* comm/collective/collective.c: before the communicator is destroyed. */
void wefti_collectives_destroy(wefti_collectives *collectives);
/* comm/collective/record.c. wefti_free the result. NULL: no memory, and nothing is compared. */
wefti_call_records *wefti_collectives_records(weft_world *world);

#endif
