/* Reductions of gradients, which complete them over the mesh.
 *
 * Gradients are reduced in buckets. A bucket's reduction is a call with transfers. With overlap it
 * is emitted in two parts. The first part posts the transfers, as soon as the last backward pass
 * has completed the bucket. The second part waits for the last of them. Backward passes of other
 * calls lie in between. At most WEFTI_COMM_DEPTH buckets are in flight, and none after the end of
 * the section. All posts lie in the first part, and what is in flight when is the same on all
 * ranks, although ranks have unlike pieces. So all ranks post in one order. Source: Li et al.,
 * "PyTorch Distributed", VLDB 2020, section 3.2.
 *
 * A bucket is one transfer where that is possible:
 *
 * - If only the devices' terms must be added, the gradients of the bucket lie behind each other in
 *   one buffer. Nothing is copied for that: backward passes write there.
 * - If each device wants an equal piece of each gradient, the gradients are copied into one buffer:
 * first all pieces of the first device, then those of the next. The complete pieces of a device lie
 * behind each other too.
 * - All others have transfers of their own. */
#include <string.h>

#include "base/number.h"
#include "builder/build.h"
#include "builder/tags.h"

enum { MOST_CALLS = 16 }; /* in flight */

static const wefti_sharding *sharding_of(const wefti_emitter *b, int32_t v) {
    return &b->dec->sharding[v];
}

/* Whether both layouts have the same pieces, so that only the partial sums must be added. */
static bool only_summed(const wefti_layout *terms, const wefti_layout *sum) {
    wefti_layout done = *terms;
    done.sum = 0;
    return terms->sum && wefti_layout_equal(&done, sum);
}

bool wefti_is_reduced(const wefti_emitter *b, int32_t v) {
    const wefti_layout goal = wefti_gradient_goal(b->dec, v);
    return b->part && !wefti_layout_equal(&sharding_of(b, v)->gradient, &goal);
}

/* ---- buckets in one buffer ---- */

void wefti_reduce_count_terms(wefti_emitter *b) {
    for (int32_t k = 0; k < b->dec->call_count; k++) {
        const wefti_call_plan *call = &b->dec->calls[k];
        if (!call->mine || !call->differentiated) continue;
        const wefti_cell_grad *grad = &b->p->grads[call->grad];
        for (int i = 0; i < call->node->inputs; i++)
            if (call->node->in[i] >= 0)
                b->terms_of[call->node->in[i]] += grad->gradient_out[i] >= 0;
    }
}

/* Decides which gradients of a bucket lie in its common buffer. Gradients of a bucket have equal
 * dtypes and are summed over the same devices. */
