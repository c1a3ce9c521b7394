/* What a launcher tells the scheduler of processes that have ended. One that ends before all ranks
 * have come, with whatever exit code, was never a member whose connection could tell: without a
 * word the others would wait until the time for joining is up. On a host without the scheduler a
 * member that never joins carries that word; it does so beside all else, and the first end is
 * enough.
 *
 * Hosts start when they can. A job that has failed before some of them came would be gone when they
 * do, and their ranks would call for it until the time for joining is up. So a launcher whose job
 * failed stays that long for those who were not told: the scheduler's for other hosts, others for
 * the scheduler, if it never answered. */
#include <poll.h>
#include <stdio.h>

#include "launch/launch_parts.h"

void wefti_launch_end_text(const wefti_launch *l, int local, char out[WEFTI_END_TEXT]) {
    const wefti_process *p = &l->processes[local];
    (void)snprintf(out, WEFTI_END_TEXT, "rank %d (process %d) %s %d", l->place.first_rank + local,
                   (int)p->process, p->signal ? "was ended by signal" : "ended with exit code",
                   p->signal ? p->signal : p->code);
}

/* As one who is no member of its own. The secret in it is to be wiped. */
static weft_status caller(const wefti_launch *l, int rank, wefti_member_options *out) {
    const weft_launch_options *o = l->options;
    *out = (wefti_member_options){
        .scheduler = l->scheduler_text,
        .interface = o->interface ? o->interface : l->set.interface,
        .rank = rank,
        .size = l->place.size,
        .tls = l->set.tls,
        .join_seconds = o->join_seconds > 0 ? o->join_seconds : l->set.join_seconds,
    };
    return wefti_secret_read(l->secret, &out->secret);
}

static weft_status send_word(wefti_launch *l, int local, const char *text) {
    wefti_member_options options;
    WEFT_TRY(caller(l, l->place.first_rank + local, &options));
    weft_status status = wefti_member_report(&options, text, &l->report);
    explicit_bzero(&options.secret, sizeof options.secret);
    return status;
}

void wefti_launch_look(wefti_launch *l) {
    wefti_member_options options;
    if (l->scheduler || caller(l, -1, &options) < 0) return;
    if (wefti_member_look(&options, &l->look) < 0) l->look = NULL; /* then nobody is waited for */
    explicit_bzero(&options.secret, sizeof options.secret);
}

void wefti_launch_report(wefti_launch *l, int local) {
    char text[WEFTI_END_TEXT];
    if (l->report) return;
    wefti_launch_end_text(l, local, text);
    if (l->scheduler)
        wefti_scheduler_ended(l->scheduler, l->place.first_rank + local, text);
    else if (send_word(l, local, text) < 0)
        l->report = NULL; /* then the time for joining ends it */
}

/* The first host that may come, and was not told; -1: none. */
static int late_host(const wefti_launch *l) {
    const int *begin = l->place.host_begin;
    if (wefti_scheduler_seconds_to_come(l->scheduler) <= 0) return -1;
    for (int h = 1; h < l->place.hosts; h++)
        if (!wefti_scheduler_has_told(l->scheduler, begin[h], begin[h + 1] - begin[h])) return h;
    return -1;
}

static bool somebody_is_late(const wefti_launch *l) {
    if (l->scheduler) return late_host(l) >= 0;
    return l->look && l->report && wefti_member_is_under_way(l->look) &&
           wefti_member_is_under_way(l->report);
}

static void say_who_is_late(const wefti_launch *l) {
    const weft_launch_events *e = &l->options->events;
    char end[WEFTI_END_TEXT], text[2 * WEFTI_END_TEXT], who[64] = "the scheduler";
    if (!e->note) return;
    wefti_launch_end_text(l, l->failed, end);
    if (l->scheduler) (void)snprintf(who, sizeof who, "host %d", late_host(l));
    (void)snprintf(text, sizeof text,
                   "%s; %s has not come yet and is waited for, as long as it may take to join, to "
                   "be told (ctrl-C ends that)",
                   end, who);
    e->note(e->context, text);
}

void wefti_launch_wait_for_late(wefti_launch *l) {
    enum { TURN_MILLISECONDS = 50, TURNS_IN_SILENCE = 20 };
    const volatile int *requests = l->options->stop_count;
    const int before = requests ? *requests : 0;
    if (l->failed < 0 || l->stopped_by || l->place.hosts < 2) return;
    for (int turn = 0; somebody_is_late(l) && (!requests || *requests == before); turn++) {
        if (turn == TURNS_IN_SILENCE) say_who_is_late(l);
        (void)poll(NULL, 0, TURN_MILLISECONDS);
    }
}

/* After a good end the scheduler may be gone already, and nobody misses the word. */
void wefti_launch_report_end(wefti_launch *l) {
    bool good = l->failed < 0 && !l->stopped_by;
    if (l->report) wefti_member_report_end(l->report, good ? 1 : 3, good);
    l->report = NULL;
    if (l->look) wefti_member_report_end(l->look, 1e-9, true);
    l->look = NULL;
}
