/* Weight-gradient split: divides a backward body into two parts. The first makes gradients of
 * activations, for which other pipeline stages wait. The second makes gradients of weights, which
 * are needed only by the update (Qi et al., "Zero bubble pipeline parallelism", ICLR 2024, section
 * 2). A value that the second part needs from the first is a result of the first and an input of
 * the second. */
#include <string.h>

#include "graph/grad/grad.h"

typedef struct splitter {
    const weft_body *from;
    bool *first;     /* per node: the first part runs it */
    bool *second;    /* per node: the second part runs it */
    bool *crosses;   /* per value: made by the first part, read by the second */
    int32_t *map[2]; /* per value: its index in each part, -1 */
} splitter;

/* Marks in `out` the nodes that lead to the values marked in `live`, except the nodes in `skip`. */
static void mark(const weft_body *b, bool *live, const bool *skip, bool *out) {
    for (int64_t k = b->node_count - 1; k >= 0; k--) {
        const weft_node *n = &b->nodes[k];
        bool needed = false;
        for (int o = 0; o < n->outputs; o++) needed |= live[n->out[o]];
        if (!needed || (skip && skip[k])) continue;
        out[k] = true;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] >= 0) live[n->in[i]] = true;
    }
}

static bool made_by(const splitter *s, int32_t v, const bool *part) {
    int32_t node = s->from->values[v].node;
    return node >= 0 && part[node];
}

static weft_status add_nodes(const splitter *s, const bool *part, int32_t *map, weft_body *to) {
    for (int64_t k = 0; k < s->from->node_count; k++) {
        if (part[k]) WEFT_TRY(wefti_body_copy_node(to, &s->from->nodes[k], map));
    }
    return WEFT_OK;
}

static weft_status add_input(weft_body *to, const wefti_value_info *like, wefti_grad_binding bind,
                             wefti_cell_grad *part, int32_t *out) {
    WEFT_TRY(wefti_body_input(to, like->desc,
                              like->kind == WEFTI_VALUE_NODE ? WEFTI_VALUE_INPUT : like->kind,
                              like->name, out));
    part->bindings[to->in_count - 1] = bind;
    return WEFT_OK;
}

/* Adds the inputs that the part's nodes read. */
static weft_status bind_part(const splitter *s, const wefti_cell_grad *whole, const bool *nodes,
                             int32_t *map, wefti_cell_grad *part) {
    bool *read;
    WEFT_NEW_ARRAY(read, bool, s->from->value_count + 1);
    weft_status status = WEFT_OK;
    for (int64_t k = 0; k < s->from->node_count; k++)
        for (int i = 0; nodes[k] && i < s->from->nodes[k].inputs; i++)
            if (s->from->nodes[k].in[i] >= 0) read[s->from->nodes[k].in[i]] = true;
    for (int64_t i = 0; i < s->from->in_count && status == WEFT_OK; i++) {
        int32_t v = s->from->in[i];
        if (read[v])
            status =
                add_input(part->backward, &s->from->values[v], whole->bindings[i], part, &map[v]);
    }
    wefti_free(read);
    return status;
}

static weft_status fill(splitter *s, const wefti_cell_grad *whole, const bool *weights,
                        wefti_cell_grad *parts) {
    const weft_body *from = s->from;
    WEFT_TRY(bind_part(s, whole, s->first, s->map[0], &parts[0]));
    WEFT_TRY(add_nodes(s, s->first, s->map[0], parts[0].backward));
    WEFT_TRY(bind_part(s, whole, s->second, s->map[1], &parts[1]));
    int32_t crossed = 0;
    for (int32_t v = 0; v < from->value_count; v++)
        if (s->crosses[v])
            WEFT_TRY(add_input(parts[1].backward, &from->values[v],
                               (wefti_grad_binding){WEFTI_GRAD_CROSSED, crossed++}, &parts[1],
                               &s->map[1][v]));
    WEFT_TRY(add_nodes(s, s->second, s->map[1], parts[1].backward));
    for (int64_t i = 0; i < whole->cell->in_count; i++) {
        int32_t o = whole->gradient_out[i];
        parts[0].gradient_out[i] = parts[1].gradient_out[i] = -1;
        if (o < 0) continue;
        int32_t v = from->out[o], which = weights[i] && made_by(s, v, s->second) ? 1 : 0;
        if (s->map[which][v] < 0) { /* the gradient is an input of the body itself */
            for (int64_t k = 0; k < from->in_count; k++)
                if (from->in[k] == v)
                    WEFT_TRY(add_input(parts[which].backward, &from->values[v], whole->bindings[k],
                                       &parts[which], &s->map[which][v]));
        }
        WEFT_REQUIRE(s->map[which][v] >= 0, WEFT_E_BUG, "a gradient is in neither part");
        parts[which].gradient_out[i] = (int32_t)parts[which].backward->out_count;
        WEFT_TRY(wefti_body_output(parts[which].backward, s->map[which][v]));
    }
    for (int32_t v = 0; v < from->value_count; v++)
        if (s->crosses[v]) WEFT_TRY(wefti_body_output(parts[0].backward, s->map[0][v]));
    parts[0].crossed = parts[1].crossed = crossed;
    return WEFT_OK;
}

