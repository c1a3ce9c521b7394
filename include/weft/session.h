/* A session: a graph compiled for this machine, with its parameters and optimizer state, ready to
 * step.
 *
 *     weft_session_options o = weft_session_defaults();
 *     weft_session *s;
 *     weft_session_create(graph, &o, &s);
 *     for (...) { weft_session_feed(s, "image", ...); weft_session_step(s, lr, &result); }
 *
 * All memory of a step is placed in two arenas before the step: one keeps its values between steps,
 * the other does not. A step allocates nothing. One thread at a time may use a session. Sessions
 * are independent of each other. All calls block until their work is done. Calls with a `program`
 * return WEFT_E_ARG for an unknown one, and calls with a `name` WEFT_E_NOT_FOUND. A call that fails
 * leaves its outputs unchanged.
 *
 * With a plan of several devices, each device has a thread and an arena of its own. Feeding,
 * reading and writing take the whole tensor; the session splits and joins it.
 *
 * With a world of several processes, each process runs one device of the plan, and all make the
 * same calls in the same order:
 *
 * - Collective: create, add, feed, step, read, write, save, load. Feed and write take the same
 * whole tensor on all ranks; read, the loss and the gradient norm return it on all.
 * - Not collective: queries (tensors, memory, numbers), weft_session_feed_ahead and
 * weft_session_feed_local.
 * - For parts of tensors: weft_session_feed_rows, weft_session_rows (not collective),
 *   weft_session_read_rows, weft_session_local, weft_session_feed_local.
 *
 * If a call fails on one process because of that process alone, it fails on all others with
 * WEFT_E_PEER, naming the process; after that the world can only be left. A pass, an update or a
 * save out of order ends the world too, even if all processes make it alike. Without a world, or
 * alone in one, the session can continue after it. If one process reads, writes, feeds rows, adds a
 * graph, saves or loads with wrong arguments, the call fails alike on all, naming the process, and
 * the session can continue. */
#ifndef WEFT_SESSION_H
#define WEFT_SESSION_H

#include <stdbool.h>

#include "weft/graph.h"
#include "weft/plan.h"
#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_OPTIMIZER_LIST(X)                                                                     \
    X(SGD, "sgd")                                                                                  \
    X(MOMENTUM, "momentum")                                                                        \
    X(NESTEROV, "nesterov")                                                                        \
    X(ADAM, "adam")                                                                                \
    X(ADAMW, "adamw")                                                                              \
    X(LAMB, "lamb")                                                                                \
    X(LION, "lion")                                                                                \
    X(ADAFACTOR, "adafactor")                                                                      \
    X(ADAGRAD, "adagrad")

typedef enum weft_optimizer_kind {
#define WEFT_OPTIMIZER_ROW(name, text) WEFT_##name,
    WEFT_OPTIMIZER_LIST(WEFT_OPTIMIZER_ROW)
#undef WEFT_OPTIMIZER_ROW
        WEFT_OPTIMIZERS,
    WEFT_NO_OPTIMIZER = WEFT_OPTIMIZERS /* forward passes only */
} weft_optimizer_kind;

/* Whether the parameters decay whose names match a pattern (with *, ? and [abc]). */
typedef struct weft_decay_rule {
    const char *match;
    bool decay;
} weft_decay_rule;

/* Weight decay applies to weights: the parameters that a product (linear, matmul, moe_linear), a
 * convolution or an embedding takes as its matrix, also through reshapes, slices and sums of
 * parameters. Norms, biases, positions and class tokens do not decay. */
typedef struct weft_optimizer {
    weft_optimizer_kind kind;
    double beta1, beta2;
    double eps; /* adafactor: added to squares of gradients */
    double momentum;
    double weight_decay;
    double initial_accumulator; /* adagrad: what the sum of squares begins with */
    bool decay_all;             /* decay all parameters */
    /* Exceptions, of which the last that matches counts. Borrowed until weft_session_create has
     * returned, which refuses patterns without a parameter. */
    int decay_rules;
    const weft_decay_rule *decay;
} weft_optimizer;

