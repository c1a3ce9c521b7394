/* The communicator between processes: the random transfers of the threads' test, with memory of
 * both kinds and on all paths; the bits of sums; and clean-up when processes die. */
#include "support.h"

#include "base/fault.h"
#include "processes.h"
#include "sanitized.h"

#if SANITIZED_THREAD
enum { SCRIPTS = 8 };
#else
enum { SCRIPTS = 80 };
#endif

/* All roads: mapped memory, copies, and fetching, which here begins at small sizes. */
static void choose_roads(process_world *p, numbers *r) {
    static const int64_t least[] = {-1, 0, 64};
    p->memory = (int)pick(r, 0, 2);
    p->pull_least = least[pick(r, 0, 2)];
    p->spin = (int)pick(r, -1, 1) * 20;
    if (p->spin < 0) p->spin = -1;
}

static process_world *begin_host(int32_t size, int round, numbers *r, script *script) {
    process_world *p = processes_begin(size, script);
    (void)round;
    choose_roads(p, r);
    return p;
}
static void random_scripts(void **state) {
    (void)state;
    run_script_rounds(&(script_rounds){
        .rounds = SCRIPTS, .least = 1, .body = follow_script, .begin = begin_host});
}

/* Ranks on several hosts, which here are groups of processes; between groups another communicator
 * carries the data. */
static process_world *begin_hosts(int32_t size, int round, numbers *r, script *script) {
    process_world *p = begin_host(size, round, r, script);
    p->with_far = true;
    for (int32_t i = 0; i < size; i++) p->hosts[i] = (int32_t)pick(r, 0, 2);
    return p;
}
static void random_scripts_between_hosts(void **state) {
    (void)state;
    run_script_rounds(&(script_rounds){.rounds = SCRIPTS / 2,
                                       .least = 2,
                                       .mask = 0xFA,
                                       .break_every = 4,
                                       .body = follow_script,
                                       .begin = begin_hosts});
}

static void broken_scripts(void **state) {
    (void)state;
    run_script_rounds(&(script_rounds){.rounds = SCRIPTS / 4,
                                       .least = 2,
                                       .mask = 0xB0,
                                       .break_every = 1,
                                       .body = follow_script,
                                       .begin = begin_host});
}

/* --- bits --- */

/* Each rank takes its part of an array that all share into memory of either kind, and puts the
 * result back. */
static void reduce_shared(world_test *w, int32_t rank) {
    bits_test *b = w->context;
    numbers r = {(uint64_t)rank + (uint64_t)b->c.have[0].size[0], 0};
    int64_t bytes = bytes_of(&b->c, &b->c.have[0]);
    wefti_endpoint *e = bound(w, rank, &b->c);
    if (!e) return;
    for (int turn = 0; turn < 3; turn++) {
        void *from = get_memory(w, rank, bytes, &r);
        void *to = turn == 1 ? from : get_memory(w, rank, bytes, &r);
        memcpy(from, b->source[rank], (size_t)bytes);
        (void)good(w, rank, wefti_comm_run(e, from, to), "all-reduce");
        if (turn > 0 && memcmp(to, b->destination[rank], (size_t)bytes) != 0)
            complain(w, rank, "values", "are not always the same");
        memcpy(b->destination[rank], to, (size_t)bytes);
        put_memory(w, rank, from);
        if (to != from) put_memory(w, rank, to);
    }
    w->comm[rank]->engine->unbind(e);
}

