/* Pipelines: the transfers between stages, and the order of tasks.
 *
 * The calls of the root, in order, are divided into virtual stages (stages.c). The schedule
 * (schedule/schedule.h) gives each virtual stage to a stage of devices and orders its microbatches.
 * If a later stage reads a value, the value has a pipeline edge: it is sent after the call that
 * makes it and received before the first call that reads it. Its gradient travels the other way.
 * Sends do not block. At most two sends of one channel are in flight, and a value's memory lives
 * until its send has ended. Within a stage everything is built as without a pipeline.
 *
 * A parameter that several stages read (tied embeddings) lies on each of them. Its gradients are
 * summed over these stages, so that all make the same update. */
#include <string.h>

#include "schedule/schedule.h"
#include "builder/build.h"
#include "builder/tags.h"

/* ---- pipeline edges ---- */

typedef struct pipeline_edge {
    int32_t value, from_call, from_stage, to_stage;
    int32_t first_call; /* of the reading stage, in forward order; the fused forward-backward
                           call comes last */
    int32_t last_call;  /* of the reading stage, in backward order; -1: no gradient */
    /* Transfers in each direction, one per channel; posts use the channels in turn. Between
     * neighbours, one channel for each interleaved copy is enough. An edge that skips a stage is
     * sent long before it is read, so it needs channels for all microbatches. */
    int32_t channels, *transfer[2]; /* forward, backward: [channels] */
    int32_t posted[2], waited[2], received[2];
    int32_t *buffers[2]; /* per post of this rank as the sender: the sent buffer */
} pipeline_edge;

struct wefti_pipeline_edges {
    pipeline_edge *list;
    int32_t count;
};

enum { UNDER_WAY = 2 }; /* per channel */

/* Whether all microbatches may be in flight on an edge. Between neighbours, forward and backward
 * passes alternate, so one channel is enough. An edge that skips a stage is sent long before it is
 * read, and gpipe sends all values before it receives gradients. */
static bool all_under_way(const wefti_program_builder *b, int32_t maker, int32_t reader) {
    return b->calls[reader].part != b->calls[maker].part + 1 ||
           b->spec->plan->pipeline.schedule == WEFT_PIPELINE_GPIPE;
}

static weft_status add_edge(wefti_program_builder *b, int32_t v, int32_t maker, int32_t reader,
                            int64_t *capacity) {
    struct wefti_pipeline_edges *x = b->edges;
    int32_t to = b->calls[reader].stage, from = b->calls[maker].stage;
    int32_t most = (b->micros + UNDER_WAY - 1) / UNDER_WAY;
    bool back = b->calls[reader].differentiated && b->has_gradient[v];
    if (back) {
        const wefti_cell_grad *grad = &b->p->grads[b->calls[reader].grad];
        bool wanted = false;
        for (int i = 0; i < b->calls[reader].node->inputs; i++)
            wanted |= b->calls[reader].node->in[i] == v && grad->gradient_out[i] >= 0;
        back = wanted;
    }
    for (int32_t i = 0; i < x->count; i++)
        if (x->list[i].value == v && x->list[i].to_stage == to) {
            if (all_under_way(b, maker, reader)) x->list[i].channels = most;
            if (back && x->list[i].last_call < 0) x->list[i].last_call = reader;
            if (b->calls[x->list[i].first_call].fused) x->list[i].first_call = reader;
            return WEFT_OK;
        }
    int64_t count = x->count;
    WEFT_TRY(WEFT_GROW(x->list, count, *capacity));
    pipeline_edge *c = &x->list[x->count++];
    *c = (pipeline_edge){.value = v,
                         .from_call = maker,
                         .from_stage = from,
                         .to_stage = to,
                         .first_call = reader,
                         .last_call = back ? reader : -1,
                         .channels = b->micros > 1 ? b->spec->plan->copies : 1};
    if (all_under_way(b, maker, reader)) c->channels = most;
    for (int d = 0; d < 2; d++) WEFT_TRY(wefti_build_indices(b, b->micros, &c->buffers[d]));
    return WEFT_OK;
}

static const char *value_name(const wefti_program_builder *b, int32_t v) {
    const wefti_value_info *info = &b->root->values[v];
    return info->node >= 0 ? b->root->nodes[info->node].scope : info->name;
}

