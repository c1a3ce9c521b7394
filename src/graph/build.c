/* The builder behind the public functions: handles, parameters, cells.
 *
 * At most one cell is open with a body of its own. A cell within it only extends the path that
 * names parameters and scopes. If the open cell uses a value of the root, the value becomes an
 * input of the cell, once. A parameter created in the cell becomes a root value with its full name
 * when the cell ends. Its handle then names the root value. */
#include "graph/builder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/text/text.h"

/* ---- handles ---- */

weft_status wefti_handle_new(wefti_builder *b, weft_body *body, int32_t value, weft_value *out) {
    WEFT_REQUIRE(b->handle_count < INT32_MAX, WEFT_E_ARG, "too many values in one graph");
    WEFT_TRY(WEFT_GROW(b->handles, b->handle_count, b->handle_cap));
    b->handles[b->handle_count] = (wefti_handle){body, value, NULL};
    *out = (weft_value){(int32_t)b->handle_count++};
    return WEFT_OK;
}

static weft_status add_capture(weft_graph *g, weft_desc desc, wefti_value_kind kind,
                               const char *name, wefti_capture capture, int32_t *out) {
    wefti_builder *b = g->builder;
    WEFT_TRY(WEFT_GROW(b->captures, b->capture_count, b->capture_cap));
    WEFT_TRY(wefti_body_input(b->cell, desc, kind, name, out));
    b->cell->values[*out].of_root = capture.outer >= 0;
    b->captures[b->capture_count++] = capture;
    return WEFT_OK;
}

/* The input of the open cell that stands for a root value. */
static weft_status capture_root(weft_graph *g, int32_t value, int32_t *out) {
    wefti_builder *b = g->builder;
    for (int64_t k = 0; k < b->capture_count; k++)
        if (b->captures[k].outer == value) {
            *out = b->cell->in[k];
            return WEFT_OK;
        }
    const wefti_value_info *v = &g->root->values[value];
    bool named = v->kind == WEFTI_VALUE_PARAM || v->kind == WEFTI_VALUE_STATE;
    wefti_value_kind kind = named ? v->kind : WEFTI_VALUE_INPUT;
    return add_capture(g, v->desc, kind, v->name, (wefti_capture){.outer = value}, out);
}

/* The index of a handle's value in the current body. An outer value becomes an input of the open
 * cell. */
static weft_status resolve(weft_graph *g, weft_value handle, int32_t *out) {
    wefti_builder *b = g->builder;
    WEFT_REQUIRE(handle.id >= 0, WEFT_E_ARG, "an empty value is used");
    WEFT_REQUIRE(handle.id < b->handle_count, WEFT_E_ARG, "value %d is not of this graph",
                 (int)handle.id);
    const wefti_handle *h = &b->handles[handle.id];
    WEFT_REQUIRE(
        h->body, WEFT_E_ARG,
        "a value of the cell '%s' is used after the cell has ended; return it from the cell",
        h->ended);
    const wefti_value_info *v = &h->body->values[h->value];
    WEFT_REQUIRE(
        v->kind != WEFTI_VALUE_NODE || v->node >= 0, WEFT_E_ARG,
        "a value is used that was removed or moved into a cell when the graph was compiled");
    if (h->body == b->current) {
        *out = h->value;
        return WEFT_OK;
    }
    WEFT_REQUIRE(h->body == g->root && b->current == b->cell, WEFT_E_BUG,
                 "value %d belongs to another body", (int)handle.id);
    return capture_root(g, h->value, out);
}

weft_desc weft_value_desc(const weft_graph *g, weft_value value) {
    const wefti_builder *b = g->builder;
    weft_desc none = {.rank = -1};
    if (value.id < 0 || value.id >= b->handle_count || !b->handles[value.id].body) return none;
    const wefti_handle *h = &b->handles[value.id];
    return h->body->values[h->value].desc;
}

/* ---- nodes ---- */

enum { MAX_ATTRS = 32 };

static weft_status merge_attrs(const weft_op_def *op, int count, const wefti_attr *given,
                               wefti_attr table[MAX_ATTRS]) {
    int known = wefti_attr_count(op);
    WEFT_REQUIRE(known < MAX_ATTRS, WEFT_E_BUG, "%s has too many attributes", op->name);
    for (int i = 0; i < known; i++) table[i] = op->attrs[i];
    table[known] = (wefti_attr){0};
    for (int k = 0; k < count; k++) {
        int at = -1;
        for (int i = 0; i < known; i++)
            if (table[i].id == given[k].id && table[i].kind == given[k].kind) at = i;
        WEFT_REQUIRE(at >= 0, WEFT_E_BUG, "%s has no attribute '%s' of this kind", op->name,
                     wefti_attr_name(given[k].id));
        table[at] = given[k];
    }
    return WEFT_OK;
}

