/* The prediction of a run: its programs are built once more, without kernels, one for each class of
 * equal ranks, and walked with a clock. */
#include <string.h>

#include "base/io.h"
#include "plan/plan.h"
#include "search/predict/predict.h"
#include "train/record/record.h"
#include "train/record/rows.h"
#include "setup/programs.h"
#include "train/save/save.h"

/* ---- the machine ---- */

static weft_status machine_of(const wefti_training *t, wefti_machine_model **out) {
    *out = NULL;
    if (*t->built->job->machine) return wefti_model_find(t->built->job->machine, out);
    char *path;
    if (wefti_model_this_machine(&path) < 0) {
        wefti_error_clear();
        return WEFT_OK;
    }
    weft_status status = wefti_is_missing(path) ? WEFT_OK : wefti_model_load(path, out);
    wefti_free(path);
    WEFT_TRY(status);
    if (*out && wefti_model_fits(*out, weft_session_devices(t->built->session)) < 0) {
        wefti_error_clear();
        wefti_model_destroy(*out);
        *out = NULL;
    }
    return WEFT_OK;
}

static wefti_arithmetic arithmetic_of(weft_dtype precision) {
    return precision == WEFT_BF16  ? WEFTI_ARITHMETIC_BF16
           : precision == WEFT_F16 ? WEFTI_ARITHMETIC_F16
           : precision == WEFT_F64 ? WEFTI_ARITHMETIC_F64
                                   : WEFTI_ARITHMETIC_F32;
}

/* A machine that cannot be read costs the MFU; the prediction notes why. */
void wefti_run_rates(wefti_training *t) {
    wefti_machine_model *machine = NULL;
    if (machine_of(t, &machine) < 0) wefti_error_clear();
    t->peak_flops = 0;
    if (!machine) return;
    t->peak_flops = wefti_peak_rate(machine, arithmetic_of(t->built->job->train.precision)) *
                    weft_session_devices(t->built->session);
    t->step_flops = wefti_model_flops(t->built->model.graph, (int32_t)t->built->batch.microbatches);
    wefti_model_destroy(machine);
}

static weft_status write_machine(const wefti_training *t, const wefti_machine_model *machine) {
    wefti_text text = {0};
    wefti_model_print(machine, &text);
    char *data = wefti_text_take(&text);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for a machine file");
    weft_status status = wefti_run_record_write(t, "machine.json", data);
    wefti_free(data);
    return status;
}

/* ---- programs ---- */

/* The session's programs: its graphs, plan and threads. Graphs, data and configuration belong to
 * the run. */
static weft_status open_programs(const wefti_training *t, wefti_job_programs *p) {
    const weft_session_options o = wefti_built_options(t->built);
    const int devices = weft_session_devices(t->built->session);
    *p = (wefti_job_programs){.built = {.job = t->built->job, .model = t->built->model},
                              .graph = {t->built->model.graph, t->built->model.eval_graph},
                              .microbatches = o.microbatches,
                              .devices = devices,
                              .graphs = t->built->model.eval_graph ? 2 : 1};
    p->prepare = (wefti_prepare){.threads = wefti_session_threads(t->built->session) / devices,
                                 .bf16 = wefti_training_is_native(t) ? WEFTI_BF16_NATIVE
                                                                     : WEFTI_BF16_AS_F32};
    if (o.plan) {
        WEFT_TRY(wefti_session_take_plan(&o, &p->microbatches, &p->plan));
    } else if (devices > 1) { /* processes without a plan share the batch */
        WEFT_TRY(weft_plan_create(devices, &p->plan));
    }
    if (p->plan) WEFT_TRY(wefti_route_cache_create(&p->routes));
    if (t->setup.party.world) {
        WEFT_NEW_ARRAY(p->host, int32_t, devices);
        memcpy(p->host, t->setup.party.world->host, (size_t)devices * sizeof *p->host);
    }
    WEFT_TRY(wefti_optimizer_for(&o, t->built->model.graph, &p->optimizer));
    return wefti_job_programs_classes(p);
}

static weft_status predict(const wefti_job_programs *p, const wefti_machine_model *machine,
                           weft_prediction **out) {
    const wefti_rank_classes *all = p->classes;
    const wefti_program **programs;
    WEFT_NEW_ARRAY(programs, const wefti_program *, all->count);
    for (int32_t c = 0; c < all->count; c++) programs[c] = all->classes[c].programs[0];
    const wefti_match_classes classes = {programs, all->count, all->class_of, all->ranks};
    const wefti_predict_options o = {.machine = machine, .microbatches = p->microbatches};
    weft_status status = wefti_predict(&classes, &o, out);
    wefti_free(programs);
    return status;
}

