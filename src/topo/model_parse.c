/* Reading machine files: see model.h and docs/reference/format-machine.md. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "topo/model.h"

enum { MODEL_VERSION = 1, MODEL_NAME_MAX = 64, MODEL_TEXT_MAX = 400 };

typedef struct model_reading {
    wefti_arena *arena;
    const char *name; /* of the file */
} model_reading;

/* An object with its path, "levels[1]". */
typedef struct spot {
    const wefti_json *value;
    char path[96];
} spot;

#define REFUSE(r, value, ...) return refuse((r), (value), WEFT_RAISE(WEFT_E_ARG, __VA_ARGS__))
static weft_status refuse(const model_reading *r, const wefti_json *value, weft_status status) {
    return wefti_prefix(status, "%s: line %d", r->name, value ? value->line : 1);
}

static spot member_of(const spot *at, const char *key) {
    spot inner = {.value = wefti_json_get(at->value, key)};
    snprintf(inner.path, sizeof inner.path, "%.40s%s%.40s", at->path, *at->path ? "." : "", key);
    return inner;
}

static weft_status check_keys(const model_reading *r, const spot *at, const char *const *known) {
    const char *what = *at->path ? at->path : "a machine";
    if (at->value->kind != WEFTI_JSON_OBJECT) REFUSE(r, at->value, "%s must be an object", what);
    WEFTI_JSON_EACH(member, at->value) {
        const char *const *key = known;
        while (*key && strcmp(*key, member->key) != 0) key++;
        if (*key) continue;
        const char *near = weft_nearest(member->key, known);
        if (near)
            REFUSE(r, member, "%s: unknown key '%.60s'; did you mean '%s'?", what, member->key,
                   near);
        char list[500] = "";
        int used = 0;
        for (key = known; *key && used < 440; key++)
            used += snprintf(list + used, sizeof list - (size_t)used, "%s%s",
                             key == known ? "" : ", ", *key);
        REFUSE(r, member, "%s: unknown key '%.60s'; known are: %s", what, member->key, list);
    }
    return WEFT_OK;
}

static weft_status read_number(const model_reading *r, const spot *at, double least, double most,
                               double *out) {
    const wefti_json *v = at->value;
    if (v->kind != WEFTI_JSON_INT && v->kind != WEFTI_JSON_REAL)
        REFUSE(r, v, "%s must be a number", at->path);
    *out = v->kind == WEFTI_JSON_INT ? (double)v->as.integer : v->as.real;
    if (!isfinite(*out) || *out < least || *out > most)
        REFUSE(r, v, "%s is %g; it must be from %g to %g", at->path, *out, least, most);
    if (*out == 0) *out = 0; /* no negative zero, which reads back as another text */
    return WEFT_OK;
}

static weft_status read_text(const model_reading *r, const spot *outer, const char *key,
                             size_t most, const char **out) {
    spot at = member_of(outer, key);
    if (!at.value) REFUSE(r, outer->value, "%s is missing", at.path);
    if (at.value->kind != WEFTI_JSON_TEXT || !*at.value->as.text)
        REFUSE(r, at.value, "%s must be a text", at.path);
    if (strlen(at.value->as.text) > most)
        REFUSE(r, at.value, "%s is longer than %zu bytes", at.path, most);
    *out = at.value->as.text;
    return WEFT_OK;
}

/* {"value": 8e10, "source": "..."} */
static weft_status read_figure(const model_reading *r, const spot *outer, const char *key,
                               double least, double most, bool needed, wefti_figure *out) {
    static const char *const known[] = {"value", "source", NULL};
    spot at = member_of(outer, key), value;
    if (!at.value && !needed) return WEFT_OK;
    if (!at.value) REFUSE(r, outer->value, "%s is missing", at.path);
    if (at.value->kind != WEFTI_JSON_OBJECT)
        REFUSE(r, at.value, "%s must be an object with value and source", at.path);
    WEFT_TRY(check_keys(r, &at, known));
    value = member_of(&at, "value");
    if (!value.value) REFUSE(r, at.value, "%s is missing", value.path);
    WEFT_TRY(read_number(r, &value, least, most, &out->value));
    return read_text(r, &at, "source", MODEL_TEXT_MAX, &out->source);
}

