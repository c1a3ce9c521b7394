/* `weft program`: the steps that one rank of a job would run. */
#include "cli.h"

#include "weft/program.h"

typedef struct program_options {
    cli_job_source source;
    int64_t rank;
    bool json;
} program_options;

#define PROGRAM_AT(field) offsetof(program_options, field)
static const cli_option options[] = {
    {"rank", "R", CLI_INTEGER, PROGRAM_AT(rank), 0, INT32_MAX, "the rank (default 0)"},
    {"devices", "N", CLI_INTEGER, CLI_JOB_AT(program_options, devices), 1, INT32_MAX,
     "for N devices"},
    {"plan", "FILE", CLI_TEXT, CLI_JOB_AT(program_options, plan), 0, 0, "by this plan"},
    CLI_MODEL_OPTIONS(program_options),
    CLI_MODE_OPTIONS(program_options),
    {"json", NULL, CLI_FLAG, PROGRAM_AT(json), 0, 0, "one JSON object"},
    {0},
};

static int run(const cli_verb *verb, int count, char **words) {
    program_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if ((code = cli_job_words(verb, left, words, &values.source)) != CLI_DONE) return code;
    weft_job *job;
    char *text, *unmatched;
    code = cli_job_load(&values.source, &job);
    if (code != CLI_DONE) return code;
    int rank = (int)values.rank;
    weft_status status = values.json ? weft_job_program_json(job, rank, &text, &unmatched)
                                     : weft_job_program_text(job, rank, &text, &unmatched);
    if (status < 0) {
        code = cli_failed();
    } else {
        cli_notes(unmatched);
        if (values.json)
            cli_say(stdout, "%s", text);
        else
            cli_say_text(stdout, text);
        weft_text_free(unmatched);
        weft_text_free(text);
    }
    weft_job_free(job);
    return code;
}

const cli_verb cli_program = {
    .name = "program",
    .summary = "show the program of one device: steps, transfers, layouts, memory",
    .usage =
        "program JOB.yaml [key=value ...] [--plan FILE] [--devices N] [--rank R] [--json]\n"
        "       weft program --model config.json [--batch N] [--context N] [--precision NAME] ...",
    .example = "weft program job.yaml --plan plan.json --rank 3",
    .notes = "Nothing is trained. The programs of all devices are checked against each "
             "other.",
    .options = options,
    .run = run,
};
