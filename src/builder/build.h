/* The emitter: adds the steps and buffers of a program by decisions that are already made
 * (builder/decide.h). */
#ifndef WEFTI_PROGRAM_BUILD_H
#define WEFTI_PROGRAM_BUILD_H

#include "base/philox.h"
#include "base/text.h"
#include "builder/decide.h"
#include "builder/flight.h"
#include "comm/comm.h"
#include "memory/place.h"
#include "rewrite/rewrite.h"

enum { WEFTI_MAX_BUCKET = 64 };

/* A buffer of the arena while the program is being built. Times are step numbers that count over
 * all sections in order. */
typedef struct wefti_buffer {
    wefti_lifetime life;
    wefti_space space; /* the memory that it lies in */
    bool persistent;   /* in the persistent arena, in the order of creation */
    bool fixed;        /* offset given by the sharing program */
    int32_t behind;    /* persistent: it lies next behind this earlier buffer; -1: any */
    int32_t before;    /* the buffer that lies so behind this one; -1: any */
    bool saved;        /* values that a call keeps for its backward pass */
    int32_t param;     /* index of the parameter's tensor that it contains, in pieces or gathered;
                          -1: none */
    int32_t of;        /* the buffer that it is a part of, -1: none */
    int64_t delta;     /* its begin in that buffer */
    int64_t stride;    /* of a part: from one microbatch to the next */
    const char *name;
} wefti_buffer;

typedef struct wefti_draft_step {
    wefti_step step;
    wefti_buffer_ref *args;
    int32_t arg_count;
    int32_t frame;    /* buffer, -1 */
    int32_t at;       /* time */
    int64_t *strides; /* of the arguments, if the step belongs to a loop; NULL: none moves */
} wefti_draft_step;

/* The buffers of one microbatch. Without a pipeline one such record serves all microbatches in
 * turn. */
typedef struct wefti_micro {
    int32_t *value;    /* per root value: buffer of an input or a result, -1 */
    int32_t *gradient; /* per root value: buffer of its gradient, -1 */
    bool *started;     /* some step has written to it */
    int32_t *saved;    /* per call: buffer of its saved block, -1 */
    int32_t *kept;     /* per call: buffer of that block in a tier below device memory, -1 */
    int32_t **crossed; /* per call: buffers of the values that the first part of a split backward
                          pass leaves for the second */
} wefti_micro;

/* The last gather at one position among the parameters of a call. The parameter at this position in
 * the next call is usually alike and reuses the transfer. */
typedef struct wefti_gathered {
    bool known;
    int32_t value, transfer; /* transfer -1: a single transfer cannot gather it */
} wefti_gathered;

/* Where the steps of one interleaved copy begin, and which step is its call. -1: not built yet. */
typedef struct wefti_copy_start {
    int64_t begin, call;
} wefti_copy_start;

/* How a routine leaves a result. */
typedef enum wefti_accumulate {
    WEFTI_WRITE,
    WEFTI_ADD,     /* to the present content */
    WEFTI_ADD_LATE /* likewise, after all other instructions of the routine */
} wefti_accumulate;

typedef enum wefti_routine_kind {
    WEFTI_ROUTINE_PLAIN,
    WEFTI_ROUTINE_FORWARD,
    WEFTI_ROUTINE_BACKWARD,
    WEFTI_ROUTINE_FUSED,
    WEFTI_ROUTINE_UPDATE
} wefti_routine_kind;

/* Calls with equal keys share one routine. */
typedef struct wefti_routine_key {
    const weft_body *body;
    wefti_routine_kind kind;
    const uint8_t *accumulate; /* wefti_accumulate of each of `results`; NULL: all are written */
    const int64_t *saved; /* per input of the body, backward: its offset in the saved block, -1 */
    int64_t saved_bytes, results;
    bool on_host; /* kernels of the host, in place of the device's */
    int32_t routine;
} wefti_routine_key;

/* Transfers of one pipeline edge, and how many microbatches have crossed it so far. */
typedef struct wefti_edge_traffic {
    int32_t *transfer[2]; /* forward, backward: per channel; NULL: no edge of this stage */
    int32_t sent[2], received[2];
} wefti_edge_traffic;

