/* A run goes on in a world of another size: some ranks are lost for good, or new ones have come.
 *
 * All ranks set up anew, as at the begin of a run: the job for another number of devices, its plan,
 * graphs and session. The data stay open. Then all that the old sessions keep moves to the new
 * ones, from memory to memory. A rank keeps its old session until the world is whole: if a further
 * process dies before that, the state still is in the old sessions, and the next attempt begins
 * with them. So for the time of the change a rank needs the memory of both. The batch, the order of
 * the samples and the random numbers do not depend on the number of ranks. */
#include <string.h>

#include "job/job.h"
#include "plan/plan.h"
#include "train/loop/loop.h"

void wefti_training_end_resize(wefti_training *t, bool whole) {
    wefti_built *former = t->former, *ended = whole ? former : t->built;
    if (!former) return;
    if (!whole) {
        wefti_saved_list_free(&t->saving.saver.list);
        t->saving.saver.list = former->saved;
        former->saved = (wefti_saved_list){0};
        t->built = former;
    }
    t->former = NULL;
    ended->data = NULL; /* the other one has them too */
    wefti_built_close(ended);
    wefti_free(ended);
}

/* A rank that was in the world that was whole last keeps what it has built. The data stay open. */
static weft_status begin_resize(wefti_training *t) {
    wefti_built *former = t->built;
    if (!former->session) return WEFT_OK;
    wefti_built *b = wefti_calloc(1, sizeof *b);
    WEFT_REQUIRE(b, WEFT_E_NOMEM, "no memory to change the size of a world");
    *b = (wefti_built){.setup = &t->setup, .job = former->job, .data = former->data};
    b->model = former->model;
    b->model.graph = b->model.eval_graph = NULL;
    b->model.eval_program = 0;
    former->saved = t->saving.saver.list;
    t->saving.saver.list = (wefti_saved_list){0};
    t->former = former;
    t->built = b;
    return WEFT_OK;
}

/* ---- the job ---- */

static int32_t devices_of(const weft_job *job) {
    return job->plan ? weft_plan_devices(job->plan) : 1;
}

static weft_status job_for(const weft_job *given, int32_t size, weft_job **out) {
    weft_job *job;
    WEFT_TRY(wefti_job_for_devices(given, size, &job));
    if (devices_of(job) == size) {
        *out = job;
        return WEFT_OK;
    }
    const int32_t devices = devices_of(job);
    weft_job_free(job);
    WEFT_FAIL(WEFT_E_ARG, "the job's plan is for %d devices", (int)devices);
}

weft_status wefti_training_find_sizes(const wefti_training *t, int32_t least, unsigned char **out,
                                      int32_t *out_most) {
    const int32_t first = devices_of(t->given_job), max = (int32_t)t->given_job->recovery.max;
    const int32_t most = max > first ? max : first;
    WEFT_NEW_ARRAY(*out, unsigned char, most / 8 + 1);
    *out_most = most;
    for (int32_t size = least; size <= most; size++) {
        weft_job *job;
        weft_status status = job_for(t->given_job, size, &job);
        if (status == WEFT_E_NOMEM) {
            wefti_free(*out);
            return status;
        }
        if (status < 0) continue;
        (*out)[size / 8] |= (unsigned char)(1 << size % 8);
        weft_job_free(job);
    }
    return WEFT_OK;
}

static weft_status read_job(wefti_training *t) {
    WEFT_TRY(job_for(t->given_job, weft_world_size(t->setup.party.world), &t->built->resized_job));
    t->built->job = t->built->resized_job;
    return WEFT_OK;
}

static weft_status cannot(const wefti_training *t, weft_status status) {
    if (status >= 0 || wefti_is_of_others(t->setup.party.world, status)) return status;
    return wefti_prefix(status, "the run cannot go on with %d ranks",
                        weft_world_size(t->setup.party.world));
}

weft_status wefti_training_read_job(wefti_training *t) {
    return wefti_party_agree(&t->setup.party, cannot(t, read_job(t)));
}

/* ---- setting up ---- */

/* Another rank may be the first one now. */
static weft_status take_rank(wefti_training *t) {
    const bool followed = t->setup.party.follows;
    t->setup.party.follows = weft_world_rank(t->setup.party.world) > 0;
    t->ranks.observed_peak = 0;
    wefti_checkpoint_lock_close(t->saving.saver.slices_lock); /* of the folder of another rank */
    t->saving.saver.slices_lock = NULL;
    if (!followed || t->setup.party.follows || t->saving.saver.lock) return WEFT_OK;
    return wefti_training_lock(t);
}

static weft_status set_up(wefti_training *t) {
    WEFT_TRY(wefti_built_same_job(t->built));
    WEFT_TRY(wefti_built_prepare(t->built));
    WEFT_TRY(wefti_built_build(t->built));
    WEFT_TRY(wefti_built_fits_machine(t->built));
    WEFT_TRY(wefti_training_bind(t));
    return wefti_party_agree(&t->setup.party, wefti_training_lock_slices(t));
}

static weft_status build(wefti_training *t, int32_t teller) {
    wefti_briefing b;
    const bool is_new = !t->built->session;
    WEFT_TRY(wefti_party_agree(&t->setup.party, take_rank(t)));
    WEFT_TRY(wefti_training_share_briefing(t, teller, !is_new, &b));
    WEFT_TRY(is_new ? wefti_built_take_key(t->built, true)
                    : wefti_party_agree(&t->setup.party, WEFT_OK));
    WEFT_TRY(wefti_party_agree(&t->setup.party, begin_resize(t)));
    WEFT_TRY(wefti_training_read_job(t));
    t->setup.briefing = &b;
    t->record.resumes = false; /* the plan of the run's record is for another size */
    const weft_status status = cannot(t, set_up(t));
    t->setup.briefing = NULL;
    return status;
}

/* ---- the state ---- */

weft_status wefti_training_resize(wefti_training *t, int64_t target, int32_t teller,
                                  bool from_memory, wefti_halted *halted, bool *out_whole) {
    const int32_t size = weft_world_size(t->setup.party.world);
    *out_whole = false;
    WEFT_TRY(build(t, teller));
    wefti_session_halt_when(t->built->session, halted, t);
    weft_session *old = t->former ? t->former->session : NULL;
    if (!from_memory) return WEFT_OK;
    WEFT_TRY(wefti_session_advance_among(old, t->setup.party.agreement, size, target));
    return wefti_session_move(t->built->session, old, target, out_whole);
}
