/* `weft model`: the cells of a job's model with their costs, before anything runs. */
#include "cli.h"

#include <string.h>

#include "weft/train.h"

typedef struct model_options {
    cli_job_source source;
    bool json;
} model_options;

static const cli_option options[] = {
    {"devices", "N", CLI_INTEGER, CLI_JOB_AT(model_options, devices), 1, INT32_MAX,
     "as it is on N devices"},
    {"plan", "FILE", CLI_TEXT, CLI_JOB_AT(model_options, plan), 0, 0, "split by this plan"},
    CLI_MODEL_OPTIONS(model_options),
    CLI_MODE_OPTIONS(model_options),
    {"json", NULL, CLI_FLAG, offsetof(model_options, json), 0, 0, "one JSON object"},
    {0},
};

static void print_json(const weft_model_report *r) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_array(&json, "cells");
    for (int i = 0; i < r->cell_count; i++) {
        const weft_cell_info *c = &r->cells[i];
        cli_json_object(&json, NULL);
        cli_json_text(&json, "name", c->name);
        cli_json_integer(&json, "kind", c->kind);
        cli_json_integer(&json, "parameters", c->parameters);
        cli_json_real(&json, "forward_flops", c->forward_flops);
        cli_json_real(&json, "backward_flops", c->backward_flops);
        cli_json_integer(&json, "saved_bytes", c->saved_bytes);
        cli_json_integer(&json, "frame_bytes", c->frame_bytes);
        cli_json_integer(&json, "device_bytes", c->device_bytes);
        cli_json_text(&json, "layout", *c->layout ? c->layout : NULL);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_integer(&json, "kinds", r->kinds);
    cli_json_integer(&json, "parameters", r->parameters);
    cli_json_integer(&json, "trained", r->trained);
    cli_json_integer(&json, "parameter_bytes", r->parameter_bytes);
    cli_json_integer(&json, "optimizer_bytes", r->optimizer_bytes);
    if (r->copy_bytes) cli_json_integer(&json, "copy_bytes", r->copy_bytes);
    cli_json_integer(&json, "transient_bytes", r->transient_bytes);
    cli_json_integer(&json, "predicted_peak_bytes", r->predicted_peak_bytes);
    cli_json_integer(&json, "program_bytes", r->program_bytes);
    cli_tiers_json(&json, r->host_bytes, r->disk_bytes);
    cli_moves_json(&json, r->host_moved_bytes, r->disk_moved_bytes);
    cli_servers_json(&json, r->server_bytes, r->server_moved_bytes);
    cli_json_integer(&json, "devices", r->devices);
    cli_json_array(&json, "peak_bytes");
    for (int i = 0; i < r->devices; i++) cli_json_integer(&json, NULL, r->peaks[i]);
    cli_json_close(&json, ']');
    cli_json_real(&json, "forward_flops", r->forward_flops);
    cli_json_real(&json, "backward_flops", r->backward_flops);
    cli_json_text(&json, "largest", r->largest);
    if (r->rows) cli_json_array(&json, "rows");
    for (const char *line = r->rows; line && *line; line = strchr(line, '\n') + 1) {
        char text[512];
        (void)snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\n"), line);
        cli_json_text(&json, NULL, text);
    }
    if (r->rows) cli_json_close(&json, ']');
    cli_json_end(&json);
}

/* Ranks that need the same stand together. */
static void print_peaks(const weft_model_report *r) {
    for (int first = 0, last; first < r->devices; first = last + 1) {
        char bytes[32];
        last = first;
        while (last + 1 < r->devices && r->peaks[last + 1] == r->peaks[first]) last++;
        if (first == last)
            cli_say(stdout, "  rank %d: ", first);
        else
            cli_say(stdout, "  ranks %d to %d: ", first, last);
        cli_say(stdout, "%s (%lld bytes)\n", cli_bytes((double)r->peaks[first], bytes),
                (long long)r->peaks[first]);
    }
}

