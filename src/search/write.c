/* The plan of assigned strategies: a mesh, a strategy for each op, and layouts of inputs and of
 * parameters that several ops read. Other parameters follow their readers. The user's settings stay
 * as they are. */
#include <stdio.h>
#include <string.h>

#include "base/map/map.h"
#include "partition/partition.h"
#include "search/find.h"
#include "search/search.h"

/* A name of the model and its strategy as text. */
typedef struct named {
    const char *name, *starred, *text; /* starred: with * for numbers */
    bool differs;                      /* ops of this name have different strategies */
} named;

typedef struct plan_writer {
    const wefti_find *f;
    weft_plan *out;
    wefti_arena *arena;
    int axis_of[WEFTI_MAX_AXES]; /* axis of the plan, per axis of the search */
    named *names;
    int64_t count, cap;
    wefti_map by_name, by_starred;
} plan_writer;

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory for a plan");
}

/* ---- the mesh ---- */

/* Whether axes a and a + 1 split the same factor everywhere. */
static bool together(const wefti_find *f, int a) {
    if (f->graph->mesh_given) return false;
    for (int32_t i = 0; i < f->graph->node_count; i++)
        if (f->assigned[i].factor[a] != f->assigned[i].factor[a + 1]) return false;
    return true;
}

/* Whether the outermost axis splits the batch of all inputs. */
static bool splits_batches(const wefti_find *f) {
    bool any = false;
    const wefti_choice_graph *g = f->graph;
    for (int32_t i = 0; i < g->node_count; i++) {
        const wefti_choice_node *n = &g->nodes[i];
        if (n->op || g->graph->root->values[n->tensor].kind != WEFTI_VALUE_INPUT) continue;
        if (g->graph->root->values[n->tensor].desc.rank == 0) continue;
        if (n->rule.out[0][0] < 0 || f->assigned[i].factor[0] != n->rule.out[0][0]) return false;
        any = true;
    }
    return any;
}

static weft_status write_mesh(plan_writer *w) {
    const wefti_mesh *mesh = &w->f->graph->mesh;
    int axes = 0;
    if (w->f->graph->mesh_given) {
        for (int a = 0; a < mesh->axes; a++) w->axis_of[a] = a;
        return WEFT_OK;
    }
    /* axes come before strategies, which these do not name */
    const int64_t strategies = w->out->strategy_count, tensors = w->out->tensor_count;
    w->out->strategy_count = w->out->tensor_count = 0;
    for (int a = 0; a < mesh->axes;) {
        int32_t size = mesh->axis[a].size;
        int end = a + 1;
        char name[16];
        for (; end < mesh->axes && together(w->f, end - 1); end++) size *= mesh->axis[end].size;
        (void)snprintf(name, sizeof name, "a%d", axes);
        if (!axes && splits_batches(w->f)) (void)snprintf(name, sizeof name, "dp");
        WEFT_TRY(weft_plan_axis(w->out, name, size));
        for (; a < end; a++) w->axis_of[a] = axes;
        axes++;
    }
    w->out->strategy_count = strategies;
    w->out->tensor_count = tensors;
    return WEFT_OK;
}

/* ---- texts ---- */

static void add_axes(const plan_writer *w, const wefti_assignment *s, int f, wefti_text *text) {
    int last = -1;
    for (int a = 0; a < w->f->graph->mesh.axes; a++) {
        if (s->factor[a] != f || w->axis_of[a] == last) continue;
        wefti_text_add(text, "%s%s", last >= 0 ? "+" : "", w->out->mesh.axis[w->axis_of[a]].name);
        last = w->axis_of[a];
    }
}

static bool is_split(const plan_writer *w, const wefti_assignment *s, int f) {
    return f >= 0 && wefti_choice_parts(&w->f->graph->mesh, s, f) > 1;
}

static weft_status take(const plan_writer *w, wefti_text *text, const char **out) {
    char *taken = wefti_text_take(text);
    *out = taken ? wefti_arena_strdup(w->arena, taken) : NULL;
    wefti_free(taken);
    return *out ? WEFT_OK : no_memory();
}

static weft_status text_of_op(const plan_writer *w, int32_t node, const char **out) {
    const wefti_choice_node *n = &w->f->graph->nodes[node];
    const wefti_assignment *s = &w->f->assigned[node];
    wefti_text text = {0};
    for (int f = 0; f < n->rule.factors; f++) {
        if (!is_split(w, s, f)) continue;
        wefti_text_add(&text, "%s%s=", text.used ? " " : "", n->rule.factor[f].name);
        add_axes(w, s, f, &text);
    }
    return take(w, &text, out);
}

static weft_status write_tensor(plan_writer *w, int32_t node) {
    const wefti_choice_node *n = &w->f->graph->nodes[node];
    const weft_desc *desc = wefti_choice_output(w->f->graph, n, 0);
    const bool input = w->f->graph->graph->root->values[n->tensor].kind == WEFTI_VALUE_INPUT;
    wefti_text text = {0};
    const char *layout;
    if (n->configured || desc->rank == 0 || !*n->label) return WEFT_OK;
    if (input && w->out->dataset_cuts.cuts) return WEFT_OK;
    wefti_text_add(&text, "[");
    for (int d = 0; d < desc->rank; d++) {
        const int f = n->rule.out[0][d];
        wefti_text_add(&text, "%s", d ? ", " : "");
        if (is_split(w, &w->f->assigned[node], f))
            add_axes(w, &w->f->assigned[node], f, &text);
        else
            wefti_text_add(&text, "-");
    }
    wefti_text_add(&text, "]");
    WEFT_TRY(take(w, &text, &layout));
    return weft_plan_split_tensor(w->out, n->label, layout);
}

/* ---- names ---- */

