/* From a graph to the program of one device: differentiates each unique cell once, partitions it
 * for this rank, compiles each unique body once, and orders the calls. program.h describes the
 * result. */
#include <stdio.h>
#include <string.h>

#include "builder/build.h"

/* ---- small things ---- */

weft_status wefti_build_array(wefti_program_builder *b, int64_t count, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(b->scratch, (size_t)(count + 1) * bytes);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory to build a program");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

weft_status wefti_build_indices(wefti_program_builder *b, int64_t count, int32_t **out) {
    WEFT_TRY(wefti_build_array(b, count, sizeof **out, out));
    for (int64_t i = 0; i < count; i++) (*out)[i] = -1;
    return WEFT_OK;
}

/* If memory is missing, the name is "" and the build fails at its end. */
const char *wefti_build_name(wefti_program_builder *b, const char *prefix, const char *name) {
    const char *text = wefti_arena_join(b->p->arena, prefix, name ? name : "");
    if (!text) b->unnamed = true;
    return text ? text : "";
}

weft_status wefti_build_tensor(wefti_program_builder *b, const char *name, wefti_tensor_role role,
                               const weft_desc *whole, const wefti_layout *layout, weft_init init,
                               int32_t buffer, int32_t *out) {
    wefti_program *p = b->p;
    int64_t count = p->tensor_count;
    WEFT_TRY(WEFT_GROW(p->tensors, count, b->tensor_cap));
    WEFT_TRY(WEFT_GROW(b->tensor_buffer, count, b->tensor_buffer_cap));
    wefti_layout sharding = layout ? *layout : wefti_layout_replicated(whole->rank);
    p->tensors[count] = (wefti_tensor){.name = name,
                                       .role = role,
                                       .init = init,
                                       .whole = *whole,
                                       .desc = wefti_sharding_desc(b, whole, &sharding),
                                       .layout = sharding};
    b->tensor_buffer[count] = buffer;
    *out = p->tensor_count++;
    return WEFT_OK;
}

weft_status wefti_build_persistent(wefti_program_builder *b, const char *name,
                                   wefti_tensor_role role, const weft_desc *whole,
                                   const wefti_layout *layout, weft_init init, int32_t *out_buffer,
                                   int32_t *out_tensor) {
    const wefti_tensor *old = b->spec->shared ? wefti_program_tensor(b->spec->shared, name) : NULL;
    name = wefti_build_name(b, "", name);
    wefti_layout sharding = layout ? *layout : wefti_layout_replicated(whole->rank);
    weft_desc here = wefti_sharding_desc(b, whole, &sharding);
    if (old && (old->role == WEFTI_TENSOR_PARAM || old->role == WEFTI_TENSOR_STATE)) {
        WEFT_REQUIRE(wefti_desc_equal(&old->whole, whole), WEFT_E_SHAPE,
                     "'%s' is %s here but %s in the program it is shared with", name,
                     wefti_desc_text(whole).text, wefti_desc_text(&old->whole).text);
        WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here), name, out_buffer));
        b->buffers[*out_buffer].persistent = b->buffers[*out_buffer].fixed = true;
        b->buffers[*out_buffer].life.offset = old->offset;
    } else {
        WEFT_TRY(wefti_buffer_persistent(b, weft_desc_bytes(&here), name, out_buffer));
    }
    return wefti_build_tensor(b, name, role, whole, &sharding, init, *out_buffer, out_tensor);
}

weft_status wefti_build_keep_body(wefti_program_builder *b, weft_body *body) {
    int64_t count = b->p->body_count;
    weft_status status = WEFT_GROW(b->p->bodies, count, b->body_cap);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    b->p->bodies[b->p->body_count++] = body;
    return WEFT_OK;
}

static bool is_kept(const wefti_program_builder *b, int32_t value) {
    wefti_value_kind kind = b->root->values[value].kind;
    return kind == WEFTI_VALUE_PARAM || kind == WEFTI_VALUE_STATE;
}

int32_t *wefti_build_value(wefti_program_builder *b, int32_t micro, int32_t value) {
    int32_t forwarded = wefti_state_forwarded(b, micro, value);
    if (forwarded >= 0) return &b->micro[micro - 1].value[forwarded];
    return is_kept(b, value) ? &b->param_buffer[value] : &b->micro[micro].value[value];
}

