/* Saves the last complete step after a later one has failed: checkpoint.on_error.
 *
 * A step fails before its update if the data cannot be read, if the loss or the gradient's norm is
 * not finite, or if the session refuses it. The parameters are then those of the step before. If
 * all ranks share the failure and hold that state, they save it together. A rank that is gone, or a
 * rank that fails alone in the midst of a pass, has ended the world: then the last checkpoint is
 * what all ranks have in common. */
#include "train/loop/loop.h"

/* All ranks fail in the same place. They see the same loss and the same norm, except where each
 * rank runs its own model. */
static bool is_shared(const wefti_training *t, weft_status status) {
    const weft_plan *plan = wefti_built_plan(t->built);
    if (wefti_party_agreed(&t->setup.party)) return true;
    return status == WEFT_E_NUMERIC && t->progress.stage == WEFTI_STAGE_STEPPING &&
           !(plan && plan->mode == WEFT_PARALLEL_MANUAL);
}

/* A forward pass changes states, and an update parameters. */
static weft_status check_whole(wefti_training *t) {
    if (t->progress.stage == WEFTI_STAGE_STEPPING)
        WEFT_REQUIRE(!atomic_load(&t->saving.touched) && t->saving.saver.list.states == 0,
                     WEFT_E_CORRUPT, "the step had begun to change %s",
                     t->saving.saver.list.states ? "the model's states" : "parameters");
    return wefti_training_check_parameters(t);
}

/* The same on all ranks, or on rank 0 alone, which then does not write: no rank waits for another.
 */
static void note_unsaved(const wefti_training *t, weft_status status) {
    if (status < 0)
        wefti_setup_note(&t->setup, "checkpoint.on_error: step %lld is not saved: %s",
                         (long long)t->progress.step, weft_error_message());
}

/* Fails if the ranks are not in the same place any more. */
static weft_status save(wefti_training *t) {
    bool unsaved;
    weft_status unwritten = WEFT_OK, status = wefti_party_agree(&t->setup.party, check_whole(t));
    if (!wefti_party_agreed(&t->setup.party)) WEFT_TRY(status);
    note_unsaved(t, status);
    if (status < 0) return WEFT_OK;
    WEFT_TRY(wefti_training_unsaved(t, &unsaved));
    if (unsaved) WEFT_TRY(wefti_training_save(t, &unwritten));
    note_unsaved(t, unwritten);
    WEFT_TRY(wefti_saver_finish(wefti_training_saver(t), &unwritten));
    note_unsaved(t, unwritten);
    return WEFT_OK;
}

weft_status wefti_training_rescue(wefti_training *t, weft_status status) {
    const weft_job_checkpoint *c = &t->built->job->checkpoint;
    wefti_failure failure;
    if (!c->on_error || !*c->dir || status == WEFT_E_STOPPED) return status;
    wefti_failure_keep(status, &failure);
    if (!is_shared(t, status)) {
        wefti_setup_note(&t->setup,
                         "checkpoint.on_error: step %lld is not saved, as a rank failed alone",
                         (long long)t->progress.step);
        return wefti_failure_tell(&failure);
    }
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_SAVING);
    weft_status parted = save(t);
    note_unsaved(t, parted);
    (void)wefti_failure_tell(&failure);
    if (parted < 0 || !t->setup.party.agreement) return status; /* run.c reports it to the others */
    /* The failure is again the last that the ranks have agreed on. */
    return wefti_party_agree(&t->setup.party, status);
}
