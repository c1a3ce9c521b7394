/* Durations and channels of all ranks, before the walk. */
#include <math.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/map/map.h"
#include "simulate/parts.h"

static void *make(const wefti_sim *sim, int64_t count, size_t bytes) {
    return wefti_arena_alloc(sim->arena, (size_t)(count + 1) * bytes);
}

/* Whole picoseconds, at most a month. */
static int64_t picoseconds(double seconds) {
    double ps = seconds / WEFTI_PICOSECOND;
    return ps > 2.6e18 ? (int64_t)2.6e18 : ps > 0 ? llround(ps) : 0;
}

/* ---- kernels ---- */

static int64_t instruction_time(const wefti_sim *sim, const wefti_instruction *x,
                                wefti_space space) {
    const wefti_machine_model *m = sim->options->machine;
    if (x->transfer >= 0) return 0;
    if (!x->node) return x->bytes > 0 ? picoseconds(wefti_copy_seconds(m, (double)x->bytes)) : 0;
    return picoseconds(wefti_node_model_seconds(m, space, x->node, &x->cost));
}

/* Of each routine, the space in which it runs: none runs in two. */
static weft_status find_spaces(const wefti_sim *sim, const wefti_program *p,
                               const wefti_map *routines, wefti_space **out) {
    *out = make(sim, p->routine_count, sizeof **out);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
    for (int32_t i = 0; i < p->routine_count; i++) (*out)[i] = WEFTI_SPACE_DEVICE;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < p->step_count[s]; k++) {
            const wefti_step *step = &p->steps[s][k];
            if (step->kind != WEFTI_STEP_CALL || step->space == WEFTI_SPACE_DEVICE) continue;
            const int64_t i = wefti_map_find(routines, &step->routine, sizeof step->routine);
            if (i >= 0) (*out)[i] = step->space;
        }
    return WEFT_OK;
}

