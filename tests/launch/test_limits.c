/* The limits of topo/limits.h. The most ranks fit into frames, and one more is refused. The
 * scheduler handles thousands of ranks: hosts and all-gathers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sys/resource.h>

#include "control_cases.h"
#include "launch/scheduler/state.h"
#include "launch/wire/wire.h"

enum { LIMIT_RANKS = 16384, LIMIT_HOSTS = 512 };

static void the_most_ranks_fit_into_frames(void **state) {
    (void)state;
    wefti_world_message world = {.generation = 1,
                                 .rank = WEFTI_RANKS_MAX - 1,
                                 .size = WEFTI_RANKS_MAX,
                                 .first_size = WEFTI_RANKS_MAX,
                                 .numbers = WEFTI_RANKS_MAX,
                                 .whole = 1,
                                 .hosted_by = -1,
                                 .heartbeat_ns = 1};
    wefti_seated *seats = calloc(WEFTI_RANKS_MAX, sizeof *seats), *found;
    unsigned char *body;
    size_t bytes, taken;
    for (int32_t r = 0; r < WEFTI_RANKS_MAX; r++) /* no two of them in one run */
        seats[r] = (wefti_seated){r % 77, WEFTI_RANKS_MAX - 1 - r};
    assert_int_equal(wefti_world_message_encode(&world, seats, &body, &bytes), WEFT_OK);
    unsigned char *whole = malloc(bytes + WEFTI_FRAME_EXTRA);
    memcpy(whole + WEFTI_FRAME_HEADER, body, bytes);
    wefti_wire_stream out = {.from_scheduler = true}, in = {.from_scheduler = true};
    wefti_frame_seal(&out, WEFTI_FRAME_WORLD, bytes, whole);
    wefti_frame frame;
    assert_int_equal(wefti_frame_parse(&in, whole, bytes + WEFTI_FRAME_EXTRA, &frame, &taken),
                     WEFT_OK);
    assert_int_equal(wefti_world_message_decode(&frame, &world, &found), WEFT_OK);
    assert_int_equal(world.size, WEFTI_RANKS_MAX);
    assert_memory_equal(found, seats, WEFTI_RANKS_MAX * sizeof *seats);
    wefti_free(found);
    wefti_free(body);
    free(whole);
    free(seats);
    /* Where each rank's memory is, with the processors on which it may run, and its addresses. */
    assert_true(WEFTI_ENTRIES_MAX / WEFTI_RANKS_MAX >= 4096);
}

static void refuses_more(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(WEFTI_RANKS_MAX + 1);
    wefti_scheduler *s;
    assert_int_equal(wefti_scheduler_start(&o, &s), WEFT_E_ARG);
}

