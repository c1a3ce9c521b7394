/* The communicator over messages. Every kind of transfer on random groups and regions, by every
 * algorithm, gives the right result for any delays; mismatches are named; a failure reaches all
 * ranks. (weft-test: threads) */
#include "support.h"

#include "base/fault.h"
#include "base/memory.h"
#include "comm/p2p/p2p.h"
#include "comm_scripts.h"
#include "threads_asleep.h"
#include "rounds_cases.h"
#include "sanitized.h"

/* Fewer under a sanitizer, where all is many times slower. */
#if SANITIZED
enum { SCRIPTS = 30, BROKEN = 12, LARGE = 200000 };
#else
enum { SCRIPTS = 80, BROKEN = 20, LARGE = 500000 };
#endif

static void random_scripts(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    static script s;
    static mesh m;
    for (int round = 0; round < SCRIPTS; round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 1, MOST_RANKS);
        choose_script(&s, seed + (uint64_t)round, &r, size);
        world_test w;
        rounds_begin(&w, &m, size, r.seed, (int)pick(&r, 0, 20), (size_t)pick(&r, 0, 1) * 4096,
                     pick(&r, 0, 1), &s);
        force(&w, (wefti_commsched_algorithm)pick(&r, 0, WEFTI_COMMSCHED_ALGORITHMS - 1));
        run_all(&w, follow_script);
        if (w.failures) fail_msg("seed %llu, %s", (unsigned long long)s.seed, w.message);
        rounds_end(&w, &m);
    }
}

/* One rank breaks the world anywhere; the others stop where they are, free all they have. */
static void broken_scripts(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0xB0;
    static script s;
    static mesh m;
    for (int round = 0; round < BROKEN; round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 2, MOST_RANKS);
        choose_script(&s, seed + (uint64_t)round, &r, size);
        /* Everybody is told through a group of all. */
        s.cases[0].t.members = size;
        s.cases[0].t.kind = WEFTI_TRANSFER_ALL_REDUCE;
        s.cases[0].t.reduction = WEFTI_REDUCE_SUM;
        for (int32_t rank = 0; rank < size; rank++) {
            s.cases[0].ranks[rank] = rank;
            s.cases[0].have[rank] = s.cases[0].want[rank] =
                whole_box((int64_t[]){3, 2, 5, 1, 1, 1, 1, 1}, s.cases[0].t.rank);
        }
        char expected[64];
        choose_breaker(&s, &r, size, expected);
        world_test w;
        rounds_begin(&w, &m, size, r.seed, (int)pick(&r, 0, 20), (size_t)pick(&r, 0, 1) * 4096,
                     pick(&r, 0, 1), &s);
        w.expected = expected;
        run_all(&w, follow_script);
        if (w.failures) fail_msg("seed %llu, %s", (unsigned long long)s.seed, w.message);
        rounds_end(&w, &m);
    }
}

/* --- the same bits as between threads, whatever the algorithm --- */

static void algorithms_agree_to_the_bit(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0xA16;
    int number = 0;
    for (int algorithm = 0; algorithm < WEFTI_COMMSCHED_HOSTS;
         algorithm++) /* test_rounds_hosts.c */
        for (int form = 0; form < 7; form++)
            for (int size = 0; size < 4; size++, number++) {
                numbers r = {seed + (uint64_t)number, 0};
                static const int64_t sizes[] = {1, 700, 40000, LARGE};
                int32_t members = (int32_t)pick(&r, 1, MOST_RANKS);
                bits_test b = {.c = all_reduce_of(members, 1, WEFT_F32)};
                if (pick(&r, 0, 2)) b.c.t.dtype = (weft_dtype)pick(&r, 0, WEFT_DTYPES - 1);
                choose_form(&b, form, members, sizes[size] + pick(&r, 0, 9), &r);
                compare_with_threads(&b, (wefti_commsched_algorithm)algorithm, NULL, &r);
            }
}

/* --- the choice --- */

static wefti_commsched_algorithm chosen_for(shared_case *c, const wefti_commsched_costs *costs) {
    wefti_commsched *plan;
    wefti_transfer t = for_member(c, 0);
    assert_int_equal(wefti_commsched_create(&t, costs, NULL, WEFTI_COMMSCHED_CHOSEN, &plan),
                     WEFT_OK);
    wefti_commsched_algorithm algorithm = plan->algorithm;
    wefti_commsched_destroy(plan);
    return algorithm;
}

