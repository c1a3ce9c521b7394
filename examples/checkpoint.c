/* A program that saves its session while it trains, and goes on from there on any number of ranks.
 *
 *     cc checkpoint.c $(pkg-config --cflags --libs weft) -o checkpoint
 *     weft launch -n 2 -- ./checkpoint run 20      # or mpirun -n 2: trains to step 20
 *     weft launch -n 4 -- ./checkpoint run 40      # goes on, on other ranks
 *     weft checkpoint verify run
 *
 * With a third word, sliced, each rank writes files of its own, which say what they hold. The next
 * run may have another number of ranks all the same.
 *
 * Each rank holds a part of the parameters and of the optimizer's states. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { BATCH = 12, FEATURES = 32, HIDDEN = 64, EVERY = 5 };

static weft_world *world;

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "checkpoint: %s\n", weft_error_message());
    if (world) weft_world_fail(world, NULL);
    exit(1);
}

/* The samples follow from the step's number. */
static void feed(weft_session *s, int64_t step) {
    static float x[BATCH][FEATURES], y[BATCH];
    for (int i = 0; i < BATCH; i++) {
        y[i] = 0;
        for (int k = 0; k < FEATURES; k++)
            x[i][k] = (float)(((step * BATCH + i) * 37 + k * 101) % 64) / 32 - 1;
        for (int k = 0; k < FEATURES; k++) y[i] += x[i][k] * x[i][(k + 1) % FEATURES] / FEATURES;
    }
    check(weft_session_feed(s, 0, "x", x, sizeof x));
    check(weft_session_feed(s, 0, "y", y, sizeof y));
}

/* Goes on from the newest step, if there is one. */
static void resume(weft_session *s, const char *dir) {
    const weft_status status = weft_session_load(s, dir, -1, NULL);
    if (status != WEFT_E_NOT_FOUND) check(status);
    if (weft_world_rank(world) == 0)
        printf("begins at step %" PRId64 "\n", weft_session_step_number(s));
}

int main(int argc, char **argv) {
    const bool sliced = argc == 4 && !strcmp(argv[3], "sliced");
    if (argc != 3 && !sliced) {
        fprintf(stderr, "usage: checkpoint FOLDER STEPS [sliced]\n");
        return 2;
    }
    const char *dir = argv[1];
    const int64_t steps = strtoll(argv[2], NULL, 10);
    weft_plan *plan;
    weft_graph *g;
    check(weft_world_join(NULL, &world));
    check(weft_plan_create(weft_world_size(world), &plan));
    check(weft_plan_optimizer(plan, 3, 0, 0));

    check(weft_graph_create(&g));
    weft_dense_options hidden = WEFT_STRUCT(weft_dense_options, .activation = weft_tanh);
    weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_F32, BATCH, FEATURES));
    x = weft_dense(g, "out", weft_dense(g, "hidden", x, HIDDEN, &hidden), 1, NULL);
    weft_value y =
        weft_reshape(g, weft_input(g, "y", WEFT_DESC(WEFT_F32, BATCH)), 2, (int64_t[]){BATCH, 1});
    weft_loss(g, weft_mse(g, x, y));

    weft_session_options options = weft_session_defaults();
    options.world = world;
    options.plan = plan;
    options.threads = 1;
    weft_session *s;
    check(weft_session_create(g, &options, &s));
    resume(s, dir);
    weft_session_save_options keep = weft_session_save_defaults();
    keep.keep = 2;
    keep.sliced = sliced;
    double loss = 0;
    while (weft_session_step_number(s) < steps) {
        feed(s, weft_session_step_number(s));
        check(weft_session_step(s, 1e-3, &loss));
        if (weft_session_step_number(s) % EVERY) continue;
        check(weft_session_save_wait(s)); /* of the step before, which is on the disk then */
        check(weft_session_save_start(s, dir, &keep)); /* the next steps go on meanwhile */
    }
    check(weft_session_save_wait(s));
    check(weft_session_save(s, dir, &keep));
    if (weft_world_rank(world) == 0)
        printf("saved step %" PRId64 "\n", weft_session_step_number(s));
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
    weft_world_leave(world);
    return 0;
}
