/* Servers in other threads, which ranks reach over connections (service_trial.h). Ranks that wait
 * hear of a rank that leaves, and of a server that does. What does not fit is refused.
 * WEFT_TEST_SEED sets the first seed. */
#include "support.h"

#ifdef WEFT_HAVE_OPENSSL

#include "server/remote.h"
#include "server_threads.h"
#include "service_trial.h"

static const unsigned char other_key[32] = "of others";

static wefti_remote_options options_of(int32_t rank, uint64_t session) {
    return (wefti_remote_options){.servers = servers.address,
                                  .count = servers.count,
                                  .rank = rank,
                                  .session = session,
                                  .encrypts = servers.encrypts,
                                  .key = servers_key,
                                  .by_frames = session % 2,
                                  .seconds = 20};
}

static void open_services(world *w) {
    servers.count = 1 + (int32_t)(w->seed % MOST_SERVERS);
    servers.encrypts = w->seed % 4 == 3;
    for (int i = 0; i < servers.count; i++) start_server(i);
    for (int32_t r = 0; r < w->ranks; r++) {
        const wefti_remote_options o = options_of(r, w->seed);
        ASSERT_OK(wefti_service_remote(&o, &w->services[r]));
    }
}
static void close_services(world *w) {
    (void)w;
    for (int i = 0; i < servers.count; i++) end_server(i);
    servers.count = 0;
}

/* ---- failures ---- */

static void *wait_for_value(void *context) {
    wefti_shard *shard = context;
    const wefti_step_block scalars = {.f32 = {.learning_rate = 1}};
    static float value[ELEMS];
    ASSERT_OK(shard->engine->pull(shard, 1, &scalars, value));
    ASSERT_FAILS(WEFT_E_PEER, "rank 1|'a'", shard->engine->wait_pull(shard));
    assert_int_equal(weft_error_rank(), 1);
    return NULL;
}

/* Rank 1 leaves before it has pushed. What rank 0 has got by then stays. */
static void a_rank_that_leaves_ends_waits(void **state) {
    (void)state;
    world w;
    wefti_shard *shards[2];
    pthread_t thread;
    static float gradient[ELEMS];
    open_world(&w, 2, 2);
    for (int32_t r = 0; r < 2; r++) ASSERT_OK(bind_shard(&w, r, 0, &shards[r]));
    ASSERT_OK(shards[0]->engine->push(shards[0], 1, gradient));
    ASSERT_OK(shards[0]->engine->wait_push(shards[0]));
    assert_int_equal(pthread_create(&thread, NULL, wait_for_value, shards[0]), 0);
    wefti_service_destroy(w.services[1]); /* the connection ends, as with a process */
    (void)pthread_join(thread, NULL);
    shards[0]->engine->give_up(shards[0]);
    shards[0]->engine->unbind(shards[0]);
    free(shards[1]);
    w.ranks = 1;
    close_world(&w);
}

static void a_server_that_ends_is_named(void **state) {
    (void)state;
    world w;
    wefti_shard *shard;
    static float gradient[ELEMS];
    char byte;
    open_world(&w, 1, 1); /* with two servers */
    assert_int_equal(servers.count, 2);
    ASSERT_OK(bind_shard(&w, 0, 0, &shard));
    ASSERT_OK(shard->engine->push(shard, 1, gradient));
    ASSERT_OK(shard->engine->wait_push(shard));
    end_server(1);
    servers.count = 1;
    weft_status status;
    while ((status = shard->engine->read(shard, 0, 0, 1, &byte)) == WEFT_OK) continue;
    ASSERT_FAILS(WEFT_E_PEER, "server 1|address 1|lost", status);
    ASSERT_FAILS(WEFT_E_PEER, "server 1", shard->engine->push(shard, 2, gradient));
    shard->engine->unbind(shard);
    close_world(&w);
}

static weft_status bind_other(const world *w, const wefti_served *served) {
    wefti_shard *shard;
    const weft_status status = w->services[1]->engine->bind(w->services[1], served, &shard);
    w->services[1]->engine->mend(w->services[1]);
    return status;
}

/* The servers go on. */
static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    world w;
    wefti_shard *shard, *again;
    char bytes[8] = {0};
    open_world(&w, 3, 2);
    ASSERT_OK(bind_shard(&w, 0, 0, &shard));
    wefti_served x = w.served[0];
    ASSERT_FAILS(WEFT_E_MISMATCH, "ranks 0 and 1|'a'", bind_other(&w, &x));
    x.term = 1;
    x.whole.shape[0]++;
    ASSERT_FAILS(WEFT_E_MISMATCH, "'a'", bind_other(&w, &x));
    x = w.served[0];
    x.terms = 3;
    ASSERT_FAILS(WEFT_E_MISMATCH, "'a'|2|3", bind_other(&w, &x));
    const int64_t end = w.served[0].part_bytes[0];
    ASSERT_OK(shard->engine->write(shard, 0, end - 8, 8, bytes));
    ASSERT_FAILS(WEFT_E_BUG, "part 0|bytes", shard->engine->write(shard, 0, end - 7, 8, bytes));
    ASSERT_FAILS(WEFT_E_BUG, "part 1", shard->engine->read(shard, 1, 0, 1, bytes));
    ASSERT_OK(bind_shard(&w, 1, 0, &again));
    again->engine->unbind(again);
    shard->engine->unbind(shard);
    close_world(&w);
}

