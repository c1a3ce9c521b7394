/* Walks the table of a system: from options to a job, and back. See systems.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/systems/systems.h"
#include "models/family.h"

enum { MOST_BYTES = 1 << 20 }; /* of a text of options */

const wefti_system *wefti_system_of(weft_system system) {
    return system == WEFT_SYSTEM_MEGATRON ? &wefti_megatron : &wefti_torchtitan;
}

static const wefti_job_row *row_of(const wefti_option *o) {
    int rows;
    return &wefti_job_table(&rows)[wefti_job_row_number(o->key)];
}

wefti_option_form wefti_option_form_of(const wefti_option *o) {
    if (o->form != WEFTI_OPTION_OF_KEY || !o->key) return o->form;
    return row_of(o)->kind == WEFTI_JOB_INTEGER ? WEFTI_OPTION_INTEGER : WEFTI_OPTION_REAL;
}

static double most_of(const wefti_option *o) {
    return o->form == WEFTI_OPTION_OF_KEY && o->key ? row_of(o)->max : 0x1p50;
}

const char *wefti_option_wanted(const wefti_option *o, char *out) {
    if (wefti_option_form_of(o) == WEFTI_OPTION_INTEGER)
        (void)snprintf(out, 64, "a whole number from 0 to %.16g", most_of(o));
    else
        (void)snprintf(out, 64, "a number from 0");
    return out;
}

bool wefti_option_parse(const wefti_option *o, const char *text, wefti_option_value *out) {
    char *end = NULL;
    const wefti_option_form form = wefti_option_form_of(o);
    *out = (wefti_option_value){.given = true, .text = text};
    if (form == WEFTI_OPTION_INTEGER) {
        errno = 0;
        out->integer = strtoll(text, &end, 10);
        return end != text && !*end && !errno && out->integer >= 0 &&
               (double)out->integer <= most_of(o);
    }
    if (form == WEFTI_OPTION_REAL) {
        out->real = wefti_real_read(text, &end);
        return end != text && !*end && isfinite(out->real) && out->real >= 0;
    }
    return true;
}

void wefti_option_print(const wefti_option *o, const wefti_option_value *v, int digits,
                        wefti_text *out) {
    char text[32];
    const wefti_option_form form = wefti_option_form_of(o);
    if (form == WEFTI_OPTION_INTEGER)
        wefti_text_add(out, "%lld", (long long)v->integer);
    else if (form == WEFTI_OPTION_REAL)
        wefti_text_add(out, "%s", wefti_real_text(v->real, digits, 17, text));
    else if (v->text)
        wefti_text_add(out, "%s", v->text);
}

/* The place of an option's value; an option that is no row has one that nobody reads. */
static wefti_option_value *place_of(wefti_translation *x, const char *name) {
    int i = 0;
    while (i < x->system->count && strcmp(x->system->options[i].name, name) != 0) i++;
    return &x->values[i];
}
const wefti_option_value *wefti_value_of(const wefti_translation *x, const char *name) {
    return place_of((wefti_translation *)(uintptr_t)x, name);
}
void wefti_give_whole(wefti_translation *x, const char *name, int64_t value) {
    *place_of(x, name) = (wefti_option_value){.given = true, .integer = value};
}
void wefti_give_real(wefti_translation *x, const char *name, double value) {
    *place_of(x, name) = (wefti_option_value){.given = true, .real = value};
}
void wefti_give_text(wefti_translation *x, const char *name, const char *value) {
    *place_of(x, name) = (wefti_option_value){.given = value != NULL, .text = value};
    x->failed |= !value;
}
void wefti_give_if(wefti_translation *x, const char *name, bool given) {
    place_of(x, name)->given = given;
}

int64_t wefti_whole_of(const wefti_translation *x, const char *name, int64_t standard) {
    const wefti_option_value *v = wefti_value_of(x, name);
    return v->integer > 0 ? v->integer : standard;
}

double wefti_real_of(const wefti_translation *x, const char *name, double standard) {
    const wefti_option_value *v = wefti_value_of(x, name);
    return v->given ? v->real : standard;
}

bool wefti_is_given(const wefti_translation *x, const char *name) {
    return wefti_value_of(x, name)->given;
}

bool wefti_word_is(const wefti_translation *x, const char *name, const char *word) {
    const wefti_option_value *v = wefti_value_of(x, name);
    return v->given && !strcmp(v->text, word);
}

void wefti_tell(wefti_translation *x, const char *key) {
    x->told[wefti_job_row_number(key)] = true;
}

