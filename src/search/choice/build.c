/* Builds the graph of choices of a model. Each unique cell counts once, weighted by its calls, so
 * that the size of the graph does not grow with the number of layers. */
#include <stdio.h>
#include <string.h>

#include "base/map/map.h"
#include "partition/partition.h"
#include "search/choice/choice.h"

/* The node that makes a root value, or the parameter behind it. */
typedef struct source {
    int32_t node; /* -1: none: a parameter that only one op reads, or a state */
    int16_t output;
} source;

typedef struct graph_maker {
    wefti_choice_graph *g;
    source *sources;    /* per root value */
    wefti_map edges;    /* keys of edges -> edge number */
    uint8_t *reads;     /* per root value: 0 no reader, 1 one reader, 2 several */
    int64_t *reader_of; /* per root value: the first reader, node * 64 + input */
    wefti_map classes;  /* class_key -> number of the first node */
} graph_maker;

/* Calls of one cell share nodes if the plan's strategies for them are equal. */
typedef struct class_key {
    const weft_body *body;
    uint64_t strategies;
} class_key;

int wefti_prime_factors(int64_t n, int32_t out[31]) {
    int count = 0;
    for (int64_t p = 2; n > 1 && count < 31; p++) {
        if (p * p > n) p = n;
        for (; n % p == 0; n /= p) out[count++] = (int32_t)p;
    }
    for (int i = 0; i < count / 2; i++) {
        int32_t swapped = out[i];
        out[i] = out[count - 1 - i];
        out[count - 1 - i] = swapped;
    }
    return count;
}

/* The smallest factors are multiplied together; the order stays: largest first. */
int wefti_search_mesh(int64_t devices, int32_t out[31]) {
    int count = wefti_prime_factors(devices, out);
    for (; count > WEFTI_MAX_AXES; count--) {
        int32_t product = out[count - 1] * out[count - 2];
        int at = count - 2;
        for (; at > 0 && out[at - 1] < product; at--) out[at] = out[at - 1];
        out[at] = product;
    }
    return count;
}

static void make_mesh(wefti_choice_graph *g) {
    const weft_plan *plan = g->plan;
    int32_t sizes[31];
    g->mesh = wefti_plan_mesh(plan, 0);
    g->mesh_given = plan->mesh_given;
    if (plan->mesh_given) return;
    const wefti_link link = g->mesh.axis[0].link;
    const int count = wefti_search_mesh(wefti_mesh_size(&g->mesh), sizes);
    g->mesh.axes = count ? count : 1;
    for (int a = 0; a < g->mesh.axes; a++) {
        g->mesh.axis[a] = (wefti_axis){.size = count ? sizes[a] : 1, .link = link};
        (void)snprintf(g->mesh.axis[a].name, sizeof g->mesh.axis[a].name, "a%d", a);
    }
}

/* ---- nodes ---- */

static weft_status add_node(wefti_choice_graph *g, const char *label, wefti_choice_node **out) {
    WEFT_TRY(WEFT_GROW(g->nodes, g->node_count, g->node_cap));
    wefti_choice_node *n = &g->nodes[g->node_count];
    *n = (wefti_choice_node){
        .label = wefti_arena_strdup(g->arena, label), .tensor = -1, .reader = -1, .feeder = -1};
    WEFT_REQUIRE(n->label, WEFT_E_NOMEM, "no memory for a graph of choices");
    g->node_count++;
    *out = n;
    return WEFT_OK;
}

static const wefti_strategy *strategy_of(const wefti_choice_graph *g, const weft_body *body,
                                         const char *call, const weft_node *op) {
    char label[512];
    if (!g->plan->strategy_count) return NULL;
    wefti_node_label(body, call, op, label, sizeof label);
    return wefti_plan_strategy(g->plan, label, op->op->name, false);
}

static uint64_t strategies_of(const wefti_choice_graph *g, const weft_node *call) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < call->callee->node_count && g->plan->strategy_count; i++) {
        const wefti_strategy *s =
            strategy_of(g, call->callee, call->scope, &call->callee->nodes[i]);
        hash = hash * 1000003 + (s ? (uint64_t)(s - g->plan->strategies) + 1 : 0);
    }
    return hash;
}

static weft_status add_body(wefti_choice_graph *g, const weft_body *body, const char *call) {
    for (int64_t i = 0; i < body->node_count; i++) {
        const weft_node *op = &body->nodes[i];
        char label[512];
        wefti_choice_node *n;
        wefti_node_label(body, call, op, label, sizeof label);
        WEFT_TRY(add_node(g, label, &n));
        n->body = body;
        n->op = op;
        wefti_rule_begin(&n->rule);
        if (op->op->split) WEFT_TRY(op->op->split(op, &n->rule));
        n->configured = strategy_of(g, body, call, op) != NULL;
    }
    return WEFT_OK;
}

