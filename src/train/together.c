/* Agreement of a training run's processes: when to stop, and data that only rank 0 reads or
 * decides. It builds on session/agree.h. */
#include <stdio.h>
#include <string.h>

#include "data/fingerprint.h"
#include "job/job.h"
#include "plan/plan.h"
#include "train/save/save.h"

weft_status wefti_training_join(wefti_training *t, weft_world *world) {
    if (!world || weft_world_size(world) == 1) return WEFT_OK;
    if (strstr(weft_world_communicator(world), "ucx"))
        wefti_training_note(t, "messages between ranks go by UCX, which neither authenticates nor "
                               "encrypts them: use it on trusted networks only");
    return wefti_party_join(&t->party, world);
}

static int asked(wefti_training *t) {
    int signal = t->events && t->events->stop ? *t->events->stop : 0;
    if (signal) return signal;
    return wefti_training_file_asks(t) ? WEFT_TRAIN_STOPPED_BY_FILE : 0;
}

int64_t wefti_training_observed(const wefti_training *t) {
    int64_t here = weft_session_memory_of(t->session).observed_peak_bytes;
    return here > t->ranks.observed_peak ? here : t->ranks.observed_peak;
}

/* Exchanged at every step. Rank 0's `due` counts, and any rank's `stop`, `writing` and `failed`. */
typedef struct step_record {
    int64_t observed_peak;
    int32_t stop;
    bool writing; /* its part of a checkpoint */
    bool due;     /* a checkpoint, by this rank's clock */
    bool failed;  /* to read data */
} step_record;

/* A request by a signal goes before one by a file, since it has an exit code of its own. */
static void hear(wefti_training *t, int stop) {
    if (stop && (!t->ranks.stopping || (t->ranks.stopping < 0 && stop > 0)))
        t->ranks.stopping = stop;
}

static weft_status exchange(wefti_training *t, bool failed, bool *out_failed) {
    bool writing = false;
    step_record record = {wefti_training_observed(t), asked(t),
                          wefti_saver_is_writing(&t->saving.saver), t->saving.due, failed},
                *all;
    WEFT_NEW_ARRAY(all, step_record, weft_world_size(t->party.world));
    weft_status status = wefti_agree_records(t->party.agreement, &record, sizeof record, all);
    for (int r = 0; r < weft_world_size(t->party.world) && status >= 0; r++) {
        if (all[r].observed_peak > t->ranks.observed_peak)
            t->ranks.observed_peak = all[r].observed_peak;
        hear(t, all[r].stop);
        writing |= all[r].writing;
        *out_failed |= all[r].failed;
    }
    t->saving.due = status >= 0 && all[0].due;
    wefti_free(all);
    wefti_saver_hear_writing(&t->saving.saver, status < 0 || writing);
    return status;
}

/* After a stop is agreed on, nothing is exchanged. */
weft_status wefti_training_stops(wefti_training *t, weft_status data, bool *out) {
    wefti_failure failure;
    bool failed = data < 0;
    wefti_failure_keep(data, &failure);
    t->saving.due = wefti_training_due(t);
    weft_status status = WEFT_OK;
    if (!t->party.agreement)
        hear(t, asked(t));
    else if (!t->ranks.stopping)
        status = exchange(t, failed, &failed);
    t->result->stop = t->ranks.stopping;
    *out = t->ranks.stopping != 0;
    if (status < 0) return status;
    if (*out) wefti_error_clear(); /* the data are not needed any more */
    if (*out || !failed) return WEFT_OK;
    if (data < 0) (void)wefti_failure_tell(&failure);
    return wefti_party_agree(&t->party, data);
}

/* ---- the same job everywhere ---- */

/* Compares this rank's job with rank 0's. */
weft_status wefti_training_same_job(wefti_training *t) {
    if (!t->party.agreement) return WEFT_OK;
    wefti_text own = {0};
    weft_status status = t->party.follows ? WEFT_OK : wefti_job_shared(t->job, &own);
    int64_t bytes = own.used;
    char *first = t->party.follows ? NULL : wefti_text_take(&own);
    status = wefti_party_share_text(&t->party, status, &first, &bytes);
    if (status >= 0)
        status = wefti_party_agree(
            &t->party, wefti_job_same(t->job, weft_world_rank(t->party.world), first, bytes));
    wefti_free(first);
    WEFT_TRY(status);
    const wefti_job_fact key = {.name = "key, which checkpoint.key names,",
                                .value = t->saving.key.number};
    return wefti_agree_same(t->party.agreement, &key, 1);
}

/* Compares this rank's data with rank 0's. In mode manual each rank trains on its own. */
static weft_status compare_data(const wefti_training *t, const char *mine, const char *first,
                                bool manual) {
    const int me = weft_world_rank(t->party.world);
    char here[32], difference[WEFTI_DATA_DIFFERENCE];
    (void)snprintf(here, sizeof here, "on rank %d", me);
    if (wefti_data_same(mine, first, manual ? WEFTI_DATA_ALL - WEFTI_DATA_TRAINING : WEFTI_DATA_ALL,
                        here, "on rank 0", difference))
        return WEFT_OK;
    WEFT_FAIL_OF(me, WEFT_E_MISMATCH,
                 "rank %d and rank 0 read different data: %s; all ranks of a run need the same", me,
                 difference);
}

weft_status wefti_training_same_data(wefti_training *t) {
    const char *own = NULL;
    const bool follows = t->party.follows;
    weft_status status = t->party.agreement || t->job->checkpoint.dir[0]
                             ? wefti_data_fingerprint(t->data, &own)
                             : WEFT_OK;
    if (!t->party.agreement) return status;
    const bool manual = t->job->plan && t->job->plan->mode == WEFT_PARALLEL_MANUAL;
    WEFT_TRY(wefti_party_agree(&t->party, status));
    char *first = follows ? NULL : (char *)own;
    int64_t bytes = (int64_t)strlen(own);
    status = wefti_party_share_text(&t->party, WEFT_OK, &first, &bytes);
    if (status >= 0)
        status =
            wefti_party_agree(&t->party, follows ? compare_data(t, own, first, manual) : WEFT_OK);
    if (follows) wefti_free(first);
    WEFT_TRY(status);
    const wefti_job_fact facts[] = {
        {.name = "number of training samples",
         .value = manual ? 0 : (uint64_t)weft_data_samples(t->data, WEFT_DATA_TRAIN)},
        {.name = "number of validation samples",
         .value = (uint64_t)weft_data_samples(t->data, WEFT_DATA_VALIDATION)}};
    return wefti_agree_same(t->party.agreement, facts, sizeof facts / sizeof *facts);
}