/* Which algorithm is chosen follows the costs, and is possible. */
static void cost_chooses(void **state) {
    (void)state;
    wefti_commsched_costs costs = {1e-5, 1e-6, 1e9, 0, 1e10, 1e-5, 1e9};
    shared_case c = all_reduce_of(2, 4, WEFT_F32);
    assert_int_equal(chosen_for(&c, &costs), WEFTI_COMMSCHED_DIRECT);
    c = all_reduce_of(8, 1 << 20, WEFT_F32);
    assert_int_equal(chosen_for(&c, &costs), WEFTI_COMMSCHED_SHARES);
    costs.message_s = 1e-4; /* few messages */
    c = all_reduce_of(8, 4, WEFT_F32);
    assert_int_equal(chosen_for(&c, &costs), WEFTI_COMMSCHED_BRUCK);
    costs.message_s = 1e-6;
    c.t.reduction = WEFTI_REDUCE_NONE; /* one has it */
    c.t.kind = WEFTI_TRANSFER_SEND;
    for (int m = 0; m < 8; m++) {
        c.have[m].size[0] = m == 3 ? 64 : 0;
        c.want[m].size[0] = m == 3 ? 0 : 64;
    }
    costs.message_s = 1e-4;
    assert_int_equal(chosen_for(&c, &costs), WEFTI_COMMSCHED_TREE);
    costs.message_s = 1e-6;
    c.have[3].size[0] = 1 << 24;
    for (int m = 0; m < 8; m++) c.want[m].size[0] = m == 3 ? 0 : 1 << 24;
    assert_int_equal(chosen_for(&c, &costs), WEFTI_COMMSCHED_CHAIN);
    costs.crowd = 1; /* concurrent senders to one rank slow each other down completely */
    c = all_reduce_of(8, 1 << 20, WEFT_F32);
    c.t.kind = WEFTI_TRANSFER_ALL_GATHER;
    c.t.reduction = WEFTI_REDUCE_NONE;
    for (int m = 0; m < 8; m++) c.have[m] = part_box(c.want[m].size, 1, 0, 8, m);
    assert_int_equal(chosen_for(&c, &costs), WEFTI_COMMSCHED_RING);
    c = all_reduce_of(8, 1 << 20, WEFT_F32);
    assert_int_equal(chosen_for(&c, &costs), WEFTI_COMMSCHED_CHAIN);
    c.t.dtype = WEFT_BF16; /* sums in f32: no partial ones */
    assert_true(chosen_for(&c, &costs) != WEFTI_COMMSCHED_CHAIN);
}

/* --- failures --- */

static void what_does_not_match_is_named(void **state) {
    (void)state;
    static mesh m;
    for (int variant = 0; variant < 24; variant++) {
        mismatch_test test;
        int32_t odd = prepare_mismatch(&test, variant % 12);
        /* One that needs nobody, and does nothing more, has no thread that would notice. */
        if (variant >= 12 && variant % 12 / 2 >= 4) break;
        world_test w;
        rounds_begin(&w, &m, 3, (uint64_t)variant, variant % 5, 4096, variant < 12, &test);
        ASSERT_SOON(are_others_asleep()); /* threads without work */
        run_all(&w, meet_wrongly);
        if (w.failures) fail_msg("%s", w.message);
        /* One that needs nobody was through with it before it heard of the others. */
        assert_true(variant % 12 / 2 >= 4 || test.found >= 1);
        assert_true(test.found + test.told >= 2);
        char rank[16];
        snprintf(rank, sizeof rank, "rank %d", (int)odd);
        for (int32_t r = 0; r < 3; r++)
            if (test.message[r][0] &&
                (!strstr(test.message[r], rank) || !strstr(test.message[r], "of other (") ||
                 !strstr(test.message[r], "of gradients (")))
                fail_msg("variant %d: %s", variant, test.message[r]);
        rounds_end(&w, &m);
    }
}

