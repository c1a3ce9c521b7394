/* Bound and unbound transfers leave a bounded number of plans behind: programs call with ever new
 * counts, and worlds see many sessions. */
#include "support.h"

#include <stdio.h>

#include "comm/shm/shm.h"

enum { TURNS = 2000, MOST_KEPT = 100 };

static wefti_comm *comm[2];

static int begin(void **state) {
    (void)state;
    return wefti_comm_threads(2, 0, comm) < 0 ? -1 : 0;
}
static int end(void **state) {
    (void)state;
    for (int r = 0; r < 2; r++) wefti_comm_destroy(comm[r]);
    return 0;
}

/* An all-reduce of both ranks, of few elements: one thread can play both. */
static void bind(const char *name, int64_t count, wefti_endpoint *out[2]) {
    int32_t ranks[] = {0, 1};
    wefti_region box[] = {{.size = {count}}, {.size = {count}}};
    for (int32_t r = 0; r < 2; r++) {
        wefti_transfer t = {.kind = WEFTI_TRANSFER_ALL_REDUCE,
                            .reduction = WEFTI_REDUCE_SUM,
                            .dtype = WEFT_F32,
                            .rank = 1,
                            .members = 2,
                            .me = r,
                            .ranks = ranks,
                            .have = box,
                            .want = box,
                            .name = name};
        ASSERT_OK(comm[r]->engine->bind(comm[r], &t, &out[r]));
    }
}
static void unbind(wefti_endpoint *e[2]) {
    for (int r = 0; r < 2; r++) wefti_comm_unbind(e[r]);
}

static void add(wefti_endpoint *e[2], int64_t count) {
    float in[2][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}}, out[2][8];
    for (int r = 0; r < 2; r++) ASSERT_OK(wefti_comm_post(e[r], in[r], out[r]));
    for (int r = 0; r < 2; r++) ASSERT_OK(wefti_comm_wait(e[r]));
    for (int r = 0; r < 2; r++)
        for (int64_t i = 0; i < count; i++) assert_true(out[r][i] == 9);
}

static int plans_of(const wefti_comm *c) {
    const wefti_shm_rank *local = (const wefti_shm_rank *)c;
    int count = 0;
    for (int b = 0; b < WEFTI_SHM_BUCKETS; b++)
        for (const wefti_shm_channel *ch = local->world->bucket[b]; ch; ch = ch->next)
            for (const wefti_shm_plan *p = ch->port[c->rank]->plans; p; p = p->next) count++;
    return count;
}

static void what_is_given_up_makes_room(void **state) {
    (void)state;
    wefti_endpoint *stays[2];
    bind("stays", 3, stays);
    for (int turn = 0; turn < TURNS; turn++) {
        char name[200];
        wefti_endpoint *e[2];
        int64_t count = 1 + turn % 8;
        /* texts of many lengths, which take each other's places */
        (void)snprintf(name, sizeof name, "tensor %d%*s", turn, turn % 90, "");
        bind(name, count, e);
        add(e, count);
        if (turn % 7 == 0) add(stays, 3);
        unbind(e);
    }
    add(stays, 3);
    for (int r = 0; r < 2; r++) assert_in_range(plans_of(comm[r]), 1, MOST_KEPT);
    unbind(stays);
}

static void what_is_bound_stays(void **state) {
    (void)state;
    enum { MANY = 3 * MOST_KEPT };
    static wefti_endpoint *e[MANY][2];
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < MANY; i++) {
            char name[40];
            (void)snprintf(name, sizeof name, "tensor %d", i);
            bind(name, 2, e[i]);
        }
        for (int i = 0; i < MANY; i++) add(e[i], 2);
        for (int r = 0; r < 2; r++) assert_int_equal(plans_of(comm[r]), MANY);
        for (int i = 0; i < MANY; i++) unbind(e[i]);
    }
}

/* The text of a plan that took another's place is its own. */
static void texts_are_right(void **state) {
    (void)state;
    wefti_endpoint *e[2], *other[2];
    float x[8] = {0};
    for (int turn = 0; turn < TURNS; turn++) {
        char name[40];
        (void)snprintf(name, sizeof name, "a%d", turn);
        bind(name, 1, e);
        if (turn + 1 == TURNS) break;
        add(e, 1);
        unbind(e);
    }
    bind("something else", 4, other);
    ASSERT_OK(wefti_comm_post(e[0], x, x));
    ASSERT_OK(wefti_comm_post(other[1], x, x + 4));
    assert_int_equal(wefti_comm_wait(e[0]), WEFT_E_MISMATCH);
    assert_non_null(strstr(weft_error_message(), "a1999 (f32, 1 elements)"));
    assert_non_null(strstr(weft_error_message(), "something else (f32, 4 elements)"));
    unbind(e);
    unbind(other);
}

/* Sets of members are as long as the group, not as long as the largest group: a job of 256 ranks
 * binds tens of thousands of them. Each piece of an all-gather of 100 members has one supplier. */
static void sets_fit_the_group(void **state) {
    enum { MEMBERS = 100, ELEMS = 3 };
    (void)state;
    int32_t ranks[MEMBERS];
    wefti_region have[MEMBERS], want[MEMBERS];
    wefti_piece_list pieces = {0};
    for (int32_t r = 0; r < MEMBERS; r++) {
        ranks[r] = r;
        have[r] = (wefti_region){.begin = {r * ELEMS}, .size = {ELEMS}};
        want[r] = (wefti_region){.size = {MEMBERS * ELEMS}};
    }
    wefti_transfer t = {.kind = WEFTI_TRANSFER_ALL_GATHER,
                        .dtype = WEFT_F32,
                        .rank = 1,
                        .members = MEMBERS,
                        .me = 70,
                        .ranks = ranks,
                        .have = have,
                        .want = want};
    ASSERT_OK(wefti_pieces_find(&t, t.me, &pieces));
    assert_int_equal(pieces.words, 2);
    assert_int_equal(pieces.used, MEMBERS);
    for (int64_t n = 0; n < pieces.used; n++) {
        int32_t owner = (int32_t)(pieces.box[n].begin[0] / ELEMS);
        assert_int_equal(wefti_set_count(wefti_piece_from(&pieces, n), pieces.words), 1);
        assert_true(wefti_set_has(wefti_piece_from(&pieces, n), owner));
    }
    wefti_pieces_free(&pieces);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_given_up_makes_room, begin, end),
        cmocka_unit_test_setup_teardown(what_is_bound_stays, begin, end),
        cmocka_unit_test_setup_teardown(texts_are_right, begin, end),
        cmocka_unit_test(sets_fit_the_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
