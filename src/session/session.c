/* Sessions: steps, and their results. */
#include "session/mend/mend.h"
#include "session/parts.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/number.h"
#include "base/text.h"
#include "plan/plan.h"
#include "program/print.h"

/* ---- running ---- */

/* Section UPDATE may run in two parts: see gather_from of programs. */
typedef enum section_part { PART_ALL, PART_PIECES, PART_GATHER } section_part;

typedef struct section_run {
    const wefti_view *view;
    wefti_section section;
    section_part part;
    wefti_exec_options options;
} section_run;

static weft_status run_device(void *context, wefti_rank_device *device, int32_t rank) {
    const section_run *run = context;
    const wefti_program *p = run->view->programs[rank];
    wefti_exec_options options = run->options;
    const int32_t gather_from = run->part ? p->gather_from : 0;
    if (run->part == PART_PIECES && gather_from == 0) return WEFT_OK;
    if (run->part == PART_PIECES) options.end_step = gather_from;
    if (run->part == PART_GATHER) options.first_step = gather_from;
    return wefti_rank_device_run(device, p, run->section, &options);
}

static section_run run_of(const weft_session *s, const wefti_view *view, wefti_section section) {
    return (section_run){
        .view = view,
        .section = section,
        .options = {.random = {.seed = s->options.seed,
                               .step = (uint64_t)s->survivor.step,
                               .row_offset = s->row},
                    .rows = view->own->all_microbatches ? s->rows : NULL,
                    .number = s->attempts,
                    .orderly = s->world != NULL,
                    .to_the_end = s->world && !view->loss_everywhere,
                    .before_update = s->before_update,
                    .before_update_context = s->before_update_context,
                    /* an update ends once it has begun */
                    .halted = section == WEFTI_SECTION_UPDATE ? NULL : s->halted,
                    .halted_context = s->halted_context},
    };
}

static weft_status run_part(weft_session *s, const wefti_view *view, wefti_section section,
                            section_part part) {
    section_run run = run_of(s, view, section);
    run.part = part;
    weft_status status = wefti_host_copies_push(s, view, section);
    if (status >= 0)
        status = wefti_workers_name(s->workers, wefti_workers_run(s->workers, run_device, &run));
    if (status >= 0) status = wefti_host_copies_pull(s, view);
    return wefti_fail_world(s->world, status);
}

static weft_status run_section(weft_session *s, const wefti_view *view, wefti_section section) {
    return run_part(s, view, section, PART_ALL);
}

/* After a loss that is not finite, a rank may be alone in its pass while the others are in another
 * one. */
bool wefti_session_loss_is_own(const weft_session *s) {
    return s->world && s->plan && s->plan->mode == WEFT_PARALLEL_MANUAL;
}

bool wefti_section_communicates(const wefti_program *p, wefti_section section, int32_t end) {
    wefti_step_transfer x;
    for (int32_t i = 0, at = 0; i < end; i++, at = 0)
        if (wefti_step_transfer_next(p, &p->steps[section][i], &at, &x)) return true;
    return false;
}

/* Whether wefti_session_apply needs no other rank, on all ranks. */
static bool updates_alone(const weft_session *s) {
    bool alone = s->options.recovery;
    for (int32_t r = 0; r < s->devices; r++) alone &= s->views[0]->sites[r].facts.alone;
    return alone;
}

/* Runs the section again after a loss that is not finite, and checks every value, to name the first
 * one that is not finite. */
static weft_status name_culprit(weft_session *s, const wefti_view *view, wefti_section section,
                                weft_status status) {
    if (status != WEFT_E_NUMERIC) return status;
    const bool own = wefti_session_loss_is_own(s);
    if (own && wefti_section_communicates(view->own, section, view->own->step_count[section]))
        return wefti_fail_world(s->world, status);
    char *first = wefti_strdup(weft_error_message());
    s->attempts++;
    section_run run = run_of(s, view, section);
    run.options.check_finite = true;
    weft_status again =
        wefti_workers_name(s->workers, wefti_workers_run(s->workers, run_device, &run));
    if (s->world && !own && (again == WEFT_OK || again == WEFT_E_NUMERIC))
        again = wefti_agree_first(
            s->agreement, again,
            wefti_rank_device_finding_order(wefti_workers_device(s->workers, s->me)));
    again = again == WEFT_E_NUMERIC ? again : wefti_fail_world(s->world, again);
    if (again == WEFT_OK)
        (void)wefti_adopt(status, first ? first : "the loss is not finite");
    else if (first)
        (void)wefti_prefix(again, "%s", first);
    wefti_free(first);
    return own ? wefti_fail_world(s->world, status) : status;
}

