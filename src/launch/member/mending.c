/* A member of a world that is mended: docs/design/recovery.md. recovery decides which words of the
 * scheduler count; this file says and hears them. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/member/state.h"

static bool is_in(const wefti_member *m) {
    return m->caller.state == WEFTI_MEMBER_IN || m->caller.state == WEFTI_MEMBER_LOST;
}

static bool is_mendable(const wefti_member *m) {
    return m->placed.mends || m->placed.resizes;
}

/* --- the thread's side --- */

weft_status wefti_member_begin_mending(wefti_member *m) {
    wefti_member_mending *d = &m->mend;
    if (!is_mendable(m)) return WEFT_OK;
    const int64_t generation = (int64_t)m->placed.generation;
    d->round = wefti_round_begin(generation);
    d->came = m->placed.newcomer;
    if (m->placed.newcomer) { /* WORLD is its HALT */
        d->round = wefti_round_newcomer();
        (void)wefti_round_halt(&d->round, generation);
        d->halt = (wefti_halt){.generation = m->placed.generation, .failed = m->placed.rank};
        (void)snprintf(d->halt.text, sizeof d->halt.text, "rank %d was started again",
                       (int)m->placed.rank);
        atomic_store(&d->halted, true);
    }
    return WEFT_OK;
}

/* All that was said is void: cards, and accusations. */
static void forget(wefti_member *m) {
    wefti_free(m->last.data);
    wefti_free(m->now.data);
    m->last = m->now = (wefti_member_entry){0};
    m->entries = NULL;
    wefti_free(m->giving_up);
    m->giving_up = NULL;
    m->given_up = false;
}

weft_status wefti_member_hear_halt(wefti_caller *c, const wefti_frame *frame) {
    wefti_member *m = (wefti_member *)c;
    wefti_halt said;
    WEFT_TRY(wefti_halt_decode(frame, &said));
    if (is_mendable(m)) wefti_member_halt(m, &said);
    return WEFT_OK;
}

void wefti_member_halt(wefti_member *m, const wefti_halt *said) {
    wefti_member_mending *d = &m->mend;
    if (!wefti_round_halt(&d->round, (int64_t)said->generation)) return;
    d->halt = *said;
    m->join.used = said->used;
    m->placed.generation = m->join.generation = said->generation;
    forget(m);
    d->answered = d->whole_due = false; /* GO stays: that world was whole */
    m->said_whole = false;              /* GO would have been heard before: it was never said */
    d->standing_due = d->inside;
    atomic_store(&d->halted, true);
    pthread_cond_broadcast(&m->caller.changed);
    wefti_member_break_locked(m, said->failed, said->text);
}

bool wefti_member_is_mending(const wefti_member *m) {
    return m->mend.round.phase != WEFTI_ROUND_STEPS;
}

/* The communicator lives until the member leaves, which waits for its thread, or until another one
 * is watched, which waits for all that break the old one. */
void wefti_member_break_locked(wefti_member *m, int failed, const char *message) {
    wefti_comm *comm = m->comm;
    if (!comm) return;
    m->mend.breaking++;
    pthread_mutex_unlock(&m->caller.lock);
    wefti_comm_break(comm, failed, message);
    pthread_mutex_lock(&m->caller.lock);
    m->mend.breaking--;
    pthread_cond_broadcast(&m->caller.changed);
}

/* Another world begins: who its ranks are. Takes `seats` over, also on failure. */
static weft_status take_ranks(wefti_member *m, const wefti_mend_message *said,
                              const wefti_mend_rank *ranks, wefti_seated *seats) {
    wefti_member_mending *d = &m->mend;
    int32_t *block = wefti_calloc(3 * (size_t)said->size, sizeof *block);
    int32_t *host = wefti_calloc((size_t)said->size, sizeof *host);
    wefti_member_is_next(m, (wefti_vote_place){said->generation, said->rank, said->size}, seats);
    if (!block || !host) {
        wefti_free(block);
        wefti_free(host);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a world of %d ranks", (int)said->size);
    }
    wefti_free(d->source);
    wefti_free(m->host);
    d->source = block;
    d->was = block + said->size;
    m->host = host;
    d->resized = said->resized;
    for (int32_t r = 0; r < said->size; r++) {
        d->source[r] = ranks[r].source;
        d->was[r] = ranks[r].was;
        host[r] = seats[r].host;
    }
    m->placed.rank = said->rank;
    m->placed.size = said->size;
    m->join.numbers = said->numbers;
    return WEFT_OK;
}

