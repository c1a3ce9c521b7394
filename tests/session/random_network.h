/* Random networks of all kinds of layers, for tests that run one model in two ways. Activations are
 * [batch, seq, hidden]. Every op has a scope of its own, so that a plan can name each op.
 * Everything follows from one seed. */
#ifndef WEFT_TESTS_RANDOM_NETWORK_H
#define WEFT_TESTS_RANDOM_NETWORK_H

#include "graph/build_random.h"

typedef struct network {
    weft_graph *g;
    dice dice;
    weft_dtype dtype;         /* of activations */
    weft_dtype param, weight; /* of parameters; of tables and weights of products */
    int64_t batch, seq, heads, head, hidden, vocab, channels, height, width;
    int op; /* number of the next scope in the cell */
    weft_value x, tokens, image, index;
} network;

static inline weft_desc net_desc(const network *n, int rank, const int64_t *shape) {
    return weft_desc_of(n->dtype, rank, shape);
}

static inline weft_value net_param(network *n, const char *name, double scale, int rank,
                                   const int64_t *shape) {
    weft_init init = {WEFT_INIT_NORMAL, scale};
    return weft_param(n->g, name, weft_desc_of(n->param, rank, shape), init);
}
static inline weft_value net_weight(network *n, const char *name, double scale, int rank,
                                    const int64_t *shape) {
    weft_init init = {WEFT_INIT_NORMAL, scale};
    return weft_param(n->g, name, weft_desc_of(n->weight, rank, shape), init);
}

/* One op, or one op and its parameters, in a scope. */
#define NET_OP(n, ...)                                                                             \
    (weft_cell_begin((n)->g, "o%d", (n)->op++), weft_cell_end((n)->g, (__VA_ARGS__)))

static inline weft_value net_linear(network *n, weft_value x, int64_t in, int64_t out) {
    bool transposed = roll(&n->dice, 2), biased = roll(&n->dice, 2);
    int64_t shape[2] = {transposed ? out : in, transposed ? in : out};
    weft_cell_begin(n->g, "o%d", n->op++);
    weft_value w = net_weight(n, "weight", 1 / sqrt((double)in), 2, shape);
    weft_value b = biased ? net_param(n, "bias", 0.1, 1, &out) : WEFT_NO_VALUE;
    return weft_cell_end(n->g, weft_linear(n->g, x, w, b, transposed));
}

static inline weft_value net_norm(network *n, weft_value x) {
    weft_cell_begin(n->g, "o%d", n->op++);
    weft_value gamma = net_param(n, "weight", 1, 1, &n->hidden), y;
    if (roll(&n->dice, 2)) {
        y = weft_rms_norm(n->g, x, gamma, 1e-2);
    } else {
        weft_value beta =
            roll(&n->dice, 2) ? net_param(n, "bias", 0.1, 1, &n->hidden) : WEFT_NO_VALUE;
        y = weft_layer_norm(n->g, x, gamma, beta, 1e-2);
    }
    return weft_cell_end(n->g, y);
}

static inline weft_value net_unary(network *n, weft_value x) {
    weft_graph *g = n->g;
    switch (roll(&n->dice, 14)) {
    case 0:
        return NET_OP(n, weft_tanh(g, x));
    case 1:
        return NET_OP(n, weft_sigmoid(g, x));
    case 2:
        return NET_OP(n, weft_relu(g, x));
    case 3:
        return NET_OP(n, weft_gelu_erf(g, x));
    case 4:
        return NET_OP(n, weft_silu(g, x));
    case 5:
        return NET_OP(n, weft_clip(g, x, -1, 0.75));
    case 6:
        return NET_OP(n, weft_scale(g, x, 0.5));
    case 7:
        return NET_OP(n, weft_shift(g, weft_neg(g, x), 0.25));
    case 8:
        return NET_OP(n, weft_exp(g, weft_tanh(g, x)));
    case 9:
        return NET_OP(n, weft_log(g, weft_shift(g, weft_mul(g, x, x), 1)));
    case 10:
        return NET_OP(n, weft_sqrt(g, weft_shift(g, weft_mul(g, x, x), 1)));
    case 11:
        return NET_OP(n, weft_rsqrt(g, weft_shift(g, weft_mul(g, x, x), 1)));
    case 12:
        return NET_OP(n, weft_dropout(g, x, 0.25));
    default:
        return NET_OP(n, weft_gelu(g, x));
    }
}

