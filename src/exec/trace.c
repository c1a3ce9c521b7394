/* Traces in the Chrome JSON format ("Trace Event Format", complete events), which Perfetto opens.
 * Events stay in memory during the run and are written at the end. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/json/json.h"
#include "base/text.h"
#include "exec/exec.h"

typedef struct event {
    char name[72];
    char category[24];
    int track; /* COUNTER: a counter's value, in `bytes` */
    int64_t begin_ns, end_ns;
    double flops, bytes;
} event;

/* Viewers show events of a track one after the other or one in the other. Transfers that overlap
 * otherwise get tracks of their own, up to WEFTI_TRACK_LINES. */
enum { COUNTER = -1 };

/* Events of one device. Only that device's thread writes them. */
typedef struct lane {
    int32_t number; /* of the device, in the file */
    char *name;     /* NULL: "device <number>" */
    event *events;
    int64_t count, capacity, dropped;
    bool runs;                         /* it has events of the run */
    int lines;                         /* tracks of communication */
    int64_t end_ns[WEFTI_TRACK_LINES]; /* of the last event of each */
} lane;

typedef struct meeting {
    int64_t step, at_ns;
} meeting;

struct wefti_trace {
    char *path;
    meeting meetings[WEFTI_TRACE_MEETINGS];
    int meeting_count;
    wefti_trace_clock clock;
    int32_t devices;
    lane *lanes;
};

enum { MAX_EVENTS = 2000000 }; /* of all devices */
static const char NOTHING[] = "{\"traceEvents\":[]}\n";

static void discard(wefti_trace *t) {
    for (int32_t d = 0; t->lanes && d < t->devices; d++) {
        wefti_free(t->lanes[d].events);
        wefti_free(t->lanes[d].name);
    }
    wefti_free(t->lanes);
    wefti_free(t->path);
    wefti_free(t);
}

weft_status wefti_trace_open(const char *path, int32_t devices, wefti_trace_clock clock,
                             wefti_trace **out) {
    wefti_trace *t;
    WEFT_NEW(t, wefti_trace);
    t->path = wefti_strdup(path);
    t->lanes = wefti_calloc((size_t)devices, sizeof *t->lanes);
    t->devices = devices;
    t->clock = clock;
    if (!t->path || !t->lanes) {
        discard(t);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a trace");
    }
    for (int32_t d = 0; d < devices; d++) t->lanes[d].number = d;
    /* write an empty trace now, so that a bad path fails before the run */
    weft_status status = wefti_file_write(path, NOTHING, sizeof NOTHING - 1);
    if (status < 0) {
        discard(t);
        return wefti_prefix(status, "the trace");
    }
    *out = t;
    return WEFT_OK;
}

/* The length of the UTF-8 character at `from`; 0 if it is invalid or incomplete. */
static size_t character(const char *from) {
    unsigned char first = (unsigned char)*from;
    size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    char piece[5] = {0};
    for (size_t i = 0; i < length && from[i]; i++) piece[i] = from[i];
    return wefti_utf8_valid(piece) && strlen(piece) == length ? length : 0;
}

/* Copies text that JSON takes without escapes. Any other byte becomes '_'. Copies whole characters
 * only. */
static void copy_clean(char *to, size_t bytes, const char *from) {
    size_t used = 0;
    while (*from) {
        size_t length = character(from), step = length ? length : 1;
        if (used + step >= bytes) break;
        bool plain = length && *from != '"' && *from != '\\' && (unsigned char)*from >= 32;
        if (plain)
            memcpy(to + used, from, length);
        else
            to[used] = '_';
        used += step;
        from += step;
    }
    to[used] = '\0';
}

/* The track of a transfer: of those that are free at its begin, the one that is free for the
 * shortest time. */
static int find_line(lane *l, int64_t begin_ns, int64_t end_ns) {
    int best = -1;
    for (int i = 0; i < l->lines; i++)
        if (l->end_ns[i] <= begin_ns && (best < 0 || l->end_ns[i] > l->end_ns[best])) best = i;
    if (best < 0) best = l->lines < WEFTI_TRACK_LINES ? l->lines++ : WEFTI_TRACK_LINES - 1;
    l->end_ns[best] = end_ns;
    return WEFTI_TRACK_COMMUNICATION + best;
}

