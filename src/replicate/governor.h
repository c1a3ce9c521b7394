/* The scheduler's part in keeping shards on servers, as a state machine without sockets, clocks or
 * bytes. It makes the maps: the first one when all servers that the job begins with are there, and
 * another one when a server comes, is lost, leaves or has caught up, or when servers hold unlike
 * numbers of shards. All shards that change do so in one map. A new scheduler begins with nothing,
 * and finds the last map at the servers. docs/design/servers.md has the tables. */
#ifndef WEFTI_GOVERNOR_H
#define WEFTI_GOVERNOR_H

#include "replicate/balance.h"
#include "replicate/map.h"

/* What servers have told of a shard in the present view. */
typedef struct wefti_shard_facts {
    wefti_servers caught_up;
    int64_t updates[WEFTI_SERVERS_MOST]; /* -1: not told */
} wefti_shard_facts;

/* The caller sets the fields up to `self`; all else is zero. */
typedef struct wefti_governor {
    int32_t shards, copies;  /* of the job; members wanted of each shard */
    wefti_servers expected;  /* the servers that the job begins with */
    wefti_shard_view *views; /* [shards]: of the newest map; GATHERS: of the newest that was told */
    wefti_shard_facts *facts; /* [shards] */
    /* Says it to a server with a connection. It calls no function of the governor. */
    void (*say)(void *self, int32_t server, const wefti_map_message *m);
    void *self;
    wefti_ruler ruler;       /* its phase is the governor's */
    wefti_servers here;      /* not given up */
    wefti_servers connected; /* have said HELLO on a connection that stands */
    wefti_servers leaving;
    wefti_shard_move move; /* from == to: no shard moves */
} wefti_governor;

/* A word of a server. The shard and the views are those of the job: the decoder has looked. */
void wefti_governor_hears(wefti_governor *g, int32_t server, const wefti_map_message *m);
/* The server's connection is lost. */
void wefti_governor_loses(wefti_governor *g, int32_t server);
/* Who is in the map and not connected. The caller gives such a server up if its process has ended,
 * or is silent for longer than the heartbeat time: then it answers nobody. None while the phase is
 * GATHERS. */
wefti_servers wefti_governor_missing(const wefti_governor *g);
/* `server` is one of those that are missing. */
void wefti_governor_gives_up(wefti_governor *g, int32_t server);

/* The job ends if a shard has lost all members, or if too many servers are given up for another map
 * to be chosen. A shard; -1: none. */
int32_t wefti_governor_lost_shard(const wefti_governor *g);
bool wefti_governor_is_stuck(const wefti_governor *g);

#endif