int32_t *wefti_build_gradient(wefti_program_builder *b, int32_t micro, int32_t value) {
    return is_kept(b, value) ? &b->param_gradient[value] : &b->micro[micro].gradient[value];
}

/* ---- the root: values and calls ---- */

static weft_status collect_calls(wefti_program_builder *b) {
    WEFT_TRY(wefti_build_array(b, b->root->node_count, sizeof *b->calls, &b->calls));
    for (int64_t k = 0; k < b->root->node_count; k++) {
        const weft_node *n = &b->root->nodes[k];
        WEFT_REQUIRE(n->op == &wefti_op_call, WEFT_E_BUG, "the root still holds a loose '%s'",
                     n->op->name);
        b->calls[b->call_count++] = (wefti_call_plan){.node = n, .grad = -1, .mine = true};
    }
    return WEFT_OK;
}

/* Finds the layouts of all values in the order in which calls make them, also for the calls of
 * other stages. */
static weft_status shard_calls(wefti_program_builder *b) {
    if (!b->part) return WEFT_OK;
    for (int32_t k = 0; k < b->call_count; k++) {
        if (!b->calls[k].fused)
            WEFT_TRY(wefti_sharding_forward(b, &b->calls[k]));
        else if (!b->layouts_only) /* nothing comes after the loss */
            WEFT_TRY(wefti_sharding_fused(b, &b->calls[k]));
    }
    return WEFT_OK;
}

/* Finds the layouts of backward passes, in their order. The first round finds the layouts in which
 * gradients of parameters accumulate. The second round uses them to find the bodies of this rank.
 * The first round covers all stages if there is an optimizer, because its buckets depend on all
 * gradients. */
static weft_status shard_backward_calls(wefti_program_builder *b) {
    if (!b->part || b->layouts_only) return WEFT_OK;
    for (int round = 0; round < 2; round++)
        for (int32_t k = b->call_count - 1; k >= 0; k--) {
            wefti_call_plan *call = &b->calls[k];
            bool required = call->mine || (round == 0 && b->spec->optimizer);
            if (!call->differentiated || !required) continue;
            if (!call->fused)
                WEFT_TRY(wefti_sharding_backward(b, call));
            else if (round == 1)
                WEFT_TRY(wefti_sharding_fused(b, call));
        }
    return WEFT_OK;
}

static weft_status bind_input(wefti_program_builder *b, int32_t v, int32_t micro) {
    const wefti_value_info *info = &b->root->values[v];
    weft_desc here = wefti_sharding_desc(b, &info->desc, &b->sharding[v].use);
    int32_t *buffer = &b->micro[micro].value[v], tensor;
    const char *name = wefti_build_name(b, "", info->name);
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here), name, buffer));
    b->buffers[*buffer].life.last = INT32_MAX; /* to the end: set in finish */
    WEFT_TRY(wefti_build_tensor(b, name, WEFTI_TENSOR_INPUT, &info->desc,
                                b->part ? &b->sharding[v].use : NULL, info->init, *buffer,
                                &tensor));
    b->p->tensors[tensor].microbatch = micro;
    return WEFT_OK;
}

/* Marks the root values that a call of this rank reads. Also marks the states for which such a call
 * makes the next value. A value that no call uses belongs to the first stage. */
static weft_status find_read(wefti_program_builder *b, bool **out) {
    bool *remote;
    WEFT_TRY(wefti_build_array(b, b->root->value_count, sizeof **out, out));
    WEFT_TRY(wefti_build_array(b, b->root->value_count, sizeof *remote, &remote));
    for (int32_t k = 0; k < b->call_count; k++) {
        bool *read = b->calls[k].mine ? *out : remote;
        for (int i = 0; i < b->calls[k].node->inputs; i++)
            if (b->calls[k].node->in[i] >= 0) read[b->calls[k].node->in[i]] = true;
    }
    for (int64_t a = 0; a < b->g->assign_count; a++) {
        int32_t maker = wefti_call_maker(b, b->g->assigns[a].next);
        if (maker >= 0) (b->calls[maker].mine ? *out : remote)[b->g->assigns[a].state] = true;
    }
    for (int64_t i = 0; i < b->root->in_count && b->stages > 1 && b->stage == 0; i++)
        (*out)[b->root->in[i]] |= !remote[b->root->in[i]];
    return WEFT_OK;
}

