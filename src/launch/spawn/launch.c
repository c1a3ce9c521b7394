/* weft_launch_run: starts the parts of a launch in an order in which each can still be undone. The
 * reaper starts first, so that it inherits no descriptor that is opened later. The processes start
 * last. */
#include "weft/launch.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/secret/secret.h"
#include "base/thread.h"
#include "launch/spawn/launch.h"

enum { LAST_LINES = 12, CLAIM_SECONDS = 1 };

/* --- the run's secret, its mark --- */

static weft_status make_mark(wefti_launch *l) {
    WEFT_TRY(wefti_random_bytes(&l->number, sizeof l->number));
    l->number |= 1; /* not 0 */
    (void)snprintf(l->mark, sizeof l->mark, "WEFT_RUN=%016llx", (unsigned long long)l->number);
    return WEFT_OK;
}

/* Ranks must find the file from any folder. Its links stay: those of a mounted volume lead
 * elsewhere once the secret is renewed. */
static weft_status name_given(wefti_launch *l, const char *given) {
    char here[PATH_MAX];
    const bool stays = *given == '/' || wefti_private_variable(given) || !getcwd(here, sizeof here);
    l->secret = stays ? wefti_strdup(given) : wefti_format("%s/%s", here, given);
    WEFT_REQUIRE(l->secret, WEFT_E_NOMEM, "no memory for a path");
    return WEFT_OK;
}

/* One host has a secret of its own for the run. */
static weft_status name_secret(wefti_launch *l) {
    const char *given = l->options->secret_file;
    if (l->secret || l->options->add) return WEFT_OK; /* of the job, or the user's */
    l->own_secret = !given && l->place.hosts == 1 && !l->options->scheduler_elsewhere;
    if (given) return name_given(l, given);
    if (!l->own_secret) return WEFT_OK; /* the user's, see below */
    l->secret = wefti_format("%s/secret", l->folder);
    WEFT_REQUIRE(l->secret, WEFT_E_NOMEM, "no memory for a path");
    return WEFT_OK;
}

static weft_status read_secret(wefti_launch *l, wefti_secret *out) {
    if (!l->secret) return wefti_secret_find(l->set.secret_file, l->set.home, out, &l->secret);
    if (l->own_secret) WEFT_TRY(wefti_secret_create(l->secret));
    return wefti_secret_read(l->secret, out);
}

/* A request to stop is heard here, as nothing else hears it before there are processes. */
static bool waits_for_name(void *context, int turn, const char *why) {
    enum { TURNS_IN_SILENCE = 3 };
    const weft_launch_options *o = ((const wefti_launch *)context)->options;
    char text[512];
    if (turn == TURNS_IN_SILENCE && o->events.note) {
        (void)snprintf(text, sizeof text,
                       "%.350s; it is asked for again and again, as long as it may take to join "
                       "(ctrl-C ends that)",
                       why);
        o->events.note(o->events.context, text);
    }
    return !o->stop_count || *o->stop_count == 0;
}

/* A launcher that comes back, after its job has gone to the standby scheduler, stands by itself. */
static weft_status start_scheduler(wefti_launch *l, const wefti_secret *secret) {
    const weft_launch_options *o = l->options;
    wefti_launch_place *p = &l->place;
    const char *address = p->scheduler;
    if (p->serves && *l->set.standby)
        p->serves = !wefti_launch_runs_at(l->set.standby, &l->set, secret);
    if (p->serves) {
        const wefti_scheduler_site site = wefti_launch_site(p, &l->set);
        wefti_scheduler_options options = wefti_scheduler_options_of(&l->set, &site);
        options.secret = *secret;
        options.has_other = *l->set.standby != '\0';
        options.own = (wefti_span){p->first_rank, p->count};
        options.launcher = l->number;
        options.repeats = true;
        options.waits = waits_for_name;
        options.context = l;
        weft_status status = wefti_scheduler_start(&options, &l->scheduler);
        if (status == WEFT_E_STOPPED) {
            l->stopped_by = o->stop_signal && *o->stop_signal ? *o->stop_signal : SIGTERM;
            WEFT_FAIL(WEFT_E_STOPPED, "stopped by signal %d", l->stopped_by);
        }
        WEFT_TRY(status);
        if (!*address) address = wefti_scheduler_address(l->scheduler);
    }
    (void)snprintf(l->scheduler_text, sizeof l->scheduler_text, "%s", address);
    return wefti_launch_stand_by(l, secret);
}