/* The layouts of values on the mesh of a stage. */
static weft_status sharding_of(wefti_program_builder *b, int32_t stage, const wefti_mesh *mesh,
                               const wefti_sharding **out) {
    *out = b->sharding;
    return wefti_meshes_alike(mesh, &b->p->mesh) ? WEFT_OK
                                                 : wefti_build_remote_sharding(b, stage, out);
}

typedef struct stage_side {
    wefti_mesh mesh;
    const wefti_sharding *sharding;
} stage_side;

static weft_status side_of(wefti_program_builder *b, int32_t stage, stage_side *out) {
    out->mesh = wefti_plan_mesh(b->spec->plan, stage);
    return sharding_of(b, stage, &out->mesh, &out->sharding);
}

/* Sets the regions of all devices of a stage, as members from number `first` on. */
static void add_side(const stage_side *side, int32_t v, const weft_desc *whole, int32_t first,
                     int32_t *ranks, wefti_region *boxes) {
    for (int32_t i = 0; i < wefti_mesh_size(&side->mesh); i++) {
        ranks[first + i] = side->mesh.first + i;
        wefti_layout_region(&side->sharding[v].use, &side->mesh, whole, ranks[first + i],
                            &boxes[first + i]);
        if (whole->rank == 0) boxes[first + i].size[0] = 1; /* see below */
    }
}

/* A transfer between the two devices with equal coordinates of stages with equal meshes. */
static weft_status pair_boxes(wefti_program_builder *b, int32_t v, const stage_side *sender,
                              const stage_side *receiver, wefti_transfer *t) {
    int32_t place = b->p->rank - b->p->mesh.first;
    int32_t from = sender->mesh.first + place, to = receiver->mesh.first + place;
    const weft_desc *whole = &b->root->values[v].desc;
    wefti_region box;
    t->members = 2;
    WEFT_TRY(wefti_build_array(b, 2, sizeof *t->ranks, &t->ranks));
    WEFT_TRY(wefti_build_array(b, 4, sizeof *t->have, &t->have));
    t->want = t->have + 2;
    t->ranks[0] = from < to ? from : to;
    t->ranks[1] = from < to ? to : from;
    wefti_layout_region(&b->sharding[v].use, &b->p->mesh, whole, b->p->rank, &box);
    if (whole->rank == 0)
        box.size[0] = 1; /* a scalar gets one dimension, so that an empty
                            region can be told from a full one */
    t->have[t->ranks[0] == from ? 0 : 1] = box;
    t->want[t->ranks[0] == to ? 0 : 1] = box;
    return WEFT_OK;
}

/* A transfer between all devices of two stages with unlike meshes. Each sender has its region of
 * the one layout; each receiver wants its region of the other. */
static weft_status stage_boxes(wefti_program_builder *b, int32_t v, const stage_side *sender,
                               const stage_side *receiver, wefti_transfer *t) {
    bool sender_first = sender->mesh.first < receiver->mesh.first;
    int32_t senders = wefti_mesh_size(&sender->mesh), receivers = wefti_mesh_size(&receiver->mesh);
    const weft_desc *whole = &b->root->values[v].desc;
    t->members = senders + receivers;
    WEFT_TRY(wefti_build_array(b, t->members, sizeof *t->ranks, &t->ranks));
    WEFT_TRY(wefti_build_array(b, t->members, sizeof *t->have, &t->have));
    WEFT_TRY(wefti_build_array(b, t->members, sizeof *t->want, &t->want));
    add_side(sender, v, whole, sender_first ? 0 : receivers, t->ranks, t->have);
    add_side(receiver, v, whole, sender_first ? senders : 0, t->ranks, t->want);
    return WEFT_OK;
}

static weft_status stage_transfer(wefti_program_builder *b, int32_t v, int32_t sender_stage,
                                  int32_t receiver_stage, uint64_t number, bool back,
                                  int32_t *out) {
    const weft_desc *whole = &b->root->values[v].desc;
    stage_side sender, receiver;
    WEFT_TRY(side_of(b, sender_stage, &sender));
    WEFT_TRY(side_of(b, receiver_stage, &receiver));
    wefti_transfer *kept,
        t = {.kind = WEFTI_TRANSFER_SEND,
             .dtype = whole->dtype,
             .rank = whole->rank > 0 ? whole->rank : 1,
             .tag = wefti_tag(WEFTI_TAG_EDGE, number),
             .name = wefti_build_name(b, back ? "gradient of " : "", value_name(b, v))};
    WEFT_TRY(wefti_meshes_alike(&sender.mesh, &receiver.mesh)
                 ? pair_boxes(b, v, &sender, &receiver, &t)
                 : stage_boxes(b, v, &sender, &receiver, &t));
    while (t.ranks[t.me] != b->p->rank) t.me++;
    WEFT_TRY(wefti_transfer_clone(&t, &kept));
    return wefti_partition_add(b->part, kept, out);
}

