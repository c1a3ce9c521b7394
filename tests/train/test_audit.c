/* Audits of runs: sums and memory are right, a calibrated machine predicts what was measured, and
 * records that are missing or damaged are refused. */
#include "run_layouts.h"
#include "session/world_fixture.h"

#include <stdlib.h>

#include "base/io.h"
#include "plan/plan.h"
#include "topo/model.h"
#include "train/record/compare.h"
#include "weft/audit.h"
#include "weft/bench.h"

enum { STEPS = 9, MEASURED = STEPS - 2 };

/* A machine without launches, so that times of kernels follow from their work alone. */
static const char machine_text[] =
    "{\"version\": 1, \"name\": \"tested\", \"hosts\": 1, \"device\": {"
    "\"memory_bytes\": {\"value\": 1e9, \"source\": \"s\"},"
    "\"memory_bytes_per_second\": {\"value\": 1e10, \"source\": \"s\"},"
    "\"vector_flops\": {\"value\": 1e10, \"source\": \"s\"},"
    "\"launch_seconds\": {\"value\": 0, \"source\": \"s\"},"
    "\"peak_flops\": {\"f32\": {\"value\": 1e11, \"source\": \"s\"}}},"
    "\"levels\": [{\"name\": \"host\", \"devices\": 4,"
    "\"latency_seconds\": {\"value\": 1e-6, \"source\": \"s\"},"
    "\"bytes_per_second\": {\"value\": 1e9, \"source\": \"s\"}}]}";

static words job_with(const char *machine) {
    words w = tiny_gpt2();
    add_words(&w, WITH("train.batch=8", "device.threads=2", "parallel.devices=2"));
    add_word(&w, "train.steps=%d", STEPS);
    if (machine) add_word(&w, "machine=%s", machine);
    return w;
}

static const char *machine_file(void) {
    return put_file("machine.json", machine_text, sizeof machine_text - 1);
}

/* Of two devices only one computes at a time, and they move data themselves. */
static const char *shared_machine_file(void) {
    static const char before[] = "\"launch_seconds\"",
                      more[] = "\"devices_at_once\": {\"value\": 1, \"source\": \"s\"},";
    static const char host[] = "\"devices\": 4,", waits[] = "\"moved_in_waits\": true,";
    char text[sizeof machine_text + sizeof more + sizeof waits];
    const char *at = strstr(machine_text, before), *level = strstr(at, host);
    const int head = (int)(at - machine_text), middle = (int)(level - at);
    const int bytes = snprintf(text, sizeof text, "%.*s%s%.*s%s%s", head, machine_text, more,
                               middle, at, waits, level);
    return put_file("shared.json", text, (size_t)bytes);
}

static void train(const char *machine, const char *dir, const char *const *more) {
    words w = job_with(machine);
    record r = {.first = 0};
    add_words(&w, more);
    ASSERT_OK(run_with(&w, WITH(dir_word(dir)), &r));
}

static weft_audit *audited(const char *dir) {
    weft_audit *a;
    ASSERT_OK(weft_audit_run(in_root(dir), &a));
    return a;
}

static double sum_of(const weft_audit_line *lines, int count, bool measured) {
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += measured ? lines[i].measured_seconds : lines[i].predicted_seconds;
    return sum;
}

static void assert_close(double a, double b, double tolerance, const char *what) {
    if (!(fabs(a - b) <= tolerance * (fabs(a) + fabs(b)) / 2))
        fail_msg("%s: %g and %g", what, a, b);
}

