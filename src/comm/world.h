/* A world from inside. src/launch creates it once its processes have found each other; collectives
 * and sessions use it. */
#ifndef WEFTI_WORLD_H
#define WEFTI_WORLD_H

#include "comm/comm.h"
#include "recovery/recovery.h"
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

/* --- mending: the world goes on after one of its processes has died (docs/design/recovery.md) */

/* What a rank hears when all have told where they stand. Each comes to the target by itself, gives
 * and takes states, and says that it is whole. */
typedef struct wefti_mend {
    uint64_t generation;   /* of the mended world */
    int64_t target;        /* committed steps in everybody's state afterwards */
    bool from_disk;        /* all read the last checkpoint, or begin; the target follows from it */
    const int32_t *source; /* [size] the rank that gives the state of seat r; -1: r has it; -2: the
                              disk; -3: resized, and r has none. Until the next mend */
    /* The ranks are more or fewer than in the world that was whole last, or have other numbers
     * there. States then move by regions. */
    bool resized;
    int32_t rank, size; /* of this process, and of the world that begins */
    const int32_t *was; /* [size] the rank that its process had in the world that was whole last;
                           -1: it was not there. Until the next mend */
} wefti_mend;

/* What an elastic job allows: its world may change its size. */
typedef struct wefti_elastic {
    int32_t least;  /* ranks at least, 2 or more; 0: the world keeps its size */
    double seconds; /* how long a seat may stay empty while processes may still be started again */
    /* Bit n, of bytes for n up to `most`: a plan of the job is for n ranks. NULL: any number has
     * one. The world only gets sizes that have one; ranks that are too many for that leave. */
    const unsigned char *fits;
    int32_t most; /* 1 or more, with `fits` */
} wefti_elastic;

typedef struct wefti_mender { /* how: src/launch/join/mend.c. Of each the world's control */
    bool restarts, resizes;   /* what may be done after a death */
    void (*arm)(void *control, const wefti_elastic *elastic);
    bool (*is_halted)(void *control);
    weft_status (*mend)(weft_world *world, const wefti_stand *at, wefti_mend *out);
    const wefti_mend *(*newcomer)(void *control);
    weft_status (*whole)(void *control);
    void (*forget)(void *control);
    /* Breaks the present communicator, from any thread. NULL: it needs no guard. */
    void (*break_off)(void *control, int failed, const char *message);
} wefti_mender;

/* Whether a process that dies is started again, or may be gone on without. */
bool wefti_world_mends(const weft_world *world);
/* Whether this process has said that it can be mended, or takes a seat: then a rank that is lost is
 * repaired, and nobody gives up. */
bool wefti_world_is_repaired(const weft_world *world);
/* This thread's failure is that ranks have lost a connection, and nobody repairs it: the others
 * hear so. Returns that failure. */
weft_status wefti_world_lost(weft_world *world, weft_status status);
/* Whether the world can change its size, if all ranks allow it. */
bool wefti_world_resizes(const weft_world *world);
/* This rank can be mended from now on. Once all ranks have said so, a death breaks the world but
 * does not end it. `elastic` (may be NULL): equal on all ranks. Blocks until the scheduler has
 * heard it: so from the second collective operation on, all are known to have said it. */
void wefti_world_arm(weft_world *world, const wefti_elastic *elastic);
/* The world is broken, and to be mended: wefti_world_mend. Nonblocking, from any thread. */
bool wefti_world_is_halted(const weft_world *world);
/* After a failure of a transfer, or once the world is halted. This thread's failure (its message
 * and weft_error_rank) becomes that of the job, unless some process has died. Blocks until a
 * process has taken each empty seat and all ranks have told where they stand, and then makes a new
 * communicator. The old one stays until wefti_world_forget, broken. If the world is resized, the
 * rank and the size of `world` are new ones afterwards. If further processes die meanwhile, it
 * begins again. Collective over all ranks; a newcomer does it in weft_world_join. Fails if the job
 * fails. */
weft_status wefti_world_mend(weft_world *world, const wefti_stand *at,
                             wefti_mend *out) WEFT_CHECKED;
/* In a process that took an empty seat: the mend that it came for, until it is whole. Else NULL. */
const wefti_mend *wefti_world_newcomer(const weft_world *world);
/* Tells that this rank has the target's state, and waits for all others. WEFT_PENDING: a process
 * has died meanwhile, and the world is to be mended again. Collective. */
weft_status wefti_world_whole(weft_world *world) WEFT_CHECKED;
/* Destroys communicators of older generations, after all that was bound or mapped there. */
void wefti_world_forget(weft_world *world);

/* comm/servers.h: servers of parameters that the world's ranks reach. */
typedef struct wefti_world_servers wefti_world_servers;

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
    /* Tells the others. WEFT_E_LOST: only a connection was lost; failed: to that rank, or NONE. */
    void (*fail)(void *control, weft_status status, int failed, const char *message);
    const wefti_mender *mender;   /* NULL: it cannot be mended */
    bool armed;                   /* wefti_world_arm */
    bool elastic;                 /* it may change its size, as the ranks have said */
    wefti_world_servers *servers; /* owned; NULL: none are named */
    int64_t joining_ns;           /* how long this process took to find the others; 0: not known */
};

/* `host` [size] is copied; comm is taken over, also on failure. */
weft_status wefti_world_create(wefti_comm *comm, int32_t rank, int32_t size, const int32_t *host,
                               weft_world **out) WEFT_CHECKED;
/* Gives the world another rank, size and hosts, with its next communicator. */
weft_status wefti_world_resize(weft_world *world, int32_t rank, int32_t size,
                               const int32_t *host) WEFT_CHECKED;
/* comm/collective/collective.c: before the communicator is destroyed. */
void wefti_collectives_destroy(wefti_collectives *collectives);
/* comm/collective/record.c. wefti_free the result. NULL: no memory, and nothing is compared. */
wefti_call_records *wefti_collectives_records(weft_world *world);

#endif
