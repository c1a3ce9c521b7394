/* The output of a rank: two pipes, cut into whole lines. Lines go to the rank's log file and to
 * the caller. The last ones are kept in memory for the error message when the rank fails. */
#ifndef WEFTI_LAUNCH_LOGS_H
#define WEFTI_LAUNCH_LOGS_H

#include "base/status.h"
#include "weft/launch.h"

typedef struct wefti_log wefti_log;

/* `dir` (existing; NULL: no file) gets rank-<rank>.log. `events` is kept. */
weft_status wefti_log_open(int rank, const char *dir, const weft_launch_events *events,
                           wefti_log **out) WEFT_CHECKED;
/* For another process of that rank: the file and the last lines go on. */
weft_status wefti_log_reopen(wefti_log *log) WEFT_CHECKED;
/* The ends that the process writes to, until wefti_log_started closes them on this side. */
int wefti_log_end(const wefti_log *log, weft_launch_stream stream);
void wefti_log_started(wefti_log *log);
/* To poll; -1 when the stream has ended. */
int wefti_log_fd(const wefti_log *log, weft_launch_stream stream);
/* Reads available output without waiting, one buffer at most, so that a rank that writes without
 * pause does not keep the launcher from other work. */
void wefti_log_read(wefti_log *log, weft_launch_stream stream);
/* Reads the rest of both streams; a last line without a newline counts too. */
void wefti_log_finish(wefti_log *log);
const char *wefti_log_path(const wefti_log *log); /* "" without a file */
/* The last lines of both streams, at most `lines`; wefti_free; NULL: no memory. */
char *wefti_log_last(const wefti_log *log, int lines);
void wefti_log_close(wefti_log *log); /* NULL is legal */

#endif