/* `least`: of the rate. */
static weft_status read_point(const model_reading *r, const spot *at, double least, double *work,
                              double *rate) {
    const wefti_json *pair = at->value;
    if (pair->kind != WEFTI_JSON_ARRAY || pair->count != 2)
        REFUSE(r, pair, "%s must be a pair of numbers: size and rate", at->path);
    spot x = {.value = pair->as.child}, y = {.value = pair->as.child->next};
    snprintf(x.path, sizeof x.path, "%.80s[0]", at->path);
    snprintf(y.path, sizeof y.path, "%.80s[1]", at->path);
    WEFT_TRY(read_number(r, &x, 1, 1e24, work));
    return read_number(r, &y, least, 1e21, rate);
}

/* [[size, rate], ...] */
static weft_status read_points(const model_reading *r, const spot *outer, const char *key,
                               double least, wefti_curve *out) {
    spot at = *outer, points = member_of(outer, key);
    if (!points.value || points.value->kind != WEFTI_JSON_ARRAY || !points.value->count)
        REFUSE(r, at.value, "%s must be a list of pairs, size and rate", points.path);
    const int32_t count = points.value->count;
    double *work = wefti_arena_alloc(r->arena, (size_t)count * sizeof *work);
    double *rate = wefti_arena_alloc(r->arena, (size_t)count * sizeof *rate);
    WEFT_REQUIRE(work && rate, WEFT_E_NOMEM, "no memory for %d points", count);
    int32_t i = 0;
    WEFTI_JSON_EACH(pair, points.value) {
        spot point = {.value = pair};
        snprintf(point.path, sizeof point.path, "%.70s[%d]", points.path, i);
        WEFT_TRY(read_point(r, &point, least, &work[i], &rate[i]));
        if (i && work[i] <= work[i - 1])
            REFUSE(r, pair, "%s: sizes must ascend, but %g follows %g", point.path, work[i],
                   work[i - 1]);
        i++;
    }
    out->work = work;
    out->rate = rate;
    out->count = count;
    return WEFT_OK;
}

/* {"source": "...", "points": [[size, rate], ...]} */
static weft_status read_curve(const model_reading *r, const spot *outer, const char *key,
                              double least, wefti_curve *out) {
    static const char *const known[] = {"source", "points", NULL};
    spot at = member_of(outer, key);
    if (!at.value) return WEFT_OK;
    WEFT_TRY(check_keys(r, &at, known));
    WEFT_TRY(read_text(r, &at, "source", MODEL_TEXT_MAX, &out->source));
    return read_points(r, &at, "points", least, out);
}

static weft_status read_count(const model_reading *r, const spot *outer, const char *key,
                              int32_t *out) {
    spot at = member_of(outer, key);
    if (!at.value) return WEFT_OK;
    if (at.value->kind != WEFTI_JSON_INT || at.value->as.integer < 1 ||
        at.value->as.integer > WEFTI_MODEL_DEVICES_MAX)
        REFUSE(r, at.value, "%s must be a whole number from 1 to %d", at.path,
               WEFTI_MODEL_DEVICES_MAX);
    *out = (int32_t)at.value->as.integer;
    return WEFT_OK;
}

static weft_status read_flag(const model_reading *r, const spot *level, const char *key,
                             bool *out) {
    spot at = member_of(level, key);
    if (at.value && at.value->kind != WEFTI_JSON_BOOL)
        REFUSE(r, at.value, "%s must be true or false", at.path);
    *out = at.value && at.value->as.boolean;
    return WEFT_OK;
}

/* ---- devices ---- */

/* Refuses a tier that has both a value and keys of curves. */
static weft_status check_one_form(const model_reading *r, const spot *at,
                                  const char *const *of_curves) {
    if (at->value->kind != WEFTI_JSON_OBJECT) return WEFT_OK;
    for (; *of_curves; of_curves++) {
        const wefti_json *other = wefti_json_get(at->value, *of_curves);
        if (other && strcmp(*of_curves, "source") != 0)
            REFUSE(r, other,
                   "%s has both 'value' and '%s': remove 'value' to keep curves, or '%s' to keep "
                   "one rate for all sizes",
                   at->path, *of_curves, *of_curves);
    }
    return WEFT_OK;
}

/* {"value": 8e9, "source": "..."}, or curves:
 * {"source": "...", "read": [[size, rate], ...], "write": ..., "both": ...} */
