/* The simulation as a whole: see simulate.h. */
#include "simulate/simulate.h"

#include <string.h>

#include "simulate/parts.h"

const char *wefti_cause_text(int cause) {
    static const char *const texts[WEFTI_CAUSE_TRANSFER] = {
        [WEFTI_CAUSE_FORWARD] = "forward", [WEFTI_CAUSE_BACKWARD] = "backward",
        [WEFTI_CAUSE_UPDATE] = "update",   [WEFTI_CAUSE_OTHER] = "other",
        [WEFTI_CAUSE_COPY] = "copy",       [WEFTI_CAUSE_HOST] = "host copy",
        [WEFTI_CAUSE_DISK] = "disk copy",  [WEFTI_CAUSE_IDLE] = "idle"};
    if (cause < WEFTI_CAUSE_TRANSFER) return texts[cause];
    return wefti_transfer_kind_text((wefti_transfer_kind)(cause - WEFTI_CAUSE_TRANSFER));
}

static weft_status check_end(const wefti_sim *sim, wefti_simulation *out) {
    bool failed = false;
    for (int32_t i = 0; i < sim->count; i++) {
        failed |= sim->ranks[i].failed;
        if (sim->ranks[i].blocked) out->waiting += sim->ranks[i].members;
    }
    out->stopped = failed;
    WEFT_REQUIRE(failed || out->waiting == 0, WEFT_E_MISMATCH,
                 "%d ranks wait for each other for ever: the programs do not match", out->waiting);
    return WEFT_OK;
}

static weft_status take_players(const wefti_sim *sim, wefti_simulation *out) {
    out->count = sim->count;
    out->world = sim->world;
    WEFT_NEW_ARRAY(out->ranks, wefti_rank_time, sim->count);
    WEFT_NEW_ARRAY(out->lowest, int32_t, sim->count);
    WEFT_NEW_ARRAY(out->members, int32_t, sim->count);
    WEFT_NEW_ARRAY(out->player_of, int32_t, sim->world);
    memcpy(out->player_of, sim->player_of, (size_t)sim->world * sizeof *out->player_of);
    for (int32_t i = 0; i < sim->count; i++) {
        out->lowest[i] = sim->ranks[i].rank;
        out->members[i] = sim->ranks[i].members;
    }
    return WEFT_OK;
}

static weft_status finish(const wefti_sim *sim, wefti_simulation *out) {
    const wefti_sim_rank *last = &sim->ranks[0];
    WEFT_TRY(check_end(sim, out));
    WEFT_TRY(take_players(sim, out));
    for (int32_t i = 0; i < sim->count; i++)
        if (sim->ranks[i].now.at > last->now.at) last = &sim->ranks[i];
    out->step = last->now.at;
    out->critical_rank = last->rank;
    memcpy(out->critical, last->now.cause, sizeof out->critical);
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

static weft_status play(wefti_sim *sim, wefti_simulation *out) {
    WEFT_TRY(wefti_arena_create(&sim->arena));
    WEFT_TRY(wefti_sim_setup(sim));
    WEFT_TRY(wefti_sim_play(sim));
    return finish(sim, out);
}

static weft_status simulate(wefti_sim *sim, const wefti_simulate_options *options,
                            wefti_simulation **out) {
    const wefti_simulate_options o = *options;
    wefti_simulation *result;
    WEFT_REQUIRE(sim->world >= 1 && o.microbatches >= 1, WEFT_E_ARG,
                 "a simulation of %d ranks and %d microbatches; at least one of each", sim->world,
                 o.microbatches);
    WEFT_NEW(result, wefti_simulation);
    sim->options = &o;
    weft_status status = play(sim, result);
    for (wefti_sim_channel *c = sim->first; c; c = c->all) wefti_free(c->open);
    wefti_free(sim->ready);
    wefti_sim_repeat_free(sim);
    wefti_arena_destroy(sim->arena);
    if (status < 0) {
        wefti_simulation_free(result);
        return status;
    }
    *out = result;
    return WEFT_OK;
}

weft_status wefti_simulate(const wefti_program *const *programs, int32_t count,
                           const wefti_simulate_options *options, wefti_simulation **out) {
    wefti_sim sim = {.programs = programs, .world = count};
    return simulate(&sim, options, out);
}

weft_status wefti_simulate_classes(const wefti_match_classes *classes,
                                   const wefti_simulate_options *options, wefti_simulation **out) {
    wefti_sim sim = {.classes = classes, .programs = classes->programs, .world = classes->ranks};
    return simulate(&sim, options, out);
}

void wefti_simulation_free(wefti_simulation *simulation) {
    if (!simulation) return;
    wefti_free(simulation->ranks);
    wefti_free(simulation->lowest);
    wefti_free(simulation->members);
    wefti_free(simulation->player_of);
    wefti_free(simulation);
}
