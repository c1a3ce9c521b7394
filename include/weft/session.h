/* A session: a graph compiled for this machine, with its parameters and optimizer state, ready to
 * be stepped.
 *
 *     weft_session_options o = weft_session_defaults();
 *     weft_session *s;
 *     weft_session_create(graph, &o, &s);
 *     for (...) { weft_session_feed(s, "image", ...); weft_session_step(s, lr, &result); }
 *
 * All memory of a step is planned ahead in one arena; a step allocates nothing. A session is used
 * by one thread at a time; sessions are independent of each other. All calls return when their work
 * is done. Those with a `program` give WEFT_E_ARG for one that there is not, those with a `name`
 * WEFT_E_NOT_FOUND; what they write to is untouched when they fail.
 *
 * With a plan of several devices, each has a thread and an arena of its own. What is fed, read and
 * written is always the whole tensor; the session cuts and joins it.
 *
 * With a world of several processes each of them runs one device of the plan, and all of them make
 * the same calls in the same order: creating, adding, feeding, stepping, reading, writing are
 * collective, looking (tensors, memory, numbers) and weft_session_feed_local are not. Feeding and
 * writing take the same whole everywhere; reading, the loss and the gradient norm give it
 * everywhere. What a process has or wants only a part of goes through weft_session_feed_rows,
 * weft_session_local and weft_session_feed_local. A call that fails on one process
 * because of what it alone has or does makes all others fail with WEFT_E_PEER, naming it; after
 * that the world can only be left. But where one alone reads, writes or feeds rows with arguments
 * that are wrong, all of them fail alike, naming it, and can go on. */
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
    X(ADAFACTOR, "adafactor")

typedef enum weft_optimizer_kind {
#define WEFT_OPTIMIZER_ROW(name, text) WEFT_##name,
    WEFT_OPTIMIZER_LIST(WEFT_OPTIMIZER_ROW)
#undef WEFT_OPTIMIZER_ROW
        WEFT_OPTIMIZERS,
    WEFT_NO_OPTIMIZER = WEFT_OPTIMIZERS /* forward passes only */
} weft_optimizer_kind;

typedef struct weft_optimizer {
    weft_optimizer_kind kind;
    double beta1, beta2;
    double eps; /* adafactor: is added to squares of gradients */
    double momentum;
    double weight_decay; /* of parameters with two dimensions or more */
    bool decay_all;      /* of all parameters */
} weft_optimizer;

/** What a job file has for `kind` where it says nothing: the values of Kingma & Ba 2015 (Adam),
 * Loshchilov & Hutter 2019 (AdamW), You et al. 2020 (LAMB), Chen et al. 2023 (Lion), Shazeer &
 * Stern 2018 (Adafactor); momentum 0.9. */
WEFT_API weft_optimizer weft_optimizer_defaults(weft_optimizer_kind kind);

typedef enum weft_bf16_compute {
    WEFT_BF16_AUTO,   /* whichever is faster on this processor (of a world, rank 0's), by a short
                         measurement; f32 where a world's processors multiply bf16 differently */
    WEFT_BF16_AS_F32, /* bf16 storage, f32 products */
    WEFT_BF16_NATIVE  /* bf16 products, f32 accumulation */
} weft_bf16_compute;

typedef struct weft_session_options {
    weft_optimizer optimizer;
    double clip;          /* largest global gradient norm; 0: no clipping. In plans of mode MANUAL
                             all ranks must have gradients of one norm */
    int microbatches;     /* accumulated in one step; the graph has the size of one */
    bool keep_gradients;  /* readable as "grad:<parameter>" after weft_session_accumulate */
    bool recompute;       /* keep only the inputs of each cell for the backward pass */
    int threads;          /* of all devices together; 0: all cores this process may use, or, in a
                             world, its share of those of its host */
    int64_t memory_bytes; /* of one device: refuse programs that need more; 0: no limit */
    uint64_t seed;
    weft_bf16_compute bf16;
    /* How to split it over devices, copied. NULL: one device, or, in a world, one for each process,
     * which share the batch. */
    const weft_plan *plan;
    /* The processes to run on, borrowed: each is one of the plan's devices, and all of them make
     * the same calls in the same order. NULL: all devices are in this process. */
    weft_world *world;
} weft_session_options;

typedef struct weft_session weft_session;

/** AdamW (0.9, 0.95, 1e-8, decay 0.1), no clipping, one microbatch, all cores, seed 0. For another
 * optimizer set weft_optimizer_defaults of it. */
WEFT_API weft_session_options weft_session_defaults(void);