static weft_status pack(wefti_emitter *b, int32_t k) {
    const wefti_bucket *x = &b->dec->bucket[k];
    wefti_packed *p = &b->packed[k];
    const char *last = "";
    int32_t count = 0;
    p->known = true;
    for (int32_t i = 0; i < x->count && !x->each; i++) {
        int32_t v = x->values[i];
        const wefti_sharding *s = sharding_of(b, v);
        if (!wefti_is_reduced(b, v) || !only_summed(&s->gradient, &s->state) || !b->terms_of[v])
            continue;
        weft_desc here = wefti_sharding_desc(b->dec, &b->root->values[v].desc, &s->gradient);
        p->bytes = wefti_aligned(p->bytes);
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

static weft_status part_of_bucket(wefti_emitter *b, int32_t whole, int32_t v, const char *name,
                                  int32_t *out) {
    weft_desc here =
        wefti_sharding_desc(b->dec, &b->root->values[v].desc, &sharding_of(b, v)->gradient);
    WEFT_TRY(wefti_buffer_part(b, whole, 0, 0, weft_desc_bytes(&here), out));
    b->buffers[*out].delta = b->packed_at[v];
    b->buffers[*out].name = name;
    return WEFT_OK;
}

weft_status wefti_reduce_buffer(wefti_emitter *b, int32_t v, const char *name, int32_t *out) {
    weft_desc here =
        wefti_sharding_desc(b->dec, wefti_gradient_desc(b->dec, v), &sharding_of(b, v)->gradient);
    int32_t k = b->part ? b->dec->bucket_of[v] : -1;
    if (k >= 0 && !b->packed[k].known) WEFT_TRY(pack(b, k));
    if (k >= 0 && b->packed_at[v] >= 0) return part_of_bucket(b, b->packed[k].buffer, v, name, out);
    return wefti_buffer_add(b, weft_desc_bytes(&here), name, out);
}

/* ---- calls in flight ---- */

/* The end of the routine's last transfers that are posted together; 0: it has no transfer. */
static int32_t last_wave(const wefti_routine *r, int32_t *out_begin) {
    int32_t end = r->code_count;
    while (end > 0 && r->code[end - 1].transfer < 0) end--;
    *out_begin = end > 0 ? end - 1 : 0;
    while (*out_begin > 0 && r->code[*out_begin - 1].transfer >= 0 &&
           r->code[*out_begin - 1].joined)
        --*out_begin;
    return end;
}

/* The oldest call in flight that must end before a call with `width` transfers is posted; -1: none.
 * An endpoint takes WEFTI_COMM_DEPTH posts, and transfers may share one. Which do depends on the
 * pieces of a rank, so this assumes that all of one use do: the decision must be the same on all
 * ranks. A call that has the endpoints for itself may have any width, since it posts in waves.
 * Unlike uses have different tags, so they never share an endpoint. */
static int32_t in_the_way(const wefti_emitter *b, int32_t width, wefti_flight_use use) {
    int32_t oldest = -1;
    for (int32_t i = 0; i < b->flight_count; i++) {
        if (b->flights[i].use != use) continue;
        if (oldest < 0) oldest = i;
        width += b->flights[i].width;
    }
    return width > WEFTI_COMM_DEPTH ? oldest : -1;
}

/* The oldest reduction, if as many buckets are in flight as may be; -1: fewer are. */
static int32_t oldest_of_all(const wefti_emitter *b, int32_t bucket) {
    int32_t oldest = -1, last = -1, buckets = 0;
    for (int32_t i = 0; i < b->flight_count; i++) {
        int32_t other = b->flights[i].owner;
        if (b->flights[i].use != WEFTI_FLIGHT_GRADIENTS || other == bucket || other == last)
            continue;
        if (oldest < 0) oldest = i;
        last = other;
        buckets++;
    }
    return buckets < WEFTI_COMM_DEPTH ? -1 : oldest;
}

/* The oldest call, if more than `left` are in flight; else -1. */
static int32_t oldest_call(const wefti_emitter *b, int32_t left) {
    int32_t oldest = -1, count = 0;
    for (int32_t i = 0; i < b->flight_count; i++)
        if (wefti_flight_is_call(&b->flights[i]) && count++ == 0) oldest = i;
    return count > left ? oldest : -1;
}

static weft_status wait_for(wefti_emitter *b, wefti_section s, int32_t i) {
    const wefti_flight f = b->flights[i];
    WEFT_TRY(wefti_flight_wait(b, s, i));
    return f.last ? wefti_bucket_reduced(b, s, f.owner) : WEFT_OK;
}

weft_status wefti_reduce_wait(wefti_emitter *b, wefti_section s, int32_t left) {
    for (int32_t i; (i = oldest_call(b, left)) >= 0;) WEFT_TRY(wait_for(b, s, i));
    return WEFT_OK;
}

/* A routine whose transfers wait for each other ends posts of its own in the first part. A WAIT
 * ends the oldest post of an endpoint, so none may be in flight before. All ranks of a stage answer
 * alike: they make the same moves from one layout to another, and have a transfer for each. */
static bool is_chain(const wefti_routine *r) {
    int32_t begin, transfers = 0;
    (void)last_wave(r, &begin);
    for (int32_t k = 0; k < begin; k++) transfers += r->code[k].transfer >= 0;
    return transfers > 0;
}

weft_status wefti_reduce_make_room(wefti_emitter *b, wefti_section s, const wefti_routine *routine,
                                   int32_t width, wefti_flight_use use, int32_t owner) {
    if (is_chain(routine) && width < WEFTI_COMM_DEPTH) width = WEFTI_COMM_DEPTH;
    for (;;) {
        int32_t i = use == WEFTI_FLIGHT_GRADIENTS ? oldest_of_all(b, owner) : -1;
        if (i < 0) i = in_the_way(b, width, use);
        if (i < 0) i = oldest_call(b, MOST_CALLS - 1);
        if (i < 0) return WEFT_OK;
        WEFT_TRY(wait_for(b, s, i));
    }
}

weft_status wefti_reduce_leave(wefti_emitter *b, wefti_section s, int32_t width,
                               wefti_flight_use use, int32_t owner) {
    const wefti_flight f = {.use = use, .owner = owner, .width = width};
    int32_t begin, end = last_wave(b->steps[s][b->step_count[s] - 1].step.routine, &begin);
    return wefti_flight_leave(b, s, f, end, end ? end - begin : 0);
}

/* ---- reductions ---- */

/* A reduction of `count` operands; args: operands, then results. `posts`: leaves its transfers in
 * flight. */
static weft_status reduce_call(wefti_emitter *b, wefti_section s, int32_t bucket, const char *name,
                               int32_t routine, int count, const int32_t *args, bool posts) {
    wefti_draft_step *d;
    if (posts)
        WEFT_TRY(wefti_reduce_make_room(b, s, b->p->routines[routine], count,
                                        WEFTI_FLIGHT_GRADIENTS, bucket));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_OTHER,
                               wefti_build_name(b, "gradients up to ", name),
                               b->p->routines[routine]->args, &d));
    for (int i = 0; i < 2 * count; i++) wefti_build_arg(b, d, i, args[i], 0);
    WEFT_TRY(wefti_build_end(b, d, routine));
    return posts ? wefti_reduce_leave(b, s, count, WEFTI_FLIGHT_GRADIENTS, bucket) : WEFT_OK;
}