/* A rank leaves out one of two transfers, or does them in another order, or both only receive. */
static void post_other_things(world_test *w, int32_t rank) {
    mismatch_test *test = w->context;
    float out[2][8] = {{0}};
    wefti_endpoint *e[2] = {bound(w, rank, &test->c[0]), bound(w, rank, &test->c[1])};
    weft_status status = WEFT_OK;
    bool odd = rank == 1;
    for (int i = 0; i < 2 && status >= 0; i++) {
        int which = odd ? 1 - i : i;
        if (odd && i > 0 && test->c[0].t.tag == 1) break; /* leaves it out */
        status = wefti_comm_run(e[which], out[0], out[1]);
    }
    if (odd && test->c[0].t.tag == 1 && status >= 0) status = WEFT_E_PEER; /* did nothing wrong */
    if (status == WEFT_E_MISMATCH) atomic_fetch_add(&test->found, 1);
    if (status == WEFT_E_PEER) atomic_fetch_add(&test->told, 1);
    snprintf(test->message[rank], sizeof test->message[rank], "%s", weft_error_message());
    for (int i = 0; i < 2; i++) w->comm[rank]->engine->unbind(e[i]);
}
static void what_is_left_out_or_swapped_is_named(void **state) {
    (void)state;
    static mesh m;
    for (int variant = 0; variant < 12; variant++) {
        mismatch_test test = {0};
        for (int i = 0; i < 2; i++) {
            test.c[i] = variant % 3 == 2 ? send_of(i, 1 - i, 8) : all_reduce_of(2, 8, WEFT_F32);
            snprintf(test.c[i].name, sizeof test.c[i].name, i ? "second" : "first");
            test.c[i].t.tag = variant % 3 == 1;
        }
        world_test w;
        rounds_begin(&w, &m, 2, (uint64_t)variant, variant % 5, 4096, variant < 6, &test);
        run_all(&w, post_other_things);
        if (w.failures) fail_msg("%s", w.message);
        if (test.found < 1) fail_msg("variant %d: nobody noticed", variant);
        bool named = false;
        for (int32_t r = 0; r < 2; r++)
            named |=
                strstr(test.message[r], "of first (") && strstr(test.message[r], "of second (");
        if (!named) fail_msg("variant %d: %s", variant, test.message[0]);
        rounds_end(&w, &m);
    }
}

static void all_hear_of_a_failure(void **state) {
    (void)state;
    static mesh m;
    for (int variant = 0; variant < 4; variant++) {
        shared_case c = all_reduce_of(5, variant / 2 ? 12000 : 3, WEFT_F32);
        world_test w;
        rounds_begin(&w, &m, 5, (uint64_t)variant, variant % 2 * 10, 4096, true, &c);
        w.expected = "rank 2: out of memory";
        /* It knows of the others by what it has bound. */
        w.comm[2]->engine->unbind(bound(&w, 2, &c));
        run_all(&w, wait_for_nobody);
        if (w.failures) fail_msg("%s", w.message);
        assert_int_equal(w.stopped, 8);
        rounds_end(&w, &m);
    }
}

/* What was heard elsewhere keeps the name of the rank that it is of, whatever its text begins with.
 */
static void reasons_have_one_name(void **state) {
    (void)state;
    static mesh m;
    static const char *const says[] = {"out of memory", "rank 0: the disk is full",
                                       "rank and file"};
    static const char *const heard[] = {"rank 1: out of memory", "rank 0: the disk is full",
                                        "rank 1: rank and file"};
    static const int blamed[] = {WEFT_RANK_OWN, 0, WEFT_RANK_OWN}, told[] = {1, 0, 1};
    for (int i = 0; i < 3; i++) {
        shared_case c = all_reduce_of(2, 3, WEFT_F32);
        float value[3] = {0};
        world_test w;
        rounds_begin(&w, &m, 2, 3, 0, 4096, false, &c);
        wefti_endpoint *e[2] = {bound(&w, 0, &c), bound(&w, 1, &c)};
        wefti_comm_break(w.comm[1], blamed[i], says[i]);
        for (int r = 1; r >= 0; r--) { /* the second tells the first one in this call */
            assert_int_equal(wefti_comm_run(e[r], value, value), WEFT_E_PEER);
            assert_string_equal(weft_error_message(), heard[i]);
            assert_int_equal(weft_error_rank(), told[i]);
            w.comm[r]->engine->unbind(e[r]);
        }
        rounds_end(&w, &m);
    }
}

