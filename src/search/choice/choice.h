/* The graph of choices: what a search decides on.
 *
 * A node is an op of a unique cell, or a tensor of the root that several ops read. Its weight is
 * the number of calls of the cell. A strategy gives axes of the mesh to factors of the op's split
 * rule. An edge is a value that one node makes and another one reads; its weight is the number of
 * calls in which it does. All costs come from a table of functions (wefti_pricing), so a graph
 * serves every cost model. */
#ifndef WEFTI_CHOICE_H
#define WEFTI_CHOICE_H

#include "base/memory.h"
#include "graph/graph.h"
#include "layout/layout.h"
#include "plan/plan.h"

/* A strategy: the factor that each axis splits; -1: none. A factor has its axes in the order of the
 * mesh. In meshes of a search, the factors take consecutive axes in turn. The axes that are left
 * are the innermost ones. That is MindSpore's device matrix. */
typedef struct wefti_assignment {
    int8_t factor[WEFTI_MAX_AXES];
} wefti_assignment;

typedef struct wefti_choice_node {
    const char *label; /* of the first call, "h.0.mlp.c_fc"; of a tensor: its name */
    const weft_body *body;
    const weft_node *op; /* NULL: a tensor of the root */
    int32_t tensor;      /* root value of a tensor; -1: an op */
    int64_t weight;
    wefti_split_rule rule; /* of a tensor: one factor for each dimension, named d0, d1, ... */
    uint32_t shared;       /* bit i: input i is a parameter that has a node of its own */
    uint32_t trained;      /* bit i: input i is a parameter with a gradient, in any of the calls */
    bool configured;       /* the plan has a strategy for it, or a layout for the tensor */
    bool follows;          /* copies the strategy of its first operand */
    int32_t count;         /* strategies; 0: not listed */
    wefti_assignment *strategies;
    int32_t reader, feeder; /* first edge that starts here, that ends here; -1: none */
} wefti_choice_node;

typedef struct wefti_choice_edge {
    int32_t from, to;      /* nodes; equal where a cell of one op is called twice in a row */
    int16_t output, input; /* of the nodes' ops; 0 for a tensor */
    int64_t weight;
    bool gradient;              /* the gradient of the value goes back */
    int32_t next_from, next_to; /* next edge with the same start, with the same end; -1: none */
} wefti_choice_edge;

typedef struct wefti_choice_graph {
    wefti_arena *arena;
    weft_graph *graph;
    const weft_plan *plan; /* the user's settings */
    wefti_mesh mesh;
    bool mesh_given; /* the axes are the user's */
    wefti_choice_node *nodes;
    int32_t node_count;
    int64_t node_cap;
    wefti_choice_edge *edges;
    int32_t edge_count;
    int64_t edge_cap;
    int32_t *first; /* per node of the root: the node of the first op of this call; -1: no call */
} wefti_choice_graph;

/* Which strategies are candidates. MindSpore's set_algo_parameters. */
typedef struct wefti_candidate_rules {
    bool fully_use_devices;
    bool elementwise_follow;
    bool configured_only; /* list the strategies of configured nodes only; the others get none */
    int64_t slice_align;  /* 0: none */
} wefti_candidate_rules;

/* build.c: nodes and edges of a graph with `devices` devices, without strategies. Wraps loose nodes
 * into cells. The mesh has the prime factors of the devices as axes, outermost largest; at most 8,
 * inner ones multiplied together. If the plan names a mesh, it is that mesh. */
weft_status wefti_choice_graph_create(weft_graph *graph, const weft_plan *plan,
                                      wefti_choice_graph **out) WEFT_CHECKED;
void wefti_choice_graph_destroy(wefti_choice_graph *graph);
/* Prime factors of n, the largest first. Returns their number. `out` has room for 31. */
int wefti_prime_factors(int64_t n, int32_t out[31]);
/* The axes of a search's own mesh: these, with inner ones multiplied together until at most 8 are
 * left. */
int wefti_search_mesh(int64_t devices, int32_t out[31]);
const weft_desc *wefti_choice_desc(const wefti_choice_graph *g, const wefti_choice_edge *e);
/* The value that a node reads or makes. */
const weft_desc *wefti_choice_input(const wefti_choice_graph *g, const wefti_choice_node *n, int i);
const weft_desc *wefti_choice_output(const wefti_choice_graph *g, const wefti_choice_node *n,
                                     int o);

