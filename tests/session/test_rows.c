/* Gradients of tables as rows. sgd and adagrad give the bits of dense gradients, on any number of
 * devices and at every optimizer level. adam changes the touched rows alone. The dense gradient is
 * not made, and tables that another op reads stay dense. */
#include "rows_trial.h"

/* How many updates of a device's program take rows. */
static int updates_of(const wefti_program *p) {
    int count = 0;
    for (int section = 0; section < WEFTI_SECTIONS; section++)
        for (int32_t k = 0; k < p->step_count[section]; k++) {
            const wefti_step *step = &p->steps[section][k];
            if (step->kind != WEFTI_STEP_CALL || step->phase != WEFTI_UPDATE) continue;
            for (int32_t i = 0; i < step->routine->code_count; i++) {
                const weft_node *n = step->routine->code[i].node;
                count += n && !strcmp(n->op->name, "rows_sum") && step->tensor >= 0;
            }
        }
    return count;
}

/* Of the first device of each stage. */
static int updates_by_rows(const weft_session *s, int stages) {
    int count = 0;
    for (int stage = 0; stage < stages; stage++)
        count += updates_of(s->views[0]->programs[stage * s->devices / stages]);
    return count;
}

static void rows_have_the_bits_of_dense_gradients(void **state) {
    (void)state;
    int staged = 0;
    TEST_SEEDS(seed, 1, CASES) {
        const trial t = trial_of(seed);
        weft_graph *g[2];
        weft_session *s[2];
        for (int k = 0; k < 2; k++) {
            s[k] = session_for(&t, k ? WEFT_ROWS_AUTO : WEFT_ROWS_NONE, &g[k]);
            train(s[k], &t);
        }
        const int stages = t.stages ? t.stages : 1;
        staged += stages > 1;
        assert_int_equal(updates_by_rows(s[0], stages), 0);
        assert_int_equal(updates_by_rows(s[1], stages), 2 + (t.micros * t.batch * t.seq < SMALL));
        assert_int_equal(form_of(s[0], "wide"), WEFTI_ROWS_UNASKED);
        assert_int_equal(form_of(s[1], "wide"), WEFTI_ROWS_TOUCHED);
        assert_int_equal(form_of(s[1], "tied"), WEFTI_ROWS_SHARED);
        assert_int_equal(form_of(s[1], "small") == WEFTI_ROWS_SMALL,
                         t.micros * t.batch * t.seq >= SMALL);
        /* Dense, levels 2 and 3 reduce each microbatch, and f64 adds the sum of each. */
        const bool rounded = t.micros > 1 && (t.level > 1 || t.dtype == WEFT_F64);
        if (!same_tensors(s[0], s[1], rounded))
            fail_msg("WEFT_TEST_SEED=%llu (%s, %s, %d devices, level %d, batch %d, %d "
                     "microbatches): tensors differ",
                     (unsigned long long)seed, t.kind == WEFT_SGD ? "sgd" : "adagrad",
                     weft_dtype_text(t.dtype), t.devices, t.level, (int)t.batch, t.micros);
        for (int k = 0; k < 2; k++) {
            weft_session_destroy(s[k]);
            weft_graph_destroy(g[k]);
        }
    }
    assert_true(test_one_seed() || staged > CASES / 8);
}