/* The gradients of a bucket that lie behind each other in one buffer. */
typedef struct wefti_packed {
    bool known;     /* decided */
    int32_t buffer; /* -1: none */
    int32_t pieces; /* the buffer of the complete pieces, -1: none */
    int64_t bytes;
    wefti_axes terms; /* the axes that hold terms of the sums */
    weft_dtype dtype;
} wefti_packed;

/* How pieces divide a tensor: a dimension is divided further by axes, into equal parts. */
typedef struct wefti_division {
    int dim;
    wefti_dim_split axes;
    int32_t parts;
} wefti_division;

/* What the emitter has counted when a period of a loop begins or ends. */
typedef struct wefti_loop_mark {
    int64_t step;
    double forward_flops, backward_flops;
} wefti_loop_mark;

/* A section that is emitted for fewer microbatches than a step has (decide.h: wefti_loop_plan). */
typedef struct wefti_build_loop {
    bool refused;            /* the steps did not repeat: all microbatches must be emitted */
    wefti_loop_mark mark[3]; /* where period A begins, and B, and where B ends */
    int marks;
    int64_t tasks_end; /* the steps from here on belong to no microbatch */
} wefti_build_loop;

/* Which buffer of a gradient. */
typedef enum wefti_gradient_use {
    WEFTI_GRADIENT_TERM, /* to which backward passes add: param_gradient */
    WEFTI_GRADIENT_SUM,  /* complete over the mesh: reduced */
    WEFTI_GRADIENT_USES
} wefti_gradient_use;

/* Where the content of such a gradient is. A store of it may be under way. */
typedef enum wefti_gradient_where {
    WEFTI_GRADIENT_HERE, /* in device memory alone */
    WEFTI_GRADIENT_BOTH, /* in device memory and in its tier */
    WEFTI_GRADIENT_AWAY  /* in its tier alone */
} wefti_gradient_where;

/* A gradient in a tier below device memory. */
typedef struct wefti_gradient_home {
    int32_t buffer;  /* there, -1: none yet */
    int32_t move[2]; /* that stores it, and that fetches it, -1: none yet */
    wefti_gradient_where where;
} wefti_gradient_home;

