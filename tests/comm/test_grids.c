/* Layers of neighbors' cells on grids of one to three dimensions, for every split of them over up
 * to eight ranks, with ends that are periodic and ends that are not; against the whole grid on one
 * device. (weft-test: threads) */
#include "ranks.h"

enum { DIMS = 3, STEPS = 3, CELLS_MOST = 8, LAYERS_MOST = 3 };
enum { SIDE = CELLS_MOST + 2 * LAYERS_MOST, ARRAY = 2 * SIDE * SIDE * SIDE };

typedef struct grid_case {
    weft_grid grid;
    int64_t planes;
    int64_t want[2 * CELLS_MOST * CELLS_MOST * CELLS_MOST]; /* after STEPS, of the whole */
} grid_case;
static grid_case now;
static int64_t arrays[MOST][ARRAY], next[MOST][ARRAY];

static int64_t start_value(int64_t plane, const int64_t at[DIMS]) {
    const int64_t *n = now.grid.cells;
    return 1 + ((plane * n[0] + at[0]) * n[1] + at[1]) * n[2] + at[2];
}

/* A cell of the whole grid, which may be beyond an end: false if there is none. */
static bool wrap(int64_t at[DIMS]) {
    for (int d = 0; d < DIMS; d++) {
        const int64_t n = now.grid.cells[d];
        if (at[d] >= 0 && at[d] < n) continue;
        if (!now.grid.periodic[d]) return false;
        at[d] = (at[d] % n + n) % n;
    }
    return true;
}

/* Beyond an end that is not periodic. */
static const int64_t OUTSIDE = 5;

/* Unlike weights for all cells as far away as layers go, so that each one counts. Unsigned, since
 * the sums wrap. */
static int64_t weight(int64_t i, int64_t j, int64_t k) {
    return 3 + i * 17 + j * 5 + k;
}

typedef int64_t cell_at(const void *context, int64_t plane, const int64_t at[DIMS]);

static int64_t stencil(cell_at *cell, const void *context, int64_t plane, const int64_t at[DIMS]) {
    const int64_t *before = now.grid.before, *after = now.grid.after;
    uint64_t sum = 0;
    for (int64_t i = -before[0]; i <= after[0]; i++)
        for (int64_t j = -before[1]; j <= after[1]; j++)
            for (int64_t k = -before[2]; k <= after[2]; k++)
                sum += (uint64_t)weight(i, j, k) *
                       (uint64_t)cell(context, plane, (int64_t[]){at[0] + i, at[1] + j, at[2] + k});
    return (int64_t)(sum & 0xffffffff);
}

/* ---- one device ---- */

static int64_t whole_cell(const void *context, int64_t plane, const int64_t at[DIMS]) {
    const int64_t *n = now.grid.cells;
    int64_t in[DIMS] = {at[0], at[1], at[2]};
    if (!wrap(in)) return OUTSIDE;
    return ((const int64_t *)context)[((plane * n[0] + in[0]) * n[1] + in[1]) * n[2] + in[2]];
}

static void compute_whole(void) {
    static int64_t old[sizeof now.want / sizeof *now.want];
    const int64_t *n = now.grid.cells;
    for (int step = -1; step < STEPS; step++) {
        int64_t *out = now.want;
        memcpy(old, now.want, sizeof old);
        for (int64_t p = 0; p < now.planes; p++)
            for (int64_t i = 0; i < n[0]; i++)
                for (int64_t j = 0; j < n[1]; j++)
                    for (int64_t k = 0; k < n[2]; k++) {
                        const int64_t at[DIMS] = {i, j, k};
                        *out++ = step < 0 ? start_value(p, at) : stencil(whole_cell, old, p, at);
                    }
    }
}

/* ---- ranks ---- */

typedef struct tile {
    int64_t begin[DIMS], size[DIMS];
    int64_t *array;
} tile;

static int64_t *place_of(const tile *t, int64_t plane, const int64_t at[DIMS]) {
    int64_t index = plane;
    for (int d = 0; d < DIMS; d++)
        index = index * (now.grid.before[d] + t->size[d] + now.grid.after[d]) + now.grid.before[d] +
                at[d];
    return t->array + index;
}

static int64_t tile_cell(const void *context, int64_t plane, const int64_t at[DIMS]) {
    return *place_of(context, plane, at);
}

