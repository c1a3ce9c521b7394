/* Sessions beyond the public calls, for training runs, checkpoints and tests. */
#ifndef WEFTI_SESSION_SESSION_H
#define WEFTI_SESSION_SESSION_H

#include "builder/spec.h"
#include "comm/world.h"
#include "exec/exec.h"
#include "exec/profile.h"
#include "weft/session.h"

/* What a session makes of its options, for reports that build programs without a session.
 *
 * take_plan checks the plan of the options and copies it to *out, for weft_plan_destroy, also on
 * failure. *microbatches: those of the options, or the plan's if these are 1; otherwise both must
 * agree. Forward passes have no optimizer, one microbatch, and no masters.
 *
 * choose_bf16 tells how bf16 products are computed. */
weft_status wefti_session_take_plan(const weft_session_options *options, int32_t *microbatches,
                                    weft_plan **out) WEFT_CHECKED;
wefti_bf16_compute wefti_session_choose_bf16(const weft_graph *graph, weft_bf16_compute wanted);

/* weft_session_create for jobs, which report splits of the plan that match nothing as notes
 * (wefti_plan_unmatched), with all other settings without effect. */
weft_status wefti_session_create(weft_graph *graph, const weft_session_options *options,
                                 weft_session **out) WEFT_CHECKED;

/* The program that a device runs for graph number `program`. Its tensors are numbered differently
 * from weft_session_tensor. Without a rank: the first device of this process. NULL: a device of
 * another process. */
const wefti_program *wefti_session_program(const weft_session *session, int program);
const wefti_program *wefti_session_program_of(const weft_session *session, int program,
                                              int32_t rank);
/* The parameter of optimizer tensor `index` of weft_session_tensor, and the number of the state in
 * the optimizer's rule. Other tensors: -1 and 0. */
void wefti_session_owner(const weft_session *session, int program, int index, int *out_param,
                         int *out_state);
/* The number for weft_session_tensor of tensor `local` of a device's program. */
int wefti_session_number(const weft_session *session, int program, int32_t rank, int32_t local);

/* profile.c: measures the kernels and transfers of program 0 from now on, on the devices of this
 * process; off: no longer, and the times stay. end_step: after each step that was measured. The
 * profile of a device; NULL: it was not measured. */
weft_status wefti_session_profile(weft_session *session, bool on) WEFT_CHECKED;
void wefti_session_profile_end_step(weft_session *session);
const wefti_profile *wefti_session_profile_of(const weft_session *session, int32_t rank);
/* Nanoseconds that the devices of this process have waited for transfers, on average. */
int64_t wefti_session_waited(const weft_session *session);
/* Adds to the trace, if there is one, what the run did from `begin_ns` to `end_ns`. Not while a
 * device runs. */
void wefti_session_trace_run(const weft_session *session, const char *what, int64_t begin_ns,
                             int64_t end_ns);
void wefti_session_trace_meeting(const weft_session *session, int64_t step, int64_t at_ns);
/* The highest byte that a device of this process has used; 0: it has not started. */
int64_t wefti_session_observed(const weft_session *session, int32_t rank);

/* A piece of a tensor: a region of it, contiguous, on one device. */
typedef struct wefti_session_piece {
    int32_t rank;
    wefti_region box;
    wefti_location at; /* in its device's memory */
    wefti_home home;   /* nowhere: of another process */
    bool counts;       /* the regions of counting pieces cover the tensor, each element once */
    bool term; /* does not count; its values are added to the tensor's (or the maximum is taken) */
} wefti_session_piece;

/* All pieces of tensor `index` of weft_session_tensor. `out` has room for one a device. Starts the
 * session if it has not started: maps the arenas and sets start values. */
weft_status wefti_session_pieces(weft_session *session, int program, int index,
                                 wefti_session_piece *out, int32_t *out_count) WEFT_CHECKED;
/* Starts a session that has not started, as any first call does. Its parameters and states have
 * their values from `values`, if that gives them any. Collective in a world. */
weft_status wefti_session_start_with(weft_session *session,
                                     const wefti_values *values) WEFT_CHECKED;
/* Supplies elements [first, first + count) for writing, in order, each once. `out` has the tensor's
 * dtype. */
typedef weft_status wefti_session_source(void *context, int64_t first, int64_t count, void *out);
/* Writes `count` elements of a tensor from element `first` on, on all devices that have them. In a
 * world: collective, and only rank 0's source is called. */
weft_status wefti_session_fill(weft_session *session, int program, int index, int64_t first,
                               int64_t count, wefti_session_source *source,
                               void *context) WEFT_CHECKED;
/* Not collective: writes the elements that this process has of elements [first, first + count). The
 * source is asked for runs that are contiguous in the whole tensor, in ascending order for each
 * piece. Pieces that files lend stay as they are. */
weft_status wefti_session_fill_own(weft_session *session, int program, int index, int64_t first,
                                   int64_t count, wefti_session_source *source,
                                   void *context) WEFT_CHECKED;
/* The same for pieces that the caller knows, of a whole tensor which only the caller may know. */
typedef struct wefti_session_pieces_of {
    const wefti_session_piece *pieces;
    int32_t count;
    const weft_desc *whole;
} wefti_session_pieces_of;
weft_status wefti_session_fill_pieces(weft_session *session, int program, int index,
                                      const wefti_session_pieces_of *to, int64_t first,
                                      int64_t count, wefti_session_source *source,
                                      void *context) WEFT_CHECKED;
