/* Authenticated messages between processes over TCP, encrypted or not: docs/design/data-plane.md.
 * Internal to comm/transport. */
#ifndef WEFTI_MAC_H
#define WEFTI_MAC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/connection/connection.h"
#include "comm/transport/transport.h"

enum {
    WEFTI_MAC_EAGER = 64 << 10, /* at most, of a message that is not announced */
    WEFTI_MAC_STREAMS = 16      /* of a pair, at most */
};

/* --- the state of a transport --- */

typedef enum wefti_mac_kind {
    WEFTI_MAC_DATA = 1, /* a whole message; size: its bytes */
    WEFTI_MAC_ANNOUNCE, /* size: of the message; the body is its id */
    WEFTI_MAC_READY,    /* tag: the id */
    WEFTI_MAC_LEAVE,
    WEFTI_MAC_PART /* of an announced message; tag: its id; size: where in it the body belongs */
} wefti_mac_kind;

typedef struct wefti_mac_request {
    struct wefti_mac_request *next;
    int32_t peer;
    bool receives, announced;
    _Atomic bool done; /* nothing else changes after it */
    weft_status status;
    uint64_t tag, id; /* id: of an announced message */
    const unsigned char *source;
    unsigned char *destination;
    size_t bytes, room; /* of the message; of the memory */
    uint64_t turn;      /* of the last test */
    /* Of an announced message, with the lock of its parts. Bytes that belong to parts which have
     * begun, and to whole ones; threads that use the memory now. */
    size_t begun, at;
    int users;
} wefti_mac_request;

typedef struct wefti_mac_list {
    wefti_mac_request *first, **last;
} wefti_mac_list;

/* A message without a receive: its data, or its announcement. */
typedef struct wefti_mac_early {
    struct wefti_mac_early *next;
    uint64_t tag, id;
    size_t bytes;
    bool announced;
    unsigned char data[];
} wefti_mac_early;

typedef struct wefti_mac_control { /* READY or LEAVE, to be sent */
    struct wefti_mac_control *next;
    wefti_mac_kind kind;
    uint64_t tag;
} wefti_mac_control;

typedef struct wefti_mac_peer wefti_mac_peer;

/* A stream of a pair: one connection. One thread uses it: the caller's uses stream 0, a worker each
 * other one. Where that thread is a worker, conn.fd changes with the lock of parts. */
typedef struct wefti_mac_stream {
    wefti_conn conn;
    int32_t number;
    wefti_mac_peer *peer;
    uint64_t moved;           /* counts what came or went */
    unsigned char id_body[8]; /* of the frame that is being written; */
    bool part;                /* it is a part of `of`; then these change with the lock of parts: */
    wefti_mac_request *of;    /* the request that it belongs to; NULL: none */
    bool cut;                 /* that request was given up in the middle of the frame */
    /* Of the form `tls`: the part that is being read. left: bytes that have not come; 0: none. */
    uint64_t body_id;
    size_t body_at, body_left;
} wefti_mac_stream;

typedef struct wefti_mac_parts wefti_mac_parts;

struct wefti_mac_peer {
    wefti_mac_parts *parts;
    int32_t streams;          /* of this pair; 0: the rank itself */
    wefti_mac_stream *stream; /* [streams] */
    bool lost;                /* nothing comes or goes any more */
    bool left;                /* it has said LEAVE */
    char why[160];
    wefti_mac_control *control, **control_last;
    wefti_mac_list sending;   /* short ones, and those to be announced, in order */
    wefti_mac_list announced; /* sends that wait for READY */
    wefti_mac_list wanted;    /* receives without a message */
    wefti_mac_early *early, **early_last;
    uint64_t next_id;
    /* With the lock of parts: */
    wefti_mac_list going;  /* announced messages that the other side has asked for */
    wefti_mac_list coming; /* receives of announced messages */
    wefti_mac_peer *next_busy;
    bool busy;       /* among those with parts for workers */
    char fault[128]; /* of a worker's stream; "": none */
};

/* --- mac_frames.c: lists of requests; what received frames do --- */

void wefti_mac_append(wefti_mac_list *l, wefti_mac_request *r);
bool wefti_mac_drop(wefti_mac_list *l, wefti_mac_request *r); /* false: it was not there */
static inline void wefti_mac_finish(wefti_mac_request *r, weft_status status) {
    r->status = status;
    atomic_store_explicit(&r->done, true, memory_order_release);
}
void wefti_mac_peer_begin(wefti_mac_peer *p, wefti_mac_parts *parts);
weft_status wefti_mac_peer_open(wefti_mac_peer *p, int32_t streams) WEFT_CHECKED;
void wefti_mac_peer_free(wefti_mac_peer *p);
weft_status wefti_mac_add_control(wefti_mac_peer *p, wefti_mac_kind kind,
                                  uint64_t tag) WEFT_CHECKED;
/* All whole frames that were received. Streams but the first carry parts and nothing else. */
weft_status wefti_mac_hear(wefti_mac_stream *c) WEFT_CHECKED;
/* While c->body_left > 0: where the next bytes of that body go, at most *out_room. It is the memory
 * of the receive, or memory that nothing reads if the receive was cancelled. The memory stays until
 * wefti_mac_body_came, which says how many bytes came there. */
