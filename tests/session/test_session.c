/* Sessions on one device. Gradients of random models equal finite differences. Microbatches, early
 * updates and recomputation change speed and memory, and no result. */
#include "session_models.h"

enum { SEED = 21 };

static weft_session_options options_with(weft_optimizer_kind kind, double clip) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = kind;
    o.optimizer.momentum = 0.9;
    o.clip = clip;
    o.threads = 2;
    o.seed = SEED;
    return o;
}

/* ---- gradients ---- */

/* The loss in double at the session's parameters, parameter `moved` shifted by h along its
 * direction. */
static double loss_in_double(weft_session *s, const weft_graph *g, uint64_t data, const char *moved,
                             double h) {
    const weft_body *b = g->root;
    const wefti_random random = {.seed = SEED};
    double *in[256], *out[256], loss = NAN;
    assert_true(b->in_count < 256 && b->out_count < 256);
    for (int64_t i = 0; i < b->in_count; i++) {
        const wefti_value_info *v = &b->values[b->in[i]];
        int64_t elems = weft_desc_elems(&v->desc), count;
        in[i] = malloc((size_t)elems * sizeof(double));
        float *data_of = v->kind == WEFTI_VALUE_INPUT ? NULL : read_tensor(s, 0, v->name, &count);
        uint64_t stream = wefti_stream_of(v->name);
        bool moves = moved && !strcmp(moved, v->name);
        for (int64_t e = 0; e < elems; e++) {
            double value = data_of ? (double)data_of[e]
                                   : (double)wefti_philox_normal(data, stream, (uint64_t)e);
            double direction = (double)wefti_philox_normal(99, stream, (uint64_t)e);
            in[i][e] = value + (moves ? h * direction : 0);
        }
        free(data_of);
    }
    for (int64_t o = 0; o < b->out_count; o++)
        out[o] = malloc((size_t)weft_desc_elems(&b->values[b->out[o]].desc) * sizeof(double));
    ASSERT_OK(wefti_interpret(b, &random, (const double *const *)in, out));
    for (int64_t o = 0; o < b->out_count; o++)
        if (b->out[o] == g->loss) loss = out[o][0];
    for (int64_t i = 0; i < b->in_count; i++) free(in[i]);
    for (int64_t o = 0; o < b->out_count; o++) free(out[o]);
    return loss;
}

