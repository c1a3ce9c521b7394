/* The simulator: timelines of tiny programs as computed by hand. */
#include "support.h"

#include "simulate/simulate.h"
#include "weft/plan.h"

#define SECOND INT64_C(1000000000000)

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

enum { HAND_RANKS = 4, HAND_STEPS = 16, HAND_TRANSFERS = 4, HAND_MOVES = HAND_TRANSFERS + 3 };

typedef struct hand {
    wefti_machine_model *machine;
    weft_plan *plan;
    weft_graph *graph;
    wefti_route_cache *routes;
    wefti_mesh mesh;
    wefti_program program[HAND_RANKS];
    wefti_step steps[HAND_RANKS][HAND_STEPS];
    wefti_program_move
        moves[HAND_MOVES]; /* of all ranks: transfers, then copies of 0, 10 and 20 bytes */
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
    for (int32_t i = 0; i < HAND_MOVES; i++)
        h->moves[i] = i < HAND_TRANSFERS
                          ? (wefti_program_move){.way = WEFTI_WAY_RANKS, .transfer = i}
                          : (wefti_program_move){.way = WEFTI_WAY_SPACES,
                                                 .transfer = -1,
                                                 .bytes = 10 * (i - HAND_TRANSFERS)};
    for (int32_t r = 0; r < count; r++) {
        wefti_program *p = &h->program[r];
        *p = (wefti_program){.rank = r, .mesh = h->mesh};
        p->steps[WEFTI_SECTION_FIRST] = h->steps[r];
        p->moves = h->moves;
        p->move_count = HAND_MOVES;
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

/* Source and destination: the copy of 20 bytes is a fetch, others are stores. */
static wefti_location *hand_args(int32_t move) {
    static wefti_location args[2][2];
    const int fetch = move == HAND_TRANSFERS + 2;
    args[fetch][fetch] = wefti_location_of(WEFTI_SPACE_DEVICE, WEFTI_TRANSIENT, 0);
    args[fetch][!fetch] = wefti_location_of(WEFTI_SPACE_HOST, WEFTI_TRANSIENT, 0);
    return args[fetch];
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
    hand_step(&h, (rank),                                                                          \
              (wefti_step){.kind = WEFTI_STEP_POST, .move = (index), .args = hand_args(index)})
#define WAIT(rank, index)                                                                          \
    hand_step(&h, (rank), (wefti_step){.kind = WEFTI_STEP_WAIT, .move = (index)})

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

/* Copies between spaces run one after the other, beside kernels. */
static void copies_between_spaces_have_a_lane(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 1);
    h.machine->device.host_bytes_per_second = (wefti_tier_rates){.source = "tested", .value = 5};
    COPY(0, 1);
    POST(0, HAND_TRANSFERS + 1); /* from 1 to 3 */
    POST(0, HAND_TRANSFERS + 2); /* from 3 to 7 */
    COPY(0, 1);
    WAIT(0, HAND_TRANSFERS + 1);
    COPY(0, 2);
    WAIT(0, HAND_TRANSFERS + 2);
    wefti_simulation *s = hand_run(&h, NULL);
    assert_int_equal(s->step, 7 * SECOND);
    assert_int_equal(s->critical[WEFTI_CAUSE_COPY], SECOND);
    assert_int_equal(s->critical[WEFTI_CAUSE_HOST], 6 * SECOND);
    assert_int_equal(s->ranks[0].cause[WEFTI_CAUSE_COPY], 4 * SECOND);
    assert_int_equal(s->ranks[0].cause[WEFTI_CAUSE_HOST], 3 * SECOND); /* until 3, until 7 */
    wefti_simulation_free(s);
    /* by size and way: a store of 10 bytes takes 4 s, and a fetch of 20 bytes 1 s */
    static const double sizes[] = {10, 20}, reads[] = {1, 20}, writes[] = {2.5, 1};
    h.machine->device.host_bytes_per_second =
        (wefti_tier_rates){.source = "tested",
                           .way = {[WEFTI_TIER_READ] = {NULL, sizes, reads, 2},
                                   [WEFTI_TIER_WRITE] = {NULL, sizes, writes, 2}}};
    s = hand_run(&h, NULL);
    assert_int_equal(s->step, 7 * SECOND); /* the store until 5, a kernel until 7 */
    wefti_simulation_free(s);
    /* cores that copy compute nothing meanwhile */
    h.machine->device.host_bytes_per_second.spends_cores = true;
    s = hand_run(&h, NULL);
    assert_int_equal(s->step, 9 * SECOND);
    assert_int_equal(s->ranks[0].cause[WEFTI_CAUSE_COPY], 4 * SECOND);
    assert_int_equal(s->ranks[0].cause[WEFTI_CAUSE_HOST], 5 * SECOND);
    wefti_simulation_free(s);
    h.machine->device.host_bytes_per_second =
        (wefti_tier_rates){0}; /* as fast as within the device */
    s = hand_run(&h, NULL);
    assert_int_equal(s->step, 4 * SECOND);
    wefti_simulation_free(s);
    hand_close(&h);
}

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

/* Two messages within the host follow each other; one between hosts runs beside them. */
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

/* Two hosts of two ranks on the same two processors: ranks 0 and 2 share one, ranks 1 and 3 the
 * other. */
static void hosts_share_processors(void **state) {
    (void)state;
    hand h;
    hand_open(&h, 4);
    COPY(0, 4);
    COPY(1, 2);
    COPY(2, 3);
    COPY(3, 6);
    wefti_simulation *s = hand_run(&h, NULL);
    assert_int_equal(s->step, 6 * SECOND);
    wefti_simulation_free(s);
    h.machine->device.hosts_at_once = (wefti_figure){1, "t"};
    s = hand_run(&h, NULL);
    assert_int_equal(s->ranks[0].end, 4 * SECOND);
    assert_int_equal(s->ranks[2].end, 7 * SECOND);
    assert_int_equal(s->step, 8 * SECOND); /* ranks 1 and 3 */
    wefti_simulation_free(s);
    h.machine->device.devices_at_once = (wefti_figure){1, "t"};
    s = hand_run(&h, NULL);
    assert_int_equal(s->step, 15 * SECOND);
    wefti_simulation_free(s);
    hand_close(&h);
    /* One stage after the other: each of them has its processor for itself. */
    hand_open(&h, 3);
    h.machine->device.hosts_at_once = (wefti_figure){1, "t"};
    int32_t a = hand_send(&h, 0, 2, 1, 1); /* 2 + 10 s */
    COPY(0, 4);
    POST(0, a);
    WAIT(0, a);
    POST(2, a);
    WAIT(2, a);
    COPY(2, 3);
    s = hand_run(&h, NULL);
    assert_int_equal(s->step, (4 + 12 + 3) * SECOND);
    wefti_simulation_free(s);
    hand_close(&h);
}

static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Random times on four devices of a host, or of four hosts, without transfers. The step is the
 * longest sum of the ranks of one processor; with equal ranks it is longer by the ranks of a
 * processor. */
static void a_processor_takes_the_sum_of_its_ranks(void **state) {
    (void)state;
    const uint64_t seed = test_seed(3);
    uint64_t numbers = seed;
    for (int n = 0; n < 200; n++) {
        hand h;
        int64_t at[HAND_RANKS] = {0}, most = 0;
        const int32_t processors = 1 + (int32_t)(draw(&numbers) % HAND_RANKS);
        const bool equal = draw(&numbers) % 2, hosts = draw(&numbers) % 2;
        const int64_t same = 1 + (int64_t)(draw(&numbers) % 9);
        hand_open(&h, HAND_RANKS);
        h.machine->level[0].devices = hosts ? 1 : HAND_RANKS;
        *(hosts ? &h.machine->device.hosts_at_once : &h.machine->device.devices_at_once) =
            (wefti_figure){processors, "t"};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_overlaps_with_computing),
        cmocka_unit_test(copies_between_spaces_have_a_lane),
        cmocka_unit_test(a_step_has_a_time_of_its_own),
        cmocka_unit_test(streams_belong_to_levels),
        cmocka_unit_test(a_slow_rank_delays_the_others),
        cmocka_unit_test(waits_move_what_they_wait_for),
        cmocka_unit_test(ranks_share_processors),
        cmocka_unit_test(hosts_share_processors),
        cmocka_unit_test(a_processor_takes_the_sum_of_its_ranks),
        cmocka_unit_test(wrong_questions_are_refused),
    };
    return cmocka_run_group_tests_name("simulate", tests, NULL, NULL);
}
