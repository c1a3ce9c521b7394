/* How many shards each server holds, and which shard moves so that servers hold as many as others.
 * A table's rows are spread over its shards by a hash of their ids, so shards are of about one
 * size. Where shards lie is a fact of the map, not of a hash: with n servers, one more gets 1 / (n
 * + 1) of the shards, and nothing else moves. */
#ifndef WEFTI_BALANCE_H
#define WEFTI_BALANCE_H

#include "replicate/view.h"

typedef struct wefti_loads {
    int32_t held[WEFTI_SERVERS_MOST];  /* views in which the server is a member, or fills */
    int32_t leads[WEFTI_SERVERS_MOST]; /* is the primary */
} wefti_loads;

/* Counts a view so many times more; -1: it is no more. */
void wefti_loads_add(wefti_loads *l, const wefti_shard_view *view, int32_t times);
wefti_loads wefti_loads_of(const wefti_shard_view *views, int32_t count);

/* The servers of `some`, those that hold least first; of equal ones, the lowest number first.
 * Returns their number. out: [WEFTI_SERVERS_MOST]. It is the order for wefti_view_next. */
int32_t wefti_loads_order(const wefti_loads *l, wefti_servers some, int32_t *out);

typedef struct wefti_shard_move {
    int32_t shard, from, to;
} wefti_shard_move;
/* The next shard to move among the servers `here`: from one that holds most to one that holds
 * least, if they differ by two at least. For its wefti_view_next, `from` is leaving and `to` is
 * first in the order. Shards of which a view is under way stay where they are. False: there is
 * none. */
bool wefti_loads_move(const wefti_loads *l, const wefti_shard_view *views, int32_t count,
                      wefti_servers here, wefti_shard_move *out) WEFT_CHECKED;

#endif
