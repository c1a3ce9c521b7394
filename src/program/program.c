/* From a graph to one device's program: calls are differentiated per unique cell, compiled once per
 * unique body, and put in order; see program.h for what comes out. */
#include <stdio.h>
#include <string.h>

#include "program/build.h"

/* ---- small things ---- */

static weft_status zeroed(wefti_program_builder *b, int64_t count, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(b->scratch, (size_t)(count + 1) * bytes);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory to build a program");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

static weft_status indices(wefti_program_builder *b, int64_t count, int32_t **out) {
    WEFT_TRY(zeroed(b, count, sizeof **out, out));
    for (int64_t i = 0; i < count; i++) (*out)[i] = -1;
    return WEFT_OK;
}

/* Out of memory: "", and the whole build fails at its end. */
static const char *name_of(wefti_program_builder *b, const char *prefix, const char *name) {
    const char *text = wefti_arena_format(b->p->arena, "%s%s", prefix, name ? name : "");
    if (!text) b->unnamed = true;
    return text ? text : "";
}

static weft_status add_tensor(wefti_program_builder *b, const char *name, wefti_tensor_role role,
                              weft_desc desc, weft_init init, int32_t buffer, int32_t *out) {
    wefti_program *p = b->p;
    int64_t count = p->tensor_count;
    WEFT_TRY(WEFT_GROW(p->tensors, count, b->tensor_cap));
    WEFT_TRY(WEFT_GROW(b->tensor_buffer, count, b->tensor_buffer_cap));
    p->tensors[count] =
        (wefti_tensor){.name = name, .role = role, .desc = desc, .init = init, .whole = desc};
    b->tensor_buffer[count] = buffer;
    *out = p->tensor_count++;
    return WEFT_OK;
}

/* A persistent tensor: where the sharing program has it, or new. */
static weft_status persistent_tensor(wefti_program_builder *b, const char *name,
                                     wefti_tensor_role role, weft_desc desc, weft_init init,
                                     int32_t *out_buffer, int32_t *out_tensor) {
    const wefti_tensor *old = b->spec->shared ? wefti_program_tensor(b->spec->shared, name) : NULL;
    name = name_of(b, "", name);
    if (old && (old->role == WEFTI_TENSOR_PARAM || old->role == WEFTI_TENSOR_STATE)) {
        WEFT_REQUIRE(wefti_desc_equal(&old->desc, &desc), WEFT_E_SHAPE,
                     "'%s' is %s here but %s in the program it is shared with", name,
                     wefti_desc_text(&desc).text, wefti_desc_text(&old->desc).text);
        WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&desc), name, out_buffer));
        b->buffers[*out_buffer].persistent = true;
        b->buffers[*out_buffer].life.offset = old->offset;
    } else {
        WEFT_TRY(wefti_buffer_persistent(b, weft_desc_bytes(&desc), name, out_buffer));
    }
    return add_tensor(b, name, role, desc, init, *out_buffer, out_tensor);
}

static weft_status keep_body(wefti_program_builder *b, weft_body *body) {
    int64_t count = b->p->body_count;
    weft_status status = WEFT_GROW(b->p->bodies, count, b->body_cap);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    b->p->bodies[b->p->body_count++] = body;
    return WEFT_OK;
}

/* ---- routines, one per unique (body, what is accumulated) ---- */

enum { KIND_PLAIN, KIND_FORWARD, KIND_BACKWARD, KIND_JOINT, KIND_UPDATE };

static weft_status find_routine(wefti_program_builder *b, const weft_body *key, int kind,
                                const char *accumulate, int32_t *out) {
    for (int64_t i = 0; i < b->key_count; i++)
        if (b->keys[i].body == key && b->keys[i].kind == kind &&
            !strcmp(b->keys[i].accumulate, accumulate)) {
            *out = b->keys[i].routine;
            return WEFT_OK;
        }
    *out = -1;
    return WEFT_OK;
}

static weft_status compile_routine(wefti_program_builder *b, const weft_body *key, int kind,
                                   const char *accumulate, wefti_routine_spec *spec, int32_t *out) {
    wefti_program *p = b->p;
    int64_t count = p->routine_count;
    spec->prepare = b->spec->prepare;
    spec->backends = b->spec->backends;
    if (b->spec->shared) spec->prepare.pack_weights = false;
    WEFT_TRY(WEFT_GROW(p->routines, count, b->routine_cap));
    WEFT_TRY(WEFT_GROW(b->keys, b->key_count, b->key_cap));
    char *text = wefti_arena_strdup(b->scratch, accumulate);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory to build a program");
    WEFT_TRY(wefti_routine_compile(spec, &p->routines[count]));
    b->keys[b->key_count++] = (struct routine_key){key, kind, text, p->routine_count};
    *out = p->routine_count++;
    return WEFT_OK;
}

/* The fused form of `body`, kept by the program. */
static weft_status fused(wefti_program_builder *b, const weft_body *body, weft_body **out) {
    weft_body *result;
    WEFT_TRY(wefti_fuse(b->g, body, &result));
    WEFT_TRY(keep_body(b, result));
    *out = result;
    return WEFT_OK;
}

