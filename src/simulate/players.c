/* Players: which ranks of a folded world walk together.
 *
 * Ranks begin with the number of their class, and with a number of their own if they fail or are
 * slow. A round numbers them anew: by their number, and, for each kind of group that their program
 * has, by how their group lies on the machine and by the numbers of its members in order. When a
 * round finds no more numbers than there were, ranks of one number walk alike: they have equal
 * programs, and each of their transfers takes equally long and has members that walk alike. Every
 * number is one player.
 *
 * Source: colour refinement, Cardon and Crochemore, "Partitioning a graph in O(|A| log2 |V|)",
 * Theoretical Computer Science 1982. */
#include <string.h>

#include "base/digest/digest.h"
#include "base/map/map.h"
#include "simulate/parts.h"

/* A kind of group, by its name. */
typedef struct group_kind {
    struct group_kind *next;
    wefti_group_place name;
    int32_t size;
    bool *has;       /* per class: its programs have such a group */
    uint64_t *shape; /* per rank: how its group lies on the machine; 0: not known yet */
} group_kind;

typedef struct refinement {
    wefti_sim *sim;
    const wefti_match_classes *classes;
    group_kind *kinds;
    uint64_t *digest;          /* per rank */
    int32_t *number, *members; /* per rank; members: room for a group */
    int32_t count;
} refinement;

static void *make(const wefti_sim *sim, int64_t count, size_t bytes) {
    return wefti_arena_alloc(sim->arena, (size_t)(count + 1) * bytes);
}

/* ---- groups ---- */

static bool has_rank(const int32_t *ranks, int32_t members, int32_t rank) {
    for (int32_t i = 0; i < members; i++)
        if (ranks[i] == rank) return true;
    return false;
}

double wefti_sim_link_factor(const wefti_sim *sim, const int32_t *ranks, int32_t members) {
    double slowest = 1;
    for (int32_t i = 0; i < sim->options->slow_link_count; i++) {
        const weft_slow_link *l = &sim->options->slow_links[i];
        if (l->factor > slowest && has_rank(ranks, members, l->a) && has_rank(ranks, members, l->b))
            slowest = l->factor;
    }
    return slowest;
}

/* A group that lies in no known way is that of the representative: then all of its members are
 * built. */
void wefti_sim_group(const wefti_sim *sim, const wefti_sim_rank *player, const wefti_transfer *t,
                     wefti_group_place *room, int32_t *out) {
    if (sim->classes && wefti_group_find_place(sim->classes, t, room)) {
        wefti_group_ranks(sim->classes, room, player->rank, out);
        return;
    }
    memcpy(out, t->ranks, (size_t)t->members * sizeof *out);
    if (sim->classes) out[t->me] = player->rank;
}

/* Blocks of the machine are ranges of ranks, so the levels between neighbours give all levels. */
static uint64_t shape_of(const refinement *x, const int32_t *ranks, int32_t size) {
    uint64_t digest = wefti_digest_real(3, wefti_sim_link_factor(x->sim, ranks, size));
    for (int32_t i = 1; i < size; i++)
        digest = wefti_digest_number(digest, (uint64_t)wefti_model_level_of(
                                                 x->sim->options->machine, ranks[i - 1], ranks[i]));
    return digest | 1;
}

static weft_status add_kind(refinement *x, const wefti_group_place *name, group_kind **out) {
    group_kind *k = x->kinds;
    for (; k && !wefti_group_places_equal(&k->name, name);) k = k->next;
    *out = k;
    if (k) return WEFT_OK;
    *out = k = make(x->sim, 1, sizeof *k);
    WEFT_REQUIRE(k, WEFT_E_NOMEM, "no memory to simulate %d ranks", x->sim->world);
    k->name = *name;
    k->size = wefti_group_size(x->classes, name);
    k->name.firsts = make(x->sim, name->stages, sizeof *k->name.firsts);
    k->has = make(x->sim, x->classes->count, sizeof *k->has);
    k->shape = make(x->sim, x->sim->world, sizeof *k->shape);
    WEFT_REQUIRE(k->name.firsts && k->has && k->shape, WEFT_E_NOMEM,
                 "no memory to simulate %d ranks", x->sim->world);
    memcpy(k->name.firsts, name->firsts, (size_t)name->stages * sizeof *name->firsts);
    k->next = x->kinds;
    x->kinds = k;
    return WEFT_OK;
}

static weft_status find_kinds(refinement *x, int32_t *firsts) {
    for (int32_t c = 0; c < x->classes->count; c++) {
        const wefti_partition *p = x->classes->programs[c]->partition;
        for (int32_t i = 0; p && i < wefti_partition_transfers(p); i++) {
            wefti_group_place name = {.firsts = firsts};
            group_kind *kind;
            if (!wefti_group_find_place(x->classes, wefti_partition_transfer(p, i), &name))
                continue;
            WEFT_TRY(add_kind(x, &name, &kind));
            kind->has[c] = true;
        }
    }
    return WEFT_OK;
}

