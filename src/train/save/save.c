/* Saves checkpoints during a run: names of tensors, begin and end of a write.
 *
 * A write begins between two steps and reads the live tensors while the next step computes. Before
 * the optimizer changes a tensor, the step waits until that tensor has been captured. In a world
 * each rank writes its own pieces (session/save/together.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kinds.h"
#include "base/clock.h"
#include "base/digest/digest.h"
#include "base/io.h"
#include "base/text.h"
#include "session/optimizer.h"
#include "tokenizer/tokenizer.h"
#include "data/fingerprint.h"
#include "train/save/save.h"

/* ---- the list of tensors, in the order in which the optimizer changes them ---- */

/* Adds a parameter's optimizer tensors under the file name `name`. If files store the parameter in
 * parts, its first dimension counts the parts, and the first dimension of its states does too. */
static weft_status add_states(const wefti_training *t, wefti_saved_list *list, const int *states,
                              const weft_tensor_info *x, bool whole, int64_t part,
                              const char *name) {
    char full[600];
    size_t length = strlen(x->name); /* an optimizer tensor is named "<parameter>.<state>" */
    for (int i = 0; i < WEFTI_SAVED_STATES_MOST; i++) {
        weft_tensor_info s;
        if (states[i] < 0) continue;
        WEFT_TRY(weft_session_tensor(t->built->session, 0, states[i], &s));
        weft_desc desc = s.desc;
        if (!whole) {
            WEFT_REQUIRE(desc.rank > 0 && desc.shape[0] == x->desc.shape[0], WEFT_E_BUG,
                         "%s is stored in parts, but its state %s is not made of them", x->name,
                         s.name);
            desc = weft_desc_of(desc.dtype, desc.rank - 1, s.desc.shape + 1);
        }
        (void)snprintf(full, sizeof full, "%s%s", name, s.name + length);
        WEFT_TRY(wefti_saved_list_add(list, states[i], part * weft_desc_elems(&desc), full, &desc,
                                      WEFTI_CHECKPOINT_OPTIMIZER));
    }
    return WEFT_OK;
}

/* Adds a parameter (or state) and then its optimizer tensors, part by part. */
static weft_status add_with_states(void *context, wefti_saved_list *list, int tensor,
                                   const weft_tensor_info *x,
                                   const int states[WEFTI_SAVED_STATES_MOST]) {
    const wefti_training *t = context;
    char name[512];
    weft_desc desc;
    weft_status status;
    for (int64_t part = 0;; part++) {
        status = weft_model_file_name(&t->built->model.config, x->name, &x->desc, part, name,
                                      sizeof name, &desc);
        if (status == WEFT_E_NOT_FOUND && part > 0) break;
        WEFT_TRY(status);
        const int64_t elems = weft_desc_elems(&desc);
        WEFT_TRY(
            wefti_saved_list_add(list, tensor, part * elems, name, &desc, WEFTI_CHECKPOINT_MODEL));
        WEFT_TRY(add_states(t, list, states, x, elems == weft_desc_elems(&x->desc), part, name));
    }
    return WEFT_OK;
}

/* Each checkpoint gets the files beside the model, so that generation needs nothing else. They are
 * read once, and later changes to them have no effect. Folders of slices have them, too. */
static weft_status read_side(wefti_training *t) {
    weft_status status =
        t->built->job->checkpoint.dir[0] ? wefti_built_read_side(t->built) : WEFT_OK;
    const bool alone = t->setup.briefing && !t->setup.briefing->anew;
    if (!wefti_training_is_sliced(t) || alone) return status;
    return wefti_built_share_side(t->built, status);
}

/* Called from the threads of all devices. */
static void before_update(void *context, int32_t rank, int32_t tensor) {
    wefti_training *t = context;
    atomic_store(&t->saving.touched, true);
    if (!t->saving.saver.writing) return;
    const int64_t begin = wefti_now_ns();
    wefti_saver_wait_tensor(&t->saving.saver,
                            wefti_session_number(t->built->session, 0, rank, tensor));
    atomic_fetch_add(&t->saving.blocked_ns, wefti_now_ns() - begin);
}

