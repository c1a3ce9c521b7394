/* Declarations shared by the files behind weft/collective.h.
 *
 * A call is checked (check.c) and turned into posts of bound transfers: one post for a true
 * collective, one post per partner for an exchange (exchange.c). halo_exchange.c packs a halo
 * exchange into blocks first. The call then waits for its posts. Binding costs far more than
 * posting, so bound transfers are kept and found again by key (bind.c). */
#ifndef WEFTI_COLLECTIVE_PARTS_H
#define WEFTI_COLLECTIVE_PARTS_H

#include "base/memory.h"
#include "comm/world.h"
#include "weft/collective.h"

#define WEFTI_CALL_LIST(X)                                                                         \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(REDUCE, "reduce")                                                                            \
    X(GATHER, "gather")                                                                            \
    X(SCATTER, "scatter")                                                                          \
    X(BARRIER, "barrier")                                                                          \
    X(ALL_TO_ALL_V, "all_to_all_v")                                                                \
    X(NEIGHBOR_EXCHANGE, "neighbor_exchange")                                                      \
    X(HALO_EXCHANGE, "halo_exchange")                                                              \
    X(GRID_EXCHANGE, "grid_exchange")                                                              \
    X(SEND, "send")                                                                                \
    X(RECV, "recv")

typedef enum wefti_call_kind {
#define WEFTI_CALL_ROW(name, text) WEFTI_CALL_##name,
    WEFTI_CALL_LIST(WEFTI_CALL_ROW)
#undef WEFTI_CALL_ROW
} wefti_call_kind;

enum { WEFTI_GROUP_NAME = 80 };
struct weft_group {
    wefti_collectives *of; /* NULL: the world was left */
    struct wefti_ranks_seen *seen;
    weft_group *next;   /* of the same world */
    int32_t *ranks;     /* world ranks, in the order of members */
    int32_t *member;    /* members, by ascending world rank: transfers have that order */
    int32_t count, me;  /* me: -1, no member */
    int32_t references; /* the owner's, and one for each request */
    uint32_t instance;  /* number among the groups of the same ranks */
    uint64_t serial;    /* among the groups that this rank has made */
    uint64_t identity;  /* hash of ranks and instance: in the tags of messages between two */
    uint64_t calls;     /* made by this member */
    uint64_t common;    /* calls that all members make: */
    uint64_t digest;    /* what these were */
    char name[WEFTI_GROUP_NAME]; /* "all 4 ranks", "group [0, 2]" */
};

typedef struct wefti_call {
    wefti_call_kind kind;
    weft_dtype dtype;
    weft_reduction reduction;
    int root; /* or the partner */
    int tag;
    weft_group *group;
    const void *source;
    void *destination;
    int64_t count;
    /* Exchanges: partners (NULL: all members in order) and the size of each block. */
    const int *send_ranks, *receive_ranks;
    const int64_t *send_counts, *receive_counts;
    int sends, receives;
    /* Halos: of [planes, height, width], or of a grid with `count` planes. */
    const int64_t *shape;
    const weft_halo *send, *receive;
    const weft_grid *grid;
} wefti_call;

typedef struct wefti_halo_work wefti_halo_work;

/* The key of a transfer. Two calls with equal keys use the same bound transfer. No padding. */
typedef struct wefti_bound_key {
    uint64_t tag, group; /* group: its serial number */
    int64_t count, back; /* back: what comes the other way in an exchange */
    int32_t kind, dtype, reduction, root;
    int32_t low, high; /* world ranks of two members; -1: the group's */
} wefti_bound_key;

/* A bound transfer. At most WEFTI_COMM_DEPTH posts are under way: more need another one. */
typedef struct wefti_bound {
    struct wefti_bound *next; /* of the same bucket */
    wefti_endpoint *endpoint;
    wefti_bound_key key;
    uint64_t group;        /* its identity */
    uint64_t posted, done; /* posts; those that were waited for */
    uint64_t used;   /* time of the last use: the least recently used transfer is dropped first */
    int32_t holders; /* requests that have a post of it */
} wefti_bound;

enum { WEFTI_BOUND_BUCKETS = 128, WEFTI_BOUND_KEPT = 256 };

/* Groups of the same ranks, in whatever order, are told apart by their number. */
typedef struct wefti_ranks_seen {
    struct wefti_ranks_seen *next;
    int32_t count;
    uint32_t instances;
    uint64_t common, digest;              /* of the groups that are no more */
    int32_t kind, dtype, reduction, root; /* of the last call of all of them */
    int64_t elements;
    int32_t ranks[]; /* ascending */
} wefti_ranks_seen;

/* That went one way between this rank and another, in exchanges of all groups. */
typedef struct wefti_blocks {
    uint64_t count, digest; /* empty ones do not count */
    int64_t elements;       /* of the last, */
    int32_t dtype;          /* of this */
} wefti_blocks;

