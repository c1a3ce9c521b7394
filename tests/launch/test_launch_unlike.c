/* Ranks with different last calls that end with 0 all the same: each host's launcher reports it.
 * With an argument this program is such a rank. */
#include "support.h"

#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "secret_folder.h"
#include "weft/collective.h"
#include "weft/launch.h"
#include "weft/world.h"

enum { HOSTS = 2, EACH = 2, TEXT = 2048 };

typedef struct outcome {
    weft_status status;
    int failed_rank;
    char error[TEXT], abort_reason[TEXT];
} outcome;

static outcome *outcomes;
static bool comes_late; /* this launcher finds the scheduler once all ranks have ended */
static char program[1024];

/* Rank 1 reduces 5 elements, the others 4. Each rank ends as soon as it knows, `leaves` or not. */
static int be_rank_of_size(weft_world *w, bool leaves) {
    float value[5] = {0};
    int count = weft_world_rank(w) == 1 ? 5 : 4;
    if (weft_all_reduce(w, NULL, value, value, count, WEFT_F32, WEFT_REDUCE_SUM) >= 0) return 5;
    if (leaves) weft_world_leave(w);
    return 4;
}

/* --- a launcher that is late --- */

static void mark_end(const weft_world *w) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/ended-%d", getenv("HOME"), weft_world_rank(w));
    FILE *file = fopen(path, "w");
    if (file) (void)fclose(file);
}

static bool all_have_ended(void) {
    char path[128];
    int ended = 0;
    for (int r = 0; r < HOSTS * EACH; r++) {
        (void)snprintf(path, sizeof path, "%s/ended-%d", folder, r);
        ended += access(path, F_OK) == 0;
    }
    return ended == HOSTS * EACH;
}

/* libc's; ranks are other processes. */
int connect(int fd, const struct sockaddr *to, socklen_t bytes) {
    while (comes_late && !all_have_ended()) (void)usleep(1000);
    if (comes_late) (void)usleep(500000); /* and their launchers have seen it */
    comes_late = false;
    return (int)syscall(SYS_connect, fd, to, bytes);
}

/* --- ranks --- */

/* Members of groups that make no further call: only a comparison of all calls can find the
 * mismatch. */
static int be_rank(const char *what) {
    weft_world *w;
    float value = 1;
    if (weft_world_join(NULL, &w) < 0) return 3;
    if (!strcmp(what, "sizes") || !strcmp(what, "sizes, leaves"))
        return be_rank_of_size(w, strcmp(what, "sizes") != 0);
    const bool unlike = strcmp(what, "like") != 0;
    bool odd = unlike && weft_world_rank(w) == 1;
    weft_status status = weft_barrier(w, NULL);
    if (status >= 0) status = weft_broadcast(w, NULL, &value, 1, WEFT_F32, odd ? 1 : 0);
    if (!strcmp(what, "unlike, late")) mark_end(w);
    weft_world_leave(w);
    /* A late rank may learn of it in the call itself. */
    return status >= 0 || unlike ? 0 : 4;
}

static int make_folder(void **state) {
    (void)state;
    void *shared;
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes <= 0 || make_secret_folder("unlike", &shared, HOSTS * sizeof *outcomes) != 0)
        return -1;
    outcomes = shared;
    return 0;
}
static int remove_folder(void **state) {
    (void)state;
    return remove_secret_folder(outcomes, HOSTS * sizeof *outcomes);
}

static void launch(int host, const char *what, const char *scheduler) {
    const char *const command[] = {program, what, NULL};
    outcome *o = &outcomes[host];
    weft_launch_result r;
    weft_launch_options options = WEFT_STRUCT(
        weft_launch_options, .command = command, .processes = EACH, .hosts = HOSTS,
        .host_rank = host, .scheduler = scheduler, .secret_file = secret, .join_seconds = 60);
    o->status = weft_launch_run(&options, &r);
    (void)snprintf(o->error, TEXT, "%s", o->status < 0 ? weft_error_message() : "");
    (void)snprintf(o->abort_reason, TEXT, "%s", r.abort_reason);
    o->failed_rank = r.failed_rank;
    weft_launch_result_free(&r);
}

static void run(const char *what) {
    char scheduler[64];
    pid_t processes[HOSTS];
    (void)snprintf(scheduler, sizeof scheduler, "127.0.0.1:%d",
                   wefti_port_of(folder, strlen(folder)));
    memset(outcomes, 0, HOSTS * sizeof *outcomes);
    for (int host = 0; host < HOSTS; host++) {
        fflush(NULL);
        processes[host] = fork();
        assert_true(processes[host] >= 0);
        if (processes[host] > 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        comes_late = host > 0 && !strcmp(what, "unlike, late");
        launch(host, what, scheduler);
        _exit(0);
    }
    for (int host = 0; host < HOSTS; host++) {
        int status = -1;
        waitpid(processes[host], &status, 0);
        assert_int_equal(status, 0);
    }
}

static void expect_unlike(const char *what) {
    run(what);
    for (int host = 0; host < HOSTS; host++) {
        const outcome *o = &outcomes[host];
        if (o->status != WEFT_E_PEER) fail_msg("host %d: %d, '%s'", host, o->status, o->error);
        assert_int_equal(o->failed_rank, -1);
        /* Or a rank found it in its call. */
        ASSERT_FACTS(o->abort_reason, "broadcast");
    }
    assert_string_equal(outcomes[0].abort_reason, outcomes[1].abort_reason);
}

static void test_unlike(void **state) {
    (void)state;
    expect_unlike("unlike");
}

static void test_unlike_and_late(void **state) {
    (void)state;
    expect_unlike("unlike, late");
}

static void test_like(void **state) {
    (void)state;
    run("like");
    for (int host = 0; host < HOSTS; host++) {
        const outcome *o = &outcomes[host];
        if (o->status != WEFT_OK) fail_msg("host %d: %d, '%s'", host, o->status, o->error);
        assert_string_equal(o->abort_reason, "");
    }
}

/* The ranks find the mismatch, and the launcher tells what they found: no rank is blamed for having
 * ended of it, or for having left without a call. */
static void test_sizes(void **state) {
    (void)state;
    for (int turn = 0; turn < 6; turn++) {
        run(turn % 2 ? "sizes, leaves" : "sizes");
        const outcome *o = &outcomes[0];
        bool good = o->status == WEFT_E_PEER && strstr(o->abort_reason, "4 elements") &&
                    strstr(o->abort_reason, "5 elements") && strstr(o->abort_reason, "rank 1") &&
                    !strstr(o->abort_reason, "no call") && !strstr(o->abort_reason, "died");
        if (!good) fail_msg("turn %d: %d, '%s', '%s'", turn, o->status, o->error, o->abort_reason);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unlike),
        cmocka_unit_test(test_unlike_and_late),
        cmocka_unit_test(test_like),
        cmocka_unit_test(test_sizes),
    };
    if (argc > 1) return be_rank(argv[1]);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
