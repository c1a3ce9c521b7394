/* Two schedulers for one job: the one that stands by, and the rule by which at most one of them has
 * the job. (weft-test: threads)
 * weft-test: computes
 */
#include "support.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lanes.h"

enum { RANKS = 4 };

/* --- a scheduler that can be killed --- */

typedef struct first_scheduler {
    pid_t process;
    int port;
    char address[64];
} first_scheduler;

/* Forked while this process has no other threads. */
static first_scheduler fork_scheduler(int32_t size, int restarts) {
    first_scheduler first = {0};
    int line[2];
    assert_int_equal(pipe(line), 0);
    fflush(NULL);
    first.process = fork();
    assert_true(first.process >= 0);
    if (first.process == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        wefti_scheduler_options o = test_scheduler(size);
        wefti_scheduler *s;
        o.has_other = true;
        o.restarts = restarts;
        int port = wefti_scheduler_start(&o, &s) < 0 ? 0 : wefti_scheduler_port(s);
        if (write(line[1], &port, sizeof port) != sizeof port || port == 0) _exit(1);
        for (;;) (void)pause();
    }
    assert_int_equal(read(line[0], &first.port, sizeof first.port), sizeof first.port);
    snprintf(first.address, sizeof first.address, "127.0.0.1:%d", first.port);
    close(line[0]);
    close(line[1]);
    return first;
}

static void kill_scheduler(const first_scheduler *first) {
    kill(first->process, SIGKILL);
    waitpid(first->process, NULL, 0);
}

static wefti_scheduler *stand_by(int32_t size, double heartbeat_seconds) {
    wefti_scheduler_options o = test_scheduler(size);
    o.has_other = o.stands_by = o.repeats = true;
    o.heartbeat_seconds = heartbeat_seconds;
    return start(&o);
}

/* --- members --- */

typedef struct person {
    wefti_member_options options;
    wefti_member *member;
    weft_status status;
    char text[1024];
    pthread_t thread;
} person;

static void *join_world(void *context) {
    person *p = context;
    p->status = wefti_member_join(&p->options, &p->member);
    if (p->status < 0) snprintf(p->text, sizeof p->text, "%s", weft_error_message());
    return NULL;
}

/* Ranks from `from` on know the second address as well. */
static void join_all(person *p, int count, const char *first, const char *second, int from) {
    for (int r = 0; r < count; r++) {
        p[r] = (person){.options = test_member(first)};
        if (r >= from) p[r].options.standby = second;
        p[r].options.rank = r;
        p[r].options.host = "here";
        p[r].options.leave_seconds = 0.1;
        assert_int_equal(pthread_create(&p[r].thread, NULL, join_world, &p[r]), 0);
    }
    for (int r = 0; r < count; r++) pthread_join(p[r].thread, NULL);
    for (int r = 0; r < count; r++)
        if (p[r].status < 0) fail_msg("rank %d: %s", r, p[r].text);
}

static void *swap_once(void *context) {
    person *p = context;
    bool wrong = false;
    p->status = test_swap(p->member, 7, &wrong);
    if (wrong) p->status = WEFT_E_CORRUPT;
    return NULL;
}

static void swap_all(person *p, int count) {
    for (int r = 0; r < count; r++)
        assert_int_equal(pthread_create(&p[r].thread, NULL, swap_once, &p[r]), 0);
    for (int r = 0; r < count; r++) pthread_join(p[r].thread, NULL);
    for (int r = 0; r < count; r++) assert_int_equal(p[r].status, WEFT_OK);
}

static void close_all(person *p, int count) {
    for (int r = 0; r < count; r++) (void)wefti_member_close(p[r].member, NULL);
}

static bool runs(const wefti_scheduler *s) {
    return s->state == WEFTI_SCHEDULER_RUNNING;
}
static bool has_two(const wefti_scheduler *s) {
    return s->taken == 2 && s->state == WEFTI_SCHEDULER_FORMING;
}
static bool has_none(const wefti_scheduler *s) {
    return s->taken == 0;
}