static void sums_are_those_of_threads(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 63, 64, 65, 1000, 2049, 70001, 1048577};
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};
    enum { MOST = 1048577 * 4, VALUES = 4099 };
    static float value[VALUES];
    for (int i = 0; i < VALUES; i++) value[i] = wefti_philox_normal(5, 0, (uint64_t)i);
    char *arrays = share((size_t)3 * MOST_RANKS * MOST);
    for (int32_t members = 2; members <= 8; members += members < 4 ? 1 : 4)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            for (int turn = 0; turn < 3; turn++) {
                weft_dtype dtype = dtypes[(turn + (int)k) % 3];
                if (sizes[k] > 100000 && members > 3) continue;
                bits_test b = {.c = all_reduce_of(members, sizes[k], dtype)}, t = b;
                for (int32_t m = 0; m < members; m++) {
                    b.source[m] = t.source[m] = (void *)(arrays + (size_t)m * MOST);
                    b.destination[m] = (void *)(arrays + (size_t)(m + MOST_RANKS) * MOST);
                    t.destination[m] = (void *)(arrays + (size_t)(m + 2 * MOST_RANKS) * MOST);
                    for (int64_t i = 0; i < sizes[k]; i++)
                        wefti_store(dtype, b.source[m], i, value[(i + m * 77) % VALUES]);
                }
                world_test w;
                assert_true(world_begin(&w, members, 0, &t));
                run_all(&w, reduce_bits);
                if (w.failures) fail_msg("%s", w.message);
                world_end(&w);
                process_world *p = processes_begin(members, &b);
                p->memory = turn;
                run_processes(p, reduce_shared);
                if (p->w.failures) fail_msg("%s", p->w.message);
                processes_end(p);
                for (int32_t m = 0; m < members; m++)
                    assert_memory_equal(b.destination[m], t.destination[m],
                                        (size_t)bytes_of(&b.c, &b.c.have[0]));
            }
    munmap(arrays, (size_t)3 * MOST_RANKS * MOST);
}

/* --- all-gathers --- */

static unsigned char byte_at(int64_t i, int turn) {
    return (unsigned char)(i * 131 + i / 4096 * 7 + turn);
}

/* Apart and in place, and again with the same endpoint. */
static void gather_whole(world_test *w, int32_t rank) {
    shared_case *c = w->context;
    numbers r = {(uint64_t)rank + 1, 0};
    int64_t all = bytes_of(c, &c->want[rank]), own = bytes_of(c, &c->have[rank]);
    int64_t at = c->have[rank].begin[0] * (int64_t)weft_dtype_bytes(c->t.dtype);
    wefti_endpoint *e = bound(w, rank, c);
    for (int turn = 0; e && turn < 4; turn++) {
        unsigned char *to = get_memory(w, rank, all, &r);
        unsigned char *from = turn == 1 ? to + at : get_memory(w, rank, own, &r);
        memset(to, 0xEE, (size_t)all);
        for (int64_t i = 0; i < own; i++) from[i] = byte_at(at + i, turn);
        (void)good(w, rank, wefti_comm_run(e, from, to), "all-gather");
        int64_t i = 0;
        while (i < all && to[i] == byte_at(i, turn)) i++;
        if (i < all) complain(w, rank, "values", "are not those of all parts");
        if (turn != 1) put_memory(w, rank, from);
        put_memory(w, rank, to);
    }
    wefti_comm_unbind(e);
}

/* Parts of unlike sizes, in memory of both kinds, whether or not the kernel lets processes read
 * each other. */
static void gathers_are_whole(void **state) {
    (void)state;
    enum { SIZES = 5, ROADS = 5 };
    static const int64_t sizes[SIZES] = {50, 9001, 70001, 1500007, 13000001};
    static const struct {
        int memory;
        int64_t pulls; /* sources from this size on are read through the kernel; 0: never */
    } road[ROADS] = {{0, -1}, {0, 0}, {1, -1}, {2, 0}, {2, 64}};
    for (int32_t members = 2; members <= 8; members += members < 4 ? 1 : 4)
        for (int k = 0; k < SIZES; k++)
            for (int turn = 0; turn < ROADS; turn++) {
                if (k == SIZES - 1 && (members > 2 || turn % 4 || SANITIZED)) continue;
                shared_case c = all_reduce_of(members, sizes[k], k % 2 ? WEFT_BF16 : WEFT_F32);
                c.t.kind = WEFTI_TRANSFER_ALL_GATHER;
                c.t.reduction = WEFTI_REDUCE_NONE;
                for (int64_t m = 0; m < members; m++) {
                    int64_t square = (int64_t)members * members;
                    int64_t begin = sizes[k] * m * m / square;
                    c.have[m].begin[0] = begin;
                    c.have[m].size[0] = sizes[k] * (m + 1) * (m + 1) / square - begin;
                }
                process_world *p = processes_begin(members, &c);
                p->memory = road[turn].memory;
                p->pull_least = road[turn].pulls;
                run_processes(p, gather_whole);
                if (p->w.failures) fail_msg("%s", p->w.message);
                processes_end(p);
            }
}