typedef struct wefti_emitter {
    const wefti_decisions *dec;
    const wefti_program_spec *spec;
    wefti_program *p;
    weft_graph *g;
    const weft_body *root;
    wefti_partition *part; /* NULL: one device */
    wefti_arena *scratch;
    wefti_buffer *buffers;
    int64_t buffer_count, buffer_cap;
    wefti_draft_step *steps[WEFTI_SECTIONS];
    int64_t step_count[WEFTI_SECTIONS], step_cap[WEFTI_SECTIONS];
    int32_t now;       /* time of the step being added */
    int32_t now_micro; /* the microbatch that it works on */
    wefti_space space; /* in which steps are added now, with their routines and new buffers */
    wefti_micro *micro;
    wefti_build_loop loop;
    wefti_flight *flights; /* in the order of their posts */
    int64_t flight_count, flight_cap;
    wefti_gathered gathered[WEFTI_MAX_BUCKET];
    wefti_copy_start copy[WEFTI_COMM_DEPTH];
    int copies;         /* how many interleaved copies are being built */
    int32_t copies_now; /* the time at which the first copy begins */
    int64_t last_part;  /* the step that ends the previous group of interleaved copies, -1: none */
    int32_t last_part_now;
    int32_t *held;     /* operands that the first copy has gathered: per input of the call, -1 */
    int32_t next_call; /* the call after the one being built, -1: none or unknown */
    bool next_backward;
    struct wefti_update_draft *update; /* per root value: the update of a parameter */
    struct wefti_update_ahead *ahead;  /* the fetches ahead of updates */
    wefti_edge_traffic *edges;         /* per edge of the decisions */
    int32_t *output_buffer;            /* per root value that is a named output: its buffer, -1 */
    int32_t *param_buffer;             /* per root value: buffer of a parameter or state, -1 */
    int32_t *param_copy; /* per root value: buffer of the copy that calls read of a master, or of
                            what servers keep; -1: calls read param_buffer */
    struct wefti_served_draft *served; /* per root value */
    int32_t *param_move;     /* per root value: the move that fetches a parameter, -1: none yet */
    int32_t *rows_move;      /* likewise its rows that a call looks up */
    int32_t *saved_move[2];  /* per call: the move that stores its saved block, and the one that
                                fetches it, -1: none yet */
    int32_t **host_moves[2]; /* per call on the host: the moves of its forward and its backward
                                pass; NULL: none yet */
    int32_t *param_piece;    /* per root value: buffer of the optimizer's piece of a parameter,
                                if the piece is not contiguous in the parameter's buffer; else -1 */
    int32_t *param_gradient; /* per root value: buffer in which a parameter's gradient
                                accumulates, -1 */
    wefti_packed *packed;    /* per bucket */
    int64_t *packed_at;      /* per root value: where its gradient begins in its bucket's buffer,
                                -1: not there */
    int32_t *reduced;        /* per root value: buffer of its complete gradient, -1: none yet */
    wefti_gradient_home *gradient_home[WEFTI_GRADIENT_USES]; /* per root value */
    bool *begun;             /* per bucket: its reduction is emitted, or its first part */
    bool reduces, completes; /* the passes being built reduce gradients of some buckets; of all */
    bool adds;               /* what a bucket reduces is added to earlier microbatches' */
    int32_t *terms;          /* per root value: terms of its gradient that are emitted */
    int32_t *terms_of;       /* per root value: outputs of this rank's backward passes, for one
                                microbatch, that are terms of its gradient */
    bool *param_started;     /* some step has written to it */
    int32_t *param_index;    /* per root value: index of its tensor, -1 */
    bool unnamed;            /* memory for a name was missing; the build fails */
    bool *completed;         /* per root value: the gradient of a parameter is complete, with eager
                                updates */
    int32_t *ready;          /* per bucket: how many of its gradients are complete */
    int64_t routine_cap, tensor_cap, body_cap, move_cap;
    int32_t *transfer_move; /* per transfer of the partition: its move, -1 */
    int64_t transfer_moves, transfer_move_cap;
    int32_t scalars, host_scalars, one, norms; /* buffers, -1: none */
    int32_t *state_kept;       /* per root value: with recovery, the buffer of a state's value
                                  between steps, while passes use param_buffer; -1: the same */
    struct wefti_buddy *buddy; /* buddy/buddy.c; NULL: none */
    int32_t *tensor_buffer;    /* per tensor of the program */
    int64_t tensor_buffer_cap;
    wefti_routine_key *keys; /* of the routines that calls share */
    int64_t key_count, key_cap;
} wefti_emitter;

/* build.c: helpers */
const char *wefti_build_name(wefti_emitter *b, const char *prefix, const char *name);
/* A persistent tensor: at the offset that the sharing program has given it, or new. */
weft_status wefti_build_persistent(wefti_emitter *b, const char *name, wefti_tensor_role role,
                                   wefti_space space, const weft_desc *whole,
                                   const wefti_layout *layout, weft_init init, int32_t *out_buffer,
                                   int32_t *out_tensor) WEFT_CHECKED;
weft_status wefti_build_keep_body(wefti_emitter *b, weft_body *body) WEFT_CHECKED;
int32_t *wefti_build_value(wefti_emitter *b, int32_t micro, int32_t value);
int32_t *wefti_build_gradient(wefti_emitter *b, int32_t micro, int32_t value);

/* buffers.c: steps */
weft_status wefti_build_begin(wefti_emitter *b, wefti_section s, wefti_step_kind kind,
                              wefti_phase phase, const char *name, int32_t args,
                              wefti_draft_step **out) WEFT_CHECKED;
void wefti_build_arg(wefti_emitter *b, wefti_draft_step *d, int32_t arg, int32_t buffer,
                     int64_t delta);
weft_status wefti_build_end(wefti_emitter *b, wefti_draft_step *d,
                            int32_t routine) WEFT_CHECKED; /* for a CALL; advances the time */

/* routines.c: routines, one per unique key. */
weft_status wefti_build_find(wefti_emitter *b, const wefti_routine_key *key,
                             int32_t *out) WEFT_CHECKED; /* -1: none yet */
weft_status wefti_build_compile(wefti_emitter *b, const wefti_routine_key *key,
                                wefti_routine_spec *spec, int32_t *out) WEFT_CHECKED;
weft_status wefti_build_forward(wefti_emitter *b, const wefti_call_plan *call,
                                int32_t *out) WEFT_CHECKED;
