/* `weft simulate`: a step of a job on a machine that need not exist. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

#include "weft/predict.h"

typedef struct simulate_options {
    cli_job_source source;
    cli_texts slow, links;
    const char *fail, *trace, *report;
    bool json;
} simulate_options;

#define SIMULATE_AT(field) offsetof(simulate_options, field)
static const cli_option options[] = {
    {"plan", "FILE", CLI_TEXT, CLI_JOB_AT(simulate_options, plan), 0, 0, "by this plan"},
    {"devices", "N", CLI_INTEGER, CLI_JOB_AT(simulate_options, devices), 1, INT32_MAX,
     "for N devices"},
    CLI_MODEL_OPTIONS(simulate_options),
    CLI_MODE_OPTIONS(simulate_options),
    {"slow", "rank=R,x=F", CLI_TEXTS, SIMULATE_AT(slow), 0, 0,
     "kernels of rank R take F times as long; may be repeated"},
    {"link", "A-B,x=F", CLI_TEXTS, SIMULATE_AT(links), 0, 0,
     "the link between ranks A and B has F times its speed, at most 1; may be repeated"},
    {"fail", "rank=R,at=T", CLI_TEXT, SIMULATE_AT(fail), 0, 0, "rank R stops after T seconds"},
    {"trace", "FILE", CLI_TEXT, SIMULATE_AT(trace), 0, 0,
     "write a timeline of all ranks, for ui.perfetto.dev"},
    {"report", "FILE", CLI_TEXT, SIMULATE_AT(report), 0, 0,
     "write an HTML page: time by cause, timeline, memory, hosts"},
    {"json", NULL, CLI_FLAG, SIMULATE_AT(json), 0, 0, "one JSON object"},
    {0},
};

/* ---- words of the options ---- */

/* A number after `name`, then `end`; NULL: the text is another. */
static const char *number_after(const char *text, const char *name, double *out) {
    const size_t length = strlen(name);
    char *end;
    if (strncmp(text, name, length) != 0) return NULL;
    *out = strtod(text + length, &end);
    return end == text + length ? NULL : end;
}

static bool whole(double value) {
    return value >= 0 && value <= INT32_MAX && value == (double)(int32_t)value;
}

static bool parse_slow(const char *text, weft_slow_rank *out) {
    double rank = -1, factor = 0;
    const char *at = number_after(text, "rank=", &rank);
    at = at ? number_after(at, ",x=", &factor) : NULL;
    *out = (weft_slow_rank){whole(rank) ? (int)rank : 0, factor};
    return at && !*at && whole(rank) && factor >= 1 && factor <= 1e6;
}

static bool parse_link(const char *text, weft_slow_link *out) {
    double a = -1, b = -1, speed = 0;
    const char *at = number_after(text, "", &a);
    at = at ? number_after(at, "-", &b) : NULL;
    at = at ? number_after(at, ",x=", &speed) : NULL;
    if (!at || *at || !whole(a) || !whole(b) || !(speed >= 1e-6 && speed <= 1)) return false;
    *out = (weft_slow_link){(int)a, (int)b, 1 / speed};
    return true;
}

static bool parse_fail(const char *text, weft_disturbances *out) {
    double rank = -1, seconds = 0;
    const char *at = number_after(text, "rank=", &rank);
    at = at ? number_after(at, ",at=", &seconds) : NULL;
    if (!at || (*at && strcmp(at, "s") != 0) || !whole(rank) || !(seconds > 0 && seconds <= 1e9))
        return false;
    out->failing = (int)rank;
    out->fail_seconds = seconds;
    return true;
}

typedef struct disturbed {
    weft_slow_rank *ranks;
    weft_slow_link *links;
    weft_disturbances all;
} disturbed;

static int parse_words(const cli_verb *verb, const simulate_options *values, disturbed *out) {
    for (int i = 0; i < values->slow.count; i++)
        if (!parse_slow(values->slow.items[i], &out->ranks[i]))
            return cli_usage(verb,
                             "--slow %s: needs rank=R,x=F with a factor of 1 to 1000000, as in "
                             "rank=3,x=1.5",
                             values->slow.items[i]);
    for (int i = 0; i < values->links.count; i++)
        if (!parse_link(values->links.items[i], &out->links[i]))
            return cli_usage(verb,
                             "--link %s: needs A-B,x=F with a speed of 0.000001 to 1, as in "
                             "0-8,x=0.5",
                             values->links.items[i]);
    out->all.slow_ranks = out->ranks;
    out->all.slow_rank_count = values->slow.count;
    out->all.slow_links = out->links;
    out->all.slow_link_count = values->links.count;
    if (values->fail && !parse_fail(values->fail, &out->all))
        return cli_usage(verb, "--fail %s: needs rank=R,at=T in seconds, as in rank=5,at=2.0s",
                         values->fail);
    return CLI_DONE;
}

/* ---- the verb ---- */

static int simulate(const simulate_options *values, const disturbed *x) {
    const weft_predict_options o =
        WEFT_STRUCT(weft_predict_options, .disturbances = x->all, .trace = values->trace,
                    .report = values->report,
                    .title = values->source.path ? values->source.path : values->source.model);
    weft_prediction *p;
    weft_job *job;
    if (values->trace && !cli_can_write(values->trace)) return cli_failed();
    if (values->report && !cli_can_write(values->report)) return cli_failed();
    int code = cli_job_load(&values->source, &job);
    if (code != CLI_DONE) return code;
    if (weft_job_predict(job, &o, &p) < 0) {
        code = cli_failed();
    } else {
        (values->json ? cli_simulation_json : cli_simulation_text)(p);
        weft_prediction_free(p);
    }
    weft_job_free(job);
    return code;
}

static int ask(const cli_verb *verb, int count, char **words, simulate_options *values) {
    int code, left;
    disturbed x = {.ranks = NULL};
    if (!cli_parse(verb, count, words, values, &left, &code)) return code;
    if ((code = cli_job_words(verb, left, words, &values->source)) != CLI_DONE) return code;
    x.ranks = calloc((size_t)values->slow.count + 1, sizeof *x.ranks);
    x.links = calloc((size_t)values->links.count + 1, sizeof *x.links);
    if (!x.ranks || !x.links) {
        code = cli_complain("no memory");
    } else {
        code = parse_words(verb, values, &x);
    }
    if (code == CLI_DONE) code = simulate(values, &x);
    free(x.ranks);
    free(x.links);
    return code;
}

static int run(const cli_verb *verb, int count, char **words) {
    simulate_options values = {0};
    int code = CLI_FAILED;
    if (cli_texts_create(&values.slow, count) && cli_texts_create(&values.links, count))
        code = ask(verb, count, words, &values);
    cli_texts_free(&values.slow);
    cli_texts_free(&values.links);
    return code;
}

const cli_verb cli_simulate = {
    .name = "simulate",
    .summary = "predict a step of a job on a machine: time by cause, timeline, memory",
    .usage = "simulate JOB.yaml [key=value ...] --machine MACHINE [--plan FILE] [--devices N]\n"
             "       weft simulate --model config.json --machine MACHINE [--batch N] ...",
    .example = "weft simulate job.yaml --machine \"8 hosts of 8 h100-80g\" --devices 64\n"
               "  weft simulate job.yaml --machine h100-80g --slow rank=3,x=1.5 --trace out.json",
    .notes = "Nothing is trained, and no data or weights are needed. The programs that a run would "
             "execute are walked\nwith the costs of the machine. Ranks that do the same at the "
             "same times share a row and a timeline.",
    .options = options,
    .run = run,
};
