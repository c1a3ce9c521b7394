/* What an op is: the one struct that every op file fills, and what its functions see.
 *
 * Everything weft knows of an op comes from its definition: shapes, gradient, how it may be split,
 * cost, and a reference kernel in plain C. Floors above see ops only through this. */
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
    WEFTI_ATTR_FLOAT, /* printed so that it reads back to the same bits */
    WEFTI_ATTR_INTS,  /* up to WEFT_MAX_RANK of them */
    WEFTI_ATTR_TABLE  /* any number: one for each rank of a group */
} wefti_attr_kind;

typedef struct wefti_ints {
    int count;
    int64_t v[WEFT_MAX_RANK];
} wefti_ints;

typedef struct wefti_table {
    int count;
    const int64_t *v; /* borrowed; a node has its own */
} wefti_table;

enum { WEFTI_MAX_TABLE = 1024 };

typedef struct wefti_attr {
    const char *name;
    wefti_attr_kind kind;
    int64_t i;
    double f;
    wefti_ints ints;
    wefti_table table;
} wefti_attr;

/* An op's attribute table ends with {0}; values are the defaults. */
#define WEFTI_I(name_, value_)                                                                     \
    ((wefti_attr){.name = (name_), .kind = WEFTI_ATTR_INT, .i = (value_)})
#define WEFTI_F(name_, value_)                                                                     \
    ((wefti_attr){.name = (name_), .kind = WEFTI_ATTR_FLOAT, .f = (value_)})
#define WEFTI_N(name_, value_)                                                                     \
    ((wefti_attr){.name = (name_), .kind = WEFTI_ATTR_INTS, .ints = (value_)})
#define WEFTI_T(name_, count_, values_)                                                            \
    ((wefti_attr){                                                                                 \
        .name = (name_), .kind = WEFTI_ATTR_TABLE, .table = {.count = (count_), .v = (values_)}})
bool wefti_attr_equal(const wefti_attr *a, const wefti_attr *b); /* name, kind and value */

/* ---- nodes ---- */

struct weft_node {
    const weft_op_def *op;
    weft_body *body; /* where it lives; value indices below count in it */
    int32_t *in;     /* value index, or -1 for an absent optional input */
    int32_t *out;
    wefti_attr *attrs; /* all of the op's, in its table's order */
    const char *scope; /* path inside the cell, "attn" ("" at the top) */
    weft_body *callee; /* calls and fused nodes: the body they run */
    int16_t inputs, outputs;
    uint32_t stream; /* number of this random node in its body: part of the Philox stream */
    bool gradient;   /* added by differentiation: no op of the model's own */
};

const weft_desc *wefti_in(const weft_node *n, int i); /* NULL when absent */
const weft_desc *wefti_out(const weft_node *n, int o);
bool wefti_in_is_param(const weft_node *n, int i); /* bound to a parameter at every call */
/* By name; a name that the op does not declare is a bug of the op (asserted, 0 returned). */
int64_t wefti_attr_int(const weft_node *n, const char *name);
double wefti_attr_float(const weft_node *n, const char *name);
const wefti_ints *wefti_attr_ints(const weft_node *n, const char *name);
const wefti_table *wefti_attr_table(const weft_node *n, const char *name);

/* ---- random numbers ---- */

/* Which random numbers a run sees. The same for every split: stream from names, position global. */
typedef struct wefti_random {
    uint64_t seed;
    uint64_t step;        /* optimizer step, from 0 */
    uint64_t call_stream; /* of the cell call: wefti_stream_of(path) */
    int64_t row_offset;   /* global number of the first sample */
    int64_t samples;      /* that a whole tensor is of; 0: as many as dimension 0 has */
} wefti_random;

/* Stream of a random node: of its attribute `stream` where that is not negative, else its own. */
uint64_t wefti_random_stream(const wefti_random *r, const weft_node *n);
/* Positions are indices in the global tensor. Those of the elements of `x`, what the node draws
 * numbers for: [i0, i1...] has the returned position plus the sum of i_d * out_strides[d]. Its
 * attributes `whole` and `begin` say of which tensor x is a piece, none: x is the whole; of samples
 * before it each has as many elements as one of the whole's, also where they are merged with what
 * is in them, in dimension 0 or behind a 1. Where dimension 0 is of something else, microbatches
 * have no position in common, and batches that are cut otherwise have others. */
int64_t wefti_random_place(const wefti_random *r, const weft_node *n, const weft_desc *x,
                           int64_t out_strides[WEFT_MAX_RANK]);

/* ---- split rules ---- */

