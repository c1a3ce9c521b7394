/* The memory of sessions. A running step allocates nothing outside its arena. A pipeline's arenas
 * hold as many microbatches as its schedule says. If a memory limit is too low, the message names
 * the instant of the peak. */
#include "session_models.h"

#include "plan_cases.h"

enum { SEED = 8, BATCH = 8 };

/* ---- steps ---- */

static const plan_case cases[] = {
    {.name = "one device", .devices = 1},
    {.name = "one device, clipped", .devices = 1, .clip = 0.5},
    {.name = "one device, accumulated", .devices = 1, .accumulate = 2},
    {.name = "4 data, clipped", .devices = 4, .clip = 0.5},
    {.name = "4 data, all split", .devices = 4, .level = 3},
    {.name = "2 data 2 tensor, gradients split, accumulated",
     .devices = 4,
     .axis = {{"dp", 2}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .level = 2,
     .accumulate = 2},
    {.name = "2 tensor 2 stages",
     .devices = 4,
     .axis = {{"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .stages = 2,
     .microbatches = 4},
};

/* Allows allocations again. Adds the allocations that were tried to *calls; a session that needs
 * none leaves *calls at 0. */
static void permit(int64_t *calls) {
    *calls += wefti_fault_count(WEFTI_FAULT_ALLOC);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
}

/* The fault points see every allocation. If `calls` is to count them, the first allocation fails.
 * Inputs are fed as training feeds them. */
static weft_status run_step(weft_session *s, const plan_case *c, int step, int64_t *calls) {
    weft_status status = WEFT_OK;
    int count = microbatches_of(c);
    for (int m = 0; m < count && status >= 0; m++) {
        feed_rows(s, 0, (uint64_t)step, m * BATCH / count);
        if (calls) wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, true, 0);
        status = weft_session_accumulate(s, NULL);
        if (status >= 0 && m + 1 == count) status = weft_session_update(s, 1e-3, NULL);
        if (calls) permit(calls);
    }
    return status;
}

static void a_step_allocates_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const plan_case *c = &cases[i];
        weft_session_options o = weft_session_defaults();
        weft_plan *plan;
        ASSERT_OK(make_plan(c, &plan));
        o.plan = plan;
        o.threads = 2;
        o.seed = SEED;
        o.clip = c->clip > 0 ? c->clip : 1e9; /* so that updates are calls of their own */
        o.microbatches = microbatches_of(c);
        weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, BATCH / o.microbatches, 0.2, WEFT_F32);
        weft_session *s = session_of(g, o);
        ASSERT_OK(run_step(s, c, 0, NULL));
        weft_status status = WEFT_OK;
        int64_t calls = 0;
        for (int step = 1; step < 4 && status >= 0; step++) status = run_step(s, c, step, &calls);
        if (status < 0 || calls)
            fail_msg("%s: %d allocations in a step: %s", c->name, (int)calls, weft_error_message());
        weft_session_destroy(s);
        weft_graph_destroy(g);
        weft_plan_destroy(plan);
    }
}

/* ---- schedules ---- */

enum { STAGES = 4, MICRO = 4 };

/* The peaks of the stages of a model of eight equal blocks, two on each of the stages. */
static void peaks_of(weft_schedule kind, int microbatches, int64_t out[STAGES]) {
    weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                           .layers = 2 * STAGES,
                           .hidden = 32,
                           .heads = 4,
                           .ffn = 128,
                           .context = 32,
                           .vocab = 32};
    weft_session_options o = weft_session_defaults();
    weft_graph *g;
    weft_plan *plan;
    ASSERT_OK(weft_model_build(&c, WEFT_USE_TRAIN, MICRO, 0, WEFT_F32, &g));
    ASSERT_OK(weft_plan_create(STAGES, &plan));
    ASSERT_OK(weft_plan_pipeline(plan, STAGES, microbatches, kind, 1));
    for (int l = 0; l < 2 * STAGES; l++) {
        char name[16];
        (void)snprintf(name, sizeof name, "h.%d", l);
        ASSERT_OK(weft_plan_stage(plan, name, l / 2));
    }
    o.plan = plan;
    o.threads = 1;
    o.microbatches = microbatches;
    weft_session *s = session_of(g, o);
    for (int r = 0; r < STAGES; r++) {
        int64_t observed;
        ASSERT_OK(weft_session_device_memory(s, r, &out[r], &observed));
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
}

/* gpipe holds all microbatches. 1f1b holds one microbatch for each stage from here on. The memory
 * of one microbatch is the memory that one more microbatch adds to gpipe. */
static void schedules_hold_as_many_microbatches_as_they_say(void **state) {
    (void)state;
    enum { FEW = 2 * STAGES, MANY = 3 * STAGES };
    int64_t gpipe[2][STAGES], one[2][STAGES];
    peaks_of(WEFT_PIPELINE_GPIPE, FEW, gpipe[0]);
    peaks_of(WEFT_PIPELINE_GPIPE, MANY, gpipe[1]);
    peaks_of(WEFT_PIPELINE_1F1B, FEW, one[0]);
    peaks_of(WEFT_PIPELINE_1F1B, MANY, one[1]);
    for (int r = 0; r < STAGES; r++) {
        double each = (double)(gpipe[1][r] - gpipe[0][r]) / (MANY - FEW);
        double more = (double)(one[1][r] - one[0][r]) / (MANY - FEW);
        double live = FEW - (double)(gpipe[0][r] - one[0][r]) / each;
        print_message("stage %d: %.0f bytes a microbatch, of 1f1b %.0f; %.2f are alive\n", r, each,
                      more, live);
        assert_true(each > 100000);
        assert_true(more < each / 50);                /* its inputs and its loss */
        assert_true(fabs(live - (STAGES - r)) < 0.5); /* and the values that travel between
                                                       * stages */
    }
}

/* ---- limits that are too low ---- */

static void refused_at(const plan_case *c, int rank, const char *const words[3]) {
    weft_session_options o = weft_session_defaults();
    weft_plan *plan;
    weft_session *s;
    ASSERT_OK(make_plan(c, &plan));
    o.plan = plan;
    o.threads = 1;
    o.microbatches = microbatches_of(c);
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, BATCH * 8, 0, WEFT_F32);
    int64_t peak, observed;
    s = session_of(g, o);
    ASSERT_OK(weft_session_device_memory(s, rank, &peak, &observed));
    weft_session_destroy(s);
    o.memory_bytes = peak - 1;
    for (int i = 0; i < 3; i++)
        ASSERT_FAILS(WEFT_E_NOMEM, words[i], weft_session_create(g, &o, &s));
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
}

static void too_much_is_told_with_its_instant(void **state) {
    (void)state;
    static const plan_case one = {.devices = 1}, two = {.devices = 2},
                           parts = {.devices = 1, .accumulate = 2},
                           staged = {.devices = 2, .stages = 2, .microbatches = 4};
    refused_at(&one, 0, (const char *[]){"step", "h.0", "h.1"});
    refused_at(&two, 0, (const char *[]){"device 0", "h.0", "h.1"});
    refused_at(&parts, 0, (const char *[]){"step", "h.0", "h.1"});
    refused_at(&staged, 0, (const char *[]){"device 0", "h.0", ", microbatch "});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(schedules_hold_as_many_microbatches_as_they_say),
        cmocka_unit_test(too_much_is_told_with_its_instant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
