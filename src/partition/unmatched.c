/* Parts of a plan without effect: patterns that match no name of the model, most often by a typing
 * mistake; fusions without tensors; and axes that split nothing. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "partition/partition.h"

/* Names of one kind, and the same names with * for each part that is a number; NULL-terminated. */
typedef struct names {
    const char **items, **patterns;
    int64_t count, cap, pattern_cap;
} names;

typedef struct checker {
    wefti_arena *arena;
    const weft_plan *plan;
    const wefti_op_registry *ops_known;
    const int32_t *fused; /* as in wefti_plan_unmatched */
    names ops, tensors, parameters, tables, updates, calls;
    int64_t unmatched, listed; /* patterns; at most `listed` of them get a message */
    wefti_text out;
} checker;

enum { UNMATCHED_LINES = 20 }; /* patterns that a message lists */

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory to check a plan's names");
}

static char *with_stars(wefti_arena *arena, const char *name) {
    char *pattern = wefti_arena_alloc(arena, strlen(name) + 1), *to = pattern;
    if (!pattern) return NULL;
    for (const char *at = name; *at;) {
        size_t digits = strspn(at, "0123456789");
        bool part = digits && (at == name || at[-1] == '.') && strchr(".:", at[digits]);
        *to++ = part ? '*' : *at;
        at += part ? digits : 1;
    }
    return pattern;
}

static weft_status add(checker *c, names *to, const char *name) {
    WEFT_TRY(WEFT_GROW(to->items, to->count + 1, to->cap)); /* including the NULL */
    WEFT_TRY(WEFT_GROW(to->patterns, to->count + 1, to->pattern_cap));
    const char *copy = wefti_arena_strdup(c->arena, name), *pattern = with_stars(c->arena, name);
    if (!copy || !pattern) return no_memory();
    to->items[to->count] = copy;
    to->patterns[to->count++] = pattern;
    to->items[to->count] = to->patterns[to->count] = NULL;
    return WEFT_OK;
}

/* ---- names of rules of `place` ---- */

/* A pattern for updates matches no op, whatever it begins with. */
static bool is_for_updates(const char *match) {
    static const char end[] = ":update";
    const size_t bytes = strlen(match), end_bytes = sizeof end - 1;
    return bytes >= end_bytes && !strcmp(match + bytes - end_bytes, end);
}

/* The parameter in which an op of a call looks up; NULL: none. */
static const char *table_of(const weft_body *root, const weft_node *call, const weft_node *op) {
    const weft_body *cell = call->callee;
    if (op->op != wefti_op_find(cell->graph->ops, "embedding")) return NULL;
    const wefti_value_info *table = &cell->values[op->in[0]];
    if (table->kind != WEFTI_VALUE_PARAM) return NULL;
    return root->values[call->in[table->slot]].name;
}

/* Whether a pattern matches the name of a table, or the name without its last part. */
static bool matches_table(const char *match, const char *name) {
    char owner[512];
    const char *dot = strrchr(name, '.');
    if (wefti_glob_match(match, name)) return true;
    (void)snprintf(owner, sizeof owner, "%.*s", dot ? (int)(dot - name) : 0, name);
    return dot && wefti_glob_match(match, owner);
}

/* ---- the names of a model ---- */

/* Adds both names of each op of a call's cell. */
static weft_status add_ops(checker *c, const weft_body *root, const weft_node *call) {
    const weft_body *body = call->callee;
    for (int64_t k = 0; k < body->node_count; k++) {
        const char *table = table_of(root, call, &body->nodes[k]);
        char label[512], both[600];
        wefti_node_label(body, call->scope, &body->nodes[k], label, sizeof label);
        snprintf(both, sizeof both, "%s:%s", label, body->nodes[k].op->name);
        WEFT_TRY(add(c, &c->ops, label));
        WEFT_TRY(add(c, &c->ops, both));
        if (table) WEFT_TRY(add(c, &c->tables, table));
    }
    return WEFT_OK;
}

static weft_status collect(checker *c, const weft_graph *graph) {
    const weft_body *root = graph->root;
    for (int64_t k = 0; k < root->node_count; k++) {
        if (root->nodes[k].op != &wefti_op_call) continue;
        WEFT_TRY(add(c, &c->calls, root->nodes[k].scope));
        WEFT_TRY(add_ops(c, root, &root->nodes[k]));
    }
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        if (!v->name) continue;
        WEFT_TRY(add(c, &c->tensors, v->name));
        if (v->kind != WEFTI_VALUE_PARAM) continue;
        char update[512];
        (void)snprintf(update, sizeof update, "%s:update", v->name);
        WEFT_TRY(add(c, &c->parameters, v->name));
        WEFT_TRY(add(c, &c->updates, update));
    }
    return WEFT_OK;
}

