/* The moves in flight while a program is being built: one table, in the order of their posts. Each
 * entry is a move that a step has begun and no step has ended. All posts and waits
 * are added here; interleaved calls are divided later (interleave.c). A section ends with an empty
 * table (wefti_flight_check). */
#ifndef WEFTI_FLIGHT_H
#define WEFTI_FLIGHT_H

#include "builder/decide.h"

struct wefti_emitter;
struct wefti_draft_step;
struct wefti_gather_pack;

/* An argument of a step before buffers have offsets: `delta` bytes into buffer `buffer`. -1:
 * unused. */
typedef struct wefti_buffer_ref {
    int32_t buffer;
    int64_t delta;
} wefti_buffer_ref;

/* What a move is for, which says when it must be waited for. */
typedef enum wefti_flight_use {
    WEFTI_FLIGHT_GATHER,  /* a parameter, for a later call: before that call. owner: the value */
    WEFTI_FLIGHT_PACK,    /* likewise, of several in one message. owner: -1 */
    WEFTI_FLIGHT_SAVED,   /* a saved block or a gradient from a tier below device memory: before
                             what reads it. owner: its buffer in that tier */
    WEFTI_FLIGHT_OPERAND, /* a parameter from a tier below device memory, for a later call: before
                             that call. owner: the value */
    WEFTI_FLIGHT_ROWS,    /* rows that a later call looks up: before that call. owner: the table */
    WEFTI_FLIGHT_SEND,    /* a value to another stage: before as many later ones as its edge has
                             channels for. owner: wefti_flight_edge */
    WEFTI_FLIGHT_BUDDY,   /* a message between buddies: before a number of later ones. owner: the
                             message */
    WEFTI_FLIGHT_FETCH,   /* what an update needs, to the memory in which it runs: before the
                             update. owner: the number of the slice */
    WEFTI_FLIGHT_STORE,   /* back again: before another one, or at the section's end. owner: -1;
                             a saved block or a gradient, behind the next pass. owner: its
                             buffer there */
    WEFTI_FLIGHT_SERVER,  /* to or from a server: before the section's end. owner: -1 */
    WEFTI_FLIGHT_NOW,     /* at once. owner: -1 */
    WEFTI_FLIGHT_GRADIENTS,  /* a bucket: before its update, or when more must be in flight. owner:
                                the bucket */
    WEFTI_FLIGHT_PARAMETERS, /* updated ones: before the next pass. owner: -1 */
    WEFTI_FLIGHT_PACKED_PARAMETERS /* likewise, of several in one message. owner: -1 */
} wefti_flight_use;

typedef struct wefti_flight {
    wefti_flight_use use;
    int32_t owner;
    int32_t move;     /* index in the program's moves; -1: the last transfers of a call */
    const char *name; /* of the steps; NULL: the transfer's */
    wefti_buffer_ref source, destination; /* of a move */
    wefti_buffer_ref named;               /* of a copy of rows: their numbers */
    int64_t rows, row_bytes;              /* as in the program's move, */
    bool looks_up;                        /* and this */
    /* Of a call: its first part, and how many transfers it has in flight, on all ranks. The second
     * part waits for them. */
    const struct wefti_draft_step *call;
    int32_t width;
    bool last;                            /* GRADIENTS: the bucket's last call */
    const struct wefti_gather_pack *pack; /* PACK */
} wefti_flight;

/* The owner of what an edge sends, forward or backward. */
static inline int32_t wefti_flight_edge(int64_t edge, int back) {
    return (int32_t)(2 * edge) + back;
}
static inline bool wefti_flight_is_call(const wefti_flight *f) {
    return f->use >= WEFTI_FLIGHT_GRADIENTS;
}

/* Begins a transfer of the partition: adds a POST and advances the time. Uses `use`, `owner`,
 * `name` and the buffers of `f`. */
weft_status wefti_flight_post(struct wefti_emitter *b, wefti_section s, wefti_flight f,
                              int32_t transfer) WEFT_CHECKED;
/* Begins a copy of `bytes` between spaces: adds a POST of the move *move, and advances the time.
 * *move -1: of a new move, whose number it becomes. Uses `use`, `owner`, `name` and the buffers of
 * `f`. */
weft_status wefti_flight_copy(struct wefti_emitter *b, wefti_section s, wefti_flight f,
                              int64_t bytes, int32_t *move) WEFT_CHECKED;
/* The same for rows: of a table of `vocab` rows. Also uses `named`, `rows`,
 * `row_bytes` and `looks_up`. */
weft_status wefti_flight_rows(struct wefti_emitter *b, wefti_section s, wefti_flight f,
                              int64_t vocab, int32_t *move) WEFT_CHECKED;
/* Makes the section's last step the first part of a call, up to instruction `to`. The part leaves
 * `leaves` transfers in flight. A rank without a transfer passes 0 and still adds the part, so that
 * all ranks have the same order. Uses `use`, `owner` and `width` of `f`. */
weft_status wefti_flight_leave(struct wefti_emitter *b, wefti_section s, wefti_flight f, int32_t to,
                               int32_t leaves) WEFT_CHECKED;
/* Adds the step that ends entry i, and removes the entry. The step of a call uses the call's
 * arguments again. */
weft_status wefti_flight_wait(struct wefti_emitter *b, wefti_section s, int32_t i) WEFT_CHECKED;
/* Ends all moves that are needed at once. */
weft_status wefti_flight_arrive(struct wefti_emitter *b, wefti_section s) WEFT_CHECKED;
/* Posts a transfer and waits for it. */
weft_status wefti_flight_now(struct wefti_emitter *b, wefti_section s, int32_t transfer,
                             int32_t source, int32_t destination) WEFT_CHECKED;

/* The oldest entry of this use and owner, if more than `left` are in flight; else -1. */
int32_t wefti_flight_over(const struct wefti_emitter *b, wefti_flight_use use, int32_t owner,
                          int32_t left);
static inline int32_t wefti_flight_find(const struct wefti_emitter *b, wefti_flight_use use,
                                        int32_t owner) {
    return wefti_flight_over(b, use, owner, 0);
}
/* Whether a transfer of the partition is in flight. A WAIT ends the oldest post of its move. */
bool wefti_flight_has(const struct wefti_emitter *b, int32_t transfer);
/* A section ends: an error if a move is in flight. */
weft_status wefti_flight_check(const struct wefti_emitter *b, wefti_section s) WEFT_CHECKED;

#endif
