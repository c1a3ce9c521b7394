/* Gradients of tables as rows (docs/design/memory.md). Which tables have them, and how a piece of a
 * table is updated by them. */
#include "rows/rows.h"

#include "builder/build.h"

/* ---- which tables ---- */

static bool read_once(const wefti_decisions *dec, int32_t v) {
    int32_t reads = 0;
    for (int32_t k = 0; k < dec->call_count; k++)
        for (int i = 0; i < dec->calls[k].node->inputs; i++)
            reads += dec->calls[k].node->in[i] == v;
    return reads == 1;
}

/* Whether an embedding of the cell looks up in the cell's input. */
static bool is_table(const weft_body *cell, int64_t input) {
    const weft_op_def *embedding = wefti_op_find(cell->graph->ops, "embedding");
    for (int64_t k = 0; k < cell->node_count; k++)
        if (cell->nodes[k].op == embedding && cell->nodes[k].in[0] == cell->in[input]) return true;
    return false;
}

/* Whether the rule updates each element by itself: a row by its gradient alone. */
static bool updates_elements(const wefti_update_rule *rule, const weft_desc *whole) {
    for (int i = 0; i < rule->states; i++)
        if (!wefti_same_shape(&rule->state_descs[i], whole)) return false;
    return !rule->op->lower;
}

static bool in_device_memory(const wefti_decisions *dec, const char *name) {
    for (int what = 0; what < (int)WEFT_OFFLOADS; what++)
        if (what != WEFT_OFFLOAD_SAVED &&
            wefti_plan_tier(dec->spec->plan, (weft_offload)what, name) != WEFT_TIER_DEVICE)
            return false;
    return true;
}

/* The form as far as the root shows it. */
static weft_status form_of(const wefti_decisions *dec, int32_t v, wefti_rows_form *out) {
    const wefti_program_spec *spec = dec->spec;
    const wefti_value_info *info = &dec->root->values[v];
    wefti_update_rule rule = {0};
    WEFT_TRY(spec->optimizer->rule(spec->optimizer->context, info->name, &info->desc, &rule));
    *out = spec->optimizer->buddies || spec->keep_gradients || spec->microbatches > 1 ||
                   dec->stages > 1
               ? WEFTI_ROWS_STEPS
           : !read_once(dec, v)                    ? WEFTI_ROWS_SHARED
           : !updates_elements(&rule, &info->desc) ? WEFTI_ROWS_OPTIMIZER
           : !in_device_memory(dec, info->name)    ? WEFTI_ROWS_TIER
                                                   : WEFTI_ROWS_TOUCHED;
    return WEFT_OK;
}

weft_status wefti_rows_candidates(wefti_decisions *dec, const weft_node *call, bool *out) {
    if (!dec->spec->optimizer || !dec->spec->optimizer->rows) return WEFT_OK;
    for (int i = 0; i < call->inputs; i++) {
        const int32_t v = call->in[i];
        if (v < 0 || dec->root->values[v].kind != WEFTI_VALUE_PARAM || !dec->needs[v] ||
            !is_table(call->callee, i))
            continue;
        WEFT_TRY(form_of(dec, v, &dec->form[v]));
        out[i] = dec->form[v] == WEFTI_ROWS_TOUCHED;
    }
    return WEFT_OK;
}

/* The node that makes result o of a backward body, if nothing else reads it and it has the op; else
 * NULL. */
static weft_node *maker_of(const weft_body *body, int32_t o, const char *op) {
    const int32_t value = body->out[o], maker = body->values[value].node;
    int32_t reads = 0;
    for (int64_t k = 0; k < body->node_count; k++)
        for (int i = 0; i < body->nodes[k].inputs; i++) reads += body->nodes[k].in[i] == value;
    for (int64_t k = 0; k < body->out_count; k++) reads += body->out[k] == value;
    if (maker < 0 || reads != 1) return NULL;
    return body->nodes[maker].op == wefti_op_find(body->graph->ops, op) ? &body->nodes[maker]
                                                                        : NULL;
}

void wefti_rows_take(wefti_cell_grad *grad, const bool *candidates) {
    const weft_body *body = grad->backward;
    for (int64_t i = 0; i < grad->cell->in_count; i++) {
        const int32_t o = candidates[i] ? grad->gradient_out[i] : -1;
        weft_node *n = o < 0 ? NULL : maker_of(body, o, "embedding_grad");
        if (!n || weft_desc_elems(wefti_in(n, 0)) >= wefti_out(n, 0)->shape[0]) continue;
        weft_desc *desc = &body->values[body->out[o]].desc;
        const weft_dtype dtype = desc->dtype;
        n->op = wefti_op_find(body->graph->ops, "embedding_rows"); /* of the same attributes */
        *desc = *wefti_in(n, 1);
        desc->dtype = dtype;
        desc->shape[desc->rank - 1] += WEFTI_ROWS_ID;
    }
}

void wefti_rows_record(wefti_decisions *dec, const weft_node *call, const wefti_cell_grad *grad,
                       const bool *candidates) {
    const weft_body *body = grad->backward;
    for (int i = 0; i < call->inputs; i++) {
        const int32_t o = candidates[i] ? grad->gradient_out[i] : -1;
        if (o < 0) continue;
        if (maker_of(body, o, "embedding_rows"))
            dec->rows[call->in[i]] = body->values[body->out[o]].desc;
        else
            dec->form[call->in[i]] =
                maker_of(body, o, "embedding_grad") ? WEFTI_ROWS_SMALL : WEFTI_ROWS_SHARED;
    }
}

