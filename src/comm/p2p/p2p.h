/* The state behind comm/p2p/p2p.c: the engine that carries out communication schedules by
 * point-to-point messages.
 *
 * Between two ranks there is one stream in each direction: messages with tag 0. Each holds a
 * header and, if the data is short, the data. A rank keeps a receive posted for the stream of each
 * rank that it shares a group with. Longer data follows its header as a message of its own, with a
 * tag that the header names. The receiver asks for that data only after it has matched the header
 * with a post of its own. So no mismatched transfer can write memory, and an error names the texts
 * of both sides.
 *
 * A channel belongs to a tag and a group. Post number n of a member matches the posts number n of
 * the others. Headers that arrive before their post wait. Credit limits their number: a member may
 * have sent for at most WEFTI_P2P_AHEAD more posts than the receiver has finished. */
#ifndef WEFTI_P2P_H
#define WEFTI_P2P_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm.h"
#include "comm/schedule/schedule.h"
#include "weft/transport.h"

enum {
    WEFTI_P2P_AHEAD = 8,
    WEFTI_P2P_RECENT = 16, /* finished posts of a channel that are remembered */
    WEFTI_P2P_TEXT = 96,
    WEFTI_P2P_MESSAGE_TEXT = 1024,
    WEFTI_P2P_BUCKETS = 256,
    WEFTI_P2P_RESERVE = 256 /* buffers that are kept for sending, at most */
};

typedef enum wefti_p2p_kind {
    WEFTI_P2P_WITH_DATA = 0x77660001, /* the data, if any, is behind the text */
    WEFTI_P2P_DATA_FOLLOWS,
    WEFTI_P2P_QUERY,  /* a member waits for another's post and has nothing to send itself */
    WEFTI_P2P_CREDIT, /* for `consumed` alone */
    WEFTI_P2P_ABORT   /* the text says why */
} wefti_p2p_kind;

typedef struct wefti_p2p_header {
    uint32_t kind;
    uint32_t text;            /* bytes of it, behind the header */
    uint64_t channel, number; /* of the post in it; of ABORT, the rank to blame */
    uint64_t hash;            /* of all plans of the channel up to this */
    uint64_t bytes;           /* of the data */
    uint32_t message;         /* its number in the plan */
    uint32_t tag;             /* of the data that follows */
    uint64_t consumed;        /* posts of the channel that took something from the receiver */
} wefti_p2p_header;

enum { WEFTI_P2P_ROOM = sizeof(wefti_p2p_header) + WEFTI_P2P_MESSAGE_TEXT + WEFTI_COMMSCHED_SMALL };

typedef struct wefti_p2p_post wefti_p2p_post;

/* A message of a stream, and its request. */
typedef struct wefti_p2p_buffer {
    struct wefti_p2p_buffer *next;
    wefti_p2p_post *post; /* that counts it as unsent; NULL: none does */
    int32_t rank;         /* the other side */
    size_t bytes;
    unsigned char *request;
    unsigned char data[WEFTI_P2P_ROOM];
} wefti_p2p_buffer;

typedef struct wefti_p2p_peer {
    int32_t next;     /* rank of the next one that is known; -1: none */
    bool known, dead; /* its stream is listened to; it has failed */
    int32_t partner;  /* posts under way that it has a part in */
    uint32_t tag;     /* of the last data sent to it */
    wefti_p2p_buffer *incoming;
} wefti_p2p_peer;

/* What one member has of another in a channel: posts, for which it has ... */
typedef struct wefti_p2p_credit {
    uint64_t sent, acknowledged; /* sent to it, and heard that it has consumed */
    uint64_t consumed, reported; /* taken from it, and told it so */
} wefti_p2p_credit;

typedef struct wefti_p2p_recent {
    uint64_t hash, call;
    char text[WEFTI_P2P_TEXT];
} wefti_p2p_recent;

/* Of a message of a post. */
typedef enum wefti_p2p_state {
    WEFTI_P2P_NOTHING,
    WEFTI_P2P_HELD, /* is there, and waits for a gate */
    WEFTI_P2P_OPEN, /* its data is under way */
    WEFTI_P2P_DONE
} wefti_p2p_state;

