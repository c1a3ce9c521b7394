/* weft_launch_run as a program calls it: what it is told while processes run, what it gets at the
 * end, and that its own processes and signals are left alone. */
#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/thread.h"
#include "launch/spawn/launch.h"
#include "weft/launch.h"

enum { SEEN_MAX = 4096 };

/* What was told, one line each. */
typedef struct seen {
    char text[SEEN_MAX];
    int starts, lines, notes;
} seen;

static void on_start(void *context, int first_rank, int count, int size, const char *scheduler,
                     const char *log_dir) {
    seen *s = context;
    assert_true(first_rank >= 0 && count > 0 && size >= count);
    assert_non_null(strchr(scheduler, ':'));
    assert_non_null(log_dir);
    s->starts++;
}
static void on_line(void *context, int rank, weft_launch_stream stream, const char *text,
                    size_t bytes) {
    seen *s = context;
    size_t used = strlen(s->text);
    s->lines++;
    (void)snprintf(s->text + used, SEEN_MAX - used, "%d%c %.*s\n", rank,
                   stream == WEFT_LAUNCH_ERRORS ? '!' : ':', (int)bytes, text);
}
static void on_note(void *context, const char *text) {
    seen *s = context;
    (void)text;
    s->notes++;
}

static weft_launch_options options_for(seen *s, const char *const *command, int processes) {
    return WEFT_STRUCT(weft_launch_options, .command = command, .processes = processes,
                       .grace_seconds = 1, .events = {s, on_start, on_line, on_note});
}
#define SHELL(script) ((const char *const[]){"sh", "-c", script, NULL})

static void test_good(void **state) {
    (void)state;
    seen s = {0};
    weft_launch_result r;
    weft_launch_options o =
        options_for(&s, SHELL("echo out $WEFT_RANK; echo err $WEFT_RANK >&2"), 3);
    assert_int_equal(weft_launch_run(&o, &r), WEFT_OK);
    assert_int_equal(r.ranks, 3);
    assert_int_equal(r.failed_rank, -1);
    assert_string_equal(r.table, "");
    assert_int_equal(s.starts, 1);
    assert_int_equal(s.lines, 6);
    assert_non_null(strstr(s.text, "0: out 0\n"));
    assert_non_null(strstr(s.text, "2! err 2\n"));
    weft_launch_result_free(&r);
}

static void test_failures(void **state) {
    (void)state;
    seen s = {0};
    weft_launch_result r;
    weft_launch_options o =
        options_for(&s, SHELL("[ $WEFT_RANK = 1 ] || sleep 100; seq 20; echo last; exit 9"), 2);
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    ASSERT_MESSAGE("rank 1|exit code 9");
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.exit_code, 9);
    assert_int_equal(r.signal, 0);
    assert_string_equal(r.log, "");
    assert_string_equal(r.last_lines, "10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n20\nlast\n");
    weft_launch_result_free(&r);
    o.command = SHELL("[ $WEFT_RANK = 0 ] || sleep 100; kill -SEGV $$");
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_int_equal(r.failed_rank, 0);
    assert_int_equal(r.signal, SIGSEGV);
    weft_launch_result_free(&r);
    /* One that died is told rather than one that ended on its account a moment before. */
    o.command = SHELL("[ $WEFT_RANK = 0 ] && exit 1; sleep 0.3; kill -9 $$");
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.signal, SIGKILL);
    weft_launch_result_free(&r);
    /* Without a request to stop, others may fail on account of the one that wants to begin again.
     */
    o.command = SHELL("[ $WEFT_RANK = 0 ] && exit 75; sleep 0.3; exit 1");
    o.grace_seconds = 100;
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_int_equal(r.failed_rank, 0);
    assert_int_equal(r.exit_code, 75);
    weft_launch_result_free(&r);
}

