/* Authenticated messages between processes over TCP, encrypted or not: docs/design-data-plane.md.
 * Internal to comm/transport. */
#ifndef WEFTI_MAC_H
#define WEFTI_MAC_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "comm/transport/transport.h"

enum {
    WEFTI_MAC_KEY = 32,
    WEFTI_MAC_NONCE = 32,
    WEFTI_MAC_PROOF = 32,
    WEFTI_MAC_TAG = 16,
    WEFTI_MAC_HEADER = 24,
    WEFTI_MAC_BODY = 256 << 10,               /* at most, of a frame */
    WEFTI_MAC_TLS_BODY = WEFTI_MAC_BODY - 24, /* sent at most in the form `tls`: whole records */
    WEFTI_MAC_EAGER = 64 << 10,               /* longer messages are announced */
    WEFTI_MAC_CHALLENGE = WEFTI_MAC_NONCE,
    WEFTI_MAC_ANSWER = WEFTI_MAC_NONCE + 8 + WEFTI_MAC_PROOF,
    WEFTI_MAC_FRAME = WEFTI_MAC_HEADER + WEFTI_MAC_BODY + WEFTI_MAC_TAG
};

/* --- mac_keys.c: proofs and tags --- */

typedef struct wefti_mac_hello { /* what both sides prove */
    unsigned char listener[WEFTI_MAC_NONCE], connector[WEFTI_MAC_NONCE];
    int32_t rank, peer; /* of the connector, of the listener */
} wefti_mac_hello;

/* `what`: "connect", "accept", "up" or "down". */
weft_status wefti_mac_prove(const unsigned char key[WEFTI_MAC_KEY], const char *what,
                            const wefti_mac_hello *hello,
                            unsigned char out[WEFTI_MAC_PROOF]) WEFT_CHECKED;
bool wefti_mac_equal(const unsigned char *a, const unsigned char *b, size_t bytes);
weft_status wefti_mac_random(void *out, size_t bytes) WEFT_CHECKED;

/* One direction of a connection. Each call takes the next number. */
typedef struct wefti_mac_stream {
    void *cipher;
    uint64_t number;
} wefti_mac_stream;
weft_status wefti_mac_stream_open(wefti_mac_stream *s,
                                  const unsigned char key[WEFTI_MAC_PROOF]) WEFT_CHECKED;
void wefti_mac_stream_close(wefti_mac_stream *s);
/* The tag over a header and a body. */
weft_status wefti_mac_sign(wefti_mac_stream *s, const unsigned char *header, const void *body,
                           size_t bytes, unsigned char out[WEFTI_MAC_TAG]) WEFT_CHECKED;

/* --- mac_tls.c: TLS 1.3 around the frames of a connection whose two sides have proved the key.
 * Frames then carry no tags: TLS numbers and authenticates its records. --- */

typedef struct wefti_mac_tls_setup wefti_mac_tls_setup; /* of all connections of a rank */
typedef struct wefti_mac_tls wefti_mac_tls;             /* of one connection */
weft_status wefti_mac_tls_create(int32_t ranks, wefti_mac_tls_setup **out) WEFT_CHECKED;
void wefti_mac_tls_destroy(wefti_mac_tls_setup *setup); /* after its connections; NULL is legal */
/* `fd` stays the caller's. `key`: of this connection. */
weft_status wefti_mac_tls_open(const wefti_mac_tls_setup *setup, int fd, bool listens,
                               const unsigned char key[WEFTI_MAC_PROOF],
                               wefti_mac_tls **out) WEFT_CHECKED;
void wefti_mac_tls_close(wefti_mac_tls *t); /* NULL is legal */
/* None of these waits. WEFT_PENDING: nothing can be done now. */
weft_status wefti_mac_tls_shake(wefti_mac_tls *t) WEFT_CHECKED;
/* From the beginning of a turn on, a bounded number of bytes is taken from the socket. */
void wefti_mac_tls_begin_turn(wefti_mac_tls *t);
weft_status wefti_mac_tls_read(wefti_mac_tls *t, void *data, size_t room,
                               size_t *out_bytes) WEFT_CHECKED;
/* Bytes were taken from the socket that no read has returned: no event tells of them. */
bool wefti_mac_tls_has_input(const wefti_mac_tls *t);
/* Encrypts into a buffer, which `flush` sends: the beginning of `head` (a frame's, or 0 bytes) and
 * of `body`. After WEFT_PENDING, the buffer is full, the next call has the same arguments. */
weft_status wefti_mac_tls_write(wefti_mac_tls *t, const void *head, size_t head_bytes,
                                const void *body, size_t bytes, size_t *out_bytes) WEFT_CHECKED;
weft_status wefti_mac_tls_flush(wefti_mac_tls *t) WEFT_CHECKED;
bool wefti_mac_tls_has_output(const wefti_mac_tls *t); /* false for NULL */

/* --- mac.c: a transport's state --- */

