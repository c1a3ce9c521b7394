/* A member of a world that is mended: docs/design/recovery.md. recovery decides which words of the
 * scheduler count; this file says and hears them. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/member/state.h"

static bool is_mendable(const wefti_member *m) {
    return m->placed.mends || m->placed.resizes;
}

/* --- the thread's side --- */

static bool happens(wefti_member *m, wefti_round_event event, uint64_t generation) {
    const bool counts = wefti_round_happens(&m->mend.round, event, (int64_t)generation);
    atomic_store(&m->mend.halted, wefti_round_is_halted(&m->mend.round));
    return counts;
}

weft_status wefti_member_begin_mending(wefti_member *m) {
    wefti_member_mending *d = &m->mend;
    if (!is_mendable(m)) return WEFT_OK;
    d->round = wefti_round_begin((int64_t)m->placed.generation);
    d->came = m->placed.newcomer;
    if (m->placed.newcomer) { /* WORLD is its HALT */
        d->round = wefti_round_newcomer();
        (void)happens(m, WEFTI_HEARS_HALT, m->placed.generation);
        d->halt = (wefti_halt){.generation = m->placed.generation, .failed = m->placed.rank};
        (void)snprintf(d->halt.text, sizeof d->halt.text, "rank %d was started again",
                       (int)m->placed.rank);
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
    m->now_word = m->fail_word = WEFTI_WORD_NONE;
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
    if (!happens(m, WEFTI_HEARS_HALT, said->generation)) return;
    d->halt = *said;
    m->join.used = said->used;
    m->placed.generation = m->join.generation = said->generation;
    forget(m);
    pthread_cond_broadcast(&m->caller.changed);
    wefti_member_break_locked(m, said->failed, said->text);
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
    WEFT_REQUIRE(is_mendable(m) && d->round.phase == WEFTI_ROUND_STOOD, WEFT_E_CORRUPT,
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
    (void)happens(m, WEFTI_HEARS_MEND, said.generation);
    pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

bool wefti_member_goes_on(wefti_member *m) {
    if (!happens(m, WEFTI_HEARS_GO, m->next.place.generation)) return false;
    wefti_member_is_whole(m);
    return true;
}

weft_status wefti_member_hear_go(wefti_caller *c, const wefti_frame *frame) {
    wefti_member *m = (wefti_member *)c;
    uint64_t generation;
    int32_t used;
    WEFT_TRY(wefti_go_decode(frame, &generation, &used));
    if (!is_mendable(m) || generation != m->placed.generation) return WEFT_OK;
    if (wefti_member_goes_on(m)) m->join.used = used;
    pthread_cond_broadcast(&c->changed);
    return WEFT_OK;
}

weft_status wefti_member_hear_armed(wefti_caller *c, const wefti_frame *frame) {
    wefti_word *armed = &((wefti_member *)c)->mend.armed;
    (void)frame;
    if (*armed == WEFTI_WORD_SAID) *armed = WEFTI_WORD_HEARD;
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
    if (d->armed == WEFTI_WORD_DUE) {
        unsigned char arm[WEFTI_ARM_BYTES];
        const size_t bytes = wefti_arm_encode(&d->arm, arm);
        WEFT_TRY(wefti_wire_send(link, WEFTI_FRAME_ARM, arm, bytes, NULL, 0));
        d->armed = WEFTI_WORD_SAID;
    }
    if (d->round.phase == WEFTI_ROUND_STANDS) {
        WEFT_TRY(say_standing(m));
        (void)happens(m, WEFTI_DOES_STAND, m->placed.generation);
    }
    if (d->round.phase == WEFTI_ROUND_WHOLE) {
        wefti_generation_encode(m->placed.generation, body);
        WEFT_TRY(wefti_wire_send(link, WEFTI_FRAME_WHOLE, body, sizeof body, NULL, 0));
        (void)happens(m, WEFTI_DOES_SAY, m->placed.generation);
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
    if (m->mend.armed == WEFTI_WORD_NONE) m->mend.armed = WEFTI_WORD_DUE;
    wefti_caller_ring(&m->caller);
    while (wefti_member_is_in(m) && m->mend.armed != WEFTI_WORD_HEARD &&
           !atomic_load(&m->mend.halted))
        pthread_cond_wait(&m->caller.changed, &m->caller.lock);
    pthread_mutex_unlock(&m->caller.lock);
}

/* What this thread's failure is for the others, if nobody has died. */
static void accuse(wefti_member *m, const wefti_failure *why) {
    if (m->giving_up || atomic_load(&m->mend.halted)) return;
    wefti_member_accuse(m, why->status < 0 ? why->status : WEFT_E_PEER,
                        why->rank == m->placed.rank || why->rank < 0 ? WEFT_RANK_NONE : why->rank,
                        *why->message ? why->message : "it cannot go on");
}

static weft_status wait_for_mend(wefti_member *m) {
    while (wefti_member_is_in(m) && m->mend.round.phase != WEFTI_ROUND_ANSWERED)
        pthread_cond_wait(&m->caller.changed, &m->caller.lock);
    if (m->caller.state == WEFTI_MEMBER_FAILED) return wefti_caller_reason(&m->caller);
    WEFT_REQUIRE(wefti_member_is_in(m), WEFT_E_PEER, "a world that all have left cannot be mended");
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
    (void)happens(m, WEFTI_DOES_ASK, m->placed.generation);
    wefti_caller_ring(&m->caller);
    weft_status status = wait_for_mend(m);
    if (status >= 0) {
        tell(m, out);
        (void)happens(m, WEFTI_DOES_TAKE, m->placed.generation);
        m->placed.newcomer = false;
    }
    pthread_mutex_unlock(&m->caller.lock);
    return status;
}

weft_status wefti_member_whole(wefti_member *m) {
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&m->caller.lock);
    const uint64_t generation = m->placed.generation; /* another HALT may follow its GO at once */
    (void)happens(m, WEFTI_DOES_REACH, generation);
    wefti_caller_ring(&m->caller);
    while (wefti_member_is_in(m) && m->whole.place.generation < generation &&
           !atomic_load(&m->mend.halted))
        pthread_cond_wait(&m->caller.changed, &m->caller.lock);
    if (m->caller.state == WEFTI_MEMBER_FAILED)
        status = wefti_caller_reason(&m->caller);
    else if (m->whole.place.generation < generation)
        status = WEFT_PENDING;
    else
        wefti_position_enter(m->position, "");
    pthread_mutex_unlock(&m->caller.lock);
    return status;
}
