/* Updates: values that are not finite stop them and name cell or parameter; moments do not
 * overflow; rates in f64; every option of an optimizer. */
#include "session_models.h"

/* ---- values that are not finite ---- */

static void the_first_bad_cell_is_named(void **state) {
    (void)state;
    for (int bad = 0; bad < 4; bad++)
        for (int clip = 0; clip < 2; clip++) {
            weft_graph *g = chain_with_logarithm(bad), *h = chain_with_logarithm(bad);
            weft_session_options o = plain_options(WEFT_ADAMW, clip ? 1 : 0);
            weft_session *s = session_of(g, o), *untouched = session_of(h, o);
            float x[ROWS * COLUMNS];
            for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = -9;
            ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
            char cell[32];
            (void)snprintf(cell, sizeof cell, "in cell 'h.%d' by ", bad);
            ASSERT_FAILS(WEFT_E_NUMERIC, cell, weft_session_step(s, 0.1, NULL));
            ASSERT_MESSAGE("loss|nan");
            assert_null(strstr(weft_error_message(), "-nan"));
            ASSERT_MESSAGE("loss");
            assert_int_equal(weft_session_step_number(s), 0);
            feed_rows(untouched, 0, 1, 0);
            for (int role = WEFT_ROLE_PARAM; role <= WEFT_ROLE_OPTIMIZER; role++)
                assert_true(difference(untouched, s, role) == 0);
            /* The session continues after the failure. */
            for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = 9;
            ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
            ASSERT_OK(weft_session_step(s, 0.1, NULL));
            assert_true(difference(untouched, s, WEFT_ROLE_PARAM) > 0);
            int64_t elems;
            float *count = read_tensor(s, 0, "count", &elems);
            assert_true(count[0] == 1);
            free(count);
            weft_session_destroy(s);
            weft_session_destroy(untouched);
            weft_graph_destroy(g);
            weft_graph_destroy(h);
        }
}

static void a_bad_gradient_stops_a_clipped_update(void **state) {
    (void)state;
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value b = weft_param(g, "good", vector(3), (weft_init){WEFT_INIT_ZEROS, 0});
    weft_value w = weft_param(g, "w", vector(3), (weft_init){WEFT_INIT_ZEROS, 0});
    weft_value x = weft_input(g, "x", vector(3)); /* sqrt'(0) is infinite, sqrt(0) is not */
    weft_value y = weft_add(g, weft_mul(g, weft_sqrt(g, w), x), b);
    weft_loss(g, weft_mean(g, y, 0, NULL, false));
    weft_session *s = session_of(g, plain_options(WEFT_SGD, 1));
    ASSERT_OK(weft_session_feed(s, 0, "x", (float[]){1, 2, 3}, 12));
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_NUMERIC, "w", weft_session_update(s, 1, NULL));
    double loss = 7, norm = 7; /* failed calls leave their outputs untouched */
    ASSERT_OK(weft_session_feed(s, 0, "x", (float[]){1, 2, 3}, 12));
    ASSERT_FAILS(WEFT_E_NUMERIC, "updated", weft_session_step(s, 1, &loss));
    ASSERT_OK(weft_session_feed(s, 0, "x", (float[]){1, 2, 3}, 12));
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_NUMERIC, "updated", weft_session_update(s, 1, &norm));
    assert_true(loss == 7 && norm == 7);
    float value[3];
    ASSERT_OK(weft_session_read(s, 0, "w", value, sizeof value));
    assert_true(value[0] == 0 && value[1] == 0 && value[2] == 0);
    /* The session continues with other values. */
    ASSERT_OK(weft_session_write(s, 0, "w", (float[]){1, 1, 1}, 12));
    ASSERT_OK(weft_session_feed(s, 0, "x", (float[]){1, 2, 3}, 12));
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_OK(weft_session_update(s, 0.1, NULL));
    ASSERT_OK(weft_session_read(s, 0, "w", value, sizeof value));
    assert_true(value[0] < 1 && value[1] < value[0] && value[2] < value[1]);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A gradient whose square overflows would make the second moment infinite, and the element would
 * never change again: the step fails and names the parameter. */
