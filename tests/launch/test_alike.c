/* What processes say that they run: lines as a frame, the difference of two, and who is refused for
 * it. The world goes on, and its seat stays free. (weft-test: threads) */
#include "people.h"

static wefti_identity identity_of(const char *text) {
    wefti_identity made;
    ASSERT_OK(wefti_identity_encode(text, &made));
    return made;
}

/* The difference as members hear it; "": there is none. */
static char *difference(const char *mine, const char *theirs) {
    static char out[1024];
    wefti_identity a = identity_of(mine), b = identity_of(theirs);
    wefti_text text = {0};
    const int count = wefti_identity_compare(&a, &b, &text);
    assert_int_equal(count > 0, text.used > 0);
    (void)snprintf(out, sizeof out, "%.*s", (int)text.used, text.data ? text.data : "");
    wefti_text_free(&text);
    wefti_identity_free(&a);
    wefti_identity_free(&b);
    return out;
}

static void names_that_both_have_are_compared(void **state) {
    (void)state;
    static const char *const like[][2] = {
        {"", "a = 1"},
        {"a = 1\nb = 2\n", "a = 1\nb = 2\n"},
        {"a = 1\nb = 2", "b = 2\n\n  a=1  \n"},
        {"a = 1", "b = 1"},
        {"a = x = y", "a =x = y\r"},
    };
    for (size_t i = 0; i < sizeof like / sizeof *like; i++) {
        assert_string_equal(difference(like[i][0], like[i][1]), "");
        assert_string_equal(difference(like[i][1], like[i][0]), "");
    }
    assert_string_equal(difference("a = 1\nb = 2", "b = 3\na = 1"), "b is 2 here and 3 there");
    assert_string_equal(difference("a =\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\ng = 7\nh = 8",
                                   "a = 1\nb = 1\nc = 1\nd = 1\ne = 1\nf = 1\ng = 1\nh = 8"),
                        "a is  here and 1 there; they also differ in b, c, d, e and 2 more");
}

static void long_values_differ_at_their_end(void **state) {
    (void)state;
    char a[4000] = "key = ", b[sizeof a];
    memset(a + 6, 'x', 3000);
    memcpy(b, a, sizeof b);
    assert_string_equal(difference(a, b), "");
    b[3005] = 'y';
    const char *found = difference(a, b);
    assert_non_null(strstr(found, "x... "));
    assert_true(strlen(found) < 2 * WEFTI_IDENTITY_VALUE + 40);
    b[20] = '\x01'; /* it must not reach a terminal */
    assert_null(strchr(difference(b, a), '\x01'));
}

static void other_texts_are_refused(void **state) {
    (void)state;
    wefti_identity made;
    ASSERT_FAILS(WEFT_E_ARG, "some words|name = value", wefti_identity_encode("some words", &made));
    ASSERT_FAILS(WEFT_E_ARG, "name = value", wefti_identity_encode("a = 1\n = 2", &made));
    wefti_text many = {0};
    for (int i = 0; i < 2000; i++) wefti_text_add(&many, "a name of line %d = a value\n", i);
    ASSERT_FAILS(WEFT_E_ARG, "32768 bytes", wefti_identity_encode(many.data, &made));
    assert_null(made.body);
    wefti_text_free(&many);
    made = identity_of(NULL);
    assert_null(made.body);
}

static void frames_are_checked(void **state) {
    (void)state;
    wefti_identity sent = identity_of("a = 1\nb = 2"), back;
    wefti_frame f = {.kind = WEFTI_FRAME_IDENTITY, .body = sent.body};
    int whole = 0;
    for (f.bytes = 0; f.bytes <= sent.bytes; f.bytes++) {
        if (wefti_identity_decode(&f, &back) < 0) continue;
        whole++;
        assert_int_equal(back.bytes, f.bytes);
        wefti_identity_free(&back);
    }
    assert_int_equal(whole, 3); /* nothing, the first line, both */
    f.bytes = sent.bytes;
    ASSERT_OK(wefti_identity_decode(&f, &back));
    assert_memory_equal(back.body, sent.body, sent.bytes);
    wefti_identity_free(&back);
    sent.body[4] = '\n';
    assert_int_equal(wefti_identity_decode(&f, &back), WEFT_E_CORRUPT);
    sent.body[0] = 0; /* no name */
    assert_int_equal(wefti_identity_decode(&f, &back), WEFT_E_CORRUPT);
    wefti_identity_free(&sent);
}

