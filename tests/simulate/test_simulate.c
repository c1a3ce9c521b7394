/* The simulator, on real programs: causes add up, no resource is busier than the step is long,
 * nothing slower makes a step faster, and loops that are extrapolated equal loops that are walked.
 */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kinds.h"
#include "base/fault.h"
#include "base/memory.h"
#include "program/match.h"
#include "session/optimizer.h"
#include "simulate/simulate.h"
#include "weft/model.h"
#include "weft/plan.h"

typedef struct plan_case {
    const char *name;
    int devices, data, tensor, level, stages, chunks, copies, clip;
    bool apart; /* a sum for each gradient */
    weft_schedule schedule;
} plan_case;

static const plan_case cases[] = {
    {.name = "1 device", .devices = 1, .data = 1},
    {.name = "2 data", .devices = 2, .data = 2},
    {.name = "3 data, level 1", .devices = 3, .data = 3, .level = 1},
    {.name = "4 data, level 3", .devices = 4, .data = 4, .level = 3},
    {.name = "2 data 2 tensor", .devices = 4, .data = 2, .tensor = 2, .level = 2, .clip = 1},
    {.name = "1f1b", .devices = 4, .data = 1, .stages = 4, .schedule = WEFT_PIPELINE_1F1B},
    {.name = "gpipe", .devices = 2, .data = 1, .stages = 2, .schedule = WEFT_PIPELINE_GPIPE},
    {.name = "interleaved",
     .devices = 2,
     .data = 1,
     .stages = 2,
     .chunks = 2,
     .schedule = WEFT_PIPELINE_INTERLEAVED},
    {.name = "zero bubble",
     .devices = 2,
     .data = 1,
     .stages = 2,
     .chunks = 2,
     .schedule = WEFT_PIPELINE_ZERO_BUBBLE},
    {.name = "2 data 2 tensor 2 stages",
     .devices = 8,
     .data = 2,
     .tensor = 2,
     .level = 2,
     .stages = 2,
     .clip = 1,
     .schedule = WEFT_PIPELINE_1F1B},
    {.name = "2 data 4 stages",
     .devices = 8,
     .data = 2,
     .stages = 4,
     .schedule = WEFT_PIPELINE_1F1B},
    {.name = "2 tensor, 2 copies", .devices = 2, .data = 1, .tensor = 2, .copies = 2},
};
enum { CASES = sizeof cases / sizeof *cases, MOST = 8 };

typedef struct world {
    weft_graph *graph;
    weft_plan *plan;
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    wefti_program *programs[MOST];
    wefti_machine_model *machine;
    int32_t count, microbatches;
} world;

static weft_plan *plan_of(const plan_case *c, int micro) {
    static const char *const splits[][2] = {{"h.*.attn.c_attn", "n1=tp"},
                                            {"h.*.attn", "heads=tp"},
                                            {"h.*.attn.c_proj", "k=tp"},
                                            {"h.*.mlp.c_fc", "n0=tp"},
                                            {"h.*.mlp.c_proj", "k=tp"}};
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(c->devices, &plan));
    if (c->tensor || c->stages) ASSERT_OK(weft_plan_axis(plan, "dp", c->data));
    if (c->tensor) ASSERT_OK(weft_plan_axis(plan, "tp", c->tensor));
    for (size_t i = 0; c->tensor && i < sizeof splits / sizeof *splits; i++)
        ASSERT_OK(weft_plan_split_op(plan, splits[i][0], splits[i][1]));
    if (c->level) ASSERT_OK(weft_plan_optimizer(plan, c->level, 0, 0));
    if (c->copies) ASSERT_OK(weft_plan_copies(plan, c->copies));
    if (c->apart) ASSERT_OK(weft_plan_fusion(plan, "allreduce", WEFT_FUSION_NONE, 0, 0, NULL));
    if (c->stages)
        ASSERT_OK(
            weft_plan_pipeline(plan, c->stages, micro, c->schedule, c->chunks ? c->chunks : 1));
    return plan;
}

