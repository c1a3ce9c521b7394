/* Fills in keys that a job does not set, and checks values against each other. See job/job.h. */
#include "job/job.h"

#include <string.h>

#include "base/io.h"
#include "plan/plan.h"

/* Learning rates that go with weft_optimizer_defaults. */
static const double rates[WEFT_OPTIMIZERS] = {
    [WEFT_SGD] = 0.1,   [WEFT_MOMENTUM] = 0.1,   [WEFT_NESTEROV] = 0.1,
    [WEFT_ADAM] = 1e-3, [WEFT_ADAMW] = 1e-3,     [WEFT_LAMB] = 2e-3,
    [WEFT_LION] = 1e-4, [WEFT_ADAFACTOR] = 1e-2, [WEFT_ADAGRAD] = 1e-2,
};

const wefti_job_mark *wefti_job_mark_of(const wefti_job_draft *draft, const char *path) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    static const wefti_job_mark none;
    for (int i = 0; i < rows; i++)
        if (!strcmp(table[i].path, path)) return &draft->marks[i];
    return &none;
}
static bool given(const wefti_job_draft *draft, const char *path) {
    return wefti_job_mark_of(draft, path)->given;
}

#define FILL(path, field, value)                                                                   \
    do {                                                                                           \
        if (!given(draft, path)) (field) = (value);                                                \
    } while (0)

/* A small language model, about five million parameters, which two cores train in minutes. All else
 * that is 0 has a default in its family (weft_model_complete). */
static void fill_model(wefti_job_draft *draft) {
    weft_job_model *m = &draft->job.model;
    if (!weft_family_is_language(m->family)) return;
    FILL("model.layers", m->layers, 6);
    FILL("model.hidden", m->hidden, 256);
    FILL("model.heads", m->heads, 8);
    FILL("model.context", m->context, 256);
}

/* Fedus et al. 2021 (Switch) and transformers' Mixtral. */
static void fill_experts(wefti_job_draft *draft, bool from) {
    weft_job_model *m = &draft->job.model;
    bool gpt2 = m->family == WEFT_FAMILY_GPT2_MOE;
    bool known = !from && (gpt2 || m->family == WEFT_FAMILY_MIXTRAL);
    FILL("model.capacity_factor", m->capacity_factor, !known ? -1 : gpt2 ? 1.25 : 0);
    FILL("model.aux_loss", m->aux_loss, !known ? -1 : gpt2 ? 0.01 : 0.001);
}

static void fill_train(wefti_job_draft *draft) {
    weft_job_train *t = &draft->job.train;
    const weft_optimizer o = weft_optimizer_defaults(t->optimizer.name);
    FILL("train.optimizer.lr", t->optimizer.lr, rates[t->optimizer.name]);
    FILL("train.optimizer.betas", t->optimizer.betas[0], o.beta1);
    FILL("train.optimizer.betas", t->optimizer.betas[1], o.beta2);
    FILL("train.optimizer.eps", t->optimizer.eps, o.eps);
    FILL("train.optimizer.weight_decay", t->optimizer.weight_decay, o.weight_decay);
    FILL("train.optimizer.momentum", t->optimizer.momentum, o.momentum);
    int64_t tenth = t->steps / 10;
    FILL("train.schedule.warmup", t->schedule.warmup,
         t->schedule.name == WEFT_SCHEDULE_CONSTANT ? 0
         : tenth > 100                              ? 100
                                                    : tenth);
    FILL("train.schedule.final", t->schedule.final, 0.1);
    FILL("train.schedule.factor", t->schedule.factor, 0.1);
    FILL("train.schedule.every", t->schedule.every, t->steps >= 3 ? t->steps / 3 : 1);
    FILL("train.eval_every", t->eval_every, tenth ? tenth : 1);
}

static weft_status fill_decay(wefti_job_draft *draft) {
    weft_job_optimizer *o = &draft->job.train.optimizer;
    if (!o->decay.count) return WEFT_OK;
    weft_decay_rule *rules =
        wefti_arena_alloc(draft->arena, (size_t)o->decay.count * sizeof *rules);
    WEFT_REQUIRE(rules, WEFT_E_NOMEM, "no memory for a job");
    for (int64_t i = 0; i < o->decay.count; i++) {
        const weft_job_pair *pair = &o->decay.items[i];
        rules[i] = (weft_decay_rule){pair->key, !strcmp(pair->value, "true")};
    }
    o->decay_rules = rules;
    return WEFT_OK;
}

