/* A run goes on after a process of its world has died.
 *
 * The failed call returns to run.c. Then, in this order: the write of a checkpoint under way ends,
 * whole or absent. The world is mended (comm/world.h): a new process has taken the place of each
 * dead one, and there is a new communicator. The ranks tell each other where they stand. Newcomers
 * set up (seat.c). All sessions move to the new communicator, and come to one state. The loop goes
 * on behind it. If a further process dies meanwhile, all of it begins again. */
#include <stdio.h>

#include "train/loop/loop.h"

bool wefti_training_can_mend(const wefti_training *t, weft_status status) {
    weft_world *world = t->ranks.world;
    if (status >= 0 || !t->job->recovery.enabled || !wefti_world_mends(world)) return false;
    if (t->ranks.agreement && wefti_agreement_failed(t->ranks.agreement)) return false;
    return !t->ranks.ended && wefti_is_of_others(world, status);
}

static bool is_halted(void *context, int32_t rank) {
    const wefti_training *t = context;
    (void)rank;
    return wefti_world_is_halted(t->ranks.world);
}

weft_status wefti_training_arm(wefti_training *t) {
    wefti_checkpoint_tensor *all;
    if (!t->job->recovery.enabled || !wefti_world_mends(t->ranks.world)) return WEFT_OK;
    WEFT_TRY(wefti_training_saved(t, &all)); /* starts the session, which is collective */
    wefti_free(all);
    wefti_session_halt_when(t->session, is_halted, t);
    wefti_world_arm(t->ranks.world);
    return WEFT_OK;
}

/* ---- where the ranks stand ---- */

typedef struct mend_record {
    int64_t step;   /* updates in its state; -1: none */
    int64_t offset; /* of its samples: their position at step 0 */
    int32_t stage;  /* what is done behind the target */
    int32_t stopping;
    bool ready;  /* it can make the next update by itself */
    bool is_new; /* it has to set up */
} mend_record;

/* What all ranks know. */
typedef struct standing {
    const wefti_mend *mend;
    mend_record *ranks; /* [size] */
    int32_t size, teller, newcomers;
} standing;

static mend_record record_of(const wefti_training *t, const wefti_mend *m) {
    mend_record x = {.step = -1, .stage = WEFTI_STAGE_STEPPED, .stopping = t->ranks.stopping};
    x.is_new = !t->session;
    if (x.is_new) return x;
    x.step = wefti_session_stands(t->session).step;
    x.ready = wefti_session_stands(t->session).ready;
    x.offset = t->progress.position - t->progress.step * t->job->train.batch;
    if (t->progress.step == m->target) x.stage = (int32_t)t->progress.stage;
    return x;
}

/* A rank that lives, with the target's state if there is one. */
static int32_t choose_teller(const standing *s) {
    int32_t teller = -1;
    for (int32_t r = s->size - 1; r >= 0; r--)
        if (!s->ranks[r].is_new && (teller < 0 || s->ranks[r].step >= s->ranks[teller].step))
            teller = r;
    return teller;
}

static weft_status exchange(wefti_training *t, standing *s) {
    const mend_record own = record_of(t, s->mend);
    WEFT_TRY(wefti_agreement_of(t->ranks.world, &t->ranks.agreement));
    WEFT_TRY(wefti_agree_records(t->ranks.agreement, &own, sizeof own, s->ranks));
    for (int32_t r = 0; r < s->size; r++) {
        s->newcomers += s->ranks[r].is_new;
        if (s->ranks[r].stopping && !t->ranks.stopping) t->ranks.stopping = s->ranks[r].stopping;
    }
    s->teller = choose_teller(s);
    return WEFT_OK;
}

/* ---- sessions ---- */

static weft_status set_up(wefti_training *t, const standing *s) {
    WEFT_TRY(wefti_training_be_briefed(t, s->teller));
    WEFT_TRY(wefti_training_build(t));
    WEFT_TRY(wefti_session_arrive(t->session));
    wefti_session_halt_when(t->session, is_halted, t);
    wefti_agreement *agreement = t->ranks.agreement;
    const wefti_briefing none = {.bf16 = WEFT_BF16_AUTO};
    t->ranks.agreement = NULL;
    t->briefing = &none;
    weft_status status = wefti_training_take_key(t, true);
    if (status >= 0) status = wefti_training_bind(t);
    if (status >= 0) status = wefti_training_lock_slices(t);
    t->briefing = NULL;
    t->ranks.agreement = agreement;
    return wefti_agree(agreement, status);
}

