/* `weft health`: whether a job makes steps, for people and probes. */
#include "cli/cli.h"
#include "weft/launch.h"

typedef struct health_options {
    const char *job, *scheduler, *standby, *secret;
    double timeout, within;
    bool tls, brief, json;
} health_options;

#define HEALTH_AT(field) offsetof(health_options, field)
static const cli_option options[] = {
    {"job", "NAME", CLI_TEXT, HEALTH_AT(job), 0, 0, "a job of this host, as weft jobs names it"},
    {"scheduler", "HOST:PORT", CLI_TEXT, HEALTH_AT(scheduler), 0, 0,
     "which one to ask; without it WEFT_SCHEDULER, or the job of weft launch on this host"},
    {"standby", "HOST:PORT", CLI_TEXT, HEALTH_AT(standby), 0, 0,
     "asked too; without it WEFT_STANDBY, or that of the job on this host"},
    {"within", "S", CLI_REAL, HEALTH_AT(within), 0.001, 1e7,
     "each rank must have begun a step in the last S seconds; without it 60, or 10 steps"},
    {"timeout", "S", CLI_REAL, HEALTH_AT(timeout), 0.1, 1e7,
     "to wait for the answer; without it 5"},
    {"secret", "FILE", CLI_TEXT, HEALTH_AT(secret), 0, 0,
     "the job's secret, or env:NAME; without it WEFT_SECRET_FILE, or the job's on this host"},
    {"tls", NULL, CLI_FLAG, HEALTH_AT(tls), 0, 0, "the job was started with --tls"},
    {"brief", NULL, CLI_FLAG, HEALTH_AT(brief), 0, 0, "one line, without the table of ranks"},
    {"json", NULL, CLI_FLAG, HEALTH_AT(json), 0, 0, "one JSON object"},
    {0},
};

static void print_json(const weft_health *h, bool brief) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_bool(&json, "makes_steps", h->makes_steps);
    cli_json_text(&json, "text", h->text);
    cli_json_text(&json, "scheduler", h->scheduler);
    cli_json_integer(&json, "generation", (int64_t)h->generation);
    cli_json_integer(&json, "size", h->size);
    cli_json_integer(&json, "here", h->here);
    cli_json_integer(&json, "restarts", h->restarts);
    cli_json_integer(&json, "step", h->step);
    cli_json_real(&json, "step_seconds", h->step_seconds);
    cli_json_real(&json, "limit_seconds", h->limit_seconds);
    cli_json_real(&json, "steps_per_second", h->steps_per_second);
    if (!brief) cli_json_array(&json, "ranks");
    for (int r = 0; r < h->ranks && !brief; r++) {
        const weft_health_rank *rank = &h->rank[r];
        cli_json_object(&json, NULL);
        cli_json_integer(&json, "rank", r);
        cli_json_integer(&json, "host", rank->host);
        cli_json_text(&json, "state", weft_health_state_name(rank->state));
        cli_json_integer(&json, "step", rank->step);
        cli_json_real(&json, "step_seconds", rank->step_seconds);
        cli_json_real(&json, "heartbeat_seconds", rank->heartbeat_seconds);
        cli_json_real(&json, "steps_per_second", rank->steps_per_second);
        cli_json_close(&json, '}');
    }
    if (!brief) cli_json_close(&json, ']');
    cli_json_end(&json);
}

static void print_ranks(const weft_health *h) {
    static const cli_column columns[] = {
        {"rank", 4, 0, false},      {"host", 4, 2, false},    {"state", 8, 0, true},
        {"step", 8, 0, false},      {"steps/s", 8, 1, false}, {"begun", 8, 1, false},
        {"heartbeat", 9, 3, false},
    };
    cli_table *t = cli_table_create(columns, sizeof columns / sizeof *columns);
    for (int r = 0; r < h->ranks; r++) {
        const weft_health_rank *rank = &h->rank[r];
        cli_table_row(t);
        cli_table_cell(t, 0, "%d", r);
        cli_table_cell(t, 1, "%d", rank->host);
        cli_table_cell(t, 2, "%s", weft_health_state_name(rank->state));
        cli_table_cell(t, 3, "%lld", (long long)rank->step);
        if (rank->steps_per_second > 0) cli_table_cell(t, 4, "%.3g", rank->steps_per_second);
        if (rank->step > 0) cli_table_cell(t, 5, "%.1f s ago", rank->step_seconds);
        cli_table_cell(t, 6, "%.1f s ago", rank->heartbeat_seconds);
    }
    if (h->ranks > 0) cli_table_print(t, stdout);
}

static int failed(weft_status status) {
    (void)cli_failed();
    return status == WEFT_E_NOT_FOUND ? CLI_AGAIN : cli_code_of(status);
}

static int run(const cli_verb *verb, int count, char **words) {
    health_options v = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &v, &left, &code)) return code;
    if (left) return cli_usage(verb, "health takes no arguments, but got '%s'", words[0]);
    if (v.job && (v.scheduler || v.standby))
        return cli_usage(verb, "--job NAME stands in place of --scheduler and --standby");
    const weft_health_options o =
        WEFT_STRUCT(weft_health_options, .job = v.job, .scheduler = v.scheduler,
                    .standby = v.standby, .secret_file = v.secret, .tls = v.tls,
                    .timeout_seconds = v.timeout, .limit_seconds = v.within);
    weft_health health;
    const weft_status status = weft_health_ask(&o, &health);
    if (status < 0) return failed(status);
    code = health.makes_steps ? CLI_DONE : CLI_FAILED;
    if (v.json)
        print_json(&health, v.brief);
    else
        cli_say(stdout, "%s\n", health.text);
    if (!v.json && !v.brief) print_ranks(&health);
    weft_health_free(&health);
    return code;
}

const cli_verb cli_health = {
    .name = "health",
    .summary = "say whether a job makes steps: exit code 0 if it does, 1 if not",
    .usage = "health [--job NAME | --scheduler HOST:PORT] [--standby HOST:PORT] [--within S] "
             "[--timeout S] "
             "[--brief] [--json]",
    .example = "weft health --brief --timeout 2\n"
               "  steps: 4 ranks, step 812, 3.1 a second; rank 2 began its step 0.4 s ago (limit "
               "60 s)",
    .notes =
        "The job makes steps if all its ranks are there, none has left or is being mended, and "
        "each has begun a step in the last 60 s, or in the time of its last 10 steps if that "
        "is more (--within). Exit code 75: no scheduler answers. See docs/guide/how-to-launch.md.",
    .options = options,
    .run = run,
};
