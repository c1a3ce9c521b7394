/* `weft bench`: measures the collectives, between threads or between a job's processes. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#include "weft/bench.h"

typedef struct bench_options {
    const char *collective, *min, *max, *out;
    int64_t threads;
    double seconds;
    bool json;
} bench_options;

static const cli_option options[] = {
    {"collective", "NAME", CLI_TEXT, offsetof(bench_options, collective), 0, 0,
     "only this one: all_reduce, all_gather ..; all"},
    {"min", "SIZE", CLI_TEXT, offsetof(bench_options, min), 0, 0, "smallest: 1K without it"},
    {"max", "SIZE", CLI_TEXT, offsetof(bench_options, max), 0, 0, "largest: 64M without it"},
    {"threads", "N", CLI_INTEGER, offsetof(bench_options, threads), 1, 64,
     "alone: ranks, as threads of this process (its cores, 2 to 8)"},
    {"seconds", "S", CLI_REAL, offsetof(bench_options, seconds), 0.0001, 3600,
     "to spend on each line: 0.05 without it"},
    {"out", "FILE", CLI_TEXT, offsetof(bench_options, out), 0, 0,
     "write the links that were measured there, for planning"},
    {"json", NULL, CLI_FLAG, offsetof(bench_options, json), 0, 0, "one JSON object a line"},
    {0},
};

static const char size_form[] =
    "--%s is '%s'; it must be a number of bytes from %s to 1024G, such as 64K, 1M or 2G";

/* "4K", "64MiB", "1000"; -1: no size. */
static int64_t parse_size(const char *text) {
    char *end;
    long long n = strtoll(text, &end, 10);
    static const char units[] = "KMG";
    const char *unit = memchr(units, *end & ~0x20, sizeof units - 1);
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (unit) end++;
    if (unit && !strcmp(end, "iB")) end += 2;
    if (end == text || *end || n < 1 || n > (1LL << 40) >> shift) return -1;
    return (int64_t)n << shift;
}

static void print_json(const weft_bench *b) {
    cli_json json;
    for (int64_t i = 0; i < b->row_count; i++) {
        const weft_bench_row *r = &b->rows[i];
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "event", "collective");
        cli_json_text(&json, "communicator", b->communicator);
        cli_json_integer(&json, "ranks", b->ranks);
        cli_json_integer(&json, "hosts", b->hosts);
        cli_json_text(&json, "collective", r->collective);
        cli_json_integer(&json, "bytes", r->bytes);
        cli_json_integer(&json, "repeats", r->repeats);
        cli_json_real(&json, "seconds", r->seconds);
        cli_json_real(&json, "algorithm_bytes_per_second", r->algorithm);
        cli_json_real(&json, "bus_bytes_per_second", r->bus);
        cli_json_end(&json);
    }
    const weft_bench_link *links[] = {&b->same_host, &b->between_hosts};
    const char *const names[] = {"same_host", "between_hosts"};
    for (int i = 0; i < 2; i++) {
        if (!links[i]->measured) continue;
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "event", "link");
        cli_json_text(&json, "between", names[i]);
        cli_json_real(&json, "latency_seconds", links[i]->latency_seconds);
        cli_json_real(&json, "bytes_per_second", links[i]->bytes_per_second);
        cli_json_end(&json);
    }
}

static void print_link(const char *name, const weft_bench_link *l) {
    if (l->measured)
        cli_say(stdout, "%s: %.2f us, %.2f GB/s\n", name, l->latency_seconds * 1e6,
                l->bytes_per_second / 1e9);
}

static void print_text(const weft_bench *b) {
    char size[32];
    cli_say(stdout, "%d ranks on %d host%s, communicator %s\n", b->ranks, b->hosts,
            b->hosts == 1 ? "" : "s", b->communicator);
    static const cli_column columns[] = {{"collective", 14, 0, true},
                                         {"size", 9, 0, false},
                                         {"time us", 11, 0, false},
                                         {"algbw GB/s", 13, 0, false},
                                         {"busbw GB/s", 13, 1, false}};
    cli_table *t = cli_table_create(columns, sizeof columns / sizeof *columns);
    for (int64_t i = 0; i < b->row_count; i++) {
        const weft_bench_row *r = &b->rows[i];
        cli_table_row(t);
        cli_table_cell(t, 0, "%s", r->collective);
        cli_table_cell(t, 1, "%s", cli_bytes((double)r->bytes, size));
        cli_table_cell(t, 2, "%.2f", r->seconds * 1e6);
        cli_table_cell(t, 3, "%.3f", r->algorithm / 1e9);
        cli_table_cell(t, 4, "%.3f", r->bus / 1e9);
    }
    cli_table_print(t, stdout);
    print_link("link within a host", &b->same_host);
    print_link("link between hosts", &b->between_hosts);
}

