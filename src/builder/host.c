/* Calls on the host (docs/design/memory.md). All ops of such a call are placed there. Its
 * parameters and their gradients lie in host memory. Other operands are copied there before, and
 * results are copied back behind it. */
#include "builder/build.h"

/* ---- which calls ---- */

static bool is_apart(void *context, const weft_body *root, const weft_node *call,
                     const weft_node *op) {
    return wefti_plan_op_on_host(context, root, call, op);
}

weft_status wefti_decide_places(wefti_decisions *dec) {
    weft_plan *plan = (weft_plan *)(uintptr_t)dec->spec->plan;
    if (wefti_plan_may_run_on_host(plan)) {
        const weft_body *given = dec->root;
        WEFT_TRY(wefti_body_clone(dec->g, given, given->name, &dec->own_root));
        WEFT_TRY(wefti_divide(dec->g, dec->own_root, is_apart, plan, &dec->apart));
        dec->root = dec->own_root;
    }
    const weft_body *root = dec->root;
    WEFT_TRY(wefti_new_array(dec->scratch, root->value_count, sizeof *dec->hosted, &dec->hosted));
    for (int64_t k = 0; dec->apart && k < root->node_count; k++)
        for (int i = 0; dec->apart[k] && i < root->nodes[k].inputs; i++) {
            const int32_t v = root->nodes[k].in[i];
            if (v >= 0) dec->hosted[v] = root->values[v].kind == WEFTI_VALUE_PARAM;
        }
    return WEFT_OK;
}

/* ---- copies ---- */

/* A pass of a call on the host, while its steps are added. */
typedef struct host_pass {
    wefti_section s;
    int32_t k, micro;
    const weft_node *node;
    int32_t *there;        /* per value of the root: its copy in host memory, -1: none */
    int32_t *gradient;     /* likewise of its gradient */
    int32_t *move, *moved; /* the moves of its copies, in their order, and the next one */
} host_pass;

/* All copies of a pass are the same moves in each microbatch, so that microbatches are alike. */
static weft_status begin_pass(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro,
                              bool backward, host_pass *x) {
    int32_t **moves = &b->host_moves[backward][k];
    *x = (host_pass){.s = s, .k = k, .micro = micro, .node = b->dec->calls[k].node};
    if (!*moves)
        WEFT_TRY(
            wefti_new_indices(b->scratch, 3 * (x->node->inputs + 2 * x->node->outputs) + 1, moves));
    x->move = *moves;
    WEFT_TRY(wefti_new_indices(b->scratch, b->root->value_count, &x->there));
    return wefti_new_indices(b->scratch, b->root->value_count, &x->gradient);
}

static int64_t bytes_of(const wefti_emitter *b, int32_t v) {
    const weft_desc here =
        wefti_sharding_desc(b->dec, &b->root->values[v].desc, &b->dec->sharding[v].use);
    return weft_desc_bytes(&here);
}

static weft_status new_there(wefti_emitter *b, const char *prefix, const char *name, int64_t bytes,
                             int32_t *out) {
    WEFT_TRY(wefti_buffer_add(b, bytes, wefti_build_name(b, prefix, name), out));
    b->buffers[*out].space = WEFTI_SPACE_HOST;
    return WEFT_OK;
}

static weft_status copy(wefti_emitter *b, host_pass *x, int32_t from, int32_t to, int64_t bytes) {
    const wefti_flight f = {.use = WEFTI_FLIGHT_NOW,
                            .owner = -1,
                            .name = b->buffers[from].name,
                            .source = {from, 0},
                            .destination = {to, 0}};
    return bytes ? wefti_flight_copy(b, x->s, f, bytes, x->move++) : WEFT_OK;
}

/* Begins to copy a value, or its gradient, to host memory, unless it is there. */
static weft_status bring(wefti_emitter *b, host_pass *x, int32_t v, int32_t from, int32_t *there,
                         int32_t *out) {
    if (v >= 0 && there[v] < 0) {
        WEFT_TRY(new_there(b, "", b->buffers[from].name, bytes_of(b, v), &there[v]));
        WEFT_TRY(copy(b, x, from, there[v], bytes_of(b, v)));
    }
    *out = v < 0 ? -1 : there[v];
    return WEFT_OK;
}

static weft_status bring_value(wefti_emitter *b, host_pass *x, int32_t v, int32_t *out) {
    if (v >= 0 && b->dec->hosted[v]) {
        *out = b->param_buffer[v];
        return WEFT_OK;
    }
    return bring(b, x, v, v < 0 ? -1 : *wefti_build_value(b, x->micro, v), x->there, out);
}

static weft_status begin_call(wefti_emitter *b, const host_pass *x, wefti_phase phase,
                              const wefti_routine *r, wefti_draft_step **out) {
    WEFT_TRY(wefti_build_begin(b, x->s, WEFTI_STEP_CALL, phase,
                               wefti_build_name(b, "", x->node->scope), r->args, out));
    (*out)->step.space = WEFTI_SPACE_HOST;
    wefti_interleave_call(b, x->s);
    return WEFT_OK;
}

