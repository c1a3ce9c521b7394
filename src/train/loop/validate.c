/* Validation during and after a run. */
#include "base/clock.h"
#include "train/loop/loop.h"

static weft_status stops(void *context, bool *out) {
    return wefti_training_stops(context, WEFT_OK, out);
}

static weft_status validate(wefti_training *t) {
    int64_t batches =
        wefti_feed_batches(t->built->data, WEFT_DATA_VALIDATION, t->built->batch.micro);
    int64_t limit =
        t->built->job->train.eval_batches; /* of train.batch samples, however they are divided */
    if (limit > 0 && limit <= batches / t->built->batch.microbatches)
        batches = limit * t->built->batch.microbatches;
    wefti_evaluation e;
    double start = wefti_now_s();
    WEFT_TRY(wefti_built_evaluate(t->built, WEFT_DATA_VALIDATION, batches, stops, t, &e));
    t->result->validation_prepared += e.prepared;
    bool stop;
    WEFT_TRY(wefti_training_stops(t, WEFT_OK, &stop));
    if (stop) return WEFT_OK; /* a part of the data would give another number */
    weft_train_validation v = {.step = t->progress.step,
                               .loss = e.loss,
                               .accuracy = e.accuracy,
                               .seconds = wefti_now_s() - start};
    t->result->validation_loss = v.loss;
    t->result->accuracy = v.accuracy;
    WEFT_TRY(wefti_training_rate(t, v.loss));
    if (t->progress.validated >= v.step) return WEFT_OK; /* before the world was mended */
    t->progress.validated = v.step;
    wefti_training_note_metrics(t, wefti_metrics_validation(t->metrics, &v));
    if (t->events && t->events->validation) t->events->validation(t->events->context, &v);
    return WEFT_OK;
}

weft_status wefti_training_validate(wefti_training *t) {
    if (t->built->model.eval_program == 0) return WEFT_OK;
    const weft_train_part before = wefti_training_enter(t, WEFT_TRAIN_PART_VALIDATION);
    const weft_status status = validate(t);
    t->time.waited_ns = wefti_session_waited(t->built->session); /* these waits are no step's */
    (void)wefti_training_enter(t, before);
    return status;
}
