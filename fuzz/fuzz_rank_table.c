/* Fuzzes rank tables. An accepted table must be complete. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launch/rank_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds) {
    if (!holds) abort();
}

/* Checks that every rank is on a server, and that every server's ranks are consecutive. */
static void check_table(const wefti_rank_table *t) {
    int32_t next = 0;
    check(t->size > 0 && t->port >= 10000 && t->port < 30000);
    for (int32_t s = 0; s < t->server_count; s++) {
        check(t->servers[s].first_rank == next && t->servers[s].devices > 0);
        check(s == 0 || strcmp(t->servers[s - 1].id, t->servers[s].id) < 0);
        for (int32_t i = 0; i < t->servers[s].devices; i++) check(t->ranks[next++].server == s);
        check(wefti_rank_table_server(t, t->servers[s].id) == s);
    }
    check(next == t->size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wefti_rank_table *table;
    char *text =
        malloc(size + 1); /* of the exact length, so that sanitizers detect reads beyond it */
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (wefti_rank_table_parse(text, (int64_t)size, &table) >= 0) {
        check_table(table);
        wefti_rank_table_free(table);
    }
    free(text);
    return 0;
}