/* --- members --- */

enum { OWN_LAUNCHER = 11, OTHER_LAUNCHER = 13 };

/* It comes: `identity` lives until it has ended. */
static void come(person *p, const wefti_scheduler *s, int32_t rank, const wefti_identity *identity,
                 uint64_t launcher) {
    *p = (person){.options = test_member(wefti_scheduler_address(s))};
    p->options.rank = rank;
    p->options.host = "here";
    p->options.identity = identity;
    p->options.launcher = launcher;
    begin(p, join);
}

static void is_refused(person *p, const char *facts) {
    end(p);
    assert_int_equal(p->status, WEFT_E_MISMATCH);
    ASSERT_FACTS(p->text, facts);
}

static bool one_is_here(const wefti_scheduler *s) {
    return s->taken == 1;
}
static bool nobody_is_here(const wefti_scheduler *s) {
    return s->taken == 0;
}

static void go_on(person *a, person *b) {
    end_well(a);
    end_well(b);
    begin(a, leave);
    begin(b, leave);
    end_well(a);
    end_well(b);
}

static void an_unlike_one_is_refused_alone(void **state) {
    (void)state;
    wefti_identity job = identity_of("program = weft train\ntrain.seed = 1"),
                   other = identity_of("program = weft train\ntrain.seed = 2"), none = {0};
    wefti_scheduler_options o = test_scheduler(2);
    o.repeats = true;
    wefti_scheduler *s = start(&o);
    person p[4];
    come(&p[0], s, 0, &job, 0);
    test_wait_until(s, one_is_here);
    come(&p[1], s, 1, &other, 0);
    is_refused(&p[1], "train.seed is 2 here and 1 there|WEFT_JOB");
    come(&p[2], s, 1, &job, 0);
    go_on(&p[0], &p[2]);
    /* The next world may run something else, and who says nothing is like anybody. */
    come(&p[0], s, 0, &other, 0);
    test_wait_until(s, one_is_here);
    pthread_mutex_lock(&s->lock);
    const bool stale = s->alike.refusal[0]; /* what an earlier world refused is no news */
    pthread_mutex_unlock(&s->lock);
    assert_false(stale);
    come(&p[1], s, 1, &job, 0);
    is_refused(&p[1], "train.seed is 1 here and 2 there");
    come(&p[2], s, 1, &none, 0);
    go_on(&p[0], &p[2]);
    wefti_scheduler_stop(s);
    wefti_identity_free(&job);
    wefti_identity_free(&other);
}

/* The launcher runs rank 0. */
static wefti_scheduler *start_launcher(int32_t size) {
    wefti_scheduler_options o = test_scheduler(size);
    o.launcher = OWN_LAUNCHER;
    o.own = (wefti_span){0, 1};
    return start(&o);
}

/* A launcher's own processes are of its job, whoever came first. */
static void those_of_the_launcher_count_more(void **state) {
    (void)state;
    wefti_identity job = identity_of("a = 1"), other = identity_of("a = 2");
    wefti_scheduler *s = start_launcher(2);
    person p[4];
    come(&p[1], s, 1, &other, OTHER_LAUNCHER);
    test_wait_until(s, one_is_here);
    come(&p[0], s, 0, &job, OWN_LAUNCHER);
    is_refused(&p[1], "a is 2 here and 1 there");
    come(&p[2], s, 1, &other, 0);
    is_refused(&p[2], "a is 2 here and 1 there");
    come(&p[3], s, 1, &job, OTHER_LAUNCHER + 1);
    go_on(&p[0], &p[3]);
    wefti_scheduler_stop(s);
    wefti_identity_free(&job);
    wefti_identity_free(&other);
}

