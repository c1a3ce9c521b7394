/* Where the time of a run goes: one clock, which is switched from part to part. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "train/training.h"

const char *weft_train_part_text(weft_train_part part) {
    static const char *const names[WEFT_TRAIN_PARTS] = {
        [WEFT_TRAIN_PART_START] = "start",
        [WEFT_TRAIN_PART_JOINING] = "joining",
        [WEFT_TRAIN_PART_OPENING] = "opening data",
        [WEFT_TRAIN_PART_BUILDING] = "building",
        [WEFT_TRAIN_PART_LOADING] = "loading",
        [WEFT_TRAIN_PART_DATA] = "data",
        [WEFT_TRAIN_PART_STEPS] = "steps",
        [WEFT_TRAIN_PART_WAITING] = "waiting for others",
        [WEFT_TRAIN_PART_VALIDATION] = "validation",
        [WEFT_TRAIN_PART_CHECKPOINTS] = "checkpoints",
        [WEFT_TRAIN_PART_RECOVERY] = "recovery",
        [WEFT_TRAIN_PART_SAVING] = "saving at the end",
        [WEFT_TRAIN_PART_OTHER] = "other"};
    return part >= 0 && part < WEFT_TRAIN_PARTS ? names[part] : "?";
}

/* The begin of a file of the kernel; "" if it cannot be read. */
static void read_kernel(const char *path, char *out, size_t room) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = file < 0 ? -1 : read(file, out, room - 1);
    out[bytes > 0 ? bytes : 0] = 0;
    if (file >= 0) (void)close(file);
}

/* Nanoseconds since this process began, from the kernel's start time of it (field 22 of
 * /proc/self/stat); 0: not known. */
static int64_t process_age(void) {
    char text[1024];
    read_kernel("/proc/self/stat", text, sizeof text);
    const char *at = strrchr(text, ')');
    int field = 2;
    for (; at && *at && field < 22; at++)
        if (*at == ' ') field++;
    if (!at || field < 22) return 0;
    const double ticks = (double)strtoull(at, NULL, 10);
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    const double age =
        (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - ticks / (double)sysconf(_SC_CLK_TCK);
    return age > 0 ? (int64_t)(age * 1e9) : 0;
}

int64_t wefti_resident_bytes(void) {
    char text[256];
    read_kernel("/proc/self/statm", text, sizeof text);
    const char *at = strchr(text, ' ');
    return at ? strtoll(at, NULL, 10) * sysconf(_SC_PAGESIZE) : 0;
}

/* If there is no memory for a span, the trace lacks it. */
static void add_span(wefti_training_time *c, weft_train_part part, int64_t begin, int64_t end) {
    if (!c->traced || end <= begin) return;
    if (WEFT_GROW(c->spans, c->span_count, c->span_room) < 0) {
        wefti_error_clear();
        return;
    }
    c->spans[c->span_count++] = (wefti_training_span){part, begin, end};
}

void wefti_training_begin_time(wefti_training *t, int64_t joining_ns) {
    wefti_training_time *c = &t->time;
    const int64_t now = wefti_now_ns(), age = process_age();
    if (joining_ns > age) joining_ns = age;
    c->begun_ns = now - age;
    c->since_ns = c->entered_ns = now;
    c->part = WEFT_TRAIN_PART_OTHER;
    c->ns[WEFT_TRAIN_PART_START] = age - joining_ns;
    c->ns[WEFT_TRAIN_PART_JOINING] = joining_ns;
    c->traced = t->events && t->events->trace;
    add_span(c, WEFT_TRAIN_PART_START, c->begun_ns, now);
}

/* All time up to now is counted. */
static int64_t count(wefti_training_time *c) {
    const int64_t now = wefti_now_ns();
    c->ns[c->part] += now - c->since_ns;
    c->since_ns = now;
    return now;
}

weft_train_part wefti_training_enter(wefti_training *t, weft_train_part part) {
    wefti_training_time *c = &t->time;
    const weft_train_part before = c->part;
    const int64_t now = count(c);
    if (before == part) return before;
    add_span(c, before, c->entered_ns, now);
    c->entered_ns = now;
    c->part = part;
    return before;
}

void wefti_training_move_time(wefti_training *t, weft_train_part from, weft_train_part to,
                              int64_t ns) {
    wefti_training_time *c = &t->time;
    if (ns > c->ns[from] - c->told_ns[from]) ns = c->ns[from] - c->told_ns[from];
    if (ns <= 0) return;
    c->ns[from] -= ns;
    c->ns[to] += ns;
}

void wefti_training_lap(wefti_training *t, double out[WEFT_TRAIN_PARTS]) {
    wefti_training_time *c = &t->time;
    (void)count(c);
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++) {
        out[p] = (double)(c->ns[p] - c->told_ns[p]) * 1e-9;
        c->told_ns[p] = c->ns[p];
    }
}

void wefti_training_total(wefti_training *t, double out[WEFT_TRAIN_PARTS]) {
    (void)count(&t->time);
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++) out[p] = (double)t->time.ns[p] * 1e-9;
}

double wefti_training_age(const wefti_training *t) {
    return (double)(wefti_now_ns() - t->time.begun_ns) * 1e-9;
}

void wefti_training_trace_parts(wefti_training *t) {
    wefti_training_time *c = &t->time;
    if (!c->traced || !t->built->session) return;
    (void)wefti_training_enter(t, WEFT_TRAIN_PART_OTHER);
    for (int64_t i = 0; i < c->span_count; i++)
        wefti_session_trace_run(t->built->session, weft_train_part_text(c->spans[i].part),
                                c->spans[i].begin_ns, c->spans[i].end_ns);
    for (int i = 0; i < c->meeting_count; i++)
        wefti_session_trace_meeting(t->built->session, c->meetings[i][0], c->meetings[i][1]);
    c->span_count = c->meeting_count = 0;
}

void wefti_training_meet(wefti_training *t) {
    wefti_training_time *c = &t->time;
    if (!c->traced || !t->setup.party.agreement || c->meeting_count == WEFTI_TRACE_MEETINGS) return;
    c->meetings[c->meeting_count][0] = t->progress.step + 1;
    c->meetings[c->meeting_count++][1] = wefti_now_ns();
}
