/* The command of --on-restart: it runs beside the job for each restart that this launcher makes,
 * and whatever it does, the job goes on. It is one of the processes of the run, so none of it stays
 * behind. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/health/health.h"
#include "launch/spawn/launch.h"

static void note(const wefti_launch *l, const char *text) {
    const weft_launch_events *e = &l->options->events;
    if (e->note) e->note(e->context, text);
}

static weft_status start(wefti_launch *l, int32_t rank, const char *reason) {
    const char *words[] = {"/bin/sh", "-c", l->options->on_restart, NULL};
    wefti_hook_facts facts = {.rank = rank, .reason = reason, .count = l->restarts.all};
    char **environment;
    pid_t process;
    wefti_job_name(l->scheduler_text, l->secret, facts.job);
    WEFT_TRY(wefti_launch_hook_settings(l, &facts, &environment));
    WEFT_TRY(WEFT_GROW(l->hooks, l->hook_count, l->hook_room));
    const wefti_spawn what = {.path = words[0],
                              .words = (char *const *)(uintptr_t)words, /* exec only reads them */
                              .environment = environment,
                              .output = STDERR_FILENO,
                              .errors = STDERR_FILENO};
    WEFT_TRY(wefti_process_start(&what, &process));
    wefti_reaper_add_group(l->reaper, process);
    l->hooks[l->hook_count++] = process;
    return WEFT_OK;
}

void wefti_hook_run(wefti_launch *l, int32_t rank, const char *reason) {
    char text[512];
    if (!l->options->on_restart || start(l, rank, reason) >= 0) return;
    (void)snprintf(text, sizeof text, "--on-restart: %.400s; the job goes on",
                   weft_error_message());
    note(l, text);
}

static void tell_end(const wefti_launch *l, int status) {
    char text[128];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const bool killed = WIFSIGNALED(status);
    (void)snprintf(text, sizeof text, "--on-restart: the command %s %d; the job goes on without it",
                   killed ? "was ended by signal" : "ended with exit code",
                   killed ? WTERMSIG(status) : WEXITSTATUS(status));
    note(l, text);
}

void wefti_hook_check(wefti_launch *l) {
    int64_t kept = 0;
    for (int64_t i = 0; i < l->hook_count; i++) {
        int status;
        const pid_t got = waitpid(l->hooks[i], &status, WNOHANG);
        if (got == 0) l->hooks[kept++] = l->hooks[i];
        if (got > 0) tell_end(l, status);
    }
    l->hook_count = kept;
}

void wefti_hook_end(wefti_launch *l) {
    enum { TURN_MILLISECONDS = 20 };
    const int64_t until = wefti_now_ns() + wefti_ns_of_seconds(l->options->grace_seconds, 5);
    for (wefti_hook_check(l); l->hook_count > 0 && wefti_now_ns() < until; wefti_hook_check(l))
        (void)usleep(TURN_MILLISECONDS * 1000);
    if (l->hook_count > 0)
        note(l, "--on-restart: a command still runs at the end of the job, and is ended");
    for (int64_t i = 0; i < l->hook_count; i++) {
        (void)kill(-l->hooks[i], SIGKILL);
        (void)waitpid(l->hooks[i], NULL, 0);
    }
    wefti_free(l->hooks);
    l->hooks = NULL;
    l->hook_count = 0;
}
