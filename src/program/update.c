/* Updates of parameters: gradients are made complete over the mesh, in buckets, and the optimizer's
 * ops follow, each on this rank's piece. With one microbatch and no clipping a parameter is updated
 * as soon as its gradient is complete. */
#include <string.h>

#include "program/build.h"

static weft_status update_body(wefti_program_builder *b, const weft_desc *desc,
                               const wefti_update_rule *rule, weft_body **out) {
    weft_body *body;
    int32_t in[8], node;
    WEFT_TRY(wefti_body_create(b->g, "update", &body));
    weft_status status = wefti_body_input(body, *desc, WEFTI_VALUE_INPUT, "param", &in[0]);
    for (int i = 0; i < rule->states && status == WEFT_OK; i++)
        status = wefti_body_input(body, rule->state_descs[i], WEFTI_VALUE_INPUT,
                                  rule->state_names[i], &in[1 + i]);
    if (status == WEFT_OK)
        status =
            wefti_body_input(body, *desc, WEFTI_VALUE_INPUT, "gradient", &in[1 + rule->states]);
    weft_desc scalars = weft_desc_of(WEFT_F32, 1, (int64_t[]){8});
    if (status == WEFT_OK)
        status =
            wefti_body_input(body, scalars, WEFTI_VALUE_INPUT, "scalars", &in[2 + rule->states]);
    int operands = 3 + rule->states, absent = rule->absent;
    if (absent) { /* between the states and the gradient */
        memmove(&in[operands - 2 + absent], &in[operands - 2], 2 * sizeof in[0]);
        for (int i = 0; i < absent; i++) in[1 + rule->states + i] = -1;
    }
    if (status == WEFT_OK)
        status =
            wefti_body_add(body, rule->op, NULL, operands + absent, in, rule->attrs, "", &node);
    for (int o = 0; status == WEFT_OK && o < body->nodes[node].outputs; o++)
        status = wefti_body_output(body, body->nodes[node].out[o]);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    *out = body;
    return WEFT_OK;
}

/* An update body equal to one that exists is that one. */
static weft_status intern_update(wefti_program_builder *b, weft_body *body, const weft_body **out) {
    for (int32_t i = 0; i < b->p->body_count; i++)
        if (b->p->bodies[i]->node_count == 1 && wefti_body_equal(b->p->bodies[i], body)) {
            wefti_body_destroy(body);
            *out = b->p->bodies[i];
            return WEFT_OK;
        }
    *out = body;
    return wefti_build_keep_body(b, body);
}

/* ---- complete gradients ---- */

/* Where the gradient of a parameter lies that the optimizer's piece needs. */
static weft_status reduce(wefti_program_builder *b, wefti_section s, const int32_t *values,
                          int count, int32_t *out) {
    weft_desc descs[WEFTI_MAX_BUCKET];
    wefti_layout from[WEFTI_MAX_BUCKET], to[WEFTI_MAX_BUCKET];
    int32_t which[WEFTI_MAX_BUCKET];
    char zeros[WEFTI_MAX_BUCKET + 1];
    int n = 0;
    for (int i = 0; i < count; i++) {
        const wefti_spread *x = &b->spread[values[i]];
        out[i] = b->param_gradient[values[i]];
        if (!b->part || wefti_layout_equal(&x->gradient, &x->state)) continue;
        descs[n] = b->root->values[values[i]].desc;
        from[n] = x->gradient;
        to[n] = x->state;
        which[n] = i;
        zeros[n++] = '0';
    }
    zeros[n] = '\0';
    if (n == 0) return WEFT_OK;
    int32_t routine;
    wefti_draft_step *d;
    WEFT_TRY(wefti_spread_reshard(b, n, descs, from, to, zeros, &routine));
    const wefti_routine *r = b->p->routines[routine];
    const char *name = b->root->values[values[which[0]]].name;
    int32_t buffer[WEFTI_MAX_BUCKET];
    for (int i = 0; i < n; i++) {
        weft_desc here = wefti_spread_desc(b, &descs[i], &to[i]);
        const char *of = b->root->values[values[which[i]]].name;
        WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here),
                                  wefti_build_name(b, "complete gradient of ", of), &buffer[i]));
        out[which[i]] = buffer[i];
    }
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_OTHER,
                               wefti_build_name(b, "gradients up to ", name), r->args, &d));
    for (int i = 0; i < n; i++) {
        wefti_build_arg(b, d, i, b->param_gradient[values[which[i]]], 0);
        wefti_build_arg(b, d, n + i, buffer[i], 0);
    }
    return wefti_build_end(b, d, routine);
}