static inline weft_value net_binary(network *n, weft_value a, weft_value b) {
    weft_graph *g = n->g;
    switch (roll(&n->dice, 8)) {
    case 0:
        return NET_OP(n, weft_add(g, a, b));
    case 1:
        return NET_OP(n, weft_sub(g, a, b));
    case 2:
        return NET_OP(n, weft_mul(g, a, weft_tanh(g, b)));
    case 3:
        return NET_OP(n, weft_div(g, a, weft_shift(g, weft_sigmoid(g, b), 1)));
    case 4:
        return NET_OP(n, weft_maximum(g, a, b));
    case 5:
        return NET_OP(n, weft_minimum(g, a, b));
    case 6:
        return NET_OP(n, weft_pow(g, weft_shift(g, weft_sigmoid(g, a), 1), weft_tanh(g, b)));
    default: /* no jump where a is b: both may be the same number but for rounding */
        return NET_OP(n, weft_where(g, weft_compare(g, a, b, WEFT_LT), a, weft_scale(g, b, 1)));
    }
}

/* ---- layers: [batch, seq, hidden] to the same ---- */

static inline weft_value layer_feed_forward(network *n, weft_value x) {
    int64_t inner = n->hidden + roll(&n->dice, 9);
    weft_value y = net_linear(n, net_norm(n, x), n->hidden, inner);
    y = net_linear(n, net_unary(n, y), inner, n->hidden);
    if (roll(&n->dice, 2)) y = NET_OP(n, weft_dropout(n->g, y, 0.1));
    return NET_OP(n, weft_add(n->g, x, y));
}

static inline weft_value net_heads(network *n, weft_value x, int64_t heads) {
    weft_cell_begin(n->g, "o%d", n->op++);
    weft_value w = net_weight(n, "weight", 0.3, 3, (int64_t[]){n->hidden, heads, n->head});
    return weft_cell_end(n->g, weft_linear(n->g, x, w, WEFT_NO_VALUE, false));
}

static inline weft_value layer_attention(network *n, weft_value x) {
    weft_graph *g = n->g;
    weft_attention_options options = weft_attention_defaults();
    int64_t kv = roll(&n->dice, 2) ? n->heads : n->heads % 2 ? 1 : n->heads / 2;
    options.causal = roll(&n->dice, 2);
    if (options.causal && roll(&n->dice, 4) == 0) options.window = 1 + roll(&n->dice, n->seq);
    options.dropout = roll(&n->dice, 3) ? 0 : 0.2;
    weft_value h = net_norm(n, x), q = net_heads(n, h, n->heads), k = net_heads(n, h, kv),
               v = net_heads(n, h, kv);
    if (n->head % 2 == 0 && roll(&n->dice, 2)) {
        q = NET_OP(n, weft_rope(g, q, 100, (weft_rope_scaling){0}, WEFT_NO_VALUE));
        k = NET_OP(n, weft_rope(g, k, 100, (weft_rope_scaling){0}, WEFT_NO_VALUE));
    }
    if (roll(&n->dice, 4) == 0) {
        int64_t heads = roll(&n->dice, 2) ? n->heads : 1;
        weft_cell_begin(g, "o%d", n->op++);
        options.mask = net_param(n, "positions", 0.5, 4, (int64_t[]){1, heads, n->seq, n->seq});
        options.mask = weft_cell_end(g, weft_scale(g, options.mask, 0.5));
    }
    weft_value y = NET_OP(n, weft_attention(g, q, k, v, &options));
    y = NET_OP(n, weft_reshape(g, y, 3, (int64_t[]){n->batch, n->seq, n->heads * n->head}));
    return NET_OP(n, weft_add(g, x, net_linear(n, y, n->heads * n->head, n->hidden)));
}

