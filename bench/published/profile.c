/* Profiles of frameworks, from profiles.json. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "published.h"

enum { PROFILE_FILE_MAX = 1 << 20, PROFILES_MAX = 64 };

typedef struct constant {
    const char *name;
    size_t offset;
    double least, most;
} constant;

static const constant constants[] = {
#define PUB_ROW(name, least, most) {#name, offsetof(pub_profile, name), least, most},
    PUB_CONSTANTS(PUB_ROW)
#undef PUB_ROW
};
enum { CONSTANTS = sizeof constants / sizeof *constants };

static double *field(pub_profile *p, int i) {
    return (double *)(void *)((char *)p + constants[i].offset);
}

static int find_constant(const char *name, size_t length) {
    for (int i = 0; i < CONSTANTS; i++)
        if (strlen(constants[i].name) == length && !strncmp(constants[i].name, name, length))
            return i;
    return -1;
}

static pub_profile *find_profile(const pub_profiles *all, const char *name, size_t length) {
    for (int i = 0; i < all->count; i++)
        if (strlen(all->profile[i].name) == length && !strncmp(all->profile[i].name, name, length))
            return &all->profile[i];
    return NULL;
}

static weft_status check_value(const char *path, int i, double value) {
    WEFT_REQUIRE(isfinite(value) && value >= constants[i].least && value <= constants[i].most,
                 WEFT_E_ARG, "%s: %s is %g; it must be from %g to %g", path, constants[i].name,
                 value, constants[i].least, constants[i].most);
    return WEFT_OK;
}

static weft_status read_constants(const char *path, const wefti_json *from, pub_profile *out,
                                  bool *given) {
    WEFTI_JSON_EACH(member, from) {
        if (!strcmp(member->key, "like")) continue;
        const int i = find_constant(member->key, strlen(member->key));
        const char *source;
        WEFT_REQUIRE(i >= 0, WEFT_E_ARG, "%s: line %d: unknown constant '%.60s'", path,
                     member->line, member->key);
        WEFT_TRY(wefti_json_text(member, "source", &source));
        const wefti_json *v = wefti_json_get(member, "value");
        WEFT_REQUIRE(v && (v->kind == WEFTI_JSON_INT || v->kind == WEFTI_JSON_REAL), WEFT_E_ARG,
                     "%s: line %d: %s needs a value, a number", path, member->line, member->key);
        const double value = v->kind == WEFTI_JSON_INT ? (double)v->as.integer : v->as.real;
        WEFT_TRY(check_value(path, i, value));
        *field(out, i) = value;
        given[i] = true;
    }
    return WEFT_OK;
}

/* The constants of the profile that it is like, then its own. */
static weft_status read_profile(const char *path, const wefti_json *all, const wefti_json *one,
                                int depth, pub_profile *out, bool *given) {
    WEFT_REQUIRE(one->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG,
                 "%s: line %d: a profile must be an object", path, one->line);
    if (wefti_json_get(one, "like")) {
        const char *like;
        WEFT_TRY(wefti_json_text(one, "like", &like));
        const wefti_json *base = wefti_json_get(all, like);
        WEFT_REQUIRE(base && depth < 8, WEFT_E_ARG,
                     "%s: line %d: '%.60s' is no profile that others can be like", path, one->line,
                     like);
        WEFT_TRY(read_profile(path, all, base, depth + 1, out, given));
    }
    return read_constants(path, one, out, given);
}

/* "machine:h100-80g.product_efficiency=0.7": for the machine's own name only. */
weft_status pub_set_figures(const char *const *set, int set_count, wefti_machine_model *machine) {
    const struct {
        const char *name;
        wefti_figure *figure;
        double least, most;
    } figures[] = {
#define PUB_FIGURE(name, least, most, needed) {#name, &machine->device.name, least, most},
        WEFTI_DEVICE_FIGURES(PUB_FIGURE)
#undef PUB_FIGURE
    };
    for (int s = 0; s < set_count; s++) {
        if (strncmp(set[s], "machine:", 8) != 0) continue;
        const char *dot = strchr(set[s], '.'), *equal = strchr(set[s], '=');
        WEFT_REQUIRE(dot && equal && dot < equal, WEFT_E_ARG,
                     "--set %s: it must be machine:NAME.FIGURE=NUMBER", set[s]);
        const size_t length = (size_t)(equal - dot - 1);
        size_t i = 0;
        while (
            i < sizeof figures / sizeof *figures &&
            (strlen(figures[i].name) != length || strncmp(figures[i].name, dot + 1, length) != 0))
            i++;
        WEFT_REQUIRE(i < sizeof figures / sizeof *figures, WEFT_E_ARG,
                     "--set %s: a device has no such figure", set[s]);
        char *end;
        const double value = strtod(equal + 1, &end);
        WEFT_REQUIRE(end > equal + 1 && !*end && value >= figures[i].least &&
                         value <= figures[i].most,
                     WEFT_E_ARG, "--set %s: it must be from %g to %g", set[s], figures[i].least,
                     figures[i].most);
        const size_t name = (size_t)(dot - set[s] - 8);
        if (strlen(machine->name) == name && !strncmp(machine->name, set[s] + 8, name))
            *figures[i].figure = (wefti_figure){value, "--set"};
    }
    return WEFT_OK;
}