static weft_status new_part(weft_graph *g, const wefti_cell_grad *whole, wefti_cell_grad *part) {
    size_t inputs = (size_t)(whole->backward->in_count + whole->backward->value_count + 1);
    *part = (wefti_cell_grad){.cell = whole->cell, .saved = whole->saved};
    part->bindings = wefti_arena_alloc(g->arena, inputs * sizeof *part->bindings);
    part->gradient_out = wefti_arena_alloc(g->arena, (size_t)(whole->cell->in_count + 1) *
                                                         sizeof *part->gradient_out);
    WEFT_REQUIRE(part->bindings && part->gradient_out, WEFT_E_NOMEM,
                 "no memory to split a backward pass");
    WEFT_TRY(wefti_body_create(g, whole->backward->name, &part->backward));
    part->backward->streams = whole->backward->streams;
    return WEFT_OK;
}

static weft_status split(splitter *s, weft_graph *g, const wefti_cell_grad *whole,
                         const bool *weights, bool *live, wefti_cell_grad *parts) {
    const weft_body *b = s->from;
    size_t values = (size_t)b->value_count + 1, nodes = (size_t)b->node_count + 1;
    WEFT_NEW_ARRAY(s->first, bool, nodes);
    WEFT_NEW_ARRAY(s->second, bool, nodes);
    WEFT_NEW_ARRAY(s->crosses, bool, values);
    WEFT_NEW_ARRAY(s->map[0], int32_t, values);
    WEFT_NEW_ARRAY(s->map[1], int32_t, values);
    for (size_t v = 0; v < values; v++) s->map[0][v] = s->map[1][v] = -1;
    for (int round = 0; round < 2; round++) {
        memset(live, 0, values * sizeof *live);
        for (int64_t i = 0; i < whole->cell->in_count; i++)
            if (whole->gradient_out[i] >= 0 && weights[i] == (round == 1))
                live[b->out[whole->gradient_out[i]]] = true;
        mark(b, live, round ? s->first : NULL, round ? s->second : s->first);
    }
    for (int64_t k = 0; k < b->node_count; k++)
        for (int i = 0; s->second[k] && i < b->nodes[k].inputs; i++) {
            int32_t v = b->nodes[k].in[i];
            if (v >= 0 && made_by(s, v, s->first)) s->crosses[v] = true;
        }
    WEFT_TRY(new_part(g, whole, &parts[0]));
    WEFT_TRY(new_part(g, whole, &parts[1]));
    return fill(s, whole, weights, parts);
}

weft_status wefti_cell_grad_split(weft_graph *g, wefti_cell_grad *whole, const bool *weights) {
    splitter s = {.from = whole->backward};
    wefti_cell_grad *parts = wefti_arena_alloc(g->arena, 2 * sizeof *parts);
    WEFT_REQUIRE(parts, WEFT_E_NOMEM, "no memory to split a backward pass");
    bool *live;
    WEFT_NEW_ARRAY(live, bool, whole->backward->value_count + 1);
    weft_status status = split(&s, g, whole, weights, live, parts);
    wefti_free(live);
    wefti_free(s.first);
    wefti_free(s.second);
    wefti_free(s.crosses);
    wefti_free(s.map[0]);
    wefti_free(s.map[1]);
    if (status < 0) {
        wefti_body_destroy(parts[0].backward);
        wefti_body_destroy(parts[1].backward);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    whole->parts = parts;
    return WEFT_OK;
}