static void assert_whole(const weft_audit *a) {
    double kernels[2] = {0, 0}, waits = 0;
    assert_string_equal(a->machine, "tested");
    assert_int_equal(a->devices, 2);
    assert_int_equal(a->steps, MEASURED);
    assert_int_equal(a->rank_count, 2);
    assert_true(a->predicted_seconds > 0 && a->measured_seconds > 0);
    assert_close(a->error, a->predicted_seconds / a->measured_seconds - 1, 1e-9, "error");
    for (int i = 0; i < 2; i++) {
        const weft_audit_rank *r = &a->ranks[i];
        assert_int_equal(r->rank, i);
        assert_true(r->observed_peak_bytes > 0);
        assert_int_equal(r->observed_peak_bytes, r->predicted_peak_bytes);
        kernels[0] += r->predicted_kernels;
        kernels[1] += r->measured_kernels;
        waits += r->measured_waits;
        assert_true(r->measured_kernels > 0 && r->measured_kernels < a->measured_seconds * 2);
    }
    assert_close(sum_of(a->ops, a->op_count, false), kernels[0], 1e-6, "predicted kernels");
    assert_close(sum_of(a->ops, a->op_count, true), kernels[1], 1e-6, "measured kernels");
    assert_close(sum_of(a->transfers, a->transfer_count, true), waits, 1e-6, "waits");
    bool linear = false;
    for (int i = 0; i < a->op_count; i++) {
        linear |= !strcmp(a->ops[i].name, "linear") && a->ops[i].calls == 2 * 2 * 4;
        assert_true(a->ops[i].calls > 0);
    }
    assert_true(linear);
    assert_true(a->transfer_count >= 1);
}

static void sums_and_memory_are_right(void **state) {
    (void)state;
    char path[600];
    weft_plan *plan;
    train(machine_file(), "run", NULL);
    weft_audit *a = audited("run");
    assert_whole(a);
    (void)snprintf(path, sizeof path, "%s/record/plan.json", in_root("run"));
    ASSERT_OK(weft_plan_load(path, &plan));
    assert_true(plan->audit.predicted_seconds == a->predicted_seconds);
    assert_true(plan->audit.measured_seconds == a->measured_seconds);
    weft_plan_destroy(plan);
    weft_audit_free(a);
    a = audited("run"); /* with a plan that has an audit */
    assert_whole(a);
    weft_audit_free(a);
    ASSERT_OK(wefti_remove_tree(in_root("run")));
}

/* ---- calibration, on a record of known times ---- */

static char *record_path(const char *dir, const char *file) {
    static char path[600];
    (void)snprintf(path, sizeof path, "%s/record/%s", in_root(dir), file);
    return path;
}

/* Microseconds of a call of a row, as the tests of calibration have them. */
static double known_us(int row) {
    return 3 + row * 5 % 17;
}

/* Replaces the times of a record by known ones: of the row k, each call takes known_us(k), or all
 * calls of transfers take equally long. `processor`: the part of these times on a processor; 0: not
 * known; if they are, ranks wait long. A step takes one second, so that its rest is known too. */
static void set_times(const char *dir, bool equal_transfers, double processor) {
    enum { KEYS = 7, STEP = 0, CALLS, SECONDS, UNDER_WAY, PROCESSOR, TRANSFER, OP };
    static const char *const keys[KEYS] = {
        "\"step_seconds\": ", "\"calls\": ",       "\"seconds\": ", "\"under_way\": ",
        ", \"processor\": ",  "{\"transfer\": \"", "{\"op\": \""};
    char *text, *path = record_path(dir, "measured.json");
    int64_t bytes;
    wefti_text out = {0};
    double calls = 0;
    int row = -1;
    bool transfer = false;
    ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
    for (const char *at = text; *at;) {
        int key = 0;
        while (key < KEYS && strncmp(at, keys[key], strlen(keys[key])) != 0) key++;
        if (key == TRANSFER || key == OP) transfer = key == TRANSFER;
        if (key >= TRANSFER) {
            wefti_text_add_bytes(&out, at++, 1);
            continue;
        }
        char *behind;
        double value = strtod(at + strlen(keys[key]), &behind);
        if (key == CALLS) calls = value;
        if (key == SECONDS) row++;
        const double wait = processor > 0 ? 1000 : 7;
        const double us = transfer && equal_transfers ? wait : known_us(row);
        if (key != CALLS) value = key == STEP ? 1 : calls * us * 1e-6;
        if (key == PROCESSOR) value *= processor;
        if (key != PROCESSOR || processor > 0) wefti_text_add(&out, "%s%.17g", keys[key], value);
        at = behind;
    }
    wefti_free(text);
    text = wefti_text_take(&out);
    ASSERT_OK(wefti_file_write(path, text, strlen(text)));
    wefti_free(text);
}

/* Additions in place count as copies. */
static const char *factor_name(const wefti_run_record_row *row) {
    return !strcmp(row->name, "add") && row->flops == 0 ? "copy" : row->name;
}

