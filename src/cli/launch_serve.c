/* A process of a job that is its scheduler and trains nothing: MS_ROLE=MS_SCHED. */
#include "launch_serve.h"

#include "cli.h"
#include "weft/job.h"
#include "weft/launch.h"

static void announce(void *context, const char *address) {
    (void)context;
    cli_say(stderr, "weft: the scheduler of this job, at %s\n", address);
}

int launch_serve(void) {
    char *table = NULL;
    int code = weft_launch_serve(announce, NULL, &table) < 0 ? cli_failed() : CLI_DONE;
    if (code != CLI_DONE && table && *table) cli_say(stderr, "where each rank stood:\n%s", table);
    weft_text_free(table);
    return code;
}