bool wefti_is_rotary(const wefti_translation *x) {
    return wefti_family_style_of(x->job.model.family) == WEFTI_STYLE_LLAMA;
}

int64_t wefti_samples_of_part(wefti_translation *x, int64_t parts) {
    const int64_t batch = x->job.train.batch;
    if (batch % parts == 0) return batch / parts;
    wefti_text_add(x->notes, "train.batch of %lld samples in %lld uneven parts\n", (long long)batch,
                   (long long)parts);
    return 0;
}

double wefti_fraction(double part, double whole) {
    char text[32];
    for (int digits = 1; digits < 17; digits++) {
        const double near =
            wefti_real_read(wefti_real_text(part / whole, digits, digits, text), NULL);
        if (near * whole == part) return near;
    }
    return part / whole;
}

static bool is_meant(const wefti_translation *x, const wefti_option *o) {
    const weft_optimizer_kind name = x->job.train.optimizer.name;
    switch (o->jobs) {
    case WEFTI_JOBS_ROTARY:
        return wefti_is_rotary(x);
    case WEFTI_JOBS_EXPERTS:
        return x->job.model.experts > 0;
    case WEFTI_JOBS_ADAM:
        return name == WEFT_ADAMW || name == WEFT_ADAM;
    case WEFTI_JOBS_DECAY:
        return x->job.train.schedule.name != WEFT_SCHEDULE_CONSTANT;
    case WEFTI_JOBS_ALL:
        break;
    }
    return true;
}

/* ---- one to one ---- */

static void read_same(wefti_translation *x, const wefti_option *o, wefti_option_value v) {
    void *field = (char *)&x->job + row_of(o)->offset + (size_t)o->part * sizeof(double);
    const bool sized = wefti_option_form_of(o) == WEFTI_OPTION_INTEGER && row_of(o)->min > 0;
    if (sized && !v.integer) v.given = false; /* 0 means none */
    if (!v.given && (!o->standard || !wefti_option_parse(o, o->standard, &v))) return;
    if (sized && !v.integer) return;
    if (wefti_option_form_of(o) == WEFTI_OPTION_INTEGER)
        *(int64_t *)field = v.integer;
    else
        *(double *)field = v.real;
    wefti_tell(x, o->key);
}

static void write_same(wefti_translation *x, const wefti_option *o, wefti_option_value *out) {
    const void *field =
        (const char *)&x->job + row_of(o)->offset + (size_t)o->part * sizeof(double);
    wefti_option_value standard;
    out->given = true;
    if (wefti_option_form_of(o) == WEFTI_OPTION_INTEGER)
        out->integer = *(const int64_t *)field;
    else
        out->real = *(const double *)field;
    if (o->brief && wefti_option_parse(o, o->standard, &standard))
        out->given = standard.integer != out->integer || standard.real != out->real;
}

/* ---- the table ---- */

/* The parts of a model that both a job and a configuration have. */
static void copy_model(weft_job_model *m, weft_model_config *c, bool to_job) {
#define BOTH(field) (to_job ? (void)(m->field = c->field) : (void)(c->field = m->field))
    BOTH(family), BOTH(layers), BOTH(hidden), BOTH(heads), BOTH(kv_heads), BOTH(head_dim);
    BOTH(window), BOTH(ffn), BOTH(context), BOTH(vocab), BOTH(tied), BOTH(attention_bias);
    BOTH(mlp_bias), BOTH(dropout), BOTH(norm_eps), BOTH(rope_theta), BOTH(experts);
    BOTH(experts_per_token), BOTH(aux_loss), BOTH(capacity_factor);
#undef BOTH
}

static weft_status read_options(wefti_translation *x) {
    const wefti_transform *before = NULL;
    for (int i = 0; i < x->system->count; i++) {
        const wefti_option *o = &x->system->options[i];
        if (!is_meant(x, o) || o->only_write) continue;
        if (!o->by)
            read_same(x, o, x->values[i]);
        else if (o->by != before)
            WEFT_TRY(o->by->read(x));
        before = o->by;
    }
    copy_model(&x->job.model, &x->config, false);
    return WEFT_OK;
}

static void write_options(wefti_translation *x, wefti_text *out) {
    const wefti_transform *by = NULL;
    const wefti_option *before = NULL;
    for (int i = 0; i < x->system->count; i++) {
        const wefti_option *o = &x->system->options[i];
        if (!is_meant(x, o)) continue;
        if (!o->by)
            write_same(x, o, &x->values[i]);
        else if (o->by != by)
            o->by->write(x);
        by = o->by;
        if (!x->values[i].given) continue;
        x->system->add(o, before, &x->values[i], out);
        before = o;
    }
    x->system->add(NULL, before, NULL, out);
}

