/* Parameters that servers keep do not change what a session computes. Random programs give servers
 * some of their parameters. Losses and all tensors equal those of the plain programs to the bit
 * (tiers_trial.h). WEFT_TEST_SEED sets the first seed. */
#include "tiers_trial.h"

#include "base/fault.h"
#include "base/io.h"
#include "comm/servers.h"
#include "server/server_threads.h"

/* Returns the number of rules. */
static int add_rules(const trial *t, const weft_graph *g, weft_plan *plan) {
    dice d = {t->seed, 1u << 27};
    int rules = 0;
    for (int64_t i = 0; i < g->root->in_count; i++) {
        const wefti_value_info *v = &g->root->values[g->root->in[i]];
        if (v->kind != WEFTI_VALUE_PARAM || roll(&d, 3) == 0) continue;
        ASSERT_OK(weft_plan_server(plan, v->name));
        rules++;
    }
    return rules;
}

/* What programs have: pushes and pulls, by the space of their destination. */
typedef struct served_totals {
    int copies, refused, same;
} served_totals;

static int served_copies(const weft_session *s) {
    int copies = 0;
    for (int32_t r = 0; r < s->devices; r++) {
        const wefti_program *p = s->views[0]->programs[r];
        for (int section = 0; section < WEFTI_SECTIONS; section++)
            copies += check_section(p, (wefti_section)section);
    }
    ASSERT_OK(
        wefti_programs_match((const wefti_program *const *)s->views[0]->programs, s->devices));
    return copies;
}

/* What servers keep is updated whole, so both sessions do so: rows are added in another order. */
static weft_status create_whole(const trial *t, weft_graph *g, weft_world *world,
                                weft_session **out) {
    weft_session_options o = options_of(t);
    o.world = world;
    o.rows = WEFT_ROWS_NONE;
    return weft_session_create(g, &o, out);
}

static void run_both(const trial *t, weft_session *plain, weft_session *served) {
    /* Level 2 and 3 add the terms of several calls in another order. */
    const bool exact = t->plan->optimizer.level < 2;
    for (int n = 0; n < STEPS; n++) {
        const double one = step_of(t, plain, n), other = step_of(t, served, n);
        const double error = exact ? 0 : 1e-3 * (fabs(one) + 1);
        if (!(fabs(one - other) <= error) && !(isnan(one) && isnan(other)))
            fail_msg("seed %llu, step %d: losses %g and %g", (unsigned long long)t->seed, n, one,
                     other);
        if (exact) compare(t->seed, plain, served);
    }
}

/* world: names servers; NULL: they are in this process. */
static void run(uint64_t seed, weft_world *world, served_totals *out) {
    trial t = trial_of(seed, false, 4);
    weft_session *plain, *served;
    weft_graph *g[2];
    for (int k = 0; k < 2; k++) {
        g[k] = random_network(t.seed, t.cells, t.batch, t.dtype);
        ASSERT_OK(weft_graph_status(g[k]));
        ASSERT_OK(wefti_graph_wrap(g[k]));
    }
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    split_ops(&t, g[0]);
    /* Squares of pieces are added in another order than those of all of it. */
    if (t.clip > 0 || t.optimizer == WEFT_LAMB || t.optimizer == WEFT_ADAFACTOR)
        ASSERT_OK(weft_plan_optimizer(t.plan, 0, 0, 0));
    if (create_whole(&t, g[0], NULL, &plain) >= 0) {
        const int rules = add_rules(&t, g[1], t.plan);
        const weft_status status = create_whole(&t, g[1], world, &served);
        if (status >= 0) {
            const int copies = served_copies(served);
            assert_true(copies > 0 || rules == 0);
            out->copies += copies;
            run_both(&t, plain, served);
            out->same++;
            weft_session_destroy(served);
        } else {
            if (status != WEFT_E_NO_IMPL) fail_msg("seed %d: %s", (int)seed, weft_error_message());
            out->refused++;
        }
        weft_session_destroy(plain);
    }
    for (int k = 0; k < 2; k++) weft_graph_destroy(g[k]);
    weft_plan_destroy(t.plan);
}

static void check_totals(const served_totals *all) {
    print_message("%d pushes and pulls in %d programs; %d are refused\n", all->copies, all->same,
                  all->refused);
    if (all->same + all->refused > 10) assert_true(all->same > all->refused);
}

static void servers_change_nothing(void **state) {
    (void)state;
    served_totals all = {0};
    TEST_SEEDS(seed, 1, SANITIZED ? 16 : 60) run(seed, NULL, &all);
    check_totals(&all);
}

