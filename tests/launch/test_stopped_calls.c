/* A rank is stopped (SIGSTOP) in the middle of each collective: the others' calls end with an
 * error that names the rank and the call. Each collective has a world of processes of its own. All
 * run at once, since ranks mostly wait. */
#include "support.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "control_cases.h"
#include "secret_folder.h"
#include "weft/collective.h"
#include "weft/transport.h"

enum { RANKS = 3, STOPPED = 1, ELEMS = 64, MOST = 2 * RANKS * ELEMS };
/* Seconds. With so many processes on a busy machine, other ranks are silent for a while too. */
enum { HEARTBEAT = 10, SEEN = STOP_SEEN - SHORT_HEARTBEAT + HEARTBEAT };

static float from[MOST], to[MOST];

/* ---- the calls: rank 1 waits for the others in each of them ---- */

typedef weft_status call(weft_world *w, int rank);

static weft_status all_reduce(weft_world *w, int rank) {
    (void)rank;
    return weft_all_reduce(w, NULL, from, to, ELEMS, WEFT_F32, WEFT_REDUCE_SUM);
}
static weft_status all_gather(weft_world *w, int rank) {
    (void)rank;
    return weft_all_gather(w, NULL, from, to, ELEMS, WEFT_F32);
}
static weft_status reduce_scatter(weft_world *w, int rank) {
    (void)rank;
    return weft_reduce_scatter(w, NULL, from, to, ELEMS, WEFT_F32, WEFT_REDUCE_MAX);
}
static weft_status all_to_all(weft_world *w, int rank) {
    (void)rank;
    return weft_all_to_all(w, NULL, from, to, ELEMS, WEFT_F32);
}
static weft_status all_to_all_v(weft_world *w, int rank) {
    static const int64_t counts[RANKS] = {3, 3, 3};
    (void)rank;
    return weft_all_to_all_v(w, NULL, from, counts, to, counts, WEFT_F32);
}
/* There and back, so that nobody goes on without rank 1. */
static weft_status broadcast(weft_world *w, int rank) {
    weft_status status = weft_broadcast(w, NULL, from, ELEMS, WEFT_F32, 0);
    (void)rank;
    return status < 0 ? status : weft_broadcast(w, NULL, from, ELEMS, WEFT_F32, STOPPED);
}
static weft_status reduce(weft_world *w, int rank) {
    weft_status status = weft_reduce(w, NULL, from, to, ELEMS, WEFT_F32, WEFT_REDUCE_SUM, STOPPED);
    (void)rank;
    if (status < 0) return status;
    return weft_reduce(w, NULL, from, to, ELEMS, WEFT_F32, WEFT_REDUCE_SUM, 0);
}
static weft_status gather(weft_world *w, int rank) {
    weft_status status = weft_gather(w, NULL, from, to, ELEMS, WEFT_F32, STOPPED);
    (void)rank;
    return status < 0 ? status : weft_gather(w, NULL, from, to, ELEMS, WEFT_F32, 0);
}
static weft_status scatter(weft_world *w, int rank) {
    weft_status status = weft_scatter(w, NULL, from, to, ELEMS, WEFT_F32, 0);
    (void)rank;
    return status < 0 ? status : weft_scatter(w, NULL, from, to, ELEMS, WEFT_F32, STOPPED);
}
static weft_status barrier(weft_world *w, int rank) {
    (void)rank;
    return weft_barrier(w, NULL);
}
/* Around a ring: rank 1 waits for rank 0. */
static weft_status messages(weft_world *w, int rank) {
    weft_status status = WEFT_OK;
    if (rank == 0) status = weft_send(w, NULL, from, ELEMS, WEFT_F32, 1, 3);
    if (status >= 0)
        status = weft_recv(w, NULL, to, ELEMS, WEFT_F32, (rank + RANKS - 1) % RANKS, 3);
    if (status >= 0 && rank > 0)
        status = weft_send(w, NULL, from, ELEMS, WEFT_F32, (rank + 1) % RANKS, 3);
    return status;
}
static weft_status neighbor_exchange(weft_world *w, int rank) {
    const int others[2] = {(rank + 1) % RANKS, (rank + 2) % RANKS};
    static const int64_t counts[2] = {5, 5};
    return weft_neighbor_exchange(w, NULL, from, others, counts, 2, to, others, counts, 2,
                                  WEFT_F32);
}
static weft_status halo_exchange(weft_world *w, int rank) {
    static const int64_t rims[4] = {1, 1, 0, 0}, shape[3] = {1, 4, 4};
    weft_halo halo = weft_halo_on_grid(RANKS, 1, rank, rims);
    return weft_halo_exchange(w, NULL, from, shape, &halo, to, &halo, WEFT_F32);
}