typedef enum wefti_mac_kind {
    WEFTI_MAC_DATA = 1, /* size: of the whole message; UINT64_MAX: of an announced one, by its id */
    WEFTI_MAC_ANNOUNCE, /* the body is the message's id */
    WEFTI_MAC_READY,    /* tag: the id */
    WEFTI_MAC_LEAVE
} wefti_mac_kind;

typedef struct wefti_mac_request {
    struct wefti_mac_request *next;
    int32_t peer;
    bool receives, done, announced, ready;
    weft_status status;
    uint64_t tag, id; /* id: of an announced message */
    const unsigned char *source;
    unsigned char *destination;
    size_t bytes, room, at; /* of the message; of the memory; sent or received so far */
    uint64_t turn;          /* of the last test */
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
    uint64_t tag, size;
} wefti_mac_control;

typedef struct wefti_mac_peer {
    int fd;    /* -1: none */
    bool lost; /* nothing comes or goes any more */
    bool left; /* it has said LEAVE */
    char why[128];
    wefti_mac_stream sends, receives; /* of the form without encryption */
    wefti_mac_tls *tls;               /* NULL: of that form */
    wefti_mac_control *control, **control_last;
    wefti_mac_list sending;   /* to be announced, or with data to send, in order */
    wefti_mac_list announced; /* sends that wait for READY */
    wefti_mac_list wanted;    /* receives without a message */
    wefti_mac_list coming;    /* receives of announced messages */
    wefti_mac_early *early, **early_last;
    uint64_t next_id;
    /* the frame that is being written; frame_bytes 0: none */
    unsigned char header[WEFTI_MAC_HEADER], tag[WEFTI_MAC_TAG], id_body[8];
    const unsigned char *body;
    size_t body_bytes, written, frame_bytes;
    wefti_mac_request *of; /* the request that it belongs to */
    unsigned char *in;     /* the frames that are being read */
    size_t in_used, in_room;
    uint64_t body_id; /* of the form `tls`: the announced message of the frame that is being read */
    size_t body_left; /* bytes of that frame that have not come; 0: no such frame */
    bool polls_write;
} wefti_mac_peer;

typedef struct wefti_mac_side {
    int32_t rank, size;
    unsigned char key[WEFTI_MAC_KEY];
    wefti_exchange exchange;
    wefti_mac_tls_setup *tls; /* NULL: without encryption */
    int listener, poller;
    wefti_mac_peer *peer; /* [size] */
    bool abandoned;
    uint64_t turn, moved; /* moved: a number that changes with bytes that come or go */
} wefti_mac_side;

/* --- mac_frames.c: lists of requests; what received frames do --- */

void wefti_mac_append(wefti_mac_list *l, wefti_mac_request *r);
void wefti_mac_drop(wefti_mac_list *l, wefti_mac_request *r); /* also if it is not there */
static inline void wefti_mac_finish(wefti_mac_request *r, weft_status status) {
    r->done = true;
    r->status = status;
}
void wefti_mac_peer_begin(wefti_mac_peer *p);
void wefti_mac_peer_free(wefti_mac_peer *p);
weft_status wefti_mac_add_control(wefti_mac_peer *p, wefti_mac_kind kind,
                                  uint64_t tag) WEFT_CHECKED;
/* Room behind the received bytes: p->in + p->in_used. At most *out_bytes may come there. */
weft_status wefti_mac_make_room(wefti_mac_peer *p, size_t *out_bytes) WEFT_CHECKED;
/* All whole frames that were received. Of a frame nothing but its length is looked at before its
 * tag is right. */
weft_status wefti_mac_hear(wefti_mac_peer *p) WEFT_CHECKED;
/* While p->body_left > 0: where the next bytes of that body go, at most *out_room. It is the memory
 * of the receive, or memory that nothing reads if the receive was cancelled. */
weft_status wefti_mac_body_place(wefti_mac_peer *p, unsigned char **out,
                                 size_t *out_room) WEFT_CHECKED;
void wefti_mac_body_came(wefti_mac_peer *p, size_t bytes); /* at that place */
/* A receive finds what came before it. False: nothing did. */
bool wefti_mac_take_early(wefti_mac_peer *p, wefti_mac_request *r, weft_status *out);

/* --- mac_open.c: connects all pairs of ranks --- */

typedef enum wefti_mac_verdict { WEFTI_MAC_STRANGER, WEFTI_MAC_KNOWN } wefti_mac_verdict;
/* Whether a peer of higher rank has answered the challenge in hello->listener, and who it is. */
weft_status wefti_mac_judge(const wefti_mac_side *s, const unsigned char answer[WEFTI_MAC_ANSWER],
                            wefti_mac_hello *hello, wefti_mac_verdict *out) WEFT_CHECKED;

extern int64_t wefti_mac_call_ns; /* how long a connector waits for a challenge; tests set it */
weft_status wefti_mac_connect_all(wefti_mac_side *s, const wefti_mac_options *o) WEFT_CHECKED;

#endif
