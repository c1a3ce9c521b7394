/* A network inside an MPI program. The solver steps u_t = D (u_xx + u_yy) + u - u^3 on a grid split
 * by rows over MPI_COMM_WORLD. On a communicator of its own it trains, beside that, a network to do
 * a step of a point from the nine points around it:
 *
 *     mpicc mpi_solver.c $(pkg-config --cflags --libs weft) -o mpi_solver
 *     mpirun -n 4 ./mpi_solver data       # how to split it: data, zero, tensor, pipeline */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/mpi.h>
#include <weft/weft.h>

enum { ROWS = 32, WIDE = 64, BATCH = 240, NEAR = 9, HIDDEN = 48, STEPS = 200 };

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "mpi_solver: %s\n", weft_error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The rims have what the neighbours have, and zero at the ends. */
static void solve(float u[ROWS + 2][WIDE + 2], float next[ROWS + 2][WIDE + 2], int up, int down) {
    MPI_Sendrecv(u[1], WIDE + 2, MPI_FLOAT, up, 0, u[ROWS + 1], WIDE + 2, MPI_FLOAT, down, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(u[ROWS], WIDE + 2, MPI_FLOAT, down, 1, u[0], WIDE + 2, MPI_FLOAT, up, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 1; i <= ROWS; i++)
        for (int j = 1; j <= WIDE; j++) {
            float c = u[i][j], near = u[i - 1][j] + u[i + 1][j] + u[i][j - 1] + u[i][j + 1];
            next[i][j] = c + 0.1f * (near - 4 * c) + 0.05f * (c - c * c * c);
        }
}

static weft_value layer(weft_graph *g, const char *name, weft_value x, int64_t in, int64_t out) {
    weft_cell_begin(g, "%s", name);
    weft_value w = weft_param(g, "weight", weft_desc_of(WEFT_F32, 2, (int64_t[]){in, out}),
                              (weft_init){WEFT_INIT_NORMAL, 0.3});
    weft_value b =
        weft_param(g, "bias", weft_desc_of(WEFT_F32, 1, &out), (weft_init){WEFT_INIT_ZEROS, 0});
    x = weft_linear(g, x, w, b, false);
    return weft_cell_end(g, out > 1 ? weft_tanh(g, x) : x);
}

static weft_graph *network(int rows) {
    weft_graph *g;
    check(weft_graph_create(&g));
    weft_value x = weft_input(g, "near", weft_desc_of(WEFT_F32, 2, (int64_t[]){rows, NEAR}));
    weft_value y = weft_input(g, "after", weft_desc_of(WEFT_F32, 2, (int64_t[]){rows, 1}));
    x = layer(g, "second", layer(g, "first", x, NEAR, HIDDEN), HIDDEN, HIDDEN);
    weft_loss(g, weft_mse(g, layer(g, "out", x, HIDDEN, 1), y));
    return g;
}

static weft_plan *plan_for(const char *how, int members, int parts) {
    weft_plan *p;
    check(weft_plan_create(members, &p));
    if (strcmp(how, "zero") == 0) check(weft_plan_optimizer(p, 3, 0, 0));
    if (strcmp(how, "tensor") == 0) check(weft_plan_axis(p, "tp", members));
    if (strcmp(how, "tensor") == 0) check(weft_op_split(p, "first:linear", "n0=tp"));
    if (parts > 1) check(weft_plan_pipeline(p, 2, parts, WEFT_PIPELINE_1F1B, 1));
    return p;
}

int main(int argc, char **argv) {
    static float u[2][ROWS + 2][WIDE + 2], near[BATCH][NEAR], after[BATCH];
    int rank, size, me, members;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm team; /* pairs of ranks; the odd one is a team by itself */
    MPI_Comm_split(MPI_COMM_WORLD, rank >= size / 2 * 2, rank, &team);
    MPI_Comm_rank(team, &me);
    MPI_Comm_size(team, &members);
    const char *how = argc > 1 && members > 1 ? argv[1] : "data";
    int parts = strcmp(how, "pipeline") == 0 ? 4 : 1, rows = BATCH / parts;

    weft_world *world;
    weft_session *session;
    weft_graph *g = network(rows);
    check(weft_world_from_mpi(team, NULL, &world));
    weft_session_options options = weft_session_defaults();
    weft_plan *plan = plan_for(how, members, parts);
    options.world = world;
    options.plan = plan;
    options.threads = 1;
    options.clip = 1;
    check(weft_session_create(g, &options, &session));

    /* Where the batch is split, this rank's part of it is filled in place with points of its own
     * rows; else all ranks get the points of all. */
    bool in_place = strcmp(how, "data") == 0 || strcmp(how, "zero") == 0;
    weft_session_part part_near = {.data = near[me * (BATCH / members)]},
                      part_after = {.data = after + me * (BATCH / members)};
    int share = BATCH / members;
    if (in_place) {
        check(weft_session_local(session, 0, "near", &part_near));
        check(weft_session_local(session, 0, "after", &part_after));
        share = (int)part_near.size[0];
    }
    float(*my_near)[NEAR] = part_near.data, *my_after = part_after.data;
    srand((unsigned)rank + 1);
    for (int i = 0; i < ROWS * WIDE; i++)
        u[0][1 + i / WIDE][1 + i % WIDE] = (float)rand() / (float)RAND_MAX * 2 - 1;
    for (int step = 0; step <= STEPS; step++) {
        float(*now)[WIDE + 2] = u[step % 2], (*next)[WIDE + 2] = u[1 - step % 2];
        solve(now, next, rank > 0 ? rank - 1 : MPI_PROC_NULL,
              rank + 1 < size ? rank + 1 : MPI_PROC_NULL);
        for (int s = 0; s < share; s++) {
            int i = 1 + rand() % ROWS, j = 1 + rand() % WIDE;
            for (int k = 0; k < NEAR; k++) my_near[s][k] = now[i + k / 3 - 1][j + k % 3 - 1];
            my_after[s] = next[i][j];
        }
        if (!in_place) {
            MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, near, share * NEAR, MPI_FLOAT, team);
            MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, after, share, MPI_FLOAT, team);
        }
        double loss;
        for (int p = 0; p < parts; p++) {
            if (!in_place) {
                check(weft_session_feed(session, 0, "near", near[p * rows], sizeof near / parts));
                check(
                    weft_session_feed(session, 0, "after", after + p * rows, sizeof after / parts));
            }
            check(weft_session_accumulate(session, &loss));
        }
        check(weft_session_update(session, 3e-3, NULL));
        if (step % 50 == 0 && rank == 0) printf("step %3d  loss %.6f\n", step, loss);
    }
    weft_session_destroy(session);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    weft_world_leave(world);
    MPI_Comm_free(&team);
    MPI_Finalize();
    return 0;
}
