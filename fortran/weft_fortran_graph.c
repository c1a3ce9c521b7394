/* Graphs and operations of the Fortran module `weft`: names and shapes of Fortran, default
 * integers for sizes, flags as integers. */
#include "weft_fortran.h"

enum { MOST = 64 }; /* sizes, axes or values of one call; weft itself refuses far fewer */

/* Copies a list, the rest 0; returns its length. */
static int sizes_of(const CFI_cdesc_t *list, int64_t out[MOST]) {
    int count = weft_fortran_count(list);
    for (int i = 0; i < MOST; i++) out[i] = i < count ? weft_fortran_int(list, i) : 0;
    return count < MOST ? count : MOST;
}
static weft_desc desc_of(int dtype, const CFI_cdesc_t *shape) {
    int64_t sizes[MOST];
    int rank = sizes_of(shape, sizes);
    return weft_desc_of((weft_dtype)dtype, rank, sizes);
}

/* ---- graphs ---- */

weft_value weft_fortran_input(weft_graph *g, const CFI_cdesc_t *name, int dtype,
                              const CFI_cdesc_t *shape) {
    WEFT_FORTRAN_TEXT(text, name);
    return weft_input(g, text, desc_of(dtype, shape));
}
weft_value weft_fortran_param(weft_graph *g, const CFI_cdesc_t *name, int dtype,
                              const CFI_cdesc_t *shape, const weft_init *init) {
    WEFT_FORTRAN_TEXT(text, name);
    return weft_param(g, text, desc_of(dtype, shape), *init);
}
weft_value weft_fortran_state(weft_graph *g, const CFI_cdesc_t *name, int dtype,
                              const CFI_cdesc_t *shape, const weft_init *init) {
    WEFT_FORTRAN_TEXT(text, name);
    return weft_state(g, text, desc_of(dtype, shape), *init);
}
weft_status weft_fortran_freeze(weft_graph *g, const CFI_cdesc_t *pattern, bool frozen) {
    WEFT_FORTRAN_TEXT(text, pattern);
    return weft_freeze(g, text, frozen);
}
void weft_fortran_cell_begin(weft_graph *g, const CFI_cdesc_t *name) {
    WEFT_FORTRAN_TEXT(text, name);
    weft_cell_begin(g, "%s", text);
}
void weft_fortran_cell_end_many(weft_graph *g, const CFI_cdesc_t *values) {
    int count = weft_fortran_count(values);
    weft_value list[count + 1];
    for (int i = 0; i < count; i++) list[i] = *(weft_value *)weft_fortran_item(values, i);
    weft_cell_end_many(g, count, list);
    for (int i = 0; i < count; i++) *(weft_value *)weft_fortran_item(values, i) = list[i];
}
void weft_fortran_output(weft_graph *g, const CFI_cdesc_t *name, weft_value value) {
    WEFT_FORTRAN_TEXT(text, name);
    weft_output(g, text, value);
}
weft_status weft_fortran_graph_parse(const CFI_cdesc_t *text, weft_graph **out) {
    WEFT_FORTRAN_TEXT(copy, text);
    return weft_graph_parse(copy, out);
}
weft_value weft_fortran_dense(weft_graph *g, const CFI_cdesc_t *name, weft_value x, int features,
                              weft_value (*activation)(weft_graph *, weft_value),
                              const weft_dense_options *options) {
    WEFT_FORTRAN_TEXT(text, name);
    weft_dense_options o = options ? *options : weft_dense_defaults();
    if (activation) o.activation = activation;
    return weft_dense(g, text[0] ? text : NULL, x, features, &o);
}

/* ---- operations ---- */