static bool three_are_here(const wefti_scheduler *s) {
    return s->taken == 3;
}

/* Of those that came first each is compared by itself: it may run what the launcher's own runs. */
static void each_that_came_first_is_compared(void **state) {
    (void)state;
    wefti_identity job = identity_of("a = 1\nb = 1\nc = 1"), first = identity_of("a = 2\nb = 1"),
                   second = identity_of("a = 2\nc = 2"), like = identity_of("b = 1");
    wefti_scheduler *s = start_launcher(4);
    person p[6];
    come(&p[1], s, 1, &first, OTHER_LAUNCHER);
    test_wait_until(s, one_is_here);
    come(&p[2], s, 2, &second, OTHER_LAUNCHER);
    come(&p[3], s, 3, &like, 0);
    test_wait_until(s, three_are_here);
    come(&p[0], s, 0, &job, OWN_LAUNCHER);
    is_refused(&p[1], "a is 2 here and 1 there");
    is_refused(&p[2], "a is 2 here and 1 there|in c");
    come(&p[4], s, 1, &job, 0);
    come(&p[5], s, 2, &job, 0);
    person *all[] = {&p[0], &p[3], &p[4], &p[5]};
    for (int i = 0; i < 4; i++) end_well(all[i]);
    for (int i = 0; i < 4; i++) begin(all[i], leave);
    for (int i = 0; i < 4; i++) end_well(all[i]);
    wefti_scheduler_stop(s);
    wefti_identity_free(&job);
    wefti_identity_free(&first);
    wefti_identity_free(&second);
    wefti_identity_free(&like);
}

static void the_host_of_the_scheduler_counts_most(void **state) {
    (void)state;
    wefti_identity job = identity_of("a = 1"), other = identity_of("a = 2");
    wefti_scheduler_options o = test_scheduler(2);
    o.identity = "a = 1";
    o.hosted_by = 0;
    wefti_scheduler *s = start(&o);
    person p[3];
    come(&p[1], s, 1, &other, 0);
    is_refused(&p[1], "a is 2 here and 1 there|scheduler");
    test_wait_until(s, nobody_is_here);
    come(&p[0], s, 0, &job, 0);
    come(&p[2], s, 1, &job, 0);
    go_on(&p[0], &p[2]);
    wefti_scheduler_stop(s);
    wefti_identity_free(&job);
    wefti_identity_free(&other);
}

/* The first one has gone again: what it ran is nobody's. */
static void one_that_left_does_not_count(void **state) {
    (void)state;
    wefti_identity job = identity_of("a = 1"), other = identity_of("a = 2");
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    person p[3] = {{.options = test_member(wefti_scheduler_address(s))}};
    p[0].options.identity = &other;
    p[0].options.join_seconds = 0.1;
    begin(&p[0], join);
    end(&p[0]);
    assert_int_equal(p[0].status, WEFT_E_TIMEOUT);
    test_wait_until(s, nobody_is_here);
    come(&p[1], s, 0, &job, 0);
    come(&p[2], s, 1, &job, 0);
    go_on(&p[1], &p[2]);
    wefti_scheduler_stop(s);
    wefti_identity_free(&job);
    wefti_identity_free(&other);
}

/* --- launchers --- */

static wefti_member_options launcher(const wefti_scheduler *s, uint64_t number, const char *job) {
    wefti_member_options o = test_member(wefti_scheduler_address(s));
    o.launcher = number;
    o.ranks = (wefti_span){1, 1};
    o.job = job;
    return o;
}

