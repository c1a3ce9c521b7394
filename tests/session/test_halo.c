/* A convolution of a plane with its tiles on four ranks; the graph exchanges the halo. Results and
 * gradients equal those for the whole plane on one device. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "weft/ops.h"
#include "weft/plan.h"
#include "weft/session.h"

#include "world_fixture.h"

/* Images and channels; the plane, and tiles of it. */
enum { RANKS = 4, B = 2, IN = 2, OUT = 3, H = 12, W = 12, K = 5, WEIGHTS = OUT * IN * K * K };
enum { TOP = 2, LEFT = 2, MOST = B * OUT * H * W };

typedef struct grid {
    int rows, columns, height, width; /* of tiles */
} grid;

/* y = conv(x in its rim, w), loss = sum(c y). */
static weft_status make_graph(const grid *t, weft_graph **out) {
    weft_graph *g;
    weft_halo halo[RANKS];
    TRY(weft_graph_create(&g));
    *out = g;
    weft_desc tile = weft_desc_of(WEFT_F64, 4, (int64_t[]){B, IN, t->height, t->width});
    weft_desc kernel = weft_desc_of(WEFT_F64, 4, (int64_t[]){OUT, IN, K, K});
    weft_value x = weft_param(g, "x", tile, (weft_init){WEFT_INIT_ZEROS, 0});
    weft_value w = weft_param(g, "w", kernel, (weft_init){WEFT_INIT_ZEROS, 0});
    for (int m = 0; m < t->rows * t->columns; m++)
        halo[m] = weft_halo_on_grid(t->rows, t->columns, m, (int64_t[]){TOP, TOP, LEFT, LEFT});
    bool one = t->rows * t->columns == 1;
    if (!one) x = weft_graph_halo_exchange(g, x, (weft_ranks){RANKS, 1}, halo, halo);
    weft_conv_options options = weft_conv_defaults();
    options.padding[0] = one ? TOP : 0;
    options.padding[1] = one ? LEFT : 0;
    weft_value y = weft_conv2d(g, x, w, WEFT_NO_VALUE, &options);
    weft_value c = weft_input(g, "c", weft_value_desc(g, y));
    weft_output(g, "y", y);
    weft_loss(g, weft_sum(g, weft_mul(g, y, c), 0, NULL, false));
    return weft_graph_status(g);
}

/* Element of an image of the whole plane. */
static double value_at(int channel, int row, int column, int what) {
    return sin(1.0 + channel * 7 + row * 1.3 + column * 0.71 + what * 2.1);
}

/* The tile of this place, out of `planes` planes. */
static void fill_tile(const grid *t, int place, int planes, int what, double *to) {
    for (int p = 0; p < planes; p++)
        for (int i = 0; i < t->height; i++)
            for (int j = 0; j < t->width; j++)
                *to++ = value_at(p, place / t->columns * t->height + i,
                                 place % t->columns * t->width + j, what);
}
static bool equals_tile(const grid *t, int place, int planes, const double *whole,
                        const double *tile) {
    for (int p = 0; p < planes; p++)
        for (int i = 0; i < t->height; i++)
            for (int j = 0; j < t->width; j++) {
                int row = place / t->columns * t->height + i;
                int column = place % t->columns * t->width + j;
                double want = whole[(p * H + row) * W + column];
                if (!(fabs(*tile++ - want) < 1e-12 * (1 + fabs(want)))) return false;
            }
    return true;
}

typedef struct outcome {
    double y[MOST], dx[MOST], dw[WEIGHTS];
} outcome;

static weft_status run_pass(weft_session *s, const grid *t, int place, outcome *out) {
    size_t size = sizeof(double), plane = (size_t)(t->height * t->width);
    double x[MOST], c[MOST], w[WEIGHTS];
    weft_session_part part;
    fill_tile(t, place, B * IN, 0, x);
    fill_tile(t, place, B * OUT, 1, c);
    for (int i = 0; i < WEIGHTS; i++) w[i] = value_at(i, 0, 0, 2);
    TRY(weft_session_local(s, 0, "x", &part));
    memcpy(part.data, x, (size_t)part.bytes);
    TRY(weft_session_local(s, 0, "w", &part));
    memcpy(part.data, w, (size_t)part.bytes);
    TRY(weft_session_feed_local(s, 0, "c", c, B * OUT * plane * size));
    TRY(weft_session_accumulate(s, NULL));
    TRY(weft_session_local(s, 0, "y", &part));
    memcpy(out->y, part.data, (size_t)part.bytes);
    TRY(weft_session_local(s, 0, "grad:x", &part));
    memcpy(out->dx, part.data, (size_t)part.bytes);
    TRY(weft_session_local(s, 0, "grad:w", &part));
    memcpy(out->dw, part.data, (size_t)part.bytes);
    return WEFT_OK;
}

static weft_status run_session(const grid *t, weft_world *world, outcome *out) {
    weft_session_options o = weft_session_defaults();
    weft_graph *g = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    o.optimizer = (weft_optimizer){.kind = WEFT_SGD};
    o.keep_gradients = true;
    o.threads = 1;
    o.world = world;
    weft_status status = world ? weft_plan_create(RANKS, &plan) : WEFT_OK;
    if (status >= 0 && world) status = weft_plan_mode(plan, WEFT_PARALLEL_MANUAL);
    o.plan = plan;
    if (status >= 0) status = make_graph(t, &g);
    if (status >= 0) status = weft_session_create(g, &o, &s);
    if (status >= 0) status = run_pass(s, t, world ? weft_world_rank(world) : 0, out);
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return status;
}

typedef struct tile_run {
    grid tiles;
    outcome out;
} tile_run;

static weft_status run_tile(void *context, weft_world *world) {
    tile_run *r = context;
    TRY(run_session(&r->tiles, world, &r->out));
    return weft_all_reduce(world, NULL, r->out.dw, r->out.dw, WEIGHTS, WEFT_F64, WEFT_REDUCE_SUM);
}

static void convolutions_of_tiles_are_those_of_the_plane(void **state) {
    (void)state;
    static const grid grids[] = {{2, 2, H / 2, W / 2}, {4, 1, H / 4, W}, {1, 4, H, W / 4}};
    static outcome whole;
    static tile_run runs[RANKS];
    rank_of_world ranks[RANKS];
    ASSERT_OK(run_session(&(grid){1, 1, H, W}, NULL, &whole));
    for (int k = 0; k < 3; k++) {
        for (int r = 0; r < RANKS; r++) runs[r].tiles = grids[k];
        run_world(RANKS, run_tile, runs, sizeof *runs, ranks);
        assert_all_ok(ranks, RANKS, "tiles");
        for (int r = 0; r < RANKS; r++) {
            const outcome *out = &runs[r].out;
            if (!equals_tile(&grids[k], r, B * OUT, whole.y, out->y))
                fail_msg("grid %d, rank %d: y", k, r);
            if (!equals_tile(&grids[k], r, B * IN, whole.dx, out->dx))
                fail_msg("grid %d, rank %d: dx", k, r);
            for (int i = 0; i < WEIGHTS; i++)
                if (!(fabs(out->dw[i] - whole.dw[i]) < 1e-10 * (1 + fabs(whole.dw[i]))))
                    fail_msg("grid %d, rank %d: dw[%d]", k, r, i);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_of_tiles_are_those_of_the_plane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
