/* Fuses the loss head into one node. See rewrite.h. */
#include <string.h>

#include "rewrite/rewrite.h"

/* The nodes of one head; -1: the head lacks the node. */
typedef struct head {
    int64_t linear, loss, loss_grad, grad_input, grad_weight, grad_bias;
    int32_t logits, dlogits;
} head;

/* The first node with op `op` that reads `value` as operand `slot`; -1: none. */
static int64_t reader(const weft_body *b, int32_t value, wefti_op_id op, int slot) {
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        if (n->op->id == op && n->inputs > slot && n->in[slot] == value) return k;
    }
    return -1;
}

static int uses(const weft_body *b, int32_t value) {
    int count = 0;
    for (int64_t k = 0; k < b->node_count; k++)
        for (int i = 0; i < b->nodes[k].inputs; i++) count += b->nodes[k].in[i] == value;
    for (int64_t o = 0; o < b->out_count; o++) count += b->out[o] == value;
    return count;
}

/* The node that sums all rows of dlogits, with the dtype that the fused op makes: f32 even with
 * bf16. */
static int64_t bias_gradient(const weft_body *b, int32_t dlogits, int32_t bias) {
    int64_t k = reader(b, dlogits, WEFTI_OP_sum_to, 0);
    if (k < 0) return -1;
    weft_desc like = b->values[bias].desc;
    if (b->values[dlogits].desc.dtype != WEFT_F64) like.dtype = WEFT_F32;
    return wefti_desc_equal(&b->values[b->nodes[k].out[0]].desc, &like) ? k : -1;
}

static bool find_head(const weft_body *b, head *h) {
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        if (n->op->id != WEFTI_OP_linear) continue;
        bool biased = n->inputs > 2 && n->in[2] >= 0;
        *h = (head){.linear = k, .logits = n->out[0], .grad_bias = -1};
        h->loss = reader(b, h->logits, WEFTI_OP_cross_entropy, 0);
        h->loss_grad = reader(b, h->logits, WEFTI_OP_cross_entropy_grad, 0);
        if (h->loss < 0 || h->loss_grad < 0 || uses(b, h->logits) != 2) continue;
        const weft_node *loss = &b->nodes[h->loss], *grad = &b->nodes[h->loss_grad];
        h->dlogits = grad->out[0];
        h->grad_input = reader(b, h->dlogits, WEFTI_OP_linear_grad_input, 0);
        h->grad_weight = reader(b, h->dlogits, WEFTI_OP_linear_grad_weight, 1);
        if (biased) h->grad_bias = bias_gradient(b, h->dlogits, n->in[2]);
        if (h->grad_input < 0 || h->grad_weight < 0 ||
            uses(b, h->dlogits) != (h->grad_bias < 0 ? 2 : 3))
            continue;
        if (b->nodes[h->grad_input].in[1] != n->in[1] || b->nodes[h->grad_weight].in[0] != n->in[0])
            continue;
        if (grad->in[1] != loss->in[1] || uses(b, loss->out[1]) > 1 || uses(b, loss->out[2]) > 1)
            continue;
        /* The gradient's count must be the loss's own count, or the count that the loss was given,
         * which covers the rows of all devices. */
        bool given = loss->inputs > 2 && loss->in[2] >= 0;
        if (grad->in[3] != loss->out[2] && !(given && grad->in[3] == loss->in[2])) continue;
        if (grad->in[2] != loss->out[1]) continue;
        /* The seed of the backward pass must be available before the loss. */
        if (b->values[grad->in[4]].node < 0) return true;
    }
    return false;
}

static weft_status emit_head(const weft_body *b, const head *h, weft_body *to, int32_t *map) {
    const weft_node *linear = &b->nodes[h->linear], *loss = &b->nodes[h->loss];
    const weft_op_def *op = wefti_op_find(b->graph->ops, "linear_cross_entropy");
    WEFT_REQUIRE(op, WEFT_E_BUG, "the op 'linear_cross_entropy' is not registered");
    wefti_attr attrs[16];
    int count = 0;
    for (; op->attrs[count].id && count < 15; count++) attrs[count] = op->attrs[count];
    attrs[count] = (wefti_attr){0};
    for (int i = 0; i < count; i++) {
        if (attrs[i].id == WEFTI_AT_transposed)
            attrs[i].i = wefti_attr_int(linear, WEFTI_AT_transposed);
        if (attrs[i].id == WEFTI_AT_ignore) attrs[i].i = wefti_attr_int(loss, WEFTI_AT_ignore);
        if (attrs[i].id == WEFTI_AT_smoothing)
            attrs[i].f = wefti_attr_float(loss, WEFTI_AT_smoothing);
    }
    bool given = loss->inputs > 2 && loss->in[2] >= 0;
    bool biased = linear->inputs > 2 && linear->in[2] >= 0;
    int32_t in[6] = {map[linear->in[0]],
                     map[linear->in[1]],
                     map[loss->in[1]],
                     map[b->nodes[h->loss_grad].in[4]],
                     given ? map[loss->in[2]] : -1,
                     biased ? map[linear->in[2]] : -1};
    int32_t node;
    WEFT_TRY(wefti_body_add(to, op, NULL, 6, in, attrs, loss->scope, &node));
    map[loss->out[0]] = to->nodes[node].out[0];
    map[b->nodes[h->grad_input].out[0]] = to->nodes[node].out[1];
    map[b->nodes[h->grad_weight].out[0]] = to->nodes[node].out[2];
    if (h->grad_bias >= 0) map[b->nodes[h->grad_bias].out[0]] = to->nodes[node].out[3];
    return WEFT_OK;
}

static weft_status rewrite(const weft_body *b, const head *h, weft_body *to, int32_t *map) {
    WEFT_TRY(wefti_copy_inputs(b, to, map));
    for (int64_t k = 0; k < b->node_count; k++) {
        if (k == h->loss) {
            WEFT_TRY(emit_head(b, h, to, map));
            continue;
        }
        if (k == h->linear || k == h->loss_grad || k == h->grad_input || k == h->grad_weight ||
            k == h->grad_bias)
            continue;
        WEFT_TRY(wefti_body_copy_node(to, &b->nodes[k], map));
    }
    return wefti_copy_outputs(b, to, map);
}

static weft_status fuse_head(weft_graph *g, const weft_body *body, const head *h, weft_body **out) {
    weft_body *to;
    WEFT_TRY(wefti_body_create(g, body->name, &to));
    int32_t *map = wefti_alloc(((size_t)body->value_count + 1) * sizeof *map);
    weft_status status =
        map ? rewrite(body, h, to, map) : WEFT_RAISE(WEFT_E_NOMEM, "no memory to fuse");
    wefti_free(map);
    if (status < 0) {
        wefti_body_destroy(to);
        return status;
    }
    *out = to;
    return WEFT_OK;
}

weft_status wefti_fuse_loss(weft_graph *g, const weft_body *body, weft_body **out) {
    weft_body *fused, *more;
    head h;
    WEFT_TRY(wefti_body_clone(g, body, body->name, &fused));
    while (find_head(fused, &h)) {
        weft_status status = fuse_head(g, fused, &h, &more);
        wefti_body_destroy(fused);
        WEFT_TRY(status);
        fused = more;
    }
    *out = fused;
    return WEFT_OK;
}