/* The launcher of a refused process loses its ranks, and its word. */
static void a_launcher_is_refused_with_its_process(void **state) {
    (void)state;
    enum { SECONDS = 60 };
    wefti_identity job = identity_of("a = 1"), other = identity_of("a = 2"),
                   third = identity_of("a = 3");
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    const wefti_end ended = {.rank = 1, .code = 1, .text = "rank 1 ended with exit code 1"};
    const wefti_member_options theirs = launcher(s, OTHER_LAUNCHER, ""),
                               ours = launcher(s, OTHER_LAUNCHER + 1, "");
    wefti_watch *first, *second;
    wefti_report *word;
    person p[3];
    ASSERT_OK(wefti_watch_begin(&theirs, &theirs.ranks, &first));
    ASSERT_OK(wefti_watch_registered(first, SECONDS));
    come(&p[0], s, 0, &job, 0);
    test_wait_until(s, one_is_here);
    come(&p[1], s, 1, &other, OTHER_LAUNCHER);
    is_refused(&p[1], "a is 2 here and 1 there");
    ASSERT_SOON(wefti_watch_registered(first, 0) == WEFT_E_MISMATCH);
    ASSERT_OK(wefti_report_begin(&theirs, &ended, &word));
    ASSERT_SOON(!wefti_report_is_under_way(word));
    wefti_report_end(word, 0, true);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 0), WEFTI_SCHEDULER_FORMING);
    wefti_watch_end(first);
    /* It hears its own reason, whoever was refused since. */
    come(&p[2], s, 1, &third, OTHER_LAUNCHER + 2);
    is_refused(&p[2], "a is 3 here and 1 there");
    ASSERT_OK(wefti_watch_begin(&theirs, &theirs.ranks, &first));
    ASSERT_FAILS(WEFT_E_MISMATCH, "a is 2 here and 1 there",
                 wefti_watch_registered(first, SECONDS));
    wefti_watch_end(first);
    ASSERT_OK(wefti_watch_begin(&ours, &ours.ranks, &second));
    ASSERT_OK(wefti_watch_registered(second, SECONDS));
    come(&p[2], s, 1, &job, OTHER_LAUNCHER + 1);
    go_on(&p[0], &p[2]);
    wefti_watch_end(second);
    wefti_scheduler_stop(s);
    wefti_identity_free(&job);
    wefti_identity_free(&third);
    wefti_identity_free(&other);
}

static void launchers_name_their_job(void **state) {
    (void)state;
    enum { SECONDS = 60 };
    wefti_scheduler_options o = test_scheduler(2);
    o.job = "this";
    wefti_scheduler *s = start(&o);
    const wefti_member_options right = launcher(s, 1, "this"), wrong = launcher(s, 2, "other"),
                               none = launcher(s, 3, NULL);
    wefti_watch *watch;
    ASSERT_OK(wefti_watch_begin(&wrong, &wrong.ranks, &watch));
    ASSERT_FAILS(WEFT_E_MISMATCH, "job 'this'|job 'other'|WEFT_JOB",
                 wefti_watch_registered(watch, SECONDS));
    wefti_watch_end(watch);
    ASSERT_OK(wefti_watch_begin(&none, &none.ranks, &watch));
    ASSERT_FAILS(WEFT_E_MISMATCH, "job 'this'|job ''", wefti_watch_registered(watch, SECONDS));
    wefti_watch_end(watch);
    ASSERT_OK(wefti_watch_begin(&right, &right.ranks, &watch));
    ASSERT_OK(wefti_watch_registered(watch, SECONDS));
    wefti_watch_end(watch);
    wefti_scheduler_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_both_have_are_compared),
        cmocka_unit_test(long_values_differ_at_their_end),
        cmocka_unit_test(other_texts_are_refused),
        cmocka_unit_test(frames_are_checked),
        cmocka_unit_test(an_unlike_one_is_refused_alone),
        cmocka_unit_test(those_of_the_launcher_count_more),
        cmocka_unit_test(each_that_came_first_is_compared),
        cmocka_unit_test(the_host_of_the_scheduler_counts_most),
        cmocka_unit_test(one_that_left_does_not_count),
        cmocka_unit_test(a_launcher_is_refused_with_its_process),
        cmocka_unit_test(launchers_name_their_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
