/* The operations of a graph. Each adds one node (or a few) to the graph and returns its result.
 *
 * Common rules:
 *
 * - Shapes are written [batch, seq, hidden]; `...` stands for any leading dimensions.
 * - Arithmetic is in f32 for every storage type (f64 in f64 graphs). On integers it is exact, and a
 *   result outside the dtype's range becomes the nearest number in it.
 * - A result has the dtype of the first activation operand unless stated. Parameters may be f32
 *   beside
 *   bf16 activations.
 * - Negative axes count from the end.
 * - On bad shapes the graph keeps the first error, with the cell path and the shapes, and the call
 *   returns WEFT_NO_VALUE. */
#ifndef WEFT_OPS_H
#define WEFT_OPS_H

#include <stdbool.h>

#include "weft/collective.h"
#include "weft/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elementwise with NumPy broadcasting: a, b [...] -> [broadcast]. */
WEFT_API weft_value weft_add(weft_graph *g, weft_value a, weft_value b);
WEFT_API weft_value weft_sub(weft_graph *g, weft_value a, weft_value b);
WEFT_API weft_value weft_mul(weft_graph *g, weft_value a, weft_value b);
WEFT_API weft_value weft_div(weft_graph *g, weft_value a, weft_value b);
WEFT_API weft_value weft_maximum(weft_graph *g, weft_value a,
                                 weft_value b); /* ties: gradient halves */
WEFT_API weft_value weft_minimum(weft_graph *g, weft_value a, weft_value b);
WEFT_API weft_value weft_pow(weft_graph *g, weft_value a, weft_value b);

/* Comparison -> bool [broadcast]. */
typedef enum weft_relation { WEFT_EQ, WEFT_NE, WEFT_LT, WEFT_LE, WEFT_GT, WEFT_GE } weft_relation;
WEFT_API weft_value weft_compare(weft_graph *g, weft_value a, weft_value b, weft_relation relation);
/* cond bool, a, b broadcast together: a where cond, else b. */
WEFT_API weft_value weft_where(weft_graph *g, weft_value cond, weft_value a, weft_value b);

/* Elementwise, one operand: x [...] -> [...]. */
WEFT_API weft_value weft_neg(weft_graph *g, weft_value x);
WEFT_API weft_value weft_exp(weft_graph *g, weft_value x);
WEFT_API weft_value weft_log(weft_graph *g, weft_value x);
WEFT_API weft_value weft_sqrt(weft_graph *g, weft_value x);
WEFT_API weft_value weft_rsqrt(weft_graph *g, weft_value x);
WEFT_API weft_value weft_tanh(weft_graph *g, weft_value x);
WEFT_API weft_value weft_sigmoid(weft_graph *g, weft_value x);
WEFT_API weft_value weft_relu(weft_graph *g, weft_value x);
WEFT_API weft_value weft_gelu(weft_graph *g, weft_value x);     /* tanh form, as GPT-2 uses */
WEFT_API weft_value weft_gelu_erf(weft_graph *g, weft_value x); /* exact form, as BERT uses */
WEFT_API weft_value weft_silu(weft_graph *g, weft_value x);
WEFT_API weft_value weft_clip(weft_graph *g, weft_value x, double low, double high);
WEFT_API weft_value weft_scale(weft_graph *g, weft_value x, double factor); /* x * factor */
WEFT_API weft_value weft_shift(weft_graph *g, weft_value x, double term);   /* x + term */
WEFT_API weft_value weft_cast(weft_graph *g, weft_value x, weft_dtype dtype);
/* Zero with probability `rate`, else x / (1 - rate). Rate 0 returns x itself. */
WEFT_API weft_value weft_dropout(weft_graph *g, weft_value x, double rate);
/* A constant filled tensor. */
WEFT_API weft_value weft_constant(weft_graph *g, weft_desc desc, double value);

/* Products. */
/* a [..., m, k] (or [..., k, m] transposed), b [..., k, n] (or [..., n, k]); leading dimensions
 * broadcast -> [..., m, n]. */
WEFT_API weft_value weft_matmul(weft_graph *g, weft_value a, weft_value b, bool transpose_a,
                                bool transpose_b);
/* x [..., k], weight [k, n...] (transposed: [n..., k]), bias [n...] or none -> [..., n...]. */
WEFT_API weft_value weft_linear(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                                bool transposed);

/* Reductions over `axes` (count 0: all). keep: sizes become 1 instead of going away. */
WEFT_API weft_value weft_sum(weft_graph *g, weft_value x, int count, const int *axes, bool keep);
WEFT_API weft_value weft_mean(weft_graph *g, weft_value x, int count, const int *axes, bool keep);
WEFT_API weft_value weft_max(weft_graph *g, weft_value x, int count, const int *axes, bool keep);
WEFT_API weft_value weft_argmax(weft_graph *g, weft_value x,
                                int axis); /* -> i32, lowest index wins */

