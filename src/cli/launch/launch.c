/* `weft launch`: start a job's processes on this host, or rehearse a job. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "cli/launch/dry_run.h"
#include "cli/launch/show.h"

typedef struct launch_options {
    int64_t processes, servers, hosts, host_rank, ranks, rank, restart;
    const char *job, *scheduler, *standby, *rank_table, *server_id, *logs, *tail, *secret,
        *interface, *bind, *on_restart;
    double restart_window, timeout, heartbeat, wait, grace;
    bool no_logs, json, rehearse, tls, spare, add, no_scheduler, scheduler_only, standby_only;
    cli_texts settings; /* of --env */
    /* Not from the table: the words after the options. */
    char **command;
} launch_options;

static const double seconds_max = 1e7;

#define LAUNCH_AT(field) offsetof(launch_options, field)
static const cli_option options[] = {
    {"processes", "N", CLI_INTEGER, LAUNCH_AT(processes), 1, INT32_MAX,
     "processes on this host; -n N is the same"},
    {"servers", "N", CLI_INTEGER, LAUNCH_AT(servers), 1, 64,
     "servers of parameters beside them (parallel.server)"},
    {"hosts", "N", CLI_INTEGER, LAUNCH_AT(hosts), 1, INT32_MAX, "hosts; run this command on each"},
    {"host-rank", "N", CLI_INTEGER, LAUNCH_AT(host_rank), 0, INT32_MAX,
     "which of them this one is"},
    {"scheduler", "HOST:PORT", CLI_TEXT, LAUNCH_AT(scheduler), 0, 0,
     "where host 0 listens; needed with --hosts; with --add the job's"},
    {"standby", "HOST:PORT", CLI_TEXT, LAUNCH_AT(standby), 0, 0,
     "a second scheduler, which takes over if the first one is lost; on all hosts"},
    {"no-scheduler", NULL, CLI_FLAG, LAUNCH_AT(no_scheduler), 0, 0,
     "run neither here: they are processes of their own; on all hosts"},
    {"scheduler-only", NULL, CLI_FLAG, LAUNCH_AT(scheduler_only), 0, 0,
     "run the scheduler, and start no processes"},
    {"standby-only", NULL, CLI_FLAG, LAUNCH_AT(standby_only), 0, 0,
     "run the standby scheduler, and start no processes"},
    {"rank-table", "FILE", CLI_TEXT, LAUNCH_AT(rank_table), 0, 0,
     "ranks and hosts from an HCCL rank table"},
    {"server-id", "ID", CLI_TEXT, LAUNCH_AT(server_id), 0, 0,
     "which of the table's hosts this one is"},
    {"logs", "DIR", CLI_TEXT, LAUNCH_AT(logs), 0, 0,
     "a file for each rank there; without it weft-logs/<time>-<pid>"},
    {"no-logs", NULL, CLI_FLAG, LAUNCH_AT(no_logs), 0, 0, "no files"},
    {"tail", "RANKS", CLI_TEXT, LAUNCH_AT(tail), 0, 0,
     "show these: all, none, 0,4-7; without it 0"},
    {"env", "K=V", CLI_TEXTS, LAUNCH_AT(settings), 0, 0,
     "a variable for the processes; may be repeated"},
    {"secret", "FILE", CLI_TEXT, LAUNCH_AT(secret), 0, 0,
     "or env:NAME; known to all hosts; ~/.weft/secret without it"},
    {"interface", "IF", CLI_TEXT, LAUNCH_AT(interface), 0, 0,
     "the network between the hosts: eth0"},
    {"tls", NULL, CLI_FLAG, LAUNCH_AT(tls), 0, 0,
     "encrypt all messages between processes and hosts"},
    {"bind", "cores|none", CLI_TEXT, LAUNCH_AT(bind), 0, 0,
     "give each process a part of the cores"},
    {"timeout", "S", CLI_REAL, LAUNCH_AT(timeout), 0.1, seconds_max,
     "to wait for missing processes"},
    {"heartbeat", "S", CLI_REAL, LAUNCH_AT(heartbeat), 0.1, seconds_max,
     "a rank silent for so long has failed"},
    {"wait", "S", CLI_REAL, LAUNCH_AT(wait), 0.1, seconds_max,
     "a rank that others wait for so long has failed too"},
    {"grace", "S", CLI_REAL, LAUNCH_AT(grace), 0.1, seconds_max,
     "between asking to end and killing"},
    {"restart", "N", CLI_INTEGER, LAUNCH_AT(restart), 1, INT32_MAX,
     "start ranks that are lost again, N times within --restart-window"},
    {"restart-window", "S", CLI_REAL, LAUNCH_AT(restart_window), 0.001, seconds_max,
     "a restart no longer counts after so long; without it 3600"},
    {"on-restart", "COMMAND", CLI_TEXT, LAUNCH_AT(on_restart), 0, 0,
     "run this for each restart, beside the job"},
    {"spare", NULL, CLI_FLAG, LAUNCH_AT(spare), 0, 0,
     "take the place of another host, once one is lost"},
    {"add", NULL, CLI_FLAG, LAUNCH_AT(add), 0, 0, "add these processes to a running elastic job"},
    {"job", "NAME", CLI_TEXT, LAUNCH_AT(job), 0, 0, "--add: to this job of the host (weft jobs)"},
    {"rehearse", NULL, CLI_FLAG, LAUNCH_AT(rehearse), 0, 0,
     "check the job's programs, and start nothing"},
    {"ranks", "N", CLI_INTEGER, LAUNCH_AT(ranks), 1, INT32_MAX, "--rehearse: number of ranks"},
    {"rank", "R", CLI_INTEGER, LAUNCH_AT(rank), 0, INT32_MAX, "--rehearse: this rank alone"},
    {"json", NULL, CLI_FLAG, LAUNCH_AT(json), 0, 0, "one JSON object a line"},
    {0},
};

