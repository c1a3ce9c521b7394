/* Decides the layouts of values on the mesh, and partitions bodies by them.
 *
 * - An input has the layout that the plan or the data set's rule gives.
 * - A parameter has the layout that its first reader requires.
 * - What servers keep has no pieces of its own for the optimizer.
 * - Its optimizer state is split further by the axes that would replicate it, along the dimension
 *   that makes even pieces. So is the parameter itself, if wefti_plan_divides says so. A piece lies
 *   within this rank's region of the parameter, whatever the sizes. Source: Rajbhandari et al.,
 *   "ZeRO", SC 2020, section 5.
 * - A result of a cell keeps the layout in which it is computed, with partial sums added up.
 * - The gradient of an activation has the layout of the activation.
 * - The gradient of a parameter stays a partial sum until it is complete. At level 3 the calls that
 *   compute it also reduce it. */
#include <string.h>

#include "builder/decide.h"

static const wefti_mesh *mesh_of(const wefti_decisions *dec) {
    return &dec->mesh;
}

weft_desc wefti_sharding_desc(const wefti_decisions *dec, const weft_desc *whole,
                              const wefti_layout *layout) {
    if (!dec->part) return *whole;
    wefti_rank_reads_layout(wefti_partition_reads(dec->part), mesh_of(dec), whole, layout);
    return wefti_layout_local(layout, mesh_of(dec), whole, dec->rank);
}

static wefti_layout whole_layout(const wefti_value_info *info) {
    return wefti_layout_replicated(info->desc.rank);
}

/* ---- parameters ---- */

static void set_param(wefti_decisions *dec, int32_t v, const wefti_layout *use) {
    const weft_plan *plan = dec->spec->plan;
    wefti_sharding *s = &dec->sharding[v];
    const weft_desc *whole = &dec->root->values[v].desc;
    s->use = s->storage = s->state = s->gradient = *use;
    s->known = true;
    if (dec->spec->observer)
        dec->spec->observer->tensor(dec->spec->observer->context, dec->root->values[v].name, use,
                                    mesh_of(dec));
    int32_t parts = wefti_mesh_product(mesh_of(dec), wefti_layout_split_axes(use));
    if (dec->root->values[v].kind != WEFTI_VALUE_PARAM || plan->optimizer.level == 0 ||
        dec->hosted[v] || dec->served[v] || whole->rank == 0 ||
        weft_desc_bytes(whole) / parts < plan->optimizer.threshold)
        return;
    s->state = wefti_plan_state_layout(plan, mesh_of(dec), whole, use);
    if (wefti_plan_divides(plan, dec->root->values[v].name)) s->storage = s->state;
    if (plan->optimizer.level >= 2 && (!dec->late || dec->inside[v])) {
        s->gradient = s->state;
        s->gradient_known = true;
    }
}

/* The layout of a parameter or state in the program that shares it; NULL: that program lacks it. */
static const wefti_layout *shared_layout(const wefti_decisions *dec, const char *name) {
    if (!dec->spec->shared || !name) return NULL;
    if (!dec->layouts_only) {
        const wefti_tensor *old = wefti_program_tensor(dec->spec->shared, name);
        bool kept = old && (old->role == WEFTI_TENSOR_PARAM || old->role == WEFTI_TENSOR_STATE);
        return kept ? &old->layout : NULL;
    }
    for (const wefti_stage_layouts *l = dec->spec->shared->remote_layouts; l; l = l->next) {
        wefti_mesh mesh = wefti_plan_mesh(dec->spec->plan, l->stage);
        if (!wefti_meshes_alike(&mesh, &dec->mesh)) continue;
        for (int32_t i = 0; i < l->count; i++)
            if (!strcmp(l->names[i], name)) return &l->layouts[i];
    }
    return NULL;
}

/* A tensor that the sharing program already has keeps its layout from there. */
static bool set_shared(wefti_decisions *dec, int32_t v) {
    const wefti_value_info *info = &dec->root->values[v];
    const wefti_layout *old = shared_layout(dec, info->name);
    if (!old) return false;
    wefti_sharding *s = &dec->sharding[v];
    s->storage = s->state = s->gradient = *old;
    if (!wefti_plan_divides(dec->spec->plan, info->name) || info->kind == WEFTI_VALUE_STATE ||
        dec->hosted[v] || dec->served[v]) {
        s->use = *old;
        s->known = true;
    }
    return true;
}

