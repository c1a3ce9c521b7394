/* Saves checkpoints during a run: names of tensors, begin and end of a write.
 *
 * A write begins between two steps and reads the live tensors while the next step computes. Before
 * the optimizer changes a tensor, the step waits until that tensor has been captured. In a world
 * each rank writes its own pieces (together.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/digest/digest.h"
#include "base/io.h"
#include "base/text.h"
#include "session/optimizer.h"
#include "tokenizer/tokenizer.h"
#include "data/fingerprint.h"
#include "train/save/save.h"

weft_status wefti_training_lock(wefti_training *t) {
    if (!t->job->checkpoint.dir[0] || t->ranks.follows) return WEFT_OK;
    weft_status status = wefti_checkpoint_lock_open(t->job->checkpoint.dir, &t->saving.lock);
    return status < 0 ? wefti_prefix(status, "checkpoint.dir") : WEFT_OK;
}

/* ---- the list of tensors, in the order in which the optimizer changes them ---- */

static weft_status add_saved(wefti_training *t, int tensor, int64_t part, const char *file_name,
                             const weft_desc *file_desc, wefti_checkpoint_role role) {
    WEFT_TRY(WEFT_GROW(t->saving.tensors, t->saving.count, t->saving.room));
    wefti_saved_tensor *s = &t->saving.tensors[t->saving.count];
    s->tensor = tensor;
    s->first = part * weft_desc_elems(file_desc);
    s->desc = *file_desc;
    s->role = role;
    s->name = wefti_strdup(file_name);
    WEFT_REQUIRE(s->name, WEFT_E_NOMEM, "no memory for the list of saved tensors");
    t->saving.count++;
    return WEFT_OK;
}

/* The numbers of the optimizer tensors of each parameter, by state; -1: none. */
enum { MOST_STATES = 4 };
typedef int param_states[MOST_STATES];

static weft_status find_states(const wefti_training *t, param_states **out) {
    int count = weft_session_tensors(t->session, 0);
    param_states *of;
    WEFT_NEW_ARRAY(of, param_states, count + 1);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < MOST_STATES; k++) of[i][k] = -1;
    for (int i = 0; i < count; i++) {
        int param, state;
        wefti_session_owner(t->session, 0, i, &param, &state);
        if (param >= 0) of[param][state] = i;
    }
    *out = of;
    return WEFT_OK;
}

/* Adds a parameter's optimizer tensors under the file name `name`. If files store the parameter in
 * parts, its first dimension counts the parts, and the first dimension of its states does too. */
static weft_status add_states(wefti_training *t, const param_states states,
                              const weft_tensor_info *x, bool whole, int64_t part,
                              const char *name) {
    char full[600];
    size_t length = strlen(x->name); /* an optimizer tensor is named "<parameter>.<state>" */
    for (int i = 0; i < MOST_STATES; i++) {
        weft_tensor_info s;
        if (states[i] < 0) continue;
        WEFT_TRY(weft_session_tensor(t->session, 0, states[i], &s));
        weft_desc desc = s.desc;
        if (!whole) {
            WEFT_REQUIRE(desc.rank > 0 && desc.shape[0] == x->desc.shape[0], WEFT_E_BUG,
                         "%s is stored in parts, but its state %s is not made of them", x->name,
                         s.name);
            desc = weft_desc_of(desc.dtype, desc.rank - 1, s.desc.shape + 1);
        }
        (void)snprintf(full, sizeof full, "%s%s", name, s.name + length);
        WEFT_TRY(add_saved(t, states[i], part, full, &desc, WEFTI_CHECKPOINT_OPTIMIZER));
    }
    return WEFT_OK;
}