/* --- words --- */

/* The option that `word` is, if it is one that takes the next word as its value. */
static bool takes_next(const char *word) {
    if (!strcmp(word, "-n") || !strcmp(word, "-np")) return true;
    if (strncmp(word, "--", 2) != 0 || strchr(word, '=')) return false;
    for (const cli_option *o = options; o->name; o++)
        if (!strcmp(o->name, word + 2)) return o->kind != CLI_FLAG;
    return false;
}

/* Options end at "--" or at the first word that is not an option. */
static int option_words(int count, char **words) {
    int at = 0;
    while (at < count && words[at][0] == '-' && strcmp(words[at], "--") != 0)
        at += takes_next(words[at]) ? 2 : 1;
    return at < count ? at : count;
}

/* -n becomes the option's long name. */
static void spell_out(int count, char **words) {
    static char processes[] = "--processes";
    for (int i = 0; i < count; i++)
        if (!strcmp(words[i], "-n") || !strcmp(words[i], "-np")) words[i] = processes;
}

static int check_settings(const cli_verb *verb, const launch_options *values) {
    for (int i = 0; i < values->settings.count; i++) {
        const char *text = values->settings.items[i], *equals = strchr(text, '=');
        if (!equals || equals == text)
            return cli_usage(verb, "--env takes NAME=value, not '%s'", text);
    }
    return CLI_DONE;
}

/* A rank table sets the number of ranks. */
static int check_tail(const cli_verb *verb, const launch_options *v) {
    int64_t ranks = v->processes * (v->hosts ? v->hosts : 1);
    if (!v->tail) return CLI_DONE;
    if (!launch_tail_is_good(v->tail))
        return cli_usage(verb, "--tail takes all, none or ranks as in 0,4-7; not '%s'", v->tail);
    if (!v->rank_table && launch_tail_last(v->tail) >= ranks)
        return cli_usage(verb, "--tail %s: the job has the ranks 0 to %lld", v->tail,
                         (long long)ranks - 1);
    return CLI_DONE;
}

