/* The loss of a checkpoint on data, and what follows from it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "infer/trained.h"
#include "setup/feed.h"

/* Which data: a file of its own, or the job's validation data. */
static void choose_data(weft_job *job, const weft_eval_options *o) {
    if (!o->data) return;
    job->data.path = o->data;
    job->data.labels = o->labels ? o->labels : "";
    job->data.validation = job->data.validation_labels = "";
    job->data.validation_fraction = 0;
}

static weft_status stops(void *context, bool *out) {
    return wefti_trained_stops(context, out);
}

static weft_status evaluate(wefti_trained *m, const weft_eval_options *o, wefti_evaluation *out) {
    wefti_built *b = &m->built;
    const weft_data_part part = o->data ? WEFT_DATA_TRAIN : WEFT_DATA_VALIDATION;
    const int64_t samples = weft_data_samples(b->data, part);
    WEFT_REQUIRE(samples > 0 || !o->data, WEFT_E_SHAPE, "%s holds no sample", o->data);
    WEFT_REQUIRE(samples > 0, WEFT_E_ARG,
                 "the job has no validation data (data.validation): name data to evaluate (--data "
                 "FILE)");
    return wefti_built_evaluate(b, part, wefti_feed_batches(b->data, part, b->batch.micro), stops,
                                m, out);
}

static void summarise(const wefti_trained *m, const wefti_evaluation *e, weft_eval_result *r) {
    const weft_session_memory memory = weft_session_memory_of(m->built.session);
    const double nat = M_LOG2E; /* bits */
    (void)snprintf(r->checkpoint, sizeof r->checkpoint, "%s", m->path);
    r->samples = e->samples;
    r->targets = e->targets;
    r->bytes = e->bytes;
    r->loss = e->loss;
    r->perplexity = m->built.model.objective->is_language ? exp(e->loss) : NAN;
    r->bits_per_byte = e->bytes ? e->loss * (double)e->targets * nat / (double)e->bytes : NAN;
    r->accuracy = e->accuracy;
    r->devices = weft_session_devices(m->built.session);
    r->predicted_peak_bytes = memory.predicted_peak_bytes;
    r->host_bytes = memory.host_bytes;
    r->disk_bytes = memory.disk_bytes;
}

static weft_status run(wefti_trained *m, weft_world *world, const weft_job *job,
                       const weft_eval_options *o, weft_eval_result *out) {
    wefti_evaluation e;
    WEFT_TRY(wefti_trained_begin(m, world, job, o->checkpoint, &o->events));
    choose_data(&m->job, o);
    WEFT_TRY(wefti_trained_open(m, WEFT_USE_EVAL, 0, 0));
    const double start = wefti_now_s();
    WEFT_TRY(evaluate(m, o, &e));
    WEFT_REQUIRE(!e.stopped, WEFT_E_STOPPED, "stopped after %lld samples", (long long)e.samples);
    summarise(m, &e, out);
    out->seconds = wefti_now_s() - start;
    return WEFT_OK;
}

weft_status weft_eval_run(weft_world *world, const weft_job *job, const weft_eval_options *options,
                          weft_eval_result *out) {
    weft_eval_options own = weft_eval_defaults();
    WEFT_TRY(wefti_fail_world(world, wefti_struct_take("weft_eval_options", options, &own)));
    if (!job || !own.checkpoint || !out)
        return wefti_fail_world(
            world, WEFT_RAISE(WEFT_E_ARG, "an evaluation needs a job, a checkpoint and a place for "
                                          "its result"));
    weft_eval_result result = {.devices = 0};
    wefti_trained *m = wefti_calloc(1, sizeof *m);
    if (!m) return wefti_fail_world(world, WEFT_RAISE(WEFT_E_NOMEM, "no memory for an evaluation"));
    weft_status status = run(m, world, job, &own, &result);
    status = wefti_party_end(&m->setup.party, status);
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    wefti_trained_close(m);
    wefti_free(m);
    if (status < 0) return wefti_failure_tell(&failure);
    *out = result;
    return WEFT_OK;
}
