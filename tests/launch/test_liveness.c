/* Which ranks live, by events alone: no sockets, and no time but that of the events. */
#include "support.h"

#include "launch/scheduler/liveness.h"

enum { MANY = 16384 };
#define SECOND ((int64_t)1000000000)
static const int64_t silence_ns = 12 * SECOND, wait_ns = 60 * SECOND, start_ns = 1000 * SECOND;

static wefti_liveness begin(int32_t count, int32_t room) {
    wefti_liveness l = {.silence_ns = silence_ns, .wait_ns = wait_ns};
    assert_int_equal(wefti_liveness_create(&l, room), WEFT_OK);
    wefti_liveness_begin(&l, count, start_ns);
    return l;
}

static void waits(wefti_liveness *l, int32_t rank, const char *in, uint64_t done, int64_t since_ns,
                  int64_t now_ns) {
    wefti_standing at = {
        .step = 3, .done = done, .waiting = true, .since_ns = since_ns, .moved_ns = since_ns};
    snprintf(at.what, sizeof at.what, "%s", in);
    wefti_liveness_beat(l, rank, &at, now_ns);
}
static void computes(wefti_liveness *l, int32_t rank, int64_t since_ns, int64_t now_ns) {
    const wefti_standing at = {.step = 3, .since_ns = since_ns};
    wefti_liveness_beat(l, rank, &at, now_ns);
}

/* As a scheduler does that was not stopped meanwhile. */
static wefti_late look(wefti_liveness *l, int64_t now_ns) {
    l->looked_ns = now_ns;
    return wefti_liveness_check(l, false, now_ns);
}

static void names(const wefti_late *late, int32_t victim, int count, const int32_t *culprits) {
    assert_int_equal(late->kind, WEFTI_LATE_WAITS);
    assert_int_equal(late->rank, victim);
    assert_int_equal(late->culprits, count);
    for (int i = 0; i < count; i++) assert_int_equal(late->named[i], culprits[i]);
}
#define NAMES(late, victim, ...)                                                                   \
    names(&(late), victim, (int)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)),              \
          (const int32_t[]){__VA_ARGS__})

/* --- silence --- */

static void the_first_silent_rank_is_found(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 3);
    computes(&l, 0, start_ns, start_ns + 5 * SECOND);
    assert_int_equal(look(&l, start_ns + silence_ns).kind, WEFTI_LATE_NONE);
    const wefti_late late = look(&l, start_ns + silence_ns + 1);
    assert_int_equal(late.kind, WEFTI_LATE_SILENT);
    assert_int_equal(late.rank, 1);
    wefti_liveness_free(&l);
}

static void ranks_that_have_left_or_died_may_be_silent(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 3);
    assert_false(wefti_liveness_left(&l, 0));
    wefti_life_happens(&l.ranks[1], WEFTI_LIFE_DIES);
    computes(&l, 2, start_ns, start_ns + 20 * SECOND);
    assert_int_equal(look(&l, start_ns + 20 * SECOND).kind, WEFTI_LATE_NONE);
    wefti_liveness_free(&l);
}

/* The machine slept: what the ranks said meanwhile is read first. */
static void a_pause_of_the_scheduler_is_no_silence(void **state) {
    (void)state;
    const int64_t late_ns = start_ns + 10 * silence_ns;
    wefti_liveness l = begin(2, 2);
    assert_int_equal(wefti_liveness_check(&l, false, late_ns).kind, WEFTI_LATE_NONE);
    assert_int_equal(look(&l, late_ns + silence_ns).kind, WEFTI_LATE_NONE);
    assert_int_equal(look(&l, late_ns + silence_ns + 1).kind, WEFTI_LATE_SILENT);
    wefti_liveness_free(&l);
}

/* --- waits --- */

static void a_rank_that_computes_keeps_others_waiting(void **state) {
    (void)state;
    const int64_t limit_ns = start_ns + wait_ns + silence_ns / 3;
    wefti_liveness l = begin(4, 4);
    for (int32_t r = 0; r < 4; r++) waits(&l, r, "sum", 5, start_ns, limit_ns);
    computes(&l, 2, start_ns - SECOND, limit_ns);
    assert_int_equal(look(&l, limit_ns).kind, WEFTI_LATE_NONE);
    const wefti_late late = look(&l, limit_ns + 1);
    NAMES(late, 0, 2);
    assert_int_equal(wefti_liveness_check(&l, true, limit_ns + 1).kind, WEFTI_LATE_NONE);
    wefti_liveness_free(&l);
}