static void test_requests(void **state) {
    (void)state;
    static volatile int signal_number = SIGTERM, count = 1; /* before it even starts */
    seen s = {0};
    weft_launch_result r;
    weft_launch_options o =
        options_for(&s, SHELL("trap 'echo asked; exit 143' TERM; while :; do sleep 0.05; done"), 2);
    o.stop_signal = &signal_number;
    o.stop_count = &count;
    weft_status status = weft_launch_run(&o, &r);
    assert_int_equal(status, WEFT_E_STOPPED);
    assert_int_equal(r.stop_signal, SIGTERM);
    weft_launch_result_free(&r);
    /* A process that ends with another code has not done what a stopped one does. */
    o.command = SHELL("[ $WEFT_RANK = 1 ] && trap 'exit 5' TERM || trap 'exit 0' TERM;"
                      "while :; do sleep 0.05; done");
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.exit_code, 5);
    assert_int_equal(r.stop_signal, 0);
    weft_launch_result_free(&r);
    /* One that gave up waiting ends first; the cause is the own failure of the other. */
    o.command = SHELL("[ $WEFT_RANK = 1 ] && trap 'exit 75' TERM || trap 'sleep 0.3; exit 1' TERM;"
                      "while :; do sleep 0.05; done");
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_int_equal(r.failed_rank, 0);
    assert_int_equal(r.exit_code, 1);
    weft_launch_result_free(&r);
    /* A program that died below a shell (137) did not wait. */
    o.command = SHELL("[ $WEFT_RANK = 1 ] && trap 'exit 137' TERM || trap 'sleep 0.3; exit 1' TERM;"
                      "while :; do sleep 0.05; done");
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.exit_code, 137);
    weft_launch_result_free(&r);
    count = 3; /* asked for the third time: at once */
    o.command = SHELL("trap '' TERM; sleep 100");
    o.grace_seconds = 100;
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_STOPPED);
    weft_launch_result_free(&r);
    count = 1; /* one that writes all the while */
    o.command = SHELL("exec yes");
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_STOPPED);
    weft_launch_result_free(&r);
}

static volatile int late_requests;
static void ask_to_stop(void *context, int rank, weft_launch_stream stream, const char *text,
                        size_t bytes) {
    on_line(context, rank, stream, text, bytes);
    late_requests++;
}

/* A request that comes when a rank has failed already does not take the place of that. */
static void test_request_after_failure(void **state) {
    (void)state;
    static const volatile int signal_number = SIGTERM;
    char folder[] = "/tmp/weft_launch_XXXXXX", ready[64];
    const char *const settings[] = {ready, NULL};
    seen s = {0};
    weft_launch_result r;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(ready, sizeof ready, "READY=%s/ready", folder);
    /* A rank that is asked to end because another failed reports that; then the request comes. */
    weft_launch_options o = options_for(
        &s,
        SHELL(
            "[ $WEFT_RANK = 1 ] && { while [ ! -e $READY ]; do sleep 0.05; done; kill -SEGV $$; };"
            "trap 'echo asked' TERM; : >$READY; while :; do sleep 0.05; done"),
        2);
    o.settings = settings;
    o.grace_seconds = 0.3;
    o.events.line = ask_to_stop;
    o.stop_signal = &signal_number;
    o.stop_count = &late_requests;
    weft_status status = weft_launch_run(&o, &r);
    assert_int_equal(wefti_remove_tree(folder), WEFT_OK);
    assert_int_equal(status, WEFT_E_PEER);
    assert_true(late_requests > 0);
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.signal, SIGSEGV);
    assert_int_equal(r.stop_signal, 0);
    ASSERT_MESSAGE("rank 1|signal 11");
    weft_launch_result_free(&r);
}

static volatile int request_when_ready;
static void ask_when_ready(void *context, int rank, weft_launch_stream stream, const char *text,
                           size_t bytes) {
    seen *s = context;
    on_line(context, rank, stream, text, bytes);
    if (s->lines == 2) request_when_ready++;
}

/* One that dies when it is asked to stop has failed, and that is told. */
static void test_death_on_request(void **state) {
    (void)state;
    static const volatile int signal_number = SIGTERM;
    seen s = {0};
    weft_launch_result r;
    weft_launch_options o =
        options_for(&s,
                    SHELL("[ $WEFT_RANK = 1 ] && trap 'kill -SEGV $$' TERM || trap 'exit 0' TERM;"
                          "echo ready; while :; do sleep 0.05; done"),
                    2);
    o.events.line = ask_when_ready;
    o.stop_signal = &signal_number;
    o.stop_count = &request_when_ready;
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.signal, SIGSEGV);
    assert_int_equal(r.stop_signal, 0);
    weft_launch_result_free(&r);
}

