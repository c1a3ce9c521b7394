/* The definition of an op: the one struct that every op file fills, and the data that its functions
 * see.
 *
 * Everything weft knows of an op comes from its definition: shapes, gradient, split rule, cost, and
 * a reference kernel in plain C. Higher floors see ops only through this struct. */
#ifndef WEFTI_OP_H
#define WEFTI_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/tensor.h"
#include "topo/machine.h"
#include "weft/graph.h"

typedef struct weft_op_def weft_op_def;
typedef struct weft_node weft_node;
typedef struct weft_body weft_body;
typedef struct wefti_grad wefti_grad;
typedef struct wefti_lowering wefti_lowering;

enum { WEFTI_MAX_OUT = 16, WEFTI_MAX_IN = 32 };

/* ---- attributes ---- */

typedef enum wefti_attr_kind {
    WEFTI_ATTR_INT,   /* also booleans and dtypes */
    WEFTI_ATTR_FLOAT, /* printed so that parsing gives the same bits */
    WEFTI_ATTR_INTS,  /* at most WEFT_MAX_RANK */
    WEFTI_ATTR_TABLE  /* any number: one for each rank of a group */
} wefti_attr_kind;

typedef struct wefti_ints {
    int count;
    int64_t v[WEFT_MAX_RANK];
} wefti_ints;

typedef struct wefti_table {
    int count;
    const int64_t *v; /* borrowed; a node has its own copy */
} wefti_table;

enum { WEFTI_MAX_TABLE = 1024 };

#include "graph/attrs.def"
#include "graph/ops.def"

/* Ops as numbers: indices into tables of kernels and of passes. */
typedef enum wefti_op_id {
    WEFTI_OP_NONE, /* of a test */
    WEFTI_OP_call,
    WEFTI_OP_fused,
    WEFTI_OP_transfer, /* not in the list: the graph's own */
#define WEFTI_OP_ENTRY(name_) WEFTI_OP_##name_,
    WEFT_OP_LIST(WEFTI_OP_ENTRY)
#undef WEFTI_OP_ENTRY
        WEFTI_OPS
} wefti_op_id;
/* Begins the definition of an op of the list. */
#define WEFTI_OP_NAME(name_) .id = WEFTI_OP_##name_, .name = #name_

/* Names of attributes, as numbers. */
typedef enum wefti_attr_id {
    WEFTI_AT_NONE, /* ends a table */
#define WEFTI_ATTR_ENTRY(name_) WEFTI_AT_##name_,
    WEFT_ATTR_LIST(WEFTI_ATTR_ENTRY)
#undef WEFTI_ATTR_ENTRY
        WEFTI_ATTRS
} wefti_attr_id;

const char *wefti_attr_name(wefti_attr_id id);

typedef struct wefti_attr {
    wefti_attr_id id;
    wefti_attr_kind kind;
    int64_t i;
    double f;
    wefti_ints ints;
    wefti_table table;
} wefti_attr;