/* Only ranks that compute for long, if there are any. */
static void a_rank_that_just_computes_is_not_to_blame(void **state) {
    (void)state;
    const int64_t now = start_ns + 2 * wait_ns;
    wefti_liveness l = begin(3, 3);
    waits(&l, 0, "sum", 5, start_ns, now);
    computes(&l, 1, now - SECOND, now);
    computes(&l, 2, now - wait_ns, now);
    wefti_late late = look(&l, now);
    NAMES(late, 0, 2);
    computes(&l, 2, now - SECOND, now);
    late = look(&l, now);
    NAMES(late, 0, 1, 2);
    wefti_liveness_free(&l);
}

static void a_rank_that_waits_elsewhere_is_named(void **state) {
    (void)state;
    const int64_t now = start_ns + 2 * wait_ns;
    wefti_liveness l = begin(5, 5);
    for (int32_t r = 0; r < 5; r++)
        waits(&l, r, r == 1 || r == 4 ? "a" : "b", 9, start_ns - r, now);
    const wefti_late late = look(&l, now);
    NAMES(late, 4, 1, 4);
    wefti_liveness_free(&l);
}

/* As many wait in one transfer as in another one: what they have done decides. */
static void a_rank_that_is_behind_is_named(void **state) {
    (void)state;
    const int64_t now = start_ns + 2 * wait_ns;
    wefti_liveness l = begin(4, 4);
    for (int32_t r = 0; r < 4; r++)
        waits(&l, r, r < 2 ? "a" : "b", r == 3 ? 8 : 9, start_ns + r, now);
    wefti_late late = look(&l, now);
    NAMES(late, 0, 3);
    waits(&l, 3, "b", 9, start_ns + 3, now);
    late = look(&l, now); /* nobody is to blame */
    names(&late, 0, 0, NULL);
    wefti_liveness_free(&l);
}

static void more_culprits_than_are_named_are_counted(void **state) {
    (void)state;
    const int64_t now = start_ns + 2 * wait_ns;
    wefti_liveness l = begin(12, 12);
    waits(&l, 11, "sum", 5, start_ns, now);
    for (int32_t r = 0; r < 11; r++) computes(&l, r, start_ns, now);
    const wefti_late late = look(&l, now);
    assert_int_equal(late.culprits, 11);
    for (int i = 0; i < WEFTI_LATE_NAMED; i++) assert_int_equal(late.named[i], i);
    wefti_liveness_free(&l);
}

/* A rank has left. The other one has said that it waits, not for so long that it is deserted. By
 * now the wait would be long enough, but it may have ended. */
static void an_old_word_is_no_desertion(void **state) {
    (void)state;
    for (int deserted = 0; deserted < 2; deserted++) {
        wefti_liveness l = begin(2, 2);
        const int64_t said = start_ns + silence_ns - !deserted;
        assert_false(wefti_liveness_left(&l, 1));
        assert_false(wefti_liveness_parted(&l, 1));
        waits(&l, 0, "sum", 5, start_ns, said);
        const wefti_late late = look(&l, start_ns + silence_ns + silence_ns / 2);
        if (deserted)
            NAMES(late, 0, 1);
        else
            assert_int_equal(late.kind, WEFTI_LATE_NONE);
        wefti_liveness_free(&l);
    }
}

/* What comes to a rank shows that somebody answers it. */
static void a_rank_to_which_data_comes_is_not_deserted(void **state) {
    (void)state;
    const int64_t now = start_ns + 2 * silence_ns;
    wefti_liveness l = begin(3, 3);
    assert_false(wefti_liveness_left(&l, 2));
    waits(&l, 0, "sum", 5, start_ns, now);
    waits(&l, 1, "sum", 5, start_ns, now);
    assert_int_equal(look(&l, now).kind, WEFTI_LATE_WAITS);
    wefti_standing at = l.ranks[1].standing;
    at.moved_ns = now - silence_ns + 1;
    wefti_liveness_beat(&l, 1, &at, now);
    assert_int_equal(look(&l, now).kind, WEFTI_LATE_NONE);
    wefti_liveness_free(&l);
}

/* --- blame --- */

static wefti_last_word word(int32_t rank, weft_status status, int32_t failed) {
    return (wefti_last_word){.rank = rank,
                             .said = {.status = status, .failed = failed, .text = "said"},
                             .of_itself = failed == rank,
                             .runs = true};
}