/* x [...] -> [...]. The results of softmax, or the exponentials of those of log_softmax, sum to 1
 * along the axis. */
WEFT_API weft_value weft_softmax(weft_graph *g, weft_value x, int axis);
WEFT_API weft_value weft_log_softmax(weft_graph *g, weft_value x, int axis);
/* logits [..., classes], targets i32 [...] -> f32 scalar: the mean over targets other than `ignore`
 * (0 if all are `ignore`). smoothing in [0, 1). */
WEFT_API weft_value weft_cross_entropy(weft_graph *g, weft_value logits, weft_value targets,
                                       int64_t ignore, double smoothing);
WEFT_API weft_value weft_mse(weft_graph *g, weft_value x,
                             weft_value target); /* mean of squares, f32 scalar */

/* Normalisation over the last dimension: x [..., hidden] -> [..., hidden]; gamma, beta [hidden]
 * f32; beta may be none. */
WEFT_API weft_value weft_layer_norm(weft_graph *g, weft_value x, weft_value gamma, weft_value beta,
                                    double eps);
WEFT_API weft_value weft_rms_norm(weft_graph *g, weft_value x, weft_value gamma, double eps);
/* x [batch, channels, ...spatial]; gamma, beta, mean, var [channels] f32; mean and var are states.
 * Training uses batch statistics and updates the states by momentum (new = (1 - momentum) old +
 * momentum batch, unbiased variance). */
WEFT_API weft_value weft_batch_norm(weft_graph *g, weft_value x, weft_value gamma, weft_value beta,
                                    weft_value mean, weft_value var, double momentum, double eps,
                                    bool training);

/* table [vocab, dim], ids i32 [...] -> [..., dim], of type `dtype`. */
WEFT_API weft_value weft_embedding(weft_graph *g, weft_value table, weft_value ids,
                                   weft_dtype dtype);
/* The same; row `padding` of the table gets no gradient from this look-up (-1: all rows do). */
WEFT_API weft_value weft_embedding_padded(weft_graph *g, weft_value table, weft_value ids,
                                          int64_t padding, weft_dtype dtype);

typedef struct weft_attention_options {
    size_t struct_bytes;
    bool causal;    /* position i sees keys up to i + offset; offset = keys - queries */
    int64_t window; /* causal: only the last so many of these keys, with its own; 0: all */
    double scale;   /* 0: 1 / sqrt(head_dim) */
    double dropout; /* on the probabilities */
    weft_value
        mask; /* WEFT_NO_VALUE, or bool [b|1, h|1, tq, tk] (true = may attend), or added float */
    weft_value position; /* WEFT_NO_VALUE, or i32 [] or [batch]: position of the first query (for
                            caches); or [batch, 2]: row of k and v, and position. Then k and v may
                            have another batch, and there is no gradient */
} weft_attention_options;
static inline weft_attention_options weft_attention_defaults(void) {
    weft_attention_options o;
    memset(&o, 0, sizeof o);
    o.struct_bytes = sizeof o;
    o.mask = o.position = WEFT_NO_VALUE;
    return o;
}
/* q [batch, tq, heads, dim], k and v [batch, tk, kv_heads, dim], heads % kv_heads == 0 -> [batch,
 * tq, heads, dim]. Memory is linear in tq and tk (Dao et al., FlashAttention, 2022). NULL options:
 * the defaults. */
WEFT_API weft_value weft_attention(weft_graph *g, weft_value q, weft_value k, weft_value v,
                                   const weft_attention_options *options);
/* x [batch, seq, heads, dim]: rotate pairs (i, i + dim/2) by position * theta^(-2i/dim) (Su et al.,
 * RoFormer, 2021), with angles scaled by `scaling`; (weft_rope_scaling){0}: not scaled. position:
 * WEFT_NO_VALUE (0), or i32 [] or [batch], the position of the first row; or [batch, 2], where the
 * second number is. */
WEFT_API weft_value weft_rope(weft_graph *g, weft_value x, double theta, weft_rope_scaling scaling,
                              weft_value position);
/* cache [batch, length, heads, dim] with rows from `position` on replaced by x [batch, seq, heads,
 * dim]. In place. position: i32 [], or [batch]; or [batch, 2]: the sample of the cache, and the
 * position. Then x may have another batch than the cache. If two samples write the same row, the
 * last one counts. */