/* --- processes --- */

/* Told before any process is started, not when thousands are. */
static weft_status require_files(const wefti_launch *l) {
    enum { EACH = 4 /* two pipes, a log, a handle */, BESIDES = 16 };
    struct rlimit limit;
    long long members = l->scheduler ? l->place.size + l->place.hosts - 1 : 0;
    long long wanted = (long long)l->place.count * EACH + members + BESIDES;
    WEFT_REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
                     (long long)limit.rlim_cur >= wanted,
                 WEFT_E_ARG,
                 "%d processes on this host need some %lld open files, and no more than %llu are "
                 "allowed (ulimit -n)",
                 l->place.count, wanted, (unsigned long long)limit.rlim_cur);
    return WEFT_OK;
}

static weft_status start_process(wefti_launch *l, int local) {
    const weft_launch_options *o = l->options;
    wefti_process *p = &l->processes[local];
    cpu_set_t cores;
    char **environment;
    WEFT_TRY(wefti_launch_settings(l, local, &environment));
    if (p->log)
        WEFT_TRY(wefti_log_reopen(p->log));
    else
        WEFT_TRY(wefti_log_open(l->place.first_rank + local, o->log_dir, &o->events, &p->log));
    wefti_cores_piece(local, l->place.count, &cores);
    wefti_spawn what = {
        .path = l->program,
        .words = (char *const *)(uintptr_t)o->command, /* exec does not write to them */
        .environment = environment,
        .output = wefti_log_end(p->log, WEFT_LAUNCH_OUTPUT),
        .errors = wefti_log_end(p->log, WEFT_LAUNCH_ERRORS),
        .cores = o->bind_cores && CPU_COUNT(&cores) ? &cores : NULL,
    };
    WEFT_TRY(wefti_process_start(&what, &p->process));
    wefti_reaper_add_group(l->reaper, p->process);
    wefti_log_started(p->log);
    p->starts++;
    wefti_restart_started(&p->row, wefti_now_ns());
#ifdef SYS_pidfd_open
    p->handle = (int)syscall(SYS_pidfd_open, p->process, 0);
#endif
    return WEFT_OK;
}

/* The old process stays a zombie, as at the end of a job: its number is not used again. */
weft_status wefti_launch_restart(wefti_launch *l, int local) {
    wefti_process *p = &l->processes[local], old = *p;
    WEFT_TRY(WEFT_GROW(l->past, l->past_count, l->past_room));
    (void)kill(-p->process, SIGKILL); /* what it has started */
    l->past[l->past_count++] = p->process;
    *p = (wefti_process){.handle = -1, .starts = old.starts, .row = old.row, .log = old.log};
    weft_status status = start_process(l, local);
    if (status < 0) {
        *p = old;
        l->past_count--;
    }
    return status;
}

static weft_status start_processes(wefti_launch *l) {
    WEFT_TRY(require_files(l));
    WEFT_NEW_ARRAY(l->processes, wefti_process, l->place.count);
    for (int i = 0; i < l->place.count; i++)
        l->processes[i] = (wefti_process){.handle = -1, .starts = wefti_launch_deaths(l, i)};
    for (int i = 0; i < l->place.count; i++) WEFT_TRY(start_process(l, i));
    const weft_launch_events *e = &l->options->events;
    if (e->start)
        e->start(e->context, l->place.first_rank, l->place.count, l->place.size, l->scheduler_text,
                 l->options->log_dir ? l->options->log_dir : "");
    return WEFT_OK;
}

/* --- the result --- */

