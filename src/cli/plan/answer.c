/* Shows what the joint search has found: for people, or as one JSON object. */
#include <string.h>

#include "cli/plan/plan.h"
#include "weft/plan.h"
#include "weft/predict.h"
#include "weft/train.h"

#define ANSWER_TEXT(name, text) text,
static const char *const schedules[] = {WEFT_PIPELINE_SCHEDULE_LIST(ANSWER_TEXT)};
static const char *const recomputes[] = {WEFT_RECOMPUTE_LIST(ANSWER_TEXT)};
#undef ANSWER_TEXT

bool cli_plan_is_joint(const weft_job *job) {
    return job->parallel.mode == WEFT_JOB_MODE_AUTO && job->parallel.search == WEFT_SEARCH_JOINT &&
           !*job->parallel.plan && job->plan;
}

/* ---- as JSON ---- */

static void json_cell(cli_json *json, const weft_cell_report *c) {
    cli_json_object(json, NULL);
    cli_json_text(json, "cell", c->name);
    cli_json_integer(json, "calls", c->calls);
    cli_json_integer(json, "first_stage", c->first_stage);
    cli_json_integer(json, "last_stage", c->last_stage);
    cli_json_text(json, "splits", c->splits);
    cli_json_array(json, "choices");
    for (int i = 0; i < c->choice_count; i++) {
        cli_json_object(json, NULL);
        cli_json_text(json, "choice", c->choices[i].name);
        cli_json_real(json, "forward_seconds", c->choices[i].forward_seconds);
        cli_json_real(json, "backward_seconds", c->choices[i].backward_seconds);
        cli_json_integer(json, "kept_bytes", c->choices[i].kept_bytes);
        cli_json_integer(json, "working_bytes", c->choices[i].working_bytes);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_close(json, '}');
}

/* The prediction, with the memory that the search was for. */
static weft_prediction within_memory(const weft_search_report *r) {
    weft_prediction p = *r->prediction;
    if (r->device_memory_bytes) {
        p.device_bytes = r->device_memory_bytes;
        p.fits = p.peak_bytes <= p.device_bytes;
    }
    return p;
}

static void json_report(cli_json *json, const weft_search_report *r) {
    const weft_prediction p = within_memory(r);
    cli_prediction_json(json, &p);
    cli_json_real(json, "lower_bound_seconds", r->lower_bound_seconds);
    cli_json_real(json, "gap", r->gap);
    cli_json_text(json, "bound_scope", r->bound_scope);
    cli_json_real(json, "plan_bound_seconds", r->plan_bound_seconds);
    cli_json_text(json, "least_bound", r->least_bound);
    cli_json_real(json, "search_seconds", r->search_seconds);
    cli_json_integer(json, "evaluations", r->evaluations);
    cli_json_integer(json, "candidates", r->candidates);
    cli_json_integer(json, "programs", r->programs);
    cli_json_bool(json, "exhausted", r->exhausted);
    cli_json_bool(json, "repeatable", !r->cut);
    cli_json_array(json, "mesh");
    for (int a = 0; a < r->axis_count; a++) {
        cli_json_object(json, NULL);
        cli_json_text(json, "axis", r->axes[a].name);
        cli_json_integer(json, "size", r->axes[a].size);
        cli_json_text(json, "links", r->axes[a].links);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_text(json, "degrees", r->degrees);
    cli_json_text(json, "idle_constraints", r->idle_constraints);
    cli_json_integer(json, "stages", r->stages);
    cli_json_integer(json, "chunks", r->chunks);
    cli_json_integer(json, "microbatches", r->microbatches);
    cli_json_text(json, "schedule", r->stages > 1 ? schedules[r->schedule] : NULL);
    cli_json_integer(json, "optimizer_level", r->level);
    cli_json_text(json, "recompute", recomputes[r->recompute]);
    cli_json_array(json, "alternatives");
    for (int i = 0; i < r->alternative_count; i++) {
        const weft_search_alternative *a = &r->alternatives[i];
        cli_json_object(json, NULL);
        cli_json_text(json, "constraints", a->degrees);
        cli_json_real(json, "seconds", a->step_seconds);
        cli_json_integer(json, "peak_bytes", a->peak_bytes);
        cli_json_bool(json, "fits", a->fits);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_array(json, "cells");
    for (int i = 0; i < r->cell_count; i++) json_cell(json, &r->cells[i]);
    cli_json_close(json, ']');
}

/* ---- for people ---- */

static void say_mesh(const weft_search_report *r) {
    cli_say(stdout, "mesh       ");
    for (int a = 0; a < r->axis_count; a++)
        cli_say(stdout, "%s%s=%d%s%s", a ? ", " : "", r->axes[a].name, r->axes[a].size,
                *r->axes[a].links ? " on " : "", r->axes[a].links);
    cli_say(stdout, "\n");
    if (r->stages > 1)
        cli_say(stdout, "stages     %d, schedule %s, %d chunk%s of a stage\n", r->stages,
                schedules[r->schedule], r->chunks, r->chunks == 1 ? "" : "s");
    else
        cli_say(stdout, "stages     1\n");
    cli_say(stdout, "batch      %d microbatch%s\n", r->microbatches,
            r->microbatches == 1 ? "" : "es");
    cli_say(stdout, "memory of  optimizer level %d", r->level);
    if (r->shard) cli_say(stdout, ", shared by %d replicas", r->shard);
    cli_say(stdout, "; recompute %s\n", recomputes[r->recompute]);
}

static void say_cells(const weft_search_report *r) {
    char kept[32];
    cli_say(stdout, "cells: calls, stages, forward and backward seconds of a microbatch, kept\n");
    for (int i = 0; i < r->cell_count; i++) {
        const weft_cell_report *c = &r->cells[i];
        const weft_cell_choice *x = &c->choices[0];
        cli_say(stdout, "  %-16s %d call%s, stage", c->name, c->calls, c->calls == 1 ? "" : "s");
        if (c->last_stage > c->first_stage)
            cli_say(stdout, "s %d to %d", c->first_stage, c->last_stage);
        else
            cli_say(stdout, " %d", c->first_stage);
        cli_say(stdout, ", %.3g s and %.3g s, %s\n    split: %s\n", x->forward_seconds,
                x->backward_seconds, cli_bytes((double)x->kept_bytes, kept), c->splits);
    }
}

static void say_gap(const weft_search_report *r) {
    const double beyond = r->prediction->step_seconds - r->plan_bound_seconds;
    if (r->plan_bound_seconds <= 0) return;
    cli_say(stdout,
            "gap        %.4g s of this plan, as of waits, which no bound counts (its own bound: "
            "%.4g s)\n",
            beyond, r->plan_bound_seconds);
    if (r->least_bound)
        cli_say(
            stdout,
            "           %.4g s since these were not simulated, and their bound is the least: %s\n",
            r->plan_bound_seconds - r->lower_bound_seconds, r->least_bound);
}

static void say_search(const weft_search_report *r) {
    cli_say(stdout, "lower bound %.4g s; gap %.2f %% ((step - lower bound) / lower bound)\n",
            r->lower_bound_seconds, 100 * r->gap);
    cli_say(stdout, "           of %s\n", r->bound_scope);
    say_gap(r);
    cli_say(stdout, "search     %.2f s, %d plan%s simulated, %lld compared%s\n", r->search_seconds,
            r->evaluations, r->evaluations == 1 ? "" : "s", (long long)r->candidates,
            r->cut         ? "; cut off, so it cannot be repeated"
            : r->exhausted ? "; nothing in the space is faster by more than 0.2 %"
                           : "");
    cli_say(stdout, "constraints that give this plan: %s\n", r->degrees);
    if (r->idle_constraints)
        cli_say(stdout, "constraints that decide nothing of this plan: %s\n", r->idle_constraints);
}

/* The fastest few; all of them are in the JSON and in reports. */
static void say_alternatives(const weft_search_report *r) {
    enum { SHOWN = 3 };
    char peak[32];
    for (int i = 0; i < r->alternative_count && i < SHOWN; i++) {
        const weft_search_alternative *a = &r->alternatives[i];
        cli_say(stdout, "%s%.4g s, %s%s: %s\n", i ? "           " : "next best  ", a->step_seconds,
                cli_bytes((double)a->peak_bytes, peak), a->fits ? "" : ", does not fit",
                a->degrees);
    }
}

/* In a unit of --failures: "2.803 s", "75 min", "527.9 d". */
static const char *period(double seconds, char out[32]) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
    size_t i = 0;
    while (i < 3 && seconds < 2 * units[i].seconds) i++;
    (void)snprintf(out, 32, "%.4g %s", seconds / units[i].seconds, units[i].unit);
    return out;
}

static void say_goodput(const weft_search_report *r, const char *failures) {
    const weft_prediction *p = r->prediction;
    const cli_goodput g = cli_goodput_of(failures, p);
    char rate[32], state[32], failure[32], between[32];
    if (!g.known) return;
    const double between_s = g.every * p->step_seconds;
    if (g.share < 5e-5)
        cli_say(stdout, "goodput    0 %% of the time: a failure every %s leaves no time for steps",
                period(g.failure_seconds, failure));
    else
        cli_say(
            stdout,
            "goodput    %.2f %% of the time, with a failure every %s and a checkpoint every %.0f "
            "step%s (%s)",
            100 * g.share, period(g.failure_seconds, failure), g.every, g.every == 1 ? "" : "s",
            period(between_s, between));
    if (p->tokens_per_second > 0 && g.share >= 5e-5)
        cli_say(stdout, "; %s tokens/s", cli_amount(g.share * p->tokens_per_second, "", rate));
    cli_say(stdout, "\n");
    if (!g.mtbf_assumed && !g.checkpoint_assumed && !g.restart_assumed) return;
    const char *before = "           assumed: ";
    if (g.mtbf_assumed)
        cli_say(stdout, "%s419 failures of 16,384 GPUs in 54 days (Llama 3, 2024)", before);
    if (g.mtbf_assumed) before = "; ";
    if (g.checkpoint_assumed && p->checkpoint_seconds > 0)
        cli_say(stdout, "%scheckpoint %.3g s (%s of a rank at the disk's rate)", before,
                g.checkpoint_seconds, cli_bytes((double)p->state_bytes, state));
    else if (g.checkpoint_assumed)
        cli_say(stdout, "%scheckpoint 0 s (the machine has no disk rate)", before);
    if (g.checkpoint_assumed) before = "; ";
    if (g.restart_assumed)
        cli_say(stdout, "%srestart %.0f s (MegaScale, 2024)", before, g.restart_seconds);
    cli_say(stdout, "\n");
}

static void json_goodput(cli_json *json, const weft_search_report *r, const char *failures) {
    const cli_goodput g = cli_goodput_of(failures, r->prediction);
    if (!g.known) return;
    cli_json_object(json, "goodput");
    cli_json_real(json, "share", g.share);
    cli_json_real(json, "failure_seconds", g.failure_seconds);
    cli_json_real(json, "checkpoint_every", g.every);
    cli_json_real(json, "checkpoint_seconds", g.checkpoint_seconds);
    cli_json_real(json, "restart_seconds", g.restart_seconds);
    cli_json_close(json, '}');
}

static int save(const weft_plan *plan, const char *out, bool quiet) {
    if (weft_plan_save(plan, out) < 0) return cli_failed();
    if (!quiet) cli_say(stdout, "%s: the plan for %d devices\n", out, weft_plan_devices(plan));
    return CLI_DONE;
}

int cli_plan_search(const weft_job *job, const cli_plan_question *q) {
    weft_search_report *r;
    weft_plan *plan = NULL;
    if (weft_job_search(job, q->out ? &plan : NULL, &r) < 0) return cli_failed();
    int code = q->out ? save(plan, q->out, q->json) : CLI_DONE;
    cli_notes(r->moves);
    if (q->json) {
        cli_json json;
        cli_json_begin(&json, stdout);
        json_report(&json, r);
        json_goodput(&json, r, q->failures);
        cli_json_end(&json);
    } else {
        say_mesh(r);
        const weft_prediction p = within_memory(r);
        cli_prediction_text(&p);
        say_goodput(r, q->failures);
        say_cells(r);
        say_search(r);
        say_alternatives(r);
    }
    weft_plan_destroy(plan);
    weft_search_report_free(r);
    return code;
}

/* ---- why ---- */

/* The cell of this name; "h.3" names one of "h.*". */
static const weft_cell_report *find_cell(const weft_search_report *r, const char *name) {
    for (int i = 0; i < r->cell_count; i++) {
        const char *at = name, *is = r->cells[i].name;
        for (; *is; is++) {
            if (*is == '*' && *at == '*')
                at++;
            else if (*is == '*')
                at += strspn(at, "0123456789");
            else if (*is == *at)
                at++;
            else
                break;
        }
        if (!*is && !*at) return &r->cells[i];
    }
    return NULL;
}

static void say_why(const weft_search_report *r, const weft_cell_report *c) {
    const weft_cell_choice *own = &c->choices[0];
    char kept[32], working[32], tiers[CLI_TIERS];
    cli_say(stdout,
            "%s: %d calls on stages %d to %d of %d\nsplit: %s\n"
            "a microbatch takes on one device, for this cell alone:\n"
            "  %-20s %10s %10s %10s  %-10s  %s\n",
            c->name, c->calls, c->first_stage, c->last_stage, r->stages, c->splits, "choice",
            "forward", "backward", "longer", "kept", "working");
    for (int i = 0; i < c->choice_count; i++) {
        const weft_cell_choice *x = &c->choices[i];
        const double more = (x->forward_seconds + x->backward_seconds) /
                                (own->forward_seconds + own->backward_seconds) -
                            1;
        cli_say(stdout, "  %-20s %8.3g s %8.3g s %+8.1f %%  %-10s  %s\n", x->name,
                x->forward_seconds, x->backward_seconds, 100 * more,
                cli_bytes((double)x->kept_bytes, kept),
                cli_bytes((double)x->working_bytes, working));
    }
    cli_say(stdout, "the plan: %s; its peak is %s of %s on rank %d%s\n", r->degrees,
            cli_bytes((double)r->prediction->peak_bytes, kept),
            cli_bytes((double)r->device_memory_bytes, working), r->prediction->peak_rank,
            cli_tiers(r->prediction->host_bytes, r->prediction->disk_bytes, tiers));
}

static int no_cell(const weft_search_report *r, const char *name) {
    char names[1024] = "";
    int used = 0;
    for (int i = 0; i < r->cell_count && used < (int)sizeof names; i++)
        used += snprintf(names + used, sizeof names - (size_t)used, "%s %s", i ? "," : "",
                         r->cells[i].name);
    return cli_complain("no cell is named '%s'; the cells are%s", name, names);
}

int cli_plan_why(const weft_job *job, const char *name, bool as_json) {
    weft_search_report *r;
    int code = CLI_DONE;
    if (weft_job_search(job, NULL, &r) < 0) return cli_failed();
    const weft_cell_report *c = find_cell(r, name);
    cli_notes(r->moves);
    if (!c) {
        code = no_cell(r, name);
    } else if (as_json) {
        cli_json json;
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "degrees", r->degrees);
        cli_json_array(&json, "cells");
        json_cell(&json, c);
        cli_json_close(&json, ']');
        cli_json_end(&json);
    } else {
        say_why(r, c);
    }
    weft_search_report_free(r);
    return code;
}

/* ---- why not ---- */

static double seconds_of(const weft_prediction *p, const char *cause) {
    for (int i = 0; i < p->cause_count; i++)
        if (!strcmp(p->causes[i].name, cause)) return p->causes[i].seconds;
    return 0;
}

static void say_cause(const char *name, double a, double b) {
    cli_say(stdout, "  %-16s %9.4g s  %9.4g s  %+9.4g s\n", name, a, b, b - a);
}

void cli_plan_say_difference(const weft_search_report *a, const weft_search_report *b) {
    const weft_prediction *p = a->prediction, *o = b->prediction;
    char first[32], second[32];
    cli_say(stdout, "the plan         %s\nthe alternative  %s\n", a->degrees, b->degrees);
    cli_say(stdout, "                   plan       alternative  difference\n");
    say_cause("step", p->step_seconds, o->step_seconds);
    for (int i = 0; i < p->cause_count; i++)
        say_cause(p->causes[i].name, p->causes[i].seconds, seconds_of(o, p->causes[i].name));
    for (int i = 0; i < o->cause_count; i++)
        if (seconds_of(p, o->causes[i].name) == 0)
            say_cause(o->causes[i].name, 0, o->causes[i].seconds);
    cli_say(stdout, "peak memory: %s on rank %d, and %s on rank %d\n",
            cli_bytes((double)p->peak_bytes, first), p->peak_rank,
            cli_bytes((double)o->peak_bytes, second), o->peak_rank);
    const double longer = 100 * (o->step_seconds / p->step_seconds - 1);
    cli_say(stdout, "the alternative takes %.2f %% %s\n", longer < 0 ? -longer : longer,
            longer < 0 ? "less time" : "longer");
}

void cli_plan_json_difference(cli_json *json, const weft_search_report *a,
                              const weft_search_report *b) {
    cli_json_real(json, "difference_seconds",
                  b->prediction->step_seconds - a->prediction->step_seconds);
    cli_json_integer(json, "difference_bytes",
                     b->prediction->peak_bytes - a->prediction->peak_bytes);
}

static void json_difference(const weft_search_report *a, const weft_search_report *b) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_object(&json, "plan");
    json_report(&json, a);
    cli_json_close(&json, '}');
    cli_json_object(&json, "alternative");
    json_report(&json, b);
    cli_json_close(&json, '}');
    cli_plan_json_difference(&json, a, b);
    cli_json_end(&json);
}