/* Offsets of saved values in their block, in order; the block ends at the last byte. */
static weft_status saved_offsets(wefti_program_builder *b, const wefti_cell_grad *grad,
                                 int64_t **out, int64_t *out_bytes) {
    const weft_body *f = grad->forward;
    int64_t bytes = 0, base = grad->cell->out_count;
    WEFT_TRY(zeroed(b, grad->saved, sizeof **out, out));
    for (int32_t s = 0; s < grad->saved; s++) {
        (*out)[s] = (bytes + 63) & ~(int64_t)63;
        bytes = (*out)[s] + weft_desc_bytes(&f->values[f->out[base + s]].desc);
    }
    *out_bytes = bytes;
    return WEFT_OK;
}

static weft_status forward_routine(wefti_program_builder *b, wefti_call_plan *call) {
    const weft_body *key = call->node->callee;
    wefti_routine_spec spec = {0};
    int kind = KIND_PLAIN;
    int64_t *offsets = NULL, *saved = NULL;
    const wefti_cell_grad *grad = NULL;
    if (call->differentiated) {
        grad = &b->p->grads[call->grad];
        key = grad->forward;
        kind = KIND_FORWARD;
    }
    WEFT_TRY(find_routine(b, key, kind, "", &call->forward));
    if (call->forward >= 0) return WEFT_OK;
    if (grad) {
        WEFT_TRY(saved_offsets(b, grad, &saved, &spec.saved_bytes));
        WEFT_TRY(zeroed(b, key->out_count, sizeof *offsets, &offsets));
        for (int64_t o = 0; o < key->out_count; o++)
            offsets[o] = o < grad->cell->out_count ? -1 : saved[o - grad->cell->out_count];
        spec.out_saved = offsets;
    }
    WEFT_TRY(fused(b, key, &spec.body));
    return compile_routine(b, key, kind, "", &spec, &call->forward);
}

static weft_status backward_routine(wefti_program_builder *b, const wefti_call_plan *call,
                                    const char *accumulate, int32_t *out) {
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    const weft_body *key = grad->backward;
    WEFT_TRY(find_routine(b, key, KIND_BACKWARD, accumulate, out));
    if (*out >= 0) return WEFT_OK;
    wefti_routine_spec spec = {0};
    int64_t *saved, *offsets;
    bool *add;
    WEFT_TRY(saved_offsets(b, grad, &saved, &spec.saved_bytes));
    WEFT_TRY(zeroed(b, key->in_count, sizeof *offsets, &offsets));
    for (int64_t i = 0; i < key->in_count; i++)
        offsets[i] =
            grad->bindings[i].source == WEFTI_GRAD_SAVED ? saved[grad->bindings[i].index] : -1;
    WEFT_TRY(zeroed(b, key->out_count, sizeof *add, &add));
    for (int64_t o = 0; o < key->out_count; o++) add[o] = accumulate[o] == '1';
    spec.in_saved = offsets;
    spec.accumulate = add;
    WEFT_TRY(fused(b, key, &spec.body));
    return compile_routine(b, key, KIND_BACKWARD, accumulate, &spec, out);
}

static weft_status joint_routine(wefti_program_builder *b, const wefti_call_plan *call,
                                 const bool *given, const char *accumulate, int32_t *out) {
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    WEFT_TRY(find_routine(b, grad->backward, KIND_JOINT, accumulate, out));
    if (*out >= 0) return WEFT_OK;
    wefti_routine_spec spec = {0};
    weft_body *joined;
    bool *add;
    WEFT_TRY(wefti_joint_body(b->g, grad, given, &joined));
    WEFT_TRY(keep_body(b, joined));
    WEFT_TRY(fused(b, joined, &spec.body));
    int64_t outs = joined->out_count;
    WEFT_TRY(zeroed(b, outs, sizeof *add, &add));
    for (int64_t o = grad->cell->out_count; o < outs; o++)
        add[o] = accumulate[o - grad->cell->out_count] == '1';
    spec.accumulate = add;
    return compile_routine(b, grad->backward, KIND_JOINT, accumulate, &spec, out);
}

/* ---- steps ---- */

static weft_status begin_step(wefti_program_builder *b, wefti_section s, wefti_step_kind kind,
                              wefti_phase phase, const char *name, int32_t args,
                              wefti_draft_step **out) {
    WEFT_TRY(WEFT_GROW(b->steps[s], b->step_count[s], b->step_cap[s]));
    wefti_draft_step *d = &b->steps[s][b->step_count[s]];
    memset(d, 0, sizeof *d);
    d->step.kind = kind;
    d->step.phase = phase;
    d->step.name = name;
    d->step.tensor = -1;
    d->frame = -1;
    d->arg_count = args;
    WEFT_TRY(zeroed(b, args, sizeof *d->args, &d->args));
    for (int32_t a = 0; a < args; a++) d->args[a].buffer = -1;
    b->step_count[s]++;
    *out = d;
    return WEFT_OK;
}

static void set_arg(wefti_program_builder *b, wefti_draft_step *d, int32_t arg, int32_t buffer,
                    int64_t delta) {
    d->args[arg] = (wefti_buffer_ref){buffer, delta};
    wefti_buffer_use(b, buffer);
}

