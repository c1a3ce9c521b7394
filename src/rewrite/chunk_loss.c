/* Chunked loss: computes loss heads for a chunk of rows at a time. See rewrite.h.
 *
 * A head that one node computes (fuse_loss.c) is not handled here. The remaining heads are
 *
 *     logits = linear(x, w)          loss, lse, count = cross_entropy(logits, targets, count)
 *
 * without gradients, or with dlogits = cross_entropy_grad(logits, lse, count) and some of its uses:
 * dx, dw, dbias. If the vocabulary is split, a device has instead
 *
 *     terms, lse here = cross_entropy_part(logits, targets)
 *     lse = of all devices, by transfers of [rows] and arithmetic on [rows]
 *
 * Each row is computed independently; only loss, dw and dbias sum over rows. So these nodes are
 * repeated for each chunk of rows. Results with rows are joined; sums accumulate. The loss is
 * summed over its rows at the end, so that chunking does not change it. The logits of one chunk
 * die, or become their gradient and die, before the next chunk's logits are made.
 *
 * The communication between loss and gradient is also done per chunk. There are as many transfers
 * as chunks, with equal total bytes. All members of a transfer compute the same number of chunks,
 * from its rows and the whole vocabulary. Without gradients this communication follows the chunks,
 * for all rows at once. */
#include <string.h>

#include "graph/lower/lower.h"
#include "rewrite/rewrite.h"

enum { CHUNK_LOSS_NONE = -1, LINEAR = 0, LOSS, GRAD, GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS, NODES };

typedef struct chunk_loss_region {
    const weft_body *b;
    const wefti_partition *part;
    int64_t node[NODES];  /* node indices, -1: the head lacks the node */
    bool whole;           /* the loss covers all classes, so its rows are summed here */
    bool *inside, *later; /* per node: inside: repeated per chunk; later: depends on repeated
                             nodes */
    int64_t rows, chunks;
    int32_t **pieces; /* per value with rows: its chunks in the new body; NULL: not joined */
    int64_t from, to; /* the nodes of the chunks in the new body */
} chunk_loss_region;

/* Counts how often a value is read. *out: the last node with op `op` that reads it as operand
 * `slot`. */
static int readers(const weft_body *b, int32_t value, wefti_op_id op, int slot, int64_t *out) {
    int count = 0;
    *out = CHUNK_LOSS_NONE;
    for (int64_t k = 0; k < b->node_count; k++)
        for (int i = 0; i < b->nodes[k].inputs; i++) {
            if (b->nodes[k].in[i] != value) continue;
            count++;
            if (i == slot && b->nodes[k].op->id == op) *out = k;
        }
    for (int64_t o = 0; o < b->out_count; o++) count += b->out[o] == value;
    return count;
}

/* Finds the readers of the logits' gradient. True if there is at most one of each kind, and no
 * other reader. */
static bool find_uses(chunk_loss_region *r, int32_t dlogits) {
    static const struct {
        wefti_op_id op;
        int at, slot;
    } uses[] = {{WEFTI_OP_linear_grad_input, GRAD_INPUT, 0},
                {WEFTI_OP_linear_grad_weight, GRAD_WEIGHT, 1},
                {WEFTI_OP_sum_to, GRAD_BIAS, 0}};
    const weft_body *b = r->b;
    int found = 0, count = 0;
    for (int u = 0; u < 3; u++) {
        count = readers(b, dlogits, uses[u].op, uses[u].slot, &r->node[uses[u].at]);
        found += r->node[uses[u].at] >= 0;
    }
    const weft_node *linear = &b->nodes[r->node[LINEAR]];
    int64_t input = r->node[GRAD_INPUT], weight = r->node[GRAD_WEIGHT], bias = r->node[GRAD_BIAS];
    return found == count && found > 0 && (input < 0 || b->nodes[input].in[1] == linear->in[1]) &&
           (weight < 0 || b->nodes[weight].in[0] == linear->in[0]) &&
           (bias < 0 || wefti_out(&b->nodes[bias], 0)->rank == 1);
}

static const wefti_transfer *transfer_of(const chunk_loss_region *r, const weft_node *n) {
    if (n->op != &wefti_op_transfer) return NULL;
    return wefti_partition_transfer(r->part, (int32_t)wefti_attr_int(n, WEFTI_AT_index));
}