static int finish(weft_world *world, weft_bench *bench, const bench_options *values) {
    weft_status status = WEFT_OK;
    bool shows = !world || weft_world_rank(world) == 0;
    if (shows && values->json) print_json(bench);
    if (shows && !values->json) print_text(bench);
    if (shows && values->out) status = weft_bench_write_links(bench, values->out);
    int code = status < 0 ? cli_failed() : CLI_DONE;
    weft_bench_free(bench);
    return cli_leave(world, code);
}

/* Checks that the output file can be written before it measures anything. */
static weft_status measure(weft_world *world, const weft_bench_options *what, const char *file,
                           weft_bench **out) {
    bool writes = file && (!world || weft_world_rank(world) == 0);
    if (writes && !cli_can_write(file)) return WEFT_E_IO;
    return weft_bench_comm(world, what, out);
}

static int refuse_collective(const cli_verb *verb, const char *word) {
    const char *names[16];
    char all[256];
    int count = 0, bytes = 0;
    for (; count < 15 && (names[count] = weft_bench_collective(count)) != NULL; count++)
        bytes += snprintf(all + bytes, sizeof all - (size_t)bytes, "%s, ", names[count]);
    names[count] = NULL;
    const char *near = weft_nearest(word, names);
    return near ? cli_usage(verb, "no collective '%s'; did you mean '%s'?", word, near)
                : cli_usage(verb, "no collective '%s'; there are %sand all", word, all);
}

static int refuse_words(const cli_verb *verb, int count, char **words) {
    if (count == 0) return cli_usage(verb, "bench needs the name of a benchmark; known: comm");
    if (strcmp(words[0], "comm") != 0)
        return cli_usage(verb, "bench cannot '%s'; it can comm", words[0]);
    return cli_usage(verb, "'%s' is one word too many", words[1]);
}

static bool is_collective(const char *word) {
    for (int i = 0; weft_bench_collective(i); i++)
        if (!strcmp(weft_bench_collective(i), word)) return true;
    return !strcmp(word, "all");
}

static int run(const cli_verb *verb, int count, char **words) {
    bench_options values = {.collective = "all", .min = "1K", .max = "64M"};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (left != 1 || strcmp(words[0], "comm") != 0) return refuse_words(verb, left, words);
    if (!is_collective(values.collective)) return refuse_collective(verb, values.collective);
    weft_bench_options what =
        WEFT_STRUCT(weft_bench_options, .collective = values.collective,
                    .min_bytes = parse_size(values.min), .max_bytes = parse_size(values.max),
                    .threads = (int)values.threads, .seconds = values.seconds);
    if (what.min_bytes < 4) return cli_usage(verb, size_form, "min", values.min, "4");
    if (what.max_bytes < what.min_bytes)
        return cli_usage(verb, size_form, "max", values.max, values.min);
    weft_launcher launcher;
    weft_world *world = NULL;
    weft_bench *bench;
    if (weft_launcher_find(&launcher) < 0) return cli_failed();
    if (launcher.name && values.threads)
        return cli_usage(verb, "--threads is for a bench without processes; %s started %d",
                         launcher.name, launcher.size);
    const weft_world_options joins = {.struct_bytes = sizeof(weft_world_options),
                                      .identity = "program = weft bench"};
    const weft_status joined = launcher.name ? weft_world_join(&joins, &world) : WEFT_OK;
    if (joined < 0) return cli_failed_to_join(0, joined);
    if (measure(world, &what, values.out, &bench) < 0) {
        code = cli_failed();
        if (world) weft_world_fail(world, weft_error_message());
        return cli_leave(world, code);
    }
    return finish(world, bench, &values);
}

const cli_verb cli_bench = {
    .name = "bench",
    .summary = "measure the collectives between threads or processes",
    .usage = "bench comm [--collective NAME] [--min SIZE] [--max SIZE] [--out FILE] [--json]",
    .example = "weft launch -n 2 -- weft bench comm --collective all_reduce --out links.json",
    .notes = "Alone it measures threads of this process; under weft launch, mpirun or srun the "
             "job's processes,\n"
             "by the communicator that a training run would have. Bandwidths as nccl-tests count "
             "them.",
    .options = options,
    .run = run,
};
