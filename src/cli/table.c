/* Tables and wrapped text for people. On a terminal they fit its width. See cli.h. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { TABLE_GAP = 2, CELL_BYTES = 128 };

struct cli_table {
    const cli_column *columns;
    int count, rows, capacity;
    char (*cells)[CELL_BYTES]; /* [rows, count] */
    bool failed;               /* no memory: the table ends with a message */
};

cli_table *cli_table_create(const cli_column *columns, int count) {
    cli_table *t = calloc(1, sizeof *t);
    if (t) *t = (cli_table){.columns = columns, .count = count};
    return t;
}

void cli_table_row(cli_table *t) {
    if (!t || t->failed) return;
    if (t->rows == t->capacity) {
        int capacity = t->capacity ? t->capacity * 2 : 16;
        void *cells = realloc(t->cells, (size_t)capacity * (size_t)t->count * sizeof *t->cells);
        if (!cells) {
            t->failed = true;
            return;
        }
        t->cells = cells;
        t->capacity = capacity;
    }
    memset(t->cells + (size_t)t->rows * (size_t)t->count, 0, (size_t)t->count * sizeof *t->cells);
    t->rows++;
}

void cli_table_cell(cli_table *t, int column, const char *format, ...) {
    if (!t || t->failed || t->rows == 0) return;
    va_list args;
    va_start(args, format);
    char *cell = t->cells[(size_t)(t->rows - 1) * (size_t)t->count + (size_t)column];
    (void)vsnprintf(cell, CELL_BYTES, format, args);
    va_end(args);
}

/* The width of a column: its usual one, or only what its cells need. */
static int width_of(const cli_table *t, int column, bool tight) {
    size_t width = strlen(t->columns[column].title);
    if (!tight && (size_t)t->columns[column].width > width)
        width = (size_t)t->columns[column].width;
    for (int r = 0; r < t->rows; r++) {
        size_t length = strlen(t->cells[(size_t)r * (size_t)t->count + (size_t)column]);
        if (length > width) width = length;
    }
    return (int)width;
}

/* How a table is shown. */
typedef struct fit {
    bool tight;
    int gap;
    int shown; /* columns of a higher rank are left out */
} fit;

static int total_width(const cli_table *t, const fit *f) {
    int total = -f->gap;
    for (int c = 0; c < t->count; c++)
        if (t->columns[c].rank <= f->shown) total += width_of(t, c, f->tight) + f->gap;
    return total;
}

/* The widest form that fits. The usual one if the stream is no terminal. */
static fit fit_of(const cli_table *t, FILE *stream) {
    fit f = {false, TABLE_GAP, 0};
    for (int c = 0; c < t->count; c++)
        if (t->columns[c].rank > f.shown) f.shown = t->columns[c].rank;
    int room = cli_width(stream);
    if (room == 0 || total_width(t, &f) <= room) return f;
    f.tight = true;
    if (total_width(t, &f) > room) f.gap = 1;
    while (f.shown > 0 && total_width(t, &f) > room) f.shown--;
    return f;
}

/* One line: titles if `row` is below 0. */
static void print_line(const cli_table *t, const fit *f, int row, FILE *stream) {
    bool first = true;
    for (int c = 0; c < t->count; c++) {
        const cli_column *column = &t->columns[c];
        if (column->rank > f->shown) continue;
        const char *text =
            row < 0 ? column->title : t->cells[(size_t)row * (size_t)t->count + (size_t)c];
        int width = width_of(t, c, f->tight), gap = first ? 0 : f->gap;
        if (column->left)
            cli_say(stream, "%*s%-*s", gap, "", c + 1 < t->count ? width : 0, text);
        else
            cli_say(stream, "%*s%*s", gap, "", width, text);
        first = false;
    }
}

static void print_left_out(const cli_table *t, const fit *f, FILE *stream) {
    bool any = false;
    for (int c = 0; c < t->count; c++) {
        if (t->columns[c].rank <= f->shown) continue;
        cli_say(stream, "%s%s", any ? ", " : "(left out: ", t->columns[c].title);
        any = true;
    }
    if (any) cli_say(stream, ")\n");
}

void cli_table_print(cli_table *t, FILE *stream) {
    if (t && !t->failed) {
        fit f = fit_of(t, stream);
        cli_bold_begin(stream);
        print_line(t, &f, -1, stream);
        cli_bold_end(stream);
        cli_say(stream, "\n");
        for (int r = 0; r < t->rows; r++) {
            print_line(t, &f, r, stream);
            cli_say(stream, "\n");
        }
        print_left_out(t, &f, stream);
    } else {
        cli_say(stderr, "weft: no memory for a table\n");
    }
    if (t) free(t->cells);
    free(t);
}

void cli_say_wrapped(FILE *stream, int used, int indent, const char *text) {
    int room = cli_width(stream), at = used;
    if (room == 0 || room <= indent + 10) {
        cli_say(stream, "%s\n", text);
        return;
    }
    bool begins = true; /* nothing stands in this line yet but spaces */
    while (*text) {
        int length = (int)strcspn(text, " \n");
        if (!begins && at + 1 + length > room) {
            cli_say(stream, "\n%*s", indent, "");
            at = indent;
            begins = true;
        }
        cli_say(stream, "%s%.*s", begins ? "" : " ", length, text);
        at += length + (begins ? 0 : 1);
        begins = false;
        text += length;
        if (*text == '\n') { /* the next line keeps the spaces that it begins with */
            int spaces = (int)strspn(text + 1, " ");
            cli_say(stream, "\n%*s", spaces, "");
            at = spaces;
            begins = true;
            text += spaces;
        }
        if (*text) text++;
    }
    cli_say(stream, "\n");
}