typedef struct wefti_p2p_channel {
    struct wefti_p2p_channel *next;      /* in its bucket */
    struct wefti_p2p_channel *next_busy; /* among those with posts */
    bool busy;
    uint64_t id;
    int32_t members;
    int32_t *ranks;
    wefti_p2p_credit *credit;                  /* [members] */
    uint64_t posted, begun;                    /* posts so far */
    uint64_t hash;                             /* of all plans that have begun */
    wefti_p2p_post *first, **last;             /* posted, not begun */
    wefti_p2p_post *active;                    /* begun, not finished, oldest first */
    wefti_p2p_buffer *early;                   /* messages of posts not begun */
    wefti_p2p_recent recent[WEFTI_P2P_RECENT]; /* of begun posts, by number */
} wefti_p2p_channel;

typedef struct wefti_p2p_world wefti_p2p_world;
typedef struct wefti_p2p_endpoint wefti_p2p_endpoint;

struct wefti_p2p_post {
    wefti_p2p_post *next;
    wefti_p2p_endpoint *endpoint;
    const void *source;
    void *destination;
    uint64_t number, hash; /* hash: of all up to this; once it has begun */
    uint64_t call;         /* of its group, as the caller counts; 0 */
    bool finished, asked;
    int64_t round, sent, received; /* begun; sends issued; receives done, in a row */
    int32_t open;                  /* requests under way, */
    int32_t open_sends;            /* the sends among them */
    int32_t held;                  /* messages that wait for a gate */
    int32_t unsent;                /* copied, but the transport is not done with them */
    unsigned char *stage;
    unsigned char *send_state, *receive_state; /* [sends], [receives] */
    wefti_p2p_buffer **early;                  /* [receives]: messages that wait for a gate */
    int64_t *open_message;                     /* [requests]: sends, and behind them receives */
    unsigned char *request;                    /* [requests] of the transport's size */
};

struct wefti_p2p_endpoint {
    wefti_endpoint base;
    wefti_p2p_world *world;
    wefti_p2p_channel *channel;
    wefti_commsched *plan;
    wefti_p2p_post post[WEFTI_COMM_DEPTH];
    uint32_t posted, waited;
    void *memory; /* of the posts' lists and stages */
};

struct wefti_p2p_world {
    wefti_comm comm;
    wefti_comm_engine engine; /* with the transport's name */
    weft_transport transport;
    size_t request_bytes; /* rounded up */
    wefti_commsched_costs costs;
    wefti_commsched_algorithm forced;
    const int32_t *host;  /* [size] of each rank; NULL: not known */
    pthread_mutex_t lock; /* of the transport and of all below */
    wefti_arena *arena;   /* channels */
    wefti_p2p_peer *peer; /* [size] */
    int32_t known, turn;  /* the first peer that is listened to; for those seldom looked at */
    wefti_p2p_channel *bucket[WEFTI_P2P_BUCKETS];
    wefti_p2p_channel *busy;
    wefti_p2p_buffer *strangers; /* messages of channels that are not bound yet */
    wefti_p2p_buffer *spare;     /* for sending and receiving */
    int64_t spares, reserved;    /* in it; kept there beyond what receives need */
    wefti_p2p_buffer *outgoing;
    int64_t under_way;         /* posts */
    _Atomic uint64_t further;  /* how often something under way has gone on, */
    uint64_t further_seen;     /* when somebody last looked */
    uint64_t moved;            /* of the transport, when it was last looked at */
    _Atomic int32_t receiving; /* long messages whose sender has started; operations that run */
    bool owes;                 /* credits that there was no buffer for */
    int64_t losing_ns;         /* since when a rank is lost that is needed; 0: none is */
    int32_t lost;              /* that rank, */
    char loss[WEFTI_P2P_MESSAGE_TEXT / 2]; /* and why */
    bool at_fault;                         /* it was this rank that found a mismatch */
    bool quiet;                            /* broken, and nothing is under way any more */
    /* Breaking, from any thread. */
    pthread_mutex_t message_lock;
    _Atomic int broken;
    int32_t failed; /* the rank to blame */
    char message[WEFTI_P2P_MESSAGE_TEXT];
    /* The thread that carries on while nobody waits; only for transports that allow it. */
    bool has_thread, sleeps, ends;
    _Atomic int waiting;
    pthread_t thread;
    pthread_cond_t wake;
};

