/* weft inside an MPI program: a world on a communicator of the program's own.
 *
 *     #include <weft/mpi.h>                    // compiled by the program's own mpicc
 *     weft_world *world;
 *     weft_world_from_mpi(comm, NULL, &world); // collective over comm
 *     ...
 *     weft_world_leave(world);                 // before MPI_Finalize
 *
 * The whole implementation is in this header, so libweft is linked to no MPI and works with each
 * (their binary interfaces differ). It needs MPI 3.1, which the program initialises at any level of
 * threads. It works on a duplicate of `comm` and never calls MPI_Init or MPI_Finalize. Error
 * handlers, signals and the program's own messages stay unchanged.
 *
 * Protocol of messages: an eager and a rendezvous protocol above MPI. MPI does not match weft's
 * tags, which have 64 bits, since its own may have only 15. Each rank keeps some receives posted
 * for letters: a header, followed by the data of a short message. For a long message the letter is
 * an announcement. When a receive wants the message, the receiver posts receives into its buffer,
 * on an MPI tag (a lane) that is free on its side, and answers with that lane. The sender then
 * sends the data, in pieces with sizes that fit an int. MPI thus copies long messages directly into
 * their buffers, and only letters wait in its buffers. A send without a receiver can also be
 * cancelled, which MPI's own sends do not offer (Open MPI does not cancel them). */
#ifndef WEFT_MPI_H
#define WEFT_MPI_H

#include <mpi.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft/transport.h"
#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one piece of a long message; the same on all ranks. */
#ifndef WEFT_MPI_PIECE
#define WEFT_MPI_PIECE (1 << 30)
#endif

enum {
    WEFTI_MPI_SHORT = 3840,     /* bytes of a letter's data: MPIs send this much eagerly */
    WEFTI_MPI_POSTED = 16,      /* posted receives for letters */
    WEFTI_MPI_BUCKETS = 64,     /* lists by rank and tag */
    WEFTI_MPI_LETTER_TAG = 0,   /* MPI tag; lanes follow */
    WEFTI_MPI_PATIENCE = 2,     /* seconds for cancelling, */
    WEFTI_MPI_LEAVE_SECONDS = 5 /* and for waiting for the other ranks when leaving */
};

typedef enum wefti_mpi_kind {
    WEFTI_MPI_DATA,     /* a short message */
    WEFTI_MPI_ANNOUNCE, /* announces a long message */
    WEFTI_MPI_COME      /* answer to an announcement: the lane */
} wefti_mpi_kind;

typedef struct wefti_mpi_letter {
    struct wefti_mpi_letter *next;
    MPI_Request mpi;
    int peer;
    struct {
        uint64_t tag, bytes, number; /* number: of the long message, by its sender */
        int32_t kind, lane;
        unsigned char data[WEFTI_MPI_SHORT];
    } text;
} wefti_mpi_letter;
#define WEFTI_MPI_HEAD (offsetof(wefti_mpi_letter, text.data) - offsetof(wefti_mpi_letter, text))

typedef struct wefti_mpi_letters { /* oldest first */
    wefti_mpi_letter *first, *last;
} wefti_mpi_letters;

typedef enum wefti_mpi_state {
    WEFTI_MPI_DONE,
    WEFTI_MPI_WAITS, /* a send waits for the answer, a receive for its message */
    WEFTI_MPI_MOVES, /* MPI transfers it */
    WEFTI_MPI_LONGER /* the message is longer than its receive buffer */
} wefti_mpi_state;

typedef struct wefti_mpi_request {
    struct wefti_mpi_request *next, **back; /* in a list; back NULL: in none */
    wefti_mpi_state state;
    bool sends;
    int peer, lane;
    uint64_t tag, number;
    char *data;
    size_t bytes, moved, piece; /* piece: size of the piece in flight */
    MPI_Request mpi;
} wefti_mpi_request;

typedef struct wefti_mpi_requests { /* oldest first */
    wefti_mpi_request *first, **last;
} wefti_mpi_requests;

