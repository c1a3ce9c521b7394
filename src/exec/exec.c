/* The executor: runs the steps of a section on a device's arenas. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "exec/rank_device.h"
#include "compile/routine_run.h"

/* ---- operands ---- */

wefti_location wefti_operand_location(const wefti_rank_device *d, const wefti_step *step,
                                      wefti_ref ref) {
    if (ref.arg == WEFTI_REF_NONE) return WEFTI_NOWHERE;
    if (ref.arg == WEFTI_REF_FRAME) return wefti_location_plus(step->frame, ref.offset);
    return wefti_location_plus(wefti_argument_location(d, step, ref.arg), ref.offset);
}

static weft_status copy(wefti_rank_device *d, wefti_location to, wefti_location from,
                        int64_t bytes) {
    return wefti_stream_copy(d->stream, wefti_rank_device_at(d, to), wefti_location_space(to),
                             wefti_rank_device_at(d, from), wefti_location_space(from), bytes);
}

/* Fails if elements [first, first + count) of output `o` of an instruction, which lie at `data`,
 * have NaN or infinity. */
static weft_status check_elements(const wefti_step *step, const weft_node *node, int o,
                                  const void *data, int64_t first, int64_t count) {
    const weft_desc *desc = wefti_out(node, o);
    const char *scope = node->scope ? node->scope : "";
    for (int64_t i = 0; i < count; i++) {
        double v = wefti_load(desc->dtype, data, i);
        WEFT_REQUIRE(isfinite(v), WEFT_E_NUMERIC,
                     "the first value that is not a finite number is made in cell '%s' by %s%s%s: "
                     "element %lld of %s is %g",
                     step->name, node->op->name, *scope ? " in " : "", scope,
                     (long long)(first + i), wefti_desc_text(desc).text, wefti_printed(v));
    }
    return WEFT_OK;
}

static weft_status check_output(const wefti_step *step, const weft_node *node, int o,
                                const wefti_home *home) {
    const weft_desc *desc = wefti_out(node, o);
    const int64_t size = (int64_t)weft_dtype_bytes(desc->dtype), most = WEFTI_HOME_BLOCK / size;
    for (int64_t at = 0, all = weft_desc_elems(desc), part; at < all; at += part) {
        wefti_mapping m;
        part = all - at < most ? all - at : most;
        WEFT_TRY(wefti_home_map(home, at * size, part * size, WEFTI_ACCESS_READ, &m));
        WEFT_TRY(wefti_home_unmap(&m, check_elements(step, node, o, m.data, at, part)));
    }
    return WEFT_OK;
}

/* Ops of the model's cells are checked, and all that compute. Outside of the cells, gathers and
 * reductions pack pieces into messages: an op that only moves elements did not make their values.
 */
static bool is_checked(const wefti_step *step, const wefti_instruction *x) {
    wefti_cost cost;
    if (!x->kernel) return false;
    if (step->phase == WEFTI_FORWARD || step->phase == WEFTI_BACKWARD) return true;
    wefti_node_cost(x->node, &cost);
    return cost.flops > 0;
}

/* Names the op that made the first output element which is NaN or infinite. */
static weft_status check_finite(const wefti_rank_device *d, const wefti_step *step,
                                const wefti_instruction *x) {
    if (!is_checked(step, x)) return WEFT_OK;
    WEFT_TRY(wefti_stream_publish(d->stream));
    for (int o = 0; o < x->node->outputs; o++) {
        const weft_desc *desc = wefti_out(x->node, o);
        if (!wefti_dtype_is_float(desc->dtype)) continue;
        const wefti_home home = wefti_rank_device_home(
            d, wefti_operand_location(d, step, x->out[o]), weft_desc_bytes(desc));
        WEFT_TRY(check_output(step, x->node, o, &home));
    }
    return WEFT_OK;
}

/* ---- steps ---- */

/* A non-finite value was found. If other ranks go on, this section goes on too and fails at its
 * end. */
static weft_status found(wefti_rank_device *d, const wefti_binding *b, const wefti_step *step,
                         weft_status status, const wefti_exec_options *options) {
    if (status != WEFT_E_NUMERIC || !options->orderly) return status;
    if (options->rows) status = wefti_prefix(status, "microbatch %d", d->micro);
    d->finding = wefti_strdup(weft_error_message());
    WEFT_REQUIRE(d->finding, WEFT_E_NOMEM, "no memory for a message");
    /* later stages order behind earlier ones */
    int64_t number = d->at.number < UINT32_MAX ? d->at.number : UINT32_MAX;
    d->finding_order = (int64_t)step->phase << 56 | number;
    if (b) d->finding_order |= (int64_t)b->program->mesh.first << 32;
    return WEFT_OK;
}