static inline weft_value layer_elementwise(network *n, weft_value x) {
    weft_value a = net_unary(n, x), b = net_unary(n, a);
    weft_cell_begin(n->g, "o%d", n->op++);
    weft_value c =
        weft_cell_end(n->g, weft_mul(n->g, b, net_param(n, "scale", 1, 2, (int64_t[]){n->seq, 1})));
    return net_binary(n, net_binary(n, a, c), x);
}

static inline weft_value layer_reduction(network *n, weft_value x) {
    weft_graph *g = n->g;
    int axis = (int)roll(&n->dice, 3), axes[2] = {axis, (axis + 1) % 3};
    int count = 1 + (int)roll(&n->dice, 2);
    weft_value y;
    switch (roll(&n->dice, 6)) {
    case 0:
        y = NET_OP(n, weft_sum(g, weft_scale(g, x, 0.2), count, axes, true));
        break;
    case 1:
        y = NET_OP(n, weft_mean(g, x, count, axes, true));
        break;
    case 2:
        y = NET_OP(n, weft_max(g, x, count, axes, true));
        break;
    case 3:
        y = NET_OP(n, weft_softmax(g, x, axis));
        break;
    case 4:
        y = NET_OP(n, weft_log_softmax(g, x, axis));
        break;
    default: /* a vector and back to a matrix */
        y = NET_OP(n, weft_mean(g, x, 2, (int[]){0, 1}, false));
        y = NET_OP(n, weft_reshape(g, y, 3, (int64_t[]){1, 1, n->hidden}));
    }
    return net_binary(n, x, y);
}

static inline weft_value layer_shape(network *n, weft_value x) {
    weft_graph *g = n->g;
    int64_t b = n->batch, s = n->seq, h = n->hidden;
    int axis = (int)roll(&n->dice, 3);
    int64_t size = axis == 0 ? b : axis == 1 ? s : h, at = 1 + roll(&n->dice, size - 1);
    weft_value y, z;
    switch (roll(&n->dice, 5)) {
    case 0:
        y = NET_OP(n, weft_transpose(g, x, 3, (int[]){2, 0, 1}));
        y = NET_OP(n, weft_transpose(g, net_unary(n, y), 3, (int[]){1, 2, 0}));
        break;
    case 1:
        y = NET_OP(n, weft_reshape(g, x, 2, (int64_t[]){b * s, h}));
        y = net_linear(n, y, h, h);
        y = NET_OP(n, weft_reshape(g, y, 3, (int64_t[]){b, s, h}));
        break;
    case 2:
        y = NET_OP(n, weft_slice(g, x, axis, 0, at));
        z = NET_OP(n, weft_slice(g, x, axis, at, size));
        y = NET_OP(n, weft_concat(g, 2, (weft_value[]){z, net_unary(n, y)}, axis));
        break;
    case 3: {
        int64_t before[3] = {0, 0, 0}, after[3] = {0, 0, 0};
        before[axis] = 1;
        after[axis] = 2;
        y = NET_OP(n, weft_pad(g, x, before, after, 0.5));
        y = NET_OP(n, weft_slice(g, y, axis, 2, 2 + size));
        break;
    }
    default: {
        weft_value parts[2];
        y = NET_OP(n, weft_concat(g, 2, (weft_value[]){x, net_unary(n, x)}, axis));
        weft_cell_begin(g, "o%d", n->op++);
        weft_split(g, y, axis, 2, parts);
        weft_cell_end_many(g, 2, parts);
        y = NET_OP(n, weft_mul(g, parts[0], weft_tanh(g, parts[1])));
    }
    }
    return NET_OP(n, weft_add(g, x, y));
}

