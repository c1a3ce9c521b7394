/* The steps by which a device's state is kept up to date on its holder: see buddy.h. */
#include "builder/buddy/buddy.h"

#include <string.h>

#include "base/map/map.h"
#include "builder/tags.h"

enum { MOST_UNDER_WAY = 8 }; /* messages */

struct wefti_buddy {
    wefti_buddy_pairs pairs;
    int32_t holder, ward;         /* ranks */
    wefti_buddy_items own, wards; /* of this device's stage, and of its ward's */
    int32_t *received;            /* per message of the ward: its buffer, -1: nothing is in it */
    int32_t *copies;              /* per piece of the program's list: its buffer, -1: none */
};

static weft_status begin(wefti_emitter *b) {
    const weft_plan *plan = b->spec->plan;
    wefti_buddy *x;
    if (!b->spec->optimizer->buddies || !b->part || plan->devices == 1) return WEFT_OK;
    WEFT_TRY(wefti_new_array(b->scratch, 1, sizeof *x, &x));
    WEFT_TRY(wefti_buddy_pairs_of(plan, b->spec->host, b->dec->stage, &x->pairs));
    x->holder = wefti_buddy_holder(plan, x->pairs, b->p->rank);
    x->ward = wefti_buddy_ward(plan, x->pairs, b->p->rank);
    WEFT_TRY(wefti_buddy_items_of(b, x->pairs, b->dec->stage, &x->own));
    x->wards = x->own;
    if (x->pairs.axis < 0)
        WEFT_TRY(
            wefti_buddy_items_of(b, x->pairs, wefti_plan_stage_of_rank(plan, x->ward), &x->wards));
    WEFT_TRY(wefti_new_indices(b->scratch, x->wards.messages, &x->received));
    b->buddy = x;
    return WEFT_OK;
}

/* Sizes of this device's pieces and of its ward's. */
static void note_reads(wefti_emitter *b, const wefti_buddy_items *list) {
    const wefti_buddy *x = b->buddy;
    wefti_rank_reads *reads = wefti_partition_reads(b->part);
    for (int32_t i = 0; i < list->count; i++) {
        const wefti_buddy_item *item = &list->items[i];
        const weft_desc *whole = &b->root->values[item->value].desc;
        wefti_rank_reads_layout(reads, &b->p->mesh, whole, &item->layout);
        if (x->pairs.axis >= 0)
            wefti_rank_reads_neighbor(reads, &b->p->mesh, whole, &item->layout, x->pairs.axis,
                                      -x->pairs.step);
    }
}

/* ---- messages ---- */

/* The elements of a message from `rank`; of the items before `before` only. */
static int64_t elems_of(const wefti_emitter *b, const wefti_buddy_items *list, int32_t message,
                        int32_t before, int32_t rank) {
    int64_t elems = 0;
    for (int32_t i = list->first[message]; i >= 0 && i < before; i = list->items[i].next) {
        const weft_desc piece = wefti_buddy_piece(b, list, &list->items[i], rank);
        elems += weft_desc_elems(&piece);
    }
    return elems;
}

/* Along an axis, each device has its message and wants its ward's. Between
 * stages, `owner` has a message that its holder wants. */
static weft_status add_transfer(wefti_emitter *b, const wefti_buddy_items *list, int32_t message,
                                int32_t owner, int32_t *out) {
    const wefti_buddy *x = b->buddy;
    const weft_plan *plan = b->spec->plan;
    const int32_t value = list->items[list->first[message]].value;
    const int32_t holder = wefti_buddy_holder(plan, x->pairs, owner);
    wefti_transfer *kept,
        t = {.kind = WEFTI_TRANSFER_SEND,
             .dtype = b->root->values[value].desc.dtype,
             .rank = 1,
             .members = x->pairs.axis >= 0 ? list->mesh.axis[x->pairs.axis].size : 2,
             .tag = wefti_tag(WEFTI_TAG_BUDDY, wefti_buddy_number(list->stage, message)),
             .name = wefti_build_name(b, "for the buddy, ", b->root->values[value].name)};
    WEFT_TRY(wefti_new_array(b->scratch, t.members, sizeof *t.ranks, &t.ranks));
    WEFT_TRY(wefti_new_array(b->scratch, t.members, sizeof *t.have, &t.have));
    WEFT_TRY(wefti_new_array(b->scratch, t.members, sizeof *t.want, &t.want));
    if (x->pairs.axis >= 0) {
        (void)wefti_mesh_group(&list->mesh, b->p->rank, 1u << x->pairs.axis, t.ranks);
        int64_t begin = 0;
        for (int32_t m = 0; m < t.members; m++) {
            t.have[m].begin[0] = begin;
            t.have[m].size[0] = elems_of(b, list, message, list->count, t.ranks[m]);
            begin += t.have[m].size[0];
        }
        for (int32_t m = 0; m < t.members; m++)
            t.want[m] = t.have[(m + t.members - x->pairs.step) % t.members];
    } else {
        t.ranks[0] = owner < holder ? owner : holder;
        t.ranks[1] = owner < holder ? holder : owner;
        const int64_t elems = elems_of(b, list, message, list->count, owner);
        t.have[owner > holder].size[0] = t.want[holder > owner].size[0] = elems;
    }
    while (t.ranks[t.me] != b->p->rank) t.me++;
    WEFT_TRY(wefti_transfer_clone(&t, &kept));
    return wefti_partition_add(b->part, kept, out);
}

