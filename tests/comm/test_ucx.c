/* The communicator over UCX: processes that send each other messages through the loopback
 * interface. Random transfers, what does not match, ranks that break off or are killed; and that
 * UCX leaves the process as it was. (weft-test: threads) */
#include "support.h"

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
enum { SCRIPTS = 4, BROKEN = 4, KILLED = 2 };
#else
enum { SCRIPTS = 12, BROKEN = 10, KILLED = 6 };
#endif

static weft_status join_by_ucx(process_world *p, int32_t rank) {
    static seat_at_meeting seat; /* of this process; the transport keeps a pointer */
    seat = (seat_at_meeting){&p->meeting, rank, 0};
    wefti_exchange exchange = {&seat, swap_cards};
    weft_transport transport;
    WEFT_TRY(wefti_ucx_transport(rank, p->w.size, &exchange, NULL, &transport));
    WEFT_TRY(wefti_comm_p2p(&transport, NULL, &p->w.comm[rank]));
    wefti_p2p_force(p->w.comm[rank], (wefti_commsched_algorithm)p->memory);
    return WEFT_OK;
}

static process_world *ucx_begin(int32_t size, wefti_commsched_algorithm forced, void *context) {
    process_world *p = processes_begin(size, context);
    p->join = join_by_ucx;
    p->w.get = NULL;
    p->w.put = NULL;
    p->memory = (int)forced;
    return p;
}

static process_world *begin_any(int32_t size, int round, numbers *r, script *script) {
    (void)round;
    return ucx_begin(size, (wefti_commsched_algorithm)pick(r, 0, WEFTI_COMMSCHED_ALGORITHMS - 1),
                     script);
}
static void random_scripts(void **state) {
    (void)state;
    run_script_rounds(&(script_rounds){
        .rounds = SCRIPTS, .least = 1, .body = follow_to_the_end, .begin = begin_any});
}

/* A group of all makes everyone known to everyone. */
static process_world *begin_with_all(int32_t size, int round, numbers *r, script *script) {
    (void)round;
    script->cases[0] = all_reduce_of(size, pick(r, 0, 1) ? 30000 : 3, WEFT_F32);
    return ucx_begin(size, WEFTI_COMMSCHED_CHOSEN, script);
}
static void broken_scripts(void **state) {
    (void)state;
    run_script_rounds(&(script_rounds){.rounds = BROKEN,
                                       .least = 2,
                                       .mask = 0xB0,
                                       .break_every = 1,
                                       .body = follow_script,
                                       .begin = begin_with_all});
}

/* --- a rank is killed --- */

static void who_is_killed_is_named(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0x9;
    for (int round = 0; round < KILLED; round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 2, 5);
        killing *k = share(sizeof *k);
        k->c = all_reduce_of(size, round % 2 ? 60000 : 5, WEFT_F32);
        k->victim = (int32_t)pick(&r, 0, size - 1);
        process_world *p = ucx_begin(size, WEFTI_COMMSCHED_CHOSEN, k);
        kill_and_hear(p, k, &r, " is lost");
        processes_end(p);
        munmap(k, sizeof *k);
    }
}

/* A receiver that has never sent anything to the one that dies. */
static void receive_for_ever(world_test *w, int32_t rank) {
    killing *k = w->context;
    static float a[60000];
    wefti_endpoint *e = bound(w, rank, &k->c);
    weft_status status = WEFT_OK;
    for (int turn = 0; status >= 0; turn++) {
        if (rank == 0 && turn == 3) atomic_store(&k->turns, 3);
        if (rank == 0 && turn == 3) pause(); /* to be killed */
        status = wefti_comm_run(e, rank == 0 ? a : NULL, rank == 1 ? a : NULL);
    }
    snprintf(k->message[rank], sizeof k->message[rank], "%s", weft_error_message());
    if (status == WEFT_E_PEER) atomic_fetch_add(&k->failed, 1);
    w->comm[rank]->engine->unbind(e);
}
static void a_dead_sender_is_noticed(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++) {
        killing *k = share(sizeof *k);
        k->c = send_of(0, 1, round ? 60000 : 5);
        process_world *p = ucx_begin(2, WEFTI_COMMSCHED_CHOSEN, k);
        p->ignored = 0;
        start_processes(p, receive_for_ever);
        await_turns(p, &k->turns, 3);
        kill(p->pid[0], SIGKILL);
        await_processes(p);
        if (p->w.failures) fail_msg("%s", p->w.message);
        assert_int_equal(k->failed, 1);
        assert_non_null(strstr(k->message[1], "rank 0 is lost"));
        processes_end(p);
        munmap(k, sizeof *k);
    }
}

/* --- what does not match --- */

static void what_does_not_match_is_named(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) { /* those in which all need each other */
        mismatch_test *test = share(sizeof *test);
        int32_t odd = prepare_mismatch(test, variant);
        process_world *p = ucx_begin(3, WEFTI_COMMSCHED_CHOSEN, test);
        run_processes(p, meet_wrongly);
        if (p->w.failures) fail_msg("%s", p->w.message);
        assert_true(test->found >= 1);
        char rank[16];
        snprintf(rank, sizeof rank, "rank %d", (int)odd);
        for (int32_t r = 0; r < 3; r++)
            if (!strstr(test->message[r], rank) || !strstr(test->message[r], "of other (") ||
                !strstr(test->message[r], "of gradients ("))
                fail_msg("variant %d, rank %d: %s", variant, (int)r, test->message[r]);
        processes_end(p);
        munmap(test, sizeof *test);
    }
}

