/* Look-ups in tables that lie in a tier below device memory. The table stays there. A look-up
 * brings the rows that it needs, and the call's body has them in place of the table. */
#include "builder/build.h"
#include "builder/rows_parts.h"

/* A look-up in the body of a pass. */
typedef struct table_look_up {
    int64_t table, ids; /* inputs of the body */
    int64_t node;
    int32_t ids_value; /* of the root */
    int64_t places;
} table_look_up;

static const weft_body *body_of(const wefti_emitter *b, const wefti_call_plan *call,
                                bool backward) {
    const wefti_cell_grad *grad = call->differentiated ? &b->p->grads[call->grad] : NULL;
    if (backward && !call->fused)
        return b->part ? call->backward[WEFTI_PASS_ALL]->body : grad->backward;
    if (call->local) return call->local->body;
    return !grad ? call->node->callee : call->fused ? grad->fused_body : grad->forward;
}

/* The input of a call that is input i of a pass's body; -1: it is another value. */
static int64_t bound_input(const wefti_emitter *b, const wefti_call_plan *call, bool backward,
                           int64_t i) {
    if (!backward || call->fused) return i < call->node->inputs ? i : -1;
    const wefti_grad_binding *x = &b->p->grads[call->grad].bindings[i];
    return x->source == WEFTI_GRAD_INPUT ? x->index : -1;
}

/* The node that reads a value, if no other does and it is no output; -1. */
static int64_t reader_of(const weft_body *body, int32_t value) {
    int64_t reader = -1;
    int32_t reads = 0;
    for (int64_t k = 0; k < body->node_count; k++)
        for (int i = 0; i < body->nodes[k].inputs; i++)
            if (body->nodes[k].in[i] == value) {
                reader = k;
                reads++;
            }
    for (int64_t o = 0; o < body->out_count; o++) reads += body->out[o] == value;
    return reads == 1 ? reader : -1;
}

/* Whether tables are used by rows: in this program, or in that with which it shares them. */
static bool is_by_rows(const wefti_emitter *b, int32_t v) {
    const wefti_tensor *x =
        b->spec->shared ? wefti_program_tensor(b->spec->shared, b->root->values[v].name) : NULL;
    return b->dec->form[v] == WEFTI_ROWS_TOUCHED || (x && x->rows == WEFTI_ROWS_TOUCHED);
}

/* Whether a table's home holds all of it, in a tier below device memory. */
static bool lies_below(const wefti_emitter *b, int32_t v) {
    if (v < 0 || b->root->values[v].kind != WEFTI_VALUE_PARAM || b->param_buffer[v] < 0)
        return false;
    const wefti_sharding *x = &b->dec->sharding[v];
    return wefti_tier_below(b, b->param_buffer[v]) && b->spec->plan->copies <= 1 &&
           (!b->part || wefti_layout_equal(&x->storage, &x->use));
}

static bool find_look_up(const wefti_emitter *b, const wefti_call_plan *call, int32_t v,
                         bool backward, table_look_up *out) {
    if (!lies_below(b, v) || !is_by_rows(b, v) || (backward && b->dec->split_backward))
        return false;
    const weft_body *body = body_of(b, call, backward);
    const weft_op_def *embedding = wefti_op_find(b->g->ops, "embedding");
    *out = (table_look_up){.table = -1, .ids = -1};
    for (int64_t i = 0; i < body->in_count; i++) {
        const int64_t input = bound_input(b, call, backward, i);
        if (input >= 0 && call->node->in[input] == v) out->table = i;
    }
    if (out->table < 0) return false;
    out->node = reader_of(body, body->in[out->table]);
    const weft_node *n = out->node < 0 ? NULL : &body->nodes[out->node];
    if (!n || n->op != embedding || n->in[0] != body->in[out->table]) return false;
    const int64_t whole = wefti_attr_int(n, WEFTI_AT_whole); /* 0: the table is no piece */
    if (whole && whole != wefti_in(n, 0)->shape[0]) return false;
    for (int64_t i = 0; i < body->in_count; i++)
        if (body->in[i] == n->in[1]) out->ids = i;
    const int64_t input = out->ids < 0 ? -1 : bound_input(b, call, backward, out->ids);
    if (input < 0) return false;
    out->ids_value = call->node->in[input];
    out->places = weft_desc_elems(wefti_in(n, 1));
    return out->places < wefti_in(n, 0)->shape[0];
}

bool wefti_rows_looked_up(const wefti_emitter *b, int32_t k, int32_t v, bool backward) {
    table_look_up x;
    return find_look_up(b, &b->dec->calls[k], v, backward, &x);
}

