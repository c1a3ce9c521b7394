/* Reductions of gradients, which complete them over the mesh.
 *
 * Gradients are reduced in buckets. A bucket's reduction is a call with transfers. With overlap it
 * is emitted in two parts. The first part posts the transfers, as soon as the last backward pass has
 * completed the bucket. The second part waits for them. Backward passes of other calls lie in
 * between. At most WEFTI_COMM_DEPTH buckets are in flight, and none after the end of the section.
 * Source: Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.
 *
 * If only the devices' terms must be added, the gradients of a bucket lie behind each other in one
 * buffer, and the bucket is one transfer. Nothing is copied for that: backward passes write there. */
#include <string.h>

#include "builder/build.h"

static const wefti_sharding *sharding_of(const wefti_program_builder *b, int32_t v) {
    return &b->dec->sharding[v];
}

/* Whether both layouts have the same pieces, so that only the partial sums must be added. */
static bool only_summed(const wefti_layout *terms, const wefti_layout *sum) {
    wefti_layout done = *terms;
    done.sum = 0;
    return terms->sum && wefti_layout_equal(&done, sum);
}

static bool is_reduced(const wefti_program_builder *b, int32_t v) {
    const wefti_sharding *x = sharding_of(b, v);
    return b->part && !wefti_layout_equal(&x->gradient, &x->state);
}

/* ---- buckets in one buffer ---- */

/* How many outputs of this rank's backward passes, for one microbatch, are gradients of v. */
static int32_t terms_of(const wefti_program_builder *b, int32_t v) {
    int32_t terms = 0;
    for (int32_t k = 0; k < b->dec->call_count; k++) {
        const wefti_call_plan *call = &b->dec->calls[k];
        if (!call->mine || !call->differentiated) continue;
        const wefti_cell_grad *grad = &b->p->grads[call->grad];
        for (int i = 0; i < call->node->inputs; i++)
            terms += call->node->in[i] == v && grad->gradient_out[i] >= 0;
    }
    return terms;
}

/* Decides which gradients of a bucket lie in its common buffer. Gradients of a bucket have equal
 * dtypes and are summed over the same devices. */
static weft_status pack(wefti_program_builder *b, int32_t k) {
    const wefti_bucket *x = &b->dec->bucket[k];
    wefti_packed *p = &b->packed[k];
    const char *last = "";
    int32_t count = 0;
    p->known = true;
    for (int32_t i = 0; i < x->count; i++) {
        int32_t v = x->values[i];
        const wefti_sharding *s = sharding_of(b, v);
        if (!is_reduced(b, v) || !only_summed(&s->gradient, &s->state) || terms_of(b, v) == 0)
            continue;
        weft_desc here = wefti_sharding_desc(b->dec, &b->root->values[v].desc, &s->gradient);
        p->bytes = (p->bytes + 63) & ~(int64_t)63;
        b->packed_at[v] = p->bytes;
        p->bytes += weft_desc_bytes(&here);
        p->terms = s->gradient.sum;
        p->dtype = here.dtype;
        last = b->root->values[v].name;
        count++;
    }
    if (count > 1)
        return wefti_buffer_add(b, p->bytes, wefti_build_name(b, "gradients up to ", last),
                                &p->buffer);
    for (int32_t i = 0; i < x->count; i++) b->packed_at[x->values[i]] = -1;
    return WEFT_OK;
}

static weft_status part_of_bucket(wefti_program_builder *b, int32_t whole, int32_t v,
                                  const char *name, int32_t *out) {
    weft_desc here = wefti_sharding_desc(b->dec, &b->root->values[v].desc,
                                         &sharding_of(b, v)->gradient);
    WEFT_TRY(wefti_buffer_part(b, whole, 0, 0, weft_desc_bytes(&here), out));
    b->buffers[*out].delta = b->packed_at[v];
    b->buffers[*out].name = name;
    return WEFT_OK;
}

weft_status wefti_reduce_buffer(wefti_program_builder *b, int32_t v, const char *name,
                                int32_t *out) {
    weft_desc here = wefti_sharding_desc(b->dec, &b->root->values[v].desc,
                                         &sharding_of(b, v)->gradient);
    int32_t k = b->part ? b->dec->bucket_of[v] : -1;
    if (k >= 0 && !b->packed[k].known) WEFT_TRY(pack(b, k));
    if (k >= 0 && b->packed_at[v] >= 0)
        return part_of_bucket(b, b->packed[k].buffer, v, name, out);
    return wefti_buffer_add(b, weft_desc_bytes(&here), name, out);
}

/* ---- calls in flight ---- */

/* The end of the routine's first transfers that are posted together; 0: it has no transfer. */
static int32_t first_wave(const wefti_routine *r, int32_t *out_begin) {
    int32_t k = 0;
    while (k < r->code_count && r->code[k].transfer < 0) k++;
    *out_begin = k;
    if (k == r->code_count) return 0;
    while (r->code[k].joined) k++;
    return k + 1;
}

static int32_t buckets_in_flight(const wefti_program_builder *b) {
    int32_t count = 0;
    for (int32_t i = 0; i < b->in_flight_count; i++)
        count += i == 0 || b->in_flight[i].bucket != b->in_flight[i - 1].bucket;
    return count;
}

