/* Copies to host memory and back do not change what programs compute. Random programs get them: a
 * buffer that a step has made or read is stored, and its device bytes are overwritten. It is
 * fetched before the next step that touches it. Other steps run during both copies. Losses,
 * parameters and states equal those of the unchanged programs to the bit. The changed programs
 * match, and have texts and simulations. WEFT_TEST_SEED sets the first seed. */
#include "random_plan.h"

#include "builder/fold/fold.h"
#include "exec/exec.h"
#include "program/match.h"
#include "program/print.h"
#include "session/parts.h"
#include "simulate/simulate.h"
#include "touches.h"

enum { STEPS = 2, MOST_TRIPS = 6, MOST_EVENTS = 5 * MOST_TRIPS };

/* ---- what others touch ---- */

/* Other ranks may touch what a transfer moves between its post and its wait. */
static bool others_touch(const wefti_program *p, wefti_section s, place x) {
    for (int32_t k = 0; k < p->step_count[s]; k++) {
        const wefti_step *step = &p->steps[s][k];
        const bool moves = step->kind == WEFTI_STEP_POST || step->kind == WEFTI_STEP_WAIT;
        if ((moves || (step->kind == WEFTI_STEP_CALL && step->parts > 1)) && touches(p, step, x))
            return true;
    }
    return false;
}

/* The part of the section that a step is in: before, in or behind each loop. */
static int part_of(const wefti_program *p, wefti_section s, int32_t step) {
    int part = 0;
    for (int32_t i = 0; i < p->loop_count[s]; i++) {
        const wefti_loop *l = &p->loops[s][i];
        part += (step >= l->first) + (step >= l->first + l->count);
    }
    return part;
}

/* ---- trips ---- */

/* A buffer's way to host memory and back. It happens behind these steps of the old list. */
typedef struct trip {
    place here;
    int64_t there; /* the offset in the host's arena */
    int32_t store, stored, fetch, fetched;
    int32_t out, back; /* its moves */
} trip;

typedef struct rewriting {
    wefti_program *p;
    wefti_section section;
    dice *dice;
    bool lose; /* leave out the fetches */
    trip trips[MOST_TRIPS];
    int count, in_loops;
} rewriting;

static bool choose(rewriting *w, trip *out) {
    const wefti_program *p = w->p;
    const wefti_section s = w->section;
    place all[MOST_RANGES + 1];
    const wefti_loop *loop =
        p->loop_count[s] ? &p->loops[s][roll(w->dice, p->loop_count[s])] : NULL;
    const int32_t k = loop && roll(w->dice, 2) ? loop->first + (int32_t)roll(w->dice, loop->count)
                                               : (int32_t)roll(w->dice, p->step_count[s]);
    const int count = places_of(p, &p->steps[s][k], all);
    if (!count) return false;
    const place here = all[roll(w->dice, count)];
    if (here.bytes <= 0 || here.bytes > 1 << 20 || others_touch(p, s, here)) return false;
    for (int i = 0; i < w->count; i++)
        if (overlaps(w->trips[i].here, here)) return false;
    int32_t end = k + 1;
    while (end < p->step_count[s] && !touches(p, &p->steps[s][end], here)) end++;
    if (end == p->step_count[s] || part_of(p, s, end) != part_of(p, s, k)) return false;
    *out = (trip){.here = here, .store = k};
    out->stored = k + (int32_t)roll(w->dice, end - k);
    out->fetch = out->stored + (int32_t)roll(w->dice, end - out->stored);
    out->fetched = out->fetch + (int32_t)roll(w->dice, end - out->fetch);
    w->in_loops += part_of(p, s, k) % 2;
    return true;
}

static int32_t add_move(wefti_program *p, int64_t bytes) {
    wefti_program_move *more = wefti_calloc((size_t)p->move_count + 1, sizeof *more);
    assert_non_null(more);
    if (p->move_count) memcpy(more, p->moves, (size_t)p->move_count * sizeof *more);
    more[p->move_count] =
        (wefti_program_move){.way = WEFTI_WAY_SPACES, .transfer = -1, .bytes = bytes};
    wefti_free(p->moves);
    p->moves = more;
    return p->move_count++;
}

static wefti_step new_step(const rewriting *w, wefti_step_kind kind, const char *name,
                           wefti_location first, wefti_location second) {
    wefti_location *args = wefti_arena_alloc(w->p->arena, 2 * sizeof *args);
    assert_non_null(args);
    args[0] = first;
    args[1] = second;
    return (wefti_step){
        .kind = kind, .phase = WEFTI_OTHER, .name = name, .args = args, .tensor = -1};
}
static wefti_step moving(const rewriting *w, wefti_step_kind kind, int32_t move,
                         wefti_location from, wefti_location to) {
    wefti_step step = new_step(w, kind, "trip", from, to);
    step.move = move;
    return step;
}

