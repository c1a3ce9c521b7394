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

/* What belongs to one size of the world. */
struct wefti_training_parts {
    const weft_job *job;
    weft_job *resized_job;
    weft_session *session;
    weft_plan *searched;
    weft_search_report *report;
    weft_graph *graph, *eval_graph;
    int eval_program;
    wefti_training_batch batch;
    wefti_saved_list saved;
};

static struct wefti_training_parts take_parts(wefti_training *t) {
    const struct wefti_training_parts p = {.job = t->job,
                                           .resized_job = t->resized_job,
                                           .session = t->session,
                                           .searched = t->searched,
                                           .report = t->report,
                                           .graph = t->model.graph,
                                           .eval_graph = t->model.eval_graph,
                                           .eval_program = t->model.eval_program,
                                           .batch = t->batch,
                                           .saved = t->saving.saver.list};
    t->resized_job = NULL;
    t->session = NULL;
    t->searched = NULL;
    t->report = NULL;
    t->model.graph = t->model.eval_graph = NULL;
    t->model.eval_program = 0;
    t->saving.saver.list = (wefti_saved_list){0};
    return p;
}

static void put_parts(wefti_training *t, const struct wefti_training_parts *p) {
    t->job = p->job;
    t->resized_job = p->resized_job;
    t->session = p->session;
    t->searched = p->searched;
    t->report = p->report;
    t->model.graph = p->graph;
    t->model.eval_graph = p->eval_graph;
    t->model.eval_program = p->eval_program;
    t->batch = p->batch;
    t->saving.saver.list = p->saved;
}

static void free_parts(struct wefti_training_parts *p) {
    weft_session_destroy(p->session);
    weft_plan_destroy(p->searched);
    weft_search_report_free(p->report);
    weft_graph_destroy(p->graph);
    weft_graph_destroy(p->eval_graph);
    wefti_saved_list_free(&p->saved);
    weft_job_free(p->resized_job);
}

void wefti_training_end_resize(wefti_training *t, bool whole) {
    if (!t->former) return;
    if (!whole) {
        struct wefti_training_parts parts = take_parts(t);
        free_parts(&parts);
        put_parts(t, t->former);
    } else {
        free_parts(t->former);
    }
    wefti_free(t->former);
    t->former = NULL;
}

/* A rank that was in the world that was whole last keeps its parts. */
static weft_status keep_parts(wefti_training *t) {
    if (!t->session) return WEFT_OK;
    struct wefti_training_parts *former = wefti_calloc(1, sizeof *former);
    WEFT_REQUIRE(former, WEFT_E_NOMEM, "no memory to change the size of a world");
    *former = take_parts(t);
    t->former = former;
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
    WEFT_TRY(job_for(t->given_job, weft_world_size(t->party.world), &t->resized_job));
    t->job = t->resized_job;
    return WEFT_OK;
}

static weft_status cannot(const wefti_training *t, weft_status status) {
    if (status >= 0 || wefti_is_of_others(t->party.world, status)) return status;
    return wefti_prefix(status, "the run cannot go on with %d ranks",
                        weft_world_size(t->party.world));
}

weft_status wefti_training_read_job(wefti_training *t) {
    return wefti_party_agree(&t->party, cannot(t, read_job(t)));
}

/* ---- setting up ---- */

/* Another rank may be the first one now. */
static weft_status take_rank(wefti_training *t) {
    const bool followed = t->party.follows;
    t->party.follows = weft_world_rank(t->party.world) > 0;
    t->ranks.observed_peak = 0;
    wefti_checkpoint_lock_close(t->saving.saver.slices_lock); /* of the folder of another rank */
    t->saving.saver.slices_lock = NULL;
    if (!followed || t->party.follows || t->saving.saver.lock) return WEFT_OK;
    return wefti_training_lock(t);
}

static weft_status set_up(wefti_training *t) {
    WEFT_TRY(wefti_training_same_job(t));
    WEFT_TRY(wefti_training_prepare(t));
    WEFT_TRY(wefti_training_build(t));
    WEFT_TRY(wefti_training_bind(t));
    return wefti_party_agree(&t->party, wefti_training_lock_slices(t));
}

static weft_status make_parts(wefti_training *t, int32_t teller) {
    wefti_briefing b;
    const bool is_new = !t->session;
    WEFT_TRY(wefti_party_agree(&t->party, take_rank(t)));
    WEFT_TRY(wefti_training_share_briefing(t, teller, !is_new, &b));
    WEFT_TRY(is_new ? wefti_training_take_key(t, true) : wefti_party_agree(&t->party, WEFT_OK));
    WEFT_TRY(wefti_party_agree(&t->party, keep_parts(t)));
    WEFT_TRY(wefti_training_read_job(t));
    t->briefing = &b;
    t->record.resumes = false; /* the plan of the run's record is for another size */
    const weft_status status = cannot(t, set_up(t));
    t->briefing = NULL;
    return status;
}

/* ---- the state ---- */

weft_status wefti_training_resize(wefti_training *t, int64_t target, int32_t teller,
                                  bool from_memory, wefti_halted *halted, bool *out_whole) {
    const int32_t size = weft_world_size(t->party.world);
    *out_whole = false;
    WEFT_TRY(make_parts(t, teller));
    wefti_session_halt_when(t->session, halted, t);
    weft_session *old = t->former ? t->former->session : NULL;
    if (!from_memory) return WEFT_OK;
    WEFT_TRY(wefti_session_advance_among(old, t->party.agreement, size, target));
    return wefti_session_move(t->session, old, target, out_whole);
}