/* A word can count all chunks of a transfer of any size. */
static void chunks_can_be_counted(void **state) {
    (void)state;
    for (int gathers = 0; gathers < 2; gathers++)
        for (int64_t n = (int64_t)1 << 20; n <= (int64_t)1 << 50; n <<= 10) {
            shared_case c = all_reduce_of(2, n + 3, WEFT_F32);
            wefti_shm_plan *plan;
            wefti_arena *arena;
            if (gathers) c.t.reduction = WEFTI_REDUCE_NONE, c.t.kind = WEFTI_TRANSFER_ALL_GATHER;
            for (int32_t m = 0; gathers && m < 2; m++)
                wefti_part(n + 3, 1, 2, m, &c.have[m].begin[0], &c.have[m].size[0]);
            wefti_transfer t = for_member(&c, 1);
            assert_int_equal(wefti_arena_create(&arena), WEFT_OK);
            assert_int_equal(wefti_shm_plan_create(arena, &t, &plan), WEFT_OK);
            assert_true(gathers ? plan->gathers : plan->shares);
            assert_true(plan->chunks < (int64_t)1 << WEFTI_SHM_CHUNK_BITS);
            assert_true(plan->chunk * plan->chunks >= plan->count);
            assert_true(plan->chunk * (plan->chunks - 1) < plan->count);
            assert_int_equal(wefti_shm_marked(wefti_shm_mark(7, plan->chunks), 7), plan->chunks);
            assert_int_equal(wefti_shm_marked(wefti_shm_mark(7, plan->chunks), 8), 0);
            wefti_arena_destroy(arena);
        }
}

/* --- failures --- */

static void what_does_not_match_is_named(void **state) {
    (void)state;
    mismatch_test *test = share(sizeof *test);
    for (int variant = 0; variant < 12; variant++) {
        int32_t odd = prepare_mismatch(test, variant);
        process_world *p = processes_begin(3, test);
        run_processes(p, meet_wrongly);
        if (p->w.failures) fail_msg("%s", p->w.message);
        const char *wrong = wrong_mismatch(test, odd);
        if (wrong) fail_msg("variant %d: %s", variant, wrong);
        processes_end(p);
    }
    munmap(test, sizeof *test);
}

static void all_hear_of_a_failure(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        shared_case c = all_reduce_of(5, variant / 2 ? 12000 : 3, WEFT_F32);
        process_world *p = processes_begin(5, &c);
        p->spin = variant % 2 ? 100 : 0;
        p->w.expected = "rank 2: out of memory";
        run_processes(p, wait_for_nobody);
        if (p->w.failures) fail_msg("%s", p->w.message);
        assert_int_equal(p->w.stopped, 8);
        processes_end(p);
    }
}

/* --- death --- */

typedef struct death_test {
    _Atomic bool told; /* the control plane knows */
    _Atomic int64_t rounds[MOST_RANKS];
    _Atomic int stopped; /* ranks with a failed wait */
    int64_t elements;
    char message[MOST_RANKS][256];
} death_test;

typedef struct watcher {
    world_test *w;
    int32_t rank;
} watcher;

/* What a member's control thread does. */
static void *watch(void *argument) {
    watcher *a = argument;
    death_test *d = a->w->context;
    while (!atomic_load(&d->told)) usleep(200);
    wefti_comm_break(a->w->comm[a->rank], 1, "rank 1 was killed by signal 9");
    return NULL;
}

static void reduce_for_ever(world_test *w, int32_t rank) {
    death_test *d = w->context;
    shared_case c = all_reduce_of(w->size, d->elements, WEFT_F32);
    wefti_endpoint *e = bound(w, rank, &c);
    numbers r = {(uint64_t)rank, 0};
    void *from = get_memory(w, rank, d->elements * 4, &r);
    void *to = get_memory(w, rank, d->elements * 4, &r);
    memset(from, 0, (size_t)d->elements * 4);
    watcher argument = {w, rank};
    pthread_t thread;
    if (!e || pthread_create(&thread, NULL, watch, &argument) != 0) abort();
    weft_status status;
    while ((status = wefti_comm_run(e, from, to)) >= 0) atomic_fetch_add(&d->rounds[rank], 1);
    snprintf(d->message[rank], sizeof d->message[rank], "%s", weft_error_message());
    if (status == WEFT_E_PEER) atomic_fetch_add(&d->stopped, 1);
    pthread_join(thread, NULL);
    w->comm[rank]->engine->unbind(e);
    put_memory(w, rank, from);
    put_memory(w, rank, to);
}

/* One is killed, or stopped, at any instant; as soon as their control threads say so, the others'
 * waits fail. Before that they may find out themselves, where they read its memory. */