static weft_status given_layout(wefti_decisions *dec, const wefti_value_info *info,
                                const wefti_tensor_strategy *t, wefti_layout *out) {
    weft_status status = wefti_layout_parse(t->layout, mesh_of(dec), out);
    if (status == WEFT_OK) status = wefti_layout_check_stated(out, mesh_of(dec), &info->desc);
    if (status < 0)
        return wefti_prefix(status, "%s%sthe layout '%s' of '%s', which is %s",
                            t->source ? t->source : "", t->source ? ": " : "", t->layout,
                            info->name, wefti_desc_text(&info->desc).text);
    wefti_layout_normal(out, mesh_of(dec), &info->desc);
    return WEFT_OK;
}

/* ---- inputs ---- */

/* The axes of `cuts` parts of dimension d. Batches take the outermost axes, of which "dp" is the
 * usual one; other dimensions take "dp" only if no other axis fits. */
static weft_status cut_dimension(const wefti_decisions *dec, int d, int64_t cuts,
                                 wefti_dim_split *out) {
    const wefti_mesh *mesh = mesh_of(dec);
    int dp = wefti_mesh_find(mesh, "dp");
    wefti_axes batch = 0;
    for (int a = 0; a < mesh->axes; a++)
        if (dp >= 0 && (a == dp || (a == dp + 1 && wefti_mesh_part(mesh, a)))) batch |= 1u << a;
    wefti_axes used = d == 0 ? ~batch : batch;
    if (batch && wefti_cut_axes(mesh, cuts, &used, out) == WEFT_OK) return WEFT_OK;
    used = 0;
    return wefti_cut_axes(mesh, cuts, &used, out);
}

/* The layout that the plan's cuts of inputs give to input number `number`. */
static weft_status cut_layout(const wefti_decisions *dec, const wefti_value_info *info,
                              int32_t number, wefti_layout *out) {
    const wefti_strategy *s = &dec->spec->plan->dataset_cuts;
    if (number >= s->cut_inputs && info->desc.rank == 0) return WEFT_OK;
    WEFT_REQUIRE(number < s->cut_inputs && s->cut_ranks[number] == info->desc.rank, WEFT_E_LAYOUT,
                 "dataset: input %d, '%s', is %s, but the tuple for it has %d numbers; each input "
                 "needs one for each dimension",
                 number, info->name, wefti_desc_text(&info->desc).text,
                 number < s->cut_inputs ? s->cut_ranks[number] : 0);
    const int64_t *cuts = s->cuts;
    for (int32_t i = 0; i < number; i++) cuts += s->cut_ranks[i];
    for (int d = 0; d < info->desc.rank; d++) {
        if (cuts[d] == 1) continue;
        weft_status status = cut_dimension(dec, d, cuts[d], &out->dim[d]);
        if (status < 0) return wefti_prefix(status, "dataset: dimension %d of '%s'", d, info->name);
    }
    weft_status status = wefti_layout_check_stated(out, mesh_of(dec), &info->desc);
    if (status < 0) return wefti_prefix(status, "dataset: the input '%s'", info->name);
    wefti_layout_normal(out, mesh_of(dec), &info->desc);
    return WEFT_OK;
}

/* More tuples than inputs, of anything but numbers: most likely a mistake. */
static weft_status check_cut_inputs(const wefti_decisions *dec, int32_t inputs) {
    const wefti_strategy *s = &dec->spec->plan->dataset_cuts;
    for (int32_t i = inputs; i < s->cut_inputs && s->cuts; i++)
        WEFT_REQUIRE(s->cut_ranks[i] == 0, WEFT_E_LAYOUT,
                     "dataset has tuples for %d inputs, but the graph has %d", s->cut_inputs,
                     inputs);
    return WEFT_OK;
}