static inline weft_value layer_matmul(network *n, weft_value x) {
    weft_graph *g = n->g;
    bool columns = roll(&n->dice, 2); /* over features, else over the sequence */
    weft_value y = NET_OP(n, weft_matmul(g, x, weft_scale(g, x, 0.2), columns, !columns));
    y = NET_OP(n, weft_softmax(g, y, 2));
    y = columns ? NET_OP(n, weft_matmul(g, x, y, false, true))
                : NET_OP(n, weft_matmul(g, y, x, false, false));
    return NET_OP(n, weft_add(g, x, y));
}

/* [batch, channels, height, width], then its mean for each sample. */
static inline weft_value layer_image(network *n, weft_value x) {
    weft_graph *g = n->g;
    int64_t groups = roll(&n->dice, 3) ? 1 : n->channels,
            out = n->channels * (1 + roll(&n->dice, 2)),
            kernel[2] = {1 + roll(&n->dice, 3), 1 + roll(&n->dice, 3)};
    weft_conv_options options = weft_conv_defaults();
    options.groups = groups;
    for (int i = 0; i < 2; i++) {
        options.padding[i] = kernel[i] / 2;
        options.stride[i] = 1 + roll(&n->dice, 2);
        if (kernel[i] > 1 && roll(&n->dice, 3) == 0) {
            options.dilation[i] = 2;
            options.padding[i] = kernel[i];
        }
    }
    weft_cell_begin(g, "o%d", n->op++);
    weft_value w = net_param(n, "weight", 0.3, 4,
                             (int64_t[]){out, n->channels / groups, kernel[0], kernel[1]});
    weft_value y = weft_cell_end(g, weft_conv2d(g, n->image, w, WEFT_NO_VALUE, &options));
    if (roll(&n->dice, 2)) {
        weft_init zeros = {WEFT_INIT_ZEROS, 0}, ones = {WEFT_INIT_CONSTANT, 1};
        weft_cell_begin(g, "o%d", n->op++);
        weft_value gamma = net_param(n, "weight", 1, 1, &out),
                   beta = net_param(n, "bias", 0.2, 1, &out);
        const weft_desc of_state = weft_desc_of(n->param, 1, &out);
        weft_value mean = weft_state(g, "mean", of_state, zeros);
        weft_value var = weft_state(g, "var", of_state, ones);
        y = weft_cell_end(g, weft_batch_norm(g, y, gamma, beta, mean, var, 0.1, 1e-2, true));
    }
    y = net_unary(n, y);
    weft_desc d = weft_value_desc(g, y);
    if (d.shape[2] > 2 && d.shape[3] > 2) {
        int64_t window[2] = {2, 3}, stride[2] = {2, 1}, padding[2] = {0, 1};
        y = roll(&n->dice, 2) ? NET_OP(n, weft_max_pool2d(g, y, window, stride, padding))
                              : NET_OP(n, weft_avg_pool2d(g, y, window, stride, padding));
    }
    y = NET_OP(n, weft_mean(g, y, 2, (int[]){2, 3}, false));
    y = net_linear(n, y, out, n->hidden);
    y = NET_OP(n, weft_reshape(g, y, 3, (int64_t[]){n->batch, 1, n->hidden}));
    return NET_OP(n, weft_add(g, x, y));
}

static inline weft_value layer_indexing(network *n, weft_value x) {
    weft_graph *g = n->g;
    weft_value y, z;
    switch (roll(&n->dice, 5)) {
    case 0:
        weft_cell_begin(g, "o%d", n->op++);
        y = net_weight(n, "weight", 0.5, 2, (int64_t[]){n->vocab, n->hidden});
        y = weft_cell_end(g, weft_embedding(g, y, n->tokens, n->dtype));
        break;
    case 1:
        y = NET_OP(n, weft_one_hot(g, n->tokens, n->vocab, n->dtype));
        y = net_linear(n, y, n->vocab, n->hidden);
        break;
    case 2:
        y = NET_OP(n, weft_take(g, x, n->index, 1));
        y = NET_OP(n, weft_scatter_add(g, x, n->index, net_unary(n, y), 1));
        break;
    case 3:
        y = NET_OP(n, weft_top_k(g, x, n->hidden / 2, &z));
        y = net_linear(n, y, n->hidden / 2, n->hidden);
        break;
    default:
        z = NET_OP(n, weft_argmax(g, x, 2));
        z = NET_OP(n, weft_one_hot(g, z, n->hidden, n->dtype));
        y = NET_OP(n, weft_mul(g, x, z));
    }
    return NET_OP(n, weft_add(g, x, y));
}