static void a_second_moment_does_not_overflow(void **state) {
    (void)state;
    static const weft_optimizer_kind kinds[] = {WEFT_ADAM, WEFT_ADAMW, WEFT_LAMB, WEFT_ADAGRAD};
    enum { ELEMENTS = 70001 }; /* several tasks and a remainder */
    float *values = malloc(ELEMENTS * sizeof *values);
    assert_non_null(values);
    for (size_t k = 0; k < 2 * (sizeof kinds / sizeof *kinds); k++) {
        weft_graph *g;
        ASSERT_OK(weft_graph_create(&g));
        weft_value w = weft_param(g, "large", vector(ELEMENTS), (weft_init){WEFT_INIT_CONSTANT, 1});
        weft_value x = weft_input(g, "x", vector(ELEMENTS));
        weft_loss(g, weft_sum(g, weft_mul(g, w, x), 0, NULL, false));
        weft_session *s = session_of(g, plain_options(kinds[k / 2], 0));
        for (int64_t i = 0; i < ELEMENTS; i++) values[i] = 1;
        ASSERT_OK(weft_session_feed(s, 0, "x", values, ELEMENTS * sizeof *values));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        values[k % 2 ? ELEMENTS - 1 : 33000] = 1e25F;
        ASSERT_OK(weft_session_feed(s, 0, "x", values, ELEMENTS * sizeof *values));
        ASSERT_FAILS(WEFT_E_CORRUPT, "large", weft_session_step(s, 0.1, NULL));
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
    free(values);
}

/* A weight and a gradient of shape `desc`; session and graph end with `end_of_moments`. */
static weft_session *moments_session(weft_graph *g, weft_optimizer_kind kind, weft_desc desc) {
    ASSERT_OK(weft_graph_status(g));
    weft_value w = weft_param(g, "large", desc, (weft_init){WEFT_INIT_CONSTANT, 1});
    weft_value x = weft_input(g, "x", desc);
    weft_loss(g, weft_sum(g, weft_mul(g, w, x), 0, NULL, false));
    return session_of(g, plain_options(kind, 0));
}

/* The same for Adafactor, for matrices, vectors and stacks of matrices, and for f64. */
static void a_factored_moment_does_not_overflow(void **state) {
    (void)state;
    const weft_desc descs[] = {
        WEFT_DESC(WEFT_F32, 70, 90), WEFT_DESC(WEFT_F32, 9001), WEFT_DESC(WEFT_F32, 2, 30, 40),
        WEFT_DESC(WEFT_F64, 30, 40), WEFT_DESC(WEFT_F64, 77),   WEFT_DESC(WEFT_F64, 2, 5, 7),
    };
    for (size_t k = 0; k < 2 * (sizeof descs / sizeof *descs); k++) {
        const weft_desc desc = descs[k / 2];
        const int64_t elements = weft_desc_elems(&desc);
        const bool f64 = desc.dtype == WEFT_F64;
        const size_t bytes = (size_t)elements * (f64 ? sizeof(double) : sizeof(float));
        void *values = calloc(1, bytes);
        assert_non_null(values);
        weft_graph *g;
        ASSERT_OK(weft_graph_create(&g));
        weft_session *s = moments_session(g, WEFT_ADAFACTOR, desc);
        for (int64_t i = 0; i < elements; i++) wefti_store(desc.dtype, values, i, 1);
        ASSERT_OK(weft_session_feed(s, 0, "x", values, bytes));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        wefti_store(desc.dtype, values, k % 2 ? elements - 1 : elements / 2, f64 ? 1e200 : 1e25);
        ASSERT_OK(weft_session_feed(s, 0, "x", values, bytes));
        ASSERT_FAILS(WEFT_E_CORRUPT, "large", weft_session_step(s, 0.1, NULL));
        weft_session_destroy(s);
        weft_graph_destroy(g);
        free(values);
    }
}

static void an_f64_moment_does_not_overflow(void **state) {
    (void)state;
    static const weft_optimizer_kind kinds[] = {WEFT_ADAM, WEFT_ADAMW, WEFT_LAMB, WEFT_ADAGRAD};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        double values[5] = {1, 1, 1, 1e25, 1}; /* too large for f32, not for f64 */
        weft_graph *g;
        ASSERT_OK(weft_graph_create(&g));
        weft_session *s = moments_session(g, kinds[k], WEFT_DESC(WEFT_F64, 5));
        ASSERT_OK(weft_session_feed(s, 0, "x", values, sizeof values));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
        values[3] = 1e200;
        ASSERT_OK(weft_session_feed(s, 0, "x", values, sizeof values));
        ASSERT_FAILS(WEFT_E_CORRUPT, "large", weft_session_step(s, 0.1, NULL));
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
}

/* AdamW, step by step, in double: Loshchilov and Hutter 2019, algorithm 2. */
static void a_double_adamw(double *p, double *m, double *v, double g, double rate, int step,
                           const weft_optimizer *o) {
    *m = o->beta1 * *m + (1 - o->beta1) * g;
    *v = o->beta2 * *v + (1 - o->beta2) * g * g;
    const double m_hat = *m / (1 - pow(o->beta1, step)), v_hat = *v / (1 - pow(o->beta2, step));
    *p = *p - rate * o->weight_decay * *p - rate * m_hat / (sqrt(v_hat) + o->eps);
}

/* The learning rate and the factor of clipping are doubles in f64 graphs: 0.1 and 1/3 are not
 * numbers of single precision. With an f32 parameter beside it, which has the scalars in f32. */
static void f64_parameters_take_f64_rates(void **state) {
    (void)state;
    enum { ELEMENTS = 6, STEPS = 20 };
    double x[ELEMENTS] = {0.7, -1.3, 2.1, 0.01, -5, 3}, p[ELEMENTS], m[ELEMENTS] = {0},
           v[ELEMENTS] = {0}, read[ELEMENTS];
    for (int clipped = 0; clipped < 2; clipped++) {
        weft_graph *g;
        ASSERT_OK(weft_graph_create(&g));
        weft_session_options o = plain_options(WEFT_ADAMW, clipped ? 0.3 : 0);
        o.optimizer.decay_all = true;
        weft_value w =
            weft_param(g, "w", WEFT_DESC(WEFT_F64, ELEMENTS), (weft_init){WEFT_INIT_CONSTANT, 0.3});
        weft_value half =
            weft_param(g, "half", WEFT_DESC(WEFT_F32, 1), (weft_init){WEFT_INIT_CONSTANT, 1});
        weft_value in = weft_input(g, "x", WEFT_DESC(WEFT_F64, ELEMENTS));
        weft_value sum = weft_sum(g, weft_mul(g, w, in), 0, NULL, false);
        weft_value other = weft_scale(g, weft_sum(g, half, 0, NULL, false), 0);
        weft_loss(g, weft_add(g, sum, weft_cast(g, other, WEFT_F64)));
        weft_session *s = session_of(g, o);
        double norm = 0, factor = 1;
        for (int i = 0; i < ELEMENTS; i++) {
            p[i] = 0.3, m[i] = v[i] = 0;
            norm += x[i] * x[i];
        }
        if (clipped) factor = 0.3 / (sqrt(norm) + 1e-6);
        ASSERT_OK(weft_session_write(s, 0, "w", p, sizeof p));
        for (int step = 1; step <= STEPS; step++) {
            const double rate = 0.1 / step;
            ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
            ASSERT_OK(weft_session_step(s, rate, NULL));
            for (int i = 0; i < ELEMENTS; i++)
                a_double_adamw(&p[i], &m[i], &v[i], x[i] * factor, rate, step, &o.optimizer);
        }
        ASSERT_OK(weft_session_read(s, 0, "w", read, sizeof read));
        for (int i = 0; i < ELEMENTS; i++)
            if (!(fabs(read[i] - p[i]) <= 1e-14 * fmax(1, fabs(p[i]))))
                fail_msg("clip %d, element %d: %.17g, not %.17g", clipped, i, read[i], p[i]);
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
}

/* ---- options of optimizers ---- */

#define RULE(name) (1u << WEFT_##name)

/* Every option changes the update of the parameters. */
static void optimizers_hear_their_options(void **state) {
    (void)state;
    enum { MOMENTS = RULE(ADAM) | RULE(ADAMW) | RULE(LAMB), ALL = RULE(NO_OPTIMIZER) - 1 };
    static const struct {
        const char *name;
        size_t at;
        unsigned kinds;
    } told[] = {
        {"beta1", offsetof(weft_optimizer, beta1), MOMENTS | RULE(LION)},
        {"beta2", offsetof(weft_optimizer, beta2), MOMENTS | RULE(LION)},
        {"eps", offsetof(weft_optimizer, eps), MOMENTS | RULE(ADAFACTOR) | RULE(ADAGRAD)},
        {"momentum", offsetof(weft_optimizer, momentum), RULE(MOMENTUM) | RULE(NESTEROV)},
        {"initial_accumulator", offsetof(weft_optimizer, initial_accumulator), RULE(ADAGRAD)},
        {"weight_decay", offsetof(weft_optimizer, weight_decay), ALL},
    };
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        for (int kind = 0; kind < (int)WEFT_OPTIMIZERS; kind++) {
            weft_session_options o = plain_options((weft_optimizer_kind)kind, 0);
            weft_graph *g[2] = {random_model(1), random_model(1)};
            weft_session *s[2];
            for (int k = 0; k < 2; k++) {
                double value = 0.5;
                if (k) memcpy((char *)&o.optimizer + told[i].at, &value, sizeof value);
                s[k] = session_of(g[k], o);
                for (int step = 0; step < 3; step++) {
                    feed_rows(s[k], 0, (uint64_t)step, 0);
                    ASSERT_OK(weft_session_step(s[k], 0.1, NULL));
                }
            }
            bool heard = difference(s[0], s[1], WEFT_ROLE_PARAM) > 0;
            if (heard != (told[i].kinds >> kind & 1))
                fail_msg("optimizer %d %s %s", kind, heard ? "hears" : "does not hear",
                         told[i].name);
            for (int k = 0; k < 2; k++) {
                weft_session_destroy(s[k]);
                weft_graph_destroy(g[k]);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_bad_cell_is_named),
        cmocka_unit_test(a_bad_gradient_stops_a_clipped_update),
        cmocka_unit_test(a_second_moment_does_not_overflow),
        cmocka_unit_test(a_factored_moment_does_not_overflow),
        cmocka_unit_test(an_f64_moment_does_not_overflow),
        cmocka_unit_test(f64_parameters_take_f64_rates),
        cmocka_unit_test(optimizers_hear_their_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