static void gradients_equal_finite_differences(void **state) {
    (void)state;
    int compared = 0;
    TEST_SEEDS(seed, 0, 40) {
        weft_graph *g = random_model(seed);
        weft_session_options o = options_with(WEFT_SGD, 0);
        o.keep_gradients = true;
        o.recompute = seed & 1;
        weft_session *s = session_of(g, o);
        double loss;
        for (int t = 0; t < weft_session_tensors(s, 0); t++) { /* larger than usual */
            weft_tensor_info info;
            int64_t count;
            ASSERT_OK(weft_session_tensor(s, 0, t, &info));
            if (info.role != WEFT_ROLE_PARAM) continue;
            float *data = read_tensor(s, 0, info.name, &count);
            for (int64_t e = 0; e < count; e++)
                data[e] = 0.5F * wefti_philox_normal(5, wefti_stream_of(info.name), (uint64_t)e);
            ASSERT_OK(weft_session_write(s, 0, info.name, data, (size_t)info.bytes));
            free(data);
        }
        feed_rows(s, 0, seed, 0);
        ASSERT_OK(weft_session_accumulate(s, &loss));
        double want = loss_in_double(s, g, seed, NULL, 0);
        if (fabs(loss - want) > 1e-4 * (1 + fabs(want)))
            fail_msg("seed %d: the loss is %g, not %g", (int)seed, loss, want);
        for (int t = 0; t < weft_session_tensors(s, 0); t++) {
            weft_tensor_info info, kept;
            char name[300];
            ASSERT_OK(weft_session_tensor(s, 0, t, &info));
            (void)snprintf(name, sizeof name, "grad:%s", info.name);
            if (info.role != WEFT_ROLE_PARAM) continue;
            double h = 1e-5, along = 0, size = 0;
            double slope = (loss_in_double(s, g, seed, info.name, h) -
                            loss_in_double(s, g, seed, info.name, -h)) /
                           (2 * h);
            if (weft_session_find(s, 0, name, &kept) < 0) { /* the loss does not depend on it */
                assert_true(fabs(slope) < 1e-7);
                continue;
            }
            int64_t count;
            float *gradient = read_tensor(s, 0, name, &count);
            for (int64_t e = 0; e < count; e++) {
                double direction =
                    (double)wefti_philox_normal(99, wefti_stream_of(info.name), (uint64_t)e);
                along += direction * (double)gradient[e];
                size += fabs(direction * (double)gradient[e]);
            }
            free(gradient);
            if (fabs(along - slope) > 1e-3 * size + 1e-6)
                fail_msg("seed %d: along the gradient of %s the loss grows by %g, not %g",
                         (int)seed, info.name, slope, along);
            compared++;
        }
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
    assert_true(test_one_seed() || compared > 60);
}

/* ---- one update, carried out differently ---- */

static void train(weft_session *s, int steps, int microbatches, int64_t rows) {
    for (int k = 0; k < steps; k++) {
        if (microbatches == 0) {
            feed_rows(s, 0, (uint64_t)k, 0);
            ASSERT_OK(weft_session_step(s, 0.01, NULL));
            continue;
        }
        for (int m = 0; m < microbatches; m++) {
            feed_rows(s, 0, (uint64_t)k, m * rows);
            ASSERT_OK(weft_session_set_row(s, m * rows));
            ASSERT_OK(weft_session_accumulate(s, NULL));
        }
        ASSERT_OK(weft_session_update(s, 0.01, NULL));
    }
}

/* Compares parameters after sums of f32 in different orders. `what` and `number` name the case in
 * messages. */
static void check_parameters(weft_session *a, weft_session *b, const char *what, int number) {
    double apart = difference(a, b, WEFT_ROLE_PARAM);
    if (!(apart <= 2e-5)) fail_msg("%s %d: parameters differ by %g", what, number, apart);
}

static void microbatches_give_one_update(void **state) {
    (void)state;
    const weft_optimizer_kind kinds[] = {WEFT_SGD, WEFT_MOMENTUM};
    for (int k = 0; k < 2; k++) {
        weft_graph *whole_graph = tiny_gpt2(WEFT_USE_TRAIN, 4, 0.2, WEFT_F32);
        weft_session *whole = session_of(whole_graph, options_with(kinds[k], 0));
        train(whole, 3, 0, 4);
        for (int parts = 2; parts <= 4; parts += 2)
            for (int clip = 0; clip < 2; clip++) {
                weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 4 / parts, 0.2, WEFT_F32);
                weft_session_options o = options_with(kinds[k], clip ? 1e30 : 0);
                o.microbatches = parts;
                weft_session *s = session_of(g, o);
                train(s, 3, parts, 4 / parts);
                check_parameters(whole, s, "microbatches", parts);
                assert_int_equal(weft_session_step_number(s), 3);
                weft_session_destroy(s);
                weft_graph_destroy(g);
            }
        weft_session_destroy(whole);
        weft_graph_destroy(whole_graph);
    }
}

/* A model with dropout, whose reshapes merge the batch with other dimensions: [batch * seq, wide],
 * [1, batch * seq, wide] (IN_FRONT), and windows of attention. Its first inputs are tables without
 * samples: one of SEQ rows, or two (AS_MANY: as many as inputs with samples). */
