/* The begin of a run: its directory, its checkpoint, its parameters. */
#include "train/loop/loop.h"

#include <string.h>

#include "interop/pretrained.h"
#include "job/job.h"

/* In a world its tensors are checked when they are restored. */
weft_status wefti_training_find(wefti_training *t, wefti_checkpoint **out) {
    const weft_job_checkpoint *c = &t->built->job->checkpoint;
    *out = NULL;
    if (!c->dir[0]) return WEFT_OK;
    char *note = NULL;
    weft_status status = t->setup.party.world
                             ? wefti_checkpoint_open_unread(c->dir, INT64_MAX, out, &note)
                             : wefti_checkpoint_open(c->dir, WEFTI_CHECKPOINT_LATEST, out, &note);
    if (note) wefti_setup_note(&t->setup, "%s", note);
    wefti_free(note);
    if (status == WEFT_E_NOT_FOUND) return WEFT_OK;
    return status < 0 ? wefti_prefix(status, "checkpoint.dir") : WEFT_OK;
}

/* A new run must not mix its checkpoints with another run's. */
static weft_status refuse_occupied(const wefti_training *t) {
    const weft_job_checkpoint *c = &t->built->job->checkpoint;
    if (!c->dir[0] || c->resume) return WEFT_OK;
    int64_t *steps, count;
    WEFT_TRY(wefti_checkpoint_list(c->dir, &steps, &count));
    int64_t last = count ? steps[count - 1] : 0;
    wefti_free(steps);
    WEFT_REQUIRE(
        count == 0, WEFT_E_ARG,
        "%s already holds checkpoints, up to step %lld: set checkpoint.resume: true to go on from "
        "there, or name another checkpoint.dir",
        c->dir, (long long)last);
    return WEFT_OK;
}

weft_status wefti_training_open_directory(wefti_training *t, wefti_checkpoint **out) {
    *out = NULL;
    if (t->setup.party.follows) return WEFT_OK;
    WEFT_TRY(wefti_training_lock(t));
    WEFT_TRY(refuse_occupied(t));
    if (t->built->job->checkpoint.resume) WEFT_TRY(wefti_training_find(t, out));
    if (!*out) return WEFT_OK; /* else: the arithmetic that the run began with */
    const char *bf16 = wefti_checkpoint_value(&wefti_checkpoint_meta_of(*out)->compute, "bf16");
    if (bf16) t->built->model.bf16 = strcmp(bf16, "native") ? WEFT_BF16_AS_F32 : WEFT_BF16_NATIVE;
    return WEFT_OK;
}

/* Rank 0, after the ranks have found damage in the tensors of *from: the step before it. */
static weft_status step_back(wefti_training *t, wefti_checkpoint **from) {
    const int64_t step = wefti_checkpoint_meta_of(*from)->step;
    char *note = NULL;
    wefti_setup_note(&t->setup, "skipped step %lld: %s", (long long)step, weft_error_message());
    wefti_checkpoint_close(*from);
    *from = NULL;
    weft_status status =
        wefti_checkpoint_open_unread(t->built->job->checkpoint.dir, step, from, &note);
    if (note) wefti_setup_note(&t->setup, "%s", note);
    wefti_free(note);
    if (status == WEFT_E_NOT_FOUND)
        status =
            WEFT_RAISE(WEFT_E_CORRUPT, "no good checkpoint in %s", t->built->job->checkpoint.dir);
    return status < 0 ? wefti_prefix(status, "checkpoint.dir") : WEFT_OK;
}

/* Restores the newest good step. In a world damage is found by all ranks together. */
static weft_status restore(wefti_training *t, wefti_checkpoint **from) {
    for (;;) {
        int step = 0;
        weft_status status = wefti_training_restore(t, *from);
        if (status != WEFT_E_CORRUPT || !t->setup.party.agreement ||
            !wefti_party_agreed(&t->setup.party))
            return status;
        status = t->setup.party.follows ? WEFT_OK : step_back(t, from);
        WEFT_TRY(wefti_party_broadcast(&t->setup.party, status, &step, sizeof step));
    }
}

/* Rank 0: the text of the run's job, NULL if it has none. */
static const char *recorded_job(const wefti_checkpoint *c) {
    return c ? wefti_checkpoint_value(&wefti_checkpoint_meta_of(c)->notes, "job") : NULL;
}

/* The checkpoint does not fit: if the job has another model than the run, say in which keys. */
static weft_status name_other_model(const wefti_training *t, const wefti_checkpoint *c,
                                    weft_status status) {
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    char *text = wefti_job_differences(t->built->job, recorded_job(c), true);
    status = wefti_failure_tell(&failure);
    if (text) status = wefti_prefix(status, "the model is not the run's (%s)", text);
    wefti_free(text);
    return status;
}

static void note_other_settings(const wefti_training *t, const wefti_checkpoint *c) {
    char *text = wefti_job_differences(t->built->job, recorded_job(c), false);
    if (text) wefti_setup_note(&t->setup, "this run goes on with other settings: %s", text);
    wefti_free(text);
}

static weft_status resume(wefti_training *t, wefti_checkpoint **from) {
    weft_status status = restore(t, from);
    if (status == WEFT_E_SHAPE || status == WEFT_E_MISMATCH || status == WEFT_E_NOT_FOUND)
        status = name_other_model(t, *from, status);
    WEFT_TRY(status);
    note_other_settings(t, *from);
    return WEFT_OK;
}

weft_status wefti_training_load_parameters(wefti_training *t, wefti_checkpoint **from,
                                           bool resumes) {
    const char *files = t->built->job->model.from;
    if (!resumes && !files[0]) return WEFT_OK;
    const weft_train_part before = wefti_training_enter(t, WEFT_TRAIN_PART_LOADING);
    char *note = NULL;
    weft_status status = resumes ? resume(t, from) : WEFT_OK;
    if (!resumes)
        status = wefti_pretrained_load_across(&t->setup.party, t->built->session,
                                              &t->built->model.config, files, &note);
    if (status >= 0 && !resumes && t->built->job->model.lora.from[0])
        status = wefti_adapter_load_across(&t->setup.party, t->built->session,
                                           &t->built->model.config, t->built->job->model.lora.from);
    if (note) wefti_setup_note(&t->setup, "model.from: %s", note);
    wefti_free(note);
    (void)wefti_training_enter(t, before);
    return status;
}

weft_status wefti_training_load(wefti_training *t, wefti_checkpoint **from) {
    bool resumes = *from != NULL;
    WEFT_TRY(wefti_built_same_job(t->built));
    WEFT_TRY(wefti_party_broadcast(&t->setup.party, WEFT_OK, &resumes, sizeof resumes));
    t->record.resumes = resumes;
    WEFT_TRY(wefti_built_prepare(t->built));
    WEFT_TRY(wefti_built_build(t->built));
    WEFT_TRY(wefti_built_fits_machine(t->built));
    WEFT_TRY(wefti_training_bind(t));
    WEFT_TRY(wefti_party_agree(&t->setup.party, wefti_training_lock_slices(t)));
    WEFT_TRY(wefti_training_load_parameters(t, from, resumes));
    const weft_status cleaned = wefti_saver_clean(wefti_training_saver(t), t->progress.step);
    return wefti_party_agree(&t->setup.party, cleaned);
}
