/* `weft plan`: how a job's model is split over devices: write it, check it, compare two. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#include "cli/plan/plan.h"
#include "weft/plan.h"
#include "weft/train.h"

typedef struct plan_options {
    cli_job_source source;
    const char *out, *check, *export, *why, *why_not, *strategy, *failures;
    bool diff, json, redundancy, infer;
    int64_t rows, length;
} plan_options;

#define PLAN_AT(field) offsetof(plan_options, field)
static const cli_option options[] = {
    {"devices", "N", CLI_INTEGER, CLI_JOB_AT(plan_options, devices), 1, INT32_MAX, "for N devices"},
    {"plan", "FILE", CLI_TEXT, CLI_JOB_AT(plan_options, plan), 0, 0,
     "--infer, --redundancy, --export-strategy: of this plan (the job's)"},
    CLI_MODEL_OPTIONS(plan_options),
    CLI_MODE_OPTIONS(plan_options),
    {"out", "FILE", CLI_TEXT, PLAN_AT(out), 0, 0, "write the plan there instead of showing it"},
    {"check", "FILE", CLI_TEXT, PLAN_AT(check), 0, 0, "check this plan for the job"},
    {"export", "NAME", CLI_TEXT, PLAN_AT(export), 0, 0,
     "as options of another system: megatron or torchtitan"},
    {"export-strategy", "FILE", CLI_TEXT, PLAN_AT(strategy), 0, 0,
     "write the layouts of tensors as a strategy file of MindSpore: .json, else protobuf"},
    {"redundancy", NULL, CLI_FLAG, PLAN_AT(redundancy), 0, 0,
     "show the groups of ranks whose slices of all tensors are the same"},
    {"infer", NULL, CLI_FLAG, PLAN_AT(infer), 0, 0,
     "show the layouts and the memory of each rank when the model is used (weft infer)"},
    {"rows", "N", CLI_INTEGER, PLAN_AT(rows), 1, INT32_MAX,
     "--infer: samples that are computed together (the job's microbatch)"},
    {"length", "N", CLI_INTEGER, PLAN_AT(length), 1, INT32_MAX,
     "--infer: tokens of a sample (the job's model.context)"},
    {"diff", NULL, CLI_FLAG, PLAN_AT(diff), 0, 0, "show the differences between two plan files"},
    {"why", "CELL", CLI_TEXT, PLAN_AT(why), 0, 0,
     "a cell of the plan, and what other choices for it would take"},
    {"why-not", "TEXT", CLI_TEXT, PLAN_AT(why_not), 0, 0,
     "what an alternative would cost: constraints as --fix takes them, or a plan's file (.json)"},
    CLI_SEARCH_OPTIONS(plan_options),
    {"failures", "TEXT", CLI_TEXT, PLAN_AT(failures), 0, 0,
     "how devices fail, for the goodput: \"mtbf=50000h checkpoint=30s restart=5min\""},
    {"json", NULL, CLI_FLAG, PLAN_AT(json), 0, 0,
     "the answer of the joint search, --check, --diff, --infer: one JSON object"},
    {0},
};

/* A wrong plan is an answer; a file that cannot be read is a failure. */
static bool is_verdict(weft_status status) {
    return status == WEFT_E_ARG || status == WEFT_E_SHAPE || status == WEFT_E_LAYOUT ||
           status == WEFT_E_CORRUPT || status == WEFT_E_NO_IMPL;
}

static int verdict(const char *plan, weft_status status, const weft_model_report *report,
                   bool as_json) {
    char bytes[32], own[32], tiers[CLI_TIERS];
    if (status < 0 && !(as_json && is_verdict(status))) return cli_failed();
    if (as_json) {
        cli_json json;
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "plan", plan);
        cli_json_bool(&json, "good", status >= 0);
        cli_json_text(&json, "error", status < 0 ? weft_error_message() : NULL);
        if (report) {
            cli_json_integer(&json, "predicted_peak_bytes", report->predicted_peak_bytes);
            cli_json_integer(&json, "program_bytes", report->program_bytes);
            cli_tiers_json(&json, report->host_bytes, report->disk_bytes);
            cli_moves_json(&json, report->host_moved_bytes, report->disk_moved_bytes);
            cli_servers_json(&json, report->server_bytes, report->server_moved_bytes);
        }
        cli_json_end(&json);
    } else {
        cli_say(stdout,
                "%s is good for this job: predicted peak memory %s on the device that needs most, "
                "programs %s%s\n",
                plan, cli_bytes((double)report->predicted_peak_bytes, bytes),
                cli_bytes((double)report->program_bytes, own),
                cli_tiers(report->host_bytes, report->disk_bytes, tiers));
        cli_say(stdout, "%s", cli_moves(report->host_moved_bytes, report->disk_moved_bytes, tiers));
        cli_servers(stdout, report->server_bytes, report->server_moved_bytes);
    }
    return status < 0 ? CLI_FAILED : CLI_DONE;
}

