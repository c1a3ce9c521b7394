/* Gradients of tables as rows (docs/design/memory.md): which tables have them, and how they update
 * a piece of a table in device memory. Tables in a tier below: rows_tiers.c, rows_look_ups.c. */
#include "rows/rows.h"

#include "builder/build.h"
#include "builder/rows_parts.h"
#include "schedule/schedule.h"

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

/* Whether the device updates a table by a gradient in its memory. */
static bool on_device(const wefti_decisions *dec, int32_t v) {
    const weft_plan *plan = dec->spec->plan;
    const char *name = dec->root->values[v].name;
    return !dec->hosted[v] &&
           wefti_plan_tier(plan, WEFT_OFFLOAD_GRADIENTS, name) == WEFT_TIER_DEVICE &&
           !wefti_plan_updates_on_host(plan, name);
}

/* Whether the gradients of parameters come later than those of values. */
static bool splits_backward(const weft_plan *plan) {
    return plan && plan->pipeline.stages > 1 && wefti_schedule_splits(plan->pipeline.schedule);
}

/* The form as far as the root shows it. */
static weft_status form_of(const wefti_decisions *dec, int32_t v, wefti_rows_form *out) {
    const wefti_program_spec *spec = dec->spec;
    const wefti_value_info *info = &dec->root->values[v];
    wefti_update_rule rule = {0};
    WEFT_TRY(spec->optimizer->rule(spec->optimizer->context, info->name, &info->desc, &rule));
    *out = spec->optimizer->buddies                ? WEFTI_ROWS_BUDDIES
           : spec->keep_gradients                  ? WEFTI_ROWS_KEPT
           : dec->served[v]                        ? WEFTI_ROWS_SERVED
           : splits_backward(spec->plan)           ? WEFTI_ROWS_STAGES
           : !read_once(dec, v)                    ? WEFTI_ROWS_SHARED
           : !updates_elements(&rule, &info->desc) ? WEFTI_ROWS_OPTIMIZER
           : !on_device(dec, v)                    ? WEFTI_ROWS_TIER
                                                   : WEFTI_ROWS_TOUCHED;
    return WEFT_OK;
}

/* Whether microbatches look up fewer rows of input i of a cell than it has. */
static bool looks_up_few(const wefti_decisions *dec, const weft_body *cell, int64_t i) {
    const weft_op_def *embedding = wefti_op_find(cell->graph->ops, "embedding");
    const int64_t micros = dec->spec->microbatches;
    for (int64_t k = 0; k < cell->node_count; k++) {
        const weft_node *n = &cell->nodes[k];
        if (n->op == embedding && n->in[0] == cell->in[i])
            return (micros == 1 || wefti_in(n, 1)->rank > 0) &&
                   weft_desc_elems(wefti_in(n, 1)) <
                       (wefti_in(n, 0)->shape[0] + micros - 1) / micros;
    }
    return false;
}

