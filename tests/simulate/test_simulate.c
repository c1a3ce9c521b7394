/* The simulator: timelines of tiny programs as computed by hand, and properties of real programs:
 * causes add up, no resource is busier than the step is long, nothing slower makes a step faster,
 * and loops that are extrapolated equal loops that are walked. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/fault.h"
#include "base/memory.h"
#include "program/match.h"
#include "session/optimizer.h"
#include "simulate/simulate.h"
#include "weft/model.h"
#include "weft/plan.h"

#define SECOND INT64_C(1000000000000)

/* ---- by hand ---- */

/* Copies of 10 n bytes take n seconds. 10 bytes take 1 second to the other rank of a host, and 10
 * seconds between hosts; latencies are 0.5 and 2 seconds. */
static const char slow_machine[] =
    "{\"version\": 1, \"name\": \"slow\", \"device\": {"
    "\"memory_bytes\": {\"value\": 100, \"source\": \"t\"},"
    "\"memory_bytes_per_second\": {\"value\": 20, \"source\": \"t\"},"
    "\"vector_flops\": {\"value\": 1, \"source\": \"t\"},"
    "\"launch_seconds\": {\"value\": 0, \"source\": \"t\"},"
    "\"peak_flops\": {\"f32\": {\"value\": 1, \"source\": \"t\"}}}, \"levels\": ["
    "{\"name\": \"host\", \"devices\": 2, \"latency_seconds\": {\"value\": 0.5, \"source\": \"t\"},"
    "\"bytes_per_second\": {\"value\": 10, \"source\": \"t\"}},"
    "{\"name\": \"network\", \"latency_seconds\": {\"value\": 2, \"source\": \"t\"},"
    "\"bytes_per_second\": {\"value\": 10, \"source\": \"t\"},"
    "\"uplink_bytes_per_second\": {\"value\": 2, \"source\": \"t\"}}]}";

enum { HAND_RANKS = 4, HAND_STEPS = 16, HAND_TRANSFERS = 4 };

typedef struct hand {
    wefti_machine_model *machine;
    weft_plan *plan;
    weft_graph *graph;
    wefti_route_cache *routes;
    wefti_mesh mesh;
    wefti_program program[HAND_RANKS];
    wefti_step steps[HAND_RANKS][HAND_STEPS];
    const wefti_program *list[HAND_RANKS];
    int32_t count;
} hand;

static void hand_open(hand *h, int32_t count) {
    *h = (hand){.count = count};
    ASSERT_OK(wefti_model_parse("slow", slow_machine, sizeof slow_machine - 1, &h->machine));
    ASSERT_OK(weft_plan_create(count, &h->plan));
    ASSERT_OK(weft_graph_create(&h->graph));
    ASSERT_OK(wefti_route_cache_create(&h->routes));
    h->mesh = wefti_plan_mesh(h->plan, 0);
    for (int32_t r = 0; r < count; r++) {
        wefti_program *p = &h->program[r];
        *p = (wefti_program){.rank = r, .mesh = h->mesh};
        p->steps[WEFTI_SECTION_FIRST] = h->steps[r];
        ASSERT_OK(wefti_partition_create(h->plan, &h->mesh, r, h->graph, h->routes, &p->partition));
        h->list[r] = p;
    }
}

static void hand_close(hand *h) {
    for (int32_t r = 0; r < h->count; r++) wefti_partition_destroy(h->program[r].partition);
    wefti_route_cache_destroy(h->routes);
    weft_graph_destroy(h->graph);
    weft_plan_destroy(h->plan);
    wefti_model_destroy(h->machine);
}

/* A message of 10 x `tens` bytes from rank a to rank b > a; on both. Returns its index on rank
 * b. */