/* Whether an endpoint would have too many posts if the routine's first transfers were posted. */
static bool is_crowded(const wefti_program_builder *b, const wefti_routine *r) {
    int32_t begin, end = first_wave(r, &begin);
    for (int32_t k = begin; k < end; k++) {
        int posts = 0;
        for (int32_t j = begin; j < end; j++) posts += r->code[j].transfer == r->code[k].transfer;
        for (int32_t i = 0; i < b->in_flight_count; i++) {
            const wefti_step *x = &b->in_flight[i].call.step;
            for (int32_t j = x->to - x->leaves; j < x->to; j++)
                posts += x->routine->code[j].transfer == r->code[k].transfer;
        }
        if (posts > WEFTI_COMM_DEPTH) return true;
    }
    return false;
}

weft_status wefti_reduce_wait_oldest(wefti_program_builder *b, wefti_section s) {
    wefti_in_flight x = b->in_flight[0];
    const wefti_step *first = &x.call.step;
    wefti_draft_step *d;
    b->in_flight_count--;
    memmove(b->in_flight, b->in_flight + 1, (size_t)b->in_flight_count * sizeof *b->in_flight);
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, first->phase, first->name, x.call.arg_count,
                               &d));
    for (int32_t a = 0; a < x.call.arg_count; a++)
        wefti_build_arg(b, d, a, x.call.args[a].buffer, x.call.args[a].delta);
    wefti_buffer_use(b, x.call.frame);
    d->frame = x.call.frame;
    d->step.routine = first->routine;
    d->step.stream = first->stream;
    d->step.from = first->to;
    d->step.to = first->routine->code_count;
    d->step.waits = first->leaves;
    d->step.part = 1;
    d->step.parts = 2;
    b->now++;
    return x.last ? wefti_bucket_reduced(b, s, x.bucket) : WEFT_OK;
}

weft_status wefti_reduce_wait(wefti_program_builder *b, wefti_section s) {
    while (b->in_flight_count) WEFT_TRY(wefti_reduce_wait_oldest(b, s));
    return WEFT_OK;
}

weft_status wefti_reduce_make_room(wefti_program_builder *b, wefti_section s, int32_t routine,
                                   int32_t bucket) {
    const wefti_routine *r = b->p->routines[routine];
    while (b->in_flight_count && (b->in_flight_count == WEFTI_MOST_IN_FLIGHT || is_crowded(b, r)))
        WEFT_TRY(wefti_reduce_wait_oldest(b, s));
    while (buckets_in_flight(b) >= WEFTI_COMM_DEPTH &&
           b->in_flight[b->in_flight_count - 1].bucket != bucket)
        WEFT_TRY(wefti_reduce_wait_oldest(b, s));
    return WEFT_OK;
}

weft_status wefti_reduce_leave(wefti_program_builder *b, wefti_section s, int32_t bucket,
                               bool last) {
    wefti_draft_step *d = &b->steps[s][b->step_count[s] - 1];
    int32_t begin, end = first_wave(d->step.routine, &begin);
    if (!end) return last ? wefti_bucket_reduced(b, s, bucket) : WEFT_OK;
    d->step.to = end;
    d->step.leaves = end - begin;
    d->step.parts = 2;
    b->in_flight[b->in_flight_count++] = (wefti_in_flight){*d, bucket, last};
    return WEFT_OK;
}

/* ---- reductions ---- */

/* A reduction of `count` operands; args: operands, then results. `posts`: leaves its transfers in
 * flight. */
static weft_status reduce_call(wefti_program_builder *b, wefti_section s, int32_t bucket,
                               const char *name, int32_t routine, int count, const int32_t *args,
                               bool posts) {
    wefti_draft_step *d;
    if (posts) WEFT_TRY(wefti_reduce_make_room(b, s, routine, bucket));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_OTHER,
                               wefti_build_name(b, "gradients up to ", name),
                               b->p->routines[routine]->args, &d));
    for (int i = 0; i < 2 * count; i++) wefti_build_arg(b, d, i, args[i], 0);
    WEFT_TRY(wefti_build_end(b, d, routine));
    return posts ? wefti_reduce_leave(b, s, bucket, false) : WEFT_OK;
}

static weft_status reduce_packed(wefti_program_builder *b, wefti_section s, int32_t k, bool posts) {
    const wefti_bucket *x = &b->dec->bucket[k];
    const wefti_packed *p = &b->packed[k];
    const char *name = b->buffers[p->buffer].name + strlen("gradients up to ");
    int64_t elems = p->bytes / (int64_t)weft_dtype_bytes(p->dtype);
    weft_desc flat = weft_desc_of(p->dtype, 1, (int64_t[]){elems});
    wefti_layout from = wefti_layout_replicated(1), to = from;
    int32_t routine, args[2] = {p->buffer, p->buffer};
    from.sum = p->terms;
    WEFT_TRY(wefti_build_reshard(b, 1, &flat, &from, &to, false, &routine));
    if (b->spec->keep_gradients)
        WEFT_TRY(wefti_buffer_add(b, p->bytes, wefti_build_name(b, "complete gradients up to ", name),
                                  &args[1]));
    for (int32_t i = 0; i < x->count; i++) {
        int32_t v = x->values[i];
        if (b->packed_at[v] < 0) continue;
        b->reduced[v] = b->param_gradient[v];
        if (args[1] != args[0])
            WEFT_TRY(part_of_bucket(
                b, args[1], v,
                wefti_build_name(b, "complete gradient of ", b->root->values[v].name),
                &b->reduced[v]));
    }
    return reduce_call(b, s, k, name, routine, 1, args, posts);
}

