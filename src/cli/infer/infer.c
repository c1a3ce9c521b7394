/* `weft infer`: a model's outputs for the samples of a file. */
#include "cli/infer/trained.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef struct infer_options {
    cli_job_source source;
    const char *input, *output, *export, *checkpoint;
    int64_t rows;
    bool json;
    weft_job *memory; /* of an exported folder; NULL: no key is given */
} infer_options;

#define INFER_AT(field) offsetof(infer_options, field)
static const cli_option options[] = {
    {"input", "FILE", CLI_TEXT, INFER_AT(input), 0, 0,
     "npy: whole numbers [samples, length], or images"},
    {"out", "FILE", CLI_TEXT, INFER_AT(output), 0, 0, "npy: the logits, in f32"},
    {"export", "FOLDER", CLI_TEXT, INFER_AT(export), 0, 0,
     "write program and weights of each rank there; they run without job and checkpoint"},
    {"rows", "N", CLI_INTEGER, INFER_AT(rows), 1, INT32_MAX,
     "samples that are computed together (the job's microbatch)"},
    {"devices", "N", CLI_INTEGER, CLI_JOB_AT(infer_options, devices), 1, INT32_MAX,
     "on N devices, which share the cores"},
    {"plan", "FILE", CLI_TEXT, CLI_JOB_AT(infer_options, plan), 0, 0,
     "split the model by this plan (weft plan)"},
    {"json", NULL, CLI_FLAG, INFER_AT(json), 0, 0, "one JSON object"},
    {0},
};

static void print_json(const infer_options *values, const weft_infer_files_result *r) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "checkpoint", r->checkpoint);
    cli_json_text(&json, "out", values->output);
    cli_json_array(&json, "shape");
    for (int d = 0; d < r->rank; d++) cli_json_integer(&json, NULL, r->shape[d]);
    cli_json_close(&json, ']');
    cli_json_integer(&json, "devices", r->devices);
    cli_json_integer(&json, "predicted_peak_bytes", r->predicted_peak_bytes);
    cli_tiers_json(&json, r->host_bytes, r->disk_bytes);
    cli_json_real(&json, "seconds", r->seconds);
    cli_json_end(&json);
}

static void print_text(const infer_options *values, const weft_infer_files_result *r) {
    char peak[32], tiers[CLI_TIERS];
    cli_say(stdout, "%s: [", values->output);
    for (int d = 0; d < r->rank; d++)
        cli_say(stdout, "%s%lld", d ? ", " : "", (long long)r->shape[d]);
    cli_say(stdout, "] of %s\n", r->checkpoint);
    cli_say(stdout, "%d device%s, at most %s%s each, %.2f s\n", r->devices,
            r->devices == 1 ? "" : "s", cli_bytes((double)r->predicted_peak_bytes, peak),
            cli_tiers(r->host_bytes, r->disk_bytes, tiers), r->seconds);
}

/* The signal that asked to stop, 0 for none. Nothing is left of a file or folder that is not
 * complete. */
static const volatile int *stop_signal;

static const volatile int *asked(int rank) {
    stop_signal = cli_stop_by_signals(rank > 0 ? NULL : "stopping after this batch");
    return stop_signal;
}

static int failed(weft_status status, const char *output, int rank) {
    const int number = *stop_signal ? *stop_signal : SIGTERM; /* 0: another rank was asked */
    if (status != WEFT_E_STOPPED) return cli_failed_rank(rank);
    if (rank == 0) cli_say(stderr, "weft: stopped; %s was not written\n", output);
    return 128 + number;
}

static int compute(weft_world *world, int rank, const weft_job *job, const void *context) {
    const infer_options *values = context;
    const weft_infer_files files =
        WEFT_STRUCT(weft_infer_files, .checkpoint = values->checkpoint, .input = values->input,
                    .output = values->output, .batch = values->rows, .memory = values->memory,
                    .events = {.note = cli_trained_note, .stop = asked(rank)});
    weft_infer_files_result result;
    const weft_status status = weft_infer_files_run(world, job, &files, &result);
    if (status < 0) return failed(status, values->output, rank);
    if (rank == 0) (values->json ? print_json : print_text)(values, &result);
    return CLI_DONE;
}

