/* What op files share: declarations of all ops, checks with their messages, pieces of split rules,
 * walking over broadcast operands, and adding nodes.
 *
 * Conventions of every op file. Attributes hold plain facts: axes count from 0 and are in range,
 * shapes have no -1 (the public builders resolve those). References get dense doubles. Floating
 * operands may be f32 beside one 16-bit format (parameters, statistics); f64 and integers mix with
 * nothing. */
#ifndef WEFTI_OPS_COMMON_H
#define WEFTI_OPS_COMMON_H

#include <math.h>

#include "base/memory.h"
#include "graph/grad/grad.h"
#include "graph/graph.h"
#include "graph/lower/lower.h"
#include "graph/op.h"
#include "ops/ops.def"
#include "weft/ops.h"

#define WEFTI_OP_DECLARE(name_) extern const weft_op_def weft_op_##name_;
WEFT_OP_LIST(WEFTI_OP_DECLARE)
#undef WEFTI_OP_DECLARE

/* Rows of an op's tables. */
#define ATTR_INTS(name_, ...)                                                                      \
    {                                                                                              \
        .name = (name_), .kind = WEFTI_ATTR_INTS, .ints = { __VA_ARGS__ }                          \
    }
#define CASE(attrs_, ...)                                                                          \
    { {__VA_ARGS__}, attrs_ }
#define CASES_END                                                                                  \
    { {NULL}, NULL }

/* Text of a shape inside a message's arguments. */
#define TEXT(desc) wefti_desc_text(desc).text

/* ---- checks: WEFT_E_SHAPE or WEFT_E_ARG naming the op and the operand ---- */

weft_status wefti_op_check_float(const weft_node *n, int i) WEFT_CHECKED;
weft_status wefti_op_check_i32(const weft_node *n, int i) WEFT_CHECKED;
weft_status wefti_op_check_rank(const weft_node *n, int i, int low, int high) WEFT_CHECKED;
weft_status wefti_op_check_same_shape(const weft_node *n, int i, int j) WEFT_CHECKED;
/* Input i has exactly these sizes; `what` says which those are: "the channels of x". */
weft_status wefti_op_check_shape(const weft_node *n, int i, int rank, const int64_t *shape,
                                 const char *what) WEFT_CHECKED;
weft_status wefti_op_check_axis(const weft_node *n, int64_t axis, int rank) WEFT_CHECKED;
/* Floating inputs from `first` on agree as the conventions above say. */
weft_status wefti_op_check_mix(const weft_node *n, int first) WEFT_CHECKED;
weft_status wefti_op_check_dtype(const weft_node *n, int64_t dtype) WEFT_CHECKED;

/* The attributes `whole` and `begin` say where x lies in a larger tensor, or are both empty. */
weft_status wefti_op_check_place(const weft_node *n, const weft_desc *x) WEFT_CHECKED;

/* ---- descriptors ---- */

/* dtype of the first floating input from `first` on that is not a parameter, else of `first`. */
weft_dtype wefti_op_result_dtype(const weft_node *n, int first);
/* What statistics, losses and parameter gradients are kept in: f64 for f64, else f32. */
weft_dtype wefti_op_statistics_dtype(weft_dtype dtype);
weft_desc wefti_op_desc(weft_dtype dtype, int rank, const int64_t *shape);
weft_desc wefti_op_retyped(const weft_desc *desc, weft_dtype dtype);
/* The shape attribute `name` as a descriptor, checked. */
weft_status wefti_op_desc_of_attr(const weft_node *n, const char *name, weft_dtype dtype,
                                  weft_desc *out) WEFT_CHECKED;
/* Product of the sizes of dimensions [from, to). */
int64_t wefti_op_count(const weft_desc *desc, int from, int to);
wefti_ints wefti_op_ints(int count, const int64_t *values);
wefti_ints wefti_op_shape_ints(const weft_desc *desc);
bool wefti_op_axes_have(const wefti_ints *axes, int axis);
/* A public axis as an attribute: a negative one counts from the end, others stay. */
int64_t wefti_op_axis(int axis, int rank);

/* ---- operands of another shape ---- */

/* Strides of `desc` read as broadcast over `over`: 0 where it repeats. */
void wefti_op_broadcast_strides(const weft_desc *desc, const weft_desc *over,
                                int64_t out[WEFT_MAX_RANK]);
