/* The state behind communicators whose ranks read each other's memory: threads of one process
 * (comm/shm/threads.c) or processes of one host (comm/host/host.c).
 *
 * Terms:
 * - channel: the meeting point of one group of ranks and one tag.
 * - ring: one member's slots in a channel, used in turn. Post number k lies in slot k %
 *   WEFTI_SHM_SLOTS and matches the posts number k of the other members. Only the owner writes a
 *   slot.
 * - port: one rank's private side of a channel. It holds the posts, the ring, and for each slot a
 *   private record (in_flight).
 * - plan: how one transfer moves its data (comm/shm/plan.h).
 *
 * `posted` = k + 1 publishes post k. `moved` = k + 1 says that this member will not touch others'
 * memory, or read their slots, for post k any more. A slot is reused once all partners of its post
 * have moved, so that no rank reads a slot while it changes.
 *
 * Slots, peer records and the word that marks a broken world lie in memory shared by all ranks.
 * That memory holds no locks, and no pointers except the poster's own addresses, which
 * wefti_shm_reach translates. All other state is private to one rank. */
#ifndef WEFTI_SHM_H
#define WEFTI_SHM_H

#include <pthread.h>
#include <stdalign.h>

#include "comm/eventcount.h"
#include "comm/comm.h"
#include "comm/shm/plan.h"

enum {
    WEFTI_SHM_SLOTS = 8,
    WEFTI_SHM_INSIDE = WEFTI_SHM_TINY, /* the rest of two cache lines */
    WEFTI_SHM_MESSAGE = 1024,
    WEFTI_SHM_BUCKETS = 256,
    WEFTI_SHM_BLOCK = 64 << 10, /* bytes of each source that are pulled and reduced in turn */
    WEFTI_SHM_STAGING_BUFFERS =
        8 /* chunks of a share that are on their way: comm/shm/staged_reduce.c */
};

typedef struct wefti_shm_slot {
    alignas(128) _Atomic uint64_t posted;
    _Atomic uint64_t staged_chunks; /* comm/shm/staged_reduce.c */
    uint64_t hash;                  /* of all transfers up to this: the same on all members */
    const char *text;               /* what it is; as the next two, an address of the poster */
    const void *source;             /* NULL: `inside`, or nothing */
    void *destination;              /* NULL where all have one: `source` is the poster's boxes */
    unsigned char inside[WEFTI_SHM_INSIDE]; /* a source of a few bytes */
    alignas(128) _Atomic uint64_t moved;
    alignas(64) _Atomic uint64_t reduced; /* comm/shm/staged_reduce.c */
} wefti_shm_slot;

/* A member's slots, and the number of its first post that is not finished, which says for many
 * slots at once that they may be used again. */
typedef struct wefti_shm_ring {
    wefti_shm_slot slot[WEFTI_SHM_SLOTS];
    alignas(128) _Atomic uint64_t oldest;
} wefti_shm_ring;

/* One rank, as others see it. */
typedef struct wefti_shm_peer {
    alignas(128) wefti_eventcount event;
    alignas(128) _Atomic uint64_t moving; /* touches others' memory right now */
    int32_t failed;                       /* the rank to blame for the break, */
    char message[WEFTI_SHM_MESSAGE];      /* and why */
} wefti_shm_peer;

typedef struct wefti_shm_common {
    _Atomic uint32_t broken; /* 1 + the place of the first rank that broke the world */
    wefti_shm_peer peer[];
} wefti_shm_common;

/* Where the addresses of a rank lie in this process. For threads they are the same everywhere. */
typedef struct wefti_shm_area {
    uintptr_t begin, bytes; /* this part of that rank's addresses */
    uintptr_t view;         /* is here */
    int64_t process;
} wefti_shm_area;

typedef struct wefti_shm_post {
    struct wefti_shm_post *next; /* among those that wait for a free slot */
    struct wefti_shm_endpoint *endpoint;
    const void *source;
    void *destination;
    uint64_t call; /* of its group; 0 */
    /* What others see in the place of memory that they cannot reach: a copy of the source, or boxes
       for chunks of it; or NULL. */
    void *bounce;
    bool staging;
    int64_t staged_chunks, reduced,
        taken;        /* chunks: comm/shm/staged_reduce.c, comm/shm/staged_gather.c */
    bool copied;      /* the source is small, and copied to where it may stay */
    bool single_copy; /* others fetch from memory that they cannot reach */
    bool finished;
} wefti_shm_post;

