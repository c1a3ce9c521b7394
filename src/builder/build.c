/* From decisions to the program of one device: compiles each unique body once, and orders the
 * calls. program.h describes the result. */
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "builder/buddy/buddy.h"
#include "builder/build.h"

/* ---- small things ---- */

/* If memory is missing, the name is "" and the build fails at its end. */
const char *wefti_build_name(wefti_emitter *b, const char *prefix, const char *name) {
    const char *text = wefti_arena_join(b->p->arena, prefix, name ? name : "");
    if (!text) b->unnamed = true;
    return text ? text : "";
}

/* A tensor of the program; `layout` NULL: whole. */
static weft_status new_tensor(wefti_emitter *b, const char *name, wefti_tensor_role role,
                              const weft_desc *whole, const wefti_layout *layout, weft_init init,
                              int32_t buffer, int32_t *out) {
    wefti_program *p = b->p;
    int64_t count = p->tensor_count;
    WEFT_TRY(WEFT_GROW(p->tensors, count, b->tensor_cap));
    WEFT_TRY(WEFT_GROW(b->tensor_buffer, count, b->tensor_buffer_cap));
    wefti_layout sharding = layout ? *layout : wefti_layout_replicated(whole->rank);
    p->tensors[count] = (wefti_tensor){.name = name,
                                       .role = role,
                                       .param = -1,
                                       .copy = WEFTI_NOWHERE,
                                       .cache = WEFTI_NOWHERE,
                                       .init = init,
                                       .whole = *whole,
                                       .desc = wefti_sharding_desc(b->dec, whole, &sharding),
                                       .layout = sharding,
                                       .microbatches = 1};
    b->tensor_buffer[count] = buffer;
    *out = p->tensor_count++;
    return WEFT_OK;
}

weft_status wefti_build_persistent(wefti_emitter *b, const char *name, wefti_tensor_role role,
                                   wefti_space space, const weft_desc *whole,
                                   const wefti_layout *layout, weft_init init, int32_t *out_buffer,
                                   int32_t *out_tensor) {
    const wefti_tensor *old = b->spec->shared ? wefti_program_tensor(b->spec->shared, name) : NULL;
    name = wefti_build_name(b, "", name);
    wefti_layout sharding = layout ? *layout : wefti_layout_replicated(whole->rank);
    weft_desc here = wefti_sharding_desc(b->dec, whole, &sharding);
    if (old && (old->role == WEFTI_TENSOR_PARAM || old->role == WEFTI_TENSOR_STATE)) {
        WEFT_REQUIRE(wefti_desc_equal(&old->whole, whole), WEFT_E_SHAPE,
                     "'%s' is %s here but %s in the program it is shared with", name,
                     wefti_desc_text(whole).text, wefti_desc_text(&old->whole).text);
        WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here), name, out_buffer));
        b->buffers[*out_buffer].persistent = b->buffers[*out_buffer].fixed = true;
        b->buffers[*out_buffer].space = wefti_location_space(old->home);
        b->buffers[*out_buffer].life.offset = wefti_location_offset(old->home);
    } else {
        WEFT_TRY(wefti_buffer_persistent(b, weft_desc_bytes(&here), name, out_buffer));
        b->buffers[*out_buffer].space = space;
    }
    WEFT_TRY(new_tensor(b, name, role, whole, &sharding, init, *out_buffer, out_tensor));
    if (role == WEFTI_TENSOR_PARAM) b->buffers[*out_buffer].param = *out_tensor;
    return WEFT_OK;
}

weft_status wefti_build_keep_body(wefti_emitter *b, weft_body *body) {
    int64_t count = b->p->body_count;
    weft_status status = WEFT_GROW(b->p->bodies, count, b->body_cap);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    b->p->bodies[b->p->body_count++] = body;
    return WEFT_OK;
}

static bool is_kept(const wefti_emitter *b, int32_t value) {
    wefti_value_kind kind = b->root->values[value].kind;
    return kind == WEFTI_VALUE_PARAM || kind == WEFTI_VALUE_STATE;
}

int32_t *wefti_build_value(wefti_emitter *b, int32_t micro, int32_t value) {
    int32_t forwarded = wefti_state_forwarded(b->dec, micro, value);
    if (forwarded >= 0) return &b->micro[micro - 1].value[forwarded];
    return is_kept(b, value) ? &b->param_buffer[value] : &b->micro[micro].value[value];
}

