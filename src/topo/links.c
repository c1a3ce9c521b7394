/* Reading measured links: see topo/links.h and docs/reference/format-links.md. */
#include "topo/links.h"

#include <math.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"

enum { LINKS_VERSION = 1, LINKS_RANKS_MAX = 1 << 30 };

/* --- values --- */

static weft_status read_number(const wefti_json *object, const char *of, const char *key,
                               double least, double *out) {
    const wefti_json *value = wefti_json_get(object, key);
    WEFT_REQUIRE(value, WEFT_E_ARG, "%s: %s is missing", of, key);
    bool whole = value->kind == WEFTI_JSON_INT;
    WEFT_REQUIRE(whole || value->kind == WEFTI_JSON_REAL, WEFT_E_ARG, "%s: %s must be a number", of,
                 key);
    *out = whole ? (double)value->as.integer : value->as.real;
    WEFT_REQUIRE(isfinite(*out) && *out >= least && *out <= 1e30, WEFT_E_ARG,
                 "%s: %s is %g; it must be at least %g", of, key, *out, least);
    return WEFT_OK;
}

weft_status wefti_link_read(const wefti_json *object, const char *key, wefti_measured_link *out) {
    const wefti_json *value = wefti_json_get(object, key);
    *out = (wefti_measured_link){0, 0};
    WEFT_REQUIRE(value, WEFT_E_ARG, "%s is missing; it is null where there is no such link", key);
    if (value->kind == WEFTI_JSON_NULL) return WEFT_OK;
    WEFT_REQUIRE(value->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG,
                 "%s must be an object with latency_seconds and bytes_per_second, or null", key);
    WEFT_TRY(read_number(value, key, "latency_seconds", 0, &out->latency_seconds));
    return read_number(value, key, "bytes_per_second", 1, &out->bytes_per_second);
}

void wefti_link_print(const wefti_measured_link *link, wefti_text *out) {
    if (!wefti_link_known(link)) {
        wefti_text_add(out, "null");
        return;
    }
    wefti_text_add(out, "{\"latency_seconds\": ");
    wefti_json_real(out, link->latency_seconds);
    wefti_text_add(out, ", \"bytes_per_second\": ");
    wefti_json_real(out, link->bytes_per_second);
    wefti_text_add(out, "}");
}

static weft_status read_count(const wefti_json *top, const char *key, int64_t most, int64_t *out) {
    const wefti_json *value = wefti_json_get(top, key);
    WEFT_REQUIRE(value && value->kind == WEFTI_JSON_INT && value->as.integer >= 1 &&
                     value->as.integer <= most,
                 WEFT_E_ARG, "%s must be a whole number from 1 to %lld", key, (long long)most);
    *out = value->as.integer;
    return WEFT_OK;
}

/* --- the file --- */

/* Whether the ranks of a host share memory under the communicator of this name: threads, or
 * processes of one host, alone ("host") or beside messages to other hosts ("host+ucx"). */
static bool shares_memory(const char *communicator) {
    static const char *const names[] = {"local", "host"};
    const size_t length = strcspn(communicator, "+");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && !memcmp(communicator, names[i], length)) return true;
    return false;
}

/* Reads the version first, so that a file of another version is not judged by the keys of this
 * one. */
static weft_status read_links(const wefti_json *top, wefti_links *out) {
    int64_t version, ranks, hosts;
    const char *communicator;
    WEFT_REQUIRE(top->kind == WEFTI_JSON_OBJECT && wefti_json_get(top, "version"), WEFT_E_ARG,
                 "these are no measured links: there must be an object with \"version\": %d "
                 "(weft bench comm --out)",
                 LINKS_VERSION);
    WEFT_TRY(read_count(top, "version", INT64_MAX, &version));
    WEFT_REQUIRE(version == LINKS_VERSION, WEFT_E_ARG,
                 "version is %lld; this weft reads version %d", (long long)version, LINKS_VERSION);
    WEFT_TRY(read_count(top, "ranks", LINKS_RANKS_MAX, &ranks));
    WEFT_TRY(read_count(top, "hosts", ranks, &hosts));
    WEFT_TRY(wefti_json_text(top, "communicator", &communicator));
    const wefti_json *links;
    WEFT_TRY(wefti_json_object(top, "links", &links));
    weft_status status = wefti_link_read(links, "same_host", &out->same_host);
    if (status >= 0) status = wefti_link_read(links, "between_hosts", &out->between_hosts);
    if (status < 0) return wefti_prefix(status, "links");
    WEFT_REQUIRE(wefti_link_known(&out->same_host) || wefti_link_known(&out->between_hosts),
                 WEFT_E_ARG, "no link was measured; that takes two ranks at least");
    WEFT_REQUIRE(hosts == 1 || wefti_link_known(&out->between_hosts), WEFT_E_ARG,
                 "links: between_hosts is null, but there are %lld hosts", (long long)hosts);
    out->measured = true;
    out->by_messages = !shares_memory(communicator);
    out->ranks_per_host = hosts == 1 ? 0 : (int32_t)(ranks / hosts);
    return WEFT_OK;
}

weft_status wefti_links_parse(const char *name, const char *text, int64_t bytes, wefti_links *out) {
    static const wefti_json_limits limits = {.depth = 8, .members = 64, .array_items = 1024};
    wefti_arena *arena;
    const wefti_json *top;
    wefti_links links = {0};
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = wefti_json_parse(arena, text, bytes, &limits, &top);
    if (status >= 0) status = read_links(top, &links);
    wefti_arena_destroy(arena);
    if (status < 0) return wefti_prefix(status, "%s", name);
    *out = links;
    return WEFT_OK;
}

/* --- use --- */

/* Whether a host begins inside a block. Hosts begin at multiples of ranks_per_host. */
static bool is_cut(int64_t host, int64_t first, int64_t ranks, int64_t block) {
    int64_t begin = (first / host + 1) * host, end = first + ranks;
    for (int64_t tries = 0; begin < end && tries < block; begin += host, tries++)
        if ((begin - first) % block != 0) return true;
    return false;
}

wefti_link wefti_links_of_blocks(const wefti_links *links, int64_t first, int64_t ranks,
                                 int64_t block) {
    bool far = links->ranks_per_host > 0 && is_cut(links->ranks_per_host, first, ranks, block);
    const wefti_measured_link *link = far ? &links->between_hosts : &links->same_host;
    if (!wefti_link_known(link)) link = far ? &links->same_host : &links->between_hosts;
    return (wefti_link){link->latency_seconds, 1 / link->bytes_per_second};
}