/** The defaults of a job file for `kind`: the values of Kingma & Ba 2015 (Adam), Loshchilov &
 * Hutter 2019 (AdamW), You et al. 2020 (LAMB), Chen et al. 2023 (Lion), Shazeer & Stern 2018
 * (Adafactor), PyTorch (Adagrad); momentum 0.9. */
WEFT_API weft_optimizer weft_optimizer_defaults(weft_optimizer_kind kind);

typedef enum weft_bf16_compute {
    WEFT_BF16_AUTO,   /* the faster one on this processor (in a world, on rank 0's), by a short
                         measurement; AS_F32 if a world's processors multiply bf16 differently */
    WEFT_BF16_AS_F32, /* bf16 storage, f32 products */
    WEFT_BF16_NATIVE  /* bf16 products, f32 accumulation */
} weft_bf16_compute;

/* Gradients of tables that weft_embedding reads: whole tables, or the rows that a step touches. */
#define WEFT_ROWS_LIST(X) X(NONE, "none") X(AUTO, "auto")

typedef enum weft_rows {
#define WEFT_ROWS_ROW(name, text) WEFT_ROWS_##name,
    WEFT_ROWS_LIST(WEFT_ROWS_ROW)
#undef WEFT_ROWS_ROW
} weft_rows;

typedef struct weft_session_options {
    size_t struct_bytes;
    weft_optimizer optimizer;
    double clip; /* largest global gradient norm; 0: no clipping. In mode MANUAL all ranks must have
                    gradients of one norm */
    int microbatches;    /* accumulated in one step; the graph has the size of one */
    bool keep_gradients; /* readable as "grad:<parameter>" after weft_session_accumulate */
    bool recompute;      /* save only the inputs of each cell for the backward pass */
    int threads; /* of all devices together; 0: all cores that this process may use, or, in a world,
                    its share of its host's cores */
    int64_t memory_bytes; /* largest memory of one device, its arenas and the programs themselves;
                             a session that needs more is refused; 0: no limit */
    uint64_t seed;
    weft_bf16_compute bf16;
    /* How to split the graph over devices, copied. NULL: one device, or, in a world, one device for
     * each process, which split the batch. */
    const weft_plan *plan;
    /* The processes to run on, borrowed; each is one of the plan's devices. NULL: all devices are
     * in this process. */
    weft_world *world;
    /* Changes nothing that a step began with before all ranks can finish the step. Parameters then
     * change in a section of their own, as with clipping, and states that passes change have a
     * second buffer. In a world whose launcher starts lost processes again, the session goes on
     * after such a loss: see weft_session_begin. */
    bool recovery;
    /* With recovery: what no other rank has of a rank's parameters, states and optimizer tensors,
     * another rank keeps a copy of (a buddy; of another host where there is one). It updates the
     * copy in each step, with the gradients of its owner. After the first step, write these tensors
     * by weft_session_write only, not by the address of weft_session_local. */
    bool buddy;
    /* Directory of the files for tensors in tier DISK (weft_plan_offload), borrowed until the
     * session is created. NULL: none. A process with a key (weft_checkpoint_key, checkpoint.key)
     * encrypts these files. */
    const char *disk;
    int64_t disk_bytes; /* largest file of one device; 0: no limit */
    /* AUTO: a table of which a step looks up fewer rows than it has is updated by the rows that the
     * step touches; no gradient of the whole table is made. It must be read by one weft_embedding
     * and nothing else, in device memory, by a step of one microbatch on one stage, without
     * keep_gradients and buddy. For sgd and adagrad without weight decay and clipping the bits are
     * those of NONE. Other optimizers and weight decay change a row, and its states, only in steps
     * that touch it. lamb and adafactor take no rows. */
    weft_rows rows;
    /* Limits of each device; 0: none. A session that needs more is refused. */
    int64_t device_bytes; /* of its arenas alone */
    int64_t host_bytes;   /* of its arenas in host memory, its programs, and held_bytes */
    int64_t held_bytes;   /* of host_bytes, what the caller holds itself, such as batches */
} weft_session_options;

