/* Seeing processes through to their end.
 *
 * A job goes through phases, each of which ends what the one before could not:
 *
 *   RUNNING    until all have ended, one has failed, or a request to stop came
 *   REPORTING  one failed: the others learn of it from the scheduler and say in their own logs
 *              where they stood; what has nothing to do with weft runs on for a moment
 *   STOPPING   after a request: all got its signal, or have agreed to one that came to a rank, and
 *              may take their time
 *   ENDING     all got SIGTERM, or the second request
 *   KILLING    SIGKILL, to the whole groups
 *
 * A process that has ended stays a zombie until the job is over, so that its number, which is also
 * its group's, is not given to anyone else. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/spawn/launch.h"

typedef enum phase { RUNNING, REPORTING, STOPPING, ENDING, KILLING } phase;

enum { POLL_MILLISECONDS = 100, PER_PROCESS = 3 /* its end, output, errors */ };

static const double report_seconds = 3, detect_seconds = 0.5, default_grace_seconds = 5;
static const double seek_seconds = 3;

typedef struct watch {
    wefti_launch *l;
    struct pollfd *polled; /* [PER_PROCESS * count] */
    phase phase;
    double deadline;       /* of the phase; 0: none */
    double told_at;        /* when the scheduler is told of the failure; 0: done, or none */
    int running;           /* processes that have not ended */
    int stops;             /* requests seen */
    wefti_failure refused; /* of this launcher; status 0: it may start its ranks */
    int passed;            /* the last signal that was passed on; 0: none */
    double seeks_until;    /* when it is said that there is no scheduler; 0: it was looked at */
} watch;

static double now(void) {
    return (double)wefti_now_ns() * 1e-9;
}

static double grace(const wefti_launch *l) {
    return l->options->grace_seconds > 0 ? l->options->grace_seconds : default_grace_seconds;
}

/* To the groups of all that run; those that are stopped must go on to hear it. */
static void signal_all(wefti_launch *l, int number) {
    for (int i = 0; i < l->place.count; i++) {
        const wefti_process *p = &l->processes[i];
        if (!p->process || p->ended) continue;
        (void)kill(-p->process, number);
        if (number != SIGKILL) (void)kill(-p->process, SIGCONT);
    }
}

static void enter(watch *w, phase next) {
    double seconds = grace(w->l);
    if (next <= w->phase) return;
    w->phase = next;
    w->deadline = next == STOPPING || next == KILLING ? 0 : now() + seconds;
    if (next == REPORTING && seconds > report_seconds) w->deadline = now() + report_seconds;
    if (next == ENDING) signal_all(w->l, w->l->stopped_by ? w->l->stopped_by : SIGTERM);
    if (next == KILLING) signal_all(w->l, SIGKILL);
}

/* --- ends --- */

/* How it ended, if it has; it stays a zombie. */
static bool has_ended(wefti_process *p) {
    siginfo_t info = {0};
    if (!p->process || p->ended) return false;
    if (waitid(P_PID, (id_t)p->process, &info, WEXITED | WNOHANG | WNOWAIT)) {
        p->ended = errno == ECHILD; /* someone else reaped it: all that can be known */
        p->code = -1;
        return p->ended;
    }
    if (!info.si_pid) return false;
    p->ended = true;
    if (info.si_code == CLD_EXITED)
        p->code = info.si_status;
    else
        p->signal = info.si_status;
    return true;
}

/* Of several that fail, the cause is told: the first, and rather one that died than one that ended
 * by itself, which may have been for the other's sake. After a request to stop, a rank that says
 * "try again" waited in vain for another: the other's own failure is the cause. Without a request
 * to this launcher the others may fail on account of the rank that wants to begin again. Nobody
 * asked them to save. So a hung rank loses no more work than another try repeats. */
