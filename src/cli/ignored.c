/* Variables that ask for a feature of another system which weft does not have, or has in another
 * form. Ignoring them in silence would let a user count on the feature. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* Each with what weft does in place of it. */
static const char *const ignored[][2] = {
    {"MS_ENABLE_RECOVERY", "start all processes again, and they go on from checkpoint.dir"},
    {"MS_RECOVERY_PATH", "checkpoint.dir is where a job goes on from"},
    {"GROUP_INFO_FILE", "a checkpoint holds whole tensors, so no rank's slice can be lost"},
    {"MS_ENABLE_GRACEFUL_EXIT", "SIGTERM ends the run after the step, with a checkpoint"},
    {"MS_ENABLE_TFT", "checkpoint.every bounds what a failure costs"},
    {"MS_DISABLE_HEARTBEAT",
     "heartbeats stay on; MS_NODE_TIMEOUT sets how long they may be silent"},
};

void cli_warn_ignored(void) {
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        const char *value = getenv(ignored[i][0]);
        if (!value || !*value || !strcmp(value, "0")) continue;
        cli_say(stderr, "weft: %s has no effect: %s (docs/coming-from-mindspore.md)\n",
                ignored[i][0], ignored[i][1]);
    }
}
