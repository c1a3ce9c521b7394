/* The hosts of a group: see comm/schedule/hosts.h. */
#include "comm/schedule/hosts.h"

weft_status wefti_commsched_hosts_find(wefti_arena *arena, const wefti_transfer *t,
                                       const int32_t *host, wefti_commsched_hosts *out) {
    int32_t g = t->members, hosts = 0;
    int32_t *all = wefti_arena_alloc(arena, ((size_t)g * 5 + 1) * sizeof *all);
    WEFT_REQUIRE(all, WEFT_E_NOMEM, "no memory for the hosts of %d members", (int)g);
    int32_t *dense = all, *place = dense + g, *member = place + g, *first = member + g;
    int32_t *begin = first + g;
    *out = (wefti_commsched_hosts){
        .host = dense, .place = place, .member = member, .begin = begin, .in_order = true};
    for (int32_t m = 0; m < g; m++) {
        int32_t h = host ? 0 : hosts;
        while (h < hosts && host[t->ranks[first[h]]] != host[t->ranks[m]]) h++;
        if (h == hosts) first[hosts++] = m;
        out->in_order = out->in_order && (m == 0 || h == dense[m - 1] || first[h] == m);
        dense[m] = h;
        place[m] = begin[h + 1]++;
        if (place[m] >= out->most) out->most = place[m] + 1;
    }
    for (int32_t h = 0; h < hosts; h++) begin[h + 1] += begin[h];
    for (int32_t m = 0; m < g; m++) member[begin[dense[m]] + place[m]] = m;
    out->hosts = hosts;
    return WEFT_OK;
}