weft_status wefti_member_hear_mend(wefti_caller *c, const wefti_frame *frame) {
    wefti_member *m = (wefti_member *)c;
    wefti_member_mending *d = &m->mend;
    wefti_mend_message said;
    wefti_mend_rank *ranks;
    wefti_seated *seats;
    WEFT_REQUIRE(is_mendable(m) && d->inside && !d->answered, WEFT_E_CORRUPT,
                 "a mending that was not asked for");
    WEFT_TRY(wefti_mend_decode(frame, &said, &ranks, &seats));
    const bool mine = seats[said.rank].number == m->join.number;
    if (!mine || said.generation != m->placed.generation) {
        wefti_free(ranks);
        wefti_free(seats);
        WEFT_REQUIRE(mine, WEFT_E_CORRUPT, "the scheduler mistakes this rank for another");
        return WEFT_OK;
    }
    weft_status status = take_ranks(m, &said, ranks, seats);
    wefti_free(ranks);
    WEFT_TRY(status);
    d->target = said.target;
    d->answered = wefti_round_mend(&d->round, (int64_t)said.generation);
    pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

bool wefti_member_goes_on(wefti_member *m) {
    m->mend.go = wefti_round_go(&m->mend.round, (int64_t)m->next.place.generation);
    if (m->mend.go) wefti_member_is_whole(m);
    return m->mend.go;
}

weft_status wefti_member_hear_go(wefti_caller *c, const wefti_frame *frame) {
    wefti_member *m = (wefti_member *)c;
    uint64_t generation;
    int32_t used;
    WEFT_TRY(wefti_go_decode(frame, &generation, &used));
    if (!is_mendable(m) || generation != m->placed.generation) return WEFT_OK;
    if (m->said_whole && wefti_member_goes_on(m)) m->join.used = used;
    pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

weft_status wefti_member_hear_armed(wefti_caller *c, const wefti_frame *frame) {
    (void)frame;
    ((wefti_member *)c)->mend.arm_heard = true;
    pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

static weft_status say_standing(wefti_member *m) {
    unsigned char *body;
    size_t bytes;
    WEFT_TRY(wefti_standing_encode(m->placed.generation, &m->mend.at, &body, &bytes));
    weft_status status =
        wefti_wire_send(&m->caller.link, WEFTI_FRAME_STANDING, body, bytes, NULL, 0);
    wefti_free(body);
    return status;
}

weft_status wefti_member_say_mending(wefti_member *m) {
    wefti_member_mending *d = &m->mend;
    wefti_wire *link = &m->caller.link;
    unsigned char body[WEFTI_GENERATION_BYTES];
    if (d->armed && !d->arm_sent) {
        unsigned char arm[WEFTI_ARM_BYTES];
        const size_t bytes = wefti_arm_encode(&d->arm, arm);
        WEFT_TRY(wefti_wire_send(link, WEFTI_FRAME_ARM, arm, bytes, NULL, 0));
        d->arm_sent = true;
    }
    if (d->standing_due) {
        WEFT_TRY(say_standing(m));
        d->standing_due = false;
    }
    if (d->whole_due) {
        wefti_generation_encode(m->placed.generation, body);
        WEFT_TRY(wefti_wire_send(link, WEFTI_FRAME_WHOLE, body, sizeof body, NULL, 0));
        m->said_whole = true;
        d->whole_due = false;
    }
    return WEFT_OK;
}

void wefti_member_settle(wefti_member *m) {
    while (m->mend.breaking) pthread_cond_wait(&m->caller.changed, &m->caller.lock);
}

weft_status wefti_member_halt_reason(const wefti_member *m) {
    WEFT_FAIL_OF(m->mend.halt.failed, WEFT_E_PEER, "%s", m->mend.halt.text);
}

/* --- the program's side --- */

bool wefti_member_mends(const wefti_member *m) {
    return m->placed.mends;
}
bool wefti_member_resizes(const wefti_member *m) {
    return m->placed.resizes;
}
bool wefti_member_is_newcomer(const wefti_member *m) {
    return m->placed.newcomer;
}
bool wefti_member_is_halted(const wefti_member *m) {
    return atomic_load(&m->mend.halted);
}

void wefti_member_break(wefti_member *m, int failed, const char *message) {
    pthread_mutex_lock(&m->caller.lock);
    wefti_member_break_locked(m, failed, message);
    pthread_mutex_unlock(&m->caller.lock);
}

void wefti_member_arm(wefti_member *m, const wefti_elastic *elastic) {
    pthread_mutex_lock(&m->caller.lock);
    m->mend.arm = (wefti_arm){.least = elastic->least, .patience_s = (int32_t)elastic->seconds};
    if (elastic->fits) {
        m->mend.arm.most = elastic->most;
        memcpy(m->mend.arm.fits, elastic->fits, (size_t)elastic->most / 8 + 1);
    }
    m->mend.armed = true;
    wefti_caller_ring(&m->caller);
    while (is_in(m) && !m->mend.arm_heard && !atomic_load(&m->mend.halted))
        pthread_cond_wait(&m->caller.changed, &m->caller.lock);
    pthread_mutex_unlock(&m->caller.lock);
}

/* What this thread's failure is for the others, if nobody has died. */
static void accuse(wefti_member *m, const wefti_failure *why) {
    if (m->giving_up || atomic_load(&m->mend.halted)) return;
    m->giving_up = wefti_strdup(*why->message ? why->message : "it cannot go on");
    m->fail_status = why->status < 0 ? why->status : WEFT_E_PEER;
    m->failed = why->rank == m->placed.rank || why->rank < 0 ? WEFT_RANK_NONE : why->rank;
}

static weft_status wait_for_mend(wefti_member *m) {
    wefti_member_mending *d = &m->mend;
    while (is_in(m) && !(d->answered && atomic_load(&d->halted)))
        pthread_cond_wait(&m->caller.changed, &m->caller.lock);
    if (m->caller.state == WEFTI_MEMBER_FAILED) return wefti_caller_reason(&m->caller);
    WEFT_REQUIRE(is_in(m), WEFT_E_PEER, "a world that all have left cannot be mended");
    return WEFT_OK;
}

static void tell(const wefti_member *m, wefti_mend *out) {
    const wefti_member_mending *d = &m->mend;
    *out = (wefti_mend){.generation = m->placed.generation,
                        .target = d->target,
                        .from_disk = d->source[m->placed.rank] == WEFTI_SOURCE_DISK,
                        .source = d->source,
                        .resized = d->resized,
                        .rank = m->placed.rank,
                        .size = m->placed.size,
                        .was = d->was};
}

weft_status wefti_member_mend(wefti_member *m, const wefti_stand *at, wefti_mend *out) {
    wefti_member_mending *d = &m->mend;
    wefti_failure why;
    wefti_failure_keep(WEFT_E_PEER, &why);
    WEFT_REQUIRE(is_mendable(m), WEFT_E_NO_IMPL, "this job starts no process again");
    pthread_mutex_lock(&m->caller.lock);
    accuse(m, &why);
    /* Before it says where it stands: heartbeats behind that word tell of no older wait. */
    wefti_position_enter(m->position, "being mended");
    d->at = *at;
    d->inside = true;
    d->standing_due = atomic_load(&d->halted);
    wefti_caller_ring(&m->caller);
    weft_status status = wait_for_mend(m);
    d->inside = d->standing_due = false;
    if (status >= 0) {
        tell(m, out);
        d->answered = false;
        m->placed.newcomer = false;
        atomic_store(&d->halted, false);
    }
    pthread_mutex_unlock(&m->caller.lock);
    return status;
}

weft_status wefti_member_whole(wefti_member *m) {
    wefti_member_mending *d = &m->mend;
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&m->caller.lock);
    d->whole_due = wefti_round_whole(&d->round);
    wefti_caller_ring(&m->caller);
    while (is_in(m) && !d->go && !atomic_load(&d->halted))
        pthread_cond_wait(&m->caller.changed, &m->caller.lock);
    if (m->caller.state == WEFTI_MEMBER_FAILED)
        status = wefti_caller_reason(&m->caller);
    else if (!d->go)
        status = WEFT_PENDING;
    else
        wefti_position_enter(m->position, "");
    d->whole_due = d->go = false;
    pthread_mutex_unlock(&m->caller.lock);
    return status;
}
