/* Sessions at their limits: predicted and refused memory, values that are not finite, graphs beside
 * each other, states, misuse, and a failure of every allocation. */
#include "session_models.h"

static weft_session_options options_with(weft_optimizer_kind kind, double clip) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = kind;
    o.clip = clip;
    o.threads = 2;
    return o;
}

/* ---- memory ---- */

static void step_once(weft_session *s, int microbatches) {
    for (int m = 0; m < microbatches; m++) {
        feed_rows(s, 0, 1, 0);
        ASSERT_OK(weft_session_accumulate(s, NULL));
    }
    ASSERT_OK(weft_session_update(s, 0.01, NULL));
}

/* Tensors that are legal one by one, but the sum of their bytes overflows an integer. */
static void sums_of_bytes_do_not_overflow(void **state) {
    (void)state;
    for (int count = 1; count <= 4; count++)
        for (int log = 28; log <= 30; log++) {
            weft_graph *g;
            weft_session *s;
            weft_session_options o = options_with(count % 2 ? WEFT_NO_OPTIMIZER : WEFT_MOMENTUM, 0);
            int64_t shape[2] = {INT64_C(1) << (log - 1), INT64_C(1) << 30};
            ASSERT_OK(weft_graph_create(&g));
            weft_value sum = WEFT_NO_VALUE;
            for (int i = 0; i < count; i++) {
                char name[16];
                (void)snprintf(name, sizeof name, "large%d", i);
                weft_value p = weft_param(g, name, weft_desc_of(WEFT_F64, 2, shape),
                                          (weft_init){WEFT_INIT_NORMAL, 1});
                weft_value mean = weft_mean(g, p, 0, NULL, false);
                sum = i ? weft_add(g, sum, mean) : mean;
            }
            weft_loss(g, sum);
            ASSERT_FAILS(WEFT_E_NOMEM, "memory", weft_session_create(g, &o, &s));
            weft_graph_destroy(g);
        }
}

/* WEFT_DEVICE must name a device, and the message says which there are. */
static void an_unknown_device_is_refused(void **state) {
    (void)state;
    const char *before = getenv("WEFT_DEVICE");
    char *kept = before ? strdup(before) : NULL;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 2, 0, WEFT_F32);
    weft_session_options o = options_with(WEFT_ADAMW, 0);
    weft_session *s = NULL;
    (void)setenv("WEFT_DEVICE", "moon", 1);
    ASSERT_FAILS(WEFT_E_ARG, "WEFT_DEVICE|moon|host|fenced", weft_session_create(g, &o, &s));
    assert_null(s);
    (void)setenv("WEFT_DEVICE", kept ? kept : "", 1);
    weft_session_destroy(session_of(g, o));
    weft_graph_destroy(g);
    free(kept);
}

static void predicted_peak_is_observed(void **state) {
    (void)state;
    for (uint64_t model = 0; model < 30; model++)
        for (int how = 0; how < 5; how++) {
            weft_graph *g = model ? random_model(model)
                                  : tiny_gpt2(WEFT_USE_TRAIN, 2, 0.1, how ? WEFT_F32 : WEFT_BF16);
            weft_session_options o = options_with(WEFT_ADAMW, how == 1 ? 1 : 0);
            o.microbatches = how == 2 ? 3 : 1;
            o.keep_gradients = how == 3;
            o.recompute = how == 4;
            weft_session *s = session_of(g, o);
            assert_int_equal(weft_session_memory_of(s).observed_peak_bytes, 0);
            if (how == 0 || how == 4) {
                feed_rows(s, 0, 1, 0);
                ASSERT_OK(weft_session_step(s, 0.01, NULL));
            } else {
                step_once(s, o.microbatches);
            }
            weft_session_memory m = weft_session_memory_of(s);
            if (m.predicted_peak_bytes != m.observed_peak_bytes)
                fail_msg("model %d, way %d: predicted %lld bytes, observed %lld", (int)model, how,
                         (long long)m.predicted_peak_bytes, (long long)m.observed_peak_bytes);
            if (!model) assert_int_equal(m.optimizer_bytes, 2 * m.parameter_bytes);
            weft_session_destroy(s);
            weft_graph_destroy(g);
        }
}