static double flops_of(const wefti_routine *r) {
    double flops = 0;
    for (int32_t i = 0; i < r->code_count; i++) flops += r->code[i].cost.flops;
    return flops;
}

/* ---- passes ---- */

/* Begins to copy a value, or its gradient, back to device memory. *to -1: to a new buffer. */
static weft_status give_back(wefti_emitter *b, host_pass *x, int32_t v, int32_t there,
                             int32_t *to) {
    if (*to < 0) WEFT_TRY(wefti_buffer_add(b, bytes_of(b, v), b->buffers[there].name, to));
    return copy(b, x, there, *to, bytes_of(b, v));
}

static weft_status return_results(wefti_emitter *b, host_pass *x) {
    for (int o = 0; o < x->node->outputs; o++) {
        const int32_t v = x->node->out[o];
        WEFT_TRY(give_back(b, x, v, x->there[v], wefti_build_value(b, x->micro, v)));
    }
    return wefti_flight_arrive(b, x->s);
}

weft_status wefti_host_forward(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro) {
    const wefti_call_plan *call = &b->dec->calls[k];
    const weft_node *n = call->node;
    host_pass x;
    wefti_draft_step *d;
    int32_t routine, *in, *saved = &b->micro[micro].saved[k];
    WEFT_TRY(begin_pass(b, s, k, micro, false, &x));
    WEFT_TRY(wefti_build_forward(b, call, &routine));
    const wefti_routine *r = b->p->routines[routine];
    WEFT_TRY(wefti_new_indices(b->scratch, n->inputs, &in));
    for (int i = 0; i < n->inputs; i++) WEFT_TRY(bring_value(b, &x, n->in[i], &in[i]));
    WEFT_TRY(wefti_flight_arrive(b, s));
    WEFT_TRY(wefti_gather_ahead(b, s, b->next_call, b->next_backward));
    WEFT_TRY(begin_call(b, &x, WEFTI_FORWARD, r, &d));
    for (int i = 0; i < n->inputs; i++) wefti_build_arg(b, d, i, in[i], 0);
    for (int o = 0; o < n->outputs; o++) {
        const int32_t v = n->out[o];
        WEFT_REQUIRE(r->alias[o] < 0, WEFT_E_NO_IMPL,
                     "place: the host cannot run '%s', which writes in place", n->scope);
        WEFT_TRY(new_there(b, "result of ", n->scope, bytes_of(b, v), &x.there[v]));
        wefti_build_arg(b, d, r->inputs + o, x.there[v], 0);
    }
    if (r->saved_arg >= 0) {
        WEFT_TRY(new_there(b, "saved for backward by ", n->scope, r->saved_bytes, saved));
        wefti_build_arg(b, d, r->saved_arg, *saved, 0);
    }
    b->p->forward_flops += flops_of(r);
    WEFT_TRY(wefti_build_end(b, d, routine));
    WEFT_TRY(return_results(b, &x));
    return wefti_pass_stored(b, s);
}

/* An operand of a backward pass. */
static weft_status bring_bound(wefti_emitter *b, host_pass *x, wefti_grad_binding bind,
                               int32_t *out) {
    const weft_node *n = x->node;
    const int32_t made = bind.source == WEFTI_GRAD_OUTPUT || bind.source == WEFTI_GRAD_DOUT
                             ? n->out[bind.index]
                             : -1;
    *out = -1;
    if (bind.source == WEFTI_GRAD_INPUT) return bring_value(b, x, n->in[bind.index], out);
    if (bind.source == WEFTI_GRAD_OUTPUT) return bring_value(b, x, made, out);
    if (bind.source != WEFTI_GRAD_DOUT) return WEFT_OK;
    const int32_t from = made == b->g->loss ? b->one : *wefti_build_gradient(b, x->micro, made);
    return bring(b, x, made, from, x->gradient, out);
}

/* The buffer of host memory to which a pass writes the gradient of a value, or adds it. A parameter
 * has it between passes too. */
static weft_status gradient_target(wefti_emitter *b, host_pass *x, int32_t v, uint8_t *accumulate,
                                   int32_t *out) {
    const bool hosted = b->dec->hosted[v];
    bool *started = hosted ? &b->param_started[v] : &b->micro[x->micro].started[v];
    int32_t *device = wefti_build_gradient(b, x->micro, v);
    wefti_gradient_home *home = &b->gradient_home[WEFTI_GRADIENT_TERM][v];
    *accumulate = *started ? WEFTI_ADD : WEFTI_WRITE;
    b->terms[v]++;
    if (hosted) {
        WEFT_TRY(wefti_gradient_leave(b, x->s, v, WEFTI_GRADIENT_TERM));
        WEFT_TRY(wefti_pass_stored(b, x->s));
        home->where = WEFTI_GRADIENT_AWAY;
        *out = home->buffer;
    } else if (x->gradient[v] < 0 && *started) {
        WEFT_TRY(bring(b, x, v, *device, x->gradient, out));
    } else if (x->gradient[v] < 0) {
        WEFT_TRY(new_there(b, "gradient of ", x->node->scope, bytes_of(b, v), &x->gradient[v]));
    }
    if (!hosted) *out = x->gradient[v];
    *started = true;
    return WEFT_OK;
}