static int export(weft_world *world, int rank, const weft_job *job, const void *context) {
    const infer_options *values = context;
    const weft_infer_options options =
        WEFT_STRUCT(weft_infer_options, .checkpoint = values->checkpoint, .batch = values->rows,
                    .events = {.note = cli_trained_note, .stop = asked(rank)});
    weft_infer *infer;
    weft_status status = weft_infer_open(world, job, &options, &infer);
    if (status < 0) return failed(status, values->export, rank);
    const int devices = weft_infer_info_of(infer).devices;
    status = weft_infer_export(infer, values->export);
    const int code = status < 0 ? failed(status, values->export, rank) : CLI_DONE;
    weft_infer_close(infer);
    if (code == CLI_DONE && rank == 0)
        cli_say(stdout, "%s: the program and the weights of %d device%s\n", values->export, devices,
                devices == 1 ? "" : "s");
    return code;
}

/* Of the words, the one without the sign is an exported folder, or there is only one word. */
static bool is_exported(int count, char **words) {
    const char *folder = NULL;
    int plain = 0;
    for (int i = 0; i < count; i++) {
        if (strchr(words[i], '=')) continue;
        folder = words[i];
        plain++;
    }
    if (count == 1 || plain != 1) return count == 1;
    char path[4096];
    const int bytes = snprintf(path, sizeof path, "%s/exported.json", folder);
    return bytes > 0 && bytes < (int)sizeof path && !access(path, F_OK);
}

static int run_exported(const cli_verb *verb, infer_options *values, int count, char **words) {
    const cli_job_source *source = &values->source;
    const cli_memory_words how = {.planned = true, .place = "folder", .hint = ""};
    int code = cli_trained_memory(verb, count, words, how, &values->memory);
    if (code != CLI_DONE) return code;
    if (strchr(words[0], '='))
        return cli_usage(verb, "%s needs a job and a checkpoint, or an exported folder",
                         verb->name);
    if (values->export || values->rows || source->devices || source->plan)
        return cli_usage(verb, "an exported folder has its devices, plan and rows: an export, and "
                               "options that set them, need a job and a checkpoint");
    values->checkpoint = words[0];
    return cli_exported_run(compute, values);
}

static int run(const cli_verb *verb, int count, char **words) {
    infer_options values = {.input = NULL};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (values.export ? values.input || values.output : !values.input || !values.output)
        return cli_usage(verb, "infer needs --input FILE and --out FILE, or --export FOLDER");
    if (is_exported(left, words)) {
        code = run_exported(verb, &values, left, words);
        weft_job_free(values.memory);
        return code;
    }
    code = cli_trained_words(verb, left, words, &values.source, &values.checkpoint);
    return code == CLI_DONE ? cli_trained_run(&values.source, "weft infer",
                                              values.export ? export : compute, &values)
                            : code;
}

const cli_verb cli_infer = {
    .name = "infer",
    .summary = "compute a trained model's outputs for the samples of a file",
    .usage = "infer JOB.yaml CHECKPOINT --input X.npy --out Y.npy [key=value ...] [--rows N] "
             "[--devices N] [--plan FILE] [--json]\n"
             "       weft infer JOB.yaml CHECKPOINT --export FOLDER [key=value ...] [--rows N] "
             "[--devices N] [--plan FILE]\n"
             "       weft infer FOLDER [key=value ...] --input X.npy --out Y.npy [--json]",
    .example = "weft infer job.yaml run --input tokens.npy --out logits.npy",
    .notes =
        "The job says how: precision and plan. CHECKPOINT is the directory of a run (its newest\n"
        "good step is taken), one of its steps, or a Hugging Face directory. FOLDER is what\n"
        "--export wrote; its keys are memory.disk.path, memory.disk.size, memory.device,\n"
        "memory.host and device.memory.\n"
        "Started by weft launch, mpirun, srun or torchrun: one device for each process.",
    .options = options,
    .run = run,
};
