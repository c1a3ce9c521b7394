/* Cutting what a member wants along the boxes that others have: see comm/reduce/reduce.h. */
#include "comm/reduce/reduce.h"

#include <string.h>

#include "base/memory.h"

static weft_status make_room(wefti_piece_list *list) {
    int64_t had = list->capacity;
    if (list->used < had) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(list->box, list->used, list->capacity));
    size_t row = (size_t)list->words * sizeof *list->from;
    uint64_t *from = wefti_realloc(list->from, (size_t)list->capacity * row);
    if (!from) {
        list->capacity = had;
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for the pieces of a transfer");
    }
    list->from = from;
    return WEFT_OK;
}

/* A piece with the suppliers of piece `like`; -1: with none. */
static weft_status add_piece(wefti_piece_list *list, const wefti_region *box, int64_t like) {
    size_t row = (size_t)list->words * sizeof *list->from;
    WEFT_TRY(make_room(list));
    uint64_t *from = wefti_piece_from(list, list->used);
    list->box[list->used++] = *box;
    if (like < 0)
        memset(from, 0, row);
    else
        memcpy(from, wefti_piece_from(list, like), row);
    return WEFT_OK;
}

/* Cuts `inner` out of piece number n, which becomes `inner`. The remainder is appended at the end.
 */
static weft_status cut(wefti_piece_list *list, int64_t n, const wefti_region *inner, int rank) {
    wefti_region rest = list->box[n];
    for (int d = 0; d < rank; d++) {
        wefti_region side = rest;
        side.size[d] = inner->begin[d] - rest.begin[d];
        if (side.size[d] > 0) WEFT_TRY(add_piece(list, &side, n));
        side.begin[d] = inner->begin[d] + inner->size[d];
        side.size[d] = rest.begin[d] + rest.size[d] - side.begin[d];
        if (side.size[d] > 0) WEFT_TRY(add_piece(list, &side, n));
        rest.begin[d] = inner->begin[d];
        rest.size[d] = inner->size[d];
    }
    list->box[n] = *inner;
    return WEFT_OK;
}

static void swap_pieces(wefti_piece_list *list, int64_t a, int64_t b) {
    wefti_region box = list->box[a];
    list->box[a] = list->box[b];
    list->box[b] = box;
    uint64_t *x = wefti_piece_from(list, a), *y = wefti_piece_from(list, b);
    for (int32_t i = 0; i < list->words; i++) {
        uint64_t word = x[i];
        x[i] = y[i];
        y[i] = word;
    }
}

void wefti_pieces_free(wefti_piece_list *list) {
    wefti_free(list->box);
    wefti_free(list->from);
    *list = (wefti_piece_list){0};
}

weft_status wefti_pieces_find(const wefti_transfer *t, int32_t member, wefti_piece_list *out) {
    out->used = 0;
    out->words = wefti_set_words(t->members);
    if (wefti_region_elems(&t->want[member], t->rank) == 0) return WEFT_OK;
    WEFT_TRY(add_piece(out, &t->want[member], -1));
    bool reduces = t->reduction != WEFTI_REDUCE_NONE;
    int64_t settled = 0; /* those before it need no other member, and are not looked at again */
    for (int32_t turn = reduces ? 0 : -1; turn < t->members; turn++) {
        int32_t s = turn < 0 ? member : turn;
        if (wefti_region_elems(&t->have[s], t->rank) == 0) continue;
        for (int64_t n = settled, all = out->used; n < all; n++) {
            wefti_region inner;
            if (!wefti_region_intersect(&out->box[n], &t->have[s], t->rank, &inner)) continue;
            WEFT_TRY(cut(out, n, &inner, t->rank));
            wefti_set_add(wefti_piece_from(out, n), s);
            if (!reduces) swap_pieces(out, n, settled++);
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
