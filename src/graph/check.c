/* The checker of the invariants that hold for bodies and graphs after every pass. A violation is
 * WEFT_E_BUG, except a cell that the user has not ended. */
#include "graph/builder.h"

#include <stdlib.h>
#include <string.h>

#include "graph/text/text.h"

#define HOLDS(cond, ...) WEFT_REQUIRE(cond, WEFT_E_BUG, __VA_ARGS__)

/* Checks that the value exists and that a node before number `before` makes it. */
static weft_status check_operand(const weft_body *b, int32_t value, int64_t before,
                                 const char *user) {
    HOLDS(value >= 0 && value < b->value_count, "%s reads value %d of %lld", user, (int)value,
          (long long)b->value_count);
    const wefti_value_info *v = &b->values[value];
    if (v->kind != WEFTI_VALUE_NODE) {
        HOLDS(v->slot >= 0 && v->slot < b->in_count && b->in[v->slot] == value,
              "%s reads value %d, which is input %d but not listed", user, (int)value,
              (int)v->slot);
        return WEFT_OK;
    }
    HOLDS(v->node >= 0 && v->node < b->node_count, "%s reads the removed value %d", user,
          (int)value);
    HOLDS(v->node < before, "%s reads value %d, which node %d makes later", user, (int)value,
          (int)v->node);
    return WEFT_OK;
}

static weft_status check_attrs(const weft_node *n) {
    HOLDS(n->attrs, "%s has no attributes", n->op->name);
    int count = wefti_attr_count(n->op);
    for (int i = 0; i < count; i++) {
        const wefti_attr *have = &n->attrs[i], *want = &n->op->attrs[i];
        HOLDS(have->id == want->id && have->kind == want->kind, "%s: attribute %d is not '%s'",
              n->op->name, i, wefti_attr_name(want->id));
    }
    HOLDS(!n->attrs[count].id, "%s has more attributes than it declares", n->op->name);
    return WEFT_OK;
}

static bool known(weft_body *const *list, int64_t count, const weft_body *b) {
    for (int64_t i = 0; i < count; i++)
        if (list[i] == b) return true;
    return false;
}

static weft_status check_callee(const weft_body *b, const weft_node *n) {
    const weft_graph *g = b->graph;
    if (n->op == &wefti_op_call) {
        HOLDS(n->callee && known(g->cells, g->cell_count, n->callee), "a call of an unknown cell");
        HOLDS(b == g->root, "%s calls %s, but only the root may call", b->name, n->callee->name);
    } else if (n->op == &wefti_op_fused) {
        bool found = false;
        for (const weft_graph *of = g; of && n->callee && !found; of = of->of)
            found = known(of->fused, of->fused_count, n->callee);
        HOLDS(found, "an unknown fused body");
    } else {
        HOLDS(!n->callee, "%s has a body to run", n->op->name);
    }
    return WEFT_OK;
}

static weft_status check_inference(const weft_node *n) {
    weft_desc few[WEFTI_MAX_OUT], *descs = few;
    if (n->callee) WEFT_NEW_ARRAY(descs, weft_desc, n->callee->out_count);
    int count = 1;
    weft_status st = n->op->infer(n, descs, &count);
    if (st < 0 && st != WEFT_E_NOMEM)
        st = wefti_prefix(WEFT_E_BUG, "%s no longer fits its operands", n->op->name);
    if (st >= 0 && count != n->outputs)
        st = WEFT_RAISE(WEFT_E_BUG, "%s has %d outputs, not %d", n->op->name, n->outputs, count);
    for (int o = 0; o < count && st >= 0; o++)
        if (!wefti_desc_equal(&descs[o], wefti_out(n, o)))
            st = WEFT_RAISE(WEFT_E_BUG, "output %d of %s is %s, not %s", o, n->op->name,
                            wefti_desc_text(wefti_out(n, o)).text, wefti_desc_text(&descs[o]).text);
    if (descs != few) wefti_free(descs);
    return st;
}

static weft_status check_node(const weft_body *b, int64_t index) {
    const weft_node *n = &b->nodes[index];
    HOLDS(n->op && n->body == b, "node %lld belongs to another body", (long long)index);
    HOLDS(n->inputs >= 0 && n->outputs >= 0 && n->scope, "%s is incomplete", n->op->name);
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k] != -1) WEFT_TRY(check_operand(b, n->in[k], index, n->op->name));
    for (int o = 0; o < n->outputs; o++) {
        HOLDS(n->out[o] >= 0 && n->out[o] < b->value_count, "%s makes value %d of %lld",
              n->op->name, (int)n->out[o], (long long)b->value_count);
        const wefti_value_info *v = &b->values[n->out[o]];
        HOLDS(v->kind == WEFTI_VALUE_NODE && v->node == index && v->slot == o,
              "output %d of %s (node %lld) says it is output %d of node %d", o, n->op->name,
              (long long)index, (int)v->slot, (int)v->node);
    }
    WEFT_TRY(check_attrs(n));
    WEFT_TRY(check_callee(b, n));
    return check_inference(n);
}

static weft_status check_body(const weft_body *b) {
    HOLDS(b->graph && b->name, "a body without graph or name");
    for (int64_t v = 0; v < b->value_count; v++) {
        weft_status st = wefti_desc_check(&b->values[v].desc);
        if (st < 0) return wefti_prefix(WEFT_E_BUG, "value %lld", (long long)v);
    }
    for (int64_t i = 0; i < b->in_count; i++) {
        HOLDS(b->in[i] >= 0 && b->in[i] < b->value_count, "input %lld is value %d", (long long)i,
              (int)b->in[i]);
        const wefti_value_info *v = &b->values[b->in[i]];
        HOLDS(v->kind != WEFTI_VALUE_NODE && v->slot == i, "input %lld says it is another",
              (long long)i);
    }
    for (int64_t i = 0; i < b->node_count; i++) WEFT_TRY(check_node(b, i));
    for (int64_t o = 0; o < b->out_count; o++)
        WEFT_TRY(check_operand(b, b->out[o], b->node_count, "the result"));
    return WEFT_OK;
}

