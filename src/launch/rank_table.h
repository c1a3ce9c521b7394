/* HCCL rank tables, version 1.0: a JSON file that says which rank runs on which host and device.
 *
 *     {"version": "1.0", "server_count": "1", "status": "completed",
 *      "server_list": [{"server_id": "10.0.0.5", "host_nic_ip": "reserve",
 *                       "device": [{"device_id": "0", "device_ip": "192.1.27.6", "rank_id":
 * "0"}]}]}
 *
 * Numbers may be JSON strings, as the tool of the format writes them, or numbers. What else may be
 * there and what is refused is in docs/reference/format-rank-table.md. */
#ifndef WEFTI_LAUNCH_RANK_TABLE_H
#define WEFTI_LAUNCH_RANK_TABLE_H

#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"

typedef struct wefti_table_server {
    const char *id; /* server_id */
    const char
        *address; /* where its processes are reached: container_ip, pod_ip, server_ip or id */
    int32_t devices, first_rank;
} wefti_table_server;

typedef struct wefti_table_rank {
    int32_t server, device; /* device: its device_id, a number on its server */
    const char *device_ip;  /* NULL: not given */
} wefti_table_rank;

typedef struct wefti_rank_table {
    int32_t size, server_count;
    wefti_table_rank *ranks;     /* [size] */
    wefti_table_server *servers; /* [server_count], in the order of their ranks */
    int port; /* for the scheduler on servers[0].address: follows from the table's contents */
    wefti_arena *arena;
} wefti_rank_table;

/* WEFT_E_CORRUPT, with the field's name, if the text is not such a table. */
weft_status wefti_rank_table_parse(const char *text, int64_t bytes,
                                   wefti_rank_table **out) WEFT_CHECKED;
/* The same from a file, with its path in messages; WEFT_E_IO when it cannot be read. */
weft_status wefti_rank_table_load(const char *path, wefti_rank_table **out) WEFT_CHECKED;
void wefti_rank_table_free(wefti_rank_table *table); /* NULL is legal */
/* The server with this server_id or address, or -1. */
int32_t wefti_rank_table_server(const wefti_rank_table *table, const char *id);

#endif
