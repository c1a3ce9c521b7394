/* Progress of a training run: a live line on terminals, occasional lines in files and pipes, or one
 * JSON object a step. */
#include "train_progress.h"

#include <math.h>
#include <string.h>

static const double wait_s = 5;    /* between two progress lines off terminals */
static const double blink_s = 0.1; /* between two changes of the live line */

static const char *duration(double seconds, char out[32]) {
    long whole = seconds > 0 && seconds < 1e9 ? (long)(seconds + 0.5) : 0;
    if (whole >= 3600)
        snprintf(out, 32, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    else
        snprintf(out, 32, "%ld:%02ld", whole / 60, whole % 60);
    return out;
}

/* The unit of the rate: tokens, or samples for images. A run that never began has counted neither.
 */
static const char *units(const train_progress *p) {
    return p->start.context || !p->start.family ? "tokens" : "samples";
}

static const char *speed(const train_progress *p, double rate, char out[32]) {
    snprintf(out, 32, "%.*f %s/s", rate < 10 ? 2 : 0, rate, units(p));
    return out;
}

static void speed_json(const train_progress *p, cli_json *json, double rate) {
    char key[32];
    snprintf(key, sizeof key, "%s_per_second", units(p));
    cli_json_real(json, key, rate);
}

/* The live line ends before anything else is printed. */
static void end_line(train_progress *p) {
    if (p->line_open) cli_say(stdout, "\n");
    p->line_open = false;
}

static void start(void *context, const weft_train_start *s) {
    train_progress *p = context;
    char parameters[32], flops[32], peak[32], programs[32], tiers[CLI_TIERS];
    const int64_t before = p->start.first_step;
    const bool goes_on = s->resized && p->start.family; /* in a world of another size */
    p->start = *s;
    if (goes_on) p->start.first_step = before;
    if (p->json) return;
    cli_say_bold(stdout, "%s", s->family);
    cli_say(stdout, ", %s parameters, %s%s%s, ", cli_amount((double)s->parameters, "", parameters),
            s->precision, *s->bf16 ? " with " : "", s->bf16);
    if (s->devices > 1) cli_say(stdout, "%d devices, ", s->devices);
    cli_say(stdout, "%d thread%s\n", s->threads, s->threads == 1 ? "" : "s");
    cli_say(stdout, "%lld training samples, %lld for validation; %lld a step",
            (long long)s->samples, (long long)s->validation_samples, (long long)s->batch);
    if (s->context) cli_say(stdout, " of %lld tokens", (long long)s->context);
    cli_say(stdout, "; %s a step\n", cli_amount(s->flops_per_step, "FLOP", flops));
    cli_say(stdout, "predicted peak memory %s%s, programs %s%s\n",
            cli_bytes((double)s->predicted_peak_bytes, peak), s->devices > 1 ? " on a device" : "",
            cli_bytes((double)s->program_bytes, programs),
            cli_tiers(s->host_bytes, s->disk_bytes, tiers));
    if (s->first_step > 0 && !s->resized)
        cli_say(stdout, "continued from the checkpoint of step %lld\n", (long long)s->first_step);
    fflush(stdout);
}

/* Seconds by what the run did. */
static void parts_json(cli_json *json, const double seconds[WEFT_TRAIN_PARTS]) {
    cli_json_object(json, "time");
    for (int i = 0; i < WEFT_TRAIN_PARTS; i++)
        if (seconds[i] > 0)
            cli_json_real(json, weft_train_part_text((weft_train_part)i), seconds[i]);
    cli_json_close(json, '}');
}

static const char *seconds_text(double seconds, char out[32]) {
    if (seconds < 10)
        snprintf(out, 32, "%.2f s", seconds);
    else
        duration(seconds, out);
    return out;
}

/* The parts that take a hundredth of the time or more, in their order; the rest is `other`. */
static void print_parts(const weft_train_result *r) {
    char text[32];
    double other = r->part_seconds[WEFT_TRAIN_PART_OTHER];
    cli_say(stdout, "%s since the start of the process:", seconds_text(r->process_seconds, text));
    const char *before = " ";
    for (int i = 0; i < WEFT_TRAIN_PART_OTHER; i++) {
        const double seconds = r->part_seconds[i];
        if (seconds < 0.01 * r->process_seconds) {
            other += seconds;
            continue;
        }
        cli_say(stdout, "%s%s %s", before, weft_train_part_text((weft_train_part)i),
                seconds_text(seconds, text));
        before = ", ";
    }
    cli_say(stdout, "%s%s %s\n", before, weft_train_part_text(WEFT_TRAIN_PART_OTHER),
            seconds_text(other, text));
}

static void step_json(train_progress *p) {
    if (!p->pending) return;
    const weft_train_step *s = &p->step;
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_integer(&json, "step", s->step);
    cli_json_real(&json, "loss", s->loss);
    cli_json_real(&json, "learning_rate", s->learning_rate);
    speed_json(p, &json, s->tokens_per_second);
    cli_json_real(&json, "seconds", s->seconds);
    if (isfinite(s->mfu)) cli_json_real(&json, "mfu", s->mfu);
    cli_json_integer(&json, "memory_bytes", s->observed_peak_bytes);
    if (s->resident_bytes > 0) cli_json_integer(&json, "resident_bytes", s->resident_bytes);
    parts_json(&json, s->part_seconds);
    if (isfinite(s->gradient_norm)) cli_json_real(&json, "gradient_norm", s->gradient_norm);
    if (p->validated) {
        cli_json_real(&json, "validation_loss", p->validation.loss);
        if (isfinite(p->validation.accuracy))
            cli_json_real(&json, "validation_accuracy", p->validation.accuracy);
    }
    cli_json_end(&json);
    p->pending = p->validated = false;
}

/* The progress line, of at most `columns` columns. If it is too long, the learning rate is left out
 * first, then the predicted memory, the rate, and last the words; time and memory stay. */
static void compose(const train_progress *p, const weft_train_step *s, int columns, char *out,
                    size_t bytes) {
    char head[96], lr[32], rate[32], text[48], eta[32], used[32], peak[32];
    (void)snprintf(head, sizeof head, "step %lld/%lld  loss %.4f", (long long)s->step,
                   (long long)p->start.steps, s->loss);
    (void)snprintf(lr, sizeof lr, "  lr %.2e", s->learning_rate);
    (void)snprintf(rate, sizeof rate, "  %s", speed(p, p->rate_units / p->rate_s, text));
    duration(s->eta_seconds, eta);
    cli_bytes((double)s->observed_peak_bytes, used);
    cli_bytes((double)p->start.predicted_peak_bytes, peak);
    for (int form = 0; form < 5; form++) {
        bool short_form = form == 4;
        int length =
            snprintf(out, bytes, "%s%s%s  ETA %s  %s%s%s%s", head + (short_form ? 5 : 0),
                     form < 1 ? lr : "", form < 3 ? rate : "", eta, short_form ? "" : "memory ",
                     used, form < 2 ? " of " : "", form < 2 ? peak : "");
        if (length <= columns) return;
    }
}

static void step(void *context, const weft_train_step *s) {
    train_progress *p = context;
    if (p->json) {
        step_json(p);
        p->step = *s;
        p->pending = true;
        /* A step that is validated waits for the result, which belongs to its object. */
        bool last = s->step == p->start.steps;
        bool validates = p->start.validation_samples > 0 &&
                         (last || (p->eval_every > 0 && s->step % p->eval_every == 0));
        if (!validates) step_json(p);
        return;
    }
    bool first = p->elapsed_s == 0, last = s->step == p->start.steps;
    p->elapsed_s += s->seconds;
    p->rate_units += s->tokens_per_second * s->seconds;
    p->rate_s += s->seconds;
    double since = p->elapsed_s - p->shown_s;
    if (!first && !last && since < (p->live ? blink_s : wait_s)) return;
    p->shown_s = p->elapsed_s;
    char line[256];
    /* A line that wraps could not be written over. */
    compose(p, s, p->live ? cli_columns(stdout) - 1 : (int)sizeof line, line, sizeof line);
    if (!p->live || first || p->rate_s > wait_s) p->rate_units = p->rate_s = 0;
    if (p->live) {
        cli_line_anew(stdout);
        cli_say(stdout, "%.*s", cli_columns(stdout) - 1, line);
        p->line_open = true;
    } else {
        cli_say(stdout, "%s\n", line);
    }
    fflush(stdout);
}

static void validation(void *context, const weft_train_validation *v) {
    train_progress *p = context;
    if (p->json) {
        p->validation = *v;
        p->validated = true;
        step_json(p);
        return;
    }
    end_line(p);
    cli_say_bold(stdout, "step %lld  validation loss %.4f", (long long)v->step, v->loss);
    if (isfinite(v->accuracy)) cli_say(stdout, "  accuracy %.2f %%", 100 * v->accuracy);
    cli_say(stdout, "\n");
    fflush(stdout);
}

static void checkpoint(void *context, int64_t step_number, const char *path) {
    train_progress *p = context;
    if (p->json) return;
    end_line(p);
    cli_say(stdout, "step %lld  checkpoint %s\n", (long long)step_number, path);
    fflush(stdout);
}

static void note(void *context, const char *text) {
    train_progress *p = context;
    end_line(p);
    FILE *to = p->json ? stderr : stdout;
    cli_say(to, "note: %s\n", text);
    fflush(to);
}

weft_train_events train_progress_events(train_progress *p) {
    return WEFT_STRUCT(weft_train_events, .context = p, .start = start, .step = step,
                       .validation = validation, .checkpoint = checkpoint, .note = note);
}

static void end_json(const train_progress *p, const weft_train_result *r, weft_status status) {
    const bool by_file = status >= 0 && r->stop == WEFT_TRAIN_STOPPED_BY_FILE;
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_bool(&json, "done", status >= 0 && !by_file);
    if (by_file || status == WEFT_E_STOPPED) cli_json_bool(&json, "stopped", true);
    if (status < 0) cli_json_text(&json, "error", weft_error_message());
    cli_json_integer(&json, "steps", r->steps);
    cli_json_real(&json, "final_loss", r->final_loss);
    if (isfinite(r->validation_loss)) cli_json_real(&json, "validation_loss", r->validation_loss);
    if (isfinite(r->accuracy)) cli_json_real(&json, "validation_accuracy", r->accuracy);
    cli_json_real(&json, "first_step_seconds", r->first_step_seconds);
    cli_json_real(&json, "seconds", r->seconds);
    cli_json_real(&json, "process_seconds", r->process_seconds);
    parts_json(&json, r->part_seconds);
    speed_json(p, &json, r->tokens_per_second);
    cli_json_integer(&json, "predicted_peak_bytes", r->predicted_peak_bytes);
    cli_json_integer(&json, "observed_peak_bytes", r->observed_peak_bytes);
    cli_tiers_json(&json, p->start.host_bytes, p->start.disk_bytes);
    if (r->cache_hits + r->cache_misses > 0) {
        cli_json_integer(&json, "cache_hits", r->cache_hits);
        cli_json_integer(&json, "cache_misses", r->cache_misses);
        cli_json_integer(&json, "cache_written", r->cache_written);
        cli_json_integer(&json, "cache_look_ups", r->cache_look_ups);
        cli_json_integer(&json, "cache_look_ups_hit", r->cache_look_ups_hit);
        cli_json_integer(&json, "cache_ahead", r->cache_ahead);
    }
    cli_json_text(&json, "checkpoint", *r->checkpoint ? r->checkpoint : NULL);
    cli_json_end(&json);
}

const char *train_progress_why_unsaved(const train_progress *p) {
    return p->saves ? "no step was done" : "the job has no checkpoint.dir";
}

void train_progress_end(train_progress *p, const weft_train_result *r, weft_status status) {
    if (p->json) {
        step_json(p);
        end_json(p, r, status);
        return;
    }
    end_line(p);
    if (status < 0 || r->stop == WEFT_TRAIN_STOPPED_BY_FILE) return;
    char time[32], rate[32], used[32], peak[32];
    int64_t steps = r->steps - p->start.first_step;
    cli_say(stdout, "done: %lld step%s", (long long)steps, steps == 1 ? "" : "s");
    if (steps > 0)
        cli_say(stdout, " in %s, %s", seconds_text(r->seconds, time),
                speed(p, r->tokens_per_second, rate));
    cli_say(stdout, "; final loss %.4f", r->final_loss);
    if (isfinite(r->validation_loss)) cli_say(stdout, ", validation loss %.4f", r->validation_loss);
    if (isfinite(r->accuracy)) cli_say(stdout, ", accuracy %.2f %%", 100 * r->accuracy);
    cli_say(stdout, "\n");
    print_parts(r);
    cli_say(stdout, "peak memory %s, predicted %s\n",
            cli_bytes((double)r->observed_peak_bytes, used),
            cli_bytes((double)r->predicted_peak_bytes, peak));
    if (r->cache_look_ups > 0)
        cli_say(stdout, "caches of tables had the rows of %.1f %% of %lld look-ups\n",
                100.0 * (double)r->cache_look_ups_hit / (double)r->cache_look_ups,
                (long long)r->cache_look_ups);
    if (r->cache_hits + r->cache_misses > 0)
        cli_say(
            stdout,
            "rows of tables on the disk: %lld read from caches (%.1f %%; %lld of them ahead), %lld "
            "from the disk, %lld written to it\n",
            (long long)r->cache_hits,
            100.0 * (double)r->cache_hits / (double)(r->cache_hits + r->cache_misses),
            (long long)r->cache_ahead, (long long)r->cache_misses, (long long)r->cache_written);
    if (*r->checkpoint)
        cli_say(stdout, "checkpoint %s\n", r->checkpoint);
    else
        cli_say(stdout, "the model was not saved, as %s\n", train_progress_why_unsaved(p));
}