/* Reads the plan, then builds everything that a run with it would. */
static int check(const plan_options *values) {
    cli_job_source source = values->source;
    weft_job *job = NULL;
    weft_model_report *report = NULL;
    weft_plan *plan;
    weft_status status = weft_plan_load(values->check, &plan);
    if (status < 0) return verdict(values->check, status, NULL, values->json);
    int devices = weft_plan_devices(plan);
    weft_plan_destroy(plan);
    if (!source.devices) source.devices = devices;
    source.plan = values->check;
    int code = cli_job_load(&source, &job);
    if (code != CLI_DONE) return code;
    status = weft_job_report(job, &report);
    if (report) cli_notes(report->unmatched);
    code = verdict(values->check, status, report, values->json);
    weft_model_report_free(report);
    weft_job_free(job);
    return code;
}

static int show(const weft_plan *plan, const char *out) {
    char *text;
    if (out) {
        if (weft_plan_save(plan, out) < 0) return cli_failed();
        cli_say(stdout, "%s: the plan for %d %s; see `weft plan --help`\n", out,
                weft_plan_devices(plan), weft_plan_devices(plan) == 1 ? "device" : "devices");
        return CLI_DONE;
    }
    if (weft_plan_print(plan, &text) < 0) return cli_failed();
    cli_say(stdout, "%s", text);
    weft_text_free(text);
    return CLI_DONE;
}

/* An alternative for a search is searched for with further constraints; for a job with its own
 * plan, with these constraints alone. */
static int why_not(const plan_options *values, const weft_job *job) {
    const cli_plan_question q = {.why_not = values->why_not,
                                 .evaluations = values->source.evaluations,
                                 .json = values->json};
    cli_job_source source = values->source;
    weft_job *other;
    const bool searched = cli_plan_is_joint(job);
    const size_t length = strlen(values->why_not);
    const bool is_file = length > 5 && !strcmp(values->why_not + length - 5, ".json");
    if (is_file) {
        source.plan = values->why_not;
        source.fix = source.mode = source.search = source.search_seconds = NULL;
        source.evaluations = 0;
    } else {
        source.fix_more = values->why_not;
    }
    if (!is_file && !searched) return cli_plan_why_not_own(job, &q);
    int code = cli_job_load(&source, &other);
    if (code != CLI_DONE) return code;
    code = searched ? cli_plan_why_not(job, other, &q) : cli_plan_why_not_file(job, other, &q);
    weft_job_free(other);
    return code;
}

static int answer(const cli_verb *verb, const plan_options *values, const weft_job *job) {
    const cli_plan_question q = {
        .out = values->out, .failures = values->failures, .json = values->json};
    if (values->why_not) return why_not(values, job);
    if (cli_plan_is_joint(job))
        return values->why ? cli_plan_why(job, values->why, values->json)
                           : cli_plan_search(job, &q);
    if (values->why) return cli_usage(verb, "--why asks the joint search: it needs mode auto");
    return cli_usage(verb, "a plan is JSON already; --json is for mode auto, --check and --diff");
}

static int complete(const cli_verb *verb, const plan_options *values) {
    weft_job *job;
    weft_plan *plan;
    char *unmatched;
    cli_job_source source = values->source;
    if (values->out && !cli_can_write(values->out)) return cli_failed();
    /* An imported plan is not searched for, only its alternative. */
    if (values->why_not && source.import) source.evaluations = 0;
    int code = cli_job_load(&source, &job);
    if (code != CLI_DONE) return code;
    if (cli_plan_is_joint(job) || values->json || values->why_not || values->why) {
        code = answer(verb, values, job);
    } else if (weft_job_plan(job, &plan, &unmatched) < 0) {
        code = cli_failed();
    } else {
        cli_notes(unmatched);
        weft_text_free(unmatched);
        code = show(plan, values->out);
        weft_plan_destroy(plan);
    }
    weft_job_free(job);
    return code;
}

/* The options go to stdout, the notes to stderr. */
static int export(const cli_verb *verb, const plan_options *values) {
    static const char *const names[WEFT_SYSTEMS] = {
#define SYSTEM_NAME(name, text) text,
        WEFT_SYSTEM_LIST(SYSTEM_NAME)
#undef SYSTEM_NAME
    };
    int system = 0;
    weft_job *job;
    char *options, *notes;
    while (system < WEFT_SYSTEMS && strcmp(values->export, names[system]) != 0) system++;
    if (system == WEFT_SYSTEMS)
        return cli_usage(verb, "--export is megatron or torchtitan, not '%s'", values->export);
    int code = cli_job_load(&values->source, &job);
    if (code != CLI_DONE) return code;
    if (weft_job_export(job, (weft_system)system, &options, &notes) < 0) {
        code = cli_failed();
    } else {
        cli_say(stdout, "%s", options);
        for (const char *line = notes, *end; (end = strchr(line, '\n')); line = end + 1)
            cli_say(stderr, "weft: note: %s cannot express %.*s\n", values->export,
                    (int)(end - line), line);
        weft_text_free(options);
        weft_text_free(notes);
    }
    weft_job_free(job);
    return code;
}

