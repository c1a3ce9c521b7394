/* A server's part in keeping shards, as a state machine without sockets, clocks or bytes: where it
 * stands with the scheduler, the map that it has stored, its part in each shard, and the pushes and
 * readings that wait for an answer. docs/design/servers.md has the tables.
 *
 * The caller keeps, for each shard of which the server has the state: that state, with the number
 * of each worker's last push; and the bytes of the last WEFTI_REPLICA_WINDOW updates. The shards of
 * the job's first map begin with their start values. */
#ifndef WEFTI_HOLDER_H
#define WEFTI_HOLDER_H

#include "replicate/map.h"
#include "replicate/replica.h"

typedef enum wefti_holder_stand {
    WEFTI_HOLDER_AWAY,  /* without a scheduler: it is not connected, or has heard nothing for the
                           heartbeat time */
    WEFTI_HOLDER_CALLS, /* has said HELLO */
    WEFTI_HOLDER_OBEYS, /* and has promised to obey this scheduler: its shards may be read */
    WEFTI_HOLDER_ENDS,  /* was told to end */
} wefti_holder_stand;

enum { WEFTI_HOLDER_WAITS = 32 /* pushes and readings of a shard that wait for an answer */ };

typedef struct wefti_unanswered {
    int64_t ticket;  /* the caller's name for it */
    int64_t updates; /* it is answered when all members have these */
    bool reads;
} wefti_unanswered;

typedef struct wefti_held {
    wefti_replica replica;
    int32_t parts; /* as which the state is sent; set by the caller */
    int32_t waits;
    wefti_unanswered waiting[WEFTI_HOLDER_WAITS];
} wefti_held;

/* What the holder asks of its caller. None of them calls a function of the holder. */
typedef struct wefti_holder_calls {
    void (*to_scheduler)(void *self, const wefti_map_message *m);
    /* Of UPDATE and PART, the caller adds the bytes. Lost if there is no connection; see _misses.
     */
    void (*to_server)(void *self, int32_t server, int32_t shard, const wefti_replica_message *m);
    bool (*has)(void *self, int32_t shard, wefti_push push); /* the state has this push */
    /* Update `number`, whose bytes have come just now, to the first `parts` of the state. */
    void (*apply)(void *self, int32_t shard, int64_t number, wefti_push push, int32_t parts);
    void (*take)(void *self, int32_t shard, int32_t part); /* which has come just now */
    void (*drop)(void *self, int32_t shard);               /* the state, if there is one */
    /* A push or reading is done. Not given: its worker asks again, the primary that there is then.
     */
    void (*answer)(void *self, int32_t shard, int64_t ticket, bool given);
} wefti_holder_calls;

/* The caller sets the fields up to `self`; all else is zero. */
typedef struct wefti_holder {
    int32_t me, shards;
    wefti_held *held;        /* [shards] */
    wefti_shard_view *views; /* [shards]: of the stored map */
    const wefti_holder_calls *calls;
    void *self;
    wefti_holder_stand stand;
    bool leaves;
    wefti_subject subject;
    wefti_electorate of; /* the stored map */
} wefti_holder;

void wefti_holder_begin(wefti_holder *h);

/* There is a connection to a scheduler. */
void wefti_holder_calls_scheduler(wefti_holder *h);
/* It is lost, or was silent for the heartbeat time. */
void wefti_holder_loses_scheduler(wefti_holder *h);
/* The process shall end, once its shards are elsewhere. */
void wefti_holder_leaves(wefti_holder *h);
/* The shard and the views are those of the job: the decoder has looked. */
void wefti_holder_hears_scheduler(wefti_holder *h, const wefti_map_message *m);

void wefti_holder_hears_server(wefti_holder *h, int32_t from, int32_t shard,
                               const wefti_replica_message *m);
/* What was said to or by this server may be lost; there is a connection again, or will be. */
void wefti_holder_misses(wefti_holder *h, int32_t server);
/* Sends the next part of the shard's state to the server that fills. The caller calls it as fast as
 * that connection takes the bytes. False: there is nothing to send. */
bool wefti_holder_sends_part(wefti_holder *h, int32_t shard);

typedef enum wefti_holder_reply {
    WEFTI_HOLDER_WAITS_NOW, /* `answer` is called for it; maybe it was already */
    WEFTI_HOLDER_BUSY,      /* there is no room: again after the shard's next `answer` */
    WEFTI_HOLDER_ELSEWHERE, /* it is not the primary, or may not be read now */
} wefti_holder_reply;
/* A push of a worker, whose bytes have come. */
wefti_holder_reply wefti_holder_pushes(wefti_holder *h, int32_t shard, wefti_push push,
                                       int64_t ticket) WEFT_CHECKED;
/* A reading. If it waits, the caller copies the values as they are now, and sends them if they are
 * given. */
wefti_holder_reply wefti_holder_reads(wefti_holder *h, int32_t shard, int64_t ticket) WEFT_CHECKED;

#endif