weft_status wefti_pipeline_cross(wefti_program_builder *b) {
    int64_t capacity = 0;
    if (b->stages <= 1) return WEFT_OK;
    b->edges = wefti_calloc(1, sizeof *b->edges);
    WEFT_REQUIRE(b->edges, WEFT_E_NOMEM, "no memory to build a pipeline");
    int32_t *maker;
    WEFT_TRY(wefti_build_indices(b, b->root->value_count, &maker));
    for (int32_t k = 0; k < b->call_count; k++) {
        const weft_node *n = b->calls[k].node;
        for (int o = 0; o < n->outputs; o++) maker[n->out[o]] = k;
        for (int i = 0; i < n->inputs; i++) {
            int32_t v = n->in[i];
            if (v < 0 || maker[v] < 0 || b->calls[maker[v]].stage == b->calls[k].stage) continue;
            WEFT_TRY(add_edge(b, v, maker[v], k, &capacity));
        }
    }
    for (int32_t i = 0; i < b->edges->count; i++) {
        pipeline_edge *c = &b->edges->list[i];
        if (c->from_stage != b->stage && c->to_stage != b->stage) continue;
        for (int d = 0; d < 2; d++) WEFT_TRY(wefti_build_indices(b, c->channels, &c->transfer[d]));
        for (int32_t channel = 0; channel < c->channels; channel++) {
            WEFT_TRY(stage_transfer(b, c->value, c->from_stage, c->to_stage,
                                    wefti_edge_number(c->value, c->to_stage, channel, false), false,
                                    &c->transfer[0][channel]));
            if (c->last_call >= 0)
                WEFT_TRY(stage_transfer(b, c->value, c->to_stage, c->from_stage,
                                        wefti_edge_number(c->value, c->to_stage, channel, true),
                                        true, &c->transfer[1][channel]));
        }
    }
    return WEFT_OK;
}

void wefti_pipeline_destroy(wefti_program_builder *b) {
    if (b->edges) wefti_free(b->edges->list);
    wefti_free(b->edges);
}

/* ---- sending and receiving ---- */

static weft_status wait_sends(wefti_program_builder *b, pipeline_edge *c, int back,
                              int32_t under_way) {
    while (c->posted[back] - c->waited[back] > under_way) {
        int32_t number = c->waited[back]++, channel = number % c->channels;
        WEFT_TRY(wefti_build_transfer(b, WEFTI_SECTION_FIRST, WEFTI_STEP_WAIT, NULL,
                                      c->transfer[back][channel], c->buffers[back][number], -1));
    }
    return WEFT_OK;
}

static weft_status send(wefti_program_builder *b, pipeline_edge *c, int back, int32_t buffer) {
    WEFT_TRY(wait_sends(b, c, back, c->channels * UNDER_WAY - 1));
    int32_t number = c->posted[back]++;
    c->buffers[back][number] = buffer;
    return wefti_build_transfer(b, WEFTI_SECTION_FIRST, WEFTI_STEP_POST, NULL,
                                c->transfer[back][number % c->channels], buffer, -1);
}

static weft_status receive(wefti_program_builder *b, pipeline_edge *c, int back, int32_t buffer) {
    int32_t transfer = c->transfer[back][c->received[back]++ % c->channels];
    WEFT_TRY(
        wefti_build_transfer(b, WEFTI_SECTION_FIRST, WEFTI_STEP_POST, NULL, transfer, -1, buffer));
    return wefti_build_transfer(b, WEFTI_SECTION_FIRST, WEFTI_STEP_WAIT, NULL, transfer, -1,
                                buffer);
}

