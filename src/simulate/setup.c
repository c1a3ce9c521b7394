/* Durations and channels of all ranks, before the walk. */
#include <math.h>
#include <string.h>

#include "simulate/parts.h"

static void *make(wefti_sim *sim, int64_t count, size_t bytes) {
    return wefti_arena_alloc(sim->arena, (size_t)(count + 1) * bytes);
}

/* Whole picoseconds, at most a month. */
static int64_t picoseconds(double seconds) {
    double ps = seconds / WEFTI_PICOSECOND;
    return ps > 2.6e18 ? (int64_t)2.6e18 : ps > 0 ? llround(ps) : 0;
}

/* ---- kernels ---- */

static int64_t instruction_time(const wefti_sim *sim, const wefti_instruction *x) {
    const wefti_machine_model *m = sim->options->machine;
    if (x->transfer >= 0) return 0;
    if (!x->node) return x->bytes > 0 ? picoseconds(wefti_copy_seconds(m, (double)x->bytes)) : 0;
    return picoseconds(wefti_node_model_seconds(m, x->node, &x->cost));
}

static weft_status time_kernels(wefti_sim *sim, wefti_sim_rank *r) {
    const wefti_program *p = r->program;
    r->duration = make(sim, p->routine_count, sizeof *r->duration);
    WEFT_REQUIRE(r->duration, WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->count);
    for (int32_t i = 0; i < p->routine_count; i++) {
        const wefti_routine *routine = p->routines[i];
        r->duration[i] = make(sim, routine->code_count, sizeof **r->duration);
        WEFT_REQUIRE(r->duration[i], WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->count);
        for (int32_t k = 0; k < routine->code_count; k++)
            r->duration[i][k] = instruction_time(sim, &routine->code[k]);
    }
    return WEFT_OK;
}

/* ---- transfers ---- */

static weft_status find_channel(wefti_sim *sim, const wefti_transfer *t, wefti_sim_channel **out) {
    size_t ranks_bytes = (size_t)t->members * sizeof *t->ranks;
    wefti_sim_channel **at = &sim->channels[wefti_transfer_channel(t) & (sim->buckets - 1)];
    for (; *at; at = &(*at)->next)
        if ((*at)->tag == t->tag && (*at)->members == t->members &&
            !memcmp((*at)->ranks, t->ranks, ranks_bytes))
            break;
    if (!*at) {
        wefti_sim_channel *c = make(sim, 1, sizeof *c);
        int64_t *posted = make(sim, t->members, sizeof *posted);
        bool *waiting = make(sim, t->members, sizeof *waiting);
        WEFT_REQUIRE(c && posted && waiting, WEFT_E_NOMEM, "no memory to simulate %d ranks",
                     sim->count);
        *c = (wefti_sim_channel){.tag = t->tag,
                                 .members = t->members,
                                 .level = wefti_transfer_level(sim->options->machine, t),
                                 .ranks = t->ranks,
                                 .posted = posted,
                                 .waiting = waiting};
        *at = c;
        *sim->last = c;
        sim->last = &c->all;
    }
    *out = *at;
    return WEFT_OK;
}

static bool has_member(const wefti_transfer *t, int32_t rank) {
    for (int32_t i = 0; i < t->members; i++)
        if (t->ranks[i] == rank) return true;
    return false;
}

static double slowdown(const wefti_sim *sim, const wefti_transfer *t) {
    double slowest = 1;
    for (int32_t i = 0; i < sim->options->slow_link_count; i++) {
        const wefti_slow_link *l = &sim->options->slow_links[i];
        if (l->factor > slowest && has_member(t, l->a) && has_member(t, l->b)) slowest = l->factor;
    }
    return slowest;
}

static weft_status check_group(const wefti_sim *sim, const wefti_transfer *t, int32_t rank) {
    bool legal = t->members >= 1 && t->me >= 0 && t->me < t->members && t->ranks[t->me] == rank;
    for (int32_t i = 0; legal && i < t->members; i++)
        legal = t->ranks[i] > (i ? t->ranks[i - 1] : -1) && t->ranks[i] < sim->count;
    WEFT_REQUIRE_OF(rank, legal, WEFT_E_MISMATCH,
                    "rank %d: the transfer of '%s' is none of this rank, among ranks 0 to %d", rank,
                    t->name ? t->name : "a value without a name", sim->count - 1);
    return WEFT_OK;
}

