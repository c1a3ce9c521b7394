/* The service of a rank whose servers are other processes. A thread has the connections, so pushes
 * and pulls go on while the rank computes. */
#ifndef WEFTI_SERVER_REMOTE_H
#define WEFTI_SERVER_REMOTE_H

#include "comm/connection/connection.h"
#include "program/service.h"

typedef struct wefti_remote_options {
    const wefti_conn_address *servers; /* [count], by their numbers; copied */
    int32_t count;
    int32_t rank;
    uint64_t session; /* equal on the ranks that share shards, and on no others */
    bool encrypts;
    const unsigned char *key; /* [32] of the job's servers */
    bool by_frames;           /* no memory is read, also on one host */
    double seconds;           /* in which all servers have to answer; 0: 60 */
} wefti_remote_options;

/* Connects to all servers. Blocks for `seconds` at most. Of several parameters the ranks must bind
 * the same ones in the same order: each goes to the server that has least by then. */
weft_status wefti_service_remote(const wefti_remote_options *options,
                                 wefti_service **out) WEFT_CHECKED;

#endif