typedef struct weft_session weft_session;

/** Used by weft_session_defaults: the first `struct_bytes` of the defaults. */
WEFT_API void weft_session_fill_defaults(weft_session_options *out, size_t struct_bytes);
/** AdamW (0.9, 0.95, 1e-8, decay 0.1), no clipping, one microbatch, all cores, seed 0. For another
 * optimizer, set `optimizer` to its weft_optimizer_defaults. */
WEFTI_FILLED_DEFAULTS(weft_session_options, weft_session_defaults, weft_session_fill_defaults)

/** Compile `graph`. Collective in a world. The session borrows the graph: destroy the graph after
 * the session.
 * @param options  NULL: defaults
 * @param out      freed with weft_session_destroy
 * @return the graph's first error, if it has one; WEFT_E_ARG for invalid options or plans;
 *   WEFT_E_LAYOUT, WEFT_E_SHAPE and others for a plan that does not fit the model; WEFT_E_NOT_FOUND
 *   for a split that matches no op or tensor, with the nearest name; WEFT_E_NOMEM for programs
 * above memory_bytes or device_bytes, with the largest tensors and the step in which they all
 * exist, or above host_bytes; WEFT_E_MISMATCH if the processes of the world do not create the same
 * session */
WEFT_API weft_status weft_session_create(weft_graph *graph, const weft_session_options *options,
                                         weft_session **out) WEFT_CHECKED;
/** Not collective. NULL is legal. */
WEFT_API void weft_session_destroy(weft_session *session);

/** Compile one more graph (or the first one again) for forward passes only, such as evaluation.
 * Collective in a world. Call it at any time between two steps. The graph is borrowed. Its
 * parameters and states are those of the graphs before, if they have the same names.
 *
 * After the first step, this call voids the inputs and outputs of all programs, and their addresses
 * from weft_session_local. Feed the inputs again before the next pass. Parameters, states and their
 * addresses stay. A call that fails adds no program, but may void inputs and outputs as well.
 * @param out_program  the number of the new program: 1, 2, ... The graph of weft_session_create is
 *   program 0
 * @return as weft_session_create; WEFT_E_ARG between weft_session_accumulate and
 *   weft_session_update, and after the first step of a session with recovery under `weft launch
 *   --restart` */
WEFT_API weft_status weft_session_add(weft_session *session, weft_graph *graph,
                                      int *out_program) WEFT_CHECKED;

/* ---- recovery ----
 *
 * With options.recovery, under `weft launch --restart N`, the job goes on after a process has died.
 * A new process of the same program takes its rank. The others keep theirs. In each of them, the
 * next call of its session that communicates waits until the world is mended, and returns
 * WEFT_E_RECOVERED: the call did nothing, and the world lives. The program goes on at the begin of
 * its loop.
 *
 *     weft_session_begin(s, &keeper);
 *     while ((step = weft_session_step_number(s)) < STEPS) {
 *         status = feed the samples of `step`;
 *         if (status >= 0) status = weft_session_step(s, rate, &loss);
 *         if (status < 0 && status != WEFT_E_RECOVERED) fail;
 *     }
 *
 * A step that had been committed is made while the world is mended, so the number may be one
 * higher. All bits are those of an undisturbed run, if what is fed follows from the number.
 *
 * After WEFT_E_RECOVERED these are void: addresses from weft_session_local, groups and requests of
 * weft/collective.h, and memory of weft_world_alloc, which is not to be freed then. One session of
 * a world can have recovery, and others end with the first loss. A process that dies before all
 * have called weft_session_begin, or after one has left the world, ends the job. */

/** What a program keeps besides its session. Each function may be NULL; `context` is passed to all.
 * A function that fails ends the job. */
