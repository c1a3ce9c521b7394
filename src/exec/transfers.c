/* The transfers of a program: their endpoints, their posts and the waits for them. */
#include "base/clock.h"
#include "base/memory.h"
#include "exec/rank_device.h"
#include "program/print.h"

/* The operand and the result of a transfer; NULL if this rank has no source, or wants no result. */
static const void *source_of(const wefti_rank_device *d, const wefti_step *step,
                             const wefti_instruction *x) {
    const weft_desc *desc = x->node->inputs ? wefti_in(x->node, 0) : NULL;
    if (!desc || !weft_desc_bytes(desc)) return NULL;
    return wefti_rank_device_at(d, wefti_operand_location(d, step, x->in[0]));
}
static void *destination_of(wefti_rank_device *d, const wefti_step *step,
                            const wefti_instruction *x) {
    int64_t bytes = x->node->outputs ? weft_desc_bytes(wefti_out(x->node, 0)) : 0;
    if (!bytes) return NULL;
    const wefti_location to = wefti_operand_location(d, step, x->out[0]);
    wefti_rank_device_observe(d, to, bytes);
    return wefti_rank_device_at(d, to);
}

/* The transfer of an instruction of the step's routine; x NULL: the step's own transfer. */
static const wefti_transfer *transfer_of(const wefti_binding *b, const wefti_step *step,
                                         const wefti_instruction *x) {
    return wefti_partition_transfer(b->program->partition,
                                    x ? x->transfer : wefti_step_transfer_of(b->program, step));
}

/* Lists the memory that a post may touch until its wait. */
static void list_ranges(const wefti_transfer *t, const void *source, const void *destination,
                        wefti_byte_range out[2]) {
    int64_t size = (int64_t)weft_dtype_bytes(t->dtype);
    out[0] = (wefti_byte_range){source, wefti_region_elems(&t->have[t->me], t->rank) * size};
    out[1] = (wefti_byte_range){destination, wefti_region_elems(&t->want[t->me], t->rank) * size};
}

/* A posted transfer begins behind the work that the kernels' stream has now. The communicator
 * touches the memory, which lies in `space`, at once. So that work must be done. */
static weft_status post(wefti_rank_device *d, wefti_binding *b, int64_t index, wefti_space space,
                        const void *source, void *destination) {
    wefti_exposure *exposure = b->exposures ? &b->exposures[index] : NULL;
    const bool measures = wefti_profile_is_of(d->profile, b->program);
    wefti_profile_moment begin = {0};
    if (measures) begin = wefti_profile_now(d->profile);
    WEFT_TRY(wefti_stream_follow(d->transfers, d->stream, d->computed));
    WEFT_TRY(wefti_stream_finish(d->transfers));
    if (exposure && exposure->posts < WEFTI_COMM_DEPTH) {
        wefti_byte_range *ranges = exposure->ranges[exposure->posts];
        list_ranges(wefti_partition_transfer(b->program->partition, (int32_t)index), source,
                    destination, ranges);
        WEFT_TRY(wefti_stream_expose(d->transfers, space, ranges, 2));
        exposure->posts++;
    }
    int64_t now = d->trace || measures ? wefti_now_ns() : 0;
    WEFT_TRY(wefti_comm_post(b->endpoints[index], source, destination));
    b->posted_ns[index][b->posted[index]++] = now;
    if (measures) wefti_profile_add_transfer(d->profile, (int32_t)index, begin, 0);
    return WEFT_OK;
}

/* The oldest post is complete on all members. */
static void conceal_oldest(wefti_rank_device *d, wefti_exposure *exposure) {
    wefti_stream_conceal(d->transfers, exposure->ranges[0], 2);
    exposure->posts--;
    for (int i = 0; i < exposure->posts; i++)
        memcpy(exposure->ranges[i], exposure->ranges[i + 1], sizeof exposure->ranges[i]);
}

