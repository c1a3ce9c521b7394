/* A program: the steps that one device executes, as data without open decisions.
 *
 * Each cell body is compiled once into a routine: a flat list of prepared kernels. Operands of
 * kernels refer to the caller's arguments or to the routine's own frame. The schedule is a flat
 * list of steps. A step calls a routine with the addresses of its arguments. All buffers of all
 * steps are placed in advance: persistent ones in one arena, the others by lifetime in a
 * second. The sum of both sizes is the predicted peak.
 *
 * Steps of equal microbatches are stored once, as a loop over a range of steps. A cursor
 * (wefti_cursor) walks through a section with its loops expanded. */
#ifndef WEFTI_PROGRAM_H
#define WEFTI_PROGRAM_H

#include "compile/routine.h"
#include "device/device.h"
#include "graph/grad/grad.h"
#include "partition/partition.h"
#include "program/service.h"

typedef enum wefti_section {
    WEFTI_SECTION_FIRST,  /* forward and backward of the first microbatch (gradients are written) */
    WEFTI_SECTION_NEXT,   /* of each further microbatch (gradients are added) */
    WEFTI_SECTION_LAST,   /* of the last of several, if reductions of gradients overlap with it; has
                             no steps otherwise, and NEXT is the last too */
    WEFTI_SECTION_NORM,   /* squares of the gradients, for clipping; the commit, for recovery */
    WEFTI_SECTION_UPDATE, /* the optimizer */
    WEFTI_SECTIONS
} wefti_section;

typedef enum wefti_step_kind {
    WEFTI_STEP_CALL, /* run a routine */
    WEFTI_STEP_COPY, /* args[0] destination, args[1] source */
    WEFTI_STEP_LOSS, /* the loss is known: stop before any update if it is not finite */
    WEFTI_STEP_POST, /* begin a move: args[0] source, args[1] destination; those of a transfer may
                        be absent. A copy of rows has args[2], which names them */
    WEFTI_STEP_WAIT  /* end the oldest post of the move */
} wefti_step_kind;

/* What POST begins and WAIT ends: bytes that move while other steps run. */
typedef enum wefti_move_way {
    WEFTI_WAY_RANKS, /* a transfer of the partition */
    WEFTI_WAY_SPACES /* a copy between spaces of this device: by the device, or by the disk */
} wefti_move_way;
typedef struct wefti_program_move {
    wefti_move_way way;
    int32_t transfer; /* RANKS: index in the partition; else -1 */
    int64_t bytes;    /* SPACES; else 0. Of rows: the most */
    /* A copy of rows: from their places in a table to rows behind each other in device memory
     * (fetch), or back (store). args[2] names them: i32 [rows], in device memory. Row i of the
     * others is row args[2][i] of the table. Rows stand before entries below 0, which are none.
     * 0: the copy is of bytes. */
    int64_t rows, row_bytes;
    bool looks_up; /* args[2] lists the look-ups of the step (rows_find); else an update's rows */
} wefti_program_move;

typedef enum wefti_phase { WEFTI_FORWARD, WEFTI_BACKWARD, WEFTI_UPDATE, WEFTI_OTHER } wefti_phase;

enum { WEFTI_TENSOR_OF_WARD = -2 }; /* the step updates a copy */

typedef struct wefti_step {
    wefti_step_kind kind;
    wefti_phase phase;
    const char *name; /* call path or parameter name */
    const wefti_routine *routine;
    wefti_space space;    /* CALL: of all operands. HOST: the host computes, on its memory */
    wefti_location *args; /* in a loop: of its first iteration */
    int64_t *strides;     /* bytes that each argument moves on per iteration; NULL: none moves */
    const char **names;   /* names of the buffers that contain the arguments; NULL: no argument */
    int32_t *params; /* of each argument: the parameter's index in `tensors`, if the argument is
                        a parameter or a copy gathered from its pieces; else -1 */
    wefti_location frame; /* 0: the routine has none */
    union {
        int64_t bytes; /* COPY: number of bytes, of a row */
        int32_t move;  /* POST, WAIT: index in the program's moves */
    };
    int64_t rows;     /* COPY: 0 or 1: one row */
    int64_t pitch[2]; /* COPY: bytes from one row to the next, in destination and source */
    uint64_t stream;  /* random stream of the call */
    int32_t micro;    /* the microbatch, in sections that run all of them; else 0. In a loop: of
                         the first iteration */
    int32_t tensor;   /* UPDATE: index of the parameter, or WEFTI_TENSOR_OF_WARD; else -1 */
    /* CALL: the step runs code[from, to) of the routine. A call runs whole (parts 1), or in parts
     * with other steps in between. Every part but the last ends with transfers that it posts and
     * leaves in flight, code[to - leaves, to). The next part begins with the waits for them,
     * code[from - waits, from). */
    int32_t from, to, part, parts, waits, leaves;
    /* While the step runs: the persistent bytes and the end of the highest transient buffer that is
     * alive, and the bytes of all that are alive. The largest of all steps is the predicted peak.
     */
    int64_t used_bytes, alive_bytes;
} wefti_step;

