/* The graph object: lifetime, the sticky error, unique bodies, named root values. */
#include "graph/builder.h"

#include <string.h>

#include "base/philox.h"

weft_status wefti_graph_create(const wefti_op_registry *ops, weft_graph **out) {
    weft_graph *g;
    WEFT_NEW(g, weft_graph);
    g->ops = ops;
    g->loss = -1;
    weft_status st;
    WEFT_TRY_OR(fail, st, wefti_arena_create(&g->arena));
    WEFT_TRY_OR(fail, st, wefti_body_create(g, "", &g->root));
    g->builder = wefti_calloc(1, sizeof *g->builder);
    if (!g->builder) {
        st = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a graph");
        goto fail;
    }
    g->builder->current = g->root;
    g->builder->scope = "";
    *out = g;
    return WEFT_OK;
fail:
    weft_graph_destroy(g);
    return st;
}

weft_status wefti_graph_derive(const weft_graph *of, weft_graph **out) {
    WEFT_REQUIRE(wefti_graph_ok(of), of->status, "%s", weft_graph_message(of));
    weft_graph *g;
    WEFT_NEW(g, weft_graph);
    *g = (weft_graph){.of = of,
                      .ops = of->ops,
                      .root = of->root,
                      .cells = of->cells,
                      .cell_count = of->cell_count,
                      .outputs = of->outputs,
                      .output_count = of->output_count,
                      .assigns = of->assigns,
                      .assign_count = of->assign_count,
                      .loss = of->loss};
    weft_status st;
    WEFT_TRY_OR(fail, st, wefti_arena_create(&g->arena));
    g->builder = wefti_calloc(1, sizeof *g->builder);
    if (!g->builder) {
        st = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a graph");
        goto fail;
    }
    g->builder->scope = "";
    *out = g;
    return WEFT_OK;
fail:
    weft_graph_destroy(g);
    return st;
}

int64_t wefti_graph_derived_bytes(const weft_graph *g) {
    if (!g) return 0;
    const wefti_builder *b = g->builder;
    int64_t bytes = (int64_t)(sizeof *g + sizeof *b) + wefti_arena_bytes(g->arena) +
                    wefti_array_bytes(g->fused, g->fused_cap, sizeof *g->fused) +
                    wefti_array_bytes(b->handles, b->handle_cap, sizeof *b->handles) +
                    wefti_array_bytes(b->captures, b->capture_cap, sizeof *b->captures) +
                    wefti_array_bytes(b->assigns, b->assign_cap, sizeof *b->assigns) +
                    wefti_array_bytes(b->names.slots, b->names.capacity, sizeof *b->names.slots);
    for (int64_t i = 0; i < g->fused_count; i++) bytes += wefti_body_bytes(g->fused[i]);
    return bytes;
}

void wefti_builder_destroy(wefti_builder *b) {
    if (!b) return;
    wefti_body_destroy(b->cell);
    wefti_free(b->handles);
    wefti_free(b->captures);
    wefti_free(b->assigns);
    wefti_map_free(&b->names);
    wefti_free(b);
}

void weft_graph_destroy(weft_graph *g) {
    if (!g) return;
    wefti_builder_destroy(g->builder);
    if (!g->of) {
        wefti_body_destroy(g->root);
        for (int64_t i = 0; i < g->cell_count; i++) wefti_body_destroy(g->cells[i]);
        wefti_free(g->cells);
        wefti_free(g->outputs);
        wefti_free(g->assigns);
    }
    for (int64_t i = 0; i < g->fused_count; i++) wefti_body_destroy(g->fused[i]);
    wefti_free(g->fused);
    wefti_free(g->message);
    wefti_arena_destroy(g->arena);
    wefti_free(g);
}

/* ---- the sticky error ---- */

weft_status weft_graph_status(const weft_graph *g) {
    return g->status;
}

const char *weft_graph_message(const weft_graph *g) {
    if (g->message) return g->message;
    return g->status < 0 ? weft_status_text(g->status) : "";
}

bool wefti_graph_ok(const weft_graph *g) {
    return g->status >= 0;
}

bool wefti_graph_take(weft_graph *g, const char *what, const void *given, void *own) {
    const weft_status status = wefti_struct_take(what, given, own);
    if (status < 0) wefti_graph_fail(g, status);
    return status >= 0;
}

void wefti_graph_fail(weft_graph *g, weft_status status) {
    if (g->status < 0) return;
    if (g->builder->path[0]) (void)wefti_prefix(status, "%s", g->builder->path);
    g->status = status;
    g->message = wefti_strdup(weft_error_message()); /* if memory is missing, the status text
                                                        replaces it */
}

/* ---- names ---- */

weft_status wefti_name_check(const char *what, const char *name) {
    WEFT_REQUIRE(name && name[0], WEFT_E_ARG, "%s has an empty name", what);
    size_t length = strlen(name);
    WEFT_REQUIRE(length < WEFTI_MAX_NAME, WEFT_E_ARG,
                 "the name of %s has %zu characters, more than %d", what, length,
                 WEFTI_MAX_NAME - 1);
    size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    WEFT_REQUIRE(
        good == length, WEFT_E_ARG,
        "the name '%s' of %s has a character that is not a letter, a digit or one of _ . -", name,
        what);
    return WEFT_OK;
}

weft_status wefti_builder_claim(weft_graph *g, char space, const char *name, bool *out_new) {
    wefti_map *names = &g->builder->names;
    const int64_t before = names->count;
    char *key = wefti_arena_format(g->arena, "%c:%s", space, name);
    WEFT_REQUIRE(key, WEFT_E_NOMEM, "no memory for a name");
    WEFT_TRY(wefti_map_add_text(names, key, 0, NULL));
    *out_new = names->count > before;
    return WEFT_OK;
}