/* ---- stages ---- */

/* The virtual stage of a layer; -1: the plan does not say it. */
static int32_t stage_of_layer(const wefti_translation *x, const weft_plan *plan, int64_t layer) {
    char cell[40];
    (void)snprintf(cell, sizeof cell, "%s.%lld", wefti_is_rotary(x) ? "layers" : "h",
                   (long long)layer);
    for (int64_t i = 0; i < plan->pipeline.rule_count; i++)
        if (!strcmp(plan->pipeline.rules[i].match, cell)) return plan->pipeline.rules[i].stage;
    return -1;
}

/* Stages that run in the order of the layers. */
static weft_status read_stages(wefti_translation *x, const weft_plan *plan) {
    const wefti_degrees *d = &x->degrees;
    const int64_t layers = x->job.model.layers;
    int32_t before = 0;
    if ((d->schedule != WEFT_PIPELINE_1F1B && d->schedule != WEFT_PIPELINE_INTERLEAVED) ||
        d->stages == 1)
        return WEFT_OK;
    WEFT_NEW_ARRAY(x->stage_of, int32_t, layers);
    for (int64_t l = 0; l < layers; l++) {
        const int32_t stage = x->stage_of[l] = stage_of_layer(x, plan, l);
        if (stage >= before && stage < d->stages * d->chunks) {
            before = stage;
            continue;
        }
        wefti_free(x->stage_of);
        x->stage_of = NULL;
        return WEFT_OK;
    }
    return WEFT_OK;
}

weft_status wefti_translation_export(wefti_translation *x, const weft_plan *plan, wefti_text *out) {
    copy_model(&x->job.model, &x->config, true);
    WEFT_TRY(x->system->check(x->config.family));
    WEFT_TRY(read_stages(x, plan));
    write_options(x, out);
    WEFT_REQUIRE(!x->failed, WEFT_E_NOMEM, "no memory for options");
    return WEFT_OK;
}

/* ---- a job file ---- */

/* Room for the pairs of a key; the entries are filled in by the caller. */
static weft_job_pair *new_pairs(wefti_translation *x, const char *key, weft_job_pairs *list,
                                int64_t count) {
    weft_job_pair *items = wefti_arena_alloc(x->arena, (size_t)count * sizeof *items);
    *list = (weft_job_pairs){items, items ? count : 0};
    if (count) wefti_tell(x, key);
    return items;
}

static const char *split_text(wefti_translation *x, const weft_plan *plan,
                              const wefti_strategy *s) {
    wefti_text split = {0};
    wefti_split_print(plan, s, &split);
    const char *text = split.failed ? NULL : wefti_arena_strdup(x->arena, split.data);
    wefti_text_free(&split);
    return text;
}

static weft_status tell_lists(wefti_translation *x, const weft_plan *plan) {
    weft_job_parallel *p = &x->job.parallel;
    const int64_t layers = x->stage_of ? x->job.model.layers : 0;
    const int32_t last = x->degrees.stages * x->degrees.chunks - 1;
    weft_job_pair *mesh = new_pairs(x, "parallel.mesh", &p->mesh, plan->mesh.axes);
    weft_job_pair *rules =
        new_pairs(x, "parallel.strategies", &p->strategies, plan->strategy_count);
    weft_job_pair *tensors = new_pairs(x, "parallel.tensors", &p->tensors, plan->tensor_count);
    weft_job_pair *stages =
        new_pairs(x, "parallel.pipeline.stage_of", &p->pipeline.stage_of, layers ? layers + 2 : 0);
    bool whole = mesh && rules && tensors && stages;
    for (int a = 0; whole && a < plan->mesh.axes; a++) {
        const wefti_axis *axis = &plan->mesh.axis[a];
        mesh[a] = (weft_job_pair){axis->name, wefti_arena_format(x->arena, "%d", axis->size), NULL};
        whole = mesh[a].value != NULL;
    }
    for (int64_t k = 0; whole && k < plan->strategy_count; k++) {
        const wefti_strategy *s = &plan->strategies[k];
        rules[k] = (weft_job_pair){s->match, split_text(x, plan, s), NULL};
        whole = rules[k].value != NULL;
    }
    for (int64_t k = 0; whole && k < plan->tensor_count; k++)
        tensors[k] = (weft_job_pair){plan->tensors[k].match, plan->tensors[k].layout, NULL};
    for (int64_t l = -1; whole && layers && l <= layers; l++) {
        const int32_t stage = l < 0 ? 0 : l == layers ? last : x->stage_of[l];
        const char *name = wefti_is_rotary(x) ? "layers" : "h";
        const char *cell = l < 0 ? "embed"
                           : l < layers
                               ? wefti_arena_format(x->arena, "%s.%lld", name, (long long)l)
                               : "head";
        stages[l + 1] = (weft_job_pair){cell, wefti_arena_format(x->arena, "%d", stage), NULL};
        whole = cell && stages[l + 1].value;
    }
    WEFT_REQUIRE(whole, WEFT_E_NOMEM, "no memory for a job");
    return WEFT_OK;
}

