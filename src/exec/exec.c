/* The executor: walks a section's steps and runs their routines on one arena. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "exec/rank_device.h"
#include "program/print.h"

/* ---- instructions ---- */

typedef struct addition {
    weft_dtype dtype;
    unsigned char *to;
    const unsigned char *from;
    int64_t elems;
} addition;

enum { ADD_BLOCK = 16384 };

static void add_block(void *context, int64_t task, int thread) {
    const addition *a = context;
    (void)thread;
    int64_t begin = task * ADD_BLOCK,
            end = begin + ADD_BLOCK < a->elems ? begin + ADD_BLOCK : a->elems;
    if (a->dtype == WEFT_F32) {
        float *to = (float *)(void *)a->to;
        const float *from = (const float *)(const void *)a->from;
        for (int64_t i = begin; i < end; i++) to[i] += from[i];
    } else {
        for (int64_t i = begin; i < end; i++)
            wefti_store(a->dtype, a->to, i,
                        wefti_load(a->dtype, a->to, i) + wefti_load(a->dtype, a->from, i));
    }
}

static unsigned char *address(const wefti_rank_device *d, const wefti_step *step, wefti_ref ref) {
    if (ref.arg == WEFTI_REF_NONE) return NULL;
    return d->memory + (ref.arg == WEFTI_REF_FRAME ? step->frame : step->args[ref.arg]) +
           ref.offset;
}

static void run_move(wefti_rank_device *d, const wefti_step *step, const wefti_instruction *x) {
    unsigned char *to = address(d, step, x->out[0]), *from = address(d, step, x->in[0]);
    if (x->add) {
        addition a = {x->dtype, to, from, x->bytes / (int64_t)weft_dtype_bytes(x->dtype)};
        wefti_pool_run(d->pool, (a.elems + ADD_BLOCK - 1) / ADD_BLOCK, add_block, &a);
    } else if (x->bytes) {
        memmove(to, from, (size_t)x->bytes);
    }
    wefti_rank_device_observe(d, to, x->bytes);
}

static weft_status run_kernel(wefti_rank_device *d, const wefti_step *step, const wefti_run *run,
                              const wefti_instruction *x) {
    const void *in[WEFTI_MAX_IN];
    void *out[WEFTI_MAX_OUT];
    const weft_node *n = x->node;
    for (int i = 0; i < n->inputs; i++) in[i] = address(d, step, x->in[i]);
    for (int o = 0; o < n->outputs; o++) {
        unsigned char *p = address(d, step, x->out[o]);
        out[o] = p;
        wefti_rank_device_observe(d, p, weft_desc_bytes(wefti_out(n, o)));
    }
    max_align_t nothing; /* kernels add to where they work, if only 0 */
    unsigned char *workspace = address(d, step, x->workspace);
    if (workspace) wefti_rank_device_observe(d, workspace, x->kernel->workspace_bytes);
    return x->kernel->run(x->kernel, run, in, out, workspace ? (void *)workspace : &nothing);
}

/* The first output element that is NaN or infinite, by instruction: whose op made it. */
static weft_status check_finite(const wefti_rank_device *d, const wefti_step *step,
                                const wefti_instruction *x) {
    if (!x->kernel) return WEFT_OK;
    for (int o = 0; o < x->node->outputs; o++) {
        const weft_desc *desc = wefti_out(x->node, o);
        if (!wefti_dtype_is_float(desc->dtype)) continue;
        const unsigned char *p = address(d, step, x->out[o]);
        int64_t elems = weft_desc_elems(desc);
        for (int64_t i = 0; i < elems; i++) {
            double v = wefti_load(desc->dtype, p, i);
            if (isfinite(v)) continue;
            const char *scope = x->node->scope ? x->node->scope : "";
            WEFT_FAIL(WEFT_E_NUMERIC,
                      "the first value that is not a finite number is made in cell '%s' by %s%s%s: "
                      "element %lld of %s is %g",
                      step->name, x->node->op->name, *scope ? " in " : "", scope, (long long)i,
                      wefti_desc_text(desc).text, wefti_printed(v));
        }
    }
    return WEFT_OK;
}

/* ---- communication ---- */

/* Operand and result of a transfer; NULL where there is nothing to give or to get. */
static const void *source_of(const wefti_rank_device *d, const wefti_step *step,
                             const wefti_instruction *x) {
    const weft_desc *desc = x->node->inputs ? wefti_in(x->node, 0) : NULL;
    return desc && weft_desc_bytes(desc) ? address(d, step, x->in[0]) : NULL;
}
static void *destination_of(wefti_rank_device *d, const wefti_step *step,
                            const wefti_instruction *x) {
    int64_t bytes = x->node->outputs ? weft_desc_bytes(wefti_out(x->node, 0)) : 0;
    if (!bytes) return NULL;
    unsigned char *to = address(d, step, x->out[0]);
    wefti_rank_device_observe(d, to, bytes);
    return to;
}

/* A transfer as its place in the program: an instruction of the step's routine, or, NULL, the
 * step's own. */