/* Whether a pattern for ops names an op of backward passes. */
static bool is_gradient(const wefti_op_registry *ops, const char *op) {
    for (int i = 0; i < ops->count; i++) {
        char name[WEFTI_OP_NAME_BYTES];
        const weft_node gradient = {.op = ops->ops[i], .gradient = true};
        if (wefti_glob_match(op, wefti_node_op(&gradient, name, sizeof name))) return true;
    }
    return false;
}

/* Whether a strategy is for ops of the backward pass of labels in the list, which has only ops of
 * forward passes. */
static bool splits_gradient(const checker *c, const wefti_strategy *s) {
    char label[512];
    const int64_t length = s->op ? s->op - 1 - s->match : -1;
    if (length < 0 || length >= (int64_t)sizeof label || !is_gradient(c->ops_known, s->op))
        return false;
    (void)snprintf(label, sizeof label, "%.*s", (int)length, s->match);
    for (int64_t i = 0; i < c->ops.count; i++)
        if (wefti_glob_match(label, c->ops.items[i])) return true;
    return false;
}

/* The name nearest to `match`: one that ends with it, below an outer cell, or a similar one. */
static const char *nearest(const names *of, const char *match) {
    const char **words = strpbrk(match, "*?[") ? of->patterns : of->items;
    const size_t length = strlen(match);
    for (int64_t i = 0; i < of->count; i++) {
        const size_t all = strlen(words[i]);
        if (all > length && words[i][all - length - 1] == '.' &&
            !strcmp(words[i] + all - length, match))
            return words[i];
    }
    return words ? weft_nearest(match, words) : NULL;
}

