/* Messages within a host through shared memory: random transfers by each algorithm, the same bits
 * as between threads, the bytes on each path, and clean-up when a process dies. The transport
 * between hosts is shared memory here too. (weft-test: threads) */
#include "support.h"

#include "comm/host/intranode.h"
#include "comm/p2p/p2p.h"
#include "no_messages.h"
#pragma GCC diagnostic ignored "-Wunused-function" /* not all of it is needed here */
#include "processes.h"
#include "rounds_cases.h"
#include "sanitized.h"

#if SANITIZED_THREAD /* under which processes begin slowly */
enum { SCRIPTS = 2, BROKEN = 3, KILLED = 2, TURNS = 3 };
#elif SANITIZED
enum { SCRIPTS = 6, BROKEN = 4, KILLED = 4, TURNS = 3 };
#else
enum { SCRIPTS = 40, BROKEN = 12, KILLED = 8, TURNS = 20 };
#endif
enum { MOST_BYTES = 8 << 20 };

/* --- worlds --- */

typedef struct roads_world {
    process_world p;
    wefti_commsched_algorithm forced;
    bool pulls; /* as far as the kernel lets processes read each other */
    wefti_host_traffic traffic[MOST_RANKS];
} roads_world;

static wefti_host *shared_by_all, *of_host; /* of this process */

static weft_status join_one_host(roads_world *w, int32_t rank, weft_transport *out) {
    static const int32_t one_host[MOST_RANKS];
    static seat_at_meeting port;
    port = (seat_at_meeting){&w->p.meeting, rank, 0};
    wefti_exchange exchange = {&port, swap_cards};
    weft_transport nobody = no_messages("near", rank, w->p.w.size);
    nobody.any_thread = true;
    wefti_comm *comm;
    WEFT_TRY(wefti_comm_host(rank, w->p.w.size, one_host, &exchange, &comm));
    shared_by_all = (wefti_host *)comm;
    if (!w->pulls) shared_by_all->world.single_copy_bytes = 0;
    return wefti_comm_host_route(comm, &nobody, out);
}

/* A world of messages alone, all in the memory of one host. */
static weft_status join_near(process_world *p, int32_t rank) {
    roads_world *w = (roads_world *)p;
    weft_transport transport;
    WEFT_TRY(join_one_host(w, rank, &transport));
    WEFT_TRY(wefti_comm_p2p(&transport, NULL, &p->w.comm[rank]));
    wefti_p2p_force(p->w.comm[rank], w->forced);
    return WEFT_OK;
}

/* What a job on several hosts has. */
static weft_status join_roads(process_world *p, int32_t rank) {
    roads_world *w = (roads_world *)p;
    static seat_at_meeting port;
    weft_transport between, transport;
    wefti_comm *far;
    WEFT_TRY(join_one_host(w, rank, &between));
    port = (seat_at_meeting){&p->meeting, rank, 4}; /* this number of meetings took place */
    wefti_exchange exchange = {&port, swap_cards};
    WEFT_TRY(wefti_comm_host(rank, p->w.size, p->hosts, &exchange, &p->w.comm[rank]));
    of_host = (wefti_host *)p->w.comm[rank];
    if (!w->pulls) of_host->world.single_copy_bytes = 0;
    WEFT_TRY(wefti_comm_host_route(p->w.comm[rank], &between, &transport));
    wefti_p2p_setup setup = {.host = p->hosts};
    WEFT_TRY(wefti_comm_p2p(&transport, &setup, &far));
    wefti_p2p_force(far, w->forced);
    wefti_comm_host_set_internode(p->w.comm[rank], far);
    return WEFT_OK;
}

/* Plain memory, or what all of a host map. */
static void *get_any(world_test *w, int32_t rank, int64_t bytes, numbers *r) {
    (void)w, (void)rank;
    wefti_host *host = of_host ? of_host : shared_by_all;
    void *p = NULL;
    if (pick(r, 0, 1)) return malloc((size_t)bytes);
    return wefti_host_take(&host->heap, (size_t)bytes, &p) < 0 ? NULL : p;
}
static void put_any(world_test *w, int32_t rank, void *p) {
    (void)w, (void)rank;
    wefti_host *host = of_host ? of_host : shared_by_all;
    const unsigned char *base = host->heap.base;
    if (p && (unsigned char *)p >= base && (unsigned char *)p < base + host->heap.bytes)
        wefti_host_give(&host->heap, p);
    else
        free(p);
}

