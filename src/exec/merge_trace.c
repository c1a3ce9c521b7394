/* Puts traces of one job together. Ranks of one host have one monotonic clock. Clocks of unlike
 * hosts are set by the exchanges before steps, which all ranks leave at about the same time: the
 * median of the differences counts. Without common steps the hosts' real-time clocks have to do.
 *
 * Traces that weft has written have one event a line, so lines are passed on with another time. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "base/text.h"
#include "exec/exec.h"
#include "weft/session.h"

static const int64_t TRACE_MAX = (int64_t)8 << 30;
static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                  tail[] = "\n],\"otherData\":", of_time[] = ",\"ts\":";

typedef struct merged_trace {
    const char *path;
    char *text;        /* of the file */
    const char *lines; /* the events, up to `end` */
    const char *end;
    const char *host; /* lies in the arena */
    int64_t dropped, monotonic_ns, unix_ns;
    int64_t meetings[WEFTI_TRACE_MEETINGS][2]; /* step, ns */
    int meeting_count;
    int64_t shift_ns; /* of its times, in the trace of all */
} merged_trace;

typedef struct merging {
    merged_trace *parts;
    int count;
    wefti_arena *arena;
} merging;

/* ---- reading ---- */

static weft_status read_meetings(const wefti_json *other, merged_trace *p) {
    const wefti_json *list;
    WEFT_TRY(wefti_json_array(other, "meetings", &list));
    WEFTI_JSON_EACH(item, list) {
        const wefti_json *first = item->kind == WEFTI_JSON_ARRAY ? item->as.child : NULL;
        const wefti_json *second = first ? first->next : NULL;
        WEFT_REQUIRE(second && first->kind == WEFTI_JSON_INT && second->kind == WEFTI_JSON_INT,
                     WEFT_E_CORRUPT, "meetings has an item that is no pair of whole numbers");
        if (p->meeting_count == WEFTI_TRACE_MEETINGS) break;
        p->meetings[p->meeting_count][0] = first->as.integer;
        p->meetings[p->meeting_count++][1] = second->as.integer;
    }
    return WEFT_OK;
}

static weft_status check_time(const char *key, int64_t ns) {
    WEFT_REQUIRE(ns > -(INT64_MAX / 4) && ns < INT64_MAX / 4, WEFT_E_CORRUPT, "%s is %lld", key,
                 (long long)ns);
    return WEFT_OK;
}

static weft_status read_end(wefti_arena *arena, const char *json, int64_t bytes, merged_trace *p) {
    static const wefti_json_limits limits = {
        .depth = 4, .members = 16, .array_items = WEFTI_TRACE_MEETINGS};
    const wefti_json *other;
    WEFT_TRY(wefti_json_parse(arena, json, bytes, &limits, &other));
    WEFT_TRY(wefti_json_int(other, "dropped", &p->dropped));
    WEFT_TRY(wefti_json_text(other, "host", &p->host));
    WEFT_TRY(wefti_json_int(other, "monotonic_ns", &p->monotonic_ns));
    WEFT_TRY(wefti_json_int(other, "unix_ns", &p->unix_ns));
    WEFT_TRY(check_time("monotonic_ns", p->monotonic_ns));
    WEFT_TRY(check_time("unix_ns", p->unix_ns));
    WEFT_TRY(read_meetings(other, p));
    for (int i = 0; i < p->meeting_count; i++) WEFT_TRY(check_time("meetings", p->meetings[i][1]));
    return WEFT_OK;
}

/* The last place of `what` in the text. */
static const char *find_last(const char *text, int64_t bytes, const char *what) {
    const int64_t length = (int64_t)strlen(what);
    for (int64_t at = bytes - length; at >= 0; at--)
        if (!memcmp(text + at, what, (size_t)length)) return text + at;
    return NULL;
}

static weft_status read_text(wefti_arena *arena, int64_t bytes, merged_trace *p) {
    const char *last = find_last(p->text, bytes, tail);
    WEFT_REQUIRE(!strncmp(p->text, head, sizeof head - 1) && last &&
                     last + 1 >= p->text + sizeof head - 1 &&
                     bytes - (last - p->text) > (int64_t)sizeof tail + 2 &&
                     !memcmp(p->text + bytes - 2, "}\n", 2),
                 WEFT_E_CORRUPT, "it is no complete trace that weft has written");
    p->lines = p->text + sizeof head - 1;
    p->end = last;
    const char *json = last + sizeof tail - 1;
    return read_end(arena, json, p->text + bytes - 2 - json, p);
}

static weft_status read_part(merging *m, merged_trace *p) {
    int64_t bytes;
    WEFT_TRY(wefti_file_read(p->path, TRACE_MAX, &p->text, &bytes));
    weft_status status = read_text(m->arena, bytes, p);
    return status < 0 ? wefti_prefix(status, "%s", p->path) : WEFT_OK;
}

/* ---- clocks ---- */

