/* The job on the scheduler's host fails before the other host comes. That host's rank hears of it
 * first, and its launcher calls later: the launcher, too, must find the scheduler and hear which
 * rank failed. (weft-test: threads) */
#include "support.h"

#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "launch/member/member.h"
#include "secret_folder.h"
#include "weft/launch.h"

enum { RANKS = 2, CODE = 5, DELAY_US = 500000, SECONDS = 60 };

typedef struct outcome {
    weft_status status;
    int failed_rank, exit_code;
} outcome;

static outcome *host_0; /* in memory that processes share */
static char scheduler[64];

static int make_folder(void **state) {
    (void)state;
    void *shared;
    if (make_secret_folder("late", &shared, sizeof *host_0) != 0) return -1;
    host_0 = shared;
    return 0;
}
static int remove_folder(void **state) {
    (void)state;
    return remove_secret_folder(host_0, sizeof *host_0);
}

/* `weft launch` on the scheduler's host, whose only rank fails at once. */
static pid_t launch_host_0(void) {
    (void)snprintf(scheduler, sizeof scheduler, "127.0.0.1:%d",
                   wefti_port_of(folder, strlen(folder)));
    *host_0 = (outcome){0};
    fflush(NULL);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process > 0) return process;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char *const command[] = {"sh", "-c", "exit 5", NULL};
    weft_launch_result r;
    weft_launch_options options =
        WEFT_STRUCT(weft_launch_options, .command = command, .processes = 1, .hosts = RANKS,
                    .scheduler = scheduler, .secret_file = secret, .join_seconds = SECONDS);
    host_0->status = weft_launch_run(&options, &r);
    host_0->failed_rank = r.failed_rank;
    host_0->exit_code = r.exit_code;
    _exit(0);
}

static wefti_member_options as_host_1(int rank) {
    wefti_member_options o = {.scheduler = scheduler,
                              .rank = rank,
                              .size = -1,
                              .node = "1",
                              .host = "other",
                              .join_seconds = SECONDS};
    assert_int_equal(wefti_secret_read(secret, &o.secret), WEFT_OK);
    return o;
}

/* Rank 1, of the other host, is refused with what happened to rank 0. */
static void rank_1_hears(void) {
    const wefti_member_options o = as_host_1(1);
    wefti_member *member;
    assert_int_equal(wefti_member_join(&o, &member), WEFT_E_PEER);
    assert_int_equal(weft_error_rank(), 0);
    ASSERT_MESSAGE("rank 0|exit code 5");
}

static void host_0_ends(pid_t process) {
    int status = -1;
    const int64_t until = wefti_now_ns() + (int64_t)(SECONDS / 2) * 1000000000;
    while (waitpid(process, &status, WNOHANG) == 0 && wefti_now_ns() < until) usleep(1000);
    if (wefti_now_ns() >= until) {
        (void)kill(process, SIGKILL);
        fail_msg("the scheduler's launcher still waits");
    }
    assert_int_equal(status, 0);
    assert_int_equal(host_0->status, WEFT_E_PEER);
    assert_int_equal(host_0->failed_rank, 0);
    assert_int_equal(host_0->exit_code, CODE);
}

static void a_slow_launcher_still_hears(void **state) {
    (void)state;
    const pid_t process = launch_host_0();
    rank_1_hears();
    usleep(DELAY_US); /* the launcher is so much slower than its rank: the subject of this test */
    const wefti_member_options o = as_host_1(-1);
    wefti_watch *look;
    wefti_end end = {.rank = -1};
    assert_int_equal(wefti_watch_begin(&o, &(wefti_span){1, 1}, &look), WEFT_OK);
    const int64_t until = wefti_now_ns() + (int64_t)(SECONDS / 4) * 1000000000;
    while (!wefti_watch_is_over(look, &end) && wefti_now_ns() < until) usleep(1000);
    const bool over = wefti_watch_is_over(look, &end);
    wefti_watch_end(look);
    assert_true(over);
    assert_int_equal(end.rank, 0);
    assert_int_equal(end.code, CODE);
    host_0_ends(process);
}

/* Ranks that something else than `weft launch` has started have no launcher to wait for. */
static void no_launcher_is_not_waited_for(void **state) {
    (void)state;
    const pid_t process = launch_host_0();
    rank_1_hears();
    host_0_ends(process);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_slow_launcher_still_hears),
                                       cmocka_unit_test(no_launcher_is_not_waited_for)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
