/* Random trainings for tests of recovery: steps are given up and made again. They run on devices of
 * one process, and on ranks of a world, which gets a new communicator then. */
#ifndef RECOVERY_TRIAL_H
#define RECOVERY_TRIAL_H

#include "random_plan.h"

#include <stdatomic.h>

#include "backend/cpu/tuning.h"
#include "sanitized.h"
#include "session/agree.h"
#include "session/parts.h"
#include "world_fixture.h"

enum { STEPS = 3 };

/* ---- trials ---- */

static inline weft_status step(const trial *t, weft_session *s, int64_t number, double *out_loss) {
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

static inline weft_graph *graph_of(const trial *t) {
    if (t->gpt2) return tiny_gpt2(WEFT_USE_TRAIN, t->batch, 0, t->dtype);
    weft_graph *g = random_network(t->seed, t->cells, t->batch, t->dtype);
    if (weft_graph_status(g) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_graph_message(g));
    name_results(t, g);
    return g;
}

/* A random plan for a random network. Destroy the plan. `replicas`: often without optimizer
 * parallelism and without splits, so that ranks have replicas. */
static inline trial make_trial(uint64_t seed, int most, bool replicas) {
    trial t = trial_of(seed, false, most);
    weft_graph *g = graph_of(&t);
    ASSERT_OK(wefti_graph_wrap(g));
    dice own = {seed, 1u << 29};
    ASSERT_OK(weft_plan_offload(t.plan, "*", WEFT_OFFLOAD_COPIES, (weft_tier)(seed % WEFT_TIERS)));
    ASSERT_OK(weft_plan_offload(t.plan, "*.weight", WEFT_OFFLOAD_COPIES,
                                (weft_tier)(seed / WEFT_TIERS % WEFT_TIERS)));
    t.plan->offload.least = 1;
    t.plan->offload.slice = 16 << seed % 8;
    t.plan->offload.ahead = seed % 3 ? 16 << seed % 11 : 0;
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

typedef enum recovers { PLAIN, RECOVERS, WITH_BUDDIES } recovers;

static inline weft_session_options options_of(const trial *t, recovers how) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = t->optimizer;
    o.optimizer.eps = 1e-3;
    o.clip = t->clip;
    o.microbatches = t->microbatches;
    o.threads = 2;
    o.seed = t->seed;
    o.plan = t->plan;
    o.recovery = how != PLAIN;
    o.buddy = how == WITH_BUDDIES;
    o.disk = "/tmp";
    return o;
}

/* NULL: the plan is refused. */
static inline weft_session *open_session(const trial *t, recovers how, weft_graph **graph) {
    weft_session *s;
    const weft_session_options o = options_of(t, how);
    *graph = graph_of(t);
    weft_status status = weft_session_create(*graph, &o, &s);
    if (status >= 0) return s;
    if (status != WEFT_E_LAYOUT)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_error_message());
    weft_graph_destroy(*graph);
    return NULL;
}

static inline bool is_kept(const weft_tensor_info *info) {
    return info->role == WEFT_ROLE_PARAM || info->role == WEFT_ROLE_STATE ||
           info->role == WEFT_ROLE_OPTIMIZER;
}

