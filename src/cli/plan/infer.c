/* `weft plan --infer`: layouts and memory of a model in use, before anything loads. */
#include "cli/plan/plan.h"

#include <string.h>

#include "weft/infer.h"

static void print_json(const weft_infer_report *r) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_integer(&json, "devices", r->devices);
    cli_json_array(&json, "ranks");
    for (int k = 0; k < r->devices; k++) {
        cli_json_object(&json, NULL);
        cli_json_integer(&json, "peak_bytes", r->ranks[k].peak_bytes);
        cli_json_integer(&json, "weight_bytes", r->ranks[k].weight_bytes);
        cli_json_integer(&json, "program_bytes", r->ranks[k].program_bytes);
        cli_tiers_json(&json, r->ranks[k].host_bytes, r->ranks[k].disk_bytes);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_array(&json, "tensors");
    for (int i = 0; i < r->tensor_count; i++) {
        const weft_infer_tensor *t = &r->tensors[i];
        cli_json_object(&json, NULL);
        cli_json_text(&json, "name", t->name);
        cli_json_array(&json, "shape");
        for (int d = 0; d < t->whole.rank; d++) cli_json_integer(&json, NULL, t->whole.shape[d]);
        cli_json_close(&json, ']');
        cli_json_text(&json, "layout", t->layout);
        cli_json_integer(&json, "bytes_of_a_rank", weft_desc_bytes(&t->part));
        cli_json_integer(&json, "ranks", t->ranks);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_end(&json);
}

static void print_tensors(const weft_infer_report *r) {
    static const cli_column columns[] = {{"tensor", 34, 0, true},
                                         {"shape", 18, 0, true},
                                         {"layout", 24, 0, true},
                                         {"on a rank", 11, 1, false},
                                         {"ranks", 5, 2, false}};
    cli_table *table = cli_table_create(columns, 5);
    for (int i = 0; i < r->tensor_count; i++) {
        const weft_infer_tensor *t = &r->tensors[i];
        char bytes[32], shape[128] = "";
        size_t used = 0;
        for (int d = 0; d < t->whole.rank && used < sizeof shape - 24; d++)
            used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld", d ? "x" : "",
                                     (long long)t->whole.shape[d]);
        cli_table_row(table);
        cli_table_cell(table, 0, "%s", t->name);
        cli_table_cell(table, 1, "%s", shape);
        cli_table_cell(table, 2, "%s", t->layout);
        cli_table_cell(table, 3, "%s", cli_bytes((double)weft_desc_bytes(&t->part), bytes));
        cli_table_cell(table, 4, "%d", t->ranks);
    }
    cli_table_print(table, stdout);
}

static bool same(const weft_infer_rank *a, const weft_infer_rank *b) {
    return a->peak_bytes == b->peak_bytes && a->weight_bytes == b->weight_bytes &&
           a->host_bytes == b->host_bytes && a->disk_bytes == b->disk_bytes;
}

/* Ranks that follow each other and are equal are one line. */
static void print_ranks(const weft_infer_report *r) {
    char peak[32], weights[32], tiers[CLI_TIERS];
    for (int k = 0, next; k < r->devices; k = next) {
        for (next = k + 1; next < r->devices && same(&r->ranks[k], &r->ranks[next]);) next++;
        if (next == k + 1)
            cli_say(stdout, "rank %d", k);
        else
            cli_say(stdout, "ranks %d to %d, each", k, next - 1);
        cli_say(stdout, ": at most %s, of these weights and states %s%s\n",
                cli_bytes((double)r->ranks[k].peak_bytes, peak),
                cli_bytes((double)r->ranks[k].weight_bytes, weights),
                cli_tiers(r->ranks[k].host_bytes, r->ranks[k].disk_bytes, tiers));
    }
}

int cli_plan_infer(const weft_job *job, int64_t rows, int64_t length, bool json) {
    weft_infer_report *r;
    if (weft_job_infer_report(job, rows, length, &r) < 0) return cli_failed();
    cli_notes(r->notes);
    if (json) {
        print_json(r);
    } else {
        print_tensors(r);
        print_ranks(r);
    }
    weft_infer_report_free(r);
    return CLI_DONE;
}