static bool is_better_cause(const watch *w, const wefti_process *p) {
    if (w->l->failed < 0) return false;
    const wefti_process *named = &w->l->processes[w->l->failed];
    if (p->signal || named->signal) return p->signal && !named->signal;
    return w->phase == STOPPING && named->code == WEFTI_EXIT_AGAIN && !wefti_is_loss(p->code, 0);
}

static void blame(watch *w, int process) {
    wefti_launch *l = w->l;
    const wefti_process *p = &l->processes[process];
    const bool is_better = is_better_cause(w, p);
    /* A process that was asked to stop should end with 0, with 128 + the signal, or by that signal.
     * Otherwise it has failed, and may have lost its work. */
    const bool bad_signal = p->signal && p->signal != l->stopped_by && !wefti_is_request(p->signal);
    const bool died =
        w->phase == STOPPING && (bad_signal || (p->code && !wefti_is_request(p->code - 128)));
    if ((w->phase > REPORTING && !died) || (l->failed >= 0 && !is_better)) return;
    l->failed = process;
    if (died) l->stopped_by = 0;
}

/* The signal by which a rank was asked to stop, once the ranks have agreed to stop: the rank has
 * left in peace, and its exit code is 128 + that signal. 0: none. On a host without the scheduler
 * this is assumed until the scheduler says otherwise, but only after the scheduler was found:
 * before that no ranks can have agreed. */
static int agreed_request(const wefti_launch *l, int process) {
    const wefti_process *p = &l->processes[process];
    bool left = l->scheduler ? wefti_scheduler_has_left(l->scheduler, l->place.first_rank + process)
                             : l->look && wefti_watch_has_found(l->look);
    if (p->signal || !left) return 0;
    return wefti_is_request(p->code - 128) ? p->code - 128 : 0;
}

/* rank: WEFTI_RESTART_NOBODY for all. */
static void tell_restart(wefti_launch *l, int32_t rank, const char *why, const char *what,
                         int64_t pause_ns) {
    const weft_launch_events *e = &l->options->events;
    const int64_t now_ns = wefti_now_ns();
    char text[512], when[64] = "";
    if (pause_ns > 0)
        (void)snprintf(when, sizeof when, " in %.3g s, since that happens again and again",
                       (double)pause_ns * 1e-9);
    /* The scheduler has counted it, with those of all hosts. */
    const bool counted = wefti_restart_take(&l->restarts, rank, now_ns);
    if (!counted) l->restarts.all++;
    (void)snprintf(text, sizeof text, "%.400s; %s (%d of %d%s)%s", why, what,
                   wefti_restart_used(&l->restarts, now_ns), l->set.restarts,
                   l->place.hosts > 1 ? " for all hosts" : "", when);
    if (e->note) e->note(e->context, text);
    wefti_hook_run(l, rank, why);
}

/* A rank that is not started again may have failed often: which, where, how often. */
static void tell_row(wefti_launch *l, int local) {
    const weft_launch_events *e = &l->options->events;
    const int rank = l->place.first_rank + local;
    char text[256];
    int64_t ns;
    const int32_t row = wefti_restart_row(&l->restarts, rank, wefti_now_ns(), &ns);
    if (row < 2 || !e->note) return;
    (void)snprintf(text, sizeof text,
                   "rank %d on host %d has failed %d times within %.3g s, and is not started again",
                   rank, l->place.host, (int)row, (double)ns * 1e-9);
    e->note(e->context, text);
}

/* Once for all of them. Of a process that has not died by itself the scheduler knows why. */
static void tell_restart_of_all(wefti_launch *l, int local, const wefti_end *end,
                                int64_t pause_ns) {
    const wefti_process *p = &l->processes[local];
    const bool died = p->signal && !p->killed;
    if (p->of_all) return;
    for (int i = 0; i < l->place.count; i++) l->processes[i].of_all = true;
    char *why = died || !l->scheduler ? NULL : wefti_scheduler_again_text(l->scheduler);
    const char *text = died ? end->text : "a rank of the job was lost";
    tell_restart(l, WEFTI_RESTART_NOBODY, why ? why : text, "all ranks are started again",
                 pause_ns);
    wefti_free(why);
}

