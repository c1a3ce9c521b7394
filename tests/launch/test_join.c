/* Joining by a launcher's variables: processes become a world with a working communicator. */
#include "join_cases.h"

/* --- weft launch: a scheduler elsewhere */

static int launched(int number, outcome *out) {
    usleep((useconds_t)(1000 * ((number * 7) % 5)));
    set_number("WEFT_RANK", number);
    return join_and_use(out);
}

static void by_weft_launch(void **state) {
    (void)state;
    int port = free_port();
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    setenv("WEFT_SCHEDULER", address, 1);
    setenv("WEFT_LAUNCH", "1", 1);
    set_number("WEFT_SIZE", RANKS);
    begin(RANKS, launched); /* before this process has threads */
    wefti_scheduler_options o = test_scheduler(RANKS);
    wefti_scheduler *s;
    assert_int_equal(wefti_secret_read(secret, &o.secret), WEFT_OK);
    o.port = port;
    assert_int_equal(wefti_scheduler_start(&o, &s), WEFT_OK);
    all_worked(RANKS, "host");
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(outcomes[i].rank, i);
        assert_int_equal(outcomes[i].local_rank, i);
        assert_int_equal(outcomes[i].hosts, 1);
    }
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 5), WEFTI_SCHEDULER_LEFT);
    wefti_scheduler_stop(s);
    unsetenv("WEFT_SCHEDULER");
    unsetenv("WEFT_LAUNCH");
    unsetenv("WEFT_SIZE");
}

/* --- torchrun */

static void by_torchrun(void **state) {
    (void)state;
    torch_variables(true);
    begin(RANKS, torchrun);
    all_worked(RANKS, "host");
    torch_variables(false);
}

static void over_tls(void **state) {
    (void)state;
#ifdef WEFT_HAVE_OPENSSL
    setenv("WEFT_TLS", "1", 1);
    by_torchrun(state);
    unsetenv("WEFT_TLS");
#else
    print_message("SKIP: this build has no OpenSSL\n");
#endif
}

/* --- several hosts, all of them this one */

static int on_two_hosts(int number, outcome *out) {
    set_number("WEFT_HOST_ID", number / 2);
    set_number("RANK", number);
    unsetenv("LOCAL_WORLD_SIZE");
    return join_and_use(out);
}

/* Messages between hosts are authenticated, or encrypted with everything else. */
static void join_two_hosts(const char *expected) {
    torch_variables(true);
    begin(RANKS, on_two_hosts);
    int bad = finish(RANKS);
    torch_variables(false);
    if (carrier_missing(RANKS)) return;
    assert_int_equal(bad, 0);
    for (int i = 0; i < RANKS; i++) {
        assert_string_equal(outcomes[i].communicator, expected);
        assert_int_equal(outcomes[i].hosts, 2);
        assert_int_equal(outcomes[i].local_size, 2);
        assert_int_equal(outcomes[i].local_rank, i % 2);
        assert_true(outcomes[i].sum == (float)((1 << RANKS) - 1));
    }
}

static void two_hosts(void **state) {
    (void)state;
    join_two_hosts("host+mac");
}

static void two_hosts_over_tls(void **state) {
    (void)state;
#ifdef WEFT_HAVE_OPENSSL
    setenv("WEFT_TLS", "1", 1);
    join_two_hosts("host+tls");
    unsetenv("WEFT_TLS");
#else
    print_message("SKIP: this build has no OpenSSL\n");
#endif
}

static void by_messages_alone(void **state) {
    (void)state;
    static const char *const names[] = {"mac", "tls", "ucx"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        torch_variables(true);
        setenv("WEFT_COMM", names[k], 1);
        begin(RANKS, torchrun);
        int bad = finish(RANKS);
        unsetenv("WEFT_COMM");
        torch_variables(false);
        if (carrier_missing(RANKS)) continue;
        assert_int_equal(bad, 0);
        for (int i = 0; i < RANKS; i++) {
            assert_string_equal(outcomes[i].communicator, names[k]);
            assert_true(outcomes[i].sum == (float)((1 << RANKS) - 1));
        }
    }
}

static int unlike_others(int number, outcome *out) {
    setenv("WEFT_COMM", number == 2 ? "ucx" : "host", 1);
    return torchrun(number, out);
}

static void one_wants_another(void **state) {
    (void)state;
    torch_variables(true);
    begin(RANKS, unlike_others);
    assert_int_equal(finish(RANKS), RANKS);
    torch_variables(false);
    for (int i = 0; i < RANKS; i++) {
        assert_non_null(strstr(outcomes[i].text, "rank 2"));
        assert_non_null(strstr(outcomes[i].text, "WEFT_COMM"));
    }
}

