#ifndef WEFT_CLI_LAUNCH_REHEARSE_H
#define WEFT_CLI_LAUNCH_REHEARSE_H

#include "cli.h"

/* `command`: weft train JOB.yaml ...; ranks 0: as many as the job says; rank -1: all. */
int launch_rehearse(const cli_verb *verb, char **command, int64_t ranks, int64_t rank, bool json);

#endif
