/* Where the orders of schedules repeat. See schedule/schedule.h. */
#include "schedule/schedule.h"

/* The most microbatches of a stage that wait for a backward task. */
static int32_t most_live(weft_schedule kind, int32_t stages, int32_t stage, int32_t chunks) {
    bool two =
        kind == WEFT_PIPELINE_INTERLEAVED || (kind == WEFT_PIPELINE_ZERO_BUBBLE && chunks == 2);
    if (kind == WEFT_PIPELINE_1F1B) return stages - stage;
    return two ? 2 * stages : stages;
}

/* The least divisor of `stages` that is at least `least`; `least` itself if none is. */
static int32_t divisor(int32_t stages, int32_t least) {
    for (int32_t d = least; d <= stages; d++)
        if (stages % d == 0) return d;
    return least;
}

int32_t wefti_schedule_period(weft_schedule kind, int32_t stages, int32_t stage, int32_t chunks,
                              int32_t least) {
    int32_t live = most_live(kind, stages, stage, chunks), period = live > least ? live : least;
    if (kind == WEFT_PIPELINE_GPIPE) return 0;
    if (kind == WEFT_PIPELINE_1F1B) return divisor(stages, period);
    if (kind != WEFT_PIPELINE_INTERLEAVED) return period;
    return (period + stages - 1) / stages * stages; /* its orders run groups of microbatches */
}

int32_t wefti_schedule_shorter(weft_schedule kind, int32_t stages, int32_t stage, int32_t micro,
                               int32_t chunks, int32_t period, int32_t from) {
    if (period <= 0) return micro;
    int64_t least = (int64_t)from + most_live(kind, stages, stage, chunks) + 2 * period;
    if (kind != WEFT_PIPELINE_1F1B) least += stages + 1; /* the stages fill and drain unevenly */
    if (least < stages) least = stages; /* schedules of fewer microbatches are refused */
    if (micro < least) return micro;
    return (int32_t)(least + (micro - least) % period);
}

/* Whether task `b` is task `a`, `period` microbatches later. */
static bool follows(wefti_stage_task a, wefti_stage_task b, int32_t period) {
    return a.kind == b.kind && a.chunk == b.chunk && a.micro + period == b.micro;
}

static bool repeats(const wefti_schedule *s, const wefti_stage_task *task, int32_t count,
                    int32_t period, int32_t from) {
    for (int32_t i = 0; i < count; i++) {
        bool last = task[count + i].micro == s->micro - 1 &&
                    task[i].kind == WEFTI_TASK_FORWARD; /* it writes the outputs */
        if (task[i].micro < from || last || !follows(task[i], task[count + i], period))
            return false;
    }
    return true;
}

bool wefti_schedule_repeats(const wefti_schedule *s, int32_t stage, int32_t period, int32_t from,
                            int32_t *out_first, int32_t *out_count) {
    const wefti_stage_task *task = wefti_schedule_of(s, stage);
    *out_count = s->tasks / s->micro * period;
    for (*out_first = 0; *out_first + 2 * *out_count <= s->tasks; ++*out_first)
        if (repeats(s, task + *out_first, *out_count, period, from)) return *out_count > 0;
    return false;
}
