/* JSON objects on a stream, RFC 8259: one object a line. */
#include "cli.h"

#include <math.h>

static void text(FILE *stream, const char *value) {
    fputc('"', stream);
    for (const unsigned char *p = (const unsigned char *)value; *p; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(stream, "\\%c", *p);
        else if (*p == '\n')
            fputs("\\n", stream);
        else if (*p < 0x20 || *p == 0x7f)
            fprintf(stream, "\\u%04x", *p);
        else
            fputc(*p, stream);
    }
    fputc('"', stream);
}

static void name(cli_json *json, const char *key) {
    if (!json->first) fputs(", ", json->stream);
    json->first = false;
    if (!key) return;
    text(json->stream, key);
    fputs(": ", json->stream);
}

void cli_json_begin(cli_json *json, FILE *stream) {
    *json = (cli_json){.stream = stream, .first = true};
    fputc('{', stream);
}

void cli_json_text(cli_json *json, const char *key, const char *value) {
    name(json, key);
    if (value)
        text(json->stream, value);
    else
        fputs("null", json->stream);
}

void cli_json_integer(cli_json *json, const char *key, int64_t value) {
    name(json, key);
    fprintf(json->stream, "%lld", (long long)value);
}

void cli_json_real(cli_json *json, const char *key, double value) {
    name(json, key);
    if (isfinite(value))
        fprintf(json->stream, "%.9g", value);
    else
        fputs("null", json->stream);
}

void cli_json_bool(cli_json *json, const char *key, bool value) {
    name(json, key);
    fputs(value ? "true" : "false", json->stream);
}

static void nest(cli_json *json, const char *key, char bracket) {
    name(json, key);
    fputc(bracket, json->stream);
    json->first = true;
}
void cli_json_object(cli_json *json, const char *key) {
    nest(json, key, '{');
}
void cli_json_array(cli_json *json, const char *key) {
    nest(json, key, '[');
}

void cli_json_close(cli_json *json, char bracket) {
    fputc(bracket, json->stream);
    json->first = false;
}

void cli_json_end(cli_json *json) {
    fputs("}\n", json->stream);
    fflush(json->stream);
}
