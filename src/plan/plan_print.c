/* Prints a plan as JSON, version 1 (docs/reference/format-plan.md): one entry per line, for people
 * and line-based tools. plan_parse.c reads it back. */
#include "plan/plan.h"

#include <string.h>

#include "base/io.h"
#include "base/json/json.h"

enum { PLAN_PRINT_VERSION = 1 };

#define ROW(name, text) text,
static const char *const modes[] = {WEFT_PARALLEL_MODE_LIST(ROW)};
static const char *const schedules[] = {WEFT_PIPELINE_SCHEDULE_LIST(ROW)};
static const char *const recomputes[] = {WEFT_RECOMPUTE_LIST(ROW)};
static const char *const fusions[] = {WEFT_FUSION_LIST(ROW)};
static const char *const datasets[] = {WEFT_DATASET_LIST(ROW)};
static const char *const collectives[] = {"allreduce", "allgather", "reducescatter"};
#undef ROW

static void print_mesh(const wefti_mesh *mesh, wefti_text *out) {
    wefti_text_add(out, "{");
    for (int a = 0; a < mesh->axes; a++)
        wefti_text_add(out, "%s\"%s\": %d", a ? ", " : "", mesh->axis[a].name, mesh->axis[a].size);
    wefti_text_add(out, "}");
}

static void print_links(const wefti_links *links, wefti_text *out) {
    if (!links->measured) return;
    wefti_text_add(out, ",\n  \"links\": {\n    \"ranks_per_host\": %d,\n    \"same_host\": ",
                   links->ranks_per_host);
    wefti_link_print(&links->same_host, out);
    wefti_text_add(out, ",\n    \"between_hosts\": ");
    wefti_link_print(&links->between_hosts, out);
    wefti_text_add(out, "\n  }");
}

