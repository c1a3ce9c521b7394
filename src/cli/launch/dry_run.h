#ifndef WEFT_CLI_LAUNCH_DRY_RUN_H
#define WEFT_CLI_LAUNCH_DRY_RUN_H

#include "cli/cli.h"

/* `command`: weft train JOB.yaml ...; ranks 0: as many as the job says; rank -1: all. */
int launch_dry_run(const cli_verb *verb, char **command, int64_t ranks, int64_t rank, bool json);

#endif