/* Whether a node is elementwise arithmetic on values [rows], or their sum over devices. */
static bool by_rows(const chunk_loss_region *r, const weft_node *n, const weft_desc *rows) {
    const wefti_transfer *t = transfer_of(r, n);
    if (n->outputs != 1 || !wefti_desc_equal(wefti_out(n, 0), rows)) return false;
    if (t) return t->kind == WEFTI_TRANSFER_ALL_REDUCE;
    for (int i = 0; i < n->inputs; i++)
        if (!wefti_in(n, i) || !wefti_desc_equal(wefti_in(n, i), rows)) return false;
    return (n->op->flags & WEFTI_OP_ELEMENTWISE) && !(n->op->flags & WEFTI_OP_RANDOM);
}

/* Marks the nodes from the device's own lse to the lse of all devices. *out_members: the number of
 * devices that share the vocabulary. */
static bool find_exchange(chunk_loss_region *r, int32_t *out_members) {
    const weft_body *b = r->b;
    const weft_node *part = &b->nodes[r->node[LOSS]], *grad = &b->nodes[r->node[GRAD]];
    const weft_desc *rows = wefti_out(part, 1);
    int64_t first = r->node[LOSS], last = r->node[GRAD];
    *out_members = 0;
    /* Backwards: find the nodes on which the gradient's lse depends. */
    for (int64_t k = last - 1; k > first; k--) {
        const weft_node *n = &b->nodes[k];
        bool needed = n->outputs == 1 && grad->in[2] == n->out[0];
        for (int64_t j = k + 1; j < last && n->outputs == 1; j++)
            for (int i = 0; i < b->nodes[j].inputs; i++)
                needed |= r->inside[j] && b->nodes[j].in[i] == n->out[0];
        r->inside[k] = needed;
    }
    for (int64_t k = first + 1; k < last; k++) {
        const weft_node *n = &b->nodes[k];
        if (!r->inside[k]) continue;
        if (!by_rows(r, n, rows)) return false;
        for (int i = 0; i < n->inputs; i++) {
            int32_t maker = b->values[n->in[i]].node;
            if (n->in[i] != part->out[1] && (maker < 0 || !r->inside[maker])) return false;
        }
        const wefti_transfer *t = transfer_of(r, n);
        if (t && *out_members && t->members != *out_members) return false;
        if (t) *out_members = t->members;
    }
    return *out_members > 1;
}

/* Marks the nodes outside the region that depend on its results; they come after it. */
static void find_later(chunk_loss_region *r) {
    const weft_body *b = r->b;
    for (int64_t k = 0; k < b->node_count; k++)
        for (int i = 0; i < b->nodes[k].inputs && !r->inside[k]; i++) {
            int32_t maker = b->nodes[k].in[i] < 0 ? -1 : b->values[b->nodes[k].in[i]].node;
            if (maker >= 0) r->later[k] |= r->inside[maker] || r->later[maker];
        }
}

/* The smallest number of chunks with at most `most` logits each, or up to half as many more if that
 * makes the chunks equal. */
static int64_t chunks_of(int64_t rows, int64_t classes, int64_t most) {
    int64_t fewest = most / classes > 0 ? (rows + most / classes - 1) / (most / classes) : rows;
    for (int64_t chunks = fewest; chunks <= fewest + fewest / 2 && chunks <= rows; chunks++)
        if (rows % chunks == 0) return chunks;
    return fewest;
}

/* Finds the gradient of the logits, and the nodes that lead to it from the loss. */
static bool find_backward(chunk_loss_region *r, int32_t *out_members) {
    const weft_body *b = r->b;
    const weft_node *loss = &b->nodes[r->node[LOSS]], *grad = &b->nodes[r->node[GRAD]];
    if (r->node[GRAD] < r->node[LOSS] || grad->in[1] != loss->in[1]) return false;
    if (!find_uses(r, grad->out[0])) return false;
    return r->whole ? grad->in[2] == loss->out[1] : find_exchange(r, out_members);
}

