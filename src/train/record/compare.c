/* Reads a record, compares its two sides, and judges it: weft/audit.h. */
#include "train/record/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "plan/plan.h"
#include "train/record/record.h"
#include "weft/audit.h"

enum { SIDE_MAX = 256 << 20, RECORD_RANKS_MAX = 1 << 20 };

/* ---- reading ---- */

/* 0: the member is absent. */
static weft_status read_optional(const wefti_json *object, const char *key, double *out) {
    *out = 0;
    return wefti_json_get(object, key) ? wefti_run_record_real(object, key, out) : WEFT_OK;
}

static weft_status read_parts(const wefti_json *object, double out[WEFT_TRAIN_PARTS]) {
    const wefti_json *time = wefti_json_get(object, "time");
    if (!time) return WEFT_OK;
    WEFT_TRY(wefti_json_object(object, "time", &time));
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++)
        WEFT_TRY(read_optional(time, weft_train_part_text((weft_train_part)p), &out[p]));
    return WEFT_OK;
}

static bool is_true(const wefti_json *object, const char *key) {
    const wefti_json *value = wefti_json_get(object, key);
    return value && value->kind == WEFTI_JSON_BOOL && value->as.boolean;
}

/* Settings are whole numbers below 2^53, and older records have none. */
static weft_status read_facts(const wefti_json *top, wefti_run_facts *out) {
    const wefti_json *job = wefti_json_get(top, "job");
    const char *precision = "f32";
    if (!job) return WEFT_OK;
    WEFT_TRY(wefti_json_object(top, "job", &job));
    const struct {
        const char *key;
        int64_t *to;
    } numbers[] = {{"batch", &out->batch},
                   {"microbatches", &out->microbatches},
                   {"stages", &out->stages},
                   {"steps_made", &out->steps_made},
                   {"checkpoint_every", &out->checkpoint_every},
                   {"eval_every", &out->eval_every}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double value;
        WEFT_TRY(read_optional(job, numbers[i].key, &value));
        *numbers[i].to = value < 1e15 ? (int64_t)value : 0;
    }
    WEFT_TRY(read_optional(job, "checkpoint_seconds", &out->checkpoint_seconds));
    if (wefti_json_get(job, "precision")) WEFT_TRY(wefti_json_text(job, "precision", &precision));
    out->bf16 = !strcmp(precision, "bf16");
    out->sliced = is_true(job, "sliced");
    return WEFT_OK;
}

static weft_status read_rank(const wefti_json *object, wefti_run_record_rank *out) {
    const wefti_json *rows;
    int64_t rank;
    WEFT_TRY(wefti_json_int(object, "rank", &rank));
    WEFT_REQUIRE(rank >= 0 && rank < RECORD_RANKS_MAX, WEFT_E_CORRUPT, "rank is %lld",
                 (long long)rank);
    out->rank = (int32_t)rank;
    WEFT_TRY(wefti_json_int(object, "peak_bytes", &out->peak_bytes));
    if (wefti_json_get(object, "host_bytes"))
        WEFT_TRY(wefti_json_int(object, "host_bytes", &out->host_bytes));
    if (wefti_json_get(object, "disk_bytes"))
        WEFT_TRY(wefti_json_int(object, "disk_bytes", &out->disk_bytes));
    if (wefti_json_get(object, "exposed_seconds")) {
        double exposed, idle;
        WEFT_TRY(wefti_run_record_real(object, "exposed_seconds", &exposed));
        WEFT_TRY(wefti_run_record_real(object, "idle_seconds", &idle));
        out->waits = exposed + idle;
    }
    WEFT_TRY(read_parts(object, out->parts));
    WEFT_TRY(wefti_json_array(object, "rows", &rows));
    return wefti_run_record_rows_read(rows, &out->rows);
}

static weft_status read_ranks(const wefti_json *top, wefti_run_record_side *out) {
    const wefti_json *ranks;
    WEFT_TRY(wefti_json_array(top, "ranks", &ranks));
    WEFT_REQUIRE(ranks->count >= 1, WEFT_E_CORRUPT, "ranks is empty");
    out->ranks = wefti_calloc((size_t)ranks->count, sizeof *out->ranks);
    WEFT_REQUIRE(out->ranks, WEFT_E_NOMEM, "no memory for a record of %d ranks", ranks->count);
    WEFTI_JSON_EACH(item, ranks) {
        wefti_run_record_rank *rank = &out->ranks[out->count++];
        weft_status status = read_rank(item, rank);
        if (status < 0) return wefti_prefix(status, "ranks[%d]", out->count - 1);
    }
    return WEFT_OK;
}