typedef struct wefti_messages { /* the same, of sends and receives; digest: of groups and tags */
    uint64_t count, digest;
    int64_t elements;
    int32_t dtype, tag;
} wefti_messages;

struct wefti_collectives {
    weft_world *world;
    weft_group *everyone, *groups; /* groups: all, everyone among them */
    wefti_ranks_seen *seen;
    wefti_blocks *blocks;     /* [ranks][received, sent]; NULL until the first exchange */
    wefti_messages *messages; /* [ranks][received, sent]; NULL until the first one */
    wefti_bound *bucket[WEFTI_BOUND_BUCKETS];
    int32_t kept;
    uint64_t clock, made;  /* made: groups, ever */
    unsigned char barrier; /* the value that barriers reduce; nobody reads it */
};

typedef struct wefti_request_part {
    wefti_bound *bound;
    uint64_t number; /* of the post */
} wefti_request_part;

struct weft_request {
    weft_group *group;
    wefti_call_kind kind;
    int partner;     /* send and recv: member; -1 */
    uint64_t number; /* of the call in its group */
    int parts, done, capacity;
    wefti_request_part *part, one;
    wefti_halo_work *halo; /* unpacks the blocks at the end; NULL */
};

/* collective_group.c. The collectives of a world are made when first asked for. NULL: everyone. */
weft_status wefti_collectives_of(weft_world *world, wefti_collectives **out) WEFT_CHECKED;
weft_status wefti_group_find(weft_world *world, weft_group *group, weft_group **out) WEFT_CHECKED;
void wefti_group_release(weft_group *group);
uint64_t wefti_group_mix(uint64_t hash, uint64_t value);

/* check.c: checks arguments, and derives the sizes of the buffers. */
const char *wefti_call_text(wefti_call_kind kind);
bool wefti_call_has_root(wefti_call_kind kind);
weft_status wefti_call_check(const wefti_call *call) WEFT_CHECKED;
/* Checks that the buffers hold this many elements and do not overlap. */
weft_status wefti_call_check_buffers(const wefti_call *call, int64_t source,
                                     int64_t destination) WEFT_CHECKED;
/* Elements of source and destination that this member has and wants. */
void wefti_call_extent(const wefti_call *call, int64_t *out_source, int64_t *out_destination);

/* The name of a group of `count` ranks in a world of `world` ranks. */
void wefti_group_name(const int32_t *ranks, int32_t count, int32_t world,
                      char out[WEFTI_GROUP_NAME]);

/* record.c: makes room for one more record. A post cannot be taken back, so the room must be there
 * before the post. The call is recorded after the post: a call that failed before it may be
 * repeated. */
weft_status wefti_record_room(const wefti_call *call) WEFT_CHECKED;
void wefti_record_call(const wefti_call *call);
void wefti_record_end(const weft_group *group);

/* collective_bind.c: a bound transfer with room for a post. */
weft_status wefti_bound_get(wefti_collectives *c, const wefti_call *call,
                            const wefti_bound_key *key, wefti_bound **out) WEFT_CHECKED;
/* Drops the transfers of one group that no request uses; NULL: of all groups. */
void wefti_bound_drop(wefti_collectives *c, const weft_group *group);

/* collective.c */
weft_status wefti_request_post(weft_request *r, const wefti_call *call, const wefti_bound_key *key,
                               const void *source, void *destination) WEFT_CHECKED;
/* collective_exchange.c: all posts of an all_to_all_v or neighbor_exchange. */
weft_status wefti_exchange_post(weft_request *r, const wefti_call *call) WEFT_CHECKED;

/* halo_exchange.c: a halo_exchange or grid_exchange as a neighbor_exchange of packed blocks, and
 * the unpacking after it. Free the work with wefti_free. */
weft_status wefti_halo_begin(wefti_call *call, wefti_halo_work **out) WEFT_CHECKED;
void wefti_halo_end(const wefti_halo_work *work);

/* What a member sends itself is what it receives from itself. */
weft_status wefti_exchange_check_own(const wefti_call *call) WEFT_CHECKED;

/* Tags. The highest bit separates collectives on buffers from the transfers of programs. Three
 * bits hold the class, the rest the owner. Messages of one tag go in one direction, so that
 * messages that two members send to each other at the same time cannot match. */
typedef enum wefti_tag_class {
    WEFTI_TAG_GROUP,
    WEFTI_TAG_PAIR,
    WEFTI_TAG_SEND_UP, /* to a higher rank */
    WEFTI_TAG_SEND_DOWN,
    WEFTI_TAG_NEIGHBOR_UP,
    WEFTI_TAG_NEIGHBOR_DOWN
} wefti_tag_class;
static inline uint64_t wefti_collective_tag(wefti_tag_class what, uint64_t whose) {
    return (uint64_t)1 << 63 | (uint64_t)what << 60 | whose >> 4;
}

#endif