static void the_others_outlive_a_rank(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0xDE;
    numbers r = {seed, 0};
    for (int round = 0; round < 16; round++) {
        static const int64_t sizes[] = {2, 3000, 300000};
        death_test *d = share(sizeof *d);
        int32_t size = (int32_t)pick(&r, 2, 4);
        d->elements = sizes[round % 3];
        process_world *p = processes_begin(size, d);
        p->ignored = 1;
        p->memory = (int)pick(&r, 0, 2);
        start_processes(p, reduce_for_ever);
        int64_t until = wefti_now_ns() + (int64_t)HANG_SECONDS * 1000000000;
        await_turns(p, &d->rounds[0], 3);
        usleep((useconds_t)pick(&r, 0, 3000));
        kill(p->pid[1], round % 2 ? SIGSTOP : SIGKILL);
        usleep((useconds_t)pick(&r, 0, 3000));
        int64_t begin = wefti_now_ns();
        atomic_store(&d->told, true);
        while (atomic_load(&d->stopped) < size - 1 && wefti_now_ns() < until) usleep(100);
        double seconds = (double)(wefti_now_ns() - begin) * 1e-9;
        await_processes(p);
        if (p->w.failures) fail_msg("round %d: %s", round, p->w.message);
        assert_int_equal(d->stopped, size - 1);
        if (seconds > 10) fail_msg("round %d: %.1f seconds", round, seconds);
        for (int32_t i = 0; i < size; i++)
            if (i != 1 && !has_facts(d->message[i], "rank 1|signal 9") &&
                !strstr(d->message[i], "has ended"))
                fail_msg("round %d: rank %d: %s", round, (int)i, d->message[i]);
        processes_end(p);
        munmap(d, sizeof *d);
    }
}

/* --- memory --- */

/* Addresses are reserved by the gigabyte, and a core dump would fill them all. */
static bool is_left_out_of_dumps(void) {
    FILE *f = fopen("/proc/self/smaps", "r");
    char peer[512];
    bool shared = false, good = false;
    if (!f) return true;
    while (fgets(peer, sizeof peer, f)) {
        if (strstr(peer, "memfd:")) shared = true;
        if (strncmp(peer, "VmFlags:", 8) != 0 || !shared) continue;
        good = strstr(peer, " dd") != NULL;
        shared = false;
        if (!good) break;
    }
    (void)fclose(f);
    return good;
}

/* Of the memory that processes share: one for each process would be the square of them on a host.
 */
static int shared_mappings(void) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    if (!f) return 1;
    while (fgets(line, sizeof line, f)) count += strstr(line, "memfd:weft") != NULL;
    (void)fclose(f);
    return count;
}

static void use_memory(world_test *w, int32_t rank) {
    const wefti_comm_engine *engine = w->comm[rank]->engine;
    enum { PIECES = 40, PIECE = 3 << 20 };
    numbers r = {(uint64_t)rank, 0};
    unsigned char *piece[PIECES] = {0};
    size_t bytes[PIECES] = {0};
    for (int turn = 0; turn < 400; turn++) {
        int i = (int)pick(&r, 0, PIECES - 1);
        if (piece[i]) {
            for (size_t k = 0; k < bytes[i]; k += 4096)
                if (piece[i][k] != i + 1) complain(w, rank, "memory", "is somebody else's");
            engine->unmap(w->comm[rank], NULL, piece[i], bytes[i]);
            piece[i] = NULL;
            continue;
        }
        void *p;
        bytes[i] = (size_t)pick(&r, 1, pick(&r, 0, 1) ? PIECE : 10000);
        if (!good(w, rank, engine->map(w->comm[rank], NULL, bytes[i], &p), "map")) return;
        piece[i] = p;
        if ((uintptr_t)p % 4096 != 0) complain(w, rank, "memory", "begins within a page");
        for (size_t k = 0; k < bytes[i]; k += 4096) {
            if (piece[i][k] != 0) complain(w, rank, "memory", "is not zero");
            piece[i][k] = (unsigned char)(i + 1);
        }
        piece[i][bytes[i] - 1] = (unsigned char)(bytes[i] % 4096 == 1 ? i + 1 : 7);
    }
    if (!is_left_out_of_dumps()) complain(w, rank, "memory", "would be in a core dump");
    if (shared_mappings() != 1) complain(w, rank, "memory", "is not one mapping");
    void *large;
    if (engine->map(w->comm[rank], NULL, (size_t)100 << 20, &large) < 0)
        complain(w, rank, "map", weft_error_message());
    if (engine->map(w->comm[rank], NULL, SIZE_MAX / 2, &large) != WEFT_E_NOMEM)
        complain(w, rank, "map", "gives more than there is");
}
static void memory_is_zero_and_apart(void **state) {
    (void)state;
    process_world *p = processes_begin(2, NULL);
    run_processes(p, use_memory);
    if (p->w.failures) fail_msg("%s", p->w.message);
    processes_end(p);
}

