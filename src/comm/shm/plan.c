/* Plans of transfers between threads: see comm/shm/plan.h. */
#include "comm/shm/plan.h"

#include "comm/copy.h"
#include "comm/reduce/reduce.h"

static int64_t box_bytes(const wefti_transfer *t, const wefti_region *box) {
    return wefti_region_elems(box, t->rank) * (int64_t)weft_dtype_bytes(t->dtype);
}
/* Boxes that differ along one dimension only, before which there is nothing but ones: each part of
 * one is a run of neighbours in all of them. */
static bool has_runs_only(const wefti_transfer *t) {
    const wefti_region *first = NULL;
    int axis = -1;
    for (int32_t i = 0; i < 2 * t->members; i++) {
        const wefti_region *box = i % 2 ? &t->want[i / 2] : &t->have[i / 2];
        if (wefti_region_elems(box, t->rank) == 0) continue;
        if (!first) first = box;
        for (int d = 0; d < t->rank; d++) {
            if (box->begin[d] == first->begin[d] && box->size[d] == first->size[d]) continue;
            if (axis >= 0 && axis != d) return false;
            axis = d;
        }
    }
    for (int d = 0; d < axis; d++)
        if (first->size[d] != 1) return false;
    return true;
}

/* Of more than a few bytes: those that all reduce all of are like other transfers. */
static bool is_all_reduce(const wefti_transfer *t) {
    if (t->reduction == WEFTI_REDUCE_NONE || t->members < 2 ||
        wefti_region_elems(&t->have[0], t->rank) == 0 ||
        box_bytes(t, &t->have[0]) <= WEFTI_SHM_TINY)
        return false;
    for (int32_t m = 0; m < t->members; m++)
        if (!wefti_regions_equal(&t->have[m], &t->have[0], t->rank) ||
            !wefti_regions_equal(&t->want[m], &t->have[0], t->rank))
            return false;
    return true;
}

static void *reserve(wefti_arena *arena, int64_t count, size_t bytes) {
    return wefti_arena_alloc(arena, (size_t)(count > 0 ? count : 1) * bytes);
}

static weft_status prepare_moves(wefti_arena *arena, const wefti_piece_list *pieces,
                                 wefti_shm_plan *plan) {
    const wefti_transfer *t = &plan->transfer;
    wefti_copy_move *moves = reserve(arena, pieces->used, sizeof *moves);
    WEFT_REQUIRE(moves, WEFT_E_NOMEM, "no memory for %lld moves", (long long)pieces->used);
    int streamed = wefti_copy_streamed(box_bytes(t, &t->want[t->me]));
    for (int64_t n = 0; n < pieces->used; n++) {
        int32_t sources = wefti_set_count(wefti_piece_from(pieces, n), pieces->words), found = 0;
        int32_t *members = reserve(arena, sources, sizeof *members);
        wefti_move_side *sides = reserve(arena, sources, sizeof *sides);
        WEFT_REQUIRE(members && sides, WEFT_E_NOMEM, "no memory for a move of %d sources",
                     (int)sources);
        for (int32_t m = 0; m < t->members; m++)
            if (wefti_set_has(wefti_piece_from(pieces, n), m)) members[found++] = m;
        wefti_move_prepare(&pieces->box[n], t->rank, t->dtype, t->reduction, &t->want[t->me],
                           t->have, members, sources, sides, &moves[n]);
        moves[n].streamed = streamed;
    }
    plan->moves = pieces->used;
    plan->move = moves;
    return WEFT_OK;
}

/* Shares begin at cache lines (64 bytes), so that two members never write one. */
static void share_of(const wefti_shm_plan *plan, int32_t member, int64_t *first, int64_t *count) {
    const wefti_transfer *t = &plan->transfer;
    int64_t elements = wefti_region_elems(&t->have[0], t->rank);
    int64_t line = 64 / (int64_t)weft_dtype_bytes(t->dtype), lines = (elements + line - 1) / line;
    int64_t begin = lines * member / t->members * line;
    int64_t end = lines * (member + 1) / t->members * line;
    *first = begin;
    *count = (end < elements ? end : elements) - begin;
}

/* Chunks of about this many bytes, and few enough to be counted in the bits of a word. */
static void cut_chunks(wefti_shm_plan *plan, int64_t chunk, int64_t most) {
    enum { LINE = 64, MOST_CHUNKS = (1 << WEFTI_SHM_CHUNK_BITS) - 1 };
    int64_t line = LINE / (int64_t)weft_dtype_bytes(plan->transfer.dtype);
    int64_t least = (most + MOST_CHUNKS - 1) / MOST_CHUNKS;
    if (chunk < least) chunk = (least + line - 1) / line * line;
    plan->chunk = chunk < most ? chunk : most;
    plan->chunks = (most + plan->chunk - 1) / plan->chunk;
}

