/* Metrics of a run: JSON lines (the record) and TensorBoard event files (for viewing).
 *
 * A TensorBoard file is a sequence of records: u64 length, its masked CRC32C, the bytes, their
 * masked CRC32C. The bytes are a protobuf `Event`: 1 wall time (double), 2 step (varint), 3 file
 * version (string), 5 summary {1 value {1 tag, 2 float}}. One writer appends to a file. Readers
 * tolerate a torn last record. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/digest/digest.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/text.h"
#include "train/loop/loop.h"

struct wefti_metrics {
    FILE *lines, *events; /* NULL: not requested, or given up after a failure */
    char *lines_path, *events_path;
    const char *units; /* the unit of throughput: "tokens", "samples" */
    char failure[512]; /* the first one */
};

/* Writes out the buffer. After a failure the file is given up: a record must not follow half of
 * another one. */
static weft_status flush(wefti_metrics *m, FILE **file, const char *path) {
    if (!ferror(*file) && WEFTI_DISK(fflush(*file)) == 0) return WEFT_OK;
    weft_status status = WEFT_RAISE(WEFT_E_IO, "cannot write %s: %s", path, strerror(errno));
    if (!m->failure[0]) (void)snprintf(m->failure, sizeof m->failure, "%s", weft_error_message());
    (void)fclose(*file);
    *file = NULL;
    return status;
}

/* ---- TensorBoard ---- */

typedef struct record {
    unsigned char bytes[512];
    size_t used;
} record;

static void put(record *r, const void *data, size_t bytes) {
    if (r->used + bytes > sizeof r->bytes) return; /* tags are short: never taken */
    memcpy(r->bytes + r->used, data, bytes);
    r->used += bytes;
}

static void put_varint(record *r, uint64_t value) {
    do {
        unsigned char byte = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
        put(r, &byte, 1);
        value >>= 7;
    } while (value);
}

static void put_key(record *r, unsigned field, unsigned wire) {
    put_varint(r, field << 3 | wire);
}

static void put_bytes(record *r, unsigned field, const void *data, size_t bytes) {
    put_key(r, field, 2);
    put_varint(r, bytes);
    put(r, data, bytes);
}