static inline int64_t wefti_copy_rows(const wefti_step *step) {
    return step->rows > 1 ? step->rows : 1;
}
/* The bytes that a COPY moves. */
static inline int64_t wefti_copy_bytes(const wefti_step *step) {
    return step->bytes * wefti_copy_rows(step);
}

/* Steps that run several times. Loops of a section are in order, and do not overlap. */
typedef struct wefti_loop {
    int32_t first, count; /* the steps [first, first + count) of the section */
    int32_t times;        /* how often they run; at least 1 */
    int32_t micro;        /* microbatches of an iteration: each iteration works on later ones */
} wefti_loop;

typedef enum wefti_tensor_role {
    WEFTI_TENSOR_PARAM,     /* trained, or frozen */
    WEFTI_TENSOR_STATE,     /* weft_state */
    WEFTI_TENSOR_OPTIMIZER, /* state of the optimizer, named "<param>.<state>" */
    WEFTI_TENSOR_INPUT,     /* fed */
    WEFTI_TENSOR_OUTPUT,    /* read; transient but alive to the end of the section */
    WEFTI_TENSOR_GRADIENT   /* an output: the gradient of a parameter, kept to be read */
} wefti_tensor_role;

/* A named tensor in memory. `desc` is this rank's region of `whole`, as `layout`
 * gives it on the program's mesh; without a plan it is the whole. */
/* How a table that an embedding reads is updated, where the session's option `rows` is AUTO. */
#define WEFTI_ROWS_FORMS(X)                                                                        \
    X(UNASKED, NULL)                                                                               \
    X(TOUCHED, "by the rows that a step touches")                                                  \
    X(SHARED, "whole: something else reads it too")                                                \
    X(SMALL, "whole: a step looks up as many rows as it has")                                      \
    X(STAGES, "whole: the schedule ends backward passes later (zero_bubble)")                      \
    X(KEPT, "whole: its gradient is kept to be read")                                              \
    X(BUDDIES, "whole: another rank keeps a copy of its state")                                    \
    X(SERVED, "whole: servers keep it")                                                            \
    X(OPTIMIZER, "whole: the optimizer needs all of it")                                           \
    X(TIER, "whole: its gradient is not in device memory, or the host updates it")
typedef enum wefti_rows_form {
#define WEFTI_ROWS_FORM(name, text) WEFTI_ROWS_##name,
    WEFTI_ROWS_FORMS(WEFTI_ROWS_FORM)
#undef WEFTI_ROWS_FORM
} wefti_rows_form;

typedef struct wefti_tensor {
    const char *name;
    wefti_tensor_role role;
    int32_t param; /* OPTIMIZER: index of the parameter in the program's tensors; else -1 */
    int32_t state; /* OPTIMIZER: number of the state in the optimizer's rule; else 0 */
    weft_desc desc;
    weft_init init;
    wefti_location home;
    wefti_location copy; /* PARAM: the copy that calls read, of the same region, in device memory:
                            in bf16 of a master, else of a parameter on servers; absent: they read
                            `home` */
    bool frozen;         /* PARAM: training does not change it */
    /* PARAM: the cache for rows of it, and of its states, that lie on a disk; in host memory.
     * Absent: it has none, or another program made it */
    wefti_location cache;
    int64_t cache_slots;  /* rows, at most */
    wefti_rows_form rows; /* PARAM */
    weft_desc whole;
    wefti_layout layout;
    /* Inputs of programs that run all microbatches in one section: microbatch m lies at home + m
     * * stride. Other tensors: 1 and 0. */
    int32_t microbatches;
    int64_t stride;
} wefti_tensor;

/* A piece of a parameter, state or optimizer tensor that a device updates or keeps, and that a
 * buddy copies. */
typedef struct wefti_piece {
    const char *name;
    wefti_tensor_role role;
    int32_t tensor;      /* of this program: it contains the piece; -1: only `home` has it */
    wefti_location home; /* of a copy, which is contiguous; absent: the tensor has it */
    weft_desc desc, whole;
    wefti_layout layout; /* of the pieces of `whole` on the mesh of its device */
    weft_init init;
} wefti_piece;

/* A parameter on servers, as this rank sees it. The places are in space SERVER. A store to `sum`
 * pushes, and a fetch of part 0 pulls what the step's update makes. */
typedef struct wefti_program_served {
    int32_t tensor;
    wefti_served piece; /* its arrays belong to the program */
    wefti_location part[WEFTI_SERVED_PARTS];
    wefti_location sum, square; /* square: absent without clipping */
} wefti_program_served;

