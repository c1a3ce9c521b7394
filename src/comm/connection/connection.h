/* Authenticated connections over TCP, encrypted or not: sockets, handshake, keys and frames,
 * between any two processes that know one key (docs/design/data-plane.md). What frames mean is the
 * owner's. Nothing here waits. A connection is used by one thread at a time. WEFT_E_PEER and
 * WEFT_E_CORRUPT blame the other side. */
#ifndef WEFTI_CONNECTION_H
#define WEFTI_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/status.h"

enum {
    WEFTI_CONN_KEY = 32,
    WEFTI_CONN_NONCE = 32,
    WEFTI_CONN_PROOF = 32,
    WEFTI_CONN_TAG = 16,
    WEFTI_CONN_HEADER = 24,
    WEFTI_CONN_BODY = 256 << 10,                /* at most, of a frame */
    WEFTI_CONN_TLS_BODY = WEFTI_CONN_BODY - 24, /* sent at most in the form `tls`: whole records */
    WEFTI_CONN_CHALLENGE = WEFTI_CONN_NONCE,
    WEFTI_CONN_ANSWER = WEFTI_CONN_NONCE + 12 + WEFTI_CONN_PROOF,
    WEFTI_CONN_PROOF_AT = WEFTI_CONN_ANSWER - WEFTI_CONN_PROOF,
    WEFTI_CONN_FRAME = WEFTI_CONN_HEADER + WEFTI_CONN_BODY + WEFTI_CONN_TAG,
    /* Connections that have not proved the key; a further one pushes out the oldest. */
    WEFTI_CONN_STRANGERS = 256
};

/* Where somebody listens. */
typedef struct wefti_conn_address {
    struct sockaddr_storage at;
    socklen_t bytes;
    char text[128]; /* "host:port" */
} wefti_conn_address;

static inline bool wefti_conn_blames_other(weft_status status) {
    return status == WEFT_E_PEER || status == WEFT_E_CORRUPT;
}

/* --- keys.c: proofs and tags --- */

typedef struct wefti_conn_side {
    int32_t number; /* a rank of a world, whose role is 0, or a member of a job */
    uint8_t role;
} wefti_conn_side;
static inline bool wefti_conn_same(wefti_conn_side a, wefti_conn_side b) {
    return a.number == b.number && a.role == b.role;
}

typedef struct wefti_conn_hello { /* what both sides prove */
    unsigned char listener[WEFTI_CONN_NONCE], connector[WEFTI_CONN_NONCE];
    wefti_conn_side from, to; /* the connector, and the listener */
    uint8_t stream;           /* number of the connection among those of the two */
} wefti_conn_hello;
/* The answer to a challenge, as it is sent, but its proof. */
void wefti_conn_write_answer(const wefti_conn_hello *hello, unsigned char out[WEFTI_CONN_ANSWER]);

/* `what`: "connect", "accept", "up", "down" or "tls". */
weft_status wefti_conn_prove(const unsigned char key[WEFTI_CONN_KEY], const char *what,
                             const wefti_conn_hello *hello,
                             unsigned char out[WEFTI_CONN_PROOF]) WEFT_CHECKED;
typedef enum wefti_conn_verdict { WEFTI_CONN_STRANGER, WEFTI_CONN_KNOWN } wefti_conn_verdict;
/* Whether a side with the key has answered the challenge in hello->listener, and which one. */
weft_status wefti_conn_judge(const unsigned char key[WEFTI_CONN_KEY],
                             const unsigned char answer[WEFTI_CONN_ANSWER], wefti_conn_hello *hello,
                             wefti_conn_verdict *out) WEFT_CHECKED;

/* One direction of a connection. Each call takes the next number. */
typedef struct wefti_conn_direction {
    void *cipher;
    uint64_t number;
} wefti_conn_direction;
weft_status wefti_conn_direction_open(wefti_conn_direction *s,
                                      const unsigned char key[WEFTI_CONN_PROOF]) WEFT_CHECKED;
void wefti_conn_direction_close(wefti_conn_direction *s);
/* The tag over a header and a body. */
weft_status wefti_conn_sign(wefti_conn_direction *s, const unsigned char *header, const void *body,
                            size_t bytes, unsigned char out[WEFTI_CONN_TAG]) WEFT_CHECKED;

typedef struct wefti_conn_tls_setup wefti_conn_tls_setup;
typedef struct wefti_conn_tls wefti_conn_tls;
/* What all connections of an owner have in common. `key`: of one purpose and nothing else, such as
 * a world in a generation; both sides know it. */
typedef struct wefti_conn_keys {
    unsigned char key[WEFTI_CONN_KEY];
    wefti_conn_tls_setup *tls; /* NULL: the form `mac` */
} wefti_conn_keys;
/* `connections`: about how many there will be. */
weft_status wefti_conn_keys_open(wefti_conn_keys *k, const unsigned char key[WEFTI_CONN_KEY],
                                 bool encrypts, int32_t connections) WEFT_CHECKED;
