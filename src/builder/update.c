/* Updates of parameters. Gradients are completed over the mesh, in buckets (reduce.c). Then the
 * optimizer's ops update this rank's piece of each parameter. With one microbatch and no clipping,
 * a bucket is updated as soon as it is reduced. */
#include <stddef.h>
#include <string.h>

#include "builder/fusion.h"
#include "builder/buddy/buddy.h"
#include "builder/build.h"
#include "builder/tags.h"

weft_status wefti_build_intern(wefti_emitter *b, weft_body *body, const weft_body **out) {
    for (int32_t i = 0; i < b->p->body_count; i++)
        if (b->p->bodies[i]->node_count == body->node_count &&
            wefti_body_equal(b->p->bodies[i], body)) {
            wefti_body_destroy(body);
            *out = b->p->bodies[i];
            return WEFT_OK;
        }
    *out = body;
    return wefti_build_keep_body(b, body);
}

/* ---- one parameter ---- */

/* The place of the optimizer's piece within this rank's part of a parameter. */
static void piece_region(const wefti_emitter *b, int32_t value, wefti_region *stored,
                         wefti_region *piece) {
    const wefti_sharding *x = &b->dec->sharding[value];
    const weft_desc *desc = &b->root->values[value].desc;
    wefti_layout_region(&x->storage, &b->p->mesh, desc, b->p->rank, stored);
    wefti_layout_region(&x->state, &b->p->mesh, desc, b->p->rank, piece);
    for (int d = 0; d < desc->rank; d++) piece->begin[d] -= stored->begin[d];
}

/* Byte offset of the optimizer's piece within this rank's part of a parameter, -1 if the piece is
 * not contiguous there. */
static int64_t piece_offset(const wefti_emitter *b, int32_t value) {
    const wefti_sharding *x = &b->dec->sharding[value];
    const weft_desc *desc = &b->root->values[value].desc;
    if (!b->part || wefti_layout_equal(&x->storage, &x->state)) return 0;
    wefti_region stored, piece;
    wefti_rank_reads_layout(wefti_partition_reads(b->part), &b->p->mesh, desc, &x->storage);
    wefti_rank_reads_layout(wefti_partition_reads(b->part), &b->p->mesh, desc, &x->state);
    piece_region(b, value, &stored, &piece);
    int64_t offset = 0, before = 1;
    bool one_run = true;
    for (int d = 0; d < desc->rank; d++) {
        if (piece.size[d] != stored.size[d]) one_run = one_run && before == 1;
        before *= piece.size[d];
        offset = offset * stored.size[d] + piece.begin[d];
    }
    if (before == 0) return 0; /* an empty piece */
    return one_run ? offset * (int64_t)weft_dtype_bytes(desc->dtype) : -1;
}

/* The buffer that holds the optimizer's piece of a parameter, and the piece's offset in it. */
static int32_t piece_buffer(const wefti_emitter *b, int32_t value, int64_t *out_offset) {
    int32_t own = b->param_piece[value];
    *out_offset = own < 0 ? piece_offset(b, value) : 0;
    return own < 0 ? b->param_buffer[value] : own;
}

/* Copies the piece that is not contiguous in its parameter into a buffer of its own. */
static weft_status cut_piece(wefti_emitter *b, wefti_section s, int32_t value) {
    const wefti_sharding *x = &b->dec->sharding[value];
    const weft_desc *desc = &b->root->values[value].desc;
    const char *name = b->root->values[value].name;
    int32_t routine;
    wefti_draft_step *d;
    if (piece_offset(b, value) >= 0) return WEFT_OK;
    weft_desc here = wefti_sharding_desc(b->dec, desc, &x->state);
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here), wefti_build_name(b, "piece of ", name),
                              &b->param_piece[value]));
    WEFT_TRY(wefti_build_reshard(b, 1, desc, &x->storage, &x->state, false, 0, &routine));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_UPDATE,
                               wefti_build_name(b, "piece of ", name),
                               b->p->routines[routine]->args, &d));
    wefti_build_arg(b, d, 0, b->param_buffer[value], 0);
    wefti_build_arg(b, d, 1, b->param_piece[value], 0);
    return wefti_build_end(b, d, routine);
}

/* Copies a piece that was cut back to its place, in runs. Those of some inner dimensions lie
 * equally far apart and are one step. */
