/* `weft trace merge`: traces of several hosts as one. */
#include "cli.h"

#include <string.h>

#include "weft/session.h"

typedef struct trace_options {
    bool json;
} trace_options;

static const cli_option options[] = {
    {"json", NULL, CLI_FLAG, offsetof(trace_options, json), 0, 0, "one JSON object"},
    {0},
};

static int run(const cli_verb *verb, int count, char **words) {
    trace_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (left < 1 || strcmp(words[0], "merge") != 0)
        return cli_usage(verb, "trace needs a task: merge OUT.json TRACE...");
    if (left < 3)
        return cli_usage(verb, "merge needs a file to write, and the traces: OUT.json TRACE...");
    if (!cli_can_write(words[1])) return cli_failed();
    if (weft_trace_merge((const char *const *)words + 2, left - 2, words[1]) < 0)
        return cli_failed();
    if (values.json) {
        cli_json json;
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "trace", words[1]);
        cli_json_integer(&json, "files", left - 2);
        cli_json_end(&json);
    }
    return CLI_DONE;
}

const cli_verb cli_trace = {
    .name = "trace",
    .summary = "put the traces of a job's hosts together",
    .usage = "trace merge OUT.json TRACE... [--json]",
    .example = "weft trace merge all.json trace.json trace.json.host1",
    .notes = "A run with --trace writes one trace for each host. Clocks of unlike hosts are set by "
             "the moments before\nsteps at which all ranks met. The result opens in "
             "ui.perfetto.dev.",
    .options = options,
    .run = run,
};