weft_status wefti_training_bind(wefti_training *t) {
    t->saving.begun_ns = wefti_now_ns();
    wefti_session_before_update(t->built->session, before_update, t);
    WEFT_TRY(wefti_saved_list_create(t->built->session, add_with_states, t, &t->saving.saver.list));
    return read_side(t);
}

/* ---- writing ---- */

static void report_written(void *context) {
    wefti_training *t = context;
    t->saving.committed_step = t->saving.saver.step;
    wefti_training_rated_step_is_written(t);
    if (t->setup.party.follows) return;
    (void)snprintf(t->result->checkpoint, sizeof t->result->checkpoint, "%s/%sstep-%012lld",
                   t->built->job->checkpoint.dir, wefti_training_is_sliced(t) ? "rank_0/" : "",
                   (long long)t->saving.committed_step);
    if (t->events && t->events->checkpoint)
        t->events->checkpoint(t->events->context, t->saving.committed_step, t->result->checkpoint);
}

bool wefti_training_is_native(const wefti_training *t) {
    return weft_session_bf16(t->built->session) == WEFT_BF16_NATIVE;
}

/* The form of the kernels. */
const char *wefti_training_arithmetic(const wefti_training *t) {
    return wefti_kind_variant(wefti_kind_of(0),
                              wefti_training_is_native(t) ? WEFTI_BF16_NATIVE : WEFTI_BF16_AS_F32);
}

wefti_save_keep wefti_training_keeps(const wefti_training *t) {
    const weft_job_checkpoint *c = &t->built->job->checkpoint;
    return (wefti_save_keep){.keep = c->keep + !wefti_training_is_over(t),
                             .spacing = c->keep_minutes * 60,
                             .best = wefti_training_best_step(t)};
}

static wefti_save_keep keeps(void *context) {
    return wefti_training_keeps(context);
}

static weft_status begin_with(wefti_training *t, const wefti_save_part *b, char *config,
                              wefti_checkpoint_job **out) {
    const weft_job *job = t->built->job;
    const weft_job_optimizer *o = &job->train.optimizer;
    char lr[32], b1[32], b2[32], eps[32], decay[32], momentum[32], initial[32], threads[32],
        samples[32], now[32];
    (void)snprintf(threads, sizeof threads, "%d", wefti_session_threads(t->built->session));
    (void)snprintf(samples, sizeof samples, "%lld",
                   (long long)weft_data_samples(t->built->data, WEFT_DATA_TRAIN));
    const wefti_checkpoint_pair settings[] = {
        {"lr", wefti_real_text(o->lr, 6, 17, lr)},
        {"beta1", wefti_real_text(o->betas[0], 6, 17, b1)},
        {"beta2", wefti_real_text(o->betas[1], 6, 17, b2)},
        {"eps", wefti_real_text(o->eps, 6, 17, eps)},
        {"weight_decay", wefti_real_text(o->weight_decay, 6, 17, decay)},
        {"momentum", wefti_real_text(o->momentum, 6, 17, momentum)},
        {"initial_accumulator", wefti_real_text(o->initial_accumulator, 6, 17, initial)},
        {"schedule", weft_schedule_text(job->train.schedule.name)}};
    const wefti_checkpoint_pair compute[] = {
        {"isa", wefti_training_arithmetic(t)},
        {"precision", weft_dtype_text(job->train.precision)},
        {"bf16", wefti_training_is_native(t) ? "native" : "f32"},
        {"threads", threads}};
    const wefti_checkpoint_pair random[] = {{"generator", "philox4x32-10"}};
    (void)snprintf(now, sizeof now, "%lld", (long long)b->now);
    const wefti_save_keep keep = wefti_training_keeps(t);
    const char *data = NULL;
    WEFT_TRY(wefti_data_fingerprint(t->built->data, &data));
    wefti_checkpoint_pair notes[4 + WEFTI_RATING_NOTES] = {
        {"samples", samples}, {WEFTI_TRAINING_DATA, data}, {"job", job->text}};
    wefti_rating_texts ratings;
    int64_t note_count = 3;
    if (keep.spacing > 0) notes[note_count++] = (wefti_checkpoint_pair){WEFTI_CHECKPOINT_TIME, now};
    note_count += wefti_training_note_ratings(t, &ratings, notes + note_count);
    const wefti_checkpoint_loss loss = {t->progress.step, t->result->final_loss};
    wefti_checkpoint_meta meta = {
        .step = t->progress.step,
        .data_position = t->progress.position,
        .seed = job->train.seed,
        .optimizer = wefti_optimizer_text(o->name),
        .settings = {settings, sizeof settings / sizeof *settings},
        .random = {random, 1},
        .compute = {compute, sizeof compute / sizeof *compute},
        .notes = {notes, note_count},
        .losses = &loss,
        .loss_count = t->progress.step > 0 ? 1 : 0,
    };
    wefti_checkpoint_text texts[1 + WEFTI_SIDE_FILES_MOST] = {{.name = "config.json", config}};
    const int64_t side = wefti_side_files_list(&t->setup.side, texts + 1);
    wefti_checkpoint_options options = b->options;
    options.keep = options.slicing ? 0 : keep.keep;
    options.spacing = keep.spacing;
    options.best = keep.best;
    options.texts = texts;
    options.text_count = 1 + side;
    options.key = t->setup.encrypts ? &t->setup.key : NULL;
    return wefti_checkpoint_begin(b->dir, &meta, b->tensors, b->count, &options, out);
}