/* ---- one parameter ---- */

/* Bytes from the beginning of this rank's part of a parameter to the optimizer's piece of it. */
static int64_t piece_offset(const wefti_program_builder *b, int32_t value) {
    const wefti_spread *x = &b->spread[value];
    const weft_desc *desc = &b->root->values[value].desc;
    if (!b->part || wefti_layout_equal(&x->storage, &x->state)) return 0;
    wefti_box stored, piece;
    wefti_layout_box(&x->storage, &b->p->mesh, desc, b->p->rank, &stored);
    wefti_layout_box(&x->state, &b->p->mesh, desc, b->p->rank, &piece);
    int64_t row = (int64_t)weft_dtype_bytes(desc->dtype);
    for (int d = 1; d < desc->rank; d++) row *= stored.size[d];
    return (piece.begin[0] - stored.begin[0]) * row;
}

/* Put the pieces together again. */
static weft_status gather_param(wefti_program_builder *b, wefti_section s, int32_t value) {
    const wefti_spread *x = &b->spread[value];
    if (!b->part || wefti_layout_equal(&x->storage, &x->state)) return WEFT_OK;
    int32_t routine;
    wefti_draft_step *d;
    WEFT_TRY(wefti_spread_reshard(b, 1, &b->root->values[value].desc, &x->state, &x->storage, "0",
                                  &routine));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_UPDATE, b->root->values[value].name,
                               b->p->routines[routine]->args, &d));
    wefti_build_arg(b, d, 0, b->param_buffer[value], piece_offset(b, value));
    wefti_build_arg(b, d, 1, b->param_buffer[value], 0);
    return wefti_build_end(b, d, routine);
}

static weft_status update_routine(wefti_program_builder *b, int32_t value,
                                  const wefti_update_rule *rule, const wefti_cut_body **out_cut,
                                  int32_t *out) {
    weft_body *fresh;
    const weft_body *body;
    WEFT_TRY(update_body(b, &b->root->values[value].desc, rule, &fresh));
    WEFT_TRY(intern_update(b, fresh, &body));
    *out_cut = NULL;
    if (b->part) {
        WEFT_TRY(wefti_spread_update(b, value, body, rule->states, out_cut));
        body = (*out_cut)->body;
    }
    WEFT_TRY(wefti_build_find(b, body, WEFTI_ROUTINE_UPDATE, "", out));
    if (*out >= 0) return WEFT_OK;
    wefti_routine_spec spec = {.body = (weft_body *)(uintptr_t)body};
    return wefti_build_compile(b, body, WEFTI_ROUTINE_UPDATE, "", &spec, out);
}

static weft_status update_param(wefti_program_builder *b, wefti_section s, int32_t value,
                                int32_t gradient) {
    int32_t tensor = b->param_index[value], routine;
    const char *name = b->p->tensors[tensor].name;
    weft_desc desc = b->root->values[value].desc;
    wefti_update_rule rule = {0};
    const wefti_cut_body *cut;
    WEFT_TRY(b->spec->optimizer->rule(b->spec->optimizer->context, name, &desc, &rule));
    WEFT_TRY(update_routine(b, value, &rule, &cut, &routine));
    const wefti_routine *r = b->p->routines[routine];
    int32_t state[4];
    for (int i = 0; i < rule.states; i++) {
        int32_t index;
        char *full = wefti_format("%s.%s", name, rule.state_names[i]);
        WEFT_REQUIRE(full, WEFT_E_NOMEM, "no memory for a name");
        weft_status status = wefti_build_persistent(
            b, full, WEFTI_TENSOR_OPTIMIZER, &rule.state_descs[i], cut ? &cut->in[1 + i] : NULL,
            (weft_init){WEFT_INIT_ZEROS, 0}, &state[i], &index);
        wefti_free(full);
        WEFT_TRY(status);
    }
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_UPDATE, name, r->args, &d));
    d->step.tensor = tensor;
    wefti_build_arg(b, d, 0, b->param_buffer[value], piece_offset(b, value));
    for (int i = 0; i < rule.states; i++) wefti_build_arg(b, d, 1 + i, state[i], 0);
    wefti_build_arg(b, d, 1 + rule.states, gradient, 0);
    wefti_build_arg(b, d, 2 + rule.states, b->scalars, 0);
    /* Results take their operands' place: in place by the op, or brought back there at the end,
     * when the op had to see more than this piece. */
    for (int32_t o = 0; o < r->outputs; o++)
        d->args[r->inputs + o] = d->args[r->alias[o] >= 0 ? r->alias[o] : o];
    WEFT_TRY(wefti_build_end(b, d, routine));
    return gather_param(b, s, value);
}