static char *or_empty(char *text) {
    return text ? text : wefti_strdup("");
}

static void tell_failure(const wefti_launch *l, weft_launch_result *out) {
    const wefti_process *p = &l->processes[l->failed];
    out->failed_rank = l->place.first_rank + l->failed;
    out->exit_code = p->code;
    out->signal = p->signal;
    out->log = wefti_strdup(wefti_log_path(p->log));
    out->last_lines = wefti_log_last(p->log, LAST_LINES);
}

/* Of processes that never came to the scheduler it knows nothing but what it was told. */
static void tell_scheduler_view(const wefti_launch *l, weft_launch_result *out) {
    out->table = wefti_scheduler_table(l->scheduler);
    if (out->table && *out->table) out->abort_reason = wefti_scheduler_abort_reason(l->scheduler);
}

static void tell_failure_elsewhere(const wefti_launch *l, weft_launch_result *out) {
    out->failed_rank = l->end.rank;
    if (l->end.rank < 0) return; /* the schedulers are gone */
    out->exit_code = l->end.code;
    out->signal = l->end.signal;
}

static weft_status result_of(const wefti_launch *l, weft_launch_result *out) {
    bool here = l->failed >= 0, failed = here || l->over;
    const char *where = here ? "" : ", on another host";
    if (failed) (here ? tell_failure : tell_failure_elsewhere)(l, out);
    bool unlike = l->scheduler ? wefti_scheduler_is_unlike(l->scheduler) : l->unlike;
    if (l->scheduler && (failed || unlike || l->stopped_by)) tell_scheduler_view(l, out);
    if (l->unlike) out->abort_reason = wefti_strdup(l->reason.text);
    if (l->stopped_by && here)
        WEFT_FAIL(WEFT_E_STOPPED,
                  "rank %d ended with exit code %d: a rank was asked to stop by signal %d (%s)",
                  out->failed_rank, out->exit_code, l->stopped_by, strsignal(l->stopped_by));
    if (l->stopped_by) WEFT_FAIL(WEFT_E_STOPPED, "stopped by signal %d", l->stopped_by);
    WEFT_REQUIRE(failed || !unlike, WEFT_E_PEER, "ranks have not made the same calls");
    WEFT_REQUIRE(!unlike || out->signal, WEFT_E_PEER,
                 "ranks have not made the same calls; the first to end is rank %d, with exit code "
                 "%d%s",
                 out->failed_rank, out->exit_code, where);
    WEFT_REQUIRE(failed || l->scheduler || l->parted < l->place.count, WEFT_E_LOST,
                 "all %d processes %s are lost; the job goes on without them", l->place.count,
                 l->options->add ? "that were added" : "of this host");
    if (!failed) return WEFT_OK;
    WEFT_REQUIRE(here || l->end.rank >= 0, WEFT_E_LOST, "%s", l->end.text);
    if (out->signal)
        WEFT_FAIL(WEFT_E_PEER, "rank %d was ended by signal %d (%s)%s", out->failed_rank,
                  out->signal, strsignal(out->signal), where);
    WEFT_FAIL(WEFT_E_PEER, "rank %d ended with exit code %d%s", out->failed_rank, out->exit_code,
              where);
}

/* --- all of it --- */

static weft_status run_in_folder(wefti_launch *l, weft_launch_result *out) {
    wefti_secret secret;
    weft_status status;
    WEFT_TRY(name_secret(l));
    WEFT_TRY(wefti_reaper_start(l->mark, l->folder, l->own_secret ? l->secret : "", &l->reaper));
    WEFT_TRY(read_secret(l, &secret));
    status = start_scheduler(l, &secret);
    if (status >= 0) wefti_launch_look(l);
    if (status >= 0) status = wefti_launch_check_claim(l, CLAIM_SECONDS);
    if (status >= 0) status = wefti_launch_await_seats(l);
    const bool not_needed = status == WEFT_E_STOPPED && !l->scheduler;
    if (status >= 0) status = wefti_launch_start_servers(l);
    if (status >= 0) status = start_processes(l);
    if (status >= 0) status = wefti_launch_watch(l);
    if (not_needed) status = WEFT_OK;
    wefti_hook_end(l);
    wefti_launch_end_servers(l);
    if (l->processes) wefti_launch_clear(l);
    if (l->processes) wefti_launch_wait_for_late(l);
    wefti_launch_report_end(l);
    out->stop_signal = l->stopped_by;
    if (status >= 0) status = result_of(l, out);
    wefti_scheduler_stop(l->scheduler);
    wefti_scheduler_stop(l->standby);
    explicit_bzero(&secret, sizeof secret);
    return status;
}

