/* Predictions of plans: equal to the simulation of all ranks, exact in memory, complete in their
 * causes; what is slow makes the step longer, and what is asked wrongly is refused. */
#include "models/model_fixture.h"

#include <math.h>
#include <stdio.h>

#include "base/fault.h"
#include "plan/plan.h"
#include "search/predict/predict.h"
#include "session/optimizer.h"
#include "weft/predict.h"

static const char machine_text[] = "hosts=8 gpus=2 gpu=v100 intra=1e9,1e-6 inter=2e8,2e-5";
enum { BATCH = 8 };

typedef struct model {
    weft_graph *graph;
    wefti_optimizer *optimizer;
    wefti_machine_model *machine;
    weft_plan *plan;
} model;

static weft_plan *plan_of(int data, int tensor, int stages, int micro, int level) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(data * tensor * stages, &plan));
    ASSERT_OK(weft_plan_axis(plan, "dp", data));
    ASSERT_OK(weft_plan_axis(plan, "tp", tensor));
    if (tensor > 1) ASSERT_OK(weft_plan_split_op(plan, "h.*.mlp.c_fc", "n0=tp"));
    if (stages > 1) ASSERT_OK(weft_plan_pipeline(plan, stages, micro, WEFT_PIPELINE_1F1B, 1));
    if (level) ASSERT_OK(weft_plan_optimizer(plan, level, 0, 0));
    ASSERT_OK(wefti_plan_refine(plan));
    return plan;
}

static model open_model(weft_plan *plan) {
    const weft_model_config config = tiny(WEFT_FAMILY_GPT2);
    const weft_optimizer adamw = weft_optimizer_defaults(WEFT_ADAMW);
    model m = {.graph = built(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32), .plan = plan};
    ASSERT_OK(wefti_graph_wrap(m.graph));
    ASSERT_OK(wefti_optimizer_create(&adamw, false, m.graph, &m.optimizer));
    ASSERT_OK(wefti_model_find(machine_text, &m.machine));
    return m;
}

static void close_model(model *m) {
    wefti_optimizer_destroy(m->optimizer);
    wefti_model_destroy(m->machine);
    weft_graph_destroy(m->graph);
    weft_plan_destroy(m->plan);
}

static wefti_predict_spec spec_of(const model *m, int micro) {
    return (wefti_predict_spec){.graph = m->graph,
                                .plan = m->plan,
                                .optimizer = wefti_optimizer_plan_of(m->optimizer),
                                .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32},
                                .match = true,
                                .options = {.machine = m->machine, .microbatches = micro}};
}

static void check_sums(const weft_prediction *p, int ranks) {
    double causes = 0, idle = 0;
    int members = 0;
    int64_t most = 0;
    for (int i = 0; i < p->cause_count; i++) {
        assert_true(p->causes[i].seconds > 0 && strcmp(p->causes[i].name, "idle") != 0);
        causes += p->causes[i].seconds;
    }
    assert_true(fabs(causes - p->step_seconds) < 1e-9 * p->step_seconds);
    assert_true(fabs(p->compute_seconds + p->tier_seconds + p->exposed_seconds - causes) <
                1e-9 * causes);
    for (int i = 0; i < p->class_count; i++) {
        const weft_rank_prediction *r = &p->classes[i];
        const double all = r->busy_seconds + r->tier_seconds + r->exposed_seconds + r->idle_seconds;
        assert_true(fabs(all - p->step_seconds) < 1e-9 * all);
        assert_true(r->transfer_seconds >= r->exposed_seconds);
        members += r->count;
        idle += r->idle_seconds * r->count;
        if (r->peak_bytes > most) most = r->peak_bytes;
    }
    assert_int_equal(members, ranks);
    assert_int_equal(p->ranks, ranks);
    assert_int_equal(p->peak_bytes, most);
    assert_true(fabs(p->bubble_seconds - idle / ranks) < 1e-12 + 1e-9 * idle);
}