bool wefti_rows_are(const wefti_decisions *dec, int32_t v) {
    return dec->rows[v].rank > 0;
}

const weft_desc *wefti_gradient_desc(const wefti_decisions *dec, int32_t v) {
    return wefti_rows_are(dec, v) ? &dec->rows[v] : &dec->root->values[v].desc;
}

wefti_layout wefti_gradient_goal(const wefti_decisions *dec, int32_t v) {
    return wefti_rows_are(dec, v) ? wefti_layout_replicated(dec->rows[v].rank)
                                  : dec->sharding[v].state;
}

/* ---- updates ---- */

/* This device's piece of a table. */
static void piece_of(const wefti_emitter *b, int32_t v, wefti_region *out) {
    const weft_desc *whole = &b->root->values[v].desc;
    *out = (wefti_region){.size = {whole->shape[0], whole->shape[1]}};
    if (!b->part) return;
    const wefti_layout *state = &b->dec->sharding[v].state;
    wefti_rank_reads_layout(wefti_partition_reads(b->part), &b->p->mesh, whole, state);
    wefti_layout_region(state, &b->p->mesh, whole, b->p->rank, out);
}

/* Into how many parts the devices divide dimension 0 of the rows, if nothing else. */
static int32_t parts_of(const wefti_emitter *b, int32_t v) {
    if (!b->part) return 1;
    const wefti_layout *rows = &b->dec->sharding[v].gradient;
    for (int d = 0; d < rows->rank; d++)
        if (rows->dim[d].count && (d > 0 || rows->dim[d].unit > 1)) return 1;
    return rows->rank > 1 ? (int32_t)wefti_layout_parts(rows, &b->p->mesh, 0) : 1;
}

weft_status wefti_rows_sums(wefti_emitter *b, int32_t v, weft_body *body, int32_t rows,
                            int32_t *out_ids, int32_t *out_sums) {
    wefti_region piece;
    int32_t node;
    piece_of(b, v, &piece);
    const wefti_attr attrs[] = {
        WEFTI_I(vocab, piece.size[0]),         WEFTI_I(begin, piece.begin[0]),
        WEFTI_I(first_column, piece.begin[1]), WEFTI_I(columns, piece.size[1]),
        WEFTI_I(parts, parts_of(b, v)),        {0}};
    WEFT_TRY(wefti_body_add(body, wefti_op_find(b->g->ops, "rows_sum"), NULL, 1, &rows, attrs, "",
                            &node));
    *out_ids = body->nodes[node].out[0];
    *out_sums = body->nodes[node].out[1];
    return WEFT_OK;
}

static weft_status fill_update(wefti_emitter *b, int32_t v, const wefti_update_rule *rule,
                               weft_body *body) {
    enum { MOST = 8 };
    wefti_region piece;
    int32_t in[MOST], part[MOST], ids, node, rows, scalars;
    const int32_t updated = 1 + rule->states, operands = updated + rule->absent + 2;
    const weft_desc *whole = &b->root->values[v].desc;
    piece_of(b, v, &piece);
    for (int i = 0; i < updated; i++) {
        weft_desc here = i ? rule->state_descs[i - 1] : *whole;
        for (int d = 0; d < here.rank; d++) here.shape[d] = piece.size[d];
        WEFT_TRY(wefti_body_input(body, here, WEFTI_VALUE_INPUT,
                                  i ? rule->state_names[i - 1] : "param", &in[i]));
    }
    WEFT_TRY(wefti_body_input(body, b->dec->rows[v], WEFTI_VALUE_INPUT, "gradient", &rows));
    const weft_desc step = weft_desc_of(whole->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32, 1,
                                        (int64_t[]){WEFTI_STEP_SCALARS});
    WEFT_TRY(wefti_body_input(body, step, WEFTI_VALUE_INPUT, "scalars", &scalars));
    for (int i = 0; i < MOST; i++) part[i] = -1;
    WEFT_TRY(wefti_rows_sums(b, v, body, rows, &ids, &part[operands - 2]));
    part[operands - 1] = scalars;
    for (int i = 0; i < updated; i++)
        WEFT_TRY(wefti_build_node(body, "gather", 2, (int32_t[]){in[i], ids},
                                  (wefti_attr[]){WEFTI_I(axis, 0), WEFTI_I(begin, 0), {0}},
                                  &part[i]));
    WEFT_TRY(wefti_body_add(body, rule->op, NULL, operands, part, rule->attrs, "", &node));
    for (int i = 0; i < updated; i++) {
        WEFT_TRY(wefti_build_node(body, "rows_write", 3,
                                  (int32_t[]){in[i], ids, body->nodes[node].out[i]}, NULL,
                                  &part[i]));
        WEFT_TRY(wefti_body_output(body, part[i]));
    }
    return WEFT_OK;
}

weft_status wefti_rows_update(wefti_emitter *b, int32_t v, const wefti_update_rule *rule,
                              const weft_body **out) {
    weft_body *fresh;
    WEFT_TRY(wefti_body_create(b->g, "update", &fresh));
    const weft_status status = fill_update(b, v, rule, fresh);
    if (status < 0) {
        wefti_body_destroy(fresh);
        return status;
    }
    return wefti_build_intern(b, fresh, out);
}