static weft_status reduce_packed(wefti_emitter *b, wefti_section s, int32_t k, bool posts) {
    const wefti_bucket *x = &b->dec->bucket[k];
    const wefti_packed *p = &b->packed[k];
    const char *name = b->buffers[p->buffer].name + strlen("gradients up to ");
    int64_t elems = p->bytes / (int64_t)weft_dtype_bytes(p->dtype);
    weft_desc flat = weft_desc_of(p->dtype, 1, (int64_t[]){elems});
    wefti_layout from = wefti_layout_replicated(1), to = from;
    int32_t routine, args[2] = {p->buffer, p->buffer};
    from.sum = p->terms;
    WEFT_TRY(wefti_build_reshard(b, 1, &flat, &from, &to, false, wefti_tag(WEFTI_TAG_BUCKET, 0),
                                 &routine));
    if (b->spec->keep_gradients)
        WEFT_TRY(wefti_buffer_add(
            b, p->bytes, wefti_build_name(b, "complete gradients up to ", name), &args[1]));
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

/* ---- buckets of pieces ---- */

/* Whether the layouts of the gradient and its complete pieces differ only in a further division of
 * one dimension, into equal parts, and in the sum. */
static bool divides(const wefti_emitter *b, int32_t v, wefti_division *out) {
    const wefti_layout *terms = &sharding_of(b, v)->gradient;
    wefti_layout added = *terms;
    added.sum = 0;
    return terms->sum &&
           wefti_build_divides(b, &b->root->values[v].desc, &added, &sharding_of(b, v)->state, out);
}

/* A tensor as `parts` rows: row i is part i along dimension d. */
static weft_status rows_of_parts(weft_body *body, const weft_desc *desc, int d, int32_t parts,
                                 int32_t *out) {
    int64_t outer = 1, elems = weft_desc_elems(desc);
    for (int i = 0; i < d; i++) outer *= desc->shape[i];
    WEFT_TRY(wefti_body_input(body, *desc, WEFTI_VALUE_INPUT, NULL, out));
    if (outer > 1) {
        wefti_ints blocks = {.count = 3, .v = {outer, parts, elems / outer / parts}},
                   order = {.count = 3, .v = {1, 0, 2}};
        WEFT_TRY(wefti_build_node(body, "reshape", 1, out,
                                  (wefti_attr[]){WEFTI_N(shape, blocks), {0}}, out));
        WEFT_TRY(wefti_build_node(body, "transpose", 1, out,
                                  (wefti_attr[]){WEFTI_N(order, order), {0}}, out));
    }
    wefti_ints rows = {.count = 2, .v = {parts, elems / parts}};
    return wefti_build_node(body, "reshape", 1, out, (wefti_attr[]){WEFTI_N(shape, rows), {0}},
                            out);
}

/* Fills a body that joins `count` tensors, each in `parts` equal parts along a dimension: first all
 * first parts, then all second ones. `value` has room for `count`. */
static weft_status join_parts(weft_body *body, const weft_desc *desc, const int *dim, int32_t count,
                              int32_t parts, int32_t *value) {
    for (int32_t i = 0; i < count; i++)
        WEFT_TRY(rows_of_parts(body, &desc[i], dim[i], parts, &value[i]));
    WEFT_TRY(wefti_build_join(body, count, value));
    return wefti_body_output(body, value[0]);
}

static weft_status join_routine(wefti_emitter *b, const weft_desc *desc, const int *dim,
                                int32_t count, int32_t parts, int32_t *out) {
    weft_body *fresh;
    int32_t *value;
    WEFT_TRY(wefti_new_indices(b->scratch, count, &value));
    WEFT_TRY(wefti_body_create(b->g, "join", &fresh));
    weft_status status = join_parts(fresh, desc, dim, count, parts, value);
    if (status < 0) {
        wefti_body_destroy(fresh);
        return status;
    }
    return wefti_build_routine_of(b, fresh, out);
}

/* Copies gradients into one buffer. */
static weft_status join_call(wefti_emitter *b, wefti_section s, const char *name,
                             const int32_t *values, int32_t count, int32_t parts,
                             int32_t *out_buffer, weft_desc *out_joined) {
    weft_desc *desc;
    int *dim;
    int32_t routine;
    int64_t elems = 0;
    wefti_division x;
    wefti_draft_step *d;
    WEFT_TRY(wefti_new_array(b->scratch, count, sizeof *desc, &desc));
    WEFT_TRY(wefti_new_array(b->scratch, count, sizeof *dim, &dim));
    for (int32_t i = 0; i < count; i++) {
        desc[i] = wefti_sharding_desc(b->dec, &b->root->values[values[i]].desc,
                                      &sharding_of(b, values[i])->gradient);
        elems += weft_desc_elems(&desc[i]);
        (void)divides(b, values[i], &x);
        dim[i] = x.dim;
    }
    WEFT_TRY(join_routine(b, desc, dim, count, parts, &routine));
    *out_joined = weft_desc_of(desc[0].dtype, 2, (int64_t[]){parts, elems / parts});
    name = wefti_build_name(b, "joined gradients up to ", name);
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(out_joined), name, out_buffer));
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, WEFTI_OTHER, name,
                               b->p->routines[routine]->args, &d));
    for (int32_t i = 0; i < count; i++) wefti_build_arg(b, d, i, b->param_gradient[values[i]], 0);
    wefti_build_arg(b, d, count, *out_buffer, 0);
    return wefti_build_end(b, d, routine);
}

