/* Whether a scheduler that knows nothing of a job may go on with it, by what the ranks say that
 * have come back. It calls nothing, and knows neither sockets nor clocks. docs/design/standby.md
 * has the rule. tests/launch/test_vote.c explores it: schedulers follow each other, or live side by
 * side on a network that may be cut.
 *
 * The world that counts is the last one that was whole. Whoever has more than half of its ranks, or
 * half of them with rank 0, has the job: of two schedulers at most one. */
#ifndef WEFTI_VOTE_H
#define WEFTI_VOTE_H

#include <stdbool.h>
#include <stdint.h>

/* More than half of the ranks of a world, or half of them with rank 0. */
bool wefti_is_majority(int32_t here, bool has_first, int32_t size);

/* A place in a world. */
typedef struct wefti_vote_place {
    uint64_t generation; /* of the world; 0: none */
    int32_t rank, size;
} wefti_vote_place;

/* What a rank says that has come back. */
typedef struct wefti_voter {
    uint64_t generation;          /* the latest of which it has heard */
    wefti_vote_place whole, said; /* the last world that it knows to have been whole, and the last
                                     of which it has said WHOLE */
} wefti_voter;

typedef struct wefti_vote {
    uint64_t whole;          /* the last world that some rank knows to have been whole */
    uint64_t said;           /* a later one that may have been, as far as is known; 0: none */
    int32_t size, said_size; /* of these two */
} wefti_vote;

wefti_vote wefti_vote_take(const wefti_voter *voters, int32_t count);
/* Its rank in the world that counts; -1: it was not there, so it has no vote. */
int32_t wefti_vote_rank(const wefti_vote *v, const wefti_voter *voter);
/* Whether others have gone on without it, so that its place is void. */
bool wefti_vote_is_past(const wefti_vote *v, const wefti_voter *voter);
/* `ended`: ranks of the world that counts, and `ended_said` of the later one, whose processes have
 * ended and have not come back. They are on no side. */
bool wefti_vote_may_begin(const wefti_vote *v, const wefti_voter *voters, int32_t count,
                          int32_t ended, int32_t ended_said);

#endif