static const wefti_transfer *transfer_of(const wefti_binding *b, const wefti_step *step,
                                         const wefti_instruction *x) {
    return wefti_partition_transfer(b->program->partition, x ? x->transfer : (int32_t)step->bytes);
}

static weft_status post(wefti_binding *b, int64_t index, const void *source, void *destination) {
    WEFT_TRY(wefti_comm_post(b->endpoints[index], source, destination));
    b->posted[index]++;
    return WEFT_OK;
}

static weft_status await(wefti_binding *b, int64_t index) {
    b->posted[index]--;
    return wefti_comm_wait(b->endpoints[index]);
}

/* Everything that is under way, to its end. */
static weft_status drain(wefti_binding *b) {
    for (int32_t i = 0; b && i < b->count; i++)
        while (b->posted[i]) WEFT_TRY(await(b, i));
    return WEFT_OK;
}

static weft_status name_transfer(weft_status status, const wefti_binding *b, const wefti_step *step,
                                 const wefti_instruction *x) {
    if (status >= 0) return status;
    const wefti_transfer *t = transfer_of(b, step, x);
    return wefti_prefix(status, "%s of %s", wefti_transfer_kind_text(t->kind),
                        wefti_transfer_what(step, x, t));
}

static void trace_transfer(const wefti_rank_device *d, const wefti_binding *b,
                           const wefti_step *step, const wefti_instruction *x, int64_t begin) {
    const wefti_transfer *t = transfer_of(b, step, x);
    wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_COMMUNICATION,
                      wefti_transfer_kind_text(t->kind), wefti_transfer_what(step, x, t), begin,
                      wefti_now_ns(), 0, (double)wefti_transfer_bytes(t));
}

/* The transfers that are joined, x[0, count): all are posted .. */
static weft_status post_joined(wefti_rank_device *d, wefti_binding *b, const wefti_step *step,
                               const wefti_instruction *x, int32_t count) {
    for (int32_t k = 0; k < count; k++)
        WEFT_TRY(name_transfer(
            post(b, x[k].transfer, source_of(d, step, &x[k]), destination_of(d, step, &x[k])), b,
            step, &x[k]));
    return WEFT_OK;
}

/* .. before the first is waited for. */
static weft_status await_joined(wefti_rank_device *d, wefti_binding *b, const wefti_step *step,
                                const wefti_instruction *x, int32_t count) {
    int64_t begin = d->trace ? wefti_now_ns() : 0;
    for (int32_t k = 0; k < count; k++) {
        WEFT_TRY(name_transfer(await(b, x[k].transfer), b, step, &x[k]));
        if (d->trace) trace_transfer(d, b, step, &x[k], begin);
    }
    return WEFT_OK;
}

/* Those from code[k] on. The one that ends a part which is not the last stays under way. */
static weft_status run_transfers(wefti_rank_device *d, wefti_binding *b, const wefti_step *step,
                                 int32_t k, int32_t *out_next) {
    const wefti_instruction *x = &step->routine->code[k];
    int32_t count = 1;
    while (x[count - 1].joined && k + count < step->to) count++;
    *out_next = k + count;
    WEFT_TRY(post_joined(d, b, step, x, count));
    if (*out_next == step->to && step->part + 1 < step->parts) count--;
    return await_joined(d, b, step, x, count);
}

/* What the part before left under way. */
static weft_status finish_part(wefti_rank_device *d, wefti_binding *b, const wefti_step *step) {
    if (step->part == 0) return WEFT_OK;
    return await_joined(d, b, step, &step->routine->code[step->from - 1], 1);
}

/* A transfer of the schedule's own, between stages: what it moves stays where it is until it is
 * waited for. */
static weft_status run_post(wefti_rank_device *d, wefti_binding *b, const wefti_step *step) {
    const wefti_transfer *t = wefti_partition_transfer(b->program->partition, (int32_t)step->bytes);
    int64_t size = (int64_t)weft_dtype_bytes(t->dtype);
    int64_t have = wefti_region_elems(&t->have[t->me], t->rank) * size;
    int64_t want = wefti_region_elems(&t->want[t->me], t->rank) * size;
    unsigned char *to = want ? d->memory + step->args[1] : NULL;
    if (to) wefti_rank_device_observe(d, to, want);
    return post(b, step->bytes, have ? d->memory + step->args[0] : NULL, to);
}

static weft_status run_wait(wefti_rank_device *d, wefti_binding *b, const wefti_step *step) {
    int64_t begin = d->trace ? wefti_now_ns() : 0;
    WEFT_TRY(await(b, step->bytes));
    if (d->trace) trace_transfer(d, b, step, NULL, begin);
    return WEFT_OK;
}

/* ---- steps ---- */

static weft_status run_instruction(wefti_rank_device *d, const wefti_step *step,
                                   const wefti_run *run, const wefti_instruction *x) {
    int64_t begin = d->trace ? wefti_now_ns() : 0;
    if (!x->node) {
        run_move(d, step, x);
    } else {
        weft_status status = run_kernel(d, step, run, x);
        if (status < 0)
            return wefti_prefix(status, "cell '%s', %s%s%s", step->name, x->node->op->name,
                                x->node->scope && *x->node->scope ? " in " : "",
                                x->node->scope ? x->node->scope : "");
    }
    if (d->trace)
        wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_KERNELS,
                          x->node  ? x->node->op->name
                          : x->add ? "add"
                                   : "copy",
                          x->node ? x->kernel->label : "move", begin, wefti_now_ns(), x->cost.flops,
                          x->cost.bytes);
    return WEFT_OK;
}

