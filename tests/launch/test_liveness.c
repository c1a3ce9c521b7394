/* Which ranks live, by events alone: no sockets, and no time but that of the events. */
#include "support.h"

#include "launch/scheduler/liveness.h"

enum { MANY = 16384 };
#define SECOND ((int64_t)1000000000)
static const int64_t silence_ns = 12 * SECOND, wait_ns = 60 * SECOND, start_ns = 1000 * SECOND;

static wefti_liveness begin(int32_t count, int32_t room) {
    wefti_liveness l = {.silence_ns = silence_ns, .wait_ns = wait_ns};
    l.ranks = wefti_calloc((size_t)room, sizeof *l.ranks);
    assert_non_null(l.ranks);
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
    wefti_free(l.ranks);
}

static void ranks_that_have_left_or_died_may_be_silent(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 3);
    assert_false(wefti_liveness_left(&l, 0));
    wefti_life_happens(&l.ranks[1], WEFTI_LIFE_DIES);
    computes(&l, 2, start_ns, start_ns + 20 * SECOND);
    assert_int_equal(look(&l, start_ns + 20 * SECOND).kind, WEFTI_LATE_NONE);
    wefti_free(l.ranks);
}

/* The machine slept: what the ranks said meanwhile is read first. */
static void a_pause_of_the_scheduler_is_no_silence(void **state) {
    (void)state;
    const int64_t late_ns = start_ns + 10 * silence_ns;
    wefti_liveness l = begin(2, 2);
    assert_int_equal(wefti_liveness_check(&l, false, late_ns).kind, WEFTI_LATE_NONE);
    assert_int_equal(look(&l, late_ns + silence_ns).kind, WEFTI_LATE_NONE);
    assert_int_equal(look(&l, late_ns + silence_ns + 1).kind, WEFTI_LATE_SILENT);
    wefti_free(l.ranks);
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
    wefti_free(l.ranks);
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
    wefti_free(l.ranks);
}

static void a_rank_that_waits_elsewhere_is_named(void **state) {
    (void)state;
    const int64_t now = start_ns + 2 * wait_ns;
    wefti_liveness l = begin(5, 5);
    for (int32_t r = 0; r < 5; r++)
        waits(&l, r, r == 1 || r == 4 ? "a" : "b", 9, start_ns - r, now);
    const wefti_late late = look(&l, now);
    NAMES(late, 4, 1, 4);
    wefti_free(l.ranks);
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
    wefti_free(l.ranks);
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
    wefti_free(l.ranks);
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
        wefti_free(l.ranks);
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
    wefti_free(l.ranks);
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
        assert_true(wefti_liveness_gave_up(&l, &w, start_ns));
        assert_int_equal(l.blame.reason.status, cases[i].is);
        assert_int_equal(l.blame.reason.failed, 1);
        assert_int_equal(l.blame.cut_off, -1);
        assert_true(l.ranks[1].gave_up);
        assert_false(wefti_liveness_awaits_word(&l));
        wefti_free(l.ranks);
    }
}

static void the_word_of_a_blamed_rank_is_awaited(void **state) {
    (void)state;
    const int64_t until = start_ns + WEFTI_WORD_SECONDS * SECOND;
    wefti_liveness l = begin(3, 3);
    const wefti_last_word blames = word(0, WEFT_E_PEER, 2), echo = word(1, WEFT_E_PEER, 0),
                          own = word(2, WEFT_E_IO, 2);
    assert_false(wefti_liveness_gave_up(&l, &blames, start_ns));
    assert_false(wefti_liveness_gave_up(&l, &echo, start_ns + 5));
    assert_int_equal(l.blame.cut_off, 0);
    assert_int_equal(l.blame.reason.status, WEFT_E_LOST);
    assert_false(wefti_liveness_is_word_late(&l, until));
    assert_true(wefti_liveness_is_word_late(&l, until + 1));
    assert_true(wefti_liveness_gave_up(&l, &own, start_ns + 6));
    assert_int_equal(l.blame.cut_off, -1);
    assert_int_equal(l.blame.reason.status, WEFT_E_PEER);
    wefti_free(l.ranks);
}