/* Adds what happens behind step k. */
static int32_t add_behind(const rewriting *w, int32_t k, wefti_step *out) {
    int32_t n = 0;
    for (int i = 0; i < w->count; i++) {
        const trip *t = &w->trips[i];
        const wefti_location there = wefti_location_of(WEFTI_SPACE_HOST, WEFTI_TRANSIENT, t->there),
                             zeros = wefti_location_of(WEFTI_SPACE_HOST, WEFTI_TRANSIENT, 0);
        if (k == t->store) out[n++] = moving(w, WEFTI_STEP_POST, t->out, t->here.at, there);
        if (k == t->stored) {
            out[n++] = moving(w, WEFTI_STEP_WAIT, t->out, t->here.at, there);
            out[n] = new_step(w, WEFTI_STEP_COPY, "zeros", t->here.at, zeros);
            out[n++].bytes = t->here.bytes;
        }
        if (w->lose) continue;
        if (k == t->fetch) out[n++] = moving(w, WEFTI_STEP_POST, t->back, there, t->here.at);
        if (k == t->fetched) out[n++] = moving(w, WEFTI_STEP_WAIT, t->back, there, t->here.at);
    }
    return n;
}

static void rewrite_section(rewriting *w) {
    wefti_program *p = w->p;
    const wefti_section s = w->section;
    const int32_t old = p->step_count[s];
    wefti_step *steps = wefti_arena_alloc(p->arena, (size_t)(old + MOST_EVENTS) * sizeof *steps);
    int32_t count = 0, *at = malloc((size_t)(old + 1) * sizeof *at);
    assert_true(steps && at);
    for (int32_t k = 0; k < old; k++) {
        at[k] = count;
        steps[count] = p->steps[s][k];
        const int32_t micro = steps[count++].micro, added = add_behind(w, k, steps + count);
        for (int32_t i = 0; i < added; i++) steps[count + i].micro = micro;
        count += added;
    }
    at[old] = count;
    for (int32_t i = 0; i < p->loop_count[s]; i++) {
        wefti_loop *l = &p->loops[s][i];
        l->count = at[l->first + l->count] - at[l->first];
        l->first = at[l->first];
    }
    p->steps[s] = steps;
    p->step_count[s] = count;
    free(at);
}

/* Returns the number of trips. */
static int rewrite_program(wefti_program *p, dice *d, bool lose, int *in_loops) {
    int64_t room = 1 << 20; /* of zeros */
    int all = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        rewriting w = {.p = p, .section = (wefti_section)s, .dice = d, .lose = lose};
        for (int tries = 0; tries < 40 && w.count < MOST_TRIPS && p->step_count[s]; tries++) {
            trip *t = &w.trips[w.count];
            if (!choose(&w, t)) continue;
            t->out = add_move(p, t->here.bytes);
            t->back = add_move(p, t->here.bytes);
            t->there = room;
            room += (t->here.bytes + 63) & ~(int64_t)63;
            w.count++;
        }
        if (w.count) rewrite_section(&w);
        all += w.count;
        *in_loops += w.in_loops;
    }
    p->tier_bytes[WEFTI_SPACE_HOST][WEFTI_TRANSIENT] = room;
    return all;
}

/* ---- runs ---- */

/* The loss; NaN: the step failed. */
static double step_of(const trial *t, weft_session *s, int number) {
    double sum = 0, loss;
    if (t->microbatches == 1 && t->clip == 0) {
        ASSERT_OK(feed(s, (uint64_t)number));
        ASSERT_OK(weft_session_set_row(s, number * t->batch));
        return weft_session_step(s, 1e-2, &loss) < 0 ? NAN : loss;
    }
    for (int m = 0; m < t->microbatches; m++) {
        ASSERT_OK(feed(s, (uint64_t)(number * t->microbatches + m)));
        ASSERT_OK(weft_session_set_row(s, (number * t->microbatches + m) * t->batch));
        if (weft_session_accumulate(s, &loss) < 0) return NAN;
        if (!isnan(loss)) sum += loss;
    }
    return weft_session_update(s, 1e-2, NULL) < 0 ? NAN : sum;
}

/* Whether all tensors that persist are equal. */
static bool same(weft_session *a, weft_session *b) {
    bool equal = true;
    for (int k = 0; k < weft_session_tensors(a, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, k, &info));
        if (info.role > WEFT_ROLE_OPTIMIZER) continue;
        void *x = malloc((size_t)info.bytes), *y = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        equal &= !memcmp(x, y, (size_t)info.bytes);
        free(x);
        free(y);
    }
    return equal;
}

static void check_text(const weft_session *s, const wefti_program *p) {
    char *text, *json;
    ASSERT_OK(wefti_program_print(p, s->devices > 1 ? s->options.plan : NULL, &text));
    ASSERT_OK(wefti_program_json(p, s->devices > 1 ? s->options.plan : NULL, &json));
    assert_non_null(strstr(text, "  store of "));
    assert_non_null(strstr(text, "  fetch of "));
    assert_non_null(strstr(json, "\"move\": \"store\", \"tier\": \"host\", \"bytes\": "));
    assert_non_null(strstr(json, "\"host_transient_bytes\": "));
    weft_text_free(text);
    weft_text_free(json);
}