static void a_rank_that_fails_by_itself_is_heard_at_once(void **state) {
    (void)state;
    const struct {
        weft_status said, is;
    } cases[] = {{WEFT_E_IO, WEFT_E_PEER},
                 {WEFT_E_LOST, WEFT_E_LOST},
                 {WEFT_E_TIMEOUT, WEFT_E_TIMEOUT},
                 {WEFT_E_PEER, WEFT_E_PEER}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wefti_liveness l = begin(2, 2);
        const wefti_last_word w = word(1, cases[i].said, 1);
        assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_COUNTS);
        assert_int_equal(l.blame.reason.status, cases[i].is);
        assert_int_equal(l.blame.reason.failed, 1);
        assert_false(l.blame.of_connection);
        assert_true(l.ranks[1].gave_up);
        assert_false(wefti_liveness_awaits_word(&l));
        wefti_liveness_free(&l);
    }
}

static void the_word_of_a_blamed_rank_is_awaited(void **state) {
    (void)state;
    const int64_t until = start_ns + WEFTI_WORD_SECONDS * SECOND;
    wefti_liveness l = begin(3, 3);
    const wefti_last_word blames = word(0, WEFT_E_PEER, 2), echo = word(1, WEFT_E_PEER, 0),
                          own = word(2, WEFT_E_IO, 2);
    assert_int_equal(wefti_liveness_gave_up(&l, &blames, start_ns), WEFTI_WORD_IGNORED);
    assert_int_equal(wefti_liveness_gave_up(&l, &echo, start_ns + 5), WEFTI_WORD_IGNORED);
    assert_true(l.blame.of_connection);
    assert_int_equal(l.blame.by, 0);
    assert_int_equal(l.blame.reason.status, WEFT_E_LOST);
    assert_false(wefti_liveness_is_word_late(&l, until));
    assert_true(wefti_liveness_is_word_late(&l, until + 1));
    assert_int_equal(wefti_liveness_gave_up(&l, &own, start_ns + 6), WEFTI_WORD_COUNTS);
    assert_int_equal(l.blame.by, 2);
    assert_int_equal(l.blame.reason.status, WEFT_E_PEER);
    wefti_liveness_free(&l);
}

/* A rank that is blamed may blame another one. The time is as it was. */
static void blame_is_passed_on_within_its_time(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 3);
    const wefti_last_word first = word(0, WEFT_E_LOST, 1), next = word(1, WEFT_E_LOST, 2);
    assert_int_equal(wefti_liveness_gave_up(&l, &first, start_ns), WEFTI_WORD_IGNORED);
    const int64_t until = l.blame.until_ns;
    assert_int_equal(wefti_liveness_gave_up(&l, &next, start_ns + 7), WEFTI_WORD_IGNORED);
    assert_int_equal(l.blame.by, 1);
    assert_int_equal(l.blame.reason.failed, 2);
    assert_int_equal(l.blame.until_ns, until);
    wefti_liveness_free(&l);
}

/* Nothing more is heard of a rank that has left or has given up, unless the world can be mended. */
static void a_rank_that_cannot_say_more_is_not_awaited(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        wefti_liveness l = begin(2, 2);
        wefti_last_word w = word(0, WEFT_E_LOST, 1);
        w.mendable = how == 2;
        if (how) assert_false(wefti_liveness_left(&l, 1));
        if (how) assert_false(wefti_liveness_parted(&l, 1));
        l.ranks[1].gave_up = how == 0;
        assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns),
                         how == 2 ? WEFTI_WORD_IGNORED : WEFTI_WORD_COUNTS);
        /* After a rank has parted, the calls were unlike: no connection was lost. */
        assert_int_equal(l.blame.reason.status, how ? WEFT_E_PEER : WEFT_E_LOST);
        assert_true(l.blame.of_connection == (how == 0));
        wefti_liveness_free(&l);
    }
}

static void an_unknown_rank_is_awaited_only_in_a_world_that_mends(void **state) {
    (void)state;
    wefti_liveness l = begin(2, 2);
    wefti_last_word w = word(0, WEFT_E_PEER, WEFT_RANK_NONE);
    assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_COUNTS);
    assert_false(l.blame.of_connection);
    w.mendable = true;
    assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_IGNORED);
    assert_true(l.blame.of_connection && wefti_liveness_awaits_word(&l));
    w.runs = false;
    wefti_liveness_fail(&l);
    assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_COUNTS);
    wefti_liveness_free(&l);
}

