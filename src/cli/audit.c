/* `weft audit`: where the time of a run went, and what it was predicted to take. */
#include "cli.h"

#include <math.h>

#include "weft/audit.h"
#include "weft/bench.h"
#include "weft/graph.h"

typedef struct audit_options {
    const char *calibrate;
    bool json;
} audit_options;

static const cli_option options[] = {
    {"calibrate", "OUT.json", CLI_TEXT, offsetof(audit_options, calibrate), 0, 0,
     "write the run's machine file, corrected by what was measured"},
    {"json", NULL, CLI_FLAG, offsetof(audit_options, json), 0, 0, "one JSON object"},
    {0},
};

/* ---- JSON ---- */

static void add_lines(cli_json *json, const char *key, const weft_audit_line *lines, int count) {
    cli_json_array(json, key);
    for (int i = 0; i < count; i++) {
        cli_json_object(json, NULL);
        cli_json_text(json, "name", lines[i].name);
        cli_json_real(json, "calls", lines[i].calls);
        cli_json_real(json, "predicted_seconds", lines[i].predicted_seconds);
        cli_json_real(json, "measured_seconds", lines[i].measured_seconds);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
}

static void add_verdict(cli_json *json, const weft_audit_verdict *v) {
    cli_json_object(json, "verdict");
    cli_json_text(json, "dominant", weft_audit_cause_text(v->dominant));
    cli_json_real(json, "run_seconds", v->run_seconds);
    cli_json_object(json, "shares");
    for (int c = 0; c < WEFT_AUDIT_CAUSES; c++)
        cli_json_real(json, weft_audit_cause_text((weft_audit_cause)c), v->share[c]);
    cli_json_close(json, '}');
    if (v->slow_rank >= 0) {
        cli_json_integer(json, "slow_rank", v->slow_rank);
        cli_json_real(json, "slowness", v->slowness);
        cli_json_real(json, "slow_seconds", v->slow_seconds);
    }
    cli_json_array(json, "advice");
    for (int i = 0; i < v->advice_count; i++) {
        cli_json_object(json, NULL);
        cli_json_text(json, "cause", weft_audit_cause_text(v->advice[i].cause));
        cli_json_text(json, "setting", *v->advice[i].setting ? v->advice[i].setting : NULL);
        cli_json_text(json, "reason", v->advice[i].reason);
        cli_json_real(json, "at_most", v->advice[i].at_most);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_close(json, '}');
}

static void print_json(const weft_audit *a) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "machine", *a->machine ? a->machine : NULL);
    cli_json_integer(&json, "devices", a->devices);
    cli_json_integer(&json, "steps", a->steps);
    cli_json_real(&json, "predicted_seconds", a->predicted_seconds);
    cli_json_real(&json, "measured_seconds", a->measured_seconds);
    cli_json_real(&json, "error", a->error);
    cli_json_real(&json, "spread", a->spread);
    cli_json_real(&json, "other_seconds", a->other_seconds);
    add_lines(&json, "ops", a->ops, a->op_count);
    add_lines(&json, "transfers", a->transfers, a->transfer_count);
    add_lines(&json, "copies", a->copies, a->copy_count);
    cli_json_array(&json, "ranks");
    for (int i = 0; i < a->rank_count; i++) {
        const weft_audit_rank *r = &a->ranks[i];
        cli_json_object(&json, NULL);
        cli_json_integer(&json, "rank", r->rank);
        cli_json_integer(&json, "predicted_peak_bytes", r->predicted_peak_bytes);
        cli_json_integer(&json, "observed_peak_bytes", r->observed_peak_bytes);
        cli_tiers_json(&json, r->host_bytes, r->disk_bytes);
        cli_json_real(&json, "predicted_kernel_seconds", r->predicted_kernels);
        cli_json_real(&json, "measured_kernel_seconds", r->measured_kernels);
        cli_json_real(&json, "predicted_wait_seconds", r->predicted_waits);
        cli_json_real(&json, "measured_wait_seconds", r->measured_waits);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    add_verdict(&json, &a->verdict);
    cli_json_end(&json);
}

/* ---- text ---- */

/* "+12.3 %"; "-" without a measurement. */
static const char *error_text(double predicted, double measured, char out[16]) {
    if (!(measured > 0)) return "-";
    const double percent = 100 * (predicted / measured - 1);
    (void)snprintf(out, 16, fabs(percent) < 1000 ? "%+.1f %%" : "%+.2g %%", percent);
    return out;
}

/* A predicted time in ms; "-": nothing is predicted. */
static void predicted_cell(cli_table *t, int column, const weft_audit *a, double seconds) {
    if (*a->machine)
        cli_table_cell(t, column, "%.3f", seconds * 1e3);
    else
        cli_table_cell(t, column, "-");
}

static void print_lines(const char *what, const weft_audit *a, const weft_audit_line *lines,
                        int count) {
    const cli_column columns[] = {{what, 24, 0, true},
                                  {"calls", 8, 1, false},
                                  {"predicted ms", 13, 0, false},
                                  {"measured ms", 13, 0, false},
                                  {"error", 10, 0, false}};
    char error[16];
    if (!count) return;
    cli_table *t = cli_table_create(columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < count; i++) {
        const weft_audit_line *l = &lines[i];
        cli_table_row(t);
        cli_table_cell(t, 0, "%s", l->name);
        cli_table_cell(t, 1, "%.0f", l->calls);
        predicted_cell(t, 2, a, l->predicted_seconds);
        cli_table_cell(t, 3, "%.3f", l->measured_seconds * 1e3);
        cli_table_cell(t, 4, "%s",
                       *a->machine ? error_text(l->predicted_seconds, l->measured_seconds, error)
                                   : "-");
    }
    cli_table_print(t, stdout);
}

/* Of the rank that has most. */
static void print_tiers(const weft_audit *a) {
    int64_t host = 0, disk = 0;
    char tiers[CLI_TIERS];
    for (int i = 0; i < a->rank_count; i++) {
        if (a->ranks[i].host_bytes > host) host = a->ranks[i].host_bytes;
        if (a->ranks[i].disk_bytes > disk) disk = a->ranks[i].disk_bytes;
    }
    if (host || disk)
        cli_say(stdout, "a device keeps beside its own memory%s\n", cli_tiers(host, disk, tiers));
}

static void print_ranks(const weft_audit *a) {
    static const cli_column columns[] = {{"rank", 5, 0, false},      {"kernels ms", 11, 0, false},
                                         {"measured", 10, 0, false}, {"waits ms", 10, 0, false},
                                         {"measured", 10, 0, false}, {"peak bytes", 14, 1, false},
                                         {"observed", 14, 1, false}};
    cli_table *t = cli_table_create(columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < a->rank_count; i++) {
        const weft_audit_rank *r = &a->ranks[i];
        cli_table_row(t);
        cli_table_cell(t, 0, "%d", r->rank);
        predicted_cell(t, 1, a, r->predicted_kernels);
        cli_table_cell(t, 2, "%.3f", r->measured_kernels * 1e3);
        predicted_cell(t, 3, a, r->predicted_waits);
        cli_table_cell(t, 4, "%.3f", r->measured_waits * 1e3);
        if (*a->machine)
            cli_table_cell(t, 5, "%lld", (long long)r->predicted_peak_bytes);
        else
            cli_table_cell(t, 5, "-");
        cli_table_cell(t, 6, "%lld", (long long)r->observed_peak_bytes);
    }
    cli_table_print(t, stdout);
    print_tiers(a);
}

static void print_text(const weft_audit *a) {
    char error[16];
    if (*a->machine)
        cli_say(stdout, "step: predicted %.3f ms, measured %.3f ms (%s); machine %s",
                a->predicted_seconds * 1e3, a->measured_seconds * 1e3,
                error_text(a->predicted_seconds, a->measured_seconds, error), a->machine);
    else
        cli_say(stdout,
                "step: measured %.3f ms; the run had no machine, so nothing was predicted "
                "(`weft machine measure`)",
                a->measured_seconds * 1e3);
    cli_say(stdout, ", %d device%s, median of %lld steps, middle half within %.1f %%\n", a->devices,
            a->devices == 1 ? "" : "s", (long long)a->steps, 100 * a->spread);
    print_lines("op, all ranks", a, a->ops, a->op_count);
    print_lines("transfers, all ranks", a, a->transfers, a->transfer_count);
    print_lines("copies, all ranks", a, a->copies, a->copy_count);
    print_ranks(a);
    cli_say(stdout, "outside of kernels, transfers and copies: %.3f ms\n\n",
            a->other_seconds * 1e3);
    cli_say_bold(stdout, "verdict\n");
    cli_say(stdout, "%s", a->verdict.text);
}

/* ---- the command ---- */

static int calibrate(const char *run, const char *file) {
    char *text;
    if (!cli_can_write(file) || weft_audit_calibrate(run, &text) < 0) return cli_failed();
    weft_status status = weft_machine_write(text, file);
    weft_text_free(text);
    return status < 0 ? cli_failed() : CLI_DONE;
}

static int run(const cli_verb *verb, int count, char **words) {
    audit_options values = {0};
    weft_audit *audit;
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (left != 1) return cli_usage(verb, "audit needs one run: the directory of its checkpoints");
    if (weft_audit_run(words[0], &audit) < 0) return cli_failed();
    if (values.json)
        print_json(audit);
    else
        print_text(audit);
    weft_audit_free(audit);
    return values.calibrate ? calibrate(words[0], values.calibrate) : CLI_DONE;
}

const cli_verb cli_audit = {
    .name = "audit",
    .summary = "say where a run's time went, what to try, and compare it with its prediction",
    .usage = "audit RUN [--calibrate OUT.json] [--json]",
    .example = "weft audit runs/first --calibrate machine.json",
    .notes =
        "RUN is the checkpoint.dir of a training. If that had a machine (the job key `machine`, or "
        "a measured\n`this-machine`), times are compared with its prediction, and the error of "
        "the last audit stands in\nRUN/record/plan.json.",
    .options = options,
    .run = run,
};