int32_t *wefti_build_gradient(wefti_emitter *b, int32_t micro, int32_t value) {
    return is_kept(b, value) ? &b->param_gradient[value] : &b->micro[micro].gradient[value];
}

/* ---- values of the root ---- */

/* One buffer contains an input of all microbatches, one behind the other. */
static weft_status bind_input(wefti_emitter *b, int32_t v) {
    const wefti_value_info *info = &b->root->values[v];
    const wefti_layout *use = &b->dec->sharding[v].use;
    weft_desc here = wefti_sharding_desc(b->dec, &info->desc, use);
    int64_t bytes = weft_desc_bytes(&here), stride = wefti_aligned(bytes), all = bytes;
    int32_t whole, tensor, micros = b->p->all_microbatches ? b->spec->microbatches : 1;
    const char *name = wefti_build_name(b, "", info->name);
    WEFT_REQUIRE(micros == 1 || !wefti_mul_overflows(stride, micros, &all), WEFT_E_NOMEM,
                 "'%s' of %d microbatches has more bytes than can be counted", name, micros);
    if (micros > 1) all -= stride - bytes; /* nothing lies behind the last one */
    WEFT_TRY(wefti_buffer_add(b, all, name, &whole));
    b->buffers[whole].life.last = INT32_MAX; /* to the end: set in finish */
    WEFT_TRY(new_tensor(b, name, WEFTI_TENSOR_INPUT, &info->desc, b->part ? use : NULL, info->init,
                        whole, &tensor));
    b->p->tensors[tensor].microbatches = micros;
    b->p->tensors[tensor].stride = micros > 1 ? stride : 0;
    b->micro[0].value[v] = whole;
    for (int32_t m = 0; m < b->dec->micros && micros > 1; m++)
        WEFT_TRY(wefti_buffer_part(b, whole, m, stride, bytes, &b->micro[m].value[v]));
    return WEFT_OK;
}

/* The persistent copy that calls read of a master, or of what servers keep, at the place that the
 * sharing program has given it. */
static weft_status bind_copy(wefti_emitter *b, int32_t v) {
    const char *name = b->root->values[v].name;
    const wefti_tensor *old = b->spec->shared ? wefti_program_tensor(b->spec->shared, name) : NULL;
    const weft_desc whole = wefti_use_desc(b->dec, v),
                    here = wefti_sharding_desc(b->dec, &whole, &b->dec->sharding[v].storage);
    int32_t *out = &b->param_copy[v];
    WEFT_TRY(wefti_buffer_persistent(b, weft_desc_bytes(&here),
                                     wefti_build_name(b, "copy of ", name), out));
    b->buffers[*out].param = b->param_index[v];
    if (!old) return WEFT_OK;
    b->buffers[*out].fixed = true;
    b->buffers[*out].life.offset = wefti_location_offset(old->copy);
    return WEFT_OK;
}

static weft_status bind_root_values(wefti_emitter *b) {
    const weft_body *root = b->root;
    for (int64_t i = 0; i < root->in_count; i++) {
        int32_t v = root->in[i], tensor;
        const wefti_value_info *info = &root->values[v];
        if (!b->dec->bound[v]) continue; /* another stage reads it */
        if (info->kind == WEFTI_VALUE_INPUT) {
            WEFT_TRY(bind_input(b, v));
            continue;
        }
        bool param = info->kind == WEFTI_VALUE_PARAM;
        const wefti_space space = b->dec->served[v]                        ? WEFTI_SPACE_SERVER
                                  : b->dec->copied[v] || b->dec->hosted[v] ? WEFTI_SPACE_HOST
                                  : param ? wefti_tier_space(b, WEFT_OFFLOAD_PARAMETERS, info->name)
                                          : WEFTI_SPACE_DEVICE;
        WEFT_TRY(wefti_build_persistent(b, info->name,
                                        param ? WEFTI_TENSOR_PARAM : WEFTI_TENSOR_STATE, space,
                                        &info->desc, b->part ? &b->dec->sharding[v].storage : NULL,
                                        info->init, &b->param_buffer[v], &tensor));
        if (param) b->param_index[v] = tensor;
        if (b->dec->copied[v] || b->dec->served[v]) WEFT_TRY(bind_copy(b, v));
        b->p->tensors[tensor].frozen = info->frozen;
        b->p->tensors[tensor].rows = b->dec->form[v];
    }
    return wefti_build_second_states(b);
}

