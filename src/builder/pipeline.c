/* Pipelines: the transfers between stages, and the order of tasks.
 *
 * The calls of the root, in order, are divided into virtual stages (stages.c). The schedule
 * (schedule/schedule.h) gives each virtual stage to a stage of devices and orders its microbatches.
 * If a later stage reads a value, the value has a pipeline edge: it is sent after the call that
 * makes it and received before the first call that reads it. Its gradient travels the other way.
 * Sends do not block. At most two sends of one channel are in flight, and a value's memory lives
 * until its send has ended. Within a stage everything is built as without a pipeline.
 *
 * The transfers: stage_transfers.c. */
#include <string.h>

#include "schedule/schedule.h"
#include "builder/build.h"

/* ---- sending and receiving ---- */

/* Waits until at most `left` sends of an edge are in flight. */
static weft_status wait_sends(wefti_emitter *b, int64_t edge, int back, int32_t left) {
    const int32_t owner = wefti_flight_edge(edge, back);
    /* Without this, each send of gpipe would count all sends before it. */
    if (b->edges[edge].sent[back] <= left) return WEFT_OK;
    for (int32_t i; (i = wefti_flight_over(b, WEFTI_FLIGHT_SEND, owner, left)) >= 0;)
        WEFT_TRY(wefti_flight_wait(b, WEFTI_SECTION_FIRST, i));
    return WEFT_OK;
}

static weft_status send(wefti_emitter *b, int64_t edge, int back, int32_t buffer) {
    wefti_edge_traffic *t = &b->edges[edge];
    int32_t channels = b->dec->edges[edge].channels;
    const wefti_flight f = {.use = WEFTI_FLIGHT_SEND,
                            .owner = wefti_flight_edge(edge, back),
                            .source = {buffer, 0},
                            .destination = {-1, 0}};
    WEFT_TRY(wait_sends(b, edge, back, channels * WEFTI_EDGE_UNDER_WAY - 1));
    return wefti_flight_post(b, WEFTI_SECTION_FIRST, f,
                             t->transfer[back][t->sent[back]++ % channels]);
}

static weft_status receive(wefti_emitter *b, int64_t edge, int back, int32_t buffer) {
    wefti_edge_traffic *t = &b->edges[edge];
    int32_t channels = b->dec->edges[edge].channels;
    int32_t transfer = t->transfer[back][t->received[back]++ % channels];
    return wefti_flight_now(b, WEFTI_SECTION_FIRST, transfer, -1, buffer);
}

static weft_status new_buffer(wefti_emitter *b, const char *what, int32_t v, int32_t *out) {
    const weft_body *root = b->root;
    weft_desc here = wefti_sharding_desc(b->dec, &root->values[v].desc, &b->dec->sharding[v].use);
    return wefti_buffer_add(b, weft_desc_bytes(&here),
                            wefti_build_name(b, what, wefti_value_name(b->root, v)), out);
}

/* Receives the values of other stages that the call is the first to read, for one microbatch. */
static weft_status receive_values(wefti_emitter *b, int32_t k, int32_t micro) {
    for (int64_t i = 0; i < b->dec->edge_count; i++) {
        const wefti_edge *c = &b->dec->edges[i];
        if (c->to_stage != b->dec->stage || c->first_call != k) continue;
        int32_t *buffer = &b->micro[micro].value[c->value];
        if (*buffer < 0) WEFT_TRY(new_buffer(b, "received result of ", c->value, buffer));
        WEFT_TRY(receive(b, i, 0, *buffer));
    }
    return WEFT_OK;
}

static weft_status send_values(wefti_emitter *b, int32_t k, int32_t micro) {
    for (int64_t i = 0; i < b->dec->edge_count; i++) {
        const wefti_edge *c = &b->dec->edges[i];
        if (c->from_stage == b->dec->stage && c->from_call == k)
            WEFT_TRY(send(b, i, 0, b->micro[micro].value[c->value]));
    }
    return WEFT_OK;
}

