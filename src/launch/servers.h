/* Servers of parameters and the job's secret. */
#ifndef WEFTI_LAUNCH_SERVERS_H
#define WEFTI_LAUNCH_SERVERS_H

#include "launch/auth.h"

/* The key of connections between a job's ranks and its servers, and of nothing else. */
void wefti_servers_key(const wefti_secret *secret, unsigned char out[WEFTI_DIGEST_BYTES]);

#endif