/* Of the run there are few events, which always find room. */
static event *add_event(wefti_trace *t, int32_t device, int track) {
    lane *l = &t->lanes[device];
    const bool full = l->count >= MAX_EVENTS / t->devices && track != WEFTI_TRACK_RUN;
    if (full || WEFT_GROW(l->events, l->count, l->capacity) < 0) {
        l->dropped++;
        return NULL;
    }
    return &l->events[l->count++];
}

void wefti_trace_event(wefti_trace *t, int32_t device, int track, const char *name,
                       const char *category, int64_t begin_ns, int64_t end_ns, double flops,
                       double bytes) {
    event *e = add_event(t, device, track);
    if (!e) return;
    t->lanes[device].runs |= track == WEFTI_TRACK_RUN;
    copy_clean(e->name, sizeof e->name, name);
    copy_clean(e->category, sizeof e->category, category);
    e->track =
        track == WEFTI_TRACK_COMMUNICATION ? find_line(&t->lanes[device], begin_ns, end_ns) : track;
    e->begin_ns = begin_ns;
    e->end_ns = end_ns;
    e->flops = flops;
    e->bytes = bytes;
}

void wefti_trace_counter(wefti_trace *t, int32_t device, const char *name, int64_t at_ns,
                         double value) {
    event *e = add_event(t, device, COUNTER);
    if (!e) return;
    *e = (event){.track = COUNTER, .begin_ns = at_ns, .end_ns = at_ns, .bytes = value};
    copy_clean(e->name, sizeof e->name, name);
}

void wefti_trace_meeting(wefti_trace *t, int64_t step, int64_t at_ns) {
    if (t->meeting_count < WEFTI_TRACE_MEETINGS)
        t->meetings[t->meeting_count++] = (meeting){step, at_ns};
}

weft_status wefti_trace_name(wefti_trace *t, int32_t device, int32_t number, const char *name) {
    const size_t bytes = strlen(name) + 1;
    lane *l = &t->lanes[device];
    char *clean = wefti_calloc(bytes, 1);
    WEFT_REQUIRE(clean, WEFT_E_NOMEM, "no memory for a trace");
    copy_clean(clean, bytes, name);
    wefti_free(l->name);
    l->name = clean;
    l->number = number;
    return WEFT_OK;
}

static void print_track(wefti_text *text, const lane *l, int track, const char *name) {
    wefti_text_add(text,
                   ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
                   "\"args\":{\"name\":\"%s\"}}",
                   l->number, track, name);
}

/* In terms of the format, a device is a process and its tracks are threads. */
static void print_names(wefti_text *text, const lane *l, bool first) {
    const int lines = l->lines > 1 ? l->lines : 1;
    char own[32];
    (void)snprintf(own, sizeof own, "device %d", l->number);
    wefti_text_add(text,
                   "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":"
                   "\"%s\"}}",
                   first ? "" : ",\n", l->number, l->name ? l->name : own);
    print_track(text, l, WEFTI_TRACK_CELLS, "cells");
    print_track(text, l, WEFTI_TRACK_KERNELS, "kernels");
    for (int i = 0; i < lines; i++)
        print_track(text, l, WEFTI_TRACK_COMMUNICATION + i, "communication");
    if (!l->runs) return;
    print_track(text, l, WEFTI_TRACK_RUN, "run");
    wefti_text_add(text,
                   ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,"
                   "\"args\":{\"sort_index\":-1}}",
                   l->number, WEFTI_TRACK_RUN);
}