/* With and without the iterations of loops that repeat. */
static void check_simulation(const trial *t, wefti_program *const *programs, int32_t count) {
    wefti_machine_model *machine;
    wefti_simulation *all, *few;
    ASSERT_OK(wefti_model_find("h100-80g", &machine));
    machine->device.host_bytes_per_second = (wefti_tier_rates){.source = "tested", .value = 1e9};
    wefti_simulate_options o = {.machine = machine, .microbatches = t->microbatches};
    ASSERT_OK(wefti_simulate((const wefti_program *const *)programs, count, &o, &few));
    o.every_iteration = true;
    ASSERT_OK(wefti_simulate((const wefti_program *const *)programs, count, &o, &all));
    assert_int_equal(all->step, few->step);
    for (int c = 0; c < WEFTI_CAUSES; c++) assert_int_equal(all->critical[c], few->critical[c]);
    wefti_simulation_free(all);
    wefti_simulation_free(few);
    wefti_model_destroy(machine);
}

/* A post that becomes a wait, and a wait that becomes a post, are refused. */
static void check_refused(wefti_program *const *programs, int32_t count) {
    for (int32_t r = 0; r < count; r++)
        for (int s = 0; s < WEFTI_SECTIONS; s++)
            for (int32_t k = 0; k < programs[r]->step_count[s]; k++) {
                wefti_step *step = &programs[r]->steps[s][k];
                const wefti_step_kind kind = step->kind;
                if (!wefti_step_copy(programs[r], step)) continue;
                step->kind = kind == WEFTI_STEP_POST ? WEFTI_STEP_WAIT : WEFTI_STEP_POST;
                ASSERT_STATUS(WEFT_E_MISMATCH,
                              wefti_programs_match((const wefti_program *const *)programs, count));
                step->kind = kind;
            }
}

static int rewrite_session(const trial *t, weft_session *s, bool lose, int *in_loops) {
    wefti_view *v = s->views[0];
    dice d = {t->seed, 1u << 27};
    int trips = 0;
    for (int32_t r = 0; r < s->devices; r++) {
        const uint64_t before = wefti_program_form(v->programs[r]);
        const int more = rewrite_program(v->programs[r], &d, lose, in_loops);
        assert_true(!more || wefti_program_form(v->programs[r]) != before);
        v->sites[r].facts.arenas = wefti_program_footprint(v->programs[r]);
        if (more && !lose) check_text(s, v->programs[r]);
        trips += more;
    }
    check_refused(v->programs, s->devices);
    ASSERT_OK(wefti_programs_match((const wefti_program *const *)v->programs, s->devices));
    check_simulation(t, v->programs, s->devices);
    return trips;
}

/* Returns the number of trips; `lose`: all fetches are left out. *out: whether results are equal.
 */
static int run(uint64_t seed, bool lose, bool *out, int *in_loops) {
    trial t = trial_of(seed, false, 4);
    weft_session *s[2] = {NULL};
    weft_graph *g[2] = {NULL};
    int trips = 0;
    if (t.stages > 1) { /* enough for loops */
        t.microbatches += 8 * t.stages * t.plan->copies;
        t.plan->pipeline.microbatches = t.microbatches / t.plan->copies;
    }
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    *out = true;
    for (int k = 0; k < 2; k++) {
        g[k] = random_network(t.seed, t.cells, t.batch, t.dtype);
        ASSERT_OK(weft_graph_status(g[k]));
        ASSERT_OK(wefti_graph_wrap(g[k]));
        if (k == 0) split_ops(&t, g[k]);
        weft_session_options o = weft_session_defaults();
        o.optimizer.kind = t.optimizer;
        o.clip = t.clip;
        o.microbatches = t.microbatches;
        o.threads = 1;
        o.seed = t.seed;
        o.plan = t.plan;
        if (weft_session_create(g[k], &o, &s[k]) < 0) break; /* no split fits */
    }
    if (s[0] && s[1]) {
        trips = rewrite_session(&t, s[1], lose, in_loops);
        for (int n = 0; n < STEPS && *out; n++) {
            const double one = step_of(&t, s[0], n), other = step_of(&t, s[1], n);
            *out = one == other && same(s[0], s[1]);
        }
    }
    for (int k = 0; k < 2; k++) {
        weft_session_destroy(s[k]);
        weft_graph_destroy(g[k]);
    }
    weft_plan_destroy(t.plan);
    return trips;
}

static void trips_change_nothing(void **state) {
    (void)state;
    int trips = 0, in_loops = 0;
    TEST_SEEDS(seed, 1, 24) {
        bool equal;
        trips += run(seed, false, &equal, &in_loops);
        if (!equal) fail_msg("seed %llu: results differ", (unsigned long long)seed);
    }
    print_message("%d trips, %d of them in loops\n", trips, in_loops);
    if (!test_one_seed()) assert_true(trips > in_loops && in_loops > 0);
}

/* Without the fetches, the bytes are lost: the trips matter. */
static void lost_bytes_are_seen(void **state) {
    (void)state;
    int seen = 0, in_loops = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        bool equal;
        if (run(seed, true, &equal, &in_loops) && !equal) seen++;
    }
    assert_true(seen >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trips_change_nothing),
                                       cmocka_unit_test(lost_bytes_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