static void print_cells(const weft_model_report *r) {
    static const cli_column columns[] = {
        {"cell", 4, 0, true},      {"kind", 4, 5, false},        {"parameters", 10, 0, false},
        {"forward", 10, 3, false}, {"backward", 10, 4, false},   {"saved", 10, 0, false},
        {"frame", 10, 2, false},   {"per device", 10, 0, false}, {"layout", 0, 1, true}};
    char text[32];
    cli_table *t = cli_table_create(columns, r->devices > 1 ? 9 : 7);
    for (int i = 0; i < r->cell_count; i++) {
        const weft_cell_info *cell = &r->cells[i];
        cli_table_row(t);
        cli_table_cell(t, 0, "%s", cell->name);
        cli_table_cell(t, 1, "%d", cell->kind);
        cli_table_cell(t, 2, "%s", cli_amount((double)cell->parameters, "", text));
        cli_table_cell(t, 3, "%s", cli_amount(cell->forward_flops, "FLOP", text));
        cli_table_cell(t, 4, "%s", cli_amount(cell->backward_flops, "FLOP", text));
        cli_table_cell(t, 5, "%s", cli_bytes((double)cell->saved_bytes, text));
        cli_table_cell(t, 6, "%s", cli_bytes((double)cell->frame_bytes, text));
        if (r->devices == 1) continue;
        cli_table_cell(t, 7, "%s", cli_bytes((double)cell->device_bytes, text));
        cli_table_cell(t, 8, "%s", *cell->layout ? cell->layout : "-");
    }
    cli_table_print(t, stdout);
}

static void print_text(const weft_model_report *r) {
    char a[32], b[32], c[32], tiers[CLI_TIERS];
    bool split = r->devices > 1;
    print_cells(r);
    cli_say(stdout, "\n%s parameters", cli_amount((double)r->parameters, "", a));
    if (r->trained < r->parameters)
        cli_say(stdout, " (%s of them trained)", cli_amount((double)r->trained, "", a));
    cli_say(stdout, " in %d cells of %d kinds; a step computes %s forward, %s backward\n",
            r->cell_count, r->kinds, cli_amount(r->forward_flops, "FLOP", b),
            cli_amount(r->backward_flops, "FLOP", c));
    cli_say(stdout, "parameters %s, optimizer %s, activations and work %s\n",
            cli_bytes((double)r->parameter_bytes, a), cli_bytes((double)r->optimizer_bytes, b),
            cli_bytes((double)r->transient_bytes, c));
    if (r->copy_bytes)
        cli_say(stdout, "copies of another device's state: %s\n",
                cli_bytes((double)r->copy_bytes, a));
    cli_say_bold(stdout, "predicted peak memory %s%s",
                 cli_bytes((double)r->predicted_peak_bytes, a), split ? " on one device" : "");
    cli_say(stdout, ", programs %s%s\n", cli_bytes((double)r->program_bytes, b),
            cli_tiers(r->host_bytes, r->disk_bytes, tiers));
    cli_say(stdout, "%s", cli_moves(r->host_moved_bytes, r->disk_moved_bytes, tiers));
    cli_servers(stdout, r->server_bytes, r->server_moved_bytes);
    if (r->rows) cli_say(stdout, "%s", r->rows);
    if (split) print_peaks(r);
    if (r->largest && *r->largest) cli_say(stdout, "largest: %s\n", r->largest);
}

static int run(const cli_verb *verb, int count, char **words) {
    model_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if ((code = cli_job_words(verb, left, words, &values.source)) != CLI_DONE) return code;
    weft_job *job;
    weft_model_report *report;
    code = cli_job_load(&values.source, &job);
    if (code != CLI_DONE) return code;
    if (weft_job_report(job, &report) < 0) {
        code = cli_failed();
    } else {
        cli_notes(report->unmatched);
        (values.json ? print_json : print_text)(report);
        weft_model_report_free(report);
    }
    weft_job_free(job);
    return code;
}

const cli_verb cli_model = {
    .name = "model",
    .summary = "show a job's model: parameters, FLOPs, memory, predicted peak",
    .usage = "model JOB.yaml [key=value ...] [--devices N] [--plan FILE] [--json]\n"
             "       weft model --model config.json [--batch N] [--context N] [--precision NAME]",
    .example = "weft model job.yaml train.batch=4",
    .notes = "Nothing is trained. Cells of one kind have the same structure and are compiled once; "
             "saved is what a\n"
             "cell keeps for its backward pass, frame its working memory. With several devices the "
             "numbers are those\n"
             "of one of them: per device are its pieces of the parameters and what is saved, "
             "layout says how the\n"
             "cell's result is split over the mesh's axes.",
    .options = options,
    .run = run,
};
