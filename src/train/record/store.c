/* Writes the record of a run, and reads it when the run is resumed. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/digest/digest.h"
#include "base/io.h"
#include "base/json/json.h"
#include "base/text.h"
#include "job/job.h"
#include "plan/plan.h"
#include "search/search.h"
#include "topo/model.h"
#include "train/record/record.h"
#include "train/report/report.h"

enum { RECORD_VERSION = 1, RECORD_FILE_MAX = 64 << 20 };

char *wefti_run_record_path(const char *directory, const char *file) {
    return wefti_format("%s/record%s%s", directory, *file ? "/" : "", file);
}

/* ---- settings ---- */

/* Keys that are not set add nothing: records of before count. */
static uint64_t digest_of_limits(uint64_t digest, const weft_job_memory *m) {
    if (m->device_bytes) digest = wefti_digest_number(digest, (uint64_t)m->device_bytes);
    if (m->device_percent > 0) digest = wefti_digest_real(digest, m->device_percent);
    if (m->host_bytes || m->host_percent > 0) {
        digest = wefti_digest_number(digest, ~(uint64_t)m->host_bytes);
        digest = wefti_digest_real(digest, m->host_percent);
    }
    return digest;
}

static uint64_t digest_of_search(const weft_job *job) {
    const weft_job_parallel *p = &job->parallel;
    const weft_job_cost *c = &p->cost;
    const weft_search_rules *r = &p->algorithm;
    const double reals[] = {c->alpha,
                            c->beta,
                            c->gamma,
                            c->threshold,
                            c->constant,
                            c->bias,
                            (double)c->capacity,
                            r->epsilon,
                            p->search_seconds};
    const bool rules[] = {r->fully_use_devices, r->elementwise_op_strategy_follow,
                          r->enable_algo_approxi, c->phase == WEFT_PHASE_INFERENCE};
    uint64_t digest = wefti_digest_number(1, (uint64_t)p->search);
    digest = wefti_digest_text(digest, p->constraints);
    digest = wefti_digest_number(digest, (uint64_t)p->evaluations);
    digest = wefti_digest_number(digest, (uint64_t)job->device.memory_bytes);
    if (job->device.memory_percent > 0)
        digest = wefti_digest_real(digest, job->device.memory_percent);
    digest = digest_of_limits(digest, &job->memory);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        digest = wefti_digest_real(digest, reals[i]);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        digest = wefti_digest_number(digest, rules[i]);
    return wefti_digest_number(digest, (uint64_t)r->tensor_slice_align);
}

/* The joint search comes before the model of the run, whose batch it decides about; names and
 * shapes of parameters do not depend on the batch. */
static weft_status hash_model(const wefti_training *t, uint64_t *out) {
    weft_graph *graph;
    if (t->built->model.graph) {
        *out = wefti_model_hash(t->built->model.graph);
        return WEFT_OK;
    }
    WEFT_TRY(wefti_built_graph_of(t->built, &t->built->model.config, 1, &graph));
    *out = wefti_model_hash(graph);
    weft_graph_destroy(graph);
    return WEFT_OK;
}

/* A digest of everything by which the user decides about the plan. The machine counts by its name:
 * its figures may have been measured again. */
static weft_status digest_of(const wefti_training *t, uint64_t *out) {
    const weft_job *job = t->built->job;
    const bool searched = job->parallel.mode == WEFT_JOB_MODE_AUTO && !*job->parallel.plan;
    uint64_t model, digest = wefti_digest_text(RECORD_VERSION, job->machine);
    digest = wefti_digest_text(digest, job->parallel.links);
    digest = wefti_digest_number(digest, searched ? digest_of_search(job) : 0);
    WEFT_TRY(hash_model(t, &model));
    digest = wefti_digest_number(digest, model);
    for (int64_t i = 0; i < job->train.frozen.count; i++) {
        digest = wefti_digest_text(digest, job->train.frozen.items[i].key);
        digest = wefti_digest_text(digest, job->train.frozen.items[i].value);
    }
    if (wefti_job_offloads_auto(job)) digest = wefti_digest_text(digest, "memory.offload: auto");
    if (job->plan) {
        weft_plan *plan;
        char *text = NULL;
        WEFT_TRY(wefti_plan_copy(job->plan, &plan));
        plan->rates = wefti_machine_assumed;
        plan->links = (wefti_links){.measured = false};
        weft_status status = wefti_plan_print(plan, &text);
        weft_plan_destroy(plan);
        if (status >= 0) digest = wefti_digest_text(digest, text);
        wefti_free(text);
        WEFT_TRY(status);
    }
    *out = digest;
    return WEFT_OK;
}

/* ---- reading ---- */

/* Reads a file of the record. *out NULL: there is none. */
static weft_status read_file(const wefti_training *t, const char *file, char **out,
                             int64_t *out_bytes) {
    *out = NULL;
    char *path = wefti_run_record_path(t->built->job->checkpoint.dir, file);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status =
        wefti_is_missing(path) ? WEFT_OK : wefti_file_read(path, RECORD_FILE_MAX, out, out_bytes);
    wefti_free(path);
    return status;
}

static weft_status parse_settings(const char *text, int64_t bytes, uint64_t *out) {
    static const wefti_json_limits limits = {.depth = 4, .members = 16, .array_items = 16};
    wefti_arena *arena;
    const wefti_json *top;
    int64_t version;
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = wefti_json_parse(arena, text, bytes, &limits, &top);
    if (status >= 0) status = wefti_json_int(top, "version", &version);
    if (status >= 0 && version != RECORD_VERSION)
        status = WEFT_RAISE(WEFT_E_ARG, "version is %lld; this weft reads version %d",
                            (long long)version, RECORD_VERSION);
    if (status >= 0) status = wefti_json_hex(top, "settings", "", out);
    wefti_arena_destroy(arena);
    return status;
}