typedef struct weft_session_keeper {
    size_t struct_bytes;
    void *context;
    /* Gives the session its start: writes start values, or loads a checkpoint and sets the step.
     * Called on all ranks at the begin of a job, and again when no process has the state of some
     * rank any more; the session has its own start values then. It may call the session's
     * functions, which are collective. NULL: the start values of the graph. */
    weft_status (*begin)(void *context, weft_session *session);
    /* On one rank that lives: the bytes that a new process needs besides the session's state, with
     * the session at the step from which all go on. Borrowed until its next call. */
    weft_status (*give)(void *context, const void **out_data, size_t *out_bytes);
    /* In a new process: takes these bytes. */
    weft_status (*take)(void *context, const void *data, size_t bytes);
} weft_session_keeper;
WEFTI_ZERO_DEFAULTS(weft_session_keeper, weft_session_keeper_defaults)

/** Start the session: `keeper->begin`, or, in a process that takes the place of another one, the
 * state of its rank. Call it before any other call but create and add. Without it, the session's
 * first call that communicates does the same without a keeper, and returns WEFT_E_RECOVERED in a
 * new process. Collective in a world.
 * @param keeper  copied; NULL: none */
WEFT_API weft_status weft_session_begin(weft_session *session,
                                        const weft_session_keeper *keeper) WEFT_CHECKED;
/** After a call of the session's world that is not one of the session has given `status`, such as
 * weft_all_reduce: if a process has died, mend the world and return WEFT_E_RECOVERED. Otherwise
 * return `status`. A new process makes no such calls before it has called weft_session_begin.
 * Collective if the world is mended. */
WEFT_API weft_status weft_session_recover(weft_session *session, weft_status status) WEFT_CHECKED;

/** Copy `bytes` of data, row-major, into the input `name` of a program (0: the first). It replaces
 * data fed before. Any pass, also of another program, overwrites inputs, so feed every input
 * before each pass. A pass without one returns WEFT_E_ARG and names it. WEFT_E_SHAPE if the size
 * differs. */
WEFT_API weft_status weft_session_feed(weft_session *session, int program, const char *name,
                                       const void *data, size_t bytes) WEFT_CHECKED;

/** The region of a tensor on this process's device, contiguous, at `data`. If the device has no
 * part, `data` is NULL and `bytes` 0. */
typedef struct weft_session_part {
    int64_t begin[WEFT_MAX_RANK], size[WEFT_MAX_RANK];
    int64_t bytes;
    void *data;
} weft_session_part;
/** This process's part of a tensor, to read and write in place. For programs that hold their arrays
 * in parts already. Valid times:
 *
 * - Inputs: until the pass that reads them begins, and again after it has ended. They count as fed.
 *   Passes of other programs overwrite them.
 * - Parameters, states, optimizer tensors: between steps. Replicas must stay equal. Call again
 *   before each write.
 * - Outputs: after the pass that makes them.
 *
 * The address stays the same. In a pipeline, and with micro-batch interleaving, each microbatch has
 * inputs of its own; the call returns those of the next microbatch. If the host cannot access the
 * device's memory, `data` is a host copy: a pass copies it to the device when it begins, and back
 * when it ends. WEFT_E_ARG for several devices in one process. Collective if it is the session's
 * first call after creation. */
WEFT_API weft_status weft_session_local(weft_session *session, int program, const char *name,
                                        weft_session_part *out) WEFT_CHECKED;
/** Copy this process's part of an input, as described by weft_session_local. Not collective. */
WEFT_API weft_status weft_session_feed_local(weft_session *session, int program, const char *name,
                                             const void *data, size_t bytes) WEFT_CHECKED;

/** Tell which data a later pass will be fed as input `name`, such as the next batch. If a pass
 * looks up rows by this input in a table on a disk that has a cache (weft_plan_cache), the rows
 * that the cache lacks are read while passes before it run. The call copies the data and does not
 * wait. Results stay the same, also if other data are fed then, and reads that fail are made again
 * by the pass that needs the rows. Nothing happens for other inputs, and before the session's first
 * pass. The arguments are those of weft_session_feed. Not collective. WEFT_E_ARG, WEFT_E_SHAPE,
 * WEFT_E_NOMEM. */
