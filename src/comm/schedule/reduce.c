/* Reductions of arrays that all members have: by shares, and along a chain.
 *
 * Shares: each member receives its share of the elements from all others, reduces it in the order
 * of members, and sends the result to the members that want it. Each byte travels no further than
 * necessary. Arrays are divided into segments, so that one segment is reduced while the next one
 * arrives.
 *
 * Chain: chunks go from the first member to the last. Each member adds its own data, which gives
 * the same order. The last member sends the result back along the chain, or to the one member that
 * wants it. Only neighbours exchange messages. Partial sums must have the precision of the result,
 * so the chain is not possible for halves, whose sums are f32. */
#include "base/number.h"
#include "comm/schedule/build.h"

static wefti_commsched_place place_of(const wefti_commsched_build *b, wefti_commsched_array array,
                                      wefti_commsched_span s) {
    return wefti_commsched_at(array, s.begin * b->element);
}
static bool wanted_end(const wefti_commsched_build *b, int32_t member) {
    return wefti_region_elems(&b->t->want[member], b->t->rank) > 0;
}

/* --- shares --- */

enum { REDUCE_SLOTS = 3 /* segments that are staged at a time */, MOST_SEGMENTS = 256 };

typedef struct share_work {
    int64_t segments;
    wefti_commsched_place in[REDUCE_SLOTS],
        out;                     /* others' parts of my share, [members]; the result */
    int64_t in_bytes;            /* of one member */
    int64_t *sent;               /* [2][members]: the sends of their shares, of two segments */
    wefti_commsched_place *from; /* [members] */
} share_work;

static wefti_commsched_span share_of(const wefti_commsched_build *b, const share_work *w,
                                     int64_t segment, int32_t member) {
    return wefti_commsched_part(
        b, wefti_commsched_part(b, wefti_commsched_whole(b), segment, w->segments), member,
        b->t->members);
}

/* Where the own share is reduced to. */
static wefti_commsched_place result_of(const wefti_commsched_build *b, const share_work *w,
                                       wefti_commsched_span mine) {
    if (wanted_end(b, b->t->me)) return place_of(b, WEFTI_COMMSCHED_DESTINATION, mine);
    return wefti_commsched_at(w->out.array, w->out.offset + mine.begin * b->element);
}

/* The others' parts of my share of a segment, and mine of theirs. */
static weft_status collect(wefti_commsched_build *b, share_work *w, int64_t segment) {
    const wefti_transfer *t = b->t;
    int32_t g = t->members, now = wefti_commsched_current_round(b);
    wefti_commsched_span mine = share_of(b, w, segment, t->me);
    for (int32_t i = 1; i < g; i++) {
        int32_t m = (t->me + i) % g;
        wefti_commsched_span theirs = share_of(b, w, segment, m);
        WEFT_TRY(wefti_commsched_send(b, m, place_of(b, WEFTI_COMMSCHED_SOURCE, theirs),
                                      theirs.count * b->element));
        w->sent[segment % 2 * g + m] = b->plan->sends - 1;
    }
    wefti_commsched_place slot = w->in[segment % REDUCE_SLOTS];
    int32_t gate =
        segment < REDUCE_SLOTS ? 0 : now - REDUCE_SLOTS + 1; /* its last user has been reduced */
    for (int32_t i = 1; i < g; i++) {
        int32_t m = (t->me + g - i) % g;
        w->from[m] = wefti_commsched_at(slot.array, slot.offset + m * w->in_bytes);
        WEFT_TRY(wefti_commsched_receive_gated(b, m, w->from[m], mine.count * b->element, now, gate,
                                               -1));
    }
    w->from[t->me] = place_of(b, WEFTI_COMMSCHED_SOURCE, mine);
    return wefti_commsched_op_flat(b, mine.count, result_of(b, w, mine), g, w->from);
}