static int32_t hand_send(hand *h, int32_t a, int32_t b, int64_t tens, uint64_t tag) {
    const int64_t bytes = 10 * tens;
    int32_t index = -1;
    for (int32_t me = 0; me < 2; me++) {
        int32_t ranks[2] = {a, b};
        wefti_region have[2] = {{.size = {bytes}}, {.size = {0}}};
        wefti_region want[2] = {{.size = {0}}, {.size = {bytes}}};
        wefti_transfer t = {.kind = WEFTI_TRANSFER_SEND,
                            .dtype = WEFT_U8,
                            .rank = 1,
                            .members = 2,
                            .me = me,
                            .ranks = ranks,
                            .have = have,
                            .want = want,
                            .tag = tag},
                       *owned;
        ASSERT_OK(wefti_transfer_clone(&t, &owned));
        ASSERT_OK(wefti_partition_add(h->program[ranks[me]].partition, owned, &index));
    }
    return index;
}

static void hand_step(hand *h, int32_t rank, wefti_step step) {
    wefti_program *p = &h->program[rank];
    step.name = "step";
    step.to = 0;
    step.parts = 1;
    h->steps[rank][p->step_count[WEFTI_SECTION_FIRST]++] = step;
}
#define COPY(rank, seconds)                                                                        \
    hand_step(&h, (rank), (wefti_step){.kind = WEFTI_STEP_COPY, .bytes = 10 * (seconds)})
#define POST(rank, index)                                                                          \
    hand_step(&h, (rank), (wefti_step){.kind = WEFTI_STEP_POST, .transfer = (index)})
#define WAIT(rank, index)                                                                          \
    hand_step(&h, (rank), (wefti_step){.kind = WEFTI_STEP_WAIT, .transfer = (index)})

static wefti_simulation *hand_run(const hand *h, const wefti_simulate_options *more) {
    wefti_simulate_options o = more ? *more : (wefti_simulate_options){0};
    wefti_simulation *s;
    o.machine = h->machine;
    o.microbatches = 1;
    ASSERT_OK(wefti_simulate(h->list, h->count, &o, &s));
    return s;
}

enum { SEND = WEFTI_CAUSE_TRANSFER + WEFTI_TRANSFER_SEND };

static void a_message_overlaps_with_computing(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 2);
    int32_t a = hand_send(&h, 0, 1, 5, 1); /* 0.5 + 5 s */
    COPY(0, 3);
    POST(0, a);
    COPY(0, 4);
    WAIT(0, a);
    COPY(1, 1);
    POST(1, a);
    WAIT(1, a);
    COPY(1, 2);
    wefti_simulation *s = hand_run(&h, NULL);
    /* The message is under way from 3 to 8.5. */
    assert_int_equal(s->step, 10 * SECOND + SECOND / 2);
    assert_int_equal(s->critical_rank, 1);
    assert_int_equal(s->critical[WEFTI_CAUSE_COPY], 5 * SECOND); /* 3 of rank 0, 2 of rank 1 */
    assert_int_equal(s->critical[SEND], 5 * SECOND + SECOND / 2);
    assert_int_equal(s->critical[WEFTI_CAUSE_IDLE], 0);
    assert_int_equal(s->ranks[1].cause[WEFTI_CAUSE_COPY], 3 * SECOND);
    assert_int_equal(s->ranks[1].cause[SEND], 5 * SECOND + SECOND / 2);
    assert_int_equal(s->ranks[1].cause[WEFTI_CAUSE_IDLE], 2 * SECOND); /* from 1 to 3 */
    assert_int_equal(s->ranks[0].cause[SEND], SECOND + SECOND / 2);    /* from 7 to 8.5 */
    assert_int_equal(s->ranks[0].cause[WEFTI_CAUSE_IDLE], 2 * SECOND); /* until 10.5 */
    assert_int_equal(s->ranks[0].end, 8 * SECOND + SECOND / 2);
    assert_int_equal(s->ranks[0].transfers[WEFTI_TRANSFER_SEND], 5 * SECOND + SECOND / 2);
    wefti_simulation_free(s);
    hand_close(&h);
}

