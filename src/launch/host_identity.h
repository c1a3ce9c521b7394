/* Which host this is: equal for processes that can reach each other's memory. */
#ifndef WEFTI_JOIN_HOST_H
#define WEFTI_JOIN_HOST_H

#include "launch/wire/wire.h"

/* This boot of the kernel and the namespaces that separate containers: names of hosts are not
 * unique. */
weft_status wefti_host_identity(char out[WEFTI_NAME_MAX + 1]) WEFT_CHECKED;

#endif
