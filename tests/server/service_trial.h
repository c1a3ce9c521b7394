/* Ranks in threads push whole numbers to servers, whose sums are exact in any order, and pull. Each
 * step counts once, also if it was given up and made again, and none is lost. */
#ifndef WEFT_TESTS_SERVICE_TRIAL_H
#define WEFT_TESTS_SERVICE_TRIAL_H

#include "support.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "graph/graph.h"
#include "program/service.h"
#include "weft/graph.h"

enum { MOST_RANKS = 4, ELEMS = 1003, STEPS = 12, SHARDS = 5 };

/* What all ranks know. */
typedef struct world {
    uint64_t seed;
    int32_t ranks;
    weft_graph *graph; /* for its ops */
    wefti_served served[SHARDS];
    wefti_service *services[MOST_RANKS];
    pthread_barrier_t step;
} world;

/* Each test has its own: they fill in w->services, and end what stands behind them. */
static void open_services(world *w);
static void close_services(world *w);

/* Gradient descent without a momentum: value -= rate * scale * gradient. */
static inline void open_world(world *w, uint64_t seed, int32_t ranks) {
    static const char *const names[SHARDS] = {"a", "b", "b", "c", "d"};
    *w = (world){.seed = seed, .ranks = ranks};
    ASSERT_OK(weft_graph_create(&w->graph));
    const weft_op_def *op = wefti_op_find(w->graph->ops, "opt_sgd");
    assert_non_null(op);
    assert_int_equal(pthread_barrier_init(&w->step, NULL, (unsigned)ranks), 0);
    for (int k = 0; k < SHARDS; k++) {
        const weft_desc desc = weft_desc_of(WEFT_F32, 1, (int64_t[]){ELEMS - 7 * k});
        w->served[k] =
            (wefti_served){.name = names[k],
                           .desc = desc,
                           .whole = weft_desc_of(WEFT_F32, 1, (int64_t[]){2 * ELEMS}),
                           .region = {.begin = {k == 2 ? ELEMS : 0}, .size = {desc.shape[0]}},
                           .terms = ranks,
                           .rule = {.op = op, .attrs = op->attrs, .absent = 1},
                           .part_bytes = {weft_desc_bytes(&desc)},
                           .square = WEFT_F64};
    }
    open_services(w);
}

static inline void close_world(world *w) {
    for (int32_t r = 0; r < w->ranks; r++) wefti_service_destroy(w->services[r]);
    close_services(w);
    pthread_barrier_destroy(&w->step);
    weft_graph_destroy(w->graph);
}

static inline weft_status bind_shard(const world *w, int32_t rank, int shard, wefti_shard **out) {
    wefti_served served = w->served[shard];
    served.term = rank;
    return w->services[rank]->engine->bind(w->services[rank], &served, out);
}

static inline float term_of(const world *w, int32_t rank, int step, int shard, int64_t i) {
    const uint64_t stream = (uint64_t)(rank * 1000 + step * 10 + shard);
    return (float)(int)(wefti_philox_u32(w->seed, stream, (uint64_t)i) % 2001) - 1000;
}

/* A step whose first try is given up, after the pushes of some ranks or of all. */
static inline bool is_given_up(const world *w, int step) {
    return wefti_philox_u32(w->seed, 1u << 20, (uint64_t)step) % 3 == 0;
}

/* ---- steps ---- */

typedef struct rank_side {
    world *w;
    int32_t rank;
    pthread_t thread;
    wefti_shard *shards[SHARDS];
    float gradient[SHARDS][ELEMS], value[SHARDS][ELEMS];
} rank_side;

static inline void fill(rank_side *r, int step) {
    for (int k = 0; k < SHARDS; k++)
        for (int64_t i = 0; i < ELEMS; i++) r->gradient[k][i] = term_of(r->w, r->rank, step, k, i);
}

static inline void give_up(rank_side *r, int64_t number) {
    const bool all = number % 2;
    for (int k = 0; k < SHARDS; k++) {
        if (!all && (r->rank + k) % 2) continue;
        ASSERT_OK(r->shards[k]->engine->push(r->shards[k], number, r->gradient[k]));
        r->shards[k]->engine->give_up(r->shards[k]);
    }
}

static inline void check_square(const rank_side *r, int step, int k, int64_t number) {
    double square, expected = 0;
    ASSERT_OK(r->shards[k]->engine->square(r->shards[k], number, &square));
    for (int64_t i = 0; i < r->w->served[k].desc.shape[0]; i++) {
        double sum = 0;
        for (int32_t m = 0; m < r->w->ranks; m++) sum += (double)term_of(r->w, m, step, k, i);
        expected += sum * sum;
    }
    assert_true(square >= expected * (1 - 1e-5) && square <= expected * (1 + 1e-5));
}