static weft_status paste_piece(wefti_emitter *b, wefti_section s, int32_t value) {
    const weft_desc *desc = &b->root->values[value].desc;
    const char *name = wefti_build_name(b, "piece of ", b->root->values[value].name);
    int64_t run = (int64_t)weft_dtype_bytes(desc->dtype), pitch, rows = 1, done = 0;
    int64_t index[WEFT_MAX_RANK] = {0};
    wefti_region stored, piece;
    if (b->param_piece[value] < 0) return WEFT_OK;
    piece_region(b, value, &stored, &piece);
    int inner = desc->rank - 1, outer;
    while (piece.size[inner] == stored.size[inner]) run *= piece.size[inner--];
    pitch = run * stored.size[inner];
    run *= piece.size[inner];
    for (outer = inner; outer > 0;) {
        rows *= piece.size[--outer];
        if (piece.size[outer] != stored.size[outer]) break;
    }
    for (int d = 0; d >= 0; done += rows * run) {
        int64_t offset = 0;
        wefti_draft_step *step;
        for (int k = 0; k <= inner; k++)
            offset = offset * stored.size[k] + piece.begin[k] + index[k];
        WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_COPY, WEFTI_UPDATE, name, 2, &step));
        wefti_build_arg(b, step, 0, b->param_buffer[value], offset * (pitch / stored.size[inner]));
        wefti_build_arg(b, step, 1, b->param_piece[value], done);
        step->step.bytes = run;
        step->step.rows = rows;
        step->step.pitch[0] = pitch;
        step->step.pitch[1] = run;
        b->now++;
        for (d = outer - 1; d >= 0 && ++index[d] == piece.size[d]; d--) index[d] = 0;
    }
    b->param_piece[value] = -1;
    return WEFT_OK;
}

/* Gathers the pieces of updated parameters, in one message or in one each. While backward passes
 * are built, the transfers stay in flight. */
static weft_status gather_some(wefti_emitter *b, wefti_section s, const int32_t *which, int n,
                               bool packed) {
    bool posts = b->reduces && wefti_reduce_overlaps(b), on_host = false;
    weft_desc whole[WEFTI_MAX_BUCKET];
    wefti_layout from[WEFTI_MAX_BUCKET], to[WEFTI_MAX_BUCKET];
    int32_t routine = -1;
    if (n == 0) return WEFT_OK;
    for (int i = 0; i < n; i++)
        on_host = on_host || b->update[which[i]].way == WEFTI_UPDATE_ON_HOST;
    if (on_host) WEFT_TRY(wefti_tier_finish(b, s)); /* their pieces come back */
    for (int i = 0; i < n; i++) {
        whole[i] = b->root->values[which[i]].desc;
        from[i] = b->dec->sharding[which[i]].state;
        to[i] = b->dec->sharding[which[i]].storage;
    }
    wefti_draft_step *d;
    if (packed)
        WEFT_TRY(
            wefti_gather_packed(b, n, whole, from, to, wefti_tag(WEFTI_TAG_BUCKET, 2), &routine));
    packed = routine >= 0;
    if (!packed)
        WEFT_TRY(wefti_build_reshard(b, n, whole, from, to, false, wefti_tag(WEFTI_TAG_BUCKET, 1),
                                     &routine));
    const int32_t width = packed ? 1 : n;
    const wefti_flight_use use = packed ? WEFTI_FLIGHT_PACKED_PARAMETERS : WEFTI_FLIGHT_PARAMETERS;
    for (int i = 0; i < n && b->spec->optimizer->recovery; i++)
        WEFT_TRY(cut_piece(b, s, which[i])); /* once more, since the update has pasted it */
    if (posts) WEFT_TRY(wefti_reduce_make_room(b, s, b->p->routines[routine], width, use, -1));
    WEFT_TRY(wefti_build_begin(
        b, s, WEFTI_STEP_CALL, WEFTI_UPDATE,
        wefti_build_name(b, "parameters up to ", b->root->values[which[n - 1]].name),
        b->p->routines[routine]->args, &d));
    for (int i = 0; i < n; i++) {
        int64_t offset;
        int32_t piece = piece_buffer(b, which[i], &offset);
        wefti_build_arg(b, d, i, piece, offset);
        wefti_build_arg(b, d, n + i, b->param_buffer[which[i]], 0);
    }
    WEFT_TRY(wefti_build_end(b, d, routine));
    return posts ? wefti_reduce_leave(b, s, width, use, -1) : WEFT_OK;
}