/* The loss on the lowest device of this process that has it; NaN: none has. */
static double loss_here(const weft_session *s, const wefti_view *view) {
    for (int32_t r = 0; r < view->devices; r++)
        if (wefti_session_has(s, r) && view->sites[r].facts.has_loss)
            return wefti_rank_device_loss(wefti_workers_device(s->workers, r));
    return NAN;
}

/* Programs share memory: running one overwrites the inputs that were fed to the others. */
void wefti_session_take_inputs(const weft_session *s, int64_t first) {
    for (int64_t i = first; i < s->view_count; i++) wefti_view_consume(s->views[i]);
}

/* Runs a forward pass, and the backward pass if the program has one. */
static weft_status run_pass(weft_session *s, wefti_view *view, wefti_section section,
                            double *out_loss) {
    WEFT_TRY(wefti_session_copy_masters(s));
    section_run run = run_of(s, view, section);
    WEFT_TRY(wefti_fail_world(s->world, wefti_host_copies_push(s, view, section)));
    weft_status status = wefti_workers_run(s->workers, run_device, &run);
    double loss = loss_here(s, view);
    if (status < 0 && status != WEFT_E_NUMERIC) status = wefti_workers_name(s->workers, status);
    if (s->world) status = wefti_session_agree_on_loss(s, view, status, &loss);
    wefti_session_take_inputs(s, 0);
    if (status < 0) return name_culprit(s, view, section, status);
    WEFT_TRY(wefti_fail_world(s->world, wefti_host_copies_pull(s, view)));
    if (out_loss) *out_loss = loss;
    return WEFT_OK;
}

static bool updates_eagerly(const weft_session *s) {
    bool later = false;
    for (int32_t r = 0; r < s->devices; r++) later |= s->views[0]->sites[r].facts.updates;
    return s->optimizer && !later;
}

static weft_status write_scalar(const wefti_rank_device *d, wefti_location at, size_t place,
                                double value) {
    const float single = (float)value;
    const size_t f32 = offsetof(wefti_step_block, f32) + place * sizeof single;
    const size_t f64 = offsetof(wefti_step_block, f64) + place * sizeof value;
    const wefti_home home = wefti_rank_device_home(d, at, sizeof(wefti_step_block));
    if (!wefti_location_exists(at)) return WEFT_OK;
    WEFT_TRY(wefti_home_write(&home, (int64_t)f32, sizeof single, &single));
    return wefti_home_write(&home, (int64_t)f64, sizeof value, &value);
}

/* Writes scalar number `place` of the step, in f32 and in f64, on all devices of this process, and
 * for updates on their hosts. */
static weft_status set_scalar(const weft_session *s, size_t place, double value) {
    for (int32_t r = 0; r < s->devices; r++) {
        if (!wefti_session_has(s, r)) continue;
        const wefti_program *p = s->views[0]->programs[r];
        const wefti_rank_device *d = wefti_workers_device(s->workers, r);
        weft_status status = write_scalar(d, p->scalars, place, value);
        if (status >= 0) status = write_scalar(d, p->host_scalars, place, value);
        WEFT_TRY(wefti_fail_world(s->world, status));
    }
    return WEFT_OK;
}

/* The factor from accumulated gradients to the gradient of the batch. Normally it takes the mean
 * over microbatches. If the plan asks for sums, gradients are the sum of the means of all devices
 * and microbatches. */
static double gradient_scale(const weft_session *s) {
    if (!s->plan || !s->plan->gradients_sum) return 1.0 / (double)s->options.microbatches;
    int32_t parts = 1;
    for (int32_t r = 0; r < s->devices; r++) {
        const wefti_site *site = &s->views[0]->sites[r];
        for (int32_t i = 0; i < site->facts.tensor_count; i++) {
            const wefti_tensor *t = &site->tensors[i];
            if (t->role != WEFTI_TENSOR_INPUT || t->whole.rank == 0) continue;
            int32_t n = wefti_layout_parts(&t->layout, &site->facts.mesh, 0);
            if (n > parts) parts = n;
        }
    }
    return (double)parts;
}

/* The end of a pass or an update. A call that is wrong on this rank alone ends the world: the other
 * ranks may wait in theirs, where no agreement is. */