static void too_little_memory_is_refused(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 64, 0, WEFT_F32);
    weft_session_options o = options_with(WEFT_ADAMW, 0);
    weft_session *s = session_of(g, o);
    int64_t peak = weft_session_memory_of(s).predicted_peak_bytes;
    int64_t transient = weft_session_memory_of(s).transient_bytes;
    int64_t fixed = weft_session_memory_of(s).parameter_bytes * 3;
    int64_t programs = weft_session_memory_of(s).program_bytes;
    assert_true(programs > 0);
    weft_session_destroy(s);
    o.memory_bytes = peak + programs - 1;
    ASSERT_FAILS(WEFT_E_NOMEM, "h.0", weft_session_create(g, &o, &s));
    ASSERT_MESSAGE("fit");
    assert_null(strstr(weft_error_message(), "about 0 %"));
    /* Memory for the model and almost nothing else. */
    o.memory_bytes = peak + programs - transient + transient / 1000;
    ASSERT_FAILS(WEFT_E_NOMEM, "1 %", weft_session_create(g, &o, &s));
    o.memory_bytes = fixed / 2;
    ASSERT_FAILS(WEFT_E_NOMEM, "optimizer", weft_session_create(g, &o, &s));
    o.memory_bytes = peak + programs;
    s = session_of(g, o);
    /* A second program shares the arena, and takes memory of its own. */
    weft_graph *eval = tiny_gpt2(WEFT_USE_EVAL, 1, 0, WEFT_F32);
    int added;
    ASSERT_FAILS(WEFT_E_NOMEM, "device.memory", weft_session_add(s, eval, &added));
    weft_session_destroy(s);
    o.memory_bytes = 0;
    s = session_of(g, o);
    ASSERT_OK(weft_session_add(s, eval, &added));
    assert_int_equal(weft_session_memory_of(s).predicted_peak_bytes, peak);
    assert_true(weft_session_memory_of(s).program_bytes > programs);
    weft_session_destroy(s);
    weft_graph_destroy(eval);
    weft_graph_destroy(g);
}

/* ---- values that are not finite ---- */

/* A chain of cells. The logarithm in cell `bad` has a negative operand when "x" is negative. A
 * state counts the steps. */