/* One world's messages. */
typedef struct wefti_mpi {
    MPI_Comm comm;
    int rank, size, lanes_most;
    weft_status (*tell)(weft_status status, const char *message);
    weft_status failed; /* < 0: permanent */
    bool abandoned;     /* the world has failed: leaving does not wait for long */
    bool torn;          /* data in flight were cancelled, or other ranks do not come */
    char message[MPI_MAX_ERROR_STRING + 96];
    wefti_mpi_letter *posted[WEFTI_MPI_POSTED];
    int next_posted;
    wefti_mpi_letter *spare;
    wefti_mpi_letters leaving;                    /* sent, but not completed by MPI */
    wefti_mpi_letters early[WEFTI_MPI_BUCKETS];   /* no receive has asked for them yet */
    wefti_mpi_requests wanted[WEFTI_MPI_BUCKETS]; /* receives without a message so far */
    wefti_mpi_requests announced;                 /* sends without an answer */
    wefti_mpi_requests pieces;                    /* in flight in several pieces */
    uint64_t number;
    int *free_lanes, lanes_free, lanes_room, lanes_used;
    weft_world *world; /* NULL: it was left, or is none */
    int key;           /* of the attribute that stands for it; without: MPI_KEYVAL_INVALID */
} wefti_mpi;

static inline weft_status wefti_mpi_fail(wefti_mpi *c, weft_status status, const char *message) {
    if (message != c->message) snprintf(c->message, sizeof c->message, "%s", message);
    c->failed = status;
    return c->tell(status, c->message);
}
static inline weft_status wefti_mpi_check(wefti_mpi *c, int code, const char *call, int peer) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return WEFT_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "MPI error %d", code);
    if (peer < 0)
        snprintf(c->message, sizeof c->message, "%s: %s", call, text);
    else
        snprintf(c->message, sizeof c->message, "%s, rank %d: %s", call, peer, text);
    return wefti_mpi_fail(c, WEFT_E_PEER, c->message);
}
static inline weft_status wefti_mpi_no_memory(wefti_mpi *c) {
    return wefti_mpi_fail(c, WEFT_E_NOMEM, "no memory for messages of MPI");
}

/* --- lists --- */

static inline int wefti_mpi_bucket(int peer, uint64_t tag) {
    uint64_t mixed = (tag + 0x632BE59Bu * (uint64_t)peer + 1) * 0x9E3779B97F4A7C15u;
    return (int)(mixed >> 32) & (WEFTI_MPI_BUCKETS - 1);
}
static inline void wefti_mpi_append(wefti_mpi_requests *list, wefti_mpi_request *r) {
    if (!list->first) list->last = &list->first;
    r->next = NULL;
    r->back = list->last;
    *list->last = r;
    list->last = &r->next;
}
static inline void wefti_mpi_remove(wefti_mpi_requests *list, wefti_mpi_request *r) {
    if (!r->back) return;
    *r->back = r->next;
    if (r->next)
        r->next->back = r->back;
    else
        list->last = r->back;
    r->back = NULL;
}
static inline void wefti_mpi_append_letter(wefti_mpi_letters *list, wefti_mpi_letter *l) {
    l->next = NULL;
    if (list->first)
        list->last->next = l;
    else
        list->first = l;
    list->last = l;
}
static inline wefti_mpi_letter *wefti_mpi_first_letter(wefti_mpi_letters *list) {
    wefti_mpi_letter *l = list->first;
    if (l) list->first = l->next;
    return l;
}
static inline wefti_mpi_letter *wefti_mpi_new_letter(wefti_mpi *c) {
    wefti_mpi_letter *l = c->spare;
    if (l)
        c->spare = l->next;
    else
        l = (wefti_mpi_letter *)malloc(sizeof *l);
    if (l) l->mpi = MPI_REQUEST_NULL;
    return l;
}
static inline void wefti_mpi_spare(wefti_mpi *c, wefti_mpi_letter *l) {
    l->next = c->spare;
    c->spare = l;
}

/* --- letters and pieces --- */