static weft_status read_tier(const model_reading *r, const spot *device, const char *key,
                             wefti_tier_rates *out) {
    static const char *const known[] = {
#define KNOWN_WAY(name, text) text,
        WEFTI_TIER_WAY_LIST(KNOWN_WAY)
#undef KNOWN_WAY
            "source",
        "depth", "spends_cores", NULL};
    spot at = member_of(device, key);
    if (!at.value) return WEFT_OK;
    if (at.value->kind != WEFTI_JSON_OBJECT || wefti_json_get(at.value, "value")) {
        wefti_figure plain;
        WEFT_TRY(check_one_form(r, &at, known));
        WEFT_TRY(read_figure(r, device, key, 1, 1e18, true, &plain));
        *out = (wefti_tier_rates){.source = plain.source, .value = plain.value};
        return WEFT_OK;
    }
    WEFT_TRY(check_keys(r, &at, known));
    WEFT_TRY(read_text(r, &at, "source", MODEL_TEXT_MAX, &out->source));
    WEFT_TRY(read_count(r, &at, "depth", &out->depth));
    WEFT_TRY(read_flag(r, &at, "spends_cores", &out->spends_cores));
    for (int w = 0; w < WEFTI_TIER_WAYS; w++)
        WEFT_TRY(read_points(r, &at, known[w], 1, &out->way[w]));
    return WEFT_OK;
}

static weft_status read_op_factors(const model_reading *r, const spot *device,
                                   wefti_device_model *out) {
    static const double least = 1e-6;
    spot at = member_of(device, "op_factors");
    if (!at.value) return WEFT_OK;
    if (at.value->kind != WEFTI_JSON_OBJECT)
        REFUSE(r, at.value, "%s must be an object with a curve for each op", at.path);
    out->op_factors =
        wefti_arena_alloc(r->arena, ((size_t)at.value->count + 1) * sizeof *out->op_factors);
    WEFT_REQUIRE(out->op_factors, WEFT_E_NOMEM, "no memory for a machine");
    WEFTI_JSON_EACH(curve, at.value) {
        wefti_op_curve *factor = &out->op_factors[out->op_factor_count++];
        factor->op = curve->key;
        WEFT_TRY(read_curve(r, &at, curve->key, least, &factor->curve));
    }
    return WEFT_OK;
}