/* With model.from or model.config the model is described there, and only there. */
static weft_status check_files(const wefti_job_draft *draft) {
    int rows;
    const weft_job_model *m = &draft->job.model;
    const char *key = *m->from ? "model.from" : "model.config";
    const wefti_job_row *table = wefti_job_table(&rows);
    const char *path = wefti_job_model_files(m);
    char where[512];
    WEFT_REQUIRE(
        !*m->from || !*m->config, WEFT_E_ARG,
        "%smodel.config cannot be set together with model.from, which has a config.json of "
        "its own; leave one out",
        wefti_job_where(draft, wefti_job_mark_of(draft, "model.config"), where));
    for (int i = 0; i < rows; i++) {
        if (!table[i].of_model || !draft->marks[i].given) continue;
        /* a path that is wrong sets nothing: say that first */
        WEFT_REQUIRE(!wefti_is_missing(path), WEFT_E_NOT_FOUND, "%s%s: %s%s does not exist%s",
                     wefti_job_where(draft, wefti_job_mark_of(draft, key), where), key,
                     *m->from ? "directory " : "", path, wefti_hub_hint(path));
        WEFT_FAIL(WEFT_E_ARG, "%s%s cannot be set together with %s: %.200s sets it; leave it out",
                  wefti_job_where(draft, &draft->marks[i], where), table[i].path, key, path);
    }
    return WEFT_OK;
}

/* The key that sets the number of microbatches. A pipeline uses its own key, because it has
 * microbatches by default. */
static const char *microbatches_key(const wefti_job_draft *draft) {
    static const char *const keys[] = {"train.accumulate", "parallel.accumulate",
                                       "parallel.pipeline.microbatches"};
    for (int i = 0; i < 3; i++)
        if (given(draft, keys[i])) return keys[i];
    return keys[draft->plan && draft->plan->pipeline.stages > 1 ? 2 : 0];
}

/* Keys that say two things at once, or have no effect. */
static weft_status check_checkpoint(const wefti_job_draft *draft) {
    const weft_job_checkpoint *c = &draft->job.checkpoint;
    char where[512];
    WEFT_REQUIRE(c->every == 0 || c->seconds == 0, WEFT_E_ARG,
                 "%scheckpoint.seconds and checkpoint.every = %lld are two rules for one thing: "
                 "leave one out",
                 wefti_job_where(draft, wefti_job_mark_of(draft, "checkpoint.seconds"), where),
                 (long long)c->every);
    WEFT_REQUIRE(
        c->keep_minutes == 0 || c->every > 0 || c->seconds > 0, WEFT_E_ARG,
        "%scheckpoint.keep_minutes needs checkpoints during the run: set "
        "checkpoint.every or checkpoint.seconds",
        wefti_job_where(draft, wefti_job_mark_of(draft, "checkpoint.keep_minutes"), where));
    const char *rates = c->best ? "checkpoint.best" : "train.stop_after";
    WEFT_REQUIRE((!c->best && !draft->job.train.stop_after) || !given(draft, "train.eval_every") ||
                     draft->job.train.eval_every > 0,
                 WEFT_E_ARG, "%s%s needs validations during the run: set train.eval_every",
                 wefti_job_where(draft, wefti_job_mark_of(draft, rates), where), rates);
    const struct {
        const char *key;
        bool set;
    } needs_dir[] = {
        {"checkpoint.seconds", c->seconds > 0}, {"checkpoint.keep_minutes", c->keep_minutes > 0},
        {"checkpoint.best", c->best},           {"checkpoint.sliced", c->sliced},
        {"checkpoint.on_error", c->on_error},   {"checkpoint.stop_file", *c->stop_file != '\0'}};
    for (size_t i = 0; i < sizeof needs_dir / sizeof *needs_dir; i++)
        WEFT_REQUIRE(!needs_dir[i].set || *c->dir, WEFT_E_ARG,
                     "%s%s has no effect without checkpoint.dir: set it, or leave the key out",
                     wefti_job_where(draft, wefti_job_mark_of(draft, needs_dir[i].key), where),
                     needs_dir[i].key);
    return WEFT_OK;
}

