/* Transfers between the stages of a pipeline: values of edges, their gradients, and gradients of
 * parameters that several stages read (tied embeddings). Such a parameter lies on each of these
 * stages. Its gradients are summed over them, so that all make the same update. */
#include "builder/build.h"
#include "builder/tags.h"

/* ---- edges ---- */

const char *wefti_value_name(const weft_body *root, int32_t v) {
    const wefti_value_info *info = &root->values[v];
    return info->node >= 0 ? root->nodes[info->node].scope : info->name;
}

/* Sets the regions of all devices of a stage, as members from number `first` on. */
static void add_side(const wefti_stage_side *side, int32_t v, const weft_desc *whole, int32_t first,
                     int32_t *ranks, wefti_region *boxes) {
    for (int32_t i = 0; i < wefti_mesh_size(&side->mesh); i++) {
        ranks[first + i] = side->mesh.first + i;
        wefti_layout_region(&side->sharding[v].use, &side->mesh, whole, ranks[first + i],
                            &boxes[first + i]);
        if (whole->rank == 0) boxes[first + i].size[0] = 1; /* see below */
    }
}

/* A transfer between the two devices with equal coordinates of stages with equal meshes. */
static weft_status pair_boxes(wefti_emitter *b, int32_t v, const wefti_stage_side *sender,
                              const wefti_stage_side *receiver, wefti_transfer *t) {
    int32_t place = b->p->rank - b->p->mesh.first;
    int32_t from = sender->mesh.first + place, to = receiver->mesh.first + place;
    const weft_desc *whole = &b->root->values[v].desc;
    wefti_region box;
    t->members = 2;
    WEFT_TRY(wefti_new_array(b->scratch, 2, sizeof *t->ranks, &t->ranks));
    WEFT_TRY(wefti_new_array(b->scratch, 4, sizeof *t->have, &t->have));
    t->want = t->have + 2;
    t->ranks[0] = from < to ? from : to;
    t->ranks[1] = from < to ? to : from;
    wefti_layout_region(&b->dec->sharding[v].use, &b->p->mesh, whole, b->p->rank, &box);
    if (whole->rank == 0)
        box.size[0] = 1; /* a scalar gets one dimension, so that an empty
                            region can be told from a full one */
    t->have[t->ranks[0] == from ? 0 : 1] = box;
    t->want[t->ranks[0] == to ? 0 : 1] = box;
    return WEFT_OK;
}

/* A transfer between all devices of two stages with unlike meshes. Each sender has its region of
 * the one layout; each receiver wants its region of the other. */
static weft_status stage_boxes(wefti_emitter *b, int32_t v, const wefti_stage_side *sender,
                               const wefti_stage_side *receiver, wefti_transfer *t) {
    bool sender_first = sender->mesh.first < receiver->mesh.first;
    int32_t senders = wefti_mesh_size(&sender->mesh), receivers = wefti_mesh_size(&receiver->mesh);
    const weft_desc *whole = &b->root->values[v].desc;
    t->members = senders + receivers;
    WEFT_TRY(wefti_new_array(b->scratch, t->members, sizeof *t->ranks, &t->ranks));
    WEFT_TRY(wefti_new_array(b->scratch, t->members, sizeof *t->have, &t->have));
    WEFT_TRY(wefti_new_array(b->scratch, t->members, sizeof *t->want, &t->want));
    add_side(sender, v, whole, sender_first ? 0 : receivers, t->ranks, t->have);
    add_side(receiver, v, whole, sender_first ? senders : 0, t->ranks, t->want);
    return WEFT_OK;
}

static weft_status stage_transfer(wefti_emitter *b, int32_t v, int32_t sender_stage,
                                  int32_t receiver_stage, uint64_t number, bool back,
                                  int32_t *out) {
    const weft_desc *whole = &b->root->values[v].desc;
    const wefti_stage_side sender = wefti_stage_side_of(b->dec, sender_stage);
    const wefti_stage_side receiver = wefti_stage_side_of(b->dec, receiver_stage);
    wefti_transfer *kept,
        t = {.kind = WEFTI_TRANSFER_SEND,
             .dtype = whole->dtype,
             .rank = whole->rank > 0 ? whole->rank : 1,
             .tag = wefti_tag(WEFTI_TAG_EDGE, number),
             .name = wefti_build_name(b, back ? "gradient of " : "", wefti_value_name(b->root, v))};
    wefti_rank_reads_layout(wefti_partition_reads(b->part), &b->p->mesh, whole,
                            &b->dec->sharding[v].use);
    WEFT_TRY(wefti_meshes_alike(&sender.mesh, &receiver.mesh)
                 ? pair_boxes(b, v, &sender, &receiver, &t)
                 : stage_boxes(b, v, &sender, &receiver, &t));
    while (t.ranks[t.me] != b->p->rank) t.me++;
    WEFT_TRY(wefti_transfer_clone(&t, &kept));
    return wefti_partition_add(b->part, kept, out);
}

