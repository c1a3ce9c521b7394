/* Transfers by messages between hosts with several members each: the same bits as on any other
 * path, the least possible bytes between hosts, and chosen where that is fastest. (weft-test:
 * threads) */
#include "support.h"

#include "base/fault.h"
#include "base/memory.h"
#include "comm/p2p/p2p.h"
#include "comm_scripts.h"
#include "rounds_cases.h"
#include "sanitized.h"

#if SANITIZED
enum { CASES_OF_SIZE = 2, SCRIPTS = 10, LARGE = 200000 };
#else
enum { CASES_OF_SIZE = 5, SCRIPTS = 40, LARGE = 400000 };
#endif

/* Hosts with neighbours each, or with members here and there. */
static void choose_hosts(numbers *r, int32_t members, bool in_order, int32_t *host) {
    int32_t hosts = (int32_t)pick(r, 2, 4), now = 0;
    for (int32_t m = 0; m < members; m++) {
        if (in_order && m > 0 && pick(r, 0, 2) == 0) now++;
        host[m] = in_order ? now : (int32_t)pick(r, 0, hosts - 1);
    }
}

static void hosts_agree_to_the_bit(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0x4057;
    int number = 0;
    for (int form = 0; form < 7; form++)
        for (int k = 0; k < 4 * CASES_OF_SIZE; k++, number++) {
            numbers r = {seed + (uint64_t)number, 0};
            static const int64_t sizes[] = {1, 700, 40000, LARGE};
            int32_t members = (int32_t)pick(&r, 2, MOST_RANKS), host[MOST_RANKS];
            bits_test b = {.c = all_reduce_of(members, 1, WEFT_F32)};
            if (pick(&r, 0, 1)) b.c.t.dtype = (weft_dtype)pick(&r, 0, WEFT_DTYPES - 1);
            choose_hosts(&r, members, pick(&r, 0, 2), host);
            choose_form(&b, form, members, sizes[k % 4] + pick(&r, 0, 9), &r);
            compare_with_threads(
                &b, pick(&r, 0, 3) ? WEFTI_COMMSCHED_HOSTS : WEFTI_COMMSCHED_CHOSEN, host, &r);
        }
}

/* Many transfers under way at a time. */
static void random_scripts(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0x5C;
    static script s;
    static mesh m;
    for (int round = 0; round < SCRIPTS; round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 3, MOST_RANKS), host[MOST_RANKS];
        choose_script(&s, seed + (uint64_t)round, &r, size);
        choose_hosts(&r, size, pick(&r, 0, 1), host);
        world_test w;
        rounds_begin_on(&w, &m, size, r.seed, (int)pick(&r, 0, 20), (size_t)pick(&r, 0, 1) * 4096,
                        pick(&r, 0, 1), &s, host, host);
        force(&w, WEFTI_COMMSCHED_HOSTS);
        run_all(&w, follow_script);
        if (w.failures) fail_msg("seed %llu, %s", (unsigned long long)s.seed, w.message);
        rounds_end(&w, &m);
    }
}

/* --- bytes --- */

typedef enum form { ALL_REDUCE, REDUCE, ALL_GATHER = 3, BROADCAST = 5, REDUCE_SCATTER } form;

/* Bytes of data that leave and reach a host, and of all. */
typedef struct crossing {
    int64_t out[MESH_MOST], in[MESH_MOST], all;
} crossing;
static crossing run_over(form f, int32_t members, const int32_t *host, weft_dtype dtype,
                         wefti_commsched_algorithm algorithm, bits_test *b) {
    numbers r = {77, 0};
    crossing c = {{0}, {0}, 0};
    *b = (bits_test){.c = all_reduce_of(members, 1, WEFT_F32)};
    b->c.t.dtype = dtype;
    choose_form(b, (int)f, members, LARGE, &r);
    if (b->c.t.reduction != WEFTI_REDUCE_NONE) b->c.t.reduction = WEFTI_REDUCE_SUM;
    compare_with_threads(b, algorithm, host, &r);
    for (int x = 0; x < MESH_MOST; x++)
        for (int y = 0; y < MESH_MOST; y++) {
            if (x == y) continue;
            c.out[x] += compared.crossed[x][y];
            c.in[y] += compared.crossed[x][y];
            c.all += compared.crossed[x][y];
        }
    return c;
}

static int64_t bytes_on(const bits_test *b, const wefti_region *boxes, const int32_t *host,
                        int32_t which) {
    int64_t bytes = 0;
    for (int32_t m = 0; m < b->c.t.members; m++)
        if (host[m] == which) bytes += bytes_of(&b->c, &boxes[m]);
    return bytes;
}

/* A sum of n bytes over h hosts moves at least (h - 1) n bytes between hosts, and as many to
 * return the result. A gather brings each host its missing parts; a broadcast brings all data to
 * each host but one. */