static void check(checker *c, const names *of, const char *match, const char *source,
                  const char *list, int64_t number, const char *what) {
    for (int64_t i = 0; i < of->count; i++)
        if (wefti_glob_match(match, of->items[i])) return;
    if (c->unmatched++ >= c->listed) return;
    const char *near = nearest(of, match);
    if (source)
        wefti_text_add(&c->out, "%s: ", source);
    else
        wefti_text_add(&c->out, "%s[%lld]: ", list, (long long)number);
    wefti_text_add(&c->out, "the model has no %s '%.100s'%s%s%s\n", what, match,
                   near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* Axes that may split an op or a tensor according to the plan. */
static wefti_axes axes_in_use(const weft_plan *p) {
    wefti_axes used = 0;
    wefti_layout layout;
    for (int64_t i = 0; i < p->strategy_count; i++) {
        const wefti_strategy *s = &p->strategies[i];
        if (s->out) used |= wefti_layout_split_axes(s->out);
        if (s->cuts) return ~0u; /* the axes of parts are chosen for each op */
        for (int32_t k = 0; k < s->split_count; k++)
            for (int a = 0; a < s->splits[k].count; a++) used |= 1u << s->splits[k].axis[a];
    }
    if (p->dataset_cuts.cuts) return ~0u; /* as above */
    for (int64_t i = 0; i < p->tensor_count; i++)
        if (wefti_layout_parse(p->tensors[i].layout, &p->mesh, &layout) >= 0)
            used |= wefti_layout_split_axes(&layout);
    return used;
}

/* Devices that differ only along an unused axis would all do the same work. */
static void check_axes(checker *c) {
    const weft_plan *p = c->plan;
    bool data = p->dataset == WEFT_DATASET_DATA_PARALLEL;
    wefti_axes used = p->mode == WEFT_PARALLEL_SEMI ? axes_in_use(p) : ~0u;
    int dp = wefti_mesh_find(&p->mesh, "dp");
    if (dp >= 0 && data) used |= 1u << dp;
    for (int a = 1; a < p->mesh.axes; a++) /* a part of a divided axis shards the optimizer state */
        if (wefti_mesh_part(&p->mesh, a)) used |= (used >> (a - 1) & 1u) << a;
    for (int a = 0; a < p->mesh.axes; a++)
        if (p->mesh.axis[a].size > 1 && !(used >> a & 1))
            wefti_text_add(&c->out,
                           "the mesh's axis '%s' splits nothing: no strategy and no layout names "
                           "it%s\n",
                           p->mesh.axis[a].name,
                           data && dp < 0 ? ", and batches are split by an axis called 'dp'" : "");
}

static void tell_fusion(checker *c, const char *unused, const char *why) {
    if (c->plan->mode == WEFT_PARALLEL_MANUAL)
        wefti_text_add(&c->out,
                       "fusion.%s does nothing in mode manual, where the model communicates "
                       "itself\n",
                       unused);
    else
        wefti_text_add(&c->out, "fusion.%s does nothing at optimizer.level %d, where %s\n", unused,
                       c->plan->optimizer.level, why);
}

/* Each parameter has at most one gradient to reduce. Buckets that end after the last gradient have
 * no effect. */
static void check_ends(checker *c, int32_t gradients) {
    const wefti_fusion *f = &c->plan->fusion[0];
    const bool stages = c->plan->pipeline.stages > 1;
    for (int32_t i = 0; f->mode == WEFT_FUSION_INDEX && i < f->index_count; i++)
        if (f->index[i] > gradients) {
            wefti_text_add(&c->out,
                           "fusion.allreduce.config: %d is past the last of the %d gradients "
                           "that devices%s add up%s\n",
                           f->index[i], gradients, stages ? " of one stage" : "",
                           stages ? " at most" : "");
            return;
        }
}

/* One device never fuses, so there is nothing to report. */
static void check_fusion(checker *c) {
    const wefti_fusion *f = c->plan->fusion;
    const int32_t *fused = c->fused;
    static const char made[] = "gradients are added up as they are made",
                      none[] = "no parameter is shared out";
    const bool level_3 = c->plan->optimizer.level == 3;
    if (!fused || c->plan->devices == 1) return;
    if (f[2].mode != WEFT_FUSION_AUTO && !fused[2])
        tell_fusion(c, "reducescatter",
                    level_3    ? made
                    : fused[0] ? "fusion.allreduce counts"
                               : none);
    if (f[1].mode != WEFT_FUSION_AUTO && !fused[1])
        tell_fusion(c, "allgather",
                    level_3    ? "parameters are gathered for each call of a cell"
                    : fused[2] ? "no two parameters that are shared out are of one bucket"
                               : none);
    if (f[0].mode != WEFT_FUSION_AUTO && !fused[0])
        tell_fusion(c, "allreduce",
                    level_3    ? made
                    : fused[2] ? "fusion.reducescatter counts"
                               : "devices have no gradients to add up");
    else
        check_ends(c, fused[0]);
}

static void check_splits(checker *c) {
    const weft_plan *p = c->plan;
    for (int64_t i = 0; i < p->strategy_count; i++) {
        const wefti_strategy *s = &p->strategies[i];
        if (splits_gradient(c, s)) continue;
        check(c, &c->ops, s->match, s->source, "strategies", i, "op");
    }
    for (int64_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor_strategy *t = &p->tensors[i];
        check(c, &c->tensors, t->match, t->source, "tensors", i, "tensor");
    }
}

static void check_offload(checker *c, int64_t i) {
    const wefti_offload_rule *r = &c->plan->offload.rules[i];
    const bool cells = r->what == WEFT_OFFLOAD_SAVED;
    check(c, cells ? &c->calls : &c->parameters, r->match, NULL, "offload", i,
          cells ? "cell" : "parameter");
}

/* A pattern for ops may also match updates or tables. */
static void check_place(checker *c, int64_t i) {
    const char *match = c->plan->place.rules[i].match;
    const bool updates = is_for_updates(match);
    for (int64_t k = 0; !updates && k < c->updates.count; k++)
        if (wefti_glob_match(match, c->updates.items[k])) return;
    for (int64_t k = 0; !updates && k < c->tables.count; k++)
        if (matches_table(match, c->tables.items[k])) return;
    check(c, updates ? &c->updates : &c->ops, match, NULL, "place", i, updates ? "update" : "op");
}

/* Of a model in use only the parameters move. */
static void check_parameters(checker *c) {
    for (int64_t i = 0; i < c->plan->offload.count; i++)
        if (c->plan->offload.rules[i].what == WEFT_OFFLOAD_PARAMETERS) check_offload(c, i);
}

static void check_all(checker *c) {
    const weft_plan *p = c->plan;
    check_splits(c);
    for (int64_t i = 0; i < p->pipeline.rule_count; i++)
        check(c, &c->calls, p->pipeline.rules[i].match, NULL, "pipeline.stage_of", i, "cell");
    for (int64_t i = 0; i < p->recompute.cell_count; i++)
        check(c, &c->calls, p->recompute.cells[i], NULL, "recompute.cells", i, "cell");
    for (int64_t i = 0; i < p->offload.count; i++) check_offload(c, i);
    for (int64_t i = 0; i < p->place.count; i++) check_place(c, i);
    for (int64_t i = 0; i < p->server.count; i++)
        check(c, &c->parameters, p->server.rules[i].match, NULL, "server", i, "parameter");
    if (c->unmatched > c->listed)
        wefti_text_add(&c->out, "%lld more settings of the plan match no name of the model\n",
                       (long long)(c->unmatched - c->listed));
    check_axes(c);
    check_fusion(c);
}

static void free_names(names *of) {
    wefti_free(of->items);
    wefti_free(of->patterns);
}

/* Collects the model's names, calls `checks` and returns its messages. */
static weft_status run(checker *c, weft_graph *graph, void (*checks)(checker *), char **out) {
    WEFT_TRY(wefti_graph_wrap(graph));
    WEFT_TRY(wefti_arena_create(&c->arena));
    c->ops_known = graph->ops;
    weft_status status = collect(c, graph);
    if (status >= 0) {
        checks(c);
        *out = wefti_text_take(&c->out);
        if (!*out) status = no_memory();
    }
    free_names(&c->ops);
    free_names(&c->tensors);
    free_names(&c->parameters);
    free_names(&c->tables);
    free_names(&c->updates);
    free_names(&c->calls);
    wefti_arena_destroy(c->arena);
    return status;
}

weft_status wefti_plan_unmatched(const weft_plan *plan, weft_graph *graph, const int32_t fused[3],
                                 char **out) {
    checker c = {.plan = plan, .fused = fused, .listed = UNMATCHED_LINES};
    char *text = NULL;
    WEFT_TRY(run(&c, graph, check_all, &text));
    *out = text;
    return WEFT_OK;
}

weft_status wefti_plan_unmatched_moves(const weft_plan *plan, weft_graph *graph, char **out) {
    checker c = {.plan = plan, .listed = UNMATCHED_LINES};
    *out = NULL;
    return plan && plan->offload.count ? run(&c, graph, check_parameters, out) : WEFT_OK;
}

weft_status wefti_plan_check_splits(const weft_plan *plan, weft_graph *graph) {
    checker c = {.plan = plan, .listed = 1};
    char *text = NULL, more[64] = "";
    if (plan->strategy_count + plan->tensor_count == 0) return WEFT_OK;
    WEFT_TRY(run(&c, graph, check_splits, &text));
    weft_status status = WEFT_OK;
    if (c.unmatched > 1)
        (void)snprintf(more, sizeof more, "; %lld more split%s of the plan match%s no name",
                       (long long)(c.unmatched - 1), c.unmatched > 2 ? "s" : "",
                       c.unmatched > 2 ? "" : "es");
    if (c.unmatched)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND, "%.*s%s", (int)strcspn(text, "\n"), text, more);
    wefti_free(text);
    return status;
}

/* ---- work on the host ---- */

/* The rule of `place` that counts for an op; NULL: none. */
static const wefti_place_rule *rule_of(const weft_plan *plan, const weft_body *root,
                                       const weft_node *call, const weft_node *op) {
    char label[512], both[600];
    const char *table = table_of(root, call, op);
    wefti_node_label(call->callee, call->scope, op, label, sizeof label);
    (void)snprintf(both, sizeof both, "%s:%s", label, op->op->name);
    for (int64_t i = plan->place.count; i-- > 0;) {
        const char *match = plan->place.rules[i].match;
        if (!is_for_updates(match) &&
            (wefti_glob_match(match, label) || wefti_glob_match(match, both) ||
             (table && matches_table(match, table))))
            return &plan->place.rules[i];
    }
    return NULL;
}

bool wefti_plan_may_run_on_host(const weft_plan *plan) {
    for (int64_t i = 0; plan && i < plan->place.count; i++)
        if (plan->place.rules[i].on == WEFTI_ON_HOST && !is_for_updates(plan->place.rules[i].match))
            return true;
    return false;
}

bool wefti_plan_op_on_host(const weft_plan *plan, const weft_body *root, const weft_node *call,
                           const weft_node *op) {
    const wefti_place_rule *rule = rule_of(plan, root, call, op);
    return rule && rule->on == WEFTI_ON_HOST;
}

/* Refuses an entry that keeps something of an update on the host elsewhere. An entry for the states
 * of all parameters leaves out those that the host updates. */
static weft_status check_home(const weft_plan *plan, const char *name, weft_offload what) {
    const wefti_offload_rule *rule = wefti_plan_offload_rule(plan, what, name);
    const bool states = what == WEFT_OFFLOAD_OPTIMIZER;
    const char *kept = states                           ? "its states"
                       : what == WEFT_OFFLOAD_GRADIENTS ? "its gradient"
                                                        : "the parameter";
    const bool all = rule && states && !strcmp(rule->match, "*");
    WEFT_REQUIRE(
        !rule || what != WEFT_OFFLOAD_PARAMETERS || !plan->optimizer.master ||
            rule->to == WEFT_TIER_DEVICE,
        WEFT_E_ARG,
        "optimizer.master (train.master) is host, but the entry of memory.offload for '%s' "
        "keeps the parameter '%s' in tier %s; leave it out, since masters lie in host "
        "memory and what calls read in device memory",
        rule->match, name, wefti_tier_words[rule->to]);
    WEFT_REQUIRE(!rule || all || rule->to == WEFT_TIER_HOST ||
                     (!states && rule->to == WEFT_TIER_DEVICE),
                 WEFT_E_ARG,
                 "place: the host updates '%s', but the entry of memory.offload for '%s' keeps %s "
                 "in tier %s; leave the parameter out of one of both%s",
                 name, rule->match, kept, wefti_tier_words[rule->to],
                 states ? ", since such states lie in host memory" : ", or use tier host");
    return WEFT_OK;
}

/* Refuses an entry that keeps a parameter of an op of the host, or its gradient, elsewhere. */
static weft_status check_operand(const weft_plan *plan, const char *label, const char *name,
                                 weft_offload what) {
    const wefti_offload_rule *rule = wefti_plan_offload_rule(plan, what, name);
    WEFT_REQUIRE(!rule || rule->to == WEFT_TIER_HOST, WEFT_E_ARG,
                 "place: the host runs '%s', which reads '%s', but the entry of memory.offload for "
                 "'%s' keeps %s in tier %s; leave the parameter out of it, or use tier host",
                 label, name, rule->match,
                 what == WEFT_OFFLOAD_GRADIENTS ? "its gradient" : "the parameter",
                 wefti_tier_words[rule->to]);
    return WEFT_OK;
}

static weft_status check_op(const weft_plan *plan, const weft_body *root, const weft_node *call,
                            const weft_node *op) {
    char label[512];
    if (!wefti_plan_op_on_host(plan, root, call, op)) return WEFT_OK;
    wefti_node_label(call->callee, call->scope, op, label, sizeof label);
    for (int i = 0; i < op->inputs; i++) {
        const wefti_value_info *v = op->in[i] < 0 ? NULL : &call->callee->values[op->in[i]];
        if (!v || (v->kind != WEFTI_VALUE_PARAM && v->kind != WEFTI_VALUE_STATE)) continue;
        const char *name = root->values[call->in[v->slot]].name;
        WEFT_REQUIRE(v->kind == WEFTI_VALUE_PARAM, WEFT_E_NO_IMPL,
                     "place: the host cannot run '%s:%s', which works on the state '%s': leave it "
                     "out by a later entry {match: '%s:%s', on: device}",
                     label, op->op->name, name, label, op->op->name);
        WEFT_TRY(check_operand(plan, label, name, WEFT_OFFLOAD_PARAMETERS));
        WEFT_TRY(check_operand(plan, label, name, WEFT_OFFLOAD_GRADIENTS));
    }
    WEFT_REQUIRE(plan->pipeline.stages <= 1 && plan->copies <= 1, WEFT_E_NO_IMPL,
                 "place: the host runs '%s:%s', but a plan with %s runs updates alone on the host: "
                 "match '*:update', or leave out parallel.%s",
                 label, op->op->name, plan->copies > 1 ? "interleaved microbatches" : "a pipeline",
                 plan->copies > 1 ? "copies" : "pipeline");
    return WEFT_OK;
}

weft_status wefti_plan_check_places(const weft_plan *plan, const weft_graph *graph) {
    const weft_body *root = graph->root;
    if (!wefti_plan_may_update_on_host(plan)) return WEFT_OK;
    for (int64_t k = 0; wefti_plan_may_run_on_host(plan) && k < root->node_count; k++)
        for (int64_t i = 0; i < root->nodes[k].callee->node_count; i++)
            WEFT_TRY(check_op(plan, root, &root->nodes[k], &root->nodes[k].callee->nodes[i]));
    for (int64_t i = 0; i < root->in_count; i++) {
        const wefti_value_info *v = &root->values[root->in[i]];
        if (v->kind != WEFTI_VALUE_PARAM || !wefti_plan_updates_on_host(plan, v->name)) continue;
        WEFT_TRY(check_home(plan, v->name, WEFT_OFFLOAD_OPTIMIZER));
        WEFT_TRY(check_home(plan, v->name, WEFT_OFFLOAD_PARAMETERS));
        WEFT_TRY(check_home(plan, v->name, WEFT_OFFLOAD_GRADIENTS));
    }
    return WEFT_OK;
}
