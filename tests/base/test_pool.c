/* The thread pool: each task once, by a thread of the pool, and done when run returns. */
#include "support.h"

#include <stdatomic.h>
#include <string.h>

#include "base/fault.h"
#include "base/pool.h"
#include "base/tuning.h"

enum { MOST = 5000 };

typedef struct record {
    int threads;
    int plain[MOST]; /* written by one task each, read after the loop: the sanitizer sees a missing
                        barrier */
    _Atomic int bad_thread;
} record;

static void count_task(void *context, int64_t task, int thread) {
    record *r = context;
    r->plain[task]++;
    if (thread < 0 || thread >= r->threads) r->bad_thread = 1;
}

static void each_task_runs_once(void **state) {
    (void)state;
    static record r;
    for (int threads = 1; threads <= 5; threads++) {
        wefti_pool *pool;
        assert_int_equal(wefti_pool_create(threads, &pool), WEFT_OK);
        assert_int_equal(wefti_pool_threads(pool), threads);
        static const int64_t counts[] = {0, 1, 2, 3, 7, 100, MOST};
        for (int round = 0; round < 60; round++) {
            int64_t tasks = counts[round % 7];
            memset(&r, 0, sizeof r);
            r.threads = threads;
            wefti_pool_run(pool, tasks, count_task, &r);
            for (int64_t i = 0; i < MOST; i++) assert_int_equal(r.plain[i], i < tasks);
            assert_false(r.bad_thread);
        }
        wefti_pool_destroy(pool);
    }
}

static void without_a_pool(void **state) {
    (void)state;
    static record r;
    memset(&r, 0, sizeof r);
    r.threads = 1;
    wefti_pool_run(NULL, 10, count_task, &r);
    for (int i = 0; i < 10; i++) assert_int_equal(r.plain[i], 1);
    assert_int_equal(wefti_pool_threads(NULL), 1);
    wefti_pool_destroy(NULL);
}

static void unused_pools_end(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        wefti_pool *pool;
        assert_int_equal(wefti_pool_create(4, &pool), WEFT_OK);
        wefti_pool_destroy(pool);
    }
}

static void bad_arguments_and_no_memory(void **state) {
    (void)state;
    wefti_pool *pool;
    assert_int_equal(wefti_pool_create(0, &pool), WEFT_E_ARG);
    assert_int_equal(wefti_pool_create(-1, &pool), WEFT_E_ARG);
    assert_int_equal(wefti_pool_create(4097, &pool), WEFT_E_ARG);
    for (int64_t n = 0; n < 2; n++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        weft_status status = wefti_pool_create(3, &pool);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(wefti_cores() >= 1);
    wefti_tune(&(wefti_tuning){.cores = 5});
    assert_int_equal(wefti_cores(), 5);
    wefti_tune(NULL);
    assert_true(wefti_cores() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_runs_once),
        cmocka_unit_test(without_a_pool),
        cmocka_unit_test(unused_pools_end),
        cmocka_unit_test(bad_arguments_and_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
