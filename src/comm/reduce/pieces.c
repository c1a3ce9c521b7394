/* Cutting what a member wants along the boxes that others have: see comm/reduce/reduce.h. */
#include "comm/reduce/reduce.h"

static weft_status add_piece(wefti_piece_list *list, const wefti_region *box,
                             const wefti_member_set *from) {
    WEFT_TRY(WEFT_GROW(list->piece, list->used, list->capacity));
    list->piece[list->used].box = *box;
    list->piece[list->used++].from = *from;
    return WEFT_OK;
}

/* Cuts `inner` out of piece number n, which becomes `inner`. The remainder is appended at the end.
 */
static weft_status cut(wefti_piece_list *list, int64_t n, const wefti_region *inner, int rank) {
    wefti_region rest = list->piece[n].box;
    wefti_member_set from = list->piece[n].from;
    for (int d = 0; d < rank; d++) {
        wefti_region side = rest;
        side.size[d] = inner->begin[d] - rest.begin[d];
        if (side.size[d] > 0) WEFT_TRY(add_piece(list, &side, &from));
        side.begin[d] = inner->begin[d] + inner->size[d];
        side.size[d] = rest.begin[d] + rest.size[d] - side.begin[d];
        if (side.size[d] > 0) WEFT_TRY(add_piece(list, &side, &from));
        rest.begin[d] = inner->begin[d];
        rest.size[d] = inner->size[d];
    }
    list->piece[n].box = *inner;
    return WEFT_OK;
}

static void swap_pieces(wefti_piece *a, wefti_piece *b) {
    wefti_piece kept = *a;
    *a = *b;
    *b = kept;
}

weft_status wefti_pieces_find(const wefti_transfer *t, int32_t member, wefti_piece_list *out) {
    out->used = 0;
    if (wefti_region_elems(&t->want[member], t->rank) == 0) return WEFT_OK;
    WEFT_TRY(add_piece(out, &t->want[member], &(wefti_member_set){{0}}));
    bool reduces = t->reduction != WEFTI_REDUCE_NONE;
    int64_t settled = 0; /* those before it need no other member, and are not looked at again */
    for (int32_t turn = reduces ? 0 : -1; turn < t->members; turn++) {
        int32_t s = turn < 0 ? member : turn;
        if (wefti_region_elems(&t->have[s], t->rank) == 0) continue;
        for (int64_t n = settled, all = out->used; n < all; n++) {
            wefti_region inner;
            if (!wefti_region_intersect(&out->piece[n].box, &t->have[s], t->rank, &inner)) continue;
            WEFT_TRY(cut(out, n, &inner, t->rank));
            wefti_set_add(&out->piece[n].from, s);
            if (!reduces) swap_pieces(&out->piece[n], &out->piece[settled++]);
        }
    }
    return WEFT_OK;
}

bool wefti_transfer_is_all_gather(const wefti_transfer *t, int32_t *out_parts) {
    int64_t elements = 0;
    int32_t parts = 0;
    if (t->reduction != WEFTI_REDUCE_NONE || t->members < 2) return false;
    for (int32_t m = 0; m < t->members; m++) {
        int64_t part = wefti_region_elems(&t->have[m], t->rank);
        elements += part;
        parts += part > 0;
        if (!wefti_regions_equal(&t->want[m], &t->want[0], t->rank)) return false;
    }
    if (out_parts) *out_parts = parts;
    /* A legal transfer wants nothing that no member has: with as many elements, none is had twice.
     */
    return elements == wefti_region_elems(&t->want[0], t->rank);
}