static void refuses_more_than_it_may_open(void **state) {
    (void)state;
    struct rlimit before, few;
    wefti_scheduler_options o = test_scheduler(LIMIT_RANKS);
    wefti_scheduler *s;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 512;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(wefti_scheduler_start(&o, &s), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "ulimit -n"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* A scheduler without connections; all ranks have come. */
static wefti_scheduler *full(wefti_client *client) {
    wefti_scheduler *s = wefti_calloc(1, sizeof *s);
    assert_non_null(s);
    s->options.size = s->taken = LIMIT_RANKS;
    s->slots = wefti_calloc(LIMIT_RANKS, sizeof *s->slots);
    assert_non_null(s->slots);
    for (int32_t i = 0; i < LIMIT_RANKS; i++) {
        s->slots[i].client = client;
        s->slots[i].join.number = LIMIT_RANKS - 1 - i;
        snprintf(s->slots[i].join.host, sizeof s->slots[i].join.host, "host %d", i % LIMIT_HOSTS);
    }
    return s;
}

static void release_full(wefti_scheduler *s) {
    for (int32_t i = 0; i < LIMIT_RANKS; i++) wefti_slot_clear(&s->slots[i]);
    wefti_shared_body_release(s->answer);
    wefti_free(s->slots);
    wefti_free(s);
}

static void ranks_many(void **state) {
    (void)state;
    wefti_client client = {.state = WEFTI_CLIENT_GONE};
    wefti_scheduler *s = full(&client);
    assert_int_equal(wefti_scheduler_rank(s), WEFT_OK);
    for (int32_t r = 0; r < LIMIT_RANKS; r++) {
        char host[32];
        snprintf(host, sizeof host, "host %d", (LIMIT_RANKS - 1 - r) % LIMIT_HOSTS);
        assert_int_equal(s->slots[r].join.number, r);
        assert_string_equal(s->slots[r].join.host, host);
        assert_int_equal(s->slots[r].host, r % LIMIT_HOSTS);
    }
    release_full(s);
}

/* Members come and go while the world forms: who has a rank or a node id is found like by a search
 * of all seats. */
static void finds_seats(void **state) {
    enum { SEATS = 300, TURNS = 4000 };
    (void)state;
    static wefti_client clients[SEATS];
    uint32_t dice = 1;
    wefti_scheduler *s = wefti_calloc(1, sizeof *s);
    assert_non_null(s);
    s->options.size = SEATS;
    s->slots = wefti_calloc(SEATS, sizeof *s->slots);
    assert_non_null(s->slots);
    assert_int_equal(wefti_seats_create(s), WEFT_OK);
    for (int turn = 0; turn < TURNS; turn++) {
        dice = dice * 1664525 + 1013904223;
        int32_t number = (int32_t)(dice >> 8) % SEATS;
        wefti_join join = {.number = number % 3 ? number : -1};
        snprintf(join.host, sizeof join.host, "host %d", number % 7);
        if (number % 2) snprintf(join.node, sizeof join.node, "node %d", number / 7);
        int32_t seat = -1, by_node = -1;
        for (int32_t i = 0; i < s->taken; i++) {
            const wefti_join *other = &s->slots[i].join;
            if (join.number >= 0 && other->number == join.number) seat = i;
            if (*join.node && !strcmp(other->node, join.node) && !strcmp(other->host, join.host))
                by_node = i;
        }
        assert_int_equal(wefti_seats_of_number(s, join.number), seat);
        assert_int_equal(wefti_seats_of_node(s, &join), by_node);
        if (seat < 0) seat = by_node;
        if (seat >= 0) {
            wefti_scheduler_release_slot(s, seat);
        } else if (s->taken < SEATS) {
            s->slots[s->taken] = (wefti_member_slot){.client = &clients[number], .join = join};
            wefti_seats_add(s, s->taken++);
        }
    }
    assert_true(s->taken > 0);
    wefti_seats_clear(s);
    wefti_seats_free(s);
    wefti_free(s->slots);
    wefti_free(s);
}

/* Entries in falling and rising order of ranks: the answer comes with the last, and has all. */
static void gathers_many(void **state) {
    (void)state;
    wefti_client client = {.state = WEFTI_CLIENT_GONE};
    wefti_scheduler *s = full(&client);
    s->state = WEFTI_SCHEDULER_RUNNING;
    for (uint64_t number = 1; number <= 2; number++)
        for (int32_t i = 0; i < LIMIT_RANKS; i++) {
            int32_t rank = number == 1 ? LIMIT_RANKS - 1 - i : i;
            wefti_entry entry = {
                .number = number, .data = (const unsigned char *)&rank, .bytes = sizeof rank};
            client.slot = rank;
            assert_int_equal(s->answered, number - 1);
            wefti_scheduler_entry(s, &client, &entry);
        }
    assert_int_equal(s->answered, 2);
    assert_int_equal(s->allgather_since_ns, 0);
    const unsigned char *all = wefti_shared_body_data(s->answer);
    for (int32_t r = 0; r < LIMIT_RANKS; r++) {
        int32_t found;
        memcpy(&found, all + WEFTI_ENTRY_HEAD + (size_t)r * sizeof found, sizeof found);
        assert_int_equal(found, r);
    }
    release_full(s);
}

/* A failure stops the clock of the table; a beat may come after that. */
static void times_are_not_negative(void **state) {
    (void)state;
    static const wefti_standing standings[] = {{.since_ns = 51000000},
                                               {.since_ns = 51000000, .what = "x"},
                                               {.since_ns = 51000000, .waiting = true}};
    for (size_t i = 0; i < sizeof standings / sizeof *standings; i++) {
        wefti_life life = {.standing = standings[i]};
        wefti_text text = {0};
        wefti_life_describe(&life, 1000000, &text);
        char *words = wefti_text_take(&text);
        assert_non_null(words);
        assert_null(strchr(words, '-'));
        wefti_free(words);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_ranks_fit_into_frames),
        cmocka_unit_test(refuses_more),
        cmocka_unit_test(refuses_more_than_it_may_open),
        cmocka_unit_test(ranks_many),
        cmocka_unit_test(finds_seats),
        cmocka_unit_test(gathers_many),
        cmocka_unit_test(times_are_not_negative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
