/* Schedulers for a job that knows two of them: the one that stands by in the launcher of its host,
 * and schedulers that are processes of their own. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "launch/spawn/launch.h"

wefti_scheduler_site wefti_launch_site(const wefti_launch_place *p, const wefti_settings *set) {
    return (wefti_scheduler_site){.size = p->size,
                                  .host = p->by_interface ? "" : p->address,
                                  .interface = p->by_interface ? p->address : "",
                                  .port = p->port,
                                  .job = set->job,
                                  .hosted_by = -1};
}

bool wefti_launch_runs_at(const char *address, const wefti_settings *set,
                          const wefti_secret *secret) {
    wefti_member_options options = {
        .interface = set->interface, .secret = *secret, .tls = set->tls, .rank = -1, .size = -1};
    const bool runs = wefti_member_runs_at(&options, address);
    explicit_bzero(&options.secret, sizeof options.secret);
    return runs;
}

/* --- in a launcher --- */

/* Runs it; the copy of the secret is gone then. */
static weft_status start_with(wefti_scheduler_options *o, const wefti_secret *secret,
                              wefti_scheduler **out) {
    o->secret = *secret;
    o->repeats = o->fills_no_seats = true;
    weft_status status = wefti_scheduler_start(o, out);
    explicit_bzero(&o->secret, sizeof o->secret);
    return status;
}

/* A scheduler of this job at `address`, which stands by. WEFT_E_NOT_FOUND: that is no address of
 * this host. */
static weft_status start_at(const char *address, const wefti_launch_place *p,
                            const wefti_settings *set, const wefti_secret *secret,
                            wefti_scheduler **out) {
    char host[WEFTI_HOST_TEXT];
    int port;
    WEFT_TRY(wefti_address_parse("the standby scheduler's address", address, host, &port));
    wefti_scheduler_site site = wefti_launch_site(p, set);
    site.host = host;
    site.interface = "";
    site.port = port;
    wefti_scheduler_options o = wefti_scheduler_options_of(set, &site);
    o.awaits_name = false;
    o.has_other = o.stands_by = true;
    return start_with(&o, secret, out);
}

/* On the host of several launchers, the first one runs it; or a process of its own does. */
static void tell_that_it_runs(const wefti_launch *l) {
    const weft_launch_events *e = &l->options->events;
    char text[1024];
    (void)snprintf(text, sizeof text, "this launcher runs no standby scheduler: %s",
                   weft_error_message());
    if (e->note) e->note(e->context, text);
}

weft_status wefti_launch_stand_by(wefti_launch *l, const wefti_secret *secret) {
    const char *address = l->set.standby;
    wefti_address found;
    if (!*address || l->options->add) return WEFT_OK;
    if (wefti_address_find(address, &found) < 0)
        return wefti_prefix(WEFT_E_ARG, "the standby scheduler's address is %.200s", address);
    if (l->scheduler || l->options->scheduler_elsewhere) return WEFT_OK;
    /* Another one has the job: this host's own address is that of the one that stands by. */
    if (l->place.host == 0 && !l->options->spare) address = l->place.scheduler;
    weft_status status = start_at(address, &l->place, &l->set, secret, &l->standby);
    if (status == WEFT_E_IO) tell_that_it_runs(l);
    return status == WEFT_E_NOT_FOUND || status == WEFT_E_IO ? WEFT_OK : status;
}

/* --- alone --- */

typedef struct alone {
    const weft_launch_options *options;
    wefti_scheduler *scheduler;
    wefti_watch *first; /* of the scheduler that has the job; NULL: this one has it */
    bool told;          /* that a standby has taken over */
    double patience;    /* for ranks of a scheduler that was deposed */
    double alone_since; /* it was, and no rank is here; 0: one is */
    double idle_since;  /* no launcher is there, and the job is over; 0: it is not */
} alone;

static double now(void) {
    return (double)wefti_now_ns() * 1e-9;
}

/* A job that has failed is over for launchers that come late, too: they are told. */
static bool everybody_knows(wefti_scheduler *s, int32_t size) {
    if (wefti_scheduler_seconds_to_come(s) <= 0) return true;
    for (int32_t r = 0; r < size; r++)
        if (!wefti_scheduler_has_told(s, r, 1)) return false;
    return true;
}

/* The job is over, and its launchers have gone, or do not go. */
static bool is_over(alone *a, int32_t size) {
    enum { QUIET_SECONDS = 2 };
    const wefti_scheduler_state state =
        wefti_scheduler_wait(a->scheduler, WEFTI_SCHEDULER_RUNNING, 0);
    const bool done = state == WEFTI_SCHEDULER_LEFT || state == WEFTI_SCHEDULER_FAILED;
    if (wefti_scheduler_is_deposed(a->scheduler)) return true;
    if (!done || wefti_scheduler_has_launcher(a->scheduler) ||
        !everybody_knows(a->scheduler, size)) {
        a->idle_since = 0;
        return false;
    }
    if (a->idle_since <= 0) a->idle_since = now();
    return now() - a->idle_since > QUIET_SECONDS;
}

static void tell_takeover(alone *a) {
    const weft_launch_events *e = &a->options->events;
    a->told = true;
    if (e->note) e->note(e->context, "the other scheduler is lost, and this one has the job now");
}

/* The ranks that the first scheduler has lost come here soon, if they live. */
static weft_status await_ranks(alone *a) {
    const weft_status why = wefti_watch_deposed(a->first);
    if (why >= 0) return wefti_watch_has_parted(a->first) ? WEFT_OK : WEFT_PENDING;
    if (a->alone_since <= 0) a->alone_since = now();
    if (now() - a->alone_since < a->patience) return WEFT_PENDING;
    return wefti_prefix(why, "no rank has come to the standby scheduler");
}

