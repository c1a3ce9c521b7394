/* The end of a rank of a world that was joined: all others learn of it, in time. */
#include "join_cases.h"

static bool await(_Atomic int *what, double seconds) {
    for (int64_t end = wefti_now_ns() + (int64_t)(seconds * 1e9); !*what; usleep(500))
        if (wefti_now_ns() > end) return false;
    return true;
}

static double go_on_heartbeat = LONG_HEARTBEAT;

/* Reduces until something breaks. */
static int go_on(int number, outcome *out) {
    weft_world *w;
    weft_world_options options =
        WEFT_STRUCT(weft_world_options, .join_seconds = 20, .heartbeat_seconds = go_on_heartbeat);
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
        for (int i = 0; i < RANKS; i++) ASSERT_SOON(outcomes[i].reductions >= 3);
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

static int make_folder(void **state) {
    (void)state;
    return make_join_folder("join-failures");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_dies),
        cmocka_unit_test(rank_stops),
        cmocka_unit_test(between_hosts),
        cmocka_unit_test(rank_gives_up),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
