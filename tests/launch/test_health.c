/* Whether a job makes steps: what follows of each state of its ranks, how fast they are, whom the
 * scheduler answers, and where a job is found. (weft-test: threads) */
#include "lanes.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/io.h"
#include "launch/health/health.h"

/* --- judging --- */

static const int64_t second_ns = 1000000000;

static weft_health judged(wefti_job_state state, const wefti_rank_health *rank, int ranks,
                          double limit) {
    static wefti_job_health job;
    weft_health h;
    job =
        (wefti_job_health){.state = state, .size = 3, .here = ranks, .restarts = 2, .ranks = ranks};
    snprintf(job.text, sizeof job.text, "rank 1 died");
    assert_int_equal(wefti_health_judge(&job, rank, limit, &h), WEFT_OK);
    assert_null(strchr(h.text, '\n'));
    return h;
}

/* One rank that makes no steps is enough; of several the worst is named. */
static void each_state_counts(void **state) {
    (void)state;
    static const char *const facts[] = {
        [WEFT_HEALTH_JOINING] = "no steps|rank 1|begun no",
        [WEFT_HEALTH_STEPPING] = "3 ranks|step 9|4 a second|rank 2|5.0 s ago|limit 60 s|2 restarts",
        [WEFT_HEALTH_HALTED] = "no steps|rank 1|halted",
        [WEFT_HEALTH_MENDING] = "no steps|rank 1|mended",
        [WEFT_HEALTH_LOST] = "no steps|rank 1|lost",
        [WEFT_HEALTH_LEAVING] = "no steps|rank 1|ended",
    };
    for (int s = WEFT_HEALTH_JOINING; s <= WEFT_HEALTH_LEAVING; s++) {
        wefti_rank_health rank[3];
        for (int r = 0; r < 3; r++)
            rank[r] = (wefti_rank_health){.state = WEFT_HEALTH_STEPPING,
                                          .step = 9 + r,
                                          .step_ns = (3 + r) * second_ns,
                                          .pace_ns = second_ns / (4 + r)};
        rank[1].state = (weft_health_state)s;
        weft_health h = judged(WEFTI_JOB_RUNNING, rank, 3, 0);
        assert_true(h.makes_steps == (s == WEFT_HEALTH_STEPPING));
        ASSERT_FACTS(h.text, facts[s]);
        assert_int_equal(h.step, 9);
        assert_int_equal(h.restarts, 2);
        assert_string_not_equal(weft_health_state_name((weft_health_state)s), "unknown");
        weft_health_free(&h);
        rank[2].state = WEFT_HEALTH_LOST;
        h = judged(WEFTI_JOB_RUNNING, rank, 3, 0);
        assert_false(h.makes_steps);
        ASSERT_FACTS(h.text, s == WEFT_HEALTH_LOST ? "rank 1|1 more" : "rank 2|lost");
        weft_health_free(&h);
    }
}

static void jobs_without_ranks(void **state) {
    (void)state;
    static const char *const facts[] = {[WEFTI_JOB_FORMING] = "no steps|0 of 3",
                                        [WEFTI_JOB_RUNNING] = "no steps|0 of 3",
                                        [WEFTI_JOB_LEFT] = "no steps|all ranks",
                                        [WEFTI_JOB_FAILED] = "no steps|has failed|rank 1"};
    for (int s = 0; s < WEFTI_JOB_STATES; s++) {
        weft_health h = judged((wefti_job_state)s, NULL, 0, 0);
        assert_false(h.makes_steps);
        ASSERT_FACTS(h.text, facts[s]);
        weft_health_free(&h);
    }
}

/* Long steps may take long; an own limit counts whatever they take. */
static void the_limit_follows_the_steps(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    for (int round = 0; round < 500; round++) {
        wefti_rank_health rank[3];
        int64_t slowest = 0, oldest = 0;
        const double own = round % 2 ? 0.5 + (double)(test_random(&seed) % 100) : 0;
        for (int r = 0; r < 3; r++) {
            rank[r] =
                (wefti_rank_health){.state = WEFT_HEALTH_STEPPING,
                                    .step = 1,
                                    .step_ns = (int64_t)(test_random(&seed) % 200) * second_ns + 1,
                                    .pace_ns = (int64_t)(test_random(&seed) % 30) * second_ns};
            if (rank[r].step_ns > oldest) oldest = rank[r].step_ns;
            if (rank[r].pace_ns == 0) slowest = INT64_MAX;
            if (rank[r].pace_ns > slowest) slowest = rank[r].pace_ns;
        }
        const int64_t ten = slowest == INT64_MAX ? 0 : 10 * slowest;
        const double limit = own > 0 ? own : ten > 60 * second_ns ? (double)ten * 1e-9 : 60;
        weft_health h = judged(WEFTI_JOB_RUNNING, rank, 3, own);
        assert_true(h.limit_seconds > limit * 0.999 && h.limit_seconds < limit * 1.001);
        assert_true(h.makes_steps == ((double)oldest * 1e-9 <= h.limit_seconds));
        weft_health_free(&h);
    }
}

