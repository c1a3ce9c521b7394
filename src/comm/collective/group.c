/* Groups of ranks, and the state of a world's collectives. */
#include "comm/collective/collective.h"

#include <stdio.h>
#include <string.h>

/* Values that follow each other, zero among them, must not cancel: the counter of SplitMix64 goes
 * on between them. */
uint64_t wefti_group_mix(uint64_t hash, uint64_t value) {
    hash += 0x9E3779B97F4A7C15u;
    hash = (hash ^ value ^ hash >> 30) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EBu;
    return hash ^ hash >> 31;
}

void wefti_group_name(const int32_t *ranks, int32_t count, int32_t world,
                      char out[WEFTI_GROUP_NAME]) {
    size_t room = WEFTI_GROUP_NAME, at;
    if (count == world) {
        (void)snprintf(out, room, "all %d ranks", (int)world);
        return;
    }
    at = (size_t)snprintf(out, room, "group [");
    for (int32_t m = 0; m < count; m++) {
        if (at + 24 > room) {
            (void)snprintf(out + at, room - at, ".. %d]", (int)ranks[count - 1]);
            return;
        }
        at += (size_t)snprintf(out + at, room - at, m + 1 < count ? "%d, " : "%d]", (int)ranks[m]);
    }
}

/* These ranks, ascending; its instances are the groups of them that there were before. */
static weft_status find_ranks(wefti_collectives *c, const int32_t *ranks, int32_t count,
                              wefti_ranks_seen **out) {
    wefti_ranks_seen *s = c->seen;
    size_t bytes = (size_t)count * sizeof *s->ranks;
    while (s && (s->count != count || memcmp(s->ranks, ranks, bytes) != 0)) s = s->next;
    if (!s) {
        s = wefti_calloc(1, sizeof *s + bytes);
        WEFT_REQUIRE(s, WEFT_E_NOMEM, "no memory for a group of %d ranks", (int)count);
        s->count = count;
        memcpy(s->ranks, ranks, bytes);
        s->next = c->seen;
        c->seen = s;
    }
    *out = s;
    return WEFT_OK;
}

/* Sorts the members of a group by their ranks. place: [world], scratch; -1 where no member is.
 * WEFT_E_ARG: a rank occurs twice, or there is no such rank. */
static weft_status sort_members(const int *ranks, int32_t count, int32_t world, int32_t *place,
                                int32_t *member, int32_t *sorted) {
    for (int32_t r = 0; r < world; r++) place[r] = -1;
    for (int32_t m = 0; m < count; m++) {
        int rank = ranks[m];
        WEFT_REQUIRE(rank >= 0 && rank < world, WEFT_E_ARG,
                     "a group names rank %d; there are 0 to %d", rank, (int)world - 1);
        WEFT_REQUIRE(place[rank] < 0, WEFT_E_ARG,
                     "a group names rank %d twice, as member %d and %d", rank, (int)place[rank],
                     (int)m);
        place[rank] = m;
    }
    for (int32_t r = 0, found = 0; r < world; r++) {
        if (place[r] < 0) continue;
        member[found] = place[r];
        sorted[found++] = r;
    }
    return WEFT_OK;
}