/* Whether the gradient's other operands are available before the region ends. */
static bool all_is_there(const chunk_loss_region *r) {
    const weft_body *b = r->b;
    const weft_node *loss = &b->nodes[r->node[LOSS]], *grad = &b->nodes[r->node[GRAD]];
    for (int i = 3; i < grad->inputs; i++) {
        int32_t from = b->values[grad->in[i]].node;
        bool count = r->whole && grad->in[i] == loss->out[2];
        if (!count && from >= 0 && (r->inside[from] || r->later[from])) return false;
    }
    return true;
}

static bool find_region(chunk_loss_region *r, int64_t loss, int64_t most) {
    const weft_body *b = r->b;
    const weft_node *p = &b->nodes[loss];
    int32_t members = 1;
    r->whole = p->op->id == WEFTI_OP_cross_entropy;
    if (!r->whole && p->op->id != WEFTI_OP_cross_entropy_part) return false;
    int64_t maker = b->values[p->in[0]].node;
    r->node[LOSS] = loss;
    r->node[LINEAR] = maker;
    for (int i = GRAD; i < NODES; i++) r->node[i] = CHUNK_LOSS_NONE;
    if (maker < 0 || b->nodes[maker].op->id != WEFTI_OP_linear) return false;
    memset(r->later, 0, (size_t)b->node_count * sizeof *r->later);
    memset(r->inside, 0, (size_t)b->node_count * sizeof *r->inside);
    int uses = readers(b, p->in[0], WEFTI_OP_cross_entropy_grad, 0, &r->node[GRAD]);
    if (uses != (r->node[GRAD] < 0 ? 1 : 2) || wefti_in(&b->nodes[maker], 1)->rank != 2)
        return false;
    if (r->node[GRAD] >= 0 && !find_backward(r, &members)) return false;
    for (int i = 0; i < NODES; i++)
        if (r->node[i] >= 0) r->inside[r->node[i]] = true;
    find_later(r);
    if (r->node[GRAD] >= 0 && !all_is_there(r)) return false;
    const weft_desc *logits = wefti_in(p, 0), *rows = wefti_out(p, 1);
    int64_t classes = logits->shape[logits->rank - 1];
    if (members > 1 && wefti_attr_int(p, WEFTI_AT_whole))
        classes = (wefti_attr_int(p, WEFTI_AT_whole) + members - 1) / members;
    r->rows = weft_desc_elems(rows);
    if (r->rows < 2 || classes < 1) return false;
    if (r->whole && wefti_in(p, 2) && wefti_in(p, 2)->dtype != rows->dtype) return false;
    r->chunks = chunks_of(r->rows, classes, most);
    return r->chunks > 1;
}

/* ---- the new body ---- */

static weft_status add_node(weft_body *to, const char *op, int count, const int32_t *in,
                            const wefti_attr *attrs, const char *scope, int32_t *out) {
    const weft_op_def *def = wefti_op_find(to->graph->ops, op);
    int32_t node;
    WEFT_REQUIRE(def, WEFT_E_BUG, "the op '%s' is not registered", op);
    WEFT_TRY(wefti_body_add(to, def, NULL, count, in, attrs, scope, &node));
    *out = to->nodes[node].out[0];
    return WEFT_OK;
}

static weft_status reshaped(weft_body *to, int32_t value, int rank, const int64_t *shape,
                            int32_t *out) {
    wefti_ints to_shape = {.count = rank};
    for (int d = 0; d < rank; d++) to_shape.v[d] = shape[d];
    return add_node(to, "reshape", 1, &value, (wefti_attr[]){WEFTI_N(shape, to_shape), {0}}, "",
                    out);
}

/* Rows [begin, end) of a value. All dimensions except the last `rest` are its rows. */
static weft_status rows_of(weft_body *to, int32_t value, int rest, int64_t begin, int64_t end,
                           int32_t *out) {
    weft_desc d = to->values[value].desc;
    int64_t flat[WEFT_MAX_RANK] = {1};
    for (int k = 0; k < d.rank - rest; k++) flat[0] *= d.shape[k];
    for (int k = 0; k < rest; k++) flat[1 + k] = d.shape[d.rank - rest + k];
    if (d.rank != 1 + rest) WEFT_TRY(reshaped(to, value, 1 + rest, flat, &value));
    return add_node(to, "slice", 1, &value,
                    (wefti_attr[]){WEFTI_I(axis, 0), WEFTI_I(begin, begin), WEFTI_I(end, end), {0}},
                    "", out);
}