weft_value weft_fortran_constant(weft_graph *g, int dtype, const CFI_cdesc_t *shape, double value) {
    return weft_constant(g, desc_of(dtype, shape), value);
}
weft_value weft_fortran_matmul(weft_graph *g, weft_value a, weft_value b, int transpose_a,
                               int transpose_b) {
    return weft_matmul(g, a, b, transpose_a != 0, transpose_b != 0);
}
weft_value weft_fortran_linear(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                               int transposed) {
    return weft_linear(g, x, weight, bias, transposed != 0);
}
/* which: 0 sum, 1 mean, 2 max */
weft_value weft_fortran_reduction(int which, weft_graph *g, weft_value x, const CFI_cdesc_t *axes,
                                  int keep) {
    weft_value (*const ops[])(weft_graph *, weft_value, int, const int *,
                              bool) = {weft_sum, weft_mean, weft_max};
    int count = weft_fortran_count(axes), list[count + 1];
    for (int i = 0; i < count; i++) list[i] = weft_fortran_int(axes, i);
    return ops[which](g, x, count, list, keep != 0);
}
weft_value weft_fortran_cross_entropy(weft_graph *g, weft_value logits, weft_value targets,
                                      const int *ignore, const double *smoothing) {
    return weft_cross_entropy(g, logits, targets, ignore ? *ignore : -1,
                              smoothing ? *smoothing : 0);
}
weft_value weft_fortran_batch_norm(weft_graph *g, weft_value x, weft_value gamma, weft_value beta,
                                   weft_value mean, weft_value var, double momentum, double eps,
                                   int training) {
    return weft_batch_norm(g, x, gamma, beta, mean, var, momentum, eps, training != 0);
}
weft_value weft_fortran_moe_route(weft_graph *g, weft_value gates, int k, int capacity,
                                  weft_routing *out) {
    return weft_moe_route(g, gates, k, capacity, out);
}
weft_value weft_fortran_moe_linear(weft_graph *g, weft_value x, weft_value weight, int transposed,
                                   const weft_routing *routing) {
    return weft_moe_linear(g, x, weight, transposed != 0, routing);
}

#define PAIR(list) ((int64_t[]){list[0], list[1]})
weft_value weft_fortran_max_pool2d(weft_graph *g, weft_value x, const int kernel[2],
                                   const int stride[2], const int padding[2]) {
    return weft_max_pool2d(g, x, PAIR(kernel), PAIR(stride), PAIR(padding));
}
weft_value weft_fortran_avg_pool2d(weft_graph *g, weft_value x, const int kernel[2],
                                   const int stride[2], const int padding[2]) {
    return weft_avg_pool2d(g, x, PAIR(kernel), PAIR(stride), PAIR(padding));
}

weft_value weft_fortran_reshape(weft_graph *g, weft_value x, const CFI_cdesc_t *shape) {
    int64_t sizes[MOST];
    int rank = sizes_of(shape, sizes);
    return weft_reshape(g, x, rank, sizes);
}
weft_value weft_fortran_transpose(weft_graph *g, weft_value x, const CFI_cdesc_t *order) {
    int count = weft_fortran_count(order), list[count + 1];
    for (int i = 0; i < count; i++) list[i] = weft_fortran_int(order, i);
    return weft_transpose(g, x, count, list);
}
weft_value weft_fortran_slice(weft_graph *g, weft_value x, int axis, int begin, int end) {
    return weft_slice(g, x, axis, begin, end);
}
weft_value weft_fortran_concat(weft_graph *g, const CFI_cdesc_t *values, int axis) {
    int count = weft_fortran_count(values);
    weft_value list[count + 1];
    for (int i = 0; i < count; i++) list[i] = *(weft_value *)weft_fortran_item(values, i);
    return weft_concat(g, count, list, axis);
}
void weft_fortran_split(weft_graph *g, weft_value x, int axis, const CFI_cdesc_t *parts) {
    int count = weft_fortran_count(parts);
    weft_value list[count + 1];
    for (int i = 0; i <= count; i++) list[i] = WEFT_NO_VALUE;
    weft_split(g, x, axis, count, list);
    for (int i = 0; i < count; i++) *(weft_value *)weft_fortran_item(parts, i) = list[i];
}
weft_value weft_fortran_pad(weft_graph *g, weft_value x, const CFI_cdesc_t *before,
                            const CFI_cdesc_t *after, double value) {
    int64_t front[MOST], back[MOST];
    (void)sizes_of(before, front);
    (void)sizes_of(after, back);
    return weft_pad(g, x, front, back, value);
}
weft_value weft_fortran_one_hot(weft_graph *g, weft_value index, int classes, int dtype) {
    return weft_one_hot(g, index, classes, (weft_dtype)dtype);
}
weft_value weft_fortran_top_k(weft_graph *g, weft_value x, int k, weft_value *out_index) {
    return weft_top_k(g, x, k, out_index);
}