static double wall_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint32_t masked(const void *data, size_t bytes) {
    uint32_t crc = wefti_crc32c(0, data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static weft_status write_record(wefti_metrics *m, const record *event) {
    uint64_t length = event->used;
    uint32_t of_length = masked(&length, sizeof length),
             of_data = masked(event->bytes, event->used);
    fwrite(&length, sizeof length, 1, m->events);
    fwrite(&of_length, sizeof of_length, 1, m->events);
    fwrite(event->bytes, event->used, 1, m->events);
    fwrite(&of_data, sizeof of_data, 1, m->events);
    return flush(m, &m->events, m->events_path);
}

static record new_event(int64_t step) {
    record event = {.used = 0};
    double now = wall_time();
    put_key(&event, 1, 1);
    put(&event, &now, sizeof now);
    put_key(&event, 2, 0);
    put_varint(&event, (uint64_t)step);
    return event;
}

static weft_status scalar(wefti_metrics *m, int64_t step, const char *tag, double number) {
    if (!m->events || isnan(number)) return WEFT_OK;
    record value = {.used = 0}, summary = {.used = 0}, event = new_event(step);
    float simple = (float)number;
    put_bytes(&value, 1, tag, strlen(tag));
    put_key(&value, 2, 5);
    put(&value, &simple, sizeof simple);
    put_bytes(&summary, 1, value.bytes, value.used);
    put_bytes(&event, 5, summary.bytes, summary.used);
    return write_record(m, &event);
}

/* The file of this run. Another run of the same process may have begun in the same second. */
static weft_status create_events(wefti_metrics *m, const char *directory) {
    enum { ATTEMPTS = 1000 };
    char host[128] = "host";
    (void)gethostname(host, sizeof host - 1);
    for (int number = 0; !m->events && number < ATTEMPTS; number++) {
        wefti_free(m->events_path);
        m->events_path = wefti_format("%s/events.out.tfevents.%010lld.%s.%d.%d", directory,
                                      (long long)wall_time(), host, (int)getpid(), number);
        WEFT_REQUIRE(m->events_path, WEFT_E_NOMEM, "no memory for a file name");
        m->events = WEFTI_DISK_POINTER(fopen(m->events_path, "wbxe"));
        if (!m->events && errno != EEXIST) break;
    }
    WEFT_REQUIRE(m->events, WEFT_E_IO, "cannot write train.tensorboard %s: %s", m->events_path,
                 strerror(errno));
    return WEFT_OK;
}

static weft_status open_events(wefti_metrics *m, const char *directory) {
    weft_status status = wefti_dir_make(directory);
    if (status < 0) return wefti_prefix(status, "train.tensorboard");
    WEFT_TRY(create_events(m, directory));
    record version = new_event(0);
    put_bytes(&version, 3, "brain.Event:2", 13);
    return write_record(m, &version);
}

/* ---- JSON lines ---- */

/* If a crash or a full disk has cut off the last line, ends that line first, so that the next line
 * stays intact. */
static void end_cut_line(wefti_metrics *m) {
    struct stat info;
    bool file = fstat(fileno(m->lines), &info) == 0 && S_ISREG(info.st_mode);
    FILE *before = file ? fopen(m->lines_path, "re") : NULL;
    int last = before && fseek(before, -1, SEEK_END) == 0 ? fgetc(before) : EOF;
    if (last != EOF && last != '\n') (void)fputc('\n', m->lines); /* a failure shows when flushed */
    if (before) (void)fclose(before);
}

static weft_status open_lines(wefti_metrics *m, const char *path) {
    m->lines_path = wefti_strdup(path);
    WEFT_REQUIRE(m->lines_path, WEFT_E_NOMEM, "no memory for a file name");
    m->lines = WEFTI_DISK_POINTER(fopen(path, "ae"));
    WEFT_REQUIRE(m->lines, WEFT_E_IO, "cannot write train.log %s: %s", path, strerror(errno));
    end_cut_line(m);
    return WEFT_OK;
}

static weft_status end_line(wefti_metrics *m) {
    fputs("}\n", m->lines);
    return flush(m, &m->lines, m->lines_path);
}

static void field(wefti_metrics *m, const char *name, double value) {
    char text[32];
    if (isfinite(value))
        fprintf(m->lines, ", \"%s\": %s", name, wefti_real_text(value, 9, 9, text));
}

/* ---- reading ---- */

enum { TAIL_BYTES = 64 << 10 };

static void take_line(const char *line, wefti_metrics_last *out) {
    long long step;
    if (sscanf(line, "{\"step\": %lld", &step) != 1) return;
    if (strstr(line, "\"validation_loss\"") || strstr(line, "\"accuracy\""))
        out->validation = step;
    else
        out->step = step;
}

wefti_metrics_last wefti_metrics_read_last(const char *path) {
    wefti_metrics_last last = {-1, -1};
    FILE *file = path[0] ? fopen(path, "re") : NULL;
    char *tail = file ? wefti_calloc(TAIL_BYTES + 1, 1) : NULL;
    if (tail) {
        long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
        (void)fseek(file, size > TAIL_BYTES ? size - TAIL_BYTES : 0, SEEK_SET);
        tail[fread(tail, 1, TAIL_BYTES, file)] = 0;
        for (char *line = tail, *end; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            take_line(line, &last); /* the first one may be cut off, and then does not count */
        }
    }
    wefti_free(tail);
    if (file) (void)fclose(file);
    return last;
}

/* ---- the interface ---- */

static void release(wefti_metrics *m) {
    wefti_free(m->lines_path);
    wefti_free(m->events_path);
    wefti_free(m);
}

weft_status wefti_metrics_open(const char *json_lines, const char *tensorboard, const char *units,
                               wefti_metrics **out) {
    wefti_metrics *m;
    WEFT_NEW(m, wefti_metrics);
    m->units = units;
    weft_status status = json_lines[0] ? open_lines(m, json_lines) : WEFT_OK;
    if (status == WEFT_OK && tensorboard[0]) status = open_events(m, tensorboard);
    if (status < 0) {
        if (m->lines) (void)fclose(m->lines);
        if (m->events) (void)fclose(m->events);
        release(m);
        return status;
    }
    *out = m;
    return WEFT_OK;
}

/* Seconds since the step before, by what the run did. */
static void parts(wefti_metrics *m, const double seconds[WEFT_TRAIN_PARTS]) {
    char text[32];
    fputs(", \"time\": {", m->lines);
    for (int p = 0, before = 0; p < WEFT_TRAIN_PARTS; p++) {
        if (!(seconds[p] > 0)) continue;
        fprintf(m->lines, "%s\"%s\": %s", before++ ? ", " : "",
                weft_train_part_text((weft_train_part)p), wefti_real_text(seconds[p], 6, 9, text));
    }
    fputs("}", m->lines);
}

static weft_status step_line(wefti_metrics *m, const weft_train_step *s) {
    if (!m->lines) return WEFT_OK;
    fprintf(m->lines, "{\"step\": %lld", (long long)s->step);
    field(m, "loss", s->loss);
    field(m, "learning_rate", s->learning_rate);
    field(m, "gradient_norm", s->gradient_norm);
    char speed[40];
    (void)snprintf(speed, sizeof speed, "%s_per_second", m->units);
    field(m, speed, s->tokens_per_second);
    field(m, "seconds", s->seconds);
    field(m, "mfu", s->mfu);
    fprintf(m->lines, ", \"memory_bytes\": %lld", (long long)s->observed_peak_bytes);
    if (s->resident_bytes > 0)
        fprintf(m->lines, ", \"resident_bytes\": %lld", (long long)s->resident_bytes);
    parts(m, s->part_seconds);
    return end_line(m);
}

static weft_status step_events(wefti_metrics *m, const weft_train_step *s) {
    WEFT_TRY(scalar(m, s->step, "train/loss", s->loss));
    WEFT_TRY(scalar(m, s->step, "train/learning_rate", s->learning_rate));
    WEFT_TRY(scalar(m, s->step, "train/gradient_norm", s->gradient_norm));
    char speed[40];
    (void)snprintf(speed, sizeof speed, "train/%s_per_second", m->units);
    WEFT_TRY(scalar(m, s->step, "train/mfu", s->mfu));
    return scalar(m, s->step, speed, s->tokens_per_second);
}

weft_status wefti_metrics_step(wefti_metrics *m, const weft_train_step *s) {
    if (!m) return WEFT_OK;
    weft_status lines = step_line(m, s), events = step_events(m, s);
    return lines < 0 ? lines : events;
}

static weft_status validation_line(wefti_metrics *m, const weft_train_validation *v) {
    if (!m->lines) return WEFT_OK;
    fprintf(m->lines, "{\"step\": %lld", (long long)v->step);
    field(m, "validation_loss", v->loss);
    field(m, "accuracy", v->accuracy);
    field(m, "seconds", v->seconds);
    return end_line(m);
}

static weft_status validation_events(wefti_metrics *m, const weft_train_validation *v) {
    WEFT_TRY(scalar(m, v->step, "validation/loss", v->loss));
    return scalar(m, v->step, "validation/accuracy", v->accuracy);
}

weft_status wefti_metrics_validation(wefti_metrics *m, const weft_train_validation *v) {
    if (!m) return WEFT_OK;
    weft_status lines = validation_line(m, v), events = validation_events(m, v);
    return lines < 0 ? lines : events;
}

weft_status wefti_metrics_close(wefti_metrics *m) {
    if (!m) return WEFT_OK;
    weft_status status = WEFT_OK;
    if (m->failure[0]) status = WEFT_RAISE(WEFT_E_IO, "%s", m->failure);
    if (m->lines && fclose(m->lines) != 0 && status == WEFT_OK)
        status = WEFT_RAISE(WEFT_E_IO, "cannot write %s: %s", m->lines_path, strerror(errno));
    if (m->events && fclose(m->events) != 0 && status == WEFT_OK)
        status = WEFT_RAISE(WEFT_E_IO, "cannot write %s: %s", m->events_path, strerror(errno));
    release(m);
    return status;
}
