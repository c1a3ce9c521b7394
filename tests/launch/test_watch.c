/* The rank named when a rank dies, stops, gives up, or keeps the others waiting; and a scheduler
 * that is killed and started again. (weft-test: threads)
 * weft-test: computes
 */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "control_cases.h"

enum { RANKS = 4 };

/* --- members as processes, which report in shared memory */

typedef struct report {
    _Atomic int joined, reason; /* 1: so it is */
    _Atomic int swaps;          /* done so far; -1: wrong cards */
    _Atomic int64_t at_ns;      /* of the verdict */
    weft_status status;
    char text[1024];
} report;

typedef struct crew {
    int count, swaps, pipe[2];
    pid_t pid[RANKS];
    report *report; /* [count] */
} crew;

static void tell(report *r, weft_status status) {
    r->at_ns = wefti_now_ns();
    r->status = status;
    snprintf(r->text, sizeof r->text, "%s", weft_error_message());
    r->reason = 1;
}

static weft_status stay(wefti_member *m, report *r) {
    wefti_position *position;
    weft_status status = wefti_position_create(&position);
    if (status < 0) return status;
    wefti_position_step(position, 12);
    wefti_position_end_wait(position, false);
    wefti_member_watch(m, NULL, position);
    r->joined = 1;
    while ((status = wefti_member_check(m)) == WEFT_OK) usleep(1000);
    tell(r, status);
    (void)wefti_member_close(m, NULL);
    wefti_position_destroy(position);
    return WEFT_OK;
}

/* Exchanges cards, with pauses, through whatever happens to the scheduler. */
static int exchange(wefti_member *m, report *r, int swaps) {
    uint64_t dice = (uint64_t)wefti_member_rank(m);
    bool wrong = false;
    r->joined = 1;
    for (int i = 0; i < swaps; i++) {
        weft_status status = test_swap(m, i, &wrong);
        if (status < 0 || wrong) {
            r->swaps = -1;
            tell(r, status);
            (void)wefti_member_close(m, NULL);
            return 5;
        }
        r->swaps = i + 1;
        usleep((useconds_t)(test_random(&dice) % 3000));
    }
    (void)wefti_member_close(m, NULL);
    return 0;
}

static int member_process(int rank, int from, int swaps, report *r) {
    char address[64] = "";
    if (read(from, address, sizeof address) <= 0) return 2;
    wefti_member_options o = test_member(address);
    wefti_member *m;
    o.rank = rank;
    o.host = "here";
    if (wefti_member_join(&o, &m) < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, weft_error_message());
        return 3;
    }
    if (swaps > 0) return exchange(m, r, swaps);
    return stay(m, r) < 0 ? 4 : 0;
}

