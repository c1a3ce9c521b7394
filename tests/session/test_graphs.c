/* Several graphs of one session beside each other: shared parameters, states of their own, states
 * that are written in place. */
#include "session_models.h"

#include "exec/rank_device.h"
#include "session/parts.h"

static void evaluation_shares_parameters(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 2, 0, WEFT_F32),
               *e = tiny_gpt2(WEFT_USE_EVAL, 2, 0, WEFT_F32);
    weft_graph *large = tiny_gpt2(WEFT_USE_LOGITS, 64, 0, WEFT_F32); /* needs more than training */
    weft_session *s = session_of(g, plain_options(WEFT_SGD, 0));
    int eval, logits;
    ASSERT_OK(weft_session_add(s, e, &eval));
    ASSERT_OK(weft_session_add(s, large, &logits));
    for (int k = 0; k < 3; k++) {
        double trained, evaluated;
        feed_rows(s, logits, 7, 0);
        ASSERT_OK(weft_session_forward(s, logits, NULL));
        feed_rows(s, eval, (uint64_t)k, 0);
        ASSERT_OK(weft_session_forward(s, eval, &evaluated));
        feed_rows(s, 0, (uint64_t)k, 0);
        ASSERT_OK(weft_session_step(s, 0.1, &trained));
        assert_true(fabs(trained - evaluated) < 1e-5);
    }
    weft_session_memory m = weft_session_memory_of(s);
    assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_graph_destroy(e);
    weft_graph_destroy(large);
}

/* A forward graph of `rows` rows with a state of its own that counts, and a parameter. */
static weft_graph *counter(const char *name, int64_t rows) {
    weft_graph *g;
    char own[32];
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(rows, COLUMNS));
    weft_value w =
        weft_param(g, "h.0.w", matrix(COLUMNS, COLUMNS), (weft_init){WEFT_INIT_NORMAL, 0.3});
    weft_value count = weft_state(g, name, vector(1000), (weft_init){WEFT_INIT_ZEROS, 0});
    (void)snprintf(own, sizeof own, "%s.w", name);
    weft_value v = weft_param(g, own, vector(COLUMNS), (weft_init){WEFT_INIT_CONSTANT, 3});
    weft_state_update(g, count, weft_shift(g, count, 1));
    weft_output(g, "y", weft_add(g, weft_linear(g, x, w, WEFT_NO_VALUE, false), v));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

/* What a graph of `counter` computes after `round` passes. */
static void check_counter(weft_session *s, int program, const char *name, int round) {
    int64_t elems;
    char own[32];
    float *count = read_tensor(s, program, name, &elems);
    for (int64_t e = 0; e < elems; e++)
        if (count[e] != (float)round)
            fail_msg("state %s is %g after %d passes", name, (double)count[e], round);
    free(count);
    (void)snprintf(own, sizeof own, "%s.w", name);
    float *w = read_tensor(s, program, own, &elems);
    for (int64_t e = 0; e < elems; e++) assert_true(w[e] == 3);
    free(w);
}

/* The states that one graph keeps between steps are safe from all other graphs, whatever their
 * sizes. */
static void graphs_keep_their_own_states(void **state) {
    (void)state;
    weft_graph *g = chain_with_logarithm(9);
    weft_graph *more[] = {counter("a", 4), counter("b", 300), counter("c", 1000), counter("d", 2)};
    weft_session *s = session_of(g, plain_options(WEFT_SGD, 0));
    int program[4];
    for (int i = 0; i < 4; i++) ASSERT_OK(weft_session_add(s, more[i], &program[i]));
    for (int round = 1; round <= 3; round++) {
        feed_rows(s, 0, (uint64_t)round, 0);
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        for (int i = 0; i < 4; i++) {
            feed_rows(s, program[i], 1, 0);
            ASSERT_OK(weft_session_forward(s, program[i], NULL));
        }
        static const char *const names[] = {"a", "b", "c", "d"};
        for (int i = 0; i < 4; i++) check_counter(s, program[i], names[i], round);
    }
    weft_session_memory m = weft_session_memory_of(s);
    assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    for (int i = 0; i < 4; i++) weft_graph_destroy(more[i]);
}

/* ---- programs added between steps ---- */

/* One session gets its graphs one by one between its steps, smaller and larger ones. Its losses,
 * results and memory are those of a session that had all of them before its first step. */
