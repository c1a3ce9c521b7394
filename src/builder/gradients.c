/* Decides which calls have a backward pass and for which gradients. A cell is differentiated once
 * for each set of wanted gradients. */
#include <string.h>

#include "builder/decide.h"
#include "rewrite/rewrite.h"

/* Gives each input's gradient an output of its own, since each has a buffer of its own.
 * Differentiation may let several inputs share one output. */
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

static wefti_recompute_mode recompute_of(const wefti_decisions *dec, const char *call) {
    const weft_plan *plan = dec->spec->plan;
    if (dec->spec->recompute) return WEFTI_RECOMPUTE_FULL;
    if (!plan || plan->recompute.mode == WEFT_RECOMPUTE_NONE || !wefti_plan_recomputes(plan, call))
        return WEFTI_RECOMPUTE_CHEAP;
    return plan->recompute.mode == WEFT_RECOMPUTE_FULL ? WEFTI_RECOMPUTE_FULL
                                                       : WEFTI_RECOMPUTE_SELECTIVE;
}

static weft_status cell_gradient(wefti_decisions *dec, wefti_call_plan *call, const bool *wanted,
                                 const bool *given, const bool *rows, const bool *wide) {
    weft_body *cell = call->node->callee;
    const bool *keep = call->local && call->recompute && !dec->spec->plan->recompute.communication
                           ? call->local->communicated
                           : NULL;
    for (int32_t i = 0; i < dec->grad_count; i++) {
        const wefti_gradient_key *key = &dec->grad_keys[i];
        if (dec->grads[i].cell != cell || key->recompute != call->recompute || key->keep != keep ||
            memcmp(key->wanted, wanted, (size_t)cell->in_count * sizeof *wanted) != 0 ||
            memcmp(key->rows, rows, (size_t)cell->in_count * sizeof *rows) != 0 ||
            memcmp(key->wide, wide, (size_t)cell->in_count * sizeof *wide) != 0 ||
            memcmp(key->given, given, (size_t)cell->out_count * sizeof *given) != 0)
            continue;
        call->grad = i;
        return WEFT_OK;
    }
    bool *kept_wanted, *kept_given;
    WEFT_TRY(wefti_new_array(dec->scratch, cell->in_count, sizeof *kept_wanted, &kept_wanted));
    WEFT_TRY(wefti_new_array(dec->scratch, cell->out_count, sizeof *kept_given, &kept_given));
    memcpy(kept_wanted, wanted, (size_t)cell->in_count * sizeof *wanted);
    memcpy(kept_given, given, (size_t)cell->out_count * sizeof *given);
    int64_t count = dec->grad_count;
    WEFT_TRY(WEFT_GROW(dec->grads, count, dec->grad_cap));
    WEFT_TRY(WEFT_GROW(dec->grad_keys, count, dec->grad_key_cap));
    WEFT_TRY(wefti_differentiate_keeping(dec->g, cell, wanted, given, call->recompute, keep, wide,
                                         &dec->grads[count]));
    dec->grad_count++; /* owned from here on */
    WEFT_TRY(own_outputs(&dec->grads[count]));
    wefti_rows_take(dec, &dec->grads[count], rows);
    if (dec->split_backward) {
        bool *weights;
        WEFT_TRY(wefti_new_array(dec->scratch, cell->in_count, sizeof *weights, &weights));
        for (int64_t i = 0; i < cell->in_count; i++)
            weights[i] = cell->values[cell->in[i]].kind == WEFTI_VALUE_PARAM;
        WEFT_TRY(wefti_cell_grad_split(dec->g, &dec->grads[count], weights));
    }
    dec->grad_keys[count] =
        (wefti_gradient_key){kept_wanted, kept_given, call->recompute, rows, wide, keep};
    call->grad = (int32_t)count;
    return WEFT_OK;
}

/* Whether the loss cell must run in the forward pass of a pipeline. A fused forward-backward pass
 * is a task of the backward pass. So no forward task may wait for its results or change a state
 * that it reads. */
static bool must_go_forward(const wefti_decisions *dec, int32_t k) {
    bool must = false;
    if (dec->stages == 1) return false;
    for (int o = 0; o < dec->calls[k].node->outputs; o++)
        for (int32_t j = k + 1; j < dec->call_count; j++)
            must |= wefti_call_reads(&dec->calls[j], dec->calls[k].node->out[o]);
    for (int64_t i = 0; i < dec->g->assign_count; i++) {
        const wefti_assign *a = &dec->g->assigns[i];
        int32_t maker = wefti_call_maker(dec, a->next);
        must |= maker > k && wefti_call_reads(&dec->calls[k], a->state);
        for (int32_t j = 0; j < dec->call_count && maker == k; j++)
            must |= j != k && wefti_call_reads(&dec->calls[j], a->state);
    }
    return must;
}