static weft_status new_group(wefti_collectives *c, const int *ranks, int32_t count,
                             weft_group **out) {
    int32_t world = c->world->size;
    weft_group *group = wefti_calloc(1, sizeof *group);
    int32_t *own = wefti_calloc(2 * (size_t)count, sizeof *own);
    int32_t *scratch = wefti_calloc((size_t)count + (size_t)world, sizeof *scratch);
    weft_status status =
        group && own && scratch
            ? WEFT_OK
            : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a group of %d ranks", (int)count);
    wefti_ranks_seen *seen = NULL;
    if (status >= 0)
        status = sort_members(ranks, count, world, scratch + count, own + count, scratch);
    if (status >= 0) status = find_ranks(c, scratch, count, &seen);
    wefti_free(scratch);
    if (status < 0) {
        wefti_free(own);
        wefti_free(group);
        return status;
    }
    uint32_t instance = seen->instances++;
    *group = (weft_group){.of = c,
                          .seen = seen,
                          .next = c->groups,
                          .ranks = own,
                          .member = own + count,
                          .count = count,
                          .me = -1,
                          .references = 1,
                          .instance = instance,
                          .serial = ++c->made,
                          .identity = wefti_group_mix((uint64_t)count, instance)};
    for (int32_t m = 0; m < count; m++) {
        own[m] = ranks[m];
        group->identity = wefti_group_mix(group->identity, (uint64_t)ranks[m]);
        if (ranks[m] == c->world->rank) group->me = m;
    }
    wefti_group_name(own, count, c->world->size, group->name);
    c->groups = group;
    *out = group;
    return WEFT_OK;
}

weft_status wefti_collectives_of(weft_world *world, wefti_collectives **out) {
    WEFT_REQUIRE(world, WEFT_E_ARG, "no world is given");
    if (!world->collectives) {
        wefti_collectives *c = wefti_calloc(1, sizeof *c);
        int *all = c ? wefti_calloc((size_t)world->size, sizeof *all) : NULL;
        weft_status status = all ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for collectives");
        if (status >= 0) {
            for (int32_t r = 0; r < world->size; r++) all[r] = r;
            c->world = world;
            status = new_group(c, all, world->size, &c->everyone);
        }
        wefti_free(all);
        if (status < 0) {
            wefti_free(c);
            return status;
        }
        world->collectives = c;
    }
    *out = world->collectives;
    return WEFT_OK;
}

void wefti_collectives_destroy(wefti_collectives *c) {
    if (!c) return;
    for (weft_group *g = c->groups; g; g = g->next) g->of = NULL;
    wefti_bound_drop(c, NULL);
    for (wefti_ranks_seen *s = c->seen, *next; s; s = next) {
        next = s->next;
        wefti_free(s);
    }
    wefti_group_release(c->everyone);
    wefti_free(c->blocks);
    wefti_free(c->messages);
    wefti_free(c);
}

weft_status wefti_group_find(weft_world *world, weft_group *group, weft_group **out) {
    wefti_collectives *c;
    WEFT_TRY(wefti_collectives_of(world, &c));
    WEFT_REQUIRE(!group || group->of == c, WEFT_E_ARG, "%s is of another world than the one given",
                 group->name);
    *out = group ? group : c->everyone;
    WEFT_REQUIRE_OF(world->rank, (*out)->me >= 0, WEFT_E_ARG, "rank %d is not a member of %s",
                    (int)world->rank, (*out)->name);
    return WEFT_OK;
}

void wefti_group_release(weft_group *group) {
    if (!group || --group->references > 0) return;
    if (group->of) {
        wefti_record_end(group);
        weft_group **at = &group->of->groups;
        while (*at != group) at = &(*at)->next;
        *at = group->next;
    }
    wefti_free(group->ranks);
    wefti_free(group);
}

weft_status weft_group_create(weft_world *world, const int *ranks, int count, weft_group **out) {
    wefti_collectives *c;
    WEFT_TRY(wefti_collectives_of(world, &c));
    WEFT_REQUIRE(out, WEFT_E_ARG, "weft_group_create: the output pointer is NULL");
    WEFT_REQUIRE(ranks && count >= 1 && count <= world->size, WEFT_E_ARG,
                 "a group of %d ranks in a world of %d", count, (int)world->size);
    return new_group(c, ranks, count, out);
}

void weft_group_destroy(weft_group *group) {
    if (!group) return;
    if (group->of) wefti_bound_drop(group->of, group);
    wefti_group_release(group);
}

int weft_group_size(const weft_group *group) {
    return group->count;
}
int weft_group_rank(const weft_group *group) {
    return group->me;
}
int weft_group_world_rank(const weft_group *group, int rank) {
    return rank >= 0 && rank < group->count ? group->ranks[rank] : -1;
}