/* The same with three servers that each device reaches over connections. */
static void other_processes_change_nothing(void **state) {
    (void)state;
#ifdef WEFT_HAVE_OPENSSL
    served_totals all = {0};
    weft_world *world;
    ASSERT_OK(wefti_world_create(NULL, 0, 1, NULL, &world));
    world->servers =
        wefti_calloc(1, sizeof *world->servers + MOST_SERVERS * sizeof *world->servers->address);
    memcpy(world->servers->key, servers_key, sizeof servers_key);
    world->servers->count = servers.count = MOST_SERVERS;
    for (int i = 0; i < MOST_SERVERS; i++) {
        start_server(i);
        world->servers->address[i] = servers.address[i];
    }
    TEST_SEEDS(seed, 101, SANITIZED ? 8 : 30) run(seed, world, &all);
    for (int i = 0; i < MOST_SERVERS; i++) end_server(i);
    weft_world_leave(world);
    check_totals(&all);
#endif
}

/* ---- a small model ---- */

static const char *const all_rules[] = {"*", NULL}, *const one_rule[] = {"h.1.*", NULL};

static weft_session_options options_on(int devices, const char *const *rules, weft_plan **plan) {
    weft_session_options o = plain_options(WEFT_ADAMW, 0.5);
    ASSERT_OK(weft_plan_create(devices, plan));
    for (int i = 0; rules && rules[i]; i++) ASSERT_OK(weft_plan_server(*plan, rules[i]));
    o.plan = *plan;
    o.threads = 1;
    return o;
}

/* A session of chain_with_logarithm, whose logarithm is of "x" + something in cell 1. */
static weft_session *chain(int devices, const char *const *rules, weft_graph **g) {
    weft_plan *plan;
    weft_session *s;
    const weft_session_options o = options_on(devices, rules, &plan);
    *g = chain_with_logarithm(1);
    ASSERT_OK(weft_session_create(*g, &o, &s));
    weft_plan_destroy(plan);
    return s;
}

static weft_status step_with(weft_session *s, float x, double *loss) {
    float data[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) data[i] = x + (float)i / 7;
    ASSERT_OK(weft_session_feed(s, 0, "x", data, sizeof data));
    return weft_session_step(s, 1e-2, loss);
}

/* The loss of such a step is not finite, so its pushes are dropped. */
static void a_step_that_is_given_up_does_not_count(void **state) {
    (void)state;
    for (int devices = 1; devices <= 2; devices++) {
        weft_graph *g[2];
        weft_session *plain = chain(devices, NULL, &g[0]),
                     *served = chain(devices, all_rules, &g[1]);
        for (int n = 0; n < 6; n++) {
            double one = 0, other = 0;
            const float x = n % 3 == 1 ? -50 : 3;
            const weft_status first = step_with(plain, x, &one),
                              then = step_with(served, x, &other);
            assert_int_equal(first, then);
            assert_int_equal(first, n % 3 == 1 ? WEFT_E_NUMERIC : WEFT_OK);
            if (first == WEFT_OK) assert_true(one == other);
            compare(0, plain, served);
        }
        weft_session_destroy(plain);
        weft_session_destroy(served);
        for (int k = 0; k < 2; k++) weft_graph_destroy(g[k]);
    }
}

/* ---- evaluations, and steps on files ---- */

static double evaluate(weft_session *s) {
    double loss;
    feed_rows(s, 1, 11, 0);
    ASSERT_OK(weft_session_forward(s, 1, &loss));
    return loss;
}

static void train_one(weft_session *s, int number) {
    double loss;
    feed_rows(s, 0, 5, 8 * number);
    ASSERT_OK(weft_session_step(s, 1e-2, &loss));
}

/* Sessions with an evaluation, on two devices. */
typedef struct gpt {
    weft_graph *graphs[2];
    weft_session *session;
} gpt;

static gpt open_gpt(const char *const *rules) {
    weft_plan *plan;
    int program;
    const weft_session_options o = options_on(2, rules, &plan);
    gpt x = {{tiny_gpt2(WEFT_USE_TRAIN, 4, 0, WEFT_F32), tiny_gpt2(WEFT_USE_EVAL, 4, 0, WEFT_F32)},
             NULL};
    ASSERT_OK(weft_session_create(x.graphs[0], &o, &x.session));
    ASSERT_OK(weft_session_add(x.session, x.graphs[1], &program));
    weft_plan_destroy(plan);
    return x;
}
static void close_gpt(gpt *x) {
    weft_session_destroy(x->session);
    for (int k = 0; k < 2; k++) weft_graph_destroy(x->graphs[k]);
}

/* Evaluations read what servers have. What a step saves from servers, devices load, and the other
 * way round. */