static void a_halt_makes_words_void(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 3);
    wefti_last_word w = word(0, WEFT_E_LOST, 1);
    assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_IGNORED);
    wefti_liveness_halt(&l);
    assert_false(wefti_liveness_awaits_word(&l) || l.ranks[0].gave_up);
    w.phase = WEFTI_MENDING_COUNTING; /* a consequence of the death that is being mended */
    assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_IGNORED);
    assert_false(l.ranks[0].gave_up);
    wefti_liveness_free(&l);
}

static void a_newcomer_that_gives_up_is_refused(void **state) {
    (void)state;
    wefti_liveness l = begin(2, 2);
    wefti_last_word w = word(1, WEFT_E_MISMATCH, 1);
    wefti_life_happens(&l.ranks[1], WEFTI_LIFE_AWAITS);
    wefti_liveness_fill(&l, 1, start_ns);
    w.phase = WEFTI_MENDING_GIVING;
    assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_REFUSES);
    assert_false(l.ranks[1].gave_up);
    wefti_liveness_go(&l, start_ns);
    w.phase = WEFTI_MENDING_NOT;
    assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_COUNTS);
    wefti_liveness_free(&l);
}

/* --- leaving --- */

/* The world is left with its last rank, in whatever order they leave. */
static void the_last_of_many_ends_the_world(void **state) {
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        wefti_liveness l = begin(MANY, MANY);
        for (int32_t i = 0; i < MANY; i++) {
            const int32_t rank = turn ? i : MANY - 1 - i;
            assert_false(wefti_liveness_left(&l, rank));
            assert_true(wefti_liveness_parted(&l, rank) == (i == MANY - 1));
            assert_int_equal(l.ranks[rank].state, WEFTI_LIFE_PARTED);
        }
        wefti_liveness_free(&l);
    }
}

/* No word comes any more of the blamed rank, or of anyone. */
static void leaving_ends_the_wait_for_a_word(void **state) {
    (void)state;
    for (int32_t leaves = 0; leaves < 3; leaves++) {
        wefti_liveness l = begin(3, 3);
        const wefti_last_word w = word(0, WEFT_E_LOST, 1);
        assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_IGNORED);
        assert_true(wefti_liveness_left(&l, leaves) == (leaves == 1));
        wefti_liveness_free(&l);
    }
    wefti_liveness l = begin(2, 2);
    wefti_last_word w = word(0, WEFT_E_LOST, WEFT_RANK_NONE);
    w.mendable = true;
    assert_int_equal(wefti_liveness_gave_up(&l, &w, start_ns), WEFTI_WORD_IGNORED);
    assert_false(wefti_liveness_left(&l, 0));
    assert_true(wefti_liveness_left(&l, 1));
    assert_true(wefti_liveness_parted(&l, 1)); /* a rank that has given up stays LEFT */
    assert_int_equal(l.ranks[0].state, WEFTI_LIFE_LEFT);
    wefti_liveness_free(&l);
}

/* --- worlds --- */

static void a_world_shrinks_and_grows(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 4);
    computes(&l, 2, start_ns, start_ns + 2 * SECOND);
    wefti_life_happens(&l.ranks[1], WEFTI_LIFE_DIES);
    wefti_liveness_move(&l, 1, 2);
    wefti_liveness_shrink(&l, 2);
    assert_int_equal(l.ranks[1].state, WEFTI_LIFE_RANK);
    assert_int_equal(l.ranks[1].heard_ns, start_ns + 2 * SECOND);
    assert_int_equal(l.ranks[2].heard_ns, 0);
    wefti_liveness_grow(&l, start_ns + 3 * SECOND);
    assert_int_equal(l.count, 3);
    assert_true(wefti_is_new(&l.ranks[2]));
    waits(&l, 0, "sum", 1, start_ns, start_ns + 4 * SECOND);
    wefti_liveness_go(&l, start_ns + 5 * SECOND);
    assert_false(wefti_is_new(&l.ranks[2]) || l.ranks[0].standing.waiting);
    assert_int_equal(l.ranks[0].standing.since_ns, start_ns + 5 * SECOND);
    wefti_liveness_begin(&l, 0, start_ns + 6 * SECOND);
    assert_int_equal(look(&l, start_ns + 100 * SECOND).kind, WEFTI_LATE_NONE);
    for (int r = 0; r < 4; r++) assert_int_equal(l.ranks[r].heard_ns, 0);
    wefti_liveness_free(&l);
}