static weft_status add_tensor(graph_maker *b, int32_t value, int64_t weight) {
    wefti_choice_graph *g = b->g;
    const wefti_value_info *info = &g->graph->root->values[value];
    wefti_choice_node *n;
    WEFT_TRY(add_node(g, info->name ? info->name : "", &n));
    n->tensor = value;
    n->weight = weight;
    wefti_rule_begin(&n->rule);
    for (int d = 0; d < info->desc.rank; d++) {
        char name[12];
        (void)snprintf(name, sizeof name, "d%d", d);
        if (info->desc.shape[d] > 1)
            n->rule.in[0][d] = n->rule.out[0][d] =
                (int8_t)wefti_rule_factor(&n->rule, name, info->desc.shape[d], WEFTI_FACTOR_FREE);
    }
    n->configured = info->name && wefti_plan_tensor(g->plan, info->name);
    b->sources[value] = (source){g->node_count - 1, 0};
    return WEFT_OK;
}

/* ---- edges ---- */

typedef struct edge_key {
    int32_t from, to;
    int16_t output, input;
} edge_key;

static weft_status add_edge(graph_maker *b, source from, int32_t to, int input, bool gradient) {
    wefti_choice_graph *g = b->g;
    edge_key *key = wefti_arena_alloc(g->arena, sizeof *key);
    int64_t number;
    WEFT_REQUIRE(key, WEFT_E_NOMEM, "no memory for a graph of choices");
    *key = (edge_key){from.node, to, from.output, (int16_t)input};
    WEFT_TRY(wefti_map_add(&b->edges, key, sizeof *key, g->edge_count, &number));
    if (number < g->edge_count) {
        g->edges[number].weight++;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(g->edges, g->edge_count, g->edge_cap));
    wefti_choice_node *start = &g->nodes[from.node], *end = &g->nodes[to];
    g->edges[g->edge_count] = (wefti_choice_edge){.from = from.node,
                                                  .to = to,
                                                  .output = from.output,
                                                  .input = (int16_t)input,
                                                  .weight = 1,
                                                  .gradient = gradient,
                                                  .next_from = start->reader,
                                                  .next_to = end->feeder};
    start->reader = end->feeder = g->edge_count++;
    return WEFT_OK;
}

/* ---- the model ---- */

/* Calls `visit` for each operand of each op of a call that comes from outside of the cell. */
typedef weft_status visit_operand(graph_maker *b, int32_t node, int input, int32_t root_value);

static weft_status each_operand(graph_maker *b, int64_t number, visit_operand *visit) {
    const weft_node *call = &b->g->graph->root->nodes[number];
    const weft_body *body = call->callee;
    int32_t first = b->g->first[number];
    for (int64_t k = 0; k < body->node_count; k++)
        for (int i = 0; i < body->nodes[k].inputs; i++) {
            int32_t v = body->nodes[k].in[i];
            if (v < 0 || body->values[v].node >= 0) continue;
            if (body->values[v].kind == WEFTI_VALUE_NODE) continue;
            WEFT_TRY(visit(b, first + (int32_t)k, i, call->in[body->values[v].slot]));
        }
    return WEFT_OK;
}

static bool has_gradient(const wefti_value_info *info) {
    return wefti_dtype_is_float(info->desc.dtype) && info->kind != WEFTI_VALUE_INPUT &&
           !info->frozen;
}

static weft_status count_reader(graph_maker *b, int32_t node, int input, int32_t value) {
    const wefti_value_info *info = &b->g->graph->root->values[value];
    if (info->kind == WEFTI_VALUE_PARAM && has_gradient(info))
        b->g->nodes[node].trained |= 1u << input;
    int64_t reader = (int64_t)node * 64 + input;
    if (!b->reads[value]) b->reader_of[value] = reader;
    if (!b->reads[value] || b->reader_of[value] != reader)
        b->reads[value] = b->reads[value] ? 2 : 1;
    return WEFT_OK;
}

static weft_status connect(graph_maker *b, int32_t node, int input, int32_t value) {
    wefti_choice_graph *g = b->g;
    const wefti_value_info *info = &g->graph->root->values[value];
    if (b->sources[value].node < 0) return WEFT_OK;
    if (info->kind == WEFTI_VALUE_PARAM) g->nodes[node].shared |= 1u << input;
    return add_edge(b, b->sources[value], node, input, has_gradient(info));
}

static weft_status add_inner_edges(graph_maker *b, const weft_body *body, int32_t first) {
    for (int64_t k = 0; k < body->node_count; k++)
        for (int i = 0; i < body->nodes[k].inputs; i++) {
            int32_t v = body->nodes[k].in[i];
            if (v < 0 || body->values[v].node < 0) continue;
            source from = {first + body->values[v].node, (int16_t)body->values[v].slot};
            WEFT_TRY(add_edge(b, from, first + (int32_t)k, i,
                              wefti_dtype_is_float(body->values[v].desc.dtype)));
        }
    return WEFT_OK;
}

static bool is_call(const weft_node *n) {
    return n->op == &wefti_op_call;
}

