#include "recovery/vote.h"

bool wefti_is_majority(int32_t here, bool has_first, int32_t size) {
    return 2 * here > size || (2 * here == size && has_first);
}

/* GO is said when all ranks have said WHOLE. So a world of which one has not was never whole. */
static bool was_never_whole(const wefti_voter *voters, int32_t count, uint64_t generation) {
    for (int32_t i = 0; i < count; i++) {
        const wefti_voter *v = &voters[i];
        const bool of_it =
            v->generation == generation || (v->generation > generation && v->whole.generation > 0);
        if (of_it && v->said.generation < generation && v->whole.generation < generation)
            return true;
    }
    return false;
}

wefti_vote wefti_vote_take(const wefti_voter *voters, int32_t count) {
    wefti_vote vote = {0};
    wefti_vote_place whole = {0}, said = {0};
    for (int32_t i = 0; i < count; i++) {
        if (voters[i].whole.generation > whole.generation) whole = voters[i].whole;
        if (voters[i].said.generation > said.generation) said = voters[i].said;
    }
    vote.whole = whole.generation;
    vote.size = whole.size;
    if (said.generation <= whole.generation || was_never_whole(voters, count, said.generation))
        return vote;
    vote.said = said.generation;
    vote.said_size = said.size;
    return vote;
}

int32_t wefti_vote_rank(const wefti_vote *vote, const wefti_voter *v) {
    if (v->whole.generation == vote->whole) return v->whole.rank;
    return v->said.generation == vote->whole ? v->said.rank : -1; /* it has not heard GO */
}

bool wefti_vote_is_past(const wefti_vote *vote, const wefti_voter *v) {
    if (v->generation < vote->whole) return true;
    return v->whole.generation && wefti_vote_rank(vote, v) < 0;
}

static bool is_majority(const wefti_vote *vote, const wefti_voter *voters, int32_t count,
                        int32_t ended) {
    int32_t here = 0;
    bool has_first = false;
    for (int32_t i = 0; i < count; i++) {
        const int32_t rank = wefti_vote_rank(vote, &voters[i]);
        if (rank < 0) continue;
        here++;
        has_first = has_first || rank == 0;
    }
    return wefti_is_majority(here, has_first, vote->size - ended);
}

bool wefti_vote_may_begin(const wefti_vote *v, const wefti_voter *voters, int32_t count,
                          int32_t ended, int32_t ended_said) {
    if (!is_majority(v, voters, count, ended)) return false;
    if (!v->said) return true;
    const wefti_vote later = {.whole = v->said, .size = v->said_size};
    return is_majority(&later, voters, count, ended_said);
}