/* ---- the root's named parts ---- */

weft_status wefti_root_value(weft_graph *g, wefti_value_kind kind, const char *name, weft_desc desc,
                             weft_init init, int32_t *out) {
    int32_t value;
    WEFT_TRY(wefti_body_input(g->root, desc, kind, name, &value));
    g->root->values[value].init = init;
    *out = value;
    return WEFT_OK;
}

weft_status wefti_root_output(weft_graph *g, const char *name, int32_t value) {
    WEFT_TRY(wefti_name_check("an output", name));
    bool fresh;
    WEFT_TRY(wefti_builder_claim(g, 'o', name, &fresh));
    WEFT_REQUIRE(fresh, WEFT_E_ARG, "the output '%s' exists already", name);
    char *copy = wefti_arena_strdup(g->arena, name);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a name");
    WEFT_TRY(WEFT_GROW(g->outputs, g->output_count, g->output_cap));
    WEFT_TRY(wefti_body_output(g->root, value));
    g->outputs[g->output_count++] = (wefti_named){copy, value};
    return WEFT_OK;
}

weft_status wefti_root_loss(weft_graph *g, int32_t value) {
    const weft_desc *d = &g->root->values[value].desc;
    WEFT_REQUIRE(g->loss < 0, WEFT_E_ARG, "the graph has a loss already");
    WEFT_REQUIRE(d->rank == 0 && (d->dtype == WEFT_F32 || d->dtype == WEFT_F64), WEFT_E_SHAPE,
                 "the loss must be a scalar, f32[] or f64[], not %s", wefti_desc_text(d).text);
    g->loss = value;
    return WEFT_OK;
}

weft_status wefti_root_assign(weft_graph *g, int32_t state, int32_t next) {
    const wefti_value_info *s = &g->root->values[state], *n = &g->root->values[next];
    WEFT_REQUIRE(s->kind == WEFTI_VALUE_STATE, WEFT_E_ARG, "only a state can be updated");
    WEFT_REQUIRE(wefti_desc_equal(&s->desc, &n->desc), WEFT_E_SHAPE,
                 "the state '%s' is %s and cannot become %s", s->name,
                 wefti_desc_text(&s->desc).text, wefti_desc_text(&n->desc).text);
    for (int64_t i = 0; i < g->assign_count; i++)
        WEFT_REQUIRE(g->assigns[i].state != state, WEFT_E_ARG, "the state '%s' is updated twice",
                     s->name);
    WEFT_TRY(WEFT_GROW(g->assigns, g->assign_count, g->assign_cap));
    g->assigns[g->assign_count++] = (wefti_assign){state, next};
    return WEFT_OK;
}

/* ---- unique bodies ---- */

/* Plans refer to the inside of a cell by names, so cells with different names are different. The
 * names of outer parameters do not belong to the cell and are not compared. */
static bool same_names(const weft_body *a, const weft_body *b) {
    for (int64_t i = 0; i < a->node_count; i++)
        if (strcmp(a->nodes[i].scope, b->nodes[i].scope) != 0) return false;
    for (int64_t i = 0; i < a->in_count; i++) {
        const wefti_value_info *x = &a->values[a->in[i]], *y = &b->values[b->in[i]];
        if (x->kind != WEFTI_VALUE_PARAM || (x->of_root && y->of_root)) continue;
        if (x->name && y->name ? strcmp(x->name, y->name) != 0 : x->name != y->name) return false;
    }
    return true;
}

/* Returns the stored body that equals `b`, or stores `b`. `names`: names inside must be equal
 * too. */
static weft_status intern(bool names, weft_body ***list, int64_t *count, int64_t *cap, weft_body *b,
                          weft_body **out) {
    b->hash = wefti_body_hash(b);
    for (int64_t i = 0; i < *count; i++)
        if ((*list)[i]->hash == b->hash && wefti_body_equal((*list)[i], b) &&
            (!names || same_names((*list)[i], b))) {
            wefti_body_destroy(b);
            *out = (*list)[i];
            return WEFT_OK;
        }
    weft_status st = wefti_grow((void **)list, *count, cap, sizeof **list);
    if (st < 0) {
        wefti_body_destroy(b);
        return wefti_note(st, __func__, __FILE__, __LINE__);
    }
    (*list)[(*count)++] = b;
    *out = b;
    return WEFT_OK;
}

weft_status wefti_graph_intern(weft_graph *g, weft_body *b, weft_body **out) {
    return intern(true, &g->cells, &g->cell_count, &g->cell_cap, b, out);
}

weft_status wefti_graph_intern_part(weft_graph *g, weft_body *b, weft_body **out) {
    return intern(true, &g->fused, &g->fused_count, &g->fused_cap, b, out);
}

static weft_status name_fused(weft_graph *g, weft_body *b) {
    bool fresh;
    const char *wanted = b->name;
    WEFT_TRY(wefti_builder_claim(g, 'f', b->name, &fresh));
    for (int64_t i = g->fused_count - 1; !fresh; i++) {
        b->name = wefti_arena_format(g->arena, "%s.%lld", wanted, (long long)i);
        WEFT_REQUIRE(b->name, WEFT_E_NOMEM, "no memory for a name");
        WEFT_TRY(wefti_builder_claim(g, 'f', b->name, &fresh));
    }
    return WEFT_OK;
}

weft_status wefti_graph_intern_fused(weft_graph *g, weft_body *b, weft_body **out) {
    int64_t before = g->fused_count;
    WEFT_TRY(intern(false, &g->fused, &g->fused_count, &g->fused_cap, b, out));
    if (g->fused_count > before) WEFT_TRY(name_fused(g, *out));
    return WEFT_OK;
}
