/* A network inside an MPI program. The solver steps u_t = D (u_xx + u_yy) + u - u^3 on a grid split
 * by rows over MPI_COMM_WORLD. On a communicator of its own it trains, beside that, a network to do
 * a step of a point from the nine points around it:
 *
 *     mpicc mpi_solver.c $(pkg-config --cflags --libs weft) -o mpi_solver
 *     mpirun -n 4 ./mpi_solver data       # how to split it: data, zero, tensor, pipeline */
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
    weft_desc shape = weft_desc_of(WEFT_F32, 2, (int64_t[]){in, out});
    weft_value w = weft_param(g, "weight", shape, (weft_init){WEFT_INIT_NORMAL, 0.3});
    weft_value b = weft_param(g, "bias", weft_desc_of(WEFT_F32, 1, &out), (weft_init){0});
    x = weft_linear(g, x, w, b, false);
    return weft_cell_end(g, out > 1 ? weft_tanh(g, x) : x);
}

int main(int argc, char **argv) {
    static float u[2][ROWS + 2][WIDE + 2], near[BATCH][NEAR], after[BATCH];
    int rank, size, members;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm team; /* pairs of ranks; the odd one is a team by itself */
    MPI_Comm_split(MPI_COMM_WORLD, rank >= size / 2 * 2, rank, &team);
    MPI_Comm_size(team, &members);
    const char *how = argc > 1 && members > 1 ? argv[1] : "data";
    int parts = strcmp(how, "pipeline") == 0 ? 4 : 1, share = BATCH / parts / members;

    weft_world *world;
    weft_graph *g;
    weft_plan *plan;
    weft_session *session;
    check(weft_world_from_mpi(team, NULL, &world));
    check(weft_graph_create(&g));
    weft_value x =
        weft_input(g, "near", weft_desc_of(WEFT_F32, 2, (int64_t[]){BATCH / parts, NEAR}));
    weft_value y = weft_input(g, "after", weft_desc_of(WEFT_F32, 2, (int64_t[]){BATCH / parts, 1}));
    x = layer(g, "second", layer(g, "first", x, NEAR, HIDDEN), HIDDEN, HIDDEN);
    weft_loss(g, weft_mse(g, layer(g, "out", x, HIDDEN, 1), y));
    check(weft_plan_create(members, &plan));
    if (strcmp(how, "zero") == 0) check(weft_plan_optimizer(plan, 3, 0, 0));
    if (strcmp(how, "tensor") == 0) check(weft_plan_axis(plan, "tp", members));
    if (strcmp(how, "tensor") == 0) check(weft_op_split(plan, "first:linear", "n0=tp"));
    if (parts > 1) check(weft_plan_pipeline(plan, 2, parts, WEFT_PIPELINE_1F1B, 1));
    weft_session_options options = weft_session_defaults();
    options.world = world;
    options.plan = plan;
    options.threads = 1;
    options.clip = 1;
    check(weft_session_create(g, &options, &session));

    srand((unsigned)rank + 1);
    for (int i = 0; i < ROWS * WIDE; i++)
        u[0][1 + i / WIDE][1 + i % WIDE] = (float)rand() / (float)RAND_MAX * 2 - 1;
    for (int step = 0; step <= STEPS; step++) {
        float(*now)[WIDE + 2] = u[step % 2], (*next)[WIDE + 2] = u[1 - step % 2];
        solve(now, next, rank > 0 ? rank - 1 : MPI_PROC_NULL,
              rank + 1 < size ? rank + 1 : MPI_PROC_NULL);
        double loss;
        for (int part = 0; part < parts; part++) {
            for (int s = 0; s < share; s++) { /* points of this rank's own rows */
                int i = 1 + rand() % ROWS, j = 1 + rand() % WIDE;
                for (int k = 0; k < NEAR; k++) near[s][k] = now[i + k / 3 - 1][j + k % 3 - 1];
                after[s] = next[i][j];
            }
            check(weft_session_feed_rows(session, 0, "near", near, (size_t)share * sizeof *near));
            check(
                weft_session_feed_rows(session, 0, "after", after, (size_t)share * sizeof *after));
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
