/* An independent verifier of plans. It shares no code with the searches. It reads the plan as data,
 * and the programs of all ranks that it makes. A plan is
 *
 * - legal: its text holds all of it. Meshes of all stages together have the plan's devices. A split
 *   names a factor of its op. An axis splits one factor of an op at most, and no part is empty. The
 *   user's settings stand in it unchanged.
 * - whole: the pieces of each parameter and each state of the optimizer cover it.
 * - matched: the programs of all ranks match each other.
 * - fitting: no rank's arena is larger than the memory. */
#ifndef WEFT_TESTS_SEARCH_VERIFY_H
#define WEFT_TESTS_SEARCH_VERIFY_H

#include "support.h"

#include "base/text.h"
#include "graph/graph.h"
#include "partition/partition.h"
#include "plan/plan.h"
#include "program/match.h"
#include "builder/spec.h"

enum { VERIFY_RANKS = 64 };

/* The first thing that is wrong; "" for nothing. */
static char verify_why[600];

/* Leaves the function if the condition does not hold. */
#define VERIFY(condition, ...)                                                                     \
    do {                                                                                           \
        if (condition) break;                                                                      \
        if (!*verify_why) (void)snprintf(verify_why, sizeof verify_why, __VA_ARGS__);              \
        return;                                                                                    \
    } while (0)
#define VERIFY_OK(call) VERIFY((call) >= 0, "%s", weft_error_message())

typedef struct verify_question {
    const weft_graph *graph; /* wrapped: one microbatch */
    const weft_plan *plan, *settings;
    const wefti_optimizer_plan *optimizer; /* NULL: forward only */
    int64_t memory;                        /* bytes of a device; 0: no limit */
} verify_question;

/* ---- legal ---- */

static inline void verify_same_text(const char *a, const char *b) {
    VERIFY(!strcmp(a, b), "the plan reads as another one");
}

static inline void verify_text(const weft_plan *plan) {
    char *text, *again;
    weft_plan *read = NULL;
    ASSERT_OK(wefti_plan_print(plan, &text));
    const weft_status status = wefti_plan_parse("plan", text, (int64_t)strlen(text), &read);
    if (status >= 0) {
        ASSERT_OK(wefti_plan_print(read, &again));
        verify_same_text(text, again);
        weft_text_free(again);
        weft_plan_destroy(read);
    }
    weft_text_free(text);
    VERIFY_OK(status);
    VERIFY_OK(wefti_plan_check(plan));
}

static inline int64_t verify_size(const wefti_mesh *mesh) {
    int64_t size = 1;
    for (int a = 0; a < mesh->axes; a++) size *= mesh->axis[a].size;
    return size;
}

static inline void verify_devices(const weft_plan *plan, const weft_plan *settings) {
    int64_t devices = 0;
    for (int32_t s = 0; s < plan->pipeline.stages; s++)
        devices += verify_size(plan->pipeline.meshes ? &plan->pipeline.meshes[s] : &plan->mesh);
    VERIFY(devices == plan->devices && plan->devices == settings->devices,
           "meshes of %lld devices, a plan for %d, settings for %d", (long long)devices,
           plan->devices, settings->devices);
    VERIFY(plan->mode == WEFT_PARALLEL_SEMI, "mode %d", (int)plan->mode);
}

/* The factor that "n0", "in0.1", "out0.1" or "1" means for an op; -1: none. */
static inline int verify_factor(const weft_node *n, const wefti_split_rule *rule,
                                const char *what) {
    for (int f = 0; f < rule->factors; f++)
        if (!strcmp(rule->factor[f].name, what)) return f;
    const bool out = !strncmp(what, "out", 3);
    const char *at = out ? what + 3 : !strncmp(what, "in", 2) ? what + 2 : what;
    char *end;
    long operand = 0, d = strtol(at, &end, 10);
    if (end == at) return -1;
    if (*end == '.') {
        operand = d;
        d = strtol(end + 1, NULL, 10);
    }
    if (operand >= (out ? n->outputs : n->inputs) || d >= WEFT_MAX_RANK) return -1;
    return (out ? rule->out : rule->in)[operand][d];
}

static inline void verify_splits(const weft_plan *plan, const weft_node *n, const char *name,
                                 const wefti_split_rule *rule, const wefti_strategy *s) {
    wefti_axes used = 0;
    for (int32_t k = 0; k < s->split_count; k++) {
        const int f = verify_factor(n, rule, s->splits[k].what);
        int64_t parts = 1;
        if (f < 0 && !s->op) continue; /* of another op with this label */
        VERIFY(f >= 0, "%s: no factor %s", name, s->splits[k].what);
        for (int a = 0; a < s->splits[k].count; a++) {
            const int axis = s->splits[k].axis[a];
            VERIFY(axis >= 0 && axis < plan->mesh.axes, "%s: no axis %d", name, axis);
            VERIFY(!(used >> axis & 1), "%s: axis %d splits twice", name, axis);
            used |= 1u << axis;
            parts *= plan->mesh.axis[axis].size;
        }
        if (parts == 1) continue;
        const wefti_factor *factor = &rule->factor[f];
        VERIFY(factor->kind != WEFTI_FACTOR_WHOLE, "%s: %s is whole", name, factor->name);
        VERIFY(factor->kind == WEFTI_FACTOR_HALO || parts <= factor->size,
               "%s: %s of %lld in %lld parts", name, factor->name, (long long)factor->size,
               (long long)parts);
    }
}