/* A buffer that is alive at the peak, for messages and tables. */
typedef struct wefti_memory_item {
    char name[96];
    int64_t bytes;
} wefti_memory_item;

/* The layouts of parameters and states on a stage with another mesh, for programs that share
 * them. */
typedef struct wefti_stage_layouts {
    int32_t stage, count;
    const char **names;
    wefti_layout *layouts;
    struct wefti_stage_layouts *next;
} wefti_stage_layouts;

/* A call, or a parameter or state that a call reads, with its virtual stage; for the same
 * programs. */
typedef struct wefti_placed {
    const char *name;
    int32_t part;
    bool param;
} wefti_placed;

typedef struct wefti_program {
    wefti_arena *arena; /* of all small arrays here */
    weft_graph *graph;  /* derived from the model's graph; the bodies that the build made belong
                           to it */
    int32_t rank;       /* of the world */
    const wefti_device_kind *kind; /* of the device that runs it */
    wefti_mesh mesh;               /* the mesh of this device's stage; one device without a plan */
    wefti_partition *partition; /* owns the local bodies and the transfers to which they refer; NULL
                                   without a plan */
    bool all_microbatches;      /* FIRST runs all microbatches of a step: a pipeline, or interleaved
                                   copies */
    bool masters;               /* parameters that are bf16 in the graph have f32 masters */
    bool own_norms; /* norms are summed over one device of each stage: the model is in manual
                       mode */
    wefti_step *steps[WEFTI_SECTIONS];
    int32_t step_count[WEFTI_SECTIONS];
    /* With recovery: the step of section UPDATE from which on parameters are gathered. The pieces
     * that are gathered lie in the parameters, so these steps can be repeated. Else -1. */
    int32_t gather_from;
    wefti_loop *loops[WEFTI_SECTIONS];
    int32_t loop_count[WEFTI_SECTIONS];
    wefti_program_move
        *moves; /* one for each transfer at most, and one for each copy between spaces
                 */
    int32_t move_count;
    wefti_tensor *tensors;
    int32_t tensor_count;
    wefti_program_served *served; /* parameters that this program trains, and servers keep */
    int32_t served_count;
    bool serves; /* servers keep parameters of some stage */
    /* With buddies: the rank that keeps copies of this device's state, and the rank of which this
     * device keeps copies. -1: none, or it needs none. `owned` are this device's pieces; `copies`
     * are the ward's, in the same order. */
    int32_t holder, ward;
    wefti_piece *owned, *copies;
    int32_t owned_count, copy_count;
    wefti_routine **routines;
    int32_t routine_count;
    wefti_cell_grad *grads; /* own the differentiated bodies */
    int32_t grad_count;
    weft_body **bodies; /* fused bodies, and bodies of updates and of changes of layout, owned */
    int32_t body_count;
    int64_t persistent_bytes; /* parameters, states, optimizer, scalars, also those of programs that
                                 were built before on the same device */
    int64_t transient_bytes;  /* all other buffers */
    int64_t peak_bytes;       /* the sum of both: the predicted peak */
    int64_t tier_bytes[WEFTI_SPACES][WEFTI_TERMS]; /* of the arenas below device memory */
    int64_t program_bytes;  /* of the host's memory: the program itself, with its graph, partition,
                               routines and kernels; known when the program is complete */
    wefti_location scalars; /* f32 [8]: learning rate, step, gradient scale; or absent */
    wefti_location host_scalars; /* the same in host memory, for updates there; or absent */
    wefti_location one;          /* the constant 1 that seeds the backward pass; or absent */
    wefti_location loss;         /* absent: none */
    weft_dtype loss_dtype;
    wefti_location norms;   /* [trained parameters]: squares of gradients, with clipping */
    weft_dtype norms_dtype; /* f64 if any parameter is f64, else f32 */
    int32_t norm_count;
    const char **norm_names; /* [norm_count]: the parameter of each square */
    int32_t fused[3]; /* number of tensors that each fusion of the plan may join, in the plan's
                         order */
    int64_t samples;  /* of a microbatch: the number of rows that most inputs have, in a tie the
                         smallest; 0: no input has rows */
    wefti_stage_layouts *remote_layouts;
    wefti_placed *placed; /* of all stages; empty without a pipeline */
    int32_t placed_count;
    int64_t saved_bytes;                  /* of saved blocks, the most that exist at once */
    double forward_flops, backward_flops; /* of one microbatch */
    wefti_memory_item *largest;           /* the largest buffers alive at the peak, descending */
    int32_t largest_count;
    wefti_section peak_section; /* of the step at the peak */
    int32_t peak_step;          /* its number in the section, -1: none */
} wefti_program;

void wefti_program_destroy(wefti_program *program);

