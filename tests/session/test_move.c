/* A world changes its number of ranks and its plan. Random networks take some steps under a random
 * plan. Then some ranks die, others come, and the rest makes a world with another random plan. All
 * tensors of the new sessions must have the bits of the old ones. If a region died with its ranks,
 * all new ranks must find that alike. With buddies, one death loses nothing. WEFT_TEST_SEED sets
 * the first seed, WEFT_CASES the number of seeds. */
#include "random_plan.h"

#include "sanitized.h"
#include "session/parts.h"
#include "world_fixture.h"

enum { STEPS = 2, DEVICES = 6 };

/* ---- two plans for one network ---- */

static weft_graph *graph_of(const trial *t) {
    weft_graph *g = random_network(t->seed, t->cells, t->batch, t->dtype);
    if (weft_graph_status(g) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_graph_message(g));
    return g;
}

/* A random plan, half of the time without splits. `like` (may be NULL) has the network. */
static trial make_trial(uint64_t seed, const trial *like) {
    trial t = trial_of(seed, false, DEVICES);
    if (like) {
        t.seed = like->seed;
        t.dtype = like->dtype;
        t.cells = like->cells;
        t.optimizer = like->optimizer;
    }
    if (roll(&t.dice, 2)) {
        ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_DATA));
        if (roll(&t.dice, 2)) ASSERT_OK(weft_plan_optimizer(t.plan, 0, 0, 0));
        return t;
    }
    weft_graph *g = graph_of(&t);
    ASSERT_OK(wefti_graph_wrap(g));
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    split_ops(&t, g);
    split_tensors(&t, g);
    weft_graph_destroy(g);
    return t;
}

static weft_session_options options_of(const trial *t, bool buddies, weft_world *world) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = t->optimizer;
    o.optimizer.eps = 1e-3;
    o.clip = t->clip;
    o.microbatches = t->microbatches;
    o.threads = DEVICES;
    o.seed = t->seed;
    o.plan = t->plan;
    o.recovery = true;
    o.buddy = buddies;
    o.world = world;
    return o;
}

/* The devices of a session under the plan; 0: it is refused. */
static int32_t devices_of(const trial *t, bool buddies) {
    weft_session *s;
    weft_session_options o = options_of(t, buddies, NULL);
    weft_graph *g = graph_of(t);
    weft_status status = weft_session_create(g, &o, &s);
    const int32_t devices = status < 0 ? 0 : weft_session_devices(s);
    if (status >= 0)
        weft_session_destroy(s);
    else if (status != WEFT_E_LAYOUT)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_error_message());
    weft_graph_destroy(g);
    return devices;
}

/* ---- ranks ---- */

/* A process: rank `old` of the old world, then rank `now` of the new one; -1: of neither. */
typedef struct process {
    struct move_trial *w;
    pthread_t thread;
    int32_t old, now;
    weft_world *worlds[2];
    weft_graph *graphs[2];
    weft_session *sessions[2];
    char *data[2];
    size_t bytes[2];
    bool whole;
    int64_t step;
    weft_status status;
    char message[1000];
} process;

typedef struct move_trial {
    const trial *plans[2];
    bool buddies;
    pthread_barrier_t barrier;
    int32_t count; /* processes */
    process processes[2 * DEVICES];
} move_trial;

static weft_status step(const trial *t, weft_session *s, int64_t number) {
    double loss;
    for (int m = 0; m < t->microbatches; m++) {
        TRY(feed(s, (uint64_t)(number * t->microbatches + m)));
        TRY(weft_session_set_row(s, (number * t->microbatches + m) * t->batch));
        TRY(weft_session_accumulate(s, &loss));
    }
    return weft_session_update(s, 1e-2, NULL);
}

static weft_status open_session(process *x, int which) {
    const trial *t = x->w->plans[which];
    weft_session_options o = options_of(t, x->w->buddies, x->worlds[which]);
    x->graphs[which] = graph_of(t);
    return weft_session_create(x->graphs[which], &o, &x->sessions[which]);
}