WEFT_API weft_status weft_session_feed_ahead(weft_session *session, int program, const char *name,
                                             const void *data, size_t bytes) WEFT_CHECKED;

/** Feed this process's rows of an input, [rows, ...], for programs in which each rank has samples
 * of its own. Rank 0's rows come first, then rank 1's; together they are the whole input. The
 * session moves them to the layout of the plan; rows that are in place already cost nothing.
 * Collective. WEFT_E_SHAPE if all rows together are too few or too many. */
WEFT_API weft_status weft_session_feed_rows(weft_session *session, int program, const char *name,
                                            const void *data, size_t bytes) WEFT_CHECKED;

/** The rows of an input that this rank should feed with weft_session_feed_rows: an equal share, in
 * the order of ranks. Ranks that hold the same rows, as under tensor parallelism, share them, so
 * that each row is fed once. In one process: all rows. Not collective.
 * @param out_first, out_rows  the first row and the number of rows; the last ranks may have fewer
 * @return WEFT_E_ARG if the tensor is not an input with rows */
WEFT_API weft_status weft_session_rows(const weft_session *session, int program, const char *name,
                                       int64_t *out_first, int64_t *out_rows) WEFT_CHECKED;

/** Forward and backward pass of one microbatch; without optimizer, forward only. Collective.
 *
 * *out_loss (may be NULL) is the microbatch's loss. Pipelines and micro-batch interleaving run all
 * microbatches of a step together: the loss is then NaN until the last one, and there the mean of
 * all.
 *
 * Errors: WEFT_E_NUMERIC if the loss is not finite; the message names the first cell that made such
 * a value. In mode MANUAL each rank has a loss of its own (in pipelines, the loss of its model
 * replica): the rank with the bad loss gets WEFT_E_NUMERIC, the others WEFT_E_PEER, and the world
 * can only be left. WEFT_E_ARG if all microbatches of the step are there already, or if the session
 * updates inside its backward pass (one microbatch, no clipping, no recovery, no keep_gradients):
 * use weft_session_step.
 *
 * A pass that fails ends the step, and so does an update that the norm forbids. The next pass is
 * then the first microbatch of a new step. */
WEFT_API weft_status weft_session_accumulate(weft_session *session, double *out_loss) WEFT_CHECKED;
/** Update the parameters from the accumulated gradients. Collective. *out_norm (may be NULL) is the
 * global gradient norm before clipping; NaN without clipping, which does not compute it.
 *
 * WEFT_E_CORRUPT if a mean of squared gradients of adam, adamw or lamb is no longer finite; the
 * message names the parameter, and some parameters have changed.
 *
 * Errors without an update: WEFT_E_NUMERIC if the norm is not finite, with the first parameter.
 * WEFT_E_MISMATCH in mode MANUAL if ranks have unlike norms. WEFT_E_ARG if microbatches are
 * missing, and for a learning rate that is not finite; after the latter a world can only be left.
 */
WEFT_API weft_status weft_session_update(weft_session *session, double learning_rate,
                                         double *out_norm) WEFT_CHECKED;
/** One weft_session_accumulate and one weft_session_update, for sessions with one microbatch.
 * Returns their errors. Collective. */
WEFT_API weft_status weft_session_step(weft_session *session, double learning_rate,
                                       double *out_loss) WEFT_CHECKED;

/** Forward pass of a program: an added one, or 0 in a session without optimizer. Collective.
 * *out_loss may be NULL. It discards accumulated gradients without an update: the next microbatch
 * is the first of a new step. */
WEFT_API weft_status weft_session_forward(weft_session *session, int program,
                                          double *out_loss) WEFT_CHECKED;

typedef enum weft_role {
    WEFT_ROLE_PARAM,
    WEFT_ROLE_STATE,
    WEFT_ROLE_OPTIMIZER,
    WEFT_ROLE_INPUT,
    WEFT_ROLE_OUTPUT
} weft_role;
/** A named tensor of a session. */
typedef struct weft_tensor_info {
    const char *name; /* borrowed from the session */
    weft_desc desc;
    weft_role role;
    int64_t bytes;
} weft_tensor_info;