/* --- the standby --- */

static weft_status ask_health(const wefti_member_options *options, wefti_job_health *out,
                              bool *out_by_standby) {
    enum { SECONDS = 20 };
    wefti_question *question;
    wefti_rank_health *rank = NULL;
    WEFT_TRY(wefti_question_begin(options, SECONDS, &question));
    weft_status status = wefti_question_end(question, out, &rank, out_by_standby);
    if (status >= 0) wefti_free(rank);
    return status;
}

static bool finds_job(const char *address) {
    const wefti_member_options o = test_member(address);
    return wefti_member_finds_job(&o, 20);
}

/* All ranks come to it, with the generation that they have, and so do launchers. */
static void takes_over(void **state) {
    (void)state;
    const first_scheduler first = fork_scheduler(RANKS, 0);
    wefti_scheduler *s = stand_by(RANKS, LONG_HEARTBEAT);
    const char *second = wefti_scheduler_address(s);
    person p[RANKS];
    join_all(p, RANKS, first.address, second, 0);
    const uint64_t generation = wefti_member_generation(p[0].member);
    swap_all(p, RANKS);
    wefti_member_options launcher = test_member(first.address);
    launcher.standby = second;
    wefti_watch *watch;
    assert_int_equal(wefti_watch_begin(&launcher, &(wefti_span){0, RANKS}, &watch), WEFT_OK);
    ASSERT_SOON(wefti_watch_has_found(watch));
    assert_false(finds_job(second));
    assert_true(finds_job(first.address));
    assert_true(wefti_scheduler_is_idle(s));
    kill_scheduler(&first);
    test_wait_until(s, runs);
    swap_all(p, RANKS);
    assert_true(finds_job(second));
    ASSERT_SOON(wefti_scheduler_has_launcher(s));
    wefti_job_health health;
    bool by_standby;
    assert_int_equal(ask_health(&launcher, &health, &by_standby), WEFT_OK);
    assert_true(by_standby);
    assert_int_equal(health.here, RANKS);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(wefti_member_check(p[r].member), WEFT_OK);
        assert_true(wefti_member_generation(p[r].member) == generation);
    }
    const wefti_end end = {.rank = 2, .code = 3, .text = "rank 2 ended"};
    wefti_end heard;
    wefti_scheduler_ended(s, &end);
    ASSERT_SOON(wefti_watch_is_over(watch, &heard));
    assert_int_equal(heard.rank, 2);
    wefti_watch_end(watch);
    close_all(p, RANKS);
    wefti_scheduler_stop(s);
}

/* While it stands by, nobody gets an answer, and a new process finds the other scheduler, even if
 * that one starts later. */
static void turns_strangers_away(void **state) {
    (void)state;
    int fd;
    wefti_address at;
    assert_int_equal(wefti_address_local("", 0, &at), WEFT_OK);
    assert_int_equal(wefti_listen(&at, &fd), WEFT_OK); /* a port that is free later */
    char address[WEFTI_ADDRESS_TEXT];
    wefti_address_text(&at, true, address);
    wefti_scheduler *s = stand_by(1, LONG_HEARTBEAT);
    person p = {.options = test_member(address)};
    p.options.standby = wefti_scheduler_address(s);
    p.options.join_seconds = 1;
    close(fd);
    join_world(&p);
    assert_int_equal(p.status, WEFT_E_TIMEOUT);
    ASSERT_FACTS(p.text, "cannot reach|schedulers at");
    assert_non_null(strstr(p.text, address));
    assert_non_null(strstr(p.text, wefti_scheduler_address(s)));
    wefti_watch *watch;
    p.options.join_seconds = 600;
    assert_int_equal(wefti_watch_begin(&p.options, &(wefti_span){0, 1}, &watch), WEFT_OK);
    assert_int_equal(pthread_create(&p.thread, NULL, join_world, &p), 0);
    wefti_scheduler_options o = test_scheduler(1);
    o.port = atoi(strrchr(address, ':') + 1);
    o.has_other = true;
    wefti_scheduler *first = start(&o);
    pthread_join(p.thread, NULL);
    assert_int_equal(p.status, WEFT_OK);
    ASSERT_SOON(wefti_scheduler_has_launcher(first));
    assert_true(wefti_scheduler_is_idle(s) && !wefti_scheduler_has_launcher(s));
    (void)wefti_member_close(p.member, NULL);
    wefti_scheduler_stop(first); /* in good order: the launcher is not to look for another one */
    ASSERT_SOON(wefti_watch_has_parted(watch));
    wefti_watch_end(watch);
    wefti_scheduler_stop(s);
}

