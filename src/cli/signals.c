/* Signals that ask the command to stop. */
#include "cli.h"

#include <signal.h>

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
