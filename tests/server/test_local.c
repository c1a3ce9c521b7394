/* Servers in one process, without a program (service_trial.h). Ranks that wait hear of the failure
 * of another one. What does not fit is refused. WEFT_TEST_SEED sets the first seed. */
#include "service_trial.h"

#include "server/local.h"

static void open_services(world *w) {
    ASSERT_OK(wefti_service_local(w->ranks, 1, w->services));
}
static void close_services(world *w) {
    (void)w;
}

/* ---- failures ---- */

static void *wait_alone(void *context) {
    wefti_shard *shard = context;
    ASSERT_FAILS(WEFT_E_PEER, "rank 1|no paper", shard->engine->wait_push(shard));
    assert_int_equal(weft_error_rank(), 1);
    return NULL;
}

/* Rank 1 fails, for which rank 0 waits. Then both make the step. */
static void a_failure_ends_waits(void **state) {
    (void)state;
    world w;
    wefti_shard *shards[2];
    pthread_t thread;
    static float gradient[ELEMS];
    open_world(&w, 1, 2);
    for (int32_t r = 0; r < 2; r++) ASSERT_OK(bind_shard(&w, r, 0, &shards[r]));
    ASSERT_OK(shards[0]->engine->push(shards[0], 1, gradient));
    assert_int_equal(pthread_create(&thread, NULL, wait_alone, shards[0]), 0);
    w.services[1]->engine->break_off(w.services[1], WEFT_RANK_OWN, "no paper");
    w.services[0]->engine->break_off(w.services[0], WEFT_RANK_OWN, "a witness");
    (void)pthread_join(thread, NULL);
    shards[0]->engine->give_up(shards[0]);
    w.services[0]->engine->mend(w.services[0]);
    for (int32_t r = 0; r < 2; r++) ASSERT_OK(shards[r]->engine->push(shards[r], 2, gradient));
    for (int32_t r = 0; r < 2; r++) ASSERT_OK(shards[r]->engine->wait_push(shards[r]));
    ASSERT_FAILS(WEFT_E_BUG, "twice|'a'", shards[1]->engine->push(shards[1], 2, gradient));
    for (int32_t r = 0; r < 2; r++) shards[r]->engine->unbind(shards[r]);
    close_world(&w);
}

static weft_status bind_other(const world *w, const wefti_served *served) {
    wefti_shard *shard;
    return w->services[1]->engine->bind(w->services[1], served, &shard);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    world w;
    wefti_shard *shard;
    char bytes[8] = {0};
    open_world(&w, 1, 2);
    ASSERT_OK(bind_shard(&w, 0, 0, &shard));
    wefti_served x = w.served[0];
    ASSERT_FAILS(WEFT_E_MISMATCH, "ranks 0 and 1|'a'", bind_other(&w, &x));
    x.term = 1;
    x.whole.shape[0]++;
    ASSERT_FAILS(WEFT_E_MISMATCH, "'a'", bind_other(&w, &x));
    x = w.served[0];
    x.terms = 3;
    ASSERT_FAILS(WEFT_E_MISMATCH, "'a'|2|3", bind_other(&w, &x));
    x = w.served[0];
    x.square = WEFT_F32;
    ASSERT_FAILS(WEFT_E_MISMATCH, "'a'|rules", bind_other(&w, &x));
    const int64_t end = w.served[0].part_bytes[0];
    ASSERT_OK(shard->engine->write(shard, 0, end - 8, 8, bytes));
    ASSERT_FAILS(WEFT_E_BUG, "'a'", shard->engine->write(shard, 0, end - 7, 8, bytes));
    ASSERT_FAILS(WEFT_E_BUG, "'a'", shard->engine->read(shard, 0, -1, 1, bytes));
    ASSERT_FAILS(WEFT_E_BUG, "'a'", shard->engine->read(shard, 1, 0, 1, bytes));
    shard->engine->unbind(shard);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_steps),
        cmocka_unit_test(a_push_that_is_not_finite_is_refused),
        cmocka_unit_test(a_failure_ends_waits),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