void wefti_conn_keys_close(wefti_conn_keys *k); /* after its connections; zeros are legal */

/* --- handshake.c: a connection, and how it opens --- */

typedef enum wefti_conn_state {
    WEFTI_CONN_CLOSED,
    WEFTI_CONN_CHALLENGED, /* at a port, which waits for an answer */
    WEFTI_CONN_PROVED,     /* the answer was right, and the owner has to welcome or to close it */
    WEFTI_CONN_CALLING,    /* waits for a challenge */
    WEFTI_CONN_ANSWERED,   /* waits for the welcome */
    WEFTI_CONN_SECURING,   /* TLS begins, by a key of this connection */
    WEFTI_CONN_OPEN
} wefti_conn_state;

typedef struct wefti_conn {
    wefti_conn_state state;
    int fd;           /* -1: CLOSED */
    bool listens;     /* which of the two sides this is */
    int64_t since_ns; /* when it began, or was closed */
    wefti_conn_hello hello;
    unsigned char heard[WEFTI_CONN_ANSWER]; /* [in_used], before it is open */
    wefti_conn_direction sends, receives;   /* of the form `mac` */
    wefti_conn_tls *tls;                    /* of the form `tls`; else NULL */
    int poller;                             /* of events, which give this: */
    uint64_t name;
    bool polls_write; /* there is output that the socket did not take */
    /* the frame that is being written; frame_bytes 0: none */
    unsigned char header[WEFTI_CONN_HEADER], tag[WEFTI_CONN_TAG];
    const unsigned char *body;
    size_t body_bytes, written, frame_bytes;
    unsigned char *in; /* the frames that are being read */
    size_t in_used, in_room;
} wefti_conn;
#define WEFTI_CONN_NONE ((wefti_conn){.fd = -1, .poller = -1})

/* To an address; a name would have to be looked up, which waits. A failure leaves it CLOSED. */
weft_status wefti_conn_call(wefti_conn *c, const struct sockaddr_storage *to, socklen_t bytes,
                            const wefti_conn_hello *hello) WEFT_CHECKED;
/* Of a PROVED one. A failure closes it. */
weft_status wefti_conn_welcome(wefti_conn *c, const wefti_conn_keys *keys) WEFT_CHECKED;
/* Something has come for one that calls, or secures. A failure closes it. When it is OPEN, the
 * first frames may have come with TLS's handshake: no event tells of them. */
weft_status wefti_conn_shake(wefti_conn *c, const wefti_conn_keys *keys) WEFT_CHECKED;
/* It may be in another poller, and in another place, than before. `poller` -1: in none. */
weft_status wefti_conn_watch(wefti_conn *c, int poller, uint64_t name) WEFT_CHECKED;
void wefti_conn_cut(wefti_conn *c); /* closes the socket, and no more */
void wefti_conn_close(wefti_conn *c);

/* --- frames.c: writes and reads an open one, as far as its socket goes along --- */

/* The next frame; the body must stay until it is written. */
weft_status wefti_conn_seal(wefti_conn *c, uint32_t kind, uint64_t tag, uint64_t place,
                            const void *body, size_t bytes) WEFT_CHECKED;
/* Some of the frame, which is written when c->frame_bytes is 0. WEFT_PENDING: the socket is full.
 */
weft_status wefti_conn_write(wefti_conn *c) WEFT_CHECKED;
/* After the last frame, or where the socket is full: an event will tell when it is not. */
weft_status wefti_conn_flush(wefti_conn *c, weft_status written) WEFT_CHECKED;
bool wefti_conn_has_output(const wefti_conn *c);

/* From the beginning of a turn on, a bounded number of bytes is taken from the socket. */
void wefti_conn_begin_turn(wefti_conn *c);
/* Bytes of frames; only those of TLS are known to be right. WEFT_PENDING: nothing is there.
 * *out_more: more may be there now. A read that finds nothing costs a system call, so it is false
 * where an event would tell of what comes. */
weft_status wefti_conn_take(wefti_conn *c, void *data, size_t room, size_t *out,
                            bool *out_more) WEFT_CHECKED;
/* Room behind the received bytes: c->in + c->in_used. At most *out_bytes may come there. */
weft_status wefti_conn_make_room(wefti_conn *c, size_t *out_bytes) WEFT_CHECKED;

typedef struct wefti_conn_frame {
    uint32_t kind;
    uint64_t tag, place;
    const unsigned char *body;
    size_t bytes, come; /* come < bytes: only in the form `tls`, and the rest will come */
    size_t whole;       /* with header and tag */
} wefti_conn_frame;
/* The frame at c->in + at, once: its tag is that of the next number. Nothing of it but its length
 * is looked at before its tag is right. WEFT_PENDING: none is there. */