/* Children and settings of the program that are not the launch's. */
static void test_leaves_others_alone(void **state) {
    (void)state;
    struct sigaction before, after;
    int adopts = -1, status;
    seen s = {0};
    weft_launch_result r;
    pid_t own = fork();
    if (own == 0) {
        (void)poll(NULL, 0, 300);
        _exit(42);
    }
    assert_true(own > 0);
    assert_int_equal(sigaction(SIGCHLD, NULL, &before), 0);
    weft_launch_options o = options_for(&s, SHELL("(sleep 0.1; echo late) & echo early"), 2);
    assert_int_equal(weft_launch_run(&o, &r), WEFT_OK);
    weft_launch_result_free(&r);
    assert_int_equal(sigaction(SIGCHLD, NULL, &after), 0);
    assert_ptr_equal(before.sa_handler, after.sa_handler);
    assert_int_equal(prctl(PR_GET_CHILD_SUBREAPER, &adopts), 0);
    assert_int_equal(adopts, 0);
    assert_int_equal(waitpid(own, &status, 0), own); /* not reaped by someone else */
    assert_int_equal(WEXITSTATUS(status), 42);
    assert_int_equal(waitpid(-1, &status, WNOHANG), -1); /* and nothing of the launch is left */
}

/* Descriptors that are open here are not in the processes. */
static void test_descriptors(void **state) {
    (void)state;
    seen s = {0};
    weft_launch_result r;
    int fd = open("/dev/null", O_RDONLY); /* without O_CLOEXEC */
    assert_true(fd > 2);
    weft_launch_options o = options_for(&s, SHELL("ls /proc/self/fd | tr '\\n' ' '; cat"), 2);
    assert_int_equal(weft_launch_run(&o, &r), WEFT_OK);
    assert_non_null(strstr(s.text, "0: 0 1 2 3 \n")); /* 3: of ls itself */
    weft_launch_result_free(&r);
    close(fd);
}

static int open_files(void) {
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) count++;
    closedir(d);
    return count;
}

/* Of processes that run when another one cannot be started nothing is left either. */
static void test_half_started(void **state) {
    (void)state;
    char folder[] = "/tmp/weft_launch_XXXXXX", path[80];
    seen s = {0};
    weft_launch_result r;
    weft_launch_options o = options_for(&s, SHELL("sleep 100"), 3);
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/rank-2.log", folder);
    assert_int_equal(mkdir(path, 0700), 0); /* no file */
    o.log_dir = folder;
    int before = 0;
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1) before = open_files();
        assert_int_equal(weft_launch_run(&o, &r), WEFT_E_IO);
        assert_non_null(strstr(weft_error_message(), "rank-2.log"));
        weft_launch_result_free(&r);
    }
    assert_int_equal(open_files(), before);
    assert_int_equal(s.starts, 0);
    assert_int_equal(wefti_remove_tree(folder), WEFT_OK);
}

/* A variable that is set here and in the options appears once, with the options' value. */
static void test_settings(void **state) {
    (void)state;
    seen s = {0};
    weft_launch_result r;
    setenv("WEFT_WAIT_SECONDS", "5", 1);
    setenv("WEFT_TEST_X", "here", 1);
    weft_launch_options o = options_for(&s, (const char *const[]){"env", NULL}, 1);
    o.wait_seconds = 7;
    o.heartbeat_seconds = INFINITY;
    o.settings = (const char *const[]){"WEFT_TEST_X=told", NULL};
    assert_int_equal(weft_launch_run(&o, &r), WEFT_OK);
    assert_non_null(strstr(s.text, "0: WEFT_WAIT_SECONDS=7\n"));
    assert_null(strstr(s.text, "WEFT_WAIT_SECONDS=5"));
    assert_non_null(strstr(s.text, "0: WEFT_HEARTBEAT_SECONDS=100000000\n"));
    assert_non_null(strstr(s.text, "0: WEFT_TEST_X=told\n"));
    assert_null(strstr(s.text, "WEFT_TEST_X=here"));
    weft_launch_result_free(&r);
    unsetenv("WEFT_WAIT_SECONDS");
    unsetenv("WEFT_TEST_X");
}

