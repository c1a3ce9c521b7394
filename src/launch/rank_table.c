/* Rank tables (see the header). Everything is checked before anyone starts: a table that is wrong
 * shows up elsewhere as processes that wait for each other, on other hosts. A message names the
 * field as a path, "server_list[1].device[0].rank_id".
 *
 * Source of the format: the HCCL documentation, rank table configuration file, and its extension
 * for jobs over several clusters (server_ip, pod_ip, dpu_ip, numa_id, cluster_list). */
#include "launch/rank_table.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "launch/env/env.h"

enum {
    FILE_BYTES_MAX = 32 << 20,
    SERVERS_MAX = 1 << 16,
    DEVICES_MAX = 1 << 12,
    NAME_MAX_BYTES = 255
};

/* A server of the file, while its table is made. */
typedef struct rank_table_entry {
    wefti_table_server server;
    const wefti_json *devices;
    int32_t at; /* in server_list */
} rank_table_entry;

typedef struct rank_table_reader {
    wefti_rank_table *table;
    rank_table_entry *entries; /* sorted by id after read_servers */
    int32_t *place;            /* [size]: at * DEVICES_MAX + device of each rank; -1: missing */
} rank_table_reader;

/* --- fields --- */

/* A member that must be there. */
static weft_status field(const wefti_json *object, const char *where, const char *key,
                         const wefti_json **out) {
    *out = wefti_json_get(object, key);
    WEFT_REQUIRE(*out, WEFT_E_CORRUPT, "%s%s is missing", where, key);
    return WEFT_OK;
}

static weft_status text_field(const wefti_json *object, const char *where, const char *key,
                              const char **out) {
    const wefti_json *value;
    WEFT_TRY(field(object, where, key, &value));
    WEFT_REQUIRE(value->kind == WEFTI_JSON_TEXT, WEFT_E_CORRUPT, "%s%s is not a text", where, key);
    *out = value->as.text;
    return WEFT_OK;
}

/* A host, an address, a name: what may stand in a command line and a message. */
static weft_status name_field(const wefti_json *object, const char *where, const char *key,
                              const char **out) {
    WEFT_TRY(text_field(object, where, key, out));
    size_t length = strlen(*out), good = strspn(*out, "abcdefghijklmnopqrstuvwxyz"
                                                      "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_%");
    WEFT_REQUIRE(length > 0 && length <= NAME_MAX_BYTES && good == length, WEFT_E_CORRUPT,
                 "%s%s is \"%.60s\", not an address or name of a host", where, key, *out);
    return WEFT_OK;
}

/* The same where it may be missing: NULL then. */
static weft_status name_if_there(const wefti_json *object, const char *where, const char *key,
                                 const char **out) {
    *out = NULL;
    if (!wefti_json_get(object, key)) return WEFT_OK;
    return name_field(object, where, key, out);
}

static weft_status list_field(const wefti_json *object, const char *where, const char *key,
                              const wefti_json **out) {
    WEFT_TRY(field(object, where, key, out));
    WEFT_REQUIRE((*out)->kind == WEFTI_JSON_ARRAY, WEFT_E_CORRUPT, "%s%s is not a list", where,
                 key);
    WEFT_REQUIRE((*out)->count > 0, WEFT_E_CORRUPT, "%s%s is empty", where, key);
    return WEFT_OK;
}

/* A number from 0, as "7" or 7. */
static weft_status number_field(const wefti_json *object, const char *where, const char *key,
                                int32_t *out) {
    const wefti_json *value;
    WEFT_TRY(field(object, where, key, &value));
    int64_t number = -1;
    if (value->kind == WEFTI_JSON_INT) {
        number = value->as.integer;
    } else if (value->kind == WEFTI_JSON_TEXT) {
        const char *text = value->as.text;
        size_t digits = strspn(text, "0123456789");
        WEFT_REQUIRE(digits > 0 && digits < 10 && !text[digits], WEFT_E_CORRUPT,
                     "%s%s is \"%.40s\", no whole number from 0", where, key, text);
        number = strtoll(text, NULL, 10);
    } else {
        WEFT_FAIL(WEFT_E_CORRUPT, "%s%s is neither a number nor one in a text", where, key);
    }
    WEFT_REQUIRE(number >= 0 && number <= INT32_MAX, WEFT_E_CORRUPT,
                 "%s%s is %" PRId64 ", no number from 0 to %d", where, key, number, INT32_MAX);
    *out = (int32_t)number;
    return WEFT_OK;
}