static void show_difference(const weft_search_report *a, const weft_search_report *b,
                            const cli_plan_question *q) {
    if (q->json)
        json_difference(a, b);
    else
        cli_plan_say_difference(a, b);
}

/* A plan's file: its prediction, and what no search has found is left out. */
static int why_not_file(const weft_job *other, const weft_search_report *a,
                        const cli_plan_question *q) {
    weft_prediction *p;
    char name[256];
    snprintf(name, sizeof name, "%s", other->parallel.plan);
    if (weft_job_predict(other, NULL, &p) < 0) return cli_failed();
    const weft_search_report b = {.prediction = p, .degrees = name};
    show_difference(a, &b, q);
    weft_prediction_free(p);
    return CLI_DONE;
}

int cli_plan_why_not(const weft_job *job, const weft_job *other, const cli_plan_question *q) {
    weft_search_report *a, *b;
    int code = CLI_DONE;
    if (weft_job_search(job, NULL, &a) < 0) return cli_failed();
    if (!cli_plan_is_joint(other)) {
        code = why_not_file(other, a, q);
        weft_search_report_free(a);
        return code;
    }
    if (weft_job_search(other, NULL, &b) < 0) {
        weft_search_report_free(a);
        return cli_failed();
    }
    show_difference(a, b, q);
    weft_search_report_free(a);
    weft_search_report_free(b);
    return code;
}