/* A key that needs recovery sets it, unless the job says no. */
static weft_status turn_on_recovery(wefti_job_draft *draft, const char *key, const char *value) {
    weft_job_recovery *r = &draft->job.recovery;
    char where[512];
    WEFT_REQUIRE(r->enabled || !given(draft, "recovery.enabled"), WEFT_E_ARG,
                 "%s%s = %s needs recovery.enabled: set it to true, or leave it out",
                 wefti_job_where(draft, wefti_job_mark_of(draft, key), where), key, value);
    r->enabled = true;
    return WEFT_OK;
}

static weft_status fill_recovery(wefti_job_draft *draft) {
    const weft_job_recovery *r = &draft->job.recovery;
    if (r->buddy) WEFT_TRY(turn_on_recovery(draft, "recovery.buddy", "1"));
    if (r->elastic) WEFT_TRY(turn_on_recovery(draft, "recovery.elastic", "true"));
    return WEFT_OK;
}

/* What the device has of a master is bf16. */
static weft_status check_master(const wefti_job_draft *draft) {
    const weft_job_train *t = &draft->job.train;
    char where[512];
    WEFT_REQUIRE(t->master == WEFT_TIER_DEVICE || t->precision == WEFT_BF16, WEFT_E_ARG,
                 "%strain.master is host, which keeps bf16 parameters on the device, but "
                 "train.precision is %s: set train.precision=bf16, or let the host update f32 "
                 "parameters by parallel.place=[{match: \"*:update\", on: host}]",
                 wefti_job_where(draft, wefti_job_mark_of(draft, "train.master"), where),
                 weft_dtype_text(t->precision));
    return WEFT_OK;
}

/* Elastic jobs whose worlds could not change. */
static weft_status check_elastic(const wefti_job_draft *draft) {
    const weft_job_recovery *r = &draft->job.recovery;
    const weft_plan *plan = draft->plan;
    char where[512];
    if (!r->elastic) return WEFT_OK;
    (void)wefti_job_where(draft, wefti_job_mark_of(draft, "recovery.elastic"), where);
    WEFT_REQUIRE(!plan || plan->mode != WEFT_PARALLEL_MANUAL, WEFT_E_ARG,
                 "%srecovery.elastic is not for parallel.mode manual, in which the model itself "
                 "divides the work: leave it out",
                 where);
    WEFT_REQUIRE(!plan || draft->devices || r->min <= weft_plan_devices(plan), WEFT_E_ARG,
                 "%srecovery.min = %lld is more than the %d devices of the job: it must be at most "
                 "that number",
                 wefti_job_where(draft, wefti_job_mark_of(draft, "recovery.min"), where),
                 (long long)r->min, (int)weft_plan_devices(plan));
    WEFT_REQUIRE(r->max == 0 || r->max >= r->min, WEFT_E_ARG,
                 "%srecovery.max = %lld is less than recovery.min = %lld: it must be at least that "
                 "number, or 0",
                 wefti_job_where(draft, wefti_job_mark_of(draft, "recovery.max"), where),
                 (long long)r->max, (long long)r->min);
    return WEFT_OK;
}

/* One limit of device memory counts programs, the other does not. */
static weft_status check_limits(const wefti_job_draft *draft) {
    const wefti_job_mark *device = wefti_job_mark_of(draft, "memory.device");
    char where[512];
    WEFT_REQUIRE(!device->given || !given(draft, "device.memory"), WEFT_E_ARG,
                 "%smemory.device and device.memory are both set: set memory.device to limit what "
                 "a device's tensors take, or device.memory to count its programs too",
                 wefti_job_where(draft, device, where));
    return WEFT_OK;
}

/* Entries of the job for tier disk need a directory. Those of a plan file need one when states are
 * made, which the session tells: forward passes make none. Without memory.offload the keys of that
 * tier need an entry of a plan file. With it they may stay, so that one word switches the tier. */
