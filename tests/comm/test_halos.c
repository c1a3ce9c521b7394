/* Exchanges of halos on buffers: rims of planes and rings, wrong ones, ranks outside of the grid.
 * (weft-test: threads) */
#include "ranks.h"

/* Tiles of 3 planes, 4 x 3, of a plane that continues at its end if it is a ring. A rim without a
 * neighbour is zero, or absent where it is cut. */
typedef struct halo_case {
    int rows, columns;
    bool ring, cut;
    int64_t send[4], receive[4];
} halo_case;
static const halo_case *halo_now;
enum { PLANES = 3, HEIGHT = 4, WIDTH = 3, GROWN_MOST = PLANES * 12 * 12 };

static int64_t in_plane(const halo_case *c, int plane, int row, int column) {
    int height = c->rows * HEIGHT, width = c->columns * WIDTH;
    bool inside = row >= 0 && row < height && column >= 0 && column < width;
    if (!inside && !c->ring) return 0;
    return 1 + ((int64_t)plane * height + (row + height) % height) * width +
           (column + width) % width;
}

static weft_halo halo_of(const halo_case *c, int rank, const int64_t sizes[4]) {
    weft_halo halo = weft_halo_on_ring(c->rows, c->columns, rank, sizes, c->ring, c->ring);
    for (int side = 0; side < 4 && c->cut; side++) { /* top, bottom, left, right */
        static const int way[] = {0, 4, 6, 2};
        if (halo.ranks[way[side]] < 0) halo.sizes[side] = 0;
    }
    return halo;
}

static void exchange_halo(ranks_test *t, int rank) {
    const halo_case *c = halo_now;
    int64_t tile[PLANES][HEIGHT][WIDTH], grown[GROWN_MOST], *at = grown;
    weft_halo send = halo_of(c, rank, c->send), receive = halo_of(c, rank, c->receive);
    int top = rank / c->columns * HEIGHT, left = rank % c->columns * WIDTH;
    weft_request *request;
    for (int p = 0; p < PLANES; p++)
        for (int i = 0; i < HEIGHT; i++)
            for (int j = 0; j < WIDTH; j++) tile[p][i][j] = in_plane(c, p, top + i, left + j);
    for (int i = 0; i < GROWN_MOST; i++) grown[i] = -1;
    if (!good(t, rank,
              weft_halo_exchange_start(t->world[rank], NULL, tile,
                                       (int64_t[]){PLANES, HEIGHT, WIDTH}, &send, grown, &receive,
                                       WEFT_I64, &request)) ||
        !good(t, rank, weft_request_wait(request)))
        return;
    const int64_t *s = receive.sizes;
    for (int p = 0; p < PLANES; p++)
        for (int64_t i = -s[0]; i < HEIGHT + s[1]; i++)
            for (int64_t j = -s[2]; j < WIDTH + s[3]; j++) {
                int64_t want = in_plane(c, p, top + (int)i, left + (int)j), got = *at++;
                if (got == want || t->status[rank] < 0) continue;
                t->status[rank] = WEFT_E_BUG;
                (void)snprintf(t->message[rank], sizeof t->message[rank],
                               "%d x %d: [%d, %d, %d] is %lld, not %lld", c->rows, c->columns, p,
                               (int)i, (int)j, (long long)got, (long long)want);
            }
    if (*at != -1 && t->status[rank] >= 0) t->status[rank] = WEFT_E_BUG; /* beyond the end */
}

static void halos_are_those_of_the_plane(void **state) {
    (void)state;
    static const halo_case cases[] = {
        {2, 2, false, false, {1, 1, 1, 1}, {1, 1, 1, 1}},
        {2, 2, false, true, {2, 1, 0, 3}, {1, 2, 3, 0}},
        {2, 2, true, false, {2, 1, 3, 1}, {1, 2, 1, 3}},
        {1, 4, false, true, {0, 0, 1, 2}, {0, 0, 2, 1}},
        {3, 1, false, false, {4, 2, 1, 1}, {2, 4, 1, 1}},
        {1, 2, true, false, {1, 1, 1, 2}, {1, 1, 2, 1}}, /* both sides are the same neighbour */
        {1, 1, true, false, {1, 2, 1, 1}, {2, 1, 1, 1}}, /* or the tile itself */
        {1, 1, false, false, {0, 0, 0, 0}, {1, 1, 1, 1}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ranks_test t;
        halo_now = &cases[k];
        begin(&t, cases[k].rows * cases[k].columns);
        run(&t, exchange_halo);
        all_good(&t);
        end(&t);
    }
}

static void wrong_halos_are_refused(void **state) {
    (void)state;
    ranks_test t;
    begin(&t, 2);
    weft_world *w = t.world[0];
    float a[6] = {0}, b[60];
    int64_t one[4] = {1, 1, 1, 1}, shape[3] = {1, 2, 3}, wrong[3] = {1, -2, 3};
    weft_halo right = weft_halo_on_grid(2, 1, 0, one), large = right, outside = right;
    large.sizes[1] = 3;
    outside.ranks[2] = 2;
    REFUSED(weft_halo_exchange(w, NULL, a, NULL, &right, b, &right, WEFT_F32), "no shape is given");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &right, b, NULL, WEFT_F32), "no halo to receive");
    REFUSED(weft_halo_exchange(w, NULL, a, wrong, &right, b, &right, WEFT_F32),
            "dimension 1 of the tile has -2 elements");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &large, b, &right, WEFT_F32),
            "a tile of 2 x 3 does not have the 3 rows");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &outside, b, &right, WEFT_F32),
            "sent to the right, member 2; there are 0 to 1");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &right, a, &right, WEFT_F32), "overlap");
    REFUSED(weft_halo_exchange(w, NULL, a, shape, &right, b, &right, (weft_dtype)77), "dtype 77");
    REFUSED(weft_halo_exchange(w, NULL, NULL, shape, &right, b, &right, WEFT_F32), "no source");
    end(&t);
}

static void who_is_not_on_the_grid_has_no_neighbours(void **state) {
    (void)state;
    static const int grids[][3] = {{2, 2, 4}, {2, 2, 5}, {2, 2, -1}, {3, 0, 0}, {0, 3, 0}};
    for (size_t k = 0; k < sizeof grids / sizeof *grids; k++) {
        weft_halo halo =
            weft_halo_on_grid(grids[k][0], grids[k][1], grids[k][2], (int64_t[]){1, 2, 3, 4});
        for (int way = 0; way < 8; way++) assert_int_equal(halo.ranks[way], -1);
        assert_int_equal(halo.sizes[2], 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halos_are_those_of_the_plane),
        cmocka_unit_test(wrong_halos_are_refused),
        cmocka_unit_test(who_is_not_on_the_grid_has_no_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
