/* A process that keeps parameters for the devices of training runs: the work of `weft server`. */
#ifndef WEFT_SERVER_H
#define WEFT_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/job.h"
#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a server has at a moment. */
typedef struct weft_server_state {
    int ranks;             /* that are connected */
    int64_t shards, bytes; /* of their memory */
    int64_t updates;       /* of shards, since it began */
} weft_server_state;

/* Zeroes and NULLs are the defaults. */
typedef struct weft_server_options {
    size_t struct_bytes;
    const char *listen;      /* "host:port", or a host or network interface alone, which lets the
                                system choose a port; NULL: this host alone (loopback) */
    int number;              /* its place among the servers that WEFT_SERVERS names, from 0 */
    int threads;             /* that compute; 0: all cores */
    const char *secret_file; /* of the runs; NULL: WEFT_SECRET_FILE, else the user's own */
    bool tls;                /* encrypt, as with WEFT_TLS=1; the same for the runs */
    const volatile int *stop_count; /* above 0: end. Set by signal handlers. NULL: never */
    void *context;
    /* From the thread of weft_server_run; either may be NULL. */
    void (*began)(void *context, const char *address);
    void (*changed)(void *context, const weft_server_state *state); /* once a second at most */
    /* What shards may take of the memory of the machine (or of its cgroup's limit): "8GiB", or a
       part as "50%"; NULL: all of it. Runs that need more are refused before their first step. */
    const char *memory;
} weft_server_options;
WEFTI_ZERO_DEFAULTS(weft_server_options, weft_server_defaults)

/** Keep parameters for the runs that name this server (WEFT_SERVERS, `weft launch --servers`),
 * until a request to stop. Blocks. Whoever does not know the secret is refused. What a run has
 * pushed is gone when its last rank has left.
 * @return WEFT_OK after a request to stop; WEFT_E_ARG and WEFT_E_IO if it cannot listen;
 * WEFT_E_ARG if `memory` is no size */
WEFT_API weft_status weft_server_run(const weft_server_options *options) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