static weft_status read_device(const model_reading *r, const spot *top, wefti_device_model *out) {
    static const char *const known[] = {
#define KNOWN_KEY(name, least, most, needed) #name,
        WEFTI_DEVICE_FIGURES(KNOWN_KEY)
#undef KNOWN_KEY
#define KNOWN_TIER(name) #name,
            WEFTI_DEVICE_TIERS(KNOWN_TIER)
#undef KNOWN_TIER
                "peak_flops",
        "product_curves", "memory_curve", "op_factors", NULL};
    static const char *const arithmetics[] = {
#define KNOWN_TEXT(name, text) text,
        WEFTI_ARITHMETIC_LIST(KNOWN_TEXT)
#undef KNOWN_TEXT
            NULL};
    spot at = member_of(top, "device"), peaks, curves;
    if (!at.value) REFUSE(r, top->value, "device is missing");
    WEFT_TRY(check_keys(r, &at, known));
#define READ_FIGURE(name, least, most, needed)                                                     \
    WEFT_TRY(read_figure(r, &at, #name, least, most, needed, &out->name));
    WEFTI_DEVICE_FIGURES(READ_FIGURE)
#undef READ_FIGURE
#define READ_TIER(name) WEFT_TRY(read_tier(r, &at, #name, &out->name));
    WEFTI_DEVICE_TIERS(READ_TIER)
#undef READ_TIER
    peaks = member_of(&at, "peak_flops");
    if (peaks.value) WEFT_TRY(check_keys(r, &peaks, arithmetics));
    curves = member_of(&at, "product_curves");
    if (curves.value) WEFT_TRY(check_keys(r, &curves, arithmetics));
    for (int a = 0; a < WEFTI_ARITHMETICS; a++) {
        if (peaks.value)
            WEFT_TRY(read_figure(r, &peaks, arithmetics[a], 1, 1e21, false, &out->peak_flops[a]));
        if (curves.value) WEFT_TRY(read_curve(r, &curves, arithmetics[a], 1, &out->product[a]));
    }
    WEFT_TRY(read_op_factors(r, &at, out));
    return read_curve(r, &at, "memory_curve", 1, &out->memory);
}

/* ---- levels ---- */

static weft_status read_level(const model_reading *r, const spot *at, wefti_level *out) {
    static const char *const known[] = {"name",
                                        "devices",
                                        "hosts",
                                        "latency_seconds",
                                        "bytes_per_second",
                                        "uplink_bytes_per_second",
                                        "reduces",
                                        "moved_in_waits",
                                        "all_reduce_curve",
                                        NULL};
    WEFT_TRY(check_keys(r, at, known));
    WEFT_TRY(read_text(r, at, "name", MODEL_NAME_MAX, &out->name));
    WEFT_TRY(read_count(r, at, "devices", &out->devices));
    WEFT_TRY(read_count(r, at, "hosts", &out->hosts));
    WEFT_TRY(read_figure(r, at, "latency_seconds", 0, 100, true, &out->latency_seconds));
    WEFT_TRY(read_figure(r, at, "bytes_per_second", 1, 1e18, true, &out->bytes_per_second));
    WEFT_TRY(read_figure(r, at, "uplink_bytes_per_second", 1, 1e18, false,
                         &out->uplink_bytes_per_second));
    WEFT_TRY(read_flag(r, at, "reduces", &out->reduces));
    WEFT_TRY(read_flag(r, at, "moved_in_waits", &out->moved_in_waits));
    return read_curve(r, at, "all_reduce_curve", 1, &out->all_reduce);
}

static weft_status read_levels(const model_reading *r, const spot *top, wefti_machine_model *out) {
    spot at = member_of(top, "levels");
    if (!at.value || at.value->kind != WEFTI_JSON_ARRAY)
        REFUSE(r, at.value ? at.value : top->value, "levels must be a list of objects");
    if (at.value->count > WEFTI_LEVELS_MAX)
        REFUSE(r, at.value, "levels has %d entries; %d are possible", at.value->count,
               WEFTI_LEVELS_MAX);
    WEFTI_JSON_EACH(value, at.value) {
        spot level = {.value = value};
        snprintf(level.path, sizeof level.path, "levels[%d]", out->level_count);
        wefti_level *l = &out->level[out->level_count];
        WEFT_TRY(read_level(r, &level, l));
        if (l->devices) out->host_level = out->level_count;
        out->level_count++;
    }
    return WEFT_OK;
}

/* ---- the file ---- */

static weft_status read_model(const model_reading *r, const wefti_json *json,
                              wefti_machine_model *out) {
    static const char *const known[] = {"version", "name",   "description", "hosts",
                                        "device",  "levels", NULL};
    spot top = {.value = json}, version;
    if (json->kind != WEFTI_JSON_OBJECT) REFUSE(r, json, "a machine must be an object");
    version = member_of(&top, "version");
    if (!version.value || version.value->kind != WEFTI_JSON_INT)
        REFUSE(r, json, "version is missing; a machine file has \"version\": %d", MODEL_VERSION);
    if (version.value->as.integer != MODEL_VERSION)
        REFUSE(r, version.value, "version is %lld; this weft reads version %d",
               (long long)version.value->as.integer, MODEL_VERSION);
    WEFT_TRY(check_keys(r, &top, known));
    WEFT_TRY(read_text(r, &top, "name", MODEL_NAME_MAX, &out->name));
    if (wefti_json_get(json, "description"))
        WEFT_TRY(read_text(r, &top, "description", MODEL_TEXT_MAX, &out->description));
    WEFT_TRY(read_count(r, &top, "hosts", &out->hosts));
    WEFT_TRY(read_device(r, &top, &out->device));
    WEFT_TRY(read_levels(r, &top, out));
    weft_status status = wefti_model_check(out);
    return status < 0 ? wefti_prefix(status, "%s", r->name) : WEFT_OK;
}

weft_status wefti_model_parse(const char *name, const char *text, int64_t bytes,
                              wefti_machine_model **out) {
    static const wefti_json_limits limits = {
        .depth = 8, .members = WEFTI_OP_FACTORS_MAX, .array_items = WEFTI_CURVE_POINTS};
    model_reading r = {.name = name};
    const wefti_json *json;
    WEFT_TRY(wefti_arena_create(&r.arena));
    wefti_machine_model *model = wefti_arena_alloc(r.arena, sizeof *model);
    weft_status status = WEFT_OK;
    if (!model) {
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a machine");
    } else if ((status = wefti_json_parse(r.arena, text, bytes, &limits, &json)) < 0) {
        status = wefti_prefix(status, "%s", name);
    } else {
        status = read_model(&r, json, model);
    }
    if (status < 0) {
        wefti_arena_destroy(r.arena);
        return status;
    }
    model->arena = r.arena;
    *out = model;
    return WEFT_OK;
}

weft_status wefti_model_load(const char *path, wefti_machine_model **out) {
    char *text;
    int64_t bytes;
    WEFT_TRY(wefti_file_read(path, WEFTI_MODEL_FILE_MAX, &text, &bytes));
    weft_status status = wefti_model_parse(path, text, bytes, out);
    wefti_free(text);
    return status;
}
