/* Ranks of one class have programs of one form, and matching classes finds what matching all ranks
 * finds. Random plans of up to 32 ranks: uneven sizes, pipelines with unlike meshes, experts,
 * optimizer shards, all schedules. WEFT_TEST_SEED sets the first seed. weft-test: no threads */
#include "random_plan.h"

#include "backend/backend.h"
#include "builder/fold/fold.h"
#include "program/match.h"
#include "session/optimizer.h"

enum { MOST = 32 };

typedef struct world {
    trial t;
    weft_graph *graph;
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    wefti_program *programs[MOST]; /* of all ranks */
    wefti_rank_classes *classes;
    int32_t ranks;
} world;

static weft_status build(void *context, int32_t rank, wefti_program **out) {
    const world *w = context;
    const wefti_program_spec spec = {
        .graph = w->graph,
        .backends = wefti_builtin_backends(),
        .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
        .optimizer = wefti_optimizer_plan_of(w->optimizer),
        .microbatches = w->t.microbatches,
        .plan = w->t.plan,
        .rank = rank,
        .routes = w->routes};
    return wefti_program_build(&spec, out);
}

static void close_world(world *w) {
    for (int32_t r = 0; r < MOST; r++) wefti_program_destroy(w->programs[r]);
    wefti_rank_classes_destroy(w->classes);
    wefti_route_cache_destroy(w->routes);
    wefti_optimizer_destroy(w->optimizer);
    weft_graph_destroy(w->graph);
    weft_plan_destroy(w->t.plan);
}

/* False: the plan is refused (no split fits); then classes are refused too. */
static bool open_world(uint64_t seed, world *w) {
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
    ASSERT_OK(wefti_optimizer_create(&optimizer, t->clip > 0, w->graph->ops, &w->optimizer));
    ASSERT_OK(wefti_route_cache_create(&w->routes));
    w->ranks = weft_plan_devices(t->plan);
    const wefti_fold fold = {.plan = t->plan, .graphs = 1, .context = w, .build = build};
    weft_status status = WEFT_OK;
    for (int32_t r = 0; r < w->ranks && status >= 0; r++) status = build(w, r, &w->programs[r]);
    if (status < 0) {
        assert_int_equal(wefti_rank_classes_find(&fold, &w->classes), status);
        return false;
    }
    ASSERT_OK(wefti_rank_classes_find(&fold, &w->classes));
    return true;
}

static weft_status match_all(const world *w) {
    return wefti_programs_match((const wefti_program *const *)w->programs, w->ranks);
}

static weft_status match_classes(const world *w) {
    const wefti_program *programs[MOST];
    for (int32_t c = 0; c < w->classes->count; c++) programs[c] = w->classes->classes[c].programs[0];
    return wefti_classes_match(&(wefti_match_classes){programs, w->classes->count,
                                                      w->classes->class_of, w->ranks});
}

static int64_t received(const wefti_program *p) {
    int64_t bytes = 0;
    for (int32_t i = 0; p->partition && i < wefti_partition_transfers(p->partition); i++)
        bytes += wefti_transfer_bytes(wefti_partition_transfer(p->partition, i));
    return bytes;
}

static void check_classes(const world *w, uint64_t seed) {
    int32_t count[MOST] = {0}, last = -1;
    for (int32_t r = 0; r < w->ranks; r++) {
        const wefti_rank_class *c = wefti_rank_class_of(w->classes, r);
        const wefti_program *p = w->programs[r], *q = c->programs[0];
        count[w->classes->class_of[r]]++;
        assert_true(c->rank <= r);
        assert_int_equal(c->stage, wefti_plan_stage_of_rank(w->t.plan, r));
        if (wefti_program_form(p) != wefti_program_form(q))
            fail_msg("seed %llu: rank %d is of the class of rank %d, but its program is another",
                     (unsigned long long)seed, r, c->rank);
        assert_int_equal(p->peak_bytes, q->peak_bytes);
        assert_int_equal(received(p), received(q));
    }
    for (int32_t c = 0; c < w->classes->count; c++) {
        assert_int_equal(count[c], w->classes->classes[c].count);
        assert_true(w->classes->classes[c].rank > last);
        last = w->classes->classes[c].rank;
    }
}

static void test_equal_ranks(void **state) {
    int64_t ranks = 0, classes = 0, plans = 0, folded = 0;
    (void)state;
    TEST_SEEDS(seed, 1, 200) {
        world w;
        if (open_world(seed, &w)) {
            check_classes(&w, seed);
            ASSERT_OK(match_all(&w));
            if (match_classes(&w) < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
            plans++;
            ranks += w.ranks;
            classes += w.classes->count;
            folded += w.classes->count < w.ranks;
        }
        close_world(&w);
    }
    print_message("%lld plans, %lld of them folded: %lld ranks in %lld classes\n", (long long)plans,
                  (long long)folded, (long long)ranks, (long long)classes);
    if (!test_one_seed()) assert_true(plans >= 150 && folded >= 40 && classes < ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
