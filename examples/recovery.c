/* A program whose job goes on after any of its processes has died.
 *
 *     cc recovery.c $(pkg-config --cflags --libs weft) -o recovery
 *     weft launch -n 4 --restart 3 -- ./recovery 2000
 *
 * Kill a process meanwhile (kill -9): the job ends with the same digest of the parameters. Data
 * parallelism: each process has a copy of the parameters, and learns from its own samples. Rank 0
 * draws the order of the samples. A new process gets that order from one that lives, and the
 * parameters and their optimizer states from weft. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { BATCH = 24, FEATURES = 32, HIDDEN = 64, SAMPLES = 960 };

static weft_world *world;
static int32_t order[SAMPLES]; /* what the program keeps besides the session */

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "recovery: %s\n", weft_error_message());
    if (world) weft_world_fail(world, NULL);
    exit(1);
}

/* ---- the state of the program ---- */

/* At the begin of the job, on all ranks. */
static weft_status begin(void *context, weft_session *s) {
    uint64_t random = 42;
    (void)context;
    (void)s;
    for (int32_t i = 0; i < SAMPLES; i++) order[i] = i;
    for (int32_t i = SAMPLES - 1; i > 0 && weft_world_rank(world) == 0; i--) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        const int32_t other = (int32_t)((random >> 33) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    return weft_broadcast(world, NULL, order, SAMPLES, WEFT_I32, 0);
}

static weft_status give(void *context, const void **out_data, size_t *out_bytes) {
    (void)context;
    *out_data = order;
    *out_bytes = sizeof order;
    return WEFT_OK;
}

static weft_status take(void *context, const void *data, size_t bytes) {
    (void)context;
    if (bytes != sizeof order) return weft_error_raise(WEFT_E_MISMATCH, "another order");
    for (int32_t i = 0; i < SAMPLES; i++) order[i] = ((const int32_t *)data)[i];
    return WEFT_OK;
}

/* ---- steps ---- */

/* The samples follow from the step's number, so a step that is made again has the same ones. */
static weft_status make_step(weft_session *s, int64_t step) {
    static float x[BATCH][FEATURES], y[BATCH];
    for (int64_t i = 0; i < BATCH; i++) {
        const int32_t sample = order[(step * BATCH + i) % SAMPLES];
        for (int32_t k = 0; k < FEATURES; k++)
            x[i][k] = (float)((sample * 37 + k * 101) % 64) / 32 - 1;
        y[i] = 0;
        for (int32_t k = 0; k < FEATURES; k++)
            y[i] += x[i][k] * x[i][(k + 1) % FEATURES] / FEATURES;
    }
    double loss;
    weft_status status = weft_session_feed(s, 0, "x", x, sizeof x);
    if (status >= 0) status = weft_session_feed(s, 0, "y", y, sizeof y);
    if (status >= 0) status = weft_session_step(s, 1e-3, &loss);
    if (status >= 0 && step % 100 == 0 && weft_world_rank(world) == 0)
        printf("step %" PRId64 "  loss %.5f\n", step, loss);
    return status;
}

static uint64_t digest;

static weft_status read_parameters(weft_session *s) {
    digest = UINT64_C(14695981039346656037);
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info info;
        check(weft_session_tensor(s, 0, i, &info));
        if (info.role != WEFT_ROLE_PARAM) continue;
        unsigned char *data = malloc((size_t)info.bytes);
        if (!data) return weft_error_raise(WEFT_E_NOMEM, "no memory for a parameter");
        weft_status status = weft_session_read(s, 0, info.name, data, (size_t)info.bytes);
        for (int64_t k = 0; k < info.bytes && status >= 0; k++)
            digest = (digest ^ data[k]) * UINT64_C(1099511628211);
        free(data);
        if (status < 0) return status;
    }
    return WEFT_OK;
}

static weft_status train(weft_session *s, int64_t steps) {
    while (weft_session_step_number(s) < steps) {
        weft_status status = make_step(s, weft_session_step_number(s));
        if (status < 0) return status;
    }
    return read_parameters(s);
}

int main(int argc, char **argv) {
    const int64_t steps = argc > 1 ? strtoll(argv[1], NULL, 10) : 1000;
    setvbuf(stdout, NULL, _IOLBF, 0);
    check(weft_world_join(NULL, &world));

    weft_graph *g;
    check(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_F32, BATCH, FEATURES));
    x = weft_dense(g, "hidden", x, HIDDEN,
                   &WEFT_STRUCT(weft_dense_options, .activation = weft_tanh));
    x = weft_dense(g, "out", x, 1, NULL);
    weft_loss(g, weft_mse(g, x, weft_input(g, "y", WEFT_DESC(WEFT_F32, BATCH, 1))));

    weft_session_options o = weft_session_defaults();
    o.world = world;
    o.recovery = true;
    weft_session *s;
    check(weft_session_create(g, &o, &s));
    check(weft_session_begin(s, &(weft_session_keeper){.struct_bytes = sizeof(weft_session_keeper),
                                                       .begin = begin,
                                                       .give = give,
                                                       .take = take}));

    int repairs = 0;
    weft_status status;
    while ((status = train(s, steps)) == WEFT_E_RECOVERED) {
        repairs++;
        if (weft_world_rank(world) == 0) printf("%s\n", weft_error_message());
    }
    check(status);
    if (weft_world_rank(world) == 0)
        printf("%" PRId64 " steps, digest %016" PRIx64 "\n", weft_session_step_number(s), digest);
    fprintf(stderr, "rank %d: %d repairs\n", weft_world_rank(world), repairs);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    check(weft_world_close(world));
    return 0;
}
