/* Gathers sharded parameters for one call of a cell, and frees them after the call.
 *
 * All parameters of a call are gathered together. With overlap, the transfers for the next call are
 * posted before this call runs, and waited for when the next call begins. An engine that moves data
 * by itself then works during this call. At most two calls' parameters are whole at the same time.
 * Sources: Rajbhandari et al., "ZeRO", SC 2020, section 5.3; for the prefetch, Zhao et al.,
 * "PyTorch FSDP", VLDB 2023, section 3.3.2. */
#include <string.h>

#include "builder/build.h"
#include "builder/tags.h"

static bool in_pieces(const wefti_emitter *b, int32_t v) {
    return b->part && v >= 0 && b->root->values[v].kind == WEFTI_VALUE_PARAM &&
           !wefti_layout_equal(&b->dec->sharding[v].storage, &b->dec->sharding[v].use);
}

static weft_status new_buffer(wefti_emitter *b, int32_t v, int32_t *out) {
    weft_desc here =
        wefti_sharding_desc(b->dec, &b->root->values[v].desc, &b->dec->sharding[v].use);
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here),
                              wefti_build_name(b, "gathered ", b->root->values[v].name), out));
    b->buffers[*out].param = b->param_index[v];
    return WEFT_OK;
}

/* ---- ahead ---- */

static weft_status transfer_step(wefti_emitter *b, wefti_section s, wefti_step_kind kind,
                                 const wefti_ahead *a) {
    return wefti_build_transfer(b, s, kind, b->root->values[a->value].name, a->transfer,
                                b->param_buffer[a->value], a->buffer);
}

static wefti_ahead *find_ahead(wefti_emitter *b, int32_t v) {
    for (int32_t i = 0; i < b->ahead_count; i++)
        if (b->ahead[i].value == v) return &b->ahead[i];
    return NULL;
}

static bool under_way(const wefti_emitter *b, int32_t transfer) {
    for (int32_t i = 0; i < b->ahead_count; i++)
        if (b->ahead[i].transfer == transfer) return true;
    return false;
}

static bool alike(const wefti_emitter *b, int32_t u, int32_t v) {
    return wefti_desc_equal(&b->root->values[u].desc, &b->root->values[v].desc) &&
           wefti_layout_equal(&b->dec->sharding[u].storage, &b->dec->sharding[v].storage) &&
           wefti_layout_equal(&b->dec->sharding[u].use, &b->dec->sharding[v].use);
}

/* The transfer that gathers a parameter, -1 if a single transfer cannot. Parameters at the same
 * position of equal cells share one transfer, call after call. So a deep model needs no more
 * transfers than a shallow one. */
static weft_status find_transfer(wefti_emitter *b, int32_t v, int place, int32_t *out) {
    const wefti_sharding *x = &b->dec->sharding[v];
    const weft_desc *whole = &b->root->values[v].desc;
    wefti_gathered *last = &b->gathered[place];
    const wefti_route *route;
    wefti_transfer *t;
    if (!last->known || !alike(b, last->value, v)) {
        *last = (wefti_gathered){true, v, -1};
        WEFT_TRY(
            wefti_route_find(b->spec->routes, &b->p->mesh, whole, &x->storage, &x->use, 0, &route));
        if (route->moves == 1 && route->move[0].kind == WEFTI_MOVE_TRANSFER) {
            wefti_rank_reads_move(wefti_partition_reads(b->part), &b->p->mesh, whole, &x->storage,
                                  &x->use, route->move[0].axes);
            WEFT_TRY(wefti_move_transfer(&b->p->mesh, whole, &x->storage, &route->move[0],
                                         b->p->rank, &t));
            t->name = b->root->values[v].name;
            t->tag =
                wefti_tag(WEFTI_TAG_GATHER, (uint64_t)place); /* the gathers of one call overlap */
            WEFT_TRY(wefti_partition_add(b->part, t, &last->transfer));
        }
    }
    *out = last->transfer;
    return WEFT_OK;
}

/* Posts the gather of one parameter ahead, if a single transfer can do it. */
static weft_status post(wefti_emitter *b, wefti_section s, int32_t v, int place) {
    int32_t transfer = -1;
    if (!in_pieces(b, v) || find_ahead(b, v) || b->ahead_count == WEFTI_MAX_BUCKET ||
        place >= WEFTI_MAX_BUCKET)
        return WEFT_OK;
    WEFT_TRY(find_transfer(b, v, place, &transfer));
    if (transfer < 0 || under_way(b, transfer)) return WEFT_OK; /* a WAIT ends the oldest post */
    wefti_ahead *a = &b->ahead[b->ahead_count];
    *a = (wefti_ahead){.value = v, .transfer = transfer};
    WEFT_TRY(new_buffer(b, v, &a->buffer));
    b->ahead_count++;
    return transfer_step(b, s, WEFTI_STEP_POST, a);
}