static weft_status move_over(wefti_training *t, const standing *s) {
    if (s->newcomers) WEFT_TRY(wefti_training_brief(t, s->teller));
    WEFT_TRY(wefti_session_abandon(t->session, s->newcomers > 0));
    return s->newcomers ? wefti_agree(t->ranks.agreement, WEFT_OK) : WEFT_OK;
}

/* ---- one state ---- */

/* Nobody has the state of some rank: all read the last checkpoint, or begin. */
static weft_status read_disk(wefti_training *t) {
    wefti_checkpoint *from = NULL;
    WEFT_TRY(wefti_session_begin_again(t->session));
    t->progress.step = t->progress.position = t->saving.committed_step = 0;
    weft_status status = t->ranks.follows ? WEFT_OK : wefti_training_find(t, &from);
    bool resumes = from != NULL;
    status = wefti_training_broadcast(t, status, &resumes, sizeof resumes);
    if (status >= 0) status = wefti_training_load_parameters(t, &from, resumes);
    wefti_checkpoint_close(from);
    WEFT_TRY(status);
    t->progress.stage = WEFTI_STAGE_SAVED;
    t->progress.reported = t->progress.validated = t->progress.step;
    return WEFT_OK;
}

/* The number and the path of the last step in the directory, for rank 0. */
static weft_status find_committed(wefti_training *t) {
    int64_t *steps, count;
    if (t->ranks.follows || !t->job->checkpoint.dir[0]) return WEFT_OK;
    WEFT_TRY(wefti_checkpoint_list(t->job->checkpoint.dir, &steps, &count));
    t->saving.committed_step = count ? steps[count - 1] : 0;
    if (count)
        (void)snprintf(t->result->checkpoint, sizeof t->result->checkpoint, "%s/step-%012lld",
                       t->job->checkpoint.dir, (long long)steps[count - 1]);
    wefti_free(steps);
    return WEFT_OK;
}

/* What a newcomer takes over besides the session. Rank 0 may have died before it reported the last
 * step. Without a file that tells, the step counts as reported. */
static weft_status take_progress(wefti_training *t, const standing *s) {
    const wefti_metrics_last last = wefti_metrics_read_last(t->job->train.log);
    const bool asks = !t->ranks.follows && t->job->train.log[0];
    t->progress.step = s->mend->target;
    t->progress.position = s->ranks[s->teller].offset + s->mend->target * t->job->train.batch;
    t->progress.reported = asks ? last.step : t->progress.step;
    t->progress.validated = asks ? last.validation : t->progress.step;
    t->result->steps = t->progress.step;
    t->result->final_loss = t->progress.under_way.loss;
    if (t->progress.under_way.step != t->progress.step) t->progress.reported = t->progress.step;
    return find_committed(t);
}

/* Whether some rank has the state before the target, and cannot come to it: its update needs ranks
 * that have made theirs. */
static bool is_left_behind(const standing *s) {
    bool behind = false;
    for (int32_t r = 0; r < s->size; r++) {
        const mend_record *x = &s->ranks[r];
        behind |= x->step >= 0 && x->step != s->mend->target && !x->ready;
    }
    return behind;
}

static weft_status come_to_one_state(wefti_training *t, const standing *s) {
    const wefti_mend *m = s->mend;
    const bool is_new = s->ranks[weft_world_rank(t->ranks.world)].is_new;
    if (m->from_disk || is_left_behind(s)) return read_disk(t);
    WEFT_TRY(wefti_session_advance(t->session, m->target));
    WEFT_TRY(wefti_session_give(t->session, m->target, m->source));
    if (is_new) WEFT_TRY(take_progress(t, s));
    if (t->progress.step != m->target) return WEFT_OK; /* the loop ends the step that is made now */
    int32_t stage = WEFTI_STAGE_SAVED;
    for (int32_t r = 0; r < s->size; r++)
        if (!s->ranks[r].is_new && s->ranks[r].stage < stage) stage = s->ranks[r].stage;
    t->progress.stage = (wefti_training_stage)stage;
    return WEFT_OK;
}