/* The answer is YES or ALL. If all begin again, each of them pauses: whose failure it was is not
 * always known, as of ranks that end by themselves to be started again. */
static void begin_pause(wefti_launch *l, int process, wefti_again again) {
    wefti_process *p = &l->processes[process];
    const wefti_restart_rule rule =
        wefti_restart_rule_of(wefti_ns_of_seconds(l->set.join_seconds, 600));
    wefti_end end;
    wefti_launch_end(l, process, &end);
    p->follows = again;
    p->undecided = true;
    const int64_t pause_ns = wefti_restart_lost(&p->row, &rule, wefti_now_ns());
    if (again == WEFTI_AGAIN_ALL)
        tell_restart_of_all(l, process, &end, pause_ns);
    else
        tell_restart(l, end.rank, end.text, "it is started again", pause_ns);
}

static bool is_restart(wefti_again again) {
    return again == WEFTI_AGAIN_YES || again == WEFTI_AGAIN_ALL;
}

/* Another process takes the place of one that was lost, if the world waits for it, after a pause if
 * it keeps failing; or that is asked still. */
static bool goes_on(watch *w, int process) {
    wefti_launch *l = w->l;
    wefti_process *p = &l->processes[process];
    if (w->phase == RUNNING && !is_restart(p->follows)) {
        const wefti_again again = wefti_launch_again(l, process);
        p->parted = again == WEFTI_AGAIN_WITHOUT;
        if (!is_restart(again)) return again == WEFTI_AGAIN_PENDING;
        begin_pause(l, process, again);
    }
    if (w->phase != RUNNING) return false;
    if (!wefti_restart_is_due(&p->row, wefti_now_ns())) return true;
    if (wefti_launch_restart(l, process) >= 0) return true;
    const weft_launch_events *e = &l->options->events;
    if (e->note) e->note(e->context, weft_error_message());
    return false;
}

/* The job of an elastic world goes on without a process that was lost. */
static bool goes_on_without(watch *w, int process) {
    wefti_launch *l = w->l;
    const weft_launch_events *e = &l->options->events;
    char text[512];
    wefti_end end;
    if (w->phase != RUNNING) return false;
    wefti_launch_end(l, process, &end);
    const bool parted =
        l->scheduler ? wefti_scheduler_goes_on(l->scheduler, &end) : l->processes[process].parted;
    if (!parted) return false;
    l->parted++;
    (void)snprintf(text, sizeof text, "%.300s; the job goes on without it", end.text);
    if (e->note) e->note(e->context, text);
    return true;
}

/* A process whose rank is dead to the others: it is silent, or cannot be reached. */
static void end_dead(wefti_launch *l) {
    for (int i = 0; i < l->place.count; i++) {
        wefti_process *p = &l->processes[i];
        if (!p->process || p->ended || wefti_launch_deaths(l, i) < p->starts) continue;
        p->killed = true;
        (void)kill(-p->process, SIGKILL);
    }
}

static void note_ends(watch *w) {
    wefti_launch *l = w->l;
    for (int i = 0; i < l->place.count; i++) {
        wefti_process *p = &l->processes[i];
        if (!p->undecided && !has_ended(p)) continue;
        if (p->handle >= 0) close(p->handle);
        p->handle = -1;
        if (goes_on(w, i)) continue;
        p->undecided = false;
        w->running--;
        p->failed = p->code != 0 || p->signal != 0;
        if (p->failed && w->phase == RUNNING) tell_row(l, i);
        if (goes_on_without(w, i)) continue;
        if (!p->given_up) wefti_launch_report(l, i);
        if (p->failed) blame(w, i);
    }
    if (l->failed < 0 || w->phase != RUNNING) return;
    l->stopped_by = agreed_request(l, l->failed);
    enter(w, l->stopped_by ? STOPPING : REPORTING);
    if (!l->stopped_by) w->told_at = now() + detect_seconds;
}

