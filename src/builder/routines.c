/* Compiles bodies of calls into routines: partitioned for this rank, fused, and compiled once
 * each. */
#include <string.h>

#include "base/number.h"
#include "base/text.h"
#include "builder/build.h"

static bool same_key(const wefti_routine_key *x, const wefti_routine_key *y) {
    if (x->body != y->body || x->kind != y->kind || x->results != y->results ||
        x->saved_bytes != y->saved_bytes || x->on_host != y->on_host ||
        !x->accumulate != !y->accumulate || !x->saved != !y->saved)
        return false;
    return (!x->accumulate || !memcmp(x->accumulate, y->accumulate, (size_t)x->results)) &&
           (!x->saved || !memcmp(x->saved, y->saved, (size_t)x->body->in_count * sizeof *x->saved));
}

weft_status wefti_build_find(wefti_emitter *b, const wefti_routine_key *key, int32_t *out) {
    *out = -1;
    for (int64_t i = 0; i < b->key_count && *out < 0; i++)
        if (same_key(&b->keys[i], key)) *out = b->keys[i].routine;
    return WEFT_OK;
}

/* Copies the key's arrays, since the caller may change them later. */
static weft_status keep_key(wefti_emitter *b, const wefti_routine_key *key) {
    wefti_routine_key kept = *key;
    uint8_t *accumulate;
    WEFT_TRY(WEFT_GROW(b->keys, b->key_count, b->key_cap));
    if (key->accumulate) {
        WEFT_TRY(wefti_new_array(b->scratch, key->results, sizeof *accumulate, &accumulate));
        memcpy(accumulate, key->accumulate, (size_t)key->results);
        kept.accumulate = accumulate;
    }
    kept.routine = b->p->routine_count;
    b->keys[b->key_count++] = kept;
    return WEFT_OK;
}

weft_status wefti_build_compile(wefti_emitter *b, const wefti_routine_key *key,
                                wefti_routine_spec *spec, int32_t *out) {
    wefti_program *p = b->p;
    int64_t count = p->routine_count;
    if (b->part) wefti_partition_use(b->part, key->body);
    spec->prepare = b->spec->prepare;
    spec->backends = wefti_kind_backends(key->on_host ? wefti_kind_host() : b->spec->kind);
    WEFT_TRY(WEFT_GROW(p->routines, count, b->routine_cap));
    WEFT_TRY(wefti_routine_compile(spec, &p->routines[count]));
    p->routines[count]->unfused = key->body;
    weft_status status = keep_key(b, key);
    *out = p->routine_count++;
    return status;
}

/* Fuses `body`. The program keeps the fused form. */
static weft_status fused(wefti_emitter *b, const weft_body *body, weft_body **out) {
    weft_body *result;
    WEFT_TRY(wefti_fuse(b->g, b->part, body, &result));
    WEFT_TRY(wefti_build_keep_body(b, result));
    *out = result;
    return WEFT_OK;
}

/* Offsets of the saved values in their block, in order, 64-byte aligned. The block ends with the
 * last value's last byte. */
static weft_status saved_offsets(wefti_emitter *b, const wefti_call_plan *call, int64_t **out,
                                 int64_t *out_bytes) {
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    const weft_body *f = call->local ? call->local->body : grad->forward;
    int64_t bytes = 0, base = grad->cell->out_count;
    WEFT_TRY(wefti_new_array(b->scratch, grad->saved, sizeof **out, out));
    for (int32_t s = 0; s < grad->saved; s++) {
        (*out)[s] = wefti_aligned(bytes);
        bytes = (*out)[s] + weft_desc_bytes(&f->values[f->out[base + s]].desc);
    }
    *out_bytes = bytes;
    return WEFT_OK;
}