/** The number of tensors of a program; a tensor by number, from 0; a tensor by name. Not
 * collective. */
WEFT_API int weft_session_tensors(const weft_session *session, int program);
WEFT_API weft_status weft_session_tensor(const weft_session *session, int program, int index,
                                         weft_tensor_info *out) WEFT_CHECKED;
WEFT_API weft_status weft_session_find(const weft_session *session, int program, const char *name,
                                       weft_tensor_info *out) WEFT_CHECKED;
/** Copy a whole tensor out of or into the session, row-major. Collective. `bytes` must be its size
 * (WEFT_E_SHAPE). Parameters, states and optimizer tensors may be read and written between steps.
 * Outputs are valid from the pass that makes them to the next pass of any program. */
WEFT_API weft_status weft_session_read(weft_session *session, int program, const char *name,
                                       void *data, size_t bytes) WEFT_CHECKED;
WEFT_API weft_status weft_session_write(weft_session *session, int program, const char *name,
                                        const void *data, size_t bytes) WEFT_CHECKED;
/** Copy rows of a tensor to this process: from row `first` on as many as `bytes` hold, which may be
 * none. Rows are indices of dimension 0. Each rank asks for its own rows, and no rank receives
 * others; so a rank reads the outputs of the rows that it fed (weft_session_rows), also where they
 * lie split or replicated on other ranks. `data` is [rows, ...], row-major. Collective, for one
 * tensor on all ranks. WEFT_E_SHAPE for rows that the tensor lacks or parts of a row; WEFT_E_ARG
 * for a tensor without dimensions. The same valid times as weft_session_read. */
WEFT_API weft_status weft_session_read_rows(weft_session *session, int program, const char *name,
                                            int64_t first, void *data, size_t bytes) WEFT_CHECKED;

/* ---- checkpoints ----
 *
 * weft_session_save writes the parameters, states and optimizer tensors of program 0 as the step
 * DIR/step-N of a run's directory, N being weft_session_step_number, in the format of `weft train`
 * (docs/reference/format-checkpoint.md). Names are those of the session. weft_session_load takes
 * the step on any plan and number of ranks, to the bit, and also steps of `weft train` with these
 * names. `weft checkpoint` verifies, compares and converts it.
 *
 * Each rank writes the pieces that it has, and no rank holds a whole tensor. Usually all ranks
 * write into the same files, which do not show how tensors are split. With `sliced`, each rank
 * writes files of its own, in DIR/rank_R/step-N, which say which regions they hold. The ranks then
 * need no common directory to save, but all files must be there to load.
 *
 * A step appears completely or not at all, and replaces a step of the same number. After a failure,
 * such as a full disk, the steps of before are intact and the session can continue. One program at
 * a time writes a directory. In mode MANUAL say first how ranks split tensors: weft_session_split.
 */

/** All ranks pass equal options. */
typedef struct weft_session_save_options {
    size_t struct_bytes;
    int64_t keep;     /* afterwards, only the newest `keep` steps stay; 0: all */
    int64_t position; /* the program's own place in its data, as a number of samples */
    bool sliced;      /* each rank writes files of its own; without effect in one process */
} weft_session_save_options;
WEFTI_ZERO_DEFAULTS(weft_session_save_options, weft_session_save_defaults)

/** In mode MANUAL: how ranks split tensors, for all later saves and loads of the session. Each
 * tensor that is saved must match an entry; several entries may split one along several dimensions.
 * An entry for a parameter also covers its optimizer tensors of the same shape. All ranks make the
 * same calls. Not collective.
 *
 * @param match      a pattern for names of tensors. * stands for any characters, ? for one, and
 *   [a-z] for one of these.
 * @param dimension  Each rank has an equal part along this dimension, from 0. With -1 each rank has
 *   the whole tensor, and earlier entries for it do not count.
 * @param count, stride  The parts lie on groups of `count` ranks that are `stride` apart, as in
 *   weft_ranks. Other groups have the same parts. 0, 0: all ranks are one group. In a pipeline only
 *   the ranks that have the tensor are counted.
 * @return WEFT_E_ARG in another mode, for bad arguments, and while a step is being saved;
 *   WEFT_E_NOT_FOUND if no tensor matches; WEFT_E_NOMEM. What does not fit a tensor is reported by
 *   the call that saves or loads */
