/* Restores a checkpoint: compares it with the run, reads its tensors, and goes on from it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "session/optimizer.h"
#include "data/fingerprint.h"
#include "train/save/save.h"

static weft_status compare(wefti_training *t, const wefti_checkpoint *c) {
    wefti_saver *v = wefti_training_saver(t);
    wefti_checkpoint_tensor *expected;
    WEFT_TRY(wefti_saver_tensors(v, &expected));
    weft_status status =
        wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_MODEL, expected, v->list.count);
    const char *before = wefti_checkpoint_meta_of(c)->optimizer,
               *now = wefti_optimizer_text(t->built->job->train.optimizer.name);
    if (status == WEFT_OK) {
        status = wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_OPTIMIZER, expected, v->list.count);
        if (status < 0 && before && strcmp(before, now) != 0)
            (void)wefti_prefix(status, "the run began with train.optimizer.name: %s, not %s",
                               before, now);
    }
    wefti_free(expected);
    return status;
}

/* A checkpoint without its tensors, read by rank 0. */
typedef struct progress {
    int64_t step, position;
    double loss;
    wefti_training_ratings ratings;
} progress;

/* Where the data are not those that the run has read, the order of samples and their loss mean
 * nothing any more. Validation data may change: the run says so. */
static weft_status check_data(wefti_training *t, const wefti_checkpoint *c) {
    const char *now = NULL, *path = wefti_checkpoint_path(c);
    const char *then =
        wefti_checkpoint_value(&wefti_checkpoint_meta_of(c)->notes, WEFTI_TRAINING_DATA);
    char difference[WEFTI_DATA_DIFFERENCE];
    if (!then) {
        wefti_setup_note(&t->setup,
                         "%s does not say which data it was trained on, so they cannot be "
                         "compared with those that are read now",
                         path);
        return WEFT_OK;
    }
    WEFT_TRY(wefti_data_fingerprint(t->built->data, &now));
    if (!wefti_data_same(now, then, WEFTI_DATA_TOKENIZER | WEFTI_DATA_TRAINING, "now",
                         "in the checkpoint", difference)) {
        WEFT_REQUIRE(t->built->job->checkpoint.other_data, WEFT_E_ARG,
                     "%s was trained on other data: %s; checkpoint.other_data: true goes on with "
                     "the data as they are now",
                     path, difference);
        wefti_setup_note(&t->setup, "the run goes on with other data: %s", difference);
    }
    if (!wefti_data_same(now, then, WEFTI_DATA_VALIDATION, "now", "in the checkpoint", difference))
        wefti_setup_note(&t->setup, "the run goes on with other validation data: %s", difference);
    return WEFT_OK;
}

static weft_status check_same(wefti_training *t, const wefti_checkpoint *c) {
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    WEFT_TRY(compare(t, c));
    WEFT_REQUIRE(meta->seed == t->built->job->train.seed, WEFT_E_ARG,
                 "%s was trained with train.seed %llu, not %llu: the same samples would not follow",
                 wefti_checkpoint_path(c), (unsigned long long)meta->seed,
                 (unsigned long long)t->built->job->train.seed);
    return WEFT_OK;
}

static weft_status check_restored(wefti_training *t, const wefti_checkpoint *c, progress *out) {
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    const weft_status same = check_same(t, c);
    if (same < 0 && !wefti_checkpoint_value(&meta->notes, "job"))
        (void)wefti_prefix(same, "a program wrote the steps in %s, not `weft train`",
                           t->built->job->checkpoint.dir);
    WEFT_TRY(same);
    WEFT_TRY(check_data(t, c));
    *out = (progress){meta->step, meta->data_position, t->result->final_loss, t->progress.ratings};
    WEFT_TRY(wefti_training_read_ratings(t, meta, &out->ratings));
    if (meta->loss_count > 0) out->loss = meta->losses[meta->loss_count - 1].loss;
    return WEFT_OK;
}

static void note_differences(const wefti_training *t, const wefti_checkpoint *c) {
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    const char *samples = wefti_checkpoint_value(&meta->notes, "samples");
    int64_t now = weft_data_samples(t->built->data, WEFT_DATA_TRAIN);
    if (samples && strtoll(samples, NULL, 10) != now)
        wefti_setup_note(&t->setup,
                         "the data have %lld samples, but had %s when the checkpoint was "
                         "written: the order of samples changes from here on",
                         (long long)now, samples);
    const char *optimizer = wefti_optimizer_text(t->built->job->train.optimizer.name);
    if (meta->optimizer && strcmp(meta->optimizer, optimizer))
        wefti_setup_note(&t->setup,
                         "the run began with train.optimizer.name: %s; it continues with %s, from "
                         "that optimizer's states",
                         meta->optimizer, optimizer);
    const char *isa = wefti_checkpoint_value(&meta->compute, "isa");
    if (isa && strcmp(isa, wefti_training_arithmetic(t)))
        wefti_setup_note(
            &t->setup,
            "the checkpoint was computed with %s instructions, this processor uses %s: "
            "the last bits will differ",
            isa, wefti_training_arithmetic(t));
}

weft_status wefti_training_restore(wefti_training *t, wefti_checkpoint *c) {
    progress p = {0};
    wefti_checkpoint_tensor *all;
    WEFT_TRY(wefti_saver_tensors(wefti_training_saver(t),
                                 &all)); /* starts the session, which is collective */
    wefti_free(all);
    weft_status status = c ? check_restored(t, c, &p) : WEFT_OK;
    WEFT_TRY(wefti_party_broadcast(&t->setup.party, status, &p, sizeof p));
    WEFT_TRY(wefti_saver_load(wefti_training_saver(t), c, false));
    t->progress.step = t->saving.committed_step = p.step;
    t->progress.position = p.position;
    t->result->final_loss = p.loss;
    t->progress.ratings = p.ratings;
    /* A run that was stopped in the midst of a validation makes it again. */
    const int64_t every = t->built->job->train.eval_every;
    if (wefti_training_rates(t) && p.step > p.ratings.step && every > 0 && p.step % every == 0)
        t->progress.stage = WEFTI_STAGE_STEPPED;
    WEFT_TRY(weft_session_set_step(t->built->session, t->progress.step));
    if (!c) return WEFT_OK;
    note_differences(t, c);
    (void)snprintf(t->result->checkpoint, sizeof t->result->checkpoint, "%s",
                   wefti_checkpoint_path(c));
    return WEFT_OK;
}