static weft_status settle(weft_session *s, weft_status status) {
    if (status == WEFT_E_ARG) status = wefti_fail_world(s->world, status);
    return wefti_session_settle(s, status);
}

/* Pipelines run all microbatches of a step at once: calls before the last one only count. */
static weft_status accumulate(weft_session *s, double *out_loss) {
    wefti_view *view = s->views[0];
    bool at_once = view->own->all_microbatches;
    WEFT_TRY(wefti_session_start(s));
    if (s->world && s->accumulated == 0)
        wefti_position_step(s->world->comm->position, s->survivor.step + 1);
    WEFT_REQUIRE(s->accumulated < s->options.microbatches, WEFT_E_ARG,
                 "%d microbatches are accumulated already: update first", s->accumulated);
    WEFT_TRY(wefti_view_check_fed(s, 0));
    if (s->accumulated == 0) WEFT_TRY(wefti_session_copy(s));
    s->rows[s->accumulated] = s->row;
    if (at_once && s->accumulated + 1 < s->options.microbatches) {
        s->accumulated++;
        if (out_loss) *out_loss = NAN;
        return WEFT_OK;
    }
    bool first = at_once || !s->accumulated;
    wefti_survivor_forget(&s->survivor);
    if (first) s->attempts++;
    if (s->optimizer && first) {
        WEFT_TRY(set_scalar(s, WEFTI_STEP_PLACE(step), (double)(s->survivor.step + 1)));
        WEFT_TRY(set_scalar(s, WEFTI_STEP_PLACE(gradient_scale), gradient_scale(s)));
    }
    bool last = s->accumulated + 1 == s->options.microbatches &&
                view->own->step_count[WEFTI_SECTION_LAST] > 0;
    wefti_section section = first  ? WEFTI_SECTION_FIRST
                            : last ? WEFTI_SECTION_LAST
                                   : WEFTI_SECTION_NEXT;
    weft_status status = run_pass(s, view, section, out_loss);
    s->accumulated = status >= 0 && s->optimizer ? s->accumulated + 1 : 0;
    return status;
}

static weft_status try_accumulate(weft_session *s, double *out_loss) {
    WEFT_REQUIRE(
        !updates_eagerly(s), WEFT_E_ARG,
        "this session updates inside of its backward pass: use weft_session_step, or ask for "
        "clipping, recovery, several microbatches or keep_gradients");
    return accumulate(s, out_loss);
}

weft_status weft_session_accumulate(weft_session *s, double *out_loss) {
    return settle(s, try_accumulate(s, out_loss));
}

enum { NORM_BLOCK = 512 };

/* The norm of all gradients, from a device of this process. *out_name (may be NULL): the first
 * parameter whose gradient has a norm that is not finite; NULL: none. */
static weft_status norm_at(const weft_session *s, int32_t rank, double *out,
                           const char **out_name) {
    const wefti_program *p = s->views[0]->programs[rank];
    wefti_rank_device *d = wefti_workers_device(s->workers, rank);
    const int64_t size = (int64_t)weft_dtype_bytes(p->norms_dtype);
    const wefti_home home = wefti_rank_device_home(d, p->norms, p->norm_count * size);
    double block[NORM_BLOCK]; /* on the stack: a step allocates nothing */
    const char *name = NULL;
    double sum = 0;
    for (int32_t i = 0; i < p->norm_count; i++) {
        const int32_t k = i % NORM_BLOCK, left = p->norm_count - i;
        if (!k)
            WEFT_TRY(wefti_home_read(&home, i * size,
                                     (left < NORM_BLOCK ? left : NORM_BLOCK) * size, block));
        double square = wefti_load(p->norms_dtype, block, k);
        if (!isfinite(square) && !name) name = p->norm_names[i];
        sum += square;
    }
    if (out_name) *out_name = name;
    *out = sqrt(sum) * gradient_scale(s);
    return WEFT_OK;
}

/* In models that communicate by hand, each device of a stage has a norm of its own. It is the
 * model's norm if all devices have the same gradients. With slices in an unknown layout,
 * no device has the model's norm. */