/* Forked before this process has threads of its own. */
static void crew_start(crew *c, int count, int swaps) {
    memset(c, 0, sizeof *c);
    c->count = count;
    c->swaps = swaps;
    c->report = mmap(NULL, (size_t)count * sizeof(report), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(c->report != MAP_FAILED);
    assert_int_equal(pipe2(c->pipe, O_DIRECT), 0); /* one packet for each */
    for (int i = 0; i < count; i++) {
        fflush(NULL);
        c->pid[i] = fork();
        assert_true(c->pid[i] >= 0);
        if (c->pid[i] > 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        close(c->pipe[1]);
        _exit(member_process(i, c->pipe[0], swaps, &c->report[i]));
    }
}

static bool await(_Atomic int *what, double seconds) {
    for (int64_t end = wefti_now_ns() + (int64_t)(seconds * 1e9); !*what; usleep(500))
        if (wefti_now_ns() > end) return false;
    return true;
}

static void crew_go(crew *c, const char *address) {
    char packet[64] = "";
    snprintf(packet, sizeof packet, "%s", address);
    for (int i = 0; i < c->count; i++)
        assert_int_equal(write(c->pipe[1], packet, sizeof packet), sizeof packet);
    for (int i = 0; i < c->count; i++) assert_true(await(&c->report[i].joined, 20));
}

static void crew_end(crew *c) {
    for (int i = 0; i < c->count; i++) {
        if (c->pid[i] == 0) continue; /* has ended */
        kill(c->pid[i], SIGKILL);
        waitpid(c->pid[i], NULL, 0);
    }
    close(c->pipe[0]);
    close(c->pipe[1]);
    munmap(c->report, (size_t)c->count * sizeof(report));
}

/* All but `rank` are told within `limit` seconds, in words with `what` in them. */
static void all_told(crew *c, int rank, int64_t since_ns, double limit, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "rank %d (process %d on host 0)", rank, (int)c->pid[rank]);
    for (int i = 0; i < c->count; i++) {
        if (i == rank) continue;
        assert_true(await(&c->report[i].reason, limit + 20));
        double took = (double)(c->report[i].at_ns - since_ns) * 1e-9;
        if (took > limit) fail_msg("rank %d heard of it after %.2f s", i, took);
        if (!strstr(c->report[i].text, name) || !strstr(c->report[i].text, what))
            fail_msg("'%s' instead of '%s ... %s'", c->report[i].text, name, what);
    }
}

/* Until the scheduler has heard from all where they stand. */
static void all_stand(wefti_scheduler *s, int count) {
    int known = 0;
    for (int turn = 0; turn < 10000 && known < count; turn++, usleep(2000)) {
        char *table = wefti_scheduler_table(s);
        assert_non_null(table);
        known = 0;
        for (const char *at = table; (at = strstr(at, "in step 12")); at++) known++;
        wefti_free(table);
    }
    assert_int_equal(known, count);
}

static void killed(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    for (int round = 0; round < 20; round++) {
        crew c;
        crew_start(&c, RANKS, 0);
        wefti_scheduler_options o = test_scheduler(RANKS);
        wefti_scheduler *s;
        assert_int_equal(wefti_scheduler_start(&o, &s), WEFT_OK);
        crew_go(&c, wefti_scheduler_address(s));
        all_stand(s, RANKS);
        usleep((useconds_t)(test_random(&seed) % 50000));
        int rank = (int)(test_random(&seed) % RANKS);
        int64_t now = wefti_now_ns();
        kill(c.pid[rank], SIGKILL);
        all_told(&c, rank, now, DEATH_SEEN, "died: ");
        for (int i = 0; i < RANKS; i++)
            if (i != rank)
                assert_non_null(strstr(c.report[i].text, "in step 12 (1 transfers done)"));
        char *table = wefti_scheduler_table(s), *reason = wefti_scheduler_abort_reason(s);
        assert_non_null(strstr(reason, "died: "));
        assert_non_null(strstr(table, "died: computing"));
        assert_non_null(strstr(table, "in step 12"));
        wefti_free(table);
        wefti_free(reason);
        wefti_scheduler_stop(s);
        crew_end(&c);
    }
}

/* At any instant of an exchange of cards. WEFT_TEST_ROUNDS: more of them. */
static void killed_while_exchanging(void **state) {
    (void)state;
    const char *given = getenv("WEFT_TEST_ROUNDS");
    int rounds = given ? atoi(given) : 20;
    uint64_t seed = test_new_seed();
    for (int round = 0; round < rounds; round++) {
        crew c;
        crew_start(&c, RANKS, 1000000);
        wefti_scheduler_options o = test_scheduler(RANKS);
        wefti_scheduler *s;
        assert_int_equal(wefti_scheduler_start(&o, &s), WEFT_OK);
        crew_go(&c, wefti_scheduler_address(s));
        usleep((useconds_t)(test_random(&seed) % 20000));
        int rank = (int)(test_random(&seed) % RANKS);
        int64_t now = wefti_now_ns();
        kill(c.pid[rank], SIGKILL);
        all_told(&c, rank, now, DEATH_SEEN, "died: ");
        wefti_scheduler_stop(s);
        crew_end(&c);
    }
}

static void stopped(void **state) {
    (void)state;
    crew c;
    crew_start(&c, RANKS, 0);
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.heartbeat_seconds = SHORT_HEARTBEAT;
    wefti_scheduler *s;
    assert_int_equal(wefti_scheduler_start(&o, &s), WEFT_OK);
    crew_go(&c, wefti_scheduler_address(s));
    all_stand(s, RANKS);
    int64_t now = wefti_now_ns();
    kill(c.pid[2], SIGSTOP);
    all_told(&c, 2, now, STOP_SEEN, "has not been heard of for");
    wefti_scheduler_stop(s);
    crew_end(&c);
}

/* --- a scheduler that dies */

static pid_t scheduler_process(int port, int32_t size, uint64_t generation, int to) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    wefti_scheduler_options o = test_scheduler(size);
    o.heartbeat_seconds = SHORT_HEARTBEAT;
    o.port = port;
    o.generation = generation;
    wefti_scheduler *s;
    int got = 0;
    if (wefti_scheduler_start(&o, &s) >= 0) got = wefti_scheduler_port(s);
    if (write(to, &got, sizeof got) != sizeof got || !got) _exit(1);
    while (wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 3600) != WEFTI_SCHEDULER_LEFT)
        usleep(1000);
    _exit(0);
}

