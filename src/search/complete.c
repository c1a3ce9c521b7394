/* Completes a plan: writes the decisions of a build down as rules.
 *
 * Builds only the first rank of each stage, which decides for all ranks of the stage. So planning
 * for thousands of devices needs none of them. Stages with equal meshes decide alike, so only the
 * first of them is observed: an observed build makes each partition again. Names that differ only
 * in numbers and are split alike become one pattern: "h.*.mlp.c_fc:linear".
 *
 * No rule is written for two ops with one name and different splits, because no rule can tell them
 * apart. Nor for uneven splits in units of several elements, or for ops of the backward pass, which
 * follow from layouts. A build from the completed plan decides these anew. */
#include "search/search.h"

#include <stdio.h>
#include <string.h>

#include "base/map/map.h"
#include "base/text.h"
#include "base/philox.h"
#include "layout/redistribute.h"

/* ---- decisions ---- */

/* A name and its decision as text. text NULL: none yet, or different ones. */
typedef struct said {
    const char *name, *text;
    bool differs;
} said;

typedef struct sayings {
    said *items;
    int64_t count, cap;
    wefti_map number_of; /* of each name */
} sayings;

typedef struct collector {
    wefti_arena *arena;
    const weft_plan *plan;
    sayings ops, tensors;
    struct {
        const char *call;
        int32_t stage;
    } * calls;
    int64_t call_count, call_cap;
    bool assigned;    /* by an earlier stage's build; all stages report the same */
    int32_t fused[3]; /* the most tensors that each fusion may join, in any stage */
    weft_status status;
} collector;

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory to complete a plan");
}

static said *find(const sayings *all, const char *name) {
    const int64_t i = wefti_map_find_text(&all->number_of, name);
    return i < 0 ? NULL : &all->items[i];
}

static void end_sayings(sayings *all) {
    wefti_free(all->items);
    wefti_map_free(&all->number_of);
}

static weft_status add_name(collector *c, sayings *all, const char *name) {
    if (find(all, name)) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(all->items, all->count, all->cap));
    said *new = &all->items[all->count];
    *new = (said){.name = wefti_arena_strdup(c->arena, name)};
    if (!new->name) return no_memory();
    return wefti_map_add_text(&all->number_of, new->name, all->count++, NULL);
}

static weft_status say(collector *c, said *of, const char *text) {
    if (of->differs) return WEFT_OK;
    of->differs = of->text && strcmp(of->text, text) != 0;
    if (of->text && !of->differs) return WEFT_OK;
    of->text = of->differs ? NULL : wefti_arena_strdup(c->arena, text);
    return of->text || of->differs ? WEFT_OK : no_memory();
}

static weft_status add_and_say(collector *c, sayings *all, const char *name, const char *text) {
    WEFT_TRY(add_name(c, all, name));
    return say(c, find(all, name), text);
}

/* The model's own ops. Gradients have more ops, which follow through layouts. */
static weft_status add_ops(collector *c, const weft_graph *graph) {
    for (int64_t k = 0; k < graph->root->node_count; k++) {
        const weft_node *call = &graph->root->nodes[k];
        if (call->op != &wefti_op_call) continue;
        for (int64_t i = 0; i < call->callee->node_count; i++) {
            char label[512], name[600];
            wefti_node_label(call->callee, call->scope, &call->callee->nodes[i], label,
                             sizeof label);
            snprintf(name, sizeof name, "%s:%s", label, call->callee->nodes[i].op->name);
            WEFT_TRY(add_name(c, &c->ops, name));
        }
    }
    return WEFT_OK;
}

/* Whether a split into units of several elements differs from a split into elements. Then the short
 * form of the split would mean another split. */
static bool unit_matters(const wefti_decision *d, int f, const wefti_mesh *mesh) {
    int64_t unit = d->factor[f].unit, size = d->rule.factor[f].size, parts = 1;
    for (int a = 0; a < d->factor[f].count; a++) parts *= mesh->axis[d->factor[f].axis[a]].size;
    return unit > 1 && (size % unit != 0 || size / unit % parts != 0);
}

/* "m0=dp n0=tp+sp". Splits that the user gave as parts stay as given: a part of one leaves its
 * dimension whole. */
static void write_split(const collector *c, const wefti_decision *d, wefti_text *text) {
    if (d->said && d->said->cuts) {
        wefti_split_print(c->plan, d->said, text);
        return;
    }
    for (int f = 0; f < d->rule.factors; f++) {
        const wefti_dim_split *s = &d->factor[f];
        if (!s->count || unit_matters(d, f, &c->plan->mesh)) continue;
        wefti_text_add(text, "%s%s=", text->used ? " " : "", d->rule.factor[f].name);
        for (int a = 0; a < s->count; a++)
            wefti_text_add(text, "%s%s", a ? "+" : "", c->plan->mesh.axis[s->axis[a]].name);
    }
    if (d->said && d->said->out)
        wefti_text_add(text, "%s-> %s", text->used ? " " : "",
                       wefti_layout_text(d->said->out, &c->plan->mesh).text);
}

