/* The digest of a program's form: see builder/fold/fold.h. It leaves out what equal ranks differ
 * in: the ranks of groups, begins of pieces in attributes, and where in a parameter's memory a
 * piece begins. */
#include <string.h>

#include "base/digest/digest.h"
#include "builder/fold/fold.h"

static uint64_t add(uint64_t digest, int64_t number) {
    return wefti_digest_number(digest, (uint64_t)number);
}

static uint64_t add_desc(uint64_t digest, const weft_desc *desc) {
    if (!desc) return add(digest, -1);
    digest = add(add(digest, desc->dtype), desc->rank);
    for (int d = 0; d < desc->rank; d++) digest = add(digest, desc->shape[d]);
    return digest;
}

static uint64_t add_sizes(uint64_t digest, const wefti_region *region, int rank) {
    for (int d = 0; d < rank; d++) digest = add(digest, region->size[d]);
    return digest;
}

static uint64_t add_transfer(uint64_t digest, const wefti_program *p, int32_t index) {
    const wefti_transfer *t = wefti_partition_transfer(p->partition, index);
    digest = add(add(add(digest, t->kind), t->reduction), t->dtype);
    digest = add(add(digest, t->rank), t->members);
    digest = add_sizes(digest, &t->have[t->me], t->rank);
    digest = add_sizes(digest, &t->want[t->me], t->rank);
    digest = add(wefti_digest_number(digest, t->tag), wefti_transfer_bytes(t));
    return wefti_digest_text(digest, t->name);
}

static uint64_t add_ref(uint64_t digest, const wefti_ref *ref) {
    return add(add(digest, ref->arg), ref->offset);
}

static uint64_t add_instruction(uint64_t digest, const wefti_program *p,
                                const wefti_instruction *x) {
    const weft_node *n = x->node;
    const int in = n ? n->inputs : 1, out = n ? n->outputs : 1;
    digest = wefti_digest_text(digest, n ? n->op->name : "copy");
    for (int i = 0; n && i < in; i++) digest = add_desc(digest, wefti_in(n, i));
    for (int o = 0; n && o < out; o++) digest = add_desc(digest, wefti_out(n, o));
    for (int i = 0; i < in; i++) digest = add_ref(digest, &x->in[i]);
    for (int o = 0; o < out; o++) digest = add_ref(digest, &x->out[o]);
    digest = add_ref(add(digest, x->workspace_bytes), &x->workspace);
    digest = add(add(add(digest, x->bytes), x->add), x->joined);
    digest = wefti_digest_real(wefti_digest_real(digest, x->cost.flops), x->cost.bytes);
    return x->transfer < 0 ? digest : add_transfer(digest, p, x->transfer);
}

static uint64_t add_routine(uint64_t digest, const wefti_program *p, const wefti_step *s) {
    const wefti_routine *r = s->routine;
    digest = add(add(add(digest, r->inputs), r->outputs), r->args);
    digest = add(add(digest, r->saved_bytes), r->frame_bytes);
    for (int32_t k = s->from; k < s->to; k++) digest = add_instruction(digest, p, &r->code[k]);
    return digest;
}

/* The address of an argument, as bits; the address of a parameter that contains it. */
static int64_t place_of(const wefti_program *p, wefti_location at) {
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        if (t->role == WEFTI_TENSOR_PARAM && at.bits >= t->home.bits &&
            at.bits < t->home.bits + weft_desc_bytes(&t->desc))
            return t->home.bits;
        if (wefti_location_exists(t->copy) && at.bits >= t->copy.bits &&
            at.bits < t->copy.bits + wefti_tensor_copy_bytes(t))
            return t->copy.bits;
    }
    return at.bits;
}

static uint64_t add_step(uint64_t digest, const wefti_program *p, const wefti_step *s) {
    digest = wefti_digest_text(add(add(digest, s->kind), s->phase), s->name);
    digest = add(add(digest, s->frame.bits), s->micro);
    digest = add(add(add(add(digest, s->from), s->to), s->part), s->parts);
    digest = add(wefti_digest_number(digest, s->stream), s->tensor);
    int32_t args = 2;
    if (s->kind == WEFTI_STEP_CALL) args = s->routine->args;
    if (s->kind == WEFTI_STEP_LOSS) args = 1;
    for (int32_t a = 0; a < args; a++) digest = add(digest, place_of(p, s->args[a]));
    for (int32_t a = 0; s->strides && a < args; a++) digest = add(digest, s->strides[a]);
    if (s->kind == WEFTI_STEP_CALL) return add_routine(digest, p, s);
    if (s->kind == WEFTI_STEP_COPY)
        return add(add(add(add(digest, s->bytes), s->rows), s->pitch[0]), s->pitch[1]);
    if (s->kind == WEFTI_STEP_LOSS) return digest;
    if (wefti_step_copy(p, s)) return add(digest, wefti_step_copy(p, s)->bytes);
    return add_transfer(digest, p, wefti_step_transfer_of(p, s));
}

static uint64_t add_tensor(uint64_t digest, const wefti_tensor *t) {
    digest = wefti_digest_text(add(digest, t->role), t->name);
    digest = add_desc(add_desc(digest, &t->desc), &t->whole);
    digest = add(add(add(digest, t->home.bits), t->microbatches), t->stride);
    digest = add(add(digest, t->copy.bits), t->cache.bits);
    digest = add(add(digest, t->layout.sum), t->layout.max);
    for (int d = 0; d < t->whole.rank; d++) {
        const wefti_dim_split *split = &t->layout.dim[d];
        digest = add(add(digest, split->unit), split->count);
        for (int a = 0; a < split->count; a++) digest = add(digest, split->axis[a]);
    }
    return digest;
}

uint64_t wefti_program_form(const wefti_program *p) {
    uint64_t digest = add(add(add(8, p->peak_bytes), p->persistent_bytes), p->saved_bytes);
    digest = add(add(digest, p->transient_bytes), p->mesh.first);
    for (int s = 0; s < WEFTI_SPACES; s++)
        for (int t = 0; t < WEFTI_TERMS; t++) digest = add(digest, p->tier_bytes[s][t]);
    digest = add(add(add(digest, p->scalars.bits), p->one.bits), p->loss.bits);
    digest = add(digest, p->host_scalars.bits);
    digest = wefti_digest_real(wefti_digest_real(digest, p->forward_flops), p->backward_flops);
    for (int k = 0; k < 3; k++) digest = add(digest, p->fused[k]);
    for (int32_t i = 0; i < p->tensor_count; i++) digest = add_tensor(digest, &p->tensors[i]);
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        digest = add(add(digest, p->step_count[s]), p->loop_count[s]);
        for (int32_t i = 0; i < p->loop_count[s]; i++)
            digest = add(add(digest, p->loops[s][i].first), p->loops[s][i].times);
        for (int32_t i = 0; i < p->step_count[s]; i++)
            digest = add_step(digest, p, &p->steps[s][i]);
    }
    return digest;
}
