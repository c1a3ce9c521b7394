/* A network inside an MPI program. The solver steps u_t = D u_xx + u - u^3 on a line of points that
 * is split over MPI_COMM_WORLD. On a communicator of its own it also trains a network to predict a
 * point's step from the point and its two neighbors:
 *
 *     mpicc mpi_solver.c $(pkg-config --cflags --libs weft) -o mpi_solver
 *     mpirun -n 4 ./mpi_solver data       # the split: data, zero, tensor, pipeline */
#include <stdio.h>
#include <string.h>
#include <weft/mpi.h>
#include <weft/weft.h>

enum { POINTS = 60, NEAR = 3, HIDDEN = 48, STEPS = 200 }; /* points of each rank */

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "mpi_solver: %s\n", weft_error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The split named by the first argument, by default "data". NULL for an unknown one. */
static const char *way(int argc, char **argv) {
    static const char *const ways[] = {"data", "zero", "tensor", "pipeline"};
    for (int w = 0; w < 4 && argc <= 2; w++)
        if (argc < 2 || strcmp(argv[1], ways[w]) == 0) return ways[w];
    return NULL;
}

/* One step of the solver. The ends are the neighbors' points, and zero at the ends of the line. */
static void solve(float u[POINTS + 2], float next[POINTS + 2], int left, int right) {
    MPI_Sendrecv(u + 1, 1, MPI_FLOAT, left, 0, u + POINTS + 1, 1, MPI_FLOAT, right, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(u + POINTS, 1, MPI_FLOAT, right, 1, u, 1, MPI_FLOAT, left, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int i = 1; i <= POINTS; i++)
        next[i] =
            u[i] + 0.1f * (u[i - 1] - 2 * u[i] + u[i + 1]) + 0.05f * (u[i] - u[i] * u[i] * u[i]);
}

int main(int argc, char **argv) {
    static float u[2][POINTS + 2];
    int rank, size, members;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const char *how = way(argc, argv);
    if (!how) {
        if (rank == 0) fprintf(stderr, "usage: mpi_solver [data|zero|tensor|pipeline]\n");
        MPI_Finalize();
        return 2;
    }
    int left = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    int right = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
    MPI_Comm team; /* an even number of ranks; an odd last rank is a team of one */
    MPI_Comm_split(MPI_COMM_WORLD, rank >= size / 2 * 2, rank, &team);
    MPI_Comm_size(team, &members);
    if (members == 1) how = "data"; /* nothing to split */
    int parts = strcmp(how, "pipeline") == 0 ? 4 : 1, rows = POINTS / parts;

    weft_world *world;
    weft_plan *plan;
    check(weft_world_from_mpi(team, NULL, &world));
    check(weft_plan_create(members, &plan)); /* data parallelism until a call below adds more */
    if (strcmp(how, "zero") == 0) check(weft_plan_optimizer(plan, 3, 0, 0));
    if (strcmp(how, "tensor") == 0) check(weft_plan_axis(plan, "tp", members));
    if (strcmp(how, "tensor") == 0) check(weft_plan_split_op(plan, "first:linear", "n0=tp"));
    if (parts > 1) check(weft_plan_pipeline(plan, 2, parts, WEFT_PIPELINE_1F1B, 1));

    weft_graph *g; /* keeps its first error, which weft_session_create returns */
    check(weft_graph_create(&g));
    /* A sample is a piece of the line: a rank's points, or, in a pipeline, a part of them. */
    weft_value line = weft_input(g, "u", WEFT_DESC(WEFT_F32, members, rows + 2)), near[NEAR];
    for (int k = 0; k < NEAR; k++) /* all points' left neighbours, the points, their right ones */
        near[k] =
            weft_reshape(g, weft_slice(g, line, 1, k, k + rows), 3, (int64_t[]){members, rows, 1});
    weft_dense_options hidden = WEFT_STRUCT(weft_dense_options, .activation = weft_tanh);
    weft_value x = weft_dense(g, "first", weft_concat(g, NEAR, near, 2), HIDDEN, &hidden);
    x = weft_dense(g, "out", weft_dense(g, "second", x, HIDDEN, &hidden), 1, NULL);
    weft_loss(g, weft_mse(g, x, weft_input(g, "after", WEFT_DESC(WEFT_F32, members, rows, 1))));

    weft_session_options options = weft_session_defaults();
    options.world = world;
    options.plan = plan;
    options.threads = 1;
    options.clip = 1;
    weft_session *session;
    check(weft_session_create(g, &options, &session));
    for (int i = 1; i <= POINTS; i++) u[0][i] = (float)((rank * POINTS + i) * 37 % 100) / 50 - 1;
    for (int step = 0; step <= STEPS; step++) {
        float *now = u[step % 2], *next = u[1 - step % 2];
        double loss;
        solve(now, next, left, right);
        for (int part = 0; part < parts; part++) {
            /* Copies this rank's sample from the solver's arrays to the place that the plan
             * assigns. */
            const float *before = now + part * rows, *after = next + part * rows + 1;
            check(
                weft_session_feed_rows(session, 0, "u", before, (size_t)(rows + 2) * sizeof *now));
            check(weft_session_feed_rows(session, 0, "after", after, (size_t)rows * sizeof *now));
            check(weft_session_accumulate(session, &loss));
        }
        check(weft_session_update(session, 1e-3, NULL));
        if (step % 50 == 0 && rank == 0) printf("step %3d  loss %.6f\n", step, loss);
    }
    weft_session_destroy(session);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
    weft_world_leave(world);
    MPI_Comm_free(&team);
    MPI_Finalize();
    return 0;
}