/* Kernels with the same key and the same size have one factor. */
static bool same_factor(const wefti_run_record_row *a, const wefti_run_record_row *b) {
    return b->kind == WEFTI_RUN_RECORD_KERNEL && !strcmp(factor_name(a), factor_name(b)) &&
           a->arithmetic == b->arithmetic &&
           (a->product ? a->flops == b->flops : a->bytes == b->bytes);
}

/* The formula of the tests' machine, which has no curves and no launches, for two ranks. */
static double formula_of(const wefti_machine_model *m, const wefti_run_record_row *row) {
    const wefti_device_model *d = &m->device;
    const double rate =
        row->product ? wefti_model_product_rate(d, row->arithmetic) : d->vector_flops.value;
    const double compute = row->flops / rate;
    const double memory = row->bytes / d->memory_bytes_per_second.value;
    return wefti_model_sharing(m, 2) * (compute > memory ? compute : memory);
}

/* The factor of each kernel is that between its known time and the formula's. */
static int assert_factors(const wefti_run_record *r, const wefti_machine_model *m) {
    int checked = 0;
    for (int32_t i = 0; i < r->measured.count; i++)
        for (int64_t k = 0; k < r->measured.ranks[i].rows.count; k++) {
            const wefti_run_record_row *row = &r->measured.ranks[i].rows.items[k];
            double known = 0, computed = 0;
            const double work = row->product ? row->flops : row->bytes;
            if (row->kind != WEFTI_RUN_RECORD_KERNEL || work < 1) continue;
            for (int32_t n = 0; n < r->measured.count; n++)
                for (int64_t l = 0; l < r->measured.ranks[n].rows.count; l++) {
                    const wefti_run_record_row *other = &r->measured.ranks[n].rows.items[l];
                    if (!same_factor(row, other)) continue;
                    known += other->seconds;
                    computed += other->calls * formula_of(m, other);
                }
            assert_close(wefti_model_op_factor(&m->device, factor_name(row), row->arithmetic, work),
                         known / computed, 1e-6, row->name);
            checked++;
        }
    return checked;
}

/* Without its ops' factors, a calibrated machine is right about the sum of all kernels but
 * products. */
static void assert_scaled(const wefti_run_record *r, const wefti_machine_model *m) {
    double known = 0, computed = 0;
    for (int32_t i = 0; i < r->measured.count; i++)
        for (int64_t k = 0; k < r->measured.ranks[i].rows.count; k++) {
            const wefti_run_record_row *row = &r->measured.ranks[i].rows.items[k];
            if (row->kind != WEFTI_RUN_RECORD_KERNEL || row->product) continue;
            known += row->seconds;
            computed += row->calls * formula_of(m, row);
        }
    assert_close(computed, known, 1e-6, "kernels that memory limits");
}

static const weft_audit_line *line_of(const weft_audit *a, const char *name) {
    for (int i = 0; i < a->op_count; i++)
        if (!strcmp(a->ops[i].name, name)) return &a->ops[i];
    fail_msg("no op %s", name);
    return NULL;
}

/* Another run of the same plan on the calibrated machine is predicted to take the known times. */
static void assert_predicted(const weft_audit *first, const char *machine, const char *const *job) {
    char plan[700];
    (void)snprintf(plan, sizeof plan, "parallel.plan=%s", record_path("first", "plan.json"));
    train(machine, "second", WITH(job[0], job[1], plan));
    weft_audit *second = audited("second");
    assert_int_equal(first->op_count, second->op_count);
    for (int k = 0; k < first->op_count; k++)
        assert_close(line_of(second, first->ops[k].name)->predicted_seconds,
                     first->ops[k].measured_seconds, 1e-3, first->ops[k].name);
    assert_close(sum_of(second->transfers, second->transfer_count, false),
                 sum_of(first->transfers, first->transfer_count, true), 1e-3, "transfers");
    assert_whole(second);
    weft_audit_free(second);
    ASSERT_OK(wefti_remove_tree(in_root("second")));
}

