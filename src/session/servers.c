/* How a session reaches the servers of what its plan gives to servers: processes that the world
 * names, or shards in this process, beside its devices. */
#include "base/secret/secret.h"
#include "comm/servers.h"
#include "server/local.h"
#include "server/remote.h"
#include "session/parts.h"

weft_status wefti_session_name_shards(weft_session *s) {
    if (!s->views[0]->own->serves || !s->servers) return WEFT_OK;
    weft_status status = s->me ? WEFT_OK : wefti_random_bytes(&s->shards, sizeof s->shards);
    if (!s->agreement) return status;
    return wefti_agree_broadcast(s->agreement, status, &s->shards, sizeof s->shards);
}

static weft_status reach(const weft_session *s, int32_t rank, wefti_service **out) {
    const wefti_world_servers *of = s->servers;
    const wefti_remote_options o = {.servers = of->address,
                                    .count = of->count,
                                    .rank = rank,
                                    .session = s->shards,
                                    .encrypts = of->encrypts,
                                    .key = of->key,
                                    .seconds = of->seconds};
    return wefti_service_remote(&o, out);
}

/* services [of this process's devices] */
static weft_status reach_all(const weft_session *s, int32_t devices, wefti_service **services) {
    if (!s->servers) return wefti_service_local(devices, s->threads, services);
    for (int32_t i = 0; i < devices; i++) WEFT_TRY(reach(s, s->me + i, &services[i]));
    return WEFT_OK;
}

weft_status wefti_session_serve(const weft_session *s, wefti_workers *workers) {
    const int32_t devices = s->world ? 1 : s->devices;
    wefti_service **services;
    if (!s->views[0]->own->serves) return WEFT_OK;
    WEFT_REQUIRE(!s->world || s->servers, WEFT_E_ARG,
                 "the plan gives parameters to servers (parallel.server), but the %d processes of "
                 "this run know no server: start it by weft launch --servers N, or start servers "
                 "with weft server and name them in WEFT_SERVERS",
                 s->devices);
    WEFT_NEW_ARRAY(services, wefti_service *, devices);
    const weft_status status = reach_all(s, devices, services);
    if (status >= 0) {
        wefti_workers_serve(workers, services);
        return WEFT_OK;
    }
    for (int32_t i = 0; i < devices; i++) wefti_service_destroy(services[i]);
    wefti_free(services);
    return status;
}
