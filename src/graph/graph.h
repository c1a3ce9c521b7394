/* The internal graph: bodies of nodes over typed values.
 *
 * A body is a list of nodes in topological order. The root body holds the model: inputs,
 * parameters, states, nodes and calls of cells. A cell's body contains no outer names: the
 * activations, parameters and states that it uses are its inputs, bound at each call. So equal
 * cells have equal bodies with equal inner names. A structural hash finds them, and each is stored
 * once. */
#ifndef WEFTI_GRAPH_H
#define WEFTI_GRAPH_H

#include "base/memory.h"
#include "graph/op.h"

typedef enum wefti_value_kind {
    WEFTI_VALUE_NODE,  /* result of a node */
    WEFTI_VALUE_INPUT, /* root: fed; cell: an activation of the surroundings */
    WEFTI_VALUE_PARAM, /* root: a parameter; cell: an input that is bound to a parameter */
    WEFTI_VALUE_STATE  /* likewise for states */
} wefti_value_kind;

typedef struct wefti_value_info {
    weft_desc desc;
    wefti_value_kind kind;
    int32_t node; /* the node that makes it, -1: none (with kind NODE: the value is dead) */
    int32_t slot; /* output number of the node, or position in body->in */
    const char
        *name; /* root: full name of inputs, parameters, states; cell: local name; may be NULL */
    weft_init init; /* root parameters and states */
    bool frozen;    /* root parameters: not trained */
    bool of_root;   /* cell: an outer parameter or state, under its outer name */
} wefti_value_info;

struct weft_body {
    weft_graph *graph;
    const char *name; /* path of the first call: "h.0"; root: "" */
    wefti_value_info *values;
    weft_node *nodes;
    int32_t *in,
        *out; /* value indices; root: inputs, parameters and states in order of creation; outputs */
    int64_t value_count, value_cap, node_count, node_cap, in_count, in_cap, out_count, out_cap;
    uint64_t hash;
    uint32_t streams; /* number of random nodes added */
};

/* A state and its next value: root value indices. */
typedef struct wefti_assign {
    int32_t state, next;
} wefti_assign;

typedef struct wefti_named {
    const char *name;
    int32_t value; /* in the root body */
} wefti_named;

struct weft_graph {
    const weft_graph *of; /* the graph that shares its root and cells with this derived graph;
                             NULL: not derived */
    wefti_arena *arena;   /* names, attributes, node arrays */
    const wefti_op_registry *ops;
    weft_body *root;
    weft_body **cells; /* unique ones */
    int64_t cell_count, cell_cap;
    weft_body **fused; /* bodies of fused nodes, unique ones: wefti_graph_intern_fused */
    int64_t fused_count, fused_cap;
    wefti_named *outputs;
    int64_t output_count, output_cap;
    wefti_assign *assigns;
    int64_t assign_count, assign_cap;
    int32_t loss; /* root value, -1 if none */
    weft_status status;
    char *message;
    struct wefti_builder *builder; /* cells being built, handles: build.c */
};

/* The op behind calls: node->callee is a cell's body. */
extern const weft_op_def wefti_op_call;
/* The op behind fused elementwise chains: node->callee is a body of elementwise nodes. */
extern const weft_op_def wefti_op_fused;

weft_status wefti_graph_create(const wefti_op_registry *ops, weft_graph **out) WEFT_CHECKED;
/* Makes a graph in which passes over `of` create new bodies. It shares the root and the cells of
 * `of`. It has its own arena, handles, fused bodies and sticky error, so `of` does not change and
 * several threads may derive from it at once. `of` must outlive the new graph, unchanged. */
weft_status wefti_graph_derive(const weft_graph *of, weft_graph **out) WEFT_CHECKED;
/* Bytes that a derived graph has requested from the allocator, without those of the graph that it
 * shares; NULL: 0. */
int64_t wefti_graph_derived_bytes(const weft_graph *g);

/* ---- building through handles (for the public functions of op files) ---- */

/* Adds a node to the body being built. `attrs` has attr_count entries, which override the op's
 * defaults by name. Writes `out_count` handles. On failure records the sticky error and writes
 * empty handles. */
void wefti_graph_add(weft_graph *g, const weft_op_def *op, int in_count, const weft_value *in,
                     int attr_count, const wefti_attr *attrs, int out_count, weft_value *out);