/* A section that others go on with goes on too, and fails at its end. */
static weft_status found(wefti_rank_device *d, const wefti_binding *b, const wefti_step *step,
                         weft_status status, const wefti_exec_options *options) {
    if (status != WEFT_E_NUMERIC || !options->orderly) return status;
    d->finding = wefti_strdup(weft_error_message());
    WEFT_REQUIRE(d->finding, WEFT_E_NOMEM, "no memory for a message");
    d->finding_order = (int64_t)step->phase << 56 | d->step; /* a stage's after those before it */
    if (b) d->finding_order |= (int64_t)b->program->mesh.first << 32;
    return WEFT_OK;
}

static weft_status run_call(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                            const wefti_step *step, const wefti_exec_options *options) {
    static const char *const phases[] = {"forward", "backward", "update", "other"};
    const wefti_routine *r = step->routine;
    wefti_run run = {d->pool, options->random};
    run.random.call_stream = step->stream;
    run.random.samples = p->samples;
    if (options->rows) run.random.row_offset = options->rows[step->micro];
    int64_t start = d->trace ? wefti_now_ns() : 0;
    weft_status status = finish_part(d, b, step);
    for (int32_t k = step->from; k < step->to && status >= 0;) {
        const wefti_instruction *x = &r->code[k];
        if (x->transfer >= 0) {
            status = run_transfers(d, b, step, k, &k);
            continue;
        }
        k++;
        WEFT_TRY(run_instruction(d, step, &run, x));
        if (options->check_finite && !d->finding)
            WEFT_TRY(found(d, b, step, check_finite(d, step, x), options));
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

/* The loss is known. One that is not finite ends the section, at once or when it is over. */
static weft_status run_loss(wefti_rank_device *d, const wefti_program *p, const wefti_step *step,
                            const wefti_exec_options *options) {
    double loss = wefti_load(p->loss_dtype, d->memory + step->args[0], 0);
    d->loss += loss;
    d->losses++;
    if (isfinite(loss)) return WEFT_OK;
    if (options->to_the_end) {
        if (isfinite(d->bad_loss)) d->bad_loss = loss;
        return WEFT_OK;
    }
    if (options->orderly) WEFT_TRY(drain(binding_of(d, p)));
    WEFT_FAIL(WEFT_E_NUMERIC, "the loss is %g", wefti_printed(loss));
}

static weft_status run_step(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                            const wefti_step *step, const wefti_exec_options *options) {
    switch (step->kind) {
    case WEFTI_STEP_CALL:
        if (step->tensor >= 0 && options->before_update)
            options->before_update(options->before_update_context, d->rank, step->tensor);
        return run_call(d, p, b, step, options);
    case WEFTI_STEP_COPY:
        memmove(d->memory + step->args[0], d->memory + step->args[1], (size_t)step->bytes);
        return WEFT_OK;
    case WEFTI_STEP_LOSS:
        return run_loss(d, p, step, options);
    case WEFTI_STEP_POST:
        return name_transfer(run_post(d, b, step), b, step, NULL);
    case WEFTI_STEP_WAIT:
        return name_transfer(run_wait(d, b, step), b, step, NULL);
    }
    return WEFT_OK;
}

weft_status wefti_rank_device_run(wefti_rank_device *d, const wefti_program *p,
                                  wefti_section section, const wefti_exec_options *options) {
    WEFT_REQUIRE(p->peak_bytes <= d->bytes, WEFT_E_BUG,
                 "the arena has %lld bytes, the program needs %lld", (long long)d->bytes,
                 (long long)p->peak_bytes);
    wefti_binding *b = binding_of(d, p);
    if (b) memset(b->posted, 0, (size_t)b->count); /* what a failed section left is gone */
    d->used = true;
    d->bad_loss = 0;
    wefti_free(d->finding);
    d->finding = NULL;
    if (section == WEFTI_SECTION_FIRST || section == WEFTI_SECTION_NEXT) {
        d->loss = 0;
        d->losses = 0;
    }
    weft_status status = WEFT_OK;
    for (d->step = 0; d->step < p->step_count[section] && status >= 0; d->step++)
        status = run_step(d, p, b, &p->steps[section][d->step], options);
    if (status >= 0 && !isfinite(d->bad_loss))
        status = WEFT_RAISE(WEFT_E_NUMERIC, "the loss is %g", wefti_printed(d->bad_loss));
    if (d->finding && (status >= 0 || status == WEFT_E_NUMERIC))
        status = WEFT_RAISE(WEFT_E_NUMERIC, "%s", d->finding);
    return status < 0 ? wefti_note(status, __func__, __FILE__, __LINE__) : WEFT_OK;
}
