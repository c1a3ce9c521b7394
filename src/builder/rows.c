/* Gradients of tables as rows (docs/design/memory.md). Which tables have them, and how a piece of a
 * table is updated by them. A table in a tier below device memory stays there: a look-up and an
 * update bring the rows that they need. */
#include "rows/rows.h"

#include "base/number.h"
#include "builder/build.h"
#include "device/disk_cache.h"
#include "rows/cache.h"
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
        if (rows->dim[d].count && (d > 0 || rows->dim[d].unit > b->spec->microbatches)) return 1;
    return rows->rank > 1 ? (int32_t)wefti_layout_parts(rows, &b->p->mesh, 0) : 1;
}

weft_status wefti_rows_sums(wefti_emitter *b, int32_t v, weft_body *body, int32_t rows,
                            int32_t *out_ids, int32_t *out_sums) {
    wefti_region piece;
    int32_t node;
    piece_of(b, v, &piece);
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

/* ---- steps on rows ---- */

/* Adds a call of a body, which this takes over. Results that share memory with operands are not
 * among `args`: inputs, then the other results. */
static weft_status call_body(wefti_emitter *b, wefti_section s, wefti_phase phase, const char *name,
                             weft_body *body, const wefti_buffer_ref *args) {
    int32_t routine;
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_routine_of(b, body, &routine));
    const wefti_routine *r = b->p->routines[routine];
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, phase, name, r->args, &d));
    for (int32_t a = 0; a < r->inputs; a++) wefti_build_arg(b, d, a, args[a].buffer, args[a].delta);
    for (int32_t o = 0; o < r->outputs; o++) {
        const wefti_buffer_ref *to = &args[r->alias[o] >= 0 ? r->alias[o] : r->inputs + o];
        wefti_build_arg(b, d, r->inputs + o, to->buffer, to->delta);
    }
    return wefti_build_end(b, d, routine);
}

/* Adds a node over all inputs, and all of its first `outputs` results as outputs. */
static weft_status fill_call(weft_body *body, const char *op, int count, const weft_desc *in,
                             const wefti_attr *attrs, int outputs) {
    int32_t value[4], node;
    for (int i = 0; i < count; i++)
        WEFT_TRY(wefti_body_input(body, in[i], WEFTI_VALUE_INPUT, NULL, &value[i]));
    WEFT_TRY(wefti_body_add(body, wefti_op_find(body->graph->ops, op), NULL, count, value, attrs,
                            "", &node));
    for (int o = 0; o < outputs; o++) WEFT_TRY(wefti_body_output(body, body->nodes[node].out[o]));
    return WEFT_OK;
}

/* Adds a call of one op. */
static weft_status call_op(wefti_emitter *b, wefti_section s, wefti_phase phase, const char *name,
                           const char *op, int count, const weft_desc *in, const wefti_attr *attrs,
                           const wefti_buffer_ref *args) {
    weft_body *body;
    WEFT_TRY(wefti_body_create(b->g, op, &body));
    const weft_status status = fill_call(body, op, count, in, attrs, 1);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    return call_body(b, s, phase, name, body, args);
}

/* ---- updates of tables in a tier below device memory ---- */

weft_status wefti_rows_away(const wefti_emitter *b, int32_t v, bool *out_away, weft_desc *out) {
    const wefti_value_info *info = &b->root->values[v];
    wefti_update_rule rule = {0};
    wefti_region piece;
    *out_away = false;
    if (!wefti_rows_are(b->dec, v)) return WEFT_OK;
    WEFT_TRY(b->spec->optimizer->rule(b->spec->optimizer->context, info->name, &info->desc, &rule));
    *out_away = wefti_tier_below(b, b->param_buffer[v]) ||
                (rule.states &&
                 wefti_tier_space(b, WEFT_OFFLOAD_OPTIMIZER, info->name) != WEFTI_SPACE_DEVICE);
    piece_of(b, v, &piece);
    const weft_desc *rows = &b->dec->rows[v];
    const int64_t width = rows->shape[rows->rank - 1];
    *out = weft_desc_of(info->desc.dtype, 2,
                        (int64_t[]){width ? weft_desc_elems(rows) / width : 0, piece.size[1]});
    return WEFT_OK;
}

