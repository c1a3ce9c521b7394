/* `weft machine`: the machines that plans and predictions can be made for. */
#include "cli.h"

#include <string.h>

#include "weft/graph.h"
#include "weft/info.h"

typedef struct machine_options {
    bool json;
} machine_options;

static const cli_option options[] = {
    {"json", NULL, CLI_FLAG, offsetof(machine_options, json), 0, 0,
     "list: one JSON object; a machine file is JSON already"},
    {0},
};

static int list(bool as_json) {
    const char *name;
    if (as_json) {
        cli_json json;
        cli_json_begin(&json, stdout);
        cli_json_array(&json, "machines");
        for (int i = 0; (name = weft_machine_name(i)); i++) cli_json_text(&json, NULL, name);
        cli_json_close(&json, ']');
        cli_json_end(&json);
        return CLI_DONE;
    }
    for (int i = 0; (name = weft_machine_name(i)); i++) cli_say(stdout, "%s\n", name);
    return CLI_DONE;
}

static int show(const char *machine) {
    char *text;
    if (weft_machine_text(machine, &text) < 0) return cli_failed();
    cli_say(stdout, "%s", text);
    weft_text_free(text);
    return CLI_DONE;
}

static int run(const cli_verb *verb, int count, char **words) {
    machine_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (left == 1 && !strcmp(words[0], "list")) return list(values.json);
    if (left == 2 && !strcmp(words[0], "show")) return show(words[1]);
    return cli_usage(verb, "machine needs `list`, or `show` and one machine");
}

const cli_verb cli_machine = {
    .name = "machine",
    .summary = "list the machines that are built in, show one as a machine file",
    .usage = "machine list [--json]\n"
             "       weft machine show MACHINE",
    .example = "weft machine show \"8 hosts of 8 h100-80g\"",
    .notes = "A machine is a name of the list, a text as in the example, a topology, or a machine "
             "file.\nThe job key `machine` takes the same texts.",
    .options = options,
    .run = run,
};