/* ---- sections ---- */

weft_status wefti_build_loss(wefti_emitter *b, wefti_section s, int32_t micro) {
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_LOSS, WEFTI_OTHER, "loss", 1, &d));
    wefti_build_arg(b, d, 0, *wefti_build_value(b, micro, b->g->loss), 0);
    b->now++;
    return WEFT_OK;
}

/* Only the last microbatch writes to the buffers of the outputs. Earlier microbatches that run at
 * the same time (interleaved copies, or all microbatches of a pipeline) get buffers of their
 * own. */
static void reset_micro(wefti_emitter *b, int32_t micro) {
    const weft_body *root = b->root;
    int32_t copies = b->p->all_microbatches ? b->dec->copies : 1;
    bool last = b->dec->stages > 1 ? micro == b->dec->micros - 1 : micro % copies == copies - 1;
    for (int64_t v = 0; v < root->value_count; v++) {
        if (root->values[v].node < 0) continue;
        b->micro[micro].value[v] = last ? b->output_buffer[v] : -1;
        b->micro[micro].gradient[v] = -1;
        b->micro[micro].started[v] = false;
    }
    for (int32_t k = 0; k < b->dec->call_count; k++)
        b->micro[micro].saved[k] = b->micro[micro].kept[k] = -1;
}

/* Finds the call that follows call k when a microbatch runs from end to end. */
static void find_next(wefti_emitter *b, int32_t k, bool backward) {
    b->next_call = -1;
    b->next_backward = backward;
    if (!backward && k + 1 < b->dec->call_count) {
        b->next_call = k + 1;
        return;
    }
    b->next_backward = true;
    for (int32_t j = backward ? k - 1 : b->dec->call_count - 1; j >= 0 && b->next_call < 0; j--)
        if (b->dec->calls[j].differentiated && !b->dec->calls[j].fused) b->next_call = j;
}

/* Whether the section's last microbatch is the step's last one. */
static bool completes(const wefti_emitter *b, wefti_section s) {
    return s == WEFTI_SECTION_LAST || b->spec->microbatches == 1 || b->p->all_microbatches;
}

/* Behind the backward passes of a call. */
static weft_status backward_ends(wefti_emitter *b, wefti_section s, int32_t k) {
    WEFT_TRY(wefti_reduce_completed(b, s, k));
    return wefti_gradients_leave(b, s, k);
}

/* Builds the forward calls, the loss, and the backward calls in reverse order. The microbatches
 * [first, first + copies) run from end to end and interleave. */
static weft_status compute_pass(wefti_emitter *b, wefti_section s, int32_t first, int32_t copies) {
    int32_t fused = -1;
    bool last = first + copies == b->dec->micros;
    b->last_part = -1;
    wefti_reduce_begin(b, last && completes(b, s));
    b->now_micro = first;
    WEFT_TRY(wefti_rows_ahead(b, s, first));
    for (int32_t k = 0; k < b->dec->call_count; k++) {
        if (b->dec->calls[k].fused) fused = k;
        for (int32_t c = 0; c < copies; c++) {
            b->now_micro = first + c;
            WEFT_TRY(wefti_interleave_begin(b, s));
            find_next(b, k, false);
            if (b->dec->calls[k].fused)
                WEFT_TRY(wefti_build_fused_call(b, s, k, first + c));
            else
                WEFT_TRY(wefti_build_forward_call(b, s, k, first + c));
            for (int o = 0; o < b->dec->calls[k].node->outputs; o++)
                if (b->dec->calls[k].node->out[o] == b->g->loss)
                    WEFT_TRY(wefti_build_loss(b, s, first + c));
            WEFT_TRY(wefti_build_states(b, s, first + c, k));
        }
        WEFT_TRY(wefti_interleave_end(b, s));
    }
    if (fused >= 0) WEFT_TRY(backward_ends(b, s, fused));
    for (int32_t k = b->dec->call_count - 1; k >= 0; k--) {
        if (!b->dec->calls[k].differentiated || b->dec->calls[k].fused) continue;
        for (int32_t c = 0; c < copies; c++) {
            b->now_micro = first + c;
            WEFT_TRY(wefti_interleave_begin(b, s));
            find_next(b, k, true);
            WEFT_TRY(wefti_build_backward_call(b, s, k, first + c, WEFTI_PASS_ALL));
        }
        WEFT_TRY(wefti_interleave_end(b, s));
        WEFT_TRY(backward_ends(b, s, k));
    }
    b->now_micro = first;
    /* The last reduction overlaps with the next forward pass. If more were left, a loop's first
     * pass could begin unlike the others. */
    WEFT_TRY(wefti_reduce_wait(b, s, last ? 0 : 1));
    if (last) WEFT_TRY(wefti_served_finish(b, s));
    WEFT_TRY(wefti_pass_stored(b, s));
    WEFT_TRY(wefti_gather_finish(b, s));
    return wefti_build_states(b, s, first + copies - 1, -1);
}