static void a_calibrated_machine_has_the_measured_times(void **state) {
    (void)state;
    /* the ranks of the first job have programs of their own, those of the others do the same; those
     * of the last one share a processor */
    static const char *const jobs[][3] = {{"train.precision=f32", "parallel.overlap=false", NULL},
                                          {"train.precision=bf16", "parallel.mode=data", NULL},
                                          {"train.clip=0", "parallel.mode=data", NULL}};
    for (int i = 0; i < 3; i++) {
        char *text;
        wefti_machine_model *m;
        wefti_run_record r;
        train(i < 2 ? machine_file() : shared_machine_file(), "first", jobs[i]);
        set_times("first", i == 0, 0);
        weft_audit *first = audited("first");
        assert_true(first->measured_seconds == 1);
        ASSERT_OK(weft_audit_calibrate(in_root("first"), &text));
        ASSERT_OK(wefti_model_parse("calibrated", text, (int64_t)strlen(text), &m));
        ASSERT_OK(wefti_run_record_open(in_root("first"), &r));
        assert_true(assert_factors(&r, m) > 20);
        assert_scaled(&r, m);
        assert_close(m->device.step_seconds.value, first->other_seconds, 1e-6, "step_seconds");
        wefti_run_record_close(&r);
        wefti_model_destroy(m);
        assert_predicted(first, put_file("calibrated.json", text, strlen(text)), jobs[i]);
        weft_text_free(text);
        weft_audit_free(first);
        ASSERT_OK(wefti_remove_tree(in_root("first")));
    }
}

/* Ranks that share a processor wait for it, mostly while they wait for transfers. Kernels get the
 * factors of their times on the processor, and what is left of these times belongs to the
 * transfers: the same plan is predicted to take as long as it did. */
static void shared_processors_count_by_their_time(void **state) {
    (void)state;
    static const double parts[] = {0.5, 0.3, 0.02};
    for (int i = 0; i < 3; i++) {
        char *text, plan[700];
        wefti_machine_model *m;
        train(shared_machine_file(), "first", WITH("train.clip=0", "parallel.mode=data"));
        set_times("first", true, parts[i]);
        weft_audit *first = audited("first");
        ASSERT_OK(weft_audit_calibrate(in_root("first"), &text));
        ASSERT_OK(wefti_model_parse("calibrated", text, (int64_t)strlen(text), &m));
        (void)snprintf(plan, sizeof plan, "parallel.plan=%s", record_path("first", "plan.json"));
        train(put_file("calibrated.json", text, strlen(text)), "second",
              WITH("train.clip=0", "parallel.mode=data", plan));
        weft_audit *second = audited("second");
        for (int k = 0; k < first->op_count; k++)
            assert_close(line_of(second, first->ops[k].name)->predicted_seconds,
                         2 * parts[i] * first->ops[k].measured_seconds, 1e-3, first->ops[k].name);
        const double rest = m->device.step_seconds.value;
        assert_close(second->predicted_seconds - rest, first->measured_seconds - rest, 0.05,
                     "step");
        wefti_model_destroy(m);
        weft_text_free(text);
        weft_audit_free(first);
        weft_audit_free(second);
        ASSERT_OK(wefti_remove_tree(in_root("first")));
        ASSERT_OK(wefti_remove_tree(in_root("second")));
    }
}

/* Of transfers with at least so many bytes, waits are a small part: kernels overlap with them. */
static void hide_transfers(const char *dir, double least_bytes) {
    static const char transfer[] = "{\"transfer\"",
                      size[] = "\"bytes\": ", way[] = "\"under_way\": ";
    char *text, *path = record_path(dir, "measured.json");
    int64_t bytes;
    wefti_text out = {0};
    bool hidden = false;
    ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
    for (const char *at = text; *at;) {
        if (!strncmp(at, transfer, strlen(transfer))) {
            const char *own = strstr(at, size);
            hidden = strtod(own + strlen(size), NULL) >= least_bytes;
        }
        if (hidden && !strncmp(at, way, strlen(way))) {
            char *behind;
            wefti_text_add(&out, "%s%.17g", way, 100 * strtod(at + strlen(way), &behind));
            at = behind;
            continue;
        }
        wefti_text_add_bytes(&out, at++, 1);
    }
    wefti_free(text);
    text = wefti_text_take(&out);
    ASSERT_OK(wefti_file_write(path, text, strlen(text)));
    wefti_free(text);
}

