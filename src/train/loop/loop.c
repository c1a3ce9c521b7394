/* The training loop: steps, their rates, and what happens between two steps. */
#include "train/loop/loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "train/record/record.h"

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of the last steps gives the ETA and the reported rate. */
enum { RECENT = 256 };

typedef struct recent_rates {
    double seconds[RECENT];
    int64_t count;
} recent_rates;

/* The first step of a run touches all memory for the first time. It counts only until there is a
 * second one. */
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

/* ---- behind a step ---- */

void wefti_training_report_step(wefti_training *t) {
    const weft_train_step *s = &t->progress.under_way;
    if (t->progress.reported >= s->step) return;
    t->progress.reported = s->step;
    wefti_training_note_metrics(t, wefti_metrics_step(t->metrics, s));
    if (t->events && t->events->step) t->events->step(t->events->context, s);
}

/* Does what is left to do behind the last step; all of it may be done already. */
static weft_status after_step(wefti_training *t) {
    const weft_job *job = t->built->job;
    const int64_t step = t->progress.step;
    if (t->progress.stage == WEFTI_STAGE_SAVED) return WEFT_OK;
    if (wefti_training_is_over(t)) return WEFT_OK; /* wefti_training_finish() does the rest */
    if (t->progress.stage == WEFTI_STAGE_STEPPED) {
        if (job->train.eval_every > 0 && step % job->train.eval_every == 0)
            WEFT_TRY(wefti_training_validate(t));
        t->progress.stage = WEFTI_STAGE_VALIDATED;
    }
    if (wefti_training_has_stalled(t)) return WEFT_OK;
    if (*job->checkpoint.dir) (void)wefti_training_enter(t, WEFT_TRAIN_PART_CHECKPOINTS);
    WEFT_TRY(wefti_saver_poll(wefti_training_saver(t)));
    if (wefti_training_is_best(t) ||
        (job->checkpoint.every > 0 && step % job->checkpoint.every == 0))
        WEFT_TRY(wefti_training_save_meanwhile(t));
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_OTHER);
    t->progress.stage = WEFTI_STAGE_SAVED;
    return WEFT_OK;
}

/* ---- steps ---- */

/* Steps that this process has made since the run, or the world, was last whole. */
typedef struct steps_made {
    recent_rates recent;
    int64_t count;
    double units; /* of a step */
} steps_made;

/* Of the time that the step has taken, its waits for transfers, and for a checkpoint that has not
 * yet read a parameter: of devices in this process, the mean. */
static void count_waits(wefti_training *t) {
    const int64_t waited = wefti_session_waited(t->built->session), before = t->time.waited_ns;
    const int devices = t->setup.party.world ? 1 : weft_session_devices(t->built->session);
    t->time.waited_ns = waited;
    wefti_training_move_time(t, WEFT_TRAIN_PART_STEPS, WEFT_TRAIN_PART_WAITING,
                             waited > before ? waited - before : 0);
    wefti_training_move_time(t, WEFT_TRAIN_PART_STEPS, WEFT_TRAIN_PART_CHECKPOINTS,
                             atomic_exchange(&t->saving.blocked_ns, 0) / devices);
}

/* The session has made the step. */
static void end_step(wefti_training *t, steps_made *made) {
    weft_train_step *s = &t->progress.under_way;
    t->progress.step++;
    t->progress.position += t->built->job->train.batch;
    t->progress.stage = WEFTI_STAGE_STEPPED;
    s->seconds = wefti_now_s() - t->progress.begun_s;
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_OTHER);
    count_waits(t);
    wefti_training_lap(t, s->part_seconds);
    if (t->result->first_step_seconds == 0) t->result->first_step_seconds = wefti_training_age(t);
    add_seconds(&made->recent, made->count++, s->seconds);
    wefti_run_record_step(t, made->count, s->seconds);
    s->tokens_per_second = made->units / s->seconds;
    s->eta_seconds =
        median(&made->recent) * (double)(t->built->job->train.steps - t->progress.step);
    s->observed_peak_bytes = wefti_training_observed(t);
    s->resident_bytes = wefti_resident_bytes();
    s->mfu = t->peak_flops > 0 ? t->step_flops / (s->seconds * t->peak_flops) : NAN;
    t->result->steps = t->progress.step;
    t->result->final_loss = s->loss;
    t->result->seconds += s->seconds;
    t->result->tokens_per_second = made->units / median(&made->recent);
    t->result->observed_peak_bytes = s->observed_peak_bytes;
    wefti_training_report_step(t);
}