static weft_status same_norms(weft_session *s, double norm) {
    weft_status status = WEFT_OK;
    double *all = s->of_ranks;
    for (int32_t r = 0; r < s->devices && status >= 0; r++)
        if (wefti_session_has(s, r))
            status = wefti_fail_world(s->world, norm_at(s, r, &all[r], NULL));
    WEFT_TRY(status);
    if (s->world) status = wefti_agree_records(s->agreement, &norm, sizeof norm, all);
    for (int32_t r = 0; r < s->devices && status >= 0; r++)
        if (!isfinite(all[r]))
            status = WEFT_RAISE(WEFT_E_NUMERIC,
                                "the norm of rank %d's gradient is %g: nothing was updated", r,
                                wefti_printed(all[r]));
    for (int32_t r = 1; r < s->devices && status >= 0; r++)
        if (all[r] != all[0])
            status = WEFT_RAISE(
                WEFT_E_MISMATCH,
                "the gradient's norm is %.9g on rank 0 and %.9g on rank %d: in mode manual the "
                "session clips only gradients that are equal on all ranks; set clip to 0, and clip "
                "inside the model",
                wefti_printed(all[0]), wefti_printed(all[r]), r);
    return status;
}

/* Completes gradients, and with clipping their norms. With recovery it ends with the commit: all
 * gradients are complete once the section has come to its last step. */
static weft_status complete_gradients(weft_session *s) {
    const wefti_program *p = s->views[0]->own;
    weft_status status = run_section(s, s->views[0], WEFTI_SECTION_NORM);
    const bool ends =
        status >= 0 ||
        (s->world && wefti_rank_device_ended(wefti_workers_device(s->workers, s->me)) + 1 >=
                         p->step_count[WEFTI_SECTION_NORM]);
    if (ends && updates_alone(s)) wefti_survivor_reduced(&s->survivor);
    return status;
}

/* The norm of all gradients, which every device knows, and the factor that clips them. */
static weft_status clip(weft_session *s, double *out_norm) {
    double scale = gradient_scale(s);
    WEFT_TRY(complete_gradients(s));
    double norm;
    const char *name;
    WEFT_TRY(wefti_fail_world(s->world, norm_at(s, s->me, &norm, &name)));
    if (s->views[0]->own->own_norms) WEFT_TRY(same_norms(s, norm));
    WEFT_REQUIRE(isfinite(norm), WEFT_E_NUMERIC,
                 "the gradient's norm is %g%s%s: nothing was updated", wefti_printed(norm),
                 name ? ", because of " : "", name ? name : "");
    /* PyTorch's clip_grad_norm_: clip / (norm + 1e-6), at most 1. */
    double factor = s->options.clip / (norm + 1e-6);
    s->scale = (factor < 1 ? factor : 1.0) * scale;
    *out_norm = norm;
    return WEFT_OK;
}

static void updated(weft_session *s, bool scattered) {
    s->accumulated = 0;
    wefti_survivor_updated(&s->survivor, scattered);
}

static bool gathers(const weft_session *s) {
    bool any = false;
    for (int32_t r = 0; r < s->devices; r++) {
        const wefti_program *p = s->views[0]->programs[r];
        any |= p && p->gather_from < p->step_count[WEFTI_SECTION_UPDATE];
    }
    return any;
}

weft_status wefti_session_apply(weft_session *s) {
    WEFT_TRY(set_scalar(s, WEFTI_STEP_PLACE(gradient_scale), s->scale));
    WEFT_TRY(set_scalar(s, WEFTI_STEP_PLACE(learning_rate), s->rate));
    wefti_survivor_updates(&s->survivor);
    /* what a rank pulls may change before another rank comes to it */
    if (s->views[0]->own->serves) wefti_session_saving_captured(s);
    const bool alone = updates_alone(s);
    WEFT_TRY(run_part(s, s->views[0], WEFTI_SECTION_UPDATE, alone ? PART_PIECES : PART_ALL));
    s->made_scale = s->scale;
    s->made_norm = s->norm;
    updated(s, alone && gathers(s));
    return WEFT_OK;
}

weft_status wefti_session_gather(weft_session *s) {
    if (s->survivor.phase != WEFTI_SURVIVOR_SCATTERED) return WEFT_OK;
    WEFT_TRY(run_part(s, s->views[0], WEFTI_SECTION_UPDATE, PART_GATHER));
    wefti_survivor_gathered(&s->survivor);
    return WEFT_OK;
}

/* A learning rate that is not finite would turn every parameter into NaN: refuse it. */
static weft_status check_rate(double learning_rate) {
    WEFT_REQUIRE(isfinite((float)learning_rate), WEFT_E_ARG,
                 "the learning rate is %g: it must be a finite number of single precision",
                 wefti_printed(learning_rate));
    return WEFT_OK;
}

