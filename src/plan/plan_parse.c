/* Parses a plan from JSON, version 1 (docs/reference/format-plan.md). Parsing is strict: it refuses
 * unknown keys, wrong types and other versions, and names the place in the text. A missing key
 * keeps its default. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"

enum { VERSION = 1, LIST_MAX = 1 << 20 };
static const int64_t FILE_MAX = 256 << 20; /* bytes */

#define ROW(name, text) text,
static const char *const modes[] = {WEFT_PARALLEL_MODE_LIST(ROW) NULL};
static const char *const schedules[] = {WEFT_PIPELINE_SCHEDULE_LIST(ROW) NULL};
static const char *const recomputes[] = {WEFT_RECOMPUTE_LIST(ROW) NULL};
static const char *const fusions[] = {WEFT_FUSION_LIST(ROW) NULL};
static const char *const datasets[] = {WEFT_DATASET_LIST(ROW) NULL};
static const char *const gradients[] = {"mean", "sum", NULL};
static const char *const collectives[] = {"allreduce", "allgather", "reducescatter", NULL};
#undef ROW

/* An object that is being read, and its name in messages: "plan.json: pipeline". */
typedef struct plan_parse_place {
    const wefti_json *object;
    char name[160];
} plan_parse_place;

static plan_parse_place inside(const plan_parse_place *at, const char *key,
                               const wefti_json *object) {
    plan_parse_place inner = {.object = object};
    bool top = !strstr(at->name, ": ");
    snprintf(inner.name, sizeof inner.name, "%.120s%s%.36s", at->name, top ? ": " : ".", key);
    return inner;
}
static plan_parse_place entry(const plan_parse_place *at, const char *key, int64_t i,
                              const wefti_json *object) {
    char numbered[64];
    snprintf(numbered, sizeof numbered, "%.40s[%lld]", key, (long long)i);
    return inside(at, numbered, object);
}

static const char *kind_word(const wefti_json *value) {
    static const char *const words[] = {"null",   "true or false", "a whole number", "a fraction",
                                        "a text", "a list",        "an object"};
    return words[value->kind];
}

static weft_status wrong_kind(const plan_parse_place *at, const char *key, const wefti_json *value,
                              const char *wanted) {
    plan_parse_place inner = inside(at, key, value);
    WEFT_FAIL(WEFT_E_ARG, "%s is %s; it must be %s", inner.name, kind_word(value), wanted);
}

/* `known` ends with NULL. */
static weft_status check_keys(const plan_parse_place *at, const char *const *known) {
    WEFT_REQUIRE(at->object->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG,
                 "%s is %s; it must be an object", at->name, kind_word(at->object));
    WEFTI_JSON_EACH(member, at->object) {
        const char *const *key = known;
        while (*key && strcmp(*key, member->key) != 0) key++;
        if (*key) continue;
        const char *near = weft_nearest(member->key, known);
        if (near)
            WEFT_FAIL(WEFT_E_ARG, "%s: unknown key '%.60s'; did you mean '%s'?", at->name,
                      member->key, near);
        char list[400] = "";
        int used = 0;
        for (key = known; *key && used < 380; key++)
            used += snprintf(list + used, sizeof list - (size_t)used, "%s%s",
                             key == known ? "" : ", ", *key);
        WEFT_FAIL(WEFT_E_ARG, "%s: unknown key '%.60s'; known are: %s", at->name, member->key,
                  list);
    }
    return WEFT_OK;
}

/* The following functions leave *out unchanged if the key is absent. */
static weft_status read_integer(const plan_parse_place *at, const char *key, int64_t max,
                                int64_t *out) {
    const wefti_json *value = wefti_json_get(at->object, key);
    if (!value) return WEFT_OK;
    if (value->kind != WEFTI_JSON_INT) return wrong_kind(at, key, value, "a whole number");
    plan_parse_place inner = inside(at, key, value);
    WEFT_REQUIRE(value->as.integer >= 0 && value->as.integer <= max, WEFT_E_ARG,
                 "%s is %lld; it can be from 0 to %lld", inner.name, (long long)value->as.integer,
                 (long long)max);
    *out = value->as.integer;
    return WEFT_OK;
}

