/* Steps that can be made again. With recovery a session computes the bits that it computes without,
 * on random networks under random plans, and its memory is as predicted. Steps are given up at
 * random places and made again, on devices of one process and on ranks of a world, whose
 * communicator is then a new one. In the end all bits equal those of an undisturbed run.
 * WEFT_TEST_SEED sets the first seed, WEFT_CASES the number of seeds. */
#include "random_plan.h"

#include <stdatomic.h>

#include "sanitized.h"
#include "session/agree.h"
#include "session/parts.h"
#include "world_fixture.h"

enum { STEPS = 3 };

/* ---- trials ---- */

static weft_status step(const trial *t, weft_session *s, int64_t number, double *out_loss) {
    double loss;
    *out_loss = 0;
    if (t->microbatches == 1 && t->clip == 0) {
        TRY(feed(s, (uint64_t)number));
        TRY(weft_session_set_row(s, number * t->batch));
        return weft_session_step(s, 1e-2, out_loss);
    }
    for (int m = 0; m < t->microbatches; m++) {
        TRY(feed(s, (uint64_t)(number * t->microbatches + m)));
        TRY(weft_session_set_row(s, (number * t->microbatches + m) * t->batch));
        TRY(weft_session_accumulate(s, &loss));
        if (!isnan(loss)) *out_loss += loss; /* a pipeline knows it at the last one */
    }
    return weft_session_update(s, 1e-2, NULL);
}

static weft_graph *graph_of(const trial *t) {
    weft_graph *g = random_network(t->seed, t->cells, t->batch, t->dtype);
    if (weft_graph_status(g) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_graph_message(g));
    name_results(t, g);
    return g;
}

/* A random plan for a random network. Destroy the plan. `replicas`: often without optimizer
 * parallelism and without splits, so that ranks have replicas. */
static trial make_trial(uint64_t seed, int most, bool replicas) {
    trial t = trial_of(seed, false, most);
    weft_graph *g = graph_of(&t);
    ASSERT_OK(wefti_graph_wrap(g));
    dice own = {seed, 1u << 29};
    if (replicas && roll(&own, 4)) {
        ASSERT_OK(weft_plan_optimizer(t.plan, 0, 0, 0));
        ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_DATA));
        weft_graph_destroy(g);
        return t;
    }
    weft_parallel_mode other = roll(&t.dice, 2) ? WEFT_PARALLEL_MANUAL : WEFT_PARALLEL_DATA;
    weft_parallel_mode mode = roll(&t.dice, 6) ? WEFT_PARALLEL_SEMI : other;
    ASSERT_OK(weft_plan_mode(t.plan, mode));
    if (mode == WEFT_PARALLEL_MANUAL) ASSERT_OK(weft_plan_optimizer(t.plan, 0, 0, 0));
    if (mode == WEFT_PARALLEL_SEMI) {
        split_ops(&t, g);
        split_tensors(&t, g);
    }
    weft_graph_destroy(g);
    return t;
}

static weft_session_options options_of(const trial *t, bool recovery) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = t->optimizer;
    o.optimizer.eps = 1e-3;
    o.clip = t->clip;
    o.microbatches = t->microbatches;
    o.threads = 2;
    o.seed = t->seed;
    o.plan = t->plan;
    o.recovery = recovery;
    return o;
}

/* NULL: the plan is refused. */
static weft_session *open_session(const trial *t, bool recovery, weft_graph **graph) {
    weft_session *s;
    const weft_session_options o = options_of(t, recovery);
    *graph = graph_of(t);
    weft_status status = weft_session_create(*graph, &o, &s);
    if (status >= 0) return s;
    if (status != WEFT_E_LAYOUT)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_error_message());
    weft_graph_destroy(*graph);
    return NULL;
}

static bool is_kept(const weft_tensor_info *info) {
    return info->role == WEFT_ROLE_PARAM || info->role == WEFT_ROLE_STATE ||
           info->role == WEFT_ROLE_OPTIMIZER;
}