static weft_status add(weft_graph *g, const weft_op_def *op, int in_count, const weft_value *in,
                       int attr_count, const wefti_attr *attrs, int out_count, weft_value *out) {
    wefti_builder *b = g->builder;
    wefti_attr table[MAX_ATTRS];
    int32_t values[WEFTI_MAX_IN];
    WEFT_TRY(merge_attrs(op, attr_count, attrs, table));
    while (in_count > op->min_inputs && in_count > 0 && in[in_count - 1].id < 0) in_count--;
    WEFT_REQUIRE(in_count <= WEFTI_MAX_IN, WEFT_E_ARG, "%s takes at most %d inputs, not %d",
                 op->name, op->max_inputs, in_count);
    for (int i = 0; i < in_count; i++) {
        if (in[i].id < 0 && i >= op->min_inputs) {
            values[i] = -1;
            continue;
        }
        weft_status st = resolve(g, in[i], &values[i]);
        if (st < 0) return wefti_prefix(st, "%s: input %d", op->name, i);
    }
    int32_t node;
    WEFT_TRY(wefti_body_add(b->current, op, NULL, in_count, values, table, b->scope, &node));
    const weft_node *n = &b->current->nodes[node];
    WEFT_REQUIRE(out_count <= n->outputs, WEFT_E_BUG, "%s has %d outputs, not %d", op->name,
                 n->outputs, out_count);
    for (int o = 0; o < out_count; o++)
        WEFT_TRY(wefti_handle_new(b, b->current, n->out[o], &out[o]));
    return WEFT_OK;
}

void wefti_graph_add(weft_graph *g, const weft_op_def *op, int in_count, const weft_value *in,
                     int attr_count, const wefti_attr *attrs, int out_count, weft_value *out) {
    if (wefti_graph_ok(g)) {
        weft_status st = add(g, op, in_count, in, attr_count, attrs, out_count, out);
        if (st >= 0) return;
        wefti_graph_fail(g, wefti_note(st, __func__, __FILE__, __LINE__));
    }
    for (int o = 0; o < out_count; o++) out[o] = WEFT_NO_VALUE;
}

weft_value wefti_graph_add1(weft_graph *g, const weft_op_def *op, int in_count,
                            const weft_value *in, int attr_count, const wefti_attr *attrs) {
    weft_value out = WEFT_NO_VALUE;
    wefti_graph_add(g, op, in_count, in, attr_count, attrs, 1, &out);
    return out;
}

/* ---- inputs, parameters, states ---- */

static weft_status claim_value(weft_graph *g, const char *full) {
    bool fresh;
    WEFT_TRY(wefti_builder_claim(g, 'v', full, &fresh));
    WEFT_REQUIRE(fresh, WEFT_E_ARG,
                 "the name '%s' is taken; to share a parameter use its value twice", full);
    return WEFT_OK;
}

static weft_status new_named(weft_graph *g, wefti_value_kind kind, const char *name, weft_desc desc,
                             weft_init init, weft_value *out) {
    static const char *const what[] = {"a node", "an input", "a parameter", "a state"};
    wefti_builder *b = g->builder;
    WEFT_TRY(wefti_name_check(what[kind], name));
    WEFT_TRY(wefti_desc_check(&desc));
    char *full = wefti_arena_format(g->arena, "%s%s%s", b->path, b->depth ? "." : "", name);
    WEFT_REQUIRE(full, WEFT_E_NOMEM, "no memory for a name");
    WEFT_TRY(claim_value(g, full));
    int32_t value;
    if (!b->cell) {
        WEFT_TRY(wefti_root_value(g, kind, full, desc, init, &value));
    } else {
        const char *local = full + strlen(b->cell->name) + 1;
        wefti_capture capture = {.outer = -1, .full = full, .init = init};
        WEFT_TRY(add_capture(g, desc, kind, local, capture, &value));
    }
    return wefti_handle_new(b, b->current, value, out);
}

static weft_value finish(weft_graph *g, weft_status st, weft_value value) {
    if (st >= 0) return value;
    wefti_graph_fail(g, st);
    return WEFT_NO_VALUE;
}