/* Links of files that differ would let ranks choose different algorithms. */
static int other_links(int number, outcome *out) {
    char path[96], text[256];
    snprintf(path, sizeof path, "%s/links%d.json", folder, number);
    int bytes = snprintf(text, sizeof text,
                         "{\"version\": 1, \"communicator\": \"ucx\", \"ranks\": 2, \"hosts\": 1, "
                         "\"links\": {\"same_host\": {\"latency_seconds\": 1e-5, "
                         "\"bytes_per_second\": %d}, \"between_hosts\": null}}",
                         getenv("TEST_SAME_LINKS") || number != 2 ? 7000 : 8000);
    if (wefti_file_write(path, text, (size_t)bytes) < 0) return 6;
    setenv("WEFT_LINKS", path, 1);
    return torchrun(number, out);
}
static void links_are_the_same(void **state) {
    (void)state;
    torch_variables(true);
    begin(RANKS, other_links);
    assert_int_equal(finish(RANKS), RANKS);
    for (int i = 0; i < RANKS; i++) {
        assert_non_null(strstr(outcomes[i].text, "measured links"));
        assert_non_null(strstr(outcomes[i].text, "7000 bytes/s"));
        assert_non_null(strstr(outcomes[i].text, "8000 bytes/s"));
    }
    setenv("TEST_SAME_LINKS", "1", 1);
    begin(RANKS, other_links);
    unsetenv("TEST_SAME_LINKS");
    all_worked(RANKS, "host");
    torch_variables(false);
}

static int host_only(int number, outcome *out) {
    setenv("WEFT_COMM", "host", 1);
    return on_two_hosts(number, out);
}

static void not_on_one_host(void **state) {
    (void)state;
    torch_variables(true);
    begin(RANKS, host_only);
    assert_int_equal(finish(RANKS), RANKS);
    torch_variables(false);
    for (int i = 0; i < RANKS; i++) ASSERT_FACTS(outcomes[i].text, "WEFT_COMM is host|2 hosts");
}

/* --- alone, and not at all */

static int alone(int number, outcome *out) {
    (void)number;
    return join_and_use(out);
}
static void without_launcher(void **state) {
    (void)state;
    begin(1, alone);
    all_worked(1, "none");
}

static int scheduler_role(int number, outcome *out) {
    (void)number;
    setenv("MS_ROLE", "MS_SCHED", 1);
    setenv("MS_WORKER_NUM", "2", 1);
    setenv("MS_SCHED_HOST", "127.0.0.1", 1);
    setenv("MS_SCHED_PORT", "12345", 1);
    return join_and_use(out);
}
static int readable_secret(int number, outcome *out) {
    if (chmod(secret, 0644) != 0) return 5;
    return torchrun(number, out);
}
static int wrong_communicator(int number, outcome *out) {
    setenv("WEFT_COMM", "pigeons", 1);
    return torchrun(number, out);
}
static const char *not_encrypted;
static int wants_tls_in_the_open(int number, outcome *out) {
    setenv("WEFT_COMM", not_encrypted, 1);
    setenv("WEFT_TLS", "1", 1);
    return torchrun(number, out);
}
static void refused(void **state) {
    (void)state;
    begin(1, scheduler_role);
    assert_int_equal(finish(1), 1);
    ASSERT_FACTS(outcomes[0].text, "MS_ROLE is MS_SCHED");
    torch_variables(true);
    begin(1, wrong_communicator);
    assert_int_equal(finish(1), 1);
    ASSERT_FACTS(outcomes[0].text, "WEFT_COMM is 'pigeons'|host|mac|tls|ucx|mpi");
    static const char *const open[] = {"mac", "ucx", "mpi"}; /* none of them encrypts */
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        not_encrypted = open[i];
        begin(1, wants_tls_in_the_open);
        assert_int_equal(finish(1), 1);
        assert_int_equal(outcomes[0].status, WEFT_E_ARG);
        ASSERT_FACTS(outcomes[0].text, "TLS|WEFT_COMM is '");
        ASSERT_FACTS(outcomes[0].text, not_encrypted);
    }
    begin(1, readable_secret);
    assert_int_equal(finish(1), 1);
    assert_non_null(strstr(outcomes[0].text, "chmod 600"));
    assert_int_equal(chmod(secret, 0600), 0);
    torch_variables(false);
}

static int make_folder(void **state) {
    (void)state;
    return make_join_folder("join");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_weft_launch),
        cmocka_unit_test(by_torchrun),
        cmocka_unit_test(over_tls),
        cmocka_unit_test(two_hosts),
        cmocka_unit_test(two_hosts_over_tls),
        cmocka_unit_test(by_messages_alone),
        cmocka_unit_test(links_are_the_same),
        cmocka_unit_test(one_wants_another),
        cmocka_unit_test(not_on_one_host),
        cmocka_unit_test(without_launcher),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