/* The owner's side of a slot: reading the slot itself would wait for the line, on which others
 * look.
 */
typedef struct wefti_shm_in_flight {
    wefti_shm_post *post; /* NULL: finished */
    const wefti_shm_plan *plan;
    const void *source; /* for this member itself */
    void *destination;
    bool copied; /* others see a copy, which may stay */
    bool moved;
    bool free; /* all partners are known to have moved */
    uint64_t hash;
} wefti_shm_in_flight;

typedef struct wefti_shm_channel wefti_shm_channel;

/* A member's side of a channel, for its rank alone. */
typedef struct wefti_shm_port {
    alignas(128) wefti_shm_channel *channel;
    wefti_shm_ring *ring; /* its own */
    uint64_t free_before; /* no member looks at posts before this one */
    int32_t me;
    bool active;                   /* in its rank's list */
    uint64_t published, oldest;    /* posts in slots; those before `oldest` are finished */
    uint64_t hash;                 /* of all that are published */
    wefti_shm_post *first, **last; /* posted, no slot yet */
    wefti_shm_in_flight place[WEFTI_SHM_SLOTS];
    unsigned char *small; /* copies of small sources, one place for each slot */
    struct wefti_shm_port *next;
    wefti_shm_plan *plans; /* of its endpoints, and some that were: comm/shm/bind.c */
} wefti_shm_port;

struct wefti_shm_channel {
    wefti_shm_channel *next;
    uint64_t tag;
    int32_t members;
    int32_t *ranks;        /* of the communicator */
    int32_t *places;       /* the same members: places in this world */
    wefti_shm_ring *ring;  /* [members] */
    wefti_shm_port **port; /* [members]; NULL: no rank of this process, or nothing bound yet */
};

typedef struct wefti_shm_world wefti_shm_world;
typedef struct wefti_shm_rank wefti_shm_rank;

/* What else a rank has under way, which rings no bell, and which it carries on with while it waits.
 */
typedef struct wefti_shm_other_work {
    int32_t count;                                  /* 0: nothing, and the rest is not called */
    bool (*carry_on)(wefti_shm_rank *local);        /* true: something happened */
    void (*attend)(wefti_shm_rank *local, bool on); /* as in comm.h, and so is */
    void (*idle)(wefti_shm_rank *local, int64_t ns);
} wefti_shm_other_work;

struct wefti_shm_rank {
    wefti_comm comm;
    wefti_shm_world *world;
    int32_t place;          /* among the ranks of this world */
    wefti_shm_port *active; /* seats with posts under way */
    bool at_fault;          /* it was this rank that found a mismatch */
    wefti_shm_other_work other_work;
    _Atomic uint64_t further; /* how often it got on while it waited, */
    uint64_t further_seen;    /* when somebody last looked */
};

struct wefti_shm_world {
    int32_t size;
    int spin;
    wefti_eventcount_mode mode; /* light: waiting threads seldom sleep */
    wefti_shm_common *common;
    wefti_shm_area *area;        /* [size] */
    const int32_t *place_of;     /* the place of each rank of the communicator here; NULL: same */
    const int32_t *rank_of;      /* [size]: the other way round */
    int64_t patience_ns;         /* for ranks that touch memory in a broken world; 0: no end */
    _Atomic uint32_t generation; /* number of mendings */
    /* Zeroed memory at a cache line, kept until the end. open_rings: the rings of a channel, the
     * same for all members. show: memory that this process publishes to others. */
    weft_status (*open_rings)(wefti_shm_world *world, const wefti_transfer *t,
                              wefti_shm_ring **out);
    weft_status (*show)(wefti_shm_world *world, size_t bytes, void **out);
    /* Memory that all ranks reach, for as long as needed; NULL where all memory is such. */
    weft_status (*take)(wefti_shm_world *world, size_t bytes, void **out);
    void (*give)(wefti_shm_world *world, void *memory);
    /* Bytes of a source outside of that from which on others fetch them; 0: never, as a rank cannot
       read another's memory. */
    int64_t single_copy_bytes;
    /* Of the devices of this process that guard the arenas of other processes (comm/shm/guard.h);
     * NULL: none does. */
    const wefti_device_table *guarded;
    int32_t guests;       /* number of such devices */
    pthread_mutex_t lock; /* of all below, and of breaking in this process */
    wefti_arena *arena;
    wefti_shm_channel *bucket[WEFTI_SHM_BUCKETS];
};

