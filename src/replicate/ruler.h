/* Which scheduler may make maps of servers, as state machines without sockets and clocks. A *map*
 * says which servers hold each shard. Servers store maps in memory alone. So a scheduler that is
 * started again, or that stood by, learns the last map from them. A map is *chosen* once a quorum
 * has stored it: only then does anybody act by it. The rules are those of Paxos: Lamport, The
 * Part-Time Parliament, 1998. docs/design/servers.md has the tables of states.
 *
 * A *quorum* is more than half of the voters, or half of them with the first server. The voters are
 * the servers of the map and the scheduler. A map is chosen by a quorum of its voters, and by one
 * of the voters of the map before, so that servers may come and go with every map. */
#ifndef WEFTI_RULER_H
#define WEFTI_RULER_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/status.h"

/* A bit for each server. A number is given once to one process. */
typedef uint64_t wefti_servers;

enum { WEFTI_SERVERS_MOST = 63, WEFTI_SCHEDULER = 63 /* the bit of its vote */ };

static inline wefti_servers wefti_server(int32_t number) {
    return (wefti_servers)1 << number;
}

static inline bool wefti_has_server(wefti_servers some, int32_t number) {
    return number >= 0 && (some & wefti_server(number));
}
static inline int wefti_count_servers(wefti_servers some) {
    return __builtin_popcountll(some);
}

/* A map's number. Epochs are those of schedulers; 0, 0: no map. */
typedef struct wefti_map_id {
    int64_t epoch, count;
} wefti_map_id;
static inline bool wefti_same_map(wefti_map_id a, wefti_map_id b) {
    return a.epoch == b.epoch && a.count == b.count;
}
static inline bool wefti_map_is_later(wefti_map_id a, wefti_map_id than) {
    return a.epoch > than.epoch || (a.epoch == than.epoch && a.count > than.count);
}

typedef struct wefti_electorate {
    wefti_servers voters, before; /* of the map, and of the map before */
} wefti_electorate;

/* ---- a server ---- */

typedef struct wefti_subject {
    int64_t epoch;       /* it has promised to obey no scheduler of an earlier one */
    wefti_map_id stored; /* the newest map that it has */
} wefti_subject;

/* Promises to obey the scheduler of `epoch`; false: it obeys a later one. */
bool wefti_subject_obeys(wefti_subject *s, int64_t epoch) WEFT_CHECKED;
/* Stores a map of the scheduler that it obeys, or has it; false: it obeys a later one, or has a
 * later map. */
bool wefti_subject_stores(wefti_subject *s, wefti_map_id id) WEFT_CHECKED;

/* ---- the scheduler ---- */

typedef enum wefti_ruler_phase {
    WEFTI_RULER_GATHERS,  /* asks servers for promises, and for the newest map */
    WEFTI_RULER_PROPOSES, /* a quorum has not stored its newest map yet */
    WEFTI_RULER_RULES,    /* its newest map is chosen */
} wefti_ruler_phase;

typedef struct wefti_ruler {
    wefti_ruler_phase phase;
    wefti_map_id id;     /* of its newest map; GATHERS: its epoch, and count 0 */
    wefti_map_id best;   /* GATHERS: of the newest map that a server has told */
    wefti_electorate of; /* the map `best`, or `id` */
    wefti_servers with;  /* who has promised; from PROPOSES on: who has stored the map `id` */
} wefti_ruler;

/* A server comes, and has promised `epoch`. True: the ruler has a new epoch, and all servers that
 * are there are asked to obey it; false: this server is asked. */
bool wefti_ruler_meets(wefti_ruler *r, int64_t epoch) WEFT_CHECKED;
/* The server has promised `epoch`, and has stored the map `id`. True: no server has told a newer
 * one, and the caller keeps this map. */
bool wefti_ruler_hears(wefti_ruler *r, int32_t server, int64_t epoch, wefti_map_id id,
                       wefti_electorate of) WEFT_CHECKED;
/* GATHERS: whether the newest map is known. The first map of this scheduler has the same voters.
 * `expected`: the servers that a job begins with; of use if none has a map. */
bool wefti_ruler_may_begin(const wefti_ruler *r, wefti_servers expected) WEFT_CHECKED;
/* Begins a map of these servers, and returns its number. RULES, or GATHERS if it may begin: one map
 * at a time. */
wefti_map_id wefti_ruler_proposes(wefti_ruler *r, wefti_servers servers);
/* The server has stored the map `id`. True: now it is chosen. */
bool wefti_ruler_counts(wefti_ruler *r, int32_t server, wefti_map_id id) WEFT_CHECKED;
/* PROPOSES: whether the map can still be chosen, if only the servers `here` store it from now on.
 */
bool wefti_ruler_may_choose(const wefti_ruler *r, wefti_servers here) WEFT_CHECKED;
/* The server is lost. */
void wefti_ruler_loses(wefti_ruler *r, int32_t server);

#endif