/* *out: whether the record's settings are this job's. */
static weft_status same_settings(const wefti_training *t, bool *out) {
    char *text;
    int64_t bytes;
    uint64_t recorded = 0, now = 0;
    *out = false;
    WEFT_TRY(read_file(t, "run.json", &text, &bytes));
    if (!text) return WEFT_OK;
    weft_status status = parse_settings(text, bytes, &recorded);
    wefti_free(text);
    if (status < 0)
        return wefti_prefix(status, "%s/record/run.json (remove the folder `record` to plan anew)",
                            t->built->job->checkpoint.dir);
    WEFT_TRY(digest_of(t, &now));
    *out = recorded == now;
    if (!*out)
        wefti_setup_note(&t->setup,
                         "the settings of model, machine or parallelism are not those with "
                         "which the run began: its recorded plan is not used");
    return WEFT_OK;
}

static weft_status read_plan(const wefti_training *t, weft_plan **out) {
    char *text;
    int64_t bytes;
    *out = NULL;
    WEFT_TRY(read_file(t, "plan.json", &text, &bytes));
    if (!text) return WEFT_OK;
    weft_status status = wefti_plan_parse("plan.json", text, bytes, out);
    wefti_free(text);
    if (status >= 0 && t->built->job->plan && (*out)->devices != t->built->job->plan->devices) {
        status = WEFT_RAISE(WEFT_E_ARG, "plan.json: devices is %d, but the job has %d",
                            (*out)->devices, t->built->job->plan->devices);
        weft_plan_destroy(*out);
        *out = NULL;
    }
    if (status < 0)
        return wefti_prefix(status, "%s/record (remove this folder to plan anew)",
                            t->built->job->checkpoint.dir);
    return WEFT_OK;
}

weft_status wefti_run_record_plan(wefti_training *t, weft_plan **out) {
    const weft_job *job = t->built->job;
    weft_plan *recorded;
    bool same;
    *out = NULL;
    if (!job->checkpoint.dir[0]) return WEFT_OK;
    WEFT_TRY(same_settings(t, &same));
    if (!same) return WEFT_OK;
    WEFT_TRY(read_plan(t, &recorded));
    if (!recorded) return WEFT_OK;
    t->record.reused = true;
    if (job->parallel.mode == WEFT_JOB_MODE_AUTO && !*job->parallel.plan && job->plan) {
        *out = recorded;
        wefti_setup_note(&t->setup, "the plan of this run is used again: %s/record/plan.json",
                         job->checkpoint.dir);
        return WEFT_OK;
    }
    weft_status status = job->plan ? wefti_plan_copy(job->plan, out) : WEFT_OK;
    if (status >= 0 && *out) {
        (*out)->links = recorded->links;
        (*out)->rates = recorded->rates;
    }
    weft_plan_destroy(recorded);
    return status;
}

/* ---- writing ---- */

weft_status wefti_run_record_write(const wefti_training *t, const char *file, const char *text) {
    char *path = wefti_run_record_path(t->built->job->checkpoint.dir, file);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_file_write(path, text, strlen(text));
    wefti_free(path);
    return status;
}

static weft_status write_settings(const wefti_training *t) {
    wefti_text text = {0};
    uint64_t digest;
    WEFT_TRY(digest_of(t, &digest));
    wefti_text_add(&text, "{\n  \"version\": %d,\n  \"settings\": \"%016" PRIx64 "\",\n",
                   RECORD_VERSION, digest);
    wefti_text_add(&text,
                   "  \"devices\": %d,\n  \"machine\": ", weft_session_devices(t->built->session));
    wefti_json_quote(&text, t->built->job->machine);
    wefti_text_add(&text, "\n}\n");
    char *data = wefti_text_take(&text);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for the record of a run");
    weft_status status = wefti_run_record_write(t, "run.json", data);
    wefti_free(data);
    return status;
}

static weft_status write_plan(wefti_training *t) {
    weft_plan *plan;
    char *text = NULL;
    WEFT_TRY(wefti_built_completed_plan(t->built, &plan));
    weft_status status = wefti_plan_print(plan, &text);
    weft_plan_destroy(plan);
    if (status >= 0) status = wefti_run_record_write(t, "plan.json", text);
    wefti_free(text);
    return status;
}

/* The settings are written last: without them the rest does not count. */
static weft_status write_record(wefti_training *t) {
    char *folder = wefti_run_record_path(t->built->job->checkpoint.dir, "");
    WEFT_REQUIRE(folder, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_remove_tree(folder);
    if (status >= 0) status = wefti_dir_make(folder);
    wefti_free(folder);
    WEFT_TRY(status);
    WEFT_TRY(write_plan(t));
    return write_settings(t);
}

void wefti_run_record_unwritten(const wefti_training *t) {
    wefti_setup_note(&t->setup, "the record of the run: %s; the run continues without it",
                     weft_error_message());
}

void wefti_run_record_begin(wefti_training *t) {
    if (!t->built->job->checkpoint.dir[0] || t->record.reused) return;
    if (write_record(t) < 0 || wefti_run_record_predict(t) < 0) wefti_run_record_unwritten(t);
}