weft_status wefti_rows_at_once(const wefti_decisions *dec, bool *at_once) {
    const wefti_program_spec *spec = dec->spec;
    if (!spec->optimizer || !spec->optimizer->rows || spec->microbatches == 1) return WEFT_OK;
    for (int32_t k = 0; k < dec->call_count; k++) {
        const weft_node *n = dec->calls[k].node;
        for (int i = 0; i < n->inputs && !*at_once; i++) {
            const wefti_value_info *info = n->in[i] < 0 ? NULL : &dec->root->values[n->in[i]];
            wefti_rows_form form;
            if (!info || info->kind != WEFTI_VALUE_PARAM || info->frozen ||
                !looks_up_few(dec, n->callee, i))
                continue;
            WEFT_TRY(form_of(dec, n->in[i], &form));
            *at_once = form == WEFTI_ROWS_TOUCHED;
        }
    }
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

void wefti_rows_take(const wefti_decisions *dec, wefti_cell_grad *grad, const bool *candidates) {
    const weft_body *body = grad->backward;
    for (int64_t i = 0; i < grad->cell->in_count; i++) {
        const int32_t o = candidates[i] ? grad->gradient_out[i] : -1;
        weft_node *n = o < 0 ? NULL : maker_of(body, o, "embedding_grad");
        if (!n || !looks_up_few(dec, grad->cell, i)) continue;
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
        if (maker_of(body, o, "embedding_rows")) {
            weft_desc *rows = &dec->rows[call->in[i]];
            *rows = body->values[body->out[o]].desc;
            rows->shape[0] *= dec->spec->microbatches;
        } else
            dec->form[call->in[i]] =
                maker_of(body, o, "embedding_grad") ? WEFTI_ROWS_SMALL : WEFTI_ROWS_SHARED;
    }
}

/* Each device has the rows of its part of all microbatches, one microbatch behind the other. */
void wefti_rows_layout(const wefti_decisions *dec, int32_t v, wefti_layout *gradient) {
    wefti_dim_split *first = &gradient->dim[0];
    if (wefti_rows_are(dec, v) && first->count)
        first->unit = (first->unit > 1 ? first->unit : 1) * dec->spec->microbatches;
}

weft_status wefti_rows_of_micro(wefti_emitter *b, int32_t v, int32_t micro, int32_t *buffer) {
    if (!wefti_rows_are(b->dec, v) || b->spec->microbatches == 1) return WEFT_OK;
    const int64_t bytes = b->buffers[*buffer].life.bytes / b->spec->microbatches;
    wefti_buffer_use(b, *buffer);
    return wefti_buffer_part(b, *buffer, micro, bytes, bytes, buffer);
}

bool wefti_rows_are(const wefti_decisions *dec, int32_t v) {
    return dec->rows[v].rank > 0;
}

const weft_desc *wefti_gradient_desc(const wefti_decisions *dec, int32_t v) {
    return wefti_rows_are(dec, v) ? &dec->rows[v] : &dec->root->values[v].desc;
}

wefti_layout wefti_gradient_goal(const wefti_decisions *dec, int32_t v) {
    if (dec->served[v]) return dec->sharding[v].gradient; /* a server adds the terms */
    return wefti_rows_are(dec, v) ? wefti_layout_replicated(dec->rows[v].rank)
                                  : dec->sharding[v].state;
}

/* ---- updates ---- */

void wefti_rows_piece(const wefti_emitter *b, int32_t v, wefti_region *out) {
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
        if (rows->dim[d].count && (d > 0 || rows->dim[d].unit > b->spec->microbatches)) return 1;
    return rows->rank > 1 ? (int32_t)wefti_layout_parts(rows, &b->p->mesh, 0) : 1;
}

weft_status wefti_rows_sums(wefti_emitter *b, int32_t v, weft_body *body, int32_t rows,
                            int32_t *out_ids, int32_t *out_sums) {
    wefti_region piece;
    int32_t node;
    wefti_rows_piece(b, v, &piece);
    const wefti_attr attrs[] = {WEFTI_I(vocab, piece.size[0]),
                                WEFTI_I(begin, piece.begin[0]),
                                WEFTI_I(first_column, piece.begin[1]),
                                WEFTI_I(columns, piece.size[1]),
                                WEFTI_I(parts, parts_of(b, v)),
                                WEFTI_I(unit, b->spec->microbatches),
                                {0}};
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
    int32_t in[MOST], part[MOST], node, rows, scalars;
    const int32_t updated = 1 + rule->states, operands = updated + rule->absent + 3;
    const weft_desc *whole = &b->root->values[v].desc;
    wefti_rows_piece(b, v, &piece);
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
    for (int i = 0; i < MOST; i++) part[i] = i < updated ? in[i] : -1;
    part[operands - 2] = scalars;
    WEFT_TRY(wefti_rows_sums(b, v, body, rows, &part[operands - 1], &part[operands - 3]));
    WEFT_TRY(wefti_body_add(body, rule->op, NULL, operands, part, rule->attrs, "", &node));
    for (int i = 0; i < updated; i++) WEFT_TRY(wefti_body_output(body, body->nodes[node].out[i]));
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