/* Concatenates chunks, in the shape of the whole. */
static weft_status join_pieces(weft_body *to, int32_t *piece, int64_t count, const weft_desc *whole,
                               const char *scope, int32_t *out) {
    while (count > 1) {
        int64_t groups = 0;
        for (int64_t k = 0; k < count; k += WEFTI_MAX_IN) {
            int members = count - k < WEFTI_MAX_IN ? (int)(count - k) : WEFTI_MAX_IN;
            WEFT_TRY(add_node(to, "concat", members, piece + k,
                              (wefti_attr[]){WEFTI_I(axis, 0), {0}}, scope, &piece[groups++]));
        }
        count = groups;
    }
    *out = piece[0];
    if (to->values[*out].desc.rank == whole->rank) return WEFT_OK;
    return reshaped(to, *out, whole->rank, whole->shape, out);
}

/* Copies an all-reduce for the rows of one chunk. */
static weft_status chunk_transfer(const chunk_loss_region *r, wefti_partition *part,
                                  const weft_node *n, int64_t rows, weft_body *to, int32_t *map) {
    wefti_transfer *t;
    int32_t index;
    WEFT_TRY(wefti_transfer_clone(transfer_of(r, n), &t));
    t->rank = 1;
    for (int32_t m = 0; m < t->members; m++)
        t->have[m] = t->want[m] = (wefti_region){.size = {rows}};
    WEFT_TRY(wefti_partition_add(part, t, &index));
    weft_desc result = weft_desc_of(wefti_out(n, 0)->dtype, 1, &rows);
    return wefti_body_add_transfer(to, map[n->in[0]], index, &result,
                                   (wefti_moved)wefti_attr_int(n, WEFTI_AT_moves), n->scope,
                                   &map[n->out[0]]);
}

/* Gradients of weight and bias: adds each chunk's gradient to the sum of the earlier ones. */
static weft_status add_up(const chunk_loss_region *r, int at, int32_t before, weft_body *to,
                          int32_t *map) {
    if (r->node[at] < 0 || before < 0) return WEFT_OK;
    const weft_node *n = &r->b->nodes[r->node[at]];
    int32_t *value = &map[n->out[0]];
    return add_node(to, "accumulate", 2, (int32_t[]){before, *value}, NULL, n->scope, value);
}

/* ---- a loss over all classes: rows in chunks, and their sum ---- */

static weft_status row_losses(const chunk_loss_region *r, weft_body *to, int32_t *map) {
    const weft_node *n = &r->b->nodes[r->node[LOSS]];
    const weft_op_def *op = wefti_op_find(to->graph->ops, "cross_entropy_part");
    int32_t node, in[] = {map[n->in[0]], map[n->in[1]]};
    WEFT_REQUIRE(op, WEFT_E_BUG, "the op 'cross_entropy_part' is not registered");
    wefti_attr attrs[] = {WEFTI_I(ignore, wefti_attr_int(n, WEFTI_AT_ignore)),
                          WEFTI_F(smoothing, wefti_attr_float(n, WEFTI_AT_smoothing)),
                          WEFTI_I(begin, 0),
                          WEFTI_I(whole, 0),
                          {0}};
    WEFT_TRY(wefti_body_add(to, op, NULL, 2, in, attrs, n->scope, &node));
    int32_t terms = to->nodes[node].out[0], lse = map[n->out[1]] = to->nodes[node].out[1];
    return add_node(to, "add", 2, (int32_t[]){lse, terms}, NULL, n->scope, &map[n->out[0]]);
}

static weft_status count_targets(const chunk_loss_region *r, weft_body *to, const int32_t *map,
                                 int32_t rows, int32_t count, int32_t *out) {
    const weft_node *n = &r->b->nodes[r->node[LOSS]];
    return add_node(to, "count_targets", 3, (int32_t[]){map[n->in[1]], rows, count},
                    (wefti_attr[]){WEFTI_I(ignore, wefti_attr_int(n, WEFTI_AT_ignore)),
                                   WEFTI_I(dtype, wefti_out(n, 0)->dtype),
                                   {0}},
                    n->scope, out);
}