static inline weft_value layer_experts(network *n, weft_value x) {
    weft_graph *g = n->g;
    int64_t experts = 2 + roll(&n->dice, 3), capacity = roll(&n->dice, 2) ? 0 : 2;
    weft_routing routing;
    weft_value gates = NET_OP(n, weft_softmax(g, net_linear(n, x, n->hidden, experts), 2));
    weft_value weight =
        NET_OP(n, weft_moe_route(g, gates, 1 + roll(&n->dice, 2), capacity, &routing));
    weft_value y = NET_OP(n, weft_moe_dispatch(g, x, &routing));
    bool transposed = roll(&n->dice, 2);
    weft_cell_begin(g, "o%d", n->op++);
    weft_value w = net_param(n, "experts", 0.3, 3, (int64_t[]){experts, n->hidden, n->hidden});
    y = weft_cell_end(g, weft_moe_linear(g, y, w, transposed, roll(&n->dice, 2) ? &routing : NULL));
    y = NET_OP(n, weft_moe_combine(g, y, &routing, weight));
    return NET_OP(n, weft_add(g, x, y));
}

static inline weft_value net_layer(network *n, weft_value x) {
    switch (roll(&n->dice, 11)) {
    case 0:
    case 1:
        return layer_feed_forward(n, x);
    case 2:
    case 3:
        return layer_attention(n, x);
    case 4:
        return layer_elementwise(n, x);
    case 5:
        return layer_reduction(n, x);
    case 6:
        return layer_shape(n, x);
    case 7:
        return layer_matmul(n, x);
    case 8:
        return layer_image(n, x);
    case 9:
        return layer_experts(n, x);
    default:
        return layer_indexing(n, x);
    }
}

/* ---- the whole ---- */

static inline weft_value net_loss(network *n, weft_value x, weft_value table) {
    weft_graph *g = n->g;
    int64_t rows[2] = {n->batch, n->seq};
    weft_value targets = weft_input(g, "targets", weft_desc_of(WEFT_I32, 2, rows));
    weft_cell_begin(g, "head");
    n->op = 0;
    weft_value y = net_norm(n, x), loss;
    if (roll(&n->dice, 3)) {
        y = NET_OP(n, weft_linear(g, y, table, WEFT_NO_VALUE, true));
        double smoothing = roll(&n->dice, 2) ? 0 : 0.1;
        loss = NET_OP(n, weft_cross_entropy(g, y, targets, 0, smoothing));
    } else {
        loss = NET_OP(n, weft_mse(g, y, n->x));
    }
    if (roll(&n->dice, 3) == 0) {
        weft_value more = NET_OP(n, weft_mean(g, weft_tanh(g, y), 0, NULL, false));
        loss = NET_OP(n, weft_add(g, loss, weft_scale(g, more, 0.1)));
    }
    return weft_cell_end(g, loss);
}

