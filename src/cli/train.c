/* `weft train`: run a job. */
#include "cli.h"

#include <string.h>

#include "weft/job.h"

typedef struct train_options {
    bool json, job, keys;
    const char *trace;
} train_options;

static const cli_option options[] = {
    {"json", NULL, CLI_FLAG, offsetof(train_options, json), 0, 0, "one JSON object a step"},
    {"trace", "FILE", CLI_TEXT, offsetof(train_options, trace), 0, 0,
     "write what ran when, for ui.perfetto.dev"},
    {"job", NULL, CLI_FLAG, offsetof(train_options, job), 0, 0,
     "show the job with all its values, and stop"},
    {"keys", NULL, CLI_FLAG, offsetof(train_options, keys), 0, 0,
     "show all keys of a job file, and stop"},
    {0},
};

/* [JOB.yaml] key=value...: the file is the one word without '='. Words are reordered so that the
 * overrides come first. */
static int split_words(const cli_verb *verb, int count, char **words, const char **out_path,
                       int *out_overrides) {
    int overrides = 0;
    *out_path = NULL;
    for (int i = 0; i < count; i++) {
        if (strchr(words[i], '=')) {
            words[overrides++] = words[i];
            continue;
        }
        if (*out_path)
            return cli_usage(verb, "two job files, '%s' and '%s'; one is trained at a time",
                             *out_path, words[i]);
        *out_path = words[i];
    }
    *out_overrides = overrides;
    return CLI_DONE;
}

static int run(const cli_verb *verb, int count, char **words) {
    train_options values = {0};
    const char *path;
    int code, left, overrides = 0;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (values.keys) {
        cli_show_keys();
        return CLI_DONE;
    }
    if (left == 0) return cli_usage(verb, "train needs a job file or key=value words");
    if ((code = split_words(verb, left, words, &path, &overrides)) != CLI_DONE) return code;
    weft_job *job;
    if (weft_job_load(path, (const char *const *)words, overrides, &job) < 0) return cli_failed();
    fputs(job->text, stdout);
    weft_job_free(job);
    return CLI_DONE;
}

const cli_verb cli_train = {
    .name = "train",
    .summary = "train a model as a job file says",
    .usage = "train JOB.yaml [key=value ...] [--json] [--trace FILE]",
    .example = "weft train job.yaml train.steps=500 train.optimizer.lr=6e-4",
    .notes = "key=value words replace what the file says; `weft train --keys` lists all keys.",
    .options = options,
    .run = run,
};