/* The count of the targets, which the first chunk's gradient needs. */
static weft_status begin_loss(const chunk_loss_region *r, weft_body *to, int32_t *map) {
    const weft_node *n = &r->b->nodes[r->node[LOSS]];
    int32_t *count = &map[n->out[2]];
    if (n->inputs < 3 || n->in[2] < 0) return count_targets(r, to, map, -1, -1, count);
    *count = map[n->in[2]];
    return WEFT_OK;
}

static int32_t so_far(const chunk_loss_region *r, int at, const int32_t *map) {
    return r->node[at] < 0 ? -1 : map[r->b->nodes[r->node[at]].out[0]];
}

static weft_status emit_chunk(const chunk_loss_region *r, wefti_partition *part, int64_t chunk,
                              weft_body *to, int32_t *map) {
    const weft_body *b = r->b;
    int32_t x = b->nodes[r->node[LINEAR]].in[0], targets = b->nodes[r->node[LOSS]].in[1];
    int32_t whole_x = map[x], whole_targets = map[targets];
    int32_t weight = so_far(r, GRAD_WEIGHT, map), bias = so_far(r, GRAD_BIAS, map);
    int64_t begin = r->rows * chunk / r->chunks, end = r->rows * (chunk + 1) / r->chunks;
    WEFT_TRY(rows_of(to, whole_x, 1, begin, end, &map[x]));
    WEFT_TRY(rows_of(to, whole_targets, 0, begin, end, &map[targets]));
    for (int64_t k = 0; k < b->node_count; k++) {
        if (!r->inside[k]) continue;
        if (transfer_of(r, &b->nodes[k]))
            WEFT_TRY(chunk_transfer(r, part, &b->nodes[k], end - begin, to, map));
        else if (r->whole && k == r->node[LOSS])
            WEFT_TRY(row_losses(r, to, map));
        else
            WEFT_TRY(wefti_body_copy_node(to, &b->nodes[k], map));
    }
    WEFT_TRY(add_up(r, GRAD_WEIGHT, weight, to, map));
    WEFT_TRY(add_up(r, GRAD_BIAS, bias, to, map));
    map[x] = whole_x;
    map[targets] = whole_targets;
    for (int64_t v = 0; v < b->value_count; v++)
        if (r->pieces[v]) r->pieces[v][chunk] = map[v];
    return WEFT_OK;
}

/* Finds the values with rows that nodes outside the region read: their chunks must be joined. */
static weft_status find_results(chunk_loss_region *r, wefti_arena *scratch) {
    const weft_body *b = r->b;
    for (int64_t v = 0; v < b->value_count; v++) {
        int64_t maker = b->values[v].node;
        bool read = false;
        if (r->whole && v == b->nodes[r->node[LOSS]].out[2]) continue; /* made before the chunks */
        if (maker < 0 || !r->inside[maker] || maker == r->node[GRAD_WEIGHT] ||
            maker == r->node[GRAD_BIAS])
            continue;
        for (int64_t k = 0; k < b->node_count && !read; k++)
            for (int i = 0; i < b->nodes[k].inputs && !r->inside[k]; i++)
                read |= b->nodes[k].in[i] == v;
        for (int64_t o = 0; o < b->out_count; o++) read |= b->out[o] == v;
        if (!read) continue;
        r->pieces[v] = wefti_arena_alloc(scratch, (size_t)r->chunks * sizeof **r->pieces);
        WEFT_REQUIRE(r->pieces[v], WEFT_E_NOMEM, "no memory to cut the loss into chunks");
    }
    return WEFT_OK;
}

