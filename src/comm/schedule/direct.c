/* Direct: each member gets every part that it wants from those that have it, in one message from
 * each. The shortest way for few members or much data that goes different ways. Members send to
 * those after them first, so that not all send to the same one. */
#include "comm/schedule/build.h"

/* What goes from one member to another: pieces that follow each other in the message. */
typedef struct parcel {
    int64_t bytes;
    wefti_commsched_place at; /* of its first piece, as far as it is staged */
    int64_t pieces;
    bool whole; /* not staged: one piece that lies in one run at `at` */
} parcel;

static void weigh(const wefti_commsched_build *b, const wefti_piece_list *pieces, int32_t from,
                  const wefti_region *box, wefti_commsched_array array, bool may_be_whole,
                  parcel *out) {
    *out = (parcel){.whole = may_be_whole};
    for (int64_t n = 0; n < pieces->used; n++) {
        const wefti_region *piece = &pieces->box[n];
        int64_t first;
        if (!wefti_set_has(wefti_piece_from(pieces, n), from)) continue;
        out->bytes += wefti_commsched_bytes(b, piece);
        out->whole =
            out->whole && out->pieces++ == 0 && wefti_commsched_run(piece, box, b->t->rank, &first);
        if (out->whole) out->at = wefti_commsched_at(array, first * b->element);
    }
}

/* Round 0 packs pieces of one message together. Round 1 sends. */
static weft_status pack(wefti_commsched_build *b, const wefti_piece_list *pieces, parcel *out) {
    const wefti_transfer *t = b->t;
    const wefti_region *have = &t->have[t->me];
    weigh(b, pieces, t->me, have, WEFTI_COMMSCHED_SOURCE, true, out);
    if (out->whole || out->bytes == 0) return WEFT_OK;
    wefti_commsched_place place = out->at = wefti_commsched_stage_space(b, out->bytes);
    wefti_commsched_place source = {WEFTI_COMMSCHED_SOURCE, 0};
    for (int64_t n = 0; n < pieces->used; n++) {
        const wefti_region *piece = &pieces->box[n];
        if (!wefti_set_has(wefti_piece_from(pieces, n), t->me)) continue;
        WEFT_TRY(wefti_commsched_op_regions(b, piece, t->rank, place, piece, 1, &source, have));
        place.offset += wefti_commsched_bytes(b, piece);
    }
    return WEFT_OK;
}

/* What comes from one member, to where it is wanted or into the stage. */
static weft_status expect(wefti_commsched_build *b, const wefti_piece_list *pieces, int32_t from,
                          parcel *out) {
    const wefti_transfer *t = b->t;
    weigh(b, pieces, from, &t->want[t->me], WEFTI_COMMSCHED_DESTINATION,
          t->reduction == WEFTI_REDUCE_NONE, out);
    if (out->bytes == 0) return WEFT_OK;
    if (!out->whole) out->at = wefti_commsched_stage_space(b, out->bytes);
    return wefti_commsched_receive(b, from, out->at, out->bytes, wefti_commsched_current_round(b));
}

/* One piece, out of the own source and the received data. */
static weft_status settle(wefti_commsched_build *b, const wefti_piece_list *pieces, int64_t n,
                          parcel *parcels, wefti_commsched_place *from, wefti_region *boxes) {
    const wefti_transfer *t = b->t;
    const wefti_region *piece = &pieces->box[n];
    int32_t sources = 0;
    for (int32_t m = 0; m < t->members; m++) {
        if (!wefti_set_has(wefti_piece_from(pieces, n), m)) continue;
        if (m == t->me) {
            from[sources] = (wefti_commsched_place){WEFTI_COMMSCHED_SOURCE, 0};
            boxes[sources++] = t->have[m];
        } else if (!parcels[m].whole) {
            from[sources] = parcels[m].at;
            boxes[sources++] = *piece;
            parcels[m].at.offset += wefti_commsched_bytes(b, piece);
        }
    }
    if (sources == 0) return WEFT_OK; /* came to where it is wanted */
    return wefti_commsched_op_regions(b, piece, t->rank,
                                      (wefti_commsched_place){WEFTI_COMMSCHED_DESTINATION, 0},
                                      &t->want[t->me], sources, from, boxes);
}

static weft_status build(wefti_commsched_build *b, wefti_piece_list *pieces, parcel *parcels,
                         wefti_commsched_place *from, wefti_region *boxes) {
    const wefti_transfer *t = b->t;
    WEFT_TRY(wefti_commsched_begin_round(b));
    for (int32_t m = 0; m < t->members; m++) {
        if (m == t->me) continue;
        if (wefti_region_elems(&t->have[t->me], t->rank) == 0) break;
        WEFT_TRY(wefti_pieces_find(t, m, pieces));
        WEFT_TRY(pack(b, pieces, &parcels[m]));
    }
    WEFT_TRY(wefti_commsched_begin_round(b));
    for (int32_t i = 1; i < t->members; i++) {
        int32_t m = (t->me + i) % t->members;
        WEFT_TRY(wefti_commsched_send(b, m, parcels[m].at, parcels[m].bytes));
    }
    WEFT_TRY(wefti_pieces_find(t, t->me, pieces));
    for (int32_t i = 1; i < t->members; i++) {
        int32_t m = (t->me + t->members - i) % t->members;
        WEFT_TRY(expect(b, pieces, m, &parcels[m]));
    }
    for (int64_t n = 0; n < pieces->used; n++) WEFT_TRY(settle(b, pieces, n, parcels, from, boxes));
    /* The result may replace the source. */
    b->plan->round[wefti_commsched_current_round(b)].sends_first =
        t->reduction != WEFTI_REDUCE_NONE &&
        wefti_regions_equal(&t->have[t->me], &t->want[t->me], t->rank);
    return WEFT_OK;
}

weft_status wefti_commsched_direct(wefti_commsched_build *b) {
    size_t members = (size_t)b->t->members;
    wefti_piece_list pieces = {0};
    parcel *parcels = wefti_calloc(members, sizeof *parcels);
    wefti_commsched_place *from = wefti_calloc(members, sizeof *from);
    wefti_region *boxes = wefti_calloc(members, sizeof *boxes);
    weft_status status = parcels && from && boxes
                             ? build(b, &pieces, parcels, from, boxes)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %zu members", members);
    wefti_pieces_free(&pieces);
    wefti_free(parcels);
    wefti_free(from);
    wefti_free(boxes);
    return status;
}