static weft_status compute_section(wefti_emitter *b, wefti_section s) {
    int32_t copies = b->p->all_microbatches ? b->dec->copies : 1;
    for (int32_t m = 0; m < b->dec->micros; m++) reset_micro(b, m);
    if (s == WEFTI_SECTION_FIRST) WEFT_TRY(wefti_build_take_states(b));
    for (int32_t m = 0, pass = 0; m < b->dec->micros; m += copies, pass++) {
        int32_t mark = pass - b->dec->loop.from;
        if (mark >= 0 && mark < 3) wefti_loop_mark_at(b, s, mark);
        WEFT_TRY(compute_pass(b, s, m, copies));
    }
    b->now_micro = 0;
    b->loop.tasks_end = b->step_count[s];
    WEFT_TRY(wefti_tier_finish(b, s));
    WEFT_TRY(wefti_flight_check(b, s));
    return wefti_loop_fold(b, s);
}

/* The part of all microbatches that this stage runs. */
static weft_status staged_section(wefti_emitter *b) {
    for (int32_t m = 0; m < b->dec->micros; m++) reset_micro(b, m);
    WEFT_TRY(wefti_build_take_states(b));
    WEFT_TRY(wefti_pipeline_section(b));
    WEFT_TRY(wefti_build_states(b, WEFTI_SECTION_FIRST, b->dec->micros - 1, -1));
    WEFT_TRY(wefti_flight_check(b, WEFTI_SECTION_FIRST));
    return wefti_loop_fold(b, WEFTI_SECTION_FIRST);
}

/* ---- all of it ---- */

static weft_status named_outputs(wefti_emitter *b) {
    for (int64_t i = 0; i < b->g->output_count; i++) {
        int32_t v = b->g->outputs[i].value, tensor;
        const wefti_value_info *info = &b->root->values[v];
        if (info->node < 0) continue; /* an input or parameter: readable under its own name */
        bool mine = true;
        for (int32_t k = 0; k < b->dec->call_count; k++)
            if (!b->dec->calls[k].mine && b->dec->calls[k].node == &b->root->nodes[info->node])
                mine = false;
        if (!mine) continue;
        weft_desc here = wefti_sharding_desc(b->dec, &info->desc, &b->dec->sharding[v].use);
        if (b->output_buffer[v] < 0) {
            WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here),
                                      wefti_build_name(b, "output ", b->g->outputs[i].name),
                                      &b->output_buffer[v]));
            b->buffers[b->output_buffer[v]].life.last = INT32_MAX;
        }
        WEFT_TRY(new_tensor(b, wefti_build_name(b, "", b->g->outputs[i].name), WEFTI_TENSOR_OUTPUT,
                            &info->desc, b->part ? &b->dec->sharding[v].use : NULL, info->init,
                            b->output_buffer[v], &tensor));
    }
    return WEFT_OK;
}

static weft_status readable_gradients(wefti_emitter *b) {
    for (int64_t i = 0; i < b->root->in_count; i++) {
        int32_t v = b->root->in[i], tensor;
        const int32_t buffer = b->dec->hosted[v] ? b->gradient_home[WEFTI_GRADIENT_TERM][v].buffer
                                                 : b->param_gradient[v];
        if (b->param_index[v] < 0 || buffer < 0) continue;
        b->buffers[buffer].life.last = INT32_MAX;
        WEFT_TRY(new_tensor(b, wefti_build_name(b, "grad:", b->root->values[v].name),
                            WEFTI_TENSOR_GRADIENT, &b->root->values[v].desc,
                            b->part ? &b->dec->sharding[v].gradient : NULL, b->root->values[v].init,
                            buffer, &tensor));
    }
    return WEFT_OK;
}