enum { BEHIND, IN_FRONT, AS_MANY, MERGED_KINDS };
static weft_graph *merged_model(int64_t batch, int kind) {
    enum { SEQ = 6, WIDE = 8, HEADS = 2, WINDOW = 3 };
    weft_graph *g;
    weft_init init = {WEFT_INIT_NORMAL, 0.4};
    int64_t rows = batch * SEQ, windows = rows / WINDOW;
    ASSERT_OK(weft_graph_create(&g));
    weft_value table = weft_input(g, "table", WEFT_DESC(WEFT_F32, SEQ, WIDE));
    if (kind == AS_MANY)
        table = weft_mul(g, table, weft_input(g, "column", WEFT_DESC(WEFT_F32, SEQ, 1)));
    weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_F32, batch, SEQ, WIDE));
    weft_value target = weft_input(g, "target", WEFT_DESC(WEFT_F32, batch, SEQ, WIDE));
    weft_value w = weft_param(g, "w", WEFT_DESC(WEFT_F32, WIDE, WIDE), init);
    x = weft_add(g, x, weft_scale(g, table, 0.0));
    weft_attention_options options = weft_attention_defaults();
    options.dropout = 0.4;
    weft_value y = kind == IN_FRONT ? weft_reshape(g, x, 3, (int64_t[]){1, rows, WIDE})
                                    : weft_reshape(g, x, 2, (int64_t[]){rows, WIDE});
    y = weft_dropout(g, weft_linear(g, y, w, WEFT_NO_VALUE, false), 0.4);
    y = weft_reshape(g, y, 4, (int64_t[]){windows, WINDOW, HEADS, WIDE / HEADS});
    y = weft_attention(g, y, y, y, &options);
    weft_loss(g, weft_mse(g, weft_reshape(g, y, 3, (int64_t[]){batch, SEQ, WIDE}), target));
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    return g;
}

static void merged_samples_draw_their_own_numbers(void **state) {
    (void)state;
    for (int kind = 0; kind < MERGED_KINDS; kind++)
        for (int reference = 0; reference < 2; reference++) {
            weft_graph *whole_graph = merged_model(4, kind);
            weft_session_options o = options_with(WEFT_SGD, 0);
            if (reference) assert_int_equal(setenv("WEFT_BACKEND", "reference", 1), 0);
            weft_session *whole = session_of(whole_graph, o);
            train(whole, 3, 0, 4);
            for (int parts = 2; parts <= 4; parts += 2) {
                weft_graph *g = merged_model(4 / parts, kind);
                o.microbatches = parts;
                weft_session *s = session_of(g, o);
                train(s, 3, parts, 4 / parts);
                check_parameters(whole, s, "microbatches", parts);
                weft_session_destroy(s);
                weft_graph_destroy(g);
            }
            assert_int_equal(unsetenv("WEFT_BACKEND"), 0);
            weft_session_destroy(whole);
            weft_graph_destroy(whole_graph);
        }
}

/* Updating each parameter as soon as its gradient is complete gives the same bits as updating all
 * at the end. */
static void eager_updates_change_nothing(void **state) {
    (void)state;
    for (int kind = 0; kind < (int)WEFT_OPTIMIZERS; kind++)
        for (int model = 0; model < 4; model++) {
            weft_graph *a =
                model ? random_model((uint64_t)model) : tiny_gpt2(WEFT_USE_TRAIN, 2, 0.1, WEFT_F32);
            weft_graph *b =
                model ? random_model((uint64_t)model) : tiny_gpt2(WEFT_USE_TRAIN, 2, 0.1, WEFT_F32);
            weft_session *eager = session_of(a, options_with((weft_optimizer_kind)kind, 0));
            weft_session *late = session_of(b, options_with((weft_optimizer_kind)kind, 1e30));
            train(eager, 3, 0, 0);
            train(late, 3, 0, 0);
            assert_int_equal(wefti_session_program(eager, 0)->step_count[WEFTI_SECTION_UPDATE], 0);
            if (difference(eager, late, WEFT_ROLE_PARAM) > 0 ||
                difference(eager, late, WEFT_ROLE_OPTIMIZER) > 0)
                fail_msg("model %d, optimizer %d: bits differ", model, kind);
            ASSERT_FAILS(WEFT_E_ARG, "use weft_session_step", weft_session_accumulate(eager, NULL));
            ASSERT_FAILS(WEFT_E_ARG, "0 of 1 microbatches", weft_session_update(late, 0.1, NULL));
            weft_session_destroy(eager);
            weft_session_destroy(late);
            weft_graph_destroy(a);
            weft_graph_destroy(b);
        }
}

