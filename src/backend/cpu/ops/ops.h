/* Maps nodes to the vectorised kernels. There is one file for each family of ops. A `prepare`
 * function returns WEFT_E_NO_IMPL for nodes that its kernels do not take (f64, unusual dtypes).
 * Then the reference backend runs the node. */
#ifndef WEFTI_CPU_OPS_H
#define WEFTI_CPU_OPS_H

#include "backend/backend.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/memory.h"

/* The form of matrix products: what `anywhere` says in backend.h, else this processor's best.
 * Builds for other processors than x86-64 have the plain form only. */
static inline wefti_isa wefti_cpu_isa(const wefti_prepare *options) {
#if defined(__x86_64__)
    if (options->anywhere) return WEFTI_ISA_AVX512;
#endif
    (void)options;
    return wefti_isa_best();
}

typedef weft_status wefti_cpu_prepare(const weft_node *n, const wefti_prepare *options,
                                      wefti_kernel **out);

/* The list of ops that the backend knows: X(op name, prepare function). Several ops may share one.
 */
#define WEFTI_CPU_OPS(X)                                                                           \
    X(linear, wefti_cpu_linear)                                                                    \
    X(linear_grad_input, wefti_cpu_linear_grad_input)                                              \
    X(linear_grad_weight, wefti_cpu_linear_grad_weight)                                            \
    X(matmul, wefti_cpu_matmul)                                                                    \
    X(linear_cross_entropy, wefti_cpu_linear_cross_entropy)                                        \
    X(fused, wefti_cpu_elementwise)                                                                \
    X(constant, wefti_cpu_constant)                                                                \
    X(broadcast_to, wefti_cpu_broadcast_to)                                                        \
    X(cast, wefti_cpu_cast)                                                                        \
    X(sum_to, wefti_cpu_sum_to)                                                                    \
    X(sum, wefti_cpu_sum)                                                                          \
    X(mean, wefti_cpu_mean)                                                                        \
    X(max, wefti_cpu_max)                                                                          \
    X(argmax, wefti_cpu_argmax)                                                                    \
    X(softmax, wefti_cpu_softmax)                                                                  \
    X(softmax_grad, wefti_cpu_softmax_grad)                                                        \
    X(log_softmax, wefti_cpu_log_softmax)                                                          \
    X(log_softmax_grad, wefti_cpu_log_softmax_grad)                                                \
    X(cross_entropy, wefti_cpu_cross_entropy)                                                      \
    X(cross_entropy_part, wefti_cpu_cross_entropy_part)                                            \
    X(count_targets, wefti_cpu_count_targets)                                                      \
    X(cross_entropy_grad, wefti_cpu_cross_entropy_grad)                                            \
    X(mse, wefti_cpu_mse)                                                                          \
    X(mse_grad, wefti_cpu_mse_grad)                                                                \
    X(layer_norm, wefti_cpu_layer_norm)                                                            \
    X(layer_norm_apply, wefti_cpu_layer_norm_apply)                                                \
    X(layer_norm_grad, wefti_cpu_layer_norm_grad)                                                  \
    X(rms_norm, wefti_cpu_rms_norm)                                                                \
    X(rms_norm_apply, wefti_cpu_rms_norm_apply)                                                    \
    X(rms_norm_grad, wefti_cpu_rms_norm_grad)                                                      \
    X(batch_norm_train, wefti_cpu_batch_norm_train)                                                \
    X(batch_norm_infer, wefti_cpu_batch_norm_infer)                                                \
    X(batch_norm_grad, wefti_cpu_batch_norm_grad)                                                  \
    X(embedding, wefti_cpu_embedding)                                                              \
    X(embedding_grad, wefti_cpu_embedding_grad)                                                    \
    X(embedding_rows, wefti_cpu_embedding_rows)                                                    \
    X(rows_find, wefti_cpu_rows_find)                                                              \
    X(rows_sum, wefti_cpu_rows_sum)                                                                \
    X(rows_write, wefti_cpu_rows_write)                                                            \
    X(attention, wefti_cpu_attention)                                                              \
    X(attention_grad, wefti_cpu_attention_grad)                                                    \
    X(attention_mask_grad, wefti_cpu_attention_mask_grad)                                          \
    X(rope, wefti_cpu_rope)                                                                        \
    X(rope_grad, wefti_cpu_rope_grad)                                                              \
    X(cache_write, wefti_cpu_cache_write)                                                          \
    X(conv2d, wefti_cpu_conv)                                                                      \
    X(conv3d, wefti_cpu_conv)                                                                      \
    X(conv_grad_input, wefti_cpu_conv_grad_input)                                                  \
    X(conv_grad_weight, wefti_cpu_conv_grad_weight)                                                \
    X(max_pool2d, wefti_cpu_max_pool)                                                              \
    X(avg_pool2d, wefti_cpu_avg_pool)                                                              \
    X(max_pool2d_grad, wefti_cpu_max_pool_grad)                                                    \
    X(avg_pool2d_grad, wefti_cpu_avg_pool_grad)                                                    \
    X(transpose, wefti_cpu_transpose)                                                              \
    X(slice, wefti_cpu_slice)                                                                      \
    X(concat, wefti_cpu_concat)                                                                    \
    X(chunk, wefti_cpu_split)                                                                      \
    X(pad, wefti_cpu_pad)                                                                          \
    X(gather, wefti_cpu_gather)                                                                    \
    X(scatter_add, wefti_cpu_scatter_add)                                                          \
    X(one_hot, wefti_cpu_one_hot)                                                                  \
    X(top_k, wefti_cpu_top_k)                                                                      \
    X(top_k_grad, wefti_cpu_top_k_grad)                                                            \
    X(moe_slots, wefti_cpu_moe_slots)                                                              \
    X(moe_counts, wefti_cpu_moe_counts)                                                            \
    X(moe_dispatch, wefti_cpu_moe_dispatch)                                                        \
    X(moe_combine, wefti_cpu_moe_combine)                                                          \
    X(moe_dot, wefti_cpu_moe_dot)                                                                  \
    X(moe_linear, wefti_cpu_moe_linear)                                                            \
    X(moe_linear_grad_weight, wefti_cpu_moe_linear_grad_weight)                                    \
    X(opt_sgd, wefti_cpu_sgd)                                                                      \
    X(opt_adam, wefti_cpu_adam)                                                                    \
    X(opt_adamw, wefti_cpu_adamw)                                                                  \
    X(opt_lion, wefti_cpu_lion)                                                                    \
    X(opt_adagrad, wefti_cpu_adagrad)                                                              \
    X(opt_lamb, wefti_cpu_lamb)                                                                    \
    X(lamb_squares, wefti_cpu_lamb_squares)                                                        \
    X(opt_adafactor, wefti_cpu_adafactor)                                                          \
    X(opt_adafactor1, wefti_cpu_adafactor1)                                                        \
    X(grad_norm2, wefti_cpu_grad_norm2)