WEFT_API weft_status weft_session_split(weft_session *session, const char *match, int dimension,
                                        int count, int stride) WEFT_CHECKED;

/** Save a step, between two steps. Collective.
 * @param dir      made if it does not exist; the same path on all ranks. Rank 0 gathers the tensors
 *   of ranks that see another directory there, unless `sliced`
 * @param options  NULL: all 0
 * @return WEFT_E_IO if the disk of some rank is full or fails; WEFT_E_ARG if another process writes
 *   to `dir`, or a step has begun; WEFT_E_NOT_FOUND in mode MANUAL if a rank sees another directory
 *   and not `sliced`; WEFT_E_MISMATCH if some ranks save `sliced`, and others not; WEFT_E_NOMEM.
 * The same on all ranks */
WEFT_API weft_status weft_session_save(weft_session *session, const char *dir,
                                       const weft_session_save_options *options) WEFT_CHECKED;
/** The same while the session goes on. The call returns when the step's files exist; a thread then
 * writes the tensors as they were at the call. An update waits for a tensor that is not written
 * yet. Until weft_session_save_wait, do not write at addresses of weft_session_local. Collective.
 * WEFT_E_ARG in a session with recovery, and while an earlier step is being saved. */
WEFT_API weft_status weft_session_save_start(weft_session *session, const char *dir,
                                             const weft_session_save_options *options) WEFT_CHECKED;
/** Whether this rank still writes its part (WEFT_PENDING), or not (WEFT_OK, also after a failure
 * and if no save was started). Not collective, does not block. */
WEFT_API weft_status weft_session_save_test(weft_session *session) WEFT_CHECKED;
/** Wait for all parts, and complete the step, which does not exist before. Collective. The errors
 * of weft_session_save; WEFT_OK if no save was started. */
WEFT_API weft_status weft_session_save_wait(weft_session *session) WEFT_CHECKED;

/** Load a step that weft_session_save, or `weft train`, has written, and set
 * weft_session_step_number. Collective. Each rank reads the ranges of the files that it needs; if
 * some rank does not see the files, rank 0 reads all and broadcasts.
 * @param dir           a run's directory, or one step's
 * @param step          its number; -1: the newest good one
 * @param out_position  weft_session_save_options.position; may be NULL
 * @return WEFT_E_NOT_FOUND without such a step; WEFT_E_SHAPE, naming tensors, if its tensors are
 *   not the session's: the session is unchanged then. WEFT_E_CORRUPT for damage, and WEFT_E_IO: in
 *   a world some tensors have changed. The same on all ranks */
WEFT_API weft_status weft_session_load(weft_session *session, const char *dir, int64_t step,
                                       int64_t *out_position) WEFT_CHECKED;

/** Save this process's slices of parameters, states and optimizer tensors, under their names, as a
 * .safetensors file, and load them, on the same number of ranks. weft_checkpoint_merge and
 * weft_checkpoint_split convert slices for another number. Call them between steps.
 *
 * Save replaces an existing file, completely or not at all. The file's metadata has `step`, the
 * number of updates, and, in a world, `rank`. Load accepts only a file with exactly these tensors
 * in these shapes; otherwise it changes nothing (WEFT_E_SHAPE, naming a tensor; WEFT_E_CORRUPT;
 * WEFT_E_NOT_FOUND; WEFT_E_IO). If a file is cut short while its tensors are read, some of them
 * have changed. WEFT_E_ARG for several devices in one process. Collective as weft_session_local is.
 */