/* A prediction is the simulation of the programs of all ranks. */
static void equals_the_simulation(void **state) {
    (void)state;
    static const struct {
        int data, tensor, stages, micro, level;
    } cases[] = {
        {1, 1, 1, 1, 0}, {4, 1, 1, 2, 0}, {2, 2, 1, 1, 1}, {2, 2, 2, 4, 2}, {8, 1, 1, 1, 3}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int ranks = cases[c].data * cases[c].tensor * cases[c].stages;
        model m = open_model(plan_of(cases[c].data, cases[c].tensor, cases[c].stages,
                                     cases[c].micro, cases[c].level));
        wefti_predict_spec spec = spec_of(&m, cases[c].micro);
        wefti_program *programs[8] = {NULL};
        wefti_route_cache *routes;
        weft_prediction *p;
        wefti_simulation *s;
        spec.options.tokens = 1000;
        ASSERT_OK(wefti_predict_plan(&spec, &p));
        ASSERT_OK(wefti_route_cache_create(&routes));
        int64_t most = 0;
        for (int32_t r = 0; r < ranks; r++) {
            const wefti_program_spec one = {
                .graph = m.graph,
                .kind = wefti_kind_of(r),
                .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
                .optimizer = spec.optimizer,
                .microbatches = cases[c].micro,
                .plan = wefti_plan_matters(m.plan) ? m.plan : NULL,
                .rank = r,
                .routes = routes};
            ASSERT_OK(wefti_program_build(&one, &programs[r]));
            if (programs[r]->peak_bytes > most) most = programs[r]->peak_bytes;
        }
        ASSERT_OK(wefti_simulate(
            (const wefti_program *const *)programs, ranks,
            &(wefti_simulate_options){.machine = m.machine, .microbatches = cases[c].micro}, &s));
        assert_true(p->step_seconds == (double)s->step * WEFTI_PICOSECOND);
        assert_int_equal(p->critical_rank, s->critical_rank);
        assert_int_equal(p->peak_bytes, most);
        assert_true(p->flops == wefti_model_flops(m.graph, cases[c].micro) && p->flops > 0);
        assert_true(p->mfu > 0 && p->mfu < 1);
        assert_true(fabs(p->tokens_per_second * p->step_seconds - 1000) < 1e-6);
        check_sums(p, ranks);
        assert_int_equal(p->device_bytes, m.machine->device.memory_bytes.value);
        assert_true(p->fits);
        for (int32_t r = 0; r < ranks; r++) wefti_program_destroy(programs[r]);
        wefti_route_cache_destroy(routes);
        wefti_simulation_free(s);
        weft_prediction_free(p);
        close_model(&m);
    }
}

/* A device with one byte less than the peak does not fit it. */
static void memory_is_compared(void **state) {
    (void)state;
    model m = open_model(plan_of(2, 1, 1, 1, 0));
    wefti_predict_spec spec = spec_of(&m, 1);
    weft_prediction *p;
    ASSERT_OK(wefti_predict_plan(&spec, &p));
    const double peak = (double)p->peak_bytes;
    for (int less = 0; less < 2; less++) {
        weft_prediction_free(p);
        m.machine->device.memory_bytes.value = peak - less;
        ASSERT_OK(wefti_predict_plan(&spec, &p));
        assert_int_equal(p->fits, !less);
    }
    weft_prediction_free(p);
    close_model(&m);
}

/* The driver shows whole allocations, the context, and the buffers of each group of ranks. Groups
 * are those of dp, of tp, of messages between stages, and of stages that share the embedding.
 * A checkpoint is as long as the disk takes. */