/* Receives the gradients of the call's results from the stages that read them. */
static weft_status receive_gradients(wefti_emitter *b, int32_t k, int32_t micro) {
    for (int64_t i = 0; i < b->dec->edge_count; i++) {
        const wefti_edge *c = &b->dec->edges[i];
        int32_t v = c->value, buffer, routine, *own = &b->micro[micro].gradient[v];
        if (c->from_stage != b->dec->stage || c->from_call != k || c->last_call < 0) continue;
        WEFT_TRY(new_buffer(b, "received gradient of ", v, &buffer));
        WEFT_TRY(receive(b, i, 1, buffer));
        if (!b->micro[micro].started[v]) {
            *own = buffer;
            b->micro[micro].started[v] = true;
            continue;
        }
        wefti_draft_step *d;
        WEFT_TRY(wefti_build_reshard(b, 1, &b->root->values[v].desc, &b->dec->sharding[v].use,
                                     &b->dec->sharding[v].use, true, 0, &routine));
        WEFT_TRY(
            wefti_build_begin(b, WEFTI_SECTION_FIRST, WEFTI_STEP_CALL, WEFTI_BACKWARD,
                              wefti_build_name(b, "gradient of ", b->dec->calls[k].node->scope),
                              b->p->routines[routine]->args, &d));
        wefti_build_arg(b, d, 0, buffer, 0);
        wefti_build_arg(b, d, 1, *own, 0);
        WEFT_TRY(wefti_build_end(b, d, routine));
    }
    return WEFT_OK;
}

static weft_status send_gradients(wefti_emitter *b, int32_t k, int32_t micro) {
    for (int64_t i = 0; i < b->dec->edge_count; i++) {
        const wefti_edge *c = &b->dec->edges[i];
        if (c->to_stage == b->dec->stage && c->last_call == k)
            WEFT_TRY(send(b, i, 1, b->micro[micro].gradient[c->value]));
    }
    return WEFT_OK;
}

/* ---- tasks ---- */

/* Finds the next call of the same task, to gather its parameters ahead. */
static void find_next(wefti_emitter *b, int32_t chunk, int32_t k, bool backward) {
    b->next_call = -1;
    b->next_backward = backward;
    for (int32_t j = backward ? k - 1 : k + 1; j >= 0 && j < b->dec->call_count;
         j += backward ? -1 : 1) {
        const wefti_call_plan *call = &b->dec->calls[j];
        if (!call->mine || call->chunk != chunk || call->fused) continue;
        if (backward && !call->differentiated) continue;
        b->next_call = j;
        return;
    }
}

static weft_status forward_call(wefti_emitter *b, int32_t k, int32_t micro) {
    const weft_node *n = b->dec->calls[k].node;
    WEFT_TRY(receive_values(b, k, micro));
    WEFT_TRY(wefti_build_forward_call(b, WEFTI_SECTION_FIRST, k, micro));
    WEFT_TRY(wefti_build_states(b, WEFTI_SECTION_FIRST, micro, k));
    WEFT_TRY(send_values(b, k, micro));
    for (int o = 0; o < n->outputs; o++)
        if (n->out[o] == b->g->loss) WEFT_TRY(wefti_build_loss(b, WEFTI_SECTION_FIRST, micro));
    return WEFT_OK;
}

static weft_status backward_call(wefti_emitter *b, int32_t k, int32_t micro) {
    if (b->dec->calls[k].fused) {
        WEFT_TRY(receive_values(b, k, micro));
        WEFT_TRY(wefti_build_fused_call(b, WEFTI_SECTION_FIRST, k, micro));
        WEFT_TRY(wefti_build_states(b, WEFTI_SECTION_FIRST, micro, k));
        WEFT_TRY(wefti_build_loss(b, WEFTI_SECTION_FIRST, micro));
    } else {
        if (b->spec->plan->overlap) WEFT_TRY(wefti_saved_ahead(b, WEFTI_SECTION_FIRST, k, micro));
        WEFT_TRY(receive_gradients(b, k, micro));
        WEFT_TRY(
            wefti_build_backward_call(b, WEFTI_SECTION_FIRST, k, micro,
                                      b->dec->split_backward ? WEFTI_PASS_INPUTS : WEFTI_PASS_ALL));
    }
    return send_gradients(b, k, micro);
}

/* Builds the gradients of weights, for calls with a split backward pass. The loss cell computes all
 * gradients at once. */
static weft_status weight_call(wefti_emitter *b, int32_t k, int32_t micro) {
    b->next_call = -1;
    return wefti_build_backward_call(b, WEFTI_SECTION_FIRST, k, micro, WEFTI_PASS_WEIGHTS);
}

/* Whether the call is part of tasks of this kind. The fused forward-backward pass of the loss cell
 * is a backward task. */