static weft_status train_buffers(wefti_emitter *b) {
    const wefti_value_info *loss = b->g->loss >= 0 ? &b->root->values[b->g->loss] : NULL;
    WEFT_REQUIRE(loss, WEFT_E_ARG, "training needs a loss: call weft_loss with a scalar value");
    WEFT_REQUIRE(loss->node >= 0, WEFT_E_ARG, "the loss depends on no operation");
    WEFT_TRY(wefti_buffer_persistent(b, sizeof(wefti_step_block), "scalars", &b->scalars));
    WEFT_TRY(wefti_buffer_persistent(b, 64, "one", &b->one));
    b->p->norms_dtype = WEFT_F32;
    int64_t params = 0, frozen = 0;
    for (int64_t i = 0; i < b->root->in_count; i++) {
        const wefti_value_info *v = &b->root->values[b->root->in[i]];
        WEFT_REQUIRE(
            v->kind != WEFTI_VALUE_PARAM || v->desc.dtype != WEFT_BF16, WEFT_E_ARG,
            "the parameter '%s' is bf16, but a training's parameters are f32 or f64: train "
            "it with an f32 master on the host (train.master: host, or weft_plan_master)",
            v->name);
        if (v->kind == WEFTI_VALUE_PARAM && v->desc.dtype == WEFT_F64) b->p->norms_dtype = WEFT_F64;
        params += v->kind == WEFTI_VALUE_PARAM;
        frozen += v->frozen;
    }
    WEFT_REQUIRE(!frozen || frozen < params, WEFT_E_ARG,
                 "all %lld parameters are frozen: training would change nothing",
                 (long long)params);
    int64_t bytes = b->root->in_count * (int64_t)weft_dtype_bytes(b->p->norms_dtype);
    if (b->spec->optimizer && b->spec->optimizer->clip)
        WEFT_TRY(wefti_buffer_persistent(b, bytes, "norms", &b->norms));
    return b->dec->serves ? wefti_served_prepare(b) : WEFT_OK;
}

static void read_locations(wefti_emitter *b) {
    wefti_program *p = b->p;
    for (int32_t t = 0; t < p->tensor_count; t++)
        p->tensors[t].home = wefti_buffer_location(b, b->tensor_buffer[t]);
    for (int64_t v = 0; v < b->root->value_count; v++) {
        if (b->param_index[v] < 0) continue;
        wefti_tensor *x = &p->tensors[b->param_index[v]];
        x->copy = wefti_buffer_location(b, b->param_copy[v]);
        if (x->cache_slots) x->cache = wefti_buffer_location(b, b->update[v].cache);
    }
    wefti_buddy_place(b);
    wefti_served_place(b);
    p->scalars = wefti_buffer_location(b, b->scalars);
    p->host_scalars = wefti_buffer_location(b, b->host_scalars);
    p->one = wefti_buffer_location(b, b->one);
    p->norms = wefti_buffer_location(b, b->norms);
    p->loss = WEFTI_NOWHERE;
    if (b->g->loss < 0) return;
    int32_t buffer = *wefti_build_value(b, 0, b->g->loss),
            maker = wefti_call_maker(b->dec, b->g->loss);
    /* A loss received from another stage has a buffer here too, so the maker must be a call of this
     * stage. */
    if (buffer >= 0 && maker >= 0 && b->dec->calls[maker].mine)
        p->loss = wefti_buffer_location(b, buffer);
    p->loss_dtype = b->root->values[b->g->loss].desc.dtype;
}

