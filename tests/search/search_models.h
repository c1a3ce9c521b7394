/* Models for tests of searches, and what the tests ask of a plan. */
#ifndef WEFT_TESTS_SEARCH_MODELS_H
#define WEFT_TESTS_SEARCH_MODELS_H

#include "support.h"

#include <math.h>

#include "graph/build_random.h"
#include "partition/partition.h"
#include "search/find.h"
#include "search/mindspore/mindspore.h"
#include "weft/ops.h"
#include "weft/search.h"

static const weft_init search_normal = {WEFT_INIT_NORMAL, 0.3};

static inline weft_desc search_desc(weft_dtype dtype, int64_t a, int64_t b) {
    return weft_desc_of(dtype, b ? 2 : 1, (int64_t[]){a, b});
}

static inline weft_plan *search_settings(int devices) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(devices, &plan));
    ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_SEMI));
    return plan;
}

static inline weft_plan *search_plan(weft_graph *g, const weft_plan *settings,
                                     const weft_search_options *o, char **notes) {
    weft_plan *plan = NULL;
    ASSERT_OK(weft_plan_search(g, settings, o, &plan, notes));
    assert_int_equal(plan->mode, WEFT_PARALLEL_SEMI);
    ASSERT_OK(weft_plan_check(plan));
    return plan;
}

/* The parts of each input of an op under the plan, as MindSpore writes them: "((2,1),(1,4))".
 * `label` is "call.scope:op" of a call. */
static inline const char *search_parts(const weft_plan *plan, const weft_graph *g,
                                       const char *wanted, char out[256]) {
    size_t at = 0;
    for (int64_t k = 0; k < g->root->node_count; k++) {
        const weft_node *call = &g->root->nodes[k];
        for (int64_t i = 0; call->callee && i < call->callee->node_count; i++) {
            const weft_node *n = &call->callee->nodes[i];
            char label[512], name[600];
            wefti_split_rule rule;
            wefti_node_label(call->callee, call->scope, n, label, sizeof label);
            snprintf(name, sizeof name, "%s:%s", label, n->op->name);
            if (strcmp(name, wanted) != 0) continue;
            wefti_rule_begin(&rule);
            ASSERT_OK(n->op->split(n, &rule));
            const wefti_strategy *s = wefti_plan_strategy(plan, label, n->op->name, false);
            const int64_t *cut = s ? s->cuts : NULL;
            for (int j = 0; j < n->inputs && wefti_in(n, j); j++) {
                at += (size_t)snprintf(out + at, 256 - at, "%s", j ? ",(" : "((");
                for (int d = 0; d < wefti_in(n, j)->rank; d++) {
                    int32_t parts = s && s->cuts ? (int32_t)*cut++ : 1;
                    for (int32_t x = 0; s && x < s->split_count; x++)
                        for (int a = 0; a < s->splits[x].count; a++)
                            if (rule.in[j][d] >= 0 &&
                                !strcmp(s->splits[x].what, rule.factor[rule.in[j][d]].name))
                                parts *= plan->mesh.axis[s->splits[x].axis[a]].size;
                    at += (size_t)snprintf(out + at, 256 - at, d ? ",%d" : "%d", (int)parts);
                }
                at += (size_t)snprintf(out + at, 256 - at, ")");
            }
            snprintf(out + at, 256 - at, ")");
            return out;
        }
    }
    return "no such op";
}

/* A graph of choices with all candidates. */
typedef struct search_space {
    wefti_choice_graph *graph;
    wefti_find find;
    weft_search_options options;
} search_space;

static inline void search_space_open(search_space *s, weft_graph *g, const weft_plan *settings,
                                     const weft_search_options *o) {
    const wefti_candidate_rules rules = {.fully_use_devices = o->rules.fully_use_devices,
                                         .elementwise_follow =
                                             o->rules.elementwise_op_strategy_follow,
                                         .slice_align = o->rules.tensor_slice_align};
    *s = (search_space){.options = *o};
    ASSERT_OK(wefti_choice_graph_create(g, settings, &s->graph));
    ASSERT_OK(wefti_choice_candidates(s->graph, &rules));
    s->find = (wefti_find){.graph = s->graph,
                           .options = &s->options,
                           .pricing = wefti_mindspore_pricing(&s->options.cost)};
    s->find.assigned = calloc((size_t)s->graph->node_count + 1, sizeof *s->find.assigned);
}

static inline void search_space_close(search_space *s) {
    wefti_choice_graph_destroy(s->graph);
    free(s->find.assigned);
    wefti_free(wefti_text_take(&s->find.notes));
}

static inline int32_t search_node(const search_space *s, const char *label, const char *op) {
    for (int32_t i = 0; i < s->graph->node_count; i++)
        if (!strcmp(s->graph->nodes[i].label, label) &&
            (s->graph->nodes[i].op ? !strcmp(s->graph->nodes[i].op->op->name, op) : !op))
            return i;
    fail_msg("no node %s:%s", label, op ? op : "tensor");
    return -1;
}

/* The strategy with these parts of the factors by name, "m0=16 k=1"; all others are whole. */
static inline const wefti_assignment *search_strategy(const search_space *s, int32_t node,
                                                      const char *parts) {
    const wefti_choice_node *n = &s->graph->nodes[node];
    for (int32_t i = 0; i < n->count; i++) {
        bool same = true;
        for (int f = 0; f < n->rule.factors; f++) {
            char key[32];
            snprintf(key, sizeof key, "%s=", n->rule.factor[f].name);
            const char *at = strstr(parts, key);
            long wanted = at ? strtol(at + strlen(key), NULL, 10) : 1;
            same &= wefti_choice_parts(&s->graph->mesh, &n->strategies[i], f) == wanted;
        }
        if (same) return &n->strategies[i];
    }
    fail_msg("%s has no strategy %s", n->label, parts);
    return NULL;
}

#endif
