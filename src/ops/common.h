/* Helpers for the op files: declarations of all ops, checks with their messages, pieces of split
 * rules, iteration over broadcast operands, and adding nodes.
 *
 * Conventions of every op file:
 *
 *     Attributes    hold plain facts: axes count from 0 and are in range, shapes have no -1. (The
 *                   public builders resolve both.)
 *     References    read dense doubles.
 *     Dtypes        Floating operands may be f32 together with one 16-bit format (parameters,
 *                   statistics). Neither f64 nor integers mix with other types. */
#ifndef WEFTI_OPS_COMMON_H
#define WEFTI_OPS_COMMON_H

#include <math.h>

#include "base/memory.h"
#include "graph/grad/grad.h"
#include "graph/graph.h"
#include "graph/lower/lower.h"
#include "graph/op.h"
#include "weft/ops.h"

#define WEFTI_OP_DECLARE(name_) extern const weft_op_def weft_op_##name_;
WEFT_OP_LIST(WEFTI_OP_DECLARE)
#undef WEFTI_OP_DECLARE

/* Rows for the tables of an op. */
#define ATTR_INTS(name_, ...)                                                                      \
    {                                                                                              \
        .id = WEFTI_AT_##name_, .kind = WEFTI_ATTR_INTS, .ints = { __VA_ARGS__ }                   \
    }
#define CASE(attrs_, ...)                                                                          \
    { {__VA_ARGS__}, attrs_ }
#define CASES_END                                                                                  \
    { {NULL}, NULL }

/* Text of a shape, for the arguments of a message. */
#define TEXT(desc) wefti_desc_text(desc).text

/* ---- checks: WEFT_E_SHAPE or WEFT_E_ARG naming the op and the operand ---- */

weft_status wefti_op_check_float(const weft_node *n, int i) WEFT_CHECKED;
weft_status wefti_op_check_i32(const weft_node *n, int i) WEFT_CHECKED;
weft_status wefti_op_check_rank(const weft_node *n, int i, int low, int high) WEFT_CHECKED;
weft_status wefti_op_check_same_shape(const weft_node *n, int i, int j) WEFT_CHECKED;
/* Checks that input i has exactly these sizes. `what` describes them in the message: "the channels
 * of x". */
weft_status wefti_op_check_shape(const weft_node *n, int i, int rank, const int64_t *shape,
                                 const char *what) WEFT_CHECKED;
weft_status wefti_op_check_axis(const weft_node *n, int64_t axis, int rank) WEFT_CHECKED;
/* Checks that the floating inputs from `first` on follow the dtype convention above. */
weft_status wefti_op_check_mix(const weft_node *n, int first) WEFT_CHECKED;
weft_status wefti_op_check_dtype(const weft_node *n, int64_t dtype) WEFT_CHECKED;

/* Checks the attributes `whole` and `begin`. They state the place of x in a larger tensor, or both
 * are empty. */
weft_status wefti_op_check_place(const weft_node *n, const weft_desc *x) WEFT_CHECKED;

/* ---- descriptors ---- */

/* The dtype of the first floating input from `first` on that is not a parameter. If there is none,
 * the dtype of input `first`. */
weft_dtype wefti_op_result_dtype(const weft_node *n, int first);
/* The dtype of statistics, losses and parameter gradients: f64 for f64, else f32. */
weft_dtype wefti_op_statistics_dtype(weft_dtype dtype);
weft_desc wefti_op_desc(weft_dtype dtype, int rank, const int64_t *shape);
weft_desc wefti_op_retyped(const weft_desc *desc, weft_dtype dtype);
/* The shape attribute `name` as a descriptor, checked. */
weft_status wefti_op_desc_of_attr(const weft_node *n, wefti_attr_id id, weft_dtype dtype,
                                  weft_desc *out) WEFT_CHECKED;
/* Product of the sizes of dimensions [from, to). */
int64_t wefti_op_count(const weft_desc *desc, int from, int to);
wefti_ints wefti_op_ints(int count, const int64_t *values);
wefti_ints wefti_op_shape_ints(const weft_desc *desc);
bool wefti_op_axes_have(const wefti_ints *axes, int axis);
/* Converts a public axis to an attribute: a negative axis counts from the end, others do not
 * change. */
int64_t wefti_op_axis(int axis, int rank);

/* ---- broadcast operands ---- */

/* Strides of `desc` when it is broadcast over `over`; 0 along repeated dimensions. */
void wefti_op_broadcast_strides(const weft_desc *desc, const weft_desc *over,
                                int64_t out[WEFT_MAX_RANK]);
/* Offset, with these strides, of the element with flat index `flat` of `over`. */
int64_t wefti_op_offset(const weft_desc *over, int64_t flat, const int64_t strides[WEFT_MAX_RANK]);