static weft_status bind_root_values(wefti_program_builder *b) {
    const weft_body *root = b->root;
    bool *read;
    WEFT_TRY(find_read(b, &read));
    for (int64_t i = 0; i < root->in_count; i++) {
        int32_t v = root->in[i], tensor;
        const wefti_value_info *info = &root->values[v];
        if (!read[v] && b->stages > 1) continue; /* another stage reads it */
        if (b->part && !b->sharding[v].known) {  /* no call reads it */
            b->sharding[v].use = b->sharding[v].storage = b->sharding[v].state =
                wefti_layout_replicated(info->desc.rank);
            b->sharding[v].known = true;
        }
        if (info->kind == WEFTI_VALUE_INPUT) {
            for (int32_t m = 0; m < b->micros; m++) WEFT_TRY(bind_input(b, v, m));
            continue;
        }
        bool param = info->kind == WEFTI_VALUE_PARAM;
        WEFT_TRY(wefti_build_persistent(
            b, info->name, param ? WEFTI_TENSOR_PARAM : WEFTI_TENSOR_STATE, &info->desc,
            b->part ? &b->sharding[v].storage : NULL, info->init, &b->param_buffer[v], &tensor));
        if (param) b->param_index[v] = tensor;
    }
    return WEFT_OK;
}

/* ---- sections ---- */

weft_status wefti_build_loss(wefti_program_builder *b, wefti_section s, int32_t micro) {
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_LOSS, WEFTI_OTHER, "loss", 1, &d));
    wefti_build_arg(b, d, 0, *wefti_build_value(b, micro, b->g->loss), 0);
    b->now++;
    return WEFT_OK;
}

/* Only the last microbatch writes to the buffers of the outputs. Earlier microbatches that run at
 * the same time (interleaved copies, or all microbatches of a pipeline) get buffers of their
 * own. */
static void reset_micro(wefti_program_builder *b, int32_t micro) {
    const weft_body *root = b->root;
    int32_t copies = b->p->all_microbatches ? b->spec->plan->copies : 1;
    bool last = b->stages > 1 ? micro == b->micros - 1 : micro % copies == copies - 1;
    for (int64_t v = 0; v < root->value_count; v++) {
        if (root->values[v].node < 0) continue;
        b->micro[micro].value[v] = last ? b->output_buffer[v] : -1;
        b->micro[micro].gradient[v] = -1;
        b->micro[micro].started[v] = false;
    }
    for (int32_t k = 0; k < b->call_count; k++) b->micro[micro].saved[k] = -1;
}

/* Finds the call that follows call k when a microbatch runs from end to end. */
static void find_next(wefti_program_builder *b, int32_t k, bool backward) {
    b->next_call = -1;
    b->next_backward = backward;
    if (!backward && k + 1 < b->call_count) {
        b->next_call = k + 1;
        return;
    }
    b->next_backward = true;
    for (int32_t j = backward ? k - 1 : b->call_count - 1; j >= 0 && b->next_call < 0; j--)
        if (b->calls[j].differentiated && !b->calls[j].fused) b->next_call = j;
}

/* Builds the forward calls, the loss, and the backward calls in reverse order. The microbatches
 * [first, first + copies) run from end to end and interleave. */
static weft_status compute_pass(wefti_program_builder *b, wefti_section s, int32_t first,
                                int32_t copies) {
    int32_t fused = -1;
    b->last_part = -1;
    for (int32_t k = 0; k < b->call_count; k++) {
        if (b->calls[k].fused) fused = k;
        for (int32_t c = 0; c < copies; c++) {
            b->now_micro = first + c;
            WEFT_TRY(wefti_interleave_begin(b, s));
            find_next(b, k, false);
            if (b->calls[k].fused)
                WEFT_TRY(wefti_build_fused_call(b, s, k, first + c));
            else
                WEFT_TRY(wefti_build_forward_call(b, s, k, first + c));
            for (int o = 0; o < b->calls[k].node->outputs; o++)
                if (b->calls[k].node->out[o] == b->g->loss)
                    WEFT_TRY(wefti_build_loss(b, s, first + c));
            WEFT_TRY(wefti_build_states(b, s, first + c, k));
        }
        WEFT_TRY(wefti_interleave_end(b, s));
    }
    if (fused >= 0) WEFT_TRY(wefti_build_eager_updates(b, fused));
    for (int32_t k = b->call_count - 1; k >= 0; k--) {
        if (!b->calls[k].differentiated || b->calls[k].fused) continue;
        for (int32_t c = 0; c < copies; c++) {
            b->now_micro = first + c;
            WEFT_TRY(wefti_interleave_begin(b, s));
            find_next(b, k, true);
            WEFT_TRY(wefti_build_backward_call(b, s, k, first + c, WEFTI_PASS_ALL));
        }
        WEFT_TRY(wefti_interleave_end(b, s));
        WEFT_TRY(wefti_build_eager_updates(b, k));
    }
    b->now_micro = 0;
    WEFT_TRY(wefti_gather_finish(b, s));
    return wefti_build_states(b, s, first + copies - 1, -1);
}