/* Small parameters that the same axes divide share a message. */
static weft_status gather_params(wefti_emitter *b, wefti_section s, const int32_t *values,
                                 int count) {
    int32_t small[WEFTI_MAX_BUCKET], large[WEFTI_MAX_BUCKET];
    wefti_division first = {0}, x;
    int smalls = 0, larges = 0;
    for (int i = 0; i < count; i++) {
        const wefti_sharding *p = &b->dec->sharding[values[i]];
        const weft_desc *whole = &b->root->values[values[i]].desc;
        if (!b->part || wefti_layout_equal(&p->storage, &p->state)) continue;
        bool packs = wefti_gather_packs(b, whole, &p->state, &p->storage, &x);
        if (packs && smalls == 0) first = x;
        if (packs && wefti_build_same_axes(&x, &first) &&
            (smalls == 0 || whole->dtype == b->root->values[small[0]].desc.dtype))
            small[smalls++] = values[i];
        else
            large[larges++] = values[i];
    }
    WEFT_TRY(gather_some(b, s, large, larges, false));
    return gather_some(b, s, small, smalls, smalls > 1);
}

bool wefti_same_shape(const weft_desc *a, const weft_desc *b) {
    return a->rank == b->rank && !memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
}

/* The body of the update of another device's piece, which has other sizes than this device's. */
static weft_status update_body_of(wefti_emitter *b, const weft_desc *whole, const weft_desc *here,
                                  const wefti_update_rule *rule, bool copies,
                                  const weft_body **out) {
    wefti_update_rule other = *rule;
    weft_body *fresh;
    for (int i = 0; i < rule->states; i++) {
        const weft_desc *state = &rule->state_descs[i];
        if (!wefti_same_shape(state, whole)) continue;
        other.state_descs[i] = *here;
        other.state_descs[i].dtype = state->dtype;
    }
    WEFT_TRY(wefti_update_body(b->g, here, &other, copies, &fresh));
    return wefti_build_intern(b, fresh, out);
}

weft_status wefti_update_routine(wefti_emitter *b, int32_t value, const weft_desc *here,
                                 bool on_host, wefti_update_rule *rule, wefti_layout *state_layouts,
                                 int32_t *out) {
    const char *name = b->root->values[value].name;
    const weft_desc *whole = &b->root->values[value].desc;
    weft_body *fresh;
    const weft_body *body;
    *rule = (wefti_update_rule){0};
    WEFT_TRY(b->spec->optimizer->rule(b->spec->optimizer->context, name, whole, rule));
    const bool rows = wefti_rows_are(b->dec, value), copies = on_host && b->dec->copied[value];
    for (int i = 0; i < rule->states; i++)
        state_layouts[i] = rows && b->part ? b->dec->sharding[value].state
                                           : wefti_layout_replicated(rule->state_descs[i].rank);
    if (rows && here) {
        WEFT_TRY(update_body_of(b, whole, here, rule, copies, &body));
    } else if (rows) {
        WEFT_TRY(wefti_rows_update(b, value, rule, &body));
    } else {
        WEFT_TRY(wefti_update_body(b->g, whole, rule, copies, &fresh));
        WEFT_TRY(wefti_build_intern(b, fresh, &body));
    }
    if (b->part && !rows) {
        const wefti_local_body *local;
        WEFT_TRY(wefti_build_update_body(b, value, body, rule->states, &local));
        for (int i = 0; i < rule->states; i++) state_layouts[i] = local->in[1 + i];
        body = local->body;
    }
    if (here && !wefti_desc_equal(here, &body->values[body->in[0]].desc))
        WEFT_TRY(update_body_of(b, whole, here, rule, copies, &body));
    const wefti_routine_key key = {.body = body, .kind = WEFTI_ROUTINE_UPDATE, .on_host = on_host};
    WEFT_TRY(wefti_build_find(b, &key, out));
    if (*out >= 0) return WEFT_OK;
    wefti_routine_spec spec = {.body = (weft_body *)(uintptr_t)body};
    return wefti_build_compile(b, &key, &spec, out);
}