static bool takes_part(const wefti_call_plan *call, wefti_stage_task_kind kind) {
    if (kind == WEFTI_TASK_FORWARD) return !call->fused;
    return call->differentiated && (kind == WEFTI_TASK_BACKWARD || !call->fused);
}

/* Builds the calls of a chunk for one microbatch, with its copies interleaved. */
static weft_status build_task(wefti_emitter *b, wefti_stage_task_kind kind, int32_t chunk,
                              int32_t micro) {
    bool forward = kind == WEFTI_TASK_FORWARD;
    int32_t copies = b->dec->micros > 1 ? b->spec->plan->copies : 1;
    b->last_part = -1; /* Do not swap parts across tasks: other stages may need what this task
                          sends before they can send the input of the next. */
    for (int32_t i = 0; i < b->dec->call_count; i++) {
        int32_t k = forward ? i : b->dec->call_count - 1 - i;
        if (!b->dec->calls[k].mine || b->dec->calls[k].chunk != chunk ||
            !takes_part(&b->dec->calls[k], kind))
            continue;
        for (int32_t m = micro * copies; m < (micro + 1) * copies; m++) {
            b->now_micro = m;
            WEFT_TRY(wefti_interleave_begin(b, WEFTI_SECTION_FIRST));
            find_next(b, chunk, k, !forward);
            WEFT_TRY(forward                       ? forward_call(b, k, m)
                     : kind == WEFTI_TASK_BACKWARD ? backward_call(b, k, m)
                                                   : weight_call(b, k, m));
        }
        WEFT_TRY(wefti_interleave_end(b, WEFTI_SECTION_FIRST));
        if (forward) continue;
        WEFT_TRY(wefti_reduce_completed(b, WEFTI_SECTION_FIRST, k));
        WEFT_TRY(wefti_gradients_leave(b, WEFTI_SECTION_FIRST, k));
    }
    return wefti_pass_stored(b, WEFTI_SECTION_FIRST);
}

static weft_status finish_sends(wefti_emitter *b) {
    for (int64_t i = 0; i < b->dec->edge_count; i++)
        for (int back = 0; back < 2; back++) WEFT_TRY(wait_sends(b, i, back, 0));
    return WEFT_OK;
}

/* Builds all microbatches of a step, in the schedule's order. */
weft_status wefti_pipeline_section(wefti_emitter *b) {
    const weft_plan *plan = b->spec->plan;
    wefti_schedule *schedule;
    weft_status status = WEFT_OK;
    if (b->spec->microbatches == 1 && !b->spec->optimizer) { /* forward only */
        for (int32_t chunk = 0; chunk < plan->pipeline.chunks; chunk++)
            WEFT_TRY(build_task(b, WEFTI_TASK_FORWARD, chunk, 0));
        return finish_sends(b);
    }
    WEFT_TRY(wefti_schedule_create(plan->pipeline.schedule, b->dec->stages,
                                   b->dec->micros / plan->copies, plan->pipeline.chunks,
                                   &schedule));
    const wefti_stage_task *task = wefti_schedule_of(schedule, b->dec->stage);
    wefti_reduce_begin(b, true);
    const wefti_loop_plan *loop = &b->dec->loop;
    int32_t first = schedule->tasks, count = 1;
    if (loop->period &&
        !wefti_schedule_repeats(schedule, b->dec->stage, loop->period / plan->copies, loop->from,
                                &first, &count))
        first = schedule->tasks;
    for (int32_t t = 0; t <= schedule->tasks && status == WEFT_OK; t++) {
        for (int i = 0; i < 3; i++)
            if (t == first + i * count) wefti_loop_mark_at(b, WEFTI_SECTION_FIRST, i);
        if (t < schedule->tasks) status = build_task(b, task[t].kind, task[t].chunk, task[t].micro);
    }
    wefti_free(schedule);
    WEFT_TRY(status);
    WEFT_TRY(wefti_reduce_wait(b, WEFTI_SECTION_FIRST, 0));
    WEFT_TRY(wefti_served_finish(b, WEFTI_SECTION_FIRST));
    WEFT_TRY(wefti_pass_stored(b, WEFTI_SECTION_FIRST));
    b->now_micro = 0;
    b->loop.tasks_end = b->step_count[WEFTI_SECTION_FIRST];
    return finish_sends(b);
}