static weft_graph *chain_with_logarithm(int bad) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(ROWS, COLUMNS));
    weft_value count = weft_state(g, "count", vector(1), (weft_init){WEFT_INIT_ZEROS, 0});
    for (int c = 0; c < 4; c++) {
        weft_cell_begin(g, "h.%d", c);
        weft_value w =
            weft_param(g, "w", matrix(COLUMNS, COLUMNS), (weft_init){WEFT_INIT_NORMAL, 0.3});
        x = weft_add(g, weft_tanh(g, weft_linear(g, x, w, WEFT_NO_VALUE, false)), x);
        if (c == bad) {
            weft_cell_begin(g, "inner");
            x = weft_cell_end(g, weft_log(g, x));
        }
        x = weft_cell_end(g, x);
    }
    weft_state_update(g, count, weft_shift(g, count, 1));
    weft_loss(g, weft_mean(g, weft_tanh(g, x), 0, NULL, false));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static void the_first_bad_cell_is_named(void **state) {
    (void)state;
    for (int bad = 0; bad < 4; bad++)
        for (int clip = 0; clip < 2; clip++) {
            weft_graph *g = chain_with_logarithm(bad), *h = chain_with_logarithm(bad);
            weft_session_options o = options_with(WEFT_ADAMW, clip ? 1 : 0);
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
    weft_session *s = session_of(g, options_with(WEFT_SGD, 1));
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
    static const weft_optimizer_kind kinds[] = {WEFT_ADAM, WEFT_ADAMW, WEFT_LAMB};
    enum { ELEMENTS = 70001 }; /* several tasks and a remainder */
    float *values = malloc(ELEMENTS * sizeof *values);
    assert_non_null(values);
    for (size_t k = 0; k < 2 * (sizeof kinds / sizeof *kinds); k++) {
        weft_graph *g;
        ASSERT_OK(weft_graph_create(&g));
        weft_value w = weft_param(g, "large", vector(ELEMENTS), (weft_init){WEFT_INIT_CONSTANT, 1});
        weft_value x = weft_input(g, "x", vector(ELEMENTS));
        weft_loss(g, weft_sum(g, weft_mul(g, w, x), 0, NULL, false));
        weft_session *s = session_of(g, options_with(kinds[k / 2], 0));
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
    return session_of(g, options_with(kind, 0));
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
    static const weft_optimizer_kind kinds[] = {WEFT_ADAM, WEFT_ADAMW, WEFT_LAMB};
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
        weft_session_options o = options_with(WEFT_ADAMW, clipped ? 0.3 : 0);
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

/* The factors of a reshape are the dimensions of its result, so a refusal shows both shapes. */
static void a_refused_reshape_shows_its_result(void **state) {
    (void)state;
    weft_graph *g;
    weft_plan *plan;
    weft_session *s;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(4, 6));
    weft_cell_begin(g, "c");
    weft_value y = weft_cell_end(g, weft_exp(g, weft_reshape(g, x, 2, (int64_t[]){8, 3})));
    weft_loss(g, weft_mean(g, y, 0, NULL, false));
    ASSERT_OK(weft_plan_create(2, &plan));
    ASSERT_OK(weft_op_split(plan, "c:reshape", "nonsense=dp"));
    weft_session_options o = options_with(WEFT_SGD, 0);
    o.plan = plan;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    ASSERT_FAILS(WEFT_E_LAYOUT, "f32[4, 6]", weft_session_create(g, &o, &s));
    ASSERT_MESSAGE("f32[8, 3]");
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

/* A split whose pattern matches no op or tensor is refused, and the message has the nearest name.
 */
static void splits_that_match_nothing_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *op, *tensor, *facts;
    } wrong[] = {
        {"aa:linear", NULL, "strategies[0]|'aa:linear'|'a:linear'"},
        {"a:linear", "xx", "tensors[0]|'xx'|'x'"},
        {"a:exp", NULL, "strategies[0]|'a:exp'"},
        {"linear", NULL, "strategies[0]|'linear'"},
        {"b.*:linear", "y*", "strategies[0]|'b.*:linear'|1 more split"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        weft_graph *g;
        weft_plan *plan;
        weft_session *s = NULL;
        weft_session_options o = options_with(WEFT_SGD, 0);
        ASSERT_OK(weft_graph_create(&g));
        weft_value x = weft_input(g, "x", matrix(4, COLUMNS));
        weft_cell_begin(g, "a");
        weft_value w =
            weft_param(g, "w", matrix(COLUMNS, COLUMNS), (weft_init){WEFT_INIT_NORMAL, 0.3});
        x = weft_cell_end(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
        weft_loss(g, weft_mean(g, x, 0, NULL, false));
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_op_split(plan, wrong[i].op, "n0=dp"));
        if (wrong[i].tensor) ASSERT_OK(weft_tensor_split(plan, wrong[i].tensor, "[-, dp]"));
        o.plan = plan;
        ASSERT_FAILS(WEFT_E_NOT_FOUND, wrong[i].facts, weft_session_create(g, &o, &s));
        assert_null(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* ---- graphs beside each other ---- */

static void evaluation_shares_parameters(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 2, 0, WEFT_F32),
               *e = tiny_gpt2(WEFT_USE_EVAL, 2, 0, WEFT_F32);
    weft_graph *large = tiny_gpt2(WEFT_USE_LOGITS, 64, 0, WEFT_F32); /* needs more than training */
    weft_session *s = session_of(g, options_with(WEFT_SGD, 0));
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
    weft_session *s = session_of(g, options_with(WEFT_SGD, 0));
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
    weft_session *s = session_of(g, options_with(WEFT_NO_OPTIMIZER, 0));
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

static void what_cannot_be_in_place_is_refused(void **state) {
    (void)state;
    static const char *const messages[] = {NULL, "state", "call weft_state_update", "read"};
    weft_session_options o = options_with(WEFT_NO_OPTIMIZER, 0);
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

/* ---- misuse ---- */

static void misuse_is_refused(void **state) {
    (void)state;
    weft_graph *g = random_model(1), *none;
    weft_session_options o = options_with(WEFT_SGD, 1);
    weft_session *s;
    weft_tensor_info info;
    float x[ROWS * COLUMNS] = {0};
    o.microbatches = 0;
    ASSERT_FAILS(WEFT_E_ARG, "1", weft_session_create(g, &o, &s));
    o = options_with(WEFT_SGD, -1);
    ASSERT_FAILS(WEFT_E_ARG, "clip", weft_session_create(g, &o, &s));
    o = options_with(WEFT_SGD, 0);
    o.threads = -1;
    ASSERT_FAILS(WEFT_E_ARG, "0", weft_session_create(g, &o, &s));
    o = options_with(WEFT_SGD, 0);
    o.memory_bytes = -1;
    ASSERT_FAILS(WEFT_E_ARG, "memory_bytes", weft_session_create(g, &o, &s));
    o = options_with(WEFT_SGD, 0);
    o.bf16 = (weft_bf16_compute)3;
    ASSERT_FAILS(WEFT_E_ARG, "unknown way 3", weft_session_create(g, &o, &s));
    for (int wrong = 0; wrong < 5; wrong++) {
        o = options_with(WEFT_ADAMW, 0);
        if (wrong == 0) o.optimizer.weight_decay = INFINITY;
        if (wrong == 1) o.optimizer.eps = 1e39;
        if (wrong == 2) o.optimizer.momentum = NAN;
        if (wrong == 3) o.optimizer.beta1 = -0.1;
        if (wrong == 4) o.optimizer.beta2 = 0.99999999;
        ASSERT_FAILS(WEFT_E_ARG, wrong < 3 ? "negative|finite" : "(train.optimizer.betas)|1",
                     weft_session_create(g, &o, &s));
    }
    o = options_with(WEFT_SGD, 0);
    ASSERT_OK(weft_graph_create(&none));
    (void)weft_input(none, "x", vector(3));
    o.threads = 1;
    ASSERT_FAILS(WEFT_E_ARG, "loss", weft_session_create(none, &o, &s));
    weft_graph_destroy(none);
    o.microbatches = 2;
    s = session_of(g, o);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "'y'", weft_session_feed(s, 0, "y", x, sizeof x));
    ASSERT_FAILS(WEFT_E_SHAPE, "96 bytes, not 95", weft_session_feed(s, 0, "x", x, sizeof x - 1));
    ASSERT_FAILS(WEFT_E_ARG, "shared", weft_session_feed(s, 0, "shared", x, 144));
    ASSERT_FAILS(WEFT_E_ARG, "NULL", weft_session_feed(s, 0, NULL, x, sizeof x));
    ASSERT_FAILS(WEFT_E_ARG, "'x'|NULL", weft_session_feed(s, 0, "x", NULL, sizeof x));
    ASSERT_FAILS(WEFT_E_ARG, "shared|NULL", weft_session_read(s, 0, "shared", NULL, 144));
    ASSERT_FAILS(WEFT_E_ARG, "shared|NULL", weft_session_write(s, 0, "shared", NULL, 144));
    ASSERT_FAILS(WEFT_E_ARG, "program 1", weft_session_feed(s, 1, "x", x, sizeof x));
    ASSERT_FAILS(WEFT_E_ARG, "-1", weft_session_forward(s, -1, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "program 0 trains", weft_session_forward(s, 0, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "tensor", weft_session_tensor(s, 0, 10000, &info));
    ASSERT_FAILS(WEFT_E_ARG, "2 microbatches", weft_session_step(s, 0.1, NULL));
    feed_rows(s, 0, 1, 0);
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "1 of 2 microbatches", weft_session_update(s, 0.1, NULL));
    feed_rows(s, 0, 1, 0);
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "accumulated already", weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "nan", weft_session_update(s, NAN, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "1e+39", weft_session_update(s, 1e39, NULL));
    ASSERT_OK(weft_session_update(s, 0.1, NULL));
    weft_session_destroy(s);
    weft_session_destroy(NULL);
    weft_graph_destroy(g);
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
        {"eps", offsetof(weft_optimizer, eps), MOMENTS | RULE(ADAFACTOR)},
        {"momentum", offsetof(weft_optimizer, momentum), RULE(MOMENTUM) | RULE(NESTEROV)},
        {"weight_decay", offsetof(weft_optimizer, weight_decay), ALL},
    };
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        for (int kind = 0; kind < (int)WEFT_OPTIMIZERS; kind++) {
            weft_session_options o = options_with((weft_optimizer_kind)kind, 0);
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

/* ---- a pass reads only fed inputs ---- */

static weft_plan *two_stages(void) {
    weft_plan *p;
    ASSERT_OK(weft_plan_create(2, &p));
    ASSERT_OK(weft_plan_pipeline(p, 2, 2, WEFT_PIPELINE_1F1B, 1));
    return p;
}

static void a_pass_needs_its_inputs(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) { /* a step, microbatches one by one, in a pipeline at once */
        float x[ROWS * COLUMNS] = {1};
        weft_graph *g = random_model(6);
        weft_session_options o = options_with(WEFT_SGD, how ? 1 : 0);
        weft_plan *plan = how == 2 ? two_stages() : NULL;
        o.microbatches = how == 1 ? 2 : 1;
        o.plan = plan;
        weft_session *s = session_of(g, o);
        int eval;
        ASSERT_OK(weft_session_add(s, g, &eval));
        ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
        ASSERT_OK(weft_session_feed(s, eval, "target", x, sizeof x));
        for (int pass = 0; pass < 2; pass++) { /* what was fed before counts, but once */
            const char *missing = "target|0";
            ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
            ASSERT_FAILS(WEFT_E_ARG, missing,
                         how ? weft_session_accumulate(s, NULL) : weft_session_step(s, 0.1, NULL));
            ASSERT_OK(weft_session_feed(s, 0, "target", x, sizeof x));
            ASSERT_OK(how ? weft_session_accumulate(s, NULL) : weft_session_step(s, 0.1, NULL));
        }
        ASSERT_FAILS(WEFT_E_ARG, "'x'|1", weft_session_forward(s, eval, NULL));
        ASSERT_OK(weft_session_feed(s, eval, "x", x, sizeof x));
        ASSERT_FAILS(WEFT_E_ARG, "target|1", /* since the steps */
                     weft_session_forward(s, eval, NULL));
        ASSERT_OK(weft_session_feed(s, eval, "target", x, sizeof x));
        ASSERT_OK(weft_session_forward(s, eval, NULL));
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* A caller that writes an input in place need not report each write. */
static void what_is_written_in_place_counts_as_fed(void **state) {
    (void)state;
    float target[ROWS * COLUMNS] = {0};
    weft_graph *g = random_model(6);
    weft_session *s = session_of(g, options_with(WEFT_SGD, 0));
    weft_session_part x;
    ASSERT_OK(weft_session_local(s, 0, "x", &x));
    for (int step = 0; step < 2; step++) {
        memset(x.data, 0, (size_t)x.bytes);
        ASSERT_FAILS(WEFT_E_ARG, "target|0", weft_session_step(s, 0.1, NULL));
        ASSERT_FAILS(WEFT_E_ARG, "target|NULL",
                     weft_session_feed_local(s, 0, "target", NULL, sizeof target));
        ASSERT_FAILS(WEFT_E_SHAPE, "target|f32[4, 6]|96 bytes|92",
                     weft_session_feed_local(s, 0, "target", target, sizeof target - 4));
        ASSERT_FAILS(WEFT_E_ARG, "target|0", weft_session_step(s, 0.1, NULL));
        ASSERT_OK(weft_session_feed_local(s, 0, "target", target, sizeof target));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* ---- every allocation fails in turn ---- */

static weft_status create_and_step(weft_graph *g, const weft_session_options *o, weft_session **s) {
    float x[ROWS * COLUMNS] = {1};
    weft_status status = weft_session_create(g, o, s);
    if (status == WEFT_OK) status = weft_session_feed(*s, 0, "x", x, sizeof x);
    if (status == WEFT_OK) status = weft_session_feed(*s, 0, "target", x, sizeof x);
    return status == WEFT_OK ? weft_session_step(*s, 0.1, NULL) : status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        weft_graph *g = random_model(6);
        weft_session_options o = options_with(WEFT_ADAMW, how == 1 ? 1 : 0);
        weft_session *s = NULL;
        o.recompute = how == 2;
        o.threads = 1;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, INT64_MAX, false, 0);
        ASSERT_OK(create_and_step(g, &o, &s));
        int64_t calls = wefti_fault_count(WEFTI_FAULT_ALLOC), failed = 0;
        weft_session_destroy(s);
        weft_graph_destroy(g);
        for (int64_t n = 0; n < calls; n++) {
            g = random_model(6);
            s = NULL;
            wefti_fault_arm(WEFTI_FAULT_ALLOC, n, n & 1, 0);
            weft_status status = create_and_step(g, &o, &s);
            wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
            failed += status < 0;
            if (status != WEFT_E_NOMEM)
                fail_msg("allocation %d of %d failed: %s: %s", (int)n, (int)calls,
                         weft_status_text(status), weft_error_message());
            weft_session_destroy(s);
            weft_graph_destroy(g);
        }
        assert_int_equal(failed, calls);
        assert_true(calls > 300);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_bytes_do_not_overflow),
        cmocka_unit_test(an_unknown_device_is_refused),
        cmocka_unit_test(predicted_peak_is_observed),
        cmocka_unit_test(too_little_memory_is_refused),
        cmocka_unit_test(the_first_bad_cell_is_named),
        cmocka_unit_test(a_bad_gradient_stops_a_clipped_update),
        cmocka_unit_test(a_second_moment_does_not_overflow),
        cmocka_unit_test(a_factored_moment_does_not_overflow),
        cmocka_unit_test(an_f64_moment_does_not_overflow),
        cmocka_unit_test(f64_parameters_take_f64_rates),
        cmocka_unit_test(a_refused_reshape_shows_its_result),
        cmocka_unit_test(splits_that_match_nothing_are_refused),
        cmocka_unit_test(evaluation_shares_parameters),
        cmocka_unit_test(graphs_keep_their_own_states),
        cmocka_unit_test(caches_are_written_in_place),
        cmocka_unit_test(what_cannot_be_in_place_is_refused),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(optimizers_hear_their_options),
        cmocka_unit_test(a_pass_needs_its_inputs),
        cmocka_unit_test(what_is_written_in_place_counts_as_fed),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