/* The complete gradient, or the new value of a state. */
static int32_t buffer_of(const wefti_emitter *b, const wefti_buddy_item *item) {
    return item->trained ? b->reduced[item->value] : b->param_buffer[item->value];
}

/* Complete gradients in a tier below device memory: fetches those of a message, or has done with
 * them. */
static weft_status move_gradients(wefti_emitter *b, const wefti_buddy_items *list, int32_t message,
                                  bool bring) {
    for (int32_t i = list->first[message]; i >= 0; i = list->items[i].next) {
        const int32_t v = list->items[i].value;
        if (!list->items[i].trained) continue;
        WEFT_TRY(bring ? wefti_gradient_bring(b, WEFTI_SECTION_NORM, v, WEFTI_GRADIENT_SUM, false)
                       : wefti_gradient_leave(b, WEFTI_SECTION_NORM, v, WEFTI_GRADIENT_SUM));
    }
    return WEFT_OK;
}

/* The buffer of a message of this device: of its only item, or a buffer to which items are
 * copied. */
static weft_status pack(wefti_emitter *b, const wefti_buddy_items *list, int32_t message,
                        int32_t *out) {
    const int32_t first = list->first[message], rank = b->p->rank;
    const int64_t elems = elems_of(b, list, message, list->count, rank);
    const weft_desc of_first = wefti_buddy_piece(b, list, &list->items[first], rank);
    const int64_t each = (int64_t)weft_dtype_bytes(of_first.dtype);
    *out = -1;
    if (elems == 0) return WEFT_OK;
    *out = buffer_of(b, &list->items[first]);
    if (weft_desc_elems(&of_first) == elems) return WEFT_OK;
    WEFT_TRY(wefti_buffer_add(b, elems * each, "small gradients for the buddy", out));
    for (int32_t i = first; i >= 0; i = list->items[i].next) {
        const wefti_buddy_item *item = &list->items[i];
        const weft_desc piece = wefti_buddy_piece(b, list, item, rank);
        wefti_draft_step *d;
        if (weft_desc_elems(&piece) == 0) continue;
        WEFT_TRY(wefti_build_begin(b, WEFTI_SECTION_NORM, WEFTI_STEP_COPY, WEFTI_OTHER,
                                   b->root->values[item->value].name, 2, &d));
        wefti_build_arg(b, d, 0, *out, elems_of(b, list, message, i, rank) * each);
        wefti_build_arg(b, d, 1, buffer_of(b, item), 0);
        d->step.bytes = weft_desc_bytes(&piece);
        b->now++;
    }
    return WEFT_OK;
}

static weft_status post(wefti_emitter *b, const wefti_buddy_items *list, int32_t message,
                        bool sends, bool takes) {
    wefti_buddy *x = b->buddy;
    wefti_flight f = {
        .use = WEFTI_FLIGHT_BUDDY, .owner = message, .source = {-1, 0}, .destination = {-1, 0}};
    int32_t transfer;
    if (message >= list->messages) return WEFT_OK;
    WEFT_TRY(add_transfer(b, list, message, sends ? b->p->rank : x->ward, &transfer));
    if (sends) WEFT_TRY(move_gradients(b, list, message, true));
    if (sends) WEFT_TRY(pack(b, list, message, &f.source.buffer));
    if (takes) {
        const weft_desc *whole = &b->root->values[list->items[list->first[message]].value].desc;
        const int64_t bytes = elems_of(b, list, message, list->count, x->ward) *
                              (int64_t)weft_dtype_bytes(whole->dtype);
        if (bytes)
            WEFT_TRY(wefti_buffer_add(b, bytes, "gradients of the ward", &f.destination.buffer));
        x->received[message] = f.destination.buffer;
    }
    WEFT_TRY(wefti_flight_post(b, WEFTI_SECTION_NORM, f, transfer));
    return sends ? move_gradients(b, list, message, false) : WEFT_OK;
}

/* Each device posts message i in both directions before it waits for an earlier one, so no two wait
 * for each other. */
