/* Buddies: what no other device has of a device's state, a second one has as a copy. On random
 * networks under random plans, copies have the bits of their owners' tensors after each step, which
 * are the bits of a training without recovery, and memory is as predicted. Copies lie in random
 * tiers. In worlds a rank dies at a random place of a step, and another process takes its state
 * from its buddy's memory. In the end all bits equal those of an undisturbed run. Holders are on
 * other hosts where a plan allows it. WEFT_TEST_SEED sets the first seed, WEFT_CASES the number of
 * seeds. */
#include "recovery_trial.h"

#include "builder/buddy/buddy.h"

/* ---- one process ---- */

static const unsigned char *memory_of(weft_session *s, int32_t rank, wefti_location at) {
    return wefti_rank_device_at(wefti_workers_device(s->workers, rank), at);
}

/* A piece of the owner's tensor, one element behind the other. */
static void read_piece(weft_session *s, const wefti_program *p, const wefti_piece *x, char *out) {
    const wefti_tensor *t = &p->tensors[x->tensor];
    wefti_region piece, all;
    wefti_layout_region(&x->layout, &p->mesh, &x->whole, p->rank, &piece);
    wefti_program_region(p, t, &all);
    const unsigned char *from = memory_of(s, p->rank, t->home);
    if (x->whole.rank == 0)
        memcpy(out, from, (size_t)weft_desc_bytes(&x->desc));
    else
        wefti_region_copy(&piece, &all, from, &piece, out, x->whole.rank,
                          weft_dtype_bytes(x->desc.dtype));
}

/* In any tier. */
static void read_copy(weft_session *s, int32_t rank, const wefti_piece *x, char *out) {
    const int64_t bytes = weft_desc_bytes(&x->desc);
    const wefti_home home =
        wefti_rank_device_home(wefti_workers_device(s->workers, rank), x->home, bytes);
    if (bytes) ASSERT_OK(wefti_home_read(&home, 0, bytes, out));
}

/* Returns the number of copies with memory of their own. */
static int assert_copies(const trial *t, weft_session *s) {
    int copies = 0;
    for (int32_t r = 0; r < weft_session_devices(s); r++) {
        const wefti_program *p = s->views[0]->programs[r];
        if (p->ward < 0) continue;
        const wefti_program *w = s->views[0]->programs[p->ward];
        assert_int_equal(w->holder, r);
        assert_int_not_equal(p->ward, r);
        assert_int_equal(p->copy_count, w->owned_count);
        for (int32_t i = 0; i < p->copy_count; i++) {
            const wefti_piece *copy = &p->copies[i], *own = &w->owned[i];
            const size_t bytes = (size_t)weft_desc_bytes(&own->desc);
            char *a = malloc(bytes + 1), *b = malloc(bytes + 1);
            assert_string_equal(copy->name, own->name);
            assert_true(wefti_desc_equal(&copy->desc, &own->desc));
            read_piece(s, w, own, a);
            if (copy->tensor >= 0)
                read_piece(s, p, copy, b);
            else
                read_copy(s, r, copy, b);
            if (memcmp(a, b, bytes))
                fail_msg("seed %llu: rank %d's copy of '%s' of rank %d differs",
                         (unsigned long long)t->seed, r, copy->name, p->ward);
            copies += copy->tensor < 0 && bytes;
            free(a);
            free(b);
        }
    }
    return copies;
}

/* Whether each rank has a replica or a buddy. */
static void assert_held(const trial *t, const weft_session *s) {
    for (int32_t r = 0; r < weft_session_devices(s); r++) {
        bool held = wefti_session_program_of(s, 0, r)->holder >= 0;
        for (int32_t o = 0; o < weft_session_devices(s); o++)
            held |= o != r && wefti_session_replicates(s, o, r);
        const wefti_program *p = wefti_session_program_of(s, 0, r);
        bool keeps = false;
        for (int32_t i = 0; i < p->tensor_count; i++)
            keeps |= p->tensors[i].role <= WEFTI_TENSOR_OPTIMIZER;
        if (!held && keeps)
            fail_msg("seed %llu: nobody holds rank %d's state", (unsigned long long)t->seed, r);
    }
}

