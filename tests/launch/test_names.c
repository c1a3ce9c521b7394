/* Rank 0, a scheduler, or host 0's launcher waits for a host name that does not resolve yet, or
 * still resolves to an old address, as for a pod that has just started. It waits as long as for
 * ranks. Texts that cannot be host names are refused at once. With an argument this program is a
 * rank. */
#include "support.h"

#include <dlfcn.h>
#include <netdb.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "control_cases.h"
#include "secret_folder.h"
#include "weft/launch.h"
#include "weft/world.h"

enum { RANKS = 3, TEXT = 512, STALE = 0 };

typedef struct outcome {
    weft_status status;
    int looked; /* for the pod's name */
    char text[TEXT];
} outcome;

static outcome *outcomes;
static char program[1024];
static const char pod[] = "train-0.train";
/* Look-ups of the pod's name that find nothing, and their error; STALE: they find the address of
 * an earlier pod. */
static int missing, unknown;
static int looked;

/* In place of the C library's. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **out) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) *(void **)(void *)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, getenv("LOOKED_FOR")) != 0) return real(name, service, hints, out);
    bool early = looked++ < missing;
    if (early && unknown != STALE) return unknown;
    return real(early ? "192.0.2.1" : "127.0.0.1", service, hints, out);
}

static int make_folder(void **state) {
    (void)state;
    void *shared;
    if (readlink("/proc/self/exe", program, sizeof program - 1) <= 0) return -1;
    if (make_secret_folder("names", &shared, RANKS * sizeof *outcomes) != 0) return -1;
    outcomes = shared;
    return setenv("WEFT_SECRET_FILE", secret, 1) || setenv("LOOKED_FOR", pod, 1);
}
static int remove_folder(void **state) {
    (void)state;
    return remove_secret_folder(outcomes, RANKS * sizeof *outcomes);
}

static void set_number(const char *name, int value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void set_scheduler(const char *host) {
    char text[64];
    (void)snprintf(text, sizeof text, "%s:%d", host, wefti_port_of(folder, strlen(folder)));
    setenv("WEFT_SCHEDULER", text, 1);
}

static weft_status join(double seconds) {
    weft_world *w;
    weft_world_options options = WEFT_STRUCT(weft_world_options, .join_seconds = seconds,
                                             .heartbeat_seconds = LONG_HEARTBEAT);
    weft_status status = weft_world_join(&options, &w);
    if (status >= 0) weft_world_leave(w);
    return status;
}

static weft_status member(int number) {
    set_number("WEFT_RANK", number);
    return join(60);
}

/* Number 0 is the scheduler. */
static weft_status served(int number) {
    char *table = NULL;
    setenv("MS_ROLE", number ? "MS_WORKER" : "MS_SCHED", 1);
    set_number("MS_NODE_ID", number - 1);
    if (number) return join(60);
    setenv("WEFT_JOIN_SECONDS", "60", 1);
    weft_status status = weft_launch_serve(NULL, NULL, &table);
    weft_text_free(table);
    return status;
}

/* A host, with this program as its rank. */
static weft_status launched(int number) {
    const char *const command[] = {program, "rank", NULL};
    char scheduler[64];
    weft_launch_result r;
    (void)snprintf(scheduler, sizeof scheduler, "%s:%d", pod,
                   wefti_port_of(folder, strlen(folder)));
    weft_launch_options options = WEFT_STRUCT(
        weft_launch_options, .command = command, .processes = 1, .hosts = RANKS,
        .host_rank = number, .scheduler = scheduler, .secret_file = secret, .join_seconds = 60);
    weft_status status = weft_launch_run(&options, &r);
    weft_launch_result_free(&r);
    return status;
}

static void all_work(weft_status (*what)(int)) {
    pid_t pids[RANKS];
    memset(outcomes, 0, RANKS * sizeof *outcomes);
    for (int i = 0; i < RANKS; i++) {
        fflush(NULL);
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] > 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        /* Elsewhere an address where nobody answers takes seconds, and is asked for again. */
        if (i > 0 && unknown == STALE) missing = 0;
        outcomes[i].status = what(i);
        outcomes[i].looked = looked;
        (void)snprintf(outcomes[i].text, TEXT, "%s", weft_error_message());
        _exit(0);
    }
    for (int i = 0; i < RANKS; i++) waitpid(pids[i], NULL, 0);
    int failed = 0;
    for (int i = 0; i < RANKS; i++) {
        if (outcomes[i].status >= 0) continue;
        print_message("process %d: %s\n", i, outcomes[i].text);
        failed++;
    }
    assert_int_equal(failed, 0);
    assert_int_equal(outcomes[0].looked, missing + 1);
}

static void is_waited_for(void **state) {
    (void)state;
    static const int ways[] = {EAI_AGAIN, EAI_NONAME, EAI_NODATA, STALE};
    uint64_t random = test_new_seed();
    for (int i = 0; i < 4; i++) {
        missing = (int)(1 + test_random(&random) % 3);
        unknown = ways[i];
        set_number("WEFT_SIZE", RANKS);
        set_scheduler(pod);
        all_work(member);
        unsetenv("WEFT_SIZE");
        unsetenv("WEFT_SCHEDULER");
        set_number("MS_WORKER_NUM", RANKS - 1);
        set_number("MS_SCHED_PORT", wefti_port_of(folder, strlen(folder)));
        setenv("MS_SCHED_HOST", pod, 1);
        all_work(served);
        unsetenv("MS_WORKER_NUM");
        unsetenv("MS_SCHED_PORT");
        unsetenv("MS_SCHED_HOST");
        all_work(launched);
    }
}

