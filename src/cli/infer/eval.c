/* `weft eval`: how good a trained model is on data. */
#include "cli/infer/trained.h"

#include <math.h>

typedef struct eval_options {
    cli_job_source source;
    const char *data, *labels, *checkpoint;
    bool json;
} eval_options;

#define EVAL_AT(field) offsetof(eval_options, field)
static const cli_option options[] = {
    {"data", "FILE", CLI_TEXT, EVAL_AT(data), 0, 0,
     "evaluate FILE, in the job's data.format (the job's validation data)"},
    {"labels", "FILE", CLI_TEXT, EVAL_AT(labels), 0, 0,
     "the labels of the images of --data (found by name)"},
    {"devices", "N", CLI_INTEGER, CLI_JOB_AT(eval_options, devices), 1, INT32_MAX,
     "on N devices, which share the cores"},
    {"plan", "FILE", CLI_TEXT, CLI_JOB_AT(eval_options, plan), 0, 0,
     "split the model by this plan (weft plan)"},
    {"json", NULL, CLI_FLAG, EVAL_AT(json), 0, 0, "one JSON object"},
    {0},
};

static void print_json(const weft_eval_result *r) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "checkpoint", r->checkpoint);
    cli_json_integer(&json, "samples", r->samples);
    cli_json_integer(&json, "targets", r->targets);
    cli_json_integer(&json, "bytes", r->bytes);
    cli_json_real(&json, "loss", r->loss);
    cli_json_real(&json, "perplexity", r->perplexity);
    cli_json_real(&json, "bits_per_byte", r->bits_per_byte);
    cli_json_real(&json, "accuracy", r->accuracy);
    cli_json_integer(&json, "devices", r->devices);
    cli_json_integer(&json, "predicted_peak_bytes", r->predicted_peak_bytes);
    cli_tiers_json(&json, r->host_bytes, r->disk_bytes);
    cli_json_real(&json, "seconds", r->seconds);
    cli_json_end(&json);
}

static void print_text(const weft_eval_result *r) {
    char peak[32], tiers[CLI_TIERS];
    cli_say(stdout, "checkpoint     %s\n", r->checkpoint);
    cli_say(stdout, "samples        %lld, with %lld targets\n", (long long)r->samples,
            (long long)r->targets);
    cli_say(stdout, "loss           %.6f\n", r->loss);
    if (isfinite(r->perplexity)) cli_say(stdout, "perplexity     %.4f\n", r->perplexity);
    if (isfinite(r->bits_per_byte)) cli_say(stdout, "bits per byte  %.5f\n", r->bits_per_byte);
    if (isfinite(r->accuracy)) cli_say(stdout, "accuracy       %.4f\n", r->accuracy);
    cli_say(stdout, "%d device%s, at most %s%s each, %.2f s\n", r->devices,
            r->devices == 1 ? "" : "s", cli_bytes((double)r->predicted_peak_bytes, peak),
            cli_tiers(r->host_bytes, r->disk_bytes, tiers), r->seconds);
}

static int evaluate(weft_world *world, int rank, const weft_job *job, const void *context) {
    const eval_options *values = context;
    weft_eval_options how =
        WEFT_STRUCT(weft_eval_options, .checkpoint = values->checkpoint, .data = values->data,
                    .labels = values->labels, .events = {.note = cli_trained_note});
    weft_eval_result result;
    if (weft_eval_run(world, job, &how, &result) < 0) return cli_failed_rank(rank);
    if (rank == 0) (values->json ? print_json : print_text)(&result);
    return CLI_DONE;
}

static int run(const cli_verb *verb, int count, char **words) {
    eval_options values = {.data = NULL};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (values.labels && !values.data) return cli_usage(verb, "--labels belongs to --data");
    code = cli_trained_words(verb, left, words, &values.source, &values.checkpoint);
    return code == CLI_DONE ? cli_trained_run(&values.source, "weft eval", evaluate, &values)
                            : code;
}

const cli_verb cli_eval = {
    .name = "eval",
    .summary = "evaluate a trained model: loss, perplexity, bits per byte, accuracy",
    .usage = "eval JOB.yaml CHECKPOINT [key=value ...] [--data FILE] [--labels FILE] "
             "[--devices N] [--plan FILE] [--json]",
    .example = "weft eval job.yaml run --data held-out.txt --devices 2",
    .notes = "The job says how: data, batch, precision, plan. CHECKPOINT is the directory of a run "
             "(its\nnewest good step is taken), one of its steps, or a Hugging Face directory; it "
             "may have been\nwritten on any plan.\n"
             "Started by weft launch, mpirun, srun or torchrun: one device for each process.",
    .options = options,
    .run = run,
};
