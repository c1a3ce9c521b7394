/* Predicted steps, as text and as members of a JSON object. */
#include "cli/cli.h"

#include "weft/predict.h"

static double part(double of, double whole) {
    return whole > 0 ? 100 * of / whole : 0;
}

static const char *seconds_text(double seconds, char out[32]) {
    if (seconds >= 1 || seconds <= 0)
        (void)snprintf(out, 32, "%.3f s", seconds);
    else if (seconds >= 1e-3)
        (void)snprintf(out, 32, "%.3f ms", seconds * 1e3);
    else
        (void)snprintf(out, 32, "%.3f us", seconds * 1e6);
    return out;
}

static bool has_tiers(const weft_prediction *p) {
    return p->host_bytes || p->disk_bytes;
}

/* ---- JSON ---- */

void cli_prediction_json(cli_json *json, const weft_prediction *p) {
    cli_json_real(json, "step_seconds", p->step_seconds);
    cli_json_real(json, "tokens_per_second", p->tokens_per_second);
    cli_json_real(json, "mfu", p->mfu);
    cli_json_integer(json, "predicted_peak_bytes", p->peak_bytes);
    cli_json_integer(json, "predicted_peak_rank", p->peak_rank);
    cli_json_integer(json, "device_memory_bytes", p->device_bytes);
    cli_json_bool(json, "fits", p->fits);
    cli_tiers_json(json, p->host_bytes, p->disk_bytes);
    cli_moves_json(json, p->host_moved_bytes, p->disk_moved_bytes);
    cli_servers_json(json, p->server_bytes, p->server_moved_bytes);
    if (p->driver.known) {
        cli_json_object(json, "driver_memory");
        cli_json_integer(json, "bytes", p->driver.bytes);
        cli_json_integer(json, "rank", p->driver.rank);
        cli_json_integer(json, "context_bytes", p->driver.context_bytes);
        cli_json_integer(json, "communicators", p->driver.communicators);
        cli_json_integer(json, "communicator_bytes", p->driver.communicator_bytes);
        cli_json_bool(json, "fits", p->driver.fits);
        cli_json_close(json, '}');
    }
    cli_json_real(json, "compute_seconds", p->compute_seconds);
    if (has_tiers(p)) cli_json_real(json, "tier_seconds", p->tier_seconds);
    cli_json_real(json, "exposed_communication_seconds", p->exposed_seconds);
    cli_json_real(json, "bubble_seconds", p->bubble_seconds);
    cli_json_integer(json, "critical_rank", p->critical_rank);
    cli_json_object(json, "seconds_by_cause");
    for (int i = 0; i < p->cause_count; i++)
        cli_json_real(json, p->causes[i].name, p->causes[i].seconds);
    cli_json_close(json, '}');
}

static void json_ranks(cli_json *json, const weft_prediction *p) {
    cli_json_array(json, "classes");
    for (int i = 0; i < p->class_count; i++) {
        const weft_rank_prediction *r = &p->classes[i];
        cli_json_object(json, NULL);
        cli_json_integer(json, "rank", r->rank);
        cli_json_integer(json, "ranks", r->count);
        cli_json_integer(json, "stage", r->stage);
        cli_json_integer(json, "predicted_peak_bytes", r->peak_bytes);
        cli_json_integer(json, "program_bytes", r->program_bytes);
        cli_json_real(json, "end_seconds", r->end_seconds);
        cli_json_real(json, "busy_seconds", r->busy_seconds);
        if (has_tiers(p)) cli_json_real(json, "tier_seconds", r->tier_seconds);
        cli_json_real(json, "exposed_communication_seconds", r->exposed_seconds);
        cli_json_real(json, "idle_seconds", r->idle_seconds);
        cli_json_real(json, "communication_seconds", r->transfer_seconds);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
}

void cli_simulation_json(const weft_prediction *p) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_integer(&json, "ranks", p->ranks);
    cli_prediction_json(&json, p);
    cli_json_bool(&json, "stopped", p->stopped);
    if (p->stopped) cli_json_integer(&json, "waiting_ranks", p->waiting);
    json_ranks(&json, p);
    cli_json_end(&json);
}

/* ---- text ---- */

static void print_causes(const weft_prediction *p) {
    static const cli_column columns[] = {
        {"cause", 16, 0, true}, {"time", 12, 0, false}, {"of the step", 11, 0, false}};
    char text[32];
    cli_table *t = cli_table_create(columns, 3);
    for (int i = 0; i < p->cause_count; i++) {
        cli_table_row(t);
        cli_table_cell(t, 0, "%s", p->causes[i].name);
        cli_table_cell(t, 1, "%s", seconds_text(p->causes[i].seconds, text));
        cli_table_cell(t, 2, "%.1f %%", part(p->causes[i].seconds, p->step_seconds));
    }
    cli_table_print(t, stdout);
}

