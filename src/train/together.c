/* Agreement of a training run's processes: when to stop, and data that only rank 0 reads or
 * decides. It builds on session/agree.h. */
#include <string.h>

#include "base/digest/digest.h"
#include "plan/plan.h"
#include "train/save/save.h"

weft_status wefti_training_join(wefti_training *t, weft_world *world) {
    if (!world || weft_world_size(world) == 1) return WEFT_OK;
    t->ranks.world = world;
    t->ranks.follows = weft_world_rank(world) > 0;
    if (strstr(weft_world_communicator(world), "ucx"))
        wefti_training_note(t, "messages between ranks go by UCX, which neither authenticates nor "
                               "encrypts them: use it on trusted networks only");
    return wefti_agreement_of(world, &t->ranks.agreement);
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

/* Exchanged at every step. Rank 0's `due` counts, and any rank's `stop` and `failed`. */
typedef struct step_record {
    int64_t observed_peak;
    int32_t stop;
    bool pending; /* the part of a checkpoint */
    bool due;     /* a checkpoint, by this rank's clock */
    bool failed;  /* to read data */
} step_record;

/* A request by a signal goes before one by a file, since it has an exit code of its own. */
static void hear(wefti_training *t, int stop) {
    if (stop && (!t->ranks.stopping || (t->ranks.stopping < 0 && stop > 0)))
        t->ranks.stopping = stop;
}

static weft_status exchange(wefti_training *t, bool failed, bool *out_failed) {
    bool pending = false;
    step_record record = {wefti_training_observed(t), asked(t), wefti_training_part_pending(t),
                          t->saving.due, failed},
                *all;
    WEFT_NEW_ARRAY(all, step_record, weft_world_size(t->ranks.world));
    weft_status status = wefti_agree_records(t->ranks.agreement, &record, sizeof record, all);
    for (int r = 0; r < weft_world_size(t->ranks.world) && status >= 0; r++) {
        if (all[r].observed_peak > t->ranks.observed_peak)
            t->ranks.observed_peak = all[r].observed_peak;
        hear(t, all[r].stop);
        pending |= all[r].pending;
        *out_failed |= all[r].failed;
    }
    t->saving.due = status >= 0 && all[0].due;
    wefti_free(all);
    t->saving.parts_done = status >= 0 && t->saving.together && !pending;
    return status;
}

/* After a stop is agreed on, nothing is exchanged. */
weft_status wefti_training_stops(wefti_training *t, weft_status data, bool *out) {
    wefti_failure failure;
    bool failed = data < 0;
    wefti_failure_keep(data, &failure);
    t->saving.parts_done = false;
    t->saving.due = wefti_training_due(t);
    weft_status status = WEFT_OK;
    if (!t->ranks.agreement)
        hear(t, asked(t));
    else if (!t->ranks.stopping)
        status = exchange(t, failed, &failed);
    t->result->stop = t->ranks.stopping;
    *out = t->ranks.stopping != 0;
    if (status < 0) return status;
    if (*out) wefti_error_clear(); /* the data are not needed any more */
    if (*out || !failed) return WEFT_OK;
    if (data < 0) (void)wefti_failure_tell(&failure);
    return t->ranks.agreement ? wefti_agree(t->ranks.agreement, data) : data;
}

weft_status wefti_training_broadcast(wefti_training *t, weft_status status, void *data,
                                     size_t bytes) {
    if (!t->ranks.agreement) return status;
    return wefti_agree_broadcast(t->ranks.agreement, status, data, (int64_t)bytes);
}

/* ---- the same job everywhere ---- */

/* The same values on all ranks as on rank 0. */
static weft_status same_facts(wefti_training *t, const wefti_job_fact *facts, int count) {
    return t->ranks.agreement ? wefti_agree_same(t->ranks.agreement, facts, count) : WEFT_OK;
}

weft_status wefti_training_same_job(wefti_training *t) {
    const weft_job_train *j = &t->job->train;
    const weft_job_schedule *s = &j->schedule;
    const weft_job_checkpoint *c = &t->job->checkpoint;
    const weft_job_recovery *r = &t->job->recovery;
    const double reals[] = {j->optimizer.lr, s->final, s->factor};
    uint64_t rate = wefti_digest_number(6, (uint64_t)s->name);
    rate = wefti_digest_number(wefti_digest_number(rate, (uint64_t)s->warmup), (uint64_t)s->every);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        rate = wefti_digest_real(rate, reals[i]);
    const wefti_job_fact facts[] = {
        {.name = "train.optimizer.lr or train.schedule", .value = rate},
        {.name = "train.steps", .value = (uint64_t)j->steps},
        {.name = "train.eval_every or train.eval_batches",
         .value = wefti_digest_number((uint64_t)j->eval_every, (uint64_t)j->eval_batches)},
        {.name = "train.check_replicas", .value = (uint64_t)j->check_replicas},
        {.name = "checkpoint.every, or whether it has a checkpoint.dir,",
         .value = (uint64_t)c->every << 1 | (uint64_t)(c->dir[0] != 0)},
        {.name = "checkpoint.seconds, checkpoint.on_error or checkpoint.sliced",
         .value = wefti_digest_real((uint64_t)c->on_error << 1 | (uint64_t)c->sliced, c->seconds)},
        {.name = "checkpoint.key, or the key that it names,", .value = t->saving.key.number},
        {.name = "recovery",
         .value = wefti_digest_real((uint64_t)r->max << 32 | (uint64_t)r->min << 2 |
                                        (uint64_t)r->enabled << 1 | r->elastic,
                                    r->wait)},
        {.name = "model.from or model.config, given or not,",
         .value = (uint64_t)(t->job->model.from[0] != 0) << 1 | (t->job->model.config[0] != 0)},
        {.name = "data.format or data.tokenizer, set or not,",
         .value = (uint64_t)t->job->data.format << 1 | (uint64_t)(t->job->data.tokenizer[0] != 0)}};
    return same_facts(t, facts, sizeof facts / sizeof *facts);
}

weft_status wefti_training_same_data(wefti_training *t) {
    bool manual =
        t->job->plan && t->job->plan->mode == WEFT_PARALLEL_MANUAL; /* each rank has its own data */
    const wefti_job_fact facts[] = {
        {.name = "number of training samples",
         .value = manual ? 0 : (uint64_t)weft_data_samples(t->data, WEFT_DATA_TRAIN)},
        {.name = "number of validation samples",
         .value = (uint64_t)weft_data_samples(t->data, WEFT_DATA_VALIDATION)}};
    return same_facts(t, facts, sizeof facts / sizeof *facts);
}
