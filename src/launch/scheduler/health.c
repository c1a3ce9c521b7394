/* How the job does, for whoever asks (HEALTH). */
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

static weft_health_state state_of(const wefti_scheduler *s, int32_t rank) {
    const wefti_life *life = &s->live.ranks[rank];
    if (wefti_has_left(life)) return WEFT_HEALTH_LEAVING;
    if (wefti_is_dead(life)) return WEFT_HEALTH_LOST;
    switch (wefti_mend_phase(s)) {
    case WEFTI_MENDING_COUNTING:
        return WEFT_HEALTH_HALTED;
    case WEFTI_MENDING_GIVING:
        return WEFT_HEALTH_MENDING;
    default:
        return life->standing.step > 0 ? WEFT_HEALTH_STEPPING : WEFT_HEALTH_JOINING;
    }
}

static wefti_rank_health health_of(const wefti_scheduler *s, int32_t rank, int64_t now) {
    const wefti_life *life = &s->live.ranks[rank];
    const bool steps = life->pace.step > 0;
    return (wefti_rank_health){.state = state_of(s, rank),
                               .host = s->slots[rank].host,
                               .step = life->pace.step,
                               .heard_ns = now > life->heard_ns ? now - life->heard_ns : 0,
                               .step_ns = steps ? now - life->pace.since_ns : 0,
                               .pace_ns = life->pace.pace_ns};
}

static wefti_job_state job_state(const wefti_scheduler *s) {
    switch (s->state) {
    case WEFTI_SCHEDULER_RUNNING:
        return WEFTI_JOB_RUNNING;
    case WEFTI_SCHEDULER_LEFT:
        return WEFTI_JOB_LEFT;
    case WEFTI_SCHEDULER_FAILED:
        return WEFTI_JOB_FAILED;
    default:
        return WEFTI_JOB_FORMING;
    }
}

weft_status wefti_scheduler_tell_health(wefti_scheduler *s, wefti_client *client) {
    const int64_t now = wefti_now_ns();
    wefti_job_health job = {
        .state = job_state(s),
        .generation = s->generation,
        .size = s->ranked || s->taken > s->options.size ? s->taken : s->options.size,
        .here = s->taken,
        .restarts = s->restarts.all < INT32_MAX ? (int32_t)s->restarts.all : INT32_MAX,
        .heartbeat_ns = s->heartbeat_ns,
        .ranks = s->ranked ? s->taken : 0};
    wefti_rank_health *rank = NULL;
    unsigned char *body;
    size_t bytes;
    (void)snprintf(job.text, sizeof job.text, "%s",
                   s->state == WEFTI_SCHEDULER_FAILED ? s->reason.text : s->mend.halt.text);
    if (job.ranks > 0) WEFT_NEW_ARRAY(rank, wefti_rank_health, job.ranks);
    for (int32_t r = 0; r < job.ranks; r++) rank[r] = health_of(s, r, now);
    const weft_status status = wefti_health_encode(&job, rank, &body, &bytes);
    wefti_free(rank);
    WEFT_TRY(status);
    wefti_client_send(s, client, WEFTI_FRAME_STATE, body, bytes);
    wefti_free(body);
    wefti_client_end(client);
    return WEFT_OK;
}