static weft_status new_input(weft_graph *g, const char *name, weft_desc desc, weft_value *out) {
    WEFT_REQUIRE(g->builder->depth == 0, WEFT_E_ARG,
                 "the input '%s' is inside a cell; inputs are of the whole graph", name);
    return new_named(g, WEFTI_VALUE_INPUT, name, desc, (weft_init){WEFT_INIT_ZEROS, 0}, out);
}

weft_value weft_input(weft_graph *g, const char *name, weft_desc desc) {
    weft_value out = WEFT_NO_VALUE;
    if (!wefti_graph_ok(g)) return out;
    return finish(g, new_input(g, name, desc, &out), out);
}

static weft_status check_init(const char *name, weft_init init) {
    WEFT_REQUIRE((unsigned)init.kind <= WEFT_INIT_UNIFORM, WEFT_E_ARG,
                 "'%s' has an unknown init kind %d", name, (int)init.kind);
    WEFT_REQUIRE(isfinite(init.scale), WEFT_E_ARG,
                 "the initial scale of '%s' is not a finite number", name);
    return WEFT_OK;
}

static weft_status new_param(weft_graph *g, const char *name, weft_desc desc, weft_init init,
                             weft_value *out) {
    WEFT_REQUIRE(desc.dtype == WEFT_F32 || desc.dtype == WEFT_F64 || desc.dtype == WEFT_BF16,
                 WEFT_E_ARG, "the parameter '%s' is %s; parameters are f32, f64 or bf16", name,
                 weft_dtype_text(desc.dtype));
    WEFT_TRY(check_init(name, init));
    return new_named(g, WEFTI_VALUE_PARAM, name, desc, init, out);
}

weft_value weft_param(weft_graph *g, const char *name, weft_desc desc, weft_init init) {
    weft_value out = WEFT_NO_VALUE;
    if (!wefti_graph_ok(g)) return out;
    weft_status st = new_param(g, name, desc, init, &out);
    return finish(g, st, out);
}

static weft_status new_state(weft_graph *g, const char *name, weft_desc desc, weft_init init,
                             weft_value *out) {
    WEFT_TRY(check_init(name, init));
    return new_named(g, WEFTI_VALUE_STATE, name, desc, init, out);
}

weft_value weft_state(weft_graph *g, const char *name, weft_desc desc, weft_init init) {
    weft_value out = WEFT_NO_VALUE;
    if (!wefti_graph_ok(g)) return out;
    weft_status st = new_state(g, name, desc, init, &out);
    return finish(g, st, out);
}

static weft_status update_state(weft_graph *g, weft_value state, weft_value next) {
    wefti_builder *b = g->builder;
    int32_t s, n;
    WEFT_TRY(resolve(g, state, &s));
    WEFT_TRY(resolve(g, next, &n));
    if (!b->cell) return wefti_root_assign(g, s, n);
    const wefti_value_info *sv = &b->cell->values[s], *nv = &b->cell->values[n];
    WEFT_REQUIRE(sv->kind == WEFTI_VALUE_STATE, WEFT_E_ARG, "only a state can be updated");
    WEFT_REQUIRE(wefti_desc_equal(&sv->desc, &nv->desc), WEFT_E_SHAPE,
                 "the state '%s' is %s and cannot become %s", sv->name,
                 wefti_desc_text(&sv->desc).text, wefti_desc_text(&nv->desc).text);
    WEFT_TRY(WEFT_GROW(b->assigns, b->assign_count, b->assign_cap));
    b->assigns[b->assign_count++] = (wefti_assign){s, n};
    return WEFT_OK;
}

void weft_state_update(weft_graph *g, weft_value state, weft_value next) {
    if (!wefti_graph_ok(g)) return;
    weft_status st = update_state(g, state, next);
    if (st < 0) wefti_graph_fail(g, st);
}

/* ---- results ---- */

static weft_status root_handle(weft_graph *g, const char *what, weft_value value, int32_t *out) {
    WEFT_REQUIRE(g->builder->depth == 0, WEFT_E_ARG, "%s is inside a cell; name it outside", what);
    return resolve(g, value, out);
}

static weft_status add_output(weft_graph *g, const char *name, weft_value value) {
    int32_t v;
    WEFT_TRY(root_handle(g, "an output", value, &v));
    return wefti_root_output(g, name, v);
}

void weft_output(weft_graph *g, const char *name, weft_value value) {
    if (!wefti_graph_ok(g)) return;
    weft_status st = add_output(g, name, value);
    if (st < 0) wefti_graph_fail(g, st);
}