/* --- servers --- */

static weft_status server_from(const wefti_json *item, int32_t at, rank_table_entry *out) {
    char where[64];
    const char *pod, *container, *server;
    (void)snprintf(where, sizeof where, "server_list[%d].", at);
    WEFT_REQUIRE(item->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT,
                 "server_list[%d] is not an object", at);
    WEFT_TRY(name_field(item, where, "server_id", &out->server.id));
    WEFT_TRY(name_if_there(item, where, "container_ip", &container));
    WEFT_TRY(name_if_there(item, where, "pod_ip", &pod));
    WEFT_TRY(name_if_there(item, where, "server_ip", &server));
    out->server.address = container ? container : pod ? pod : server ? server : out->server.id;
    WEFT_TRY(list_field(item, where, "device", &out->devices));
    out->server.devices = out->devices->count;
    out->at = at;
    return WEFT_OK;
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const rank_table_entry *)a)->server.id,
                  ((const rank_table_entry *)b)->server.id);
}

static weft_status read_servers(rank_table_reader *r, const wefti_json *root) {
    const wefti_json *list;
    int32_t count, at = 0;
    int64_t size = 0;
    WEFT_TRY(list_field(root, "", "server_list", &list));
    WEFT_TRY(number_field(root, "", "server_count", &count));
    WEFT_REQUIRE(count == list->count, WEFT_E_CORRUPT,
                 "server_count is %d, but server_list has %d %s", count, list->count,
                 list->count == 1 ? "server" : "servers");
    r->entries = wefti_arena_alloc(r->table->arena, (size_t)count * sizeof *r->entries);
    WEFT_REQUIRE(r->entries, WEFT_E_NOMEM, "no memory for %d servers", count);
    WEFTI_JSON_EACH(item, list) {
        WEFT_TRY(server_from(item, at, &r->entries[at]));
        size += r->entries[at++].server.devices;
    }
    WEFT_REQUIRE(size <= WEFTI_RANKS_MAX, WEFT_E_CORRUPT,
                 "server_list has %" PRId64 " devices; a job has at most %d", size,
                 WEFTI_RANKS_MAX);
    qsort(r->entries, (size_t)count, sizeof *r->entries, compare_entries);
    for (int32_t i = 1; i < count; i++)
        WEFT_REQUIRE(compare_entries(&r->entries[i - 1], &r->entries[i]) != 0, WEFT_E_CORRUPT,
                     "server_list[%d].server_id and server_list[%d].server_id are both \"%s\"",
                     r->entries[i - 1].at, r->entries[i].at, r->entries[i].server.id);
    r->table->server_count = count;
    r->table->size = (int32_t)size;
    return WEFT_OK;
}

/* --- devices --- */

static weft_status read_device(rank_table_reader *r, const wefti_json *item,
                               const rank_table_entry *of, int32_t server, int32_t at) {
    char where[96];
    const char *ip;
    int32_t rank, device, size = r->table->size;
    (void)snprintf(where, sizeof where, "server_list[%d].device[%d].", of->at, at);
    WEFT_REQUIRE(item->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT,
                 "server_list[%d].device[%d] is not an object", of->at, at);
    WEFT_TRY(number_field(item, where, "device_id", &device));
    WEFT_TRY(number_field(item, where, "rank_id", &rank));
    WEFT_TRY(name_if_there(item, where, "device_ip", &ip));
    WEFT_REQUIRE(rank < size, WEFT_E_CORRUPT,
                 "%srank_id is %d, but the %d %s of the table must have the ranks 0 to %d without "
                 "gaps",
                 where, rank, size, size == 1 ? "device" : "devices", size - 1);
    int32_t other = r->place[rank];
    WEFT_REQUIRE(other < 0, WEFT_E_CORRUPT,
                 "%srank_id is %d, as is server_list[%d].device[%d].rank_id", where, rank,
                 other / DEVICES_MAX, other % DEVICES_MAX);
    int32_t first = of->server.first_rank, end = first + of->server.devices;
    WEFT_REQUIRE(rank >= first && rank < end, WEFT_E_CORRUPT,
                 "%srank_id is %d: ranks must follow the order of server_id as texts, so that "
                 "\"%s\" has the ranks %d to %d",
                 where, rank, of->server.id, first, end - 1);
    r->place[rank] = of->at * DEVICES_MAX + at;
    r->table->ranks[rank] = (wefti_table_rank){server, device, ip};
    return WEFT_OK;
}

