/* Definitions that match.c (the play) and match_text.c (its messages) share. */
#ifndef WEFTI_MATCH_PARTS_H
#define WEFTI_MATCH_PARTS_H

#include "base/memory.h"
#include "base/text.h"
#include "comm/comm.h"
#include "program/match.h"

/* One post, or the transfer that a rank waits for, with its place in the program. */
typedef struct wefti_match_side {
    const wefti_program *program;
    const wefti_step *step;
    const wefti_instruction *code; /* NULL: the step's own transfer */
    const wefti_transfer *transfer;
    int32_t kind;  /* equal transfers of all ranks have one number */
    int32_t micro; /* the microbatch */
} wefti_match_side;

/* Posts that meet: the first one, and their number. */
typedef struct wefti_meeting {
    wefti_match_side first;
    int32_t arrived;
} wefti_meeting;

/* A group of ranks and a tag. With classes: all classes that meet in groups of one kind. */
typedef struct wefti_match_channel {
    struct wefti_match_channel *next; /* in the same hash bucket */
    uint64_t tag;
    int32_t members;
    const int32_t *ranks;                  /* players: indices in wefti_match.ranks */
    const struct wefti_match_group *group; /* with classes: the kind of group */
    int64_t *posted;                       /* per member */
    bool *waiting;
    int64_t complete, begin; /* complete: meetings that are over; begin: number of open[0] */
    wefti_meeting *open;
    int64_t used, capacity;
} wefti_match_channel;

/* A post in flight: its number in the channel, and the addresses of its source and its destination
 * as bits, which move on by `stride` per iteration of a loop. */
typedef struct wefti_match_post {
    int64_t number, place[2], stride[2];
} wefti_match_post;

/* A transfer in one rank's table. */
typedef struct wefti_match_end {
    wefti_match_channel *channel;
    int32_t kind, slot; /* slot: the player's index in the channel */
    uint32_t posted, waited;
    wefti_match_post in_flight[WEFTI_COMM_DEPTH];
    wefti_match_side last; /* the last post */
} wefti_match_end;

/* A player: a rank, or the representative of a class. */
typedef struct wefti_match_rank {
    const wefti_program *program;
    wefti_match_end *ends;
    int32_t count, under_way;
    wefti_cursor at;          /* the rank's position */
    int32_t iteration;        /* of the loop that the rank was in, in the remembered state */
    int32_t code, joined_end; /* inside the call of this step; posts before joined_end are done */
    bool entered;             /* the rank is inside the call of this step */
    bool blocked;
    wefti_match_side waits; /* if blocked: the transfer that it waits for */
} wefti_match_rank;

/* match_loop.c: a state of the play that may come again. */
typedef struct wefti_match_repeat {
    int32_t reference; /* the rank whose iterations count; -1: no rank has a loop */
    bool known;        /* a state is remembered */
    uint64_t digest;
    int64_t passed, patience; /* iterations since then; after how many a new state is remembered */
} wefti_match_repeat;

typedef struct wefti_match {
    wefti_arena *arena;
    wefti_match_rank *ranks; /* players */
    int32_t count;
    const wefti_match_classes *classes; /* NULL: each player is a rank */
    struct wefti_match_group *groups;   /* with classes: kinds of groups, a list */
    wefti_section section;
    int32_t *queue; /* ranks that can continue */
    int32_t queued;
    wefti_match_channel **channels;
    struct wefti_match_kind **kinds;
    int32_t kind_count;
    uint64_t buckets;
    wefti_match_repeat repeat;
} wefti_match;

/* The oldest post in flight. */
static inline wefti_match_post *wefti_match_oldest(wefti_match_end *end) {
    return &end->in_flight[end->waited % WEFTI_COMM_DEPTH];
}

/* match_loop.c. begin: with a section. at: when a rank has begun another iteration of its loop. If
 * the play repeats itself, the ranks skip as many iterations as they can. */
void wefti_match_repeat_begin(wefti_match *m);
void wefti_match_repeat_at(wefti_match *m, const wefti_match_rank *rank);

/* match.c: a channel with `tag` among `players`; an existing one, or a new one. */
weft_status wefti_match_channel_of(wefti_match *m, uint64_t hash, uint64_t tag, int32_t members,
                                   const int32_t *players, const struct wefti_match_group *group,
                                   wefti_match_channel **out) WEFT_CHECKED;

/* match_classes.c. find_channel: the channel in which the transfer of a class meets, and the
 * class's slot there. digest, equal: of transfers up to the ranks and the place of their groups. */
weft_status wefti_match_class_channel(wefti_match *m, const wefti_transfer *t, int32_t player,
                                      wefti_match_end *end) WEFT_CHECKED;
uint64_t wefti_match_form_digest(const wefti_transfer *t);
bool wefti_match_form_equal(const wefti_transfer *a, const wefti_transfer *b);

/* match_copies.c: the moves of one program. */
weft_status wefti_match_moves(const wefti_match *m, const wefti_program *p) WEFT_CHECKED;

/* match_text.c. All return WEFT_E_MISMATCH, or WEFT_E_NOMEM. */
weft_status wefti_match_differ(const wefti_match *m, const wefti_match_side *a,
                               const wefti_match_side *b) WEFT_CHECKED;
weft_status wefti_match_stuck(const wefti_match *m) WEFT_CHECKED;
weft_status wefti_match_wrong(const wefti_match *m, const wefti_match_side *side,
                              const char *what) WEFT_CHECKED; /* "rank 1 in .. <what>" */

#endif