weft_status wefti_conn_next(wefti_conn *c, size_t at, wefti_conn_frame *out) WEFT_CHECKED;
void wefti_conn_forget(wefti_conn *c, size_t bytes); /* the first received ones */

/* --- port.c: accepts connections, and proves them. It may stay open. --- */

typedef struct wefti_conn_port {
    int fd, poller; /* poller: readable if there is something to do */
    wefti_conn_side me;
    const wefti_conn_keys *keys;
    wefti_conn stranger[WEFTI_CONN_STRANGERS];
} wefti_conn_port;
/* At the address *at (of `bytes` bytes), which becomes the one where it listens. */
weft_status wefti_conn_port_open(wefti_conn_port *p, wefti_conn_side me,
                                 const wefti_conn_keys *keys, struct sockaddr_storage *at,
                                 socklen_t bytes) WEFT_CHECKED;
void wefti_conn_port_close(wefti_conn_port *p);
/* The next connection whose answer was right: PROVED, and to `me`. It is the caller's from then on.
 * WEFT_PENDING: none now. Strangers have 5 s. */
weft_status wefti_conn_port_next(wefti_conn_port *p, wefti_conn *out) WEFT_CHECKED;

/* --- hub.c: the connections of a process that may be called as long as it runs, and that calls
 * others when it needs them. One thread uses a hub. --- */

typedef struct wefti_conn_hub wefti_conn_hub;
typedef struct wefti_conn_queued wefti_conn_queued;
/* A connection of a hub, to be used until `closed` has been told, or it is closed here. */
typedef struct wefti_conn_link {
    void *owner; /* the owner's; NULL at first */
    wefti_conn_side side;
    wefti_conn conn;
    /* The hub's: */
    wefti_conn_hub *hub;
    struct wefti_conn_link *next;
    bool known;                       /* to the owner */
    int64_t until_ns;                 /* to be open */
    wefti_conn_queued *first, **last; /* frames that the socket has not taken */
    size_t queued;
    weft_status status; /* why it was closed, */
    char why[160];      /* and in words; "": it was not */
} wefti_conn_link;

typedef struct wefti_conn_hub_options {
    wefti_conn_side me;
    unsigned char key[WEFTI_CONN_KEY]; /* as wefti_conn_keys */
    bool encrypts;
    double seconds;     /* in which a connection has to open */
    size_t queue_bytes; /* of frames that wait on a link */
    void *context;
    /* A turn calls these. They may send, call and close, and make no turn. */
    /* Whether to accept a caller that has proved the key. */
    bool (*takes)(void *context, wefti_conn_side from);
    void (*opened)(void *context, wefti_conn_link *l); /* of a caller, or of a call from here */
    /* A whole, authenticated frame; the body is there until this returns. A failure closes the
     * link. */
    weft_status (*heard)(void *context, wefti_conn_link *l, const wefti_conn_frame *frame);
    /* Or a call has failed. WEFT_E_PEER: by the other side; WEFT_E_CORRUPT: it has sent what is
     * wrong; WEFT_E_TIMEOUT: it did not open in time; WEFT_E_STOPPED: a newer connection of the
     * same side has taken its place; what `heard` returned. */
    void (*closed)(void *context, wefti_conn_link *l, weft_status status, const char *why);
} wefti_conn_hub_options;

/* Listens at *at, as wefti_conn_port_open. The options are copied. */
weft_status wefti_conn_hub_open(const wefti_conn_hub_options *o, struct sockaddr_storage *at,
                                socklen_t bytes, wefti_conn_hub **out) WEFT_CHECKED;
void wefti_conn_hub_close(wefti_conn_hub *hub); /* nobody is told; NULL is legal */
/* Readable if a turn has something to do. Limits of time are seen by turns only. */
int wefti_conn_hub_poller(const wefti_conn_hub *hub);
/* Waits for events for that time at most (-1: any), and does what there is to do. What is wrong
 * with a link closes that link. */
weft_status wefti_conn_hub_turn(wefti_conn_hub *hub, int milliseconds) WEFT_CHECKED;
/* The link that was called before, if it is not closed; else it begins. Frames may be sent at once.
 */
weft_status wefti_conn_hub_call(wefti_conn_hub *hub, wefti_conn_side to,
                                const struct sockaddr_storage *at, socklen_t bytes,
                                wefti_conn_link **out) WEFT_CHECKED;
/* A frame, whose body is copied from `parts` pieces: WEFTI_CONN_BODY bytes at most. WEFT_PENDING:
 * too many bytes wait, and nothing was sent. After a failure with WEFT_E_PEER, `closed` follows. */
weft_status wefti_conn_link_send(wefti_conn_link *l, uint32_t kind, uint64_t tag, uint64_t place,
                                 const struct iovec *part, int parts) WEFT_CHECKED;
/* `closed` is not told. What waits is not sent. */
void wefti_conn_link_close(wefti_conn_link *l);

#endif
