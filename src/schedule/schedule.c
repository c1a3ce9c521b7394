/* The orders of the pipeline schedules. See schedule/schedule.h. */
#include "schedule/schedule.h"

#include "base/memory.h"

enum { TASKS_MAX = 1 << 26 }; /* of all stages: about a gigabyte */

bool wefti_schedule_splits(weft_schedule kind) {
    return kind == WEFT_PIPELINE_ZERO_BUBBLE;
}

int32_t wefti_schedule_virtual(weft_schedule kind, int32_t stages, int32_t stage, int32_t chunk) {
    bool up = kind == WEFT_PIPELINE_ZERO_BUBBLE && chunk == 1;
    return up ? 2 * stages - 1 - stage : chunk * stages + stage;
}

void wefti_schedule_place(weft_schedule kind, int32_t stages, int32_t virtual_stage,
                          int32_t *out_stage, int32_t *out_chunk) {
    int32_t chunk = virtual_stage / stages, stage = virtual_stage % stages;
    bool up = kind == WEFT_PIPELINE_ZERO_BUBBLE && chunk == 1;
    *out_stage = up ? stages - 1 - stage : stage;
    *out_chunk = chunk;
}

const wefti_stage_task *wefti_schedule_of(const wefti_schedule *schedule, int32_t stage) {
    return schedule->task + (int64_t)stage * schedule->tasks;
}

static weft_status check_chunks(weft_schedule kind, int32_t chunks) {
    switch (kind) {
    case WEFT_PIPELINE_INTERLEAVED:
        WEFT_REQUIRE(chunks >= 2, WEFT_E_ARG,
                     "pipeline.schedule interleaved needs pipeline.virtual_stages of at least 2; "
                     "with 1 it is 1f1b");
        return WEFT_OK;
    case WEFT_PIPELINE_ZERO_BUBBLE:
        WEFT_REQUIRE(chunks <= 2, WEFT_E_ARG,
                     "pipeline.virtual_stages = %d: the zero_bubble schedule has 1, or 2 (down the "
                     "stages and back up)",
                     chunks);
        return WEFT_OK;
    case WEFT_PIPELINE_GPIPE:
    case WEFT_PIPELINE_1F1B:
        WEFT_REQUIRE(chunks == 1, WEFT_E_ARG,
                     "pipeline.virtual_stages = %d: the %s schedule has 1; interleaved and "
                     "zero_bubble have more",
                     chunks, kind == WEFT_PIPELINE_GPIPE ? "gpipe" : "1f1b");
        return WEFT_OK;
    case WEFT_PIPELINE_SCHEDULES:
        break;
    }
    WEFT_FAIL(WEFT_E_ARG,
              "pipeline.schedule is %d; known are gpipe, 1f1b, interleaved, zero_bubble",
              (int)kind);
}

weft_status wefti_schedule_check(weft_schedule kind, int32_t stages, int32_t micro,
                                 int32_t chunks) {
    WEFT_REQUIRE(stages >= 1 && micro >= 1 && chunks >= 1, WEFT_E_ARG,
                 "pipeline.stages = %d, microbatches = %d, virtual_stages = %d; each is at least 1",
                 stages, micro, chunks);
    if (stages == 1) {
        WEFT_REQUIRE(chunks == 1, WEFT_E_ARG,
                     "pipeline.virtual_stages = %d needs at least 2 stages", chunks);
        return WEFT_OK;
    }
    WEFT_TRY(check_chunks(kind, chunks));
    WEFT_REQUIRE(
        micro >= stages, WEFT_E_ARG,
        "pipeline.microbatches = %d must be at least pipeline.stages = %d: with fewer some "
        "stage always waits",
        micro, stages);
    WEFT_REQUIRE(kind != WEFT_PIPELINE_INTERLEAVED || micro % stages == 0, WEFT_E_ARG,
                 "pipeline.microbatches = %d: the interleaved schedule needs a multiple of "
                 "pipeline.stages = %d",
                 micro, stages);
    return WEFT_OK;
}

