/* Several graphs of one session beside each other: shared parameters, states of their own, states
 * that are written in place. */
#include "session_models.h"

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
    ASSERT_FAILS(WEFT_E_ARG, "first", weft_session_add(s, e, &eval));
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
        for (int i = 0; i < 4; i++) {
            int64_t elems;
            char own[32];
            float *count = read_tensor(s, program[i], names[i], &elems);
            for (int64_t e = 0; e < elems; e++)
                if (count[e] != (float)round)
                    fail_msg("state %s is %g after %d steps", names[i], (double)count[e], round);
            free(count);
            (void)snprintf(own, sizeof own, "%s.w", names[i]);
            float *w = read_tensor(s, program[i], own, &elems);
            for (int64_t e = 0; e < elems; e++) assert_true(w[e] == 3);
            free(w);
        }
    }
    weft_session_memory m = weft_session_memory_of(s);
    assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    for (int i = 0; i < 4; i++) weft_graph_destroy(more[i]);
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
        cmocka_unit_test(caches_are_written_in_place),
        cmocka_unit_test(rows_outside_of_a_cache_are_refused),
        cmocka_unit_test(what_cannot_be_in_place_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
