/* `weft checkpoint`: look into checkpoints and Hugging Face directories, and verify them. */
#include "cli.h"

#include <string.h>

#include "weft/checkpoint.h"

typedef struct checkpoint_options {
    bool json;
} checkpoint_options;

static const cli_option options[] = {
    {"json", NULL, CLI_FLAG, offsetof(checkpoint_options, json), 0, 0, "one JSON object"},
    {0},
};

static int run(const cli_verb *verb, int count, char **words) {
    static const char *const actions[] = {"inspect", "verify", NULL};
    checkpoint_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (left == 0) return cli_usage(verb, "checkpoint needs to be told what to do");
    bool verify = !strcmp(words[0], "verify");
    if (!verify && strcmp(words[0], "inspect") != 0) {
        const char *near = cli_nearest(words[0], actions);
        return cli_usage(verb, "checkpoint cannot '%s'; it can %s", words[0],
                         near ? near : "inspect or verify");
    }
    if (left != 2) return cli_usage(verb, "checkpoint %s takes one path", words[0]);
    char *text = NULL;
    weft_status status = verify ? weft_checkpoint_verify(words[1], values.json, &text)
                                : weft_checkpoint_describe(words[1], values.json, &text);
    if (text) fputs(text, stdout);
    weft_checkpoint_text_free(text);
    return status < 0 ? cli_failed() : CLI_DONE;
}

const cli_verb cli_checkpoint = {
    .name = "checkpoint",
    .summary = "look into a checkpoint, or verify it",
    .usage = "checkpoint inspect|verify PATH [--json]",
    .example = "weft checkpoint verify run/",
    .notes = "PATH is a run's directory, one of its steps, a Hugging Face directory or a "
             ".safetensors file.\n"
             "verify reads every byte and exits 1 when anything is damaged.",
    .options = options,
    .run = run,
};