static weft_status compute_section(wefti_program_builder *b, wefti_section s) {
    int32_t copies = b->p->all_microbatches ? b->spec->plan->copies : 1;
    for (int32_t m = 0; m < b->micros; m++) reset_micro(b, m);
    for (int32_t m = 0; m < b->micros; m += copies) WEFT_TRY(compute_pass(b, s, m, copies));
    return WEFT_OK;
}

/* The part of all microbatches that this stage runs. */
static weft_status staged_section(wefti_program_builder *b) {
    for (int32_t m = 0; m < b->micros; m++) reset_micro(b, m);
    WEFT_TRY(wefti_pipeline_section(b));
    return wefti_build_states(b, WEFTI_SECTION_FIRST, b->micros - 1, -1);
}

/* ---- all of it ---- */

static weft_status named_outputs(wefti_program_builder *b) {
    for (int64_t i = 0; i < b->g->output_count; i++) {
        int32_t v = b->g->outputs[i].value, tensor;
        const wefti_value_info *info = &b->root->values[v];
        if (info->node < 0) continue; /* an input or parameter: readable under its own name */
        bool mine = true;
        for (int32_t k = 0; k < b->call_count; k++)
            if (!b->calls[k].mine && b->calls[k].node == &b->root->nodes[info->node]) mine = false;
        if (!mine) continue;
        weft_desc here = wefti_sharding_desc(b, &info->desc, &b->sharding[v].use);
        if (b->output_buffer[v] < 0) {
            WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here),
                                      wefti_build_name(b, "output ", b->g->outputs[i].name),
                                      &b->output_buffer[v]));
            b->buffers[b->output_buffer[v]].life.last = INT32_MAX;
        }
        WEFT_TRY(wefti_build_tensor(
            b, wefti_build_name(b, "", b->g->outputs[i].name), WEFTI_TENSOR_OUTPUT, &info->desc,
            b->part ? &b->sharding[v].use : NULL, info->init, b->output_buffer[v], &tensor));
    }
    return WEFT_OK;
}

static weft_status readable_gradients(wefti_program_builder *b) {
    for (int64_t i = 0; i < b->root->in_count; i++) {
        int32_t v = b->root->in[i], tensor;
        if (b->param_index[v] < 0 || b->param_gradient[v] < 0) continue;
        b->buffers[b->param_gradient[v]].life.last = INT32_MAX;
        WEFT_TRY(wefti_build_tensor(b, wefti_build_name(b, "grad:", b->root->values[v].name),
                                    WEFTI_TENSOR_GRADIENT, &b->root->values[v].desc,
                                    b->part ? &b->sharding[v].gradient : NULL,
                                    b->root->values[v].init, b->param_gradient[v], &tensor));
    }
    return WEFT_OK;
}

