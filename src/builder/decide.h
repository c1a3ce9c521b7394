/* The decisions of a build: everything that does not depend on steps and buffers. They say which
 * stage runs each call, which gradients are computed, which layout each value has, the bodies of
 * this rank, and which gradients are reduced together. A search makes decisions for many plans and
 * emits programs for few. The emitter (builder/build.h) reads decisions and never changes them. */
#ifndef WEFTI_PROGRAM_DECIDE_H
#define WEFTI_PROGRAM_DECIDE_H

#include "base/memory.h"
#include "builder/spec.h"

enum { WEFTI_MAX_OUT_CALL = 64 };

/* Parts of a backward pass: all gradients at once, or the gradients of activations and of weights
 * separately if the schedule needs that. */
typedef enum wefti_pass {
    WEFTI_PASS_ALL,
    WEFTI_PASS_INPUTS,
    WEFTI_PASS_WEIGHTS,
    WEFTI_PASSES
} wefti_pass;

/* One call of the root, with the results of differentiation and partition. */
typedef struct wefti_call_plan {
    const weft_node *node;
    bool differentiated;
    bool fused;           /* fused forward-backward: both passes in one routine, for the loss
                             cell */
    int32_t grad;         /* index in the decisions' grads */
    int32_t stage, chunk; /* of the pipeline */
    int32_t part;         /* virtual stage: counts stages over all chunks */
    bool mine;            /* this rank runs it */
    wefti_recompute_mode recompute;
    bool on_host;                                   /* all of its ops are placed there */
    const wefti_local_body *local;                  /* forward body of this rank; NULL without a
                                                       plan */
    const wefti_local_body *backward[WEFTI_PASSES]; /* backward bodies of this rank, per pass */
} wefti_call_plan;

/* The layouts of a parameter, state or value on the mesh. */
typedef struct wefti_sharding {
    bool known;            /* use, storage and state are decided */
    wefti_layout use;      /* as calls read it; for activations the only layout */
    wefti_layout storage;  /* between calls: `state` at optimizer level 3, else `use` */
    wefti_layout state;    /* of the pieces that the optimizer updates */
    wefti_layout gradient; /* as it accumulates: partial over the axes that the backward calls
                              leave open */
    bool gradient_known;
} wefti_sharding;

/* The inputs of differentiation, besides the cell itself. */
typedef struct wefti_gradient_key {
    const bool *wanted, *given; /* per input: its gradient is wanted; per output: its gradient is
                                   given */
    wefti_recompute_mode recompute;
    const bool *rows; /* per input: its gradient may be rows */
    const bool *wide; /* per input: it is the copy of a master, so its gradient is f32 */
    const bool *keep; /* per value: must be saved, not recomputed; NULL: none */
} wefti_gradient_key;

/* A value that one stage makes and another reads. */
typedef struct wefti_edge {
    int32_t value, from_call, from_stage, to_stage;
    int32_t first_call; /* of the reading stage, in forward order; the fused forward-backward
                           call comes last */
    int32_t last_call;  /* of the reading stage, in backward order; -1: no gradient */
    /* Transfers in each direction. Posts use the channels in turn. Between neighbours, one channel
     * for each interleaved copy is enough. An edge that skips a stage is sent long before it is
     * read, so it needs channels for all microbatches. */
    int32_t channels;
} wefti_edge;

enum { WEFTI_EDGE_UNDER_WAY = 2 }; /* posts in flight on one channel of an edge */

/* Parameters whose gradients are reduced together. */
typedef struct wefti_bucket {
    bool each; /* for each microbatch: pieces accumulate, not whole gradients */
    int32_t *values;
    int32_t count;
} wefti_bucket;

/* Which microbatches are emitted, if a loop stands for most of them: see loop.c. */
typedef struct wefti_loop_plan {
    int32_t period; /* microbatches of the loop's period; 0: all microbatches are emitted */
    int32_t from;   /* the first microbatch whose tasks may repeat; copies count as one */
} wefti_loop_plan;