/* Frame, packed weights and the random stream of a routine's call; then time goes on. */
static weft_status end_call(wefti_program_builder *b, wefti_draft_step *d, int32_t routine) {
    const wefti_routine *r = b->p->routines[routine];
    d->step.routine = r;
    if (r->frame_bytes > 0)
        WEFT_TRY(wefti_buffer_add(b, r->frame_bytes, name_of(b, "working memory of ", d->step.name),
                                  &d->frame));
    d->step.stream = wefti_stream_of(d->step.name);
    for (int32_t i = 0; i < r->packed_count; i++) {
        const wefti_packed_need *need = &r->packed[i];
        int32_t source = d->args[need->source_arg].buffer, packed = -1;
        for (int64_t k = 0; k < b->step_count[WEFTI_SECTION_PACK]; k++) {
            wefti_draft_step *old = &b->steps[WEFTI_SECTION_PACK][k];
            const wefti_routine *owner = old->step.routine;
            if (old->args[1].buffer == source &&
                owner->code[old->step.bytes].kernel->packed_format == need->format)
                packed = old->args[0].buffer;
        }
        if (packed < 0) {
            const char *name = name_of(b, "packed ", b->buffers[source].name);
            wefti_draft_step *pack;
            WEFT_TRY(wefti_buffer_persistent(b, need->bytes, name, &packed));
            WEFT_TRY(
                begin_step(b, WEFTI_SECTION_PACK, WEFTI_STEP_PACK, WEFTI_OTHER, name, 2, &pack));
            pack->args[0].buffer = packed;
            pack->args[1].buffer = source;
            pack->step.routine = r;
            pack->step.bytes = need->instruction;
        }
        d->args[need->arg].buffer = packed;
    }
    b->now++;
    return WEFT_OK;
}

/* ---- the root: values, calls, gradients ---- */

static weft_status bind_root_values(wefti_program_builder *b) {
    const weft_body *root = b->root;
    for (int64_t i = 0; i < root->in_count; i++) {
        int32_t v = root->in[i], tensor;
        const wefti_value_info *info = &root->values[v];
        if (info->kind == WEFTI_VALUE_INPUT) {
            const char *name = name_of(b, "", info->name);
            WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&info->desc), name, &b->value_buffer[v]));
            b->buffers[b->value_buffer[v]].life.last = INT32_MAX; /* to the end: set in finish */
            WEFT_TRY(add_tensor(b, name, WEFTI_TENSOR_INPUT, info->desc, info->init,
                                b->value_buffer[v], &tensor));
        } else {
            bool param = info->kind == WEFTI_VALUE_PARAM;
            WEFT_TRY(persistent_tensor(b, info->name,
                                       param ? WEFTI_TENSOR_PARAM : WEFTI_TENSOR_STATE, info->desc,
                                       info->init, &b->value_buffer[v], &tensor));
            if (param) b->param_index[v] = tensor;
        }
    }
    return WEFT_OK;
}

static weft_status collect_calls(wefti_program_builder *b) {
    WEFT_TRY(zeroed(b, b->root->node_count, sizeof *b->calls, &b->calls));
    for (int64_t k = 0; k < b->root->node_count; k++) {
        const weft_node *n = &b->root->nodes[k];
        WEFT_REQUIRE(n->op == &wefti_op_call, WEFT_E_BUG, "the root still holds a loose '%s'",
                     n->op->name);
        b->calls[b->call_count++] = (wefti_call_plan){.node = n, .grad = -1, .forward = -1};
    }
    return WEFT_OK;
}

/* Inputs may share a gradient; here each has an output of its own, since each has a buffer of its
 * own. */
static weft_status own_outputs(wefti_cell_grad *grad) {
    for (int64_t i = 0; i < grad->cell->in_count; i++)
        for (int64_t j = 0; j < i; j++) {
            int32_t o = grad->gradient_out[i];
            if (o < 0 || grad->gradient_out[j] != o) continue;
            grad->gradient_out[i] = (int32_t)grad->backward->out_count;
            WEFT_TRY(wefti_body_output(grad->backward, grad->backward->out[o]));
        }
    return WEFT_OK;
}

static weft_status cell_gradient(wefti_program_builder *b, wefti_call_plan *call,
                                 const bool *wanted, const bool *given) {
    wefti_program *p = b->p;
    weft_body *cell = call->node->callee;
    /* The masks are part of the key: kept as text beside each gradient. */
    wefti_text mask = {0};
    for (int64_t i = 0; i < cell->in_count; i++) wefti_text_add(&mask, "%d", wanted[i]);
    for (int64_t o = 0; o < cell->out_count; o++) wefti_text_add(&mask, "%d", given[o]);
    char *text = wefti_text_take(&mask);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory to differentiate");
    for (int32_t i = 0; i < p->grad_count; i++)
        if (p->grads[i].cell == cell && !strcmp(b->grad_masks[i], text)) {
            wefti_free(text);
            call->grad = i;
            return WEFT_OK;
        }
    char *kept = wefti_arena_strdup(b->scratch, text);
    wefti_free(text);
    WEFT_REQUIRE(kept, WEFT_E_NOMEM, "no memory to differentiate");
    int64_t count = p->grad_count;
    WEFT_TRY(WEFT_GROW(p->grads, count, b->grad_cap));
    WEFT_TRY(WEFT_GROW(b->grad_masks, count, b->mask_cap));
    WEFT_TRY(wefti_differentiate(b->g, cell, wanted, given, b->spec->recompute, &p->grads[count]));
    p->grad_count++; /* owned from here on */
    WEFT_TRY(own_outputs(&p->grads[count]));
    b->grad_masks[count] = kept;
    call->grad = (int32_t)count;
    return WEFT_OK;
}