/* Adds the step of a slice. */
static weft_status call_slice(wefti_emitter *b, wefti_section s, const wefti_update_of *of,
                              int32_t slice, const wefti_update_operands *at) {
    const wefti_update_draft *u = of->draft;
    const int32_t value = of->value, routine = slice + 1 == u->slices ? u->last : u->routine;
    const int states = u->states;
    const wefti_routine *r = b->p->routines[routine];
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_UPDATE, of->name, r->args, &d));
    d->step.tensor = of->tensor;
    if (u->way == WEFTI_UPDATE_ON_HOST) d->step.space = WEFTI_SPACE_HOST;
    wefti_build_arg(b, d, 0, at->param.buffer, at->param.delta);
    for (int i = 0; i < states; i++)
        wefti_build_arg(b, d, 1 + i, at->state[i].buffer, at->state[i].delta);
    wefti_build_arg(b, d, 1 + states, at->gradient.buffer, at->gradient.delta);
    const bool f64 = wefti_update_scalars(&b->root->values[value].desc) == WEFT_F64;
    wefti_build_arg(b, d, 2 + states, u->way == WEFTI_UPDATE_ON_HOST ? b->host_scalars : b->scalars,
                    f64 ? (int64_t)offsetof(wefti_step_block, f64) : 0);
    /* Results replace their operands: the op writes in place, or the routine copies the result back
     * at its end if the op needed more than this piece. */
    const int32_t replaced = r->outputs - u->copies;
    for (int32_t o = 0; o < replaced; o++)
        d->args[r->inputs + o] = d->args[r->alias[o] >= 0 ? r->alias[o] : o];
    if (u->copies) wefti_build_arg(b, d, r->inputs + replaced, at->copy.buffer, at->copy.delta);
    return wefti_build_end(b, d, routine);
}

/* Where a slice's value and gradient are, if the whole ones are at `whole`. */
static wefti_update_operands operands_of(const wefti_update_draft *u, int32_t slice,
                                         const wefti_update_operands *whole) {
    const int64_t begin = slice * u->part[u->states].bytes;
    wefti_update_operands at = *whole;
    at.param.delta += begin;
    at.gradient.delta += begin;
    return at;
}

/* The touched rows of a table in a tier below device memory. at: where the table and its states
 * lie. */
static weft_status update_rows(wefti_emitter *b, wefti_section s, const wefti_update_of *of,
                               const wefti_update_operands *at) {
    wefti_update_operands rows;
    WEFT_TRY(wefti_rows_bring(b, s, of->value, at, &rows));
    WEFT_TRY(call_slice(b, s, of, 0, &rows));
    return wefti_rows_return(b, s, of->value, at, &rows);
}

weft_status wefti_update_slices(wefti_emitter *b, wefti_section s, const wefti_update_of *of,
                                const wefti_update_operands *whole) {
    wefti_update_draft *u = of->draft;
    for (int32_t slice = 0; slice < u->slices; slice++) {
        wefti_update_operands at = operands_of(u, slice, whole);
        WEFT_TRY(wefti_slice_take(b, s, u, slice, &at));
        WEFT_TRY(u->way == WEFTI_UPDATE_BY_ROWS ? update_rows(b, s, of, &at)
                                                : call_slice(b, s, of, slice, &at));
        WEFT_TRY(wefti_slice_store(b, s, u, slice, &at));
    }
    return WEFT_OK;
}

/* A slice on its way to the host that updates it. of.draft NULL: none. */
typedef struct sent_slice {
    wefti_update_of of;
    int32_t slice, number;
    wefti_update_operands from, at; /* on the device, on the host */
} sent_slice;

/* The update of a slice that has been sent to the host. */
static weft_status update_sent(wefti_emitter *b, wefti_section s, sent_slice *x) {
    const wefti_update_of of = x->of;
    const int32_t value = of.value;
    x->of.draft = NULL;
    if (!of.draft) return WEFT_OK;
    WEFT_TRY(wefti_slice_arrive(b, s, x->number));
    WEFT_TRY(call_slice(b, s, &of, x->slice, &x->at));
    WEFT_TRY(wefti_slice_return(b, s, value, x->slice, &x->at, x->from.param));
    if (!b->spec->optimizer->recovery || x->slice + 1 < of.draft->slices) return WEFT_OK;
    if (b->param_piece[value] >= 0) WEFT_TRY(wefti_tier_finish(b, s));
    return paste_piece(b, s, value);
}

/* Sends the slices of a parameter to the host, each one before the one before is updated there. */
static weft_status send_param(wefti_emitter *b, wefti_section s, const wefti_update_of *of,
                              const wefti_update_operands *whole, sent_slice *last) {
    for (int32_t slice = 0; slice < of->draft->slices; slice++) {
        sent_slice x = {.of = *of, .slice = slice, .from = operands_of(of->draft, slice, whole)};
        WEFT_TRY(wefti_slice_send(b, s, of->value, slice, &x.from, &x.number, &x.at));
        WEFT_TRY(update_sent(b, s, last));
        *last = x;
    }
    return WEFT_OK;
}

