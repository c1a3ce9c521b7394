/* One training step: feeding microbatches, accumulating gradients, updating. */
#include "train/loop/loop.h"

#include <math.h>

/* The microbatch from row `first` on, in a step with `targets` counting targets. */
static weft_status feed(wefti_built *m, const wefti_batch *b, int64_t first, int64_t targets) {
    const wefti_objective *o = m->model.objective;
    WEFT_TRY(wefti_built_feed_rows(m, 0, b, first));
    if (o->feed_weight) WEFT_TRY(o->feed_weight(m, b, first, targets));
    return weft_session_set_row(m->session, first);
}

weft_status wefti_training_step(wefti_training *t, const wefti_batch *b, double lr,
                                weft_train_step *out) {
    int64_t count = t->built->batch.microbatches;
    const wefti_objective *o = t->built->model.objective;
    const int64_t targets = o->targets_of_step ? o->targets_of_step(t->built, b) : 0;
    double sum = 0, loss = 0;
    int64_t known = 0; /* a pipeline returns the mean of all with the last one */
    out->gradient_norm = NAN;
    /* With recovery the loss must be known also if the update does not end. */
    if (count == 1 && t->built->job->train.clip == 0 && !t->built->job->recovery.enabled) {
        WEFT_TRY(feed(t->built, b, 0, targets));
        WEFT_TRY(weft_session_step(t->built->session, lr, &out->loss));
        return WEFT_OK;
    }
    for (int64_t m = 0; m < count; m++) {
        WEFT_TRY(feed(t->built, b, m * t->built->batch.micro, targets));
        WEFT_TRY(weft_session_accumulate(t->built->session, &loss));
        if (isnan(loss)) continue;
        sum += loss;
        known++;
    }
    out->loss = sum / (double)known;
    return weft_session_update(t->built->session, lr, &out->gradient_norm);
}