static wefti_scheduler_state state_of(wefti_scheduler *s) {
    return wefti_scheduler_wait(s, WEFTI_SCHEDULER_FORMING, 0);
}

/* A scheduler that is stopped loses a launcher that waits for seats. */
static void waiting_launchers_leave_too(void **state) {
    (void)state;
    for (int32_t first_seat = WEFTI_SEATS_ADDED; first_seat < 0; first_seat++) {
        const first_scheduler first = fork_scheduler(RANKS, 1);
        wefti_scheduler_options o = test_scheduler(RANKS);
        o.restarts = 1;
        wefti_scheduler *s = start(&o);
        wefti_member_options launcher = test_member(first.address);
        launcher.standby = wefti_scheduler_address(s);
        launcher.heartbeat_seconds = 0.5;
        const wefti_keep keep = {.seats = {first_seat, 1}, .launcher = 7};
        wefti_watch *watch;
        assert_int_equal(wefti_watch_begin_keeping(&launcher, &keep, &watch), WEFT_OK);
        ASSERT_SOON(wefti_watch_has_found(watch));
        assert_false(wefti_scheduler_has_launcher(s));
        kill(first.process, SIGSTOP);
        ASSERT_SOON(wefti_scheduler_has_launcher(s));
        wefti_watch_end(watch);
        wefti_scheduler_stop(s);
        kill_scheduler(&first);
    }
}

static int32_t count_here(const char *address) {
    const wefti_member_options o = test_member(address);
    wefti_job_health health;
    bool by_standby;
    return ask_health(&o, &health, &by_standby) < 0 ? -1 : health.here;
}
static bool has_three(const wefti_scheduler *s) {
    return s->taken == RANKS - 1 && s->state == WEFTI_SCHEDULER_FORMING;
}

/* The first scheduler is killed while a rank is missing. The others go to the standby, or to a
 * scheduler that is started again, and the world forms there once the last one has come. */
static void forms_elsewhere(void **state) {
    (void)state;
    for (int again = 0; again < 2; again++) {
        const first_scheduler first = fork_scheduler(RANKS, 0);
        wefti_scheduler *s = again ? NULL : stand_by(RANKS, LONG_HEARTBEAT);
        person p[RANKS];
        for (int r = 0; r < RANKS; r++) {
            p[r] = (person){.options = test_member(first.address)};
            p[r].options.standby = again ? NULL : wefti_scheduler_address(s);
            p[r].options.rank = r;
            p[r].options.host = "here";
            p[r].options.leave_seconds = 0.1;
            if (r == RANKS - 1) continue;
            assert_int_equal(pthread_create(&p[r].thread, NULL, join_world, &p[r]), 0);
        }
        ASSERT_SOON(count_here(first.address) == RANKS - 1);
        kill_scheduler(&first);
        wefti_scheduler_options o = test_scheduler(RANKS);
        o.port = first.port;
        if (again && wefti_scheduler_start(&o, &s) < 0) fail_msg("port %d", first.port);
        test_wait_until(s, has_three);
        const int last = RANKS - 1;
        assert_int_equal(pthread_create(&p[last].thread, NULL, join_world, &p[last]), 0);
        for (int r = 0; r < RANKS; r++) pthread_join(p[r].thread, NULL);
        for (int r = 0; r < RANKS; r++)
            if (p[r].status < 0) fail_msg("rank %d: %s", r, p[r].text);
        swap_all(p, RANKS);
        close_all(p, RANKS);
        wefti_scheduler_stop(s);
    }
}