/* Two messages within the host follow each other; one between hosts runs beside them. */
/* The part of a step that no program has comes before it, on all ranks. */
static void a_step_has_a_time_of_its_own(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 2);
    int32_t a = hand_send(&h, 0, 1, 5, 1);
    COPY(0, 3);
    POST(0, a);
    WAIT(0, a);
    POST(1, a);
    WAIT(1, a);
    wefti_simulation *without = hand_run(&h, NULL);
    h.machine->device.step_seconds = (wefti_figure){2, "t"};
    wefti_simulation *with = hand_run(&h, NULL);
    assert_int_equal(with->step, without->step + 2 * SECOND);
    for (int c = 0; c < WEFTI_CAUSES; c++)
        assert_int_equal(with->critical[c],
                         without->critical[c] + (c == WEFTI_CAUSE_OTHER ? 2 * SECOND : 0));
    for (int32_t r = 0; r < with->count; r++) {
        int64_t sum = 0;
        for (int c = 0; c < WEFTI_CAUSES; c++) sum += with->ranks[r].cause[c];
        assert_int_equal(sum, with->step);
    }
    wefti_simulation_free(without);
    wefti_simulation_free(with);
    hand_close(&h);
}

static void streams_belong_to_levels(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 4);
    int32_t a = hand_send(&h, 0, 1, 5, 1), b = hand_send(&h, 0, 1, 3, 2);
    int32_t of_2 = hand_send(&h, 0, 2, 1, 3); /* 2 + 10 s: the uplink serves both of a host */
    const int32_t c0 = b + 1;                 /* its index on rank 0 */
    POST(0, a);
    POST(0, b);
    POST(0, c0);
    WAIT(0, c0);
    WAIT(0, b);
    WAIT(0, a);
    POST(1, a);
    POST(1, b);
    WAIT(1, a); /* 0 to 5.5 */
    WAIT(1, b); /* 5.5 to 9 */
    POST(2, of_2);
    WAIT(2, of_2);
    wefti_simulation *s = hand_run(&h, NULL);
    assert_int_equal(s->ranks[1].end, 9 * SECOND);
    assert_int_equal(s->ranks[2].end, 12 * SECOND);
    assert_int_equal(s->step, 12 * SECOND);
    assert_int_equal(s->critical[SEND], 12 * SECOND);
    assert_int_equal(s->ranks[3].end, 0);
    wefti_simulation_free(s);
    /* The slow link counts for its own pair of ranks only. */
    const weft_slow_link slow = {1, 0, 2};
    s = hand_run(&h, &(wefti_simulate_options){.slow_links = &slow, .slow_link_count = 1});
    assert_int_equal(s->ranks[1].end, 18 * SECOND);
    assert_int_equal(s->ranks[2].end, 12 * SECOND);
    wefti_simulation_free(s);
    hand_close(&h);
}

/* Rank 1 computes three times as long; rank 0 waits for it. */
static void a_slow_rank_delays_the_others(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 2);
    int32_t a = hand_send(&h, 0, 1, 1, 1);
    for (int32_t r = 0; r < 2; r++) {
        COPY(r, 4);
        POST(r, a);
        WAIT(r, a);
    }
    const weft_slow_rank slow = {1, 3};
    wefti_simulation *s =
        hand_run(&h, &(wefti_simulate_options){.slow_ranks = &slow, .slow_rank_count = 1});
    assert_int_equal(s->step, 13 * SECOND + SECOND / 2);
    assert_int_equal(s->ranks[0].cause[WEFTI_CAUSE_IDLE], 8 * SECOND);
    wefti_simulation_free(s);
    /* Rank 1 stops at its first step after 2 s: the copy is over at 4 s. */
    s = hand_run(&h, &(wefti_simulate_options){.failing = 1, .fail_seconds = 2});
    assert_true(s->stopped);
    assert_int_equal(s->waiting, 1);
    assert_int_equal(s->step, 4 * SECOND);
    wefti_simulation_free(s);
    hand_close(&h);
}

/* As above, but each rank moves the message itself, in its wait. */
static void waits_move_what_they_wait_for(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 2);
    h.machine->level[0].moved_in_waits = true;
    int32_t a = hand_send(&h, 0, 1, 5, 1); /* 0.5 + 5 s */
    COPY(0, 3);
    POST(0, a);
    COPY(0, 4);
    WAIT(0, a);
    COPY(1, 1);
    POST(1, a);
    WAIT(1, a);
    COPY(1, 2);
    wefti_simulation *s = hand_run(&h, NULL);
    assert_int_equal(s->ranks[0].end, 12 * SECOND + SECOND / 2); /* waits from 7 */
    assert_int_equal(s->ranks[1].end, 10 * SECOND + SECOND / 2); /* moves from 3, when posted */
    assert_int_equal(s->critical[WEFTI_CAUSE_COPY], 7 * SECOND);
    assert_int_equal(s->critical[SEND], 5 * SECOND + SECOND / 2);
    assert_int_equal(s->ranks[1].cause[SEND], 5 * SECOND + SECOND / 2);
    assert_int_equal(s->ranks[1].cause[WEFTI_CAUSE_IDLE], 4 * SECOND); /* 1 to 3, 10.5 to 12.5 */
    wefti_simulation_free(s);
    hand_close(&h);
}