/* What the entries of the plan give the cache of a table. */
static wefti_cache_size cache_size(const wefti_emitter *b, int32_t v, bool states) {
    const weft_plan *plan = b->spec->plan;
    const char *name = b->root->values[v].name;
    const wefti_offload_rule *value = wefti_plan_offload_rule(plan, WEFT_OFFLOAD_PARAMETERS, name),
                             *state = wefti_plan_offload_rule(plan, WEFT_OFFLOAD_OPTIMIZER, name);
    wefti_cache_size all = {0};
    if (value) all = value->cache;
    if (!state || !states) return all;
    all.bytes += state->cache.bytes;
    all.percent += state->cache.percent;
    return all;
}

/* Slots for a table of so many rows: at most these. */
static int64_t cache_slots(wefti_cache_size size, int64_t rows, int64_t slot_bytes) {
    const double part = (double)rows * size.percent / 100;
    const int64_t slots =
        wefti_disk_cache_slots(size.bytes - size.bytes % WEFTI_ALIGNMENT, slot_bytes) +
        (part > 0 && part < 1 ? 1 : (int64_t)part);
    return slots < rows ? slots : rows;
}

weft_status wefti_rows_cache(wefti_emitter *b, int32_t v, const wefti_update_rule *rule,
                             int32_t *out) {
    wefti_tensor *table = &b->p->tensors[b->param_index[v]];
    const wefti_cache_size most = cache_size(b, v, rule->states);
    int64_t slot = 0;
    if (!most.bytes && !(most.percent > 0)) return WEFT_OK;
    int32_t last = -1; /* buffers that lie next to each other, so that rows can be records */
    for (int32_t t = 0; t < b->p->tensor_count; t++) {
        const wefti_tensor *x = &b->p->tensors[t];
        wefti_buffer *buffer = &b->buffers[b->tensor_buffer[t]];
        if ((x != table && x->param != b->param_index[v]) || buffer->space != WEFTI_SPACE_DISK)
            continue;
        slot += wefti_tensor_row_bytes(x);
        buffer->behind = last;
        if (last >= 0) b->buffers[last].before = b->tensor_buffer[t];
        last = b->tensor_buffer[t];
    }
    if (!slot) return WEFT_OK;
    table->cache_slots = cache_slots(most, table->desc.shape[0], slot);
    WEFT_REQUIRE(
        table->cache_slots > 0, WEFT_E_ARG,
        "memory.offload: a cache of %lld bytes for '%s' has room for no row; one takes %lld",
        (long long)most.bytes, table->name, (long long)wefti_disk_cache_bytes(1, slot));
    WEFT_TRY(wefti_buffer_persistent(b, wefti_disk_cache_bytes(table->cache_slots, slot),
                                     wefti_build_name(b, "cache of ", table->name), out));
    b->buffers[*out].space = WEFTI_SPACE_HOST;
    return WEFT_OK;
}

/* Part i of an update: the value, or a state; of the touched rows, or of the whole piece. */
static wefti_buffer_ref *part_of(wefti_update_operands *x, int i) {
    return i ? &x->state[i - 1] : &x->param;
}

/* An update of touched rows, while its steps are added. */
typedef struct rows_step {
    wefti_update_rule rule;
    weft_desc rows, table; /* of the value */
    const char *name;
} rows_step;

static weft_status rows_step_of(const wefti_emitter *b, int32_t v, rows_step *out) {
    const wefti_value_info *info = &b->root->values[v];
    wefti_region piece;
    bool away;
    *out = (rows_step){.name = info->name};
    WEFT_TRY(
        b->spec->optimizer->rule(b->spec->optimizer->context, info->name, &info->desc, &out->rule));
    WEFT_TRY(wefti_rows_away(b, v, &away, &out->rows));
    piece_of(b, v, &piece);
    out->table = out->rows;
    out->table.shape[0] = piece.size[0];
    return WEFT_OK;
}

static weft_dtype dtype_of(const rows_step *x, int i) {
    return i ? x->rule.state_descs[i - 1].dtype : x->rows.dtype;
}

static wefti_flight flight_of(const rows_step *x, int i, const wefti_update_operands *rows) {
    weft_desc row = x->rows;
    row.dtype = dtype_of(x, i);
    row.shape[0] = 1;
    return (wefti_flight){.owner = -1,
                          .name = x->name,
                          .named = {rows->named, 0},
                          .rows = x->rows.shape[0],
                          .row_bytes = weft_desc_bytes(&row)};
}

