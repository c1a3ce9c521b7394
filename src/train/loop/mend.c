/* A run goes on after a process of its world has died.
 *
 * The failed call returns to run.c. Then, in this order: the write of a checkpoint under way ends,
 * whole or absent. The world is mended, and the sessions come to one state (session/mend): this
 * file says what a run does besides. Newcomers set up (seat.c). The loop goes on behind it. */
#include <stdio.h>

#include "session/mend/mend.h"
#include "train/loop/loop.h"

bool wefti_training_can_mend(const wefti_training *t, weft_status status) {
    return t->built->job->recovery.enabled && !t->ranks.ended &&
           wefti_repair_can(t->setup.party.world, t->setup.party.agreement, status);
}

static bool is_halted(void *context, int32_t rank) {
    const wefti_training *t = context;
    (void)rank;
    return wefti_world_is_halted(t->setup.party.world);
}

/* The world can be mended from now on, and may change its size if the job says so. */
static weft_status arm(wefti_training *t, bool elastic) {
    const weft_job_recovery *r = &t->built->job->recovery;
    wefti_elastic how = {.least = 0};
    unsigned char *fits = NULL;
    if (elastic) {
        how = (wefti_elastic){.least = (int32_t)r->min, .seconds = r->wait};
        WEFT_TRY(wefti_fail_world(t->setup.party.world,
                                  wefti_training_find_sizes(t, how.least, &fits, &how.most)));
        how.fits = fits;
    }
    wefti_world_arm(t->setup.party.world, &how);
    wefti_free(fits);
    return WEFT_OK;
}

weft_status wefti_training_arm(wefti_training *t) {
    wefti_checkpoint_tensor *all;
    weft_world *world = t->setup.party.world;
    const weft_job_recovery *r = &t->built->job->recovery;
    const bool elastic = r->elastic && wefti_world_resizes(world);
    if (r->elastic && world && !elastic)
        wefti_setup_note(&t->setup,
                         "the run keeps its number of ranks: recovery.elastic is for worlds "
                         "that weft launch starts, without UCX or MPI");
    if (!r->enabled || !(elastic || wefti_world_mends(world))) return WEFT_OK;
    WEFT_TRY(wefti_saver_tensors(wefti_training_saver(t),
                                 &all)); /* starts the session, which is collective */
    wefti_free(all);
    WEFT_TRY(wefti_session_copy(t->built->session)); /* from now on, each rank has a holder */
    wefti_session_halt_when(t->built->session, is_halted, t);
    return arm(t, elastic);
}

/* ---- where the ranks stand ---- */

typedef struct mend_record {
    int64_t offset; /* of its samples: their position at step 0 */
    int32_t stage;  /* what is done behind the target */
    int32_t stopping;
} mend_record;

/* A run that is mended. */
typedef struct run_mending {
    wefti_training *t;
    mend_record *ranks; /* [size] */
    bool from_disk;     /* the state was read from the last checkpoint, or begun */
} run_mending;

static weft_status meet(void *context, wefti_repair *m) {
    run_mending *x = context;
    wefti_training *t = x->t;
    mend_record own = {.stage = WEFTI_STAGE_STEPPED, .stopping = t->ranks.stopping};
    t->setup.party.agreement = m->agreement;
    x->from_disk = false;
    if (!m->is_new) {
        own.offset = t->progress.position - t->progress.step * t->built->job->train.batch;
        if (t->progress.step == m->mend.target) own.stage = (int32_t)t->progress.stage;
    }
    wefti_free(x->ranks);
    x->ranks = wefti_calloc((size_t)m->size, sizeof *x->ranks);
    WEFT_TRY(wefti_agree_records(m->agreement, &own, sizeof own, x->ranks));
    for (int32_t r = 0; r < m->size; r++)
        if (x->ranks[r].stopping && !t->ranks.stopping) t->ranks.stopping = x->ranks[r].stopping;
    return WEFT_OK;
}

/* ---- sessions ---- */

static weft_status arrive(void *context, wefti_repair *m) {
    wefti_training *t = ((run_mending *)context)->t;
    WEFT_TRY(wefti_training_be_briefed(t, m->teller));
    WEFT_TRY(wefti_built_build(t->built));
    m->session = t->built->session;
    WEFT_TRY(wefti_session_arrive(t->built->session));
    wefti_session_halt_when(t->built->session, is_halted, t);
    return WEFT_OK;
}

static weft_status welcome(void *context, wefti_repair *m) {
    return wefti_training_brief(((run_mending *)context)->t, m->teller);
}

/* Without the other ranks. */
static weft_status set_up(wefti_training *t) {
    wefti_agreement *agreement = t->setup.party.agreement;
    const wefti_briefing none = {.bf16 = WEFT_BF16_AUTO};
    t->setup.party.agreement = NULL;
    t->setup.briefing = &none;
    weft_status status = wefti_built_take_key(t->built, true);
    if (status >= 0) status = wefti_training_bind(t);
    if (status >= 0) status = wefti_training_lock_slices(t);
    t->setup.briefing = NULL;
    t->setup.party.agreement = agreement;
    return status;
}