static inline void *wefti_p2p_pointer(const wefti_p2p_post *post, wefti_commsched_place place) {
    char *base = place.array == WEFTI_COMMSCHED_STAGE    ? (char *)post->stage
                 : place.array == WEFTI_COMMSCHED_SOURCE ? (char *)(uintptr_t)post->source
                                                         : (char *)post->destination;
    return base + place.offset;
}

/* All below with the lock held, from a thread that may use the transport. */

/* comm/p2p/stream.c: streams. */
weft_status wefti_p2p_listen_to(wefti_p2p_world *w, int32_t rank) WEFT_CHECKED; /* listens to it */
void wefti_p2p_give_buffer(wefti_p2p_world *w, wefti_p2p_buffer *buffer);
weft_status wefti_p2p_reserve(wefti_p2p_world *w, int64_t buffers) WEFT_CHECKED;
/* Header, text and data to a rank; false: no buffer is free, or the world is broken. */
bool wefti_p2p_send_header(wefti_p2p_world *w, int32_t rank, const wefti_p2p_header *header,
                           const char *text, const void *data);
bool wefti_p2p_progress_outgoing(wefti_p2p_world *w);
bool wefti_p2p_progress_streams(wefti_p2p_world *w); /* whether anything happened */
/* A rank cannot be reached: if anything under way still needs it, the world breaks soon. Takes this
 * thread's error message. */
void wefti_p2p_peer_failed(wefti_p2p_world *w, int32_t rank);
void wefti_p2p_check_lost_peers(wefti_p2p_world *w);

/* comm/p2p/match.c: matches messages with posts. */
void wefti_p2p_match(wefti_p2p_world *w, int32_t rank, wefti_p2p_buffer *buffer);
void wefti_p2p_match_early(wefti_p2p_world *w, wefti_p2p_channel *channel, wefti_p2p_post *post);
/* A gate may have opened. */
void wefti_p2p_release(wefti_p2p_world *w, wefti_p2p_post *post);
wefti_p2p_channel *wefti_p2p_channel_by_id(wefti_p2p_world *w, uint64_t id);

/* comm/p2p/run.c: posts. */
void wefti_p2p_post_begin(wefti_p2p_post *post, const void *source, void *destination);
void wefti_p2p_append(wefti_p2p_world *w, wefti_p2p_channel *channel, wefti_p2p_post *post);
bool wefti_p2p_progress(wefti_p2p_world *w);
/* After a long time without progress: asks the ranks that this rank only waits for which posts
 * they have made. */
void wefti_p2p_query_peers(wefti_p2p_world *w);

/* comm/p2p/break.c */
/* From any thread, with or without the lock. As break_off of comm/comm.h. */
void wefti_p2p_break(wefti_p2p_world *w, int failed, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Broken: gives up all that is under way, and tells the others. */
void wefti_p2p_abort(wefti_p2p_world *w);
weft_status wefti_p2p_fail(wefti_p2p_world *w);
void wefti_p2p_wake(wefti_p2p_world *w);
weft_status wefti_p2p_start_thread(wefti_p2p_world *w) WEFT_CHECKED;
void wefti_p2p_stop_thread(wefti_p2p_world *w);

/* comm/p2p/wait.c */
weft_status wefti_p2p_post_one(wefti_endpoint *endpoint, const void *source, void *destination);
weft_status wefti_p2p_wait(wefti_endpoint *endpoint);
weft_status wefti_p2p_test(wefti_endpoint *endpoint);
void wefti_p2p_attend(wefti_comm *comm, bool on);
void wefti_p2p_idle(wefti_comm *comm, int64_t ns);

/* For tests and measurements: transfers bound from now on use this algorithm where it is possible.
 * The same on all ranks. */
void wefti_p2p_force(wefti_comm *comm, wefti_commsched_algorithm algorithm);
wefti_commsched_algorithm wefti_p2p_chosen(const wefti_endpoint *endpoint);

#endif
