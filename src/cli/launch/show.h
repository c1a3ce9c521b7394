/* The output of `weft launch`: lines of ranks, and how the job ended. */
#ifndef WEFT_CLI_LAUNCH_SHOW_H
#define WEFT_CLI_LAUNCH_SHOW_H

#include "cli/cli.h"
#include "weft/launch.h"

typedef struct launch_show {
    bool json;
    const char *tail; /* "all", "none", or ranks: "0,4-7" */
    bool prefix;      /* several ranks are shown: say which one a line is of */
} launch_show;

/* Whether `tail` is well written. */
bool launch_tail_is_good(const char *tail);
bool launch_tail_has(const char *tail, int rank);
/* The highest rank in it; -1 for "all" and "none". */
long launch_tail_last(const char *tail);
weft_launch_events launch_show_events(launch_show *show);
void launch_show_end(const launch_show *show, const weft_launch_result *result, weft_status status);

#endif