static weft_status new_tables(wefti_emitter *b) {
    int64_t values = b->root->value_count;
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->output_buffer));
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->param_buffer));
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->param_copy));
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->param_move));
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->rows_move));
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(wefti_new_indices(b->scratch, b->dec->call_count, &b->saved_move[i]));
        WEFT_TRY(
            wefti_new_array(b->scratch, b->dec->call_count, sizeof(int32_t *), &b->host_moves[i]));
    }
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->param_piece));
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->state_kept));
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->param_gradient));
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->reduced));
    for (int use = 0; use < WEFTI_GRADIENT_USES; use++) {
        wefti_gradient_home **homes = &b->gradient_home[use];
        WEFT_TRY(wefti_new_array(b->scratch, values, sizeof **homes, homes));
        for (int64_t v = 0; v < values; v++)
            (*homes)[v] = (wefti_gradient_home){.buffer = -1, .move = {-1, -1}};
    }
    WEFT_TRY(wefti_new_array(b->scratch, values, sizeof *b->terms, &b->terms));
    WEFT_TRY(wefti_new_array(b->scratch, values, sizeof *b->terms_of, &b->terms_of));
    wefti_reduce_count_terms(b);
    WEFT_TRY(wefti_new_array(b->scratch, values, sizeof *b->packed_at, &b->packed_at));
    for (int64_t v = 0; v < values; v++) b->packed_at[v] = -1;
    WEFT_TRY(wefti_new_array(b->scratch, b->dec->bucket_count, sizeof *b->packed, &b->packed));
    for (int32_t k = 0; k < b->dec->bucket_count; k++)
        b->packed[k].buffer = b->packed[k].pieces = -1;
    WEFT_TRY(wefti_new_array(b->scratch, b->dec->bucket_count, sizeof *b->begun, &b->begun));
    WEFT_TRY(wefti_new_indices(b->scratch, values, &b->param_index));
    WEFT_TRY(wefti_slices_prepare(b));
    WEFT_TRY(wefti_new_array(b->scratch, values, sizeof(bool), &b->param_started));
    WEFT_TRY(wefti_new_array(b->scratch, values, sizeof(bool), &b->completed));
    WEFT_TRY(wefti_new_array(b->scratch, b->dec->bucket_count, sizeof *b->ready, &b->ready));
    WEFT_TRY(wefti_new_array(b->scratch, b->dec->micros, sizeof *b->micro, &b->micro));
    for (int32_t m = 0; m < b->dec->micros; m++) {
        wefti_micro *x = &b->micro[m];
        WEFT_TRY(wefti_new_indices(b->scratch, values, &x->value));
        WEFT_TRY(wefti_new_indices(b->scratch, values, &x->gradient));
        WEFT_TRY(wefti_new_array(b->scratch, values, sizeof(bool), &x->started));
        WEFT_TRY(wefti_new_indices(b->scratch, b->dec->call_count, &x->saved));
        WEFT_TRY(wefti_new_indices(b->scratch, b->dec->call_count, &x->kept));
        WEFT_TRY(wefti_new_array(b->scratch, b->dec->call_count, sizeof(int32_t *), &x->crossed));
    }
    return WEFT_OK;
}

/* Adds the memory of the program itself to `program_bytes`, which has the array of the
 * gradients. */
static void count_program_bytes(const wefti_emitter *b) {
    wefti_program *p = b->p;
    p->program_bytes += (int64_t)sizeof *p + wefti_arena_bytes(p->arena) +
                        wefti_graph_derived_bytes(p->graph) + wefti_partition_bytes(p->partition) +
                        wefti_array_bytes(p->tensors, b->tensor_cap, sizeof *p->tensors) +
                        wefti_array_bytes(p->routines, b->routine_cap, sizeof(wefti_routine *)) +
                        wefti_array_bytes(p->moves, b->move_cap, sizeof *p->moves) +
                        wefti_array_bytes(p->bodies, b->body_cap, sizeof(weft_body *));
    for (int32_t i = 0; i < p->routine_count; i++)
        p->program_bytes += wefti_routine_bytes(p->routines[i]);
    for (int32_t i = 0; i < p->grad_count; i++)
        p->program_bytes += wefti_cell_grad_bytes(&p->grads[i]);
    for (int32_t i = 0; i < p->body_count; i++) p->program_bytes += wefti_body_bytes(p->bodies[i]);
}

