/* Predictions from a simulation: see predict.h. */
#include "simulate/predict.h"

#include "base/memory.h"
#include "base/number.h"

static double seconds(int64_t picoseconds) {
    return (double)picoseconds * WEFTI_PICOSECOND;
}

static int64_t sum(const int64_t *from, int begin, int end) {
    int64_t total = 0;
    for (int i = begin; i < end; i++) total += from[i];
    return total;
}

/* ---- FLOPs ---- */

/* The program of the class of a rank. */
static const wefti_program *program_of(const wefti_match_classes *classes, int32_t rank) {
    return classes->programs[classes->class_of[rank]];
}

/* The arithmetic with most FLOPs in products of all programs. */
static wefti_arithmetic main_arithmetic(const wefti_match_classes *classes) {
    double flops[WEFTI_ARITHMETICS] = {0};
    wefti_arithmetic most = WEFTI_ARITHMETIC_F32;
    for (int32_t c = 0; c < classes->count; c++)
        for (int32_t i = 0; i < classes->programs[c]->routine_count; i++) {
            const wefti_routine *r = classes->programs[c]->routines[i];
            wefti_product_shape shape;
            for (int32_t k = 0; k < r->code_count; k++)
                if (r->code[k].node && wefti_node_product(r->code[k].node, &shape))
                    flops[wefti_node_arithmetic(r->code[k].node)] += r->code[k].cost.flops;
        }
    for (int a = 0; a < WEFTI_ARITHMETICS; a++)
        if (flops[a] > flops[most]) most = (wefti_arithmetic)a;
    return most;
}

double wefti_peak_rate(const wefti_machine_model *machine, wefti_arithmetic arithmetic) {
    const wefti_device_model *d = &machine->device;
    const wefti_figure *peak = &d->peak_flops[arithmetic];
    return peak->source ? peak->value : wefti_model_product_rate(d, arithmetic);
}

static void take_flops(const wefti_match_classes *classes, const wefti_simulation *s,
                       const wefti_predict_options *o, weft_prediction *out) {
    out->flops = o->flops;
    for (int32_t i = 0; i < s->count && o->flops <= 0; i++) {
        const wefti_program *p = program_of(classes, s->lowest[i]);
        out->flops += (p->forward_flops + p->backward_flops) * s->members[i] * o->microbatches;
    }
    if (s->stopped || s->step <= 0) return;
    out->tokens_per_second = o->tokens / out->step_seconds;
    out->mfu = out->flops / (out->step_seconds * s->world *
                             wefti_peak_rate(o->machine, main_arithmetic(classes)));
}

/* ---- times and bytes ---- */

static weft_status take_causes(const wefti_simulation *s, weft_prediction *out) {
    WEFT_NEW_ARRAY(out->causes, weft_time_cause, WEFTI_CAUSES);
    for (int c = 0; c < WEFTI_CAUSES; c++)
        if (s->critical[c])
            out->causes[out->cause_count++] =
                (weft_time_cause){wefti_cause_text(c), seconds(s->critical[c])};
    out->compute_seconds = seconds(sum(s->critical, 0, WEFTI_CAUSE_HOST));
    out->tier_seconds = seconds(sum(s->critical, WEFTI_CAUSE_HOST, WEFTI_CAUSE_IDLE));
    out->exposed_seconds = seconds(sum(s->critical, WEFTI_CAUSE_TRANSFER, WEFTI_CAUSES));
    return WEFT_OK;
}

static weft_rank_prediction rank_of(const wefti_match_classes *classes, const wefti_simulation *s,
                                    int32_t player) {
    const wefti_rank_time *t = &s->ranks[player];
    const wefti_program *p = program_of(classes, s->lowest[player]);
    return (weft_rank_prediction){
        .rank = s->lowest[player],
        .count = s->members[player],
        .peak_bytes = p->peak_bytes,
        .program_bytes = p->program_bytes,
        .end_seconds = seconds(t->end),
        .busy_seconds = seconds(sum(t->cause, 0, WEFTI_CAUSE_HOST)),
        .tier_seconds = seconds(sum(t->cause, WEFTI_CAUSE_HOST, WEFTI_CAUSE_IDLE)),
        .exposed_seconds = seconds(sum(t->cause, WEFTI_CAUSE_TRANSFER, WEFTI_CAUSES)),
        .idle_seconds = seconds(t->cause[WEFTI_CAUSE_IDLE]),
        .transfer_seconds = seconds(sum(t->transfers, 0, WEFTI_TRANSFER_KINDS)),
    };
}