/* How a factor (a set of dimensions that must be split alike) may be split, and what follows. */
typedef enum wefti_factor_kind {
    WEFTI_FACTOR_FREE,   /* pieces are independent: outputs that have it are split, the others
                            replicated */
    WEFTI_FACTOR_SUM,    /* in no output: outputs are partial sums (terms added once: bias) */
    WEFTI_FACTOR_MAX,    /* in no output: outputs are partial maxima */
    WEFTI_FACTOR_HALO,   /* spatial: pieces need a border of neighbours' elements */
    WEFTI_FACTOR_LOOKUP, /* indexed dimension (vocabulary, classes): masked local look-up, outputs
                            partial sums */
    WEFTI_FACTOR_STATS,  /* normalised dimension: local statistics are combined, then applied */
    WEFTI_FACTOR_RING,   /* attended sequence: keys and values travel, results merged by log-sum-exp
                          */
    WEFTI_FACTOR_WHOLE   /* may not be split: inputs are gathered first */
} wefti_factor_kind;

enum { WEFTI_MAX_FACTORS = 24 };

typedef struct wefti_factor {
    char name[12]; /* "m", "heads"... unique in the rule */
    int64_t size;
    wefti_factor_kind kind;
} wefti_factor;

/* Factor of each dimension of each input and output; -1: size-1 or broadcast dimension, always
 * replicated. A dimension may be a multiple of its factor's size (a convolution's channels and
 * their groups, what a reshape merges): it is split between those blocks. Spatial (HALO) sizes are
 * free. */
typedef struct wefti_split_rule {
    int factors;
    wefti_factor factor[WEFTI_MAX_FACTORS];
    int8_t in[WEFTI_MAX_IN][WEFT_MAX_RANK];
    int8_t out[WEFTI_MAX_OUT][WEFT_MAX_RANK];
    bool sum_once[WEFTI_MAX_IN]; /* input (a bias) counts on one term only when a SUM factor is
                                    split */
} wefti_split_rule;

/* Helpers for op files. A rule starts empty (all -1). */
void wefti_rule_begin(wefti_split_rule *r);
int wefti_rule_factor(wefti_split_rule *r, const char *name, int64_t size, wefti_factor_kind kind);
/* Fill the rule from an einsum-like text over this node's shapes: "b m k, b k n -> b m n". Letters
 * only on the left are SUM. "..." stands for leading dimensions, aligned at the end (broadcast
 * sizes 1 become -1). A "*" instead of a name: a WHOLE factor of that dimension. */
weft_status wefti_rule_from_text(const weft_node *n, const char *text,
                                 wefti_split_rule *r) WEFT_CHECKED;

/* ---- cost ---- */

typedef struct wefti_cost {
    double flops; /* multiply and add count 1 each */
    double bytes; /* read + written, each operand once */
} wefti_cost;
double wefti_node_bytes(const weft_node *n); /* all inputs + outputs once */

/* ---- test cases ---- */

/* One case: inputs as "f32[2,3]" with a suffix for the values: nothing (normal), "+" (positive,
 * away from 0),
 * "<N" (integers below N), "?" (booleans), "u" (distinct values far apart: max, sort), "-" absent
 * optional. Attributes as the text form prints them: "axis=1 eps=1e-5 stride=(2,2)". */
typedef struct wefti_op_case {
    const char *inputs[10]; /* ends at the first NULL */
    const char *attrs;      /* NULL: defaults */
} wefti_op_case;

/* ---- optimizer steps ---- */

/* What changes from step to step, f32 [8]: the input behind the gradient of each optimizer step. */
typedef struct wefti_step_scalars {
    float learning_rate;
    float step; /* a whole number from 1 */
    float gradient_scale;
    float unused[5];
} wefti_step_scalars;

enum { WEFTI_STEP_SCALARS = sizeof(wefti_step_scalars) / sizeof(float) };

/* ---- the definition ---- */

