/* A server process: shards that ranks of any sessions reach over connections. One thread does all:
 * it hears, works and answers, and never waits for one rank. */
#ifndef WEFTI_SERVER_HOST_H
#define WEFTI_SERVER_HOST_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/status.h"

typedef struct wefti_server wefti_server;

typedef struct wefti_server_options {
    int32_t number; /* among the servers of its job */
    int threads;    /* that compute; 0: as many as there are cores */
    bool encrypts;
    const unsigned char *key; /* [32] of the job's servers */
    int64_t memory_bytes;     /* that shards may take; 0: any */
    double seconds;           /* in which a connection has to open; 0: 60 */
} wefti_server_options;

typedef struct wefti_server_counts {
    int32_t ranks;         /* that are connected */
    int64_t shards, bytes; /* bytes: of all their memory */
    int64_t updates;       /* since it began */
} wefti_server_counts;

/* Listens at *at (of `bytes` bytes), which becomes the address where it does. */
weft_status wefti_server_open(const wefti_server_options *options, struct sockaddr_storage *at,
                              socklen_t bytes, wefti_server **out) WEFT_CHECKED;
void wefti_server_close(wefti_server *server); /* NULL is legal */
/* Does what there is to do. Waits for events for that time at most, if there is nothing. */
weft_status wefti_server_turn(wefti_server *server, int milliseconds) WEFT_CHECKED;
wefti_server_counts wefti_server_counts_of(const wefti_server *server);

#endif