/* Every event in every state, from the table in docs/design/launch.md. */
static void events_move_states_as_the_table_says(void **state) {
    (void)state;
    enum { R, N, L, P, ND, D, A };
    static const int to[][7] = {
        [WEFTI_LIFE_DIES] = {D, ND, D, D, ND, D, A},
        [WEFTI_LIFE_LEAVES] = {L, L, L, L, ND, D, A},
        [WEFTI_LIFE_PARTS] = {R, N, P, P, ND, D, A},
        [WEFTI_LIFE_EMPTIES] = {D, D, D, D, D, D, A},
        [WEFTI_LIFE_AWAITS] = {A, A, A, A, A, A, A},
        [WEFTI_LIFE_AWAITS_NONE] = {R, N, L, P, ND, D, D},
        [WEFTI_LIFE_FILLS] = {N, N, N, N, N, N, N},
        [WEFTI_LIFE_GOES_ON] = {R, R, L, P, ND, D, A},
    };
    for (int e = 0; e <= WEFTI_LIFE_GOES_ON; e++)
        for (int s = 0; s <= WEFTI_LIFE_AWAITED; s++) {
            wefti_life life = {.state = (wefti_life_state)s};
            wefti_life_happens(&life, (wefti_life_event)e);
            assert_int_equal(life.state, to[e][s]);
        }
}

/* Heartbeats see some of the steps; a rank that begins again at an earlier step has no pace. */
static void pace_of_steps(void **state) {
    (void)state;
    wefti_liveness l = begin(1, 1);
    const wefti_pace *p = &l.ranks[0].pace;
    wefti_standing at = {0};
    int64_t now = start_ns;
    wefti_liveness_beat(&l, 0, &at, now);
    assert_true(p->step == 0 && p->pace_ns == 0);
    for (int beat = 1; beat < 50; beat++) {
        now += SECOND;
        at.step += beat % 3; /* sometimes none: a second a step in the middle */
        wefti_liveness_beat(&l, 0, &at, now);
        assert_int_equal(p->step, at.step);
        if (beat > 3) assert_in_range(p->pace_ns, SECOND / 2, 2 * SECOND);
    }
    const int64_t pace = p->pace_ns, since = p->since_ns;
    wefti_liveness_beat(&l, 0, &at, now + 100 * SECOND); /* it stands still */
    assert_true(p->pace_ns == pace && p->since_ns == since);
    at.step = 3;
    wefti_liveness_beat(&l, 0, &at, now + 101 * SECOND);
    assert_true(p->step == 3 && p->pace_ns == pace && p->since_ns == now + 101 * SECOND);
    wefti_liveness_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_silent_rank_is_found),
        cmocka_unit_test(ranks_that_have_left_or_died_may_be_silent),
        cmocka_unit_test(a_pause_of_the_scheduler_is_no_silence),
        cmocka_unit_test(a_rank_that_computes_keeps_others_waiting),
        cmocka_unit_test(a_rank_that_just_computes_is_not_to_blame),
        cmocka_unit_test(a_rank_that_waits_elsewhere_is_named),
        cmocka_unit_test(a_rank_that_is_behind_is_named),
        cmocka_unit_test(more_culprits_than_are_named_are_counted),
        cmocka_unit_test(an_old_word_is_no_desertion),
        cmocka_unit_test(a_rank_to_which_data_comes_is_not_deserted),
        cmocka_unit_test(a_rank_that_fails_by_itself_is_heard_at_once),
        cmocka_unit_test(the_word_of_a_blamed_rank_is_awaited),
        cmocka_unit_test(blame_is_passed_on_within_its_time),
        cmocka_unit_test(a_rank_that_cannot_say_more_is_not_awaited),
        cmocka_unit_test(an_unknown_rank_is_awaited_only_in_a_world_that_mends),
        cmocka_unit_test(a_halt_makes_words_void),
        cmocka_unit_test(a_newcomer_that_gives_up_is_refused),
        cmocka_unit_test(the_last_of_many_ends_the_world),
        cmocka_unit_test(leaving_ends_the_wait_for_a_word),
        cmocka_unit_test(a_world_shrinks_and_grows),
        cmocka_unit_test(events_move_states_as_the_table_says),
        cmocka_unit_test(pace_of_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