/* --- asking --- */

static void write_secret(const char *path, char c) {
    char text[64];
    memset(text, c, sizeof text);
    assert_int_equal(wefti_file_write(path, text, sizeof text), WEFT_OK);
    assert_int_equal(chmod(path, 0600), 0);
}

static bool one_steps(const wefti_scheduler *s) {
    return s->taken == 2 && s->live.ranks[0].pace.step == 4;
}

/* The whole way: heartbeats bring the step, and whoever knows the secret hears of it. */
static void the_scheduler_answers(void **state) {
    (void)state;
    char folder[] = "/tmp/weft-health-XXXXXX", secret[64], other[64], address[64];
    assert_non_null(mkdtemp(folder));
    snprintf(secret, sizeof secret, "%s/secret", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    write_secret(secret, 'a');
    write_secret(other, 'b');
    wefti_scheduler_options o = test_scheduler(2);
    o.heartbeat_seconds = 1;
    assert_int_equal(wefti_secret_read(secret, &o.secret), WEFT_OK);
    wefti_scheduler *s = start(&o);
    snprintf(address, sizeof address, "%s", wefti_scheduler_address(s));
    weft_health_options ask =
        WEFT_STRUCT(weft_health_options, .scheduler = address, .secret_file = secret,
                    .tls = test_over_tls, .timeout_seconds = 20);
    weft_health h;
    assert_int_equal(weft_health_ask(&ask, &h), WEFT_OK);
    ASSERT_FACTS(h.text, "no steps|0 of 2");
    assert_string_equal(h.scheduler, ask.scheduler);
    weft_health_free(&h);

    wefti_member *m[2];
    static test_lane lane;
    prepare(&lane, 1, ask.scheduler);
    lane.options.secret = o.secret;
    lane.options.rank = 1;
    lane.swaps = 1;
    test_lanes_start(&lane, 1);
    wefti_member_options mine = test_member(ask.scheduler);
    mine.secret = o.secret;
    mine.rank = 0;
    mine.host = "here";
    assert_int_equal(wefti_member_join(&mine, &m[0]), WEFT_OK);
    wefti_position *position;
    assert_int_equal(wefti_position_create(&position), WEFT_OK);
    wefti_member_watch(m[0], NULL, position);
    wefti_position_step(position, 4);
    test_wait_until(s, one_steps);
    assert_int_equal(weft_health_ask(&ask, &h), WEFT_OK);
    assert_int_equal(h.ranks, 2);
    assert_int_equal(h.rank[0].step, 4);
    assert_int_equal(h.rank[0].state, WEFT_HEALTH_STEPPING);
    assert_int_equal(h.rank[1].state, WEFT_HEALTH_JOINING);
    assert_true(h.generation == wefti_member_generation(m[0]) && !h.makes_steps);
    weft_health_free(&h);

    ask.secret_file = other;
    assert_int_equal(weft_health_ask(&ask, &h), WEFT_E_ARG);
    assert_null(h.text);
    ASSERT_FACTS(weft_error_message(), "secret");
    bool wrong = false;
    assert_int_equal(test_swap(m[0], 0, &wrong), WEFT_OK); /* it has harmed nothing */
    (void)wefti_member_close(m[0], NULL);
    test_lanes_join(&lane, 1);
    wefti_position_destroy(position);
    ask.secret_file = secret;
    assert_int_equal(weft_health_ask(&ask, &h), WEFT_OK);
    assert_false(h.makes_steps);
    weft_health_free(&h);
    wefti_scheduler_stop(s);
    ask.timeout_seconds = 0.2;
    assert_int_equal(weft_health_ask(&ask, &h), WEFT_E_TIMEOUT);
    ASSERT_FACTS(weft_error_message(), "not answered");
    ask.scheduler = "nowhere";
    assert_int_equal(weft_health_ask(&ask, &h), WEFT_E_ARG);
    unlink(secret);
    unlink(other);
    rmdir(folder);
}

/* --- finding --- */

static void add_process(const char *folder, const char *number, const char *environment,
                        size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, number);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/environ", folder, number);
    assert_int_equal(wefti_file_write(path, environment, bytes), WEFT_OK);
}
#define ADD_PROCESS(number, text) add_process(folder, number, text, sizeof(text))