/* All kept tensors of a session, one behind the other. */
static inline weft_status read_all(weft_session *s, char **out, size_t *out_bytes) {
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

static inline void assert_same(const trial *t, weft_session *a, weft_session *b) {
    char *x, *y;
    size_t n, m;
    ASSERT_OK(read_all(a, &x, &n));
    ASSERT_OK(read_all(b, &y, &m));
    if (n != m || memcmp(x, y, n))
        fail_msg("seed %llu: the tensors differ", (unsigned long long)t->seed);
    free(x);
    free(y);
}

static inline void assert_memory(const trial *t, weft_session *s) {
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
    pthread_barrier_t *update; /* NULL, or all ranks meet in their next update, and `rank` halts */
} halting;

static inline bool halts(void *context, int32_t rank) {
    halting *h = context;
    if (rank != h->rank) return false;
    if (h->asked++ != h->at) return false;
    h->halted = true;
    if (h->comm) wefti_comm_break(h->comm, -1, "the world is halted");
    return true;
}

static inline uint64_t cases_of(uint64_t otherwise) {
    const char *text = getenv("WEFT_CASES");
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* Before an update of a tensor. */
static inline void break_update(void *context, int32_t rank, int32_t tensor) {
    halting *h = context;
    pthread_barrier_t *update = h->update;
    (void)tensor;
    h->update = NULL;
    if (update) pthread_barrier_wait(update);
    if (update && rank == h->rank) wefti_comm_break(h->comm, -1, "the world is halted");
}

/* ---- a world ---- */

/* What the ranks of a world share: here it stands for the control plane. */
typedef struct world_trial {
    const trial *t;
    recovers how;
    pthread_barrier_t barrier;
    wefti_comm *next[MOST_RANKS]; /* communicators after the repair */
    wefti_comm *old[MOST_RANKS];
    wefti_stand stands[MOST_RANKS];
    int32_t size, victim,
        source;          /* source: gives the victim its state; -1: the victim only halts */
    int64_t step, share; /* the step that is given up, after so many 1/64 of its parts; */
    int64_t before_end;  /* >= 0: instead, so many parts before the end of the last one */
    bool in_update;      /* instead, amid its update, once all ranks have begun theirs */
    weft_bf16_compute bf16, bf16_of_new; /* what sessions ask for; those of newcomers */
    const wefti_cpu_tuning *tuning;      /* in use from the repair on; NULL: no other one */
    int64_t target;
    bool torn;            /* a rank has no whole state */
    bool halted, catches; /* the world was repaired; a rank updated by itself then */
    atomic_bool gathers;  /* a rank had updated only its pieces of parameters */
} world_trial;

typedef struct world_rank {
    world_trial *w;
    weft_graph *graph;
    weft_session *s;
    char *data;
    size_t bytes;
    double loss;
} world_rank;

static inline weft_status open_rank(world_rank *x, weft_world *world) {
    weft_session_options o = options_of(x->w->t, x->w->how);
    o.world = world;
    o.threads = x->w->size;
    o.bf16 = x->w->halted ? x->w->bf16_of_new : x->w->bf16;
    x->graph = graph_of(x->w->t);
    return weft_session_create(x->graph, &o, &x->s);
}

static inline void close_rank(world_rank *x) {
    weft_session_destroy(x->s);
    weft_graph_destroy(x->graph);
    x->s = NULL;
    x->graph = NULL;
}

/* The furthest step of a rank that lives. */
static inline void choose_target(world_trial *w) {
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

static inline weft_status repair(world_rank *x, weft_world *world) {
    world_trial *w = x->w;
    const bool dies = w->source >= 0, dead = dies && world->rank == w->victim;
    int32_t source[MOST_RANKS];
    for (int32_t r = 0; r < w->size; r++) source[r] = dies && r == w->victim ? w->source : -1;
    w->stands[world->rank] = wefti_survivor_stands(&x->s->survivor);
    pthread_barrier_wait(&w->barrier);
    if (world->rank == 0) choose_target(w);
    if (world->rank == 0 && w->tuning) wefti_cpu_tune(w->tuning);
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
    TRY(wefti_session_give(x->s, w->target, source));
    if (x->s->survivor.phase == WEFTI_SURVIVOR_SCATTERED) atomic_store(&w->gathers, true);
    return wefti_session_gather_again(x->s);
}

static inline weft_status run_rank(void *context, weft_world *world) {
    world_rank *x = context;
    world_trial *w = x->w;
    halting h = {.rank = w->victim, .at = -1, .comm = world->comm};
    TRY(open_rank(x, world));
    wefti_session_halt_when(x->s, halts, &h);
    for (bool repaired = w->step < 0;;) {
        const int64_t n = weft_session_step_number(x->s);
        if (!repaired && n == w->step && w->in_update) {
            h.update = &w->barrier;
            wefti_session_before_update(x->s, break_update, &h);
        } else if (!repaired && n == w->step && world->rank == w->victim) {
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

static inline void run_trial(const trial *t, world_trial *w, world_rank *ranks) {
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
static inline void assert_same_bits(const trial *t, const world_trial *w, const world_rank *a,
                                    const world_rank *b, int32_t rank) {
    size_t at = 0;
    weft_graph *g;
    if (a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes)) return;
    while (at < a->bytes && a->data[at] == b->data[at]) at++;
    weft_session *s = open_session(t, w->how, &g);
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

#endif
