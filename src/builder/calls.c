/* Calls of cells as steps, with their operands, results, saved blocks and gradients. */
#include <string.h>

#include "builder/build.h"

/* A call that writes in place destroys its operand. Refuses the call if anything reads the operand
 * later, also in the next step. */
static weft_status check_in_place(const wefti_emitter *b, const wefti_call_plan *call,
                                  int32_t input, int output) {
    const weft_node *n = call->node;
    int32_t v = n->in[input];
    const wefti_value_info *info = &b->root->values[v];
    bool read = false, updated = false;
    WEFT_REQUIRE(info->kind == WEFTI_VALUE_STATE, WEFT_E_NO_IMPL,
                 "%s writes in place into %s%s%s, which is no state: declare it with weft_state",
                 n->scope, info->name ? "'" : "a value of another cell",
                 info->name ? info->name : "", info->name ? "'" : "");
    for (const wefti_call_plan *later = call + 1; later < b->dec->calls + b->dec->call_count;
         later++)
        for (int i = 0; i < later->node->inputs; i++) read |= later->node->in[i] == v;
    for (int i = 0; i < n->inputs; i++) read |= i != input && n->in[i] == v;
    for (int64_t i = 0; i < b->g->assign_count; i++)
        updated |= b->g->assigns[i].state == v && b->g->assigns[i].next == n->out[output];
    WEFT_REQUIRE(updated, WEFT_E_NO_IMPL,
                 "%s writes in place into the state '%s', which is not updated with the result: "
                 "call weft_state_update",
                 n->scope, info->name);
    if (call->differentiated && !call->fused) {
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

/* The piece of a root value on this device. */
static weft_desc desc_of(const wefti_emitter *b, int32_t v) {
    return wefti_sharding_desc(b->dec, &b->root->values[v].desc, &b->dec->sharding[v].use);
}

static bool is_param(const wefti_emitter *b, int32_t v) {
    return b->root->values[v].kind == WEFTI_VALUE_PARAM;
}

/* A named output that is written in place has no buffer of its own: its name refers to `buffer`. */
static void place_output(wefti_emitter *b, int32_t v, int32_t buffer) {
    int32_t own = b->output_buffer[v];
    if (own < 0 || own == buffer) return;
    for (int32_t t = 0; t < b->p->tensor_count; t++)
        if (b->tensor_buffer[t] == own) b->tensor_buffer[t] = buffer;
    b->buffers[own].life.bytes = 0;
    b->output_buffer[v] = buffer;
}

/* Binds a call's results to buffers, or to operands if the routine shares their memory. */
static weft_status bind_results(wefti_emitter *b, const wefti_call_plan *call, int32_t micro,
                                const wefti_routine *r, wefti_draft_step *d) {
    const weft_node *n = call->node;
    for (int o = 0; o < n->outputs; o++) {
        int32_t v = n->out[o], *buffer = wefti_build_value(b, micro, v);
        if (r->alias[o] >= 0) {
            WEFT_TRY(check_in_place(b, call, r->alias[o], o));
            *buffer = d->args[r->alias[o]].buffer;
            place_output(b, v, *buffer);
        } else if (*buffer < 0) {
            weft_desc desc = desc_of(b, v);
            WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&desc),
                                      wefti_build_name(b, "result of ", n->scope), buffer));
        }
        wefti_build_arg(b, d, r->inputs + o, *buffer, 0);
    }
    return WEFT_OK;
}

weft_status wefti_build_forward_call(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro) {
    const wefti_call_plan *call = &b->dec->calls[k];
    if (call->on_host) return wefti_host_forward(b, s, k, micro);
    const weft_node *n = call->node;
    int32_t routine, *in, *saved = &b->micro[micro].saved[k];
    WEFT_TRY(wefti_build_forward(b, call, &routine));
    const wefti_routine *r = b->p->routines[routine];
    wefti_draft_step *d;
    WEFT_TRY(wefti_gather_operands(b, s, k, false, micro, &in));
    WEFT_TRY(wefti_gather_ahead(b, s, b->next_call, b->next_backward));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_FORWARD,
                               wefti_build_name(b, "", n->scope), r->args, &d));
    wefti_interleave_call(b, s);
    for (int i = 0; i < n->inputs; i++) wefti_build_arg(b, d, i, in[i], 0);
    WEFT_TRY(bind_results(b, call, micro, r, d));
    if (r->saved_arg >= 0) {
        WEFT_TRY(wefti_buffer_add(b, r->saved_bytes,
                                  wefti_build_name(b, "saved for backward by ", n->scope), saved));
        b->buffers[*saved].saved = true;
        wefti_build_arg(b, d, r->saved_arg, *saved, 0);
    }
    for (int32_t x = 0; x < r->code_count; x++) b->p->forward_flops += r->code[x].cost.flops;
    WEFT_TRY(wefti_build_end(b, d, routine));
    return wefti_saved_store(b, s, k, micro);
}

