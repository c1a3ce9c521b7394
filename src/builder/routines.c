/* Bodies of calls become routines: cut for this rank, fused, compiled once each. */
#include <string.h>

#include "base/text.h"
#include "builder/build.h"

weft_status wefti_build_find(wefti_program_builder *b, const weft_body *key, int kind,
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

weft_status wefti_build_compile(wefti_program_builder *b, const weft_body *key, int kind,
                                const char *accumulate, wefti_routine_spec *spec, int32_t *out) {
    wefti_program *p = b->p;
    int64_t count = p->routine_count;
    spec->prepare = b->spec->prepare;
    spec->backends = b->spec->backends;
    WEFT_TRY(WEFT_GROW(p->routines, count, b->routine_cap));
    WEFT_TRY(WEFT_GROW(b->keys, b->key_count, b->key_cap));
    char *text = wefti_arena_strdup(b->scratch, accumulate);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory to build a program");
    WEFT_TRY(wefti_routine_compile(spec, &p->routines[count]));
    p->routines[count]->unfused = key;
    b->keys[b->key_count++] = (struct routine_key){key, kind, text, p->routine_count};
    *out = p->routine_count++;
    return WEFT_OK;
}

/* The fused form of `body`, kept by the program. */
static weft_status fused(wefti_program_builder *b, const weft_body *body, weft_body **out) {
    weft_body *result;
    WEFT_TRY(wefti_fuse(b->g, b->part, body, &result));
    WEFT_TRY(wefti_build_keep_body(b, result));
    *out = result;
    return WEFT_OK;
}

/* Offsets of saved values in their block, in order; the block ends at the last byte. */
static weft_status saved_offsets(wefti_program_builder *b, const wefti_call_plan *call,
                                 int64_t **out, int64_t *out_bytes) {
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    const weft_body *f = call->cut ? call->cut->body : grad->forward;
    int64_t bytes = 0, base = grad->cell->out_count;
    WEFT_TRY(wefti_build_array(b, grad->saved, sizeof **out, out));
    for (int32_t s = 0; s < grad->saved; s++) {
        (*out)[s] = (bytes + 63) & ~(int64_t)63;
        bytes = (*out)[s] + weft_desc_bytes(&f->values[f->out[base + s]].desc);
    }
    *out_bytes = bytes;
    return WEFT_OK;
}

weft_status wefti_build_forward(wefti_program_builder *b, wefti_call_plan *call, int32_t *out) {
    const weft_body *key = call->node->callee;
    wefti_routine_spec spec = {0};
    int kind = WEFTI_ROUTINE_PLAIN;
    int64_t *offsets = NULL, *saved = NULL;
    const wefti_cell_grad *grad = NULL;
    if (call->differentiated) {
        grad = &b->p->grads[call->grad];
        key = grad->forward;
        kind = WEFTI_ROUTINE_FORWARD;
    }
    if (call->cut) key = call->cut->body;
    WEFT_TRY(wefti_build_find(b, key, kind, "", out));
    if (*out >= 0) return WEFT_OK;
    if (grad) {
        WEFT_TRY(saved_offsets(b, call, &saved, &spec.saved_bytes));
        WEFT_TRY(wefti_build_array(b, key->out_count, sizeof *offsets, &offsets));
        for (int64_t o = 0; o < key->out_count; o++)
            offsets[o] = o < grad->cell->out_count ? -1 : saved[o - grad->cell->out_count];
        spec.out_saved = offsets;
    }
    WEFT_TRY(fused(b, key, &spec.body));
    return wefti_build_compile(b, key, kind, "", &spec, out);
}

const wefti_cell_grad *wefti_build_grad(const wefti_program_builder *b, const wefti_call_plan *call,
                                        wefti_pass pass) {
    const wefti_cell_grad *whole = &b->p->grads[call->grad];
    return pass == WEFTI_PASS_ALL ? whole : &whole->parts[pass - WEFTI_PASS_INPUTS];
}

/* Which gradients are added, and where the saved values lie that the body reads: a part of a
 * backward pass reads some of them, so that equal bodies may belong to forward passes that are cut
 * differently. */
static weft_status backward_variant(const wefti_program_builder *b, const wefti_cell_grad *grad,
                                    const int64_t *saved, int64_t saved_bytes,
                                    const char *accumulate, const char **out) {
    wefti_text text = {0};
    wefti_text_add(&text, "%s %lld", accumulate, (long long)saved_bytes);
    for (int64_t i = 0; i < grad->backward->in_count; i++)
        if (grad->bindings[i].source == WEFTI_GRAD_SAVED)
            wefti_text_add(&text, " %lld", (long long)saved[grad->bindings[i].index]);
    char *whole = wefti_text_take(&text);
    *out = whole ? wefti_arena_strdup(b->scratch, whole) : NULL;
    wefti_free(whole);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to build a program");
    return WEFT_OK;
}

weft_status wefti_build_backward(wefti_program_builder *b, const wefti_call_plan *call,
                                 wefti_pass pass, const char *accumulate, int32_t *out) {
    const wefti_cell_grad *grad = wefti_build_grad(b, call, pass);
    const weft_body *key = grad->backward;
    if (b->part) {
        const wefti_cut_body *cut;
        WEFT_TRY(wefti_spread_backward(b, (wefti_call_plan *)(uintptr_t)call, pass, &cut));
        key = cut->body;
    }
    wefti_routine_spec spec = {0};
    int64_t *saved, *offsets;
    bool *add;
    const char *variant;
    WEFT_TRY(saved_offsets(b, call, &saved, &spec.saved_bytes));
    WEFT_TRY(backward_variant(b, grad, saved, spec.saved_bytes, accumulate, &variant));
    WEFT_TRY(wefti_build_find(b, key, WEFTI_ROUTINE_BACKWARD, variant, out));
    if (*out >= 0) return WEFT_OK;
    WEFT_TRY(wefti_build_array(b, key->in_count, sizeof *offsets, &offsets));
    for (int64_t i = 0; i < key->in_count; i++)
        offsets[i] =
            grad->bindings[i].source == WEFTI_GRAD_SAVED ? saved[grad->bindings[i].index] : -1;
    WEFT_TRY(wefti_build_array(b, key->out_count, sizeof *add, &add));
    for (int64_t o = 0; o < key->out_count; o++) add[o] = accumulate[o] != '0';
    spec.late = strchr(accumulate, WEFTI_ADD_LATE);
    spec.in_saved = offsets;
    spec.accumulate = add;
    WEFT_TRY(fused(b, key, &spec.body));
    return wefti_build_compile(b, key, WEFTI_ROUTINE_BACKWARD, variant, &spec, out);
}

/* The joined body of a cell's two passes; the same one for every call that is joined alike. */
static weft_status joined_body(wefti_program_builder *b, const wefti_call_plan *call,
                               const bool *given, weft_body **out) {
    wefti_cell_grad *grad = &b->p->grads[call->grad];
    if (!grad->joined) {
        WEFT_TRY(wefti_joint_body(b->g, grad, given, &grad->joined));
        WEFT_TRY(wefti_build_keep_body(b, grad->joined));
    }
    *out = grad->joined;
    return WEFT_OK;
}

weft_status wefti_build_joint(wefti_program_builder *b, wefti_call_plan *call, const bool *given,
                              const char *accumulate, int32_t *out) {
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    weft_body *joined;
    WEFT_TRY(joined_body(b, call, given, &joined));
    const weft_body *key = joined;
    if (b->part) {
        WEFT_TRY(wefti_spread_joint(b, call, joined, given, &call->cut));
        key = call->cut->body;
    }
    WEFT_TRY(wefti_build_find(b, key, WEFTI_ROUTINE_JOINT, accumulate, out));
    if (*out >= 0) return WEFT_OK;
    wefti_routine_spec spec = {0};
    bool *add;
    WEFT_TRY(fused(b, key, &spec.body));
    int64_t outs = joined->out_count;
    WEFT_TRY(wefti_build_array(b, outs, sizeof *add, &add));
    for (int64_t o = grad->cell->out_count; o < outs; o++)
        add[o] = accumulate[o - grad->cell->out_count] != '0';
    spec.late = strchr(accumulate, WEFTI_ADD_LATE);
    spec.accumulate = add;
    return wefti_build_compile(b, key, WEFTI_ROUTINE_JOINT, accumulate, &spec, out);
}
