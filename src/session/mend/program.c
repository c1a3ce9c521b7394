/* Programs that use sessions themselves: their calls mend the world. See mend.h.
 *
 * A newcomer is a process of the same program. Its create and add agree with the ranks that go on,
 * which answer from what they know. Its first other call takes the state of the rank. */
#include "base/memory.h"
#include "session/mend/mend.h"
#include "session/parts.h"

static bool is_halted(void *context, int32_t rank) {
    (void)rank;
    return wefti_world_is_halted(context);
}

/* ---- what a program gives and takes ---- */

static weft_status begin_state(weft_session *s) {
    weft_status status = s->keeper.begin ? s->keeper.begin(s->keeper.context, s) : WEFT_OK;
    return s->world ? wefti_agree(s->agreement, status) : status;
}

/* The teller gives; all hear it, and newcomers take it. */
static weft_status hand_over(weft_session *s, const wefti_repair *m) {
    const void *own = NULL;
    size_t bytes = 0;
    int64_t *offsets;
    char *all;
    weft_status status = WEFT_OK;
    if (s->me == m->teller && s->keeper.give)
        status = s->keeper.give(s->keeper.context, &own, &bytes);
    WEFT_TRY(wefti_agree(s->agreement, status));
    WEFT_TRY(wefti_agree_gather(s->agreement, own, (int64_t)bytes, &all, &offsets));
    if (m->is_new && s->keeper.take)
        status = s->keeper.take(s->keeper.context, all + offsets[m->teller],
                                (size_t)(offsets[m->teller + 1] - offsets[m->teller]));
    wefti_free(offsets);
    return wefti_agree(s->agreement, status);
}

/* ---- a round ---- */

static weft_status meet(void *context, wefti_repair *m) {
    weft_session *s = context;
    s->agreement = m->agreement;
    return WEFT_OK;
}

/* The first time, create and add have told of the graphs. */
static weft_status arrive(void *context, wefti_repair *m) {
    weft_session *s = context;
    (void)m;
    if (s->state != WEFTI_SESSION_SEATED) WEFT_TRY(wefti_session_tell_graphs(s));
    s->state = WEFTI_SESSION_MENDS;
    return wefti_session_arrive(s);
}

static weft_status begin(void *context, wefti_repair *m) {
    weft_session *s = context;
    WEFT_TRY(arrive(s, m));
    s->survivor = wefti_survivor_begin(0);
    return begin_state(s);
}

static weft_status read_state(void *context, wefti_repair *m) {
    (void)m;
    return begin_state(context);
}

static weft_status settled(void *context, wefti_repair *m) {
    return m->newcomers ? hand_over(context, m) : WEFT_OK;
}

static void drop(void *context) {
    wefti_session_stop(context);
}

static const wefti_repair_calls calls = {.meet = meet,
                                         .begin = begin,
                                         .arrive = arrive,
                                         .read = read_state,
                                         .settled = settled,
                                         .drop = drop};

/* Ends with WEFT_E_RECOVERED. */
static weft_status go_on(weft_session *s, wefti_repair *m) {
    m->calls = &calls;
    m->context = m->session = s;
    s->state = s->state == WEFTI_SESSION_NEWCOMER ? WEFTI_SESSION_SEATED : WEFTI_SESSION_MENDS;
    weft_status status = wefti_repair_run(m);
    s->state = status >= 0 ? WEFTI_SESSION_BEGAN : WEFTI_SESSION_NEW;
    s->mends = status >= 0;
    WEFT_TRY(status);
    wefti_session_halt_when(s, is_halted, s->world);
    wefti_world_arm(s->world, NULL);
    WEFT_FAIL(WEFT_E_RECOVERED,
              "a process of the job was lost and replaced (state from %s): feed again after step "
              "%lld",
              m->teller < 0 || m->mend.from_disk ? "the start, or the last file" : "memory",
              (long long)s->survivor.step);
}

/* ---- newcomers ---- */

static weft_status meet_first(weft_session *s) {
    wefti_repair *m = s->joining;
    for (;;) {
        weft_status status = wefti_repair_meet(m);
        s->agreement = m->agreement;
        if (status >= 0 || !wefti_repair_can(s->world, m->agreement, status)) return status;
        WEFT_TRY(wefti_repair_mend(m));
    }
}

weft_status wefti_session_enter(weft_session *s) {
    s->mends = s->options.recovery && s->world && wefti_world_mends(s->world);
    const wefti_mend *given = s->mends ? wefti_world_newcomer(s->world) : NULL;
    if (!given) return WEFT_OK;
    WEFT_NEW(s->joining, wefti_repair);
    *s->joining = (wefti_repair){
        .world = s->world, .is_new = true, .place = WEFTI_REPAIR_MENDED, .mend = *given};
    s->state = WEFTI_SESSION_NEWCOMER;
    return meet_first(s);
}

bool wefti_session_meets_again(weft_session *s, weft_status *status) {
    wefti_repair *m = s->joining;
    while (m && wefti_repair_can(s->world, m->agreement, *status)) {
        *status = wefti_repair_mend(m);
        if (*status >= 0) *status = meet_first(s);
        if (*status >= 0) *status = wefti_session_tell_graphs(s);
        if (*status >= 0) return true;
        if (m->ended) break;
    }
    return false;
}

weft_status wefti_session_take_seat(weft_session *s) {
    wefti_repair *m = s->joining;
    s->joining = NULL;
    weft_status status = go_on(s, m);
    wefti_repair_free(m);
    wefti_free(m);
    return status;
}

/* ---- all ranks ---- */

weft_status wefti_session_began(weft_session *s) {
    s->state = WEFTI_SESSION_MENDS;
    weft_status status = s->keeper.begin ? begin_state(s) : WEFT_OK;
    s->state = WEFTI_SESSION_NEW;
    if (status < 0 || !s->mends) return status;
    WEFT_TRY(wefti_session_copy(s)); /* from now on, each rank has a holder */
    wefti_session_halt_when(s, is_halted, s->world);
    wefti_world_arm(s->world, NULL);
    return WEFT_OK;
}

weft_status wefti_session_settle(weft_session *s, weft_status status) {
    if (status >= 0 || !s->mends || !s->workers) return status;
    if (s->state != WEFTI_SESSION_NEW && s->state != WEFTI_SESSION_BEGAN) return status;
    if (!wefti_repair_can(s->world, s->agreement, status)) return status;
    wefti_repair m = {.world = s->world};
    status = go_on(s, &m);
    wefti_repair_free(&m);
    return status;
}

weft_status weft_session_recover(weft_session *s, weft_status status) {
    return wefti_session_settle(s, status);
}

weft_status weft_session_begin(weft_session *s, const weft_session_keeper *keeper) {
    weft_session_keeper own = weft_session_keeper_defaults();
    const weft_status taken =
        s->workers ? WEFT_RAISE(WEFT_E_ARG, "begin a session before its first other call")
                   : wefti_struct_take("weft_session_keeper", keeper, &own);
    WEFT_TRY(wefti_fail_world(s->world, taken));
    s->keeper = own;
    weft_status status = wefti_session_start(s);
    return status == WEFT_E_RECOVERED ? WEFT_OK : status;
}

void wefti_session_leave(weft_session *s) {
    if (s->joining) wefti_repair_free(s->joining);
    wefti_free(s->joining);
}