/* If kernels overlap with the long transfers, the short ones have waited for other ranks: this is
 * no reason to change the rate of the links. */
static void short_transfers_do_not_change_rates(void **state) {
    (void)state;
    for (int hidden = 0; hidden < 2; hidden++) {
        char *text;
        wefti_machine_model *m;
        train(machine_file(), "first", WITH("train.precision=f32", "parallel.mode=data"));
        set_times("first", true, 0);
        if (hidden) hide_transfers("first", 1000);
        ASSERT_OK(weft_audit_calibrate(in_root("first"), &text));
        ASSERT_OK(wefti_model_parse("calibrated", text, (int64_t)strlen(text), &m));
        assert_true((m->level[0].bytes_per_second.value == 1e9) == (hidden == 1));
        assert_true(m->level[0].latency_seconds.value != 1e-6);
        wefti_model_destroy(m);
        weft_text_free(text);
        ASSERT_OK(wefti_remove_tree(in_root("first")));
    }
}

/* Gradients of several microbatches, a pipeline, one device. */
static void other_steps_are_counted(void **state) {
    (void)state;
    static const char *const more[][4] = {
        {"train.accumulate=2", NULL},
        {"parallel.pipeline.stages=2", "parallel.pipeline.microbatches=4", NULL},
        {"parallel.optimizer.level=3", NULL},
        {"parallel.devices=1", NULL}};
    for (int i = 0; i < 4; i++) {
        train(machine_file(), "run", more[i]);
        weft_audit *a = audited("run");
        for (int k = 0; k < a->op_count; k++)
            if (!(a->ops[k].predicted_seconds > 0 || a->ops[k].measured_seconds < 1e-3))
                fail_msg("job %d: %s is not predicted", i, a->ops[k].name);
        for (int k = 0; k < a->rank_count; k++)
            assert_int_equal(a->ranks[k].observed_peak_bytes, a->ranks[k].predicted_peak_bytes);
        assert_int_equal(a->rank_count, i == 3 ? 1 : 2);
        weft_audit_free(a);
        ASSERT_OK(wefti_remove_tree(in_root("run")));
    }
}

/* ---- verdicts on constructed records ---- */

enum { CLOCKS = 5 };
static const weft_train_part clocks[CLOCKS] = {WEFT_TRAIN_PART_BUILDING, WEFT_TRAIN_PART_DATA,
                                               WEFT_TRAIN_PART_STEPS, WEFT_TRAIN_PART_WAITING,
                                               WEFT_TRAIN_PART_CHECKPOINTS};

/* A rank of a record: seconds of 10 steps by part, and of a step in kernels and transfers. */
typedef struct made_rank {
    double part[CLOCKS];
    double linear_us; /* of each of 10 calls */
    double waits[3];  /* for all-reduces, for sends, and for copies from the disk */
} made_rank;

/* Judges a run of 10 steps of 100 ms. */
static weft_audit *judged(const char *job, const made_rank *ranks, int count) {
    wefti_text text = {0};
    char path[600];
    (void)snprintf(path, sizeof path, "%s/record", in_root("made"));
    ASSERT_OK(wefti_dir_make(path));
    wefti_text_add(&text,
                   "{\"version\": 1, \"steps\": 8, \"first_quartile\": 0.099, \"step_seconds\": "
                   "0.1, \"third_quartile\": 0.101, \"job\": {\"steps_made\": 10, %s}, "
                   "\"ranks\": [",
                   job);
    for (int r = 0; r < count; r++) {
        wefti_text_add(&text, "%s{\"rank\": %d, \"peak_bytes\": 1000, \"time\": {", r ? ", " : "",
                       r);
        for (int c = 0; c < CLOCKS; c++)
            wefti_text_add(&text, "%s\"%s\": %.9g", c ? ", " : "", weft_train_part_text(clocks[c]),
                           ranks[r].part[c]);
        wefti_text_add(&text,
                       "}, \"rows\": [{\"op\": \"linear\", \"arithmetic\": \"f32\", "
                       "\"product\": true, \"flops\": 1e6, \"bytes\": 1e3, \"calls\": 10, "
                       "\"seconds\": %.9g}, {\"transfer\": \"all_reduce\", \"members\": 2, "
                       "\"level\": 0, \"bytes\": 1e3, \"calls\": 1, \"seconds\": %.9g}, "
                       "{\"transfer\": \"send\", \"members\": 2, \"level\": 0, \"bytes\": 1e3, "
                       "\"calls\": 1, \"seconds\": %.9g}, {\"move\": \"fetch from disk\", "
                       "\"bytes\": 4e3, \"calls\": 2, \"seconds\": %.9g}]}",
                       10e-6 * ranks[r].linear_us, ranks[r].waits[0], ranks[r].waits[1],
                       ranks[r].waits[2]);
    }
    wefti_text_add(&text, "]}");
    char *data = wefti_text_take(&text);
    ASSERT_OK(wefti_file_write(record_path("made", "measured.json"), data, strlen(data)));
    wefti_free(data);
    weft_audit *a = audited("made");
    double sum = 0;
    for (int c = 0; c < WEFT_AUDIT_CAUSES; c++) sum += a->verdict.share[c];
    assert_close(sum, 1, 1e-9, "shares");
    assert_string_equal(a->machine, "");
    assert_true(isnan(a->error));
    ASSERT_OK(wefti_remove_tree(in_root("made")));
    return a;
}

