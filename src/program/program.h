/* A program: what one device executes, as data with no decisions left in it.
 *
 * Cell bodies are compiled once into routines: a flat list of prepared kernels whose operands are
 * references into the caller's arguments or into the routine's own frame. The schedule is a flat
 * list of steps; a step calls a routine with the arena offsets of its arguments. All buffers of all
 * steps are placed ahead, by lifetime, in one arena, whose size is the predicted peak. */
#ifndef WEFTI_PROGRAM_H
#define WEFTI_PROGRAM_H

#include "backend/backend.h"
#include "graph/grad.h"
#include "program/partition.h"

/* Where an operand lies: arg >= 0: offset into that argument; WEFTI_REF_FRAME: into the frame;
 * NONE: absent. */
enum { WEFTI_REF_FRAME = -1, WEFTI_REF_NONE = -2 };
typedef struct wefti_ref {
    int32_t arg;
    int64_t offset;
} wefti_ref;

typedef struct wefti_instruction {
    const weft_node *node; /* NULL: copy `bytes` from in[0] to out[0] */
    wefti_kernel *kernel;
    wefti_ref *in, *out;
    wefti_ref workspace;
    int64_t bytes; /* of a copy or addition */
    bool add;      /* node NULL: out[0] += in[0], elements of `dtype` */
    weft_dtype dtype;
    int32_t transfer; /* communication: its number in the program's partition, kernel NULL; -1 */
    bool joined;      /* communication: the next one too is posted before this one is waited for */
    wefti_cost cost;
} wefti_instruction;

/* A compiled body. Arguments in order: body inputs, body outputs (the first `outputs` of them),
 * saved block (if saved_bytes > 0). */
typedef struct wefti_routine {
    weft_body *body;
    const weft_body *unfused; /* as it was cut, or as the graph has it */
    wefti_instruction *code;
    int32_t code_count;
    int32_t inputs, outputs, args; /* args: all of them */
    int32_t saved_arg;             /* -1: none */
    int64_t saved_bytes;
    int64_t frame_bytes;
    int32_t *alias; /* per output: the input argument whose memory it is (in-place ops), or -1 */
} wefti_routine;

/* How a body becomes a routine. Saved values are addressed inside the saved block: `in_saved[i]` /
 * `out_saved[o]` is the offset in the block, or -1 for an ordinary argument. */
typedef struct wefti_routine_spec {
    weft_body *body;
    const int64_t *in_saved, *out_saved; /* NULL: none */
    int64_t saved_bytes;
    const bool *accumulate; /* per output: add to what is there; NULL: none */
    bool late;              /* add when all else is done */
    wefti_prepare prepare;
    const wefti_backend *const *backends;
} wefti_routine_spec;

weft_status wefti_routine_compile(const wefti_routine_spec *spec, wefti_routine **out) WEFT_CHECKED;
void wefti_routine_destroy(wefti_routine *routine);

/* ---- placing buffers ---- */

/* A buffer alive in steps [first, last] (inclusive); align is 64 always. */
typedef struct wefti_lifetime {
    int64_t bytes;
    int32_t first, last;
    int64_t offset; /* result */
} wefti_lifetime;

/* Offsets such that no two buffers alive together overlap; returns the total in *out_bytes. Greedy
 * by size (Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020,
 * section 5). */
weft_status wefti_place(wefti_lifetime *buffers, int64_t count, int64_t *out_bytes) WEFT_CHECKED;
/* Adds a buffer's bytes, aligned, to *all; WEFT_E_NOMEM when sums could overflow. */
weft_status wefti_place_count(int64_t bytes, int64_t *all) WEFT_CHECKED;
/* Proof: WEFT_E_BUG naming two buffers that overlap in time and place, or one outside [0, bytes).
 */
weft_status wefti_place_check(const wefti_lifetime *buffers, int64_t count,
                              int64_t bytes) WEFT_CHECKED;

/* ---- the program ---- */

typedef enum wefti_section {
    WEFTI_SECTION_FIRST,  /* forward and backward of the first microbatch (gradients are written) */
    WEFTI_SECTION_NEXT,   /* of a further one (gradients are added) */
    WEFTI_SECTION_NORM,   /* squares of the gradients, for clipping */
    WEFTI_SECTION_UPDATE, /* the optimizer */
    WEFTI_SECTIONS
} wefti_section;