static weft_status complete_pieces(wefti_emitter *b, int32_t k, const char *name,
                                   const int32_t *values, int32_t count, int64_t bytes) {
    int64_t at = 0;
    int32_t *whole = &b->packed[k].pieces;
    WEFT_TRY(
        wefti_buffer_add(b, bytes, wefti_build_name(b, "complete gradients up to ", name), whole));
    for (int32_t i = 0; i < count; i++) {
        const wefti_value_info *info = &b->root->values[values[i]];
        weft_desc here =
            wefti_sharding_desc(b->dec, &info->desc, &sharding_of(b, values[i])->state);
        int32_t *part = &b->reduced[values[i]];
        WEFT_TRY(wefti_buffer_part(b, *whole, 0, 0, weft_desc_bytes(&here), part));
        b->buffers[*part].name = wefti_build_name(b, "complete gradient of ", info->name);
        b->buffers[*part].delta = at;
        at += weft_desc_bytes(&here);
    }
    return WEFT_OK;
}

/* Completes the pieces of gradients that the same axes divide. */
static weft_status reduce_pieces(wefti_emitter *b, wefti_section s, int32_t k,
                                 const int32_t *values, int32_t count, bool posts) {
    const char *name = b->root->values[values[count - 1]].name;
    bool adds = b->adds;
    weft_desc joined;
    wefti_division x;
    wefti_layout from = wefti_layout_replicated(2), to = from;
    int32_t routine, args[2];
    (void)divides(b, values[0], &x);
    WEFT_TRY(join_call(b, s, name, values, count, x.parts, &args[0], &joined));
    from.sum = sharding_of(b, values[0])->gradient.sum;
    to.dim[0] = x.axes;
    wefti_layout_normal(&to, &b->p->mesh, &joined);
    WEFT_TRY(wefti_build_reshard(b, 1, &joined, &from, &to, adds, wefti_tag(WEFTI_TAG_BUCKET, 0),
                                 &routine));
    if (!adds)
        WEFT_TRY(complete_pieces(b, k, name, values, count, weft_desc_bytes(&joined) / x.parts));
    args[1] = b->packed[k].pieces;
    return reduce_call(b, s, k, name, routine, 1, args, posts);
}