static void prepare_share(wefti_shm_plan *plan) {
    enum { CHUNKS = 64 << 10 /* bytes of one from all shares */, LINE = 64 };
    const wefti_transfer *t = &plan->transfer;
    int64_t bytes = (int64_t)weft_dtype_bytes(t->dtype), most = 0;
    for (int32_t m = 0; m < t->members; m++) {
        share_of(plan, m, &plan->first, &plan->count);
        if (plan->count > most) most = plan->count;
    }
    share_of(plan, t->me, &plan->first, &plan->count);
    cut_chunks(plan, (CHUNKS / LINE + t->members - 1) / t->members * (LINE / bytes), most);
    plan->streams_others =
        plan->bytes >= wefti_copy_cache() / 2 && plan->bytes >= wefti_copy_kept() / 2;
    plan->streams_own = plan->bytes / 16 >= wefti_copy_cache();
}

/* An all-gather of runs to which each member gives a part, so that each waits for all others. */
static bool is_all_gather_of_runs(const wefti_shm_plan *plan) {
    int32_t parts;
    return plan->runs && plan->moves == plan->transfer.members &&
           wefti_transfer_is_all_gather(&plan->transfer, &parts) && parts == plan->transfer.members;
}

static void prepare_gather(wefti_shm_plan *plan, wefti_shm_partner *partner) {
    enum { CHUNK = 64 << 10, LONG = 48 << 20 /* measured; all members must agree on it */ };
    const wefti_transfer *t = &plan->transfer;
    int64_t most = 0, size = (int64_t)weft_dtype_bytes(t->dtype);
    for (int64_t n = 0; n < plan->moves; n++) {
        const wefti_copy_move *move = &plan->move[n];
        if (move->run > most) most = move->run;
        if (move->members[0] == t->me) plan->first = move->to.offset, plan->count = move->run;
        for (int32_t i = 0; i < plan->partners; i++)
            if (partner[i].member == move->members[0])
                partner[i].first = move->to.offset, partner[i].count = move->run;
    }
    int64_t bytes = size * wefti_region_elems(&t->want[0], t->rank);
    plan->gathered_streamed = wefti_copy_streamed(bytes);
    plan->gathers_long = bytes >= LONG;
    cut_chunks(plan, CHUNK / size, most);
}

/* The members that each member takes from. */
typedef struct taken_from {
    bool alike;   /* every member that wants anything takes from the set `of` */
    uint64_t *of; /* [words]; if they differ [members][words] */
    int32_t words;
} taken_from;

static bool takes_from(const taken_from *takes, const wefti_transfer *t, int32_t m, int32_t other) {
    if (!takes->alike) return wefti_set_has(takes->of + (size_t)m * (size_t)takes->words, other);
    return wefti_region_elems(&t->want[m], t->rank) > 0 && wefti_set_has(takes->of, other);
}

static weft_status find_partners(wefti_arena *arena, const taken_from *takes,
                                 wefti_shm_plan *plan) {
    const wefti_transfer *t = &plan->transfer;
    wefti_shm_partner *partner = reserve(arena, t->members, sizeof *partner);
    WEFT_REQUIRE(partner, WEFT_E_NOMEM, "no memory for %d partners", (int)t->members);
    bool one_way = false;
    bool tiny = plan->bytes <= WEFTI_SHM_TINY;
    for (int32_t m = 0; m < t->members; m++) {
        bool gives = plan->shares || takes_from(takes, t, t->me, m);
        bool taken = plan->shares || takes_from(takes, t, m, t->me);
        if (m == t->me || !(gives || taken)) continue;
        wefti_shm_partner p = {.member = m, .gives = gives, .touches = taken};
        if (plan->shares) share_of(plan, m, &p.first, &p.count);
        partner[plan->partners++] = p;
        one_way |= taken && !gives;
    }
    plan->small = tiny || (one_way && plan->bytes <= WEFTI_SHM_SMALL);
    for (int32_t i = 0; i < plan->partners; i++) {
        plan->staged |= partner[i].touches && !plan->small && !plan->shares &&
                        t->reduction != WEFTI_REDUCE_NONE &&
                        wefti_regions_equal(&t->have[t->me], &t->want[t->me], t->rank);
        partner[i].touches &= !plan->small;
        plan->exposes |= partner[i].touches;
        /* This member looks at the posts of partners that it only waits for, too: they may have
         * posted something else. */
        partner[i].gives |= partner[i].touches;
    }
    plan->gathers = is_all_gather_of_runs(plan);
    if (plan->gathers) prepare_gather(plan, partner);
    plan->partner = partner;
    return WEFT_OK;
}