static void clipping_scales_the_update(void **state) {
    (void)state;
    weft_graph *g = random_model(3), *h = random_model(3);
    weft_session *full = session_of(g, options_with(WEFT_SGD, 1e30)), *clipped;
    double norm, limit;
    int64_t count;
    feed_rows(full, 0, 1, 0);
    float *before = read_tensor(full, 0, "shared", &count);
    ASSERT_OK(weft_session_accumulate(full, NULL));
    ASSERT_OK(weft_session_update(full, 0.5, &norm));
    assert_true(norm > 1e-6);
    limit = norm / 4;
    clipped = session_of(h, options_with(WEFT_SGD, limit));
    feed_rows(clipped, 0, 1, 0);
    ASSERT_OK(weft_session_accumulate(clipped, NULL));
    double again;
    ASSERT_OK(weft_session_update(clipped, 0.5, &again));
    assert_true(again == norm);
    float *x = read_tensor(full, 0, "shared", &count),
          *y = read_tensor(clipped, 0, "shared", &count);
    double factor = limit / (norm + 1e-6), decay = 1 - 0.5 * 0.1;
    for (int64_t i = 0; i < count; i++) {
        double gradient = (double)before[i] * decay - (double)x[i];
        assert_true(fabs((double)before[i] * decay - gradient * factor - (double)y[i]) < 1e-5);
    }
    free(before);
    free(x);
    free(y);
    weft_session_destroy(full);
    weft_session_destroy(clipped);
    weft_graph_destroy(g);
    weft_graph_destroy(h);
}

/* The transient memory of a gpt2 step, without gradients that wait for the last part. */
static int64_t transient_of(int layers, int64_t batch, bool recompute, int microbatches) {
    weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                           .layers = layers,
                           .hidden = 32,
                           .heads = 4,
                           .ffn = 64,
                           .context = 16,
                           .vocab = 50};
    weft_graph *g;
    weft_session_options o = options_with(WEFT_SGD, 0);
    o.recompute = recompute;
    o.microbatches = microbatches;
    ASSERT_OK(weft_model_build(&c, WEFT_USE_TRAIN, batch, 0, WEFT_F32, &g));
    weft_session *s = session_of(g, o);
    weft_session_memory m = weft_session_memory_of(s);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return m.transient_bytes - (microbatches > 1 ? m.parameter_bytes : 0);
}

/* A recomputed block keeps only its input, whatever is inside. A batch in parts needs no more
 * memory at once than one part. */
static void memory_is_what_it_must_be(void **state) {
    (void)state;
    enum { BATCH = 32, INPUT = BATCH * 16 * 32 * 4, LINES = 200 * 64 };
    for (int layers = 1; layers <= 4; layers++) {
        int64_t less = transient_of(layers, BATCH, true, 1),
                more = transient_of(layers + 1, BATCH, true, 1);
        assert_int_equal(more - less, INPUT);
    }
    assert_true(transient_of(3, BATCH, false, 1) - transient_of(2, BATCH, false, 1) > 5 * INPUT);
    for (int parts = 2; parts <= 8; parts *= 2) {
        int64_t alone = transient_of(3, BATCH / parts, false, 1),
                part = transient_of(3, BATCH / parts, false, parts);
        if (!(part <= alone + LINES) || !(part * parts < 2 * transient_of(3, BATCH, false, 1)))
            fail_msg("%d parts: %lld bytes, %lld alone", parts, (long long)part, (long long)alone);
    }
}

