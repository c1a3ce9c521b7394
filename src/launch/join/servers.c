/* The servers that a world's ranks reach: WEFT_SERVERS, and a key that follows from the job's
 * secret. */
#include <string.h>

#include "base/memory.h"
#include "comm/servers.h"
#include "launch/join/join.h"
#include "launch/servers.h"
#include "launch/socket.h"

void wefti_servers_key(const wefti_secret *secret, unsigned char out[WEFTI_DIGEST_BYTES]) {
    static const char label[32] = "weft servers";
    wefti_hmac_own(secret->key, sizeof secret->key, label, sizeof label, out);
}

static weft_status find_address(const char *text, size_t bytes, wefti_conn_address *out) {
    wefti_address found;
    WEFT_REQUIRE(bytes > 0 && bytes < sizeof out->text, WEFT_E_ARG,
                 "WEFT_SERVERS has an address of %zu bytes", bytes);
    memcpy(out->text, text, bytes);
    const weft_status status = wefti_address_find(out->text, &found);
    if (status < 0) return wefti_prefix(status, "WEFT_SERVERS");
    out->at = found.at;
    out->bytes = found.bytes;
    return WEFT_OK;
}

static weft_status find_addresses(const char *list, wefti_world_servers *out) {
    for (const char *at = list; *at; at += *at == ',') {
        const size_t bytes = strcspn(at, ",");
        WEFT_REQUIRE(out->count < WEFTI_SERVERS_MAX, WEFT_E_ARG,
                     "WEFT_SERVERS names more than %d servers", WEFTI_SERVERS_MAX);
        WEFT_TRY(find_address(at, bytes, &out->address[out->count]));
        out->count++;
        at += bytes;
    }
    return WEFT_OK;
}

weft_status wefti_join_servers(const wefti_settings *set, wefti_world_servers **out) {
    wefti_secret secret;
    *out = NULL;
    if (!*set->servers) return WEFT_OK;
    wefti_world_servers *servers =
        wefti_calloc(1, sizeof *servers + WEFTI_SERVERS_MAX * sizeof *servers->address);
    WEFT_REQUIRE(servers, WEFT_E_NOMEM, "no memory for the addresses of servers");
    servers->encrypts = set->tls;
    servers->seconds = set->join_seconds;
    weft_status status = find_addresses(set->servers, servers);
    if (status >= 0) status = wefti_secret_find(set->secret_file, set->home, &secret, NULL);
    if (status < 0) {
        wefti_free(servers);
        return status;
    }
    wefti_servers_key(&secret, servers->key);
    explicit_bzero(&secret, sizeof secret);
    *out = servers;
    return WEFT_OK;
}