/* Sends a letter; copies `data`. */
static inline weft_status wefti_mpi_write(wefti_mpi *c, int peer, wefti_mpi_kind kind, uint64_t tag,
                                          uint64_t number, int lane, const void *data,
                                          size_t bytes) {
    wefti_mpi_letter *l = wefti_mpi_new_letter(c);
    size_t inside = kind == WEFTI_MPI_DATA ? bytes : 0;
    int done = 0;
    if (!l) return wefti_mpi_no_memory(c);
    l->peer = peer;
    l->text.tag = tag;
    l->text.bytes = bytes;
    l->text.number = number;
    l->text.kind = (int32_t)kind;
    l->text.lane = lane;
    if (inside > 0) memcpy(l->text.data, data, inside);
    int code = MPI_Isend(&l->text, (int)(WEFTI_MPI_HEAD + inside), MPI_BYTE, peer,
                         WEFTI_MPI_LETTER_TAG, c->comm, &l->mpi);
    if (code == MPI_SUCCESS) code = MPI_Test(&l->mpi, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || done)
        wefti_mpi_spare(c, l);
    else
        wefti_mpi_append_letter(&c->leaving, l);
    return wefti_mpi_check(c, code, "MPI_Isend", peer);
}

static inline weft_status wefti_mpi_post_letter(wefti_mpi *c, wefti_mpi_letter *l) {
    return wefti_mpi_check(c,
                           MPI_Irecv(&l->text, (int)sizeof l->text, MPI_BYTE, MPI_ANY_SOURCE,
                                     WEFTI_MPI_LETTER_TAG, c->comm, &l->mpi),
                           "MPI_Irecv", -1);
}

static inline weft_status wefti_mpi_piece(wefti_mpi *c, wefti_mpi_request *r) {
    size_t rest = r->bytes - r->moved;
    r->piece = rest > (size_t)WEFT_MPI_PIECE ? (size_t)WEFT_MPI_PIECE : rest;
    int tag = WEFTI_MPI_LETTER_TAG + 1 + r->lane, size = (int)r->piece;
    if (r->sends)
        return wefti_mpi_check(
            c, MPI_Isend(r->data + r->moved, size, MPI_BYTE, r->peer, tag, c->comm, &r->mpi),
            "MPI_Isend", r->peer);
    return wefti_mpi_check(
        c, MPI_Irecv(r->data + r->moved, size, MPI_BYTE, r->peer, tag, c->comm, &r->mpi),
        "MPI_Irecv", r->peer);
}
static inline weft_status wefti_mpi_move(wefti_mpi *c, wefti_mpi_request *r, int lane) {
    r->state = WEFTI_MPI_MOVES;
    r->lane = lane;
    weft_status status = wefti_mpi_piece(c, r);
    if (status >= 0 && r->piece < r->bytes) wefti_mpi_append(&c->pieces, r);
    return status;
}
/* Advances a request that MPI transfers. */
static inline weft_status wefti_mpi_advance(wefti_mpi *c, wefti_mpi_request *r) {
    int done = 0;
    weft_status status = wefti_mpi_check(c, MPI_Test(&r->mpi, &done, MPI_STATUS_IGNORE),
                                         r->sends ? "MPI_Isend" : "MPI_Irecv", r->peer);
    if (status < 0 || !done) return status;
    r->moved += r->piece;
    if (r->moved < r->bytes) return wefti_mpi_piece(c, r);
    wefti_mpi_remove(&c->pieces, r);
    if (!r->sends) c->free_lanes[c->lanes_free++] = r->lane;
    r->state = WEFTI_MPI_DONE;
    return WEFT_OK;
}

static inline weft_status wefti_mpi_new_lane(wefti_mpi *c, int *out) {
    if (c->lanes_free > 0) {
        *out = c->free_lanes[--c->lanes_free];
        return WEFT_OK;
    }
    if (c->lanes_used == c->lanes_most)
        return wefti_mpi_fail(c, WEFT_E_NOMEM,
                              "more long messages are under way than this MPI has tags");
    if (c->lanes_used == c->lanes_room) { /* so that returning a lane never needs memory */
        int room = c->lanes_room ? 2 * c->lanes_room : 64;
        int *grown = (int *)realloc(c->free_lanes, (size_t)room * sizeof *grown);
        if (!grown) return wefti_mpi_no_memory(c);
        c->free_lanes = grown;
        c->lanes_room = room;
    }
    *out = c->lanes_used++;
    return WEFT_OK;
}