static const struct {
    const char *name, *said; /* reported by a waiting rank */
    call *call;
} calls[] = {
    {"all_reduce", "all_reduce", all_reduce},
    {"all_gather", "all_gather", all_gather},
    {"reduce_scatter", "reduce_scatter", reduce_scatter},
    {"all_to_all", "all_to_all", all_to_all},
    {"all_to_all_v", "all_to_all_v", all_to_all_v},
    {"broadcast", "broadcast", broadcast},
    {"reduce", "reduce", reduce},
    {"gather", "gather", gather},
    {"scatter", "scatter", scatter},
    {"barrier", "barrier", barrier},
    {"messages", "recv", messages},
    {"neighbor_exchange", "neighbor_exchange", neighbor_exchange},
    {"halo_exchange", "halo_exchange", halo_exchange},
};
enum { CALLS = sizeof calls / sizeof *calls };

/* ---- worlds ---- */

/* Each has a port of its own, from 10000 to 29999, as of wefti_port_of. */
static int port_of(int kind) {
    return 10000 + (wefti_port_of(folder, strlen(folder)) - 10000 + kind) % 20000;
}

typedef struct outcome {
    _Atomic int calls, failed;
    _Atomic int64_t at_ns;
    weft_status status;
    char text[1024];
} outcome;

static outcome (*outcomes)[RANKS];
static pid_t pids[CALLS][RANKS];

static int member(int kind, int rank, outcome *out) {
    char text[128];
    weft_world *w;
    weft_world_options options =
        WEFT_STRUCT(weft_world_options, .join_seconds = 60, .heartbeat_seconds = HEARTBEAT);
    snprintf(text, sizeof text, "127.0.0.1:%d", port_of(kind));
    setenv("WEFT_SCHEDULER", text, 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv("WEFT_RANK", text, 1);
    snprintf(text, sizeof text, "%d", RANKS);
    setenv("WEFT_SIZE", text, 1);
    weft_status status = weft_world_join(&options, &w);
    bool joined = status >= 0;
    while (status >= 0) {
        if (rank != STOPPED) usleep(20000);
        status = calls[kind].call(w, rank);
        if (status >= 0) out->calls++;
    }
    out->at_ns = wefti_now_ns();
    out->status = status;
    snprintf(out->text, sizeof out->text, "%s", weft_error_message());
    out->failed = 1;
    if (joined) weft_world_leave(w);
    return 0;
}

static bool await(_Atomic int *what, int value, double seconds) {
    for (int64_t end = wefti_now_ns() + (int64_t)(seconds * 1e9); *what < value; usleep(1000))
        if (wefti_now_ns() > end) return false;
    return true;
}

static void begin(int kind) {
    for (int r = 0; r < RANKS; r++) {
        fflush(NULL);
        pids[kind][r] = fork();
        assert_true(pids[kind][r] >= 0);
        if (pids[kind][r] > 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        _exit(member(kind, r, &outcomes[kind][r]));
    }
}

static void survivors_are_told(int kind, int64_t since) {
    char name[32];
    snprintf(name, sizeof name, "rank %d", STOPPED);
    for (int r = 0; r < RANKS; r++) {
        const outcome *o = &outcomes[kind][r];
        if (r == STOPPED) continue;
        if (!await(&outcomes[kind][r].failed, 1, SEEN + 20))
            fail_msg("%s: rank %d still waits", calls[kind].name, r);
        double took = (double)(o->at_ns - since) * 1e-9;
        print_message("%s, rank %d: %s\n", calls[kind].name, r, o->text);
        if (took > SEEN)
            fail_msg("%s: rank %d heard of it after %.1f s", calls[kind].name, r, took);
        if (!has_facts(o->text, name) || !has_facts(o->text, "heard of"))
            fail_msg("%s, rank %d: '%s'", calls[kind].name, r, o->text);
        if (!strstr(o->text, calls[kind].said))
            fail_msg("%s, rank %d: no word of the call in '%s'", calls[kind].name, r, o->text);
    }
}

static void each_collective_ends(void **state) {
    (void)state;
    for (int kind = 0; kind < CALLS; kind++) begin(kind);
    for (int kind = 0; kind < CALLS; kind++)
        for (int r = 0; r < RANKS; r++)
            if (!await(&outcomes[kind][r].calls, 5, 60))
                fail_msg("%s, rank %d: %s", calls[kind].name, r, outcomes[kind][r].text);
    int64_t now = wefti_now_ns();
    for (int kind = 0; kind < CALLS; kind++) kill(pids[kind][STOPPED], SIGSTOP);
    for (int kind = 0; kind < CALLS; kind++) survivors_are_told(kind, now);
    for (int kind = 0; kind < CALLS; kind++) {
        kill(pids[kind][STOPPED], SIGKILL);
        for (int r = 0; r < RANKS; r++) waitpid(pids[kind][r], NULL, 0);
    }
}

static int make_folder(void **state) {
    (void)state;
    void *shared;
    if (make_secret_folder("stops", &shared, CALLS * sizeof *outcomes) != 0) return -1;
    outcomes = shared;
    return setenv("WEFT_SECRET_FILE", secret, 1);
}
static int remove_folder(void **state) {
    (void)state;
    return remove_secret_folder(outcomes, CALLS * sizeof *outcomes);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_collective_ends, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
