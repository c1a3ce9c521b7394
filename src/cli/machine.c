/* `weft machine`: the machines that plans and predictions can be made for. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#include "weft/bench.h"
#include "weft/graph.h"
#include "weft/info.h"

typedef struct machine_options {
    bool json;
    const char *out, *disk;
    int64_t devices;
    double seconds;
} machine_options;

static const cli_option options[] = {
    {"out", "FILE", CLI_TEXT, offsetof(machine_options, out), 0, 0,
     "measure: write the machine file there, not as `this-machine`"},
    {"disk", "DIR", CLI_TEXT, offsetof(machine_options, disk), 0, 0,
     "measure: the disk of DIR; without it, of the directory of --out, or the current one"},
    {"devices", "N", CLI_INTEGER, offsetof(machine_options, devices), 1, 64,
     "measure: devices of this process, which share its cores; 1 without it"},
    {"seconds", "S", CLI_REAL, offsetof(machine_options, seconds), 0.0001, 60,
     "measure: to spend on each figure; 0.05 without it"},
    {"json", NULL, CLI_FLAG, offsetof(machine_options, json), 0, 0,
     "list: one JSON object; measure: one a figure"},
    {0},
};

static int list(bool as_json) {
    const char *name;
    if (as_json) {
        cli_json json;
        cli_json_begin(&json, stdout);
        cli_json_array(&json, "machines");
        for (int i = 0; (name = weft_machine_name(i)); i++) cli_json_text(&json, NULL, name);
        cli_json_close(&json, ']');
        cli_json_end(&json);
        return CLI_DONE;
    }
    for (int i = 0; (name = weft_machine_name(i)); i++) cli_say(stdout, "%s\n", name);
    return CLI_DONE;
}

static int show(const char *machine) {
    char *text;
    if (weft_machine_text(machine, &text) < 0) return cli_failed();
    cli_say(stdout, "%s", text);
    weft_text_free(text);
    return CLI_DONE;
}

/* ---- measure ---- */

static void report(void *context, const weft_machine_figure *figure) {
    const machine_options *values = context;
    cli_json json;
    if (!values->json) {
        char where[48] = "";
        if (figure->work > 0) (void)snprintf(where, sizeof where, " at %.4g", figure->work);
        if (figure->ranks[0] >= 0)
            (void)snprintf(where, sizeof where, " ranks %d, %d", figure->ranks[0],
                           figure->ranks[1]);
        cli_say(stderr, "%-28s %12.4g%s\n", figure->name, figure->value, where);
        return;
    }
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "event", "figure");
    cli_json_text(&json, "name", figure->name);
    if (figure->work > 0) cli_json_real(&json, "work", figure->work);
    if (figure->ranks[0] >= 0) {
        cli_json_array(&json, "ranks");
        for (int i = 0; i < 2; i++) cli_json_integer(&json, NULL, figure->ranks[i]);
        cli_json_close(&json, ']');
    }
    cli_json_real(&json, "value", figure->value);
    cli_json_end(&json);
    (void)fflush(stdout);
}

static void report_end(const machine_options *values, const char *path, int devices) {
    cli_json json;
    if (!values->json) {
        cli_say(stdout, "%s: a machine of %d device%s\n", path, devices, devices == 1 ? "" : "s");
        return;
    }
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "event", "done");
    cli_json_text(&json, "file", path);
    cli_json_integer(&json, "devices", devices);
    cli_json_end(&json);
}

/* The directory of a file, whose disk is measured. NULL: no memory. */
static char *directory_of(const char *path) {
    const char *end = strrchr(path, '/');
    if (!end) return strdup(".");
    return end == path ? strdup("/") : strndup(path, (size_t)(end - path));
}

/* `path`: the file to write. */
static int measure_to(weft_world *world, machine_options *values, const char *path) {
    const bool leads = !world || weft_world_rank(world) == 0;
    char *text = NULL, *disk = values->disk           ? strdup(values->disk)
                               : values->out && leads ? directory_of(path)
                                                      : strdup(".");
    weft_machine_options what =
        WEFT_STRUCT(weft_machine_options, .devices = (int)values->devices,
                    .seconds = values->seconds, .disk = disk, .context = values, .figure = report);
    weft_status status = weft_machine_measure(world, &what, &text);
    if (status >= 0 && leads) status = weft_machine_write(text, values->out);
    free(disk);
    weft_text_free(text);
    if (status < 0) {
        int code = cli_failed();
        if (world) weft_world_fail(world, weft_error_message());
        return code;
    }
    const int own = values->devices ? (int)values->devices : 1;
    if (leads) report_end(values, path, world ? weft_world_size(world) : own);
    return CLI_DONE;
}

static int measure(const cli_verb *verb, machine_options *values) {
    weft_launcher launcher;
    weft_world *world = NULL;
    char *place = NULL;
    if (weft_launcher_find(&launcher) < 0) return cli_failed();
    if (launcher.name && values->devices)
        return cli_usage(verb, "--devices is for one process; %s started %d, one device each",
                         launcher.name, launcher.size);
    if (values->out && launcher.rank <= 0 && !cli_can_write(values->out)) return cli_failed();
    if (!values->out && weft_machine_path(&place) < 0) return cli_failed();
    const weft_world_options joins = {.struct_bytes = sizeof(weft_world_options),
                                      .identity = "program = weft machine"};
    const weft_status joined = launcher.name ? weft_world_join(&joins, &world) : WEFT_OK;
    if (joined < 0) {
        weft_text_free(place);
        return cli_failed_to_join(0, joined);
    }
    int code = cli_leave(world, measure_to(world, values, values->out ? values->out : place));
    weft_text_free(place);
    return code;
}

static int run(const cli_verb *verb, int count, char **words) {
    machine_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    const bool measures = left == 1 && !strcmp(words[0], "measure");
    if (!measures && (values.out || values.disk || values.devices || values.seconds > 0))
        return cli_usage(verb, "--out, --disk, --devices and --seconds are for `machine measure`");
    if (measures) return measure(verb, &values);
    if (left == 1 && !strcmp(words[0], "list")) return list(values.json);
    if (left == 2 && !strcmp(words[0], "show")) return show(words[1]);
    return cli_usage(verb, "machine needs `list`, `measure`, or `show` and one machine");
}

const cli_verb cli_machine = {
    .name = "machine",
    .summary = "list and show machines, measure this one",
    .usage = "machine list [--json]\n"
             "       weft machine show MACHINE\n"
             "       weft machine measure [--devices N] [--disk DIR] [--out FILE] [--json]",
    .example = "weft machine show \"8 hosts of 8 h100-80g\"",
    .notes =
        "A machine is a name of the list, a text as in the example, a topology, or a machine "
        "file.\n`measure` writes the machine `this-machine`; started by weft launch, mpirun or "
        "srun it measures the\nworld, one device for each process. The job key `machine` takes "
        "the same texts.",
    .options = options,
    .run = run,
};