/* All kept tensors of a session, one behind the other. */
static weft_status read_all(weft_session *s, char **out, size_t *out_bytes) {
    size_t bytes = 0, room = 0;
    char *data = NULL;
    for (int k = 0; k < weft_session_tensors(s, 0); k++) {
        weft_tensor_info info;
        TRY(weft_session_tensor(s, 0, k, &info));
        if (!is_kept(&info)) continue;
        room = bytes + (size_t)info.bytes;
        data = realloc(data, room + 1);
        weft_status status = weft_session_read(s, 0, info.name, data + bytes, (size_t)info.bytes);
        if (status < 0) {
            free(data);
            return status;
        }
        bytes = room;
    }
    *out = data;
    *out_bytes = bytes;
    return WEFT_OK;
}

static void assert_same(const trial *t, weft_session *a, weft_session *b) {
    char *x, *y;
    size_t n, m;
    ASSERT_OK(read_all(a, &x, &n));
    ASSERT_OK(read_all(b, &y, &m));
    if (n != m || memcmp(x, y, n))
        fail_msg("seed %llu: the tensors differ", (unsigned long long)t->seed);
    free(x);
    free(y);
}

static void assert_memory(const trial *t, weft_session *s) {
    for (int r = 0; r < weft_session_devices(s); r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        if (predicted != observed)
            fail_msg("seed %llu: device %d uses %lld bytes, not %lld", (unsigned long long)t->seed,
                     r, (long long)observed, (long long)predicted);
    }
}

/* ---- giving up ---- */

/* A rank gives up when it has been asked `at` times. */
typedef struct halting {
    int32_t rank;
    int64_t at, asked; /* at < 0: never */
    wefti_comm *comm;  /* broken then; NULL: none */
    bool halted;
} halting;

static bool halts(void *context, int32_t rank) {
    halting *h = context;
    if (rank != h->rank) return false;
    if (h->asked++ != h->at) return false;
    h->halted = true;
    if (h->comm) wefti_comm_break(h->comm, -1, "the world is halted");
    return true;
}

/* ---- one process ---- */

