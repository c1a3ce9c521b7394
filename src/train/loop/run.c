/* The training loop. */
#include "train/training.h"
#include "data/feed.h"
#include "interop/pretrained.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"

/* Seconds since this process began, from the kernel's start time of it (field 22 of
 * /proc/self/stat). */
static double process_age(void) {
    char *text;
    int64_t bytes;
    if (wefti_file_read("/proc/self/stat", 1 << 16, &text, &bytes) < 0) return NAN;
    unsigned long long ticks = 0;
    const char *at = strrchr(text, ')');
    int field = 2;
    for (; at && *at && field < 22; at++)
        if (*at == ' ') field++;
    if (at) ticks = strtoull(at, NULL, 10);
    wefti_free(text);
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9 -
           (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

/* Metrics that cannot be written do not end a run; they make it fail when it is over. */
static void note_failure(const wefti_training *t, weft_status status) {
    if (status < 0) wefti_training_note(t, "%s; the run goes on without it", weft_error_message());
}

static bool is_language(const wefti_training *t) {
    return weft_family_is_language(t->config.family);
}

/* ---- one batch ---- */

static const char *input_name(const wefti_training *t) {
    return is_language(t) ? "tokens" : "image";
}
static const char *target_name(const wefti_training *t) {
    return is_language(t) ? "targets" : "label";
}

/* Models that see both directions learn to fill in masked tokens, not to guess the next one. */
static void mask_batch(const wefti_training *t, const wefti_batch *b, int64_t batch) {
    if (t->config.family != WEFT_FAMILY_BERT) return;
    weft_desc in = weft_data_input(t->data);
    int64_t seq = in.shape[0];
    wefti_mask_tokens(t->job->train.seed, b->number * batch * seq, b->valid * seq, t->mask_token,
                      t->config.vocab, b->input, b->target);
}

/* Targets that count in rows [first, first + rows) of a batch. */
static int64_t count_targets(const wefti_training *t, const wefti_batch *b, int64_t first,
                             int64_t rows) {
    weft_desc target = weft_data_target(t->data);
    int64_t row = weft_desc_elems(&target), count = 0;
    for (int64_t i = first * row; i < (first + rows) * row; i++) count += b->target[i] != -1;
    return count;
}

/* How much the loss of the microbatch from row `first` on counts for, of a step with `all` targets:
 * of masked tokens each has another number, and the loss of the step is the mean over all of them.
 */
static weft_status feed_share(wefti_training *t, const wefti_batch *b, int64_t first, int64_t all) {
    if (t->config.family != WEFT_FAMILY_BERT) return WEFT_OK;
    double own = (double)count_targets(t, b, first, t->micro) * (double)t->microbatches;
    float share = all ? (float)(own / (double)all) : 1.0f;
    return weft_session_feed(t->session, 0, "share", &share, sizeof share);
}

/* Rows [first, first + micro) of a batch into a program. */
static weft_status feed_rows(wefti_training *t, int program, const wefti_batch *b, int64_t first) {
    weft_desc in = weft_data_input(t->data), target = weft_data_target(t->data);
    int64_t in_row = weft_desc_bytes(&in), target_row = weft_desc_bytes(&target);
    WEFT_TRY(weft_session_feed(t->session, program, input_name(t),
                               (const unsigned char *)b->input + first * in_row,
                               (size_t)(t->micro * in_row)));
    return weft_session_feed(t->session, program, target_name(t),
                             (const unsigned char *)b->target + first * target_row,
                             (size_t)(t->micro * target_row));
}

/* All microbatches of a step and its update. */
static weft_status train_batch(wefti_training *t, const wefti_batch *b, double lr,
                               weft_train_step *out) {
    int64_t count = t->microbatches;
    int64_t targets =
        t->config.family == WEFT_FAMILY_BERT ? count_targets(t, b, 0, count * t->micro) : 0;
    double sum = 0, loss = 0;
    int64_t known = 0; /* a pipeline tells the mean of all at the last one */
    out->gradient_norm = NAN;
    if (count == 1 && t->job->train.clip == 0) {
        WEFT_TRY(feed_rows(t, 0, b, 0));
        WEFT_TRY(feed_share(t, b, 0, targets));
        WEFT_TRY(weft_session_set_row(t->session, 0));
        WEFT_TRY(weft_session_step(t->session, lr, &out->loss));
        return WEFT_OK;
    }
    for (int64_t m = 0; m < count; m++) {
        WEFT_TRY(feed_rows(t, 0, b, m * t->micro));
        WEFT_TRY(feed_share(t, b, m * t->micro, targets));
        WEFT_TRY(weft_session_set_row(t->session, m * t->micro));
        WEFT_TRY(weft_session_accumulate(t->session, &loss));
        if (isnan(loss)) continue;
        sum += loss;
        known++;
    }
    out->loss = sum / (double)known;
    return weft_session_update(t->session, lr, &out->gradient_norm);
}

/* ---- validation ---- */

/* Rows whose largest logit is at their label. */
static weft_status count_right(wefti_training *t, const wefti_batch *b, int64_t *right) {
    weft_tensor_info info;
    WEFT_TRY(weft_session_find(t->session, t->eval_program, "logits", &info));
    int64_t classes = info.desc.shape[info.desc.rank - 1];
    void *logits = wefti_alloc((size_t)info.bytes);
    WEFT_REQUIRE(logits, WEFT_E_NOMEM, "no memory for the logits of a validation batch");
    weft_status status =
        weft_session_read(t->session, t->eval_program, "logits", logits, (size_t)info.bytes);
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
        mask_batch(t, &b, t->micro);
        WEFT_TRY(feed_rows(t, t->eval_program, &b, 0));
        WEFT_TRY(weft_session_forward(t->session, t->eval_program, &loss));
        if (!is_language(t)) WEFT_TRY(count_right(t, &b, &right));
        int64_t targets = count_targets(t, &b, 0, b.valid);
        sum += loss * (double)targets;
        weight += targets;
        rows += b.valid;
        wefti_feed_release(feed);
    }
    out->loss = weight ? sum / (double)weight : NAN;
    out->accuracy = is_language(t) || !rows ? NAN : (double)right / (double)rows;
    return WEFT_OK;
}

static weft_status open_feed(const wefti_feed_options *o, void **out_block, wefti_feed **out) {
    int64_t bytes;
    WEFT_TRY(wefti_feed_bytes(o, &bytes));
    unsigned char *raw = wefti_alloc((size_t)bytes + 64);
    WEFT_REQUIRE(raw, WEFT_E_NOMEM, "no memory for %lld bytes of prepared batches",
                 (long long)bytes);
    void *block = (void *)(((uintptr_t)raw + 63) & ~(uintptr_t)63);
    weft_status status = wefti_feed_create(o, block, out);
    if (status < 0) {
        wefti_free(raw);
        return status;
    }
    *out_block = raw;
    return WEFT_OK;
}

static weft_status validate(wefti_training *t) {
    if (t->eval_program == 0) return WEFT_OK;
    wefti_feed_options o = {.data = t->data,
                            .part = WEFT_DATA_VALIDATION,
                            .sequential = true,
                            .batch = t->micro,
                            .row_end = t->micro,
                            .ring = 2,
                            .padding_target = -1};
    int64_t batches = wefti_feed_batches(t->data, WEFT_DATA_VALIDATION, t->micro);
    int64_t limit = t->job->train.eval_batches; /* of train.batch samples, however those are cut */
    if (limit > 0 && limit <= batches / t->microbatches) batches = limit * t->microbatches;
    weft_train_validation v = {.step = t->step};
    double start = wefti_now_s();
    wefti_feed *feed;
    void *block;
    WEFT_TRY(open_feed(&o, &block, &feed));
    weft_status status = validate_with(t, feed, batches, &v);
    wefti_feed_destroy(feed);
    wefti_free(block);
    WEFT_TRY(status);
    bool stop;
    WEFT_TRY(wefti_training_stops(t, &stop));
    if (stop) return WEFT_OK; /* a part of the data would be another number */
    v.seconds = wefti_now_s() - start;
    t->result->validation_loss = v.loss;
    t->result->accuracy = v.accuracy;
    note_failure(t, wefti_metrics_validation(t->metrics, &v));
    if (t->events && t->events->validation) t->events->validation(t->events->context, &v);
    return WEFT_OK;
}

/* ---- the loop ---- */

/* What this processor makes of the session's choice, which may come from another's checkpoint. */
static const char *bf16_text(const wefti_training *t) {
    if (t->job->train.precision != WEFT_BF16) return "";
    return wefti_training_is_native(t) && wefti_builtin_has_bf16() ? "native" : "f32 products";
}

static void announce(const wefti_training *t) {
    if (!t->events || !t->events->start) return;
    weft_session_memory m = weft_session_memory_of(t->session);
    const weft_job *job = t->job;
    weft_desc in = weft_data_input(t->data);
    weft_train_start s = {
        .family = weft_family_text(t->config.family),
        .steps = job->train.steps,
        .first_step = t->step,
        .batch = job->train.batch,
        .context = is_language(t) ? in.shape[0] : 0,
        .samples = weft_data_samples(t->data, WEFT_DATA_TRAIN),
        .validation_samples = weft_data_samples(t->data, WEFT_DATA_VALIDATION),
        .vocab = is_language(t) ? t->config.vocab : t->config.classes,
        .threads = wefti_session_threads(t->session),
        .devices = weft_session_devices(t->session),
        .precision = weft_dtype_text(job->train.precision),
        .bf16 = bf16_text(t),
        .predicted_peak_bytes = m.predicted_peak_bytes,
        .flops_per_step = (m.forward_flops + m.backward_flops) * (double)t->microbatches,
    };
    for (int i = 0; i < weft_session_tensors(t->session, 0); i++) {
        weft_tensor_info info;
        if (weft_session_tensor(t->session, 0, i, &info) == WEFT_OK && info.role == WEFT_ROLE_PARAM)
            s.parameters += weft_desc_elems(&info.desc);
    }
    t->events->start(t->events->context, &s);
}

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Medians of the last steps steer the ETA and the reported rate. */
enum { RECENT = 256 };

typedef struct recent_rates {
    double seconds[RECENT];
    int64_t count;
} recent_rates;

/* A run's first step touches all memory for the first time: it counts only while it is alone. */
static void add_seconds(recent_rates *r, int64_t steps_before, double seconds) {
    if (steps_before == 1) r->count = 0;
    r->seconds[r->count++ % RECENT] = seconds;
}

static double median(const recent_rates *r) {
    double sorted[RECENT];
    size_t n = r->count < RECENT ? (size_t)r->count : RECENT;
    if (n == 0) return NAN;
    memcpy(sorted, r->seconds, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_double);
    return sorted[n / 2];
}

static weft_status after_step(wefti_training *t, const weft_train_step *s) {
    const weft_job *job = t->job;
    note_failure(t, wefti_metrics_step(t->metrics, s));
    if (t->events && t->events->step) t->events->step(t->events->context, s);
    if (t->step == job->train.steps) return WEFT_OK; /* finish() does the rest */
    if (job->train.eval_every > 0 && t->step % job->train.eval_every == 0) WEFT_TRY(validate(t));
    wefti_training_poll(t);
    if (job->checkpoint.every > 0 && t->step % job->checkpoint.every == 0)
        return wefti_training_save_meanwhile(t);
    return WEFT_OK;
}

static weft_status loop(wefti_training *t, wefti_feed *feed) {
    const weft_job *job = t->job;
    recent_rates recent = {0};
    int64_t done = 0; /* steps of this run */
    weft_desc in = weft_data_input(t->data);
    double units = (double)job->train.batch * (is_language(t) ? (double)in.shape[0] : 1.0);
    while (t->step < job->train.steps) {
        bool stop;
        WEFT_TRY(wefti_training_stops(t, &stop));
        if (stop) break;
        double begin = wefti_now_s();
        wefti_batch batch;
        weft_train_step s = {.step = t->step + 1,
                             .learning_rate = wefti_learning_rate(job, t->step)};
        WEFT_TRY(wefti_feed_next(feed, &batch));
        mask_batch(t, &batch, job->train.batch);
        WEFT_TRY(train_batch(t, &batch, s.learning_rate, &s));
        wefti_feed_release(feed);
        if (job->train.check_replicas > 0 && s.step % job->train.check_replicas == 0)
            WEFT_TRY(weft_session_check_replicas(t->session));
        t->step++;
        t->position += job->train.batch;
        s.seconds = wefti_now_s() - begin;
        if (done == 0) t->result->first_step_seconds = process_age();
        add_seconds(&recent, done++, s.seconds);
        s.tokens_per_second = units / s.seconds;
        s.eta_seconds = median(&recent) * (double)(job->train.steps - t->step);
        s.observed_peak_bytes = wefti_training_observed(t);
        t->result->steps = t->step;
        t->result->final_loss = s.loss;
        t->result->seconds += s.seconds;
        t->result->tokens_per_second = units / median(&recent);
        t->result->observed_peak_bytes = s.observed_peak_bytes;
        WEFT_TRY(after_step(t, &s));
    }
    return WEFT_OK;
}

static weft_status loop_with_feed(wefti_training *t) {
    const weft_job *job = t->job;
    wefti_feed_options o = {.data = t->data,
                            .part = WEFT_DATA_TRAIN,
                            .seed = job->train.seed,
                            .batch = job->train.batch,
                            .row_end = job->train.batch,
                            .first = t->position / job->train.batch,
                            .ring = 3,
                            .padding_target = -1};
    wefti_feed *feed;
    void *block;
    WEFT_REQUIRE(t->position % job->train.batch == 0, WEFT_E_ARG,
                 "the checkpoint stands at sample %lld, which is no multiple of train.batch, %lld: "
                 "keep the batch that the run began with",
                 (long long)t->position, (long long)job->train.batch);
    WEFT_TRY(open_feed(&o, &block, &feed));
    weft_status status = loop(t, feed);
    wefti_feed_destroy(feed);
    wefti_free(block);
    return status;
}

/* The newest good checkpoint of the run, or NULL. */
static weft_status find_checkpoint(wefti_training *t, wefti_checkpoint **out) {
    const weft_job_checkpoint *c = &t->job->checkpoint;
    *out = NULL;
    if (!c->dir[0] || !c->resume) return WEFT_OK;
    char *note = NULL;
    weft_status status = wefti_checkpoint_open(c->dir, WEFTI_CHECKPOINT_LATEST, out, &note);
    if (note) wefti_training_note(t, "%s", note);
    wefti_free(note);
    if (status == WEFT_E_NOT_FOUND) return WEFT_OK;
    return status < 0 ? wefti_prefix(status, "checkpoint.dir") : WEFT_OK;
}

/* A fresh run must not bury the checkpoints of another. */
static weft_status refuse_occupied(const wefti_training *t) {
    const weft_job_checkpoint *c = &t->job->checkpoint;
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

/* A run that ends early keeps what it has, the checkpoint under way included. */
static weft_status failed(wefti_training *t, weft_status status) {
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    if (wefti_training_finish_write(t) < 0) wefti_training_note(t, "%s", weft_error_message());
    (void)wefti_failure_tell(&failure);
    if (status == WEFT_E_STOPPED || !t->result->checkpoint[0]) return status;
    /* The state before a step without a finite loss may itself be the cause. */
    if (status == WEFT_E_NUMERIC && t->committed_step == t->step)
        wefti_training_note(t,
                            "going on from %s comes to this failure again: change the settings, or "
                            "remove it to go on from the checkpoint before it",
                            t->result->checkpoint);
    return wefti_prefix(status, "the checkpoint of step %lld is kept",
                        (long long)t->committed_step);
}

/* Fails if a piece of a parameter, which lies at `data`, has a value that is not finite. */
static weft_status check_piece(const weft_tensor_info *info, const wefti_session_piece *piece,
                               const void *data) {
    int64_t strides[WEFT_MAX_RANK];
    wefti_strides(&info->desc, strides);
    for (int64_t k = 0, n = wefti_region_elems(&piece->box, info->desc.rank); k < n; k++) {
        double value = wefti_load(info->desc.dtype, data, k);
        if (isfinite(value)) continue;
        int64_t at = 0, rest = k;
        for (int d = info->desc.rank - 1; d >= 0; d--) {
            at += (piece->box.begin[d] + rest % piece->box.size[d]) * strides[d];
            rest /= piece->box.size[d];
        }
        WEFT_FAIL(WEFT_E_NUMERIC, "element %lld of parameter '%s' is %g after the last update",
                  (long long)at, info->name, wefti_printed(value));
    }
    return WEFT_OK;
}

static weft_status map_and_check(const weft_tensor_info *info, const wefti_session_piece *piece) {
    int64_t elems = wefti_region_elems(&piece->box, info->desc.rank);
    wefti_mapping m;
    WEFT_TRY(wefti_device_map(piece->device, piece->data,
                              elems * (int64_t)weft_dtype_bytes(info->desc.dtype),
                              WEFTI_ACCESS_READ, &m));
    return wefti_device_unmap(&m, check_piece(info, piece, m.data));
}

/* No update may have left a value that is not finite. Without validation this is all that tells
 * whether the last step was a good one. */
static weft_status check_parameters(wefti_training *t) {
    wefti_session_piece *pieces;
    weft_status status = WEFT_OK;
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, weft_session_devices(t->session));
    for (int i = 0; i < weft_session_tensors(t->session, 0) && status == WEFT_OK; i++) {
        weft_tensor_info info;
        int32_t count = 0;
        status = weft_session_tensor(t->session, 0, i, &info);
        if (status == WEFT_OK && info.role == WEFT_ROLE_PARAM)
            status = wefti_session_pieces(t->session, 0, i, pieces, &count);
        for (int32_t k = 0; k < count && status == WEFT_OK; k++)
            if (pieces[k].counts && pieces[k].data) status = map_and_check(&info, &pieces[k]);
    }
    wefti_free(pieces);
    return status;
}

/* Whether the state is neither written nor being written: rank 0 knows. */
static weft_status is_unsaved(wefti_training *t, bool *out) {
    *out = t->committed_step != t->step && !(t->writing && t->writing_step == t->step);
    return wefti_training_broadcast(t, WEFT_OK, out, sizeof *out);
}

/* A run that was killed right behind its last checkpoint left more than are to be kept. */
static void prune(wefti_training *t) {
    const weft_job_checkpoint *c = &t->job->checkpoint;
    if (!c->dir[0] || t->follows) return;
    if (wefti_checkpoint_prune_below(c->dir, c->keep, t->committed_step) < 0)
        wefti_training_note(t, "%s", weft_error_message());
}

/* After the last step, or at a stop: what the run came to is validated and saved. */
static weft_status finish(wefti_training *t) {
    bool whole = t->step >= t->job->train.steps, unsaved, stop;
    if (whole) WEFT_TRY(validate(t));
    WEFT_TRY(is_unsaved(t, &unsaved));
    if (unsaved) {
        if (whole) WEFT_TRY(check_parameters(t));
        WEFT_TRY(wefti_training_save(t, whole));
    } else if (whole) {
        prune(t);
    }
    WEFT_TRY(wefti_training_finish_write(t));
    WEFT_TRY(wefti_training_stops(t, &stop));
    WEFT_REQUIRE(!stop, WEFT_E_STOPPED, "stopped after step %lld", (long long)t->step);
    if (t->events && t->events->trace) WEFT_TRY(weft_session_trace(t->session, NULL));
    t->result->observed_peak_bytes = wefti_training_observed(t);
    return WEFT_OK;
}

/* The run's own directory, and what is in it; of rank 0. */
static weft_status open_directory(wefti_training *t, wefti_checkpoint **out) {
    *out = NULL;
    if (t->follows) return WEFT_OK;
    WEFT_TRY(wefti_training_lock(t));
    WEFT_TRY(refuse_occupied(t));
    WEFT_TRY(find_checkpoint(t, out));
    if (!*out) return WEFT_OK; /* else: the arithmetic that the run began with */
    const char *bf16 = wefti_checkpoint_value(&wefti_checkpoint_meta_of(*out)->compute, "bf16");
    if (bf16) t->bf16 = strcmp(bf16, "native") ? WEFT_BF16_AS_F32 : WEFT_BF16_NATIVE;
    return WEFT_OK;
}

/* Parameters as they are to begin with: of the run's checkpoint, or of model.from. */
static weft_status load_parameters(wefti_training *t, wefti_checkpoint *from, bool restore) {
    const char *files = t->job->model.from;
    if (restore) return wefti_training_restore(t, from);
    if (!files[0]) return WEFT_OK;
    char *note = NULL;
    weft_status status = wefti_pretrained_load_across(t->agreement, t->follows, t->session,
                                                      &t->config, files, &note);
    if (note) wefti_training_note(t, "model.from: %s", note);
    wefti_free(note);
    return status;
}

static weft_status open_training(wefti_training *t, wefti_checkpoint *from) {
    bool restore = from != NULL;
    WEFT_TRY(wefti_training_same_job(t));
    WEFT_TRY(wefti_training_broadcast(t, WEFT_OK, &restore, sizeof restore));
    WEFT_TRY(wefti_training_open(t));
    WEFT_TRY(wefti_training_bind(t));
    return load_parameters(t, from, restore);
}

/* One file of each process. */
static weft_status begin_trace(wefti_training *t) {
    if (!t->events || !t->events->trace) return WEFT_OK;
    if (!t->follows) return weft_session_trace(t->session, t->events->trace);
    char *path = wefti_format("%s.rank%d", t->events->trace, weft_world_rank(t->world));
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = weft_session_trace(t->session, path);
    wefti_free(path);
    return status;
}

static weft_status run(wefti_training *t, weft_world *world) {
    const weft_job *job = t->job;
    wefti_checkpoint *from;
    WEFT_TRY(wefti_training_join(t, world));
    WEFT_TRY(open_directory(t, &from));
    weft_status status = open_training(t, from);
    wefti_checkpoint_close(from);
    WEFT_TRY(status);
    if (!t->follows)
        WEFT_TRY(wefti_metrics_open(job->train.log, job->train.tensorboard,
                                    is_language(t) ? "tokens" : "samples", &t->metrics));
    WEFT_TRY(begin_trace(t));
    t->result->predicted_peak_bytes = weft_session_memory_of(t->session).predicted_peak_bytes;
    t->result->steps = t->step;
    announce(t);
    if (t->step >= job->train.steps)
        wefti_training_note(
            t, "nothing is left to train: the checkpoint is of step %lld, train.steps is %lld",
            (long long)t->step, (long long)job->train.steps);
    status = loop_with_feed(t);
    if (status < 0)
        (void)wefti_prefix(status, "step %lld", (long long)t->step + 1);
    else
        status = finish(t);
    return status < 0 ? failed(t, status) : WEFT_OK;
}

/* All end alike: who fails tells the others, who have not failed hear of it. */
static weft_status end_together(const wefti_training *t, weft_status status) {
    if (!t->agreement) return status;
    if (status >= 0 || status == WEFT_E_STOPPED) return wefti_agree(t->agreement, status);
    if (status != WEFT_E_PEER) (void)wefti_name_rank(status, weft_world_rank(t->world));
    return wefti_agreement_failed(t->agreement) ? status : wefti_fail_world(t->world, status);
}

weft_status weft_train_run_in(weft_world *world, const weft_job *job,
                              const weft_train_events *events, weft_train_result *out_result) {
    weft_train_result result = {.validation_loss = NAN, .accuracy = NAN, .final_loss = NAN};
    weft_train_events quiet = {.context = NULL};
    if (events) quiet = (weft_train_events){.stop = events->stop, .trace = events->trace};
    bool follows = world && weft_world_rank(world) > 0;
    wefti_training t = {.job = job, .events = follows ? &quiet : events, .result = &result};
    weft_status status = run(&t, world);
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    weft_status closed = wefti_metrics_close(t.metrics);
    if (status < 0) (void)wefti_failure_tell(&failure);
    status = end_together(&t, status < 0 ? status : closed);
    wefti_failure_keep(status, &failure);
    wefti_training_close(&t);
    if (status < 0) (void)wefti_failure_tell(&failure);
    if (out_result) *out_result = result;
    return status;
}

weft_status weft_train_run(const weft_job *job, const weft_train_events *events,
                           weft_train_result *out_result) {
    return weft_train_run_in(NULL, job, events, out_result);
}