/* Starts the transfer of a message into its receive. */
static inline weft_status wefti_mpi_meet(wefti_mpi *c, wefti_mpi_request *r, wefti_mpi_letter *l) {
    int lane = 0;
    bool fits = l->text.bytes <= r->bytes;
    r->bytes = (size_t)l->text.bytes;
    if (!fits) {
        r->state = WEFTI_MPI_LONGER;
        return WEFT_OK;
    }
    if (l->text.kind == WEFTI_MPI_DATA) {
        if (r->bytes > 0) memcpy(r->data, l->text.data, r->bytes);
        r->state = WEFTI_MPI_DONE;
        return WEFT_OK;
    }
    weft_status status = wefti_mpi_new_lane(c, &lane);
    if (status >= 0) status = wefti_mpi_move(c, r, lane);
    if (status < 0) return status;
    return wefti_mpi_write(c, r->peer, WEFTI_MPI_COME, r->tag, l->text.number, lane, NULL, 0);
}

/* Handles a received letter: stores it, or keeps it as a spare. */
static inline weft_status wefti_mpi_read(wefti_mpi *c, wefti_mpi_letter *l) {
    weft_status status = WEFT_OK;
    wefti_mpi_request *r;
    if (l->text.kind == WEFTI_MPI_COME) {
        for (r = c->announced.first; r && r->number != l->text.number;) r = r->next;
        if (r) { /* else it was cancelled */
            wefti_mpi_remove(&c->announced, r);
            status = wefti_mpi_move(c, r, l->text.lane);
        }
    } else {
        int bucket = wefti_mpi_bucket(l->peer, l->text.tag);
        for (r = c->wanted[bucket].first; r && !(r->peer == l->peer && r->tag == l->text.tag);)
            r = r->next;
        if (!r) {
            wefti_mpi_append_letter(&c->early[bucket], l);
            return WEFT_OK;
        }
        wefti_mpi_remove(&c->wanted[bucket], r);
        status = wefti_mpi_meet(c, r, l);
    }
    wefti_mpi_spare(c, l);
    return status;
}

/* Makes progress on all letters and requests. */
static inline weft_status wefti_mpi_progress(wefti_mpi *c) {
    for (int i = 0; i < WEFTI_MPI_POSTED; i++) { /* letters arrive in the order of their receives */
        wefti_mpi_letter *l = c->posted[c->next_posted], *fresh;
        MPI_Status from;
        int done = 0;
        weft_status status = wefti_mpi_check(c, MPI_Test(&l->mpi, &done, &from), "MPI_Irecv", -1);
        if (status < 0) return status;
        if (!done) break;
        l->peer = from.MPI_SOURCE;
        if (!(fresh = wefti_mpi_new_letter(c))) return wefti_mpi_no_memory(c);
        c->posted[c->next_posted] = fresh;
        c->next_posted = (c->next_posted + 1) % WEFTI_MPI_POSTED;
        status = wefti_mpi_post_letter(c, fresh);
        if (status >= 0) status = wefti_mpi_read(c, l);
        if (status < 0) return status;
    }
    for (int i = 0; i < 4 && c->leaving.first; i++) { /* a few at a time: one may take long */
        wefti_mpi_letter *l = wefti_mpi_first_letter(&c->leaving);
        int done = 0;
        weft_status status =
            wefti_mpi_check(c, MPI_Test(&l->mpi, &done, MPI_STATUS_IGNORE), "MPI_Isend", l->peer);
        if (done)
            wefti_mpi_spare(c, l);
        else
            wefti_mpi_append_letter(&c->leaving, l);
        if (status < 0) return status;
    }
    for (wefti_mpi_request *r = c->pieces.first, *next; r; r = next) {
        next = r->next;
        weft_status status = wefti_mpi_advance(c, r);
        if (status < 0) return status;
    }
    return WEFT_OK;
}

