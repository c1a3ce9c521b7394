/* What the scheduler and a server say to each other. docs/design/servers.md has a table. A word is
 * lost only with its connection, and words of one connection keep their order. */
#ifndef WEFTI_MAP_H
#define WEFTI_MAP_H

#include "replicate/view.h"

typedef enum wefti_map_word {
    /* by a server: */
    WEFTI_MAP_HELLO,   /* it has come, or come again, and has promised `epoch`; 0: none */
    WEFTI_MAP_LEAVES,  /* its shards are to be moved to others, then it ends */
    WEFTI_MAP_PROMISE, /* it obeys the scheduler of `epoch`; the map that it has stored */
    WEFTI_MAP_TELLS,   /* it has stored the map `id`, serves the shard no more, and has so many
                          `updates`. Said before STORED, of shards without a primary */
    WEFTI_MAP_STORED,  /* it has stored the map `id` */
    WEFTI_MAP_CAUGHT,  /* the primary of the shard's view `id`: these servers have caught up */
    /* by the scheduler: */
    WEFTI_MAP_LEAD, /* obey the scheduler of `epoch` */
    WEFTI_MAP_MAP,  /* store this map */
    WEFTI_MAP_GO,   /* the map `id` is chosen: act by it */
    WEFTI_MAP_ENDS, /* the server was given up, or has left: its process ends */
} wefti_map_word;

typedef struct wefti_map_message {
    wefti_map_word word;
    int64_t epoch;
    wefti_map_id id;
    wefti_electorate of;           /* PROMISE, MAP */
    const wefti_shard_view *views; /* PROMISE, MAP: [shards]; lent */
    int32_t shard;                 /* TELLS, CAUGHT */
    int64_t updates;               /* TELLS; -1: it has no state */
    wefti_servers caught_up;       /* CAUGHT */
} wefti_map_message;

#endif
