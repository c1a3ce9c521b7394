/* `weft train`: run a job. */
#include "train_progress.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef struct train_options {
    bool json, job, keys;
    int64_t devices;
    const char *plan, *trace;
} train_options;

static const cli_option options[] = {
    {"devices", "N", CLI_INTEGER, offsetof(train_options, devices), 1, CLI_DEVICES_MAX,
     "train on N devices, which share the cores"},
    {"plan", "FILE", CLI_TEXT, offsetof(train_options, plan), 0, 0,
     "split the model as this plan says (weft plan)"},
    {"json", NULL, CLI_FLAG, offsetof(train_options, json), 0, 0, "one JSON object a step"},
    {"trace", "FILE", CLI_TEXT, offsetof(train_options, trace), 0, 0,
     "write what ran when, for ui.perfetto.dev"},
    {"job", NULL, CLI_FLAG, offsetof(train_options, job), 0, 0,
     "show the job with all its values, and stop"},
    {"keys", NULL, CLI_FLAG, offsetof(train_options, keys), 0, 0,
     "show all keys of a job file, and stop"},
    {0},
};

/* The signal that asked to stop, 0 for none. The first one ends the run after a checkpoint; the
 * handler is then gone, so a second one ends the process at once. */
static volatile int stop_signal;

static void on_signal(int number) {
    static const char text[] = "\nweft: stopping after this step; once more to stop at once\n";
    stop_signal = number;
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int train(const weft_job *job, const train_options *values) {
    train_progress progress = {.json = values->json,
                               .live = !values->json && cli_is_terminal(stdout),
                               .eval_every = job->train.eval_every};
    weft_train_events events = train_progress_events(&progress);
    weft_train_result result = {0};
    events.stop = &stop_signal;
    events.trace = values->trace;
    catch_signals();
    weft_status status = weft_train_run(job, &events, &result);
    train_progress_end(&progress, &result, status);
    if (status == WEFT_E_STOPPED && stop_signal) {
        fprintf(stderr, "weft: stopped after step %lld; ", (long long)result.steps);
        if (*result.checkpoint)
            fprintf(stderr, "the same command goes on from %s\n", result.checkpoint);
        else
            fprintf(stderr, "nothing was saved, as %s\n",
                    *job->checkpoint.dir ? "no step was done" : "the job has no checkpoint.dir");
        return 128 + stop_signal;
    }
    return status < 0 ? cli_failed() : CLI_DONE;
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
    if ((code = cli_job_words(verb, left, words, &path, &overrides)) != CLI_DONE) return code;
    weft_job *job;
    code = cli_job_load(path, words, overrides, values.devices, values.plan, &job);
    if (code != CLI_DONE) return code;
    if (values.job)
        fputs(job->text, stdout);
    else
        code = train(job, &values);
    weft_job_free(job);
    return code;
}

const cli_verb cli_train = {
    .name = "train",
    .summary = "train a model as a job file says",
    .usage = "train JOB.yaml [key=value ...] [--devices N] [--plan FILE] [--json]",
    .example = "weft train job.yaml train.steps=500 train.optimizer.lr=6e-4",
    .notes = "key=value words replace what the file says; `weft train --keys` lists all keys.",
    .options = options,
    .run = run,
};
