/* The rounds of a repair: see mend.h. */
#include "session/mend/mend.h"

#include "base/memory.h"
#include "session/parts.h"

bool wefti_repair_can(const weft_world *world, const wefti_agreement *agreement,
                      weft_status status) {
    if (status >= 0 || !wefti_world_mends(world)) return false;
    if (agreement && wefti_agreement_failed(agreement)) return false;
    return wefti_is_of_others(world, status);
}

/* ---- a new communicator ---- */

weft_status wefti_repair_mend(wefti_repair *m) {
    /* In the world that was whole last, whose size the session has. */
    const int32_t size = m->is_new ? 0 : weft_session_devices(m->session);
    const int32_t me = m->is_new ? 0 : wefti_session_origin_of(m->session).me;
    wefti_stand at = {.step = -1};
    int32_t *holds;
    WEFT_NEW_ARRAY(holds, int32_t, size + 1);
    if (!m->is_new) {
        wefti_survivor_halt(&m->session->survivor);
        at = wefti_survivor_stands(&m->session->survivor);
    }
    for (int32_t r = 0; r < size && at.step >= 0; r++)
        if (r != me &&
            (wefti_session_replicates(m->session, me, r) || wefti_session_keeps(m->session, me, r)))
            holds[at.holds_count++] = r;
    at.holds = holds;
    m->agreement = NULL; /* the world ends it */
    weft_status status = wefti_world_mend(m->world, &at, &m->mend);
    m->ended = status < 0;
    wefti_free(holds);
    if (status >= 0) m->place = WEFTI_REPAIR_MENDED;
    return status;
}

/* ---- where the ranks stand ---- */

static bool is_new(const wefti_repair *m, int32_t rank) {
    return m->ranks[rank].phase == WEFTI_SURVIVOR_NEW;
}

static int64_t step_of(const wefti_repair *m, int32_t rank) {
    return wefti_survivor_stands(&m->ranks[rank]).step;
}

/* Of equals, the lowest rank. */
static int32_t choose_teller(const wefti_repair *m) {
    int32_t teller = -1;
    for (int32_t r = m->size - 1; r >= 0; r--)
        if (!is_new(m, r) && (teller < 0 || step_of(m, r) >= step_of(m, teller))) teller = r;
    return teller;
}

weft_status wefti_repair_meet(wefti_repair *m) {
    const wefti_survivor own = m->is_new ? wefti_survivor_new() : m->session->survivor;
    wefti_free(m->ranks);
    m->size = weft_world_size(m->world);
    m->ranks = wefti_calloc((size_t)m->size, sizeof *m->ranks);
    WEFT_TRY(wefti_agreement_of(m->world, &m->agreement));
    WEFT_TRY(wefti_agree_records(m->agreement, &own, sizeof own, m->ranks));
    m->newcomers = 0;
    for (int32_t r = 0; r < m->size; r++) m->newcomers += is_new(m, r);
    m->teller = choose_teller(m);
    m->place = WEFTI_REPAIR_MET;
    return WEFT_OK;
}

/* ---- one state ---- */

static weft_status call(wefti_repair *m, wefti_repair_call *what) {
    return what ? what(m->context, m) : WEFT_OK;
}

static weft_status come_to_one_state(wefti_repair *m) {
    if (m->mend.from_disk) {
        WEFT_TRY(wefti_session_begin_again(m->session));
        return call(m, m->calls->read);
    }
    WEFT_TRY(wefti_session_advance(m->session, m->mend.target));
    WEFT_TRY(wefti_session_give(m->session, m->mend.target, m->mend.source));
    WEFT_TRY(wefti_session_gather_again(m->session));
    return call(m, m->calls->settled);
}

static weft_status move_over(wefti_repair *m) {
    if (m->newcomers) WEFT_TRY(call(m, m->calls->welcome));
    return wefti_session_abandon(m->session, m->newcomers > 0);
}

/* The world keeps its size. */
static weft_status stay(wefti_repair *m) {
    WEFT_TRY(m->is_new ? call(m, m->calls->arrive) : move_over(m));
    if (m->newcomers) WEFT_TRY(call(m, m->calls->check));
    return come_to_one_state(m);
}

static weft_status repair(wefti_repair *m) {
    if (m->place == WEFTI_REPAIR_MENDED) WEFT_TRY(wefti_repair_meet(m));
    WEFT_TRY(call(m, m->calls->meet));
    if (m->teller < 0) {
        WEFT_TRY(call(m, m->calls->begin));
        m->session->survivor.borrowed = m->mend.resized;
        return WEFT_OK;
    }
    WEFT_TRY(m->mend.resized ? call(m, m->calls->resize) : stay(m));
    return wefti_session_copy(m->session);
}

/* ---- until the world is whole ---- */

/* A newcomer is unlike the others. It fails, and they wait for the next one. */
static bool is_of_a_newcomer(const wefti_repair *m, weft_status status) {
    return status == WEFT_E_MISMATCH && m->newcomers > 0 && !m->is_new;
}

weft_status wefti_repair_run(wefti_repair *m) {
    for (;; m->place = WEFTI_REPAIR_BROKEN) {
        if (m->place == WEFTI_REPAIR_BROKEN) WEFT_TRY(wefti_repair_mend(m));
        weft_status status = repair(m);
        if (status >= 0) {
            /* A process that comes to a world of another size belongs to it once it is whole. */
            wefti_survivor_settled(&m->session->survivor, m->mend.resized);
            m->is_new = m->is_new && m->session->survivor.borrowed;
            if (!m->mend.resized) wefti_world_forget(m->world);
            status = wefti_world_whole(m->world);
        }
        if (m->calls->end_round) m->calls->end_round(m->context, m, status == WEFT_OK);
        if (status == WEFT_OK) {
            wefti_survivor_go(&m->session->survivor);
            wefti_world_forget(m->world);
            return WEFT_OK;
        }
        const bool again = status == WEFT_PENDING || is_of_a_newcomer(m, status) ||
                           wefti_repair_can(m->world, m->agreement, status);
        if (!again) return wefti_fail_world(m->world, status);
        if (!m->is_new) continue;
        if (m->calls->drop) m->calls->drop(m->context);
    }
}

void wefti_repair_free(wefti_repair *m) {
    wefti_free(m->ranks);
    m->ranks = NULL;
}