static int announced(int from) {
    int port = 0;
    assert_int_equal(read(from, &port, sizeof port), sizeof port);
    return port;
}

static void scheduler_restarted(void **state) {
    (void)state;
    int line[2];
    assert_int_equal(pipe(line), 0);
    crew c;
    crew_start(&c, RANKS, 0);
    pid_t first = scheduler_process(0, RANKS, 0, line[1]);
    int port = announced(line[0]);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    crew_go(&c, address);
    for (int round = 0; round < 3; round++) {
        kill(first, SIGKILL);
        waitpid(first, NULL, 0);
        usleep(100000); /* it is away for so long: the subject of this test */
        first = scheduler_process(port, RANKS, 0, line[1]);
        if (announced(line[0]) == 0) { /* its port was taken meanwhile */
            print_message("SKIP: port %d cannot be had again\n", port);
            break;
        }
        usleep((SHORT_HEARTBEAT * 1000 + 500) * 1000); /* nobody is given up in that time */
        for (int i = 0; i < RANKS; i++)
            if (c.report[i].reason) fail_msg("rank %d: %s", i, c.report[i].text);
    }
    /* It watches as before. */
    int64_t now = wefti_now_ns();
    kill(c.pid[1], SIGKILL);
    all_told(&c, 1, now, DEATH_SEEN, "died: ");
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
    crew_end(&c);
    close(line[0]);
    close(line[1]);
}

/* Cards under way when the scheduler dies come to their end through the next one. */
static void swaps_go_on(void **state) {
    (void)state;
    enum { SWAPS = 500 };
    uint64_t seed = test_new_seed();
    int line[2];
    assert_int_equal(pipe(line), 0);
    crew c;
    crew_start(&c, RANKS, SWAPS);
    pid_t scheduler = scheduler_process(0, RANKS, 0, line[1]);
    int port = announced(line[0]);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    crew_go(&c, address);
    for (int round = 0; round < 8; round++) {
        usleep((useconds_t)(test_random(&seed) % 250000));
        kill(scheduler, SIGKILL);
        waitpid(scheduler, NULL, 0);
        scheduler = scheduler_process(port, RANKS, 0, line[1]);
        if (announced(line[0]) == 0) {
            print_message("SKIP: port %d cannot be had again\n", port);
            break;
        }
    }
    int before = c.report[0].swaps;
    for (int i = 0; i < RANKS; i++) {
        int status = 0;
        assert_true(waitpid(c.pid[i], &status, 0) == c.pid[i]);
        if (status != 0)
            fail_msg("member %d ended with %x: %s", i, (unsigned)status, c.report[i].text);
        assert_int_equal(c.report[i].swaps, SWAPS);
        c.pid[i] = 0;
    }
    print_message("%d of %d exchanges before the last scheduler\n", before, SWAPS);
    waitpid(scheduler, NULL, 0); /* all have left: it ends by itself */
    crew_end(&c);
    close(line[0]);
    close(line[1]);
}