/* Moves the gradients that reduce_pieces takes to the begin of `values`; returns their number. */
static int32_t find_pieces(const wefti_emitter *b, int32_t *values, int32_t count) {
    wefti_division first = {0}, x;
    int32_t found = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t v = values[i];
        if (!divides(b, v, &x)) continue;
        if (found == 0) first = x;
        if (!wefti_build_same_axes(&x, &first)) continue;
        memmove(&values[found + 1], &values[found], (size_t)(i - found) * sizeof *values);
        values[found++] = v;
    }
    return found > 1 ? found : 0;
}

/* ---- gradients alone ---- */

/* Completes `n` gradients each in a transfer of its own. If only the devices' terms must be added,
 * the sum replaces the local term in its buffer. This needs a third less traffic than another
 * buffer: the cache lines of that one are fetched before they are written. */
static weft_status reduce_some(wefti_emitter *b, wefti_section s, int32_t k, const int32_t *values,
                               int n, bool posts) {
    weft_desc descs[WEFTI_MAX_BUCKET];
    wefti_layout from[WEFTI_MAX_BUCKET], to[WEFTI_MAX_BUCKET];
    int32_t routine, args[2 * WEFTI_MAX_BUCKET];
    bool adds = b->adds;
    for (int i = 0; i < n; i++) {
        int32_t v = values[i];
        const char *name = b->root->values[v].name;
        descs[i] = *wefti_gradient_desc(b->dec, v);
        from[i] = sharding_of(b, v)->gradient;
        to[i] = wefti_gradient_goal(b->dec, v);
        args[i] = args[n + i] = b->param_gradient[v];
        if (adds) {
            args[n + i] = b->reduced[v];
        } else if (!only_summed(&from[i], &to[i]) || b->spec->keep_gradients) {
            weft_desc here = wefti_sharding_desc(b->dec, &descs[i], &to[i]);
            WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&here),
                                      wefti_build_name(b, "complete gradient of ", name),
                                      &args[n + i]));
        }
        b->reduced[v] = args[n + i];
    }
    WEFT_TRY(
        wefti_build_reshard(b, n, descs, from, to, adds, wefti_tag(WEFTI_TAG_BUCKET, 0), &routine));
    return reduce_call(b, s, k, b->root->values[values[n - 1]].name, routine, n, args, posts);
}

/* Adds the terms of a gradient that lies in host memory, there. No transfer is in flight then,
 * which could share an endpoint. */