/* A process on another host has failed: what failed one here would do to the others. */
static void note_elsewhere(watch *w) {
    wefti_launch *l = w->l;
    if (w->phase == STOPPING && l->failed >= 0 && l->stopped_by && !l->scheduler && l->look &&
        wefti_watch_is_over(l->look, &l->end)) { /* it was no agreement */
        l->stopped_by = 0;
        l->over = wefti_launch_is_over(l, &l->end);
        if (l->over) l->failed = -1; /* or it was, and this is of another host */
        enter(w, ENDING);
    }
    if (w->phase != RUNNING || l->failed >= 0 || !wefti_launch_is_over(l, &l->end)) return;
    l->over = true;
    enter(w, REPORTING);
}

/* The scheduler came after the processes had started, and another launcher has these ranks. */
static void note_refusal(watch *w) {
    if (w->refused.status < 0) return;
    const weft_status status = wefti_launch_check_claim(w->l, 0);
    if (status >= 0) return;
    wefti_failure_keep(status, &w->refused);
    enter(w, ENDING);
}

/* The scheduler finds by itself what it can, and says it better; but of a process that had left it
 * knows nothing. */
static void tell_scheduler(watch *w) {
    wefti_launch *l = w->l;
    wefti_end end;
    if (w->told_at <= 0 || !l->scheduler) return;
    wefti_scheduler_state state = wefti_scheduler_wait(l->scheduler, WEFTI_SCHEDULER_RUNNING, 0);
    if (state == WEFTI_SCHEDULER_RUNNING && now() < w->told_at) return;
    w->told_at = 0;
    if (state != WEFTI_SCHEDULER_RUNNING) return;
    wefti_launch_end(l, l->failed, &end);
    wefti_scheduler_fail(l->scheduler, wefti_end_status(&end), end.rank, end.text);
}

/* Who waits for a host should know that its processes were refused. */
static void note_scheduler(wefti_launch *l) {
    const weft_launch_events *e = &l->options->events;
    char *text;
    if (!l->scheduler || !e->note) return;
    while ((text = wefti_scheduler_noted(l->scheduler, &l->notes))) {
        e->note(e->context, text);
        wefti_free(text);
    }
}

/* Ranks call the scheduler too, and say nothing meanwhile. */
static void note_seeking(watch *w) {
    const wefti_launch *l = w->l;
    if (w->seeks_until <= 0 || now() < w->seeks_until) return;
    w->seeks_until = 0;
    if (l->look && wefti_watch_is_seeking(l->look)) wefti_launch_say_that_it_seeks(l);
}

/* --- requests and deadlines --- */

/* A signal after the first that does not count as a request: see weft_launch_options. */
static void pass_on(watch *w, int signal) {
    if (!w->passed || w->passed == signal) return;
    if (w->phase == STOPPING) signal_all(w->l, signal);
    if (w->l->stopped_by == w->passed) w->l->stopped_by = signal;
    w->passed = signal;
}

static void note_stops(watch *w) {
    const weft_launch_options *o = w->l->options;
    if (!o->stop_signal || !o->stop_count || *o->stop_count == 0) return;
    int signal = *o->stop_signal ? *o->stop_signal : SIGTERM;
    if (*o->stop_count == w->stops) {
        pass_on(w, signal);
        return;
    }
    w->stops = *o->stop_count;
    if (w->stops == 1 &&
        w->phase == STOPPING) { /* a rank has left: the others have only to leave */
        w->deadline = now() + grace(w->l);
        return;
    }
    /* Of a job that has failed the request only hastens the end. */
    bool failed = (w->l->failed >= 0 || w->l->over) && !w->l->stopped_by;
    if (!failed) w->l->stopped_by = signal;
    if (w->stops == 1 && w->phase == RUNNING) {
        enter(w, STOPPING);
        signal_all(w->l, signal);
        w->passed = signal;
    } else {
        enter(w, w->stops < 3 ? ENDING : KILLING);
    }
}