/** Compile `graph`. The session borrows it: destroy the graph after the session. NULL options:
 * defaults. Fails with the graph's first error, if it has one; WEFT_E_ARG for options or a plan
 * that make no sense; WEFT_E_LAYOUT, WEFT_E_SHAPE and others for a plan that does not fit the
 * model; WEFT_E_NOMEM, naming the largest tensors and the step of the program in which they are
 * there at once, for what exceeds memory_bytes; WEFT_E_MISMATCH when the processes of the world do
 * not create the same session. */
WEFT_API weft_status weft_session_create(weft_graph *graph, const weft_session_options *options,
                                         weft_session **out) WEFT_CHECKED;
/** Not collective. NULL is legal. */
WEFT_API void weft_session_destroy(weft_session *session);

/** Before the first step: compile a further graph (or the first one again), forward only, that
 * shares parameters and states by name (evaluation beside training), borrowed too. Its number, from
 * 1, goes to *out_program; number 0 is the graph of weft_session_create. */
WEFT_API weft_status weft_session_add(weft_session *session, weft_graph *graph,
                                      int *out_program) WEFT_CHECKED;

/** Copy `bytes` of data, row-major, into the input `name` of a program (0: the first), again
 * instead of what was fed before. Inputs keep what they were fed only until the next pass, of this
 * or another program: every input is to be fed before each pass, which else gives WEFT_E_ARG,
 * naming it.
 * WEFT_E_SHAPE when the size differs. */
WEFT_API weft_status weft_session_feed(weft_session *session, int program, const char *name,
                                       const void *data, size_t bytes) WEFT_CHECKED;

/** The box of a tensor that lies on this process's device, contiguous, at `data`: nothing (data
 * NULL, bytes 0) where the device has no part. */
typedef struct weft_session_part {
    int64_t begin[WEFT_MAX_RANK], size[WEFT_MAX_RANK];
    int64_t bytes;
    void *data;
} weft_session_part;
/** For programs whose arrays are cut already: where this process's part is, to be read and written
 * in place. Inputs are the caller's, and count as fed, until the pass that reads them begins and
 * after it has ended (passes of other programs overwrite them); parameters, states and optimizer
 * tensors between steps (replicas must stay equal; ask again before each time they are written);
 * outputs after the pass that makes them. The address stays the same; in a pipeline, and with
 * copies, each microbatch has inputs of its own, and it is asked for those of the coming one.
 * WEFT_E_ARG for several devices in one process. Collective when it is the session's first call
 * after it was created. */
WEFT_API weft_status weft_session_local(weft_session *session, int program, const char *name,
                                        weft_session_part *out) WEFT_CHECKED;
/** Copy this process's part of an input, as weft_session_local describes it. */
WEFT_API weft_status weft_session_feed_local(weft_session *session, int program, const char *name,
                                             const void *data, size_t bytes) WEFT_CHECKED;

/** For programs whose ranks have samples of their own: `data` are this process's rows of an input,
 * [rows, ...]; rank 0's are the first, then come those of rank 1, and all together are the input.
 * They are brought to where the plan wants them, which costs nothing where they are there already.
 * Collective. WEFT_E_SHAPE when the rows of all are too few or too many. */
WEFT_API weft_status weft_session_feed_rows(weft_session *session, int program, const char *name,
                                            const void *data, size_t bytes) WEFT_CHECKED;

/** Forward and backward of one microbatch. *out_loss (may be NULL) is its loss; in a pipeline,
 * or with copies, which run all microbatches of a step together, it is NaN until the last one, then
 * the mean of all. Without optimizer: forward only. WEFT_E_NUMERIC when the loss is not finite; the
 * message names the first cell that made such a value. (In plans of mode MANUAL each rank has a
 * loss of its own, in pipelines that of the rank of its place in the stage that makes it; all but
 * the rank that made it fail with WEFT_E_PEER, and the world can only be left.) WEFT_E_ARG when all
 * microbatches are there already, or for a session that updates inside of its backward pass (one
 * microbatch, no clipping, no keep_gradients): use weft_session_step. A pass that fails ends the
 * step: the next one is the first microbatch of a new one, and so after an update that its norm
 * forbids. */
WEFT_API weft_status weft_session_accumulate(weft_session *session, double *out_loss) WEFT_CHECKED;
/** Update the parameters from what was accumulated. *out_norm (may be NULL): the global gradient
 * norm before clipping, or NaN when clipping is off (it is not computed then). WEFT_E_NUMERIC when
 * the norm is not finite, and WEFT_E_MISMATCH when ranks of a plan of mode MANUAL, where each has
 * one of its own, have unlike norms: nothing was updated. WEFT_E_ARG when microbatches are missing,
 * and for a learning rate that is no finite number, after which a world can only be left. */
WEFT_API weft_status weft_session_update(weft_session *session, double learning_rate,
                                         double *out_norm) WEFT_CHECKED;