/* ---- why not, for a job with its own plan ---- */

/* The joint search for the job's model and devices, without the job's settings of a plan. */
static int search_instead(const weft_job *job, const cli_plan_question *q,
                          weft_search_report **out) {
    weft_job other = *job;
    weft_plan *settings;
    if (weft_plan_create(job->plan ? weft_plan_devices(job->plan) : 1, &settings) < 0)
        return cli_failed();
    other.plan = settings;
    other.parallel.plan = "";
    other.parallel.mode = WEFT_JOB_MODE_AUTO;
    other.parallel.search = WEFT_SEARCH_JOINT;
    other.parallel.constraints = q->why_not;
    other.parallel.evaluations = q->evaluations;
    other.train.accumulate = 1;
    const weft_status status = weft_job_search(&other, NULL, out);
    weft_plan_destroy(settings);
    return status < 0 ? cli_failed() : CLI_DONE;
}

int cli_plan_why_not_own(const weft_job *job, const cli_plan_question *q) {
    static char name[] = "the job's plan";
    weft_search_report *b, a = {.degrees = name};
    if (weft_job_predict(job, NULL, &a.prediction) < 0) return cli_failed();
    int code = search_instead(job, q, &b);
    if (code == CLI_DONE) {
        show_difference(&a, b, q);
        weft_search_report_free(b);
    }
    weft_prediction_free(a.prediction);
    return code;
}

int cli_plan_why_not_file(const weft_job *job, const weft_job *other, const cli_plan_question *q) {
    static char name[] = "the job's plan";
    weft_search_report a = {.degrees = name};
    if (weft_job_predict(job, NULL, &a.prediction) < 0) return cli_failed();
    const int code = why_not_file(other, &a, q);
    weft_prediction_free(a.prediction);
    return code;
}
