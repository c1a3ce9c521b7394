/* Colours on terminals, and numbers as people read them. */
#include "cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Open MPI's mpirun gives its processes terminals of its own making, 80 columns wide, also where
 * what they say goes to a file. */
bool cli_is_terminal(FILE *stream) {
    const char *no_color = getenv("NO_COLOR"), *kind = getenv("TERM");
    return isatty(fileno(stream)) && !getenv("OMPI_COMM_WORLD_RANK") && !(no_color && *no_color) &&
           !(kind && !strcmp(kind, "dumb"));
}

int cli_columns(FILE *stream) {
    struct winsize size;
    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

const char *cli_bold(FILE *stream) {
    return cli_is_terminal(stream) ? "\033[1m" : "";
}
const char *cli_dim(FILE *stream) {
    return cli_is_terminal(stream) ? "\033[2m" : "";
}
const char *cli_plain(FILE *stream) {
    return cli_is_terminal(stream) ? "\033[0m" : "";
}

/* Those of one byte, and U+0080 to U+009F, which UTF-8 writes as C2 80 to C2 9F. */
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

void cli_say(FILE *stream, const char *format, ...) {
    char some[4096], *text = some;
    bool is_terminal = isatty(fileno(stream)); /* NO_COLOR is of what we say ourselves */
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    if (is_terminal) {
        int bytes = vsnprintf(some, sizeof some, format, args);
        size_t all = bytes < 0 ? 1 : (size_t)bytes + 1;
        if (all > sizeof some && (text = malloc(all)))
            (void)vsnprintf(text, all, format, again);
        else
            text = some; /* at least its beginning */
        if (bytes >= 0) fputs(clean(text), stream);
    } else {
        (void)vfprintf(stream, format, args);
    }
    va_end(again);
    va_end(args);
    if (text != some) free(text);
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

const char *cli_amount(double amount, const char *unit, char out[32]) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", NULL};
    return scaled(amount, 1000.0, prefixes, unit, out);
}