/* Which calls have a backward pass, and of what. */
static weft_status plan_gradients(wefti_program_builder *b) {
    const weft_body *root = b->root;
    for (int64_t v = 0; v < root->value_count; v++)
        b->needs[v] = root->values[v].kind == WEFTI_VALUE_PARAM;
    for (int32_t k = 0; k < b->call_count; k++) {
        const weft_node *n = b->calls[k].node;
        bool any = false;
        for (int i = 0; i < n->inputs; i++) any |= n->in[i] >= 0 && b->needs[n->in[i]];
        for (int o = 0; o < n->outputs; o++)
            b->needs[n->out[o]] = any && wefti_dtype_is_float(root->values[n->out[o]].desc.dtype);
    }
    b->has_gradient[b->g->loss] = true;
    bool last = true;
    for (int32_t k = b->call_count - 1; k >= 0; k--) {
        wefti_call_plan *call = &b->calls[k];
        const weft_node *n = call->node;
        bool given[WEFTI_MAX_OUT_CALL], any_given = false, any_wanted = false, only_loss = true;
        bool *wanted;
        WEFT_REQUIRE(n->outputs <= WEFTI_MAX_OUT_CALL, WEFT_E_NO_IMPL,
                     "%s: more than %d results of one cell", n->scope, WEFTI_MAX_OUT_CALL);
        WEFT_TRY(zeroed(b, n->inputs, sizeof *wanted, &wanted));
        for (int o = 0; o < n->outputs; o++) {
            given[o] = b->has_gradient[n->out[o]];
            any_given |= given[o];
            only_loss &= !given[o] || n->out[o] == b->g->loss;
        }
        for (int i = 0; i < n->inputs; i++) {
            wanted[i] = n->in[i] >= 0 && b->needs[n->in[i]];
            any_wanted |= wanted[i];
        }
        if (!any_given || !any_wanted) continue;
        WEFT_TRY(cell_gradient(b, call, wanted, given));
        call->differentiated = true;
        call->joint = last && only_loss && b->spec->recompute == 0;
        last = false;
        const wefti_cell_grad *grad = &b->p->grads[call->grad];
        for (int i = 0; i < n->inputs; i++)
            if (wanted[i] && grad->gradient_out[i] >= 0) {
                b->has_gradient[n->in[i]] = true;
                b->last_backward[n->in[i]] = k; /* the lowest k is the last one to run */
            }
    }
    return WEFT_OK;
}

/* A call that writes in place takes its operand away from all that would read it later, the next
 * step included. */
static weft_status check_in_place(const wefti_program_builder *b, const wefti_call_plan *call,
                                  int32_t input, int output) {
    const weft_node *n = call->node;
    int32_t v = n->in[input];
    const wefti_value_info *info = &b->root->values[v];
    bool read = false, updated = false;
    WEFT_REQUIRE(info->kind == WEFTI_VALUE_STATE, WEFT_E_NO_IMPL,
                 "%s writes in place into %s%s%s, which is no state: declare it with weft_state",
                 n->scope, info->name ? "'" : "a value of another cell",
                 info->name ? info->name : "", info->name ? "'" : "");
    for (const wefti_call_plan *later = call + 1; later < b->calls + b->call_count; later++)
        for (int i = 0; i < later->node->inputs; i++) read |= later->node->in[i] == v;
    for (int i = 0; i < n->inputs; i++) read |= i != input && n->in[i] == v;
    for (int64_t i = 0; i < b->g->assign_count; i++)
        updated |= b->g->assigns[i].state == v && b->g->assigns[i].next == n->out[output];
    WEFT_REQUIRE(updated, WEFT_E_NO_IMPL,
                 "%s writes in place into the state '%s', which is not updated with the result: "
                 "call weft_state_update",
                 n->scope, info->name);
    if (call->differentiated && !call->joint) {
        const wefti_cell_grad *grad = &b->p->grads[call->grad];
        for (int64_t i = 0; i < grad->backward->in_count; i++)
            read |=
                grad->bindings[i].source == WEFTI_GRAD_INPUT && grad->bindings[i].index == input;
    }
    WEFT_REQUIRE(!read, WEFT_E_NO_IMPL,
                 "%s writes in place into the state '%s', whose old value is read later: use the "
                 "new value there",
                 n->scope, info->name);
    return WEFT_OK;
}

/* Buffers for a call's results, or the memory that its routine says they are. */
static weft_status bind_results(wefti_program_builder *b, const wefti_call_plan *call,
                                const wefti_routine *r, wefti_draft_step *d) {
    const weft_node *n = call->node;
    for (int o = 0; o < n->outputs; o++) {
        int32_t v = n->out[o];
        if (r->alias[o] >= 0) {
            WEFT_TRY(check_in_place(b, call, r->alias[o], o));
            b->value_buffer[v] = d->args[r->alias[o]].buffer;
        } else if (b->value_buffer[v] < 0) {
            const weft_desc *desc = &b->root->values[v].desc;
            WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(desc), name_of(b, "result of ", n->scope),
                                      &b->value_buffer[v]));
        }
        set_arg(b, d, r->inputs + o, b->value_buffer[v], 0);
    }
    return WEFT_OK;
}

