/* Pipeline schedules as data: in which order each stage works on which microbatch.
 *
 * A model is cut into stages * chunks virtual stages, passed by each microbatch forward and then
 * backward. Sources: gpipe, Huang et al., "GPipe", NeurIPS 2019; 1f1b, Narayanan et al.,
 * "PipeDream", SOSP 2019, with the flush of Narayanan et al., "Efficient large-scale language model
 * training on GPU clusters", SC 2021, section 2.2, whose interleaved form is there too;
 * zero_bubble, Qi et al., "Zero bubble pipeline parallelism", ICLR 2024: with one chunk ZB-H1, with
 * two ZB-V.
 *
 *     gpipe         all forwards, then all backwards: M microbatches live
 *     1f1b          stage s of S runs S - s forwards ahead: at most S - s live
 *     interleaved   chunk c of stage s is virtual stage c S + s; warm-up of S (v - 1) + 2 (S - s -
 * 1) zero_bubble   the backward is two tasks: gradients of activations (B), which other stages wait
 *                   for, and of weights (W), which fill what would be bubbles. With two chunks the
 *                   virtual stages run down the stages and back up, so that the loss is on stage 0
 *
 * Every schedule runs the microbatches of one chunk in ascending order in each kind of task, so
 * that sums of gradients have one order, whatever the schedule. */
#ifndef WEFTI_SCHEDULE_H
#define WEFTI_SCHEDULE_H

#include "base/status.h"
#include "weft/plan.h"

typedef enum wefti_stage_task_kind {
    WEFTI_TASK_FORWARD,
    WEFTI_TASK_BACKWARD, /* both gradients; of activations alone where the schedule has WEIGHT */
    WEFTI_TASK_WEIGHT,
} wefti_stage_task_kind;

typedef struct wefti_stage_task {
    wefti_stage_task_kind kind;
    int32_t chunk, micro;
} wefti_stage_task;

typedef struct wefti_schedule {
    weft_schedule kind;
    int32_t stages, micro, chunks;
    int32_t tasks;          /* of each stage */
    wefti_stage_task *task; /* [stages, tasks] */
} wefti_schedule;

/* Whether the numbers can be scheduled; the message says which can. One stage takes any number of
 * microbatches. */
weft_status wefti_schedule_check(weft_schedule kind, int32_t stages, int32_t micro,
                                 int32_t chunks) WEFT_CHECKED;
/* One block: wefti_free. */
weft_status wefti_schedule_create(weft_schedule kind, int32_t stages, int32_t micro, int32_t chunks,
                                  wefti_schedule **out) WEFT_CHECKED;
/* The tasks of a stage, in their order: schedule->tasks of them. */
const wefti_stage_task *wefti_schedule_of(const wefti_schedule *schedule, int32_t stage);
/* Whether gradients of weights are tasks of their own. */
bool wefti_schedule_splits(weft_schedule kind);
/* The virtual stage of a chunk of a stage, and back. */
int32_t wefti_schedule_virtual(weft_schedule kind, int32_t stages, int32_t stage, int32_t chunk);
void wefti_schedule_place(weft_schedule kind, int32_t stages, int32_t virtual_stage,
                          int32_t *out_stage, int32_t *out_chunk);

/* Durations of one chunk's tasks, and from the end of a task to where another stage has its result
 * (sending keeps nobody busy). Any unit. */
typedef struct wefti_schedule_times {
    double forward, backward, weight, send; /* a BACKWARD of both gradients: backward + weight */
} wefti_schedule_times;

typedef struct wefti_schedule_result {
    double makespan;
    double bubble; /* share of all stages' time in which they wait */
} wefti_schedule_result;

/* Run a schedule in virtual time. peak[s], of `stages` numbers (NULL: not wanted): how many
 * forwards of stage s are at most waiting for their last backward task, each of one chunk.
 * WEFT_E_BUG naming a stage and its task when the orders wait for each other. */
weft_status wefti_schedule_run(const wefti_schedule *schedule, const wefti_schedule_times *times,
                               int32_t *peak, wefti_schedule_result *out) WEFT_CHECKED;

#endif
