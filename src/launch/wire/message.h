/* The bodies of frames, as structures: docs/format-wire.md lists their fields. Decoding accepts
 * exactly what encoding makes: every byte is accounted for, every number in its range. */
#ifndef WEFTI_WIRE_MESSAGE_H
#define WEFTI_WIRE_MESSAGE_H

#include "comm/position.h"
#include "comm/world.h"
#include "launch/wire/wire.h"

typedef struct wefti_join { /* JOIN: a process asks for its place */
    uint64_t generation;    /* 0: it has none yet; else it had `rank` in that one */
    int32_t rank;           /* wanted, or had; -1: any */
    int32_t size;           /* what it was told; -1: nothing */
    int64_t pid;
    char job[WEFTI_NAME_MAX + 1];  /* "" or the launcher's name for this run */
    char node[WEFTI_NAME_MAX + 1]; /* node id */
    char host[WEFTI_NAME_MAX + 1]; /* equal for those who reach each other's memory */
} wefti_join;

typedef struct wefti_card { /* CARD: this member's part of all-gather number `number` */
    uint64_t number;
    const unsigned char *data; /* borrowed */
    size_t bytes;
} wefti_card;

typedef struct wefti_placed { /* WORLD */
    uint64_t generation;
    int32_t rank, size;
    int32_t hosted_by; /* the rank whose process the scheduler lives in; -1: none */
    int64_t heartbeat_ns;
} wefti_placed;

typedef struct wefti_verdict { /* VERDICT, REFUSED, FAIL */
    weft_status status;
    int32_t failed; /* whom the text names; else WEFT_RANK_OWN (FAIL only), WEFT_RANK_NONE */
    char text[WEFTI_TEXT_MAX + 1];
} wefti_verdict;

typedef struct wefti_end { /* ENDED, OVER: how a rank's process ended */
    int32_t rank;
    int32_t code, signal; /* its exit code, or what it died of; both 0: it ended well */
    char text[WEFTI_TEXT_MAX + 1];
} wefti_end;

typedef struct wefti_span { /* WATCH: the ranks of a host */
    int32_t first, count;
} wefti_span;

enum { WEFTI_MESSAGE_MAX = WEFTI_TEXT_MAX + 16 }; /* of all but CARD, CARDS and WORLD */

size_t wefti_join_encode(const wefti_join *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_join_decode(const wefti_frame *frame, wefti_join *out) WEFT_CHECKED;

/* Ages are relative to the sender's clock at `now_ns`, so that clocks need not agree. */
size_t wefti_beat_encode(const wefti_standing *m, int64_t now_ns,
                         unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_beat_decode(const wefti_frame *frame, int64_t now_ns,
                              wefti_standing *out) WEFT_CHECKED;

size_t wefti_verdict_encode(weft_status status, int32_t failed, const char *text,
                            unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_verdict_decode(const wefti_frame *frame, wefti_verdict *out) WEFT_CHECKED;

size_t wefti_end_encode(const wefti_end *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_end_decode(const wefti_frame *frame, wefti_end *out) WEFT_CHECKED;
size_t wefti_span_encode(const wefti_span *m, unsigned char out[WEFTI_MESSAGE_MAX]);
weft_status wefti_span_decode(const wefti_frame *frame, wefti_span *out) WEFT_CHECKED;

/* LEAVE: what a member has called. Fresh memory. NULL: nothing is said of that. */
enum { WEFTI_RECORDS_MAX = WEFTI_CALL_RECORDS * (36 + WEFTI_CALL_TEXT) };
_Static_assert((int)WEFTI_RECORDS_MAX <= (int)WEFTI_LEAVE_MAX, "all records go into one frame");
weft_status wefti_records_encode(const wefti_call_records *m, unsigned char **out,
                                 size_t *out_bytes) WEFT_CHECKED;
weft_status wefti_records_decode(const wefti_frame *frame, wefti_call_records *out) WEFT_CHECKED;

/* The numbers in front of a card, or of all cards. */
enum { WEFTI_CARD_HEAD = 16 };
void wefti_card_head(uint64_t number, uint64_t bytes, unsigned char out[WEFTI_CARD_HEAD]);
/* Of CARD (ranks 1) and CARDS: data is ranks x bytes. */
weft_status wefti_card_decode(const wefti_frame *frame, int32_t ranks,
                              wefti_card *out) WEFT_CHECKED;

/* The body of WORLD: fresh memory. host: [size]. */
weft_status wefti_placed_encode(const wefti_placed *m, const int32_t *host, unsigned char **out,
                                size_t *out_bytes) WEFT_CHECKED;
/* *out_host: fresh memory. */
weft_status wefti_placed_decode(const wefti_frame *frame, wefti_placed *out,
                                int32_t **out_host) WEFT_CHECKED;

#endif