static void as_rank_0(void) {
    set_number("WEFT_SIZE", RANKS);
    set_number("WEFT_RANK", 0);
}
static int forget(void **state) {
    (void)state;
    for (const char *const *v = wefti_launcher_variables; *v; v++) unsetenv(*v);
    looked = missing = 0;
    return setenv("WEFT_SECRET_FILE", secret, 1) || setenv("LOOKED_FOR", pod, 1);
}

static void ends_with_the_time_to_join(void **state) {
    (void)state;
    as_rank_0();
    set_scheduler(pod);
    missing = INT32_MAX;
    static const struct {
        int unknown;
        const char *said, *why;
    } ways[] = {
        {EAI_AGAIN, "'train-0.train'|network interface", NULL},
        {EAI_NONAME, "'train-0.train'|network interface", NULL},
        {STALE, "'train-0.train'|192.0.2.1:", "requested address"},
    };
    for (int i = 0; i < 3; i++) {
        unknown = ways[i].unknown;
        looked = 0;
        assert_int_equal(join(0.5), WEFT_E_NOT_FOUND);
        const char *text = weft_error_message();
        const char *why = unknown == STALE ? ways[i].why : gai_strerror(unknown);
        if (!has_facts(text, ways[i].said) || !strstr(text, why) || !has_facts(text, "0.5 s"))
            fail_msg("'%s' without '%s ... %s'", text, ways[i].said, why);
        assert_true(looked > 2);
    }
}

/* A request to stop is heard meanwhile, and whoever waits is told what for. */
static volatile int stop_signal, stop_count;
static char noted[TEXT];
static void note_and_stop(void *context, const char *text) {
    (void)context;
    (void)snprintf(noted, sizeof noted, "%s", text);
    stop_signal = SIGINT;
    stop_count++;
}

static void launcher_stops_when_asked(void **state) {
    (void)state;
    const char *const command[] = {program, "rank", NULL};
    weft_launch_result r;
    weft_launch_options options = WEFT_STRUCT(
        weft_launch_options, .command = command, .processes = 1, .hosts = 2,
        .scheduler = "train-0.train:9000", .secret_file = secret, .join_seconds = 600,
        .stop_signal = &stop_signal, .stop_count = &stop_count, .events = {.note = note_and_stop});
    missing = INT32_MAX;
    unknown = EAI_AGAIN;
    assert_int_equal(weft_launch_run(&options, &r), WEFT_E_STOPPED);
    assert_int_equal(r.stop_signal, SIGINT);
    assert_int_equal(r.failed_rank, -1);
    weft_launch_result_free(&r);
    ASSERT_MESSAGE("signal 2");
    ASSERT_FACTS(noted, "'train-0.train'|network interface|/sys/class/net");
    assert_int_equal(stop_count, 1);
}

/* What is neither a name nor an address never comes. */
static void mistakes_end_at_once(void **state) {
    (void)state;
    static const char *const hosts[] = {"10.0.0.300", "10.0.0.0.7", "train_0,train"};
    missing = INT32_MAX;
    unknown = EAI_NONAME;
    as_rank_0();
    for (int i = 0; i < 3; i++) {
        looked = 0;
        setenv("LOOKED_FOR", hosts[i], 1);
        set_scheduler(hosts[i]);
        assert_int_equal(join(60), WEFT_E_NOT_FOUND);
        assert_non_null(strstr(weft_error_message(), hosts[i]));
        assert_null(strstr(weft_error_message(), "again"));
        assert_int_equal(looked, 1);
    }
}

/* An interface that a rank is to listen at may come late. */
static void interfaces_are_waited_for(void **state) {
    (void)state;
    missing = INT32_MAX;
    unknown = EAI_NONAME;
    as_rank_0();
    set_scheduler(pod);
    setenv("LOOKED_FOR", "eht0", 1);
    setenv("WEFT_INTERFACE", "eht0", 1);
    assert_int_equal(join(0.5), WEFT_E_NOT_FOUND);
    unsetenv("WEFT_INTERFACE");
    ASSERT_MESSAGE("eht0|0.5 s");
    assert_true(looked > 2);
}

/* So may an address of a launcher, or its interface. */
static void launcher_waits_for_interfaces(void **state) {
    (void)state;
    const char *const command[] = {program, "rank", NULL};
    static const char *const schedulers[] = {"192.0.2.1:9000", "train-0.train:9000"};
    missing = INT32_MAX;
    unknown = EAI_NONAME;
    setenv("LOOKED_FOR", "eht0", 1);
    for (int i = 0; i < 2; i++) {
        weft_launch_result r;
        weft_launch_options options =
            WEFT_STRUCT(weft_launch_options, .command = command, .processes = 1, .hosts = 2,
                        .scheduler = schedulers[i], .interface = i ? "eht0" : NULL,
                        .secret_file = secret, .join_seconds = 0.5);
        looked = 0;
        assert_int_equal(weft_launch_run(&options, &r), WEFT_E_NOT_FOUND);
        weft_launch_result_free(&r);
        assert_non_null(strstr(weft_error_message(), i ? "eht0" : "192.0.2.1:9000"));
        assert_non_null(strstr(weft_error_message(), "0.5 s"));
        assert_true(i ? looked > 2 : looked == 0);
    }
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) return join(60) < 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(is_waited_for, forget),
        cmocka_unit_test_teardown(ends_with_the_time_to_join, forget),
        cmocka_unit_test_teardown(launcher_stops_when_asked, forget),
        cmocka_unit_test_teardown(mistakes_end_at_once, forget),
        cmocka_unit_test_teardown(interfaces_are_waited_for, forget),
        cmocka_unit_test_teardown(launcher_waits_for_interfaces, forget),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