/* Adds a parameter (or state) and then its optimizer tensors, part by part. */
static weft_status add_with_states(wefti_training *t, const param_states states, int tensor,
                                   const weft_tensor_info *x) {
    char name[512];
    weft_desc desc;
    weft_status status;
    t->saving.first[tensor] = t->saving.count;
    for (int64_t part = 0;; part++) {
        status = weft_model_file_name(&t->model.config, x->name, &x->desc, part, name, sizeof name,
                                      &desc);
        if (status == WEFT_E_NOT_FOUND && part > 0) break;
        WEFT_TRY(status);
        bool whole = weft_desc_elems(&desc) == weft_desc_elems(&x->desc);
        WEFT_TRY(add_saved(t, tensor, part, name, &desc, WEFTI_CHECKPOINT_MODEL));
        WEFT_TRY(add_states(t, states, x, whole, part, name));
    }
    t->saving.last_of[tensor] = t->saving.count - 1;
    return WEFT_OK;
}

/* States come first, because the next forward pass already changes them. Then the parameters from
 * the model's end to its beginning, in the order in which the backward pass completes their
 * gradients. The order is the model's and not the plan's, so files are the same for all plans. */
static weft_status list_saved(wefti_training *t, const param_states *states) {
    static const int roles[] = {WEFT_ROLE_STATE, WEFT_ROLE_PARAM};
    for (int k = 0; k < 2; k++) {
        for (int i = weft_session_tensors(t->session, 0) - 1; i >= 0; i--) {
            weft_tensor_info info;
            WEFT_TRY(weft_session_tensor(t->session, 0, i, &info));
            if ((int)info.role == roles[k]) WEFT_TRY(add_with_states(t, states[i], i, &info));
        }
        if (k == 0) t->saving.states = t->saving.count;
    }
    return WEFT_OK;
}

/* Each checkpoint gets the files beside the model, so that generation needs nothing else. They are
 * read once, and later changes to them have no effect. Folders of slices have them, too. */
static weft_status read_side(wefti_training *t) {
    weft_status status = t->job->checkpoint.dir[0] ? wefti_training_read_side(t) : WEFT_OK;
    const bool alone = t->briefing && !t->briefing->anew;
    if (!wefti_training_is_sliced(t) || alone) return status;
    return wefti_training_share_side(t, status);
}

/* Called from the threads of all devices. */
static void before_update(void *context, int32_t rank, int32_t tensor) {
    wefti_training *t = context;
    atomic_store(&t->saving.touched, true);
    if (!t->saving.writing) return;
    int number = wefti_session_number(t->session, 0, rank, tensor);
    if (number < 0 || t->saving.first[number] < 0) return;
    const int64_t begin = wefti_now_ns();
    for (int64_t i = t->saving.first[number]; i <= t->saving.last_of[number]; i++)
        wefti_checkpoint_wait_tensor(t->saving.writing, i);
    atomic_fetch_add(&t->saving.blocked_ns, wefti_now_ns() - begin);
}

weft_status wefti_training_bind(wefti_training *t) {
    int count = weft_session_tensors(t->session, 0);
    param_states *states = NULL;
    t->saving.begun_ns = wefti_now_ns();
    wefti_session_before_update(t->session, before_update, t);
    WEFT_NEW_ARRAY(t->saving.first, int64_t, count + 1);
    WEFT_NEW_ARRAY(t->saving.last_of, int64_t, count + 1);
    for (int i = 0; i < count; i++) t->saving.first[i] = t->saving.last_of[i] = -1;
    weft_status status = find_states(t, &states);
    if (status >= 0) status = list_saved(t, states);
    wefti_free(states);
    return status >= 0 ? read_side(t) : status;
}

