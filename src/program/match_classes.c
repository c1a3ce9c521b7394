/* Matching of classes: which classes meet in the groups of a transfer, and transfers up to the
 * ranks and the place of their groups.
 *
 * A group is named by how it lies on the meshes: the ranks along some axes, the ranks with one
 * place in several stages, or all ranks of several stages. Every rank of a class is in a group of
 * the same name. Two classes that have ranks in one group meet, and so do classes that meet a third
 * one: their transfers must equal the transfer of the third. All classes that meet form one
 * channel. */
#include "program/match_parts.h"

#include <string.h>

#include "base/digest/digest.h"
#include "program/groups.h"

typedef struct wefti_match_group {
    struct wefti_match_group *next;
    wefti_group_place name;
    int32_t *lowest; /* per class: the lowest class that it meets, -1: not in such a group */
} wefti_match_group;

static void *make(const wefti_match *m, int64_t count, size_t bytes) {
    return wefti_arena_alloc(m->arena, (size_t)(count + 1) * bytes);
}

/* ---- the classes that meet ---- */

static int32_t lowest_of(int32_t *lowest, int32_t c) {
    while (lowest[c] != c) c = lowest[c] = lowest[lowest[c]];
    return c;
}

static void join(int32_t *lowest, int32_t a, int32_t b) {
    if (lowest[a] < 0) lowest[a] = a;
    if (lowest[b] < 0) lowest[b] = b;
    a = lowest_of(lowest, a);
    b = lowest_of(lowest, b);
    lowest[a > b ? a : b] = a < b ? a : b;
}

static void join_along(const wefti_match *m, wefti_match_group *g) {
    const int32_t *class_of = m->classes->class_of;
    const wefti_mesh *mesh = wefti_group_mesh(m->classes, g->name.firsts[0]);
    for (int32_t i = 0; i < wefti_mesh_size(mesh); i++) {
        int32_t at[WEFTI_MAX_AXES], rank = mesh->first + i;
        wefti_mesh_coordinates(mesh, rank, at);
        for (int a = 0; a < mesh->axes; a++)
            if (g->name.axes >> a & 1u) at[a] = 0;
        join(g->lowest, class_of[wefti_mesh_rank(mesh, at)], class_of[rank]);
    }
}

/* The ranks of stage s meet the ranks of the first stage: of the same place, or all. */
static void join_stages(const wefti_match *m, wefti_match_group *g) {
    const wefti_group_place *name = &g->name;
    const int32_t *class_of = m->classes->class_of, first = name->firsts[0];
    for (int32_t s = 0; s < name->stages; s++)
        for (int32_t i = 0; i < wefti_mesh_size(wefti_group_mesh(m->classes, name->firsts[s])); i++)
            join(g->lowest, class_of[name->form == WEFTI_GROUP_AT ? first + i : first],
                 class_of[name->firsts[s] + i]);
}

static weft_status add_group(wefti_match *m, const wefti_group_place *name,
                             wefti_match_group **out) {
    wefti_match_group *g = make(m, 1, sizeof *g);
    WEFT_REQUIRE(g, WEFT_E_NOMEM, "no memory to match programs");
    g->name = *name;
    g->name.firsts = make(m, name->stages, sizeof *g->name.firsts);
    g->lowest = make(m, m->count, sizeof *g->lowest);
    WEFT_REQUIRE(g->name.firsts && g->lowest, WEFT_E_NOMEM, "no memory to match programs");
    memcpy(g->name.firsts, name->firsts, (size_t)name->stages * sizeof *name->firsts);
    for (int32_t c = 0; c < m->count; c++) g->lowest[c] = -1;
    (name->form == WEFTI_GROUP_ALONG ? join_along : join_stages)(m, g);
    g->next = m->groups;
    m->groups = *out = g;
    return WEFT_OK;
}

static wefti_match_group *find_group(const wefti_match *m, const wefti_group_place *name) {
    for (wefti_match_group *g = m->groups; g; g = g->next)
        if (wefti_group_places_equal(&g->name, name)) return g;
    return NULL;
}

/* The classes that meet `player` in groups of this name, ascending. */
static weft_status meeting(const wefti_match *m, wefti_match_group *g, int32_t player,
                           int32_t **out, int32_t *out_count) {
    const int32_t lowest = lowest_of(g->lowest, player);
    int32_t *list = make(m, m->count, sizeof *list), count = 0;
    WEFT_REQUIRE(list, WEFT_E_NOMEM, "no memory to match programs");
    for (int32_t c = 0; c < m->count; c++)
        if (g->lowest[c] >= 0 && lowest_of(g->lowest, c) == lowest) list[count++] = c;
    *out = list;
    *out_count = count;
    return WEFT_OK;
}

/* ---- groups that lie otherwise ---- */

