/* Logs of ranks (see the header). A line is written in one piece, so that lines of different
 * streams and ranks never mix. */
#include "launch/spawn/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"

enum {
    STREAMS = 2,
    LINE_MAX_BYTES = 1 << 16,
    LAST_BYTES = 8192,
    PIPE_MAX_BYTES = 1 << 20, /* /proc/sys/fs/pipe-max-size */
};

typedef struct line_buffer {
    int read_end, write_end; /* -1: closed */
    char *text;              /* [LINE_MAX_BYTES], of the line that has begun */
    size_t used;
} line_buffer;

struct wefti_log {
    int rank, file; /* -1: none */
    const weft_launch_events *events;
    char *path;
    line_buffer streams[STREAMS];
    char last[LAST_BYTES]; /* whole lines */
    size_t last_used;
};

static void close_one(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static weft_status open_file(wefti_log *log, const char *dir) {
    log->path = dir ? wefti_format("%s/rank-%d.log", dir, log->rank) : wefti_strdup("");
    WEFT_REQUIRE(log->path, WEFT_E_NOMEM, "no memory for a path");
    if (!dir) return WEFT_OK;
    log->file = WEFTI_DISK_WATCH(
        open(log->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
    WEFT_REQUIRE(log->file >= 0, WEFT_E_IO, "cannot write %s: %s", log->path, strerror(errno));
    return WEFT_OK;
}

static weft_status open_pipe(line_buffer *b) {
    int ends[2];
    if (!b->text) b->text = wefti_alloc(LINE_MAX_BYTES);
    WEFT_REQUIRE(b->text, WEFT_E_NOMEM, "no memory for lines");
    WEFT_REQUIRE(pipe2(ends, O_CLOEXEC) == 0, WEFT_E_IO, "cannot make a pipe: %s", strerror(errno));
    b->read_end = ends[0];
    b->write_end = ends[1];
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return WEFT_OK;
}

weft_status wefti_log_open(int rank, const char *dir, const weft_launch_events *events,
                           wefti_log **out) {
    wefti_log *log;
    weft_status status;
    WEFT_NEW(log, wefti_log);
    log->rank = rank;
    log->events = events;
    log->file = -1;
    for (int s = 0; s < STREAMS; s++) log->streams[s].read_end = log->streams[s].write_end = -1;
    WEFT_TRY_OR(err_close, status, open_file(log, dir));
    for (int s = 0; s < STREAMS; s++) WEFT_TRY_OR(err_close, status, open_pipe(&log->streams[s]));
    *out = log;
    return WEFT_OK;
err_close:
    wefti_log_close(log);
    return status;
}

weft_status wefti_log_reopen(wefti_log *log) {
    wefti_log_finish(log);
    for (int s = 0; s < STREAMS; s++) WEFT_TRY(open_pipe(&log->streams[s]));
    return WEFT_OK;
}

int wefti_log_end(const wefti_log *log, weft_launch_stream stream) {
    return log->streams[stream].write_end;
}

void wefti_log_started(wefti_log *log) {
    for (int s = 0; s < STREAMS; s++) close_one(&log->streams[s].write_end);
}

int wefti_log_fd(const wefti_log *log, weft_launch_stream stream) {
    return log->streams[stream].read_end;
}

/* --- a whole line --- */

/* A full disk ends the log, not the job. */
static void write_file(wefti_log *log, const char *text, size_t bytes) {
    for (size_t done = 0; done < bytes && log->file >= 0;) {
        ssize_t wrote = WEFTI_DISK_WATCH(write(log->file, text + done, bytes - done));
        if (wrote >= 0) {
            done += (size_t)wrote;
        } else if (errno != EINTR) {
            char note[512];
            (void)snprintf(note, sizeof note, "cannot write %.300s: %s; it ends here", log->path,
                           strerror(errno));
            close_one(&log->file);
            if (log->events->note) log->events->note(log->events->context, note);
        }
    }
}

/* Older lines make room; of a line that is too long for it, the beginning is kept. */
static void remember(wefti_log *log, const char *text, size_t bytes) {
    enum { LONGEST = LAST_BYTES / 4 };
    if (bytes > LONGEST) bytes = LONGEST;
    while (log->last_used + bytes + 1 > LAST_BYTES) {
        char *end = memchr(log->last, '\n', log->last_used);
        size_t gone = end ? (size_t)(end - log->last) + 1 : log->last_used;
        memmove(log->last, log->last + gone, log->last_used - gone);
        log->last_used -= gone;
    }
    for (size_t i = 0; i < bytes; i++) /* a zero would end the text */
        log->last[log->last_used++] = text[i] ? text[i] : ' ';
    log->last[log->last_used++] = '\n';
}

/* Whole lines, each with its newline, in one piece. */
static void take_block(wefti_log *log, int stream, const char *text, size_t bytes) {
    const weft_launch_events *e = log->events;
    const char *end = text + bytes;
    write_file(log, text, bytes);
    if (bytes > LAST_BYTES) log->last_used = 0;
    for (const char *next; text < end; text = next) {
        next = (const char *)memchr(text, '\n', (size_t)(end - text)) + 1;
        size_t length = (size_t)(next - text) - 1;
        if (end - text <= LAST_BYTES || next == end) remember(log, text, length);
        if (e->line) e->line(e->context, log->rank, (weft_launch_stream)stream, text, length);
    }
}

/* The line that has begun, ended here: by the end of the stream, or as it is too long. */
static void end_line(wefti_log *log, int stream) {
    line_buffer *b = &log->streams[stream];
    b->text[b->used] = '\n';
    take_block(log, stream, b->text, b->used + 1);
    b->used = 0;
}

static void take_lines(wefti_log *log, int stream) {
    line_buffer *b = &log->streams[stream];
    const char *end = memrchr(b->text, '\n', b->used);
    size_t from = end ? (size_t)(end - b->text) + 1 : 0;
    if (from) take_block(log, stream, b->text, from);
    memmove(b->text, b->text + from, b->used - from);
    b->used -= from;
    if (b->used == LINE_MAX_BYTES - 1) end_line(log, stream);
}

/* How many bytes came; 0: none now, or the stream has ended. */
static size_t read_once(wefti_log *log, int stream) {
    line_buffer *b = &log->streams[stream];
    ssize_t got = -1;
    errno = EINTR;
    while (b->read_end >= 0 && got < 0 && errno == EINTR)
        got = read(b->read_end, b->text + b->used, LINE_MAX_BYTES - 1 - b->used);
    if (b->read_end < 0 || (got < 0 && errno == EAGAIN)) return 0;
    if (got <= 0) {
        close_one(&b->read_end);
        if (b->used) end_line(log, stream);
        return 0;
    }
    b->used += (size_t)got;
    take_lines(log, stream);
    return (size_t)got;
}

void wefti_log_read(wefti_log *log, weft_launch_stream stream) {
    (void)read_once(log, (int)stream);
}

/* What a pipe holds, and no more, in case somebody writes into it still. */
void wefti_log_finish(wefti_log *log) {
    for (int s = 0; s < STREAMS; s++) {
        size_t taken = 0, got = 1;
        for (; got > 0 && taken <= PIPE_MAX_BYTES; taken += got) got = read_once(log, s);
        close_one(&log->streams[s].read_end);
        if (log->streams[s].used) end_line(log, s);
    }
}

const char *wefti_log_path(const wefti_log *log) {
    return log->path;
}

char *wefti_log_last(const wefti_log *log, int lines) {
    size_t from = log->last_used;
    for (int found = 0; from > 0; from--)
        if (log->last[from - 1] == '\n' && found++ == lines) break;
    return wefti_format("%.*s", (int)(log->last_used - from), log->last + from);
}

void wefti_log_close(wefti_log *log) {
    if (!log) return;
    for (int s = 0; s < STREAMS; s++) {
        close_one(&log->streams[s].read_end);
        close_one(&log->streams[s].write_end);
        wefti_free(log->streams[s].text);
    }
    close_one(&log->file);
    wefti_free(log->path);
    wefti_free(log);
}
