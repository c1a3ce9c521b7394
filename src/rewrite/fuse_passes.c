/* Fused forward-backward: both passes of one cell as one body.
 *
 * The loss cell is the last forward call and the first backward call. In one body its passes save
 * nothing, and fusion can work across them. For example, a product, its cross-entropy and their
 * gradients never need all logits at once. */
#include <string.h>

#include "rewrite/rewrite.h"

static bool same_attrs(const weft_node *a, const weft_node *b) {
    for (int i = 0; a->op->attrs && a->op->attrs[i].id; i++)
        if (!wefti_attr_equal(&a->attrs[i], &b->attrs[i])) return false;
    return true;
}

/* Whether `n` recomputes output 0 of `made`: n's op is made's `apply`, over the same operands and
 * made's own statistics (op.h, apply). */
static bool is_apply_of(const weft_node *made, const weft_node *n, const int32_t *in) {
    if (made->op->apply != n->op) return false;
    int operands = made->op->max_inputs;
    if (n->inputs != operands + made->outputs - 1) return false;
    for (int i = 0; i < operands; i++)
        if (in[i] != (i < made->inputs ? made->in[i] : -1)) return false;
    for (int o = 1; o < made->outputs; o++)
        if (in[operands + o - 1] != made->out[o]) return false;
    return true;
}

/* A node of `to` that already makes the results that `n` would recompute, or NULL. */
static const weft_node *find_made(const weft_body *to, const weft_node *n, const int32_t *in) {
    for (int64_t k = 0; k < to->node_count; k++) {
        const weft_node *made = &to->nodes[k];
        if (is_apply_of(made, n, in)) return made;
        if (made->op != n->op || made->callee != n->callee || made->inputs != n->inputs ||
            memcmp(made->in, in, (size_t)n->inputs * sizeof *in) || !same_attrs(made, n))
            continue;
        if (!(n->op->flags & WEFTI_OP_RANDOM) || made->stream == n->stream) return made;
    }
    return NULL;
}

/* Copies a body's nodes to the end of `to`. map[v] is the index in `to` of value v; inputs are set
 * before. With `reuse`, nodes that exist in `to` are not made again. */
static weft_status append_nodes(weft_body *to, const weft_body *from, int32_t *map, bool reuse) {
    for (int64_t k = 0; k < from->node_count; k++) {
        const weft_node *n = &from->nodes[k];
        int32_t in[WEFTI_MAX_IN], node;
        for (int i = 0; i < n->inputs; i++) in[i] = n->in[i] < 0 ? -1 : map[n->in[i]];
        const weft_node *made = reuse ? find_made(to, n, in) : NULL;
        if (made) {
            for (int o = 0; o < n->outputs; o++) map[n->out[o]] = made->out[o];
            continue;
        }
        WEFT_TRY(wefti_body_add_like(to, n, in, NULL, map, &node));
    }
    return WEFT_OK;
}

static weft_status fuse(weft_body *to, const wefti_cell_grad *grad, const bool *given, int32_t *map,
                        int32_t *map_back) {
    const weft_body *cell = grad->cell, *forward = grad->forward, *backward = grad->backward;
    for (int64_t i = 0; i < forward->in_count; i++) {
        const wefti_value_info *v = &forward->values[forward->in[i]];
        WEFT_TRY(wefti_body_input(to, v->desc, v->kind, v->name, &map[forward->in[i]]));
    }
    WEFT_TRY(append_nodes(to, forward, map, false));
    int32_t seed[64];
    WEFT_REQUIRE(cell->out_count <= 64, WEFT_E_NO_IMPL, "more than 64 results");
    for (int64_t o = 0; o < cell->out_count; o++) {
        const wefti_value_info *v = &cell->values[cell->out[o]];
        if (given[o]) WEFT_TRY(wefti_body_input(to, v->desc, WEFTI_VALUE_INPUT, "seed", &seed[o]));
        WEFT_TRY(wefti_body_output(to, map[forward->out[o]]));
    }
    for (int64_t i = 0; i < backward->in_count; i++) {
        wefti_grad_binding bind = grad->bindings[i];
        int32_t *slot = &map_back[backward->in[i]];
        switch (bind.source) {
        case WEFTI_GRAD_SAVED:
            *slot = map[forward->out[cell->out_count + bind.index]];
            break;
        case WEFTI_GRAD_INPUT:
            *slot = map[forward->in[bind.index]];
            break;
        case WEFTI_GRAD_OUTPUT:
            *slot = map[forward->out[bind.index]];
            break;
        case WEFTI_GRAD_DOUT:
            *slot = seed[bind.index];
            break;
        case WEFTI_GRAD_CROSSED: /* only in split passes */
            WEFT_FAIL(WEFT_E_BUG, "a split backward pass cannot be fused");
        }
    }
    WEFT_TRY(append_nodes(to, backward, map_back, true));
    for (int64_t o = 0; o < backward->out_count; o++)
        WEFT_TRY(wefti_body_output(to, map_back[backward->out[o]]));
    return WEFT_OK;
}

weft_status wefti_fuse_passes(weft_graph *g, const wefti_cell_grad *grad, const bool *given,
                              weft_body **out) {
    weft_body *to;
    weft_status status;
    WEFT_TRY(wefti_body_create(g, grad->cell->name, &to));
    int32_t *map = wefti_calloc((size_t)grad->forward->value_count + 1, sizeof *map);
    int32_t *map_back = wefti_calloc((size_t)grad->backward->value_count + 1, sizeof *map_back);
    if (map && map_back)
        status = fuse(to, grad, given, map, map_back);
    else
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to fuse a cell's passes");
    wefti_free(map);
    wefti_free(map_back);
    if (status < 0) {
        wefti_body_destroy(to);
        return status;
    }
    *out = to;
    return WEFT_OK;
}