static weft_status read_classes(const wefti_json *top, wefti_run_record_side *out) {
    const wefti_json *list;
    WEFT_TRY(wefti_json_array(top, "class_of", &list));
    out->class_of = wefti_calloc((size_t)list->count + 1, sizeof *out->class_of);
    WEFT_REQUIRE(out->class_of, WEFT_E_NOMEM, "no memory for a record");
    WEFTI_JSON_EACH(item, list) {
        WEFT_REQUIRE(
            item->kind == WEFTI_JSON_INT && item->as.integer >= 0 && item->as.integer < out->count,
            WEFT_E_CORRUPT, "class_of[%d] is none of the %d ranks", out->detailed, out->count);
        out->class_of[out->detailed++] = (int32_t)item->as.integer;
    }
    return WEFT_OK;
}

static weft_status read_side(const wefti_json *top, bool predicted, wefti_run_record_side *out) {
    int64_t version;
    WEFT_TRY(wefti_json_int(top, "version", &version));
    WEFT_REQUIRE(version == 1, WEFT_E_ARG, "version is %lld; this weft reads version 1",
                 (long long)version);
    WEFT_TRY(wefti_run_record_real(top, "step_seconds", &out->step_seconds));
    WEFT_REQUIRE(out->step_seconds > 0, WEFT_E_CORRUPT, "step_seconds is 0");
    WEFT_TRY(read_ranks(top, out));
    if (predicted) {
        WEFT_TRY(wefti_json_text(top, "machine", &out->machine));
        WEFT_TRY(wefti_json_int(top, "devices", &out->devices));
        return read_classes(top, out);
    }
    WEFT_TRY(wefti_json_int(top, "steps", &out->steps));
    WEFT_TRY(read_facts(top, &out->facts));
    WEFT_TRY(wefti_run_record_real(top, "first_quartile", &out->first_quartile));
    return wefti_run_record_real(top, "third_quartile", &out->third_quartile);
}

/* `absent`: why the file may not be there. */
static weft_status open_side(const char *directory, const char *file, const char *absent,
                             wefti_run_record_side *out) {
    static const wefti_json_limits limits = {
        .depth = 8, .members = 64, .array_items = RECORD_RANKS_MAX};
    const wefti_json *top;
    char *text = NULL, *path = wefti_run_record_path(directory, file);
    int64_t bytes;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_is_missing(path)
                             ? WEFT_RAISE(WEFT_E_NOT_FOUND, "%s does not exist: %s", path, absent)
                             : wefti_file_read(path, SIDE_MAX, &text, &bytes);
    if (status >= 0) {
        status = wefti_arena_create(&out->arena);
        if (status >= 0) status = wefti_json_parse(out->arena, text, bytes, &limits, &top);
        if (status >= 0) status = read_side(top, !strcmp(file, "prediction.json"), out);
        if (status < 0) status = wefti_prefix(status, "%s", path);
    }
    wefti_free(text);
    wefti_free(path);
    return status;
}

static weft_status check_directory(const char *directory) {
    WEFT_REQUIRE(directory && *directory, WEFT_E_ARG, "an audit needs the directory of a run");
    WEFT_REQUIRE(wefti_is_dir(directory), WEFT_E_NOT_FOUND, "%s is no directory", directory);
    char *path = wefti_run_record_path(directory, "");
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    const bool there = wefti_is_dir(path);
    wefti_free(path);
    WEFT_REQUIRE(there, WEFT_E_NOT_FOUND,
                 "%s has no record of a run: it must be the checkpoint.dir of a training",
                 directory);
    return WEFT_OK;
}

static weft_status open_prediction(const char *directory, wefti_run_record *out) {
    char *path = wefti_run_record_path(directory, "machine.json");
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = open_side(directory, "prediction.json", "", &out->predicted);
    if (status >= 0) status = wefti_model_load(path, &out->machine);
    wefti_free(path);
    return status;
}