/* Parameters with a first dimension of 1 or 3: few elements for many devices. */
static inline weft_value net_shallow(network *n, weft_value x) {
    dice outer = n->dice;
    n->dice = (dice){outer.seed, 1u << 22}; /* numbers of its own: the other choices stay */
    if (roll(&n->dice, 2)) {
        weft_value y = net_param(n, "positions", 0.3, 3, (int64_t[]){1, n->seq, n->hidden});
        x = NET_OP(n, weft_add(n->g, x, y));
    }
    if (roll(&n->dice, 2)) {
        weft_value y = net_param(n, "three", 0.3, 2, (int64_t[]){3, n->hidden});
        x = NET_OP(n, weft_add(n->g, x, weft_sum(n->g, y, 1, (int[]){0}, false)));
    }
    if (roll(&n->dice, 2)) {
        weft_value y = net_param(n, "weights", 0.3, 4, (int64_t[]){3, 1, 2, 1});
        y = weft_mean(n->g, weft_tanh(n->g, y), 0, NULL, false);
        x = NET_OP(n, weft_mul(n->g, x, weft_shift(n->g, y, 1)));
    }
    n->dice = outer;
    return x;
}

/* A network of `cells` cells, some equal, some with parameters of others, with `batch` rows. */
static inline weft_graph *random_network_of(uint64_t seed, int cells, int64_t batch,
                                            weft_dtype dtype, weft_dtype param, weft_dtype weight) {
    network n = {
        .dice = {seed, 0}, .dtype = dtype, .param = param, .weight = weight, .batch = batch};
    dice *d = &n.dice;
    n.seq = 2 + roll(d, 7);
    n.heads = 1 + roll(d, 6);
    n.head = 1 + roll(d, 4);
    n.hidden = 3 + roll(d, 10);
    n.vocab = 5 + roll(d, 14);
    n.channels = 1 + roll(d, 4);
    n.height = 3 + roll(d, 8);
    n.width = 3 + roll(d, 8);
    if (weft_graph_create(&n.g) < 0) return NULL;
    weft_graph *g = n.g;
    int64_t rows[2] = {batch, n.seq};
    n.x = weft_input(g, "x", net_desc(&n, 3, (int64_t[]){batch, n.seq, n.hidden}));
    n.tokens = weft_input(g, "tokens", weft_desc_of(WEFT_I32, 2, rows));
    n.index = weft_input(g, "index", weft_desc_of(WEFT_I32, 1, (int64_t[]){9}));
    n.image =
        weft_input(g, "image", net_desc(&n, 4, (int64_t[]){batch, n.channels, n.height, n.width}));
    weft_cell_begin(g, "stem");
    weft_value table = net_weight(&n, "table", 0.5, 2, (int64_t[]){n.vocab, n.hidden});
    weft_value x = NET_OP(&n, weft_embedding(g, table, n.tokens, dtype));
    x = weft_cell_end(g, net_shallow(&n, NET_OP(&n, weft_add(g, x, n.x))));
    weft_value early = x;
    weft_value square = net_weight(&n, "shared", 0.3, 2, (int64_t[]){n.hidden, n.hidden});
    dice recipe = *d;
    for (int c = 0; c < cells; c++) {
        if (c == 0 || roll(d, 3) == 0) recipe = (dice){seed + 1000 + (uint64_t)c, 0};
        dice outer = n.dice;
        n.dice = recipe;
        n.op = 0;
        weft_cell_begin(g, "c%d", c);
        weft_value y = x;
        int64_t layers = 1 + roll(&n.dice, 2);
        for (int64_t k = 0; k < layers; k++) y = net_layer(&n, y);
        if (roll(&n.dice, 4) == 0) y = NET_OP(&n, weft_linear(g, y, square, WEFT_NO_VALUE, false));
        if (roll(&n.dice, 4) == 0) y = NET_OP(&n, weft_add(g, y, early));
        x = weft_cell_end(g, y);
        n.dice = outer;
        if (roll(d, 4) == 0) early = x;
    }
    if (roll(d, 3) == 0) x = weft_tanh(g, x); /* outside of cells */
    weft_loss(g, net_loss(&n, x, table));
    return g;
}
static inline weft_graph *random_network(uint64_t seed, int cells, int64_t batch,
                                         weft_dtype dtype) {
    return random_network_of(seed, cells, batch, dtype, dtype, dtype);
}

#endif