static weft_status reduce_hosted(wefti_emitter *b, wefti_section s, int32_t k, int32_t v) {
    wefti_gradient_home *term = &b->gradient_home[WEFTI_GRADIENT_TERM][v],
                        *sum = &b->gradient_home[WEFTI_GRADIENT_SUM][v];
    const int32_t args[2] = {term->buffer, sum->buffer};
    const wefti_layout *from = &sharding_of(b, v)->gradient, goal = wefti_gradient_goal(b->dec, v);
    int32_t routine;
    WEFT_TRY(wefti_gradient_leave(b, s, v, WEFTI_GRADIENT_TERM));
    WEFT_TRY(wefti_pass_stored(b, s));
    sum->where = WEFTI_GRADIENT_AWAY;
    if (!wefti_is_reduced(b, v)) return WEFT_OK;
    WEFT_TRY(wefti_reduce_wait(b, s, 0));
    b->space = WEFTI_SPACE_HOST;
    WEFT_TRY(wefti_build_reshard(b, 1, &b->root->values[v].desc, from, &goal, false,
                                 wefti_tag(WEFTI_TAG_BUCKET, 0), &routine));
    WEFT_TRY(reduce_call(b, s, k, b->root->values[v].name, routine, 1, args, false));
    b->space = WEFTI_SPACE_DEVICE;
    return WEFT_OK;
}

/* What a bucket's reduction needs in device memory, if it lies in a tier below. Of reductions for
 * each microbatch, the one before has ended then. */
static weft_status bring_gradients(wefti_emitter *b, wefti_section s, int32_t k) {
    const wefti_bucket *x = &b->dec->bucket[k];
    for (int32_t i = 0; i < x->count; i++) {
        const int32_t v = x->values[i];
        if (b->dec->hosted[v]) WEFT_TRY(reduce_hosted(b, s, k, v));
        if (b->dec->hosted[v] || wefti_gradient_space(b->dec, v) == WEFTI_SPACE_DEVICE) continue;
        if (!wefti_is_reduced(b, v)) {
            b->gradient_home[WEFTI_GRADIENT_SUM][v] = b->gradient_home[WEFTI_GRADIENT_TERM][v];
            b->gradient_home[WEFTI_GRADIENT_TERM][v].where = WEFTI_GRADIENT_HERE;
            continue;
        }
        while (wefti_flight_find(b, WEFTI_FLIGHT_GRADIENTS, k) >= 0)
            WEFT_TRY(wait_for(b, s, oldest_call(b, 0)));
        WEFT_TRY(wefti_gradient_bring(b, s, v, WEFTI_GRADIENT_SUM, true));
        WEFT_TRY(wefti_gradient_bring(b, s, v, WEFTI_GRADIENT_TERM, true));
    }
    return WEFT_OK;
}

weft_status wefti_reduce_bucket(wefti_emitter *b, wefti_section s, int32_t k, bool posts) {
    const wefti_bucket *x = &b->dec->bucket[k];
    int32_t *values, count = 0;
    if (b->begun[k]) return WEFT_OK;
    b->begun[k] = true;
    WEFT_TRY(bring_gradients(b, s, k));
    b->adds = x->each && b->reduced[x->values[0]] >= 0;
    if (b->packed[k].buffer >= 0) WEFT_TRY(reduce_packed(b, s, k, posts));
    WEFT_TRY(wefti_new_indices(b->scratch, x->count, &values));
    for (int32_t i = 0; i < x->count; i++) {
        int32_t v = x->values[i];
        /* without a gradient on this stage, wefti_pipeline_tie receives one */
        if (b->packed_at[v] >= 0 || b->param_gradient[v] < 0) continue;
        if (wefti_is_reduced(b, v))
            values[count++] = v;
        else
            b->reduced[v] = b->param_gradient[v];
    }
    int32_t at = find_pieces(b, values, count);
    if (at) WEFT_TRY(reduce_pieces(b, s, k, values, at, posts));
    for (; at < count; at += WEFTI_MAX_BUCKET)
        WEFT_TRY(reduce_some(b, s, k, values + at,
                             count - at < WEFTI_MAX_BUCKET ? count - at : WEFTI_MAX_BUCKET, posts));
    wefti_flight *newest = b->flight_count ? &b->flights[b->flight_count - 1] : NULL;
    if (!newest || newest->use != WEFTI_FLIGHT_GRADIENTS || newest->owner != k)
        return wefti_bucket_reduced(b, s, k);
    newest->last = true;
    return WEFT_OK;
}