static weft_status read_flag(const plan_parse_place *at, const char *key, bool *out) {
    const wefti_json *value = wefti_json_get(at->object, key);
    if (!value) return WEFT_OK;
    if (value->kind != WEFTI_JSON_BOOL) return wrong_kind(at, key, value, "true or false");
    *out = value->as.boolean;
    return WEFT_OK;
}

static weft_status read_choice(const plan_parse_place *at, const char *key,
                               const char *const *words, int *out) {
    const wefti_json *value = wefti_json_get(at->object, key);
    if (!value) return WEFT_OK;
    char list[128] = "one of";
    for (int i = 0; words[i]; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s %s", i ? "," : "", words[i]);
    }
    if (value->kind != WEFTI_JSON_TEXT) return wrong_kind(at, key, value, list);
    for (int i = 0; words[i]; i++)
        if (!strcmp(value->as.text, words[i])) {
            *out = i;
            return WEFT_OK;
        }
    const char *near = weft_nearest(value->as.text, words);
    plan_parse_place inner = inside(at, key, value);
    WEFT_FAIL(WEFT_E_ARG, "%s is '%.60s'; it must be %s%s%s%s", inner.name, value->as.text, list,
              near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static weft_status need_text(const plan_parse_place *at, const char *key, const char **out) {
    const wefti_json *value = wefti_json_get(at->object, key);
    WEFT_REQUIRE(value, WEFT_E_ARG, "%s: %s is missing", at->name, key);
    if (value->kind != WEFTI_JSON_TEXT) return wrong_kind(at, key, value, "a text");
    *out = value->as.text;
    return WEFT_OK;
}

/* The first element of a list; NULL if the key is absent or the list is empty. */
static weft_status read_list(const plan_parse_place *at, const char *key,
                             const wefti_json **out_first) {
    const wefti_json *value = wefti_json_get(at->object, key);
    *out_first = NULL;
    if (!value) return WEFT_OK;
    if (value->kind != WEFTI_JSON_ARRAY) return wrong_kind(at, key, value, "a list");
    *out_first = value->as.child;
    return WEFT_OK;
}

/* Prefixes an error of a function of weft/plan.h with the place. */
static weft_status placed(weft_status status, const plan_parse_place *at) {
    return status == WEFT_E_ARG ? wefti_prefix(status, "%s", at->name) : status;
}

static weft_status read_mesh(const plan_parse_place *top, weft_plan *plan) {
    const wefti_json *mesh = wefti_json_get(top->object, "mesh");
    if (!mesh) return WEFT_OK;
    if (mesh->kind != WEFTI_JSON_OBJECT)
        return wrong_kind(top, "mesh", mesh, "an object, as {\"dp\": 2, \"tp\": 4}");
    plan_parse_place at = inside(top, "mesh", mesh);
    WEFTI_JSON_EACH(axis, mesh) {
        int64_t size = 0;
        WEFT_TRY(read_integer(&at, axis->key, INT32_MAX, &size));
        WEFT_TRY(placed(weft_plan_axis(plan, axis->key, (int)size), &at));
    }
    return WEFT_OK;
}

static weft_status read_links(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {"ranks_per_host", "same_host", "between_hosts", NULL};
    const wefti_json *value = wefti_json_get(top->object, "links");
    if (!value) return WEFT_OK;
    plan_parse_place at = inside(top, "links", value);
    wefti_links links = {.measured = true};
    int64_t ranks = 0;
    WEFT_TRY(check_keys(&at, keys));
    WEFT_TRY(read_integer(&at, "ranks_per_host", INT32_MAX, &ranks));
    links.ranks_per_host = (int32_t)ranks;
    WEFT_TRY(placed(wefti_link_read(value, "same_host", &links.same_host), &at));
    WEFT_TRY(placed(wefti_link_read(value, "between_hosts", &links.between_hosts), &at));
    WEFT_REQUIRE(wefti_link_known(&links.same_host) || wefti_link_known(&links.between_hosts),
                 WEFT_E_ARG, "%s has no link that was measured; leave the key out then", at.name);
    plan->links = links;
    return WEFT_OK;
}

static weft_status read_rate(const plan_parse_place *at, const char *key, double least,
                             double *out) {
    const wefti_json *value = wefti_json_get(at->object, key);
    bool whole = value && value->kind == WEFTI_JSON_INT;
    WEFT_REQUIRE(whole || (value && value->kind == WEFTI_JSON_REAL), WEFT_E_ARG,
                 "%s.%s must be a number", at->name, key);
    *out = whole ? (double)value->as.integer : value->as.real;
    WEFT_REQUIRE(*out >= least && *out <= 1e30, WEFT_E_ARG, "%s.%s is %g; it must be at least %g",
                 at->name, key, *out, least);
    return WEFT_OK;
}

static weft_status read_rates(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {
#define RATE_KEY(name, least) #name,
        WEFTI_MACHINE_RATES(RATE_KEY)
#undef RATE_KEY
            NULL};
    const wefti_json *value = wefti_json_get(top->object, "rates");
    if (!value) return WEFT_OK;
    plan_parse_place at = inside(top, "rates", value);
    WEFT_TRY(check_keys(&at, keys));
#define READ_RATE(name, least) WEFT_TRY(read_rate(&at, #name, least, &plan->rates.name));
    WEFTI_MACHINE_RATES(READ_RATE)
#undef READ_RATE
    return WEFT_OK;
}

/* "error" follows from the two times. */
static weft_status read_audit(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {"predicted_seconds", "measured_seconds", "error", NULL};
    const wefti_json *value = wefti_json_get(top->object, "audit");
    if (!value) return WEFT_OK;
    plan_parse_place at = inside(top, "audit", value);
    WEFT_TRY(check_keys(&at, keys));
    WEFT_TRY(read_rate(&at, "predicted_seconds", 0, &plan->audit.predicted_seconds));
    return read_rate(&at, "measured_seconds", 1e-12, &plan->audit.measured_seconds);
}

static weft_status read_meshes(const plan_parse_place *pipeline, weft_plan *plan) {
    const wefti_json *item;
    WEFT_TRY(read_list(pipeline, "meshes", &item));
    const char *names[WEFTI_MAX_AXES + 1] = {0};
    int32_t stage = 0;
    for (int a = 0; a < plan->mesh.axes; a++) names[a] = plan->mesh.axis[a].name;
    for (bool any = item != NULL; item; item = item->next, stage++) {
        plan_parse_place at = entry(pipeline, "meshes", stage, item);
        int sizes[WEFTI_MAX_AXES];
        WEFT_TRY(check_keys(&at, names));
        for (int a = 0; a < plan->mesh.axes; a++) {
            int64_t size = 1;
            WEFT_TRY(read_integer(&at, names[a], INT32_MAX, &size));
            sizes[a] = (int)size;
        }
        WEFT_TRY(placed(weft_plan_stage_mesh(plan, stage, plan->mesh.axes, sizes), &at));
        WEFT_REQUIRE(!any || item->next || stage + 1 == plan->pipeline.stages, WEFT_E_ARG,
                     "%s.meshes has %d meshes; each of the %d stages needs one", pipeline->name,
                     stage + 1, plan->pipeline.stages);
    }
    return WEFT_OK;
}

static weft_status read_pipeline(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {"stages",   "microbatches", "schedule", "virtual_stages",
                                       "stage_of", "meshes",       NULL};
    static const char *const rule_keys[] = {"match", "stage", NULL};
    const wefti_json *value = wefti_json_get(top->object, "pipeline"), *item;
    if (!value) return WEFT_OK;
    plan_parse_place at = inside(top, "pipeline", value);
    int64_t stages = 1, micro = 1, chunks = 1, i = 0;
    int schedule = WEFT_PIPELINE_1F1B;
    WEFT_TRY(check_keys(&at, keys));
    WEFT_TRY(read_integer(&at, "stages", INT32_MAX, &stages));
    WEFT_TRY(read_integer(&at, "microbatches", INT32_MAX, &micro));
    WEFT_TRY(read_choice(&at, "schedule", schedules, &schedule));
    WEFT_TRY(read_integer(&at, "virtual_stages", INT32_MAX, &chunks));
    WEFT_TRY(placed(
        weft_plan_pipeline(plan, (int)stages, (int)micro, (weft_schedule)schedule, (int)chunks),
        top));
    WEFT_TRY(read_list(&at, "stage_of", &item));
    for (; item; item = item->next, i++) {
        plan_parse_place rule = entry(&at, "stage_of", i, item);
        const char *match;
        int64_t stage = -1;
        WEFT_TRY(check_keys(&rule, rule_keys));
        WEFT_TRY(need_text(&rule, "match", &match));
        WEFT_TRY(read_integer(&rule, "stage", INT32_MAX, &stage));
        WEFT_REQUIRE(stage >= 0, WEFT_E_ARG, "%s: stage is missing", rule.name);
        WEFT_TRY(placed(weft_plan_stage(plan, match, (int)stage), &rule));
    }
    return read_meshes(&at, plan);
}

static weft_status read_optimizer(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {"level", "threshold", "shard_size", "master", NULL};
    const wefti_json *value = wefti_json_get(top->object, "optimizer");
    if (!value) return WEFT_OK;
    plan_parse_place at = inside(top, "optimizer", value);
    int64_t level = 0, threshold = 0, shard = 0;
    int master = 0;
    WEFT_TRY(check_keys(&at, keys));
    WEFT_TRY(read_integer(&at, "level", INT32_MAX, &level));
    WEFT_TRY(read_integer(&at, "threshold", INT64_MAX, &threshold));
    WEFT_TRY(read_integer(&at, "shard_size", INT32_MAX, &shard));
    WEFT_TRY(placed(weft_plan_optimizer(plan, (int)level, threshold, (int)shard), top));
    if (!wefti_json_get(value, "master")) return WEFT_OK;
    WEFT_TRY(read_choice(&at, "master", wefti_tier_words, &master));
    return placed(weft_plan_master(plan, (weft_tier)master), top);
}

static weft_status read_recompute(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {"mode", "cells", "communication", NULL};
    const wefti_json *value = wefti_json_get(top->object, "recompute"), *item;
    if (!value) return WEFT_OK;
    plan_parse_place at = inside(top, "recompute", value);
    int mode = WEFT_RECOMPUTE_NONE;
    bool communication = false;
    int64_t i = 0;
    WEFT_TRY(check_keys(&at, keys));
    WEFT_TRY(read_choice(&at, "mode", recomputes, &mode));
    WEFT_TRY(read_flag(&at, "communication", &communication));
    WEFT_TRY(weft_plan_recompute(plan, (weft_recompute)mode, NULL, communication));
    WEFT_TRY(read_list(&at, "cells", &item));
    for (; item; item = item->next, i++) {
        plan_parse_place cell = entry(&at, "cells", i, item);
        WEFT_REQUIRE(item->kind == WEFTI_JSON_TEXT, WEFT_E_ARG, "%s is %s; it must be a text",
                     cell.name, kind_word(item));
        WEFT_TRY(placed(
            weft_plan_recompute(plan, (weft_recompute)mode, item->as.text, communication), &cell));
    }
    return WEFT_OK;
}

static weft_status read_offload(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {"match", "what", "to", "cache", "cache_percent", NULL};
    const wefti_json *item;
    int64_t i = 0;
    WEFT_TRY(read_list(top, "offload", &item));
    for (; item; item = item->next, i++) {
        plan_parse_place at = entry(top, "offload", i, item);
        const char *match;
        int what = -1, to = -1;
        int64_t cache = 0;
        double percent;
        WEFT_TRY(check_keys(&at, keys));
        WEFT_TRY(need_text(&at, "match", &match));
        WEFT_TRY(read_choice(&at, "what", wefti_offload_words, &what));
        WEFT_TRY(read_choice(&at, "to", wefti_tier_words, &to));
        WEFT_REQUIRE(what >= 0 && to >= 0, WEFT_E_ARG, "%s: %s is missing", at.name,
                     what < 0 ? "what" : "to");
        WEFT_TRY(placed(weft_plan_offload(plan, match, (weft_offload)what, (weft_tier)to), &at));
        WEFT_TRY(read_integer(&at, "cache", INT64_MAX, &cache));
        WEFT_REQUIRE(!cache || !wefti_json_get(item, "cache_percent"), WEFT_E_ARG,
                     "%s has both cache and cache_percent; leave out one", at.name);
        WEFT_TRY(placed(weft_plan_cache(plan, match, (weft_offload)what, cache), &at));
        if (!wefti_json_get(item, "cache_percent")) continue;
        WEFT_TRY(read_rate(&at, "cache_percent", 0, &percent));
        WEFT_TRY(placed(weft_plan_cache_percent(plan, match, (weft_offload)what, percent), &at));
    }
    return read_integer(top, "offload_ahead", INT64_MAX, &plan->offload.ahead);
}

static weft_status read_place(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {"match", "on", NULL};
    const wefti_json *item;
    int64_t i = 0;
    WEFT_TRY(read_list(top, "place", &item));
    for (; item; item = item->next, i++) {
        plan_parse_place at = entry(top, "place", i, item);
        const char *match, *on;
        WEFT_TRY(check_keys(&at, keys));
        WEFT_TRY(need_text(&at, "match", &match));
        WEFT_TRY(need_text(&at, "on", &on));
        WEFT_TRY(placed(weft_op_place(plan, match, on), &at));
    }
    return WEFT_OK;
}

static weft_status read_server(const plan_parse_place *top, weft_plan *plan) {
    static const char *const keys[] = {"match", NULL};
    const wefti_json *item;
    int64_t i = 0;
    WEFT_TRY(read_list(top, "server", &item));
    for (; item; item = item->next, i++) {
        plan_parse_place at = entry(top, "server", i, item);
        const char *match;
        WEFT_TRY(check_keys(&at, keys));
        WEFT_TRY(need_text(&at, "match", &match));
        WEFT_TRY(placed(weft_plan_server(plan, match), &at));
    }
    return WEFT_OK;
}

/* Reads the settings of one collective; config is a number of bytes, or the ends of an index. */
static weft_status read_fusion(const plan_parse_place *at, const char *collective,
                               weft_plan *plan) {
    static const char *const keys[] = {"mode", "config", NULL};
    const wefti_json *config = wefti_json_get(at->object, "config");
    int mode = WEFT_FUSION_AUTO;
    int64_t bytes = 0;
    WEFT_TRY(check_keys(at, keys));
    WEFT_TRY(read_choice(at, "mode", fusions, &mode));
    if (mode != WEFT_FUSION_INDEX) {
        WEFT_REQUIRE(!config || mode == WEFT_FUSION_SIZE || config->kind == WEFTI_JSON_NULL,
                     WEFT_E_ARG, "%s.config is for the modes size and index; mode is %s", at->name,
                     fusions[mode]);
        if (mode == WEFT_FUSION_SIZE) WEFT_TRY(read_integer(at, "config", INT64_MAX, &bytes));
        return placed(weft_plan_fusion(plan, collective, (weft_fusion_mode)mode, bytes, 0, NULL),
                      at);
    }
    const wefti_json *item;
    WEFT_TRY(read_list(at, "config", &item));
    int *index, count = 0;
    WEFT_NEW_ARRAY(index, int, config ? config->count + 1 : 1);
    weft_status status = WEFT_OK;
    for (; item && status >= 0; item = item->next) {
        if (item->kind != WEFTI_JSON_INT || item->as.integer < 0 || item->as.integer > INT32_MAX)
            status = WEFT_RAISE(WEFT_E_ARG, "%s.config[%d] must be a positive whole number",
                                at->name, count);
        else
            index[count++] = (int)item->as.integer;
    }
    if (status >= 0)
        status = placed(weft_plan_fusion(plan, collective, WEFT_FUSION_INDEX, 0, count, index), at);
    wefti_free(index);
    return status;
}

static weft_status read_fusions(const plan_parse_place *top, weft_plan *plan) {
    const wefti_json *value = wefti_json_get(top->object, "fusion");
    if (!value) return WEFT_OK;
    plan_parse_place at = inside(top, "fusion", value);
    WEFT_TRY(check_keys(&at, collectives));
    WEFTI_JSON_EACH(member, value) {
        plan_parse_place inner = inside(&at, member->key, member);
        WEFT_TRY(read_fusion(&inner, member->key, plan));
    }
    return WEFT_OK;
}

/* Reads strategies {match, split} and tensors {match, layout}, and keeps the place of each. */
static weft_status
read_strategies(const plan_parse_place *top, const char *list, const char *second,
                weft_status (*add)(weft_plan *, const char *, const char *, const char *),
                weft_plan *plan) {
    const char *const keys[] = {"match", second, NULL};
    const wefti_json *item;
    int64_t i = 0;
    WEFT_TRY(read_list(top, list, &item));
    for (; item; item = item->next, i++) {
        plan_parse_place at = entry(top, list, i, item);
        const char *match, *value;
        WEFT_TRY(check_keys(&at, keys));
        WEFT_TRY(need_text(&at, "match", &match));
        WEFT_TRY(need_text(&at, second, &value));
        WEFT_TRY(placed(add(plan, match, value, at.name), &at));
    }
    return WEFT_OK;
}

static weft_status read_rest(const plan_parse_place *top, weft_plan *plan) {
    int64_t accumulate = 1, copies = 1;
    int mode = (int)plan->mode, dataset = (int)plan->dataset, sum = 0;
    WEFT_TRY(read_choice(top, "mode", modes, &mode));
    WEFT_TRY(read_integer(top, "accumulate", INT32_MAX, &accumulate));
    WEFT_TRY(read_integer(top, "copies", INT32_MAX, &copies));
    WEFT_TRY(read_choice(top, "gradients", gradients, &sum));
    const wefti_json *cuts = wefti_json_get(top->object, "dataset");
    bool has_cuts = cuts && cuts->kind == WEFTI_JSON_TEXT && cuts->as.text[0] == '(';
    if (!has_cuts) WEFT_TRY(read_choice(top, "dataset", datasets, &dataset));
    WEFT_TRY(read_flag(top, "overlap", &plan->overlap));
    if (wefti_json_get(top->object, "model")) {
        weft_status status = wefti_json_hex(top->object, "model", "", &plan->model_hash);
        if (status < 0) return wefti_prefix(status, "%s", top->name);
    }
    plan->mode = (weft_parallel_mode)mode;
    plan->dataset = (weft_dataset)dataset;
    plan->gradients_sum = sum != 0;
    if (has_cuts) WEFT_TRY(placed(weft_plan_dataset_cuts(plan, cuts->as.text), top));
    WEFT_TRY(placed(weft_plan_accumulate(plan, (int)accumulate), top));
    return placed(weft_plan_copies(plan, (int)copies), top);
}

static weft_status read_plan(const plan_parse_place *top, weft_plan *plan) {
    WEFT_TRY(read_mesh(top, plan));
    WEFT_TRY(read_links(top, plan));
    WEFT_TRY(read_rates(top, plan));
    WEFT_TRY(read_audit(top, plan));
    WEFT_TRY(read_rest(top, plan));
    WEFT_TRY(read_pipeline(top, plan));
    WEFT_TRY(read_optimizer(top, plan));
    WEFT_TRY(read_recompute(top, plan));
    WEFT_TRY(read_offload(top, plan));
    WEFT_TRY(read_place(top, plan));
    WEFT_TRY(read_server(top, plan));
    WEFT_TRY(read_fusions(top, plan));
    WEFT_TRY(read_strategies(top, "strategies", "split", wefti_plan_split, plan));
    return read_strategies(top, "tensors", "layout", wefti_plan_split_tensor, plan);
}

/* Reads the version first, so that a plan of another version is not judged by the keys of this
 * one. */
static weft_status read_head(const plan_parse_place *top, int64_t *out_devices) {
    static const char *const keys[] = {
        "weft_plan", "model",      "devices",    "mesh",      "mode",          "pipeline",
        "optimizer", "accumulate", "copies",     "recompute", "gradients",     "fusion",
        "dataset",   "overlap",    "strategies", "tensors",   "links",         "rates",
        "audit",     "offload",    "place",      "server",    "offload_ahead", NULL};
    int64_t version = 0, devices = 0;
    bool object = top->object->kind == WEFTI_JSON_OBJECT;
    WEFT_REQUIRE(object && wefti_json_get(top->object, "weft_plan"), WEFT_E_ARG,
                 "%s is no plan: it must be an object with \"weft_plan\": %d", top->name, VERSION);
    WEFT_TRY(read_integer(top, "weft_plan", INT64_MAX, &version));
    WEFT_REQUIRE(version == VERSION, WEFT_E_ARG,
                 "%s is a plan of version %lld; this weft reads version %d", top->name,
                 (long long)version, VERSION);
    WEFT_TRY(check_keys(top, keys));
    WEFT_REQUIRE(wefti_json_get(top->object, "devices"), WEFT_E_ARG, "%s: devices is missing",
                 top->name);
    WEFT_TRY(read_integer(top, "devices", INT32_MAX, &devices));
    *out_devices = devices;
    return WEFT_OK;
}

static weft_status read_text(const char *name, const char *text, int64_t bytes, wefti_arena *arena,
                             weft_plan **out) {
    static const wefti_json_limits limits = {.depth = 8, .members = 64, .array_items = LIST_MAX};
    plan_parse_place top = {0};
    int64_t devices;
    snprintf(top.name, sizeof top.name, "%.100s", name);
    weft_status status = wefti_json_parse(arena, text, bytes, &limits, &top.object);
    if (status < 0) return wefti_prefix(status, "%s", name);
    WEFT_TRY(read_head(&top, &devices));
    weft_plan *plan;
    WEFT_TRY(placed(weft_plan_create((int)devices, &plan), &top));
    status = read_plan(&top, plan);
    if (status < 0) {
        weft_plan_destroy(plan);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = plan;
    return WEFT_OK;
}

weft_status wefti_plan_parse(const char *name, const char *text, int64_t bytes, weft_plan **out) {
    wefti_arena *arena;
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = read_text(name, text, bytes, arena, out);
    wefti_arena_destroy(arena);
    return status;
}
weft_status weft_plan_parse(const char *name, const char *text, int64_t bytes, weft_plan **out) {
    WEFT_REQUIRE(name && text && bytes >= 0 && out, WEFT_E_ARG,
                 "weft_plan_parse needs a name, a text and a place for the plan");
    return wefti_plan_parse(name, text, bytes, out);
}

weft_status weft_plan_load(const char *path, weft_plan **out) {
    WEFT_REQUIRE(path && out, WEFT_E_ARG, "weft_plan_load needs a path and a place for the plan");
    char *text;
    int64_t bytes;
    WEFT_TRY(wefti_file_read(path, FILE_MAX, &text, &bytes));
    weft_status status = wefti_plan_parse(path, text, bytes, out);
    wefti_free(text);
    return status;
}