/* The copy between spaces that a POST begins or a WAIT ends; NULL: it is another step. */
static inline const wefti_program_move *wefti_step_copy(const wefti_program *p,
                                                        const wefti_step *step) {
    const bool moves = step->kind == WEFTI_STEP_POST || step->kind == WEFTI_STEP_WAIT;
    return moves && p->moves[step->move].way == WEFTI_WAY_SPACES ? &p->moves[step->move] : NULL;
}
/* The lower one of the two spaces of a copy. */
static inline wefti_space wefti_step_tier(const wefti_step *copy) {
    const wefti_space a = wefti_location_space(copy->args[0]),
                      b = wefti_location_space(copy->args[1]);
    return a > b ? a : b;
}
/* Whether a copy goes to device memory. */
static inline bool wefti_step_fetches(const wefti_step *copy) {
    return wefti_location_space(copy->args[1]) == WEFTI_SPACE_DEVICE;
}
/* The transfer that a POST begins or a WAIT ends, as its index in the partition; -1: it is a copy.
 */
static inline int32_t wefti_step_transfer_of(const wefti_program *p, const wefti_step *step) {
    return p->moves[step->move].transfer;
}

wefti_footprint wefti_program_footprint(const wefti_program *program);
/* Of the programs of one device. */
wefti_footprint wefti_programs_footprint(wefti_program *const *programs, int32_t count);

const wefti_tensor *wefti_program_tensor(const wefti_program *program, const char *name);

/* Of the copy that calls read. */
static inline int64_t wefti_tensor_copy_bytes(const wefti_tensor *tensor) {
    const bool served = wefti_location_space(tensor->home) == WEFTI_SPACE_SERVER;
    return weft_desc_bytes(&tensor->desc) / (served ? 1 : 2);
}

/* Bytes of a row of this rank's part of a tensor. */
static inline int64_t wefti_tensor_row_bytes(const wefti_tensor *tensor) {
    const int64_t rows = tensor->desc.rank ? tensor->desc.shape[0] : 1;
    return rows ? weft_desc_bytes(&tensor->desc) / rows : 0;
}

/* ---- sections with their loops expanded ---- */

/* A place in the run of a section; zero: its begin. */
typedef struct wefti_cursor {
    int32_t step;      /* index of the next step */
    int32_t loop;      /* index of the loop that contains the step, or of the next one */
    int32_t iteration; /* of that loop; 0 outside of loops */
    int64_t number;    /* how many steps have run */
} wefti_cursor;

/* The step at a cursor; NULL: the section has ended. */
static inline const wefti_step *wefti_cursor_step(const wefti_program *p, wefti_section s,
                                                  const wefti_cursor *at) {
    return at->step < p->step_count[s] ? &p->steps[s][at->step] : NULL;
}
/* The loop that contains the step at a cursor; NULL: none. */
static inline const wefti_loop *wefti_cursor_loop(const wefti_program *p, wefti_section s,
                                                  const wefti_cursor *at) {
    const wefti_loop *l = at->loop < p->loop_count[s] ? &p->loops[s][at->loop] : NULL;
    return l && at->step >= l->first ? l : NULL;
}
/* The microbatch of the step at a cursor. */
int32_t wefti_cursor_micro(const wefti_program *p, wefti_section s, const wefti_cursor *at);
/* The address of an argument of the step at a cursor. */
static inline wefti_location wefti_cursor_arg(const wefti_step *step, const wefti_cursor *at,
                                              int32_t arg) {
    return wefti_location_plus(step->args[arg],
                               step->strides ? at->iteration * step->strides[arg] : 0);
}
void wefti_cursor_next(const wefti_program *p, wefti_section s, wefti_cursor *at);
/* This rank's share of what servers keep: of all ranks together it is the memory of the servers,
 * with a gradient of each rank that pushes. */
double wefti_program_server_share(const wefti_program *p);
/* How often step `step` of a section runs. */
int32_t wefti_program_times(const wefti_program *p, wefti_section s, int32_t step);
/* How often a section runs in a step of `microbatches`. */
int32_t wefti_program_runs(const wefti_program *p, wefti_section s, int32_t microbatches);
/* The bytes that a step copies between device memory and each tier below it, both ways. */
void wefti_program_moved(const wefti_program *p, int32_t microbatches, int64_t out[WEFTI_SPACES]);

/* The region of the whole tensor that lies on this device. */
static inline void wefti_program_region(const wefti_program *program, const wefti_tensor *tensor,
                                        wefti_region *out) {
    if (program->mesh.axes) {
        wefti_layout_region(&tensor->layout, &program->mesh, &tensor->whole, program->rank, out);
        return;
    }
    *out = (wefti_region){0};
    for (int d = 0; d < tensor->whole.rank; d++) out->size[d] = tensor->whole.shape[d];
}

#endif