#define WEFTI_CPU_PROTOTYPE(op, function) wefti_cpu_prepare function;
WEFTI_CPU_OPS(WEFTI_CPU_PROTOTYPE)
#undef WEFTI_CPU_PROTOTYPE

/* Defines a prepare function of the list above, as one form of a function that several ops
 * share. */
#define WEFTI_CPU_FORM(name, function, form)                                                       \
    weft_status name(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {       \
        return function(n, options, form, out);                                                    \
    }

/* ---- for the family files ---- */

/* The attribute `axis` of a node; negative ones count from the end of x. */
static inline int wefti_cpu_axis(const weft_node *n, const weft_desc *x) {
    int64_t axis = wefti_attr_int(n, WEFTI_AT_axis);
    return (int)(axis < 0 ? axis + x->rank : axis);
}
/* Whether the vectorised kernels compute on this storage. */
static inline bool wefti_cpu_is_real(const weft_desc *d) {
    return d->dtype == WEFT_F32 || d->dtype == WEFT_BF16;
}
/* For parameters, statistics and losses: kernels take them as float pointers. An absent operand is
 * fine. */
static inline bool wefti_cpu_is_f32(const weft_desc *d) {
    return !d || d->dtype == WEFT_F32;
}
/* Converts a dropout rate for kernels that compare in f32. Returns the least f32 not below the
 * rate, so that `number >= rate` gives the same answer for every f32 number. */
float wefti_cpu_rate(double rate);
/* Product of shape[begin..end). */
static inline int64_t wefti_cpu_span(const weft_desc *d, int begin, int end) {
    int64_t n = 1;
    for (int i = begin; i < end; i++) n *= d->shape[i];
    return n;
}

/* Allocates a kernel of `bytes` (a struct that begins with wefti_kernel) and sets the usual
 * fields. */
weft_status wefti_cpu_kernel(size_t bytes, const char *label,
                             weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                                const void *const *, void *const *, void *),
                             wefti_kernel **out) WEFT_CHECKED;

#endif
