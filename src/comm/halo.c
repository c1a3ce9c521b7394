/* The geometry of halos on a plane: comm/halo.h. */
#include "comm/halo.h"

#include "base/status.h"

/* Clockwise from the top; the last is the tile itself. */
static const struct {
    int down, right;
    const char *text;
} ways[WEFTI_HALO_WAYS + 1] = {
    {-1, 0, "top"},         {-1, 1, "top right"}, {0, 1, "right"},
    {1, 1, "bottom right"}, {1, 0, "bottom"},     {1, -1, "bottom left"},
    {0, -1, "left"},        {-1, -1, "top left"}, {0, 0, "center"},
};

const char *wefti_halo_way_text(int way) {
    return ways[way].text;
}

/* Along one dimension a block is what lies before, in or after the middle. */
static void span(wefti_region *box, int d, int side, int64_t before, int64_t size, int64_t after) {
    box->begin[d] = side < 0 ? 0 : side == 0 ? before : before + size;
    box->size[d] = side < 0 ? before : side == 0 ? size : after;
}

wefti_region wefti_halo_received(const int64_t shape[3], const weft_halo *receive, int way) {
    const int64_t *s = receive->sizes;
    wefti_region box = {.size = {shape[0]}};
    span(&box, 1, ways[way].down, s[0], shape[1], s[1]);
    span(&box, 2, ways[way].right, s[2], shape[2], s[3]);
    return box;
}

/* The rims of a tile are inside it, and overlap: a corner is sent to three neighbours. */
wefti_region wefti_halo_sent(const int64_t shape[3], const weft_halo *send, int way) {
    const int64_t *s = send->sizes;
    wefti_region box = {.size = {shape[0]}};
    for (int d = 1; d < WEFTI_HALO_RANK; d++) {
        int side = d == 1 ? ways[way].down : ways[way].right;
        int64_t before = s[2 * d - 2], after = s[2 * d - 1];
        box.begin[d] = side > 0 ? shape[d] - after : 0;
        box.size[d] = side < 0 ? before : side > 0 ? after : shape[d];
    }
    return box;
}

wefti_region wefti_halo_grown(const int64_t shape[3], const weft_halo *receive) {
    const int64_t *s = receive->sizes;
    return (wefti_region){.size = {shape[0], s[0] + shape[1] + s[1], s[2] + shape[2] + s[3]}};
}

static weft_status check_one(const weft_halo *halo, const char *what, int members) {
    for (int way = 0; way < WEFTI_HALO_WAYS; way++)
        WEFT_REQUIRE(halo->ranks[way] >= -1 && halo->ranks[way] < members, WEFT_E_ARG,
                     "a halo is to be %s the %s, member %d; there are 0 to %d, and -1 for none",
                     what, ways[way].text, halo->ranks[way], members - 1);
    for (int side = 0; side < 4; side++)
        WEFT_REQUIRE(halo->sizes[side] >= 0 && halo->sizes[side] <= (int64_t)1 << 40, WEFT_E_ARG,
                     "a halo of %lld rows or columns is to be %s the %s",
                     (long long)halo->sizes[side], what,
                     (const char *[]){"top", "bottom", "left", "right"}[side]);
    return WEFT_OK;
}

weft_status wefti_halo_check(const int64_t shape[3], int members, const weft_halo *send,
                             const weft_halo *receive) {
    WEFT_TRY(check_one(send, "sent to", members));
    WEFT_TRY(check_one(receive, "received from", members));
    for (int side = 0; side < 4; side++)
        WEFT_REQUIRE(send->sizes[side] <= shape[1 + side / 2], WEFT_E_SHAPE,
                     "a tile of %lld x %lld does not have the %lld %s that are to be sent",
                     (long long)shape[1], (long long)shape[2], (long long)send->sizes[side],
                     side < 2 ? "rows" : "columns");
    return WEFT_OK;
}

weft_halo weft_halo_on_grid(int rows, int columns, int place, const int64_t sizes[4]) {
    weft_halo halo = {.sizes = {sizes[0], sizes[1], sizes[2], sizes[3]}};
    bool on_grid = place >= 0 && columns > 0 && place / columns < rows;
    for (int way = 0; way < WEFTI_HALO_WAYS; way++) {
        int row = on_grid ? place / columns + ways[way].down : -1;
        int column = on_grid ? place % columns + ways[way].right : -1;
        bool inside = row >= 0 && row < rows && column >= 0 && column < columns;
        halo.ranks[way] = inside ? row * columns + column : -1;
    }
    return halo;
}
