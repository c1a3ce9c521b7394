/* A simulation of one rank of each class equals the simulation of all ranks, to the picosecond.
 * Random plans of up to 32 ranks run on machines whose blocks fit the groups, or do not fit them,
 * with slow ranks, slow links and a failing rank. WEFT_TEST_SEED sets the first seed.
 * weft-test: no threads */
#include "random_world.h"

#include "simulate/simulate.h"

static const char *const machines[] = {
    "hosts=8 gpus=4 gpu=v100 intra=1e9,1e-6 inter=2e8,2e-5",
    "hosts=16 gpus=3 gpu=v100 intra=1e8,1e-5 inter=2e7,2e-5",
    "hosts=32 gpus=1 gpu=v100 intra=1e9,1e-6 inter=2e8,2e-5",
    "hosts=4 gpus=8 gpu=v100 intra=1e9,1e-6 inter=1e6,1e-4",
    "h100-80g",
};
enum { MACHINES = sizeof machines / sizeof *machines };

typedef struct disturbed {
    weft_slow_rank ranks[2];
    weft_slow_link links[2];
    wefti_simulate_options options;
} disturbed;

static void disturb(dice *d, const world *w, disturbed *x) {
    wefti_simulate_options *o = &x->options;
    *x = (disturbed){.options.microbatches = w->t.microbatches};
    for (int i = 0; i < 2; i++) {
        const int32_t a = (int32_t)roll(d, w->ranks), b = (int32_t)roll(d, w->ranks);
        x->ranks[i] = (weft_slow_rank){a, 1 + 0.37 * (double)roll(d, 4)};
        x->links[i] = (weft_slow_link){a, b, 1 + 1.5 * (double)roll(d, 4)};
        o->slow_rank_count += roll(d, 3) == 0;
        if (a != b && roll(d, 3) == 0) x->links[o->slow_link_count++] = x->links[i];
    }
    o->slow_ranks = x->ranks;
    o->slow_links = x->links;
    o->every_iteration = w->t.microbatches <= 16 && roll(d, 2);
}

static void check_same(uint64_t seed, const wefti_simulation *all, const wefti_simulation *few) {
    const unsigned long long at = seed;
    assert_int_equal(all->world, few->world);
    if (all->step != few->step)
        fail_msg("seed %llu: all ranks take %lld ps, classes %lld", at, (long long)all->step,
                 (long long)few->step);
    assert_int_equal(all->critical_rank, few->critical_rank);
    if (memcmp(all->critical, few->critical, sizeof all->critical))
        fail_msg("seed %llu: causes of the critical path differ", at);
    assert_int_equal(all->stopped, few->stopped);
    assert_int_equal(all->waiting, few->waiting);
    for (int32_t r = 0; r < all->world; r++)
        if (memcmp(&all->ranks[r], &few->ranks[few->player_of[r]], sizeof *all->ranks))
            fail_msg("seed %llu: rank %d ends at %lld, its class at %lld ps", at, r,
                     (long long)all->ranks[r].end, (long long)few->ranks[few->player_of[r]].end);
}

static int32_t compare(uint64_t seed, const world *w, const wefti_simulate_options *o) {
    const wefti_match_classes classes = classes_of(w);
    wefti_simulation *all, *few;
    ASSERT_OK(wefti_simulate((const wefti_program *const *)w->programs, w->ranks, o, &all));
    ASSERT_OK(wefti_simulate_classes(&classes, o, &few));
    check_same(seed, all, few);
    int32_t members = 0;
    for (int32_t i = 0; i < few->count; i++) {
        members += few->members[i];
        assert_int_equal(few->player_of[few->lowest[i]], i);
    }
    assert_int_equal(members, w->ranks);
    const int32_t players = few->count;
    wefti_simulation_free(all);
    wefti_simulation_free(few);
    return players;
}

/* The persistent arena lies below the transient one here. */
static int64_t offset_of(const wefti_program *p, wefti_location at) {
    const bool transient = wefti_location_term(at) == WEFTI_TRANSIENT;
    return wefti_location_offset(at) + (transient ? p->persistent_bytes : 0);
}

/* The largest use of all steps is the predicted peak; no argument lies above the use of its step.
 */
static void check_memory(uint64_t seed, const wefti_program *p) {
    int64_t most = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < p->step_count[s]; k++) {
            const wefti_step *step = &p->steps[s][k];
            const bool call = step->kind == WEFTI_STEP_CALL;
            const int64_t frame = call && step->routine->frame_bytes
                                      ? offset_of(p, step->frame) + step->routine->frame_bytes
                                      : 0;
            if (step->used_bytes > most) most = step->used_bytes;
            assert_true(step->alive_bytes <= p->peak_bytes);
            if (frame > step->used_bytes)
                fail_msg("seed %llu, rank %d, step '%s': memory up to %lld, used up to %lld",
                         (unsigned long long)seed, p->rank, step->name, (long long)frame,
                         (long long)step->used_bytes);
            for (int32_t a = 0; call && a < step->routine->args; a++)
                if (wefti_location_exists(step->args[a]) && !step->strides)
                    assert_true(offset_of(p, step->args[a]) <= step->used_bytes);
        }
    if (most != p->peak_bytes)
        fail_msg("seed %llu, rank %d: the steps use up to %lld bytes, the peak is %lld",
                 (unsigned long long)seed, p->rank, (long long)most, (long long)p->peak_bytes);
}

static void test_classes_equal_all_ranks(void **state) {
    int64_t ranks = 0, players = 0, folded = 0;
    (void)state;
    TEST_SEEDS(seed, 1, 80) {
        world w;
        if (open_world(seed, &w)) {
            dice d = {.seed = seed * 77 + 5};
            wefti_machine_model *machine;
            disturbed x;
            ASSERT_OK(wefti_model_find(machines[seed % MACHINES], &machine));
            machine->level[0].moved_in_waits = seed % 3 == 1;
            if (seed % 5 == 2)
                *(seed % 2 ? &machine->device.hosts_at_once : &machine->device.devices_at_once) =
                    (wefti_figure){1, "tested"};
            wefti_simulate_options plain = {.machine = machine, .microbatches = w.t.microbatches};
            const int32_t count = compare(seed, &w, &plain);
            ranks += w.ranks;
            players += count;
            folded += count < w.ranks;
            disturb(&d, &w, &x);
            x.options.machine = machine;
            (void)compare(seed, &w, &x.options);
            plain.failing = (int32_t)roll(&d, w.ranks);
            plain.fail_seconds = 1e-5 * (double)(1 + roll(&d, 50));
            (void)compare(seed, &w, &plain);
            wefti_model_destroy(machine);
            for (int32_t r = 0; r < w.ranks; r++) check_memory(seed, w.programs[r]);
        }
        close_world(&w);
    }
    print_message("%lld ranks, %lld players, %lld worlds folded\n", (long long)ranks,
                  (long long)players, (long long)folded);
    if (!test_one_seed()) assert_true(folded >= 15 && players < ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_classes_equal_all_ranks)};
    return cmocka_run_group_tests_name("fold and simulate", tests, NULL, NULL);
}
