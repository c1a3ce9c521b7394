/* The graph inside: bodies of nodes over typed values.
 *
 * A body is a list of nodes in topological order. The root body holds the model: inputs,
 * parameters, states, nodes and calls of cells. A cell's body knows no names of its surroundings:
 * what it uses (activations, parameters, states) are its inputs, bound at each call. Hence equal
 * cells have equal bodies and names in them, found by structural hash, and are stored once. */
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
    int32_t node; /* producing node, -1 if none (kind NODE: the value is dead) */
    int32_t slot; /* output number of the node, or position in body->in */
    const char
        *name; /* root: full name of inputs, parameters, states; cell: local name; may be NULL */
    weft_init init; /* root parameters and states */
    bool of_root;   /* cell: a parameter or state of the surroundings, under its name there */
} wefti_value_info;

struct weft_body {
    weft_graph *graph;
    const char *name; /* of the first call: "h.0"; root: "" */
    wefti_value_info *values;
    weft_node *nodes;
    int32_t *in,
        *out; /* value indices; root: inputs, parameters and states in order of birth; outputs */
    int64_t value_count, value_cap, node_count, node_cap, in_count, in_cap, out_count, out_cap;
    uint64_t hash;
    uint32_t streams; /* random nodes so far */
};

/* A state and what it becomes: root value indices. */
typedef struct wefti_assign {
    int32_t state, next;
} wefti_assign;

typedef struct wefti_named {
    const char *name;
    int32_t value; /* in the root body */
} wefti_named;

struct weft_graph {
    const weft_graph
        *of;            /* of a derived graph: the one whose root and cells it shares; else NULL */
    wefti_arena *arena; /* names, attributes, node arrays */
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
/* A graph in which passes over `of` make new bodies. It shares the root and the cells of `of` and
 * has an arena, handles, fused bodies and a sticky error of its own, so that `of` stays as it is
 * and several threads may derive from it at once. `of` outlives it and must not change meanwhile.
 */
weft_status wefti_graph_derive(const weft_graph *of, weft_graph **out) WEFT_CHECKED;

/* ---- building through handles (what the public functions of op files call) ---- */

/* Add a node to the body being built. `attrs` (count of them) override the op's defaults by name.
 * Writes `out_count` handles; on failure records the sticky error and writes empty handles. */
void wefti_graph_add(weft_graph *g, const weft_op_def *op, int in_count, const weft_value *in,
                     int attr_count, const wefti_attr *attrs, int out_count, weft_value *out);
/* The usual case: one output. */
weft_value wefti_graph_add1(weft_graph *g, const weft_op_def *op, int in_count,
                            const weft_value *in, int attr_count, const wefti_attr *attrs);
/* Record a sticky failure from the current thread's message (prefixed with the path). */
void wefti_graph_fail(weft_graph *g, weft_status status);
bool wefti_graph_ok(const weft_graph *g);

/* ---- bodies, by index (what passes use) ---- */

weft_status wefti_body_create(weft_graph *g, const char *name, weft_body **out) WEFT_CHECKED;
void wefti_body_destroy(weft_body *b);
/* New input value; returns its index in *out. */
weft_status wefti_body_input(weft_body *b, weft_desc desc, wefti_value_kind kind, const char *name,
                             int32_t *out) WEFT_CHECKED;
/* New node at the end; attrs may be NULL (defaults) or the op's full table; runs infer; *out_node
 * is its index. Its outputs are new values. `scope` is kept, not copied: arena or static text. */
weft_status wefti_body_add(weft_body *b, const weft_op_def *op, weft_body *callee, int in_count,
                           const int32_t *in, const wefti_attr *attrs, const char *scope,
                           int32_t *out_node) WEFT_CHECKED;
/* New node like `n` over the operands in[], with its scope, random stream and mark of a gradient.
 * attrs NULL: those of `n`. map[] of its results is set. */
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
/* The graph takes `b` over, also on failure; *out is the stored body of equal structure,
 * which gets a name of its own when the name is taken. */
weft_status wefti_graph_intern_fused(weft_graph *g, weft_body *b, weft_body **out) WEFT_CHECKED;
/* Remove nodes whose results nobody needs. Value indices change only for values of removed nodes
 * (dropped from lists, kept in the table as dead). */
weft_status wefti_body_prune(weft_body *b) WEFT_CHECKED;

/* Wrap the root's loose nodes into cells, so that the root holds calls only. Idempotent. */
weft_status wefti_graph_wrap(weft_graph *g) WEFT_CHECKED;

/* Invariants: topological order, indices in range, descs equal what infer says, names unique,
 * callees known. WEFT_E_BUG with what is broken. Run after every pass in debug. */
weft_status wefti_body_check(const weft_body *b) WEFT_CHECKED;
weft_status wefti_graph_check(const weft_graph *g) WEFT_CHECKED;

/* Evaluate a body with the reference kernels in double: the oracle. in[i] for body->in, out[o] for
 * body->out, caller's arrays. `path` names the call for random streams. */
weft_status wefti_interpret(const weft_body *b, const wefti_random *random, const double *const *in,
                            double *const *out) WEFT_CHECKED;

#endif