/* A device's bytes in the tiers below its memory, and those that a step moves, at most. */
static void take_tiers(const wefti_match_classes *classes, int32_t microbatches,
                       weft_prediction *out) {
    for (int32_t c = 0; c < classes->count; c++) {
        const wefti_program *p = classes->programs[c];
        const wefti_footprint all = wefti_program_footprint(p);
        int64_t moved[WEFTI_SPACES];
        wefti_program_moved(p, microbatches, moved);
        wefti_keep_most(&out->host_bytes, wefti_footprint_bytes(all, WEFTI_SPACE_HOST));
        wefti_keep_most(&out->disk_bytes, wefti_footprint_bytes(all, WEFTI_SPACE_DISK));
        wefti_keep_most(&out->host_moved_bytes, moved[WEFTI_SPACE_HOST]);
        wefti_keep_most(&out->disk_moved_bytes, moved[WEFTI_SPACE_DISK]);
        wefti_keep_most(&out->server_moved_bytes, moved[WEFTI_SPACE_SERVER]);
    }
}

static weft_status take_ranks(const wefti_match_classes *classes, const wefti_simulation *s,
                              weft_prediction *out) {
    double idle = 0;
    WEFT_NEW_ARRAY(out->classes, weft_rank_prediction, s->count);
    out->class_count = s->count;
    out->ranks = s->world;
    double served = 0;
    for (int32_t r = 0; r < s->world; r++)
        served += wefti_program_server_share(program_of(classes, r));
    out->server_bytes = (int64_t)(served + 0.5);
    for (int32_t i = 0; i < s->count; i++) {
        weft_rank_prediction *r = &out->classes[i];
        *r = rank_of(classes, s, i);
        idle += r->idle_seconds * r->count;
        if (r->peak_bytes <= out->peak_bytes && i) continue;
        out->peak_bytes = r->peak_bytes;
        out->peak_rank = r->rank;
    }
    out->bubble_seconds = idle / s->world;
    return WEFT_OK;
}

static weft_status take(const wefti_match_classes *classes, const wefti_simulation *s,
                        const wefti_predict_options *o, weft_prediction *out) {
    out->step_seconds = seconds(s->step);
    out->critical_rank = s->critical_rank;
    out->stopped = s->stopped;
    out->waiting = s->waiting;
    WEFT_TRY(take_causes(s, out));
    WEFT_TRY(take_ranks(classes, s, out));
    take_tiers(classes, o->microbatches, out);
    take_flops(classes, s, o, out);
    wefti_predict_fits(o->machine, out);
    return WEFT_OK;
}

void wefti_predict_fits(const wefti_machine_model *machine, weft_prediction *out) {
    out->device_bytes = (int64_t)machine->device.memory_bytes.value;
    out->fits = out->peak_bytes <= out->device_bytes;
}

wefti_simulate_options wefti_predict_simulation(const wefti_predict_options *options) {
    const weft_disturbances *d = &options->disturbances;
    return (wefti_simulate_options){.machine = options->machine,
                                    .microbatches = options->microbatches,
                                    .slow_ranks = d->slow_ranks,
                                    .slow_rank_count = d->slow_rank_count,
                                    .slow_links = d->slow_links,
                                    .slow_link_count = d->slow_link_count,
                                    .failing = d->failing,
                                    .fail_seconds = d->fail_seconds,
                                    .span = options->span,
                                    .context = options->context,
                                    .stop = options->stop,
                                    .stop_context = options->stop_context};
}

weft_status wefti_predict(const wefti_match_classes *classes, const wefti_predict_options *options,
                          weft_prediction **out) {
    const wefti_simulate_options o = wefti_predict_simulation(options);
    wefti_simulation *s;
    weft_prediction *prediction = wefti_calloc(1, sizeof *prediction);
    WEFT_REQUIRE(prediction, WEFT_E_NOMEM, "no memory for a prediction");
    weft_status status = wefti_simulate_classes(classes, &o, &s);
    if (status >= 0) {
        status = take(classes, s, options, prediction);
        wefti_simulation_free(s);
    }
    if (status < 0) {
        weft_prediction_free(prediction);
        return status;
    }
    *out = prediction;
    return WEFT_OK;
}

void weft_prediction_free(weft_prediction *prediction) {
    if (!prediction) return;
    wefti_free(prediction->causes);
    wefti_free(prediction->classes);
    wefti_free(prediction);
}