/* ---- as JSON ---- */

static void add_real(wefti_text *out, const char *key, double value) {
    wefti_text_add(out, ", \"%s\": ", key);
    wefti_json_real(out, value);
}

/* Ranks of one class may wait unlike long, so the prediction has classes of its own. */
static weft_status add_class(const wefti_job_programs *p, const wefti_machine_model *machine,
                             const weft_rank_prediction *r, wefti_text *out) {
    const wefti_rank_class *c = wefti_rank_class_of(p->classes, r->rank);
    const wefti_footprint all = wefti_programs_footprint(c->programs, p->graphs);
    const int64_t host = wefti_footprint_bytes(all, WEFTI_SPACE_HOST),
                  disk = wefti_footprint_bytes(all, WEFTI_SPACE_DISK);
    wefti_run_record_rows rows = {0};
    wefti_text_add(out, "    {\"rank\": %d, \"count\": %d, \"peak_bytes\": %lld", r->rank, r->count,
                   (long long)wefti_footprint_bytes(all, WEFTI_SPACE_DEVICE));
    if (host) wefti_text_add(out, ", \"host_bytes\": %lld", (long long)host);
    if (disk) wefti_text_add(out, ", \"disk_bytes\": %lld", (long long)disk);
    add_real(out, "busy_seconds", r->busy_seconds);
    add_real(out, "exposed_seconds", r->exposed_seconds);
    add_real(out, "idle_seconds", r->idle_seconds);
    weft_status status =
        wefti_run_record_predicted(c->programs[0], machine, p->microbatches, p->devices, &rows);
    wefti_text_add(out, ", \"rows\": ");
    wefti_run_record_rows_print(&rows, out);
    wefti_text_add(out, "}");
    wefti_run_record_rows_free(&rows);
    return status;
}

/* The predicted class of a rank: the last one that begins at or below it and has its program. */
static int class_of(const wefti_job_programs *p, const weft_prediction *x, int32_t rank) {
    const int32_t *program = p->classes->class_of;
    int found = 0;
    for (int i = 0; i < x->class_count && x->classes[i].rank <= rank; i++)
        if (program[x->classes[i].rank] == program[rank]) found = i;
    return found;
}

static weft_status add_all(const wefti_job_programs *p, const wefti_machine_model *machine,
                           const weft_prediction *x, wefti_text *out) {
    wefti_text_add(out, "{\n  \"version\": 1,\n  \"machine\": ");
    wefti_json_quote(out, machine->name);
    wefti_text_add(out, ",\n  \"devices\": %d", p->devices);
    add_real(out, "step_seconds", x->step_seconds);
    wefti_text_add(out, ",\n  \"causes\": {");
    for (int i = 0; i < x->cause_count; i++) {
        wefti_text_add(out, "%s\"%s\": ", i ? ", " : "", x->causes[i].name);
        wefti_json_real(out, x->causes[i].seconds);
    }
    wefti_text_add(out, "},\n  \"class_of\": [");
    for (int32_t r = 0; r < p->devices && r < WEFTI_RUN_RECORD_RANKS; r++)
        wefti_text_add(out, "%s%d", r ? ", " : "", class_of(p, x, r));
    wefti_text_add(out, "],\n  \"ranks\": [\n");
    for (int i = 0; i < x->class_count; i++) {
        wefti_text_add(out, "%s", i ? ",\n" : "");
        WEFT_TRY(add_class(p, machine, &x->classes[i], out));
    }
    wefti_text_add(out, "\n  ]\n}\n");
    return WEFT_OK;
}

/* ---- all of it ---- */

static weft_status write_prediction(const wefti_training *t, const wefti_job_programs *p,
                                    const wefti_machine_model *machine) {
    weft_prediction *prediction;
    wefti_text text = {0};
    WEFT_TRY(predict(p, machine, &prediction));
    weft_status status = add_all(p, machine, prediction, &text);
    weft_prediction_free(prediction);
    if (status < 0) {
        wefti_text_free(&text);
        return status;
    }
    char *data = wefti_text_take(&text);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for a prediction");
    status = wefti_run_record_write(t, "prediction.json", data);
    wefti_free(data);
    return status;
}

weft_status wefti_run_record_predict(wefti_training *t) {
    wefti_machine_model *machine;
    wefti_job_programs programs;
    WEFT_TRY(machine_of(t, &machine));
    if (!machine) return WEFT_OK;
    weft_status status = write_machine(t, machine);
    if (status >= 0) {
        status = open_programs(t, &programs);
        if (status >= 0) status = write_prediction(t, &programs, machine);
        wefti_job_programs_free(&programs);
    }
    wefti_model_destroy(machine);
    return status;
}
