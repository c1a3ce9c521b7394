/* Prints the text form: see text.h. Values are numbered in the order of the text. */
#include "graph/text/text.h"

#include <string.h>

static void print_desc(wefti_text *t, const weft_desc *d) {
    wefti_text_add(t, "%s[", weft_dtype_text(d->dtype));
    for (int i = 0; i < d->rank; i++)
        wefti_text_add(t, "%s%lld", i ? "," : "", (long long)d->shape[i]);
    wefti_text_add(t, "]");
}

static const char *kind_word(wefti_value_kind kind) {
    switch (kind) {
    case WEFTI_VALUE_PARAM:
        return "param";
    case WEFTI_VALUE_STATE:
        return "state";
    default:
        return "input";
    }
}

static void print_operands(wefti_text *t, const weft_node *n, const int32_t *number) {
    wefti_text_add(t, "(");
    for (int k = 0; k < n->inputs; k++) {
        if (k) wefti_text_add(t, ", ");
        if (n->in[k] < 0)
            wefti_text_add(t, "_");
        else
            wefti_text_add(t, "%%%d", (int)number[n->in[k]]);
    }
    wefti_text_add(t, ")");
}

static void print_node(wefti_text *t, const weft_node *n, int32_t *number, int32_t *next) {
    wefti_text_add(t, "  ");
    for (int o = 0; o < n->outputs; o++) {
        number[n->out[o]] = (*next)++;
        wefti_text_add(t, "%s%%%d: ", o ? ", " : "", (int)number[n->out[o]]);
        print_desc(t, wefti_out(n, o));
    }
    wefti_text_add(t, " = %s", n->op->name);
    if (n->callee) wefti_text_add(t, " %s", n->callee->name);
    print_operands(t, n, number);
    wefti_attrs_print(n->op, n->attrs, t);
    if (n->op->flags & WEFTI_OP_RANDOM) wefti_text_add(t, " #%u", n->stream);
    if (n->scope[0]) wefti_text_add(t, " @%s", n->scope);
    wefti_text_add(t, "\n");
}

static void print_cell(const weft_body *b, const char *word, wefti_text *t, int32_t *number) {
    int32_t next = 0;
    wefti_text_add(t, "%s %s(", word, b->name);
    for (int64_t i = 0; i < b->in_count; i++) {
        const wefti_value_info *v = &b->values[b->in[i]];
        number[b->in[i]] = next++;
        wefti_text_add(t, "%s%%%d %s%s%s: ", i ? ", " : "", (int)number[b->in[i]],
                       kind_word(v->kind), v->name ? " " : "", v->name ? v->name : "");
        print_desc(t, &v->desc);
    }
    wefti_text_add(t, ") {\n");
    for (int64_t i = 0; i < b->node_count; i++) print_node(t, &b->nodes[i], number, &next);
    wefti_text_add(t, "  return");
    for (int64_t o = 0; o < b->out_count; o++)
        wefti_text_add(t, "%s %%%d", o ? "," : "", (int)number[b->out[o]]);
    wefti_text_add(t, "\n}\n");
}

static void print_init(wefti_text *t, weft_init init) {
    static const char *const words[] = {"zeros", "constant", "normal", "uniform"};
    wefti_text_add(t, " %s", words[init.kind]);
    if (init.kind == WEFT_INIT_ZEROS) return;
    wefti_text_add(t, "(");
    wefti_float_print(init.scale, t);
    wefti_text_add(t, ")");
}

static void print_root(const weft_graph *g, wefti_text *t, int32_t *number) {
    const weft_body *root = g->root;
    int32_t next = 0;
    wefti_text_add(t, "graph {\n");
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        number[root->in[i]] = next++;
        wefti_text_add(t, "  %%%d = %s %s: ", (int)number[root->in[i]], kind_word(v->kind),
                       v->name);
        print_desc(t, &v->desc);
        if (v->kind != WEFTI_VALUE_INPUT) print_init(t, v->init);
        if (v->frozen) wefti_text_add(t, " frozen");
        wefti_text_add(t, "\n");
    }
    for (int64_t i = 0; i < root->node_count; i++) print_node(t, &root->nodes[i], number, &next);
    for (int64_t i = 0; i < g->output_count; i++)
        wefti_text_add(t, "  output %s = %%%d\n", g->outputs[i].name,
                       (int)number[g->outputs[i].value]);
    if (g->loss >= 0) wefti_text_add(t, "  loss %%%d\n", (int)number[g->loss]);
    for (int64_t i = 0; i < g->assign_count; i++)
        wefti_text_add(t, "  update %%%d = %%%d\n", (int)number[g->assigns[i].state],
                       (int)number[g->assigns[i].next]);
    wefti_text_add(t, "}\n");
}

weft_status weft_graph_print(const weft_graph *g, char **out) {
    WEFT_REQUIRE(g->status >= 0, g->status, "%s", weft_graph_message(g));
    int64_t most = g->root->value_count;
    for (int64_t i = 0; i < g->cell_count; i++)
        if (g->cells[i]->value_count > most) most = g->cells[i]->value_count;
    for (int64_t i = 0; i < g->fused_count; i++)
        if (g->fused[i]->value_count > most) most = g->fused[i]->value_count;
    int32_t *number;
    WEFT_NEW_ARRAY(number, int32_t, most);
    wefti_text t = {0};
    wefti_text_add(&t, "weft-graph 1\n");
    for (int64_t i = 0; i < g->fused_count; i++) print_cell(g->fused[i], "fused", &t, number);
    for (int64_t i = 0; i < g->cell_count; i++) print_cell(g->cells[i], "cell", &t, number);
    print_root(g, &t, number);
    wefti_free(number);
    char *text = wefti_text_take(&t);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for the text of the graph");
    *out = text;
    return WEFT_OK;
}