/* Waits for the oldest post. *out_posted: when it was posted. */
static weft_status await(wefti_rank_device *d, wefti_binding *b, int64_t index,
                         int64_t *out_posted) {
    int64_t *posted = b->posted_ns[index];
    const bool measures = wefti_profile_is_of(d->profile, b->program);
    wefti_profile_moment begin = {0};
    if (measures) begin = wefti_profile_now(d->profile);
    *out_posted = posted[0];
    WEFT_TRY(wefti_check_halted(d));
    b->posted[index]--;
    for (int i = 0; i < b->posted[index]; i++) posted[i] = posted[i + 1];
    const int64_t waits = wefti_now_ns();
    WEFT_TRY(wefti_comm_wait(b->endpoints[index]));
    d->waited_ns += wefti_now_ns() - waits;
    if (b->exposures) conceal_oldest(d, &b->exposures[index]);
    if (measures) wefti_profile_add_transfer(d->profile, (int32_t)index, begin, *out_posted);
    return wefti_stream_follow(d->stream, d->transfers, d->transferred);
}

weft_status wefti_drain(wefti_rank_device *d, wefti_binding *b) {
    int64_t posted;
    for (int32_t i = 0; b && i < b->count; i++)
        while (b->posted[i]) WEFT_TRY(await(d, b, i, &posted));
    return WEFT_OK;
}

void wefti_forget_posts(wefti_rank_device *d, wefti_binding *b) {
    memset(b->posted, 0, (size_t)b->count);
    for (int32_t i = 0; i < b->count && b->exposures; i++)
        while (b->exposures[i].posts) conceal_oldest(d, &b->exposures[i]);
}

static weft_status name_transfer(weft_status status, const wefti_binding *b, const wefti_step *step,
                                 const wefti_instruction *x) {
    if (status >= 0) return status;
    const wefti_transfer *t = transfer_of(b, step, x);
    return wefti_prefix(status, "%s of %s", wefti_transfer_kind_text(t->kind),
                        wefti_transfer_what(step, x, t));
}

/* From the post to the end of the wait: what ran in between overlaps with it. */
static void trace_transfer(const wefti_rank_device *d, const wefti_binding *b,
                           const wefti_step *step, const wefti_instruction *x, int64_t posted) {
    const wefti_transfer *t = transfer_of(b, step, x);
    wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_COMMUNICATION,
                      wefti_transfer_kind_text(t->kind), wefti_transfer_what(step, x, t), posted,
                      wefti_now_ns(), 0, (double)wefti_transfer_bytes(t));
}

/* Posts the joined transfers x[0, count). */
static weft_status post_joined(wefti_rank_device *d, wefti_binding *b, const wefti_step *step,
                               const wefti_instruction *x, int32_t count) {
    for (int32_t k = 0; k < count; k++)
        WEFT_TRY(name_transfer(post(d, b, x[k].transfer, step->space, source_of(d, step, &x[k]),
                                    destination_of(d, step, &x[k])),
                               b, step, &x[k]));
    return WEFT_OK;
}

/* Waits for the joined transfers, after all of them are posted. */
static weft_status await_joined(wefti_rank_device *d, wefti_binding *b, const wefti_step *step,
                                const wefti_instruction *x, int32_t count) {
    int64_t posted;
    for (int32_t k = 0; k < count; k++) {
        WEFT_TRY(name_transfer(await(d, b, x[k].transfer, &posted), b, step, &x[k]));
        if (d->trace) trace_transfer(d, b, step, &x[k], posted);
    }
    return WEFT_OK;
}

weft_status wefti_run_transfers(wefti_rank_device *d, wefti_binding *b, const wefti_step *step,
                                int32_t k, int32_t *out_next) {
    const wefti_instruction *x = &step->routine->code[k];
    int32_t count = 1;
    while (x[count - 1].joined && k + count < step->to) count++;
    *out_next = k + count;
    WEFT_TRY(post_joined(d, b, step, x, count));
    if (*out_next == step->to) count -= step->leaves;
    return await_joined(d, b, step, x, count);
}

weft_status wefti_finish_part(wefti_rank_device *d, wefti_binding *b, const wefti_step *step) {
    if (step->waits == 0) return WEFT_OK;
    return await_joined(d, b, step, &step->routine->code[step->from - step->waits], step->waits);
}

static weft_status begin_post(wefti_rank_device *d, wefti_binding *b, const wefti_step *step) {
    wefti_byte_range ranges[2];
    const wefti_location destination = wefti_argument_location(d, step, 1);
    list_ranges(transfer_of(b, step, NULL), NULL, NULL, ranges);
    const void *from = NULL;
    void *to = NULL;
    if (ranges[0].bytes) from = wefti_rank_device_at(d, wefti_argument_location(d, step, 0));
    if (ranges[1].bytes) to = wefti_rank_device_at(d, destination);
    if (to) wefti_rank_device_observe(d, destination, ranges[1].bytes);
    return post(d, b, wefti_step_transfer_of(b->program, step), step->space, from, to);
}