/* ---- one stage's order ---- */

enum { CHUNKS = 2 }; /* of the schedules that count per chunk */

/* An order being written. next: the next microbatch of each kind and chunk. */
typedef struct schedule_writer {
    wefti_stage_task *at;
    int32_t micro; /* tasks of later microbatches are left out */
    int32_t next[3][CHUNKS];
} schedule_writer;

static void put(schedule_writer *w, wefti_stage_task_kind kind, int32_t chunk) {
    int32_t micro = w->next[kind][chunk]++;
    if (micro < w->micro) *w->at++ = (wefti_stage_task){kind, chunk, micro};
}

static void order_gpipe(schedule_writer *w) {
    for (int32_t i = 0; i < w->micro; i++) put(w, WEFTI_TASK_FORWARD, 0);
    for (int32_t i = 0; i < w->micro; i++) put(w, WEFTI_TASK_BACKWARD, 0);
}

static void order_1f1b(schedule_writer *w, int32_t ahead) {
    for (int32_t i = 0; i < ahead; i++) put(w, WEFTI_TASK_FORWARD, 0);
    for (int32_t i = 0; i < w->micro; i++) {
        put(w, WEFTI_TASK_BACKWARD, 0);
        put(w, WEFTI_TASK_FORWARD, 0); /* has no effect when all forwards are done */
    }
}

/* 1F1B in which the weight task (W) of stage s follows its backward task (B) s microbatches later.
 * S - s forwards wait for their B, and s wait for their W. So S microbatches live on each stage, as
 * on 1F1B's first stage. */
static void order_zero_bubble_h1(schedule_writer *w, int32_t ahead, int32_t behind) {
    for (int32_t i = 0; i < ahead; i++) put(w, WEFTI_TASK_FORWARD, 0);
    for (int32_t i = 0; i < w->micro; i++) {
        put(w, WEFTI_TASK_BACKWARD, 0);
        if (i >= behind) put(w, WEFTI_TASK_WEIGHT, 0);
        put(w, WEFTI_TASK_FORWARD, 0);
    }
    for (int32_t i = 0; i < behind; i++) put(w, WEFTI_TASK_WEIGHT, 0);
}

/* Task number k: in groups of `stages` microbatches, each chunk in turn; backward with the chunks
 * in reverse. */
static wefti_stage_task interleaved_task(wefti_stage_task_kind kind, int32_t k, int32_t stages,
                                         int32_t chunks) {
    int32_t group = k / (stages * chunks), chunk = k % (stages * chunks) / stages;
    if (kind == WEFTI_TASK_BACKWARD) chunk = chunks - 1 - chunk;
    return (wefti_stage_task){kind, chunk, group * stages + k % stages};
}

static void order_interleaved(wefti_stage_task *at, int32_t stages, int32_t micro, int32_t chunks,
                              int32_t stage) {
    int32_t all = micro * chunks, ahead = stages * (chunks - 1) + 2 * (stages - stage - 1);
    int32_t forward = 0, backward = 0;
    if (ahead > all) ahead = all;
    while (forward < ahead) *at++ = interleaved_task(WEFTI_TASK_FORWARD, forward++, stages, chunks);
    while (backward < all) {
        if (forward < all) *at++ = interleaved_task(WEFTI_TASK_FORWARD, forward++, stages, chunks);
        *at++ = interleaved_task(WEFTI_TASK_BACKWARD, backward++, stages, chunks);
    }
}

static void put_backward(schedule_writer *w, int32_t chunk) {
    put(w, WEFTI_TASK_BACKWARD, chunk);
    put(w, WEFTI_TASK_WEIGHT, chunk);
}

/* ZB-V, designed for equal durations: 2 S chunks live on each stage, as many as on 1F1B's first
 * stage. Fewer than 2 S - 1 microbatches use the order for 2 S - 1, without the missing ones. */
