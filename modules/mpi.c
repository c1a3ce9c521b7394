/* The part of weft that is linked to an MPI: built once for each MPI that is there, as
 * weft-openmpi.so, weft-mpich.so, and loaded by src/launch/join/mpi_module.c when the mpirun of
 * that MPI started the process. It needs no symbol of libweft, which the `weft` command contains.
 *
 * MPI is initialised here unless the program did it before, with whatever level of threads there
 * is; and it is finalised with the world that it served, if we began it, unless ranks were lost:
 * then MPI_Finalize would wait for them for ever, and a process that ends without it makes mpirun
 * end the others.
 *
 * MPI_Init waits for all processes of the job, however long: one that ended before it leaves the
 * others there for ever where mpirun thinks nothing of that (MPICH's). So a thread of ours waits
 * there, and who joins waits for the thread, no longer than the time for joining. As the thread
 * that began MPI it is also the one that ends it. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "weft/mpi.h"

#include "weft/version.h"

WEFT_API extern const char weft_module_version[];
const char weft_module_version[] = WEFT_VERSION;

/* --- the end of a process that has lost the others --- */

/* mpirun of Open MPI can be told to overlook exit codes (orte_abort_on_non_zero_status 0). It then
 * ends with 0 after a failed job, and waits for ever after a rank that a signal killed. Only an
 * abort tells it. MPI_Abort prints a page, and needs an MPI that has begun; the runtime below it
 * needs neither. */
static void abort_job(void) {
    typedef int abort_function(int status, const char *text, void *processes, size_t count);
    void *runtime = dlopen("libpmix.so.2", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = runtime ? dlsym(runtime, "PMIx_Abort") : NULL;
    abort_function *pmix_abort;
    memcpy(&pmix_abort, &symbol, sizeof pmix_abort);
    if (pmix_abort) (void)pmix_abort(1, NULL, NULL, 0);
}

static bool overlooks_exit_codes(void) {
    const char *value = getenv("OMPI_MCA_orte_abort_on_non_zero_status");
    return value && (!strcmp(value, "0") || !strcasecmp(value, "false"));
}

/* MPI is not finalised: at the end of this process mpirun must end the others. */
static void abandon(void) {
    static bool abandoned;
    if (!abandoned && overlooks_exit_codes()) abandoned = atexit(abort_job) == 0;
}

/* --- the thread that begins MPI and ends it --- */

/* One for the process, as MPI itself. */
static struct life {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    /* NEVER is left and ENDING is entered by the thread that joins and leaves. */
    enum { NEVER, BEGINNING, BEGUN, REFUSED, ENDING } state;
} life = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void change(int state) {
    pthread_mutex_lock(&life.lock);
    life.state = state;
    pthread_cond_broadcast(&life.changed);
    pthread_mutex_unlock(&life.lock);
}

static void *live(void *nothing) {
    int level;
    change(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS ? BEGUN
                                                                                   : REFUSED);
    pthread_mutex_lock(&life.lock);
    while (life.state == BEGUN) pthread_cond_wait(&life.changed, &life.lock);
    bool ends = life.state == ENDING;
    pthread_mutex_unlock(&life.lock);
    if (ends) (void)MPI_Finalize();
    return nothing;
}

/* Requests by signals are for the program's threads; MPI's frames do not care for `ulimit -s`. */
static int start(void) {
    enum { STACK = 8 << 20 };
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    pthread_condattr_t clock;
    pthread_attr_t how;
    sigset_t requests, before;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&life.changed, &clock);
    (void)pthread_condattr_destroy(&clock);
    int error = pthread_attr_init(&how);
    if (error) return error;
    (void)pthread_attr_setstacksize(&how, STACK);
    sigfillset(&requests);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&requests, faults[i]);
    pthread_sigmask(SIG_BLOCK, &requests, &before);
    life.state = BEGINNING;
    error = pthread_create(&life.thread, &how, live, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&how);
    return error;
}

static weft_status begin(weft_status (*tell)(weft_status, const char *), double seconds) {
    struct timespec until;
    char text[256];
    if (life.state == NEVER && start() != 0) return tell(WEFT_E_NOMEM, "no thread that begins MPI");
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&life.lock);
    while (life.state == BEGINNING &&
           pthread_cond_timedwait(&life.changed, &life.lock, &until) != ETIMEDOUT) {
    }
    int state = life.state;
    pthread_mutex_unlock(&life.lock);
    if (state == BEGUN) return WEFT_OK;
    abandon();
    if (state == REFUSED) return tell(WEFT_E_PEER, "MPI_Init_thread failed");
    (void)snprintf(text, sizeof text,
                   "MPI_Init_thread has waited for %.4g s (WEFT_JOIN_SECONDS): another process of "
                   "the job has not come to it; it has ended, hangs, or was never started",
                   seconds);
    return tell(WEFT_E_TIMEOUT, text);
}

/* --- the transport --- */

static void part(void *context) {
    bool together = wefti_mpi_part((wefti_mpi *)context);
    if (!together) abandon();
    if (!together || life.state != BEGUN) return;
    change(ENDING);
    pthread_join(life.thread, NULL);
}

/* A transport over all processes of the job. `tell` is weft_error_raise; `seconds`: how long the
 * others may take to come. */
WEFT_API weft_status weft_module_transport(weft_status (*tell)(weft_status, const char *),
                                           double seconds, weft_transport *out);
weft_status weft_module_transport(weft_status (*tell)(weft_status, const char *), double seconds,
                                  weft_transport *out) {
    int begun = 0, over = 0;
    (void)MPI_Initialized(&begun);
    (void)MPI_Finalized(&over);
    if (over)
        return tell(WEFT_E_ARG, "MPI was finalised when the last world was left; a process can "
                                "join only one job of mpirun");
    weft_status status = begun ? WEFT_OK : begin(tell, seconds);
    if (status >= 0) status = weft_mpi_transport(MPI_COMM_WORLD, tell, out);
    if (status >= 0) out->close = part;
    return status;
}