static weft_status new_buffer(wefti_program_builder *b, const char *what, int32_t v, int32_t *out) {
    const weft_body *root = b->root;
    weft_desc here = wefti_sharding_desc(b, &root->values[v].desc, &b->sharding[v].use);
    return wefti_buffer_add(b, weft_desc_bytes(&here), wefti_build_name(b, what, value_name(b, v)),
                            out);
}

/* Receives the values of other stages that the call is the first to read, for one microbatch. */
static weft_status receive_values(wefti_program_builder *b, int32_t k, int32_t micro) {
    for (int32_t i = 0; i < b->edges->count; i++) {
        pipeline_edge *c = &b->edges->list[i];
        if (c->to_stage != b->stage || c->first_call != k) continue;
        int32_t *buffer = &b->micro[micro].value[c->value];
        if (*buffer < 0) WEFT_TRY(new_buffer(b, "received result of ", c->value, buffer));
        WEFT_TRY(receive(b, c, 0, *buffer));
    }
    return WEFT_OK;
}

static weft_status send_values(wefti_program_builder *b, int32_t k, int32_t micro) {
    for (int32_t i = 0; i < b->edges->count; i++) {
        pipeline_edge *c = &b->edges->list[i];
        if (c->from_stage == b->stage && c->from_call == k)
            WEFT_TRY(send(b, c, 0, b->micro[micro].value[c->value]));
    }
    return WEFT_OK;
}

/* Receives the gradients of the call's results from the stages that read them. */
static weft_status receive_gradients(wefti_program_builder *b, int32_t k, int32_t micro) {
    for (int32_t i = 0; i < b->edges->count; i++) {
        pipeline_edge *c = &b->edges->list[i];
        int32_t v = c->value, buffer, routine, *own = &b->micro[micro].gradient[v];
        if (c->from_stage != b->stage || c->from_call != k || c->last_call < 0) continue;
        WEFT_TRY(new_buffer(b, "received gradient of ", v, &buffer));
        WEFT_TRY(receive(b, c, 1, buffer));
        if (!b->micro[micro].started[v]) {
            *own = buffer;
            b->micro[micro].started[v] = true;
            continue;
        }
        wefti_draft_step *d;
        WEFT_TRY(wefti_sharding_reshard(b, 1, &b->root->values[v].desc, &b->sharding[v].use,
                                        &b->sharding[v].use, true, &routine));
        WEFT_TRY(wefti_build_begin(b, WEFTI_SECTION_FIRST, WEFTI_STEP_CALL, WEFTI_BACKWARD,
                                   wefti_build_name(b, "gradient of ", b->calls[k].node->scope),
                                   b->p->routines[routine]->args, &d));
        wefti_build_arg(b, d, 0, buffer, 0);
        wefti_build_arg(b, d, 1, *own, 0);
        WEFT_TRY(wefti_build_end(b, d, routine));
    }
    return WEFT_OK;
}

static weft_status send_gradients(wefti_program_builder *b, int32_t k, int32_t micro) {
    for (int32_t i = 0; i < b->edges->count; i++) {
        pipeline_edge *c = &b->edges->list[i];
        if (c->to_stage == b->stage && c->last_call == k)
            WEFT_TRY(send(b, c, 1, b->micro[micro].gradient[c->value]));
    }
    return WEFT_OK;
}

/* ---- tasks ---- */

/* Finds the next call of the same task, to gather its parameters ahead. */
static void find_next(wefti_program_builder *b, int32_t chunk, int32_t k, bool backward) {
    b->next_call = -1;
    b->next_backward = backward;
    for (int32_t j = backward ? k - 1 : k + 1; j >= 0 && j < b->call_count;
         j += backward ? -1 : 1) {
        const wefti_call_plan *call = &b->calls[j];
        if (!call->mine || call->chunk != chunk || call->fused) continue;
        if (backward && !call->differentiated) continue;
        b->next_call = j;
        return;
    }
}

static weft_status forward_call(wefti_program_builder *b, int32_t k, int32_t micro) {
    const weft_node *n = b->calls[k].node;
    WEFT_TRY(receive_values(b, k, micro));
    WEFT_TRY(wefti_build_forward_call(b, WEFTI_SECTION_FIRST, k, micro));
    WEFT_TRY(wefti_build_states(b, WEFTI_SECTION_FIRST, micro, k));
    WEFT_TRY(send_values(b, k, micro));
    for (int o = 0; o < n->outputs; o++)
        if (n->out[o] == b->g->loss) WEFT_TRY(wefti_build_loss(b, WEFTI_SECTION_FIRST, micro));
    return WEFT_OK;
}