static bool same_bits_with_recovery(uint64_t seed) {
    trial t = make_trial(seed, 8, false);
    weft_graph *g[2];
    weft_session *plain = open_session(&t, false, &g[0]);
    if (!plain) {
        weft_plan_destroy(t.plan);
        return false;
    }
    weft_session *s = open_session(&t, true, &g[1]);
    dice d = {seed, 1u << 27};
    assert_non_null(s);
    int64_t asked = 0; /* in a step */
    for (int n = 0; n < STEPS; n++) {
        double want, is;
        halting h = {.rank = (int32_t)roll(&d, weft_session_devices(s)), .at = -1};
        if (step(&t, plain, n, &want) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        wefti_session_halt_when(s, halts, &h);
        for (int again = 0; n && again < 2; again++) { /* the first step counts */
            h.at = roll(&d, asked);
            h.asked = 0;
            h.halted = false;
            weft_status status = step(&t, s, n, &is);
            if (!h.halted) break; /* this device asks less often */
            if (status != WEFT_E_PEER)
                fail_msg("seed %llu: %d, %s", (unsigned long long)seed, status,
                         weft_error_message());
            assert_int_equal(wefti_session_stands(s).step, n);
            assert_false(wefti_session_stands(s).ready);
            ASSERT_OK(wefti_session_abandon(s, false));
            ASSERT_OK(wefti_session_advance(s, n));
        }
        h.at = -1;
        h.asked = 0;
        if (weft_session_step_number(s) == n && step(&t, s, n, &is) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        if (n == 0) asked = h.asked;
        if (memcmp(&want, &is, sizeof is))
            fail_msg("seed %llu: loss %d is %.17g, not %.17g", (unsigned long long)seed, n, is,
                     want);
        assert_same(&t, plain, s);
    }
    assert_memory(&t, s);
    weft_session_destroy(plain);
    weft_session_destroy(s);
    weft_graph_destroy(g[0]);
    weft_graph_destroy(g[1]);
    weft_plan_destroy(t.plan);
    return true;
}

static uint64_t cases_of(uint64_t otherwise) {
    const char *text = getenv("WEFT_CASES");
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void devices_make_steps_again(void **state) {
    (void)state;
    const uint64_t first = test_seed(20261126), cases = cases_of(SANITIZED ? 6 : 12);
    uint64_t ran = 0;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + cases - 1));
    for (uint64_t k = 0; k < cases; k++) ran += same_bits_with_recovery(first + k);
    print_message("%llu cases ran\n", (unsigned long long)ran);
    assert_true(ran * 4 >= cases * 3);
}

/* ---- a world ---- */

/* What the ranks of a world share: here it stands for the control plane. */
typedef struct world_trial {
    const trial *t;
    pthread_barrier_t barrier;
    wefti_comm *next[MOST_RANKS]; /* communicators after the repair */
    wefti_comm *old[MOST_RANKS];
    wefti_session_standing stands[MOST_RANKS];
    int32_t size, victim,
        source;          /* source: gives the victim its state; -1: the victim only halts */
    int64_t step, share; /* the step that is given up, after so many 1/64 of its parts; */
    int64_t before_end;  /* >= 0: instead, so many parts before the end of the last one */
    int64_t target;
    bool torn;            /* a rank has no whole state */
    bool halted, catches; /* the world was repaired; a rank updated by itself then */
} world_trial;

typedef struct world_rank {
    world_trial *w;
    weft_graph *graph;
    weft_session *s;
    char *data;
    size_t bytes;
    double loss;
} world_rank;

static weft_status open_rank(world_rank *x, weft_world *world) {
    weft_session_options o = options_of(x->w->t, true);
    o.world = world;
    o.threads = x->w->size;
    x->graph = graph_of(x->w->t);
    return weft_session_create(x->graph, &o, &x->s);
}

static void close_rank(world_rank *x) {
    weft_session_destroy(x->s);
    weft_graph_destroy(x->graph);
    x->s = NULL;
    x->graph = NULL;
}

/* The furthest step of a rank that lives. */
static void choose_target(world_trial *w) {
    w->target = -1;
    w->halted = true;
    for (int32_t r = 0; r < w->size; r++) {
        if (w->source >= 0 && r == w->victim) continue;
        w->torn |= w->stands[r].step < 0;
        w->catches |= w->stands[r].ready;
        if (w->stands[r].step > w->target) w->target = w->stands[r].step;
    }
    if (w->catches) { /* unless all ranks make the step again */
        w->catches = false;
        for (int32_t r = 0; r < w->size; r++) w->catches |= w->stands[r].step == w->target - 1;
    }
}

static weft_status repair(world_rank *x, weft_world *world) {
    world_trial *w = x->w;
    const bool dies = w->source >= 0, dead = dies && world->rank == w->victim;
    int32_t source[MOST_RANKS];
    for (int32_t r = 0; r < w->size; r++) source[r] = dies && r == w->victim ? w->source : -1;
    w->stands[world->rank] = wefti_session_stands(x->s);
    pthread_barrier_wait(&w->barrier);
    if (world->rank == 0) choose_target(w);
    if (dead) close_rank(x);
    if (world->agreement) world->end_agreement(world->agreement);
    world->agreement = NULL;
    w->old[world->rank] = world->comm;
    world->comm = w->next[world->rank];
    w->next[world->rank] = NULL;
    pthread_barrier_wait(&w->barrier);
    if (w->torn) return WEFT_OK;
    if (dead) {
        TRY(open_rank(x, world));
        TRY(wefti_session_arrive(x->s));
    } else {
        TRY(wefti_session_abandon(x->s, dies));
    }
    TRY(wefti_session_advance(x->s, w->target));
    return wefti_session_give(x->s, w->target, source);
}

static weft_status run_rank(void *context, weft_world *world) {
    world_rank *x = context;
    world_trial *w = x->w;
    halting h = {.rank = w->victim, .at = -1, .comm = world->comm};
    TRY(open_rank(x, world));
    wefti_session_halt_when(x->s, halts, &h);
    for (bool repaired = w->step < 0;;) {
        const int64_t n = weft_session_step_number(x->s);
        if (!repaired && n == w->step && world->rank == w->victim) {
            h.at = h.asked / n * w->share / 64;
            if (w->before_end >= 0 && w->before_end < h.asked / n)
                h.at = h.asked / n - 1 - w->before_end;
            h.asked = 0;
        }
        weft_status status =
            n < STEPS ? step(w->t, x->s, n, &x->loss) : read_all(x->s, &x->data, &x->bytes);
        if (status >= 0 && n == STEPS) break;
        if (status >= 0) continue;
        if (status != WEFT_E_PEER || repaired) return status;
        repaired = true;
        TRY(repair(x, world));
        if (w->torn) break;
    }
    close_rank(x);
    return WEFT_OK;
}

static void run_trial(const trial *t, world_trial *w, world_rank *ranks) {
    rank_of_world world[MOST_RANKS];
    w->t = t;
    assert_int_equal(pthread_barrier_init(&w->barrier, NULL, (unsigned)w->size), 0);
    ASSERT_OK(wefti_comm_threads(w->size, -1, w->next));
    for (int32_t r = 0; r < w->size; r++) ranks[r] = (world_rank){.w = w};
    run_world(w->size, run_rank, ranks, sizeof *ranks, world);
    char what[40];
    (void)snprintf(what, sizeof what, "seed %llu", (unsigned long long)t->seed);
    assert_all_ok(world, w->size, what);
    for (int32_t r = 0; r < w->size; r++) {
        wefti_comm_destroy(w->next[r]);
        wefti_comm_destroy(w->old[r]);
    }
    pthread_barrier_destroy(&w->barrier);
}

/* Fails if two ranks read other bits, with the first tensor that differs. */
static void assert_same_bits(const trial *t, const world_trial *w, const world_rank *a,
                             const world_rank *b, int32_t rank) {
    size_t at = 0;
    weft_graph *g;
    if (a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes)) return;
    while (at < a->bytes && a->data[at] == b->data[at]) at++;
    weft_session *s = open_session(t, true, &g);
    weft_tensor_info info = {.name = "nothing"};
    size_t begin = 0;
    for (int k = 0; k < weft_session_tensors(s, 0) && begin <= at; k++) {
        ASSERT_OK(weft_session_tensor(s, 0, k, &info));
        if (is_kept(&info)) begin += (size_t)info.bytes;
    }
    fail_msg("seed %llu: rank %d ends with other bits, from byte %zu of %s on (of %zu); rank %d %s "
             "in step %lld, target %lld, %s; clip %g, %d microbatches",
             (unsigned long long)t->seed, rank, (size_t)info.bytes - (begin - at), info.name,
             (size_t)info.bytes, w->victim, w->source >= 0 ? "died" : "halted", (long long)w->step,
             (long long)w->target, w->catches ? "a rank caught up" : "all made it again", t->clip,
             t->microbatches);
}