static const weft_audit_advice *advice_on(const weft_audit *a, weft_audit_cause cause) {
    for (int i = 0; i < a->verdict.advice_count; i++)
        if (a->verdict.advice[i].cause == cause) return &a->verdict.advice[i];
    return NULL;
}

/* Parts of the clock, in its order: building, data, steps, waiting, checkpoints. */
static void verdicts_follow_from_records(void **state) {
    (void)state;
    static const char job[] = "\"batch\": 8, \"microbatches\": 2, \"stages\": 1, "
                              "\"checkpoint_every\": 5, \"precision\": \"f32\"";
    static const char pipe[] = "\"batch\": 8, \"microbatches\": 4, \"stages\": 4, "
                               "\"precision\": \"bf16\"";
    static const struct {
        const char *job;
        made_rank rank; /* both ranks are equal */
        weft_audit_cause dominant;
        const char *setting;
        double share, at_most;
    } cases[] = {{job,
                  {{0.2, 0, 0.9, 0.1, 0}, 9000, {0.01, 0}},
                  WEFT_AUDIT_COMPUTE,
                  "train.precision=bf16",
                  0.9 / 1.2,
                  0.45 / 1.2},
                 {pipe,
                  {{0, 0, 0.9, 0.1, 0}, 9000, {0.01, 0}},
                  WEFT_AUDIT_COMPUTE,
                  "parallel.devices=4",
                  0.9,
                  0.45},
                 {job,
                  {{0, 0, 0.9, 0.1, 0}, 3000, {0.01, 0}},
                  WEFT_AUDIT_OVERHEAD,
                  "train.batch=16",
                  0.6,
                  0.3},
                 {job,
                  {{0, 0, 0.3, 0.7, 0}, 3000, {0.07, 0}},
                  WEFT_AUDIT_TRANSFERS,
                  "train.batch=16 train.accumulate=4",
                  0.7,
                  0.35},
                 {pipe,
                  {{0, 0, 0.3, 0.7, 0}, 3000, {0.01, 0.06}},
                  WEFT_AUDIT_PIPELINE,
                  "parallel.pipeline.microbatches=8",
                  0.6,
                  0.6 * (1 - (3.0 / 11) / (3.0 / 7))},
                 {job,
                  {{0, 0.6, 0.3, 0.1, 0}, 3000, {0.01, 0}},
                  WEFT_AUDIT_DATA,
                  "data.path=LOCAL_COPY",
                  0.6,
                  0.6},
                 {job,
                  {{0, 0, 0.3, 0.1, 0.6}, 3000, {0.01, 0}},
                  WEFT_AUDIT_CHECKPOINTS,
                  "checkpoint.sliced=true",
                  0.6,
                  0.3},
                 {job,
                  {{0, 0, 1, 0, 0}, 3000, {0, 0, 0.05}},
                  WEFT_AUDIT_COPIES,
                  "train.batch=16 train.accumulate=4",
                  0.5,
                  0.25},
                 {job, {{0.9, 0, 0.05, 0.05, 0}, 500, {0.005, 0}}, WEFT_AUDIT_START, "", 0.9, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const made_rank ranks[2] = {cases[i].rank, cases[i].rank};
        weft_audit *a = judged(cases[i].job, ranks, 2);
        const weft_audit_verdict *v = &a->verdict;
        if (v->dominant != cases[i].dominant)
            fail_msg("case %zu: %s", i, weft_audit_cause_text(v->dominant));
        assert_close(v->share[v->dominant], cases[i].share, 1e-6, "share");
        const weft_audit_advice *advice = advice_on(a, v->dominant);
        assert_non_null(advice);
        assert_string_equal(advice->setting, cases[i].setting);
        assert_true(fabs(advice->at_most - cases[i].at_most) < 1e-6);
        assert_int_equal(v->slow_rank, -1);
        assert_null(strstr(v->text, "slowest"));
        assert_non_null(strstr(v->text, weft_audit_cause_text(v->dominant)));
        for (int k = 1; k < v->advice_count; k++)
            assert_true(v->advice[k].at_most <= v->advice[k - 1].at_most);
        weft_audit_free(a);
    }
}

/* Rank 2 takes half as long again for equal kernels, so the other three wait. */
static void a_slow_rank_is_named(void **state) {
    (void)state;
    made_rank ranks[4];
    for (int r = 0; r < 4; r++)
        ranks[r] = r == 2 ? (made_rank){{0, 0, 0.9, 0.1, 0}, 9000, {0.01, 0}}
                          : (made_rank){{0, 0, 0.6, 0.4, 0}, 6000, {0.04, 0}};
    weft_audit *a = judged("\"batch\": 8, \"microbatches\": 2, \"stages\": 1", ranks, 4);
    assert_int_equal(a->verdict.slow_rank, 2);
    assert_close(a->verdict.slowness, 1.5, 1e-6, "slowness");
    assert_close(a->verdict.slow_seconds, 0.03, 1e-6, "seconds");
    ASSERT_FACTS(a->verdict.text, "slowest|2|50 %");
    assert_null(strstr(a->verdict.text, "chance")); /* steps differ by 2 % */
    weft_audit_free(a);
    a = judged("\"batch\": 8", ranks, 1); /* alone, none is slower than others */
    assert_int_equal(a->verdict.slow_rank, -1);
    assert_null(strstr(a->verdict.text, "ank "));
    weft_audit_free(a);
}

/* A real run without a machine: a verdict, and no prediction. */
static void a_run_without_a_machine_is_judged(void **state) {
    (void)state;
    char *text;
    train(NULL, "run", NULL);
    weft_audit *a = audited("run");
    assert_string_equal(a->machine, "");
    assert_int_equal(a->rank_count, 2);
    assert_true(a->predicted_seconds == 0 && a->measured_seconds > 0);
    assert_true(a->ranks[0].predicted_kernels == 0 && a->ranks[0].measured_kernels > 0);
    assert_true(a->verdict.run_seconds > 0 && a->verdict.share[WEFT_AUDIT_COMPUTE] > 0);
    assert_true(a->verdict.share[WEFT_AUDIT_TRANSFERS] > 0);
    assert_true(a->verdict.advice_count > 0);
    weft_audit_free(a);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "this-machine", weft_audit_calibrate(in_root("run"), &text));
    ASSERT_OK(wefti_remove_tree(in_root("run")));
}