typedef enum wefti_step_kind {
    WEFTI_STEP_CALL, /* run a routine */
    WEFTI_STEP_COPY, /* state <- next: args[0] destination, args[1] source */
    WEFTI_STEP_LOSS, /* the loss is known: stop before any update when it is not finite */
    WEFTI_STEP_POST, /* begin transfer `bytes` of the partition: args[0] source, args[1]
                        destination, -1: none */
    WEFTI_STEP_WAIT  /* for the oldest begun */
} wefti_step_kind;

typedef enum wefti_phase { WEFTI_FORWARD, WEFTI_BACKWARD, WEFTI_UPDATE, WEFTI_OTHER } wefti_phase;

typedef struct wefti_step {
    wefti_step_kind kind;
    wefti_phase phase;
    const char *name; /* call path or parameter name */
    const wefti_routine *routine;
    int64_t *args;      /* arena offsets */
    const char **names; /* of the buffers that the arguments lie in; NULL: no argument */
    int64_t frame;      /* arena offset of the frame */
    int64_t bytes;      /* COPY: how much; POST: the transfer's number */
    uint64_t stream;    /* random stream of the call */
    int32_t micro;      /* which microbatch, in sections that run all of them; else 0 */
    int32_t tensor;     /* UPDATE: index of the parameter, else -1 */
    /* CALL: the part of the routine that this step runs, code[from, to). Calls run whole, parts 1,
     * or in parts between which others are run: every part but the last ends with posting a
     * transfer, and the next begins with waiting for it. */
    int32_t from, to, part, parts;
} wefti_step;

typedef enum wefti_tensor_role {
    WEFTI_TENSOR_PARAM,     /* trained */
    WEFTI_TENSOR_STATE,     /* weft_state */
    WEFTI_TENSOR_OPTIMIZER, /* state of the optimizer, named "<param>.<state>" */
    WEFTI_TENSOR_INPUT,     /* fed */
    WEFTI_TENSOR_OUTPUT     /* read; transient but alive to the end of the section */
} wefti_tensor_role;

/* A tensor with a name and a place in the arena. `desc` is what lies here: the box of `whole` that
 * `layout` gives this rank on the program's mesh; the whole itself without a plan. */
typedef struct wefti_tensor {
    const char *name;
    wefti_tensor_role role;
    weft_desc desc;
    weft_init init;
    int64_t offset;
    weft_desc whole;
    wefti_layout layout;
    int32_t
        microbatch; /* inputs of programs that run all microbatches in one section: which; else 0 */
} wefti_tensor;

/* What holds memory at the worst moment, for messages and tables. */
typedef struct wefti_memory_item {
    char name[96];
    int64_t bytes;
} wefti_memory_item;

/* How parameters and states lie on the devices of a stage that has another mesh: for programs that
 * share them. */
typedef struct wefti_stage_layouts {
    int32_t stage, count;
    const char **names;
    wefti_layout *layouts;
    struct wefti_stage_layouts *next;
} wefti_stage_layouts;

/* A call, or a parameter or state that one reads, and its virtual stage: for the same. */
typedef struct wefti_placed {
    const char *name;
    int32_t part;
    bool param;
} wefti_placed;

typedef struct wefti_program {
    wefti_arena *arena; /* of all small arrays here */
    int32_t rank;       /* of the world */
    wefti_mesh
        mesh; /* that it is a part of: one device without a plan; its stage's in a pipeline */
    wefti_partition *
        partition; /* owns the local bodies and the transfers that they name; NULL without a plan */
    bool all_microbatches; /* FIRST runs all microbatches of a step: a pipeline */
    bool own_norms; /* norms are of one device of each stage: the model communicates by hand */
    wefti_step *steps[WEFTI_SECTIONS];
    int32_t step_count[WEFTI_SECTIONS];
    wefti_tensor *tensors;
    int32_t tensor_count;
    wefti_routine **routines;
    int32_t routine_count;
    wefti_cell_grad *grads; /* own the differentiated bodies */
    int32_t grad_count;
    weft_body **bodies; /* joined and fused ones, owned */
    int32_t body_count;
    int64_t persistent_bytes; /* parameters, states, optimizer, scalars: at the bottom of the
                                 arena */
    int64_t transient_bytes;  /* everything else: from `transient_base` up */
    int64_t transient_base;
    int64_t peak_bytes; /* transient_base + transient_bytes: the predicted peak */
    int64_t scalars;    /* offset of f32 [8]: learning rate, step, gradient scale */
    int64_t one;        /* offset of the constant 1 that seeds the backward pass */
    int64_t loss;       /* offset of the loss, -1: none */
    weft_dtype loss_dtype;
    int64_t norms;          /* offset of [trained parameters]: squares, when clipping */
    weft_dtype norms_dtype; /* f64 where a parameter is, else f32 */
    int32_t norm_count;
    int32_t fused[3]; /* how many tensors each of the plan's fusions has a say in: its order */
    int64_t samples;  /* of a microbatch: the rows that most inputs have, in a tie the fewest; 0:
                         none has rows */
    wefti_stage_layouts *elsewhere;
    wefti_placed *placed; /* of all stages; none without a pipeline */
    int32_t placed_count;
    int64_t saved_bytes; /* sum of saved blocks at their most */
    double forward_flops, backward_flops;
    wefti_memory_item *largest; /* alive at the peak, descending */
    int32_t largest_count;
    wefti_section peak_section; /* of the step at the peak */
    int32_t peak_step;          /* its number there, -1: none */
} wefti_program;