/* --- hangs: nobody dies, but nobody gets on */

typedef enum hang {
    COMPUTES,
    BESIDE,
    ELSEWHERE,
    BEHIND,
    LEAVES,
    HANGS
} hang; /* BESIDE: a busy one */
static const char *const hang_says[HANGS] = {"is computing|in step 12", "is computing|in step 12",
                                             "all_gather of wte|in step 12", "(7 transfers done)",
                                             "has left"};

typedef struct stuck { /* one rank of a world that hangs */
    const char *address;
    hang how;
    bool culprit, busy; /* busy: transfers get done, and none needs to be waited for */
    wefti_comm *comm;   /* NULL: none */
    int rank;
    weft_status status;
    char text[1024];
    pthread_t thread;
} stuck;

static void stand(const stuck *k, wefti_position *p) {
    bool behind = k->culprit && k->how == BEHIND;
    wefti_position_step(p, 12);
    for (int i = 0; i < (behind ? 7 : 8); i++) wefti_position_end_wait(p, false);
    if (k->busy || (k->culprit && (k->how == COMPUTES || k->how == BESIDE))) return;
    wefti_position_begin_wait(p, k->culprit && k->how == ELSEWHERE ? "all_gather of wte"
                                                                   : "all_reduce of h.3.attn");
}

static void *get_stuck(void *context) {
    stuck *k = context;
    wefti_member_options o = test_member(k->address);
    wefti_position *position;
    wefti_member *m;
    o.rank = k->rank;
    o.host = "here";
    o.leave_seconds = 0.1;
    if ((k->status = wefti_position_create(&position)) < 0) return NULL;
    if ((k->status = wefti_member_join(&o, &m)) >= 0) {
        stand(k, position);
        wefti_member_watch(m, k->comm, position);
        if (!k->culprit || k->how != LEAVES)
            while ((k->status = wefti_member_check(m)) == WEFT_OK) {
                if (k->busy) wefti_position_end_wait(position, false);
                usleep(2000);
            }
        (void)wefti_member_close(m, NULL);
    }
    snprintf(k->text, sizeof k->text, "%s", weft_error_message());
    wefti_position_destroy(position);
    return NULL;
}

typedef struct hanging {
    wefti_scheduler *scheduler;
    int culprit;
    hang how;
    stuck ranks[RANKS];
} hanging;

static void hang_start(hanging *h, uint64_t *seed) {
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.wait_seconds = 1.5;
    o.heartbeat_seconds = SHORT_HEARTBEAT;
    assert_int_equal(wefti_scheduler_start(&o, &h->scheduler), WEFT_OK);
    h->how = (hang)(test_random(seed) % HANGS);
    h->culprit = (int)(test_random(seed) % RANKS);
    for (int r = 0; r < RANKS; r++) {
        h->ranks[r] = (stuck){.address = wefti_scheduler_address(h->scheduler),
                              .how = h->how,
                              .culprit = r == h->culprit,
                              .busy = h->how == BESIDE && r == (h->culprit + 1) % RANKS,
                              .rank = r};
        assert_int_equal(pthread_create(&h->ranks[r].thread, NULL, get_stuck, &h->ranks[r]), 0);
    }
}

