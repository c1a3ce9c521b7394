/* Predicts published training runs of other systems: seconds of a step and bytes of a device.
 *
 * Usage: published FILE.json [--score] [--detail] [--profiles FILE] [--set PROFILE.CONSTANT=NUMBER]
 *
 * FILE is an array of rows, one object for each run: its model, machine, framework and degrees. The
 * fields are those of docs/reference/format-published.md. Only inputs are read; --score alone looks
 * at what was measured. Prints one JSON object a row: id, seconds, memory_bytes, fits, and `error`
 * if there is no prediction. Exit code 1: the file or a row is damaged; 2: the command line is.
 *
 * A row is modelled from its layer: products, attention and chains of a microbatch on one device
 * take what cost/cost.h says on the machine file, as in the simulator. Transfers likewise. Layers
 * add up to stages, stages to a step (published/step.c). Programs are not built, since thousands of
 * rows with thousands of devices each would take hours. tests/bench compares with the simulator.
 *
 * Frameworks differ in a few constants (published/profiles.json): what they fuse, keep and overlap.
 * bench/results/plans.md says what these were fitted on, and how well they predict the rest.
 */
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "published/published.h"
#include "weft/status.h"

enum { ROWS_MAX = 1 << 20, FILE_MAX_BYTES = 1 << 29, SETS_MAX = 256 };

typedef struct options {
    const char *file, *profiles;
    const char *set[SETS_MAX];
    int sets;
    bool score, detail;
} options;

static int usage(void) {
    fprintf(stderr, "usage: published FILE.json [--score] [--detail] [--profiles FILE] "
                    "[--set PROFILE.CONSTANT=NUMBER]...\n");
    return 2;
}

static bool read_options(int argc, char **argv, options *o) {
    *o = (options){.profiles = PUBLISHED_PROFILES};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--score"))
            o->score = true;
        else if (!strcmp(a, "--detail"))
            o->detail = true;
        else if (!strcmp(a, "--profiles") && i + 1 < argc)
            o->profiles = argv[++i];
        else if (!strcmp(a, "--set") && i + 1 < argc && o->sets < SETS_MAX)
            o->set[o->sets++] = argv[++i];
        else if (*a == '-' || o->file)
            return false;
        else
            o->file = a;
    }
    return o->file != NULL;
}

static weft_status predict(const options *o, const wefti_json *row, const pub_profiles *profiles,
                           pub_run *run, pub_prediction *out) {
    wefti_machine_model *machine;
    WEFT_TRY(pub_run_read(row, run));
    const pub_profile *profile = pub_profile_for(profiles, run->framework);
    WEFT_REQUIRE(profile, WEFT_E_NO_IMPL, "no profile is known for framework '%.60s'",
                 run->framework);
    WEFT_TRY(wefti_model_find(run->machine, &machine));
    weft_status status = pub_set_figures(o->set, o->sets, machine);
    if (status >= 0) status = pub_run_finish(run, profile, machine);
    if (status >= 0) status = pub_predict(run, profile, machine, out);
    wefti_model_destroy(machine);
    return status;
}

static void print_parts(const pub_times *t, wefti_text *out) {
    const struct {
        const char *name;
        double value;
    } parts[] = {{"forward", t->forward}, {"backward", t->backward}, {"again", t->again},
                 {"tensor", t->tensor},   {"context", t->context},   {"expert", t->expert},
                 {"stage", t->stage},     {"bubble", t->bubble},     {"data", t->data},
                 {"update", t->update},   {"fixed", t->fixed}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        wefti_text_add(out, "%s\"%s\": ", i ? ", " : ", \"causes\": {", parts[i].name);
        wefti_json_real(out, parts[i].value);
    }
    wefti_text_add(out, "}");
}

static weft_status print_row(const options *o, const pub_run *run, const pub_prediction *p,
                             weft_status status) {
    wefti_text line = {0};
    wefti_text_add(&line, "{\"id\": ");
    if (run->id)
        wefti_json_quote(&line, run->id);
    else
        wefti_text_add(&line, "null");
    if (status < 0) {
        wefti_text_add(&line, ", \"seconds\": null, \"memory_bytes\": null, \"fits\": null, "
                              "\"error\": ");
        wefti_json_quote(&line, weft_error_message());
    } else {
        wefti_text_add(&line, ", \"seconds\": ");
        wefti_json_real(&line, p->seconds);
        wefti_text_add(&line, ", \"memory_bytes\": %.0f, \"fits\": %s", p->memory_bytes,
                       p->fits ? "true" : "false");
        if (o->detail) {
            wefti_text_add(&line, ", \"machine\": \"%s\", \"largest_bytes\": %.0f", run->machine,
                           p->largest_bytes);
            print_parts(&p->part, &line);
        }
    }
    wefti_text_add(&line, "}\n");
    char *text = wefti_text_take(&line);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for a line");
    fputs(text, stdout);
    wefti_free(text);
    return WEFT_OK;
}

static weft_status all_rows(const options *o, const wefti_json *rows, const pub_profiles *profiles,
                            pub_prediction *predictions, bool *damaged) {
    int i = 0;
    WEFTI_JSON_EACH(row, rows) {
        pub_run run = {0};
        pub_prediction *p = &predictions[i++];
        const weft_status status = predict(o, row, profiles, &run, p);
        if (status < 0) *p = (pub_prediction){0};
        if (status == WEFT_E_NOMEM) return status;
        if (status < 0 && status != WEFT_E_NO_IMPL) {
            fprintf(stderr, "%s: %s%s%s\n", o->file, run.id && *run.id ? run.id : "",
                    run.id && *run.id ? ": " : "", weft_error_message());
            *damaged = true;
        }
        if (!o->score) WEFT_TRY(print_row(o, &run, p, status));
    }
    return WEFT_OK;
}

static weft_status run_all(const options *o, wefti_arena *arena, bool *damaged) {
    const wefti_json_limits limits = {.depth = 8, .members = 1000, .array_items = ROWS_MAX};
    const wefti_json *rows;
    pub_profiles profiles;
    char *bytes;
    int64_t size;
    WEFT_TRY(pub_profiles_read(arena, o->profiles, o->set, o->sets, &profiles));
    WEFT_TRY(wefti_file_read(o->file, FILE_MAX_BYTES, &bytes, &size));
    weft_status status = wefti_json_parse(arena, bytes, size, &limits, &rows);
    wefti_free(bytes);
    if (status < 0) return wefti_prefix(status, "%s", o->file);
    WEFT_REQUIRE(rows->kind == WEFTI_JSON_ARRAY, WEFT_E_ARG, "%s: it must be an array of rows",
                 o->file);
    pub_prediction *predictions = wefti_calloc((size_t)rows->count + 1, sizeof *predictions);
    WEFT_REQUIRE(predictions, WEFT_E_NOMEM, "no memory for %d rows", rows->count);
    status = all_rows(o, rows, &profiles, predictions, damaged);
    if (status >= 0 && o->score) status = pub_score(rows, profiles.fitted, predictions);
    wefti_free(predictions);
    return status;
}

int main(int argc, char **argv) {
    options o;
    wefti_arena *arena;
    bool damaged = false;
    if (!read_options(argc, argv, &o)) return usage();
    weft_status status = wefti_arena_create(&arena);
    if (status >= 0) {
        status = run_all(&o, arena, &damaged);
        wefti_arena_destroy(arena);
    }
    if (status < 0) fprintf(stderr, "%s\n", weft_error_message());
    if (fflush(stdout) != 0 && status >= 0) return 1;
    return status < 0 || damaged ? 1 : 0;
}
