/* Servers that come, leave and die, and the shards that they hold: views as they follow each other
 * without updates. */
#include "replicate/balance.h"
#include "support.h"

#include "base/digest/digest.h"

enum { SHARDS = 240, COPIES = 2 };

typedef struct job {
    wefti_shard_view views[SHARDS];
    wefti_servers here, leaving;
    int32_t fills; /* shards that a server was filled with */
} job;

static wefti_view_facts facts_of(const job *j, const int32_t *order, int32_t count) {
    static int64_t none[WEFTI_SERVERS_MOST]; /* nobody has updates */
    return (wefti_view_facts){.here = j->here,
                              .leaving = j->leaving,
                              .updates = none,
                              .order = order,
                              .order_count = count,
                              .copies = COPIES};
}

/* All views of a shard until it needs no other. A server that fills has caught up at once. */
static void settle(job *j, int32_t shard, const wefti_shard_move *move) {
    wefti_shard_view *v = &j->views[shard];
    for (int steps = 0;; steps++) {
        const wefti_loads l = wefti_loads_of(j->views, SHARDS);
        int32_t order[WEFTI_SERVERS_MOST + 1];
        const int32_t count = wefti_loads_order(&l, j->here, order + 1);
        wefti_view_facts f = facts_of(j, order + 1, count);
        if (move) {
            order[0] = move->to;
            f.order = order;
            f.order_count = count + 1;
            f.leaving |= wefti_server(move->from);
        }
        f.caught_up = v->filling;
        wefti_shard_view next;
        if (!wefti_view_next(v, &f, &next)) return;
        const int had = wefti_count_servers(v->members & j->here);
        assert_true(next.members);
        assert_true(wefti_count_servers(next.members) >= (had < COPIES ? had : COPIES));
        assert_true(next.primary < 0 || (next.members & wefti_server(next.primary)));
        j->fills += next.filling && next.filling != v->filling;
        *v = next;
        assert_true(steps < 9);
    }
}

static void settle_all(job *j) {
    wefti_shard_move move;
    int moves = 0;
    for (int32_t i = 0; i < SHARDS; i++) settle(j, i, NULL);
    for (;; moves++) {
        const wefti_loads l = wefti_loads_of(j->views, SHARDS);
        if (!wefti_loads_move(&l, j->views, SHARDS, j->here & ~j->leaving, &move)) break;
        settle(j, move.shard, &move);
        assert_true(moves <= SHARDS * COPIES);
    }
}

static void assert_even(const job *j) {
    const wefti_loads l = wefti_loads_of(j->views, SHARDS);
    const wefti_servers all = j->here & ~j->leaving;
    int32_t least = INT32_MAX, most = 0;
    for (int32_t s = 0; s < WEFTI_SERVERS_MOST; s++) {
        if (!(all & wefti_server(s))) {
            assert_int_equal(l.held[s], 0);
            continue;
        }
        if (l.held[s] < least) least = l.held[s];
        if (l.held[s] > most) most = l.held[s];
    }
    for (int32_t i = 0; i < SHARDS; i++)
        assert_int_equal(wefti_count_servers(j->views[i].members),
                         wefti_count_servers(all) < COPIES ? 1 : COPIES);
    if (most > least + 1)
        fail_msg("%d servers hold %d to %d shards", wefti_count_servers(all), least, most);
}

static void begin(job *j, wefti_servers servers) {
    *j = (job){.here = servers};
    for (int32_t i = 0; i < SHARDS; i++) j->views[i].primary = -1;
    for (int32_t i = 0; i < SHARDS; i++) {
        const wefti_loads l = wefti_loads_of(j->views, SHARDS);
        int32_t order[WEFTI_SERVERS_MOST];
        const int32_t count = wefti_loads_order(&l, servers, order);
        const wefti_view_facts f = facts_of(j, order, count);
        j->views[i] = wefti_view_first(&f);
    }
}

/* A server that comes to n others takes 1 / (n + 1) of what they hold, and nothing else moves. */
static void one_more_takes_its_part(void **state) {
    (void)state;
    for (int32_t n = 2; n <= 40; n++) {
        job j;
        begin(&j, wefti_server(n) - 1);
        assert_even(&j);
        settle_all(&j);
        assert_int_equal(j.fills, 0);
        j.here |= wefti_server(n);
        settle_all(&j);
        assert_even(&j);
        assert_true(10 * j.fills * (n + 1) <= 12 * SHARDS * COPIES);
        const wefti_loads l = wefti_loads_of(j.views, SHARDS);
        assert_true(l.leads[n] > 0);
    }
}

static void servers_come_leave_and_die(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 40) {
        job j;
        begin(&j, 7);
        for (uint64_t n = 0; n < 30; n++) {
            const uint64_t dice = wefti_digest_number(wefti_digest_number(seed, n), n) >> 8;
            const wefti_servers one = wefti_server((int32_t)(dice >> 8 & 0xff) % 12);
            if (!(j.here & one))
                j.here |= one;
            else if (wefti_count_servers(j.here) < 3)
                continue;
            else if (dice & 1)
                j.here &= ~one;
            else
                j.leaving = one;
            settle_all(&j);
            if (j.leaving) j.here &= ~j.leaving;
            j.leaving = 0;
            settle_all(&j);
            assert_even(&j);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_more_takes_its_part),
                                       cmocka_unit_test(servers_come_leave_and_die)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