static void as_few_bytes_as_possible(void **state) {
    (void)state;
    static const int32_t layouts[][8] = {
        {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 1, 1, 1, 2, 2, 3}};
    static const int32_t sizes[] = {4, 6, 6, 7}, counts[] = {2, 2, 3, 4};
    for (int l = 0; l < 4; l++) {
        const int32_t *host = layouts[l], g = sizes[l], hosts = counts[l];
        bits_test b;
        for (int whole = 0; whole < 2; whole++) {
            weft_dtype dtype = whole ? WEFT_I32 : WEFT_F32;
            crossing c = run_over(ALL_REDUCE, g, host, dtype, WEFTI_COMMSCHED_HOSTS, &b);
            int64_t n = bytes_of(&b.c, &b.c.have[0]);
            assert_int_equal(c.all, 2 * n * (hosts - 1));
            for (int h = 0; h < hosts; h++) assert_true(c.in[h] <= 2 * n && c.out[h] <= 2 * n);
            if (whole) /* the load is even */
                for (int h = 0; h < hosts; h++)
                    assert_true(c.out[h] - 2 * n * (hosts - 1) / hosts < n / 10);
            crossing flat = run_over(ALL_REDUCE, g, host, dtype, WEFTI_COMMSCHED_SHARES, &b);
            assert_true(flat.all > c.all);

            c = run_over(REDUCE_SCATTER, g, host, dtype, WEFTI_COMMSCHED_HOSTS, &b);
            n = bytes_of(&b.c, &b.c.have[0]);
            /* In the order of members the last host has all results. */
            int64_t back = whole ? 0 : n - bytes_on(&b, b.c.want, host, hosts - 1);
            assert_int_equal(c.all, n * (hosts - 1) + back);
            flat = run_over(REDUCE_SCATTER, g, host, dtype, WEFTI_COMMSCHED_DIRECT, &b);
            assert_true(flat.all > c.all);

            c = run_over(REDUCE, g, host, dtype, WEFTI_COMMSCHED_HOSTS, &b);
            n = bytes_of(&b.c, &b.c.have[0]);
            assert_true(c.all == n * (hosts - 1) || (!whole && c.all == n * hosts));
        }
        crossing c = run_over(ALL_GATHER, g, host, WEFT_F32, WEFTI_COMMSCHED_HOSTS, &b);
        int64_t n = bytes_of(&b.c, &b.c.want[0]);
        for (int h = 0; h < hosts; h++)
            assert_int_equal(c.in[h], n - bytes_on(&b, b.c.have, host, h));
        c = run_over(BROADCAST, g, host, WEFT_F32, WEFTI_COMMSCHED_HOSTS, &b);
        assert_int_equal(c.all, bytes_of(&b.c, &b.c.want[0]) * (hosts - 1));
    }
}

/* --- the choice --- */

static wefti_commsched_algorithm chosen_for(shared_case *c, const int32_t *host,
                                            const wefti_commsched_costs *costs,
                                            wefti_commsched_algorithm forced) {
    wefti_commsched *plan;
    wefti_transfer t = for_member(c, 1);
    assert_int_equal(wefti_commsched_create(&t, costs, host, forced, &plan), WEFT_OK);
    wefti_commsched_algorithm algorithm = plan->algorithm;
    wefti_commsched_destroy(plan);
    return algorithm;
}