static void print_event(wefti_text *text, int32_t device, const event *e, int64_t origin) {
    int64_t from = e->begin_ns - origin, ns = e->end_ns - e->begin_ns;
    double us = (double)ns / 1e3;
    char flops[32], bytes[32];
    if (e->track == COUNTER) {
        wefti_text_add(text,
                       ",\n{\"ph\":\"C\",\"name\":\"%s\",\"pid\":%d,\"ts\":%" PRId64
                       ".%03d,\"args\":{\"bytes\":%.0f}}",
                       e->name, device, from / 1000, (int)(from % 1000), e->bytes);
        return;
    }
    wefti_text_add(text,
                   ",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,"
                   "\"ts\":%" PRId64 ".%03d,\"dur\":%" PRId64 ".%03d",
                   e->name, e->category, device, e->track, from / 1000, (int)(from % 1000),
                   ns / 1000, (int)(ns % 1000));
    if (e->track == WEFTI_TRACK_KERNELS && us > 0)
        wefti_text_add(text, ",\"args\":{\"GFLOP/s\":%s,\"GB/s\":%s}",
                       wefti_real_text(e->flops / us / 1e3, 4, 4, flops),
                       wefti_real_text(e->bytes / us / 1e3, 4, 4, bytes));
    if (e->track >= WEFTI_TRACK_COMMUNICATION && e->track < WEFTI_TRACK_RUN)
        wefti_text_add(text, ",\"args\":{\"bytes\":%.0f}", e->bytes);
    wefti_text_add(text, "}");
}

static int64_t origin_of(const wefti_trace *t) {
    int64_t origin = INT64_MAX;
    for (int32_t d = 0; d < t->devices; d++)
        for (int64_t i = 0; i < t->lanes[d].count; i++)
            if (t->lanes[d].events[i].begin_ns < origin) origin = t->lanes[d].events[i].begin_ns;
    return origin == INT64_MAX ? wefti_now_ns() : origin;
}

/* This boot of the host: processes with one have one monotonic clock. */
static void read_boot(char out[64]) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    out[0] = 0;
    if (!file) return;
    if (fscanf(file, "%63[0-9a-f-]", out) != 1) out[0] = 0;
    (void)fclose(file);
}

/* What puts traces together (merge_trace.c): the host's clock at the trace's time 0, by the
 * monotonic and by the real-time clock, and when the ranks met, in ns of the trace. */
static void print_end(wefti_text *text, const wefti_trace *t, int64_t origin, int64_t dropped) {
    char boot[64];
    struct timespec now;
    if (t->clock == WEFTI_TRACE_SIMULATED) {
        wefti_text_add(text, "\n],\"otherData\":{\"dropped\":%" PRId64 "}}\n", dropped);
        return;
    }
    read_boot(boot);
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t unix_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    wefti_text_add(text,
                   "\n],\"otherData\":{\"dropped\":%" PRId64 ",\"host\":\"%s\",\"monotonic_ns\":"
                   "%" PRId64 ",\"unix_ns\":%" PRId64 ",\"meetings\":[",
                   dropped, boot, origin, unix_ns - (wefti_now_ns() - origin));
    for (int i = 0; i < t->meeting_count; i++)
        wefti_text_add(text, "%s[%" PRId64 ",%" PRId64 "]", i ? "," : "", t->meetings[i].step,
                       t->meetings[i].at_ns - origin);
    wefti_text_add(text, "]}}\n");
}

weft_status wefti_trace_close(wefti_trace *t) {
    if (!t) return WEFT_OK;
    wefti_text text = {0};
    int64_t origin = origin_of(t), dropped = 0;
    bool first = true;
    wefti_text_add(&text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int32_t d = 0; d < t->devices; d++) {
        if (t->lanes[d].count == 0) continue; /* of another process */
        print_names(&text, &t->lanes[d], first);
        first = false;
    }
    for (int32_t d = 0; d < t->devices; d++) {
        const lane *l = &t->lanes[d];
        for (int64_t i = 0; i < l->count; i++) print_event(&text, l->number, &l->events[i], origin);
        dropped += l->dropped;
    }
    print_end(&text, t, origin, dropped);
    int64_t bytes = text.used;
    char *data = wefti_text_take(&text);
    weft_status status = data ? wefti_file_write(t->path, data, (size_t)bytes)
                              : WEFT_RAISE(WEFT_E_NOMEM, "no memory to write the trace");
    wefti_free(data);
    discard(t);
    return status;
}