weft_status wefti_buddy_exchange(wefti_emitter *b) {
    WEFT_TRY(begin(b));
    wefti_buddy *x = b->buddy;
    if (!x) return WEFT_OK;
    note_reads(b, &x->own);
    note_reads(b, &x->wards);
    const bool axis = x->pairs.axis >= 0;
    const int32_t count = x->own.messages > x->wards.messages ? x->own.messages : x->wards.messages;
    for (int32_t i = 0; i < count + MOST_UNDER_WAY; i++) {
        WEFT_TRY(post(b, &x->own, i, true, axis));
        if (!axis) WEFT_TRY(post(b, &x->wards, i, false, true));
        for (int32_t k; (k = wefti_flight_find(b, WEFTI_FLIGHT_BUDDY, i - MOST_UNDER_WAY)) >= 0;)
            WEFT_TRY(wefti_flight_wait(b, WEFTI_SECTION_NORM, k));
    }
    return WEFT_OK;
}

/* ---- copies ---- */

/* The list that is being made of the pieces of one device. */
typedef struct listing {
    const wefti_buddy_items *items;
    int32_t rank;
    bool copies;         /* of the ward */
    wefti_piece *pieces; /* of the program */
    int32_t count, *buffers;
    const wefti_map *tensors; /* this device's, by name */
} listing;

/* Adds a piece to a list of the program. `copy`: with memory of its own, in *out_buffer. */
static weft_status add_piece(wefti_emitter *b, listing *l, bool copy, wefti_space space,
                             const wefti_piece *piece, int32_t *out_buffer) {
    wefti_piece *to = &l->pieces[l->count++];
    *to = *piece;
    to->tensor = -1;
    to->home = WEFTI_NOWHERE;
    *out_buffer = -1;
    if (copy) {
        WEFT_TRY(wefti_buffer_persistent(b, weft_desc_bytes(&piece->desc),
                                         wefti_build_name(b, "copy of ", piece->name), out_buffer));
        b->buffers[*out_buffer].space = space;
        return WEFT_OK;
    }
    to->tensor = (int32_t)wefti_map_find_text(l->tensors, piece->name);
    WEFT_REQUIRE(to->tensor >= 0, WEFT_E_BUG, "no tensor '%s' for a buddy", piece->name);
    return WEFT_OK;
}

static weft_status check_alone(const wefti_emitter *b, const wefti_buddy_item *item,
                               int32_t routine) {
    const wefti_routine *r = b->p->routines[routine];
    for (int32_t k = 0; k < r->code_count; k++)
        WEFT_REQUIRE(r->code[k].transfer < 0, WEFT_E_LAYOUT,
                     "recovery.buddy: the update of '%s' adds up numbers of several devices, which "
                     "a buddy cannot do alone; use an optimizer that updates each element by "
                     "itself, such as adamw",
                     b->root->values[item->value].name);
    return WEFT_OK;
}

/* The piece of a parameter with its optimizer's states, and the update of a copy. */
static weft_status list_param(wefti_emitter *b, listing *l, const wefti_buddy_item *item,
                              const wefti_piece *param) {
    const bool copy = l->copies && !item->shared;
    const wefti_space space =
        wefti_tier_of_large(b->spec, WEFT_OFFLOAD_COPIES, &b->root->values[item->value]);
    wefti_update_operands at = {.param = {-1, 0}};
    wefti_update_rule rule = {0};
    wefti_update_draft *u;
    wefti_layout layouts[4];
    int32_t routine = -1;
    if (item->trained)
        WEFT_TRY(
            wefti_update_routine(b, item->value, &param->desc, false, &rule, layouts, &routine));
    if (item->trained && !item->shared) WEFT_TRY(check_alone(b, item, routine));
    l->buffers[l->count] = -1;
    WEFT_TRY(wefti_new_array(b->scratch, 1, sizeof *u, &u));
    WEFT_TRY(add_piece(b, l, copy, space, param, &at.param.buffer));
    l->buffers[l->count - 1] = at.param.buffer;
    for (int i = 0; i < rule.states; i++) {
        const char *prefix = wefti_build_name(b, param->name, ".");
        const wefti_piece state = {
            .name = wefti_build_name(b, prefix, rule.state_names[i]),
            .role = WEFTI_TENSOR_OPTIMIZER,
            .desc = wefti_layout_local(&layouts[i], &l->items->mesh, &rule.state_descs[i], l->rank),
            .whole = rule.state_descs[i],
            .layout = layouts[i]};
        WEFT_TRY(add_piece(b, l, copy, space, &state, &u->part[i].home));
        l->buffers[l->count - 1] = u->part[i].home;
    }
    if (!copy || !item->trained) return WEFT_OK;
    const int32_t number = (int32_t)(item - l->items->items);
    at.gradient.buffer = b->buddy->received[item->message];
    at.gradient.delta = elems_of(b, l->items, item->message, number, l->rank) *
                        (int64_t)weft_dtype_bytes(param->desc.dtype);
    u->states = rule.states;
    u->slices = 1;
    u->routine = u->last = routine;
    u->piece_bytes = weft_desc_bytes(&param->desc);
    u->part[rule.states].home = at.param.buffer;
    u->part[rule.states + 1].home = -1; /* the gradient came to device memory */
    WEFT_TRY(wefti_slices_divide(b, item->value, &param->desc, &rule, u));
    const wefti_update_of of = {item->value, WEFTI_TENSOR_OF_WARD,
                                wefti_build_name(b, "copy of ", param->name), u};
    return wefti_update_slices(b, WEFTI_SECTION_UPDATE, &of, &at);
}

