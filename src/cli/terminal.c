/* Output for people: colours on terminals, and numbers in readable form. */
#include "cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* Open MPI's mpirun gives its processes terminals of its own, 80 columns wide, even if the output
 * goes to a file. */
bool cli_is_terminal(FILE *stream) {
    const char *kind = getenv("TERM");
    return isatty(fileno(stream)) && !getenv("OMPI_COMM_WORLD_RANK") &&
           !(kind && !strcmp(kind, "dumb"));
}

int cli_columns(FILE *stream) {
    struct winsize size;
    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

int cli_width(FILE *stream) {
    return isatty(fileno(stream)) ? cli_columns(stream) : 0;
}

/* Control characters of one byte, and U+0080 to U+009F, which UTF-8 writes as C2 80 to C2 9F. */
bool cli_is_control(unsigned char before, unsigned char c) {
    return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ||
           (before == 0xc2 && c >= 0x80 && c < 0xa0);
}

/* In place; returns it. */
static char *clean(char *text) {
    char *to = text;
    unsigned char before = 0;
    for (const char *from = text; *from; from++) {
        unsigned char c = (unsigned char)*from;
        bool is_control = cli_is_control(before, c);
        if (is_control && c >= 0x80) to--; /* one '?' for both bytes */
        *to++ = is_control ? '?' : *from;
        before = c;
    }
    *to = '\0';
    return text;
}

void cli_say_list(FILE *stream, const char *format, va_list args) {
    if (!isatty(fileno(stream))) { /* files and pipes get all bytes */
        (void)vfprintf(stream, format, args);
        return;
    }
    char some[4096], *text = some;
    va_list again;
    va_copy(again, args);
    int bytes = vsnprintf(some, sizeof some, format, args);
    size_t all = bytes < 0 ? 1 : (size_t)bytes + 1;
    if (all > sizeof some && (text = malloc(all)))
        (void)vsnprintf(text, all, format, again);
    else
        text = some; /* at least its beginning */
    if (bytes >= 0) fputs(clean(text), stream);
    va_end(again);
    if (text != some) free(text);
}

void cli_say(FILE *stream, const char *format, ...) {
    va_list args;
    va_start(args, format);
    cli_say_list(stream, format, args);
    va_end(args);
}

/* How the next characters look. NO_COLOR takes this, and nothing else. */
static void style(FILE *stream, const char *sequence) {
    const char *no_color = getenv("NO_COLOR");
    if (cli_is_terminal(stream) && !(no_color && *no_color)) fputs(sequence, stream);
}

void cli_bold_begin(FILE *stream) {
    style(stream, "\033[1m");
}
void cli_bold_end(FILE *stream) {
    style(stream, "\033[0m");
}

static void say_in(FILE *stream, const char *sequence, const char *format, va_list args) {
    style(stream, sequence);
    cli_say_list(stream, format, args);
    style(stream, "\033[0m");
}

void cli_say_bold(FILE *stream, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say_in(stream, "\033[1m", format, args);
    va_end(args);
}

void cli_say_dim(FILE *stream, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say_in(stream, "\033[2m", format, args);
    va_end(args);
}

void cli_say_piece(FILE *stream, const char *bytes, size_t count, unsigned char *last) {
    bool is_terminal = isatty(fileno(stream));
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)bytes[i];
        putc(is_terminal && cli_is_control(*last, c) ? '?' : c, stream);
        *last = c;
    }
}

void cli_show_ranks(void *context, int done, int of) {
    static struct timespec begin; /* of the first call; one report at a time */
    struct timespec now;
    (void)context;
    if (!cli_is_terminal(stderr)) return;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (!begin.tv_sec) begin = now;
    if (now.tv_sec - begin.tv_sec < 2) return;
    cli_line_anew(stderr);
    if (done < of) cli_say(stderr, "%d of %d ranks are built", done, of);
}

void cli_line_anew(FILE *stream) {
    if (cli_is_terminal(stream)) fputs("\r\033[K", stream);
}

void cli_pass_on(FILE *stream, const char *bytes, size_t count) {
    fwrite(bytes, 1, count, stream);
}

static const char *scaled(double amount, double base, const char *const *prefixes, const char *unit,
                          char out[32]) {
    int i = 0;
    while (fabs(amount) >= base * 0.9995 && prefixes[i + 1]) {
        amount /= base;
        i++;
    }
    int digits = fabs(amount) >= 99.95 || (i == 0 && amount == floor(amount)) ? 0
                 : fabs(amount) >= 9.995                                      ? 1
                                                                              : 2;
    snprintf(out, 32, "%.*f %s%s", digits, amount, prefixes[i], unit);
    return out;
}

const char *cli_bytes(double bytes, char out[32]) {
    static const char *const prefixes[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", NULL};
    return scaled(bytes, 1024.0, prefixes, "B", out);
}

const char *cli_tiers(int64_t host_bytes, int64_t disk_bytes, char out[CLI_TIERS]) {
    char bytes[32];
    int at = 0;
    *out = 0;
    if (host_bytes)
        at = snprintf(out, CLI_TIERS, ", in host memory %s", cli_bytes((double)host_bytes, bytes));
    if (disk_bytes)
        (void)snprintf(out + at, CLI_TIERS - (size_t)at, ", on the disk %s",
                       cli_bytes((double)disk_bytes, bytes));
    return out;
}

void cli_tiers_json(cli_json *json, int64_t host_bytes, int64_t disk_bytes) {
    if (host_bytes) cli_json_integer(json, "host_bytes", host_bytes);
    if (disk_bytes) cli_json_integer(json, "disk_bytes", disk_bytes);
}

const char *cli_moves(int64_t host_bytes, int64_t disk_bytes, char out[CLI_TIERS]) {
    char host[32], disk[32];
    *out = 0;
    if (host_bytes || disk_bytes)
        (void)snprintf(out, CLI_TIERS, "a step copies to and from %s%s%s%s%s\n",
                       host_bytes ? "host memory " : "",
                       host_bytes ? cli_bytes((double)host_bytes, host) : "",
                       host_bytes && disk_bytes ? ", " : "", disk_bytes ? "the disk " : "",
                       disk_bytes ? cli_bytes((double)disk_bytes, disk) : "");
    return out;
}

void cli_moves_json(cli_json *json, int64_t host_bytes, int64_t disk_bytes) {
    if (host_bytes) cli_json_integer(json, "host_moved_bytes", host_bytes);
    if (disk_bytes) cli_json_integer(json, "disk_moved_bytes", disk_bytes);
}

void cli_servers(FILE *stream, int64_t bytes, int64_t moved_bytes) {
    char all[32], moved[32];
    if (!bytes) return;
    cli_say(stream, "servers keep %s; a device pushes and pulls %s a step\n",
            cli_bytes((double)bytes, all), cli_bytes((double)moved_bytes, moved));
}

void cli_servers_json(cli_json *json, int64_t bytes, int64_t moved_bytes) {
    if (bytes) cli_json_integer(json, "server_bytes", bytes);
    if (bytes) cli_json_integer(json, "server_moved_bytes", moved_bytes);
}

const char *cli_amount(double amount, const char *unit, char out[32]) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", NULL};
    return scaled(amount, 1000.0, prefixes, unit, out);
}