/* ---- buckets ---- */

weft_status wefti_build_flush(wefti_program_builder *b, wefti_section s) {
    int32_t gradient[WEFTI_MAX_BUCKET];
    if (b->ready_count == 0) return WEFT_OK;
    WEFT_TRY(reduce(b, s, b->ready, b->ready_count, gradient));
    for (int32_t i = 0; i < b->ready_count; i++)
        WEFT_TRY(update_param(b, s, b->ready[i], gradient[i]));
    b->ready_count = 0;
    b->ready_bytes = 0;
    return WEFT_OK;
}

static int64_t bucket_limit(const wefti_program_builder *b) {
    if (!b->part) return 0; /* one device: at once, the gradient's memory is needed */
    const wefti_fusion *f = &b->spec->plan->fusion[0];
    if (f->mode == WEFT_FUSION_AUTO) return 64 << 20;
    return f->mode == WEFT_FUSION_SIZE ? f->bytes : 0;
}

static weft_status add_ready(wefti_program_builder *b, wefti_section s, int32_t value) {
    weft_desc local =
        wefti_spread_desc(b, &b->root->values[value].desc, &b->spread[value].gradient);
    int64_t bytes = weft_desc_bytes(&local);
    if (b->ready_count == WEFTI_MAX_BUCKET ||
        (b->ready_count > 0 && b->ready_bytes + bytes > bucket_limit(b)))
        WEFT_TRY(wefti_build_flush(b, s));
    b->ready[b->ready_count++] = value;
    b->ready_bytes += bytes;
    return bucket_limit(b) ? WEFT_OK : wefti_build_flush(b, s);
}

weft_status wefti_build_eager_updates(wefti_program_builder *b, int32_t k) {
    if (!b->eager) return WEFT_OK;
    const weft_node *n = b->calls[k].node;
    for (int i = 0; i < n->inputs; i++) {
        int32_t v = n->in[i];
        if (v >= 0 && b->param_index[v] >= 0 && b->has_gradient[v] && b->last_backward[v] == k)
            WEFT_TRY(add_ready(b, WEFTI_SECTION_FIRST, v));
    }
    return WEFT_OK;
}

/* ---- after accumulation ---- */

/* The square of one gradient into its slot; only one of the devices that hold the same piece
 * counts. */
static weft_status norm_step(wefti_program_builder *b, int32_t v, int32_t gradient, int64_t slot) {
    int32_t routine, in, node;
    weft_body *fresh;
    const weft_body *body;
    weft_desc desc = wefti_spread_desc(b, &b->root->values[v].desc, &b->spread[v].state);
    if (b->part && !wefti_layout_counts(&b->spread[v].state, &b->p->mesh, b->p->rank))
        return WEFT_OK;
    WEFT_TRY(wefti_body_create(b->g, "norm", &fresh));
    weft_status status = wefti_body_input(fresh, desc, WEFTI_VALUE_INPUT, "gradient", &in);
    if (status == WEFT_OK)
        status = wefti_body_add(fresh, b->spec->optimizer->norm_op, NULL, 1, &in, NULL, "", &node);
    if (status == WEFT_OK) status = wefti_body_output(fresh, fresh->nodes[node].out[0]);
    if (status < 0) {
        wefti_body_destroy(fresh);
        return status;
    }
    WEFT_TRY(intern_update(b, fresh, &body));
    WEFT_TRY(wefti_build_find(b, body, WEFTI_ROUTINE_UPDATE, "", &routine));
    if (routine < 0) {
        wefti_routine_spec spec = {.body = (weft_body *)(uintptr_t)body};
        WEFT_TRY(wefti_build_compile(b, body, WEFTI_ROUTINE_UPDATE, "", &spec, &routine));
    }
    const wefti_routine *r = b->p->routines[routine];
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_begin(b, WEFTI_SECTION_NORM, WEFTI_STEP_CALL, WEFTI_UPDATE,
                               b->root->values[v].name, r->args, &d));
    wefti_build_arg(b, d, 0, gradient, 0);
    wefti_build_arg(b, d, 1, b->norms, slot * 4);
    return wefti_build_end(b, d, routine);
}

