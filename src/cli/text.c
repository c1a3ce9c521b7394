/* Texts of the library, such as programs and tensors of checkpoints, on terminals that are narrower
 * than their lines. First, columns of a table move together. Lines that are still too long go on in
 * the next line, indented. See cli.h. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

enum { FURTHER = 4 }; /* indentation of a line that goes on, beyond its own */

static int indent_of(const char *line) {
    return (int)strspn(line, " ");
}

static int length_of(const char *line) {
    return (int)strcspn(line, "\n");
}

static const char *next_line(const char *line) {
    line += length_of(line);
    return *line ? line + 1 : line;
}

/* How many of `length` characters fit into `room`: up to a space, or one whole word. */
static int part_of(const char *line, int length, int room) {
    int end = room, begin = indent_of(line);
    if (length <= room) return length;
    while (end > begin && line[end] != ' ') end--;
    if (end > begin) return end;
    for (end = begin; end < length && line[end] != ' ';) end++;
    return end;
}

static void say_line(FILE *stream, const char *line, int length, int room) {
    int further = indent_of(line) + FURTHER, indent = 0;
    if (further > room / 2) further = room / 2;
    do {
        int part = part_of(line, length, room - indent), shown = part;
        while (shown > 0 && line[shown - 1] == ' ') shown--;
        cli_say(stream, "%*s%.*s\n", indent, "", shown, line);
        while (part < length && line[part] == ' ') part++;
        line += part;
        length -= part;
        indent = further;
    } while (length > 0);
}

/* Consecutive lines with one indentation. */
typedef struct paragraph {
    const char *begin, *end;
    int widest;
    bool *keep; /* [widest]: the columns that stay */
} paragraph;

static paragraph paragraph_at(const char *text) {
    paragraph b = {text, text, 0, NULL};
    const int indent = indent_of(text);
    do {
        int length = length_of(b.end);
        if (length > b.widest) b.widest = length;
        b.end = next_line(b.end);
    } while (*b.end && indent_of(b.end) == indent);
    return b;
}

/* Keeps at most `gap` of the neighboring columns that are blank in all lines. Returns the width
 * that is left. */
static int squeeze(paragraph *b, int gap) {
    int blanks = 0, width = 0;
    for (int c = 0; c < b->widest; c++) b->keep[c] = false;
    for (const char *line = b->begin; line < b->end; line = next_line(line))
        for (int c = 0, length = length_of(line); c < length; c++) b->keep[c] |= line[c] != ' ';
    for (int c = 0; c < b->widest; c++) {
        blanks = b->keep[c] ? 0 : blanks + 1;
        if (c < indent_of(b->begin) || blanks <= gap) b->keep[c] = true;
        width += b->keep[c];
    }
    return width;
}

static void say_squeezed(FILE *stream, const paragraph *b, int room) {
    char *line = malloc((size_t)b->widest + 1);
    for (const char *at = b->begin; at < b->end; at = next_line(at)) {
        int length = length_of(at), kept = 0;
        for (int c = 0; line && c < length; c++)
            if (b->keep[c]) line[kept++] = at[c];
        if (line) line[kept] = '\0';
        say_line(stream, line ? line : at, line ? kept : length, room);
    }
    free(line);
}

void cli_say_text(FILE *stream, const char *text) {
    const int room = cli_width(stream);
    while (room > 0 && *text) {
        paragraph b = paragraph_at(text);
        b.keep = b.widest > room ? malloc((size_t)b.widest * sizeof *b.keep) : NULL;
        if (b.keep) {
            if (squeeze(&b, 2) > room) (void)squeeze(&b, 1);
            say_squeezed(stream, &b, room);
        } else {
            cli_say(stream, "%.*s", (int)(b.end - b.begin), b.begin);
        }
        free(b.keep);
        text = b.end;
    }
    if (*text) cli_say(stream, "%s", text);
}
