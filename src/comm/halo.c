/* The geometry of halos: comm/halo.h. */
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

/* The place `by` steps on, of `count`; -1: there is none. */
static int step(int at, int by, int count, bool ring) {
    const int to = at + by;
    if (to >= 0 && to < count) return to;
    return ring ? (to + count) % count : -1;
}

weft_halo weft_halo_on_ring(int rows, int columns, int place, const int64_t sizes[4],
                            bool ring_of_rows, bool ring_of_columns) {
    weft_halo halo = {.sizes = {sizes[0], sizes[1], sizes[2], sizes[3]}};
    bool on_grid = place >= 0 && columns > 0 && place / columns < rows;
    for (int way = 0; way < WEFTI_HALO_WAYS; way++) {
        int row = on_grid ? step(place / columns, ways[way].down, rows, ring_of_rows) : -1;
        int column =
            on_grid ? step(place % columns, ways[way].right, columns, ring_of_columns) : -1;
        halo.ranks[way] = row >= 0 && column >= 0 ? row * columns + column : -1;
    }
    return halo;
}

weft_halo weft_halo_on_grid(int rows, int columns, int place, const int64_t sizes[4]) {
    return weft_halo_on_ring(rows, columns, place, sizes, false, false);
}

/* ---- grids ---- */

/* The side of a direction along a dimension: -1, 0 or 1. */
static int side_of(int way, int d) {
    static const int steps[WEFTI_GRID_DIMS] = {9, 3, 1};
    return way / steps[d] % 3 - 1;
}

static weft_status check_dimension(const weft_grid *g, int d) {
    const int64_t cells = g->cells[d], before = g->before[d], after = g->after[d];
    const int64_t most = (int64_t)1 << 40, layers = before > after ? before : after;
    WEFT_REQUIRE(g->parts[d] >= 1 && cells >= 0 && cells <= most, WEFT_E_ARG,
                 "a grid has %lld cells in %d parts along dimension %d", (long long)cells,
                 g->parts[d], d);
    WEFT_REQUIRE(before >= 0 && after >= 0 && layers <= most, WEFT_E_ARG,
                 "a grid has %lld layers before and %lld after the cells along dimension %d",
                 (long long)before, (long long)after, d);
    const bool exchanges = g->parts[d] > 1 || g->periodic[d];
    WEFT_REQUIRE(
        !exchanges || layers <= cells / g->parts[d], WEFT_E_SHAPE,
        "a grid of %lld cells in %d parts along dimension %d: a part of %lld does not have "
        "the %lld layers that its neighbor keeps",
        (long long)cells, g->parts[d], d, (long long)(cells / g->parts[d]), (long long)layers);
    return WEFT_OK;
}

weft_status wefti_grid_tile_of(const weft_grid *grid, int place, int64_t planes,
                               wefti_grid_tile *out) {
    weft_grid own = weft_grid_defaults();
    WEFT_TRY(wefti_struct_take("weft_grid", grid, &own));
    WEFT_REQUIRE(own.dimensions >= 1 && own.dimensions <= WEFTI_GRID_DIMS, WEFT_E_ARG,
                 "a grid has 1 to %d dimensions, not %d", WEFTI_GRID_DIMS, own.dimensions);
    WEFT_REQUIRE(planes >= 0 && planes <= (int64_t)1 << 40, WEFT_E_ARG, "a grid of %lld planes",
                 (long long)planes);
    *out = (wefti_grid_tile){.grid = own, .place = place, .planes = planes};
    weft_grid *g = &out->grid;
    int rest = place;
    for (int d = WEFTI_GRID_DIMS - 1; d >= 0; d--) {
        if (d >= own.dimensions) {
            g->parts[d] = 1;
            g->cells[d] = 1;
            g->before[d] = g->after[d] = 0;
            g->periodic[d] = false;
        }
        WEFT_TRY(check_dimension(g, d));
        out->at[d] = rest % g->parts[d];
        rest /= g->parts[d];
        wefti_part(g->cells[d], 1, g->parts[d], out->at[d], &out->begin[d], &out->size[d]);
    }
    WEFT_REQUIRE(place >= 0 && rest == 0, WEFT_E_ARG, "a grid of %d x %d x %d parts has no part %d",
                 g->parts[0], g->parts[1], g->parts[2], place);
    return WEFT_OK;
}

weft_status weft_grid_tile(const weft_grid *grid, int place, int64_t begin[3], int64_t size[3]) {
    wefti_grid_tile tile;
    WEFT_TRY(wefti_grid_tile_of(grid, place, 1, &tile));
    for (int d = 0; d < WEFTI_GRID_DIMS; d++) {
        begin[d] = tile.begin[d];
        size[d] = tile.size[d];
    }
    return WEFT_OK;
}

int wefti_grid_neighbor(const wefti_grid_tile *tile, int way) {
    const weft_grid *g = &tile->grid;
    int place = 0;
    for (int d = 0; d < WEFTI_GRID_DIMS; d++) {
        const int to = step(tile->at[d], side_of(way, d), g->parts[d], g->periodic[d]);
        if (to < 0) return -1;
        place = place * g->parts[d] + to;
    }
    return place;
}

/* A neighbor before this tile keeps cells of it after its own, and the reverse. */
wefti_region wefti_grid_sent(const wefti_grid_tile *tile, int way) {
    wefti_region box = {.size = {tile->planes}};
    for (int d = 0; d < WEFTI_GRID_DIMS; d++) {
        const int64_t before = tile->grid.before[d], after = tile->grid.after[d];
        const int64_t size = tile->size[d];
        const int side = side_of(way, d);
        box.begin[d + 1] = before + (side > 0 ? size - before : 0);
        box.size[d + 1] = side < 0 ? after : side > 0 ? before : size;
    }
    return box;
}

wefti_region wefti_grid_received(const wefti_grid_tile *tile, int way) {
    wefti_region box = {.size = {tile->planes}};
    for (int d = 0; d < WEFTI_GRID_DIMS; d++)
        span(&box, d + 1, side_of(way, d), tile->grid.before[d], tile->size[d],
             tile->grid.after[d]);
    return box;
}

wefti_region wefti_grid_array(const wefti_grid_tile *tile) {
    wefti_region box = {.size = {tile->planes}};
    for (int d = 0; d < WEFTI_GRID_DIMS; d++)
        box.size[d + 1] = tile->grid.before[d] + tile->size[d] + tile->grid.after[d];
    return box;
}
