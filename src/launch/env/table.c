/* Processes started with a rank table. Source: MindSpore, "Rank table startup". */
#include "launch/env/reader.h"

#include <stdio.h>
#include <string.h>

#include "launch/rank_table.h"

/* The table that two variables may name. NULL: none. */
static weft_status table_path(const wefti_env_reader *r, const char **out) {
    const char *file = wefti_reader_get(r, "RANK_TABLE_FILE"),
               *config = wefti_reader_get(r, "MINDSPORE_HCCL_CONFIG_PATH");
    WEFT_REQUIRE(!file || !config || !strcmp(file, config), WEFT_E_ARG,
                 "RANK_TABLE_FILE is %.200s, but MINDSPORE_HCCL_CONFIG_PATH is %.200s", file,
                 config);
    *out = file ? file : config;
    return WEFT_OK;
}

static void table_place(wefti_env_reader *r, const wefti_rank_table *t, wefti_claim *c) {
    weft_launcher *p = &c->place;
    p->size = t->size;
    p->hosts = t->server_count;
    if (p->rank >= 0 && p->rank < t->size) {
        p->host = t->ranks[p->rank].server;
        p->local_rank = p->rank - t->servers[p->host].first_rank;
        p->local_size = t->servers[p->host].devices;
    }
    c->one_host = t->server_count == 1;
    /* Where rank 0 is; on one host whatever the table calls it. */
    (void)snprintf(r->out->scheduler_host, sizeof r->out->scheduler_host, "%s",
                   c->one_host ? "127.0.0.1" : t->servers[0].address);
    r->out->scheduler_port = t->port;
}

static weft_status read_table(wefti_env_reader *r) {
    wefti_claim *c = &r->claims[WEFTI_START_RANK_TABLE];
    wefti_rank_table *table;
    const char *path = NULL;
    WEFT_TRY(table_path(r, &path));
    if (!path) return WEFT_OK;
    WEFT_REQUIRE(wefti_reader_get(r, "RANK_ID"), WEFT_E_ARG,
                 "%s names a rank table, but RANK_ID is not set: which rank is this process?",
                 wefti_reader_get(r, "RANK_TABLE_FILE") ? "RANK_TABLE_FILE"
                                                        : "MINDSPORE_HCCL_CONFIG_PATH");
    c->there = true;
    WEFT_TRY(wefti_reader_place(r, &wefti_source_rank_table.names, c));
    int told = c->place.size;
    WEFT_TRY(wefti_rank_table_load(path, &table));
    table_place(r, table, c);
    wefti_rank_table_free(table);
    WEFT_REQUIRE(told == 0 || told == c->place.size, WEFT_E_ARG,
                 "RANK_SIZE is %d, but the rank table %.200s has %d %s", told, path, c->place.size,
                 c->place.size == 1 ? "rank" : "ranks");
    if (told == 0) c->size_name = "the rank table's size";
    return WEFT_OK;
}

const wefti_launcher_source wefti_source_rank_table = {
    .names = {"rank table", "RANK_ID", "RANK_SIZE", NULL, NULL, NULL, NULL}, .read = read_table};