/* Own cells: compares them with the whole, or gives them their start values. */
static bool each_own(const tile *t, bool compare) {
    const int64_t *n = now.grid.cells, *s = t->size;
    for (int64_t p = 0; p < now.planes; p++)
        for (int64_t i = 0; i < s[0]; i++)
            for (int64_t j = 0; j < s[1]; j++)
                for (int64_t k = 0; k < s[2]; k++) {
                    const int64_t at[DIMS] = {i, j, k};
                    const int64_t of[DIMS] = {t->begin[0] + i, t->begin[1] + j, t->begin[2] + k};
                    int64_t *cell = place_of(t, p, at);
                    if (compare &&
                        *cell != now.want[((p * n[0] + of[0]) * n[1] + of[1]) * n[2] + of[2]])
                        return false;
                    if (compare) continue;
                    *cell = start_value(p, of);
                }
    return true;
}

static void apply(const tile *t, int rank) {
    tile to = *t;
    to.array = next[rank];
    memcpy(next[rank], t->array, sizeof next[rank]);
    for (int64_t p = 0; p < now.planes; p++)
        for (int64_t i = 0; i < t->size[0]; i++)
            for (int64_t j = 0; j < t->size[1]; j++)
                for (int64_t k = 0; k < t->size[2]; k++) {
                    const int64_t at[DIMS] = {i, j, k};
                    *place_of(&to, p, at) = stencil(tile_cell, t, p, at);
                }
    memcpy(t->array, next[rank], sizeof next[rank]);
}

static void take_steps(ranks_test *t, int rank) {
    tile own = {.array = arrays[rank]};
    if (!good(t, rank, weft_grid_tile(&now.grid, rank, own.begin, own.size))) return;
    const bool has_cells = own.size[0] > 0 && own.size[1] > 0 && own.size[2] > 0;
    for (int i = 0; i < ARRAY; i++) arrays[rank][i] = OUTSIDE;
    (void)each_own(&own, false);
    for (int step = 0; step < STEPS; step++) {
        weft_request *request;
        if (step & 1) { /* own cells may change while the exchange is under way */
            static int64_t kept[MOST][ARRAY];
            weft_status status = weft_grid_exchange_start(
                t->world[rank], NULL, own.array, now.planes, &now.grid, WEFT_I64, &request);
            if (!good(t, rank, status)) return;
            memcpy(kept[rank], own.array, sizeof kept[rank]);
            for (int64_t p = 0; p < now.planes && has_cells; p++)
                *place_of(&own, p, (int64_t[]){0, 0, 0}) = -7;
            if (!good(t, rank, weft_request_wait(request))) return;
            for (int64_t p = 0; p < now.planes && has_cells; p++) {
                int64_t *cell = place_of(&own, p, (int64_t[]){0, 0, 0});
                if (*cell != -7) t->status[rank] = WEFT_E_BUG;
                *cell = kept[rank][cell - own.array];
            }
        } else if (!good(t, rank,
                         weft_grid_exchange(t->world[rank], NULL, own.array, now.planes, &now.grid,
                                            WEFT_I64))) {
            return;
        }
        apply(&own, rank);
    }
    if (t->status[rank] >= 0 && !each_own(&own, true)) {
        t->status[rank] = WEFT_E_BUG;
        (void)snprintf(t->message[rank], sizeof t->message[rank],
                       "rank %d of %d x %d x %d, ends %d %d %d: other cells than on one device",
                       rank, now.grid.parts[0], now.grid.parts[1], now.grid.parts[2],
                       now.grid.periodic[0], now.grid.periodic[1], now.grid.periodic[2]);
    }
}

/* `layers` are 0, or too many for the parts: those splits are refused, and skipped here. */
static int run_splits(int dimensions, const int64_t cells[DIMS], const int64_t before[DIMS],
                      const int64_t after[DIMS]) {
    int splits = 0;
    for (int code = 0; code < 512; code++) {
        const int parts[DIMS] = {1 + code / 64, 1 + code / 8 % 8, 1 + code % 8};
        const int ranks = parts[0] * parts[1] * parts[2];
        bool fits = ranks <= MOST;
        for (int d = 0; d < DIMS; d++) {
            const int64_t layers = before[d] > after[d] ? before[d] : after[d];
            fits &= d < dimensions ? cells[d] / parts[d] >= layers : parts[d] == 1;
        }
        for (int ends = 0; ends < 1 << dimensions && fits; ends++) {
            ranks_test t;
            now = (grid_case){.grid = WEFT_STRUCT(weft_grid, .dimensions = dimensions),
                              .planes = 1 + ends % 2};
            for (int d = 0; d < DIMS; d++) {
                now.grid.parts[d] = parts[d];
                now.grid.cells[d] = d < dimensions ? cells[d] : 1;
                now.grid.before[d] = d < dimensions ? before[d] : 0;
                now.grid.after[d] = d < dimensions ? after[d] : 0;
                now.grid.periodic[d] = ends >> d & 1;
            }
            compute_whole();
            begin(&t, ranks);
            run(&t, take_steps);
            all_good(&t);
            end(&t);
            splits++;
        }
    }
    return splits;
}