/* --- the table --- */

static inline weft_status wefti_mpi_begin(wefti_mpi *c, int peer, uint64_t tag, size_t bytes,
                                          wefti_mpi_request *r) {
    memset(r, 0, sizeof *r);
    r->mpi = MPI_REQUEST_NULL;
    r->peer = peer;
    r->tag = tag;
    r->bytes = bytes;
    if (c->failed < 0) return c->tell(c->failed, c->message);
    if (peer >= 0 && peer < c->size) return WEFT_OK;
    char message[80];
    snprintf(message, sizeof message, "a message of rank %d; there are %d", peer, c->size);
    return c->tell(WEFT_E_ARG, message);
}

static inline weft_status wefti_mpi_send(void *context, int peer, uint64_t tag, const void *data,
                                         size_t bytes, void *request) {
    wefti_mpi *c = (wefti_mpi *)context;
    wefti_mpi_request *r = (wefti_mpi_request *)request;
    weft_status status = wefti_mpi_begin(c, peer, tag, bytes, r);
    if (status < 0) return status;
    if (bytes <= WEFTI_MPI_SHORT)
        return wefti_mpi_write(c, peer, WEFTI_MPI_DATA, tag, 0, 0, data, bytes);
    r->state = WEFTI_MPI_WAITS;
    r->sends = true;
    r->data = (char *)(uintptr_t)data; /* only read */
    r->number = c->number++;
    wefti_mpi_append(&c->announced, r);
    status = wefti_mpi_write(c, peer, WEFTI_MPI_ANNOUNCE, tag, r->number, 0, NULL, bytes);
    if (status < 0) wefti_mpi_remove(&c->announced, r);
    return status;
}

static inline weft_status wefti_mpi_receive(void *context, int peer, uint64_t tag, void *data,
                                            size_t bytes, void *request) {
    wefti_mpi *c = (wefti_mpi *)context;
    wefti_mpi_request *r = (wefti_mpi_request *)request;
    weft_status status = wefti_mpi_begin(c, peer, tag, bytes, r);
    if (status < 0) return status;
    int bucket = wefti_mpi_bucket(peer, tag);
    wefti_mpi_letter *before = NULL, *l = c->early[bucket].first;
    r->state = WEFTI_MPI_WAITS;
    r->data = (char *)data;
    while (l && !(l->peer == peer && l->text.tag == tag)) before = l, l = l->next;
    if (!l) {
        wefti_mpi_append(&c->wanted[bucket], r);
        return WEFT_OK;
    }
    if (before)
        before->next = l->next;
    else
        c->early[bucket].first = l->next;
    if (c->early[bucket].last == l) c->early[bucket].last = before;
    status = wefti_mpi_meet(c, r, l);
    wefti_mpi_spare(c, l);
    return status;
}

static inline weft_status wefti_mpi_test(void *context, void *request, size_t *out_bytes) {
    wefti_mpi *c = (wefti_mpi *)context;
    wefti_mpi_request *r = (wefti_mpi_request *)request;
    for (int again = 0;; again++) {
        weft_status status = c->failed < 0 ? c->tell(c->failed, c->message) : WEFT_OK;
        if (status >= 0 && r->state == WEFTI_MPI_MOVES) status = wefti_mpi_advance(c, r);
        if (status < 0) return status;
        if (r->state == WEFTI_MPI_DONE) {
            if (out_bytes) *out_bytes = r->bytes;
            return WEFT_OK;
        }
        if (r->state == WEFTI_MPI_LONGER) {
            char message[128];
            snprintf(message, sizeof message,
                     "rank %d sent %llu bytes, more than were to be received", r->peer,
                     (unsigned long long)r->bytes);
            return c->tell(WEFT_E_MISMATCH, message);
        }
        if (again > 0) return WEFT_PENDING;
        if ((status = wefti_mpi_progress(c)) < 0) return status;
    }
}

/* Whether MPI completes a request within some seconds. */
static inline bool wefti_mpi_ends(MPI_Request *request, double seconds) {
    int done = 0;
    double begin = MPI_Wtime();
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if (MPI_Wtime() - begin > seconds) return false;
        (void)sched_yield();
    }
    return done;
}