static weft_status forward_call(wefti_program_builder *b, wefti_section s, wefti_call_plan *call,
                                int32_t *saved_buffer) {
    const weft_node *n = call->node;
    WEFT_TRY(forward_routine(b, call));
    const wefti_routine *r = b->p->routines[call->forward];
    wefti_draft_step *d;
    WEFT_TRY(
        begin_step(b, s, WEFTI_STEP_CALL, WEFTI_FORWARD, name_of(b, "", n->scope), r->args, &d));
    for (int i = 0; i < n->inputs; i++) set_arg(b, d, i, b->value_buffer[n->in[i]], 0);
    WEFT_TRY(bind_results(b, call, r, d));
    if (r->saved_arg >= 0) {
        WEFT_TRY(wefti_buffer_add(b, r->saved_bytes, name_of(b, "saved for backward by ", n->scope),
                                  saved_buffer));
        set_arg(b, d, r->saved_arg, *saved_buffer, 0);
    }
    for (int32_t k = 0; k < r->code_count; k++) b->p->forward_flops += r->code[k].cost.flops;
    return end_call(b, d, call->forward);
}

/* Per output of the backward body: '1' when its target has content already. Creates missing
 * targets. */
static weft_status gradient_targets(wefti_program_builder *b, const wefti_call_plan *call,
                                    int32_t *target, char *accumulate) {
    const weft_node *n = call->node;
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    for (int64_t o = 0; o < grad->backward->out_count; o++) target[o] = -1;
    memset(accumulate, '0', (size_t)grad->backward->out_count);
    accumulate[grad->backward->out_count] = '\0';
    for (int i = 0; i < n->inputs; i++) {
        int32_t o = grad->gradient_out[i], v = n->in[i];
        if (o < 0 || v < 0) continue;
        const wefti_value_info *info = &b->root->values[v];
        if (b->gradient[v] < 0)
            WEFT_TRY(wefti_buffer_add(
                b, weft_desc_bytes(&info->desc),
                name_of(b, "gradient of ", info->name ? info->name : n->scope), &b->gradient[v]));
        accumulate[o] = b->gradient_started[v] ? '1' : '0';
        b->gradient_started[v] = true;
        target[o] = b->gradient[v];
    }
    return WEFT_OK;
}

static weft_status update_param(wefti_program_builder *b, wefti_section s, int32_t value);

static weft_status eager_updates(wefti_program_builder *b, int32_t k) {
    if (!b->eager) return WEFT_OK;
    const weft_node *n = b->calls[k].node;
    for (int i = 0; i < n->inputs; i++) {
        int32_t v = n->in[i];
        if (v >= 0 && b->param_index[v] >= 0 && b->has_gradient[v] && b->last_backward[v] == k)
            WEFT_TRY(update_param(b, WEFTI_SECTION_FIRST, v));
    }
    return WEFT_OK;
}

static weft_status backward_call(wefti_program_builder *b, wefti_section s, int32_t k,
                                 int32_t saved_buffer) {
    wefti_call_plan *call = &b->calls[k];
    const weft_node *n = call->node;
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    int64_t outs = grad->backward->out_count;
    int32_t *target, routine;
    char *accumulate;
    WEFT_TRY(zeroed(b, outs, sizeof *target, &target));
    WEFT_TRY(zeroed(b, outs, 1, &accumulate));
    WEFT_TRY(gradient_targets(b, call, target, accumulate));
    WEFT_TRY(backward_routine(b, call, accumulate, &routine));
    const wefti_routine *r = b->p->routines[routine];
    wefti_draft_step *d;
    WEFT_TRY(
        begin_step(b, s, WEFTI_STEP_CALL, WEFTI_BACKWARD, name_of(b, "", n->scope), r->args, &d));
    for (int64_t i = 0; i < grad->backward->in_count; i++) {
        wefti_grad_binding bind = grad->bindings[i];
        int32_t buffer = -1;
        if (bind.source == WEFTI_GRAD_INPUT) buffer = b->value_buffer[n->in[bind.index]];
        if (bind.source == WEFTI_GRAD_OUTPUT) buffer = b->value_buffer[n->out[bind.index]];
        if (bind.source == WEFTI_GRAD_DOUT)
            buffer = n->out[bind.index] == b->g->loss ? b->one : b->gradient[n->out[bind.index]];
        set_arg(b, d, (int32_t)i, buffer, 0);
    }
    for (int64_t o = 0; o < outs; o++) set_arg(b, d, r->inputs + (int32_t)o, target[o], 0);
    if (r->saved_arg >= 0) set_arg(b, d, r->saved_arg, saved_buffer, 0);
    for (int32_t x = 0; x < r->code_count; x++) b->p->backward_flops += r->code[x].cost.flops;
    return end_call(b, d, routine);
}

