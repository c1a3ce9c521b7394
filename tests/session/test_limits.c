/* Sessions at their limits: predicted and refused memory, devices that do not exist, and a failure
 * of every allocation. */
#include "session_models.h"

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
            weft_session_options o =
                plain_options(count % 2 ? WEFT_NO_OPTIMIZER : WEFT_MOMENTUM, 0);
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
    weft_session_options o = plain_options(WEFT_ADAMW, 0);
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
            weft_session_options o = plain_options(WEFT_ADAMW, how == 1 ? 1 : 0);
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
    weft_session_options o = plain_options(WEFT_ADAMW, 0);
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

/* Each limit holds to the byte: of device memory alone, and of all else. */
static void each_tier_has_a_limit(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 64, 0, WEFT_F32);
    for (int moved = 0; moved < 2; moved++) {
        weft_session_options o = plain_options(WEFT_ADAMW, 0);
        weft_plan *plan;
        weft_session *s;
        ASSERT_OK(weft_plan_create(1, &plan));
        if (moved) ASSERT_OK(weft_plan_offload(plan, "*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
        o.plan = plan;
        s = session_of(g, o);
        const weft_session_memory m = weft_session_memory_of(s);
        assert_int_equal(m.host_bytes > 0, moved);
        weft_session_destroy(s);
        o.device_bytes = m.predicted_peak_bytes;
        o.held_bytes = 1000;
        o.host_bytes = m.host_bytes + m.program_bytes + o.held_bytes;
        s = session_of(g, o);
        weft_session_destroy(s);
        o.device_bytes--;
        ASSERT_FAILS(WEFT_E_NOMEM, "memory.device|1 bytes|fit", weft_session_create(g, &o, &s));
        o.device_bytes++, o.host_bytes--;
        ASSERT_FAILS(WEFT_E_NOMEM,
                     moved ? "memory.host|1 bytes|memory.offload|disk" : "memory.host|1 bytes",
                     weft_session_create(g, &o, &s));
        o.host_bytes++, o.held_bytes++;
        ASSERT_FAILS(WEFT_E_NOMEM, "memory.host|1 bytes", weft_session_create(g, &o, &s));
        o.host_bytes = o.held_bytes = 0;
        o.memory_bytes = 1ll << 40;
        ASSERT_FAILS(WEFT_E_ARG, "memory_bytes|device_bytes", weft_session_create(g, &o, &s));
        weft_plan_destroy(plan);
    }
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
        weft_session_options o = plain_options(WEFT_ADAMW, how == 1 ? 1 : 0);
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
        cmocka_unit_test(each_tier_has_a_limit),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
