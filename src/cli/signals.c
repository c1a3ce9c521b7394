/* Signals that ask the command to stop. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

void cli_catch_signals(void (*handler)(int), bool keep_ignored) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    struct sigaction action = {.sa_handler = handler}, old;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < COUNT; i++) sigaddset(&action.sa_mask, numbers[i]); /* one at a time */
    for (int i = 0; i < COUNT; i++) {
        bool may_be_ignored = keep_ignored || numbers[i] == SIGHUP || numbers[i] == SIGPIPE;
        if (may_be_ignored && !sigaction(numbers[i], NULL, &old) && old.sa_handler == SIG_IGN)
            continue;
        (void)sigaction(numbers[i], &action, NULL);
    }
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