static int compare_numbers(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Two processes on one device would be one too many. */
static weft_status check_devices(const rank_table_reader *r, const rank_table_entry *of) {
    static const char both[] = "server_list[%d]: two devices have the device_id %d";
    int32_t *ids, count = of->server.devices, twice = -1;
    WEFT_NEW_ARRAY(ids, int32_t, count);
    for (int32_t i = 0; i < count; i++) ids[i] = r->table->ranks[of->server.first_rank + i].device;
    qsort(ids, (size_t)count, sizeof *ids, compare_numbers);
    for (int32_t i = 1; i < count; i++)
        if (ids[i] == ids[i - 1]) twice = ids[i];
    wefti_free(ids);
    WEFT_REQUIRE(twice < 0, WEFT_E_CORRUPT, both, of->at, twice);
    return WEFT_OK;
}

static weft_status read_devices(rank_table_reader *r) {
    wefti_rank_table *t = r->table;
    size_t size = (size_t)t->size;
    t->ranks = wefti_arena_alloc(t->arena, size * sizeof *t->ranks);
    r->place = wefti_arena_alloc(t->arena, size * sizeof *r->place);
    t->servers = wefti_arena_alloc(t->arena, (size_t)t->server_count * sizeof *t->servers);
    WEFT_REQUIRE(t->ranks && r->place && t->servers, WEFT_E_NOMEM, "no memory for %d ranks",
                 t->size);
    for (int32_t i = 0; i < t->size; i++) r->place[i] = -1;
    for (int32_t s = 0, first = 0; s < t->server_count; s++) {
        int32_t at = 0;
        r->entries[s].server.first_rank = first;
        WEFTI_JSON_EACH(item, r->entries[s].devices) {
            WEFT_TRY(read_device(r, item, &r->entries[s], s, at++));
        }
        WEFT_TRY(check_devices(r, &r->entries[s]));
        t->servers[s] = r->entries[s].server;
        first += t->servers[s].devices;
    }
    return WEFT_OK;
}

/* --- clusters: only that they name what there is --- */

static int32_t server_number(const rank_table_reader *r, const char *id) {
    rank_table_entry key = {.server = {.id = id}};
    const rank_table_entry *found =
        bsearch(&key, r->entries, (size_t)r->table->server_count, sizeof key, compare_entries);
    return found ? (int32_t)(found - r->entries) : -1;
}

static weft_status read_cluster(const rank_table_reader *r, const wefti_json *item, int32_t at,
                                bool *taken) {
    char where[96];
    const char *id;
    const wefti_json *servers;
    int32_t s = 0;
    (void)snprintf(where, sizeof where, "cluster_list[%d].", at);
    WEFT_REQUIRE(item->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT,
                 "cluster_list[%d] is not an object", at);
    WEFT_TRY(text_field(item, where, "cluster_id", &id));
    WEFT_TRY(list_field(item, where, "server_list", &servers));
    WEFTI_JSON_EACH(server, servers) {
        (void)snprintf(where, sizeof where, "cluster_list[%d].server_list[%d].", at, s++);
        WEFT_REQUIRE(server->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT, "%.*s is not an object",
                     (int)strlen(where) - 1, where);
        WEFT_TRY(name_field(server, where, "server_id", &id));
        int32_t number = server_number(r, id);
        WEFT_REQUIRE(number >= 0, WEFT_E_CORRUPT,
                     "%sserver_id is \"%s\", which server_list does not have", where, id);
        WEFT_REQUIRE(!taken[number], WEFT_E_CORRUPT, "%sserver_id: \"%s\" is in two clusters",
                     where, id);
        taken[number] = true;
    }
    return WEFT_OK;
}

static weft_status read_clusters(const rank_table_reader *r, const wefti_json *root) {
    const wefti_json *list;
    int32_t at = 0;
    if (!wefti_json_get(root, "cluster_list")) return WEFT_OK;
    WEFT_TRY(list_field(root, "", "cluster_list", &list));
    bool *taken = wefti_arena_alloc(r->table->arena, (size_t)r->table->server_count);
    WEFT_REQUIRE(taken, WEFT_E_NOMEM, "no memory for %d servers", r->table->server_count);
    WEFTI_JSON_EACH(item, list) {
        WEFT_TRY(read_cluster(r, item, at++, taken));
    }
    return WEFT_OK;
}

/* --- the table --- */

/* Equal for files that say the same, however they are written. */
static weft_status derive_port(wefti_rank_table *t) {
    wefti_text text = {0};
    for (int32_t s = 0; s < t->server_count; s++)
        wefti_text_add(&text, "%s %s;", t->servers[s].id, t->servers[s].address);
    for (int32_t r = 0; r < t->size; r++)
        wefti_text_add(&text, "%d %d %s;", t->ranks[r].server, t->ranks[r].device,
                       t->ranks[r].device_ip ? t->ranks[r].device_ip : "");
    bool written = !text.failed;
    if (written) t->port = wefti_port_of(text.data, (size_t)text.used);
    wefti_text_free(&text);
    WEFT_REQUIRE(written, WEFT_E_NOMEM, "no memory for a table of %d ranks", t->size);
    return WEFT_OK;
}

static weft_status read_table(rank_table_reader *r, const char *text, int64_t bytes) {
    static const wefti_json_limits limits = {8, 64, SERVERS_MAX};
    const wefti_json *root;
    const char *version, *status;
    WEFT_TRY(wefti_json_parse(r->table->arena, text, bytes, &limits, &root));
    WEFT_REQUIRE(root->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT, "a rank table is an object");
    WEFT_TRY(text_field(root, "", "version", &version));
    WEFT_REQUIRE(!strcmp(version, "1.0"), WEFT_E_CORRUPT,
                 "version is \"%.20s\"; tables of version \"1.0\" are understood", version);
    WEFT_TRY(text_field(root, "", "status", &status));
    WEFT_REQUIRE(!strcmp(status, "completed"), WEFT_E_CORRUPT,
                 "status is \"%.40s\": the table is not \"completed\" yet", status);
    WEFT_TRY(read_servers(r, root));
    for (int32_t s = 0; s < r->table->server_count; s++)
        WEFT_REQUIRE(r->entries[s].server.devices < DEVICES_MAX, WEFT_E_CORRUPT,
                     "server_list[%d].device has %d devices; a server has at most %d",
                     r->entries[s].at, r->entries[s].server.devices, DEVICES_MAX - 1);
    WEFT_TRY(read_devices(r));
    WEFT_TRY(read_clusters(r, root));
    return derive_port(r->table);
}

weft_status wefti_rank_table_parse(const char *text, int64_t bytes, wefti_rank_table **out) {
    wefti_arena *arena;
    WEFT_REQUIRE(bytes <= FILE_BYTES_MAX, WEFT_E_CORRUPT,
                 "%lld bytes are too many for a rank table; it may have %d", (long long)bytes,
                 (int)FILE_BYTES_MAX);
    WEFT_TRY(wefti_arena_create(&arena));
    rank_table_reader r = {.table = wefti_arena_alloc(arena, sizeof *r.table)};
    weft_status status = WEFT_OK;
    if (r.table) {
        r.table->arena = arena;
        status = read_table(&r, text, bytes);
    } else {
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a rank table");
    }
    if (status < 0)
        wefti_arena_destroy(arena);
    else
        *out = r.table;
    return status;
}

weft_status wefti_rank_table_load(const char *path, wefti_rank_table **out) {
    char *text;
    int64_t bytes;
    WEFT_TRY(wefti_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    weft_status status = wefti_rank_table_parse(text, bytes, out);
    wefti_free(text);
    if (status < 0) return wefti_prefix(status, "rank table %s", path);
    return WEFT_OK;
}

void wefti_rank_table_free(wefti_rank_table *table) {
    if (table) wefti_arena_destroy(table->arena);
}

int32_t wefti_rank_table_server(const wefti_rank_table *table, const char *id) {
    for (int32_t s = 0; s < table->server_count; s++)
        if (!strcmp(table->servers[s].id, id)) return s;
    for (int32_t s = 0; s < table->server_count; s++)
        if (!strcmp(table->servers[s].address, id)) return s;
    return -1;
}
