/* See thread.h. */
#include "base/thread.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

enum { STACK = 2 << 20 }; /* library functions called in the thread need large frames */

/* Ensures a stack of STACK bytes. The default size is `ulimit -s`, or the system's own choice
 * without a limit. */
static int with_stack(pthread_attr_t *how) {
    size_t bytes;
    int error = pthread_attr_getstacksize(how, &bytes);
    if (!error && bytes < STACK) error = pthread_attr_setstacksize(how, STACK);
    return error;
}

static void set_of_requests(sigset_t *out) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigfillset(out);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(out, faults[i]);
}

int wefti_thread_start(pthread_t *out, void *(*run)(void *context), void *context) {
    sigset_t requests, before;
    pthread_attr_t how;
    int error = pthread_attr_init(&how);
    if (error) return error;
    error = with_stack(&how);
    set_of_requests(&requests);
    pthread_sigmask(SIG_BLOCK, &requests, &before);
    if (!error) error = pthread_create(out, &how, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&how);
    return error;
}

void wefti_cores_piece(int member, int count, cpu_set_t *out) {
    cpu_set_t all;
    int cores, number = 0;
    CPU_ZERO(out);
    if (sched_getaffinity(0, sizeof all, &all)) return;
    cores = CPU_COUNT(&all);
    /* With more members than cores they take turns; else each has a piece of its own. */
    int from = cores < count ? member % cores : (int)((int64_t)member * cores / count);
    int to = cores < count ? from + 1 : (int)((int64_t)(member + 1) * cores / count);
    for (size_t core = 0; core < CPU_SETSIZE && number < to; core++)
        if (CPU_ISSET(core, &all) && number++ >= from) CPU_SET(core, out);
}

bool wefti_thread_take_turns(int member, int count) {
    cpu_set_t all, own;
    if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) >= count) return false;
    wefti_cores_piece(member, count, &own);
    return CPU_COUNT(&own) == 1 && sched_setaffinity(0, sizeof own, &own) == 0;
}