weft_status wefti_mac_body_place(wefti_mac_stream *c, unsigned char **out, size_t *out_room,
                                 wefti_mac_request **out_of) WEFT_CHECKED;
void wefti_mac_body_came(wefti_mac_stream *c, wefti_mac_request *of, size_t bytes);
/* A receive finds what came before it. False: nothing did. */
bool wefti_mac_take_early(wefti_mac_peer *p, wefti_mac_request *r, weft_status *out);

/* --- mac_parts.c: announced messages, which go in parts over all streams of a pair. Threads share
 * them, so all of this takes the lock. --- */

typedef struct wefti_mac_worker wefti_mac_worker;
struct wefti_mac_parts {
    pthread_mutex_t lock;
    pthread_cond_t unused; /* a request has no users any more */
    wefti_mac_peer *busy;  /* peers to which workers may send parts */
    _Atomic uint64_t faults;
    wefti_mac_worker *worker; /* [workers] */
    int32_t workers;
};
typedef struct wefti_mac_part {
    uint64_t id;
    size_t at, bytes;
} wefti_mac_part;

weft_status wefti_mac_parts_begin(wefti_mac_parts *parts) WEFT_CHECKED;
void wefti_mac_parts_end(wefti_mac_parts *parts);
void wefti_mac_parts_send(wefti_mac_peer *p, wefti_mac_request *r);
/* A part for this stream, as its frame (c->of, c->part), whose memory is held. False: none. */
bool wefti_mac_parts_take(wefti_mac_stream *c, size_t most, wefti_mac_part *out);
/* The memory of the frame's request stays until it is released. Fails if that was given up. */
weft_status wefti_mac_parts_hold(wefti_mac_stream *c) WEFT_CHECKED;
void wefti_mac_parts_release(wefti_mac_stream *c, bool whole); /* the frame is written */
/* A peer to which worker `number` can send a part now; that after `last` in the list, if there are
 * several. NULL: none. The caller has the lock. */
wefti_mac_peer *wefti_mac_parts_next(wefti_mac_parts *parts, int32_t number,
                                     const wefti_mac_peer *last);

void wefti_mac_parts_expect(wefti_mac_peer *p, wefti_mac_request *r);
/* A part begins to come. Fails if it lies beyond its message, or if parts overlap. */
weft_status wefti_mac_parts_begin_one(wefti_mac_peer *p, const wefti_mac_part *part) WEFT_CHECKED;
/* The receive of a message, whose memory stays until wefti_mac_parts_came. NULL: cancelled. */
wefti_mac_request *wefti_mac_parts_hold_coming(wefti_mac_peer *p, uint64_t id);
void wefti_mac_parts_came(wefti_mac_peer *p, wefti_mac_request *r, size_t bytes);

/* No thread uses the request any more. True: it was in the middle of a frame, so its stream is of
 * no use any more. */
bool wefti_mac_parts_drop(wefti_mac_peer *p, wefti_mac_request *r);
/* The peer is lost: its requests fail, and its streams but the first end. */
void wefti_mac_parts_lose(wefti_mac_peer *p);
/* A worker's stream has failed: it is closed. Takes this thread's error message. */
void wefti_mac_parts_fault(wefti_mac_stream *c);
/* False: there is none. */
bool wefti_mac_parts_read_fault(wefti_mac_peer *p, char *out, size_t room);

/* --- mac_stream.c: writes and reads one stream, as far as the socket goes along --- */

weft_status wefti_mac_flush(wefti_mac_stream *c) WEFT_CHECKED;
weft_status wefti_mac_read(wefti_mac_stream *c) WEFT_CHECKED;

/* --- mac_workers.c: a thread for each stream but the first --- */

typedef struct wefti_mac_side {
    int32_t rank, size;
    wefti_conn_keys keys;
    wefti_exchange exchange;
    int poller;
    wefti_mac_peer *peer; /* [size] */
    wefti_mac_parts parts;
    bool has_parts, abandoned;
    uint64_t turn, moved; /* moved: changes if bytes have come or gone on first streams */
    uint64_t faults;      /* that were looked at */
} wefti_mac_side;

weft_status wefti_mac_workers_start(wefti_mac_side *s) WEFT_CHECKED;
void wefti_mac_workers_stop(wefti_mac_side *s);
/* There are `count` parts more to be sent. With the lock of parts. */
void wefti_mac_workers_wake(wefti_mac_parts *parts, size_t count);
uint64_t wefti_mac_workers_moved(const wefti_mac_parts *parts);

/* --- mac_open.c: connects all pairs of ranks --- */

extern int64_t wefti_mac_call_ns; /* how long a connector waits for a challenge; tests set it */
typedef struct wefti_mac_sizes {
    size_t eager; /* longer messages are announced */
    size_t split; /* from here on, all streams of a pair take parts of a message, */
    size_t part;  /* of so many bytes at most */
} wefti_mac_sizes;
extern wefti_mac_sizes wefti_mac_used; /* tests set them, to smaller ones, before connections */
weft_status wefti_mac_connect_all(wefti_mac_side *s, const wefti_mac_options *o) WEFT_CHECKED;

#endif