/* Data of an optional input; NULL when absent. */
static inline const double *wefti_op_optional(const weft_node *n, const double *const *in, int i) {
    return wefti_in(n, i) ? in[i] : NULL;
}

/* ---- split rules ---- */

/* Adds a factor for a dimension of this size; -1 for size 1. If `index` >= 0, it is appended to the
 * name. */
int8_t wefti_op_factor(wefti_split_rule *r, const char *name, int index, int64_t size,
                       wefti_factor_kind kind);
/* Adds factors name0, name1... for dimensions [from, to) of `desc`, into f[from..to). */
void wefti_op_factors(wefti_split_rule *r, const char *name, const weft_desc *desc, int from,
                      int to, wefti_factor_kind kind, int8_t f[WEFT_MAX_RANK]);
/* dims[at + k] = f[from + k] for k in [0, count) */
void wefti_op_assign(int8_t *dims, int at, const int8_t *f, int from, int count);
/* Makes all dimensions free. Operands are aligned with output 0 by broadcasting. */
weft_status wefti_op_split_elementwise(const weft_node *n, wefti_split_rule *r);
/* For localize: sets the shape attribute `name` to the shape of the piece of output 0. Does not
 * change spatial dimensions, because only the halo exchange knows how far a piece reaches into its
 * halo. */
void wefti_op_localize_shape(const weft_node *n, const wefti_split_rule *rule, const int64_t *sizes,
                             wefti_attr *attrs, wefti_attr_id id);
/* For localize of ops that draw random numbers for x: sets the stream in attrs, and the begin of
 * the piece, `shift` elements into x. */
void wefti_op_localize_place(const weft_node *n, const weft_desc *x,
                             const int64_t shift[WEFT_MAX_RANK], wefti_attr *attrs);
/* The attribute `name` of attrs[], which is a copy of the node's attributes. */
wefti_attr *wefti_op_attr(const weft_node *n, wefti_attr *attrs, wefti_attr_id id);

/* ---- cost ---- */

/* Cost of moves. Each element of the outputs is read from input 0 and written. If the op has two
 * inputs, the second input holds indices, which are read too. */
void wefti_op_cost_move(const weft_node *n, wefti_cost *out);
/* Cost of `flops` operations for each element of input i. The bytes of every operand count once. */
void wefti_op_cost_each(const weft_node *n, int i, double flops, wefti_cost *out);
/* Cost of a view: zero. */
void wefti_op_cost_view(const weft_node *n, wefti_cost *out);

/* ---- adding nodes ---- */

weft_value wefti_op_add1(weft_graph *g, const weft_op_def *op, weft_value x);
weft_value wefti_op_add2(weft_graph *g, const weft_op_def *op, weft_value a, weft_value b);
weft_value wefti_op_sum_to(weft_graph *g, weft_value x, const weft_desc *to); /* shape and dtype */
weft_value wefti_op_broadcast_to(weft_graph *g, weft_value x, const weft_desc *to); /* shape only */
/* A scalar constant with the dtype of `like`. */
weft_value wefti_op_scalar(weft_graph *g, weft_value like, double value);
/* weft_linear and weft_moe_linear. f8: with operands in 8 bits. */
weft_value wefti_op_linear(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                           bool transposed, bool f8);
weft_value wefti_op_moe_linear(weft_graph *g, weft_value x, weft_value weight, bool transposed,
                               const weft_routing *routing, bool f8);

/* ---- lowering ---- */

enum { WEFTI_MAX_PARTS = 1024 }; /* of the dimension in which an op searches an extreme */

/* Bit mask of all factors of this kind. */
uint32_t wefti_op_factors_of(const wefti_lowering *c, wefti_factor_kind kind);
/* Sum over `axes` on this device and over the devices that split `factors`. The axes keep size
 * 1. */
weft_value wefti_op_sum_over(wefti_lowering *c, weft_value x, const wefti_ints *axes,
                             uint32_t factors);
/* Converts x to the dtype of statistics, so that sums over devices are not rounded in between. */
weft_value wefti_op_precise(weft_graph *g, weft_value x);
/* v [...] as [..., 1] */
weft_value wefti_op_column(weft_graph *g, weft_value v);
/* Gathers the candidates of all devices that split `factor`, in order. v is [..., k], and part p
 * has counts[p] candidates. The result is [..., sum of counts]. */
weft_value wefti_op_candidates(wefti_lowering *c, weft_value v, int factor, const int64_t *counts);
/* Picks from v [..., n] the elements at place [..., k], in order: [..., k] i32. v and place are
 * i32. Values of v are below `limit`. */
weft_value wefti_op_pick(weft_graph *g, weft_value v, weft_value place, int64_t limit);

#endif