weft_status wefti_build_backward(wefti_emitter *b, const wefti_call_plan *call, wefti_pass pass,
                                 const uint8_t *accumulate, int32_t *out) WEFT_CHECKED;
weft_status wefti_build_fused(wefti_emitter *b, const wefti_call_plan *call,
                              const uint8_t *accumulate, int32_t *out) WEFT_CHECKED;
/* gather.c */
/* Whether a parameter is so small that it shares a message with others. *out: how its pieces divide
 * it. */
bool wefti_gather_packs(const wefti_emitter *b, const weft_desc *whole, const wefti_layout *from,
                        const wefti_layout *to, wefti_division *out);
/* A routine that gathers such parameters by one message: one input and one output each. *out -1: no
 * single transfer can do it. */
weft_status wefti_gather_packed(wefti_emitter *b, int count, const weft_desc *whole,
                                const wefti_layout *from, const wefti_layout *to, uint64_t tag,
                                int32_t *out) WEFT_CHECKED;
weft_status wefti_gather_ahead(wefti_emitter *b, wefti_section s, int32_t call,
                               bool backward) WEFT_CHECKED; /* call -1: nothing */
weft_status wefti_gather_operands(wefti_emitter *b, wefti_section s, int32_t call, bool backward,
                                  int32_t micro, int32_t **out)
    WEFT_CHECKED; /* buffers of its inputs, -1: the call does not read it */
weft_status wefti_gather_finish(wefti_emitter *b, wefti_section s) WEFT_CHECKED;

/* interleave.c: micro-batch interleaving. wefti_interleave_begin: the next steps belong to the call
 * of the next copy. */
weft_status wefti_interleave_begin(wefti_emitter *b, wefti_section s) WEFT_CHECKED;
void wefti_interleave_call(wefti_emitter *b, wefti_section s); /* the last step is the call */
/* Whether the call being built would, in some part, accumulate into a buffer too early: an earlier
 * copy still writes to it in a later part. `r` is the call's routine. `target` has the buffers of
 * its results, which are the arguments from `first_arg` on. */
bool wefti_interleave_too_early(const wefti_emitter *b, wefti_section s, const wefti_routine *r,
                                int32_t first_arg, int64_t outs, const int32_t *target);
/* All copies of the call are built: interleave them. */
weft_status wefti_interleave_end(wefti_emitter *b, wefti_section s) WEFT_CHECKED;

/* calls.c */
weft_status wefti_build_forward_call(wefti_emitter *b, wefti_section s, int32_t call,
                                     int32_t micro) WEFT_CHECKED;
weft_status wefti_build_backward_call(wefti_emitter *b, wefti_section s, int32_t call,
                                      int32_t micro, wefti_pass pass) WEFT_CHECKED;
weft_status wefti_build_fused_call(wefti_emitter *b, wefti_section s, int32_t call,
                                   int32_t micro) WEFT_CHECKED;

weft_status wefti_build_loss(wefti_emitter *b, wefti_section s,
                             int32_t micro) WEFT_CHECKED; /* program.c */

/* states.c. Copies new values into their states: the values that call `after` has made, or with -1,
 * at the end, all others. */
weft_status wefti_build_states(wefti_emitter *b, wefti_section s, int32_t micro,
                               int32_t after) WEFT_CHECKED;
/* With recovery: gives states that passes change second buffers; copies the states there at the
 * begin of a step, and back behind its commit. */
weft_status wefti_build_second_states(wefti_emitter *b) WEFT_CHECKED;
weft_status wefti_build_take_states(wefti_emitter *b) WEFT_CHECKED;
weft_status wefti_build_keep_states(wefti_emitter *b) WEFT_CHECKED;

/* stage_transfers.c: the transfers of this stage's edges. */
weft_status wefti_build_edges(wefti_emitter *b) WEFT_CHECKED;
/* Sums the complete gradient of a parameter over the stages that read it. */
weft_status wefti_pipeline_tie(wefti_emitter *b, wefti_section s, int32_t value,
                               int32_t *gradient) WEFT_CHECKED;
const char *wefti_value_name(const weft_body *root, int32_t value);
/* pipeline.c: the section FIRST, with all microbatches. */
weft_status wefti_pipeline_section(wefti_emitter *b) WEFT_CHECKED;

