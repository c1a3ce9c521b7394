/* The communicator over UCX between two network namespaces, as between hosts: on a good link, on a
 * bad one (delay, loss and reordering by weft-slow-link), and with the cable pulled. Needs root
 * and iproute2. */
#include "support.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include "comm/p2p/p2p.h"
#include "comm/transport/transport.h"
#pragma GCC diagnostic ignored "-Wunused-function" /* not all of it is needed here */
#include "processes.h"
#include "sanitized.h"

/* After a failure UCX is left as it is: the leak checker is turned off, whatever its options. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
    return 1;
}

#if SANITIZED
enum { SCRIPTS = 2 };
#else
enum { SCRIPTS = 4 };
#endif

static char hosts[2][32]; /* names of the namespaces */
static const char *interface = "veth0";

/* A command for the shell, in which A and B are the namespaces; whether it succeeded. */
static bool shell(const char *command) {
    char text[512];
    snprintf(text, sizeof text, "A=%s B=%s; { %s; } >/dev/null 2>&1", hosts[0], hosts[1], command);
    return system(text) == 0;
}

static bool make_hosts(void) {
    for (int i = 0; i < 2; i++)
        snprintf(hosts[i], sizeof hosts[i], "weft-%c-%d", "ab"[i], (int)getpid());
    return shell(
        "ip netns add $A && ip netns add $B && "
        "ip link add veth0 netns $A type veth peer name veth0 netns $B && "
        "ip -n $A addr add 10.98.0.1/24 dev veth0 && "
        "ip -n $B addr add 10.98.0.2/24 dev veth0 && "
        "for n in $A $B; do ip -n $n link set lo up && ip -n $n link set veth0 up; done && "
        /* which takes a while */
        "for n in $A $B; do for i in $(seq 100); do "
        "ip -n $n link show veth0 | grep -q 'state UP' && break; sleep 0.1; done; done");
}
static void remove_hosts(void) {
    (void)shell("ip netns del $A");
    (void)shell("ip netns del $B");
}

static weft_status enter(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    /* UCX looks up interfaces in /sys, which would still show the old namespace. */
    bool in = fd >= 0 && setns(fd, CLONE_NEWNET) == 0 && unshare(CLONE_NEWNS) == 0 &&
              mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
              umount2("/sys", MNT_DETACH) == 0 && mount("sysfs", "/sys", "sysfs", 0, NULL) == 0;
    if (fd >= 0) close(fd);
    WEFT_REQUIRE(in, WEFT_E_IO, "cannot enter %s: %s", path, strerror(errno));
    return WEFT_OK;
}

static weft_status join_between(process_world *p, int32_t rank) {
    static seat_at_meeting seat;
    seat = (seat_at_meeting){&p->meeting, rank, 0};
    wefti_exchange exchange = {&seat, swap_cards};
    weft_transport transport;
    WEFT_TRY(enter(hosts[rank % 2]));
    WEFT_TRY(wefti_ucx_transport(rank, p->w.size, &exchange, interface, &transport));
    return wefti_comm_p2p(&transport, NULL, &p->w.comm[rank]);
}
static process_world *between_begin(int32_t size, void *context) {
    process_world *p = processes_begin(size, context);
    p->join = join_between;
    p->w.get = NULL;
    p->w.put = NULL;
    return p;
}

static process_world *begin_between(int32_t size, int round, numbers *r, script *script) {
    (void)round, (void)r;
    return between_begin(size, script);
}
static void run_scripts(uint64_t mask) {
    run_script_rounds(&(script_rounds){.rounds = SCRIPTS,
                                       .least = 2,
                                       .most = 4,
                                       .mask = mask,
                                       .body = follow_to_the_end,
                                       .begin = begin_between});
}

static void a_good_wire(void **state) {
    (void)state;
    run_scripts(0);
}

/* weft-slow-link, and what it says; NULL where it cannot be. */
static FILE *lay_bad_wire(uint64_t seed, pid_t *out_pid) {
    char path[512], number[32], line[256];
    const char *folder = getenv("WEFT_BUILD_DIR");
    snprintf(path, sizeof path, "%s/weft-slow-link", folder ? folder : ".");
    snprintf(number, sizeof number, "seed=%llu", (unsigned long long)seed);
    int says[2];
    assert_int_equal(pipe(says), 0);
    fflush(NULL);
    *out_pid = fork();
    assert_true(*out_pid >= 0);
    if (*out_pid == 0) {
        dup2(says[1], 1);
        execl(path, path, hosts[0], "10.96.0.1", hosts[1], "10.96.0.2", "delay=1", "jitter=0.5",
              "loss=1", "reorder=5", number, (char *)NULL);
        dprintf(1, "SKIP: no %s: %s\n", path, strerror(errno));
        _exit(77);
    }
    close(says[1]);
    FILE *f = fdopen(says[0], "r");
    assert_non_null(f);
    if (!fgets(line, sizeof line, f)) snprintf(line, sizeof line, "SKIP: it ended\n");
    print_message("%s", line);
    if (strncmp(line, "cable", 5) == 0) return f;
    fclose(f);
    waitpid(*out_pid, NULL, 0);
    return NULL;
}