static weft_status edge_transfers(wefti_emitter *b, int64_t edge) {
    const wefti_edge *x = &b->dec->edges[edge];
    wefti_edge_traffic *t = &b->edges[edge];
    for (int d = 0; d < 2; d++)
        WEFT_TRY(wefti_new_indices(b->scratch, x->channels, &t->transfer[d]));
    for (int32_t channel = 0; channel < x->channels; channel++) {
        WEFT_TRY(stage_transfer(b, x->value, x->from_stage, x->to_stage,
                                wefti_edge_number(x->value, x->to_stage, channel, false), false,
                                &t->transfer[0][channel]));
        if (x->last_call >= 0)
            WEFT_TRY(stage_transfer(b, x->value, x->to_stage, x->from_stage,
                                    wefti_edge_number(x->value, x->to_stage, channel, true), true,
                                    &t->transfer[1][channel]));
    }
    return WEFT_OK;
}

weft_status wefti_build_edges(wefti_emitter *b) {
    WEFT_TRY(wefti_new_array(b->scratch, b->dec->edge_count, sizeof *b->edges, &b->edges));
    for (int64_t i = 0; i < b->dec->edge_count; i++) {
        const wefti_edge *x = &b->dec->edges[i];
        if (x->from_stage == b->dec->stage || x->to_stage == b->dec->stage)
            WEFT_TRY(edge_transfers(b, i));
    }
    return WEFT_OK;
}

/* ---- parameters of several stages ---- */

/* The stages that read a parameter, and the stages that compute a gradient of it. A stage may read
 * it without a gradient, for example to test whether it is positive. */
typedef struct users {
    bool *reads, *gives; /* [stages] */
    bool all;            /* all stages that read it compute a gradient */
} users;

static weft_status find_users(wefti_emitter *b, int32_t value, users *out) {
    WEFT_TRY(wefti_new_array(b->scratch, b->dec->stages, sizeof *out->reads, &out->reads));
    WEFT_TRY(wefti_new_array(b->scratch, b->dec->stages, sizeof *out->gives, &out->gives));
    for (int32_t k = 0; k < b->dec->call_count; k++) {
        const wefti_call_plan *call = &b->dec->calls[k];
        for (int i = 0; i < call->node->inputs; i++) {
            if (call->node->in[i] != value) continue;
            out->reads[call->stage] = true;
            if (call->differentiated && b->p->grads[call->grad].gradient_out[i] >= 0)
                out->gives[call->stage] = true;
        }
    }
    out->all = true;
    for (int32_t s = 0; s < b->dec->stages; s++) out->all &= out->gives[s] || !out->reads[s];
    return WEFT_OK;
}

/* Sets the regions of a tied gradient: each stage with a gradient contributes every element once,
 * and all devices of the reading stages receive it. If the meshes are equal, only devices of equal
 * coordinates exchange. */
static weft_status tie_boxes(wefti_emitter *b, int32_t value, const users *users,
                             wefti_transfer *t) {
    const weft_plan *plan = b->spec->plan;
    const weft_desc *whole = &b->root->values[value].desc;
    int32_t most = 0, place = b->p->rank - b->p->mesh.first;
    wefti_rank_reads *reads = wefti_partition_reads(b->part);
    wefti_rank_reads_layout(reads, &b->p->mesh, whole, &b->dec->sharding[value].state);
    bool same = true;
    for (int32_t s = 0; s < b->dec->stages; s++) {
        wefti_mesh mesh = wefti_plan_mesh(plan, s);
        most += wefti_mesh_size(&mesh);
        if (users->reads[s]) same = same && wefti_meshes_alike(&mesh, &b->p->mesh);
    }
    WEFT_TRY(wefti_new_array(b->scratch, most, sizeof *t->ranks, &t->ranks));
    WEFT_TRY(wefti_new_array(b->scratch, most, sizeof *t->have, &t->have));
    WEFT_TRY(wefti_new_array(b->scratch, most, sizeof *t->want, &t->want));
    t->kind = same && users->all ? WEFTI_TRANSFER_ALL_REDUCE : WEFTI_TRANSFER_SEND;
    if (!same) wefti_rank_reads_counts(reads, &b->p->mesh, &b->dec->sharding[value].state);
    for (int32_t s = 0; s < b->dec->stages; s++) {
        if (!users->reads[s]) continue;
        const wefti_stage_side side = wefti_stage_side_of(b->dec, s);
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

weft_status wefti_pipeline_tie(wefti_emitter *b, wefti_section s, int32_t value,
                               int32_t *gradient) {
    users users;
    WEFT_TRY(find_users(b, value, &users));
    weft_desc whole = b->root->values[value].desc;
    weft_desc here = wefti_sharding_desc(b->dec, &whole, &b->dec->sharding[value].state);
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
    WEFT_TRY(wefti_flight_now(b, s, index, gives ? *gradient : -1, sum));
    *gradient = sum;
    return WEFT_OK;
}
