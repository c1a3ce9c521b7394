/* A scheduler dies before, amid and after a change of the world's size, at each of its messages,
 * and another one that knows nothing takes its place. Members are threads of this process.
 * (weft-test: threads)
 * weft-test: computes
 */
#include "gathering_people.h"

#include <signal.h>

static const wefti_elastic two_at_least = {.least = 2, .seconds = 60};
static const unsigned char up_to_four[] = {1 << 1 | 1 << 2 | 1 << 3 | 1 << 4};
static const wefti_elastic one_to_four = {.least = 1, .seconds = 60, .fits = up_to_four, .most = 4};

/* A job that begins with `size` ranks. Without restarts, who dies is gone on without. */
static wefti_scheduler *begin_job(wefti_scheduler_options *o, int32_t size, person p[PEOPLE],
                                  const wefti_elastic *elastic) {
    *o = test_scheduler(size);
    o->heartbeat_seconds = SHORT_HEARTBEAT;
    memset(p, 0, PEOPLE * sizeof *p);
    wefti_scheduler *s = elastic_world(o, p, elastic);
    for (int r = 0; r < PEOPLE; r++) {
        p[r].count = PEOPLE;
        p[r].allows = elastic;
        atomic_store(&p[r].gone, r >= size);
        p[r].holds_all = true;
        if (r < size) hold_all(&p[r], size);
    }
    return s;
}

static void survive_all(person p[PEOPLE]) {
    for (int r = 0; r < PEOPLE; r++) {
        atomic_store(&p[r].whole, 0);
        atomic_store(&p[r].ended, false);
        if (!atomic_load(&p[r].gone)) begin(&p[r], survive);
    }
}