/* Results of a segment: receive them from the members that reduced them, and send own ones. */
static weft_status hand_on(wefti_commsched_build *b, share_work *w, int64_t segment) {
    const wefti_transfer *t = b->t;
    int32_t g = t->members;
    wefti_commsched_span mine = share_of(b, w, segment, t->me);
    wefti_commsched_place at = result_of(b, w, mine);
    for (int32_t i = 1; i < g; i++) {
        int32_t m = (t->me + i) % g;
        if (wanted_end(b, m)) WEFT_TRY(wefti_commsched_send(b, m, at, mine.count * b->element));
    }
    for (int32_t i = 1; i < g && wanted_end(b, t->me); i++) {
        int32_t m = (t->me + g - i) % g;
        wefti_commsched_span theirs = share_of(b, w, segment, m);
        /* Where source and destination are the same, what I sent from there must have left. */
        WEFT_TRY(wefti_commsched_receive_gated(
            b, m, place_of(b, WEFTI_COMMSCHED_DESTINATION, theirs), theirs.count * b->element,
            (int32_t)w->segments, 0, w->sent[segment % 2 * g + m]));
    }
    return WEFT_OK;
}

static weft_status build_shares(wefti_commsched_build *b, share_work *w) {
    int32_t g = b->t->members;
    int64_t segment = WEFTI_COMMSCHED_CHUNK * (int64_t)g;
    w->segments = (wefti_commsched_whole(b).count * b->element + segment - 1) / segment;
    if (w->segments < 1) w->segments = 1;
    if (w->segments > MOST_SEGMENTS) w->segments = MOST_SEGMENTS;
    for (int64_t s = 0; s < w->segments; s++) {
        int64_t bytes = share_of(b, w, s, b->t->me).count * b->element;
        if (bytes > w->in_bytes) w->in_bytes = bytes;
    }
    w->in_bytes = wefti_aligned(w->in_bytes);
    for (int i = 0; i < REDUCE_SLOTS && i < w->segments; i++)
        w->in[i] = wefti_commsched_stage_space(b, w->in_bytes * g);
    if (!wanted_end(b, b->t->me))
        w->out = wefti_commsched_stage_space(b, wefti_commsched_whole(b).count * b->element);
    for (int64_t s = 0; s <= w->segments; s++) {
        WEFT_TRY(wefti_commsched_begin_round(b));
        if (s < w->segments) WEFT_TRY(collect(b, w, s));
        if (s > 0) WEFT_TRY(hand_on(b, w, s - 1));
    }
    return WEFT_OK;
}

weft_status wefti_commsched_shares(wefti_commsched_build *b) {
    share_work w = {0};
    size_t members = (size_t)b->t->members;
    w.sent = wefti_calloc(2 * members, sizeof *w.sent);
    w.from = wefti_calloc(members, sizeof *w.from);
    weft_status status = w.sent && w.from
                             ? build_shares(b, &w)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %zu members", members);
    wefti_free(w.sent);
    wefti_free(w.from);
    return status;
}

/* --- chain --- */

typedef struct chain_work {
    int64_t chunks;
    int32_t back; /* rounds between a chunk's way there and its way back, at this member */
    wefti_commsched_place in[REDUCE_SLOTS], out;
    int64_t *sent; /* [chunks]: its send to the next member */
} chain_work;

static wefti_commsched_place chain_result(const wefti_commsched_build *b, const chain_work *w,
                                          wefti_commsched_span s) {
    if (wanted_end(b, b->t->me)) return place_of(b, WEFTI_COMMSCHED_DESTINATION, s);
    return wefti_commsched_at(w->out.array, w->out.offset + s.begin * b->element);
}

/* Chunk number k on its way there: it comes in round k, and goes on in the next. */
static weft_status go_on(wefti_commsched_build *b, chain_work *w, int64_t k) {
    const wefti_transfer *t = b->t;
    if (t->me < t->members - 1 && k >= 1 && k <= w->chunks) {
        wefti_commsched_span gone =
            wefti_commsched_part(b, wefti_commsched_whole(b), k - 1, w->chunks);
        wefti_commsched_place at =
            t->me == 0 ? place_of(b, WEFTI_COMMSCHED_SOURCE, gone) : chain_result(b, w, gone);
        WEFT_TRY(wefti_commsched_send(b, t->me + 1, at, gone.count * b->element));
        w->sent[k - 1] = b->plan->sends - 1;
    }
    if (t->me == 0 || k >= w->chunks) return WEFT_OK;
    wefti_commsched_span chunk = wefti_commsched_part(b, wefti_commsched_whole(b), k, w->chunks);
    int32_t gate = k < REDUCE_SLOTS ? 0 : (int32_t)k - REDUCE_SLOTS + 1;
    wefti_commsched_place from[2] = {w->in[k % REDUCE_SLOTS],
                                     place_of(b, WEFTI_COMMSCHED_SOURCE, chunk)};
    WEFT_TRY(wefti_commsched_receive_gated(b, t->me - 1, from[0], chunk.count * b->element,
                                           (int32_t)k, gate, -1));
    return wefti_commsched_op_flat(b, chunk.count, chain_result(b, w, chunk), 2, from);
}