static weft_status try_update(weft_session *s, double learning_rate, double *out_norm) {
    WEFT_REQUIRE(s->optimizer, WEFT_E_ARG, "the session was made without an optimizer");
    WEFT_TRY(check_rate(learning_rate));
    WEFT_REQUIRE(!updates_eagerly(s), WEFT_E_ARG,
                 "this session updates inside of its backward pass: use weft_session_step");
    WEFT_REQUIRE(s->accumulated == s->options.microbatches, WEFT_E_ARG,
                 "%d of %d microbatches are accumulated since the last update or pass of another "
                 "program",
                 s->accumulated, s->options.microbatches);
    s->norm = NAN;
    s->rate = learning_rate;
    s->scale = gradient_scale(s);
    weft_status status = WEFT_OK;
    if (s->options.clip > 0)
        status = clip(s, &s->norm);
    else if (s->options.recovery)
        status = complete_gradients(s);
    if (status < 0) s->accumulated = 0; /* these gradients will not be used, */
    if (status < 0 && !wefti_is_of_others(s->world, status))
        wefti_survivor_forget(&s->survivor); /* also not after a repair */
    wefti_session_take_inputs(s, 1);
    WEFT_TRY(status);
    WEFT_TRY(wefti_session_apply(s));
    WEFT_TRY(wefti_session_gather(s));
    if (out_norm) *out_norm = s->made_norm;
    return WEFT_OK;
}

weft_status weft_session_update(weft_session *s, double learning_rate, double *out_norm) {
    return settle(s, try_update(s, learning_rate, out_norm));
}

static weft_status try_step(weft_session *s, double learning_rate, double *out_loss) {
    WEFT_REQUIRE(s->optimizer, WEFT_E_ARG, "the session was made without an optimizer");
    WEFT_REQUIRE(s->options.microbatches == 1, WEFT_E_ARG,
                 "a step of %d microbatches is that many accumulates and an update",
                 s->options.microbatches);
    WEFT_TRY(check_rate(learning_rate));
    WEFT_TRY(wefti_session_start(s));
    WEFT_TRY(set_scalar(s, WEFTI_STEP_PLACE(learning_rate), learning_rate));
    double loss;
    WEFT_TRY(accumulate(s, &loss));
    if (updates_eagerly(s))
        updated(s, false);
    else
        WEFT_TRY(try_update(s, learning_rate, NULL));
    if (out_loss) *out_loss = loss;
    return WEFT_OK;
}

weft_status weft_session_step(weft_session *s, double learning_rate, double *out_loss) {
    return settle(s, try_step(s, learning_rate, out_loss));
}

static weft_status try_forward(weft_session *s, int program, double *out_loss) {
    wefti_view *v;
    WEFT_TRY(wefti_session_view(s, program, &v));
    WEFT_REQUIRE(program > 0 || !s->optimizer, WEFT_E_ARG,
                 "program 0 trains: use weft_session_step, or add a graph for evaluation");
    WEFT_TRY(wefti_session_start(s));
    WEFT_TRY(wefti_view_check_fed(s, program));
    s->accumulated = 0; /* it overwrites the memory of the gradients */
    return run_pass(s, v, WEFTI_SECTION_FIRST, out_loss);
}

weft_status weft_session_forward(weft_session *s, int program, double *out_loss) {
    return settle(s, try_forward(s, program, out_loss));
}

/* ---- settings and numbers ---- */

int64_t weft_session_step_number(const weft_session *s) {
    return s->survivor.step;
}
/* Updates and samples are counted from these numbers without overflow. */
static weft_status check_count(const char *what, int64_t count) {
    WEFT_REQUIRE(count >= 0 && count <= INT64_C(1) << 60, WEFT_E_ARG,
                 "%s is %lld: it must be from 0 to 2^60", what, (long long)count);
    return WEFT_OK;
}
weft_status weft_session_set_step(weft_session *s, int64_t step) {
    WEFT_TRY(check_count("the number of updates made", step));
    s->survivor.step = step;
    return WEFT_OK;
}
weft_status weft_session_set_row(weft_session *s, int64_t global_row) {
    WEFT_TRY(check_count("the first sample's number", global_row));
    s->row = global_row;
    return WEFT_OK;
}
int weft_session_devices(const weft_session *s) {
    return s->devices;
}