static void print_rates(const wefti_machine *m, wefti_text *out) {
    const char *before = ",\n  \"rates\": {";
    if (wefti_machines_equal(m, &wefti_machine_assumed)) return;
#define PRINT_RATE(name, least)                                                                    \
    wefti_text_add(out, "%s\"" #name "\": ", before);                                              \
    wefti_json_real(out, m->name);                                                                 \
    before = ", ";
    WEFTI_MACHINE_RATES(PRINT_RATE)
#undef PRINT_RATE
    wefti_text_add(out, "}");
}

/* Opens the next entry of a list, on a line of its own. */
static void next_entry(wefti_text *out, int64_t i, int indent) {
    wefti_text_add(out, "%s\n%*s{", i ? "," : "", indent, "");
}
static void end_list(wefti_text *out, int64_t count, int indent) {
    if (count)
        wefti_text_add(out, "\n%*s]", indent, "");
    else
        wefti_text_add(out, "]");
}
static void quoted(wefti_text *out, const char *before, const char *text, const char *after) {
    wefti_text_add(out, "%s", before);
    wefti_json_quote(out, text);
    wefti_text_add(out, "%s", after);
}

static weft_status print_strategies(const weft_plan *plan, wefti_text *out) {
    wefti_text_add(out, "  \"strategies\": [");
    for (int64_t i = 0; i < plan->strategy_count; i++) {
        wefti_text split = {0};
        wefti_split_print(plan, &plan->strategies[i], &split);
        char *text = wefti_text_take(&split);
        WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for the text of a plan");
        next_entry(out, i, 4);
        quoted(out, "\"match\": ", plan->strategies[i].match, ", ");
        quoted(out, "\"split\": ", text, "}");
        wefti_free(text);
    }
    end_list(out, plan->strategy_count, 2);
    wefti_text_add(out, ",\n  \"tensors\": [");
    for (int64_t i = 0; i < plan->tensor_count; i++) {
        next_entry(out, i, 4);
        quoted(out, "\"match\": ", plan->tensors[i].match, ", ");
        quoted(out, "\"layout\": ", plan->tensors[i].layout, "}");
    }
    end_list(out, plan->tensor_count, 2);
    wefti_text_add(out, "\n");
    return WEFT_OK;
}

static void print_pipeline(const weft_plan *plan, wefti_text *out) {
    wefti_text_add(out,
                   "  \"pipeline\": {\n    \"stages\": %d,\n    \"microbatches\": %d,\n"
                   "    \"schedule\": \"%s\",\n    \"virtual_stages\": %d,\n    \"stage_of\": [",
                   plan->pipeline.stages, plan->pipeline.microbatches,
                   schedules[plan->pipeline.schedule], plan->pipeline.chunks);
    for (int64_t i = 0; i < plan->pipeline.rule_count; i++) {
        next_entry(out, i, 6);
        quoted(out, "\"match\": ", plan->pipeline.rules[i].match, ", ");
        wefti_text_add(out, "\"stage\": %d}", plan->pipeline.rules[i].stage);
    }
    end_list(out, plan->pipeline.rule_count, 4);
    if (plan->pipeline.meshes) {
        wefti_text_add(out, ",\n    \"meshes\": [");
        for (int32_t s = 0; s < plan->pipeline.stages; s++) {
            wefti_text_add(out, s ? ",\n      " : "\n      ");
            print_mesh(&plan->pipeline.meshes[s], out);
        }
        end_list(out, plan->pipeline.stages, 4);
    }
    wefti_text_add(out, "\n  },\n");
}

static void print_place(const weft_plan *plan, wefti_text *out) {
    if (!plan->place.count) return;
    wefti_text_add(out, "  \"place\": [");
    for (int64_t i = 0; i < plan->place.count; i++) {
        next_entry(out, i, 4);
        quoted(out, "\"match\": ", plan->place.rules[i].match, ", ");
        wefti_text_add(out, "\"on\": \"%s\"}", wefti_place_words[plan->place.rules[i].on]);
    }
    end_list(out, plan->place.count, 2);
    wefti_text_add(out, ",\n");
}

static void print_server(const weft_plan *plan, wefti_text *out) {
    if (!plan->server.count) return;
    wefti_text_add(out, "  \"server\": [");
    for (int64_t i = 0; i < plan->server.count; i++) {
        next_entry(out, i, 4);
        quoted(out, "\"match\": ", plan->server.rules[i].match, "}");
    }
    end_list(out, plan->server.count, 2);
    wefti_text_add(out, ",\n");
}

static void print_offload(const weft_plan *plan, wefti_text *out) {
    if (!plan->offload.count) return;
    wefti_text_add(out, "  \"offload\": [");
    for (int64_t i = 0; i < plan->offload.count; i++) {
        char percent[32];
        const wefti_offload_rule *rule = &plan->offload.rules[i];
        next_entry(out, i, 4);
        quoted(out, "\"match\": ", rule->match, ", ");
        wefti_text_add(out, "\"what\": \"%s\", \"to\": \"%s\"", wefti_offload_words[rule->what],
                       wefti_tier_words[rule->to]);
        if (rule->cache.bytes)
            wefti_text_add(out, ", \"cache\": %lld", (long long)rule->cache.bytes);
        if (rule->cache.percent > 0)
            wefti_text_add(out, ", \"cache_percent\": %s",
                           wefti_real_text(rule->cache.percent, 6, 17, percent));
        wefti_text_add(out, "}");
    }
    end_list(out, plan->offload.count, 2);
    wefti_text_add(out, ",\n");
    if (plan->offload.ahead)
        wefti_text_add(out, "  \"offload_ahead\": %lld,\n", (long long)plan->offload.ahead);
}

static void print_fusion(const weft_plan *plan, wefti_text *out) {
    wefti_text_add(out, "  \"fusion\": {");
    for (int i = 0; i < 3; i++) {
        const wefti_fusion *f = &plan->fusion[i];
        wefti_text_add(out, "%s\n    \"%s\": {\"mode\": \"%s\"", i ? "," : "", collectives[i],
                       fusions[f->mode]);
        if (f->mode == WEFT_FUSION_SIZE)
            wefti_text_add(out, ", \"config\": %lld", (long long)f->bytes);
        if (f->mode == WEFT_FUSION_INDEX) {
            wefti_text_add(out, ", \"config\": [");
            for (int32_t k = 0; k < f->index_count; k++)
                wefti_text_add(out, "%s%d", k ? ", " : "", f->index[k]);
            wefti_text_add(out, "]");
        }
        wefti_text_add(out, "}");
    }
    wefti_text_add(out, "\n  },\n");
}

/* The error is for readers: the parser takes it from the two times. */
static void print_audit(const weft_plan *plan, wefti_text *out) {
    const double predicted = plan->audit.predicted_seconds, measured = plan->audit.measured_seconds;
    if (!(measured > 0)) return;
    wefti_text_add(out, "  \"audit\": {\"predicted_seconds\": ");
    wefti_json_real(out, predicted);
    wefti_text_add(out, ", \"measured_seconds\": ");
    wefti_json_real(out, measured);
    wefti_text_add(out, ", \"error\": ");
    wefti_json_real(out, predicted / measured - 1);
    wefti_text_add(out, "},\n");
}

static weft_status print_plan(const weft_plan *plan, wefti_text *out) {
    wefti_text_add(out, "{\n  \"weft_plan\": %d,\n", PLAN_PRINT_VERSION);
    if (plan->model_hash)
        wefti_text_add(out, "  \"model\": \"%016llx\",\n", (unsigned long long)plan->model_hash);
    print_audit(plan, out);
    wefti_text_add(out, "  \"devices\": %d,\n  \"mesh\": ", plan->devices);
    print_mesh(&plan->mesh, out);
    print_links(&plan->links, out);
    print_rates(&plan->rates, out);
    wefti_text_add(out, ",\n  \"mode\": \"%s\",\n", modes[plan->mode]);
    print_pipeline(plan, out);
    wefti_text_add(
        out, "  \"optimizer\": {\"level\": %d, \"threshold\": %lld, \"shard_size\": %d%s},\n",
        plan->optimizer.level, (long long)plan->optimizer.threshold, plan->optimizer.shard,
        plan->optimizer.master == WEFT_TIER_HOST ? ", \"master\": \"host\"" : "");
    wefti_text_add(out, "  \"accumulate\": %d,\n  \"copies\": %d,\n", plan->accumulate,
                   plan->copies);
    wefti_text_add(out, "  \"recompute\": {\"mode\": \"%s\", \"cells\": [",
                   recomputes[plan->recompute.mode]);
    for (int64_t i = 0; i < plan->recompute.cell_count; i++)
        quoted(out, i ? ", " : "", plan->recompute.cells[i], "");
    wefti_text_add(out, "], \"communication\": %s},\n",
                   plan->recompute.communication ? "true" : "false");
    print_offload(plan, out);
    print_place(plan, out);
    print_server(plan, out);
    wefti_text_add(out, "  \"gradients\": \"%s\",\n", plan->gradients_sum ? "sum" : "mean");
    print_fusion(plan, out);
    wefti_text_add(out, "  \"dataset\": \"");
    if (plan->dataset_cuts.cuts)
        wefti_split_print(plan, &plan->dataset_cuts, out);
    else
        wefti_text_add(out, "%s", datasets[plan->dataset]);
    wefti_text_add(out, "\",\n  \"overlap\": %s,\n", plan->overlap ? "true" : "false");
    WEFT_TRY(print_strategies(plan, out));
    wefti_text_add(out, "}\n");
    return WEFT_OK;
}

weft_status wefti_plan_print(const weft_plan *plan, char **out) {
    wefti_text text = {0};
    weft_status status = print_plan(plan, &text);
    if (status < 0) {
        wefti_text_free(&text);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    char *taken = wefti_text_take(&text);
    WEFT_REQUIRE(taken, WEFT_E_NOMEM, "no memory for the text of a plan");
    *out = taken;
    return WEFT_OK;
}
weft_status weft_plan_print(const weft_plan *plan, char **out) {
    WEFT_REQUIRE(plan && out, WEFT_E_ARG, "weft_plan_print needs a plan and a place for the text");
    return wefti_plan_print(plan, out);
}

weft_status weft_plan_save(const weft_plan *plan, const char *path) {
    WEFT_REQUIRE(plan && path, WEFT_E_ARG, "weft_plan_save needs a plan and a path");
    char *text;
    WEFT_TRY(wefti_plan_print(plan, &text));
    weft_status status = wefti_file_write(path, text, strlen(text));
    wefti_free(text);
    return status;
}