static void close_session(process *x, int which) {
    weft_session_destroy(x->sessions[which]);
    weft_graph_destroy(x->graphs[which]);
    x->sessions[which] = NULL;
    x->graphs[which] = NULL;
}

/* All kept tensors, one behind the other. */
static weft_status read_all(process *x, int which) {
    weft_session *s = x->sessions[which];
    for (int k = 0; k < weft_session_tensors(s, 0); k++) {
        weft_tensor_info info;
        TRY(weft_session_tensor(s, 0, k, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_STATE &&
            info.role != WEFT_ROLE_OPTIMIZER)
            continue;
        x->data[which] = realloc(x->data[which], x->bytes[which] + (size_t)info.bytes + 1);
        TRY(weft_session_read(s, 0, info.name, x->data[which] + x->bytes[which],
                              (size_t)info.bytes));
        x->bytes[which] += (size_t)info.bytes;
    }
    return WEFT_OK;
}

static weft_status be_old(process *x) {
    TRY(open_session(x, 0));
    for (int n = 0; n < STEPS; n++) TRY(step(x->w->plans[0], x->sessions[0], n));
    return read_all(x, 0);
}

static weft_status be_new(process *x) {
    TRY(open_session(x, 1));
    TRY(wefti_session_move(x->sessions[1], x->sessions[0], STEPS, &x->whole));
    x->step = weft_session_step_number(x->sessions[1]);
    TRY(read_all(x, 1));
    return x->whole ? step(x->w->plans[1], x->sessions[1], STEPS) : WEFT_OK;
}

static void *process_main(void *argument) {
    process *x = argument;
    if (x->old >= 0) x->status = be_old(x);
    if (x->status < 0) (void)snprintf(x->message, sizeof x->message, "%s", weft_error_message());
    pthread_barrier_wait(&x->w->barrier);
    if (x->now < 0 && x->old >= 0) close_session(x, 0); /* it dies */
    pthread_barrier_wait(&x->w->barrier);
    if (x->now >= 0 && x->status >= 0) {
        x->status = be_new(x);
        if (x->status < 0)
            (void)snprintf(x->message, sizeof x->message, "%s", weft_error_message());
        if (x->old >= 0) close_session(x, 0);
        close_session(x, 1);
    }
    return NULL;
}

/* ---- trials ---- */

static void open_worlds(move_trial *w, int which, int32_t size) {
    wefti_comm *comms[DEVICES];
    ASSERT_OK(wefti_comm_threads(size, -1, comms));
    for (int32_t i = 0; i < w->count; i++) {
        process *x = &w->processes[i];
        const int32_t rank = which ? x->now : x->old;
        if (rank >= 0)
            ASSERT_OK(wefti_world_create(comms[rank], rank, size, NULL, &x->worlds[which]));
    }
}

/* Old ranks live on in a random order, as far as they do; the rest of the new ranks is new. */
static void choose_ranks(move_trial *w, dice *d, int32_t old, int32_t now) {
    int32_t lives[DEVICES], alive = 0, most = old < now ? old : now;
    const int32_t dying = (int32_t)roll(d, 3) ? (int32_t)roll(d, most) : 0;
    for (int32_t r = 0; r < old; r++) lives[r] = r;
    for (int32_t r = old - 1; r > 0; r--) {
        int32_t other = (int32_t)roll(d, r + 1), kept = lives[r];
        lives[r] = lives[other];
        lives[other] = kept;
    }
    w->count = 0;
    for (int32_t i = 0; i < old; i++)
        w->processes[w->count++] =
            (process){.w = w, .old = lives[i], .now = i < most - dying ? alive++ : -1};
    while (alive < now) w->processes[w->count++] = (process){.w = w, .old = -1, .now = alive++};
}

static void run_trial(move_trial *w, uint64_t seed, int32_t old, int32_t now) {
    assert_int_equal(pthread_barrier_init(&w->barrier, NULL, (unsigned)w->count), 0);
    open_worlds(w, 0, old);
    open_worlds(w, 1, now);
    for (int32_t i = 0; i < w->count; i++)
        assert_int_equal(
            pthread_create(&w->processes[i].thread, NULL, process_main, &w->processes[i]), 0);
    for (int32_t i = 0; i < w->count; i++) pthread_join(w->processes[i].thread, NULL);
    pthread_barrier_destroy(&w->barrier);
    for (int32_t i = 0; i < w->count; i++) {
        const process *x = &w->processes[i];
        weft_world_leave(x->worlds[0]);
        weft_world_leave(x->worlds[1]);
        if (x->status < 0)
            fail_msg("seed %llu, rank %d, then %d: %s", (unsigned long long)seed, x->old, x->now,
                     x->message);
    }
}

static bool assert_moved(const move_trial *w, uint64_t seed, int32_t dead) {
    const process *first = &w->processes[0];
    bool whole = true, known = false;
    while (first->old < 0) first++;
    for (int32_t i = 0; i < w->count; i++) {
        const process *x = &w->processes[i];
        if (x->now < 0) continue;
        if (known && whole != x->whole)
            fail_msg("seed %llu: rank %d alone finds the state %s", (unsigned long long)seed,
                     x->now, x->whole ? "whole" : "incomplete");
        whole = x->whole;
        known = true;
        if (x->step != (whole ? STEPS : 0))
            fail_msg("seed %llu: rank %d is at step %lld", (unsigned long long)seed, x->now,
                     (long long)x->step);
        if (whole && (x->bytes[1] != first->bytes[0] ||
                      memcmp(x->data[1], first->data[0], x->bytes[1]) != 0))
            fail_msg("seed %llu: rank %d (before: %d) has other bits", (unsigned long long)seed,
                     x->now, x->old);
    }
    if (dead <= w->buddies && !whole)
        fail_msg("seed %llu: %d died, but the state is not whole", (unsigned long long)seed,
                 (int)dead);
    return whole;
}

/* -1: a plan is refused; else whether the state was whole. */
static int state_moves(uint64_t seed, bool buddies) {
    trial a = make_trial(seed, NULL), b = make_trial(seed ^ UINT64_C(0x9e3779b97f4a7c15), &a);
    static move_trial w;
    dice d = {seed, 1u << 28};
    const int32_t old = devices_of(&a, buddies), now = devices_of(&b, buddies);
    int outcome = -1;
    if (old > 1 && now > 1) {
        w = (move_trial){.plans = {&a, &b}, .buddies = buddies};
        choose_ranks(&w, &d, old, now);
        int32_t dead = 0;
        for (int32_t i = 0; i < old; i++) dead += w.processes[i].now < 0;
        run_trial(&w, seed, old, now);
        outcome = assert_moved(&w, seed, dead);
        for (int32_t i = 0; i < w.count; i++)
            for (int k = 0; k < 2; k++) free(w.processes[i].data[k]);
    }
    weft_plan_destroy(a.plan);
    weft_plan_destroy(b.plan);
    return outcome;
}

static void try_seeds(bool buddies) {
    const char *text = getenv("WEFT_CASES");
    const uint64_t first = test_seed(20261127), cases = text        ? strtoull(text, NULL, 10)
                                                        : SANITIZED ? 12
                                                                    : 30;
    int count[3] = {0};
    for (uint64_t k = 0; k < cases; k++) count[1 + state_moves(first + k, buddies)]++;
    print_message("%d states were moved, %d had died with their ranks, %d plans were refused\n",
                  count[2], count[1], count[0]);
    assert_true(cases < 12 || (count[2] > 0 && (count[1] > 0 || buddies)));
}

static void states_move_by_regions(void **state) {
    (void)state;
    try_seeds(false);
}

static void buddies_stand_in_for_the_dead(void **state) {
    (void)state;
    try_seeds(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_move_by_regions),
        cmocka_unit_test(buddies_stand_in_for_the_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
