/* `weft server`: keep parameters for training runs. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "weft/server.h"

typedef struct server_options {
    int64_t number, threads;
    const char *listen, *secret, *memory;
    bool tls, json;
} server_options;

#define SERVER_AT(field) offsetof(server_options, field)
static const cli_option options[] = {
    {"listen", "HOST:PORT", CLI_TEXT, SERVER_AT(listen), 0, 0,
     "or HOST, or a network interface, for any port; without it this host alone"},
    {"number", "N", CLI_INTEGER, SERVER_AT(number), 0, 63,
     "its place in WEFT_SERVERS, from 0; without it 0"},
    {"threads", "N", CLI_INTEGER, SERVER_AT(threads), 1, 1024,
     "that compute; without it one for each core"},
    {"memory", "SIZE", CLI_TEXT, SERVER_AT(memory), 0, 0,
     "that parameters may take, as 8GiB or 50%; without it the machine's"},
    {"secret", "FILE", CLI_TEXT, SERVER_AT(secret), 0, 0,
     "or env:NAME; of the runs; WEFT_SECRET_FILE or ~/.weft/secret without it"},
    {"tls", NULL, CLI_FLAG, SERVER_AT(tls), 0, 0, "encrypt, as the runs do with --tls"},
    {"json", NULL, CLI_FLAG, SERVER_AT(json), 0, 0, "one JSON object a line"},
    {0},
};

static volatile int stop_count;
static void on_signal(int number) {
    if (!cli_is_announcement(number)) stop_count++;
}

static void began(void *context, const char *address) {
    const server_options *v = context;
    if (!v->json) {
        cli_say(stdout, "server %lld, at %s\n", (long long)v->number, address);
    } else {
        cli_json json;
        cli_json_begin(&json, stdout);
        cli_json_integer(&json, "number", v->number);
        cli_json_text(&json, "address", address);
        cli_json_end(&json);
    }
    fflush(stdout);
}

static void changed(void *context, const weft_server_state *state) {
    char bytes[32];
    (void)context;
    cli_say(stderr, "ranks %d, shards %lld (%s), updates %lld\n", state->ranks,
            (long long)state->shards, cli_bytes((double)state->bytes, bytes),
            (long long)state->updates);
}

static int run(const cli_verb *verb, int count, char **words) {
    server_options v = {0};
    int code, left;
    if (!cli_parse(verb, count, words, &v, &left, &code)) return code;
    if (left) return cli_usage(verb, "server takes no arguments, but got '%s'", words[0]);
    cli_catch_signals(on_signal, true);
    const weft_server_options o = WEFT_STRUCT(
        weft_server_options, .listen = v.listen, .number = (int)v.number, .threads = (int)v.threads,
        .secret_file = v.secret, .tls = v.tls, .stop_count = &stop_count, .context = &v,
        .began = began, .changed = v.json ? NULL : changed, .memory = v.memory);
    return weft_server_run(&o) < 0 ? cli_failed() : CLI_DONE;
}

const cli_verb cli_server = {
    .name = "server",
    .summary = "keep parameters for training runs (parallel.server)",
    .usage = "server [--listen HOST:PORT] [--number N] [options]",
    .example = "weft server --listen 10.0.0.1:9100 --number 0\n"
               "  WEFT_SERVERS=10.0.0.1:9100,10.0.0.2:9100 weft launch -n 4 -- weft train job.yaml "
               "'parallel.server=[{match: \"wte.*\"}]'",
    .notes = "Runs until SIGINT or SIGTERM. What a run has there is gone when its last rank has "
             "left.\n`weft launch --servers N` starts servers for one run. See "
             "docs/guide/how-to-parallel.md.",
    .options = options,
    .run = run,
};
