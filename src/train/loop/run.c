/* A training run from its job to its result. */
#include <math.h>
#include <string.h>

#include "tensor/tensor.h"
#include "train/loop/loop.h"
#include "train/record/record.h"

void wefti_training_note_metrics(const wefti_training *t, weft_status status) {
    if (status < 0)
        wefti_setup_note(&t->setup, "%s; the run continues without it", weft_error_message());
}

/* How this processor computes products of bf16. The choice may come from a checkpoint that another
 * processor wrote. */
static const char *bf16_text(const wefti_training *t) {
    if (t->built->job->train.precision != WEFT_BF16) return "";
    return wefti_training_is_native(t) && wefti_kind_has_bf16(wefti_kind_of(0)) ? "native"
                                                                                : "f32 products";
}

void wefti_training_announce(const wefti_training *t) {
    if (!t->events || !t->events->start) return;
    weft_session_memory m = weft_session_memory_of(t->built->session);
    const weft_job *job = t->built->job;
    weft_desc in = weft_data_input(t->built->data);
    weft_train_start s = {
        .family = weft_family_text(t->built->model.config.family),
        .steps = job->train.steps,
        .first_step = t->progress.step,
        .batch = job->train.batch,
        .context = t->built->model.objective->is_language ? in.shape[0] : 0,
        .samples = weft_data_samples(t->built->data, WEFT_DATA_TRAIN),
        .validation_samples = weft_data_samples(t->built->data, WEFT_DATA_VALIDATION),
        .vocab = t->built->model.objective->is_language ? t->built->model.config.vocab
                                                        : t->built->model.config.classes,
        .threads = wefti_session_threads(t->built->session),
        .devices = weft_session_devices(t->built->session),
        .precision = weft_dtype_text(job->train.precision),
        .bf16 = bf16_text(t),
        .predicted_peak_bytes = m.predicted_peak_bytes,
        .program_bytes = m.program_bytes,
        .host_bytes = m.host_bytes,
        .disk_bytes = m.disk_bytes,
        .resized = t->former != NULL,
        .flops_per_step =
            (m.forward_flops + m.backward_flops) * (double)t->built->batch.microbatches,
    };
    for (int i = 0; i < weft_session_tensors(t->built->session, 0); i++) {
        weft_tensor_info info;
        if (weft_session_tensor(t->built->session, 0, i, &info) == WEFT_OK &&
            info.role == WEFT_ROLE_PARAM)
            s.parameters += weft_desc_elems(&info.desc);
    }
    t->events->start(t->events->context, &s);
}

/* Data, session and parameters. */
static weft_status begin(wefti_training *t) {
    wefti_checkpoint *from;
    if (t->setup.party.world && wefti_world_newcomer(t->setup.party.world))
        return wefti_training_take_seat(t);
    WEFT_TRY(wefti_built_take_key(t->built, true));
    WEFT_TRY(wefti_training_open_directory(t, &from));
    weft_status status = wefti_training_load(t, &from);
    wefti_checkpoint_close(from);
    return status;
}

/* The steps that are left, and the end. */
static weft_status train(wefti_training *t) {
    weft_status status = wefti_training_loop(t);
    if (status < 0 && !wefti_training_can_mend(t, status))
        status = wefti_training_rescue(t, status);
    if (status >= 0) status = wefti_run_record_end(t);
    if (status < 0) return wefti_prefix(status, "step %lld", (long long)t->progress.step + 1);
    return wefti_training_finish(t);
}

static weft_status run(wefti_training *t, weft_world *world) {
    const weft_job *job = t->built->job;
    t->progress = wefti_training_begun();
    if (world) (void)wefti_training_enter(t, WEFT_TRAIN_PART_JOINING);
    WEFT_TRY(wefti_setup_join(&t->setup, world));
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_BUILDING);
    WEFT_TRY(begin(t));
    if (!t->setup.party.follows)
        WEFT_TRY(wefti_metrics_open(job->train.log, job->train.tensorboard,
                                    t->built->model.objective->is_language ? "tokens" : "samples",
                                    &t->metrics));
    WEFT_REQUIRE(!wefti_training_rates(t) || t->built->model.eval_program, WEFT_E_ARG,
                 "%s needs validations, but the job has no validation data: set data.validation",
                 job->checkpoint.best ? "checkpoint.best" : "train.stop_after");
    WEFT_TRY(wefti_training_begin_trace(t));
    if (!t->setup.party.follows && !t->mended) wefti_run_record_begin(t);
    if (!t->setup.party.follows) wefti_run_rates(t);
    t->result->predicted_peak_bytes =
        weft_session_memory_of(t->built->session).predicted_peak_bytes;
    t->result->steps = t->progress.step;
    wefti_training_announce(t);
    if (t->progress.step >= job->train.steps)
        wefti_setup_note(
            &t->setup, "nothing left to train: the checkpoint is of step %lld, train.steps is %lld",
            (long long)t->progress.step, (long long)job->train.steps);
    if (t->mended && t->progress.under_way.step == t->progress.step) wefti_training_report_step(t);
    WEFT_TRY(wefti_training_arm(t));
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_OTHER);
    weft_status status = train(t);
    while (wefti_training_can_mend(t, status)) {
        (void)wefti_training_enter(t, WEFT_TRAIN_PART_RECOVERY);
        status = wefti_training_mend(t);
        (void)wefti_training_enter(t, WEFT_TRAIN_PART_OTHER);
        if (status >= 0) status = train(t);
    }
    return status < 0 ? wefti_training_failed(t, status) : WEFT_OK;
}