static void open_world(const plan_case *c, int micro, const char *machine, world *w) {
    weft_model_config config = {.family = WEFT_FAMILY_GPT2,
                                .layers = 4,
                                .hidden = 32,
                                .heads = 4,
                                .context = 8,
                                .vocab = 50};
    weft_optimizer adamw = {
        .kind = WEFT_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    if (c->apart) config.family = WEFT_FAMILY_LLAMA, config.layers = 8; /* nothing is tied */
    *w = (world){.count = c->devices, .plan = plan_of(c, micro)};
    w->microbatches = w->plan->copies * micro;
    ASSERT_OK(wefti_model_find(machine, &w->machine));
    ASSERT_OK(weft_model_build(&config, WEFT_USE_TRAIN, 8, 0, WEFT_F32, &w->graph));
    ASSERT_OK(wefti_graph_wrap(w->graph));
    ASSERT_OK(wefti_optimizer_create(&adamw, c->clip, w->graph, &w->optimizer));
    ASSERT_OK(wefti_route_cache_create(&w->routes));
    for (int32_t r = 0; r < c->devices; r++) {
        wefti_program_spec spec = {
            .graph = w->graph,
            .kind = wefti_kind_of(r),
            .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
            .optimizer = wefti_optimizer_plan_of(w->optimizer),
            .microbatches = w->microbatches,
            .plan = wefti_plan_matters(w->plan) ? w->plan : NULL,
            .rank = r,
            .routes = w->routes};
        ASSERT_OK(wefti_program_build(&spec, &w->programs[r]));
    }
}

static void close_world(world *w) {
    for (int32_t r = 0; r < w->count; r++) wefti_program_destroy(w->programs[r]);
    wefti_route_cache_destroy(w->routes);
    wefti_optimizer_destroy(w->optimizer);
    weft_graph_destroy(w->graph);
    weft_plan_destroy(w->plan);
    wefti_model_destroy(w->machine);
}

static wefti_simulation *run(const world *w, const wefti_simulate_options *more) {
    wefti_simulate_options o = more ? *more : (wefti_simulate_options){0};
    wefti_simulation *s;
    o.machine = w->machine;
    o.microbatches = w->microbatches;
    ASSERT_OK(wefti_simulate((const wefti_program *const *)w->programs, w->count, &o, &s));
    return s;
}

static int64_t sum(const int64_t cause[WEFTI_CAUSES]) {
    int64_t total = 0;
    for (int c = 0; c < WEFTI_CAUSES; c++) total += cause[c];
    return total;
}

static const char small_machine[] = "hosts=4 gpus=2 gpu=v100 intra=1e9,1e-6 inter=2e8,2e-5";

/* Causes add up to the step, on the critical path and on each rank. A rank computes for no longer
 * than the step, and so do all its transfers of one kind. */
static void causes_add_up(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c++) {
        world w;
        open_world(&cases[c], 6, small_machine, &w);
        wefti_simulation *s = run(&w, NULL);
        assert_true(s->step > 0 && !s->stopped);
        if (sum(s->critical) != s->step) fail_msg("%s: the critical path", cases[c].name);
        assert_int_equal(s->critical[WEFTI_CAUSE_IDLE], 0);
        for (int32_t r = 0; r < w.count; r++) {
            const wefti_rank_time *t = &s->ranks[r];
            if (sum(t->cause) != s->step) fail_msg("%s: rank %d", cases[c].name, r);
            for (int k = 0; k < WEFTI_CAUSES; k++) assert_true(t->cause[k] >= 0);
            for (int k = 0; k < WEFTI_TRANSFER_KINDS; k++)
                assert_true(t->transfers[k] >= t->cause[WEFTI_CAUSE_TRANSFER + k]);
        }
        wefti_simulation_free(s);
        close_world(&w);
    }
}

static void check_equal(const char *name, const wefti_simulation *a, const wefti_simulation *b) {
    if (a->step != b->step)
        fail_msg("%s: %lld and %lld ps", name, (long long)a->step, (long long)b->step);
    assert_int_equal(a->critical_rank, b->critical_rank);
    if (memcmp(a->critical, b->critical, sizeof a->critical)) fail_msg("%s: causes differ", name);
    if (memcmp(a->ranks, b->ranks, (size_t)a->count * sizeof *a->ranks))
        fail_msg("%s: ranks differ", name);
}

/* Extrapolated loops give the same numbers as walked ones, to the picosecond. */
static void loops_are_extrapolated_exactly(void **state) {
    (void)state;
    static const int micros[] = {6, 18, 64, 258};
    int64_t skipped = 0;
    for (int c = 0; c < CASES; c++)
        for (size_t i = 0; i < sizeof micros / sizeof *micros; i++) {
            world w;
            if (cases[c].schedule == WEFT_PIPELINE_GPIPE && micros[i] > 64) continue;
            open_world(&cases[c], micros[i], small_machine, &w);
            const weft_slow_rank slow = {w.count - 1, 1.37};
            wefti_simulate_options o = {.slow_ranks = &slow};
            for (o.slow_rank_count = 0; o.slow_rank_count < 2; o.slow_rank_count++) {
                o.every_iteration = true;
                wefti_simulation *all = run(&w, &o);
                o.every_iteration = false;
                wefti_simulation *some = run(&w, &o);
                check_equal(cases[c].name, all, some);
                assert_int_equal(all->iterations, 0);
                assert_true(some->events <= all->events);
                skipped += some->iterations;
                if (micros[i] == 258 && !some->iterations)
                    fail_msg("%s: no iteration of 258 microbatches was skipped", cases[c].name);
                wefti_simulation_free(all);
                wefti_simulation_free(some);
            }
            close_world(&w);
        }
    assert_true(skipped > 0);
}