/* ---- worlds ---- */

static weft_status run_member(void *context, weft_world *world) {
    weft_train_result result;
    return weft_train_run_in(world, context, NULL, &result);
}

static void a_world_has_all_ranks(void **state) {
    (void)state;
    words w = job_with(machine_file());
    add_word(&w, "%s", dir_word("world"));
    weft_job *job = job_of(&w);
    rank_of_world ranks[2];
    run_world(2, run_member, job, 0, ranks);
    assert_all_ok(ranks, 2, "a world");
    weft_job_free(job);
    weft_audit *a = audited("world");
    assert_whole(a);
    weft_audit_free(a);
    ASSERT_OK(wefti_remove_tree(in_root("world")));
}

/* ---- bad input ---- */

static void assert_refused(const char *dir, weft_status status, const char *fact) {
    weft_audit *a;
    char *text;
    assert_int_equal(weft_audit_run(dir, &a), status);
    if (!has_facts(weft_error_message(), fact)) fail_msg("%s", weft_error_message());
    assert_int_equal(weft_audit_calibrate(dir, &text), status);
    if (!has_facts(weft_error_message(), fact)) fail_msg("%s", weft_error_message());
}

static void runs_without_a_record_are_refused(void **state) {
    (void)state;
    weft_audit *a;
    assert_int_equal(weft_audit_run(NULL, &a), WEFT_E_ARG);
    assert_int_equal(weft_audit_run("x", NULL), WEFT_E_ARG);
    assert_refused(in_root("absent"), WEFT_E_NOT_FOUND, "absent");
    assert_refused(in_root(""), WEFT_E_NOT_FOUND, "checkpoint.dir");
    train(machine_file(), "run", WITH("train.steps=2"));
    assert_refused(in_root("run"), WEFT_E_NOT_FOUND, "measured.json");
    ASSERT_OK(wefti_remove_tree(in_root("run")));
}