/* A call that is running. */
typedef struct running {
    wefti_rank_device *d;
    wefti_binding *b;
    const wefti_step *step;
    const wefti_exec_options *options;
    int32_t entry; /* of the routine's first instruction in the profile; -1: not measured */
    wefti_profile_moment begin; /* of the instruction */
} running;

static wefti_operand operand_at(void *context, wefti_ref ref, int64_t written) {
    const running *c = context;
    const wefti_location at = wefti_operand_location(c->d, c->step, ref);
    if (!wefti_location_exists(at)) return (wefti_operand){NULL, WEFTI_SPACE_HOST};
    if (written) wefti_rank_device_observe(c->d, at, written);
    return (wefti_operand){wefti_rank_device_at(c->d, at), wefti_location_space(at)};
}

static void instruction_begins(void *context, const wefti_instruction *x) {
    running *c = context;
    (void)x;
    if (c->entry >= 0)
        c->begin = wefti_profile_now(c->d->profile);
    else if (c->d->trace)
        c->begin.ns = wefti_now_ns();
}

static weft_status instruction_ended(void *context, const wefti_instruction *x) {
    const running *c = context;
    wefti_rank_device *d = c->d;
    if (c->entry >= 0)
        wefti_profile_add(d->profile, c->entry + (int32_t)(x - c->step->routine->code), c->begin);
    if (d->trace)
        wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_KERNELS,
                          x->node  ? x->node->op->name
                          : x->add ? "add"
                                   : "copy",
                          x->node ? x->kernel->label : "move", c->begin.ns, wefti_now_ns(),
                          x->cost.flops, x->cost.bytes);
    if (!c->options->check_finite || d->finding) return WEFT_OK;
    return found(d, c->b, c->step, check_finite(d, c->step, x), c->options);
}

static weft_status run_call(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                            const wefti_step *step, const wefti_exec_options *options) {
    static const char *const phases[] = {"forward", "backward", "update", "other"};
    wefti_run run = {d->pool, options->random, d->stream};
    run.random.call_stream = step->stream;
    run.random.samples = p->samples;
    if (options->rows) run.random.row_offset = options->rows[d->micro];
    int64_t start = d->trace ? wefti_now_ns() : 0;
    running c = {d, b, step, options, .entry = -1};
    if (wefti_profile_is_of(d->profile, p))
        c.entry = wefti_profile_routine(d->profile, d->section, d->at.step);
    wefti_routine_call call = {step->routine, step->name,    &run,
                               operand_at,    .context = &c, .space = step->space};
    if (step->space == WEFTI_SPACE_HOST) WEFT_TRY(wefti_stream_finish(d->stream));
    if (c.entry >= 0 || d->trace || options->check_finite) {
        call.begins = instruction_begins;
        call.ended = instruction_ended;
    }
    weft_status status = wefti_finish_part(d, b, step);
    for (int32_t k = step->from; k < step->to && status >= 0;) {
        if (step->routine->code[k].transfer >= 0)
            status = wefti_run_transfers(d, b, step, k, &k);
        else
            WEFT_TRY(wefti_routine_run(&call, &k, step->to));
    }
    if (status < 0) return wefti_prefix(status, "cell '%s'", step->name);
    if (d->trace)
        wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_CELLS, step->name, phases[step->phase],
                          start, wefti_now_ns(), 0, 0);
    return WEFT_OK;
}

static wefti_binding *binding_of(wefti_rank_device *d, const wefti_program *p) {
    for (int64_t i = 0; i < d->binding_count; i++)
        if (d->bindings[i].program == p) return &d->bindings[i];
    return NULL;
}

/* Checks the loss. A loss that is not finite ends the section, at once or at the section's end. */
static weft_status run_loss(wefti_rank_device *d, const wefti_program *p, const wefti_step *step,
                            const wefti_exec_options *options) {
    unsigned char bytes[sizeof(double)];
    const wefti_location at = wefti_argument_location(d, step, 0);
    WEFT_TRY(wefti_stream_copy(d->stream, bytes, WEFTI_SPACE_HOST, wefti_rank_device_at(d, at),
                               wefti_location_space(at), (int64_t)weft_dtype_bytes(p->loss_dtype)));
    WEFT_TRY(wefti_stream_finish(d->stream));
    double loss = wefti_load(p->loss_dtype, bytes, 0);
    d->loss += loss;
    d->losses++;
    if (isfinite(loss)) return WEFT_OK;
    if (options->to_the_end) {
        if (isfinite(d->bad_loss)) d->bad_loss = loss;
        return WEFT_OK;
    }
    if (options->orderly) WEFT_TRY(wefti_drain(d, binding_of(d, p)));
    WEFT_FAIL(WEFT_E_NUMERIC, "the loss is %g", wefti_printed(loss));
}

