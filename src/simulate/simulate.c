/* The simulation as a whole: see simulate.h. */
#include "simulate/simulate.h"

#include <string.h>

#include "simulate/parts.h"

const char *wefti_cause_text(int cause) {
    static const char *const texts[WEFTI_CAUSE_TRANSFER] = {
        [WEFTI_CAUSE_FORWARD] = "forward", [WEFTI_CAUSE_BACKWARD] = "backward",
        [WEFTI_CAUSE_UPDATE] = "update",   [WEFTI_CAUSE_OTHER] = "other",
        [WEFTI_CAUSE_COPY] = "copy",       [WEFTI_CAUSE_IDLE] = "idle"};
    if (cause < WEFTI_CAUSE_TRANSFER) return texts[cause];
    return wefti_transfer_kind_text((wefti_transfer_kind)(cause - WEFTI_CAUSE_TRANSFER));
}

static weft_status check_end(const wefti_sim *sim, wefti_simulation *out) {
    bool failed = false;
    for (int32_t i = 0; i < sim->count; i++) {
        failed |= sim->ranks[i].failed;
        out->waiting += sim->ranks[i].blocked;
    }
    out->stopped = failed;
    WEFT_REQUIRE(failed || out->waiting == 0, WEFT_E_MISMATCH,
                 "%d ranks wait for each other for ever: the programs do not match", out->waiting);
    return WEFT_OK;
}

static weft_status finish(const wefti_sim *sim, wefti_simulation *out) {
    WEFT_TRY(check_end(sim, out));
    for (int32_t i = 0; i < sim->count; i++) {
        const wefti_sim_rank *r = &sim->ranks[i];
        if (r->now.at > out->step) {
            out->step = r->now.at;
            out->critical_rank = i;
        }
    }
    memcpy(out->critical, sim->ranks[out->critical_rank].now.cause, sizeof out->critical);
    for (int32_t i = 0; i < sim->count; i++) {
        const wefti_sim_rank *r = &sim->ranks[i];
        out->ranks[i] = r->time;
        out->ranks[i].end = r->now.at;
        out->ranks[i].cause[WEFTI_CAUSE_IDLE] += out->step - r->now.at;
    }
    out->events = sim->events;
    out->iterations = sim->iterations;
    return WEFT_OK;
}

static weft_status simulate(wefti_sim *sim, const wefti_program *const *programs,
                            wefti_simulation *out) {
    WEFT_TRY(wefti_sim_setup(sim, programs));
    WEFT_TRY(wefti_sim_play(sim));
    return finish(sim, out);
}

weft_status wefti_simulate(const wefti_program *const *programs, int32_t count,
                           const wefti_simulate_options *options, wefti_simulation **out) {
    wefti_simulate_options o = *options;
    wefti_sim sim = {.options = &o, .count = count};
    wefti_simulation *result;
    WEFT_REQUIRE(count >= 1 && o.microbatches >= 1, WEFT_E_ARG,
                 "a simulation of %d ranks and %d microbatches; at least one of each", count,
                 o.microbatches);
    WEFT_NEW(result, wefti_simulation);
    result->count = count;
    result->ranks = wefti_calloc((size_t)count, sizeof *result->ranks);
    weft_status status = result->ranks ? wefti_arena_create(&sim.arena)
                                       : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d ranks", count);
    if (status >= 0) status = simulate(&sim, programs, result);
    for (wefti_sim_channel *c = sim.first; c; c = c->all) wefti_free(c->open);
    wefti_sim_repeat_free(&sim);
    wefti_arena_destroy(sim.arena);
    if (status < 0) {
        wefti_simulation_free(result);
        return status;
    }
    *out = result;
    return WEFT_OK;
}

void wefti_simulation_free(wefti_simulation *simulation) {
    if (!simulation) return;
    wefti_free(simulation->ranks);
    wefti_free(simulation);
}