static void drivers_show_more(void **state) {
    (void)state;
    static const struct {
        int data, tensor, stages, communicators;
    } cases[] = {{1, 1, 1, 0}, {4, 1, 1, 1}, {2, 2, 1, 2}, {1, 1, 2, 2}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        model m = open_model(plan_of(cases[c].data, cases[c].tensor, cases[c].stages, 2, 0));
        wefti_device_model *d = &m.machine->device;
        wefti_predict_spec spec = spec_of(&m, 2);
        weft_prediction *p;
        d->context_bytes = d->communicator_bytes = d->allocation_bytes = (wefti_figure){0};
        d->disk_bytes_per_second = (wefti_tier_rates){0};
        ASSERT_OK(wefti_predict_plan(&spec, &p));
        assert_false(p->driver.known);
        assert_int_equal(p->driver.bytes, 0);
        assert_true(p->checkpoint_seconds == 0 && p->state_bytes > 0);
        const int ranks = cases[c].data * cases[c].tensor * cases[c].stages;
        assert_int_equal(p->hosts, (ranks + 1) / 2);
        weft_prediction_free(p);
        d->context_bytes = (wefti_figure){1e6, "test"};
        d->communicator_bytes = (wefti_figure){1e5, "test"};
        d->disk_bytes_per_second = (wefti_tier_rates){.source = "test", .value = 1000};
        ASSERT_OK(wefti_predict_plan(&spec, &p));
        assert_true(p->driver.known && p->driver.fits);
        assert_int_equal(p->driver.communicators, cases[c].communicators);
        assert_int_equal(p->driver.bytes,
                         p->peak_bytes + 1000000 + 100000 * cases[c].communicators);
        assert_true(fabs(p->checkpoint_seconds - (double)p->state_bytes / 1000) < 1e-9);
        d->memory_bytes.value = (double)p->driver.bytes - 1;
        weft_prediction_free(p);
        d->allocation_bytes = (wefti_figure){1 << 20, "test"};
        ASSERT_OK(wefti_predict_plan(&spec, &p));
        const int64_t arenas =
            p->driver.bytes - p->driver.context_bytes - p->driver.communicator_bytes;
        assert_true(arenas % (1 << 20) == 0 && arenas >= p->peak_bytes);
        assert_true(arenas < p->peak_bytes + (2 << 20) && p->fits && !p->driver.fits);
        weft_prediction_free(p);
        close_model(&m);
    }
}

static bool stops_at_zero(void *left) {
    return (*(int64_t *)left)-- <= 0;
}

/* A prediction asks before each build and again and again while it walks. */
static void it_can_be_stopped_anywhere(void **state) {
    (void)state;
    enum { MANY = 1 << 20, MICROBATCHES = 64 };
    model m = open_model(plan_of(2, 2, 2, MICROBATCHES, 1));
    wefti_predict_spec spec = spec_of(&m, MICROBATCHES);
    weft_prediction *p;
    int64_t left = MANY;
    spec.options.stop = stops_at_zero;
    spec.options.stop_context = &left;
    ASSERT_OK(wefti_predict_plan(&spec, &p));
    const int64_t asked = MANY - left;
    assert_true(asked > p->class_count);
    for (int64_t n = 0; n < asked; n++) {
        weft_prediction *none = NULL;
        left = n;
        assert_int_equal(wefti_predict_plan(&spec, &none), WEFT_E_STOPPED);
        assert_null(none);
        assert_int_equal(left, -1);
    }
    weft_prediction_free(p);
    close_model(&m);
}

static weft_prediction *predict(const model *m, const weft_disturbances *d) {
    wefti_predict_spec spec = spec_of(m, 4);
    weft_prediction *p;
    if (d) spec.options.disturbances = *d;
    ASSERT_OK(wefti_predict_plan(&spec, &p));
    return p;
}

