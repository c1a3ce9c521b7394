/* Runs a schedule in virtual time: finds the start of each task from the orders and the
 * dependencies. */
#ifndef WEFT_TESTS_SCHEDULE_RUN_H
#define WEFT_TESTS_SCHEDULE_RUN_H

#include "base/memory.h"
#include "schedule/schedule.h"

/* Durations of one chunk's tasks, in any unit. `send`: from the end of a task until another stage
 * has its result; no stage is busy meanwhile. */
typedef struct schedule_times {
    double forward, backward, weight, send; /* a BACKWARD of both gradients: backward + weight */
} schedule_times;

typedef struct schedule_result {
    double makespan;
    double bubble; /* the part of all stages' time in which they wait */
} schedule_result;

typedef struct schedule_run_item {
    const wefti_schedule *schedule;
    const schedule_times *times;
    double *done; /* [3, virtual stages, micro]: end of each task; negative: not run */
    double *free; /* of each stage: end of its last task */
    int32_t *at;  /* of each stage: its next task */
    int32_t *live, *peak;
    double busy;
} schedule_run_item;

static double *done_at(const schedule_run_item *r, wefti_stage_task_kind kind, int32_t stage,
                       int32_t micro) {
    int64_t virtual_stages = (int64_t)r->schedule->stages * r->schedule->chunks;
    return &r->done[((int64_t)kind * virtual_stages + stage) * r->schedule->micro + micro];
}

/* Raises `begin` to the time at which `stage` has the result of a task; false: the task has not run
 * yet. */
static bool wait_for(const schedule_run_item *r, wefti_stage_task_kind kind, int32_t virtual_stage,
                     int32_t micro, int32_t stage, double *begin) {
    const wefti_schedule *s = r->schedule;
    int32_t from, chunk;
    double end = *done_at(r, kind, virtual_stage, micro);
    if (end < 0) return false;
    wefti_schedule_place(s->kind, s->stages, virtual_stage, &from, &chunk);
    if (from != stage) end += r->times->send;
    if (end > *begin) *begin = end;
    return true;
}

/* Runs the stage's next task; false if it must still wait. */
static bool advance(schedule_run_item *r, int32_t stage) {
    const wefti_schedule *s = r->schedule;
    const wefti_stage_task *task = &wefti_schedule_of(s, stage)[r->at[stage]];
    int32_t v = wefti_schedule_virtual(s->kind, s->stages, stage, task->chunk);
    int32_t last = s->stages * s->chunks - 1, micro = task->micro;
    double begin = r->free[stage], length = 0;
    bool split = wefti_schedule_splits(s->kind);
    switch (task->kind) {
    case WEFTI_TASK_FORWARD:
        if (v > 0 && !wait_for(r, WEFTI_TASK_FORWARD, v - 1, micro, stage, &begin)) return false;
        length = r->times->forward;
        break;
    case WEFTI_TASK_BACKWARD:
        if (!wait_for(r, WEFTI_TASK_FORWARD, v, micro, stage, &begin)) return false;
        if (v < last && !wait_for(r, WEFTI_TASK_BACKWARD, v + 1, micro, stage, &begin))
            return false;
        length = r->times->backward + (split ? 0 : r->times->weight);
        break;
    case WEFTI_TASK_WEIGHT:
        if (!wait_for(r, WEFTI_TASK_BACKWARD, v, micro, stage, &begin)) return false;
        length = r->times->weight;
        break;
    }
    r->live[stage] += task->kind == WEFTI_TASK_FORWARD;
    if (r->live[stage] > r->peak[stage]) r->peak[stage] = r->live[stage];
    r->live[stage] -= task->kind == (split ? WEFTI_TASK_WEIGHT : WEFTI_TASK_BACKWARD);
    *done_at(r, task->kind, v, micro) = r->free[stage] = begin + length;
    r->busy += length;
    r->at[stage]++;
    return true;
}

static weft_status run_all(schedule_run_item *r) {
    static const char kinds[] = "FBW";
    const wefti_schedule *s = r->schedule;
    int64_t left = (int64_t)s->stages * s->tasks;
    while (left > 0) {
        int64_t before = left;
        for (int32_t stage = 0; stage < s->stages; stage++)
            while (r->at[stage] < s->tasks && advance(r, stage)) left--;
        if (left < before) continue;
        int32_t stage = 0; /* some stage has tasks left */
        while (r->at[stage] == s->tasks) stage++;
        const wefti_stage_task *task = &wefti_schedule_of(s, stage)[r->at[stage]];
        WEFT_FAIL(WEFT_E_BUG,
                  "the schedule stands still: stage %d waits for ever before task %d, %c of "
                  "microbatch %d, chunk %d",
                  stage, r->at[stage], kinds[task->kind], task->micro, task->chunk);
    }
    return WEFT_OK;
}

/* Runs a schedule in virtual time. peak[s], of `stages` numbers (NULL: not wanted): the largest
 * number of forwards of stage s, each of one chunk, that wait for their last backward task. If the
 * orders wait for each other, WEFT_E_BUG names a stage and its task. */
static weft_status run_schedule(const wefti_schedule *schedule, const schedule_times *times,
                                int32_t *peak, schedule_result *out) {
    size_t stages = (size_t)schedule->stages;
    size_t tasks = 3 * stages * (size_t)schedule->chunks * (size_t)schedule->micro;
    size_t bytes = (tasks + stages) * sizeof(double) + 3 * stages * sizeof(int32_t);
    double *block = wefti_calloc(1, bytes);
    WEFT_REQUIRE(block, WEFT_E_NOMEM, "no memory to run a schedule of %zu tasks", tasks);
    int32_t *counts = (int32_t *)(void *)(block + tasks + stages);
    schedule_run_item r = {
        schedule, times, block, block + tasks, counts, counts + stages, counts + 2 * stages, 0};
    for (size_t i = 0; i < tasks; i++) r.done[i] = -1;
    weft_status status = run_all(&r);
    double makespan = 0;
    for (size_t s = 0; s < stages; s++) {
        if (r.free[s] > makespan) makespan = r.free[s];
        if (peak && status >= 0) peak[s] = r.peak[s];
    }
    wefti_free(block);
    WEFT_TRY(status);
    double all = makespan * (double)stages;
    *out = (schedule_result){makespan, all > 0 ? 1 - r.busy / all : 0};
    return WEFT_OK;
}

#endif