/* Whether a call's pass reads an input. Forward passes and fused forward-backward passes read all
 * of them; a backward body reads some. */
static bool reads(const wefti_emitter *b, const wefti_call_plan *call, int input, bool backward) {
    if (!backward || call->fused) return true;
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    for (int64_t i = 0; i < grad->backward->in_count; i++)
        if (grad->bindings[i].source == WEFTI_GRAD_INPUT && grad->bindings[i].index == input)
            return true;
    return false;
}

weft_status wefti_gather_ahead(wefti_emitter *b, wefti_section s, int32_t k, bool backward) {
    if (!b->part || !b->spec->plan->overlap || k < 0) return WEFT_OK;
    const weft_node *n = b->dec->calls[k].node;
    for (int i = 0; i < n->inputs; i++)
        if (reads(b, &b->dec->calls[k], i, backward)) WEFT_TRY(post(b, s, n->in[i], i));
    return WEFT_OK;
}

/* ---- now ---- */

static weft_status gather_now(wefti_emitter *b, wefti_section s, const int32_t *values, int count,
                              int32_t *buffers) {
    weft_desc whole[WEFTI_MAX_BUCKET];
    wefti_layout from[WEFTI_MAX_BUCKET], to[WEFTI_MAX_BUCKET];
    int32_t routine;
    wefti_draft_step *d;
    if (count == 0) return WEFT_OK;
    for (int i = 0; i < count; i++) {
        whole[i] = b->root->values[values[i]].desc;
        from[i] = b->dec->sharding[values[i]].storage;
        to[i] = b->dec->sharding[values[i]].use;
        WEFT_TRY(new_buffer(b, values[i], &buffers[i]));
    }
    WEFT_TRY(wefti_build_reshard(b, count, whole, from, to, false, 0, &routine));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_OTHER,
                               wefti_build_name(b, "gather ", b->root->values[values[0]].name),
                               b->p->routines[routine]->args, &d));
    for (int i = 0; i < count; i++) {
        wefti_build_arg(b, d, i, b->param_buffer[values[i]], 0);
        wefti_build_arg(b, d, count + i, buffers[i], 0);
    }
    return wefti_build_end(b, d, routine);
}

/* Waits for the transfers that were posted ahead of the call, and gathers the missing parameters
 * now. */
weft_status wefti_gather_operands(wefti_emitter *b, wefti_section s, int32_t k, bool backward,
                                  int32_t micro, int32_t **out) {
    const weft_node *n = b->dec->calls[k].node;
    int32_t values[WEFTI_MAX_BUCKET], buffers[WEFTI_MAX_BUCKET];
    int count = 0;
    WEFT_TRY(wefti_new_indices(b->scratch, n->inputs, out));
    for (int i = 0; i < n->inputs; i++) {
        int32_t v = n->in[i];
        if (v < 0 || !reads(b, &b->dec->calls[k], i, backward)) continue;
        (*out)[i] = *wefti_build_value(b, micro, v);
        if (!in_pieces(b, v)) continue;
        if (b->copies > 1) { /* the first copy gathers for all copies */
            (*out)[i] = b->held[i];
            continue;
        }
        wefti_ahead *a = find_ahead(b, v);
        if (a) {
            WEFT_TRY(transfer_step(b, s, WEFTI_STEP_WAIT, a));
            (*out)[i] = a->buffer;
            *a = b->ahead[--b->ahead_count];
            continue;
        }
        if (count == WEFTI_MAX_BUCKET) {
            WEFT_TRY(gather_now(b, s, values, count, buffers));
            for (int j = 0; j < i; j++)
                for (int c = 0; c < count; c++)
                    if (n->in[j] == values[c]) (*out)[j] = buffers[c];
            count = 0;
        }
        values[count++] = v;
    }
    WEFT_TRY(gather_now(b, s, values, count, buffers));
    for (int j = 0; j < n->inputs; j++)
        for (int c = 0; c < count; c++)
            if (n->in[j] == values[c] && (*out)[j] >= 0) (*out)[j] = buffers[c];
    b->held = *out;
    return WEFT_OK;
}

/* Waits for all posted gathers: none is in flight after the end of a section. */
weft_status wefti_gather_finish(wefti_emitter *b, wefti_section s) {
    while (b->ahead_count > 0)
        WEFT_TRY(transfer_step(b, s, WEFTI_STEP_WAIT, &b->ahead[--b->ahead_count]));
    return WEFT_OK;
}
