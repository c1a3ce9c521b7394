/* Signals that ask the command to stop. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "weft/train.h"

/* Requests are taken by a thread. The one that runs the command may be in a call to the file system
 * that does not return, and runs no handler meanwhile. It gets each request by a signal of its own,
 * which also interrupts its writes. */
static struct {
    void (*handler)(int);
    pthread_t command, taker;
    sigset_t taken;
    _Atomic int number;      /* of the last request */
    _Atomic bool unheard;    /* the command's thread has not run its handler */
    _Atomic bool ends;       /* a request ends the process at once */
    _Atomic int64_t late_ns; /* when a request ends it that came before; 0: never */
} requests;

/* LATE_PIECES pieces of time: how long a call to the file system may take once a request has come.
 */
enum { PIECE_NS = 200000000, LATE_PIECES = 18 };
static const int64_t second_ns = 1000000000;

static int64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * second_ns + t.tv_nsec;
}

static const int announcements[] = {SIGUSR1, SIGUSR2, SIGXCPU};
enum { ANNOUNCEMENTS = sizeof announcements / sizeof *announcements };

bool cli_is_announcement(int number) {
    for (int i = 0; i < ANNOUNCEMENTS; i++)
        if (number == announcements[i]) return true;
    return false;
}

void cli_ignore_announcements(void) {
    for (int i = 0; i < ANNOUNCEMENTS; i++) (void)signal(announcements[i], SIG_IGN);
}

static int forwarding(void) {
    return SIGRTMIN + 5;
}

void cli_end_by(int number) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    (void)signal(number, SIG_DFL);
    (void)pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    (void)raise(number);
    _exit(128 + number); /* the first process of a container outlives it */
}

static void end_first_process(int number) {
    _exit(128 + number);
}