/* Two ranks of a host have one processor; rank 2 has the other host's for itself. */
static void ranks_share_processors(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 3);
    h.machine->device.devices_at_once = (wefti_figure){1, "t"};
    COPY(0, 4);
    COPY(0, 4);
    COPY(1, 1);
    COPY(1, 1);
    COPY(2, 3);
    wefti_simulation *s = hand_run(&h, NULL);
    assert_int_equal(s->ranks[0].end, 9 * SECOND);  /* 0 to 4, 5 to 9 */
    assert_int_equal(s->ranks[1].end, 10 * SECOND); /* 4 to 5, 9 to 10 */
    assert_int_equal(s->ranks[2].end, 3 * SECOND);
    assert_int_equal(s->critical[WEFTI_CAUSE_COPY], 10 * SECOND);
    wefti_simulation_free(s);
    h.machine->device.devices_at_once.value = 2;
    s = hand_run(&h, NULL);
    assert_int_equal(s->step, 8 * SECOND);
    wefti_simulation_free(s);
    hand_close(&h);
    /* The message wakes both at 1.5; the long copy comes after both short ones. */
    hand_open(&h, 2);
    h.machine->device.devices_at_once = (wefti_figure){1, "t"};
    int32_t a = hand_send(&h, 0, 1, 1, 1); /* 1.5 s */
    POST(0, a);
    WAIT(0, a);
    COPY(0, 1);
    COPY(0, 8);
    POST(1, a);
    WAIT(1, a);
    COPY(1, 1);
    s = hand_run(&h, NULL);
    assert_int_equal(s->ranks[1].end, 2 * SECOND + SECOND / 2);
    assert_int_equal(s->ranks[0].end, 11 * SECOND + SECOND / 2);
    wefti_simulation_free(s);
    /* If waits move the message, both ranks need the processor for it: rank 1 moves its part from
     * 1.5 to 3, before the copies. */
    h.machine->level[0].moved_in_waits = true;
    s = hand_run(&h, NULL);
    assert_int_equal(s->ranks[1].end, 5 * SECOND);
    assert_int_equal(s->ranks[0].end, 13 * SECOND);
    wefti_simulation_free(s);
    hand_close(&h);
}

static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Random times on four devices of a host, without transfers. The step is the longest sum of the
 * ranks of one processor; with equal ranks it is longer by the ranks of a processor. */
static void a_processor_takes_the_sum_of_its_ranks(void **state) {
    (void)state;
    const uint64_t seed = test_seed(3);
    uint64_t numbers = seed;
    for (int n = 0; n < 200; n++) {
        hand h;
        int64_t at[HAND_RANKS] = {0}, most = 0;
        const int32_t processors = 1 + (int32_t)(draw(&numbers) % HAND_RANKS);
        const bool equal = draw(&numbers) % 2;
        const int64_t same = 1 + (int64_t)(draw(&numbers) % 9);
        hand_open(&h, HAND_RANKS);
        h.machine->level[0].devices = HAND_RANKS;
        h.machine->device.devices_at_once = (wefti_figure){processors, "t"};
        for (int32_t r = 0; r < HAND_RANKS; r++)
            for (int k = 0; k < 5; k++) {
                const int64_t seconds = equal ? same : 1 + (int64_t)(draw(&numbers) % 9);
                COPY(r, seconds);
                at[r % processors] += seconds;
            }
        for (int32_t p = 0; p < processors; p++)
            if (at[p] > most) most = at[p];
        wefti_simulation *s = hand_run(&h, NULL);
        if (s->step != most * SECOND)
            fail_msg("seed %llu, machine %d: %lld ps on %d processors, not %lld s",
                     (unsigned long long)seed, n, (long long)s->step, processors, (long long)most);
        if (equal) assert_int_equal(most, 5 * same * ((HAND_RANKS + processors - 1) / processors));
        wefti_simulation_free(s);
        hand_close(&h);
    }
}