/* In a world, collective: `count` elements from element `first` on to `out` of rank 0. They are
 * whole slices along the first dimension. */
weft_status wefti_session_collect(weft_session *session, int program, int index, int64_t first,
                                  int64_t count, void *out) WEFT_CHECKED;
/* Called before a step updates a tensor, with its number in program 0 of the rank. NULL: no call.
 */
void wefti_session_before_update(weft_session *session, wefti_before_update *call, void *context);
/* ---- recovery.c: steps that are given up, and made again ----
 *
 * With options.recovery, a step changes nothing that it began with until all devices have what they
 * update with. A call that fails before that leaves the session as it was after the step before.
 * docs/design/recovery.md has the protocol. */

/* Asked while a step runs, before each of its parts and waits, but not once the update has begun.
 * NULL: no call. */
void wefti_session_halt_when(weft_session *session, wefti_halted *call, void *context);

/* After a call has failed. Gives up the step in flight: its inputs are to be fed again. In a world
 * whose communicator is a new one, the devices move to it with all their memory. That is
 * collective, and all addresses from weft_session_local are void. The old communicator is broken,
 * and must live until the call returns; then the session does not use it. Complete gradients stay.
 * `newcomers`: some ranks are new processes. Meanwhile each of them creates its session, with the
 * same graphs, and calls wefti_session_arrive. A newcomer of another build, job or arithmetic fails
 * on all ranks. */
weft_status wefti_session_abandon(weft_session *session, bool newcomers) WEFT_CHECKED;
weft_status wefti_session_arrive(weft_session *session) WEFT_CHECKED;
/* After it, collective in a world: brings all ranks to `target` updates, which is a rank's own
 * number, or one more if that rank is ready. Complete gradients of later steps are dropped.
 * Newcomers only take part. */
weft_status wefti_session_advance(weft_session *session, int64_t target) WEFT_CHECKED;
/* give.c. Whether two ranks have the same regions of all parameters, states and optimizer
 * tensors. */
bool wefti_session_replicates(const weft_session *session, int32_t a, int32_t b);
/* Whether rank a has an up-to-date copy of all that rank b updates (options.buddy). */
bool wefti_session_keeps(const weft_session *session, int32_t a, int32_t b);
/* Collective in a world, on a session that has started: brings the copies that buddies keep up to
 * date, if they are not. The first step after a change does so too. */
weft_status wefti_session_copy(weft_session *session) WEFT_CHECKED;
/* After wefti_session_advance, collective in a world: newcomer r takes all these tensors and the
 * number of updates from the memory of source[r], which replicates or keeps them. Then ranks that
 * lack copies of their wards take them. source [devices]; -1: the rank has them. */
weft_status wefti_session_give(weft_session *session, int64_t target,
                               const int32_t *source) WEFT_CHECKED;
/* After both, collective in a world: gathers parameters of which ranks have updated only their own
 * pieces, because the update ended before they were gathered. */
weft_status wefti_session_gather_again(weft_session *session) WEFT_CHECKED;
/* recovery/regions.c: for worlds that change their size or plan. Collective over the world of `to`,
 * a new session of the same model, whose plan may differ. `from`: this rank's old session, whose
 * world may be broken; it is only read. NULL, or a session without the state after `target`
 * updates: this rank has nothing to give. All parameters, states and optimizer tensors of `to` come
 * from the memory of old sessions, and its number of updates is `target`. Both sessions hold their
 * memory until the caller destroys one. *out_whole false, on all ranks alike: some region is in no
 * rank's memory, and nothing was moved. */
weft_status wefti_session_move(weft_session *to, weft_session *from, int64_t target,
                               bool *out_whole) WEFT_CHECKED;
/* wefti_session_advance for it: among the `size` ranks of another world than that of `session`, by
 * their agreement. `session` NULL: this rank has no old session, and only takes part. */
weft_status wefti_session_advance_among(weft_session *session, wefti_agreement *agreement,
                                        int32_t size, int64_t target) WEFT_CHECKED;
/* Instead of all, collective in a world: start values, and no updates. For states that nobody has,
 * which are read from files then. */
weft_status wefti_session_begin_again(weft_session *session) WEFT_CHECKED;
/* The norm of the gradient of the last update, also of one that wefti_session_advance has made.
 * NaN: without clipping. */
double wefti_session_norm(const weft_session *session);

/* For each of the plan's fusions: the most tensors that it may join on a device. */
void wefti_session_fused(const weft_session *session, int32_t out[3]);
/* What the session was built from: the graph of program 0, the plan as given (NULL: none), the
 * optimizer, microbatches. Borrowed. */
typedef struct wefti_session_origin {
    weft_graph *graph;
    const weft_plan *plan;
    const wefti_optimizer_plan *optimizer;
    int32_t microbatches, devices, me; /* me: rank of this process's first device */
} wefti_session_origin;
int wefti_session_programs(const weft_session *session); /* how many: 1, and those added */
wefti_session_origin wefti_session_origin_of(const weft_session *session);
int wefti_session_threads(const weft_session *session); /* of all devices */

#endif