/* An op's attribute table ends with {0}; values are the defaults. */
#define WEFTI_I(name_, value_)                                                                     \
    ((wefti_attr){.id = WEFTI_AT_##name_, .kind = WEFTI_ATTR_INT, .i = (value_)})
#define WEFTI_F(name_, value_)                                                                     \
    ((wefti_attr){.id = WEFTI_AT_##name_, .kind = WEFTI_ATTR_FLOAT, .f = (value_)})
#define WEFTI_N(name_, value_)                                                                     \
    ((wefti_attr){.id = WEFTI_AT_##name_, .kind = WEFTI_ATTR_INTS, .ints = (value_)})
#define WEFTI_T(name_, count_, values_)                                                            \
    ((wefti_attr){.id = WEFTI_AT_##name_,                                                          \
                  .kind = WEFTI_ATTR_TABLE,                                                        \
                  .table = {.count = (count_), .v = (values_)}})
int wefti_attr_count(const weft_op_def *op);
bool wefti_attr_equal(const wefti_attr *a, const wefti_attr *b); /* id, kind and value */

/* ---- nodes ---- */

struct weft_node {
    const weft_op_def *op;
    weft_body *body; /* the body that contains it; value indices below refer to it */
    int32_t *in;     /* value index, or -1 for an absent optional input */
    int32_t *out;
    wefti_attr *attrs; /* all attributes of the op, in its table's order */
    const char *scope; /* path inside the cell, "attn" ("" at the top) */
    weft_body *callee; /* calls and fused nodes: the body they run */
    int16_t inputs, outputs;
    uint32_t stream; /* number of this random node in its body: part of the Philox stream */
    bool gradient;   /* added by differentiation, not by the model */
};

const weft_desc *wefti_in(const weft_node *n, int i); /* NULL when absent */
const weft_desc *wefti_out(const weft_node *n, int o);
bool wefti_in_is_param(const weft_node *n, int i); /* every call binds it to a parameter */
/* An attribute that the op does not declare is a bug of the op (asserted; returns 0). */
int64_t wefti_attr_int(const weft_node *n, wefti_attr_id id);
double wefti_attr_float(const weft_node *n, wefti_attr_id id);
const wefti_ints *wefti_attr_ints(const weft_node *n, wefti_attr_id id);
const wefti_table *wefti_attr_table(const weft_node *n, wefti_attr_id id);
/* Whether operands 0 and 1 of a product are cast to 8 bits before it: attribute `f8`. */
bool wefti_node_is_f8(const weft_node *n);

/* ---- random numbers ---- */

/* The random numbers that a run draws. They are equal for every split, because streams come from
 * names and positions are global. */
typedef struct wefti_random {
    uint64_t seed;
    uint64_t step;        /* optimizer step, from 0 */
    uint64_t call_stream; /* of the cell call: wefti_stream_of(path) */
    int64_t row_offset;   /* global number of the first sample */
    int64_t samples;      /* samples of a whole tensor; 0: the size of dimension 0 */
} wefti_random;

/* The stream of a random node: its attribute `stream` if that is not negative, else its own. */
uint64_t wefti_random_stream(const wefti_random *r, const weft_node *n);
/* The position of the elements for which the node draws numbers; positions are indices in the
 * global tensor. Element [i0, i1...] of `x` has the returned position plus the sum of i_d *
 * out_strides[d].
 *
 * The attributes `whole` and `begin` say of which tensor x is a piece; without them x is the whole.
 * Samples before this piece count with the whole tensor's elements per sample. This also holds if a
 * sample dimension is merged with inner dimensions, in dimension 0 or behind a dimension of size 1.
 * If dimension 0 does not count samples, microbatches share no positions. Other divisions of the
 * batch then draw other numbers. */
int64_t wefti_random_place(const wefti_random *r, const weft_node *n, const weft_desc *x,
                           int64_t out_strides[WEFT_MAX_RANK]);

/* ---- split rules ---- */

/* How a factor (a set of dimensions that must be split alike) may be split, and the
 * consequences. */
typedef enum wefti_factor_kind {
    WEFTI_FACTOR_FREE,   /* pieces are independent: outputs with this factor are split, the
                            others replicated */
    WEFTI_FACTOR_SUM,    /* in no output: outputs are partial sums; a bias is added once */
    WEFTI_FACTOR_MAX,    /* in no output: outputs are partial maxima */
    WEFTI_FACTOR_HALO,   /* spatial: pieces need a border of their neighbors' elements */
    WEFTI_FACTOR_LOOKUP, /* indexed dimension (vocabulary, classes): masked local look-up,
                            outputs are partial sums */
    WEFTI_FACTOR_STATS,  /* normalized dimension: local statistics are combined, then applied */
    WEFTI_FACTOR_RING,   /* attended sequence: keys and values travel round, results are merged
                            by log-sum-exp */
    WEFTI_FACTOR_WHOLE   /* may not be split: inputs are gathered first */
} wefti_factor_kind;

enum { WEFTI_MAX_FACTORS = 24 };

typedef struct wefti_factor {
    char name[12]; /* "m", "heads"... unique in the rule */
    int64_t size;
    wefti_factor_kind kind;
} wefti_factor;

/* The factor of each dimension of each input and output. -1: a dimension of size 1 or a broadcast
 * dimension, always replicated. A dimension's size may be a multiple of its factor's size (channels
 * and their groups in a convolution, merged dimensions in a reshape). It is then split between
 * these blocks. Sizes of spatial (HALO) factors are free. */
typedef struct wefti_split_rule {
    int factors;
    wefti_factor factor[WEFTI_MAX_FACTORS];
    int8_t in[WEFTI_MAX_IN][WEFT_MAX_RANK];
    int8_t out[WEFTI_MAX_OUT][WEFT_MAX_RANK];
    bool sum_once[WEFTI_MAX_IN]; /* if a SUM factor is split, only one term adds this input (a
                                    bias) */
} wefti_split_rule;

/* Helpers for op files. A rule starts empty (all -1). */
void wefti_rule_begin(wefti_split_rule *r);
int wefti_rule_factor(wefti_split_rule *r, const char *name, int64_t size, wefti_factor_kind kind);
/* Fills the rule from an einsum-like text over this node's shapes: "b m k, b k n -> b m n". Names
 * that occur only on the left are SUM factors. The word "..." stands for leading dimensions,
 * aligned at the end; broadcast sizes 1 become -1. The word "*" is a WHOLE factor for that
 * dimension. */
weft_status wefti_rule_from_text(const weft_node *n, const char *text,
                                 wefti_split_rule *r) WEFT_CHECKED;

/* ---- cost ---- */

typedef struct wefti_cost {
    double flops; /* multiply and add count 1 each */
    double bytes; /* read + written, each operand once */
} wefti_cost;
double wefti_node_bytes(const weft_node *n); /* all inputs + outputs once */

/* ---- test cases ---- */

/* A test case. Attributes are written as in the text form: "axis=1 eps=1e-5 stride=(2,2)". An input
 * is written as "f32[2,3]" with a suffix for its values:
 *
 *   (none)  normal numbers
 *   +       positive, away from 0
 *   <N      integers below N
 *   !N      the same, no number twice
 *   ?       booleans
 *   u       distinct values far apart, for max and sort
 *   -       an absent optional input */
typedef struct wefti_op_case {
    const char *inputs[10]; /* ends at the first NULL */
    const char *attrs;      /* NULL: defaults */
} wefti_op_case;

/* ---- optimizer steps ---- */

/* The scalars that change from step to step, f32 [8]. They are the input after the gradient of each
 * optimizer step. */
typedef struct wefti_step_scalars {
    float learning_rate;
    float step; /* a whole number from 1 */
    float gradient_scale;
    float unused[5];
} wefti_step_scalars;

/* The same in f64 [8], for parameters in f64. */
typedef struct wefti_step_scalars_f64 {
    double learning_rate, step, gradient_scale, unused[5];
} wefti_step_scalars_f64;

/* Both, as programs hold them. */
typedef struct wefti_step_block {
    wefti_step_scalars f32;
    wefti_step_scalars_f64 f64;
} wefti_step_block;

enum { WEFTI_STEP_SCALARS = sizeof(wefti_step_scalars) / sizeof(float) };
/* Refuses an infinite second moment; the argument is the precision. */
#define WEFTI_MOMENT_OVERFLOW                                                                      \
    "the mean of squared gradients is not finite in %s precision; set train.clip, and go on from " \
    "a checkpoint, because this step has changed some parameters"
/* The number of a scalar, in both forms. */
#define WEFTI_STEP_PLACE(field) (offsetof(wefti_step_scalars, field) / sizeof(float))

/* ---- the definition ---- */

typedef enum wefti_op_flags {
    WEFTI_OP_ELEMENTWISE = 1, /* out[i] depends on in[broadcast i] only; fusable */
    WEFTI_OP_CHEAP = 2,   /* the backward pass recomputes it from its inputs instead of saving its
                             result */
    WEFTI_OP_RANDOM = 4,  /* uses wefti_random */
    WEFTI_OP_RESHAPE = 8, /* output 0 is input 0's memory with another shape */
    WEFTI_OP_IN_PLACE =
        16, /* output 0 must be input 0's memory (cache_write, optimizers: output o = input o) */
    WEFTI_OP_COMM = 32, /* communication */
    /* Linear in all its float inputs together, and only in them: add, reshape, sum. If all of them
     * are partial sums over an axis, so is the result, and nothing is communicated before it. This
     * is chosen where it saves communication: the result is not larger than the operands. With a
     * result that is not a float (a cast to integers) the op is not linear. */
    WEFTI_OP_LINEAR = 64,
    /* Communicates among ranks that it names itself (ops/collective/collective.c). Plans always
     * lower it and never remove it, since other ranks wait for it. */
    WEFTI_OP_GROUP = 128,
    /* In addition to IN_PLACE: output 0 is input 0 plus input 1. No backend runs it. The kernel
     * that makes input 1 adds to input 0 itself if it can; otherwise the routine adds. */
    WEFTI_OP_ADDS = 256,
    /* Only differentiation adds it: a gradient with an op of its own ("linear_grad_input"). A
     * gradient made of ops that models also use is marked by weft_node.gradient. */
    WEFTI_OP_GRADIENT = 512,
    /* Elementwise: converts its operand to the dtype of the result, and nothing else. */
    WEFTI_OP_CONVERTS = 1024
} wefti_op_flags;

/* Ops of models that searches treat alike. */
typedef enum wefti_op_family {
    WEFTI_FAMILY_OTHER,
    WEFTI_FAMILY_MATRIX,     /* a product of matrices */
    WEFTI_FAMILY_PRODUCT,    /* other products with a summed dimension: convolutions, experts, a
                                product with its loss */
    WEFTI_FAMILY_POOL,       /* maxima and means of windows */
    WEFTI_FAMILY_BATCH_NORM, /* statistics over the batch */
    WEFTI_FAMILY_ROW_NORM,   /* statistics over the last dimensions */
    WEFTI_FAMILY_LOSS        /* a loss of given scores */
} wefti_op_family;

struct weft_op_def {
    wefti_op_id id;
    const char *name;
    int8_t min_inputs, max_inputs; /* the first min_inputs must be present: infer may rely on it */
    /* Optimizer steps: the number of the gradient input. Before it are the tensors to update. After
     * it are the scalars of the step, and then information about the whole tensor for a piece,
     * or the numbers of the rows to update. */
    int8_t gradient_input;
    /* Inputs that a product, a convolution or a look-up takes as its weights, one bit each. Weight
     * decay applies to parameters that reach them: wefti_graph_weights. */
    uint16_t weights;
    uint32_t flags;
    wefti_op_family family;
    wefti_work work;         /* the rate of a machine that bounds it; 0: the rate of vector
                                kernels */
    const wefti_attr *attrs; /* ends with {0}; NULL: none */
    /* Infers shapes and dtypes of the outputs from the inputs, and checks everything. Sets
     * *out_count, which is 1 before the call. */
    weft_status (*infer)(const weft_node *n, weft_desc *out, int *out_count);
    /* Adds the backward nodes through graph/grad/grad.h. NULL: not differentiable (the gradient
     * stops). */
    weft_status (*grad)(wefti_grad *g, const weft_node *n);
    weft_status (*split)(const weft_node *n, wefti_split_rule *out); /* wefti_rule_begin has
                                                                        initialized `out` */
    void (*cost)(const weft_node *n,
                 wefti_cost *out); /* NULL: 1 flop an output element, bytes once */
    /* Defines the op. Operands are converted to contiguous doubles; outputs are converted once, at
     * the end. in[i] is NULL if absent. In-place ops get separate arrays. */
    weft_status (*reference)(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out);
    const wefti_op_case *cases; /* ends with an entry without inputs */
    /* Elementwise ops: one element of the result from the operands' elements x[0..inputs-1]. The
     * generic reference of elementwise ops and fused nodes uses it. NULL otherwise. */
    double (*element)(const weft_node *n, const double *x);
    /* The same for integers and booleans, exact. Sums and products that do not fit 64 bits become
     * the nearest number that fits. NULL: the op takes or makes only floating point. */
    int64_t (*integer)(const weft_node *n, const int64_t *x);
    /* Norms: the op that recomputes output 0 from the inputs, padded to max_inputs, and outputs 1,
     * 2, .... Then the backward pass keeps the small statistics instead of the result. NULL:
     * none. */
    const weft_op_def *apply;
    /* For ops with attributes that state sizes (reshape's shape): rewrites `attrs`, a copy of the
     * node's attributes in the op's order, for one piece. In the piece, factor f of `rule` has size
     * sizes[f] and begins at begins[f]. NULL: the attributes hold for every piece. */
    weft_status (*localize)(const weft_node *n, const wefti_split_rule *rule, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs);
    /* Adds the nodes of one device when a factor of a kind other than FREE, SUM and MAX is split;
     * see graph/lower/lower.h. Called if at least one factor of a kind in `lowers` (one bit per
     * wefti_factor_kind) is split; other factors may be split too. NULL: such factors are not
     * split, operands are gathered first. */
    weft_status (*lower)(wefti_lowering *c, const weft_node *n);
    uint32_t lowers;
    /* Sets bytes[f], 0 before, to the bytes that `lower`'s transfers over the devices of factor f
     * bring to the device that receives most. The choice of a split weighs them. NULL: they count
     * nothing. */
    void (*exchanged)(const wefti_lowering *c, const weft_node *n, int64_t *bytes);
};

/* Computes an elementwise op with its `element` function over broadcast operands; used if
 * `reference` is NULL. A result of an integer dtype is a number of that dtype: the nearest one if
 * it does not fit. */
weft_status wefti_elementwise_reference(const weft_node *n, const wefti_random *random,
                                        const double *const *in, double *const *out) WEFT_CHECKED;
/* wefti_elementwise_is_integer: whether the node can use the op's exact `integer` function on
 * integer operands. wefti_elementwise_integer: computes its result from the stored operands.
 * Doubles hold only integers up to 2^53. */
bool wefti_elementwise_is_integer(const weft_node *n);
void wefti_elementwise_integer(const weft_node *n, const void *const *in, void *out);
/* The op's cost, or the default. */
void wefti_node_cost(const weft_node *n, wefti_cost *out);
/* Seconds that a node with this cost takes on a machine. */
double wefti_cost_seconds(const weft_node *n, const wefti_cost *cost, const wefti_machine *machine);
double wefti_node_seconds(const weft_node *n, const wefti_machine *machine); /* of its own cost */

/* The registry: all ops by name. */
typedef struct wefti_op_registry {
    const weft_op_def *const *ops;
    int count;
} wefti_op_registry;
const weft_op_def *wefti_op_find(const wefti_op_registry *registry,
                                 const char *name); /* NULL if unknown */

#endif