WEFT_API weft_status weft_session_save_local(weft_session *session, const char *path) WEFT_CHECKED;
WEFT_API weft_status weft_session_load_local(weft_session *session, const char *path) WEFT_CHECKED;

/** Check that replicas of parameters are equal to the bit. For models that communicate by hand, and
 * for programs that write parameters in place: no other call detects a difference. Collective,
 * between steps. On all ranks, WEFT_E_MISMATCH names the first parameter that differs, and a rank;
 * the session can continue. */
WEFT_API weft_status weft_session_check_replicas(weft_session *session) WEFT_CHECKED;

/** The number of updates so far. Set it when continuing from a checkpoint. WEFT_E_ARG outside 0 to
 * 2^60. Not collective. */
WEFT_API int64_t weft_session_step_number(const weft_session *session);
WEFT_API weft_status weft_session_set_step(weft_session *session, int64_t step) WEFT_CHECKED;
/** Set the first global sample of the next microbatch, which fixes the random numbers (dropout) of
 * its samples. The number of samples is the size of dimension 0 that most inputs have; in a tie,
 * the smallest. The same bounds and errors as weft_session_set_step. */
WEFT_API weft_status weft_session_set_row(weft_session *session, int64_t global_row) WEFT_CHECKED;

/** Number of devices of the plan, 1 without a plan. */
WEFT_API int weft_session_devices(const weft_session *session);

/** Memory in bytes, each of the device that needs most; observed: among this process's devices. */
typedef struct weft_session_memory {
    int64_t predicted_peak_bytes; /* of both arenas together */
    int64_t observed_peak_bytes;  /* of both: up to the highest byte that any step has used */
    /* Memory of the host that the device's programs take themselves: graphs, partitions, routines
     * and kernels, as requested from the allocator, without memory of other libraries. */
    int64_t program_bytes;
    int64_t parameter_bytes, optimizer_bytes, transient_bytes;
    int64_t saved_bytes; /* values saved for backward passes, the most that exist at once */
    double forward_flops, backward_flops; /* of one microbatch, on all devices together */
    int64_t host_bytes, disk_bytes;       /* kept in the tiers below device memory */
    int64_t lent_bytes; /* of disk_bytes: read from files of a checkpoint, which are no copies */
    /* Rows of tables on a disk that have a cache (weft_plan_cache), on all devices of this process
     * together: read from the cache, read from the disk, and written to it. */
    int64_t cache_hits, cache_misses, cache_written;
    /* Look-ups in such tables, and those whose row the cache had. A row that a batch has twice is
     * looked up twice, and is read once. */
    int64_t cache_look_ups, cache_look_ups_hit;
    int64_t cache_ahead; /* of cache_hits: rows that were read ahead (weft_session_feed_ahead) */
} weft_session_memory;
WEFT_API weft_session_memory weft_session_memory_of(const weft_session *session);
/** The same two peaks for device `rank`. */
WEFT_API weft_status weft_session_device_memory(const weft_session *session, int rank,
                                                int64_t *out_predicted,
                                                int64_t *out_observed) WEFT_CHECKED;

/** Record every kernel and transfer into a Chrome JSON trace, until weft_session_trace(session,
 * NULL) or destroy. WEFT_E_IO, also from the call that ends it. Not collective. */
WEFT_API weft_status weft_session_trace(weft_session *session, const char *path) WEFT_CHECKED;
/** Put traces of one job together (docs/reference/format-trace.md). Clocks of unlike hosts are set
 * by the moments at which all ranks met.
 * @param files  [count] traces that weft has written
 * @param out    the file to write, completely or not at all; may be one of `files`
 * @return WEFT_E_CORRUPT for a file that is no such trace; WEFT_E_IO; WEFT_E_NOMEM */
WEFT_API weft_status weft_trace_merge(const char *const *files, int count,
                                      const char *out) WEFT_CHECKED;

/** How the session computes bf16 products: never AUTO. Store it in checkpoints. */
WEFT_API weft_bf16_compute weft_session_bf16(const weft_session *session);

#ifdef __cplusplus
}
#endif
#endif