/* *last: the slice that has been sent before, if any. */
static weft_status update_param(wefti_emitter *b, wefti_section s, int32_t value,
                                sent_slice *last) {
    wefti_update_operands whole = {.gradient = {b->reduced[value], 0}};
    const int32_t tensor = b->param_index[value];
    const wefti_update_of of = {value, tensor, b->p->tensors[tensor].name, &b->update[value]};
    if (b->dec->served[value]) return wefti_served_pull(b, s, value);
    WEFT_TRY(wefti_slices_begin(b, value));
    WEFT_TRY(cut_piece(b, s, value));
    whole.param.buffer = piece_buffer(b, value, &whole.param.delta);
    if (of.draft->way == WEFTI_UPDATE_ON_HOST) return send_param(b, s, &of, &whole, last);
    WEFT_TRY(wefti_update_slices(b, s, &of, &whole));
    return b->spec->optimizer->recovery ? paste_piece(b, s, value) : WEFT_OK;
}

/* ---- buckets ---- */

/* Gathers a bucket's parameters, grouped by the fusion mode of gathers. */
static weft_status gather_bucket(wefti_emitter *b, wefti_section s, const int32_t *values,
                                 int32_t count) {
    wefti_fusion_item items[WEFTI_MAX_BUCKET];
    int32_t of[WEFTI_MAX_BUCKET], parts, together[WEFTI_MAX_BUCKET], shared = 0;
    if (!b->part) return WEFT_OK;
    for (int32_t i = 0; i < count; i++) { /* the first rank's piece, as for gradients */
        const wefti_sharding *x = &b->dec->sharding[values[i]];
        weft_desc here = wefti_layout_local(&x->storage, &b->p->mesh,
                                            &b->root->values[values[i]].desc, b->p->mesh.first);
        items[i] = (wefti_fusion_item){weft_desc_bytes(&here), 0};
        shared += !wefti_layout_equal(&x->storage, &x->state);
    }
    if (shared > 1) b->p->fused[1] += shared;
    WEFT_TRY(wefti_fusion_buckets(&b->spec->plan->fusion[1], count, items, of, &parts));
    for (int32_t part = 0; part < parts; part++) {
        int n = 0;
        for (int32_t i = 0; i < count; i++)
            if (of[i] == part) together[n++] = values[i];
        WEFT_TRY(gather_params(b, s, together, n));
    }
    return WEFT_OK;
}

/* Gathers a bucket's parameters, as many at a time as one routine takes. */
static weft_status gather_all(wefti_emitter *b, wefti_section s, const wefti_bucket *x) {
    for (int32_t at = 0; at < x->count; at += WEFTI_MAX_BUCKET)
        WEFT_TRY(
            gather_bucket(b, s, x->values + at,
                          x->count - at < WEFTI_MAX_BUCKET ? x->count - at : WEFTI_MAX_BUCKET));
    return WEFT_OK;
}

static weft_status update_pieces(wefti_emitter *b, wefti_section s, int32_t k) {
    const wefti_bucket *x = &b->dec->bucket[k];
    sent_slice last = {.of = {.draft = NULL}};
    for (int32_t i = 0; i < x->count; i++) WEFT_TRY(update_param(b, s, x->values[i], &last));
    return update_sent(b, s, &last);
}

static weft_status update_bucket(wefti_emitter *b, wefti_section s, int32_t k) {
    WEFT_TRY(update_pieces(b, s, k));
    return gather_all(b, s, &b->dec->bucket[k]);
}

/* With recovery, all pieces are updated, in their places, before any is gathered. A rank that loses
 * another one while it gathers has its own pieces, and gathers again. */
static weft_status update_all(wefti_emitter *b) {
    const wefti_section s = WEFTI_SECTION_UPDATE;
    WEFT_TRY(wefti_build_keep_states(b));
    for (int32_t k = 0; k < b->dec->bucket_count; k++) WEFT_TRY(update_pieces(b, s, k));
    WEFT_TRY(wefti_buddy_update(b));
    WEFT_TRY(wefti_tier_finish(b, s));
    b->p->gather_from = (int32_t)b->step_count[s];
    for (int32_t k = 0; k < b->dec->bucket_count; k++)
        WEFT_TRY(gather_all(b, s, &b->dec->bucket[k]));
    return WEFT_OK;
}

weft_status wefti_bucket_reduced(wefti_emitter *b, wefti_section s, int32_t k) {
    if (b->dec->eager && k >= 0) return update_bucket(b, s, k);
    const wefti_bucket *x = k >= 0 ? &b->dec->bucket[k] : NULL;
    for (int32_t i = 0; x && i < x->count; i++)
        if (b->dec->served[x->values[i]])
            WEFT_TRY(wefti_served_push(b, s, x->values[i]));
        else if (s <= WEFTI_SECTION_LAST)
            WEFT_TRY(wefti_gradient_leave(b, s, x->values[i], WEFTI_GRADIENT_SUM));
    return WEFT_OK;
}