typedef struct wefti_decisions {
    const wefti_program_spec *spec;
    const weft_body *root;
    int32_t rank;
    wefti_mesh mesh;   /* of this rank's stage; one device without a plan */
    bool layouts_only; /* a dry build: only finds the layouts on the mesh of a remote stage */

    /* Stores that the program takes over (wefti_decisions_release). The emitter adds to them. */
    weft_graph *g;         /* derived from the model's graph */
    wefti_partition *part; /* NULL: one device */
    wefti_arena *arena;    /* of all arrays that the program keeps */
    wefti_cell_grad *grads;
    int32_t grad_count;
    int64_t grad_cap;
    bool released;

    wefti_arena *scratch;  /* of the tables below */
    wefti_arena *requests; /* of the partition that is being prepared */
    int64_t samples;       /* as in the program */
    bool all_microbatches;
    int32_t copies; /* of the plan; 1 without one */
    int32_t micros; /* microbatches that are emitted in the first section: all, 1, or as many as
                       `loop` needs */
    wefti_loop_plan loop;
    wefti_call_plan *calls;
    int32_t call_count;
    wefti_gradient_key *grad_keys; /* per gradient */
    int64_t grad_key_cap;

    weft_body *own_root; /* `root`, if the build has changed the graph's: host.c, masters.c; else
                            NULL */
    bool *apart;         /* per call, if cells are divided: on_host; else NULL */
    bool masters;        /* some parameters have masters */
    bool serves;         /* servers keep some parameters, of any stage */

    /* per root value */
    bool *hosted; /* a parameter that calls on the host read: it lies in host memory, as does its
                     gradient; each device has all that it reads, and its states */
    bool *copied; /* a parameter that is f32 in `root`, and that calls read as its bf16 copy */
    bool *served; /* a parameter that servers keep */
    wefti_sharding *sharding;
    bool *bound; /* an input of the root that this rank stores */
    bool *needs; /* a gradient is wanted */
    bool *has_gradient;
    int32_t *last_backward; /* the last call in backward order that contributes to its gradient or
                               reads the value */
    wefti_rows_form *form;  /* of a table's update */
    weft_desc *rows;        /* of the gradient of a table as rows; rank 0: the gradient is dense */
    int32_t *forwarded;     /* the next value of a forwarded state, -1 */
    int32_t *tied;          /* the first of several stages that read a parameter, -1: one stage */
    int32_t *bucket_of;     /* bucket of a parameter, -1 */

    int32_t *state_after; /* per assignment of the graph: the call after which the state takes its
                             next value, -1: at the end */

    /* pipeline */
    int32_t stages, stage;   /* stages 1: none */
    bool split_backward;     /* the schedule runs gradients of weights as separate tasks */
    wefti_sharding **remote; /* per stage with another mesh from which this stage needs layouts:
                                per root value */
    wefti_edge *edges;
    int64_t edge_count, edge_cap;
    wefti_stage_layouts *remote_layouts; /* as in the program */
    wefti_placed *placed;
    int32_t placed_count;

    /* updates */
    bool late;         /* level 2: gradients are reduced to their pieces behind the calls that make
                          them, not inside */
    bool *inside;      /* per root value: reduced inside the calls nevertheless */
    int32_t *own_last; /* per root value: the last call of this stage that adds to its gradient,
                          -1: none */
    bool eager;        /* update a parameter as soon as its gradient is complete */
    wefti_bucket *bucket;
    int32_t bucket_count;
    bool own_norms; /* as in the program */
    int32_t fused[3];
} wefti_decisions;

/* The memory in which the gradient of a parameter lies between passes, and until its update. Equal
 * on all ranks. */
wefti_space wefti_gradient_space(const wefti_decisions *dec, int32_t value);

/* Makes all decisions for spec->rank. On failure too, the caller frees *out. */
weft_status wefti_decisions_make(const wefti_program_spec *spec, wefti_decisions *out) WEFT_CHECKED;
/* Gives the stores to the program, which must outlive the decisions then. */
void wefti_decisions_release(wefti_decisions *dec, wefti_program *to);
void wefti_decisions_free(wefti_decisions *dec);
/* Marks the inputs of the root that the devices of a stage store: (*out)[value]. */
weft_status wefti_decide_bound(const wefti_decisions *dec, int32_t stage, bool **out) WEFT_CHECKED;

/* Arrays of an arena: zeroed, or all -1. One element more than `count` is allocated. */
weft_status wefti_new_array(wefti_arena *arena, int64_t count, size_t bytes,
                            void *out) WEFT_CHECKED;
weft_status wefti_new_indices(wefti_arena *arena, int64_t count, int32_t **out) WEFT_CHECKED;

/* host.c: which calls run on the host. Makes a root in which each call runs in one place. */
weft_status wefti_decide_places(wefti_decisions *dec) WEFT_CHECKED;

/* masters.c: the parameters that calls read as copies of their masters. Makes a root in which these
 * parameters have the description of the master. */
weft_status wefti_decide_masters(wefti_decisions *dec) WEFT_CHECKED;
/* The whole of a value as calls read it. */
weft_desc wefti_use_desc(const wefti_decisions *dec, int32_t value);

/* servers.c: the parameters that servers keep. check: once stages and layouts are known. */
weft_status wefti_decide_served(wefti_decisions *dec) WEFT_CHECKED;
weft_status wefti_served_check(const wefti_decisions *dec) WEFT_CHECKED;