static weft_status new_tables(wefti_program_builder *b) {
    int64_t values = b->root->value_count;
    WEFT_TRY(wefti_build_indices(b, values, &b->output_buffer));
    WEFT_TRY(wefti_build_indices(b, values, &b->param_buffer));
    WEFT_TRY(wefti_build_indices(b, values, &b->param_piece));
    WEFT_TRY(wefti_build_indices(b, values, &b->param_gradient));
    WEFT_TRY(wefti_build_indices(b, values, &b->param_index));
    WEFT_TRY(wefti_build_indices(b, values, &b->last_backward));
    WEFT_TRY(wefti_build_indices(b, values, &b->forwarded));
    WEFT_TRY(wefti_build_array(b, values, sizeof(bool), &b->param_started));
    WEFT_TRY(wefti_build_array(b, values, sizeof(bool), &b->needs));
    WEFT_TRY(wefti_build_array(b, values, sizeof(bool), &b->has_gradient));
    WEFT_TRY(wefti_build_array(b, b->micros, sizeof *b->micro, &b->micro));
    for (int32_t m = 0; m < b->micros; m++) {
        WEFT_TRY(wefti_build_indices(b, values, &b->micro[m].value));
        WEFT_TRY(wefti_build_indices(b, values, &b->micro[m].gradient));
        WEFT_TRY(wefti_build_array(b, values, sizeof(bool), &b->micro[m].started));
        WEFT_TRY(wefti_build_indices(b, b->root->node_count, &b->micro[m].saved));
        WEFT_TRY(
            wefti_build_array(b, b->root->node_count, sizeof(int32_t *), &b->micro[m].crossed));
    }
    return WEFT_OK;
}

static weft_status train_buffers(wefti_program_builder *b) {
    const wefti_value_info *loss = b->g->loss >= 0 ? &b->root->values[b->g->loss] : NULL;
    WEFT_REQUIRE(loss, WEFT_E_ARG, "training needs a loss: call weft_loss with a scalar value");
    WEFT_REQUIRE(loss->node >= 0, WEFT_E_ARG, "the loss depends on no operation");
    WEFT_TRY(wefti_buffer_persistent(b, sizeof(wefti_step_scalars), "scalars", &b->scalars));
    WEFT_TRY(wefti_buffer_persistent(b, 64, "one", &b->one));
    b->p->norms_dtype = WEFT_F32;
    for (int64_t i = 0; i < b->root->in_count; i++) {
        const wefti_value_info *v = &b->root->values[b->root->in[i]];
        if (v->kind == WEFTI_VALUE_PARAM && v->desc.dtype == WEFT_F64) b->p->norms_dtype = WEFT_F64;
    }
    int64_t bytes = b->root->in_count * (int64_t)weft_dtype_bytes(b->p->norms_dtype);
    if (b->spec->optimizer && b->spec->optimizer->clip)
        WEFT_TRY(wefti_buffer_persistent(b, bytes, "norms", &b->norms));
    return WEFT_OK;
}

static void read_offsets(wefti_program_builder *b) {
    wefti_program *p = b->p;
    for (int32_t t = 0; t < p->tensor_count; t++)
        p->tensors[t].offset = b->buffers[b->tensor_buffer[t]].life.offset;
    p->scalars = b->scalars < 0 ? -1 : b->buffers[b->scalars].life.offset;
    p->one = b->one < 0 ? -1 : b->buffers[b->one].life.offset;
    p->norms = b->norms < 0 ? -1 : b->buffers[b->norms].life.offset;
    p->loss = -1;
    if (b->g->loss < 0) return;
    int32_t buffer = *wefti_build_value(b, 0, b->g->loss), maker = wefti_call_maker(b, b->g->loss);
    /* A loss received from another stage has a buffer here too, so the maker must be a call of this
     * stage. */
    if (buffer >= 0 && maker >= 0 && b->calls[maker].mine) p->loss = b->buffers[buffer].life.offset;
    p->loss_dtype = b->root->values[b->g->loss].desc.dtype;
}

/* The number of rows that most inputs have. Other inputs may be masks or tables that all samples
 * share. In a tie the smallest number wins: microbatches may have one row, but masks rarely do. */
static int64_t samples_of(const weft_body *root) {
    int64_t samples = 0;
    int most = 0;
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        int alike = 0;
        if (v->kind != WEFTI_VALUE_INPUT || v->desc.rank == 0) continue;
        for (int64_t k = i; k < root->in_count; k++) {
            const wefti_value_info *other = &root->values[root->in[k]];
            alike += other->kind == WEFTI_VALUE_INPUT && other->desc.rank > 0 &&
                     other->desc.shape[0] == v->desc.shape[0];
        }
        if (alike < most || (alike == most && v->desc.shape[0] >= samples)) continue;
        most = alike;
        samples = v->desc.shape[0];
    }
    return samples;
}

/* Makes the decisions that precede all steps: the stage of each call, the gradients to compute, and
 * the layouts of all values. */