/* Per output of the backward body: the buffer of its gradient, created if missing, and whether the
 * routine adds to it. */
static weft_status gradient_targets(wefti_emitter *b, wefti_section s, const wefti_call_plan *call,
                                    const wefti_cell_grad *grad, int32_t micro, int32_t *target,
                                    uint8_t *accumulate) {
    const weft_node *n = call->node;
    for (int64_t o = 0; o < grad->backward->out_count; o++) target[o] = -1;
    memset(accumulate, WEFTI_WRITE, (size_t)grad->backward->out_count);
    for (int i = 0; i < n->inputs; i++) {
        int32_t o = grad->gradient_out[i], v = n->in[i];
        if (o < 0 || v < 0) continue;
        const wefti_value_info *info = &b->root->values[v];
        int32_t *buffer = wefti_build_gradient(b, micro, v);
        bool *started = is_param(b, v) ? &b->param_started[v] : &b->micro[micro].started[v];
        if (is_param(b, v)) WEFT_TRY(wefti_gradient_bring(b, s, v, WEFTI_GRADIENT_TERM, true));
        if (*buffer < 0) {
            const char *name =
                wefti_build_name(b, "gradient of ", info->name ? info->name : n->scope);
            weft_desc desc = desc_of(b, v);
            WEFT_TRY(is_param(b, v) ? wefti_reduce_buffer(b, v, name, buffer)
                                    : wefti_buffer_add(b, weft_desc_bytes(&desc), name, buffer));
        }
        b->terms[v]++;
        accumulate[o] = *started && !wefti_rows_are(b->dec, v) ? WEFTI_ADD : WEFTI_WRITE;
        *started = true;
        target[o] = *buffer;
        WEFT_TRY(wefti_rows_of_micro(b, v, micro, &target[o]));
    }
    return WEFT_OK;
}

/* Creates buffers for the values that the first part of a split backward pass leaves for the
 * second. */
static weft_status crossed_buffers(wefti_emitter *b, const wefti_call_plan *call, int32_t k,
                                   int32_t micro, const wefti_cell_grad *grad, int32_t routine,
                                   int32_t *target) {
    const weft_body *body = b->p->routines[routine]->body;
    int64_t first = grad->backward->out_count - grad->crossed;
    int32_t **crossed = &b->micro[micro].crossed[k];
    WEFT_TRY(wefti_new_indices(b->scratch, grad->crossed, crossed));
    for (int32_t c = 0; c < grad->crossed; c++) {
        int64_t bytes = weft_desc_bytes(&body->values[body->out[first + c]].desc);
        WEFT_TRY(wefti_buffer_add(b, bytes,
                                  wefti_build_name(b, "kept for weights by ", call->node->scope),
                                  &(*crossed)[c]));
        target[first + c] = (*crossed)[c];
    }
    return WEFT_OK;
}

static int32_t bound_buffer(wefti_emitter *b, const weft_node *n, int32_t k, int32_t micro,
                            wefti_grad_binding bind, const int32_t *in) {
    switch (bind.source) {
    case WEFTI_GRAD_INPUT:
        return in[bind.index];
    case WEFTI_GRAD_OUTPUT:
        return *wefti_build_value(b, micro, n->out[bind.index]);
    case WEFTI_GRAD_DOUT:
        return n->out[bind.index] == b->g->loss
                   ? b->one
                   : *wefti_build_gradient(b, micro, n->out[bind.index]);
    case WEFTI_GRAD_CROSSED:
        return b->micro[micro].crossed[k][bind.index];
    case WEFTI_GRAD_SAVED:
        break;
    }
    return -1;
}

static void add_late(uint8_t *accumulate, int64_t outs) {
    for (int64_t o = 0; o < outs; o++)
        if (accumulate[o] == WEFTI_ADD) accumulate[o] = WEFTI_ADD_LATE;
}