/* Begins to bring the rows that a call looks up. *out: their buffer. */
static weft_status begin_look_up(wefti_emitter *b, wefti_section s, wefti_flight_use use,
                                 const table_look_up *x, const weft_body *body, int32_t v,
                                 int32_t micro, int32_t *out) {
    const wefti_value_info *info = &b->root->values[v];
    const weft_desc *ids = &body->values[body->in[x->ids]].desc,
                    *table = &body->values[body->in[x->table]].desc;
    wefti_flight f = {.use = use,
                      .owner = use == WEFTI_FLIGHT_ROWS ? v : -1,
                      .name = info->name,
                      .source = {b->param_buffer[v], 0},
                      .rows = x->places,
                      .looks_up = true,
                      .row_bytes = weft_desc_bytes(table) / table->shape[0]};
    WEFT_TRY(wefti_buffer_add(b, x->places * (int64_t)sizeof(int32_t),
                              wefti_build_name(b, "rows to look up in ", info->name),
                              &f.named.buffer));
    WEFT_TRY(wefti_buffer_add(b, f.rows * f.row_bytes, wefti_build_name(b, "rows of ", info->name),
                              out));
    if (!f.rows || !f.row_bytes) return WEFT_OK;
    WEFT_TRY(wefti_rows_call(
        b, s, WEFTI_OTHER, info->name, "rows_find", 1, ids,
        (wefti_attr[]){WEFTI_I(vocab, table->shape[0]), {0}},
        (wefti_buffer_ref[]){{*wefti_build_value(b, micro, x->ids_value), 0}, f.named}));
    f.destination.buffer = *out;
    return wefti_flight_rows(b, s, f, table->shape[0], &b->rows_move[v]);
}

weft_status wefti_rows_ahead(wefti_emitter *b, wefti_section s, int32_t micro) {
    for (int32_t k = 0; k < b->dec->call_count; k++) {
        const wefti_call_plan *call = &b->dec->calls[k];
        for (int i = 0; i < call->node->inputs && call->mine && !call->on_host; i++) {
            const int32_t v = call->node->in[i];
            int32_t unused;
            table_look_up x;
            if (wefti_flight_find(b, WEFTI_FLIGHT_ROWS, v) < 0 &&
                find_look_up(b, call, v, false, &x) &&
                b->root->values[x.ids_value].kind == WEFTI_VALUE_INPUT)
                WEFT_TRY(begin_look_up(b, s, WEFTI_FLIGHT_ROWS, &x, body_of(b, call, false), v,
                                       micro, &unused));
        }
    }
    return WEFT_OK;
}

weft_status wefti_rows_look_up(wefti_emitter *b, wefti_section s, int32_t k, int32_t v,
                               bool backward, int32_t micro, int32_t *out) {
    const wefti_call_plan *call = &b->dec->calls[k];
    const int32_t ahead = wefti_flight_find(b, WEFTI_FLIGHT_ROWS, v);
    table_look_up x;
    if (ahead >= 0) {
        *out = b->flights[ahead].destination.buffer;
        return wefti_flight_wait(b, s, ahead);
    }
    (void)find_look_up(b, call, v, backward, &x);
    WEFT_TRY(begin_look_up(b, s, WEFTI_FLIGHT_NOW, &x, body_of(b, call, backward), v, micro, out));
    return wefti_flight_arrive(b, s);
}

/* Copies a node that looks up: its table has the rows that its ids name, in the order of
 * rows_find. */
static weft_status copy_look_up(const weft_body *from, const table_look_up *x, weft_body *to,
                                int32_t *map) {
    const weft_node *n = &from->nodes[x->node];
    const wefti_attr attrs[] = {WEFTI_I(vocab, wefti_in(n, 0)->shape[0]), {0}};
    int32_t node;
    WEFT_TRY(wefti_body_add(to, wefti_op_find(to->graph->ops, "rows_find"), NULL, 1, &map[n->in[1]],
                            attrs, n->scope, &node));
    const int32_t in[] = {map[n->in[0]], to->nodes[node].out[1]};
    return wefti_body_add_like(to, n, in, NULL, map, &node);
}

static weft_status fill_with_rows(const weft_body *from, const table_look_up *x, int count,
                                  weft_body *to, int32_t *map) {
    for (int64_t i = 0; i < from->in_count; i++) {
        const wefti_value_info *info = &from->values[from->in[i]];
        weft_desc desc = info->desc;
        for (int k = 0; k < count; k++)
            if (x[k].table == i) desc.shape[0] = x[k].places;
        WEFT_TRY(wefti_body_input(to, desc, info->kind, info->name, &map[from->in[i]]));
    }
    for (int64_t n = 0; n < from->node_count; n++) {
        int k = 0;
        while (k < count && x[k].node != n) k++;
        WEFT_TRY(k < count ? copy_look_up(from, &x[k], to, map)
                           : wefti_body_copy_node(to, &from->nodes[n], map));
    }
    return wefti_copy_outputs(from, to, map);
}

weft_status wefti_rows_body(wefti_emitter *b, const wefti_call_plan *call, bool backward,
                            const weft_body **body) {
    table_look_up *x;
    weft_body *fresh;
    int32_t *map;
    int count = 0;
    WEFT_TRY(wefti_new_array(b->scratch, call->node->inputs, sizeof *x, &x));
    for (int i = 0; i < call->node->inputs; i++)
        count +=
            call->node->in[i] >= 0 && find_look_up(b, call, call->node->in[i], backward, &x[count]);
    if (!count) return WEFT_OK;
    if (b->part) wefti_partition_use(b->part, *body);
    WEFT_TRY(wefti_new_indices(b->scratch, (*body)->value_count, &map));
    WEFT_TRY(wefti_body_create(b->g, (*body)->name, &fresh));
    const weft_status status = fill_with_rows(*body, x, count, fresh, map);
    if (status < 0) {
        wefti_body_destroy(fresh);
        return status;
    }
    return wefti_build_intern(b, fresh, body);
}