/* A rank that is blamed may blame another one. The time is as it was. */
static void blame_is_passed_on_within_its_time(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 3);
    const wefti_last_word first = word(0, WEFT_E_LOST, 1), next = word(1, WEFT_E_LOST, 2);
    assert_false(wefti_liveness_gave_up(&l, &first, start_ns));
    const int64_t until = l.blame.until_ns;
    assert_false(wefti_liveness_gave_up(&l, &next, start_ns + 7));
    assert_int_equal(l.blame.cut_off, 1);
    assert_int_equal(l.blame.reason.failed, 2);
    assert_int_equal(l.blame.until_ns, until);
    wefti_free(l.ranks);
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
        assert_true(wefti_liveness_gave_up(&l, &w, start_ns) == (how != 2));
        /* After a rank has parted, the calls were unlike: no connection was lost. */
        assert_int_equal(l.blame.reason.status, how ? WEFT_E_PEER : WEFT_E_LOST);
        assert_int_equal(l.blame.cut_off, how ? -1 : 0);
        wefti_free(l.ranks);
    }
}

static void an_unknown_rank_is_awaited_only_in_a_world_that_mends(void **state) {
    (void)state;
    wefti_liveness l = begin(2, 2);
    wefti_last_word w = word(0, WEFT_E_PEER, WEFT_RANK_NONE);
    assert_true(wefti_liveness_gave_up(&l, &w, start_ns));
    assert_int_equal(l.blame.cut_off, -1);
    w.mendable = true;
    assert_false(wefti_liveness_gave_up(&l, &w, start_ns));
    assert_true(l.blame.cut_off == 0 && wefti_liveness_awaits_word(&l));
    w.runs = false;
    wefti_liveness_halt(&l);
    assert_true(wefti_liveness_gave_up(&l, &w, start_ns));
    wefti_free(l.ranks);
}

static void a_halt_makes_words_void(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 3);
    wefti_last_word w = word(0, WEFT_E_LOST, 1);
    assert_false(wefti_liveness_gave_up(&l, &w, start_ns));
    wefti_liveness_halt(&l);
    assert_false(wefti_liveness_awaits_word(&l) || l.ranks[0].gave_up);
    w.halted = true; /* a consequence of the death that is being mended */
    assert_false(wefti_liveness_gave_up(&l, &w, start_ns));
    assert_false(l.ranks[0].gave_up);
    wefti_free(l.ranks);
}

/* While a world forms, nobody has parted from it: a rank that blames another one was cut off. */
static void blame_amid_forming_is_a_lost_connection(void **state) {
    (void)state;
    wefti_liveness l = begin(0, 3);
    wefti_last_word w = word(1, WEFT_E_PEER, 2);
    w.runs = false;
    assert_true(wefti_liveness_gave_up(&l, &w, start_ns));
    assert_int_equal(l.blame.cut_off, 1);
    assert_int_equal(l.blame.reason.status, WEFT_E_LOST);
    wefti_free(l.ranks);
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
        wefti_free(l.ranks);
    }
}

/* No word comes any more of the blamed rank, or of anyone. */
static void leaving_ends_the_wait_for_a_word(void **state) {
    (void)state;
    for (int32_t leaves = 0; leaves < 3; leaves++) {
        wefti_liveness l = begin(3, 3);
        const wefti_last_word w = word(0, WEFT_E_LOST, 1);
        assert_false(wefti_liveness_gave_up(&l, &w, start_ns));
        assert_true(wefti_liveness_left(&l, leaves) == (leaves == 1));
        wefti_free(l.ranks);
    }
    wefti_liveness l = begin(2, 2);
    wefti_last_word w = word(0, WEFT_E_LOST, WEFT_RANK_NONE);
    w.mendable = true;
    assert_false(wefti_liveness_gave_up(&l, &w, start_ns));
    assert_false(wefti_liveness_left(&l, 0));
    assert_true(wefti_liveness_left(&l, 1));
    assert_true(wefti_liveness_parted(&l, 1)); /* a rank that has given up stays LEFT */
    assert_int_equal(l.ranks[0].state, WEFTI_LIFE_LEFT);
    wefti_free(l.ranks);
}