static void graphs_come_between_steps(void **state) {
    (void)state;
    enum { MORE = 5, STEPS = 6 };
    static const char *const names[MORE] = {"a", "b", "c", "d", "e"};
    static const int64_t rows[MORE] = {4, 3000, 9, 20000, 2};
    weft_graph *graph[2], *more[2][MORE];
    weft_session *s[2]; /* early, late */
    int program[2][MORE];
    for (int k = 0; k < 2; k++) {
        graph[k] = tiny_gpt2(WEFT_USE_TRAIN, 2, 0.1, WEFT_F32);
        s[k] = session_of(graph[k], plain_options(WEFT_ADAMW, 1));
        for (int i = 0; i < MORE; i++) {
            more[k][i] = counter(names[i], rows[i]);
            if (k == 0) ASSERT_OK(weft_session_add(s[k], more[k][i], &program[k][i]));
        }
    }
    for (int step = 0; step < STEPS; step++) {
        double loss[2];
        for (int k = 0; k < 2; k++) {
            feed_rows(s[k], 0, (uint64_t)step, 0);
            ASSERT_OK(weft_session_step(s[k], 0.01, &loss[k]));
        }
        assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
        if (step < MORE) {
            ASSERT_OK(weft_session_add(s[1], more[1][step], &program[1][step]));
            assert_int_equal(program[1][step], step + 1);
        }
        for (int i = 0; i <= step && i < MORE; i++) {
            float *y[2];
            int64_t elems;
            for (int k = 0; k < 2; k++) {
                feed_rows(s[k], program[k][i], 3, 0);
                ASSERT_OK(weft_session_forward(s[k], program[k][i], NULL));
                check_counter(s[k], program[k][i], names[i], step - i + 1);
                y[k] = read_tensor(s[k], program[k][i], "y", &elems);
            }
            assert_memory_equal(y[0], y[1], (size_t)elems * sizeof(float));
            for (int k = 0; k < 2; k++) free(y[k]);
        }
    }
    assert_true(difference(s[0], s[1], WEFT_ROLE_PARAM) == 0);
    assert_true(difference(s[0], s[1], WEFT_ROLE_OPTIMIZER) == 0);
    weft_session_memory m[2];
    for (int k = 0; k < 2; k++) {
        m[k] = weft_session_memory_of(s[k]);
        assert_int_equal(m[k].predicted_peak_bytes, m[k].observed_peak_bytes);
        weft_session_destroy(s[k]);
        weft_graph_destroy(graph[k]);
        for (int i = 0; i < MORE; i++) weft_graph_destroy(more[k][i]);
    }
    assert_int_equal(m[0].predicted_peak_bytes, m[1].predicted_peak_bytes);
}

/* The peak is all persistent memory and the largest transient memory: the states of a graph cost
 * their size alone, whatever the transient memory of the graphs before. */
static void states_cost_their_size(void **state) {
    (void)state;
    weft_graph *g = chain_with_logarithm(9), *large = counter("a", 5000), *small = counter("b", 2);
    weft_session *s = session_of(g, plain_options(WEFT_SGD, 0));
    int program;
    ASSERT_OK(weft_session_add(s, large, &program));
    const int64_t before = weft_session_memory_of(s).predicted_peak_bytes;
    ASSERT_OK(weft_session_add(s, small, &program));
    const int64_t own = 4032 + 64; /* 1000 numbers and a vector, in lines of 64 bytes */
    assert_int_equal(weft_session_memory_of(s).predicted_peak_bytes, before + own);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_graph_destroy(large);
    weft_graph_destroy(small);
}

static void inputs_are_fed_again_after_an_addition(void **state) {
    (void)state;
    weft_graph *g = chain_with_logarithm(9), *a = counter("a", 4), *b = counter("b", 50000);
    weft_session *s = session_of(g, plain_options(WEFT_SGD, 0));
    weft_session_part bound, weight, again;
    int program, other;
    float kept;
    ASSERT_OK(weft_session_add(s, a, &program));
    feed_rows(s, program, 1, 0);
    ASSERT_OK(weft_session_forward(s, program, NULL));
    ASSERT_OK(weft_session_local(s, program, "x", &bound));
    ASSERT_OK(weft_session_local(s, program, "h.0.w", &weight));
    kept = *(float *)weight.data;
    ASSERT_OK(weft_session_add(s, b, &other));
    /* a parameter keeps its address and its value; an input is to be fed, or its address asked for
     */
    assert_true(*(float *)weight.data == kept);
    ASSERT_OK(weft_session_local(s, program, "h.0.w", &again));
    assert_ptr_equal(again.data, weight.data);
    ASSERT_FAILS(WEFT_E_ARG, "fed", weft_session_forward(s, program, NULL));
    ASSERT_OK(weft_session_local(s, program, "x", &bound));
    memset(bound.data, 0, (size_t)bound.bytes);
    ASSERT_OK(weft_session_forward(s, program, NULL));
    float y[4 * COLUMNS];
    ASSERT_OK(weft_session_read(s, program, "y", y, sizeof y));
    for (int i = 0; i < 4 * COLUMNS; i++) assert_true(y[i] == 3);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_graph_destroy(a);
    weft_graph_destroy(b);
}