/* The axis "dp" splits the batch; in data-parallel mode all axes do. `number` counts inputs. */
static weft_status input_layout(wefti_decisions *dec, const wefti_value_info *info, int32_t number,
                                wefti_layout *out) {
    const weft_plan *plan = dec->spec->plan;
    *out = whole_layout(info);
    if (plan->dataset_cuts.cuts) return cut_layout(dec, info, number, out);
    if (plan->dataset == WEFT_DATASET_FULL_BATCH || plan->mode == WEFT_PARALLEL_MANUAL ||
        info->desc.rank == 0)
        return WEFT_OK;
    wefti_dim_split *batch = &out->dim[0];
    int dp = wefti_mesh_find(mesh_of(dec), "dp");
    for (int a = 0; a < mesh_of(dec)->axes; a++)
        if (plan->mode == WEFT_PARALLEL_DATA || a == dp ||
            (dp >= 0 && a == dp + 1 && wefti_mesh_part(mesh_of(dec), a)))
            batch->axis[batch->count++] = (int8_t)a;
    wefti_layout_normal(out, mesh_of(dec), &info->desc);
    int64_t parts = wefti_layout_parts(out, mesh_of(dec), 0);
    WEFT_REQUIRE(parts <= info->desc.shape[0], WEFT_E_LAYOUT,
                 "the input '%s' is %s: its %lld samples cannot be split over %lld devices (the "
                 "microbatch must have at least one sample for each)",
                 info->name, wefti_desc_text(&info->desc).text, (long long)info->desc.shape[0],
                 (long long)parts);
    return WEFT_OK;
}

weft_status wefti_sharding_start(wefti_decisions *dec) {
    const weft_body *root = dec->root;
    WEFT_TRY(
        wefti_new_array(dec->scratch, root->value_count, sizeof *dec->sharding, &dec->sharding));
    if (!dec->spec->plan) return WEFT_OK;
    WEFT_TRY(wefti_partition_create(dec->spec->plan, mesh_of(dec), dec->rank, dec->g,
                                    dec->spec->routes, &dec->part));
    int32_t inputs = 0;
    for (int64_t i = 0; i < root->in_count; i++) {
        int32_t v = root->in[i];
        const wefti_value_info *info = &root->values[v];
        const wefti_tensor_strategy *t = wefti_plan_tensor(dec->spec->plan, info->name);
        wefti_layout layout = whole_layout(info);
        int32_t number = inputs;
        inputs += info->kind == WEFTI_VALUE_INPUT;
        if (set_shared(dec, v)) continue;
        if (t) WEFT_TRY(given_layout(dec, info, t, &layout));
        if (info->kind == WEFTI_VALUE_INPUT && !t)
            WEFT_TRY(input_layout(dec, info, number, &layout));
        if (info->kind == WEFTI_VALUE_PARAM && !t)
            continue; /* the first call that reads it
                         decides */
        set_param(dec, v, &layout);
    }
    return check_cut_inputs(dec, inputs);
}

/* ---- partition ---- */

weft_status wefti_request_new(wefti_arena *arena, const weft_body *body, const char *call,
                              wefti_request *r) {
    WEFT_TRY(wefti_new_array(arena, body->in_count, sizeof *r->in, &r->in));
    WEFT_TRY(wefti_new_array(arena, body->out_count, sizeof *r->out, &r->out));
    WEFT_TRY(wefti_new_array(arena, body->out_count, sizeof *r->late, &r->late));
    WEFT_TRY(wefti_new_array(arena, body->in_count, 1, &r->in_state));
    WEFT_TRY(wefti_new_array(arena, body->out_count, 1, &r->out_state));
    WEFT_TRY(wefti_new_array(arena, body->out_count, sizeof *r->names, &r->names));
    for (int64_t o = 0; o < body->out_count; o++) r->out_state[o] = WEFTI_LAYOUT_OPEN;
    r->spec = (wefti_partition_spec){.body = body,
                                     .call = call,
                                     .in = r->in,
                                     .out = r->out,
                                     .late = r->late,
                                     .in_state = r->in_state,
                                     .out_state = r->out_state,
                                     .out_gradient_of = r->names};
    return WEFT_OK;
}

/* One request at a time. */
static weft_status new_request(wefti_decisions *dec, const weft_body *body, const char *call,
                               wefti_request *r) {
    wefti_arena_clear(dec->requests);
    return wefti_request_new(dec->requests, body, call, r);
}

static void require_input(wefti_decisions *dec, wefti_request *r, int64_t i, int32_t v) {
    if (dec->sharding[v].known)
        r->in[i] = dec->sharding[v].use;
    else
        r->in_state[i] = WEFTI_LAYOUT_OPEN;
}

/* Records the partition's decisions: layouts of parameters that no earlier call has read, and of
 * results. */