static void cost_chooses(void **state) {
    (void)state;
    static const int32_t blocks[] = {0, 0, 0, 0, 1, 1, 1, 1}, turns[] = {0, 1, 0, 1, 0, 1, 0, 1};
    static const int32_t one[8] = {0}, own[] = {0, 1, 2, 3, 4, 5, 6, 7};
    wefti_commsched_costs costs = {2e-5, 1e-6, 1e9, 0, 1e10, 2e-6, 1e10}; /* hosts are far apart */
    shared_case c = all_reduce_of(8, 1 << 20, WEFT_F32);
    assert_int_equal(chosen_for(&c, blocks, &costs, WEFTI_COMMSCHED_CHOSEN), WEFTI_COMMSCHED_HOSTS);
    /* No way to keep the order, or to have partial sums; nothing to gain. */
    for (int forced = 0; forced < 2; forced++) {
        wefti_commsched_algorithm f = forced ? WEFTI_COMMSCHED_HOSTS : WEFTI_COMMSCHED_CHOSEN;
        c = all_reduce_of(8, 1 << 20, WEFT_F32);
        assert_true(chosen_for(&c, turns, &costs, f) != WEFTI_COMMSCHED_HOSTS);
        assert_true(chosen_for(&c, one, &costs, f) != WEFTI_COMMSCHED_HOSTS);
        assert_true(chosen_for(&c, own, &costs, f) != WEFTI_COMMSCHED_HOSTS);
        assert_true(chosen_for(&c, NULL, &costs, f) != WEFTI_COMMSCHED_HOSTS);
        c = all_reduce_of(8, 1 << 20, WEFT_BF16);
        assert_true(chosen_for(&c, blocks, &costs, f) != WEFTI_COMMSCHED_HOSTS);
    }
    c = all_reduce_of(8, 1 << 20, WEFT_I32); /* any order */
    assert_int_equal(chosen_for(&c, turns, &costs, WEFTI_COMMSCHED_CHOSEN), WEFTI_COMMSCHED_HOSTS);
    c = all_reduce_of(8, 2, WEFT_F32); /* few bytes: few steps */
    assert_true(chosen_for(&c, blocks, &costs, WEFTI_COMMSCHED_CHOSEN) != WEFTI_COMMSCHED_HOSTS);
    wefti_commsched_costs even = {2e-5, 1e-6, 1e12, 0,
                                  1e10, 2e-5, 1e9}; /* the network costs nothing */
    c = all_reduce_of(8, 20000, WEFT_F32);
    assert_true(chosen_for(&c, blocks, &even, WEFTI_COMMSCHED_CHOSEN) != WEFTI_COMMSCHED_HOSTS);
    c = all_reduce_of(8, 1 << 20, WEFT_F32);
    c.t.kind = WEFTI_TRANSFER_ALL_GATHER;
    c.t.reduction = WEFTI_REDUCE_NONE;
    for (int m = 0; m < 8; m++) c.have[m] = part_box(c.want[m].size, 1, 0, 8, m);
    assert_int_equal(chosen_for(&c, blocks, &costs, WEFTI_COMMSCHED_CHOSEN), WEFTI_COMMSCHED_HOSTS);
}

/* What was measured of the same road within a host counts, and nothing else. */
static void costs_come_from_links(void **state) {
    (void)state;
    wefti_links links = {.measured = true, .ranks_per_host = 2};
    links.same_host = (wefti_measured_link){4e-7, 1.2e10};
    links.between_hosts = (wefti_measured_link){30e-6, 1e9};
    for (int by_messages = 0; by_messages < 2; by_messages++)
        for (int shares = 0; shares < 2; shares++) {
            links.by_messages = by_messages;
            wefti_commsched_costs c = wefti_commsched_costs_of(&links, shares);
            assert_true(c.bytes_per_s == 1e9);
            assert_true((c.intranode_bytes_per_s == 1.2e10) == (by_messages != shares));
            if (by_messages == shares) assert_true(c.intranode_bytes_per_s == (shares ? 8e9 : 2e9));
        }
}

/* --- failures --- */

/* Ranks that think otherwise of the hosts make other messages: that is named. */
static void run_one(world_test *w, int32_t rank) {
    bits_test *b = w->context;
    static float arrays[4][2][30000];
    wefti_endpoint *e = bound(w, rank, &b->c);
    weft_status status = wefti_comm_run(e, arrays[rank][0], arrays[rank][1]);
    if (status != WEFT_E_MISMATCH && status != WEFT_E_PEER)
        complain(w, rank, "run", "ranks of unlike hosts met");
    w->comm[rank]->engine->unbind(e);
}
static void unlike_hosts_are_refused(void **state) {
    (void)state;
    static mesh m;
    static const int32_t hosts[] = {0, 0, 1, 1}, others[] = {0, 1, 1, 1};
    bits_test b = {.c = all_reduce_of(4, 30000, WEFT_F32)};
    world_test w;
    rounds_begin_on(&w, &m, 4, 3, 2, 0, true, &b, hosts, others);
    force(&w, WEFTI_COMMSCHED_HOSTS);
    run_all(&w, run_one);
    if (w.failures) fail_msg("%s", w.message);
    rounds_end(&w, &m);
}

static void no_memory(void **state) {
    (void)state;
    static const int32_t host[] = {0, 0, 1, 1};
    wefti_commsched_costs costs = wefti_commsched_default_costs();
    for (int f = 0; f < 7; f++) {
        bits_test b = {.c = all_reduce_of(4, 1, WEFT_F32)};
        numbers r = {1, 0};
        choose_form(&b, f, 4, 90000, &r);
        weft_status status = WEFT_E_NOMEM;
        int64_t n = 0;
        for (; status != WEFT_OK; n++) {
            wefti_commsched *plan = NULL;
            wefti_transfer t = for_member(&b.c, 1);
            wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
            status = wefti_commsched_create(&t, &costs, host, WEFTI_COMMSCHED_HOSTS, &plan);
            wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
            assert_true(status == WEFT_OK || status == WEFT_E_NOMEM);
            wefti_commsched_destroy(plan);
        }
        assert_true(n > 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_agree_to_the_bit),
        cmocka_unit_test(random_scripts),
        cmocka_unit_test(as_few_bytes_as_possible),
        cmocka_unit_test(cost_chooses),
        cmocka_unit_test(costs_come_from_links),
        cmocka_unit_test(unlike_hosts_are_refused),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