weft_status wefti_run_record_open(const char *directory, wefti_run_record *out) {
    *out = (wefti_run_record){.machine = NULL};
    WEFT_TRY(check_directory(directory));
    char *path = wefti_run_record_path(directory, "prediction.json");
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    bool predicted = false;
    weft_status status = wefti_look_for(path, &predicted);
    wefti_free(path);
    WEFT_TRY(status);
    if (predicted) WEFT_TRY(open_prediction(directory, out));
    return open_side(directory, "measured.json",
                     "the run has measured no step; it begins with its third one", &out->measured);
}

static void close_side(wefti_run_record_side *side) {
    for (int32_t i = 0; i < side->count; i++) wefti_run_record_rows_free(&side->ranks[i].rows);
    wefti_free(side->ranks);
    wefti_free(side->class_of);
    wefti_arena_destroy(side->arena);
}

void wefti_run_record_close(wefti_run_record *record) {
    close_side(&record->predicted);
    close_side(&record->measured);
    wefti_model_destroy(record->machine);
}

/* The prediction of a measured rank; NULL: a rank without detail. */
static const wefti_run_record_rank *prediction_of(const wefti_run_record *record,
                                                  const wefti_run_record_rank *measured) {
    const wefti_run_record_side *p = &record->predicted;
    return measured->rank < p->detailed ? &p->ranks[p->class_of[measured->rank]] : NULL;
}

double wefti_run_record_seconds(const wefti_run_record_rows *rows, wefti_run_record_kind kind) {
    double sum = 0;
    for (int64_t i = 0; i < rows->count; i++)
        if (rows->items[i].kind == kind) sum += rows->items[i].seconds;
    return sum;
}

double wefti_run_record_busy(const wefti_run_record_rows *rows) {
    double sum = 0;
    for (int64_t i = 0; i < rows->count; i++) sum += rows->items[i].seconds;
    return sum;
}

/* ---- comparing ---- */

typedef struct audit_lines {
    weft_audit_line *items;
    int64_t count, cap;
} audit_lines;

static weft_status add_line(wefti_arena *arena, audit_lines *lines, const wefti_run_record_row *row,
                            bool measured) {
    int64_t at = 0;
    while (at < lines->count && strcmp(lines->items[at].name, row->name) != 0) at++;
    if (at == lines->count) {
        WEFT_TRY(WEFT_GROW(lines->items, lines->count, lines->cap));
        const char *name = wefti_arena_strdup(arena, row->name);
        WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for an audit");
        lines->items[lines->count++] = (weft_audit_line){.name = name};
    }
    weft_audit_line *line = &lines->items[at];
    *(measured ? &line->measured_seconds : &line->predicted_seconds) += row->seconds;
    if (measured) line->calls += row->calls;
    return WEFT_OK;
}

static weft_status add_rows(wefti_arena *arena, const wefti_run_record_rows *rows, bool measured,
                            audit_lines lines[WEFTI_RUN_RECORD_KINDS]) {
    for (int64_t i = 0; i < rows->count; i++)
        WEFT_TRY(add_line(arena, &lines[rows->items[i].kind], &rows->items[i], measured));
    return WEFT_OK;
}

static int compare_lines(const void *a, const void *b) {
    const weft_audit_line *x = a, *y = b;
    if (x->measured_seconds != y->measured_seconds)
        return x->measured_seconds < y->measured_seconds ? 1 : -1;
    return strcmp(x->name, y->name);
}