static weft_status run_copy(wefti_rank_device *d, const wefti_step *step) {
    const wefti_location to = wefti_argument_location(d, step, 0),
                         from = wefti_argument_location(d, step, 1);
    for (int64_t i = 0; i < wefti_copy_rows(step); i++)
        WEFT_TRY(copy(d, wefti_location_plus(to, i * step->pitch[0]),
                      wefti_location_plus(from, i * step->pitch[1]), step->bytes));
    return WEFT_OK;
}

static weft_status run_step(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                            const wefti_step *step, const wefti_exec_options *options) {
    switch (step->kind) {
    case WEFTI_STEP_CALL:
        if (step->tensor >= 0 && options->before_update)
            options->before_update(options->before_update_context, d->rank, step->tensor);
        return run_call(d, p, b, step, options);
    case WEFTI_STEP_COPY:
        return run_copy(d, step);
    case WEFTI_STEP_LOSS:
        return run_loss(d, p, step, options);
    case WEFTI_STEP_POST:
        return wefti_run_post(d, p, b, step);
    case WEFTI_STEP_WAIT:
        return wefti_run_wait(d, p, b, step);
    }
    return WEFT_OK;
}

weft_status wefti_check_halted(const wefti_rank_device *d) {
    const wefti_exec_options *o = d->options;
    WEFT_REQUIRE(!o->halted || !o->halted(o->halted_context, d->rank), WEFT_E_PEER,
                 "the step was abandoned");
    return WEFT_OK;
}

/* Runs the steps of a section, with its loops expanded. A failure names the microbatch. */
static weft_status run_steps(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                             wefti_section section, const wefti_exec_options *options) {
    const wefti_step *step;
    d->at = (wefti_cursor){.step = options->first_step, .number = options->first_step};
    d->section = section;
    while ((!options->end_step || d->at.step < options->end_step) &&
           (step = wefti_cursor_step(p, section, &d->at))) {
        d->micro = wefti_cursor_micro(p, section, &d->at);
        WEFT_TRY(wefti_check_halted(d));
        weft_status status = run_step(d, p, b, step, options);
        if (status < 0 && options->rows && step->kind != WEFTI_STEP_LOSS)
            return wefti_prefix(status, "microbatch %d", d->micro);
        if (status < 0) return status;
        wefti_cursor_next(p, section, &d->at);
    }
    return WEFT_OK;
}

weft_status wefti_rank_device_run(wefti_rank_device *d, const wefti_program *p,
                                  wefti_section section, const wefti_exec_options *options) {
    const wefti_footprint need = wefti_program_footprint(p);
    for (int s = 0; s < WEFTI_SPACES; s++)
        for (int t = 0; t < WEFTI_TERMS; t++)
            WEFT_REQUIRE(need.of[s][t] <= d->arenas[s][t].bytes, WEFT_E_BUG,
                         "the arena of term %d in space %d has %lld bytes, the program needs %lld",
                         t, s, (long long)d->arenas[s][t].bytes, (long long)need.of[s][t]);
    WEFT_REQUIRE(!p->kind || p->kind == d->kind, WEFT_E_BUG,
                 "the program is for a device of kind %s, rank %d has one of kind %s",
                 p->kind->table->name, (int)d->rank, d->kind->table->name);
    wefti_binding *b = binding_of(d, p);
    if (b) wefti_forget_posts(d, b); /* a failed section can leave posts */
    d->options = options;
    d->used = true;
    d->bad_loss = 0;
    wefti_free(d->finding);
    d->finding = NULL;
    if (section <= WEFTI_SECTION_LAST) { /* a pass */
        d->loss = 0;
        d->losses = 0;
    }
    weft_status status = run_steps(d, p, b, section, options);
    /* Others may use the memory of a failed section's copies from now on. */
    status = status < 0 ? wefti_end_copies(d, status) : wefti_stream_publish(d->stream);
    if (status >= 0 && !isfinite(d->bad_loss))
        status = WEFT_RAISE(WEFT_E_NUMERIC, "the loss is %g", wefti_printed(d->bad_loss));
    if (d->finding && (status >= 0 || status == WEFT_E_NUMERIC))
        status = WEFT_RAISE(WEFT_E_NUMERIC, "%s", d->finding);
    return status < 0 ? wefti_note(status, __func__, __FILE__, __LINE__) : WEFT_OK;
}