/* Copies the gradients of other values than parameters to device memory. */
static weft_status return_gradients(wefti_emitter *b, host_pass *x, const wefti_cell_grad *grad) {
    for (int i = 0; i < x->node->inputs; i++) {
        const int32_t v = x->node->in[i];
        bool again = false;
        if (v < 0 || grad->gradient_out[i] < 0 || b->dec->hosted[v]) continue;
        for (int j = 0; j < i; j++)
            again = again || (x->node->in[j] == v && grad->gradient_out[j] >= 0);
        if (again) continue;
        WEFT_TRY(give_back(b, x, v, x->gradient[v], wefti_build_gradient(b, x->micro, v)));
    }
    return wefti_flight_arrive(b, x->s);
}

weft_status wefti_host_backward(wefti_emitter *b, wefti_section s, int32_t k, int32_t micro) {
    const wefti_call_plan *call = &b->dec->calls[k];
    const wefti_cell_grad *grad = wefti_call_grad(b->dec, call, WEFTI_PASS_ALL);
    const int64_t ins = grad->backward->in_count, outs = grad->backward->out_count;
    int32_t *in, *target, routine;
    uint8_t *accumulate;
    host_pass x;
    wefti_draft_step *d;
    if (outs == 0) return WEFT_OK;
    WEFT_TRY(begin_pass(b, s, k, micro, true, &x));
    WEFT_TRY(wefti_new_indices(b->scratch, ins, &in));
    WEFT_TRY(wefti_new_indices(b->scratch, outs, &target));
    WEFT_TRY(wefti_new_array(b->scratch, outs, 1, &accumulate));
    for (int i = 0; i < call->node->inputs; i++) {
        const int32_t o = grad->gradient_out[i], v = call->node->in[i];
        if (o >= 0 && v >= 0) WEFT_TRY(gradient_target(b, &x, v, &accumulate[o], &target[o]));
    }
    WEFT_TRY(wefti_build_backward(b, call, WEFTI_PASS_ALL, accumulate, &routine));
    const wefti_routine *r = b->p->routines[routine];
    for (int64_t i = 0; i < ins; i++) WEFT_TRY(bring_bound(b, &x, grad->bindings[i], &in[i]));
    WEFT_TRY(wefti_flight_arrive(b, s));
    WEFT_TRY(wefti_gather_ahead(b, s, b->next_call, b->next_backward));
    WEFT_TRY(begin_call(b, &x, WEFTI_BACKWARD, r, &d));
    for (int64_t i = 0; i < ins; i++) wefti_build_arg(b, d, (int32_t)i, in[i], 0);
    for (int64_t o = 0; o < outs; o++) wefti_build_arg(b, d, r->inputs + (int32_t)o, target[o], 0);
    if (r->saved_arg >= 0) wefti_build_arg(b, d, r->saved_arg, b->micro[micro].saved[k], 0);
    b->p->backward_flops += flops_of(r);
    WEFT_TRY(wefti_build_end(b, d, routine));
    WEFT_TRY(return_gradients(b, &x, grad));
    return wefti_pass_stored(b, s);
}

/* ---- gradients ---- */

weft_status wefti_host_prepare(wefti_emitter *b) {
    for (int64_t i = 0; i < b->root->in_count; i++) {
        const int32_t v = b->root->in[i];
        wefti_gradient_home *term = &b->gradient_home[WEFTI_GRADIENT_TERM][v],
                            *sum = &b->gradient_home[WEFTI_GRADIENT_SUM][v];
        if (!b->dec->hosted[v] || !b->dec->has_gradient[v]) continue;
        const char *name = b->root->values[v].name;
        const wefti_layout *goal = &b->dec->sharding[v].state;
        wefti_layout added = b->dec->sharding[v].gradient;
        added.sum = 0;
        const bool apart = wefti_is_reduced(b, v) &&
                           (b->spec->keep_gradients || !wefti_layout_equal(&added, goal));
        const weft_desc whole = b->root->values[v].desc,
                        here = wefti_sharding_desc(b->dec, &whole, &b->dec->sharding[v].gradient),
                        done = wefti_sharding_desc(b->dec, &whole, goal);
        WEFT_TRY(new_there(b, "gradient of ", name, weft_desc_bytes(&here), &term->buffer));
        b->buffers[term->buffer].life.first = INT32_MAX; /* of its first use */
        sum->buffer = term->buffer;
        if (!apart) continue;
        WEFT_TRY(new_there(b, "complete gradient of ", name, weft_desc_bytes(&done), &sum->buffer));
        b->buffers[sum->buffer].life.first = INT32_MAX;
    }
    return WEFT_OK;
}
