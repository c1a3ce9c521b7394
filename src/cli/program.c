/* `weft program`: the steps that one rank of a job would run. */
#include "cli.h"

#include "weft/program.h"

typedef struct program_options {
    int64_t devices, rank;
    const char *plan;
    bool json;
} program_options;

#define PROGRAM_AT(field) offsetof(program_options, field)
static const cli_option options[] = {
    {"rank", "R", CLI_INTEGER, PROGRAM_AT(rank), 0, INT32_MAX, "the rank (default 0)"},
    {"devices", "N", CLI_INTEGER, PROGRAM_AT(devices), 1, INT32_MAX, "for N devices"},
    {"plan", "FILE", CLI_TEXT, PROGRAM_AT(plan), 0, 0, "by this plan"},
    {"json", NULL, CLI_FLAG, PROGRAM_AT(json), 0, 0, "one JSON object"},
    {0},
};

static int run(const cli_verb *verb, int count, char **words) {
    program_options values = {0};
    const char *path;
    int code, left, overrides = 0;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if ((code = cli_job_words(verb, left, words, &path, &overrides)) != CLI_DONE) return code;
    weft_job *job;
    char *text, *unmatched;
    code = cli_job_load(path, words, overrides, values.devices, values.plan, &job);
    if (code != CLI_DONE) return code;
    int rank = (int)values.rank;
    weft_status status = values.json ? weft_job_program_json(job, rank, &text, &unmatched)
                                     : weft_job_program_text(job, rank, &text, &unmatched);
    if (status < 0) {
        code = cli_failed();
    } else {
        cli_unmatched(unmatched);
        cli_say(stdout, "%s", text);
        weft_text_free(unmatched);
        weft_text_free(text);
    }
    weft_job_free(job);
    return code;
}

const cli_verb cli_program = {
    .name = "program",
    .summary = "show the program of one device: steps, transfers, layouts, memory",
    .usage = "program JOB.yaml [key=value ...] [--plan FILE] [--devices N] [--rank R] [--json]",
    .example = "weft program job.yaml --plan plan.json --rank 3",
    .notes = "Nothing is trained. The programs of all devices are checked against each "
             "other.",
    .options = options,
    .run = run,
};
