/* Servers of parameters that the ranks of a world reach. */
#ifndef WEFTI_SERVERS_H
#define WEFTI_SERVERS_H

#include "comm/connection/connection.h"
#include "comm/world.h"

/* As the launcher or the user has named them (WEFT_SERVERS). */
struct wefti_world_servers {
    int32_t count;
    bool encrypts;
    unsigned char key[WEFTI_CONN_KEY];
    double seconds; /* in which all have to answer; 0: not said */
    wefti_conn_address address[];
};

#endif