/* "megatron.flash=1" */
static weft_status set_constant(const pub_profiles *all, const char *text) {
    if (!strncmp(text, "machine:", 8)) return WEFT_OK;
    const char *dot = strchr(text, '.'), *equal = strchr(text, '=');
    WEFT_REQUIRE(dot && equal && dot < equal, WEFT_E_ARG,
                 "--set %s: it must be PROFILE.CONSTANT=NUMBER", text);
    pub_profile *p = find_profile(all, text, (size_t)(dot - text));
    const int i = find_constant(dot + 1, (size_t)(equal - dot - 1));
    WEFT_REQUIRE(p && i >= 0, WEFT_E_ARG, "--set %s: there is no such profile or constant", text);
    char *end;
    const double value = strtod(equal + 1, &end);
    WEFT_REQUIRE(end > equal + 1 && !*end, WEFT_E_ARG, "--set %s: '%s' is no number", text,
                 equal + 1);
    WEFT_TRY(check_value("--set", i, value));
    *field(p, i) = value;
    return WEFT_OK;
}

weft_status pub_profiles_read(wefti_arena *arena, const char *path, const char *const *set,
                              int set_count, pub_profiles *out) {
    const wefti_json_limits limits = {.depth = 8, .members = 200, .array_items = 200};
    const wefti_json *top, *profiles;
    char *bytes;
    int64_t size;
    WEFT_TRY(wefti_file_read(path, PROFILE_FILE_MAX, &bytes, &size));
    weft_status status = wefti_json_parse(arena, bytes, size, &limits, &top);
    wefti_free(bytes);
    if (status < 0) return wefti_prefix(status, "%s", path);
    WEFT_TRY(wefti_json_array(top, "frameworks", &out->rules));
    WEFT_TRY(wefti_json_array(top, "fitted_on", &out->fitted));
    WEFT_TRY(wefti_json_object(top, "profiles", &profiles));
    WEFT_REQUIRE(profiles->count >= 1 && profiles->count <= PROFILES_MAX, WEFT_E_ARG,
                 "%s: it must have 1 to %d profiles", path, PROFILES_MAX);
    out->profile = wefti_arena_alloc(arena, (size_t)profiles->count * sizeof *out->profile);
    WEFT_REQUIRE(out->profile, WEFT_E_NOMEM, "no memory for profiles");
    out->count = 0;
    WEFTI_JSON_EACH(one, profiles) {
        bool given[CONSTANTS] = {false};
        pub_profile *p = &out->profile[out->count++];
        *p = (pub_profile){.name = one->key};
        WEFT_TRY(read_profile(path, profiles, one, 0, p, given));
        for (int i = 0; i < CONSTANTS; i++)
            WEFT_REQUIRE(given[i], WEFT_E_ARG, "%s: line %d: profile '%s' lacks %s", path,
                         one->line, one->key, constants[i].name);
    }
    WEFTI_JSON_EACH(rule, out->rules) {
        const char *match, *name;
        WEFT_TRY(wefti_json_text(rule, "match", &match));
        WEFT_TRY(wefti_json_text(rule, "profile", &name));
        WEFT_REQUIRE(wefti_glob_valid(match) && find_profile(out, name, strlen(name)), WEFT_E_ARG,
                     "%s: line %d: '%s' is no pattern, or '%s' no profile", path, rule->line, match,
                     name);
    }
    for (int i = 0; i < set_count; i++) WEFT_TRY(set_constant(out, set[i]));
    return WEFT_OK;
}

const pub_profile *pub_profile_for(const pub_profiles *all, const char *framework) {
    WEFTI_JSON_EACH(rule, all->rules) {
        const char *name = wefti_json_get(rule, "profile")->as.text;
        if (wefti_glob_match(wefti_json_get(rule, "match")->as.text, framework))
            return find_profile(all, name, strlen(name));
    }
    return NULL;
}