static weft_status joint_call(wefti_program_builder *b, wefti_section s, int32_t k) {
    wefti_call_plan *call = &b->calls[k];
    const weft_node *n = call->node;
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    int64_t outs = grad->backward->out_count;
    int32_t *target, routine, seeds = 0;
    char *accumulate;
    bool given[WEFTI_MAX_OUT_CALL];
    WEFT_TRY(zeroed(b, outs, sizeof *target, &target));
    WEFT_TRY(zeroed(b, outs, 1, &accumulate));
    WEFT_TRY(gradient_targets(b, call, target, accumulate));
    for (int o = 0; o < n->outputs; o++) given[o] = n->out[o] == b->g->loss;
    WEFT_TRY(joint_routine(b, call, given, accumulate, &routine));
    const wefti_routine *r = b->p->routines[routine];
    wefti_draft_step *d;
    WEFT_TRY(
        begin_step(b, s, WEFTI_STEP_CALL, WEFTI_BACKWARD, name_of(b, "", n->scope), r->args, &d));
    for (int i = 0; i < n->inputs; i++) set_arg(b, d, i, b->value_buffer[n->in[i]], 0);
    for (int o = 0; o < n->outputs; o++)
        if (given[o]) set_arg(b, d, n->inputs + seeds++, b->one, 0);
    WEFT_TRY(bind_results(b, call, r, d));
    for (int64_t o = 0; o < outs; o++)
        set_arg(b, d, r->inputs + n->outputs + (int32_t)o, target[o], 0);
    for (int32_t x = 0; x < r->code_count; x++) b->p->backward_flops += r->code[x].cost.flops;
    return end_call(b, d, routine);
}

static weft_status loss_step(wefti_program_builder *b, wefti_section s) {
    wefti_draft_step *d;
    WEFT_TRY(begin_step(b, s, WEFTI_STEP_LOSS, WEFTI_OTHER, "loss", 1, &d));
    set_arg(b, d, 0, b->value_buffer[b->g->loss], 0);
    b->now++;
    return WEFT_OK;
}

static weft_status state_copies(wefti_program_builder *b, wefti_section s) {
    for (int64_t i = 0; i < b->g->assign_count; i++) {
        wefti_assign a = b->g->assigns[i];
        int32_t to = b->value_buffer[a.state], from = b->value_buffer[a.next];
        if (to == from) continue; /* written in place */
        WEFT_REQUIRE(b->root->values[a.next].node >= 0, WEFT_E_NO_IMPL,
                     "the state '%s' becomes '%s' itself, which may change in the same step: pass "
                     "it through an operation",
                     b->buffers[to].name, b->root->values[a.next].name);
        wefti_draft_step *d;
        WEFT_TRY(begin_step(b, s, WEFTI_STEP_COPY, WEFTI_OTHER, b->buffers[to].name, 2, &d));
        set_arg(b, d, 0, to, 0);
        set_arg(b, d, 1, from, 0);
        d->step.bytes = weft_desc_bytes(&b->root->values[a.state].desc);
        b->now++;
    }
    return WEFT_OK;
}

/* Forward calls, the loss, backward calls in reverse. */
static weft_status compute_section(wefti_program_builder *b, wefti_section s) {
    const weft_body *root = b->root;
    int32_t *saved;
    WEFT_TRY(indices(b, b->call_count, &saved));
    for (int64_t v = 0; v < root->value_count; v++) {
        if (root->values[v].node < 0) continue;
        b->value_buffer[v] = b->output_buffer[v];
        b->gradient[v] = -1;
        b->gradient_started[v] = false;
    }
    int32_t joint = -1;
    for (int32_t k = 0; k < b->call_count; k++) {
        wefti_call_plan *call = &b->calls[k];
        if (call->joint) {
            WEFT_TRY(joint_call(b, s, k));
            joint = k;
        } else {
            WEFT_TRY(forward_call(b, s, call, &saved[k]));
        }
    }
    if (b->g->loss >= 0) WEFT_TRY(loss_step(b, s));
    if (joint >= 0) WEFT_TRY(eager_updates(b, joint));
    for (int32_t k = b->call_count - 1; k >= 0; k--) {
        if (!b->calls[k].differentiated || b->calls[k].joint) continue;
        WEFT_TRY(backward_call(b, s, k, saved[k]));
        WEFT_TRY(eager_updates(b, k));
    }
    return state_copies(b, s);
}

/* ---- the update ---- */

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
    for (int64_t i = 0; i < b->key_count; i++)
        if (b->keys[i].kind == KIND_UPDATE && wefti_body_equal(b->keys[i].body, body)) {
            wefti_body_destroy(body);
            *out = b->keys[i].body;
            return WEFT_OK;
        }
    *out = body;
    return keep_body(b, body);
}

static weft_status update_param(wefti_program_builder *b, wefti_section s, int32_t value) {
    int32_t tensor = b->param_index[value], routine;
    const char *name = b->p->tensors[tensor].name;
    weft_desc desc = b->p->tensors[tensor].desc;
    wefti_update_rule rule = {0};
    weft_body *fresh;
    const weft_body *body;
    WEFT_TRY(b->spec->optimizer->rule(b->spec->optimizer->context, name, &desc, &rule));
    WEFT_TRY(update_body(b, &desc, &rule, &fresh));
    WEFT_TRY(intern_update(b, fresh, &body));
    WEFT_TRY(find_routine(b, body, KIND_UPDATE, "", &routine));
    if (routine < 0) {
        wefti_routine_spec spec = {.body = (weft_body *)(uintptr_t)body};
        WEFT_TRY(compile_routine(b, body, KIND_UPDATE, "", &spec, &routine));
    }
    const wefti_routine *r = b->p->routines[routine];
    wefti_draft_step *d;
    WEFT_TRY(begin_step(b, s, WEFTI_STEP_CALL, WEFTI_UPDATE, name, r->args, &d));
    d->step.tensor = tensor;
    set_arg(b, d, 0, b->value_buffer[value], 0);
    for (int i = 0; i < rule.states; i++) {
        int32_t buffer, index;
        char *full = wefti_format("%s.%s", name, rule.state_names[i]);
        WEFT_REQUIRE(full, WEFT_E_NOMEM, "no memory for a name");
        weft_status status = persistent_tensor(b, full, WEFTI_TENSOR_OPTIMIZER, rule.state_descs[i],
                                               (weft_init){WEFT_INIT_ZEROS, 0}, &buffer, &index);
        wefti_free(full);
        WEFT_TRY(status);
        set_arg(b, d, 1 + i, buffer, 0);
    }
    set_arg(b, d, 1 + rule.states, b->gradient[value], 0);
    set_arg(b, d, 2 + rule.states, b->scalars, 0);
    for (int32_t o = 0; o < r->outputs; o++)
        if (r->alias[o] >= 0) d->args[r->inputs + o] = d->args[r->alias[o]];
    return end_call(b, d, routine);
}

