/* What the tests of joining share: processes that become a world, and what each of them found. */
#ifndef WEFT_TESTS_JOIN_CASES_H
#define WEFT_TESTS_JOIN_CASES_H

#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "comm/world.h"
#include "control_cases.h"
#include "secret_folder.h"
#include "weft/collective.h"

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

/* `subject` names the folder. */
static inline int make_join_folder(const char *subject) {
    void *shared;
    if (make_secret_folder(subject, &shared, RANKS * sizeof *outcomes) != 0) return -1;
    outcomes = shared;
    return setenv("WEFT_SECRET_FILE", secret, 1);
}
static inline int remove_folder(void **state) {
    (void)state;
    return remove_secret_folder(outcomes, RANKS * sizeof *outcomes);
}

static inline void begin(int count, role *what) {
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

static inline int finish(int count) {
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

static inline void set_number(const char *name, int value) {
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* A port that was free a moment ago, and is not one of those that the kernel gives away. */
static inline int free_port(void) {
    return wefti_port_of(folder, strlen(folder));
}

static inline int describe(outcome *out, weft_status status) {
    out->status = status;
    snprintf(out->text, sizeof out->text, "%s", weft_error_message());
    return 1;
}

static inline int use_world(weft_world *w, outcome *out) {
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

static inline int join_and_use(outcome *out) {
    weft_world *w;
    weft_world_options options =
        WEFT_STRUCT(weft_world_options, .join_seconds = 600, .heartbeat_seconds = LONG_HEARTBEAT);
    weft_status status = weft_world_join(&options, &w);
    return status < 0 ? describe(out, status) : use_world(w, out);
}

static inline void all_worked(int count, const char *communicator) {
    assert_int_equal(finish(count), 0);
    for (int i = 0; i < count; i++) {
        const outcome *o = &outcomes[i];
        assert_true(o->joined && o->done);
        assert_int_equal(o->size, count);
        assert_true(o->sum == (float)((1 << count) - 1));
        assert_string_equal(o->communicator, communicator);
    }
}

/* --- torchrun: rank 0 is the scheduler's host */

static inline int torchrun(int number, outcome *out) {
    set_number("RANK", number);
    set_number("LOCAL_RANK", number);
    return join_and_use(out);
}

static inline void torch_variables(bool on) {
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

static inline bool carrier_missing(int count) {
    for (int i = 0; i < count; i++)
        if (outcomes[i].status == WEFT_E_NO_IMPL) {
            print_message("SKIP: %s\n", outcomes[i].text);
            return true;
        }
    return false;
}

#endif