/* --- one process that is alone --- */

static weft_status swap_alone(void *context, const void *card, size_t bytes, void *cards) {
    int *left = context;
    if (left && (*left)-- == 0) WEFT_FAIL(WEFT_E_TIMEOUT, "nobody came");
    memcpy(cards, card, bytes);
    return WEFT_OK;
}

static void what_cannot_begin_leaves_nothing(void **state) {
    (void)state;
    int files = count_files();
    static const int32_t hosts[2] = {0, 1};
    wefti_comm *comm = NULL;
    for (int fails_at = 0; fails_at < 2; fails_at++) {
        int left = fails_at;
        wefti_exchange exchange = {&left, swap_alone};
        assert_int_equal(wefti_comm_host(0, 1, hosts, &exchange, &comm), WEFT_E_TIMEOUT);
    }
    wefti_exchange exchange = {NULL, swap_alone};
    assert_int_equal(count_files(), files);
    int64_t n = 0;
    for (bool done = false; !done; n++) { /* every allocation may fail */
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        comm = NULL;
        weft_status status = wefti_comm_host(0, 1, hosts, &exchange, &comm);
        wefti_endpoint *e = NULL;
        void *p = NULL;
        if (status >= 0) {
            shared_case c = all_reduce_of(1, 9000, WEFT_F32);
            wefti_transfer t = for_member(&c, 0);
            status = comm->engine->bind(comm, &t, &e);
            if (status >= 0) status = comm->engine->map(comm, NULL, 5000, &p);
            done = status >= 0;
            comm->engine->unbind(e);
            comm->engine->unmap(comm, NULL, p, 5000);
        }
        wefti_comm_destroy(comm);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (!done) assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(n > 6);
    assert_int_equal(count_files(), files);
}

static void one_alone_is_a_world(void **state) {
    (void)state;
    static const int32_t hosts[1] = {3};
    wefti_exchange exchange = {NULL, swap_alone};
    wefti_comm *comm;
    assert_int_equal(wefti_comm_host(0, 1, hosts, &exchange, &comm), WEFT_OK);
    assert_string_equal(comm->engine->name, "host");
    shared_case c = all_reduce_of(1, 3, WEFT_F32), wide = all_reduce_of(2, 3, WEFT_F32);
    wefti_transfer t = for_member(&c, 0);
    wefti_endpoint *e, *none = NULL;
    float a[3] = {1, 2, 3}, b[3] = {0};
    assert_int_equal(comm->engine->bind(comm, &t, &e), WEFT_OK);
    assert_int_equal(comm->engine->wait(e), WEFT_E_ARG);
    assert_int_equal(wefti_comm_run(e, a, b), WEFT_OK);
    assert_memory_equal(a, b, sizeof a);
    t = for_member(&wide, 0);
    assert_int_equal(comm->engine->bind(comm, &t, &none), WEFT_E_ARG);
    comm->engine->unbind(e);
    comm->engine->unbind(NULL);
    wefti_comm_destroy(comm);
}

static void nothing_has_a_name(void **state) {
    (void)state;
    check_nothing_has_a_name();
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_alone_is_a_world),
        cmocka_unit_test(what_cannot_begin_leaves_nothing),
        cmocka_unit_test(random_scripts),
        cmocka_unit_test(random_scripts_between_hosts),
        cmocka_unit_test(broken_scripts),
        cmocka_unit_test(sums_are_those_of_threads),
        cmocka_unit_test(gathers_are_whole),
        cmocka_unit_test(chunks_can_be_counted),
        cmocka_unit_test(what_does_not_match_is_named),
        cmocka_unit_test(all_hear_of_a_failure),
        cmocka_unit_test(the_others_outlive_a_rank),
        cmocka_unit_test(memory_is_zero_and_apart),
        cmocka_unit_test(nothing_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
