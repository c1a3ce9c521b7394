/* What went wrong: a message on standard error, and with --json an object on standard output. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* The last complaint. */
static struct {
    bool json;          /* the verb was asked for JSON, and this process reports */
    bool told;          /* the verb's own output has the failure */
    char message[2048]; /* "": no complaint */
} last;

void cli_errors_as_json(bool json) {
    last.json = json;
}

void cli_errors_told(void) {
    last.told = true;
}

static void keep(const char *message) {
    snprintf(last.message, sizeof last.message, "%s", message);
}

int cli_complain(const char *format, ...) {
    char text[sizeof last.message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    keep(text);
    cli_say(stderr, "weft: %s\n", text);
    return CLI_FAILED;
}

/* Words of any length are quoted by their begin. */
int cli_usage(const cli_verb *verb, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    keep(text);
    cli_say(stderr, "weft: %s%s", text, length >= (int)sizeof text ? "..." : "");
    cli_say(stderr, "\nusage: weft %s\nSee `weft %s --help`.\n", verb->usage, verb->name);
    return CLI_USAGE;
}

int cli_usage_of_none(const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    keep(text);
    cli_say(stderr, "weft: %s\n", text);
    return CLI_USAGE;
}

int cli_failed(void) {
    const char *trace = getenv("WEFT_TRACE");
    keep(*weft_error_message() ? weft_error_message() : "failed without a message");
    cli_say(stderr, "weft: %s\n", last.message);
    if (trace && !strcmp(trace, "1")) cli_say(stderr, "%s\n", weft_error_trail());
    return CLI_FAILED;
}

int cli_failed_rank(int rank) {
    if (rank > 0) cli_errors_as_json(false); /* rank 0 reports */
    if (rank <= 0 || weft_error_rank() != WEFT_RANK_OWN) return cli_failed();
    cli_say(stderr, "weft: rank %d: %s\n", rank, weft_error_message());
    return CLI_FAILED;
}

static const char *status_text(int code) {
    return code == CLI_USAGE   ? "usage"
           : code == CLI_AGAIN ? "again"
           : code < 128        ? "failed"
                               : "stopped";
}

int cli_errors_end(int code) {
    cli_json json;
    if (!last.json || last.told || !*last.message || code == CLI_DONE) return code;
    cli_json_begin(&json, stdout);
    cli_json_object(&json, "error");
    cli_json_text(&json, "status", status_text(code));
    cli_json_text(&json, "message", last.message);
    cli_json_integer(&json, "exit_code", code);
    cli_json_close(&json, '}');
    cli_json_end(&json);
    return code;
}