static void note_deadline(watch *w) {
    if (w->deadline <= 0 || now() < w->deadline) return;
    enter(w, w->phase < ENDING ? ENDING : KILLING);
}

/* --- the loop --- */

static void read_logs(watch *w) {
    for (int i = 0; i < w->l->place.count; i++)
        for (int s = 0; s < 2; s++)
            if (w->polled[i * PER_PROCESS + 1 + s].revents)
                wefti_log_read(w->l->processes[i].log, (weft_launch_stream)s);
}

/* Until something happens; requests come as signals, which end the call too. */
static void wait_for_events(watch *w) {
    wefti_launch *l = w->l;
    for (int i = 0; i < l->place.count; i++) {
        const wefti_process *p = &l->processes[i];
        struct pollfd *at = &w->polled[i * PER_PROCESS];
        at[0] = (struct pollfd){.fd = p->handle, .events = POLLIN};
        for (int s = 0; s < 2; s++)
            at[1 + s] = (struct pollfd){.fd = wefti_log_fd(p->log, (weft_launch_stream)s),
                                        .events = POLLIN};
    }
    if (poll(w->polled, (nfds_t)(PER_PROCESS * l->place.count), POLL_MILLISECONDS) > 0)
        read_logs(w);
}

/* All processes here were lost, but others were added, which need the scheduler. */
static bool others_go_on(const watch *w) {
    const wefti_launch *l = w->l;
    return w->phase == RUNNING && l->scheduler && l->parted > 0 &&
           wefti_scheduler_wait(l->scheduler, WEFTI_SCHEDULER_RUNNING, 0) ==
               WEFTI_SCHEDULER_RUNNING;
}

weft_status wefti_launch_watch(wefti_launch *l) {
    watch w = {.l = l, .running = l->place.count, .seeks_until = now() + seek_seconds};
    WEFT_NEW_ARRAY(w.polled, struct pollfd, PER_PROCESS * l->place.count);
    while (w.running > 0 || others_go_on(&w)) {
        wait_for_events(&w);
        wefti_reaper_check(l->reaper);
        end_dead(l);
        wefti_hook_check(l);
        note_ends(&w);
        note_elsewhere(&w);
        note_refusal(&w);
        note_scheduler(l);
        note_seeking(&w);
        note_stops(&w);
        tell_scheduler(&w);
        note_deadline(&w);
    }
    wefti_free(w.polled);
    return w.refused.status < 0 ? wefti_failure_tell(&w.refused) : WEFT_OK;
}

/* --- afterwards --- */

/* All members of a group that are children of this process, adopted ones among them. True: none is
 * left. */
static bool reap_group(pid_t group) {
    pid_t got;
    while ((got = waitpid(-group, NULL, WNOHANG)) > 0 || (got < 0 && errno == EINTR)) {
    }
    return got < 0;
}

void wefti_launch_clear(wefti_launch *l) {
    const double limit = now() + 5;
    int left;
    for (int i = 0; i < l->place.count; i++)
        if (l->processes[i].process) (void)kill(-l->processes[i].process, SIGKILL);
    for (int64_t i = 0; i < l->past_count; i++) (void)kill(-l->past[i], SIGKILL);
    /* Twice none: what was just being started is found the second time. */
    for (int none = 0; none < 2 && now() < limit;) none = wefti_kill_marked(l->mark) ? 0 : none + 1;
    do {
        left = 0;
        for (int i = 0; i < l->place.count; i++)
            left += l->processes[i].process && !reap_group(l->processes[i].process);
        for (int64_t i = 0; i < l->past_count; i++) left += !reap_group(l->past[i]);
        if (left) (void)poll(NULL, 0, 1);
    } while (left && now() < limit);
    for (int i = 0; i < l->place.count; i++)
        if (l->processes[i].log) wefti_log_finish(l->processes[i].log);
}