static void runs_are_equal(void **state) {
    (void)state;
    world w;
    open_world(&cases[9], 8, small_machine, &w);
    wefti_simulation *a = run(&w, NULL), *b = run(&w, NULL);
    check_equal(cases[9].name, a, b);
    wefti_simulation_free(a);
    wefti_simulation_free(b);
    close_world(&w);
}

/* Programs without alternatives: nothing that is slower makes the step shorter. */
static void slower_is_never_faster(void **state) {
    (void)state;
    for (int c = 1; c < CASES; c++) {
        world w;
        open_world(&cases[c], 6, small_machine, &w);
        wefti_simulation *base = run(&w, NULL), *s;
        for (int32_t r = 0; r < w.count; r++) {
            const weft_slow_rank slow = {r, 1.5};
            const weft_slow_link link = {r, r ? 0 : w.count - 1, 4};
            s = run(&w, &(wefti_simulate_options){.slow_ranks = &slow, .slow_rank_count = 1});
            if (s->step < base->step) fail_msg("%s: slow rank %d", cases[c].name, r);
            wefti_simulation_free(s);
            s = run(&w, &(wefti_simulate_options){.slow_links = &link, .slow_link_count = 1});
            if (s->step < base->step) fail_msg("%s: slow link of rank %d", cases[c].name, r);
            wefti_simulation_free(s);
        }
        for (int32_t l = 0; l < w.machine->level_count; l++) {
            w.machine->level[l].bytes_per_second.value /= 3;
            s = run(&w, NULL);
            if (s->step < base->step) fail_msg("%s: slow level %d", cases[c].name, l);
            wefti_simulation_free(s);
        }
        wefti_simulation_free(base);
        close_world(&w);
    }
}

/* One device: the step is the sum of its kernels, once for each microbatch. */
static void one_device_adds_up_its_kernels(void **state) {
    (void)state;
    for (int micro = 1; micro < 5; micro++) {
        world w;
        double seconds = 0;
        open_world(&cases[0], micro, small_machine, &w);
        const wefti_program *p = w.programs[0];
        for (int s = 0; s < WEFTI_SECTIONS; s++)
            for (int32_t i = 0; i < p->step_count[s]; i++) {
                const wefti_step *step = &p->steps[s][i];
                const double times = s == WEFTI_SECTION_NEXT ? micro - 1 : 1;
                if (step->kind != WEFTI_STEP_CALL) continue;
                for (int32_t k = step->from; k < step->to; k++)
                    if (step->routine->code[k].node)
                        seconds += times * wefti_node_model_seconds(w.machine, step->space,
                                                                    step->routine->code[k].node,
                                                                    &step->routine->code[k].cost);
            }
        wefti_simulation *s = run(&w, NULL);
        const double got = (double)(s->step - s->critical[WEFTI_CAUSE_COPY]) * WEFTI_PICOSECOND;
        assert_true(seconds > 0 && got > seconds * (1 - 1e-6) && got < seconds * (1 + 1e-6));
        wefti_simulation_free(s);
        close_world(&w);
    }
}

/* Every rank computes what its steps say, as often as they run: also if reductions overlap with the
 * last microbatch, which has a section of its own then. */
static void ranks_compute_all_their_steps(void **state) {
    (void)state;
    bool had_last = false;
    for (int c = 0; c < CASES; c++)
        for (int micro = 1; micro < 5; micro++) {
            world w;
            if (cases[c].stages > micro || (cases[c].chunks && 2 * cases[c].stages > micro))
                continue;
            open_world(&cases[c], micro, small_machine, &w);
            wefti_simulation *s = run(&w, NULL);
            for (int32_t r = 0; r < w.count; r++) {
                const wefti_program *p = w.programs[r];
                const bool last = p->step_count[WEFTI_SECTION_LAST] > 0 && w.microbatches > 1;
                const int more = p->all_microbatches ? 0 : w.microbatches - 1 - last;
                int64_t seconds = 0, computing = 0;
                had_last |= last;
                for (int k = 0; k < WEFTI_SECTIONS; k++)
                    for (int32_t i = 0; i < p->step_count[k]; i++) {
                        const wefti_step *step = &p->steps[k][i];
                        const int64_t times = k == WEFTI_SECTION_NEXT   ? more
                                              : k == WEFTI_SECTION_LAST ? last
                                                                        : 1;
                        if (step->kind != WEFTI_STEP_CALL) continue;
                        for (int32_t x = step->from; x < step->to; x++) {
                            const wefti_instruction *code = &step->routine->code[x];
                            if (!code->node || code->transfer >= 0) continue;
                            const double each = wefti_node_model_seconds(
                                w.machine, WEFTI_SPACE_DEVICE, code->node, &code->cost);
                            seconds += llround(each / WEFTI_PICOSECOND) * times *
                                       wefti_program_times(p, (wefti_section)k, i);
                        }
                    }
                for (int k = 0; k < WEFTI_CAUSE_COPY; k++) computing += s->ranks[r].cause[k];
                if (computing != seconds)
                    fail_msg(
                        "%s, %d microbatches, rank %d computes for %lld ps, its steps for %lld",
                        cases[c].name, micro, r, (long long)computing, (long long)seconds);
            }
            wefti_simulation_free(s);
            close_world(&w);
        }
    assert_true(had_last);
}

