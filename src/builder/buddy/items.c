/* What a holder copies of its ward: see buddy.h. */
#include "builder/buddy/buddy.h"

enum { SMALL = 64 << 10 }; /* bytes: what is smaller shares a message */

weft_desc wefti_buddy_piece(const wefti_emitter *b, const wefti_buddy_items *list,
                            const wefti_buddy_item *item, int32_t rank) {
    return wefti_layout_local(&item->layout, &list->mesh, &b->root->values[item->value].desc, rank);
}

/* All ranks along some axis of the mesh have the same pieces: they are replicas. */
static bool has_replicas(const wefti_emitter *b, const wefti_buddy_items *list) {
    wefti_axes used = 0;
    if (b->spec->plan->mode == WEFT_PARALLEL_MANUAL) return false;
    for (int32_t i = 0; i < list->count; i++) used |= wefti_layout_axes(&list->items[i].layout);
    for (int a = 0; a < list->mesh.axes; a++)
        if (list->mesh.axis[a].size > 1 && !(used >> a & 1u)) return true;
    return false;
}

/* Pieces that need not be moved belong to no message. */
static weft_status form_messages(const wefti_emitter *b, wefti_buddy_items *list) {
    int64_t bytes = 0;
    int32_t open = -1, last = -1; /* last: its last item */
    weft_dtype dtype = WEFT_F32;
    WEFT_TRY(wefti_new_indices(b->scratch, list->count, &list->first));
    for (int32_t i = 0; i < list->count; i++) {
        wefti_buddy_item *x = &list->items[i];
        if (x->shared || !(x->trained || x->changes)) continue;
        /* the first rank's piece: ranks whose pieces differ in size form the same messages */
        const weft_desc piece = wefti_buddy_piece(b, list, x, list->mesh.first);
        const int64_t more = weft_desc_bytes(&piece);
        if (more >= SMALL) {
            x->message = list->messages++;
            list->first[x->message] = i;
            continue;
        }
        if (open < 0 || piece.dtype != dtype || bytes + more > SMALL) {
            open = list->messages++;
            bytes = 0;
            dtype = piece.dtype;
            last = -1;
        }
        x->message = open;
        bytes += more;
        if (last < 0)
            list->first[open] = i;
        else
            list->items[last].next = i;
        last = i;
    }
    return WEFT_OK;
}

weft_status wefti_buddy_items_of(wefti_emitter *b, wefti_buddy_pairs pairs, int32_t stage,
                                 wefti_buddy_items *out) {
    const wefti_decisions *dec = b->dec;
    const weft_plan *plan = b->spec->plan;
    const bool manual = plan->mode == WEFT_PARALLEL_MANUAL;
    bool *bound, *held;
    *out = (wefti_buddy_items){.stage = stage, .mesh = wefti_plan_mesh(plan, stage)};
    WEFT_TRY(wefti_new_array(b->scratch, b->root->in_count, sizeof *out->items, &out->items));
    WEFT_TRY(wefti_decide_bound(dec, stage, &bound));
    const int32_t further = pairs.axis >= 0 ? 0 : pairs.step;
    WEFT_TRY(wefti_decide_bound(dec, (stage + further) % dec->stages, &held));
    for (int64_t i = 0; i < b->root->in_count; i++) {
        const int32_t v = b->root->in[i];
        const wefti_value_info *info = &b->root->values[v];
        const wefti_sharding *x = &dec->sharding[v];
        if (!bound[v] || info->kind == WEFTI_VALUE_INPUT) continue;
        wefti_buddy_item *item = &out->items[out->count++];
        *item = (wefti_buddy_item){.value = v, .message = -1, .next = -1};
        item->layout = info->kind == WEFTI_VALUE_PARAM ? x->state : x->storage;
        if (!x->known) item->layout = wefti_layout_replicated(info->desc.rank);
        item->trained = info->kind == WEFTI_VALUE_PARAM && dec->has_gradient[v];
        for (int64_t a = 0; a < dec->g->assign_count; a++)
            item->changes |= dec->g->assigns[a].state == v;
        item->shared =
            pairs.axis >= 0 ? !(wefti_layout_axes(&item->layout) >> pairs.axis & 1u) : held[v];
        if (manual) item->shared = false; /* whether pieces are equal is the model's secret */
    }
    if (has_replicas(b, out)) out->count = 0;
    return form_messages(b, out);
}