static void recompute_changes_memory_only(void **state) {
    (void)state;
    for (uint64_t model = 0; model < 12; model++) {
        weft_graph *a = model ? random_model(model) : tiny_gpt2(WEFT_USE_TRAIN, 2, 0.1, WEFT_F32);
        weft_graph *b = model ? random_model(model) : tiny_gpt2(WEFT_USE_TRAIN, 2, 0.1, WEFT_F32);
        weft_session_options o = options_with(WEFT_SGD, 0);
        weft_session *keeps = session_of(a, o), *again;
        o.recompute = true;
        again = session_of(b, o);
        train(keeps, 2, 0, 0);
        train(again, 2, 0, 0);
        check_parameters(keeps, again, "model", (int)model);
        if (!model)
            assert_true(weft_session_memory_of(again).saved_bytes <
                        weft_session_memory_of(keeps).saved_bytes / 2);
        weft_session_destroy(keeps);
        weft_session_destroy(again);
        weft_graph_destroy(a);
        weft_graph_destroy(b);
    }
}

static void threads_change_no_bit(void **state) {
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++) {
        double losses[3][5];
        for (int threads = 1; threads <= 3; threads++) {
            weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 3, 0.1, dtype ? WEFT_BF16 : WEFT_F32);
            weft_session_options o = options_with(WEFT_ADAMW, 1);
            o.threads = threads;
            o.bf16 = WEFT_BF16_AS_F32;
            weft_session *s = session_of(g, o);
            for (int k = 0; k < 5; k++) {
                feed_rows(s, 0, (uint64_t)k, 0);
                ASSERT_OK(weft_session_step(s, 0.01, &losses[threads - 1][k]));
            }
            assert_memory_equal(losses[0], losses[threads - 1], sizeof losses[0]);
            weft_session_destroy(s);
            weft_graph_destroy(g);
        }
        assert_true(losses[0][4] != losses[0][3]);
    }
}

static void backends_agree(void **state) {
    (void)state;
    for (uint64_t model = 0; model < 8; model++) {
        weft_graph *a = model ? random_model(model) : tiny_gpt2(WEFT_USE_TRAIN, 2, 0.1, WEFT_F32);
        weft_graph *b = model ? random_model(model) : tiny_gpt2(WEFT_USE_TRAIN, 2, 0.1, WEFT_F32);
        weft_session *fast = session_of(a, options_with(WEFT_SGD, 0)), *plain;
        assert_int_equal(setenv("WEFT_BACKEND", "reference", 1), 0);
        plain = session_of(b, options_with(WEFT_SGD, 0));
        assert_int_equal(unsetenv("WEFT_BACKEND"), 0);
        train(fast, 2, 0, 0);
        train(plain, 2, 0, 0);
        check_parameters(fast, plain, "model", (int)model);
        weft_session_destroy(fast);
        weft_session_destroy(plain);
        weft_graph_destroy(a);
        weft_graph_destroy(b);
    }
}

/* Steps and samples before the first are refused. */
static void counts_out_of_range_are_refused(void **state) {
    (void)state;
    weft_graph *g = random_model(3);
    weft_session *s = session_of(g, options_with(WEFT_ADAM, 0));
    ASSERT_OK(weft_session_set_step(s, 7));
    static const int64_t bad[] = {-1, INT64_MIN, (INT64_C(1) << 60) + 1, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(weft_session_set_step(s, bad[i]), WEFT_E_ARG);
        assert_int_equal(weft_session_set_row(s, bad[i]), WEFT_E_ARG);
        ASSERT_MESSAGE("from 0 to 2^60");
    }
    assert_int_equal(weft_session_step_number(s), 7);
    ASSERT_OK(weft_session_set_step(s, 0));
    ASSERT_OK(weft_session_set_row(s, INT64_C(1) << 60));
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(microbatches_give_one_update),
        cmocka_unit_test(merged_samples_draw_their_own_numbers),
        cmocka_unit_test(eager_updates_change_nothing),
        cmocka_unit_test(clipping_scales_the_update),
        cmocka_unit_test(recompute_changes_memory_only),
        cmocka_unit_test(memory_is_what_it_must_be),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(backends_agree),
        cmocka_unit_test(counts_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