/* Squares of all devices' pieces, added up everywhere. */
static weft_status share_norms(wefti_program_builder *b, int32_t total) {
    if (!b->part) return WEFT_OK;
    wefti_transfer world = {.kind = WEFTI_TRANSFER_ALL_REDUCE,
                            .reduction = WEFTI_REDUCE_SUM,
                            .dtype = WEFT_F32,
                            .rank = 1,
                            .members = b->spec->plan->devices,
                            .me = b->p->rank,
                            .name = "norms of gradients",
                            .tag = 1};
    if (world.members == 1) return WEFT_OK;
    WEFT_TRY(wefti_build_array(b, world.members, sizeof *world.ranks, &world.ranks));
    WEFT_TRY(wefti_build_array(b, world.members, sizeof *world.have, &world.have));
    world.want = world.have;
    for (int32_t m = 0; m < world.members; m++) {
        world.ranks[m] = m;
        world.have[m].size[0] = total;
    }
    wefti_transfer *kept;
    int32_t index, routine;
    WEFT_TRY(wefti_transfer_clone(&world, &kept));
    WEFT_TRY(wefti_partition_add(b->part, kept, &index));
    weft_desc desc = weft_desc_of(WEFT_F32, 1, (int64_t[]){total});
    WEFT_TRY(wefti_spread_transfer(b, &desc, index, &routine));
    int32_t own = b->norms;
    wefti_draft_step *d;
    WEFT_TRY(wefti_buffer_persistent(b, (int64_t)total * 4, "norms of all devices", &b->norms));
    WEFT_TRY(wefti_build_begin(b, WEFTI_SECTION_NORM, WEFTI_STEP_CALL, WEFTI_UPDATE, "norms",
                               b->p->routines[routine]->args, &d));
    wefti_build_arg(b, d, 0, own, 0);
    wefti_build_arg(b, d, 1, b->norms, 0);
    return wefti_build_end(b, d, routine);
}

weft_status wefti_build_update_section(wefti_program_builder *b) {
    const weft_body *root = b->root;
    int32_t *list, *gradient, count = 0, total = 0;
    bool clip = b->spec->optimizer->clip;
    wefti_section first = clip ? WEFTI_SECTION_NORM : WEFTI_SECTION_UPDATE;
    WEFT_TRY(wefti_build_array(b, root->in_count, sizeof *list, &list));
    WEFT_TRY(wefti_build_array(b, root->in_count, sizeof *gradient, &gradient));
    int64_t *slot;
    bool *counts; /* in the norm, of several stages that read it */
    WEFT_TRY(wefti_build_array(b, root->in_count, sizeof *slot, &slot));
    WEFT_TRY(wefti_build_array(b, root->in_count, sizeof *counts, &counts));
    for (int64_t i = 0; i < root->in_count; i++) {
        int32_t v = root->in[i];
        if (root->values[v].kind != WEFTI_VALUE_PARAM || !b->has_gradient[v]) continue;
        if (b->param_index[v] >= 0) {
            slot[count] = total;
            list[count++] = v;
        }
        total++;
    }
    for (int32_t at = 0; at < count;) {
        int32_t n = 0;
        int64_t bytes = 0;
        while (at + n < count && n < WEFTI_MAX_BUCKET) {
            weft_desc d = wefti_spread_desc(b, &root->values[list[at + n]].desc,
                                            &b->spread[list[at + n]].gradient);
            if (n > 0 && bytes + weft_desc_bytes(&d) > bucket_limit(b)) break;
            bytes += weft_desc_bytes(&d);
            n++;
        }
        WEFT_TRY(reduce(b, first, &list[at], n, &gradient[at]));
        for (int32_t i = at; i < at + n; i++)
            WEFT_TRY(wefti_pipeline_tie(b, first, list[i], &gradient[i], &counts[i]));
        at += n;
        if (!clip)
            for (int32_t i = at - n; i < at; i++)
                WEFT_TRY(update_param(b, WEFTI_SECTION_UPDATE, list[i], gradient[i]));
    }
    b->p->norm_count = clip ? total : 0;
    if (!clip) return WEFT_OK;
    for (int32_t i = 0; i < count; i++)
        if (counts[i]) WEFT_TRY(norm_step(b, list[i], gradient[i], slot[i]));
    WEFT_TRY(share_norms(b, total));
    for (int32_t i = 0; i < count; i++)
        WEFT_TRY(update_param(b, WEFTI_SECTION_UPDATE, list[i], gradient[i]));
    return WEFT_OK;
}