/* Completes `n` gradients each in a transfer of its own. If only the devices' terms must be added,
 * the sum replaces the local term in its buffer. This needs a third less traffic than another
 * buffer: the cache lines of that one are fetched before they are written. */
static weft_status reduce_some(wefti_program_builder *b, wefti_section s, int32_t k,
                               const int32_t *values, int n, bool posts) {
    weft_desc descs[WEFTI_MAX_BUCKET];
    wefti_layout from[WEFTI_MAX_BUCKET], to[WEFTI_MAX_BUCKET];
    int32_t routine, args[2 * WEFTI_MAX_BUCKET];
    for (int i = 0; i < n; i++) {
        int32_t v = values[i];
        const char *name = b->root->values[v].name;
        descs[i] = b->root->values[v].desc;
        from[i] = sharding_of(b, v)->gradient;
        to[i] = sharding_of(b, v)->state;
        args[i] = args[n + i] = b->param_gradient[v];
        if (!only_summed(&from[i], &to[i]) || b->spec->keep_gradients) {
            weft_desc here = wefti_sharding_desc(b->dec, &descs[i], &to[i]);
            WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here),
                                      wefti_build_name(b, "complete gradient of ", name),
                                      &args[n + i]));
        }
        b->reduced[v] = args[n + i];
    }
    WEFT_TRY(wefti_build_reshard(b, n, descs, from, to, false, &routine));
    return reduce_call(b, s, k, b->root->values[values[n - 1]].name, routine, n, args, posts);
}

weft_status wefti_reduce_bucket(wefti_program_builder *b, wefti_section s, int32_t k, bool posts) {
    const wefti_bucket *x = &b->dec->bucket[k];
    int32_t alone[WEFTI_MAX_BUCKET], n = 0, before = b->in_flight_count;
    if (b->begun[k]) return WEFT_OK;
    b->begun[k] = true;
    if (b->part && b->packed[k].buffer >= 0) WEFT_TRY(reduce_packed(b, s, k, posts));
    for (int32_t i = 0; i < x->count; i++) {
        int32_t v = x->values[i];
        if (b->reduced[v] >= 0) continue;
        b->reduced[v] = b->param_gradient[v];
        /* -1: this stage has no gradient of it, and wefti_pipeline_tie receives one */
        if (b->reduced[v] < 0 || !is_reduced(b, v)) continue;
        alone[n++] = v;
        if (n < WEFTI_MAX_BUCKET) continue;
        WEFT_TRY(reduce_some(b, s, k, alone, n, posts));
        n = 0;
    }
    if (n) WEFT_TRY(reduce_some(b, s, k, alone, n, posts));
    (void)before;
    if (b->in_flight_count && b->in_flight[b->in_flight_count - 1].bucket == k) {
        b->in_flight[b->in_flight_count - 1].last = true;
        return WEFT_OK;
    }
    return wefti_bucket_reduced(b, s, k);
}

/* ---- while backward passes are built ---- */

bool wefti_reduce_overlaps(const wefti_program_builder *b) {
    if (!b->part || !b->spec->optimizer || !b->spec->plan->overlap) return false;
    for (int32_t k = 0; k < b->dec->bucket_count; k++)
        for (int32_t i = 0; i < b->dec->bucket[k].count; i++)
            if (is_reduced(b, b->dec->bucket[k].values[i])) return true;
    return false;
}

/* A gradient is complete. */
static weft_status completed(wefti_program_builder *b, wefti_section s, int32_t v) {
    int32_t k = b->dec->bucket_of[v];
    b->completed[v] = true;
    if (++b->ready[k] < b->dec->bucket[k].count) return WEFT_OK;
    return wefti_reduce_bucket(b, s, k, wefti_reduce_overlaps(b));
}

weft_status wefti_reduce_completed(wefti_program_builder *b, wefti_section s, int32_t k) {
    if (!b->reduces) return WEFT_OK;
    const weft_node *n = b->dec->calls[k].node;
    for (int i = 0; i < n->inputs; i++) {
        int32_t v = n->in[i];
        int32_t bucket = v < 0 ? -1 : b->dec->bucket_of[v];
        if (bucket < 0 || b->completed[v]) continue; /* an input may be bound twice */
        if (b->dec->stages == 1 ? b->dec->last_backward[v] == k
                                : b->terms[v] == terms_of(b, v) * b->dec->micros)
            WEFT_TRY(completed(b, s, v));
    }
    return WEFT_OK;
}