static weft_status make_step(wefti_training *t, wefti_batch *batch) {
    const weft_job *job = t->built->job;
    weft_train_step *s = &t->progress.under_way;
    *s = (weft_train_step){.step = t->progress.step + 1,
                           .learning_rate = wefti_learning_rate(job, t->progress.step),
                           .gradient_norm = NAN};
    t->result->samples_prepared += batch->prepared;
    const wefti_objective *objective = t->built->model.objective;
    if (objective->prepare) objective->prepare(t->built, batch, job->train.batch);
    atomic_store(&t->saving.touched, false);
    t->progress.stage = WEFTI_STAGE_STEPPING;
    WEFT_TRY(wefti_training_step(t, batch, s->learning_rate, s));
    if (job->train.check_replicas > 0 && s->step % job->train.check_replicas == 0)
        WEFT_TRY(weft_session_check_replicas(t->built->session));
    return WEFT_OK;
}

static weft_status next_step(wefti_training *t, wefti_feed *feed, steps_made *made, bool *stop) {
    wefti_batch batch;
    double begin = wefti_now_s();
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_DATA);
    weft_status data = wefti_feed_next(feed, &batch);
    double waited = wefti_now_s() - begin;
    (void)wefti_training_enter(t, t->setup.party.agreement ? WEFT_TRAIN_PART_WAITING
                                                           : WEFT_TRAIN_PART_OTHER);
    WEFT_TRY(wefti_training_stops(t, data, stop));
    if (*stop) return WEFT_OK;
    wefti_training_meet(t);
    if (t->saving.due) {
        (void)wefti_training_enter(t, WEFT_TRAIN_PART_CHECKPOINTS);
        WEFT_TRY(wefti_training_save_meanwhile(t));
    }
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_STEPS);
    t->progress.begun_s = wefti_now_s() - waited;
    wefti_batch later;
    if (t->built->job->train.rows == WEFT_ROWS_AUTO && wefti_feed_peek(feed, &later))
        wefti_built_feed_ahead(t->built, 0, &later);
    WEFT_TRY(make_step(t, &batch));
    wefti_feed_release(feed);
    end_step(t, made);
    return WEFT_OK;
}

static weft_status loop(wefti_training *t, wefti_feed *feed, steps_made *made) {
    for (bool stop = false; !stop;) {
        WEFT_TRY(after_step(t));
        if (wefti_training_is_over(t)) break;
        WEFT_TRY(next_step(t, feed, made, &stop));
    }
    return WEFT_OK;
}

weft_status wefti_training_loop(wefti_training *t) {
    const weft_job *job = t->built->job;
    wefti_feed_options o = {.data = t->built->data,
                            .part = WEFT_DATA_TRAIN,
                            .seed = job->train.seed,
                            .batch = job->train.batch,
                            .row_end = job->train.batch,
                            .first = t->progress.position / job->train.batch,
                            .ring = WEFTI_RING_TRAIN,
                            .padding_target = -1};
    const weft_desc in = weft_data_input(t->built->data);
    const int64_t tokens = t->built->model.objective->is_language ? in.shape[0] : 1;
    steps_made made = {.units = (double)(job->train.batch * tokens)};
    wefti_feed *feed;
    void *block;
    if (weft_session_step_number(t->built->session) > t->progress.step) { /* made while mending */
        t->progress.under_way.gradient_norm = wefti_session_norm(t->built->session);
        end_step(t, &made);
        o.first++;
    }
    WEFT_REQUIRE(t->progress.position % job->train.batch == 0, WEFT_E_ARG,
                 "the checkpoint is at sample %lld, which is not a multiple of train.batch, %lld: "
                 "use the train.batch that the run began with",
                 (long long)t->progress.position, (long long)job->train.batch);
    WEFT_TRY(wefti_built_choose_rows(t->built, 0, &o));
    WEFT_TRY(wefti_open_feed(&o, &block, &feed));
    t->time.waited_ns = wefti_session_waited(t->built->session);
    weft_status status = loop(t, feed, &made);
    wefti_feed_destroy(feed);
    wefti_free(block);
    return status;
}