void cli_hear_signals_as_first_process(void) {
    static const int numbers[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
    struct sigaction action = {.sa_handler = end_first_process}, old;
    if (getpid() != 1) return;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            (void)sigaction(numbers[i], &action, NULL);
}

/* A thread of some library took the request. */
static void pass_on(int number) {
    (void)pthread_kill(requests.taker, number);
}

static void hear(int forwarded) {
    (void)forwarded;
    atomic_store(&requests.unheard, false);
    int number = atomic_load(&requests.number);
    if (number) requests.handler(number);
}

/* What was asked for may not be on the disk, so this is a failure. */
static void leave_disk(void) {
    static const char text[] = "weft: a disk or a file server does not answer: this process ends, "
                               "and saves nothing more\n";
    struct pollfd output = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t ignored = poll(&output, 1, 0) > 0 ? write(STDERR_FILENO, text, sizeof text - 1) : 0;
    (void)ignored;
    _exit(CLI_FAILED);
}

/* One more piece of time has passed. Pieces are counted, so that a pause of this process is short.
 * A call that is younger than the pieces is another one. */
static int count_pieces(int pieces) {
    double call_ns = weft_file_wait_seconds() * 1e9;
    bool waits = atomic_load(&requests.unheard) || call_ns > (double)pieces * PIECE_NS;
    return waits ? pieces + 1 : 0;
}

static void *take_requests(void *context) {
    bool asked = false;
    int pieces = 0;
    (void)context;
    for (;;) {
        const struct timespec piece = {.tv_nsec = PIECE_NS};
        int number = sigtimedwait(&requests.taken, NULL, &piece);
        int64_t late = atomic_load(&requests.late_ns);
        if (number > 0) {
            if (atomic_load(&requests.ends) && !cli_is_announcement(number)) cli_end_by(number);
            if (!cli_is_announcement(number)) asked = true;
            atomic_store(&requests.number, number);
            atomic_store(&requests.unheard, true);
            (void)pthread_kill(requests.command, forwarding());
        }
        if (late && now_ns() > late) cli_end_by(atomic_load(&requests.number));
        if (!asked) continue;
        pieces = count_pieces(pieces);
        if (pieces > LATE_PIECES) leave_disk();
    }
    return NULL;
}

static bool start_taker(void) {
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    bool runs = pthread_create(&requests.taker, NULL, take_requests, NULL) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return runs;
}

void cli_catch_signals(void (*handler)(int), bool keep_ignored) {
    static const int numbers[] = {SIGINT,  SIGTERM, SIGHUP, SIGUSR1,
                                  SIGUSR2, SIGXCPU, SIGPIPE}; /* SIGPIPE is the last */
    enum { COUNT = sizeof numbers / sizeof *numbers };
    struct sigaction action = {.sa_handler = hear}, old;
    sigemptyset(&action.sa_mask);
    sigemptyset(&requests.taken);
    for (int i = 0; i < COUNT; i++) sigaddset(&action.sa_mask, numbers[i]); /* one at a time */
    sigaddset(&action.sa_mask, forwarding());
    for (int i = 0; i < COUNT - 1; i++) {
        bool may_be_ignored = keep_ignored || (numbers[i] != SIGINT && numbers[i] != SIGTERM);
        bool is_ignored = sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN;
        if (!may_be_ignored || !is_ignored) sigaddset(&requests.taken, numbers[i]);
    }
    requests.handler = handler;
    requests.command = pthread_self();
    (void)sigaction(forwarding(), &action, NULL);
    bool taken = start_taker();
    action.sa_handler = taken ? pass_on : handler;
    for (int i = 0; i < COUNT - 1; i++)
        if (sigismember(&requests.taken, numbers[i])) (void)sigaction(numbers[i], &action, NULL);
    if (taken) (void)pthread_sigmask(SIG_BLOCK, &requests.taken, NULL);
    action.sa_handler = handler; /* its own writes raise it */
    if (sigaction(SIGPIPE, NULL, &old) || old.sa_handler != SIG_IGN)
        (void)sigaction(SIGPIPE, &action, NULL);
}

/* ---- requests to stop ---- */

static struct {
    volatile int number; /* of the first request, or of an announcement before it */
    struct timespec asked;
    const char *volatile text; /* NULL: another rank reports */
} stop;

static void say_once(int number) {
    static const char sooner[] = "; once more to stop at once";
    char line[128] = "\nweft: ";
    if (!stop.text || strlen(stop.text) + sizeof sooner + 16 > sizeof line) return;
    strcat(strcat(strcat(line, stop.text), cli_is_announcement(number) ? "" : sooner), "\n");
    ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
    (void)ignored;
}

static bool is_same_request(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    time_t seconds = now.tv_sec - stop.asked.tv_sec;
    return seconds < 1 || (seconds == 1 && now.tv_nsec < stop.asked.tv_nsec);
}

/* Closing the terminal (SIGHUP) and closing the output (SIGPIPE, at every line) are requests too,
 * without anybody to confirm them. */
static void ask_to_stop(int number) {
    int before = errno;
    if (!stop.number || (cli_is_announcement(stop.number) && !cli_is_announcement(number))) {
        const bool is_first = !stop.number;
        (void)clock_gettime(CLOCK_MONOTONIC, &stop.asked);
        stop.number = number;
        cli_drop_stuck_output();
        if (is_first) say_once(number);
    } else if (cli_is_announcement(number)) {
        /* the run is stopping */
    } else if (number != SIGPIPE && !is_same_request()) {
        cli_end_by(number);
    }
    errno = before;
}

const volatile int *cli_stop_by_signals(const char *text) {
    stop.text = text;
    /* Shells let background jobs ignore SIGINT; a run does not. */
    cli_catch_signals(ask_to_stop, false);
    return &stop.number;
}

void cli_let_requests_end_this(int stop_signal) {
    enum { SECONDS = 4 };
    atomic_store(&requests.ends, true);
    if (!stop_signal) return;
    atomic_store(&requests.number, stop_signal);
    atomic_store(&requests.late_ns, now_ns() + SECONDS * second_ns);
}

void cli_drop_stuck_output(void) {
    enum { PATIENCE_MS = 1000 };
    static const int outputs[] = {STDOUT_FILENO, STDERR_FILENO};
    int before = errno;
    for (int i = 0; i < 2; i++) {
        struct pollfd output = {.fd = outputs[i], .events = POLLOUT};
        if (poll(&output, 1, PATIENCE_MS) != 0) continue;
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (nowhere >= 0) (void)dup2(nowhere, outputs[i]);
        if (nowhere >= 0) (void)close(nowhere);
    }
    errno = before;
}