const wefti_cell_grad *wefti_call_grad(const wefti_decisions *dec, const wefti_call_plan *call,
                                       wefti_pass pass) {
    const wefti_cell_grad *whole = &dec->grads[call->grad];
    return pass == WEFTI_PASS_ALL ? whole : &whole->parts[pass - WEFTI_PASS_INPUTS];
}

void wefti_call_given(const wefti_decisions *dec, const wefti_call_plan *call, bool *given) {
    for (int o = 0; o < call->node->outputs; o++) given[o] = call->node->out[o] == dec->g->loss;
}

/* Makes the body of the fused forward-backward pass. All calls that are fused alike share it. */
static weft_status make_fused_body(wefti_decisions *dec, const wefti_call_plan *call) {
    wefti_cell_grad *grad = &dec->grads[call->grad];
    bool given[WEFTI_MAX_OUT_CALL];
    if (grad->fused_body || dec->layouts_only) return WEFT_OK;
    wefti_call_given(dec, call, given);
    return wefti_fuse_passes(dec->g, grad, given, &grad->fused_body);
}

/* Decides which calls have a backward pass, and for which gradients. */
weft_status wefti_decide_gradients(wefti_decisions *dec) {
    const weft_body *root = dec->root;
    for (int64_t v = 0; v < root->value_count; v++)
        dec->needs[v] = root->values[v].kind == WEFTI_VALUE_PARAM && !root->values[v].frozen;
    for (int32_t k = 0; k < dec->call_count; k++) {
        const weft_node *n = dec->calls[k].node;
        bool any = false;
        for (int i = 0; i < n->inputs; i++) any |= n->in[i] >= 0 && dec->needs[n->in[i]];
        for (int o = 0; o < n->outputs; o++)
            dec->needs[n->out[o]] = any && wefti_dtype_is_float(root->values[n->out[o]].desc.dtype);
    }
    dec->has_gradient[dec->g->loss] = true;
    bool last = true;
    for (int32_t k = dec->call_count - 1; k >= 0; k--) {
        wefti_call_plan *call = &dec->calls[k];
        const weft_node *n = call->node;
        bool given[WEFTI_MAX_OUT_CALL], any_given = false, any_wanted = false, only_loss = true;
        bool *wanted, *rows, *wide;
        WEFT_REQUIRE(n->outputs <= WEFTI_MAX_OUT_CALL, WEFT_E_NO_IMPL,
                     "%s: more than %d results of one cell", n->scope, WEFTI_MAX_OUT_CALL);
        WEFT_TRY(wefti_new_array(dec->scratch, n->inputs, sizeof *wanted, &wanted));
        for (int o = 0; o < n->outputs; o++) {
            given[o] = dec->has_gradient[n->out[o]];
            any_given |= given[o];
            only_loss &= !given[o] || n->out[o] == dec->g->loss;
        }
        for (int i = 0; i < n->inputs; i++) {
            wanted[i] = n->in[i] >= 0 && dec->needs[n->in[i]];
            any_wanted |= wanted[i];
        }
        if (!any_given || !any_wanted) continue;
        call->recompute = recompute_of(dec, n->scope);
        WEFT_TRY(wefti_new_array(dec->scratch, n->inputs, sizeof *rows, &rows));
        WEFT_TRY(wefti_rows_candidates(dec, n, rows));
        WEFT_TRY(wefti_new_array(dec->scratch, n->inputs, sizeof *wide, &wide));
        for (int i = 0; i < n->inputs; i++) wide[i] = n->in[i] >= 0 && dec->copied[n->in[i]];
        WEFT_TRY(cell_gradient(dec, call, wanted, given, rows, wide));
        wefti_rows_record(dec, n, &dec->grads[call->grad], rows);
        call->differentiated = true;
        /* Fused passes save nothing, whatever the plan's recomputation mode. */
        call->fused = last && only_loss && !call->on_host && dec->spec->recompute == 0 &&
                      !must_go_forward(dec, k);
        if (call->fused) WEFT_TRY(make_fused_body(dec, call));
        last = false;
        const wefti_cell_grad *grad = &dec->grads[call->grad];
        for (int i = 0; i < n->inputs; i++)
            if (wanted[i] && grad->gradient_out[i] >= 0) {
                dec->has_gradient[n->in[i]] = true;
                dec->last_backward[n->in[i]] = k; /* the lowest k is the last one to run */
            }
        /* A parameter must not be updated before the last call that reads it, even if that call has
         * no gradient for it. */
        for (int64_t i = 0; i < grad->backward->in_count; i++) {
            wefti_grad_binding bind = grad->bindings[i];
            if (bind.source == WEFTI_GRAD_INPUT && dec->has_gradient[n->in[bind.index]])
                dec->last_backward[n->in[bind.index]] = k;
        }
    }
    return WEFT_OK;
}