static void disturbances_split_classes(void **state) {
    (void)state;
    model m = open_model(plan_of(4, 1, 2, 4, 0));
    weft_prediction *plain = predict(&m, NULL);
    const weft_slow_rank slow = {5, 3};
    const weft_slow_link link = {0, 1, 8};
    weft_prediction *p =
        predict(&m, &(weft_disturbances){.slow_ranks = &slow, .slow_rank_count = 1});
    assert_true(p->step_seconds > plain->step_seconds && p->class_count > plain->class_count);
    check_sums(p, 8);
    weft_prediction_free(p);
    p = predict(&m, &(weft_disturbances){.slow_links = &link, .slow_link_count = 1});
    assert_true(p->step_seconds > plain->step_seconds);
    weft_prediction_free(p);
    p = predict(&m, &(weft_disturbances){.failing = 2, .fail_seconds = plain->step_seconds / 2});
    assert_true(p->stopped && p->waiting > 0 && p->waiting < 8 && p->mfu == 0);
    weft_prediction_free(p);
    weft_prediction_free(plain);
    close_model(&m);
}

static void graphs_have_a_door_of_their_own(void **state) {
    (void)state;
    const weft_model_config config = tiny(WEFT_FAMILY_GPT2);
    weft_graph *g = built(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32);
    const weft_predict_options o =
        WEFT_STRUCT(weft_predict_options, .machine = machine_text, .tokens = 64);
    weft_plan *plan = plan_of(4, 1, 1, 1, 1);
    weft_session_options s = weft_session_defaults();
    weft_prediction *one, *four;
    s.threads = 1;
    ASSERT_OK(weft_plan_predict(g, NULL, NULL, &o, &one));
    ASSERT_OK(weft_plan_predict(g, plan, &s, &o, &four));
    check_sums(one, 1);
    check_sums(four, 4);
    assert_true(one->exposed_seconds == 0 && four->exposed_seconds > 0);
    assert_true(four->peak_bytes < one->peak_bytes);
    weft_prediction_free(one);
    weft_prediction_free(four);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

static void wrong_questions_are_refused(void **state) {
    (void)state;
    model m = open_model(plan_of(4, 1, 1, 1, 0));
    weft_prediction *p = NULL;
    weft_predict_options o = WEFT_STRUCT(weft_predict_options, .machine = NULL);
    const weft_slow_rank slow = {4, 2};
    ASSERT_FAILS(WEFT_E_ARG, "machine", weft_plan_predict(m.graph, m.plan, NULL, &o, &p));
    o.machine = "hosts=1 gpus=2 gpu=v100";
    ASSERT_FAILS(WEFT_E_ARG, "2", weft_plan_predict(m.graph, m.plan, NULL, &o, &p));
    o.machine = machine_text;
    o.disturbances = (weft_disturbances){.slow_ranks = &slow, .slow_rank_count = 1};
    ASSERT_FAILS(WEFT_E_ARG, "4", weft_plan_predict(m.graph, m.plan, NULL, &o, &p));
    o.disturbances = (weft_disturbances){.failing = 9, .fail_seconds = 1};
    ASSERT_FAILS(WEFT_E_ARG, "9", weft_plan_predict(m.graph, m.plan, NULL, &o, &p));
    o.disturbances = (weft_disturbances){.failing = 0};
    o.trace = "no/such/folder/trace.json";
    assert_true(weft_plan_predict(m.graph, m.plan, NULL, &o, &p) < 0);
    assert_null(p);
    close_model(&m);
}

static void allocations_may_fail(void **state) {
    (void)state;
    model m = open_model(plan_of(2, 1, 2, 4, 0));
    wefti_predict_spec spec = spec_of(&m, 4);
    weft_status status = WEFT_E_NOMEM;
    for (int n = 0; status == WEFT_E_NOMEM; n += 1 + n / 40) {
        weft_prediction *p = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        status = wefti_predict_plan(&spec, &p);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        assert_true(status == WEFT_OK || status == WEFT_E_NOMEM);
        if (status >= 0) weft_prediction_free(p);
    }
    close_model(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_simulation),
        cmocka_unit_test(memory_is_compared),
        cmocka_unit_test(drivers_show_more),
        cmocka_unit_test(it_can_be_stopped_anywhere),
        cmocka_unit_test(disturbances_split_classes),
        cmocka_unit_test(graphs_have_a_door_of_their_own),
        cmocka_unit_test(wrong_questions_are_refused),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests_name("predict", tests, NULL, NULL);
}