static weft_status check(void *context, wefti_repair *m) {
    wefti_training *t = ((run_mending *)context)->t;
    WEFT_TRY(wefti_party_agree(&t->setup.party, m->is_new ? set_up(t) : WEFT_OK));
    WEFT_TRY(wefti_built_same_job(t->built));
    return wefti_built_same_data(t->built);
}

/* ---- one state ---- */

/* Nobody has the state of some rank: all read the last checkpoint, or begin. */
static weft_status read_disk(void *context, wefti_repair *m) {
    wefti_training *t = ((run_mending *)context)->t;
    wefti_checkpoint *from = NULL;
    (void)m;
    ((run_mending *)context)->from_disk = true;
    t->progress.step = t->progress.position = t->saving.committed_step = 0;
    weft_status status = t->setup.party.follows ? WEFT_OK : wefti_training_find(t, &from);
    bool resumes = from != NULL;
    status = wefti_party_broadcast(&t->setup.party, status, &resumes, sizeof resumes);
    if (status >= 0) status = wefti_training_load_parameters(t, &from, resumes);
    wefti_checkpoint_close(from);
    WEFT_TRY(status);
    t->progress.stage = WEFTI_STAGE_SAVED;
    t->progress.reported = t->progress.validated = t->progress.step;
    return WEFT_OK;
}

/* The last whole step in the directory, for rank 0. */
static weft_status find_committed(wefti_training *t) {
    wefti_checkpoint *c = NULL;
    if (t->setup.party.follows || !t->built->job->checkpoint.dir[0]) return WEFT_OK;
    const weft_status status =
        wefti_checkpoint_open_unread(t->built->job->checkpoint.dir, INT64_MAX, &c, NULL);
    const bool none = status == WEFT_E_NOT_FOUND || status == WEFT_E_CORRUPT;
    if (status < 0 && !none) return status;
    if (none) wefti_error_clear();
    t->saving.committed_step = c ? wefti_checkpoint_meta_of(c)->step : 0;
    (void)snprintf(t->result->checkpoint, sizeof t->result->checkpoint, "%s",
                   c ? wefti_checkpoint_path(c) : "");
    wefti_checkpoint_close(c);
    return WEFT_OK;
}

/* What a newcomer takes over besides the session. Rank 0 may have died before it reported the last
 * step. Without a file that tells, the step counts as reported. */
static weft_status take_progress(const run_mending *x, const wefti_repair *m) {
    wefti_training *t = x->t;
    const wefti_metrics_last last = wefti_metrics_read_last(t->built->job->train.log);
    const bool asks = !t->setup.party.follows && t->built->job->train.log[0];
    t->progress.step = m->mend.target;
    t->progress.position = x->ranks[m->teller].offset + m->mend.target * t->built->job->train.batch;
    t->progress.reported = asks ? last.step : t->progress.step;
    t->progress.validated = asks ? last.validation : t->progress.step;
    t->result->steps = t->progress.step;
    t->result->final_loss = t->progress.under_way.loss;
    if (t->progress.under_way.step != t->progress.step) t->progress.reported = t->progress.step;
    return find_committed(t);
}

static weft_status settled(void *context, wefti_repair *m) {
    const run_mending *x = context;
    wefti_training *t = x->t;
    if (m->is_new) WEFT_TRY(take_progress(x, m));
    if (t->progress.step != m->mend.target)
        return WEFT_OK; /* the loop ends the step that is made now */
    int32_t stage = WEFTI_STAGE_SAVED;
    for (int32_t r = 0; r < m->size; r++)
        if (m->ranks[r].phase != WEFTI_SURVIVOR_NEW && x->ranks[r].stage < stage)
            stage = x->ranks[r].stage;
    t->progress.stage = (wefti_training_stage)stage;
    return WEFT_OK;
}

/* Rank 0 of before may have been lost: this rank reports from now on. */
static weft_status take_reports(wefti_training *t) {
    const weft_job *job = t->built->job;
    if (t->setup.party.follows || !t->former) return WEFT_OK;
    if (t->metrics) {
        wefti_training_announce(t);
        return WEFT_OK;
    }
    const wefti_metrics_last last = wefti_metrics_read_last(job->train.log);
    t->events = t->given_events;
    if (job->train.log[0]) {
        if (last.step < t->progress.reported) t->progress.reported = last.step;
        if (last.validation < t->progress.validated) t->progress.validated = last.validation;
    }
    if (t->progress.under_way.step != t->progress.step) t->progress.reported = t->progress.step;
    WEFT_TRY(find_committed(t));
    WEFT_TRY(wefti_metrics_open(job->train.log, job->train.tensorboard,
                                t->built->model.objective->is_language ? "tokens" : "samples",
                                &t->metrics));
    wefti_training_announce(t);
    if (t->progress.reported < t->progress.step) wefti_training_report_step(t);
    return WEFT_OK;
}

