/* How a launcher reports ended processes to the scheduler.
 *
 * A process that ends before all ranks have joined may never have been a member, so its connection
 * cannot tell. Without a report the others would wait until the join time is up. On a host without
 * the scheduler, a connection that never joins carries the report. It does so beside all other
 * work, and the first end is enough.
 *
 * Hosts start at different times. A job that fails early would be gone when late hosts start, and
 * their ranks would call for it until the join time is up. So a launcher whose job failed stays
 * that long: the scheduler's launcher for other hosts, other launchers for a scheduler that never
 * answered. */
#include <poll.h>
#include <stdio.h>

#include "launch/spawn/launch.h"

void wefti_launch_end(const wefti_launch *l, int local, wefti_end *out) {
    const wefti_process *p = &l->processes[local];
    out->rank = l->place.first_rank + local;
    out->code = p->signal ? 0 : p->code;
    out->signal = p->signal;
    (void)snprintf(out->text, sizeof out->text, "rank %d (process %d) %s %d", (int)out->rank,
                   (int)p->process, p->signal ? "was ended by signal" : "ended with exit code",
                   p->signal ? p->signal : p->code);
}

/* Options of a connection that joins as no member. The caller must wipe the secret in it. */
static weft_status caller(const wefti_launch *l, int rank, wefti_member_options *out) {
    *out = (wefti_member_options){
        .scheduler = l->scheduler_text,
        .standby = l->set.standby,
        .job = l->set.job,
        .outlives = l->options->scheduler_elsewhere || l->options->add,
        .interface = l->set.interface,
        .rank = rank,
        .launcher = l->number,
        .ranks = {l->place.first_rank, l->place.count},
        .size = l->place.size,
        .tls = l->set.tls,
        .join_seconds = l->set.join_seconds,
        .heartbeat_seconds = l->set.heartbeat_seconds,
    };
    return wefti_secret_read(l->secret, &out->secret);
}

static weft_status send_word(const wefti_launch *l, const wefti_end *end, wefti_report **out) {
    wefti_member_options options;
    WEFT_TRY(caller(l, end->rank, &options));
    weft_status status = wefti_report_begin(&options, end, out);
    explicit_bzero(&options.secret, sizeof options.secret);
    return status;
}

void wefti_launch_look(wefti_launch *l) {
    wefti_member_options options;
    wefti_span ranks = {l->place.first_rank, l->place.count};
    const int first = l->options->add     ? WEFTI_SEATS_ADDED
                      : l->options->spare ? WEFTI_SEATS_OF_LOST
                                          : ranks.first;
    const wefti_keep keep = {.seats = {first, ranks.count}, .launcher = l->number};
    if (l->scheduler || caller(l, -1, &options) < 0) return;
    if ((wefti_launch_keeps(l) ? wefti_watch_begin_keeping(&options, &keep, &l->look)
                               : wefti_watch_begin(&options, &ranks, &l->look)) < 0)
        l->look = NULL; /* then nobody waits */
    explicit_bzero(&options.secret, sizeof options.secret);
}

weft_status wefti_launch_check_claim(const wefti_launch *l, double seconds) {
    if (l->scheduler || !l->look || wefti_launch_keeps(l)) return WEFT_OK;
    const weft_status status = wefti_watch_registered(l->look, seconds);
    return status == WEFT_PENDING ? WEFT_OK : status;
}

/* The first end is told while others may be missing, and the first that failed in any case. */
void wefti_launch_report(wefti_launch *l, int local) {
    wefti_end end;
    wefti_launch_end(l, local, &end);
    if (l->scheduler) {
        wefti_scheduler_ended(l->scheduler, &end);
        return;
    }
    wefti_report **word = &l->report[l->processes[local].failed];
    if (*word || l->report[1]) return;
    if (send_word(l, &end, word) < 0) *word = NULL; /* then the time for joining ends it */
}

bool wefti_launch_is_over(const wefti_launch *l, wefti_end *out) {
    bool over = l->scheduler ? wefti_scheduler_is_over(l->scheduler, out)
                             : l->look && wefti_watch_is_over(l->look, out);
    int32_t local = over ? out->rank - l->place.first_rank : 0;
    return over && (local < 0 || local >= l->place.count);
}

