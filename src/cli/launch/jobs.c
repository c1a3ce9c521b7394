/* `weft jobs`: which jobs run on this host. */
#include <stdlib.h>

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

/* A job, and what its scheduler has said. */
typedef struct jobs_row {
    const weft_running_job *job;
    const char *silent; /* why it says nothing; NULL: it has answered */
    const weft_health *health;
} jobs_row;

/* All in reach are asked at once, so that silent ones cost one time limit. */
static weft_status ask(const weft_jobs *jobs, double timeout, weft_health_answer *answers,
                       jobs_row *rows) {
    weft_health_options *questions = calloc((size_t)jobs->count, sizeof *questions);
    int asked = 0;
    if (!questions) return weft_error_raise(WEFT_E_NOMEM, "no memory for the jobs of a host");
    for (int i = 0; i < jobs->count; i++)
        if (!jobs->job[i].elsewhere)
            questions[asked++] =
                WEFT_STRUCT(weft_health_options, .job = jobs->job[i].name,
                            .timeout_seconds = timeout > 0 ? timeout : timeout_seconds);
    const weft_status status = weft_health_ask_all(questions, asked, answers);
    for (int i = 0, k = 0; i < jobs->count; i++) {
        static const weft_health unknown;
        rows[i] =
            (jobs_row){&jobs->job[i], "runs in another network namespace: ask it there", &unknown};
        if (jobs->job[i].elsewhere) continue;
        rows[i].silent = answers[k].error;
        rows[i].health = &answers[k++].health;
    }
    free(questions);
    return status;
}

static void print_json(const jobs_row *rows, int count) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_array(&json, "jobs");
    for (int i = 0; i < count; i++) {
        const weft_running_job *job = rows[i].job;
        const weft_health *health = rows[i].health;
        const char *silent = rows[i].silent;
        cli_json_object(&json, NULL);
        cli_json_text(&json, "name", job->name);
        cli_json_text(&json, "folder", job->folder);
        cli_json_text(&json, "scheduler", job->scheduler);
        cli_json_integer(&json, "ranks", silent ? job->ranks : health->size);
        cli_json_bool(&json, "answers", !silent);
        cli_json_bool(&json, "makes_steps", health->makes_steps);
        cli_json_integer(&json, "step", health->step);
        cli_json_text(&json, "text", silent ? silent : health->text);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_end(&json);
}

static void print_text(const jobs_row *rows, int count) {
    static const cli_column columns[] = {
        {"job", 8, 0, true},        {"ranks", 5, 2, false}, {"step", 8, 0, false},
        {"scheduler", 21, 2, true}, {"folder", 6, 2, true},
    };
    cli_table *t = cli_table_create(columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < count; i++) {
        const weft_running_job *job = rows[i].job;
        const weft_health *health = rows[i].health;
        const char *silent = rows[i].silent;
        if (silent) cli_say(stderr, "weft: job %s: %s\n", job->name, silent);
        cli_table_row(t);
        cli_table_cell(t, 0, "%s", job->name);
        cli_table_cell(t, 1, "%d", silent ? job->ranks : health->size);
        if (!silent) cli_table_cell(t, 2, "%lld", (long long)health->step);
        cli_table_cell(t, 3, "%s", job->scheduler);
        cli_table_cell(t, 4, "%s", job->folder);
    }
    if (count > 0)
        cli_table_print(t, stdout);
    else
        cli_say(stdout, "no job of weft launch runs on this host\n");
}

static int show(const weft_jobs *jobs, const jobs_options *v) {
    const size_t room = jobs->count > 0 ? (size_t)jobs->count : 1;
    weft_health_answer *answers = calloc(room, sizeof *answers);
    jobs_row *rows = calloc(room, sizeof *rows);
    weft_status status = WEFT_OK;
    if (!answers || !rows)
        status = weft_error_raise(WEFT_E_NOMEM, "no memory for the jobs of a host");
    else if (jobs->count > 0)
        status = ask(jobs, v->timeout, answers, rows);
    if (status >= 0) (v->json ? print_json : print_text)(rows, jobs->count);
    if (status >= 0) weft_health_answers_free(answers, jobs->count);
    free(answers);
    free(rows);
    return status < 0 ? cli_failed() : CLI_DONE;
}

static int run(const cli_verb *verb, int count, char **words) {
    jobs_options v = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &v, &left, &code)) return code;
    if (left) return cli_usage(verb, "jobs takes no arguments, but got '%s'", words[0]);
    weft_jobs jobs;
    if (weft_jobs_find(&jobs) < 0) return cli_failed();
    code = show(&jobs, &v);
    weft_jobs_free(&jobs);
    return code;
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
