/* A process that the environment makes the scheduler of its job (MS_ROLE=MS_SCHED). It trains
 * nothing. */
#include "cli/launch/launch.h"

#include "cli/cli.h"
#include "weft/job.h"
#include "weft/launch.h"

static void announce(void *context, const char *address) {
    (void)context;
    cli_say(stderr, "weft: the scheduler of this job, at %s\n", address);
}

int launch_serve(void) {
    char *table = NULL;
    cli_ignore_announcements();
    const weft_status status = weft_launch_serve(announce, NULL, &table);
    const int code = cli_code_of(status);
    if (status < 0) (void)cli_failed();
    if (code != CLI_DONE && table && *table) cli_say(stderr, "where each rank stood:\n%s", table);
    weft_text_free(table);
    return code;
}
