/* JSON objects on a stream, RFC 8259: one object a line, without control characters. */
#include "cli.h"

#include <math.h>
#include <string.h>

size_t cli_character(const unsigned char *p, size_t left) {
    size_t length = *p < 0x80   ? 1
                    : *p < 0xc2 ? 0
                    : *p < 0xe0 ? 2
                    : *p < 0xf0 ? 3
                    : *p < 0xf5 ? 4
                                : 0;
    if (length == 0 || length > left) return 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
        (*p == 0xf4 && p[1] > 0x8f))
        return 0;
    return length;
}

/* Each byte that is not part of a UTF-8 character becomes U+FFFD, since a model may write any
 * bytes. */
static void text(FILE *stream, const char *value, size_t bytes) {
    fputc('"', stream);
    for (const unsigned char *p = (const unsigned char *)value, *end = p + bytes; p < end;) {
        size_t length = cli_character(p, (size_t)(end - p));
        if (length == 0)
            fputs("\\ufffd", stream);
        else if (*p == '"' || *p == '\\')
            fprintf(stream, "\\%c", *p);
        else if (*p == '\n')
            fputs("\\n", stream);
        else if (*p < 0x20 || cli_is_control(*p, p[length - 1]))
            fprintf(stream, "\\u%04x", p[length - 1]); /* 7f to 9f, too: C2 80 is U+0080 */
        else
            fwrite(p, 1, length, stream);
        p += length ? length : 1;
    }
    fputc('"', stream);
}

static void name(cli_json *json, const char *key) {
    if (!json->first) fputs(", ", json->stream);
    json->first = false;
    if (!key) return;
    text(json->stream, key, strlen(key));
    fputs(": ", json->stream);
}

void cli_json_begin(cli_json *json, FILE *stream) {
    *json = (cli_json){.stream = stream, .first = true};
    fputc('{', stream);
}

void cli_json_text(cli_json *json, const char *key, const char *value) {
    if (value) {
        cli_json_bytes(json, key, value, strlen(value));
        return;
    }
    name(json, key);
    fputs("null", json->stream);
}

void cli_json_bytes(cli_json *json, const char *key, const char *value, size_t bytes) {
    name(json, key);
    text(json->stream, value, bytes);
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