/** One accumulate and one update, for sessions with one microbatch; fails as they do. */
WEFT_API weft_status weft_session_step(weft_session *session, double learning_rate,
                                       double *out_loss) WEFT_CHECKED;

/** Forward pass of program `program`: one that was added, or 0 in a session without optimizer.
 * *out_loss may be NULL. It ends a step whose update is still to come: the next microbatch is the
 * first of a new one. */
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

/** How many a program has, and which: by number from 0, by name. */
WEFT_API int weft_session_tensors(const weft_session *session, int program);
WEFT_API weft_status weft_session_tensor(const weft_session *session, int program, int index,
                                         weft_tensor_info *out) WEFT_CHECKED;
WEFT_API weft_status weft_session_find(const weft_session *session, int program, const char *name,
                                       weft_tensor_info *out) WEFT_CHECKED;
/** Copy a tensor out of or into the session, row-major. `bytes` must be its size (WEFT_E_SHAPE).
 * Parameters, states and optimizer tensors can be read and written at any time between steps;
 * outputs are valid from the pass that makes them to the next one, of this or another program. */
WEFT_API weft_status weft_session_read(weft_session *session, int program, const char *name,
                                       void *data, size_t bytes) WEFT_CHECKED;
WEFT_API weft_status weft_session_write(weft_session *session, int program, const char *name,
                                        const void *data, size_t bytes) WEFT_CHECKED;

/** Write what lies on this process's device of parameters, states and optimizer tensors, under
 * their names, into a .safetensors file, whole or not at all, in place of one that is there; its
 * metadata has the number of updates, `step`, and, in a world, the `rank`. And back: the file must
 * hold exactly these tensors in these shapes, or nothing changes (WEFT_E_SHAPE, naming one;
 * WEFT_E_CORRUPT; WEFT_E_NOT_FOUND; WEFT_E_IO; one that is cut while its tensors are read leaves
 * some of them). For models that communicate by hand, whose ranks
 * have slices: weft_checkpoint_merge and weft_checkpoint_split make them those of another number of
 * ranks. Between steps; WEFT_E_ARG for several devices in one process; collective as
 * weft_session_local is. */
WEFT_API weft_status weft_session_save_local(weft_session *session, const char *path) WEFT_CHECKED;
WEFT_API weft_status weft_session_load_local(weft_session *session, const char *path) WEFT_CHECKED;

/** Whether all devices that hold the same elements of a parameter hold the same bytes of them.
 * WEFT_E_MISMATCH names the first parameter that they do not, and a rank; on all ranks, and the
 * session can go on. For models that communicate by hand, and whoever writes parameters in place:
 * nothing else would tell. Between steps; collective. */
WEFT_API weft_status weft_session_check_replicas(weft_session *session) WEFT_CHECKED;

/** The number of updates made so far; set it when continuing from a checkpoint. WEFT_E_ARG for what
 * is not from 0 to 2^60; not collective. */
WEFT_API int64_t weft_session_step_number(const weft_session *session);
WEFT_API weft_status weft_session_set_step(weft_session *session, int64_t step) WEFT_CHECKED;
/** First global sample of the coming microbatch: fixes the random numbers (dropout) of its samples,
 * which are the rows (elements of dimension 0) of most of the graph's inputs, in a tie the
 * fewest. The same bounds. */
WEFT_API weft_status weft_session_set_row(weft_session *session, int64_t global_row) WEFT_CHECKED;

/** Of the plan, 1 without one. */
WEFT_API int weft_session_devices(const weft_session *session);

/** Bytes on the device that has most of each; observed: of those in this process. */
typedef struct weft_session_memory {
    int64_t predicted_peak_bytes; /* the arena */
    int64_t observed_peak_bytes;  /* the highest byte that any step has used */
    int64_t parameter_bytes, optimizer_bytes, transient_bytes, saved_bytes;
    double forward_flops, backward_flops; /* of one microbatch, on all devices together */
} weft_session_memory;
WEFT_API weft_session_memory weft_session_memory_of(const weft_session *session);
/** The same two peaks for one device. */
WEFT_API weft_status weft_session_device_memory(const weft_session *session, int rank,
                                                int64_t *out_predicted,
                                                int64_t *out_observed) WEFT_CHECKED;

/** Record what runs into a Chrome JSON trace, from now until weft_session_trace(session, NULL) or
 * destroy. WEFT_E_IO, also from the call that ends it. Not collective. */
WEFT_API weft_status weft_session_trace(weft_session *session, const char *path) WEFT_CHECKED;

/** How the session computes bf16 products: never AUTO. For checkpoints. */
WEFT_API weft_bf16_compute weft_session_bf16(const weft_session *session);

#ifdef __cplusplus
}
#endif
#endif
