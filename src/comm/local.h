/* The state behind comm/local.c: a world, its ranks, and the channels on which transfers meet.
 *
 * A channel belongs to a group of ranks and a tag. Each member has a seat there with a ring of
 * slots: post number k of a member lies in slot k % WEFTI_LOCAL_RING and meets the posts number k
 * of the others. A slot is written by its owner only. `posted` = k + 1 publishes post k; `moved` =
 * k + 1 says that this member will not touch others' memory, or look at their slots, for post k any
 * more. A slot is used again when all partners of the post in it have moved, so that nobody ever
 * looks at a slot that changes under it. */
#ifndef WEFTI_LOCAL_H
#define WEFTI_LOCAL_H

#include <pthread.h>
#include <stdalign.h>

#include "comm/bell.h"
#include "comm/comm.h"
#include "comm/local_plan.h"

enum { WEFTI_LOCAL_RING = 8, WEFTI_LOCAL_MESSAGE = 1024, WEFTI_LOCAL_BUCKETS = 256 };

typedef struct wefti_local_slot {
    alignas(128) _Atomic uint64_t posted;
    const wefti_local_plan *plan; /* the plan's hash and text are the same on all members */
    const void *source;
    void *destination;
    alignas(128) _Atomic uint64_t moved;
} wefti_local_slot;

typedef struct wefti_local_post {
    struct wefti_local_post *next; /* among those that wait for a free slot */
    struct wefti_local_endpoint *endpoint;
    const void *source;
    void *destination;
    bool finished;
} wefti_local_post;

/* The owner's side of a slot: reading the slot itself would wait for the line, on which others
 * look.
 */
typedef struct wefti_local_place {
    wefti_local_post *post; /* NULL: finished */
    const wefti_local_plan *plan;
    const void *source; /* as in the slot */
    bool moved;
    bool free; /* all partners are known to have moved */
} wefti_local_place;

typedef struct wefti_local_channel wefti_local_channel;

typedef struct wefti_local_seat {
    wefti_local_slot slot[WEFTI_LOCAL_RING];
    /* From here on for the owner alone. */
    alignas(128) wefti_local_channel *channel;
    int32_t me;
    bool active;                     /* in its rank's list */
    uint64_t published, oldest;      /* posts in slots; those before `oldest` are finished */
    wefti_local_post *first, **last; /* posted, no slot yet */
    wefti_local_place place[WEFTI_LOCAL_RING];
    unsigned char *small; /* copies of small sources, one place for each slot */
    struct wefti_local_seat *next;
    wefti_local_plan *plans; /* all ever bound; under the world's lock */
} wefti_local_seat;

struct wefti_local_channel {
    wefti_local_channel *next;
    uint64_t tag;
    int32_t members;
    int32_t *ranks;
    wefti_local_seat *seat; /* [members] */
};

typedef struct wefti_local_world wefti_local_world;

typedef struct wefti_local {
    wefti_comm comm;
    wefti_local_world *world;
    wefti_local_seat *active; /* seats with posts under way */
    bool at_fault;            /* it was this rank that found a mismatch */
    alignas(128) wefti_bell bell;
    alignas(128) _Atomic uint64_t moving; /* touches others' memory right now */
} wefti_local;

struct wefti_local_world {
    int32_t size;
    int spin;
    bool light;        /* comm/bell.h: waiting threads seldom sleep */
    wefti_local *rank; /* [size] */
    _Atomic uint32_t broken;
    _Atomic uint32_t generation; /* number of mendings */
    pthread_mutex_t lock;        /* of all below */
    int32_t alive;               /* communicators not destroyed yet */
    wefti_arena *arena;
    wefti_local_channel *bucket[WEFTI_LOCAL_BUCKETS];
    char message[WEFTI_LOCAL_MESSAGE];
};

typedef struct wefti_local_endpoint {
    wefti_endpoint base;
    wefti_local *local;
    wefti_local_seat *seat;
    const wefti_local_plan *plan;
    void *stage;         /* results of WEFTI_COMM_DEPTH posts, when the plan says so */
    uint32_t generation; /* of the world at the last post */
    uint32_t posted, waited;
    wefti_local_post post[WEFTI_COMM_DEPTH];
    const void **source; /* [members]: scratch of a move */
    void **destination;
} wefti_local_endpoint;

weft_status wefti_local_start(wefti_endpoint *endpoint, const void *source, void *destination);
weft_status wefti_local_wait(wefti_endpoint *endpoint);
weft_status wefti_local_test(wefti_endpoint *endpoint);
/* All waits fail from now on. */
void wefti_local_break(wefti_local *local, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* In a broken world: returns once no other rank touches lent memory, and none will. */
void wefti_local_calm(wefti_local *local);

#endif
