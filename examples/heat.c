/* Heat in a box of cells that the ranks divide among them: a stencil on a three-dimensional grid.
 *
 *     cc heat.c $(pkg-config --cflags --libs weft) -o heat
 *     weft launch -n 8 -- ./heat 2 2 2
 *
 * The three numbers are the ranks along each dimension. mpirun starts it as well. The box is
 * periodic along its first two dimensions. At the ends of the third one the temperature is given: 1
 * below, 0 above. Each rank keeps one layer of its neighbors' cells around its own, and computes
 * the cells inside while the layers are on their way. The result has the same bits however the box
 * is divided. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { CELLS = 24, STEPS = 50 };

static weft_world *world;
static int64_t first[3], size[3]; /* of this rank's cells */

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "heat: %s\n", weft_error_message());
    if (world) weft_world_fail(world, NULL);
    exit(1);
}

/* A cell of the array [size + 2, size + 2, size + 2]; own cells are numbered from 0. */
static size_t at(int64_t i, int64_t j, int64_t k) {
    return (size_t)(((i + 1) * (size[1] + 2) + j + 1) * (size[2] + 2) + k + 1);
}

static void update(const float *u, float *out, int64_t i, int64_t j, int64_t k) {
    const float sum = u[at(i - 1, j, k)] + u[at(i + 1, j, k)] + u[at(i, j - 1, k)] +
                      u[at(i, j + 1, k)] + u[at(i, j, k - 1)] + u[at(i, j, k + 1)];
    out[at(i, j, k)] = u[at(i, j, k)] + 0.125f * (sum - 6 * u[at(i, j, k)]);
}

/* inside: cells that need no neighbor's; otherwise the others. */
static void update_cells(const float *u, float *out, int inside) {
    for (int64_t i = 0; i < size[0]; i++)
        for (int64_t j = 0; j < size[1]; j++)
            for (int64_t k = 0; k < size[2]; k++) {
                const int edge = i == 0 || i == size[0] - 1 || j == 0 || j == size[1] - 1 ||
                                 k == 0 || k == size[2] - 1;
                if (edge != inside) update(u, out, i, j, k);
            }
}

/* Layers beyond the ends of the third dimension: the exchange leaves them as they are. */
static void set_ends(float *u) {
    for (int64_t i = -1; i <= size[0]; i++)
        for (int64_t j = -1; j <= size[1]; j++) {
            if (first[2] == 0) u[at(i, j, -1)] = 1;
            if (first[2] + size[2] == CELLS) u[at(i, j, size[2])] = 0;
        }
}

/* A sum over all cells that does not depend on their order. */
static int64_t sum_of(const float *u) {
    int64_t own = 0, all;
    for (int64_t i = 0; i < size[0]; i++)
        for (int64_t j = 0; j < size[1]; j++)
            for (int64_t k = 0; k < size[2]; k++) {
                uint32_t bits;
                memcpy(&bits, &u[at(i, j, k)], sizeof bits);
                const int64_t cell = ((first[0] + i) * CELLS + first[1] + j) * CELLS + first[2] + k;
                own += (int64_t)bits * (cell % 1021 + 1);
            }
    check(weft_all_reduce(world, NULL, &own, &all, 1, WEFT_I64, WEFT_REDUCE_SUM));
    return all;
}

int main(int argc, char **argv) {
    weft_grid grid =
        WEFT_STRUCT(weft_grid, .dimensions = 3, .parts = {1, 1, 1}, .cells = {CELLS, CELLS, CELLS},
                    .before = {1, 1, 1}, .after = {1, 1, 1}, .periodic = {true, true, false});
    if (argc != 1 && argc != 4) return fprintf(stderr, "usage: heat [RANKS RANKS RANKS]\n"), 2;
    for (int d = 0; d < 3 && argc == 4; d++) grid.parts[d] = atoi(argv[d + 1]);
    check(weft_world_join(NULL, &world));
    const int rank = weft_world_rank(world);
    check(weft_grid_tile(&grid, rank, first, size));
    const size_t cells = (size_t)((size[0] + 2) * (size[1] + 2) * (size[2] + 2));
    float *u = calloc(cells, sizeof *u), *next = calloc(cells, sizeof *next);
    if (!u || !next) return fprintf(stderr, "heat: no memory\n"), 1;
    for (int64_t i = 0; i < size[0]; i++)
        for (int64_t j = 0; j < size[1]; j++)
            for (int64_t k = 0; k < size[2]; k++)
                u[at(i, j, k)] = (float)((first[0] + i) * 7 % 5 + (first[1] + j) * 3 % 4) / 8;
    for (int step = 0; step < STEPS; step++) {
        weft_request *layers;
        set_ends(u);
        check(weft_grid_exchange_start(world, NULL, u, 1, &grid, WEFT_F32, &layers));
        update_cells(u, next, 1);
        check(weft_request_wait(layers));
        update_cells(u, next, 0);
        float *old = u;
        u = next;
        next = old;
    }
    const int64_t sum = sum_of(u);
    if (rank == 0) printf("after %d steps: %016" PRIx64 "\n", STEPS, (uint64_t)sum);
    free(u);
    free(next);
    weft_world_leave(world);
    return 0;
}
