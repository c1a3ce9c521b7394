/* `weft plan --diff`: what differs between two plans, and with a job what that costs. */
#include <string.h>

#include "cli/plan/plan.h"
#include "weft/plan.h"
#include "weft/predict.h"
#include "weft/search.h"

/* One line of the differences as a member of the array. */
static void json_lines(cli_json *json, char *lines) {
    for (char *line = lines, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        cli_json_text(json, NULL, line);
    }
}

static int differences(const char *first, const char *second, char **out) {
    weft_plan *a, *b;
    if (weft_plan_load(first, &a) < 0) return cli_failed();
    if (weft_plan_load(second, &b) < 0) {
        weft_plan_destroy(a);
        return cli_failed();
    }
    const weft_status status = weft_plan_diff(a, b, out);
    weft_plan_destroy(a);
    weft_plan_destroy(b);
    return status < 0 ? cli_failed() : CLI_DONE;
}

/* The job's step with the plan of a file; without what asks for a search. */
static int predict(const cli_job_source *job_source, const char *plan, weft_prediction **out) {
    cli_job_source source = *job_source;
    weft_job *job;
    source.plan = plan;
    source.mode = source.search = source.fix = source.search_seconds = NULL;
    source.evaluations = 0;
    int code = cli_job_load(&source, &job);
    if (code != CLI_DONE) return code;
    if (weft_job_predict(job, NULL, out) < 0) code = cli_failed();
    weft_job_free(job);
    return code;
}

static void show(char *lines, const weft_search_report *steps, bool as_json) {
    if (!as_json) {
        cli_say(stdout, "%s", *lines ? lines : "equal\n");
        if (steps) cli_plan_say_difference(&steps[0], &steps[1]);
        return;
    }
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_bool(&json, "equal", !*lines);
    cli_json_array(&json, "differences");
    json_lines(&json, lines);
    cli_json_close(&json, ']');
    if (steps) {
        cli_json_array(&json, "predictions");
        for (int i = 0; i < 2; i++) {
            cli_json_object(&json, NULL);
            cli_json_text(&json, "plan", steps[i].degrees);
            cli_prediction_json(&json, steps[i].prediction);
            cli_json_close(&json, '}');
        }
        cli_json_close(&json, ']');
        cli_plan_json_difference(&json, &steps[0], &steps[1]);
    }
    cli_json_end(&json);
}

static int compare(const cli_plan_files *files, const cli_job_source *source, char *lines,
                   bool as_json) {
    char names[2][256];
    weft_search_report steps[2] = {{.prediction = NULL}};
    int code = lines && *lines ? CLI_FAILED : CLI_DONE; /* as diff(1) */
    const char *const paths[2] = {files->first, files->second};
    for (int i = 0; i < 2 && source; i++) {
        const int done = predict(source, paths[i], &steps[i].prediction);
        snprintf(names[i], sizeof names[i], "%s", paths[i]);
        steps[i].degrees = names[i];
        if (done != CLI_DONE) {
            weft_prediction_free(steps[0].prediction);
            return done;
        }
    }
    show(lines, source ? steps : NULL, as_json);
    for (int i = 0; i < 2; i++) weft_prediction_free(steps[i].prediction);
    return code;
}

int cli_plan_diff(const cli_plan_files *files, const cli_job_source *source, bool as_json) {
    char *lines = NULL;
    int code = differences(files->first, files->second, &lines);
    if (code != CLI_DONE) return code;
    code = compare(files, source, lines, as_json);
    weft_text_free(lines);
    return code;
}