static inline void make_step(rank_side *r, int step, int64_t number) {
    const wefti_step_block scalars = {.f32 = {.learning_rate = 1, .step = 1, .gradient_scale = 1}};
    for (int k = 0; k < SHARDS; k++)
        ASSERT_OK(r->shards[k]->engine->push(r->shards[k], number, r->gradient[k]));
    if (r->rank == 0) check_square(r, step, step % SHARDS, number);
    for (int k = 0; k < SHARDS; k++) ASSERT_OK(r->shards[k]->engine->wait_push(r->shards[k]));
    for (int k = 0; k < SHARDS; k++)
        ASSERT_OK(r->shards[k]->engine->pull(r->shards[k], number, &scalars, r->value[k]));
    for (int k = SHARDS - 1; k >= 0; k--) ASSERT_OK(r->shards[k]->engine->wait_pull(r->shards[k]));
}

static inline void *run_rank(void *context) {
    rank_side *r = context;
    int64_t number = 1;
    for (int k = 0; k < SHARDS; k++) ASSERT_OK(bind_shard(r->w, r->rank, k, &r->shards[k]));
    (void)pthread_barrier_wait(&r->w->step);
    for (int step = 0; step < STEPS; step++) {
        fill(r, step);
        if (is_given_up(r->w, step)) give_up(r, number++);
        make_step(r, step, number++);
        (void)pthread_barrier_wait(&r->w->step); /* as sessions have it */
    }
    return NULL;
}

static inline void check_values(const rank_side *r) {
    for (int k = 0; k < SHARDS; k++) {
        float stored[ELEMS];
        ASSERT_OK(
            r->shards[k]->engine->read(r->shards[k], 0, 0, r->w->served[k].part_bytes[0], stored));
        for (int64_t i = 0; i < r->w->served[k].desc.shape[0]; i++) {
            float expected = 0;
            for (int step = 0; step < STEPS; step++)
                for (int32_t m = 0; m < r->w->ranks; m++) expected -= term_of(r->w, m, step, k, i);
            if (r->value[k][i] != expected || stored[i] != expected)
                fail_msg("rank %d, shard %d, element %lld: %g, stored %g, expected %g", r->rank, k,
                         (long long)i, r->value[k][i], stored[i], expected);
        }
    }
}

/* A gradient that is not finite is named with its rank and its parameter. Large ones are taken. */
static inline void a_push_that_is_not_finite_is_refused(void **state) {
    (void)state;
    static float gradients[2][ELEMS], values[2][ELEMS];
    const wefti_step_block scalars = {.f32 = {.learning_rate = 1, .step = 1, .gradient_scale = 1}};
    for (int bad = 0; bad < 2; bad++) {
        world w;
        wefti_shard *shards[2];
        open_world(&w, 5, 2);
        memset(gradients, 0, sizeof gradients);
        gradients[0][3] = 1e30f;
        if (bad) gradients[1][7] = NAN;
        for (int32_t r = 0; r < 2; r++) ASSERT_OK(bind_shard(&w, r, 1, &shards[r]));
        for (int32_t r = 0; r < 2; r++)
            ASSERT_OK(shards[r]->engine->push(shards[r], 1, gradients[r]));
        for (int32_t r = 0; r < 2; r++)
            ASSERT_OK(shards[r]->engine->pull(shards[r], 1, &scalars, values[r]));
        const weft_status status = shards[0]->engine->wait_pull(shards[0]);
        if (bad)
            ASSERT_FAILS(WEFT_E_NUMERIC, "rank 1|element 7|'b'|nan", status);
        else
            ASSERT_OK(status);
        for (int32_t r = 0; r < 2; r++) {
            shards[r]->engine->give_up(shards[r]);
            shards[r]->engine->unbind(shards[r]);
        }
        close_world(&w);
    }
}

static inline void run_steps(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, SANITIZED ? 4 : 12) {
        world w;
        open_world(&w, seed, 1 + (int32_t)(seed % MOST_RANKS));
        rank_side *ranks = calloc((size_t)w.ranks, sizeof *ranks);
        for (int32_t r = 0; r < w.ranks; r++) {
            ranks[r].w = &w;
            ranks[r].rank = r;
            assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
        }
        for (int32_t r = 0; r < w.ranks; r++) (void)pthread_join(ranks[r].thread, NULL);
        for (int32_t r = 0; r < w.ranks; r++) check_values(&ranks[r]);
        for (int32_t r = 0; r < w.ranks; r++)
            for (int k = 0; k < SHARDS; k++) ranks[r].shards[k]->engine->unbind(ranks[r].shards[k]);
        free(ranks);
        close_world(&w);
    }
}

#endif
