/* Joining by a launcher's variables: processes become a world with a working communicator, and all
 * learn of the end of each. */
#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "comm/world.h"
#include "control_cases.h"
#include "secret_folder.h"
#include "weft/collective.h"
#include "weft/transport.h"

enum { RANKS = 4, TEXT = 1024 };

typedef struct outcome {
    _Atomic int joined, failed, done, reductions;
    _Atomic int64_t at_ns;
    int rank, size, hosts, local_rank, local_size;
    float sum;
    weft_status status;
    char text[TEXT], communicator[32];
} outcome;

typedef int role(int number, outcome *out);

static outcome *outcomes;
static pid_t pids[RANKS];

static int make_folder(void **state) {
    (void)state;
    void *shared;
    if (make_secret_folder("join", &shared, RANKS * sizeof *outcomes) != 0) return -1;
    outcomes = shared;
    return setenv("WEFT_SECRET_FILE", secret, 1);
}
static int remove_folder(void **state) {
    (void)state;
    return remove_secret_folder(outcomes, RANKS * sizeof *outcomes);
}

static void begin(int count, role *what) {
    memset(outcomes, 0, RANKS * sizeof *outcomes);
    for (int i = 0; i < count; i++) {
        fflush(NULL);
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] > 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        _exit(what(i, &outcomes[i]));
    }
}

static int finish(int count) {
    int bad = 0, status;
    for (int i = 0; i < count; i++) {
        waitpid(pids[i], &status, 0);
        if (status != 0) {
            print_message("process %d: status %x, %s\n", i, (unsigned)status, outcomes[i].text);
            bad++;
        }
    }
    return bad;
}