static weft_status emit_chunks(const chunk_loss_region *r, wefti_partition *part, weft_body *to,
                               int32_t *map) {
    const weft_body *b = r->b;
    const weft_node *loss = &b->nodes[r->node[LOSS]];
    if (r->whole) WEFT_TRY(begin_loss(r, to, map));
    for (int64_t chunk = 0; chunk < r->chunks; chunk++)
        WEFT_TRY(emit_chunk(r, part, chunk, to, map));
    for (int64_t v = 0; v < b->value_count; v++) {
        bool sum = r->whole && v == loss->out[0];
        const weft_desc *whole = sum ? wefti_out(loss, 1) : &b->values[v].desc;
        if (!r->pieces[v]) continue;
        WEFT_TRY(join_pieces(to, r->pieces[v], r->chunks, whole, b->nodes[b->values[v].node].scope,
                             &map[v]));
        if (sum) WEFT_TRY(count_targets(r, to, map, map[v], map[loss->out[2]], &map[v]));
    }
    return WEFT_OK;
}

/* Copies nodes in their old order, except nodes that wait for the region. These follow it, at the
 * position of the region's last node, when all their operands are available. */
static weft_status rewrite(chunk_loss_region *r, wefti_partition *part, weft_body *to,
                           int32_t *map) {
    const weft_body *b = r->b;
    int64_t last = r->node[GRAD] < 0 ? r->node[LOSS] : r->node[GRAD];
    WEFT_TRY(wefti_copy_inputs(b, to, map));
    for (int64_t k = 0; k < b->node_count; k++) {
        if (k == last) {
            r->from = to->node_count;
            WEFT_TRY(emit_chunks(r, part, to, map));
            r->to = to->node_count;
            for (int64_t j = 0; j < k; j++)
                if (r->later[j] && !r->inside[j])
                    WEFT_TRY(wefti_body_copy_node(to, &b->nodes[j], map));
        }
        if (r->inside[k] || (r->later[k] && k < last)) continue;
        WEFT_TRY(wefti_body_copy_node(to, &b->nodes[k], map));
    }
    return wefti_copy_outputs(b, to, map);
}

/* Returns `body` with its first large loss in chunks; NULL: the body has none. The nodes [skip[0],
 * skip[1]) are chunks already; sets `skip` for the result. */
static weft_status chunk_first(weft_graph *g, wefti_partition *part, const weft_body *body,
                               int64_t most, int64_t skip[2], wefti_arena *scratch,
                               weft_body **out) {
    chunk_loss_region r = {.b = body, .part = part};
    size_t nodes = (size_t)body->node_count + 1, values = (size_t)body->value_count + 1;
    bool found = false;
    *out = NULL;
    r.inside = wefti_arena_alloc(scratch, nodes * sizeof *r.inside);
    r.later = wefti_arena_alloc(scratch, nodes * sizeof *r.later);
    r.pieces = wefti_arena_alloc(scratch, values * sizeof *r.pieces);
    int32_t *map = wefti_arena_alloc(scratch, values * sizeof *map);
    WEFT_REQUIRE(r.inside && r.later && r.pieces && map, WEFT_E_NOMEM,
                 "no memory to cut the loss into chunks");
    for (int64_t k = 0; k < body->node_count && !found; k++) {
        if (k == skip[0]) k = skip[1];
        if (k < body->node_count) found = find_region(&r, k, most);
    }
    if (!found) return WEFT_OK;
    WEFT_TRY(find_results(&r, scratch));
    weft_body *to;
    WEFT_TRY(wefti_body_create(g, body->name, &to));
    weft_status status = rewrite(&r, part, to, map);
    if (status < 0) {
        wefti_body_destroy(to);
        return status;
    }
    to->streams = body->streams;
    skip[0] = r.from;
    skip[1] = r.to;
    *out = to;
    return WEFT_OK;
}

weft_status wefti_chunk_loss(weft_graph *g, wefti_partition *part, const weft_body *body,
                             int64_t most, weft_body **out) {
    wefti_arena *scratch;
    weft_body *more;
    weft_status status;
    int64_t skip[2] = {-1, -1};
    *out = NULL;
    WEFT_TRY(wefti_arena_create(&scratch));
    while ((status = chunk_first(g, part, *out ? *out : body, most, skip, scratch, &more)) ==
               WEFT_OK &&
           more) {
        wefti_body_destroy(*out);
        *out = more;
    }
    wefti_arena_destroy(scratch);
    if (status == WEFT_OK) return WEFT_OK;
    wefti_body_destroy(*out);
    *out = NULL;
    return status;
}