/* ---- spans ---- */

typedef struct spans {
    int64_t count, last[MOST], computing[MOST];
} spans;

static weft_status count_span(void *context, const wefti_sim_span *span) {
    spans *s = context;
    s->count++;
    assert_true(span->begin <= span->end && span->step);
    if (span->track == WEFTI_SPAN_COMPUTE) {
        assert_true(span->begin >= s->last[span->rank]); /* kernels of a rank do not overlap */
        s->last[span->rank] = span->end;
        s->computing[span->rank] += span->end - span->begin;
    } else if (span->track == WEFTI_SPAN_TRANSFER) {
        assert_non_null(span->transfer);
    }
    return WEFT_OK;
}

static void spans_cover_the_computing(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c++) {
        world w;
        spans seen = {0};
        open_world(&cases[c], 6, small_machine, &w);
        wefti_simulation *s =
            run(&w, &(wefti_simulate_options){.span = count_span, .context = &seen});
        wefti_simulation *plain = run(&w, NULL);
        check_equal(cases[c].name, s, plain);
        for (int32_t r = 0; r < w.count; r++) {
            int64_t computing = 0;
            for (int k = 0; k < WEFTI_CAUSE_IDLE; k++) computing += s->ranks[r].cause[k];
            assert_int_equal(seen.computing[r], computing);
        }
        wefti_simulation_free(plain);
        wefti_simulation_free(s);
        close_world(&w);
    }
}

/* The last microbatch's gradients pass the stages while those of weights are summed. If each
 * stage's message waited for the sums before it, the step would have those of more than two stages.
 */
static void messages_do_not_wait_for_sums(void **state) {
    (void)state;
    static const plan_case c = {
        .devices = 8, .data = 2, .stages = 4, .schedule = WEFT_PIPELINE_1F1B, .apart = true};
    static const char *const machines[] = {"hosts=8 gpus=1 gpu=v100 intra=1e12,0 inter=1e8,1e-6",
                                           "hosts=8 gpus=1 gpu=v100 intra=1e12,0 inter=1e7,1e-6"};
    enum { SUM = WEFTI_CAUSE_TRANSFER + WEFTI_TRANSFER_ALL_REDUCE };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        world w;
        open_world(&c, 4, machines[i], &w);
        wefti_simulation *s = run(&w, NULL);
        int64_t most = 0;
        for (int32_t r = 0; r < s->count; r++)
            if (s->ranks[r].transfers[WEFTI_TRANSFER_ALL_REDUCE] > most)
                most = s->ranks[r].transfers[WEFTI_TRANSFER_ALL_REDUCE];
        assert_true(most > 0);
        if (s->critical[SUM] > 2 * most)
            fail_msg("%s: %lld ps of sums on the critical path, but a rank has only %lld",
                     machines[i], (long long)s->critical[SUM], (long long)most);
        wefti_simulation_free(s);
        close_world(&w);
    }
}

static void allocations_may_fail(void **state) {
    (void)state;
    world w;
    open_world(&cases[5], 20, small_machine, &w);
    weft_status status = WEFT_E_NOMEM;
    for (int n = 0; status == WEFT_E_NOMEM; n++) {
        wefti_simulation *s = NULL;
        wefti_simulate_options o = {.machine = w.machine, .microbatches = w.microbatches};
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        status = wefti_simulate((const wefti_program *const *)w.programs, w.count, &o, &s);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (status >= 0) wefti_simulation_free(s);
        assert_true(status == WEFT_OK || status == WEFT_E_NOMEM);
    }
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causes_add_up),
        cmocka_unit_test(loops_are_extrapolated_exactly),
        cmocka_unit_test(runs_are_equal),
        cmocka_unit_test(slower_is_never_faster),
        cmocka_unit_test(one_device_adds_up_its_kernels),
        cmocka_unit_test(ranks_compute_all_their_steps),
        cmocka_unit_test(spans_cover_the_computing),
        cmocka_unit_test(messages_do_not_wait_for_sums),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests_name("simulate", tests, NULL, NULL);
}
