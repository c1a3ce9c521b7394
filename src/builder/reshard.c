/* Bodies and routines that change the layouts of tensors, and the local body of an update. */
#include <string.h>

#include "builder/build.h"
#include "graph/lower/lower.h"

weft_status wefti_build_update_body(wefti_emitter *b, int32_t value, const weft_body *body,
                                    int states, const wefti_local_body **out) {
    const wefti_sharding *s = &b->dec->sharding[value];
    const weft_desc *whole = &b->root->values[value].desc;
    wefti_request r;
    WEFT_TRY(wefti_request_new(b->scratch, body, "", &r));
    r.in[0] = s->state;
    for (int i = 1; i <= states; i++) {
        const weft_desc *desc = &body->values[body->in[i]].desc;
        bool alike = desc->rank == whole->rank &&
                     !memcmp(desc->shape, whole->shape, (size_t)whole->rank * sizeof *whole->shape);
        r.in[i] = s->state;
        if (!alike) r.in_state[i] = WEFTI_LAYOUT_OPEN;
    }
    r.in[1 + states] = s->state;
    r.in[2 + states] = wefti_layout_replicated(body->values[body->in[2 + states]].desc.rank);
    for (int64_t o = 0; o < body->out_count && o <= states; o++) {
        r.out_state[o] =
            r.in_state[o] == WEFTI_LAYOUT_GIVEN ? WEFTI_LAYOUT_GIVEN : WEFTI_LAYOUT_OPEN;
        r.out[o] = r.in[o];
    }
    if (body->out_count > 1 + states) { /* the copy of a master */
        r.out_state[1 + states] = WEFTI_LAYOUT_GIVEN;
        r.out[1 + states] = s->state;
    }
    return wefti_partition_body(b->part, &r.spec, out);
}

weft_status wefti_build_reshard(wefti_emitter *b, int count, const weft_desc *whole,
                                const wefti_layout *from, const wefti_layout *to, bool add_up,
                                uint64_t tag, int32_t *out_routine) {
    weft_body *body;
    const weft_body *kept = NULL;
    weft_status status;
    WEFT_TRY(wefti_body_create(b->g, "reshard", &body));
    status = WEFT_OK;
    for (int i = 0; i < count && status == WEFT_OK; i++) {
        int32_t in;
        status = wefti_body_input(body, whole[i], WEFTI_VALUE_INPUT, NULL, &in);
        if (status == WEFT_OK) status = wefti_body_output(body, in);
    }
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    for (int32_t i = 0; i < b->p->body_count && !kept; i++)
        if (b->p->bodies[i]->node_count == 0 && wefti_body_equal(b->p->bodies[i], body))
            kept = b->p->bodies[i];
    if (kept)
        wefti_body_destroy(body);
    else
        WEFT_TRY(wefti_build_keep_body(b, body));
    if (!kept) kept = body;
    wefti_request r;
    const wefti_local_body *local;
    WEFT_TRY(wefti_request_new(b->scratch, kept, "", &r));
    r.spec.tag = tag;
    for (int i = 0; i < count; i++) {
        r.in[i] = from[i];
        r.out[i] = to[i];
        r.out_state[i] = WEFTI_LAYOUT_GIVEN;
    }
    WEFT_TRY(wefti_partition_body(b->part, &r.spec, &local));
    uint8_t *accumulate;
    WEFT_TRY(wefti_new_array(b->scratch, count, sizeof *accumulate, &accumulate));
    memset(accumulate, add_up ? WEFTI_ADD : WEFTI_WRITE, (size_t)count);
    const wefti_routine_key key = {.body = local->body, .accumulate = accumulate, .results = count};
    WEFT_TRY(wefti_build_find(b, &key, out_routine));
    if (*out_routine >= 0) return WEFT_OK;
    bool *add;
    WEFT_TRY(wefti_new_array(b->scratch, count, sizeof *add, &add));
    for (int i = 0; i < count; i++) add[i] = add_up;
    wefti_routine_spec spec = {.body = local->body, .accumulate = add};
    return wefti_build_compile(b, &key, &spec, out_routine);
}

