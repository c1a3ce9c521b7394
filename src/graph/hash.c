/* Structural hash and equality, to find equal cells. An operand is identified by its maker (node
 * and output number, or input position), so value indices and names do not matter. */
#include "graph/graph.h"

#include <string.h>

#include "base/philox.h"

static uint64_t mix(uint64_t h, uint64_t x) {
    h ^= x + 0x9E3779B97F4A7C15u + (h << 6) + (h >> 2);
    h *= 0xFF51AFD7ED558CCDu;
    return h ^ (h >> 32);
}

static uint64_t hash_desc(uint64_t h, const weft_desc *d) {
    h = mix(h, (uint64_t)d->dtype);
    h = mix(h, (uint64_t)d->rank);
    for (int i = 0; i < d->rank; i++) h = mix(h, (uint64_t)d->shape[i]);
    return h;
}

static uint64_t hash_operand(uint64_t h, const weft_body *b, int32_t value) {
    if (value < 0) return mix(h, UINT64_MAX);
    const wefti_value_info *v = &b->values[value];
    h = mix(h, v->kind == WEFTI_VALUE_NODE ? (uint64_t)v->node + 1 : 0);
    return mix(h, (uint64_t)v->slot);
}

static uint64_t float_bits(double f) {
    uint64_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static uint64_t hash_attr(uint64_t h, const wefti_attr *a) {
    switch (a->kind) {
    case WEFTI_ATTR_INT:
        return mix(h, (uint64_t)a->i);
    case WEFTI_ATTR_FLOAT:
        return mix(h, float_bits(a->f));
    case WEFTI_ATTR_INTS:
        h = mix(h, (uint64_t)a->ints.count);
        for (int i = 0; i < a->ints.count; i++) h = mix(h, (uint64_t)a->ints.v[i]);
        return h;
    case WEFTI_ATTR_TABLE:
        h = mix(h, (uint64_t)a->table.count);
        for (int i = 0; i < a->table.count; i++) h = mix(h, (uint64_t)a->table.v[i]);
        return h;
    }
    return h;
}

uint64_t wefti_body_hash(const weft_body *b) {
    uint64_t h = mix(0, (uint64_t)b->in_count);
    for (int64_t i = 0; i < b->in_count; i++) {
        const wefti_value_info *v = &b->values[b->in[i]];
        h = hash_desc(mix(h, (uint64_t)v->kind), &v->desc);
    }
    for (int64_t i = 0; i < b->node_count; i++) {
        const weft_node *n = &b->nodes[i];
        h = mix(h, wefti_stream_of(n->op->name));
        h = mix(h, (uint64_t)n->inputs << 16 | (uint64_t)n->outputs);
        for (int k = 0; k < n->inputs; k++) h = hash_operand(h, b, n->in[k]);
        for (const wefti_attr *a = n->attrs; a->id; a++) h = hash_attr(h, a);
        if (n->callee) h = mix(h, n->callee->hash); /* stored bodies have a hash */
        if (n->op->flags & WEFTI_OP_RANDOM) h = mix(h, n->stream);
    }
    for (int64_t o = 0; o < b->out_count; o++) h = hash_operand(h, b, b->out[o]);
    return h;
}

static bool same_operand(const weft_body *a, int32_t va, const weft_body *b, int32_t vb) {
    if (va < 0 || vb < 0) return va < 0 && vb < 0;
    const wefti_value_info *x = &a->values[va], *y = &b->values[vb];
    return x->kind == y->kind && x->node == y->node && x->slot == y->slot;
}

static bool same_ints(int count_a, const int64_t *a, int count_b, const int64_t *b) {
    return count_a == count_b && (!count_a || !memcmp(a, b, (size_t)count_a * sizeof *a));
}

bool wefti_attr_equal(const wefti_attr *a, const wefti_attr *b) {
    if (a->kind != b->kind || a->id != b->id) return false;
    switch (a->kind) {
    case WEFTI_ATTR_INT:
        return a->i == b->i;
    case WEFTI_ATTR_FLOAT:
        return float_bits(a->f) == float_bits(b->f);
    case WEFTI_ATTR_INTS:
        return same_ints(a->ints.count, a->ints.v, b->ints.count, b->ints.v);
    case WEFTI_ATTR_TABLE:
        return same_ints(a->table.count, a->table.v, b->table.count, b->table.v);
    }
    return false;
}

static bool same_node(const weft_node *x, const weft_node *y) {
    if (x->op != y->op || x->inputs != y->inputs || x->outputs != y->outputs) return false;
    if ((x->op->flags & WEFTI_OP_RANDOM) && x->stream != y->stream) return false;
    for (int k = 0; k < x->inputs; k++)
        if (!same_operand(x->body, x->in[k], y->body, y->in[k])) return false;
    for (int o = 0; o < x->outputs; o++)
        if (!wefti_desc_equal(wefti_out(x, o), wefti_out(y, o))) return false;
    for (int i = 0; x->attrs[i].id; i++)
        if (!wefti_attr_equal(&x->attrs[i], &y->attrs[i])) return false;
    if (!x->callee || !y->callee || x->callee == y->callee) return x->callee == y->callee;
    return wefti_body_equal(x->callee,
                            y->callee); /* at most two levels: cells, and fused nodes in them */
}

bool wefti_body_equal(const weft_body *a, const weft_body *b) {
    if (a->in_count != b->in_count || a->out_count != b->out_count ||
        a->node_count != b->node_count)
        return false;
    for (int64_t i = 0; i < a->in_count; i++) {
        const wefti_value_info *x = &a->values[a->in[i]], *y = &b->values[b->in[i]];
        if (x->kind != y->kind || !wefti_desc_equal(&x->desc, &y->desc)) return false;
    }
    for (int64_t i = 0; i < a->node_count; i++)
        if (!same_node(&a->nodes[i], &b->nodes[i])) return false;
    for (int64_t o = 0; o < a->out_count; o++)
        if (!same_operand(a, a->out[o], b, b->out[o])) return false;
    return true;
}