weft_status wefti_build_forward(wefti_emitter *b, const wefti_call_plan *call, int32_t *out) {
    wefti_routine_key key = {
        .body = call->node->callee, .kind = WEFTI_ROUTINE_PLAIN, .on_host = call->on_host};
    wefti_routine_spec spec = {0};
    int64_t *offsets = NULL, *saved = NULL;
    const wefti_cell_grad *grad = NULL;
    if (call->differentiated) {
        grad = &b->p->grads[call->grad];
        key.body = grad->forward;
        key.kind = WEFTI_ROUTINE_FORWARD;
    }
    if (call->local) key.body = call->local->body;
    WEFT_TRY(wefti_rows_body(b, call, false, &key.body));
    WEFT_TRY(wefti_build_find(b, &key, out));
    if (*out >= 0) return WEFT_OK;
    if (grad) {
        WEFT_TRY(saved_offsets(b, call, &saved, &spec.saved_bytes));
        WEFT_TRY(wefti_new_array(b->scratch, key.body->out_count, sizeof *offsets, &offsets));
        for (int64_t o = 0; o < key.body->out_count; o++)
            offsets[o] = o < grad->cell->out_count ? -1 : saved[o - grad->cell->out_count];
        spec.out_saved = offsets;
    }
    WEFT_TRY(fused(b, key.body, &spec.body));
    return wefti_build_compile(b, &key, &spec, out);
}

/* Sets spec->late and spec->accumulate: which results, from number `first` on, are accumulated. */
static weft_status set_accumulate(wefti_emitter *b, const uint8_t *accumulate, int64_t first,
                                  int64_t outs, wefti_routine_spec *spec) {
    bool *add;
    WEFT_TRY(wefti_new_array(b->scratch, outs, sizeof *add, &add));
    for (int64_t o = first; o < outs; o++) {
        add[o] = accumulate[o - first] != WEFTI_WRITE;
        spec->late |= accumulate[o - first] == WEFTI_ADD_LATE;
    }
    spec->accumulate = add;
    return WEFT_OK;
}

/* The key holds the offsets of the saved values that the body reads. A part of a backward pass
 * reads only some of them, so equal bodies may belong to forward passes with unequal saved
 * blocks. */
weft_status wefti_build_backward(wefti_emitter *b, const wefti_call_plan *call, wefti_pass pass,
                                 const uint8_t *accumulate, int32_t *out) {
    const wefti_cell_grad *grad = wefti_call_grad(b->dec, call, pass);
    const weft_body *body = b->part ? call->backward[pass]->body : grad->backward;
    wefti_routine_spec spec = {0};
    int64_t *saved, *offsets;
    WEFT_TRY(wefti_rows_body(b, call, true, &body));
    WEFT_TRY(saved_offsets(b, call, &saved, &spec.saved_bytes));
    WEFT_TRY(wefti_new_array(b->scratch, body->in_count, sizeof *offsets, &offsets));
    for (int64_t i = 0; i < body->in_count; i++)
        offsets[i] =
            grad->bindings[i].source == WEFTI_GRAD_SAVED ? saved[grad->bindings[i].index] : -1;
    const wefti_routine_key key = {.body = body,
                                   .kind = WEFTI_ROUTINE_BACKWARD,
                                   .accumulate = accumulate,
                                   .results = body->out_count,
                                   .saved = offsets,
                                   .saved_bytes = spec.saved_bytes,
                                   .on_host = call->on_host};
    WEFT_TRY(wefti_build_find(b, &key, out));
    if (*out >= 0) return WEFT_OK;
    WEFT_TRY(set_accumulate(b, accumulate, 0, body->out_count, &spec));
    spec.in_saved = offsets;
    WEFT_TRY(fused(b, body, &spec.body));
    return wefti_build_compile(b, &key, &spec, out);
}

weft_status wefti_build_fused(wefti_emitter *b, const wefti_call_plan *call,
                              const uint8_t *accumulate, int32_t *out) {
    const wefti_cell_grad *grad = &b->p->grads[call->grad];
    const weft_body *fused_body = grad->fused_body;
    const weft_body *body = b->part ? call->local->body : fused_body;
    WEFT_TRY(wefti_rows_body(b, call, false, &body));
    const wefti_routine_key key = {.body = body,
                                   .kind = WEFTI_ROUTINE_FUSED,
                                   .accumulate = accumulate,
                                   .results = grad->backward->out_count};
    WEFT_TRY(wefti_build_find(b, &key, out));
    if (*out >= 0) return WEFT_OK;
    wefti_routine_spec spec = {0};
    WEFT_TRY(fused(b, body, &spec.body));
    WEFT_TRY(set_accumulate(b, accumulate, grad->cell->out_count, fused_body->out_count, &spec));
    return wefti_build_compile(b, &key, &spec, out);
}