/* --- worlds --- */

static void a_world_shrinks_and_grows(void **state) {
    (void)state;
    wefti_liveness l = begin(3, 4);
    computes(&l, 2, start_ns, start_ns + 2 * SECOND);
    wefti_life_happens(&l.ranks[1], WEFTI_LIFE_DIES);
    l.ranks[1] = l.ranks[2];
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
    wefti_free(l.ranks);
}

enum { STATES = WEFTI_LIFE_AWAITED + 1, EVENTS = WEFTI_LIFE_GOES_ON + 1 };
static const char *const state_names[STATES] = {"RANK",          "NEWCOMER", "LEFT",   "PARTED",
                                                "NEWCOMER_DIED", "DEAD",     "AWAITED"};
static const char *const event_names[EVENTS] = {"DIES",   "LEAVES",      "PARTS", "EMPTIES",
                                                "AWAITS", "AWAITS_NONE", "FILLS", "GOES_ON"};

static int find_name(const char *const *names, int count, const char *name) {
    for (int i = 0; name && i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    fail_msg("the table of docs/design/launch.md has '%s'", name ? name : "");
    return -1;
}

/* "| STATE, STATE | reason: EVENT | STATE |". The first cell may also be "any", "all but STATE" or
 * "STATE: meaning". */
static void read_row(char *row, int to[EVENTS][STATES]) {
    bool named[STATES] = {false}, others = false;
    char *end, *cells[4]; /* the first one is the indent */
    for (int i = 0; i < 4; i++) {
        cells[i] = strtok_r(i ? NULL : row, "|", &end);
        assert_non_null(cells[i]);
    }
    char *states = cells[1], *colon = strrchr(cells[2], ':');
    const int e = find_name(event_names, EVENTS, strtok_r(colon ? colon + 1 : cells[2], " ", &end));
    const int s = find_name(state_names, STATES, strtok_r(cells[3], " ", &end));
    states[strcspn(states, ":")] = '\0';
    for (char *word = strtok_r(states, " ,", &end); word; word = strtok_r(NULL, " ,", &end)) {
        if (strcmp(word, "any") == 0 || strcmp(word, "all") == 0)
            others = true;
        else if (strcmp(word, "but") != 0)
            named[find_name(state_names, STATES, word)] = true;
    }
    for (int from = 0; from < STATES; from++)
        if (named[from] != others) to[e][from] = s;
}

/* Every event in every state leads where the table of docs/design/launch.md says. */
static void events_move_states_as_the_table_says(void **state) {
    (void)state;
    char line[1024];
    int to[EVENTS][STATES], rows = 0;
    FILE *f = fopen("docs/design/launch.md", "r");
    assert_non_null(f);
    for (int i = 0; i < EVENTS * STATES; i++) to[i / STATES][i % STATES] = i % STATES;
    while (fgets(line, sizeof line, f) && !strstr(line, "scheduler/liveness.h")) {
    }
    while (fgets(line, sizeof line, f) && line[strspn(line, " ")] != '|') {
    }
    while (fgets(line, sizeof line, f) && line[strspn(line, " ")] == '|') {
        if (strstr(line, "---")) continue;
        read_row(line, to);
        rows++;
    }
    fclose(f);
    assert_true(rows >= EVENTS);
    for (int e = 0; e < EVENTS; e++)
        for (int s = 0; s < STATES; s++) {
            wefti_life life = {.state = (wefti_life_state)s};
            wefti_life_happens(&life, (wefti_life_event)e);
            if (life.state != (wefti_life_state)to[e][s])
                fail_msg("%s in %s: %s, and %s in the table", event_names[e], state_names[s],
                         state_names[life.state], state_names[to[e][s]]);
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
    wefti_free(l.ranks);
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
        cmocka_unit_test(blame_amid_forming_is_a_lost_connection),
        cmocka_unit_test(the_last_of_many_ends_the_world),
        cmocka_unit_test(leaving_ends_the_wait_for_a_word),
        cmocka_unit_test(a_world_shrinks_and_grows),
        cmocka_unit_test(events_move_states_as_the_table_says),
        cmocka_unit_test(pace_of_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