/* The saved tensors with their pieces; one block, wefti_free. */
weft_status wefti_training_saved(wefti_training *t, wefti_checkpoint_tensor **out) {
    size_t devices = (size_t)weft_session_devices(t->session), count = (size_t)t->saving.count;
    size_t head = (count + 1) * sizeof **out;
    wefti_checkpoint_tensor *list =
        wefti_calloc(1, head + count * devices * sizeof(wefti_checkpoint_piece));
    wefti_checkpoint_piece *next =
        list ? (wefti_checkpoint_piece *)(void *)((char *)list + head) : NULL;
    wefti_session_piece *pieces = wefti_calloc(devices, sizeof *pieces);
    weft_status status =
        list && pieces ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the list of tensors");
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        const wefti_saved_tensor *s = &t->saving.tensors[i];
        bool apart = t->saving.apart && t->saving.apart[i];
        weft_tensor_info info;
        int32_t found = 0;
        status = weft_session_tensor(t->session, 0, s->tensor, &info);
        if (status == WEFT_OK)
            status = wefti_session_pieces(t->session, 0, s->tensor, pieces, &found);
        list[i] = (wefti_checkpoint_tensor){.name = s->name,
                                            .role = s->role,
                                            .desc = s->desc,
                                            .pieces = apart ? NULL : next,
                                            .later = apart && !t->ranks.follows,
                                            .whole = info.desc,
                                            .first = s->first};
        for (int32_t k = 0; k < found && !apart; k++)
            if (pieces[k].counts && pieces[k].data) {
                *next++ = (wefti_checkpoint_piece){pieces[k].box, pieces[k].data, pieces[k].device};
                list[i].piece_count++;
            }
    }
    wefti_free(pieces);
    if (status < 0) {
        wefti_free(list);
        return status;
    }
    *out = list;
    return WEFT_OK;
}

/* ---- writing ---- */

void wefti_training_report_written(wefti_training *t) {
    t->saving.committed_step = t->saving.writing_step;
    wefti_training_rated_step_is_written(t);
    if (t->ranks.follows) return;
    (void)snprintf(t->result->checkpoint, sizeof t->result->checkpoint, "%s/%sstep-%012lld",
                   t->job->checkpoint.dir, wefti_training_is_sliced(t) ? "rank_0/" : "",
                   (long long)t->saving.committed_step);
    if (t->events && t->events->checkpoint)
        t->events->checkpoint(t->events->context, t->saving.committed_step, t->result->checkpoint);
}

bool wefti_training_is_native(const wefti_training *t) {
    return weft_session_bf16(t->session) == WEFT_BF16_NATIVE;
}

/* The form of the kernels. */
const char *wefti_training_arithmetic(const wefti_training *t) {
    return wefti_builtin_variant(wefti_training_is_native(t) ? WEFTI_BF16_NATIVE
                                                             : WEFTI_BF16_AS_F32);
}

int64_t wefti_training_clock(void) {
    return (int64_t)time(NULL);
}

int64_t wefti_training_kept_steps(const wefti_training *t) {
    return t->job->checkpoint.keep + !wefti_training_is_over(t);
}

/* What is written, and how. */
typedef struct begin_options {
    wefti_checkpoint_duty duty;
    int64_t now; /* seconds since 1970 */
    const wefti_checkpoint_tensor *tensors;
    int64_t count;
    const wefti_checkpoint_slicing *slicing; /* NULL: whole tensors */
} begin_options;