static weft_status decide(wefti_program_builder *b) {
    const wefti_program_spec *spec = b->spec;
    wefti_program *p = b->p;
    bool train = spec->optimizer || spec->keep_gradients;
    b->scalars = b->one = b->norms = -1;
    b->stages = 1;
    b->next_call = -1;
    p->samples = samples_of(b->root);
    bool staged = spec->plan && spec->plan->pipeline.stages > 1;
    p->all_microbatches = train && (staged || (spec->plan && spec->plan->copies > 1));
    WEFT_REQUIRE(!p->all_microbatches || spec->microbatches % spec->plan->copies == 0, WEFT_E_ARG,
                 "%d microbatches cannot be run in copies of %d", spec->microbatches,
                 spec->plan->copies);
    b->micros = p->all_microbatches ? spec->microbatches : 1;
    WEFT_TRY(new_tables(b));
    WEFT_TRY(wefti_sharding_start(b));
    WEFT_TRY(collect_calls(b));
    WEFT_TRY(wefti_pipeline_assign(b));
    if (spec->plan && spec->plan->recompute.mode != WEFT_RECOMPUTE_NONE)
        WEFT_TRY(shard_calls(b)); /* values that need communication are saved, not recomputed */
    if (train && b->g->loss >= 0) WEFT_TRY(wefti_build_plan_gradients(b));
    WEFT_TRY(wefti_states_plan(b));
    WEFT_TRY(shard_calls(b));
    return shard_backward_calls(b);
}

static weft_status build(wefti_program_builder *b) {
    const wefti_program_spec *spec = b->spec;
    wefti_program *p = b->p;
    bool train = spec->optimizer || spec->keep_gradients;
    WEFT_TRY(decide(b));
    WEFT_TRY(wefti_pipeline_cross(b));
    WEFT_TRY(bind_root_values(b));
    WEFT_TRY(named_outputs(b));
    if (train) WEFT_TRY(train_buffers(b));
    b->eager = spec->optimizer && !spec->optimizer->clip && spec->microbatches == 1 &&
               !spec->keep_gradients && b->stages == 1;
    if (spec->optimizer) WEFT_TRY(wefti_build_plan_buckets(b));
    if (b->stages > 1)
        WEFT_TRY(staged_section(b));
    else
        WEFT_TRY(compute_section(b, WEFTI_SECTION_FIRST));
    double forward = p->forward_flops, backward = p->backward_flops;
    if (spec->microbatches > 1 && !p->all_microbatches)
        WEFT_TRY(compute_section(b, WEFTI_SECTION_NEXT));
    p->forward_flops = forward;
    p->backward_flops = backward;
    if (spec->keep_gradients) WEFT_TRY(readable_gradients(b));
    if (spec->optimizer && !b->eager) WEFT_TRY(wefti_build_update_section(b));
    if (b->part && !spec->shared) WEFT_TRY(wefti_partition_check(b->part));
    WEFT_REQUIRE(!b->unnamed, WEFT_E_NOMEM, "no memory for the names of a program");
    for (int64_t i = 0; i < b->buffer_count; i++)
        if (b->buffers[i].life.last == INT32_MAX) {
            b->buffers[i].life.first = 0;
            b->buffers[i].life.last = b->now;
        }
    WEFT_TRY(wefti_buffers_finish(b));
    read_offsets(b);
    return WEFT_OK;
}

static wefti_mesh mesh_of(const wefti_program_spec *spec) {
    if (spec->plan)
        return wefti_plan_mesh(spec->plan, wefti_plan_stage_of_rank(spec->plan, spec->rank));
    return (wefti_mesh){.axes = 1, .axis = {{.name = "dp", .size = 1}}};
}

static weft_status start(wefti_program_builder *b, const wefti_program_spec *spec) {
    *b = (wefti_program_builder){.spec = spec, .root = spec->graph->root};
    WEFT_NEW(b->p, wefti_program);
    WEFT_TRY(wefti_graph_derive(spec->graph, &b->p->graph));
    b->g = b->p->graph;
    b->p->rank = spec->rank;
    b->p->mesh = mesh_of(spec);
    WEFT_TRY(wefti_arena_create(&b->p->arena));
    return wefti_arena_create(&b->scratch);
}

