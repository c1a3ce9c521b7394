/* `weft machine`: the machines that plans and predictions can be made for. */
#include "cli.h"

#include <string.h>

#include "weft/graph.h"
#include "weft/info.h"

static int list(void) {
    const char *name;
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
    char unused;
    int code, left;
    if (!cli_parse(verb, count, words, &unused, &left, &code)) return code;
    if (left == 1 && !strcmp(words[0], "list")) return list();
    if (left == 2 && !strcmp(words[0], "show")) return show(words[1]);
    return cli_usage(verb, "machine needs `list`, or `show` and one machine");
}

static const cli_option options[] = {{0}};

const cli_verb cli_machine = {
    .name = "machine",
    .summary = "list the machines that are built in, show one as a machine file",
    .usage = "machine list\n"
             "       weft machine show MACHINE",
    .example = "weft machine show \"8 hosts of 8 h100-80g\"",
    .notes = "A machine is a name of the list, a text as in the example, a topology, or a machine "
             "file.\nThe job key `machine` takes the same texts.",
    .options = options,
    .run = run,
};