static weft_status backward_call(wefti_program_builder *b, int32_t k, int32_t micro) {
    if (b->calls[k].fused) {
        WEFT_TRY(receive_values(b, k, micro));
        WEFT_TRY(wefti_build_fused_call(b, WEFTI_SECTION_FIRST, k, micro));
        WEFT_TRY(wefti_build_states(b, WEFTI_SECTION_FIRST, micro, k));
        WEFT_TRY(wefti_build_loss(b, WEFTI_SECTION_FIRST, micro));
    } else {
        WEFT_TRY(receive_gradients(b, k, micro));
        WEFT_TRY(wefti_build_backward_call(b, WEFTI_SECTION_FIRST, k, micro,
                                           b->split_backward ? WEFTI_PASS_INPUTS : WEFTI_PASS_ALL));
    }
    return send_gradients(b, k, micro);
}

/* Builds the gradients of weights, for calls with a split backward pass. The loss cell computes all
 * gradients at once. */
static weft_status weight_call(wefti_program_builder *b, int32_t k, int32_t micro) {
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
static weft_status build_task(wefti_program_builder *b, wefti_stage_task_kind kind, int32_t chunk,
                              int32_t micro) {
    bool forward = kind == WEFTI_TASK_FORWARD;
    int32_t copies = b->micros > 1 ? b->spec->plan->copies : 1;
    b->last_part = -1; /* Do not swap parts across tasks: other stages may need what this task
                          sends before they can send the input of the next. */
    for (int32_t i = 0; i < b->call_count; i++) {
        int32_t k = forward ? i : b->call_count - 1 - i;
        if (!b->calls[k].mine || b->calls[k].chunk != chunk || !takes_part(&b->calls[k], kind))
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
    }
    return WEFT_OK;
}

static weft_status finish_sends(wefti_program_builder *b) {
    for (int32_t i = 0; i < b->edges->count; i++)
        for (int back = 0; back < 2; back++) WEFT_TRY(wait_sends(b, &b->edges->list[i], back, 0));
    return WEFT_OK;
}

/* Builds all microbatches of a step, in the schedule's order. */
weft_status wefti_pipeline_section(wefti_program_builder *b) {
    const weft_plan *plan = b->spec->plan;
    wefti_schedule *schedule;
    weft_status status = WEFT_OK;
    if (b->spec->microbatches == 1 && !b->spec->optimizer) { /* forward only */
        for (int32_t chunk = 0; chunk < plan->pipeline.chunks; chunk++)
            WEFT_TRY(build_task(b, WEFTI_TASK_FORWARD, chunk, 0));
        return finish_sends(b);
    }
    WEFT_TRY(wefti_schedule_create(plan->pipeline.schedule, b->stages, b->micros / plan->copies,
                                   plan->pipeline.chunks, &schedule));
    const wefti_stage_task *task = wefti_schedule_of(schedule, b->stage);
    for (int32_t t = 0; t < schedule->tasks && status == WEFT_OK; t++)
        status = build_task(b, task[t].kind, task[t].chunk, task[t].micro);
    b->now_micro = 0;
    wefti_free(schedule);
    WEFT_TRY(status);
    return finish_sends(b);
}

/* ---- parameters of several stages ---- */

/* The stages that read a parameter, and the stages that compute a gradient of it. A stage may read
 * it without a gradient, for example to test whether it is positive. */
typedef struct users {
    bool *reads, *gives; /* [stages] */
    bool all;            /* all stages that read it compute a gradient */
} users;

static weft_status find_users(wefti_program_builder *b, int32_t value, users *out) {
    WEFT_TRY(wefti_build_array(b, b->stages, sizeof *out->reads, &out->reads));
    WEFT_TRY(wefti_build_array(b, b->stages, sizeof *out->gives, &out->gives));
    for (int32_t k = 0; k < b->call_count; k++) {
        const wefti_call_plan *call = &b->calls[k];
        for (int i = 0; i < call->node->inputs; i++) {
            if (call->node->in[i] != value) continue;
            out->reads[call->stage] = true;
            if (call->differentiated && b->p->grads[call->grad].gradient_out[i] >= 0)
                out->gives[call->stage] = true;
        }
    }
    out->all = true;
    for (int32_t s = 0; s < b->stages; s++) out->all &= out->gives[s] || !out->reads[s];
    return WEFT_OK;
}

/* Sets the regions of a tied gradient: each stage with a gradient contributes every element once,
 * and all devices of the reading stages receive it. If the meshes are equal, only devices of equal
 * coordinates exchange. */
static weft_status tie_boxes(wefti_program_builder *b, int32_t value, const users *users,
                             wefti_transfer *t) {
    const weft_plan *plan = b->spec->plan;
    const weft_desc *whole = &b->root->values[value].desc;
    int32_t most = 0, place = b->p->rank - b->p->mesh.first;
    bool same = true;
    for (int32_t s = 0; s < b->stages; s++) {
        wefti_mesh mesh = wefti_plan_mesh(plan, s);
        most += wefti_mesh_size(&mesh);
        if (users->reads[s]) same = same && wefti_meshes_alike(&mesh, &b->p->mesh);
    }
    WEFT_TRY(wefti_build_array(b, most, sizeof *t->ranks, &t->ranks));
    WEFT_TRY(wefti_build_array(b, most, sizeof *t->have, &t->have));
    WEFT_TRY(wefti_build_array(b, most, sizeof *t->want, &t->want));
    t->kind = same && users->all ? WEFTI_TRANSFER_ALL_REDUCE : WEFTI_TRANSFER_SEND;
    for (int32_t s = 0; s < b->stages; s++) {
        stage_side side;
        if (!users->reads[s]) continue;
        WEFT_TRY(side_of(b, s, &side));
        const wefti_layout *layout = &side.sharding[value].state;
        for (int32_t i = same ? place : 0; i < wefti_mesh_size(&side.mesh); i++) {
            int32_t m = t->members++, rank = t->ranks[m] = side.mesh.first + i;
            wefti_layout_region(layout, &side.mesh, whole, rank, &t->want[m]);
            if (whole->rank == 0) t->want[m].size[0] = 1; /* as above */
            if (users->gives[s] && (same || wefti_layout_counts(layout, &side.mesh, rank)))
                t->have[m] = t->want[m];
            if (rank == b->p->rank) t->me = m;
            if (same) break;
        }
    }
    return WEFT_OK;
}

bool wefti_pipeline_tied(const wefti_program_builder *b, int32_t value, int32_t *out_first) {
    int32_t stage = -1;
    bool tied = false;
    *out_first = b->stages;
    for (int32_t k = 0; k < b->call_count && b->stages > 1; k++)
        for (int i = 0; i < b->calls[k].node->inputs; i++) {
            if (b->calls[k].node->in[i] != value) continue;
            tied = tied || (stage >= 0 && stage != b->calls[k].stage);
            stage = b->calls[k].stage;
            if (stage < *out_first) *out_first = stage;
        }
    return tied;
}

weft_status wefti_pipeline_tie(wefti_program_builder *b, wefti_section s, int32_t value,
                               int32_t *gradient) {
    users users;
    WEFT_TRY(find_users(b, value, &users));
    weft_desc whole = b->root->values[value].desc;
    weft_desc here = wefti_sharding_desc(b, &whole, &b->sharding[value].state);
    wefti_transfer *kept, t = {.reduction = WEFTI_REDUCE_SUM,
                               .dtype = here.dtype,
                               .rank = here.rank > 0 ? here.rank : 1,
                               .tag = wefti_tag(WEFTI_TAG_TIED, 0),
                               .name = b->root->values[value].name};
    int32_t index, sum;
    WEFT_TRY(tie_boxes(b, value, &users, &t));
    bool gives = wefti_region_elems(&t.have[t.me], t.rank) > 0;
    WEFT_TRY(wefti_transfer_clone(&t, &kept));
    WEFT_TRY(wefti_partition_add(b->part, kept, &index));
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here),
                              wefti_build_name(b, "gradient over stages of ", t.name), &sum));
    WEFT_TRY(wefti_build_transfer(b, s, WEFTI_STEP_POST, NULL, index, gives ? *gradient : -1, sum));
    WEFT_TRY(wefti_build_transfer(b, s, WEFTI_STEP_WAIT, NULL, index, gives ? *gradient : -1, sum));
    *gradient = sum;
    return WEFT_OK;
}