static weft_status norm_steps(wefti_program_builder *b) {
    int64_t next = 0;
    for (int64_t i = 0; i < b->root->in_count; i++) {
        int32_t v = b->root->in[i], routine, in, node;
        if (b->param_index[v] < 0 || !b->has_gradient[v]) continue;
        weft_body *fresh;
        const weft_body *body;
        WEFT_TRY(wefti_body_create(b->g, "norm", &fresh));
        weft_status status =
            wefti_body_input(fresh, b->root->values[v].desc, WEFTI_VALUE_INPUT, "gradient", &in);
        if (status == WEFT_OK)
            status =
                wefti_body_add(fresh, b->spec->optimizer->norm_op, NULL, 1, &in, NULL, "", &node);
        if (status == WEFT_OK) status = wefti_body_output(fresh, fresh->nodes[node].out[0]);
        if (status < 0) {
            wefti_body_destroy(fresh);
            return status;
        }
        WEFT_TRY(intern_update(b, fresh, &body));
        WEFT_TRY(find_routine(b, body, KIND_UPDATE, "", &routine));
        if (routine < 0) {
            wefti_routine_spec spec = {.body = (weft_body *)(uintptr_t)body};
            WEFT_TRY(compile_routine(b, body, KIND_UPDATE, "", &spec, &routine));
        }
        const wefti_routine *r = b->p->routines[routine];
        wefti_draft_step *d;
        WEFT_TRY(begin_step(b, WEFTI_SECTION_NORM, WEFTI_STEP_CALL, WEFTI_UPDATE,
                            b->root->values[v].name, r->args, &d));
        set_arg(b, d, 0, b->gradient[v], 0);
        set_arg(b, d, 1, b->norms, next++ * 4);
        WEFT_TRY(end_call(b, d, routine));
    }
    b->p->norm_count = (int32_t)next;
    return WEFT_OK;
}

/* ---- all of it ---- */

static weft_status named_outputs(wefti_program_builder *b) {
    for (int64_t i = 0; i < b->g->output_count; i++) {
        int32_t v = b->g->outputs[i].value, tensor;
        const wefti_value_info *info = &b->root->values[v];
        if (info->node < 0) continue; /* an input or parameter: readable under its own name */
        if (b->output_buffer[v] < 0) {
            WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&info->desc),
                                      name_of(b, "output ", b->g->outputs[i].name),
                                      &b->output_buffer[v]));
            b->buffers[b->output_buffer[v]].life.last = INT32_MAX;
        }
        WEFT_TRY(add_tensor(b, name_of(b, "", b->g->outputs[i].name), WEFTI_TENSOR_OUTPUT,
                            info->desc, info->init, b->output_buffer[v], &tensor));
    }
    return WEFT_OK;
}

static weft_status readable_gradients(wefti_program_builder *b) {
    for (int64_t i = 0; i < b->root->in_count; i++) {
        int32_t v = b->root->in[i], tensor;
        if (b->param_index[v] < 0 || b->gradient[v] < 0) continue;
        b->buffers[b->gradient[v]].life.last = INT32_MAX;
        WEFT_TRY(add_tensor(b, name_of(b, "grad:", b->root->values[v].name), WEFTI_TENSOR_OUTPUT,
                            b->root->values[v].desc, b->root->values[v].init, b->gradient[v],
                            &tensor));
    }
    return WEFT_OK;
}