static void decided(void *context, const wefti_decision *d) {
    collector *c = context;
    wefti_text text = {0};
    char name[600];
    snprintf(name, sizeof name, "%s:%s", d->label, d->op);
    said *of = c->status < 0 ? NULL : find(&c->ops, name);
    if (!of) return;
    write_split(c, d, &text);
    char *taken = wefti_text_take(&text);
    c->status = taken ? say(c, of, taken) : no_memory();
    wefti_free(taken);
}

static void placed(void *context, const char *tensor, const wefti_layout *use,
                   const wefti_mesh *mesh) {
    collector *c = context;
    if (c->status >= 0 && tensor)
        c->status = add_and_say(c, &c->tensors, tensor, wefti_layout_text(use, mesh).text);
}

static void assigned(void *context, const char *call, int32_t stage) {
    collector *c = context;
    if (c->status < 0 || c->assigned) return;
    c->status = WEFT_GROW(c->calls, c->call_count, c->call_cap);
    if (c->status < 0) return;
    c->calls[c->call_count].call = wefti_arena_strdup(c->arena, call);
    c->calls[c->call_count].stage = stage;
    if (!c->calls[c->call_count++].call) c->status = no_memory();
}

/* ---- rules ---- */

/* The pattern for a name. Characters with a meaning in patterns become '?'. With `numbers`, each
 * part that is a number becomes '*'. */
static char *pattern_of(wefti_arena *arena, const char *name, bool numbers) {
    char *pattern = wefti_arena_alloc(arena, strlen(name) + 1), *to = pattern;
    if (!pattern) return NULL;
    for (const char *at = name; *at;) {
        size_t length = strcspn(at, ".:");
        if (numbers && length && strspn(at, "0123456789") == length) {
            *to++ = '*';
            at += length;
        }
        for (; *at; at++) {
            *to++ = strchr("*?[", *at) ? '?' : *at;
            if (strchr(".:", *at)) break;
        }
        if (*at) at++;
    }
    return pattern;
}

/* Whether all names that match the pattern have this decision. */
static bool is_uniform(const sayings *all, const char *pattern, const char *text) {
    for (int64_t i = 0; i < all->count; i++) {
        const said *s = &all->items[i];
        if (s->text ? !strcmp(s->text, text) : !s->differs) continue;
        if (wefti_glob_match(pattern, s->name)) return false;
    }
    return true;
}

/* Adds a rule unless the plan has it. The new rule replaces rules with the same pattern. */
static weft_status add_op(weft_plan *out, const char *pattern, const char *text) {
    for (int64_t i = 0; i < out->strategy_count; i++) {
        wefti_text old = {0};
        if (strcmp(out->strategies[i].match, pattern) != 0) continue;
        wefti_split_print(out, &out->strategies[i], &old);
        char *taken = wefti_text_take(&old);
        bool same = taken && !strcmp(taken, text);
        wefti_free(taken);
        if (!taken) return no_memory();
        if (same) return WEFT_OK;
        out->strategy_count--;
        memmove(&out->strategies[i], &out->strategies[i + 1],
                (size_t)(out->strategy_count - i) * sizeof *out->strategies);
        i--;
    }
    return weft_plan_split_op(out, pattern, text);
}
static weft_status add_tensor(weft_plan *out, const char *pattern, const char *text) {
    for (int64_t i = 0; i < out->tensor_count; i++) {
        if (strcmp(out->tensors[i].match, pattern) != 0) continue;
        if (!strcmp(out->tensors[i].layout, text)) return WEFT_OK;
        out->tensor_count--;
        memmove(&out->tensors[i], &out->tensors[i + 1],
                (size_t)(out->tensor_count - i) * sizeof *out->tensors);
        i--;
    }
    return weft_plan_split_tensor(out, pattern, text);
}
static weft_status add_stage(weft_plan *out, const char *pattern, int32_t stage) {
    for (int64_t i = 0; i < out->pipeline.rule_count; i++)
        if (!strcmp(out->pipeline.rules[i].match, pattern) && out->pipeline.rules[i].stage == stage)
            return WEFT_OK;
    return weft_plan_stage(out, pattern, stage);
}

static weft_status write_rules(collector *c, const sayings *all, weft_plan *out,
                               weft_status (*add)(weft_plan *, const char *, const char *)) {
    sayings written = {0};
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < all->count && status >= 0; i++) {
        const said *s = &all->items[i];
        bool covered = false;
        if (!s->text) continue;
        for (int64_t k = 0; k < written.count && !covered; k++)
            covered = wefti_glob_match(written.items[k].name, s->name);
        if (covered) continue;
        char *pattern = pattern_of(c->arena, s->name, true);
        if (pattern && !is_uniform(all, pattern, s->text))
            pattern = pattern_of(c->arena, s->name, false);
        if (!pattern)
            status = no_memory();
        else
            status = add_and_say(c, &written, pattern, s->text);
        if (status >= 0) status = add(out, pattern, s->text);
    }
    end_sayings(&written);
    return status;
}