WEFT_API weft_value weft_cache_write(weft_graph *g, weft_value cache, weft_value x,
                                     weft_value position);

/* Mixture of experts (Shazeer et al., 2017; Lepikhin et al., "GShard", 2021; Fedus et al., "Switch
 * Transformer", 2021). Tokens come in groups [groups..., tokens], for example sequences. A routing
 * gives the k experts of each token, and its slot in the buffer of its group for each. Slots go to
 * all first choices in the order of the tokens, then to all second ones; -1 beyond the capacity. */
typedef struct weft_routing {
    weft_value expert, slot; /* i32 [groups..., tokens, k] */
    weft_value count;        /* i32 [experts, groups...]: slots in use */
    int64_t experts, capacity;
} weft_routing;
/* gates [groups..., tokens, experts], the router's probabilities -> weight [groups..., tokens, k],
 * the k largest, not scaled to sum to 1. capacity: slots of each expert for each group; 0: as many
 * as tokens, so that no token is dropped. */
WEFT_API weft_value weft_moe_route(weft_graph *g, weft_value gates, int64_t k, int64_t capacity,
                                   weft_routing *out);
/* x [groups..., tokens, hidden] -> [experts, groups..., capacity, hidden]: each token's copies in
 * its slots, 0 elsewhere. */
WEFT_API weft_value weft_moe_dispatch(weft_graph *g, weft_value x, const weft_routing *routing);
/* x [experts, groups..., rows, k], weight [experts, k, n] (transposed: [experts, n, k]) ->
 * [experts, groups..., rows, n]. With a routing only rows in use are computed; the others are 0. */
WEFT_API weft_value weft_moe_linear(weft_graph *g, weft_value x, weft_value weight, bool transposed,
                                    const weft_routing *routing);
/* y [experts, groups..., capacity, hidden], weight [groups..., tokens, k] or none (1) ->
 * [groups..., tokens, hidden]: the weighted sum over each token's slots. */
WEFT_API weft_value weft_moe_combine(weft_graph *g, weft_value y, const weft_routing *routing,
                                     weft_value weight);

/* x [batch, in, h, w], weight [out, in / groups, kh, kw], bias [out] or none -> [batch, out, oh,
 * ow]. NULL options: the defaults. */
typedef struct weft_conv_options {
    size_t struct_bytes;
    int64_t stride[3], padding[3], dilation[3]; /* per spatial dimension */
    int64_t groups;
} weft_conv_options;
/* Strides, dilations and groups of 1, no padding. */
static inline weft_conv_options weft_conv_defaults(void) {
    weft_conv_options o;
    memset(&o, 0, sizeof o);
    o.struct_bytes = sizeof o;
    for (int d = 0; d < 3; d++) o.stride[d] = o.dilation[d] = 1;
    o.groups = 1;
    return o;
}
WEFT_API weft_value weft_conv2d(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                                const weft_conv_options *options);
/* x [batch, in, d, h, w], weight [out, in / groups, kd, kh, kw] -> [batch, out, od, oh, ow]. */
WEFT_API weft_value weft_conv3d(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                                const weft_conv_options *options);
/* x [batch, channels, h, w] -> [batch, channels, oh, ow]. Padding is -inf for the maximum, and does
 * not count for the average. */
WEFT_API weft_value weft_max_pool2d(weft_graph *g, weft_value x, const int64_t kernel[2],
                                    const int64_t stride[2], const int64_t padding[2]);
WEFT_API weft_value weft_avg_pool2d(weft_graph *g, weft_value x, const int64_t kernel[2],
                                    const int64_t stride[2], const int64_t padding[2]);

/* Shape. */
/* x [...] -> [shape[0], ..., shape[rank - 1]]: the same elements in the same order. */
WEFT_API weft_value weft_reshape(weft_graph *g, weft_value x, int rank,
                                 const int64_t *shape); /* one -1 allowed */
/* order [rank]: dimension i of the result is dimension order[i] of x. */
WEFT_API weft_value weft_transpose(weft_graph *g, weft_value x, int rank, const int *order);
/* x [..., n, ...] -> [..., end - begin, ...]: elements begin to end - 1 of the axis. */
WEFT_API weft_value weft_slice(weft_graph *g, weft_value x, int axis, int64_t begin, int64_t end);
/* x[i] [..., n_i, ...] -> [..., n_0 + n_1 + ..., ...]: 1 to 32 values of one dtype that differ only
 * in their length along the axis. */