/* Two files of plans, and behind them the words of a job. */
static int diff(const cli_verb *verb, int count, char **words, plan_options *values) {
    cli_job_source *source = &values->source;
    if (count < 2) return cli_usage(verb, "--diff compares two plan files, not %d", count);
    const cli_plan_files files = {words[0], words[1]};
    const bool has_job = count > 2 || source->model || source->import;
    if (!has_job && (source->machine || source->topology))
        return cli_usage(verb, "--diff predicts steps of a job: name it behind the two plans");
    if (!has_job) return cli_plan_diff(&files, NULL, values->json);
    int code = cli_job_words(verb, count - 2, words + 2, source);
    return code == CLI_DONE ? cli_plan_diff(&files, source, values->json) : code;
}

static int redundancy(const plan_options *values, const weft_job *job) {
    char *text;
    if (weft_job_redundancy(job, values->json, &text) < 0) return cli_failed();
    cli_say(stdout, "%s", text);
    weft_text_free(text);
    return CLI_DONE;
}

/* What needs a job, and not its completed plan. */
static int about_slices(const plan_options *values) {
    weft_job *job;
    int code = cli_job_load(&values->source, &job);
    if (code != CLI_DONE) return code;
    if (values->redundancy)
        code = redundancy(values, job);
    else if (values->infer)
        code = cli_plan_infer(job, values->rows, values->length, values->json);
    else if (weft_job_strategy_save(job, values->strategy) < 0)
        code = cli_failed();
    weft_job_free(job);
    return code;
}

static bool about_given_plan(const plan_options *values) {
    return values->strategy || values->redundancy || values->infer;
}

static int run(const cli_verb *verb, int count, char **words) {
    plan_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (values.diff + (values.check != NULL) + (values.out != NULL) + (values.export != NULL) +
            (values.strategy != NULL) + values.redundancy + values.infer >
        1)
        return cli_usage(verb, "--out, --check, --export, --export-strategy, --redundancy, "
                               "--infer and --diff are different things");
    if ((values.rows || values.length) && !values.infer)
        return cli_usage(verb, "--rows and --length belong to --infer");
    if (values.source.plan && !about_given_plan(&values))
        return cli_usage(verb, "--plan belongs to --infer, --redundancy and --export-strategy; the "
                               "other answers are about the plan that is made");
    if (values.failures && (code = cli_goodput_check(verb, values.failures)) != CLI_DONE)
        return code;
    if (values.diff) return diff(verb, left, words, &values);
    if (values.why && values.why_not)
        return cli_usage(verb, "--why and --why-not are two questions");
    if ((values.why_not || values.why) && (values.check || values.out || values.export ||
                                           values.strategy || values.redundancy || values.infer))
        return cli_usage(verb, "--why and --why-not only show what something costs");
    if ((code = cli_job_words(verb, left, words, &values.source)) != CLI_DONE) return code;
    if (about_given_plan(&values)) return about_slices(&values);
    if (values.export) return export(verb, &values);
    return values.check ? check(&values) : complete(verb, &values);
}

const cli_verb cli_plan = {
    .name = "plan",
    .summary = "how a job's model is split over devices: write, check and compare plans",
    .usage =
        "plan JOB.yaml [key=value ...] [--devices N] [--out FILE]\n"
        "       weft plan --model config.json [--batch N] [--context N] [--precision NAME] ...\n"
        "       weft plan --import FILE [key=value ...] [--devices N] [--out FILE]\n"
        "       weft plan --export megatron|torchtitan JOB.yaml [key=value ...]\n"
        "       weft plan --export-strategy FILE JOB.yaml [key=value ...]\n"
        "       weft plan --redundancy JOB.yaml [key=value ...] [--json]\n"
        "       weft plan --infer JOB.yaml [key=value ...] [--plan FILE] [--rows N] [--length N] "
        "[--json]\n"
        "       weft plan --why CELL JOB.yaml [key=value ...] [--machine MACHINE]\n"
        "       weft plan --why-not TEXT JOB.yaml [key=value ...] [--machine MACHINE]\n"
        "       weft plan --check FILE JOB.yaml [key=value ...]\n"
        "       weft plan --diff FILE FILE [JOB.yaml key=value ... --machine MACHINE]",
    .example = "weft plan job.yaml --devices 8 --out plan.json\n"
               "  weft plan job.yaml --machine \"8 hosts of 8 h100-80g\"\n"
               "  weft plan --check plan.json job.yaml\n"
               "  weft train job.yaml --plan plan.json",
    .notes =
        "The plan is that of the job's section `parallel`, completed: how each op is split, how "
        "each tensor lies,\nwhich stage each cell is in. Nothing is trained. In mode auto the "
        "joint "
        "search makes the plan;\nshown are its step on the machine and the lower bound. --diff "
        "ends with 1 when the plans differ;\nwith a job it also predicts both steps.",
    .options = options,
    .run = run,
};