static inline void wefti_mpi_cancel(void *context, void *request) {
    wefti_mpi *c = (wefti_mpi *)context;
    wefti_mpi_request *r = (wefti_mpi_request *)request;
    if (r->state == WEFTI_MPI_WAITS) {
        wefti_mpi_remove(r->sends ? &c->announced : &c->wanted[wefti_mpi_bucket(r->peer, r->tag)],
                         r);
    } else if (r->state == WEFTI_MPI_MOVES) {
        /* Its lane is never used again: data may still come on it. */
        c->torn = true;
        wefti_mpi_remove(&c->pieces, r);
        if (!r->sends) (void)MPI_Cancel(&r->mpi);
        if (!wefti_mpi_ends(&r->mpi, WEFTI_MPI_PATIENCE)) (void)MPI_Request_free(&r->mpi);
    }
    r->state = WEFTI_MPI_DONE;
    r->bytes = 0;
}

static inline weft_status wefti_mpi_exchange(void *context, const void *mine, size_t bytes,
                                             void *all) {
    wefti_mpi *c = (wefti_mpi *)context;
    if (c->failed < 0) return c->tell(c->failed, c->message);
    if (bytes > (size_t)WEFT_MPI_PIECE)
        return c->tell(WEFT_E_ARG, "a block of an exchange is above 1 GiB");
    return wefti_mpi_check(
        c, MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, c->comm),
        "MPI_Allgather", -1);
}

static inline void wefti_mpi_free_letters(wefti_mpi_letter *l) {
    for (wefti_mpi_letter *next; l; l = next) {
        next = l->next;
        free(l);
    }
}

/* Whether all ranks have reached the end of this world, so that MPI can be finalised. */
static inline bool wefti_mpi_part(wefti_mpi *c) {
    int over = 0;
    (void)MPI_Finalized(&over); /* then MPI accepts no more calls */
    if (!over && c->failed >= 0 && !c->torn) {
        MPI_Request all = MPI_REQUEST_NULL;
        c->torn = MPI_Ibarrier(c->comm, &all) != MPI_SUCCESS ||
                  !wefti_mpi_ends(&all, c->abandoned ? 1 : WEFTI_MPI_LEAVE_SECONDS);
    }
    for (wefti_mpi_letter *l; (l = wefti_mpi_first_letter(&c->leaving));) {
        if (!over && wefti_mpi_ends(&l->mpi, c->torn ? 0 : WEFTI_MPI_PATIENCE))
            free(l);
        else /* MPI keeps its memory */
            c->torn = true;
    }
    for (int i = 0; i < WEFTI_MPI_POSTED; i++) {
        wefti_mpi_letter *l = c->posted[i];
        if (!l) continue;
        if (!over && l->mpi != MPI_REQUEST_NULL) (void)MPI_Cancel(&l->mpi);
        if (!over && wefti_mpi_ends(&l->mpi, c->torn ? 0 : WEFTI_MPI_PATIENCE)) free(l);
    }
    for (int i = 0; i < WEFTI_MPI_BUCKETS; i++) wefti_mpi_free_letters(c->early[i].first);
    wefti_mpi_free_letters(c->spare);
    bool together = !over && c->failed >= 0 && !c->torn;
    /* Late messages for a torn world must not match receives of the next one. */
    if (together) (void)MPI_Comm_free(&c->comm);
    free(c->free_lanes);
    free(c);
    return together;
}
static inline void wefti_mpi_abandon(void *context) {
    ((wefti_mpi *)context)->abandoned = true;
}
static inline void wefti_mpi_close(void *context) {
    wefti_mpi *c = (wefti_mpi *)context;
    int over = 0;
    c->world = NULL; /* before the attribute goes */
    (void)MPI_Finalized(&over);
    if (!over && c->key != MPI_KEYVAL_INVALID) {
        (void)MPI_Comm_delete_attr(MPI_COMM_SELF, c->key);
        (void)MPI_Comm_free_keyval(&c->key);
    }
    (void)wefti_mpi_part((wefti_mpi *)context);
}