/* The new value of a state replaces the copy. */
static weft_status list_state(wefti_emitter *b, listing *l, const wefti_buddy_item *item,
                              const wefti_piece *state) {
    const bool copy = l->copies && !item->shared;
    int32_t buffer;
    wefti_draft_step *d;
    WEFT_TRY(add_piece(b, l, copy, WEFTI_SPACE_DEVICE, state, &buffer));
    l->buffers[l->count - 1] = buffer;
    const int64_t bytes = weft_desc_bytes(&state->desc);
    if (!copy || !item->changes || !bytes) return WEFT_OK;
    WEFT_TRY(wefti_build_begin(b, WEFTI_SECTION_UPDATE, WEFTI_STEP_COPY, WEFTI_OTHER,
                               wefti_build_name(b, "copy of ", state->name), 2, &d));
    wefti_build_arg(b, d, 0, buffer, 0);
    wefti_build_arg(
        b, d, 1, b->buddy->received[item->message],
        elems_of(b, l->items, item->message, (int32_t)(item - l->items->items), l->rank) *
            (int64_t)weft_dtype_bytes(state->desc.dtype));
    d->step.bytes = bytes;
    b->now++;
    return WEFT_OK;
}

static weft_status list_pieces(wefti_emitter *b, listing *l) {
    const int64_t most = 5 * (int64_t)l->items->count; /* a parameter has at most 4 states */
    WEFT_TRY(wefti_new_array(b->p->arena, most, sizeof *l->pieces, &l->pieces));
    WEFT_TRY(wefti_new_indices(b->scratch, most, &l->buffers));
    for (int32_t i = 0; i < l->items->count; i++) {
        const wefti_buddy_item *item = &l->items->items[i];
        const wefti_value_info *info = &b->root->values[item->value];
        const bool param = info->kind == WEFTI_VALUE_PARAM;
        const wefti_piece piece = {.name = wefti_build_name(b, "", info->name),
                                   .role = param ? WEFTI_TENSOR_PARAM : WEFTI_TENSOR_STATE,
                                   .desc = wefti_buddy_piece(b, l->items, item, l->rank),
                                   .whole = info->desc,
                                   .layout = item->layout,
                                   .init = info->init};
        WEFT_TRY((param ? list_param : list_state)(b, l, item, &piece));
    }
    return WEFT_OK;
}

/* By name, those that a training keeps. */
static weft_status find_tensors(const wefti_program *p, wefti_map *out) {
    WEFT_TRY(wefti_map_reserve(out, p->tensor_count));
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (p->tensors[i].role <= WEFTI_TENSOR_OPTIMIZER)
            WEFT_TRY(wefti_map_add_text(out, p->tensors[i].name, i, NULL));
    return WEFT_OK;
}

weft_status wefti_buddy_update(wefti_emitter *b) {
    wefti_buddy *x = b->buddy;
    wefti_program *p = b->p;
    if (!x) return WEFT_OK;
    wefti_map tensors = {0};
    listing own = {.items = &x->own, .rank = p->rank, .tensors = &tensors},
            wards = {.items = &x->wards, .rank = x->ward, .copies = true, .tensors = &tensors};
    if (x->own.count) p->holder = x->holder;
    if (x->wards.count) p->ward = x->ward;
    weft_status status = find_tensors(p, &tensors);
    if (status >= 0) status = list_pieces(b, &own);
    if (status >= 0) status = list_pieces(b, &wards);
    wefti_map_free(&tensors);
    p->owned = own.pieces;
    p->owned_count = own.count;
    p->copies = wards.pieces;
    p->copy_count = wards.count;
    x->copies = wards.buffers;
    return status;
}

void wefti_buddy_place(wefti_emitter *b) {
    for (int32_t i = 0; b->buddy && i < b->p->copy_count; i++)
        if (b->buddy->copies[i] >= 0)
            b->p->copies[i].home = wefti_buffer_location(b, b->buddy->copies[i]);
}