static void evaluations_and_files_are_those_of_devices(void **state) {
    (void)state;
    gpt plain = open_gpt(NULL), served = open_gpt(one_rule), again = open_gpt(all_rules);
    for (int n = 0; n < 3; n++) {
        assert_true(evaluate(plain.session) == evaluate(served.session));
        train_one(plain.session, n);
        train_one(served.session, n);
    }
    ASSERT_OK(weft_session_save(served.session, folder, NULL));
    ASSERT_OK(weft_session_load(again.session, folder, -1, NULL));
    ASSERT_OK(weft_session_load(plain.session, folder, -1, NULL));
    for (int n = 3; n < 5; n++) {
        assert_true(evaluate(plain.session) == evaluate(again.session));
        train_one(plain.session, n);
        train_one(again.session, n);
        compare(0, plain.session, again.session);
    }
    ASSERT_OK(weft_session_save_start(again.session, folder, NULL));
    train_one(again.session, 5);
    ASSERT_OK(weft_session_save_wait(again.session));
    ASSERT_OK(weft_session_load(served.session, folder, -1, NULL));
    compare(0, plain.session, served.session);
    close_gpt(&plain);
    close_gpt(&served);
    close_gpt(&again);
}

/* ---- what goes wrong ---- */

static void refuse(weft_session_options o, weft_plan *plan, const char *words) {
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 4, 0, WEFT_F32);
    weft_session *s;
    o.plan = plan;
    ASSERT_FAILS(WEFT_E_NO_IMPL, words, weft_session_create(g, &o, &s));
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
}

static void what_servers_cannot_keep_is_refused(void **state) {
    (void)state;
    weft_plan *plan;
    weft_session_options o = options_on(2, all_rules, &plan);
    o.keep_gradients = true;
    refuse(o, plan, "parallel.server|gradient");
    o = options_on(2, all_rules, &plan);
    o.recovery = true;
    refuse(o, plan, "parallel.server|recovery");
    o = options_on(2, all_rules, &plan);
    ASSERT_OK(weft_plan_offload(plan, "h.*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
    refuse(o, plan, "'h.0|memory.offload");
    o = options_on(2, all_rules, &plan);
    ASSERT_OK(weft_op_place(plan, "h.*:update", "host"));
    refuse(o, plan, "'h.0|place");
    o = options_on(2, all_rules, &plan);
    ASSERT_OK(weft_plan_axis(plan, "tp", 2));
    ASSERT_OK(weft_plan_split_tensor(plan, "wte.weight", "[tp, -]"));
    o.optimizer.kind = WEFT_ADAFACTOR;
    refuse(o, plan, "'wte.weight'|adafactor");
    o = options_on(2, all_rules, &plan);
    ASSERT_OK(weft_plan_pipeline(plan, 2, 2, WEFT_PIPELINE_1F1B, 1));
    o.microbatches = 2;
    refuse(o, plan, "'wte.weight'|stages");
}

/* Each allocation fails in turn. Nothing is lost then, which the sanitizer proves. */
static void each_allocation_may_fail(void **state) {
    (void)state;
    int64_t failed = 0;
    for (int64_t nth = 0;; nth += 1 + nth / 40) {
        weft_plan *plan;
        weft_session *s = NULL;
        double loss = 0;
        weft_session_options o = options_on(2, all_rules, &plan);
        weft_graph *g = chain_with_logarithm(1);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        weft_status status = weft_session_create(g, &o, &s);
        float data[ROWS * COLUMNS] = {0};
        for (int i = 0; i < ROWS * COLUMNS; i++) data[i] = 3;
        if (status >= 0) status = weft_session_feed(s, 0, "x", data, sizeof data);
        if (status >= 0) status = weft_session_step(s, 1e-2, &loss);
        const bool ended = wefti_fault_count(WEFTI_FAULT_ALLOC) <= nth;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        assert_true(status == WEFT_OK || status == WEFT_E_NOMEM);
        failed += status < 0;
        if (s) weft_session_destroy(s);
        weft_graph_destroy(g);
        weft_plan_destroy(plan);
        if (ended) break;
    }
    assert_true(failed > 50);
}

static int remove_all(void **state) {
    (void)state;
    return wefti_remove_tree(folder) < 0 ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_change_nothing),
        cmocka_unit_test(other_processes_change_nothing),
        cmocka_unit_test(a_step_that_is_given_up_does_not_count),
        cmocka_unit_test(evaluations_and_files_are_those_of_devices),
        cmocka_unit_test(what_servers_cannot_keep_is_refused),
        cmocka_unit_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_all);
}