/* Offset under `strides` of the element with flat index `flat` of `over`. */
int64_t wefti_op_offset(const weft_desc *over, int64_t flat, const int64_t strides[WEFT_MAX_RANK]);

/* Data of an optional input, NULL when absent. */
static inline const double *wefti_op_optional(const weft_node *n, const double *const *in, int i) {
    return wefti_in(n, i) ? in[i] : NULL;
}

/* ---- split rules ---- */

/* A new factor for a dimension of this size; -1 for size 1. `index` >= 0 ends its name. */
int8_t wefti_op_factor(wefti_split_rule *r, const char *name, int index, int64_t size,
                       wefti_factor_kind kind);
/* Factors name0, name1... of dimensions [from, to) of `desc`, into f[from..to). */
void wefti_op_factors(wefti_split_rule *r, const char *name, const weft_desc *desc, int from,
                      int to, wefti_factor_kind kind, int8_t f[WEFT_MAX_RANK]);
/* dims[at + k] = f[from + k] for k in [0, count) */
void wefti_op_assign(int8_t *dims, int at, const int8_t *f, int from, int count);
/* All dimensions free, operands aligned by broadcasting over output 0. */
weft_status wefti_op_split_elementwise(const weft_node *n, wefti_split_rule *r);
/* For localize: the shape attribute `name` becomes the shape of the piece of output 0. Spatial
 * dimensions stay: how far a piece reaches into its halo is known only where halos are exchanged.
 */
void wefti_op_localize_shape(const weft_node *n, const wefti_split_rule *rule, const int64_t *sizes,
                             wefti_attr *attrs, const char *name);
/* For localize of ops that draw random numbers for x: attrs say which stream, and that the piece
 * begins `shift` elements into x. */
void wefti_op_localize_place(const weft_node *n, const weft_desc *x,
                             const int64_t shift[WEFT_MAX_RANK], wefti_attr *attrs);
/* The attribute `name` of attrs[], a copy of the node's. */
wefti_attr *wefti_op_attr(const weft_node *n, wefti_attr *attrs, const char *name);

/* ---- cost ---- */

/* Of moving: each element of the outputs is read from input 0 and written. Of two inputs the second
 * one holds indices, which are read. */
void wefti_op_cost_move(const weft_node *n, wefti_cost *out);
/* `flops` operations for each element of input i; every operand's bytes once. */
void wefti_op_cost_each(const weft_node *n, int i, double flops, wefti_cost *out);
/* Of a view: nothing. */
void wefti_op_cost_view(const weft_node *n, wefti_cost *out);

/* ---- adding nodes ---- */

weft_value wefti_op_add1(weft_graph *g, const weft_op_def *op, weft_value x);
weft_value wefti_op_add2(weft_graph *g, const weft_op_def *op, weft_value a, weft_value b);
weft_value wefti_op_sum_to(weft_graph *g, weft_value x, const weft_desc *to); /* shape and dtype */
weft_value wefti_op_broadcast_to(weft_graph *g, weft_value x, const weft_desc *to); /* shape only */
/* Scalar constant of the dtype of `like`. */
weft_value wefti_op_scalar(weft_graph *g, weft_value like, double value);

/* ---- lowering ---- */

enum { WEFTI_MAX_PARTS = 1024 }; /* of a dimension over which something is chosen */

/* Bit mask of the factors of a kind. */
uint32_t wefti_op_factors_of(const wefti_lowering *c, wefti_factor_kind kind);
/* Sum over `axes` here and over the devices that split `factors`; the axes keep size 1. */
weft_value wefti_op_sum_over(wefti_lowering *c, weft_value x, const wefti_ints *axes,
                             uint32_t factors);
/* x in the dtype of statistics: what several devices add up is not rounded in between. */
weft_value wefti_op_precise(weft_graph *g, weft_value x);
/* v [...] as [..., 1] */
weft_value wefti_op_column(weft_graph *g, weft_value v);
/* Candidates of all devices that split `factor`, in order: v [..., k], where part p has counts[p]
 * of them, as [..., sum of counts]. */
weft_value wefti_op_candidates(wefti_lowering *c, weft_value v, int factor, const int64_t *counts);
/* v [..., n] at place [..., k], both i32, in order: [..., k] i32. Values of v are below `limit`. */
weft_value wefti_op_pick(weft_graph *g, weft_value v, weft_value place, int64_t limit);

#endif