/* ---- rounds ---- */

/* Adds to the digest of each rank what it sees of its groups of one kind. */
static void look(refinement *x, group_kind *k) {
    const int32_t *class_of = x->classes->class_of;
    for (int32_t rank = 0; rank < x->sim->world; rank++) {
        if (!k->has[class_of[rank]] || !wefti_group_is_lowest(x->classes, &k->name, rank)) continue;
        wefti_group_ranks(x->classes, &k->name, rank, x->members);
        if (!k->shape[rank]) k->shape[rank] = shape_of(x, x->members, k->size);
        uint64_t seen = k->shape[rank];
        for (int32_t i = 0; i < k->size; i++)
            seen = wefti_digest_number(seen, (uint64_t)x->number[x->members[i]]);
        for (int32_t i = 0; i < k->size; i++)
            x->digest[x->members[i]] = wefti_digest_number(x->digest[x->members[i]], seen);
    }
}

/* Numbers the ranks by their digests, in the order of the ranks. */
static weft_status number_ranks(refinement *x) {
    wefti_map map = {0};
    int64_t count = 0;
    for (int32_t rank = 0; rank < x->sim->world; rank++) {
        int64_t number;
        weft_status status =
            wefti_map_add(&map, &x->digest[rank], sizeof *x->digest, count, &number);
        if (status < 0) {
            wefti_map_free(&map);
            return status;
        }
        count += number == count;
        x->number[rank] = (int32_t)number;
    }
    wefti_map_free(&map);
    x->count = (int32_t)count;
    return WEFT_OK;
}

/* Numbers of their own: for the rank that fails, and for ranks that are equally slow. */
static void begin(refinement *x) {
    const wefti_simulate_options *o = x->sim->options;
    for (int32_t rank = 0; rank < x->sim->world; rank++)
        x->digest[rank] = wefti_digest_number(5, (uint64_t)x->classes->class_of[rank]);
    for (int32_t i = 0; i < o->slow_rank_count; i++) {
        uint64_t *digest = &x->digest[o->slow_ranks[i].rank];
        *digest = wefti_digest_real(*digest, o->slow_ranks[i].factor);
    }
    if (o->fail_seconds > 0) x->digest[o->failing] = wefti_digest_number(x->digest[o->failing], 11);
}

static weft_status refine(refinement *x) {
    int32_t before = 0;
    begin(x);
    WEFT_TRY(number_ranks(x));
    while (x->count > before) {
        before = x->count;
        for (int32_t rank = 0; rank < x->sim->world; rank++)
            x->digest[rank] = wefti_digest_number(7, (uint64_t)x->number[rank]);
        for (group_kind *k = x->kinds; k; k = k->next) look(x, k);
        WEFT_TRY(number_ranks(x));
    }
    return WEFT_OK;
}

/* ---- players ---- */

static weft_status find(wefti_sim *sim, const int32_t **out) {
    refinement x = {.sim = sim, .classes = sim->classes};
    x.digest = make(sim, sim->world, sizeof *x.digest);
    x.number = make(sim, sim->world, sizeof *x.number);
    x.members = make(sim, sim->world, sizeof *x.members);
    int32_t *firsts = make(sim, sim->world, sizeof *firsts);
    WEFT_REQUIRE(x.digest && x.number && x.members && firsts, WEFT_E_NOMEM,
                 "no memory to simulate %d ranks", sim->world);
    WEFT_TRY(find_kinds(&x, firsts));
    WEFT_TRY(refine(&x));
    sim->count = x.count;
    *out = x.number;
    return WEFT_OK;
}

weft_status wefti_sim_players(wefti_sim *sim) {
    const int32_t *number = NULL;
    sim->count = sim->world;
    if (sim->classes && !sim->processors) WEFT_TRY(find(sim, &number));
    sim->player_of = make(sim, sim->world, sizeof *sim->player_of);
    sim->ranks = make(sim, sim->count, sizeof *sim->ranks);
    WEFT_REQUIRE(sim->player_of && sim->ranks, WEFT_E_NOMEM, "no memory to simulate %d ranks",
                 sim->world);
    for (int32_t rank = 0; rank < sim->world; rank++) {
        const int32_t player = number ? number[rank] : rank;
        wefti_sim_rank *r = &sim->ranks[player];
        sim->player_of[rank] = player;
        if (r->members++) continue;
        r->rank = rank;
        r->program = sim->programs[sim->classes ? sim->classes->class_of[rank] : rank];
        r->slow = 1;
    }
    for (int32_t i = 0; i < sim->options->slow_rank_count; i++) {
        wefti_sim_rank *r = &sim->ranks[sim->player_of[sim->options->slow_ranks[i].rank]];
        if (r->rank == sim->options->slow_ranks[i].rank)
            r->slow *= sim->options->slow_ranks[i].factor;
    }
    return WEFT_OK;
}