static void finish(wefti_program_builder *b) {
    wefti_pipeline_destroy(b);
    wefti_arena_destroy(b->scratch);
    wefti_free(b->buffers);
    wefti_free(b->keys);
    wefti_free(b->grad_keys);
    wefti_free(b->tensor_buffer);
    for (int s = 0; s < WEFTI_SECTIONS; s++) wefti_free(b->steps[s]);
}

/* ---- other stages' meshes ---- */

/* Keeps the layouts of the parameters and states that a stage reads, for programs that will share
 * them. */
static weft_status keep_layouts(wefti_program_builder *b, int32_t stage,
                                const wefti_sharding *sharding) {
    const weft_body *root = b->root;
    size_t most = (size_t)root->in_count + 1;
    wefti_stage_layouts *l = wefti_arena_alloc(b->p->arena, sizeof *l);
    const char **names = wefti_arena_alloc(b->p->arena, most * sizeof *names);
    wefti_layout *layouts = wefti_arena_alloc(b->p->arena, most * sizeof *layouts);
    WEFT_REQUIRE(l && names && layouts, WEFT_E_NOMEM, "no memory for the layouts of a stage");
    *l = (wefti_stage_layouts){stage, 0, names, layouts, b->p->remote_layouts};
    for (int64_t i = 0; i < root->in_count; i++) {
        int32_t v = root->in[i];
        bool reads = false;
        for (int32_t k = 0; k < b->call_count; k++)
            for (int j = 0; j < b->calls[k].node->inputs; j++)
                reads |= b->calls[k].stage == stage && b->calls[k].node->in[j] == v;
        if (!reads || root->values[v].kind == WEFTI_VALUE_INPUT || !sharding[v].known) continue;
        names[l->count] = wefti_arena_strdup(b->p->arena, root->values[v].name);
        WEFT_REQUIRE(names[l->count], WEFT_E_NOMEM, "no memory for the layouts of a stage");
        layouts[l->count++] = sharding[v].storage;
    }
    b->p->remote_layouts = l;
    return WEFT_OK;
}

/* Makes a dry build for a remote stage: finds the layouts that its first device finds. */
static weft_status dry_build(wefti_program_builder *b, int32_t stage, wefti_sharding **out) {
    wefti_program_spec spec = *b->spec;
    wefti_program_builder other;
    spec.observer = NULL;
    spec.rank = wefti_plan_mesh(spec.plan, stage).first;
    WEFT_TRY(wefti_build_array(b, b->root->value_count, sizeof **out, out));
    weft_status status = start(&other, &spec);
    other.layouts_only = true;
    if (status == WEFT_OK) status = decide(&other);
    if (status == WEFT_OK)
        memcpy(*out, other.sharding, (size_t)b->root->value_count * sizeof **out);
    finish(&other);
    wefti_program_destroy(other.p);
    return status < 0 ? wefti_prefix(status, "stage %d", stage) : WEFT_OK;
}

/* Stages with equal meshes share one dry build. */
weft_status wefti_build_remote_sharding(wefti_program_builder *b, int32_t stage,
                                        const wefti_sharding **out) {
    if (!b->remote) WEFT_TRY(wefti_build_array(b, b->stages, sizeof *b->remote, &b->remote));
    if (!b->remote[stage]) {
        const weft_plan *plan = b->spec->plan;
        wefti_mesh mesh = wefti_plan_mesh(plan, stage);
        wefti_sharding *sharding = NULL;
        for (int32_t s = 0; s < b->stages && !sharding; s++) {
            wefti_mesh known = wefti_plan_mesh(plan, s);
            if (wefti_meshes_alike(&known, &mesh)) sharding = b->remote[s];
        }
        if (!sharding) WEFT_TRY(dry_build(b, stage, &sharding));
        WEFT_TRY(keep_layouts(b, stage, sharding));
        b->remote[stage] = sharding;
    }
    *out = b->remote[stage];
    return WEFT_OK;
}

weft_status wefti_program_build(const wefti_program_spec *spec, wefti_program **out) {
    WEFT_REQUIRE(spec->microbatches >= 1, WEFT_E_ARG, "a step has at least 1 microbatch, not %d",
                 spec->microbatches);
    wefti_program_builder b;
    weft_status status = start(&b, spec);
    if (status == WEFT_OK) status = build(&b);
    finish(&b);
    if (status < 0) {
        wefti_program_destroy(b.p);
        return status;
    }
    *out = b.p;
    return WEFT_OK;
}