/* loop.c. fold: makes a loop of a section that is complete, or sets b->loop.refused. */
void wefti_loop_mark_at(wefti_emitter *b, wefti_section s, int number);
weft_status wefti_loop_fold(wefti_emitter *b, wefti_section s) WEFT_CHECKED;

/* reduce.c */
/* The buffer of a parameter's gradient. */
weft_status wefti_reduce_buffer(wefti_emitter *b, int32_t value, const char *name,
                                int32_t *out) WEFT_CHECKED;
/* Whether reductions overlap with backward passes, and some only with those of the last
 * microbatch. */
bool wefti_reduce_overlaps(const wefti_emitter *b);
bool wefti_reduce_at_last(const wefti_emitter *b);
/* Call it before the passes of a microbatch. `last`: they complete all gradients. */
void wefti_reduce_begin(wefti_emitter *b, bool last);
/* Fills `terms_of`. */
void wefti_reduce_count_terms(wefti_emitter *b);
/* Whether devices complete a gradient together. */
bool wefti_is_reduced(const wefti_emitter *b, int32_t value);
/* Call it after the last pass of a call. Reduces the buckets that this pass has completed. */
weft_status wefti_reduce_completed(wefti_emitter *b, wefti_section s, int32_t call) WEFT_CHECKED;
/* Reduces a bucket, unless it already is. `posts`: leaves its transfers in flight. */
weft_status wefti_reduce_bucket(wefti_emitter *b, wefti_section s, int32_t bucket,
                                bool posts) WEFT_CHECKED;
/* Waits until at most `left` calls are in flight. */
weft_status wefti_reduce_wait(wefti_emitter *b, wefti_section s, int32_t left) WEFT_CHECKED;
/* make_room: before a call of a routine with `width` transfers that leaves them in flight. leave:
 * behind it, makes the section's last step the first part. owner: -1, or the bucket of GRADIENTS.
 */
weft_status wefti_reduce_make_room(wefti_emitter *b, wefti_section s, const wefti_routine *routine,
                                   int32_t width, wefti_flight_use use, int32_t owner) WEFT_CHECKED;
weft_status wefti_reduce_leave(wefti_emitter *b, wefti_section s, int32_t width,
                               wefti_flight_use use, int32_t owner) WEFT_CHECKED;

/* servers.c: what servers keep of this rank's parameters. prepare: once the tensors are there.
 * push: the rank's term of a complete gradient. finish: ends all that is under way. place: once
 * buffers have their places. */
weft_status wefti_served_prepare(wefti_emitter *b) WEFT_CHECKED;
weft_status wefti_served_push(wefti_emitter *b, wefti_section s, int32_t value) WEFT_CHECKED;
weft_status wefti_served_pull(wefti_emitter *b, wefti_section s, int32_t value) WEFT_CHECKED;
/* Gets the square of the sum, into slot `slot` of the norms. */
weft_status wefti_served_norm(wefti_emitter *b, int32_t value, int64_t slot) WEFT_CHECKED;
weft_status wefti_served_finish(wefti_emitter *b, wefti_section s) WEFT_CHECKED;
void wefti_served_place(wefti_emitter *b);

/* update.c */
/* Keeps a body, or destroys it if an equal body is kept already; *out is the kept one. */
weft_status wefti_build_intern(wefti_emitter *b, weft_body *body,
                               const weft_body **out) WEFT_CHECKED;
/* The gradients of a bucket are complete. */
weft_status wefti_bucket_reduced(wefti_emitter *b, wefti_section s, int32_t bucket) WEFT_CHECKED;
weft_status wefti_build_update_section(wefti_emitter *b) WEFT_CHECKED;
/* The optimizer's rule and the routine for this device's piece of a parameter, or for the piece
 * `here` of another device. state_layouts [rule->states]. */
weft_status wefti_update_routine(wefti_emitter *b, int32_t value, const weft_desc *here,
                                 bool on_host, wefti_update_rule *out_rule,
                                 wefti_layout *out_state_layouts, int32_t *out) WEFT_CHECKED;