typedef enum wefti_op_flags {
    WEFTI_OP_ELEMENTWISE = 1, /* out[i] depends on in[broadcast i] only; fusable */
    WEFTI_OP_CHEAP = 2,  /* backward recomputes it from its inputs rather than keeping its result */
    WEFTI_OP_RANDOM = 4, /* uses wefti_random */
    WEFTI_OP_RESHAPE = 8, /* output 0 is input 0's memory under another shape */
    WEFTI_OP_IN_PLACE =
        16, /* output 0 must be input 0's memory (cache_write, optimizers: output o = input o) */
    WEFTI_OP_COMM = 32, /* communication */
    /* Linear in all its float inputs together, and in them only: add, reshape, sum. When all of
     * them are partial sums over an axis, so is the result, and nothing is communicated before it.
     * Chosen where it saves communication: the result is not larger than the operands. With a
     * result that is no float (a cast to integers) the op is not linear. */
    WEFTI_OP_LINEAR = 64,
    /* Communicates among ranks that it names itself (ops/collective/collective.c): always lowered
     * in a plan's programs, and never left out, since the others wait for it. */
    WEFTI_OP_GROUP = 128,
    /* Besides IN_PLACE: output 0 is input 0 with input 1 added. No backend runs it: the kernel that
     * makes input 1 adds to input 0 itself if it can, else a routine's own addition does. */
    WEFTI_OP_ADDS = 256,
    /* Only differentiation adds it: a gradient has an op of its own ("linear_grad_input").
     * Gradients made of ops that models have too are told by weft_node.gradient. */
    WEFTI_OP_GRADIENT = 512
} wefti_op_flags;

struct weft_op_def {
    const char *name;
    int8_t min_inputs, max_inputs; /* the first min_inputs must be present: infer may rely on it */
    /* Optimizer steps: the input that is the gradient. Before it come the tensors to update, behind
     * it the scalars of the step, and what a piece is told of the whole. */
    int8_t gradient_input;
    uint32_t flags;
    wefti_work work;         /* which rate of a machine bounds it; 0: that of vector kernels */
    const wefti_attr *attrs; /* ends with {0}; NULL: none */
    /* Shapes and dtypes of the outputs from the inputs; checks everything. Sets *out_count (1
     * already set). */
    weft_status (*infer)(const weft_node *n, weft_desc *out, int *out_count);
    /* Adds the backward nodes through graph/grad.h. NULL: not differentiable (gradient stops). */
    weft_status (*grad)(wefti_grad *g, const weft_node *n);
    weft_status (*split)(const weft_node *n, wefti_split_rule *out); /* out is begun */
    void (*cost)(const weft_node *n,
                 wefti_cost *out); /* NULL: 1 flop an output element, bytes once */
    /* Defines the op. Operands are converted to double, contiguous; outputs are converted once on
     * the way out. in[i] is NULL when absent. In-place ops get separate arrays. */
    weft_status (*reference)(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out);
    const wefti_op_case *cases; /* ends with an entry without inputs */
    /* Elementwise ops: value of one element from those of the operands (x[0..inputs-1]); used by
     * the generic reference of elementwise ops and of fused nodes. NULL otherwise. */
    double (*element)(const weft_node *n, const double *x);
    /* The same of integers and booleans, exact: sums and products that do not fit 64 bits are the
     * nearest number that does. NULL: the op takes, or makes, floating point only. */
    int64_t (*integer)(const weft_node *n, const int64_t *x);
    /* Norms: the op that recomputes output 0 from (inputs padded to max_inputs, outputs 1, 2, ...),
     * so that the backward pass keeps the small statistics instead of the result. NULL: none. */
    const weft_op_def *apply;
    /* Ops whose attributes state sizes (reshape's shape): rewrite `attrs`, a copy of the node's in
     * the op's order, for a piece in which factor f of `rule` has size sizes[f] and begins at
     * begins[f]. NULL: they hold for every piece. */
    weft_status (*localize)(const weft_node *n, const wefti_split_rule *rule, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs);
    /* What one device computes when a factor of a kind other than FREE, SUM and MAX is split:
     * graph/lower/lower.h. Called for every split in which one of the factors `lowers` (bit per
     * wefti_factor_kind) is split; the other factors may be split too. NULL: such factors are not
     * split, operands are gathered first. */
    weft_status (*lower)(wefti_lowering *c, const weft_node *n);
    uint32_t lowers;
    /* What `lower`'s transfers over the devices that share factor f bring to the device that gets
     * most: bytes[f], 0 before. It weighs in the choice of a split. NULL: it does not. */
    void (*exchanged)(const wefti_lowering *c, const weft_node *n, int64_t *bytes);
};

/* Reference of an elementwise op from its `element`, operands broadcast; used when `reference` is
 * NULL. A result of an integer dtype is a number of that dtype: the nearest, where it does not fit.
 */
weft_status wefti_elementwise_reference(const weft_node *n, const wefti_random *random,
                                        const double *const *in, double *const *out) WEFT_CHECKED;
/* Whether the node is an op's `integer` of integers, and its result from operands as they are
 * stored: doubles have only those up to 2^53. */
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