/* All members of such a group must be built: then it is a group of ranks. */
static weft_status plain_channel(wefti_match *m, const wefti_transfer *t, int32_t player,
                                 wefti_match_end *end) {
    const int32_t rank = m->ranks[player].program->rank;
    int32_t *players = make(m, t->members, sizeof *players);
    WEFT_REQUIRE(players, WEFT_E_NOMEM, "no memory to match programs");
    for (int32_t i = 0; i < t->members; i++) {
        players[i] = m->classes->class_of[t->ranks[i]];
        WEFT_REQUIRE_OF(rank, m->classes->programs[players[i]]->rank == t->ranks[i],
                        WEFT_E_MISMATCH,
                        "rank %d: the ranks of the transfer of '%s' are no group of its mesh, and "
                        "rank %d, equal to rank %d, has no such transfer",
                        rank, t->name ? t->name : "a value without a name", t->ranks[i],
                        m->classes->programs[players[i]]->rank);
    }
    end->slot = t->me;
    return wefti_match_channel_of(m, wefti_transfer_channel(t), t->tag, t->members, players, NULL,
                                  &end->channel);
}

weft_status wefti_match_class_channel(wefti_match *m, const wefti_transfer *t, int32_t player,
                                      wefti_match_end *end) {
    wefti_group_place name = {.firsts = make(m, t->members, sizeof(int32_t))};
    wefti_match_group *group;
    int32_t *players, members;
    WEFT_REQUIRE(name.firsts, WEFT_E_NOMEM, "no memory to match programs");
    if (!wefti_group_find_place(m->classes, t, &name)) return plain_channel(m, t, player, end);
    if (!(group = find_group(m, &name))) WEFT_TRY(add_group(m, &name, &group));
    WEFT_TRY(meeting(m, group, player, &players, &members));
    for (end->slot = 0; players[end->slot] != player;) end->slot++;
    uint64_t hash = wefti_digest_number(wefti_digest_number(t->tag, name.axes),
                                        (uint64_t)name.firsts[0] << 32 | (uint32_t)players[0]);
    return wefti_match_channel_of(m, hash, t->tag, members, players, group, &end->channel);
}

/* ---- transfers up to ranks and place ---- */

/* The lowest begin of all regions in each dimension. */
static void find_begin(const wefti_transfer *t, int64_t out[WEFT_MAX_RANK]) {
    bool known = false;
    memset(out, 0, WEFT_MAX_RANK * sizeof *out);
    for (int32_t i = 0; i < 2 * t->members; i++) {
        const wefti_region *x = i < t->members ? &t->have[i] : &t->want[i - t->members];
        if (wefti_region_elems(x, t->rank) == 0) continue;
        for (int d = 0; d < t->rank; d++)
            if (!known || x->begin[d] < out[d]) out[d] = x->begin[d];
        known = true;
    }
}

/* Where an empty region lies makes no difference. */
static uint64_t digest_region(uint64_t digest, const wefti_region *x, int rank,
                              const int64_t *begin) {
    const bool empty = wefti_region_elems(x, rank) == 0;
    for (int d = 0; d < rank; d++)
        digest = wefti_digest_number(wefti_digest_number(digest, (uint64_t)x->size[d]),
                                     empty ? 0 : (uint64_t)(x->begin[d] - begin[d]));
    return digest;
}

uint64_t wefti_match_form_digest(const wefti_transfer *t) {
    int64_t begin[WEFT_MAX_RANK];
    uint64_t digest = wefti_digest_number(wefti_digest_number(7, t->kind), t->reduction);
    digest = wefti_digest_number(wefti_digest_number(digest, t->dtype), (uint64_t)t->rank);
    digest = wefti_digest_number(digest, (uint64_t)t->members);
    find_begin(t, begin);
    for (int32_t i = 0; i < t->members; i++) {
        digest = digest_region(digest, &t->have[i], t->rank, begin);
        digest = digest_region(digest, &t->want[i], t->rank, begin);
    }
    return digest;
}

static bool same_region(const wefti_region *a, const int64_t *a_begin, const wefti_region *b,
                        const int64_t *b_begin, int rank) {
    const bool empty = wefti_region_elems(a, rank) == 0;
    for (int d = 0; d < rank; d++)
        if (a->size[d] != b->size[d] ||
            (!empty && a->begin[d] - a_begin[d] != b->begin[d] - b_begin[d]))
            return false;
    return true;
}

bool wefti_match_form_equal(const wefti_transfer *a, const wefti_transfer *b) {
    int64_t a_begin[WEFT_MAX_RANK], b_begin[WEFT_MAX_RANK];
    if (a->kind != b->kind || a->reduction != b->reduction || a->dtype != b->dtype ||
        a->rank != b->rank || a->members != b->members)
        return false;
    find_begin(a, a_begin);
    find_begin(b, b_begin);
    for (int32_t i = 0; i < a->members; i++)
        if (!same_region(&a->have[i], a_begin, &b->have[i], b_begin, a->rank) ||
            !same_region(&a->want[i], a_begin, &b->want[i], b_begin, a->rank))
            return false;
    return true;
}