static weft_status set_loss(weft_graph *g, weft_value value) {
    int32_t v;
    WEFT_TRY(root_handle(g, "the loss", value, &v));
    WEFT_TRY(wefti_root_loss(g, v));
    return wefti_root_output(g, "loss", v);
}

void weft_loss(weft_graph *g, weft_value value) {
    if (!wefti_graph_ok(g)) return;
    weft_status st = set_loss(g, value);
    if (st < 0) wefti_graph_fail(g, st);
}

/* ---- cells ---- */

static weft_status begin_cell(weft_graph *g, const char *name) {
    wefti_builder *b = g->builder;
    WEFT_TRY(wefti_name_check("a cell", name));
    size_t used = strlen(b->path), length = strlen(name);
    WEFT_REQUIRE(b->depth < WEFTI_MAX_SCOPES && used + length + 2 < WEFTI_MAX_PATH, WEFT_E_ARG,
                 "the cell '%s' is nested too deep", name);
    bool outermost = b->depth == 0;
    if (outermost) {
        bool fresh;
        WEFT_TRY(wefti_builder_claim(g, 'c', name, &fresh));
        WEFT_REQUIRE(fresh, WEFT_E_ARG, "there is a cell '%s' already; number them, as in h.%%d",
                     name);
        WEFT_TRY(wefti_body_create(g, name, &b->cell));
        b->current = b->cell;
        b->cell_handles = b->handle_count;
        b->capture_count = b->assign_count = 0;
    }
    b->marks[b->depth++] = (int)used;
    (void)snprintf(b->path + used, sizeof b->path - used, "%s%s", used ? "." : "", name);
    if (outermost) return WEFT_OK;
    b->scope = wefti_arena_strdup(g->arena, b->path + strlen(b->cell->name) + 1);
    WEFT_REQUIRE(b->scope, WEFT_E_NOMEM, "no memory for the name of a cell");
    return WEFT_OK;
}

void weft_cell_begin(weft_graph *g, const char *format, ...) {
    if (!wefti_graph_ok(g)) return;
    char name[WEFTI_MAX_NAME + 1]; /* one more than allowed, so that a truncated name is refused */
    va_list args;
    va_start(args, format);
    int n = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    weft_status st =
        n < 0 ? WEFT_RAISE(WEFT_E_ARG, "a cell name cannot be formatted") : begin_cell(g, name);
    if (st < 0) wefti_graph_fail(g, st);
}

/* The value that a handle of a cell's result names outside the cell: output `slot` of the call. If
 * the cell only passes an outer value through: that root value. */
typedef struct build_result {
    int32_t slot, root;
} build_result;

static weft_status find_result(weft_body *cell, const int32_t *bound, int32_t value,
                               build_result *out) {
    const wefti_value_info *v = &cell->values[value];
    if (v->kind != WEFTI_VALUE_NODE) {
        *out = (build_result){-1, bound[v->slot]};
        return WEFT_OK;
    }
    for (int32_t o = 0; o < cell->out_count; o++)
        if (cell->out[o] == value) {
            *out = (build_result){o, -1};
            return WEFT_OK;
        }
    *out = (build_result){(int32_t)cell->out_count, -1};
    return wefti_body_output(cell, value);
}

/* Makes root values of the parameters and states created in the cell. bound[k]: root value of cell
 * input k. */
static weft_status hoist(weft_graph *g, int32_t *bound) {
    wefti_builder *b = g->builder;
    for (int64_t k = 0; k < b->capture_count; k++) {
        const wefti_capture *c = &b->captures[k];
        bound[k] = c->outer;
        if (c->outer >= 0) continue;
        const wefti_value_info *v = &b->cell->values[b->cell->in[k]];
        WEFT_TRY(wefti_root_value(g, v->kind, c->full, v->desc, c->init, &bound[k]));
    }
    return WEFT_OK;
}

/* Handles of parameters and states made in the cell now name root values; the other handles end. */
static void retire_handles(weft_graph *g, const int32_t *bound, const char *name) {
    wefti_builder *b = g->builder;
    for (int64_t i = b->cell_handles; i < b->handle_count; i++) {
        wefti_handle *h = &b->handles[i];
        const wefti_value_info *v = &b->cell->values[h->value];
        if (v->kind == WEFTI_VALUE_NODE)
            *h = (wefti_handle){NULL, -1, name};
        else
            *h = (wefti_handle){g->root, bound[v->slot], NULL};
    }
}