WEFT_API weft_value weft_concat(weft_graph *g, int count, const weft_value *x, int axis);
/* x [..., n, ...] -> `parts` values [..., n / parts, ...], 1 to 16, which divide n. */
WEFT_API void weft_split(weft_graph *g, weft_value x, int axis, int parts, weft_value *out);
/* Add elements of `value`: before[d] in front of dimension d, and after[d] after it. */
WEFT_API weft_value weft_pad(weft_graph *g, weft_value x, const int64_t *before,
                             const int64_t *after, double value);

/* Indexing. */
/* The op "gather". x [..., n, ...], index i32 [i] -> [..., i, ...]: slices of the axis by their
 * numbers; 0 for a number outside the axis. */
WEFT_API weft_value weft_take(weft_graph *g, weft_value x, weft_value index, int axis);
/* x [..., n, ...], index i32 [i], updates [..., i, ...] -> [..., n, ...]: x with each update added
 * to the slice with its number. */
WEFT_API weft_value weft_scatter_add(weft_graph *g, weft_value x, weft_value index,
                                     weft_value updates, int axis);
/* index i32 [...] -> [..., classes]: 1 at the number's position in the last dimension, else 0. */
WEFT_API weft_value weft_one_hot(weft_graph *g, weft_value index, int64_t classes,
                                 weft_dtype dtype);
/* x [..., n] -> values [..., k], and *out_index i32 [..., k]: the k largest of the last dimension,
 * descending, lowest index first among equals. */
WEFT_API weft_value weft_top_k(weft_graph *g, weft_value x, int64_t k, weft_value *out_index);

/* Communication between the ranks of a world, for models that divide their work by hand
 * (docs/guide/how-to-collectives.md). All ranks build the same graph. It needs a plan with as many
 * devices as the world has processes. Groups of `count` ranks that are `stride` apart divide the
 * world: of 4 ranks {2, 1} gives 0 1 and 2 3, {2, 2} gives 0 2 and 1 3. In a pipeline a group has
 * ranks of one stage. Gradients are those of the sum of all ranks' losses. */
typedef struct weft_ranks {
    int count, stride;
} weft_ranks;
/* Sum, max, min or prod over the group's x; prod has no gradient. */
WEFT_API weft_value weft_graph_all_reduce(weft_graph *g, weft_value x, weft_ranks group,
                                          weft_reduction reduction);
/* x [n, ...] of all members, in their order -> [count n, ...]. */
WEFT_API weft_value weft_graph_all_gather(weft_graph *g, weft_value x, weft_ranks group);
/* x [count n, ...] -> [n, ...]: the sum's block with the number of the own place. */
WEFT_API weft_value weft_graph_reduce_scatter(weft_graph *g, weft_value x, weft_ranks group);
/* Sends the blocks of dimension `split` to the members, and joins theirs along dimension `join`. */
WEFT_API weft_value weft_graph_all_to_all(weft_graph *g, weft_value x, weft_ranks group, int split,
                                          int join);
/* The value of member `root` on all. */
WEFT_API weft_value weft_graph_broadcast(weft_graph *g, weft_value x, weft_ranks group, int root);
/* The sum on member `root`, zeros on the others. */
WEFT_API weft_value weft_graph_reduce(weft_graph *g, weft_value x, weft_ranks group, int root);
/* x of member from[own place], zeros if that is -1. `from` [count], no member twice. The general
 * form of the ops below: shifts, messages, blocks between neighbors, halos. */
WEFT_API weft_value weft_graph_permute(weft_graph *g, weft_value x, weft_ranks group,
                                       const int *from);
/* x of member `from` on member `to`, zeros on the others. Send and receive in one op. */
WEFT_API weft_value weft_graph_send(weft_graph *g, weft_value x, weft_ranks group, int from,
                                    int to);
/* Exchange of blocks between neighbors. Member m sends x[i] to member send_ranks[m * sends + i].
 * out[j], with the type received[j], is the block from member receive_ranks[m * receives + j]. -1
 * means no member; such a block is zeros. The k-th block that one member sends another is the k-th
 * that this one receives from it. */
WEFT_API void weft_graph_neighbor_exchange(weft_graph *g, weft_ranks group, const weft_value *x,
                                           int sends, const int *send_ranks,
                                           const weft_desc *received, int receives,
                                           const int *receive_ranks, weft_value *out);
/* x [..., height, width], a tile of a plane -> [..., top + height + bottom, left + width + right]:
 * the tile with the rims that its neighbors send, zeros without a neighbor. send, receive [count]:
 * the halos of all members; sizes are the same for all. A convolution of the result without padding
 * equals the convolution of the whole plane with zero padding. */
WEFT_API weft_value weft_graph_halo_exchange(weft_graph *g, weft_value x, weft_ranks group,
                                             const weft_halo *send, const weft_halo *receive);

#ifdef __cplusplus
}
#endif
#endif