/* Tables stay whole, and say why. */
static void forms_have_their_reasons(void **state) {
    (void)state;
    trial t = {.kind = WEFT_SGD, .dtype = WEFT_F32, .devices = 2, .batch = 2, .seq = 3};
    weft_graph *g;
    t.stages = t.micros = 2;
    for (t.schedule = 0; t.schedule < WEFT_PIPELINE_SCHEDULES; t.schedule++) {
        weft_session *s = session_for(&t, WEFT_ROWS_AUTO, &g);
        assert_int_equal(form_of(s, "wide"), t.schedule == WEFT_PIPELINE_ZERO_BUBBLE
                                                 ? WEFTI_ROWS_STAGES
                                                 : WEFTI_ROWS_TOUCHED);
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
}

/* With clipping and every optimizer that takes rows, N devices are one device up to rounding: at
 * most 7e-7 of a table's largest element was seen, with adam, which divides by small roots. */
static void devices_change_only_rounding(void **state) {
    (void)state;
    for (int kind = 0; kind < (int)WEFT_OPTIMIZERS; kind++)
        for (int devices = 2; devices <= 3; devices++) {
            trial t = {.seed = (uint64_t)kind,
                       .kind = (weft_optimizer_kind)kind,
                       .dtype = WEFT_F32,
                       .devices = devices,
                       .level = kind % 4,
                       .clip = devices == 2 ? 0.01 : 0,
                       .batch = 6,
                       .seq = 4};
            weft_graph *g[2];
            weft_session *s[2];
            for (int k = 0; k < 2; k++) {
                s[k] = session_for(&t, WEFT_ROWS_AUTO, &g[k]);
                train(s[k], &t);
                t.devices = 1;
            }
            const bool whole = kind == WEFT_LAMB || kind == WEFT_ADAFACTOR;
            assert_int_equal(updates_by_rows(s[0], 1), whole ? 0 : 2);
            const bool direction = kind == WEFT_LION || whole; /* of rounding errors, too */
            if (!direction && difference(s[1], s[0], WEFT_ROLE_PARAM) > 1e-5)
                fail_msg("optimizer %d, %d devices: %g apart", kind, devices,
                         difference(s[1], s[0], WEFT_ROLE_PARAM));
            for (int k = 0; k < 2; k++) {
                weft_session_destroy(s[k]);
                weft_graph_destroy(g[k]);
            }
        }
}

/* adam by hand, in double, for the rows that a step touches. */
static void adam_changes_touched_rows_alone(void **state) {
    (void)state;
    enum { PLACES = 5 };
    static const int32_t ids[STEPS][PLACES] = {
        {1, 7, 1, 2, 9}, {7, 7, 7, 11, 2}, {70, 1, 70, 7, 3}, {2, 2, 2, 2, 2}};
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value table = weft_param(g, "table", matrix(TABLE, DIM), (weft_init){WEFT_INIT_NORMAL, 1});
    weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES));
    weft_value x = weft_input(g, "x", matrix(PLACES, DIM));
    weft_loss(g,
              weft_sum(g, weft_mul(g, weft_embedding(g, table, in, WEFT_F32), x), 0, NULL, false));
    weft_session_options o = plain_options(WEFT_ADAM, 0);
    o.rows = WEFT_ROWS_AUTO;
    o.optimizer.weight_decay = 0;
    weft_session *s = session_of(g, o);
    static double p[TABLE][DIM], m[TABLE][DIM], v[TABLE][DIM];
    int64_t count;
    float *start = read_tensor(s, 0, "table", &count);
    for (int64_t i = 0; i < count; i++) p[i / DIM][i % DIM] = (double)start[i];
    for (int step = 0; step < STEPS; step++) {
        float values[PLACES * DIM];
        for (int i = 0; i < PLACES * DIM; i++)
            values[i] = wefti_philox_normal(5, (uint64_t)step, (uint64_t)i);
        ASSERT_OK(weft_session_feed(s, 0, "ids", ids[step], sizeof ids[step]));
        ASSERT_OK(weft_session_feed(s, 0, "x", values, sizeof values));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        for (int32_t row = 0; row < TABLE; row++)
            for (int d = 0; d < DIM; d++) {
                double gradient = 0;
                bool touched = false;
                for (int i = 0; i < PLACES; i++)
                    if (ids[step][i] == row) {
                        gradient += (double)values[i * DIM + d];
                        touched = true;
                    }
                if (!touched) continue;
                const weft_optimizer *a = &o.optimizer;
                m[row][d] = a->beta1 * m[row][d] + (1 - a->beta1) * gradient;
                v[row][d] = a->beta2 * v[row][d] + (1 - a->beta2) * gradient * gradient;
                p[row][d] -= 0.1 * m[row][d] / (1 - pow(a->beta1, step + 1)) /
                             (sqrt(v[row][d] / (1 - pow(a->beta2, step + 1))) + a->eps);
            }
    }
    float *end = read_tensor(s, 0, "table", &count);
    for (int64_t i = 0; i < count; i++) {
        const double want = p[i / DIM][i % DIM];
        if (!(fabs((double)end[i] - want) <= 1e-5 * fmax(1, fabs(want))))
            fail_msg("row %d: %.9g, not %.9g", (int)(i / DIM), (double)end[i], want);
        if (v[i / DIM][0] == 0) assert_true(end[i] == start[i]);
    }
    free(start);
    free(end);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A table of 2.8 MB: its dense gradient is most of the transient memory. */
static void the_dense_gradient_is_not_made(void **state) {
    (void)state;
    enum { LARGE = 100000, PLACES = 12 };
    int64_t transient[2];
    for (int k = 0; k < 2; k++) {
        weft_graph *g;
        ASSERT_OK(weft_graph_create(&g));
        weft_value table =
            weft_param(g, "table", matrix(LARGE, DIM), (weft_init){WEFT_INIT_ZEROS, 0});
        weft_value in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, PLACES));
        weft_value y = weft_embedding(g, table, in, WEFT_F32);
        weft_loss(g, weft_mean(g, weft_tanh(g, y), 0, NULL, false));
        weft_session_options o = plain_options(WEFT_ADAGRAD, 0);
        o.rows = k ? WEFT_ROWS_AUTO : WEFT_ROWS_NONE;
        weft_session *s = session_of(g, o);
        const int32_t ids[PLACES] = {5, 99999, 70000, 5};
        ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        const weft_session_memory m = weft_session_memory_of(s);
        assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
        transient[k] = m.transient_bytes;
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
    assert_true(transient[0] >= LARGE * DIM * 4);
    assert_true(transient[1] < 16384); /* of the few rows, and of finding them */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_dense_gradients),
        cmocka_unit_test(forms_have_their_reasons),
        cmocka_unit_test(devices_change_only_rounding),
        cmocka_unit_test(adam_changes_touched_rows_alone),
        cmocka_unit_test(the_dense_gradient_is_not_made),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
