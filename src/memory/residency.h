/* What leaves device memory for a tier below it, so that a program fits. */
#ifndef WEFTI_RESIDENCY_H
#define WEFTI_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"

enum { WEFTI_RESIDENCY_TIERS = 2, WEFTI_RESIDENCY_STAYS = -1 };

/* Device memory that a candidate frees at the times [first, last]. It may be negative: the move
 * needs more than it frees. */
typedef struct wefti_residency_span {
    int32_t first, last;
    int64_t bytes;
} wefti_residency_span;

/* Something that stays in device memory, or moves to one of the tiers as a whole. */
typedef struct wefti_residency_candidate {
    int32_t kind; /* the naive plan moves all of kind 0 first */
    const wefti_residency_span *spans;
    int32_t span_count;
    int64_t bytes; /* that it takes in a tier */
    int64_t moved; /* that a step copies */
    struct {
        bool allowed;
        double seconds; /* that a step becomes longer, at least 0 */
    } to[WEFTI_RESIDENCY_TIERS];
} wefti_residency_candidate;

typedef struct wefti_residency_problem {
    const int64_t *need; /* [times]: bytes of device memory if nothing moves */
    int32_t times;
    int64_t limit; /* of device memory */
    const wefti_residency_candidate *candidates;
    int32_t count;
    int64_t room[WEFTI_RESIDENCY_TIERS]; /* bytes free in each tier */
} wefti_residency_problem;

typedef struct wefti_residency {
    int8_t *tier; /* [count]: of each candidate, or WEFTI_RESIDENCY_STAYS; the caller's array */
    bool fits;
    bool exact;     /* no other choice takes fewer seconds */
    double seconds; /* sums over the candidates that move */
    int64_t moved;
    int64_t naive; /* bytes that the naive plan moves; INT64_MAX: it does not fit */
    int64_t peak; /* bytes of device memory that the choice needs, where the limit can bind; at most
                     the limit */
    /* If nothing fits: the tier that lacks bytes, or WEFTI_RESIDENCY_STAYS: device memory lacks
     * them, also with all candidates moved. */
    int32_t lacking;
    int64_t lacks;
} wefti_residency;

/* Chooses the moves that take the fewest seconds and, among equals, the fewest bytes, such that the
 * limit holds at each time and each tier has room. They never move more bytes than the naive plan,
 * which moves all of kind 0, then also all of kind 1, and so on until the limit holds. Branch and
 * bound: exact for about 20 candidates. If there are too many choices, the best one found counts.
 * A pure function: equal problems have equal answers on all machines. */
weft_status wefti_residency_choose(const wefti_residency_problem *problem,
                                   wefti_residency *out) WEFT_CHECKED;

#endif
