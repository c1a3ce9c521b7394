/* Updates by rows of tables that lie in a tier below device memory, or whose states do. The piece
 * stays there. An update brings the touched rows and takes them back. A table on a disk may have a
 * cache of rows. */
#include "base/number.h"
#include "builder/build.h"
#include "builder/rows_parts.h"
#include "device/disk_cache.h"

/* ---- which tables, and their caches ---- */

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
    wefti_rows_piece(b, v, &piece);
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

/* Adds a node over all inputs, and its first result as the output. */
static weft_status fill_call(weft_body *body, const char *op, int count, const weft_desc *in,
                             const wefti_attr *attrs) {
    int32_t value[4], node;
    for (int i = 0; i < count; i++)
        WEFT_TRY(wefti_body_input(body, in[i], WEFTI_VALUE_INPUT, NULL, &value[i]));
    WEFT_TRY(wefti_body_add(body, wefti_op_find(body->graph->ops, op), NULL, count, value, attrs,
                            "", &node));
    return wefti_body_output(body, body->nodes[node].out[0]);
}

weft_status wefti_rows_call(wefti_emitter *b, wefti_section s, wefti_phase phase, const char *name,
                            const char *op, int count, const weft_desc *in, const wefti_attr *attrs,
                            const wefti_buffer_ref *args) {
    weft_body *body;
    WEFT_TRY(wefti_body_create(b->g, op, &body));
    const weft_status status = fill_call(body, op, count, in, attrs);
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    return call_body(b, s, phase, name, body, args);
}

/* ---- updates ---- */

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
    wefti_rows_piece(b, v, &piece);
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
    return wefti_rows_call(b, s, WEFTI_UPDATE, x->name, "gather", 2, in,
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
    return wefti_rows_call(b, s, WEFTI_UPDATE, x->name, "rows_write", 3, in, NULL,
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
