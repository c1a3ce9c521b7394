/* A launcher on a host without the scheduler, in a job whose lost ranks are started again, or to
 * which it adds processes. It starts nothing before the scheduler has given it seats, and nothing
 * again without asking: another launcher may have the seats by then (scheduler/keep.c). A scheduler
 * that does not answer is asked for as long as a process may take to join. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "launch/spawn/launch.h"

static double now(void) {
    return (double)wefti_now_ns() * 1e-9;
}

static double patience(const wefti_launch *l) {
    return (double)wefti_ns_of_seconds(l->set.join_seconds, 600) * 1e-9;
}

static void note(const wefti_launch *l, const char *text) {
    const weft_launch_events *e = &l->options->events;
    if (e->note) e->note(e->context, text);
}

void wefti_launch_say_that_it_seeks(const wefti_launch *l) {
    char text[512];
    (void)snprintf(text, sizeof text,
                   "the scheduler at %.200s is not there yet, or cannot be reached from here; it "
                   "is called for %.4g s (ctrl-C ends that)",
                   l->scheduler_text, patience(l));
    note(l, text);
}

static void say_that_it_waits(const wefti_launch *l) {
    char text[512];
    if (!l->options->add && !wefti_watch_has_found(l->look)) {
        wefti_launch_say_that_it_seeks(l);
        return;
    }
    if (l->options->add)
        (void)snprintf(
            text, sizeof text,
            "the job at %.200s takes no processes yet: its scheduler is not there, or its "
            "ranks set up (ctrl-C ends that)",
            l->scheduler_text);
    else if (l->options->spare)
        (void)snprintf(text, sizeof text,
                       "this host is a spare one: it waits until another host of the job is lost "
                       "(ctrl-C ends that)");
    else
        (void)snprintf(text, sizeof text,
                       "host %d waits for its seats: the launcher that has had them is still "
                       "there, or its processes are (ctrl-C ends that)",
                       l->place.host);
    note(l, text);
}

/* A spare one waits as long as there is a scheduler. */
static bool is_late(const wefti_launch *l, double since) {
    if (l->options->spare && wefti_watch_has_found(l->look)) return false;
    return now() - since > patience(l) + 2; /* a scheduler that is not found is told by then */
}

/* The seats of a host that was lost, or the ones that were asked for, or further ones. */
static void sit(wefti_launch *l, const wefti_span *seats, int32_t size) {
    wefti_launch_place *p = &l->place;
    p->first_rank = seats->first;
    p->count = seats->count;
    p->size = size;
    for (int h = 0; h < p->hosts; h++)
        if (p->host_begin[h] == seats->first) p->host = h;
    char text[256];
    (void)snprintf(text, sizeof text, "this spare host takes the place of host %d: ranks %d to %d",
                   p->host, seats->first, seats->first + seats->count - 1);
    if (l->options->spare) note(l, text);
}

weft_status wefti_launch_await_seats(wefti_launch *l) {
    enum { TURN_MILLISECONDS = 20, TURNS_IN_SILENCE = 150 };
    const weft_launch_options *o = l->options;
    const double since = now();
    wefti_span seats;
    int32_t size;
    weft_status status = WEFT_PENDING;
    bool found = false; /* a spare one says so: from then on it is counted on */
    if (!wefti_launch_keeps(l)) return WEFT_OK;
    WEFT_REQUIRE(l->look, WEFT_E_NOMEM, "no way to ask the scheduler for ranks");
    for (int turn = 0; (status = wefti_watch_seats(l->look, &seats, &size)) == WEFT_PENDING;
         turn++) {
        const bool finds = o->spare && !found && wefti_watch_has_found(l->look);
        if (finds || (turn == TURNS_IN_SILENCE && !found)) say_that_it_waits(l);
        found |= finds;
        wefti_reaper_check(l->reaper);
        if (o->stop_count && *o->stop_count > 0) {
            l->stopped_by = o->stop_signal && *o->stop_signal ? *o->stop_signal : SIGTERM;
            return WEFT_E_STOPPED;
        }
        const bool late = is_late(l, since);
        WEFT_REQUIRE(!late || !o->add, WEFT_E_TIMEOUT,
                     "the job at %s has taken no processes within %.4g s", l->scheduler_text,
                     patience(l));
        WEFT_REQUIRE(!late, WEFT_E_TIMEOUT,
                     "the seats of host %d have not been free within %.4g s: the launcher that has "
                     "them is there, or its processes are",
                     l->place.host, patience(l));
        (void)poll(NULL, 0, TURN_MILLISECONDS);
    }
    if (status >= 0) sit(l, &seats, size);
    l->over = status == WEFT_E_STOPPED && wefti_watch_is_over(l->look, &l->end);
    return status;
}

bool wefti_launch_keeps(const wefti_launch *l) {
    return !l->scheduler && (l->set.restarts > 0 || l->options->add);
}

int wefti_launch_deaths(const wefti_launch *l, int local) {
    const int rank = l->place.first_rank + local;
    if (l->scheduler) return wefti_scheduler_deaths(l->scheduler, rank);
    return l->look ? wefti_watch_deaths(l->look, rank) : 0;
}

static wefti_again ask(wefti_launch *l, int local) {
    wefti_process *p = &l->processes[local];
    wefti_end end;
    wefti_launch_end(l, local, &end);
    if (l->scheduler) return wefti_scheduler_awaits(l->scheduler, &end, p->starts);
    wefti_again answer = wefti_watch_again(l->look, &end, p->starts);
    if (answer == WEFTI_AGAIN_PENDING && now() - p->asked_at > patience(l)) {
        note(l, "the scheduler has not said whether the job goes on after the loss of a rank: its "
                "host, or the network between it and this one, is down");
        return WEFTI_AGAIN_ELSEWHERE;
    }
    if (answer == WEFTI_AGAIN_ELSEWHERE)
        note(l, "another launcher fills the seats of this host now");
    return answer;
}

wefti_again wefti_launch_again(wefti_launch *l, int local) {
    wefti_process *p = &l->processes[local];
    const bool loses = !l->scheduler && l->look && wefti_watch_may_ask(l->look);
    const bool asks = l->set.restarts > 0 || wefti_launch_keeps(l) || loses;
    if (!asks || !(p->code || p->signal)) return WEFTI_AGAIN_NO;
    if (!p->undecided) p->asked_at = now();
    wefti_again answer = ask(l, local);
    p->undecided = answer == WEFTI_AGAIN_PENDING;
    p->given_up = answer == WEFTI_AGAIN_ELSEWHERE;
    return answer;
}