/* One rank is a whole step ahead before the other one asks for the value: it is still there. */
static void a_late_rank_gets_its_value(void **state) {
    (void)state;
    const wefti_step_block scalars = {.f32 = {.learning_rate = 1, .gradient_scale = 1}};
    static float gradient[ELEMS], value[2][ELEMS];
    for (uint64_t seed = 1; seed <= 2; seed++) { /* by frames, and by memory */
        world w;
        wefti_shard *shards[2];
        char byte;
        open_world(&w, seed, 2);
        for (int i = 0; i < ELEMS; i++) gradient[i] = 1;
        for (int32_t r = 0; r < 2; r++) ASSERT_OK(bind_shard(&w, r, 0, &shards[r]));
        for (int step = 1; step <= 3; step++) {
            wefti_shard *ahead = shards[1], *late = shards[0];
            if (step == 1) ASSERT_OK(ahead->engine->push(ahead, step, gradient));
            ASSERT_OK(late->engine->push(late, step, gradient));
            ASSERT_OK(ahead->engine->pull(ahead, step, &scalars, value[0]));
            ASSERT_OK(ahead->engine->wait_pull(ahead));
            ASSERT_OK(ahead->engine->push(ahead, step + 1, gradient));
            ASSERT_OK(ahead->engine->wait_push(ahead));
            ASSERT_OK(ahead->engine->read(ahead, 0, 0, 1, &byte)); /* the server has heard it */
            ASSERT_OK(late->engine->pull(late, step, &scalars, value[1]));
            ASSERT_OK(late->engine->wait_pull(late));
            assert_memory_equal(value[0], value[1], ELEMS * sizeof(float));
            assert_true(value[1][0] == -2 * (float)step);
        }
        for (int32_t r = 0; r < 2; r++) shards[r]->engine->give_up(shards[r]);
        for (int32_t r = 0; r < 2; r++) shards[r]->engine->unbind(shards[r]);
        close_world(&w);
    }
}

/* The value, the sum and two terms of shard 0, and not a byte more. What has left makes room. */
static void what_does_not_fit_into_memory_is_refused(void **state) {
    (void)state;
    world w;
    wefti_shard *shards[2], *other;
    servers.memory_bytes = ELEMS * (int64_t)sizeof(float) * 4;
    open_world(&w, 3, 2); /* with one server */
    assert_int_equal(servers.count, 1);
    for (int32_t r = 0; r < 2; r++) {
        ASSERT_OK(bind_shard(&w, r, 0, &shards[r]));
        ASSERT_FAILS(WEFT_E_NOMEM, "'b' needs|on server 0|2 devices|0 B left of",
                     bind_shard(&w, r, 1, &other));
    }
    w.services[0]->engine->mend(w.services[0]);
    w.services[1]->engine->mend(w.services[1]);
    shards[1]->engine->unbind(shards[1]);
    ASSERT_FAILS(WEFT_E_NOMEM, "'b'", bind_shard(&w, 0, 1, &other));
    w.services[0]->engine->mend(w.services[0]);
    shards[0]->engine->unbind(shards[0]);
    ASSERT_OK(bind_shard(&w, 0, 1, &other));
    other->engine->unbind(other);
    close_world(&w);
    servers.memory_bytes = 0;
}

static void servers_without_the_key_are_refused(void **state) {
    (void)state;
    wefti_service *service;
    servers.count = 1;
    servers.encrypts = false;
    start_server(0);
    wefti_remote_options o = options_of(0, 5);
    o.key = other_key;
    o.seconds = 0.3;
    ASSERT_FAILS(WEFT_E_PEER, "server 0|address 0", wefti_service_remote(&o, &service));
    end_server(0);
    o.key = servers_key;
    ASSERT_FAILS(WEFT_E_PEER, "server 0|address 0", wefti_service_remote(&o, &service));
    servers.count = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_steps),
        cmocka_unit_test(a_push_that_is_not_finite_is_refused),
        cmocka_unit_test(a_rank_that_leaves_ends_waits),
        cmocka_unit_test(a_server_that_ends_is_named),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_late_rank_gets_its_value),
        cmocka_unit_test(what_does_not_fit_into_memory_is_refused),
        cmocka_unit_test(servers_without_the_key_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    printf("SKIP: this build has no OpenSSL, which signs messages\n");
    return 77;
}

#endif