static weft_status time_routines(const wefti_sim *sim, wefti_sim_timing *t,
                                 const wefti_map *routines) {
    const wefti_program *p = t->program;
    wefti_space *space;
    WEFT_TRY(find_spaces(sim, p, routines, &space));
    t->duration = make(sim, p->routine_count, sizeof *t->duration);
    WEFT_REQUIRE(t->duration, WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
    for (int32_t i = 0; i < p->routine_count; i++) {
        const wefti_routine *routine = p->routines[i];
        t->duration[i] = make(sim, routine->code_count, sizeof **t->duration);
        WEFT_REQUIRE(t->duration[i], WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
        for (int32_t k = 0; k < routine->code_count; k++)
            t->duration[i][k] = instruction_time(sim, &routine->code[k], space[i]);
    }
    return WEFT_OK;
}

static const int64_t *durations_of(const wefti_sim_timing *t, const wefti_map *routines,
                                   const wefti_step *step) {
    if (step->kind != WEFTI_STEP_CALL) return NULL;
    const int64_t number = wefti_map_find(routines, &step->routine, sizeof step->routine);
    return number < 0 ? NULL : t->duration[number];
}

static weft_status time_steps(const wefti_sim *sim, wefti_sim_timing *t,
                              const wefti_map *routines) {
    const wefti_program *p = t->program;
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        t->of_step[s] = make(sim, p->step_count[s], sizeof(int64_t *));
        WEFT_REQUIRE(t->of_step[s], WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
        for (int32_t k = 0; k < p->step_count[s]; k++) {
            t->of_step[s][k] = durations_of(t, routines, &p->steps[s][k]);
            WEFT_REQUIRE(t->of_step[s][k] || p->steps[s][k].kind != WEFTI_STEP_CALL,
                         WEFT_E_MISMATCH,
                         "rank %d, step '%s': the program does not have its routine", p->rank,
                         p->steps[s][k].name);
        }
    }
    return WEFT_OK;
}

static weft_status time_program(const wefti_sim *sim, const wefti_program *p,
                                wefti_sim_timing **out) {
    wefti_sim_timing *t = make(sim, 1, sizeof *t);
    wefti_map routines = {0};
    weft_status status = WEFT_OK;
    WEFT_REQUIRE(t, WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
    t->program = p;
    *out = t;
    for (int32_t i = 0; i < p->routine_count && status >= 0; i++)
        status = wefti_map_add(&routines, &p->routines[i], sizeof p->routines[i], i, NULL);
    if (status >= 0) status = time_routines(sim, t, &routines);
    if (status >= 0) status = time_steps(sim, t, &routines);
    wefti_map_free(&routines);
    return status;
}

/* Players with one program share its timing. */
static weft_status time_programs(wefti_sim *sim) {
    wefti_map programs = {0};
    weft_status status = WEFT_OK;
    for (int32_t i = 0; i < sim->count && status >= 0; i++) {
        wefti_sim_rank *r = &sim->ranks[i];
        const int64_t before = wefti_map_find(&programs, &r->program, sizeof r->program);
        wefti_sim_timing *timing;
        if (before >= 0) {
            r->timing = sim->ranks[before].timing;
            continue;
        }
        status = time_program(sim, r->program, &timing);
        if (status < 0) break;
        r->timing = timing;
        status = wefti_map_add(&programs, &r->program, sizeof r->program, i, NULL);
    }
    wefti_map_free(&programs);
    return status;
}

/* ---- transfers ---- */

/* Room for the group of one transfer. */
typedef struct group_room {
    int32_t *ranks, *players, *firsts;
    bool *seen; /* per player */
} group_room;

/* The players among the ranks of a group, in the order in which they come first. */
static int32_t list_players(const wefti_sim *sim, const group_room *room, int32_t members) {
    int32_t count = 0;
    for (int32_t i = 0; i < members; i++) {
        const int32_t player = sim->player_of[room->ranks[i]];
        if (room->seen[player]) continue;
        room->seen[player] = true;
        room->players[count++] = player;
    }
    for (int32_t i = 0; i < count; i++) room->seen[room->players[i]] = false;
    return count;
}

static weft_status add_channel(wefti_sim *sim, const wefti_sim_channel *like,
                               wefti_sim_channel **at) {
    wefti_sim_channel *c = make(sim, 1, sizeof *c);
    int64_t *posted = make(sim, like->members, sizeof *posted);
    int32_t *players = make(sim, like->members, sizeof *players);
    bool *waiting = make(sim, like->members, sizeof *waiting);
    WEFT_REQUIRE(c && posted && players && waiting, WEFT_E_NOMEM, "no memory to simulate %d ranks",
                 sim->world);
    *c = *like;
    memcpy(players, like->players, (size_t)like->members * sizeof *players);
    c->players = players;
    c->posted = posted;
    c->waiting = waiting;
    *at = c;
    *sim->last = c;
    sim->last = &c->all;
    return WEFT_OK;
}

static weft_status find_channel(wefti_sim *sim, const wefti_sim_channel *like,
                                wefti_sim_channel **out) {
    const size_t bytes = (size_t)like->members * sizeof *like->players;
    const uint64_t hash =
        wefti_digest_bytes(wefti_digest_number(1, like->tag), like->players, bytes);
    wefti_sim_channel **at = &sim->channels[hash & (sim->buckets - 1)];
    for (; *at; at = &(*at)->next)
        if ((*at)->tag == like->tag && (*at)->members == like->members &&
            !memcmp((*at)->players, like->players, bytes))
            break;
    if (!*at) WEFT_TRY(add_channel(sim, like, at));
    *out = *at;
    return WEFT_OK;
}

static weft_status check_group(const wefti_sim *sim, const wefti_transfer *t, int32_t rank) {
    bool legal = t->members >= 1 && t->me >= 0 && t->me < t->members && t->ranks[t->me] == rank;
    for (int32_t i = 0; legal && i < t->members; i++)
        legal = t->ranks[i] > (i ? t->ranks[i - 1] : -1) && t->ranks[i] < sim->world;
    WEFT_REQUIRE_OF(rank, legal, WEFT_E_MISMATCH,
                    "rank %d: the transfer of '%s' is none of this rank, among ranks 0 to %d", rank,
                    t->name ? t->name : "a value without a name", sim->world - 1);
    return WEFT_OK;
}

static weft_status time_transfer(wefti_sim *sim, wefti_sim_rank *r, const wefti_transfer *t,
                                 const group_room *room, wefti_sim_end *out) {
    const wefti_machine_model *machine = sim->options->machine;
    const wefti_mesh *mesh = &r->program->mesh;
    const wefti_active active = {mesh->first, wefti_mesh_size(mesh)};
    wefti_group_place name = {.firsts = room->firsts};
    wefti_transfer here = *t; /* in this rank's group */
    const int32_t player = (int32_t)(r - sim->ranks);
    WEFT_TRY(check_group(sim, t, r->program->rank));
    wefti_sim_group(sim, r, t, &name, room->ranks);
    here.ranks = room->ranks;
    const wefti_sim_channel like = {.tag = t->tag,
                                    .members = list_players(sim, room, t->members),
                                    .level = wefti_transfer_level(machine, &here),
                                    .players = room->players};
    WEFT_TRY(find_channel(sim, &like, &out->channel));
    while (room->players[out->slot] != player) out->slot++;
    out->kind = (int32_t)t->kind;
    out->duration = picoseconds(wefti_transfer_seconds(machine, &here, active) *
                                wefti_sim_link_factor(sim, room->ranks, t->members));
    return WEFT_OK;
}

static weft_status time_transfers(wefti_sim *sim, wefti_sim_rank *r, const group_room *room) {
    const wefti_partition *p = r->program->partition;
    r->count = p ? wefti_partition_transfers(p) : 0;
    r->ends = make(sim, r->count, sizeof *r->ends);
    WEFT_REQUIRE(r->ends, WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
    for (int32_t i = 0; i < r->count; i++)
        WEFT_TRY(time_transfer(sim, r, wefti_partition_transfer(p, i), room, &r->ends[i]));
    return WEFT_OK;
}

/* ---- copies between spaces ---- */

static double copy_seconds(const wefti_sim *sim, const wefti_program *p, const wefti_step *post) {
    return wefti_tier_seconds(sim->options->machine, wefti_step_tier(post),
                              wefti_step_fetches(post) ? WEFTI_TIER_READ : WEFTI_TIER_WRITE,
                              (double)p->moves[post->move].bytes, sim->world);
}

/* All posts of a move copy the same way. */
static weft_status time_copies(const wefti_sim *sim, wefti_sim_rank *r) {
    const wefti_program *p = r->program;
    for (int32_t i = 0; i < p->move_count; i++)
        if (p->moves[i].way == WEFTI_WAY_SPACES) r->moves = p->move_count;
    if (!r->moves) return WEFT_OK;
    r->copies = make(sim, r->moves, sizeof *r->copies);
    WEFT_REQUIRE(r->copies, WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < p->step_count[s]; k++) {
            const wefti_step *step = &p->steps[s][k];
            if (step->kind != WEFTI_STEP_POST || !wefti_step_copy(p, step)) continue;
            r->copies[step->move].tier = wefti_step_tier(step);
            r->copies[step->move].duration = picoseconds(copy_seconds(sim, p, step));
        }
    return WEFT_OK;
}

/* ---- all ranks ---- */

weft_status wefti_simulate_check(const wefti_simulate_options *o, int32_t ranks) {
    WEFT_REQUIRE(o->machine, WEFT_E_ARG, "a simulation needs a machine");
    WEFT_TRY(wefti_model_fits(o->machine, ranks));
    for (int32_t i = 0; i < o->slow_rank_count; i++)
        WEFT_REQUIRE(o->slow_ranks[i].rank >= 0 && o->slow_ranks[i].rank < ranks &&
                         o->slow_ranks[i].factor >= 1 && o->slow_ranks[i].factor <= 1e6,
                     WEFT_E_ARG,
                     "slow rank %d, %g times: ranks are 0 to %d, and factors 1 to 1000000",
                     o->slow_ranks[i].rank, o->slow_ranks[i].factor, ranks - 1);
    for (int32_t i = 0; i < o->slow_link_count; i++) {
        const weft_slow_link *l = &o->slow_links[i];
        WEFT_REQUIRE(
            l->a >= 0 && l->a < ranks && l->b >= 0 && l->b < ranks && l->a != l->b &&
                l->factor >= 1 && l->factor <= 1e6,
            WEFT_E_ARG,
            "slow link %d-%d at a speed of %g: ranks are 0 to %d, both differ, and speeds are "
            "0.000001 to 1",
            l->a, l->b, l->factor > 0 ? 1 / l->factor : 0.0, ranks - 1);
    }
    WEFT_REQUIRE(o->fail_seconds >= 0 &&
                     (o->fail_seconds == 0 || (o->failing >= 0 && o->failing < ranks)),
                 WEFT_E_ARG, "rank %d cannot fail at %g s: ranks are 0 to %d", o->failing,
                 o->fail_seconds, ranks - 1);
    return WEFT_OK;
}

static weft_status make_tables(wefti_sim *sim, group_room *room) {
    int64_t transfers = 0, bytes = (int64_t)sizeof(int32_t);
    for (int32_t i = 0; i < sim->count; i++) {
        const wefti_partition *p = sim->ranks[i].program->partition;
        if (p) transfers += wefti_partition_transfers(p);
    }
    for (sim->buckets = 64; sim->buckets < (uint64_t)transfers; sim->buckets *= 2) continue;
    sim->heap = make(sim, sim->count, sizeof *sim->heap);
    sim->channels = make(sim, (int64_t)sim->buckets, sizeof(wefti_sim_channel *));
    sim->last = &sim->first;
    room->ranks = make(sim, sim->world, (size_t)bytes);
    room->players = make(sim, sim->world, (size_t)bytes);
    room->firsts = make(sim, sim->world, (size_t)bytes);
    room->seen = make(sim, sim->count, sizeof *room->seen);
    WEFT_REQUIRE(sim->heap && sim->channels && room->ranks && room->players && room->firsts &&
                     room->seen,
                 WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
    return WEFT_OK;
}

static weft_status check_programs(const wefti_sim *sim) {
    const int32_t count = sim->classes ? sim->classes->count : sim->world;
    for (int32_t i = 0; i < count; i++) {
        const int32_t rank = sim->programs[i]->rank;
        const bool right = sim->classes
                               ? rank >= 0 && rank < sim->world && sim->classes->class_of[rank] == i
                               : rank == i;
        WEFT_REQUIRE(right, WEFT_E_ARG, "the program of rank %d is given for %s %d", rank,
                     sim->classes ? "class" : "rank", i);
    }
    return WEFT_OK;
}

/* All ranks begin with the part of a step that no program has. */
static void begin_step(wefti_sim *sim) {
    const int64_t before = picoseconds(sim->options->machine->device.step_seconds.value);
    for (int32_t i = 0; i < sim->count; i++) {
        wefti_sim_rank *r = &sim->ranks[i];
        r->now.at = before;
        r->now.cause[WEFTI_CAUSE_OTHER] = r->time.cause[WEFTI_CAUSE_OTHER] = before;
    }
}

weft_status wefti_sim_setup(wefti_sim *sim) {
    const wefti_simulate_options *o = sim->options;
    group_room room;
    WEFT_TRY(wefti_simulate_check(sim->options, sim->world));
    WEFT_TRY(check_programs(sim));
    WEFT_TRY(wefti_sim_share(sim));
    WEFT_TRY(wefti_sim_players(sim));
    WEFT_TRY(make_tables(sim, &room));
    WEFT_TRY(time_programs(sim));
    for (int32_t i = 0; i < sim->count; i++) {
        WEFT_TRY(time_transfers(sim, &sim->ranks[i], &room));
        WEFT_TRY(time_copies(sim, &sim->ranks[i]));
    }
    begin_step(sim);
    sim->fail_at = o->fail_seconds > 0 ? picoseconds(o->fail_seconds) : INT64_MAX;
    return WEFT_OK;
}