/* Its process ends, amid a call. */
static void stop_calling(person *p) {
    wefti_caller *c = &p->member->caller;
    pthread_mutex_lock(&c->lock);
    wefti_caller_fail(c, WEFT_E_PEER, WEFT_RANK_OWN, "dead");
    (void)shutdown(c->link.fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
}

/* The launcher on the scheduler's host says that a process has ended. */
static void say_lost(wefti_scheduler *s, int32_t number, int starts) {
    wefti_end end = {.rank = number, .signal = SIGKILL};
    snprintf(end.text, sizeof end.text, "rank %d was ended by signal 9", (int)number);
    if (!wefti_scheduler_awaits(s, &end, starts)) (void)wefti_scheduler_goes_on(s, &end);
}

/* All go on, and a process with that number joins. No other thread runs while it is set up. */
static void survive_with(const wefti_scheduler *s, person p[PEOPLE], int newcomer, int32_t number,
                         const wefti_elastic *elastic) {
    person *x = &p[newcomer];
    set_up(x, wefti_scheduler_address(s), number, p);
    x->options.size = s->options.size;
    x->count = PEOPLE;
    x->allows = elastic;
    x->holds_all = true;
    x->at.step = -1;
    atomic_store(&x->gone, true);
    survive_all(p);
    atomic_store(&x->gone, false);
    begin(x, come);
}

/* Until all that are left are in a whole world again. Whenever the scheduler dies, another one
 * takes its place; `outages`: how often. `lost`: numbers of processes that have ended. Whether a
 * scheduler has died. */
static bool go_on(wefti_scheduler **s, wefti_scheduler_options *o, person p[PEOPLE], int64_t nth,
                  int outages, const int32_t *lost, int32_t lost_count) {
    bool died = false;
    for (bool done = false; !done || is_dead(*s);) {
        if (is_dead(*s)) {
            wefti_fault_arm(WEFTI_FAULT_SCHEDULER, --outages > 0 ? nth : -1, false, 0);
            *s = follow(*s, o);
            died = true;
        }
        for (int32_t i = 0; i < lost_count; i++) say_lost(*s, lost[i], 1);
        done = true;
        for (int r = 0; r < PEOPLE; r++)
            done = done && (atomic_load(&p[r].gone) || atomic_load(&p[r].ended));
        usleep(200);
    }
    wefti_fault_arm(WEFTI_FAULT_SCHEDULER, -1, false, 0);
    for (int r = 0; r < PEOPLE; r++)
        if (!atomic_load(&p[r].gone)) end_well(&p[r]);
    return died;
}

/* All know the same world: of the processes `in`, in the order of its ranks. */
static void is_world(person p[PEOPLE], const int *in, int32_t size) {
    for (int32_t r = 0; r < size; r++) {
        const person *x = &p[in[r]];
        assert_int_equal(wefti_member_rank(x->member), r);
        assert_int_equal(wefti_member_size(x->member), size);
        assert_int_equal(x->at.step, TARGET);
        assert_int_equal(wefti_member_hosts(x->member)[r], in[r] == 2 && size > 1);
        for (int32_t k = 0; k < size; k++) assert_int_equal(x->cards[k], k + 10);
    }
}

static void all_leave(wefti_scheduler *s, person p[PEOPLE]) {
    for (int r = 0; r < PEOPLE; r++)
        if (!atomic_load(&p[r].gone)) begin(&p[r], leave);
    for (int r = 0; r < PEOPLE; r++)
        if (!atomic_load(&p[r].gone)) end_well(&p[r]);
    wefti_scheduler_stop(s);
}

/* Rank 1 dies, and the scheduler at message `nth` from then on. `besides`: rank 3 dies with the
 * scheduler. */
static bool a_shrinking(int64_t nth, int outages, bool besides) {
    static const int32_t lost[] = {1, 3};
    wefti_scheduler_options o;
    person p[PEOPLE];
    wefti_scheduler *s = begin_job(&o, besides ? 4 : 3, p, &two_at_least);
    p[2].at.step = TARGET - 1; /* it has not seen the commit */
    p[2].at.ready = true;
    wefti_fault_arm(WEFTI_FAULT_SCHEDULER, nth, false, 0);
    atomic_store(&p[1].gone, true);
    if (besides) atomic_store(&p[3].gone, true);
    survive_all(p);
    if (besides) begin(&p[3], survive); /* until it is dead */
    die(&p[1]);
    if (besides) {
        while (!is_dead(s) && !atomic_load(&p[0].ended)) usleep(200);
        stop_calling(&p[3]);
        assert_int_equal(pthread_join(p[3].thread, NULL), 0);
        (void)wefti_member_close(p[3].member, NULL);
    }
    const bool died = go_on(&s, &o, p, nth, outages, lost, 1 + besides);
    is_world(p, (const int[]){0, 2}, 2);
    all_leave(s, p);
    return died;
}

static void at_each_message_of_a_shrinking(void **state) {
    (void)state;
    int64_t nth = 0;
    while (a_shrinking(nth, 1 + (int)(nth % 2), false)) nth++;
    printf("a scheduler died at each of %lld messages\n", (long long)nth);
    assert_true(nth > 8);
}

/* Another rank is missing when the next scheduler begins. */
static void a_rank_dies_with_the_scheduler(void **state) {
    (void)state;
    for (int64_t nth = 0; nth < 8; nth++) assert_true(a_shrinking(nth, 1, true));
}

/* The numbers of a launcher that adds one process. */
static wefti_watch *add_one(const person *p, uint64_t launcher, wefti_span *seats) {
    wefti_member_options at = launcher_elsewhere(p->address);
    const wefti_keep keep = {.seats = {WEFTI_SEATS_ADDED, 1}, .launcher = launcher};
    wefti_watch *watch;
    int32_t size;
    assert_int_equal(wefti_watch_begin_keeping(&at, &keep, &watch), WEFT_OK);
    ASSERT_SOON(wefti_watch_seats(watch, seats, &size) == WEFT_OK);
    return watch;
}

/* A world of two becomes one of three, which is more than it ever had; or, if it had three at
 * first, than it has had since one died. */
static bool a_growth(int64_t nth, int outages, bool beyond) {
    static const int32_t lost[] = {1};
    const int32_t number = beyond ? 2 : 1;
    const wefti_elastic *elastic = beyond ? &one_to_four : &two_at_least;
    wefti_scheduler_options o;
    person p[PEOPLE];
    wefti_scheduler *s = begin_job(&o, beyond ? 2 : 3, p, elastic);
    wefti_watch *watch = NULL;
    wefti_span seats;
    if (beyond) {
        watch = add_one(&p[0], 5, &seats);
        assert_int_equal(seats.first, number);
    } else {
        atomic_store(&p[1].gone, true);
        survive_all(p);
        die(&p[1]);
        (void)go_on(&s, &o, p, -1, 0, lost, 1);
    }
    const int last = beyond ? 2 : 1;
    wefti_fault_arm(WEFTI_FAULT_SCHEDULER, nth, false, 0);
    survive_with(s, p, last, number, elastic);
    const bool died = go_on(&s, &o, p, nth, outages, lost, 0);
    is_world(p, beyond ? (const int[]){0, 1, 2} : (const int[]){0, 2, 1}, 3);
    all_leave(s, p);
    if (watch) wefti_watch_end(watch);
    return died;
}

static void at_each_message_of_a_growth(void **state) {
    (void)state;
    for (int beyond = 0; beyond < 2; beyond++) {
        int64_t nth = 0;
        while (a_growth(nth, 1 + (int)(nth % 2), beyond)) nth++;
        printf("a scheduler died at each of %lld messages\n", (long long)nth);
        assert_true(nth > 8);
    }
}

static bool runs(const wefti_scheduler *s) {
    return s->state == WEFTI_SCHEDULER_RUNNING && !s->mend.gathered;
}
static void same_world_again(wefti_scheduler **s, wefti_scheduler_options *o, const person *of) {
    const uint64_t before = wefti_member_generation(of->member);
    *s = crash(*s, o);
    test_wait_until(*s, runs);
    assert_true(wefti_member_generation(of->member) == before);
}

static int32_t given(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const int32_t numbers = s->numbers;
    pthread_mutex_unlock(&s->lock);
    return numbers;
}

/* Two ranks, three, two, and three again. Between any two of these a scheduler that knows nothing
 * follows: nobody notices more than a pause, and no number is given twice. */
static void between_changes(void **state) {
    (void)state;
    wefti_scheduler_options o;
    person p[PEOPLE];
    wefti_span seats;
    wefti_scheduler *s = begin_job(&o, 2, p, &one_to_four);
    wefti_watch *watch = add_one(&p[0], 5, &seats);
    assert_int_equal(seats.first, 2);
    s = crash(s, &o); /* which has promised a seat */
    test_wait_until(s, runs);
    ASSERT_SOON(given(s) == 3); /* the launcher says so */
    survive_with(s, p, 2, 2, &one_to_four);
    (void)go_on(&s, &o, p, -1, 0, NULL, 0);
    is_world(p, (const int[]){0, 1, 2}, 3);
    same_world_again(&s, &o, &p[2]);
    assert_int_equal(given(s), 3);
    atomic_store(&p[0].gone, true);
    survive_all(p);
    die(&p[0]);
    (void)go_on(&s, &o, p, -1, 0, (const int32_t[]){0}, 1);
    is_world(p, (const int[]){1, 2}, 2);
    same_world_again(&s, &o, &p[1]);
    wefti_watch *other = add_one(&p[1], 6, &seats);
    assert_int_equal(seats.first, 3);
    survive_with(s, p, 3, 3, &one_to_four);
    (void)go_on(&s, &o, p, -1, 0, NULL, 0);
    is_world(p, (const int[]){1, 2, 3}, 3);
    same_world_again(&s, &o, &p[3]);
    assert_int_equal(given(s), 4);
    wefti_watch_end(watch);
    wefti_watch_end(other);
    all_leave(s, p);
}

static bool one_waits(const wefti_scheduler *s) {
    int waiting = 0;
    for (int64_t i = 0; i < s->client_count; i++) waiting += s->clients[i]->next != NULL;
    return waiting == 1;
}

/* An added process calls a new scheduler before any rank does, and before its launcher. */
static void an_added_process_comes_first(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    person p;
    set_up(&p, wefti_scheduler_address(s), 2, &p);
    p.options.size = 2;
    begin(&p, join);
    test_wait_until(s, one_waits);
    assert_int_equal(given(s), 3);
    wefti_scheduler_fail(s, WEFT_E_PEER, WEFT_RANK_NONE, "enough");
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    assert_true(p.status < 0);
    ASSERT_FACTS(p.text, "enough");
    wefti_scheduler_stop(s);
}

/* Two launchers that add processes have the same number: the later one hears so. */
static void a_number_has_two_launchers(void **state) {
    (void)state;
    wefti_scheduler_options o;
    person p[PEOPLE];
    wefti_span seats;
    int32_t size;
    wefti_scheduler *s = begin_job(&o, 2, p, &one_to_four);
    wefti_watch *watch = add_one(&p[0], 5, &seats), *late;
    wefti_member_options at = launcher_elsewhere(p[0].address);
    const wefti_keep keep = {.seats = {2, 1}, .launcher = 6, .again = true};
    assert_int_equal(wefti_watch_begin_keeping(&at, &keep, &late), WEFT_OK);
    ASSERT_SOON(wefti_watch_seats(late, &seats, &size) == WEFT_E_LOST);
    ASSERT_MESSAGE("numbers from 2|another launcher");
    wefti_watch_end(late);
    wefti_watch_end(watch);
    all_leave(s, p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_each_message_of_a_shrinking),
        cmocka_unit_test(a_rank_dies_with_the_scheduler),
        cmocka_unit_test(at_each_message_of_a_growth),
        cmocka_unit_test(between_changes),
        cmocka_unit_test(an_added_process_comes_first),
        cmocka_unit_test(a_number_has_two_launchers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