/* --- the process around it --- */

/* Files with names that this process maps. */
static bool maps_named_files(void) {
    char line[512];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) found |= strstr(line, "/dev/shm/") != NULL;
    if (f) fclose(f);
    return found;
}

/* Addresses and ports that this process listens on: inodes of its sockets in /proc/net/tcp. */
static int listening_elsewhere(void) {
    char line[512], path[64], target[64], own[4096] = "";
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = 0;
        unsigned long inode;
        if (sscanf(target, "socket:[%lu]", &inode) == 1 && strlen(own) < sizeof own - 32)
            snprintf(own + strlen(own), 32, " %lu ", inode);
    }
    int elsewhere = 0;
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(tables[i], "r");
        while (f && fgets(line, sizeof line, f)) {
            char address[64], inode_text[32];
            unsigned state;
            unsigned long inode;
            if (sscanf(line, " %*d: %63[^:]:%*x %*s %x %*s %*s %*s %*s %*s %lu", address, &state,
                       &inode) != 3)
                continue;
            snprintf(inode_text, sizeof inode_text, " %lu ", inode);
            if (state == 0x0A && strstr(own, inode_text) && strcmp(address, "0100007F") != 0)
                elsewhere++;
        }
        if (f) fclose(f);
    }
    return elsewhere;
}

static void look_around(world_test *w, int32_t rank) {
    shared_case *c = w->context;
    float a[4] = {1, 2, 3, 4};
    wefti_endpoint *e = bound(w, rank, c);
    (void)good(w, rank, wefti_comm_run(e, a, a), "run");
    for (int s = 1; s < 32; s++) {
        struct sigaction now;
        if (s == SIGALRM || sigaction(s, NULL, &now) != 0) continue;
        if (now.sa_handler != SIG_DFL) complain(w, rank, "a signal is handled", strsignal(s));
    }
    if (listening_elsewhere()) complain(w, rank, "listens", "elsewhere than on loopback");
    if (maps_named_files()) complain(w, rank, "maps", "files of /dev/shm");
    if (a[3] != 8) complain(w, rank, "values", "are wrong");
    w->comm[rank]->engine->unbind(e);
}

static weft_status join_silently(process_world *p, int32_t rank) {
    for (int s = 1; s < 32; s++) (void)signal(s, SIG_DFL);
    return join_by_ucx(p, rank);
}
static void the_process_stays_as_it_was(void **state) {
    (void)state;
    shared_case c = all_reduce_of(2, 4, WEFT_F32);
    process_world *p = ucx_begin(2, WEFTI_COMMSCHED_CHOSEN, &c);
    p->join = join_silently;
    run_processes(p, look_around);
    if (p->w.failures) fail_msg("%s", p->w.message);
    processes_end(p);
}

/* Several ways to get in wrong. */
static weft_status join_wrong_interface(process_world *p, int32_t rank) {
    seat_at_meeting seat = {&p->meeting, rank, 0};
    wefti_exchange exchange = {&seat, swap_cards};
    weft_transport transport;
    weft_status status =
        wefti_ucx_transport(rank, p->w.size, &exchange, rank == 1 ? "nonesuch0" : "lo", &transport);
    bool named = status < 0 && strstr(weft_error_message(), "nonesuch0");
    if (rank != 1) named = named && strstr(weft_error_message(), "rank 1");
    if (!named) complain_of(p, rank, "got another error", status);
    exit(0);
}
static void a_wrong_interface_is_named(void **state) {
    (void)state;
    process_world *p = ucx_begin(2, WEFTI_COMMSCHED_CHOSEN, NULL);
    p->join = join_wrong_interface;
    run_processes(p, look_around);
    if (p->w.failures) fail_msg("%s", p->w.message);
    processes_end(p);
}

static bool there_is_ucx(void) {
    process_world *p = ucx_begin(1, WEFTI_COMMSCHED_CHOSEN, NULL);
    seat_at_meeting seat = {&p->meeting, 0, 0};
    wefti_exchange exchange = {&seat, swap_cards};
    weft_transport transport;
    fflush(NULL);
    pid_t pid = fork(); /* UCX shall not be in the process that forks the others */
    if (pid == 0) {
        weft_status status = wefti_ucx_transport(0, 1, &exchange, NULL, &transport);
        if (status == WEFT_E_NO_IMPL) printf("SKIP: %s\n", weft_error_message());
        fflush(NULL);
        _exit(status == WEFT_E_NO_IMPL);
    }
    int how = 0;
    waitpid(pid, &how, 0);
    processes_end(p);
    return !(WIFEXITED(how) && WEXITSTATUS(how) == 1);
}

int main(void) {
    prepare_for_ucx();
    if (!there_is_ucx()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_process_stays_as_it_was),
        cmocka_unit_test(a_wrong_interface_is_named),
        cmocka_unit_test(random_scripts),
        cmocka_unit_test(broken_scripts),
        cmocka_unit_test(who_is_killed_is_named),
        cmocka_unit_test(a_dead_sender_is_noticed),
        cmocka_unit_test(what_does_not_match_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
