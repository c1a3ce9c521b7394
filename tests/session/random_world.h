/* Random plans (random_plan.h) with the programs of all ranks, and of one rank of each class. */
#ifndef WEFT_TESTS_RANDOM_WORLD_H
#define WEFT_TESTS_RANDOM_WORLD_H

#include "random_plan.h"

#include "backend/kinds.h"
#include "builder/fold/fold.h"
#include "program/match.h"
#include "session/optimizer.h"

enum { MOST = 32 };

typedef struct world {
    trial t;
    weft_graph *graph;
    wefti_optimizer *optimizer;
    wefti_optimizer_plan plan; /* of some seeds with recovery, and with buddies */
    wefti_route_cache *routes;
    wefti_program *programs[MOST]; /* of all ranks */
    wefti_rank_classes *classes;
    const wefti_program *built[MOST]; /* of the classes */
    int32_t ranks;
} world;

static inline weft_status build_rank(void *context, int32_t rank, wefti_program **out) {
    const world *w = context;
    const wefti_program_spec spec = {
        .graph = w->graph,
        .kind = wefti_kind_of(rank),
        .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
        .optimizer = &w->plan,
        .microbatches = w->t.microbatches,
        .plan = w->t.plan,
        .rank = rank,
        .routes = w->routes};
    return wefti_program_build(&spec, out);
}

static inline void close_world(world *w) {
    for (int32_t r = 0; r < MOST; r++) wefti_program_destroy(w->programs[r]);
    wefti_rank_classes_destroy(w->classes);
    wefti_route_cache_destroy(w->routes);
    wefti_optimizer_destroy(w->optimizer);
    weft_graph_destroy(w->graph);
    weft_plan_destroy(w->t.plan);
}

/* False: the plan is refused (no split fits); then classes are refused too. */
static inline bool open_world(uint64_t seed, world *w) {
    *w = (world){.t = trial_of(seed, false, MOST)};
    trial *t = &w->t;
    weft_optimizer optimizer = weft_session_defaults().optimizer;
    optimizer.kind = t->optimizer;
    w->graph = random_network(seed, t->cells, t->batch, t->dtype);
    ASSERT_OK(weft_graph_status(w->graph));
    ASSERT_OK(wefti_graph_wrap(w->graph));
    ASSERT_OK(weft_plan_mode(t->plan, roll(&t->dice, 6) ? WEFT_PARALLEL_SEMI : WEFT_PARALLEL_DATA));
    if (t->plan->mode == WEFT_PARALLEL_SEMI) {
        split_ops(t, w->graph);
        split_tensors(t, w->graph);
    }
    ASSERT_OK(wefti_plan_refine(t->plan));
    ASSERT_OK(wefti_optimizer_create(&optimizer, t->clip > 0, w->graph, &w->optimizer));
    w->plan = *wefti_optimizer_plan_of(w->optimizer);
    w->plan.recovery = seed % 3 == 0;
    w->plan.buddies = seed % 6 == 0;
    ASSERT_OK(wefti_route_cache_create(&w->routes));
    w->ranks = weft_plan_devices(t->plan);
    const wefti_fold fold = {.plan = t->plan, .graphs = 1, .context = w, .build = build_rank};
    weft_status status = WEFT_OK;
    for (int32_t r = 0; r < w->ranks && status >= 0; r++)
        status = build_rank(w, r, &w->programs[r]);
    if (status < 0) {
        assert_int_equal(wefti_rank_classes_find(&fold, &w->classes), status);
        return false;
    }
    ASSERT_OK(wefti_rank_classes_find(&fold, &w->classes));
    for (int32_t c = 0; c < w->classes->count; c++)
        w->built[c] = w->classes->classes[c].programs[0];
    return true;
}

static inline wefti_match_classes classes_of(const world *w) {
    return (wefti_match_classes){w->built, w->classes->count, w->classes->class_of, w->ranks};
}

#endif
