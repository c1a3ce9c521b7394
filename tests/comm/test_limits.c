/* The limits of topo/limits.h: collectives of 2,048 members, all of them in this process, and
 * refusals beyond the limits. One thread plays all ranks: it posts for each, then polls each until
 * all are done. */
#include "support.h"

#include <stdlib.h>

#include "comm/comm.h"
#include "topo/limits.h"

enum { MEMBERS = SANITIZED ? 300 : 2048, ELEMS = 4096 };

static int32_t *all_ranks(int32_t members) {
    int32_t *ranks = malloc((size_t)members * sizeof *ranks);
    assert_non_null(ranks);
    for (int32_t r = 0; r < members; r++) ranks[r] = r;
    return ranks;
}

/* A transfer of all ranks; all of `have` and `want` are empty. */
static wefti_transfer transfer_of(int32_t members, wefti_transfer_kind kind) {
    wefti_transfer t = {.kind = kind,
                        .dtype = WEFT_I32,
                        .rank = 1,
                        .members = members,
                        .ranks = all_ranks(members),
                        .name = "values"};
    t.have = calloc(2 * (size_t)members, sizeof *t.have);
    assert_non_null(t.have);
    t.want = t.have + members;
    return t;
}
static void discard(wefti_transfer *t) {
    free(t->ranks);
    free(t->have);
}

/* Runs a transfer on all ranks; source and destination of rank r: `sources` + r * from, and so on.
 */
static void play(wefti_transfer *t, const int32_t *sources, int64_t from, int32_t *destinations,
                 int64_t to) {
    wefti_comm **comm = calloc((size_t)t->members, sizeof *comm);
    wefti_endpoint **e = calloc((size_t)t->members, sizeof *e);
    bool *done = calloc((size_t)t->members, sizeof *done);
    assert_true(comm && e && done);
    ASSERT_OK(wefti_comm_threads(t->members, 0, comm));
    for (t->me = 0; t->me < t->members; t->me++)
        ASSERT_OK(comm[t->me]->engine->bind(comm[t->me], t, &e[t->me]));
    for (int32_t r = 0; r < t->members; r++) {
        bool has = wefti_region_elems(&t->have[r], 1) > 0;
        bool wants = wefti_region_elems(&t->want[r], 1) > 0;
        ASSERT_OK(wefti_comm_post(e[r], has ? sources + r * from : NULL,
                                  wants ? destinations + r * to : NULL));
    }
    for (int32_t left = t->members; left > 0;)
        for (int32_t r = 0; r < t->members; r++) {
            weft_status status = done[r] ? WEFT_PENDING : wefti_comm_test(e[r]);
            if (status == WEFT_PENDING) continue;
            ASSERT_OK(status);
            done[r] = true;
            left--;
        }
    for (int32_t r = 0; r < t->members; r++) wefti_comm_unbind(e[r]);
    for (int32_t r = 0; r < t->members; r++) wefti_comm_destroy(comm[r]);
    free(done);
    free(e);
    free(comm);
}

static void thousands_of_members_reduce(void **state) {
    (void)state;
    wefti_transfer t = transfer_of(MEMBERS, WEFTI_TRANSFER_ALL_REDUCE);
    int32_t *values = calloc((size_t)MEMBERS * ELEMS, sizeof *values);
    assert_non_null(values);
    t.reduction = WEFTI_REDUCE_SUM;
    for (int32_t r = 0; r < MEMBERS; r++) {
        t.have[r].size[0] = t.want[r].size[0] = ELEMS;
        for (int i = 0; i < ELEMS; i++) values[(int64_t)r * ELEMS + i] = r + i;
    }
    play(&t, values, ELEMS, values, ELEMS);
    for (int32_t r = 0; r < MEMBERS; r++)
        for (int i = 0; i < ELEMS; i++)
            assert_int_equal(values[(int64_t)r * ELEMS + i],
                             MEMBERS * (MEMBERS - 1) / 2 + MEMBERS * i);
    free(values);
    discard(&t);
}

static void thousands_of_members_hear_a_broadcast(void **state) {
    (void)state;
    enum { ROOT = MEMBERS - 1 };
    wefti_transfer t = transfer_of(MEMBERS, WEFTI_TRANSFER_BROADCAST);
    int32_t *values = calloc(MEMBERS, sizeof *values), source[1] = {77};
    assert_non_null(values);
    t.have[ROOT].size[0] = 1;
    for (int32_t r = 0; r < MEMBERS; r++) t.want[r].size[0] = r != ROOT;
    play(&t, source, 0, values, 1);
    for (int32_t r = 0; r < MEMBERS; r++) assert_int_equal(values[r], r == ROOT ? 0 : 77);
    free(values);
    discard(&t);
}

static void thousands_of_members_gather(void **state) {
    (void)state;
    wefti_transfer t = transfer_of(MEMBERS, WEFTI_TRANSFER_GATHER);
    int32_t *values = calloc(2 * MEMBERS, sizeof *values);
    assert_non_null(values);
    t.want[0].size[0] = MEMBERS;
    for (int32_t r = 0; r < MEMBERS; r++) {
        t.have[r].begin[0] = r;
        t.have[r].size[0] = 1;
        values[r] = 3 * r;
    }
    play(&t, values, 1, values + MEMBERS, 0);
    for (int32_t r = 0; r < MEMBERS; r++) assert_int_equal(values[MEMBERS + r], 3 * r);
    free(values);
    discard(&t);
}

static void more_than_the_limit_is_refused(void **state) {
    (void)state;
    wefti_comm *none[1];
    ASSERT_FAILS(WEFT_E_ARG, "16385|16384", wefti_comm_threads(WEFTI_COMM_MEMBERS + 1, 0, none));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousands_of_members_reduce),
        cmocka_unit_test(thousands_of_members_hear_a_broadcast),
        cmocka_unit_test(thousands_of_members_gather),
        cmocka_unit_test(more_than_the_limit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
