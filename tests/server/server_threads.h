/* Servers in threads of a test, as processes would be. */
#ifndef WEFT_TESTS_SERVER_THREADS_H
#define WEFT_TESTS_SERVER_THREADS_H

#include "support.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "server/host.h"
#include "comm/connection/connection.h"

enum { MOST_SERVERS = 3 };
static const unsigned char servers_key[32] = "of these servers";

/* The servers of a world. */
static struct {
    wefti_server *server[MOST_SERVERS];
    pthread_t thread[MOST_SERVERS];
    atomic_bool ends[MOST_SERVERS];
    wefti_conn_address address[MOST_SERVERS];
    int32_t count;
    bool encrypts;
    int64_t memory_bytes; /* 0: any */
} servers;

static inline void *serve(void *context) {
    const int i = (int)(intptr_t)context;
    while (!atomic_load(&servers.ends[i])) ASSERT_OK(wefti_server_turn(servers.server[i], 20));
    wefti_server_close(servers.server[i]);
    return NULL;
}

static inline void start_server(int i) {
    const struct sockaddr_in any = {.sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const wefti_server_options o = {.number = i,
                                    .threads = 1,
                                    .key = servers_key,
                                    .encrypts = servers.encrypts,
                                    .memory_bytes = servers.memory_bytes};
    wefti_conn_address *at = &servers.address[i];
    memcpy(&at->at, &any, sizeof any);
    at->bytes = sizeof any;
    (void)snprintf(at->text, sizeof at->text, "address %d", i);
    atomic_store(&servers.ends[i], false);
    ASSERT_OK(wefti_server_open(&o, &at->at, at->bytes, &servers.server[i]));
    assert_int_equal(pthread_create(&servers.thread[i], NULL, serve, (void *)(intptr_t)i), 0);
}

static inline void end_server(int i) {
    atomic_store(&servers.ends[i], true);
    (void)pthread_join(servers.thread[i], NULL);
}

#endif
