/* A server as a process: see weft/server.h. */
#include "weft/server.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "job/job.h"
#include "launch/env/env.h"
#include "launch/servers.h"
#include "launch/socket.h"
#include "server/host.h"
#include "weft/info.h"

enum { SERVE_TURN_MS = 200 };

/* "host:port", or a place alone. */
static weft_status find_address(const char *listen, wefti_address *out) {
    char host[WEFTI_HOST_TEXT];
    int port;
    const char *colon = listen ? strrchr(listen, ':') : NULL;
    if (!colon || strchr(colon, ']')) return wefti_address_local(listen ? listen : "", 0, out);
    WEFT_TRY(wefti_address_parse("--listen", listen, host, &port));
    return wefti_address_local(host, port, out);
}

static weft_status find_memory(const char *text, int64_t *out) {
    double percent = 0;
    weft_info info;
    weft_info_get(&info);
    *out = info.memory_bytes;
    if (!text) return WEFT_OK;
    WEFT_REQUIRE(wefti_job_read_percent(text, &percent) ||
                     (wefti_job_read_bytes(text, out) && *out > 0),
                 WEFT_E_ARG, "memory is '%s'; a size is 8GiB, or 50%%", text);
    *out = wefti_job_limit(*out, percent, info.memory_bytes);
    return WEFT_OK;
}

static weft_status open_server(const weft_server_options *o, wefti_address *at,
                               wefti_server **out) {
    unsigned char key[WEFTI_DIGEST_BYTES];
    wefti_settings set;
    wefti_secret secret;
    int64_t memory;
    WEFT_TRY(find_memory(o->memory, &memory));
    WEFT_TRY(find_address(o->listen, at));
    WEFT_TRY(wefti_settings_find(&set));
    WEFT_TRY(wefti_secret_find(o->secret_file ? o->secret_file : set.secret_file, set.home, &secret,
                               NULL));
    wefti_servers_key(&secret, key);
    explicit_bzero(&secret, sizeof secret);
    const wefti_server_options options = {.number = o->number,
                                          .threads = o->threads,
                                          .encrypts = o->tls || set.tls,
                                          .key = key,
                                          .memory_bytes = memory,
                                          .seconds = set.join_seconds};
    const weft_status status = wefti_server_open(&options, &at->at, at->bytes, out);
    explicit_bzero(key, sizeof key);
    return status < 0 ? wefti_prefix(status, "%s", o->listen ? o->listen : "loopback") : WEFT_OK;
}

static void tell(const weft_server_options *o, const wefti_server *server,
                 weft_server_state *last) {
    const wefti_server_counts now = wefti_server_counts_of(server);
    const weft_server_state state = {now.ranks, now.shards, now.bytes, now.updates};
    const bool same = state.ranks == last->ranks && state.shards == last->shards &&
                      state.bytes == last->bytes && state.updates == last->updates;
    if (!o->changed || same) return;
    *last = state;
    o->changed(o->context, &state);
}

static weft_status run(const weft_server_options *o, wefti_server *server) {
    enum { SECOND = 1000000000 };
    weft_server_state last = {0};
    int64_t told_ns = 0;
    while (!o->stop_count || *o->stop_count == 0) {
        WEFT_TRY(wefti_server_turn(server, SERVE_TURN_MS));
        const int64_t now = wefti_now_ns();
        if (now - told_ns < SECOND) continue;
        told_ns = now;
        tell(o, server, &last);
    }
    return WEFT_OK;
}

weft_status weft_server_run(const weft_server_options *options) {
    weft_server_options o = weft_server_defaults();
    wefti_server *server;
    wefti_address at;
    char text[WEFTI_ADDRESS_TEXT];
    WEFT_TRY(wefti_struct_take("weft_server_options", options, &o));
    WEFT_REQUIRE(o.number >= 0 && o.number < WEFTI_SERVERS_MAX && o.threads >= 0, WEFT_E_ARG,
                 "weft_server_run: number is %d and threads %d; numbers are from 0 to %d", o.number,
                 o.threads, WEFTI_SERVERS_MAX - 1);
    WEFT_TRY(open_server(&o, &at, &server));
    at.bytes = sizeof at.at;
    if (o.began) o.began(o.context, wefti_address_text(&at, true, text));
    const weft_status status = run(&o, server);
    wefti_server_close(server);
    return status;
}