static weft_status begin(wefti_training *t, const begin_options *b, char *config) {
    const weft_job *job = t->job;
    const weft_job_optimizer *o = &job->train.optimizer;
    char lr[32], b1[32], b2[32], eps[32], decay[32], momentum[32], threads[32], samples[32],
        now[32];
    (void)snprintf(threads, sizeof threads, "%d", wefti_session_threads(t->session));
    (void)snprintf(samples, sizeof samples, "%lld",
                   (long long)weft_data_samples(t->data, WEFT_DATA_TRAIN));
    const wefti_checkpoint_pair settings[] = {
        {"lr", wefti_real_text(o->lr, 6, 17, lr)},
        {"beta1", wefti_real_text(o->betas[0], 6, 17, b1)},
        {"beta2", wefti_real_text(o->betas[1], 6, 17, b2)},
        {"eps", wefti_real_text(o->eps, 6, 17, eps)},
        {"weight_decay", wefti_real_text(o->weight_decay, 6, 17, decay)},
        {"momentum", wefti_real_text(o->momentum, 6, 17, momentum)},
        {"schedule", weft_schedule_text(job->train.schedule.name)}};
    const wefti_checkpoint_pair compute[] = {
        {"isa", wefti_training_arithmetic(t)},
        {"precision", weft_dtype_text(job->train.precision)},
        {"bf16", wefti_training_is_native(t) ? "native" : "f32"},
        {"threads", threads}};
    const wefti_checkpoint_pair random[] = {{"generator", "philox4x32-10"}};
    (void)snprintf(now, sizeof now, "%lld", (long long)b->now);
    const int64_t spacing = job->checkpoint.keep_minutes * 60;
    const char *data = NULL;
    WEFT_TRY(wefti_data_fingerprint(t->data, &data));
    wefti_checkpoint_pair notes[4 + WEFTI_RATING_NOTES] = {
        {"samples", samples}, {WEFTI_TRAINING_DATA, data}, {"job", job->text}};
    wefti_rating_texts ratings;
    int64_t note_count = 3;
    if (spacing > 0) notes[note_count++] = (wefti_checkpoint_pair){WEFTI_CHECKPOINT_TIME, now};
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
    const int64_t side = wefti_side_files_list(&t->saving.side, texts + 1);
    wefti_checkpoint_options options = {
        .duty = b->duty,
        .keep = b->slicing ? 0 : wefti_training_kept_steps(t),
        .spacing = spacing,
        .best = wefti_training_best_step(t),
        .texts = texts,
        .text_count = 1 + side,
        .slicing = b->slicing,
        .key = t->saving.encrypts ? &t->saving.key : NULL,
    };
    if (b->duty == WEFTI_CHECKPOINT_LEADS) {
        WEFT_TRY(wefti_delivery_create(t->saving.count, &t->saving.delivery));
        wefti_delivery_options(t->saving.delivery, &options);
    }
    char *own = NULL; /* directory of the rank */
    if (b->slicing)
        WEFT_TRY(wefti_checkpoint_rank_dir(job->checkpoint.dir, b->slicing->rank, &own));
    weft_status status = wefti_checkpoint_begin(own ? own : job->checkpoint.dir, &meta, b->tensors,
                                                b->count, &options, &t->saving.writing);
    wefti_free(own);
    return status;
}

weft_status wefti_training_begin_slices(wefti_training *t, const wefti_checkpoint_slicing *slicing,
                                        const wefti_checkpoint_tensor *tensors, int64_t count,
                                        int64_t now) {
    const begin_options b = {.duty = WEFTI_CHECKPOINT_SLICES,
                             .now = now,
                             .tensors = tensors,
                             .count = count,
                             .slicing = slicing};
    char *config = NULL;
    WEFT_TRY(weft_model_config_write(&t->model.config, &config));
    weft_status status = begin(t, &b, config);
    weft_text_free(config);
    return status;
}

weft_status wefti_training_begin_write(wefti_training *t, wefti_checkpoint_duty duty) {
    char *config = NULL;
    wefti_checkpoint_tensor *tensors = NULL;
    weft_status status = weft_model_config_write(&t->model.config, &config);
    if (status == WEFT_OK) status = wefti_training_saved(t, &tensors);
    const begin_options b = {
        .duty = duty, .now = wefti_training_clock(), .tensors = tensors, .count = t->saving.count};
    if (status == WEFT_OK) status = begin(t, &b, config);
    wefti_free(tensors);
    weft_text_free(config);
    return status;
}

void wefti_training_wait_states(wefti_training *t) {
    for (int64_t i = 0; i < t->saving.states; i++)
        wefti_checkpoint_wait_tensor(t->saving.writing, i);
}

weft_status wefti_training_begin_alone(wefti_training *t) {
    WEFT_TRY(wefti_checkpoint_lock_keep(t->job->checkpoint.dir, &t->saving.lock));
    WEFT_TRY(wefti_training_begin_write(t, WEFTI_CHECKPOINT_ALONE));
    wefti_training_wait_states(t);
    return WEFT_OK;
}

/* A step that is written, or being written, is not due again. */
bool wefti_training_due(const wefti_training *t) {
    const double seconds = t->job->checkpoint.seconds;
    if (seconds <= 0 || t->ranks.follows || t->progress.step == t->saving.committed_step)
        return false;
    if (t->saving.state && t->saving.writing_step == t->progress.step) return false;
    return (double)(wefti_now_ns() - t->saving.begun_ns) >= seconds * 1e9;
}