/* Where the operands of an update lie. */
typedef struct wefti_update_operands {
    wefti_buffer_ref param, gradient, state[4];
    int32_t named;         /* rows of a table: the buffer of their numbers */
    wefti_buffer_ref copy; /* of the new value, if the update makes one */
} wefti_update_operands;
/* Whose update it is: a parameter's, or a copy's that a buddy keeps. */
typedef struct wefti_update_of {
    int32_t value, tensor; /* tensor: of the parameter, or WEFTI_TENSOR_OF_WARD */
    const char *name;
    struct wefti_update_draft *draft;
} wefti_update_of;
/* Updates all slices on the device. whole: the parameter and the gradient, where they lie there. */
weft_status wefti_update_slices(wefti_emitter *b, wefti_section s, const wefti_update_of *of,
                                const wefti_update_operands *whole) WEFT_CHECKED;

/* host.c: the passes of a call on the host. prepare: makes the gradients of its parameters. */
weft_status wefti_host_prepare(wefti_emitter *b) WEFT_CHECKED;
weft_status wefti_host_forward(wefti_emitter *b, wefti_section s, int32_t call,
                               int32_t micro) WEFT_CHECKED;
weft_status wefti_host_backward(wefti_emitter *b, wefti_section s, int32_t call,
                                int32_t micro) WEFT_CHECKED;

/* rows.c: adds the sums of each touched row of this device's piece of a table, and the rows'
 * numbers in it. The update of the piece: inputs and results as of other updates. */
weft_status wefti_rows_sums(wefti_emitter *b, int32_t value, weft_body *body, int32_t rows,
                            int32_t *out_ids, int32_t *out_sums) WEFT_CHECKED;
weft_status wefti_rows_update(wefti_emitter *b, int32_t value, const wefti_update_rule *rule,
                              const weft_body **out) WEFT_CHECKED;
/* *buffer holds a gradient as rows, of all microbatches: replaces it by the part of one. Else it
 * does nothing. */
weft_status wefti_rows_of_micro(wefti_emitter *b, int32_t value, int32_t micro,
                                int32_t *buffer) WEFT_CHECKED;

/* rows_tiers.c: whether an update brings the touched rows of the piece to device memory, since the
 * table or its state lies in a tier below. *out: the rows that it brings. */
weft_status wefti_rows_away(const wefti_emitter *b, int32_t value, bool *out_away,
                            weft_desc *out) WEFT_CHECKED;
/* Makes the cache that the plan gives the rows of a table and of its states on a disk, which must
 * exist by now. *out: its buffer, if the tensor has slots. */
weft_status wefti_rows_cache(wefti_emitter *b, int32_t value, const wefti_update_rule *rule,
                             int32_t *out) WEFT_CHECKED;
/* bring: the gradient, the value and the states of the touched rows, which lie in device memory
 * from now on. `at`: where the piece lies. return: begins to take rows back there. */
weft_status wefti_rows_bring(wefti_emitter *b, wefti_section s, int32_t value,
                             const wefti_update_operands *at,
                             wefti_update_operands *out) WEFT_CHECKED;
weft_status wefti_rows_return(wefti_emitter *b, wefti_section s, int32_t value,
                              const wefti_update_operands *at,
                              const wefti_update_operands *rows) WEFT_CHECKED;

/* rows_look_ups.c: whether a call's pass looks up rows of a table, in a tier below device memory,
 * and reads nothing else of it. Then its body has these rows in place of the table: wefti_rows_body
 * replaces it. */
bool wefti_rows_looked_up(const wefti_emitter *b, int32_t call, int32_t value, bool backward);
weft_status wefti_rows_body(wefti_emitter *b, const wefti_call_plan *call, bool backward,
                            const weft_body **body) WEFT_CHECKED;
/* A pass begins: begins to copy the rows that its forward calls look up by inputs. */
weft_status wefti_rows_ahead(wefti_emitter *b, wefti_section s, int32_t micro) WEFT_CHECKED;
/* Copies the rows that a call looks up to a new buffer of device memory, or waits for the copy. */
weft_status wefti_rows_look_up(wefti_emitter *b, wefti_section s, int32_t call, int32_t value,
                               bool backward, int32_t micro, int32_t *out) WEFT_CHECKED;

bool wefti_same_shape(const weft_desc *a, const weft_desc *b);

/* tiers.c */
/* The memory in which the plan keeps `what` of a parameter or of a call. */
wefti_space wefti_tier_space(const wefti_emitter *b, weft_offload what, const char *name);
/* Likewise of a parameter, unless it is too small to be worth a move. */
wefti_space wefti_tier_of_large(const wefti_program_spec *spec, weft_offload what,
                                const wefti_value_info *param);