/* The wire to one rank is cut: a rank that waits for it learns that, and tells the others. */
static void cut_wire(world_test *w, int32_t rank) {
    shared_case *c = w->context;
    static float arrays[MOST_RANKS][2][12000];
    wefti_endpoint *e = bound(w, rank, c);
    (void)good(w, rank, wefti_comm_run(e, arrays[rank][0], arrays[rank][1]), "run");
    pthread_barrier_wait(&w->barrier);
    if (rank == 3) {
        mesh *m = ((mesh_side *)((wefti_p2p_world *)w->comm[3])->transport.context)->m;
        pthread_mutex_lock(&m->lock);
        m->dead = 3;
        pthread_mutex_unlock(&m->lock);
    }
    pthread_barrier_wait(&w->barrier);
    weft_status status =
        rank == 3 ? WEFT_E_PEER : wefti_comm_run(e, arrays[rank][0], arrays[rank][1]);
    if (status != WEFT_E_PEER || (rank != 3 && !strstr(weft_error_message(), "rank 3 is lost")))
        complain(w, rank, "cut", weft_error_message());
    w->comm[rank]->engine->unbind(e);
}
static void a_lost_rank_is_named(void **state) {
    (void)state;
    static mesh m;
    for (int variant = 0; variant < 4; variant++) {
        shared_case c = all_reduce_of(4, variant % 2 ? 12000 : 3, WEFT_F32);
        world_test w;
        rounds_begin(&w, &m, 4, (uint64_t)variant, 3, 4096, variant < 2, &c);
        run_all(&w, cut_wire);
        if (w.failures) fail_msg("%s", w.message);
        rounds_end(&w, &m);
    }
}

/* Two ranks that one thread serves. */
static void wait_for_both(const world_test *w, wefti_endpoint *const *e, int first, int second) {
    const int rank[2] = {first, second};
    weft_status status[2] = {WEFT_PENDING, WEFT_PENDING};
    while (status[0] == WEFT_PENDING || status[1] == WEFT_PENDING)
        for (int i = 0; i < 2; i++)
            if (status[i] == WEFT_PENDING) status[i] = w->comm[rank[i]]->engine->test(e[rank[i]]);
    assert_int_equal(status[0], WEFT_OK);
    assert_int_equal(status[1], WEFT_OK);
}

/* Until it has noticed that a rank has left. */
static void look_for_the_lost(wefti_comm *comm, int32_t rank) {
    wefti_p2p_world *world = (wefti_p2p_world *)comm;
    pthread_mutex_lock(&world->lock);
    while (!world->peer[rank].dead) (void)wefti_p2p_progress(world);
    pthread_mutex_unlock(&world->lock);
}

/* A rank that has done its part of a call may leave. The ranks still in the call do not need it. */
static void who_has_done_its_part_may_leave(void **state) {
    (void)state;
    static mesh m;
    static float source[3][12000], sum[12000];
    for (int variant = 0; variant < 2; variant++) {
        int64_t elements = variant ? 12000 : 3;
        shared_case c = all_reduce_of(3, elements, WEFT_F32);
        c.want[1].size[0] = c.want[2].size[0] = 0;
        world_test w;
        wefti_endpoint *e[3];
        rounds_begin(&w, &m, 3, (uint64_t)variant, 0, 4096, false, NULL);
        force(&w, WEFTI_COMMSCHED_DIRECT);
        wefti_p2p_world *root = (wefti_p2p_world *)w.comm[0];
        for (int r = 0; r < 3; r++) {
            e[r] = bound(&w, r, &c);
            source[r][elements - 1] = (float)(1 << r);
        }
        assert_int_equal(w.comm[0]->engine->post(e[0], source[0], sum), WEFT_OK);
        assert_int_equal(w.comm[1]->engine->post(e[1], source[1], NULL), WEFT_OK);
        while (w.comm[1]->engine->test(e[1]) == WEFT_PENDING)
            assert_int_equal(w.comm[0]->engine->test(e[0]), WEFT_PENDING);
        w.comm[1]->engine->unbind(e[1]);
        wefti_comm_destroy(w.comm[1]);
        w.comm[1] = NULL;
        look_for_the_lost(w.comm[0], 1);
        assert_true(root->losing_ns == 0);
        assert_int_equal(w.comm[2]->engine->post(e[2], source[2], NULL), WEFT_OK);
        wait_for_both(&w, e, 0, 2);
        assert_true(sum[elements - 1] == 7);
        /* Another call cannot do without it. */
        assert_int_equal(w.comm[0]->engine->post(e[0], source[0], sum), WEFT_OK);
        assert_true(root->losing_ns != 0);
        assert_int_equal(w.comm[0]->engine->wait(e[0]), WEFT_E_PEER);
        assert_non_null(strstr(weft_error_message(), "rank 1 is lost"));
        w.comm[0]->engine->unbind(e[0]);
        w.comm[2]->engine->unbind(e[2]);
        rounds_end(&w, &m);
    }
}