static weft_status emit(wefti_emitter *b) {
    const wefti_program_spec *spec = b->spec;
    wefti_program *p = b->p;
    bool train = spec->optimizer || spec->keep_gradients;
    WEFT_TRY(wefti_arena_create(&b->scratch));
    WEFT_TRY(new_tables(b));
    WEFT_TRY(wefti_build_edges(b));
    WEFT_TRY(bind_root_values(b));
    WEFT_TRY(named_outputs(b));
    if (train) WEFT_TRY(train_buffers(b));
    if (train) WEFT_TRY(wefti_host_prepare(b));
    if (b->dec->stages > 1)
        WEFT_TRY(staged_section(b));
    else
        WEFT_TRY(compute_section(b, WEFTI_SECTION_FIRST));
    if (b->loop.refused) return WEFT_OK;
    double forward = p->forward_flops, backward = p->backward_flops;
    bool several = spec->microbatches > 1 && !p->all_microbatches;
    bool last = several && wefti_reduce_at_last(b);
    if (several && (!last || spec->microbatches > 2))
        WEFT_TRY(compute_section(b, WEFTI_SECTION_NEXT));
    if (last) WEFT_TRY(compute_section(b, WEFTI_SECTION_LAST));
    /* A section that runs all microbatches has counted each of them. */
    p->forward_flops = forward / (p->all_microbatches ? spec->microbatches : 1);
    p->backward_flops = backward / (p->all_microbatches ? spec->microbatches : 1);
    if (spec->keep_gradients) WEFT_TRY(readable_gradients(b));
    if (spec->optimizer && !b->dec->eager) WEFT_TRY(wefti_build_update_section(b));
    WEFT_TRY(wefti_tier_finish(b, WEFTI_SECTION_UPDATE));
    WEFT_TRY(wefti_served_finish(b, WEFTI_SECTION_UPDATE));
    WEFT_TRY(wefti_flight_check(b, WEFTI_SECTION_UPDATE));
    if (b->part && !spec->shared) WEFT_TRY(wefti_partition_check(b->part));
    WEFT_REQUIRE(!b->unnamed, WEFT_E_NOMEM, "no memory for the names of a program");
    for (int64_t i = 0; i < b->buffer_count; i++)
        if (b->buffers[i].life.last == INT32_MAX) {
            b->buffers[i].life.first = 0;
            b->buffers[i].life.last = b->now;
        }
    WEFT_TRY(wefti_buffers_finish(b));
    read_locations(b);
    count_program_bytes(b);
    return WEFT_OK;
}

static void finish(wefti_emitter *b) {
    wefti_arena_destroy(b->scratch);
    wefti_free(b->buffers);
    wefti_free(b->flights);
    wefti_free(b->transfer_move);
    wefti_free(b->keys);
    wefti_free(b->tensor_buffer);
    for (int s = 0; s < WEFTI_SECTIONS; s++) wefti_free(b->steps[s]);
}

/* Emits the program of decisions. The program takes over the stores of the decisions. *out is NULL
 * if all microbatches must be emitted. */
static weft_status emit_program(wefti_decisions *dec, wefti_program **out) {
    wefti_program *p;
    *out = NULL;
    WEFT_NEW(p, wefti_program);
    wefti_decisions_release(dec, p);
    wefti_emitter b = {.dec = dec,
                       .spec = dec->spec,
                       .p = p,
                       .g = dec->g,
                       .root = dec->root,
                       .part = dec->part,
                       .next_call = -1,
                       .scalars = -1,
                       .host_scalars = -1,
                       .one = -1,
                       .norms = -1};
    p->kind = dec->spec->kind;
    p->masters = dec->masters;
    p->holder = p->ward = p->gather_from = -1;
    weft_status status = emit(&b);
    if (status >= 0 && b.part && wefti_partition_reads(b.part)->lost)
        status = WEFT_E_NOMEM; /* raised where they were lost */
    finish(&b);
    if (status < 0 || b.loop.refused) {
        wefti_program_destroy(p);
        return status;
    }
    *out = p;
    return WEFT_OK;
}

static weft_status build(const wefti_program_spec *spec, wefti_program **out) {
    wefti_decisions dec;
    weft_status status = wefti_decisions_make(spec, &dec);
    if (status == WEFT_OK) status = emit_program(&dec, out);
    wefti_decisions_free(&dec);
    return status;
}

weft_status wefti_program_build(const wefti_program_spec *spec, wefti_program **out) {
    WEFT_REQUIRE(spec->microbatches >= 1, WEFT_E_ARG, "a step has at least 1 microbatch, not %d",
                 spec->microbatches);
    WEFT_TRY(wefti_kind_check(spec->kind));
    WEFT_TRY(wefti_plan_check_places(spec->plan, spec->graph));
    WEFT_TRY(build(spec, out));
    if (*out) return WEFT_OK;
    wefti_program_spec whole = *spec;
    whole.unrolled = true;
    return build(&whole, out);
}