/* Whether a buffer lies in a tier below device memory. */
bool wefti_tier_below(const wefti_emitter *b, int32_t buffer);
/* Begins to copy a parameter that lies there to a new buffer of device memory. */
weft_status wefti_tier_fetch(wefti_emitter *b, wefti_section s, int32_t value,
                             int32_t *out) WEFT_CHECKED;
/* What a call's forward pass has saved: begins to store it, behind that pass, if it belongs in a
 * tier below device memory. Ends the stores of the call before. */
weft_status wefti_saved_store(wefti_emitter *b, wefti_section s, int32_t call,
                              int32_t micro) WEFT_CHECKED;
/* Ends the stores of saved blocks and gradients. */
weft_status wefti_pass_stored(wefti_emitter *b, wefti_section s) WEFT_CHECKED;
/* Begins to fetch it, if it is there. */
weft_status wefti_saved_ahead(wefti_emitter *b, wefti_section s, int32_t call,
                              int32_t micro) WEFT_CHECKED;
/* The buffer of device memory with it, which is there from now on. */
weft_status wefti_saved_take(wefti_emitter *b, wefti_section s, int32_t call, int32_t micro,
                             int32_t *out) WEFT_CHECKED;
/* Brings a gradient to device memory, if it is in a tier below; before that, begins to fetch it.
 * `changes`: the next step changes it. */
weft_status wefti_gradient_ahead(wefti_emitter *b, wefti_section s, int32_t value,
                                 wefti_gradient_use use) WEFT_CHECKED;
weft_status wefti_gradient_bring(wefti_emitter *b, wefti_section s, int32_t value,
                                 wefti_gradient_use use, bool changes) WEFT_CHECKED;
/* Its buffer in device memory is free from now on, if it belongs in a tier below. Begins to store
 * what has changed. */
weft_status wefti_gradient_leave(wefti_emitter *b, wefti_section s, int32_t value,
                                 wefti_gradient_use use) WEFT_CHECKED;
/* Of the parameters of a call. ahead: before its backward pass. leave: behind it, unless the next
 * call adds to the same gradient. */
weft_status wefti_gradients_ahead(wefti_emitter *b, wefti_section s, int32_t call) WEFT_CHECKED;
weft_status wefti_gradients_leave(wefti_emitter *b, wefti_section s, int32_t call) WEFT_CHECKED;
/* States, gradients and parameters in a tier below device memory are fetched, updated and stored in
 * slices of whole rows, so an update needs no room for whole ones. */
typedef struct wefti_update_part {
    int32_t home;  /* buffer */
    int64_t bytes; /* of every slice but the last */
} wefti_update_part;
enum { WEFTI_UPDATE_PARTS = 6 };
/* How an update finds what lies in a tier below device memory. */
typedef enum wefti_update_way {
    WEFTI_UPDATE_FETCHES, /* slices of it move to device memory and back, if any lies there */
    WEFTI_UPDATE_ON_HOST, /* it stays there, and the host computes */
    WEFTI_UPDATE_BY_ROWS  /* the touched rows of a table move: rows_tiers.c */
} wefti_update_way;
typedef struct wefti_update_draft {
    bool known;
    int states;
    /* The states; behind them the parameter, and the gradient (home -1: in device memory). */
    wefti_update_part part[WEFTI_UPDATE_PARTS];
    int32_t next; /* the slice to fetch next */
    wefti_update_way way;
    bool copies;           /* the parameter is a master: its last result is the new copy */
    int64_t piece_bytes;   /* of the parameter */
    int32_t slices;        /* 1: whole */
    int32_t cache;         /* BY_ROWS: the buffer of the rows' cache, if the tensor has slots */
    int32_t routine, last; /* of every slice but the last; of the last one */
} wefti_update_draft;
/* Makes the states and the routines of a parameter's update. */
weft_status wefti_slices_begin(wefti_emitter *b, int32_t value) WEFT_CHECKED;
/* Divides the update of a piece `here`, if it fetches anything. Needs all of u but `bytes`. */
weft_status wefti_slices_divide(wefti_emitter *b, int32_t value, const weft_desc *here,
                                wefti_update_rule *rule, wefti_update_draft *u) WEFT_CHECKED;