static weft_status write_plan(collector *c, weft_plan *out) {
    if (c->plan->mode == WEFT_PARALLEL_SEMI) WEFT_TRY(write_rules(c, &c->ops, out, add_op));
    WEFT_TRY(write_rules(c, &c->tensors, out, add_tensor));
    for (int64_t i = 0; i < c->call_count; i++) {
        char *pattern = pattern_of(c->arena, c->calls[i].call, false);
        if (!pattern) return no_memory();
        WEFT_TRY(add_stage(out, pattern, c->calls[i].stage));
    }
    return WEFT_OK;
}

/* ---- builds ---- */

uint64_t wefti_model_hash(const weft_graph *graph) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < graph->root->in_count; i++) {
        const wefti_value_info *v = &graph->root->values[graph->root->in[i]];
        char text[512];
        int used;
        if (v->kind != WEFTI_VALUE_PARAM) continue;
        used = snprintf(text, sizeof text, "%016llx %.256s", (unsigned long long)hash, v->name);
        for (int d = 0; d < v->desc.rank; d++)
            used += snprintf(text + used, sizeof text - (size_t)used, " %lld",
                             (long long)v->desc.shape[d]);
        hash = wefti_stream_of(text);
    }
    return hash;
}

weft_status wefti_plan_check_model(const weft_plan *plan, const weft_graph *graph,
                                   const char *path) {
    const uint64_t hash = wefti_model_hash(graph);
    WEFT_REQUIRE(!plan || !plan->model_hash || plan->model_hash == hash, WEFT_E_ARG,
                 "the plan %s was completed for another model (%016llx; this one is %016llx): "
                 "complete it for this one (weft plan), or take the member \"model\" and what "
                 "names the other model out of it",
                 path, (unsigned long long)plan->model_hash, (unsigned long long)hash);
    return WEFT_OK;
}

/* Whether an earlier stage has made the decisions of this one. */
static bool is_decided(const weft_plan *plan, int32_t stage) {
    const wefti_mesh mesh = wefti_plan_mesh(plan, stage);
    for (int32_t s = 0; s < stage; s++) {
        const wefti_mesh earlier = wefti_plan_mesh(plan, s);
        if (wefti_meshes_alike(&earlier, &mesh)) return true;
    }
    return false;
}

static weft_status observe_stage(const wefti_completion *what, collector *c, int32_t stage,
                                 wefti_route_cache *routes) {
    const wefti_observer observer = {c, decided, placed, assigned};
    const wefti_program_spec spec = {
        .graph = what->graph,
        .kind = wefti_kind_of(wefti_plan_mesh(what->plan, stage).first),
        .prepare = wefti_prepare_anywhere(),
        .optimizer = what->optimizer,
        .microbatches = what->microbatches,
        .plan = what->plan,
        .rank = wefti_plan_mesh(what->plan, stage).first,
        .routes = routes,
        .observer = is_decided(what->plan, stage) ? NULL : &observer,
    };
    wefti_program *program;
    WEFT_TRY(wefti_program_build(&spec, &program));
    for (int k = 0; k < 3; k++)
        if (program->fused[k] > c->fused[k]) c->fused[k] = program->fused[k];
    wefti_program_destroy(program);
    c->assigned = true;
    return c->status;
}

static weft_status observe_stages(const wefti_completion *what, collector *c) {
    wefti_route_cache *routes;
    weft_status status = WEFT_OK;
    WEFT_TRY(wefti_route_cache_create(&routes));
    for (int32_t s = 0; s < what->plan->pipeline.stages && status >= 0; s++) {
        const wefti_mesh mesh = wefti_plan_mesh(what->plan, s);
        status = observe_stage(what, c, s, routes);
        if (what->progress && status >= 0)
            what->progress(what->context, mesh.first + wefti_mesh_size(&mesh), what->plan->devices);
    }
    wefti_route_cache_destroy(routes);
    return status;
}

weft_status wefti_plan_complete(const wefti_completion *what, weft_plan *out,
                                int32_t out_fused[3]) {
    collector c = {.plan = what->plan};
    WEFT_TRY(wefti_graph_wrap(what->graph));
    WEFT_TRY(wefti_arena_create(&c.arena));
    weft_status status = add_ops(&c, what->graph);
    if (status >= 0) status = observe_stages(what, &c);
    if (status >= 0 && c.plan->devices > 1) status = write_plan(&c, out);
    memcpy(out_fused, c.fused, sizeof c.fused);
    end_sayings(&c.ops);
    end_sayings(&c.tensors);
    wefti_free(c.calls);
    wefti_arena_destroy(c.arena);
    return status;
}