/* Two of four ranks without rank 0 come to the standby. It holds them for a while, and lets them go
 * to the first scheduler, which is there again. */
static void lets_a_half_go(void **state) {
    (void)state;
    const first_scheduler first = fork_scheduler(RANKS, 0);
    wefti_scheduler *s = stand_by(RANKS, 0.5);
    person p[RANKS];
    join_all(p, RANKS, first.address, wefti_scheduler_address(s), 2);
    kill_scheduler(&first);
    test_wait_until(s, has_two);
    test_wait_until(s, has_none);
    assert_true(wefti_scheduler_is_idle(s));
    wefti_scheduler_options o = test_scheduler(RANKS);
    wefti_scheduler *again;
    o.port = first.port;
    o.has_other = true;
    if (wefti_scheduler_start(&o, &again) < 0) {
        print_message("SKIP: port %d cannot be had again\n", first.port);
    } else {
        ASSERT_SOON(state_of(again) == WEFTI_SCHEDULER_RUNNING);
        swap_all(p, RANKS);
        wefti_scheduler_stop(again);
    }
    close_all(p, RANKS);
    wefti_scheduler_stop(s);
}

/* --- the rule --- */

static void counts_majorities(void **state) {
    (void)state;
    static const struct {
        int size, ranks[RANKS], count;
        bool may;
    } cases[] = {
        {4, {0, 1, 2, 3}, 4, true}, {4, {1, 2, 3}, 3, true}, {4, {0, 3}, 2, true},
        {4, {2, 3}, 2, false},      {4, {0}, 1, false},      {3, {1, 2}, 2, true},
        {3, {0}, 1, false},         {2, {0}, 1, true},       {2, {1}, 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wefti_member_slot slots[RANKS] = {0};
        wefti_scheduler s = {.slots = slots, .taken = cases[i].count};
        s.options.size = cases[i].size;
        for (int k = 0; k < cases[i].count; k++)
            slots[k].join =
                (wefti_join){.number = cases[i].ranks[k], .size = cases[i].size, .generation = 5};
        assert_true(wefti_standby_may_begin(&s)); /* one scheduler needs no majority */
        s.options.has_other = true;
        if (wefti_standby_may_begin(&s) != cases[i].may) fail_msg("case %zu", i);
    }
}

static void cut(wefti_scheduler *s, int32_t rank) {
    pthread_mutex_lock(&s->lock);
    if (s->slots[rank].client) (void)shutdown(s->slots[rank].client->link.fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
}

/* The scheduler of two ranks that loses rank 0 is deposed: its launchers lose it, without a
 * goodbye, and it answers nobody. If it loses rank 1, it ends the job as without a standby. */
static void is_deposed(void **state) {
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        wefti_scheduler_options o = test_scheduler(2);
        o.has_other = true;
        wefti_scheduler *s = start(&o);
        person p[2];
        join_all(p, 2, wefti_scheduler_address(s), NULL, 0);
        wefti_member_options launcher = test_member(wefti_scheduler_address(s));
        launcher.outlives = true;
        wefti_watch *watch;
        assert_int_equal(wefti_watch_begin(&launcher, &(wefti_span){0, 2}, &watch), WEFT_OK);
        ASSERT_SOON(wefti_scheduler_has_launcher(s));
        cut(s, lost);
        ASSERT_SOON(wefti_member_check(p[1 - lost].member) == WEFT_E_LOST);
        assert_true(wefti_scheduler_is_deposed(s) == (lost == 0));
        assert_true(wefti_scheduler_has_launcher(s) == (lost == 1));
        assert_true(finds_job(wefti_scheduler_address(s)) == (lost == 1));
        if (lost == 0) {
            assert_int_equal(wefti_member_check(p[1].member), WEFT_E_LOST);
            ASSERT_MESSAGE("rank 0|died|half|other scheduler");
        }
        close_all(p, 2);
        wefti_scheduler_stop(s);
        if (lost == 1) ASSERT_SOON(wefti_watch_has_parted(watch));
        assert_true(wefti_watch_has_parted(watch) == (lost == 1));
        wefti_watch_end(watch);
    }
}

static bool all_armed(const wefti_scheduler *s) {
    return s->mend.armed == RANKS;
}
static bool is_in_doubt(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool is = wefti_is_in_doubt(s);
    pthread_mutex_unlock(&s->lock);
    return is;
}

static void end_by_word(wefti_scheduler *s, int32_t rank) {
    const wefti_end end = {.rank = rank, .signal = SIGKILL};
    assert_true(wefti_scheduler_awaits(s, &end, 1));
}

/* The scheduler of a world that can be mended loses ranks 0 and 1 of four. If a launcher says of
 * one of them that its process has ended, that one is on no side, and two of three are left: the
 * world is mended. A word that comes late does not count. */
static void waits_for_launchers(void **state) {
    (void)state;
    static const wefti_elastic keeps_size;
    enum { NO_WORD, LATE_WORD, WORD };
    static const int cases[][2] = {
        {WORD, WORD}, {NO_WORD, WORD}, {WORD, NO_WORD}, {NO_WORD, NO_WORD}, {LATE_WORD, NO_WORD}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool goes_on = cases[i][0] == WORD || cases[i][1] == WORD;
        wefti_scheduler_options o = test_scheduler(RANKS);
        o.has_other = true;
        o.restarts = RANKS;
        wefti_scheduler *s = start(&o);
        person p[RANKS];
        join_all(p, RANKS, wefti_scheduler_address(s), NULL, 0);
        for (int r = 0; r < RANKS; r++) wefti_member_arm(p[r].member, &keeps_size);
        test_wait_until(s, all_armed);
        for (int r = 0; r < 2; r++) {
            if (cases[i][r] != WORD) cut(s, r);
            if (cases[i][r] == WORD) end_by_word(s, r);
            ASSERT_SOON(wefti_scheduler_deaths(s, r) == 1);
            if (cases[i][r] != LATE_WORD) continue;
            (void)poll(NULL, 0, 1000 * WEFTI_WORD_SECONDS + 100);
            end_by_word(s, r);
        }
        ASSERT_SOON(wefti_scheduler_is_deposed(s) || !is_in_doubt(s));
        if (wefti_scheduler_is_deposed(s) == goes_on) fail_msg("case %zu", i);
        if (goes_on) assert_int_equal(state_of(s), WEFTI_SCHEDULER_RUNNING);
        wefti_scheduler_stop(s);
        for (int r = 0; r < RANKS; r++) p[r].member->leave_ns = 1;
        close_all(p, RANKS);
    }
}

/* A scheduler that has begun with generation 20, and with ranks that came with 5, has begun 21
 * since. A rank that comes back with any other has been with the other scheduler. */
static void knows_who_has_strayed(void **state) {
    (void)state;
    static const struct {
        uint64_t generation;
        bool strayed;
    } cases[] = {{4, true},   {5, false},  {6, true}, {19, true},
                 {20, false}, {21, false}, {22, true}};
    wefti_member_slot slot = {.came = 5};
    wefti_scheduler s = {.slots = &slot, .taken = 1, .ranked = true, .own = 20, .generation = 21};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const wefti_join join = {.generation = cases[i].generation};
        s.options.has_other = true;
        if (wefti_standby_has_strayed(&s, &join) != cases[i].strayed) fail_msg("case %zu", i);
        s.options.has_other = false;
        assert_false(wefti_standby_has_strayed(&s, &join));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_over),
        cmocka_unit_test(turns_strangers_away),
        cmocka_unit_test(lets_a_half_go),
        cmocka_unit_test(counts_majorities),
        cmocka_unit_test(is_deposed),
        cmocka_unit_test(waits_for_launchers),
        cmocka_unit_test(forms_elsewhere),
        cmocka_unit_test(waiting_launchers_leave_too),
        cmocka_unit_test(knows_who_has_strayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