/* ---- after accumulation ---- */

/* Whether this device counts the square of its piece of a gradient. Of the devices that hold the
 * same piece only one counts it. */
static bool counts(const wefti_emitter *b, int32_t v) {
    const int32_t reader = b->dec->tied[v];
    if (!b->spec->optimizer->clip || (reader >= 0 && reader != b->dec->stage)) return false;
    if (!b->part || b->p->own_norms) return true;
    wefti_rank_reads_counts(wefti_partition_reads(b->part), &b->p->mesh,
                            &b->dec->sharding[v].state);
    return wefti_layout_counts(&b->dec->sharding[v].state, &b->p->mesh, b->p->rank);
}

/* Copies the square of a gradient in host memory, which is made there, to its slot. */
static weft_status return_norm(wefti_emitter *b, int32_t v, int32_t at, int64_t slot) {
    const int64_t bytes = (int64_t)weft_dtype_bytes(b->p->norms_dtype);
    const wefti_flight f = {.use = WEFTI_FLIGHT_NOW,
                            .owner = -1,
                            .name = b->root->values[v].name,
                            .source = {at, 0},
                            .destination = {b->norms, slot * bytes}};
    int32_t move = -1;
    WEFT_TRY(wefti_flight_copy(b, WEFTI_SECTION_NORM, f, bytes, &move));
    return wefti_flight_arrive(b, WEFTI_SECTION_NORM);
}

/* Computes the square of one gradient into its slot. */
static weft_status norm_step(wefti_emitter *b, int32_t v, int64_t slot) {
    const bool hosted = b->dec->hosted[v];
    int32_t routine, in, node;
    weft_body *fresh;
    const weft_body *body;
    weft_desc desc =
        wefti_sharding_desc(b->dec, &b->root->values[v].desc, &b->dec->sharding[v].state);
    if (!hosted)
        WEFT_TRY(wefti_gradient_bring(b, WEFTI_SECTION_NORM, v, WEFTI_GRADIENT_SUM, false));
    WEFT_TRY(wefti_body_create(b->g, "norm", &fresh));
    if (wefti_rows_are(b->dec, v)) desc = b->dec->rows[v];
    weft_status status = wefti_body_input(fresh, desc, WEFTI_VALUE_INPUT, "gradient", &in);
    if (status == WEFT_OK && wefti_rows_are(b->dec, v))
        status = wefti_rows_sums(b, v, fresh, in, &node, &in);
    if (status == WEFT_OK)
        status = wefti_body_add(fresh, b->spec->optimizer->norm_op, NULL, 1, &in, NULL, "", &node);
    if (status == WEFT_OK && wefti_out(&fresh->nodes[node], 0)->dtype != b->p->norms_dtype) {
        wefti_attr to[] = {WEFTI_I(dtype, b->p->norms_dtype), {0}};
        in = fresh->nodes[node].out[0];
        status =
            wefti_body_add(fresh, wefti_op_find(b->g->ops, "cast"), NULL, 1, &in, to, "", &node);
    }
    if (status == WEFT_OK) status = wefti_body_output(fresh, fresh->nodes[node].out[0]);
    if (status < 0) {
        wefti_body_destroy(fresh);
        return status;
    }
    WEFT_TRY(wefti_build_intern(b, fresh, &body));
    const wefti_routine_key key = {.body = body, .kind = WEFTI_ROUTINE_UPDATE, .on_host = hosted};
    WEFT_TRY(wefti_build_find(b, &key, &routine));
    if (routine < 0) {
        wefti_routine_spec spec = {.body = (weft_body *)(uintptr_t)body};
        WEFT_TRY(wefti_build_compile(b, &key, &spec, &routine));
    }
    const wefti_routine *r = b->p->routines[routine];
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_begin(b, WEFTI_SECTION_NORM, WEFTI_STEP_CALL, WEFTI_UPDATE,
                               b->root->values[v].name, r->args, &d));
    int32_t square = b->norms;
    if (hosted) {
        d->step.space = WEFTI_SPACE_HOST;
        WEFT_TRY(wefti_buffer_add(b, (int64_t)weft_dtype_bytes(b->p->norms_dtype),
                                  "norm on the host", &square));
        b->buffers[square].space = WEFTI_SPACE_HOST;
    }
    wefti_build_arg(b, d, 0,
                    hosted ? b->gradient_home[WEFTI_GRADIENT_SUM][v].buffer : b->reduced[v], 0);
    wefti_build_arg(b, d, 1, square,
                    hosted ? 0 : slot * (int64_t)weft_dtype_bytes(b->p->norms_dtype));
    WEFT_TRY(wefti_build_end(b, d, routine));
    return hosted ? return_norm(b, v, square, slot) : WEFT_OK;
}

