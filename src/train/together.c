/* Agreement of a training run's processes: when to stop, and data that only rank 0 reads or
 * decides. It builds on session/agree.h. */
#include "train/save/save.h"

static int asked(wefti_training *t) {
    int signal = t->events && t->events->stop ? *t->events->stop : 0;
    if (signal) return signal;
    return wefti_training_file_asks(t) ? WEFT_TRAIN_STOPPED_BY_FILE : 0;
}

int64_t wefti_training_observed(const wefti_training *t) {
    int64_t here = weft_session_memory_of(t->built->session).observed_peak_bytes;
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
                *all = wefti_calloc((size_t)weft_world_size(t->setup.party.world), sizeof *all);
    weft_status status = wefti_agree_records(t->setup.party.agreement, &record, sizeof record, all);
    for (int r = 0; r < weft_world_size(t->setup.party.world) && status >= 0; r++) {
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
    if (!t->setup.party.agreement)
        hear(t, asked(t));
    else if (!t->ranks.stopping)
        status = exchange(t, failed, &failed);
    t->result->stop = t->ranks.stopping;
    *out = t->ranks.stopping != 0;
    if (status < 0) return status;
    if (*out) wefti_error_clear(); /* the data are not needed any more */
    if (*out || !failed) return WEFT_OK;
    if (data < 0) (void)wefti_failure_tell(&failure);
    return wefti_party_agree(&t->setup.party, data);
}