weft_status wefti_body_check(const weft_body *b) {
    weft_status st = check_body(b);
    if (st < 0 && b->name && b->name[0]) return wefti_prefix(st, "%s", b->name);
    return st;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static weft_status check_unique(const char **names, int64_t count, const char *what) {
    qsort(names, (size_t)count, sizeof *names, by_name);
    for (int64_t i = 1; i < count; i++)
        HOLDS(strcmp(names[i - 1], names[i]) != 0, "two %s are named '%s'", what, names[i]);
    return WEFT_OK;
}

static weft_status check_names(const weft_graph *g, const char **names) {
    const weft_body *root = g->root;
    int64_t count = 0;
    for (int64_t i = 0; i < root->in_count; i++) {
        const char *name = root->values[root->in[i]].name;
        HOLDS(name && name[0], "input %lld of the graph has no name", (long long)i);
        names[count++] = name;
    }
    WEFT_TRY(check_unique(names, count, "inputs, parameters or states"));
    count = 0;
    for (int64_t i = 0; i < root->node_count; i++)
        if (root->nodes[i].op == &wefti_op_call) {
            HOLDS(root->nodes[i].scope[0], "a call of %s has no path", root->nodes[i].callee->name);
            names[count++] = root->nodes[i].scope;
        }
    WEFT_TRY(check_unique(names, count, "cells"));
    for (int64_t i = 0; i < g->output_count; i++) names[i] = g->outputs[i].name;
    WEFT_TRY(check_unique(names, g->output_count, "outputs"));
    for (int64_t i = 0; i < g->fused_count; i++) names[i] = g->fused[i]->name;
    WEFT_TRY(check_unique(names, g->fused_count, "fused bodies"));
    for (int64_t i = 0; i < g->cell_count; i++) names[i] = g->cells[i]->name;
    return check_unique(names, g->cell_count, "cell bodies");
}

/* Checks a cell: nodes make all its results, the results are distinct, and the hash is up to
 * date. */
static weft_status check_cell(const weft_body *cell) {
    for (int64_t o = 0; o < cell->out_count; o++) {
        HOLDS(cell->values[cell->out[o]].kind == WEFTI_VALUE_NODE, "%s: result %lld is an input",
              cell->name, (long long)o);
        for (int64_t k = 0; k < o; k++)
            HOLDS(cell->out[k] != cell->out[o], "%s: results %lld and %lld are one value",
                  cell->name, (long long)k, (long long)o);
    }
    HOLDS(cell->hash == wefti_body_hash(cell), "%s: the hash is out of date", cell->name);
    return WEFT_OK;
}

static weft_status check_results(const weft_graph *g) {
    const weft_body *root = g->root;
    HOLDS(root->out_count == g->output_count, "%lld outputs and %lld names",
          (long long)root->out_count, (long long)g->output_count);
    for (int64_t i = 0; i < g->output_count; i++)
        HOLDS(g->outputs[i].value == root->out[i], "the output '%s' names another value",
              g->outputs[i].name);
    for (int64_t a = 0; a < g->assign_count; a++) {
        const wefti_assign *s = &g->assigns[a];
        WEFT_TRY(check_operand(root, s->state, root->node_count, "an update"));
        WEFT_TRY(check_operand(root, s->next, root->node_count, "an update"));
        HOLDS(root->values[s->state].kind == WEFTI_VALUE_STATE, "an update of no state");
        HOLDS(wefti_desc_equal(&root->values[s->state].desc, &root->values[s->next].desc),
              "the state '%s' changes its shape", root->values[s->state].name);
        for (int64_t k = 0; k < a; k++)
            HOLDS(g->assigns[k].state != s->state, "the state '%s' is updated twice",
                  root->values[s->state].name);
    }
    if (g->loss < 0) return WEFT_OK;
    WEFT_TRY(check_operand(root, g->loss, root->node_count, "the loss"));
    const weft_desc *d = &root->values[g->loss].desc;
    HOLDS(d->rank == 0 && wefti_dtype_is_float(d->dtype), "the loss is %s",
          wefti_desc_text(d).text);
    return WEFT_OK;
}

weft_status wefti_graph_check(const weft_graph *g) {
    WEFT_REQUIRE(wefti_graph_ok(g), g->status, "%s", weft_graph_message(g));
    WEFT_REQUIRE(g->builder->depth == 0, WEFT_E_ARG, "the cell '%s' was begun and not ended",
                 g->builder->path);
    for (int64_t i = 0; i < g->fused_count; i++) {
        WEFT_TRY(wefti_body_check(g->fused[i]));
        WEFT_TRY(check_cell(g->fused[i]));
    }
    for (int64_t i = 0; i < g->cell_count; i++) {
        WEFT_TRY(wefti_body_check(g->cells[i]));
        WEFT_TRY(check_cell(g->cells[i]));
    }
    WEFT_TRY(wefti_body_check(g->root));
    WEFT_TRY(check_results(g));
    int64_t most =
        g->root->in_count + g->root->node_count + g->output_count + g->cell_count + g->fused_count;
    const char **names;
    WEFT_NEW_ARRAY(names, const char *, most);
    weft_status st = check_names(g, names);
    wefti_free(names);
    return st;
}