static void record_layouts(wefti_decisions *dec, const weft_node *n,
                           const wefti_local_body *local) {
    for (int i = 0; i < n->inputs; i++) {
        if (n->in[i] < 0 || dec->sharding[n->in[i]].known) continue;
        wefti_sharding *s = &dec->sharding[n->in[i]];
        if (s->storage.rank == dec->root->values[n->in[i]].desc.rank &&
            shared_layout(dec, dec->root->values[n->in[i]].name)) {
            s->use = local->in[i]; /* the sharing program stores it in its own layout */
            s->known = true;
        } else {
            set_param(dec, n->in[i], &local->in[i]);
        }
    }
    for (int o = 0; o < n->outputs; o++) {
        wefti_sharding *s = &dec->sharding[n->out[o]];
        s->use = s->storage = s->state = s->gradient = local->out[o];
        s->known = true;
    }
}

static weft_status require_outputs(wefti_decisions *dec, const weft_node *n, wefti_request *r) {
    for (int o = 0; o < n->outputs; o++) {
        int32_t v = n->out[o];
        r->out_state[o] = WEFTI_LAYOUT_SUMMED;
        if (v == dec->g->loss) {
            r->out_state[o] = WEFTI_LAYOUT_GIVEN;
            r->out[o] = whole_layout(&dec->root->values[v]);
        }
        for (int64_t a = 0; a < dec->g->assign_count; a++)
            if (dec->g->assigns[a].next == v) {
                r->out_state[o] = WEFTI_LAYOUT_GIVEN;
                r->out[o] = dec->sharding[dec->g->assigns[a].state].storage;
            }
    }
    return WEFT_OK;
}

/* Partitions one pass of a cell, and reports the decisions to the observer. */
static weft_status partition_pass(wefti_decisions *dec, const wefti_partition_spec *spec,
                                  const wefti_local_body **out) {
    const wefti_observer *observer = dec->spec->observer;
    if (observer) wefti_partition_observe(dec->part, observer->decide, observer->context);
    weft_status status = wefti_partition_body(dec->part, spec, out);
    wefti_partition_observe(dec->part, NULL, NULL);
    return status;
}

weft_status wefti_sharding_forward(wefti_decisions *dec, wefti_call_plan *call) {
    const weft_node *n = call->node;
    const weft_body *body = call->differentiated ? dec->grads[call->grad].forward : n->callee;
    wefti_request r;
    if (!dec->part) return WEFT_OK;
    WEFT_TRY(new_request(dec, body, n->scope, &r));
    for (int i = 0; i < n->inputs; i++) require_input(dec, &r, i, n->in[i]);
    WEFT_TRY(require_outputs(dec, n, &r));
    for (int64_t o = n->outputs; o < body->out_count; o++) r.out_state[o] = WEFTI_LAYOUT_SUMMED;
    WEFT_TRY(partition_pass(dec, &r.spec, &call->local));
    record_layouts(dec, n, call->local);
    return WEFT_OK;
}

/* Requests layouts for the outputs of a backward body, from number `first` on: gradients of the
 * cell's inputs. */
static void require_gradients(wefti_decisions *dec, const wefti_call_plan *call,
                              const wefti_cell_grad *grad, int64_t first, wefti_request *r) {
    const weft_node *n = call->node;
    for (int i = 0; i < n->inputs; i++) {
        int32_t o = grad->gradient_out[i], v = n->in[i];
        if (o < 0 || v < 0) continue;
        const wefti_value_info *inside = &grad->cell->values[grad->cell->in[i]];
        r->names[first + o] = inside->name ? inside->name : "what it reads";
        if (wefti_rows_are(dec, v)) { /* as the ids are divided */
            r->out_state[first + o] = WEFTI_LAYOUT_SUMMED;
            continue;
        }
        const wefti_sharding *s = &dec->sharding[v];
        bool param = dec->root->values[v].kind == WEFTI_VALUE_PARAM;
        r->out_state[first + o] = !param              ? WEFTI_LAYOUT_GIVEN
                                  : s->gradient_known ? WEFTI_LAYOUT_GIVEN_LATE
                                                      : WEFTI_LAYOUT_GIVEN_PARTIAL;
        r->out[first + o] = param && s->gradient_known ? s->gradient : s->use;
        r->late[first + o] = s->use;
    }
}

