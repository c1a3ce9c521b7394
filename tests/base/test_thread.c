/* Threads of the library: their stacks do not depend on the process's limit, and they do not
 * receive signals that are meant for the program. (weft-test: threads) */
#include "support.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>

#include "base/thread.h"

typedef struct look {
    size_t stack;
    int sum;
    sigset_t blocked;
} look;

/* A stack frame as large as in other libraries. */
static __attribute__((noinline)) int use_stack(void) {
    volatile char large[1 << 20];
    memset((char *)(uintptr_t)large, 1, sizeof large);
    return large[0] + large[sizeof large - 1];
}

static void *look_around(void *context) {
    look *l = context;
    pthread_attr_t own;
    void *lowest;
    if (pthread_getattr_np(pthread_self(), &own)) return NULL;
    if (pthread_attr_getstack(&own, &lowest, &l->stack)) l->stack = 0;
    pthread_attr_destroy(&own);
    pthread_sigmask(SIG_BLOCK, NULL, &l->blocked);
    if (l->stack > 1 << 20) l->sum = use_stack();
    return l;
}

static look run_thread(void) {
    look l = {0};
    pthread_t thread;
    void *result;
    assert_int_equal(wefti_thread_start(&thread, look_around, &l), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &l);
    return l;
}

static void stacks_are_large_enough(void **state) {
    (void)state;
    pthread_attr_t before, small;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_getattr_default_np(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 64 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&small), 0); /* as after `ulimit -s 64` */
    look l = run_thread();
    assert_true(l.stack >= 2 << 20);
    assert_int_equal(l.sum, 2);
    /* Stacks that the user sets larger stay larger. */
    assert_int_equal(pthread_attr_setstacksize(&small, 16 << 20), 0);
    assert_int_equal(pthread_setattr_default_np(&small), 0);
    assert_true(run_thread().stack >= 16 << 20);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&before);
}

static void requests_are_for_others(void **state) {
    (void)state;
    static const int requests[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1};
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    look l = run_thread();
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        assert_true(sigismember(&l.blocked, requests[i]));
        assert_int_equal(sigismember(&after, requests[i]), sigismember(&before, requests[i]));
    }
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        assert_false(sigismember(&l.blocked, faults[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacks_are_large_enough),
        cmocka_unit_test(requests_are_for_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