static int copies_follow(uint64_t seed) {
    trial t = make_trial(seed, 8, false);
    weft_graph *g[2];
    weft_session *s = open_session(&t, WITH_BUDDIES, &g[1]);
    int copies = -1;
    if (s && weft_session_devices(s) > 1) {
        weft_session *plain = open_session(&t, PLAIN, &g[0]);
        assert_non_null(plain);
        copies = 0;
        for (int n = 0; n < STEPS; n++) {
            double want, is;
            if (step(&t, plain, n, &want) < 0 || step(&t, s, n, &is) < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
            if (memcmp(&want, &is, sizeof is))
                fail_msg("seed %llu: loss %d is %.17g, not %.17g", (unsigned long long)seed, n, is,
                         want);
            copies = assert_copies(&t, s);
        }
        assert_same(&t, plain, s);
        assert_memory(&t, s);
        assert_held(&t, s);
        weft_session_destroy(plain);
        weft_graph_destroy(g[0]);
    }
    if (s) {
        weft_session_destroy(s);
        weft_graph_destroy(g[1]);
    }
    weft_plan_destroy(t.plan);
    return copies;
}

static void copies_have_their_owners_bits(void **state) {
    (void)state;
    const uint64_t first = test_seed(20261127), cases = cases_of(SANITIZED ? 8 : 20);
    int64_t ran = 0, copied = 0;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + cases - 1));
    for (uint64_t k = 0; k < cases; k++) {
        const int copies = copies_follow(first + k);
        ran += copies >= 0;
        copied += copies > 0;
    }
    print_message("%lld cases ran, %lld with copies\n", (long long)ran, (long long)copied);
    assert_true(cases < 8 || copied * 4 >= (int64_t)cases);
}

/* ---- worlds ---- */

/* -1: nothing died; 0: a replica gave the state; 1: a buddy. */
static int world_loses_a_rank(uint64_t seed) {
    trial t = make_trial(seed, 4, false);
    weft_graph *g;
    weft_session *s = open_session(&t, WITH_BUDDIES, &g);
    const int32_t size = s ? weft_session_devices(s) : 0;
    dice d = {seed, 1u << 28};
    world_trial calm = {.how = WITH_BUDDIES, .size = size, .source = -1, .step = -1},
                w = {.how = WITH_BUDDIES,
                     .size = size,
                     .source = -1,
                     .victim = size ? (int32_t)roll(&d, size) : 0,
                     .step = 1 + roll(&d, STEPS - 1),
                     .share = roll(&d, 64),
                     .before_end = roll(&d, 2) ? roll(&d, 3) : -1};
    bool buddy = false;
    if (size > 1) {
        w.source = wefti_session_program_of(s, 0, w.victim)->holder;
        buddy = w.source >= 0;
        for (int32_t r = 0; r < size && !buddy; r++)
            if (r != w.victim && wefti_session_replicates(s, r, w.victim)) w.source = r;
    }
    weft_session_destroy(s);
    if (s) weft_graph_destroy(g);
    int outcome = -1;
    if (size > 1) {
        world_rank a[MOST_RANKS], b[MOST_RANKS];
        run_trial(&t, &calm, a);
        run_trial(&t, &w, b);
        outcome = w.torn || !w.halted ? -1 : buddy;
        for (int32_t r = 0; r < size; r++) {
            if (!w.torn) assert_same_bits(&t, &w, &a[r], &b[r], r);
            free(a[r].data);
            free(b[r].data);
        }
    }
    weft_plan_destroy(t.plan);
    return outcome;
}

static void worlds_go_on_from_copies(void **state) {
    (void)state;
    const uint64_t first = test_seed(20261128), cases = cases_of(SANITIZED ? 12 : 24);
    int count[3] = {0};
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + cases - 1));
    for (uint64_t k = 0; k < cases; k++) count[1 + world_loses_a_rank(first + k)]++;
    print_message("%d states from replicas, %d from buddies, %d cases without a repair\n", count[1],
                  count[2], count[0]);
    assert_true(cases < 12 || count[2] > 0);
}

/* ---- hosts ---- */

/* Devices of stages of a x b, numbered stage by stage. */
typedef struct grid {
    int32_t stages, a, b, host[64];
} grid;