static int compare(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The shift of times of `p` that brings its meetings to those of `base`. */
static bool by_meetings(const merged_trace *base, const merged_trace *p, int64_t *out) {
    int64_t shifts[WEFTI_TRACE_MEETINGS];
    size_t count = 0;
    for (int i = 0; i < p->meeting_count; i++)
        for (int k = 0; k < base->meeting_count; k++) {
            if (base->meetings[k][0] != p->meetings[i][0]) continue;
            shifts[count++] = base->meetings[k][1] - p->meetings[i][1];
            break;
        }
    if (!count) return false;
    qsort(shifts, count, sizeof *shifts, compare);
    *out = shifts[count / 2];
    return true;
}

/* The trace of all begins with the earliest part. */
static void set_clocks(merging *m) {
    const merged_trace *base = &m->parts[0];
    int64_t least = 0;
    for (int i = 1; i < m->count; i++) {
        merged_trace *p = &m->parts[i];
        if (*p->host && !strcmp(p->host, base->host))
            p->shift_ns = p->monotonic_ns - base->monotonic_ns;
        else if (!by_meetings(base, p, &p->shift_ns))
            p->shift_ns = p->unix_ns - base->unix_ns;
        if (p->shift_ns < least) least = p->shift_ns;
    }
    for (int i = 0; i < m->count; i++) m->parts[i].shift_ns -= least;
}

/* ---- writing ---- */

/* Microseconds with three digits behind the point. */
static bool read_time(const char *at, const char *end, const char **out_end, int64_t *out) {
    int64_t whole = 0;
    const char *first = at;
    for (; at < end && *at >= '0' && *at <= '9' && at - first < 15; at++)
        whole = whole * 10 + (*at - '0');
    if (at == first || end - at < 4 || *at != '.') return false;
    for (int i = 1; i <= 3; i++) {
        if (at[i] < '0' || at[i] > '9') return false;
        whole = whole * 10 + (at[i] - '0');
    }
    *out = whole;
    *out_end = at + 4;
    return true;
}

static weft_status add_line(const merged_trace *p, const char *line, const char *end,
                            wefti_text *out) {
    const char *ts = line, *behind;
    int64_t ns;
    WEFT_REQUIRE(end - line > 8 && !memcmp(line, "{\"ph\":\"", 7) && end[-1] == '}', WEFT_E_CORRUPT,
                 "%s: a line is no event that weft has written: %.*s", p->path,
                 (int)(end - line < 60 ? end - line : 60), line);
    while (ts < end &&
           (end - ts < (int64_t)sizeof of_time || memcmp(ts, of_time, sizeof of_time - 1) != 0))
        ts++;
    if (ts == end) { /* a name of a track */
        wefti_text_add_bytes(out, line, end - line);
        return WEFT_OK;
    }
    ts += sizeof of_time - 1;
    WEFT_REQUIRE(read_time(ts, end, &behind, &ns), WEFT_E_CORRUPT,
                 "%s: an event has no time in microseconds: %.*s", p->path,
                 (int)(end - line < 60 ? end - line : 60), line);
    ns += p->shift_ns;
    wefti_text_add_bytes(out, line, ts - line);
    wefti_text_add(out, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
    wefti_text_add_bytes(out, behind, end - behind);
    return WEFT_OK;
}

static weft_status add_lines(const merged_trace *p, bool *first, wefti_text *out) {
    for (const char *line = p->lines; line < p->end;) {
        const char *end = memchr(line, '\n', (size_t)(p->end - line));
        if (!end) end = p->end;
        const char *last = end > line && end[-1] == ',' ? end - 1 : end;
        if (last > line) {
            wefti_text_add(out, *first ? "" : ",\n");
            *first = false;
            WEFT_TRY(add_line(p, line, last, out));
        }
        line = end + 1;
    }
    return WEFT_OK;
}

static void add_end(const merging *m, wefti_text *out) {
    const merged_trace *base = &m->parts[0];
    int64_t dropped = 0;
    for (int i = 0; i < m->count; i++) dropped += m->parts[i].dropped;
    wefti_text_add(out, "%s{\"dropped\":%" PRId64 ",\"host\":", tail, dropped);
    wefti_json_quote(out, base->host);
    wefti_text_add(out, ",\"monotonic_ns\":%" PRId64 ",\"unix_ns\":%" PRId64 ",\"meetings\":[",
                   base->monotonic_ns - base->shift_ns, base->unix_ns - base->shift_ns);
    for (int i = 0; i < base->meeting_count; i++)
        wefti_text_add(out, "%s[%" PRId64 ",%" PRId64 "]", i ? "," : "", base->meetings[i][0],
                       base->meetings[i][1] + base->shift_ns);
    wefti_text_add(out, "]}}\n");
}

static weft_status merge(merging *m, const char *out) {
    wefti_text text = {0};
    bool first = true;
    weft_status status = WEFT_OK;
    for (int i = 0; i < m->count && status >= 0; i++) status = read_part(m, &m->parts[i]);
    if (status >= 0) set_clocks(m);
    wefti_text_add(&text, "%s", head);
    for (int i = 0; i < m->count && status >= 0; i++)
        status = add_lines(&m->parts[i], &first, &text);
    if (status < 0) {
        wefti_text_free(&text);
        return status;
    }
    add_end(m, &text);
    const int64_t bytes = text.used;
    char *data = wefti_text_take(&text);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for a trace of %d files", m->count);
    status = wefti_file_write(out, data, (size_t)bytes);
    wefti_free(data);
    return status;
}

weft_status weft_trace_merge(const char *const *files, int count, const char *out) {
    merging m = {.count = count};
    WEFT_REQUIRE(files && count > 0 && out && *out, WEFT_E_ARG,
                 "weft_trace_merge needs traces and a file to write");
    WEFT_NEW_ARRAY(m.parts, merged_trace, count);
    weft_status status = wefti_arena_create(&m.arena);
    for (int i = 0; i < count; i++) m.parts[i].path = files[i];
    if (status >= 0) status = merge(&m, out);
    for (int i = 0; i < count; i++) wefti_free(m.parts[i].text);
    wefti_free(m.parts);
    wefti_arena_destroy(m.arena);
    return status < 0 ? wefti_note(status, __func__, __FILE__, __LINE__) : WEFT_OK;
}