static void finds_the_job_of_this_host(void **state) {
    (void)state;
    char folder[] = "/tmp/weft-find-XXXXXX";
    wefti_job_place at;
    assert_non_null(mkdtemp(folder));
    ADD_PROCESS("self", "WEFT_LAUNCH=1\0WEFT_SCHEDULER=h:1\0WEFT_SECRET_FILE=/s");
    ADD_PROCESS("11", "HOME=/root\0WEFT_SCHEDULER=h:1\0WEFT_SECRET_FILE=/s"); /* of a user */
    ADD_PROCESS("12", "");
    ADD_PROCESS("13", "WEFT_LAUNCH=1\0XWEFT_SCHEDULER=h:1\0WEFT_SECRET_FILE=/s");
    assert_int_equal(wefti_job_find(folder, NULL, &at), WEFT_E_NOT_FOUND);
    ADD_PROCESS("20", "A=1\0WEFT_LAUNCH=1\0WEFT_SCHEDULER=127.0.0.1:9\0WEFT_SECRET_FILE=/x/s");
    ADD_PROCESS("21", "WEFT_LAUNCH=1\0WEFT_SCHEDULER=127.0.0.1:9\0WEFT_SECRET_FILE=/x/s");
    assert_int_equal(wefti_job_find(folder, NULL, &at), WEFT_OK);
    assert_string_equal(at.scheduler, "127.0.0.1:9");
    assert_string_equal(at.secret_file, "/x/s");
    assert_false(at.tls);
    ADD_PROCESS("22",
                "WEFT_LAUNCH=1\0WEFT_SCHEDULER=127.0.0.1:10\0WEFT_SECRET_FILE=/y\0WEFT_TLS=1");
    assert_int_equal(wefti_job_find(folder, NULL, &at), WEFT_E_ARG);
    wefti_job_place *jobs;
    int64_t count;
    ASSERT_OK(wefti_jobs_find(folder, &jobs, &count));
    assert_int_equal(count, 2); /* two processes of one job are one */
    ASSERT_FACTS(weft_error_message(), "several");
    assert_int_equal(wefti_job_find(folder, NULL, &at), WEFT_E_ARG);
    ASSERT_FACTS(weft_error_message(), jobs[0].name);
    ASSERT_FACTS(weft_error_message(), jobs[1].name);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(wefti_job_find(folder, jobs[i].name, &at), WEFT_OK);
        assert_string_equal(at.scheduler, jobs[i].scheduler);
        assert_string_equal(at.secret_file, jobs[i].secret_file);
    }
    assert_true(at.tls);
    assert_int_equal(wefti_job_find(folder, "nosuch", &at), WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE("nosuch|weft jobs");
    wefti_free(jobs);
    assert_int_equal(wefti_remove_tree(folder), WEFT_OK);
}

/* --- several at once --- */

/* A scheduler that hears nothing until somebody has called another, which never answers. */
typedef struct deaf {
    wefti_scheduler *s;
    int listener, connection;
    _Atomic bool holds;
} deaf;

static void *hold(void *context) {
    deaf *d = context;
    pthread_mutex_lock(&d->s->lock);
    d->holds = true;
    d->connection = accept(d->listener, NULL, NULL);
    pthread_mutex_unlock(&d->s->lock);
    return NULL;
}