/* The first host that may come, and was not told; -1: none. */
static int late_host(const wefti_launch *l) {
    const int *begin = l->place.host_begin;
    if (wefti_scheduler_seconds_to_come(l->scheduler) <= 0) return -1;
    for (int h = 1; h < l->place.hosts; h++)
        if (!wefti_scheduler_has_told(l->scheduler, begin[h], begin[h + 1] - begin[h])) return h;
    return -1;
}

static bool is_watched(const wefti_launch *l, int host) {
    const int *begin = l->place.host_begin;
    return wefti_scheduler_is_watched(l->scheduler, begin[host], begin[host + 1] - begin[host]);
}

static bool is_unlike(const wefti_launch *l) {
    return l->scheduler && wefti_scheduler_is_unlike(l->scheduler);
}

/* Whether a rank of another host has heard of the end before its launcher has called. That launcher
 * would find the scheduler gone, and would call until the time for joining is up. After unlike
 * calls its ranks may have ended well, and it would take that for the end of the job. */
static bool launcher_is_missing(const wefti_launch *l) {
    const int *begin = l->place.host_begin;
    const bool unlike = is_unlike(l);
    if (!l->scheduler || (!unlike && wefti_scheduler_seconds_to_come(l->scheduler) <= 0))
        return false;
    for (int h = 1; h < l->place.hosts; h++) {
        const int first = begin[h], count = begin[h + 1] - begin[h];
        if ((unlike || wefti_scheduler_has_told(l->scheduler, first, count)) &&
            !wefti_scheduler_was_watched(l->scheduler, first, count))
            return true;
    }
    return false;
}

static bool somebody_is_late(const wefti_launch *l) {
    if (l->scheduler) return late_host(l) >= 0;
    return l->look && l->report[1] && wefti_watch_is_seeking(l->look) &&
           wefti_report_is_under_way(l->report[1]);
}

/* One that is there ends its processes now. */
static void say_who_is_late(const wefti_launch *l) {
    const weft_launch_events *e = &l->options->events;
    int host = l->scheduler ? late_host(l) : -1;
    wefti_end end = l->end;
    char text[1024], who[WEFTI_HOST_TEXT + 64];
    if (!e->note || (host >= 0 && is_watched(l, host))) return;
    if (l->failed >= 0) wefti_launch_end(l, l->failed, &end);
    (void)snprintf(who, sizeof who, "the scheduler at %.200s", l->scheduler_text);
    if (host >= 0) (void)snprintf(who, sizeof who, "host %d", host);
    (void)snprintf(text, sizeof text,
                   "%.200s; %s has not come yet and is waited for, as long as it may take to join, "
                   "to be told (ctrl-C ends that)",
                   end.text, who);
    e->note(e->context, text);
}

void wefti_launch_wait_for_late(wefti_launch *l) {
    enum { TURN_MILLISECONDS = 50, TURNS_IN_SILENCE = 20, TURNS_FOR_LAUNCHERS = 100 };
    const volatile int *requests = l->options->stop_count; /* also those that came before */
    const bool failed = l->failed >= 0 || l->over || is_unlike(l);
    if (!failed || l->stopped_by || l->place.hosts < 2) return;
    int further = 0; /* turns for launchers; ranks may have been started by something else */
    for (int turn = 0; !requests || *requests == 0; turn++) {
        wefti_reaper_check(l->reaper);
        bool late = somebody_is_late(l);
        if (!late && (!launcher_is_missing(l) || further++ == TURNS_FOR_LAUNCHERS)) break;
        if (late && turn == TURNS_IN_SILENCE) say_who_is_late(l);
        (void)poll(NULL, 0, TURN_MILLISECONDS);
    }
}

/* After a good end the scheduler may be gone already, and nobody misses the word. All may have
 * ended well, and still have left after unlike calls: that is the scheduler's to say. */
void wefti_launch_report_end(wefti_launch *l) {
    enum { ANSWER_SECONDS = 5 };
    bool good = l->failed < 0 && !l->stopped_by;
    if (good && !l->over && l->processes && l->look && wefti_watch_finds(l->look, ANSWER_SECONDS))
        l->unlike = wefti_watch_is_unlike(l->look, ANSWER_SECONDS, &l->reason);
    for (int i = 0; i < 2; i++) {
        if (l->report[i]) wefti_report_end(l->report[i], good ? 1 : 3, good);
        l->report[i] = NULL;
    }
    if (l->look) wefti_watch_end(l->look);
    l->look = NULL;
}