/* A program that has closed its own standard streams: what it opens takes their numbers. */
static void test_without_streams(void **state) {
    (void)state;
    seen s = {0};
    weft_launch_result r;
    int kept[3];
    for (int fd = 0; fd < 3; fd++) kept[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 10);
    for (int fd = 0; fd < 3; fd++) close(fd);
    weft_launch_options o = options_for(&s, SHELL("echo out; echo err >&2; cat; exit 3"), 2);
    weft_status status = weft_launch_run(&o, &r);
    o.command = (const char *const[]){"/dev/null", NULL};
    weft_launch_result none;
    weft_status refused = weft_launch_run(&o, &none);
    for (int fd = 0; fd < 3; fd++) {
        assert_int_equal(dup2(kept[fd], fd), fd);
        close(kept[fd]);
    }
    assert_int_equal(status, WEFT_E_PEER);
    assert_int_equal(r.exit_code, 3);
    assert_non_null(strstr(s.text, ": out\n"));
    assert_non_null(strstr(s.text, "! err\n"));
    assert_true(refused < 0);
    weft_launch_result_free(&r);
    weft_launch_result_free(&none);
}

/* More processes than descriptors: said before the first one is started. */
static void test_too_many(void **state) {
    (void)state;
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 200;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    seen s = {0};
    weft_launch_result r;
    weft_launch_options o = options_for(&s, SHELL("echo ran"), 100);
    weft_status status = weft_launch_run(&o, &r);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, WEFT_E_ARG);
    ASSERT_MESSAGE("100 processes|516 open files|200");
    assert_int_equal(s.lines, 0);
    weft_launch_result_free(&r);
}

/* Long blocks of short lines, and a last line longer than the log's memory. */
static void test_many_lines(void **state) {
    (void)state;
    seen s = {0};
    weft_launch_result r;
    weft_launch_options o = options_for(&s, SHELL("seq 200000; exit 5"), 1);
    o.events.line = NULL;
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_non_null(strstr(r.last_lines, "199990\n"));
    assert_non_null(strstr(r.last_lines, "200000\n"));
    weft_launch_result_free(&r);
    o.command = SHELL("seq 9; head -c 20000 /dev/zero | tr '\\0' x; exit 5");
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_non_null(strstr(r.last_lines, "xxxx\n"));
    assert_in_range(strlen(r.last_lines), 2000, 8192);
    weft_launch_result_free(&r);
    o.command = SHELL("printf 'a\\000b\\n'; echo why; exit 5"); /* no text, but what follows is */
    assert_int_equal(weft_launch_run(&o, &r), WEFT_E_PEER);
    assert_string_equal(r.last_lines, "a b\nwhy\n");
    weft_launch_result_free(&r);
}

/* WEFT_OK: refused with any status. */
static void refuse(weft_launch_options o, weft_status status, const char *facts) {
    weft_launch_result r;
    weft_status got = weft_launch_run(&o, &r);
    assert_true(status < 0 ? got == status : got < 0);
    ASSERT_MESSAGE(facts);
    weft_launch_result_free(&r);
}