/* gradients.c: which calls have a backward pass, and for which gradients. */
weft_status wefti_decide_gradients(wefti_decisions *dec) WEFT_CHECKED;
/* Sets given[o] for each output o of the call: true if it is the loss. */
void wefti_call_given(const wefti_decisions *dec, const wefti_call_plan *call, bool *given);
/* The part of the call's differentiation that a pass runs. */
const wefti_cell_grad *wefti_call_grad(const wefti_decisions *dec, const wefti_call_plan *call,
                                       wefti_pass pass);

/* rows.c: sets *at_once if several microbatches have gradients as rows. Then FIRST runs all of
 * them, so that each has a place of its own. */
weft_status wefti_rows_at_once(const wefti_decisions *dec, bool *at_once) WEFT_CHECKED;
/* Gradients of tables as rows. First, `candidates` looks at the root: it sets out[i] for
 * each input i of a call whose gradient may be rows. Then `take` looks at the backward body. A
 * gradient of one look-up becomes rows. At last, `record` writes the result into the decisions. */
weft_status wefti_rows_candidates(wefti_decisions *dec, const weft_node *call,
                                  bool *out) WEFT_CHECKED;
void wefti_rows_take(const wefti_decisions *dec, wefti_cell_grad *grad, const bool *candidates);
void wefti_rows_record(wefti_decisions *dec, const weft_node *call, const wefti_cell_grad *grad,
                       const bool *candidates);
/* Makes the layout of one microbatch's rows that of the rows of all. */
void wefti_rows_layout(const wefti_decisions *dec, int32_t value, wefti_layout *gradient);
bool wefti_rows_are(const wefti_decisions *dec, int32_t value);
/* The whole of a parameter's gradient, and the layout of what an update reads. */
const weft_desc *wefti_gradient_desc(const wefti_decisions *dec, int32_t value);
wefti_layout wefti_gradient_goal(const wefti_decisions *dec, int32_t value);

/* states.c: when states take their next values. Call it when the reads and the stages of all calls
 * are known. */
weft_status wefti_decide_states(wefti_decisions *dec) WEFT_CHECKED;
/* The value that the state has for this microbatch, if it is the one that the previous microbatch
 * has made. -1: the microbatch reads the state's own buffer. */
int32_t wefti_state_forwarded(const wefti_decisions *dec, int32_t micro, int32_t value);
int32_t wefti_call_maker(const wefti_decisions *dec, int32_t value); /* -1: no call makes it */
bool wefti_call_reads(const wefti_call_plan *call, int32_t value);

/* stages.c: the stage of each call. */
weft_status wefti_decide_stages(wefti_decisions *dec) WEFT_CHECKED;
/* loop.c: how many microbatches to emit, once the stages of calls are known. */
void wefti_decide_loop(wefti_decisions *dec);

/* edges.c: values that cross from stage to stage, and parameters that several stages read; once
 * layouts are known. */
weft_status wefti_decide_edges(wefti_decisions *dec) WEFT_CHECKED;
/* The mesh of a stage, and the layouts of values there, as the devices of that stage find them. */
typedef struct wefti_stage_side {
    wefti_mesh mesh;
    const wefti_sharding *sharding;
} wefti_stage_side;
wefti_stage_side wefti_stage_side_of(const wefti_decisions *dec, int32_t stage);
/* Finds the layouts on the mesh of a remote stage by a dry build. */
weft_status wefti_decide_remote(wefti_decisions *dec, int32_t stage) WEFT_CHECKED;

/* buckets.c: which gradients are reduced together; once layouts are known. late: which may be
 * reduced behind the calls that make them; once the stages of calls are known. */
weft_status wefti_decide_late(wefti_decisions *dec) WEFT_CHECKED;
weft_status wefti_decide_buckets(wefti_decisions *dec) WEFT_CHECKED;

/* sharding.c: the layouts of values on the mesh. Without a plan every value is whole. */
weft_status wefti_sharding_start(wefti_decisions *dec)
    WEFT_CHECKED; /* partition; layouts of inputs and states */
weft_status wefti_sharding_forward(wefti_decisions *dec, wefti_call_plan *call) WEFT_CHECKED;
/* The backward bodies of a call: call->backward. */
weft_status wefti_sharding_backward(wefti_decisions *dec, wefti_call_plan *call) WEFT_CHECKED;
weft_status wefti_sharding_fused(wefti_decisions *dec, wefti_call_plan *call) WEFT_CHECKED;
weft_desc wefti_sharding_desc(const wefti_decisions *dec, const weft_desc *whole,
                              const wefti_layout *layout); /* the part on this device */

/* A partition of one body that is being prepared: its specification and the arrays that it refers
 * to. Inputs are GIVEN and outputs OPEN at first. */
typedef struct wefti_request {
    wefti_partition_spec spec;
    wefti_layout *in, *out, *late;
    uint8_t *in_state, *out_state;
    const char **names; /* of outputs */
} wefti_request;
weft_status wefti_request_new(wefti_arena *arena, const weft_body *body, const char *call,
                              wefti_request *out) WEFT_CHECKED;

#endif
