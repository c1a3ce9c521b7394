/* One connection of the control plane on a non-blocking socket: TLS where it is wanted, the
 * handshake, then frames. Without TLS, until the other side has proved that it knows the secret,
 * exactly the bytes of its proof are read and nothing is allocated. */
#ifndef WEFTI_WIRE_LINK_H
#define WEFTI_WIRE_LINK_H

#include "launch/wire/wire.h"
#include "launch/wire/tls.h"

enum {
    WEFTI_WIRE_MAGIC = 8,
    WEFTI_WIRE_GREETING = WEFTI_WIRE_MAGIC + WEFTI_NONCE_BYTES,
    WEFTI_WIRE_ANSWER = WEFTI_WIRE_MAGIC + WEFTI_NONCE_BYTES + WEFTI_DIGEST_BYTES,
    WEFTI_WIRE_WELCOME = WEFTI_WIRE_MAGIC + WEFTI_DIGEST_BYTES,
};

/* A body that several connections send, each in a frame of its own: those that have not done so
 * yet hold it together. All from one thread. */
typedef struct wefti_block {
    int64_t holders;
    size_t bytes;
    unsigned char frame[]; /* the body, with room for a header before and a signature behind */
} wefti_block;
/* Held by the caller. */
weft_status wefti_block_create(size_t bytes, wefti_block **out) WEFT_CHECKED;
static inline unsigned char *wefti_block_body(wefti_block *block) {
    return block->frame + WEFTI_FRAME_HEADER;
}
void wefti_block_release(wefti_block *block); /* NULL is legal */

/* Goes out between the bytes of a connection's own output. */
typedef struct wefti_insert {
    wefti_block *block;
    size_t before, sent; /* so much of the own output goes first; bytes of the block that have */
} wefti_insert;

typedef struct wefti_wire {
    int fd; /* -1: closed */
    bool scheduler;
    enum {
        WEFTI_WIRE_CLOSED,
        WEFTI_WIRE_TLS,
        WEFTI_WIRE_GREET,
        WEFTI_WIRE_PROVE,
        WEFTI_WIRE_OPEN
    } phase;
    const wefti_secret *secret; /* borrowed */
    wefti_tls *tls;             /* borrowed; NULL: none is wanted */
    wefti_tls_line *line;       /* NULL: TLS has not begun */
    wefti_nonces nonces;
    unsigned char hand[WEFTI_WIRE_ANSWER]; /* what has come of the handshake */
    size_t hand_used;
    wefti_stream sends, receives;
    unsigned char *in, *out;
    size_t in_used, in_at, in_room, out_used, out_at, out_room;
    wefti_insert *insert; /* in their order */
    int64_t inserts, insert_at, insert_room;
} wefti_wire;

/* Takes the socket over, also on failure. tls: this side's, or NULL. */
weft_status wefti_wire_open(wefti_wire *link, int fd, bool scheduler, const wefti_secret *secret,
                            wefti_tls *tls) WEFT_CHECKED;
void wefti_wire_close(wefti_wire *link);
bool wefti_wire_wants_to_write(const wefti_wire *link);

/* Read what has come. WEFT_OK: something; WEFT_PENDING: nothing; WEFT_E_PEER: the other side has
 * closed the connection, or it broke; WEFT_E_ARG: the other side knows another secret, or this one
 * speaks another version, or one wants TLS and the other does not. */
weft_status wefti_wire_fill(wefti_wire *link) WEFT_CHECKED;
/* The next whole frame, borrowed until the next call; WEFT_PENDING: none. */
weft_status wefti_wire_next(wefti_wire *link, wefti_frame *out) WEFT_CHECKED;
/* Queue a frame with a body of two parts, and write what can be written. */
weft_status wefti_wire_send(wefti_wire *link, wefti_frame_kind kind, const void *head,
                            size_t head_bytes, const void *rest, size_t rest_bytes) WEFT_CHECKED;
/* The same with a body that is not copied. */
weft_status wefti_wire_send_block(wefti_wire *link, wefti_frame_kind kind,
                                  wefti_block *block) WEFT_CHECKED;
/* WEFT_PENDING: not all is written. */
weft_status wefti_wire_flush(wefti_wire *link) WEFT_CHECKED;

#endif
