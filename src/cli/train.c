/* `weft train`: run a job. */
#include "train_progress.h"

#include <string.h>

#include "weft/launch.h"

typedef struct train_options {
    cli_job_source source;
    bool json, job, keys;
    const char *trace;
} train_options;

static const cli_option options[] = {
    {"devices", "N", CLI_INTEGER, CLI_JOB_AT(train_options, devices), 1, INT32_MAX,
     "train on N devices, which share the cores"},
    {"plan", "FILE", CLI_TEXT, CLI_JOB_AT(train_options, plan), 0, 0,
     "split the model by this plan (weft plan)"},
    CLI_MODE_OPTIONS(train_options),
    CLI_SEARCH_OPTIONS(train_options),
    {"json", NULL, CLI_FLAG, offsetof(train_options, json), 0, 0, "one JSON object a step"},
    {"trace", "FILE", CLI_TEXT, offsetof(train_options, trace), 0, 0,
     "write a trace of all steps, for ui.perfetto.dev"},
    {"job", NULL, CLI_FLAG, offsetof(train_options, job), 0, 0,
     "show the job with all its values, and stop"},
    {"keys", NULL, CLI_FLAG, offsetof(train_options, keys), 0, 0,
     "show all keys of a job file, and stop"},
    {0},
};

/* The signal that asked to stop, 0 for none. The first one ends the run after a checkpoint. */
static const volatile int *stop_signal;

static int stopped(const train_progress *p, const weft_train_result *result, int rank) {
    const bool by_file = result->stop == WEFT_TRAIN_STOPPED_BY_FILE;
    const int code = by_file ? CLI_DONE : 128 + result->stop;
    if (rank > 0) return code;
    cli_say(stderr, "weft: stopped after step %lld%s; ", (long long)result->steps,
            by_file ? ", as checkpoint.stop_file asks" : "");
    if (*result->checkpoint)
        cli_say(stderr, "the same command continues from %s\n", result->checkpoint);
    else
        cli_say(stderr, "nothing was saved, as %s\n", train_progress_why_unsaved(p));
    return code;
}

/* `world`: NULL, or this process's place among several; rank 0 reports. */
static int train(weft_world *world, const weft_job *job, const train_options *values) {
    int rank = world ? weft_world_rank(world) : 0;
    train_progress progress = {.json = values->json,
                               .live = !values->json && cli_is_terminal(stdout),
                               .saves = *job->checkpoint.dir != '\0',
                               .eval_every = job->train.eval_every};
    weft_train_events events = train_progress_events(&progress);
    weft_train_result result = {0};
    events.trace = values->trace;
    stop_signal = cli_stop_by_signals(rank > 0 ? NULL : "stopping after this step");
    events.stop = stop_signal;
    weft_status status = weft_train_run_in(world, job, &events, &result);
    if (world) rank = weft_world_rank(world); /* which an elastic world may have changed */
    if (rank == 0) train_progress_end(&progress, &result, status);
    const bool by_file = status >= 0 && result.stop == WEFT_TRAIN_STOPPED_BY_FILE;
    if (by_file || (status == WEFT_E_STOPPED && result.stop))
        return stopped(&progress, &result, rank);
    return status < 0 ? cli_failed_rank(rank) : CLI_DONE;
}

static int train_across(const weft_launcher *launcher, const weft_job *job,
                        const train_options *values) {
    weft_world *world;
    weft_world_options options = WEFT_STRUCT(
        weft_world_options, .links = *job->parallel.links ? job->parallel.links : job->machine);
    char *identity;
    if (weft_job_identity(job, "weft train", &identity) < 0) return cli_failed_rank(launcher->rank);
    options.identity = identity;
    const weft_status joined = weft_world_join(&options, &world);
    weft_text_free(identity);
    if (joined < 0) return cli_failed_to_join(launcher->rank, joined);
    int code = train(world, job, values);
    /* Leaving may wait for other ranks, under mpirun for as long as they run. */
    cli_let_requests_end_this(*stop_signal);
    return cli_leave(world, code);
}

static int run(const cli_verb *verb, int count, char **words) {
    train_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (values.json && (values.job || values.keys))
        return cli_usage(verb, "--json is for a training; --job shows a job file, --keys Markdown");
    if (values.keys) {
        cli_show_keys();
        return CLI_DONE;
    }
    if ((code = cli_job_words(verb, left, words, &values.source)) != CLI_DONE) return code;
    weft_launcher launcher;
    weft_job *job;
    if ((code = cli_find_launcher(&launcher)) != CLI_DONE) return code;
    int size = launcher.name ? launcher.size : 1;
    values.source.recovery = weft_launch_recovery();
    if ((code = cli_job_load_for(size, &values.source, &job)) != CLI_DONE) return code;
    if (values.job && launcher.rank <= 0)
        cli_say(stdout, "%s", job->text);
    else if (!values.job)
        code = size > 1 ? train_across(&launcher, job, &values) : train(NULL, job, &values);
    weft_job_free(job);
    return code;
}

const cli_verb cli_train = {
    .name = "train",
    .summary = "train a model described by a job file",
    .usage = "train JOB.yaml [key=value ...] [--devices N] [--plan FILE] [--json]\n"
             "       weft train RUN [key=value ...]",
    .example = "weft train job.yaml train.steps=500 train.optimizer.lr=6e-4",
    .notes = "key=value words replace keys of the file; `weft train --keys` lists all keys.\n"
             "RUN, the directory of a run, goes on from its newest step with the run's own job.\n"
             "Started by weft launch, mpirun, srun or torchrun: one device for each process.",
    .options = options,
    .run = run,
};