static weft_status check_memory(const wefti_job_draft *draft) {
    const weft_job_memory *m = &draft->job.memory;
    const char *unused = *m->disk.path ? "memory.disk.path" : "memory.disk.size";
    bool own = false, disk = given(draft, "memory.offload");
    char where[512];
    for (int64_t i = 0; i < m->offload.count; i++)
        own |= strstr(m->offload.items[i].value, " disk") != NULL;
    for (int64_t i = 0; draft->plan && i < draft->plan->offload.count; i++)
        disk |= draft->plan->offload.rules[i].to == WEFT_TIER_DISK;
    WEFT_REQUIRE(!own || *m->disk.path, WEFT_E_ARG,
                 "%smemory.offload has an entry with to: disk, which needs memory.disk.path: set "
                 "it to a directory of a local disk",
                 wefti_job_where(draft, wefti_job_mark_of(draft, "memory.offload"), where));
    WEFT_REQUIRE(disk || (!*m->disk.path && !m->disk.size_bytes && !(m->disk.size_percent > 0)),
                 WEFT_E_ARG,
                 "%s%s has no effect without an entry of memory.offload with to: disk: add one, "
                 "or leave the key out",
                 wefti_job_where(draft, wefti_job_mark_of(draft, unused), where), unused);
    for (int64_t i = 0; i < m->offload.count; i++) {
        const char *tier = strchr(m->offload.items[i].value, ' ');
        WEFT_REQUIRE(
            draft->job.train.rows == WEFT_ROWS_AUTO || !tier || !strchr(tier + 1, ' '), WEFT_E_ARG,
            "%s: memory.offload: a cache keeps rows of tables, which need train.rows: auto",
            m->offload.items[i].where);
    }
    return WEFT_OK;
}

static weft_status check(const wefti_job_draft *draft) {
    const weft_job_train *t = &draft->job.train;
    char where[512];
    const char *parts_key = microbatches_key(draft);
    const wefti_job_mark *told = wefti_job_mark_of(draft, parts_key);
    if (!told->given) told = wefti_job_mark_of(draft, "parallel.pipeline.stages");
    WEFT_REQUIRE(t->batch % t->accumulate == 0, WEFT_E_ARG,
                 "%s%s = %lld must divide train.batch = %lld", wefti_job_where(draft, told, where),
                 parts_key, (long long)t->accumulate, (long long)t->batch);
    WEFT_REQUIRE(t->schedule.warmup <= t->steps, WEFT_E_ARG,
                 "%strain.schedule.warmup = %lld must be at most train.steps = %lld",
                 wefti_job_where(draft, wefti_job_mark_of(draft, "train.schedule.warmup"), where),
                 (long long)t->schedule.warmup, (long long)t->steps);
    WEFT_REQUIRE(!*draft->job.data.validation_labels || *draft->job.data.validation, WEFT_E_ARG,
                 "%sdata.validation_labels needs data.validation to be a path",
                 wefti_job_where(draft, wefti_job_mark_of(draft, "data.validation_labels"), where));
    WEFT_TRY(check_checkpoint(draft));
    WEFT_TRY(check_elastic(draft));
    WEFT_TRY(check_limits(draft));
    WEFT_TRY(check_master(draft));
    WEFT_TRY(check_memory(draft));
    if (!draft->plan) return WEFT_OK;
    int64_t parts = t->accumulate * draft->plan->copies;
    WEFT_REQUIRE(t->batch % parts == 0, WEFT_E_ARG,
                 "%strain.batch = %lld is cut into %lld equal parts (microbatches: %lld, copies "
                 "of each: %d); it must be a multiple of %lld",
                 wefti_job_where(draft, wefti_job_mark_of(draft, "train.batch"), where),
                 (long long)t->batch, (long long)parts, (long long)t->accumulate,
                 draft->plan->copies, (long long)parts);
    return WEFT_OK;
}

weft_status wefti_job_resolve(wefti_job_draft *draft) {
    weft_job_model *m = &draft->job.model;
    bool from = *wefti_job_model_files(m) != '\0';
    if (!given(draft, "model.family")) m->family = from ? WEFT_FAMILIES : WEFT_FAMILY_GPT2;
    if (from)
        WEFT_TRY(check_files(draft));
    else
        fill_model(draft);
    bool images = m->family != WEFT_FAMILIES && !weft_family_is_language(m->family);
    FILL("data.format", draft->job.data.format, images ? WEFT_FORMAT_IDX : WEFT_FORMAT_TEXT);
    FILL("data.tokenizer", draft->job.data.tokenizer, "");
    FILL("model.dropout", m->dropout, from ? -1 : 0);
    wefti_job_choose_mode(draft);
    WEFT_TRY(wefti_job_check_uses(draft));
    WEFT_TRY(fill_recovery(draft));
    fill_experts(draft, from);
    fill_train(draft);
    WEFT_TRY(fill_decay(draft));
    WEFT_TRY(wefti_job_plan(draft, &draft->plan));
    draft->job.plan = draft->plan;
    return check(draft);
}
