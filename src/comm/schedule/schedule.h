/* A communication schedule: one member's part in a transfer by messages. It is computed once, when
 * the transfer is bound, and consists of rounds of sends, receives and local operations.
 *
 * A send starts with its round. A receive accepts its message whenever it arrives, even rounds
 * early, unless its memory is still in use for something else: gates mark that. When all receives
 * of a round are done, the round's operations run, and the next round begins. Messages of a pair
 * are numbered in each direction in the order in which the schedule lists them. Both members'
 * schedules list the same messages. */
#ifndef WEFTI_SCHEDULE_H
#define WEFTI_SCHEDULE_H

#include "base/memory.h"
#include "comm/reduce/reduce.h"
#include "topo/links.h"

#define WEFTI_COMMSCHED_LIST(X)                                                                    \
    X(CHOSEN, "chosen") /* by cost */                                                              \
    X(DIRECT, "direct") /* each part from whoever has it */                                        \
    X(BRUCK, "bruck")   /* all-gather in log2(members) rounds, reduced by each for itself */       \
    X(RING, "ring")     /* all-gather, from neighbour to neighbour */                              \
    X(SHARES, "shares") /* each reduces one share and hands it on */                               \
    X(CHAIN, "chain")   /* chunks go along the members, which add theirs */                        \
    X(TREE, "tree")     /* each member that has the data sends it on */                            \
    X(HOSTS, "hosts")   /* within hosts, and between them as few bytes as possible */

typedef enum wefti_commsched_algorithm {
#define WEFTI_COMMSCHED_ROW(name, text) WEFTI_COMMSCHED_##name,
    WEFTI_COMMSCHED_LIST(WEFTI_COMMSCHED_ROW)
#undef WEFTI_COMMSCHED_ROW
        WEFTI_COMMSCHED_ALGORITHMS
} wefti_commsched_algorithm;

const char *wefti_commsched_algorithm_text(wefti_commsched_algorithm algorithm);

/* What messages cost, equal on all members. */
typedef struct wefti_commsched_costs {
    double latency_s;          /* from one process to another of another host */
    double message_s;          /* work of one side for one message */
    double bytes_per_s;        /* into or out of one process, and of all of one host */
    double crowd;              /* share of that lost for each further process that sends to one */
    double reduce_bytes_per_s; /* of a source */
    double intranode_latency_s, intranode_bytes_per_s; /* of messages within a host */
} wefti_commsched_costs;
wefti_commsched_costs wefti_commsched_default_costs(void);
/* As far as links were measured, else as above. `shares`: messages within a host go through its
 * memory. */
wefti_commsched_costs wefti_commsched_costs_of(const wefti_links *links, bool shares);

enum {
    WEFTI_COMMSCHED_SMALL = 8 << 10,   /* bytes of a message that goes with its header, at most */
    WEFTI_COMMSCHED_CHUNK = 512 << 10, /* bytes of a link of a chain, and of a segment of a share */
    WEFTI_COMMSCHED_MESSAGE = 4 << 20  /* no message is longer: UCX is slow with 64 MiB at once */
};

typedef enum wefti_commsched_array {
    WEFTI_COMMSCHED_SOURCE,
    WEFTI_COMMSCHED_DESTINATION,
    WEFTI_COMMSCHED_STAGE
} wefti_commsched_array;

typedef struct wefti_commsched_place {
    wefti_commsched_array array;
    int64_t offset; /* bytes */
} wefti_commsched_place;

typedef struct wefti_commsched_message {
    int32_t partner; /* of the plan */
    int32_t number;  /* among the messages of the pair in this direction */
    int32_t round;   /* a send: the round that it starts with; a receive: the round that needs it at
                        its end */
    int32_t gate_round, gate_send; /* a receive waits until the round has begun, and until the send
                                      is done; -1: no send */
    int32_t request;               /* of the post's; -1: small */
    wefti_commsched_place at;
    int64_t bytes;
} wefti_commsched_message;

typedef struct wefti_commsched_op {
    wefti_copy_move move;
    wefti_commsched_place to;
    const wefti_commsched_place *from; /* [move.sources] */
} wefti_commsched_op;

typedef struct wefti_commsched_round {
    int64_t sends, receives, ops; /* ends of its parts of the lists */
    bool sends_first;             /* before its operations all sends so far are done */
} wefti_commsched_round;

typedef struct wefti_commsched_partner {
    int32_t rank, member; /* in the world, in the group */
    int32_t sends, receives;
    int64_t *receive; /* [receives]: where in the list each number is */
} wefti_commsched_partner;

typedef struct wefti_commsched {
    wefti_arena *arena;
    wefti_commsched_algorithm algorithm;
    uint64_t hash;    /* of transfer, name and algorithm: equal for all members */
    const char *text; /* "all_reduce of h.3.attn.c_proj (f32, 768 elements)" */
    int64_t stage;    /* bytes */
    int32_t requests; /* messages that are not small */
    wefti_commsched_message *send, *receive;
    wefti_commsched_op *op;
    wefti_commsched_round *round;
    wefti_commsched_partner *partner; /* by rank */
    int64_t sends, receives, ops, rounds, partners;
    int64_t send_capacity, receive_capacity, op_capacity, round_capacity;
} wefti_commsched;

/* Of a legal transfer (wefti_transfer_check). `host` of each rank of the world, NULL: each is a
 * host of its own. `forced` is taken where it is possible. */
weft_status wefti_commsched_create(const wefti_transfer *t, const wefti_commsched_costs *costs,
                                   const int32_t *host, wefti_commsched_algorithm forced,
                                   wefti_commsched **out) WEFT_CHECKED;
void wefti_commsched_destroy(wefti_commsched *plan);
/* The partner that is this rank; NULL: none is. */
wefti_commsched_partner *wefti_commsched_find_partner(const wefti_commsched *plan, int32_t rank);

#endif