/* Brings the touched rows of part i of a piece, which lies at `from`. */
static weft_status bring_part(wefti_emitter *b, wefti_section s, const rows_step *x, int i,
                              wefti_buffer_ref from, wefti_update_operands *out) {
    wefti_buffer_ref *to = part_of(out, i);
    wefti_flight f = flight_of(x, i, out);
    int32_t move = -1;
    *to = (wefti_buffer_ref){-1, 0};
    WEFT_TRY(wefti_buffer_add(b, f.rows * f.row_bytes, wefti_build_name(b, "rows of ", x->name),
                              &to->buffer));
    if (!f.rows || !f.row_bytes) return WEFT_OK;
    if (wefti_tier_below(b, from.buffer)) {
        f.use = WEFTI_FLIGHT_NOW;
        f.source = from;
        f.destination = *to;
        return wefti_flight_rows(b, s, f, x->table.shape[0], &move);
    }
    weft_desc in[] = {x->table, weft_desc_of(WEFT_I32, 1, x->rows.shape)};
    in[0].dtype = dtype_of(x, i);
    return call_op(b, s, WEFTI_UPDATE, x->name, "gather", 2, in,
                   (wefti_attr[]){WEFTI_I(axis, 0), WEFTI_I(begin, 0), {0}},
                   (wefti_buffer_ref[]){from, {out->named, 0}, *to});
}

/* Takes them back. */
static weft_status return_part(wefti_emitter *b, wefti_section s, const rows_step *x, int i,
                               wefti_buffer_ref to, wefti_update_operands *rows) {
    const wefti_buffer_ref from = *part_of(rows, i);
    wefti_flight f = flight_of(x, i, rows);
    int32_t move = -1;
    if (!f.rows || !f.row_bytes) return WEFT_OK;
    if (wefti_tier_below(b, to.buffer)) {
        f.use = WEFTI_FLIGHT_STORE;
        f.source = from;
        f.destination = to;
        return wefti_flight_rows(b, s, f, x->table.shape[0], &move);
    }
    weft_desc in[] = {x->table, weft_desc_of(WEFT_I32, 1, x->rows.shape), x->rows};
    in[0].dtype = in[2].dtype = dtype_of(x, i);
    return call_op(b, s, WEFTI_UPDATE, x->name, "rows_write", 3, in, NULL,
                   (wefti_buffer_ref[]){to, {rows->named, 0}, from});
}

/* The gradient of each touched row, and its number. */
static weft_status fill_sums(wefti_emitter *b, int32_t v, weft_body *body) {
    int32_t rows, ids, sums;
    WEFT_TRY(wefti_body_input(body, b->dec->rows[v], WEFTI_VALUE_INPUT, NULL, &rows));
    WEFT_TRY(wefti_rows_sums(b, v, body, rows, &ids, &sums));
    WEFT_TRY(wefti_body_output(body, ids));
    return wefti_body_output(body, sums);
}

weft_status wefti_rows_bring(wefti_emitter *b, wefti_section s, int32_t v,
                             const wefti_update_operands *at, wefti_update_operands *out) {
    rows_step x;
    weft_body *body;
    wefti_update_operands whole = *at;
    *out = *at;
    out->gradient = (wefti_buffer_ref){-1, 0};
    WEFT_TRY(rows_step_of(b, v, &x));
    const weft_desc named = weft_desc_of(WEFT_I32, 1, x.rows.shape);
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&named),
                              wefti_build_name(b, "touched rows of ", x.name), &out->named));
    WEFT_TRY(wefti_buffer_add(b, weft_desc_bytes(&x.rows),
                              wefti_build_name(b, "gradient of rows of ", x.name),
                              &out->gradient.buffer));
    WEFT_TRY(wefti_body_create(b->g, "touched rows", &body));
    const weft_status status = fill_sums(b, v, body);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    WEFT_TRY(call_body(b, s, WEFTI_UPDATE, x.name, body,
                       (wefti_buffer_ref[]){at->gradient, {out->named, 0}, out->gradient}));
    for (int i = 0; i <= x.rule.states; i++)
        WEFT_TRY(bring_part(b, s, &x, i, *part_of(&whole, i), out));
    return wefti_flight_arrive(b, s);
}

weft_status wefti_rows_return(wefti_emitter *b, wefti_section s, int32_t v,
                              const wefti_update_operands *at, const wefti_update_operands *rows) {
    rows_step x;
    wefti_update_operands whole = *at, from = *rows;
    WEFT_TRY(rows_step_of(b, v, &x));
    for (int i = 0; i <= x.rule.states; i++)
        WEFT_TRY(return_part(b, s, &x, i, *part_of(&whole, i), &from));
    return WEFT_OK;
}

/* ---- look-ups in such tables ---- */

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
    WEFT_TRY(
        call_op(b, s, WEFTI_OTHER, info->name, "rows_find", 1, ids,
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
