/* Places values and workspaces of a routine in its frame. */
#include "compile/compiler.h"
#include "memory/place.h"

static void use(wefti_compiler *c, int32_t value, int32_t at) {
    int32_t root = wefti_compiler_root(c, value);
    if (c->first[root] < 0) c->first[root] = at;
    if (at > c->last[root]) c->last[root] = at;
}

/* Operands of transfers that are in flight together live until the last transfer ends. */
static void use_operands(wefti_compiler *c, const weft_node *n, int32_t at) {
    for (int i = 0; i < n->inputs; i++)
        if (n->in[i] >= 0) use(c, n->in[i], at);
    for (int o = 0; o < n->outputs; o++) use(c, n->out[o], at);
}

weft_status wefti_compiler_place_frame(wefti_compiler *c) {
    const weft_body *b = c->body;
    wefti_routine *r = c->r;
    for (int64_t v = 0; v < b->value_count; v++) c->first[v] = c->last[v] = -1;
    for (int32_t k = 0, begin = 0; k < r->code_count; k++) {
        wefti_instruction *x = &r->code[k];
        int32_t end = k;
        if (k == 0 || !r->code[k - 1].joined) begin = k;
        while (r->code[end].joined) end++;
        if (!x->node) {
            use(c, c->moves[k].from, k);
            if (c->moves[k].to >= 0) use(c, c->moves[k].to, k);
            continue;
        }
        use_operands(c, x->node, begin);
        use_operands(c, x->node, end);
    }
    wefti_lifetime *life;
    int32_t *owner;
    int64_t count = 0, cap = b->value_count + r->code_count;
    WEFT_TRY(wefti_compiler_array(c, (size_t)cap * sizeof *life, &life));
    WEFT_TRY(wefti_compiler_array(c, (size_t)cap * sizeof *owner, &owner));
    for (int64_t v = 0; v < b->value_count; v++) {
        if (c->root[v] != v || c->place[v].arg != WEFTI_REF_NONE || c->first[v] < 0) continue;
        owner[count] = (int32_t)v;
        life[count++] = (wefti_lifetime){
            .bytes = weft_desc_bytes(&b->values[v].desc), .first = c->first[v], .last = c->last[v]};
    }
    int64_t values = count;
    for (int32_t k = 0; k < r->code_count; k++) {
        if (r->code[k].workspace_bytes <= 0) continue;
        owner[count] = k;
        life[count++] =
            (wefti_lifetime){.bytes = r->code[k].workspace_bytes, .first = k, .last = k};
    }
    WEFT_TRY(wefti_place(life, count, &r->frame_bytes));
#ifdef WEFT_DEBUG_CHECKS
    WEFT_TRY(wefti_place_check(life, count, r->frame_bytes));
#endif
    for (int64_t i = 0; i < values; i++)
        c->place[owner[i]] = (wefti_ref){WEFTI_REF_FRAME, life[i].offset};
    for (int64_t i = values; i < count; i++)
        r->code[owner[i]].workspace = (wefti_ref){WEFTI_REF_FRAME, life[i].offset};
    for (int32_t k = 0; k < r->code_count; k++) {
        wefti_instruction *x = &r->code[k];
        if (!x->node) {
            x->in[0] = c->place[wefti_compiler_root(c, c->moves[k].from)];
            if (c->moves[k].to >= 0) x->out[0] = c->place[wefti_compiler_root(c, c->moves[k].to)];
            continue;
        }
        for (int i = 0; i < x->node->inputs; i++)
            x->in[i] = x->node->in[i] < 0 ? WEFTI_NO_REF
                                          : c->place[wefti_compiler_root(c, x->node->in[i])];
        for (int o = 0; o < x->node->outputs; o++)
            x->out[o] = c->place[wefti_compiler_root(c, x->node->out[o])];
    }
    return WEFT_OK;
}