/* What a rank has sent before it left counts; without its credit nobody waits. */
static void what_was_sent_before_leaving_counts(void **state) {
    (void)state;
    static mesh m;
    shared_case c = send_of(0, 1, 3), back = send_of(1, 0, 3);
    back.t.tag = 1;
    float value[3] = {1, 2, 3}, got[3] = {0};
    world_test w;
    rounds_begin(&w, &m, 2, 1, 0, 4096, false, NULL);
    wefti_endpoint *e[2] = {bound(&w, 0, &c), bound(&w, 1, &c)}, *answer = bound(&w, 1, &back);
    wefti_p2p_world *left = (wefti_p2p_world *)w.comm[1];
    for (int i = 0; i < WEFTI_P2P_AHEAD; i++)
        assert_int_equal(wefti_comm_run(answer, value, NULL), WEFT_OK);
    assert_int_equal(wefti_comm_run(e[0], value, NULL), WEFT_OK);
    w.comm[0]->engine->unbind(e[0]);
    wefti_comm_destroy(w.comm[0]);
    w.comm[0] = NULL;
    look_for_the_lost(w.comm[1], 0);
    assert_true(left->losing_ns == 0);
    assert_int_equal(wefti_comm_run(e[1], NULL, got), WEFT_OK);
    assert_memory_equal(got, value, sizeof got);
    assert_true(left->losing_ns == 0);
    assert_int_equal(w.comm[1]->engine->post(answer, value, NULL), WEFT_OK);
    assert_true(left->losing_ns != 0);
    w.comm[1]->engine->unbind(e[1]);
    w.comm[1]->engine->unbind(answer);
    rounds_end(&w, &m);
}

static void post_never_waits(void **state) {
    (void)state;
    static mesh m;
    for (int variant = 0; variant < 2; variant++) {
        world_test w;
        rounds_begin(&w, &m, 2, 9, variant * 7, 20000, variant, NULL);
        run_all(&w, post_many);
        if (w.failures) fail_msg("%s", w.message);
        rounds_end(&w, &m);
    }
}

/* A long message waits until it is wanted, however many others pass it. */
static void any_number_passes_one_that_waits(void **state) {
    (void)state;
    enum { PASSING = 33000, ELEMENTS = 2100 /* too many to go with a header */ };
    static mesh m;
    static float waits[ELEMENTS], passes[ELEMENTS], got[ELEMENTS];
    shared_case late = send_of(0, 1, ELEMENTS), other = send_of(0, 1, ELEMENTS);
    late.t.tag = 1;
    world_test w;
    rounds_begin(&w, &m, 2, 5, 0, 0, false, NULL);
    wefti_endpoint *one[2] = {bound(&w, 0, &late), bound(&w, 1, &late)};
    wefti_endpoint *others[2] = {bound(&w, 0, &other), bound(&w, 1, &other)};
    waits[0] = -1;
    assert_int_equal(w.comm[0]->engine->post(one[0], waits, NULL), WEFT_OK);
    for (int i = 0; i < PASSING; i++) {
        passes[0] = (float)i;
        assert_int_equal(w.comm[0]->engine->post(others[0], passes, NULL), WEFT_OK);
        assert_int_equal(w.comm[1]->engine->post(others[1], NULL, got), WEFT_OK);
        wait_for_both(&w, others, 0, 1);
        if (got[0] != (float)i) fail_msg("message %d: %g", i, (double)got[0]);
    }
    assert_int_equal(w.comm[1]->engine->post(one[1], NULL, got), WEFT_OK);
    wait_for_both(&w, one, 0, 1);
    assert_true(got[0] == -1);
    for (int r = 0; r < 2; r++) {
        w.comm[r]->engine->unbind(one[r]);
        w.comm[r]->engine->unbind(others[r]);
    }
    rounds_end(&w, &m);
}