/* A victim that asked `share` of all its parts is given up; whether another process takes its place
 * follows from the plan: a replica can give it its state. */
static int world_makes_step_again(uint64_t seed, int *catches) {
    trial t = make_trial(seed, 4, true);
    weft_graph *g;
    weft_session *s = open_session(&t, true, &g);
    const int32_t size = s ? weft_session_devices(s) : 0;
    dice d = {seed, 1u << 28};
    world_trial calm = {.size = size, .source = -1, .step = -1},
                w = {.size = size,
                     .source = -1,
                     .victim = size ? (int32_t)roll(&d, size) : 0,
                     .step = 1 + roll(&d, STEPS - 1),
                     .share = roll(&d, 64),
                     .before_end = roll(&d, 2) ? roll(&d, 3) : -1};
    for (int32_t r = 0; r < size; r++)
        if (r != w.victim && wefti_session_replicates(s, r, w.victim)) w.source = r;
    weft_session_destroy(s);
    if (s) weft_graph_destroy(g);
    int outcome = -1;
    if (size > 1) {
        world_rank a[MOST_RANKS], b[MOST_RANKS];
        run_trial(&t, &calm, a);
        run_trial(&t, &w, b);
        outcome = w.torn || !w.halted ? -1 : w.source >= 0;
        *catches += w.catches;
        for (int32_t r = 0; r < size; r++) {
            if (!w.torn) assert_same_bits(&t, &w, &a[r], &b[r], r);
            free(a[r].data);
            free(b[r].data);
        }
    }
    weft_plan_destroy(t.plan);
    return outcome;
}

static void worlds_make_steps_again(void **state) {
    (void)state;
    const uint64_t first = test_seed(20261127), cases = cases_of(SANITIZED ? 12 : 16);
    int count[3] = {0}, catches = 0;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + cases - 1));
    for (uint64_t k = 0; k < cases; k++) count[1 + world_makes_step_again(first + k, &catches)]++;
    print_message(
        "%d ranks halted, %d were new, %d cases without a repair; in %d a rank caught up\n",
        count[1], count[2], count[0], catches);
    assert_true(cases < 12 || (count[1] > 0 && count[2] > 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_make_steps_again),
        cmocka_unit_test(worlds_make_steps_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