static void wrong_questions_are_refused(void **state) {
    (void)state;
    hand h;
    wefti_simulation *s;
    hand_open(&h, 2);
    int32_t a = hand_send(&h, 0, 1, 5, 1);
    POST(0, a);
    WAIT(0, a);
    wefti_simulate_options o = {.machine = h.machine, .microbatches = 1};
    ASSERT_FAILS(WEFT_E_MISMATCH, "1", wefti_simulate(h.list, 2, &o, &s));
    const weft_slow_rank rank = {2, 2}, faster = {0, 0.5};
    const weft_slow_link link = {0, 0, 2};
    o.slow_rank_count = 1;
    o.slow_ranks = &rank;
    ASSERT_FAILS(WEFT_E_ARG, "2", wefti_simulate(h.list, 2, &o, &s));
    o.slow_ranks = &faster;
    ASSERT_FAILS(WEFT_E_ARG, "0.5", wefti_simulate(h.list, 2, &o, &s));
    o.slow_rank_count = 0;
    o.slow_links = &link;
    o.slow_link_count = 1;
    ASSERT_FAILS(WEFT_E_ARG, "0-0", wefti_simulate(h.list, 2, &o, &s));
    o.slow_link_count = 0;
    o.fail_seconds = 1;
    o.failing = 7;
    ASSERT_FAILS(WEFT_E_ARG, "7", wefti_simulate(h.list, 2, &o, &s));
    o.fail_seconds = 0;
    h.machine->hosts = 0;
    h.machine->level_count = 1; /* no link between hosts of 2 devices */
    hand_close(&h);
    hand_open(&h, 4);
    h.machine->level_count = 1;
    o = (wefti_simulate_options){.machine = h.machine, .microbatches = 1};
    ASSERT_FAILS(WEFT_E_ARG, "slow|4|2", wefti_simulate(h.list, 4, &o, &s));
    hand_close(&h);
}

/* ---- real programs ---- */

typedef struct plan_case {
    const char *name;
    int devices, data, tensor, level, stages, chunks, copies, clip;
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
        ASSERT_OK(weft_op_split(plan, splits[i][0], splits[i][1]));
    if (c->level) ASSERT_OK(weft_plan_optimizer(plan, c->level, 0, 0));
    if (c->copies) ASSERT_OK(weft_plan_copies(plan, c->copies));
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
    weft_optimizer adamw = {WEFT_ADAMW, 0.9, 0.95, 1e-8, 0.9, 0.1, false, 0, NULL};
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
            .backends = wefti_builtin_backends(),
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
                        seconds +=
                            times * wefti_node_model_seconds(w.machine, step->routine->code[k].node,
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
                            const double each =
                                wefti_node_model_seconds(w.machine, code->node, &code->cost);
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
        cmocka_unit_test(a_message_overlaps_with_computing),
        cmocka_unit_test(a_step_has_a_time_of_its_own),
        cmocka_unit_test(streams_belong_to_levels),
        cmocka_unit_test(a_slow_rank_delays_the_others),
        cmocka_unit_test(waits_move_what_they_wait_for),
        cmocka_unit_test(ranks_share_processors),
        cmocka_unit_test(a_processor_takes_the_sum_of_its_ranks),
        cmocka_unit_test(wrong_questions_are_refused),
        cmocka_unit_test(causes_add_up),
        cmocka_unit_test(loops_are_extrapolated_exactly),
        cmocka_unit_test(runs_are_equal),
        cmocka_unit_test(slower_is_never_faster),
        cmocka_unit_test(one_device_adds_up_its_kernels),
        cmocka_unit_test(ranks_compute_all_their_steps),
        cmocka_unit_test(spans_cover_the_computing),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests_name("simulate", tests, NULL, NULL);
}