static roads_world *roads_begin(int32_t size, bool hosts, numbers *r, void *context) {
    roads_world *w = processes_begin_of(sizeof *w, size, context);
    w->p.join = hosts ? join_roads : join_near;
    w->p.w.get = get_any;
    w->p.w.put = put_any;
    w->pulls = pick(r, 0, 2) > 0;
    w->forced = (wefti_commsched_algorithm)pick(r, 0, WEFTI_COMMSCHED_ALGORITHMS - 1);
    for (int32_t i = 0; i < size; i++) w->p.hosts[i] = hosts ? (int32_t)pick(r, 0, 2) : 0;
    return w;
}

static process_world *begin_any(int32_t size, int round, numbers *r, script *script) {
    return &roads_begin(size, round % 2, r, script)->p;
}
static void random_scripts(void **state) {
    (void)state;
    run_script_rounds(&(script_rounds){
        .rounds = SCRIPTS, .least = 2, .body = follow_to_the_end, .begin = begin_any});
}

/* Breaking the world while data is under way does no harm, and all ranks learn which rank broke
 * it. */
static process_world *begin_with_all(int32_t size, int round, numbers *r, script *script) {
    script->cases[0] = all_reduce_of(size, round % 2 ? 30000 : 3, WEFT_F32);
    return &roads_begin(size, round % 4 > 1, r, script)->p;
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

/* --- the transport itself --- */

enum { MESSAGES = 300, TAGS = 7, LONGEST = 100000 };

static weft_transport roads_of_rank; /* of this process */

static weft_status join_transport(process_world *p, int32_t rank) {
    return join_one_host((roads_world *)p, rank, &roads_of_rank);
}
static size_t length_of(int i) {
    static const size_t lengths[] = {8, 0, 5000, LONGEST};
    return lengths[i % 4];
}
static weft_status finish(void *request, size_t *bytes) {
    const weft_transport *t = &roads_of_rank;
    weft_status status;
    while ((status = t->test(t->context, request, bytes)) == WEFT_PENDING) sched_yield();
    return status;
}
static void claim(world_test *w, int32_t rank, bool holds, const char *what) {
    if (holds) return;
    pthread_mutex_lock(&w->lock);
    if (atomic_fetch_add(&w->failures, 1) == 0)
        snprintf(w->message, sizeof w->message, "rank %d: %s: %s", (int)rank, what,
                 weft_error_message());
    pthread_mutex_unlock(&w->lock);
}

/* More than the ring holds, before the other looks, which then begins with the last tag. */
static void send_many(world_test *w) {
    const weft_transport *t = &roads_of_rank;
    size_t stride = (t->request_bytes + 15) / 16 * 16;
    unsigned char *request = calloc(MESSAGES, stride);
    unsigned char *data = malloc((size_t)MESSAGES * LONGEST);
    if (!request || !data) abort();
    for (int i = 0; i < MESSAGES; i++) {
        memset(data + (size_t)i * LONGEST, i + 1, LONGEST);
        claim(w, 0,
              t->send(t->context, 1, (uint64_t)(i % TAGS), data + (size_t)i * LONGEST, length_of(i),
                      request + (size_t)i * stride) == WEFT_OK,
              "send");
    }
    pthread_barrier_wait(&w->barrier);
    for (int i = 0; i < MESSAGES; i++)
        claim(w, 0, finish(request + (size_t)i * stride, NULL) == WEFT_OK, "sent");
    pthread_barrier_wait(&w->barrier);
    /* A message that is too long for its receive, and a cancelled one. */
    claim(w, 0, t->send(t->context, 1, 1, data, LONGEST, request) == WEFT_OK, "send");
    (void)finish(request, NULL);
    claim(w, 0, t->send(t->context, 1, 2, data, LONGEST, request) == WEFT_OK, "send");
    t->cancel(t->context, request);
    pthread_barrier_wait(&w->barrier);
    free(request);
    free(data);
}
static void receive_many(world_test *w) {
    const weft_transport *t = &roads_of_rank;
    unsigned char *request = calloc(2, t->request_bytes), *data = malloc(LONGEST);
    if (!request || !data) abort();
    pthread_barrier_wait(&w->barrier);
    for (int tag = TAGS - 1; tag >= 0; tag--)
        for (int i = tag; i < MESSAGES; i += TAGS) {
            size_t bytes = 99;
            claim(w, 1, t->receive(t->context, 0, (uint64_t)tag, data, LONGEST, request) == WEFT_OK,
                  "receive");
            claim(w, 1, finish(request, &bytes) == WEFT_OK, "received");
            claim(w, 1, bytes == length_of(i), "a length");
            for (size_t k = 0; k < bytes; k++)
                if (data[k] != (unsigned char)(i + 1)) claim(w, 1, false, "a byte");
        }
    pthread_barrier_wait(&w->barrier);
    claim(w, 1, t->receive(t->context, 0, 1, data, LONGEST - 1, request) == WEFT_OK, "receive");
    claim(w, 1, finish(request, NULL) == WEFT_E_ARG, "one that is too long");
    pthread_barrier_wait(&w->barrier);
    bool pulls = shared_by_all->world.single_copy_bytes > 0; /* else it was copied before */
    claim(w, 1, t->receive(t->context, 0, 2, data, LONGEST, request) == WEFT_OK, "receive");
    claim(w, 1, finish(request, NULL) == (pulls ? WEFT_E_PEER : WEFT_OK), "what was given up");
    free(request);
    free(data);
}
static void send_or_receive(world_test *w, int32_t rank) {
    if (rank == 0)
        send_many(w);
    else
        receive_many(w);
    roads_of_rank.close(roads_of_rank.context);
    wefti_comm_destroy(&shared_by_all->local.comm);
}
static void messages_wait_for_nobody(void **state) {
    (void)state;
    for (int pulls = 0; pulls < 2; pulls++) {
        numbers r = {1, 0};
        roads_world *w = roads_begin(2, false, &r, NULL);
        w->p.join = join_transport;
        w->pulls = pulls;
        run_processes(&w->p, send_or_receive);
        if (w->p.w.failures) fail_msg("%s", w->p.w.message);
        processes_end(&w->p);
    }
}

/* --- bits and bytes --- */

/* A receive fails because its sender has died. It is over then: its memory leaves all lists. */
static void die_or_go_on(world_test *w, int32_t rank) {
    const weft_transport *t = &roads_of_rank;
    size_t stride = (t->request_bytes + 15) / 16 * 16;
    if (rank == 1) _exit(0);
    unsigned char *request = calloc(3, stride), data[8];
    if (!request) abort();
    for (uint64_t i = 0; i < 2; i++)
        claim(w, 0, t->receive(t->context, 1, i, data, 8, request + i * stride) == WEFT_OK,
              "receive");
    claim(w, 0, finish(request, NULL) == WEFT_E_PEER, "a message of a rank that has ended");
    memset(request, 0xA5, stride);
    claim(w, 0, t->receive(t->context, 1, 2, data, 8, request + 2 * stride) == WEFT_OK, "receive");
    for (uint64_t i = 1; i < 3; i++) t->cancel(t->context, request + i * stride);
    for (size_t k = 0; k < stride; k++)
        if (request[k] != 0xA5) claim(w, 0, false, "memory that was given back");
    free(request);
    roads_of_rank.close(roads_of_rank.context);
    wefti_comm_destroy(&shared_by_all->local.comm);
}
static void what_has_failed_is_forgotten(void **state) {
    (void)state;
    numbers r = {1, 0};
    roads_world *w = roads_begin(2, false, &r, NULL);
    w->p.join = join_transport;
    w->p.ignored = 1;
    run_processes(&w->p, die_or_go_on);
    if (w->p.w.failures) fail_msg("%s", w->p.w.message);
    processes_end(&w->p);
}

static void run_bits(world_test *shared, int32_t rank) {
    roads_world *w = (roads_world *)shared;
    bits_test *b = shared->context;
    numbers r = {(uint64_t)rank, 0};
    int64_t has = bytes_of(&b->c, &b->c.have[rank]), wants = bytes_of(&b->c, &b->c.want[rank]);
    void *from = get_any(shared, rank, has + 8, &r), *to = get_any(shared, rank, wants + 8, &r);
    wefti_endpoint *e = bound(shared, rank, &b->c);
    if (!from || !to) abort();
    memcpy(from, b->source[rank], (size_t)has);
    if (e) (void)good(shared, rank, wefti_comm_run(e, from, to), "run");
    memcpy(b->destination[rank], to, (size_t)wants);
    wefti_comm_unbind(e);
    w->traffic[rank] = (of_host ? of_host : shared_by_all)->traffic;
    put_any(shared, rank, from);
    put_any(shared, rank, to);
    pthread_barrier_wait(&shared->barrier);
}

/* By threads, then by processes; what messages there were. */
static wefti_host_traffic compare(roads_world *w, bits_test *b, char *arrays) {
    bits_test threads = {.c = b->c};
    world_test by_threads;
    int32_t members = b->c.t.members;
    for (int32_t m = 0; m < members; m++) {
        b->source[m] = threads.source[m] = (void *)(arrays + (size_t)m * MOST_BYTES);
        b->destination[m] = (void *)(arrays + (size_t)(m + MOST_RANKS) * MOST_BYTES);
        threads.destination[m] = (void *)(arrays + (size_t)(m + 2 * MOST_RANKS) * MOST_BYTES);
        int64_t elements = wefti_region_elems(&b->c.have[m], b->c.t.rank);
        any_values(b->c.t.dtype, b->source[m], elements, (uint64_t)m + 7);
    }
    assert_true(world_begin(&by_threads, members, 0, &threads));
    run_all(&by_threads, reduce_bits);
    if (by_threads.failures) fail_msg("%s", by_threads.message);
    world_end(&by_threads);
    w->p.w.context = b;
    run_processes(&w->p, run_bits);
    if (w->p.w.failures) fail_msg("%s", w->p.w.message);
    wefti_host_traffic all = {0};
    for (int32_t m = 0; m < members; m++) {
        assert_memory_equal(b->destination[m], threads.destination[m],
                            (size_t)bytes_of(&b->c, &b->c.want[m]));
        all.intranode_bytes += w->traffic[m].intranode_bytes;
        all.internode_bytes += w->traffic[m].internode_bytes;
    }
    return all;
}

static void the_same_bits_as_between_threads(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0xB17;
    static const int64_t sizes[] = {1, 700, 9000, 150000};
    char *arrays = share((size_t)3 * MOST_RANKS * MOST_BYTES);
    for (int turn = 0; turn < TURNS; turn++) {
        numbers r = {seed + (uint64_t)turn, 0};
        int32_t members = (int32_t)pick(&r, 2, MOST_RANKS);
        bits_test *b = share(sizeof *b);
        b->c = all_reduce_of(members, 1, WEFT_F32);
        if (pick(&r, 0, 1)) b->c.t.dtype = (weft_dtype)pick(&r, 0, WEFT_DTYPES - 1);
        choose_form(b, turn % 7, members, sizes[pick(&r, 0, 3)] + pick(&r, 0, 9), &r);
        roads_world *w = roads_begin(members, pick(&r, 0, 3) > 0, &r, b);
        (void)compare(w, b, arrays);
        processes_end(&w->p);
        munmap(b, sizeof *b);
    }
    munmap(arrays, (size_t)3 * MOST_RANKS * MOST_BYTES);
}

/* Two hosts of three ranks, and one of six. Sums cross to the other host and back once. Parts that
 * ranks of one host give to each other never leave it. Each message also has a header and a text,
 * and credits return. */
static void each_byte_takes_its_road(void **state) {
    (void)state;
    enum { MEMBERS = 6, HEADERS = 100000, N = 400000 };
    char *arrays = share((size_t)3 * MOST_RANKS * MOST_BYTES);
    bits_test *b = share(sizeof *b);
    for (int which = 0; which < 4; which++) {
        numbers r = {(uint64_t)which, 0};
        b->c = all_reduce_of(MEMBERS, N, WEFT_F32);
        if (which > 1) choose_form(b, 3, MEMBERS, N, &r);
        roads_world *w = roads_begin(MEMBERS, which < 3, &r, b);
        for (int32_t m = 0; m < MEMBERS; m++) w->p.hosts[m] = which < 3 ? m / 3 : 0;
        w->forced = which == 0   ? WEFTI_COMMSCHED_HOSTS
                    : which == 1 ? WEFTI_COMMSCHED_CHAIN
                                 : WEFTI_COMMSCHED_RING;
        w->pulls = which % 2;
        int64_t n = 4 * N, far = 2 * n, near = 8 * n;
        if (which >
            1) { /* blocks go from neighbour to neighbour, two of which are on the other host */
            far = which == 2 ? 2 * 5 * n / 6 : 0;
            near = (which == 2 ? 4 : 6) * 5 * n / 6;
        }
        wefti_host_traffic got = compare(w, b, arrays);
        if (llabs(got.internode_bytes - far) > HEADERS ||
            llabs(got.intranode_bytes - near) > HEADERS)
            fail_msg("%s: %lld bytes between hosts instead of %lld; %lld inside instead of %lld",
                     wefti_commsched_algorithm_text(w->forced), (long long)got.internode_bytes,
                     (long long)far, (long long)got.intranode_bytes, (long long)near);
        processes_end(&w->p);
    }
    munmap(b, sizeof *b);
    munmap(arrays, (size_t)3 * MOST_RANKS * MOST_BYTES);
}

/* --- what does not match --- */

/* These ranks receive no message by which they could notice the break. */
static void who_only_receives_is_asked(void **state) {
    (void)state;
    numbers r = {7, 0};
    mismatch_test *test = share(sizeof *test);
    for (int32_t m = 0; m < 2; m++) {
        test->c[m] = send_of(1 - m, m, 12);
        snprintf(test->c[m].name, sizeof test->c[m].name, m ? "second" : "first");
    }
    roads_world *w = roads_begin(2, true, &r, test);
    for (int32_t m = 0; m < 2; m++) w->p.hosts[m] = m;
    run_processes(&w->p, meet_wrongly);
    if (w->p.w.failures) fail_msg("%s", w->p.w.message);
    assert_true(test->found >= 1);
    for (int32_t m = 0; m < 2; m++)
        if (!strstr(test->message[m], "of first (") || !strstr(test->message[m], "of second ("))
            fail_msg("rank %d: %s", (int)m, test->message[m]);
    processes_end(&w->p);
    munmap(test, sizeof *test);
}

/* --- death --- */

/* Nobody but the neighbours themselves can notice it here. */
static void who_is_killed_is_named(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0x9;
    for (int round = 0; round < KILLED; round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 2, 5);
        killing *k = share(sizeof *k);
        k->victim = (int32_t)pick(&r, 0, size - 1);
        k->c = all_reduce_of(size, round % 2 ? 60000 : 5, WEFT_F32);
        roads_world *w = roads_begin(size, false, &r, k);
        kill_and_hear(&w->p, k, &r, "");
        processes_end(&w->p);
        munmap(k, sizeof *k);
    }
}

static void nothing_is_left(void **state) {
    (void)state;
    check_nothing_has_a_name();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_scripts),
        cmocka_unit_test(broken_scripts),
        cmocka_unit_test(messages_wait_for_nobody),
        cmocka_unit_test(what_has_failed_is_forgotten),
        cmocka_unit_test(the_same_bits_as_between_threads),
        cmocka_unit_test(each_byte_takes_its_road),
        cmocka_unit_test(who_only_receives_is_asked),
        cmocka_unit_test(who_is_killed_is_named),
        cmocka_unit_test(nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