/* Posts the receives for letters. */
static inline weft_status wefti_mpi_open(wefti_mpi *c) {
    int *most = NULL, found = 0;
    weft_status status = wefti_mpi_check(
        c, MPI_Comm_get_attr(c->comm, MPI_TAG_UB, (void *)&most, &found), "MPI_TAG_UB", -1);
    c->lanes_most = status >= 0 && found && most ? *most : 32767;
    for (int i = 0; status >= 0 && i < WEFTI_MPI_POSTED; i++) {
        c->posted[i] = wefti_mpi_new_letter(c);
        status = c->posted[i] ? wefti_mpi_post_letter(c, c->posted[i]) : wefti_mpi_no_memory(c);
    }
    return status;
}

static inline weft_status wefti_mpi_usable(MPI_Comm comm,
                                           weft_status (*tell)(weft_status, const char *)) {
    int begun = 0, over = 0, between = 0;
    (void)MPI_Initialized(&begun);
    (void)MPI_Finalized(&over);
    if (!begun || over)
        return tell(WEFT_E_ARG, "MPI must be initialised, and not finalised, for a world of it");
    if (comm == MPI_COMM_NULL)
        return tell(WEFT_E_ARG, "a world needs a communicator; this is MPI_COMM_NULL");
    if (MPI_Comm_test_inter(comm, &between) == MPI_SUCCESS && between)
        return tell(WEFT_E_ARG, "a world needs one group of ranks; this is an intercommunicator");
    return WEFT_OK;
}

/** A transport over a duplicate of `comm`, for weft_world_from_transport, or closed by
 * out->close(out->context). Errors are told to `tell`: weft_error_raise. Collective over `comm`;
 * fails on all ranks or on none. */
static inline weft_status weft_mpi_transport(MPI_Comm comm,
                                             weft_status (*tell)(weft_status, const char *),
                                             weft_transport *out) {
    int level = MPI_THREAD_SINGLE, worst = WEFT_OK;
    weft_status status = wefti_mpi_usable(comm, tell);
    if (status < 0) return status;
    wefti_mpi *c = (wefti_mpi *)calloc(1, sizeof *c), lost;
    int mine = c ? WEFT_OK : WEFT_E_NOMEM, code;
    if (!c) { /* reports it to the other ranks */
        memset(&lost, 0, sizeof lost);
        c = &lost;
    }
    c->tell = tell;
    c->key = MPI_KEYVAL_INVALID;
    c->comm = MPI_COMM_NULL;
    if ((code = MPI_Comm_dup(comm, &c->comm)) == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(c->comm, &c->rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(c->comm, &c->size);
    if ((status = wefti_mpi_check(c, code, "MPI_Comm_dup", -1)) >= 0) {
        if (mine >= 0) mine = wefti_mpi_open(c);
        status = wefti_mpi_check(c, MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MIN, c->comm),
                                 "MPI_Allreduce", -1);
        if (status >= 0 && mine < 0)
            status = c == &lost ? wefti_mpi_no_memory(c) : c->tell(c->failed, c->message);
        else if (status >= 0 && worst < 0)
            status = tell(WEFT_E_PEER, "another rank could not make its side of the world");
    }
    if (status < 0) {
        c->torn = true;
        if (c == &lost && c->comm != MPI_COMM_NULL)
            (void)MPI_Comm_free(&c->comm);
        else if (c != &lost)
            wefti_mpi_close(c);
        return status;
    }
    (void)MPI_Query_thread(&level);
    *out = weft_transport_defaults();
    out->name = "mpi";
    out->context = c;
    out->rank = c->rank;
    out->size = c->size;
    out->any_thread = level == MPI_THREAD_MULTIPLE;
    out->request_bytes = sizeof(wefti_mpi_request);
    out->send = wefti_mpi_send;
    out->receive = wefti_mpi_receive;
    out->test = wefti_mpi_test;
    out->cancel = wefti_mpi_cancel;
    out->exchange = wefti_mpi_exchange;
    out->close = wefti_mpi_close;
    out->abandon = wefti_mpi_abandon;
    return WEFT_OK;
}

/* --- a program that ends MPI before its world --- */

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF first, and waits for the other ranks then.
 * They wait for this one, which looks alive: so it says that it will not come. */
static inline int wefti_mpi_ends_early(MPI_Comm comm, int key, void *value, void *extra) {
    wefti_mpi *c = (wefti_mpi *)value;
    (void)comm;
    (void)key;
    (void)extra;
    if (c->world) weft_world_fail(c->world, "it called MPI_Finalize before weft_world_leave");
    c->world = NULL;
    return MPI_SUCCESS;
}
/* Without the attribute the other ranks hear of it later, when their time limit is up. */
static inline void wefti_mpi_guard(wefti_mpi *c, weft_world *world) {
    if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, wefti_mpi_ends_early, &c->key, NULL) !=
        MPI_SUCCESS)
        c->key = MPI_KEYVAL_INVALID;
    else if (MPI_Comm_set_attr(MPI_COMM_SELF, c->key, c) == MPI_SUCCESS)
        c->world = world;
    else
        (void)MPI_Comm_free_keyval(&c->key);
}

