#ifndef WEFT_CLI_LAUNCH_LAUNCH_H
#define WEFT_CLI_LAUNCH_LAUNCH_H

/* Be the scheduler that the environment asks for, until the job is over. Returns an exit code. */
int launch_serve(void);

#endif
