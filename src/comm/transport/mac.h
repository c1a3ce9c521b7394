/* Authenticated messages between processes over TCP: docs/design-data-plane.md. Internal to
 * comm/transport. */
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
    WEFTI_MAC_BODY = 256 << 10, /* at most, of a frame */
    WEFTI_MAC_EAGER = 64 << 10, /* longer messages are announced */
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
    wefti_mac_stream sends, receives;
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
    bool polls_write;
} wefti_mac_peer;

typedef struct wefti_mac_side {
    int32_t rank, size;
    unsigned char key[WEFTI_MAC_KEY];
    wefti_exchange exchange;
    int listener, poller;
    wefti_mac_peer *peer; /* [size] */
    bool abandoned;
    uint64_t turn;
} wefti_mac_side;

/* --- mac_open.c: connects all pairs of ranks --- */

weft_status wefti_mac_connect_all(wefti_mac_side *s, const wefti_mac_options *o) WEFT_CHECKED;

#endif