/* Whether a run that ends now loses no step that it was to save. */
static bool has_saved_all(const wefti_training *t) {
    return !*t->built->job->checkpoint.dir || t->saving.committed_step == t->progress.step;
}

static void note(void *context, const char *text) {
    const wefti_training *t = context;
    if (t->events && t->events->note) t->events->note(t->events->context, text);
}

static void opens(void *context, bool begins) {
    wefti_training *t = context;
    wefti_training_time *time = &t->time;
    if (begins)
        time->before_opening = wefti_training_enter(t, WEFT_TRAIN_PART_OPENING);
    else
        (void)wefti_training_enter(t, time->before_opening);
}

static weft_status recorded(void *context, weft_plan **out) {
    wefti_training *t = context;
    return t->record.resumes ? wefti_run_record_plan(t, out) : WEFT_OK;
}

void wefti_training_close(wefti_training *t) {
    wefti_saver_drop(&t->saving.saver);
    wefti_training_trace_parts(t);
    wefti_free(t->time.spans);
    t->time.spans = NULL;
    t->time.traced = false;
    wefti_training_end_resize(t, false);
    wefti_saver_close(&t->saving.saver);
    wefti_built_close(t->built);
    wefti_setup_close(&t->setup);
}

static weft_status run_and_close(wefti_training *t, weft_world *world, const volatile int *asked) {
    wefti_stopper *stopper;
    WEFT_TRY(wefti_fail_world(world, wefti_stopper_start(world, asked, &stopper)));
    weft_status status = run(t, world);
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_OTHER);
    weft_status closed = wefti_metrics_close(t->metrics);
    if (status < 0) (void)wefti_failure_tell(&failure);
    status = wefti_party_end(&t->setup.party, status < 0 ? status : closed);
    if (wefti_stopper_end(stopper) && has_saved_all(t)) {
        t->result->stop = *asked;
        status = wefti_adopt_of(WEFT_E_STOPPED, WEFT_RANK_OWN, weft_error_message());
    }
    wefti_failure_keep(status, &failure);
    wefti_training_close(t);
    return status < 0 ? wefti_failure_tell(&failure) : status;
}

weft_status weft_train_run_in(weft_world *world, const weft_job *job,
                              const weft_train_events *events, weft_train_result *out_result) {
    weft_train_result result = {.validation_loss = NAN, .accuracy = NAN, .final_loss = NAN};
    weft_train_events own = weft_train_events_defaults();
    WEFT_TRY(wefti_fail_world(world, wefti_struct_take("weft_train_events", events, &own)));
    if (events) events = &own;
    weft_train_events quiet = WEFT_STRUCT(weft_train_events, .stop = own.stop, .trace = own.trace);
    bool follows = world && weft_world_rank(world) > 0;
    wefti_training t = {.setup = {.note = note, .opens = opens, .recorded = recorded},
                        .built = wefti_calloc(1, sizeof *t.built),
                        .given_job = job,
                        .events = follows ? &quiet : events,
                        .given_events = events,
                        .result = &result};
    if (!t.built) return wefti_fail_world(world, WEFT_RAISE(WEFT_E_NOMEM, "no memory for a run"));
    t.setup.context = &t;
    *t.built = (wefti_built){.setup = &t.setup, .job = job};
    wefti_training_begin_time(&t, world ? world->joining_ns : 0);
    const weft_status status = run_and_close(&t, world, events ? events->stop : NULL);
    wefti_free(t.built);
    wefti_training_total(&t, result.part_seconds);
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++) result.process_seconds += result.part_seconds[p];
    if (out_result) *out_result = result;
    return status;
}

weft_status weft_train_run(const weft_job *job, const weft_train_events *events,
                           weft_train_result *out_result) {
    return weft_train_run_in(NULL, job, events, out_result);
}