/* Whatever call of the disk fails: an audit that succeeds has the prediction of the run. */
static void no_audit_loses_the_prediction(void **state) {
    (void)state;
    train(machine_file(), "run", NULL);
    for (int64_t n = 0, reached = 1; reached; n++) {
        weft_audit *a;
        wefti_fault_arm(WEFTI_FAULT_IO, n, false, 0);
        const weft_status status = weft_audit_run(in_root("run"), &a);
        reached = wefti_fault_count(WEFTI_FAULT_IO) > n;
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        if (!reached) ASSERT_OK(status);
        if (status < 0) continue;
        if (!(a->predicted_seconds > 0)) fail_msg("call %lld", (long long)n);
        weft_audit_free(a);
    }
    ASSERT_OK(wefti_remove_tree(in_root("run")));
}

/* Every prefix of a file, and its bytes changed one by one, here and there. */
static void damaged_records_are_refused(void **state) {
    (void)state;
    static const char *const files[] = {"prediction.json", "measured.json", "machine.json"};
    train(machine_file(), "run", NULL);
    for (int f = 0; f < 3; f++) {
        char path[600], *text;
        int64_t bytes;
        weft_audit *a;
        (void)snprintf(path, sizeof path, "%s/record/%s", in_root("run"), files[f]);
        ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
        for (int64_t cut = 0; cut < bytes - 4; cut += 1 + bytes / 40) {
            ASSERT_OK(wefti_file_write(path, text, (size_t)cut));
            assert_true(weft_audit_run(in_root("run"), &a) < 0);
            assert_non_null(strstr(weft_error_message(), files[f]));
        }
        for (int64_t at = 0; at < bytes; at += 1 + bytes / 97) {
            const char before = text[at];
            text[at] = before == '9' ? '-' : '9';
            ASSERT_OK(wefti_file_write(path, text, (size_t)bytes));
            if (weft_audit_run(in_root("run"), &a) >= 0) weft_audit_free(a);
            text[at] = before;
        }
        ASSERT_OK(wefti_file_write(path, text, (size_t)bytes));
        wefti_free(text);
    }
    weft_audit_free(audited("run"));
    ASSERT_OK(wefti_remove_tree(in_root("run")));
}

static int setup(void **state) {
    assert_int_equal(setenv("WEFT_THIS_MACHINE", "/absent/machine.json", 1), 0);
    return data_setup(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_memory_are_right),
        cmocka_unit_test(a_calibrated_machine_has_the_measured_times),
        cmocka_unit_test(shared_processors_count_by_their_time),
        cmocka_unit_test(short_transfers_do_not_change_rates),
        cmocka_unit_test(other_steps_are_counted),
        cmocka_unit_test(verdicts_follow_from_records),
        cmocka_unit_test(a_slow_rank_is_named),
        cmocka_unit_test(a_run_without_a_machine_is_judged),
        cmocka_unit_test(a_world_has_all_ranks),
        cmocka_unit_test(runs_without_a_record_are_refused),
        cmocka_unit_test(no_audit_loses_the_prediction),
        cmocka_unit_test(damaged_records_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, data_teardown);
}