typedef struct wefti_shm_endpoint {
    wefti_endpoint base;
    wefti_shm_rank *local;
    wefti_shm_port *port;
    wefti_shm_plan *plan;
    void *stage;         /* results of WEFTI_COMM_DEPTH posts, when the plan says so */
    uint32_t generation; /* of the world at the last post */
    uint32_t posted, waited;
    wefti_shm_post post[WEFTI_COMM_DEPTH];
    void *bounce[WEFTI_COMM_DEPTH]; /* taken when first needed */
    const void **source;            /* [members]: scratch of a move */
    void **destination;
    bool *streamed;        /* [members]: destinations of an all-reduce of shares */
    unsigned char *blocks; /* [members][WEFTI_SHM_BLOCK]: of sources that are pulled; or NULL */
} wefti_shm_endpoint;

/* What rank `place` calls p, in this process; NULL: out of reach. */
static inline void *wefti_shm_reach(const wefti_shm_world *world, int32_t place, const void *p) {
    const wefti_shm_area *area = &world->area[place];
    uintptr_t offset = (uintptr_t)p - area->begin;
    return offset < area->bytes ? (void *)(area->view + offset) : NULL;
}

/* --- comm/shm/bind.c --- */

/* The lock, the arena and the rules of waiting; `local` [own] are the ranks of this process. */
weft_status wefti_shm_world_begin(wefti_shm_world *world) WEFT_CHECKED;
void wefti_shm_world_end(wefti_shm_world *world);
void wefti_shm_port_reset(wefti_shm_port *port);
void *wefti_shm_alloc_lines(wefti_arena *arena, size_t bytes);
weft_status wefti_shm_bind(wefti_comm *comm, const wefti_transfer *transfer, wefti_endpoint **out);
void wefti_shm_unbind(wefti_endpoint *endpoint);
/* Room for copies of small sources. */
weft_status wefti_shm_keep_small(wefti_shm_world *world, wefti_shm_port *port) WEFT_CHECKED;

/* --- comm/shm/run.c --- */

enum {
    WEFTI_SHM_SPIN = 4000
}; /* pauses, some 0.1 ms: longer than a kernel's jitter, shorter
      than a scheduler's time slice */

weft_status wefti_shm_start(wefti_endpoint *endpoint, const void *source, void *destination);
weft_status wefti_shm_wait(wefti_endpoint *endpoint);
weft_status wefti_shm_test(wefti_endpoint *endpoint);
/* Carry on with all that is under way until *finished; `what` is waited for. */
weft_status wefti_shm_wait_until(wefti_shm_rank *local, const bool *finished, const char *what);
bool wefti_shm_progress(wefti_shm_rank *local);
bool wefti_shm_moves(wefti_shm_rank *local); /* as `moves` of comm/comm.h */

/* --- comm/shm/move.c --- */

typedef enum wefti_shm_outcome {
    WEFTI_SHM_NOTHING, /* others are not that far, or the world is broken */
    WEFTI_SHM_FURTHER, /* others can go on, and this member has to come back */
    WEFTI_SHM_MOVED    /* nothing is left to do */
} wefti_shm_outcome;

wefti_shm_outcome wefti_shm_move(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number);
/* Where the result of a post lies while others read the source that it replaces; NULL: it needs no
 * such place. */
void *wefti_shm_result_stage(const wefti_shm_post *post);

/* --- comm/shm/break.c --- */