/* WEFT_PENDING: it goes on. */
static weft_status look(alone *a, int32_t size) {
    const weft_launch_options *o = a->options;
    WEFT_REQUIRE(!o->stop_count || *o->stop_count == 0, WEFT_E_STOPPED, "stopped by signal %d",
                 o->stop_signal ? *o->stop_signal : 0);
    if (a->first && wefti_scheduler_is_idle(a->scheduler)) {
        WEFT_TRY(wefti_watch_check(a->first));
        return await_ranks(a);
    }
    a->alone_since = 0;
    if (a->first && !a->told && wefti_scheduler_has_world(a->scheduler)) tell_takeover(a);
    if (!is_over(a, size)) return WEFT_PENDING;
    return wefti_scheduler_check(a->scheduler);
}

static weft_status serve(alone *a, int32_t size, char **out_table) {
    enum { TURN_MILLISECONDS = 50 };
    weft_status status;
    while ((status = look(a, size)) == WEFT_PENDING) (void)poll(NULL, 0, TURN_MILLISECONDS);
    if (out_table) *out_table = wefti_scheduler_table(a->scheduler);
    return status;
}

/* Learns from the scheduler at `address` when the job has ended. Such a watch has no ranks. */
static weft_status watch_first(alone *a, const char *address, const wefti_launch_place *p,
                               const wefti_settings *set, const wefti_secret *secret) {
    const wefti_span none = {p->size < WEFTI_RANKS_MAX ? p->size : WEFTI_RANKS_MAX - 1, 1};
    wefti_member_options options = {.scheduler = address,
                                    .job = set->job,
                                    .interface = set->interface,
                                    .secret = *secret,
                                    .tls = set->tls,
                                    .rank = -1,
                                    .size = p->size,
                                    .join_seconds = set->join_seconds,
                                    .outlives = true};
    weft_status status = wefti_watch_begin(&options, &none, &a->first);
    explicit_bzero(&options.secret, sizeof options.secret);
    return status;
}

static weft_status start_first(alone *a, const wefti_launch_place *p, const wefti_settings *set,
                               const wefti_secret *secret) {
    const wefti_scheduler_site site = wefti_launch_site(p, set);
    wefti_scheduler_options o = wefti_scheduler_options_of(set, &site);
    o.has_other = *set->standby != '\0';
    return start_with(&o, secret, &a->scheduler);
}

static weft_status start(alone *a, bool stands_by, const wefti_launch_place *p,
                         const wefti_settings *set, const wefti_secret *secret) {
    const char *own = stands_by ? set->standby : p->scheduler;
    const char *other = stands_by ? p->scheduler : set->standby;
    if (!stands_by && *other) stands_by = wefti_launch_runs_at(other, set, secret);
    if (!stands_by) return start_first(a, p, set, secret);
    WEFT_TRY(start_at(own, p, set, secret, &a->scheduler));
    a->patience = 2e-9 * (double)wefti_ns_of_seconds(set->heartbeat_seconds, 10) + 10;
    return watch_first(a, other, p, set, secret);
}

static weft_status schedule(alone *a, weft_launch_role role, wefti_launch_place *p,
                            void (*announce)(void *context, const char *address), void *context,
                            char **out_table) {
    const weft_launch_options *o = a->options;
    const bool stands_by = role == WEFT_LAUNCH_STANDBY;
    wefti_settings set;
    wefti_secret secret;
    WEFT_TRY(wefti_settings_find(&set));
    const wefti_override by = {.interface = o->interface,
                               .tls = o->tls,
                               .restarts = o->restarts,
                               .restart_window_seconds = o->restart_window_seconds,
                               .join_seconds = o->join_seconds,
                               .heartbeat_seconds = o->heartbeat_seconds,
                               .wait_seconds = o->wait_seconds};
    WEFT_TRY(wefti_settings_override(&set, &by));
    WEFT_TRY(wefti_launch_place_find(o, p));
    WEFT_REQUIRE(*p->scheduler, WEFT_E_ARG, "the scheduler's address is needed, 10.0.0.1:9000");
    WEFT_REQUIRE(!stands_by || o->standby, WEFT_E_ARG,
                 "the standby scheduler's address is needed, 10.0.0.2:9000");
    (void)snprintf(set.standby, sizeof set.standby, "%s", o->standby ? o->standby : "");
    WEFT_TRY(wefti_secret_find(o->secret_file ? o->secret_file : set.secret_file, set.home, &secret,
                               NULL));
    weft_status status = start(a, stands_by, p, &set, &secret);
    explicit_bzero(&secret, sizeof secret);
    WEFT_TRY(status);
    if (announce) announce(context, wefti_scheduler_address(a->scheduler));
    return serve(a, p->size, out_table);
}

weft_status weft_launch_schedule(const weft_launch_options *options, weft_launch_role role,
                                 void (*announce)(void *context, const char *address),
                                 void *context, char **out_table) {
    weft_launch_options own = weft_launch_defaults();
    alone a = {.options = &own};
    wefti_launch_place place = {0};
    wefti_failure why;
    if (out_table) *out_table = NULL;
    WEFT_TRY(wefti_struct_take("weft_launch_options", options, &own));
    weft_status status = schedule(&a, role, &place, announce, context, out_table);
    wefti_failure_keep(status, &why);
    if (a.first) wefti_watch_end(a.first);
    wefti_scheduler_stop(a.scheduler);
    wefti_free(place.host_begin);
    return status < 0 ? wefti_failure_tell(&why) : status;
}
