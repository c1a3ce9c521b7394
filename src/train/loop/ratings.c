/* What the validations of a run say of its steps: which was the best, and how many in a row were
 * none. checkpoint.best keeps the best step; train.stop_after ends the run. Checkpoints remember
 * both, so that a run goes on as if it had never been stopped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/io.h"
#include "base/text.h"
#include "checkpoint/run/run.h"
#include "train/loop/loop.h"

static const char best_step[] = "best_step", best_loss[] = "best_loss", lowest[] = "lowest_loss",
                  not_improved[] = "not_improved", rated[] = "rated_step";

bool wefti_training_rates(const wefti_training *t) {
    return t->built->job->checkpoint.best || t->built->job->train.stop_after > 0;
}

wefti_training_ratings wefti_training_no_ratings(void) {
    const wefti_rated_step none = {-1, INFINITY};
    return (wefti_training_ratings){
        .step = -1, .lowest = INFINITY, .best = none, .candidate = none};
}

bool wefti_training_is_best(const wefti_training *t) {
    return t->progress.ratings.candidate.step == t->progress.step;
}

int64_t wefti_training_best_step(const wefti_training *t) {
    return wefti_training_is_best(t) ? t->progress.step : t->progress.ratings.best.step;
}

weft_status wefti_training_rate(wefti_training *t, double loss) {
    wefti_training_ratings *r = &t->progress.ratings;
    if (!wefti_training_rates(t) || r->step >= t->progress.step) return WEFT_OK;
    WEFT_TRY(wefti_party_broadcast(&t->setup.party, WEFT_OK, &loss, sizeof loss));
    r->step = t->progress.step;
    r->not_improved = loss < r->lowest ? 0 : r->not_improved + 1; /* also if it is not finite */
    if (loss < r->lowest) r->lowest = loss;
    const bool is_written =
        t->saving.saver.state != WEFTI_SAVE_NONE && r->candidate.step == t->saving.saver.step;
    if (t->built->job->checkpoint.best && loss < r->best.loss &&
        (!is_written || loss < r->candidate.loss))
        r->candidate = (wefti_rated_step){t->progress.step, loss};
    return WEFT_OK;
}

void wefti_training_rated_step_is_written(wefti_training *t) {
    wefti_training_ratings *r = &t->progress.ratings;
    if (r->candidate.step == t->saving.committed_step) r->best = r->candidate;
}

int64_t wefti_training_note_ratings(const wefti_training *t, wefti_rating_texts *texts,
                                    wefti_checkpoint_pair *pairs) {
    const wefti_training_ratings *r = &t->progress.ratings;
    const wefti_rated_step *best = wefti_training_is_best(t) ? &r->candidate : &r->best;
    int64_t count = 0;
    if (!wefti_training_rates(t) || r->step < 0) return 0;
    (void)snprintf(texts->step, sizeof texts->step, "%lld", (long long)r->step);
    (void)snprintf(texts->not_improved, sizeof texts->not_improved, "%lld",
                   (long long)r->not_improved);
    pairs[count++] = (wefti_checkpoint_pair){rated, texts->step};
    pairs[count++] = (wefti_checkpoint_pair){not_improved, texts->not_improved};
    if (isfinite(r->lowest))
        pairs[count++] =
            (wefti_checkpoint_pair){lowest, wefti_real_text(r->lowest, 6, 17, texts->lowest)};
    if (best->step < 0) return count;
    (void)snprintf(texts->best_step, sizeof texts->best_step, "%lld", (long long)best->step);
    pairs[count++] = (wefti_checkpoint_pair){best_step, texts->best_step};
    pairs[count++] =
        (wefti_checkpoint_pair){best_loss, wefti_real_text(best->loss, 6, 17, texts->best_loss)};
    return count;
}

static int64_t whole_of(const wefti_checkpoint_meta *meta, const char *key, int64_t otherwise) {
    const char *text = wefti_checkpoint_value(&meta->notes, key);
    return text ? strtoll(text, NULL, 10) : otherwise;
}

static double real_of(const wefti_checkpoint_meta *meta, const char *key) {
    const char *text = wefti_checkpoint_value(&meta->notes, key);
    char *end = NULL;
    const double value = text ? wefti_real_read(text, &end) : INFINITY;
    return text && end != text && !*end ? value : INFINITY;
}

/* A step that somebody has removed is the best one no more. */
weft_status wefti_training_read_ratings(const wefti_training *t, const wefti_checkpoint_meta *meta,
                                        wefti_training_ratings *out) {
    char *path = NULL;
    bool sliced;
    *out = wefti_training_no_ratings();
    out->step = whole_of(meta, rated, -1);
    out->not_improved = whole_of(meta, not_improved, 0);
    out->lowest = real_of(meta, lowest);
    const wefti_rated_step best = {whole_of(meta, best_step, -1), real_of(meta, best_loss)};
    if (best.step < 0 || !*t->built->job->checkpoint.dir) return WEFT_OK;
    WEFT_TRY(wefti_run_step_path(t->built->job->checkpoint.dir, best.step, &path, &sliced));
    bool there = false;
    weft_status status = wefti_look_for(path, &there);
    if (there) out->best = best;
    wefti_free(path);
    return status;
}