/* A process that takes another one's place has the graphs of the begin. */
static void a_session_that_mends_takes_no_late_graph(void **state) {
    (void)state;
    weft_graph *g = chain_with_logarithm(9), *a = counter("a", 4);
    weft_session *s = session_of(g, plain_options(WEFT_SGD, 0));
    int program;
    ASSERT_OK(wefti_session_start(s));
    s->mends = true;
    ASSERT_FAILS(WEFT_E_ARG, "recovery|first step", weft_session_add(s, a, &program));
    s->mends = false;
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_graph_destroy(a);
}

/* An addition that is refused, or that memory fails for, changes nothing. */
static void fail_to_add(int devices) {
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 2, 0, WEFT_F32), *a = counter("a", 9000);
    weft_session_options o = plain_options(WEFT_SGD, 1);
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(devices, &plan));
    if (devices > 1) ASSERT_OK(weft_plan_optimizer(plan, 3, 0, 0));
    o.microbatches = 2;
    o.plan = plan;
    weft_session *s = session_of(g, o);
    int program;
    feed_rows(s, 0, 1, 0);
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "1 of 2 microbatches", weft_session_add(s, a, &program));
    feed_rows(s, 0, 2, 0);
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_OK(weft_session_update(s, 0.1, NULL));
    const weft_session_memory before = weft_session_memory_of(s);
    const wefti_device_arena *arena[2];
    int64_t bytes[2], blocks[2];
    for (int r = 0; r < devices; r++) {
        arena[r] =
            &wefti_workers_device(s->workers, r)->arenas[WEFTI_SPACE_DEVICE][WEFTI_PERSISTENT];
        bytes[r] = arena[r]->bytes;
        blocks[r] = arena[r]->count;
    }
    bool failed = true;
    for (int64_t at = 0, failures = 0; failed; at++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, at, false, 0);
        failed = weft_session_add(s, a, &program) < 0;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        failures++;
        if (!failed) break;
        assert_non_null(strstr(weft_error_message(), "memory"));
        assert_int_equal(weft_session_memory_of(s).predicted_peak_bytes,
                         before.predicted_peak_bytes);
        assert_int_equal(wefti_session_programs(s), 1);
        for (int r = 0; r < devices; r++) {
            assert_int_equal(arena[r]->bytes, bytes[r]);
            assert_int_equal(arena[r]->count, blocks[r]);
        }
    }
    assert_int_equal(program, 1);
    for (int round = 1; round <= 2; round++) {
        feed_rows(s, program, 1, 0);
        ASSERT_OK(weft_session_forward(s, program, NULL));
        check_counter(s, program, "a", round);
    }
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    weft_graph_destroy(a);
}

/* With two devices one may have taken the program when memory fails for the other. */
static void a_failed_addition_changes_nothing(void **state) {
    (void)state;
    for (int devices = 1; devices <= 2; devices++) fail_to_add(devices);
}

/* ---- states written in place ---- */