/* The optimizer as the program builder sees it: the ops to place per parameter. Supplied by
 * floor 8. */
typedef struct wefti_update_rule {
    const weft_op_def *op;
    const wefti_attr *attrs; /* full table of the op */
    int states;              /* in-place tensors after the parameter */
    int absent;              /* optional operands left out behind them */
    const char *state_names[4];
    weft_desc state_descs[4];
} wefti_update_rule;
typedef struct wefti_optimizer_plan {
    void *context;
    weft_status (*rule)(void *context, const char *param, const weft_desc *desc,
                        wefti_update_rule *out); /* arrays stay valid while the program is built */
    bool clip; /* squares of gradients are wanted: all gradients are kept until the update */
    const weft_op_def *norm_op;
} wefti_optimizer_plan;

/* Told what a build decides, for completed plans. Calls of equal cells are told one by one. */
typedef struct wefti_observer {
    void *context;
    wefti_decide *decide; /* of each op of forward passes */
    void (*settle)(void *context, const char *tensor, const wefti_layout *use,
                   const wefti_mesh *mesh); /* inputs, parameters, states: where calls use them */
    void (*assign)(void *context, const char *call, int32_t stage); /* virtual; of all calls */
} wefti_observer;

typedef struct wefti_program_spec {
    weft_graph *graph; /* wrapped by the builder; outlives the program */
    const wefti_backend *const *backends;
    wefti_prepare prepare;
    const wefti_optimizer_plan *optimizer; /* NULL: forward only */
    int32_t microbatches;                  /* >= 1 */
    bool keep_gradients; /* gradients stay readable as outputs "grad:<param>" until the step ends */
    int recompute;       /* 0: default, 1: full, for every cell */
    const weft_plan *plan; /* NULL: one device */
    int32_t rank;
    wefti_route_cache
        *routes; /* with a plan: shared by all ranks' programs built one after the other */
    /* Tensors that exist already, of a program that shares its parameters and states (evaluation
     * beside training): found by name. What is new and persistent goes above `peak_bytes`, the most
     * that any earlier program uses; what is transient above `persistent_bytes`, behind all that
     * any of them keeps. Both 0 without `shared`. */
    const struct wefti_program *shared;
    int64_t peak_bytes, persistent_bytes;
    const wefti_observer *observer; /* NULL: none */
} wefti_program_spec;

weft_status wefti_program_build(const wefti_program_spec *spec, wefti_program **out) WEFT_CHECKED;
void wefti_program_destroy(wefti_program *program);
const wefti_tensor *wefti_program_tensor(const wefti_program *program, const char *name);
/* The box of the whole that lies here. */
static inline void wefti_program_region(const wefti_program *program, const wefti_tensor *tensor,
                                        wefti_region *out) {
    if (program->mesh.axes) {
        wefti_layout_region(&tensor->layout, &program->mesh, &tensor->whole, program->rank, out);
        return;
    }
    *out = (wefti_region){0};
    for (int d = 0; d < tensor->whole.rank; d++) out->size[d] = tensor->whole.shape[d];
}

/* All fusion passes (fuse.h): a new body of equal meaning. `part`: whose transfers the body names;
 * NULL: it has none. */
weft_status wefti_fuse(weft_graph *g, wefti_partition *part, const weft_body *body,
                       weft_body **out) WEFT_CHECKED;

#endif