/* Of several schedulers, and of those that run alone. */
static int check_schedulers(const cli_verb *verb, const launch_options *v) {
    const bool alone = v->scheduler_only || v->standby_only;
    if (alone && (v->scheduler_only == v->standby_only || v->no_scheduler || v->spare || v->add ||
                  v->host_rank))
        return cli_usage(verb, "--scheduler-only and --standby-only exclude each other, and "
                               "--no-scheduler, --host-rank, --spare and --add");
    if (alone && v->command[0])
        return cli_usage(verb, "--%s-only starts no processes: it takes no command, such as '%s'",
                         v->scheduler_only ? "scheduler" : "standby", v->command[0]);
    if ((alone || v->no_scheduler) && !v->scheduler && !v->rank_table)
        return cli_usage(verb, "--no-scheduler, --scheduler-only and --standby-only need "
                               "--scheduler HOST:PORT");
    if (v->standby_only && !v->standby)
        return cli_usage(verb, "--standby-only needs --standby HOST:PORT, an address of this host");
    if (v->standby && v->hosts <= 1 && !v->no_scheduler && !alone && !v->rank_table && !v->add)
        return cli_usage(verb, "--standby on one host needs --no-scheduler: with the scheduler, "
                               "which is part of weft launch, all its processes end");
    return CLI_DONE;
}

static int check(const cli_verb *verb, const launch_options *v) {
    bool several = v->hosts > 1, has_host = v->hosts || v->host_rank;
    const bool alone = v->scheduler_only || v->standby_only;
    if (!alone && (!v->command[0] || !*v->command[0]))
        return cli_usage(verb, "the command to run is missing");
    if (v->rehearse && (v->processes || has_host || v->rank_table || v->scheduler || v->standby ||
                        v->no_scheduler || v->servers || alone))
        return cli_usage(verb, "--rehearse starts nothing: it takes --ranks, --rank and --json");
    if (!v->rehearse && (v->ranks || v->rank >= 0))
        return cli_usage(verb, "--ranks and --rank are for --rehearse; processes are -n");
    if (v->rehearse) return CLI_DONE;
    if (check_schedulers(verb, v) != CLI_DONE) return CLI_USAGE;
    if (!v->processes && !v->rank_table) return cli_usage(verb, "how many processes? -n N");
    if (v->spare && (!several || !v->restart || v->host_rank))
        return cli_usage(verb, "--spare needs --hosts and --restart, as on the other hosts, and "
                               "takes no --host-rank");
    const bool restarts = v->restart || v->restart_window > 0 || v->on_restart;
    if (v->add && (has_host || restarts || v->spare || v->rank_table))
        return cli_usage(verb, "--add takes -n: hosts, restarts and ranks are the running job's");
    if (v->job && (!v->add || v->scheduler || v->standby))
        return cli_usage(verb, "--job NAME is for --add, in place of --scheduler and --standby");
    if (v->rank_table && (v->processes || has_host))
        return cli_usage(verb, "--rank-table says how many processes and hosts there are");
    if (v->server_id && !v->rank_table) return cli_usage(verb, "--server-id is for --rank-table");
    if (several && !v->scheduler)
        return cli_usage(verb, "--hosts needs --scheduler HOST:PORT, an address of host 0");
    if (v->logs && v->no_logs) return cli_usage(verb, "--logs and --no-logs exclude each other");
    if (check_tail(verb, v) != CLI_DONE) return CLI_USAGE;
    if (v->bind && strcmp(v->bind, "cores") != 0 && strcmp(v->bind, "none") != 0)
        return cli_usage(verb, "--bind takes cores or none, not '%s'", v->bind);
    return check_settings(verb, v);
}

/* --- requests to stop --- */

static volatile int stop_signal, stop_count;