/* Sums `total` numbers over all devices; `own`: over the devices with the same position in all
 * stages. *buffer is the operand; then the sum, in a buffer called `name`. */
static weft_status sum_numbers(wefti_emitter *b, bool own, wefti_transfer sum, int32_t total,
                               const char *name, int32_t *buffer) {
    sum.kind = WEFTI_TRANSFER_ALL_REDUCE;
    sum.reduction = WEFTI_REDUCE_SUM;
    sum.rank = 1;
    sum.members = own ? b->dec->stages : b->spec->plan->devices;
    sum.me = own ? b->dec->stage : b->p->rank;
    if (sum.members == 1) return WEFT_OK;
    WEFT_TRY(wefti_new_array(b->scratch, sum.members, sizeof *sum.ranks, &sum.ranks));
    WEFT_TRY(wefti_new_array(b->scratch, sum.members, sizeof *sum.have, &sum.have));
    sum.want = sum.have;
    const int32_t place = b->p->rank - b->p->mesh.first;
    for (int32_t m = 0; m < sum.members; m++) {
        sum.ranks[m] = own ? wefti_plan_mesh(b->spec->plan, m).first + place : m;
        sum.have[m].size[0] = total;
    }
    wefti_transfer *kept;
    int32_t index, routine;
    WEFT_TRY(wefti_transfer_clone(&sum, &kept));
    WEFT_TRY(wefti_partition_add(b->part, kept, &index));
    weft_desc desc = weft_desc_of(sum.dtype, 1, (int64_t[]){total});
    WEFT_TRY(wefti_build_transfer_routine(b, &desc, index, &routine));
    int32_t here = *buffer;
    wefti_draft_step *d;
    WEFT_TRY(wefti_buffer_persistent(b, weft_desc_bytes(&desc),
                                     wefti_build_name(b, name, " of all devices"), buffer));
    WEFT_TRY(wefti_build_begin(b, WEFTI_SECTION_NORM, WEFTI_STEP_CALL, WEFTI_UPDATE, name,
                               b->p->routines[routine]->args, &d));
    wefti_build_arg(b, d, 0, here, 0);
    wefti_build_arg(b, d, 1, *buffer, 0);
    return wefti_build_end(b, d, routine);
}

/* Sums the squares of all devices' pieces over all devices. With own norms it sums over one model
 * replica: the devices with the same position in all stages. */
static weft_status share_norms(wefti_emitter *b, int32_t total) {
    const wefti_transfer sum = {.dtype = b->p->norms_dtype,
                                .name = "norms of gradients",
                                .tag = wefti_tag(WEFTI_TAG_NORMS, 0)};
    if (!b->part) return WEFT_OK;
    return sum_numbers(b, b->p->own_norms, sum, total, "norms", &b->norms);
}

/* Ends on a device only when all devices have what they update with. The norms of all devices do
 * that too. */
static weft_status commit(wefti_emitter *b) {
    const bool clip = b->spec->optimizer->clip;
    const wefti_transfer sum = {
        .dtype = WEFT_F32, .name = "commit", .tag = wefti_tag(WEFTI_TAG_COMMIT, 0)};
    int32_t number;
    if (!b->part || b->spec->plan->devices == 1 || (clip && !b->p->own_norms)) return WEFT_OK;
    WEFT_TRY(wefti_buffer_persistent(b, sizeof(float), "commit", &number));
    return sum_numbers(b, false, sum, 1, "commit", &number);
}

/* The slot of each parameter's square; all stages use the same numbers. */
static weft_status norm_slots(wefti_emitter *b, int64_t **out, int32_t *out_total) {
    *out_total = 0;
    WEFT_TRY(wefti_new_array(b->scratch, b->root->value_count, sizeof **out, out));
    WEFT_TRY(wefti_new_array(b->p->arena, b->root->in_count, sizeof *b->p->norm_names,
                             &b->p->norm_names));
    for (int64_t i = 0; i < b->root->in_count; i++) {
        int32_t v = b->root->in[i];
        if (b->root->values[v].kind != WEFTI_VALUE_PARAM || !b->dec->has_gradient[v]) continue;
        b->p->norm_names[*out_total] = wefti_build_name(b, "", b->root->values[v].name);
        (*out)[v] = (*out_total)++;
    }
    return WEFT_OK;
}