static void a_bad_wire(void **state) {
    (void)state;
    pid_t wire;
    FILE *says = lay_bad_wire(test_new_seed() ^ 0xBAD, &wire);
    if (!says) return;
    interface = "weft0";
    run_scripts(0xBAD);
    interface = "veth0";
    long long carried = 0, lost = 0;
    kill(wire, SIGTERM);
    assert_int_equal(fscanf(says, "carried %lld, lost %lld,", &carried, &lost), 2);
    print_message("%lld frames, %lld of them lost\n", carried, lost);
    assert_true(carried > 0);
    fclose(says);
    waitpid(wire, NULL, 0);
}

/* --- the cable is pulled: only watchers notice --- */

typedef struct pulling {
    shared_case c;
    _Atomic int64_t turns, begun[3]; /* finished by rank 0; begun by each rank */
    _Atomic int pulled, failed;
} pulling;

static void *watch(void *argument) {
    world_test *w = argument;
    pulling *pull = w->context;
    while (!atomic_load(&pull->pulled)) usleep(1000);
    for (int32_t r = 0; r < w->size; r++) /* this process has only one */
        if (w->comm[r]) wefti_comm_break(w->comm[r], 1, "the scheduler hears nothing of rank 1");
    return NULL;
}
static void reduce_until_pulled(world_test *shared, int32_t rank) {
    pulling *pull = shared->context;
    world_test own = {.size = shared->size, .context = pull};
    own.comm[rank] = shared->comm[rank];
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, watch, &own) != 0) abort();
    static float a[2][60000];
    wefti_endpoint *e = bound(shared, rank, &pull->c);
    weft_status status = WEFT_OK;
    while (status >= 0) {
        atomic_fetch_add(&pull->begun[rank], 1);
        status = wefti_comm_run(e, a[0], a[1]);
        if (rank == 0) atomic_fetch_add(&pull->turns, 1);
    }
    if (status == WEFT_E_PEER) atomic_fetch_add(&pull->failed, 1);
    shared->comm[rank]->engine->unbind(e);
    pthread_join(watcher, NULL);
}
/* Without the cable no further turn ends, so soon all ranks are in the same one. */
static bool are_in_one_turn(const pulling *pull) {
    const int64_t turn = atomic_load(&pull->begun[0]);
    return atomic_load(&pull->begun[1]) == turn && atomic_load(&pull->begun[2]) == turn &&
           atomic_load(&pull->turns) == turn - 1;
}

static void a_cable_that_is_pulled(void **state) {
    (void)state;
    pulling *pull = share(sizeof *pull);
    pull->c = all_reduce_of(3, 60000, WEFT_F32);
    process_world *p = between_begin(3, pull);
    start_processes(p, reduce_until_pulled);
    await_turns(p, &pull->turns, 3);
    assert_true(shell("ip -n $A link set veth0 down"));
    const int64_t until = wefti_now_ns() + (int64_t)HANG_SECONDS * 1000000000;
    while (!are_in_one_turn(pull) && !atomic_load(&p->w.failures) && wefti_now_ns() < until)
        usleep(1000);
    atomic_store(&pull->pulled, 1);
    await_processes(p); /* all come to their end, though nobody answers */
    if (p->w.failures) fail_msg("%s", p->w.message);
    assert_int_equal(pull->failed, 3);
    processes_end(p);
    munmap(pull, sizeof *pull);
}

static bool there_is_ucx(void) {
#ifdef WEFT_HAVE_UCX
    return true;
#else
    return false;
#endif
}

int main(void) {
    prepare_for_ucx();
    const char *lacks = !there_is_ucx()   ? "weft is built without UCX"
                        : geteuid() != 0  ? "network namespaces need root"
                        : !shell("ip -V") ? "iproute2 is not installed"
                        : !make_hosts()   ? "network namespaces are not to be had here"
                                          : NULL;
    if (lacks) {
        printf("SKIP: %s\n", lacks);
        remove_hosts();
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_wire),
        cmocka_unit_test(a_bad_wire),
        cmocka_unit_test(a_cable_that_is_pulled),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_hosts();
    return failed;
}