static weft_status run(wefti_launch *l, weft_launch_result *out) {
    const weft_launch_options *o = l->options;
    int adopts = 0;
    WEFT_REQUIRE(o->command && *o->command, WEFT_E_ARG, "there is no command to run");
    WEFT_TRY(wefti_settings_find(&l->set));
    const wefti_override by = {.interface = o->interface,
                               .tls = o->tls,
                               .restarts = o->restarts,
                               .restart_window_seconds = o->restart_window_seconds,
                               .join_seconds = o->join_seconds,
                               .heartbeat_seconds = o->heartbeat_seconds,
                               .wait_seconds = o->wait_seconds};
    WEFT_TRY(wefti_settings_override(&l->set, &by));
    WEFT_TRY(wefti_launch_place_find(o, &l->place));
    /* As that of the scheduler, the address in this process's environment is of another job. */
    (void)snprintf(l->set.standby, sizeof l->set.standby, "%s", o->standby ? o->standby : "");
    if (o->add) WEFT_TRY(wefti_launch_find_job(l));
    l->restarts = wefti_restart_budget_of(l->set.restarts, l->set.restart_window_seconds);
    out->ranks = l->place.count;
    out->first_rank = l->place.first_rank;
    WEFT_TRY(wefti_command_find(o->command[0], l->set.commands, o->self, &l->program));
    if (o->log_dir) WEFT_TRY(wefti_dir_make(o->log_dir));
    WEFT_TRY(make_mark(l));
    WEFT_TRY(wefti_launch_make_folder(l));
    (void)prctl(PR_GET_CHILD_SUBREAPER, &adopts);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    weft_status status = run_in_folder(l, out);
    (void)prctl(PR_SET_CHILD_SUBREAPER, adopts);
    return status;
}

static void free_launch(wefti_launch *l) {
    for (int i = 0; l->processes && i < l->place.count; i++) {
        wefti_log_close(l->processes[i].log);
        if (l->processes[i].handle >= 0) close(l->processes[i].handle);
    }
    wefti_free(l->processes);
    wefti_free(l->past);
    wefti_restart_budget_free(&l->restarts);
    wefti_free(l->place.host_begin);
    wefti_launch_remove_folder(l);
    wefti_reaper_end(l->reaper); /* until now it would have done that */
    wefti_free(l->program);
    wefti_free(l->folder);
    wefti_free(l->secret);
    wefti_arena_destroy(l->arena);
}

weft_status weft_launch_run(const weft_launch_options *options, weft_launch_result *out) {
    weft_launch_options own = weft_launch_defaults();
    wefti_launch l = {.options = &own, .failed = -1};
    *out = (weft_launch_result){.failed_rank = -1};
    WEFT_TRY(wefti_struct_take("weft_launch_options", options, &own));
    WEFT_TRY(wefti_arena_create(&l.arena));
    weft_status status = run(&l, out);
    free_launch(&l);
    out->log = or_empty(out->log);
    out->last_lines = or_empty(out->last_lines);
    out->abort_reason = or_empty(out->abort_reason);
    out->table = or_empty(out->table);
    return status;
}

void weft_launch_result_free(weft_launch_result *result) {
    wefti_free(result->log);
    wefti_free(result->last_lines);
    wefti_free(result->abort_reason);
    wefti_free(result->table);
    *result = (weft_launch_result){.failed_rank = -1};
}