/* Sums the gradients of parameters that several stages read. The order is the model's, which is
 * equal on all stages, while each stage has its own buckets. */
static weft_status tie_stages(wefti_emitter *b, wefti_section s) {
    for (int32_t k = 0; k < b->dec->bucket_count; k++) {
        const wefti_bucket *x = &b->dec->bucket[k];
        bool tied = false;
        for (int32_t i = 0; i < x->count; i++) tied = tied || b->dec->tied[x->values[i]] >= 0;
        if (tied) WEFT_TRY(wefti_reduce_bucket(b, s, k, false));
    }
    for (int64_t i = 0; i < b->root->in_count; i++) {
        int32_t v = b->root->in[i];
        bool here = b->param_index[v] >= 0 && b->dec->has_gradient[v];
        if (!here || b->dec->tied[v] < 0) continue;
        WEFT_TRY(wefti_gradient_bring(b, s, v, WEFTI_GRADIENT_SUM, true));
        WEFT_TRY(wefti_pipeline_tie(b, s, v, &b->reduced[v]));
    }
    return WEFT_OK;
}

/* Begins to fetch what the next bucket's reduction and norms need. */
static weft_status bucket_ahead(wefti_emitter *b, wefti_section s, int32_t k) {
    const wefti_bucket *x = k < b->dec->bucket_count ? &b->dec->bucket[k] : NULL;
    for (int32_t i = 0; x && i < x->count; i++) {
        const int32_t v = x->values[i];
        if (b->dec->hosted[v]) continue;
        if (b->begun[k] ? counts(b, v) : wefti_is_reduced(b, v) || counts(b, v))
            WEFT_TRY(wefti_gradient_ahead(b, s, v,
                                          b->begun[k] ? WEFTI_GRADIENT_SUM : WEFTI_GRADIENT_TERM));
    }
    return WEFT_OK;
}

/* A bucket is complete before updates begin. */
static weft_status bucket_ready(wefti_emitter *b, int32_t k, const int64_t *slot) {
    const wefti_bucket *x = &b->dec->bucket[k];
    for (int32_t i = 0; i < x->count; i++) {
        const int32_t v = x->values[i];
        if (!counts(b, v)) continue;
        WEFT_TRY(b->dec->served[v] ? wefti_served_norm(b, v, slot[v]) : norm_step(b, v, slot[v]));
    }
    WEFT_TRY(wefti_pass_stored(b, WEFTI_SECTION_NORM));
    for (int32_t i = 0; i < x->count; i++)
        WEFT_TRY(wefti_gradient_leave(b, WEFTI_SECTION_NORM, x->values[i], WEFTI_GRADIENT_SUM));
    return WEFT_OK;
}

/* With clipping, the norm of all complete gradients is known before any parameter changes. With
 * recovery, all devices have all gradients by then. Otherwise each bucket is finished before the
 * next begins. */
weft_status wefti_build_update_section(wefti_emitter *b) {
    int32_t total;
    int64_t *slot;
    const bool clip = b->spec->optimizer->clip, recovery = b->spec->optimizer->recovery;
    const bool before = clip || recovery; /* all gradients are complete before any update */
    wefti_section first = before ? WEFTI_SECTION_NORM : WEFTI_SECTION_UPDATE;
    b->reduces = false;
    WEFT_TRY(norm_slots(b, &slot, &total));
    if (b->dec->stages > 1) WEFT_TRY(tie_stages(b, first));
    for (int32_t k = 0; k < b->dec->bucket_count; k++) {
        WEFT_TRY(wefti_reduce_bucket(b, first, k, false));
        WEFT_TRY(bucket_ahead(b, first, k + 1));
        WEFT_TRY(before ? bucket_ready(b, k, slot) : update_bucket(b, WEFTI_SECTION_UPDATE, k));
    }
    b->p->norm_count = clip ? total : 0;
    if (!before) return WEFT_OK;
    WEFT_TRY(wefti_pass_stored(b, WEFTI_SECTION_NORM));
    WEFT_TRY(wefti_served_finish(b, WEFTI_SECTION_NORM));
    if (recovery) WEFT_TRY(wefti_buddy_exchange(b));
    if (clip) WEFT_TRY(share_norms(b, total));
    if (recovery) WEFT_TRY(commit(b));
    if (recovery) return update_all(b);
    for (int32_t k = 0; k < b->dec->bucket_count; k++)
        WEFT_TRY(update_bucket(b, WEFTI_SECTION_UPDATE, k));
    return WEFT_OK;
}