static void set_number(const char *name, int value) {
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* A port that was free a moment ago, and is not one of those that the kernel gives away. */
static int free_port(void) {
    return wefti_port_of(folder, strlen(folder));
}

static int describe(outcome *out, weft_status status) {
    out->status = status;
    snprintf(out->text, sizeof out->text, "%s", weft_error_message());
    return 1;
}

static int use_world(weft_world *w, outcome *out) {
    out->rank = weft_world_rank(w);
    out->size = weft_world_size(w);
    out->hosts = weft_world_hosts(w);
    out->local_rank = weft_world_local_rank(w);
    out->local_size = weft_world_local_size(w);
    snprintf(out->communicator, sizeof out->communicator, "%s", weft_world_communicator(w));
    out->joined = 1;
    float mine = (float)(1 << out->rank);
    weft_status status = WEFT_OK;
    for (int i = 0; i < 10 && status >= 0; i++)
        status = weft_all_reduce(w, NULL, &mine, &out->sum, 1, WEFT_F32, WEFT_REDUCE_SUM);
    if (status < 0) describe(out, status);
    weft_world_leave(w);
    out->done = 1;
    return status < 0;
}

static int join_and_use(outcome *out) {
    weft_world *w;
    weft_world_options options = {.join_seconds = 20, .heartbeat_seconds = LONG_HEARTBEAT};
    weft_status status = weft_world_join(&options, &w);
    return status < 0 ? describe(out, status) : use_world(w, out);
}

static void all_worked(int count, const char *communicator) {
    assert_int_equal(finish(count), 0);
    for (int i = 0; i < count; i++) {
        const outcome *o = &outcomes[i];
        assert_true(o->joined && o->done);
        assert_int_equal(o->size, count);
        assert_true(o->sum == (float)((1 << count) - 1));
        assert_string_equal(o->communicator, communicator);
    }
}

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

/* --- torchrun: rank 0 is the scheduler's host */

static int torchrun(int number, outcome *out) {
    set_number("RANK", number);
    set_number("LOCAL_RANK", number);
    return join_and_use(out);
}

static void torch_variables(bool on) {
    static const char *const names[] = {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"};
    const int values[] = {RANKS, RANKS, free_port()};
    for (int i = 0; i < 3; i++)
        if (on)
            set_number(names[i], values[i]);
        else
            unsetenv(names[i]);
    if (on)
        setenv("MASTER_ADDR", "localhost", 1);
    else
        unsetenv("MASTER_ADDR");
}

static void by_torchrun(void **state) {
    (void)state;
    torch_variables(true);
    begin(RANKS, torchrun);
    all_worked(RANKS, "host");
    torch_variables(false);
}

/* --- calls that differ at the very end, where no later call finds it */

enum {
    LIKE,
    OTHER_ROOT,
    LEFT_OUT,
    LOST_MESSAGE,
    ONE_MESSAGE_LESS,
    OTHER_TAG,
    LOST_BLOCK,
    LOST_NEIGHBOR,
    OTHER_BLOCKS,
    UNLIKE_CASES
};
static int unlike_case;

/* The paths of messages: small ones go into shared memory or the network before the receiver takes
 * them. */
static const struct {
    const char *communicator;
    int hosts;     /* of neighbours... */
    bool by_turns; /* ...or not */
} roads[] = {{"host", 1, false},
             {"mac", 1, false},
             {"host+mac", 2, false},
             {"host+mac", 2, true},
             {"ucx", 1, false}};
enum { ROADS = sizeof roads / sizeof *roads };
static int unlike_road;

/* All messages are received, in another order than they are sent; an empty one may be lost. */
static weft_status like_messages(weft_world *w, int rank) {
    enum { TAGS = 3 };
    static float sent[TAGS] = {1, 2, 3}, received[TAGS];
    weft_request *request[TAGS];
    weft_status status = WEFT_OK;
    if (rank == 1) {
        for (int t = 0; t < TAGS && status >= 0; t++)
            status = weft_send(w, NULL, &sent[t], 1, WEFT_F32, 3, t);
        if (status >= 0) status = weft_send(w, NULL, NULL, 0, WEFT_F32, 3, TAGS);
    }
    if (rank != 3) return status;
    for (int t = TAGS - 1; t >= 0 && status >= 0; t--)
        status = weft_recv_start(w, NULL, &received[t], 1, WEFT_F32, 1, t, &request[t]);
    for (int t = 0; t < TAGS && status >= 0; t++) status = weft_request_wait(request[t]);
    return status;
}

/* Messages that nobody receives. */
static weft_status unlike_messages(weft_world *w, int rank) {
    float values[3] = {1, 2, 3};
    weft_status status = WEFT_OK;
    if (unlike_case == LOST_MESSAGE && rank == 0)
        return weft_send(w, NULL, values, 3, WEFT_F32, 2, 7);
    if (unlike_case == OTHER_TAG && rank == 3)
        for (int t = 7; t < 9 && status >= 0; t++)
            status = weft_send(w, NULL, values, 2, WEFT_F32, 2, t);
    if (unlike_case == OTHER_TAG && rank == 2) {
        static float left[2];
        weft_request *request;
        status = weft_recv_start(w, NULL, left, 2, WEFT_F32, 3, 9, &request);
        if (status >= 0) status = weft_recv(w, NULL, values, 2, WEFT_F32, 3, 7);
    }
    if (unlike_case != ONE_MESSAGE_LESS) return status;
    for (int i = 0; i < 2 && rank == 3 && status >= 0; i++)
        status = weft_send(w, NULL, values, 2, WEFT_F32, 2, 7);
    return rank == 2 ? weft_recv(w, NULL, values, 2, WEFT_F32, 3, 7) : status;
}

/* Equal on all, but for the order of groups and what neighbours say to each other. */
static weft_status like_calls(weft_world *w, int rank) {
    weft_group *group[2];
    weft_request *request[2];
    float mine = 1, sum[2];
    int other = rank == 0 ? 1 : 0;
    int64_t one = 1;
    weft_status status = weft_barrier(w, NULL);
    for (int i = 0; i < 2 && status >= 0; i++)
        status = weft_group_create(w, (int[]){0, 1, 2, 3}, RANKS, &group[i]);
    for (int i = 0; i < 2 && status >= 0; i++) {
        int k = (i + rank) % 2;
        status = weft_all_reduce_start(w, group[k], &mine, &sum[k], 1, WEFT_F32,
                                       k ? WEFT_REDUCE_MAX : WEFT_REDUCE_SUM, &request[k]);
    }
    for (int i = 0; i < 2 && status >= 0; i++) status = weft_request_wait(request[i]);
    if (status >= 0 && rank < 2)
        status =
            weft_neighbor_exchange(w, NULL, &mine, &other, &one, 1, sum, &other, &one, 1, WEFT_F32);
    weft_group_destroy(group[rank % 2]);
    int64_t sent[RANKS] = {0}, received[RANKS] = {rank + 1};
    float values[RANKS * RANKS] = {0}, taken[RANKS];
    for (int m = 0; m < RANKS && rank == 0; m++) sent[m] = m + 1;
    if (status >= 0) status = weft_all_to_all_v(w, NULL, values, sent, taken, received, WEFT_F32);
    return status >= 0 ? like_messages(w, rank) : status;
}

/* One that has no memory for a call makes it again, until it has. */
static weft_status repeated_call(weft_world *w, int rank) {
    static float values[5];
    weft_status status = WEFT_E_NOMEM;
    for (int nth = 0; rank == 2 && status == WEFT_E_NOMEM; nth++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        status = weft_broadcast(w, NULL, values, 5, WEFT_F32, 3);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (nth == 0 && status >= 0) return weft_error_raise(WEFT_E_ARG, "it needs no memory");
    }
    return rank == 2 ? status : weft_broadcast(w, NULL, values, 5, WEFT_F32, 3);
}

/* Blocks that nobody looks for. */
static weft_status unlike_blocks(weft_world *w, int rank) {
    static const float values[RANKS] = {1, 2, 3, 4};
    int64_t sent[RANKS] = {0}, none[RANKS] = {0};
    if (unlike_case == LOST_BLOCK) {
        if (rank == 2) sent[1] = 3;
        return weft_all_to_all_v(w, NULL, values, sent, NULL, none, WEFT_F32);
    }
    bool odd = unlike_case == LOST_NEIGHBOR ? rank == 3 : rank == 0;
    if (unlike_case < LOST_BLOCK || !odd) return WEFT_OK;
    int to = unlike_case == LOST_NEIGHBOR ? 0 : 3;
    return weft_neighbor_exchange(w, NULL, values, &to, (int64_t[]){2}, 1, NULL, NULL, NULL, 0,
                                  WEFT_F32);
}

static int unlike(int number, outcome *out) {
    weft_world *w;
    weft_world_options options = {.join_seconds = 20, .heartbeat_seconds = LONG_HEARTBEAT};
    int hosts = roads[unlike_road].hosts;
    set_number("RANK", number);
    set_number("LOCAL_RANK", number);
    if (hosts > 1) {
        set_number("WEFT_HOST_ID",
                   roads[unlike_road].by_turns ? number % hosts : number / (RANKS / hosts));
        unsetenv("LOCAL_RANK");
        unsetenv("LOCAL_WORLD_SIZE");
    } else {
        setenv("WEFT_COMM", roads[unlike_road].communicator, 1);
    }
    weft_status status = weft_world_join(&options, &w);
    if (status < 0) return describe(out, status);
    snprintf(out->communicator, sizeof out->communicator, "%s", weft_world_communicator(w));
    float value = 1;
    status = like_calls(w, number);
    if (status >= 0 && unlike_case == LIKE) status = repeated_call(w, number);
    if (status >= 0 && unlike_case == OTHER_ROOT)
        status = weft_broadcast(w, NULL, &value, 1, WEFT_F32, number == 1 ? 1 : 0);
    if (status >= 0 && unlike_case == LEFT_OUT && number == 0)
        status = weft_broadcast(w, NULL, &value, 1, WEFT_F32, 0);
    if (status >= 0) status = unlike_messages(w, number);
    if (status >= 0) status = unlike_blocks(w, number);
    describe(out, status); /* one that is late hears it in a call */
    weft_status end = weft_world_close(w);
    if (status >= 0) describe(out, end);
    return 0;
}

static bool carrier_missing(int count) {
    for (int i = 0; i < count; i++)
        if (outcomes[i].status == WEFT_E_NO_IMPL) {
            print_message("SKIP: %s\n", outcomes[i].text);
            return true;
        }
    return false;
}

/* False: this build has no such carrier. */
static bool is_told(const char *named) {
    const char *communicator = roads[unlike_road].communicator;
    torch_variables(true);
    begin(RANKS, unlike);
    int bad = finish(RANKS);
    torch_variables(false);
    if (carrier_missing(RANKS)) return false;
    assert_int_equal(bad, 0);
    for (int i = 0; i < RANKS; i++) {
        const outcome *o = &outcomes[i];
        bool told = o->status == WEFT_E_MISMATCH || o->status == WEFT_E_PEER;
        assert_string_equal(o->communicator, communicator);
        if (named ? !told || !has_facts(o->text, named) : o->status != WEFT_OK)
            fail_msg("case %d by %s %d, rank %d: status %d, '%s'", unlike_case, communicator,
                     unlike_road, i, (int)o->status, o->text);
    }
    return true;
}

/* Whoever leaves first, the odd one is compared with another. */
static void unlike_at_the_end(void **state) {
    (void)state;
    static const char *const named[UNLIKE_CASES] = {
        [OTHER_ROOT] = "rank 1 in all 4 ranks|5 calls|a broadcast|root member 1",
        [LEFT_OUT] = "rank 0 in all 4 ranks|5 calls|a broadcast|root member 0",
        [LOST_MESSAGE] = "rank 0 in messages|from rank 0 to rank 2|1 sent|3 elements (f32)|tag 7|"
                         "rank 2 in none",
        [ONE_MESSAGE_LESS] = "rank 2 in messages|from rank 3 to rank 2|1 received|2 elements (f32)|"
                             "tag 7",
        [OTHER_TAG] = "2 sent|2 elements (f32)|tag 8",
        [LOST_BLOCK] = "rank 2 in exchanges|from rank 2 to rank 1|1 block|3 elements (f32)|"
                       "rank 1 in none",
        [LOST_NEIGHBOR] = "rank 3 in exchanges|from rank 3 to rank 0|1 block|2 elements (f32)|"
                          "rank 0 in none",
        [OTHER_BLOCKS] = "rank 3 in exchanges|from rank 0 to rank 3|1 block|4 elements (f32)"};
    bool there = true;
    for (unlike_road = 0; unlike_road < ROADS && there; unlike_road++)
        for (unlike_case = LIKE; unlike_case < UNLIKE_CASES && there; unlike_case++) {
            bool messages = unlike_case >= LOST_MESSAGE && unlike_case <= OTHER_TAG;
            /* In the network roots and blocks that differ may meet sooner. */
            if (unlike_road == 0 || unlike_case == LIKE || messages)
                there = is_told(named[unlike_case]);
        }
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

/* --- failures */

static bool await(_Atomic int *what, double seconds) {
    for (int64_t end = wefti_now_ns() + (int64_t)(seconds * 1e9); !*what; usleep(500))
        if (wefti_now_ns() > end) return false;
    return true;
}

static double go_on_heartbeat = LONG_HEARTBEAT;

/* Reduces until something breaks. */
static int go_on(int number, outcome *out) {
    weft_world *w;
    weft_world_options options = {.join_seconds = 20, .heartbeat_seconds = go_on_heartbeat};
    set_number("RANK", number);
    set_number("LOCAL_RANK", number);
    if (getenv("TEST_TWO_HOSTS")) {
        set_number("WEFT_HOST_ID", number / 2);
        unsetenv("LOCAL_WORLD_SIZE");
    }
    weft_status status = weft_world_join(&options, &w);
    if (status < 0) {
        describe(out, status);
        out->joined = -1;
        return 1;
    }
    out->joined = 1;
    float mine = 1, sum;
    while ((status = weft_all_reduce(w, NULL, &mine, &sum, 1, WEFT_F32, WEFT_REDUCE_SUM)) >= 0) {
        out->reductions++;
        if (number == 1 && getenv("TEST_GIVES_UP")) {
            weft_world_fail(w, TEST_REASON);
            setenv("TEST_GIVES_UP", "", 1);
        }
    }
    out->at_ns = wefti_now_ns();
    describe(out, status);
    out->failed = 1;
    weft_world_leave(w);
    return 0;
}

static void all_told(int but, int64_t since, double limit, const char *what) {
    for (int i = 0; i < RANKS; i++) {
        if (i == but) continue;
        assert_true(await(&outcomes[i].failed, limit + 20));
        if (!has_facts(outcomes[i].text, what))
            fail_msg("rank %d: '%s' without '%s'", i, outcomes[i].text, what);
        double took = (double)(outcomes[i].at_ns - since) * 1e-9;
        if (took > limit) fail_msg("rank %d heard of it after %.2f s", i, took);
    }
}

/* `signal` for one rank; the others are told in time. False: no UCX here. */
static bool strike(int rank, int signal) {
    go_on_heartbeat = signal == SIGSTOP ? SHORT_HEARTBEAT : LONG_HEARTBEAT;
    torch_variables(true);
    begin(RANKS, go_on);
    for (int i = 0; i < RANKS; i++) assert_true(await(&outcomes[i].joined, 20));
    bool without = carrier_missing(RANKS);
    if (!without) {
        for (int i = 0; i < RANKS; i++) ASSERT_SOON(20, outcomes[i].reductions >= 3);
        char name[64];
        snprintf(name, sizeof name, "rank %d", rank);
        int64_t now = wefti_now_ns();
        kill(pids[rank], signal);
        all_told(rank, now, signal == SIGSTOP ? STOP_SEEN : DEATH_SEEN, name);
        kill(pids[rank], SIGKILL);
    }
    for (int i = 0; i < RANKS; i++) waitpid(pids[i], NULL, 0);
    torch_variables(false);
    return !without;
}

static void rank_dies(void **state) {
    (void)state;
    for (int rank = 0; rank < RANKS; rank++) (void)strike(rank, SIGKILL);
}
static void rank_stops(void **state) {
    (void)state;
    for (int rank = 0; rank < RANKS; rank += RANKS - 1) (void)strike(rank, SIGSTOP);
}
static void between_hosts(void **state) {
    (void)state;
    setenv("TEST_TWO_HOSTS", "1", 1);
    bool there = true;
    for (int rank = 0; rank < RANKS && there; rank++) there = strike(rank, SIGKILL);
    for (int rank = 0; rank < RANKS && there; rank += 2) there = strike(rank, SIGSTOP);
    unsetenv("TEST_TWO_HOSTS");
}

static void rank_gives_up(void **state) {
    (void)state;
    torch_variables(true);
    setenv("TEST_GIVES_UP", "1", 1);
    go_on_heartbeat = LONG_HEARTBEAT;
    begin(RANKS, go_on);
    all_told(1, wefti_now_ns(), 30, TEST_REASON);
    all_told(1, wefti_now_ns(), 30, "rank 1");
    for (int i = 0; i < RANKS; i++) waitpid(pids[i], NULL, 0);
    unsetenv("TEST_GIVES_UP");
    torch_variables(false);
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

/* --- a transport: pipes through shared memory are enough for its cards */

typedef struct board { /* exchange without messages: everyone writes, then reads */
    _Atomic int arrived, left;
    unsigned char cards[RANKS][4096];
} board;
enum { ROUNDS = 16 };
static board *boards;

typedef struct pigeon {
    int rank, round, closed;
} pigeon;

static weft_status pigeon_exchange(void *context, const void *mine, size_t bytes, void *all) {
    pigeon *p = context;
    board *b = &boards[p->round++];
    if (bytes > sizeof b->cards[0] || p->round >= ROUNDS) return WEFT_E_ARG;
    memcpy(b->cards[p->rank], mine, bytes);
    b->arrived++;
    while (b->arrived < RANKS) usleep(100);
    for (int r = 0; r < RANKS; r++)
        memcpy((unsigned char *)all + bytes * (size_t)r, b->cards[r], bytes);
    return WEFT_OK;
}
static weft_status pigeon_send(void *c, int peer, uint64_t tag, const void *d, size_t n, void *q) {
    (void)c, (void)peer, (void)tag, (void)d, (void)n, (void)q;
    return WEFT_E_NO_IMPL;
}
static weft_status pigeon_receive(void *c, int peer, uint64_t tag, void *d, size_t n, void *q) {
    (void)c, (void)peer, (void)tag, (void)d, (void)n, (void)q;
    return WEFT_E_NO_IMPL;
}
static weft_status pigeon_test(void *c, void *q, size_t *n) {
    (void)c, (void)q, (void)n;
    return WEFT_E_NO_IMPL;
}
static void pigeon_cancel(void *c, void *q) {
    (void)c, (void)q;
}
static void pigeon_close(void *c) {
    ((pigeon *)c)->closed++;
}

static int over_transport(int number, outcome *out) {
    pigeon p = {.rank = number};
    weft_transport t = {
        "pigeons",      &p,          number,        RANKS,           false,        16,  pigeon_send,
        pigeon_receive, pigeon_test, pigeon_cancel, pigeon_exchange, pigeon_close, NULL};
    weft_world *w;
    weft_world_options options = {.join_seconds = 20, .heartbeat_seconds = LONG_HEARTBEAT};
    weft_status status = weft_world_from_transport(&t, &options, &w);
    int bad = status < 0 ? describe(out, status) : use_world(w, out);
    return bad || p.closed != 1;
}

static void from_transport(void **state) {
    (void)state;
    boards = mmap(NULL, ROUNDS * sizeof *boards, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                  -1, 0);
    assert_true(boards != MAP_FAILED);
    begin(RANKS, over_transport);
    all_worked(RANKS, "host");
    munmap(boards, ROUNDS * sizeof *boards);
}

/* What users set counts there too. */
static void transport_heeds_settings(void **state) {
    (void)state;
    pigeon p = {0};
    weft_transport t = {"pigeons",
                        &p,
                        0,
                        1,
                        false,
                        16,
                        pigeon_send,
                        pigeon_receive,
                        pigeon_test,
                        pigeon_cancel,
                        pigeon_exchange,
                        pigeon_close,
                        NULL};
    weft_world *w = NULL;
    setenv("WEFT_WAIT_SECONDS", "soon", 1);
    assert_int_equal(weft_world_from_transport(&t, NULL, &w), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "WEFT_WAIT_SECONDS is 'soon'"));
    assert_int_equal(p.closed, 1);
    unsetenv("WEFT_WAIT_SECONDS");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_weft_launch),    cmocka_unit_test(by_torchrun),
        cmocka_unit_test(unlike_at_the_end), cmocka_unit_test(over_tls),
        cmocka_unit_test(two_hosts),         cmocka_unit_test(two_hosts_over_tls),
        cmocka_unit_test(by_messages_alone), cmocka_unit_test(links_are_the_same),
        cmocka_unit_test(one_wants_another), cmocka_unit_test(not_on_one_host),
        cmocka_unit_test(rank_dies),         cmocka_unit_test(rank_stops),
        cmocka_unit_test(between_hosts),     cmocka_unit_test(rank_gives_up),
        cmocka_unit_test(without_launcher),  cmocka_unit_test(refused),
        cmocka_unit_test(from_transport),    cmocka_unit_test(transport_heeds_settings),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