/* Whether all members take from the same ones, whatever they want: all have the same region of what
 * is reduced, or each element lies with one member and all want all. */
static bool are_alike(const wefti_transfer *t) {
    bool reduces = t->reduction != WEFTI_REDUCE_NONE;
    for (int32_t m = 1; m < t->members && reduces; m++)
        if (!wefti_regions_equal(&t->have[m], &t->have[0], t->rank)) return false;
    return reduces || wefti_transfer_is_all_gather(t, NULL);
}

/* Each member knows what all members take. The pieces of all of them are as many as the square of
 * the members: they are found only if it must be. */
static weft_status find_takes(wefti_piece_list *pieces, const wefti_transfer *t, taken_from *out) {
    out->words = wefti_set_words(t->members);
    out->alike = are_alike(t);
    size_t sets = out->alike ? 1 : (size_t)t->members;
    out->of = wefti_calloc(sets * (size_t)out->words, sizeof *out->of);
    WEFT_REQUIRE(out->of, WEFT_E_NOMEM, "no memory for %d members", (int)t->members);
    for (int32_t m = 0; m < t->members; m++) {
        if (out->alike) {
            if (wefti_region_elems(&t->have[m], t->rank) > 0) wefti_set_add(out->of, m);
            continue;
        }
        uint64_t *of = out->of + (size_t)m * (size_t)out->words;
        WEFT_TRY(wefti_pieces_find(t, m, pieces));
        for (int64_t n = 0; n < pieces->used; n++)
            for (int32_t i = 0; i < out->words; i++) of[i] |= wefti_piece_from(pieces, n)[i];
    }
    return WEFT_OK;
}

static weft_status fill_plan(wefti_arena *arena, wefti_piece_list *pieces, taken_from *takes,
                             wefti_shm_plan *plan) {
    const wefti_transfer *t = &plan->transfer;
    if (plan->shares) {
        prepare_share(plan);
    } else {
        WEFT_TRY(find_takes(pieces, t, takes));
        WEFT_TRY(wefti_pieces_find(t, t->me, pieces));
        WEFT_TRY(prepare_moves(arena, pieces, plan));
    }
    return find_partners(arena, takes, plan);
}

weft_status wefti_shm_plan_create(wefti_arena *arena, const wefti_transfer *t,
                                  wefti_shm_plan **out) {
    wefti_shm_plan *plan = reserve(arena, 1, sizeof *plan);
    WEFT_REQUIRE(plan, WEFT_E_NOMEM, "no memory for a transfer");
    plan->hash = wefti_transfer_digest(t);
    plan->transfer = *t;
    size_t staging = (size_t)t->members * sizeof *t->have;
    plan->transfer.ranks = reserve(arena, t->members, sizeof *t->ranks);
    plan->transfer.have = reserve(arena, t->members, sizeof *t->have);
    plan->transfer.want = reserve(arena, t->members, sizeof *t->want);
    const char *name = t->name ? t->name : "a tensor";
    plan->transfer.name = wefti_arena_strdup(arena, name);
    plan->text = wefti_arena_format(
        arena, "%s of %s (%s, %lld elements)", wefti_transfer_kind_text(t->kind), name,
        weft_dtype_text(t->dtype), (long long)wefti_region_elems(&t->have[t->me], t->rank));
    WEFT_REQUIRE(plan->transfer.ranks && plan->transfer.have && plan->transfer.want &&
                     plan->transfer.name && plan->text,
                 WEFT_E_NOMEM, "no memory for a transfer of %d members", (int)t->members);
    memcpy(plan->transfer.ranks, t->ranks, (size_t)t->members * sizeof *t->ranks);
    memcpy(plan->transfer.have, t->have, staging);
    memcpy(plan->transfer.want, t->want, staging);
    plan->bytes = box_bytes(t, &t->have[t->me]);
    plan->shares = is_all_reduce(t);
    plan->runs = plan->shares || has_runs_only(t);
    plan->reduces_runs = plan->runs && t->reduction != WEFTI_REDUCE_NONE;
    wefti_piece_list pieces = {0};
    taken_from takes = {0};
    weft_status status = fill_plan(arena, &pieces, &takes, plan);
    wefti_free(takes.of);
    wefti_pieces_free(&pieces);
    WEFT_TRY(status);
    *out = plan;
    return WEFT_OK;
}

bool wefti_shm_plan_fits(const wefti_shm_plan *plan, const wefti_transfer *t) {
    return plan->transfer.me == t->me && wefti_transfer_equal(&plan->transfer, t) &&
           strcmp(plan->transfer.name, t->name ? t->name : "a tensor") == 0;
}