/* All ranks are new: the run begins, as a run that is started again does. */
static weft_status begin(wefti_training *t) {
    wefti_checkpoint *from;
    WEFT_TRY(wefti_training_take_key(t, true));
    WEFT_TRY(wefti_training_open_directory(t, &from));
    weft_status status = wefti_training_load(t, &from);
    wefti_checkpoint_close(from);
    WEFT_TRY(status);
    return wefti_training_arm(t);
}

static weft_status repair_with(wefti_training *t, standing *s) {
    WEFT_TRY(exchange(t, s));
    if (s->teller < 0) return begin(t);
    const bool is_new = s->ranks[weft_world_rank(t->ranks.world)].is_new;
    WEFT_TRY(is_new ? set_up(t, s) : move_over(t, s));
    if (s->newcomers) {
        WEFT_TRY(wefti_training_same_job(t));
        WEFT_TRY(wefti_training_same_data(t));
    }
    return come_to_one_state(t, s);
}

static weft_status repair(wefti_training *t, const wefti_mend *m) {
    standing s = {.mend = m, .size = weft_world_size(t->ranks.world)};
    WEFT_NEW_ARRAY(s.ranks, mend_record, s.size);
    weft_status status = repair_with(t, &s);
    wefti_free(s.ranks);
    if (status >= 0) wefti_world_forget(t->ranks.world);
    return status;
}

/* ---- until the world is whole ---- */

/* A newcomer that could not set up to its end has nothing. */
static void begin_anew(wefti_training *t) {
    const wefti_training kept = *t;
    wefti_training_close(t);
    *t = (wefti_training){.job = kept.job,
                          .events = kept.events,
                          .result = kept.result,
                          .ranks = {.world = kept.ranks.world,
                                    .follows = kept.ranks.follows,
                                    .stopping = kept.ranks.stopping},
                          .progress = wefti_training_begun()};
}

static weft_status mend(wefti_training *t, wefti_mend *out) {
    const int32_t size = weft_world_size(t->ranks.world), me = weft_world_rank(t->ranks.world);
    wefti_stand at = {.step = -1};
    int32_t *holds;
    WEFT_NEW_ARRAY(holds, int32_t, size);
    if (t->session) {
        const wefti_session_standing own = wefti_session_stands(t->session);
        at.step = own.step;
        at.ready = own.ready;
    }
    for (int32_t r = 0; r < size && at.step >= 0; r++)
        if (r != me && wefti_session_replicates(t->session, me, r)) holds[at.holds_count++] = r;
    at.holds = holds;
    t->ranks.agreement = NULL; /* the world ends it */
    weft_status status = wefti_world_mend(t->ranks.world, &at, out);
    t->ranks.ended = status < 0;
    wefti_free(holds);
    return status;
}

static void note_mended(const wefti_training *t, const wefti_mend *m) {
    wefti_training_note(
        t, "a process of the job was lost and replaced (%s); the run goes on after step %lld",
        m->from_disk ? "state from the last checkpoint" : "state from memory",
        (long long)weft_session_step_number(t->session));
}

/* given: NULL, or the mend that this process came for. */
static weft_status go_on(wefti_training *t, const wefti_mend *given) {
    wefti_mend m;
    bool is_new = given;
    t->mended = true;
    for (;;) {
        if (given)
            m = *given;
        else
            WEFT_TRY(mend(t, &m));
        given = NULL;
        weft_status status = repair(t, &m);
        if (status >= 0) is_new = false;
        if (status >= 0) status = wefti_world_whole(t->ranks.world);
        if (status == WEFT_OK) break;
        if (status != WEFT_PENDING && !wefti_training_can_mend(t, status))
            return wefti_fail_world(t->ranks.world, status);
        if (is_new) begin_anew(t);
    }
    note_mended(t, &m);
    return WEFT_OK;
}

weft_status wefti_training_mend(wefti_training *t) {
    wefti_failure failure;
    wefti_failure_keep(WEFT_E_PEER, &failure);
    if (wefti_training_cut_write(t)) t->progress.stage = WEFTI_STAGE_VALIDATED;
    t->saving.stepping = false;
    (void)wefti_failure_tell(&failure);
    return go_on(t, NULL);
}

weft_status wefti_training_take_seat(wefti_training *t) {
    return go_on(t, wefti_world_newcomer(t->ranks.world));
}