/* The pattern for a name: characters with a meaning become '?', and with `numbers` each part that
 * is a number becomes '*'. */
static const char *pattern_of(const plan_writer *w, const char *name, bool numbers) {
    char *pattern = wefti_arena_alloc(w->arena, strlen(name) + 1), *to = pattern;
    for (const char *at = name; pattern && *at;) {
        size_t length = strcspn(at, ".:");
        if (numbers && length && strspn(at, "0123456789") == length)
            *to++ = '*';
        else
            for (size_t i = 0; i < length; i++) *to++ = strchr("*?[", at[i]) ? '?' : at[i];
        at += length;
        if (*at) *to++ = *at++;
    }
    return pattern;
}

static weft_status add_name(plan_writer *w, const char *name, const char *text) {
    int64_t at = wefti_map_find_text(&w->by_name, name);
    if (at >= 0) {
        w->names[at].differs |= strcmp(w->names[at].text, text) != 0;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(w->names, w->count, w->cap));
    named *new = &w->names[w->count];
    *new = (named){.name = wefti_arena_strdup(w->arena, name), .text = text};
    if (!new->name) return no_memory();
    new->starred = pattern_of(w, new->name, true);
    if (!new->starred) return no_memory();
    return wefti_map_add_text(&w->by_name, new->name, w->count++, NULL);
}

static weft_status add_call(plan_writer *w, int64_t number, const char **texts) {
    const wefti_choice_graph *g = w->f->graph;
    const weft_node *call = &g->graph->root->nodes[number];
    for (int64_t i = 0; g->first[number] >= 0 && i < call->callee->node_count; i++) {
        const int64_t node = g->first[number] + i;
        const weft_node *op = &call->callee->nodes[i];
        char label[512], name[600];
        if (g->nodes[node].configured) continue;
        if (!texts[node]) WEFT_TRY(text_of_op(w, (int32_t)node, &texts[node]));
        wefti_node_label(call->callee, call->scope, op, label, sizeof label);
        snprintf(name, sizeof name, "%s:%s", label, op->op->name);
        WEFT_TRY(add_name(w, name, texts[node]));
    }
    return WEFT_OK;
}

static weft_status collect(plan_writer *w) {
    const wefti_choice_graph *g = w->f->graph;
    const char **texts;
    WEFT_NEW_ARRAY(texts, const char *, g->node_count + 1);
    weft_status status = WEFT_OK;
    for (int64_t k = 0; k < g->graph->root->node_count && status >= 0; k++)
        status = add_call(w, k, texts);
    wefti_free(texts);
    return status;
}

/* Whether the pattern matches only names with this text, among all names of the model. The user's
 * ops have no text here, so a pattern must not match them either. */
static bool is_uniform(const plan_writer *w, const char *pattern, const char *text) {
    const wefti_choice_graph *g = w->f->graph;
    for (int64_t i = 0; i < w->count; i++)
        if ((w->names[i].differs || strcmp(w->names[i].text, text) != 0) &&
            wefti_glob_match(pattern, w->names[i].name))
            return false;
    for (int64_t k = 0; k < g->graph->root->node_count && g->plan->strategy_count; k++) {
        const weft_node *call = &g->graph->root->nodes[k];
        for (int64_t i = 0; g->first[k] >= 0 && i < call->callee->node_count; i++) {
            const weft_node *op = &call->callee->nodes[i];
            char label[512], name[600];
            if (!g->nodes[g->first[k] + i].configured) continue;
            wefti_node_label(call->callee, call->scope, op, label, sizeof label);
            snprintf(name, sizeof name, "%s:%s", label, op->op->name);
            if (wefti_glob_match(pattern, name)) return false;
        }
    }
    return true;
}

static weft_status write_name(plan_writer *w, const named *n) {
    int64_t written;
    if (n->differs || !*n->text) return WEFT_OK;
    if (strchr(n->starred, '*')) {
        written = wefti_map_find_text(&w->by_starred, n->starred);
        if (written == 1) return WEFT_OK;
        if (written < 0) {
            const bool good = is_uniform(w, n->starred, n->text);
            WEFT_TRY(wefti_map_add_text(&w->by_starred, n->starred, good, NULL));
            if (good) return weft_plan_split_op(w->out, n->starred, n->text);
        }
    }
    const char *pattern = pattern_of(w, n->name, false);
    return pattern ? weft_plan_split_op(w->out, pattern, n->text) : no_memory();
}

static weft_status write_all(plan_writer *w) {
    WEFT_TRY(write_mesh(w));
    WEFT_TRY(collect(w));
    for (int64_t i = 0; i < w->count; i++) WEFT_TRY(write_name(w, &w->names[i]));
    for (int32_t i = 0; i < w->f->graph->node_count; i++)
        if (!w->f->graph->nodes[i].op) WEFT_TRY(write_tensor(w, i));
    w->out->model_hash = wefti_model_hash(w->f->graph->graph);
    return WEFT_OK;
}

weft_status wefti_find_write(const wefti_find *f, weft_plan **out) {
    plan_writer w = {.f = f};
    weft_plan *plan;
    WEFT_TRY(wefti_plan_copy(f->graph->plan, &plan));
    w.out = plan;
    weft_status status = wefti_arena_create(&w.arena);
    if (status >= 0) status = weft_plan_mode(plan, WEFT_PARALLEL_SEMI);
    if (status >= 0) status = write_all(&w);
    if (status >= 0) status = wefti_plan_check(plan);
    wefti_map_free(&w.by_name);
    wefti_map_free(&w.by_starred);
    wefti_free(w.names);
    wefti_arena_destroy(w.arena);
    if (status < 0) {
        weft_plan_destroy(plan);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = plan;
    return WEFT_OK;
}