static void record_gradients(wefti_decisions *dec, const wefti_call_plan *call,
                             const wefti_cell_grad *grad, int64_t first,
                             const wefti_local_body *local) {
    const weft_node *n = call->node;
    for (int i = 0; i < n->inputs; i++) {
        int32_t o = grad->gradient_out[i], v = n->in[i];
        if (o < 0 || v < 0 || dec->root->values[v].kind != WEFTI_VALUE_PARAM) continue;
        if (dec->sharding[v].gradient_known && !wefti_rows_are(dec, v)) continue;
        dec->sharding[v].gradient = local->out[first + o];
        wefti_rows_layout(dec, v, &dec->sharding[v].gradient);
        dec->sharding[v].gradient_known = true;
    }
}

/* The number of the first result of the INPUTS pass that the WEIGHTS pass reads. */
static int64_t grad_of_first(const wefti_decisions *dec, const wefti_call_plan *call) {
    const wefti_cell_grad *first = wefti_call_grad(dec, call, WEFTI_PASS_INPUTS);
    return first->backward->out_count - first->crossed;
}

static weft_status shard_pass(wefti_decisions *dec, wefti_call_plan *call, wefti_pass pass) {
    const weft_node *n = call->node;
    const wefti_cell_grad *grad = wefti_call_grad(dec, call, pass);
    const weft_body *body = grad->backward;
    wefti_request r;
    WEFT_TRY(new_request(dec, body, n->scope, &r));
    for (int64_t i = 0; i < body->in_count; i++) {
        wefti_grad_binding bind = grad->bindings[i];
        switch (bind.source) {
        case WEFTI_GRAD_SAVED:
            r.in[i] = call->local->out[grad->cell->out_count + bind.index];
            break;
        case WEFTI_GRAD_INPUT:
            require_input(dec, &r, i, n->in[bind.index]);
            break;
        case WEFTI_GRAD_OUTPUT:
        case WEFTI_GRAD_DOUT:
            r.in[i] = dec->sharding[n->out[bind.index]].use;
            break;
        case WEFTI_GRAD_CROSSED:
            r.in[i] = call->backward[WEFTI_PASS_INPUTS]->out[grad_of_first(dec, call) + bind.index];
            break;
        }
    }
    require_gradients(dec, call, grad, 0, &r);
    for (int64_t o = body->out_count - grad->crossed;
         pass == WEFTI_PASS_INPUTS && o < body->out_count; o++)
        r.out_state[o] = WEFTI_LAYOUT_SUMMED;
    WEFT_TRY(partition_pass(dec, &r.spec, &call->backward[pass]));
    record_gradients(dec, call, grad, 0, call->backward[pass]);
    return WEFT_OK;
}

weft_status wefti_sharding_backward(wefti_decisions *dec, wefti_call_plan *call) {
    if (!dec->split_backward) return shard_pass(dec, call, WEFTI_PASS_ALL);
    WEFT_TRY(shard_pass(dec, call, WEFTI_PASS_INPUTS));
    return shard_pass(dec, call, WEFTI_PASS_WEIGHTS);
}

weft_status wefti_sharding_fused(wefti_decisions *dec, wefti_call_plan *call) {
    const weft_node *n = call->node;
    const weft_body *fused_body = dec->grads[call->grad].fused_body;
    wefti_request r;
    WEFT_TRY(new_request(dec, fused_body, n->scope, &r));
    for (int i = 0; i < n->inputs; i++) require_input(dec, &r, i, n->in[i]);
    for (int64_t i = n->inputs; i < fused_body->in_count; i++) /* seeds are scalars: replicated */
        r.in[i] = whole_layout(&fused_body->values[fused_body->in[i]]);
    WEFT_TRY(require_outputs(dec, n, &r));
    /* A parameter's storage is unknown before the first partition, so the final layout of its
     * gradient is too. Partition once to find it, then again. */
    bool open = false;
    for (int i = 0; i < n->inputs; i++) open |= r.in_state[i] == WEFTI_LAYOUT_OPEN;
    const wefti_local_body *local;
    if (open) {
        wefti_request first = r;
        WEFT_TRY(wefti_partition_body(dec->part, &first.spec, &local));
        record_layouts(dec, n, local);
        for (int i = 0; i < n->inputs; i++) {
            r.in_state[i] = WEFTI_LAYOUT_GIVEN;
            r.in[i] = dec->sharding[n->in[i]].use;
        }
    }
    require_gradients(dec, call, &dec->grads[call->grad], n->outputs, &r);
    WEFT_TRY(partition_pass(dec, &r.spec, &local));
    record_layouts(dec, n, local);
    record_gradients(dec, call, &dec->grads[call->grad], n->outputs, local);
    call->local = local;
    return WEFT_OK;
}
