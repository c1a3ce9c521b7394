/* `weft jobs`: which jobs run on this host. */
#include "cli/cli.h"
#include "weft/launch.h"

typedef struct jobs_options {
    double timeout;
    bool json;
} jobs_options;

#define JOBS_AT(field) offsetof(jobs_options, field)
static const cli_option options[] = {
    {"timeout", "S", CLI_REAL, JOBS_AT(timeout), 0.1, 1e7,
     "to wait for the answer of each scheduler; without it 2"},
    {"json", NULL, CLI_FLAG, JOBS_AT(json), 0, 0, "one JSON object"},
    {0},
};

static const double timeout_seconds = 2;

/* Why its scheduler says nothing; NULL: it has answered. */
static const char *ask(const weft_running_job *job, double timeout, weft_health *out) {
    const weft_health_options o = {.job = job->name,
                                   .timeout_seconds = timeout > 0 ? timeout : timeout_seconds};
    *out = (weft_health){0};
    if (job->elsewhere) return "runs in another network namespace: ask it there";
    if (weft_health_ask(&o, out) >= 0) return NULL;
    *out = (weft_health){0};
    return weft_error_message();
}

static void print_json(const weft_jobs *jobs, double timeout) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_array(&json, "jobs");
    for (int i = 0; i < jobs->count; i++) {
        const weft_running_job *job = &jobs->job[i];
        weft_health health;
        const char *silent = ask(job, timeout, &health);
        cli_json_object(&json, NULL);
        cli_json_text(&json, "name", job->name);
        cli_json_text(&json, "folder", job->folder);
        cli_json_text(&json, "scheduler", job->scheduler);
        cli_json_integer(&json, "ranks", silent ? job->ranks : health.size);
        cli_json_bool(&json, "answers", !silent);
        cli_json_bool(&json, "makes_steps", health.makes_steps);
        cli_json_integer(&json, "step", health.step);
        cli_json_text(&json, "text", silent ? silent : health.text);
        cli_json_close(&json, '}');
        weft_health_free(&health);
    }
    cli_json_close(&json, ']');
    cli_json_end(&json);
}

static void print_text(const weft_jobs *jobs, double timeout) {
    static const cli_column columns[] = {
        {"job", 8, 0, true},        {"ranks", 5, 2, false}, {"step", 8, 0, false},
        {"scheduler", 21, 2, true}, {"folder", 6, 2, true},
    };
    cli_table *t = cli_table_create(columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < jobs->count; i++) {
        const weft_running_job *job = &jobs->job[i];
        weft_health health;
        const char *silent = ask(job, timeout, &health);
        if (silent) cli_say(stderr, "weft: job %s: %s\n", job->name, silent);
        cli_table_row(t);
        cli_table_cell(t, 0, "%s", job->name);
        cli_table_cell(t, 1, "%d", silent ? job->ranks : health.size);
        if (!silent) cli_table_cell(t, 2, "%lld", (long long)health.step);
        cli_table_cell(t, 3, "%s", job->scheduler);
        cli_table_cell(t, 4, "%s", job->folder);
        weft_health_free(&health);
    }
    if (jobs->count > 0)
        cli_table_print(t, stdout);
    else
        cli_say(stdout, "no job of weft launch runs on this host\n");
}

static int run(const cli_verb *verb, int count, char **words) {
    jobs_options v = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &v, &left, &code)) return code;
    if (left) return cli_usage(verb, "jobs takes no arguments, but got '%s'", words[0]);
    weft_jobs jobs;
    if (weft_jobs_find(&jobs) < 0) return cli_failed();
    (v.json ? print_json : print_text)(&jobs, v.timeout);
    weft_jobs_free(&jobs);
    return CLI_DONE;
}

const cli_verb cli_jobs = {
    .name = "jobs",
    .summary = "list the jobs of weft launch that run on this host",
    .usage = "jobs [--timeout S] [--json]",
    .example = "weft jobs",
    .notes = "A job is listed as long as one of its processes runs, for the user who may look at "
             "them. Its name is for `weft health --job` and `weft launch --add --job`.",
    .options = options,
    .run = run,
};