/* Back along the chain, to all. */
static weft_status go_back(wefti_commsched_build *b, chain_work *w, int64_t k) {
    const wefti_transfer *t = b->t;
    int64_t gone = k - w->back - 1, coming = k - w->back;
    if (t->me > 0 && gone >= 0 && gone < w->chunks) {
        wefti_commsched_span s = wefti_commsched_part(b, wefti_commsched_whole(b), gone, w->chunks);
        WEFT_TRY(wefti_commsched_send(b, t->me - 1, place_of(b, WEFTI_COMMSCHED_DESTINATION, s),
                                      s.count * b->element));
    }
    if (t->me == t->members - 1 || coming < 0 || coming >= w->chunks) return WEFT_OK;
    wefti_commsched_span s = wefti_commsched_part(b, wefti_commsched_whole(b), coming, w->chunks);
    return wefti_commsched_receive_gated(b, t->me + 1, place_of(b, WEFTI_COMMSCHED_DESTINATION, s),
                                         s.count * b->element, (int32_t)k, 0, w->sent[coming]);
}

/* From the last member to the one that wants it. */
static weft_status hand_over(wefti_commsched_build *b, chain_work *w, int64_t k) {
    const wefti_transfer *t = b->t;
    int32_t last = t->members - 1;
    if (b->first == last) return WEFT_OK;
    int64_t gone = k - 1, coming = k - w->back;
    if (t->me == last && gone >= 0 && gone < w->chunks) {
        wefti_commsched_span s = wefti_commsched_part(b, wefti_commsched_whole(b), gone, w->chunks);
        WEFT_TRY(wefti_commsched_send(b, b->first, chain_result(b, w, s), s.count * b->element));
    }
    if (t->me != b->first || coming < 0 || coming >= w->chunks) return WEFT_OK;
    wefti_commsched_span s = wefti_commsched_part(b, wefti_commsched_whole(b), coming, w->chunks);
    return wefti_commsched_receive_gated(b, last, place_of(b, WEFTI_COMMSCHED_DESTINATION, s),
                                         s.count * b->element, (int32_t)k, 0, w->sent[coming]);
}

static weft_status build_chain(wefti_commsched_build *b, chain_work *w) {
    const wefti_transfer *t = b->t;
    int32_t after = t->members - 1 - t->me; /* members behind this one */
    bool to_all = b->form == WEFTI_COMMSCHED_ALL_REDUCE;
    wefti_commsched_span first = wefti_commsched_part(b, wefti_commsched_whole(b), 0, w->chunks);
    for (int64_t k = 0; k < w->chunks; k++) {
        wefti_commsched_span s = wefti_commsched_part(b, wefti_commsched_whole(b), k, w->chunks);
        if (s.count > first.count) first = s;
    }
    for (int i = 0; i < REDUCE_SLOTS && t->me > 0; i++)
        w->in[i] = wefti_commsched_stage_space(b, first.count * b->element);
    if (!wanted_end(b, t->me))
        w->out = wefti_commsched_stage_space(b, wefti_commsched_whole(b).count * b->element);
    w->back = to_all ? 2 * after : after + 1;
    for (int64_t k = 0; k < w->chunks + w->back + 1; k++) {
        WEFT_TRY(wefti_commsched_begin_round(b));
        WEFT_TRY(go_on(b, w, k));
        WEFT_TRY(to_all ? go_back(b, w, k) : hand_over(b, w, k));
    }
    return WEFT_OK;
}

weft_status wefti_commsched_chain(wefti_commsched_build *b) {
    chain_work w = {.chunks = wefti_commsched_chunks(wefti_commsched_whole(b).count * b->element)};
    WEFT_NEW_ARRAY(w.sent, int64_t, w.chunks);
    weft_status status = build_chain(b, &w);
    wefti_free(w.sent);
    return status;
}