/* Waits until all ranks of `comm` are here: MPI_Comm_dup has no limit. If the time is up, the
 * barrier stays under way, as MPI cannot cancel it. MPI does not say which rank is missing. */
static inline weft_status wefti_mpi_await(MPI_Comm comm, double seconds) {
    char text[MPI_MAX_ERROR_STRING + 320] = "MPI_Ibarrier: ";
    const size_t head = strlen(text);
    MPI_Request all = MPI_REQUEST_NULL;
    int done = 0, length = 0;
    const double begin = MPI_Wtime();
    int code = MPI_Ibarrier(comm, &all);
    while (code == MPI_SUCCESS && !done && MPI_Wtime() - begin < seconds) {
        code = MPI_Test(&all, &done, MPI_STATUS_IGNORE);
        if (!done) sched_yield();
    }
    if (code != MPI_SUCCESS) {
        (void)MPI_Error_string(code, text + head, &length);
        return weft_error_raise(WEFT_E_PEER, text);
    }
    if (done) return WEFT_OK;
    snprintf(text, sizeof text,
             "weft_world_from_mpi has waited for %.4g s (WEFT_JOIN_SECONDS): another rank of the "
             "communicator has not called it; it hangs, or it has called MPI_Finalize, where it "
             "waits for this one",
             seconds);
    return weft_error_raise(WEFT_E_TIMEOUT, text);
}

static inline double wefti_mpi_join_seconds(const weft_world_options *options) {
    const char *text = getenv("WEFT_JOIN_SECONDS");
    double seconds = options ? options->join_seconds : 0;
    if (!(seconds > 0) && text) seconds = strtod(text, NULL);
    return seconds > 0 ? seconds : 600;
}

/** Make a world of the ranks of `comm`, which stays the program's own. Collective over `comm`. NULL
 * options: defaults. WEFT_E_ARG outside MPI_Init and MPI_Finalize; WEFT_E_PEER with MPI's own
 * message if MPI fails. WEFT_E_TIMEOUT if a rank does not come within join_seconds: end the program
 * then, as `comm` has a barrier under way. A rank that calls MPI_Finalize before weft_world_leave
 * fails the world: the calls of the other ranks name it at once. */
static inline weft_status weft_world_from_mpi(MPI_Comm comm, const weft_world_options *options,
                                              weft_world **out) {
    weft_transport transport;
    weft_status status = wefti_mpi_usable(comm, weft_error_raise);
    if (status >= 0) status = wefti_mpi_await(comm, wefti_mpi_join_seconds(options));
    if (status >= 0) status = weft_mpi_transport(comm, weft_error_raise, &transport);
    if (status >= 0) status = weft_world_from_transport(&transport, options, out);
    if (status >= 0) wefti_mpi_guard((wefti_mpi *)transport.context, *out);
    return status;
}

#ifdef __cplusplus
}
#endif
#endif