/* Where the transport allows any thread, all goes on while nobody waits. */
static bool is_finished(wefti_comm *comm, wefti_endpoint *e) {
    wefti_p2p_world *world = (wefti_p2p_world *)comm;
    pthread_mutex_lock(&world->lock);
    bool finished = ((wefti_p2p_endpoint *)e)->post[0].finished;
    pthread_mutex_unlock(&world->lock);
    return finished;
}
static void goes_on_by_itself(void **state) {
    (void)state;
    static mesh m;
    static float arrays[3][2][50000];
    shared_case c = all_reduce_of(3, 50000, WEFT_F32);
    world_test w;
    rounds_begin(&w, &m, 3, 5, 2, 0, true, &c);
    wefti_endpoint *e[3];
    for (int32_t r = 0; r < 3; r++) {
        for (int i = 0; i < 50000; i++) arrays[r][0][i] = (float)(r + i);
        e[r] = bound(&w, r, &c);
        assert_int_equal(w.comm[r]->engine->post(e[r], arrays[r][0], arrays[r][1]), WEFT_OK);
    }
    for (int32_t r = 0, looks = 0; r < 3; looks++) {
        assert_true(looks < 20000);
        if (is_finished(w.comm[r], e[r]))
            r++;
        else
            usleep(1000);
    }
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(w.comm[r]->engine->test(e[r]), WEFT_OK);
        assert_true(arrays[r][1][49999] == 3 * 49999 + 3);
        w.comm[r]->engine->unbind(e[r]);
    }
    rounds_end(&w, &m);
}

/* What a rank waits for is written where others look. */
static void waiter(world_test *w, int32_t rank) {
    shared_case *c = w->context;
    float value[4] = {1, 2, 3, 4};
    wefti_endpoint *e = bound(w, rank, c);
    if (rank == 1)
        for (;;) {
            wefti_standing now = wefti_position_read(w->comm[0]->position);
            if (now.waiting && strcmp(now.what, "all_reduce of gradients (f32, 4 elements)") == 0)
                break;
            usleep(1000);
        }
    (void)good(w, rank, wefti_comm_run(e, value, value), "run");
    w->comm[rank]->engine->unbind(e);
}
static void a_position_is_told(void **state) {
    (void)state;
    static mesh m;
    shared_case c = all_reduce_of(2, 4, WEFT_F32);
    wefti_position *position;
    assert_int_equal(wefti_position_create(&position), WEFT_OK);
    world_test w;
    rounds_begin(&w, &m, 2, 5, 2, 0, true, &c);
    w.comm[0]->position = position;
    run_all(&w, waiter);
    if (w.failures) fail_msg("%s", w.message);
    wefti_standing now = wefti_position_read(position);
    assert_true(now.done == 1 && !now.waiting);
    rounds_end(&w, &m);
    wefti_position_destroy(position);
}

static void look_often(world_test *w, wefti_endpoint *e[2], int looks) {
    for (int i = 0; i < looks; i++)
        for (int r = 0; r < 2; r++)
            if (e[r]) (void)w->comm[r]->engine->test(e[r]);
}
/* A watcher sees data on its way, and none where the peer has not come. */
static void what_moves_is_told(void **state) {
    (void)state;
    static mesh m;
    static float source[LARGE], destination[LARGE];
    shared_case c = send_of(0, 1, LARGE);
    world_test w;
    rounds_begin(&w, &m, 2, 9, 0, 4096, false, &c);
    m.slow = true;
    wefti_comm *sender = w.comm[0], *receiver = w.comm[1];
    wefti_endpoint *e[2] = {NULL, bound(&w, 1, &c)};
    source[LARGE - 1] = 5;
    assert_int_equal(receiver->engine->post(e[1], NULL, destination), WEFT_OK);
    look_often(&w, e, 20);
    (void)wefti_comm_moves(receiver);
    assert_false(wefti_comm_moves(receiver));
    e[0] = bound(&w, 0, &c);
    assert_int_equal(sender->engine->post(e[0], source, NULL), WEFT_OK);
    look_often(&w, e, 20);
    (void)wefti_comm_moves(sender);
    for (int i = 0; i < 3; i++) {
        look_often(&w, e, 20);
        assert_true(wefti_comm_moves(receiver));
        assert_false(wefti_comm_moves(sender)); /* it has given what it has */
    }
    m.slow = false;
    assert_int_equal(receiver->engine->wait(e[1]), WEFT_OK);
    assert_int_equal(sender->engine->wait(e[0]), WEFT_OK);
    assert_true(destination[LARGE - 1] == 5);
    assert_true(wefti_comm_moves(receiver)); /* since the last look */
    assert_false(wefti_comm_moves(receiver));
    for (int r = 0; r < 2; r++) w.comm[r]->engine->unbind(e[r]);
    rounds_end(&w, &m);
}