/* ---- while backward passes are built ---- */

static bool any_reduced(const wefti_emitter *b, bool at_last) {
    for (int32_t k = 0; k < b->dec->bucket_count; k++)
        for (int32_t i = 0; i < b->dec->bucket[k].count; i++)
            if ((wefti_is_reduced(b, b->dec->bucket[k].values[i]) ||
                 b->dec->served[b->dec->bucket[k].values[i]]) &&
                !(at_last && b->dec->bucket[k].each))
                return true;
    return false;
}

bool wefti_reduce_overlaps(const wefti_emitter *b) {
    return b->part && b->spec->optimizer && b->spec->plan->overlap && any_reduced(b, false);
}

bool wefti_reduce_at_last(const wefti_emitter *b) {
    return wefti_reduce_overlaps(b) && any_reduced(b, true);
}

void wefti_reduce_begin(wefti_emitter *b, bool last) {
    bool each = false;
    for (int32_t k = 0; k < b->dec->bucket_count; k++) each |= b->dec->bucket[k].each;
    b->completes = b->dec->eager || (last && wefti_reduce_overlaps(b));
    b->reduces = b->completes || each;
}

/* Reduces a bucket for the microbatches since the last time. The next ones make new gradients. */
static weft_status reduce_each(wefti_emitter *b, wefti_section s, int32_t k) {
    const wefti_bucket *x = &b->dec->bucket[k];
    int32_t here = 0;
    for (int32_t i = 0; i < x->count; i++)
        here += b->dec->stages == 1 || b->dec->own_last[x->values[i]] >= 0;
    if (b->ready[k] < here) return WEFT_OK;
    b->begun[k] = false;
    WEFT_TRY(wefti_reduce_bucket(b, s, k, wefti_reduce_overlaps(b)));
    b->ready[k] = 0;
    for (int32_t i = 0; i < x->count; i++) {
        b->completed[x->values[i]] = b->param_started[x->values[i]] = false;
        b->param_gradient[x->values[i]] = -1;
    }
    return WEFT_OK;
}

/* A gradient is complete. */
static weft_status completed(wefti_emitter *b, wefti_section s, int32_t v) {
    int32_t k = b->dec->bucket_of[v];
    b->completed[v] = true;
    b->ready[k]++;
    if (b->dec->bucket[k].each) return reduce_each(b, s, k);
    if (b->ready[k] < b->dec->bucket[k].count) return WEFT_OK;
    return wefti_reduce_bucket(b, s, k, wefti_reduce_overlaps(b));
}

/* Whether call k, whose backward pass is built, is the last one that adds to the gradient of v. */
static bool completes_gradient(const wefti_emitter *b, int32_t k, int32_t v) {
    if (b->dec->stages == 1) return b->dec->last_backward[v] == k;
    if (b->dec->bucket[b->dec->bucket_of[v]].each) /* not after the first part of a divided pass */
        return b->dec->own_last[v] == k && b->param_started[v];
    return b->terms[v] == b->terms_of[v] * b->dec->micros;
}

weft_status wefti_reduce_completed(wefti_emitter *b, wefti_section s, int32_t k) {
    if (!b->reduces) return WEFT_OK;
    const weft_node *n = b->dec->calls[k].node;
    for (int i = 0; i < n->inputs; i++) {
        int32_t v = n->in[i];
        int32_t bucket = v < 0 ? -1 : b->dec->bucket_of[v];
        if (bucket < 0 || b->completed[v]) continue; /* an input may be bound twice */
        if (!b->completes && !b->dec->bucket[bucket].each) continue;
        if (completes_gradient(b, k, v)) WEFT_TRY(completed(b, s, v));
    }
    return WEFT_OK;
}