static void print_driver(const weft_prediction *p) {
    const weft_driver_memory *d = &p->driver;
    char all[32], arenas[32], context[32], buffers[32];
    if (!d->known) return;
    cli_say(stdout,
            "the driver sees %s on rank %d%s: arenas %s, context %s, %d communicator%s %s\n",
            cli_bytes((double)d->bytes, all), d->rank, d->fits ? "" : ", more than the device has",
            cli_bytes((double)(d->bytes - d->context_bytes - d->communicator_bytes), arenas),
            cli_bytes((double)d->context_bytes, context), d->communicators,
            d->communicators == 1 ? "" : "s", cli_bytes((double)d->communicator_bytes, buffers));
}

void cli_prediction_text(const weft_prediction *p) {
    char a[32], b[32], c[32], d[32] = "", tiers[CLI_TIERS];
    if (p->stopped) {
        cli_say_bold(stdout, "the ranks stop after %s", seconds_text(p->step_seconds, a));
        cli_say(stdout, ": %d of %d wait for the rank that failed\n", p->waiting, p->ranks);
    } else {
        cli_say_bold(stdout, "predicted step %s", seconds_text(p->step_seconds, a));
        if (p->tokens_per_second > 0)
            cli_say(stdout, ", %s tokens/s", cli_amount(p->tokens_per_second, "", a));
        if (p->mfu > 0) cli_say(stdout, ", MFU %.1f %%", 100 * p->mfu);
        if (p->mfu > 1)
            cli_say(stdout, " (above 100 %%: the machine's peak is too low, as if measured while "
                            "it was busy)");
        cli_say(stdout, "; peak memory %s of %s on rank %d%s\n",
                cli_bytes((double)p->peak_bytes, b), cli_bytes((double)p->device_bytes, c),
                p->peak_rank, cli_tiers(p->host_bytes, p->disk_bytes, tiers));
    }
    if (!p->fits)
        cli_say(stdout, "the plan does not fit: a device has %s of memory\n",
                cli_bytes((double)p->device_bytes, a));
    print_driver(p);
    cli_say(stdout, "%s", cli_moves(p->host_moved_bytes, p->disk_moved_bytes, tiers));
    cli_servers(stdout, p->server_bytes, p->server_moved_bytes);
    cli_say(stdout,
            "critical path, to rank %d: compute %s, %s%s%sexposed communication %s; ranks idle for "
            "%s on average\n",
            p->critical_rank, seconds_text(p->compute_seconds, a),
            has_tiers(p) ? "copies of tiers " : "",
            has_tiers(p) ? seconds_text(p->tier_seconds, d) : "", has_tiers(p) ? ", " : "",
            seconds_text(p->exposed_seconds, b), seconds_text(p->bubble_seconds, c));
    print_causes(p);
}

void cli_simulation_text(const weft_prediction *p) {
    static const cli_column columns[] = {{"rank", 5, 0, false},     {"ranks", 5, 0, false},
                                         {"stage", 5, 3, false},    {"end", 10, 2, false},
                                         {"busy", 10, 0, false},    {"exposed", 10, 0, false},
                                         {"idle", 10, 0, false},    {"peak", 10, 0, false},
                                         {"programs", 9, 4, false}, {"tiers", 10, 0, false}};
    const int shown = has_tiers(p) ? 10 : 9;
    char text[32];
    cli_prediction_text(p);
    cli_say(stdout, "\n");
    cli_table *t = cli_table_create(columns, shown);
    for (int i = 0; i < p->class_count; i++) {
        const weft_rank_prediction *r = &p->classes[i];
        cli_table_row(t);
        cli_table_cell(t, 0, "%d", r->rank);
        cli_table_cell(t, 1, "%d", r->count);
        cli_table_cell(t, 2, "%d", r->stage);
        cli_table_cell(t, 3, "%s", seconds_text(r->end_seconds, text));
        cli_table_cell(t, 4, "%s", seconds_text(r->busy_seconds, text));
        cli_table_cell(t, 5, "%s", seconds_text(r->exposed_seconds, text));
        cli_table_cell(t, 6, "%s", seconds_text(r->idle_seconds, text));
        cli_table_cell(t, 7, "%s", cli_bytes((double)r->peak_bytes, text));
        cli_table_cell(t, 8, "%s", cli_bytes((double)r->program_bytes, text));
        if (has_tiers(p)) cli_table_cell(t, 9, "%s", seconds_text(r->tier_seconds, text));
    }
    cli_table_print(t, stdout);
}