/* The world has another size. */
static weft_status resize(void *context, wefti_repair *m) {
    run_mending *x = context;
    wefti_training *t = x->t;
    bool whole;
    WEFT_TRY(
        wefti_training_resize(t, m->mend.target, m->teller, !m->mend.from_disk, is_halted, &whole));
    m->session = t->built->session;
    if (!whole) WEFT_TRY(wefti_session_begin_again(t->built->session));
    WEFT_TRY(whole ? settled(x, m) : read_disk(x, m));
    t->result->predicted_peak_bytes =
        weft_session_memory_of(t->built->session).predicted_peak_bytes;
    return wefti_party_agree(&t->setup.party, take_reports(t));
}

/* A round has ended: the world is whole, or begins another round from its old state. */
static void end_round(void *context, wefti_repair *m, bool whole) {
    wefti_training *t = ((run_mending *)context)->t;
    wefti_training_end_resize(t, whole);
    m->session = t->built->session;
}

/* All ranks are new: the run begins, as a run that is started again does. */
static weft_status begin(void *context, wefti_repair *m) {
    wefti_training *t = ((run_mending *)context)->t;
    wefti_checkpoint *from;
    if (m->mend.resized) WEFT_TRY(wefti_training_read_job(t));
    WEFT_TRY(wefti_built_take_key(t->built, true));
    WEFT_TRY(wefti_training_open_directory(t, &from));
    weft_status status = wefti_training_load(t, &from);
    wefti_checkpoint_close(from);
    WEFT_TRY(status);
    m->session = t->built->session;
    return wefti_training_arm(t);
}

/* ---- until the world is whole ---- */

/* A newcomer that could not set up to its end has nothing. */
static void begin_anew(void *context) {
    wefti_training *t = ((run_mending *)context)->t;
    wefti_training_close(t);
    const wefti_training kept = *t;
    *kept.built = (wefti_built){.setup = &t->setup, .job = kept.given_job};
    *t = (wefti_training){.setup = kept.setup,
                          .built = kept.built,
                          .given_job = kept.given_job,
                          .events = kept.events,
                          .given_events = kept.given_events,
                          .result = kept.result,
                          .ranks = {.stopping = kept.ranks.stopping},
                          .progress = wefti_training_begun()};
    t->setup.party.agreement = NULL; /* the world ends it */
    t->setup.briefing = NULL;
}

static void note_mended(const wefti_training *t, const wefti_mend *m, bool from_disk) {
    const char *from = from_disk ? "state from the last checkpoint" : "state from memory";
    const long long step = (long long)weft_session_step_number(t->built->session);
    if (m->resized)
        wefti_setup_note(&t->setup, "the run goes on with %d ranks (%s) after step %lld", m->size,
                         from, step);
    else
        wefti_setup_note(
            &t->setup,
            "a process of the job was lost and replaced (%s); the run goes on after step %lld",
            from, step);
}

/* given: NULL, or the mend that this process came for. */
static weft_status go_on(wefti_training *t, const wefti_mend *given) {
    static const wefti_repair_calls calls = {.meet = meet,
                                             .begin = begin,
                                             .arrive = arrive,
                                             .welcome = welcome,
                                             .check = check,
                                             .read = read_disk,
                                             .settled = settled,
                                             .resize = resize,
                                             .end_round = end_round,
                                             .drop = begin_anew};
    run_mending x = {.t = t};
    wefti_repair m = {.world = t->setup.party.world,
                      .session = t->built->session,
                      .calls = &calls,
                      .context = &x,
                      .is_new = given};
    t->setup.party.agreement = NULL; /* the world ends it */
    if (given) {
        m.mend = *given;
        m.place = WEFTI_REPAIR_MENDED;
    }
    weft_status status = wefti_repair_run(&m);
    t->ranks.ended = m.ended;
    if (m.ended) t->setup.party.agreement = NULL;
    t->mended = true; /* also of a run that has begun anew */
    if (status >= 0) note_mended(t, &m.mend, x.from_disk);
    wefti_repair_free(&m);
    wefti_free(x.ranks);
    return status;
}

weft_status wefti_training_mend(wefti_training *t) {
    wefti_failure failure;
    wefti_failure_keep(WEFT_E_PEER, &failure);
    if (t->progress.stage == WEFTI_STAGE_STEPPING) t->progress.stage = WEFTI_STAGE_SAVED;
    if (wefti_saver_cut(wefti_training_saver(t)) && t->saving.saver.step == t->progress.step)
        t->progress.stage = WEFTI_STAGE_VALIDATED;
    (void)wefti_failure_tell(&failure);
    return go_on(t, NULL);
}

weft_status wefti_training_take_seat(wefti_training *t) {
    return go_on(t, wefti_world_newcomer(t->setup.party.world));
}
