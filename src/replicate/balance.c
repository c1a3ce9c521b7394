#include "replicate/balance.h"

void wefti_loads_add(wefti_loads *l, const wefti_shard_view *view, int32_t times) {
    for (wefti_servers of = view->members | view->filling; of; of &= of - 1)
        l->held[__builtin_ctzll(of)] += times;
    if (view->primary >= 0) l->leads[view->primary] += times;
}

wefti_loads wefti_loads_of(const wefti_shard_view *views, int32_t count) {
    wefti_loads l = {0};
    for (int32_t i = 0; i < count; i++) wefti_loads_add(&l, &views[i], 1);
    return l;
}

int32_t wefti_loads_order(const wefti_loads *l, wefti_servers some, int32_t *out) {
    int32_t count = 0;
    for (int32_t s = 0; s < WEFTI_SERVERS_MOST; s++) {
        if (!wefti_has_server(some, s)) continue;
        int32_t at = count++;
        for (; at > 0 && l->held[out[at - 1]] > l->held[s]; at--) out[at] = out[at - 1];
        out[at] = s;
    }
    return count;
}

bool wefti_loads_move(const wefti_loads *l, const wefti_shard_view *views, int32_t count,
                      wefti_servers here, wefti_shard_move *out) {
    int32_t order[WEFTI_SERVERS_MOST];
    const int32_t servers = wefti_loads_order(l, here, order);
    if (servers < 2) return false;
    const int32_t to = order[0], from = order[servers - 1];
    if (l->held[from] < l->held[to] + 2) return false;
    /* One that it leads, if it leads more than the other one too; else no member has to halt. */
    const bool leads = l->leads[from] > l->leads[to] + 1;
    int32_t found = -1;
    for (int32_t i = 0; i < count; i++) {
        const wefti_shard_view *v = &views[i];
        if (v->primary < 0 || v->filling || !wefti_has_server(v->members, from) ||
            wefti_has_server(v->members, to))
            continue;
        const bool fits = (v->primary == from) == leads;
        if (found < 0 || (fits && (views[found].primary == from) != leads)) found = i;
    }
    *out = (wefti_shard_move){found, from, to};
    return found >= 0;
}