static weft_status tell_parallel(wefti_translation *x, const weft_plan *plan) {
    const wefti_degrees *d = &x->degrees;
    weft_job_parallel *p = &x->job.parallel;
    const bool pipeline = d->stages > 1;
    WEFT_TRY(tell_lists(x, plan));
    p->devices = weft_plan_devices(plan);
    p->pipeline.stages = d->stages, p->pipeline.microbatches = p->accumulate = d->microbatches;
    p->pipeline.schedule = d->schedule, p->pipeline.virtual_stages = d->chunks;
    p->optimizer.level = d->level, p->optimizer.shard_size = d->shard;
    p->recompute.mode = d->recompute;
    const struct {
        const char *key;
        bool told;
    } keys[] = {{"parallel.devices", true},
                {"parallel.accumulate", !pipeline},
                {"parallel.pipeline.stages", pipeline},
                {"parallel.pipeline.microbatches", pipeline},
                {"parallel.pipeline.schedule", pipeline},
                {"parallel.pipeline.virtual_stages", pipeline},
                {"parallel.optimizer.level", d->level > 0},
                {"parallel.optimizer.shard_size", d->shard > 0},
                {"parallel.recompute.mode", d->recompute != WEFT_RECOMPUTE_NONE}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].told) wefti_tell(x, keys[i].key);
    return WEFT_OK;
}

static weft_status import(wefti_translation *x, wefti_text *out) {
    weft_plan *plan;
    WEFT_TRY(read_options(x));
    WEFT_TRY(wefti_degrees_plan(&x->config, &x->degrees, &plan));
    wefti_text_add(out, "# From options of %s. data.path is missing: the files to train on.\n",
                   x->system->name);
    const weft_status status = tell_parallel(x, plan);
    if (status >= 0) wefti_job_write(&x->job, x->told, out);
    weft_plan_destroy(plan);
    return status;
}

weft_status weft_job_import(const char *name, const char *text, int64_t bytes,
                            const char *const *variables, int devices, char **out_job,
                            char **out_notes) {
    WEFT_REQUIRE(name && text && bytes >= 0 && devices >= 0 && out_job && out_notes, WEFT_E_ARG,
                 "weft_job_import needs a name, a text and places for the job and the notes");
    WEFT_REQUIRE(bytes <= MOST_BYTES, WEFT_E_ARG,
                 "%s is too long for a list of options: %lld bytes", name, (long long)bytes);
    WEFT_REQUIRE(!memchr(text, '\0', (size_t)bytes), WEFT_E_ARG, "%s holds a NUL byte", name);
    wefti_arena *arena;
    wefti_text job = {0}, notes = {0};
    WEFT_TRY(wefti_arena_create(&arena));
    static const char python[] = "from torchtitan.";
    const bool is_python = memmem(text, (size_t)bytes, python, sizeof python - 1) != NULL;
    wefti_translation x = {.system = is_python ? &wefti_torchtitan : &wefti_megatron,
                           .arena = arena,
                           .devices = devices,
                           .degrees = wefti_degrees_none(),
                           .notes = &notes};
    weft_status status = x.system->read(name, text, bytes, variables, &x);
    if (x.left.used)
        wefti_text_add(&notes, "not taken over:%.*s\n", (int)x.left.used - 1, x.left.data);
    wefti_text_free(&x.left);
    if (status >= 0) {
        status = import(&x, &job);
        if (status < 0) (void)wefti_prefix(status, "%s", name);
    }
    wefti_free(x.stage_of);
    wefti_arena_destroy(arena);
    wefti_text_add(&notes, "%s", "");
    char *texts[2] = {wefti_text_take(&job), wefti_text_take(&notes)};
    if (status >= 0 && (!texts[0] || !texts[1]))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a job");
    if (status < 0) {
        wefti_free(texts[0]);
        wefti_free(texts[1]);
        return status;
    }
    *out_job = texts[0];
    *out_notes = texts[1];
    return WEFT_OK;
}