/* Where the states of a slice are in device memory, from now on; and the parameter and the
 * gradient, if they were fetched. */
weft_status wefti_slice_take(wefti_emitter *b, wefti_section s, wefti_update_draft *u,
                             int32_t slice, wefti_update_operands *at) WEFT_CHECKED;
/* Begins to store what was fetched. */
weft_status wefti_slice_store(wefti_emitter *b, wefti_section s, const wefti_update_draft *u,
                              int32_t slice, const wefti_update_operands *at) WEFT_CHECKED;
/* Updates on the host. send: begins to copy a slice's gradient to host memory, and its value unless
 * it lies there; *out: where the operands will be. arrive: ends these copies. return: begins to
 * copy the new value, or the new copy of a master, to device memory. */
weft_status wefti_slice_send(wefti_emitter *b, wefti_section s, int32_t value, int32_t slice,
                             const wefti_update_operands *from, int32_t *out_number,
                             wefti_update_operands *out) WEFT_CHECKED;
weft_status wefti_slice_arrive(wefti_emitter *b, wefti_section s, int32_t number) WEFT_CHECKED;
weft_status wefti_slice_return(wefti_emitter *b, wefti_section s, int32_t value, int32_t slice,
                               const wefti_update_operands *at, wefti_buffer_ref to) WEFT_CHECKED;
/* Ends all stores, and all copies of updated values. */
weft_status wefti_tier_finish(wefti_emitter *b, wefti_section s) WEFT_CHECKED;
weft_status wefti_slices_prepare(wefti_emitter *b) WEFT_CHECKED; /* makes `update` and `ahead` */

/* reshard.c. */
/* The update of one parameter: (parameter, states, gradient, scalars). */
weft_status wefti_build_update_body(wefti_emitter *b, int32_t value, const weft_body *body,
                                    int states, const wefti_local_body **out) WEFT_CHECKED;
/* Whether layouts differ only in such a division. */
bool wefti_build_divides(const wefti_emitter *b, const weft_desc *whole, const wefti_layout *coarse,
                         const wefti_layout *fine, wefti_division *out);
bool wefti_build_same_axes(const wefti_division *x, const wefti_division *y);
/* Adds a node of an op with one result. */
weft_status wefti_build_node(weft_body *body, const char *op, int count, const int32_t *in,
                             const wefti_attr *attrs, int32_t *out) WEFT_CHECKED;
/* The routine of a body, which this takes over. */
weft_status wefti_build_routine_of(wefti_emitter *b, weft_body *body, int32_t *out) WEFT_CHECKED;
/* Joins the columns of `count` matrices: value[0] is the result. */
weft_status wefti_build_join(weft_body *body, int32_t count, int32_t *value) WEFT_CHECKED;
/* A routine of one transfer; its operand and its result both have the description `here`. */
weft_status wefti_build_transfer_routine(wefti_emitter *b, const weft_desc *here, int32_t transfer,
                                         int32_t *out_routine) WEFT_CHECKED;
/* A routine that moves `count` tensors from one layout to another: one input and one output each.
 * `tag`: of its transfers; 0 if they are never in flight beside calls. */
weft_status wefti_build_reshard(wefti_emitter *b, int count, const weft_desc *whole,
                                const wefti_layout *from, const wefti_layout *to, bool add,
                                uint64_t tag, int32_t *out_routine) WEFT_CHECKED;

/* buffers.c */
weft_status wefti_buffer_add(wefti_emitter *b, int64_t bytes, const char *name,
                             int32_t *out) WEFT_CHECKED;
/* The part of another buffer that belongs to a microbatch; it lives as long as the whole. */
weft_status wefti_buffer_part(wefti_emitter *b, int32_t of, int32_t micro, int64_t stride,
                              int64_t bytes, int32_t *out) WEFT_CHECKED;
weft_status wefti_buffer_persistent(wefti_emitter *b, int64_t bytes, const char *name,
                                    int32_t *out) WEFT_CHECKED;
void wefti_buffer_use(wefti_emitter *b, int32_t buffer); /* now */
/* The address of a buffer that has a place; -1: absent. */
wefti_location wefti_buffer_location(const wefti_emitter *b, int32_t buffer);
weft_status wefti_buffers_finish(wefti_emitter *b) WEFT_CHECKED; /* places buffers; fills in
                                                                            the offsets of steps */

#endif