static void misuse_is_refused(void **state) {
    (void)state;
    static mesh m;
    world_test w;
    wefti_comm *none;
    rounds_begin(&w, &m, 2, 1, 0, 0, false, NULL);
    const wefti_comm_engine *engine = w.comm[0]->engine;
    weft_transport bad = mesh_transport(&m, 0, false);
    bad.rank = 2;
    bad.close = NULL;
    assert_int_equal(wefti_comm_p2p(&bad, NULL, &none), WEFT_E_ARG);
    shared_case c = all_reduce_of(2, 4, WEFT_F32), wide = all_reduce_of(3, 4, WEFT_F32);
    wefti_endpoint *e = NULL;
    wefti_transfer t = for_member(&c, 1);
    assert_int_equal(engine->bind(w.comm[0], &t, &e), WEFT_E_ARG); /* another's place */
    t = for_member(&wide, 0);
    assert_int_equal(engine->bind(w.comm[0], &t, &e), WEFT_E_ARG); /* rank 2 of 2 */
    assert_null(e);
    e = bound(&w, 0, &c);
    float a[4] = {0};
    assert_int_equal(engine->wait(e), WEFT_E_ARG); /* nothing is posted */
    for (int i = 0; i < WEFTI_COMM_DEPTH; i++) assert_int_equal(engine->post(e, a, a), WEFT_OK);
    assert_int_equal(engine->post(e, a, a), WEFT_E_ARG); /* too many */
    wefti_endpoint *other = bound(&w, 1, &c);
    engine->unbind(e); /* the other one is told */
    assert_int_equal(wefti_comm_run(other, a, a), WEFT_E_PEER);
    ASSERT_MESSAGE("rank 0|given up");
    engine->unbind(other);
    engine->unbind(NULL);
    rounds_end(&w, &m);
}

/* Every allocation of making a world and binding may fail. */
static void no_memory(void **state) {
    (void)state;
    static const wefti_commsched_algorithm algorithms[] = {
        WEFTI_COMMSCHED_DIRECT, WEFTI_COMMSCHED_BRUCK, WEFTI_COMMSCHED_SHARES,
        WEFTI_COMMSCHED_CHAIN};
    for (int k = 0; k < 4; k++) {
        shared_case c = all_reduce_of(3, 90000, WEFT_F32);
        int64_t n = 0;
        for (bool done = false; !done; n++) {
            static mesh m;
            wefti_comm *comm;
            wefti_endpoint *e = NULL;
            mesh_begin(&m, 3, 1, 0, 0);
            weft_transport transport = mesh_transport(&m, 1, k % 2);
            wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
            weft_status status = wefti_comm_p2p(&transport, NULL, &comm);
            if (status >= 0) {
                wefti_transfer t = for_member(&c, 1);
                wefti_p2p_force(comm, algorithms[k]);
                status = comm->engine->bind(comm, &t, &e);
                done = status >= 0;
                if (done) assert_int_equal(wefti_p2p_chosen(e), algorithms[k]);
                comm->engine->unbind(e);
                wefti_comm_destroy(comm);
            }
            wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
            if (!done) assert_int_equal(status, WEFT_E_NOMEM);
            assert_string_equal(m.complaint, "");
            assert_true(m.side[1].closed);
            mesh_end(&m);
        }
        assert_true(n > 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_scripts),
        cmocka_unit_test(broken_scripts),
        cmocka_unit_test(algorithms_agree_to_the_bit),
        cmocka_unit_test(cost_chooses),
        cmocka_unit_test(what_does_not_match_is_named),
        cmocka_unit_test(what_is_left_out_or_swapped_is_named),
        cmocka_unit_test(all_hear_of_a_failure),
        cmocka_unit_test(reasons_have_one_name),
        cmocka_unit_test(a_lost_rank_is_named),
        cmocka_unit_test(who_has_done_its_part_may_leave),
        cmocka_unit_test(what_was_sent_before_leaving_counts),
        cmocka_unit_test(post_never_waits),
        cmocka_unit_test(any_number_passes_one_that_waits),
        cmocka_unit_test(goes_on_by_itself),
        cmocka_unit_test(a_position_is_told),
        cmocka_unit_test(what_moves_is_told),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