weft_status weft_session_device_memory(const weft_session *s, int rank, int64_t *out_predicted,
                                       int64_t *out_observed) {
    WEFT_REQUIRE(rank >= 0 && rank < s->devices, WEFT_E_ARG,
                 "device %d does not exist: the session has %d", rank, s->devices);
    *out_observed = 0;
    *out_predicted =
        wefti_footprint_bytes(wefti_session_footprint(s, rank, s->view_count), WEFTI_SPACE_DEVICE);
    if (s->workers && wefti_session_has(s, rank))
        *out_observed = wefti_rank_device_observed_peak(wefti_workers_device(s->workers, rank),
                                                        WEFTI_SPACE_DEVICE);
    return WEFT_OK;
}

weft_session_memory weft_session_memory_of(const weft_session *s) {
    weft_session_memory m = {0};
    for (int32_t r = 0; r < s->devices; r++) {
        const wefti_facts *f = &s->views[0]->sites[r].facts;
        int64_t predicted, observed;
        if (weft_session_device_memory(s, r, &predicted, &observed) < 0) continue;
        wefti_keep_most(&m.predicted_peak_bytes, predicted);
        wefti_keep_most(&m.observed_peak_bytes, observed);
        int64_t programs = 0;
        for (int64_t i = 0; i < s->view_count; i++)
            programs += s->views[i]->sites[r].facts.program_bytes;
        wefti_keep_most(&m.program_bytes, programs);
        wefti_keep_most(&m.parameter_bytes, f->parameter_bytes);
        wefti_keep_most(&m.optimizer_bytes, f->optimizer_bytes);
        wefti_keep_most(&m.transient_bytes, f->arenas.of[WEFTI_SPACE_DEVICE][WEFTI_TRANSIENT]);
        wefti_keep_most(&m.saved_bytes, f->saved_bytes);
        const wefti_footprint all = wefti_session_footprint(s, r, s->view_count);
        wefti_keep_most(&m.host_bytes, wefti_footprint_bytes(all, WEFTI_SPACE_HOST));
        wefti_keep_most(&m.disk_bytes, wefti_footprint_bytes(all, WEFTI_SPACE_DISK));
        if (s->workers && wefti_session_has(s, r)) {
            const wefti_rank_device *device = wefti_workers_device(s->workers, r);
            const wefti_row_counts rows = wefti_rank_device_row_counts(device);
            wefti_keep_most(&m.lent_bytes, wefti_rank_device_lent(device));
            m.cache_hits += rows.hits;
            m.cache_misses += rows.misses;
            m.cache_written += rows.written;
            m.cache_look_ups += rows.look_ups;
            m.cache_look_ups_hit += rows.look_ups_hit;
            m.cache_ahead += rows.ahead;
        }
        m.forward_flops += f->forward_flops;
        m.backward_flops += f->backward_flops;
    }
    return m;
}

weft_bf16_compute weft_session_bf16(const weft_session *s) {
    return s->bf16 == WEFTI_BF16_NATIVE ? WEFT_BF16_NATIVE : WEFT_BF16_AS_F32;
}

const wefti_program *wefti_session_program(const weft_session *s, int program) {
    return s->views[program]->own;
}
const wefti_program *wefti_session_program_of(const weft_session *s, int program, int32_t rank) {
    return s->views[program]->programs[rank];
}

void wefti_session_before_update(weft_session *s, wefti_before_update *call, void *context) {
    s->before_update = call;
    s->before_update_context = context;
}

void wefti_session_fused(const weft_session *s, int32_t out[3]) {
    for (int k = 0; k < 3; k++) {
        out[k] = 0;
        for (int32_t r = 0; r < s->devices; r++) {
            const int32_t fused = s->views[0]->sites[r].facts.fused[k];
            if (fused > out[k]) out[k] = fused;
        }
    }
}

int wefti_session_programs(const weft_session *s) {
    return (int)s->view_count;
}

wefti_session_origin wefti_session_origin_of(const weft_session *s) {
    return (wefti_session_origin){.graph = s->graph,
                                  .plan = s->plan,
                                  .optimizer = wefti_optimizer_plan_of(s->optimizer),
                                  .microbatches = s->options.microbatches,
                                  .devices = s->devices,
                                  .me = s->me};
}

int wefti_session_threads(const weft_session *s) {
    return s->threads * s->devices;
}
