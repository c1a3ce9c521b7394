/* Fuzzes what a rank reads from the network between hosts: the answer of a stranger who does not
 * know the key, frames that a stranger changes, and frames of a peer with the key, in both forms.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/transport/mac.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef WEFT_HAVE_OPENSSL

enum { RECEIVES = 4, ROOM = 4096, TAGS = 3, STREAMS = 3 };

static void require(int holds) {
    if (!holds) abort();
}

static const unsigned char key[WEFTI_CONN_KEY] = {1, 2, 3};

/* No input is the answer to a challenge: it would be a forged HMAC. */
static void strangers_answer(const uint8_t *data, size_t size) {
    wefti_conn_hello hello = {.listener = {4}};
    wefti_conn_verdict verdict;
    if (size < WEFTI_CONN_ANSWER) return;
    require(wefti_conn_judge(key, data, &hello, &verdict) == WEFT_OK);
    require(verdict == WEFTI_CONN_STRANGER);
}

typedef struct side {
    wefti_mac_parts parts;
    wefti_mac_peer peer;
    wefti_mac_request wanted[RECEIVES], sent[RECEIVES];
    unsigned char memory[RECEIVES][ROOM + 1]; /* the last byte is no receive's */
} side;

/* `decrypted`: as in the form `tls`, whose frames have no tags and come in pieces. */
static side *begin(bool decrypted) {
    static char some_tls; /* whether there is one is all that is looked at */
    side *s = wefti_calloc(1, sizeof *s);
    require(s != NULL);
    require(wefti_mac_parts_begin(&s->parts) == WEFT_OK);
    wefti_mac_peer_begin(&s->peer, &s->parts);
    require(wefti_mac_peer_open(&s->peer, STREAMS) == WEFT_OK);
    for (int i = 0; i < STREAMS; i++) {
        wefti_mac_stream *c = &s->peer.stream[i];
        require(wefti_conn_direction_open(&c->conn.receives, key) == WEFT_OK);
        if (decrypted) c->conn.tls = (wefti_conn_tls *)(void *)&some_tls;
    }
    for (int i = 0; i < RECEIVES; i++) {
        s->wanted[i] = (wefti_mac_request){.receives = true,
                                           .tag = (uint64_t)(i % TAGS),
                                           .destination = s->memory[i],
                                           .room = ROOM};
        wefti_mac_append(&s->peer.wanted, &s->wanted[i]);
        s->sent[i] = (wefti_mac_request){.announced = true, .id = (uint64_t)i, .bytes = 1 << 20};
        wefti_mac_append(&s->peer.announced, &s->sent[i]);
    }
    return s;
}

/* What was heard stays within the memory of the receives; nobody uses a request any more. */
static void end(side *s) {
    for (int i = 0; i < RECEIVES; i++) {
        const wefti_mac_request *r = &s->wanted[i];
        require(r->users == 0 && r->at <= r->begun && r->begun <= r->bytes);
        require(!r->done || r->status != WEFT_OK || r->bytes <= r->room);
        require(s->memory[i][ROOM] == 0);
    }
    for (int i = 0; i < STREAMS; i++) s->peer.stream[i].conn.tls = NULL;
    wefti_mac_peer_free(&s->peer);
    wefti_mac_parts_end(&s->parts);
    wefti_free(s);
}

/* In pieces of `piece` bytes, as the network brings them. */
static weft_status feed(wefti_mac_stream *c, const unsigned char *data, size_t bytes,
                        size_t piece) {
    for (size_t at = 0; at < bytes;) {
        size_t room, n = bytes - at < piece ? bytes - at : piece;
        if (c->body_left > 0) {
            unsigned char *place;
            wefti_mac_request *of;
            WEFT_TRY(wefti_mac_body_place(c, &place, &room, &of));
            if (n > room) n = room;
            require(n > 0);
            memcpy(place, data + at, n);
            wefti_mac_body_came(c, of, n);
            at += n;
            continue;
        }
        if (wefti_conn_make_room(&c->conn, &room) < 0) return WEFT_E_NOMEM;
        if (n > room) n = room;
        require(n > 0);
        memcpy(c->conn.in + c->conn.in_used, data + at, n);
        c->conn.in_used += n;
        at += n;
        WEFT_TRY(wefti_mac_hear(c));
    }
    return WEFT_OK;
}

/* Without the key nothing is heard. */
static void unsigned_frames(const uint8_t *data, size_t size) {
    side *s = begin(false);
    (void)!feed(&s->peer.stream[size % STREAMS], data, size, 1 + size / 3);
    require(!s->peer.early && !s->peer.control && !s->peer.left);
    for (int i = 0; i < RECEIVES; i++) require(!s->wanted[i].done && s->peer.going.first == NULL);
    end(s);
}

/* The input is a list of frames: length of the body (2 bytes), kind and, in its high bits, stream,
 * tag, size or place (2 bytes), body. They are signed, as by a peer that errs or means harm;
 * decrypted ones have no tags. */
static void frames_of_peer(const uint8_t *data, size_t size, bool decrypted) {
    enum { HEAD = 6 };
    side *s = begin(decrypted);
    wefti_conn_direction sends[STREAMS];
    unsigned char *frame = wefti_alloc(WEFTI_CONN_FRAME);
    require(frame != NULL);
    for (int i = 0; i < STREAMS; i++) require(wefti_conn_direction_open(&sends[i], key) == WEFT_OK);
    while (size >= HEAD) {
        size_t body = (size_t)data[0] | (size_t)data[1] << 8;
        uint64_t total = (uint64_t)data[4] | (uint64_t)data[5] << 8;
        int stream = (data[2] >> 4) % STREAMS;
        if (total == 65535) total = UINT64_MAX;
        if (body > size - HEAD) body = size - HEAD;
        memset(frame, 0, WEFTI_CONN_HEADER);
        frame[0] = (unsigned char)body;
        frame[1] = (unsigned char)(body >> 8);
        frame[4] = data[2] & 15;
        frame[8] = data[3];
        for (int i = 0; i < 8; i++) frame[16 + i] = (unsigned char)(total >> 8 * i);
        memcpy(frame + WEFTI_CONN_HEADER, data + HEAD, body);
        require(wefti_conn_sign(&sends[stream], frame, frame + WEFTI_CONN_HEADER, body,
                                frame + WEFTI_CONN_HEADER + body) == WEFT_OK);
        size_t whole = WEFTI_CONN_HEADER + body + (decrypted ? 0 : WEFTI_CONN_TAG);
        weft_status status = feed(&s->peer.stream[stream], frame, whole, 1 + body / 2);
        bool other = stream > 0 && frame[4] != WEFTI_MAC_PART;
        require(!other || status < 0); /* what is no part has no place on a further stream */
        if (status < 0) break;
        data += HEAD + body;
        size -= HEAD + body;
    }
    for (int i = 0; i < STREAMS; i++) wefti_conn_direction_close(&sends[i]);
    wefti_free(frame);
    end(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    strangers_answer(data, size);
    unsigned_frames(data, size);
    frames_of_peer(data, size, false);
    frames_of_peer(data, size, true);
    return 0;
}

#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    (void)data;
    (void)size;
    return 0;
}
#endif