static void every_split_is_one_device(void **state) {
    (void)state;
    assert_true(run_splits(1, (int64_t[]){8, 1, 1}, (int64_t[]){1, 0, 0}, (int64_t[]){1, 0, 0}) >=
                16);
    assert_true(run_splits(2, (int64_t[]){7, 5, 1}, (int64_t[]){1, 1, 0}, (int64_t[]){1, 1, 0}) >=
                32);
    assert_true(run_splits(3, (int64_t[]){5, 4, 4}, (int64_t[]){1, 1, 1}, (int64_t[]){1, 1, 1}) >=
                100);
}

static void unlike_layers(void **state) {
    (void)state;
    assert_true(run_splits(1, (int64_t[]){8, 1, 1}, (int64_t[]){3, 0, 0}, (int64_t[]){0, 0, 0}));
    assert_true(run_splits(2, (int64_t[]){4, 6, 1}, (int64_t[]){0, 2, 0}, (int64_t[]){1, 1, 0}));
    assert_true(run_splits(3, (int64_t[]){4, 3, 4}, (int64_t[]){2, 0, 1}, (int64_t[]){1, 0, 2}));
}

static void wrong_grids_are_refused(void **state) {
    (void)state;
    ranks_test t;
    begin(&t, 2);
    weft_world *w = t.world[0];
    double a[64] = {0};
    const weft_grid good_grid = WEFT_STRUCT(weft_grid, .dimensions = 2, .parts = {2, 1},
                                            .cells = {4, 4}, .before = {1, 1}, .after = {1, 1});
    weft_grid g = good_grid;
    int64_t begin_[3], size[3];
    REFUSED(weft_grid_exchange(w, NULL, a, 1, NULL, WEFT_F64), "1 to 3 dimensions, not 0");
    REFUSED(weft_grid_exchange(w, NULL, NULL, 1, &g, WEFT_F64), "no array");
    REFUSED(weft_grid_exchange(w, NULL, a, -1, &g, WEFT_F64), "-1 planes");
    REFUSED(weft_grid_exchange(w, NULL, a, 1, &g, (weft_dtype)77), "dtype 77");
    g.dimensions = 4;
    REFUSED(weft_grid_exchange(w, NULL, a, 1, &g, WEFT_F64), "1 to 3 dimensions, not 4");
    g = good_grid;
    g.parts[1] = 2;
    REFUSED(weft_grid_exchange(w, NULL, a, 1, &g, WEFT_F64), "2 x 2 x 1 parts for 2 members");
    g.parts[1] = 0;
    REFUSED(weft_grid_exchange(w, NULL, a, 1, &g, WEFT_F64), "0 parts along dimension 1");
    g = good_grid;
    g.before[0] = -1;
    REFUSED(weft_grid_exchange(w, NULL, a, 1, &g, WEFT_F64), "-1 layers before");
    g = good_grid;
    g.parts[0] = 1;
    REFUSED(weft_grid_tile(&g, 1, begin_, size), "no part 1");
    REFUSED(weft_grid_tile(&g, -1, begin_, size), "no part -1");
    g = good_grid;
    g.after[0] = 3;
    assert_int_equal(weft_grid_exchange(w, NULL, a, 1, &g, WEFT_F64), WEFT_E_SHAPE);
    assert_non_null(strstr(weft_error_message(), "a part of 2 does not have the 3 layers"));
    end(&t);
}

/* Two processes with unlike grids do not wait for each other for ever. */
static void unlike_grids(ranks_test *t, int rank) {
    double a[64] = {0};
    const weft_grid g = WEFT_STRUCT(weft_grid, .dimensions = 1, .parts = {2}, .cells = {8},
                                    .before = {1 + rank}, .after = {1 + rank});
    weft_status status = weft_grid_exchange(t->world[rank], NULL, a, 1, &g, WEFT_F64);
    if (status != WEFT_E_MISMATCH && status != WEFT_E_PEER) t->status[rank] = WEFT_E_BUG;
}

static void unlike_grids_are_told(void **state) {
    (void)state;
    ranks_test t;
    begin(&t, 2);
    run(&t, unlike_grids);
    all_good(&t);
    end(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_is_one_device),
        cmocka_unit_test(unlike_layers),
        cmocka_unit_test(wrong_grids_are_refused),
        cmocka_unit_test(unlike_grids_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