static void on_signal(int number) {
    static const char text[] = "\nweft: stopping; once more to stop sooner\n";
    /* The reader of the output has gone. Each further line raises SIGPIPE: only the first counts.
     */
    if ((number == SIGPIPE || cli_is_announcement(number)) && stop_count > 0) return;
    const bool was_announced = stop_count == 1 && cli_is_announcement(stop_signal);
    stop_signal = number == SIGPIPE ? SIGTERM : number;
    if (was_announced || stop_count++ > 0) return;
    cli_drop_stuck_output();
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
}

/* --- launching --- */

/* Pipes and logs of many processes, and connections of all hosts, exceed the usual limit. The size
 * of a rank table (processes 0) is not known yet, so this assumes the most ranks that one host may
 * have. */
static void allow_files(int64_t processes, int64_t hosts) {
    enum { MANY = 4096 };
    const rlim_t wanted = (rlim_t)((processes ? processes : MANY) * (6 + hosts) + 256);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static const char *default_logs(char out[64]) {
    time_t now = time(NULL);
    struct tm parts;
    char stamp[32] = "";
    if (localtime_r(&now, &parts)) strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &parts);
    snprintf(out, 64, "weft-logs/%s-%d", stamp, (int)getpid());
    return out;
}

/* The exit code of the failed rank. One that a signal killed was lost. */
static int failure_code(weft_status status, const weft_launch_result *r) {
    if (status == WEFT_E_STOPPED && r->stop_signal) return 128 + r->stop_signal;
    if (r->failed_rank < 0) return cli_code_of(status);
    if (r->signal) return CLI_AGAIN;
    return r->exit_code > 0 ? r->exit_code : CLI_FAILED;
}

static void announce(void *context, const char *address) {
    const launch_options *v = context;
    cli_say(stderr, "weft: the %s of this job, at %s\n",
            v->standby_only ? "standby scheduler" : "scheduler", address);
}

static void tell(void *context, const char *text) {
    (void)context;
    cli_say(stderr, "weft: %s\n", text);
}

/* A scheduler that runs alone. */
static int schedule(launch_options *v) {
    char *table = NULL;
    const weft_launch_options o = WEFT_STRUCT(
        weft_launch_options, .processes = (int)v->processes, .hosts = (int)v->hosts,
        .scheduler = v->scheduler, .standby = v->standby, .scheduler_elsewhere = true,
        .rank_table = v->rank_table, .server_id = v->server_id, .secret_file = v->secret,
        .interface = v->interface, .tls = v->tls, .join_seconds = v->timeout,
        .heartbeat_seconds = v->heartbeat, .wait_seconds = v->wait, .restarts = (int)v->restart,
        .restart_window_seconds = v->restart_window, .stop_signal = &stop_signal,
        .stop_count = &stop_count, .events = {.note = tell});
    allow_files(v->processes, v->hosts > 0 ? v->hosts : 1);
    cli_ignore_announcements();
    cli_catch_signals(on_signal, true);
    const weft_status status = weft_launch_schedule(
        &o, v->standby_only ? WEFT_LAUNCH_STANDBY : WEFT_LAUNCH_SCHEDULER, announce, v, &table);
    const int code = status == WEFT_E_STOPPED ? 128 + stop_signal : cli_code_of(status);
    if (status < 0) (void)cli_failed();
    if (code != CLI_DONE && table && *table) cli_say(stderr, "where each rank stood:\n%s", table);
    weft_text_free(table);
    return code;
}

