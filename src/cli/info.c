/* `weft info`: the build's parts, the machine, and its measured speeds. */
#include "cli.h"
#include "weft/info.h"

typedef struct info_options {
    bool json, quick;
    int64_t threads;
} info_options;

static const cli_option options[] = {
    {"quick", NULL, CLI_FLAG, offsetof(info_options, quick), 0, 0, "measure nothing"},
    {"threads", "N", CLI_INTEGER, offsetof(info_options, threads), 1, 1024,
     "measure with N threads (all cores)"},
    {"json", NULL, CLI_FLAG, offsetof(info_options, json), 0, 0, "one JSON object"},
    {0},
};

static void print_json(const weft_info *info, const weft_rates *rates) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "version", weft_version());
    cli_json_text(&json, "compiler", info->compiler);
    cli_json_object(&json, "built_in");
    for (int i = 0; i < info->component_count; i++)
        cli_json_bool(&json, info->components[i].name, info->components[i].built_in);
    cli_json_close(&json, '}');
    cli_json_object(&json, "unused");
    for (int i = 0; i < info->component_count; i++)
        if (info->components[i].unused)
            cli_json_text(&json, info->components[i].name, info->components[i].unused);
    cli_json_close(&json, '}');
    cli_json_text(&json, "processor", info->processor);
    cli_json_text(&json, "features", info->features);
    cli_json_text(&json, "isa", info->isa);
    cli_json_integer(&json, "cores", info->cores);
    cli_json_integer(&json, "machine_cores", info->machine_cores);
    cli_json_text(&json, "cores_limit", info->cores_limit);
    cli_json_integer(&json, "memory_bytes", info->memory_bytes);
    cli_json_integer(&json, "memory_free_bytes", info->memory_free_bytes);
    cli_json_integer(&json, "machine_memory_bytes", info->machine_memory_bytes);
    cli_json_text(&json, "memory_limit", info->memory_limit);
    if (rates) {
        cli_json_object(&json, "measured");
        cli_json_integer(&json, "threads", rates->threads);
        cli_json_real(&json, "matmul_f32_flops", rates->matmul_f32);
        cli_json_real(&json, "matmul_bf16_flops", rates->matmul_bf16);
        cli_json_real(&json, "copy_bytes_per_second", rates->copy);
        cli_json_close(&json, '}');
    }
    cli_json_end(&json);
}

static void print_text(const weft_info *info, const weft_rates *rates) {
    char a[32], b[32];
    cli_say_bold(stdout, "weft %s", weft_version());
    cli_say(stdout, ", built with %s\n", info->compiler);
    for (int i = 0; i < info->component_count; i++) {
        const weft_component *c = &info->components[i];
        cli_say(stdout, "  %-10s %-9s %s\n", c->name, c->built_in ? "built in" : "left out",
                c->purpose);
        if (c->unused) cli_say(stdout, "  %-10s %-9s but not used: %s\n", "", "", c->unused);
    }
    cli_say(stdout, "processor  %s\n", *info->processor ? info->processor : "unknown");
    cli_say(stdout, "  features %s\n", *info->features ? info->features : "none usable here");
    cli_say(stdout, "  kernels  %s\n", info->isa);
    cli_say(stdout, "  cores    %d", info->cores);
    if (*info->cores_limit)
        cli_say(stdout, " of %d, by %s", info->machine_cores, info->cores_limit);
    cli_say(stdout, "\nmemory     %s, %s free\n", cli_bytes((double)info->memory_bytes, a),
            cli_bytes((double)info->memory_free_bytes, b));
    if (*info->memory_limit)
        cli_say(stdout, "           of %s, by %s\n",
                cli_bytes((double)info->machine_memory_bytes, a), info->memory_limit);
    if (!rates) return;
    cli_say(stdout, "measured   with %d thread%s\n", rates->threads,
            rates->threads == 1 ? "" : "s");
    cli_say(stdout, "  matmul   %s in f32, %s in bf16\n",
            cli_amount(rates->matmul_f32, "FLOP/s", a),
            cli_amount(rates->matmul_bf16, "FLOP/s", b));
    cli_say(stdout, "  copy     %s\n", cli_amount(rates->copy, "B/s", a));
}

static int run(const cli_verb *verb, int count, char **words) {
    info_options values = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (left) return cli_usage(verb, "info takes no arguments, but got '%s'", words[0]);
    weft_info info;
    weft_info_get(&info);
    weft_rates rates = {0};
    if (!values.quick && weft_info_measure((int)values.threads, &rates) < 0) return cli_failed();
    (values.json ? print_json : print_text)(&info, values.quick ? NULL : &rates);
    return CLI_DONE;
}

const cli_verb cli_info = {
    .name = "info",
    .summary = "show this build, this machine, and its measured speed",
    .usage = "info [--quick] [--threads N] [--json]",
    .example = "weft info --threads 2",
    .options = options,
    .run = run,
};