static int32_t moved(const grid *g, int32_t rank, int32_t stages, int32_t a, int32_t b) {
    const int32_t s = rank / (g->a * g->b), i = rank / g->b % g->a, j = rank % g->b;
    return ((s + stages) % g->stages * g->a + (i + a) % g->a) * g->b + (j + b) % g->b;
}

static int32_t apart(const grid *g, int32_t stages, int32_t a, int32_t b) {
    int32_t count = 0;
    for (int32_t r = 0; r < g->stages * g->a * g->b; r++)
        count += g->host[r] != g->host[moved(g, r, stages, a, b)];
    return count;
}

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static void check_pairs(uint64_t seed, grid *g) {
    dice d = {seed, 1u << 26};
    weft_plan *plan;
    const int32_t size = g->stages * g->a * g->b, each = 1 + (int32_t)roll(&d, size);
    const bool random = roll(&d, 4) == 0;
    int32_t most = 0, is = 0, wards[64] = {0};
    for (int32_t r = 0; r < size; r++) g->host[r] = random ? (int32_t)roll(&d, 3) : r / each;
    for (int32_t s = 1; s < g->stages; s++) most = larger(most, apart(g, s, 0, 0));
    for (int32_t a = 1; a < g->a; a++) most = larger(most, apart(g, 0, a, 0));
    for (int32_t b = 1; b < g->b; b++) most = larger(most, apart(g, 0, 0, b));
    ASSERT_OK(weft_plan_create(size, &plan));
    if (g->a > 1) ASSERT_OK(weft_plan_axis(plan, "a", g->a));
    if (g->b > 1) ASSERT_OK(weft_plan_axis(plan, "b", g->b));
    if (g->stages > 1)
        ASSERT_OK(weft_plan_pipeline(plan, g->stages, g->stages, WEFT_PIPELINE_1F1B, 1));
    for (int32_t r = 0; r < size; r++) {
        wefti_buddy_pairs pairs;
        ASSERT_OK(wefti_buddy_pairs_of(plan, g->host, wefti_plan_stage_of_rank(plan, r), &pairs));
        const int32_t holder = wefti_buddy_holder(plan, pairs, r);
        assert_int_not_equal(holder, r);
        assert_int_equal(wefti_buddy_ward(plan, pairs, holder), r);
        wards[holder]++;
        is += g->host[r] != g->host[holder];
    }
    for (int32_t r = 0; r < size; r++) assert_int_equal(wards[r], 1);
    if (is != most)
        fail_msg("seed %llu: %d of %d holders are on another host, not %d",
                 (unsigned long long)seed, is, size, most);
    weft_plan_destroy(plan);
}

static void holders_are_on_other_hosts(void **state) {
    (void)state;
    const uint64_t first = test_seed(20261129);
    for (uint64_t k = 0; k < 500; k++) {
        dice d = {first + k, 1u << 25};
        grid g = {.stages = 1 + (int32_t)roll(&d, 4),
                  .a = 1 + (int32_t)roll(&d, 4),
                  .b = 1 + (int32_t)roll(&d, 4)};
        if (g.stages * g.a * g.b > 1) check_pairs(first + k, &g);
    }
}

/* Hosts of up to half of a long axis, in order: all holders are on another one. */
static void hosts_along_a_long_axis(void **state) {
    (void)state;
    enum { LONG = 300 };
    int32_t host[LONG];
    for (int32_t size = 65; size <= LONG; size += 47)
        for (int32_t each = 1; each <= size / 2; each++) {
            weft_plan *plan;
            wefti_buddy_pairs pairs;
            if (size % each) continue;
            for (int32_t r = 0; r < size; r++) host[r] = r / each;
            ASSERT_OK(weft_plan_create(size, &plan));
            ASSERT_OK(weft_plan_axis(plan, "dp", size));
            ASSERT_OK(wefti_buddy_pairs_of(plan, host, 0, &pairs));
            for (int32_t r = 0; r < size; r++) {
                const int32_t holder = wefti_buddy_holder(plan, pairs, r);
                if (host[holder] == host[r])
                    fail_msg("%d ranks, %d on a host: rank %d and its holder %d share a host", size,
                             each, r, holder);
            }
            weft_plan_destroy(plan);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holders_are_on_other_hosts),
        cmocka_unit_test(hosts_along_a_long_axis),
        cmocka_unit_test(copies_have_their_owners_bits),
        cmocka_unit_test(worlds_go_on_from_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