/* candidates.c: the strategies of all nodes. WEFT_E_ARG: an op that no strategy fits. */
weft_status wefti_choice_candidates(wefti_choice_graph *g,
                                    const wefti_candidate_rules *rules) WEFT_CHECKED;
/* Parts of factor f under a strategy. */
int64_t wefti_choice_parts(const wefti_mesh *mesh, const wefti_assignment *s, int f);
/* Parts of all factors, multiplied. */
int64_t wefti_choice_product(const wefti_mesh *mesh, const wefti_assignment *s);
/* Layouts of a node's input and output under a strategy; results are complete sums. */
void wefti_choice_layout_in(const wefti_choice_graph *g, const wefti_choice_node *n,
                            const wefti_assignment *s, int input, wefti_layout *out);
void wefti_choice_layout_out(const wefti_choice_graph *g, const wefti_choice_node *n,
                             const wefti_assignment *s, int output, wefti_layout *out);
/* Bytes of the largest piece. */
int64_t wefti_choice_slice(const wefti_choice_graph *g, const wefti_choice_node *n,
                           const wefti_assignment *s, bool output, int number);

/* ---- costs ---- */

/* One record of a cost model, of one device and one call. */
typedef struct wefti_choice_cost {
    double time;    /* what a search minimises */
    double memory;  /* bytes that stay until the backward pass, and parameters */
    double compute; /* ties of `time` in propagation */
    double transfer;
} wefti_choice_cost;

typedef struct wefti_pricing {
    const void *context;
    void (*op)(const void *context, const wefti_choice_graph *g, const wefti_choice_node *n,
               const wefti_assignment *s, wefti_choice_cost *out);
    void (*edge)(const void *context, const wefti_choice_graph *g, const weft_desc *desc,
                 const wefti_layout *from, const wefti_layout *to, bool gradient,
                 wefti_choice_cost *out);
} wefti_pricing;

/* ---- exact minimum ---- */

/* A problem in numbers: pick one value for each variable. */
typedef struct wefti_choice_table {
    int32_t from, to;      /* variables, from != to */
    double *time, *memory; /* [values of from][values of to]; memory NULL: zeros */
} wefti_choice_table;

typedef struct wefti_choice_problem {
    int32_t variables;
    const int32_t *values;       /* of each variable, >= 1 */
    const double *const *time;   /* of each variable and value; INFINITY: not allowed */
    const double *const *memory; /* the same; NULL: zeros */
    const wefti_choice_table *tables;
    int64_t table_count;
    int64_t trials; /* sums of costs that each of up to three runs may make; 0: any number */
} wefti_choice_problem;

/* The six eliminations of MindSpore's dynamic programming. */
typedef enum wefti_elimination {
    WEFTI_ELIMINATE_OPERATOR, /* one edge in, one edge out: becomes an edge */
    WEFTI_ELIMINATE_EDGE,     /* parallel edges are added */
    WEFTI_ELIMINATE_MERGE,    /* a source with one edge goes into its reader */
    WEFTI_ELIMINATE_CONTRACT, /* a sink with one edge goes into its producer */
    WEFTI_ELIMINATE_TRIANGLE, /* two edges that both start or both end here */
    WEFTI_ELIMINATE_STAR,     /* only if nothing else applies: two neighbors become one */
    WEFTI_ELIMINATIONS
} wefti_elimination;

typedef struct wefti_choice_solution {
    double time, memory;
    double least_memory; /* of any choice */
    bool exact;          /* no front was thinned out */
    int64_t used[WEFTI_ELIMINATIONS];
} wefti_choice_solution;

/* eliminate.c: the least time among all choices with at most `capacity` bytes; of equal times the
 * least memory. `chosen` [variables] gets the values. WEFT_E_NOMEM: nothing fits; the message says
 * how many bytes are missing. WEFT_E_NO_IMPL: the graph is too dense, or needs more sums than
 * `trials`. */
weft_status wefti_choice_solve(const wefti_choice_problem *problem, double capacity,
                               int32_t *chosen, wefti_choice_solution *out) WEFT_CHECKED;

#endif