static inline void verify_cuts(const weft_plan *plan, const weft_node *n, const char *name,
                               const wefti_split_rule *rule, const wefti_strategy *s) {
    int64_t of[WEFTI_MAX_FACTORS] = {0}, product = 1;
    const int64_t *cut = s->cuts;
    for (int32_t i = 0; i < s->cut_inputs; cut += s->cut_ranks[i++]) {
        const weft_desc *desc = i < n->inputs ? wefti_in(n, i) : NULL;
        for (int32_t d = 0; desc && d < s->cut_ranks[i]; d++) {
            const int f = rule->in[i][d];
            VERIFY(cut[d] >= 1 && cut[d] <= desc->shape[d], "%s: input %d.%d in %lld parts", name,
                   i, d, (long long)cut[d]);
            if (f < 0) continue;
            VERIFY(!of[f] || of[f] == cut[d], "%s: %s is cut twice", name, s->match);
            if (!of[f]) product *= cut[d];
            of[f] = cut[d];
        }
    }
    VERIFY(verify_size(&plan->mesh) % product == 0, "%s: %lld parts on a mesh of %lld", name,
           (long long)product, (long long)verify_size(&plan->mesh));
}

/* What a plan says of an op, as text; "" for nothing. */
static inline char *verify_said(const weft_plan *plan, const char *label, const char *op) {
    const wefti_strategy *s = wefti_plan_strategy(plan, label, op, false);
    wefti_text text = {0};
    wefti_text_add(&text, "%s", "");
    if (s) wefti_split_print(plan, s, &text);
    return wefti_text_take(&text);
}

static inline void verify_kept(const char *name, const char *wanted, const char *is) {
    VERIFY(!strcmp(wanted, is), "%s: the user said %s, not %s", name, wanted, is);
}

static inline void verify_op(const verify_question *q, const weft_node *call, const weft_node *n) {
    char label[512], name[600];
    wefti_split_rule rule;
    wefti_node_label(call->callee, call->scope, n, label, sizeof label);
    snprintf(name, sizeof name, "%s:%s", label, n->op->name);
    wefti_rule_begin(&rule);
    if (n->op->split) VERIFY_OK(n->op->split(n, &rule));
    const wefti_strategy *s = wefti_plan_strategy(q->plan, label, n->op->name, false);
    if (s && s->cuts)
        verify_cuts(q->plan, n, name, &rule, s);
    else if (s)
        verify_splits(q->plan, n, name, &rule, s);
    if (!wefti_plan_strategy(q->settings, label, n->op->name, false)) return;
    char *wanted = verify_said(q->settings, label, n->op->name),
         *is = verify_said(q->plan, label, n->op->name);
    verify_kept(name, wanted, is);
    wefti_free(wanted);
    wefti_free(is);
}

static inline void verify_tensor(const verify_question *q, const wefti_value_info *v) {
    const wefti_tensor_strategy *t = v->name ? wefti_plan_tensor(q->plan, v->name) : NULL,
                                *said = v->name ? wefti_plan_tensor(q->settings, v->name) : NULL;
    if (said) verify_kept(v->name, said->layout, t ? t->layout : "nothing");
    if (!t) return;
    wefti_layout layout;
    wefti_axes used = 0;
    VERIFY_OK(wefti_layout_parse(t->layout, &q->plan->mesh, &layout));
    for (int d = 0; d < layout.rank; d++) {
        int64_t parts = 1;
        for (int a = 0; a < layout.dim[d].count; a++) {
            const int axis = layout.dim[d].axis[a];
            VERIFY(!(used >> axis & 1), "%s: axis %d splits twice", v->name, axis);
            used |= 1u << axis;
            parts *= q->plan->mesh.axis[axis].size;
        }
        VERIFY(d >= v->desc.rank || parts <= v->desc.shape[d], "%s: dimension %d in %lld parts",
               v->name, d, (long long)parts);
    }
}

static inline void verify_legal(const verify_question *q) {
    const weft_body *root = q->graph->root;
    verify_text(q->plan);
    verify_devices(q->plan, q->settings);
    for (int64_t k = 0; k < root->node_count; k++)
        for (int64_t i = 0; root->nodes[k].callee && i < root->nodes[k].callee->node_count; i++)
            verify_op(q, &root->nodes[k], &root->nodes[k].callee->nodes[i]);
    for (int64_t v = 0; v < root->value_count; v++) verify_tensor(q, &root->values[v]);
}

/* ---- programs ---- */