static weft_status build(wefti_program_builder *b) {
    const wefti_program_spec *spec = b->spec;
    wefti_program *p = b->p;
    int64_t values = b->root->value_count;
    bool train = spec->optimizer || spec->keep_gradients;
    WEFT_TRY(indices(b, values, &b->value_buffer));
    WEFT_TRY(indices(b, values, &b->output_buffer));
    WEFT_TRY(indices(b, values, &b->gradient));
    WEFT_TRY(indices(b, values, &b->param_index));
    WEFT_TRY(indices(b, values, &b->last_backward));
    WEFT_TRY(zeroed(b, values, sizeof(bool), &b->gradient_started));
    WEFT_TRY(zeroed(b, values, sizeof(bool), &b->needs));
    WEFT_TRY(zeroed(b, values, sizeof(bool), &b->has_gradient));
    if (spec->shared) p->persistent_bytes = spec->shared->persistent_bytes;
    WEFT_TRY(bind_root_values(b));
    WEFT_TRY(named_outputs(b));
    WEFT_TRY(collect_calls(b));
    b->scalars = b->one = b->norms = -1;
    if (train) {
        const wefti_value_info *loss = b->g->loss >= 0 ? &b->root->values[b->g->loss] : NULL;
        WEFT_REQUIRE(loss, WEFT_E_ARG, "training needs a loss: call weft_loss with a scalar value");
        WEFT_REQUIRE(loss->node >= 0, WEFT_E_ARG, "the loss depends on no operation");
        WEFT_TRY(wefti_buffer_persistent(b, 64, "scalars", &b->scalars));
        WEFT_TRY(wefti_buffer_persistent(b, 64, "one", &b->one));
        if (spec->optimizer && spec->optimizer->clip)
            WEFT_TRY(wefti_buffer_persistent(b, b->root->in_count * 4, "norms", &b->norms));
        WEFT_TRY(plan_gradients(b));
    }
    b->eager = spec->optimizer && !spec->optimizer->clip && spec->microbatches == 1 &&
               !spec->keep_gradients;
    WEFT_TRY(compute_section(b, WEFTI_SECTION_FIRST));
    double forward = p->forward_flops, backward = p->backward_flops;
    if (spec->microbatches > 1) WEFT_TRY(compute_section(b, WEFTI_SECTION_NEXT));
    p->forward_flops = forward;
    p->backward_flops = backward;
    if (spec->keep_gradients) WEFT_TRY(readable_gradients(b));
    if (spec->optimizer && !b->eager) {
        if (spec->optimizer->clip) WEFT_TRY(norm_steps(b));
        for (int64_t i = 0; i < b->root->in_count; i++) {
            int32_t v = b->root->in[i];
            if (b->param_index[v] >= 0 && b->has_gradient[v])
                WEFT_TRY(update_param(b, WEFTI_SECTION_UPDATE, v));
        }
    }
    WEFT_REQUIRE(!b->unnamed, WEFT_E_NOMEM, "no memory for the names of a program");
    for (int64_t i = 0; i < b->buffer_count; i++)
        if (b->buffers[i].life.last == INT32_MAX) {
            b->buffers[i].life.first = 0;
            b->buffers[i].life.last = b->now;
        }
    WEFT_TRY(wefti_buffers_finish(b));
    for (int32_t t = 0; t < p->tensor_count; t++)
        p->tensors[t].offset = b->buffers[b->tensor_buffer[t]].life.offset;
    for (int64_t i = 0; i < b->buffer_count; i++)
        if (!strncmp(b->buffers[i].name, "saved ", 6)) p->saved_bytes += b->buffers[i].life.bytes;
    p->scalars = b->scalars < 0 ? -1 : b->buffers[b->scalars].life.offset;
    p->one = b->one < 0 ? -1 : b->buffers[b->one].life.offset;
    p->norms = b->norms < 0 ? -1 : b->buffers[b->norms].life.offset;
    p->loss = -1;
    if (b->g->loss >= 0 && b->value_buffer[b->g->loss] >= 0) {
        p->loss = b->buffers[b->value_buffer[b->g->loss]].life.offset;
        p->loss_dtype = b->root->values[b->g->loss].desc.dtype;
    }
    return WEFT_OK;
}

weft_status wefti_program_build(const wefti_program_spec *spec, wefti_program **out) {
    WEFT_REQUIRE(spec->microbatches >= 1, WEFT_E_ARG, "a step has at least 1 microbatch, not %d",
                 spec->microbatches);
    if (weft_graph_status(spec->graph) < 0) {
        weft_status bad = weft_graph_status(spec->graph);
        WEFT_FAIL(bad, "%s", weft_graph_message(spec->graph));
    }
    wefti_program_builder b = {.spec = spec, .g = spec->graph};
    weft_status status;
    WEFT_TRY(wefti_graph_wrap(spec->graph));
    b.root = spec->graph->root;
    WEFT_NEW(b.p, wefti_program);
    WEFT_TRY_OR(done, status, wefti_arena_create(&b.p->arena));
    WEFT_TRY_OR(done, status, wefti_arena_create(&b.scratch));
    WEFT_TRY_OR(done, status, build(&b));
done:
    wefti_arena_destroy(b.scratch);
    wefti_free(b.buffers);
    wefti_free(b.keys);
    wefti_free(b.grad_masks);
    wefti_free(b.tensor_buffer);
    for (int s = 0; s < WEFTI_SECTIONS; s++) wefti_free(b.steps[s]);
    if (status < 0) {
        wefti_program_destroy(b.p);
        return status;
    }
    *out = b.p;
    return WEFT_OK;
}

void wefti_program_destroy(wefti_program *p) {
    if (!p) return;
    for (int32_t i = 0; i < p->routine_count; i++) wefti_routine_destroy(p->routines[i]);
    for (int32_t i = 0; i < p->grad_count; i++) wefti_cell_grad_free(&p->grads[i]);
    for (int32_t i = 0; i < p->body_count; i++) wefti_body_destroy(p->bodies[i]);
    wefti_free(p->routines);
    wefti_free(p->grads);
    wefti_free(p->bodies);
    wefti_free(p->tensors);
    wefti_arena_destroy(p->arena);
    wefti_free(p);
}

const wefti_tensor *wefti_program_tensor(const wefti_program *p, const char *name) {
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (!strcmp(p->tensors[i].name, name)) return &p->tensors[i];
    return NULL;
}
