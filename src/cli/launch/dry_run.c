/* `weft launch --rehearse`: a dry run. It builds and checks the programs of all ranks of a job, and
 * starts none. */
#include "cli/launch/dry_run.h"

#include <string.h>

#include "weft/launch.h"

/* Options of `weft train`: those that matter here, and those that are ignored. */
typedef struct inner_options {
    cli_job_source source;
    bool json;
    const char *trace;
} inner_options;

#define DRY_RUN_AT(field) offsetof(inner_options, field)
static const cli_option options[] = {
    {"devices", "N", CLI_INTEGER, CLI_JOB_AT(inner_options, devices), 1, INT32_MAX, "ranks"},
    {"plan", "FILE", CLI_TEXT, CLI_JOB_AT(inner_options, plan), 0, 0,
     "split the model by this plan"},
    CLI_MODE_OPTIONS(inner_options),
    {"json", NULL, CLI_FLAG, DRY_RUN_AT(json), 0, 0, "of the training"},
    {"trace", "FILE", CLI_TEXT, DRY_RUN_AT(trace), 0, 0, "of the training"},
    {0},
};

static const cli_verb train = {
    .name = "launch",
    .summary = "the part of `weft train` that --rehearse uses",
    .usage = "launch --rehearse --ranks N -- weft train JOB.yaml [key=value ...] [--plan FILE]",
    .example = "weft launch --rehearse --ranks 64 -- weft train job.yaml train.batch=256",
    .options = options,
};

static void show_json(const weft_dry_run *r) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_integer(&json, "ranks", r->ranks);
    cli_json_integer(&json, "checked", r->checked);
    cli_json_bool(&json, "matched", r->checked == r->ranks);
    cli_json_integer(&json, "most_bytes", r->most_bytes);
    cli_json_integer(&json, "most_rank", r->most_rank);
    cli_json_integer(&json, "program_bytes", r->program_bytes);
    cli_json_integer(&json, "least_bytes", r->least_bytes);
    cli_json_integer(&json, "least_rank", r->least_rank);
    cli_json_integer(&json, "transfers", r->transfers);
    cli_json_real(&json, "received_bytes", r->received_bytes);
    cli_json_real(&json, "most_received_bytes", r->most_received_bytes);
    cli_json_integer(&json, "most_received_rank", r->most_received_rank);
    cli_json_text(&json, "largest", r->largest);
    cli_json_real(&json, "seconds", r->seconds);
    cli_json_end(&json);
}

static void show(const weft_dry_run *r) {
    char most[32], least[32], received[32];
    bool all = r->checked == r->ranks;
    cli_bytes((double)r->most_bytes, most);
    cli_bytes((double)r->least_bytes, least);
    if (all)
        cli_say(stdout,
                "ranks           %d\nmemory          %s at most (rank %d), %s at least (rank %d)\n",
                r->ranks, most, r->most_rank, least, r->least_rank);
    else
        cli_say(stdout, "rank            %d of %d\nmemory          %s\n", r->most_rank, r->ranks,
                most);
    cli_say(stdout, "                %s\n", r->largest);
    cli_say(stdout, "communication   %lld transfers a step, %s received", (long long)r->transfers,
            cli_bytes(r->received_bytes, received));
    if (all)
        cli_say(stdout, " by all, %s at most by one (rank %d)",
                cli_bytes(r->most_received_bytes, most), r->most_received_rank);
    cli_say(stdout, "\nmatching        %s\n",
            all ? "all ranks' transfers match" : "one rank alone is not matched");
    cli_say(stdout, "took            %.2f s\n", r->seconds);
}

int launch_dry_run(const cli_verb *verb, char **command, int64_t ranks, int64_t rank, bool json) {
    const char *slash = strrchr(command[0], '/');
    inner_options values = {0};
    int count = 0, left, code;
    if (strcmp(slash ? slash + 1 : command[0], "weft") != 0 || !command[1] ||
        strcmp(command[1], "train") != 0)
        return cli_usage(verb, "--rehearse is for `weft train`, not for '%s%s%s'", command[0],
                         command[1] ? " " : "", command[1] ? command[1] : "");
    command += 2;
    while (command[count]) count++;
    if (!cli_parse(&train, count, command, &values, &left, &code)) return code;
    if (ranks && values.source.devices && ranks != values.source.devices)
        return cli_usage(verb,
                         "the job is for %lld devices, but --ranks says %lld, one device each",
                         (long long)values.source.devices, (long long)ranks);
    if ((code = cli_job_words(&train, left, command, &values.source)) != CLI_DONE) return code;
    weft_job *job;
    if (ranks) values.source.devices = ranks;
    code = cli_job_load(&values.source, &job);
    if (code != CLI_DONE) return code;
    weft_dry_run report;
    if (weft_job_dry_run(job, (int)rank, cli_show_ranks, NULL, &report) < 0) {
        code = cli_failed();
    } else {
        cli_notes(report.unmatched);
        (json ? show_json : show)(&report);
    }
    weft_dry_run_free(&report);
    weft_job_free(job);
    return code;
}