static weft_status compare_ranks(const wefti_run_record *r, weft_audit *out,
                                 audit_lines lines[WEFTI_RUN_RECORD_KINDS]) {
    double busiest = 0;
    WEFT_NEW_ARRAY(out->ranks, weft_audit_rank, r->measured.count);
    for (int32_t i = 0; i < r->measured.count; i++) {
        static const wefti_run_record_rank nothing;
        const wefti_run_record_rank *m = &r->measured.ranks[i], *p = prediction_of(r, m);
        if (!r->machine && m->rows.count > 0) p = &nothing;
        if (!p) continue;
        weft_audit_rank *rank = &out->ranks[out->rank_count++];
        *rank = (weft_audit_rank){
            .rank = m->rank,
            .predicted_peak_bytes = p->peak_bytes,
            .observed_peak_bytes = m->peak_bytes,
            .host_bytes = p->host_bytes,
            .disk_bytes = p->disk_bytes,
            .predicted_kernels = wefti_run_record_seconds(&p->rows, WEFTI_RUN_RECORD_KERNEL),
            .measured_kernels = wefti_run_record_seconds(&m->rows, WEFTI_RUN_RECORD_KERNEL),
            .predicted_waits = p->waits,
            .measured_waits = wefti_run_record_seconds(&m->rows, WEFTI_RUN_RECORD_TRANSFER)};
        const double busy = wefti_run_record_busy(&m->rows);
        if (busy > busiest) busiest = busy;
        WEFT_TRY(add_rows(out->owner, &p->rows, false, lines));
        WEFT_TRY(add_rows(out->owner, &m->rows, true, lines));
    }
    const double rest = out->measured_seconds - busiest;
    out->other_seconds = rest > 0 ? rest : 0;
    return WEFT_OK;
}

static weft_status compare(const wefti_run_record *r, weft_audit *out) {
    audit_lines lines[WEFTI_RUN_RECORD_KINDS] = {{NULL, 0, 0}};
    const double measured = r->measured.step_seconds;
    if (r->machine) (void)snprintf(out->machine, sizeof out->machine, "%s", r->predicted.machine);
    out->devices = r->machine ? (int)r->predicted.devices : (int)r->measured.count;
    out->steps = r->measured.steps;
    out->predicted_seconds = r->predicted.step_seconds;
    out->measured_seconds = measured;
    out->error = r->machine ? out->predicted_seconds / measured - 1 : NAN;
    out->spread = (r->measured.third_quartile - r->measured.first_quartile) / measured;
    weft_status status = compare_ranks(r, out, lines);
    for (int k = 0; k < WEFTI_RUN_RECORD_KINDS; k++)
        if (lines[k].count)
            qsort(lines[k].items, (size_t)lines[k].count, sizeof *lines[k].items, compare_lines);
    out->ops = lines[0].items;
    out->op_count = (int)lines[0].count;
    out->transfers = lines[1].items;
    out->transfer_count = (int)lines[1].count;
    out->copies = lines[2].items;
    out->copy_count = (int)lines[2].count;
    return status < 0 ? status : wefti_run_judge(&r->measured, out->owner, &out->verdict);
}

/* The error of the last audit stands in the plan. */
static weft_status write_header(const char *directory, const weft_audit *audit) {
    char *path = wefti_run_record_path(directory, "plan.json");
    weft_plan *plan;
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = weft_plan_load(path, &plan);
    if (status >= 0) {
        plan->audit.predicted_seconds = audit->predicted_seconds;
        plan->audit.measured_seconds = audit->measured_seconds;
        status = weft_plan_save(plan, path);
        weft_plan_destroy(plan);
    }
    wefti_free(path);
    return status;
}

weft_status weft_audit_run(const char *directory, weft_audit **out) {
    wefti_run_record record;
    wefti_arena *arena = NULL;
    weft_audit *audit = NULL;
    WEFT_REQUIRE(out, WEFT_E_ARG, "weft_audit_run needs a place for the audit");
    weft_status status = wefti_run_record_open(directory, &record);
    if (status >= 0) status = wefti_arena_create(&arena);
    if (status >= 0) {
        audit = wefti_calloc(1, sizeof *audit);
        if (audit) audit->owner = arena;
        status = audit ? compare(&record, audit) : WEFT_RAISE(WEFT_E_NOMEM, "no memory");
        if (!audit) wefti_arena_destroy(arena);
    }
    const bool predicted = record.machine != NULL;
    wefti_run_record_close(&record);
    if (status >= 0 && predicted) status = write_header(directory, audit);
    if (status < 0) {
        weft_audit_free(audit);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = audit;
    return WEFT_OK;
}

void weft_audit_free(weft_audit *audit) {
    if (!audit) return;
    wefti_free(audit->ops);
    wefti_free(audit->transfers);
    wefti_free(audit->copies);
    wefti_free(audit->ranks);
    wefti_arena_destroy(audit->owner);
    wefti_free(audit);
}