static weft_status time_transfers(wefti_sim *sim, wefti_sim_rank *r) {
    const wefti_partition *p = r->program->partition;
    const wefti_mesh *mesh = &r->program->mesh;
    const wefti_active active = {mesh->first, wefti_mesh_size(mesh)};
    r->count = p ? wefti_partition_transfers(p) : 0;
    r->ends = make(sim, r->count, sizeof *r->ends);
    WEFT_REQUIRE(r->ends, WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->count);
    for (int32_t i = 0; i < r->count; i++) {
        const wefti_transfer *t = wefti_partition_transfer(p, i);
        wefti_sim_end *end = &r->ends[i];
        WEFT_TRY(check_group(sim, t, r->program->rank));
        WEFT_TRY(find_channel(sim, t, &end->channel));
        end->kind = (int32_t)t->kind;
        end->duration = picoseconds(wefti_transfer_seconds(sim->options->machine, t, active) *
                                    slowdown(sim, t));
    }
    return WEFT_OK;
}

/* ---- all ranks ---- */

static weft_status check_options(const wefti_sim *sim) {
    const wefti_simulate_options *o = sim->options;
    WEFT_REQUIRE(o->machine, WEFT_E_ARG, "a simulation needs a machine");
    WEFT_TRY(wefti_model_fits(o->machine, sim->count));
    for (int32_t i = 0; i < o->slow_rank_count; i++)
        WEFT_REQUIRE(o->slow_ranks[i].rank >= 0 && o->slow_ranks[i].rank < sim->count &&
                         o->slow_ranks[i].factor >= 1 && o->slow_ranks[i].factor <= 1e6,
                     WEFT_E_ARG,
                     "slow rank %d, %g times: ranks are 0 to %d, and factors 1 to 1000000",
                     o->slow_ranks[i].rank, o->slow_ranks[i].factor, sim->count - 1);
    for (int32_t i = 0; i < o->slow_link_count; i++) {
        const wefti_slow_link *l = &o->slow_links[i];
        WEFT_REQUIRE(l->a >= 0 && l->a < sim->count && l->b >= 0 && l->b < sim->count &&
                         l->a != l->b && l->factor >= 1 && l->factor <= 1e6,
                     WEFT_E_ARG,
                     "slow link %d-%d, %g times: ranks are 0 to %d, and factors 1 to 1000000", l->a,
                     l->b, l->factor, sim->count - 1);
    }
    WEFT_REQUIRE(o->fail_seconds >= 0 &&
                     (o->fail_seconds == 0 || (o->failing >= 0 && o->failing < sim->count)),
                 WEFT_E_ARG, "rank %d cannot fail at %g s: ranks are 0 to %d", o->failing,
                 o->fail_seconds, sim->count - 1);
    return WEFT_OK;
}

weft_status wefti_sim_setup(wefti_sim *sim, const wefti_program *const *programs) {
    const wefti_simulate_options *o = sim->options;
    int64_t transfers = 0;
    WEFT_TRY(check_options(sim));
    for (int32_t i = 0; i < sim->count; i++)
        if (programs[i]->partition) transfers += wefti_partition_transfers(programs[i]->partition);
    for (sim->buckets = 64; sim->buckets < (uint64_t)transfers; sim->buckets *= 2) continue;
    sim->ranks = make(sim, sim->count, sizeof *sim->ranks);
    sim->heap = make(sim, sim->count, sizeof *sim->heap);
    sim->channels = make(sim, (int64_t)sim->buckets, sizeof(wefti_sim_channel *));
    sim->last = &sim->first;
    WEFT_REQUIRE(sim->ranks && sim->heap && sim->channels, WEFT_E_NOMEM,
                 "no memory to simulate %d ranks", sim->count);
    for (int32_t i = 0; i < sim->count; i++) {
        wefti_sim_rank *r = &sim->ranks[i];
        r->program = programs[i];
        r->slow = 1;
        WEFT_REQUIRE(r->program->rank == i, WEFT_E_ARG, "the program of rank %d is given for %d",
                     r->program->rank, i);
        WEFT_TRY(time_kernels(sim, r));
        WEFT_TRY(time_transfers(sim, r));
    }
    for (int32_t i = 0; i < o->slow_rank_count; i++)
        sim->ranks[o->slow_ranks[i].rank].slow *= o->slow_ranks[i].factor;
    sim->fail_at = o->fail_seconds > 0 ? picoseconds(o->fail_seconds) : INT64_MAX;
    return WEFT_OK;
}