static weft_status begin(void *context, const wefti_save_part *part, wefti_checkpoint_job **out) {
    wefti_training *t = context;
    char *config = NULL;
    t->saving.begun_ns = wefti_now_ns();
    WEFT_TRY(weft_model_config_write(&t->built->model.config, &config));
    weft_status status = begin_with(t, part, config, out);
    weft_text_free(config);
    return status;
}

/* ---- the saver of the run ---- */

static void note(void *context, const char *text) {
    wefti_setup_note(&((wefti_training *)context)->setup, "%s", text);
}

wefti_saver *wefti_training_saver(wefti_training *t) {
    wefti_saver *v = &t->saving.saver;
    v->owner = (wefti_save_owner){begin, keeps, report_written, note, t};
    v->session = t->built->session;
    v->world = t->setup.party.world;
    v->agreement = t->setup.party.agreement;
    v->dir = t->built->job->checkpoint.dir;
    v->sliced = t->built->job->checkpoint.sliced;
    return v;
}

static weft_status named(weft_status status) {
    return status < 0 ? wefti_prefix(status, "checkpoint.dir") : status;
}

weft_status wefti_training_lock(wefti_training *t) {
    return named(wefti_saver_lock(wefti_training_saver(t)));
}

weft_status wefti_training_lock_slices(wefti_training *t) {
    return named(wefti_saver_lock_slices(wefti_training_saver(t)));
}

bool wefti_training_is_sliced(const wefti_training *t) {
    return t->built->job->checkpoint.sliced && t->setup.party.world;
}

weft_status wefti_training_save(wefti_training *t, weft_status *out_unwritten) {
    t->saving.begun_ns = wefti_now_ns();
    return wefti_saver_save(wefti_training_saver(t), t->progress.step, out_unwritten);
}

weft_status wefti_training_save_meanwhile(wefti_training *t) {
    t->saving.begun_ns = wefti_now_ns();
    return wefti_saver_save_meanwhile(wefti_training_saver(t), t->progress.step);
}

bool wefti_training_is_saved(const wefti_training *t) {
    const wefti_saver *v = &t->saving.saver;
    return t->saving.committed_step == t->progress.step ||
           (v->state != WEFTI_SAVE_NONE && v->step == t->progress.step);
}

/* A step that is written, or being written, is not due again. */
bool wefti_training_due(const wefti_training *t) {
    const double seconds = t->built->job->checkpoint.seconds;
    if (seconds <= 0 || t->setup.party.follows || wefti_training_is_saved(t)) return false;
    return (double)(wefti_now_ns() - t->saving.begun_ns) >= seconds * 1e9;
}