static weft_status add_cells(graph_maker *b) {
    const weft_body *root = b->g->graph->root;
    for (int64_t k = 0; k < root->node_count; k++) {
        const weft_node *call = &root->nodes[k];
        b->g->first[k] = -1;
        if (!is_call(call)) continue;
        class_key *key = wefti_arena_alloc(b->g->arena, sizeof *key);
        int64_t first;
        WEFT_REQUIRE(key, WEFT_E_NOMEM, "no memory for a graph of choices");
        key->body = call->callee;
        key->strategies = strategies_of(b->g, call);
        WEFT_TRY(wefti_map_add(&b->classes, key, sizeof *key, b->g->node_count, &first));
        b->g->first[k] = (int32_t)first;
        if (first == b->g->node_count) WEFT_TRY(add_body(b->g, call->callee, call->scope));
        for (int64_t i = 0; i < call->callee->node_count; i++) b->g->nodes[first + i].weight++;
        WEFT_TRY(each_operand(b, k, count_reader));
    }
    return WEFT_OK;
}

/* Fed inputs, and parameters that several ops read, are nodes. */
static weft_status add_tensors(graph_maker *b) {
    const weft_body *root = b->g->graph->root;
    for (int64_t k = 0; k < root->in_count; k++) {
        int32_t v = root->in[k];
        wefti_value_kind kind = root->values[v].kind;
        if ((kind == WEFTI_VALUE_INPUT && b->reads[v]) ||
            (kind == WEFTI_VALUE_PARAM && b->reads[v] > 1))
            WEFT_TRY(add_tensor(b, v, 1));
    }
    return WEFT_OK;
}

/* The results of a call are results of its ops, or operands that it passes on. */
static void set_results(graph_maker *b, const weft_node *call, int32_t first) {
    const weft_body *body = call->callee;
    for (int o = 0; o < call->outputs; o++) {
        const wefti_value_info *v = &body->values[body->out[o]];
        if (v->node >= 0)
            b->sources[call->out[o]] = (source){first + v->node, (int16_t)v->slot};
        else
            b->sources[call->out[o]] = b->sources[call->in[v->slot]];
    }
}

static weft_status add_all(graph_maker *b) {
    const weft_body *root = b->g->graph->root;
    WEFT_TRY(add_cells(b));
    WEFT_TRY(add_tensors(b));
    for (int64_t k = 0; k < root->node_count; k++) {
        const weft_node *call = &root->nodes[k];
        if (!is_call(call)) continue;
        WEFT_TRY(add_inner_edges(b, call->callee, b->g->first[k]));
        WEFT_TRY(each_operand(b, k, connect));
        set_results(b, call, b->g->first[k]);
    }
    return WEFT_OK;
}

static weft_status fill(wefti_choice_graph *g) {
    graph_maker b = {.g = g};
    const int64_t values = g->graph->root->value_count;
    WEFT_NEW_ARRAY(b.sources, source, values + 1);
    b.reads = wefti_calloc((size_t)values + 1, sizeof *b.reads);
    b.reader_of = wefti_calloc((size_t)values + 1, sizeof *b.reader_of);
    g->first =
        wefti_arena_alloc(g->arena, ((size_t)g->graph->root->node_count + 1) * sizeof *g->first);
    weft_status status = b.reads && b.reader_of && g->first
                             ? WEFT_OK
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a graph of choices");
    for (int64_t v = 0; v < values; v++) b.sources[v].node = -1;
    if (status >= 0) status = add_all(&b);
    wefti_map_free(&b.edges);
    wefti_free(b.sources);
    wefti_free(b.reads);
    wefti_free(b.reader_of);
    wefti_map_free(&b.classes);
    return status;
}

weft_status wefti_choice_graph_create(weft_graph *graph, const weft_plan *plan,
                                      wefti_choice_graph **out) {
    wefti_choice_graph *g;
    WEFT_TRY(wefti_graph_wrap(graph));
    WEFT_NEW(g, wefti_choice_graph);
    g->graph = graph;
    g->plan = plan;
    weft_status status = wefti_arena_create(&g->arena);
    make_mesh(g);
    if (status >= 0) status = fill(g);
    if (status < 0) {
        wefti_choice_graph_destroy(g);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = g;
    return WEFT_OK;
}

void wefti_choice_graph_destroy(wefti_choice_graph *g) {
    if (!g) return;
    wefti_free(g->nodes);
    wefti_free(g->edges);
    wefti_arena_destroy(g->arena);
    wefti_free(g);
}

const weft_desc *wefti_choice_input(const wefti_choice_graph *g, const wefti_choice_node *n,
                                    int i) {
    return n->op ? wefti_in(n->op, i) : &g->graph->root->values[n->tensor].desc;
}

const weft_desc *wefti_choice_output(const wefti_choice_graph *g, const wefti_choice_node *n,
                                     int o) {
    return n->op ? wefti_out(n->op, o) : &g->graph->root->values[n->tensor].desc;
}

const weft_desc *wefti_choice_desc(const wefti_choice_graph *g, const wefti_choice_edge *e) {
    return wefti_choice_output(g, &g->nodes[e->from], e->output);
}
