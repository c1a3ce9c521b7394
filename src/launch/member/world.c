/* The worlds that a member knows, for a scheduler that knows none. One is the last that was whole.
 * A later one may have been: there this member has said WHOLE, and has heard no more. */
#include "base/memory.h"
#include "launch/member/state.h"

void wefti_member_forget_worlds(wefti_member *m) {
    wefti_free(m->whole.seats);
    wefti_free(m->next.seats);
    m->whole = m->next = (wefti_member_world){0};
}

void wefti_member_is_next(wefti_member *m, wefti_vote_place place, wefti_seated *seats) {
    wefti_free(m->next.seats);
    m->next = (wefti_member_world){.place = place, .seats = seats};
}

void wefti_member_is_whole(wefti_member *m) {
    wefti_free(m->whole.seats);
    m->whole = m->next;
    m->next = (wefti_member_world){0};
}

/* Of `next`, and it has heard nothing since. */
static bool has_said_whole(const wefti_member *m) {
    return m->mend.round.phase == WEFTI_ROUND_SAID;
}

static weft_status say(wefti_member *m, const wefti_member_world *world) {
    const wefti_hosts said = {world->place.generation, world->place.size};
    unsigned char *body;
    size_t bytes;
    if (!world->place.generation) return WEFT_OK;
    WEFT_TRY(wefti_hosts_encode(&said, world->seats, &body, &bytes));
    weft_status status = wefti_wire_send(&m->caller.link, WEFTI_FRAME_HOSTS, body, bytes, NULL, 0);
    wefti_free(body);
    return status;
}

weft_status wefti_member_say_world(wefti_member *m) {
    if (!m->join.generation) return WEFT_OK;
    m->join.whole = m->whole.place;
    m->join.said = has_said_whole(m) ? m->next.place : (wefti_vote_place){0};
    m->join.mends = wefti_round_is_mending(&m->mend.round);
    m->join.arms = m->mend.armed != WEFTI_WORD_NONE;
    m->join.armed = m->join.arms || m->join.mends || m->mend.came;
    m->join.leaves = m->leave_word != WEFTI_WORD_NONE;
    if (!m->join.armed) return WEFT_OK;
    WEFT_TRY(say(m, &m->whole));
    return has_said_whole(m) ? say(m, &m->next) : WEFT_OK;
}

bool wefti_member_returns_to(wefti_member *m, uint64_t whole) {
    if (has_said_whole(m) && m->next.place.generation == whole) return wefti_member_goes_on(m);
    return !m->whole.place.generation || m->whole.place.generation == whole;
}