static void test_refused(void **state) {
    (void)state;
    const char *const command[] = {"true", NULL}, *const none[] = {NULL};
    const weft_launch_options good =
        WEFT_STRUCT(weft_launch_options, .command = command, .processes = 1);
    weft_launch_options o = good;
    o.command = none;
    refuse(o, WEFT_E_ARG, "no command");
    o = good;
    o.processes = 0;
    refuse(o, WEFT_E_ARG, "processes is 0|at least 1");
    o = good;
    o.hosts = 2;
    refuse(o, WEFT_E_ARG, "2 hosts|address");
    o.scheduler = "h:1";
    o.host_rank = 2;
    refuse(o, WEFT_E_ARG, "from 0 to 1");
    o = good;
    o.hosts = 1 << 20;
    o.processes = 1 << 20;
    refuse(o, WEFT_E_ARG, "1048576 hosts|1048576 processes");
    o = good;
    o.scheduler = "no.such.host.invalid:9";
    o.join_seconds = 0.3; /* a host's name may become one */
    refuse(o, WEFT_E_NOT_FOUND, "no.such.host.invalid");
    o = good;
    o.secret_file = "/none/secret";
    refuse(o, WEFT_OK, "/none/secret");
    o = good;
    setenv("WEFT_JOIN_SECONDS", "soon", 1); /* for the scheduler, which runs here */
    refuse(o, WEFT_E_ARG, "WEFT_JOIN_SECONDS is 'soon'");
    unsetenv("WEFT_JOIN_SECONDS");
    o = good;
    o.rank_table = "/none/table.json";
    refuse(o, WEFT_E_ARG, "rank table|numbers");
    o.processes = 0;
    refuse(o, WEFT_E_NOT_FOUND, "/none/table.json");
}

/* Of several addresses of an interface the scheduler has the one that was said. */
static void test_interface(void **state) {
    (void)state;
    static const char *const said[][3] = {{"127.0.0.1:9000", "lo", "127.0.0.1"},
                                          {"[::1]:9000", "lo", "::1"},
                                          {"192.0.2.77:9000", "lo", "lo"}, /* not of this host */
                                          {"localhost:9000", "lo", "lo"}};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        wefti_launch_place place;
        weft_launch_options o = WEFT_STRUCT(weft_launch_options, .processes = 1, .hosts = 2,
                                            .scheduler = said[i][0], .interface = said[i][1]);
        assert_int_equal(wefti_launch_place_find(&o, &place), WEFT_OK);
        if (i == 1 && strcmp(place.address, "lo") == 0)
            print_message("SKIP: there is no IPv6 here\n");
        else
            assert_string_equal(place.address, said[i][2]);
        assert_string_equal(place.scheduler, said[i][0]);
        wefti_free(place.host_begin);
    }
}

/* Pieces of the cores: all of them together, none twice, none empty. */
static void test_cores(void **state) {
    (void)state;
    cpu_set_t all, seen_set, piece, both;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int cores = CPU_COUNT(&all);
    for (int count = 1; count <= cores; count++) {
        CPU_ZERO(&seen_set);
        for (int local = 0; local < count; local++) {
            wefti_cores_piece(local, count, &piece);
            assert_true(CPU_COUNT(&piece) > 0);
            CPU_AND(&both, &piece, &seen_set);
            assert_int_equal(CPU_COUNT(&both), 0);
            CPU_OR(&seen_set, &seen_set, &piece);
        }
        assert_true(CPU_EQUAL(&seen_set, &all));
    }
    wefti_cores_piece(cores, cores + 3, &piece);
    assert_int_equal(CPU_COUNT(&piece), 1);
}

/* A log that cannot be written any more ends; the job goes on. */
static void test_full_disk(void **state) {
    (void)state;
    seen s = {0};
    const weft_launch_events events = {&s, NULL, on_line, on_note};
    char folder[] = "/tmp/weft_logs_XXXXXX", path[80];
    wefti_log *log;
    if (access("/dev/full", W_OK)) skip();
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/rank-7.log", folder);
    assert_int_equal(symlink("/dev/full", path), 0);
    assert_int_equal(wefti_log_open(7, folder, &events, &log), WEFT_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(write(wefti_log_end(log, WEFT_LAUNCH_OUTPUT), "line\n", 5), 5);
    wefti_log_started(log);
    wefti_log_finish(log);
    assert_int_equal(s.lines, 3);
    assert_int_equal(s.notes, 1);
    char *last = wefti_log_last(log, 2);
    assert_string_equal(last, "line\nline\n");
    wefti_free(last);
    wefti_log_close(log);
    assert_int_equal(wefti_remove_tree(folder), WEFT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_leaves_others_alone),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cores),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_without_streams),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_many_lines),
        cmocka_unit_test(test_request_after_failure),
        cmocka_unit_test(test_death_on_request),
        cmocka_unit_test(test_half_started),
        cmocka_unit_test(test_interface),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
