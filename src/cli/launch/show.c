/* The output of `weft launch`. The ranks' own output keeps its stream. Messages of the launcher go
 * to stderr. With --json everything goes to stdout, one object a line. */
#include "cli/launch/show.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* --- which ranks are shown --- */

/* Reads one "4" or "4-7" at *at, and moves *at past it and its comma. */
static bool next_range(const char **at, long *from, long *to) {
    char *end;
    if (!isdigit((unsigned char)**at)) return false;
    *from = *to = strtol(*at, &end, 10);
    if (*end == '-') {
        if (!isdigit((unsigned char)end[1])) return false;
        *to = strtol(end + 1, &end, 10);
    }
    if (*end == ',' && end[1]) end++;
    *at = end;
    return *from <= *to;
}

bool launch_tail_is_good(const char *tail) {
    long from, to;
    if (!strcmp(tail, "all") || !strcmp(tail, "none")) return true;
    while (next_range(&tail, &from, &to))
        if (!*tail) return true;
    return false;
}

bool launch_tail_has(const char *tail, int rank) {
    long from, to;
    if (!strcmp(tail, "all")) return true;
    while (next_range(&tail, &from, &to))
        if (rank >= from && rank <= to) return true;
    return false;
}

long launch_tail_last(const char *tail) {
    long from, to, last = -1;
    while (next_range(&tail, &from, &to))
        if (to > last) last = to;
    return last;
}

/* --- while it runs --- */

static void on_start(void *context, int first_rank, int count, int size, const char *scheduler,
                     const char *log_dir) {
    const launch_show *show = context;
    if (show->json) {
        cli_json json;
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "event", "start");
        cli_json_integer(&json, "first_rank", first_rank);
        cli_json_integer(&json, "ranks", count);
        cli_json_integer(&json, "size", size);
        cli_json_text(&json, "scheduler", scheduler);
        cli_json_text(&json, "logs", *log_dir ? log_dir : NULL);
        cli_json_end(&json);
        return;
    }
    char ranks[64];
    if (count == size)
        snprintf(ranks, sizeof ranks, "%d %s", size, size == 1 ? "rank" : "ranks");
    else if (count == 1)
        snprintf(ranks, sizeof ranks, "rank %d of %d", first_rank, size);
    else
        snprintf(ranks, sizeof ranks, "ranks %d to %d of %d", first_rank, first_rank + count - 1,
                 size);
    cli_say_dim(stderr, "weft: %s, scheduler at %s%s%s", ranks, scheduler,
                *log_dir ? ", logs in " : "", log_dir);
    cli_say(stderr, "\n");
}

static void on_line(void *context, int rank, weft_launch_stream stream, const char *text,
                    size_t bytes) {
    const launch_show *show = context;
    FILE *to = stream == WEFT_LAUNCH_ERRORS ? stderr : stdout;
    if (!launch_tail_has(show->tail, rank)) return;
    if (show->json) {
        cli_json json;
        cli_json_begin(&json, stdout);
        cli_json_text(&json, "event", "line");
        cli_json_integer(&json, "rank", rank);
        cli_json_text(&json, "stream", stream == WEFT_LAUNCH_ERRORS ? "errors" : "output");
        cli_json_bytes(&json, "text", text, bytes);
        cli_json_end(&json);
        return;
    }
    flockfile(to);
    if (show->prefix) {
        cli_say_dim(to, "[rank %d]", rank);
        cli_say(to, " ");
    }
    cli_pass_on(to, text, bytes);
    cli_pass_on(to, "\n", 1);
    fflush(to);
    funlockfile(to);
}

static void on_note(void *context, const char *text) {
    (void)context;
    cli_say(stderr, "weft: note: %s\n", text);
}

weft_launch_events launch_show_events(launch_show *show) {
    return (weft_launch_events){
        .context = show, .start = on_start, .line = on_line, .note = on_note};
}

/* --- how it ended --- */

/* Prints each line of a text after two blanks. */
static void show_indented(const char *text) {
    while (*text) {
        size_t length = strcspn(text, "\n");
        cli_say(stderr, "  %.*s\n", (int)length, text);
        text += length;
        if (*text) text++;
    }
}

static void show_table(const weft_launch_result *r) {
    if (!*r->table) return;
    cli_say_bold(stderr, "where each rank stood:");
    cli_say(stderr, "\n");
    show_indented(r->table);
}

static void show_failure(const launch_show *show, const weft_launch_result *r) {
    if (*r->abort_reason) cli_say(stderr, "weft: %s\n", r->abort_reason);
    show_table(r);
    if (r->failed_rank < 0) return;
    bool shown = launch_tail_has(show->tail, r->failed_rank); /* then its lines stand above */
    if (!shown && *r->last_lines) {
        cli_say_bold(stderr, "the last lines of rank %d%s%s:", r->failed_rank,
                     *r->log ? ", from " : "", r->log);
        cli_say(stderr, "\n");
        show_indented(r->last_lines);
    } else if (*r->log) {
        cli_say(stderr, "its log: %s\n", r->log);
    }
}

static void show_json(const weft_launch_result *r, weft_status status) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "event", "end");
    cli_json_text(&json, "status", weft_status_text(status));
    cli_json_text(&json, "error", status < 0 ? weft_error_message() : NULL);
    if (r->failed_rank >= 0) {
        cli_json_integer(&json, "failed_rank", r->failed_rank);
        cli_json_integer(&json, r->signal ? "signal" : "exit_code",
                         r->signal ? r->signal : r->exit_code);
        cli_json_text(&json, "log", *r->log ? r->log : NULL);
        cli_json_text(&json, "last_lines", r->last_lines);
    }
    if (*r->abort_reason) cli_json_text(&json, "verdict", r->abort_reason);
    if (*r->table) cli_json_text(&json, "table", r->table);
    cli_json_end(&json);
}

void launch_show_end(const launch_show *show, const weft_launch_result *result,
                     weft_status status) {
    if (show->json) {
        show_json(result, status);
    } else if (status == WEFT_E_STOPPED) {
        cli_say(stderr, "weft: %s; all processes have ended\n", weft_error_message());
        if (result->failed_rank >= 0) show_table(result); /* the request came to a rank */
    } else if (status < 0) {
        (void)cli_failed();
        show_failure(show, result);
    }
}