/* All waits fail from now on: as break_off of comm/comm.h. */
void wefti_shm_break(wefti_shm_rank *local, int failed, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline bool wefti_shm_broken(const wefti_shm_rank *local) {
    return atomic_load(&local->world->common->broken) != 0;
}
/* In a broken world: returns once no other rank touches lent memory, and none will. */
void wefti_shm_quiesce(wefti_shm_rank *local);
/* The same, and the error of it. */
weft_status wefti_shm_fail(wefti_shm_rank *local);

/* --- comm/shm/single_copy.c: memory of other processes that is not mapped here --- */

/* Give a post what others can see where they do not reach its source or, in an all-reduce, its
 * destination, and cannot or should not pull. */
weft_status wefti_shm_make_readable(wefti_shm_endpoint *endpoint,
                                    wefti_shm_post *post) WEFT_CHECKED;
/* `bytes` of rank `place` of the world, from its address p. False, after breaking the world: cannot
 * be read. */
bool wefti_shm_read_peer(wefti_shm_rank *local, int32_t place, const void *p, void *to,
                         int64_t bytes);
/* A move with sources that this process does not map. Such a move has no loops. */
bool wefti_shm_read_peer_move(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number,
                              const wefti_copy_move *move, void *destination);

/* --- comm/shm/staged_reduce.c: all-reduces of shares in such memory --- */

weft_status wefti_shm_stage_reduce(wefti_shm_endpoint *endpoint, wefti_shm_post *post) WEFT_CHECKED;
/* Publishes the number of staged chunks, in a slot that is not posted yet. */
void wefti_shm_publish_staged(wefti_shm_slot *slot, const wefti_shm_post *post, uint64_t number);
wefti_shm_outcome wefti_shm_move_staged_reduce(wefti_shm_rank *local, wefti_shm_port *port,
                                               uint64_t number);

/* --- comm/shm/staged_gather.c: all-gathers of such memory --- */

/* Whether members with unreachable sources use staging buffers. */
bool wefti_shm_stages_gather(const wefti_shm_world *world, const wefti_shm_plan *plan);
weft_status wefti_shm_stage_gather(wefti_shm_endpoint *endpoint, wefti_shm_post *post) WEFT_CHECKED;
/* Whether a member has boxes. Its partners are there. */
bool wefti_shm_is_staged_gather(const wefti_shm_rank *local, wefti_shm_port *port, uint64_t number);
wefti_shm_outcome wefti_shm_move_staged_gather(wefti_shm_rank *local, wefti_shm_port *port,
                                               uint64_t number);

/* --- comm/shm/guard.c: device memory of other processes --- */

/* `bytes` at p, in this process, of rank `place`. If they are guarded, they are exposed from true
 * to wefti_shm_conceal. False: there is nothing to expose, or the world is broken. */
bool wefti_shm_expose(wefti_shm_rank *local, int32_t place, const void *p, int64_t bytes);
void wefti_shm_conceal(const wefti_shm_rank *local, const void *p, int64_t bytes);
/* wefti_shm_move, with what it touches of other processes exposed. */
wefti_shm_outcome wefti_shm_move_guarded(wefti_shm_rank *local, wefti_shm_port *port,
                                         uint64_t number);

/* --- all of them --- */

/* A word that counts finished chunks of post `number`. Words of later posts are greater. */
static inline uint64_t wefti_shm_mark(uint64_t number, int64_t chunks) {
    return number << WEFTI_SHM_CHUNK_BITS | (uint64_t)chunks;
}
/* The chunks that a word says are done. */
static inline int64_t wefti_shm_marked(uint64_t word, uint64_t number) {
    uint64_t none = wefti_shm_mark(number, 0);
    return word > none ? (int64_t)(word - none) : 0;
}
static inline wefti_shm_in_flight *wefti_shm_in_flight_of(wefti_shm_port *port, uint64_t number) {
    return &port->place[number % WEFTI_SHM_SLOTS];
}
/* Not in the order of numbers: a processor that sees neighbouring lines read one after the other
 * fetches the next ones too, which their owner is about to write. */
static inline wefti_shm_slot *wefti_shm_slot_in(wefti_shm_ring *ring, uint64_t number) {
    return &ring->slot[5 * number % WEFTI_SHM_SLOTS];
}
static inline wefti_shm_slot *wefti_shm_slot_of(const wefti_shm_channel *channel, int32_t member,
                                                uint64_t number) {
    return wefti_shm_slot_in(&channel->ring[member], number);
}
/* What a member has posted, here; NULL: out of reach. */
static inline void *wefti_shm_source(const wefti_shm_rank *local, wefti_shm_port *port,
                                     int32_t member, uint64_t number) {
    if (member == port->me) return (void *)(uintptr_t)wefti_shm_in_flight_of(port, number)->source;
    wefti_shm_slot *slot = wefti_shm_slot_of(port->channel, member, number);
    if (!slot->source) return slot->inside;
    return wefti_shm_reach(local->world, port->channel->places[member], slot->source);
}
static inline void *wefti_shm_destination(const wefti_shm_rank *local, wefti_shm_port *port,
                                          int32_t member, uint64_t number) {
    if (member == port->me) return wefti_shm_in_flight_of(port, number)->destination;
    return wefti_shm_reach(local->world, port->channel->places[member],
                           wefti_shm_slot_of(port->channel, member, number)->destination);
}

#endif
