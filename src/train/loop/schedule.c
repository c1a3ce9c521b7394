/* Learning-rate schedules. Warm-up rises linearly to lr over the first `warmup` updates; the
 * schedule covers the remaining updates. Cosine: Loshchilov & Hutter, "SGDR", 2017, without
 * restarts. */
#include <math.h>

#include "train/loop/loop.h"

double wefti_learning_rate(const weft_job *job, int64_t step) {
    const weft_job_schedule *s = &job->train.schedule;
    double lr = job->train.optimizer.lr;
    if (step < s->warmup) return lr * (double)(step + 1) / (double)s->warmup;
    double span = (double)(job->train.steps - s->warmup - 1);
    double part = span > 0 ? (double)(step - s->warmup) / span : 1.0;
    if (part > 1) part = 1;
    switch (s->name) {
    case WEFT_SCHEDULE_LINEAR:
        return lr * (1.0 - (1.0 - s->final) * part);
    case WEFT_SCHEDULE_COSINE:
        return lr * (s->final + (1.0 - s->final) * 0.5 * (1.0 + cos(3.141592653589793 * part)));
    case WEFT_SCHEDULE_STEP:
        return s->every > 0 ? lr * pow(s->factor, (double)((step - s->warmup) / s->every)) : lr;
    default:
        return lr;
    }
}