/* ---- many tensors in one ---- */

bool wefti_build_divides(const wefti_emitter *b, const weft_desc *whole, const wefti_layout *coarse,
                         const wefti_layout *fine, wefti_division *out) {
    wefti_layout rest = *fine;
    int d = 0;
    while (d < whole->rank && fine->dim[d].count <= coarse->dim[d].count) d++;
    if (d == whole->rank || fine->dim[d].unit > 1) return false;
    int before = coarse->dim[d].count, count = fine->dim[d].count - before;
    *out = (wefti_division){.dim = d, .axes = {.count = (int8_t)count}, .parts = 1};
    for (int i = 0; i < count; i++) {
        out->axes.axis[i] = fine->dim[d].axis[before + i];
        out->parts *= b->p->mesh.axis[out->axes.axis[i]].size;
    }
    for (int i = 0; i < before; i++)
        if (coarse->dim[d].axis[i] != fine->dim[d].axis[i]) return false;
    rest.dim[d] = coarse->dim[d];
    return wefti_layout_equal(&rest, coarse) &&
           whole->shape[d] % wefti_layout_parts(fine, &b->p->mesh, d) == 0;
}

bool wefti_build_same_axes(const wefti_division *x, const wefti_division *y) {
    return x->axes.count == y->axes.count &&
           !memcmp(x->axes.axis, y->axes.axis, (size_t)x->axes.count * sizeof *x->axes.axis);
}

weft_status wefti_build_node(weft_body *body, const char *op, int count, const int32_t *in,
                             const wefti_attr *attrs, int32_t *out) {
    int32_t node;
    WEFT_TRY(wefti_body_add(body, wefti_op_find(body->graph->ops, op), NULL, count, in, attrs, "",
                            &node));
    *out = body->nodes[node].out[0];
    return WEFT_OK;
}

weft_status wefti_build_join(weft_body *body, int32_t count, int32_t *value) {
    while (count > 1) { /* an op has at most WEFTI_MAX_IN operands */
        int32_t groups = 0;
        for (int32_t k = 0; k < count; k += WEFTI_MAX_IN) {
            int n = count - k < WEFTI_MAX_IN ? count - k : WEFTI_MAX_IN;
            WEFT_TRY(wefti_build_node(body, "concat", n, value + k,
                                      (wefti_attr[]){WEFTI_I(axis, 1), {0}}, &value[groups++]));
        }
        count = groups;
    }
    return WEFT_OK;
}

weft_status wefti_build_routine_of(wefti_emitter *b, weft_body *fresh, int32_t *out) {
    const weft_body *body;
    WEFT_TRY(wefti_build_intern(b, fresh, &body));
    const wefti_routine_key key = {
        .body = body, .kind = WEFTI_ROUTINE_PLAIN, .on_host = b->space == WEFTI_SPACE_HOST};
    WEFT_TRY(wefti_build_find(b, &key, out));
    if (*out >= 0) return WEFT_OK;
    wefti_routine_spec spec = {.body = (weft_body *)(uintptr_t)body};
    return wefti_build_compile(b, &key, &spec, out);
}

weft_status wefti_build_transfer_routine(wefti_emitter *b, const weft_desc *here, int32_t transfer,
                                         int32_t *out_routine) {
    weft_body *body;
    int32_t in, result;
    WEFT_TRY(wefti_body_create(b->g, "transfer", &body));
    weft_status status = wefti_body_input(body, *here, WEFTI_VALUE_INPUT, NULL, &in);
    if (status == WEFT_OK)
        status = wefti_body_add_transfer(body, in, transfer, here, WEFTI_MOVED_VALUE, "", &result);
    if (status == WEFT_OK) status = wefti_body_output(body, result);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    WEFT_TRY(wefti_build_keep_body(b, body));
    wefti_routine_spec spec = {.body = body};
    return wefti_build_compile(b, &(wefti_routine_key){.body = body}, &spec, out_routine);
}