static void order_zero_bubble_v(schedule_writer *w, int32_t stages, int32_t stage) {
    int32_t from_end = stages - stage;
    int32_t micro = w->micro > 2 * stages - 1 ? w->micro : 2 * stages - 1;
    /* Until the first microbatch returns from the last stage; then both chunks in turn. */
    for (int32_t i = 0; i < 2 * from_end - 1; i++) put(w, WEFTI_TASK_FORWARD, 0);
    for (int32_t i = 0; i < stage; i++) {
        put(w, WEFTI_TASK_FORWARD, 1);
        put(w, WEFTI_TASK_FORWARD, 0);
    }
    /* The loss follows chunk 1, so its backward tasks come first. */
    for (int32_t i = 0; i < from_end; i++) {
        put(w, WEFTI_TASK_FORWARD, 1);
        put_backward(w, 1);
    }
    while (w->next[WEFTI_TASK_FORWARD][1] < micro) {
        if (w->next[WEFTI_TASK_FORWARD][0] < micro) put(w, WEFTI_TASK_FORWARD, 0);
        put_backward(w, 0);
        put(w, WEFTI_TASK_FORWARD, 1);
        put_backward(w, 1);
    }
    /* The rest: first the tasks for which other stages wait, last the weights. */
    for (int32_t i = 0; i < stage; i++) {
        put(w, WEFTI_TASK_BACKWARD, 0);
        put(w, WEFTI_TASK_BACKWARD, 1);
    }
    for (int32_t i = 0; i < from_end; i++) put_backward(w, 0);
    for (int32_t i = 0; i < stage; i++) put(w, WEFTI_TASK_WEIGHT, 1);
    for (int32_t i = 0; i < stage; i++) put(w, WEFTI_TASK_WEIGHT, 0);
}

static void order(const wefti_schedule *s, int32_t stage, wefti_stage_task *at) {
    schedule_writer w = {.at = at, .micro = s->micro};
    int32_t from_end = s->stages - stage;
    switch (s->kind) {
    case WEFT_PIPELINE_GPIPE:
        if (s->stages == 1)
            order_1f1b(&w, 1);
        else
            order_gpipe(&w);
        return;
    case WEFT_PIPELINE_INTERLEAVED:
        if (s->stages == 1)
            order_1f1b(&w, 1);
        else
            order_interleaved(at, s->stages, s->micro, s->chunks, stage);
        return;
    case WEFT_PIPELINE_ZERO_BUBBLE:
        if (s->chunks == 1)
            order_zero_bubble_h1(&w, from_end, stage);
        else
            order_zero_bubble_v(&w, s->stages, stage);
        return;
    case WEFT_PIPELINE_1F1B:
    case WEFT_PIPELINE_SCHEDULES:
        break;
    }
    order_1f1b(&w, from_end);
}

weft_status wefti_schedule_create(weft_schedule kind, int32_t stages, int32_t micro, int32_t chunks,
                                  wefti_schedule **out) {
    WEFT_TRY(wefti_schedule_check(kind, stages, micro, chunks));
    int64_t each = wefti_schedule_splits(kind) ? 3 : 2, tasks, all;
    bool large = wefti_mul_overflows(each * chunks, micro, &tasks) ||
                 wefti_mul_overflows(tasks, stages, &all) || all > TASKS_MAX;
    WEFT_REQUIRE(!large, WEFT_E_ARG,
                 "a pipeline of %d stages, %d microbatches and %d virtual stages has more than %d "
                 "tasks",
                 stages, micro, chunks, TASKS_MAX);
    wefti_schedule *s = wefti_calloc(1, sizeof *s + (size_t)all * sizeof *s->task);
    WEFT_REQUIRE(s, WEFT_E_NOMEM, "no memory for a schedule of %lld tasks", (long long)all);
    *s = (wefti_schedule){kind, stages, micro, chunks, (int32_t)tasks, (wefti_stage_task *)(s + 1)};
    for (int32_t stage = 0; stage < stages; stage++)
        order(s, stage, s->task + (int64_t)stage * tasks);
    *out = s;
    return WEFT_OK;
}
