/* Validation during and after a run. */
#include "train/loop/loop.h"

#include <math.h>

#include "base/clock.h"
#include "tensor/tensor.h"

/* Counts rows with the largest logit at their label. */
static weft_status count_right(wefti_training *t, const wefti_batch *b, int64_t *right) {
    weft_tensor_info info;
    WEFT_TRY(weft_session_find(t->session, t->model.eval_program, "logits", &info));
    int64_t classes = info.desc.shape[info.desc.rank - 1];
    void *logits = wefti_alloc((size_t)info.bytes);
    WEFT_REQUIRE(logits, WEFT_E_NOMEM, "no memory for the logits of a validation batch");
    weft_status status =
        weft_session_read(t->session, t->model.eval_program, "logits", logits, (size_t)info.bytes);
    for (int64_t r = 0; r < b->valid && status == WEFT_OK; r++) {
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++)
            if (wefti_load(info.desc.dtype, logits, r * classes + c) >
                wefti_load(info.desc.dtype, logits, r * classes + best))
                best = c;
        *right += best == b->target[r];
    }
    wefti_free(logits);
    return status;
}

static weft_status validate_with(wefti_training *t, wefti_feed *feed, int64_t batches,
                                 weft_train_validation *out) {
    double sum = 0;
    int64_t rows = 0, right = 0, weight = 0;
    for (int64_t i = 0; i < batches; i++) {
        wefti_batch b;
        double loss;
        bool stop;
        WEFT_TRY(wefti_training_stops(t, &stop));
        if (stop) break;
        WEFT_TRY(wefti_feed_next(feed, &b));
        t->model.objective->prepare(t, &b, t->batch.micro);
        WEFT_TRY(wefti_training_feed_rows(t, t->model.eval_program, &b, 0));
        WEFT_TRY(weft_session_forward(t->session, t->model.eval_program, &loss));
        if (t->model.objective->has_accuracy) WEFT_TRY(count_right(t, &b, &right));
        int64_t targets = wefti_batch_targets(t, &b, 0, b.valid);
        sum += loss * (double)targets;
        weight += targets;
        rows += b.valid;
        wefti_feed_release(feed);
    }
    out->loss = weight ? sum / (double)weight : NAN;
    out->accuracy = !t->model.objective->has_accuracy || !rows ? NAN : (double)right / (double)rows;
    return WEFT_OK;
}

weft_status wefti_training_validate(wefti_training *t) {
    if (t->model.eval_program == 0) return WEFT_OK;
    wefti_feed_options o = {.data = t->data,
                            .part = WEFT_DATA_VALIDATION,
                            .sequential = true,
                            .batch = t->batch.micro,
                            .row_end = t->batch.micro,
                            .ring = 2,
                            .padding_target = -1};
    int64_t batches = wefti_feed_batches(t->data, WEFT_DATA_VALIDATION, t->batch.micro);
    int64_t limit =
        t->job->train.eval_batches; /* of train.batch samples, however they are divided */
    if (limit > 0 && limit <= batches / t->batch.microbatches)
        batches = limit * t->batch.microbatches;
    weft_train_validation v = {.step = t->progress.step};
    double start = wefti_now_s();
    wefti_feed *feed;
    void *block;
    WEFT_TRY(wefti_training_open_feed(&o, &block, &feed));
    weft_status status = validate_with(t, feed, batches, &v);
    wefti_feed_destroy(feed);
    wefti_free(block);
    WEFT_TRY(status);
    bool stop;
    WEFT_TRY(wefti_training_stops(t, &stop));
    if (stop) return WEFT_OK; /* a part of the data would give another number */
    v.seconds = wefti_now_s() - start;
    t->result->validation_loss = v.loss;
    t->result->accuracy = v.accuracy;
    wefti_training_note_metrics(t, wefti_metrics_validation(t->metrics, &v));
    if (t->events && t->events->validation) t->events->validation(t->events->context, &v);
    return WEFT_OK;
}