weft_status wefti_build_backward_call(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro,
                                      wefti_pass pass) {
    const wefti_call_plan *call = &b->dec->calls[k];
    if (call->on_host) return wefti_host_backward(b, s, k, micro);
    const weft_node *n = call->node;
    const wefti_cell_grad *grad = wefti_call_grad(b->dec, call, pass);
    int64_t outs = grad->backward->out_count;
    int32_t *target, *in, routine, saved = -1;
    uint8_t *accumulate;
    if (outs == 0) return WEFT_OK; /* nothing for this part */
    WEFT_TRY(wefti_new_array(b->scratch, outs, sizeof *target, &target));
    WEFT_TRY(wefti_new_array(b->scratch, outs, 1, &accumulate));
    WEFT_TRY(gradient_targets(b, s, call, grad, micro, target, accumulate));
    WEFT_TRY(wefti_build_backward(b, call, pass, accumulate, &routine));
    const wefti_routine *r = b->p->routines[routine];
    if (wefti_interleave_too_early(b, s, r, r->inputs, outs, target)) {
        add_late(accumulate, outs);
        WEFT_TRY(wefti_build_backward(b, call, pass, accumulate, &routine));
        r = b->p->routines[routine];
    }
    if (pass == WEFTI_PASS_INPUTS)
        WEFT_TRY(crossed_buffers(b, call, k, micro, grad, routine, target));
    wefti_draft_step *d;
    WEFT_TRY(wefti_gather_operands(b, s, k, true, micro, &in));
    if (r->saved_arg >= 0) WEFT_TRY(wefti_saved_take(b, s, k, micro, &saved));
    WEFT_TRY(wefti_gather_ahead(b, s, b->next_call, b->next_backward));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_BACKWARD,
                               wefti_build_name(b, "", n->scope), r->args, &d));
    wefti_interleave_call(b, s);
    for (int64_t i = 0; i < grad->backward->in_count; i++)
        wefti_build_arg(b, d, (int32_t)i, bound_buffer(b, n, k, micro, grad->bindings[i], in), 0);
    for (int64_t o = 0; o < outs; o++) wefti_build_arg(b, d, r->inputs + (int32_t)o, target[o], 0);
    if (r->saved_arg >= 0) wefti_build_arg(b, d, r->saved_arg, saved, 0);
    for (int32_t x = 0; x < r->code_count; x++) b->p->backward_flops += r->code[x].cost.flops;
    WEFT_TRY(wefti_build_end(b, d, routine));
    return wefti_pass_stored(b, s);
}

weft_status wefti_build_fused_call(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro) {
    const wefti_call_plan *call = &b->dec->calls[k];
    const weft_node *n = call->node;
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    int64_t outs = grad->backward->out_count;
    int32_t *target, *in, routine, seeds = 0;
    uint8_t *accumulate;
    bool given[WEFTI_MAX_OUT_CALL];
    WEFT_TRY(wefti_new_array(b->scratch, outs, sizeof *target, &target));
    WEFT_TRY(wefti_new_array(b->scratch, outs, 1, &accumulate));
    wefti_call_given(b->dec, call, given);
    WEFT_TRY(gradient_targets(b, s, call, grad, micro, target, accumulate));
    WEFT_TRY(wefti_build_fused(b, call, accumulate, &routine));
    const wefti_routine *r = b->p->routines[routine];
    if (wefti_interleave_too_early(b, s, r, r->inputs + n->outputs, outs, target)) {
        add_late(accumulate, outs);
        WEFT_TRY(wefti_build_fused(b, call, accumulate, &routine));
        r = b->p->routines[routine];
    }
    wefti_draft_step *d;
    WEFT_TRY(wefti_gather_operands(b, s, k, false, micro, &in));
    WEFT_TRY(wefti_gather_ahead(b, s, b->next_call, b->next_backward));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_BACKWARD,
                               wefti_build_name(b, "", n->scope), r->args, &d));
    wefti_interleave_call(b, s);
    for (int i = 0; i < n->inputs; i++) wefti_build_arg(b, d, i, in[i], 0);
    for (int o = 0; o < n->outputs; o++)
        if (given[o]) wefti_build_arg(b, d, n->inputs + seeds++, b->one, 0);
    WEFT_TRY(bind_results(b, call, micro, r, d));
    for (int64_t o = 0; o < outs; o++)
        wefti_build_arg(b, d, r->inputs + n->outputs + (int32_t)o, target[o], 0);
    for (int32_t x = 0; x < r->code_count; x++) b->p->backward_flops += r->code[x].cost.flops;
    WEFT_TRY(wefti_build_end(b, d, routine));
    return wefti_pass_stored(b, s);
}