/* The usual case: one output. */
weft_value wefti_graph_add1(weft_graph *g, const weft_op_def *op, int in_count,
                            const weft_value *in, int attr_count, const wefti_attr *attrs);
/* Records a sticky failure with the current thread's message, prefixed with the path. */
void wefti_graph_fail(weft_graph *g, weft_status status);
/* wefti_struct_take for builders: false after an error, which the graph keeps. */
bool wefti_graph_take(weft_graph *g, const char *what, const void *given, void *own);
bool wefti_graph_ok(const weft_graph *g);

/* ---- bodies, by index (for passes) ---- */

weft_status wefti_body_create(weft_graph *g, const char *name, weft_body **out) WEFT_CHECKED;
void wefti_body_destroy(weft_body *b);
/* Bytes that a body has requested from the allocator, without the graph's arena; NULL: 0. */
int64_t wefti_body_bytes(const weft_body *b);
/* Adds an input value; *out is its index. */
weft_status wefti_body_input(weft_body *b, weft_desc desc, wefti_value_kind kind, const char *name,
                             int32_t *out) WEFT_CHECKED;
/* Adds a node at the end and infers its outputs, which are new values; *out_node is its index.
 * attrs: NULL for the defaults, or the op's full table. `scope` is kept, not copied: pass arena or
 * static text. */
weft_status wefti_body_add(weft_body *b, const weft_op_def *op, weft_body *callee, int in_count,
                           const int32_t *in, const wefti_attr *attrs, const char *scope,
                           int32_t *out_node) WEFT_CHECKED;
/* Adds a node like `n` over the operands in[], with its scope, random stream and gradient mark.
 * attrs NULL: the attributes of `n`. Sets map[] of its results. */
weft_status wefti_body_add_like(weft_body *b, const weft_node *n, const int32_t *in,
                                const wefti_attr *attrs, int32_t *map,
                                int32_t *out_node) WEFT_CHECKED;
/* The same over the operands map[n->in[i]]: a copy of a node of another body. */
weft_status wefti_body_copy_node(weft_body *b, const weft_node *n, int32_t *map) WEFT_CHECKED;
weft_status wefti_body_output(weft_body *b, int32_t value) WEFT_CHECKED;
uint64_t
wefti_body_hash(const weft_body *b); /* structure only: ops, attributes, wiring, descs, kinds */
bool wefti_body_equal(const weft_body *a, const weft_body *b);
/* A copy in graph `g` with the same value indices, owned by the caller. */
weft_status wefti_body_clone(weft_graph *g, const weft_body *b, const char *name,
                             weft_body **out) WEFT_CHECKED;
/* Returns the stored body of equal structure, or stores `b`. The graph owns `b` from now on, also
 * on failure. If the name is taken, the stored body gets a new one. */
weft_status wefti_graph_intern_fused(weft_graph *g, weft_body *b, weft_body **out) WEFT_CHECKED;
/* The same for a part of a cell, with the names of its ops and parameters. */
weft_status wefti_graph_intern_part(weft_graph *g, weft_body *b, weft_body **out) WEFT_CHECKED;
/* Removes nodes without readers. The values of removed nodes remain in the table, marked as dead;
 * the other value indices do not change. */
weft_status wefti_body_prune(weft_body *b) WEFT_CHECKED;

/* Wraps the loose nodes of the root into cells, so that the root holds only calls. Idempotent. */
weft_status wefti_graph_wrap(weft_graph *g) WEFT_CHECKED;

/* Marks weights: out[i] is whether root input i is a parameter that an op takes as its weights
 * (weft_op_def.weights). Between the parameter and the op there may be linear ops whose operands
 * all come from parameters: reshapes, transposes, slices, sums. */
weft_status wefti_graph_weights(const weft_graph *g, bool *out) WEFT_CHECKED;

/* Check the invariants: topological order, indices in range, descs equal to inferred ones, unique
 * names, known callees. WEFT_E_BUG names the broken invariant. Debug builds run this after every
 * pass. */
weft_status wefti_body_check(const weft_body *b) WEFT_CHECKED;
weft_status wefti_graph_check(const weft_graph *g) WEFT_CHECKED;

/* Evaluates a body with the reference kernels in double precision: the oracle of tests. in[i] is
 * for body->in[i], out[o] for body->out[o]; the caller owns the arrays. `random` selects the random
 * streams. */
weft_status wefti_interpret(const weft_body *b, const wefti_random *random, const double *const *in,
                            double *const *out) WEFT_CHECKED;

#endif
