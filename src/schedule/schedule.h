/* Pipeline schedules as data: the order in which each stage works on the microbatches.
 *
 * A model is divided into stages * chunks virtual stages. Each microbatch passes them forward and
 * then backward. M is the number of microbatches, S of stages, v of chunks per stage.
 *
 *     gpipe         all forwards, then all backwards: M microbatches live
 *     1f1b          stage s of S runs S - s forwards ahead: at most S - s live
 *     interleaved   chunk c of stage s is virtual stage c S + s;
 *                   warm-up of S (v - 1) + 2 (S - s - 1)
 *     zero_bubble   the backward is two tasks: gradients of activations (B), for
 *                   which other stages wait, and of weights (W), which fill
 *                   bubbles. With two chunks the virtual stages run down the
 *                   stages and back up, so that the loss is on stage 0
 *
 * In each kind of task, every schedule runs the microbatches of one chunk in ascending order. So
 * sums of gradients have the same order in every schedule. Sources:
 *
 * - gpipe: Huang et al., "GPipe", NeurIPS 2019.
 * - 1f1b: Narayanan et al., "PipeDream", SOSP 2019. The flush and the interleaved form: Narayanan
 *   et al., "Efficient large-scale language model training on GPU clusters", SC 2021, section 2.2.
 * - zero_bubble: Qi et al., "Zero bubble pipeline parallelism", ICLR 2024; ZB-H1 with one chunk,
 *   ZB-V with two. */
#ifndef WEFTI_SCHEDULE_H
#define WEFTI_SCHEDULE_H

#include "base/status.h"
#include "weft/plan.h"

typedef enum wefti_stage_task_kind {
    WEFTI_TASK_FORWARD,
    WEFTI_TASK_BACKWARD, /* both gradients; only of activations if the schedule has WEIGHT tasks */
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

/* Checks whether a schedule exists for the numbers; if not, the message says which numbers are
 * possible. One stage takes any number of microbatches. */
weft_status wefti_schedule_check(weft_schedule kind, int32_t stages, int32_t micro,
                                 int32_t chunks) WEFT_CHECKED;
/* Creates a schedule in one block; wefti_free it. */
weft_status wefti_schedule_create(weft_schedule kind, int32_t stages, int32_t micro, int32_t chunks,
                                  wefti_schedule **out) WEFT_CHECKED;
/* The tasks of a stage, in their order; schedule->tasks entries. */
const wefti_stage_task *wefti_schedule_of(const wefti_schedule *schedule, int32_t stage);
/* Whether gradients of weights are separate tasks. */
bool wefti_schedule_splits(weft_schedule kind);
/* The virtual stage of a chunk of a stage, and the reverse. */
int32_t wefti_schedule_virtual(weft_schedule kind, int32_t stages, int32_t stage, int32_t chunk);
void wefti_schedule_place(weft_schedule kind, int32_t stages, int32_t virtual_stage,
                          int32_t *out_stage, int32_t *out_chunk);

/* ---- periods (period.c) ---- */

/* An order of many microbatches is an order of fewer, with a part repeated: the period. Returns its
 * length in microbatches, for one stage. It is at least `least`, and at least the number of
 * microbatches that live on the stage. Periods of stages divide a common number that is not much
 * larger, so all stages repeat together soon. 0: the order has no period, as in gpipe. */
int32_t wefti_schedule_period(weft_schedule kind, int32_t stages, int32_t stage, int32_t chunks,
                              int32_t least);
/* The number of microbatches of a shorter schedule: `micro` less a multiple of the period. It
 * leaves room for two periods on the stage behind the first `from` microbatches. `micro` itself if
 * no schedule is shorter. */
int32_t wefti_schedule_shorter(weft_schedule kind, int32_t stages, int32_t stage, int32_t micro,
                               int32_t chunks, int32_t period, int32_t from);
/* Finds the first part of a stage's order that the tasks behind it repeat, `period` microbatches
 * later: tasks [*out_first, + *out_count), all of microbatch `from` or later. The schedule of more
 * microbatches by n periods has this part n times more, and the tasks behind it n periods later.
 * The last microbatch's forward tasks lie behind both parts. */
bool wefti_schedule_repeats(const wefti_schedule *schedule, int32_t stage, int32_t period,
                            int32_t from, int32_t *out_first, int32_t *out_count);

#endif