static weft_graph *cache_graph(int variant) {
    weft_graph *g;
    weft_desc shape = weft_desc_of(WEFT_F32, 4, (int64_t[]){1, 8, 2, 3}), row = shape;
    row.shape[1] = 1;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", row),
               at = weft_input(g, "at", weft_desc_of(WEFT_I32, 0, NULL));
    weft_value cache = variant == 1
                           ? weft_input(g, "cache", shape)
                           : weft_state(g, "cache", shape, (weft_init){WEFT_INIT_ZEROS, 0});
    weft_cell_begin(g, "write");
    weft_value next = weft_cell_end(g, weft_cache_write(g, cache, x, at));
    if (variant != 1 && variant != 2) weft_state_update(g, cache, next);
    if (variant == 0) weft_output(g, "written", next);
    weft_cell_begin(g, "read");
    weft_output(g, "sum",
                weft_cell_end(g, weft_sum(g, variant == 3 ? cache : next, 0, NULL, false)));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static void caches_are_written_in_place(void **state) {
    (void)state;
    weft_graph *g = cache_graph(0);
    weft_session *s = session_of(g, plain_options(WEFT_NO_OPTIMIZER, 0));
    const float x[6] = {1, 2, 3, 4, 5, 6};
    for (int32_t at = 0; at < 8; at++) {
        float sum;
        ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
        ASSERT_OK(weft_session_feed(s, 0, "at", &at, sizeof at));
        ASSERT_OK(weft_session_forward(s, 0, NULL));
        ASSERT_OK(weft_session_read(s, 0, "sum", &sum, sizeof sum));
        assert_true(sum == (float)(21 * (at + 1)));
        float cache[48], written[48];
        ASSERT_OK(weft_session_read(s, 0, "cache", cache, sizeof cache));
        ASSERT_OK(weft_session_read(s, 0, "written", written, sizeof written));
        assert_memory_equal(cache, written, sizeof cache);
        assert_memory_equal(written + 6 * (size_t)at, x, sizeof x);
    }
    assert_int_equal(weft_session_memory_of(s).observed_peak_bytes,
                     weft_session_memory_of(s).predicted_peak_bytes);
    const wefti_program *p = wefti_session_program(s, 0);
    for (int32_t k = 0; k < p->step_count[WEFTI_SECTION_FIRST]; k++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_FIRST][k];
        assert_int_equal(step->kind, WEFTI_STEP_CALL); /* nothing is copied */
        for (int32_t i = 0; i < step->routine->code_count; i++)
            assert_non_null(step->routine->code[i].node);
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* Two samples write to rows of a cache of three texts, or attend to them: `places` is the text and
 * the position of each. */
static weft_graph *rows_graph(bool writes) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 4, (int64_t[]){2, 1, 2, 4})),
               places = weft_input(g, "places", weft_desc_of(WEFT_I32, 2, (int64_t[]){2, 2}));
    weft_value cache = weft_state(g, "cache", weft_desc_of(WEFT_F32, 4, (int64_t[]){3, 5, 2, 4}),
                                  (weft_init){WEFT_INIT_CONSTANT, 1});
    weft_cell_begin(g, "cell");
    if (writes) {
        weft_state_update(g, cache, weft_cell_end(g, weft_cache_write(g, cache, x, places)));
    } else {
        weft_attention_options o = weft_attention_defaults();
        o.causal = true;
        o.position = places;
        weft_output(g, "y", weft_cell_end(g, weft_attention(g, x, cache, cache, &o)));
    }
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static void check_rows(bool writes) {
    static const struct {
        int32_t places[4];
        const char *write, *attend; /* the message; NULL: right */
    } tries[] = {{{0, 0, 2, 4}, NULL, NULL},
                 {{0, 0, 3, 0}, "sample 3|3", "row 3|3"},
                 {{-1, 0, 1, 0}, "sample -1|3", "row -1|3"},
                 {{1, 5, 1, 0}, "5|6|5", NULL},
                 {{1, 1, 1, -1}, "-1|5", NULL}};
    const float x[16] = {0};
    weft_graph *g = rows_graph(writes);
    weft_session *s = session_of(g, plain_options(WEFT_NO_OPTIMIZER, 0));
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        const char *message = writes ? tries[i].write : tries[i].attend;
        ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
        ASSERT_OK(weft_session_feed(s, 0, "places", tries[i].places, sizeof tries[i].places));
        if (message)
            ASSERT_FAILS(WEFT_E_ARG, message, weft_session_forward(s, 0, NULL));
        else
            ASSERT_OK(weft_session_forward(s, 0, NULL));
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static void rows_outside_of_a_cache_are_refused(void **state) {
    (void)state;
    for (int writes = 0; writes < 2; writes++) {
        check_rows(writes);
        assert_int_equal(setenv("WEFT_BACKEND", "reference", 1), 0);
        check_rows(writes);
        assert_int_equal(unsetenv("WEFT_BACKEND"), 0);
    }
}

static void what_cannot_be_in_place_is_refused(void **state) {
    (void)state;
    static const char *const messages[] = {NULL, "state", "call weft_state_update", "read"};
    weft_session_options o = plain_options(WEFT_NO_OPTIMIZER, 0);
    for (int variant = 1; variant < 4; variant++) {
        weft_graph *g = cache_graph(variant);
        weft_session *s;
        ASSERT_FAILS(WEFT_E_NO_IMPL, messages[variant], weft_session_create(g, &o, &s));
        weft_graph_destroy(g);
    }
    weft_graph *g;
    weft_session *s;
    ASSERT_OK(weft_graph_create(&g));
    weft_value a = weft_state(g, "a", vector(2), (weft_init){WEFT_INIT_ZEROS, 0});
    weft_value b = weft_state(g, "b", vector(2), (weft_init){WEFT_INIT_CONSTANT, 1});
    weft_state_update(g, a, b);
    weft_state_update(g, b, weft_neg(g, a));
    ASSERT_FAILS(WEFT_E_NO_IMPL, "operation", weft_session_create(g, &o, &s));
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_shares_parameters),
        cmocka_unit_test(graphs_keep_their_own_states),
        cmocka_unit_test(graphs_come_between_steps),
        cmocka_unit_test(states_cost_their_size),
        cmocka_unit_test(inputs_are_fed_again_after_an_addition),
        cmocka_unit_test(a_session_that_mends_takes_no_late_graph),
        cmocka_unit_test(a_failed_addition_changes_nothing),
        cmocka_unit_test(caches_are_written_in_place),
        cmocka_unit_test(rows_outside_of_a_cache_are_refused),
        cmocka_unit_test(what_cannot_be_in_place_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