/* Posts a copy between spaces or waits for it, and measures. */
static weft_status run_copy(wefti_rank_device *d, const wefti_program *p, const wefti_step *step) {
    const bool posts = step->kind == WEFTI_STEP_POST;
    const wefti_program_move *move = wefti_step_copy(p, step);
    const bool measures = wefti_profile_is_of(d->profile, p);
    wefti_profile_moment begin = {0};
    if (measures) begin = wefti_profile_now(d->profile);
    WEFT_TRY(posts ? wefti_post_copy(d, move, step) : wefti_wait_copy(d, move, step));
    if (measures) wefti_profile_add_copy(d->profile, step->move, begin, !posts);
    return WEFT_OK;
}

weft_status wefti_run_post(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                           const wefti_step *step) {
    if (wefti_step_copy(p, step)) return run_copy(d, p, step);
    return name_transfer(begin_post(d, b, step), b, step, NULL);
}

weft_status wefti_run_wait(wefti_rank_device *d, const wefti_program *p, wefti_binding *b,
                           const wefti_step *step) {
    int64_t posted;
    if (wefti_step_copy(p, step)) return run_copy(d, p, step);
    WEFT_TRY(name_transfer(await(d, b, wefti_step_transfer_of(p, step), &posted), b, step, NULL));
    if (d->trace) trace_transfer(d, b, step, NULL, posted);
    return WEFT_OK;
}

/* ---- endpoints ---- */

static void unbind(wefti_binding *b) {
    for (int32_t i = 0; i < b->count && b->endpoints; i++) wefti_comm_unbind(b->endpoints[i]);
    wefti_free(b->endpoints);
    wefti_free(b->posted);
    wefti_free(b->posted_ns);
    wefti_free(b->exposures);
}

void wefti_unbind(wefti_rank_device *d, const wefti_program *program) {
    int64_t kept = 0;
    for (int64_t i = 0; i < d->binding_count; i++)
        if (program && d->bindings[i].program != program)
            d->bindings[kept++] = d->bindings[i];
        else
            unbind(&d->bindings[i]);
    d->binding_count = kept;
}

static weft_status bind_transfers(wefti_rank_device *d, wefti_binding *b) {
    bool exposes = wefti_stream_exposes(d->stream);
    b->endpoints = wefti_calloc((size_t)b->count, sizeof *b->endpoints);
    b->posted = wefti_calloc((size_t)b->count, sizeof *b->posted);
    b->posted_ns = wefti_calloc((size_t)b->count, sizeof *b->posted_ns);
    b->exposures = exposes ? wefti_calloc((size_t)b->count, sizeof *b->exposures) : NULL;
    WEFT_REQUIRE(b->endpoints && b->posted && b->posted_ns && (b->exposures || !exposes),
                 WEFT_E_NOMEM, "no memory to bind %d transfers", (int)b->count);
    for (int32_t i = 0; i < b->count; i++) {
        const wefti_transfer *t = wefti_partition_transfer(b->program->partition, i);
        weft_status status = d->comm->engine->bind(d->comm, t, &b->endpoints[i]);
        if (status < 0)
            return wefti_prefix(status, "%s of %s", wefti_transfer_kind_text(t->kind),
                                t->name ? t->name : "a value without a name");
    }
    return WEFT_OK;
}

weft_status wefti_rank_device_bind(wefti_rank_device *d, const wefti_program *program) {
    wefti_binding b = {.program = program};
    WEFT_TRY(wefti_bind_rows(d, program));
    WEFT_TRY(wefti_bind_caches(d, program));
    WEFT_TRY(wefti_bind_served(d, program));
    b.count = program->partition ? wefti_partition_transfers(program->partition) : 0;
    if (b.count == 0) return WEFT_OK;
    WEFT_REQUIRE(d->comm, WEFT_E_BUG, "the program communicates, the device is alone");
    WEFT_TRY(WEFT_GROW(d->bindings, d->binding_count, d->binding_cap));
    weft_status status = bind_transfers(d, &b);
    if (status < 0) {
        unbind(&b);
        return status;
    }
    d->bindings[d->binding_count++] = b;
    return WEFT_OK;
}