/* Everybody is told which rank it is, and no other. */
static void hang_end(hanging *h) {
    for (int r = 0; r < RANKS; r++) pthread_join(h->ranks[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) {
        const stuck *k = &h->ranks[r];
        if (k->culprit && h->how == LEAVES) continue;
        char name[32];
        snprintf(name, sizeof name, "rank %d (", h->culprit);
        assert_int_equal(k->status, WEFT_E_TIMEOUT);
        if (strncmp(k->text, name, strlen(name)) != 0 || !has_facts(k->text, hang_says[h->how]) ||
            strchr(k->text, ';'))
            fail_msg("'%s' instead of '%s ... %s'", k->text, name, hang_says[h->how]);
        assert_non_null(strstr(k->text, "while rank "));
    }
    wefti_scheduler_stop(h->scheduler);
}

static void hangs(void **state) {
    (void)state;
    enum { AT_ONCE = 10 };
    uint64_t seed = test_new_seed();
    static hanging all[AT_ONCE];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < AT_ONCE; i++) hang_start(&all[i], &seed);
        for (int i = 0; i < AT_ONCE; i++) hang_end(&all[i]);
    }
}

/* Something comes to it at each of the first looks. */
typedef struct slow_comm {
    wefti_comm base;
    int looks, moving;
} slow_comm;

static bool slow_moves(wefti_comm *comm) {
    slow_comm *slow = (slow_comm *)comm;
    return ++slow->looks <= slow->moving;
}
static void slow_break(wefti_comm *comm, int failed, const char *message) {
    (void)comm;
    (void)failed;
    (void)message;
}

/* One has left, and the others wait: not in vain while anything comes to one of them, however long
 * that takes; and not for ever when nothing does. */
static void slow_is_not_deserted(void **state) {
    (void)state;
    enum { LOOKS = 10 }; /* four to a heartbeat time */
    static const wefti_comm_engine engine = {
        .name = "slow", .break_off = slow_break, .moves = slow_moves};
    slow_comm slow = {.base = {.engine = &engine}, .moving = LOOKS};
    hanging h = {.how = LEAVES, .culprit = 0};
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.heartbeat_seconds = SHORT_HEARTBEAT;
    assert_int_equal(wefti_scheduler_start(&o, &h.scheduler), WEFT_OK);
    for (int r = 0; r < RANKS; r++) {
        h.ranks[r] = (stuck){.address = wefti_scheduler_address(h.scheduler),
                             .how = LEAVES,
                             .culprit = r == 0,
                             .comm = r == 2 ? &slow.base : NULL,
                             .rank = r};
        assert_int_equal(pthread_create(&h.ranks[r].thread, NULL, get_stuck, &h.ranks[r]), 0);
    }
    hang_end(&h);
    assert_in_range(slow.looks, LOOKS + 1, 1000);
}

/* All in one place, and nothing comes: no rank is to blame. */
static void nobody_to_blame(void **state) {
    (void)state;
    hanging h;
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.wait_seconds = 0.5;
    o.heartbeat_seconds = SHORT_HEARTBEAT;
    assert_int_equal(wefti_scheduler_start(&o, &h.scheduler), WEFT_OK);
    for (int r = 0; r < RANKS; r++) {
        h.ranks[r] = (stuck){.address = wefti_scheduler_address(h.scheduler), .rank = r};
        assert_int_equal(pthread_create(&h.ranks[r].thread, NULL, get_stuck, &h.ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(h.ranks[r].thread, NULL);
        assert_int_equal(h.ranks[r].status, WEFT_E_TIMEOUT);
        ASSERT_FACTS(h.ranks[r].text, "no rank|(8 transfers done)|all_reduce of h.3.attn");
    }
    wefti_scheduler_stop(h.scheduler);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),          cmocka_unit_test(killed_while_exchanging),
        cmocka_unit_test(stopped),         cmocka_unit_test(scheduler_restarted),
        cmocka_unit_test(swaps_go_on),     cmocka_unit_test(hangs),
        cmocka_unit_test(nobody_to_blame), cmocka_unit_test(slow_is_not_deserted),
        TEST_OVER_TLS(swaps_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