/* The pieces of a tensor are disjoint or equal, and together they are the whole. */
static inline void verify_cover(const wefti_program *const *programs, int32_t ranks,
                                const wefti_tensor *t) {
    const int rank = t->whole.rank;
    wefti_region boxes[VERIFY_RANKS];
    int64_t total = 0;
    int count = 0;
    for (int32_t r = 0; r < ranks; r++)
        for (int32_t i = 0; i < programs[r]->tensor_count; i++) {
            const wefti_tensor *own = &programs[r]->tensors[i];
            wefti_region box = {{0}, {0}};
            int64_t elements = 1;
            bool known = false;
            if (own->role != t->role || strcmp(own->name, t->name) != 0) continue;
            wefti_layout_region(&own->layout, &programs[r]->mesh, &own->whole, r, &box);
            for (int d = 0; d < rank; d++) elements *= box.size[d];
            VERIFY(elements == weft_desc_elems(&own->desc), "rank %d has a piece of %lld of %s", r,
                   (long long)elements, t->name);
            if (!elements) continue;
            for (int k = 0; k < count && !known; k++) {
                bool equal = true, apart = rank == 0;
                for (int d = 0; d < rank; d++) {
                    equal &= boxes[k].begin[d] == box.begin[d] && boxes[k].size[d] == box.size[d];
                    apart |= boxes[k].begin[d] + boxes[k].size[d] <= box.begin[d] ||
                             box.begin[d] + box.size[d] <= boxes[k].begin[d];
                }
                known = equal;
                VERIFY(equal || apart, "pieces of %s overlap on rank %d", t->name, r);
            }
            if (known) continue;
            boxes[count++] = box;
            total += elements;
        }
    VERIFY(total == weft_desc_elems(&t->whole), "ranks have %lld elements of %s, not %lld",
           (long long)total, t->name, (long long)weft_desc_elems(&t->whole));
}

static inline void verify_whole(const wefti_program *const *programs, int32_t ranks) {
    for (int32_t r = 0; r < ranks; r++)
        for (int32_t i = 0; i < programs[r]->tensor_count; i++) {
            const wefti_tensor *t = &programs[r]->tensors[i];
            bool first = true;
            if (t->role != WEFTI_TENSOR_PARAM && t->role != WEFTI_TENSOR_OPTIMIZER) continue;
            for (int32_t s = 0; s < r && first; s++)
                for (int32_t k = 0; k < programs[s]->tensor_count && first; k++)
                    first = strcmp(programs[s]->tensors[k].name, t->name) != 0;
            if (first) verify_cover(programs, ranks, t);
        }
}

/* Builds the programs of all ranks, dry. */
static inline void verify_build(const verify_question *q, const weft_plan *plan,
                                wefti_route_cache *routes, wefti_program **programs,
                                int64_t *out_most) {
    wefti_program_spec spec = {
        .graph = q->graph,
        .kind = wefti_kind_of(0),
        .prepare = wefti_prepare_anywhere(),
        .optimizer = q->optimizer,
        .microbatches =
            (plan->pipeline.stages > 1 ? plan->pipeline.microbatches : plan->accumulate) *
            plan->copies,
        .plan = wefti_plan_matters(plan) ? plan : NULL,
        .routes = routes};
    const wefti_program *const *all = (const wefti_program *const *)programs;
    for (spec.rank = 0; spec.rank < plan->devices; spec.rank++) {
        VERIFY_OK(wefti_program_build(&spec, &programs[spec.rank]));
        if (programs[spec.rank]->peak_bytes > *out_most)
            *out_most = programs[spec.rank]->peak_bytes;
    }
    if (plan->devices > 1) VERIFY_OK(wefti_programs_match(all, plan->devices));
    verify_whole(all, plan->devices);
}

static inline void verify_programs(const verify_question *q, int64_t *out_most) {
    wefti_program *programs[VERIFY_RANKS] = {NULL};
    wefti_route_cache *routes;
    weft_plan *plan;
    ASSERT_OK(wefti_plan_copy(q->plan, &plan));
    ASSERT_OK(wefti_plan_refine(plan));
    ASSERT_OK(wefti_route_cache_create(&routes));
    verify_build(q, plan, routes, programs, out_most);
    for (int32_t r = 0; r < plan->devices; r++) wefti_program_destroy(programs[r]);
    wefti_route_cache_destroy(routes);
    weft_plan_destroy(plan);
    VERIFY(!q->memory || *out_most <= q->memory, "a rank needs %lld bytes of %lld",
           (long long)*out_most, (long long)q->memory);
}

/* The first thing that is wrong with a plan; "" for nothing. *out_most: the largest arena of all
 * ranks. Programs are not built for plans that are illegal, or that have more than 64 ranks: 0. */
static inline const char *verify_find(const verify_question *q, int64_t *out_most) {
    *verify_why = 0;
    *out_most = 0;
    verify_legal(q);
    if (!*verify_why && q->plan->devices <= VERIFY_RANKS) verify_programs(q, out_most);
    return verify_why;
}

/* Fails if anything is wrong. The largest arena. */
static inline int64_t verify_plan(const verify_question *q) {
    int64_t most;
    if (*verify_find(q, &most)) fail_msg("%s", verify_why);
    return most;
}

#endif
