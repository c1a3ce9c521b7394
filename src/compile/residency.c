/* Where values of a body live: which share memory with an operand, and which lie in arguments of
 * the caller. */
#include "compile/compiler.h"

/* Marks all values that share the memory which an in-place op overwrites. */
static void overwrite(wefti_compiler *c, int32_t root, int64_t node) {
    const weft_body *b = c->body;
    for (int64_t v = 0; v < b->value_count; v++)
        if (b->values[v].node < node && wefti_compiler_root(c, (int32_t)v) == root)
            c->overwritten[v] = true;
}

static weft_status still_there(const wefti_compiler *c, int32_t value, const char *reader) {
    WEFT_REQUIRE(value < 0 || !c->overwritten[value], WEFT_E_NO_IMPL,
                 "%s uses a value that was overwritten in place before: use the new value, or the "
                 "old one earlier",
                 reader);
    return WEFT_OK;
}

weft_status wefti_compiler_find_aliases(wefti_compiler *c) {
    const weft_body *b = c->body;
    for (int64_t v = 0; v < b->value_count; v++) c->root[v] = (int32_t)v;
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        for (int i = 0; i < n->inputs; i++) WEFT_TRY(still_there(c, n->in[i], n->op->name));
        if (n->op->flags & WEFTI_OP_RESHAPE) {
            c->root[n->out[0]] = wefti_compiler_root(c, n->in[0]);
            c->in_place_chain[n->out[0]] = c->in_place_chain[n->in[0]];
        }
        if (n->op->flags & WEFTI_OP_IN_PLACE)
            for (int o = 0; o < n->outputs; o++) {
                overwrite(c, wefti_compiler_root(c, n->in[o]), k);
                c->root[n->out[o]] = wefti_compiler_root(c, n->in[o]);
                c->in_place_chain[n->out[o]] = true;
            }
    }
    for (int64_t o = 0; o < b->out_count; o++)
        WEFT_TRY(still_there(c, b->out[o], "a result of the cell"));
    return WEFT_OK;
}

void wefti_compiler_place_inputs(wefti_compiler *c) {
    const weft_body *b = c->body;
    for (int64_t i = 0; i < b->in_count; i++) {
        int64_t saved = c->spec->in_saved ? c->spec->in_saved[i] : -1;
        c->place[b->in[i]] =
            saved >= 0 ? (wefti_ref){c->r->saved_arg, saved} : (wefti_ref){(int32_t)i, 0};
    }
}

/* Counts the uses of a root by nodes and results, to decide whether a result may be accumulated in
 * place. Values added to it on the way do not count as uses. */
static int uses_of(const wefti_compiler *c, int32_t root) {
    const weft_body *b = c->body;
    int uses = 0;
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        if (n->op->flags & WEFTI_OP_RESHAPE) continue;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] >= 0 && wefti_compiler_root(c, n->in[i]) == root)
                uses += !(wefti_compiler_adds(n) && i == 0);
    }
    for (int64_t o = 0; o < b->out_count; o++)
        if (wefti_compiler_root(c, b->out[o]) == root) uses++;
    return uses;
}

weft_status wefti_compiler_place_outputs(wefti_compiler *c, wefti_disposition *end,
                                         bool *accumulate_root) {
    const weft_body *b = c->body;
    for (int64_t o = 0; o < b->out_count; o++) {
        int32_t value = b->out[o], root = wefti_compiler_root(c, value);
        int64_t saved = c->spec->out_saved ? c->spec->out_saved[o] : -1;
        wefti_ref target = saved >= 0 ? (wefti_ref){c->r->saved_arg, saved}
                                      : (wefti_ref){c->r->inputs + (int32_t)o, 0};
        bool add = c->spec->accumulate && c->spec->accumulate[o];
        bool is_input = b->values[root].node < 0;
        if (o < c->r->outputs) c->r->alias[o] = -1;
        if (add) {
            bool direct = !c->spec->late && !is_input && uses_of(c, root) == 1 &&
                          c->place[root].arg == WEFTI_REF_NONE;
            end[o] = direct ? WEFTI_RESULT_WRITTEN : WEFTI_RESULT_ADDED;
            if (direct) {
                c->place[root] = target;
                accumulate_root[root] = true;
            }
        } else if (is_input && c->in_place_chain[value] && o < c->r->outputs) {
            end[o] = WEFTI_RESULT_ALIASED;
            c->r->alias[o] = c->place[root].arg;
        } else if (!is_input && c->place[root].arg == WEFTI_REF_NONE) {
            end[o] = WEFTI_RESULT_WRITTEN;
            c->place[root] = target;
        } else {
            end[o] = WEFTI_RESULT_COPIED;
        }
    }
    return WEFT_OK;
}