static int launch(const launch_options *v) {
    char logs[64], self[4096];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *tail = v->tail ? v->tail : "0";
    launch_show show = {
        .json = v->json, .tail = tail, .prefix = strspn(tail, "0123456789") != strlen(tail)};
    self[bytes > 0 ? bytes : 0] = '\0';
    weft_launch_options o = WEFT_STRUCT(
        weft_launch_options, .command = (const char *const *)v->command,
        .self = *self ? self : NULL, .processes = (int)v->processes, .hosts = (int)v->hosts,
        .host_rank = (int)v->host_rank, .scheduler = v->scheduler, .standby = v->standby,
        .scheduler_elsewhere = v->no_scheduler, .rank_table = v->rank_table,
        .server_id = v->server_id,
        .log_dir = v->no_logs ? NULL
                   : v->logs  ? v->logs
                              : default_logs(logs),
        .secret_file = v->secret, .interface = v->interface, .tls = v->tls,
        .settings = v->settings.items, .bind_cores = v->bind && !strcmp(v->bind, "cores"),
        .join_seconds = v->timeout, .heartbeat_seconds = v->heartbeat, .wait_seconds = v->wait,
        .grace_seconds = v->grace, .restarts = (int)v->restart,
        .restart_window_seconds = v->restart_window, .on_restart = v->on_restart, .spare = v->spare,
        .add = v->add, .job = v->job, .stop_signal = &stop_signal, .stop_count = &stop_count,
        .events = launch_show_events(&show), .servers = (int)v->servers);
    weft_launch_result result;
    allow_files(v->processes, v->hosts > 0 ? v->hosts : 1);
    cli_catch_signals(on_signal, true);
    weft_status status = weft_launch_run(&o, &result);
    int code = status >= 0 ? CLI_DONE : failure_code(status, &result);
    launch_show_end(&show, &result, status);
    weft_launch_result_free(&result);
    return code;
}

static int run(const cli_verb *verb, int count, char **words) {
    launch_options values = {.rank = -1};
    int code, left, before = option_words(count, words);
    values.command = words + before + (before < count && !strcmp(words[before], "--"));
    if (!cli_texts_create(&values.settings, count)) return CLI_FAILED;
    spell_out(before, words);
    if (cli_parse(verb, before, words, &values, &left, &code) &&
        (code = check(verb, &values)) == CLI_DONE)
        code = values.rehearse
                   ? launch_dry_run(verb, values.command, values.ranks, values.rank, values.json)
               : values.scheduler_only || values.standby_only ? schedule(&values)
                                                              : launch(&values);
    cli_texts_free(&values.settings);
    return code;
}

const cli_verb cli_launch = {
    .name = "launch",
    .summary = "start the processes of a job on this host, or rehearse it for many ranks",
    .usage =
        "launch -n N [options] [--] COMMAND ...\n"
        "       weft launch --hosts N --host-rank I --scheduler HOST:PORT -n N -- COMMAND ...\n"
        "       weft launch --hosts N --spare --restart N --scheduler HOST:PORT -n N -- COMMAND "
        "...\n"
        "       weft launch --standby HOST:PORT ... (as above, on all hosts)\n"
        "       weft launch --scheduler-only|--standby-only --scheduler HOST:PORT "
        "[--standby HOST:PORT] -n N\n"
        "       weft launch --add [--scheduler HOST:PORT] -n N -- COMMAND ...\n"
        "       weft launch --rank-table FILE [--server-id ID] -- COMMAND ...\n"
        "       weft launch --rehearse --ranks N [--rank R] -- weft train JOB.yaml [key=value ...]",
    .example =
        "weft launch -n 4 -- weft train job.yaml\n"
        "  weft launch -n 2 --servers 2 -- weft train job.yaml 'parallel.server=[{match: \"*\"}]'\n"
        "  weft launch -n 4 -- ./a.out        (a program that calls weft_world_join)\n"
        "  weft launch --standby-only -n 4 --scheduler 10.0.0.1:9000 --standby 10.0.0.2:9000\n"
        "  weft launch --add -n 2 -- weft train job.yaml   (two ranks more for a job that runs)",
    .notes =
        "COMMAND may be any program; `weft` is this one where PATH has none. A rank that fails "
        "ends the job,\nwith its exit code, or 75 if a signal killed it. SIGINT and SIGTERM are "
        "passed on; the second\none kills after --grace. See docs/guide/how-to-launch.md.",
    .options = options,
    .run = run,
};