static int listen_in_silence(char address[64]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    assert_true(listen(fd, 4) == 0 && getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
    snprintf(address, 64, "127.0.0.1:%d", ntohs(at.sin_port));
    return fd;
}

/* If they were asked one after the other, the first would not answer. */
static void all_are_asked_at_once(void **state) {
    (void)state;
    char folder[] = "/tmp/weft-health-XXXXXX", secret[64], first[64], second[64];
    assert_non_null(mkdtemp(folder));
    snprintf(secret, sizeof secret, "%s/secret", folder);
    write_secret(secret, 'a');
    wefti_scheduler_options o = test_scheduler(2);
    assert_int_equal(wefti_secret_read(secret, &o.secret), WEFT_OK);
    deaf d = {.s = start(&o), .listener = listen_in_silence(second), .connection = -1};
    snprintf(first, sizeof first, "%s", wefti_scheduler_address(d.s));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, hold, &d), 0);
    ASSERT_SOON(d.holds);
    const weft_health_options ask[] = {
        WEFT_STRUCT(weft_health_options, .scheduler = first, .secret_file = secret,
                    .timeout_seconds = 30),
        WEFT_STRUCT(weft_health_options, .scheduler = second, .secret_file = secret,
                    .timeout_seconds = 0.5),
        WEFT_STRUCT(weft_health_options, .scheduler = "nowhere", .secret_file = secret)};
    weft_health_answer answer[3];
    ASSERT_OK(weft_health_ask_all(ask, 3, answer));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(answer[0].status, WEFT_OK);
    assert_null(answer[0].error);
    ASSERT_FACTS(answer[0].health.text, "0 of 2");
    assert_string_equal(answer[0].health.scheduler, first);
    assert_int_equal(answer[1].status, WEFT_E_TIMEOUT);
    ASSERT_FACTS(answer[1].error, "not answered|0.5 s");
    assert_int_equal(answer[2].status, WEFT_E_ARG);
    ASSERT_FACTS(answer[2].error, "nowhere");
    weft_health_answers_free(answer, 3);
    ASSERT_OK(weft_health_ask_all(NULL, 0, NULL));
    assert_int_equal(weft_health_ask_all(NULL, 3, answer), WEFT_E_ARG);
    close(d.connection);
    close(d.listener);
    wefti_scheduler_stop(d.s);
    unlink(secret);
    rmdir(folder);
}

static void add_namespace(const char *folder, const char *number, const char *network) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s/ns", folder, number);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/ns/net", folder, number);
    assert_int_equal(symlink(network, path), 0);
}

/* Another namespace has addresses of its own: the job there neither hides the one here nor is
 * mistaken for it. */
static void jobs_of_other_networks(void **state) {
    (void)state;
    char folder[] = "/tmp/weft-find-XXXXXX";
    wefti_job_place at, *jobs;
    int64_t count;
    assert_non_null(mkdtemp(folder));
    ADD_PROCESS("self", "");
    add_namespace(folder, "self", "net:[1]");
    ADD_PROCESS("30",
                "WEFT_LAUNCH=1\0WEFT_SCHEDULER=127.0.0.1:9\0WEFT_SECRET_FILE=/s\0WEFT_SIZE=4");
    add_namespace(folder, "30", "net:[2]");
    assert_int_equal(wefti_job_find(folder, NULL, &at), WEFT_OK); /* the only one */
    assert_true(at.elsewhere);
    assert_int_equal(at.size, 4);
    ADD_PROCESS("31",
                "WEFT_LAUNCH=1\0WEFT_SCHEDULER=127.0.0.1:9\0WEFT_SECRET_FILE=/s\0WEFT_SIZE=2");
    add_namespace(folder, "31", "net:[1]");
    assert_int_equal(wefti_job_find(folder, NULL, &at), WEFT_OK);
    assert_false(at.elsewhere);
    assert_int_equal(at.size, 2);
    ASSERT_OK(wefti_jobs_find(folder, &jobs, &count));
    assert_int_equal(count, 2);
    assert_string_not_equal(jobs[0].name, jobs[1].name);
    wefti_free(jobs);
    /* one job of two hosts that are namespaces: it is here as well */
    ADD_PROCESS("40", "WEFT_LAUNCH=1\0WEFT_SCHEDULER=10.0.0.1:9\0WEFT_SECRET_FILE=/t");
    add_namespace(folder, "40", "net:[2]");
    ADD_PROCESS("41", "WEFT_LAUNCH=1\0WEFT_SCHEDULER=10.0.0.1:9\0WEFT_SECRET_FILE=/t");
    add_namespace(folder, "41", "net:[1]");
    ASSERT_OK(wefti_jobs_find(folder, &jobs, &count));
    assert_int_equal(count, 3);
    assert_false(jobs[2].elsewhere);
    wefti_free(jobs);
    assert_int_equal(wefti_remove_tree(folder), WEFT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_state_counts),           cmocka_unit_test(jobs_without_ranks),
        cmocka_unit_test(the_limit_follows_the_steps), cmocka_unit_test(the_scheduler_answers),
        TEST_OVER_TLS(the_scheduler_answers),          cmocka_unit_test(all_are_asked_at_once),
        cmocka_unit_test(finds_the_job_of_this_host),  cmocka_unit_test(jobs_of_other_networks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