static weft_status call_cell(weft_graph *g, const int32_t *bound, const char *path,
                             int64_t *out_first) {
    wefti_builder *b = g->builder;
    weft_body *cell = b->cell;
    b->cell = NULL; /* the graph takes it over */
    b->current = g->root;
    b->scope = "";
    if (!cell->out_count) { /* the cell computes nothing: no call is needed */
        wefti_body_destroy(cell);
        return WEFT_OK;
    }
    int inputs = (int)cell->in_count;
    WEFT_TRY(wefti_graph_intern(g, cell, &cell));
#ifdef WEFT_DEBUG_CHECKS
    WEFT_TRY(wefti_body_check(cell));
#endif
    int32_t node;
    WEFT_TRY(wefti_body_add(g->root, &wefti_op_call, cell, inputs, bound, NULL, path, &node));
    *out_first = node;
    return WEFT_OK;
}

static weft_status outside(weft_graph *g, int64_t call, build_result r, int32_t *out) {
    *out = r.slot < 0 ? r.root : g->root->nodes[call].out[r.slot];
    return WEFT_OK;
}

static weft_status close_cell(weft_graph *g, int32_t *bound, int count, const int32_t *values,
                              build_result *results, weft_value *out) {
    wefti_builder *b = g->builder;
    int64_t call = -1, assigns = b->assign_count;
    WEFT_TRY(hoist(g, bound));
    for (int i = 0; i < count; i++) WEFT_TRY(find_result(b->cell, bound, values[i], &results[i]));
    for (int64_t a = 0; a < assigns; a++) {
        b->assigns[a].state = bound[b->cell->values[b->assigns[a].state].slot];
        WEFT_TRY(find_result(b->cell, bound, b->assigns[a].next, &results[count + a]));
    }
    const char *path = b->cell->name;
    retire_handles(g, bound, path);
    WEFT_TRY(call_cell(g, bound, path, &call));
    for (int64_t i = 0; i < count + assigns; i++) {
        int32_t value;
        WEFT_TRY(outside(g, call, results[i], &value));
        if (i < count)
            WEFT_TRY(wefti_handle_new(b, g->root, value, &out[i]));
        else
            WEFT_TRY(wefti_root_assign(g, b->assigns[i - count].state, value));
    }
    return WEFT_OK;
}

static weft_status end_cell(weft_graph *g, int count, weft_value *values) {
    wefti_builder *b = g->builder;
    WEFT_REQUIRE(b->depth > 0, WEFT_E_ARG, "weft_cell_end without a weft_cell_begin");
    WEFT_REQUIRE(count >= 0 && count < INT16_MAX, WEFT_E_ARG, "a cell cannot have %d results",
                 count);
    int32_t *inside, *bound = NULL;
    build_result *results = NULL;
    WEFT_NEW_ARRAY(inside, int32_t, count);
    weft_status st = WEFT_OK;
    for (int i = 0; i < count && st >= 0; i++) {
        st = resolve(g, values[i], &inside[i]);
        if (st < 0) (void)wefti_prefix(st, "result %d", i);
    }
    if (st >= 0 && b->depth == 1) {
        bound = wefti_calloc((size_t)b->capture_count, sizeof *bound);
        results = wefti_calloc((size_t)(count + b->assign_count), sizeof *results);
        st = bound && results ? close_cell(g, bound, count, inside, results, values)
                              : WEFT_RAISE(WEFT_E_NOMEM, "no memory to end a cell");
    }
    wefti_free(inside);
    wefti_free(bound);
    wefti_free(results);
    if (st < 0) return wefti_note(st, __func__, __FILE__, __LINE__);
    b->path[b->marks[--b->depth]] = '\0';
    if (b->depth == 0) return WEFT_OK;
    b->scope = "";
    if (b->depth == 1) return WEFT_OK;
    b->scope = wefti_arena_strdup(g->arena, b->path + strlen(b->cell->name) + 1);
    WEFT_REQUIRE(b->scope, WEFT_E_NOMEM, "no memory for the name of a cell");
    return WEFT_OK;
}

void weft_cell_end_many(weft_graph *g, int count, weft_value *values) {
    if (wefti_graph_ok(g)) {
        weft_status st = end_cell(g, count, values);
        if (st >= 0) return;
        wefti_graph_fail(g, st);
    }
    for (int i = 0; i < count; i++) values[i] = WEFT_NO_VALUE;
}

weft_value weft_cell_end(weft_graph *g, weft_value value) {
    weft_cell_end_many(g, 1, &value);
    return value;
}
